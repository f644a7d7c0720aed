//! Memory back to the system after many objects have ended.
//!
//! The heap keeps what was freed for the next objects, which is right for a program that opens and closes connections all the
//! time, and wrong after ten thousand connections of a program that has gone. So when many objects have ended
//! ([`WORTH`]) and none ended for a while ([`QUIET`], longer than time-wait), free pages are given back, once.

use std::time::{Duration, Instant};

/// Ended objects that are worth the work.
const WORTH: usize = 1024;
/// Nothing has ended for this long.
const QUIET: Duration = Duration::from_millis(700);

/// See the module.
#[derive(Debug, Default)]
pub struct Trimmer {
    ended: usize,
    last: Option<Instant>,
}

impl Trimmer {
    /// Objects have ended.
    pub fn ended(&mut self, count: usize) {
        self.ended += count;
        if self.ended >= WORTH {
            self.last = Some(Instant::now());
        }
    }

    /// Time until it may be worth the work; none if nothing is to do.
    pub fn due_in(&self) -> Option<Duration> {
        self.last.map(|last| QUIET.saturating_sub(last.elapsed()))
    }

    /// Whether it is due now; if so, it begins anew.
    pub fn is_due(&mut self) -> bool {
        let due = self.due_in().is_some_and(|left| left.is_zero());
        if due {
            *self = Trimmer::default();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_objects_are_not_worth_it_and_many_wait_for_quiet() {
        let mut trimmer = Trimmer::default();
        trimmer.ended(WORTH - 1);
        assert_eq!((trimmer.due_in(), trimmer.is_due()), (None, false));
        trimmer.ended(1);
        assert!(trimmer.due_in().is_some_and(|left| left > QUIET / 2) && !trimmer.is_due());
        trimmer.last = Instant::now().checked_sub(QUIET);
        assert!(trimmer.is_due());
        assert_eq!((trimmer.due_in(), trimmer.is_due()), (None, false), "once");
    }
}
