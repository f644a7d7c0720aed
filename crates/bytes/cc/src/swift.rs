//! Swift: two windows, which follow the delays of the fabric and of the peer to their targets.
//!
//! Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020. A delay under its
//! target adds `ai` packets for each window acknowledged; a delay d over its target t multiplies the window by
//! max(1 - beta (d - t) / d, 1 - max_mdf), at most once per round trip. The smaller of both windows counts.
//!
//! * The fabric's delay is the round trip without the peer's share. Its target is `base_target` + `min_rtts` times the
//!   smallest round trip seen + flow scaling, fs = clamp(a / sqrt(window) + b, 0, `fs_range`), by which small windows accept
//!   more delay, so that many flows share fairly. `min_rtts` takes the place of the published term per hop, which is
//!   calibrated for one fabric.
//! * A flow that begins while the queue is long takes the queue for a part of the path, accepts more delay than the others, and
//!   would keep most of the link. So each flow looks at the path without its own queue, at the beginning and then after
//!   [`PROBE_TRIPS`], at first more often: for two round trips one packet is in flight. The flow that accepts most delay has
//!   filled the queue, and finds it empty then. Flows that see the delay fall so far join it ([`JOIN_SHARE`]), so that all find
//!   the queue empty. The path may become longer: where the window was below a packet for that long, the smallest round trip of
//!   this time counts.
//! * The peer's delay is [`AckSample::remote_delay`], with the target `endpoint_target`, or an eighth of the smallest round trip
//!   if that is more: the published one is for paths of tens of microseconds. Where the peer's receive buffers are more
//!   than three quarters full ([`AckSample::pressure`]), the delay counts as at least twice the target. The peer says both in
//!   each acknowledgement of the selective repeat family, whether or not that measures a round trip.
//!
//! Marks and congestion notifications are not published. They reduce the window as the largest delay does, once in a round trip.
//!
//! A loss that was none is undone, unless the window was reduced again since.
//!
//! A window of 64 packets or more leaves over a round trip ([`crate::spread`]). One under one packet is sent as one packet per
//! round trip / window, so sends are paced. Packets that were sent twice measure no round trip. While they are all there is, a
//! window under one packet doubles when one is acknowledged; otherwise it would stay as small as it is, since what follows
//! waits behind them. Responses to READs of the standard family are acknowledged by nothing at all, and acknowledgements may be
//! lost: without a word of the peer for two packets' time and a round trip, both windows double as long as they are under one
//! packet.

use crate::api::{AckSample, LossKind, SendLimits};
use crate::math::bounded;
use crate::params::{Parameter, ParameterUnit, Params};
use crate::spread::{GAINS, PACKETS_MIN_OF_DELAY, SpreadRule, WindowSpread};
use burst_base::Nanos;
use std::sync::Arc;

/// What can be set, in the order of the values in [`Params`].
pub(crate) const PARAMETERS: [Parameter; 10] = {
    use ParameterUnit::{Count, Fraction, Time};
    const US: u64 = 1_000;
    [
        Parameter::new(
            "base_target",
            Time,
            (US, 1_000_000 * US),
            25 * US,
            "delay of the fabric that is always accepted",
        ),
        Parameter::new("min_rtts", Count, (0, 16), 2, "how often the smallest round trip seen is added to base_target"),
        Parameter::new("endpoint_target", Time, (US, 1_000_000 * US), 100 * US, "delay of the peer that is accepted"),
        Parameter::new("ai", Count, (1, 64), 1, "packets added for each window acknowledged"),
        Parameter::new("beta", Fraction, (10_000, 1_000_000), 800_000, "strength of a decrease"),
        Parameter::new(
            "max_mdf",
            Fraction,
            (10_000, 900_000),
            500_000,
            "largest decrease at once, as a share of the window",
        ),
        Parameter::new("fs_range", Time, (0, 1_000_000 * US), 125 * US, "largest delay that flow scaling adds"),
        Parameter::new(
            "fs_min",
            Fraction,
            (1_000, 1_000_000),
            100_000,
            "window in packets at which flow scaling is largest",
        ),
        Parameter::new("fs_max", Count, (2, 1_000_000), 100, "window in packets at which flow scaling ends"),
        Parameter::new("min_window", Fraction, (1_000, 1_000_000), 1_000, "smallest window in packets"),
    ]
};

