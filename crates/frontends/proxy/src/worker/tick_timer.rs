//! The only timer of a worker. It runs while a link does not work or a connection waits for an answer; on expiry the worker
//! checks all of these, and starts the timer again if one still waits.

use std::time::{Duration, Instant};

/// Time between two checks of what waits.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// When the worker checks again, and its clock.
#[derive(Debug, Default)]
pub(super) struct TickTimer {
    /// `None`: the timer is stopped.
    at: Option<Instant>,
    /// The time that a test has set.
    #[cfg(test)]
    pub(super) set: Option<Instant>,
}

impl TickTimer {
    /// The present time.
    pub(super) fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(set) = self.set {
            return set;
        }
        Instant::now()
    }

    /// Starts the timer: it expires after [`TICK`] at the latest.
    pub(super) fn start(&mut self) {
        self.start_by(self.now() + TICK);
    }

    /// The same, unless the timer runs: then its time stays.
    pub(super) fn start_if_stopped(&mut self) {
        if self.at.is_none() {
            self.start();
        }
    }

    /// Starts the timer: it expires at this time at the latest.
    pub(super) fn start_by(&mut self, at: Instant) {
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }

    /// The present time, if the timer has expired; it stops then. A stopped timer does not read the clock.
    pub(super) fn take_due(&mut self) -> Option<Instant> {
        let (at, now) = (self.at?, self.now());
        if now < at {
            return None;
        }
        self.at = None;
        Some(now)
    }

    /// Time until it expires.
    pub(super) fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts_and_expiry_stops_the_timer() {
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
