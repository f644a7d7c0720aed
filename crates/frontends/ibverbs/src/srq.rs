//! Shared receive queues.

use crate::boundary::{self, EINVAL, EIO, Outcome};
use crate::context::{EventSource, VerbsContext};
use crate::meter::{EventCount, EventMeter};
use crate::pd_mr::pd_of;
use crate::sys::*;
use burst_client::raw::lock::{SpinLock, lock};
use burst_client::raw::queue::{RawSrq, create_srq, resumed_receive_queue};
use burst_control::{Request, Response, SrqInitAttr, XrcSrqAttr};
use burst_shm::rq::RqProducer;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A shared receive queue.
#[repr(C)]
pub struct VerbsSrq {
    base: ibv_srq,
    cookie: u64,
    /// SRQ number of an XRC SRQ; 0 for a basic one.
    srqn: u32,
    max_wr: AtomicU32,
    max_sge: u32,
    /// The producer's end of the ring.
    pub queue: SpinLock<RqProducer>,
    /// Asynchronous events.
    pub events: EventCount,
}

impl VerbsSrq {
    /// The SRQ behind an application's pointer.
    ///
    /// # Safety
    /// `srq` must be NULL or alive.
    #[inline]
    pub unsafe fn from_ibv<'a>(srq: *mut ibv_srq) -> Outcome<&'a VerbsSrq> {
        // SAFETY: `base` is the first field.
        unsafe { srq.cast::<VerbsSrq>().as_ref() }.ok_or(EINVAL)
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
    pub unsafe fn context<'a>(&self) -> Outcome<&'a VerbsContext> {
        // SAFETY: the caller's promise.
        unsafe { VerbsContext::from_ibv(self.base.context) }
    }
    /// SRQ number of an XRC SRQ; 0 for a basic one.
    pub fn srqn(&self) -> u32 {
        self.srqn
    }
    /// The daemon's handle.
    pub fn handle(&self) -> u32 {
        self.base.handle
    }
    /// The count of acknowledged events.
    ///
    /// # Safety
    /// `srq` must be alive.
    pub unsafe fn meter(srq: *mut ibv_srq) -> EventMeter {
        // SAFETY: field addresses of a live struct.
        unsafe { EventMeter::new(&raw mut (*srq).mutex, &raw mut (*srq).cond, &raw mut (*srq).events_completed) }
    }
}

/// `ibv_create_srq`.
///
/// # Safety
/// `pd` must be alive and `init` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    boundary::pointer(|| {
        // SAFETY: the caller gives a live PD and a valid struct.
        unsafe {
            let init = init.as_mut().ok_or(EINVAL)?;
            create(pd, init.srq_context, &mut init.attr, None)
        }
    })
}

/// Creates a shared receive queue; `xrc` is given for XRC shared receive queues only.
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
    let cookie = context.event_cookie();
    // `ibv_create_srq` ignores `srq_limit`: only `ibv_modify_srq` arms the limit.
    let init = SrqInitAttr { pd: pd_handle, max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0, cookie, xrc };
    let RawSrq { handle, ring, max_wr, max_sge, srqn } = create_srq(context, init)?;
    (attr.max_wr, attr.max_sge) = (max_wr, max_sge);
    let base = ibv_srq { context: context.as_ibv(), srq_context, pd, handle, ..Default::default() };
    let srq = Box::into_raw(Box::new(VerbsSrq {
        base,
        cookie,
        srqn,
        max_wr: AtomicU32::new(max_wr),
        max_sge,
        queue: SpinLock::new(ring),
        events: EventCount::default(),
    }));
    // SAFETY: a fresh SRQ.
    unsafe { VerbsSrq::meter(srq.cast()).init() };
    if let Some(srq) = NonNull::new(srq.cast()) {
        lock(&context.sources).put(cookie, EventSource::Srq(srq));
    }
    Ok(srq.cast())
}

/// `ibv_modify_srq`: changes the capacity and arms the limit event. Posted receives are kept.
///
/// # Safety
/// `srq` must be alive and `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live SRQ and a valid struct.
        let (ours, attr) = unsafe { (VerbsSrq::from_ibv(srq)?, attr.as_ref().ok_or(EINVAL)?) };
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
        Ok(context.execute(&Request::ModifySrq { srq: ours.handle(), limit: Some(attr.srq_limit) })?)
    })
}

/// Moves the queue to a ring of another size. Holds the queue's lock meanwhile, so that no thread posts.
fn resize(context: &VerbsContext, srq: &VerbsSrq, max_wr: u32) -> Outcome<()> {
    let mut end = srq.queue.lock();
    let answer = context.ask(&Request::ResizeSrq { srq: srq.handle(), max_wr })?;
    let Response::Srq { queue, max_wr, .. } = answer else { return Err(EIO) };
    *end = resumed_receive_queue(context, &queue, end.written())?;
    srq.max_wr.store(max_wr, Relaxed);
    Ok(())
}

/// `ibv_query_srq`.
///
/// # Safety
/// `srq` must be alive and `attr` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live SRQ of an open context.
        let ours = unsafe { VerbsSrq::from_ibv(srq) }?;
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

/// `ibv_destroy_srq`: EBUSY while a queue pair uses it.
///
/// # Safety
/// `srq` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live SRQ of an open context.
        let ours = unsafe { VerbsSrq::from_ibv(srq) }?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.base.context) }?;
        context.release_prealloc(|init| init.srq == Some(ours.handle()));
        context.end_object(&Request::DestroySrq { srq: ours.handle() })?;
        if context.is_alive() {
            lock(&context.sources).remove(ours.cookie);
            context.forget_async_events(ours.cookie);
            // SAFETY: the SRQ is alive and has left the table.
            unsafe { VerbsSrq::meter(srq).wait(&ours.events) };
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(srq.cast::<VerbsSrq>()) });
        Ok(())
    })
}
