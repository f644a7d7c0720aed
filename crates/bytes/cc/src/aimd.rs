//! Additive increase, multiplicative decrease of one window.
//!
//! A software receiver drops packets when its socket buffer is full, and go-back-N repeats everything behind a drop.
//! The window therefore grows by [`INCREASE_BYTES`] for each window of acknowledged bytes up to its maximum, and is halved on
//! loss down to two packets. All losses within [`HALVE_PAUSE`] count as one: a full buffer usually drops several
//! packets, of several queue pairs.
//!
//! A peer that says that its receive buffers are more than three quarters full ([`AckSample::pressure`]) is about to drop
//! packets: that counts as a loss, but at most once per round trip, and the window does not grow meanwhile. [`HALVE_PAUSE`]
//! would be too long: in a round trip of 30 us the window grows from half to its maximum within a millisecond, and the buffer
//! overflows. A congestion notification does the same, and so do marked packets. A loss that was none is undone if no other came
//! since. No timer.
//!
//! It begins with [`INITIAL_PACKETS`] and doubles in each round trip until the first loss ([`Aimd::starting`]). Below another
//! controller, as the window of the peer's receive buffers, marks and notifications end that as well: the other one has taken
//! over ([`Aimd::end_slow_start`]).

use crate::api::{AckSample, SendLimits};
use burst_base::Nanos;

/// The largest window of a path is not smaller than this, in bytes.
pub const WINDOW_MIN: u64 = 64 << 10;
/// Window of a path at the beginning, in packets (RFC 6928).
const INITIAL_PACKETS: u64 = 10;
/// Smallest window in packets.
const PACKETS_MIN: u64 = 2;
/// Growth in bytes for each window of acknowledged bytes.
pub const INCREASE_BYTES: u64 = 16 << 10;
/// Shortest time between two halvings.
pub const HALVE_PAUSE: Nanos = Nanos::from_ms(1);

/// State of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aimd {
    window_bytes: u64,
    window_max_bytes: u64,
    window_min_bytes: u64,
    /// Below it the window grows by what is acknowledged.
    slow_start_bytes: u64,
    halved_at: Nanos,
    /// The window before the last loss; 0 if pressure came since.
    undo_bytes: u64,
    /// The last round trip; [`HALVE_PAUSE`] before the first.
    rtt: Nanos,
}

impl Aimd {
    /// A controller with its window at `window_max_bytes`, or at two packets of `mtu` bytes if that is larger.
    pub fn new(window_max_bytes: u64, mtu: u64) -> Aimd {
        let window_min_bytes = PACKETS_MIN * mtu;
        let window_max_bytes = window_max_bytes.max(window_min_bytes);
        Aimd {
            window_bytes: window_max_bytes,
            window_max_bytes,
            window_min_bytes,
            slow_start_bytes: 0,
            halved_at: Nanos(0),
            undo_bytes: 0,
            rtt: HALVE_PAUSE,
        }
    }

    /// The same with ten packets of `mtu` bytes, in slow start.
    pub fn starting(window_max_bytes: u64, mtu: u64) -> Aimd {
        let all = Aimd::new(window_max_bytes, mtu);
        let window_bytes = all.window_max_bytes.min(INITIAL_PACKETS * mtu);
        Aimd { window_bytes, slow_start_bytes: all.window_max_bytes, ..all }
    }

