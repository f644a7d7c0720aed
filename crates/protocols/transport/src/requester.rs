//! The sending half of a queue pair: from the send queue to packets.
//!
//! A work request is copied out of the shared queue once, checked, and becomes a [`Slot`] of a ring; a cursor
//! (slot, packet) walks along the ring and makes packets. Going back after a loss moves the cursor and nothing else,
//! because everything a packet needs (PSN, offset, position) follows from the slot and the packet's index. Counts that
//! flow control needs (bytes in flight, reads outstanding, packets) are differences of two positions, so they cannot
//! drift.
//!
//! Large READs are asked for in pieces of [`READ_CHUNK_BYTES`], on a fixed grid, each a request of its own with the PSNs
//! that its responses will have (IBA 9.4.4); the same grid is used again after a loss.
//! Limits on what may be sent: budget and batch of the turn, window, PSN distance, reads outstanding (IBA 9.4.4),
//! fence (10.8.3.3), end-to-end credits (9.7.7.2).

use crate::api::{
    ACK_BACKOFF_MAX, ACK_REQUEST_BYTES, Env, INFLIGHT_SGES_MAX, INFLIGHT_WQES_MAX, MESSAGE_BYTES_MAX, READ_CHUNK_BYTES,
    TxBudget, TxState,
};
use crate::gather::{Keys, SpanList, Walk};
use crate::head::{self, Work};
use crate::qp::Qp;
use crate::ring::{Ring, SgeRing};
use burst_base::num::MASK_24;
use burst_base::verbs::{QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_mem::BindRequest;
use burst_shm::Fetch;
use burst_shm::layout::{SGE_MAX, SendWqe, Sge};
use burst_wire::{AtomicEth, Bth, HeadBuf, Kind, Reth, XrcEth};

/// Most packets between the oldest unacknowledged and the next: a quarter of the PSN space, half of what IBA allows.
const PSN_DISTANCE_MAX: i32 = 1 << 22;

const BAD_REQUEST: (WcStatus, Reason) = (WcStatus::LocQpOpErr, Reason::LocalOperation);
const TOO_LONG: (WcStatus, Reason) = (WcStatus::LocLenErr, Reason::LocalLength);
/// What a checked work request does, and how many bytes it moves.
type Checked = (Work, WrOpcode, u32);

/// A work request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) wqe: SendWqe,
    pub(crate) work: Work,
    pub(crate) opcode: WrOpcode,
    /// Number of its send queue entry.
    pub(crate) sq_index: u32,
    pub(crate) sge_first: u32,
    sge_end: usize,
    pub(crate) first_psn: Psn,
    /// PSNs it takes: packets sent, or packets of the answer.
    pub(crate) packets: u32,
    pub(crate) length: u32,
    byte_base: u64,
    rd_base: u32,
    /// Send sequence number of its first message (IBA 9.7.7.2.1).
    ssn: u32,
    /// A local operation was carried out: going back does not repeat it.
    pub(crate) done: bool,
    /// It cannot be carried out: it ends with this when its turn comes.
    pub(crate) fail: Option<(WcStatus, Reason)>,
}

impl Slot {
    /// Whether the peer consumes a receive for it.
    fn takes_credit(&self) -> bool {
        self.work == Work::Send || self.opcode == WrOpcode::RdmaWriteWithImm
    }
}

