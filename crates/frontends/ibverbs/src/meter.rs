//! Counts of the events of one object: given to the program, and acknowledged by it.
//!
//! As verbs demand, the destruction of an object waits until the program has acknowledged all events that it was given. The count
//! of acknowledgements is in the public struct, with its mutex and condition variable.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of events of one object that the program was given.
///
/// The number of acknowledged events is in the public struct (`events_completed`), with its mutex and condition variable.
#[derive(Debug, Default)]
pub struct EventCount {
    handed_out: AtomicU32,
}

/// The three fields of a public struct that count acknowledged events.
#[derive(Clone, Copy, Debug)]
pub struct EventMeter {
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *mut u32,
}

impl EventMeter {
    /// The meter of a struct with these fields.
    pub fn new<M, C>(mutex: *mut M, cond: *mut C, completed: *mut u32) -> EventMeter {
        EventMeter { mutex: mutex.cast(), cond: cond.cast(), completed }
    }

    /// Initializes the fields of a new struct.
    ///
    /// # Safety
    /// The fields must be writable and unused.
    pub unsafe fn init(self) {
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_init(self.mutex, std::ptr::null());
            libc::pthread_cond_init(self.cond, std::ptr::null());
        }
    }

    /// Acknowledges `count` events.
    ///
    /// # Safety
    /// The struct must be alive.
    pub unsafe fn acknowledge(self, count: u32) {
        // SAFETY: the caller's promise; the counter is only touched under the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(count);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until all events that the program was given are acknowledged.
    ///
    /// # Safety
    /// The struct must be alive and no further events be handed out.
    pub unsafe fn wait(self, counted: &EventCount) {
        // Acquire pairs with the Release in `hand_out`.
        let all = counted.handed_out.load(Ordering::Acquire);
        // SAFETY: the caller's promise.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while self.completed.read_volatile() != all {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}

impl EventCount {
    /// Counts an event that the program is given.
    pub fn hand_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }
}
