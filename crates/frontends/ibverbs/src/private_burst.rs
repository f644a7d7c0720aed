//! Functions for Burst's `librdmacm.so.1` and `liburma.so.0` that verbs do not have: the version node BURST_PRIVATE_1.
//!
//! The connection manager has its own connection to the daemon. The token of a context, which only the context's connection can
//! request, proves there that a queue pair is this program's. The connection manager also moves new queue pairs to their first
//! states; such a move cannot fail and needs no reply.
//!
//! All libraries of a process that register memory use one registry (`burst_mem::swap`), which this library's may be.

use crate::attr;
use crate::boundary::{self, EINVAL, EIO};
use crate::context::VerbsContext;
use crate::qp::VerbsQp;
use crate::sys::{ibv_context, ibv_qp, ibv_qp_attr, ibv_qp_state};
use burst_base::verbs::{QpState, QpType, attr_mask};
use burst_control::{Request, Response};
use burst_mem::swap::{self, RegistryTable};
use std::ffi::c_int;

/// The functions of this library's registry of memory.
#[unsafe(no_mangle)]
pub extern "C" fn burst_memory_registry() -> *const RegistryTable {
    swap::own_registry()
}

/// Gets the token of a context, for [`burst_control::cm::CmQp`]. Returns an errno value.
///
/// # Safety
/// `context` must be open, `token` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn burst_context_token(context: *mut ibv_context, token: *mut u64) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context and a writable place.
        let (context, token) = unsafe { (VerbsContext::from_ibv(context)?, token.as_mut().ok_or(EINVAL)?) };
        let Response::Token(number) = context.ask(&Request::Token)? else { return Err(EIO) };
        *token = number;
        Ok(())
    })
}

/// Changes attributes without waiting for the daemon: for new queue pairs, and for changes that the daemon cannot refuse. The
/// daemon handles later requests of this context after the change. A move to INIT, except of a UD queue pair, is sent only before
/// the next request for this queue pair, and not at all if the connection manager moves it on. Returns an errno value.
///
/// # Safety
/// `qp` must be alive and `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn burst_modify_qp_without_reply(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live queue pair of an open context and a valid struct.
        let (ours, given) = unsafe { (VerbsQp::from_ibv(qp)?, attr.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        let mask = mask as u32;
        let attr = attr::qp_from_ibv(given, mask)?;
        if mask & attr_mask::STATE != 0 && attr.qp_state == QpState::Init && ours.qp_type != QpType::Ud {
            ours.defer_init(attr, mask);
        } else {
            ours.modify_without_reply(context, attr, mask)?;
        }
        if mask & attr_mask::STATE != 0 {
            // SAFETY: an aligned word of a live struct; applications only read it.
            unsafe { (&raw mut (*qp).state).write_volatile(attr.qp_state as ibv_qp_state) };
        }
        Ok(())
    })
}
