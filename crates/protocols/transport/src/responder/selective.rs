//! What a responder keeps of the selective repeat family while nothing is missing; the records of recovery are in a pool
//! ([`crate::records`]).
//!
//! Nothing is agreed per queue pair. A responder whose host uses the family accepts it at any message boundary, and answers in
//! the family of the newest request. `docs/protocol.md` has formats and rules.

pub(crate) mod acks;
pub(crate) mod arrivals;
pub(crate) mod requests;
pub(crate) mod trains;

use crate::responder::selective::arrivals::Arrivals;
use burst_base::{Nanos, Psn};

/// State of a responder.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct SelectiveResponder {
    /// Packets that have arrived before their turn.
    pub(crate) early: Option<Box<Arrivals>>,
    /// When the newest packet arrived, its PSN and transmission number.
    pub(crate) arrived_at: Nanos,
    pub(crate) trigger: Psn,
    /// Packets received, and those marked "congestion experienced".
    pub(crate) received: u16,
    pub(crate) congested: u16,
    pub(crate) transmission: u8,
    /// The newest request is of the family, so answers are.
    pub(crate) active: bool,
    /// A marked packet came since the last acknowledgement.
    pub(crate) is_congested: bool,
    /// An acknowledgement has left.
    has_acked: bool,
    /// Packets that the port had lost when the last acknowledgement left.
    lost: u32,
}

impl SelectiveResponder {
    /// Packets that the port had lost when the last acknowledgement left; `None` before the first.
    pub(crate) fn lost_seen(&self) -> Option<u32> {
        self.has_acked.then_some(self.lost)
    }
    /// An acknowledgement has left, when the port had lost so many packets.
    pub(crate) fn acked(&mut self, lost: u32) {
        (self.is_congested, self.has_acked, self.lost) = (false, true, lost);
    }
}

impl SelectiveResponder {
    pub(crate) fn new() -> Self {
        let zero = Psn::new(0);
        SelectiveResponder {
            active: false,
            early: None,
            trigger: zero,
            transmission: 0,
            arrived_at: Nanos(0),
            received: 0,
            congested: 0,
            is_congested: false,
            has_acked: false,
            lost: 0,
        }
    }
}
