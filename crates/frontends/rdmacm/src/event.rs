//! Events: conversion of a channel's records to `rdma_cm_event`, and the changes that an event makes to its id.
//!
//! A record is parsed and counted at its id before the application gets the event. A record whose id was destroyed is skipped.
//! The event of a connection request creates the new id, and is counted at the listener.

use crate::attr;
use crate::boundary::{self, EINVAL, EIO, Outcome, lock};
use crate::channel::{Channel, Entered};
use crate::id::Id;
use crate::sys::*;
use burst_control::cm::{CmCommand, CmData, CmEvent, CmEventKind};
use burst_ffi::{block, report};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

/// The bytes of a record in the pipe.
pub type Record = [u8; CmEvent::BYTES];

/// An event that the application has and did not acknowledge yet.
#[repr(C)]
struct Event {
    base: rdma_cm_event,
    /// The id at which the event is counted.
    counted_at: NonNull<Id>,
    data: CmData,
}

/// Waits for the next event of a channel. The caller must have disabled cancellation.
///
/// # Errors
/// As [`Channel::outcome`].
///
/// # Safety
/// `channel` must be alive; no other thread may destroy it meanwhile.
pub unsafe fn next(channel: *mut rdma_event_channel) -> Outcome<*mut rdma_cm_event> {
    // SAFETY: the caller's promise.
    let channel = unsafe { Channel::from_rdma(channel) }?;
    loop {
        let fd = match channel.enter()? {
            Entered::Read(fd) => fd,
            Entered::Destroyed => return Err(EINVAL),
            Entered::Ended => return Err(EIO),
        };
        let mut record: Record = [0; CmEvent::BYTES];
        // SAFETY: just entered.
        let read = Channel::outcome(unsafe { Channel::read(fd, &mut record) });
        channel.leave();
        read?;
        if let Some(found) = CmEvent::from_bytes(&record).and_then(|event| hand_out(channel, &event)) {
            return Ok(found);
        }
    }
}

/// Acknowledges an event and frees it.
///
/// # Safety
/// `event` must come from [`next`], once.
pub unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: made in `hand_out`; the id cannot go before its events are acknowledged.
    unsafe {
        let event = Box::from_raw(event.cast::<Event>());
        event.counted_at.as_ref().counted.acknowledge();
    }
}

/// Converts a record to the application's event; `None` if its id was destroyed.
fn hand_out(channel: &Channel, event: &CmEvent) -> Option<*mut rdma_cm_event> {
    let request = event.kind == CmEventKind::ConnectRequest;
    let subject = if request { event.listener } else { event.id };
    let found = channel.session.with(subject, |id| {
        id.counted.hand_out();
        NonNull::from(id)
    });
    let Some(counted_at) = found else {
        if request {
            // The listener was destroyed: reject the request.
            let _ = channel.session.send(&[CmCommand::Destroy { id: event.id, read: 0 }]);
        }
        return None;
    };
    // SAFETY: counted, so it stays until the event is acknowledged.
    let counted_id = unsafe { counted_at.as_ref() };
    let id = if request { Id::requested(counted_id, channel, event.id) } else { counted_at };
    // SAFETY: just made, or counted.
    let id = unsafe { id.as_ref() };
    let event = &crate::qp::seen(id, event);
    id.due.read(event, id.is_datagram());
    id.steps.read(event.kind);
    if is_of_group(event.kind) && !crate::multicast::is_wanted(id, event.cookie) {
        id.counted.acknowledge();
        return None;
    }
    let mut status = follow(id, event);
    if request && counted_id.is_sync() {
        // The listener is synchronous, so the new id is too: it gets its own channel.
        status = id.migrate(null_mut()).map_or_else(|e| -e.0, |()| status);
    }
    let mut boxed = Box::new(Event { base: rdma_cm_event::default(), counted_at, data: private_data(event) });
    boxed.base.id = id.as_rdma();
    boxed.base.listen_id = if request { counted_id.as_rdma() } else { null_mut() };
    boxed.base.event = event.kind as rdma_cm_event_type;
    boxed.base.status = status;
    fill_param(&mut boxed, id, event);
    Some(Box::into_raw(boxed).cast())
}

/// The next event after the end of the daemon. If there is none, the channel rests until an id is created on it.
fn after_end(channel: &Channel) -> Outcome<CmEvent> {
    channel.ended.drain();
    let event = removal(channel).or_else(|| {
        channel.rest();
        // An id that was created before the channel rested did not announce itself.
        removal(channel)
    });
    if channel.ended.is_resting() && channel.session.find(|id| is_to_be_removed(id, channel)).is_some() {
        channel.ended.announce();
    }
    event.ok_or(EIO)
}

/// Whether an id of this channel must still get its event of the daemon's end.
fn is_to_be_removed(id: &Id, channel: &Channel) -> bool {
    id.is_on(channel) && !id.removal_reported.load(Ordering::Relaxed)
}

