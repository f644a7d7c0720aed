//! System calls that may wait long, during which a thread may be cancelled (pthread_cancel).
//!
//! Cancellation unwinds the stack by force. It may only pass frames that own nothing: `catch_unwind` would stop it, which ends
//! the process. Calls therefore disable cancellation while Rust code runs ([`crate::guarded`]). The few calls that wait do so
//! here, between two such parts, in functions of the "C-unwind" ABI without destructors.

use std::ffi::{c_int, c_void};

// SAFETY: as in unistd.h and poll.h. Newer compilers expect `read` to unwind never: here a cancelled thread does.
#[allow(unknown_lints, invalid_runtime_symbol_definitions)]
unsafe extern "C-unwind" {
    /// read(2).
    pub fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

// SAFETY: as in pthread.h.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// Waits until a descriptor is readable, or a signal comes.
///
/// # Safety
/// The caller's frame owns nothing.
pub unsafe fn until_readable(fd: c_int) -> c_int {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { poll(&mut wanted, 1, -1) }
}

/// Waits without end.
///
/// # Safety
/// The caller's frame owns nothing.
pub unsafe fn for_ever() -> ! {
    loop {
        // SAFETY: no entries.
        unsafe { poll(std::ptr::null_mut(), 0, -1) };
    }
}

/// While a value of this type lives, its thread cannot be cancelled.
#[derive(Debug)]
pub struct NotNow(c_int);

impl NotNow {
    /// Disables cancellation of this thread until the value is dropped.
    pub fn begin() -> NotNow {
        let mut old = 0;
        // SAFETY: a writable place; the call cannot fail for a valid state.
        unsafe { pthread_setcancelstate(DISABLE, &mut old) };
        NotNow(old)
    }
}

impl Drop for NotNow {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above; allowing cancellation again is no cancellation point.
        unsafe { pthread_setcancelstate(self.0, &mut old) };
    }
}
