//! CUBIC: a window that grows in time, not in round trips, and is reduced by losses, marks and congestion notifications.
//!
//! RFC 9438 for networks that TCP uses, too: after a reduction at window W the window returns to W along C (t - K)³ + W, and is
//! never smaller than a Reno sender's would be. Segments of [`SEGMENT_MIN`] bytes are the unit, so that a RoCE path MTU of 1024
//! grows as TCP does on the same link.
//!
//! In short round trips it grows slower than Reno's (`growth`): there windows have few packets at a shared bottleneck, and the
//! share of packets that is lost rises with the square of the growth for each packet. That share is growth / (W² (1 - `beta`)), W
//! being the window in segments at which losses keep it; so growth falls with W² below four segments, where more senders meet
//! than the queue has room for, if there is a queue ([`QUEUE_DELAY`]): losses in short round trips are none of congestion.
//!
//! * **Start.** `initial_packets`, then a doubling for each round trip (slow start). A delay that exceeds the smallest one by an
//!   eighth, at least [`DELAY_MIN`], slows the growth to a quarter for [`CSS_ROUNDS`] round trips, then ends slow start, unless
//!   the delay has fallen again (HyStart++, RFC 9406; the least is smaller than its 4 ms).
//! * **Reductions.** By `beta` for a loss or a notification, by [`BETA_MARK`] for marks (RFC 8511); at most once in a round trip.
//!   A time-out leaves `initial_packets`, the next one without progress two packets, and slow start leads back to where the first
//!   loss of the flight would have led (RFC 5681, 3.1). A loss that was none is undone.
//! * **Recovery.** The window does not grow while packets are missing, nor for a round trip after a reduction. After a time-out
//!   it does, up to where slow start ends, if a round trip that was measured since shows no queue, and after a second one without
//!   an acknowledgement in any case: the path carried nothing, all that was in flight is missing, and comes again by that growth
//!   (RFC 5681, 3.1). The first round trip that is measured after a time-out replaces the smoothed one: that of a queue that has
//!   gone would pace the repetition of the flight.
//! * **Pacing.** A window leaves in four fifths of a round trip, in slow start in half of one, so that no burst of a whole window
//!   meets a short queue. Rates above [`RATE_PACED_MAX`], or that of the link, are not
//!   paced: bursts are shorter than a timer is exact, or the link itself paces.
//! * **Floor.** Two packets are always in flight. A smaller window is kept as a rate.
//! * **Idle.** After [`IDLE_MIN`] without packets in flight the window is at most [`RESTART_BYTES`], and slow start leads back to
//!   what the path bore before. After [`FORGOTTEN_AFTER`] it begins as on a new path, with nothing known of that.
//!
//! **The peer's receive buffers** have a window of their own: software receivers drop packets when a socket buffer is full, and
//! no switch marks that. [`AckSample::pressure`] halves it at most once in a round trip; it grows by [`ENDPOINT_INCREASE`] for
//! each window of acknowledged bytes. Losses of which the peer says that they happened there do not change the window of the
//! network.

use crate::api::{AckSample, LossKind, PRESSURE_LOST, RATE_UNPACED, SendLimits};
use crate::math::{bounded, burst_of, cube_root};
use crate::params::{Parameter, ParameterUnit, Params};
use burst_base::Nanos;
use std::sync::Arc;

/// What can be set, in the order of the values in [`Params`].
pub(crate) const PARAMETERS: [Parameter; 3] = [
    Parameter::new(
        "beta",
        ParameterUnit::Fraction,
        (500_000, 900_000),
        700_000,
        "what a loss leaves of the window (RFC 9438, 4.6)",
    ),
    Parameter::new(
        "growth",
        ParameterUnit::Fraction,
        (100_000, 1_000_000),
        250_000,
        "share of Reno's growth (RFC 9438, 4.3) in round trips far below 10 ms; all of it from there on",
    ),
    Parameter::new(
        "initial_packets",
        ParameterUnit::Count,
        (2, 64),
        10,
        "window at the beginning, in packets (RFC 6928)",
    ),
];