/// Timeouts in a row after which the window is the smallest.
const TIMEOUTS_MAX: u32 = 5;
/// Longest time from one packet to the next that losses lead to, in nanoseconds. With the smallest window, a packet in 1000 round
/// trips, packets would wait for their turn longer than queue pairs wait for their acknowledgement: more timeouts would follow.
const LOSS_GAP: f64 = 1_000_000.0;
/// Longest time from one packet to the next that anything leads to, in nanoseconds. The round trip of a full queue, at which the
/// window was reduced, is no measure of the time after which to try again.
const GAP_MAX: f64 = 16_000_000.0;
/// A delay of the peer that is at most this part of the smallest round trip is always accepted: what it costs is less than what a
/// smaller window would.
const ENDPOINT_PART: f64 = 8.0;
/// Round trips from one look at the path without an own queue to the next: after the first, doubled until the last.
const PROBE_TRIPS: [u8; 2] = [4, 128];
/// A delay that falls below this share of the target shows that another flow looks at the path.
const JOIN_SHARE: f64 = 0.85;
/// At least this share of the time to the next look has passed since the last one then.
const JOIN_AFTER: f64 = 0.5;
/// Packets in flight meanwhile, and round trips until it ends.
const PROBE_PACKETS: f64 = 1.0;
const PROBE_LASTS: f64 = 2.0;
/// A round trip that was not measured yet, for the distance of two decreases and for pacing.
const RTT_UNKNOWN: f64 = 100_000.0;
/// Shortest round trip with which the controller calculates, in nanoseconds.
const RTT_MIN: f64 = 1_000.0;

/// Parameters in the units of the arithmetic: nanoseconds and packets.
#[derive(Debug, PartialEq)]
struct SwiftSettings {
    base_target: f64,
    min_rtts: f64,
    endpoint_target: f64,
    ai: f64,
    beta: f64,
    max_mdf: f64,
    fs_range: f64,
    fs_a: f64,
    fs_b: f64,
    window_min: f64,
    window_max: f64,
    /// Bits per second of the link.
    line_rate: f64,
    mtu: u64,
}

/// One of the two windows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DelayWindow {
    packets: f64,
    decreased_at: Nanos,
}

/// State of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Swift {
    settings: Arc<SwiftSettings>,
    fabric: DelayWindow,
    endpoint: DelayWindow,
    /// The last round trip in nanoseconds.
    rtt: f64,
    rtt_min: f64,
    /// The smallest round trip since the last look at the path.
    rtt_min_next: f64,
    /// When the next look at the path without an own queue begins, or when the present one has begun.
    probe_at: Nanos,
    is_probing: bool,
    /// The round trip when the present one began.
    probe_rtt: f32,
    /// Round trips until the next look, and how long they take, in nanoseconds.
    probe_trips: u8,
    probe_wait: f32,
    /// The window was a packet or more since the last look.
    was_large: bool,
    /// When a round trip was measured last, or the window doubled without.
    measured_at: Nanos,
    /// When the peer said anything of its delay last, or the windows doubled without.
    heard_at: Nanos,
    timeouts: u32,
    /// The fabric's window in packets before the last loss; 0 if other signs of congestion came since.
    undo: f64,
    spread: WindowSpread,
}

impl Swift {
    pub(crate) fn new(params: &Params, now: Nanos, line_rate: f64, mtu: u64) -> Swift {
        let (fs_range, fs_min, fs_max) =
            (params.number("fs_range"), params.fraction("fs_min"), params.number("fs_max"));
        let fs_a = fs_range / (1.0 / fs_min.sqrt() - 1.0 / fs_max.sqrt());
        let window_max = params.window_max_bytes.max(mtu) as f64 / mtu as f64;
        let window = DelayWindow { packets: window_max, decreased_at: now };
        let settings = SwiftSettings {
            base_target: params.number("base_target"),
            min_rtts: params.number("min_rtts"),
            endpoint_target: params.number("endpoint_target"),
            ai: params.number("ai"),
            beta: params.fraction("beta"),
            max_mdf: params.fraction("max_mdf"),
            fs_range,
            fs_a,
            fs_b: -fs_a / fs_max.sqrt(),
            window_min: params.fraction("min_window"),
            window_max,
            line_rate,
            mtu,
        };
        let settings = Arc::new(settings);
        Swift {
            settings,
            fabric: window,
            endpoint: window,
            rtt: RTT_UNKNOWN,
            rtt_min: f64::MAX,
            rtt_min_next: f64::MAX,
            probe_at: Nanos(0),
            is_probing: false,
            probe_rtt: 0.0,
            probe_trips: PROBE_TRIPS[0],
            probe_wait: 0.0,
            was_large: true,
            measured_at: now,
            heard_at: now,
            timeouts: 0,
            undo: 0.0,
            spread: WindowSpread::default(),
        }
    }

