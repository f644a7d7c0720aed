//! Loss recovery: keeps the requests in flight, and selects the packets to repeat after a loss. Go-back-N (IBA 9.7.5.1).
//!
//! [`Recovery`] keeps the work requests that were taken from the send queue and have not ended, in order, and two positions
//! among them. A position is a request and the index of one of its packets. *una* is the oldest unacknowledged packet, the
//! *cursor* is the packet that is sent next. A loss moves the cursor back to *una* and changes nothing else, because
//! everything that a packet needs (PSN, offset, opcode) follows from its request and its index. The numbers that flow
//! control needs (bytes in flight, reads outstanding, PSNs) are differences of two positions, so they cannot drift.
//!
//! READ responses that arrive behind a gap are the exception: they are noted ([`ReadAhead`]), and only the missing ranges are
//! requested again ([`Recovery::next_range`]).
//!
//! This is the seam for other recovery schemes: only this file reads or moves the positions. The rest of the requester asks
//! which packet comes next ([`Recovery::next`], [`Recovery::next_packet`]), reports what happened (`on_sent`, `on_acked`,
//! `retire_oldest`, `go_back`, `on_implied_loss`), and asks for sums. Selective repeat would answer the same calls:
//! `next` would return the lowest lost packet before new ones, and `go_back` would mark packets instead of moving the cursor.

pub(crate) mod placement;

use crate::api::READ_CHUNK_BYTES;
use crate::opcodes::Work;
use crate::requester::inflight_ring::{InflightRing, SgeRing};
use crate::requester::read_ahead::{AHEAD_MAX, ReadAhead};
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{WcStatus, WrOpcode};
use burst_base::{Psn, Reason};
use burst_shm::Sge;
use burst_shm::layout::SendWqe;

/// Most scatter entries of a READ whose responses are placed behind a gap.
const SGES_COMPARED_MAX: usize = 4;
/// A response may come before those to a READ that writes to the same memory, if at most this many requests lie between: each
/// late response is compared with that many requests.
const SHARED_WITHIN: u32 = 16;

/// A work request as it is given to [`Recovery::push`].
pub(crate) struct NewRequest<'a> {
    pub(crate) wqe: &'a SendWqe,
    pub(crate) work: Work,
    pub(crate) opcode: WrOpcode,
    /// Number of its send queue entry.
    pub(crate) sq_index: u32,
    /// PSNs that it takes: packets to send, or packets of the response.
    pub(crate) packets: u32,
    /// Bytes that it moves.
    pub(crate) length: u32,
    /// The error with which it ends when all requests before it have ended.
    pub(crate) fail: Option<(WcStatus, Reason)>,
}

/// The opcodes of requests that consume a receive ([`InflightWqe::takes_credit`]), one bit each. A table, because each request is
/// looked up in it.
const CONSUMING: u32 = 1 << WrOpcode::Send as u32
    | 1 << WrOpcode::SendWithImm as u32
    | 1 << WrOpcode::SendWithInv as u32
    | 1 << WrOpcode::RdmaWriteWithImm as u32;

/// A work request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InflightWqe {
    pub(crate) wqe: SendWqe,
    pub(crate) work: Work,
    pub(crate) opcode: WrOpcode,
    /// Number of its send queue entry.
    pub(crate) sq_index: u32,
    sge_first: u32,
    sge_end: u32,
    /// PSN of its first packet.
    pub(crate) first_psn: Psn,
    /// PSNs that it takes: packets to send, or packets of the response.
    pub(crate) packets: u32,
    /// Bytes that it moves.
    pub(crate) length: u32,
    /// Bytes of all requests before it, since the queue pair was started.
    bytes_before: u64,
    /// READ pieces and atomics of all requests before it, modulo 2^32.
    reads_before: u32,
    /// Send sequence number of its first message (IBA 9.7.7.2.1).
    pub(crate) ssn: u32,
    /// Receives that the requests before it consume.
    pub(crate) rsn: u32,
    /// A local operation was executed. Going back does not repeat it.
    pub(crate) done: bool,
    /// The error with which it ends when all requests before it have ended.
    pub(crate) fail: Option<(WcStatus, Reason)>,
}

