//! Completion queues: creation, resizing, destruction, and the removal of a dead queue pair's completions.
//!
//! The ring is in shared memory ([`burst_shm::cq`]). [`CompletionRing`] adds the completions that a resize or a purge took out of
//! the ring before the program polled them.

use crate::boundary::{self, EINVAL, EIO, Outcome};
use crate::channel::VerbsChannel;
use crate::context::{EventSource, VerbsContext};
use crate::meter::{EventCount, EventMeter};
use crate::sys::*;
use burst_client::raw::completion::CompletionRing;
use burst_client::raw::idle::yield_now;
use burst_client::raw::lock::{SpinLock, lock};
use burst_client::raw::queue::{cq_spec, create_cq};
use burst_control::{CqInitAttr, Request, Response};
use burst_shm::CQE_MAX;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

/// A completion queue. It includes the extended struct, so that `ibv_cq` and `ibv_cq_ex` can be cast into each other.
#[repr(C)]
pub struct VerbsCq {
    base: ibv_cq_ex,
    /// The daemon's handle.
    pub handle: u32,
    cookie: u64,
    /// The consumer's end of the ring.
    pub inner: SpinLock<CompletionRing>,
    /// Completion events.
    pub comp_events: EventCount,
    /// Asynchronous events.
    pub async_events: EventCount,
    /// Whether the program promised to poll from one thread only, so that polls take no lock.
    pub single_threaded: AtomicBool,
}

impl VerbsCq {
    /// The CQ behind an application's pointer.
    ///
    /// # Safety
    /// `cq` must be NULL or a live CQ of an open context.
    #[inline]
    pub unsafe fn from_ibv<'a>(cq: *mut ibv_cq) -> Outcome<&'a VerbsCq> {
        // SAFETY: `base` comes first, and `ibv_cq` is its prefix.
        unsafe { cq.cast::<VerbsCq>().as_ref() }.ok_or(EINVAL)
    }

    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_cq {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The context.
    ///
    /// # Safety
    /// The CQ must be alive and its context open.
    #[inline]
    pub unsafe fn context<'a>(&self) -> Outcome<&'a VerbsContext> {
        // SAFETY: the caller's promise.
        unsafe { VerbsContext::from_ibv(self.base.context) }
    }

    /// As [`VerbsCq::context`], without its check: for callers for which that check has succeeded.
    ///
    /// # Safety
    /// As for [`VerbsCq::context`].
    #[inline]
    pub unsafe fn context_found<'a>(&self) -> &'a VerbsContext {
        // SAFETY: the caller's promise; every CQ is made with a context.
        unsafe { VerbsContext::of(self.base.context) }
    }

    /// Cookie of its events.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The completion channel's pointer; NULL without one.
    pub fn channel(&self) -> *mut ibv_comp_channel {
        self.base.channel
    }

    /// The count of acknowledged completion events.
    ///
    /// # Safety
    /// `cq` must be alive.
    pub unsafe fn comp_meter(cq: *mut ibv_cq) -> EventMeter {
        // SAFETY: field addresses of a live struct.
        unsafe { EventMeter::new(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed) }
    }

    /// The count of acknowledged asynchronous events.
    ///
    /// # Safety
    /// `cq` must be alive.
    pub unsafe fn async_meter(cq: *mut ibv_cq) -> EventMeter {
        // SAFETY: field addresses of a live struct.
        unsafe { EventMeter::new(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).async_events_completed) }
    }

    /// Removes the completions of a queue pair that was destroyed or reset.
    pub fn purge(&self, qp_cookie: u32) {
        self.inner.lock().purge(qp_cookie);
    }

    fn set_cqe(&self, entries: u32) {
        // SAFETY: an aligned word of a live struct; applications only read it.
        unsafe { (*self.as_ibv()).cqe = entries as c_int };
    }
}

fn check_entries(cqe: u32) -> Outcome<u32> {
    Some(cqe).filter(|n| (1..=CQE_MAX).contains(n)).ok_or(EINVAL)
}

