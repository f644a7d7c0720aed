//! The send queue: written by the application, read by the one worker that owns the queue pair.
//!
//! Entries have a fixed stride: a [`SendWqe`] and then SGEs or inline bytes. `producer` is the number of entries
//! ever posted. An entry's slot belongs to the daemon from `post` until the completion that retires it is polled
//! (`Cqe::sq_consumer`), because inline data is sent, and sent again, from the slot.
//!
//! The daemon rests on an empty queue by setting `idle`; the post that finds it set clears it and rings the
//! doorbell ([`crate::protocol`]). A busy queue is therefore never rung.
use crate::area::Area;
use crate::layout::{INLINE_MAX, QUEUE_HEADER_BYTES, QueueHeader, SGE_MAX, SendWqe, Sge, WR_MAX, sq_stride};
use crate::{Fetch, WriteError, protocol};
use burst_base::verbs::send_flags;
use burst_span::Span;
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) const PRODUCER: usize = offset_of!(QueueHeader, producer);
pub(crate) const IDLE: usize = offset_of!(QueueHeader, idle);
pub(crate) const CONSUMER: usize = offset_of!(QueueHeader, consumer);
const BODY: usize = size_of::<SendWqe>();

/// Geometry of a send queue; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqSpec {
    entries: u32,
    max_sge: u32,
    max_inline: u32,
}

impl SqSpec {
    /// Room for `max_wr` requests of up to `max_sge` SGEs or `max_inline` bytes. None when a limit of
    /// [`crate::layout`] is exceeded. `max_wr` is rounded up to a power of two, at least 1.
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Option<SqSpec> {
        let fits = max_wr <= WR_MAX && max_sge <= SGE_MAX && max_inline <= INLINE_MAX;
        fits.then(|| SqSpec { entries: max_wr.max(1).next_power_of_two(), max_sge, max_inline })
    }
    /// Slots, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Most SGEs of one request.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Most inline bytes of one request.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }
    /// Bytes of shared memory.
    pub fn bytes(&self) -> usize {
        QUEUE_HEADER_BYTES + self.entries as usize * self.stride()
    }
    fn stride(&self) -> usize {
        sq_stride(self.max_sge, self.max_inline) as usize
    }
    fn slot(&self, index: u32) -> usize {
        QUEUE_HEADER_BYTES + (index & (self.entries - 1)) as usize * self.stride()
    }
}

/// The application's end. Used under the library's lock of the queue pair.
#[derive(Debug)]
pub struct SqProducer {
    area: Area,
    spec: SqSpec,
    written: u32,
    freed: u32,
}

impl SqProducer {
    /// The end of a queue nothing was posted to yet. None when `area` is too small.
    pub fn new(area: Area, spec: SqSpec) -> Option<SqProducer> {
        (area.len() >= spec.bytes()).then_some(SqProducer { area, spec, written: 0, freed: 0 })
    }
    /// Free slots.
    pub fn room(&self) -> u32 {
        self.spec.entries - self.written.wrapping_sub(self.freed)
    }
    /// Entries ever written: the index that the next one gets.
    pub fn written(&self) -> u32 {
        self.written
    }
    /// Geometry.
    pub fn spec(&self) -> &SqSpec {
        &self.spec
    }
    /// Writes a request with SGEs into the next slot; `num_sge` and `length` are filled in. Not visible to the
    /// daemon before [`SqProducer::post`].
    #[inline]
    pub fn write(&mut self, wqe: &SendWqe, sges: &[Sge]) -> Result<(), WriteError> {
        if self.room() == 0 {
            return Err(WriteError::Full);
        }
        if sges.len() > self.spec.max_sge as usize {
            return Err(WriteError::TooManySges);
        }
        let slot = self.spec.slot(self.written);
        let head = SendWqe { num_sge: sges.len() as u8, length: 0, flags: wqe.flags & !INLINE, ..*wqe };
        self.area.store(slot, &head, BODY);
        for (i, sge) in sges.iter().enumerate() {
            self.area.store(slot + BODY + i * size_of::<Sge>(), sge, size_of::<Sge>());
        }
        self.written = self.written.wrapping_add(1);
        Ok(())
    }
    /// Writes a request whose data is copied into the slot now, gathered from `parts`.
    ///
    /// # Safety
    /// Each part's pointer is readable for its length.
    pub unsafe fn write_inline(
        &mut self,
        wqe: &SendWqe,
        parts: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<(), WriteError> {
        if self.room() == 0 {
            return Err(WriteError::Full);
        }
        let slot = self.spec.slot(self.written);
        let mut length = 0;
        for (src, len) in parts {
            if len > self.spec.max_inline as usize - length {
                return Err(WriteError::InlineTooLong);
            }
            // SAFETY: `src` by the caller's promise; the slot is free, so only this producer touches it.
            unsafe { self.area.write_bytes(slot + BODY + length, src, len) };
            length += len;
        }
        let head = SendWqe { num_sge: 0, length: length as u32, flags: wqe.flags | INLINE, ..*wqe };
        self.area.store(slot, &head, BODY);
        self.written = self.written.wrapping_add(1);
        Ok(())
    }
    /// As [`SqProducer::write_inline`], from a slice.
    pub fn write_inline_bytes(&mut self, wqe: &SendWqe, data: &[u8]) -> Result<(), WriteError> {
        // SAFETY: a slice is readable.
        unsafe { self.write_inline(wqe, core::iter::once((data.as_ptr(), data.len()))) }
    }
    /// Writes SGE number `at` of a request that is built piece by piece in the next slot: check [`SqProducer::room`] first,
    /// end with [`SqProducer::commit`].
    #[inline]
    pub fn stage_sge(&mut self, at: u32, sge: &Sge) -> Result<(), WriteError> {
        if at >= self.spec.max_sge {
            return Err(WriteError::TooManySges);
        }
        let offset = self.spec.slot(self.written) + BODY + at as usize * size_of::<Sge>();
        self.area.store(offset, sge, size_of::<Sge>());
        Ok(())
    }
    /// Copies `len` inline bytes behind the first `at` of a request that is built piece by piece.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    pub unsafe fn stage_inline(&mut self, at: usize, src: *const u8, len: usize) -> Result<(), WriteError> {
        if at > self.spec.max_inline as usize || len > self.spec.max_inline as usize - at {
            return Err(WriteError::InlineTooLong);
        }
        // SAFETY: `src` by the caller's promise; the slot is free, so only this producer touches it.
        unsafe { self.area.write_bytes(self.spec.slot(self.written) + BODY + at, src, len) };
        Ok(())
    }
    /// Writes the head of the request that was built in the next slot, for which there is room. Its `num_sge`, `length`
    /// and INLINE flag say what was staged; the daemon checks them.
    #[inline]
    pub fn commit(&mut self, head: &SendWqe) -> Result<(), WriteError> {
        if self.room() == 0 {
            return Err(WriteError::Full);
        }
        self.area.store(self.spec.slot(self.written), head, BODY);
        self.written = self.written.wrapping_add(1);
        Ok(())
    }
    /// Forgets requests from index `to` on, which were written and not posted.
    pub fn rewind(&mut self, to: u32) {
        if self.written.wrapping_sub(to) <= self.written.wrapping_sub(self.freed) {
            self.written = to;
        }
    }
    /// Makes everything written visible. True: ring the doorbell of this queue.
    #[must_use = "an idle queue that is not rung sleeps for ever"]
    #[inline]
    pub fn post(&mut self) -> bool {
        protocol::post(self.area.word32(PRODUCER), self.area.word32(IDLE), self.written)
    }
    /// Frees the slots of all entries before index `consumer` (`Cqe::sq_consumer`). An older value changes nothing.
    #[inline]
    pub fn free(&mut self, consumer: u32) {
        if consumer.wrapping_sub(self.freed) <= self.written.wrapping_sub(self.freed) {
            self.freed = consumer;
        }
    }
    /// Frees all slots: the queue pair was moved to RESET, where the daemon forgets what was posted.
    pub fn free_all(&mut self) {
        self.freed = self.written;
    }
}

