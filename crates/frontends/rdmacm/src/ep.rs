//! Endpoints: `rdma_create_ep` makes an id that is resolved or bound, with its queue pair.

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Outcome, lock};
use crate::event;
use crate::id::{Id, Kind};
use crate::qp;
use crate::resolve;
use crate::srq;
use crate::sys::*;
use burst_ffi::block;
use std::ffi::c_int;
use std::ptr::null_mut;

/// Timeout for address and route resolution.
const TIMEOUT_MS: c_int = 2000;

/// Binds or resolves a new id as the address list says, and creates its queue pair.
unsafe fn set_up(id: &Id, info: &rdma_addrinfo, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> Outcome<()> {
    // SAFETY: the caller gives addresses of the lengths that the list states, and a valid `init` or NULL.
    unsafe {
        let src = if info.ai_src_addr.is_null() {
            None
        } else {
            Some(resolve::read_sized(info.ai_src_addr, info.ai_src_len)?)
        };
        if info.ai_flags & RAI_PASSIVE as c_int != 0 {
            resolve::bind(id, src.ok_or(EINVAL)?)?;
            if let Some(init) = init.as_ref() {
                lock(&id.known).endpoint = Some((pd, *init));
            }
            return Ok(());
        }
        let dst = resolve::read_sized(info.ai_dst_addr, info.ai_dst_len)?;
        resolve::resolve_addr(id, src, dst, TIMEOUT_MS)?;
        resolve::resolve_route(id, TIMEOUT_MS)?;
        if let Some(init) = init.as_mut() {
            init.qp_type = id.public().qp_type;
            qp::create(id, pd, init)?;
        }
    }
    Ok(())
}

/// `rdma_create_ep`: creates a synchronous id for an address list: bound and ready to listen if the list is passive, else
/// resolved, with a queue pair if `init` is given.
///
/// # Safety
/// `id` must be writable, `info` of [`crate::info::rdma_getaddrinfo`], `pd` NULL or alive, `init` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let info = info.as_ref().ok_or(EINVAL)?;
            if id.is_null() {
                return Err(EINVAL);
            }
            let qp_type = u32::try_from(info.ai_qp_type).map_err(|_| EINVAL)?;
            let kind = Kind { ps: info.ai_port_space as rdma_port_space, qp_type };
            let made = Id::create(null_mut(), null_mut(), kind)?;
            if let Err(e) = set_up(made.as_ref(), info, pd, init) {
                // Report the first error, not that of the destruction.
                let _ = Id::destroy(made.as_ref().as_rdma());
                return Err(e);
            }
            *id = made.as_ref().as_rdma();
        }
        Ok(())
    })
}

/// `rdma_destroy_ep`: destroys the id and its queues.
///
/// # Safety
/// `id` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    boundary::nothing(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let public = Id::from_rdma(id)?.public();
            if !public.qp.is_null() {
                qp::rdma_destroy_qp(id);
            }
            if !public.srq.is_null() {
                srq::rdma_destroy_srq(id);
            }
            Id::destroy(id)
        }
    });
}

/// `rdma_get_request`: waits for the next request of a synchronous listener. The id gets a queue pair if the endpoint was created
/// with attributes for it. The thread may be cancelled while it waits.
///
/// # Safety
/// `listen` must be alive, `id` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    let mut fd = -1;
    let failed = boundary::status(|| {
        // SAFETY: the caller's promise.
        let listener = unsafe { Id::from_rdma(listen) }?;
        if !listener.is_sync() || id.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: a synchronous id's channel is its own.
        fd = unsafe { (*listener.public().channel).fd };
        Ok(())
    });
    if failed != 0 {
        return failed;
    }
    // SAFETY: this frame owns nothing.
    unsafe { block::until_readable(fd) };
    boundary::status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            *id = next_request(Id::from_rdma(listen)?)?;
        }
        Ok(())
    })
}

/// Takes the request of the event that was read.
unsafe fn next_request(listener: &Id) -> Outcome<*mut rdma_cm_id> {
    listener.forget_event();
    // SAFETY: a synchronous id's channel is its own; an event and its id are alive until acknowledged.
    unsafe {
        let event = event::next(listener.public().channel)?;
        let (kind, status, new) = ((*event).event, (*event).status, (*event).id);
        if kind != RDMA_CM_EVENT_CONNECT_REQUEST || status != 0 {
            event::acknowledge(event);
            if kind == RDMA_CM_EVENT_CONNECT_REQUEST {
                Id::destroy(new)?;
            }
            return Err(if status == 0 { EINVAL } else { boundary::Errno(status.abs()) });
        }
        (*new).event = event;
        let endpoint = lock(&listener.known).endpoint;
        if let Some((pd, mut init)) = endpoint {
            init.qp_type = (*new).qp_type;
            if let Err(e) = qp::create(Id::from_rdma(new)?, pd, &mut init) {
                Id::destroy(new)?;
                return Err(e);
            }
        }
        Ok(new)
    }
}

/// `rdma_resolve_addrinfo`: not supported, because Ethernet has no service records.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_resolve_addrinfo() -> c_int {
    boundary::status(|| Err(EOPNOTSUPP))
}

/// As [`rdma_resolve_addrinfo`].
#[unsafe(no_mangle)]
pub extern "C" fn rdma_query_addrinfo() -> c_int {
    boundary::status(|| Err(EOPNOTSUPP))
}

/// `rdma_write_cm_event`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_write_cm_event() -> c_int {
    boundary::status(|| Err(EOPNOTSUPP))
}
