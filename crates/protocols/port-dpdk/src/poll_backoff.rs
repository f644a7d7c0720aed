//! The time of the next poll of a device that cannot wake a sleeping worker (memif, ring).
//!
//! A worker without work sleeps, and a worker that shares its processor with a computing thread sleeps early; the device must be
//! polled nevertheless. The pause between polls doubles from [`PAUSE_MIN`] to [`PAUSE_MAX`], and to [`PAUSE_LONG`] once no packet
//! has arrived for [`LONG_AFTER`]. A packet is late by at most the pause; an idle worker costs one poll, and the spinning after
//! it, per pause.

use burst_base::Nanos;

/// First pause after a packet.
const PAUSE_MIN: Nanos = Nanos::from_us(10);
/// Longest pause while packets arrive.
const PAUSE_MAX: Nanos = Nanos::from_us(40);
/// Longest pause while no packets arrive.
const PAUSE_LONG: Nanos = Nanos::from_ms(10);
/// Time without a packet after which the pause grows to [`PAUSE_LONG`].
const LONG_AFTER: Nanos = Nanos::from_ms(50);

/// The pause between two polls of a device.
#[derive(Debug)]
pub struct PollBackoff {
    /// Time of the last poll.
    polled: Nanos,
    /// Time of the last poll that found packets.
    received: Nanos,
    /// Present pause.
    pause: Nanos,
}

impl Default for PollBackoff {
    fn default() -> PollBackoff {
        PollBackoff { polled: Nanos(0), received: Nanos(0), pause: PAUSE_MIN }
    }
}

impl PollBackoff {
    /// Notes a poll at `now`, and whether it found packets.
    #[inline]
    pub fn polled(&mut self, now: Nanos, found: bool) {
        self.polled = now;
        if found {
            (self.received, self.pause) = (now, PAUSE_MIN);
        }
    }
    /// Time of the last poll.
    pub fn last(&self) -> Nanos {
        self.polled
    }
    /// The worker is about to sleep until [`PollBackoff::next`]: doubles the pause.
    pub fn grow(&mut self) {
        let most = if self.polled.since(self.received) > LONG_AFTER { PAUSE_LONG } else { PAUSE_MAX };
        self.pause = Nanos(self.pause.0 * 2).min(most);
    }
    /// Time of the next poll.
    pub fn next(&self) -> Nanos {
        self.polled + self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_its_bounds_and_shrinks_with_a_packet() {
        let mut backoff = PollBackoff::default();
        let mut now = Nanos::from_ms(5);
        backoff.polled(now, true);
        let mut longest = Nanos(0);
        while now < Nanos::from_ms(1000) {
            backoff.grow();
            let next = backoff.next();
            assert!(next > now);
            longest = longest.max(next - now);
            let bound = if now < Nanos::from_ms(55) { PAUSE_MAX } else { PAUSE_LONG };
            assert!(next - now <= bound);
            now = next;
            backoff.polled(now, false);
        }
        assert_eq!(longest, PAUSE_LONG);
        backoff.polled(now, true);
        backoff.grow();
        assert_eq!(backoff.next() - now, Nanos(2 * PAUSE_MIN.0));
    }
}
