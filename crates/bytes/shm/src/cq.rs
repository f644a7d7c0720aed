//! The completion queue: many workers produce, the application consumes.
//!
//! **Produce.** Index and capacity are kept in the daemon. A worker reserves an index by compare-and-swap after
//! checking the application's `consumer` (full: the completion is lost, the CQ is overrun), writes the entry, and
//! writes its `sequence` last. Nothing that the application writes can lead outside the ring: its `consumer` is
//! only compared, and slots are masked indices.
//!
//! **Consume.** The entry with index i is there when its `sequence` is i + 1. Entries appear in order of index; a
//! worker that has reserved and not yet written holds up the ones after it for some nanoseconds.
//!
//! **Events.** [`protocol::arm`] and [`protocol::event_due`]: no lost wake-up if the application polls once more
//! after arming, as verbs demand.
//!
//! **Resize.** Indices go on across rings, and the reservation word holds the ring's generation:
//! 1. the daemon allocates a ring and calls [`CqProducer::switch_to`], which makes the two visible at one instant, while
//!    workers publish; entries from the returned `base` on go to the new ring;
//! 2. the library gets the new ring and `base`, and calls [`CqConsumer::switch_to`] under its CQ lock: it drains the old
//!    ring up to `base`, then goes on in the new one;
//! 3. when [`CqConsumer::is_draining`] is false the library reports it, and the daemon calls
//!    [`CqProducer::retire_old`] and frees the old ring, after each worker has ended a turn.
//!
//! Until step 3, producers look at the `armed` and `consumer` words of both rings, so that no event is lost and no overrun
//! is reported for a ring that has room.
use crate::area::Area;
use crate::layout::{CQ_HEADER_BYTES, CQE_MAX, CqHeader, Cqe};
use crate::protocol::{self, ARMED_ANY, ARMED_SOLICITED};
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Arc, Mutex, PoisonError};

const CONSUMER: usize = offset_of!(CqHeader, consumer);
const OVERRUN: usize = offset_of!(CqHeader, overrun);
const ARMED: usize = offset_of!(CqHeader, armed);
const SEQUENCE: usize = offset_of!(Cqe, sequence);

/// Dimensions of a completion queue; both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqSpec {
    entries: u32,
}

impl CqSpec {
    /// Dimensions for `cqe` completions, rounded up to a power of two; None for 0 or beyond [`CQE_MAX`].
    pub fn new(cqe: u32) -> Option<CqSpec> {
        (1..=CQE_MAX).contains(&cqe).then(|| CqSpec { entries: cqe.next_power_of_two() })
    }
    /// Number of slots, a power of two.
    pub fn entries(&self) -> u32 {
        self.entries
    }
    /// Shared memory that the queue needs, in bytes.
    pub fn bytes(&self) -> usize {
        CQ_HEADER_BYTES + self.entries as usize * size_of::<Cqe>()
    }
}

/// One ring; both ends use it.
#[derive(Debug)]
struct CqRing {
    area: Area,
    entries: u32,
}

impl CqRing {
    fn new(area: Area, spec: CqSpec) -> Option<CqRing> {
        (area.len() >= spec.bytes()).then_some(CqRing { area, entries: spec.entries })
    }
    #[inline]
    fn slot(&self, index: u32) -> usize {
        debug_assert!(self.entries.is_power_of_two());
        CQ_HEADER_BYTES + (index & (self.entries - 1)) as usize * size_of::<Cqe>()
    }
    #[inline]
    fn sequence(&self, index: u32) -> &AtomicU32 {
        self.area.word32(self.slot(index) + SEQUENCE)
    }
    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.area.word32(CONSUMER)
    }
    fn armed(&self) -> &AtomicU32 {
        self.area.word32(ARMED)
    }
    /// Writes to each entry of a zeroed ring whose first index will be `base`, or up to [`PREPARED`] later, that it is not there
    /// yet. The sequence of entry i is i + 1: zeroes say so already, unless the indices begin again from 0 in this ring.
    fn prepare(&self, base: u32) {
        if base.checked_add(self.entries + PREPARED).is_none() {
            (0..self.entries).for_each(|i| self.sequence(i).store(base, Relaxed));
        }
    }
    fn publish(&self, index: u32, cqe: &Cqe) {
        // The words before `sequence`; then, with Release, the sequence: pairs with the Acquire in `take`.
        self.area.store(self.slot(index), cqe, SEQUENCE);
        self.sequence(index).store(index.wrapping_add(1), Release);
    }
    #[inline]
    fn take(&self, index: u32, cqe: &mut Cqe) -> bool {
        self.area.load_if(self.slot(index), SEQUENCE, index.wrapping_add(1), cqe)
    }
}

