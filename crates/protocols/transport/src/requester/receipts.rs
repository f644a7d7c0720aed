//! Receipts of UC between Burst peers: how a requester bounds what it has in flight, though UC has no acknowledgements.
//!
//! UC completes a request when it is sent, and repeats nothing. Adapters are paced by the wire; a software sender fills the
//! peer's socket buffer in a fraction of a millisecond, and a program whose peer's worker does not run for that time loses
//! messages on an idle link. So a requester whose peer's hello says that it answers asks for a *receipt* (BTH bit A) once in
//! [`ASK_BYTES`] and [`ASK_MESSAGES`], and before a limit stops it. A receipt covers all packets up to its PSN, arrived or lost:
//! they are not in flight any more. Each packet that asks leaves a [`Mark`], which says what had been sent by then.
//!
//! Limits, besides the window of the path, which the queue pair shares with all others to the peer:
//! * [`PACKETS_MAX`] packets in flight, because a socket buffer counts some hundred bytes for the shortest packet;
//! * a budget of bytes without a receipt, which grows with receipts and is halved by each time-out, down to [`BUDGET_MIN`]: a
//!   queue pair whose peer is gone takes no more than that of what others share, and sends that much in each time-out;
//! * the receives that the peer has posted, which its receipts say by the credit codes of IBA 9.7.7.2. A requester without
//!   credits sends a probe after [`PROBE_WAIT`], and again at longer intervals.
//!
//! None of them can stop a queue pair for good, because a message of UC is sent whether the peer receives it or not: what has no
//! receipt in time does not count any more, and after [`STARVED_MAX`] without a receive messages are sent without credits until
//! the peer announces one. What is lost then is counted by the receiver (`receiver_not_ready`, `receive_overflow`).
//!
//! Congestion control gets a report of each receipt, and a loss if packets did not arrive. A missing receipt is no loss on the
//! path: the peer's queue pair may be gone. Only the first one after a receipt is a time-out, which the engine counts if the path
//! acknowledges nothing else either.

use crate::ack_report::{EchoedCounts, pressure_now};
use crate::api::{Env, Signal, TxBudget, TxState};
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::probe_state::PROBE;
use crate::requester::recovery::InflightWqe;
use burst_base::verbs::Mtu;
use burst_base::{Nanos, Psn, Reason};
use burst_frame::{Ecn, Flow};
use burst_wire::aeth::credits_of_code;
use burst_wire::selective::DELAY_UNIT_NS;
use burst_wire::{Aeth, Bth, HeadBuf, Opcode, Packet, Saeth, Syndrome};

/// A packet asks for a receipt at least once in so many bytes.
const ASK_BYTES: u32 = 32 << 10;
/// The last packet of a message asks at least once in so many messages.
const ASK_MESSAGES: u32 = 16;
/// Most packets in flight.
const PACKETS_MAX: i32 = 512;
/// Most packets in flight before the first receipt.
const PACKETS_FIRST: i32 = 128;
/// Messages before the first receipt: only then the sender knows how many receives the peer has.
const FIRST: u32 = 1;
/// What a packet counts at least in the path's window.
const PACKET_BYTES_MIN: u32 = 512;
/// Packets that have asked and have no receipt yet. The newest is replaced if there are more.
const MARKS: usize = 32;
/// Shortest wait for a receipt: a software peer may not run for as long. Twice the round trip, if that is longer.
const RECEIPT_WAIT: Nanos = Nanos::from_ms(20);
/// Longest wait for a receipt.
const RECEIPT_WAIT_MAX: Nanos = Nanos::from_ms(1_000);
/// Bytes without a receipt, at first, at most, and after time-outs.
const BUDGET_FIRST: u64 = 128 << 10;
const BUDGET_MAX: u64 = 2 << 20;
const BUDGET_MIN: u64 = 8 << 10;
/// First wait of a requester without credits until it probes.
const PROBE_WAIT: Nanos = Nanos::from_us(50);
/// How often that wait is doubled at most.
const PROBE_BACKOFF_MAX: u8 = 7;
/// Longest wait for the peer to post a receive.
const STARVED_MAX: Nanos = Nanos::from_ms(1_000);

