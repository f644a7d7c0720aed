//! Probes of the standard family: the last packet is sent again when the peer has said nothing for two round trips.
//!
//! A lost packet is reported by a NAK when a later one arrives. No packet comes behind the last one. Without probes its loss, and
//! that of its acknowledgement, is found by the local ACK timeout alone, which is thousands of round trips. A responder answers a
//! repeated last packet in each case (IBA 9.7.5.1.3): if it was lost, it is executed; if its acknowledgement was lost, it is
//! acknowledged again; if packets in front of it were lost, too, a NAK reports the gap. Of a READ the missing part of the
//! response is requested, of an ATOMIC the saved result.
//!
//! **Timer.** There is none beside the local ACK timeout. [`QpShared::answer_wait`] is the wait that each sign of progress
//! begins: the local ACK timeout, or the time until a probe, once the round trip is known. So a probe costs packets and
//! acknowledgements no instruction. Probes are sent at most [`PROBES_MAX`] times per flight (until all is acknowledged that was
//! sent when the first one left). Then the rest of the local ACK timeout is waited for, so verbs' `timeout` and `retry_cnt` keep
//! their meaning. A probe uses up no retry, and says nothing to congestion control. None is sent after going back
//! ([`crate::requester::standard::go_back_n`] has a timer of its own), after a time-out, nor while other packets are about to be
//! sent.
//!
//! **Wait.** As in selective repeat: twice the round trip, or it and four times its variation ([`crate::rtt`]); not less than
//! [`crate::Effects::probe_wait_min`]. If that is more than a quarter of the local ACK timeout, there are no probes.
//!
//! **Round trip.** The time from sending a packet to progress beyond it; packets that were sent twice measure nothing (Karn). One
//! packet is measured when the queue pair begins, and another one when a timer of the engine passes without being due
//! ([`crate::Qp::timer_passed`]): a measurement costs as much as a tenth of a short message.

use crate::api::{Env, TxBudget, TxState};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::probe_state::{BACK, BEGIN_BACK, MEASURE_DUE, PROBE, RESTING};
use crate::requester::recovery::MissingRange;
use crate::requester::selective::heads::PacketMarks;
use crate::requester::selective::sending::RepeatedPacket;
use crate::requester::{Requester, SendTurn};
use burst_base::{Nanos, Reason};

/// Probes per flight.
const PROBES_MAX: u8 = 2;

