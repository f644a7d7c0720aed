//! Work that workers do for an account: each worker counts its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A sum of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkSum {
    /// Turns of queue pairs.
    pub turns: u64,
    /// Work requests that were begun or continued in these turns, 64 in a turn at most.
    pub requests: u64,
    /// Payload bytes that were sent in these turns, READ responses included.
    pub bytes: u64,
}

/// The work of one worker for one account. One thread adds, others read.
#[derive(Debug, Default)]
pub struct WorkCount {
    turns: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl WorkCount {
    /// Counts a turn. For the worker's thread alone: a load and a store cost less than an addition that others could make, too.
    #[inline]
    pub fn add_turn(&self, requests: u32, bytes: u64) {
        for (count, amount) in [(&self.turns, 1), (&self.requests, u64::from(requests)), (&self.bytes, bytes)] {
            count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
        }
    }

    /// Adds this work to a sum.
    pub(crate) fn add_to(&self, sum: &mut WorkSum) {
        sum.turns = sum.turns.wrapping_add(self.turns.load(Relaxed));
        sum.requests = sum.requests.wrapping_add(self.requests.load(Relaxed));
        sum.bytes = sum.bytes.wrapping_add(self.bytes.load(Relaxed));
    }
}
