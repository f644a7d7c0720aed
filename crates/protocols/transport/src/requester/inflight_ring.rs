//! Rings of the requests in flight and of their scatter/gather entries, addressed by counters that only grow.
//!
//! Both rings begin with room for one request, which is reserved when the queue pair leaves RESET. They double when they are
//! full, up to what the queue pair was created with, so their size follows how many requests a program really has in flight. If
//! there is no memory for that, the ring stays full until a request ends.

use burst_base::heap;
use burst_base::heap::OutOfMemory;
use burst_shm::Sge;
use burst_span::{prefetch, prefetch_line};

/// A ring of entries, a power of two; counters wrap at 2^32.
#[derive(Debug)]
pub(crate) struct InflightRing<T> {
    items: Vec<T>,
    capacity: u32,
    /// Entries that it may grow to, a power of two.
    limit: u32,
}

impl<T: Copy> InflightRing<T> {
    /// A ring of capacity 0.
    pub(crate) const fn none() -> Self {
        InflightRing { items: Vec::new(), capacity: 0, limit: 0 }
    }
    /// A ring with room for one entry, which may grow to `limit`.
    pub(crate) fn with_limit(limit: u32) -> Result<Self, OutOfMemory> {
        assert!(limit.is_power_of_two());
        Ok(InflightRing { items: heap::with_room(1)?, capacity: 1, limit })
    }
    /// Entries that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }
    /// Doubles a full ring, whose oldest entry has counter `head`. False if it may not grow or there is no memory.
    #[cold]
    pub(crate) fn grow(&mut self, head: u32) -> bool {
        debug_assert!(self.items.len() == self.capacity as usize, "a full ring has used all places");
        let capacity = self.capacity * 2;
        if capacity > self.limit {
            return false;
        }
        let Ok(mut items) = heap::with_room(capacity as usize) else { return false };
        // Each entry moves to its counter's place in the larger ring.
        items.resize(capacity as usize, *self.get(head));
        for at in (0..self.capacity).map(|age| head.wrapping_add(age)) {
            items[(at & (capacity - 1)) as usize] = *self.get(at);
        }
        (self.items, self.capacity) = (items, capacity);
        true
    }
    /// Stores the entry with counter `at`. Entries are stored in counter order, so the place exists or is the next one.
    pub(crate) fn store(&mut self, at: u32, item: T) {
        let place = (at & (self.capacity - 1)) as usize;
        if place == self.items.len() {
            self.items.push(item);
        } else {
            self.items[place] = item;
        }
    }
    /// Asks the processor for the entry with counter `at`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, at: u32) {
        let place = at & self.capacity.wrapping_sub(1);
        prefetch(self.items.as_ptr().wrapping_add(place as usize).cast(), size_of::<T>() + 63);
    }
    pub(crate) fn get(&self, at: u32) -> &T {
        &self.items[(at & (self.capacity - 1)) as usize]
    }
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.items[(at & (self.capacity - 1)) as usize]
    }
}

/// The scatter/gather entries of the work requests in flight. The entries of one request are contiguous: those of the next one
/// are written into [`SgeRing::places`], and then counted by [`SgeRing::append`].
#[derive(Debug, Default)]
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct SgeRing {
    items: Vec<Sge>,
    /// Index of `tail`, 0..=`capacity`.
    next: u32,
    /// Counters of entries: the oldest, the next.
    head: u32,
    tail: u32,
    capacity: u32,
    /// Entries of the longest request.
    longest: u32,
    /// Entries that it may grow to.
    limit: u32,
}

