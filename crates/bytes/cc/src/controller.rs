//! The enum of all controllers: each call is passed to the controller that the path was given.

use crate::aimd::Aimd;
use crate::api::{AckSample, LossKind, SendLimits};
use crate::cubic::Cubic;
use crate::dcqcn::{Dcqcn, Variant};
use crate::dctcp::Dctcp;
use crate::params::{Algorithm, Params};
use crate::swift::Swift;
use crate::timely::Timely;
use burst_base::Nanos;

/// Most bytes that a controller may take: a path is looked at for each turn, and two cache lines hold it then.
pub const CONTROLLER_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<Controller>() <= CONTROLLER_BYTES_MAX);

/// The rate of a link whose rate is unknown, in bits per second.
pub const LINE_RATE_DEFAULT_BPS: u64 = 100_000_000_000;
/// Smallest MTU with which a controller calculates, in bytes (IBA's smallest path MTU).
const MTU_MIN: u32 = 256;

/// A congestion controller.
#[derive(Clone, Debug, PartialEq)]
pub enum Controller {
    /// A window that grows in time.
    Cubic(Cubic),
    /// Additive increase, halved on loss.
    Aimd(Aimd),
    /// A window that never changes, in bytes.
    Fixed {
        /// The window.
        window_bytes: u64,
    },
    /// A rate, reduced by congestion notifications.
    Dcqcn(Dcqcn),
    /// A window, reduced by the share of marked packets.
    Dctcp(Dctcp),
    /// A window, reduced by delay.
    Swift(Swift),
    /// A rate, changed by the gradient of the delay.
    Timely(Timely),
}

impl Controller {
    /// The controller that `params` asks for, at `now`, on a link of `line_rate_bps` bits per second (0: unknown) and
    /// `mtu` bytes of payload in a packet. The window is at least one MTU. Only this call may allocate.
    pub fn new(params: &Params, now: Nanos, line_rate_bps: u64, mtu: u32) -> Controller {
        let line_rate = if line_rate_bps == 0 { LINE_RATE_DEFAULT_BPS } else { line_rate_bps } as f64;
        let window_bytes = params.window_max_bytes.max(u64::from(mtu));
        let mtu = u64::from(mtu.max(MTU_MIN));
        match params.algorithm() {
            Algorithm::Cubic => Controller::Cubic(Cubic::new(params, line_rate, mtu)),
            Algorithm::Aimd => Controller::Aimd(Aimd::starting(window_bytes, mtu)),
            Algorithm::None => Controller::Fixed { window_bytes },
            Algorithm::Dcqcn => Controller::Dcqcn(Dcqcn::new(Variant::Paper, params, now, line_rate, mtu)),
            Algorithm::DcqcnNvidia => Controller::Dcqcn(Dcqcn::new(Variant::Nvidia, params, now, line_rate, mtu)),
            Algorithm::Dctcp => Controller::Dctcp(Dctcp::new(params, line_rate, mtu)),
            Algorithm::Swift => Controller::Swift(Swift::new(params, now, line_rate, mtu)),
            Algorithm::Timely => Controller::Timely(Timely::new(params, now, line_rate, mtu)),
        }
    }

    /// Bytes were acknowledged.
    ///
    /// What [`AckSample::pressure`] of [`crate::PRESSURE_CONGESTED`] or more does: `aimd` takes it for a loss, `dctcp` for a
    /// window that was marked completely, `swift` for a long delay of the peer. `dcqcn` and `timely` have rates and do not
    /// react, as they do not to losses: the caller keeps a second window below them. `none` never reacts.
    #[inline]
    pub fn on_ack(&mut self, now: Nanos, sample: &AckSample) {
        match self {
            Controller::Aimd(aimd) => aimd.on_ack(now, sample),
            other => other.on_ack_of_others(now, sample),
        }
    }

    /// Whether an acknowledgement that reports nothing of the path changes nothing, if `used` bytes were in flight before it and
    /// the window was not full ([`AckSample::is_full`]). The caller may leave out [`Controller::on_ack`] then.
    #[inline]
    pub fn ignores(&self, used: u64) -> bool {
        match self {
            Controller::Cubic(cubic) => cubic.ignores(used),
            _ => false,
        }
    }

    /// An acknowledgement has said something of the path; what it acknowledges comes with [`Controller::on_ack`]. For
    /// controllers that need not know both together.
    #[inline]
    pub fn on_report(&mut self, now: Nanos, sample: &AckSample) {
        debug_assert_eq!(sample.acked_bytes, 0, "a report with acknowledged bytes");
        if let Controller::Aimd(aimd) = self {
            aimd.on_report(now, sample);
        } else {
            self.on_ack_of_others(now, sample);
        }
    }

