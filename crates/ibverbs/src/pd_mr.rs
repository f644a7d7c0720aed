//! Protection domains and memory regions.
//!
//! A registration makes the application's pages reachable for the daemon ([`burst_mem::swap`]), sends it the descriptors, and
//! keeps what is needed to undo that. The daemon lets go first, then the pages become private again.

use crate::context::Context;
use crate::door::{self, EINVAL, EIO, ENOMEM, EOPNOTSUPP, Errno, Outcome};
use crate::sys::*;
use burst_base::verbs::access;
use burst_control::{MrPiece, MrPieceKind, Request, Response};
use burst_mem::swap::{self, Kind, RegisterError, Registration};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

/// Rights that let somebody write.
const WRITES: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Rights that only make sense together with a local write right (IBA 10.6.3.1).
const NEED_LOCAL_WRITE: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Bits that are understood. Optional ones are dropped before.
const KNOWN: u32 = WRITES | access::REMOTE_READ | access::MW_BIND | access::ZERO_BASED | access::HUGETLB;

/// A memory region.
#[repr(C)]
struct Mr {
    base: ibv_mr,
    access: u32,
    iova: u64,
    registration: Option<Registration>,
}

/// New protection domain.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    door::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { Context::from_ibv(context) }?;
        let Response::Handle(handle) = ours.ask(&Request::AllocPd)? else { return Err(EIO) };
        Ok(Box::into_raw(Box::new(ibv_pd { context, handle })))
    })
}

/// Ends a protection domain; EBUSY while something uses it.
///
/// # Safety
/// `pd` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    door::value(|| {
        // SAFETY: the caller gives a live PD of an open context.
        let (context, handle) = unsafe { pd_even_dead(pd) }?;
        context.tell_end(&Request::DeallocPd { pd: handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(pd) });
        Ok(())
    })
}

unsafe fn pd_even_dead<'a>(pd: *mut ibv_pd) -> Outcome<(&'a Context, u32)> {
    // SAFETY: the caller gives NULL or a live PD of an open context.
    unsafe {
        let pd = pd.as_ref().ok_or(EINVAL)?;
        Ok((Context::even_dead(pd.context)?, pd.handle))
    }
}

/// A PD's context and daemon number.
///
/// # Safety
/// `pd` must be NULL or a live PD of an open context.
pub unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Outcome<(&'a Context, u32)> {
    // SAFETY: the caller's promise.
    let (context, handle) = unsafe { pd_even_dead(pd) }?;
    if context.is_alive() { Ok((context, handle)) } else { Err(EIO) }
}

/// The rights that a region was registered with.
///
/// # Safety
/// `mr` must be a live region of this library.
pub unsafe fn access_of(mr: *mut ibv_mr) -> u32 {
    // SAFETY: `base` is the first field of an `Mr`.
    unsafe { (*mr.cast::<Mr>()).access }
}

/// Rights as the daemon gets them: optional bits dropped, unknown ones refused.
fn check_access(wanted: u32) -> Outcome<u32> {
    let wanted = wanted & !access::OPTIONAL;
    if wanted & !KNOWN != 0 {
        return Err(EOPNOTSUPP);
    }
    if wanted & NEED_LOCAL_WRITE != 0 && wanted & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    Ok(wanted)
}

fn share(addr: usize, len: usize, access: u32) -> Outcome<Option<Registration>> {
    if len == 0 {
        return Ok(None);
    }
    swap::register(addr, len, access & WRITES != 0).map(Some).map_err(|e| match e {
        RegisterError::Fault => Errno(libc::EFAULT),
        RegisterError::BadRange => EINVAL,
        #[allow(unreachable_patterns)]
        _ => ENOMEM,
    })
}

fn pieces_of(registration: &Registration) -> Vec<MrPiece> {
    let kind = |k: Kind| match k {
        Kind::Fd { fd, offset } => MrPieceKind::Fd { fd: fd as u32, offset },
        Kind::ProcessVm => MrPieceKind::ProcessVm,
    };
    registration
        .pieces()
        .iter()
        .map(|p| MrPiece { addr: p.addr as u64, len: p.len as u64, kind: kind(p.kind) })
        .collect()
}

/// What the application asked for.
#[derive(Clone, Copy)]
struct Range {
    addr: usize,
    len: usize,
    iova: u64,
    access: u32,
}

/// Keys and number of a registration at the daemon.
struct Granted {
    handle: u32,
    lkey: u32,
    rkey: u32,
    registration: Option<Registration>,
}