const _: () = assert!(PACKETS_FIRST < PACKETS_MAX && ASK_MESSAGES * 4 < PACKETS_FIRST as u32);
const _: () = assert!(BUDGET_MIN >= 2 * Mtu::B4096.bytes() as u64 && BUDGET_MAX >= PACKETS_MAX as u64 * 4096);

/// What had been sent when a packet asked for a receipt.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// PSN of that packet.
    psn: Psn,
    /// Messages begun that take a receive.
    messages: u32,
    bytes: u64,
    at: Nanos,
}

/// The marks without a receipt, oldest first.
#[derive(Debug, Default)]
struct Marks {
    ring: [Mark; MARKS],
    first: usize,
    count: usize,
}

impl Marks {
    fn push(&mut self, mark: Mark) {
        self.count = (self.count + 1).min(MARKS);
        self.ring[(self.first + self.count - 1) % MARKS] = mark;
    }
    fn oldest(&self) -> Option<Mark> {
        (self.count > 0).then(|| self.ring[self.first])
    }
    /// Removes the marks up to `psn`; the newest of them.
    fn take_until(&mut self, psn: Psn) -> Option<Mark> {
        let mut newest = None;
        while self.count > 0 && !self.ring[self.first].psn.is_after(psn) {
            newest = Some(self.ring[self.first]);
            (self.first, self.count) = ((self.first + 1) % MARKS, self.count - 1);
        }
        newest
    }
}

/// What the receiving half notes for its receipts.
#[derive(Debug, Default)]
pub(crate) struct ReceiptSender {
    /// All packets up to this PSN have arrived or are lost.
    seen: Psn,
    /// PSN of the newest packet, and when it arrived.
    newest: Psn,
    arrived_at: Nanos,
    /// Packets received, and those marked "congestion experienced".
    received: u16,
    congested: u16,
    is_congested: bool,
    /// Losses in the host's receive buffers that were reported to the peer.
    lost_seen: Option<u32>,
}

impl ReceiptSender {
    /// A packet has arrived.
    pub(crate) fn note(&mut self, flow: &Flow, psn: Psn, now: Nanos) {
        (self.seen, self.newest, self.arrived_at) = (psn, psn, now);
        self.received = self.received.wrapping_add(1);
        if flow.tos & 3 == Ecn::Ce as u8 {
            self.congested = self.congested.wrapping_add(1);
            self.is_congested = true;
        }
    }
    /// A probe has arrived: its PSN is that of the last packet before it.
    pub(crate) fn note_probe(&mut self, psn: Psn, now: Nanos) {
        (self.seen, self.arrived_at) = (psn, now);
    }
    /// Sends a receipt with this credit code and MSN. False if the batch is full.
    pub(crate) fn push(&mut self, qp: &QpShared, (credit, msn): (u8, u32), env: &mut Env<'_>) -> bool {
        let delay = env.now.since(self.arrived_at).0 / DELAY_UNIT_NS;
        let (pressure, lost) = pressure_now(self.lost_seen, env);
        let saeth = Saeth {
            pressure,
            is_congested: self.is_congested,
            trigger: self.newest,
            delay: delay.min(u16::MAX.into()) as u16,
            congested_packets: self.congested,
            received_packets: self.received,
            ..Saeth::default()
        };
        let aeth = Aeth { syndrome: Syndrome::Ack { credit }, msn };
        let head = HeadBuf::new(&Bth::new(Opcode::UcReceipt, qp.dest_qpn, self.seen)).aeth(aeth).saeth(saeth);
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed {
            (self.is_congested, self.lost_seen) = (false, Some(lost));
        }
        pushed
    }
}

