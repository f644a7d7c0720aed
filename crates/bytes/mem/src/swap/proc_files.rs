//! Descriptors of `/proc` that are kept open while pages may be swapped.
//!
//! A fork must know the mappings of its process, or parent and child would write each other's pages. By then the process may have
//! no descriptor left, another root (`chroot`), or a filter that refuses to open files (seccomp). So `/proc/self/maps` is kept
//! open for the parent, and `/proc` for the child, which first closes the parent's file: that leaves it a descriptor for its own.
//!
//! The numbers are high, where programs expect none of their own. A program that closes them all the same, or has another file
//! there, is found out at each use ([`super::vma::Maps::kept`]).

use super::pool::raised;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// `/proc`, and `/proc/self/maps` of the process that has opened it; -1: not open. Changed under the registry's lock.
static DIRECTORY: AtomicI32 = AtomicI32::new(-1);
static MAPS: AtomicI32 = AtomicI32::new(-1);

fn open_at(directory: i32, path: &CStr, flags: i32) -> i32 {
    // SAFETY: a C string.
    unsafe { libc::openat(directory, path.as_ptr(), flags | libc::O_CLOEXEC) }
}

/// Opens a file of this process: `path` begins with `/proc/`. -1: that failed.
pub(crate) fn open(path: &CStr) -> i32 {
    const ROOT: usize = c"/proc/".count_bytes();
    let (directory, below) = (DIRECTORY.load(Relaxed), path.to_bytes_with_nul().get(ROOT..));
    let below = below.and_then(|below| CStr::from_bytes_with_nul(below).ok());
    debug_assert!(below.is_some_and(|below| !below.is_empty()));
    let kept = below.filter(|_| directory >= 0).map_or(-1, |below| open_at(directory, below, libc::O_RDONLY));
    if kept >= 0 { kept } else { open_at(libc::AT_FDCWD, path, libc::O_RDONLY) }
}

/// Opens what is not open yet. False: that failed.
pub(crate) fn keep() -> bool {
    if DIRECTORY.load(Relaxed) < 0 {
        DIRECTORY.store(raised(open_at(libc::AT_FDCWD, c"/proc", libc::O_PATH | libc::O_DIRECTORY)), Relaxed);
    }
    if MAPS.load(Relaxed) < 0 {
        MAPS.store(raised(open(c"/proc/self/maps")), Relaxed);
    }
    DIRECTORY.load(Relaxed) >= 0 && MAPS.load(Relaxed) >= 0
}

/// The descriptor of the file of mappings; -1: none is kept.
pub(crate) fn maps() -> i32 {
    MAPS.load(Relaxed)
}

/// In a child: forgets its parent's file of mappings, and returns its descriptor.
pub(crate) fn forget_maps() -> i32 {
    MAPS.swap(-1, Relaxed)
}
