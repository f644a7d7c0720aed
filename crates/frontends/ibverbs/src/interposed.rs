//! Functions of libc that concern the program's registered memory.
//!
//! * `madvise` and `mremap` do to swapped pages what they do to private ones ([`swap::madvise`], [`swap::mremap`]).
//! * `munmap`, `mprotect` and `mmap` with MAP_FIXED wait while pages are exchanged ([`swap::between_exchanges`]).
//! * `_Fork`, and `clone` without CLONE_VM, give the child memory of its own, as `fork` does ([`swap::fork_by`]): libc runs no
//!   fork handlers for them.
//!
//! The library exports these names without a version. The dynamic loader finds them before libc's wherever the program, or a
//! library that it is linked with, names libibverbs before libc, as all linkers order them. Otherwise, and for memory that is
//! not registered, they call the function behind them in the order of look-ups: libc's, or another library's that interposes it.

use burst_ffi::guarded;
use burst_mem::swap::{self, ChildKind, NewPlace};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type MadviseFunction = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type MremapFunction = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type MunmapFunction = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type MmapFunction = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type ForkFunction = unsafe extern "C" fn() -> c_int;
type ChildFunction = unsafe extern "C" fn(*mut c_void) -> c_int;
type CloneFunction = unsafe extern "C" fn(ChildFunction, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;

/// A function behind this library in the order of look-ups; NULL before the library is initialised, or if there is none.
struct NextFunction(AtomicPtr<c_void>);

impl NextFunction {
    const fn new() -> NextFunction {
        NextFunction(AtomicPtr::new(std::ptr::null_mut()))
    }
    fn find(&self, name: &CStr) {
        // Relaxed: a thread that reads NULL makes the system call itself.
        // SAFETY: a terminated name.
        self.0.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Relaxed);
    }
    /// The function as a function pointer `F`.
    ///
    /// # Safety
    /// The function of this name has the type `F`.
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.0.load(Relaxed);
        // SAFETY: a pointer of the same size that is not NULL, to a function of this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

static MADVISE: NextFunction = NextFunction::new();
static MREMAP: NextFunction = NextFunction::new();
static MUNMAP: NextFunction = NextFunction::new();
static MPROTECT: NextFunction = NextFunction::new();
static MMAP: NextFunction = NextFunction::new();
static FORK: NextFunction = NextFunction::new();
static CLONE: NextFunction = NextFunction::new();

/// Run when the library is loaded, and not at the first call: an allocator calls under locks of its own, and `dlsym` may
/// allocate.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = find_next;

extern "C" fn find_next() {
    MADVISE.find(c"madvise");
    MREMAP.find(c"mremap");
    MUNMAP.find(c"munmap");
    MPROTECT.find(c"mprotect");
    MMAP.find(c"mmap");
    FORK.find(c"_Fork");
    CLONE.find(c"clone");
}

fn next_madvise(at: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller of `madvise` owns the range; the function found by this name has this type.
    unsafe {
        match MADVISE.get::<MadviseFunction>() {
            Some(next) => next(at as *mut c_void, len, advice),
            None => libc::syscall(libc::SYS_madvise, at, len, advice) as c_int,
        }
    }
}

fn next_mremap(old: usize, old_len: usize, new: NewPlace) -> *mut c_void {
    // SAFETY: the caller of `mremap` owns the ranges; the function found by this name takes its fifth argument where it takes
    // those before it, on x86-64 and aarch64.
    unsafe {
        match MREMAP.get::<MremapFunction>() {
            Some(next) => next(old as *mut c_void, old_len, new.len, new.flags, new.at as *mut c_void),
            None => libc::syscall(libc::SYS_mremap, old, old_len, new.len, new.flags, new.at) as *mut c_void,
        }
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

/// Makes a call that changes mappings while no pages are exchanged.
fn apart<R>(call: impl FnOnce() -> R) -> R {
    if swap::is_any_made() { swap::between_exchanges(call) } else { call() }
}

/// `munmap`.
///
/// # Safety
/// As for libc's: the caller owns the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise; the function found by this name has this type.
    apart(|| unsafe {
        match MUNMAP.get::<MunmapFunction>() {
            Some(next) => next(at, len),
            None => libc::syscall(libc::SYS_munmap, at, len) as c_int,
        }
    })
}

/// `mprotect`.
///
/// # Safety
/// As for libc's: the caller owns the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, rights: c_int) -> c_int {
    // SAFETY: the caller's promise; the function found by this name has this type.
    apart(|| unsafe {
        match MPROTECT.get::<MadviseFunction>() {
            Some(next) => next(at, len, rights),
            None => libc::syscall(libc::SYS_mprotect, at, len, rights) as c_int,
        }
    })
}

/// `mmap`.
///
/// # Safety
/// As for libc's: with MAP_FIXED, the caller owns the range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise; the function found by this name has this type.
    let call = || unsafe {
        match MMAP.get::<MmapFunction>() {
            Some(next) => next(at, len, rights, flags, fd, offset),
            None => libc::syscall(libc::SYS_mmap, at, len, rights, flags, fd, offset) as *mut c_void,
        }
    };
    // Otherwise nothing is replaced.
    if flags & libc::MAP_FIXED == 0 { call() } else { apart(call) }
}

/// `mmap64`, the name of `mmap` for programs that ask for long files.
///
/// # Safety
/// As for `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(at, len, rights, flags, fd, offset) }
}

/// `_Fork` (POSIX 2024, glibc 2.34).
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    // SAFETY: the function found by this name has this type. An older libc has none: `fork` is what programs use there.
    let next = || unsafe { FORK.get::<ForkFunction>().map_or_else(|| libc::fork(), |next| next()) };
    // SAFETY: one child, which returns from the call.
    unsafe { swap::fork_by(ChildKind::default(), |_first| next()) }
}

/// What a child of `clone` begins with.
struct CloneStart {
    first: fn(),
    run: ChildFunction,
    argument: *mut c_void,
}

unsafe extern "C" fn start_clone(start: *mut c_void) -> c_int {
    // SAFETY: `clone` passes its own value, of which the child has a copy.
    let start = unsafe { &*start.cast::<CloneStart>() };
    (start.first)();
    // SAFETY: the function that the program has passed, and its argument.
    unsafe { (start.run)(start.argument) }
}

/// `clone`. The arguments behind `argument` are optional in C; those that a caller has not passed are not used by the kernel, and
/// have the contents of registers, or of the caller's stack.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    run: Option<ChildFunction>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    // SAFETY: the function found by this name takes its optional arguments where it takes the others, on x86-64 and aarch64.
    let (Some(run), Some(next)) = (run, unsafe { CLONE.get::<CloneFunction>() }) else {
        let error = if run.is_none() { libc::EINVAL } else { libc::ENOSYS };
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = error };
        return -1;
    };
    let shares_memory = flags & libc::CLONE_VM != 0;
    if shares_memory || stack.is_null() || !swap::is_any_made() {
        // SAFETY: the caller's promise.
        return unsafe { next(run, stack, flags, argument, parent_tid, tls, child_tid) };
    }
    let kind = ChildKind { stack: stack as usize, shares_files: flags & libc::CLONE_FILES != 0 };
    let call = |first: fn()| {
        let mut start = CloneStart { first, run, argument };
        let start = (&raw mut start).cast();
        // SAFETY: the caller's promise; the child has its own copy of `start`.
        unsafe { next(start_clone, stack, flags, start, parent_tid, tls, child_tid) }
    };
    // SAFETY: one child, which begins with `first`.
    unsafe { swap::fork_by(kind, call) }
}
