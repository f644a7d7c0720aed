//! The deadlines of a node, in order of time.

use crate::api::AccessTag;
use crate::pool::PoolRef;
use burst_base::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrmaTimer {
    Channel(PoolRef),
    /// A request that was refused by RNR is sent again.
    Retry(PoolRef),
    /// A load, store or atomic without channel has no answer yet.
    Access(AccessTag),
}

/// Entry of the timer heap: time, number in order of insertion, what is due.
#[derive(Clone, Copy, Debug)]
struct TimerEntry {
    at: Nanos,
    number: u64,
    timer: UrmaTimer,
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for TimerEntry {}
impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimerEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Deadlines. One that has become void keeps its entry.
#[derive(Debug, Default)]
pub(crate) struct UrmaTimers {
    heap: BinaryHeap<Reverse<TimerEntry>>,
    count: u64,
}

impl UrmaTimers {
    pub(crate) fn add(&mut self, at: Nanos, timer: UrmaTimer) {
        debug_assert!(at != Nanos::NEVER, "a deadline never comes");
        self.count += 1;
        self.heap.push(Reverse(TimerEntry { at, number: self.count, timer }));
    }
    /// The first deadline.
    pub(crate) fn next(&self) -> Nanos {
        self.heap.peek().map_or(Nanos::NEVER, |entry| entry.0.at)
    }
    /// Takes the first deadline, if it has come: its time, and what is due.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, UrmaTimer)> {
        if self.next() > now {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        debug_assert!(entry.at <= now);
        Some((entry.at, entry.timer))
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<TimerEntry>()
    }
}
