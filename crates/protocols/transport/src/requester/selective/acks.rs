//! The requester of the selective repeat family: acknowledgements, responses and time-outs.
//!
//! An acknowledgement says three things: everything before ePSN was executed (cumulative), what has arrived behind it (bitmap),
//! and which packet arrived last (trigger). Gaps are lost packets ([`crate::requester::selective::losses`]). A cumulative
//! acknowledgement beyond a READ or ATOMIC says that the request was executed, not that its response has come: a response that
//! stays away is asked for again.
//!
//! Two timers. The *fast* one follows the round trip: after it the last packet is sent again as a probe, at most twice, and then
//! all that is unacknowledged is lost. It costs no retry. The local ACK timeout of the queue pair keeps its meaning: without
//! progress for `retry_cnt` + 1 of them the oldest request fails (IBA 9.7.6.1.3).
//!
//! If the peer has never answered in the family and [`SILENT_TIMEOUTS`] time-outs have passed, the requests are sent in the
//! standard family, from the message at which the family began.

use crate::api::{Env, Signal};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::recovery::placement::ResponseMemory;
use crate::requester::selective::losses::{Losses, LossesFound};
use crate::requester::selective::sending::PROBE_TRANSMISSION;
use crate::requester::selective::{MeasuredPacket, SelectiveProbe};
use crate::rtt::PROBES_MAX;
use burst_base::verbs::{QpState, WcStatus};
use burst_base::{Nanos, Psn, Reason, RtoMode};
use burst_frame::RxFrame;
use burst_wire::aeth::rnr_timer;
use burst_wire::selective::DELAY_UNIT_NS;
use burst_wire::{Aeth, NakCode, OpKind, Packet, Saeth, Syndrome};

/// Time-outs without any answer in the family after which the standard family is used: 30 ms and more, in which the queues of a
/// path have drained.
const SILENT_TIMEOUTS: u8 = 2;
/// The same for IRN's time-outs, which begin with 320 us.
const SILENT_TIMEOUTS_OF_IRN: u8 = 7;

/// The headers of an acknowledgement.
struct SelectiveAck {
    aeth: Aeth,
    saeth: Saeth,
}

/// How far requests are answered and acknowledged.
#[derive(Clone, Copy)]
pub(crate) struct AckedPositions {
    pub(crate) una: Psn,
    pub(crate) acked: Psn,
}

impl Requester {
    pub(crate) fn acked_positions(&self) -> AckedPositions {
        AckedPositions { una: self.recovery.una_psn(), acked: self.sel.acked }
    }

    /// An acknowledgement of the family.
    #[inline(never)]
    pub(crate) fn on_selective_ack(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        if !self.sel.active {
            return env.fx.count(Reason::SrNotNegotiated);
        }
        let (Some(aeth), Some(saeth)) = (pkt.aeth(), pkt.saeth()) else { return env.fx.count(Reason::BadResponse) };
        let ack = SelectiveAck { aeth, saeth };
        if !self.take_plain_ack(qp, pkt.bth.psn, &ack, env) {
            self.take_any_ack(qp, pkt, &ack, env);
        }
    }

    /// An acknowledgement that tells of progress and of nothing else, while nothing is missing. False, and nothing is done, if it
    /// is another one.
    #[inline(always)]
    fn take_plain_ack(
        &mut self,
        qp: &mut QpShared,
        psn: Psn,
        SelectiveAck { aeth, saeth }: &SelectiveAck,
        env: &mut Env<'_>,
    ) -> bool {
        let (Syndrome::Ack { credit }, expected) = (aeth.syndrome, psn.next()) else { return false };
        let (una, sent, sel) = (self.recovery.una_psn(), self.recovery.sent_psn(), &self.sel);
        let has_gaps = saeth.words > 0 || sel.losses.is_some() || !saeth.trigger.is_before(expected);
        let is_progress = expected.is_after(una) && !expected.is_after(sent);
        if has_gaps || !is_progress || una != sel.acked || sel.answer_due {
            return false;
        }
        self.note_answer(qp, saeth, expected, env);
        self.take_credits(credit, aeth.msn);
        self.sel.acked = expected;
        self.ack_through(qp, psn, env);
        if self.recovery.una_psn() != expected {
            // READs and ATOMICs wait for their responses, or the queue pair has ended.
            if matches!(qp.state, QpState::Rts | QpState::Sqd) {
                self.note_probe_answer(saeth);
                self.after_answer(qp, AckedPositions { una, acked: una }, true, env);
            }
            return true;
        }
        debug_assert!(self.sel.covered_bytes == 0, "bytes are covered while nothing is missing");
        (self.sel.probes, self.sel.backoff, self.sel.sent_since) = (0, 0, true);
        self.arm_fast(qp, env.now);
        true
    }

