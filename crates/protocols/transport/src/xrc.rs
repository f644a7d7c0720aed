//! The target of an extended reliable connection (IBA annex A14): a responder whose receives, protection domain and
//! completion queue are those of the shared receive queue that each request names.
//!
//! The queue must belong to the target's XRC domain, and stays the same for all packets of a message. A target sends no
//! requests; an initiator answers none.

use crate::api::Env;
use crate::qp::Qp;
use crate::responder::{Check, Verdict};
use burst_base::Reason;
use burst_base::verbs::QpType;
use burst_wire::{NakCode, Packet};

impl Qp {
    /// Takes up the shared receive queue that a request names.
    pub(crate) fn choose_srq(&mut self, pkt: &Packet<'_>, env: &Env<'_>) -> Check {
        if self.id.qp_type != QpType::XrcRecv {
            return Ok(());
        }
        const UNKNOWN: Verdict = Verdict::Refuse(NakCode::InvalidRequest, Reason::InvalidRequest);
        let srqn = pkt.xrceth().ok_or(UNKNOWN)?.srqn;
        let srq = self.recv.domain().and_then(|domain| env.fx.xrc_srq(domain, srqn)).ok_or(UNKNOWN)?;
        if self.resp.message.is_some() && self.recv.srqn() != Some(srqn) {
            return Err(Verdict::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence));
        }
        self.recv.take_up(srqn, srq);
        (self.id.pd, self.id.recv_cq) = (srq.pd, srq.cq);
        Ok(())
    }

    /// Number of the shared receive queue that the last request named.
    pub fn srqn(&self) -> Option<u32> {
        self.recv.srqn()
    }

    /// A shared receive queue ends: nothing of it is used any more.
    pub fn forget_srq(&mut self, srqn: u32) {
        if self.id.qp_type != QpType::XrcRecv {
            return;
        }
        self.resp.revoke(srqn);
        if self.recv.srqn() == Some(srqn) {
            self.recv.forget_srq();
            self.id.pd = u32::MAX;
        }
    }
}
