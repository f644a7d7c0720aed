//! When to return free memory to the system: after many objects have ended and none has ended for a while.
//!
//! The heap keeps freed memory for the next objects. That is right for a program that opens and closes connections all the
//! time, and wrong after ten thousand connections of a program that has exited. So when at least `OBJECTS_MIN` objects have
//! ended and then none ends for `QUIET` (longer than TIMEWAIT), free pages are returned once. When the last program has gone,
//! they are returned after `QUIET`, too: the next program finds a daemon as small as it was before.

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
    /// Whether the last session has ended since the last trim.
    left_alone: bool,
    /// When the last object or session ended; `None` while there are fewer objects than [`OBJECTS_MIN`], and sessions.
    last: Option<Nanos>,
}

impl Trimmer {
    /// Notes that `count` objects ended at `now`.
    pub fn note_ended(&mut self, now: Nanos, count: usize) {
        self.ended += count;
        if self.ended >= OBJECTS_MIN || self.left_alone {
            self.last = Some(now);
        }
    }

    /// Notes at `now` that the last session has ended.
    pub fn note_left_alone(&mut self, now: Nanos) {
        (self.left_alone, self.last) = (true, Some(now));
    }

    /// When trimming may be due; `None` if there is nothing to trim.
    pub fn due_at(&self) -> Option<Nanos> {
        debug_assert!(self.last.is_none() || self.ended >= OBJECTS_MIN || self.left_alone);
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

    #[test]
    fn memory_is_trimmed_once_after_the_last_session() {
        let (mut trimmer, now) = (Trimmer::default(), Nanos::from_ms(5));
        trimmer.note_ended(now, 3);
        trimmer.note_left_alone(now);
        let later = now + QUIET;
        trimmer.note_ended(later, 1);
        assert!(!trimmer.take_due(later), "an object has ended since");
        assert!(trimmer.take_due(later + QUIET) && !trimmer.take_due(later + QUIET + QUIET));
        trimmer.note_ended(later, 1);
        assert_eq!(trimmer.due_at(), None, "a few objects do not matter before the next session ends");
    }
}