/// Receipts of a UC queue pair, of both its halves.
#[derive(Debug)]
pub(crate) struct UcReceipts {
    pub(crate) sender: ReceiptSender,
    /// The peer answers packets that ask.
    is_used: bool,
    /// A receipt has come since the queue pair was connected.
    is_answered: bool,
    /// The first packet that has asked in vain since the last receipt.
    silent: Option<Mark>,
    /// How long a receipt is waited for.
    wait: Nanos,
    /// Bytes that may be sent without a receipt.
    budget: u64,
    /// Probes since credits came.
    probes: u8,
    /// Credits do not count until the peer announces a receive.
    ignores_credits: bool,
    /// Since when messages wait for a receive of the peer.
    starved_since: Option<Nanos>,
    /// First PSN, and the PSN behind the last that a receipt has covered.
    base: Psn,
    covered: Psn,
    /// Messages begun that take a receive; those at the last mark; and how many there may be.
    messages: u32,
    asked_messages: u32,
    message_limit: Option<u32>,
    /// Bytes sent, those up to the last mark, and those that receipts have covered.
    sent_bytes: u64,
    marked_bytes: u64,
    covered_bytes: u64,
    /// Packets that did not arrive, modulo 2^16, by the last receipt.
    missing: u16,
    echoed: EchoedCounts,
    marks: Marks,
}

impl Default for UcReceipts {
    fn default() -> UcReceipts {
        UcReceipts {
            sender: ReceiptSender::default(),
            is_used: false,
            is_answered: false,
            silent: None,
            wait: RECEIPT_WAIT,
            budget: BUDGET_FIRST,
            probes: 0,
            ignores_credits: false,
            starved_since: None,
            base: Psn::default(),
            covered: Psn::default(),
            messages: 0,
            asked_messages: 0,
            message_limit: None,
            sent_bytes: 0,
            marked_bytes: 0,
            covered_bytes: 0,
            missing: 0,
            echoed: EchoedCounts::default(),
            marks: Marks::default(),
        }
    }
}

