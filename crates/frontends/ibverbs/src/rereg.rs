//! `ibv_rereg_mr` and `ibv_advise_mr`.
//!
//! A re-registered region keeps its handle and keys. The daemon replaces the old region by the new one in every worker's table
//! before the old pages become private again.

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::context::VerbsContext;
use crate::pd_mr::{VerbsMr, check_access, pd_of};
use crate::sys::*;
use burst_base::verbs::access;
use burst_client::raw::memory::{self, MemoryRange};
use std::ffi::{c_int, c_void};

/// All flags of `ibv_rereg_mr`.
const CHANGES: u32 = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

/// `ibv_rereg_mr`: changes range, PD or access bits of a region; the keys stay.
///
/// # Safety
/// `mr` must be alive, and `pd` if it is to change; no work request may use the region meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let new = ibv_mr { pd, addr, length, ..Default::default() };
    // SAFETY: the caller's promise.
    let rc = boundary::value(|| unsafe { change(mr, flags as u32, &new, access as u32) });
    if rc == 0 { 0 } else { IBV_REREG_MR_ERR_INPUT }
}

unsafe fn change(mr: *mut ibv_mr, flags: u32, new: &ibv_mr, access: u32) -> Outcome<()> {
    // SAFETY: the caller gives a live region.
    let mr = unsafe { mr.cast::<VerbsMr>().as_mut() }.ok_or(EINVAL)?;
    if flags == 0 || flags & !CHANGES != 0 {
        return Err(EINVAL);
    }
    let pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 { new.pd } else { mr.base.pd };
    // SAFETY: the region's PD is alive, or the caller gives one.
    let (context, pd_handle): (&VerbsContext, u32) = unsafe { pd_of(pd) }?;
    let moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    let (addr, len) = if moved { (new.addr, new.length) } else { (mr.base.addr, mr.base.length) };
    let access = if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 { check_access(access)? } else { mr.access };
    let iova = match (access & access::ZERO_BASED != 0, moved) {
        (true, _) => 0,
        (false, true) => addr as u64,
        (false, false) => mr.iova,
    };
    let range = MemoryRange { addr: addr as usize, len, iova, access, replaces: Some(mr.base.handle) };
    let granted = memory::register(context, pd_handle, range)?;
    let old = std::mem::replace(&mut mr.registration, granted.registration);
    (mr.base.pd, mr.base.addr, mr.base.length) = (pd, addr, len);
    (mr.access, mr.iova) = (access, iova);
    memory::unshare(context, old);
    Ok(())
}

/// `ibv_advise_mr`: checks the ranges, as a prefetch would, but fetches nothing: the daemon reaches pages on demand.
///
/// # Safety
/// `pd` must be alive and `list` valid for `count` entries.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live PD.
        unsafe { pd_of(pd) }?;
        if advice > ADVICE_LAST || flags & !ADVICE_FLUSH != 0 {
            return Err(EOPNOTSUPP);
        }
        if count == 0 || list.is_null() {
            return Err(EINVAL);
        }
        Ok(())
    })
}

/// The last kind of advice. The kinds are prefetch for reading, for writing, and without faults.
const ADVICE_LAST: u32 = 2;
/// Flag: wait until the advice is carried out.
const ADVICE_FLUSH: u32 = 1;
