//! Request packets of the selective repeat family: checked, placed and executed, in whatever order they arrive.
//!
//! The packet whose turn it is (PSN = ePSN) is executed like one of the standard family. One behind a gap is *early*: its payload
//! goes to its final place at once, and what must not happen before its turn is noted
//! ([`crate::responder::selective::arrivals`]). When the gap is filled, the early packets behind it are *committed* in the order
//! of PSNs: completions, READs, ATOMICs, invalidations, and the last bytes of WRITEs.
//!
//! An early packet that fails a check is dropped as if it had been lost. It is sent again, and judged when its turn has come.

use crate::api::{Env, MESSAGE_BYTES_MAX};
use crate::copies::{Copies, copies_of, place};
use crate::psn_bits::WINDOW_PSNS;
use crate::qp_shared::QpShared;
use crate::responder::early_receives::EarlyReceives;
use crate::responder::received_message::ReceivedMessage;
use crate::responder::refusal::{CheckResult, RequestRefusal, access_refusal, unreachable_refusal};
use crate::responder::requests::{check_length, check_right, invalidate, read_psns, write_payload};
use crate::responder::selective::arrivals::{ArrivalKind, ArrivalNote, Arrivals, HeldWork, RemoteRange, TAIL_BYTES};
use crate::responder::{InboundMessage, Responder};
use crate::sge_cursor::Placing;
use burst_base::num::MASK_24;
use burst_base::verbs::{QpState, QpType, access, wc_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_frame::{Ecn, Flow, RxFrame};
use burst_mem::Peer;
use burst_span::Span;
use burst_wire::selective::TRANSMISSION_MAX;
use burst_wire::{NakCode, OpKind, Packet, Reth, Seth};

/// Length of a WRITE whose length was not announced: packets of the family do not say it.
pub(crate) const UNANNOUNCED: u32 = u32::MAX;
/// Most bytes of other keys' memory that are kept from being overwritten by one packet.
const ALIASED_BYTES_MAX: usize = 4096;
/// Most such ranges.
const ALIASES_MAX: usize = 8;
/// Most PSNs of a READ: 128 KiB at a path MTU of 256.
const READ_PSNS_MAX: u32 = 512;
const BAD_SEQUENCE: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence);

/// A packet behind a gap: its place in its message, and its distance from ePSN.
#[derive(Clone, Copy)]
pub(crate) struct EarlyPacket<'a> {
    pub(crate) pkt: &'a Packet<'a>,
    pub(crate) seth: &'a Seth,
    pub(crate) distance: u32,
}

/// Bytes that packet `psn` of a WRITE has for a range of the same length.
#[derive(Clone, Copy)]
struct EarlyWrite<'a> {
    psn: Psn,
    range: RemoteRange,
    bytes: &'a [u8],
}

/// Why an early packet is dropped.
type Dropped = Reason;

impl Responder {
    /// Handles a SEND or WRITE for an RC queue pair that accepts the family. One whose turn it is, while nothing is missing,
    /// takes the short way.
    #[inline(always)]
    pub(crate) fn on_selective_message(
        &mut self,
        qp: &mut QpShared,
        frame: &RxFrame<'_>,
        pkt: &Packet<'_>,
        env: &mut Env<'_>,
    ) {
        debug_assert!(qp.id.qp_type == QpType::Rc && self.accepts_selective);
        let is_next = pkt.bth.psn == self.expected && self.sel.early.is_none();
        let (true, Some([first, second])) = (is_next && self.receives_middles(qp), pkt.rc_message_seth()) else {
            return self.on_selective_request(qp, frame, pkt, env);
        };
        let (transmission, rsn, index) = ((first >> 24) as u8 & TRANSMISSION_MAX, first & MASK_24, second & MASK_24);
        self.sel.active = true;
        self.note_arrivals(&frame.flow, (pkt.bth.psn, transmission), 1, env.arrived_at());
        let executed = match pkt.info.kind {
            _ if !self.is_in_turn(qp, rsn, index) => Err(BAD_SEQUENCE),
            OpKind::Write => self.on_selective_write::<false>(qp, pkt, env),
            _ => self.on_selective_send(qp, pkt, env),
        };
        match executed {
            Ok(()) => self.nak_given = false,
            Err(refusal) => self.refuse(qp, pkt, refusal, env),
        }
    }

