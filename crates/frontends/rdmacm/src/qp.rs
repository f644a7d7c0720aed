//! Queue pairs of an id. They are created with default objects where the program gives none, and moved to a state in which
//! receives can be posted. An XRC target is created in the device's default XRC domain if the program names none; it uses no
//! completion queues, so those of its id serve the id's shared receive queue, if there is one.
//!
//! The daemon moves queue pairs of connections, but not those of an engine in this process with a lent worker number
//! ([`crate::lent`]). Commands name these as queue pairs that their program moves, and this library does what the kernel's does:
//! it moves the queue pair with the attributes of the event that brings the peer's answer, and then lets the daemon send the
//! RTU; before a request is accepted, it moves the queue pair first.

use crate::attr;
use crate::boundary::{self, EINVAL, Errno, Outcome, errno, lock, verbs};
use crate::device::RdmaDevice;
use crate::id::Id;
use crate::lent;
use crate::sys::*;
use burst_base::conn::ConnParam;
use burst_control::cm::{CmCommand, CmData, CmEvent, CmEventKind, CmQp};
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::null_mut;

/// IBA table 112: rejected by the program.
pub const REASON_CONSUMER: u16 = 28;

// SAFETY: as defined by crate `ibverbs`, which is loaded with this library.
unsafe extern "C" {
    /// Our libibverbs, version node BURST_PRIVATE_1.
    fn burst_modify_qp_without_reply(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
}

/// The id's queue pair for a command to the daemon; `None` if the id has none.
///
/// # Errors
/// EINVAL for a queue pair of a context that is not the id's.
pub fn named(id: &Id) -> Outcome<Option<CmQp>> {
    let qp = id.public().qp;
    if qp.is_null() {
        return Ok(None);
    }
    // SAFETY: a queue pair on an id is alive.
    let (context, qpn) = unsafe { ((*qp).context, (*qp).qp_num) };
    let own = id.device().ok().filter(|d| d.context == context);
    let device = own.or_else(|| id.session.device_of(context)).ok_or(EINVAL)?;
    Ok(Some(CmQp { token: device.token, qpn }))
}

/// The queue pair of an id for a command, and the parameters: in lent mode they name it.
///
/// # Errors
/// As [`named`].
pub fn named_with(id: &Id, param: ConnParam) -> Outcome<(Option<CmQp>, ConnParam)> {
    let named = named(id)?;
    Ok(match named {
        Some(CmQp { qpn, .. }) if lent::is_on() => (None, ConnParam { qpn, ..param }),
        _ => (named, param),
    })
}

/// The id's connected queue pair, which this library moves; `None` if there is none, or the daemon moves it.
fn own_qp(id: &Id) -> Option<*mut ibv_qp> {
    let qp = id.public().qp;
    (lent::is_on() && !qp.is_null() && !id.is_datagram()).then_some(qp)
}

/// Moves the queue pair to RTS. `depths`: READs and atomics as responder and as requester, if they are not those of the event.
fn move_to_rts(id: &Id, qp: *mut ibv_qp, depths: Option<(u8, u8)>) -> Outcome<()> {
    for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut values, mask) = {
            let known = lock(&id.known);
            attr::for_state(&known, id.public().qp_type, state)?
        };
        if let Some((responder, requester)) = depths {
            let most = lock(&id.known).device.map_or(u8::MAX, |device| device.max_rd_atomic);
            (values.max_dest_rd_atomic, values.max_rd_atomic) = (responder.min(most), requester.min(most));
        }
        // SAFETY: a queue pair on an id is alive.
        verbs(unsafe { ibv_modify_qp(qp, &mut values, mask as c_int) })?;
    }
    Ok(())
}

/// The program accepts a request: the queue pair must be ready before the peer learns of it.
///
/// # Errors
/// The errno of `ibv_modify_qp`.
pub fn before_accept(id: &Id, param: &ConnParam) -> Outcome<()> {
    let Some(qp) = own_qp(id) else { return Ok(()) };
    move_to_rts(id, qp, Some((param.responder_resources, param.initiator_depth))).inspect_err(|_| fail(id))
}

/// The program ends a connection: its queue pair sends nothing after the DREQ.
pub fn before_disconnect(id: &Id) {
    if own_qp(id).is_some() {
        fail(id);
    }
}

