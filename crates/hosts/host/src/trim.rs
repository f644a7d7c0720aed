//! When to return free memory to the system: after many objects have ended and none has ended for a while.
//!
//! The heap keeps freed memory for the next objects. That is right for a program that opens and closes connections all the
//! time, and wrong after ten thousand connections of a program that has exited. So when at least `OBJECTS_MIN` objects have
//! ended and then none ends for `QUIET` (longer than TIMEWAIT), free pages are returned once.

use burst_base::Nanos;

/// Number of ended objects that make trimming worth its cost.
const OBJECTS_MIN: usize = 1024;
/// Time without an ended object before memory is trimmed.
const QUIET: Nanos = Nanos::from_ms(700);

/// Decides when to trim.
#[derive(Debug, Default)]
pub struct Trimmer {
    /// Objects that have ended since the last trim.
    ended: usize,
    /// When the last of them ended; `None` while there are fewer than [`OBJECTS_MIN`].
    last: Option<Nanos>,
}

impl Trimmer {
    /// Notes that `count` objects ended at `now`.
    pub fn note_ended(&mut self, now: Nanos, count: usize) {
        self.ended += count;
        if self.ended >= OBJECTS_MIN {
            self.last = Some(now);
        }
    }

    /// When trimming may be due; `None` if there is nothing to trim.
    pub fn due_at(&self) -> Option<Nanos> {
        debug_assert!(self.last.is_none() || self.ended >= OBJECTS_MIN);
        self.last.map(|last| last + QUIET)
    }

    /// Whether trimming is due at `now`. If it is, counting starts again from 0.
    pub fn take_due(&mut self, now: Nanos) -> bool {
        let due = self.due_at().is_some_and(|at| at <= now);
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
    fn memory_is_trimmed_once_after_many_objects_and_an_idle_time() {
        let (mut trimmer, now) = (Trimmer::default(), Nanos::from_ms(5));
        trimmer.note_ended(now, OBJECTS_MIN - 1);
        assert_eq!((trimmer.due_at(), trimmer.take_due(now + QUIET)), (None, false));
        trimmer.note_ended(now, 1);
        assert_eq!(trimmer.due_at(), Some(now + QUIET));
        assert!(!trimmer.take_due(now + Nanos(QUIET.0 - 1)));
        assert!(trimmer.take_due(now + QUIET));
        assert_eq!((trimmer.due_at(), trimmer.take_due(now + QUIET)), (None, false), "once");
    }
}