/// After the end of the daemon: RDMA_CM_EVENT_DEVICE_REMOVAL for an id of the channel that did not get it yet. As in Linux after
/// the removal of a device, the program should destroy the id.
fn removal(channel: &Channel) -> Option<CmEvent> {
    let is_due = |id: &Id| id.is_on(channel) && !id.removal_reported.swap(true, Ordering::Relaxed);
    channel.session.find(is_due).map(|number| CmEvent::new(CmEventKind::DeviceRemoval, number))
}

/// Whether the event is the result of a join.
fn is_of_group(kind: CmEventKind) -> bool {
    matches!(kind, CmEventKind::MulticastJoin | CmEventKind::MulticastError)
}

/// Private data of an event. Events of local failures have the daemon's sentence in its place: it is printed, and the program
/// gets no private data.
fn private_data(event: &CmEvent) -> CmData {
    let Some(sentence) = event.sentence() else { return event.data };
    report::explain(format_args!("the address is not resolved: {sentence}"));
    CmData::EMPTY
}

/// Updates the id by the event. Returns the status for the application.
fn follow(id: &Id, event: &CmEvent) -> c_int {
    let mut status = event.status;
    let mut take = |outcome: Outcome<()>| {
        if let (Err(e), 0) = (outcome, status) {
            status = -e.0;
        }
    };
    match event.kind {
        CmEventKind::AddrResolved | CmEventKind::ConnectRequest => take(id.follow_route(&event.route)),
        CmEventKind::RouteResolved => {
            take(id.follow_route(&event.route));
            id.publish_path();
        }
        CmEventKind::MulticastJoin => take(crate::multicast::joined(id, event)),
        _ => (),
    }
    match event.kind {
        CmEventKind::ConnectRequest => {
            lock(&id.known).conn = event.conn;
            id.publish_path();
        }
        CmEventKind::ConnectResponse => lock(&id.known).conn = event.conn,
        CmEventKind::Established => {
            if event.conn.remote_qpn != 0 {
                lock(&id.known).conn = event.conn;
            }
            crate::qp::note_state(id, IBV_QPS_RTS);
        }
        CmEventKind::Rejected | CmEventKind::Unreachable | CmEventKind::ConnectError => {
            crate::qp::fail(id);
        }
        _ => (),
    }
    status
}

/// The part of an event that depends on the service: connection parameters, or the peer's address vector for datagrams.
fn fill_param(boxed: &mut Event, id: &Id, event: &CmEvent) {
    let data = boxed.data.as_slice();
    let (private_data, private_data_len) =
        if data.is_empty() { (std::ptr::null(), 0) } else { (data.as_ptr().cast(), data.len() as u8) };
    let conn = &event.conn;
    let group = is_of_group(event.kind);
    if group || id.is_datagram() {
        // `private_data` of a multicast event is the context that the program passed to the join.
        let private_data = if group { crate::multicast::context_of(id, event.cookie) } else { private_data };
        boxed.base.param.ud = rdma_ud_param {
            private_data,
            private_data_len,
            ah_attr: attr::ah_of(&event.route),
            qp_num: if group { crate::multicast::GROUP_QPN } else { conn.remote_qpn },
            qkey: conn.qkey,
        };
    } else {
        boxed.base.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control.into(),
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq.into(),
            qp_num: conn.remote_qpn,
        };
    }
}

/// `rdma_get_cm_event`: waits for the next event of a channel, unless its descriptor is non-blocking (EAGAIN). The thread may be
/// cancelled while it waits.
///
/// # Safety
/// `channel` must be alive, `event` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    loop {
        let mut entered = Entered::Destroyed;
        let failed = boundary::status(|| {
            if event.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: the caller's promise.
            entered = unsafe { Channel::from_rdma(channel) }?.enter()?;
            Ok(())
        });
        if failed != 0 {
            return failed;
        }
        let mut record: Record = [0; CmEvent::BYTES];
        let got = match entered {
            // SAFETY: just entered; this frame owns nothing.
            Entered::Read(fd) => unsafe { Channel::read(fd, &mut record) },
            Entered::Ended => 0,
            // SAFETY: this frame owns nothing.
            Entered::Destroyed => unsafe { block::for_ever() },
        };
        let mut found = null_mut();
        let failed = boundary::status(|| {
            // The errno of the read, before any other call.
            let mut read = Channel::outcome(got);
            // SAFETY: being read, the channel has not gone.
            let channel = unsafe { Channel::from_rdma(channel) }?;
            let mut event = CmEvent::from_bytes(&record);
            if let Entered::Read(_) = entered {
                channel.leave();
            }
            if got == 0 {
                let removal = after_end(channel);
                (event, read) = (removal.ok(), removal.map(|_| ()));
            }
            read?;
            found = event.and_then(|event| hand_out(channel, &event)).unwrap_or(null_mut());
            Ok(())
        });
        if failed != 0 {
            return failed;
        }
        if !found.is_null() {
            // SAFETY: the caller gives a writable place.
            unsafe { *event = found };
            return 0;
        }
    }
}

/// `rdma_ack_cm_event`: frees the event and its private data.
///
/// # Safety
/// `event` must come from [`rdma_get_cm_event`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    boundary::status(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { acknowledge(event) };
        Ok(())
    })
}
