//! The end of work requests: completions in order, the error states, flushing, draining.
//!
//! A request that cannot be executed ends with its own status when all before it have ended. Then the queue pair
//! (RC) or its send queue (UC, UD) is in error, and everything behind is flushed (IBA 10.8.2.2, 10.3.1). Flushing is
//! spread over turns, because a queue may hold 32,768 entries. Entries posted later are flushed as well.

use crate::api::{Env, TxBudget};
use crate::failure::{FailedPart, NamedMemory, QpFailure};
use crate::qp_shared::{QpHalf, QpShared, vendor_err};
use crate::requester::Requester;
use crate::requester::receipts::UcReceipts;
use crate::requester::recovery::InflightWqe;
use burst_base::verbs::{EventType, QpState, WcStatus, WrOpcode, access, send_flags};
use burst_base::{Nanos, Reason, Rkey};
use burst_shm::Fetch;
use burst_shm::layout::{Cqe, SGE_MAX, SendWqe};

/// The variable part of a send completion.
struct SendEnding {
    opcode: WrOpcode,
    byte_len: u32,
    status: WcStatus,
    reason: Option<Reason>,
}

/// Adds the request, of which so many packets were answered, to a failure.
#[cold]
fn with_request(failure: QpFailure, request: &InflightWqe, answered_packets: u32, mtu: u32) -> QpFailure {
    let InflightWqe { wqe, opcode, length, packets, .. } = *request;
    let right = match opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => access::REMOTE_WRITE,
        WrOpcode::RdmaRead => access::REMOTE_READ,
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => access::REMOTE_ATOMIC,
        _ => 0,
    };
    let named = NamedMemory { rkey: Rkey(wqe.rkey), addr: wqe.remote_addr, len: length, right };
    let memory = (right != 0).then_some(named);
    let answered_bytes = request.bytes_before() + u64::from(answered_packets) * u64::from(mtu);
    QpFailure { opcode: Some(opcode), length, packets, answered_packets, memory, answered_bytes, ..failure }
}

impl Requester {
    /// Nothing is sent any more: the queue pair or its send queue is in error.
    pub(crate) fn stop_sending(&mut self) {
        self.go_back();
        self.stop_selective();
        self.stop_watching();
        self.rnr_deadline = Nanos::NEVER;
        self.receipts.as_deref_mut().into_iter().for_each(UcReceipts::stop);
        self.credit_limit = crate::requester::NO_LIMIT;
        self.sq_active = true;
    }

    /// Whether there is something to flush.
    pub(crate) fn wants_flush(&self) -> bool {
        self.sq_active || !self.recovery.is_empty()
    }

    /// The queue pair goes to ERR.
    pub(crate) fn stop(&mut self) {
        self.stop_sending();
        self.forget_read_acks();
        debug_assert!(!self.recovery.is_outstanding() && self.ack_deadline == Nanos::NEVER, "it is sent no more");
    }

    /// An error of a request moves the queue pair to ERR.
    pub(crate) fn fail(&mut self, qp: &mut QpShared) {
        if qp.fail(QpHalf::Requester) {
            self.stop();
        }
    }
}

impl Requester {
    /// Ends the oldest request with success.
    pub(crate) fn retire_oldest(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        let request = self.recovery.retire_oldest();
        self.count_retired();
        if request.wqe.flags & send_flags::SIGNALED as u16 != 0 {
            let (opcode, byte_len) = (request.opcode, request.length);
            let end = SendEnding { opcode, byte_len, status: WcStatus::Success, reason: None };
            self.complete_send(qp, request.wqe.wr_id, end, env);
        }
    }

    /// Ends the oldest requests as long as they are executed local operations: no acknowledgement ends those.
    #[inline]
    pub(crate) fn retire_done(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        while self.recovery.oldest().is_some_and(|request| request.done) {
            self.retire_oldest(qp, env);
        }
    }

    /// As [`Requester::retire_done`], after requests were retired or executed.
    pub(crate) fn retire_local(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        self.retire_done(qp, env);
        self.recovery.sync_cursor();
        self.check_drained(qp, env);
    }

