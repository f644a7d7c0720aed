//! Receive queues: one worker takes ([`RqConsumer`]), or several ([`SrqConsumer`], a shared receive queue).
//!
//! An entry is a [`RecvWqe`] and its SGEs. The daemon copies an entry when it takes it, so its slot is free at
//! once: `consumer` (daemon to application) gives the free slots without any completion. Entries of an SRQ are taken without
//! a lock: a worker copies the entry, then claims its index by compare-and-swap; if the claim fails it discards the copy.
//!
//! `idle` is normally 0, so that receives ring no doorbell. The daemon sets it to be notified of the next receive: a
//! queue pair in error must flush receives that are posted later.
use crate::area::Area;
use crate::layout::{QUEUE_HEADER_BYTES, RecvWqe, SGE_MAX, Sge, WR_MAX, rq_stride};
use crate::sq::{CONSUMER, IDLE, PRODUCER};
use crate::{Fetch, WriteError, protocol};
use core::mem::size_of;
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

const BODY: usize = size_of::<RecvWqe>();

/// Dimensions of a receive queue; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqSpec {
    entries: u32,
    max_sge: u32,
    /// Bytes of an entry in units of [`PAIR`], so that the compiler knows offsets to be aligned.
    pairs: u32,
}

/// Unit of an entry's size, in bytes: two SGEs, or a head and an SGE.
const PAIR: usize = 32;
const _: () = assert!(PAIR == 2 * size_of::<Sge>() && BODY == size_of::<Sge>());

impl RqSpec {
    /// Dimensions for `max_wr` receives (rounded up to a power of two) of up to `max_sge` SGEs; None beyond the limits of
    /// [`crate::layout`].
    pub fn new(max_wr: u32, max_sge: u32) -> Option<RqSpec> {
        let fits = max_wr <= WR_MAX && max_sge <= SGE_MAX;
        let pairs = rq_stride(max_sge.min(SGE_MAX)) / PAIR as u32;
        fits.then(|| RqSpec { entries: max_wr.max(1).next_power_of_two(), max_sge, pairs })
    }
    /// Number of slots, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Most SGEs of one receive.
    #[inline]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Shared memory that the queue needs, in bytes.
    pub fn bytes(&self) -> usize {
        QUEUE_HEADER_BYTES + self.entries as usize * self.stride()
    }
    fn stride(&self) -> usize {
        self.pairs as usize * PAIR
    }
    #[inline]
    fn slot(&self, index: u32) -> usize {
        QUEUE_HEADER_BYTES + (index & (self.entries - 1)) as usize * self.pairs as usize * PAIR
    }
    /// Copies entry `index` if it is posted, without taking it.
    #[inline]
    fn copy(&self, area: &Area, index: u32, wqe: &mut RecvWqe, sges: &mut [Sge]) -> Fetch {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = area.word32(PRODUCER).load(Acquire).wrapping_sub(index);
        if posted == 0 {
            return Fetch::Empty;
        }
        if posted > self.entries {
            return Fetch::Corrupt;
        }
        let slot = self.slot(index);
        debug_assert!(slot + self.stride() <= area.len(), "masked indices lie inside the area");
        area.load(slot, wqe);
        let Some(sges) = sges.get_mut(..wqe.num_sge as usize) else { return Fetch::Malformed(index) };
        if wqe.num_sge > self.max_sge {
            return Fetch::Malformed(index);
        }
        for (i, sge) in sges.iter_mut().enumerate() {
            area.load(slot + BODY + i * size_of::<Sge>(), sge);
        }
        Fetch::Taken(index)
    }
}

/// The application's end of a queue pair's own queue or of an SRQ. The library uses it under its lock of the queue.
#[derive(Debug)]
pub struct RqProducer {
    area: Area,
    spec: RqSpec,
    written: u32,
}

