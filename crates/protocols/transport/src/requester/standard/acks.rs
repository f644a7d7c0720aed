//! The completer: acknowledgements, READ and ATOMIC responses, NAKs and time-outs end requests in flight or repeat them.
//!
//! Acknowledgement is cumulative (IBA 9.7.5.1.2): it ends everything up to its PSN. A READ or ATOMIC ends only by its own
//! response. An acknowledgement beyond a missing response is an implied NAK (9.7.5.1.1): the requester goes back to the missing
//! response, once until there is progress. READ responses are matched by PSN alone: one is placed even if its opcode says
//! another position, because a responder may begin a repeated response with a "middle" packet (rxe does). A READ response
//! behind a gap is placed as well, and only what is missing is requested again ([`crate::requester::early_responses`]). After a
//! sequence NAK at most half of the window is sent until the missing packet is acknowledged: if it is lost again, the rest was
//! sent in vain. Responders report a gap once, so the loss of that repetition is found by a timer of its own
//! ([`crate::requester::standard::go_back_n`]).
//!
//! Timers (9.7.6.1.3, 9.7.5.2.8): one for the oldest unacknowledged packet and one for RNR. The first starts when the packet
//! is sent, restarts on progress and when the latest acknowledgement arrives again, and is longer after each time-out
//! (`ACK_BACKOFF_MAX`). Time-outs and sequence NAKs use up `retry_cnt`, RNR NAKs `rnr_retry`; progress restores both.

use crate::api::{Env, Signal};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::recovery::InflightWqe;
use crate::requester::recovery::placement::ResponseMemory;
use crate::requester::{NO_LIMIT, Requester};
use burst_base::verbs::{QpState, WcStatus};
use burst_base::{Nanos, Psn, Reason};
use burst_wire::aeth::{credits_of_code, rnr_timer};
use burst_wire::{Aeth, NakCode, OpKind, Packet, Syndrome};

/// How often a time-out doubles the next wait: a wait is at most four times the timeout, as IBA 9.7.6.1.3 allows.
const BACKOFF_STEPS: u8 = 2;

impl Requester {
    /// An acknowledgement or a response.
    pub(crate) fn on_response(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        if self.sel.active {
            return self.on_standard_nak(qp, pkt, env);
        }
        if let Some(reason) = self.check_response_psn(qp, pkt, env.now) {
            return env.fx.count(reason);
        }
        match pkt.info.kind {
            OpKind::ReadResponse => self.on_read_response(qp, pkt, env),
            OpKind::AtomicAck => self.on_atomic_ack(qp, pkt, env),
            _ => self.on_ack(qp, pkt, env),
        }
    }

    /// Drops responses whose PSN is not in flight (IBA 9.7.5.1.1: ghost acknowledgements). A repetition of the latest
    /// acknowledgement is dropped too, after two effects: its credits may be newer, and it restarts the timer. It shows that the
    /// peer still works on repeated packets; a time-out would only add more of them. The peer sends at most one such
    /// acknowledgement for each packet, so the timer is not put off for ever.
    #[inline(always)]
    pub(crate) fn check_response_psn(&mut self, qp: &QpShared, pkt: &Packet<'_>, now: Nanos) -> Option<Reason> {
        let una = self.recovery.una_psn();
        if pkt.bth.psn.is_before(una) {
            if pkt.bth.psn.next() == una
                && let Some(Aeth { syndrome: Syndrome::Ack { credit }, msn }) = pkt.aeth()
                && pkt.info.kind == OpKind::Ack
            {
                self.take_credits(credit, msn);
                if self.ack_deadline != Nanos::NEVER {
                    self.ack_deadline = now + self.wait_again(qp);
                }
            }
            return Some(Reason::StaleAck);
        }
        (!pkt.bth.psn.is_before(self.recovery.sent_psn())).then_some(Reason::UnexpectedResponse)
    }

    pub(crate) fn take_credits(&mut self, credit: u8, msn: u32) {
        let limit = credits_of_code(credit).map_or(NO_LIMIT, |credits| Psn::new(msn).add(credits).get());
        if limit != self.credit_limit {
            self.credit_limit = limit;
            self.stalled = false;
        }
    }

    fn on_ack(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let Some(aeth) = pkt.aeth() else { return env.fx.count(Reason::BadResponse) };
        let psn = pkt.bth.psn;
        match aeth.syndrome {
            Syndrome::Ack { credit } => {
                self.take_credits(credit, aeth.msn);
                self.ack_or_go_back(qp, psn, env);
            }
            Syndrome::Rnr { timer } => self.on_rnr_nak(qp, psn, timer, env),
            Syndrome::Nak(NakCode::PsnSequence) => self.on_sequence_nak(qp, psn, env),
            Syndrome::Nak(code) => self.on_fatal_nak(qp, psn, code, env),
            Syndrome::Reserved(_) => env.fx.count(Reason::UnexpectedResponse),
        }
    }