    fn on_ack_of_others(&mut self, now: Nanos, sample: &AckSample) {
        match self {
            Controller::Aimd(_) | Controller::Fixed { .. } => {}
            Controller::Cubic(cubic) => cubic.on_ack(now, sample),
            Controller::Dcqcn(dcqcn) => dcqcn.on_ack(now, sample),
            Controller::Dctcp(dctcp) => dctcp.on_ack(sample),
            Controller::Swift(swift) => swift.on_ack(now, sample),
            Controller::Timely(timely) => timely.on_ack(now, sample),
        }
    }

    /// A congestion notification packet arrived (IBA annex A17.9.3). `none` does not react.
    pub fn on_cnp(&mut self, now: Nanos) {
        match self {
            Controller::Fixed { .. } => {}
            Controller::Aimd(aimd) => aimd.on_pressure(now),
            Controller::Cubic(cubic) => cubic.on_cnp(now),
            Controller::Dcqcn(dcqcn) => dcqcn.on_cnp(now),
            Controller::Dctcp(dctcp) => dctcp.on_cnp(),
            Controller::Swift(swift) => swift.on_cnp(now),
            Controller::Timely(timely) => timely.on_cnp(now),
        }
    }

    /// Packets were lost. `none` does not react, `dcqcn` and `timely` to time-outs only: their publications assume a network
    /// without loss, so the caller keeps a second window below them.
    pub fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        match self {
            Controller::Cubic(cubic) => cubic.on_loss(now, kind),
            Controller::Aimd(aimd) => aimd.on_loss(now),
            Controller::Dctcp(dctcp) => dctcp.on_loss(kind),
            Controller::Swift(swift) => swift.on_loss(now, kind),
            Controller::Dcqcn(dcqcn) => dcqcn.on_loss(now, kind),
            Controller::Timely(timely) => timely.on_loss(now, kind),
            Controller::Fixed { .. } => {}
        }
    }

    /// The last loss was none: each packet that was sent again had arrived. Controllers that react to a loss take the reaction
    /// back, unless other signs of congestion came since.
    pub fn on_spurious(&mut self, _now: Nanos) {
        match self {
            Controller::Cubic(cubic) => cubic.on_spurious(),
            Controller::Aimd(aimd) => aimd.on_spurious(),
            Controller::Dctcp(dctcp) => dctcp.on_spurious(),
            Controller::Swift(swift) => swift.on_spurious(),
            Controller::Fixed { .. } | Controller::Dcqcn(_) | Controller::Timely(_) => {}
        }
    }

    /// Nothing has been in flight since `since`.
    pub fn on_idle(&mut self, now: Nanos, since: Nanos) {
        match self {
            Controller::Cubic(cubic) => cubic.on_idle(now, since),
            Controller::Dcqcn(dcqcn) => dcqcn.on_idle(now),
            Controller::Timely(timely) => timely.on_idle(),
            other => other.on_timer(now),
        }
    }

    /// The time of [`Controller::next_deadline`] has come. A late call does what several would have done, in constant time.
    pub fn on_timer(&mut self, now: Nanos) {
        match self {
            Controller::Dcqcn(dcqcn) => dcqcn.advance(now),
            Controller::Swift(swift) => swift.on_timer(now),
            _ => {}
        }
    }

    /// When [`Controller::on_timer`] should be called; [`Nanos::NEVER`] for no timer.
    pub fn next_deadline(&self) -> Nanos {
        match self {
            Controller::Dcqcn(dcqcn) => dcqcn.next_deadline(),
            Controller::Swift(swift) => swift.next_deadline(),
            _ => Nanos::NEVER,
        }
    }

    /// Limits on sending now.
    #[inline]
    pub fn limits(&self) -> SendLimits {
        match self {
            Controller::Cubic(cubic) => cubic.limits(),
            other => other.limits_of_others(),
        }
    }

    fn limits_of_others(&self) -> SendLimits {
        match self {
            Controller::Aimd(aimd) => aimd.limits(),
            Controller::Fixed { window_bytes } => SendLimits::unpaced(*window_bytes),
            Controller::Cubic(cubic) => cubic.limits(),
            Controller::Dcqcn(dcqcn) => dcqcn.limits(),
            Controller::Dctcp(dctcp) => dctcp.limits(),
            Controller::Swift(swift) => swift.limits(),
            Controller::Timely(timely) => timely.limits(),
        }
    }

    /// Passes each variable of the controller to `visit`, by the name that its publication gives it, with its unit.
    pub fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        match self {
            Controller::Aimd(_) | Controller::Fixed { .. } => {
                visit("window_bytes", self.limits().window_bytes as f64);
            }
            Controller::Cubic(cubic) => cubic.observe(visit),
            Controller::Dcqcn(dcqcn) => dcqcn.observe(visit),
            Controller::Dctcp(dctcp) => dctcp.observe(visit),
            Controller::Swift(swift) => swift.observe(visit),
            Controller::Timely(timely) => timely.observe(visit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RATE_UNPACED;

    const WINDOW: u64 = 512 << 10;
    const LOSSES: [LossKind; 3] = [LossKind::Fast, LossKind::Timeout, LossKind::LocalDrop];

    fn controller(algorithm: Algorithm) -> Controller {
        Controller::new(&Params::new(algorithm, WINDOW), Nanos(0), 0, 4096)
    }

    #[test]
    fn aimd_halves_on_each_kind_of_loss_and_grows_on_acknowledgements() {
        for kind in LOSSES {
            let mut c = controller(Algorithm::Aimd);
            c.on_ack(Nanos::from_ms(4), &AckSample { acked_bytes: 512 << 10, ..AckSample::default() });
            c.on_loss(Nanos::from_ms(5), kind);
            assert_eq!(c.limits().window_bytes, 256 << 10, "{kind:?}");
            c.on_ack(Nanos::from_ms(6), &AckSample { acked_bytes: 256 << 10, ..AckSample::default() });
            assert_eq!(c.limits().window_bytes, (256 + 16) << 10);
        }
    }

    #[test]
    fn none_keeps_its_window() {
        let mut c = controller(Algorithm::None);
        let before = c.limits();
        assert_eq!(before, SendLimits { window_bytes: 512 << 10, rate_bps: RATE_UNPACED, burst_bytes: 512 << 10 });
        LOSSES.iter().for_each(|kind| c.on_loss(Nanos::from_ms(5), *kind));
        c.on_ack(Nanos::from_ms(6), &AckSample { acked_bytes: 1 << 30, ..AckSample::default() });
        assert_eq!(c.limits(), before);
    }

    #[test]
    fn no_window_is_below_one_mtu() {
        for algorithm in Algorithm::ALL {
            let c = Controller::new(&Params::new(algorithm, 0), Nanos(0), 0, 4096);
            assert!(c.limits().window_bytes >= 4096, "{algorithm:?}");
        }
    }

    #[test]
    fn idle_time_changes_nothing_and_no_timer_is_set() {
        for algorithm in [Algorithm::Aimd, Algorithm::None] {
            let mut c = controller(algorithm);
            c.on_loss(Nanos::from_ms(5), LossKind::Fast);
            let before = c.clone();
            c.on_idle(Nanos::from_ms(60), Nanos::from_ms(6));
            c.on_timer(Nanos::from_ms(60));
            assert_eq!(c.next_deadline(), Nanos::NEVER);
            assert_eq!(c, before);
        }
    }

    #[test]
    fn a_notification_acts_under_every_controller_but_none() {
        for algorithm in Algorithm::ALL {
            let limits = [false, true].map(|notified| {
                let mut c = controller(algorithm);
                let ack = AckSample { rtt: Some(Nanos::from_us(20)), packets: 16, ..AckSample::default() };
                c.on_ack(Nanos::from_ms(1), &AckSample { acked_bytes: 64 << 10, ..ack });
                if notified {
                    c.on_cnp(Nanos::from_ms(9));
                }
                c.on_ack(Nanos::from_ms(9), &AckSample { acked_bytes: WINDOW, inflight_bytes: WINDOW, ..ack });
                let SendLimits { window_bytes, rate_bps, .. } = c.limits();
                (window_bytes, if rate_bps == RATE_UNPACED { u64::MAX } else { rate_bps })
            });
            let is_less = limits[1].0 < limits[0].0 || limits[1].1 < limits[0].1;
            assert_eq!(is_less, algorithm != Algorithm::None, "{algorithm}: {limits:?}");
        }
    }

    /// What is sent ECN-capable is marked instead of dropped: a mark that does nothing would be worse than a loss.
    #[test]
    fn a_mark_acts_under_every_controller_that_asks_for_marks() {
        for algorithm in Algorithm::ALL {
            let limits = [0, 1].map(|ce_packets| {
                let mut c = controller(algorithm);
                let ack = AckSample { rtt: Some(Nanos::from_us(20)), packets: 16, ..AckSample::default() };
                c.on_ack(Nanos::from_ms(1), &AckSample { acked_bytes: 64 << 10, ..ack });
                c.on_ack(Nanos::from_ms(9), &AckSample { ce_packets, ..ack });
                c.on_ack(Nanos::from_ms(9), &AckSample { acked_bytes: WINDOW, inflight_bytes: WINDOW, ..ack });
                let SendLimits { window_bytes, rate_bps, .. } = c.limits();
                (window_bytes, if rate_bps == RATE_UNPACED { u64::MAX } else { rate_bps })
            });
            let is_less = limits[1].0 < limits[0].0 || limits[1].1 < limits[0].1;
            assert_eq!(is_less, algorithm.uses_ecn(), "{algorithm}: {limits:?}");
        }
    }

    #[test]
    fn observe_names_the_window() {
        let mut seen = Vec::new();
        controller(Algorithm::None).observe(&mut |name, value| seen.push((name, value)));
        assert_eq!(seen, [("window_bytes", f64::from(512 << 10))]);
    }
}
