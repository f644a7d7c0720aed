//! DCQCN: a rate, reduced by congestion notification packets (CNPs), increased by a timer and by bytes.
//!
//! Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, and NVIDIA's adapters, whose parameter
//! names both variants use. The sender has a current rate R_C, a target rate R_T, and alpha, which estimates the share of
//! marked traffic.
//!
//! | event | the paper | NVIDIA |
//! |---|---|---|
//! | cut | R_T = R_C | R_T = R_C if an increase came since the last cut, or `clamp_tgt_rate` |
//! | | R_C *= 1 - alpha/2 | the same |
//! | | alpha = (1-g) alpha + g | alpha is not changed |
//! | each `dce_tcp_rtt` | alpha *= 1-g, counted from the last cut | alpha *= 1-g, and + g if a CNP came |
//! | increases come | by the timer (T) and by bytes (B) | by the timer (T) |
//! | fast recovery | max(T, B) < F | T < F |
//! | R_T += R_AI | otherwise | T = F |
//! | hyper increase | min(T, B) > F: R_T += (min - F) R_HAI | T > F: R_T += R_HAI |
//!
//! After each increase R_C = (R_T + R_C) / 2. T and B count the increases before the present one, so that there are F fast
//! recoveries. The first CNP sets alpha to `initial_alpha_value`.
//!
//! One controller serves all queue pairs of a path, and each of them gets CNPs. CNPs that arrive within
//! `rate_reduce_monitor_period` of a cut therefore make one cut at the end of that period. A peer that sends CNPs without end so
//! stops nothing: the rate stays at `rpg_min_rate`.
//!
//! **Round trips longer than the periods.** The publication knows round trips of a few tens of microseconds. At a bottleneck of
//! 300 Mbit/s a queue of 30 KB takes 0.8 ms, in which it would cut 16 times and increase 15 times before the first change is
//! seen. So no period is shorter than a measured round trip, the peer's delay included; what the publication does in several
//! periods of that time is done at once (g, F). Where a round trip is longer than F periods there is no fast recovery, and alpha
//! follows the share of marked packets, if the peer counts them. The rates follow the round trip there, so that what is in flight
//! stays while a queue builds up. An increase adds at most a packet to what is in flight, a hyper increase five for
//! each stage, and at least a packet must have been acknowledged for each increase: silence raises no rate. The first
//! notification sets R_C to what was in flight in the last round trip, before the cut, where that is less. Before a round trip is
//! measured, and after a time without packets in flight, time alone counts, as published.
//!
//! **Marks.** Acknowledgements of selective repeat count marked packets. Marks that come when a notification would be possible
//! (`rate_reduce_monitor_period` and a round trip after the last cut) are one; all others belong to the last one. So the rate
//! does not depend on how often the peer's processor sees packets. Notifications of such a peer count as marks.
//!
//! Nothing needs a timer of microseconds: each call first does what would have happened since the call before
//! ([`Dcqcn::advance`]), in constant time. While R_C is the line rate, sends are not paced.

use crate::api::{AckSample, LossKind, SendLimits};
use crate::math::{bounded, burst_bytes, power};
use crate::params::{Parameter, ParameterUnit, Params};
use burst_base::Nanos;
use std::sync::Arc;

const US: u64 = 1_000;
const MBIT: u64 = 1_000_000;

/// Defaults in which the variants differ.
struct Defaults {
    g: u64,
    alpha_period: u64,
    decrease_period: u64,
    time_reset: u64,
    byte_reset: u64,
    threshold: u64,
    ai_rate: u64,
    hai_rate: u64,
    min_rate: u64,
    initial_alpha: u64,
    clamp: u64,
}

