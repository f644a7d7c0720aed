//! Entries of a worker's tables. The control thread makes them and passes them by commands; completion queues and shared receive
//! queues, which several workers use, are shared by `Arc`.

use crate::histograms::{Measure, TimedRequest, WorkHistograms};
use crate::outbox::Completions;
use crate::paths::NOT_WAITING;
use crate::paths::path::Path;
use crate::runner::wakes::Wake;
use crate::tally::{LastPackets, ReasonTally};
use crate::timers::ack_delay::AckDelay;
use crate::tombstone::Tombstone;
use crate::transmit::priority::class_of;
use crate::transmit::sched::{NO_TICKET, ReadyPlace, ReceivedWork, URMA_ENTRY};
use burst_base::verbs::{EventType, QpState, QpType};
use burst_base::wheel::Wheel;
use burst_base::{DeviceId, Nanos};
use burst_cm::CmIds;
use burst_control::events::EventSink;
use burst_control::failures::FailedProgram;
use burst_control::{AsyncObject, AsyncRecord};
use burst_frame::{Flow, TxBatch};
use burst_ledger::Account;
use burst_mem::holes::FillAllowance;
use burst_shm::cq::CqProducer;
use burst_shm::doorbell::DoorbellDrain;
use burst_shm::rq::SrqConsumer;
use burst_transport::{Qp, XrcSrq};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Instead of a path's index: the queue pair is not connected.
pub const NO_PATH: u32 = u32::MAX;

/// Instead of a doorbell's number: programs post nothing to the queue pair itself.
pub const NO_DOORBELL: u32 = u32::MAX;

/// A completion queue, as all workers share it.
#[derive(Debug)]
pub struct EngineCq {
    /// The ring.
    pub producer: CqProducer,
    /// The completion channel, if the queue has one.
    pub channel: Option<Arc<dyn EventSink>>,
    /// The record of each completion event.
    pub cookie: u64,
    /// Sink of the context's asynchronous events.
    pub async_events: Arc<dyn EventSink>,
    /// Whether the overrun has been reported.
    pub overrun_reported: AtomicBool,
}

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub struct AddressHandle {
    /// Number of the protection domain.
    pub pd: u32,
    /// The flow to the destination.
    pub flow: Flow,
}

/// A context in a worker's table.
#[derive(Debug)]
pub struct ContextSlot {
    /// The account of the program's user.
    pub account: Account,
    /// The program, for records of failures.
    pub program: FailedProgram,
    /// Counts the pages that this process allocates in the files of the account's programs; none for a trusted account.
    pub fills: Option<Arc<FillAllowance>>,
    /// The doorbells of the context at this worker.
    pub doorbells: DoorbellDrain,
    /// Entry of the queue pair of each doorbell number.
    pub queues: Vec<u32>,
    /// Asynchronous events.
    pub async_events: Arc<dyn EventSink>,
    /// The program's wake-up of the worker; none in a worker that does not sleep.
    pub wake: Option<Wake>,
}

impl ContextSlot {
    /// From now on a doorbell rings for this entry of the table of queue pairs.
    pub(crate) fn set_queue(&mut self, doorbell: u32, entry: u32) {
        let doorbell = doorbell as usize;
        if self.queues.len() <= doorbell {
            self.queues.resize(doorbell + 1, u32::MAX);
        }
        debug_assert_eq!(self.queues[doorbell], u32::MAX, "doorbell {doorbell} is in use");
        self.queues[doorbell] = entry;
    }
    /// From now on a doorbell rings for nothing.
    pub(crate) fn clear_queue(&mut self, doorbell: u32) {
        if let Some(queue) = self.queues.get_mut(doorbell as usize) {
            *queue = u32::MAX;
        }
    }
}

/// A shared receive queue, as its queue pairs share it.
#[derive(Debug)]
pub struct SrqShared {
    /// The ring.
    pub consumer: Arc<SrqConsumer>,
    /// SRQ_LIMIT_REACHED is reported when fewer receives than this are left; 0: never.
    pub limit: AtomicU32,
    /// Identifies the queue in asynchronous events.
    pub cookie: u64,
}