    /// Handles a request of the family.
    #[inline(never)]
    pub(crate) fn on_selective_request(
        &mut self,
        qp: &mut QpShared,
        frame: &RxFrame<'_>,
        pkt: &Packet<'_>,
        env: &mut Env<'_>,
    ) {
        if !self.accepts_selective {
            return env.fx.count(Reason::SrNotNegotiated);
        }
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        let Some(seth) = pkt.seth() else { return env.fx.count(Reason::Truncated) };
        self.establish(qp, env);
        self.sel.active = true;
        self.note_arrivals(&frame.flow, (pkt.bth.psn, seth.transmission), 1, env.arrived_at());
        let distance = pkt.bth.psn.diff(self.expected);
        if distance < 0 || pkt.info.kind == OpKind::Probe {
            return self.on_selective_duplicate(qp, pkt, env);
        }
        let psns = match pkt.info.kind {
            OpKind::ReadRequest => pkt.reth().map_or(1, |reth| read_psns(qp, &reth)),
            _ => 1,
        };
        if psns > READ_PSNS_MAX || distance as u32 + psns > WINDOW_PSNS {
            return env.fx.count(Reason::SrWindow);
        }
        if distance > 0 {
            return self.on_early(qp, EarlyPacket { pkt, seth: &seth, distance: distance as u32 }, psns, env);
        }
        if qp.id.qp_type == QpType::XrcRecv && !self.prepare_named(qp, pkt, env) {
            return;
        }
        match self.execute_next(qp, pkt, (&seth, psns), env) {
            Ok(()) => {
                self.nak_given = false;
                if self.sel.early.is_some() {
                    self.commit_early(qp, env);
                }
            }
            Err(refusal) => self.refuse(qp, pkt, refusal, env),
        }
    }

    /// Notes what the next acknowledgement tells of the newest packet: its PSN and transmission number; and counts packets.
    pub(crate) fn note_arrivals(&mut self, flow: &Flow, newest: (Psn, u8), count: u16, arrived_at: Nanos) {
        let sel = &mut self.sel;
        (sel.trigger, sel.transmission) = newest;
        sel.arrived_at = arrived_at;
        sel.received = sel.received.wrapping_add(count);
        if flow.tos & 3 == Ecn::Ce as u8 {
            sel.congested = sel.congested.wrapping_add(count);
            sel.is_congested = true;
        }
    }

    /// A packet that was executed before, or a probe: answered again.
    fn on_selective_duplicate(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        self.on_duplicate(qp, pkt, env);
    }

    /// A packet of the standard family has arrived: the peer does not use this family any more, and sends everything again
    /// that it has no acknowledgement for. A message that has begun is received again from its first packet, because this
    /// family does not announce the length of WRITEs.
    #[cold]
    pub(crate) fn leave_selective(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        self.sel.active = false;
        env.fx.unacknowledged(self.response_bytes as i64);
        self.forget_responses();
        self.answer_in_standard_family();
        if let Some(early) = self.sel.early.take()
            && let Some(pool) = env.fx.records()
        {
            pool.give_arrivals(early);
        }
        if let Some(message) = self.message.filter(|message| message.length == UNANNOUNCED) {
            self.expected = self.expected.sub(packets_of(qp, &message));
            self.message = None;
            // They would acknowledge packets that are received again.
            (self.ack_due, self.nak_due, self.nak_given) = (None, None, false);
        }
    }

    fn open_packets(&self, qp: &QpShared) -> u32 {
        self.message.map_or(0, |message| packets_of(qp, &message))
    }
}

/// Packets of a message that have arrived; none of them is its last.
fn packets_of(qp: &QpShared, message: &InboundMessage) -> u32 {
    (message.received / u64::from(qp.mtu)) as u32
}

