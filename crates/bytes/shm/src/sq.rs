//! The send queue: written by the application, read by the one worker that owns the queue pair.
//!
//! Entries have a fixed stride: a [`SendWqe`] and then SGEs or inline bytes. `producer` is the number of entries
//! ever posted. An entry's slot belongs to the daemon from `post` until the completion that retires it is polled
//! (`Cqe::sq_consumer`), because inline data is sent, and sent again, from the slot.
//!
//! When a queue is empty the daemon sets `idle`; the post that finds `idle` set clears it and rings the doorbell
//! ([`crate::protocol`]). A busy queue is therefore never rung.
use crate::area::Area;
use crate::arena::Segment;
use crate::layout::{INLINE_MAX, LINE, QUEUE_HEADER_BYTES, QueueHeader, SGE_MAX, SendWqe, Sge, WR_MAX, sq_stride};
use crate::{Fetch, WriteError, protocol};
use burst_base::verbs::send_flags;
use burst_span::Span;
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

pub(crate) const PRODUCER: usize = offset_of!(QueueHeader, producer);
pub(crate) const IDLE: usize = offset_of!(QueueHeader, idle);
pub(crate) const CONSUMER: usize = offset_of!(QueueHeader, consumer);
const BODY: usize = size_of::<SendWqe>();

/// Dimensions of a send queue; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqSpec {
    entries: u32,
    max_sge: u32,
    max_inline: u32,
    /// Cache lines of an entry. Offsets are made of whole lines, so that the compiler knows them to be aligned.
    lines: u32,
}

impl SqSpec {
    /// Dimensions for `max_wr` requests of up to `max_sge` SGEs or `max_inline` bytes. None when a limit of
    /// [`crate::layout`] is exceeded. `max_wr` is rounded up to a power of two, at least 1.
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Option<SqSpec> {
        let fits = max_wr <= WR_MAX && max_sge <= SGE_MAX && max_inline <= INLINE_MAX;
        let lines = sq_stride(max_sge.min(SGE_MAX), max_inline.min(INLINE_MAX)) / LINE as u32;
        fits.then(|| SqSpec { entries: max_wr.max(1).next_power_of_two(), max_sge, max_inline, lines })
    }
    /// Number of slots, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Most SGEs of one request.
    #[inline]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Most inline bytes of one request.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }
    /// Shared memory that the queue needs, in bytes.
    pub fn bytes(&self) -> usize {
        QUEUE_HEADER_BYTES + self.entries as usize * self.stride()
    }
    fn stride(&self) -> usize {
        self.lines as usize * LINE
    }
    #[inline]
    fn slot(&self, index: u32) -> usize {
        QUEUE_HEADER_BYTES + (index & (self.entries - 1)) as usize * self.lines as usize * LINE
    }
}

/// Area and dimensions of the smallest queue, in memory of this process only.
fn private_queue() -> Option<(Area, SqSpec)> {
    let spec = SqSpec::new(1, 1, 0)?;
    let segment = Arc::new(Segment::anonymous(spec.bytes()).ok()?);
    Some((Area::new(&segment, 0, spec.bytes())?, spec))
}

/// The application's end. The library uses it under its lock of the queue pair.
#[derive(Debug)]
pub struct SqProducer {
    area: Area,
    spec: SqSpec,
    written: u32,
    freed: u32,
}

