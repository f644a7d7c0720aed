//! Reading and acknowledging completion events and asynchronous events. Both come through pipes; the program may poll the read
//! ends.
//!
//! A channel's pipe carries 8-byte cookies, the pipe of asynchronous events [`AsyncRecord`]s. The events of a destroyed object
//! are taken out ([`crate::unread`]); one that is read nevertheless is skipped. Each event that a program gets is counted at its
//! object ([`EventCount`](crate::meter::EventCount)).

use crate::boundary::{self, EIO, Outcome};
use crate::channel::VerbsChannel;
use crate::context::{EventSource, VerbsContext};
use crate::cq::VerbsCq;
use crate::flush;
use crate::qp::VerbsQp;
use crate::srq::VerbsSrq;
use crate::sys::*;
use crate::unread::UnreadEvents;
use burst_client::raw::ended_pipe::EventEnd;
use burst_client::raw::lock::lock;
use burst_control::in_process::InProcessCalls;
use burst_control::{AsyncObject, AsyncRecord};
use burst_ffi::{block, in_process, report};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;

/// Reads a record, and returns what read(2) returns. The daemon writes whole records.
///
/// # Safety
/// The caller's frame must own nothing, because the thread may be cancelled here.
unsafe fn read_record<const N: usize>(fd: RawFd, record: &mut [u8; N]) -> isize {
    // SAFETY: N writable bytes.
    unsafe { block::read(fd, record.as_mut_ptr().cast(), N) }
}

/// Interprets the result of a read of `len` bytes.
fn read_outcome(got: isize, len: usize) -> Outcome<()> {
    match got {
        n if n == len as isize => Ok(()),
        n if n < 0 => Err(boundary::errno()),
        _ => {
            report::daemon_ended();
            Err(EIO)
        }
    }
}

/// How a thread gets its next record.
enum ReadPlan<const N: usize> {
    /// It has it.
    Taken([u8; N]),
    /// It reads this descriptor, and is counted as a reader. With a host in this process, its functions.
    Read(RawFd, Option<InProcessCalls>),
    /// The daemon has ended, and the descriptor rests.
    Ended,
}

impl<const N: usize> ReadPlan<N> {
    /// The plan of a thread that waits for a record of the pipe whose read end is `fd`.
    fn of(end: &EventEnd<N>, unread: &UnreadEvents<N>, fd: RawFd, calls: Option<&InProcessCalls>) -> ReadPlan<N> {
        match unread.pop() {
            Some(record) => ReadPlan::Taken(record),
            None if end.enter() => ReadPlan::Read(fd, calls.copied()),
            None => ReadPlan::Ended,
        }
    }

    /// Carries the plan out, and returns what read(2) returns.
    ///
    /// # Safety
    /// The caller's frame owns nothing.
    unsafe fn carry_out(&self, record: &mut [u8; N]) -> isize {
        // SAFETY: the caller's promise; N writable bytes.
        unsafe {
            match self {
                ReadPlan::Taken(taken) => {
                    *record = *taken;
                    N as isize
                }
                ReadPlan::Read(fd, Some(calls)) => in_process::read(calls, *fd, record.as_mut_ptr().cast(), N),
                ReadPlan::Read(fd, None) => read_record(*fd, record),
                ReadPlan::Ended => 0,
            }
        }
    }

    /// Ends what [`ReadPlan::of`] has begun.
    fn end(&self, end: &EventEnd<N>) {
        if let ReadPlan::Read(..) = self {
            end.leave();
        }
    }
}

