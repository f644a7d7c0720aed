//! The objects of protection domains, parent domains and thread domains.
//!
//! A parent domain adds to a protection domain a thread domain (one thread at a time uses its objects) and allocators for queue
//! memory. Both are accepted without effect: locks cost a few instructions here, and queues are in the daemon's memory. At the
//! daemon a parent domain is its protection domain.

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::context::VerbsContext;
use crate::pd_mr::pd_even_dead;
use crate::sys::*;
use burst_control::Request;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

const EBUSY: Errno = Errno(libc::EBUSY);

/// A protection domain, or a parent domain.
#[repr(C)]
struct VerbsPd {
    base: ibv_pd,
    /// Number of parent domains of this protection domain.
    children: AtomicU32,
    /// Of a parent domain: its protection domain. NULL in a protection domain.
    pd: *mut ibv_pd,
    td: *mut ibv_td,
}

/// A thread domain.
#[repr(C)]
struct VerbsTd {
    base: ibv_td,
    /// Number of parent domains that name this thread domain.
    users: AtomicU32,
}

fn make(context: *mut ibv_context, handle: u32, pd: *mut ibv_pd, td: *mut ibv_td) -> *mut ibv_pd {
    let base = ibv_pd { context, handle };
    Box::into_raw(Box::new(VerbsPd { base, children: AtomicU32::new(0), pd, td })).cast()
}

/// Makes the object of the protection domain with the daemon's handle `handle`.
pub fn new_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    make(context, handle, null_mut(), null_mut())
}

unsafe fn ours<'a>(pd: *mut ibv_pd) -> Option<&'a VerbsPd> {
    // SAFETY: the caller gives NULL or a domain that `make` made.
    unsafe { pd.cast::<VerbsPd>().as_ref() }
}

/// `ibv_alloc_parent_domain`.
///
/// # Safety
/// `context` must be open and `attr` valid.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context, a valid struct and live objects in it.
        unsafe {
            VerbsContext::from_ibv(context)?;
            let attr = attr.as_ref().ok_or(EINVAL)?;
            let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
            if attr.comp_mask & !known != 0 {
                return Err(EOPNOTSUPP);
            }
            let pd = ours(attr.pd).ok_or(EINVAL)?;
            pd.children.fetch_add(1, Ordering::Relaxed);
            if let Some(td) = attr.td.cast::<VerbsTd>().as_ref() {
                td.users.fetch_add(1, Ordering::Relaxed);
            }
            Ok(make(context, pd.base.handle, attr.pd, attr.td))
        }
    })
}

/// `ibv_dealloc_pd`, also for parent domains: EBUSY while an object uses it.
///
/// # Safety
/// `pd` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    boundary::value(|| unsafe { dealloc(pd) })
}

unsafe fn dealloc(pd: *mut ibv_pd) -> Outcome<()> {
    // SAFETY: the caller gives a live domain of an open context.
    let ((context, handle), this) = unsafe { (pd_even_dead(pd)?, ours(pd).ok_or(EINVAL)?) };
    if this.children.load(Ordering::Relaxed) != 0 {
        return Err(EBUSY);
    }
    if this.pd.is_null() {
        context.release_prealloc(|init| init.pd == handle);
        context.end_object(&Request::DeallocPd { pd: handle })?;
    }
    // SAFETY: made by `Box::into_raw`, and the caller gives it up; what a parent domain was made of outlives it.
    unsafe {
        if let Some(parent) = ours(this.pd) {
            parent.children.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(td) = this.td.cast::<VerbsTd>().as_ref() {
            td.users.fetch_sub(1, Ordering::Relaxed);
        }
        drop(Box::from_raw(pd.cast::<VerbsPd>()));
    }
    Ok(())
}

/// `ibv_alloc_td`.
///
/// # Safety
/// `context` must be open and `attr` valid.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context and a valid struct.
        let attr = unsafe {
            VerbsContext::from_ibv(context)?;
            attr.as_ref().ok_or(EINVAL)?
        };
        if attr.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Box::into_raw(Box::new(VerbsTd { base: ibv_td { context }, users: AtomicU32::new(0) })).cast())
    })
}

/// `ibv_dealloc_td`; EBUSY while a parent domain names it.
///
/// # Safety
/// `td` must be alive; it is gone afterwards.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live thread domain.
        let this = unsafe { td.cast::<VerbsTd>().as_ref() }.ok_or(EINVAL)?;
        if this.users.load(Ordering::Relaxed) != 0 {
            return Err(EBUSY);
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(td.cast::<VerbsTd>()) });
        Ok(())
    })
}