impl SqProducer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: SqSpec) -> Option<SqProducer> {
        (area.len() >= spec.bytes()).then_some(SqProducer { area, spec, written: 0, freed: 0 })
    }
    /// The end of a queue without a reader, for queue pairs that cannot send. None when memory is exhausted.
    pub fn detached() -> Option<SqProducer> {
        let (area, spec) = private_queue()?;
        SqProducer::new(area, spec)
    }
    /// Number of free slots.
    #[inline]
    pub fn room(&self) -> u32 {
        debug_assert!(self.written.wrapping_sub(self.freed) <= self.spec.entries, "no slot is used twice");
        self.spec.entries - self.written.wrapping_sub(self.freed)
    }
    /// Number of entries ever written: the index of the next entry.
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }
    /// Dimensions.
    #[inline]
    pub fn spec(&self) -> &SqSpec {
        &self.spec
    }
    /// Asks the processor for what [`SqProducer::write`] and [`SqProducer::post`] write next.
    #[inline]
    pub fn prefetch(&self) {
        self.area.prefetch(PRODUCER, LINE);
        self.area.prefetch(self.spec.slot(self.written), BODY + size_of::<Sge>());
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
    /// As [`SqProducer::write`], for requests that need only the fields of [`ShortWqe`]: half the cache line is written.
    #[inline]
    pub fn write_short(&mut self, head: &ShortWqe, sges: &[Sge]) -> Result<(), WriteError> {
        if self.room() == 0 {
            return Err(WriteError::Full);
        }
        if sges.len() > self.spec.max_sge as usize {
            return Err(WriteError::TooManySges);
        }
        let slot = self.spec.slot(self.written);
        self.area.store_words(slot, head.words(sges.len() as u32));
        let mut at = slot + BODY;
        for sge in sges {
            self.area.store_words(at, sge.words());
            at += size_of::<Sge>();
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
        debug_assert!(length <= self.spec.max_inline as usize);
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
    /// Writes the head of a request. Its SGEs or inline bytes follow by [`SqProducer::stage_sge`] or
    /// [`SqProducer::stage_inline`] on the returned value. `None`: no slot is free.
    #[inline]
    pub fn begin(&mut self, head: &ShortWqe) -> Option<Staged> {
        if self.room() == 0 {
            return None;
        }
        let slot = self.spec.slot(self.written);
        self.area.store_words(slot, head.words(0));
        self.written = self.written.wrapping_add(1);
        Some(Staged { lines: (slot / LINE) as u32, num_sge: 0, length: 0, rkey: head.rkey, word1: head.word1(0) })
    }
    /// As [`SqProducer::begin`], for a request that needs the whole head.
    pub fn begin_whole(&mut self, wqe: &SendWqe) -> Option<Staged> {
        let staged = self.begin(&ShortWqe::of(wqe))?;
        self.area.store(staged.slot(), &SendWqe { num_sge: 0, length: 0, ..*wqe }, BODY);
        Some(staged)
    }
    /// Appends an SGE to a request begun on this queue and not yet posted.
    #[inline]
    pub fn stage_sge(&self, to: &mut Staged, sge: &Sge) -> Result<(), WriteError> {
        let at = to.num_sge;
        debug_assert!(to.slot() + BODY <= self.area.len(), "begun on this queue");
        if at >= self.spec.max_sge {
            return Err(WriteError::TooManySges);
        }
        to.num_sge = at + 1;
        let count = byte_field(u64::from(at) + 1, offset_of!(SendWqe, num_sge) - WORD1, 1);
        self.area.store_words(to.slot() + WORD1, [to.word1 | count]);
        self.area.store_words(to.slot() + BODY + at as usize * size_of::<Sge>(), sge.words());
        Ok(())
    }
    /// Appends inline bytes to a request begun on this queue and not yet posted.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    pub unsafe fn stage_inline(&self, to: &mut Staged, src: *const u8, len: usize) -> Result<(), WriteError> {
        if len > self.spec.max_inline.saturating_sub(to.length) as usize {
            return Err(WriteError::InlineTooLong);
        }
        let slot = to.slot();
        // SAFETY: `src` by the caller's promise; the slot is not posted yet, so only this producer touches it.
        unsafe { self.area.write_bytes(slot + BODY + to.length as usize, src, len) };
        to.length += len as u32;
        to.word1 |= STAGED_INLINE;
        self.area.store_words(slot + WORD1, [to.word1]);
        self.area.store_words(slot + WORD3, [two(to.rkey, to.length)]);
        Ok(())
    }
    /// Fills in the destination of a datagram begun by [`SqProducer::begin_whole`].
    pub fn stage_datagram(&self, to: &Staged, ah: u32, remote_qpn: u32, remote_qkey: u32) {
        self.area.store_words(to.slot() + TAIL, [two(remote_qpn, remote_qkey), two(ah, 0)]);
    }
    /// Fills in the shared receive queue of an XRC request begun by [`SqProducer::begin_whole`].
    pub fn stage_srqn(&self, to: &Staged, srqn: u32) {
        self.area.store_words(to.slot() + TAIL, [two(srqn, 0)]);
    }
    /// The head of the entry `index`, which was written and is not free.
    pub fn entry(&self, index: u32) -> SendWqe {
        let mut wqe = SendWqe::default();
        self.area.load(self.spec.slot(index), &mut wqe);
        wqe
    }
    /// Drops the requests from index `to` on, which were written and not posted.
    pub fn rewind(&mut self, to: u32) {
        if self.written.wrapping_sub(to) <= self.written.wrapping_sub(self.freed) {
            self.written = to;
        }
    }
    /// Makes all requests written so far visible. True: the caller must ring the doorbell of this queue.
    #[must_use = "the daemon does not look at an idle queue that is not rung"]
    #[inline]
    pub fn post(&mut self) -> bool {
        // The word with the higher offset first: its bounds check covers the other.
        let idle = self.area.word32(IDLE);
        protocol::post(self.area.word32(PRODUCER), idle, self.written)
    }
    /// Frees the slots of all entries before index `consumer` (`Cqe::sq_consumer`). An older value changes nothing.
    #[inline]
    pub fn free(&mut self, consumer: u32) {
        if consumer.wrapping_sub(self.freed) <= self.written.wrapping_sub(self.freed) {
            self.freed = consumer;
        }
    }
    /// Frees all slots: the queue pair was moved to RESET, where the daemon drops all posted requests.
    pub fn free_all(&mut self) {
        self.freed = self.written;
    }
}

/// The flag of inline data in [`SendWqe::flags`].
const INLINE: u16 = send_flags::INLINE as u16;
/// Offset of the first field of datagrams.
const TAIL: usize = offset_of!(SendWqe, remote_qpn);

/// The first half of a [`SendWqe`], which is enough for SEND, WRITE and READ. The second half of the slot keeps its old
/// contents; the daemon does not look at it for these opcodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortWqe {
    /// As in [`SendWqe`].
    pub wr_id: u64,
    /// As in [`SendWqe`].
    pub opcode: u8,
    /// As in [`SendWqe`].
    pub flags: u16,
    /// As in [`SendWqe`].
    pub imm: u32,
    /// As in [`SendWqe`].
    pub remote_addr: u64,
    /// As in [`SendWqe`].
    pub rkey: u32,
}

