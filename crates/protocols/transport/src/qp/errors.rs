//! The error states of a queue pair: both halves stop, and what is left is flushed (IBA 10.3.1).
//!
//! A half that meets an error has stopped itself; the queue pair stops the other one before it does anything else.

use crate::api::{Env, TxBudget, TxState};
use crate::failure::{FailedPart, QpFailure};
use crate::qp::Qp;
use crate::qp_shared::QpHalf;
use burst_base::Reason;
use burst_base::verbs::{EventType, QpState, WcStatus};

impl Qp {
    /// The queue pair goes to ERR: only pending answers of the responder are still sent, everything else is flushed.
    pub(crate) fn enter_error(&mut self) {
        if self.shared.state != QpState::Err {
            self.shared.state = QpState::Err;
            self.req.stop();
            self.resp.stop();
        }
    }

    /// A half has moved the queue pair to ERR, perhaps: the other one stops, too.
    #[inline(always)]
    pub(crate) fn settle_error(&mut self) {
        if self.shared.failed.is_some() {
            self.stop_other_half();
        }
    }

    #[cold]
    #[inline(never)]
    fn stop_other_half(&mut self) {
        debug_assert_eq!(self.shared.state, QpState::Err);
        match self.shared.failed.take() {
            Some(QpHalf::Requester) => self.resp.stop(),
            Some(QpHalf::Responder) => self.req.stop(),
            None => {}
        }
    }

    /// A completion of this queue pair was lost because its completion queue was full. The queue pair goes to ERR (IBA
    /// 11.6.3.2), because the program cannot learn any more how its requests ended. Flushed requests complete if they fit.
    pub fn on_lost_completion(&mut self, env: &mut Env<'_>) {
        if matches!(self.shared.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            env.fx.event(self.shared.id.qpn, EventType::QpFatal);
            let psn = self.req.recovery.una_psn();
            env.fx.failed(QpFailure::of(FailedPart::Queue, WcStatus::GeneralErr, Reason::CqOverrun, psn));
            self.enter_error();
        }
    }

    /// Whether there is something to flush.
    pub(crate) fn wants_flush(&self) -> bool {
        match self.shared.state {
            QpState::Err => self.req.wants_flush() || self.resp.flush_recv,
            QpState::Sqe => self.req.wants_flush(),
            _ => false,
        }
    }

    /// Flushes as much as the budget allows.
    pub(crate) fn poll_flush(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        debug_assert!(matches!(self.shared.state, QpState::Err | QpState::Sqe));
        self.release_recovery(env);
        self.req.flush_sends(&self.shared, budget, env);
        if self.shared.state == QpState::Err {
            self.resp.flush_receives(&mut self.shared, budget, env);
        }
        if self.wants_flush() { TxState::More } else { TxState::Idle }
    }
}
