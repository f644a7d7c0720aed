//! What our own `librdmacm.so.1` asks of this library beyond verbs: the version node BURST_PRIVATE_1.
//!
//! The connection manager talks to the daemon over a connection of its own. What it must prove there is that a queue pair is
//! this program's: by the token of the context, which only the context's connection can ask for.

use crate::context::Context;
use crate::door::{self, EINVAL, EIO};
use crate::sys::ibv_context;
use burst_control::{Request, Response};
use std::ffi::c_int;

/// The token of a context, for [`burst_control::cm::CmQp`]. Returns an errno value.
///
/// # Safety
/// `context` must be open, `token` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn burst_context_token(context: *mut ibv_context, token: *mut u64) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives an open context and a writable place.
        let (context, token) = unsafe { (Context::from_ibv(context)?, token.as_mut().ok_or(EINVAL)?) };
        let Response::Token(number) = context.ask(&Request::Token)? else { return Err(EIO) };
        *token = number;
        Ok(())
    })
}