impl ShortWqe {
    /// The first half of `wqe`.
    pub fn of(wqe: &SendWqe) -> ShortWqe {
        let &SendWqe { wr_id, opcode, flags, imm, remote_addr, rkey, .. } = wqe;
        ShortWqe { wr_id, opcode, flags, imm, remote_addr, rkey }
    }
    /// The word that holds opcode, SGE count, flags and immediate data.
    #[inline]
    fn word1(&self, num_sge: u32) -> u64 {
        let of = |value: u64, at: usize, bytes: usize| byte_field(value, at - WORD1, bytes);
        of(self.opcode.into(), offset_of!(SendWqe, opcode), 1)
            | of(num_sge.into(), offset_of!(SendWqe, num_sge), 1)
            | of(self.flags.into(), offset_of!(SendWqe, flags), 2)
            | of(self.imm.into(), offset_of!(SendWqe, imm), 4)
    }
    #[inline]
    fn words(&self, num_sge: u32) -> [u64; 4] {
        [self.wr_id, self.word1(num_sge), self.remote_addr, two(self.rkey, 0)]
    }
}

/// Offset of the word that holds opcode, SGE count, flags and immediate data.
const WORD1: usize = offset_of!(SendWqe, opcode);
/// Offset of the word that holds remote key and inline length.
const WORD3: usize = offset_of!(SendWqe, rkey);

// The words that are composed here agree with the layout of `SendWqe` and `Sge`.
const _: () = assert!(
    offset_of!(SendWqe, wr_id) == 0
        && WORD1 == 8
        && offset_of!(SendWqe, imm) == WORD1 + 4
        && offset_of!(SendWqe, remote_addr) == 16
        && WORD3 == 24
        && offset_of!(SendWqe, length) == WORD3 + 4
        && offset_of!(Sge, length) == 8
        && offset_of!(Sge, lkey) == 12
        && offset_of!(SendWqe, remote_qkey) == TAIL + 4
        && offset_of!(SendWqe, ah) == TAIL + 8
);

/// A word whose bytes from byte `at` on are the lowest `bytes` bytes of `value`, as they lie in memory.
#[inline]
const fn byte_field(value: u64, at: usize, bytes: usize) -> u64 {
    value << (8 * if cfg!(target_endian = "little") { at } else { size_of::<u64>() - at - bytes })
}

/// Two 32-bit values side by side in memory.
#[inline]
const fn two(first: u32, second: u32) -> u64 {
    byte_field(first as u64, 0, 4) | byte_field(second as u64, 4, 4)
}

impl Sge {
    #[inline]
    pub(crate) fn words(&self) -> [u64; 2] {
        [self.addr, two(self.length, self.lkey)]
    }
}

/// A request that is being written piece by piece into its slot.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// Offset of the slot in the queue, in cache lines.
    lines: u32,
    num_sge: u32,
    length: u32,
    rkey: u32,
    /// The second word of the head, with an SGE count of 0.
    word1: u64,
}