fn register_at_daemon(context: &Context, pd: u32, range: Range) -> Outcome<Granted> {
    let registration = share(range.addr, range.len, range.access)?;
    let pieces = registration.as_ref().map(pieces_of).unwrap_or_default();
    let fds: Vec<BorrowedFd<'_>> =
        registration.as_ref().map(|r| (0..r.fds()).filter_map(|i| r.fd(i)).collect()).unwrap_or_default();
    let request = Request::RegMr {
        pd,
        addr: range.addr as u64,
        len: range.len as u64,
        iova: range.iova,
        access: range.access,
        pieces,
    };
    let answer = context.call(&request, &fds);
    drop(fds);
    match answer.map(|a| a.response) {
        Ok(Response::Mr { mr, lkey, rkey }) => Ok(Granted { handle: mr, lkey, rkey, registration }),
        other => {
            if let Some(r) = registration {
                swap::release(r);
            }
            Err(other.err().unwrap_or(EIO))
        }
    }
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: u32) -> Outcome<*mut ibv_mr> {
    // SAFETY: the caller gives a live PD.
    let (context, pd_handle) = unsafe { pd_of(pd) }?;
    let access = check_access(access)?;
    let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
    let range = Range { addr: addr as usize, len, iova, access };
    let granted = register_at_daemon(context, pd_handle, range)?;
    let base = ibv_mr {
        context: context.as_ibv(),
        pd,
        addr,
        length: len,
        handle: granted.handle,
        lkey: granted.lkey,
        rkey: granted.rkey,
    };
    Ok(Box::into_raw(Box::new(Mr { base, access, iova, registration: granted.registration })).cast())
}

/// Registers memory.
///
/// # Safety
/// `pd` must be alive; the range must stay mapped until `ibv_dereg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    door::pointer(|| unsafe { register(pd, addr, length, addr as u64, access as u32) })
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
    door::pointer(|| unsafe { register(pd, addr, length, iova, access as u32) })
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
    door::pointer(|| unsafe { register(pd, addr, length, iova, access) })
}

/// Gives the pages back, unless they are the parent's affair.
fn unshare(context: &Context, registration: Option<Registration>) {
    match registration {
        Some(r) if context.is_alive() => swap::release(r),
        // In a child: the descriptors and mappings are copies that end with the process.
        other => std::mem::forget(other),
    }
}

/// Ends a registration.
///
/// # Safety
/// `mr` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    door::value(|| {
        if mr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives a live region of an open context.
        let context = unsafe { Context::even_dead((*mr).context) }?;
        // SAFETY: as above.
        context.tell_end(&Request::DeregMr { mr: unsafe { (*mr).handle } })?;
        // SAFETY: made by `Box::into_raw` of an `Mr`, and the caller gives it up.
        let mr = unsafe { Box::from_raw(mr.cast::<Mr>()) };
        unshare(context, mr.registration);
        Ok(())
    })
}

/// Changes a region's range, PD or rights. The new registration is made before the old one ends; keys change.
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
    let rc = door::value(|| {
        let flags = flags as u32;
        let all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        // SAFETY: the caller gives a live region.
        let mr = unsafe { mr.cast::<Mr>().as_mut() }.ok_or(EINVAL)?;
        if flags == 0 || flags & !all != 0 {
            return Err(EINVAL);
        }
        let new_pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 { pd } else { mr.base.pd };
        // SAFETY: the region's PD is alive, or the caller gives one.
        let (context, pd_handle) = unsafe { pd_of(new_pd) }?;
        let moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
        let (addr, len, iova) =
            if moved { (addr, length, addr as u64) } else { (mr.base.addr, mr.base.length, mr.iova) };
        let access = if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 { check_access(access as u32)? } else { mr.access };
        let granted = register_at_daemon(context, pd_handle, Range { addr: addr as usize, len, iova, access })?;
        let old = std::mem::replace(&mut mr.registration, granted.registration);
        let old_handle = std::mem::replace(&mut mr.base.handle, granted.handle);
        (mr.base.pd, mr.base.addr, mr.base.length) = (new_pd, addr, len);
        (mr.base.lkey, mr.base.rkey) = (granted.lkey, granted.rkey);
        (mr.access, mr.iova) = (access, iova);
        context.tell_end(&Request::DeregMr { mr: old_handle })?;
        unshare(context, old);
        Ok(())
    });
    if rc == 0 { 0 } else { IBV_REREG_MR_ERR_INPUT }
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
        assert_eq!(check_access(access::ON_DEMAND), Err(EOPNOTSUPP));
    }
}
