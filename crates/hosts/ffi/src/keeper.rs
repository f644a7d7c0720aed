//! The keeper of an engine inside a program, the thread that runs the engine while the program does not: how it is started, woken
//! and put to sleep. When it serves is decided by the library that has the engine.

use burst_base::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Wakes the keeper.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell.
    ///
    /// # Errors
    /// A sentence: the system gives no eventfd.
    pub fn new() -> Result<Bell, String> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Bell).map_err(|e| format!("cannot make an eventfd: {e}"))
    }
    /// Wakes the keeper, or keeps it from its next sleep.
    pub fn ring(&self) {
        // A full counter means that it is being woken already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
    /// Whether it was rung since the last call.
    pub fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Starts the thread. It takes no signals: they are the program's.
///
/// # Errors
/// A sentence: the system starts no thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let spawned = without_signals(|| std::thread::Builder::new().name(name.into()).spawn(run));
    spawned.map(drop).map_err(|e| format!("cannot start the thread that serves while the program does not: {e}"))
}

/// Signals by which memory that the program has unmapped or protected shows (`burst_span::catch_faults`): where they are
/// blocked, the kernel ends the process without asking the handler.
const FAULTS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Calls `f` with all signals blocked but those of faults, whatever the caller blocks: a thread that it starts inherits that.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: plain data that the calls fill.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        FAULTS.iter().for_each(|fault| _ = libc::sigdelset(&mut all, *fault));
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Sleeps until the bell rings, at most for `time`. Returns whether it may have rung.
pub fn nap(bell: &Bell, time: Nanos) -> bool {
    let mut fds = [PollFd::new(&bell.0, PollFlags::IN)];
    !wait(&mut fds, time) || !fds[0].revents().is_empty()
}

/// Sleeps until a descriptor is readable, at most for `time`. Returns whether the descriptors say so: not after an error, which
/// counts as a wake-up by any of them.
pub fn wait(fds: &mut [PollFd<'_>], time: Nanos) -> bool {
    let time = Duration::from_nanos(time.0);
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    poll(fds, Some(&timeout)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread blocks SIGTERM, SIGSEGV and SIGBUS.
    fn blocked() -> [bool; 3] {
        // SAFETY: plain data that the call fills.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            [libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS].map(|signal| libc::sigismember(&mask, signal) == 1)
        }
    }

    fn block_all() {
        // SAFETY: plain data that the calls fill.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        }
    }

    #[test]
    fn the_thread_takes_no_signals_but_those_of_faults() {
        let seen = |blocks: bool| {
            let (send, receive) = std::sync::mpsc::channel();
            let starter = std::thread::spawn(move || {
                if blocks {
                    block_all();
                }
                let before = blocked();
                spawn("test", move || send.send(blocked()).expect("the test waits")).expect("a thread");
                assert_eq!(blocked(), before, "the caller's own signals");
            });
            starter.join().expect("no panic");
            receive.recv().expect("an answer")
        };
        assert_eq!(seen(false), [true, false, false]);
        assert_eq!(seen(true), [true, false, false], "whatever the program blocks");
    }
}
