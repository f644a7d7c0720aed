//! Finding objects by the numbers that travel: queue pairs by the cookie in completions (data path, no lock), and event sources by
//! the cookie in event pipes (a lock, only when events are read).
//!
//! A number in a pipe or a ring may outlive its object, so numbers are never reused as they are: event cookies count
//! upwards for ever, queue pair cookies are an index with a generation, and indices are reused first-in first-out.

use crate::cq::Cq;
use crate::qp::Qp;
use crate::srq::Srq;
use std::collections::{HashMap, VecDeque};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const INDEX_BITS: u32 = 20;
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (INDEX_BITS - CHUNK_BITS);
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Freed indices rest until so many others were freed after them.
const REST: usize = 64;

/// Locks a mutex; a holder that panicked left nothing half-done that matters.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Slot {
    /// Cookie of the queue pair here; its generation part is never 0 while occupied.
    cookie: AtomicU32,
    qp: AtomicPtr<Qp>,
}

#[derive(Debug, Default)]
struct Indices {
    next: u32,
    freed: VecDeque<u32>,
}

/// Queue pairs of a context by cookie.
pub struct QpTable {
    chunks: Box<[AtomicPtr<Slot>; CHUNKS]>,
    indices: Mutex<Indices>,
}

impl std::fmt::Debug for QpTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpTable").field("indices", &self.indices).finish_non_exhaustive()
    }
}

impl Default for QpTable {
    fn default() -> QpTable {
        let chunks = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNKS]);
        QpTable { chunks, indices: Mutex::default() }
    }
}

impl QpTable {
    #[inline]
    fn slot(&self, cookie: u32) -> Option<&Slot> {
        let index = (cookie & INDEX_MASK) as usize;
        // Acquire pairs with the Release in `reserve`.
        let chunk = NonNull::new(self.chunks[index >> CHUNK_BITS].load(Ordering::Acquire))?;
        // SAFETY: a chunk has CHUNK slots and lives as long as the table.
        Some(unsafe { chunk.add(index & (CHUNK - 1)).as_ref() })
    }

    /// A cookie for a queue pair to come; `None` when the table is full.
    pub fn reserve(&self) -> Option<u32> {
        let mut indices = lock(&self.indices);
        let index = if indices.freed.len() > REST || indices.next > INDEX_MASK {
            indices.freed.pop_front()?
        } else {
            indices.next += 1;
            indices.next - 1
        };
        let chunk = &self.chunks[index as usize >> CHUNK_BITS];
        if chunk.load(Ordering::Relaxed).is_null() {
            let slots: Box<[Slot]> = (0..CHUNK).map(|_| Slot::default()).collect();
            chunk.store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        let before = self.slot(index)?.cookie.load(Ordering::Relaxed) >> INDEX_BITS;
        let generation = (before + 1) & ((1 << (32 - INDEX_BITS)) - 1);
        Some(generation.max(1) << INDEX_BITS | index)
    }

    /// Puts a queue pair under its reserved cookie.
    pub fn put(&self, cookie: u32, qp: *mut Qp) {
        if let Some(slot) = self.slot(cookie) {
            slot.cookie.store(cookie, Ordering::Relaxed);
            // Release pairs with the Acquire in `get`: whoever finds the queue pair sees it whole.
            slot.qp.store(qp, Ordering::Release);
        }
    }

    /// The queue pair of a completion. The caller holds the lock of a CQ to which it is attached, and removal takes
    /// that lock too, so the queue pair outlives the use.
    #[inline]
    pub fn get(&self, cookie: u32) -> Option<NonNull<Qp>> {
        let slot = self.slot(cookie)?;
        let qp = slot.qp.load(Ordering::Acquire);
        NonNull::new(qp).filter(|_| slot.cookie.load(Ordering::Relaxed) == cookie)
    }

    /// Takes a queue pair out, or gives a reserved cookie back.
    pub fn remove(&self, cookie: u32) {
        if let Some(slot) = self.slot(cookie) {
            slot.qp.store(null_mut(), Ordering::Release);
            slot.cookie.store(cookie, Ordering::Relaxed);
            lock(&self.indices).freed.push_back(cookie & INDEX_MASK);
        }
    }
}

impl Drop for QpTable {
    fn drop(&mut self) {
        for chunk in self.chunks.iter_mut() {
            let chunk = *chunk.get_mut();
            if !chunk.is_null() {
                // SAFETY: made by `Box::into_raw` of a slice of CHUNK slots.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(chunk, CHUNK)) });
            }
        }
    }
}

/// What an event can be about. The pointers stay valid while their entry is in the table.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A completion queue.
    Cq(NonNull<Cq>),
    /// A queue pair.
    Qp(NonNull<Qp>),
    /// A shared receive queue.
    Srq(NonNull<Srq>),
}

// SAFETY: the table only carries the pointers; uses are guarded as each use says.
unsafe impl Send for Source {}

/// Event sources of a context by cookie.
#[derive(Debug, Default)]
pub struct Sources {
    next: u64,
    map: HashMap<u64, Source>,
}

impl Sources {
    /// A number for an object to come.
    pub fn reserve(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
    /// Makes an object known.
    pub fn put(&mut self, cookie: u64, source: Source) {
        self.map.insert(cookie, source);
    }
    /// The object.
    pub fn get(&self, cookie: u64) -> Option<Source> {
        self.map.get(&cookie).copied()
    }
    /// Forgets an object; later events about it are dropped.
    pub fn remove(&mut self, cookie: u64) {
        self.map.remove(&cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_cookie_finds_nothing() {
        let table = QpTable::default();
        let fake = NonNull::<Qp>::dangling();
        let first = table.reserve().unwrap();
        assert!(table.get(first).is_none());
        table.put(first, fake.as_ptr());
        assert_eq!(table.get(first), Some(fake));
        table.remove(first);
        assert!(table.get(first).is_none());
        // Use the same index again: all others rest first.
        let again = loop {
            let cookie = table.reserve().unwrap();
            table.put(cookie, fake.as_ptr());
            if cookie & INDEX_MASK == first & INDEX_MASK {
                break cookie;
            }
            table.remove(cookie);
        };
        assert_ne!(first, again);
        assert!(table.get(first).is_none());
        assert_eq!(table.get(again), Some(fake));
    }

    #[test]
    fn foreign_cookies_find_nothing() {
        let table = QpTable::default();
        for cookie in [0, 1, INDEX_MASK, u32::MAX] {
            assert!(table.get(cookie).is_none());
        }
    }
}