    /// Bytes were acknowledged.
    pub(crate) fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        if sample.acked_bytes > 0 {
            self.timeouts = 0;
        }
        // Repairs of responses acknowledge nothing new; what the peer has received counts instead.
        let packets = match sample.acked_bytes {
            0 => f64::from(sample.packets),
            bytes => bytes as f64 / self.settings.mtu as f64,
        };
        if let Some(rtt) = sample.rtt {
            self.measured(now, (rtt.0 as f64).max(RTT_MIN), packets);
        } else if self.is_probing {
            // What is sent again measures nothing.
            self.probe(now, false);
        }
        let has_arrived = sample.acked_bytes > 0 || sample.packets > 0;
        if sample.rtt.is_none() && has_arrived && self.is_unmeasured(now) {
            self.double(now);
        }
        let has_report = sample.packets > 0 || sample.remote_delay.0 > 0 || sample.pressure > 0;
        if sample.rtt.is_none() && !has_report {
            return;
        }
        self.heard_at = now;
        if sample.ce_packets > 0 {
            self.on_cnp(now);
        }
        let target = self.endpoint_target();
        let mut remote = sample.remote_delay.0 as f64;
        if sample.is_peer_congested() {
            remote = remote.max(2.0 * target);
        }
        self.endpoint.follow(now, self.rtt, &self.settings, (remote, target, packets));
    }

    /// A round trip of `rtt` nanoseconds was measured when `packets` were acknowledged.
    fn measured(&mut self, now: Nanos, rtt: f64, packets: f64) {
        self.rtt_min = self.rtt_min.min(rtt);
        self.rtt_min_next = self.rtt_min_next.min(rtt);
        let (target, before) = (self.fabric_target(), self.fabric.packets);
        let falls = rtt < JOIN_SHARE * target && self.rtt >= JOIN_SHARE * target;
        (self.rtt, self.measured_at) = (rtt, now);
        self.spread.measured(Nanos(rtt as u64));
        self.probe(now, falls);
        self.was_large |= before >= 1.0;
        self.fabric.follow(now, rtt, &self.settings, (rtt, target, packets));
        if self.fabric.packets < before {
            self.undo = 0.0;
        }
    }

    /// Begins or ends a look at the path without an own queue, if it is time; `falls`: another flow has begun one.
    fn probe(&mut self, now: Nanos, falls: bool) {
        if self.settings.min_rtts == 0.0 {
            return;
        }
        if self.is_probing {
            if now.since(self.probe_at).0 as f64 >= PROBE_LASTS * f64::from(self.probe_rtt) {
                self.end_probe(now);
            }
            return;
        }
        let left = self.probe_at.since(now).0 as f64;
        if left == 0.0 || (falls && left < (1.0 - JOIN_AFTER) * f64::from(self.probe_wait)) {
            (self.is_probing, self.probe_at, self.probe_rtt) = (true, now, self.rtt as f32);
        }
    }

    /// The look has ended: what was measured counts, and the next one has its time.
    fn end_probe(&mut self, now: Nanos) {
        self.is_probing = false;
        self.probe_wait = f32::from(self.probe_trips) * self.rtt as f32;
        self.probe_at = now + Nanos(self.probe_wait as u64);
        if !self.was_large && self.probe_trips == PROBE_TRIPS[1] && self.rtt_min_next < f64::MAX {
            self.rtt_min = self.rtt_min_next;
        }
        self.probe_trips = self.probe_trips.saturating_mul(2).min(PROBE_TRIPS[1]);
        (self.rtt_min_next, self.was_large) = (f64::MAX, false);
    }

    /// Time from one packet to the next with a window of `packets`, less than one, in nanoseconds.
    fn gap(&self, packets: f64) -> f64 {
        (self.rtt / packets).min(GAP_MAX)
    }

    /// Whether the last packet before this time, of a window under one packet, has measured nothing.
    fn is_unmeasured(&self, now: Nanos) -> bool {
        let packets = self.fabric.packets;
        packets < 1.0 && now.since(self.measured_at).0 as f64 >= self.gap(packets)
    }

    /// When windows under one packet double if the peer says nothing until then.
    pub(crate) fn next_deadline(&self) -> Nanos {
        let packets = self.fabric.packets.min(self.endpoint.packets);
        if packets >= 1.0 {
            return Nanos::NEVER;
        }
        self.measured_at.max(self.heard_at) + Nanos((2.0 * self.gap(packets) + self.rtt) as u64)
    }

    /// The peer has said nothing for long.
    pub(crate) fn on_timer(&mut self, now: Nanos) {
        if self.next_deadline() <= now {
            self.heard_at = now;
            self.double(now);
            self.endpoint.double(self.rtt, &self.settings);
        }
    }

    /// Doubles the fabric's window, if it is under one packet.
    fn double(&mut self, now: Nanos) {
        self.measured_at = now;
        self.fabric.double(self.rtt, &self.settings);
    }

    /// The delay of the fabric that is accepted, in nanoseconds.
    fn fabric_target(&self) -> f64 {
        let SwiftSettings { base_target, min_rtts, fs_range, fs_a, fs_b, .. } = *self.settings;
        let scaling = bounded(fs_a / self.fabric.packets.sqrt() + fs_b, 0.0, fs_range);
        let rtt_min = if self.rtt_min == f64::MAX { RTT_UNKNOWN } else { self.rtt_min };
        base_target + min_rtts * rtt_min + scaling
    }

    /// The delay of the peer that is accepted, in nanoseconds.
    fn endpoint_target(&self) -> f64 {
        let part = if self.rtt_min == f64::MAX { 0.0 } else { self.rtt_min / ENDPOINT_PART };
        self.settings.endpoint_target.max(part)
    }

    /// Packets were lost.
    pub(crate) fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        if self.is_probing {
            self.end_probe(now);
        }
        let least = (self.rtt / LOSS_GAP).min(self.fabric.packets);
        if kind == LossKind::Timeout {
            self.timeouts = self.timeouts.saturating_add(1);
            if self.timeouts >= TIMEOUTS_MAX {
                self.fabric = DelayWindow { packets: self.settings.window_min.max(least), decreased_at: now };
                self.undo = 0.0;
                return;
            }
        }
        self.undo = self.fabric.packets;
        self.fabric.cut(now, self.rtt, 1.0 - self.settings.max_mdf, &self.settings);
        self.fabric.packets = self.fabric.packets.max(least);
    }

    /// The last loss was none.
    pub(crate) fn on_spurious(&mut self) {
        self.fabric.resize(self.fabric.packets.max(self.undo), &self.settings);
        self.undo = 0.0;
    }

    /// A congestion notification packet: the largest decrease.
    pub(crate) fn on_cnp(&mut self, now: Nanos) {
        self.undo = 0.0;
        self.fabric.cut(now, self.rtt, 1.0 - self.settings.max_mdf, &self.settings);
    }

    pub(crate) fn limits(&self) -> SendLimits {
        let most = if self.is_probing { PROBE_PACKETS } else { f64::MAX };
        let packets = self.fabric.packets.min(self.endpoint.packets).min(most);
        let mtu = self.settings.mtu;
        if packets >= 1.0 {
            let window = (packets * mtu as f64).max(mtu as f64);
            let (packets_min, line_rate) = (PACKETS_MIN_OF_DELAY, self.settings.line_rate);
            return self.spread.limits(window, &SpreadRule { gain: GAINS[0], packets_min, mtu, line_rate });
        }
        // A round trip may be shorter than a packet, if it was measured by a short one.
        let rate = (mtu as f64 * 8.0 / (self.gap(packets) * 1e-9)).min(self.settings.line_rate);
        SendLimits { window_bytes: mtu, rate_bps: (rate as u64).max(1), burst_bytes: mtu }
    }

    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        let mtu = self.settings.mtu as f64;
        visit("fcwnd_bytes", self.fabric.packets * mtu);
        visit("ecwnd_bytes", self.endpoint.packets * mtu);
        visit("target_delay_ns", self.fabric_target());
        visit("rtt_ns", self.rtt);
    }
}

