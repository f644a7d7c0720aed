//! Waiting for a descriptor of a host in this process: the thread watches the ports meanwhile, and runs the engine.
//!
//! One wake-up instead of two: the packet that makes the descriptor readable wakes this thread, not the keeper. Cancellation is
//! possible between two sleeps, each of which is short; during one it would leave the host without anybody who watches.

use crate::block;
use crate::block::NotNow;
use burst_control::in_process::InProcessCalls;
use std::ffi::c_int;
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
    /// The descriptor is readable, or the caller shall read it in any case.
    Ready,
    /// Another thread watches the ports: the caller waits for the descriptor alone.
    Alone,
    /// A signal has come that shall interrupt calls.
    Interrupted,
    Again,
}

/// Waits until `fd` is readable, unless it is non-blocking. Returns false if the caller's read shall fail with EINTR, because a
/// signal has come.
///
/// # Safety
/// The caller's frame owns nothing: the thread may be cancelled here.
pub unsafe fn until_readable(calls: &InProcessCalls, fd: RawFd) -> bool {
    // SAFETY: a descriptor's flags are read.
    if unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0 {
        (calls.turn)();
        return true;
    }
    loop {
        match step(calls, fd) {
            Step::Ready => return true,
            Step::Interrupted => return false,
            Step::Alone => {
                // SAFETY: this frame owns nothing.
                unsafe { block::until_readable(fd) };
                return true;
            }
            // SAFETY: this frame owns nothing.
            Step::Again => unsafe { pthread_testcancel() },
        }
    }
}

fn step(calls: &InProcessCalls, fd: RawFd) -> Step {
    let _not_now = NotNow::begin();
    let mut own = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    if wait(&mut own, 0) != 0 {
        return Step::Ready;
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
    if found < 0 && signals_interrupt() { Step::Interrupted } else { Step::Again }
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