    /// Bytes were acknowledged: the window grows in proportion.
    #[inline]
    pub fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        if self.on_report(now, sample) {
            return;
        }
        if sample.is_recovering {
            return;
        }
        let is_slow_start = self.window_bytes < self.slow_start_bytes;
        let increase = if is_slow_start {
            sample.acked_bytes
        } else {
            (INCREASE_BYTES * sample.acked_bytes / self.window_bytes).min(sample.acked_bytes)
        };
        self.window_bytes = (self.window_bytes + increase).min(self.window_max_bytes);
        debug_assert!((self.window_min_bytes..=self.window_max_bytes).contains(&self.window_bytes));
    }

    /// The peer has said how full its receive buffers are and how many packets were marked, and a round trip may have been
    /// measured. Returns whether there is congestion.
    #[inline]
    pub fn on_report(&mut self, now: Nanos, sample: &AckSample) -> bool {
        if let Some(rtt) = sample.rtt {
            self.rtt = rtt;
        }
        let is_congested = sample.is_peer_congested() || sample.ce_packets > 0;
        if is_congested {
            self.on_pressure(now);
        }
        is_congested
    }

    /// Packets were lost: the window is halved, unless that was done within [`HALVE_PAUSE`].
    pub fn on_loss(&mut self, now: Nanos) {
        self.undo_bytes = self.window_bytes;
        self.halve(now, HALVE_PAUSE);
    }

    /// The controller above it has heard of congestion: no more doubling.
    #[inline]
    pub fn end_slow_start(&mut self) {
        self.slow_start_bytes = self.slow_start_bytes.min(self.window_bytes);
    }

    /// Nothing has been in flight for long: the window is what a path bears that has borne it before, and slow start leads back.
    pub fn on_idle(&mut self) {
        let restart = WINDOW_MIN.max(self.window_min_bytes);
        if self.window_bytes > restart {
            self.slow_start_bytes = self.slow_start_bytes.max(self.window_bytes);
            self.window_bytes = restart;
        }
    }

    /// The last loss was none.
    pub fn on_spurious(&mut self) {
        self.window_bytes = self.window_bytes.max(self.undo_bytes);
        self.undo_bytes = 0;
        debug_assert!((self.window_min_bytes..=self.window_max_bytes).contains(&self.window_bytes));
    }

    /// The peer's receive buffers are nearly full, or a congestion notification came.
    #[cold]
    pub(crate) fn on_pressure(&mut self, now: Nanos) {
        self.halve(now, self.rtt);
        self.undo_bytes = 0;
    }

    /// Halves the window, unless that was done within `pause`.
    fn halve(&mut self, now: Nanos, pause: Nanos) {
        if now.since(self.halved_at) >= pause {
            self.halved_at = now;
            self.window_bytes = (self.window_bytes / 2).max(self.window_min_bytes);
            self.slow_start_bytes = 0;
        }
        debug_assert!((self.window_min_bytes..=self.window_max_bytes).contains(&self.window_bytes));
    }

    /// The window; sends are not paced.
    #[inline]
    pub fn limits(&self) -> SendLimits {
        SendLimits::unpaced(self.window_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RATE_UNPACED;

    const MAX: u64 = 512 << 10;
    /// Two packets are [`WINDOW_MIN`].
    const MTU: u64 = WINDOW_MIN / 2;

    fn ack(acked_bytes: u64) -> AckSample {
        AckSample { acked_bytes, ..AckSample::default() }
    }

    fn window(controller: &Aimd) -> u64 {
        controller.limits().window_bytes
    }

    #[test]
    fn the_window_begins_at_its_maximum_and_never_below_the_minimum() {
        assert_eq!(window(&Aimd::new(MAX, MTU)), MAX);
        assert_eq!(window(&Aimd::new(WINDOW_MIN, MTU)), WINDOW_MIN);
        assert_eq!(window(&Aimd::new(1, MTU)), WINDOW_MIN);
        let limits = Aimd::new(MAX, MTU).limits();
        assert_eq!((limits.rate_bps, limits.burst_bytes), (RATE_UNPACED, MAX));
    }

    #[test]
    fn losses_within_the_pause_halve_once() {
        let mut controller = Aimd::new(MAX, MTU);
        let first = Nanos::from_ms(10);
        controller.on_loss(first);
        controller.on_loss(first);
        controller.on_loss(Nanos(first.0 + HALVE_PAUSE.0 - 1));
        assert_eq!(window(&controller), MAX / 2);
        controller.on_loss(first + HALVE_PAUSE);
        assert_eq!(window(&controller), MAX / 4);
    }

    #[test]
    fn a_loss_within_the_pause_after_the_epoch_is_ignored() {
        let mut controller = Aimd::new(MAX, MTU);
        controller.on_loss(Nanos(HALVE_PAUSE.0 - 1));
        assert_eq!(window(&controller), MAX);
        controller.on_loss(HALVE_PAUSE);
        assert_eq!(window(&controller), MAX / 2);
    }

    #[test]
    fn halving_stops_at_the_minimum() {
        let mut controller = Aimd::new(3 * WINDOW_MIN, MTU);
        let mut seen = Vec::new();
        for ms in 1..5 {
            controller.on_loss(Nanos::from_ms(10 * ms));
            seen.push(window(&controller));
        }
        assert_eq!(seen, [3 * WINDOW_MIN / 2, WINDOW_MIN, WINDOW_MIN, WINDOW_MIN]);
    }

    #[test]
    fn a_window_of_acknowledged_bytes_adds_the_increase() {
        let mut controller = Aimd::new(MAX, MTU);
        controller.on_loss(Nanos::from_ms(10));
        controller.on_ack(Nanos(0), &ack(MAX / 2));
        assert_eq!(window(&controller), MAX / 2 + INCREASE_BYTES);
        controller.on_ack(Nanos(0), &ack(0));
        assert_eq!(window(&controller), MAX / 2 + INCREASE_BYTES);
        controller.on_ack(Nanos(0), &ack(MAX * 1000));
        assert_eq!(window(&controller), MAX);
    }

    #[test]
    fn a_path_begins_with_ten_packets_and_doubles_until_the_first_loss() {
        let mut controller = Aimd::starting(MAX, 1024);
        assert_eq!(window(&controller), 10 << 10);
        controller.on_ack(Nanos(0), &ack(10 << 10));
        assert_eq!(window(&controller), 20 << 10);
        controller.on_loss(HALVE_PAUSE);
        controller.on_ack(HALVE_PAUSE, &ack(1 << 10));
        assert_eq!(window(&controller), 11 << 10, "no more than what was acknowledged");
        controller.on_ack(HALVE_PAUSE, &ack(11 << 10));
        assert_eq!(window(&controller), 22 << 10);
        controller.on_ack(HALVE_PAUSE, &ack(22 << 10));
        assert_eq!(window(&controller), (22 << 10) + INCREASE_BYTES);
        (2..20).for_each(|ms| controller.on_loss(Nanos::from_ms(ms)));
        assert_eq!(window(&controller), 2 << 10);
        controller.on_ack(HALVE_PAUSE, &AckSample { is_recovering: true, ..ack(2 << 10) });
        assert_eq!(window(&controller), 2 << 10, "not while losses are repaired");
    }

    /// The window sequence of the code that this controller replaced (`Path::moved` and `Path::lost` of the engine), kept as
    /// arithmetic of its own: 20,000 random acknowledgements and losses give the same window after each.
    #[test]
    fn the_window_sequence_is_that_of_the_former_path() {
        let mut rng = burst_base::rng::Rng::new(7);
        for window_max in [1, WINDOW_MIN, 100_001, MAX, 64 << 20] {
            let max = window_max.max(64 << 10);
            let (mut former, mut halved_at, mut now) = (max, 0u64, 0u64);
            let mut controller = Aimd::new(window_max, MTU);
            for _ in 0..4_000 {
                now += rng.below(700_000);
                if rng.below(10) == 0 {
                    if now - halved_at >= 1_000_000 {
                        halved_at = now;
                        former = (former / 2).max(64 << 10);
                    }
                    controller.on_loss(Nanos(now));
                } else {
                    let acked = rng.below(256 << 10);
                    former = (former + ((16 << 10) * acked / former).min(acked)).min(max);
                    controller.on_ack(Nanos(0), &ack(acked));
                }
                assert_eq!(window(&controller), former);
            }
        }
    }
}