/// State of the sending half.
pub(crate) struct Requester {
    pub(crate) slots: Ring<Slot>,
    pub(crate) sges: SgeRing,
    scratch: [Sge; SGE_MAX as usize],
    /// Oldest slot, slot of the next packet, slot of the next work request.
    pub(crate) head: u32,
    pub(crate) cursor: u32,
    pub(crate) tail: u32,
    /// Packets of the cursor's slot already made, packets of the head already acknowledged.
    pub(crate) cursor_pkt: u32,
    pub(crate) una_pkt: u32,
    /// PSN of the next work request's first packet; the first PSN never sent.
    pub(crate) next_psn: Psn,
    pub(crate) sent_psn: Psn,
    next_bytes: u64,
    next_rd: u32,
    next_ssn: u32,
    /// Send queue entries retired.
    pub(crate) retired: u32,
    /// Last SSN that credits allow, once the peer has given any (IBA 9.7.7.2.5).
    pub(crate) credit_limit: Option<u32>,
    since_ack_request: u32,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// Time-outs since the last progress, as far as they count ([`Qp::ack_wait`]).
    pub(crate) timeouts: u8,
    pub(crate) ack_deadline: Nanos,
    pub(crate) rnr_deadline: Nanos,
    /// Where an implied NAK already made us go back, until there is progress.
    pub(crate) implied_at: Option<Psn>,
    /// Blocked until an answer comes (or the window opens).
    pub(crate) stalled: bool,
    /// The queue may hold work requests: a doorbell rang.
    pub(crate) sq_active: bool,
    /// SQD: the drained event has been raised.
    pub(crate) drained: bool,
}

/// What one step of sending came to.
enum Step {
    /// The slot is sent.
    Sent,
    Stop(TxState),
}

/// What fetching came to.
enum Fetched {
    One,
    None,
    Full,
}

/// One turn of sending.
struct Turn<'b> {
    budget: &'b mut TxBudget,
    spans: SpanList,
}

impl Requester {
    pub(crate) fn new() -> Self {
        Requester {
            slots: Ring::none(),
            sges: SgeRing::default(),
            scratch: [Sge::default(); SGE_MAX as usize],
            head: 0,
            cursor: 0,
            tail: 0,
            cursor_pkt: 0,
            una_pkt: 0,
            next_psn: Psn::new(0),
            sent_psn: Psn::new(0),
            next_bytes: 0,
            next_rd: 0,
            next_ssn: 1,
            retired: 0,
            credit_limit: None,
            since_ack_request: 0,
            retry_left: 0,
            rnr_left: 0,
            timeouts: 0,
            ack_deadline: Nanos::NEVER,
            rnr_deadline: Nanos::NEVER,
            implied_at: None,
            stalled: false,
            sq_active: false,
            drained: false,
        }
    }

    /// Reserves the rings (the queue pair leaves RESET).
    pub(crate) fn allocate(&mut self, max_send_wr: u32, max_send_sge: u32) {
        let wqes = max_send_wr.clamp(1, INFLIGHT_WQES_MAX).next_power_of_two();
        // A request's entries lie side by side, so twice as many as one may have always take one more.
        let sges = (wqes * max_send_sge).clamp(2 * max_send_sge.clamp(1, SGE_MAX), INFLIGHT_SGES_MAX);
        self.slots = Ring::with_capacity(wqes);
        self.sges = SgeRing::with_capacity(sges as usize);
    }

    /// Begins at `psn` (the queue pair enters RTS).
    pub(crate) fn start(&mut self, psn: Psn, retry_cnt: u8, rnr_retry: u8) {
        assert!(self.head == self.tail);
        self.next_psn = psn;
        self.sent_psn = psn;
        self.retry_left = retry_cnt;
        self.rnr_left = rnr_retry;
    }