/// The event that the program sees: the peer's answer to a queue pair that this library moves is the connection.
pub fn seen(id: &Id, event: &CmEvent) -> CmEvent {
    let mut seen = *event;
    if own_qp(id).is_none() {
        return seen;
    }
    // Not at the end of a connection: as with the kernel, the program's own `rdma_disconnect` moves the queue pair. The
    // program may have destroyed it meanwhile with `ibv_destroy_qp`; then the id still names it.
    if event.kind == CmEventKind::ConnectResponse {
        lock(&id.known).conn = event.conn;
        let number = id.number;
        let Some(moved) = while_it_stays(id, |qp| move_to_rts(id, qp, None)) else { return seen };
        let moved = moved.and_then(|()| id.session.send(&[CmCommand::Establish { id: number }]));
        (seen.kind, seen.status) = match moved {
            Ok(()) => (CmEventKind::Established, event.status),
            Err(Errno(errno)) => {
                let reject = CmCommand::Reject { id: number, reason: REASON_CONSUMER, data: CmData::EMPTY };
                // If the daemon has ended, the program gets its end as the next event.
                let _ = id.session.send(&[reject]);
                (CmEventKind::ConnectError, -errno)
            }
        };
    }
    seen
}

/// Calls `inside` with the id's connected queue pair, which no other thread takes from the id meanwhile: one thread may read an
/// event while another one calls `rdma_destroy_qp`. `ibv_destroy_qp` is not seen here: a program that uses it does so after the
/// last event that moves the queue pair. `None` without one.
fn while_it_stays<R>(id: &Id, inside: impl FnOnce(*mut ibv_qp) -> R) -> Option<R> {
    let _not_taken = lock(&id.qp_use);
    let public = id.public();
    (!public.qp.is_null() && public.qp_type != IBV_QPT_UD).then(|| inside(public.qp))
}

/// Sets the public `state` of the id's connected queue pair, which posting checks, after the daemon has moved the queue pair.
pub fn note_state(id: &Id, state: ibv_qp_state) {
    while_it_stays(id, |qp| {
        // SAFETY: alive, as `while_it_stays` says; an aligned word that is only ever stored whole.
        unsafe { (&raw mut (*qp).state).write_volatile(state) }
    });
}

/// Moves the queue pair of a failed connection to ERR, so that posted receives are flushed.
pub fn fail(id: &Id) {
    while_it_stays(id, |qp| {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        // SAFETY: alive, as `while_it_stays` says. Refused only where there is nothing to flush: the daemon is gone, or the queue
        // pair was never moved.
        let _ = unsafe { ibv_modify_qp(qp, &mut attr, IBV_QP_STATE as c_int) };
    });
}

/// The protection domain of a call, or the default one of the id's device. It must be of the id's context.
pub fn domain(id: &Id, device: &RdmaDevice, given: *mut ibv_pd) -> Outcome<*mut ibv_pd> {
    let own = id.public().pd;
    let pd = if given.is_null() { own } else { given };
    // SAFETY: the caller gives a live domain; the default one lives for ever.
    if pd.is_null() || unsafe { (*pd).context } != device.context { Err(EINVAL) } else { Ok(pd) }
}

/// Creates a channel and a completion queue of `entries`, as the inline functions of `rdma_verbs.h` expect them.
pub fn make_queue(id: &Id, device: &RdmaDevice, entries: u32) -> Outcome<(*mut ibv_comp_channel, *mut ibv_cq)> {
    // SAFETY: an open context; the queue's context is the id, as `rdma_get_recv_comp` demands.
    unsafe {
        let channel = ibv_create_comp_channel(device.context);
        if channel.is_null() {
            return Err(errno());
        }
        let cq = ibv_create_cq(device.context, entries.max(1) as c_int, id.as_rdma().cast(), channel, 0);
        if cq.is_null() {
            let failed = errno();
            ibv_destroy_comp_channel(channel);
            return Err(failed);
        }
        Ok((channel, cq))
    }
}

/// Destroys a default completion queue and its channel.
///
/// # Safety
/// Pointers that are not NULL must be alive, and no queue pair may use the objects.
pub unsafe fn end_queue(channel: &mut *mut ibv_comp_channel, cq: &mut *mut ibv_cq) {
    let (channel, cq) = (std::mem::replace(channel, null_mut()), std::mem::replace(cq, null_mut()));
    // SAFETY: the caller's objects; a channel at the id means that both are ours.
    unsafe {
        if !channel.is_null() {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
            ibv_destroy_comp_channel(channel);
        }
    }
}

