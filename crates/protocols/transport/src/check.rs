//! What must hold of a queue pair between two calls: for simulators and tests, which call [`Qp::check`] after each call.
//!
//! Nothing here is used by the data path, and nothing is stored for it.

use crate::api::{MESSAGE_BYTES_MAX, PSN_DISTANCE_MAX};
use crate::qp::Qp;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::responder::Responder;
use burst_base::verbs::QpState;
use burst_base::{Nanos, Psn};

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
fn must(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}

impl Qp {
    /// Its positions.
    pub fn positions(&self) -> QpPositions {
        let recovery = &self.req.recovery;
        let (expected, is_selective) = (self.resp.expected, self.resp.sel.active);
        QpPositions { una: recovery.una_psn(), sent: recovery.sent_psn(), expected, is_selective }
    }

    /// Records of loss recovery that it has borrowed.
    pub fn records_held(&self) -> usize {
        usize::from(self.resp.sel.early.is_some())
            + usize::from(self.resp.recv.early.is_some())
            + usize::from(self.req.sel.losses.is_some())
    }

    /// Checks what must hold between two calls.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), &'static str> {
        if !self.shared.id.qp_type.is_reliable()
            || !matches!(self.shared.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
        {
            return Ok(());
        }
        self.req.check_positions(&self.shared)?;
        self.req.check_losses()?;
        self.resp.check_arrivals()?;
        self.check_timers()
    }

    /// A queue pair with something outstanding has a timer, or something to send.
    fn check_timers(&self) -> Result<(), &'static str> {
        if !matches!(self.shared.state, QpState::Rts | QpState::Sqd) || !self.req.recovery.is_outstanding() {
            return Ok(());
        }
        let has_timer = self.next_deadline() != Nanos::NEVER;
        must(has_timer || self.wants_tx(), "requests are outstanding, and no timer runs")
    }
}

impl Requester {
    /// una <= acked <= next to send <= sent, and no more in flight than there may be.
    fn check_positions(&self, qp: &QpShared) -> Result<(), &'static str> {
        let recovery = &self.recovery;
        let (una, next, sent) = (recovery.una_psn(), recovery.next_packet_psn(), recovery.sent_psn());
        must(recovery.is_consistent(), "the positions of the requests in flight are not in order")?;
        must(!una.is_after(sent), "a PSN is acknowledged that was never sent")?;
        must(!next.is_after(sent), "a PSN was passed over that was never sent")?;
        must(next.diff(una) < PSN_DISTANCE_MAX + (MESSAGE_BYTES_MAX >> 8) as i32, "too many PSNs are in flight")?;
        let inflight = recovery.inflight_bytes(qp.mtu);
        must(self.sel.covered_bytes <= inflight, "more bytes in flight need no room than are in flight")?;
        let sel = &self.sel;
        if sel.active {
            must(!sel.acked.is_after(sent), "the peer has acknowledged a PSN that was never sent")?;
            must(
                !sel.acked.is_before(una) || recovery.is_empty(),
                "a PSN was retired that the peer has not acknowledged",
            )?;
            must(next.diff(sel.acked) <= sel.window.max(1) as i32, "the peer's window is exceeded")?;
        }
        Ok(())
    }

    /// The record of lost packets: it begins at the first missing PSN, and holds nothing that was never sent.
    fn check_losses(&self) -> Result<(), &'static str> {
        let Some(losses) = &self.sel.losses else { return Ok(()) };
        must(losses.is_consistent(), "the record of lost packets is inconsistent")?;
        must(losses.base() == self.sel.acked, "the record of lost packets does not begin at the first missing one")?;
        must(!losses.top().is_after(self.recovery.sent_psn()), "a PSN has arrived that was never sent")
    }
}

impl Responder {
    /// The record of early packets: it never has the expected one, and exists only while packets are missing.
    fn check_arrivals(&self) -> Result<(), &'static str> {
        let Some(early) = &self.sel.early else { return Ok(()) };
        let expected = self.expected;
        must(!early.is_empty(), "a record without early packets is kept")?;
        must(!early.has_any(expected, 1), "the expected packet has arrived and was not executed")
    }
}