impl SgeRing {
    /// A ring for requests of up to `longest` entries, with room for twice as many, which may grow to `limit`: entries of a
    /// request are contiguous, so there is always room for one more.
    pub(crate) fn with_limit(limit: u32, longest: u32) -> Result<Self, OutOfMemory> {
        assert!(2 * longest <= limit);
        SgeRing::empty(2 * longest, limit, longest)
    }
    fn empty(capacity: u32, limit: u32, longest: u32) -> Result<Self, OutOfMemory> {
        Ok(SgeRing { items: heap::with_room(capacity as usize)?, longest, capacity, limit, head: 0, tail: 0, next: 0 })
    }
    /// An empty ring of twice the room, to which the entries in use are to be moved. `None` if it may not be, or there is no
    /// memory.
    #[cold]
    pub(crate) fn doubled(&self) -> Option<SgeRing> {
        let capacity = (2 * self.capacity).min(self.limit);
        if capacity == self.capacity {
            return None;
        }
        SgeRing::empty(capacity, self.limit, self.longest).ok()
    }
    /// Begins at the first place again if the longest request would reach across the end of the ring.
    #[inline(always)]
    fn wrap(&mut self) {
        if self.next + self.longest > self.capacity {
            self.tail = self.tail.wrapping_add(self.capacity - self.next);
            self.next = 0;
        }
    }
    /// Whether the longest request fits.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) + self.longest <= self.capacity
    }
    /// Asks the processor for the first of [`SgeRing::places`].
    #[inline(always)]
    pub(crate) fn prefetch_next(&self) {
        prefetch_line(self.items.as_ptr().wrapping_add(self.next as usize).cast());
    }
    /// The places of the next request's entries, as many as the longest request has. There must be room.
    #[inline(always)]
    pub(crate) fn places(&mut self) -> &mut [Sge] {
        let (first, end) = (self.next as usize, (self.next + self.longest) as usize);
        debug_assert!(end <= self.capacity as usize, "the longest request fits before the end of the ring");
        if self.items.len() < end {
            self.items.resize(end, Sge::default());
        }
        &mut self.items[first..end]
    }
    /// The first `count` entries that were written into [`SgeRing::places`].
    #[inline(always)]
    pub(crate) fn written(&self, count: u8) -> &[Sge] {
        self.get(self.next, count)
    }
    /// Appends the first `count` entries of [`SgeRing::places`]. Returns their index and the counter for [`SgeRing::free_to`].
    #[inline(always)]
    pub(crate) fn append(&mut self, count: u8) -> (u32, u32) {
        let first = self.next;
        self.next += u32::from(count);
        self.tail = self.tail.wrapping_add(count.into());
        assert!(u32::from(count) <= self.longest && self.tail.wrapping_sub(self.head) <= self.capacity);
        self.wrap();
        (first, self.tail)
    }
    /// Appends entries of the ring that this one replaces. Returns their index and the counter for [`SgeRing::free_to`].
    pub(crate) fn move_in(&mut self, entries: &[Sge]) -> (u32, u32) {
        let first = self.next;
        debug_assert!(self.items.len() == first as usize, "no entry has ended here");
        self.items.extend_from_slice(entries);
        self.next += entries.len() as u32;
        assert!(self.next <= self.capacity);
        self.tail = self.next;
        (first, self.tail)
    }
    /// Ends [`SgeRing::move_in`]: all entries in use have been moved, and the next request finds its place.
    pub(crate) fn moved_in(&mut self) {
        self.wrap();
    }
    /// Frees everything before counter `end`.
    pub(crate) fn free_to(&mut self, end: u32) {
        assert!(end.wrapping_sub(self.head) <= self.tail.wrapping_sub(self.head));
        self.head = end;
    }
    /// `count` entries from `first`.
    pub(crate) fn get(&self, first: u32, count: u8) -> &[Sge] {
        &self.items[first as usize..first as usize + usize::from(count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sges(tag: u64, count: usize) -> Vec<Sge> {
        (0..count).map(|i| Sge { addr: tag * 100 + i as u64, length: 1, lkey: 0 }).collect()
    }

    fn append(ring: &mut SgeRing, sges: &[Sge]) -> (u32, u32) {
        ring.places()[..sges.len()].copy_from_slice(sges);
        assert_eq!(ring.written(sges.len() as u8), sges);
        ring.append(sges.len() as u8)
    }

    #[test]
    fn entries_stay_contiguous_around_the_end() {
        let mut ring = SgeRing::empty(64, 64, 32).expect("memory");
        let mut live: std::collections::VecDeque<(u64, usize, u32, u32)> = Default::default();
        for tag in 0..1000u64 {
            let count = (tag as usize * 7) % 33;
            while !ring.has_room() {
                let (tag, count, first, end) = live.pop_front().expect("room for one request always");
                assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
                ring.free_to(end);
            }
            let (first, end) = append(&mut ring, &sges(tag, count));
            live.push_back((tag, count, first, end));
        }
        for (tag, count, first, _) in live {
            assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
        }
    }

    #[test]
    fn twice_the_longest_request_is_room_for_any_next_one() {
        for longest in 1..=30u32 {
            let mut ring = SgeRing::with_limit(2 * longest, longest).expect("memory");
            for tag in 0..200u64 {
                assert!(ring.has_room(), "{tag} of up to {longest}");
                let count = 1 + (tag as usize * 7) % longest as usize;
                let (first, end) = append(&mut ring, &sges(tag, count));
                assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
                ring.free_to(end);
            }
        }
    }

    #[test]
    fn ring_grows_and_wraps() {
        let mut ring = InflightRing::with_limit(4).expect("memory");
        let (mut head, mut in_use) = (0u32, Vec::new());
        for at in 0..40u32 {
            // The oldest entry ends in front of each third one, so the ring doubles at different places of its entries.
            if at % 3 == 2 {
                head += 1;
            }
            if at - head == ring.capacity() && !ring.grow(head) {
                assert_eq!(ring.capacity(), 4, "it grows to its limit");
                head += 1;
            }
            ring.store(at, at);
            in_use.push(ring.capacity());
            for old in head..=at {
                assert_eq!(*ring.get(old), old);
            }
        }
        assert_eq!(in_use[..4], [1, 2, 2, 4]);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_ring_without_memory_to_grow_keeps_its_entries() {
        let mut ring = InflightRing::with_limit(2).expect("memory");
        ring.store(0, 7);
        burst_base::fault::arm(0);
        assert!(!ring.grow(0) && burst_base::fault::disarm(), "there is no memory");
        assert_eq!((*ring.get(0), ring.capacity()), (7, 1));
        assert!(ring.grow(0) && *ring.get(0) == 7);
    }
}