impl RqProducer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<RqProducer> {
        (area.len() >= spec.bytes()).then_some(RqProducer { area, spec, written: 0 })
    }
    /// The end of a queue that has moved to another ring after `written` entries were posted. None when `area` is too small.
    pub fn resume(area: Area, spec: RqSpec, written: u32) -> Option<RqProducer> {
        (area.len() >= spec.bytes()).then_some(RqProducer { area, spec, written })
    }
    /// Number of free slots.
    #[inline]
    pub fn room(&self) -> u32 {
        // Acquire: pairs with the consumer's Release; the daemon's copy of a slot comes before its reuse.
        let used = self.written.wrapping_sub(self.area.word32(CONSUMER).load(Acquire));
        self.spec.entries.saturating_sub(used)
    }
    /// Number of entries ever written.
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }
    /// Asks the processor for what [`RqProducer::write`] and [`RqProducer::post`] use next.
    #[inline]
    pub fn prefetch(&self) {
        self.area.prefetch(PRODUCER, QUEUE_HEADER_BYTES);
        self.area.prefetch(self.spec.slot(self.written), PAIR);
    }
    /// Frees the slots of the entries before `index`, for a library whose daemon has ended: otherwise only the daemon does.
    pub fn set_taken(&self, index: u32) {
        self.area.word32(CONSUMER).store(index, Release);
    }
    /// The `wr_id` of the entry `index`, which was written and is not taken.
    pub fn wr_id(&self, index: u32) -> u64 {
        let mut wqe = RecvWqe::default();
        self.area.load(self.spec.slot(index), &mut wqe);
        wqe.wr_id
    }
    /// Dimensions.
    #[inline]
    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }
    /// Writes a receive into the next slot; `num_sge` is filled in. Not visible before [`RqProducer::post`].
    #[inline]
    pub fn write(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), WriteError> {
        if self.room() == 0 {
            return Err(WriteError::Full);
        }
        if sges.len() > self.spec.max_sge as usize {
            return Err(WriteError::TooManySges);
        }
        let slot = self.spec.slot(self.written);
        debug_assert!(slot + self.spec.stride() <= self.area.len() && sges.len() <= SGE_MAX as usize);
        self.area.store(slot, &RecvWqe { wr_id, num_sge: sges.len() as u32, reserved: 0 }, BODY);
        let mut at = slot + BODY;
        for sge in sges {
            self.area.store_words(at, sge.words());
            at += size_of::<Sge>();
        }
        self.written = self.written.wrapping_add(1);
        Ok(())
    }
    /// Makes all receives written so far visible. True: the daemon has asked for a doorbell.
    #[must_use = "a queue pair in error flushes receives only when rung"]
    #[inline]
    pub fn post(&mut self) -> bool {
        protocol::post(self.area.word32(PRODUCER), self.area.word32(IDLE), self.written)
    }
}

/// The daemon's end of a queue pair's own receive queue: one worker.
#[derive(Debug)]
pub struct RqConsumer {
    area: Area,
    spec: RqSpec,
    taken: u32,
}

impl RqConsumer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<RqConsumer> {
        (area.len() >= spec.bytes()).then_some(RqConsumer { area, spec, taken: 0 })
    }
    /// Dimensions.
    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }
    /// Copies the next entry, once, and frees its slot. It is malformed if it has more SGEs than the queue allows or than `sges`
    /// has places. In the copy, `reserved` is the number of entries ever taken.
    #[inline(always)]
    pub fn fetch(&mut self, wqe: &mut RecvWqe, sges: &mut [Sge]) -> Fetch {
        let fetch = self.spec.copy(&self.area, self.taken, wqe, sges);
        if matches!(fetch, Fetch::Taken(_) | Fetch::Malformed(_)) {
            self.taken = self.taken.wrapping_add(1);
            // The copy tells its place in the queue, whatever the application wrote there.
            wqe.reserved = self.taken;
            // Release: the copy above comes before the application's reuse of the slot.
            self.area.word32(CONSUMER).store(self.taken, Release);
        }
        fetch
    }
    /// Asks the processor for what [`RqConsumer::fetch`] reads and writes next.
    #[inline]
    pub fn prefetch(&self) {
        self.area.prefetch(PRODUCER, QUEUE_HEADER_BYTES);
        self.area.prefetch(self.spec.slot(self.taken), PAIR);
    }
    /// Number of receives that are posted and not taken; at most the number of slots, even if the producer index is impossible.
    pub fn pending(&self) -> u32 {
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken).min(self.spec.entries)
    }
    /// Asks for a doorbell at the next post. False: there are receives already; fetch them and ask again.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Ends the request of [`RqConsumer::try_idle`]: posts ring no doorbell.
    pub fn want_no_doorbell(&mut self) {
        self.area.word32(IDLE).store(0, Relaxed);
    }
    /// Drops all posted receives (RESET). Indices go on.
    pub fn discard_all(&mut self) {
        self.taken = self.area.word32(PRODUCER).load(Acquire);
        self.area.word32(CONSUMER).store(self.taken, Release);
        self.want_no_doorbell();
    }
}