    /// An acknowledgement of any kind.
    #[inline(never)]
    fn take_any_ack(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, ack: &SelectiveAck, env: &mut Env<'_>) {
        let before = self.acked_positions();
        let is_new = self.take_ack(qp, pkt, ack, env);
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.after_answer(qp, before, is_new, env);
        }
    }

    /// A response of the family.
    #[inline(never)]
    pub(crate) fn on_selective_response(
        &mut self,
        qp: &mut QpShared,
        frame: &RxFrame<'_>,
        pkt: &Packet<'_>,
        env: &mut Env<'_>,
    ) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        if !self.sel.active {
            return env.fx.count(Reason::SrNotNegotiated);
        }
        if let Some(reason) = self.check_response_psn(qp, pkt, env.now) {
            if reason == Reason::StaleAck && pkt.info.kind == OpKind::ReadResponse {
                self.acknowledge_response(frame, pkt, self.recovery.una_psn(), env.now);
            }
            return env.fx.count(reason);
        }
        let before = self.acked_positions();
        self.sel.answered = true;
        if pkt.seth().is_some_and(|seth| seth.transmission == 0 && !seth.is_repair) {
            self.answers_measure(qp, (pkt.bth.psn, 1), env);
        }
        match pkt.info.kind {
            OpKind::ReadResponse => {
                self.on_read_response(qp, pkt, env);
                self.acknowledge_response(frame, pkt, before.una, env.now);
            }
            _ => self.on_selective_atomic_ack(qp, pkt, env),
        }
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.after_answer(qp, before, false, env);
        }
    }

    /// A response has come: it is acknowledged at once if it ends a READ, asks for it, or is one behind a gap or of a repair; and
    /// if it is here already: the peer, which sends it again, does not know that.
    #[inline(never)]
    fn acknowledge_response(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, una: Psn, now: Nanos) {
        if self.read_acks.is_none() {
            return;
        }
        let seth = pkt.seth().unwrap_or_default();
        self.note_responses(&frame.flow, (pkt.bth.psn, seth.transmission), (1, pkt.payload.len() as u32), now);
        if pkt.info.position.is_end() || pkt.bth.ack_req || seth.is_repair || pkt.bth.psn != una {
            self.owe_read_ack();
        }
    }

    /// An answer of the standard family while requests of this one are in flight. Only a NAK that ends the queue pair is taken:
    /// the host of a peer that has died sends it, which does not know the family. Others answer nothing that was asked, and
    /// would end requests behind the back of the record of lost packets.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_standard_nak(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if let Some(reason) = self.check_response_psn(qp, pkt, env.now) {
            return env.fx.count(reason);
        }
        let code = match (pkt.info.kind, pkt.aeth()) {
            (OpKind::Ack, Some(Aeth { syndrome: Syndrome::Nak(code), .. })) if code != NakCode::PsnSequence => code,
            _ => return env.fx.count(Reason::UnexpectedResponse),
        };
        let psn = pkt.bth.psn;
        let before = self.acked_positions();
        self.advance_acked(psn);
        self.ack_through(qp, psn.prev(), env);
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.on_selective_nak(qp, psn, code, env);
        }
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.after_answer(qp, before, false, env);
        }
    }

    /// An ATOMIC's answer may come before those of the requests in front of it. Its result is placed, and it ends in its turn.
    fn on_selective_atomic_ack(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let psn = pkt.bth.psn;
        self.ack_through(qp, psn.prev(), env);
        if psn == self.recovery.una_psn() {
            return self.on_atomic_ack(qp, pkt, env);
        }
        let mtu = qp.mtu;
        let answered = self.recovery.packet_of(psn, mtu).map(|(request, ..)| *request);
        let (Some(request), Some(ack)) = (answered.filter(|request| request.work == Work::Atomic), pkt.atomic_ack())
        else {
            return env.fx.count(Reason::UnexpectedResponse);
        };
        if request.done || request.fail.is_some() {
            return env.fx.count(Reason::UnexpectedResponse);
        }
        match self.recovery.place_at(&mut ResponseMemory::of(qp, env), &request, 0, &ack.original.to_ne_bytes()) {
            Ok(()) => self.recovery.mark_answered(psn),
            Err(reason) => env.fx.count(reason),
        }
    }

    /// Handles an acknowledgement. Returns whether packets have arrived of which nothing was known.
    fn take_ack(
        &mut self,
        qp: &mut QpShared,
        pkt: &Packet<'_>,
        SelectiveAck { aeth, saeth }: &SelectiveAck,
        env: &mut Env<'_>,
    ) -> bool {
        let (psn, sent) = (pkt.bth.psn, self.recovery.sent_psn());
        let (expected, is_known) = match aeth.syndrome {
            Syndrome::Ack { .. } => (psn.next(), !psn.next().is_after(sent)),
            Syndrome::Rnr { .. } | Syndrome::Nak(_) => (psn, psn.is_before(sent)),
            Syndrome::Reserved(_) => (psn, false),
        };
        if expected.is_before(self.sel.acked) || !is_known {
            env.fx.count(if is_known { Reason::StaleAck } else { Reason::UnexpectedResponse });
            return false;
        }
        self.note_trigger(saeth, expected, env);
        self.note_answer(qp, saeth, expected, env);
        if let Syndrome::Ack { credit } = aeth.syndrome {
            self.take_credits(credit, aeth.msn);
        }
        let progress = expected != self.sel.acked;
        self.advance_acked(expected);
        self.ack_through(qp, expected.prev(), env);
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return progress;
        }
        self.note_probe_answer(saeth);
        let arrived = self.take_selective_bitmap(qp, pkt, (saeth, expected), env);
        match aeth.syndrome {
            Syndrome::Rnr { timer } => self.on_selective_rnr(qp, timer, env),
            Syndrome::Nak(code) => self.on_selective_nak(qp, psn, code, env),
            _ => {}
        }
        progress || arrived
    }

    /// What the newest packet at the peer shows of missing packets: reordering, the arrival of a repetition.
    fn note_trigger(&mut self, saeth: &Saeth, expected: Psn, env: &mut Env<'_>) {
        let is_sent = saeth.trigger.is_before(self.recovery.sent_psn());
        let sel = &mut self.sel;
        if let Some(losses) = &mut sel.losses
            && losses.on_trigger(saeth.trigger, saeth.transmission)
        {
            env.fx.count(Reason::SrReordered);
            sel.rtt.on_reordering();
            let is_kept = saeth.words > 0 || saeth.trigger.is_before(expected);
            if saeth.transmission == 0 && is_kept {
                losses.on_needless(saeth.trigger);
            }
        }
        if let Some(losses) = sel.losses.as_mut().filter(|_| is_sent && saeth.transmission == 0) {
            losses.on_newest(saeth.trigger);
        }
    }

    /// The answer to a probe that was sent after the repairs of responses that are missing although later ones have arrived: a
    /// responder sends repairs first, so they are lost, or their requests. Another wait would show no more. Without later ones
    /// the responses may wait for the window of the responder.
    fn note_probe_answer(&mut self, saeth: &Saeth) {
        let is_answer = saeth.transmission > PROBE_TRANSMISSION && self.sel.probe == SelectiveProbe::Sent;
        if is_answer && self.recovery.has_ahead() {
            self.sel.probe = SelectiveProbe::None;
            self.ask_answer();
        }
    }

    /// What an acknowledgement says of the path: the round trip, and counts for congestion control. Most say nothing that is
    /// wanted now; the counts are cumulative, so a later one says it, too.
    #[inline(always)]
    fn note_answer(&mut self, qp: &mut QpShared, saeth: &Saeth, expected: Psn, env: &mut Env<'_>) {
        let (sel, reports_each) = (&mut self.sel, self.reports_each);
        sel.answered = true;
        let is_wanted = sel.measured.is_some() || saeth.is_congested || saeth.pressure > 0;
        if is_wanted || reports_each || sel.echoed.is_behind(saeth) {
            self.report_answer(qp, saeth, expected, env);
        }
    }

    #[inline(never)]
    fn report_answer(&mut self, qp: &mut QpShared, saeth: &Saeth, expected: Psn, env: &mut Env<'_>) {
        let sel = &mut self.sel;
        let (mut rtt, mut is_measured) = (None, false);
        if let Some(measured) = sel.measured {
            let MeasuredPacket { behind, sent_at, transmission, .. } = measured;
            let (elapsed, delay) = (env.arrived_at().since(sent_at), Nanos(u64::from(saeth.delay) * DELAY_UNIT_NS));
            let has_come = !saeth.trigger.next().is_before(behind) && saeth.transmission == transmission;
            let is_it = has_come && saeth.trigger.is_before(measured.end());
            // An acknowledgement may be that of a later packet, which was sent later. For the timers that does no harm, unless
            // what was missing in between has held it up.
            if is_it || (has_come && !expected.is_before(behind) && sel.losses.is_none()) {
                sel.measure(elapsed, delay, env);
                is_measured = true;
                rtt = is_it.then(|| Nanos(elapsed.0.saturating_sub(delay.0)));
            }
            if has_come || !expected.is_before(behind) {
                sel.measured = None;
                if rtt.is_none() {
                    sel.rtt.measure_next();
                }
            }
        }
        env.fx.acknowledged(&sel.echoed.take(saeth, rtt));
        if is_measured {
            self.set_answer_wait(qp, env);
        }
    }

    fn advance_acked(&mut self, expected: Psn) {
        let sel = &mut self.sel;
        if expected.is_after(sel.acked) {
            sel.acked = expected;
            if let Some(losses) = &mut sel.losses {
                losses.advance(expected);
            }
        }
    }

    /// Takes what has arrived behind the first missing packet. Returns whether that was unknown.
    fn take_selective_bitmap(
        &mut self,
        qp: &QpShared,
        pkt: &Packet<'_>,
        (saeth, expected): (&Saeth, Psn),
        env: &mut Env<'_>,
    ) -> bool {
        let Some(bitmap) = pkt.bitmap() else { return false };
        let refused = bitmap.words() == 0 && !saeth.trigger.is_before(expected);
        let is_sent = saeth.trigger.is_before(self.recovery.sent_psn());
        if bitmap.words() == 0 && !(refused && is_sent) {
            return false;
        }
        let Some(mut losses) = self.take_losses(qp, expected, env) else {
            // Without a record everything is sent again; once until there is progress.
            if self.recovery.on_implied_loss() {
                env.fx.congestion(Signal::Loss);
                self.lose_flight(qp, env);
                self.stop_selective();
            }
            return false;
        };
        let (now, sent, mtu) = (env.now, self.recovery.sent_psn(), qp.mtu);
        let tolerance = self.sel.rtt.tolerance();
        let recovery = &self.recovery;
        let packet_of = |psn: Psn| recovery.packet_of(psn, mtu).map(|(r, first, n)| (r.first_psn.add(first), n));
        let newest = (saeth.transmission == 0 && is_sent).then_some(saeth.trigger);
        let arrived = losses.take_bitmap(bitmap, newest, sent) > 0;
        let gaps = losses.find(now, tolerance, packet_of);
        let dropped = match refused {
            true => losses.refused(saeth.trigger, saeth.transmission, packet_of),
            false => LossesFound::default(),
        };
        debug_assert!(losses.is_consistent());
        self.sel.losses = Some(losses);
        [gaps, dropped].into_iter().for_each(|found| self.on_found(found, env));
        arrived
    }

    /// Packets were found to be lost: they are repeated, with one signal to congestion control for each window of data.
    fn on_found(&mut self, found: LossesFound, env: &mut Env<'_>) {
        if found.packets > 0 {
            self.begin_repetition();
        }
        if found.is_signal {
            env.fx.congestion(Signal::Loss);
            self.note_signal();
        }
    }

    /// A loss was reported to congestion control: what was sent until now is of the same window of data.
    pub(crate) fn note_signal(&mut self) {
        let sent = self.recovery.sent_psn();
        self.recover = sent;
        if let Some(losses) = &mut self.sel.losses {
            losses.on_signal(sent);
        }
    }

    /// The PSN before which losses belong to a window of data whose loss was reported to congestion control. One of long ago says
    /// nothing: PSNs have come round since.
    pub(crate) fn recover_from(&self, base: Psn) -> Psn {
        let (recover, sent) = (self.recover, self.recovery.sent_psn());
        if recover.is_after(base) && !recover.is_after(sent) { recover } else { base }
    }

    /// The record of missing packets: a new one, if there is none. That begins a recovery.
    fn take_losses(&mut self, qp: &QpShared, expected: Psn, env: &mut Env<'_>) -> Option<Box<Losses>> {
        if let Some(losses) = self.sel.losses.take() {
            return Some(losses);
        }
        let mut losses = env.fx.records()?.take_losses(qp.flow.dst)?;
        losses.begin(expected, self.recover_from(expected));
        self.sel.measured = None;
        env.fx.count(Reason::SrRecovery);
        Some(losses)
    }

    /// The peer has no receive for the oldest packet: it is sent again after the time that the NAK gives, and with it
    /// whatever has not arrived by then.
    fn on_selective_rnr(&mut self, qp: &mut QpShared, timer: u8, env: &mut Env<'_>) {
        if self.recovery.is_empty() || self.rnr_deadline != Nanos::NEVER {
            return env.fx.count(Reason::StaleAck);
        }
        env.fx.count(Reason::RnrNakReceived);
        match self.rnr_left {
            0 => return self.fail_oldest(qp, WcStatus::RnrRetryExcErr, Reason::RnrRetryExhausted, env),
            7 => {}
            left => self.rnr_left = left - 1,
        }
        self.rnr_deadline = env.now + rnr_timer(timer);
        // The peer answers. Nothing is sent until then, so no time-out runs either.
        self.ack_deadline = Nanos::NEVER;
    }

    fn on_selective_nak(&mut self, qp: &mut QpShared, psn: Psn, code: NakCode, env: &mut Env<'_>) {
        if psn == self.recovery.una_psn() {
            return self.on_fatal_nak(qp, psn, code, env);
        }
        // Responses in front of the refused request are missing, and will not come: the peer is in error.
        env.fx.count(Reason::UnexpectedResponse);
        self.ask_answer();
    }

    /// The response of the oldest request is missing: it is asked for again.
    pub(crate) fn ask_answer(&mut self) {
        if !self.recovery.ask_reads_again(self.sel.acked) {
            self.sel.answer_due = true;
        }
        self.begin_repetition();
    }

    /// After each answer: requests that were acknowledged before end now; the window, the record and the timer follow.
    pub(crate) fn after_answer(&mut self, qp: &mut QpShared, before: AckedPositions, is_new: bool, env: &mut Env<'_>) {
        let AckedPositions { una, acked } = before;
        let before = self.recovery.una_psn();
        self.advance_acked(before);
        if before.is_before(self.sel.acked) && before != una {
            self.ack_through(qp, self.sel.acked.prev(), env);
            if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
                return;
            }
            self.advance_acked(self.recovery.una_psn());
        }
        if self.recovery.una_psn() != una {
            self.sel.answer_due = false;
            self.sel.note_asked();
        }
        if self.sel.losses.as_ref().is_some_and(|losses| losses.is_over()) {
            self.end_recovery(env);
        }
        self.recount_covered(qp, env);
        if is_new || self.recovery.una_psn() != una || self.sel.acked != acked {
            self.stalled = false;
            (self.sel.probes, self.sel.backoff, self.sel.sent_since) = (0, 0, true);
            self.restart_ack_timer(qp, env.now);
        }
        self.arm_fast(qp, env.now);
    }

    /// Nothing is missing any more: the record goes back.
    fn end_recovery(&mut self, env: &mut Env<'_>) {
        let Some(losses) = self.sel.losses.take() else { return };
        self.sel.rtt.on_recovered();
        if losses.gone_bytes > 0 {
            env.fx.unacknowledged(-i64::from(losses.gone_bytes));
        }
        if losses.was_needless() {
            env.fx.congestion(Signal::Spurious);
        }
        if let Some(pool) = env.fx.records() {
            pool.give_losses(losses);
        }
    }
}

