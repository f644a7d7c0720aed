//! How long an answer takes these days: a peer that is busy with thousands of requests is not asked again and again.
//!
//! The first wait for an answer ([`FIRST_TIMEOUT`](crate::conn::FIRST_TIMEOUT)) is short, because a lost request shall not
//! cost the program much. In a storm the answers come in the order of the requests but later and later, and repetitions would
//! only make them later still. So when a first wait is over, it is prolonged to twice the time that answers have taken lately
//! (an average that follows new samples by an eighth, as RFC 6298 has it; only answers to what was sent once count, as Karn
//! demands). What is older than [`HOLDS`] says nothing.

use burst_base::Nanos;

/// How long samples are of use.
const HOLDS: Nanos = Nanos::from_ms(500);
/// Longest time that an answer is waited for because of it.
const LONGEST: Nanos = Nanos::from_ms(4_000);

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RtoEstimator {
    average: u64,
    sampled: Nanos,
}

impl RtoEstimator {
    /// An answer took `time`.
    pub fn answered(&mut self, now: Nanos, time: Nanos) {
        let known = if now.since(self.sampled) > HOLDS { time.0 } else { self.average };
        self.average = known - known / 8 + time.0 / 8;
        self.sampled = now;
    }

    /// When something sent first at `sent` is worth being sent again; in the past if it is by now.
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
}
