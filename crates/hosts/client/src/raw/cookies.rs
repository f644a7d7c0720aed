//! Tables from the numbers that travel to the objects: send queues by the cookie in completions (data path, no lock), and the
//! sources of events by the cookie in event pipes (under a lock, only when events are read).
//!
//! A number in a pipe or a ring may outlive its object, so no number is given twice. Event cookies count upwards for ever
//! ([`RawContext::event_cookie`](super::RawContext::event_cookie)). A queue pair's cookie is an index with a generation, and
//! indices are used again in the order in which they were freed.

use super::idle::SendProgress;
use super::lock::lock;
use std::collections::{HashMap, VecDeque};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const INDEX_BITS: u32 = 20;
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (INDEX_BITS - CHUNK_BITS);
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// A freed index is used again only after this many others were freed.
const FREED_MIN: usize = 64;

/// Cookie of completions that belong to no queue pair of this context (receives of an XRC shared receive queue); the cookies
/// of queue pairs are never 0.
pub const NO_COOKIE: u32 = 0;

/// How many entries of a queue pair's send queue have ever been freed, and how many of its receives have completed, as
/// completions say.
#[derive(Debug, Default)]
pub struct SendSlots {
    retired: AtomicU32,
    received: AtomicU32,
    posted: AtomicU32,
}

impl SendSlots {
    /// Records the count of a completion. Called under the lock of the send completion queue, so the count only grows.
    #[inline]
    pub fn set_retired(&self, count: u32) {
        self.retired.store(count, Ordering::Release);
    }

    /// The same, where a poll learns what the completion says of the queue.
    #[inline]
    pub fn retire(&self, count: u32, progress: &mut SendProgress) {
        progress.note(count.wrapping_sub(self.retired.load(Ordering::Relaxed)), self.outstanding(count));
        self.set_retired(count);
    }

    /// The last recorded count.
    #[inline]
    pub fn retired(&self) -> u32 {
        self.retired.load(Ordering::Acquire)
    }

    /// Records how many requests were posted so far. Called under the lock of the send queue.
    #[inline]
    pub fn set_posted(&self, count: u32) {
        self.posted.store(count, Ordering::Relaxed);
    }

    /// Requests that are posted, and not among the `retired` ones.
    #[inline]
    pub fn outstanding(&self, retired: u32) -> u32 {
        self.posted.load(Ordering::Relaxed).wrapping_sub(retired)
    }

    /// Records the count of a receive completion. Called under the lock of the receive completion queue.
    #[inline]
    pub fn set_received(&self, count: u32) {
        self.received.store(count, Ordering::Relaxed);
    }

    /// Receives that have completed. To be called under the lock of the receive completion queue.
    pub fn received(&self) -> u32 {
        self.received.load(Ordering::Relaxed)
    }
}

struct CookieSlot<T> {
    /// Cookie of the object here; its generation part is never 0 while occupied.
    cookie: AtomicU32,
    object: AtomicPtr<T>,
}

impl<T> Default for CookieSlot<T> {
    fn default() -> CookieSlot<T> {
        CookieSlot { cookie: AtomicU32::new(0), object: AtomicPtr::new(null_mut()) }
    }
}

#[derive(Debug, Default)]
struct FreeIndices {
    next: u32,
    freed: VecDeque<u32>,
}

/// Objects by cookie. The table holds addresses; it neither owns nor follows them.
pub struct CookieTable<T> {
    chunks: Box<[AtomicPtr<CookieSlot<T>>; CHUNKS]>,
    indices: Mutex<FreeIndices>,
}

impl<T> std::fmt::Debug for CookieTable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CookieTable").field("indices", &self.indices).finish_non_exhaustive()
    }
}

impl<T> Default for CookieTable<T> {
    fn default() -> CookieTable<T> {
        let chunks = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNKS]);
        CookieTable { chunks, indices: Mutex::default() }
    }
}

impl<T> CookieTable<T> {
    #[inline]
    fn slot(&self, cookie: u32) -> Option<&CookieSlot<T>> {
        let index = (cookie & INDEX_MASK) as usize;
        // Acquire pairs with the Release in `reserve`.
        let chunk = NonNull::new(self.chunks[index >> CHUNK_BITS].load(Ordering::Acquire))?;
        // SAFETY: a chunk has CHUNK slots and lives as long as the table.
        Some(unsafe { chunk.add(index & (CHUNK - 1)).as_ref() })
    }

