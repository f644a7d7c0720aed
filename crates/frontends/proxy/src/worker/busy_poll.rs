//! When a worker polls before it sleeps.
//!
//! A wake-up costs more than the relay of a small message, so a worker without work first polls its sockets and completion
//! queues, for at most [`BUSY_POLL_MAX`]. Between two polls it yields the processor, and it stops as soon as another thread takes
//! it. A score of the last times decides whether polling pays; if it does not, one time in [`TRY_EVERY`] is a trial. A worker
//! without events sleeps, and no timer wakes it.
//!
//! A yield that another thread has used may have cost a time slice, and what came meanwhile has waited; a sleeping worker would
//! have had the processor at once. So after such a yield the worker does not poll for [`REST_FIRST`], and for twice as long after
//! each further one, up to [`REST_MAX`].

use std::time::{Duration, Instant};

/// Longest time of polling.
pub(super) const BUSY_POLL_MAX: Duration = Duration::from_micros(30);
/// A yield that takes longer shows that another thread needs the processor.
pub(super) const YIELD_MAX: Duration = Duration::from_micros(15);
/// Sleeps after which polling is tried though it did not pay.
const TRY_EVERY: u32 = 32;

/// Time without polling after a yield that another thread has used, at first and at most.
const REST_FIRST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_millis(3200);

/// Whether polling before sleep pays.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyPollScore {
    score: u32,
    skipped: u32,
    /// The present length of a rest, and when the last one ends.
    rest: Duration,
    rests_until: Option<Instant>,
}

impl BusyPollScore {
    const MOST: u32 = 16;
    const PAYS: u32 = 8;

    pub(super) fn new() -> Self {
        Self { score: Self::PAYS, skipped: 0, rest: REST_FIRST, rests_until: None }
    }

    /// Whether to poll this time.
    pub(super) fn pays(&mut self) -> bool {
        if self.score >= Self::PAYS {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRY_EVERY;
        self.skipped == 0
    }

    /// Whether the worker does not poll, because others have wanted the processor.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Notes that another thread has used a yield.
    pub(super) fn note_contended(&mut self, now: Instant) {
        self.note(false);
        self.rests_until = Some(now + self.rest);
        self.rest = (self.rest * 2).min(REST_MAX);
    }

    /// Notes whether polling has found anything.
    pub(super) fn note(&mut self, found: bool) {
        if found {
            self.rest = REST_FIRST;
        }
        self.score = if found { (self.score + 1).min(Self::MOST) } else { self.score.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::{BusyPollScore, Duration, Instant, REST_FIRST, REST_MAX, TRY_EVERY};

    #[test]
    fn a_contended_processor_is_left_to_the_others_for_longer_and_longer() {
        let (mut score, mut now) = (BusyPollScore::new(), Instant::now());
        assert!(!score.rests(now));
        let mut rests = Vec::new();
        for _ in 0..8 {
            score.note_contended(now);
            let began = now;
            while score.rests(now) {
                now += Duration::from_millis(10);
            }
            rests.push(now - began);
        }
        assert_eq!((rests[0], rests[1], rests[7]), (REST_FIRST, 2 * REST_FIRST, REST_MAX));
        score.note(true);
        score.note_contended(now);
        assert!(score.rests(now) && !score.rests(now + REST_FIRST), "polling has paid again");
    }

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
