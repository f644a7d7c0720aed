//! The sending half of a queue pair: takes work requests from the send queue and applies the limits on sending.
//!
//! A work request is copied out of the shared queue once, checked, and given to [`Recovery`], which knows the packet that comes
//! next. `messages` makes the packets. After a loss the same requests pass again through the same code.
//!
//! A packet leaves only if all limits allow it ([`Requester::gate`], [`Requester::must_wait_for_reads`]): budget and batch of the
//! turn, window, PSN distance, end-to-end credits (IBA 9.7.7.2), fence (10.8.3.3), outstanding READs and ATOMICs (9.4.4).
//!
//! | file | what it holds |
//! |---|---|
//! | `messages`, `heads` | packets of work requests; their heads |
//! | `recovery`, `inflight_ring` | the requests in flight, and repetition after a loss; their rings |
//! | `completions` | completions, errors, flushing, draining |
//! | `standard` | the standard family: acknowledgements and time-outs, go-back-N, probes, split WRITEs |
//! | `selective` | the selective repeat family: acknowledgements, lost packets, repetitions |
//! | `family` | when the family changes |
//! | `early_responses`, `read_ahead` | READ responses that arrived behind a gap |
//! | `trains` | READ responses of a train, many at a time |
//! | `read_acks` | acknowledgements of READ responses |
//! | `probe_state` | what the next progress and the next turn are looked at for |
//! | `check` | what must hold between two calls |

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod early_responses;
pub(crate) mod family;
pub(crate) mod heads;
pub(crate) mod inflight_ring;
pub(crate) mod messages;
pub(crate) mod probe_state;
pub(crate) mod read_acks;
pub(crate) mod read_ahead;
pub(crate) mod recovery;
pub(crate) mod selective;
pub(crate) mod standard;
pub(crate) mod trains;

use crate::api::{
    ACK_BACKOFF_MAX, Env, INFLIGHT_SGES_MAX, INFLIGHT_WQES_MAX, MESSAGE_BYTES_MAX, PSN_DISTANCE_MAX, TxBudget, TxState,
};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::probe_state::{BACK, ProbeState};
use crate::requester::read_acks::ReadAckSender;
use crate::requester::recovery::{InflightWqe, NewRequest, Recovery};
use crate::requester::selective::SelectiveRequester;
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason, RtoMode};
use burst_shm::Fetch;
use burst_shm::layout::{SGE_MAX, SendWqe};
use burst_shm::sq::SqConsumer;

const BAD_REQUEST: (WcStatus, Reason) = (WcStatus::LocQpOpErr, Reason::LocalOperation);

const TOO_LONG: (WcStatus, Reason) = (WcStatus::LocLenErr, Reason::LocalLength);

/// Operation, opcode and bytes of a checked work request.
type CheckedRequest = (Work, WrOpcode, u32);

/// No limit by credits.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

/// State of the sending half.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct Requester {
    /// Acknowledgements of READ responses.
    pub(crate) read_acks: Option<Box<ReadAckSender>>,
    /// The wait for progress, and probes.
    pub(crate) probes: ProbeState,
    /// Selective repeat: losses of packets before this PSN were reported to congestion control (RFC 6582's `recover`), if it lies
    /// between the first missing PSN and the first that was never sent.
    pub(crate) recover: Psn,
    /// SQD: the drained event has been raised.
    pub(crate) drained: bool,
    /// The send queue's indices are impossible: it is not read any more.
    pub(crate) corrupt: bool,
    pub(crate) back_limit: u64,
    /// The selective repeat family.
    pub(crate) sel: SelectiveRequester,
    pub(crate) ack_deadline: Nanos,
    pub(crate) rnr_deadline: Nanos,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// What the next progress must be looked at for, as bits ([`crate::requester::probe_state`]). One of them: after going back,
    /// until there is progress, at most `back_limit` bytes are in flight.
    pub(crate) watched: u8,
    /// Time-outs since the last progress, as far as they count ([`Requester::ack_wait`]).
    pub(crate) timeouts: u8,
    /// Nothing may be sent until an answer comes or the window opens.
    pub(crate) stalled: bool,
    /// There may be something to send beside the requests in flight: a doorbell rang, so that the send queue may hold work
    /// requests, or a part of a READ is to be requested again.
    pub(crate) sq_active: bool,
    /// What the next turn does first, as bits ([`crate::requester::probe_state`]).
    pub(crate) turn_due: u8,
    /// Selective repeat: each acknowledgement is reported to congestion control, and each turn is measured.
    pub(crate) reports_each: bool,
    pub(crate) recovery: Recovery,
    /// Send queue entries retired.
    pub(crate) retired: u32,
    /// Payload bytes sent since the last packet that asked for an acknowledgement.
    pub(crate) since_ack_request: u32,
    /// Last SSN that the peer's credits allow, which has 24 bits (IBA 9.7.7.2.5), or [`NO_LIMIT`]: it has given none.
    pub(crate) credit_limit: u32,
    /// Messages on the wire beyond one for each request sent so far ([`crate::requester::standard::split_writes`]).
    pub(crate) extra_messages: u32,
    pub(crate) sq: SqConsumer,
}

