//! The target of an extended reliable connection (IBA annex A14): a responder. Each request names a shared receive queue, which
//! gives it receives, protection domain and completion queue.
//!
//! The queue must belong to the target's XRC domain and be the same for all packets of a message. A target sends no
//! requests, and an initiator answers none.

use crate::api::Env;
use crate::qp::Qp;
use crate::responder::{CheckResult, RequestRefusal};
use burst_base::Reason;
use burst_base::verbs::QpType;
use burst_wire::{NakCode, Packet};

impl Qp {
    /// Switches to the shared receive queue that a request names.
    pub(crate) fn choose_srq(&mut self, pkt: &Packet<'_>, env: &Env<'_>) -> CheckResult {
        if self.id.qp_type != QpType::XrcRecv {
            return Ok(());
        }
        const UNKNOWN: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidRequest);
        let srqn = pkt.xrceth().ok_or(UNKNOWN)?.srqn;
        let srq = self.recv.domain().and_then(|domain| env.fx.xrc_srq(domain, srqn)).ok_or(UNKNOWN)?;
        if self.resp.message.is_some() && self.recv.srqn() != Some(srqn) {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence));
        }
        self.recv.take_up(srqn, srq);
        (self.id.pd, self.id.recv_cq) = (srq.pd, srq.cq);
        Ok(())
    }

    /// Number of the shared receive queue of the last request.
    pub fn srqn(&self) -> Option<u32> {
        self.recv.srqn()
    }

    /// Stops using a shared receive queue that is being destroyed.
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