/// Destroys the default completion queues of an id.
pub fn end_queues(id: &Id) {
    let id = id.as_rdma();
    // SAFETY: fields of a live struct, which other threads leave alone now.
    unsafe {
        end_queue(&mut (*id).recv_cq_channel, &mut (*id).recv_cq);
        end_queue(&mut (*id).send_cq_channel, &mut (*id).send_cq);
    }
}

/// Creates the completion queues that `init` lacks, and writes all queues to both structs.
fn complete_init(id: &Id, device: &RdmaDevice, init: &mut ibv_qp_init_attr) -> Outcome<()> {
    let public = id.as_rdma();
    // An XRC initiator has no receives, an XRC target no sends.
    let xrc = [IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV].contains(&init.qp_type);
    let wanted = |entries: u32| !xrc || entries > 0;
    // SAFETY: fields of a live struct, which other threads leave alone while its queue pair is made.
    unsafe {
        if init.recv_cq.is_null() && (*public).recv_cq.is_null() && wanted(init.cap.max_recv_wr) {
            let made = make_queue(id, device, init.cap.max_recv_wr)?;
            ((*public).recv_cq_channel, (*public).recv_cq) = made;
        }
        if init.send_cq.is_null() && (*public).send_cq.is_null() && wanted(init.cap.max_send_wr) {
            let made = make_queue(id, device, init.cap.max_send_wr)?;
            ((*public).send_cq_channel, (*public).send_cq) = made;
        }
        for (given, own) in [(&mut init.recv_cq, &mut (*public).recv_cq), (&mut init.send_cq, &mut (*public).send_cq)] {
            if given.is_null() { *given = *own } else { *own = *given }
        }
        if init.srq.is_null() {
            init.srq = (*public).srq;
        }
    }
    Ok(())
}

/// Moves a new queue pair: to INIT if it is connected, to RTS if it is for datagrams.
fn make_ready(id: &Id, qp: *mut ibv_qp) -> Outcome<()> {
    let states: &[ibv_qp_state] =
        if id.is_datagram() { &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] } else { &[IBV_QPS_INIT] };
    for state in states {
        let (mut values, mask) = attr::for_state(&lock(&id.known), id.public().qp_type, *state)?;
        // SAFETY: a live queue pair, made just now: these changes cannot be refused.
        verbs(unsafe { burst_modify_qp_without_reply(qp, &mut values, mask as c_int) })?;
    }
    Ok(())
}

/// Creates the queue pair from the completed attributes.
type Make<'a> = dyn FnOnce(&RdmaDevice, *mut ibv_pd, &mut ibv_qp_init_attr) -> *mut ibv_qp + 'a;

fn create_with(id: &Id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr, make: Box<Make<'_>>) -> Outcome<()> {
    let public = id.as_rdma();
    let device = id.device()?;
    if id.public().qp_type != init.qp_type || !id.public().qp.is_null() {
        return Err(EINVAL);
    }
    let pd = domain(id, device, pd)?;
    let given = (init.send_cq, init.recv_cq);
    let made = complete_init(id, device, init).and_then(|()| {
        let qp = make(device, pd, init);
        if qp.is_null() {
            return Err(errno());
        }
        make_ready(id, qp).inspect_err(|_| {
            // SAFETY: just made, and no other thread knows it. If it stays, it dies with the context.
            unsafe { ibv_destroy_qp(qp) };
        })?;
        Ok(qp)
    });
    match made {
        Ok(qp) => {
            // SAFETY: fields of a live struct, which other threads leave alone while its queue pair is made.
            unsafe { ((*public).qp, (*public).pd) = (qp, pd) };
            Ok(())
        }
        Err(e) => {
            // The caller may try again with the same struct: it must not name destroyed queues.
            (init.send_cq, init.recv_cq) = given;
            end_queues(id);
            Err(e)
        }
    }
}

