//! Pacing: a path whose controller gives a rate sends a burst, then waits until the rate allows the next one.
//!
//! The unit is the burst of [`burst_cc::SendLimits`], at most one train, so that GSO keeps its use. A burst of b bytes moves
//! the time of the next one by b / rate; the remainder of the division is carried, so the long-run rate is exact. A path that
//! was late, because its worker slept or did other things, may catch up by [`PACE_LAG`] at most. A gate that opens within a
//! tick of the timing wheel counts as open: a shorter sleep is not worth its cost, and the next gate opens later by as much.
//!
//! Queue pairs wait for the gate in the line of their path, in which they wait for its window, too. [`PaceQueue`] holds the
//! paths by the time at which their gates open: a heap, because its times are exact and a path has one entry. A worker without
//! a paced path compares one number in each pass.

use burst_base::Nanos;
use burst_base::heap::{self, OutOfMemory};
use burst_base::wheel::TICK;
use burst_cc::RATE_UNPACED;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Time by which a late path may catch up.
pub(crate) const PACE_LAG: Nanos = Nanos::from_us(100);
/// Bytes of Ethernet, IPv4 and UDP headers and check sequences around what a port is given.
pub(crate) const FRAME_OVERHEAD: usize = 14 + 20 + 8 + 4 + 4;

/// The gate of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pacer {
    /// When the gate opens.
    opens_at: Nanos,
    /// Remainder of the last division, in bits times nanoseconds per second.
    rest: u64,
    /// Bits per second for which it waits.
    rate_bps: u64,
    /// Time of the path's entry in the queue that counts; [`Nanos::NEVER`] for none.
    armed: Nanos,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer { opens_at: Nanos(0), rest: 0, rate_bps: 0, armed: Nanos::NEVER }
    }
}

impl Pacer {
    /// Whether nothing may be sent now.
    pub fn is_closed(&self, now: Nanos) -> bool {
        self.opens_at > now + TICK
    }

    /// Whether no entry of the queue wakes the path's line.
    pub fn is_unarmed(&self) -> bool {
        self.armed == Nanos::NEVER
    }

    /// When the gate opens.
    pub fn opens_at(&self) -> Nanos {
        self.opens_at
    }

    /// `bytes` were sent at a rate of `rate_bps` bits per second. What was late may leave at once, for as long as `lag`.
    pub fn charge(&mut self, now: Nanos, bytes: u64, (rate_bps, lag): (u64, Nanos)) {
        const NS_PER_SECOND: u128 = 1_000_000_000;
        let from = self.opens_at.max(now - lag);
        let rate = u128::from(rate_bps.max(1));
        let work = u128::from(bytes) * 8 * NS_PER_SECOND + u128::from(self.rest);
        self.rest = u64::try_from(work % rate).unwrap_or(0);
        self.opens_at = from + Nanos(u64::try_from(work / rate).unwrap_or(u64::MAX));
        self.rate_bps = rate_bps;
    }

    /// The rate is `rate_bps` from now on, [`RATE_UNPACED`] for none: a gate that waits for what was sent at a lower rate opens
    /// earlier. True if it does.
    pub fn speed_up(&mut self, now: Nanos, rate_bps: u64) -> bool {
        let is_unpaced = rate_bps == RATE_UNPACED;
        if self.opens_at <= now || (rate_bps <= self.rate_bps && !is_unpaced) {
            return false;
        }
        let wait = match is_unpaced {
            true => 0,
            false => u128::from(self.opens_at.since(now).0) * u128::from(self.rate_bps) / u128::from(rate_bps),
        };
        self.opens_at = now + Nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        self.rate_bps = rate_bps;
        true
    }
}

/// Paths whose lines wait for their gates.
#[derive(Debug)]
pub(crate) struct PaceQueue {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Time of the first entry.
    next: Nanos,
}

impl Default for PaceQueue {
    fn default() -> PaceQueue {
        PaceQueue { heap: BinaryHeap::new(), next: Nanos::NEVER }
    }
}

impl PaceQueue {
    /// Time of the first entry, [`Nanos::NEVER`] if there is none.
    #[inline]
    pub fn next_deadline(&self) -> Nanos {
        self.next
    }

    /// Makes room for `entries` besides those that are there. Allocates: not for the data path.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self, entries: usize) -> Result<(), OutOfMemory> {
        let is_enough = self.heap.capacity() - self.heap.len() >= entries;
        if is_enough { Ok(()) } else { heap::attempt(|| self.heap.try_reserve(entries)) }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.next = Nanos::NEVER;
    }

    /// Wakes the line of `path` at `at`, unless it is woken before.
    #[cold]
    pub fn arm(&mut self, path: u32, pacer: &mut Pacer, at: Nanos) {
        if at < pacer.armed {
            debug_assert_ne!(at, Nanos::NEVER, "a gate that never opens");
            pacer.armed = at;
            self.heap.push(Reverse((at, path)));
            self.next = self.next.min(at);
        }
    }

    /// Takes a path that is due.
    #[cold]
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        let due = self.heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let entry = if due { self.heap.pop() } else { None };
        self.next = self.heap.peek().map_or(Nanos::NEVER, |Reverse((at, _))| *at);
        debug_assert!(entry.is_some() == due && (!due || self.next >= entry.map_or(Nanos(0), |Reverse((at, _))| at)));
        entry.map(|Reverse(entry)| entry)
    }
}

