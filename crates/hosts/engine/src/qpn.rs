//! Queue pair numbers: worker, slot and generation in 24 bits.
//!
//! The worker is in bits 0..4, the slot in bits 4..21, the generation in bits 21..24. Slots begin at [`FIRST_SLOT`], so the
//! management numbers 0 and 1 and the multicast number are never given out. A freed slot goes to the end of a queue and returns
//! with the next generation, so late packets for a destroyed queue pair find no queue pair.

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

/// Gives out the numbers of one worker. Belongs to the control thread.
#[derive(Debug)]
pub struct QpnSpace {
    worker: u32,
    /// Generation of numbers whose slot was never used.
    first: u32,
    fresh: u32,
    freed: VecDeque<Qpn>,
}

impl QpnSpace {
    /// The numbers of worker `worker`. `lot` is a random number of the daemon's start. It selects the first generation, so that
    /// a restarted daemon seldom gives out numbers that its peers remember from before the restart: they would consider
    /// connections of such numbers stale (IBA 12.9.8.3.1).
    pub fn new(worker: u32, lot: u64) -> Self {
        assert!((worker as usize) < burst_shm::WORKER_MAX);
        let first = (lot % u64::from(GENERATIONS)) as u32;
        QpnSpace { worker, first, fresh: FIRST_SLOT, freed: VecDeque::new() }
    }
    /// A free number, or `None` when all are in use. A freed slot rests until [`REST`] further slots have been freed, or no fresh
    /// slot is left.
    pub fn take(&mut self) -> Option<Qpn> {
        let rested = self.freed.len() > REST;
        // The last slot is never used: with the last generation and worker 15 it would be the multicast number.
        if !rested && self.fresh < SLOT_MAX - 1 {
            self.fresh += 1;
            return Some(Qpn::new((self.first << 21) | ((self.fresh - 1) << 4) | self.worker));
        }
        self.freed.pop_front()
    }
    /// Returns a number.
    pub fn put(&mut self, qpn: Qpn) {
        assert_eq!(worker_of(qpn), self.worker, "a number of another worker");
        assert!((FIRST_SLOT..self.fresh).contains(&slot_of(qpn)), "a number that was never given out");
        let generation = ((qpn.get() >> 21) + 1) % GENERATIONS;
        self.freed.push_back(Qpn::new((generation << 21) | (slot_of(qpn) << 4) | self.worker));
    }
    /// Returns memory that is not in use.
    pub fn shrink(&mut self) {
        self.freed.shrink_to_fit();
    }
}

/// Freed slots that rest before the oldest of them is used again.
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
