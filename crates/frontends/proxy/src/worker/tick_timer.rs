//! The only timer of a worker: it runs while a link does not work or a connection waits for an answer.

use std::time::{Duration, Instant};

/// Time between two looks at what waits.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// When the worker looks again at what waits; without an instant it may sleep for ever.
#[derive(Debug, Default)]
pub(super) struct TickTimer(Option<Instant>);

impl TickTimer {
    /// Something waits: a look is due after [`TICK`] at the latest.
    pub(super) fn start(&mut self) {
        self.start_by(Instant::now() + TICK);
    }

    /// The same, unless the timer runs: then its time stays.
    pub(super) fn start_if_stopped(&mut self) {
        self.0.get_or_insert_with(|| Instant::now() + TICK);
    }

    /// A look is due at this time at the latest.
    pub(super) fn start_by(&mut self, at: Instant) {
        self.0 = Some(self.0.map_or(at, |before| before.min(at)));
    }

    /// Whether a look is due. It stops the timer: whoever still waits starts it again.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.0.take_if(|at| now >= *at).is_some()
    }

    /// Time until the next look.
    pub(super) fn left(&self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// The same for `epoll_wait`; -1: without end.
    pub(super) fn left_ms(&self) -> i32 {
        self.left().map_or(-1, |left| left.as_millis() as i32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_look_counts_and_stops_the_timer() {
        let (mut timer, now) = (TickTimer::default(), Instant::now());
        assert!(!timer.take_due(now) && timer.left_ms() == -1);
        timer.start_by(now + 2 * TICK);
        timer.start_by(now + TICK);
        timer.start_by(now + 3 * TICK);
        assert!(!timer.take_due(now) && timer.left().is_some());
        assert!(timer.take_due(now + TICK) && !timer.take_due(now + 9 * TICK));
    }
}