impl UcReceipts {
    /// The peer answers packets that ask, or does not.
    pub(crate) fn set_used(&mut self, is_used: bool) {
        if self.is_used != is_used {
            let (base, sender) = (self.base, std::mem::take(&mut self.sender));
            let covered = self.covered;
            *self = UcReceipts { sender, is_used, base, covered, message_limit: Some(FIRST), ..UcReceipts::default() };
        }
    }
    /// The queue pair goes to RESET.
    pub(crate) fn reset(&mut self) {
        *self = UcReceipts { is_used: self.is_used, message_limit: Some(FIRST), ..UcReceipts::default() };
    }
    /// The queue pair enters RTS; its first packet will have PSN `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        (self.base, self.covered) = (psn, psn);
    }
    /// Nothing is sent any more.
    pub(crate) fn stop(&mut self) {
        self.forget_marks();
        self.starved_since = None;
    }
    /// Nothing that was sent counts as in flight any more.
    fn forget_marks(&mut self) {
        (self.marks.first, self.marks.count) = (0, 0);
        (self.marked_bytes, self.covered_bytes) = (self.sent_bytes, self.sent_bytes);
    }
    /// No receipt came for what was sent before PSN `sent`. True if one came before that: the peer has answered until now.
    fn time_out(&mut self, sent: Psn) -> bool {
        let is_first = self.silent.is_none() && self.is_answered;
        let oldest = self.marks.oldest();
        self.silent = self.silent.or(oldest);
        self.forget_marks();
        self.covered = sent;
        self.budget = (self.budget / 2).max(BUDGET_MIN);
        is_first
    }
    /// Bytes sent without a receipt.
    fn unanswered_bytes(&self) -> u64 {
        debug_assert!(self.covered_bytes <= self.sent_bytes);
        self.sent_bytes - self.covered_bytes
    }
    /// Bytes that may be sent before a receipt comes; any packet, if nothing is without one.
    fn budget_left(&self) -> u64 {
        match self.unanswered_bytes() {
            0 => BUDGET_MAX,
            unanswered => self.budget.saturating_sub(unanswered),
        }
    }
    /// Bytes sent up to the last packet that asked, without those that receipts have covered.
    pub(crate) fn inflight_bytes(&self) -> u64 {
        if self.is_used { self.marked_bytes - self.covered_bytes } else { 0 }
    }
    /// Messages that may be begun; `None` if they are not limited.
    fn credits(&self) -> Option<u32> {
        let limit = self.message_limit.filter(|_| self.is_used && !self.ignores_credits)?;
        Some((limit.wrapping_sub(self.messages) as i32).max(0) as u32)
    }
    fn packets_max(&self) -> i32 {
        if self.is_answered { PACKETS_MAX } else { PACKETS_FIRST }
    }
    /// A packet with this PSN has asked.
    fn mark(&mut self, psn: Psn, now: Nanos) {
        let &mut UcReceipts { messages, sent_bytes: bytes, .. } = self;
        self.marks.push(Mark { psn, messages, bytes, at: now });
        (self.marked_bytes, self.asked_messages) = (bytes, messages);
        debug_assert!(self.covered_bytes <= self.marked_bytes && self.marked_bytes <= self.sent_bytes);
    }
    /// Takes a receipt. `sent`: the first PSN that was never sent.
    ///
    /// # Errors
    /// It says nothing new, or cannot be.
    fn take(&mut self, pkt: &Packet<'_>, sent: Psn, env: &mut Env<'_>) -> Result<(), Reason> {
        let (psn, heads) = (pkt.bth.psn, pkt.aeth().zip(pkt.saeth()));
        let Some((Aeth { syndrome: Syndrome::Ack { credit }, .. }, saeth)) = heads else {
            return Err(Reason::UnexpectedResponse);
        };
        if !self.is_used || !psn.is_before(sent) {
            return Err(Reason::UnexpectedResponse);
        }
        let is_old = psn.next().is_before(self.covered);
        // What has timed out is covered, but its receipt may come later than that: the peer is there, and further away.
        let late = self.silent.filter(|first| is_old && !psn.is_before(first.psn));
        if is_old && late.is_none() {
            return Err(Reason::StaleAck);
        }
        let was_silent = self.silent.take().is_some();
        self.is_answered = true;
        let (covered, inflight) = (self.covered, self.inflight_bytes());
        let mut rtt = None;
        if let Some(first) = late {
            self.wait_for(env.now.since(first.at));
        } else {
            self.covered = psn.next();
            rtt = self.take_marks(psn, credit, &saeth, env.now);
        }
        env.fx.acknowledged(&self.echoed.take(&saeth, rtt));
        let missing = (psn.next().diff(self.base) as u16).wrapping_sub(saeth.received_packets);
        // What is missing after a silence has timed out before.
        let lost = missing.wrapping_sub(self.missing) as i16;
        if lost > 0 && !was_silent {
            env.fx.congestion(Signal::Loss);
            // Which ones is not known: they have the mean length of what the receipt covers.
            let (freed, packets) = (inflight - self.inflight_bytes(), self.covered.diff(covered).max(i32::from(lost)));
            env.fx.unacknowledged(freed as i64 * i64::from(lost) / i64::from(packets));
        }
        self.missing = missing;
        Ok(())
    }
    /// Takes the marks up to `psn` for a receipt with this credit code; the round trip, if one asked for it.
    fn take_marks(&mut self, psn: Psn, credit: u8, saeth: &Saeth, now: Nanos) -> Option<Nanos> {
        let mark = self.marks.take_until(psn)?;
        self.budget = (self.budget + (mark.bytes - self.covered_bytes)).min(BUDGET_MAX);
        self.covered_bytes = mark.bytes;
        self.take_credits(mark.messages, credits_of_code(credit));
        if mark.psn != psn {
            return None;
        }
        let (waited, delay) = (now.since(mark.at), u64::from(saeth.delay) * DELAY_UNIT_NS);
        self.wait_for(waited);
        Some(Nanos(waited.0.saturating_sub(delay)))
    }
    /// A receipt has come after this time.
    fn wait_for(&mut self, waited: Nanos) {
        self.wait = Nanos(waited.0.saturating_mul(2)).clamp(RECEIPT_WAIT, RECEIPT_WAIT_MAX);
    }
    /// When `messages` had been begun, the peer had so many receives.
    fn take_credits(&mut self, messages: u32, credits: Option<u32>) {
        self.message_limit = credits.map(|credits| messages.wrapping_add(credits));
        if credits != Some(0) {
            self.ignores_credits = false;
        }
        if self.credits() != Some(0) {
            (self.probes, self.starved_since) = (0, None);
        }
    }
}