impl SrqShared {
    /// Writes an event if the limit has been reached.
    pub(crate) fn report_limit(&self, async_events: &dyn EventSink) {
        if self.limit_reached() {
            write_async(async_events, EventType::SrqLimitReached, AsyncObject::Srq, self.cookie);
        }
    }
    /// Whether the limit has been reached; disarms it then.
    fn limit_reached(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit > 0
            && self.consumer.pending() < limit
            && self.limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A shared receive queue of an XRC domain, as all workers have it.
#[derive(Clone, Debug)]
pub struct XrcEntry {
    /// The part that the transport uses.
    pub srq: XrcSrq,
    /// Ring and limit. The ring is the same as `srq.queue`.
    pub shared: Arc<SrqShared>,
    /// Sink of the asynchronous events of its context.
    pub async_events: Arc<dyn EventSink>,
}

/// A context that holds a queue pair and gets its events.
#[derive(Clone, Debug)]
// What turns use comes first: see `receive::prefetch`.
#[repr(C)]
pub struct QpHolder {
    /// Number of the context.
    pub context: u32,
    /// Number of the queue pair, which [`QpSlot::new`] sets.
    pub qpn: u32,
    /// Identifies the queue pair in asynchronous events.
    pub event_cookie: u64,
    /// Number of the hold, which rises with each holder of the same queue pair. 0 for the first.
    pub hold: u64,
    /// Sink of the asynchronous events of the context.
    pub async_events: Arc<dyn EventSink>,
}

/// A queue pair in a worker's table.
// In the order of use, a line at its beginning. Behind the protocol's end is one line that turns and packets use, up to the
// number of the context: see `receive::prefetch`.
#[repr(C, align(64))]
pub struct QpSlot {
    /// The protocol's end.
    pub qp: Qp,
    /// Index of the path to the peer, or [`NO_PATH`].
    pub(crate) path: u32,
    /// Ticket of its place in the ready queue, or [`NO_TICKET`].
    pub(crate) ticket: u32,
    /// Ticket of its place in the line of its path, or [`NOT_WAITING`].
    pub(crate) waiting: u32,
    /// Device.
    pub device: DeviceId,
    /// Whether it got packets in this burst.
    pub(crate) burst: BurstState,
    /// Whether `srq` or `responses_seen` is to be looked at when it settles.
    pub(crate) has_more: bool,
    /// What it has received in this burst.
    pub(crate) received: ReceivedWork,
    pub(crate) ack_delay: AckDelay,
    /// Its bytes in flight when it last settled, which its path has counted.
    pub(crate) inflight_seen: u64,
    /// Deadline of its timer in the wheel, [`Nanos::NEVER`] if it has none.
    pub(crate) armed: Nanos,
    /// The context that is charged for its turns, and for the packets that it receives.
    pub holder: QpHolder,
    /// Its entry in the worker's table.
    pub(crate) index: u32,
    /// Queue pair number, generation included.
    pub qpn: burst_base::Qpn,
    /// Its context's entry in the line of its path.
    pub(crate) line: u32,
    /// Ticket of its place among those that wait for the rate only, or [`NOT_WAITING`].
    pub(crate) answering: u32,
    /// Those of READ responses among `inflight_seen`.
    pub(crate) responses_seen: u64,
    /// The shared receive queue, if it has one.
    pub srq: Option<Arc<SrqShared>>,
    /// Number of its doorbell in its context, or [`NO_DOORBELL`].
    pub doorbell: u32,
    /// Nanoseconds that its creation took, 4 s at most. For the tracepoint of its connection.
    pub made_ns: u32,
    /// When a marked packet is next answered by a congestion notification.
    pub(crate) cnp_from: Nanos,
    /// What its packets have met, for a record of its failure.
    pub(crate) tally: ReasonTally,
    /// Its request that is timed.
    pub(crate) timed: TimedRequest,
    /// Its last packets, for that record.
    pub(crate) last: LastPackets,
    /// Further contexts that hold it, by number of the hold: an XRC target may be opened by many.
    pub other_holders: OtherHolders,
}

/// Contexts besides the first one that hold a queue pair, by number of the hold. Most queue pairs have none, and one pointer.
#[derive(Debug, Default)]
pub struct OtherHolders(Option<Box<HoldersByNumber>>);

#[derive(Debug, Default)]
struct HoldersByNumber(BTreeMap<u64, QpHolder>);

impl OtherHolders {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &QpHolder> {
        self.0.iter().flat_map(|holders| holders.0.values())
    }
    /// Adds one; returns that of the same number.
    pub fn insert(&mut self, holder: QpHolder) -> Option<QpHolder> {
        self.0.get_or_insert_default().0.insert(holder.hold, holder)
    }
    /// Removes that of a number.
    pub fn remove(&mut self, hold: u64) {
        if let Some(holders) = &mut self.0 {
            holders.0.remove(&hold);
        }
    }
    /// Takes the oldest one.
    pub fn pop_first(&mut self) -> Option<QpHolder> {
        self.0.as_mut()?.0.pop_first().map(|(_, holder)| holder)
    }
}

/// Offset of the line of a slot's own fields that turns and packets use.
const OWN: usize = offset_of!(QpSlot, path);

const LINE: usize = 64;
// A line more would cost each idle queue pair as much.
const _: () = assert!(size_of::<QpSlot>() <= 19 * LINE);
// The transport counts the lines of a queue pair from its beginning.
const _: () = assert!(offset_of!(QpSlot, qp) == 0 && align_of::<QpSlot>() == LINE && OWN.is_multiple_of(LINE));
const _: () = assert!(offset_of!(QpSlot, holder) + offset_of!(QpHolder, context) + size_of::<u32>() <= OWN + LINE);

/// What a queue pair has got in a receive burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BurstState {
    /// No packets.
    #[default]
    Untouched,
    /// Packets, whose completions become visible at once.
    Touched,
    /// Packets, whose receive completions wait for the end of the burst.
    ReceivesLast,
}

/// The slot at an entry, if there is one.
#[inline]
pub(crate) fn slot_at(qps: &[Option<Box<QpSlot>>], index: u32) -> Option<&QpSlot> {
    qps.get(index as usize).and_then(Option::as_deref)
}

/// Whether the queue pair at this place of the ready queue is still ready by it.
pub(crate) fn is_ready(qps: &[Option<Box<QpSlot>>], place: ReadyPlace) -> bool {
    qps.get(place.qp as usize).and_then(Option::as_ref).is_some_and(|slot| slot.ticket == place.ticket)
}

/// Whether the queue pair at this place of a path's line still waits by it, or the path's channels of URMA, which have the ticket
/// that comes with the path's number.
pub(crate) fn waits_for(qps: &[Option<Box<QpSlot>>], (path, channels): (u32, u32), place: ReadyPlace) -> bool {
    if place.qp == URMA_ENTRY {
        return place.ticket == channels;
    }
    let slot = qps.get(place.qp as usize).and_then(Option::as_ref);
    slot.is_some_and(|slot| slot.path == path && slot.waiting == place.ticket)
}

/// Whether the queue pair at this place still waits by it for nothing but the rate of this path.
pub(crate) fn answers_by(qps: &[Option<Box<QpSlot>>], path: u32, place: ReadyPlace) -> bool {
    slot_at(qps, place.qp).is_some_and(|slot| slot.path == path && slot.answering == place.ticket)
}

impl QpSlot {
    /// The tombstone of the queue pair, if its process died now.
    pub(crate) fn tombstone(&self, flow: Flow, cm: Option<CmIds>) -> Tombstone {
        let (qp, device) = (&self.qp, self.device);
        let (peer, is_xrc) = (qp.query().dest_qpn, qp.qp_type().is_xrc());
        Tombstone { qpn: self.qpn, peer, is_xrc, cm, device, flow, until: Nanos(0), expected: None }
    }