/// The packet whose turn it is.
impl Responder {
    /// Executes the packet, which takes this many PSNs.
    pub(crate) fn execute_next(
        &mut self,
        qp: &QpShared,
        pkt: &Packet<'_>,
        (seth, psns): (&Seth, u32),
        env: &mut Env<'_>,
    ) -> CheckResult {
        if !self.is_in_turn(qp, seth.rsn, seth.index) {
            return Err(BAD_SEQUENCE);
        }
        match pkt.info.kind {
            OpKind::Write => self.on_selective_write::<true>(qp, pkt, env)?,
            OpKind::Send => self.on_selective_send(qp, pkt, env)?,
            OpKind::ReadRequest => self.on_read_request(qp, pkt, env)?,
            _ => self.on_atomic(qp, pkt, env)?,
        }
        if psns > 1
            && let Some(early) = &mut self.sel.early
        {
            // Only a faulty peer gives PSNs of a READ to other packets.
            early.forget(pkt.bth.psn, psns);
        }
        Ok(())
    }

    /// Whether a packet with this RSN and index is the next of the message that is being received, or begins one.
    #[inline(always)]
    fn is_in_turn(&self, qp: &QpShared, rsn: u32, index: u32) -> bool {
        u64::from(index) * u64::from(qp.mtu) == self.received() && rsn == self.recv.rsn()
    }

    /// Bytes of the message that is being received.
    #[inline(always)]
    fn received(&self) -> u64 {
        self.message.as_ref().map_or(0, |message| message.received)
    }

    #[inline(always)]
    fn on_selective_send(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.on_send(qp, pkt, env)?;
        if let Some(message) = &mut self.message {
            message.length = UNANNOUNCED;
        }
        Ok(())
    }

    /// A WRITE whose turn it is. `GAPS`: packets behind it may have arrived, and have written the same bytes.
    #[inline(always)]
    fn on_selective_write<const GAPS: bool>(
        &mut self,
        qp: &QpShared,
        pkt: &Packet<'_>,
        env: &mut Env<'_>,
    ) -> CheckResult {
        self.check_sequence(pkt)?;
        check_right(qp, access::REMOTE_WRITE)?;
        check_length(qp, pkt)?;
        let Some(weth) = pkt.weth() else { return Err(BAD_SEQUENCE) };
        let received = self.received() + pkt.payload.len() as u64;
        if received > MESSAGE_BYTES_MAX {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength));
        }
        if pkt.info.has_imm {
            self.check_receive_apart()?;
        }
        let range = RemoteRange { addr: weth.addr, len: pkt.payload.len() as u32, rkey: weth.rkey };
        if GAPS {
            self.write_uncovered(
                qp,
                self.sel.early.as_deref(),
                EarlyWrite { psn: pkt.bth.psn, range, bytes: pkt.payload },
                env,
            )?;
        } else {
            write_payload(qp, range.rkey, range.addr, pkt.payload, env)?;
        }
        match &mut self.message {
            Some(message) => message.received = received,
            none => {
                let (addr, rkey) = (weth.addr, weth.rkey);
                *none = Some(InboundMessage { kind: OpKind::Write, addr, rkey, length: UNANNOUNCED, received });
            }
        }
        if pkt.info.has_imm {
            self.complete_receive(qp, received_by(pkt, received), env);
        }
        self.accept(pkt, 1);
        Ok(())
    }

    /// Writes the bytes of a WRITE, or its last bytes, except where packets with higher PSNs have written.
    fn write_uncovered(
        &self,
        qp: &QpShared,
        early: Option<&Arrivals>,
        write: EarlyWrite<'_>,
        env: &mut Env<'_>,
    ) -> CheckResult {
        let EarlyWrite { psn, range, bytes } = write;
        let whole = remote_range(qp, range, env)?;
        let Some(early) = early else {
            return place(&whole, bytes, &mut copies_of(qp, env)).map_err(unreachable_refusal);
        };
        if early.aliases(psn, range).next().is_some() {
            return self.write_beside_aliases(qp, early, write, env);
        }
        write_parts(early, write, &whole, copies_of(qp, env))
    }

    /// Writes where packets with higher PSNs have written to the same addresses by other keys. These may name the same memory, so
    /// what the later packets have written is read before and put back.
    #[cold]
    fn write_beside_aliases(
        &self,
        qp: &QpShared,
        early: &Arrivals,
        write: EarlyWrite<'_>,
        env: &mut Env<'_>,
    ) -> CheckResult {
        let EarlyWrite { psn, range, .. } = write;
        if qp.trails && env.fx.has_open_copies() {
            // What the later packets have written may not be there yet.
            return Err(RequestRefusal::NotReady(Reason::CopyPending));
        }
        let (mut saved, mut used) = ([0; ALIASED_BYTES_MAX], 0);
        let (mut spans, mut count) = ([Span::nothing(); ALIASES_MAX], 0);
        for (writer, alias) in early.aliases(psn, range).take(ALIASES_MAX) {
            let Some(place) = saved.get_mut(used..used + alias.len as usize) else { break };
            if let Ok(span) = remote_range_as(self.peer_of(qp, writer, early, env), alias, env)
                && span.read_to(place).is_ok()
            {
                spans[count] = span;
                (count, used) = (count + 1, used + span.len());
            }
        }
        let whole = remote_range(qp, range, env)?;
        write_parts(early, write, &whole, copies_of(qp, env))?;
        let mut at = 0;
        for span in &spans[..count] {
            let bytes = &saved[at..at + span.len()];
            place(span, bytes, &mut copies_of(qp, env)).map_err(unreachable_refusal)?;
            at += span.len();
        }
        Ok(())
    }
}