const fn table(d: Defaults) -> [Parameter; 14] {
    use ParameterUnit::{BitRate, Count, Fraction, Size, Time};
    const SECOND: u64 = 1_000_000_000;
    const RATES: (u64, u64) = (MBIT, 1_000_000 * MBIT);
    [
        Parameter::new("dce_tcp_g", Count, (0, 1023), d.g, "1-g in 1024ths: weight of the old alpha in each update"),
        Parameter::new("dce_tcp_rtt", Time, (US, SECOND), d.alpha_period, "time between two updates of alpha"),
        Parameter::new(
            "rate_reduce_monitor_period",
            Time,
            (US, SECOND),
            d.decrease_period,
            "shortest time between two cuts",
        ),
        Parameter::new("rpg_time_reset", Time, (US, SECOND), d.time_reset, "time between two increases"),
        Parameter::new(
            "rpg_byte_reset",
            Size,
            (4096, 1 << 40),
            d.byte_reset,
            "bytes between two increases (dcqcn only)",
        ),
        Parameter::new("rpg_threshold", Count, (1, 31), d.threshold, "F: number of fast recoveries"),
        Parameter::new("rpg_ai_rate", BitRate, RATES, d.ai_rate, "R_AI: additive increase"),
        Parameter::new("rpg_hai_rate", BitRate, RATES, d.hai_rate, "R_HAI: hyper increase"),
        Parameter::new("rpg_min_rate", BitRate, RATES, d.min_rate, "smallest rate"),
        Parameter::new(
            "rpg_min_dec_fac",
            Fraction,
            (10_000, 1_000_000),
            500_000,
            "smallest ratio of new to old rate in a cut",
        ),
        Parameter::new("rpg_gd", Count, (0, 15), 11, "a cut is alpha * 1024 / 2^rpg_gd: 11 for alpha/2"),
        Parameter::new("initial_alpha_value", Count, (1, 1024), d.initial_alpha, "alpha at the first CNP, in 1024ths"),
        Parameter::new("rate_to_set_on_first_cnp", BitRate, (0, RATES.1), 0, "rate at the first CNP; 0: that of a cut"),
        Parameter::new("clamp_tgt_rate", Count, (0, 1), d.clamp, "1: each cut sets R_T (dcqcn-nvidia only)"),
    ]
}

/// Parameters of the published variant. R_HAI is not published; it is five times R_AI, as R_HAI of NVIDIA is ten times.
pub(crate) const PAPER_PARAMETERS: [Parameter; 14] = table(Defaults {
    g: 1020,
    alpha_period: 55 * US,
    decrease_period: 50 * US,
    time_reset: 55 * US,
    byte_reset: 10_000_000,
    threshold: 5,
    ai_rate: 40 * MBIT,
    hai_rate: 200 * MBIT,
    min_rate: MBIT,
    initial_alpha: 1024,
    clamp: 1,
});

/// Parameters of NVIDIA's adapters.
pub(crate) const NVIDIA_PARAMETERS: [Parameter; 14] = table(Defaults {
    g: 1019,
    alpha_period: US,
    decrease_period: 4 * US,
    time_reset: 300 * US,
    byte_reset: 32_767,
    threshold: 1,
    ai_rate: 5 * MBIT,
    hai_rate: 50 * MBIT,
    min_rate: MBIT,
    initial_alpha: 1023,
    clamp: 0,
});

/// Which description is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The publication.
    Paper,
    /// NVIDIA's adapters.
    Nvidia,
}

/// Parameters in the units of the arithmetic: nanoseconds, bits per second, parts of one.
#[derive(Debug, PartialEq)]
struct DcqcnSettings {
    variant: Variant,
    /// 1 - g.
    keep: f64,
    alpha_period: u64,
    decrease_period: Nanos,
    time_reset: u64,
    byte_reset: u64,
    threshold: u32,
    ai_rate: f64,
    hai_rate: f64,
    min_rate: f64,
    min_dec_fac: f64,
    /// A cut is alpha times this.
    cut_share: f64,
    initial_alpha: f64,
    first_cnp_rate: f64,
    clamp_target: bool,
    line_rate: f64,
    window_bytes: u64,
    mtu: u64,
}

