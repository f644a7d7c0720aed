//! Multicast groups. The daemon joins a group and copies each datagram to every attached queue pair.

use crate::boundary::{self, EINVAL, Outcome};
use crate::qp::VerbsQp;
use crate::sys::*;
use burst_control::Request;
use std::ffi::c_int;

unsafe fn change(qp: *mut ibv_qp, gid: *const ibv_gid, make: impl FnOnce(u32, [u8; 16]) -> Request) -> Outcome<()> {
    // SAFETY: the caller gives a live queue pair of an open context and NULL or a valid GID.
    unsafe {
        let (ours, gid) = (VerbsQp::from_ibv(qp)?, gid.as_ref().ok_or(EINVAL)?);
        Ok(ours.context()?.execute(&make((*qp).handle, gid.raw))?)
    }
}

/// `ibv_attach_mcast`: attaches a datagram queue pair to a multicast group. The GID is an IPv6 multicast address or a mapped
/// IPv4 multicast address; the LID has no meaning on Ethernet.
///
/// # Safety
/// `qp` must be alive and `gid` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    boundary::value(|| unsafe { change(qp, gid, |qp, gid| Request::AttachMcast { qp, gid }) })
}

/// `ibv_detach_mcast`: EINVAL if the queue pair is not attached.
///
/// # Safety
/// `qp` must be alive and `gid` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller's promise.
    boundary::value(|| unsafe { change(qp, gid, |qp, gid| Request::DetachMcast { qp, gid }) })
}
