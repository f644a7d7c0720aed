//! Estimate of the retransmission timeout: requests to a peer that is busy with thousands of them are not repeated needlessly.
//!
//! The first wait for an answer ([`FIRST_TIMEOUT`](crate::conn::FIRST_TIMEOUT)) is short, because a lost request should not
//! cost the program much. In a storm, answers come in the order of the requests but ever later, and repetitions would
//! delay them further. A first wait that has ended is therefore prolonged to twice the recent time of an answer
//! (an average that follows new samples by an eighth, RFC 6298; only answers to messages that were sent once are samples: Karn's
//! algorithm). Samples older than [`HOLDS`] are ignored.

use burst_base::Nanos;

/// Time for which samples are valid.
const HOLDS: Nanos = Nanos::from_ms(500);
/// Longest prolonged wait.
const LONGEST: Nanos = Nanos::from_ms(4_000);

/// The estimator of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RtoEstimator {
    average: u64,
    sampled: Nanos,
}

impl RtoEstimator {
    /// Adds a sample: an answer took `time`.
    pub fn answered(&mut self, now: Nanos, time: Nanos) {
        let known = if now.since(self.sampled) > HOLDS { time.0 } else { self.average };
        self.average = known - known / 8 + time.0 / 8;
        self.sampled = now;
    }

    /// Time before which a message sent first at `sent` should not be repeated; in the past if it may be repeated now.
    pub fn until(&self, now: Nanos, sent: Nanos) -> Nanos {
        if now.since(self.sampled) > HOLDS { sent } else { sent + Nanos(2 * self.average).min(LONGEST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_ms;

    #[test]
    fn slow_answers_buy_time_and_only_for_a_while() {
        let mut rto = RtoEstimator::default();
        assert!(rto.until(MS(10_000), MS(9_900)) <= MS(10_000), "nothing is known");
        rto.answered(MS(10_000), MS(300));
        assert_eq!(rto.until(MS(10_000), MS(9_900)), MS(10_500));
        for n in 0..40 {
            rto.answered(MS(10_000 + n), MS(1));
        }
        assert!(rto.until(MS(10_040), MS(10_000)) < MS(10_020), "answers are quick again");
        rto.answered(MS(10_050), MS(60_000));
        assert_eq!(rto.until(MS(10_050), MS(10_000)), MS(14_000), "not for ever");
        assert_eq!(rto.until(MS(10_600), MS(10_500)), MS(10_500), "long ago");
    }

    #[test]
    fn samples_hold_for_half_a_second_inclusive() {
        let mut rto = RtoEstimator::default();
        rto.answered(MS(10_000), MS(320));
        rto.answered(MS(10_500), MS(80));
        assert_eq!(rto.until(MS(11_000), MS(10_900)), MS(11_480), "an eighth of 80 ms and seven of 320 ms, twice");
        assert_eq!(rto.until(MS(11_001), MS(10_900)), MS(10_900));
        rto.answered(MS(11_001), MS(80));
        assert_eq!(rto.until(MS(11_001), MS(11_001)), MS(11_161), "a new beginning");
    }
}
