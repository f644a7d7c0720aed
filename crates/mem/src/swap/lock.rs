//! A lock that can be taken in one fork handler and released in another.
//!
//! `std::sync::Mutex` ties unlocking to a guard's life; a fork handler must lock in `prepare` and unlock in both
//! processes. A pthread mutex allows exactly that.
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value under a pthread mutex.
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only while the mutex is held.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value, while locked.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }
    pub(crate) fn lock(&self) -> Held<'_, T> {
        // SAFETY: an initialised mutex that never moves (the lock is a static) and is never destroyed.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Held(self)
    }
    /// The value, in a fork handler that runs between [`core::mem::forget`] of a [`Held`] and the unlocking.
    ///
    /// # Safety
    /// This thread holds the lock (or is the child of the thread that did).
    pub(crate) unsafe fn resume(&self) -> Held<'_, T> {
        Held(self)
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mutex is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the mutex is held, and `self` is the only handle.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        // SAFETY: locked by this thread, or by the parent's thread that this one continues after a fork.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}