/// The daemon's end of a shared receive queue. Its clones, one per worker, take from the same queue.
#[derive(Clone, Debug)]
pub struct SrqConsumer {
    area: Area,
    spec: RqSpec,
    /// Number of entries ever taken. Authoritative; the word in the header is a copy for the application.
    taken: Arc<AtomicU32>,
}

impl SrqConsumer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<SrqConsumer> {
        (area.len() >= spec.bytes()).then_some(SrqConsumer { area, spec, taken: Arc::default() })
    }
    /// Dimensions.
    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }
    /// The same queue in another ring, with all posted entries; `None` if they do not fit. The application must not post
    /// meanwhile. Workers may go on taking from either ring, because both share `taken`. When no worker uses the old ring
    /// any more, call [`SrqConsumer::publish_taken`].
    pub fn move_to(&self, area: Area, spec: RqSpec) -> Option<SrqConsumer> {
        if area.len() < spec.bytes() || spec.max_sge != self.spec.max_sge {
            return None;
        }
        let taken = self.taken.load(Acquire);
        let end = self.area.word32(PRODUCER).load(Acquire);
        if end.wrapping_sub(taken) > spec.entries.min(self.spec.entries) {
            return None;
        }
        let (mut wqe, mut sges) = (RecvWqe::default(), [Sge::default(); SGE_MAX as usize]);
        for index in (0..end.wrapping_sub(taken)).map(|i| taken.wrapping_add(i)) {
            // A malformed entry stays malformed in its new slot.
            let _ = self.spec.copy(&self.area, index, &mut wqe, &mut sges);
            let slot = spec.slot(index);
            area.store(slot, &wqe, BODY);
            for (i, sge) in sges.iter().enumerate().take(wqe.num_sge.min(spec.max_sge) as usize) {
                area.store(slot + BODY + i * size_of::<Sge>(), sge, size_of::<Sge>());
            }
        }
        debug_assert!(end.wrapping_sub(taken) <= spec.entries, "the entries have distinct slots");
        area.word32(CONSUMER).store(taken, Release);
        area.word32(PRODUCER).store(end, Release);
        Some(SrqConsumer { area, spec, taken: self.taken.clone() })
    }
    /// Publishes the number of entries ever taken, so that the application can reuse their slots.
    pub fn publish_taken(&self) {
        protocol::publish_taken(&self.taken, self.area.word32(CONSUMER), self.taken.load(Acquire));
    }
    /// Copies and takes the next entry that no other worker takes. Lock-free: it repeats only after another worker has taken
    /// an entry.
    pub fn fetch(&self, wqe: &mut RecvWqe, sges: &mut [Sge]) -> Fetch {
        loop {
            let index = self.taken.load(Acquire);
            let fetch = self.spec.copy(&self.area, index, wqe, sges);
            match fetch {
                Fetch::Taken(_) | Fetch::Malformed(_) => {
                    if protocol::take(&self.taken, self.area.word32(CONSUMER), index) {
                        return fetch;
                    }
                }
                // Another worker has taken entries between the two loads: the distance was measured from a stale index.
                Fetch::Corrupt if self.taken.load(Acquire) != index => {}
                Fetch::Empty | Fetch::Corrupt => return fetch,
            }
        }
    }
    /// Number of receives that are posted and not taken, at most the number of slots. Decides the SRQ limit event.
    pub fn pending(&self) -> u32 {
        let taken = self.taken.load(Acquire);
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(taken).min(self.spec.entries)
    }
}