/// Result of [`CqProducer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// The completion is written; no event was asked for.
    Quiet,
    /// The completion is written; an event must be sent to the completion channel.
    Event,
    /// The completion is lost: the queue is full. The CQ and its QPs are in error.
    Overrun,
}

/// Most rings of one queue. Each resize leaves a few words in the daemon until the queue ends, so their number is bounded.
const RINGS_MAX: usize = 1 << 14;

/// Completions that workers publish at most while a ring is switched to: as many as they make in minutes.
const PREPARED: u32 = 1 << 30;
const _: () = assert!(PREPARED > CQE_MAX && CQE_MAX.checked_add(PREPARED).is_some());

/// A resize was refused: the queue has had `RINGS_MAX` rings, the resize before is not finished (`retire_old`), or the area
/// is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRefused;

/// State that all clones of a [`CqProducer`] share.
#[derive(Debug)]
struct CqState {
    /// [`protocol::head_word`]: ring generation and next index.
    head: AtomicU64,
    /// The ring of generation g is in slot g & 1; the other is null or the ring before.
    rings: [AtomicPtr<CqRing>; 2],
    /// Every ring that the queue has had (a few words each), so that a pointer from `rings` is always valid.
    owned: Mutex<Vec<Arc<CqRing>>>,
}

/// The daemon's end; clones share the queue.
#[derive(Clone, Debug)]
pub struct CqProducer(Arc<CqState>);

impl CqProducer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: CqSpec) -> Option<CqProducer> {
        let ring = Arc::new(CqRing::new(area, spec)?);
        let rings = [AtomicPtr::new(Arc::as_ptr(&ring).cast_mut()), AtomicPtr::new(null_mut())];
        Some(CqProducer(Arc::new(CqState { head: AtomicU64::new(0), rings, owned: Mutex::new(vec![ring]) })))
    }
    #[inline]
    fn ring(&self, generation: u32) -> Option<&CqRing> {
        let ptr = self.0.rings[(generation & 1) as usize].load(Acquire);
        // SAFETY: null, or in `owned`, which lives as long as `self`; only shared references to it are ever made.
        unsafe { ptr.as_ref() }
    }
    /// Whether there is room for an entry by the application's own word. Before the resize of `seen` is finished, the later of
    /// the words of both rings counts.
    #[inline]
    fn has_room(&self, seen: u64) -> bool {
        let (generation, index) = ((seen >> 32) as u32, seen as u32);
        let Some(ring) = self.ring(generation) else { return false };
        // Acquire: pairs with the consumer's Release; its copy of a slot comes before our reuse.
        let has_room = |by: &CqRing| index.wrapping_sub(by.consumer().load(Acquire)) < ring.entries;
        has_room(ring) || self.ring(generation.wrapping_sub(1)).is_some_and(has_room)
    }
    /// Makes a completion; `cqe.sequence` is filled in. `solicited`: it is an error or the sender asked for an event.
    #[inline]
    pub fn push(&self, cqe: &Cqe, solicited: bool) -> Push {
        match self.publish(cqe) {
            false => Push::Overrun,
            true if self.event_due(solicited) => Push::Event,
            true => Push::Quiet,
        }
    }
    /// Writes a completion without looking whether an event is due: call [`CqProducer::event_due`] after the last of a batch.
    #[must_use = "false: the completion was lost"]
    #[inline]
    pub fn publish(&self, cqe: &Cqe) -> bool {
        match protocol::reserve(&self.0.head, |seen| self.has_room(seen)) {
            Ok(word) => {
                // The ring of the reserved word: `head` held its generation from our load until our swap, and a
                // slot is overwritten only one generation later.
                if let Some(ring) = self.ring((word >> 32) as u32) {
                    ring.publish(word as u32, cqe);
                }
                true
            }
            Err(word) => {
                if let Some(ring) = self.ring((word >> 32) as u32) {
                    ring.area.word32(OVERRUN).store(1, Relaxed);
                }
                false
            }
        }
    }
    /// After publishing: whether an event must be sent.
    #[inline]
    pub fn event_due(&self, solicited: bool) -> bool {
        // Pairs with the fence in `protocol::arm`, as that of `protocol::event_due`. And an application that has armed the ring
        // of a later generation without seeing our entry did so before this fence, so the load of `head` sees that generation.
        fence(SeqCst);
        let generation = (self.0.head.load(Acquire) >> 32) as u32;
        let mut due = false;
        for g in [generation, generation.wrapping_sub(1)] {
            due |= self.ring(g).is_some_and(|r| protocol::disarm(r.armed(), solicited));
        }
        due
    }
    /// Sends all later completions to a new, zeroed ring; returns the index of its first entry. One control thread at a time;
    /// workers may publish meanwhile.
    pub fn switch_to(&self, area: Area, spec: CqSpec) -> Result<u32, SwitchRefused> {
        let mut owned = self.0.owned.lock().unwrap_or_else(PoisonError::into_inner);
        if owned.len() >= RINGS_MAX {
            return Err(SwitchRefused);
        }
        let ring = Arc::new(CqRing::new(area, spec).ok_or(SwitchRefused)?);
        let mut seen = self.0.head.load(Acquire);
        let generation = (seen >> 32) as u32;
        let next = generation.wrapping_add(1);
        let old = self.ring(generation).ok_or(SwitchRefused)?;
        if self.ring(next).is_some() {
            return Err(SwitchRefused);
        }
        // What may take long is done only for a switch that is made.
        ring.prepare(seen as u32);
        ring.consumer().store(old.consumer().load(Acquire), Relaxed);
        assert!(self.0.rings[(next & 1) as usize].load(Acquire).is_null(), "the ring before the last is retired");
        self.0.rings[(next & 1) as usize].store(Arc::as_ptr(&ring).cast_mut(), Release);
        owned.push(ring);
        loop {
            let base = seen as u32;
            // Release: a worker that sees the generation sees the ring.
            match self.0.head.compare_exchange(seen, protocol::head_word(next, base), AcqRel, Acquire) {
                Ok(_) => return Ok(base),
                Err(now) => seen = now,
            }
        }
    }
    /// Drops the ring before the last switch. Its memory may be freed when each worker has ended a turn since this call.
    pub fn retire_old(&self) {
        let generation = (self.0.head.load(Acquire) >> 32) as u32;
        self.0.rings[(generation.wrapping_add(1) & 1) as usize].store(null_mut(), Release);
    }
}

