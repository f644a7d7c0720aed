//! Completion queues: creation, resizing, destruction, and the removal of a dead queue pair's completions.
//!
//! The ring is in shared memory ([`burst_shm::cq`]). Beside it lies `carry`, a list that is nearly always empty: completions
//! that had to leave the ring before the application polled them (a resize, or a purge). `poll` empties it first.

use crate::context::Context;
use crate::door::{self, EINVAL, EIO, Outcome};
use crate::event::{Channel, Counted, Meter};
use crate::lock::SpinLock;
use crate::registry::{Source, lock};
use crate::sys::*;
use burst_control::{CqInitAttr, CqPlace, Request, Response};
use burst_shm::cq::{CqConsumer, CqSpec};
use burst_shm::{CQE_MAX, Cqe};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// A completion queue. Room for the extended interface is part of it, so that a cast works both ways.
#[repr(C)]
pub struct Cq {
    base: ibv_cq_ex,
    /// Daemon's number.
    pub handle: u32,
    cookie: u64,
    /// The consuming end.
    pub inner: SpinLock<Inner>,
    /// Completion events.
    pub comp_events: Counted,
    /// Asynchronous events.
    pub async_events: Counted,
}

/// What the CQ's lock guards.
#[derive(Debug)]
pub struct Inner {
    /// The ring.
    pub ring: CqConsumer,
    /// Completions that come before the ring's.
    pub carry: VecDeque<Cqe>,
    /// The completion that the extended interface is looking at.
    pub current: Cqe,
}

impl Inner {
    /// Empties the ring into `carry`, keeping only what `keep` accepts; also of what was carried already.
    fn take_out(&mut self, keep: impl Fn(&Cqe) -> bool) {
        self.carry.retain(&keep);
        let carry = &mut self.carry;
        self.ring.poll_each(CQE_MAX as usize, |cqe| {
            if keep(cqe) {
                carry.push_back(*cqe);
            }
        });
    }
}

impl Cq {
    /// The CQ behind an application's pointer.
    ///
    /// # Safety
    /// `cq` must be NULL or a live CQ of an open context.
    #[inline]
    pub unsafe fn from_ibv<'a>(cq: *mut ibv_cq) -> Outcome<&'a Cq> {
        // SAFETY: `base` comes first, and `ibv_cq` is its prefix.
        unsafe { cq.cast::<Cq>().as_ref() }.ok_or(EINVAL)
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
    pub unsafe fn context<'a>(&self) -> Outcome<&'a Context> {
        // SAFETY: the caller's promise.
        unsafe { Context::from_ibv(self.base.context) }
    }

    /// The context, where it has been looked for before: by [`Cq::context`], on behalf of the same caller.
    ///
    /// # Safety
    /// As for [`Cq::context`].
    #[inline]
    pub unsafe fn context_found<'a>(&self) -> &'a Context {
        // SAFETY: the caller's promise; every CQ is made with a context.
        unsafe { Context::of(self.base.context) }
    }

    /// Where completion events are acknowledged.
    ///
    /// # Safety
    /// `cq` must be alive.
    pub unsafe fn comp_meter(cq: *mut ibv_cq) -> Meter {
        // SAFETY: field addresses of a live struct.
        unsafe { Meter::new(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed) }
    }

    /// Where asynchronous events are acknowledged.
    ///
    /// # Safety
    /// `cq` must be alive.
    pub unsafe fn async_meter(cq: *mut ibv_cq) -> Meter {
        // SAFETY: field addresses of a live struct.
        unsafe { Meter::new(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).async_events_completed) }
    }

    /// Removes the completions of a queue pair that was destroyed or reset.
    pub fn purge(&self, qp_cookie: u32) {
        self.inner.lock().take_out(|cqe| cqe.qp_cookie != qp_cookie);
    }

    fn set_cqe(&self, entries: u32) {
        // SAFETY: an aligned word of a live struct; applications only read it.
        unsafe { (*self.as_ibv()).cqe = entries as c_int };
    }
}

fn spec_of(place: &CqPlace) -> Outcome<CqSpec> {
    CqSpec::new(place.entries).filter(|s| s.entries() == place.entries).ok_or(EIO)
}

