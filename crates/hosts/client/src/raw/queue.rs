//! Queue ends in shared memory, and the core of posting.
//!
//! The daemon names the place of each queue; the queue ends of [`burst_shm`] check that the place has the size that both sides
//! computed. Posting writes requests into the ring under the queue's lock, publishes them together, and rings the doorbell
//! only if the daemon has declared the queue idle. No allocation, and no system call unless the worker sleeps.

use super::RawContext;
use super::cookies::SendSlots;
use super::lock::SpinLock;
use super::prealloc::PreallocQp;
use crate::error::{ClientError, Result};
use burst_control::{CqInitAttr, CqPlace, QpInitAttr, QueuePlace, Request, Response, SrqInitAttr};
use burst_shm::cq::{CqConsumer, CqSpec};
use burst_shm::rq::{RqProducer, RqSpec};
use burst_shm::sq::{SqProducer, SqSpec};
use burst_shm::{CQE_MAX, rq_stride, sq_stride};

const GEOMETRY: ClientError = ClientError::Unexpected("a queue whose size is not the one computed here");

/// The posting end of a send queue at its place.
///
/// # Errors
/// When the daemon and this library disagree on the queue's size or place.
pub fn send_queue(context: &RawContext, place: &QueuePlace, max_inline: u32) -> Result<SqProducer> {
    let spec = SqSpec::new(place.entries, place.max_sge, max_inline).ok_or(GEOMETRY)?;
    if spec.entries() != place.entries || sq_stride(place.max_sge, max_inline) != place.stride {
        return Err(GEOMETRY);
    }
    SqProducer::new(context.area(place.place, spec.bytes())?, spec).ok_or(GEOMETRY)
}

fn rq_spec(place: &QueuePlace) -> Result<RqSpec> {
    let spec = RqSpec::new(place.entries, place.max_sge).ok_or(GEOMETRY)?;
    let same = spec.entries() == place.entries && rq_stride(place.max_sge) == place.stride;
    if same { Ok(spec) } else { Err(GEOMETRY) }
}

/// The posting end of a receive queue, shared or not, at its place.
///
/// # Errors
/// As [`send_queue`].
pub fn receive_queue(context: &RawContext, place: &QueuePlace) -> Result<RqProducer> {
    let spec = rq_spec(place)?;
    RqProducer::new(context.area(place.place, spec.bytes())?, spec).ok_or(GEOMETRY)
}

/// The posting end of a shared receive queue that the daemon has moved to another place, after `written` receives.
///
/// # Errors
/// As [`send_queue`].
pub fn resumed_receive_queue(context: &RawContext, place: &QueuePlace, written: u32) -> Result<RqProducer> {
    let spec = rq_spec(place)?;
    RqProducer::resume(context.area(place.place, spec.bytes())?, spec, written).ok_or(GEOMETRY)
}

/// The size of a completion ring in the daemon's reply.
///
/// # Errors
/// As [`send_queue`].
pub fn cq_spec(place: &CqPlace) -> Result<CqSpec> {
    CqSpec::new(place.entries).filter(|s| s.entries() == place.entries).ok_or(GEOMETRY)
}

/// Creates a completion queue. Returns the daemon's handle and the consumer's end.
///
/// # Errors
/// EINVAL for a number of entries out of range; else the daemon's refusal.
pub fn create_cq(context: &RawContext, init: CqInitAttr) -> Result<(u32, CqConsumer)> {
    if !(1..=CQE_MAX).contains(&init.entries) {
        return Err(ClientError::Invalid("a completion queue needs an entry, and has at most max_cqe"));
    }
    let Response::Cq { cq, ring } = context.ask(&Request::CreateCq(init))? else {
        return Err(ClientError::Unexpected("no completion queue"));
    };
    let spec = cq_spec(&ring)?;
    let consumer = CqConsumer::new(context.area(ring.place, spec.bytes())?, spec).ok_or(GEOMETRY)?;
    Ok((cq, consumer))
}