/// Increases that a late call makes one by one. They lead past every `rpg_threshold`, and after the last of them R_C is as
/// near to R_T as it gets; further ones add to R_T only.
const INCREASES_MAX: u64 = 64;
/// Packets that a step of hyper increase adds for each stage; one of additive increase adds one.
const HYPER_PACKETS: f64 = 5.0;
/// The first notification leaves the rate of so many packets in a round trip, before the cut.
const USED_PACKETS: f64 = 10.0;
/// Least weight of the share of marks before, after a round trip (g of RFC 8257).
const SHARE_KEEP: f64 = 15.0 / 16.0;
/// Stages are counted up to here: far above `rpg_threshold`.
const STAGE_MAX: u32 = 1 << 20;
/// Longest round trip that is believed, in nanoseconds.
const RTT_MAX: u64 = 1_000_000_000;
/// A rate this near to the line rate is the line rate.
const RECOVERED: f64 = 1.0 - 1.0 / 1024.0;

/// State of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Dcqcn {
    settings: Arc<DcqcnSettings>,
    /// R_C.
    rate: f64,
    /// R_T.
    target: f64,
    alpha: f64,
    /// End of the last period of alpha.
    alpha_at: Nanos,
    decreased_at: Nanos,
    /// When the timer of increases was started.
    increase_from: Nanos,
    /// Bytes since the last increase by bytes.
    bytes: u64,
    time_stage: u32,
    byte_stage: u32,
    /// A CNP has come.
    started: bool,
    /// R_C is below the line rate.
    limited: bool,
    /// A CNP came in the present period of alpha (NVIDIA).
    cnp_in_period: bool,
    /// A CNP came within `rate_reduce_monitor_period` of the last cut.
    cut_pending: bool,
    /// The peer's acknowledgements count marks.
    counts_marks: bool,
    /// Smoothed time from sending to acknowledgement in nanoseconds; 0 before the first.
    srtt: u32,
    /// Packets acknowledged since the last increase.
    credit: u32,
    /// Bytes of less than a packet that were acknowledged.
    credit_rest: u32,
    /// Bytes that were in flight before the last acknowledgement.
    used: u32,
    /// Packets that the peer has received since alpha was last changed, and those of them that were marked.
    packets: u32,
    ce_packets: u32,
}

impl Dcqcn {
    pub(crate) fn new(variant: Variant, params: &Params, now: Nanos, line_rate: f64, mtu: u64) -> Dcqcn {
        let min_rate = params.number("rpg_min_rate").min(line_rate);
        let settings = DcqcnSettings {
            variant,
            keep: params.number("dce_tcp_g") / 1024.0,
            alpha_period: params.value("dce_tcp_rtt").max(1),
            decrease_period: Nanos(params.value("rate_reduce_monitor_period")),
            time_reset: params.value("rpg_time_reset").max(1),
            byte_reset: params.value("rpg_byte_reset").max(1),
            threshold: params.value("rpg_threshold") as u32,
            ai_rate: params.number("rpg_ai_rate"),
            hai_rate: params.number("rpg_hai_rate"),
            min_rate,
            min_dec_fac: params.fraction("rpg_min_dec_fac"),
            cut_share: 1024.0 / (1u64 << params.value("rpg_gd").min(15)) as f64,
            initial_alpha: params.number("initial_alpha_value") / 1024.0,
            first_cnp_rate: params.number("rate_to_set_on_first_cnp"),
            clamp_target: params.value("clamp_tgt_rate") == 1,
            line_rate,
            window_bytes: params.window_max_bytes.max(mtu),
            mtu,
        };
        Dcqcn {
            settings: Arc::new(settings),
            rate: line_rate,
            target: line_rate,
            alpha: 0.0,
            alpha_at: now,
            decreased_at: now,
            increase_from: now,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            started: false,
            limited: false,
            cnp_in_period: false,
            cut_pending: false,
            counts_marks: false,
            srtt: 0,
            credit: 0,
            credit_rest: 0,
            used: 0,
            packets: 0,
            ce_packets: 0,
        }
    }

    /// Does what would have happened until `now`: updates of alpha, increases, and the cut that was put off.
    pub(crate) fn advance(&mut self, now: Nanos) {
        if !self.started {
            return;
        }
        if self.cut_pending && self.cut_due() <= now {
            let due = self.cut_due();
            self.increase_until(due);
            self.update_alpha(due);
            self.cut(due);
        }
        self.update_alpha(now);
        self.increase_until(now);
        self.check();
    }

