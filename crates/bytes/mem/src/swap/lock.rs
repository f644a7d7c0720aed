//! A lock that can be taken in one fork handler and released in another.
//!
//! The guard of a `std::sync::Mutex` unlocks when it is dropped; a fork handler must lock in `prepare` and unlock later, in
//! both processes. A pthread mutex allows this.
//!
//! In between, fork handlers of other libraries run in the same thread, and they may register and deregister memory (UCX
//! empties its cache of registrations there). The lock is then taken by their own thread, and they use it as it is.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A value protected by a pthread mutex.
pub(crate) struct ForkLock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
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
fn this_thread() -> usize {
    // SAFETY: no precondition. The only thread of a child has the identity of the thread that forked.
    unsafe { libc::pthread_self() as usize }
}

impl<T> ForkLock<T> {
    pub(crate) const fn new(value: T) -> ForkLock<T> {
        ForkLock {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            value: UnsafeCell::new(value),
            forking: AtomicUsize::new(0),
        }
    }
    pub(crate) fn lock(&self) -> ForkLockGuard<'_, T> {
        // Relaxed: only this thread can have written its own identity here, and it sees its own writes.
        if self.forking.load(Relaxed) == this_thread() {
            return ForkLockGuard { lock: self, unlocks: false };
        }
        // SAFETY: an initialised mutex that never moves (the lock is a static) and is never destroyed.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
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
            // SAFETY: locked by this thread, or by the parent's thread that this one continues after a fork.
            unsafe { libc::pthread_mutex_unlock(self.lock.mutex.get()) };
        }
    }
}