/// The limits on sending.
impl Requester {
    /// Why a packet of an unreliable service may not be sent now; `None` if it may.
    #[inline]
    pub(crate) fn receipt_gate(&self, (request, len): (&InflightWqe, u32), window: u64) -> Option<TxState> {
        let receipts = self.receipts.as_deref().filter(|receipts| receipts.is_used)?;
        let begins = self.recovery.next_packet() == 0 && request.takes_credit();
        if begins && receipts.credits() == Some(0) {
            return Some(TxState::Idle);
        }
        if u64::from(len) > window && (window == 0 || receipts.inflight_bytes() > 0) {
            return Some(TxState::Window);
        }
        let exceeds = u64::from(len.max(PACKET_BYTES_MIN)) > receipts.budget_left();
        (exceeds || self.uncovered(receipts) >= receipts.packets_max()).then_some(TxState::Idle)
    }

    /// Packets sent and not covered by a receipt.
    fn uncovered(&self, receipts: &UcReceipts) -> i32 {
        self.recovery.sent_psn().diff(receipts.covered)
    }

    /// Of `count` middle packets, those that may be sent together. `window`: how many the path's window allows.
    pub(crate) fn receipt_run(&self, mtu: u32, (count, window): (u64, u64)) -> u32 {
        let Some(receipts) = self.receipts.as_deref().filter(|receipts| receipts.is_used) else { return count as u32 };
        let unasked = u64::from((ASK_BYTES - 1).saturating_sub(self.since_ack_request) / mtu);
        let distance = (receipts.packets_max() - self.uncovered(receipts) - 1).max(0) as u64;
        let budget = (receipts.budget_left() / u64::from(mtu.max(PACKET_BYTES_MIN))).saturating_sub(1);
        count.min(unasked).min(window).min(distance).min(budget) as u32
    }

    /// Whether this packet of an unreliable service asks for a receipt.
    pub(crate) fn wants_receipt(&self, request: &InflightWqe, len: u32, mtu: u32, budget: &TxBudget) -> bool {
        let Some(receipts) = self.receipts.as_deref().filter(|receipts| receipts.is_used) else { return false };
        let (next, is_last) = (u64::from(len) + u64::from(mtu), self.recovery.next_packet() + 1 == request.packets);
        let counted = u64::from(len.max(PACKET_BYTES_MIN)) + u64::from(mtu.max(PACKET_BYTES_MIN));
        let ends_window = budget.window_bytes < next
            || self.uncovered(receipts) + 1 >= receipts.packets_max()
            || receipts.budget.saturating_sub(receipts.unanswered_bytes()) < counted;
        let begun = receipts.messages.wrapping_add(u32::from(request.takes_credit() && request.packets == 1));
        let is_due = !receipts.is_answered && receipts.marks.count == 0
            || begun.wrapping_sub(receipts.asked_messages) >= ASK_MESSAGES
            || request.takes_credit() && receipts.credits().is_some_and(|credits| credits <= 2);
        ends_window || self.since_ack_request.saturating_add(len) >= ASK_BYTES || is_last && is_due
    }