/// A shared receive queue as created.
#[derive(Debug)]
pub struct RawSrq {
    /// The daemon's handle.
    pub handle: u32,
    /// The posting end.
    pub ring: RqProducer,
    /// Work requests granted.
    pub max_wr: u32,
    /// SGEs per work request granted.
    pub max_sge: u32,
    /// Number in its XRC domain; 0 outside of any.
    pub srqn: u32,
}

/// Creates a shared receive queue.
///
/// # Errors
/// The daemon's refusal.
pub fn create_srq(context: &RawContext, init: SrqInitAttr) -> Result<RawSrq> {
    let Response::Srq { srq: handle, queue, max_wr, srqn } = context.ask(&Request::CreateSrq(init))? else {
        return Err(ClientError::Unexpected("no shared receive queue"));
    };
    Ok(RawSrq { handle, ring: receive_queue(context, &queue)?, max_wr, max_sge: queue.max_sge, srqn })
}

/// A queue pair as created, with its mapped queues.
#[derive(Debug)]
pub struct RawQp {
    /// The daemon's grant and the library's cookies.
    pub made: PreallocQp,
    /// The send queue.
    pub sq: SqProducer,
    /// The receive queue; none with a shared receive queue.
    pub rq: Option<RqProducer>,
}

/// Creates a queue pair, or takes a preallocated one. The caller enters its [`SendSlots`] under the cookie
/// ([`RawContext::send_slots`]), and removes the cookie when the queue pair ends.
///
/// # Errors
/// The daemon's refusal.
pub fn create_qp(context: &RawContext, init: &QpInitAttr) -> Result<RawQp> {
    let made = context.prealloc().take(context, init)?;
    let queues = send_queue(context, &made.grant.sq, made.grant.cap.max_inline_data).and_then(|sq| {
        let rq = made.grant.rq.as_ref().map(|place| receive_queue(context, place)).transpose()?;
        Ok((sq, rq))
    });
    let (sq, rq) = queues.inspect_err(|_| context.send_slots.remove(made.name.cookie))?;
    Ok(RawQp { made, sq, rq })
}

/// The doorbell of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueDoorbell {
    /// Worker that owns the queue pair.
    pub worker: usize,
    /// Number of the doorbell at that worker.
    pub number: u32,
}

impl QueueDoorbell {
    /// Rings the doorbell.
    #[inline]
    pub fn ring(self, context: &RawContext) {
        context.doorbells.ring(self.worker, self.number);
    }
}

/// The data under the lock of a send queue: the ring, and data of the queue's owner.
#[derive(Debug)]
pub struct SendSide<X> {
    /// The ring.
    pub ring: SqProducer,
    /// Data of the owner.
    pub extra: X,
}

/// The posting end of a send queue.
#[derive(Debug)]
pub struct SendQueue<X> {
    /// The ring under its lock.
    pub side: SpinLock<SendSide<X>>,
    /// Entries that completions have freed.
    pub slots: SendSlots,
    /// The queue pair's doorbell.
    pub doorbell: QueueDoorbell,
}

impl<X: Default> SendQueue<X> {
    /// A send queue over its ring.
    pub fn new(ring: SqProducer, doorbell: QueueDoorbell) -> SendQueue<X> {
        let side = SpinLock::new(SendSide { ring, extra: X::default() });
        SendQueue { side, slots: SendSlots::default(), doorbell }
    }

    /// Publishes all requests that `write` writes into the ring together.
    #[inline(always)]
    pub fn post<R>(&self, context: &RawContext, write: impl FnOnce(&mut SqProducer) -> R) -> R {
        let mut side = self.side.lock();
        let ring = &mut side.ring;
        let before = ring.written();
        ring.free(self.slots.retired());
        let result = write(ring);
        let rings = ring.written() != before && ring.post();
        self.slots.set_posted(ring.written());
        drop(side);
        if rings {
            self.doorbell.ring(context);
        }
        result
    }

    /// After a move to RESET: no entry posted before will complete, so all are free.
    pub fn free_all(&self) {
        let mut side = self.side.lock();
        side.ring.free_all();
        self.slots.set_retired(side.ring.written());
        self.slots.set_posted(side.ring.written());
    }

    /// Whether anything was ever posted.
    pub fn was_used(&self) -> bool {
        self.side.lock().ring.written() != 0
    }
}