/// Result of sending from one request.
pub(crate) enum SendStep {
    /// All packets of the request are sent.
    Sent,
    /// Sending stops, for this reason.
    Stop(TxState),
}

/// Result of taking a work request from the send queue.
enum Fetched {
    Request,
    /// The queue is empty, or must not be read.
    Nothing,
    /// There is no room for another request in flight, or those in flight must end before the family of packets changes.
    Full,
    /// The next request is of the other family.
    Switched,
}

/// State of one turn of sending.
pub(crate) struct SendTurn<'b> {
    pub(crate) budget: &'b mut TxBudget,
}

impl Requester {
    pub(crate) fn new(rto: RtoMode, sq: SqConsumer) -> Self {
        Requester {
            read_acks: None,
            probes: ProbeState::new(),
            recover: Psn::new(0),
            drained: false,
            corrupt: false,
            recovery: Recovery::new(),
            retired: 0,
            credit_limit: NO_LIMIT,
            extra_messages: 0,
            since_ack_request: 0,
            retry_left: 0,
            rnr_left: 0,
            watched: 0,
            turn_due: 0,
            back_limit: 0,
            timeouts: 0,
            ack_deadline: Nanos::NEVER,
            rnr_deadline: Nanos::NEVER,
            stalled: false,
            sq_active: false,
            reports_each: true,
            sel: SelectiveRequester::new(rto),
            sq,
        }
    }

    /// Removes all requests without completions (the queue pair goes to RESET).
    pub(crate) fn reset(&mut self) {
        self.sq.discard_all();
        self.retired = self.sq.taken();
        (self.recovery, self.probes) = (Recovery::new(), ProbeState::new());
        (self.credit_limit, self.extra_messages, self.since_ack_request) = (NO_LIMIT, 0, 0);
        (self.retry_left, self.rnr_left, self.timeouts, self.back_limit) = (0, 0, 0, 0);
        (self.ack_deadline, self.rnr_deadline) = (Nanos::NEVER, Nanos::NEVER);
        (self.stalled, self.sq_active, self.reports_each) = (false, false, true);
        (self.drained, self.corrupt) = (false, false);
        let window = self.sel.window;
        self.sel = SelectiveRequester { window, ..SelectiveRequester::new(self.sel.rtt.mode()) };
        self.set_family(false);
        self.forget_read_acks();
    }

    /// Reserves memory for the first request in flight, and fixes how many there may be (the queue pair leaves RESET).
    pub(crate) fn allocate(&mut self, max_send_wr: u32, max_send_sge: u32) -> Result<(), OutOfMemory> {
        let wqes = max_send_wr.clamp(1, INFLIGHT_WQES_MAX).next_power_of_two();
        let longest = max_send_sge.clamp(1, SGE_MAX);
        let sges = (wqes * max_send_sge).clamp(2 * longest, INFLIGHT_SGES_MAX);
        self.recovery.allocate(wqes, sges, longest)
    }

    /// Begins at `psn` (the queue pair enters RTS).
    pub(crate) fn start(&mut self, psn: Psn, retry_cnt: u8, rnr_retry: u8) {
        self.recovery.start(psn);
        self.stop_watching();
        self.retry_left = retry_cnt;
        self.rnr_left = rnr_retry;
    }