    /// `packets` of an unreliable service were sent, with `len` bytes.
    #[inline]
    pub(crate) fn count_unreliable(&mut self, (len, packets): (u32, u32)) {
        if let Some(receipts) = &mut self.receipts {
            receipts.sent_bytes += u64::from(len.max(packets * PACKET_BYTES_MIN));
        }
    }

    /// A packet of a request was sent. If the service is unreliable: it may be the first, and have `asked` for a receipt.
    #[inline]
    pub(crate) fn note_unreliable(&mut self, qp: &QpShared, request: &InflightWqe, asked: bool, now: Nanos) {
        if qp.id.qp_type.is_reliable() {
            return;
        }
        let psn = self.recovery.sent_psn().prev();
        let Some(receipts) = &mut self.receipts else { return };
        if psn == request.first_psn && request.takes_credit() {
            receipts.messages = receipts.messages.wrapping_add(1);
        }
        if asked {
            receipts.mark(psn, now);
            if self.ack_deadline == Nanos::NEVER && receipts.is_used {
                self.ack_deadline = now + receipts.wait;
            }
        }
    }

    /// A turn has ended. A requester that was stopped gets a timer if no receipt is under way.
    pub(crate) fn await_receipt(&mut self, now: Nanos) {
        let Some(receipts) = &mut self.receipts else { return };
        if !self.stalled || !receipts.is_used {
            return;
        }
        if receipts.credits() == Some(0) {
            receipts.starved_since.get_or_insert(now);
        }
        if self.ack_deadline == Nanos::NEVER {
            self.ack_deadline = now + Nanos(PROBE_WAIT.0 << receipts.probes.min(PROBE_BACKOFF_MAX));
        }
    }
}

/// What arrives, and timers.
impl Requester {
    /// A receipt.
    pub(crate) fn on_receipt(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let sent = self.recovery.sent_psn();
        let Some(receipts) = &mut self.receipts else { return };
        if let Err(reason) = receipts.take(pkt, sent, env) {
            return env.fx.count(reason);
        }
        self.ack_deadline = if receipts.marks.count > 0 { env.now + receipts.wait } else { Nanos::NEVER };
        self.stalled = false;
    }

    /// No receipt came in time; or it is time to probe for one.
    pub(crate) fn on_receipt_timer(&mut self, env: &mut Env<'_>) {
        let Some(receipts) = self.receipts.as_deref_mut().filter(|_| self.ack_deadline <= env.now) else { return };
        (self.ack_deadline, self.stalled) = (Nanos::NEVER, false);
        let has_asked = receipts.marks.count > 0;
        if has_asked {
            env.fx.count(Reason::UcReceiptTimeout);
            env.fx.congestion(Signal::Unanswered);
            env.fx.unacknowledged(receipts.inflight_bytes() as i64);
            if receipts.time_out(self.recovery.sent_psn()) {
                env.fx.congestion(Signal::Timeout);
            }
        }
        if receipts.starved_since.is_some_and(|since| env.now.since(since) >= STARVED_MAX) {
            (receipts.ignores_credits, receipts.starved_since, receipts.probes) = (true, None, 0);
            return;
        }
        // Only who waits for a receive must ask again before it sends.
        if has_asked && receipts.credits() != Some(0) {
            return;
        }
        receipts.probes = receipts.probes.saturating_add(1);
        self.turn_due |= PROBE;
    }

    /// Sends a probe, which asks for a receipt of all that was sent. False if the batch is full.
    pub(crate) fn push_receipt_probe(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        let psn = self.recovery.sent_psn().prev();
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::UcProbe, qp.dest_qpn, psn) };
        if !env.tx.push(&qp.flow, HeadBuf::new(&bth).as_slice(), &[], 0) {
            return false;
        }
        let Some(receipts) = &mut self.receipts else { return true };
        receipts.mark(psn, env.now);
        self.since_ack_request = 0;
        self.ack_deadline = env.now + receipts.wait;
        true
    }
}
