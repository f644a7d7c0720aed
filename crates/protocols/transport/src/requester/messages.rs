//! Packets of work requests: SEND, WRITE, READ and ATOMIC requests, datagrams; and operations that send nothing.
//!
//! Middle packets of a message that are contiguous in memory are made together ([`Requester::send_middles`]): one check of the
//! limits, one key look-up and one header for all of them.
//!
//! A large READ is requested in pieces of [`READ_CHUNK_BYTES`] at fixed offsets, each with the PSNs that its responses will
//! have (IBA 9.4.4). The same pieces are requested again after a loss.

use crate::api::{ACK_REQUEST_BYTES, Env, READ_CHUNK_BYTES, TxBudget, TxState};
use crate::opcodes::{self};
use crate::qp_shared::QpShared;
use crate::requester::heads::{datagram_head, message_head, request_head};
use crate::requester::recovery::InflightWqe;
use crate::requester::recovery::MissingRange;
use crate::requester::selective::heads::{
    PacketMarks, atomic_eth, selective_atomic_head, selective_message_head, selective_read_head,
};
use crate::requester::selective::sending::push_selective_middles;
use crate::requester::standard::split_writes::{is_split, set_place};
use crate::requester::{Requester, SendStep, SendTurn};
use crate::sge_cursor::{Keys, SgeCursor};
use burst_base::verbs::{QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Lkey, Nanos, Reason, Rkey};
use burst_mem::BindRequest;
use burst_span::Span;
use burst_wire::{Bth, OpKind, Reth};

/// Pushes the middle packets from packet `first` of a SEND or WRITE on, whose payload is `span`. False if the batch has no room.
#[inline(always)]
fn push_middles(qp: &QpShared, request: &InflightWqe, first: u32, span: &Span, env: &mut Env<'_>) -> bool {
    debug_assert!(first < request.packets && span.len().is_multiple_of(qp.mtu as usize));
    let head = message_head(qp, request, first, false, qp.mtu);
    let is_split = is_split(qp, request);
    let place = |k, head: &mut [u8; burst_frame::HEAD_MAX]| set_place(qp, request, first + k, is_split, head);
    env.tx.push_run(&qp.flow, head.as_slice(), span, qp.mtu as u16, place)
}

impl Requester {
    /// Counts packets that were pushed.
    #[inline(always)]
    pub(crate) fn count_sent(
        &mut self,
        qp: &QpShared,
        turn: &mut SendTurn<'_>,
        (len, packets): (u32, u32),
        env: &Env<'_>,
    ) {
        turn.budget.window_bytes = turn.budget.window_bytes.saturating_sub(u64::from(len));
        let new = self.recovery.on_sent(packets);
        if !qp.id.qp_type.is_reliable() {
            self.count_unreliable((len, packets));
        } else if self.ack_deadline == Nanos::NEVER {
            self.begin_flight(qp, packets, new, env.now);
        }
    }

    /// The position of the next packet's payload.
    fn payload_cursor(&self, qp: &QpShared, request: &InflightWqe) -> SgeCursor {
        let offset = self.recovery.next_packet() * qp.mtu;
        if request.wqe.flags & send_flags::INLINE as u16 != 0 {
            SgeCursor::in_span(self.sq.inline_span(request.sq_index, request.length), offset)
        } else {
            SgeCursor::at(self.recovery.sges_of(request), u64::from(offset))
        }
    }

