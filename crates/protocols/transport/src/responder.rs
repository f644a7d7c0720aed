//! The receiving half of an RC queue pair: checks request packets, executes them, and notes the answers to send.
//!
//! A request packet passes the checks in the order of IBA 9.7.4: PSN, opcode sequence, right, length, resources, rkey.
//! Each is a function that returns a [`RequestRefusal`] or nothing, and nothing is written before all have passed. `respond`
//! sends the answers: `ack_due` and `nak_due` coalesce, READ and ATOMIC responses wait in a ring of `max_dest_rd_atomic`
//! resources.
//!
//! A resource stays after it was answered, so that a repeated READ (any part of it) or ATOMIC (the saved result) can be
//! answered again (9.7.5.1.3). A repeated request rewinds its resource; responses behind it that are still pending
//! follow in order. Repeated SENDs and WRITEs are acknowledged again and not executed.
//!
//! An attacker that forges the peer's packets can make this half send answers to the peer. They are bounded: acknowledgements
//! of repeated packets and NAKs of gaps by a token bucket ([`AnswerBudget`]), repeated READ responses by a multiple of the bytes
//! of the READ ([`READ_REPEATS_MIN`]). Withheld acknowledgements cost an honest peer nothing: they are cumulative, and a gap that
//! stays is reported with the next token.

use crate::api::Env;
use crate::message::ReceivedMessage;
use crate::qp::Qp;
use crate::receive::Load;
use crate::repair_queue::{READ_REPAIR_DUE, Repair};
use crate::responder_resource::{EMPTY, ResponderResource};
use crate::selective::SelectiveResponder;
use burst_base::heap::{self, OutOfMemory};
use burst_base::verbs::{EventType, QpState, WcStatus, access, wc_flags};
use burst_base::{Nanos, Psn, Reason, Rkey, TokenBucket};
use burst_span::Unreachable;
use burst_wire::{AtomicEth, NakCode, OpKind, Packet, Position, Reth, Syndrome};

/// Answers to repeated and out-of-order packets: bursts of 1,024, and 10,000 per second. A peer that repeats a whole window gets
/// one such answer in a turn, because answers coalesce.
pub(crate) type AnswerBudget = TokenBucket<1024, 100_000>;
/// A gap that stays is reported again when a packet comes: a lost NAK costs the peer a whole ACK timeout otherwise. A peer
/// that has sent the missing packet again ignores it, but others may send everything once more. So a gap is repeated after
/// twice the time for which packets behind the last gap came, which is a round trip if the peer has kept sending; not sooner
/// than the first of these times, nor later than the second, which is also for the first gap.
const NAK_REPEATED_AFTER: [Nanos; 2] = [Nanos::from_us(50), Nanos::from_us(500)];
/// A READ's response is repeated this many times, and [`REPEATS_PER_PACKET`] times for each response packet of this READ and of
/// those before it. With go-back-N each lost packet of theirs repeats it once.
const READ_REPEATS_MIN: u64 = 32;
/// See [`READ_REPEATS_MIN`]. Two: half of all packets may be lost.
const REPEATS_PER_PACKET: u64 = 2;

/// A SEND or WRITE of which some packets have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundMessage {
    pub(crate) kind: OpKind,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    /// WRITE: announced length.
    pub(crate) length: u32,
    pub(crate) received: u64,
}

/// A bit of [`Responder::pending`].
pub(crate) const READ_ACK_DUE: u32 = 1 << 31;
/// The bits of [`Responder::pending`] that do not count resources.
pub(crate) const FLAGS: u32 = READ_ACK_DUE | READ_REPAIR_DUE;