fn check_entries(cqe: u32) -> Outcome<u32> {
    Some(cqe).filter(|n| (1..=CQE_MAX).contains(n)).ok_or(EINVAL)
}

/// Makes a completion queue.
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
    let (ours, chan) = unsafe { (Context::from_ibv(context)?, Channel::from_ibv(channel)) };
    let entries = check_entries(entries)?;
    if vector >= ours.vectors() as u32 {
        return Err(EINVAL);
    }
    let cookie = lock(&ours.sources).reserve();
    let init = CqInitAttr { entries, channel: chan.map(|c| c.handle), cookie, vector };
    let Response::Cq { cq: handle, ring } = ours.ask(&Request::CreateCq(init))? else { return Err(EIO) };
    let spec = spec_of(&ring)?;
    let ring = CqConsumer::new(ours.area(ring.place, spec.bytes())?, spec).ok_or(EIO)?;
    let base = ibv_cq_ex { context, channel, cq_context, handle, cqe: spec.entries() as c_int, ..Default::default() };
    let cq = Box::into_raw(Box::new(Cq {
        base,
        handle,
        cookie,
        inner: SpinLock::new(Inner { ring, carry: VecDeque::new(), current: Cqe::default() }),
        comp_events: Counted::default(),
        async_events: Counted::default(),
    }));
    // SAFETY: a fresh CQ; both meters share the mutex and the condition variable.
    unsafe { Cq::comp_meter(cq.cast()).init() };
    if let Some(chan) = chan {
        chan.attach();
    }
    if let Some(cq) = NonNull::new(cq) {
        lock(&ours.sources).put(cookie, Source::Cq(cq));
    }
    Ok(cq.cast())
}

/// New completion queue.
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
    door::pointer(|| {
        let entries = u32::try_from(cqe).map_err(|_| EINVAL)?;
        let vector = u32::try_from(comp_vector).map_err(|_| EINVAL)?;
        // SAFETY: the caller's promise.
        unsafe { create(context, entries, vector, cq_context, channel) }
    })
}

/// Changes the capacity. Completions in the old ring are carried over.
///
/// # Safety
/// `cq` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live CQ of an open context.
        let ours = unsafe { Cq::from_ibv(cq) }?;
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        let entries = check_entries(u32::try_from(cqe).map_err(|_| EINVAL)?)?;
        let request = Request::ResizeCq { cq: ours.handle, entries };
        let Response::CqResized { ring, old_end } = context.ask(&request)? else { return Err(EIO) };
        let spec = spec_of(&ring)?;
        let area = context.area(ring.place, spec.bytes())?;
        let mut inner = ours.inner.lock();
        if !inner.ring.switch_to(area, spec, old_end) {
            return Err(EIO);
        }
        // A worker may have reserved an entry of the old ring and not written it yet; that takes it some instructions.
        while inner.ring.is_draining() {
            inner.take_out(|_| true);
            crate::lock::yield_now();
        }
        drop(inner);
        ours.set_cqe(spec.entries());
        context.tell(&Request::RetireCq { cq: ours.handle })
    })
}

/// Ends a completion queue, after its events were acknowledged; EBUSY while a queue uses it.
///
/// # Safety
/// `cq` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live CQ of an open context.
        let ours = unsafe { Cq::from_ibv(cq) }?;
        // SAFETY: as above.
        let context = unsafe { Context::even_dead(ours.base.context) }?;
        context.release_prealloc(|init| [init.send_cq, init.recv_cq].contains(&ours.handle));
        context.tell_end(&Request::DestroyCq { cq: ours.handle })?;
        if context.is_alive() {
            lock(&context.sources).remove(ours.cookie);
            // SAFETY: the CQ is alive and has left the table: no more events are handed out.
            unsafe {
                Cq::comp_meter(cq).wait(&ours.comp_events);
                Cq::async_meter(cq).wait(&ours.async_events);
            }
        }
        // SAFETY: the channel outlives its CQs (EBUSY).
        if let Some(channel) = unsafe { Channel::from_ibv(ours.base.channel) } {
            channel.detach();
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        Ok(())
    })
}
