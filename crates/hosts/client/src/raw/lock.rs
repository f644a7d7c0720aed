//! The locks of this crate: a spin lock for the data path, a mutex, and a mutex for connections to a daemon.
//!
//! A thread that has the lock of a connection ([`ControlLock`]), or opens one ([`HeldSignals`]), takes no signals. A handler that
//! forks would wait for its own thread, because a fork asks the daemon to hold memory; and a child that returns from the handler
//! would take the reply for which its parent waits, or go on starting an engine of which its parent has the threads. While a
//! daemon does not answer, because it is stopped, signals without a handler come all the same: the user can end the program
//! (`SignalWait`).
//!
//! The spin lock spins a few times, then yields the processor. It has no system object and is not poisoned: a holder never
//! blocks and never panics by design, and if it did panic, the guard's drop would free the lock.

use crate::error::{ClientError, Result};
use burst_control::Client;
use burst_control::client::SlowAnswer;
use burst_mem::signals::SignalMask;
use burst_shm::life::LifePage;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attempts to take the lock before the thread yields.
const SPINS: u32 = 64;

/// Locks a mutex, also after a panic of a holder: no holder leaves the data inconsistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mask that the holder of a [`ControlLock`] had before; `None` before there was a holder.
#[derive(Debug, Default)]
struct SignalWait(Mutex<Option<SignalMask>>);

impl SlowAnswer for SignalWait {
    fn wait(&self, socket: BorrowedFd<'_>, writes: bool) {
        let events = if writes { libc::POLLOUT } else { libc::POLLIN };
        let mask = *lock(&self.0);
        debug_assert!(mask.is_some(), "only the holder uses the connection");
        if let Some(mask) = mask {
            mask.and_handled().wait_ready(socket.as_raw_fd(), events);
        }
    }
    fn take_signals(&self) {
        if let Some(mask) = *lock(&self.0) {
            mask.and_handled().take_signals();
        }
    }
}

/// A thread that takes no signals while it opens connections and contexts.
#[derive(Debug)]
pub struct HeldSignals(RestoredMask);

impl HeldSignals {
    /// Holds the signals of the calling thread, until this is dropped in it.
    pub fn hold() -> HeldSignals {
        HeldSignals(RestoredMask(SignalMask::block_all(), PhantomData))
    }

    /// What lets signals without a handler come while a daemon does not answer.
    pub(super) fn slow_answer(&self) -> Arc<dyn SlowAnswer> {
        Arc::new(SignalWait(Mutex::new(Some(self.0.0))))
    }
}

/// A connection to a daemon, and what belongs to it, behind a lock whose holder takes no signals.
#[derive(Debug)]
pub struct ControlLock<T> {
    value: Mutex<T>,
    before: Arc<SignalWait>,
}

impl<T> ControlLock<T> {
    /// The lock of `client`, which `value` puts into a value.
    ///
    /// # Errors
    /// The system refuses the connection's time-out.
    pub fn new(mut client: Client, value: impl FnOnce(Client) -> T) -> Result<ControlLock<T>> {
        let before = Arc::<SignalWait>::default();
        client.wait_by(before.clone())?;
        Ok(ControlLock { value: Mutex::new(value(client)), before })
    }

    /// [`ControlLock::lock`] in the process that has made the connection.
    ///
    /// # Errors
    /// [`ClientError::Forked`]. A check before this call would not do: a handler may fork after it. In a child the lock may be
    /// taken for ever, because another thread of the parent had it.
    pub fn lock_alive(&self, life: &LifePage) -> Result<ControlGuard<'_, T>> {
        let before = RestoredMask(SignalMask::block_all(), PhantomData);
        if life.is_alive() { Ok(self.lock_without_signals(before)) } else { Err(ClientError::Forked) }
    }

    /// Waits for the lock, also after a panic of a holder.
    pub fn lock(&self) -> ControlGuard<'_, T> {
        self.lock_without_signals(RestoredMask(SignalMask::block_all(), PhantomData))
    }

    fn lock_without_signals(&self, before: RestoredMask) -> ControlGuard<'_, T> {
        let value = lock(&self.value);
        *lock(&self.before.0) = Some(before.0);
        ControlGuard { value, _before: before }
    }
}

/// A mask that its thread gets back at the end. It stays in its thread.
#[derive(Debug)]
struct RestoredMask(SignalMask, PhantomData<*const ()>);

impl Drop for RestoredMask {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// Access to a value behind a [`ControlLock`]. Its fields are dropped in order: signals come when the lock is free.
#[derive(Debug)]
pub struct ControlGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _before: RestoredMask,
}

impl<T> Deref for ControlGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ControlGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A value behind a lock that spins, then yields.
#[derive(Debug)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> SpinLock<T> {
        SpinLock::new(T::default())
    }
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: the lock owns the value, which may be sent.
unsafe impl<T: Send> Send for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        // Acquire pairs with the Release of the guard's drop.
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard(self)
    }

    /// The lock, unless another holder has it.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        (!self.taken.swap(true, Ordering::Acquire)).then_some(SpinGuard(self))
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                super::idle::yield_now();
            }
        }
    }

    /// Takes the lock for longer than a scope: [`SpinLock::release`] ends it.
    #[inline]
    pub fn acquire(&self) {
        std::mem::forget(self.lock());
    }

    /// Frees the lock taken by [`SpinLock::acquire`].
    ///
    /// # Safety
    /// The caller holds the lock, and references made by [`SpinLock::held`] are gone.
    #[inline]
    pub unsafe fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value, for the thread that holds the lock by [`SpinLock::acquire`].
    ///
    /// # Safety
    /// The caller holds the lock, and no other reference made by this function is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.value.get() }
    }

    /// The value: an exclusive reference proves that no thread holds the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to a locked value.
#[derive(Debug)]
pub struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and `self` is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
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
