//! Receive queues: one worker takes ([`RqConsumer`]), or several ([`SrqConsumer`], a shared receive queue).
//!
//! An entry is a [`RecvWqe`] and its SGEs. The daemon copies an entry when it takes it, so its slot is free at
//! once: `consumer` (daemon to application) gives the free slots without any completion. An SRQ is taken without
//! a lock: copy the entry, then claim its index by compare-and-swap; a worker that loses throws its copy away.
//!
//! `idle` is normally 0, receives ring nobody. The daemon sets it when it wants to hear of the next one: a queue
//! pair in error must flush receives that are posted later.
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

/// Geometry of a receive queue; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqSpec {
    entries: u32,
    max_sge: u32,
    /// Bytes of an entry, in units that the compiler knows to be aligned.
    pairs: u32,
}

/// Entries are a whole number of these.
const PAIR: usize = 32;

impl RqSpec {
    /// Room for `max_wr` receives (rounded up to a power of two) of up to `max_sge` SGEs; None beyond the limits.
    pub fn new(max_wr: u32, max_sge: u32) -> Option<RqSpec> {
        let fits = max_wr <= WR_MAX && max_sge <= SGE_MAX;
        let pairs = rq_stride(max_sge.min(SGE_MAX)) / PAIR as u32;
        fits.then(|| RqSpec { entries: max_wr.max(1).next_power_of_two(), max_sge, pairs })
    }
    /// Slots, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Most SGEs of one receive.
    #[inline]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Bytes of shared memory.
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
    /// Copies entry `index` if it was posted. Does not take it.
    fn copy(&self, area: &Area, index: u32, wqe: &mut RecvWqe, sges: &mut [Sge; SGE_MAX as usize]) -> Fetch {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = area.word32(PRODUCER).load(Acquire).wrapping_sub(index);
        if posted == 0 {
            return Fetch::Empty;
        }
        if posted > self.entries {
            return Fetch::Corrupt;
        }
        let slot = self.slot(index);
        area.load(slot, wqe);
        if wqe.num_sge > self.max_sge {
            return Fetch::Malformed(index);
        }
        for (i, sge) in sges.iter_mut().enumerate().take(wqe.num_sge as usize) {
            area.load(slot + BODY + i * size_of::<Sge>(), sge);
        }
        Fetch::Taken(index)
    }
}

/// The application's end, of a QP's own queue or of an SRQ. Used under the library's lock.
#[derive(Debug)]
pub struct RqProducer {
    area: Area,
    spec: RqSpec,
    written: u32,
}

impl RqProducer {
    /// The end of a queue nothing was posted to yet. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<RqProducer> {
        (area.len() >= spec.bytes()).then_some(RqProducer { area, spec, written: 0 })
    }
    /// The end of a queue to which `written` entries were posted: it has moved to another ring.
    pub fn resume(area: Area, spec: RqSpec, written: u32) -> Option<RqProducer> {
        (area.len() >= spec.bytes()).then_some(RqProducer { area, spec, written })
    }
    /// Free slots.
    #[inline]
    pub fn room(&self) -> u32 {
        // Acquire: pairs with the consumer's Release; the daemon's copy of a slot comes before its reuse.
        let used = self.written.wrapping_sub(self.area.word32(CONSUMER).load(Acquire));
        self.spec.entries.saturating_sub(used)
    }
    /// Entries ever written.
    #[inline]
    pub fn written(&self) -> u32 {
        self.written
    }
    /// Geometry.
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
        self.area.store(slot, &RecvWqe { wr_id, num_sge: sges.len() as u32, reserved: 0 }, BODY);
        let mut at = slot + BODY;
        for sge in sges {
            self.area.store_words(at, sge.words());
            at += size_of::<Sge>();
        }
        self.written = self.written.wrapping_add(1);
        Ok(())
    }
    /// Makes everything written visible. True: the daemon asked to be rung.
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
    /// The end of a fresh queue. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<RqConsumer> {
        (area.len() >= spec.bytes()).then_some(RqConsumer { area, spec, taken: 0 })
    }
    /// Geometry.
    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }
    /// Copies the next entry, once, and frees its slot.
    pub fn fetch(&mut self, wqe: &mut RecvWqe, sges: &mut [Sge; SGE_MAX as usize]) -> Fetch {
        let fetch = self.spec.copy(&self.area, self.taken, wqe, sges);
        if matches!(fetch, Fetch::Taken(_) | Fetch::Malformed(_)) {
            self.taken = self.taken.wrapping_add(1);
            // Release: the copy above comes before the application's reuse of the slot.
            self.area.word32(CONSUMER).store(self.taken, Release);
        }
        fetch
    }
    /// Receives posted and not taken; the queue's size at most.
    pub fn pending(&self) -> u32 {
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken).min(self.spec.entries)
    }
    /// Asks for a doorbell at the next post. False: receives are waiting already; fetch them and ask again.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Asks for no doorbell any more.
    pub fn want_no_doorbell(&mut self) {
        self.area.word32(IDLE).store(0, Relaxed);
    }
    /// Forgets everything posted (RESET). Indices go on.
    pub fn discard_all(&mut self) {
        self.taken = self.area.word32(PRODUCER).load(Acquire);
        self.area.word32(CONSUMER).store(self.taken, Release);
        self.want_no_doorbell();
    }
}