fn write_parts(early: &Arrivals, write: EarlyWrite<'_>, whole: &Span, mut copies: Copies<'_>) -> CheckResult {
    let EarlyWrite { psn, range, bytes } = write;
    let mut rest = range;
    while let Some(part) = early.next_uncovered(psn, rest) {
        let from = (part.addr - range.addr) as usize;
        let to = from + part.len as usize;
        place(&whole.sub(from, to - from), &bytes[from..to], &mut copies).map_err(unreachable_refusal)?;
        rest = RemoteRange { addr: range.addr + to as u64, len: range.len - to as u32, ..range };
    }
    Ok(())
}

pub(crate) fn remote_range(qp: &QpShared, range: RemoteRange, env: &Env<'_>) -> Result<Span, RequestRefusal> {
    remote_range_as(qp.peer(), range, env)
}

fn remote_range_as(peer: Peer, range: RemoteRange, env: &Env<'_>) -> Result<Span, RequestRefusal> {
    let RemoteRange { addr, len, rkey } = range;
    env.mem.remote(peer, rkey, addr, len, access::REMOTE_WRITE).map_err(access_refusal)
}

/// The completion of a receive by a packet that ends a message of `total` bytes.
fn received_by(pkt: &Packet<'_>, total: u64) -> ReceivedMessage {
    let with_write = pkt.info.kind == OpKind::Write;
    let mut got = ReceivedMessage {
        byte_len: total as u32,
        with_write,
        solicited: pkt.bth.solicited,
        ..ReceivedMessage::default()
    };
    if let Some(imm) = pkt.imm() {
        (got.imm, got.wc_flags) = (imm.to_be32(), wc_flags::WITH_IMM);
    } else if let Some(ieth) = pkt.ieth() {
        (got.imm, got.wc_flags) = (ieth.rkey.0, wc_flags::WITH_INV);
    }
    got
}

/// Early packets.
/// Whether a record has room for one more run, tail and operation, as far as they are wanted; it grows if it has none.
pub(crate) fn has_room(early: &mut Arrivals, (run, tail, op): (bool, bool, bool), env: &mut Env<'_>) -> bool {
    if !early.has_room(run, tail, op)
        && let Some(pool) = env.fx.records()
    {
        pool.grow_arrivals(early);
    }
    early.has_room(run, tail, op)
}

impl Responder {
    /// A packet behind a gap. `distance` is that from ePSN, `psns` the number of PSNs that the packet takes.
    #[cold]
    fn on_early(&mut self, qp: &mut QpShared, packet: EarlyPacket<'_>, psns: u32, env: &mut Env<'_>) {
        let pkt = packet.pkt;
        let held = self.sel.early.take();
        let peer = qp.flow.dst;
        let Some(mut early) = held.or_else(|| env.fx.records()?.take_arrivals(peer)) else {
            env.fx.count(Reason::SrPoolEmpty);
            return self.owe_repeated_ack(env);
        };
        if early.has_any(pkt.bth.psn, psns) {
            env.fx.count(Reason::DuplicateRequest);
            self.owe_repeated_ack(env);
        } else {
            match self.place_early_named(qp, packet, &mut early, env) {
                Ok(note) => {
                    env.fx.count(Reason::SrEarly);
                    early.note(pkt.bth.psn, psns, note);
                    self.owe_ack();
                }
                Err(reason) => {
                    env.fx.count(reason);
                    self.owe_repeated_ack(env);
                }
            }
        }
        debug_assert!(early.is_consistent(self.expected), "the record disagrees with its set");
        self.keep_or_give(early, env);
    }