impl InflightWqe {
    /// Bytes of all requests before it, since the queue pair was started.
    pub(crate) fn bytes_before(&self) -> u64 {
        self.bytes_before
    }
    /// Whether the peer consumes a receive for it.
    pub(crate) fn takes_credit(&self) -> bool {
        self.work == Work::Send || self.opcode == WrOpcode::RdmaWriteWithImm
    }
}

/// The requests in flight and the two positions.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct Recovery {
    /// Counters of requests: the oldest, the cursor's, the next to be pushed.
    head: u32,
    cursor: u32,
    tail: u32,
    /// Packets of the cursor's request that are sent.
    pub(crate) cursor_pkt: u32,
    /// Packets of the oldest request that are acknowledged.
    una_pkt: u32,
    /// PSN of the next pushed request's first packet.
    next_psn: Psn,
    /// The first PSN that was never sent.
    sent_psn: Psn,
    next_reads: u32,
    next_ssn: u32,
    next_rsn: u32,
    next_bytes: u64,
    pub(crate) wqes: InflightRing<InflightWqe>,
    sges: SgeRing,
    /// *una* at the last implied NAK that moved the cursor, until there is progress.
    pub(crate) implied_at: Option<Psn>,
    pub(crate) ahead: ReadAhead,
}

/// PSNs of a request that need no room in the window.
pub(crate) struct CoveredPsns {
    /// The peer has them.
    pub(crate) known: u32,
    /// They have left the network, and it is not known whether the peer has them.
    pub(crate) gone: u32,
    /// The last one, whose packet may be short.
    pub(crate) last: LastPsn,
}

/// The last PSN of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastPsn {
    InFlight,
    Known,
    Gone,
}

/// A part of a READ in flight that is requested again: packets `first..end` of `request`, within one piece.
pub(crate) struct MissingRange {
    pub(crate) request: InflightWqe,
    pub(crate) first: u32,
    pub(crate) end: u32,
}

/// Pieces in which a READ of `length` bytes is requested.
fn read_chunks(length: u32) -> u32 {
    length.div_ceil(READ_CHUNK_BYTES).max(1)
}

