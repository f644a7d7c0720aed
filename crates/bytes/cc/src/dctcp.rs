//! DCTCP: a window, reduced in proportion to the share of marked packets.
//!
//! Alizadeh et al., SIGCOMM 2010, and RFC 8257. Once per window of acknowledged bytes, F is the share of packets that arrived
//! with CE, and alpha = (1-g) alpha + g F; the window grows by one MTU if F = 0. The first mark multiplies the window by
//! 1 - alpha/2 at once; marks of packets that were in flight then do not (RFC 8257 section 3.3). A cut at the end of each window
//! with a mark would be two cuts for most congestion: marks last for a round trip and fall into two windows. Until the first mark
//! the window grows by the bytes acknowledged (slow start). A loss halves the window once per window, as RFC 8257 section 3.5
//! asks; a timeout sets it to one MTU and begins slow start up to half of the window before.
//!
//! F needs a peer that echoes marks ([`AckSample::ce_packets`]). Towards a standard RoCEv2 peer, whose acknowledgements echo
//! nothing, a window in which a congestion notification packet came counts as F = 1. A window in which the peer said that its
//! receive buffers are more than three quarters full ([`AckSample::pressure`]) counts as F = 1, too: no switch marks the queue
//! there.
//!
//! A window of twelve packets or more leaves over a round trip ([`crate::spread`]).
//!
//! A loss that was none is undone, unless another loss, a mark or pressure came since.

use crate::api::{AckSample, LossKind, SendLimits};
use crate::math::bounded;
use crate::params::{Parameter, ParameterUnit, Params};
use crate::spread::{GAINS, PACKETS_MIN, SpreadRule, WindowSpread};
use std::sync::Arc;

/// What can be set, in the order of the values in [`Params`].
pub(crate) const PARAMETERS: [Parameter; 4] = [
    Parameter {
        name: "g",
        unit: ParameterUnit::Fraction,
        min: 1_000,
        max: 1_000_000,
        default: 62_500,
        help: "weight of the newest window in alpha",
    },
    Parameter {
        name: "initial_alpha",
        unit: ParameterUnit::Fraction,
        min: 0,
        max: 1_000_000,
        default: 1_000_000,
        help: "alpha before the first window",
    },
    Parameter {
        name: "slow_start",
        unit: ParameterUnit::Count,
        min: 0,
        max: 1,
        default: 1,
        help: "1: begin with initial_window and double; 0: begin with the largest window",
    },
    Parameter {
        name: "initial_window",
        unit: ParameterUnit::Size,
        min: 0,
        max: 64 << 20,
        default: 0,
        help: "window at the beginning of slow start; 0: ten packets",
    },
];

/// Packets at the beginning of slow start (RFC 6928): many senders may begin at the same time.
const INITIAL_PACKETS: f64 = 10.0;

/// The window at the beginning, in bytes.
fn ten_packets_or(initial_window: f64, mtu: u64) -> f64 {
    if initial_window > 0.0 { initial_window } else { INITIAL_PACKETS * mtu as f64 }
}

#[derive(Debug, PartialEq)]
struct DctcpSettings {
    g: f64,
    window_max: f64,
    mtu: f64,
    line_rate: f64,
}

/// State of the controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Dctcp {
    settings: Arc<DctcpSettings>,
    /// In bytes, from one MTU to the largest.
    window: f64,
    /// Slow start ends here.
    threshold: f64,
    alpha: f64,
    /// Bytes to be acknowledged until the present window ends.
    left: u64,
    /// Bytes to be acknowledged that were in flight at the last cut: their marks do not count again.
    answered: u64,
    packets: u64,
    ce_packets: u64,
    /// A congestion notification came in this window.
    notified: bool,
    /// The peer's receive buffers were congested in this window.
    pressed: bool,
    /// A loss has reduced the window in this window.
    lost: bool,
    /// Window and threshold before the last loss; 0 if marks or pressure came since.
    undo: (f64, f64),
    spread: WindowSpread,
}

