//! Protection domains and memory regions. [`crate::rereg`] and [`crate::dm`] have other kinds of registration.
//!
//! A registration makes the application's pages reachable for the daemon ([`burst_mem::swap`]) and sends it the descriptors.
//! Deregistration goes the other way: the daemon unmaps the pages first, then they become private again.

use crate::boundary::{self, EBADF, EINVAL, EIO, EOPNOTSUPP, Outcome};
use crate::context::VerbsContext;
use crate::domain;
use crate::sys::*;
use burst_base::verbs::access;
use burst_client::raw::memory::{self, MemoryRange, MemorySharing};
use burst_control::{Request, Response};
use std::ffi::{c_int, c_uint, c_void};

/// Access bits for which the memory must be writable.
const WRITES: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Access bits that need IBV_ACCESS_LOCAL_WRITE (IBA 10.6.3.1).
const NEED_LOCAL_WRITE: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Access bits that are known, without the optional ones.
const KNOWN: u32 =
    WRITES | access::REMOTE_READ | access::MW_BIND | access::ZERO_BASED | access::HUGETLB | access::ON_DEMAND;

/// A memory region.
#[repr(C)]
pub struct VerbsMr {
    /// The public struct.
    pub base: ibv_mr,
    /// Rights.
    pub access: u32,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// How the pages are shared; `None` if the daemon reaches them by the process's memory file, or if the region was imported.
    pub registration: Option<MemorySharing>,
}

/// `ibv_alloc_pd`.
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

/// As [`pd_of`], also in a child process.
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

/// The context of a PD and its handle at the daemon.
///
/// # Safety
/// `pd` must be NULL or a live PD of an open context.
pub unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Outcome<(&'a VerbsContext, u32)> {
    // SAFETY: the caller's promise.
    let (context, handle) = unsafe { pd_even_dead(pd) }?;
    if context.is_alive() { Ok((context, handle)) } else { Err(EIO) }
}

/// The access bits of a region.
///
/// # Safety
/// `mr` must be a live region of this library.
pub unsafe fn access_of(mr: *mut ibv_mr) -> u32 {
    // SAFETY: `base` is the first field of an `VerbsMr`.
    unsafe { (*mr.cast::<VerbsMr>()).access }
}

/// Access bits for the daemon: optional bits that it does not use are dropped, unknown ones refused.
pub fn check_access(wanted: u32) -> Outcome<u32> {
    let wanted = wanted & !(access::OPTIONAL & !access::RELAXED_ORDERING);
    if wanted & !(KNOWN | access::RELAXED_ORDERING) != 0 {
        return Err(EOPNOTSUPP);
    }
    if wanted & NEED_LOCAL_WRITE != 0 && wanted & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok(wanted)
}

/// Registers a range and makes the object. `shown` is the address for the public struct.
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
    // As the kernel, which pins no pages then (ib_umem_get).
    if len == 0 {
        return Err(EINVAL);
    }
    let access = check_access(access)?;
    let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
    // SAFETY: the caller's promise.
    unsafe { new_mr(pd, MemoryRange { addr: addr as usize, len, iova, access, replaces: None }, addr) }
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` must be alive; the range must stay mapped until `ibv_dereg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { register(pd, addr, length, addr as u64, access as u32) })
}

/// `ibv_reg_mr_iova`: `iova` is the address of the first byte in work requests.
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

/// `ibv_reg_mr_iova2`: `ibv_reg_mr_iova` with optional access bits.
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

/// `ibv_reg_dmabuf_mr`: memory of a GPU, by the address that programs give as `iova`, which is that on the device. The
/// descriptor is not used: the bytes are copied by CUDA.
///
/// EOPNOTSUPP: the program has not loaded CUDA, the daemon's key `gpu` is off, or `iova` is no address of a device. EBADF:
/// `fd` is no descriptor; by this answer to descriptor -1 UCX and NCCL know that there are such regions.
///
/// # Safety
/// As for `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        if !memory::may_copy_for_devices() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the caller gives a live PD.
        memory::open_copier(unsafe { pd_of(pd) }?.0)?;
        // SAFETY: asks for the flags of a descriptor, if there is one.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(EBADF);
        }
        if length == 0 {
            return Err(EINVAL);
        }
        let access = check_access(access as u32)?;
        if access & access::ZERO_BASED != 0 || !memory::is_on_device(iova, length as u64) {
            return Err(EOPNOTSUPP);
        }
        let range = MemoryRange { addr: iova as usize, len: length, iova, access, replaces: None };
        // SAFETY: the caller's promise.
        unsafe { new_mr(pd, range, offset as usize as *mut c_void) }
    })
}

/// `ibv_dereg_mr`.
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
        context.end_object(&Request::DeregMr { mr: unsafe { (*mr).handle } })?;
        // SAFETY: made by `Box::into_raw` of an `VerbsMr`, and the caller gives it up.
        let mr = unsafe { Box::from_raw(mr.cast::<VerbsMr>()) };
        memory::unshare(context, mr.registration);
        Ok(())
    })
}

/// `ibv_alloc_null_mr`: a region without memory, for SGEs of this program. Data written to it vanishes, and reads return zeros,
/// at any address and for any length.
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
        let (relaxed, unused) = (1 << 20, 1 << 21);
        assert_eq!(check_access(access::LOCAL_WRITE | relaxed | unused), Ok(access::LOCAL_WRITE | relaxed));
        assert_eq!(check_access(access::REMOTE_WRITE), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_ATOMIC), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_READ), Ok(access::REMOTE_READ));
        assert_eq!(check_access(access::ON_DEMAND), Ok(access::ON_DEMAND));
        assert_eq!(check_access(1 << 18), Err(EOPNOTSUPP));
    }
}
