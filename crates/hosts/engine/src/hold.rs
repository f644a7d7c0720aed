//! Acknowledgements that wait a moment for the program's answer.
//!
//! A program that answers each message (a ping-pong, an RPC server) posts a few microseconds after its receive completed.
//! If the acknowledgement waits that long, both leave in one train and arrive as one: half the system calls, half the
//! wake-ups. A program that does not answer would only be slowed down; so a queue pair whose wait was in vain does not
//! wait for its next [`SKIP`] messages (as TCP leaves its "ping-pong" mode).

use burst_base::Nanos;
use std::collections::VecDeque;

/// Longest wait.
pub const HOLD_MAX: Nanos = Nanos::from_us(40);
/// Messages that are acknowledged at once after a wait in vain.
const SKIP: u8 = 64;

/// A queue pair's part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    /// When the acknowledgement leaves at the latest; none is held: `None`.
    until: Option<Nanos>,
    skip: u8,
}

/// The queue pairs that hold an acknowledgement, in order of their deadlines.
#[derive(Debug, Default)]
pub(crate) struct Held {
    line: VecDeque<(u32, Nanos)>,
}

impl Hold {
    /// Whether an acknowledgement is held.
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }
    /// The program has posted: the acknowledgement goes along.
    pub fn answered(&mut self) {
        self.until = None;
    }
    /// The deadline `at` has come; true when it was this hold's own, and the acknowledgement must go now.
    pub fn expire(&mut self, at: Nanos) -> bool {
        let mine = self.until == Some(at);
        if mine {
            self.until = None;
            self.skip = SKIP;
        }
        mine
    }
}

impl Held {
    /// Lets queue pair `index` wait, unless it waited in vain lately. False: it must acknowledge now.
    pub fn wait(&mut self, index: u32, hold: &mut Hold, now: Nanos) -> bool {
        if hold.is_on() {
            return true;
        }
        if hold.skip > 0 {
            hold.skip -= 1;
            return false;
        }
        let until = now + HOLD_MAX;
        hold.until = Some(until);
        self.line.push_back((index, until));
        true
    }
    /// A queue pair whose deadline has come, and the deadline.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(u32, Nanos)> {
        let due = self.line.front().is_some_and(|(_, until)| *until <= now);
        if due { self.line.pop_front() } else { None }
    }
    /// The first deadline.
    pub fn next_deadline(&self) -> Nanos {
        self.line.front().map_or(Nanos::NEVER, |(_, until)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_the_wait_and_the_next_message_waits_again() {
        let (mut held, mut hold) = (Held::default(), Hold::default());
        assert!(held.wait(1, &mut hold, Nanos(0)));
        hold.answered();
        let (index, at) = held.pop_due(HOLD_MAX).expect("still in line");
        assert!(index == 1 && !hold.expire(at));
        assert!(held.wait(1, &mut hold, Nanos(5)));
    }

    #[test]
    fn a_wait_in_vain_is_not_repeated_for_a_while() {
        let (mut held, mut hold) = (Held::default(), Hold::default());
        assert!(held.wait(1, &mut hold, Nanos(0)));
        assert_eq!(held.pop_due(Nanos(1)), None);
        assert_eq!(held.next_deadline(), HOLD_MAX);
        let (_, at) = held.pop_due(HOLD_MAX).expect("due");
        assert!(hold.expire(at));
        let waits = (0..SKIP).filter(|_| held.wait(1, &mut hold, Nanos(9))).count();
        assert_eq!(waits, 0);
        assert!(held.wait(1, &mut hold, Nanos(9)));
    }

    #[test]
    fn an_older_deadline_does_not_end_a_newer_wait() {
        let (mut held, mut hold) = (Held::default(), Hold::default());
        held.wait(1, &mut hold, Nanos(0));
        hold.answered();
        held.wait(1, &mut hold, Nanos(7));
        let (_, old) = held.pop_due(HOLD_MAX).expect("old");
        assert!(!hold.expire(old) && hold.is_on());
    }
}