    /// Whether it has gone back, and there was no progress since.
    #[inline]
    pub(crate) fn is_back(&self) -> bool {
        self.watched & BACK != 0
    }

    /// Sends everything again from the oldest unacknowledged packet on; no timer runs until then.
    pub(crate) fn go_back(&mut self) {
        self.recovery.go_back();
        self.forget_measurement();
        self.since_ack_request = 0;
        self.ack_deadline = Nanos::NEVER;
        self.stalled = false;
    }

    /// Missing parts of READs are to be requested again.
    pub(crate) fn begin_repair(&mut self) {
        debug_assert!(self.recovery.wants_repair());
        self.forget_measurement();
        self.stalled = false;
        self.sq_active = true;
    }

    /// Counts a send queue entry that has ended.
    pub(crate) fn count_retired(&mut self) {
        self.retired = self.retired.wrapping_add(1);
    }
}

impl Requester {
    /// Whether requests could be sent now.
    #[inline]
    pub(crate) fn wants_requests(&self, qp: &QpShared) -> bool {
        let waits = self.rnr_deadline != Nanos::NEVER || self.stalled;
        match qp.state {
            QpState::Rts => !waits && (self.recovery.has_next() || self.sq_active),
            QpState::Sqd => !waits && self.wants_requests_draining(),
            _ => false,
        }
    }

    /// The same in SQD.
    #[cold]
    #[inline(never)]
    fn wants_requests_draining(&self) -> bool {
        self.recovery.has_next() || self.recovery.wants_repair() || self.sel.wants_repair() || self.turn_due != 0
    }

    /// Sends requests until a limit stops it.
    pub(crate) fn poll_requests(&mut self, qp: &mut QpShared, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        if self.rnr_deadline != Nanos::NEVER {
            return TxState::Timer;
        }
        if self.turn_due != 0
            && let Some(state) = self.begin_turn(qp, budget, env)
        {
            return state;
        }
        let mut turn = SendTurn { budget };
        if self.recovery.wants_repair() && !self.send_repairs(qp, &mut turn, env) {
            return TxState::More;
        }
        loop {
            let stopped = match self.sel.active {
                false => self.send_requests::<false>(qp, &mut turn, env),
                // Turns in which only answers leave are many: they need not look further.
                true if !self.has_selective_requests() => return TxState::Idle,
                true => self.send_selective_requests(qp, &mut turn, env),
            };
            if let Some(state) = stopped {
                return state;
            }
        }
    }

