//! Protection domains and memory regions (more of the latter: [`crate::rereg`], [`crate::dm`]).
//!
//! A registration makes the application's pages reachable for the daemon ([`burst_mem::swap`]), sends it the descriptors, and
//! keeps what is needed to undo that. The daemon lets go first, then the pages become private again.

use crate::boundary::{self, EINVAL, EIO, EOPNOTSUPP, Outcome};
use crate::context::VerbsContext;
use crate::domain;
use crate::sys::*;
use burst_base::verbs::access;
use burst_client::raw::memory::{self, MemoryRange};
use burst_control::{Request, Response};
use burst_mem::swap::Registration;
use std::ffi::{c_int, c_uint, c_void};

/// Rights that let the program or a peer write.
const WRITES: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Rights that only make sense together with a local write right (IBA 10.6.3.1).
const NEED_LOCAL_WRITE: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Bits that are understood. Optional ones are dropped before.
const KNOWN: u32 =
    WRITES | access::REMOTE_READ | access::MW_BIND | access::ZERO_BASED | access::HUGETLB | access::ON_DEMAND;

/// A memory region.
#[repr(C)]
pub struct VerbsMr {
    /// What applications see.
    pub base: ibv_mr,
    /// Rights.
    pub access: u32,
    /// Address that requests use for the first byte.
    pub iova: u64,
    /// How the pages are shared; none for regions that are reached in the process, or were imported.
    pub registration: Option<Registration>,
}

/// New protection domain.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { VerbsContext::from_ibv(context) }?;
        let Response::Handle(handle) = ours.ask(&Request::AllocPd)? else { return Err(EIO) };
        Ok(domain::new_pd(context, handle))
    })
}

/// A PD's context and daemon number, also in a child process.
///
/// # Safety
/// As for [`pd_of`].
pub unsafe fn pd_even_dead<'a>(pd: *mut ibv_pd) -> Outcome<(&'a VerbsContext, u32)> {
    // SAFETY: the caller gives NULL or a live PD of an open context.
    unsafe {
        let pd = pd.as_ref().ok_or(EINVAL)?;
        Ok((VerbsContext::even_dead(pd.context)?, pd.handle))
    }
}

/// A PD's context and daemon number.
///
/// # Safety
/// `pd` must be NULL or a live PD of an open context.
pub unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Outcome<(&'a VerbsContext, u32)> {
    // SAFETY: the caller's promise.
    let (context, handle) = unsafe { pd_even_dead(pd) }?;
    if context.is_alive() { Ok((context, handle)) } else { Err(EIO) }
}

/// The rights that a region was registered with.
///
/// # Safety
/// `mr` must be a live region of this library.
pub unsafe fn access_of(mr: *mut ibv_mr) -> u32 {
    // SAFETY: `base` is the first field of an `VerbsMr`.
    unsafe { (*mr.cast::<VerbsMr>()).access }
}

/// Rights as the daemon gets them: optional bits dropped, unknown ones refused.
pub fn check_access(wanted: u32) -> Outcome<u32> {
    let wanted = wanted & !access::OPTIONAL;
    if wanted & !KNOWN != 0 {
        return Err(EOPNOTSUPP);
    }
    if wanted & NEED_LOCAL_WRITE != 0 && wanted & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok(wanted)
}

/// Registers a range and makes the object. `shown` is the address in the public struct.
///
/// # Safety
/// `pd` must be alive; the range must stay mapped until `ibv_dereg_mr`.
pub unsafe fn new_mr(pd: *mut ibv_pd, range: MemoryRange, shown: *mut c_void) -> Outcome<*mut ibv_mr> {
    // SAFETY: the caller gives a live PD.
    let (context, pd_handle) = unsafe { pd_of(pd) }?;
    let granted = memory::register(context, pd_handle, range)?;
    let base = ibv_mr {
        context: context.as_ibv(),
        pd,
        addr: shown,
        length: range.len,
        handle: granted.handle,
        lkey: granted.lkey,
        rkey: granted.rkey,
    };
    let mr = VerbsMr { base, access: range.access, iova: range.iova, registration: granted.registration };
    Ok(Box::into_raw(Box::new(mr)).cast())
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: u32) -> Outcome<*mut ibv_mr> {
    let access = check_access(access)?;
    let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
    // SAFETY: the caller's promise.
    unsafe { new_mr(pd, MemoryRange { addr: addr as usize, len, iova, access, replaces: None }, addr) }
}

/// Registers memory.
///
/// # Safety
/// `pd` must be alive; the range must stay mapped until `ibv_dereg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, addr as u64, access as u32) })
}

/// Registers memory that work requests address from `iova` on.
///
/// # Safety
/// As for `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, iova, access as u32) })
}

/// As `ibv_reg_mr_iova`, with optional access bits.
///
/// # Safety
/// As for `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, iova, access) })
}

/// Ends a registration.
///
/// # Safety
/// `mr` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    boundary::value(|| {
        if mr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives a live region of an open context.
        let context = unsafe { VerbsContext::even_dead((*mr).context) }?;
        // SAFETY: as above.
        context.tell_end(&Request::DeregMr { mr: unsafe { (*mr).handle } })?;
        // SAFETY: made by `Box::into_raw` of an `VerbsMr`, and the caller gives it up.
        let mr = unsafe { Box::from_raw(mr.cast::<VerbsMr>()) };
        memory::unshare(context, mr.registration);
        Ok(())
    })
}

/// `ibv_alloc_null_mr`: a region without memory, for this program's work requests. What they write vanishes, what they read is
/// zero, at any address and of any length.
///
/// # Safety
/// `pd` must be alive.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    boundary::pointer(|| {
        // SAFETY: the caller gives a live PD.
        let (context, pd_handle) = unsafe { pd_of(pd) }?;
        let Response::Mr { mr: handle, lkey, .. } = context.ask(&Request::AllocNullMr { pd: pd_handle })? else {
            return Err(EIO);
        };
        // No remote key: the region is for local use only.
        let base = ibv_mr { context: context.as_ibv(), pd, handle, lkey, ..Default::default() };
        let mr = VerbsMr { base, access: access::LOCAL_WRITE, iova: 0, registration: None };
        Ok(Box::into_raw(Box::new(mr)).cast())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_rules() {
        let relaxed = 1 << 20;
        assert_eq!(check_access(access::LOCAL_WRITE | relaxed), Ok(access::LOCAL_WRITE));
        assert_eq!(check_access(access::REMOTE_WRITE), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_ATOMIC), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_READ), Ok(access::REMOTE_READ));
        assert_eq!(check_access(access::ON_DEMAND), Ok(access::ON_DEMAND));
        assert_eq!(check_access(1 << 18), Err(EOPNOTSUPP));
    }
}
