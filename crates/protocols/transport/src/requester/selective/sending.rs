//! Requests of the selective repeat family: heads of packets, repetitions.
//!
//! New packets pass through the same code as those of the standard family (`messages`), with other heads. Repetitions do not move
//! the cursor: each lost packet is made again from its request and its index, lowest PSN first, before new packets.

use crate::api::{Env, TxState};
use crate::opcodes::{self, Work};
use crate::qp_shared::QpShared;
use crate::requester::heads::message_head;
use crate::requester::recovery::InflightWqe;
use crate::requester::selective::SelectiveProbe;
use crate::requester::selective::heads::{
    PacketMarks, atomic_eth, selective_atomic_head, selective_message_head, selective_read_head, set_selective_place,
};
use crate::requester::selective::losses::LostPacket;
use crate::requester::{Requester, SendTurn};
use crate::sge_cursor::{Keys, SgeCursor};
use burst_base::verbs::{QpState, WcStatus, send_flags};
use burst_base::{Psn, Reason};
use burst_span::Span;
use burst_wire::selective::TRANSMISSION_MAX;
use burst_wire::{Bth, HeadBuf, Opcode, Seth};

/// Probes have transmission numbers above this one, so that their arrival tells them from repetitions.
pub(crate) const PROBE_TRANSMISSION: u8 = 7;

/// A packet of a SEND or WRITE that is sent again: its index, and its bytes of payload.
pub(crate) struct RepeatedPacket<'a> {
    pub(crate) request: &'a InflightWqe,
    pub(crate) index: u32,
    pub(crate) len: u32,
    pub(crate) marks: PacketMarks,
}

/// Turns and measurements.
impl Requester {
    /// Whether there may be something to send again, or requests.
    #[inline(always)]
    pub(crate) fn has_selective_requests(&self) -> bool {
        self.recovery.has_next() || self.sq_active || self.sel.wants_repair()
    }