/// The wait for progress.
impl Requester {
    /// The first packets of a flight were sent, `count` of them; or those of a repetition, if they are not `new`.
    #[inline(always)]
    pub(crate) fn begin_flight(&mut self, qp: &QpShared, count: u32, new: bool, now: Nanos) {
        self.ack_deadline = now + self.ack_wait(qp);
        if self.watched != 0 {
            self.begin_watched_flight(qp, count, new, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_watched_flight(&mut self, qp: &QpShared, count: u32, new: bool, now: Nanos) {
        if self.is_back() {
            self.ack_deadline = now + self.whole_wait(qp);
        } else if self.watched == MEASURE_DUE && new {
            self.measure_from(self.recovery.next_packet_psn().sub(count), now);
        }
    }

    /// Progress while something is watched.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_watched_progress(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        let una = self.recovery.una_psn();
        self.probes.steps = 0;
        if !una.is_before(self.probes.end) {
            (self.probes.end, self.probes.sent) = (una, 0);
        }
        if self.timeouts > 0 && !self.sel.rtt.is_known() {
            let wait = self.ack_wait(qp);
            self.sel.rtt.answered_in(wait);
            self.set_answer_wait(qp, env);
        }
        if self.watched & BACK != 0 {
            self.end_back(env);
            return self.set_answer_wait(qp, env);
        }
        match self.sel.measured {
            Some(measured) if !una.is_before(measured.behind) => {
                self.sel.measure(env.arrived_at().since(measured.sent_at), Nanos(0), env);
                (self.sel.measured, self.watched) = (None, 0);
                self.set_answer_wait(qp, env);
            }
            // The next packet is sent soon, because acknowledgements make room for it; otherwise the flight ends before.
            None if self.recovery.is_outstanding() => {
                self.measure_from(self.recovery.next_packet_psn(), env.now);
            }
            _ => {}
        }
    }

    /// The wait for progress has passed. True if that was not the whole local ACK timeout: a probe is sent, or the rest is waited
    /// for.
    pub(crate) fn probe_first(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        let (una, sent, timeout) = (self.recovery.una_psn(), self.recovery.sent_psn(), qp.ack_timeout());
        let wait = qp.answer_wait;
        let is_whole = self.sel.active || self.timeouts > 0 || self.is_back() || wait >= timeout;
        if is_whole || !self.recovery.is_outstanding() {
            return false;
        }
        let may_probe = !self.wants_requests(qp);
        let probes = &mut self.probes;
        if probes.una != una || probes.steps == 0 {
            (probes.una, probes.steps) = (una, 0);
        }
        if probes.steps == RESTING {
            probes.steps = 0;
            return false;
        }
        probes.steps += 1;
        if probes.sent == 0 || !una.is_before(probes.end) {
            (probes.end, probes.sent) = (sent, 0);
        }
        if probes.sent < PROBES_MAX && probes.steps <= PROBES_MAX {
            self.ack_deadline = env.now + wait;
            if may_probe {
                probes.sent += 1;
                self.turn_due |= PROBE;
                self.begin_repetition();
            }
        } else {
            let passed = wait.0 * u64::from(probes.steps);
            probes.steps = RESTING;
            let is_endless = timeout == Nanos::NEVER;
            self.ack_deadline = if is_endless { timeout } else { env.now + Nanos(timeout.0 - passed) };
        }
        true
    }

    /// How long to wait after an answer that is no progress.
    pub(crate) fn wait_again(&self, qp: &QpShared) -> Nanos {
        let has_probes = self.probes.steps != RESTING && !self.is_back();
        if has_probes { self.ack_wait(qp) } else { self.whole_wait(qp) }
    }

    /// The wait for progress without probes.
    fn whole_wait(&self, qp: &QpShared) -> Nanos {
        self.ack_wait(qp).max(qp.ack_timeout())
    }
}

/// Turns.
impl Requester {
    /// Something is to be done first in this turn. Returns why sending stops then, or nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_turn(
        &mut self,
        qp: &mut QpShared,
        budget: &mut TxBudget,
        env: &mut Env<'_>,
    ) -> Option<TxState> {
        if self.turn_due & BEGIN_BACK != 0 {
            self.begin_back(qp, budget.window_bytes, env.now);
        }
        let is_probed = match self.receipts {
            _ if self.turn_due & PROBE == 0 => true,
            Some(_) => self.push_receipt_probe(qp, env),
            None => self.send_tail_probe(qp, &mut SendTurn { budget }, env),
        };
        if !is_probed {
            return Some(TxState::More);
        }
        self.turn_due = 0;
        self.end_failed_oldest(qp, env);
        (qp.state == burst_base::verbs::QpState::Err).then_some(TxState::More)
    }

    /// Sends the last packet again, or requests what is missing of the oldest READ. False if there is no room.
    fn send_tail_probe(&mut self, qp: &QpShared, turn: &mut SendTurn<'_>, env: &mut Env<'_>) -> bool {
        let (una, next) = (self.recovery.una_psn(), self.recovery.next_packet_psn());
        if !self.recovery.is_outstanding() || una != self.probes.una {
            return true;
        }
        if turn.budget.wqes == 0 || !env.tx.has_room() {
            return false;
        }
        if self.recovery.has_ahead() && self.recovery.ask_again() {
            // Parts of READs are missing, and the requests for them, or what answered those, were lost.
            self.begin_repair();
            env.fx.count(Reason::TailProbe);
            return true;
        }
        let is_read = self.recovery.oldest().is_some_and(|oldest| oldest.work == Work::Read);
        let Some((request, index, psns)) = self.recovery.packet_of(if is_read { una } else { next.prev() }, qp.mtu)
        else {
            return true;
        };
        let request = *request;
        if request.fail.is_some() {
            return true;
        }
        let pushed = match request.work {
            Work::Send | Work::Write => {
                let len = (request.length - index * qp.mtu).min(qp.mtu);
                let marks = PacketMarks { asks_ack: true, ..PacketMarks::default() };
                self.repeat_packet(qp, RepeatedPacket { request: &request, index, len, marks }, turn, env)
            }
            Work::Read => {
                let first = if is_read { una.diff(request.first_psn) as u32 } else { index };
                self.push_read_range(qp, &MissingRange { request, first, end: index + psns }, turn, env)
            }
            Work::Atomic => self.push_atomic(qp, &request, turn, env),
            Work::Local => true,
        };
        if pushed {
            env.fx.count(Reason::TailProbe);
            self.forget_measurement();
        }
        pushed
    }
}