    /// Ends a request that failed or was flushed: always with a completion.
    fn end_with_error(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        (status, reason): (WcStatus, Reason),
        env: &mut Env<'_>,
    ) {
        debug_assert!(status != WcStatus::Success);
        self.count_retired();
        let end = SendEnding { opcode: request.opcode, byte_len: 0, status, reason: Some(reason) };
        self.complete_send(qp, request.wqe.wr_id, end, env);
    }

    fn complete_send(&mut self, qp: &QpShared, wr_id: u64, end: SendEnding, env: &mut Env<'_>) {
        if let Some(reason) = end.reason {
            env.fx.count(reason);
        }
        let cqe = Cqe {
            wr_id,
            timestamp_ns: env.now.0,
            byte_len: end.byte_len,
            qpn: qp.id.qpn.get(),
            vendor_err: vendor_err(end.reason),
            qp_cookie: qp.id.cookie,
            sq_consumer: self.retired,
            status: end.status as u8,
            opcode: end.opcode.completion() as u8,
            ..Cqe::default()
        };
        env.fx.complete(qp.id.send_cq, cqe, end.status != WcStatus::Success);
    }

    /// Ends the oldest request if it cannot be executed: everything before it has ended now.
    pub(crate) fn end_failed_oldest(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        if let Some((status, reason)) = self.recovery.oldest().and_then(|request| request.fail) {
            self.fail_oldest(qp, status, reason, env);
        }
    }

    /// Ends the oldest request with an error; the queue pair, or its send queue, goes to error.
    pub(crate) fn fail_oldest(&mut self, qp: &mut QpShared, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        let (psn, answered) = (self.recovery.una_psn(), self.recovery.una_packet());
        let request = self.recovery.retire_oldest();
        let failure = QpFailure::of(FailedPart::Request, status, reason, psn);
        let failure = QpFailure { retries_left: self.retry_left, ..failure };
        env.fx.failed(with_request(failure, &request, answered, qp.mtu));
        self.end_with_error(qp, &request, (status, reason), env);
        if qp.id.qp_type.is_reliable() {
            self.fail(qp);
        } else {
            qp.state = QpState::Sqe;
            self.stop_sending();
        }
    }

    /// The shared queues are damaged: an event reports it, because no completion can.
    pub(crate) fn enter_fatal(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if qp.state != QpState::Err {
            env.fx.event(qp.id.qpn, EventType::QpFatal);
            env.fx.failed(QpFailure::of(
                FailedPart::Queue,
                WcStatus::GeneralErr,
                Reason::QueueCorrupt,
                self.recovery.una_psn(),
            ));
            self.corrupt = true;
            self.fail(qp);
        }
    }

    /// Flushes requests in flight, and then entries of the send queue.
    pub(crate) fn flush_sends(&mut self, qp: &QpShared, budget: &mut TxBudget, env: &mut Env<'_>) {
        while budget.wqes > 0 && !self.recovery.is_empty() {
            budget.wqes -= 1;
            let request = self.recovery.retire_oldest();
            self.end_with_error(qp, &request, (WcStatus::WrFlushErr, Reason::Flushed), env);
        }
        self.go_back();
        while budget.wqes > 0 && self.sq_active {
            budget.wqes -= 1;
            self.flush_send(qp, env);
        }
    }

    /// Flushes the next entry of the send queue.
    fn flush_send(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        if self.corrupt {
            self.sq_active = false;
            return;
        }
        let mut wqe = SendWqe::default();
        let mut sges = [Default::default(); SGE_MAX as usize];
        match self.sq.fetch(&mut wqe, &mut sges) {
            Fetch::Taken(_) | Fetch::Malformed(_) => {
                self.count_retired();
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                let (status, reason) = (WcStatus::WrFlushErr, Some(Reason::Flushed));
                self.complete_send(qp, wqe.wr_id, SendEnding { opcode, byte_len: 0, status, reason }, env);
            }
            Fetch::Empty => self.sq_active = !self.sq.try_idle(),
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.corrupt = true;
                self.sq_active = false;
            }
        }
    }

    /// SQD: raises an event once, when nothing is in flight any more (IBA 10.3.1.5).
    pub(crate) fn check_drained(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        if qp.state == QpState::Sqd && !self.drained && self.recovery.is_empty() {
            self.drained = true;
            if qp.attr.en_sqd_async_notify {
                env.fx.event(qp.id.qpn, EventType::SqDrained);
            }
        }
    }
}