    /// Whether a packet with this head may come at this distance from ePSN: its message begins behind what was executed, or it
    /// is the one that is being received. Each message before this one takes a PSN, so there are not more receives than that.
    pub(crate) fn may_be_early(&self, qp: &QpShared, seth: &Seth, distance: u32) -> bool {
        let begins = distance as i32 - seth.index as i32;
        let open = self.open_packets(qp);
        let receives = seth.rsn.wrapping_sub(self.recv.rsn()) & MASK_24;
        (begins >= 0 || open > 0 && begins == -(open as i32)) && receives <= distance
    }

    /// Keeps a record that is needed.
    pub(crate) fn keep_or_give(&mut self, early: Box<Arrivals>, env: &mut Env<'_>) {
        if !early.is_empty() {
            self.sel.early = Some(early);
        } else if let Some(pool) = env.fx.records() {
            pool.give_arrivals(early);
        }
        self.release_receives(env);
    }

    /// An acknowledgement is sent in this pass.
    pub(crate) fn owe_ack(&mut self) {
        if self.nak_due.is_none() {
            self.ack_due = Some((self.expected.prev(), self.msn));
        }
        self.ack_follows_receive = false;
    }

    /// An acknowledgement for a packet that brought nothing new: a forger must not make this side send many.
    fn owe_repeated_ack(&mut self, env: &mut Env<'_>) {
        if self.ack_due.is_some() || self.answers.take(env.now) {
            self.owe_ack();
        } else {
            env.fx.count(Reason::AnswerWithheld);
        }
    }

    /// Places the payload of an early packet, and keeps what must wait for its turn.
    pub(crate) fn place_early(
        &mut self,
        qp: &QpShared,
        packet: EarlyPacket<'_>,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<ArrivalNote, Dropped> {
        let EarlyPacket { pkt, seth, distance, .. } = packet;
        check_length(qp, pkt).map_err(|_| Reason::SrUnplaced)?;
        let place = pkt.info.position;
        if !self.may_be_early(qp, seth, distance) {
            return Err(Reason::SrIndex);
        }
        let flags = (place.is_start(), place.is_end());
        match pkt.info.kind {
            OpKind::Send => {
                self.place_early_send(qp, packet, early, env)?;
                Ok(ArrivalNote::new(ArrivalKind::Send, flags, seth.index))
            }
            OpKind::Write => {
                self.place_early_write(qp, packet, early, env)?;
                Ok(ArrivalNote::new(ArrivalKind::Write, flags, seth.index))
            }
            _ => {
                if !has_room(early, (false, false, true), env) {
                    return Err(Reason::SrRecordFull);
                }
                let work = match (pkt.reth(), pkt.atomic()) {
                    (Some(reth), _) => HeldWork::Read(RemoteRange { addr: reth.addr, len: reth.len, rkey: reth.rkey }),
                    (None, Some(atomic)) => HeldWork::Atomic(pkt.info.kind, atomic),
                    (None, None) => return Err(Reason::SrUnplaced),
                };
                early.hold(pkt.bth.psn, work);
                Ok(ArrivalNote::new(ArrivalKind::Operation, flags, 0))
            }
        }
    }

    /// Takes receive number `rsn` before its turn.
    pub(crate) fn take_receive(&mut self, qp: &QpShared, rsn: u32, env: &mut Env<'_>) -> Result<(), Dropped> {
        let held = self.recv.early.take();
        let peer = qp.flow.dst;
        let mut receives = held.or_else(|| env.fx.records()?.take_receives(peer)).ok_or(Reason::SrPoolEmpty)?;
        let mut grow = |record: &mut EarlyReceives| {
            if let Some(pool) = env.fx.records() {
                pool.grow_receives(record);
            }
        };
        let taken = self.recv.take_early(rsn, &mut receives, &mut grow);
        self.recv.early = Some(receives);
        if taken { Ok(()) } else { Err(Reason::SrUnplaced) }
    }

