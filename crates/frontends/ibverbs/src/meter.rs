//! Events of one object: how many were handed to the program, and how many it has acknowledged.
//!
//! Destroying an object waits until the program has acknowledged as many events of it as it was given, as verbs demand. The
//! count of acknowledgements lies in the public struct, beside the mutex and the condition variable that the struct carries.

use std::sync::atomic::{AtomicU32, Ordering};

/// Events of one object: handed out, and acknowledged under the mutex that the verbs struct carries.
///
/// `completed` lies in the public struct (`events_completed`), beside its mutex and condition variable.
#[derive(Debug, Default)]
pub struct EventCount {
    handed_out: AtomicU32,
}

/// The three public fields of a struct that counts events.
#[derive(Clone, Copy, Debug)]
pub struct EventMeter {
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *mut u32,
}

impl EventMeter {
    /// The meter made of these fields of one struct.
    pub fn new<M, C>(mutex: *mut M, cond: *mut C, completed: *mut u32) -> EventMeter {
        EventMeter { mutex: mutex.cast(), cond: cond.cast(), completed }
    }

    /// Prepares the fields of a fresh struct.
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

    /// Waits until every event handed out is acknowledged.
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
    /// Counts an event that is handed to the program.
    pub fn hand_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }
}