/// Timers.
impl Requester {
    /// The fast timer is due.
    #[cold]
    pub(crate) fn on_fast_timer(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        if !self.sel.active {
            return self.on_back_timer(qp, env);
        }
        let (now, mtu) = (env.now, qp.mtu);
        let tolerance = self.sel.rtt.tolerance();
        let recovery = &self.recovery;
        let packet_of = |psn: Psn| recovery.packet_of(psn, mtu).map(|(r, first, n)| (r.first_psn.add(first), n));
        let sel = &mut self.sel;
        if let Some(losses) = sel.losses.as_mut().filter(|losses| losses.deadline(tolerance) <= now) {
            // A gap has stayed for as long as reordering is tolerated.
            let found = losses.find(now, tolerance, packet_of);
            self.on_found(found, env);
            self.recount_covered(qp, env);
            return self.arm_fast(qp, now);
        }
        if !sel.sent_since && sel.wants_repair() {
            // What is to be sent again waits for its turn.
        } else if !sel.acked.is_before(recovery.next_packet_psn()) {
            // All requests have arrived, and a response is missing.
            sel.backoff = sel.backoff.saturating_add(1);
            sel.sent_since = false;
            sel.probes = PROBES_MAX;
            self.ask_answer();
        } else if sel.probes < PROBES_MAX && sel.rtt.mode() != RtoMode::Irn {
            sel.probes += 1;
            (sel.probe, sel.sent_since) = (SelectiveProbe::Due, false);
            sel.rtt.measure_next();
            self.begin_repetition();
        } else {
            env.fx.count(Reason::SrTimeout);
            env.fx.congestion(Signal::Timeout);
            self.note_signal();
            return self.on_selective_timeout(qp, env);
        }
        self.arm_fast(qp, now);
    }