/// The daemon's end of a shared receive queue: any number of workers, through clones.
#[derive(Clone, Debug)]
pub struct SrqConsumer {
    area: Area,
    spec: RqSpec,
    /// Entries ever taken. The truth; the header's word is the application's copy.
    taken: Arc<AtomicU32>,
}

impl SrqConsumer {
    /// The end of a fresh queue. None when `area` is too small.
    pub fn new(area: Area, spec: RqSpec) -> Option<SrqConsumer> {
        (area.len() >= spec.bytes()).then_some(SrqConsumer { area, spec, taken: Arc::default() })
    }
    /// Geometry.
    pub fn spec(&self) -> &RqSpec {
        &self.spec
    }
    /// The same queue in another ring, with everything that is posted; `None` if that does not fit. The application posts
    /// nothing meanwhile; workers may go on taking, from either ring, because `taken` is one. When nobody uses the old
    /// one any more, call [`SrqConsumer::publish_taken`].
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
            // A malformed entry stays malformed in its new place.
            let _ = self.spec.copy(&self.area, index, &mut wqe, &mut sges);
            let slot = spec.slot(index);
            area.store(slot, &wqe, BODY);
            for (i, sge) in sges.iter().enumerate().take(wqe.num_sge.min(spec.max_sge) as usize) {
                area.store(slot + BODY + i * size_of::<Sge>(), sge, size_of::<Sge>());
            }
        }
        area.word32(CONSUMER).store(taken, Release);
        area.word32(PRODUCER).store(end, Release);
        Some(SrqConsumer { area, spec, taken: self.taken.clone() })
    }
    /// Tells the application how much is taken.
    pub fn publish_taken(&self) {
        protocol::publish_taken(&self.taken, self.area.word32(CONSUMER), self.taken.load(Acquire));
    }
    /// Copies and takes the next entry that no other worker takes. Lock-free: it repeats only when another
    /// worker has taken an entry.
    pub fn fetch(&self, wqe: &mut RecvWqe, sges: &mut [Sge; SGE_MAX as usize]) -> Fetch {
        loop {
            let index = self.taken.load(Acquire);
            let fetch = self.spec.copy(&self.area, index, wqe, sges);
            match fetch {
                Fetch::Taken(_) | Fetch::Malformed(_) => {
                    if protocol::take(&self.taken, self.area.word32(CONSUMER), index) {
                        return fetch;
                    }
                }
                // Another worker moved on between our two loads: the distance was measured from a stale index.
                Fetch::Corrupt if self.taken.load(Acquire) != index => {}
                Fetch::Empty | Fetch::Corrupt => return fetch,
            }
        }
    }
    /// Receives posted and not taken; the queue's size at most. For the SRQ limit event.
    pub fn pending(&self) -> u32 {
        let taken = self.taken.load(Acquire);
        self.area.word32(PRODUCER).load(Acquire).wrapping_sub(taken).min(self.spec.entries)
    }
}