    fn place_early_send(
        &mut self,
        qp: &QpShared,
        EarlyPacket { pkt, seth, .. }: EarlyPacket<'_>,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<(), Dropped> {
        let ends = pkt.info.position.is_end();
        if !has_room(early, (false, false, ends), env) {
            return Err(Reason::SrRecordFull);
        }
        self.take_receive(qp, seth.rsn, env)?;
        let Some(receives) = self.recv.early.as_deref() else { return Err(Reason::SrUnplaced) };
        let offset = u64::from(seth.index) * u64::from(qp.mtu);
        if !self.recv.scatter_early((seth.rsn, receives), offset, pkt.payload, Placing::of(qp, env)) {
            return Err(Reason::SrUnplaced);
        }
        if ends {
            let got = received_by(pkt, offset + pkt.payload.len() as u64);
            early.hold(pkt.bth.psn, HeldWork::Receive(got, pkt.ieth().map(|ieth| ieth.rkey)));
        }
        Ok(())
    }

    fn place_early_write(
        &mut self,
        qp: &QpShared,
        EarlyPacket { pkt, seth, .. }: EarlyPacket<'_>,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<(), Dropped> {
        let Some(weth) = pkt.weth() else { return Err(Reason::SrUnplaced) };
        let len = pkt.payload.len();
        let range = RemoteRange { addr: weth.addr, len: len as u32, rkey: weth.rkey };
        let holds = pkt.info.position.is_end() && !is_relaxed(qp, range, env);
        let kept = if holds { len.min(TAIL_BYTES) } else { 0 };
        if !has_room(early, (len > 0, kept > 0, pkt.info.has_imm), env) {
            return Err(Reason::SrRecordFull);
        }
        let is_allowed = qp.access_flags & access::REMOTE_WRITE != 0 && remote_range(qp, range, env).is_ok();
        if !is_allowed {
            return Err(Reason::SrUnplaced);
        }
        if pkt.info.has_imm {
            self.take_receive(qp, seth.rsn, env)?;
        }
        let (body, tail) = pkt.payload.split_at(len - kept);
        let front = RemoteRange { len: body.len() as u32, ..range };
        if !body.is_empty()
            && self
                .write_uncovered(qp, Some(early), EarlyWrite { psn: pkt.bth.psn, range: front, bytes: body }, env)
                .is_err()
        {
            return Err(Reason::SrUnplaced);
        }
        if len > 0 {
            early.add_run(pkt.bth.psn, range);
        }
        if kept > 0 {
            let behind = RemoteRange { addr: range.addr + body.len() as u64, len: kept as u32, rkey: range.rkey };
            early.hold_tail(pkt.bth.psn, behind, tail);
        }
        if pkt.info.has_imm {
            let total = u64::from(seth.index) * u64::from(qp.mtu) + len as u64;
            early.hold(pkt.bth.psn, HeldWork::Receive(received_by(pkt, total), None));
        }
        Ok(())
    }
}

/// True if the bytes of this range may appear in any order until the completion: its region has relaxed ordering. A memory window
/// has no such flag, and keeps the order.
fn is_relaxed(qp: &QpShared, range: RemoteRange, env: &Env<'_>) -> bool {
    let RemoteRange { addr, len, rkey } = range;
    let relaxed = access::REMOTE_WRITE | access::RELAXED_ORDERING;
    len > 0 && env.mem.remote(qp.peer(), rkey, addr, len, relaxed).is_ok()
}

/// Early packets whose turn has come.
impl Responder {
    /// The gap is filled: executes the early packets behind it, in order, up to the next gap.
    #[cold]
    fn commit_early(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        let Some(mut early) = self.sel.early.take() else { return };
        self.owe_ack();
        while let Some(note) = early.take(self.expected) {
            if let Err(refusal) = self.commit(qp, note, &mut early, env) {
                // It is sent again, and judged in its turn.
                early.withdraw(self.expected);
                early.forget_before(self.expected);
                self.keep_or_give(early, env);
                return self.refuse_range(qp, None, refusal, env);
            }
        }
        early.forget_before(self.expected);
        debug_assert!(early.is_consistent(self.expected), "the record disagrees with its set");
        self.owe_ack();
        self.keep_or_give(early, env);
    }