    /// A time-out: all that is unacknowledged is sent again; in the standard family, if the peer has never answered.
    pub(crate) fn on_selective_timeout(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        let sel = &mut self.sel;
        sel.backoff = sel.backoff.saturating_add(sel.sent_since.into());
        sel.sent_since = false;
        let silent = if sel.rtt.mode() == RtoMode::Irn { SILENT_TIMEOUTS_OF_IRN } else { SILENT_TIMEOUTS };
        if !sel.answered && sel.backoff >= silent {
            return self.fall_back(qp, env);
        }
        self.lose_all(qp, env);
    }

    /// All that is unacknowledged is to be sent again; of a READ that the peer has begun to answer, what is missing of the
    /// response.
    pub(crate) fn lose_all(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        if let Some(end) = self.recovery.answered_piece(qp.mtu) {
            self.advance_acked(end);
        }
        let held = self.sel.losses.take();
        let (acked, peer) = (self.sel.acked, qp.flow.dst);
        let recover = self.recover_from(acked);
        let fresh = || {
            let mut losses = env.fx.records()?.take_losses(peer)?;
            losses.begin(acked, recover);
            Some(losses)
        };
        let Some(mut losses) = held.or_else(fresh) else {
            self.lose_flight(qp, env);
            return self.stop_selective();
        };
        let (end, mtu) = (self.recovery.next_packet_psn(), qp.mtu);
        let recovery = &self.recovery;
        losses.mark_all(end, |psn| recovery.packet_of(psn, mtu).map(|(r, first, n)| (r.first_psn.add(first), n)));
        self.sel.losses = Some(losses);
        self.sel.measured = None;
        if self.recovery.una_psn().is_before(acked) {
            self.ask_answer();
        }
        self.recount_covered(qp, env);
        self.begin_repetition();
        self.arm_fast(qp, env.now);
    }

    /// The peer does not know the family: the requests are sent again in the standard one.
    fn fall_back(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        env.fx.count(Reason::SrRefused);
        env.fx.selective_refused();
        if let Some(losses) = self.sel.losses.take()
            && let Some(pool) = env.fx.records()
        {
            pool.give_losses(losses);
        }
        self.sel.window = 0;
        self.set_family(false);
        self.set_answer_wait(qp, env);
        self.lose_flight(qp, env);
        self.stop_selective();
        self.begin_repetition();
    }
}