impl DelayWindow {
    /// Follows a delay to its target, both in nanoseconds, after `packets` were acknowledged.
    fn follow(&mut self, now: Nanos, rtt: f64, settings: &SwiftSettings, (delay, target, packets): (f64, f64, f64)) {
        if delay < target {
            let share = if self.packets >= 1.0 { packets / self.packets } else { packets };
            self.resize(self.packets + settings.ai * share, settings);
        } else {
            self.cut(now, rtt, 1.0 - settings.beta * (delay - target) / delay, settings);
        }
    }

    /// Multiplies the window by `factor`, unless that was done within the last round trip of `rtt` nanoseconds.
    fn cut(&mut self, now: Nanos, rtt: f64, factor: f64, settings: &SwiftSettings) {
        if now.since(self.decreased_at).0 as f64 >= rtt {
            self.decreased_at = now;
            self.resize(self.packets * bounded(factor, 1.0 - settings.max_mdf, 1.0), settings);
        }
    }

    /// Doubles a window under one packet. However small it was, the gap between packets becomes shorter the first time.
    fn double(&mut self, rtt: f64, settings: &SwiftSettings) {
        let packets = self.packets.max(rtt / GAP_MAX);
        self.resize(self.packets.max((2.0 * packets).min(1.0)), settings);
    }

    fn resize(&mut self, packets: f64, settings: &SwiftSettings) {
        self.packets = bounded(packets, settings.window_min, settings.window_max);
    }
}
