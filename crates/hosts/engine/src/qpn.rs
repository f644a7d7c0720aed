//! Queue pair numbers: worker, slot and generation in 24 bits, drawn at random.
//!
//! The worker is in bits 0..4, the slot in bits 4..21, the generation in bits 21..24. RoCEv2 authenticates nothing, so a host
//! that can forge a peer's address is stopped only by the numbers that it does not know. Slot and first generation are therefore
//! random: the numbers of a program's own queue pairs tell it nothing about those of others, and a blind sender must try a
//! million numbers per worker. A restarted daemon gives out other numbers, too; its peers would consider connections of the old
//! numbers stale (IBA 12.9.8.3.1).
//!
//! A freed slot rests until [`REST`] further slots have been freed, and its next number has another generation, so that late
//! packets for a destroyed queue pair find no queue pair. The first and the last slot are never used: 0, 1 and 0xFFFFFF, the
//! numbers of the management queue pairs and of multicast, are in them.
//!
//! `Directory` finds the entry of a worker's table that belongs to a number. The table is dense, so that its size and that of
//! the timing wheel follow the number of queue pairs.

use burst_base::Qpn;
use burst_base::heap::{self, OutOfMemory};
use burst_span::ZeroedWords;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Slots per worker.
pub const SLOT_MAX: u32 = 1 << 17;
/// Queue pairs that a worker can have.
pub const QPS_MAX: u32 = SLOT_MAX - 2;
const GENERATIONS: u32 = 8;
/// Slots that are drawn before the first free slot behind the last one drawn is taken.
const DRAWS: usize = 16;

const _: () = assert!(burst_shm::WORKER_MAX <= Qpn::WORKER_MASK as usize + 1);

/// Worker that owns the number.
pub const fn worker_of(qpn: Qpn) -> u32 {
    qpn.worker()
}

/// Slot of the number among those of its worker.
pub const fn slot_of(qpn: Qpn) -> u32 {
    (qpn.get() >> 4) & (SLOT_MAX - 1)
}

const fn generation_of(qpn: Qpn) -> u32 {
    qpn.get() >> 21
}

/// Gives out the numbers of one worker. Belongs to the control thread.
pub struct QpnSpace {
    worker: u32,
    random: Box<dyn FnMut() -> u64 + Send>,
    /// One bit for each slot that is in use or rests.
    taken: Box<[u64]>,
    /// 1 plus the generation of the last number of each slot; 0 for a slot that was never used.
    generations: Box<[u8]>,
    /// Freed slots, the oldest first.
    resting: VecDeque<u32>,
    in_use: u32,
}

impl core::fmt::Debug for QpnSpace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QpnSpace").field("worker", &self.worker).field("in_use", &self.in_use).finish_non_exhaustive()
    }
}

impl QpnSpace {
    /// The numbers of worker `worker`, drawn from `random` (the system's generator in a daemon, a seeded one in tests).
    pub fn new(worker: u32, random: Box<dyn FnMut() -> u64 + Send>) -> Self {
        assert!((worker as usize) < burst_shm::WORKER_MAX);
        let mut taken = vec![0; SLOT_MAX as usize / 64].into_boxed_slice();
        taken[0] |= 1;
        taken[SLOT_MAX as usize / 64 - 1] |= 1 << 63;
        let generations = vec![0; SLOT_MAX as usize].into_boxed_slice();
        QpnSpace { worker, random, taken, generations, resting: VecDeque::new(), in_use: 0 }
    }

    /// A free number, or `None` when all are in use. If no other slot is left, the slot that has rested longest is used.
    pub fn take(&mut self) -> Option<Qpn> {
        if self.in_use == QPS_MAX || burst_base::fault::fails() {
            return None;
        }
        if self.in_use + self.resting.len() as u32 == QPS_MAX {
            self.wake_oldest();
        }
        let slot = self.draw_slot();
        debug_assert!(slot != 0 && slot != SLOT_MAX - 1, "a slot of reserved numbers");
        self.taken[slot as usize / 64] |= 1 << (slot % 64);
        self.in_use += 1;
        let chance = ((self.random)() >> 32) as u32;
        let generation = match u32::from(self.generations[slot as usize]) {
            0 => chance % GENERATIONS,
            last => (last + chance % (GENERATIONS - 1)) % GENERATIONS,
        };
        debug_assert!(generation < GENERATIONS, "a generation of more than three bits");
        self.generations[slot as usize] = generation as u8 + 1;
        Some(Qpn::new((generation << 21) | (slot << 4) | self.worker))
    }