/// The application's end. The library uses it under its lock of the CQ.
#[derive(Debug)]
pub struct CqConsumer {
    ring: CqRing,
    /// During a resize: the ring to go on with, and the index of its first entry.
    next: Option<(CqRing, u32)>,
    index: u32,
}

impl CqConsumer {
    /// The end of a new queue. None when `area` is too small.
    pub fn new(area: Area, spec: CqSpec) -> Option<CqConsumer> {
        Some(CqConsumer { ring: CqRing::new(area, spec)?, next: None, index: 0 })
    }
    /// Number of slots.
    pub fn entries(&self) -> u32 {
        self.next.as_ref().map_or(self.ring.entries, |(ring, _)| ring.entries)
    }
    #[inline]
    fn take(&mut self, cqe: &mut Cqe) -> bool {
        if self.next.is_some() {
            self.go_on();
        }
        let taken = self.ring.take(self.index, cqe);
        if taken {
            self.index = self.index.wrapping_add(1);
        }
        taken
    }
    /// Changes to the next ring if the present one is drained.
    #[cold]
    fn go_on(&mut self) {
        if let Some((ring, base)) = self.next.take_if(|(_, base)| *base == self.index) {
            debug_assert_eq!(base, self.index, "indices go on across rings");
            self.ring = ring;
        }
    }
    #[inline]
    fn publish(&self) {
        let ring = self.next.as_ref().map_or(&self.ring, |(ring, _)| ring);
        // Release: our copies come before the producers' reuse of the slots.
        ring.consumer().store(self.index, Release);
    }
    /// Takes one completion and keeps its slot until [`CqConsumer::release`]. False: none there.
    #[inline]
    pub fn take_next(&mut self, cqe: &mut Cqe) -> bool {
        self.take(cqe)
    }
    /// Frees the slots of all completions taken.
    #[inline]
    pub fn release(&self) {
        self.publish();
    }
    /// Takes one completion. False: none there.
    #[inline]
    pub fn poll(&mut self, cqe: &mut Cqe) -> bool {
        if self.next.is_some() {
            return self.poll_between_rings().map(|taken| *cqe = taken).is_some();
        }
        let index = self.index;
        let taken = self.ring.take(index, cqe);
        if taken {
            self.index = index.wrapping_add(1);
            // Release: as in `publish`.
            self.ring.consumer().store(self.index, Release);
        }
        taken
    }
    /// As [`CqConsumer::poll`], during a resize.
    #[cold]
    fn poll_between_rings(&mut self) -> Option<Cqe> {
        let mut cqe = Cqe::default();
        let taken = self.take(&mut cqe);
        if taken {
            self.publish();
        }
        taken.then_some(cqe)
    }
    /// Takes up to `max` completions, hands each to `f`, frees their slots at the end. Returns how many.
    pub fn poll_each(&mut self, max: usize, mut f: impl FnMut(&Cqe)) -> usize {
        let mut cqe = Cqe::default();
        let mut n = 0;
        while n < max && self.take(&mut cqe) {
            f(&cqe);
            n += 1;
        }
        debug_assert!(n <= max);
        if n > 0 {
            self.publish();
        }
        n
    }
    /// Whether a completion waits, so that an event that was asked for just now may have been due before.
    pub fn has_next(&self) -> bool {
        self.ring.sequence(self.index).load(Acquire) == self.index.wrapping_add(1)
    }
    /// Asks for an event at the next completion (`solicited_only`: that is solicited or failed). Poll once more
    /// afterwards, before waiting.
    pub fn arm(&self, solicited_only: bool) {
        let ring = self.next.as_ref().map_or(&self.ring, |(ring, _)| ring);
        protocol::arm(ring.armed(), if solicited_only { ARMED_SOLICITED } else { ARMED_ANY });
    }
    /// Whether an event was asked for that has not come.
    pub fn is_armed(&self) -> bool {
        let rings = [Some(&self.ring), self.next.as_ref().map(|(ring, _)| ring)];
        rings.into_iter().flatten().any(|ring| ring.armed().load(Acquire) != 0)
    }
    /// Withdraws the request of [`CqConsumer::arm`]. True: there was one, and no event has answered it.
    pub fn disarm(&self) -> bool {
        let rings = [Some(&self.ring), self.next.as_ref().map(|(ring, _)| ring)];
        rings.into_iter().flatten().fold(false, |armed, ring| armed | (ring.armed().swap(0, AcqRel) != 0))
    }
    /// Whether a completion was lost because the queue was full.
    pub fn is_overrun(&self) -> bool {
        self.ring.area.word32(OVERRUN).load(Relaxed) != 0
    }
    /// Goes on in `area` from index `base` (both from the daemon), after draining the present ring. False: refused,
    /// because the area is too small or the switch before has not been drained.
    pub fn switch_to(&mut self, area: Area, spec: CqSpec, base: u32) -> bool {
        let Some(ring) = CqRing::new(area, spec) else { return false };
        if self.is_draining() {
            return false;
        }
        // An arming made on the old ring holds for the new one. Producers look at both until `retire_old`, and
        // clear both, so it is never lost; at worst one event comes twice.
        let armed = self.ring.armed().load(Acquire);
        debug_assert!(self.next.is_none(), "the switch before is drained");
        self.next = Some((ring, base));
        if armed != 0 {
            self.arm(armed == ARMED_SOLICITED);
        }
        self.publish();
        true
    }
    /// Whether the ring before the last switch may still hold completions.
    pub fn is_draining(&mut self) -> bool {
        self.go_on();
        self.next.is_some()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::paired;

    /// Both ends of a queue of which `made` completions were made and taken.
    fn queue_at(made: u32) -> (CqProducer, CqConsumer) {
        let (daemon, mut app) = paired::cq(4);
        daemon.0.head.store(protocol::head_word(0, made), Relaxed);
        app.ring.consumer().store(made, Relaxed);
        app.index = made;
        (0..4).for_each(|i| app.ring.sequence(i).store(made, Relaxed));
        (daemon, app)
    }

    #[test]
    fn a_new_ring_is_empty_wherever_the_indices_are() {
        for made in [0, 5, u32::MAX - PREPARED - 8, u32::MAX - 6, u32::MAX - 3, u32::MAX] {
            let (daemon, mut app) = queue_at(made);
            let spec = CqSpec::new(8).expect("a spec");
            let area = paired::area(spec.bytes());
            let base = daemon.switch_to(area.clone(), spec).expect("switched");
            assert!(base == made && app.switch_to(area, spec, base));
            let mut out = Cqe::default();
            for wr_id in 0..20 {
                assert!(!app.poll(&mut out), "{made}: nothing was made after {wr_id}");
                assert!(daemon.publish(&Cqe { wr_id, ..Cqe::default() }));
                assert!(app.poll(&mut out) && out.wr_id == wr_id, "{made}: {wr_id}");
            }
        }
    }

    #[test]
    fn a_resize_touches_no_entry_unless_the_indices_begin_again() {
        for (made, entry) in [(9, 0), (u32::MAX - 100, u32::MAX - 100)] {
            let (daemon, _app) = queue_at(made);
            let spec = CqSpec::new(64).expect("a spec");
            let area = paired::area(spec.bytes());
            daemon.switch_to(area.clone(), spec).expect("switched");
            let ring = CqRing::new(area, spec).expect("a ring");
            assert!((0..64).all(|i| ring.sequence(i).load(Relaxed) == entry), "{made}");
        }
    }
}
