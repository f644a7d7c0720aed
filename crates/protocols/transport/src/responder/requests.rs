//! Request packets of RC and XRC: checks and execution.
//!
//! A request packet passes the checks in the order of IBA 9.7.4: PSN, opcode sequence, right, length, resources, rkey.
//! Each is a function that returns a [`RequestRefusal`] or nothing, and nothing is written before all have passed. Repeated SENDs
//! and WRITEs are acknowledged again and not executed; a repeated READ or ATOMIC rewinds its resource.
//!
//! An attacker that forges the peer's packets can make this half send answers to the peer. They are bounded: acknowledgements
//! of repeated packets and NAKs of gaps by a token bucket ([`crate::responder::AnswerBudget`]), repeated READ responses by a
//! multiple of the bytes of the READ ([`READ_REPEATS_MIN`]). Withheld acknowledgements cost an honest peer nothing: they are
//! cumulative, and a gap that stays is reported with the next token.

use crate::api::Env;
use crate::copies::{copies_of, place};
use crate::failure::{FailedPart, NamedMemory, QpFailure};
use crate::qp_shared::QpShared;
use crate::responder::fork_hold::{ForkHold, silence_max};
use crate::responder::received_message::ReceivedMessage;
use crate::responder::receiver::Load;
use crate::responder::refusal::{
    CheckResult, RequestRefusal, access_refusal, memory_of, receive_reason, unreachable_refusal,
};
use crate::responder::repair_queue::Repair;
use crate::responder::resource::{EMPTY, ResponderResource};
use crate::responder::selective::arrivals::RemoteRange;
use crate::responder::{InboundMessage, NAK_REPEATED_AFTER, Responder};
use crate::sge_cursor::Placing;
use burst_base::verbs::{EventType, QpAttr, QpState, WcStatus, access, wc_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_wire::{AtomicEth, NakCode, OpKind, Packet, Position, Reth, Syndrome};

/// A READ's response is repeated this many times, and [`REPEATS_PER_PACKET`] times for each response packet of this READ and of
/// those before it. With go-back-N each lost packet of theirs repeats it once.
const READ_REPEATS_MIN: u64 = 32;
/// See [`READ_REPEATS_MIN`]. Two: half of all packets may be lost.
const REPEATS_PER_PACKET: u64 = 2;

impl Responder {
    /// Handles a request packet of RC or XRC, or one of the selective repeat family whose turn it is.
    pub(crate) fn on_request(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        self.establish(qp, env);
        if self.sel.active && !pkt.info.service.is_selective() {
            self.leave_selective(qp, env);
        }
        let distance = pkt.bth.psn.diff(self.expected);
        if distance < 0 {
            return self.on_duplicate(qp, pkt, env);
        }
        if distance > 0 {
            return self.on_gap(env);
        }
        match self.choose_srq(qp, pkt, env).and_then(|()| self.execute(qp, pkt, env)) {
            Ok(()) => self.nak_given = false,
            Err(refusal) => self.refuse(qp, pkt, refusal, env),
        }
    }

    /// Executes the packet whose turn it is.
    fn execute(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        match pkt.info.kind {
            OpKind::Send => self.on_send(qp, pkt, env),
            OpKind::Write => self.on_write(qp, pkt, env),
            OpKind::ReadRequest => self.on_read_request(qp, pkt, env),
            _ => self.on_atomic(qp, pkt, env),
        }
    }

    /// Raises COMM_EST for the first packet in RTR (IBA 11.6.3).
    pub(crate) fn establish(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        if qp.state == QpState::Rtr && !self.established {
            self.established = true;
            env.fx.event(qp.id.qpn, EventType::CommEst);
        }
    }

    fn on_gap(&mut self, env: &mut Env<'_>) {
        let since = env.now.since(self.nak_at);
        if self.nak_given && !(self.nak_is_gap && since.0 >= self.nak_wait_ns.into()) {
            self.gap_lasted_ns = since.0.min(NAK_REPEATED_AFTER[1].0) as u32;
            return env.fx.count(Reason::GapRepeated);
        }
        if !self.answers.take(env.now) {
            return env.fx.count(Reason::AnswerWithheld);
        }
        if !self.nak_given && self.gap_lasted_ns > 0 {
            let [least, most] = NAK_REPEATED_AFTER.map(|after| after.0 as u32);
            self.nak_wait_ns = (2 * self.gap_lasted_ns).clamp(least, most);
        }
        self.gap_lasted_ns = 0;
        env.fx.count(Reason::SequenceGap);
        self.report_gap(env.now);
    }

    /// The program begins a fork.
    pub(crate) fn begin_fork(&mut self) {
        self.fork = ForkHold::Held;
    }

    /// The memory is back: asks at once for the request that was dropped, if it has not come again.
    pub(crate) fn end_fork(&mut self, qp: &QpShared, now: Nanos) {
        let was = core::mem::replace(&mut self.fork, ForkHold::None);
        let receives = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        // A peer of the selective repeat family asks by a probe, and repeats what the answer shows to be missing.
        if was == ForkHold::Dropped && receives && self.nak_given && !self.sel.active {
            self.report_gap(now);
        }
    }

    /// Whether a request that finds its memory late is dropped without an answer.
    #[cold]
    fn is_dropped_for_fork(&mut self, attr: &QpAttr, now: Nanos) -> bool {
        if self.fork == ForkHold::Held {
            (self.fork, self.nak_at) = (ForkHold::Dropped, now);
        }
        self.fork == ForkHold::Dropped && (attr.min_rnr_timer == 0 || now.since(self.nak_at) < silence_max(attr))
    }

    /// Asks for the expected packet.
    fn report_gap(&mut self, now: Nanos) {
        (self.nak_given, self.nak_is_gap, self.nak_at) = (true, true, now);
        self.set_nak_due(Syndrome::Nak(NakCode::PsnSequence));
    }

    fn set_nak_due(&mut self, syndrome: Syndrome) {
        debug_assert!(self.nak_given || matches!(syndrome, Syndrome::Nak(_)));
        self.nak_due = Some((self.expected, syndrome));
        // A NAK acknowledges everything before it.
        self.ack_due = None;
    }

    /// Refuses a request of the peer.
    pub(crate) fn refuse(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, refusal: RequestRefusal, env: &mut Env<'_>) {
        let memory = memory_of(self.message.as_ref(), pkt);
        self.refuse_range(qp, memory, refusal, env);
    }

    /// Refuses a request of the peer that names this memory.
    pub(crate) fn refuse_range(
        &mut self,
        qp: &mut QpShared,
        memory: Option<NamedMemory>,
        refusal: RequestRefusal,
        env: &mut Env<'_>,
    ) {
        let length = memory.map_or(0, |memory| memory.len);
        let failed = |status, reason| {
            let failure = QpFailure::of(FailedPart::PeerRequest, status, reason, self.expected);
            QpFailure { memory, length, ..failure }
        };
        match refusal {
            RequestRefusal::NotReady(reason) => {
                env.fx.count(reason);
                (self.nak_given, self.nak_is_gap) = (true, false);
                if reason != Reason::PageLate || !self.is_dropped_for_fork(&qp.attr, env.now) {
                    self.set_nak_due(Syndrome::Rnr { timer: qp.attr.min_rnr_timer });
                }
            }
            RequestRefusal::Refuse(code, reason) => {
                env.fx.count(reason);
                env.fx.failed(failed(WcStatus::GeneralErr, reason));
                self.set_nak_due(Syndrome::Nak(code));
                let event = match code {
                    NakCode::RemoteAccess => EventType::QpAccessErr,
                    NakCode::RemoteOperation => EventType::QpFatal,
                    _ => EventType::QpReqErr,
                };
                env.fx.event(qp.id.qpn, event);
                self.fail(qp);
            }
            RequestRefusal::RefuseReceive(code, status, reason) => {
                env.fx.failed(failed(status, reason));
                self.set_nak_due(Syndrome::Nak(code));
                self.complete_receive_error(qp, status, reason, env);
                self.fail(qp);
            }
        }
    }

    /// Checks that a middle or last packet continues a message of its kind, and that a first or only packet follows a complete
    /// message (IBA 9.7.4.1.3).
    pub(crate) fn check_sequence(&self, pkt: &Packet<'_>) -> CheckResult {
        let fits = match &self.message {
            None => pkt.info.position.is_start(),
            Some(message) => !pkt.info.position.is_start() && message.kind == pkt.info.kind,
        };
        if fits { Ok(()) } else { Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence)) }
    }

    /// [`Responder::check_receive`] where a call costs little.
    #[inline(never)]
    pub(crate) fn check_receive_apart(&mut self) -> CheckResult {
        self.check_receive()
    }

    /// Checks that a usable receive is loaded, and loads one if none is (IBA 9.7.4.1.5).
    #[inline(always)]
    pub(crate) fn check_receive(&mut self) -> CheckResult {
        match self.recv.load() {
            Load::Ready => self.recv.check().map_err(|reason| {
                RequestRefusal::RefuseReceive(NakCode::RemoteOperation, WcStatus::LocQpOpErr, reason)
            }),
            Load::Empty => Err(RequestRefusal::NotReady(Reason::ReceiverNotReady)),
            Load::Corrupt => Err(RequestRefusal::Refuse(NakCode::RemoteOperation, Reason::QueueCorrupt)),
        }
    }

    #[inline(always)]
    pub(crate) fn on_send(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        check_length(qp, pkt)?;
        self.check_receive()?;
        let received = self.message.map_or(0, |message| message.received);
        if received + pkt.payload.len() as u64 > self.recv.room {
            let (status, reason) = (WcStatus::LocLenErr, Reason::ReceiveTooShort);
            return Err(RequestRefusal::RefuseReceive(NakCode::InvalidRequest, status, reason));
        }
        self.recv.scatter(received, pkt.payload, Placing::of(qp, env)).map_err(|reason| match reason {
            Reason::PageLate => RequestRefusal::NotReady(reason),
            reason => {
                let reason = receive_reason(reason);
                RequestRefusal::RefuseReceive(NakCode::RemoteOperation, WcStatus::LocProtErr, reason)
            }
        })?;
        let total = received + pkt.payload.len() as u64;
        if pkt.info.position.is_end() {
            self.finish_send(qp, pkt, total, env)?;
        } else {
            let (kind, rkey) = (OpKind::Send, Rkey(0));
            self.message = Some(InboundMessage { kind, addr: 0, rkey, length: 0, received: total });
        }
        self.accept(pkt, 1);
        Ok(())
    }

    fn finish_send(&mut self, qp: &QpShared, pkt: &Packet<'_>, total: u64, env: &mut Env<'_>) -> CheckResult {
        let mut got =
            ReceivedMessage { byte_len: total as u32, solicited: pkt.bth.solicited, ..ReceivedMessage::default() };
        if let Some(imm) = pkt.imm() {
            got.imm = imm.to_be32();
            got.wc_flags = wc_flags::WITH_IMM;
        } else if let Some(ieth) = pkt.ieth() {
            invalidate(qp, ieth.rkey, env)?;
            got.imm = ieth.rkey.0;
            got.wc_flags = wc_flags::WITH_INV;
        }
        self.complete_receive(qp, got, env);
        Ok(())
    }

    fn on_write(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        check_right(qp, access::REMOTE_WRITE)?;
        check_length(qp, pkt)?;
        let message = self.write_message(pkt)?;
        if pkt.info.has_imm {
            self.check_receive()?;
        }
        if pkt.info.position.is_start() {
            check_remote(
                qp,
                RemoteRange { addr: message.addr, len: message.length, rkey: message.rkey },
                access::REMOTE_WRITE,
                env,
            )?;
        }
        write_payload(qp, message.rkey, message.addr.wrapping_add(message.received), pkt.payload, env)?;
        let message = InboundMessage { received: message.received + pkt.payload.len() as u64, ..message };
        self.message = Some(message);
        if let Some(imm) = pkt.imm() {
            let got = ReceivedMessage {
                byte_len: message.length,
                imm: imm.to_be32(),
                wc_flags: wc_flags::WITH_IMM,
                with_write: true,
                solicited: pkt.bth.solicited,
                ..ReceivedMessage::default()
            };
            self.complete_receive(qp, got, env);
        }
        self.accept(pkt, 1);
        Ok(())
    }

    /// The WRITE of `pkt` in its state before `pkt`. Checks the length (IBA 9.7.4.1.6).
    pub(crate) fn write_message(&self, pkt: &Packet<'_>) -> Result<InboundMessage, RequestRefusal> {
        const INVALID: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength);
        let message = match (pkt.reth(), self.message) {
            (Some(reth), _) => {
                InboundMessage { kind: OpKind::Write, addr: reth.addr, rkey: reth.rkey, length: reth.len, received: 0 }
            }
            (None, Some(message)) => message,
            (None, None) => return Err(INVALID),
        };
        let after = message.received + pkt.payload.len() as u64;
        let length = u64::from(message.length);
        let fits = if pkt.info.position.is_end() { after == length } else { after < length };
        if fits && length <= crate::api::MESSAGE_BYTES_MAX { Ok(message) } else { Err(INVALID) }
    }

    pub(crate) fn on_read_request(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        const INVALID: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength);
        self.check_sequence(pkt)?;
        let reth = pkt.reth().ok_or(INVALID)?;
        let packets = self.check_read(qp, &reth, env)?;
        self.accept(pkt, packets);
        self.store_read(qp, pkt.bth.psn, &reth, packets);
        Ok(())
    }

    /// Checks a READ request, and returns the number of packets of its response.
    pub(crate) fn check_read(&mut self, qp: &QpShared, reth: &Reth, env: &Env<'_>) -> Result<u32, RequestRefusal> {
        check_right(qp, access::REMOTE_READ)?;
        if u64::from(reth.len) > crate::api::MESSAGE_BYTES_MAX {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength));
        }
        self.check_place()?;
        check_remote(qp, RemoteRange { addr: reth.addr, len: reth.len, rkey: reth.rkey }, access::REMOTE_READ, env)?;
        Ok(read_psns(qp, reth))
    }

    /// Notes a READ that was accepted.
    pub(crate) fn store_read(&mut self, qp: &QpShared, psn: Psn, reth: &Reth, packets: u32) {
        debug_assert!(packets > 0 && u64::from(reth.len) <= u64::from(packets) * u64::from(qp.mtu));
        self.store(ResponderResource {
            psn,
            packets,
            end: packets,
            addr: reth.addr,
            rkey: reth.rkey,
            pd: qp.id.pd,
            srqn: self.recv.srqn().unwrap_or(0),
            length: reth.len,
            msn: self.msn,
            answered: false,
            selective: self.sel.active,
            ..EMPTY
        });
    }

    fn check_place(&mut self) -> CheckResult {
        if !self.has_place() {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::TooManyReads));
        }
        self.reserve_place().map_err(|_| RequestRefusal::NotReady(Reason::NoMemory))
    }

    pub(crate) fn on_atomic(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        let Some(atomic) = pkt.atomic() else {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength));
        };
        let original = self.run_atomic(qp, pkt.info.kind, &atomic, env)?;
        self.accept(pkt, 1);
        self.store_atomic(qp, pkt.bth.psn, (pkt.info.kind, &atomic), original);
        Ok(())
    }

    /// Checks an ATOMIC, executes it, and returns the value before.
    pub(crate) fn run_atomic(
        &mut self,
        qp: &QpShared,
        kind: OpKind,
        atomic: &AtomicEth,
        env: &Env<'_>,
    ) -> Result<u64, RequestRefusal> {
        check_right(qp, access::REMOTE_ATOMIC)?;
        if qp.trails && env.fx.has_open_copies() {
            // It would not see the bytes of the requests in front of it.
            return Err(RequestRefusal::NotReady(Reason::CopyPending));
        }
        if !atomic.addr.is_multiple_of(8) {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::MisalignedAtomic));
        }
        self.check_place()?;
        let span =
            env.mem.remote(qp.peer(), atomic.rkey, atomic.addr, 8, access::REMOTE_ATOMIC).map_err(access_refusal)?;
        match kind {
            OpKind::CmpSwap => span.cmp_swap(atomic.compare, atomic.swap_add),
            _ => span.fetch_add(atomic.swap_add),
        }
        .map_err(unreachable_refusal)
    }

    /// Notes an ATOMIC that was executed.
    pub(crate) fn store_atomic(
        &mut self,
        qp: &QpShared,
        psn: Psn,
        (kind, atomic): (OpKind, &AtomicEth),
        original: u64,
    ) {
        self.store(ResponderResource {
            kind,
            psn,
            packets: 1,
            end: 1,
            addr: atomic.addr,
            rkey: atomic.rkey,
            pd: qp.id.pd,
            srqn: self.recv.srqn().unwrap_or(0),
            original,
            msn: self.msn,
            answered: false,
            selective: self.sel.active,
            ..EMPTY
        });
    }

    /// Counts an executed packet that takes `psns` PSNs, and notes an acknowledgement if the packet asks for one.
    pub(crate) fn accept(&mut self, pkt: &Packet<'_>, psns: u32) {
        debug_assert!(psns > 0 && pkt.bth.psn == self.expected);
        let resp = &mut *self;
        resp.expected = resp.expected.add(psns);
        if pkt.info.position.is_end() {
            resp.msn = (resp.msn + 1) & burst_base::num::MASK_24;
            resp.message = None;
        }
        let has_response = matches!(pkt.info.kind, OpKind::ReadRequest | OpKind::CmpSwap | OpKind::FetchAdd);
        if pkt.bth.ack_req && !has_response {
            resp.ack_due = Some((pkt.bth.psn, resp.msn));
            resp.ack_follows_receive =
                pkt.info.position.is_end() && (pkt.info.kind == OpKind::Send || pkt.info.has_imm);
        }
    }

    /// Answers a request again that was executed before (IBA 9.7.5.1.3).
    pub(crate) fn on_duplicate(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        env.fx.count(Reason::DuplicateRequest);
        let again = match pkt.info.kind {
            OpKind::ReadRequest => self.repeat_read(qp, pkt, env),
            OpKind::CmpSwap | OpKind::FetchAdd => self.repeat_atomic(pkt),
            _ => {
                let answer = self.nak_due.is_none();
                if answer && self.ack_due.is_none() && !self.answers.take(env.now) {
                    return env.fx.count(Reason::AnswerWithheld);
                }
                if answer {
                    self.ack_due = Some((self.expected.prev(), self.msn));
                    self.ack_follows_receive = false;
                }
                return;
            }
        };
        if again.is_none() {
            env.fx.count(Reason::DuplicateForgotten);
        }
    }

    /// The executed READ of which a request asks for a part: age and index of its resource, first packet and end of the part.
    pub(crate) fn names_read(&self, qp: &QpShared, pkt: &Packet<'_>) -> Option<(usize, usize, u32, u32)> {
        let mtu = qp.mtu;
        let reth = pkt.reth()?;
        let (age, place) = self.find(pkt.bth.psn)?;
        let resource = Some(&self.resources[place]).filter(|r| r.kind == OpKind::ReadRequest)?;
        let index = pkt.bth.psn.get().wrapping_sub(resource.psn.get()) & burst_base::num::MASK_24;
        let offset = index * mtu;
        let is_part = reth.rkey == resource.rkey
            && reth.addr == resource.addr.wrapping_add(u64::from(offset))
            && reth.len <= resource.length - offset;
        is_part.then(|| (age, place, index, index + reth.len.div_ceil(mtu).max(1)))
    }

    fn repeat_read(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> Option<()> {
        let (age, place, index, end) = self.names_read(qp, pkt)?;
        let before = (0..=age).map(|age| u64::from(self.resources[self.place(age)].packets)).sum::<u64>();
        let resource = self.resources[place];
        debug_assert!(index <= end && end <= resource.packets, "a part outside of the READ");
        let most = (READ_REPEATS_MIN + REPEATS_PER_PACKET * before) * u64::from(resource.packets);
        // New READs may have taken the places of those before it.
        let most = most.max(resource.repeated_max);
        self.resources[place].repeated_max = most;
        let is_repair = pkt.seth().is_some_and(|seth| seth.is_repair);
        let part = resource.part(index, end);
        let by_itself = is_repair || !resource.selective;
        let again = if by_itself { end - index } else { part.again };
        if again == 0 {
            return Some(());
        }
        if resource.repeated + u64::from(again) > most {
            env.fx.count(Reason::AnswerWithheld);
            return Some(());
        }
        let queued = if by_itself { self.queue_repair(qp, &resource, (age, index, end)) } else { Repair::Refused };
        if matches!(queued, Repair::Waits) || (matches!(queued, Repair::Refused) && part.again == 0) {
            return Some(());
        }
        self.measure_no_response();
        self.note_response_loss(qp, resource.psn.add(index), env);
        let resource = &mut self.resources[place];
        if matches!(queued, Repair::Queued) {
            resource.repeated += u64::from(end - index);
            return Some(());
        }
        resource.repeated += u64::from(part.again);
        (resource.rest, resource.is_repair) = (part.rest, is_repair);
        self.rewind(age, part.index, part.end);
        Some(())
    }

    fn repeat_atomic(&mut self, pkt: &Packet<'_>) -> Option<()> {
        let atomic = pkt.atomic()?;
        let kind = pkt.info.kind;
        let (age, place) = self.find(pkt.bth.psn)?;
        let resource = Some(&self.resources[place]).filter(|r| r.kind == kind && r.addr == atomic.addr)?;
        if !resource.has_pending() {
            self.rewind(age, 0, 1);
        }
        Some(())
    }
}