    /// Executes the early packet whose turn it is.
    fn commit(&mut self, qp: &mut QpShared, note: ArrivalNote, early: &mut Arrivals, env: &mut Env<'_>) -> CheckResult {
        let psn = self.expected;
        self.choose_srq_of(qp, note.kind() == ArrivalKind::Send, early, env)?;
        let kind = match note.kind() {
            ArrivalKind::Send => OpKind::Send,
            ArrivalKind::Write => OpKind::Write,
            ArrivalKind::Operation => return self.commit_operation(qp, note, early, env),
        };
        let open = self.message;
        let continues = open.map_or(note.starts(), |message| !note.starts() && message.kind == kind);
        if !continues || !note.has_index(self.open_packets(qp)) {
            return Err(BAD_SEQUENCE);
        }
        let run = early.run_of(psn).copied();
        if let Some(run) = &run {
            // The key may have been invalidated by a message in front of this one, or its region deregistered.
            remote_range(qp, RemoteRange { addr: run.addr, len: run.len as u32, rkey: run.rkey }, env)?;
        }
        if !note.ends() {
            // The packets behind it in its message need no further check: nothing is executed between them.
            let last = if kind == OpKind::Write { run.map_or(psn, |run| run.last) } else { psn.add(WINDOW_PSNS) };
            let packets = 1 + early.take_middles(psn.next(), last, note.kind(), self.open_packets(qp) + 1);
            let received = open.map_or(0, |message| message.received) + u64::from(packets) * u64::from(qp.mtu);
            let (addr, rkey) = (0, Rkey(0));
            self.message = Some(InboundMessage { kind, addr, rkey, length: UNANNOUNCED, received });
            return self.count_committed(packets, false);
        }
        self.commit_end(qp, kind, early, env)
    }

    /// Executes the end of an early message whose turn it is.
    fn commit_end(&mut self, qp: &QpShared, kind: OpKind, early: &mut Arrivals, env: &mut Env<'_>) -> CheckResult {
        let psn = self.expected;
        debug_assert!(matches!(kind, OpKind::Send | OpKind::Write));
        if let Some(tail) = early.take_tail(psn) {
            self.write_uncovered(qp, Some(early), EarlyWrite { psn, range: tail.range, bytes: tail.bytes() }, env)?;
        }
        match early.take_work(psn) {
            Some(HeldWork::Receive(got, ended)) => {
                self.check_receive_apart()?;
                if let Some(rkey) = ended {
                    invalidate(qp, rkey, env)?;
                }
                self.complete_receive(qp, got, env);
            }
            None if kind == OpKind::Send => return Err(BAD_SEQUENCE),
            _ => {}
        }
        self.count_committed(1, true)
    }

    /// Executes an early READ or ATOMIC whose turn it is.
    fn commit_operation(
        &mut self,
        qp: &QpShared,
        _note: ArrivalNote,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> CheckResult {
        if self.message.is_some() {
            return Err(BAD_SEQUENCE);
        }
        let psn = self.expected;
        match early.take_work(psn) {
            Some(HeldWork::Read(range)) => {
                let reth = Reth { addr: range.addr, rkey: range.rkey, len: range.len };
                // It takes all PSNs of its response. They have arrived with it, and are missing with it if it cannot be noted.
                early.forget(psn, read_psns(qp, &reth));
                let psns = self.check_read(qp, &reth, env)?;
                self.count_committed(psns, true)?;
                self.store_read(qp, psn, &reth, psns);
                Ok(())
            }
            Some(HeldWork::Atomic(kind, atomic)) => {
                let original = self.run_atomic(qp, kind, &atomic, env)?;
                self.count_committed(1, true)?;
                self.store_atomic(qp, psn, (kind, &atomic), original);
                Ok(())
            }
            _ => Err(BAD_SEQUENCE),
        }
    }

    /// Moves ePSN over an early packet that was executed.
    fn count_committed(&mut self, psns: u32, ends: bool) -> CheckResult {
        self.expected = self.expected.add(psns);
        if ends {
            self.msn = (self.msn + 1) & MASK_24;
            self.message = None;
        }
        Ok(())
    }
}
