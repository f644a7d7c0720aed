//! What a worker's tables hold. Made by the control thread, handed over by commands, shared by `Arc` where several
//! workers use one (completion queues).

use crate::ack_delay::AckDelay;
use crate::endpoint::Endpoint;
use crate::qpn::slot_of;
use crate::sched::{NO_TICKET, ReadyPlace};
use crate::wakes::Wake;
use burst_base::verbs::EventType;
use burst_base::wheel::Wheel;
use burst_base::{DeviceId, Nanos};
use burst_control::events::EventSink;
use burst_control::{AsyncObject, AsyncRecord};
use burst_frame::Flow;
use burst_shm::cq::CqProducer;
use burst_shm::doorbell::DoorbellDrain;
use burst_shm::rq::SrqConsumer;
use burst_transport::XrcSrq;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// No path: the queue pair is not connected.
pub const NO_PATH: u32 = u32::MAX;

/// No doorbell: nothing is posted to the queue pair itself.
pub const NO_DOORBELL: u32 = u32::MAX;

/// A completion queue, as all workers see it.
#[derive(Debug)]
pub struct CqShared {
    /// The ring.
    pub producer: CqProducer,
    /// Where events go, if the queue has a channel.
    pub channel: Option<Arc<dyn EventSink>>,
    /// Written to the channel for each event.
    pub cookie: u64,
    /// The context's asynchronous events.
    pub async_events: Arc<dyn EventSink>,
    /// Whether the overrun has been reported.
    pub overrun_reported: AtomicBool,
}

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub struct AddressHandle {
    /// Its protection domain.
    pub pd: u32,
    /// Where to.
    pub flow: Flow,
}

/// A context, as a worker sees it.
#[derive(Debug)]
pub struct ContextSlot {
    /// This worker's doorbells of the context.
    pub doorbells: DoorbellDrain,
    /// Queue pair slot behind each doorbell number.
    pub queues: Vec<u32>,
    /// Asynchronous events.
    pub async_events: Arc<dyn EventSink>,
    /// How its program wakes the worker; none in a worker that does not sleep.
    pub wake: Option<Wake>,
}

/// A shared receive queue, as the queue pairs that use it see it.
#[derive(Debug)]
pub struct SrqShared {
    /// The ring.
    pub consumer: Arc<SrqConsumer>,
    /// An event is owed when fewer receives are left; 0: no.
    pub limit: AtomicU32,
    /// In the event.
    pub cookie: u64,
}

impl SrqShared {
    /// Whether the limit has just been reached; disarms it then.
    pub fn limit_reached(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit > 0
            && self.consumer.pending() < limit
            && self.limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A shared receive queue of an XRC domain, as all workers see it.
#[derive(Clone, Debug)]
pub struct XrcEntry {
    /// What requests to it use.
    pub srq: XrcSrq,
    /// Its limit; the ring is `srq.queue` too.
    pub shared: Arc<SrqShared>,
    /// Asynchronous events of its context.
    pub async_events: Arc<dyn EventSink>,
}

/// A context that holds a queue pair and gets its events.
#[derive(Clone, Debug)]
pub struct QpHolder {
    /// Context.
    pub context: u32,
    /// Asynchronous events of the context.
    pub async_events: Arc<dyn EventSink>,
    /// In asynchronous events.
    pub event_cookie: u64,
}

/// A queue pair in a worker's table.
pub struct QpSlot {
    /// The protocol's end.
    pub endpoint: Endpoint,
    /// Its number, generation included.
    pub qpn: burst_base::Qpn,
    /// Device.
    pub device: DeviceId,
    /// Doorbell number in its context, or [`NO_DOORBELL`].
    pub doorbell: u32,
    /// The context that is charged for its turns.
    pub holder: QpHolder,
    /// Further contexts that hold it: an XRC target may be opened by many.
    pub other_holders: Vec<QpHolder>,
    /// Its shared receive queue.
    pub srq: Option<Arc<SrqShared>>,
    /// What making it took, at most 4 s; for the probe of its connection.
    pub made_ns: u32,
    /// Path to the peer, or [`NO_PATH`].
    pub(crate) path: u32,
    pub(crate) inflight_seen: u64,
    /// Its place in line for a turn, or [`NO_TICKET`].
    pub(crate) ticket: u32,
    pub(crate) waiting: bool,
    /// Whether it got packets in this burst.
    pub(crate) touched: bool,
    /// Whether the receive completions of this burst wait for its end.
    pub(crate) receives_last: bool,
    pub(crate) ack_delay: AckDelay,
    pub(crate) armed: Nanos,
}

/// Whether the queue pair of a slot stands in line for a turn by this place.
pub(crate) fn is_ready(qps: &[Option<Box<QpSlot>>], place: ReadyPlace) -> bool {
    qps.get(place.qp as usize).and_then(Option::as_ref).is_some_and(|slot| slot.ticket == place.ticket)
}

impl QpSlot {
    /// A slot for a queue pair that has not been scheduled yet.
    pub fn new(
        endpoint: impl Into<Endpoint>,
        qpn: burst_base::Qpn,
        device: DeviceId,
        doorbell: u32,
        holder: QpHolder,
    ) -> QpSlot {
        QpSlot {
            endpoint: endpoint.into(),
            qpn,
            device,
            doorbell,
            holder,
            other_holders: Vec::new(),
            srq: None,
            made_ns: 0,
            path: NO_PATH,
            inflight_seen: 0,
            ticket: NO_TICKET,
            waiting: false,
            touched: false,
            receives_last: false,
            ack_delay: AckDelay::default(),
            armed: Nanos::NEVER,
        }
    }
}

impl QpSlot {
    /// Looks after it at `at`, or before.
    pub(crate) fn wake_by(&mut self, wheel: &mut Wheel, at: Nanos) {
        if at < self.armed {
            self.armed = at;
            wheel.insert(slot_of(self.qpn), at);
        }
    }
}

/// Writes an asynchronous event; a lost one is the application's own loss.
pub fn write_async(sink: &dyn EventSink, event: EventType, object: AsyncObject, cookie: u64) -> bool {
    sink.write(&AsyncRecord { event: event as u32, object, cookie }.to_bytes()).is_ok()
}