    /// A slot for a queue pair that has not been scheduled yet.
    pub fn new(qp: Qp, qpn: burst_base::Qpn, device: DeviceId, doorbell: u32, holder: QpHolder) -> QpSlot {
        debug_assert!(qpn.get() != 0, "0 says that a packet belongs to no queue pair");
        debug_assert!(holder.qpn == 0 || holder.qpn == qpn.get(), "a holder of another queue pair");
        QpSlot {
            qp,
            qpn,
            index: 0,
            device,
            doorbell,
            holder: QpHolder { qpn: qpn.get(), ..holder },
            other_holders: OtherHolders::default(),
            srq: None,
            made_ns: 0,
            path: NO_PATH,
            inflight_seen: 0,
            responses_seen: 0,
            ticket: NO_TICKET,
            waiting: NOT_WAITING,
            line: 0,
            answering: NOT_WAITING,
            burst: BurstState::Untouched,
            has_more: false,
            received: ReceivedWork::default(),
            ack_delay: AckDelay::default(),
            armed: Nanos::NEVER,
            cnp_from: Nanos(0),
            timed: TimedRequest::default(),
            tally: ReasonTally::default(),
            last: LastPackets::default(),
        }
    }
}

impl QpSlot {
    /// Whether a time-out says something of the path. A flight without answer says nothing of a path that answers others. Nor
    /// does a timer of a queue pair that has nothing in flight: it waits for the rate, which each time-out would halve.
    #[inline]
    pub(crate) fn times_out_path(&self, now: Nanos, path: &Path, is_unanswered: bool) -> bool {
        match is_unanswered {
            true => path.is_silent(now),
            false => self.inflight_seen > 0 && (path.is_acked_by(self.index) || path.is_silent(now)),
        }
    }