/// Sums.
impl Recovery {
    pub(crate) fn new() -> Self {
        Recovery {
            wqes: InflightRing::none(),
            sges: SgeRing::default(),
            head: 0,
            cursor: 0,
            tail: 0,
            cursor_pkt: 0,
            una_pkt: 0,
            next_psn: Psn::new(0),
            sent_psn: Psn::new(0),
            next_bytes: 0,
            next_reads: 0,
            next_ssn: 1,
            next_rsn: 0,
            implied_at: None,
            ahead: ReadAhead::new(),
        }
    }
    /// Reserves room for one request of up to `longest` scatter/gather entries. There may be up to `wqes` requests (a power of
    /// two) with `sges` entries together ([`Recovery::grow`]).
    pub(crate) fn allocate(&mut self, wqes: u32, sges: u32, longest: u32) -> Result<(), OutOfMemory> {
        assert!(self.is_empty());
        (self.wqes, self.sges) = (InflightRing::with_limit(wqes)?, SgeRing::with_limit(sges, longest)?);
        Ok(())
    }
    /// The first packet will have PSN `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        assert!(self.is_empty());
        self.next_psn = psn;
        self.sent_psn = psn;
    }
    /// Whether no request is in flight.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    /// Whether there is a request with a packet to send.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.cursor != self.tail
    }
    /// Whether another request may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) != self.wqes.capacity() && self.sges.has_room()
    }
    /// Makes room for another request where there is none. False if as many are in flight as may be, or there is no memory.
    #[cold]
    pub(crate) fn grow(&mut self) -> bool {
        if self.tail.wrapping_sub(self.head) == self.wqes.capacity() && !self.wqes.grow(self.head) {
            return false;
        }
        while !self.sges.has_room() {
            let Some(mut larger) = self.sges.doubled() else { return false };
            for at in (0..self.tail.wrapping_sub(self.head)).map(|age| self.head.wrapping_add(age)) {
                let request = self.wqes.get_mut(at);
                let entries = self.sges.get(request.sge_first, request.wqe.num_sge);
                (request.sge_first, request.sge_end) = larger.move_in(entries);
            }
            larger.moved_in();
            self.sges = larger;
        }
        true
    }
    /// Asks the processor for the places of the next pushed request.
    #[inline]
    pub(crate) fn prefetch_next(&self) {
        self.wqes.prefetch(self.tail);
        self.sges.prefetch_next();
    }
    /// Asks the processor for the oldest request.
    #[inline]
    pub(crate) fn prefetch_oldest(&self) {
        self.wqes.prefetch(self.head);
    }
    /// PSN of the first packet of the next pushed request.
    pub(crate) fn next_request_psn(&self) -> Psn {
        self.next_psn
    }
    /// The first PSN that was never sent.
    #[inline]
    pub(crate) fn sent_psn(&self) -> Psn {
        self.sent_psn
    }
    /// The oldest unacknowledged PSN.
    #[inline]
    pub(crate) fn una_psn(&self) -> Psn {
        if self.is_empty() { self.next_psn } else { self.wqes.get(self.head).first_psn.add(self.una_pkt) }
    }
    /// Packets of the oldest request that are acknowledged.
    #[inline]
    pub(crate) fn una_packet(&self) -> u32 {
        self.una_pkt
    }
    fn cursor_psn(&self) -> Psn {
        match self.next() {
            Some(request) => request.first_psn.add(self.cursor_pkt),
            None => self.next_psn,
        }
    }
    /// PSNs from *una* to the cursor.
    #[inline]
    pub(crate) fn psn_distance(&self) -> i32 {
        let distance = self.cursor_psn().diff(self.una_psn());
        debug_assert!(distance >= 0);
        distance
    }
    #[inline]
    fn bytes_at(&self, request: u32, pkt: u32, mtu: u32) -> u64 {
        if request == self.tail {
            return self.next_bytes;
        }
        let r = self.wqes.get(request);
        r.bytes_before + (u64::from(pkt) * u64::from(mtu)).min(u64::from(r.length))
    }
    /// READ pieces and atomics before a position. A piece counts when its last packet lies before the position.
    fn reads_at(&self, request: u32, pkt: u32, mtu: u32) -> u32 {
        if request == self.tail {
            return self.next_reads;
        }
        let r = self.wqes.get(request);
        r.reads_before
            + match r.work {
                Work::Read if pkt >= r.packets => read_chunks(r.length),
                Work::Read => pkt / (READ_CHUNK_BYTES / mtu),
                Work::Atomic => pkt,
                Work::Send | Work::Write | Work::Local => 0,
            }
    }
    /// Payload bytes that were sent or requested, and not yet acknowledged or received.
    #[inline]
    pub(crate) fn inflight_bytes(&self, mtu: u32) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.bytes_at(self.cursor, self.cursor_pkt, mtu) - self.bytes_at(self.head, self.una_pkt, mtu)
    }
    /// READ pieces and atomics that were sent and not yet answered.
    pub(crate) fn reads_outstanding(&self, mtu: u32) -> u32 {
        self.reads_at(self.cursor, self.cursor_pkt, mtu).wrapping_sub(self.reads_at(self.head, self.una_pkt, mtu))
    }
    /// Whether a packet was sent that is not acknowledged.
    #[inline]
    pub(crate) fn is_outstanding(&self) -> bool {
        !self.is_empty() && (self.cursor != self.head || self.cursor_pkt != self.una_pkt)
    }
    /// The scatter/gather entries of a request in flight.
    pub(crate) fn sges_of(&self, request: &InflightWqe) -> &[Sge] {
        self.sges.get(request.sge_first, request.wqe.num_sge)
    }
    /// The invariant of the positions: *una* <= cursor <= end, and both inside their requests.
    pub(crate) fn is_consistent(&self) -> bool {
        let sent = self.cursor.wrapping_sub(self.head);
        let all = self.tail.wrapping_sub(self.head);
        let inside = |at: u32, pkt: u32| at == self.tail && pkt == 0 || pkt <= self.wqes.get(at).packets;
        sent <= all
            && all <= self.wqes.capacity()
            && (sent > 0 || self.una_pkt <= self.cursor_pkt)
            && (all == 0 || inside(self.head, self.una_pkt) && inside(self.cursor, self.cursor_pkt))
            && !self.una_psn().is_after(self.next_psn)
    }
}

