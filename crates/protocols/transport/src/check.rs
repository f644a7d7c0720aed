//! What must hold of a queue pair between two calls: for simulators and tests, which call [`crate::Qp::check`] after each call.
//!
//! Nothing here is used by the data path, and nothing is stored for it.

use burst_base::Psn;

/// Positions of a queue pair that only move forward while it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPositions {
    /// The oldest PSN of its requests that has not been acknowledged or answered.
    pub una: Psn,
    /// The first PSN that was never sent.
    pub sent: Psn,
    /// The PSN that is expected next from the peer.
    pub expected: Psn,
    /// The peer's newest request is of the selective repeat family. A peer that leaves the family in the middle of a message
    /// sends the message again from its first packet, and `expected` goes back to that.
    pub is_selective: bool,
}

/// A sentence if `holds` is false.
pub(crate) fn must(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}
