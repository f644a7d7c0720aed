//! What waits for the copies of a queue pair: completions, acknowledgements, NAKs and the answers to READs.
//!
//! A queue pair with an open ticket is *trailing*. Its state machine goes on as if the bytes were in their memory, because the
//! next packets depend on it, but nothing that says so leaves:
//! - a completion, for whatever memory, is held with the last ticket begun before it;
//! - each position of the responder (ePSN, MSN) is noted with the last ticket begun before it ([`HeldPosition`]). An
//!   acknowledgement or a NAK is held with it. READs behind the last position whose tickets have ended are not answered yet;
//! - an atomic, which would read the memory at once, is asked for again (RNR NAK, [`Reason::CopyPending`]).
//!
//! When tickets have ended ([`crate::Qp::on_copies`]), completions leave first, and then the newest acknowledgement whose ticket
//! has ended becomes due (NSDI'26, 4.4.2: completion before ACK).
//!
//! **Bounds.** At most [`HELD_MAX`] completions, those of requests in flight included, which wait here later. Without room for
//! what a request of the peer may complete it is dropped ([`Reason::CopyQueueFull`]); without room for a turn's requests it does
//! nothing, and timers rest. Acknowledgements, which end what is in flight, always have room. At most [`MARKS_MAX`] positions:
//! beyond that the last one is replaced, so that what belongs to it waits for a later ticket.
//!
//! **Failure.** What waits for the failed ticket or a later one is never said: receives, READs and atomics end in error, the
//! first of them with `LOC_PROT_ERR` and the others flushed; completions of requests that place no bytes here keep their status.
//! The peer gets a NAK (remote operational error) of the first packet whose bytes may be missing.

use crate::ack_report::AckReport;
use crate::api::{Effects, HostPressure, INFLIGHT_WQES_MAX, Signal, XrcSrq};
use crate::copies::{CopyExecutor, CopyProgress, PacketCuts, PlacedBytes, StagedFor, Ticket};
use crate::failure::QpFailure;
use crate::qp_shared::vendor_err;
use crate::records::RecordPool;
use burst_base::heap::{self, OutOfMemory};
use burst_base::verbs::{EventType, WcOpcode, WcStatus};
use burst_base::{Nanos, Psn, Qpn, Reason};
use burst_frame::Flow;
use burst_shm::layout::Cqe;
use burst_span::{Span, Unreachable};
use burst_wire::Syndrome;

/// Most requests that a turn begins, and most receives that a call takes.
pub(crate) const CALL_COMPLETIONS: usize = 128;
/// Completions of a call that only ends what is in flight, besides these: of a receive that is half full, say.
pub(crate) const END_COMPLETIONS: usize = 16;
/// Most completions that wait for the copies of a queue pair.
pub(crate) const HELD_MAX: usize = 4096;
/// Most positions of the responder that wait.
pub(crate) const MARKS_MAX: usize = 64;

/// Completions that a queue pair keeps room for while nothing waits: twice what most calls need.
const HELD_ROOM: usize = 2 * (INFLIGHT_WQES_MAX as usize + CALL_COMPLETIONS);
const fn trail_bytes(held: usize) -> usize {
    held * size_of::<HeldCompletion>() + MARKS_MAX * size_of::<HeldPosition>() + size_of::<Trail>()
}
/// Most bytes that the trail of a queue pair takes.
pub const TRAIL_BYTES_MAX: usize = trail_bytes(2 * HELD_MAX);
/// Most bytes that it takes while nothing waits.
pub const TRAIL_BYTES: usize = trail_bytes(HELD_ROOM);

/// A completion that waits.
#[derive(Clone, Copy)]
struct HeldCompletion {
    ticket: Ticket,
    cq: u32,
    cqe: Cqe,
    solicited: bool,
}

/// A position of the responder, which all bytes in front of `psn` have reached when `ticket` has ended, and the answers for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPosition {
    ticket: Ticket,
    psn: Psn,
    msn: u32,
    ack: Option<(Psn, u32)>,
    nak: Option<(Psn, Syndrome)>,
}

/// What waits for the copies of a queue pair.
pub(crate) struct Trail {
    /// In the order in which they came; those before `completed` have left.
    held: Vec<HeldCompletion>,
    completed: usize,
    /// In the order of PSNs.
    marks: Vec<HeldPosition>,
    /// The last ticket that this queue pair has begun, and how far the executor is.
    last: Ticket,
    done: Ticket,
    /// The position of the responder whose tickets have all ended.
    pub(crate) limit: (Psn, u32),
}