/// Sending.
impl Recovery {
    /// The places of the next request's scatter/gather entries. There must be room ([`Recovery::has_room`]).
    #[inline]
    pub(crate) fn sge_places(&mut self) -> &mut [Sge] {
        self.sges.places()
    }
    /// The first `count` entries in [`Recovery::sge_places`].
    #[inline]
    pub(crate) fn sges_written(&self, count: u8) -> &[Sge] {
        self.sges.written(count)
    }
    /// Appends a request with its scatter/gather entries in [`Recovery::sge_places`]; there must be room
    /// ([`Recovery::has_room`]).
    #[inline(always)]
    pub(crate) fn push(&mut self, new: NewRequest<'_>) {
        debug_assert!(self.has_room());
        let (sge_first, sge_end) = self.sges.append(new.wqe.num_sge);
        let NewRequest { wqe, work, opcode, sq_index, packets, length, fail } = new;
        let request = InflightWqe {
            wqe: *wqe,
            work,
            opcode,
            sq_index,
            sge_first,
            sge_end,
            first_psn: self.next_psn,
            packets,
            length,
            bytes_before: self.next_bytes,
            reads_before: self.next_reads,
            ssn: self.next_ssn,
            rsn: self.next_rsn,
            done: false,
            fail,
        };
        self.next_rsn = self.next_rsn.wrapping_add(CONSUMING >> opcode as u32 & 1);
        self.wqes.store(self.tail, request);
        self.tail = self.tail.wrapping_add(1);
        self.next_psn = self.next_psn.add(packets);
        self.next_bytes += u64::from(length);
        let messages = match work {
            Work::Read => read_chunks(length),
            Work::Local => 0,
            Work::Send | Work::Write | Work::Atomic => 1,
        };
        self.next_reads = self.next_reads.wrapping_add(if work.has_response() { messages } else { 0 });
        self.next_ssn = self.next_ssn.wrapping_add(messages);
        debug_assert!(self.is_consistent());
    }
    /// The request of the packet that is sent next.
    #[inline]
    pub(crate) fn next(&self) -> Option<&InflightWqe> {
        if self.has_next() { Some(self.wqes.get(self.cursor)) } else { None }
    }
    /// Index, in its request, of the packet that is sent next.
    #[inline]
    pub(crate) fn next_packet(&self) -> u32 {
        self.cursor_pkt
    }
    /// `packets` packets of the next request were sent. Returns whether the last of them was sent for the first time.
    #[inline]
    pub(crate) fn on_sent(&mut self, packets: u32) -> bool {
        self.cursor_pkt += packets;
        let request = self.wqes.get(self.cursor);
        debug_assert!(self.cursor_pkt <= request.packets);
        let next = request.first_psn.add(self.cursor_pkt);
        let is_new = next.is_after(self.sent_psn);
        if is_new {
            self.sent_psn = next;
        }
        debug_assert!(self.is_consistent());
        is_new
    }
    /// All packets of the next request were sent, or it was executed locally.
    #[inline]
    pub(crate) fn on_request_sent(&mut self) {
        debug_assert!(self.has_next());
        debug_assert!(self.next().is_some_and(|r| r.done || self.cursor_pkt == r.packets));
        self.cursor = self.cursor.wrapping_add(1);
        self.cursor_pkt = 0;
    }
    /// The next request cannot be executed: it ends with this error when all before it have ended.
    pub(crate) fn fail_next(&mut self, status: WcStatus, reason: Reason) {
        debug_assert!(self.has_next());
        self.wqes.get_mut(self.cursor).fail = Some((status, reason));
    }
    /// The next request, a local operation, was executed.
    pub(crate) fn mark_next_done(&mut self) {
        debug_assert!(self.next().is_some_and(|request| request.work == Work::Local));
        self.wqes.get_mut(self.cursor).done = true;
    }
}

