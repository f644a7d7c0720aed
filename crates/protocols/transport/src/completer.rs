//! What answers do to requests in flight: acknowledgements, READ and ATOMIC responses, NAKs, time-outs.
//!
//! Acknowledgement is cumulative (IBA 9.7.5.1.2): everything up to a PSN is done, except that a READ or ATOMIC is done
//! only by its own response; an acknowledgement beyond one whose response is missing is an implied NAK (9.7.5.1.1),
//! and we go back to it, once until there is progress. READ responses are taken by PSN: the next expected one is
//! placed whatever its position says, because a responder may begin a repeated answer with "middle" (rxe does).
//!
//! Timers (9.7.6.1.3, 9.7.5.2.8): one for the oldest unacknowledged packet, started when it is sent, restarted by progress
//! and by the latest acknowledgement when it comes again, longer with each retry (`ACK_BACKOFF_MAX`); one for RNR.
//! `retry_cnt` is spent by time-outs and sequence NAKs, `rnr_retry` by RNR NAKs; both are restored by progress.

use crate::api::{Env, Signal};
use crate::gather::{Keys, Walk};
use crate::head::Work;
use crate::qp::Qp;
use burst_base::verbs::{QpState, WcStatus, access};
use burst_base::{Nanos, Psn, Reason};
use burst_wire::aeth::{credits_of_code, rnr_timer};
use burst_wire::{Aeth, Kind, NakCode, Packet, Syndrome};

/// How often a time-out doubles the next wait: up to four times the timeout, as IBA 9.7.6.1.3 allows.
const BACKOFF_STEPS: u8 = 2;

impl Qp {
    /// An acknowledgement or a response.
    pub(crate) fn on_response(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        if let Some(reason) = self.check_response_psn(pkt, env.now) {
            return env.fx.count(reason);
        }
        match pkt.info.kind {
            Kind::ReadResponse => self.on_read_response(pkt, env),
            Kind::AtomicAck => self.on_atomic_ack(pkt, env),
            _ => self.on_ack(pkt, env),
        }
    }

    /// Only PSNs in flight count (IBA 9.7.5.1.1: ghost acknowledgements are dropped). The credits of the latest
    /// acknowledgement are news even when it comes again, and it shows a peer that is at work on what was sent twice: the
    /// timer starts anew, or a slow peer would only be given more and more to do. Such answers are no more than packets sent.
    fn check_response_psn(&mut self, pkt: &Packet<'_>, now: Nanos) -> Option<Reason> {
        let una = self.req.una_psn();
        if pkt.bth.psn.is_before(una) {
            if pkt.bth.psn.next() == una
                && let Some(Aeth { syndrome: Syndrome::Ack { credit }, msn }) = pkt.aeth()
                && pkt.info.kind == Kind::Ack
            {
                self.take_credits(credit, msn);
                if self.req.ack_deadline != Nanos::NEVER {
                    self.req.ack_deadline = now + self.ack_wait();
                }
            }
            return Some(Reason::StaleAck);
        }
        (!pkt.bth.psn.is_before(self.req.sent_psn)).then_some(Reason::UnexpectedResponse)
    }

    fn take_credits(&mut self, credit: u8, msn: u32) {
        let limit = credits_of_code(credit).map(|credits| Psn::new(msn).add(credits).get());
        if limit != self.req.credit_limit {
            self.req.credit_limit = limit;
            self.req.stalled = false;
        }
    }

    fn on_ack(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let Some(aeth) = pkt.aeth() else { return env.fx.count(Reason::BadResponse) };
        let psn = pkt.bth.psn;
        match aeth.syndrome {
            Syndrome::Ack { credit } => {
                self.take_credits(credit, aeth.msn);
                self.ack_or_go_back(psn, env);
            }
            Syndrome::Rnr { timer } => self.on_rnr_nak(psn, timer, env),
            Syndrome::Nak(NakCode::PsnSequence) => self.on_sequence_nak(psn, env),
            Syndrome::Nak(code) => self.on_fatal_nak(psn, code, env),
            Syndrome::Reserved(_) => env.fx.count(Reason::UnexpectedResponse),
        }
    }