/// State of the receiving half.
// In the order of use: see `hot`.
#[repr(C)]
pub(crate) struct Responder {
    /// PSN and syndrome of the pending NAK.
    pub(crate) nak_due: Option<(Psn, Syndrome)>,
    /// Bytes of READ responses in flight.
    pub(crate) response_bytes: u64,
    /// When the responses in flight stop counting; never, if there are none.
    pub(crate) response_deadline: Nanos,
    /// PSN and MSN of the pending acknowledgement.
    pub(crate) ack_due: Option<(Psn, u32)>,
    /// Resources with pending packets; [`READ_ACK_DUE`] if READ responses are to be acknowledged; and [`READ_REPAIR_DUE`] if
    /// parts of responses are to be sent again: so one comparison tells whether anything is to be sent.
    pub(crate) pending: u32,
    /// Resources with pending packets that wait for the window: then `pending` counts none.
    pub(crate) parked: u32,
    /// A NAK was sent for the expected packet. Later packets are dropped silently until it arrives (IBA 9.7.4.1.2).
    pub(crate) nak_given: bool,
    /// It was that of a gap, sent at `nak_at`: it may have been lost, and is repeated if the gap stays.
    nak_is_gap: bool,
    /// The pending acknowledgement is for a message that has just completed a receive.
    pub(crate) ack_follows_receive: bool,
    /// COMM_EST was raised.
    pub(crate) established: bool,
    pub(crate) expected: Psn,
    pub(crate) msn: u32,
    pub(crate) message: Option<InboundMessage>,
    /// The selective repeat family.
    pub(crate) sel: SelectiveResponder,
    /// Grows with use, up to `depth` resources.
    pub(crate) resources: Vec<ResponderResource>,
    depth: usize,
    /// Index of the oldest resource; `count` of them follow each other from there.
    first: usize,
    count: usize,
    /// Number of the oldest resources that have nothing pending.
    served: usize,
    pub(crate) answers: AnswerBudget,
    nak_at: Nanos,
    /// Time from the NAK of the last gap to the last packet that came behind it, in nanoseconds.
    gap_lasted_ns: u32,
    /// After which time the NAK of a gap is repeated, in nanoseconds.
    nak_wait_ns: u32,
}

/// Why a packet is not executed.
pub(crate) enum RequestRefusal {
    /// The request is refused by a NAK, and the queue pair goes to ERR.
    Refuse(NakCode, Reason),
    /// No receive is posted, or a page of the memory is not there yet: an RNR NAK asks for the packet again.
    NotReady(Reason),
    /// The request is refused by a NAK, the loaded receive ends with this status, and the queue pair goes to ERR.
    RefuseReceive(NakCode, WcStatus, Reason),
}

pub(crate) type CheckResult = Result<(), RequestRefusal>;

/// The refusal of a peer's request whose memory a key does not give.
pub(crate) fn access_refusal(reason: Reason) -> RequestRefusal {
    RequestRefusal::Refuse(NakCode::RemoteAccess, reason)
}

/// The refusal of a peer's request whose memory is not reached.
#[cold]
pub(crate) fn unreachable_refusal(why: Unreachable) -> RequestRefusal {
    match why {
        Unreachable::Late => RequestRefusal::NotReady(Reason::PageLate),
        Unreachable::Gone => access_refusal(Reason::RemoteAccess),
    }
}

/// The reason of a receive that cannot be written.
#[cold]
pub(crate) fn receive_reason(reason: Reason) -> Reason {
    if reason.is_of_memory() { reason } else { Reason::ReceiveProtection }
}

