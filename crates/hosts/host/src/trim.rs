//! When to return free memory to the system: after many objects have ended and none has ended for a while, or after ten seconds.
//!
//! The heap keeps freed memory for the next objects. That is right for a program that opens and closes connections all the
//! time, and wrong after ten thousand connections of a program that has exited. So when at least `OBJECTS_MIN` objects have
//! ended and then none ends for `QUIET` (longer than TIMEWAIT), free pages are returned once. When the last program has gone,
//! they are returned after `QUIET`, too: the next program finds a daemon as small as it was before. Objects that keep ending
//! postpone this by `LONGEST` at most: a program that asks `burst ls` twice per second opens and ends a session each time.

use burst_base::Nanos;

/// Number of ended objects that make trimming worth its cost.
const OBJECTS_MIN: usize = 1024;
/// Time without an ended object before memory is trimmed.
const QUIET: Nanos = Nanos::from_ms(700);
/// Longest time by which ending objects postpone trimming.
const LONGEST: Nanos = Nanos::from_ms(10_000);

/// Decides when to trim.
#[derive(Debug, Default)]
pub struct Trimmer {
    /// Objects that have ended since the last trim.
    ended: usize,
    /// Whether the last session has ended since the last trim.
    left_alone: bool,
    /// When the last object or session ended; `None` while there are fewer objects than [`OBJECTS_MIN`], and sessions.
    last: Option<Nanos>,
    /// The first value of `last` since the last trim.
    first: Option<Nanos>,
}

impl Trimmer {
    /// Notes that `count` objects ended at `now`.
    pub fn note_ended(&mut self, now: Nanos, count: usize) {
        self.ended += count;
        if self.ended >= OBJECTS_MIN || self.left_alone {
            self.start(now);
        }
    }

    /// Notes at `now` that the last session has ended.
    pub fn note_left_alone(&mut self, now: Nanos) {
        self.left_alone = true;
        self.start(now);
    }

    /// Starts or restarts [`QUIET`] at `now`.
    fn start(&mut self, now: Nanos) {
        self.last = Some(now);
        self.first.get_or_insert(now);
    }

    /// When trimming may be due; `None` if there is nothing to trim.
    pub fn due_at(&self) -> Option<Nanos> {
        debug_assert!(self.last.is_none() || self.ended >= OBJECTS_MIN || self.left_alone);
        debug_assert_eq!(self.last.is_some(), self.first.is_some());
        let (last, first) = (self.last?, self.first?);
        Some((last + QUIET).min(first + LONGEST))
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

    #[test]
    fn sessions_that_keep_ending_postpone_trimming_for_ten_seconds_at_most() {
        let mut trimmer = Trimmer::default();
        let step = Nanos(QUIET.0 / 2);
        let mut now = Nanos::from_ms(5);
        let latest = now + LONGEST;
        while now <= latest {
            assert!(!trimmer.take_due(now), "at {now:?}");
            trimmer.note_ended(now, 1);
            trimmer.note_left_alone(now);
            now = now + step;
        }
        assert_eq!(trimmer.due_at(), Some(latest));
        assert!(trimmer.take_due(now));
        trimmer.note_left_alone(now);
        assert_eq!(trimmer.due_at(), Some(now + QUIET), "counted again from the trim");
    }
}
