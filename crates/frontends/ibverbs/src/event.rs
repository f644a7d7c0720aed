//! Events: completion channels and asynchronous events. Both are pipes whose read end the application holds and may poll.
//!
//! A channel's pipe carries 8-byte cookies, the async pipe [`AsyncRecord`]s. A cookie whose object is gone is skipped.
//! Each event handed out is counted at its object ([`Counted`]); destroying the object waits until as many were
//! acknowledged, as verbs demand.

use crate::context::Context;
use crate::cq::Cq;
use crate::door::{self, EIO, Errno, Outcome};
use crate::qp::Qp;
use crate::registry::{Source, lock};
use crate::srq::Srq;
use crate::sys::*;
use burst_control::{AsyncObject, AsyncRecord, Request, Response};
use burst_ffi::{block, say};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Events of one object: handed out, and acknowledged under the mutex that the verbs struct carries.
///
/// `completed` lies in the public struct (`events_completed`), beside its mutex and condition variable.
#[derive(Debug, Default)]
pub struct Counted {
    handed_out: AtomicU32,
}

/// The three public fields of a struct that counts events.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *mut u32,
}

impl Meter {
    /// The meter made of these fields of one struct.
    pub fn new<M, C>(mutex: *mut M, cond: *mut C, completed: *mut u32) -> Meter {
        Meter { mutex: mutex.cast(), cond: cond.cast(), completed }
    }

    /// Prepares the fields of a fresh struct.
    ///
    /// # Safety
    /// The fields must be writable and unused.
    pub unsafe fn init(self) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_init(self.mutex, std::ptr::null());
            libc::pthread_cond_init(self.cond, std::ptr::null());
        }
    }

    /// Acknowledges `count` events.
    ///
    /// # Safety
    /// The struct must be alive.
    unsafe fn acknowledge(self, count: u32) {
        // SAFETY: the caller's promise; the counter is only touched under the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(count);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until every event handed out is acknowledged.
    ///
    /// # Safety
    /// The struct must be alive and no further events be handed out.
    pub unsafe fn wait(self, counted: &Counted) {
        // Acquire pairs with the Release in `hand_out`.
        let all = counted.handed_out.load(Ordering::Acquire);
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while self.completed.read_volatile() != all {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}

impl Counted {
    fn hand_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }
}

/// A completion channel.
#[repr(C)]
pub struct Channel {
    base: ibv_comp_channel,
    /// Daemon's number.
    pub handle: u32,
    pipe: OwnedFd,
    users: AtomicU32,
}

impl Channel {
    /// The channel behind an application's pointer; NULL is none.
    ///
    /// # Safety
    /// `channel` must be NULL or a live channel.
    pub unsafe fn from_ibv<'a>(channel: *mut ibv_comp_channel) -> Option<&'a Channel> {
        // SAFETY: `base` is the first field.
        unsafe { channel.cast::<Channel>().as_ref() }
    }

    fn refcnt(&self) -> *mut c_int {
        (&raw const self.base.refcnt).cast_mut()
    }

    /// Counts a CQ that uses this channel. `refcnt` is public, and kept for those who look.
    pub fn attach(&self) {
        let now = self.users.fetch_add(1, Ordering::AcqRel) + 1;
        // SAFETY: an aligned word of a live struct; applications only read it.
        unsafe { self.refcnt().write_volatile(now as c_int) };
    }

    /// Uncounts a CQ.
    pub fn detach(&self) {
        let now = self.users.fetch_sub(1, Ordering::AcqRel) - 1;
        // SAFETY: as in `attach`.
        unsafe { self.refcnt().write_volatile(now as c_int) };
    }
}

/// A completion channel, whose `fd` becomes readable when an event is there.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    door::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { Context::from_ibv(context) }?;
        let mut answer = ours.call(&Request::CreateChannel, &[])?;
        let Response::Channel { channel: handle } = answer.response else { return Err(EIO) };
        let pipe = answer.fds.pop().ok_or(EIO)?;
        // The application owns the blocking mode; a channel starts out blocking.
        set_blocking(pipe.as_raw_fd())?;
        let base = ibv_comp_channel { context, fd: pipe.as_raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { base, handle, pipe, users: AtomicU32::new(0) })).cast())
    })
}

/// Makes a pipe's read end blocking.
pub fn set_blocking(fd: RawFd) -> Outcome<()> {
    // SAFETY: descriptor flags of a descriptor that we own.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    if rc < 0 { Err(door::errno()) } else { Ok(()) }
}

/// Ends a channel; EBUSY while a CQ uses it.
///
/// # Safety
/// `channel` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live channel.
        let ours = unsafe { Channel::from_ibv(channel) }.ok_or(door::EINVAL)?;
        if ours.users.load(Ordering::Acquire) != 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the channel's context is open.
        let context = unsafe { Context::even_dead(ours.base.context) }?;
        context.tell_end(&Request::DestroyChannel { channel: ours.handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })
}

/// Reads a record; the writer writes records whole. As read(2) returns.
///
/// # Safety
/// The caller's frame owns nothing, so that the thread may be cancelled.
unsafe fn read_record<const N: usize>(fd: RawFd, record: &mut [u8; N]) -> isize {
    // SAFETY: N writable bytes.
    unsafe { block::read(fd, record.as_mut_ptr().cast(), N) }
}