impl Responder {
    pub(crate) fn new() -> Self {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            nak_given: false,
            nak_is_gap: false,
            nak_at: Nanos(0),
            gap_lasted_ns: 0,
            nak_wait_ns: NAK_REPEATED_AFTER[1].0 as u32,
            message: None,
            ack_due: None,
            ack_follows_receive: false,
            nak_due: None,
            resources: Vec::new(),
            depth: 0,
            first: 0,
            count: 0,
            served: 0,
            pending: 0,
            parked: 0,
            response_bytes: 0,
            response_deadline: Nanos::NEVER,
            established: false,
            answers: AnswerBudget::default(),
            sel: SelectiveResponder::new(),
        }
    }
    /// Reserves memory for one READ or ATOMIC, if `depth` allows any (the queue pair is about to enter RTR).
    pub(crate) fn reserve(&mut self, depth: u8) -> Result<(), OutOfMemory> {
        heap::reserve(&mut self.resources, usize::from(depth.min(1)))
    }
    /// Reserves memory for the next READ or ATOMIC: most queue pairs never have as many as they may.
    fn reserve_place(&mut self) -> Result<(), OutOfMemory> {
        let used = self.resources.len();
        if used < self.resources.capacity() || used == self.depth {
            return Ok(());
        }
        self.grow()
    }
    #[cold]
    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let places = (2 * self.resources.len()).clamp(1, self.depth);
        heap::reserve(&mut self.resources, places)
    }
    /// Begins at `psn`, with places for `depth` READs and ATOMICs (the queue pair enters RTR).
    pub(crate) fn start(&mut self, psn: Psn, depth: u8) {
        let mut resources = std::mem::take(&mut self.resources);
        resources.clear();
        *self = Responder { expected: psn, resources, depth: usize::from(depth), ..Responder::new() };
    }
    /// The queue pair goes to ERR: only a pending NAK and the responses before it are still sent.
    pub(crate) fn stop(&mut self) {
        self.message = None;
        self.ack_due = None;
        if self.nak_due.is_none() {
            self.drop_pending();
        }
    }
    /// Drops the pending responses.
    pub(crate) fn drop_pending(&mut self) {
        self.count = 0;
        self.served = 0;
        (self.pending, self.parked) = (0, 0);
        (self.response_bytes, self.response_deadline) = (0, Nanos::NEVER);
    }
    /// The resources that are kept.
    pub(crate) fn held_resources(&mut self) -> impl Iterator<Item = &mut ResponderResource> {
        let (ahead, behind) = self.resources.split_at_mut(self.first);
        behind.iter_mut().chain(ahead).take(self.count)
    }
    /// Ends access to memory for requests that named this shared receive queue.
    pub(crate) fn revoke(&mut self, srqn: u32) {
        for resource in self.resources.iter_mut().filter(|r| r.srqn == srqn) {
            resource.pd = u32::MAX;
        }
    }
    /// Whether an answer is pending.
    pub(crate) fn has_pending(&self) -> bool {
        self.ack_due.is_some() || self.nak_due.is_some() || self.pending > 0
    }
    /// Whether an acknowledgement is pending and nothing else.
    pub(crate) fn has_only_ack_pending(&self) -> bool {
        self.ack_due.is_some() && self.nak_due.is_none() && self.pending == 0
    }
    /// The oldest resource with pending packets.
    pub(crate) fn oldest_pending(&mut self) -> Option<&mut ResponderResource> {
        if self.pending & !FLAGS == 0 {
            return None;
        }
        let age = (self.served..self.count).find(|&age| self.resources[self.place(age)].has_pending())?;
        // Responses are sent in order: older resources need not be searched again unless one is rewound.
        self.served = age;
        let place = self.place(age);
        Some(&mut self.resources[place])
    }
    /// Index of the resource that has `age` older ones.
    fn place(&self, age: usize) -> usize {
        let place = self.first + age;
        if place < self.depth { place } else { place - self.depth }
    }
    /// Whether a new READ or ATOMIC may be accepted: a place is free, or the oldest resource has been answered.
    fn has_place(&self) -> bool {
        self.depth > 0 && (self.count < self.depth || self.resources[self.first].answered)
    }
    /// Stores a resource, over the oldest if no place is free.
    fn store(&mut self, resource: ResponderResource) {
        debug_assert!(self.has_place() && resource.has_pending());
        self.unpark();
        if self.count == self.depth {
            let oldest = &self.resources[self.first];
            if oldest.has_pending() {
                self.pending -= 1;
            }
            // The peer asks for more than `depth` READs and ATOMICs, so it has the answer to the first.
            self.response_bytes -= u64::from(oldest.counted_bytes - oldest.acked_bytes);
            self.first = self.place(1);
            self.count -= 1;
            self.served = self.served.saturating_sub(1);
        }
        debug_assert!(self.count < self.depth && self.served <= self.count);
        match self.place(self.count) {
            unused if unused == self.resources.len() => {
                debug_assert!(unused < self.resources.capacity(), "`reserve_place` made room");
                self.resources.push(resource);
            }
            place => self.resources[place] = resource,
        }
        self.count += 1;
        self.pending += 1;
    }
    /// The packets that were asked for again are sent: the response that they interrupted goes on. False if there was none.
    pub(crate) fn continue_rest(&mut self) -> bool {
        let place = self.place(self.served);
        let Some(resource) = self.resources.get_mut(place) else { return false };
        let Some((start, next, end)) = resource.rest.take() else { return false };
        debug_assert!(!resource.has_pending() && next < end);
        (resource.start, resource.next, resource.end) = (start, next, end);
        true
    }
    /// Age and index of the resource that contains `psn`. If several do, the youngest: PSNs wrap, and a resource may stay for
    /// longer than that takes.
    fn find(&self, psn: Psn) -> Option<(usize, usize)> {
        (0..self.count).rev().map(|age| (age, self.place(age))).find(|&(_, place)| {
            let resource = &self.resources[place];
            psn.is_within(resource.psn, resource.packets)
        })
    }
    /// Whether a resource that has fewer than `age` older ones has pending packets.
    pub(crate) fn is_older_pending(&self, age: usize) -> bool {
        (self.served.min(age)..age).any(|age| self.resources[self.place(age)].has_pending())
    }
    /// The READ of which `count` packets from `psn` on are a part.
    pub(crate) fn response_of(&self, psn: Psn, count: u32) -> Option<&ResponderResource> {
        let (_, place) = self.find(psn)?;
        let is_whole = |resource: &&ResponderResource| {
            resource.kind == OpKind::ReadRequest && psn.add(count).diff(resource.psn) <= resource.packets as i32
        };
        self.resources.get(place).filter(is_whole)
    }
    /// Makes packets `index..end` of the resource of this age pending again.
    fn rewind(&mut self, age: usize, index: u32, end: u32) {
        debug_assert!(age < self.count);
        self.unpark();
        let place = self.place(age);
        let resource = &mut self.resources[place];
        debug_assert!(index < end && end <= resource.packets);
        if !resource.has_pending() {
            self.pending += 1;
        }
        (resource.start, resource.next, resource.end) = (index, index, end);
        self.served = self.served.min(age);
    }

    /// READs and ATOMICs of the selective repeat family are answered in the standard one from now on, those too whose response
    /// the peer asks for again: it understands no other. What is left of a response begins as a whole one.
    #[cold]
    pub(crate) fn answer_in_standard_family(&mut self) {
        self.pending &= !READ_REPAIR_DUE;
        for resource in &mut self.resources {
            (resource.selective, resource.is_repair, resource.rest) = (false, false, None);
            // What acknowledgements of the other family have said does not count: a response begins with its first packet.
            resource.held = 0;
            resource.start = resource.next;
        }
    }
}

