//! How work requests end: completions in order, the error states, flushing, draining.
//!
//! A request that cannot be carried out ends with its own status when all before it have ended; then the queue pair
//! (RC) or its send queue (UC, UD) is in error and everything behind ends as flushed (IBA 10.8.2.2, 10.3.1). Flushing is
//! spread over turns: a queue may hold 32,768 entries. Entries posted later are flushed as well.

use crate::api::{Env, TxBudget};
use crate::qp::Qp;
use crate::receive::Load;
use crate::requester::Slot;
use burst_base::verbs::{EventType, QpState, WcOpcode, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::Fetch;
use burst_shm::layout::{Cqe, SGE_MAX, SendWqe};

/// The completion opcode of a work request.
fn wc_opcode(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
        WrOpcode::RdmaRead => WcOpcode::RdmaRead,
        WrOpcode::AtomicCmpAndSwp => WcOpcode::CompSwap,
        WrOpcode::AtomicFetchAndAdd => WcOpcode::FetchAdd,
        WrOpcode::LocalInv => WcOpcode::LocalInv,
        WrOpcode::BindMw => WcOpcode::BindMw,
        WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => WcOpcode::Send,
    }
}

/// `vendor_err` of a reason.
pub(crate) fn vendor_err(reason: Option<Reason>) -> u32 {
    reason.map_or(0, |reason| reason.index() as u32 + 1)
}

/// How a work request ended.
struct Ending {
    opcode: WrOpcode,
    byte_len: u32,
    status: WcStatus,
    reason: Option<Reason>,
}

impl Qp {
    /// Ends the oldest slot with success.
    pub(crate) fn retire_head(&mut self, env: &mut Env<'_>) {
        let slot = self.req.pop_head();
        self.sq.publish_consumed(self.req.retired);
        if slot.wqe.flags & send_flags::SIGNALED as u16 != 0 {
            let (opcode, byte_len) = (slot.opcode, slot.length);
            let end = Ending { opcode, byte_len, status: WcStatus::Success, reason: None };
            self.complete_send(slot.wqe.wr_id, end, env);
        }
    }

    /// Ends the local operations that have come to the front: nobody acknowledges them.
    pub(crate) fn retire_local(&mut self, env: &mut Env<'_>) {
        while self.req.head != self.req.tail && self.req.slots.get(self.req.head).done {
            self.retire_head(env);
        }
        self.req.sync_cursor();
        self.check_drained(env);
    }

    /// Ends a request that failed or was flushed: always with a completion.
    fn end_slot(&mut self, slot: &Slot, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        self.sq.publish_consumed(self.req.retired);
        let end = Ending { opcode: slot.opcode, byte_len: 0, status, reason: Some(reason) };
        self.complete_send(slot.wqe.wr_id, end, env);
    }

    fn complete_send(&mut self, wr_id: u64, end: Ending, env: &mut Env<'_>) {
        if let Some(reason) = end.reason {
            env.fx.count(reason);
        }
        let cqe = Cqe {
            wr_id,
            timestamp_ns: env.now.0,
            byte_len: end.byte_len,
            qpn: self.id.qpn.get(),
            vendor_err: vendor_err(end.reason),
            qp_cookie: self.id.cookie,
            sq_consumer: self.req.retired,
            status: end.status as u8,
            opcode: wc_opcode(end.opcode) as u8,
            ..Cqe::default()
        };
        env.fx.complete(self.id.send_cq, cqe, end.status != WcStatus::Success);
    }

    /// If the oldest slot cannot be carried out, its turn to fail has come.
    pub(crate) fn fail_if_head(&mut self, env: &mut Env<'_>) {
        if self.req.head == self.req.tail || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if let Some((status, reason)) = self.req.slots.get(self.req.head).fail {
            self.fail_head(status, reason, env);
        }
    }

    /// Ends the oldest slot with an error; the queue pair, or its send queue, goes to error.
    pub(crate) fn fail_head(&mut self, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        let slot = self.req.pop_head();
        self.end_slot(&slot, status, reason, env);
        if self.id.qp_type.is_reliable() {
            self.enter_error();
        } else {
            self.state = QpState::Sqe;
            self.stop_sending();
        }
    }

