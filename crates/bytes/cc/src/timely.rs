//! TIMELY: a rate that follows the gradient of round-trip times.
//!
//! Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015. For each `segment` of acknowledged
//! bytes: diff = (1 - `ewma_alpha`) diff + `ewma_alpha` (rtt - last rtt); gradient = diff / `min_rtt`. An rtt under `t_low`
//! adds `add_step`; one over `t_high` multiplies the rate by 1 - `beta` (1 - `t_high` / rtt); between them, a gradient of zero
//! or less adds N times `add_step`, N = 5 from the fifth in a row on (hyperactive increase), and a positive one multiplies the
//! rate by 1 - `beta` gradient. One update at most halves the rate.
//!
//! The rates of several flows have no unique fixed point: whatever they are, the gradient is zero once their sum is the rate of
//! the link. So TIMELY bounds the queue, but flows need not become equal, and those that begin later stay small
//! (`tests/all/fairness.rs`). With `patched` they become equal (Zhu, Ghobadi, Misra, Padhye, "ECN or Delay: Lessons Learnt from
//! Analysis of DCQCN and TIMELY", CoNEXT 2016, patched TIMELY): between `t_low` and `t_high` the rate becomes
//! (1 - w) `add_step` + R (1 - `beta` w (rtt - `t_low`) / `t_low`), where w rises from 0 at a gradient of -1/4 to 1 at 1/4. At
//! rest w is 1/2, and each rate follows from the round trip, which is the same for all.
//!
//! **Paths whose empty round trip is longer than `t_high`.** By the published rules their rate would only ever fall: at 20 ms
//! each update halves it. There the thresholds are delays over the smallest round trip seen, as they are over `min_rtt` where
//! it was published; the gradient is of that round trip; and an update comes once in a round trip, because the one before is
//! not seen earlier.
//!
//! The publication has no rule for silence. Here a time-out halves the rate, at most once in a round trip or [`CNP_PAUSE`]:
//! nothing was acknowledged, so nothing would be measured, and the rate of before would last. After a time without packets in
//! flight the first round trip is compared with none of before.
//!
//! Without measured round trips only congestion notifications and marks change the rate: each halves it, at most once in a round
//! trip or [`CNP_PAUSE`]. While the rate is the line rate, sends are not paced.

use crate::api::{AckSample, LossKind, SendLimits};
use crate::math::{bounded, burst_bytes};
use crate::params::{Parameter, ParameterUnit, Params};
use burst_base::Nanos;
use std::sync::Arc;

/// Shortest time between two halvings by congestion notifications.
pub(crate) const CNP_PAUSE: Nanos = Nanos::from_us(50);
/// Increases in a row from which on each adds [`HYPER_STEPS`] steps.
const HYPER_FROM: u32 = 5;
/// Steps of a hyperactive increase.
const HYPER_STEPS: f64 = 5.0;

/// What can be set, in the order of the values in [`Params`].
pub(crate) const PARAMETERS: [Parameter; 9] = {
    use ParameterUnit::{BitRate, Count, Fraction, Size, Time};
    const US: u64 = 1_000;
    const MBIT: u64 = 1_000_000;
    [
        Parameter::new(
            "ewma_alpha",
            Fraction,
            (1_000, 1_000_000),
            875_000,
            "weight of the newest difference of round trips",
        ),
        Parameter::new("beta", Fraction, (10_000, 1_000_000), 800_000, "strength of a decrease"),
        Parameter::new("t_low", Time, (US, 1_000_000 * US), 50 * US, "round trip under which the rate always grows"),
        Parameter::new("t_high", Time, (US, 1_000_000 * US), 500 * US, "round trip over which the rate always falls"),
        Parameter::new("min_rtt", Time, (US, 1_000_000 * US), 20 * US, "round trip of an empty network"),
        Parameter::new("add_step", BitRate, (MBIT, 1_000_000 * MBIT), 10 * MBIT, "additive increase"),
        Parameter::new("min_rate", BitRate, (MBIT, 1_000_000 * MBIT), 100 * MBIT, "smallest rate"),
        Parameter::new("segment", Size, (4096, 64 << 20), 64 << 10, "acknowledged bytes for each update"),
        Parameter::new("patched", Count, (0, 1), 0, "1: patched TIMELY, whose flows become equal"),
    ]
};

#[derive(Debug, PartialEq)]
struct TimelySettings {
    ewma_alpha: f64,
    beta: f64,
    t_low: f64,
    t_high: f64,
    min_rtt: f64,
    add_step: f64,
    min_rate: f64,
    segment: u64,
    patched: bool,
    line_rate: f64,
    window_bytes: u64,
    mtu: u64,
}

/// State of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Timely {
    settings: Arc<TimelySettings>,
    rate: f64,
    /// Smoothed difference of two round trips, in nanoseconds.
    diff: f64,
    /// The round trip of the last update in nanoseconds; 0 before the first.
    last_rtt: f64,
    /// Bytes acknowledged since the last update.
    bytes: u64,
    /// Increases in a row at a gradient of zero or less.
    increases: u32,
    /// The smallest round trip, in nanoseconds.
    rtt_min: f32,
    updated_at: Nanos,
    notified_at: Nanos,
}

