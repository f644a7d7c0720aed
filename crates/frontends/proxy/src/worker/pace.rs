//! Times by which a stream's sender sees whether a larger window would help ([`super::grow`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Pause before a peer that has not answered is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Probes of a new transport, one after the other: the shortest of their round trips is that of the path.
const PROBES: u32 = 16;
/// Rounds that must take about a round trip: a single one may, when credits have waited for a processor.
const ROUNDS: u32 = 4;

/// The shortest time in which the peer acknowledged a batch. It is not measured anew for another queue pair, whose first
/// batches may wait for many bytes.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    /// Numbers of batches under way, and when they were sent.
    under_way: VecDeque<(u64, Instant)>,
    /// Of queue pairs, and of the control channel.
    shortest: [Option<Duration>; 2],
    /// Probes that are still to be sent.
    pub(super) probes: u32,
}

impl RoundTrips {
    /// A new transport begins: batches are sent again.
    pub(super) fn begin(&mut self) {
        self.under_way.clear();
        self.probes = PROBES;
    }

    pub(super) fn sent(&mut self, batch: u64, now: Instant) {
        self.under_way.push_back((batch, now));
    }

    /// `here`: by the control channel.
    pub(super) fn acknowledged(&mut self, batch: u64, here: bool, now: Instant) {
        let mut newest = None;
        while let Some((_, at)) = self.under_way.front().copied().filter(|(number, _)| *number <= batch) {
            newest = Some(now.saturating_duration_since(at));
            self.under_way.pop_front();
        }
        let shortest = &mut self.shortest[usize::from(here)];
        *shortest = (*shortest).into_iter().chain(newest).min();
    }

    pub(super) fn shortest(&self, here: bool) -> Option<Duration> {
        self.shortest[usize::from(here)]
    }
}

/// How a stream's outgoing bytes go.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The credit that ends the round, and when it began.
    round: Option<(u64, Instant)>,
    /// Rounds in a row that took about a round trip.
    short: u32,
    asked: Option<Instant>,
}

impl Pace {
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
            let mut pace = Pace::default();
            let all = rounds.iter().map(|took| {
                pace.stop(4000, EVERY);
                let (_, began) = pace.round.unwrap();
                assert!(!pace.credited(2999, shortest, began + *took), "the round goes on");
                let helps = pace.credited(3000, shortest, began + *took);
                assert!(!pace.credited(4000, shortest, began + *took), "a round ends once");
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
        let (mut pace, trip) = (Pace::default(), Duration::from_millis(10));
        let mut round = |grown: bool| {
            if grown {
                pace.grown();
            }
            pace.stop(100, EVERY);
            let (_, began) = pace.round.unwrap();
            pace.credited(100, Some(trip), began + trip)
        };
        let helps: Vec<bool> = (0..8).map(|n| round(n == 4)).collect();
        assert_eq!(helps.iter().map(|helps| usize::from(*helps)).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn a_peer_is_asked_again_after_a_pause() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert!(pace.may_ask(now) && !pace.may_ask(now) && pace.may_ask(now + ASK_AGAIN));
    }

    #[test]
    fn the_shortest_round_trip_is_that_of_the_newest_batch_acknowledged() {
        let (mut trips, now) = (RoundTrips::default(), Instant::now());
        let (after, us) = (|us| now + Duration::from_micros(us), Duration::from_micros);
        trips.sent(1, after(0));
        trips.sent(2, after(100));
        trips.acknowledged(0, false, after(150));
        assert_eq!(trips.shortest(false), None, "neither was acknowledged");
        trips.acknowledged(2, false, after(300));
        trips.acknowledged(2, false, after(301));
        assert_eq!(trips.shortest(false), Some(us(200)));
        trips.sent(3, after(300));
        trips.acknowledged(3, false, after(900));
        assert_eq!((trips.shortest(false), trips.shortest(true)), (Some(us(200)), None));
        trips.sent(4, after(900));
        trips.begin();
        trips.sent(4, after(1000));
        trips.acknowledged(4, true, after(1800));
        assert_eq!((trips.shortest(false), trips.shortest(true)), (Some(us(200)), Some(us(800))), "sent again");
    }
}