const INLINE: u16 = send_flags::INLINE as u16;

/// The daemon's end.
#[derive(Debug)]
pub struct SqConsumer {
    area: Area,
    spec: SqSpec,
    taken: u32,
}

impl SqConsumer {
    /// The end of a fresh queue, idle: the first post rings. None when `area` is too small.
    pub fn new(area: Area, spec: SqSpec) -> Option<SqConsumer> {
        if area.len() < spec.bytes() {
            return None;
        }
        area.word32(IDLE).store(1, Release);
        Some(SqConsumer { area, spec, taken: 0 })
    }
    /// Geometry.
    pub fn spec(&self) -> &SqSpec {
        &self.spec
    }
    /// Copies the next entry, once, and checks the copy's counts. Only the first `num_sge` SGEs are written.
    #[inline]
    pub fn fetch(&mut self, wqe: &mut SendWqe, sges: &mut [Sge; SGE_MAX as usize]) -> Fetch {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken);
        if posted == 0 {
            return Fetch::Empty;
        }
        if posted > self.spec.entries {
            return Fetch::Corrupt;
        }
        let index = self.taken;
        let slot = self.spec.slot(index);
        self.area.load(slot, wqe);
        self.taken = index.wrapping_add(1);
        let inline = wqe.flags & INLINE != 0;
        let bad_inline = inline && (wqe.length > self.spec.max_inline || wqe.num_sge != 0);
        if bad_inline || u32::from(wqe.num_sge) > self.spec.max_sge {
            return Fetch::Malformed(index);
        }
        for (i, sge) in sges.iter_mut().enumerate().take(usize::from(wqe.num_sge)) {
            self.area.load(slot + BODY + i * size_of::<Sge>(), sge);
        }
        Fetch::Taken(index)
    }
    /// The inline data of entry `index`: `len` bytes, cut to the queue's inline limit. Valid until the entry is
    /// retired; the application may change the bytes, never their place.
    pub fn inline_span(&self, index: u32, len: u32) -> Span {
        let len = len.min(self.spec.max_inline);
        let offset = self.spec.slot(index) + BODY;
        assert!(offset + len as usize <= self.area.len());
        // SAFETY: inside the area, which the owner of this consumer keeps mapped while spans of it are alive
        // (spans live for one turn; queues are destroyed between turns).
        unsafe { Span::local(self.area.as_ptr().add(offset), len) }
    }
    /// Entries posted and not taken; the queue's size at most.
    pub fn pending(&self) -> u32 {
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken).min(self.spec.entries)
    }
    /// Entries ever taken: the index that the next one has. An entry's `Cqe::sq_consumer` is its index + 1.
    pub fn taken(&self) -> u32 {
        self.taken
    }
    /// Publishes how many entries were ever retired. The application frees slots by `Cqe::sq_consumer`, so this
    /// is for observers.
    pub fn publish_consumed(&mut self, count: u32) {
        self.area.word32(CONSUMER).store(count, Release);
    }
    /// Rests on an empty queue. True: the next post rings the doorbell. False: there is something to fetch.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Forgets everything posted (RESET). Indices go on; the library frees its slots by `SqProducer::free_all`.
    pub fn discard_all(&mut self) {
        self.taken = self.area.word32(PRODUCER).load(Acquire);
        self.area.word32(CONSUMER).store(self.taken, Release);
        self.area.word32(IDLE).store(1, Relaxed);
    }
}
