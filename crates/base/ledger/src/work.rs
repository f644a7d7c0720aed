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
    /// Received packets that were not refused.
    pub packets_received: u64,
    /// Their bytes, from the BTH on and without the ICRC.
    pub bytes_received: u64,
}

/// The work of one worker for one account. One thread adds, others read.
#[derive(Debug, Default)]
pub struct WorkCount {
    turns: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
    packets_received: AtomicU64,
    bytes_received: AtomicU64,
}

/// Adds to a count. For the worker's thread alone: a load and a store cost less than an addition that others could make, too.
#[inline]
fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl WorkCount {
    /// Counts a turn. For the worker's thread alone.
    #[inline]
    pub fn add_turn(&self, requests: u32, bytes: u64) {
        add(&self.turns, 1);
        add(&self.requests, u64::from(requests));
        add(&self.bytes, bytes);
    }

    /// Counts what a queue pair has received in a burst. For the worker's thread alone.
    #[inline]
    pub fn add_received(&self, packets: u32, bytes: u32) {
        add(&self.packets_received, u64::from(packets));
        add(&self.bytes_received, u64::from(bytes));
    }

    /// Adds this work to a sum.
    pub(crate) fn add_to(&self, sum: &mut WorkSum) {
        sum.turns = sum.turns.wrapping_add(self.turns.load(Relaxed));
        sum.requests = sum.requests.wrapping_add(self.requests.load(Relaxed));
        sum.bytes = sum.bytes.wrapping_add(self.bytes.load(Relaxed));
        sum.packets_received = sum.packets_received.wrapping_add(self.packets_received.load(Relaxed));
        sum.bytes_received = sum.bytes_received.wrapping_add(self.bytes_received.load(Relaxed));
    }
}
