//! Opening and closing contexts, and the table of operations in each open context.
//!
//! Inline functions of the verbs headers call most operations through the table. Only this module depends on all others:
//! [`VerbsContext::open`] gets the table as an argument, so that no module depends on this one.

use crate::boundary::{self, EINVAL};
use crate::context::VerbsContext;
use crate::context_name::read_name;
use crate::device::{VerbsDevice, device_at};
use crate::sys::*;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// The operations of an open context. Extended operations that are not offered stay NULL; programs then see EOPNOTSUPP. Headers
/// call the data path operations and those of memory windows without a NULL test, so these are always set.
fn operations() -> verbs_context {
    let mut verbs = verbs_context {
        query_port: Some(crate::port::query_port),
        query_device_ex: Some(crate::port::query_device_ex),
        create_qp_ex: Some(crate::qp::create_qp_ex),
        create_cq_ex: Some(crate::cq_ex::create_cq_ex),
        modify_cq: Some(crate::cq_ex::modify_cq),
        query_rt_values: Some(crate::cq_ex::query_rt_values),
        advise_mr: Some(crate::rereg::advise_mr),
        alloc_null_mr: Some(crate::pd_mr::alloc_null_mr),
        alloc_dm: Some(crate::dm::alloc_dm),
        free_dm: Some(crate::dm::free_dm),
        reg_dm_mr: Some(crate::dm::reg_dm_mr),
        alloc_td: Some(crate::domain::alloc_td),
        dealloc_td: Some(crate::domain::dealloc_td),
        alloc_parent_domain: Some(crate::domain::alloc_parent_domain),
        open_xrcd: Some(crate::xrc::open_xrcd),
        close_xrcd: Some(crate::xrc::close_xrcd),
        create_srq_ex: Some(crate::xrc::create_srq_ex),
        get_srq_num: Some(crate::xrc::get_srq_num),
        open_qp: Some(crate::xrc::open_qp),
        sz: size_of::<verbs_context>(),
        ..Default::default()
    };
    let ops = &mut verbs.context.ops;
    ops.poll_cq = Some(crate::poll::poll_cq);
    ops.req_notify_cq = Some(crate::poll::req_notify_cq);
    ops.post_send = Some(crate::post::post_send);
    ops.post_recv = Some(crate::post::post_recv);
    ops.post_srq_recv = Some(crate::post::post_srq_recv);
    ops.alloc_mw = Some(crate::mw::alloc_mw);
    ops.dealloc_mw = Some(crate::mw::dealloc_mw);
    ops.bind_mw = Some(crate::mw::bind_mw);
    verbs
}

/// `ibv_open_device`: opens a context, which has its own connection to the daemon.
///
/// # Safety
/// `device` must come from a list that is not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    boundary::pointer(|| {
        // SAFETY: the caller gives a device of ours.
        let device = unsafe { VerbsDevice::from_ibv(device) }?;
        VerbsContext::open(device, None, operations())
    })
}

/// `ibv_close_device`. The daemon destroys the objects that the program has left.
///
/// # Safety
/// `context` must be open; nothing of it may be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context.
        unsafe { VerbsContext::close(context) }
    })
}

/// `ibv_import_device`: opens a context that can import objects of the context of `cmd_fd`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    boundary::pointer(|| {
        if cmd_fd < 0 {
            return Err(EINVAL);
        }
        let named = read_name(cmd_fd)?;
        let device = device_at(&named.place()?, named.device)?;
        // SAFETY: `device_at` gives one reference, which is ours to release; the context holds its own.
        let opened = unsafe {
            VerbsDevice::from_ibv(device).and_then(|d| VerbsContext::open(d, Some(named.token), operations()))
        };
        // SAFETY: as above.
        unsafe { VerbsDevice::release(device) };
        // As verbs say, the library owns `cmd_fd` after this call; the new context has a file of its own.
        // SAFETY: the caller gives it up.
        opened.inspect(|_| unsafe { drop(OwnedFd::from_raw_fd(cmd_fd)) })
    })
}