    /// Acknowledges up to `psn` inclusive; false when an unanswered READ or ATOMIC is in the way.
    fn ack_through(&mut self, psn: Psn, env: &mut Env<'_>) -> bool {
        let mut progress = false;
        let mut complete = true;
        while self.req.head != self.req.tail && !self.req.una_psn().is_after(psn) {
            let slot = self.req.slots.get(self.req.head);
            if slot.work.has_response() {
                complete = false;
                break;
            }
            progress = true;
            let covered = psn.diff(self.req.una_psn()) as u32 + 1;
            if covered < slot.packets - self.req.una_pkt {
                self.req.una_pkt += covered;
                break;
            }
            self.retire_head(env);
            self.retire_local(env);
        }
        if progress {
            self.progressed(env);
        }
        complete
    }

    /// Something was acknowledged: counters and timers start anew.
    pub(crate) fn progressed(&mut self, env: &mut Env<'_>) {
        self.retire_local(env);
        self.req.retry_left = self.attr.retry_cnt;
        self.req.rnr_left = self.attr.rnr_retry;
        self.req.timeouts = 0;
        self.req.stalled = false;
        self.req.implied_at = None;
        self.req.ack_deadline = if self.req.is_outstanding() { env.now + self.ack_timeout } else { Nanos::NEVER };
        self.fail_if_head(env);
        self.check_drained(env);
    }

    fn ack_or_go_back(&mut self, psn: Psn, env: &mut Env<'_>) -> bool {
        let complete = self.ack_through(psn, env);
        if !complete {
            self.on_implied_nak(env);
        }
        complete
    }

    /// A response is missing: ask again, once until there is progress; after that it is the timer's business.
    fn on_implied_nak(&mut self, env: &mut Env<'_>) {
        let una = self.req.una_psn();
        if self.req.implied_at == Some(una) || !self.req.is_outstanding() {
            return env.fx.count(Reason::UnexpectedResponse);
        }
        env.fx.count(Reason::ImpliedNak);
        env.fx.congestion(Signal::Loss);
        self.req.implied_at = Some(una);
        self.req.go_back();
    }

    /// The peer is not ready to receive: wait as long as it says, then send again (IBA 9.7.5.2.8).
    fn on_rnr_nak(&mut self, psn: Psn, timer: u8, env: &mut Env<'_>) {
        if psn != self.req.una_psn() && !self.ack_or_go_back(psn.prev(), env) {
            return;
        }
        if self.req.head == self.req.tail || self.req.rnr_deadline != Nanos::NEVER {
            return env.fx.count(Reason::StaleAck);
        }
        env.fx.count(Reason::RnrNakReceived);
        match self.req.rnr_left {
            0 => return self.fail_head(WcStatus::RnrRetryExcErr, Reason::RnrRetryExhausted, env),
            7 => {}
            left => self.req.rnr_left = left - 1,
        }
        self.req.go_back();
        self.req.rnr_deadline = env.now + rnr_timer(timer);
    }

    fn on_sequence_nak(&mut self, psn: Psn, env: &mut Env<'_>) {
        if psn != self.req.una_psn() && !self.ack_or_go_back(psn.prev(), env) {
            return;
        }
        if !self.req.is_outstanding() || self.req.rnr_deadline != Nanos::NEVER {
            return env.fx.count(Reason::StaleAck);
        }
        env.fx.count(Reason::SequenceNakReceived);
        env.fx.congestion(Signal::Loss);
        self.retry(env);
    }