    /// Sends what was lost, then requests, until a limit stops it; `None` if the next request is of the standard family.
    #[inline(never)]
    pub(crate) fn send_selective_requests(
        &mut self,
        qp: &mut QpShared,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> Option<TxState> {
        if self.sel.wants_repair()
            && let Some(state) = self.send_repetitions(qp, turn, env)
        {
            self.stalled = matches!(state, TxState::Window | TxState::Idle);
            return Some(state);
        }
        let first = self.recovery.next_packet_psn();
        let stopped = self.send_requests::<true>(qp, turn, env);
        self.note_selective_sent(qp, first, env.now);
        stopped
    }
}

/// Pushes the middle packets from packet `first` of a SEND or WRITE on, whose payload is `span`. False if the batch has no room.
#[inline(never)]
pub(crate) fn push_selective_middles(
    qp: &QpShared,
    request: &InflightWqe,
    first: u32,
    span: &Span,
    env: &mut Env<'_>,
) -> bool {
    debug_assert!(first > 0 && first < request.packets && span.len().is_multiple_of(qp.mtu as usize));
    let head = selective_message_head(qp, request, first, qp.mtu, PacketMarks::default());
    let place = |k, head: &mut [u8; burst_frame::HEAD_MAX]| set_selective_place(qp, request, first + k, head);
    env.tx.push_run(&qp.flow, head.as_slice(), span, qp.mtu as u16, place)
}

/// Repetitions.
impl Requester {
    /// Sends lost packets again. Returns why sending stops, or nothing if all were sent. The oldest request ends here if its
    /// packets cannot be made any more (its memory was deregistered): no answer of the peer would end it.
    #[cold]
    pub(crate) fn send_repetitions(
        &mut self,
        qp: &mut QpShared,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> Option<TxState> {
        let stopped = self.repeat_lost(qp, turn, env);
        self.end_failed_oldest(qp, env);
        if qp.state == QpState::Err { Some(TxState::More) } else { stopped }
    }

    fn repeat_lost(&mut self, qp: &QpShared, turn: &mut SendTurn<'_>, env: &mut Env<'_>) -> Option<TxState> {
        if self.sel.answer_due {
            if !self.repeat_request_of(qp, (self.recovery.una_psn(), true), turn, env) {
                return Some(TxState::More);
            }
            if self.sel.probe == SelectiveProbe::Sent {
                self.repeat_requests_behind(qp, turn, env);
            }
            self.sel.answer_due = false;
            self.sel.note_asked();
        }
        while let Some(lost) = self.sel.losses.as_ref().and_then(|losses| losses.first_lost()) {
            let bytes = match self.repeat(qp, lost, turn, env) {
                Ok(bytes) => bytes,
                Err(state) => return Some(state),
            };
            let sent = self.recovery.sent_psn();
            if let Some(losses) = &mut self.sel.losses {
                losses.on_repeated(lost.psn, sent);
                losses.gone_bytes -= bytes;
            }
            // It needs room in the window again. Counting all requests anew for each packet would take longer than sending it.
            self.sel.covered_bytes -= u64::from(bytes);
        }
        if self.sel.probe == SelectiveProbe::Due {
            if !self.send_probe(qp, turn, env) {
                return Some(TxState::More);
            }
            self.sel.probe = SelectiveProbe::Sent;
        }
        None
    }

    /// Sends a lost packet again. The first missing packet needs no room in the window: nothing goes on without it. Returns its
    /// bytes of payload, or why sending stops.
    fn repeat(
        &mut self,
        qp: &QpShared,
        lost: LostPacket,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> Result<u32, TxState> {
        let Some((request, index, _)) = self.recovery.packet_of(lost.psn, qp.mtu) else {
            debug_assert!(false, "a hole without a request");
            return Ok(0);
        };
        let request = *request;
        let len = if request.work == Work::Send || request.work == Work::Write {
            (request.length - index * qp.mtu).min(qp.mtu)
        } else {
            0
        };
        if request.fail.is_some() {
            return Ok(len);
        }
        if turn.budget.wqes == 0 || turn.budget.bytes == 0 || !env.tx.has_room() {
            return Err(TxState::More);
        }
        if lost.psn != self.sel.acked && len > 0 {
            self.may_repeat(len, turn)?;
        }
        let marks = PacketMarks { asks_ack: true, is_probe: false, transmission: lost.transmission };
        let pushed = match request.work {
            Work::Send | Work::Write => {
                self.repeat_packet(qp, RepeatedPacket { request: &request, index, len, marks }, turn, env)
            }
            _ => self.repeat_request_of(qp, (lost.psn, false), turn, env),
        };
        if !pushed {
            return Err(TxState::More);
        }
        env.fx.count(Reason::SrRepeated);
        if len > 0 {
            self.measure_repetition(lost, env.now);
        }
        self.note_repeated(qp, env.now);
        Ok(len)
    }

    /// Whether a lost packet behind the first missing one may be sent again now, or why not. If the peer has said nothing of the
    /// repetitions of a flight either, its queue pair may be gone: then the first missing packet alone is sent, because more in
    /// flight would take the room of others on the path.
    fn may_repeat(&self, len: u32, turn: &SendTurn<'_>) -> Result<(), TxState> {
        if u64::from(len) > turn.budget.window_bytes {
            return Err(TxState::Window);
        }
        if self.sel.backoff > 1 { Err(TxState::Idle) } else { Ok(()) }
    }

    /// Sends packet `index` of a SEND or WRITE again, in the family that is used. True if it was sent, or cannot be made any
    /// more.
    pub(crate) fn repeat_packet(
        &mut self,
        qp: &QpShared,
        packet: RepeatedPacket<'_>,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        let RepeatedPacket { request, index, len, marks } = packet;
        let sges = self.recovery.sges_of(request);
        let mut cursor = if request.wqe.flags & send_flags::INLINE as u16 != 0 {
            SgeCursor::in_span(self.sq.inline_span(request.sq_index, request.length), index * qp.mtu)
        } else {
            SgeCursor::at(sges, u64::from(index) * u64::from(qp.mtu))
        };
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: 0 };
        if let Err(reason) = cursor.gather(keys, sges, len, env.tx) {
            env.tx.discard_payload();
            let reason = if reason.is_of_memory() { reason } else { Reason::LocalProtection };
            let psn = request.first_psn.add(index);
            self.recovery.fail_request_of(psn, WcStatus::LocProtErr, reason);
            return true;
        }
        let head = match self.sel.active {
            false => message_head(qp, request, index, marks.asks_ack, len),
            true => selective_message_head(qp, request, index, len, marks),
        };
        let pushed = env.tx.push_payload(&qp.flow, head.as_slice(), opcodes::pad_of(len));
        if pushed {
            turn.budget.wqes -= 1;
            turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(len));
            turn.budget.window_bytes = turn.budget.window_bytes.saturating_sub(u64::from(len));
        }
        pushed
    }

