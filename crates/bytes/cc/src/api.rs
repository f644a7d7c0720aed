//! Arguments and results of a controller.

use burst_base::Nanos;

/// The rate of [`SendLimits::rate_bps`] that means "send as fast as the window allows".
pub const RATE_UNPACED: u64 = 0;

/// [`AckSample::pressure`] from which on the peer is congested: packets will be lost in its receive buffers, where no switch
/// marks them.
pub const PRESSURE_CONGESTED: u8 = 2;

/// The pressure of a peer that has lost packets in its receive buffers.
pub const PRESSURE_LOST: u8 = 3;

/// Measurements of the path from one acknowledgement, or from several handled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AckSample {
    /// Payload bytes that are acknowledged, or received as READ responses, for the first time; at most 2^40.
    pub acked_bytes: u64,
    /// Round-trip time of the newest acknowledged packet, without `remote_delay`. `None` if it was not measured, or if the packet
    /// was sent twice.
    pub rtt: Option<Nanos>,
    /// Time between arrival of the packet at the peer and departure of the acknowledgement; zero if the peer does not say.
    pub remote_delay: Nanos,
    /// Packets of `packets` that arrived with the ECN codepoint CE.
    pub ce_packets: u32,
    /// Packets that the peer received since the acknowledgement before this; zero if the peer does not say.
    pub packets: u32,
    /// Bytes still in flight on the path, after `acked_bytes` was subtracted.
    pub inflight_bytes: u64,
    /// Somebody waits because the window has no room for what is to leave next: all of the window is used, whatever is in flight.
    pub is_full: bool,
    /// How full the peer's receive buffers are: 0 free, 1 over one half, 2 over three quarters, 3 packets were lost there.
    pub pressure: u8,
    /// The sender repairs losses: acknowledged bytes are no reason for a larger window (RFC 6675).
    pub is_recovering: bool,
}

impl AckSample {
    /// Whether the peer's receive buffers are congested.
    #[inline]
    pub fn is_peer_congested(&self) -> bool {
        self.pressure >= PRESSURE_CONGESTED
    }
}

/// How a loss was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// By a NAK or by a gap in the acknowledgements: later packets arrived.
    Fast,
    /// By the retransmission timer: nothing arrived.
    Timeout,
    /// This host dropped the packet before it reached the link.
    LocalDrop,
}

/// Limits on sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Most bytes in flight.
    pub window_bytes: u64,
    /// Pacing rate in bits per second; [`RATE_UNPACED`] for none.
    pub rate_bps: u64,
    /// Most bytes that may leave at once where a rate is given.
    pub burst_bytes: u64,
}

impl SendLimits {
    /// A window whose bytes may leave at once.
    pub const fn unpaced(window_bytes: u64) -> SendLimits {
        SendLimits { window_bytes, rate_bps: RATE_UNPACED, burst_bytes: window_bytes }
    }
}