/// What became of a read of `len` bytes.
fn read_outcome(got: isize, len: usize) -> Outcome<()> {
    match got {
        n if n == len as isize => Ok(()),
        n if n < 0 => Err(door::errno()),
        _ => {
            say::daemon_gone();
            Err(EIO)
        }
    }
}

/// The next event of a channel: waits unless the descriptor is non-blocking (EAGAIN). The thread may be cancelled while it
/// waits.
///
/// # Safety
/// `channel` must be alive, `cq` and `cq_context` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        let mut fd = -1;
        let failed = door::number(|| {
            // SAFETY: the caller gives a live channel of an open context.
            let ours = unsafe { Channel::from_ibv(channel) }.ok_or(door::EINVAL)?;
            // SAFETY: as above.
            unsafe { Context::from_ibv(ours.base.context) }?;
            fd = ours.pipe.as_raw_fd();
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        let mut record = [0; 8];
        // SAFETY: this frame owns nothing.
        let got = unsafe { read_record(fd, &mut record) };
        let mut found = None;
        let failed = door::number(|| {
            read_outcome(got, record.len())?;
            // SAFETY: the caller gives a live channel.
            let ours = unsafe { Channel::from_ibv(channel) }.ok_or(door::EINVAL)?;
            // SAFETY: as above.
            found = source_of(unsafe { Context::from_ibv(ours.base.context) }?, u64::from_ne_bytes(record));
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        if let Some((its_cq, its_context)) = found {
            // SAFETY: the caller gives writable places.
            unsafe { (*cq, *cq_context) = (its_cq, its_context) };
            return 0;
        }
    }
}

/// The CQ of a completion event, counted there; `None` if it is gone.
fn source_of(context: &Context, cookie: u64) -> Option<(*mut ibv_cq, *mut c_void)> {
    let sources = lock(&context.sources);
    let Some(Source::Cq(found)) = sources.get(cookie) else { return None };
    // SAFETY: a CQ leaves the table under this lock before it is freed.
    let found = unsafe { found.as_ref() };
    found.comp_events.hand_out();
    // SAFETY: as above.
    Some((found.as_ibv(), unsafe { (*found.as_ibv()).cq_context }))
}

/// Acknowledges completion events.
///
/// # Safety
/// `cq` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    door::nothing(|| {
        if count != 0 && !cq.is_null() {
            // SAFETY: the caller gives a live CQ.
            unsafe { Cq::comp_meter(cq).acknowledge(count) };
        }
    });
}

/// The next asynchronous event: waits unless `async_fd` is non-blocking (EAGAIN). The thread may be cancelled while it
/// waits.
///
/// # Safety
/// `context` must be open and `event` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    loop {
        let mut fd = -1;
        let failed = door::number(|| {
            // SAFETY: the caller gives an open context.
            fd = unsafe { Context::from_ibv(context) }?.async_fd().as_raw_fd();
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        let mut record = [0; AsyncRecord::BYTES];
        // SAFETY: this frame owns nothing.
        let got = unsafe { read_record(fd, &mut record) };
        let mut found = None;
        let failed = door::number(|| {
            read_outcome(got, record.len())?;
            // SAFETY: the caller gives an open context.
            let context = unsafe { Context::from_ibv(context) }?;
            found = AsyncRecord::from_bytes(&record)
                .and_then(|r| element_of(context, &r).map(|element| (element, r.event as ibv_event_type)));
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        if let Some((element, event_type)) = found {
            // SAFETY: the caller gives a writable place.
            unsafe { *event = ibv_async_event { element, event_type } };
            return 0;
        }
    }
}

/// Names the object of an event for the application and counts the event there; `None` if the object is gone.
fn element_of(context: &Context, record: &AsyncRecord) -> Option<ibv_async_event__bindgen_ty_1> {
    let sources = lock(&context.sources);
    let found = match record.object {
        AsyncObject::Port => return Some(ibv_async_event__bindgen_ty_1 { port_num: record.cookie as c_int }),
        AsyncObject::Device => return Some(ibv_async_event__bindgen_ty_1 { cq: null_mut() }),
        AsyncObject::Cq | AsyncObject::Qp | AsyncObject::Srq => sources.get(record.cookie)?,
    };
    // SAFETY: objects leave the table under this lock before they are freed.
    Some(unsafe {
        match found {
            Source::Cq(cq) => {
                cq.as_ref().async_events.hand_out();
                ibv_async_event__bindgen_ty_1 { cq: cq.as_ref().as_ibv() }
            }
            Source::Qp(qp) => {
                qp.as_ref().events.hand_out();
                ibv_async_event__bindgen_ty_1 { qp: qp.as_ref().as_ibv() }
            }
            Source::Srq(srq) => {
                srq.as_ref().events.hand_out();
                ibv_async_event__bindgen_ty_1 { srq: srq.as_ref().as_ibv() }
            }
        }
    })
}

/// Acknowledges an asynchronous event.
///
/// # Safety
/// `event` must come from `ibv_get_async_event`, and its object be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    door::nothing(|| {
        // SAFETY: the caller gives an event of ours; the union's member follows from the type.
        unsafe {
            let event = &*event;
            match event.event_type {
                IBV_EVENT_CQ_ERR => Cq::async_meter(event.element.cq).acknowledge(1),
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => Qp::meter(event.element.qp).acknowledge(1),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Srq::meter(event.element.srq).acknowledge(1),
                _ => (),
            }
        }
    });
}