    fn stop_sending(&mut self) {
        self.req.go_back();
        self.req.rnr_deadline = Nanos::NEVER;
        self.req.credit_limit = None;
        self.req.sq_active = true;
    }

    /// The queue pair goes to ERR: nothing is sent any more but what the responder owes, everything is flushed.
    pub(crate) fn enter_error(&mut self) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.stop_sending();
        self.resp.stop();
        self.flush_recv = true;
    }

    /// The shared queues are damaged: nothing can be reported by a completion.
    pub(crate) fn enter_fatal(&mut self, env: &mut Env<'_>) {
        if self.state != QpState::Err {
            env.fx.event(self.id.qpn, EventType::QpFatal);
            self.corrupt = true;
            self.enter_error();
        }
    }

    /// A completion of this queue pair was lost, because its completion queue was full: the program cannot know any more what
    /// became of its requests, so there shall be no more of them (IBA 11.6.3.2). What fits again is flushed.
    pub fn on_lost_completion(&mut self, env: &mut Env<'_>) {
        if matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            env.fx.event(self.id.qpn, EventType::QpFatal);
            self.enter_error();
        }
    }

    /// Whether there is something to flush.
    pub(crate) fn wants_flush(&self) -> bool {
        match self.state {
            QpState::Err => self.req.sq_active || self.flush_recv || self.req.head != self.req.tail,
            QpState::Sqe => self.req.sq_active || self.req.head != self.req.tail,
            _ => false,
        }
    }

    /// Flushes as much as the budget allows.
    pub(crate) fn poll_flush(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) {
        while budget.wqes > 0 && self.req.head != self.req.tail {
            budget.wqes -= 1;
            let slot = self.req.pop_head();
            self.end_slot(&slot, WcStatus::WrFlushErr, Reason::Flushed, env);
        }
        self.req.go_back();
        while budget.wqes > 0 && self.req.sq_active {
            budget.wqes -= 1;
            self.flush_send(env);
        }
        while budget.wqes > 0 && self.state == QpState::Err && self.flush_recv {
            budget.wqes -= 1;
            self.flush_receive(env);
        }
    }

    /// Flushes the next entry of the send queue.
    fn flush_send(&mut self, env: &mut Env<'_>) {
        if self.corrupt {
            self.req.sq_active = false;
            return;
        }
        let mut wqe = SendWqe::default();
        let mut sges = [Default::default(); SGE_MAX as usize];
        match self.sq.fetch(&mut wqe, &mut sges) {
            Fetch::Taken(_) | Fetch::Malformed(_) => {
                self.req.retired = self.req.retired.wrapping_add(1);
                self.sq.publish_consumed(self.req.retired);
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                let (status, reason) = (WcStatus::WrFlushErr, Some(Reason::Flushed));
                self.complete_send(wqe.wr_id, Ending { opcode, byte_len: 0, status, reason }, env);
            }
            Fetch::Empty => self.req.sq_active = !self.sq.try_idle(),
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.corrupt = true;
                self.req.sq_active = false;
            }
        }
    }

    /// Flushes the next receive. The receives of a shared queue are not ours, but the one we hold.
    fn flush_receive(&mut self, env: &mut Env<'_>) {
        if !self.recv.is_loaded() && self.recv.is_shared() {
            self.flush_recv = false;
            if !self.last_wqe_said {
                self.last_wqe_said = true;
                env.fx.event(self.id.qpn, EventType::QpLastWqeReached);
            }
            return;
        }
        match self.recv.load() {
            Load::Ready => self.complete_receive_error(WcStatus::WrFlushErr, Reason::Flushed, env),
            Load::Empty => self.flush_recv = !self.recv.try_idle(),
            Load::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.flush_recv = false;
            }
        }
    }

    /// SQD: tells once when nothing is in flight any more (IBA 10.3.1.5).
    pub(crate) fn check_drained(&mut self, env: &mut Env<'_>) {
        if self.state == QpState::Sqd && !self.req.drained && self.req.head == self.req.tail {
            self.req.drained = true;
            if self.attr.en_sqd_async_notify {
                env.fx.event(self.id.qpn, EventType::SqDrained);
            }
        }
    }
}