    /// Sends requests of the selective repeat family or of the standard one until a limit stops it; `None` if the next request is
    /// of the other family. Each family has its own copy of the code, so that nothing is decided per request.
    #[inline(always)]
    pub(crate) fn send_requests<const SELECTIVE: bool>(
        &mut self,
        qp: &mut QpShared,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> Option<TxState> {
        debug_assert_eq!(self.sel.active, SELECTIVE);
        loop {
            let request = match self.recovery.next() {
                Some(request) => *request,
                None => match self.fetch(qp, env) {
                    Fetched::Request => continue,
                    Fetched::Nothing => return Some(TxState::Idle),
                    Fetched::Full => {
                        self.stalled = true;
                        return Some(TxState::Idle);
                    }
                    Fetched::Switched => return None,
                },
            };
            let step = match request.work {
                _ if request.fail.is_some() => SendStep::Stop(TxState::Idle),
                _ if !SELECTIVE && qp.id.qp_type == QpType::Ud => self.send_datagram(qp, &request, turn, env),
                Work::Send | Work::Write => self.send_message::<SELECTIVE>(qp, &request, turn, env),
                Work::Read => self.send_read(qp, &request, turn, env),
                Work::Atomic => self.send_atomic(qp, &request, turn, env),
                Work::Local => self.run_local(qp, &request, turn, env),
            };
            match step {
                SendStep::Sent => self.on_request_sent(qp, request.work, env),
                SendStep::Stop(state) => {
                    self.stalled = matches!(state, TxState::Idle | TxState::Window);
                    self.end_failed_oldest(qp, env);
                    return Some(state);
                }
            }
            if qp.state == QpState::Err || qp.state == QpState::Sqe {
                return Some(TxState::More);
            }
        }
    }

    /// All of a request was sent. Requests of UC and UD end here, because no acknowledgement comes for them.
    fn on_request_sent(&mut self, qp: &QpShared, work: Work, env: &mut Env<'_>) {
        self.recovery.on_request_sent();
        if !qp.id.qp_type.is_reliable() {
            self.retire_oldest(qp, env);
            self.check_drained(qp, env);
        } else if work == Work::Local {
            self.retire_local(qp, env);
        }
    }

    /// Takes the next work request from the shared queue, checks it, and puts it in flight.
    #[inline(always)]
    fn fetch(&mut self, qp: &mut QpShared, env: &mut Env<'_>) -> Fetched {
        if qp.state != QpState::Rts || !self.sq_active {
            return Fetched::Nothing;
        }
        if self.sel.switch_due {
            return if self.switch_family(qp, env) { Fetched::Switched } else { Fetched::Full };
        }
        let r = &mut *self;
        if !r.recovery.has_room() && !r.recovery.grow() {
            return Fetched::Full;
        }
        let mut wqe = SendWqe::default();
        let (sq_index, is_well_formed) = match r.sq.fetch(&mut wqe, r.recovery.sge_places()) {
            Fetch::Taken(index) => (index, true),
            Fetch::Malformed(index) => (index, false),
            Fetch::Empty => {
                r.sq_active = !r.sq.try_idle();
                return Fetched::Nothing;
            }
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.enter_fatal(qp, env);
                return Fetched::Nothing;
            }
        };
        let checked = if is_well_formed { self.check_wqe(qp, &wqe) } else { Err(BAD_REQUEST) };
        self.put_in_flight(qp, &mut wqe, sq_index, checked);
        Fetched::Request
    }

    #[inline(always)]
    fn put_in_flight(
        &mut self,
        qp: &QpShared,
        wqe: &mut SendWqe,
        sq_index: u32,
        checked: Result<CheckedRequest, (WcStatus, Reason)>,
    ) {
        let has_entries = checked.is_ok() && wqe.flags & send_flags::INLINE as u16 == 0;
        wqe.num_sge = if has_entries { wqe.num_sge } else { 0 };
        let (work, opcode, length, fail) = match checked {
            Ok((work, opcode, length)) => (work, opcode, length, None),
            Err(fail) => {
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                (Work::Send, opcode, 0, Some(fail))
            }
        };
        let packets = match work {
            Work::Local => 0,
            Work::Atomic => 1,
            Work::Send | Work::Write | Work::Read => length.div_ceil(qp.mtu).max(1),
        };
        let new = NewRequest { wqe, work, opcode, sq_index, packets, length, fail };
        self.recovery.push(new);
    }