    /// A free slot: each with the same probability, unless nearly all are in use.
    fn draw_slot(&mut self) -> u32 {
        let mut slot = 0;
        for _ in 0..DRAWS {
            slot = ((self.random)() >> 32) as u32 % SLOT_MAX;
            if self.taken[slot as usize / 64] >> (slot % 64) & 1 == 0 {
                return slot;
            }
        }
        let first = slot as usize / 64;
        let words = self.taken.len();
        let word = (0..words).map(|k| (first + k) % words).find(|&word| self.taken[word] != u64::MAX);
        let word = word.expect("a slot is free, because in_use and resting do not fill the space");
        word as u32 * 64 + self.taken[word].trailing_ones()
    }

    /// Lets the slot of a number rest that a predecessor of this process gave out: its next number has another generation.
    pub fn avoid(&mut self, qpn: Qpn) {
        let slot = slot_of(qpn);
        let is_free = self.taken[slot as usize / 64] >> (slot % 64) & 1 == 0;
        if worker_of(qpn) == self.worker && is_free {
            self.taken[slot as usize / 64] |= 1 << (slot % 64);
            self.generations[slot as usize] = generation_of(qpn) as u8 + 1;
            self.resting.push_back(slot);
            if self.resting.len() > REST {
                self.wake_oldest();
            }
        }
    }

    /// How many numbers are in use.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Returns a number.
    pub fn put(&mut self, qpn: Qpn) {
        assert_eq!(worker_of(qpn), self.worker, "a number of another worker");
        let slot = slot_of(qpn);
        let is_last = u32::from(self.generations[slot as usize]) == generation_of(qpn) + 1;
        assert!(is_last && self.in_use > 0, "a number that was never given out");
        self.in_use -= 1;
        self.resting.push_back(slot);
        if self.resting.len() > REST {
            self.wake_oldest();
        }
    }

    /// Frees the slot that has rested longest.
    fn wake_oldest(&mut self) {
        if let Some(slot) = self.resting.pop_front() {
            self.taken[slot as usize / 64] &= !(1 << (slot % 64));
        }
    }
}

/// Freed slots that rest before the oldest of them may be drawn again.
pub const REST: usize = 1024;

/// Entries of a page.
const PAGE_WORDS: usize = 4096 / size_of::<u32>();

/// Finds the entry in a worker's table that belongs to a number. Entry 0 is never used: it stands for "none".
#[derive(Debug)]
pub(crate) struct Directory {
    /// Entry of each slot. All pages are there from the start: slots are random, so some hundred queue pairs would touch them
    /// all.
    entries: ZeroedWords<{ SLOT_MAX as usize }>,
    /// Freed entries, the smallest first, so that the table can shrink.
    free: BinaryHeap<Reverse<u32>>,
    /// One more than the largest entry in use or free.
    end: u32,
}

impl Directory {
    pub fn new() -> Directory {
        let mut entries = ZeroedWords::new();
        (0..SLOT_MAX as usize).step_by(PAGE_WORDS).for_each(|word| entries[word] = 0);
        Directory { entries, free: BinaryHeap::new(), end: 1 }
    }

    /// Entries that queue pairs have.
    pub fn in_use(&self) -> u32 {
        self.end - 1 - self.free.len() as u32
    }

