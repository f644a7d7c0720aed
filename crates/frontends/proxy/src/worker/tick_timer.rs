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

    /// The present time, if a look is due. It stops the timer: whoever still waits starts it again. A timer that is stopped costs
    /// no look at the clock.
    pub(super) fn take_due(&mut self) -> Option<Instant> {
        let (at, now) = (self.0?, Instant::now());
        if now < at {
            return None;
        }
        self.0 = None;
        Some(now)
    }

    /// Time until the next look.
    pub(super) fn left(&self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_look_counts_and_stops_the_timer() {
        let (mut timer, now) = (TickTimer::default(), Instant::now());
        assert!(timer.take_due().is_none() && timer.left().is_none());
        timer.start_by(now + 1000 * TICK);
        assert!(timer.take_due().is_none() && timer.left() > Some(TICK));
        timer.start_if_stopped();
        assert!(timer.left() > Some(TICK), "it runs");
        timer.start_by(now);
        timer.start();
        assert!(timer.take_due() >= Some(now) && timer.left().is_none() && timer.take_due().is_none());
    }
}