/// Acknowledgement and loss.
impl Recovery {
    /// The oldest request in flight.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<&InflightWqe> {
        if self.is_empty() { None } else { Some(self.wqes.get(self.head)) }
    }
    /// The next `packets` packets of the oldest request are acknowledged. The request itself stays ([`Recovery::retire_oldest`]).
    #[inline]
    pub(crate) fn on_acked(&mut self, packets: u32) {
        debug_assert!(!self.is_empty());
        self.una_pkt += packets;
        debug_assert!(self.una_pkt <= self.wqes.get(self.head).packets);
    }
    /// Removes the oldest request.
    pub(crate) fn retire_oldest(&mut self) -> InflightWqe {
        assert!(!self.is_empty());
        let request = *self.wqes.get(self.head);
        self.sges.free_to(request.sge_end);
        self.head = self.head.wrapping_add(1);
        self.una_pkt = 0;
        request
    }
    /// Moves the cursor forward to *una* if acknowledgements have passed it after it went back: acknowledged packets are not
    /// sent again.
    pub(crate) fn sync_cursor(&mut self) {
        let behind = self.cursor.wrapping_sub(self.head) as i32;
        if behind < 0 || (behind == 0 && self.cursor_pkt < self.una_pkt) {
            self.cursor = self.head;
            self.cursor_pkt = self.una_pkt;
        }
        debug_assert!(self.is_consistent());
    }
    /// A loss: everything from *una* on is sent again.
    pub(crate) fn go_back(&mut self) {
        self.cursor = self.head;
        self.cursor_pkt = self.una_pkt;
        self.ahead.clear();
        debug_assert!(!self.is_outstanding() && self.is_consistent());
    }
    /// An acknowledgement beyond an unanswered READ or ATOMIC: notes it, and returns whether the caller shall go back. It
    /// shall do so once until there is progress; after that the retransmission timer decides.
    pub(crate) fn on_implied_loss(&mut self) -> bool {
        let una = self.una_psn();
        if self.implied_at == Some(una) || !self.is_outstanding() {
            return false;
        }
        self.implied_at = Some(una);
        true
    }
    /// There was progress or a time-out: the next implied NAK goes back again.
    #[inline]
    pub(crate) fn rearm_implied_loss(&mut self) {
        self.implied_at = None;
    }
}

