//! Completions of receives, and the flushing of receives in ERR.

use crate::api::{Env, TxBudget};
use crate::qp_shared::{QpShared, vendor_err};
use crate::responder::Responder;
use crate::responder::received_message::ReceivedMessage;
use crate::responder::receiver::Load;
use crate::sge_cursor::Keys;
use burst_base::Reason;
use burst_base::verbs::{EventType, WcOpcode, WcStatus, access};
use burst_shm::layout::Cqe;

impl Responder {
    /// Flushes receives.
    pub(crate) fn flush_receives(&mut self, qp: &mut QpShared, budget: &mut TxBudget, env: &mut Env<'_>) {
        while budget.wqes > 0 && self.flush_recv {
            budget.wqes -= 1;
            self.flush_receive(qp, env);
        }
    }

    /// Flushes the next receive. Of a shared receive queue only the loaded receive is flushed: others serve other
    /// queue pairs.
    fn flush_receive(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if !self.recv.is_loaded() {
            self.recv.load_early(true);
            self.release_receives(env);
        }
        if !self.recv.is_loaded() && self.recv.is_shared() {
            self.flush_recv = false;
            if !self.last_wqe_raised {
                self.last_wqe_raised = true;
                env.fx.event(qp.id.qpn, EventType::QpLastWqeReached);
            }
            return;
        }
        match self.recv.load() {
            Load::Ready => {
                self.follow_loaded(qp, env);
                self.complete_receive_error(qp, WcStatus::WrFlushErr, Reason::Flushed, env);
            }
            Load::Empty => self.flush_recv = !self.recv.try_idle(),
            Load::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.flush_recv = false;
            }
        }
    }
}

impl Responder {
    /// Gives the record of early receives back, if it is empty.
    pub(crate) fn release_receives(&mut self, env: &mut Env<'_>) {
        if self.recv.early.as_ref().is_some_and(|receives| receives.is_empty())
            && let Some(receives) = self.recv.early.take()
            && let Some(pool) = env.fx.records()
        {
            pool.give_receives(receives);
        }
    }
}

impl Responder {
    /// Completes the loaded receive.
    pub(crate) fn complete_receive(&mut self, qp: &QpShared, got: ReceivedMessage, env: &mut Env<'_>) {
        let opcode = if got.with_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let cqe = Cqe {
            byte_len: got.byte_len,
            imm: got.imm,
            src_qpn: got.src_qpn.get(),
            wc_flags: got.wc_flags,
            sl: got.sl,
            ..self.receive_cqe(qp, (WcStatus::Success, opcode, None), env)
        };
        env.fx.complete(qp.id.recv_cq, cqe, got.solicited);
    }

    /// Completes the loaded receive with an error.
    pub(crate) fn complete_receive_error(
        &mut self,
        qp: &QpShared,
        status: WcStatus,
        reason: Reason,
        env: &mut Env<'_>,
    ) {
        env.fx.count(reason);
        let cqe = self.receive_cqe(qp, (status, WcOpcode::Recv, Some(reason)), env);
        env.fx.complete(qp.id.recv_cq, cqe, true);
    }

    fn receive_cqe(
        &mut self,
        qp: &QpShared,
        (status, opcode, reason): (WcStatus, WcOpcode, Option<Reason>),
        env: &mut Env<'_>,
    ) -> Cqe {
        debug_assert!(self.recv.loaded);
        self.recv.loaded = false;
        self.recv.consumed = self.recv.consumed.wrapping_add(1);
        let wqe = self.recv.wqe;
        if self.recv.early.is_some() {
            self.recv.load_early(status != WcStatus::Success);
            self.release_receives(env);
        }
        Cqe {
            wr_id: wqe.wr_id,
            timestamp_ns: env.now.0,
            qpn: qp.id.qpn.get(),
            vendor_err: vendor_err(reason),
            qp_cookie: qp.id.cookie,
            sq_consumer: wqe.reserved,
            status: status as u8,
            opcode: opcode as u8,
            is_recv: 1,
            ..Cqe::default()
        }
    }
}

/// Arguments of key look-ups for receives.
pub(crate) fn recv_keys<'a>(qp: &QpShared, env: &Env<'a>) -> Keys<'a> {
    Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE }
}