/// Creates the id's queue pair.
///
/// # Errors
/// EINVAL for objects of another context or for another service than the id's, ENODEV before the device is known.
pub fn create(id: &Id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Outcome<()> {
    if init.qp_type == IBV_QPT_XRC_RECV {
        // Only the extended struct can name an XRC domain.
        let mut extended = ibv_qp_init_attr_ex::default();
        // SAFETY: the shorter struct is what the longer one begins with.
        unsafe { (&raw mut extended).cast::<ibv_qp_init_attr>().write(*init) };
        (extended.pd, extended.comp_mask) = (pd, IBV_QP_INIT_ATTR_PD);
        // SAFETY: a valid struct.
        return unsafe { create_extended(id, &mut extended) };
    }
    create_with(
        id,
        pd,
        init,
        // SAFETY: live objects of one context.
        Box::new(|_, pd, init| unsafe { ibv_create_qp(pd, init) }),
    )
}

/// Sets the device's default XRC domain if the struct of a target names none.
///
/// # Safety
/// `init` must be valid up to the fields that its mask names, and writable up to the domain.
unsafe fn complete_target(device: &RdmaDevice, init: *mut ibv_qp_init_attr_ex) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let named = (*init).comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !(*init).xrcd.is_null();
        if (*init).qp_type == IBV_QPT_XRC_RECV && !named {
            (*init).xrcd = device.xrcd()?;
            (*init).comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
    }
    Ok(())
}

/// Creates the id's queue pair by `ibv_create_qp_ex`, with the extended attributes of the struct.
unsafe fn create_extended(id: &Id, init: *mut ibv_qp_init_attr_ex) -> Outcome<()> {
    // SAFETY: the caller gives a struct that is valid up to what its mask names; both structs begin with the same fields.
    let (mask, mut plain) = unsafe { ((*init).comp_mask, init.cast::<ibv_qp_init_attr>().read()) };
    let given = if mask & IBV_QP_INIT_ATTR_PD != 0 {
        // SAFETY: the mask names the field.
        unsafe { (*init).pd }
    } else {
        null_mut()
    };
    let make = |device: &RdmaDevice, pd: *mut ibv_pd, plain: &mut ibv_qp_init_attr| {
        // SAFETY: the common fields are copied to and fro; the rest is the caller's promise.
        unsafe {
            init.cast::<ibv_qp_init_attr>().write(*plain);
            (*init).pd = pd;
            (*init).comp_mask = mask | IBV_QP_INIT_ATTR_PD;
            let made = device.extended(|calls| calls.create_qp_ex).and_then(|create| {
                complete_target(device, init)?;
                Ok(create(device.context, init))
            });
            plain.cap = (*init).cap;
            made.unwrap_or_else(|e| {
                boundary::set_errno(e);
                null_mut()
            })
        }
    };
    create_with(id, given, &mut plain, Box::new(make))
}

const _: () = {
    assert!(offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all));
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) == size_of::<ibv_qp_init_attr>() - 4);
};

/// `rdma_create_qp`: creates the id's queue pair, with default completion queues where `init` has none.
///
/// # Safety
/// `id` must be alive, `pd` NULL or alive, `init` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (Id::from_rdma(id)?, init.as_mut().ok_or(EINVAL)?) };
        create(id, pd, init)
    })
}

/// `rdma_create_qp_ex`: as [`rdma_create_qp`], with the extended struct.
///
/// # Safety
/// `id` must be alive, `init` valid up to the fields that its mask names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    boundary::status(|| {
        if init.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { create_extended(Id::from_rdma(id)?, init) }
    })
}

/// `rdma_destroy_qp`: destroys the id's queue pair and its default completion queues.
///
/// # Safety
/// `id` must be alive and have a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    boundary::nothing(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        let qp = {
            let _not_used = lock(&id.qp_use);
            // SAFETY: the field of a live struct.
            unsafe { std::mem::replace(&mut (*id.as_rdma()).qp, null_mut()) }
        };
        if !qp.is_null() {
            // Without the lock: it waits until the program has acknowledged the queue pair's events.
            // SAFETY: it was the id's, and now no other thread gets it from there.
            unsafe { ibv_destroy_qp(qp) };
        }
        if id.public().qp_type == IBV_QPT_XRC_RECV && !id.public().srq.is_null() {
            // The id's shared receive queue still uses the completion queues.
            return Ok(());
        }
        end_queues(id);
        // Completion queues that are left are the program's: the id forgets them.
        // SAFETY: as above.
        unsafe { ((*id.as_rdma()).send_cq, (*id.as_rdma()).recv_cq) = (null_mut(), null_mut()) };
        Ok(())
    });
}