/// Packets of requests in flight, by PSN.
impl Recovery {
    /// PSN of the packet that is sent next.
    pub(crate) fn next_packet_psn(&self) -> Psn {
        self.cursor_psn()
    }
    /// The request in flight that takes `psn`, which is not before *una*, and the packet of which the PSN is one: its index, and
    /// the number of PSNs that it takes. A READ is requested in pieces, each of which is a packet.
    pub(crate) fn packet_of(&self, psn: Psn, mtu: u32) -> Option<(&InflightWqe, u32, u32)> {
        let request = self.request_of(psn)?;
        let index = psn.diff(request.first_psn) as u32;
        if request.work != Work::Read {
            return Some((request, index, 1));
        }
        let piece = READ_CHUNK_BYTES / mtu;
        let first = index / piece * piece;
        Some((request, first, piece.min(request.packets - first)))
    }
    /// Whether `psn`, which is not before *una*, is that of a READ or ATOMIC in flight.
    pub(crate) fn is_answered_request(&self, psn: Psn) -> bool {
        self.request_of(psn).is_some_and(|request| request.work.has_response())
    }
    /// The PSN behind the piece of a READ that *una* lies in, if the first response of the piece has come: the peer has
    /// executed its request.
    pub(crate) fn answered_piece(&self, mtu: u32) -> Option<Psn> {
        let una = self.una_psn();
        let (request, first, psns) = self.packet_of(una, mtu).filter(|(request, ..)| request.work == Work::Read)?;
        let begin = request.first_psn.add(first);
        (una != begin).then(|| begin.add(psns))
    }
    /// The request that takes `psn` cannot be executed: it ends with this error when all before it have ended.
    pub(crate) fn fail_request_of(&mut self, psn: Psn, status: WcStatus, reason: Reason) {
        let count = self.tail.wrapping_sub(self.head);
        let at = (0..count).map(|age| self.head.wrapping_add(age)).find(|&at| {
            let request = self.wqes.get(at);
            psn.is_within(request.first_psn, request.packets)
        });
        if let Some(at) = at {
            self.wqes.get_mut(at).fail = Some((status, reason));
        }
    }
    /// The answer to the ATOMIC that takes `psn` has come before those of requests in front of it: it ends when these have.
    pub(crate) fn mark_answered(&mut self, psn: Psn) {
        let count = self.tail.wrapping_sub(self.head);
        let at = (0..count).map(|age| self.head.wrapping_add(age)).find(|&at| self.wqes.get(at).first_psn == psn);
        if let Some(at) = at.filter(|&at| self.wqes.get(at).work == Work::Atomic) {
            self.wqes.get_mut(at).done = true;
        }
    }
    /// Payload bytes of SENDs and WRITEs in flight that need no room in the window, and those of them of which it is not known
    /// that the peer has them. `covered` gets the PSNs of a request that were sent and are not answered.
    pub(crate) fn covered_bytes(&self, mtu: u32, mut covered: impl FnMut(Psn, u32) -> CoveredPsns) -> (u64, u32) {
        let (una, end) = (self.una_psn(), self.cursor_psn());
        let (mut bytes, mut gone_bytes) = (0, 0);
        for age in 0..self.tail.wrapping_sub(self.head) {
            let request = self.wqes.get(self.head.wrapping_add(age));
            if !request.first_psn.is_before(end) {
                break;
            }
            if !matches!(request.work, Work::Send | Work::Write) {
                continue;
            }
            let first = if request.first_psn.is_before(una) { una } else { request.first_psn };
            let behind = request.first_psn.add(request.packets);
            let is_whole = !behind.is_after(end);
            let count = if is_whole { behind } else { end }.diff(first).max(0) as u32;
            let CoveredPsns { known, gone, last } = covered(first, count);
            let short = if is_whole { request.packets * mtu - request.length } else { 0 };
            let short_of = |state| if last == state { short } else { 0 };
            let gone = gone * mtu - short_of(LastPsn::Gone);
            bytes += u64::from(known) * u64::from(mtu) - u64::from(short_of(LastPsn::Known)) + u64::from(gone);
            gone_bytes += gone;
        }
        (bytes, gone_bytes)
    }
    /// Lets all missing parts of READs before `acked`, of which the peer has executed the requests, be requested again. False,
    /// and nothing is done, if no response is noted.
    pub(crate) fn ask_reads_again(&mut self, acked: Psn) -> bool {
        let una = self.una_psn();
        if !self.has_ahead() || self.oldest().is_none_or(|oldest| oldest.work != Work::Read) {
            return false;
        }
        let asked = acked.diff(una).clamp(0, AHEAD_MAX as i32) as u32;
        self.ahead.ask_again(una, una.add(asked));
        true
    }
}

