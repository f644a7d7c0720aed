//! What must hold of a requester between two calls.

use crate::api::{MESSAGE_BYTES_MAX, PSN_DISTANCE_MAX};
use crate::check::must;
use crate::qp_shared::QpShared;
use crate::requester::Requester;

impl Requester {
    /// una <= acked <= next to send <= sent, and no more in flight than there may be.
    pub(crate) fn check_positions(&self, qp: &QpShared) -> Result<(), &'static str> {
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
    pub(crate) fn check_losses(&self) -> Result<(), &'static str> {
        let Some(losses) = &self.sel.losses else { return Ok(()) };
        must(losses.is_consistent(), "the record of lost packets is inconsistent")?;
        must(losses.base() == self.sel.acked, "the record of lost packets does not begin at the first missing one")?;
        must(!losses.top().is_after(self.recovery.sent_psn()), "a PSN has arrived that was never sent")
    }
}