/// Creates a completion queue.
///
/// # Safety
/// `context` must be open, the channel NULL or alive.
pub unsafe fn create(
    context: *mut ibv_context,
    entries: u32,
    vector: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> Outcome<*mut ibv_cq> {
    // SAFETY: the caller gives an open context and NULL or a live channel.
    let (ours, chan) = unsafe { (VerbsContext::from_ibv(context)?, VerbsChannel::from_ibv(channel)) };
    let entries = check_entries(entries)?;
    if vector >= ours.vectors() as u32 {
        return Err(EINVAL);
    }
    let cookie = ours.event_cookie();
    let init = CqInitAttr { entries, channel: chan.map(|c| c.handle), cookie, vector };
    let (handle, ring) = create_cq(ours, init)?;
    let base = ibv_cq_ex { context, channel, cq_context, handle, cqe: ring.entries() as c_int, ..Default::default() };
    let cq = Box::into_raw(Box::new(VerbsCq {
        base,
        handle,
        cookie,
        inner: SpinLock::new(CompletionRing::new(ring)),
        comp_events: EventCount::default(),
        async_events: EventCount::default(),
        single_threaded: AtomicBool::new(false),
    }));
    // SAFETY: a fresh CQ; both meters share the mutex and the condition variable.
    unsafe { VerbsCq::comp_meter(cq.cast()).init() };
    if let Some(chan) = chan {
        chan.attach();
    }
    if let Some(cq) = NonNull::new(cq.cast()) {
        lock(&ours.sources).put(cookie, EventSource::Cq(cq));
    }
    Ok(cq.cast())
}

/// `ibv_create_cq`.
///
/// # Safety
/// `context` must be open, `channel` NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    boundary::pointer(|| {
        let entries = u32::try_from(cqe).map_err(|_| EINVAL)?;
        let vector = u32::try_from(comp_vector).map_err(|_| EINVAL)?;
        // SAFETY: the caller's promise.
        unsafe { create(context, entries, vector, cq_context, channel) }
    })
}

/// `ibv_resize_cq`: changes the capacity. Completions in the old ring are kept.
///
/// # Safety
/// `cq` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live CQ of an open context.
        let ours = unsafe { VerbsCq::from_ibv(cq) }?;
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        let entries = check_entries(u32::try_from(cqe).map_err(|_| EINVAL)?)?;
        let request = Request::ResizeCq { cq: ours.handle, entries };
        let Response::CqResized { ring, old_end } = context.ask(&request)? else { return Err(EIO) };
        let spec = cq_spec(&ring)?;
        let area = context.area(ring.place, spec.bytes())?;
        let mut inner = ours.inner.lock();
        if !inner.ring.switch_to(area, spec, old_end) {
            return Err(EIO);
        }
        // A worker may have reserved an entry of the old ring that it writes a few instructions later: wait for it.
        while inner.ring.is_draining() {
            inner.carry(|_| true);
            yield_now();
        }
        drop(inner);
        ours.set_cqe(spec.entries());
        Ok(context.execute(&Request::RetireCq { cq: ours.handle })?)
    })
}

/// `ibv_destroy_cq`: waits until its events are acknowledged; EBUSY while a queue pair or SRQ uses it.
///
/// # Safety
/// `cq` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live CQ of an open context.
        let ours = unsafe { VerbsCq::from_ibv(cq) }?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.base.context) }?;
        context.release_prealloc(|init| [init.send_cq, init.recv_cq].contains(&ours.handle));
        context.end_object(&Request::DestroyCq { cq: ours.handle })?;
        if context.is_alive() {
            lock(&context.sources).remove(ours.cookie);
            // SAFETY: the channel outlives its CQs (EBUSY).
            if let Some(channel) = unsafe { VerbsChannel::from_ibv(ours.base.channel) } {
                channel.forget(ours.cookie);
            }
            context.forget_async_events(ours.cookie);
            // SAFETY: the CQ is alive and has left the table: no more events are handed out.
            unsafe {
                VerbsCq::comp_meter(cq).wait(&ours.comp_events);
                VerbsCq::async_meter(cq).wait(&ours.async_events);
            }
        }
        // SAFETY: the channel outlives its CQs (EBUSY).
        if let Some(channel) = unsafe { VerbsChannel::from_ibv(ours.base.channel) } {
            channel.detach();
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(cq.cast::<VerbsCq>()) });
        Ok(())
    })
}
