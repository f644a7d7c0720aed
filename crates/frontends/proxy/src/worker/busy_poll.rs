//! When a worker polls before it sleeps.
//!
//! A wake-up costs more than the relay of a small message, so a worker without work first polls its sockets and completion
//! queues, for at most [`BUSY_POLL_MAX`]. Between two polls it yields the processor, and it stops as soon as another thread takes
//! it. A score of the last times decides whether polling pays; if it does not, one time in [`TRY_EVERY`] is a trial. A worker
//! without events sleeps, and no timer wakes it.

use std::time::Duration;

/// Longest time of polling.
pub(super) const BUSY_POLL_MAX: Duration = Duration::from_micros(30);
/// A yield that takes longer shows that another thread needs the processor.
pub(super) const YIELD_MAX: Duration = Duration::from_micros(15);
/// Sleeps after which polling is tried though it did not pay.
const TRY_EVERY: u32 = 32;

/// Whether polling before sleep pays.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyPollScore {
    score: u32,
    skipped: u32,
}

impl BusyPollScore {
    const MOST: u32 = 16;
    const PAYS: u32 = 8;

    pub(super) fn new() -> Self {
        Self { score: Self::PAYS, skipped: 0 }
    }

    /// Whether to poll this time.
    pub(super) fn pays(&mut self) -> bool {
        if self.score >= Self::PAYS {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRY_EVERY;
        self.skipped == 0
    }

    /// Notes whether polling has found anything.
    pub(super) fn note(&mut self, found: bool) {
        self.score = if found { (self.score + 1).min(Self::MOST) } else { self.score.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::{BusyPollScore, TRY_EVERY};

    #[test]
    fn polling_stops_when_it_does_not_pay_and_begins_again_when_it_does() {
        let mut score = BusyPollScore::new();
        while score.score >= BusyPollScore::PAYS {
            assert!(score.pays());
            score.note(false);
        }
        let tries = (0..TRY_EVERY * 10).filter(|_| score.pays()).count();
        assert_eq!(tries, 10, "one in {TRY_EVERY}");
        score.note(true);
        assert!(score.pays());
    }
}