    /// Makes room for `entries` entries.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self, entries: usize) -> Result<(), OutOfMemory> {
        let more = entries.saturating_sub(self.free.len());
        if entries <= self.free.capacity() { Ok(()) } else { heap::attempt(|| self.free.try_reserve_exact(more)) }
    }

    /// The entry of a number's slot, 0 if it has none. The entry may belong to another number of the same slot.
    #[inline]
    pub fn find(&self, qpn: Qpn) -> u32 {
        self.entries[slot_of(qpn) as usize]
    }

    /// Asks the processor for what [`Directory::find`] reads.
    #[inline]
    pub fn prefetch(&self, qpn: Qpn) {
        burst_span::prefetch_line(std::ptr::from_ref(&self.entries[slot_of(qpn) as usize]).cast());
    }

    /// Allocates an entry for a number.
    pub fn add(&mut self, qpn: Qpn) -> u32 {
        assert_eq!(self.find(qpn), 0, "slot {} is in use", slot_of(qpn));
        let entry = self.free.pop().map_or(self.end, |Reverse(entry)| entry);
        self.end = self.end.max(entry + 1);
        self.entries[slot_of(qpn) as usize] = entry;
        entry
    }

    /// Frees the entry of a number.
    pub fn remove(&mut self, qpn: Qpn) {
        let entry = std::mem::take(&mut self.entries[slot_of(qpn) as usize]);
        assert!(0 < entry && entry < self.end, "a number without an entry");
        self.free.push(Reverse(entry));
    }

    /// Returns memory that is not in use. `end` is one more than the largest entry in use.
    pub fn shrink(&mut self, end: u32) {
        self.end = end.max(1);
        self.free.retain(|Reverse(entry)| *entry < end);
        self.free.shrink_to_fit();
        if self.end == 1 {
            self.entries.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;
    use std::collections::HashSet;

    fn space(worker: u32, seed: u64) -> QpnSpace {
        let mut rng = Rng::new(seed);
        QpnSpace::new(worker, Box::new(move || rng.next_u64()))
    }

    #[test]
    fn numbers_are_unique_and_name_worker_and_slot() {
        for worker in [0, 1, 5, 15] {
            let mut space = space(worker, 7);
            let mut slots = HashSet::new();
            while let Some(qpn) = space.take() {
                assert_eq!(worker_of(qpn), worker);
                assert!(slots.insert(slot_of(qpn)));
                assert!(qpn.get() > 1 && qpn != Qpn::MULTICAST, "a reserved number");
            }
            assert_eq!(slots.len() as u32, QPS_MAX);
        }
    }

    #[test]
    fn numbers_tell_nothing_about_those_that_follow() {
        let mut space = space(0, 1);
        let numbers: Vec<u32> = (0..4096).map(|_| space.take().expect("free").get()).collect();
        // Each of the 20 bits above the worker is set in about half of the numbers, whatever the number before has there.
        for bit in 4..24 {
            let set = numbers.iter().filter(|n| *n >> bit & 1 == 1).count();
            let flipped = numbers.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
            assert!((1850..2250).contains(&set) && (1850..2250).contains(&flipped), "bit {bit}: {set}, {flipped}");
        }
        let steps: HashSet<u32> = numbers.windows(2).map(|w| w[1].wrapping_sub(w[0]) >> 4).collect();
        assert!(steps.len() > 4000, "{} different distances", steps.len());
    }

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut space = space(3, seed);
            (0..64).map(|_| space.take().expect("free")).collect::<Vec<_>>()
        };
        assert_eq!(numbers(5), numbers(5));
        assert!(numbers(5).iter().all(|qpn| !numbers(6).contains(qpn)), "a restarted daemon gives out old numbers");
    }

    #[test]
    fn a_freed_number_comes_back_late_and_changed() {
        let mut space = space(0, 9);
        // Few slots are free, so that a slot that does not rest is found again.
        let spare = REST as u32 + 2;
        let mut used: Vec<Qpn> = (0..QPS_MAX - spare).map(|_| space.take().expect("free")).collect();
        let first = used.pop().expect("taken");
        space.put(first);
        for _ in 0..REST {
            let other = space.take().expect("free");
            assert_ne!(slot_of(other), slot_of(first), "the slot did not rest");
            used.push(other);
            space.put(used.swap_remove(0));
        }
        let mut again = None;
        for _ in 0..8 {
            let number = space.take().expect("free");
            again = again.or((slot_of(number) == slot_of(first)).then_some(number));
        }
        assert_ne!(again.expect("the slot has rested"), first);
    }

    #[test]
    fn a_full_space_uses_the_slot_that_rested_longest_with_another_generation() {
        let mut space = space(0, 2);
        let used: Vec<Qpn> = (0..QPS_MAX).map(|_| space.take().expect("free")).collect();
        assert_eq!(space.take(), None);
        space.put(used[40]);
        space.put(used[2]);
        let again = space.take().expect("one rests");
        assert_eq!(slot_of(again), slot_of(used[40]));
        assert_ne!(again, used[40]);
    }

    #[test]
    #[should_panic(expected = "never given out")]
    fn an_old_number_cannot_be_returned() {
        let mut space = space(0, 2);
        let first = space.take().expect("free");
        space.put(Qpn::new(first.get() ^ 1 << 21));
    }

    #[test]
    fn entries_are_dense_and_their_numbers_find_them() {
        let (mut space, mut directory) = (space(2, 4), Directory::new());
        let numbers: Vec<Qpn> = (0..100).map(|_| space.take().expect("free")).collect();
        for (at, qpn) in numbers.iter().enumerate() {
            assert_eq!(directory.find(*qpn), 0);
            assert_eq!(directory.add(*qpn), at as u32 + 1);
        }
        directory.remove(numbers[30]);
        directory.remove(numbers[10]);
        assert_eq!((directory.find(numbers[10]), directory.find(numbers[11])), (0, 12));
        assert_eq!([directory.add(numbers[30]), directory.add(numbers[10])], [11, 31], "the smallest entry first");
        numbers[5..].iter().for_each(|qpn| directory.remove(*qpn));
        directory.shrink(6);
        assert_eq!([directory.find(numbers[4]), directory.add(numbers[50])], [5, 6]);
    }
}
