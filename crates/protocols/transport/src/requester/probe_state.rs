//! What the next progress and the next turn of a requester must be looked at for, as bits, so that each costs one comparison
//! where it is nothing; and how far the wait for progress has come. [`crate::requester::standard::probes`] and
//! [`crate::requester::standard::go_back_n`] say what they mean.

use burst_base::Psn;

/// Bits of `Requester::watched`. It has gone back, and there was no progress since.
pub(crate) const BACK: u8 = 1;
/// A packet is being measured: `SelectiveRequester::measured`.
pub(crate) const MEASURING: u8 = 2;
/// The next packet that is sent for the first time is to be measured.
pub(crate) const MEASURE_DUE: u8 = 4;
/// Bits of `Requester::turn_due`. The first turn after going back.
pub(crate) const BEGIN_BACK: u8 = 1;
/// A probe is to be sent.
pub(crate) const PROBE: u8 = 2;
/// The local ACK timeout is at least so many times the wait until a probe, or until a packet is repeated again after going back.
pub(crate) const WAITS_PER_TIMEOUT: u64 = 4;
/// [`ProbeState::steps`]: the rest of the local ACK timeout is being waited for.
pub(crate) const RESTING: u8 = u8::MAX;

/// How far the wait for progress has come, and the probes of the present flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeState {
    /// *una* when the last step of the wait passed.
    pub(crate) una: Psn,
    /// The PSN behind the flight in which probes were sent.
    pub(crate) end: Psn,
    /// Steps of the wait that have passed without progress beyond `una`.
    pub(crate) steps: u8,
    /// Probes of the flight.
    pub(crate) sent: u8,
}

impl ProbeState {
    pub(crate) fn new() -> ProbeState {
        ProbeState { una: Psn::new(0), end: Psn::new(0), steps: 0, sent: 0 }
    }
}
