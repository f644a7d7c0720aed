//! The end of work requests: completions in order, the error states, flushing, draining.
//!
//! A request that cannot be executed ends with its own status when all before it have ended. Then the queue pair
//! (RC) or its send queue (UC, UD) is in error, and everything behind is flushed (IBA 10.8.2.2, 10.3.1). Flushing is
//! spread over turns, because a queue may hold 32,768 entries. Entries posted later are flushed as well.

use crate::api::{Env, TxBudget};
use crate::qp::Qp;
use crate::receive::Load;
use crate::recovery::InflightWqe;
use burst_base::verbs::{EventType, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::Fetch;
use burst_shm::layout::{Cqe, SGE_MAX, SendWqe};

/// `vendor_err` of a completion: the number of the reason plus one, 0 for none.
pub(crate) fn vendor_err(reason: Option<Reason>) -> u32 {
    reason.map_or(0, |reason| reason.index() as u32 + 1)
}

/// The variable part of a send completion.
struct SendEnding {
    opcode: WrOpcode,
    byte_len: u32,
    status: WcStatus,
    reason: Option<Reason>,
}

impl Qp {
    /// Ends the oldest request with success.
    pub(crate) fn retire_oldest(&mut self, env: &mut Env<'_>) {
        let request = self.req.recovery.retire_oldest();
        self.req.count_retired();
        if request.wqe.flags & send_flags::SIGNALED as u16 != 0 {
            let (opcode, byte_len) = (request.opcode, request.length);
            let end = SendEnding { opcode, byte_len, status: WcStatus::Success, reason: None };
            self.complete_send(request.wqe.wr_id, end, env);
        }
    }

    /// Ends the oldest requests as long as they are executed local operations: no acknowledgement ends those.
    #[inline]
    pub(crate) fn retire_done(&mut self, env: &mut Env<'_>) {
        while self.req.recovery.oldest().is_some_and(|request| request.done) {
            self.retire_oldest(env);
        }
    }

    /// As [`Qp::retire_done`], after requests were retired or executed.
    pub(crate) fn retire_local(&mut self, env: &mut Env<'_>) {
        self.retire_done(env);
        self.req.recovery.sync_cursor();
        self.check_drained(env);
    }

    /// Ends a request that failed or was flushed: always with a completion.
    fn end_with_error(&mut self, request: &InflightWqe, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        debug_assert!(status != WcStatus::Success);
        self.req.count_retired();
        let end = SendEnding { opcode: request.opcode, byte_len: 0, status, reason: Some(reason) };
        self.complete_send(request.wqe.wr_id, end, env);
    }

    fn complete_send(&mut self, wr_id: u64, end: SendEnding, env: &mut Env<'_>) {
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
            opcode: end.opcode.completion() as u8,
            ..Cqe::default()
        };
        env.fx.complete(self.id.send_cq, cqe, end.status != WcStatus::Success);
    }

    /// Ends the oldest request if it cannot be executed: everything before it has ended now.
    pub(crate) fn end_failed_oldest(&mut self, env: &mut Env<'_>) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if let Some((status, reason)) = self.req.recovery.oldest().and_then(|request| request.fail) {
            self.fail_oldest(status, reason, env);
        }
    }

    /// Ends the oldest request with an error; the queue pair, or its send queue, goes to error.
    pub(crate) fn fail_oldest(&mut self, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        let request = self.req.recovery.retire_oldest();
        self.end_with_error(&request, status, reason, env);
        if self.id.qp_type.is_reliable() {
            self.enter_error();
        } else {
            self.state = QpState::Sqe;
            self.stop_sending();
        }
    }

    fn stop_sending(&mut self) {
        self.req.go_back();
        self.req.stop_selective();
        self.req.stop_watching();
        self.req.rnr_deadline = Nanos::NEVER;
        self.req.credit_limit = crate::requester::NO_LIMIT;
        self.req.sq_active = true;
    }

    /// The queue pair goes to ERR: only pending answers of the responder are still sent, everything else is flushed.
    pub(crate) fn enter_error(&mut self) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.stop_sending();
        self.resp.stop();
        self.forget_responses();
        self.flush_recv = true;
    }

    /// The shared queues are damaged: an event reports it, because no completion can.
    pub(crate) fn enter_fatal(&mut self, env: &mut Env<'_>) {
        if self.state != QpState::Err {
            env.fx.event(self.id.qpn, EventType::QpFatal);
            self.corrupt = true;
            self.enter_error();
        }
    }

    /// A completion of this queue pair was lost because its completion queue was full. The queue pair goes to ERR (IBA
    /// 11.6.3.2), because the program cannot learn any more how its requests ended. Flushed requests complete if they fit.
    pub fn on_lost_completion(&mut self, env: &mut Env<'_>) {
        if matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            env.fx.event(self.id.qpn, EventType::QpFatal);
            self.enter_error();
        }
    }

    /// Whether there is something to flush.
    pub(crate) fn wants_flush(&self) -> bool {
        match self.state {
            QpState::Err => self.req.sq_active || self.flush_recv || !self.req.recovery.is_empty(),
            QpState::Sqe => self.req.sq_active || !self.req.recovery.is_empty(),
            _ => false,
        }
    }

    /// Flushes as much as the budget allows.
    pub(crate) fn poll_flush(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) {
        debug_assert!(matches!(self.state, QpState::Err | QpState::Sqe));
        self.release_recovery(env);
        while budget.wqes > 0 && !self.req.recovery.is_empty() {
            budget.wqes -= 1;
            let request = self.req.recovery.retire_oldest();
            self.end_with_error(&request, WcStatus::WrFlushErr, Reason::Flushed, env);
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
                self.req.count_retired();
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                let (status, reason) = (WcStatus::WrFlushErr, Some(Reason::Flushed));
                self.complete_send(wqe.wr_id, SendEnding { opcode, byte_len: 0, status, reason }, env);
            }
            Fetch::Empty => self.req.sq_active = !self.sq.try_idle(),
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.corrupt = true;
                self.req.sq_active = false;
            }
        }
    }

    /// Flushes the next receive. Of a shared receive queue only the loaded receive is flushed: others serve other
    /// queue pairs.
    fn flush_receive(&mut self, env: &mut Env<'_>) {
        if !self.recv.is_loaded() {
            self.recv.load_early(true);
            self.release_receives(env);
        }
        if !self.recv.is_loaded() && self.recv.is_shared() {
            self.flush_recv = false;
            if !self.last_wqe_raised {
                self.last_wqe_raised = true;
                env.fx.event(self.id.qpn, EventType::QpLastWqeReached);
            }
            return;
        }
        match self.recv.load() {
            Load::Ready => {
                self.follow_loaded(env);
                self.complete_receive_error(WcStatus::WrFlushErr, Reason::Flushed, env);
            }
            Load::Empty => self.flush_recv = !self.recv.try_idle(),
            Load::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.flush_recv = false;
            }
        }
    }

    /// SQD: raises an event once, when nothing is in flight any more (IBA 10.3.1.5).
    pub(crate) fn check_drained(&mut self, env: &mut Env<'_>) {
        if self.state == QpState::Sqd && !self.drained && self.req.recovery.is_empty() {
            self.drained = true;
            if self.attr.en_sqd_async_notify {
                env.fx.event(self.id.qpn, EventType::SqDrained);
            }
        }
    }
}
