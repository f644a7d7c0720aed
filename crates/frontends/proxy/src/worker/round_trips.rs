//! Round trips of a link: the time from a batch to its acknowledgement.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Probes of a new transport, one after the other: the shortest of their round trips is that of the path.
const PROBES: u32 = 16;

/// The shortest time in which the peer acknowledged a batch. It is not measured anew for another queue pair, whose first
/// batches may wait for many bytes.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    /// Numbers of batches under way, and when they were sent.
    under_way: VecDeque<(u64, Instant)>,
    /// Of queue pairs, and of the control channel.
    shortest: [Option<Duration>; 2],
    /// Probes that are still to be sent.
    probes: u32,
}

impl RoundTrips {
    /// A new transport begins: batches are sent again.
    pub(super) fn begin(&mut self) {
        self.under_way.clear();
        self.probes = PROBES;
    }

    /// A probe was answered; whether another one is to be sent.
    pub(super) fn take_probe(&mut self) -> bool {
        self.probes = self.probes.saturating_sub(1);
        self.probes > 0
    }

    /// A batch is sent.
    pub(super) fn sent(&mut self, batch: u64, now: Instant) {
        self.under_way.push_back((batch, now));
    }

    /// The peer has received all batches up to `batch`. `by_channel`: by the control channel.
    pub(super) fn acknowledged(&mut self, batch: u64, by_channel: bool, now: Instant) {
        let mut newest = None;
        while let Some((_, at)) = self.under_way.front().copied().filter(|(number, _)| *number <= batch) {
            newest = Some(now.saturating_duration_since(at));
            self.under_way.pop_front();
        }
        let shortest = &mut self.shortest[usize::from(by_channel)];
        *shortest = (*shortest).into_iter().chain(newest).min();
    }

    /// The shortest one of this carrier.
    pub(super) fn shortest(&self, by_channel: bool) -> Option<Duration> {
        self.shortest[usize::from(by_channel)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