impl Dctcp {
    pub(crate) fn new(params: &Params, line_rate: f64, mtu: u64) -> Dctcp {
        let window_max = params.window_max_bytes.max(mtu) as f64;
        let slow = params.value("slow_start") == 1;
        let first = if slow { ten_packets_or(params.number("initial_window"), mtu) } else { window_max };
        let window = bounded(first, mtu as f64, window_max);
        Dctcp {
            settings: Arc::new(DctcpSettings { g: params.fraction("g"), window_max, mtu: mtu as f64, line_rate }),
            window,
            threshold: if slow { window_max } else { window },
            alpha: params.fraction("initial_alpha"),
            left: window as u64,
            answered: 0,
            packets: 0,
            ce_packets: 0,
            notified: false,
            pressed: false,
            lost: false,
            undo: (0.0, 0.0),
            spread: WindowSpread::default(),
        }
    }

    /// Bytes were acknowledged.
    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        if let Some(rtt) = sample.rtt {
            self.spread.measured(rtt + sample.remote_delay);
        }
        self.packets = self.packets.saturating_add(u64::from(sample.packets));
        self.ce_packets = self.ce_packets.saturating_add(u64::from(sample.ce_packets.min(sample.packets)));
        self.pressed |= sample.is_peer_congested();
        if self.ce_packets > 0 || self.notified || self.pressed {
            self.threshold = self.threshold.min(self.window);
        }
        if self.window < self.threshold {
            self.resize(self.window + sample.acked_bytes as f64);
        }
        let inflight = sample.inflight_bytes.max(self.settings.mtu as u64);
        let is_marked = sample.ce_packets > 0 && sample.packets > 0 && self.answered == 0;
        self.answered = self.answered.saturating_sub(sample.acked_bytes);
        self.left = self.left.saturating_sub(sample.acked_bytes);
        if self.left == 0 {
            self.end_window(inflight);
            self.left = inflight;
        }
        if is_marked && self.answered == 0 {
            self.cut(inflight);
        }
    }

    /// Reduces the window by half of alpha; so many bytes are in flight.
    fn cut(&mut self, inflight: u64) {
        self.answered = inflight;
        self.resize(self.window * (1.0 - self.alpha / 2.0));
        self.threshold = self.threshold.min(self.window);
        self.undo = (0.0, 0.0);
    }

    /// A congestion notification packet.
    pub(crate) fn on_cnp(&mut self) {
        self.notified = true;
    }

    /// Packets were lost.
    pub(crate) fn on_loss(&mut self, kind: LossKind) {
        self.undo = (self.window, self.threshold);
        if !self.lost {
            self.lost = true;
            self.threshold = bounded(self.window / 2.0, self.settings.mtu, self.settings.window_max);
            self.resize(self.threshold);
        }
        if kind == LossKind::Timeout {
            self.resize(self.settings.mtu);
        }
    }

    /// The last loss was none.
    pub(crate) fn on_spurious(&mut self) {
        let (window, threshold) = self.undo;
        self.resize(self.window.max(window));
        self.threshold = self.threshold.max(threshold);
        self.undo = (0.0, 0.0);
    }

    /// A window has been acknowledged: alpha and the window follow its marks.
    fn end_window(&mut self, inflight: u64) {
        let share = match (self.packets, self.notified) {
            _ if self.pressed => 1.0,
            (0, false) => 0.0,
            (0, true) => 1.0,
            (packets, _) => self.ce_packets as f64 / packets as f64,
        };
        let DctcpSettings { g, mtu, .. } = *self.settings;
        self.alpha = (1.0 - g) * self.alpha + g * share;
        // The first mark has reduced the window already, notifications and pressure have not.
        if (self.pressed || (share > 0.0 && self.packets == 0)) && self.answered == 0 {
            self.cut(inflight);
        } else if share == 0.0 && self.window >= self.threshold {
            self.resize(self.window + mtu);
            self.threshold = self.window;
        }
        (self.packets, self.ce_packets) = (0, 0);
        (self.notified, self.pressed, self.lost) = (false, false, false);
        debug_assert!((0.0..=1.0).contains(&self.alpha), "alpha {}", self.alpha);
    }

    fn resize(&mut self, window: f64) {
        self.window = bounded(window, self.settings.mtu, self.settings.window_max);
    }

    pub(crate) fn limits(&self) -> SendLimits {
        let DctcpSettings { mtu, line_rate, .. } = *self.settings;
        let gain = GAINS[usize::from(self.window < self.threshold)];
        let rule = SpreadRule { gain, packets_min: PACKETS_MIN, mtu: mtu as u64, line_rate };
        self.spread.limits(self.window, &rule)
    }

    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        visit("window_bytes", self.window);
        visit("alpha", self.alpha);
    }
}