    /// The oldest unacknowledged PSN.
    pub(crate) fn una_psn(&self) -> Psn {
        if self.head == self.tail { self.next_psn } else { self.slots.get(self.head).first_psn.add(self.una_pkt) }
    }
    fn cursor_psn(&self) -> Psn {
        if self.cursor == self.tail {
            self.next_psn
        } else {
            self.slots.get(self.cursor).first_psn.add(self.cursor_pkt)
        }
    }
    fn bytes_at(&self, slot: u32, pkt: u32, mtu: u32) -> u64 {
        if slot == self.tail {
            return self.next_bytes;
        }
        let s = self.slots.get(slot);
        s.byte_base + (u64::from(pkt) * u64::from(mtu)).min(u64::from(s.length))
    }
    /// Reads and atomics before this position; a READ counts once per piece that is complete.
    fn rd_at(&self, slot: u32, pkt: u32, mtu: u32) -> u32 {
        if slot == self.tail {
            return self.next_rd;
        }
        let s = self.slots.get(slot);
        s.rd_base
            + match s.work {
                Work::Read if pkt >= s.packets => read_chunks(s.length),
                Work::Read => pkt / (READ_CHUNK_BYTES / mtu),
                Work::Atomic => pkt,
                Work::Send | Work::Write | Work::Local => 0,
            }
    }
    /// Payload bytes sent or asked for, and not yet acknowledged or received.
    pub(crate) fn inflight_bytes(&self, mtu: u32) -> u64 {
        self.bytes_at(self.cursor, self.cursor_pkt, mtu) - self.bytes_at(self.head, self.una_pkt, mtu)
    }
    fn rd_outstanding(&self, mtu: u32) -> u32 {
        self.rd_at(self.cursor, self.cursor_pkt, mtu).wrapping_sub(self.rd_at(self.head, self.una_pkt, mtu))
    }
    /// Whether a sent packet waits for its answer.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.cursor != self.head || self.cursor_pkt != self.una_pkt
    }
    /// Moves the cursor back to the oldest unacknowledged packet.
    pub(crate) fn go_back(&mut self) {
        self.cursor = self.head;
        self.cursor_pkt = self.una_pkt;
        self.since_ack_request = 0;
        self.ack_deadline = Nanos::NEVER;
        self.stalled = false;
    }
    /// The cursor never lies before what is acknowledged.
    pub(crate) fn sync_cursor(&mut self) {
        let behind = self.cursor.wrapping_sub(self.head) as i32;
        if behind < 0 || (behind == 0 && self.cursor_pkt < self.una_pkt) {
            self.cursor = self.head;
            self.cursor_pkt = self.una_pkt;
        }
    }
    /// Forgets the head slot.
    pub(crate) fn pop_head(&mut self) -> Slot {
        assert!(self.head != self.tail);
        let slot = *self.slots.get(self.head);
        self.sges.free_to(slot.sge_end);
        self.head = self.head.wrapping_add(1);
        self.una_pkt = 0;
        self.retired = self.retired.wrapping_add(1);
        slot
    }
}

/// Pieces a READ of `length` bytes is asked for in.
fn read_chunks(length: u32) -> u32 {
    length.div_ceil(READ_CHUNK_BYTES).max(1)
}

impl Qp {
    /// Whether requests could be sent now.
    pub(crate) fn wants_requests(&self) -> bool {
        let r = &self.req;
        let waits = r.rnr_deadline != Nanos::NEVER || r.stalled;
        match self.state {
            QpState::Rts => !waits && (r.cursor != r.tail || r.sq_active),
            QpState::Sqd => !waits && r.cursor != r.tail,
            _ => false,
        }
    }

    /// Bytes that the next packet puts in flight: with less room in the window nothing is sent, unless nothing is in flight.
    pub fn next_bytes(&self) -> u64 {
        if self.req.cursor == self.req.tail {
            return 0;
        }
        let slot = self.req.slots.get(self.req.cursor);
        u64::from(match slot.work {
            Work::Read => self.read_piece(slot).1,
            _ => (slot.length - self.req.cursor_pkt * self.mtu).min(self.mtu),
        })
    }

    /// Sends requests until something stops it.
    pub(crate) fn poll_requests(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        if self.req.rnr_deadline != Nanos::NEVER {
            return TxState::Timer;
        }
        let mut turn = Turn { budget, spans: SpanList::new() };
        loop {
            if self.req.cursor == self.req.tail {
                match self.fetch(env) {
                    Fetched::One => {}
                    Fetched::None => return TxState::Idle,
                    Fetched::Full => {
                        self.req.stalled = true;
                        return TxState::Idle;
                    }
                }
            }
            let slot = *self.req.slots.get(self.req.cursor);
            let step = match slot.work {
                _ if slot.fail.is_some() => Step::Stop(TxState::Idle),
                _ if self.id.qp_type == QpType::Ud => self.send_datagram(&slot, &mut turn, env),
                Work::Send | Work::Write => self.send_message(&slot, &mut turn, env),
                Work::Read => self.send_read(&slot, &mut turn, env),
                Work::Atomic => self.send_atomic(&slot, &mut turn, env),
                Work::Local => self.run_local(&slot, &mut turn, env),
            };
            match step {
                Step::Sent => {
                    self.req.cursor = self.req.cursor.wrapping_add(1);
                    self.req.cursor_pkt = 0;
                    if !self.id.qp_type.is_reliable() {
                        self.retire_head(env);
                        self.check_drained(env);
                    } else if slot.work == Work::Local {
                        self.retire_local(env);
                    }
                }
                Step::Stop(state) => {
                    self.req.stalled = matches!(state, TxState::Idle | TxState::Window);
                    self.fail_if_head(env);
                    return state;
                }
            }
            if self.state == QpState::Err || self.state == QpState::Sqe {
                return TxState::More;
            }
        }
    }