    /// Acknowledges up to `psn` inclusive. Stops at an unanswered READ or ATOMIC; the result is false then.
    pub(crate) fn ack_through(&mut self, qp: &mut QpShared, psn: Psn, env: &mut Env<'_>) -> bool {
        let mut progress = false;
        let mut complete = true;
        while let Some(oldest) = self.recovery.oldest()
            && !self.recovery.una_psn().is_after(psn)
        {
            if oldest.work.has_response() {
                complete = false;
                break;
            }
            progress = true;
            let covered = psn.diff(self.recovery.una_psn()) as u32 + 1;
            if covered < oldest.packets - self.recovery.una_packet() {
                self.recovery.on_acked(covered);
                break;
            }
            self.retire_oldest(qp, env);
            self.retire_done(qp, env);
        }
        // Moves the cursor, too, if it is behind what was retired.
        if progress {
            self.progressed(qp, env);
        }
        complete
    }

    /// Something was acknowledged: retry counters and timers start anew.
    pub(crate) fn progressed(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        self.retire_local(qp, env);
        self.retry_left = qp.attr.retry_cnt;
        self.rnr_left = qp.attr.rnr_retry;
        self.stalled = false;
        self.recovery.rearm_implied_loss();
        if self.watched != 0 {
            self.on_watched_progress(qp, env);
        }
        self.timeouts = 0;
        self.ack_deadline = if self.recovery.is_outstanding() { env.now + qp.answer_wait } else { Nanos::NEVER };
        self.end_failed_oldest(qp, env);
        self.check_drained(qp, env);
    }

    /// Acknowledges up to `psn` inclusive. If the response of a READ or ATOMIC is missing before it, goes back to that, and
    /// the result is false.
    fn ack_or_go_back(&mut self, qp: &mut QpShared, psn: Psn, env: &mut Env<'_>) -> bool {
        let complete = self.ack_through(qp, psn, env);
        if !complete {
            self.on_implied_nak(qp, env);
        }
        complete
    }

    /// A response is missing: the request is sent again, once until there is progress. After that the timer repeats it.
    fn on_implied_nak(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        if !self.recovery.on_implied_loss() {
            return env.fx.count(Reason::UnexpectedResponse);
        }
        env.fx.count(Reason::ImpliedNak);
        env.fx.congestion(Signal::Loss);
        if self.sel.active {
            return self.ask_answer();
        }
        self.lose_flight(qp, env);
    }

    /// The peer has no receive: sends again after the time that the NAK gives (IBA 9.7.5.2.8). It acknowledges all before `psn`.
    fn on_rnr_nak(&mut self, qp: &mut QpShared, psn: Psn, timer: u8, env: &mut Env<'_>) {
        if psn != self.recovery.una_psn() && !self.ack_or_go_back(qp, psn.prev(), env) {
            return;
        }
        if self.recovery.is_empty() || self.rnr_deadline != Nanos::NEVER {
            return env.fx.count(Reason::StaleAck);
        }
        env.fx.count(Reason::RnrNakReceived);
        match self.rnr_left {
            0 => return self.fail_oldest(qp, WcStatus::RnrRetryExcErr, Reason::RnrRetryExhausted, env),
            7 => {}
            left => self.rnr_left = left - 1,
        }
        self.lose_flight(qp, env);
        self.rnr_deadline = env.now + rnr_timer(timer);
    }

    fn on_sequence_nak(&mut self, qp: &mut QpShared, psn: Psn, env: &mut Env<'_>) {
        if psn != self.recovery.una_psn() && !self.ack_or_go_back(qp, psn.prev(), env) {
            return;
        }
        if !self.recovery.is_outstanding() || self.rnr_deadline != Nanos::NEVER {
            return env.fx.count(Reason::StaleAck);
        }
        // Once for each packet, until there is progress: each further going back would send the same window once more.
        if !self.recovery.on_implied_loss() {
            return env.fx.count(Reason::NakRepeated);
        }
        env.fx.count(Reason::SequenceNakReceived);
        env.fx.congestion(Signal::Loss);
        self.retry(qp, env);
        self.sel.probes = 0;
        self.set_back(true);
    }