/// C of RFC 9438, in segments per second cubed.
const C: f64 = 0.4;
/// From this round trip on a window grows as Reno's in avoiding congestion.
const GROWTH_RTT: Nanos = Nanos::from_ms(10);
/// Below so many segments a window grows by the square of its share of them, so that the share of packets that is lost at a
/// bottleneck with more senders than its queue has packets does not rise further.
const SMALL_SEGMENTS: f64 = 4.0;
/// The smallest such factor: that of half a segment.
const SMALL_GROWTH: f64 = 1.0 / 64.0;
/// There is a queue where a round trip takes so many times the smallest, and so much longer. Fewer would take the own packets for
/// a queue, or the time that software at both ends waits for a processor.
const QUEUE_TRIPS: f32 = 2.0;
/// The queue of 50 KB at 300 Mbit/s takes 1.3 ms.
const QUEUE_DELAY: Nanos = Nanos::from_us(500);
/// It is used below the floor of two packets, too, where a round trip takes so long: senders that began in a full queue have
/// never seen the path without it.
const QUEUE_RTT: Nanos = Nanos::from_ms(1);
/// What marks leave of the window (RFC 8511).
const BETA_MARK: f64 = 0.85;
/// Smallest segment in bytes: TCP's at an MTU of 1500.
pub const SEGMENT_MIN: u64 = 1448;
/// Least increase of the delay that ends slow start.
pub const DELAY_MIN: Nanos = Nanos::from_ms(2);
/// Most of it.
const DELAY_MAX: Nanos = Nanos::from_ms(16);
/// Round trips of slow growth before slow start ends.
pub const CSS_ROUNDS: u32 = 5;
/// Slow growth is slow start's divided by this.
const CSS_DIVISOR: f64 = 4.0;
/// Packets that may always be in flight.
const FLOOR_PACKETS: f64 = 2.0;
/// Smallest window in packets; below the floor it is a rate.
const PACKETS_MIN: f64 = 0.125;
/// A window in half of a round trip, or in four fifths of one.
const GAINS: [f64; 2] = [2.0, 1.25];
/// Highest rate that is paced, in bits per second.
pub const RATE_PACED_MAX: f64 = 8e9;
/// A burst lasts as long as this at the rate.
const BURST_SECONDS: f64 = 250e-6;
/// Time without packets in flight after which the window is not trusted, unless four round trips are longer.
pub const IDLE_MIN: Nanos = Nanos::from_ms(100);
/// Time without packets in flight after which nothing that was known of the network counts (RFC 7661 has a limit, too).
pub const FORGOTTEN_AFTER: Nanos = Nanos::from_ms(1_000);
/// Window after [`IDLE_MIN`], in bytes, where the path has borne it.
pub const RESTART_BYTES: u64 = 64 << 10;
/// Growth of the window of the peer's buffers, in bytes for each window of acknowledged bytes.
pub const ENDPOINT_INCREASE: u64 = 16 << 10;
/// A round trip that was not measured yet, for the distance of two reductions.
const RTT_UNKNOWN: Nanos = Nanos::from_ms(1);
/// Longest round trip that is believed.
const RTT_MAX: u64 = 10_000_000_000;

#[derive(Debug, PartialEq)]
struct CubicSettings {
    beta: f64,
    growth: f64,
    initial: f64,
    window_max: f64,
    mtu: f64,
    segment: f64,
    /// Rates from here on are not paced.
    rate_max: f64,
}

/// The window before a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Undo {
    window: f32,
    threshold: f32,
    peak: f32,
}

/// State of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Cubic {
    settings: Arc<CubicSettings>,
    /// In bytes.
    window: f64,
    /// Slow start ends here.
    threshold: f64,
    /// Window of a Reno sender since the last reduction (RFC 9438, 4.3).
    reno: f64,
    /// The window at the last reduction, to which growth returns.
    peak: f32,
    /// Seconds from the last reduction until it is reached.
    k: f32,
    /// Window of the peer's receive buffers.
    endpoint: f32,
    /// Smoothed round trip and the smallest, in nanoseconds; 0 before the first.
    srtt: f32,
    rtt_min: f32,
    /// Bytes to be acknowledged until slow growth ends slow start; 0: growth is not slow.
    css_left: f32,
    undo: Undo,
    /// When the window was last reduced; growth is counted from then.
    reduced_at: Nanos,
    /// When the peer was last under pressure, and when it has last lost packets in its buffers.
    pressed_at: Nanos,
    overflowed_at: Nanos,
    /// What follows from windows and round trip, because it is asked for more often than they change: bytes in flight, and
    /// bits per second; [`RATE_UNPACED`] for none.
    window_bytes: u64,
    rate_bps: u64,
    /// An acknowledgement with fewer bytes in flight changes nothing, unless it reports something.
    used_from: u64,
    /// Time-outs since the last acknowledgement.
    timeouts: u8,
    /// The window was reduced once at least: `reduced_at` is a time.
    is_reduced: bool,
    /// Bytes were acknowledged since the last reduction.
    has_progress: bool,
    /// The last reduction was that of a time-out, and of a second one without an acknowledgement.
    is_after_timeout: bool,
    is_after_timeouts: bool,
    /// What was measured before a time-out or a long idle time: the next measurement takes its place.
    is_srtt_old: bool,
}

