//! A small lock for the data path: a few spins, then giving up the processor. No system object, no poisoning.
//!
//! Holders never block and never panic by design; if one panicked, the guard's drop would free the lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks at the lock before giving up the processor.
const SPINS: u32 = 64;

/// A value behind a spin-then-yield lock.
#[derive(Debug)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: as for any owner of a `T`.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        // Acquire pairs with the Release of the guard's drop.
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard(self)
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// Takes the lock for longer than a scope: [`SpinLock::release`] ends it.
    #[inline]
    pub fn acquire(&self) {
        std::mem::forget(self.lock());
    }

    /// Ends what [`SpinLock::acquire`] began.
    ///
    /// # Safety
    /// The caller holds the lock, and references made by [`SpinLock::held`] are gone.
    #[inline]
    pub unsafe fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value, for whoever holds the lock.
    ///
    /// # Safety
    /// The caller holds the lock by [`SpinLock::acquire`], and makes no two references at a time.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// The value, when nobody else can hold the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to a locked value.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and `self` is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Involuntary context switches of this thread so far.
pub fn switches() -> u64 {
    // SAFETY: `usage` is plain data, written by the call; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw as u64
    }
}

/// The monotonic clock.
pub fn monotonic() -> burst_base::Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable; the monotonic clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    burst_base::Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Lets somebody else run on this processor.
pub fn yield_now() {
    // SAFETY: no arguments; cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_not_lost() {
        let counter = SpinLock::new(0u32);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 40_000);
    }
}