    /// Checks a copied work request, and returns its operation and its bytes (IBA 10.8.2, 11.4.1.1).
    #[inline(always)]
    fn check_wqe(&self, qp: &QpShared, wqe: &SendWqe) -> Result<CheckedRequest, (WcStatus, Reason)> {
        let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).ok_or(BAD_REQUEST)?;
        let work = Work::of(opcode);
        if !work.is_carried_by(qp.id.qp_type, opcode) {
            return Err(BAD_REQUEST);
        }
        let length = if wqe.flags & send_flags::INLINE as u16 != 0 {
            if work.has_response() || wqe.length > self.sq.spec().max_inline() {
                return Err(BAD_REQUEST);
            }
            u64::from(wqe.length)
        } else {
            if u32::from(wqe.num_sge) > self.sq.spec().max_sge() {
                return Err(BAD_REQUEST);
            }
            self.recovery.sges_written(wqe.num_sge).iter().map(|sge| u64::from(sge.length)).sum()
        };
        if work == Work::Local {
            return if length == 0 { Ok((work, opcode, 0)) } else { Err(BAD_REQUEST) };
        }
        let max = if qp.id.qp_type == QpType::Ud { u64::from(qp.mtu) } else { MESSAGE_BYTES_MAX };
        if length > max || (work == Work::Atomic && length != 8) {
            return Err(TOO_LONG);
        }
        if work.has_response() && qp.attr.max_rd_atomic == 0 {
            return Err(BAD_REQUEST);
        }
        Ok((work, opcode, length as u32))
    }

    /// Why a packet that puts `len` bytes in flight may not be sent now; `None` if it may.
    pub(crate) fn gate(
        &self,
        qp: &QpShared,
        request: &InflightWqe,
        len: u32,
        turn: &SendTurn<'_>,
        env: &Env<'_>,
    ) -> Option<TxState> {
        if turn.budget.wqes == 0 || turn.budget.bytes == 0 || !env.tx.has_room() {
            return Some(TxState::More);
        }
        if !qp.id.qp_type.is_reliable() {
            return None;
        }
        let window = turn.budget.window_bytes;
        if u64::from(len) > window && (window == 0 || self.recovery.is_outstanding()) {
            return Some(TxState::Window);
        }
        if self.is_credit_limited(request) && self.recovery.is_outstanding() {
            return Some(TxState::Idle);
        }
        if self.is_back() && self.is_back_limited(qp, len.into()) && self.recovery.is_outstanding() {
            return Some(TxState::Idle);
        }
        if self.recovery.psn_distance() < self.sel.distance_max {
            return None;
        }
        self.far_gate()
    }

    /// The last check of [`Requester::gate`], when there is not certainly room for another PSN.
    #[cold]
    #[inline(never)]
    fn far_gate(&self) -> Option<TxState> {
        self.is_too_far(1).then_some(TxState::Idle)
    }

    /// Whether `psns` more in flight are too many for PSN arithmetic, or for the peer. In the selective repeat family requests
    /// count that the peer has not acknowledged; READs in front of them may wait for their responses for longer.
    #[cold]
    pub(crate) fn is_too_far(&self, psns: u32) -> bool {
        let recovery = &self.recovery;
        let acked = if self.sel.active { self.sel.acked } else { recovery.una_psn() };
        let distance = recovery.next_packet_psn().diff(acked).max(0) + psns as i32;
        distance > self.sel.distance_max || recovery.psn_distance() >= PSN_DISTANCE_MAX
    }

    /// Whether `bytes` more in flight are too many after going back.
    pub(crate) fn is_back_limited(&self, qp: &QpShared, bytes: u64) -> bool {
        self.is_back() && self.recovery.inflight_bytes(qp.mtu) + bytes > self.back_limit
    }

    /// Whether the peer's credits show no receive for this message. Then one packet at a time may be sent as a probe.
    pub(crate) fn is_credit_limited(&self, request: &InflightWqe) -> bool {
        self.credit_limit != NO_LIMIT
            && request.takes_credit()
            && Psn::new(request.ssn.wrapping_add(self.extra_messages)).is_after(Psn::new(self.credit_limit))
    }

    /// Whether the request must wait for outstanding READs and ATOMICs: because of its fence, or of their limit.
    pub(crate) fn must_wait_for_reads(&self, qp: &QpShared, request: &InflightWqe) -> bool {
        let is_fenced = request.wqe.flags & send_flags::FENCE as u16 != 0 && self.recovery.next_packet() == 0;
        if !is_fenced && !request.work.has_response() {
            return false;
        }
        let outstanding = self.recovery.reads_outstanding(qp.mtu);
        // SQD may have set the limit to 0. Requests that were begun before go on, one at a time; new ones are refused.
        is_fenced && outstanding > 0
            || request.work.has_response() && outstanding >= u32::from(qp.attr.max_rd_atomic.max(1))
    }

    /// How long to wait for progress now: longer after time-outs without any.
    #[inline]
    pub(crate) fn ack_wait(&self, qp: &QpShared) -> Nanos {
        if self.timeouts == 0 { qp.answer_wait } else { self.longer_wait(qp) }
    }

    #[cold]
    #[inline(never)]
    fn longer_wait(&self, qp: &QpShared) -> Nanos {
        let timeout = qp.ack_timeout();
        Nanos(timeout.0.saturating_mul(1 << self.timeouts)).min(timeout.max(ACK_BACKOFF_MAX))
    }
}