    /// A congestion notification packet.
    pub(crate) fn on_cnp(&mut self, now: Nanos) {
        self.advance(now);
        self.notified(now, !self.counts_marks);
    }

    /// The network is congested. What is said within a round trip of the last cut is older than that; what is said later within
    /// the period of cuts is put off to its end, if that is `put_off`.
    fn notified(&mut self, now: Nanos, put_off: bool) {
        self.cnp_in_period = true;
        if !self.started {
            return self.start(now);
        }
        if now >= self.cut_due() {
            self.cut(now);
        } else if put_off && now.since(self.decreased_at).0 >= u64::from(self.srtt) {
            self.cut_pending = true;
        }
        self.check();
    }

    /// Packets were lost. A time-out, in which no mark could come, counts as a notification.
    pub(crate) fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        if kind == LossKind::Timeout {
            self.advance(now);
            self.notified(now, false);
        }
    }

    /// Nothing was in flight for a while: time alone counts.
    pub(crate) fn on_idle(&mut self, now: Nanos) {
        self.credit = u32::MAX;
        self.advance(now);
        self.credit = 0;
    }

    /// A period of the parameters, or a round trip if that is longer, in nanoseconds.
    fn period(&self, published: u64) -> u64 {
        published.max(self.srtt.into())
    }

    /// The round trip was `before`. Where it is long, a longer one is the own queue, and a rate that stays would make it longer
    /// until marks come back: what is in flight stays instead.
    fn keep_inflight(&mut self, before: u32) {
        if self.limited && self.is_slow() {
            let DcqcnSettings { min_rate, line_rate, .. } = *self.settings;
            let factor = f64::from(before) / f64::from(self.srtt);
            self.rate = bounded(self.rate * factor, min_rate, line_rate);
            self.target = bounded(self.target * factor, min_rate, line_rate);
        }
    }

    /// Whether a round trip takes as long as all fast recoveries: the queue of the last cut is seen as late as their result, so
    /// there is none.
    fn is_slow(&self) -> bool {
        let DcqcnSettings { threshold, time_reset, .. } = *self.settings;
        u64::from(self.srtt) > u64::from(threshold) * time_reset
    }

    /// Whether alpha follows the counted share of marked packets: a round trip is so long that each has many chances of a
    /// notification.
    fn follows_share(&self) -> bool {
        self.counts_marks && self.is_slow()
    }

    /// The time from one increase to the next. A cut that is due comes first: marks of packets that were sent after the last one
    /// have had a round trip to arrive.
    fn increase_period(&self) -> u64 {
        let srtt = u64::from(self.srtt);
        self.settings.time_reset.max(srtt + srtt / 4)
    }

    /// Follows round trips, and counts what was acknowledged.
    fn measure(&mut self, sample: &AckSample) {
        if let Some(rtt) = sample.rtt {
            let rtt = (rtt.0.saturating_add(sample.remote_delay.0)).clamp(1, RTT_MAX) as u32;
            let before = std::mem::replace(&mut self.srtt, rtt);
            if before > 0 {
                self.srtt = (before - before / 8 + rtt / 8).max(1);
                self.keep_inflight(before);
            }
        }
        self.counts_marks |= sample.packets > 0;
        self.packets = self.packets.saturating_add(sample.packets);
        self.ce_packets = self.ce_packets.saturating_add(sample.ce_packets.min(sample.packets));
        let bytes = u64::from(self.credit_rest) + sample.acked_bytes;
        let packets = u32::try_from(bytes / self.settings.mtu).unwrap_or(u32::MAX);
        self.credit = self.credit.saturating_add(packets);
        self.credit_rest = (bytes % self.settings.mtu) as u32;
        self.used = u32::try_from(sample.inflight_bytes + sample.acked_bytes).unwrap_or(u32::MAX);
    }

    /// Bytes were acknowledged: the paper's byte counter. (Published for bytes sent; each of them is acknowledged once.)
    pub(crate) fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        self.measure(sample);
        let is_cut = self.started && sample.ce_packets > 0 && now >= self.cut_due();
        if is_cut {
            self.update_alpha(now);
        } else {
            self.advance(now);
        }
        if sample.ce_packets > 0 {
            self.notified(now, false);
        }
        if !self.limited || self.settings.variant == Variant::Nvidia {
            return;
        }
        self.bytes = self.bytes.saturating_add(sample.acked_bytes);
        let due = self.bytes / self.settings.byte_reset;
        self.bytes %= self.settings.byte_reset;
        for _ in 0..due.min(INCREASES_MAX) {
            self.increase();
            self.byte_stage = (self.byte_stage + 1).min(STAGE_MAX);
        }
        self.check();
    }

    /// When the rate changes by itself next.
    pub(crate) fn next_deadline(&self) -> Nanos {
        if !self.limited {
            return Nanos::NEVER;
        }
        let increase = self.increase_from + Nanos(self.increase_period());
        if self.cut_pending { increase.min(self.cut_due()) } else { increase }
    }

    pub(crate) fn limits(&self) -> SendLimits {
        let DcqcnSettings { window_bytes, mtu, .. } = *self.settings;
        if !self.limited {
            return SendLimits::unpaced(window_bytes);
        }
        // In a long round trip a window as well: a queue that grows stops the sender before its measurement says so.
        let window_bytes = match self.is_slow() {
            true => ((self.rate * f64::from(self.srtt) / 8e9) as u64).clamp(2 * mtu, window_bytes.max(2 * mtu)),
            false => window_bytes,
        };
        SendLimits { window_bytes, rate_bps: (self.rate as u64).max(1), burst_bytes: burst_bytes(self.rate, mtu) }
    }

    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        visit("rate_bps", self.rate);
        visit("target_rate_bps", self.target);
        visit("alpha", self.alpha);
    }

    /// When the next cut may come. Where a round trip is long, the queue that the last one met is a part of it that the smoothed
    /// round trip does not have yet: marks of packets that were sent before would cut twice.
    fn cut_due(&self) -> Nanos {
        let wait = if self.is_slow() { self.increase_period() } else { self.period(self.settings.decrease_period.0) };
        self.decreased_at + Nanos(wait)
    }

    /// The first CNP.
    fn start(&mut self, now: Nanos) {
        self.started = true;
        self.alpha = self.settings.initial_alpha;
        (self.alpha_at, self.cnp_in_period) = (now, false);
        let first = self.settings.first_cnp_rate;
        if first == 0.0 {
            if self.srtt > 0 {
                let used = f64::from(self.used).max(USED_PACKETS * self.settings.mtu as f64);
                self.rate = self.rate.min(used * 8e9 / f64::from(self.srtt)).max(self.settings.min_rate);
            }
            return self.cut(now);
        }
        self.rate = bounded(first, self.settings.min_rate, self.settings.line_rate);
        self.target = self.rate;
        self.restart(now);
    }

    /// Reduces the rate.
    fn cut(&mut self, now: Nanos) {
        let DcqcnSettings { variant, keep, alpha_period, min_dec_fac, cut_share, clamp_target, .. } = *self.settings;
        let DcqcnSettings { min_rate, line_rate, .. } = *self.settings;
        if variant == Variant::Paper || clamp_target || self.time_stage > 0 {
            self.target = self.rate;
        }
        let share = bounded(1.0 - self.alpha * cut_share, min_dec_fac, 1.0);
        self.rate = bounded(self.rate * share, min_rate, line_rate);
        if variant == Variant::Paper && !self.follows_share() {
            let keep = power(keep, (self.period(alpha_period) / alpha_period).max(1));
            self.alpha = keep * self.alpha + (1.0 - keep);
            self.alpha_at = now;
        }
        if self.is_slow() {
            self.target = self.rate;
        }
        self.restart(now);
    }

    /// After a change of the rate by a CNP: the increases begin anew.
    fn restart(&mut self, now: Nanos) {
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        (self.increase_from, self.decreased_at) = (now, now);
        self.credit = 0;
        self.cut_pending = false;
        self.limited = true;
        self.release();
        self.check();
    }

    /// Applies the periods of alpha that have ended.
    fn update_alpha(&mut self, now: Nanos) {
        let DcqcnSettings { variant, keep, alpha_period, .. } = *self.settings;
        let elapsed = now.since(self.alpha_at).0;
        if elapsed < self.period(alpha_period) {
            return;
        }
        let periods = elapsed / alpha_period;
        let (packets, marked) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.ce_packets));
        self.alpha_at = self.alpha_at + Nanos(periods * alpha_period);
        if self.follows_share() {
            let share = if packets == 0 { self.alpha } else { f64::from(marked) / f64::from(packets) };
            // A change of the rate shows after a round trip: what is newer than several has the weight that it has in `dctcp`.
            let trips = elapsed / u64::from(self.srtt).max(1);
            let keep = power(keep, periods).max(power(SHARE_KEEP, trips));
            self.alpha = keep * self.alpha + (1.0 - keep) * share;
        } else if variant == Variant::Nvidia && self.cnp_in_period {
            self.alpha = keep * self.alpha + (1.0 - keep);
            self.alpha *= power(keep, periods - 1);
        } else {
            self.alpha *= power(keep, periods);
        }
        self.cnp_in_period = false;
    }

    /// Makes the increases whose time has come.
    fn increase_until(&mut self, now: Nanos) {
        let period = self.increase_period();
        let due = now.since(self.increase_from).0 / period;
        if due == 0 {
            return;
        }
        self.increase_from = self.increase_from + Nanos(due * period);
        if !self.limited {
            return;
        }
        // Before a round trip is known, time alone counts.
        let due = if self.srtt == 0 { due } else { due.min(self.credit.into()) };
        self.credit = 0;
        for _ in 0..due.min(INCREASES_MAX) {
            self.increase();
            self.time_stage = (self.time_stage + 1).min(STAGE_MAX);
        }
        if let Some(rest) = due.checked_sub(INCREASES_MAX).filter(|rest| *rest > 0) {
            // R_C follows R_T at the distance of one step.
            let step = self.step();
            let far = self.target + step * rest as f64;
            self.target = bounded(far, self.settings.min_rate, self.settings.line_rate);
            self.rate = bounded(far - step, self.rate, self.settings.line_rate);
            self.time_stage = self.time_stage.saturating_add(rest.min(u64::from(STAGE_MAX)) as u32).min(STAGE_MAX);
        }
        self.release();
    }

    /// What the present stage adds to R_T.
    fn step(&self) -> f64 {
        let DcqcnSettings { variant, mut threshold, mut ai_rate, mut hai_rate, mtu, time_reset, .. } = *self.settings;
        if self.srtt > 0 {
            threshold = (u64::from(threshold) * time_reset / self.period(time_reset)) as u32;
            // A packet in a round trip.
            let packet = mtu as f64 * 8e9 / f64::from(self.srtt);
            (ai_rate, hai_rate) = (ai_rate.min(packet), hai_rate.min(HYPER_PACKETS * packet));
        }
        let (least, most) = match variant {
            Variant::Nvidia => (self.time_stage, self.time_stage),
            Variant::Paper => (self.time_stage.min(self.byte_stage), self.time_stage.max(self.byte_stage)),
        };
        match variant {
            _ if most < threshold => 0.0,
            Variant::Paper if least > threshold => hai_rate * f64::from(least - threshold),
            Variant::Nvidia if least > threshold => hai_rate,
            _ => ai_rate,
        }
    }

    /// One increase.
    fn increase(&mut self) {
        self.target = bounded(self.target + self.step(), self.settings.min_rate, self.settings.line_rate);
        self.rate = (self.rate + self.target) / 2.0;
        self.release();
    }

    /// Ends the limit when the line rate is reached.
    fn release(&mut self) {
        if self.rate >= self.settings.line_rate * RECOVERED {
            (self.rate, self.target) = (self.settings.line_rate, self.settings.line_rate);
            self.limited = false;
        }
    }

    fn check(&self) {
        debug_assert!((self.settings.min_rate..=self.settings.line_rate).contains(&self.rate), "rate {}", self.rate);
        debug_assert!(
            (self.settings.min_rate..=self.settings.line_rate).contains(&self.target),
            "target {}",
            self.target
        );
        debug_assert!((0.0..=1.0).contains(&self.alpha), "alpha {}", self.alpha);
    }
}