impl Qp {
    /// Handles a request packet of RC or XRC, or one of the selective repeat family whose turn it is.
    pub(crate) fn on_request(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return env.fx.count(Reason::WrongState);
        }
        self.establish(env);
        if self.resp.sel.active && !pkt.info.service.is_selective() {
            self.leave_selective(env);
        }
        let distance = pkt.bth.psn.diff(self.resp.expected);
        if distance < 0 {
            return self.on_duplicate(pkt, env);
        }
        if distance > 0 {
            return self.on_gap(env);
        }
        match self.choose_srq(pkt, env).and_then(|()| self.execute(pkt, env)) {
            Ok(()) => self.resp.nak_given = false,
            Err(refusal) => self.refuse(refusal, env),
        }
    }

    /// Executes the packet whose turn it is.
    fn execute(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        match pkt.info.kind {
            OpKind::Send => self.on_send(pkt, env),
            OpKind::Write => self.on_write(pkt, env),
            OpKind::ReadRequest => self.on_read_request(pkt, env),
            _ => self.on_atomic(pkt, env),
        }
    }

    /// Raises COMM_EST for the first packet in RTR (IBA 11.6.3).
    pub(crate) fn establish(&mut self, env: &mut Env<'_>) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            env.fx.event(self.id.qpn, EventType::CommEst);
        }
    }

    fn on_gap(&mut self, env: &mut Env<'_>) {
        let since = env.now.since(self.resp.nak_at);
        if self.resp.nak_given && !(self.resp.nak_is_gap && since.0 >= self.resp.nak_wait_ns.into()) {
            self.resp.gap_lasted_ns = since.0.min(NAK_REPEATED_AFTER[1].0) as u32;
            return env.fx.count(Reason::GapRepeated);
        }
        if !self.resp.answers.take(env.now) {
            return env.fx.count(Reason::AnswerWithheld);
        }
        if !self.resp.nak_given && self.resp.gap_lasted_ns > 0 {
            let [least, most] = NAK_REPEATED_AFTER.map(|after| after.0 as u32);
            self.resp.nak_wait_ns = (2 * self.resp.gap_lasted_ns).clamp(least, most);
        }
        self.resp.gap_lasted_ns = 0;
        env.fx.count(Reason::SequenceGap);
        (self.resp.nak_given, self.resp.nak_is_gap, self.resp.nak_at) = (true, true, env.now);
        self.set_nak_due(Syndrome::Nak(NakCode::PsnSequence));
    }

    fn set_nak_due(&mut self, syndrome: Syndrome) {
        debug_assert!(self.resp.nak_given || matches!(syndrome, Syndrome::Nak(_)));
        self.resp.nak_due = Some((self.resp.expected, syndrome));
        // A NAK acknowledges everything before it.
        self.resp.ack_due = None;
    }

    pub(crate) fn refuse(&mut self, refusal: RequestRefusal, env: &mut Env<'_>) {
        match refusal {
            RequestRefusal::NotReady(reason) => {
                env.fx.count(reason);
                (self.resp.nak_given, self.resp.nak_is_gap) = (true, false);
                self.set_nak_due(Syndrome::Rnr { timer: self.attr.min_rnr_timer });
            }
            RequestRefusal::Refuse(code, reason) => {
                env.fx.count(reason);
                self.set_nak_due(Syndrome::Nak(code));
                let event = match code {
                    NakCode::RemoteAccess => EventType::QpAccessErr,
                    NakCode::RemoteOperation => EventType::QpFatal,
                    _ => EventType::QpReqErr,
                };
                env.fx.event(self.id.qpn, event);
                self.enter_error();
            }
            RequestRefusal::RefuseReceive(code, status, reason) => {
                self.set_nak_due(Syndrome::Nak(code));
                self.complete_receive_error(status, reason, env);
                self.enter_error();
            }
        }
    }

    /// Checks that a middle or last packet continues a message of its kind, and that a first or only packet follows a complete
    /// message (IBA 9.7.4.1.3).
    pub(crate) fn check_sequence(&self, pkt: &Packet<'_>) -> CheckResult {
        let fits = match &self.resp.message {
            None => pkt.info.position.is_start(),
            Some(message) => !pkt.info.position.is_start() && message.kind == pkt.info.kind,
        };
        if fits { Ok(()) } else { Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidOpcodeSequence)) }
    }

    /// Checks that first and middle packets are full and last ones not empty (IBA 9.7.4.1.6).
    #[inline(always)]
    pub(crate) fn check_length(&self, pkt: &Packet<'_>) -> CheckResult {
        let len = pkt.payload.len() as u32;
        let fits = match pkt.info.position {
            Position::First | Position::Middle => len == self.mtu,
            Position::Last => (1..=self.mtu).contains(&len),
            Position::Only => len <= self.mtu,
        };
        if fits { Ok(()) } else { Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength)) }
    }

    /// Checks that the queue pair grants the right (IBA 9.7.4.1.4).
    pub(crate) fn check_right(&self, right: u32) -> CheckResult {
        if self.access_flags & right != 0 {
            Ok(())
        } else {
            Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidRequest))
        }
    }

    /// [`Qp::check_receive`] where a call costs little.
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

    fn check_remote(&self, rkey: Rkey, addr: u64, len: u32, right: u32, env: &Env<'_>) -> CheckResult {
        if len == 0 {
            return Ok(());
        }
        match env.mem.remote(self.peer(), rkey, addr, len, right) {
            Ok(_) => Ok(()),
            Err(reason) => Err(RequestRefusal::Refuse(NakCode::RemoteAccess, reason)),
        }
    }

    #[inline(always)]
    pub(crate) fn on_send(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        self.check_length(pkt)?;
        self.check_receive()?;
        let received = self.resp.message.map_or(0, |message| message.received);
        if received + pkt.payload.len() as u64 > self.recv.room {
            let (status, reason) = (WcStatus::LocLenErr, Reason::ReceiveTooShort);
            return Err(RequestRefusal::RefuseReceive(NakCode::InvalidRequest, status, reason));
        }
        let keys = self.recv_keys(env);
        self.recv.scatter(keys, received, pkt.payload).map_err(|reason| match reason {
            Reason::PageLate => RequestRefusal::NotReady(reason),
            reason => {
                let reason = receive_reason(reason);
                RequestRefusal::RefuseReceive(NakCode::RemoteOperation, WcStatus::LocProtErr, reason)
            }
        })?;
        let total = received + pkt.payload.len() as u64;
        if pkt.info.position.is_end() {
            self.finish_send(pkt, total, env)?;
        } else {
            let (kind, rkey) = (OpKind::Send, Rkey(0));
            self.resp.message = Some(InboundMessage { kind, addr: 0, rkey, length: 0, received: total });
        }
        self.accept(pkt, 1);
        Ok(())
    }

    fn finish_send(&mut self, pkt: &Packet<'_>, total: u64, env: &mut Env<'_>) -> CheckResult {
        let mut got =
            ReceivedMessage { byte_len: total as u32, solicited: pkt.bth.solicited, ..ReceivedMessage::default() };
        if let Some(imm) = pkt.imm() {
            got.imm = imm.to_be32();
            got.wc_flags = wc_flags::WITH_IMM;
        } else if let Some(ieth) = pkt.ieth() {
            self.invalidate(ieth.rkey, env)?;
            got.imm = ieth.rkey.0;
            got.wc_flags = wc_flags::WITH_INV;
        }
        self.complete_receive(got, env);
        Ok(())
    }

    /// Invalidates the key that a SEND names. If that fails, its receive fails as well.
    #[inline(never)]
    pub(crate) fn invalidate(&mut self, rkey: Rkey, env: &mut Env<'_>) -> CheckResult {
        env.mem.invalidate(self.peer(), rkey).map_err(|_| {
            let (status, reason) = (WcStatus::LocAccessErr, Reason::RemoteAccess);
            RequestRefusal::RefuseReceive(NakCode::RemoteAccess, status, reason)
        })
    }

    fn on_write(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        self.check_right(access::REMOTE_WRITE)?;
        self.check_length(pkt)?;
        let message = self.write_message(pkt)?;
        if pkt.info.has_imm {
            self.check_receive()?;
        }
        if pkt.info.position.is_start() {
            self.check_remote(message.rkey, message.addr, message.length, access::REMOTE_WRITE, env)?;
        }
        self.write_payload(message.rkey, message.addr.wrapping_add(message.received), pkt.payload, env)?;
        let message = InboundMessage { received: message.received + pkt.payload.len() as u64, ..message };
        self.resp.message = Some(message);
        if let Some(imm) = pkt.imm() {
            let got = ReceivedMessage {
                byte_len: message.length,
                imm: imm.to_be32(),
                wc_flags: wc_flags::WITH_IMM,
                with_write: true,
                solicited: pkt.bth.solicited,
                ..ReceivedMessage::default()
            };
            self.complete_receive(got, env);
        }
        self.accept(pkt, 1);
        Ok(())
    }

    /// The WRITE of `pkt` in its state before `pkt`. Checks the length (IBA 9.7.4.1.6).
    pub(crate) fn write_message(&self, pkt: &Packet<'_>) -> Result<InboundMessage, RequestRefusal> {
        const INVALID: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength);
        let message = match (pkt.reth(), self.resp.message) {
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

    /// Writes a packet's payload where a WRITE says.
    pub(crate) fn write_payload(&self, rkey: Rkey, addr: u64, payload: &[u8], env: &Env<'_>) -> CheckResult {
        if payload.is_empty() {
            return Ok(());
        }
        let len = payload.len() as u32;
        let span = env.mem.remote(self.peer(), rkey, addr, len, access::REMOTE_WRITE).map_err(access_refusal)?;
        span.write_from(payload).map_err(unreachable_refusal)
    }

    pub(crate) fn on_read_request(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        const INVALID: RequestRefusal = RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength);
        self.check_sequence(pkt)?;
        let reth = pkt.reth().ok_or(INVALID)?;
        let packets = self.check_read(&reth, env)?;
        self.accept(pkt, packets);
        self.store_read(pkt.bth.psn, &reth, packets);
        Ok(())
    }

    /// Checks a READ request, and returns the number of packets of its response.
    pub(crate) fn check_read(&mut self, reth: &Reth, env: &Env<'_>) -> Result<u32, RequestRefusal> {
        self.check_right(access::REMOTE_READ)?;
        if u64::from(reth.len) > crate::api::MESSAGE_BYTES_MAX {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength));
        }
        self.check_place()?;
        self.check_remote(reth.rkey, reth.addr, reth.len, access::REMOTE_READ, env)?;
        Ok(self.read_psns(reth))
    }

    /// PSNs that a READ takes: the packets of its response.
    pub(crate) fn read_psns(&self, reth: &Reth) -> u32 {
        reth.len.div_ceil(self.mtu).max(1)
    }

    /// Notes a READ that was accepted.
    pub(crate) fn store_read(&mut self, psn: Psn, reth: &Reth, packets: u32) {
        self.resp.store(ResponderResource {
            psn,
            packets,
            end: packets,
            addr: reth.addr,
            rkey: reth.rkey,
            pd: self.id.pd,
            srqn: self.recv.srqn().unwrap_or(0),
            length: reth.len,
            msn: self.resp.msn,
            answered: false,
            selective: self.resp.sel.active,
            ..EMPTY
        });
    }

    fn check_place(&mut self) -> CheckResult {
        if !self.resp.has_place() {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::TooManyReads));
        }
        self.resp.reserve_place().map_err(|_| RequestRefusal::NotReady(Reason::NoMemory))
    }

    pub(crate) fn on_atomic(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> CheckResult {
        self.check_sequence(pkt)?;
        let Some(atomic) = pkt.atomic() else {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::InvalidLength));
        };
        let original = self.run_atomic(pkt.info.kind, &atomic, env)?;
        self.accept(pkt, 1);
        self.store_atomic(pkt.bth.psn, pkt.info.kind, &atomic, original);
        Ok(())
    }

    /// Checks an ATOMIC, executes it, and returns the value before.
    pub(crate) fn run_atomic(
        &mut self,
        kind: OpKind,
        atomic: &AtomicEth,
        env: &Env<'_>,
    ) -> Result<u64, RequestRefusal> {
        self.check_right(access::REMOTE_ATOMIC)?;
        if !atomic.addr.is_multiple_of(8) {
            return Err(RequestRefusal::Refuse(NakCode::InvalidRequest, Reason::MisalignedAtomic));
        }
        self.check_place()?;
        let span =
            env.mem.remote(self.peer(), atomic.rkey, atomic.addr, 8, access::REMOTE_ATOMIC).map_err(access_refusal)?;
        match kind {
            OpKind::CmpSwap => span.cmp_swap(atomic.compare, atomic.swap_add),
            _ => span.fetch_add(atomic.swap_add),
        }
        .map_err(unreachable_refusal)
    }

    /// Notes an ATOMIC that was executed.
    pub(crate) fn store_atomic(&mut self, psn: Psn, kind: OpKind, atomic: &AtomicEth, original: u64) {
        self.resp.store(ResponderResource {
            kind,
            psn,
            packets: 1,
            end: 1,
            addr: atomic.addr,
            rkey: atomic.rkey,
            pd: self.id.pd,
            srqn: self.recv.srqn().unwrap_or(0),
            original,
            msn: self.resp.msn,
            answered: false,
            selective: self.resp.sel.active,
            ..EMPTY
        });
    }

    /// Counts an executed packet that takes `psns` PSNs, and notes an acknowledgement if the packet asks for one.
    pub(crate) fn accept(&mut self, pkt: &Packet<'_>, psns: u32) {
        debug_assert!(psns > 0 && pkt.bth.psn == self.resp.expected);
        let resp = &mut self.resp;
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
    pub(crate) fn on_duplicate(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        env.fx.count(Reason::DuplicateRequest);
        let again = match pkt.info.kind {
            OpKind::ReadRequest => self.repeat_read(pkt, env),
            OpKind::CmpSwap | OpKind::FetchAdd => self.repeat_atomic(pkt),
            _ => {
                let answer = self.resp.nak_due.is_none();
                if answer && self.resp.ack_due.is_none() && !self.resp.answers.take(env.now) {
                    return env.fx.count(Reason::AnswerWithheld);
                }
                if answer {
                    self.resp.ack_due = Some((self.resp.expected.prev(), self.resp.msn));
                    self.resp.ack_follows_receive = false;
                }
                return;
            }
        };
        if again.is_none() {
            env.fx.count(Reason::DuplicateForgotten);
        }
    }

    /// The executed READ of which a request asks for a part: age and index of its resource, first packet and end of the part.
    pub(crate) fn names_read(&self, pkt: &Packet<'_>) -> Option<(usize, usize, u32, u32)> {
        let mtu = self.mtu;
        let reth = pkt.reth()?;
        let (age, place) = self.resp.find(pkt.bth.psn)?;
        let resource = Some(&self.resp.resources[place]).filter(|r| r.kind == OpKind::ReadRequest)?;
        let index = pkt.bth.psn.get().wrapping_sub(resource.psn.get()) & burst_base::num::MASK_24;
        let offset = index * mtu;
        let is_part = reth.rkey == resource.rkey
            && reth.addr == resource.addr.wrapping_add(u64::from(offset))
            && reth.len <= resource.length - offset;
        is_part.then(|| (age, place, index, index + reth.len.div_ceil(mtu).max(1)))
    }

    fn repeat_read(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> Option<()> {
        let (age, place, index, end) = self.names_read(pkt)?;
        let before = (0..=age).map(|age| u64::from(self.resp.resources[self.resp.place(age)].packets)).sum::<u64>();
        let resource = self.resp.resources[place];
        debug_assert!(index <= end && end <= resource.packets, "a part outside of the READ");
        let most = (READ_REPEATS_MIN + REPEATS_PER_PACKET * before) * u64::from(resource.packets);
        // New READs may have taken the places of those before it.
        let most = most.max(resource.repeated_max);
        self.resp.resources[place].repeated_max = most;
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
        let queued = if by_itself { self.queue_repair(&resource, (age, index, end)) } else { Repair::Refused };
        if matches!(queued, Repair::Waits) || (matches!(queued, Repair::Refused) && part.again == 0) {
            return Some(());
        }
        self.measure_no_response();
        let resource = &mut self.resp.resources[place];
        if matches!(queued, Repair::Queued) {
            resource.repeated += u64::from(end - index);
            return Some(());
        }
        resource.repeated += u64::from(part.again);
        (resource.rest, resource.is_repair) = (part.rest, is_repair);
        self.resp.rewind(age, part.index, part.end);
        Some(())
    }

    fn repeat_atomic(&mut self, pkt: &Packet<'_>) -> Option<()> {
        let atomic = pkt.atomic()?;
        let kind = pkt.info.kind;
        let (age, place) = self.resp.find(pkt.bth.psn)?;
        let resource = Some(&self.resp.resources[place]).filter(|r| r.kind == kind && r.addr == atomic.addr)?;
        if !resource.has_pending() {
            self.resp.rewind(age, 0, 1);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
