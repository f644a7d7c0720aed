//! Order of requests at the target (service modes ROT and ROL): which requests of a sequence context have been executed.
//!
//! Requests of a context are numbered. A request with the tag SO may execute when all with smaller numbers have been
//! executed; RO and NO may execute at once. Burst numbers only requests whose order matters, so that a NO request which is
//! lost delays nothing. A dialect without numbers may use TASSNs: then NO requests count as executed when they arrive.

use burst_ubwire::OrderTag;

/// Requests of a context that may be outstanding. The initiator keeps to it.
pub const CONTEXT_WINDOW: u16 = 128;
const WORDS: usize = CONTEXT_WINDOW as usize / 64;

/// What the tracker says of an arrived request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderVerdict {
    /// Execute it now.
    Execute,
    /// Keep it until earlier ones are executed.
    Wait,
    /// It has been executed before.
    Repeated,
    /// It is further ahead than [`CONTEXT_WINDOW`].
    Outside,
}

/// Executed requests of one context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderTracker {
    /// Smallest number that has not been executed.
    first: u16,
    /// Bit `i`: number `first + i` has been executed. Bit 0 is never set.
    done: [u64; WORDS],
}

impl OrderTracker {
    /// Nothing is executed; numbers begin with `first`.
    pub const fn new(first: u16) -> Self {
        OrderTracker { first, done: [0; WORDS] }
    }
    /// Smallest number that has not been executed.
    pub const fn first(&self) -> u16 {
        self.first
    }
    /// What to do with a request that has arrived.
    pub fn judge(&self, number: u16, tag: OrderTag) -> OrderVerdict {
        let ahead = number.wrapping_sub(self.first);
        if ahead >= 0x8000 {
            return OrderVerdict::Repeated;
        }
        if ahead >= CONTEXT_WINDOW {
            return OrderVerdict::Outside;
        }
        if self.done[ahead as usize / 64] >> (ahead % 64) & 1 != 0 {
            return OrderVerdict::Repeated;
        }
        if tag == OrderTag::Strong && ahead > 0 { OrderVerdict::Wait } else { OrderVerdict::Execute }
    }
    /// A request has been executed, or was refused for good.
    pub fn executed(&mut self, number: u16) {
        let ahead = number.wrapping_sub(self.first);
        if ahead >= CONTEXT_WINDOW {
            return;
        }
        debug_assert!(self.done[0] & 1 == 0, "the smallest number has been executed");
        self.done[ahead as usize / 64] |= 1 << (ahead % 64);
        while self.done[0] & 1 != 0 {
            let run = self.done[0].trailing_ones();
            self.first = self.first.wrapping_add(run as u16);
            self.shift(run);
        }
        debug_assert!(self.done[0] & 1 == 0, "the smallest number has been executed");
    }
    fn shift(&mut self, by: u32) {
        debug_assert!(by > 0 && by <= 64, "a shift of {by}");
        for i in 0..WORDS {
            let next = self.done.get(i + 1).copied().unwrap_or(0);
            self.done[i] = if by == 64 { next } else { self.done[i] >> by | next << (64 - by) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OrderVerdict::{Execute, Outside, Repeated, Wait};
    use super::*;
    use OrderTag::{None as No, Relaxed, Strong};

    /// Requests arrive in this order; those that wait are tried again after each execution. The order of execution.
    fn run(tracker: &mut OrderTracker, arrivals: &[(u16, OrderTag)]) -> Vec<u16> {
        let (mut log, mut waiting) = (Vec::new(), Vec::new());
        for &arrival in arrivals {
            waiting.push(arrival);
            while let Some(at) = waiting.iter().position(|&(n, tag)| tracker.judge(n, tag) == Execute) {
                let (number, _) = waiting.remove(at);
                tracker.executed(number);
                log.push(number);
            }
        }
        log
    }

    #[test]
    fn case_03_strong_requests_execute_in_order_of_their_numbers() {
        assert_eq!(run(&mut OrderTracker::new(0), &[(0, Strong), (2, Strong), (1, Strong)]), [0, 1, 2]);
    }

    #[test]
    fn case_04_a_request_without_order_between_two_strong_ones_blocks_neither() {
        assert_eq!(run(&mut OrderTracker::new(0), &[(0, Strong), (1, No), (2, Strong)]), [0, 1, 2]);
        assert_eq!(run(&mut OrderTracker::new(0), &[(1, No), (0, Strong), (2, Strong)]), [1, 0, 2]);
    }

    #[test]
    fn case_05_a_relaxed_request_ahead_does_not_make_an_earlier_strong_one_unreachable() {
        let mut tracker = OrderTracker::new(1);
        assert_eq!(run(&mut tracker, &[(5, Relaxed)]), [5]);
        assert_eq!(tracker.judge(3, Strong), Wait);
        assert_eq!(run(&mut tracker, &[(3, Strong), (1, Relaxed), (2, Strong), (4, Relaxed)]), [1, 2, 3, 4]);
        assert_eq!(tracker.first(), 6);
    }

    #[test]
    fn case_06_later_relaxed_requests_do_not_delay_a_strong_one() {
        let mut tracker = OrderTracker::new(1);
        assert_eq!(
            run(&mut tracker, &[(3, Relaxed), (2, Strong), (4, Relaxed), (6, Relaxed), (1, Relaxed)]),
            [3, 4, 6, 1, 2]
        );
    }

    #[test]
    fn repeated_and_far_requests_are_found_at_every_position_of_the_window() {
        for first in [0u16, 1, 65_500] {
            let mut tracker = OrderTracker::new(first);
            for i in (1..CONTEXT_WINDOW).rev() {
                let number = first.wrapping_add(i);
                assert_eq!(tracker.judge(number, Strong), Wait);
                tracker.executed(number);
                assert_eq!(tracker.judge(number, Relaxed), Repeated);
            }
            assert_eq!(tracker.judge(first.wrapping_add(CONTEXT_WINDOW), Relaxed), Outside);
            tracker.executed(first);
            assert_eq!(tracker, OrderTracker::new(first.wrapping_add(CONTEXT_WINDOW)));
            assert_eq!(tracker.judge(first, Strong), Repeated);
        }
    }
}