    fn on_fatal_nak(&mut self, psn: Psn, code: NakCode, env: &mut Env<'_>) {
        if psn != self.req.una_psn() && !self.ack_or_go_back(psn.prev(), env) {
            return;
        }
        if self.req.head == self.req.tail {
            return env.fx.count(Reason::StaleAck);
        }
        let (status, reason) = match code {
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, Reason::RemoteAccessReported),
            NakCode::RemoteOperation => (WcStatus::RemOpErr, Reason::RemoteOperationReported),
            _ => (WcStatus::RemInvReqErr, Reason::RemoteInvalidReported),
        };
        self.fail_head(status, reason, env);
    }

    /// Spends a retry and goes back, or gives up.
    fn retry(&mut self, env: &mut Env<'_>) {
        if self.req.retry_left == 0 {
            return self.fail_head(WcStatus::RetryExcErr, Reason::RetryExhausted, env);
        }
        self.req.retry_left -= 1;
        self.req.go_back();
    }

    /// Whether `pkt`, whose PSN is in flight, answers the head slot, after everything before it was acknowledged.
    fn reach(&mut self, pkt: &Packet<'_>, work: Work, env: &mut Env<'_>) -> bool {
        let psn = pkt.bth.psn;
        if psn != self.req.una_psn() && !self.ack_or_go_back(psn.prev(), env) {
            return false;
        }
        // Acknowledging may have ended the queue pair, or moved beyond (never: the PSN was in flight).
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.req.una_psn() != psn {
            return false;
        }
        if self.req.head == self.req.tail {
            env.fx.count(Reason::UnexpectedResponse);
            return false;
        }
        if self.req.slots.get(self.req.head).work != work {
            self.fail_head(WcStatus::BadRespErr, Reason::BadResponse, env);
            return false;
        }
        true
    }

    fn on_read_response(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !self.reach(pkt, Work::Read, env) {
            return;
        }
        if let Some(Aeth { syndrome: Syndrome::Ack { credit }, msn }) = pkt.aeth() {
            self.take_credits(credit, msn);
        }
        let slot = *self.req.slots.get(self.req.head);
        let offset = self.req.una_pkt * self.mtu;
        let expected = (slot.length - offset).min(self.mtu);
        if pkt.payload.len() != expected as usize {
            return self.fail_head(WcStatus::BadRespErr, Reason::BadResponse, env);
        }
        if !self.place(offset, pkt.payload, env) {
            return self.fail_head(WcStatus::LocProtErr, Reason::LocalProtection, env);
        }
        self.req.una_pkt += 1;
        if self.req.una_pkt == slot.packets {
            self.retire_head(env);
        }
        self.progressed(env);
    }

    fn on_atomic_ack(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !self.reach(pkt, Work::Atomic, env) {
            return;
        }
        let Some(ack) = pkt.atomic_ack() else {
            return self.fail_head(WcStatus::BadRespErr, Reason::BadResponse, env);
        };
        if !self.place(0, &ack.original.to_ne_bytes(), env) {
            return self.fail_head(WcStatus::LocProtErr, Reason::LocalProtection, env);
        }
        self.req.una_pkt = 1;
        self.retire_head(env);
        self.progressed(env);
    }

    /// Writes response bytes at `offset` of the head slot's scatter list.
    fn place(&mut self, offset: u32, bytes: &[u8], env: &mut Env<'_>) -> bool {
        let slot = self.req.slots.get(self.req.head);
        let sges = self.req.sges.get(slot.sge_first, slot.wqe.num_sge);
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE };
        Walk::at(sges, u64::from(offset)).scatter(keys, sges, bytes).is_ok()
    }

    /// Fires the requester's timers that are due.
    pub(crate) fn on_requester_timer(&mut self, env: &mut Env<'_>) {
        if self.req.rnr_deadline <= env.now {
            self.req.rnr_deadline = Nanos::NEVER;
            self.req.stalled = false;
        }
        if self.req.ack_deadline <= env.now {
            env.fx.count(Reason::AckTimeout);
            env.fx.congestion(Signal::Timeout);
            self.req.implied_at = None;
            self.req.timeouts = (self.req.timeouts + 1).min(BACKOFF_STEPS);
            self.retry(env);
        }
    }
}
