//! Delayed acknowledgements: an ACK waits a moment for the program's answer.
//!
//! A program that answers each message (a ping-pong, an RPC server) posts a few microseconds after its receive completed. If
//! the ACK waits that long, both leave in one train and arrive as one: half the system calls, half the wake-ups. A program that
//! does not answer would only be slowed down; so a queue pair whose delay expired without an answer acknowledges its next
//! [`SKIP`] messages at once (as TCP leaves its "ping-pong" mode).

use burst_base::Nanos;
use std::collections::VecDeque;

/// Longest delay.
pub const DELAY_MAX: Nanos = Nanos::from_us(40);
/// Messages that are acknowledged at once after a delay that expired without an answer.
const SKIP: u8 = 64;

/// The delay of one queue pair.
// Packed, because it lies in the line of a slot that every turn uses: see `objects`.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct AckDelay {
    /// When the delayed ACK leaves at the latest; never, while no ACK is delayed.
    until: Nanos,
    /// Messages left that are acknowledged at once.
    skip: u8,
}

impl Default for AckDelay {
    fn default() -> AckDelay {
        AckDelay { until: Nanos::NEVER, skip: 0 }
    }
}

/// The queue pairs with a delayed ACK, in order of their deadlines.
///
/// A queue pair that answers before its deadline keeps its entry; the entry expires later without effect.
#[derive(Debug, Default)]
pub(crate) struct DelayedAcks {
    queue: VecDeque<(u32, Nanos)>,
}

impl AckDelay {
    /// Whether an ACK is delayed.
    pub fn is_running(&self) -> bool {
        let until = self.until;
        until != Nanos::NEVER
    }
    /// The program has posted: the ACK leaves with its request.
    pub fn on_post(&mut self) {
        self.until = Nanos::NEVER;
    }
    /// The deadline `at` has come. True if it is this delay's own, so that the ACK must leave now; an older deadline is ignored.
    pub fn expire(&mut self, at: Nanos) -> bool {
        debug_assert!(at != Nanos::NEVER, "a deadline that never comes");
        let until = self.until;
        let own = until == at;
        if own {
            self.until = Nanos::NEVER;
            self.skip = SKIP;
        }
        own
    }
    /// As [`AckDelay::expire`], where no program has waited for what was delayed: the next delay is not left out.
    pub fn pass(&mut self, at: Nanos) -> bool {
        let skip = self.skip;
        let own = self.expire(at);
        self.skip = skip;
        own
    }
}

impl DelayedAcks {
    /// Delays the ACK of queue pair `index`. False if its last delay expired in vain: it must acknowledge now.
    pub fn delay(&mut self, index: u32, delay: &mut AckDelay, now: Nanos) -> bool {
        if delay.is_running() {
            return true;
        }
        if delay.skip > 0 {
            delay.skip -= 1;
            return false;
        }
        let until = now + DELAY_MAX;
        debug_assert!(self.queue.back().is_none_or(|(_, last)| *last <= until), "time goes back");
        delay.until = until;
        self.queue.push_back((index, until));
        true
    }
    /// Delays what no program waits for, whatever became of earlier delays.
    pub fn hold(&mut self, index: u32, delay: &mut AckDelay, now: Nanos) {
        let skip = std::mem::take(&mut delay.skip);
        let _ = self.delay(index, delay, now);
        delay.skip = skip;
    }
    /// A queue pair whose deadline has come, and the deadline.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(u32, Nanos)> {
        let due = self.queue.front().is_some_and(|(_, until)| *until <= now);
        if due { self.queue.pop_front() } else { None }
    }
    /// The first deadline.
    pub fn next_deadline(&self) -> Nanos {
        self.queue.front().map_or(Nanos::NEVER, |(_, until)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_the_delay_and_the_next_message_is_delayed_again() {
        let (mut acks, mut delay) = (DelayedAcks::default(), AckDelay::default());
        assert!(acks.delay(1, &mut delay, Nanos(0)));
        delay.on_post();
        let (index, at) = acks.pop_due(DELAY_MAX).expect("its entry is still queued");
        assert!(index == 1 && !delay.expire(at));
        assert!(acks.delay(1, &mut delay, Nanos(5)));
    }

    #[test]
    fn a_delay_without_an_answer_is_not_repeated_for_a_while() {
        let (mut acks, mut delay) = (DelayedAcks::default(), AckDelay::default());
        assert!(acks.delay(1, &mut delay, Nanos(0)));
        assert_eq!(acks.pop_due(Nanos(1)), None);
        assert_eq!(acks.next_deadline(), DELAY_MAX);
        let (_, at) = acks.pop_due(DELAY_MAX).expect("due");
        assert!(delay.expire(at));
        let delayed = (0..SKIP).filter(|_| acks.delay(1, &mut delay, Nanos(9))).count();
        assert_eq!(delayed, 0);
        assert!(acks.delay(1, &mut delay, Nanos(9)));
    }

    #[test]
    fn an_older_deadline_does_not_end_a_newer_delay() {
        let (mut acks, mut delay) = (DelayedAcks::default(), AckDelay::default());
        acks.delay(1, &mut delay, Nanos(0));
        delay.on_post();
        acks.delay(1, &mut delay, Nanos(7));
        let (_, old) = acks.pop_due(DELAY_MAX).expect("the first deadline");
        assert!(!delay.expire(old) && delay.is_running());
    }
}