/// `ibv_get_cq_event`: waits for the next event of a channel, unless the descriptor is non-blocking (EAGAIN). The thread may be
/// cancelled while it waits.
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
        let mut plan = ReadPlan::Ended;
        let failed = boundary::number(|| {
            // SAFETY: the caller gives a live channel of an open context.
            let ours = unsafe { VerbsChannel::from_ibv(channel) }.ok_or(boundary::EINVAL)?;
            // SAFETY: as above.
            let context = unsafe { VerbsContext::from_ibv(ours.context()) }?;
            plan = ReadPlan::of(&ours.end, &ours.unread, ours.pipe(), context.in_process_calls());
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        let mut record = [0; 8];
        // SAFETY: this frame owns nothing.
        let got = unsafe { plan.carry_out(&mut record) };
        let mut found = None;
        let failed = boundary::number(|| {
            // The errno of the read, before any other call.
            let read = read_outcome(got, record.len());
            // SAFETY: the caller gives a live channel.
            let ours = unsafe { VerbsChannel::from_ibv(channel) }.ok_or(boundary::EINVAL)?;
            plan.end(&ours.end);
            // SAFETY: as above.
            let context = unsafe { VerbsContext::from_ibv(ours.context()) }?;
            if got == 0 && context.daemon_has_hung_up() {
                let due = flush::completion_event(context, ours);
                found = Some(due.and_then(|cookie| source_of(context, cookie)).ok_or(EIO)?);
                return Ok(0);
            }
            read?;
            found = source_of(context, u64::from_ne_bytes(record));
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

/// Finds the CQ of a completion event and counts the event there. `None` if the CQ was destroyed.
fn source_of(context: &VerbsContext, cookie: u64) -> Option<(*mut ibv_cq, *mut c_void)> {
    let sources = lock(&context.sources);
    let Some(EventSource::Cq(cq)) = sources.get(cookie) else { return None };
    // SAFETY: a completion queue leaves the table under this lock before it is freed.
    unsafe {
        VerbsCq::from_ibv(cq.as_ptr()).ok()?.comp_events.hand_out();
        Some((cq.as_ptr(), cq.as_ref().cq_context))
    }
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    boundary::nothing(|| {
        if count != 0 && !cq.is_null() {
            // SAFETY: the caller gives a live CQ.
            unsafe { VerbsCq::comp_meter(cq).acknowledge(count) };
        }
    });
}

/// `ibv_get_async_event`: waits for the next asynchronous event, unless `async_fd` is non-blocking (EAGAIN). The thread may be
/// cancelled while it waits.
///
/// # Safety
/// `context` must be open and `event` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    loop {
        let mut plan = ReadPlan::Ended;
        let failed = boundary::number(|| {
            // SAFETY: the caller gives an open context.
            let ours = unsafe { VerbsContext::from_ibv(context) }?;
            plan = ReadPlan::of(&ours.async_end, &ours.unread, ours.async_fd().as_raw_fd(), None);
            Ok(0)
        });
        if failed != 0 {
            return failed;
        }
        let mut record = [0; AsyncRecord::BYTES];
        // SAFETY: this frame owns nothing.
        let got = unsafe { plan.carry_out(&mut record) };
        let mut found = None;
        let failed = boundary::number(|| {
            // The errno of the read, before any other call.
            let read = read_outcome(got, record.len());
            // SAFETY: the caller gives an open context.
            let context = unsafe { VerbsContext::from_ibv(context) }?;
            plan.end(&context.async_end);
            let record = if got == 0 && context.daemon_has_hung_up() {
                Some(flush::async_event(context).ok_or(EIO)?)
            } else {
                read?;
                AsyncRecord::from_bytes(&record).inspect(|record| flush::note_async_event(context, record))
            };
            found = record.and_then(|r| element_of(context, &r).map(|element| (element, r.event as ibv_event_type)));
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

/// Finds the object of an event and counts the event there. `None` if the object was destroyed.
fn element_of(context: &VerbsContext, record: &AsyncRecord) -> Option<ibv_async_event__bindgen_ty_1> {
    let sources = lock(&context.sources);
    let found = match record.object {
        AsyncObject::Port => return Some(ibv_async_event__bindgen_ty_1 { port_num: record.cookie as c_int }),
        AsyncObject::Device => return Some(ibv_async_event__bindgen_ty_1 { cq: null_mut() }),
        AsyncObject::Cq | AsyncObject::Qp | AsyncObject::Srq => sources.get(record.cookie)?,
        AsyncObject::Jfc | AsyncObject::Jfr | AsyncObject::Jetty => return None,
    };
    // SAFETY: objects leave the table under this lock before they are freed.
    Some(unsafe {
        match found {
            EventSource::Cq(cq) => {
                VerbsCq::from_ibv(cq.as_ptr()).ok()?.async_events.hand_out();
                ibv_async_event__bindgen_ty_1 { cq: cq.as_ptr() }
            }
            EventSource::Qp(qp) => {
                VerbsQp::from_ibv(qp.as_ptr()).ok()?.events.hand_out();
                ibv_async_event__bindgen_ty_1 { qp: qp.as_ptr() }
            }
            EventSource::Srq(srq) => {
                VerbsSrq::from_ibv(srq.as_ptr()).ok()?.events.hand_out();
                ibv_async_event__bindgen_ty_1 { srq: srq.as_ptr() }
            }
        }
    })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` must come from `ibv_get_async_event`, and its object be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    boundary::nothing(|| {
        // SAFETY: the caller gives an event of ours; the union's member follows from the type.
        unsafe {
            let event = &*event;
            match event.event_type {
                IBV_EVENT_CQ_ERR => VerbsCq::async_meter(event.element.cq).acknowledge(1),
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => VerbsQp::meter(event.element.qp).acknowledge(1),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => VerbsSrq::meter(event.element.srq).acknowledge(1),
                _ => (),
            }
        }
    });
}
