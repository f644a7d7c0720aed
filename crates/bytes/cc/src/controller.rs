//! The enum of all controllers: each call is passed to the controller that the path was given.

use crate::aimd::Aimd;
use crate::api::{AckSample, Algorithm, LossKind, Params, RATE_UNPACED, SendLimits};
use burst_base::Nanos;

/// Most bytes that a controller may take: a path is looked at for each turn, and two cache lines hold it then.
pub const CONTROLLER_BYTES_MAX: usize = 96;
const _: () = assert!(size_of::<Controller>() <= CONTROLLER_BYTES_MAX);

/// A congestion controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Additive increase, halved on loss.
    Aimd(Aimd),
    /// A window that never changes, in bytes.
    Fixed {
        /// The window.
        window_bytes: u64,
    },
}

impl Controller {
    /// The controller that `params` asks for, at `now`, on a link of `_line_rate_bps` bits per second (0: unknown) and
    /// `mtu` bytes of payload in a packet. The window is at least one MTU.
    pub fn new(params: &Params, _now: Nanos, _line_rate_bps: u64, mtu: u32) -> Controller {
        match params.algorithm {
            Algorithm::Aimd => Controller::Aimd(Aimd::new(params.window_max_bytes.max(u64::from(mtu)))),
            Algorithm::None => Controller::Fixed { window_bytes: params.window_max_bytes.max(u64::from(mtu)) },
        }
    }

    /// Bytes were acknowledged.
    #[inline]
    pub fn on_ack(&mut self, _now: Nanos, sample: &AckSample) {
        match self {
            Controller::Aimd(aimd) => aimd.on_ack(sample),
            Controller::Fixed { .. } => {}
        }
    }

    /// A congestion notification packet arrived (IBA annex A17.9.3). Neither of today's controllers reacts.
    pub fn on_cnp(&mut self, _now: Nanos) {}

    /// Packets were lost.
    pub fn on_loss(&mut self, now: Nanos, kind: LossKind) {
        match (self, kind) {
            (Controller::Aimd(aimd), LossKind::Fast | LossKind::Timeout | LossKind::LocalDrop) => aimd.on_loss(now),
            (Controller::Fixed { .. }, _) => {}
        }
    }

    /// The last loss was none: each packet that was sent again had arrived. Neither of today's controllers reacts.
    pub fn on_spurious(&mut self, _now: Nanos) {}

    /// Nothing has been in flight since `_since`. Neither of today's controllers reacts.
    pub fn on_idle(&mut self, _now: Nanos, _since: Nanos) {}

    /// The time of [`Controller::next_deadline`] has come. Neither of today's controllers has a timer.
    pub fn on_timer(&mut self, _now: Nanos) {}

    /// When [`Controller::on_timer`] should be called; [`Nanos::NEVER`] for no timer.
    pub fn next_deadline(&self) -> Nanos {
        Nanos::NEVER
    }

    /// Limits on sending now.
    #[inline]
    pub fn limits(&self) -> SendLimits {
        match self {
            Controller::Aimd(aimd) => aimd.limits(),
            Controller::Fixed { window_bytes } => {
                SendLimits { window_bytes: *window_bytes, rate_bps: RATE_UNPACED, burst_bytes: *window_bytes }
            }
        }
    }

    /// Passes each variable of the controller to `visit`, by the name that its publication gives it.
    pub fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        visit("window_bytes", self.limits().window_bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AIMD: Params = Params { algorithm: Algorithm::Aimd, window_max_bytes: 512 << 10 };
    const NONE: Params = Params { algorithm: Algorithm::None, window_max_bytes: 512 << 10 };
    const LOSSES: [LossKind; 3] = [LossKind::Fast, LossKind::Timeout, LossKind::LocalDrop];

    fn controller(params: &Params) -> Controller {
        Controller::new(params, Nanos(0), 0, 4096)
    }

    #[test]
    fn aimd_halves_on_each_kind_of_loss_and_grows_on_acknowledgements() {
        for kind in LOSSES {
            let mut c = controller(&AIMD);
            c.on_loss(Nanos::from_ms(5), kind);
            assert_eq!(c.limits().window_bytes, 256 << 10, "{kind:?}");
            c.on_ack(Nanos::from_ms(6), &AckSample { acked_bytes: 256 << 10, ..AckSample::default() });
            assert_eq!(c.limits().window_bytes, (256 + 16) << 10);
        }
    }

    #[test]
    fn none_keeps_its_window() {
        let mut c = controller(&NONE);
        let before = c.limits();
        assert_eq!(before, SendLimits { window_bytes: 512 << 10, rate_bps: RATE_UNPACED, burst_bytes: 512 << 10 });
        LOSSES.iter().for_each(|kind| c.on_loss(Nanos::from_ms(5), *kind));
        c.on_ack(Nanos::from_ms(6), &AckSample { acked_bytes: 1 << 30, ..AckSample::default() });
        assert_eq!(c.limits(), before);
    }

    #[test]
    fn no_window_is_below_one_mtu() {
        for algorithm in [Algorithm::Aimd, Algorithm::None] {
            let c = Controller::new(&Params { algorithm, window_max_bytes: 0 }, Nanos(0), 0, 4096);
            assert!(c.limits().window_bytes >= 4096, "{algorithm:?}");
        }
    }

    #[test]
    fn notifications_and_idle_time_change_nothing_and_no_timer_is_set() {
        for params in [AIMD, NONE] {
            let mut c = controller(&params);
            c.on_loss(Nanos::from_ms(5), LossKind::Fast);
            let before = c;
            c.on_cnp(Nanos::from_ms(6));
            c.on_spurious(Nanos::from_ms(6));
            c.on_idle(Nanos::from_ms(60), Nanos::from_ms(6));
            c.on_timer(Nanos::from_ms(60));
            assert_eq!((c, c.next_deadline()), (before, Nanos::NEVER));
        }
    }

    #[test]
    fn observe_names_the_window() {
        let mut seen = Vec::new();
        controller(&NONE).observe(&mut |name, value| seen.push((name, value)));
        assert_eq!(seen, [("window_bytes", f64::from(512 << 10))]);
    }
}
