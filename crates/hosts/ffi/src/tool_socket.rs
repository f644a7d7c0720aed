//! The socket by which tools look at an engine inside a program, when the program forks or ends: the file is removed with the
//! process that has made it, and a child closes its copy of the descriptor, because a tool that connects to a dead parent's would
//! wait for ever.

use std::ffi::{CString, c_char};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The listening socket; -1: none.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// Its file, a C string; null: none.
static FILE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Remembers the socket of this process and its file.
pub fn note(path: &Path, listener: RawFd) {
    LISTENER.store(listener, Ordering::Relaxed);
    let name = CString::new(path.as_os_str().as_bytes()).ok();
    FILE.store(name.map_or(null_mut(), CString::into_raw), Ordering::Release);
}

/// Removes the file, once, and forgets the socket, which its owner closes.
pub fn remove() {
    LISTENER.store(-1, Ordering::Relaxed);
    let file = FILE.swap(null_mut(), Ordering::AcqRel);
    if !file.is_null() {
        // SAFETY: made by `CString::into_raw`, and taken out by this thread alone.
        unsafe {
            libc::unlink(file);
            drop(CString::from_raw(file));
        }
    }
}

/// In a child after fork: closes the parent's socket. The file is the parent's; its name is leaked, because a child may not free
/// memory.
pub fn close_in_child() {
    FILE.store(null_mut(), Ordering::Relaxed);
    let listener = LISTENER.swap(-1, Ordering::Relaxed);
    if listener >= 0 {
        // SAFETY: a copy of the parent's descriptor that nothing in the child uses. `close` may be called after fork.
        unsafe { libc::close(listener) };
    }
}
