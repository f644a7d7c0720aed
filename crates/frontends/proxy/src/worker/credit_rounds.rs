//! Whether a stream's window limits its rate: times of rounds, for [`super::grow`].
//!
//! A round begins when the window is full and ends with the credit for the bytes that filled it. Only if several rounds in a row
//! take about the link's shortest round trip would a larger window help.

use std::time::{Duration, Instant};

/// Pause before a peer that has not answered is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Rounds that must take about a round trip: a single one may, when credits have waited for a processor.
const ROUNDS: u32 = 4;

/// Rounds of a stream's outgoing bytes.
#[derive(Debug, Default)]
pub(super) struct CreditRounds {
    /// The credit that ends the round, and when it began.
    round: Option<(u64, Instant)>,
    /// Rounds in a row that took about a round trip.
    short: u32,
    asked: Option<Instant>,
}

impl CreditRounds {
    /// The window is full of bytes up to `sent`. Credits come after `credit_every` bytes, so that of the last ones is not
    /// due before others follow.
    pub(super) fn stop(&mut self, sent: u64, credit_every: u32) {
        if self.round.is_none() {
            self.round = Some((sent.saturating_sub(credit_every.into()), Instant::now()));
        }
    }

    /// A credit has come; whether a larger window would help.
    pub(super) fn credited(&mut self, credited: u64, shortest: Option<Duration>, now: Instant) -> bool {
        let Some((_, began)) = self.round.take_if(|(mark, _)| *mark <= credited) else { return false };
        let took = now.saturating_duration_since(began);
        let is_short = shortest.is_some_and(|shortest| (shortest / 2..2 * shortest).contains(&took));
        self.short = if is_short { self.short + 1 } else { 0 };
        self.short >= ROUNDS
    }

    /// The window has grown.
    pub(super) fn grown(&mut self) {
        (self.short, self.asked) = (0, None);
    }

    /// Whether the peer may be asked now.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let may = self.asked.is_none_or(|asked| now >= asked + ASK_AGAIN);
        if may {
            self.asked = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u32 = 1000;

    #[test]
    fn a_window_helps_only_where_the_path_is_what_takes_time() {
        let ms = Duration::from_millis;
        let helps = |shortest: Option<Duration>, rounds: &[Duration]| {
            let mut window = CreditRounds::default();
            let all = rounds.iter().map(|took| {
                window.stop(4000, EVERY);
                let (_, began) = window.round.unwrap();
                assert!(!window.credited(2999, shortest, began + *took), "the round goes on");
                let helps = window.credited(3000, shortest, began + *took);
                assert!(!window.credited(4000, shortest, began + *took), "a round ends once");
                helps
            });
            all.collect::<Vec<_>>()
        };
        assert_eq!(helps(Some(ms(10)), &[ms(5), ms(19), ms(10), ms(11), ms(10)]), [false, false, false, true, true]);
        assert_eq!(helps(Some(ms(10)), &[ms(20); 9]), [false; 9], "bytes have waited elsewhere");
        assert_eq!(helps(Some(ms(10)), &[ms(4); 9]), [false; 9], "credits have waited here");
        assert_eq!(helps(None, &[ms(10); 9]), [false; 9], "nothing is known of the link");
        let mixed = [10, 10, 10, 30, 10, 10, 10, 10].map(ms);
        assert_eq!(helps(Some(ms(10)), &mixed).iter().position(|helps| *helps), Some(7), "in a row");
    }

    #[test]
    fn after_a_growth_as_many_rounds_are_needed_again() {
        let (mut window, trip) = (CreditRounds::default(), Duration::from_millis(10));
        let mut round = |grown: bool| {
            if grown {
                window.grown();
            }
            window.stop(100, EVERY);
            let (_, began) = window.round.unwrap();
            window.credited(100, Some(trip), began + trip)
        };
        let helps: Vec<bool> = (0..8).map(|n| round(n == 4)).collect();
        assert_eq!(helps.iter().map(|helps| usize::from(*helps)).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_peer_is_asked_again_after_a_pause() {
        let (mut window, now) = (CreditRounds::default(), Instant::now());
        assert!(window.may_ask(now) && !window.may_ask(now) && window.may_ask(now + ASK_AGAIN));
    }
}
