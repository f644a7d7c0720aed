//! The target of an extended reliable connection (IBA annex A14): a responder. Each request names a shared receive queue, which
//! gives it receives, protection domain and completion queue.
//!
//! The queue must belong to the target's XRC domain and be the same for all packets of a message. A target sends no
//! requests, and an initiator answers none.
//!
//! Selective repeat: a request that arrives early takes its receive from the queue that it names, and is placed with that
//! queue's protection domain; the queue is noted with it, because requests in front of it may name others. In its turn the
//! queue is looked up again.

use crate::api::{Env, XrcSrq};
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::refusal::{CheckResult, RequestRefusal};
use crate::responder::selective::arrivals::{ArrivalNote, Arrivals};
use crate::responder::selective::requests::EarlyPacket;
use burst_base::verbs::QpType;
use burst_base::{Psn, Reason};
use burst_mem::Peer;
use burst_wire::{NakCode, OpKind, Packet};

const UNKNOWN: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidRequest);

impl Responder {
    /// Switches to the shared receive queue that a request names.
    #[inline(always)]
    pub(crate) fn choose_srq(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &Env<'_>) -> CheckResult {
        if qp.id.qp_type != QpType::XrcRecv { Ok(()) } else { self.choose_named_srq(qp, pkt, env) }
    }

    /// Switches to the shared receive queue of a request of the selective repeat family whose turn it is. False if it is refused.
    #[cold]
    #[inline(never)]
    pub(crate) fn prepare_named(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> bool {
        match self.choose_named_srq(qp, pkt, env) {
            Ok(()) => true,
            Err(refusal) => {
                self.refuse(qp, pkt, refusal, env);
                false
            }
        }
    }

    #[inline(never)]
    fn choose_named_srq(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &Env<'_>) -> CheckResult {
        let srqn = pkt.xrceth().ok_or(UNKNOWN)?.srqn;
        self.use_srq(qp, srqn, pkt.info.kind == OpKind::Send || pkt.info.has_imm, env)
    }

    /// Switches to the shared receive queue of a request whose turn it is. Its receive, if it `takes` one and has arrived early
    /// in part, must be of this queue.
    fn use_srq(&mut self, qp: &mut QpShared, srqn: u32, takes: bool, env: &Env<'_>) -> CheckResult {
        let srq = self.xrc_srq(srqn, env).ok_or(UNKNOWN)?;
        let is_other = |got: Option<u32>| got.is_some_and(|got| got != srqn);
        if self.message.is_some() && self.recv.srqn() != Some(srqn) || takes && is_other(self.recv.loaded_srqn()) {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence));
        }
        self.recv.take_up(srqn, srq);
        (qp.id.pd, qp.id.recv_cq) = (srq.pd, srq.cq);
        Ok(())
    }

    fn xrc_srq<'a>(&self, srqn: u32, env: &'a Env<'_>) -> Option<&'a XrcSrq> {
        self.recv.domain().and_then(|domain| env.fx.xrc_srq(domain, srqn))
    }

    /// Places an early request, of an XRC target with receives and protection domain of the queue that it names.
    pub(crate) fn place_early_named(
        &mut self,
        qp: &mut QpShared,
        packet: EarlyPacket<'_>,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<ArrivalNote, Reason> {
        let pkt = packet.pkt;
        if qp.id.qp_type != QpType::XrcRecv {
            return self.place_early(qp, packet, early, env);
        }
        let srqn = pkt.xrceth().ok_or(Reason::SrUnplaced)?.srqn;
        let srq = self.xrc_srq(srqn, env).ok_or(Reason::SrUnplaced)?.clone();
        early.reserve_srqs().map_err(|_| Reason::SrPoolEmpty)?;
        early.note_srq(pkt.bth.psn, srqn);
        let own = (qp.id.pd, self.recv.begin_early(srqn, &srq));
        qp.id.pd = srq.pd;
        let placed = self.place_early(qp, packet, early, env);
        qp.id.pd = own.0;
        self.recv.end_early(own.1);
        placed
    }

    /// Switches to the shared receive queue of the early request whose turn it is.
    pub(crate) fn choose_srq_of(
        &mut self,
        qp: &mut QpShared,
        takes: bool,
        early: &Arrivals,
        env: &Env<'_>,
    ) -> CheckResult {
        match early.srq_of(self.expected) {
            Some(srqn) => self.use_srq(qp, srqn, takes, env),
            None => Ok(()),
        }
    }

    /// Protection domain and number by which the early request `psn` has access to memory.
    pub(crate) fn peer_of(&self, qp: &QpShared, psn: Psn, early: &Arrivals, env: &Env<'_>) -> Peer {
        match early.srq_of(psn) {
            Some(srqn) => Peer { pd: self.xrc_srq(srqn, env).map_or(u32::MAX, |srq| srq.pd), qpn: qp.id.qpn },
            None => qp.peer(),
        }
    }

    /// The loaded receive of an XRC target is to be flushed: to the completion queue of the queue that it was taken from.
    pub(crate) fn follow_loaded(&mut self, qp: &mut QpShared, env: &Env<'_>) {
        if let Some(srq) = self.recv.loaded_srqn().and_then(|srqn| self.xrc_srq(srqn, env)) {
            qp.id.recv_cq = srq.cq;
        }
    }
}
