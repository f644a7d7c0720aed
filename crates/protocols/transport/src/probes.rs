//! Probes of the standard family: the last packet is sent again when the peer has said nothing for two round trips.
//!
//! A lost packet is reported by a NAK when a later one arrives. No packet comes behind the last one. Without probes its loss, and
//! that of its acknowledgement, is found by the local ACK timeout alone, which is thousands of round trips. A responder answers a
//! repeated last packet in each case (IBA 9.7.5.1.3): if it was lost, it is executed; if its acknowledgement was lost, it is
//! acknowledged again; if packets in front of it were lost, too, a NAK reports the gap. Of a READ the missing part of the
//! response is requested, of an ATOMIC the saved result.
//!
//! **Timer.** There is none beside the local ACK timeout. [`Qp::answer_wait`] is the wait that each sign of progress begins: the
//! local ACK timeout, or the time until a probe, once the round trip is known. So a probe costs packets and acknowledgements no
//! instruction. Probes are sent at most [`PROBES_MAX`] times per flight (until all is acknowledged that was sent when the first
//! one left). Then the rest of the local ACK timeout is waited for, so verbs' `timeout` and `retry_cnt` keep their meaning. A
//! probe uses up no retry, and says nothing to congestion control. None is sent after going back ([`crate::going_back`] has a
//! timer of its own), after a time-out, nor while other packets are about to be sent.
//!
//! **Wait.** As in selective repeat: twice the round trip, or it and four times its variation ([`crate::rtt`]); not less than
//! [`crate::Effects::probe_wait_min`]. If that is more than a quarter of the local ACK timeout, there are no probes.
//!
//! **Round trip.** The time from sending a packet to progress beyond it; packets that were sent twice measure nothing (Karn). One
//! packet is measured when the queue pair begins, and another one when a timer of the engine passes without being due
//! ([`Qp::timer_passed`]): a measurement costs as much as a tenth of a short message.

use crate::api::{Env, TxBudget, TxState};
use crate::head::Work;
use crate::qp::Qp;
use crate::requester::{Requester, SendTurn};
use crate::selective::MeasuredPacket;
use crate::selective_sends::PacketMarks;
use crate::watch::{BACK, BEGIN_BACK, MEASURE_DUE, MEASURING, PROBE, RESTING, WAITS_PER_TIMEOUT};
use burst_base::{Nanos, Psn, Reason};

/// Probes per flight.
const PROBES_MAX: u8 = 2;

impl Requester {
    /// After going back less than the window is sent, or as much as may be again.
    #[cold]
    #[inline(never)]
    pub(crate) fn set_back(&mut self, is_back: bool) {
        self.back_limit = 0;
        self.stop_watching();
        if is_back {
            (self.watched, self.turn_due) = (BACK, BEGIN_BACK);
        }
    }
    /// Packets are sent again: what was to be measured is not. A later packet is.
    pub(crate) fn forget_measurement(&mut self) {
        if !self.sel.active {
            self.sel.measured = None;
            self.watched = self.watched & BACK | MEASURE_DUE;
        }
    }
    /// Nothing is watched and nothing is due: the family changes, or the queue pair ends.
    pub(crate) fn stop_watching(&mut self) {
        (self.watched, self.turn_due) = (if self.sel.active { 0 } else { MEASURE_DUE }, 0);
    }
    /// Packets from `first` on were sent for the first time, and a measurement is due.
    fn measure_from(&mut self, first: Psn, now: Nanos) {
        self.sel.measured = Some(MeasuredPacket::new(first.next(), now, first.next()));
        self.watched = MEASURING;
    }
}