/// Checks that first and middle packets are full and last ones not empty (IBA 9.7.4.1.6).
#[inline(always)]
pub(crate) fn check_length(qp: &QpShared, pkt: &Packet<'_>) -> CheckResult {
    let len = pkt.payload.len() as u32;
    let fits = match pkt.info.position {
        Position::First | Position::Middle => len == qp.mtu,
        Position::Last => (1..=qp.mtu).contains(&len),
        Position::Only => len <= qp.mtu,
    };
    if fits { Ok(()) } else { Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength)) }
}

/// Checks that the queue pair grants the right (IBA 9.7.4.1.4).
pub(crate) fn check_right(qp: &QpShared, right: u32) -> CheckResult {
    if qp.access_flags & right != 0 {
        Ok(())
    } else {
        Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidRequest))
    }
}

fn check_remote(qp: &QpShared, range: RemoteRange, right: u32, env: &Env<'_>) -> CheckResult {
    let RemoteRange { addr, len, rkey } = range;
    if len == 0 {
        return Ok(());
    }
    match env.mem.remote(qp.peer(), rkey, addr, len, right) {
        Ok(_) => Ok(()),
        Err(reason) => Err(RequestRefusal::Refuse(NakCode::RemoteAccess, reason)),
    }
}

/// Invalidates the key that a SEND names. If that fails, its receive fails as well.
#[inline(never)]
pub(crate) fn invalidate(qp: &QpShared, rkey: Rkey, env: &mut Env<'_>) -> CheckResult {
    env.mem.invalidate(qp.peer(), rkey).map_err(|_| {
        let (status, reason) = (WcStatus::LocAccessErr, Reason::RemoteAccess);
        RequestRefusal::RefuseReceive(NakCode::RemoteAccess, status, reason)
    })
}

/// Writes a packet's payload where a WRITE says.
pub(crate) fn write_payload(qp: &QpShared, rkey: Rkey, addr: u64, payload: &[u8], env: &mut Env<'_>) -> CheckResult {
    if payload.is_empty() {
        return Ok(());
    }
    let len = payload.len() as u32;
    let span = env.mem.remote(qp.peer(), rkey, addr, len, access::REMOTE_WRITE).map_err(access_refusal)?;
    place(&span, payload, &mut copies_of(qp, env)).map_err(unreachable_refusal)
}

/// PSNs that a READ takes: the packets of its response.
pub(crate) fn read_psns(qp: &QpShared, reth: &Reth) -> u32 {
    reth.len.div_ceil(qp.mtu).max(1)
}
