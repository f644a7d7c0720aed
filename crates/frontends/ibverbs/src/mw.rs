//! Memory windows: work requests open a part of a region to peers and close it again, without the daemon's control thread.
//!
//! `ibv_bind_mw` binds a window of type 1: it posts the request and chooses the next key. A window of type 2 is bound by a work
//! request of the program, which chooses the low byte of the new key (`ibv_inc_rkey`). The worker checks the request when it
//! executes it; errors that this library can see are refused at once.

use crate::boundary::{self, EINVAL, EIO, Outcome};
use crate::context::VerbsContext;
use crate::pd_mr::{access_of, pd_of};
use crate::post;
use crate::qp::VerbsQp;
use crate::sys::*;
use burst_base::verbs::{MwType, access};
use burst_control::{Request, Response};
use burst_shm::SendWqe;
use std::ffi::c_int;

/// Rights that a window can give, and `IBV_ACCESS_ZERO_BASED`.
const RIGHTS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::ZERO_BASED;

/// `ibv_alloc_mw`.
///
/// # Safety
/// `pd` must be alive.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    boundary::pointer(|| {
        // SAFETY: the caller gives a live PD.
        let (context, pd_handle) = unsafe { pd_of(pd) }?;
        let mw_type = MwType::from_number(kind).ok_or(EINVAL)?;
        let Response::Mw { mw: handle, rkey } = context.ask(&Request::AllocMw { pd: pd_handle, mw_type })? else {
            return Err(EIO);
        };
        let mw = ibv_mw { context: context.as_ibv(), pd, rkey, handle, type_: kind };
        Ok(Box::into_raw(Box::new(mw)))
    })
}

/// `ibv_dealloc_mw`, also for bound windows.
///
/// # Safety
/// `mw` must be alive; it is gone afterwards.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live window of an open context.
        let ours = unsafe { mw.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.context) }?;
        context.end_object(&Request::DeallocMw { mw: ours.handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(mw) });
        Ok(())
    })
}

/// Checks a bind request; returns the fields of its queue entry.
///
/// # Safety
/// `mw` must be NULL or alive, `bind` NULL or valid.
pub unsafe fn bind_fields(mw: *mut ibv_mw, rkey: u32, bind: *const ibv_mw_bind_info) -> Outcome<SendWqe> {
    // SAFETY: the caller's promise.
    let (mw, bind) = unsafe { (mw.as_ref().ok_or(EINVAL)?, bind.as_ref().ok_or(EINVAL)?) };
    if bind.mw_access_flags & !RIGHTS != 0 {
        return Err(EINVAL);
    }
    let lkey = if bind.length == 0 {
        0
    } else {
        // SAFETY: the caller gives a live region.
        let (mr, rights) = unsafe { (bind.mr.as_ref().ok_or(EINVAL)?, access_of(bind.mr)) };
        let writes = bind.mw_access_flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        if rights & access::MW_BIND == 0 || (writes && rights & access::LOCAL_WRITE == 0) {
            return Err(EINVAL);
        }
        mr.lkey
    };
    Ok(SendWqe {
        imm: mw.rkey,
        rkey,
        remote_addr: bind.addr,
        compare_add: bind.length,
        swap: u64::from(lkey) << 32 | u64::from(bind.mw_access_flags),
        ..SendWqe::default()
    })
}

/// The next key of a window: its low byte is incremented.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// `ibv_bind_mw`: binds a window of type 1. A length of 0 unbinds it.
///
/// # Safety
/// `qp` and `mw` must be alive, `bind` valid.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives live objects and a valid description.
        unsafe {
            let (ours, window) = (VerbsQp::from_ibv(qp)?, mw.as_mut().ok_or(EINVAL)?);
            let bind = bind.as_ref().ok_or(EINVAL)?;
            // Only windows of type 2 can be zero based.
            let zero_based = bind.bind_info.mw_access_flags & access::ZERO_BASED != 0;
            if window.type_ != IBV_MW_TYPE_1 || zero_based {
                return Err(EINVAL);
            }
            let rkey = next_key(window.rkey);
            let fields = bind_fields(mw, rkey, &bind.bind_info)?;
            post::bind(ours, bind.wr_id, bind.send_flags, fields)?;
            window.rkey = rkey;
            Ok(())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_changes_only_the_low_byte() {
        assert_eq!(next_key(0x1234_56fe), 0x1234_56ff);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }
}
