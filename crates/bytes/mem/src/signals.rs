//! Signals of a thread that holds a lock which a fork takes: they wait.
//!
//! A handler may fork, and the fork would wait for the lock of its own thread. Signals of faults are never blocked: a fault of
//! the code that holds the lock ends the process, as without the lock.

use core::mem::MaybeUninit;

/// Signals that a fault of the thread itself sends.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
/// The highest number of a signal (`_NSIG` of Linux).
const SIGNAL_MAX: libc::c_int = 64;

/// The set of signals that a thread does not take.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl core::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SignalMask")
    }
}

impl SignalMask {
    /// Blocks all signals of the calling thread but those of faults. Returns its mask from before.
    pub fn block_all() -> SignalMask {
        let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
        // SAFETY: both sets are written by these calls before they are used.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            SignalMask(before.assume_init())
        }
    }

    /// Gives the calling thread this mask.
    pub fn restore(self) {
        // SAFETY: a readable set; no result is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut()) };
    }

    /// This mask, and the signals for which the program has a handler: what is left ends or stops the process, or has no effect.
    #[must_use]
    pub fn and_handled(mut self) -> SignalMask {
        for signal in (1..=SIGNAL_MAX).filter(|signal| !FAULTS.contains(signal)) {
            let mut action = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: a writable struct, which is read only if the call has filled it; a set that is initialised. The numbers
            // that libc keeps for itself are refused.
            unsafe {
                let known = libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) == 0;
                if known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.assume_init().sa_sigaction) {
                    libc::sigaddset(&raw mut self.0, signal);
                }
            }
        }
        self
    }

    /// Takes the signals that are pending and not in this mask; the thread keeps its own mask.
    pub fn take_signals(&self) {
        let mut own = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a readable set, and one that the first call writes before the second reads it. Pending signals come before
        // the first call returns.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, own.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, own.as_ptr(), core::ptr::null_mut());
        }
    }

    /// Waits with this mask until a descriptor is ready for one of the `events` of poll(2), or a signal has come.
    pub fn wait_ready(&self, descriptor: libc::c_int, events: libc::c_short) {
        let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
        // SAFETY: one writable entry, and a readable set. Whether it is ready the caller finds out by using it.
        unsafe { libc::ppoll(&raw mut entry, 1, core::ptr::null(), &raw const self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::swap::testing::in_child;
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: libc::c_int) {
        HANDLED.fetch_add(1, Relaxed);
    }

    fn handle(signal: libc::c_int) {
        let handler: extern "C" fn(libc::c_int) = count;
        // SAFETY: a handler that counts.
        assert_ne!(unsafe { libc::signal(signal, handler as libc::sighandler_t) }, libc::SIG_ERR);
    }

    fn send(signal: libc::c_int) {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn blocked_signals_come_when_the_mask_is_restored() {
        in_child(|| {
            handle(libc::SIGUSR1);
            let before = SignalMask::block_all();
            send(libc::SIGUSR1);
            assert_eq!(HANDLED.load(Relaxed), 0);
            before.restore();
            assert_eq!(HANDLED.load(Relaxed), 1);
        });
    }

    #[test]
    fn pending_signals_are_taken_but_those_of_the_mask() {
        in_child(|| {
            handle(libc::SIGUSR1);
            let before = SignalMask::block_all();
            send(libc::SIGUSR1);
            before.and_handled().take_signals();
            assert_eq!(HANDLED.load(Relaxed), 0);
            before.take_signals();
            assert_eq!(HANDLED.load(Relaxed), 1);
            send(libc::SIGUSR1);
            assert_eq!(HANDLED.load(Relaxed), 1, "blocked as before");
        });
    }

    #[test]
    fn a_thread_that_waits_is_ended_by_signals_without_a_handler_only() {
        let mut ends = [0; 2];
        // SAFETY: two writable numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child calls async-signal-safe functions only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            handle(libc::SIGUSR1);
            let before = SignalMask::block_all();
            send(libc::SIGUSR1);
            // Ignored by default: it neither ends the wait nor the process.
            send(libc::SIGCHLD);
            send(libc::SIGTERM);
            before.and_handled().wait_ready(ends[0], libc::POLLIN);
            // SAFETY: ends the child.
            unsafe { libc::_exit(1 + HANDLED.load(Relaxed) as i32) };
        }
        let mut status = 0;
        // SAFETY: the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM, "{status:#x}");
    }

    #[test]
    fn a_signal_that_the_program_has_blocked_stays_blocked() {
        in_child(|| {
            // SAFETY: an initialised set.
            let mut set = unsafe {
                let mut set = MaybeUninit::<libc::sigset_t>::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                set.assume_init()
            };
            // SAFETY: an initialised set.
            unsafe { libc::sigaddset(&raw mut set, libc::SIGTERM) };
            // SAFETY: an initialised set.
            assert_eq!(unsafe { libc::sigismember(&SignalMask(set).and_handled().0, libc::SIGTERM) }, 1);
        });
    }
}
