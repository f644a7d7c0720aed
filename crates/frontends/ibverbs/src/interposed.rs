//! `madvise` and `mremap` of the program, which concern its registered memory: [`burst_mem::swap::madvise`] says what they do.
//!
//! The library exports both names without a version. The dynamic loader finds them before libc's wherever the program, or a
//! library that it is linked with, names libibverbs before libc, as all linkers order them. For memory that is not registered
//! they call the function behind them in the order of look-ups: libc's, or another library's that interposes it, too.

use burst_ffi::guarded;
use burst_mem::swap::{self, NewPlace};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type MadviseFunction = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type MremapFunction = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;

/// A function behind this library in the order of look-ups; NULL before the library is initialised.
static NEXT_MADVISE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_MREMAP: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Run when the library is loaded, and not at the first call: an allocator calls under locks of its own, and `dlsym` may
/// allocate.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = find_next;

extern "C" fn find_next() {
    let next = |name: &CStr| {
        // SAFETY: a terminated name.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
    };
    // Relaxed: a thread that reads NULL makes the system call itself.
    NEXT_MADVISE.store(next(c"madvise"), Relaxed);
    NEXT_MREMAP.store(next(c"mremap"), Relaxed);
}

fn next_madvise(at: usize, len: usize, advice: c_int) -> c_int {
    let next = NEXT_MADVISE.load(Relaxed);
    // SAFETY: the caller of `madvise` owns the range; the function found by this name has this type.
    unsafe {
        if next.is_null() {
            return libc::syscall(libc::SYS_madvise, at, len, advice) as c_int;
        }
        std::mem::transmute::<*mut c_void, MadviseFunction>(next)(at as *mut c_void, len, advice)
    }
}

fn next_mremap(old: usize, old_len: usize, new: NewPlace) -> *mut c_void {
    let next = NEXT_MREMAP.load(Relaxed);
    // SAFETY: the caller of `mremap` owns the ranges; the function found by this name takes its fifth argument where it takes
    // those before it, on x86-64 and aarch64.
    unsafe {
        if next.is_null() {
            return libc::syscall(libc::SYS_mremap, old, old_len, new.len, new.flags, new.at) as *mut c_void;
        }
        let next = std::mem::transmute::<*mut c_void, MremapFunction>(next);
        next(old as *mut c_void, old_len, new.len, new.flags, new.at as *mut c_void)
    }
}

/// `madvise`.
///
/// # Safety
/// As for libc's: the caller owns the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // A program that registers nothing pays for one look.
    if !swap::is_any_made() {
        return next_madvise(at as usize, len, advice);
    }
    // SAFETY: the caller's promise.
    guarded(|| Ok(unsafe { swap::madvise(at as usize, len, advice, next_madvise) })).unwrap_or(-1)
}

/// `mremap`; `to` is used with MREMAP_FIXED only.
///
/// # Safety
/// As for libc's: the caller owns the ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let new = NewPlace { len, flags, at: to as usize };
    if !swap::is_any_made() {
        return next_mremap(old as usize, old_len, new);
    }
    // SAFETY: the caller's promise.
    guarded(|| Ok(unsafe { swap::mremap(old as usize, old_len, new, next_mremap) })).unwrap_or(libc::MAP_FAILED)
}