impl Timely {
    pub(crate) fn new(params: &Params, now: Nanos, line_rate: f64, mtu: u64) -> Timely {
        let settings = TimelySettings {
            ewma_alpha: params.fraction("ewma_alpha"),
            beta: params.fraction("beta"),
            t_low: params.number("t_low"),
            t_high: params.number("t_high"),
            min_rtt: params.number("min_rtt").max(1.0),
            add_step: params.number("add_step"),
            min_rate: params.number("min_rate").min(line_rate),
            segment: params.value("segment"),
            patched: params.value("patched") == 1,
            line_rate,
            window_bytes: params.window_max_bytes.max(mtu),
            mtu,
        };
        Timely {
            settings: Arc::new(settings),
            rate: line_rate,
            diff: 0.0,
            last_rtt: 0.0,
            bytes: 0,
            increases: 0,
            rtt_min: f32::MAX,
            updated_at: now,
            notified_at: now,
        }
    }

    /// Bytes were acknowledged.
    pub(crate) fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        if sample.ce_packets > 0 {
            self.on_cnp(now);
        }
        self.bytes = self.bytes.saturating_add(sample.acked_bytes);
        let Some(rtt) = sample.rtt else { return };
        let rtt = (rtt.0 as f64).max(1.0);
        self.rtt_min = self.rtt_min.min(rtt as f32);
        if self.bytes < self.settings.segment || (now.since(self.updated_at).0 as f64) < self.longer() {
            return;
        }
        (self.bytes, self.updated_at) = (0, now);
        let last = std::mem::replace(&mut self.last_rtt, rtt);
        if last > 0.0 {
            self.update(rtt, rtt - last);
        }
    }

    /// By how much the path is longer than the one for which the thresholds are, in nanoseconds; 0 unless it is longer than
    /// `t_high`.
    fn longer(&self) -> f64 {
        let rtt_min = f64::from(self.rtt_min);
        if self.rtt_min < f32::MAX && rtt_min > self.settings.t_high { rtt_min - self.settings.min_rtt } else { 0.0 }
    }

    /// A new round trip, in nanoseconds, and its difference from the last.
    fn update(&mut self, rtt: f64, difference: f64) {
        let TimelySettings { ewma_alpha, beta, t_low, t_high, min_rtt, add_step, patched, .. } = *self.settings;
        let longer = self.longer();
        let (t_low, t_high, min_rtt) = (t_low + longer, t_high + longer, min_rtt + longer);
        self.diff = (1.0 - ewma_alpha) * self.diff + ewma_alpha * difference;
        let gradient = self.diff / min_rtt;
        if rtt < t_low {
            self.increases = 0;
            self.set_rate(self.rate + add_step);
        } else if rtt > t_high {
            self.increases = 0;
            self.decrease(beta * (1.0 - t_high / rtt));
        } else if patched {
            let weight = bounded(2.0 * gradient + 0.5, 0.0, 1.0);
            self.increases = 0;
            self.decrease(beta * weight * (rtt - t_low) / t_low);
            self.set_rate(self.rate + (1.0 - weight) * add_step);
        } else if gradient <= 0.0 {
            self.increases = self.increases.saturating_add(1);
            let steps = if self.increases >= HYPER_FROM { HYPER_STEPS } else { 1.0 };
            self.set_rate(self.rate + steps * add_step);
        } else {
            self.increases = 0;
            self.decrease(beta * gradient);
        }
    }

    /// Reduces the rate by a share, at most by half.
    fn decrease(&mut self, share: f64) {
        self.set_rate(self.rate * bounded(1.0 - share, 0.5, 1.0));
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = bounded(rate, self.settings.min_rate, self.settings.line_rate);
    }

    /// A congestion notification packet, or marks.
    pub(crate) fn on_cnp(&mut self, now: Nanos) {
        let pause = CNP_PAUSE.max(Nanos(self.last_rtt as u64));
        if now.since(self.notified_at) >= pause {
            self.notified_at = now;
            self.increases = 0;
            self.decrease(0.5);
        }
    }

    /// Packets were lost. Only silence counts.
    pub(crate) fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        if kind == LossKind::Timeout {
            self.on_cnp(now);
        }
    }

    /// Nothing was in flight for a while.
    pub(crate) fn on_idle(&mut self) {
        (self.last_rtt, self.diff, self.increases, self.bytes) = (0.0, 0.0, 0, 0);
    }

    pub(crate) fn limits(&self) -> SendLimits {
        let TimelySettings { line_rate, window_bytes, mtu, .. } = *self.settings;
        if self.rate >= line_rate {
            return SendLimits::unpaced(window_bytes);
        }
        SendLimits { window_bytes, rate_bps: (self.rate as u64).max(1), burst_bytes: burst_bytes(self.rate, mtu) }
    }

    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        visit("rate_bps", self.rate);
        visit("rtt_ns", self.last_rtt);
        visit("gradient", self.diff / self.settings.min_rtt);
    }
}
