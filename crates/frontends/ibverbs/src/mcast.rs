//! Multicast groups: the daemon joins them and copies what arrives to every queue pair attached.

use crate::boundary::{self, EINVAL, Outcome};
use crate::qp::VerbsQp;
use crate::sys::*;
use burst_control::Request;
use std::ffi::c_int;

unsafe fn change(qp: *mut ibv_qp, gid: *const ibv_gid, make: impl FnOnce(u32, [u8; 16]) -> Request) -> Outcome<()> {
    // SAFETY: the caller gives a live queue pair of an open context and NULL or a valid GID.
    unsafe {
        let (ours, gid) = (VerbsQp::from_ibv(qp)?, gid.as_ref().ok_or(EINVAL)?);
        Ok(ours.context()?.tell(&make((*qp).handle, gid.raw))?)
    }
}

/// Attaches a datagram queue pair to a multicast group, whose GID is an IPv6 multicast address or an IPv4 one mapped. The
/// LID means nothing on Ethernet.
///
/// # Safety
/// `qp` must be alive and `gid` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    boundary::value(|| unsafe { change(qp, gid, |qp, gid| Request::AttachMcast { qp, gid }) })
}

/// Detaches a queue pair; EINVAL if it is not attached.
///
/// # Safety
/// `qp` must be alive and `gid` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    boundary::value(|| unsafe { change(qp, gid, |qp, gid| Request::DetachMcast { qp, gid }) })
}