    /// A cookie for an object to come; `None` when the table is full.
    pub fn reserve(&self) -> Option<u32> {
        let mut indices = lock(&self.indices);
        let index = if indices.freed.len() > FREED_MIN || indices.next > INDEX_MASK {
            indices.freed.pop_front()?
        } else {
            indices.next += 1;
            indices.next - 1
        };
        debug_assert!(index <= INDEX_MASK);
        let chunk = &self.chunks[index as usize >> CHUNK_BITS];
        if chunk.load(Ordering::Relaxed).is_null() {
            let slots: Box<[CookieSlot<T>]> = (0..CHUNK).map(|_| CookieSlot::default()).collect();
            chunk.store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        let before = self.slot(index)?.cookie.load(Ordering::Relaxed) >> INDEX_BITS;
        let generation = (before + 1) & ((1 << (32 - INDEX_BITS)) - 1);
        let cookie = generation.max(1) << INDEX_BITS | index;
        debug_assert_ne!(cookie, NO_COOKIE);
        Some(cookie)
    }

    /// Enters an object under its reserved cookie.
    ///
    /// # Safety
    /// The object must live until it was removed ([`CookieTable::remove`]) and the caller has since held the lock under which
    /// others look objects up: for [`SendSlots`], the locks of the queue pair's completion queues.
    pub unsafe fn put(&self, cookie: u32, object: NonNull<T>) {
        if let Some(slot) = self.slot(cookie) {
            debug_assert!(slot.object.load(Ordering::Relaxed).is_null(), "the cookie is in use");
            slot.cookie.store(cookie, Ordering::Relaxed);
            // Release pairs with the Acquire in `get`: a thread that finds the object sees all of it.
            slot.object.store(object.as_ptr(), Ordering::Release);
        }
    }

    /// The object with this cookie.
    #[inline]
    pub fn get(&self, cookie: u32) -> Option<NonNull<T>> {
        let slot = self.slot(cookie)?;
        let object = slot.object.load(Ordering::Acquire);
        NonNull::new(object).filter(|_| slot.cookie.load(Ordering::Relaxed) == cookie)
    }

    /// Takes an object out, or gives a reserved cookie back.
    pub fn remove(&self, cookie: u32) {
        if let Some(slot) = self.slot(cookie) {
            slot.object.store(null_mut(), Ordering::Release);
            slot.cookie.store(cookie, Ordering::Relaxed);
            lock(&self.indices).freed.push_back(cookie & INDEX_MASK);
        }
    }
}

impl<T> Drop for CookieTable<T> {
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

/// The sources of events by cookie.
#[derive(Debug)]
pub struct EventSources<S> {
    map: HashMap<u64, S>,
}

impl<S> Default for EventSources<S> {
    fn default() -> EventSources<S> {
        EventSources { map: HashMap::new() }
    }
}

impl<S: Copy> EventSources<S> {
    /// Enters an object under its cookie.
    pub fn put(&mut self, cookie: u64, source: S) {
        let before = self.map.insert(cookie, source);
        debug_assert!(before.is_none(), "event cookies are given once");
    }
    /// The object with this cookie.
    pub fn get(&self, cookie: u64) -> Option<S> {
        self.map.get(&cookie).copied()
    }
    /// All objects, in no order.
    pub fn all(&self) -> impl Iterator<Item = S> {
        self.map.values().copied()
    }
    /// Removes an object; later events of it are dropped.
    pub fn remove(&mut self, cookie: u64) {
        self.map.remove(&cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_of_a_removed_object_finds_nothing() {
        let table = CookieTable::default();
        let object = NonNull::<u64>::dangling();
        let first = table.reserve().unwrap();
        assert!(table.get(first).is_none());
        // SAFETY: the address is only compared.
        unsafe { table.put(first, object) };
        assert_eq!(table.get(first), Some(object));
        table.remove(first);
        assert!(table.get(first).is_none());
        // Until the same index is used again.
        let again = loop {
            let cookie = table.reserve().unwrap();
            // SAFETY: as above.
            unsafe { table.put(cookie, object) };
            if cookie & INDEX_MASK == first & INDEX_MASK {
                break cookie;
            }
            table.remove(cookie);
        };
        assert_ne!(first, again);
        assert!(table.get(first).is_none());
        assert_eq!(table.get(again), Some(object));
    }

    #[test]
    fn cookies_that_were_never_given_find_nothing() {
        let table = CookieTable::<u64>::default();
        for cookie in [NO_COOKIE, 1, INDEX_MASK, u32::MAX] {
            assert!(table.get(cookie).is_none());
        }
    }

    #[test]
    fn event_sources_are_found_until_they_are_removed() {
        let mut sources = EventSources::default();
        sources.put(1, "queue");
        assert_eq!((sources.get(1), sources.get(2)), (Some("queue"), None));
        sources.remove(1);
        assert_eq!(sources.get(1), None);
    }
}