impl Cubic {
    pub(crate) fn new(params: &Params, line_rate: f64, mtu: u64) -> Cubic {
        let (window_max, mtu) = (params.window_max_bytes.max(2 * mtu) as f64, mtu as f64);
        let initial = bounded(params.number("initial_packets") * mtu, FLOOR_PACKETS * mtu, window_max);
        let beta = params.fraction("beta");
        Cubic {
            settings: Arc::new(CubicSettings {
                beta,
                growth: params.fraction("growth"),
                initial,
                window_max,
                mtu,
                segment: mtu.max(SEGMENT_MIN as f64),
                rate_max: line_rate.min(RATE_PACED_MAX),
            }),
            window: initial,
            threshold: window_max,
            reno: 0.0,
            peak: 0.0,
            k: 0.0,
            endpoint: window_max as f32,
            srtt: 0.0,
            rtt_min: 0.0,
            css_left: 0.0,
            undo: Undo::default(),
            reduced_at: Nanos(0),
            pressed_at: Nanos(0),
            overflowed_at: Nanos(0),
            window_bytes: initial as u64,
            rate_bps: RATE_UNPACED,
            used_from: 0,
            timeouts: 0,
            is_reduced: false,
            has_progress: true,
            is_after_timeout: false,
            is_after_timeouts: false,
            is_srtt_old: false,
        }
    }

    /// Whether an acknowledgement that reports nothing changes nothing, if `used` bytes were in flight and none waited for room.
    #[inline]
    pub(crate) fn ignores(&self, used: u64) -> bool {
        used < self.used_from
    }