    pub(crate) fn on_fatal_nak(&mut self, qp: &mut QpShared, psn: Psn, code: NakCode, env: &mut Env<'_>) {
        if psn != self.recovery.una_psn() && !self.ack_or_go_back(qp, psn.prev(), env) {
            return;
        }
        if self.recovery.is_empty() {
            return env.fx.count(Reason::StaleAck);
        }
        let (status, reason) = match code {
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, Reason::RemoteAccessReported),
            NakCode::RemoteOperation => (WcStatus::RemOpErr, Reason::RemoteOperationReported),
            _ => (WcStatus::RemInvReqErr, Reason::RemoteInvalidReported),
        };
        self.fail_oldest(qp, status, reason, env);
    }

    /// Uses up one retry and goes back; without a retry left, the oldest request fails.
    fn retry(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if self.retry_left == 0 {
            return self.fail_oldest(qp, WcStatus::RetryExcErr, Reason::RetryExhausted, env);
        }
        self.retry_left -= 1;
        if self.sel.active {
            // As after going back, no timer runs until something is sent: repetitions may wait for their turn on a slow path, and
            // retries are counted by what was sent.
            self.ack_deadline = Nanos::NEVER;
            return self.on_selective_timeout(qp, env);
        }
        self.lose_flight(qp, env);
    }

    /// Acknowledges everything before `pkt`, a response whose PSN is in flight. Returns whether `pkt` answers the oldest
    /// request then, which must be of kind `work`.
    fn ack_before_response(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, work: Work, env: &mut Env<'_>) -> bool {
        let psn = pkt.bth.psn;
        if psn != self.recovery.una_psn() && !self.ack_through(qp, psn.prev(), env) {
            if work != Work::Read || !self.on_read_ahead(qp, pkt, env) {
                self.on_implied_nak(qp, env);
            }
            return false;
        }
        // Acknowledging may have moved the queue pair to ERR.
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) || self.recovery.una_psn() != psn {
            return false;
        }
        let Some(oldest) = self.recovery.oldest() else {
            env.fx.count(Reason::UnexpectedResponse);
            return false;
        };
        if oldest.work != work {
            self.fail_oldest(qp, WcStatus::BadRespErr, Reason::BadResponse, env);
            return false;
        }
        true
    }

    pub(crate) fn on_read_response(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !self.ack_before_response(qp, pkt, Work::Read, env) {
            return;
        }
        if let Some(Aeth { syndrome: Syndrome::Ack { credit }, msn }) = pkt.aeth() {
            self.take_credits(credit, msn);
        }
        let Some(&InflightWqe { length, packets, .. }) = self.recovery.oldest() else { return };
        let offset = self.recovery.una_packet() * qp.mtu;
        debug_assert!(offset < length.max(1));
        let expected = (length - offset).min(qp.mtu);
        if pkt.payload.len() != expected as usize {
            return self.fail_oldest(qp, WcStatus::BadRespErr, Reason::BadResponse, env);
        }
        let Some(oldest) = self.recovery.oldest() else { return };
        if let Err(reason) = self.recovery.place_response(&mut ResponseMemory::of(qp, env), oldest, offset, pkt.payload)
        {
            return self.not_placed(qp, reason, env);
        }
        self.recovery.on_acked(1);
        if self.recovery.una_packet() == packets {
            self.retire_oldest(qp, env);
        }
        if self.recovery.has_ahead() {
            self.take_ahead(qp, env);
        }
        self.progressed(qp, env);
    }

    pub(crate) fn on_atomic_ack(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !self.ack_before_response(qp, pkt, Work::Atomic, env) {
            return;
        }
        let Some(ack) = pkt.atomic_ack() else {
            return self.fail_oldest(qp, WcStatus::BadRespErr, Reason::BadResponse, env);
        };
        if let Err(reason) = self.place(qp, 0, &ack.original.to_ne_bytes(), env) {
            return self.not_placed(qp, reason, env);
        }
        debug_assert!(self.recovery.una_packet() == 0);
        self.recovery.on_acked(1);
        self.retire_oldest(qp, env);
        self.progressed(qp, env);
    }

    /// The memory for a response cannot be written. If a page is late, the response is asked for again after the time-out.
    #[cold]
    fn not_placed(&mut self, qp: &mut QpShared, reason: Reason, env: &mut Env<'_>) {
        match reason {
            Reason::PageLate => env.fx.count(reason),
            reason if reason.is_of_memory() => self.fail_oldest(qp, WcStatus::LocProtErr, reason, env),
            _ => self.fail_oldest(qp, WcStatus::LocProtErr, Reason::LocalProtection, env),
        }
    }

    /// Writes response bytes at `offset` of the oldest request's scatter list.
    fn place(&self, qp: &QpShared, offset: u32, bytes: &[u8], env: &mut Env<'_>) -> Result<(), Reason> {
        let Some(oldest) = self.recovery.oldest() else { return Err(Reason::LocalProtection) };
        self.recovery.place_at(&mut ResponseMemory::of(qp, env), oldest, offset, bytes)
    }

    /// Fires the requester's timers that are due.
    pub(crate) fn on_requester_timer(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if self.rnr_deadline <= env.now {
            self.rnr_deadline = Nanos::NEVER;
            self.stalled = false;
            if self.sel.active {
                self.lose_all(qp, env);
            }
        }
        if self.sel.deadline <= env.now {
            self.on_fast_timer(qp, env);
        }
        if self.ack_deadline <= env.now && !self.probe_first(qp, env) {
            env.fx.count(Reason::AckTimeout);
            env.fx.congestion(Signal::Timeout);
            let is_silent = self.timeouts > 0;
            self.recovery.rearm_implied_loss();
            self.timeouts = (self.timeouts + 1).min(BACKOFF_STEPS);
            if self.retry_left > 0 && !self.sel.active && self.recovery.ask_again() {
                self.retry_left -= 1;
                self.ack_deadline = Nanos::NEVER;
                self.begin_repair();
            } else {
                self.retry(qp, env);
                if is_silent && !self.sel.active && self.recovery.has_next() {
                    self.limit_by_silence(qp);
                }
            }
        }
    }
}
