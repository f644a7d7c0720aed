//! When a worker looks before it sleeps.
//!
//! A wake-up costs more than the relay of a small message, so a worker first looks again at its sockets and completion
//! queues, for at most [`LOOK_MOST`]. It gives the processor away between two looks, and stops as soon as somebody takes
//! it. Looking goes on only while it pays: a score of the last looks decides, and one attempt in [`TRY_EVERY`] is made
//! without it. A worker that has nothing to do sleeps, and is woken by nothing.

use std::time::Duration;

/// Longest time of looking.
pub(super) const LOOK_MOST: Duration = Duration::from_micros(30);
/// Giving the processor away for longer shows that somebody needs it.
pub(super) const YIELD_LONG: Duration = Duration::from_micros(15);
/// Sleeps after which a look is tried though looking did not pay.
const TRY_EVERY: u32 = 32;
/// Whether looking pays.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookScore {
    score: u32,
    skipped: u32,
}

impl LookScore {
    const MOST: u32 = 16;
    const PAYS: u32 = 8;

    pub(super) fn new() -> Self {
        Self { score: Self::PAYS, skipped: 0 }
    }

    /// Whether to look now.
    pub(super) fn pays(&mut self) -> bool {
        if self.score >= Self::PAYS {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRY_EVERY;
        self.skipped == 0
    }

    /// Notes whether a look has found anything.
    pub(super) fn note(&mut self, found: bool) {
        self.score = if found { (self.score + 1).min(Self::MOST) } else { self.score.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::{LookScore, TRY_EVERY};

    #[test]
    fn looking_stops_when_it_does_not_pay_and_begins_again_when_it_does() {
        let mut score = LookScore::new();
        while score.score >= LookScore::PAYS {
            assert!(score.pays());
            score.note(false);
        }
        let tries = (0..TRY_EVERY * 10).filter(|_| score.pays()).count();
        assert_eq!(tries, 10, "one in {TRY_EVERY}");
        score.note(true);
        assert!(score.pays());
    }
}
