//! A lock that can be taken in one fork handler and released in another.
//!
//! The guard of a `std::sync::Mutex` unlocks when it is dropped; a fork handler must lock in `prepare` and unlock later, in
//! both processes. A pthread mutex allows this.
//!
//! In between, fork handlers of other libraries run in the same thread, and they may register and deregister memory (UCX
//! empties its cache of registrations there). The lock is then taken by their own thread, and they use it as it is.
//!
//! The thread that has the lock takes no signals, because a handler may fork and would wait for its own thread. Signals of
//! faults stay as they are.

use crate::signals::SignalMask;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A value protected by a pthread mutex.
pub(crate) struct ForkLock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
    /// The signals that the holder of the mutex did not take before.
    blocked: UnsafeCell<MaybeUninit<SignalMask>>,
    /// Identity of the thread that forks while it holds the mutex ([`ForkLockGuard::keep`]); 0: none.
    forking: AtomicUsize,
}

// SAFETY: the value is reached only while the mutex is held.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// Access to the value while the mutex is held.
pub(crate) struct ForkLockGuard<'a, T> {
    lock: &'a ForkLock<T>,
    /// Whether the mutex is unlocked when the guard is dropped.
    unlocks: bool,
}

/// Identity of the calling thread, never 0.
pub(super) fn this_thread() -> usize {
    // SAFETY: no precondition. The only thread of a child has the identity of the thread that forked.
    unsafe { libc::pthread_self() as usize }
}

impl<T> ForkLock<T> {
    pub(crate) const fn new(value: T) -> ForkLock<T> {
        ForkLock {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            value: UnsafeCell::new(value),
            blocked: UnsafeCell::new(MaybeUninit::uninit()),
            forking: AtomicUsize::new(0),
        }
    }
    pub(crate) fn lock(&self) -> ForkLockGuard<'_, T> {
        // Relaxed: only this thread can have written its own identity here, and it sees its own writes.
        if self.forking.load(Relaxed) == this_thread() {
            return ForkLockGuard { lock: self, unlocks: false };
        }
        let before = SignalMask::block_all();
        // SAFETY: an initialised mutex that never moves (the lock is a static) and is never destroyed. Then the lock is held.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            (*self.blocked.get()).write(before);
        }
        ForkLockGuard { lock: self, unlocks: true }
    }
    /// The guard again, in a fork handler after [`ForkLockGuard::keep`]; dropping it unlocks.
    ///
    /// # Safety
    /// This thread called `keep` (or is the child of the thread that did).
    pub(crate) unsafe fn resume(&self) -> ForkLockGuard<'_, T> {
        debug_assert_eq!(self.forking.load(Relaxed), this_thread(), "kept by this thread");
        self.forking.store(0, Relaxed);
        ForkLockGuard { lock: self, unlocks: true }
    }
}

impl<T> ForkLockGuard<'_, T> {
    /// Whether this thread forks: the guard is that of a fork handler of another library.
    pub(crate) fn is_forking(&self) -> bool {
        !self.unlocks
    }
    /// Keeps the mutex locked after the end of this guard, because this thread forks. [`ForkLock::resume`] gives the guard
    /// back in both processes.
    pub(crate) fn keep(self) {
        debug_assert!(self.unlocks, "the guard that has locked");
        self.lock.forking.store(this_thread(), Relaxed);
        core::mem::forget(self);
    }
}

impl<T> Deref for ForkLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mutex is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the mutex is held, and `self` is the only guard in use: a thread that forks has given its guard away.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkLockGuard<'_, T> {
    fn drop(&mut self) {
        if self.unlocks {
            // SAFETY: locked by this thread, or by the parent's thread that this one continues after a fork; `lock` has written
            // the set. It is copied, because another thread may lock at once.
            unsafe {
                let before = (*self.lock.blocked.get()).assume_init();
                libc::pthread_mutex_unlock(self.lock.mutex.get());
                before.restore();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::in_child;
    use super::*;
    use core::sync::atomic::AtomicU32;

    static LOCK: ForkLock<u32> = ForkLock::new(0);
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: libc::c_int) {
        *LOCK.lock() += 1;
        HANDLED.fetch_add(1, Relaxed);
    }

    /// A handler that takes the lock, as one that forks does, runs when its thread has given the lock back.
    #[test]
    fn a_signal_handler_does_not_wait_for_its_own_thread() {
        in_child(|| {
            let handler: extern "C" fn(libc::c_int) = count;
            // SAFETY: a handler that takes a lock which its thread cannot have.
            unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
            let send = || {
                // SAFETY: numbers only.
                assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
            };
            let mut guard = LOCK.lock();
            send();
            assert_eq!((*guard, HANDLED.load(Relaxed)), (0, 0));
            *guard += 10;
            // As in the handlers of a fork: it stays locked in between.
            guard.keep();
            send();
            assert!(LOCK.lock().is_forking());
            assert_eq!(HANDLED.load(Relaxed), 0);
            // SAFETY: kept above.
            drop(unsafe { LOCK.resume() });
            assert_eq!((*LOCK.lock(), HANDLED.load(Relaxed)), (11, 1), "pending once");
            send();
            assert_eq!(HANDLED.load(Relaxed), 2);
        });
    }
}