    /// Adds the time of its timed request, if that has ended.
    #[inline]
    pub(crate) fn end_timed(&mut self, now: Nanos, histograms: &mut WorkHistograms) {
        if self.timed.is_running()
            && let Some(took) = self.timed.end(now, self.qp.ended_requests())
        {
            histograms.add(Measure::Message, took);
        }
    }

    /// Notes that it gets packets in this burst of `now`, among those in `touched`. Returns when the completions of these packets
    /// become visible.
    #[inline]
    pub(crate) fn touch(&mut self, now: Nanos, touched: &mut Vec<u32>) -> Completions {
        if self.burst == BurstState::Untouched {
            // Decided once per burst, so that receive completions of one burst keep their order.
            let awaits = self.qp.awaits_acknowledgement();
            self.burst = if awaits { BurstState::ReceivesLast } else { BurstState::Touched };
            self.last.received_at(now);
            touched.push(self.index);
        }
        if self.burst == BurstState::ReceivesLast { Completions::ReceivesLast } else { Completions::Visible }
    }
    /// Notes what it has sent in a call: the frames of the batch from number `first` on.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, now: Nanos, batch: &mut TxBatch, first: usize) {
        if batch.len() > first {
            self.last.sent(now, batch.last_packet());
            if batch.is_captured() {
                batch.sign(first, self.qpn.get());
            }
        }
    }
    /// Prefetches the lines that a turn, or the packet of a requester, uses.
    #[inline(always)]
    pub fn prefetch_requester(&self, is_selective: bool) {
        self.qp.prefetch_requester(is_selective);
        self.prefetch_own();
    }
    /// Prefetches the lines that the packet of a responder uses.
    #[inline(always)]
    pub fn prefetch_responder(&self) {
        self.qp.prefetch_responder();
        self.prefetch_own();
    }
    #[inline(always)]
    fn prefetch_own(&self) {
        burst_span::prefetch_line(std::ptr::from_ref(self).cast::<u8>().wrapping_add(OWN));
    }
    /// Whether it has failed, so that it sends nothing and its requests are flushed.
    #[inline]
    pub(crate) fn is_in_error(&self) -> bool {
        self.qp.state() == QpState::Err
    }
    /// Whether sent messages are never acknowledged and count for the next hop's store.
    #[inline]
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.qp.qp_type() == QpType::Uc
    }
    /// Whether a message that is lost stays lost, so that it must wait until the next hop is known. Flushed requests are not
    /// sent.
    #[inline]
    pub(crate) fn sends_unacknowledged(&self) -> bool {
        self.is_unacknowledged() && matches!(self.qp.state(), QpState::Rts | QpState::Sqd)
    }
    /// The class in which it waits for its turns.
    #[inline]
    pub(crate) fn priority(&self) -> usize {
        class_of(self.qp.flow().tos)
    }
    /// Counts a change of its bytes in flight for its path.
    #[inline(always)]
    pub(crate) fn count_inflight(&mut self, now: Nanos, inflight: u64, path: Option<&mut Path>) {
        if let Some(path) = path {
            path.is_recovering = self.qp.is_recovering();
            path.moved(now, self.index, self.inflight_seen, inflight);
            let responses = self.qp.response_bytes();
            if responses > 0 || self.has_more {
                path.responses_moved(self.responses_seen, responses);
                self.responses_seen = responses;
                self.has_more = self.srq.is_some() || responses > 0;
            }
        }
        self.inflight_seen = inflight;
    }
    /// Whether the window of its path has room for its next packet.
    #[inline]
    pub(crate) fn has_room_on(&self, path: &Path) -> bool {
        path.has_room(self.inflight_seen - self.responses_seen, self.qp.next_bytes())
    }
    /// Whether it must wait for its own acknowledgements before it sends more on its path.
    pub(crate) fn is_hopeless_on(&self, path: &Path) -> bool {
        path.is_hopeless(self.inflight_seen - self.responses_seen, self.qp.next_bytes())
    }
    /// So many bytes that it had in flight do not count for its path any more, and were not acknowledged; below 0: as many bytes
    /// are acknowledged that did not count.
    #[cold]
    pub(crate) fn lose_bytes(&mut self, now: Nanos, path: &mut Path, bytes: i64) {
        path.release(now, self.index, bytes);
        self.inflight_seen = self.inflight_seen.saturating_add_signed(-bytes);
        self.count_responses(path);
    }
    /// It has failed, and what it had in flight does not count for its path any more: that acknowledges nothing.
    #[cold]
    pub(crate) fn release_inflight(&mut self, now: Nanos, path: &mut Path) {
        let inflight = self.qp.inflight_bytes();
        if inflight >= self.inflight_seen {
            return;
        }
        path.release(now, self.index, (self.inflight_seen - inflight) as i64);
        self.inflight_seen = inflight;
        self.count_responses(path);
    }
    /// Counts a change of its bytes of READ responses in flight for its path.
    fn count_responses(&mut self, path: &mut Path) {
        if self.has_more {
            let responses = self.qp.response_bytes();
            path.responses_moved(self.responses_seen, responses);
            self.responses_seen = responses;
        }
    }
    /// Writes the event of its shared receive queue if that has reached its limit.
    #[inline]
    pub(crate) fn report_srq_limit(&self) {
        if self.has_more
            && let Some(srq) = &self.srq
        {
            srq.report_limit(&*self.holder.async_events);
        }
    }
    /// Sets its timer to `at`, unless the timer is due before.
    pub(crate) fn wake_by(&mut self, wheel: &mut Wheel, at: Nanos) {
        if at < self.armed {
            self.armed = at;
            wheel.insert(self.index, at);
        }
    }
}

/// Writes an asynchronous event. Returns false if it was lost because the program does not read its events.
pub fn write_async(sink: &dyn EventSink, event: EventType, object: AsyncObject, cookie: u64) -> bool {
    write_event(sink, event as u32, object, cookie)
}

/// As [`write_async`], for an event that verbs do not have.
pub(crate) fn write_event(sink: &dyn EventSink, event: u32, object: AsyncObject, cookie: u64) -> bool {
    sink.write(&AsyncRecord { event, object, cookie }.to_bytes()).is_ok()
}