/// The answers that may be sent now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DueAnswers {
    pub(crate) ack: Option<(Psn, u32)>,
    pub(crate) nak: Option<(Psn, Syndrome)>,
}

impl Trail {
    /// A trail on which nothing waits.
    pub(crate) fn new() -> Result<Trail, OutOfMemory> {
        let (last, done) = (Ticket::default(), Ticket::default());
        let limit = (Psn::new(0), 0);
        let marks = heap::with_room(MARKS_MAX)?;
        Ok(Trail { held: Vec::new(), completed: 0, marks, last, done, limit })
    }
    /// Whether a copy has not ended.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.last > self.done
    }
    /// Forgets everything: completions of a queue pair that goes to RESET do not come.
    pub(crate) fn clear(&mut self) {
        self.forget_held();
        self.marks.clear();
        self.done = self.last;
    }
    /// Forgets the completions, and gives back much room: others may wait next.
    fn forget_held(&mut self) {
        self.held.clear();
        self.held.shrink_to(HELD_ROOM);
        self.completed = 0;
    }
    /// Makes room for so many completions. False if there would be too many, or there is no memory.
    pub(crate) fn make_room(&mut self, more: usize) -> bool {
        // Not each time: what has left may be little, and what stays much.
        if 2 * self.completed >= self.held.len() {
            self.held.drain(..self.completed);
            self.completed = 0;
        }
        let wanted = self.held.len() + more;
        let has_room = wanted <= self.held.capacity();
        !self.is_full(more) && (has_room || heap::reserve(&mut self.held, (2 * wanted).min(2 * HELD_MAX)).is_ok())
    }
    /// Whether there is no room for so many more completions, even if there is memory.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.held.len() - self.completed + more > HELD_MAX
    }
    /// A call begins while the responder is at this position.
    pub(crate) fn begin(&mut self, position: (Psn, u32)) {
        if !self.is_open() {
            self.limit = position;
        }
    }
    /// A copy has begun.
    fn note_ticket(&mut self, ticket: Ticket) {
        debug_assert!(ticket > self.last, "tickets rise");
        self.last = self.last.max(ticket);
    }
    /// Holds a completion.
    fn hold(&mut self, cq: u32, cqe: Cqe, solicited: bool) {
        debug_assert!(self.held.len() < self.held.capacity(), "`make_room` came before");
        self.held.push(HeldCompletion { ticket: self.last, cq, cqe, solicited });
    }
    /// Notes the position of the responder after a call, and holds the answers.
    pub(crate) fn note(&mut self, (psn, msn): (Psn, u32), answers: DueAnswers) {
        debug_assert!(self.is_open());
        // The responder may go back to the beginning of a message ([`crate::responder::Responder::leave_selective`]).
        for mark in self.marks.iter_mut().filter(|mark| psn.is_before(mark.psn)) {
            (mark.psn, mark.msn, mark.ack, mark.nak) = (psn, msn, None, None);
        }
        if psn.is_before(self.limit.0) {
            self.limit = (psn, msn);
        }
        let ticket = self.last;
        let is_full = self.marks.len() == MARKS_MAX;
        match self.marks.last_mut().filter(|mark| mark.ticket == ticket || is_full) {
            Some(mark) => {
                let (ack, nak) = (answers.ack.or(mark.ack), answers.nak.or(mark.nak));
                *mark = HeldPosition { ticket, psn, msn, ack, nak };
            }
            None => self.marks.push(HeldPosition { ticket, psn, msn, ack: answers.ack, nak: answers.nak }),
        }
    }
    /// Takes over how far the executor is: completions leave, and the answers that are due are returned. Nothing but what this
    /// queue pair has begun counts, and nothing goes back, whatever the executor says.
    pub(crate) fn advance(&mut self, progress: CopyProgress, fx: &mut dyn Effects) -> DueAnswers {
        self.done = self.done.max(progress.done.min(self.last));
        while let Some(held) = self.held.get(self.completed).filter(|held| held.ticket <= self.done) {
            fx.complete(held.cq, held.cqe, held.solicited);
            self.completed += 1;
        }
        if self.completed == self.held.len() {
            self.forget_held();
        }
        let ended = self.marks.iter().take_while(|mark| mark.ticket <= self.done).count();
        let mut due = DueAnswers::default();
        for mark in self.marks.drain(..ended) {
            self.limit = (mark.psn, mark.msn);
            (due.ack, due.nak) = (mark.ack.or(due.ack), mark.nak.or(due.nak));
        }
        // A gap that was filled meanwhile.
        due.nak = due.nak.filter(|(psn, _)| !psn.is_before(self.limit.0));
        due
    }
    /// Whether the executor says that a copy of this queue pair has failed.
    pub(crate) fn fails_by(&self, progress: CopyProgress) -> bool {
        self.is_open() && progress.failed.is_some_and(|failed| failed <= self.last)
    }
    /// Ends what waits for a copy that has failed: no ticket is open any more. Returns whether a completion says so.
    pub(crate) fn fail(&mut self, fx: &mut dyn Effects) -> bool {
        let mut is_first = true;
        for held in &self.held[self.completed..] {
            let HeldCompletion { cq, mut cqe, solicited, .. } = *held;
            let places = [WcOpcode::RdmaRead, WcOpcode::CompSwap, WcOpcode::FetchAdd].map(|opcode| opcode as u8);
            let depends = cqe.is_recv != 0 || places.contains(&cqe.opcode);
            if depends && cqe.status == WcStatus::Success as u8 {
                let (status, reason) = match std::mem::take(&mut is_first) {
                    true => (WcStatus::LocProtErr, Reason::CopyFailed),
                    false => (WcStatus::WrFlushErr, Reason::Flushed),
                };
                fx.count(reason);
                (cqe.status, cqe.vendor_err) = (status as u8, vendor_err(Some(reason)));
                (cqe.byte_len, cqe.imm, cqe.wc_flags) = (0, 0, 0);
                fx.complete(cq, cqe, true);
            } else {
                fx.complete(cq, cqe, solicited);
            }
        }
        self.clear();
        !is_first
    }
}

