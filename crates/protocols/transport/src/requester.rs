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
//! | `receipts` | UC: receipts of a Burst peer, which bound what is in flight |
//! | `probe_state` | what the next progress and the next turn are looked at for |
//! | `check` | what must hold between two calls |

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod early_responses;
pub(crate) mod heads;
pub(crate) mod inflight_ring;
pub(crate) mod messages;
pub(crate) mod probe_state;
pub(crate) mod read_acks;
pub(crate) mod read_ahead;
pub(crate) mod receipts;
pub(crate) mod recovery;
pub(crate) mod selective;
pub(crate) mod standard;
pub(crate) mod trains;
pub(crate) mod turns;

use crate::api::{ACK_BACKOFF_MAX, Env, INFLIGHT_SGES_MAX, INFLIGHT_WQES_MAX, PSN_DISTANCE_MAX, TxBudget, TxState};
use crate::qp_shared::{FAST_WAITS, QpShared};
use crate::requester::probe_state::{BACK, BEGIN_BACK, MEASURE_DUE, MEASURING, PROBE, ProbeState, WAITS_PER_TIMEOUT};
use crate::requester::read_acks::ReadAckSender;
use crate::requester::receipts::UcReceipts;
use crate::requester::recovery::{InflightWqe, Recovery};
use crate::requester::selective::{MeasuredPacket, SelectiveProbe, SelectiveRequester};
use burst_base::heap::OutOfMemory;
use burst_base::verbs::send_flags;
use burst_base::{Nanos, Psn, RtoMode};
use burst_shm::layout::SGE_MAX;
use burst_shm::sq::SqConsumer;

/// No limit by credits.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

/// State of the sending half.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct Requester {
    /// Acknowledgements of READ responses.
    pub(crate) read_acks: Option<Box<ReadAckSender>>,
    /// Receipts, of both halves: of UC only.
    pub(crate) receipts: Option<Box<UcReceipts>>,
    /// The wait for progress, and probes.
    pub(crate) probes: ProbeState,
    /// Selective repeat: losses of packets before this PSN were reported to congestion control (RFC 6582's `recover`), if it lies
    /// between the first missing PSN and the first that was never sent.
    pub(crate) recover: Psn,
    /// SQD: the drained event has been raised.
    pub(crate) drained: bool,
    /// The send queue's indices are impossible: it is not read any more.
    pub(crate) corrupt: bool,
    pub(crate) back_limit: u32,
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

/// State of one turn of sending.
pub(crate) struct SendTurn<'b> {
    pub(crate) budget: &'b mut TxBudget,
}

impl Requester {
    pub(crate) fn new(rto: RtoMode, sq: SqConsumer) -> Self {
        Requester {
            read_acks: None,
            receipts: None,
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
        self.receipts.as_deref_mut().into_iter().for_each(UcReceipts::reset);
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
        self.receipts.as_deref_mut().into_iter().for_each(|receipts| receipts.start(psn));
        self.retry_left = retry_cnt;
        self.rnr_left = rnr_retry;
    }

    /// Whether it has gone back, and there was no progress since.
    #[inline]
    pub(crate) fn is_back(&self) -> bool {
        self.watched & BACK != 0
    }

    /// Packets were lost: everything is sent again ([`Requester::go_back`]), and what was in flight is not acknowledged.
    #[cold]
    pub(crate) fn lose_flight(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        let lost = self.recovery.inflight_bytes(qp.mtu).saturating_sub(self.sel.covered_bytes);
        env.fx.unacknowledged(lost as i64);
        self.go_back();
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

    /// Whether the next packet is sent again and needs no room in the window: parts of READs, a probe, the first missing packet.
    #[cold]
    pub(crate) fn repeats_without_room(&self) -> bool {
        let sel = &self.sel;
        if self.rnr_deadline != Nanos::NEVER {
            return false;
        }
        if self.recovery.wants_repair()
            || self.turn_due & PROBE != 0
            || sel.answer_due
            || sel.probe == SelectiveProbe::Due
        {
            return true;
        }
        let first = sel.losses.as_ref().and_then(|losses| losses.first_lost());
        first.is_some_and(|lost| lost.psn == sel.acked || self.recovery.is_answered_request(lost.psn))
    }

    /// Counts a send queue entry that has ended.
    pub(crate) fn count_retired(&mut self) {
        self.retired = self.retired.wrapping_add(1);
    }
}

impl Requester {
    /// Why a packet that puts `len` bytes in flight may not be sent now; `None` if it may.
    pub(crate) fn gate(
        &self,
        qp: &QpShared,
        (request, len): (&InflightWqe, u32),
        turn: &SendTurn<'_>,
        env: &Env<'_>,
    ) -> Option<TxState> {
        if turn.budget.wqes == 0 || turn.budget.bytes == 0 || !env.tx.has_room() {
            return Some(TxState::More);
        }
        if !qp.id.qp_type.is_reliable() {
            return self.receipt_gate((request, len), turn.budget.window_bytes);
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
        self.is_back() && self.recovery.inflight_bytes(qp.mtu) + bytes > u64::from(self.back_limit)
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
        let timeout = qp.ack_timeout().max(qp.answer_wait);
        Nanos(timeout.0.saturating_mul(1 << self.timeouts)).min(timeout.max(ACK_BACKOFF_MAX))
    }

    /// Requests are of the selective repeat family from now on, or of the standard one.
    pub(crate) fn set_family(&mut self, selective: bool) {
        self.sel.active = selective;
        self.sel.switch_due = selective != (self.sel.window > 0);
        self.limit_distance();
        self.stop_watching();
    }

    /// How many PSNs may be in flight follows the family and the peer's window.
    pub(crate) fn limit_distance(&mut self) {
        let window = self.sel.window.clamp(1, PSN_DISTANCE_MAX as u32) as i32;
        self.sel.distance_max = if self.sel.active { window } else { PSN_DISTANCE_MAX };
    }

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

    /// The requests in flight are of the family that is to be used, or the queue pair ends.
    pub(crate) fn stop_selective(&mut self) {
        let sel = &mut self.sel;
        (sel.deadline, sel.covered_bytes, sel.measured) = (Nanos::NEVER, 0, None);
        (sel.probe, sel.answer_due) = (SelectiveProbe::None, false);
        (sel.probes, sel.backoff, sel.sent_since) = (0, 0, true);
    }

    /// Something is to be sent again.
    pub(crate) fn begin_repetition(&mut self) {
        self.stalled = false;
        self.sq_active = true;
    }

    /// The wait that progress begins follows the round trip, the local ACK timeout and the family.
    pub(crate) fn set_answer_wait(&mut self, qp: &mut QpShared, env: &Env<'_>) {
        let timeout = qp.ack_timeout();
        let rtt = &self.sel.rtt;
        let wait = rtt.probe_after(0).max(env.fx.probe_wait_min());
        let has_probes = !self.sel.active && rtt.is_known() && wait.0 <= timeout.0 / WAITS_PER_TIMEOUT;
        // A queue may make the round trip longer than the local ACK timeout. Each packet would be sent twice then, and be taken
        // for lost. IBA lets a timer run for longer than the attribute says (9.7.6.1.3: up to four times as long).
        let waits = if self.sel.window > 0 { FAST_WAITS / 2 } else { 1 };
        let least = Nanos(waits * rtt.answered_within().0);
        qp.answer_wait = if has_probes { wait } else { timeout.max(least) };
    }
}
