//! After fork: a child inherits the mappings, but the contexts are its parent's.
//!
//! Each context holds a [`LifePage`]. Every call, also of the data path, checks it first; in a child it reads 0 and the call
//! fails with EIO and takes no lock. There is no fork handler, so nothing runs in a child that does not use verbs. Registered
//! memory needs none of the traditional `ibv_fork_init` machinery: pages are shared by descriptor, not pinned.

pub use burst_shm::life::LifePage;
use std::ffi::{c_int, c_void};

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
    fn objects_of_the_parent_are_dead_in_a_child() {
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
