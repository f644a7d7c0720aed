//! The entries of a worker's table: ends of a transport protocol.
//!
//! The worker schedules endpoints, arms their timers and counts their bytes in flight, whatever their protocol. Today there is
//! one protocol, RoCEv2. An enum and not a trait object: with one member its match is free, with two it is one predictable
//! branch, and the calls stay visible to the compiler. Code that needs a RoCE queue pair says so by the pattern
//! `Endpoint::Roce(qp)`, which the compiler refuses as soon as there is a second member: these are the places where a second
//! protocol must be decided.

use burst_base::Nanos;
use burst_base::verbs::{QpState, QpType};
use burst_transport::Qp;

/// One end of a transport protocol.
// A slot is boxed as a whole, so the size of a member costs nothing.
#[allow(clippy::large_enum_variant)]
pub enum Endpoint {
    /// A RoCEv2 queue pair.
    Roce(Qp),
}

impl From<Qp> for Endpoint {
    fn from(qp: Qp) -> Endpoint {
        Endpoint::Roce(qp)
    }
}

impl Endpoint {
    /// The RoCEv2 queue pair.
    #[inline]
    pub fn qp(&self) -> &Qp {
        let Endpoint::Roce(qp) = self;
        qp
    }

    /// The RoCEv2 queue pair.
    #[inline]
    pub fn qp_mut(&mut self) -> &mut Qp {
        let Endpoint::Roce(qp) = self;
        qp
    }

    /// The application posted to an idle queue.
    #[inline]
    pub(crate) fn on_doorbell(&mut self) {
        match self {
            Endpoint::Roce(qp) => qp.on_doorbell(),
        }
    }

    /// Whether a turn would send something.
    #[inline]
    pub(crate) fn wants_tx(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.wants_tx(),
        }
    }

    /// Whether the only thing to send is an acknowledgement that may wait for the program's answer.
    #[inline]
    pub(crate) fn ack_may_wait(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.ack_may_wait(),
        }
    }

    /// Whether requests were sent that the peer has not acknowledged.
    #[inline]
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.awaits_acknowledgement(),
        }
    }

    /// Whether it has failed, so that it sends nothing and its requests are flushed.
    #[inline]
    pub(crate) fn is_in_error(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.state() == QpState::Err,
        }
    }

    /// Whether an acknowledgement or a NAK is to be sent.
    #[inline]
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.owes_acknowledgement(),
        }
    }

    /// Bytes sent, or asked for, that are not yet acknowledged.
    #[inline]
    pub(crate) fn inflight_bytes(&self) -> u64 {
        match self {
            Endpoint::Roce(qp) => qp.inflight_bytes(),
        }
    }

    /// Those of READ responses among them.
    #[inline]
    pub(crate) fn response_bytes(&self) -> u64 {
        match self {
            Endpoint::Roce(qp) => qp.response_bytes(),
        }
    }

    /// Bytes in flight without those of READ responses.
    #[inline]
    pub(crate) fn request_bytes(&self) -> u64 {
        match self {
            Endpoint::Roce(qp) => qp.request_bytes(),
        }
    }

    /// Bytes of the next packet or READ request.
    #[inline]
    pub(crate) fn next_bytes(&self) -> u64 {
        match self {
            Endpoint::Roce(qp) => qp.next_bytes(),
        }
    }

    /// When the timer is due.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Nanos {
        match self {
            Endpoint::Roce(qp) => qp.next_deadline(),
        }
    }

    /// A timer has passed that was set for it, and nothing was due.
    #[inline]
    pub(crate) fn timer_passed(&mut self) {
        match self {
            Endpoint::Roce(qp) => qp.timer_passed(),
        }
    }

    /// Whether a message that is lost stays lost, so that it must wait until the next hop is known. Flushed requests are not
    /// sent.
    #[inline]
    pub(crate) fn sends_unacknowledged(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.qp_type() == QpType::Uc && matches!(qp.state(), QpState::Rts | QpState::Sqd),
        }
    }

    /// Whether sent messages are never acknowledged and count for the next hop's store.
    #[inline]
    pub(crate) fn is_unacknowledged(&self) -> bool {
        match self {
            Endpoint::Roce(qp) => qp.qp_type() == QpType::Uc,
        }
    }
}
