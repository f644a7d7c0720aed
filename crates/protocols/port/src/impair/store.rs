//! Delayed packets of one direction until they are due.

use burst_base::Nanos;
use burst_frame::{Flow, HEAD_MAX};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most packets delayed at once in one direction.
pub const DELAYED_MAX: usize = 2048;
/// Bytes of the longest packet that can be delayed: a 4 KiB path MTU with its headers and padding.
pub const DELAYED_BYTES: usize = HEAD_MAX + 4096 + 4;

/// Copies of delayed packets, by the time when they are due.
pub(super) struct DelayStore {
    slots: Vec<DelaySlot>,
    free: Vec<u32>,
    /// (due time, sequence number, slot): the earliest first, equal times in order of arrival.
    due: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    sequence: u64,
}

/// A delayed packet.
pub(super) struct DelaySlot {
    pub flow: Flow,
    pub head_len: u8,
    pub pad: u8,
    pub bytes: Vec<u8>,
}

impl DelayStore {
    /// Room for `capacity` packets, all allocated.
    pub fn new(capacity: usize) -> DelayStore {
        let slot =
            |_| DelaySlot { flow: Flow::default(), head_len: 0, pad: 0, bytes: Vec::with_capacity(DELAYED_BYTES) };
        DelayStore {
            slots: (0..capacity).map(slot).collect(),
            free: (0..capacity as u32).rev().collect(),
            due: BinaryHeap::with_capacity(capacity),
            sequence: 0,
        }
    }

    /// Makes room for [`DELAYED_MAX`] packets, if there is none.
    pub fn allocate(&mut self) {
        if self.slots.is_empty() {
            *self = DelayStore::new(DELAYED_MAX);
        }
    }

    /// Returns the memory of a store without packets.
    pub fn shrink(&mut self) {
        if self.due.is_empty() && !self.slots.is_empty() {
            *self = DelayStore::new(0);
        }
    }

    /// Lets `fill` fill a free slot; false when there is none, or when `fill` returns false.
    pub fn insert(&mut self, due: Nanos, fill: impl FnOnce(&mut DelaySlot) -> bool) -> bool {
        debug_assert!(self.free.len() + self.due.len() <= self.slots.len(), "a slot is free or in use, not both");
        let Some(at) = self.free.pop() else { return false };
        if !fill(&mut self.slots[at as usize]) {
            self.free.push(at);
            return false;
        }
        self.sequence += 1;
        self.due.push(Reverse((due, self.sequence, at)));
        debug_assert!(self.due.len() <= self.slots.len());
        true
    }

    /// Takes the next packet that is due at `now`; the caller returns its slot by [`DelayStore::free`].
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        if self.due.peek()?.0.0 > now {
            return None;
        }
        self.due.pop().map(|Reverse((_, _, at))| at)
    }

    /// A slot taken by [`DelayStore::pop_due`].
    pub fn slot(&self, at: u32) -> &DelaySlot {
        &self.slots[at as usize]
    }

    /// Returns a slot.
    pub fn free(&mut self, at: u32) {
        self.free.push(at);
    }

    /// When the next packet is due.
    pub fn next(&self) -> Nanos {
        self.due.peek().map_or(Nanos::NEVER, |Reverse((due, _, _))| *due)
    }
}
