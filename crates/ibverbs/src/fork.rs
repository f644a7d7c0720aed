//! Life after fork: a child inherits our mappings, but its parent's contexts are not its own.
//!
//! Each context holds a [`LifePage`], a private page that the kernel wipes in a child (`MADV_WIPEONFORK`). Every door and
//! every post or poll looks at it first; in a child it reads 0 and the call fails with EIO, no lock taken. There is no
//! fork handler, so nothing runs in a child that does not use verbs. Registered memory needs none of the traditional
//! `ibv_fork_init` machinery: pages are shared by descriptor, not pinned.

use crate::door::{ENOMEM, Outcome};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;

/// A word that becomes 0 in a child process.
#[derive(Debug)]
pub struct LifePage(NonNull<AtomicU32>);

// SAFETY: the page is only read after creation, through an atomic.
unsafe impl Send for LifePage {}
// SAFETY: as above.
unsafe impl Sync for LifePage {}

impl LifePage {
    /// A living page.
    pub fn new() -> Outcome<LifePage> {
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(ENOMEM);
        }
        // Without WIPEONFORK (before Linux 4.14) a child would go unnoticed; refuse rather than risk the parent's queues.
        // SAFETY: the range is the mapping just made.
        if unsafe { libc::madvise(at, PAGE, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: as above.
            unsafe { libc::munmap(at, PAGE) };
            return Err(ENOMEM);
        }
        let page = LifePage(NonNull::new(at.cast()).ok_or(ENOMEM)?);
        page.word().store(1, Ordering::Relaxed);
        Ok(page)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as `self` and is aligned to a page.
        unsafe { self.0.as_ref() }
    }

    /// Whether this is still the process that made the page.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for LifePage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody else holds its address.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// Nothing to prepare: fork is always safe.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// 2, `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> crate::sys::ibv_fork_status {
    crate::sys::IBV_FORK_UNNEEDED
}

/// Nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_dead() {
        let page = LifePage::new().unwrap();
        assert!(page.is_alive());
        // SAFETY: the child only reads a word and leaves.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child without running destructors.
            unsafe { libc::_exit(i32::from(page.is_alive())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0);
        assert!(page.is_alive());
    }
}