/// Takes the results of one call of a queue pair with executors.
pub(crate) struct TrailingEffects<'a> {
    pub(crate) fx: &'a mut dyn Effects,
    pub(crate) trail: &'a mut Trail,
}

impl CopyExecutor for TrailingEffects<'_> {
    fn has_room(&self) -> bool {
        true
    }
    fn place(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable> {
        if span.len() == 0 {
            return Ok(PlacedBytes::Done);
        }
        // None: it could not be opened ([`crate::Qp::use_copies`] came first), or is gone. Memory of a device refuses the bytes.
        let Some(executor) = self.fx.copies() else { return span.write_pieces(pieces).map(|()| PlacedBytes::Done) };
        let placed = executor.place(span, pieces)?;
        if let PlacedBytes::Begun(ticket) = placed {
            self.trail.note_ticket(ticket);
        }
        Ok(placed)
    }
    fn stage(&mut self, span: &Span, cuts: PacketCuts, tag: StagedFor) -> Result<u32, Unreachable> {
        self.fx.copies().ok_or(Unreachable::Gone)?.stage(span, cuts, tag)
    }
    fn staged(&mut self, span: &Span, tag: StagedFor) -> Option<Span> {
        self.fx.copies()?.staged(span, tag)
    }
}

impl Effects for TrailingEffects<'_> {
    fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool) {
        match self.trail.is_open() {
            true => self.trail.hold(cq, cqe, solicited),
            false => self.fx.complete(cq, cqe, solicited),
        }
    }
    fn copies(&mut self) -> Option<&mut dyn CopyExecutor> {
        Some(self)
    }
    fn has_open_copies(&self) -> bool {
        self.trail.is_open()
    }
    fn event(&mut self, qpn: Qpn, event: EventType) {
        self.fx.event(qpn, event);
    }
    fn failed(&mut self, failure: QpFailure) {
        self.fx.failed(failure);
    }
    fn count(&mut self, reason: Reason) {
        self.fx.count(reason);
    }
    fn ah_flow(&self, pd: u32, ah: u32) -> Option<Flow> {
        self.fx.ah_flow(pd, ah)
    }
    fn xrc_srq(&self, domain: u32, srqn: u32) -> Option<&XrcSrq> {
        self.fx.xrc_srq(domain, srqn)
    }
    fn congestion(&mut self, signal: Signal) {
        self.fx.congestion(signal);
    }
    fn acknowledged(&mut self, report: &AckReport) {
        self.fx.acknowledged(report);
    }
    fn round_trip(&mut self, elapsed: Nanos) {
        self.fx.round_trip(elapsed);
    }
    fn unacknowledged(&mut self, bytes: i64) {
        self.fx.unacknowledged(bytes);
    }
    fn host_pressure(&self) -> HostPressure {
        self.fx.host_pressure()
    }
    fn probe_wait_min(&self) -> Nanos {
        self.fx.probe_wait_min()
    }
    fn records(&mut self) -> Option<&mut RecordPool> {
        self.fx.records()
    }
    fn selective_refused(&mut self) {
        self.fx.selective_refused();
    }
}