impl Staged {
    #[inline]
    fn slot(&self) -> usize {
        self.lines as usize * LINE
    }
    /// Opcode of the request (`WrOpcode` number).
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.word1.to_ne_bytes()[offset_of!(SendWqe, opcode) - WORD1]
    }
    /// Number of SGEs so far.
    #[inline]
    pub fn num_sge(&self) -> u32 {
        self.num_sge
    }
    /// Whether inline data was given, even if it was empty.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.word1 & STAGED_INLINE != 0
    }
}

/// [`INLINE`] in the second word of a head.
const STAGED_INLINE: u64 = byte_field(INLINE as u64, offset_of!(SendWqe, flags) - WORD1, 2);

/// The daemon's end, used by one worker.
#[derive(Debug)]
pub struct SqConsumer {
    area: Area,
    spec: SqSpec,
    taken: u32,
}

impl SqConsumer {
    /// The end of a new queue, which is idle: the first post rings. None when `area` is too small.
    pub fn new(area: Area, spec: SqSpec) -> Option<SqConsumer> {
        if area.len() < spec.bytes() {
            return None;
        }
        area.word32(IDLE).store(1, Release);
        Some(SqConsumer { area, spec, taken: 0 })
    }
    /// The end of a queue without a writer, for queue pairs that cannot send. None when memory is exhausted.
    pub fn detached() -> Option<SqConsumer> {
        let (area, spec) = private_queue()?;
        SqConsumer::new(area, spec)
    }
    /// Geometry.
    #[inline]
    pub fn spec(&self) -> &SqSpec {
        &self.spec
    }
    /// Copies the next entry, once, and checks the copy's counts: it is malformed if it has more SGEs than the queue allows or
    /// than `sges` has places. Only the first `num_sge` places are written.
    #[inline]
    pub fn fetch(&mut self, wqe: &mut SendWqe, sges: &mut [Sge]) -> Fetch {
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
        debug_assert!(slot + self.spec.stride() <= self.area.len(), "masked indices lie inside the area");
        self.area.load(slot, wqe);
        self.taken = index.wrapping_add(1);
        let inline = wqe.flags & INLINE != 0;
        let bad_inline = inline && (wqe.length > self.spec.max_inline || wqe.num_sge != 0);
        let Some(sges) = sges.get_mut(..usize::from(wqe.num_sge)) else { return Fetch::Malformed(index) };
        if bad_inline || u32::from(wqe.num_sge) > self.spec.max_sge {
            return Fetch::Malformed(index);
        }
        for (i, sge) in sges.iter_mut().enumerate() {
            self.area.load(slot + BODY + i * size_of::<Sge>(), sge);
        }
        Fetch::Taken(index)
    }
    /// Asks the processor for what [`SqConsumer::fetch`] reads next.
    #[inline]
    pub fn prefetch(&self) {
        self.area.prefetch(PRODUCER, LINE);
        self.area.prefetch(self.spec.slot(self.taken), BODY + size_of::<Sge>());
    }
    /// The inline data of entry `index`: `len` bytes, cut to the queue's inline limit. Valid until the entry is
    /// retired; the application may change the bytes at any time, but not where they are.
    pub fn inline_span(&self, index: u32, len: u32) -> Span {
        let len = len.min(self.spec.max_inline);
        let offset = self.spec.slot(index) + BODY;
        assert!(offset + len as usize <= self.area.len());
        // SAFETY: inside the area, which the owner of this consumer keeps mapped while spans of it are alive
        // (spans live for one turn; queues are destroyed between turns).
        unsafe { Span::local(self.area.as_ptr().add(offset), len) }
    }
    /// Number of entries that are posted and not taken; at most the number of slots, even if the producer index is impossible.
    pub fn pending(&self) -> u32 {
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken).min(self.spec.entries)
    }
    /// Number of entries ever taken: the index of the next entry. An entry's `Cqe::sq_consumer` is its index + 1.
    pub fn taken(&self) -> u32 {
        self.taken
    }
    /// Declares an empty queue idle. True: the next post rings the doorbell. False: there is an entry to fetch.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Drops all posted entries (RESET). Indices go on; the library frees its slots by `SqProducer::free_all`.
    pub fn discard_all(&mut self) {
        self.taken = self.area.word32(PRODUCER).load(Acquire);
        self.area.word32(CONSUMER).store(self.taken, Release);
        self.area.word32(IDLE).store(1, Relaxed);
    }
}