    /// Gathers the next `len` bytes, the payload of the next frame. If that fails, the request fails, and the result is false.
    fn gather(
        &mut self,
        qp: &QpShared,
        (request, len): (&InflightWqe, u32),
        cursor: &mut SgeCursor,
        env: &mut Env<'_>,
    ) -> bool {
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: 0 };
        match cursor.gather(keys, self.recovery.sges_of(request), len, env.tx) {
            Ok(()) => true,
            Err(reason) => self.fail_gathering(reason, env),
        }
    }

    /// The same for a request of one packet with one entry, as most short messages are.
    #[inline(always)]
    fn gather_only(&mut self, qp: &QpShared, request: &InflightWqe, env: &mut Env<'_>) -> bool {
        let [sge] = self.recovery.sges_of(request) else { return self.fail_gathering(Reason::LocalLength, env) };
        match env.mem.local(qp.id.pd, Lkey(sge.lkey), sge.addr, request.length, 0) {
            Ok(span) => {
                env.tx.add_payload(span);
                true
            }
            Err(reason) => self.fail_gathering(reason, env),
        }
    }

    /// The memory of the next request's payload cannot be read. False, as the result of [`Requester::gather`].
    #[cold]
    fn fail_gathering(&mut self, reason: Reason, env: &mut Env<'_>) -> bool {
        env.tx.discard_payload();
        let reason = if reason.is_of_memory() { reason } else { Reason::LocalProtection };
        self.recovery.fail_next(WcStatus::LocProtErr, reason);
        false
    }

    /// Sends the packets of a SEND or WRITE, of the selective repeat family or of the standard one. Each family has its own copy
    /// of the code, so that nothing is decided per packet.
    #[inline(always)]
    pub(crate) fn send_message<const SELECTIVE: bool>(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        debug_assert_eq!(self.sel.active, SELECTIVE);
        if self.must_wait_for_reads(qp, request) {
            return SendStep::Stop(TxState::Idle);
        }
        let is_only = request.packets == 1 && request.wqe.num_sge == 1 && request.length > 0;
        let mut cursor = if is_only { SgeCursor::default() } else { self.payload_cursor(qp, request) };
        let sent = self.recovery.sent_psn();
        while self.recovery.next_packet() < request.packets {
            if !is_only && self.send_middles::<SELECTIVE>(qp, (request, &mut cursor), turn, env) {
                continue;
            }
            let pkt = self.recovery.next_packet();
            let len = (request.length - pkt * qp.mtu).min(qp.mtu);
            if let Some(state) = self.gate(qp, (request, len), turn, env) {
                return SendStep::Stop(state);
            }
            let is_gathered = if is_only {
                self.gather_only(qp, request, env)
            } else {
                self.gather(qp, (request, len), &mut cursor, env)
            };
            if !is_gathered {
                return SendStep::Stop(TxState::Idle);
            }
            let is_last = pkt + 1 == request.packets;
            let ack_req = self.wants_ack(qp, (request, len, is_last), turn.budget, env);
            let head = match SELECTIVE {
                false => message_head(qp, request, pkt, ack_req, len),
                true => selective_message_head(qp, request, pkt, len, PacketMarks::asking(ack_req)),
            };
            if !env.tx.push_payload(&qp.flow, head.as_slice(), opcodes::pad_of(len)) {
                return SendStep::Stop(TxState::More);
            }
            self.since_ack_request = if ack_req { 0 } else { self.since_ack_request.saturating_add(len) };
            turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(len));
            self.count_sent(qp, turn, (len, 1), env);
            self.note_unreliable(qp, request, ack_req, env.now);
        }
        if !SELECTIVE {
            self.count_split_messages(qp, request, self.recovery.sent_psn() != sent);
        }
        turn.budget.wqes -= 1;
        SendStep::Sent
    }

    /// Sends the next middle packets that [`Requester::middles`] allows and that are contiguous in memory. False if there are
    /// none.
    fn send_middles<const SELECTIVE: bool>(
        &mut self,
        qp: &QpShared,
        (request, cursor): (&InflightWqe, &mut SgeCursor),
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        let count = self.middles::<SELECTIVE>(qp, request, turn.budget, env);
        if count == 0 {
            return false;
        }
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: 0 };
        let Some(span) = cursor.run(keys, self.recovery.sges_of(request), qp.mtu, count) else {
            return false;
        };
        let first = self.recovery.next_packet();
        let pushed = match SELECTIVE {
            false => push_middles(qp, request, first, &span, env),
            true => push_selective_middles(qp, request, first, &span, env),
        };
        if !pushed {
            return false;
        }
        let len = span.len() as u32;
        debug_assert!(len > 0 && len.is_multiple_of(qp.mtu) && len <= count * qp.mtu);
        self.since_ack_request = self.since_ack_request.saturating_add(len);
        turn.budget.bytes -= u64::from(len);
        self.count_sent(qp, turn, (len, len / qp.mtu), env);
        true
    }

    /// Number of next packets that are middle packets (of a split WRITE: all but the last), that [`Requester::gate`] lets pass,
    /// and that need not ask for an acknowledgement ([`Requester::wants_ack`]).
    #[inline(always)]
    fn middles<const SELECTIVE: bool>(
        &self,
        qp: &QpShared,
        request: &InflightWqe,
        budget: &TxBudget,
        env: &Env<'_>,
    ) -> u32 {
        let next_packet = self.recovery.next_packet();
        if (next_packet == 0 && (SELECTIVE || !is_split(qp, request)))
            || budget.wqes == 0
            || self.is_credit_limited(request)
            || self.is_back()
        {
            return 0;
        }
        let mtu = u64::from(qp.mtu);
        let middle = u64::from(request.packets - next_packet - 1);
        let count = middle.min(env.tx.room_for_run() as u64).min(budget.bytes.saturating_sub(1) / mtu);
        let window = (budget.window_bytes / mtu).saturating_sub(1);
        if !qp.id.qp_type.is_reliable() {
            return self.receipt_run(qp.mtu, (count, window));
        }
        let unasked = u64::from((ACK_REQUEST_BYTES - 1).saturating_sub(self.since_ack_request)) / mtu;
        let distance = (self.sel.distance_max - self.recovery.psn_distance()).max(0) as u64;
        count.min(window).min(unasked).min(distance) as u32
    }

    /// Whether this packet asks for an acknowledgement: the last of a message, the last before sending stops, and one in
    /// [`ACK_REQUEST_BYTES`].
    fn wants_ack(
        &self,
        qp: &QpShared,
        (request, len, is_last): (&InflightWqe, u32, bool),
        budget: &TxBudget,
        env: &Env<'_>,
    ) -> bool {
        if !qp.id.qp_type.is_reliable() {
            return self.wants_receipt(request, len, qp.mtu, budget);
        }
        let next = u64::from(len) + u64::from(qp.mtu);
        is_last
            || self.since_ack_request.saturating_add(len) >= ACK_REQUEST_BYTES
            || budget.window_bytes < next
            || budget.bytes <= u64::from(len)
            || env.tx.room() == 1
            || self.is_credit_limited(request)
            || self.is_back_limited(qp, next)
    }

    /// The piece of a READ that is requested next: the index of the packet after it, and its bytes.
    pub(crate) fn read_piece(&self, qp: &QpShared, request: &InflightWqe) -> (u32, u32) {
        let (pkt, chunk_packets) = (self.recovery.next_packet(), READ_CHUNK_BYTES / qp.mtu);
        let end = ((pkt / chunk_packets + 1) * chunk_packets).min(request.packets);
        (end, (request.length - pkt * qp.mtu).min((end - pkt) * qp.mtu))
    }

    /// Room in the window that a piece of a READ with a response of `len` bytes needs. In the standard family half of it: the
    /// pieces in flight are as many as the window holds, rounded to the nearest number. Rounded down, a window of less than two
    /// pieces would carry half of what it allows, and grow by as little. In the other one the responder has a window in
    /// packets.
    pub(crate) fn read_room(&self, len: u32) -> u32 {
        if self.sel.active { len } else { len.div_ceil(2) }
    }

    /// Sends the requests of a READ, one for each piece.
    pub(crate) fn send_read(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        let opcode = opcodes::single_opcode(qp.id.qp_type, OpKind::ReadRequest);
        while self.recovery.next_packet() < request.packets {
            let pkt = self.recovery.next_packet();
            let offset = pkt * qp.mtu;
            let (end, len) = self.read_piece(qp, request);
            debug_assert!(end > pkt && len <= READ_CHUNK_BYTES);
            if self.must_wait_for_reads(qp, request) {
                return SendStep::Stop(TxState::Idle);
            }
            if let Some(state) = self.gate(qp, (request, self.read_room(len)), turn, env) {
                return SendStep::Stop(state);
            }
            if self.sel.active && self.is_too_far(end - pkt) {
                return SendStep::Stop(TxState::Idle);
            }
            let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, request.first_psn.add(pkt)) };
            let addr = request.wqe.remote_addr.wrapping_add(u64::from(offset));
            let head = match self.sel.active {
                false => request_head(qp, &bth, request).reth(Reth { addr, rkey: Rkey(request.wqe.rkey), len }),
                true => selective_read_head(qp, request, (pkt, len), false, 0),
            };
            if !env.tx.push(&qp.flow, head.as_slice(), &[], 0) {
                return SendStep::Stop(TxState::More);
            }
            turn.budget.wqes -= 1;
            self.count_sent(qp, turn, (len, end - pkt), env);
            if self.sel.active {
                self.measure_answer(request.first_psn.add(pkt), env.now);
            }
        }
        SendStep::Sent
    }

    /// Requests the missing ranges of READs again, before new requests and without the limits on those: their bytes are in
    /// flight. False if budget or batch ended before all were sent.
    #[cold]
    pub(crate) fn send_repairs(&mut self, qp: &QpShared, turn: &mut SendTurn<'_>, env: &mut Env<'_>) -> bool {
        while let Some(range) = self.recovery.next_range(qp.mtu) {
            if !self.push_read_range(qp, &range, turn, env) {
                return false;
            }
            env.fx.count(Reason::ReadRepaired);
            self.recovery.on_range_sent(&range);
            // The answer to the repair is waited for as long as that to a request. In the selective family repairs are repeated
            // sooner than that; each would put off the time-out of a peer that is dead.
            if !self.sel.active || self.ack_deadline == Nanos::NEVER {
                self.ack_deadline = env.now + self.ack_wait(qp);
            }
            self.sel.sent_since = true;
            self.sel.note_asked();
        }
        self.recovery.on_ranges_sent();
        true
    }

    /// Requests packets `first..end` of a READ's response, which lie in one piece, again. False if budget or batch has no room.
    pub(crate) fn push_read_range(
        &self,
        qp: &QpShared,
        &MissingRange { ref request, first, end }: &MissingRange,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        if turn.budget.wqes == 0 {
            return false;
        }
        let offset = first * qp.mtu;
        let len = (request.length - offset).min((end - first) * qp.mtu);
        debug_assert!((len > 0 || request.length == 0) && len <= READ_CHUNK_BYTES);
        let opcode = opcodes::single_opcode(qp.id.qp_type, OpKind::ReadRequest);
        let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, request.first_psn.add(first)) };
        let addr = request.wqe.remote_addr.wrapping_add(u64::from(offset));
        let head = match self.sel.active {
            false => request_head(qp, &bth, request).reth(Reth { addr, rkey: Rkey(request.wqe.rkey), len }),
            true => selective_read_head(qp, request, (first, len), true, 1),
        };
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        turn.budget.wqes -= u32::from(pushed);
        pushed
    }

    pub(crate) fn send_atomic(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        if self.must_wait_for_reads(qp, request) {
            return SendStep::Stop(TxState::Idle);
        }
        if let Some(state) = self.gate(qp, (request, request.length), turn, env) {
            return SendStep::Stop(state);
        }
        if !self.push_atomic(qp, request, turn, env) {
            return SendStep::Stop(TxState::More);
        }
        self.count_sent(qp, turn, (request.length, 1), env);
        if self.sel.active {
            self.measure_answer(request.first_psn, env.now);
        }
        SendStep::Sent
    }

    /// Sends an ATOMIC request. False if the batch has no room.
    pub(crate) fn push_atomic(
        &self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        let is_cas = request.opcode == WrOpcode::AtomicCmpAndSwp;
        let opcode = opcodes::single_opcode(qp.id.qp_type, if is_cas { OpKind::CmpSwap } else { OpKind::FetchAdd });
        let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, request.first_psn) };
        let atomic = atomic_eth(request);
        let head = match self.sel.active {
            false => request_head(qp, &bth, request).atomic(atomic),
            true => selective_atomic_head(qp, request, atomic, 0),
        };
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        turn.budget.wqes -= u32::from(pushed);
        pushed
    }

    /// Binds a memory window, or invalidates a key, once, when everything before it has been sent (IBA 10.8.3.3: outstanding
    /// READs delay it only if it is fenced).
    pub(crate) fn run_local(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        if request.done {
            return SendStep::Sent;
        }
        if turn.budget.wqes == 0 {
            return SendStep::Stop(TxState::More);
        }
        if self.must_wait_for_reads(qp, request) {
            return SendStep::Stop(TxState::Idle);
        }
        let wqe = &request.wqe;
        let (result, status) = if request.opcode == WrOpcode::BindMw {
            let bind = BindRequest {
                window: wqe.imm,
                rkey: wqe.rkey,
                lkey: (wqe.swap >> 32) as u32,
                addr: wqe.remote_addr,
                len: wqe.compare_add,
                access: wqe.swap as u32,
            };
            (env.mem.bind(qp.peer(), &bind), WcStatus::MwBindErr)
        } else {
            (env.mem.invalidate(qp.peer(), Rkey(wqe.imm)), WcStatus::LocQpOpErr)
        };
        turn.budget.wqes -= 1;
        if result.is_err() {
            self.recovery.fail_next(status, Reason::WindowBind);
            return SendStep::Stop(TxState::Idle);
        }
        self.recovery.mark_next_done();
        SendStep::Sent
    }

    /// Sends a UD message: one packet, to the destination of its address handle.
    pub(crate) fn send_datagram(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        debug_assert!(qp.id.qp_type == QpType::Ud && request.packets == 1);
        if let Some(state) = self.gate(qp, (request, request.length), turn, env) {
            return SendStep::Stop(state);
        }
        let Some(flow) = env.fx.ah_flow(qp.id.pd, request.wqe.ah) else {
            self.recovery.fail_next(WcStatus::LocQpOpErr, Reason::LocalOperation);
            return SendStep::Stop(TxState::Idle);
        };
        let mut cursor = self.payload_cursor(qp, request);
        if !self.gather(qp, (request, request.length), &mut cursor, env) {
            return SendStep::Stop(TxState::Idle);
        }
        let head = datagram_head(qp, request);
        if !env.tx.push_payload(&flow, head.as_slice(), opcodes::pad_of(request.length)) {
            return SendStep::Stop(TxState::More);
        }
        turn.budget.wqes -= 1;
        turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(request.length));
        self.count_sent(qp, turn, (request.length, 1), env);
        SendStep::Sent
    }

    /// All packets of a request are sent. `is_new`: for the first time.
    #[inline(always)]
    pub(crate) fn count_split_messages(&mut self, qp: &QpShared, request: &InflightWqe, is_new: bool) {
        if is_new && is_split(qp, request) {
            self.extra_messages = self.extra_messages.wrapping_add(request.packets - 1);
        }
    }
}