/// READ responses behind a gap.
impl Recovery {
    /// Whether responses behind a gap are noted.
    #[inline]
    pub(crate) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }
    /// Whether missing ranges may have to be requested again.
    #[inline]
    pub(crate) fn wants_repair(&self) -> bool {
        self.ahead.is_due()
    }
    /// Whether the response of `psn` is noted.
    pub(crate) fn is_noted(&self, psn: Psn) -> bool {
        self.has_ahead() && self.ahead.has(psn)
    }
    /// The request in flight that takes `psn`, which is not before *una*.
    fn request_of(&self, psn: Psn) -> Option<&InflightWqe> {
        let count = self.tail.wrapping_sub(self.head);
        let mut requests = (0..count).map(|age| self.wqes.get(self.head.wrapping_add(age)));
        requests.find(|request| psn.is_within(request.first_psn, request.packets))
    }
    /// The READ in flight that a response with `psn` behind a gap belongs to. `None` if the response cannot be placed before
    /// those in front of it: it is too far on; an ATOMIC is unanswered before it, which only going back repeats; its READ writes
    /// to bytes of memory twice, or to more entries than are compared; or a READ before it names the same addresses by another
    /// key, so that it is not known whether they are the same bytes.
    pub(crate) fn read_behind_gap(&self, psn: Psn) -> Option<InflightWqe> {
        let distance = psn.diff(self.una_psn());
        if distance <= 0 || distance >= AHEAD_MAX as i32 {
            return None;
        }
        let count = self.tail.wrapping_sub(self.head);
        for age in 0..count {
            let request = self.wqes.get(self.head.wrapping_add(age));
            let may_wait = age > 0 || request.work == Work::Read;
            if !may_wait || request.fail.is_some() || request.work == Work::Atomic {
                return None;
            }
            if psn.is_within(request.first_psn, request.packets) {
                let fits = request.work == Work::Read && !self.is_ambiguous(age);
                return fits.then_some(*request);
            }
        }
        None
    }
    /// Whether scatter entries of the READ of this age share addresses, or share them with a READ before it by another key or
    /// more than [`SHARED_WITHIN`] requests before it. Long lists count as shared: the comparison takes time, and each response
    /// behind a gap needs it.
    fn is_ambiguous(&self, last: u32) -> bool {
        let entries = |age: u32| {
            let request = self.wqes.get(self.head.wrapping_add(age));
            if request.work == Work::Read { self.sges_of(request) } else { &[] }
        };
        let own = entries(last);
        if (0..=last).any(|age| entries(age).len() > SGES_COMPARED_MAX) {
            return true;
        }
        let among_own = own.iter().enumerate().any(|(k, a)| own[..k].iter().any(|b| a.shares_addresses(b)));
        let is_shared = |age: u32, b: &Sge| {
            own.iter().any(|a| (a.lkey != b.lkey || last - age > SHARED_WITHIN) && a.shares_addresses(b))
        };
        among_own || (0..last).any(|age| entries(age).iter().any(|entry| is_shared(age, entry)))
    }
    /// The READs behind `request` of which responses may be noted although they write to its memory.
    pub(crate) fn noted_reads_behind(&self, request: &InflightWqe) -> impl Iterator<Item = &InflightWqe> {
        let behind = request.first_psn.add(request.packets);
        let (all, end) = (self.tail.wrapping_sub(self.head), self.ahead.end());
        let first = self.age_from(behind, all);
        let requests = (first..all.min(first + SHARED_WITHIN)).map(|age| self.wqes.get(self.head.wrapping_add(age)));
        let noted = requests.take_while(move |other| self.has_ahead() && other.first_psn.is_before(end));
        noted.filter(|other| other.work == Work::Read && other.wqe.num_sge as usize <= SGES_COMPARED_MAX)
    }
    /// Number of the `count` oldest requests that begin before `psn`: requests are in the order of their PSNs.
    fn age_from(&self, psn: Psn, count: u32) -> u32 {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.wqes.get(self.head.wrapping_add(middle)).first_psn.is_before(psn) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
    /// Reserves the memory that notes of responses behind a gap need.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn reserve_ahead(&mut self) -> Result<(), OutOfMemory> {
        self.ahead.reserve()
    }
    /// The response of `psn` was placed, and *una* is missing. There must be memory ([`Recovery::reserve_ahead`]).
    pub(crate) fn note_ahead(&mut self, psn: Psn) {
        debug_assert!(self.oldest().is_some_and(|oldest| oldest.work == Work::Read));
        let (una, sent) = (self.una_psn(), self.sent_psn);
        self.ahead.note(psn, una, sent);
    }
    /// Removes the notes of the first of `most` responses from *una* on, up to the first that was not noted. Returns how many.
    pub(crate) fn take_noted(&mut self, most: u32) -> u32 {
        let una = self.una_psn();
        (0..most).take_while(|&k| self.ahead.take(una.add(k))).count() as u32
    }
    /// How many of the `most` responses from `psn` on are not noted, up to the first that is.
    pub(crate) fn unnoted(&self, psn: Psn, most: u32) -> u32 {
        if !self.has_ahead() {
            return most;
        }
        (0..most).take_while(|&k| !self.ahead.has(psn.add(k))).count() as u32
    }
    /// The next missing range to be requested again.
    pub(crate) fn next_range(&self, mtu: u32) -> Option<MissingRange> {
        let (una, end) = (self.una_psn(), self.ahead.end());
        let mut psn = if self.ahead.asked().is_before(una) { una } else { self.ahead.asked() };
        while self.has_ahead() {
            psn = self.ahead.unasked_from(psn);
            if !psn.is_before(end) {
                return None;
            }
            let request = self.request_of(psn)?;
            if request.work != Work::Read {
                psn = request.first_psn.add(request.packets);
                continue;
            }
            if self.ahead.has(psn) {
                psn = psn.next();
                continue;
            }
            let first = psn.diff(request.first_psn) as u32;
            let piece = READ_CHUNK_BYTES / mtu;
            let most = ((first / piece + 1) * piece).min(request.packets);
            let is_missing = |&at: &u32| {
                let psn = request.first_psn.add(at);
                psn.is_before(end) && !self.ahead.has(psn)
            };
            let len = (first..most).take_while(is_missing).count() as u32;
            debug_assert!(len > 0);
            if first + len < most && request.first_psn.add(first + len) == end {
                // A part of a piece of which nothing has arrived. A peer that has lost the request of the piece would execute the
                // part as a READ of its own, and could answer no later range that reaches beyond.
                return None;
            }
            return Some(MissingRange { request: *request, first, end: first + len });
        }
        None
    }
    /// The range was requested again.
    pub(crate) fn on_range_sent(&mut self, range: &MissingRange) {
        let end = range.request.first_psn.add(range.end);
        self.ahead.on_asked(end, self.sent_psn);
    }
    /// After a time-out, lets all missing ranges be requested again. False, and nothing is done, if no response is noted or
    /// other requests than READs are in flight: those are repeated by going back.
    pub(crate) fn ask_again(&mut self) -> bool {
        let begun = self.cursor.wrapping_sub(self.head) + u32::from(self.cursor_pkt > 0);
        let mut requests = (0..begun).map(|age| self.wqes.get(self.head.wrapping_add(age)));
        if !self.has_ahead() || !requests.all(|request| request.work == Work::Read && request.fail.is_none()) {
            return false;
        }
        let una = self.una_psn();
        let asked = self.psn_distance().min(AHEAD_MAX as i32) as u32;
        self.ahead.ask_again(una, una.add(asked));
        true
    }
    /// No missing range is left to be requested again.
    pub(crate) fn on_ranges_sent(&mut self) {
        self.ahead.all_asked();
    }
}

#[cfg(test)]
mod tests;
