//! Windows whose packets leave over a round trip.
//!
//! A window clocks itself where each packet is acknowledged by itself. Hosts send trains, a receive pass answers a train with
//! one acknowledgement, and a virtual interface carries it as one packet: a window that has left at once is acknowledged at
//! once, and leaves at once again. The sender then waits for a round trip, and its whole window meets the queue: with a queue
//! that marks from 17 KB on and 37 KB for the product of rate and round trip, `dctcp` used a fifth of the link.
//!
//! So a window leaves in four fifths of a round trip, in slow start in half of one, in bursts of an eighth of it. Windows of
//! few packets are shorter than what is worth it: many senders share a queue better if each sends at once. With `swift`, whose
//! senders join each other's looks at the path, sixteen shared a link of 300 Mbit/s with an index of 0.6 where windows from
//! [`PACKETS_MIN`] packets on were spread.

use crate::api::SendLimits;
use crate::math::burst_of;
use burst_base::Nanos;

/// Smallest windows that are spread, in packets: more than the ten with which paths begin; and where windows follow delays.
pub(crate) const PACKETS_MIN: f64 = 12.0;
pub(crate) const PACKETS_MIN_OF_DELAY: f64 = 64.0;
/// A window in four fifths of a round trip, or in half of one.
pub(crate) const GAINS: [f64; 2] = [1.25, 2.0];
/// Highest rate that is paced, in bits per second: bursts of a faster one are shorter than a timer is exact.
const RATE_MAX: f64 = 8e9;
/// A burst is this part of a round trip, and not longer than this in seconds.
const BURST_PART: f64 = 1.0 / 8.0;
const BURST_SECONDS_MAX: f64 = 250e-6;
/// Longest round trip that is believed, in nanoseconds.
const RTT_MAX: u64 = 10_000_000_000;

/// How a window is spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadRule {
    /// One of [`GAINS`].
    pub(crate) gain: f64,
    /// [`PACKETS_MIN`] or [`PACKETS_MIN_OF_DELAY`].
    pub(crate) packets_min: f64,
    pub(crate) mtu: u64,
    /// Bits per second.
    pub(crate) line_rate: f64,
}

/// The round trip over which a window is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WindowSpread {
    /// Smoothed round trip in nanoseconds; 0 before the first.
    srtt: f32,
}

impl WindowSpread {
    /// A round trip was measured.
    pub(crate) fn measured(&mut self, rtt: Nanos) {
        let rtt = rtt.0.clamp(1, RTT_MAX) as f32;
        self.srtt = if self.srtt == 0.0 { rtt } else { self.srtt + (rtt - self.srtt) / 8.0 };
    }

    /// The limits of a window in bytes.
    pub(crate) fn limits(&self, window: f64, rule: &SpreadRule) -> SendLimits {
        let SpreadRule { gain, packets_min, mtu, line_rate } = *rule;
        let unpaced = SendLimits::unpaced(window as u64);
        if self.srtt == 0.0 || window < packets_min * mtu as f64 {
            return unpaced;
        }
        let seconds = f64::from(self.srtt) * 1e-9;
        let rate = gain * window * 8.0 / seconds;
        if rate >= line_rate.min(RATE_MAX) {
            return unpaced;
        }
        let burst_bytes = burst_of(rate, (seconds * BURST_PART).min(BURST_SECONDS_MAX), mtu);
        SendLimits { rate_bps: (rate as u64).max(1), burst_bytes, ..unpaced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RATE_UNPACED;

    #[test]
    fn a_window_leaves_in_four_fifths_of_a_round_trip_in_bursts_of_an_eighth() {
        let mut spread = WindowSpread::default();
        let rule = |gain| SpreadRule { gain, packets_min: PACKETS_MIN, mtu: 1_000, line_rate: 100e9 };
        let limits = |spread: &WindowSpread, window, slow: bool| spread.limits(window, &rule(GAINS[usize::from(slow)]));
        assert_eq!(limits(&spread, 50_000.0, false), SendLimits::unpaced(50_000), "no round trip is known");
        spread.measured(Nanos::from_ms(1));
        // 50 kB in 0.8 ms.
        let paced = SendLimits { window_bytes: 50_000, rate_bps: 500_000_000, burst_bytes: 7_812 };
        assert_eq!(limits(&spread, 50_000.0, false), paced);
        assert_eq!(limits(&spread, 50_000.0, true).rate_bps, 800_000_000);
        assert_eq!(limits(&spread, 11_999.0, false), SendLimits::unpaced(11_999), "too few packets");
        assert_eq!(limits(&spread, 1e6, false).rate_bps, RATE_UNPACED, "8 Gbit/s and more");
        assert_eq!(
            spread.limits(50_000.0, &SpreadRule { line_rate: 400e6, ..rule(GAINS[0]) }).rate_bps,
            RATE_UNPACED,
            "the rate of the link"
        );
        (0..99).for_each(|_| spread.measured(Nanos::from_ms(20)));
        assert_eq!(limits(&spread, 500_000.0, false).burst_bytes, 7_812, "250 us at most");
    }
}
