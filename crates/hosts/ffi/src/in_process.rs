//! Waiting for a record in a pipe of a host in this process: the thread watches the ports meanwhile, and runs the engine.
//!
//! One wake-up instead of two: the packet that brings the record wakes this thread, not the keeper. Cancellation is
//! possible between two sleeps, each of which is short; during one it would leave the host without anybody who watches.

use crate::block;
use crate::block::NotNow;
use burst_control::in_process::InProcessCalls;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

/// Descriptors that are watched at most.
const FDS_MAX: usize = 64;
/// Longest sleep, in nanoseconds: a cancelled thread ends after this time.
const SLEEP_MAX_NS: i64 = 100_000_000;

// SAFETY: as in pthread.h.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// What a step of the wait has come to.
enum Step {
    /// So many bytes were read, or the read has failed with this errno.
    Read(isize, c_int),
    /// Another thread watches the ports: the caller reads, and waits there.
    Alone,
    Again,
}

/// As read(2) of a record from a pipe into which the host of this process writes.
///
/// # Safety
/// `to` has room for `len` bytes. The caller's frame owns nothing: the thread may be cancelled here.
pub unsafe fn read(calls: &InProcessCalls, fd: RawFd, to: *mut c_void, len: usize) -> isize {
    loop {
        // SAFETY: the caller's promise.
        match unsafe { step(calls, fd, to, len) } {
            Step::Read(got, errno) => {
                crate::set_errno(crate::Errno(errno));
                return got;
            }
            // SAFETY: the caller's promise.
            Step::Alone => return unsafe { block::read(fd, to, len) },
            // SAFETY: this frame owns nothing.
            Step::Again => unsafe { pthread_testcancel() },
        }
    }
}

/// # Safety
/// As [`read`], without cancellation.
unsafe fn step(calls: &InProcessCalls, fd: RawFd, to: *mut c_void, len: usize) -> Step {
    let _not_now = NotNow::begin();
    // SAFETY: the caller's promise.
    if let Some(step) = unsafe { read_now(fd, to, len) } {
        return step;
    }
    // SAFETY: a descriptor's flags are read.
    if unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0 {
        (calls.turn)();
        return Step::Alone;
    }
    let (mut fds, mut timeout_ns) = ([-1; FDS_MAX], 0);
    // SAFETY: room for as many descriptors, and a writable number.
    let count = unsafe { (calls.begin_wait)(fd, fds.as_mut_ptr(), fds.len(), &mut timeout_ns) };
    if count <= 0 {
        return if count < 0 { Step::Alone } else { Step::Again };
    }
    let mut watched = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = if timeout_ns < 0 { SLEEP_MAX_NS } else { timeout_ns.min(SLEEP_MAX_NS) };
    let found = wait(&mut watched[..count as usize], time);
    (calls.end_wait)();
    if found < 0 && signals_interrupt() {
        return Step::Read(-1, libc::EINTR);
    }
    if watched[0].revents == 0 {
        (calls.turn)();
    }
    Step::Again
}

/// Reads what is there; `None` if nothing is.
///
/// # Safety
/// As [`step`].
unsafe fn read_now(fd: RawFd, to: *mut c_void, len: usize) -> Option<Step> {
    let place = libc::iovec { iov_base: to, iov_len: len };
    // SAFETY: one valid entry; -1: a pipe has no position.
    let got = unsafe { libc::preadv2(fd, &place, 1, -1, libc::RWF_NOWAIT) };
    let errno = crate::errno().0;
    match (got, errno) {
        (-1, libc::EAGAIN) => None,
        (-1, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
            // A kernel that cannot do that: a look first.
            let mut own = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            (wait(&mut own, 0) != 0).then_some(Step::Alone)
        }
        (got, errno) => Some(Step::Read(got, errno)),
    }
}

/// poll(2) with a time-out in nanoseconds.
fn wait(fds: &mut [libc::pollfd], timeout_ns: i64) -> c_int {
    let time = libc::timespec { tv_sec: timeout_ns / 1_000_000_000, tv_nsec: timeout_ns % 1_000_000_000 };
    // SAFETY: valid entries; the signal mask stays as it is.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &time, std::ptr::null()) }
}

/// Whether the program handles a signal without SA_RESTART: then a wait ends with EINTR, as read(2) would.
fn signals_interrupt() -> bool {
    (1..=libc::SIGRTMAX()).any(|signal| {
        // SAFETY: plain data that the call fills; an invalid number is refused.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
                return false;
            }
            action
        };
        let is_handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        is_handled && action.sa_flags & libc::SA_RESTART == 0
    })
}