    /// Sends the READ or ATOMIC request of `psn` again: because it was lost, or (`has_arrived`) because its response was.
    fn repeat_request_of(
        &mut self,
        qp: &QpShared,
        (psn, has_arrived): (Psn, bool),
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        let Some((request, first, psns)) = self.recovery.packet_of(psn, qp.mtu) else { return true };
        if turn.budget.wqes == 0 {
            return false;
        }
        let head = match request.work {
            Work::Read => {
                let from = if has_arrived { psn.diff(request.first_psn) as u32 } else { first };
                let len = (request.length - from * qp.mtu).min((first + psns - from) * qp.mtu);
                selective_read_head(qp, request, (from, len), has_arrived, 1)
            }
            Work::Atomic => selective_atomic_head(qp, request, atomic_eth(request), 1),
            Work::Send | Work::Write | Work::Local => return true,
        };
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed {
            turn.budget.wqes -= 1;
            self.note_repeated(qp, env.now);
        }
        pushed
    }

    /// A probe was answered, and no response has come for a further wait: those to all requests that the peer has executed are
    /// missing, not that to the oldest alone. Those that budget or batch have no room for are asked for the next time.
    fn repeat_requests_behind(&mut self, qp: &QpShared, turn: &mut SendTurn<'_>, env: &mut Env<'_>) {
        let mut psn = self.recovery.una_psn();
        while let Some((request, first, psns)) = self.recovery.packet_of(psn, qp.mtu) {
            let (has_answer, packet) = (request.work.has_response() && !request.done, request.first_psn.add(first));
            let is_behind = psn != self.recovery.una_psn();
            if is_behind && has_answer && !self.repeat_request_of(qp, (packet, true), turn, env) {
                return;
            }
            psn = packet.add(psns.max(1));
            if !psn.is_before(self.sel.acked) {
                return;
            }
        }
    }

    /// Sends the last packet again, so that the peer acknowledges what it has; for a READ or ATOMIC, a probe without payload.
    fn send_probe(&mut self, qp: &QpShared, turn: &mut SendTurn<'_>, env: &mut Env<'_>) -> bool {
        let last = self.recovery.sent_psn().prev();
        let Some((request, index, _)) = self.recovery.packet_of(last, qp.mtu) else { return true };
        let request = *request;
        if turn.budget.wqes == 0 || !env.tx.has_room() {
            return false;
        }
        let transmission = (PROBE_TRANSMISSION + self.sel.probes).min(TRANSMISSION_MAX);
        let marks = PacketMarks { asks_ack: true, is_probe: true, transmission };
        let pushed = if matches!(request.work, Work::Send | Work::Write) && request.fail.is_none() {
            let len = (request.length - index * qp.mtu).min(qp.mtu);
            self.repeat_packet(qp, RepeatedPacket { request: &request, index, len, marks }, turn, env)
        } else {
            let opcode = if qp.id.qp_type.is_xrc() { Opcode::XrcSrProbe } else { Opcode::RcSrProbe };
            let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, last) };
            let head = HeadBuf::new(&bth).seth(Seth { is_probe: true, transmission, ..Seth::default() });
            env.tx.push(&qp.flow, head.as_slice(), &[], 0)
        };
        if pushed {
            env.fx.count(Reason::SrProbe);
            self.note_repeated(qp, env.now);
            if let Some(losses) = &mut self.sel.losses {
                losses.on_probe(LostPacket { psn: last, transmission });
            }
        }
        pushed
    }
}
