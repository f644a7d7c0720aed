//! Queue pair numbers: which worker, which slot, which generation.
//!
//! 24 bits: worker in bits 0..4, slot in bits 4..21, generation in bits 21..24. Slots begin at [`FIRST_SLOT`], so the
//! management numbers 0 and 1 and the multicast number never come out. A freed slot goes to the end of the queue and
//! returns with the next generation, so that late packets of the dead find nobody.

use burst_base::Qpn;
use std::collections::VecDeque;

/// Slots per worker.
pub const SLOT_MAX: u32 = 1 << 17;
/// First slot handed out.
pub const FIRST_SLOT: u32 = 16;
const GENERATIONS: u32 = 8;

const _: () = assert!(burst_shm::WORKER_MAX <= Qpn::WORKER_MASK as usize + 1);

/// Worker that owns the number.
pub const fn worker_of(qpn: Qpn) -> u32 {
    qpn.worker()
}

/// Slot in that worker's table.
pub const fn slot_of(qpn: Qpn) -> u32 {
    (qpn.get() >> 4) & (SLOT_MAX - 1)
}

/// Hands out the numbers of one worker. Belongs to the control thread.
#[derive(Debug)]
pub struct QpnSpace {
    worker: u32,
    /// Generation of numbers whose slot was never used.
    first: u32,
    fresh: u32,
    freed: VecDeque<Qpn>,
}

impl QpnSpace {
    /// The numbers of worker `worker`. `lot`: any number, another one in each life of a daemon. It chooses the first
    /// generation, so that a daemon that comes back seldom gives the numbers that its peers still know from before: they
    /// would find the connections of such numbers stale.
    pub fn new(worker: u32, lot: u64) -> Self {
        assert!((worker as usize) < burst_shm::WORKER_MAX);
        let first = (lot % u64::from(GENERATIONS)) as u32;
        QpnSpace { worker, first, fresh: FIRST_SLOT, freed: VecDeque::new() }
    }
    /// A number nobody has, or `None` when all are taken. A freed slot rests until [`REST`] others are freed too,
    /// or no fresh one is left.
    pub fn take(&mut self) -> Option<Qpn> {
        let rested = self.freed.len() > REST;
        // The last slot is never used: with the last generation and worker 15 it would be the multicast number.
        if !rested && self.fresh < SLOT_MAX - 1 {
            self.fresh += 1;
            return Some(Qpn::new((self.first << 21) | ((self.fresh - 1) << 4) | self.worker));
        }
        self.freed.pop_front()
    }
    /// Gives a number back.
    pub fn put(&mut self, qpn: Qpn) {
        debug_assert_eq!(worker_of(qpn), self.worker);
        let generation = ((qpn.get() >> 21) + 1) % GENERATIONS;
        self.freed.push_back(Qpn::new((generation << 21) | (slot_of(qpn) << 4) | self.worker));
    }
    /// Gives back room that is not in use.
    pub fn shrink(&mut self) {
        self.freed.shrink_to_fit();
    }
}

/// Freed numbers that rest before the oldest of them is used again.
pub const REST: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_unique_and_name_worker_and_slot() {
        let mut space = QpnSpace::new(5, 7);
        let mut seen = HashSet::new();
        while let Some(qpn) = space.take() {
            assert_eq!(worker_of(qpn), 5);
            assert!(slot_of(qpn) >= FIRST_SLOT);
            assert!(seen.insert(qpn));
            assert!(qpn != Qpn::GSI && qpn != Qpn::MULTICAST);
        }
        assert_eq!(seen.len() as u32, SLOT_MAX - 1 - FIRST_SLOT);
    }

    #[test]
    fn a_freed_number_comes_back_late_and_changed() {
        let mut space = QpnSpace::new(0, GENERATIONS.into());
        let first = space.take().expect("fresh");
        space.put(first);
        for _ in 0..REST {
            let other = space.take().expect("fresh");
            assert_ne!(slot_of(other), slot_of(first));
            space.put(other);
        }
        let again = space.take().expect("rested");
        assert_eq!(slot_of(again), slot_of(first));
        assert_ne!(again, first);
    }

    #[test]
    fn a_new_daemon_gives_other_numbers() {
        let first = |lot| QpnSpace::new(3, lot).take().expect("fresh");
        let numbers: HashSet<Qpn> = (0..u64::from(GENERATIONS)).map(first).collect();
        assert_eq!(numbers.len(), GENERATIONS as usize);
        assert!(numbers.iter().all(|qpn| worker_of(*qpn) == 3 && slot_of(*qpn) == FIRST_SLOT));
    }
}