    /// An acknowledgement, with or without acknowledged bytes.
    pub(crate) fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        if let Some(rtt) = sample.rtt {
            self.measured(rtt);
        }
        if sample.is_peer_congested() {
            self.on_pressure(now, sample.pressure);
        }
        if sample.ce_packets > 0 {
            self.reduce(now, BETA_MARK);
        }
        if sample.acked_bytes == 0 {
            self.on_repaired(sample.packets);
            return self.set_rate();
        }
        // An acknowledgement that comes together with a time-out is of packets that were sent before it.
        if self.timeouts == 0 || now > self.reduced_at {
            (self.timeouts, self.has_progress) = (0, true);
        }
        let max = self.settings.window_max;
        let acked = sample.acked_bytes as f64;
        if !sample.is_peer_congested() {
            let endpoint = f64::from(self.endpoint);
            let increase = (ENDPOINT_INCREASE as f64 * acked / endpoint).min(acked);
            self.endpoint = (endpoint + increase).min(max) as f32;
        }
        let is_recent = self.is_reduced && now.since(self.reduced_at) < self.round_trip();
        if (!sample.is_recovering || self.is_returning()) && !is_recent {
            let used = sample.inflight_bytes as f64 + acked;
            self.grow(now, acked, if sample.is_full { used.max(self.window) } else { used });
        }
        self.set_rate();
    }

    /// The peer has received packets that acknowledge nothing new: repairs of READ responses, which do not count as in flight.
    fn on_repaired(&mut self, packets: u32) {
        if packets > 0 && self.is_after_timeout && self.window < self.threshold {
            self.window = (self.window + f64::from(packets) * self.settings.mtu).min(self.threshold);
        }
    }

    /// Whether the window grows although packets are missing: all that was in flight before a time-out is. After one time-out, if
    /// a round trip that was measured since shows no queue.
    fn is_returning(&self) -> bool {
        let is_free = self.is_after_timeout && !self.is_srtt_old && !self.has_queue();
        (self.is_after_timeouts || is_free) && self.window < self.threshold
    }

    /// Time between two reductions.
    fn round_trip(&self) -> Nanos {
        if self.srtt == 0.0 { RTT_UNKNOWN } else { Nanos(self.srtt as u64) }
    }

    fn measured(&mut self, rtt: Nanos) {
        let rtt = rtt.0.clamp(1, RTT_MAX) as f32;
        let is_first = self.srtt == 0.0 || std::mem::take(&mut self.is_srtt_old);
        self.srtt = if is_first { rtt } else { self.srtt + (rtt - self.srtt) / 8.0 };
        self.rtt_min = if self.rtt_min == 0.0 { rtt } else { self.rtt_min.min(rtt) };
        if self.window >= self.threshold {
            return;
        }
        let tolerated = (self.rtt_min / 8.0).clamp(DELAY_MIN.0 as f32, DELAY_MAX.0 as f32);
        if rtt < self.rtt_min + tolerated {
            self.css_left = 0.0;
        } else if self.css_left == 0.0 {
            self.css_left = self.window as f32 * CSS_ROUNDS as f32;
        }
    }

    /// `acked` bytes of `inflight` were acknowledged. A window that was not used proves nothing; of one that has no room for a
    /// whole packet more, that part was used.
    fn grow(&mut self, now: Nanos, acked: f64, inflight: f64) {
        let is_slow_start = self.window < self.threshold;
        if inflight < self.used_from() {
            return;
        }
        self.window = match is_slow_start {
            true => self.slow_start(acked),
            false => self.avoid_congestion(now, acked),
        };
        self.window = bounded(self.window, self.least(), self.settings.window_max);
    }

    /// Bytes in flight from which on the window is used.
    fn used_from(&self) -> f64 {
        let share = if self.window < self.threshold { 0.5 } else { 0.75 };
        self.window * share - self.settings.mtu
    }

    fn slow_start(&mut self, acked: f64) -> f64 {
        if self.css_left == 0.0 {
            return (self.window + acked).min(self.threshold.max(self.window));
        }
        self.css_left = (self.css_left - acked as f32).max(0.0);
        let window = self.window + acked / CSS_DIVISOR;
        if self.css_left == 0.0 {
            self.threshold = window;
        }
        window
    }

    /// RFC 9438, 4.2 to 4.5.
    fn avoid_congestion(&mut self, now: Nanos, acked: f64) -> f64 {
        let CubicSettings { beta, growth, segment, .. } = *self.settings;
        if !self.is_reduced || self.reno == 0.0 {
            self.begin_epoch(now, self.window);
        }
        let peak = f64::from(self.peak);
        let share = (acked / self.window).min(1.0);
        let alpha = if self.reno < peak { 3.0 * (1.0 - beta) / (1.0 + beta) } else { 1.0 };
        let part = bounded(f64::from(self.srtt) / GROWTH_RTT.0 as f64, growth, 1.0);
        let small = self.small_growth();
        self.reno += small * part * alpha * segment * share;
        let time = (now.since(self.reduced_at).0 as f64 + f64::from(self.srtt)) * 1e-9 - f64::from(self.k);
        let target = bounded(peak + C * segment * time * time * time, self.window, 1.5 * self.window);
        (self.window + (target - self.window) * share).max(self.reno.min(self.window + acked))
    }

    /// Whether packets wait on the way, as far as the round trips tell.
    fn has_queue(&self) -> bool {
        self.srtt >= QUEUE_TRIPS * self.rtt_min && self.srtt - self.rtt_min >= QUEUE_DELAY.0 as f32
    }

    /// By what the growth of a small window is multiplied: losses without a queue are no congestion.
    fn small_growth(&self) -> f64 {
        let size = self.window / (SMALL_SEGMENTS * self.settings.segment);
        let is_below_floor = self.window < FLOOR_PACKETS * self.settings.mtu;
        if self.has_queue() || (is_below_floor && self.srtt >= QUEUE_RTT.0 as f32) {
            bounded(size * size, SMALL_GROWTH, 1.0)
        } else {
            1.0
        }
    }

    /// The window is `peak` at most until growth passes it again.
    fn begin_epoch(&mut self, now: Nanos, peak: f64) {
        self.peak = peak as f32;
        self.k = cube_root((peak - self.window).max(0.0) / (C * self.settings.segment)) as f32;
        self.reno = self.window;
        (self.reduced_at, self.is_reduced) = (now, true);
    }

    /// Reduces the window to its `beta`th part, unless that was done less than a round trip ago.
    fn reduce(&mut self, now: Nanos, beta: f64) -> bool {
        if self.is_reduced && now.since(self.reduced_at) < self.round_trip() {
            return false;
        }
        let (before, peak) = (self.window, f64::from(self.peak));
        self.undo = Undo { window: before as f32, threshold: self.threshold as f32, peak: self.peak };
        self.window = (before * beta).max(self.least());
        // A sender that has not come back to its peak leaves room to those that have begun since (fast convergence, 4.7).
        let peak = if before < peak { before * (1.0 + beta) / 2.0 } else { before };
        self.begin_epoch(now, peak);
        (self.threshold, self.css_left) = (self.window, 0.0);
        (self.has_progress, self.is_after_timeout, self.is_after_timeouts) = (false, false, false);
        self.set_rate();
        true
    }

    fn least(&self) -> f64 {
        PACKETS_MIN * self.settings.mtu
    }

    /// Packets were lost.
    pub(crate) fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        if kind == LossKind::Timeout {
            return self.on_timeout(now);
        }
        if self.overflowed_at.0 > 0 && now.since(self.overflowed_at) <= self.round_trip() {
            return self.on_pressure(now, PRESSURE_LOST);
        }
        self.reduce(now, self.settings.beta);
    }

    /// Nothing has come for a whole time-out: what was in flight has left the network.
    fn on_timeout(&mut self, now: Nanos) {
        let packets = match self.timeouts {
            0 => self.settings.initial,
            1 => FLOOR_PACKETS * self.settings.mtu,
            _ => self.window / 2.0,
        };
        let is_recent = self.is_reduced && now.since(self.reduced_at) < self.round_trip();
        if is_recent && self.timeouts > 0 {
            return;
        }
        // Before anything is known of the path, a time-out may be shorter than its round trip. Without progress it is the same
        // flight's, whose loss has set the threshold.
        if self.srtt > 0.0 && self.has_progress {
            self.reduce(now, self.settings.beta);
        }
        self.reduced_at = now;
        (self.is_after_timeout, self.is_after_timeouts) = (true, self.timeouts > 0);
        (self.timeouts, self.is_srtt_old) = (self.timeouts.saturating_add(1), self.srtt > 0.0);
        self.window = self.window.min(packets).max(self.least());
        self.reno = 0.0;
        self.set_rate();
    }

    /// A congestion notification came.
    pub(crate) fn on_cnp(&mut self, now: Nanos) {
        self.reduce(now, self.settings.beta);
        self.undo = Undo::default();
    }

    /// The last loss was none.
    pub(crate) fn on_spurious(&mut self) {
        let undo = std::mem::take(&mut self.undo);
        if undo.window > 0.0 {
            self.window = self.window.max(undo.window.into());
            self.threshold = self.threshold.max(undo.threshold.into());
            self.peak = self.peak.max(undo.peak);
            self.reno = 0.0;
            self.is_reduced = false;
            self.set_rate();
        }
    }

    /// Nothing has been in flight since `since`.
    pub(crate) fn on_idle(&mut self, now: Nanos, since: Nanos) {
        let idle = now.since(since);
        if idle < IDLE_MIN.max(Nanos(4 * self.srtt as u64)) {
            return;
        }
        if idle >= FORGOTTEN_AFTER {
            return self.forget();
        }
        let restart = self.settings.initial.max(RESTART_BYTES as f64);
        if self.window > restart {
            self.threshold = self.threshold.max(self.window);
            (self.window, self.css_left, self.reno) = (restart, 0.0, 0.0);
            self.set_rate();
        }
    }

    /// What is known of the network may be of another one: as at the beginning, but for the rate of the first packets.
    fn forget(&mut self) {
        let CubicSettings { initial, window_max, .. } = *self.settings;
        (self.window, self.threshold, self.css_left) = (initial, window_max, 0.0);
        (self.reno, self.peak, self.undo) = (0.0, 0.0, Undo::default());
        (self.rtt_min, self.is_srtt_old) = (0.0, self.srtt > 0.0);
        (self.is_reduced, self.is_after_timeout, self.is_after_timeouts) = (false, false, false);
        self.set_rate();
    }

    /// The peer's receive buffers are nearly full, or packets were lost there.
    #[cold]
    fn on_pressure(&mut self, now: Nanos, pressure: u8) {
        if pressure >= PRESSURE_LOST {
            self.overflowed_at = now;
        }
        if self.pressed_at.0 == 0 || now.since(self.pressed_at) >= self.round_trip() {
            self.pressed_at = now;
            let floor = FLOOR_PACKETS * self.settings.mtu;
            let used = f64::from(self.endpoint).min(self.window.max(floor));
            self.endpoint = (used / 2.0).max(floor) as f32;
        }
        self.set_rate();
    }

    /// The rate follows window and round trip.
    fn set_rate(&mut self) {
        let CubicSettings { mtu, window_max, rate_max, .. } = *self.settings;
        let window = self.window.min(self.endpoint.into());
        let gain = if window < FLOOR_PACKETS * mtu { 1.0 } else { GAINS[usize::from(window >= self.threshold)] };
        let rate = gain * window * 8e9 / f64::from(self.srtt);
        let is_paced = self.srtt > 0.0 && window < window_max && rate < rate_max;
        self.rate_bps = if is_paced { (rate as u64).max(1) } else { RATE_UNPACED };
        self.window_bytes = window.max(FLOOR_PACKETS * mtu) as u64;
        let is_grown = self.window >= window_max;
        self.used_from = match () {
            () if f64::from(self.endpoint) < window_max || self.timeouts > 0 => 0,
            () if is_grown => u64::MAX,
            () => self.used_from() as u64,
        };
    }

    /// The smaller window, and the rate.
    #[inline]
    pub(crate) fn limits(&self) -> SendLimits {
        let unpaced = SendLimits::unpaced(self.window_bytes);
        if self.rate_bps == RATE_UNPACED {
            return unpaced;
        }
        let burst_bytes = burst_of(self.rate_bps as f64, BURST_SECONDS, self.settings.mtu as u64);
        SendLimits { rate_bps: self.rate_bps, burst_bytes, ..unpaced }
    }

    /// Passes each variable to `visit`.
    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        visit("window_bytes", self.window);
        visit("threshold_bytes", self.threshold);
        visit("peak_bytes", self.peak.into());
        visit("endpoint_bytes", self.endpoint.into());
        visit("rtt_ns", self.srtt.into());
        visit("rtt_min_ns", self.rtt_min.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Algorithm;

    /// A window of one segment grows by a sixteenth of what it would without a queue.
    #[test]
    fn small_windows_grow_slowly_in_a_queue() {
        let growth = |rtts: [Nanos; 2]| {
            let mut c = cubic();
            rtts.into_iter().for_each(|rtt| (0..50).for_each(|_| c.measured(rtt)));
            (c.window, c.threshold) = (SEGMENT_MIN as f64, MTU as f64);
            c.begin_epoch(Nanos(1), SEGMENT_MIN as f64);
            let (before, now) = (c.window, Nanos(1) + rtts[1] + rtts[1]);
            c.on_ack(now, &AckSample { acked_bytes: SEGMENT_MIN, inflight_bytes: SEGMENT_MIN, ..AckSample::default() });
            c.window - before
        };
        let [short, long] = [200, 800].map(Nanos::from_us);
        let (queue, none) = (growth([short, long]), growth([long; 2]));
        assert!(none > 100.0 && (none / queue - 16.0).abs() < 0.5, "{none} and {queue} bytes");
        // Software that waits for its processor is no queue.
        assert_eq!(growth([Nanos::from_us(100), Nanos::from_us(500)]), none);
        // Who began in a full queue has seen no shorter round trip.
        let began_there = growth([RTT + RTT; 2]);
        assert!((none / began_there - 16.0).abs() < 0.5, "{none} and {began_there} bytes");
    }

    const MTU: u64 = 1024;
    const MAX: u64 = 1 << 20;
    const RTT: Nanos = Nanos::from_ms(1);

    fn cubic() -> Cubic {
        Cubic::new(&Params::new(Algorithm::Cubic, MAX), 100e9, MTU)
    }
    fn window(c: &Cubic) -> u64 {
        c.limits().window_bytes
    }
    /// A whole window is acknowledged in each of `trips` round trips, from `begin` on.
    fn run(c: &mut Cubic, begin: Nanos, rtt: Nanos, trips: u64) -> Nanos {
        for k in 0..trips {
            let bytes = window(c);
            let sample = AckSample { rtt: Some(rtt), inflight_bytes: bytes / 2, ..AckSample::default() };
            let at = begin + Nanos(k * rtt.0);
            c.on_ack(at, &AckSample { acked_bytes: bytes / 2, ..sample });
            c.on_ack(at + Nanos(rtt.0 / 2), &AckSample { acked_bytes: bytes - bytes / 2, ..sample });
        }
        begin + Nanos(trips * rtt.0)
    }

    #[test]
    fn a_path_begins_with_ten_packets_and_doubles_in_each_round_trip() {
        let mut c = cubic();
        assert_eq!((window(&c), c.limits().rate_bps), (10 * MTU, RATE_UNPACED));
        run(&mut c, Nanos(1), RTT, 3);
        assert_eq!(window(&c), 80 * MTU);
        // Twice the window in a round trip of a millisecond.
        assert_eq!(c.limits().rate_bps, 80 * MTU * 8 * 2 * 1000);
        run(&mut c, Nanos(1), RTT, 5);
        assert_eq!((window(&c), c.limits().rate_bps), (MAX, RATE_UNPACED), "nothing has ever been lost");
        // A program that sends one packet at a time proves nothing.
        let mut c = cubic();
        (0..100).for_each(|_| c.on_ack(RTT, &AckSample { acked_bytes: MTU, ..AckSample::default() }));
        assert_eq!(window(&c), 10 * MTU);
    }

    #[test]
    fn losses_of_a_round_trip_reduce_once_and_nothing_grows_until_it_has_passed() {
        let mut c = cubic();
        let now = run(&mut c, Nanos(1), RTT, 4);
        assert_eq!(window(&c), 160 * MTU);
        c.on_loss(now, LossKind::Fast);
        c.on_loss(now + Nanos(RTT.0 - 1), LossKind::Fast);
        assert_eq!(window(&c), 112 * MTU);
        let ack = AckSample { acked_bytes: 50 * MTU, inflight_bytes: 100 * MTU, ..AckSample::default() };
        c.on_ack(now + Nanos(RTT.0 - 1), &ack);
        let later = now + RTT + RTT;
        c.on_ack(later, &AckSample { is_recovering: true, ..ack });
        assert_eq!(window(&c), 112 * MTU);
        c.on_ack(later, &ack);
        assert!(c.window > (112 * MTU) as f64 && c.window < (113 * MTU) as f64, "{}", c.window);
        c.on_loss(now + RTT, LossKind::Fast);
        assert!(window(&c) < 80 * MTU);
    }

    /// RFC 9438, 4.2 with its own numbers: at a long round trip the window is C (t - K)³ + W, K being the time to come back to W.
    #[test]
    fn growth_follows_the_cubic_function_of_time() {
        let mut c = Cubic::new(&Params::new(Algorithm::Cubic, 64 << 20), 100e9, SEGMENT_MIN);
        let rtt = Nanos::from_ms(100);
        let mut now = run(&mut c, Nanos(1), rtt, 7);
        let peak = c.window / SEGMENT_MIN as f64;
        c.on_loss(now, LossKind::Fast);
        let reduced = now;
        let k = (peak * 0.3 / 0.4).cbrt();
        let mut last = c.window;
        while now.since(reduced).0 < (k * 1.5e9) as u64 {
            now = run(&mut c, now, rtt, 1);
            let t = now.since(reduced).0 as f64 * 1e-9;
            let expected = 0.4 * (t - k) * (t - k) * (t - k) + peak;
            let got = c.window / SEGMENT_MIN as f64;
            assert!((got - expected).abs() < 0.03 * peak, "{got} after {t} s, {expected} expected");
            assert!(c.window >= last);
            last = c.window;
        }
    }

    #[test]
    fn a_delay_that_grows_ends_slow_start_unless_it_falls_again() {
        let slow = RTT + Nanos::from_ms(5);
        let mut c = cubic();
        let now = run(&mut c, Nanos(1), RTT, 2);
        assert_eq!(window(&c), 40 * MTU);
        let now = run(&mut c, now, slow, 1);
        assert!(window(&c) < 51 * MTU, "{}", window(&c) / MTU);
        // The delay was the host's, not the path's.
        let now = run(&mut c, now, RTT, 1);
        assert!(window(&c) > 80 * MTU && c.threshold == MAX as f64, "{}", window(&c) / MTU);
        run(&mut c, now, slow, 12);
        assert!(c.threshold < MAX as f64 && window(&c) < 400 * MTU, "{}", window(&c) / MTU);
    }

    #[test]
    fn two_packets_may_always_leave_and_less_is_a_rate() {
        let mut c = cubic();
        let mut now = run(&mut c, Nanos(1), RTT, 1);
        for _ in 0..40 {
            now = now + RTT + RTT;
            c.on_loss(now, LossKind::Fast);
        }
        let limits = c.limits();
        assert_eq!((limits.window_bytes, limits.burst_bytes), (2 * MTU, MTU));
        assert_eq!(limits.rate_bps, MTU * 8 * 1000 / 8, "an eighth of a packet in a round trip");
        // The window of two packets is used, so it grows.
        for k in 0..1000 {
            let ack = AckSample { acked_bytes: MTU, inflight_bytes: MTU, rtt: Some(RTT), ..AckSample::default() };
            c.on_ack(now + RTT + Nanos(k * RTT.0), &ack);
        }
        assert!(window(&c) > 2 * MTU, "{:?}", c.limits());
    }

    #[test]
    fn a_timeout_begins_again_and_the_next_without_progress_with_two_packets() {
        let mut c = cubic();
        // Before a round trip is known a time-out may be too early.
        c.on_loss(RTT, LossKind::Timeout);
        assert_eq!((window(&c), c.threshold), (10 * MTU, MAX as f64));
        let now = run(&mut c, RTT, RTT, 5);
        let before = window(&c);
        c.on_loss(now, LossKind::Timeout);
        assert_eq!((window(&c), c.threshold), (10 * MTU, before as f64 * 0.7));
        c.on_loss(now + Nanos(1), LossKind::Timeout);
        assert_eq!(window(&c), 10 * MTU, "another queue pair of the same path");
        c.on_loss(now + RTT, LossKind::Timeout);
        assert_eq!(window(&c), 2 * MTU);
        let now = run(&mut c, now + Nanos(5 * RTT.0), RTT, 6);
        assert!(window(&c) > 60 * MTU, "slow start up to seven tenths of the window before: {}", window(&c));
        // A time-out that was none is undone.
        let before = window(&c);
        c.on_loss(now, LossKind::Timeout);
        c.on_spurious();
        assert_eq!(window(&c), before);
        c.on_spurious();
        assert_eq!(window(&c), before);
    }

    /// The flight comes again packet by packet, and the peer's acknowledgements report holes all the time.
    #[test]
    fn after_a_timeout_the_window_doubles_although_packets_are_missing() {
        let mut c = cubic();
        let now = run(&mut c, Nanos(1), RTT, 5);
        let before = window(&c) as f64;
        c.on_loss(now, LossKind::Timeout);
        c.on_loss(now + RTT + RTT, LossKind::Timeout);
        assert_eq!(window(&c), 2 * MTU);
        let mut at = now + RTT + RTT + RTT + RTT;
        for trip in 1..=4 {
            let bytes = window(&c);
            let sample =
                AckSample { rtt: Some(RTT), inflight_bytes: bytes, is_recovering: true, ..AckSample::default() };
            c.on_ack(at, &AckSample { acked_bytes: bytes, ..sample });
            assert_eq!(window(&c), (2 * MTU) << trip, "round trip {trip}");
            at = at + RTT;
        }
        assert!(c.threshold < 0.75 * before);
        c.on_loss(at, LossKind::Fast);
        let (bytes, left) = (window(&c), AckSample { is_recovering: true, ..AckSample::default() });
        c.on_ack(at + RTT + RTT, &AckSample { acked_bytes: bytes, inflight_bytes: bytes, ..left });
        assert_eq!(window(&c), bytes, "in an ordinary recovery it does not grow");
    }

    #[test]
    fn marks_and_notifications_reduce_and_are_not_undone() {
        for (beta, signal) in [(0.7, true), (0.85, false)] {
            let mut c = cubic();
            let now = run(&mut c, Nanos(1), RTT, 4);
            let before = window(&c);
            match signal {
                true => c.on_cnp(now),
                false => c.on_ack(now, &AckSample { ce_packets: 1, packets: 9, ..AckSample::default() }),
            }
            assert_eq!(window(&c), (before as f64 * beta) as u64);
            if signal {
                c.on_spurious();
                assert_eq!(window(&c), (before as f64 * beta) as u64);
            }
        }
    }

    #[test]
    fn pressure_and_losses_in_the_peers_buffers_leave_the_window_of_the_network() {
        let mut c = cubic();
        let now = run(&mut c, Nanos(1), RTT, 9);
        let pressed = |pressure| AckSample { pressure, rtt: Some(RTT), ..AckSample::default() };
        c.on_ack(now, &pressed(2));
        c.on_ack(now + Nanos(1), &pressed(2));
        assert_eq!((window(&c), c.window), (MAX / 2, MAX as f64));
        c.on_ack(now + RTT, &pressed(3));
        c.on_loss(now + RTT, LossKind::Fast);
        assert_eq!((window(&c), c.window), (MAX / 4, MAX as f64));
        let bytes = window(&c);
        c.on_ack(now + RTT, &AckSample { acked_bytes: bytes, inflight_bytes: bytes, ..AckSample::default() });
        assert_eq!(window(&c), MAX / 4 + ENDPOINT_INCREASE);
        // Long after that a loss is one of the network.
        c.on_loss(now + Nanos(3 * RTT.0), LossKind::Fast);
        assert!(c.window < 0.71 * MAX as f64);
    }

    #[test]
    fn after_a_time_without_packets_slow_start_leads_back() {
        let mut c = cubic();
        let now = run(&mut c, Nanos(1), RTT, 9);
        c.on_idle(now + Nanos::from_ms(99), now);
        assert_eq!(window(&c), MAX);
        c.on_idle(now + IDLE_MIN, now);
        assert_eq!(window(&c), RESTART_BYTES);
        run(&mut c, now + IDLE_MIN, RTT, 4);
        assert_eq!(window(&c), MAX);
    }

    /// A path of 0.1 ms and a short queue had ended slow start at two packets, and the next one, of 20 ms, began with that.
    #[test]
    fn after_a_second_without_packets_nothing_of_the_network_is_known() {
        let mut c = cubic();
        let mut now = run(&mut c, Nanos(1), RTT, 3);
        for _ in 0..20 {
            now = now + RTT + RTT;
            c.on_loss(now, LossKind::Fast);
        }
        assert!(c.threshold < 2.0 * MTU as f64);
        c.on_idle(now + FORGOTTEN_AFTER, now);
        assert_eq!((window(&c), c.threshold), (10 * MTU, MAX as f64));
        let long = Nanos::from_ms(20);
        run(&mut c, now + FORGOTTEN_AFTER, long, 4);
        assert_eq!((window(&c), c.rtt_min, c.srtt), (160 * MTU, long.0 as f32, long.0 as f32));
    }

    /// A flight of a long queue is lost with the link, and the queue is gone when it comes again.
    #[test]
    fn after_a_timeout_the_first_round_trip_counts_and_without_a_queue_the_window_doubles() {
        for (rtt, grows) in [(RTT, true), (Nanos::from_ms(9), false)] {
            let mut c = cubic();
            let now = run(&mut c, Nanos(1), RTT, 1);
            let now = run(&mut c, now, Nanos::from_ms(30), 40);
            c.on_loss(now, LossKind::Timeout);
            assert_eq!(window(&c), 10 * MTU);
            let later = now + Nanos::from_ms(40);
            let missing = AckSample { acked_bytes: MTU, is_recovering: true, rtt: Some(rtt), ..AckSample::default() };
            c.on_ack(later, &AckSample { inflight_bytes: 9 * MTU, ..missing });
            assert_eq!(c.srtt, rtt.0 as f32);
            assert_eq!(window(&c) > 10 * MTU, grows, "{rtt:?}");
        }
    }
}