    /// Takes the next work request from the shared queue, checks it, and makes it a slot.
    fn fetch(&mut self, env: &mut Env<'_>) -> Fetched {
        let r = &mut self.req;
        if self.state != QpState::Rts || !r.sq_active {
            return Fetched::None;
        }
        let full = r.tail.wrapping_sub(r.head) == r.slots.capacity();
        if full || !r.sges.has_room(self.id.cap.max_send_sge as usize) {
            return Fetched::Full;
        }
        let mut wqe = SendWqe::default();
        let (sq_index, is_well_formed) = match self.sq.fetch(&mut wqe, &mut r.scratch) {
            Fetch::Taken(index) => (index, true),
            Fetch::Malformed(index) => (index, false),
            Fetch::Empty => {
                r.sq_active = !self.sq.try_idle();
                return Fetched::None;
            }
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.enter_fatal(env);
                return Fetched::None;
            }
        };
        let checked = if is_well_formed { self.check_wqe(&wqe) } else { Err(BAD_REQUEST) };
        let slot = self.make_slot(wqe, sq_index, checked);
        let r = &mut self.req;
        r.slots.store(r.tail, slot);
        r.tail = r.tail.wrapping_add(1);
        r.next_psn = slot.first_psn.add(slot.packets);
        r.next_bytes += u64::from(slot.length);
        let messages = match slot.work {
            Work::Read => read_chunks(slot.length),
            Work::Local => 0,
            Work::Send | Work::Write | Work::Atomic => 1,
        };
        r.next_rd = r.next_rd.wrapping_add(if slot.work.has_response() { messages } else { 0 });
        r.next_ssn = r.next_ssn.wrapping_add(messages);
        Fetched::One
    }

    fn make_slot(&mut self, wqe: SendWqe, sq_index: u32, checked: Result<Checked, (WcStatus, Reason)>) -> Slot {
        let count = if checked.is_ok() && wqe.flags & send_flags::INLINE as u16 == 0 { wqe.num_sge } else { 0 };
        let (work, opcode, length, fail) = match checked {
            Ok((work, opcode, length)) => (work, opcode, length, None),
            Err(fail) => {
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                (Work::Send, opcode, 0, Some(fail))
            }
        };
        let r = &mut self.req;
        let (sge_first, sge_end) = r.sges.append(&r.scratch[..usize::from(count)]);
        Slot {
            wqe: SendWqe { num_sge: count, ..wqe },
            work,
            opcode,
            sq_index,
            sge_first,
            sge_end,
            first_psn: r.next_psn,
            packets: match work {
                Work::Local => 0,
                Work::Atomic => 1,
                Work::Send | Work::Write | Work::Read => length.div_ceil(self.mtu).max(1),
            },
            length,
            byte_base: r.next_bytes,
            rd_base: r.next_rd,
            ssn: r.next_ssn,
            done: false,
            fail,
        }
    }

    /// Checks a copied work request: what it does, and how many bytes it moves (IBA 10.8.2, 11.4.1.1).
    fn check_wqe(&self, wqe: &SendWqe) -> Result<Checked, (WcStatus, Reason)> {
        let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).ok_or(BAD_REQUEST)?;
        let work = Work::of(opcode);
        if !work.is_carried_by(self.id.qp_type, opcode) {
            return Err(BAD_REQUEST);
        }
        let length = if wqe.flags & send_flags::INLINE as u16 != 0 {
            if work.has_response() || wqe.length > self.id.cap.max_inline_data {
                return Err(BAD_REQUEST);
            }
            u64::from(wqe.length)
        } else {
            if u32::from(wqe.num_sge) > self.id.cap.max_send_sge.min(SGE_MAX) {
                return Err(BAD_REQUEST);
            }
            self.req.scratch[..usize::from(wqe.num_sge)].iter().map(|sge| u64::from(sge.length)).sum()
        };
        if work == Work::Local {
            return if length == 0 { Ok((work, opcode, 0)) } else { Err(BAD_REQUEST) };
        }
        let max = if self.id.qp_type == QpType::Ud { u64::from(self.mtu) } else { MESSAGE_BYTES_MAX };
        if length > max || (work == Work::Atomic && length != 8) {
            return Err(TOO_LONG);
        }
        if work.has_response() && self.attr.max_rd_atomic == 0 {
            return Err(BAD_REQUEST);
        }
        Ok((work, opcode, length as u32))
    }

    /// Whether a packet that puts `len` bytes in flight may be sent now.
    fn gate(&self, slot: &Slot, len: u32, turn: &Turn<'_>, env: &Env<'_>) -> Option<TxState> {
        if turn.budget.wqes == 0 || turn.budget.bytes == 0 || !env.tx.has_room() {
            return Some(TxState::More);
        }
        if !self.id.qp_type.is_reliable() {
            return None;
        }
        let window = turn.budget.window_bytes;
        if u64::from(len) > window && (window == 0 || self.req.is_outstanding()) {
            return Some(TxState::Window);
        }
        if self.req.cursor_psn().diff(self.req.una_psn()) >= PSN_DISTANCE_MAX {
            return Some(TxState::Idle);
        }
        if self.is_credit_limited(slot) && self.req.is_outstanding() {
            return Some(TxState::Idle);
        }
        None
    }

    /// Whether the peer has no receive for this message as far as we know: then one packet at a time may probe.
    fn is_credit_limited(&self, slot: &Slot) -> bool {
        match self.req.credit_limit {
            Some(limit) if slot.takes_credit() => Psn::new(slot.ssn).is_after(Psn::new(limit)),
            _ => false,
        }
    }

    /// Whether a fence, or the limit of outstanding reads, holds the slot's first packet back.
    fn holds_back(&self, slot: &Slot) -> bool {
        let outstanding = self.req.rd_outstanding(self.mtu);
        let fenced = slot.wqe.flags & send_flags::FENCE as u16 != 0 && self.req.cursor_pkt == 0 && outstanding > 0;
        // What was begun before SQD took the limit away goes on, one at a time; new work is refused.
        fenced || (slot.work.has_response() && outstanding >= u32::from(self.attr.max_rd_atomic.max(1)))
    }

    /// Counts a packet that was pushed.
    fn sent(&mut self, turn: &mut Turn<'_>, len: u32, packets: u32, env: &Env<'_>) {
        self.req.cursor_pkt += packets;
        turn.budget.window_bytes = turn.budget.window_bytes.saturating_sub(u64::from(len));
        let next = self.req.slots.get(self.req.cursor).first_psn.add(self.req.cursor_pkt);
        if next.is_after(self.req.sent_psn) {
            self.req.sent_psn = next;
        }
        if self.req.ack_deadline == Nanos::NEVER && self.id.qp_type.is_reliable() {
            self.req.ack_deadline = env.now + self.ack_wait();
        }
    }

    /// How long to wait for an answer now: longer after time-outs without progress.
    pub(crate) fn ack_wait(&self) -> Nanos {
        let longer = Nanos(self.ack_timeout.0.saturating_mul(1 << self.req.timeouts));
        longer.min(self.ack_timeout.max(ACK_BACKOFF_MAX))
    }

    /// Where the slot's payload continues at the cursor.
    fn walk(&self, slot: &Slot) -> Walk {
        let offset = self.req.cursor_pkt * self.mtu;
        if slot.wqe.flags & send_flags::INLINE as u16 != 0 {
            Walk::inside(self.sq.inline_span(slot.sq_index, slot.length), offset)
        } else {
            Walk::at(self.req.sges.get(slot.sge_first, slot.wqe.num_sge), u64::from(offset))
        }
    }

    /// Gathers the next `len` bytes; a failure is noted in the slot.
    fn gather(&mut self, slot: &Slot, walk: &mut Walk, len: u32, turn: &mut Turn<'_>, env: &Env<'_>) -> bool {
        turn.spans.clear();
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: 0 };
        let sges = self.req.sges.get(slot.sge_first, slot.wqe.num_sge);
        match walk.gather(keys, sges, len, &mut turn.spans) {
            Ok(()) => true,
            Err(_) => {
                self.fail_cursor(WcStatus::LocProtErr, Reason::LocalProtection);
                false
            }
        }
    }

    fn fail_cursor(&mut self, status: WcStatus, reason: Reason) {
        self.req.slots.get_mut(self.req.cursor).fail = Some((status, reason));
    }

    /// Sends the packets of a SEND or WRITE.
    fn send_message(&mut self, slot: &Slot, turn: &mut Turn<'_>, env: &mut Env<'_>) -> Step {
        if self.holds_back(slot) {
            return Step::Stop(TxState::Idle);
        }
        let mut walk = self.walk(slot);
        while self.req.cursor_pkt < slot.packets {
            if self.send_middles(slot, &mut walk, turn, env) {
                continue;
            }
            let len = (slot.length - self.req.cursor_pkt * self.mtu).min(self.mtu);
            if let Some(state) = self.gate(slot, len, turn, env) {
                return Step::Stop(state);
            }
            if !self.gather(slot, &mut walk, len, turn, env) {
                return Step::Stop(TxState::Idle);
            }
            let is_last = self.req.cursor_pkt + 1 == slot.packets;
            let ack_req = self.wants_ack(slot, len, is_last, turn.budget, env);
            let head = self.message_head(slot, is_last, ack_req, len);
            if !env.tx.push(&self.flow, head.as_slice(), turn.spans.as_slice(), head::pad_of(len)) {
                return Step::Stop(TxState::More);
            }
            self.req.since_ack_request = if ack_req { 0 } else { self.req.since_ack_request.saturating_add(len) };
            turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(len));
            self.sent(turn, len, 1, env);
        }
        turn.budget.wqes -= 1;
        Step::Sent
    }

    /// Sends the middle packets from the cursor on that [`Qp::middles`] lets pass and that lie side by side in memory: one
    /// look at the rules, the keys and the head for all of them. False if there is none.
    fn send_middles(&mut self, slot: &Slot, walk: &mut Walk, turn: &mut Turn<'_>, env: &mut Env<'_>) -> bool {
        let count = self.middles(slot, turn.budget, env);
        if count == 0 {
            return false;
        }
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: 0 };
        let sges = self.req.sges.get(slot.sge_first, slot.wqe.num_sge);
        let Some(span) = walk.run(keys, sges, self.mtu, count) else { return false };
        let head = self.message_head(slot, false, false, self.mtu);
        let first = slot.first_psn.add(self.req.cursor_pkt);
        let number = |k, head: &mut [u8; burst_frame::HEAD_MAX]| Bth::set_psn(head, first.add(k));
        if !env.tx.push_run(&self.flow, head.as_slice(), &span, self.mtu as u16, number) {
            return false;
        }
        let len = span.len() as u32;
        self.req.since_ack_request = self.req.since_ack_request.saturating_add(len);
        turn.budget.bytes -= u64::from(len);
        self.sent(turn, len, len / self.mtu, env);
        true
    }

    /// How many packets from the cursor on are middle ones of which none may be held back by [`Qp::gate`] and none asks for
    /// an acknowledgement ([`Qp::wants_ack`]).
    fn middles(&self, slot: &Slot, budget: &TxBudget, env: &Env<'_>) -> u32 {
        let r = &self.req;
        if r.cursor_pkt == 0 || budget.wqes == 0 || self.is_credit_limited(slot) {
            return 0;
        }
        let mtu = u64::from(self.mtu);
        let middle = u64::from(slot.packets - r.cursor_pkt - 1);
        let count = middle.min(env.tx.room_for_run() as u64).min(budget.bytes.saturating_sub(1) / mtu);
        if !self.id.qp_type.is_reliable() {
            return count as u32;
        }
        let window = (budget.window_bytes / mtu).saturating_sub(1);
        let unasked = u64::from((ACK_REQUEST_BYTES - 1).saturating_sub(r.since_ack_request)) / mtu;
        let distance = (PSN_DISTANCE_MAX - r.cursor_psn().diff(r.una_psn())).max(0) as u64;
        count.min(window).min(unasked).min(distance) as u32
    }

    /// Whether this packet asks for an acknowledgement: the last of a message, the last before a stop, and now and then.
    fn wants_ack(&self, slot: &Slot, len: u32, is_last: bool, budget: &TxBudget, env: &Env<'_>) -> bool {
        if !self.id.qp_type.is_reliable() {
            return false;
        }
        let next = u64::from(len) + u64::from(self.mtu);
        is_last
            || self.req.since_ack_request.saturating_add(len) >= ACK_REQUEST_BYTES
            || budget.window_bytes < next
            || budget.bytes <= u64::from(len)
            || env.tx.room() == 1
            || self.is_credit_limited(slot)
    }

    /// BTH, and for XRC the receive queue that the request is for.
    fn request_head(&self, bth: &Bth, slot: &Slot) -> HeadBuf {
        let head = HeadBuf::new(bth);
        if self.id.qp_type.is_xrc() { head.xrceth(XrcEth { srqn: slot.wqe.remote_qpn & MASK_24 }) } else { head }
    }

    fn message_head(&self, slot: &Slot, is_last: bool, ack_req: bool, len: u32) -> HeadBuf {
        let pkt = self.req.cursor_pkt;
        let place = head::position(pkt == 0, is_last);
        let opcode = head::message_opcode(self.id.qp_type, slot.opcode, place);
        let info = opcode.info();
        let asks_event = slot.wqe.flags & send_flags::SOLICITED as u16 != 0 && is_last && slot.takes_credit();
        let bth = Bth {
            solicited: asks_event,
            pad: head::pad_of(len),
            ack_req,
            ..Bth::new(opcode, self.attr.dest_qpn, slot.first_psn.add(pkt))
        };
        let head = self.request_head(&bth, slot);
        let head = if info.kind == Kind::Write && place.is_start() {
            head.reth(Reth { addr: slot.wqe.remote_addr, rkey: Rkey(slot.wqe.rkey), len: slot.length })
        } else {
            head
        };
        head::add_tail(head, opcode, &slot.wqe)
    }

    /// The piece of a READ that is asked for next: the packet after it, and its bytes.
    fn read_piece(&self, slot: &Slot) -> (u32, u32) {
        let (pkt, chunk_packets) = (self.req.cursor_pkt, READ_CHUNK_BYTES / self.mtu);
        let end = ((pkt / chunk_packets + 1) * chunk_packets).min(slot.packets);
        (end, (slot.length - pkt * self.mtu).min((end - pkt) * self.mtu))
    }

    /// Sends the requests of a READ: one for each piece, from the cursor to the piece's end.
    fn send_read(&mut self, slot: &Slot, turn: &mut Turn<'_>, env: &mut Env<'_>) -> Step {
        let opcode = head::single_opcode(self.id.qp_type, Kind::ReadRequest);
        while self.req.cursor_pkt < slot.packets {
            let pkt = self.req.cursor_pkt;
            let offset = pkt * self.mtu;
            let (end, len) = self.read_piece(slot);
            if self.holds_back(slot) {
                return Step::Stop(TxState::Idle);
            }
            if let Some(state) = self.gate(slot, len, turn, env) {
                return Step::Stop(state);
            }
            let bth = Bth { ack_req: true, ..Bth::new(opcode, self.attr.dest_qpn, slot.first_psn.add(pkt)) };
            let addr = slot.wqe.remote_addr.wrapping_add(u64::from(offset));
            let head = self.request_head(&bth, slot).reth(Reth { addr, rkey: Rkey(slot.wqe.rkey), len });
            if !env.tx.push(&self.flow, head.as_slice(), &[], 0) {
                return Step::Stop(TxState::More);
            }
            turn.budget.wqes -= 1;
            self.sent(turn, len, end - pkt, env);
        }
        Step::Sent
    }

    fn send_atomic(&mut self, slot: &Slot, turn: &mut Turn<'_>, env: &mut Env<'_>) -> Step {
        if self.holds_back(slot) {
            return Step::Stop(TxState::Idle);
        }
        if let Some(state) = self.gate(slot, slot.length, turn, env) {
            return Step::Stop(state);
        }
        let is_cas = slot.opcode == WrOpcode::AtomicCmpAndSwp;
        let opcode = head::single_opcode(self.id.qp_type, if is_cas { Kind::CmpSwap } else { Kind::FetchAdd });
        let bth = Bth { ack_req: true, ..Bth::new(opcode, self.attr.dest_qpn, slot.first_psn) };
        let (swap_add, compare) =
            if is_cas { (slot.wqe.swap, slot.wqe.compare_add) } else { (slot.wqe.compare_add, 0) };
        let atomic = AtomicEth { addr: slot.wqe.remote_addr, rkey: Rkey(slot.wqe.rkey), swap_add, compare };
        let head = self.request_head(&bth, slot).atomic(atomic);
        if !env.tx.push(&self.flow, head.as_slice(), &[], 0) {
            return Step::Stop(TxState::More);
        }
        turn.budget.wqes -= 1;
        self.sent(turn, slot.length, 1, env);
        Step::Sent
    }

    /// Binds or closes a window, once, when everything before it has been sent (IBA 10.8.3.3: reads before it only if it is
    /// fenced).
    fn run_local(&mut self, slot: &Slot, turn: &mut Turn<'_>, env: &mut Env<'_>) -> Step {
        if slot.done {
            return Step::Sent;
        }
        if turn.budget.wqes == 0 {
            return Step::Stop(TxState::More);
        }
        if self.holds_back(slot) {
            return Step::Stop(TxState::Idle);
        }
        let wqe = &slot.wqe;
        let (result, status) = if slot.opcode == WrOpcode::BindMw {
            let request = BindRequest {
                window: wqe.imm,
                rkey: wqe.rkey,
                lkey: (wqe.swap >> 32) as u32,
                addr: wqe.remote_addr,
                len: wqe.compare_add,
                access: wqe.swap as u32,
            };
            (env.mem.bind(self.peer(), &request), WcStatus::MwBindErr)
        } else {
            (env.mem.invalidate(self.peer(), Rkey(wqe.imm)), WcStatus::LocQpOpErr)
        };
        turn.budget.wqes -= 1;
        if result.is_err() {
            self.fail_cursor(status, Reason::WindowBind);
            return Step::Stop(TxState::Idle);
        }
        self.req.slots.get_mut(self.req.cursor).done = true;
        Step::Sent
    }

    /// Sends a UD message: one packet, to where its address handle says.
    fn send_datagram(&mut self, slot: &Slot, turn: &mut Turn<'_>, env: &mut Env<'_>) -> Step {
        if let Some(state) = self.gate(slot, slot.length, turn, env) {
            return Step::Stop(state);
        }
        let Some(flow) = env.fx.ah_flow(self.id.pd, slot.wqe.ah) else {
            self.fail_cursor(WcStatus::LocQpOpErr, Reason::LocalOperation);
            return Step::Stop(TxState::Idle);
        };
        let mut walk = self.walk(slot);
        if !self.gather(slot, &mut walk, slot.length, turn, env) {
            return Step::Stop(TxState::Idle);
        }
        let head = self.datagram_head(slot);
        if !env.tx.push(&flow, head.as_slice(), turn.spans.as_slice(), head::pad_of(slot.length)) {
            return Step::Stop(TxState::More);
        }
        turn.budget.wqes -= 1;
        turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(slot.length));
        self.sent(turn, slot.length, 1, env);
        Step::Sent
    }
}
