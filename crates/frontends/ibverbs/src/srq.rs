//! Shared receive queues.

use crate::context::Context;
use crate::door::{self, EINVAL, EIO, Outcome};
use crate::event::{Counted, Meter};
use crate::lock::SpinLock;
use crate::pd_mr::pd_of;
use crate::registry::{Source, lock};
use crate::sys::*;
use burst_control::{QueuePlace, Request, Response, SrqInitAttr, XrcSrqAttr};
use burst_shm::rq::{RqProducer, RqSpec};
use burst_shm::rq_stride;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    base: ibv_srq,
    cookie: u64,
    /// Number in its XRC domain, or 0.
    srqn: u32,
    max_wr: AtomicU32,
    max_sge: u32,
    /// The posting end.
    pub queue: SpinLock<RqProducer>,
    /// Asynchronous events.
    pub events: Counted,
}

impl Srq {
    /// The SRQ behind an application's pointer.
    ///
    /// # Safety
    /// `srq` must be NULL or alive.
    #[inline]
    pub unsafe fn from_ibv<'a>(srq: *mut ibv_srq) -> Outcome<&'a Srq> {
        // SAFETY: `base` is the first field.
        unsafe { srq.cast::<Srq>().as_ref() }.ok_or(EINVAL)
    }
    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_srq {
        std::ptr::from_ref(self).cast_mut().cast()
    }
    /// The context.
    ///
    /// # Safety
    /// The SRQ must be alive and its context open.
    #[inline]
    pub unsafe fn context<'a>(&self) -> Outcome<&'a Context> {
        // SAFETY: the caller's promise.
        unsafe { Context::from_ibv(self.base.context) }
    }
    /// Number in its XRC domain, or 0.
    pub fn srqn(&self) -> u32 {
        self.srqn
    }
    /// Daemon's number.
    pub fn handle(&self) -> u32 {
        self.base.handle
    }
    /// Where events are acknowledged.
    ///
    /// # Safety
    /// `srq` must be alive.
    pub unsafe fn meter(srq: *mut ibv_srq) -> Meter {
        // SAFETY: field addresses of a live struct.
        unsafe { Meter::new(&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed) }
    }
}

/// The geometry of a receive queue as the daemon says it.
fn queue_spec(place: &QueuePlace) -> Outcome<RqSpec> {
    let spec = RqSpec::new(place.entries, place.max_sge).ok_or(EIO)?;
    let same = spec.entries() == place.entries && rq_stride(place.max_sge) == place.stride;
    if same { Ok(spec) } else { Err(EIO) }
}

/// The posting end of a receive queue at its place.
pub fn receive_queue(context: &Context, place: &QueuePlace) -> Outcome<RqProducer> {
    let spec = queue_spec(place)?;
    RqProducer::new(context.area(place.place, spec.bytes())?, spec).ok_or(EIO)
}

/// New shared receive queue.
///
/// # Safety
/// `pd` must be alive and `init` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    door::pointer(|| {
        // SAFETY: the caller gives a live PD and a valid struct.
        unsafe {
            let init = init.as_mut().ok_or(EINVAL)?;
            create(pd, init.srq_context, &mut init.attr, None)
        }
    })
}

/// Makes a shared receive queue; `xrc` is given for XRC shared receive queues only.
///
/// # Safety
/// `pd` must be alive.
pub unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<XrcSrqAttr>,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let (context, pd_handle) = unsafe { pd_of(pd) }?;
    let cookie = lock(&context.sources).reserve();
    // `ibv_create_srq` ignores `srq_limit`: only `ibv_modify_srq` arms the limit.
    let init = SrqInitAttr { pd: pd_handle, max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0, cookie, xrc };
    let Response::Srq { srq: handle, queue, max_wr, srqn } = context.ask(&Request::CreateSrq(init))? else {
        return Err(EIO);
    };
    let producer = receive_queue(context, &queue)?;
    attr.max_wr = max_wr;
    attr.max_sge = queue.max_sge;
    let base = ibv_srq { context: context.as_ibv(), srq_context, pd, handle, ..Default::default() };
    let srq = Box::into_raw(Box::new(Srq {
        base,
        cookie,
        srqn,
        max_wr: AtomicU32::new(max_wr),
        max_sge: queue.max_sge,
        queue: SpinLock::new(producer),
        events: Counted::default(),
    }));
    // SAFETY: a fresh SRQ.
    unsafe { Srq::meter(srq.cast()).init() };
    if let Some(srq) = NonNull::new(srq) {
        lock(&context.sources).put(cookie, Source::Srq(srq));
    }
    Ok(srq.cast())
}

/// Changes the capacity, arms the limit event. What was posted stays posted.
///
/// # Safety
/// `srq` must be alive and `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live SRQ and a valid struct.
        let (ours, attr) = unsafe { (Srq::from_ibv(srq)?, attr.as_ref().ok_or(EINVAL)?) };
        let mask = mask as u32;
        if mask & !(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR) != 0 {
            return Err(EINVAL);
        }
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        if mask & IBV_SRQ_MAX_WR != 0 {
            resize(context, ours, attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT == 0 {
            return Ok(());
        }
        if attr.srq_limit > ours.max_wr.load(Relaxed) {
            return Err(EINVAL);
        }
        context.tell(&Request::ModifySrq { srq: ours.handle(), limit: Some(attr.srq_limit) })
    })
}

/// Moves the queue to a ring of another size; nobody posts meanwhile.
fn resize(context: &Context, srq: &Srq, max_wr: u32) -> Outcome<()> {
    let mut end = srq.queue.lock();
    let answer = context.ask(&Request::ResizeSrq { srq: srq.handle(), max_wr })?;
    let Response::Srq { queue, max_wr, .. } = answer else { return Err(EIO) };
    let spec = queue_spec(&queue)?;
    let area = context.area(queue.place, spec.bytes())?;
    *end = RqProducer::resume(area, spec, end.written()).ok_or(EIO)?;
    srq.max_wr.store(max_wr, Relaxed);
    Ok(())
}

/// Capacities and the limit.
///
/// # Safety
/// `srq` must be alive and `attr` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live SRQ of an open context.
        let ours = unsafe { Srq::from_ibv(srq) }?;
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        let Response::SrqLimit(srq_limit) = context.ask(&Request::QuerySrq { srq: ours.handle() })? else {
            return Err(EIO);
        };
        // SAFETY: the caller gives a writable place.
        unsafe { *attr = ibv_srq_attr { max_wr: ours.max_wr.load(Relaxed), max_sge: ours.max_sge, srq_limit } };
        Ok(())
    })
}

/// Ends a shared receive queue; EBUSY while a queue pair uses it.
///
/// # Safety
/// `srq` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live SRQ of an open context.
        let ours = unsafe { Srq::from_ibv(srq) }?;
        // SAFETY: as above.
        let context = unsafe { Context::even_dead(ours.base.context) }?;
        context.release_prealloc(|init| init.srq == Some(ours.handle()));
        context.tell_end(&Request::DestroySrq { srq: ours.handle() })?;
        if context.is_alive() {
            lock(&context.sources).remove(ours.cookie);
            // SAFETY: the SRQ is alive and has left the table.
            unsafe { Srq::meter(srq).wait(&ours.events) };
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
        Ok(())
    })
}