impl Pacer {
    /// Whether the entry with this time is the path's present one. It is used up then.
    pub fn take_entry(&mut self, at: Nanos) -> bool {
        let present = self.armed == at;
        if present {
            self.armed = Nanos::NEVER;
        }
        present
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_rate_is_exact() {
        // 3 Gbit/s: 1001 bytes last 2669.33 ns.
        let mut pacer = Pacer::default();
        let begin = Nanos::from_ms(1);
        pacer.charge(begin, 0, (1, PACE_LAG));
        for _ in 0..3_000_000 {
            let now = pacer.opens_at().max(begin);
            pacer.charge(now, 1001, (3_000_000_000, PACE_LAG));
        }
        let spent = pacer.opens_at().since(begin - PACE_LAG).0;
        assert_eq!(spent, 1001 * 8 * 1_000_000);
    }

    #[test]
    fn a_gate_opens_a_tick_early_and_a_late_path_catches_up_a_little() {
        let mut pacer = Pacer::default();
        assert!(!pacer.is_closed(Nanos(0)));
        let now = Nanos::from_ms(5);
        // 12,500 bytes at 1 Gbit/s: 100 us, which the lag allows at once.
        pacer.charge(now, 12_500, (1_000_000_000, PACE_LAG));
        assert!(!pacer.is_closed(now));
        pacer.charge(now, 12_500, (1_000_000_000, PACE_LAG));
        assert_eq!(pacer.opens_at(), now + Nanos::from_us(100));
        assert!(pacer.is_closed(now) && pacer.is_closed(now + Nanos(91_807)));
        assert!(!pacer.is_closed(now + Nanos(91_808)));
        // After a second without sending no more than the lag is caught up.
        let later = now + Nanos::from_ms(1_000);
        pacer.charge(later, 12_500, (1_000_000_000, PACE_LAG));
        assert_eq!(pacer.opens_at(), later);
    }

    #[test]
    fn a_gate_opens_earlier_when_the_rate_rises() {
        let (mut pacer, now) = (Pacer::default(), Nanos::from_ms(5));
        pacer.charge(now, 25_000, (1_000_000_000, PACE_LAG));
        assert_eq!(pacer.opens_at(), now + Nanos::from_us(100));
        for lower in [1, 1_000_000_000] {
            assert!(!pacer.speed_up(now, lower));
            assert_eq!(pacer.opens_at(), now + Nanos::from_us(100));
        }
        assert!(pacer.speed_up(now + Nanos::from_us(20), 4_000_000_000));
        assert_eq!(pacer.opens_at(), now + Nanos::from_us(40));
        assert!(pacer.speed_up(now + Nanos::from_us(30), u64::MAX));
        assert_eq!(pacer.opens_at(), now + Nanos::from_us(30));
        pacer.charge(now, 25_000, (1_000_000_000, PACE_LAG));
        assert!(pacer.is_closed(now) && pacer.speed_up(now, RATE_UNPACED));
        assert_eq!(pacer.opens_at(), now);
    }

    #[test]
    fn impossible_numbers_close_the_gate_for_good_and_do_not_panic() {
        let mut pacer = Pacer::default();
        pacer.charge(Nanos(u64::MAX), u64::MAX, (0, PACE_LAG));
        assert_eq!(pacer.opens_at(), Nanos::NEVER);
        pacer.charge(Nanos(0), u64::MAX, (u64::MAX, PACE_LAG));
        assert_eq!(pacer.opens_at(), Nanos::NEVER);
    }

    #[test]
    fn paths_come_in_order_of_time_and_only_their_earliest_entry_counts() {
        let mut queue = PaceQueue::default();
        let mut pacers = [Pacer::default(); 3];
        assert_eq!((queue.next_deadline(), queue.pop_due(Nanos(9))), (Nanos::NEVER, None));
        for (path, at) in [(0, 50), (1, 30), (2, 40), (0, 60), (0, 20)] {
            queue.arm(path, &mut pacers[path as usize], Nanos(at));
        }
        assert_eq!((queue.next_deadline(), queue.pop_due(Nanos(19))), (Nanos(20), None));
        let mut seen = Vec::new();
        while let Some((at, path)) = queue.pop_due(Nanos(100)) {
            if pacers[path as usize].take_entry(at) {
                seen.push((at.0, path));
            }
        }
        assert_eq!(seen, [(20, 0), (30, 1), (40, 2)]);
        assert_eq!(queue.next_deadline(), Nanos::NEVER);
    }
}
