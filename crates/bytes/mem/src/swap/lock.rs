//! A lock that can be taken in one fork handler and released in another.
//!
//! `std::sync::Mutex` ties unlocking to a guard's life; a fork handler must lock in `prepare` and unlock in both
//! processes. A pthread mutex allows exactly that.
//!
//! Between the two, fork handlers of others run in the same thread, and they may register and deregister memory (UCX empties
//! its cache of registrations there). They find the lock taken by their own thread and go on under it.
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A value under a pthread mutex.
pub(crate) struct ForkLock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
    /// The thread that forks while it holds the mutex ([`ForkLockGuard::keep`]); 0: none.
    forking: AtomicUsize,
}

// SAFETY: the value is reached only while the mutex is held.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// The value, while locked.
pub(crate) struct ForkLockGuard<'a, T> {
    lock: &'a ForkLock<T>,
    /// The mutex is unlocked at the end.
    unlocks: bool,
}

fn this_thread() -> usize {
    // SAFETY: no precondition. A child's only thread has the identity of the one that forked.
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
        // Relaxed: only this thread can have written its own name here, and it sees its own writes.
        if self.forking.load(Relaxed) == this_thread() {
            return ForkLockGuard { lock: self, unlocks: false };
        }
        // SAFETY: an initialised mutex that never moves (the lock is a static) and is never destroyed.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        ForkLockGuard { lock: self, unlocks: true }
    }
    /// The value, in the fork handler that ends what [`ForkLockGuard::keep`] began.
    ///
    /// # Safety
    /// This thread called `keep` (or is the child of the thread that did).
    pub(crate) unsafe fn resume(&self) -> ForkLockGuard<'_, T> {
        self.forking.store(0, Relaxed);
        ForkLockGuard { lock: self, unlocks: true }
    }
}

impl<T> ForkLockGuard<'_, T> {
    /// Keeps the lock beyond this value's life: this thread forks, and [`ForkLock::resume`] ends it in both processes.
    pub(crate) fn keep(self) {
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
        // SAFETY: the mutex is held, and `self` is the only handle: a thread that forks has given its own away.
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