/// The wait for progress.
impl Qp {
    /// Starts the wait for an acknowledgement after `count` packets were sent while no wait was running. `new` is false if they
    /// repeat earlier packets, whose round trip measures nothing.
    #[inline(always)]
    pub(crate) fn begin_flight(&mut self, count: u32, new: bool, now: Nanos) {
        self.req.ack_deadline = now + self.ack_wait();
        if self.req.watched != 0 {
            self.begin_watched_flight(count, new, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_watched_flight(&mut self, count: u32, new: bool, now: Nanos) {
        if self.req.is_back() {
            self.req.ack_deadline = now + self.whole_wait();
        } else if self.req.watched == MEASURE_DUE && new {
            self.req.measure_from(self.req.recovery.next_packet_psn().sub(count), now);
        }
    }

    /// The wait that progress begins follows the round trip, the local ACK timeout and the family.
    pub(crate) fn set_answer_wait(&mut self, env: &Env<'_>) {
        let timeout = self.ack_timeout();
        let rtt = &self.req.sel.rtt;
        let wait = rtt.probe_after(0).max(env.fx.probe_wait_min());
        let has_probes = !self.req.sel.active && rtt.is_known() && wait.0 <= timeout.0 / WAITS_PER_TIMEOUT;
        self.answer_wait = if has_probes { wait } else { timeout };
    }

    /// Progress while something is watched.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_watched_progress(&mut self, env: &mut Env<'_>) {
        let una = self.req.recovery.una_psn();
        self.probes.steps = 0;
        if !una.is_before(self.probes.end) {
            (self.probes.end, self.probes.sent) = (una, 0);
        }
        if self.req.watched & BACK != 0 {
            self.end_back(env.now);
            return self.set_answer_wait(env);
        }
        match self.req.sel.measured {
            Some(measured) if !una.is_before(measured.behind) => {
                self.req.sel.rtt.measured(env.arrived_at().since(measured.sent_at), Nanos(0));
                (self.req.sel.measured, self.req.watched) = (None, 0);
                self.set_answer_wait(env);
            }
            // The next packet is sent soon, because acknowledgements make room for it; otherwise the flight ends before.
            None if self.req.recovery.is_outstanding() => {
                self.req.measure_from(self.req.recovery.next_packet_psn(), env.now);
            }
            _ => {}
        }
    }

    /// A timer that the engine had set for this queue pair has passed, and nothing was due: the round trip may have changed
    /// since the last measurement.
    #[inline]
    pub fn timer_passed(&mut self) {
        if self.req.watched == 0 && !self.req.sel.active && self.id.qp_type.is_reliable() {
            self.req.watched = MEASURE_DUE;
        }
    }

    /// The wait for progress has passed. True if that was not the whole local ACK timeout: a probe is sent, or the rest is waited
    /// for.
    pub(crate) fn probe_first(&mut self, env: &mut Env<'_>) -> bool {
        let (una, sent, timeout) = (self.req.recovery.una_psn(), self.req.recovery.sent_psn(), self.ack_timeout());
        let wait = self.answer_wait;
        let is_whole = self.req.sel.active || self.req.timeouts > 0 || self.req.is_back() || wait >= timeout;
        if is_whole || !self.req.recovery.is_outstanding() {
            return false;
        }
        let may_probe = !self.wants_requests();
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
            self.req.ack_deadline = env.now + wait;
            if may_probe {
                probes.sent += 1;
                self.req.turn_due |= PROBE;
                self.req.begin_repetition();
            }
        } else {
            let passed = wait.0 * u64::from(probes.steps);
            probes.steps = RESTING;
            let is_endless = timeout == Nanos::NEVER;
            self.req.ack_deadline = if is_endless { timeout } else { env.now + Nanos(timeout.0 - passed) };
        }
        true
    }

    /// Whether packets are missing that were sent, or it has gone back to one.
    #[inline]
    pub fn is_recovering(&self) -> bool {
        self.req.sel.losses.is_some() || self.req.is_back()
    }

    /// How long to wait after a sign of life that is no progress.
    pub(crate) fn wait_again(&self) -> Nanos {
        let has_probes = self.probes.steps != RESTING && !self.req.is_back();
        if has_probes { self.ack_wait() } else { self.whole_wait() }
    }

    /// The wait for progress without probes.
    fn whole_wait(&self) -> Nanos {
        self.ack_wait().max(self.ack_timeout())
    }
}

/// Turns.
impl Qp {
    /// Something is to be done first in this turn. Returns why sending stops then, or nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_turn(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> Option<TxState> {
        if self.req.turn_due & BEGIN_BACK != 0 {
            self.begin_back(budget.window_bytes, env.now);
        }
        if self.req.turn_due & PROBE != 0 && !self.send_tail_probe(&mut SendTurn { budget }, env) {
            return Some(TxState::More);
        }
        self.req.turn_due = 0;
        self.end_failed_oldest(env);
        (self.state == burst_base::verbs::QpState::Err).then_some(TxState::More)
    }

    /// Sends the last packet again, or requests what is missing of the oldest READ. False if there is no room.
    fn send_tail_probe(&mut self, turn: &mut SendTurn<'_>, env: &mut Env<'_>) -> bool {
        let (una, next) = (self.req.recovery.una_psn(), self.req.recovery.next_packet_psn());
        if !self.req.recovery.is_outstanding() || una != self.probes.una {
            return true;
        }
        if turn.budget.wqes == 0 || !env.tx.has_room() {
            return false;
        }
        if self.req.recovery.has_ahead() && self.req.recovery.ask_again() {
            // Parts of READs are missing, and the requests for them, or what answered those, were lost.
            self.req.begin_repair();
            env.fx.count(Reason::TailProbe);
            return true;
        }
        let is_read = self.req.recovery.oldest().is_some_and(|oldest| oldest.work == Work::Read);
        let Some((request, index, psns)) =
            self.req.recovery.packet_of(if is_read { una } else { next.prev() }, self.mtu)
        else {
            return true;
        };
        let request = *request;
        if request.fail.is_some() {
            return true;
        }
        let pushed = match request.work {
            Work::Send | Work::Write => {
                let len = (request.length - index * self.mtu).min(self.mtu);
                let marks = PacketMarks { asks_ack: true, ..PacketMarks::default() };
                self.repeat_packet(&request, index, len, marks, turn, env)
            }
            Work::Read => {
                let first = if is_read { una.diff(request.first_psn) as u32 } else { index };
                self.push_read_range(&request, (first, index + psns), turn, env)
            }
            Work::Atomic => self.push_atomic(&request, turn, env),
            Work::Local => true,
        };
        if pushed {
            env.fx.count(Reason::TailProbe);
            self.req.forget_measurement();
        }
        pushed
    }
}
