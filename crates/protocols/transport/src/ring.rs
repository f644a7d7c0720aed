//! Rings of the requests in flight and of their scatter/gather entries, addressed by counters that only grow.
//!
//! Both rings reserve their memory once, when the queue pair leaves RESET, and touch it only as it is used: an entry
//! is pushed the first time its place is reached and overwritten afterwards. An idle queue pair therefore costs
//! address space, not pages.

use burst_base::heap::{self, OutOfMemory};
use burst_shm::layout::Sge;

/// A ring of at most `capacity` (a power of two) entries; counters wrap at 2^32.
#[derive(Debug)]
pub(crate) struct InflightRing<T> {
    items: Vec<T>,
    capacity: u32,
}

impl<T: Copy> InflightRing<T> {
    /// A ring of capacity 0.
    pub(crate) const fn none() -> Self {
        InflightRing { items: Vec::new(), capacity: 0 }
    }
    pub(crate) fn with_capacity(capacity: u32) -> Result<Self, OutOfMemory> {
        assert!(capacity.is_power_of_two());
        Ok(InflightRing { items: heap::with_room(capacity as usize)?, capacity })
    }
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
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
    pub(crate) fn get(&self, at: u32) -> &T {
        &self.items[(at & (self.capacity - 1)) as usize]
    }
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.items[(at & (self.capacity - 1)) as usize]
    }
}

/// The scatter/gather entries of the work requests in flight. The entries of one request are contiguous.
#[derive(Debug, Default)]
pub(crate) struct SgeRing {
    items: Vec<Sge>,
    capacity: usize,
    head: usize,
    tail: usize,
    /// Index of `tail`, 0..=`capacity`.
    next: usize,
}

impl SgeRing {
    pub(crate) fn with_capacity(capacity: usize) -> Result<Self, OutOfMemory> {
        Ok(SgeRing { items: heap::with_room(capacity)?, capacity, head: 0, tail: 0, next: 0 })
    }
    /// Index and counter at which `count` contiguous entries would begin: not across the end of the ring.
    #[inline]
    fn place(&self, count: usize) -> (usize, usize) {
        if self.next + count > self.capacity {
            (0, self.tail + (self.capacity - self.next))
        } else {
            (self.next, self.tail)
        }
    }
    /// Whether `count` entries fit.
    #[inline]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        count == 0 || self.place(count).1 + count - self.head <= self.capacity
    }
    /// Appends the entries, for which there must be room. Returns their index and the counter for [`SgeRing::free_to`].
    pub(crate) fn append(&mut self, sges: &[Sge]) -> (u32, usize) {
        if sges.is_empty() {
            return (0, self.tail);
        }
        let (first, at) = self.place(sges.len());
        (self.next, self.tail) = (first + sges.len(), at + sges.len());
        assert!(self.next <= self.capacity && self.tail - self.head <= self.capacity);
        if self.items.len() < self.next {
            self.items.resize(self.next, Sge::default());
        }
        match sges {
            // Most requests have one entry, which is copied without a call.
            [one] => self.items[first] = *one,
            _ => self.items[first..self.next].copy_from_slice(sges),
        }
        (first as u32, self.tail)
    }
    /// Frees everything before counter `end`.
    pub(crate) fn free_to(&mut self, end: usize) {
        assert!(end >= self.head && end <= self.tail);
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

    #[test]
    fn entries_stay_contiguous_around_the_end() {
        let mut ring = SgeRing::with_capacity(64).expect("memory");
        let mut live: std::collections::VecDeque<(u64, usize, u32, usize)> = Default::default();
        for tag in 0..1000u64 {
            let count = (tag as usize * 7) % 31;
            while !ring.has_room(count) {
                let (tag, count, first, end) = live.pop_front().expect("room for one request always");
                assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
                ring.free_to(end);
            }
            let (first, end) = ring.append(&sges(tag, count));
            live.push_back((tag, count, first, end));
        }
        for (tag, count, first, _) in live {
            assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
        }
    }

    #[test]
    fn twice_the_longest_request_is_room_for_any_next_one() {
        for longest in 1..=30usize {
            let mut ring = SgeRing::with_capacity(2 * longest).expect("memory");
            for tag in 0..200u64 {
                assert!(ring.has_room(longest), "{tag} of up to {longest}");
                let count = 1 + (tag as usize * 7) % longest;
                let (first, end) = ring.append(&sges(tag, count));
                assert_eq!(ring.get(first, count as u8), &sges(tag, count)[..]);
                ring.free_to(end);
            }
        }
    }

    #[test]
    fn ring_wraps() {
        let mut ring = InflightRing::with_capacity(4).expect("memory");
        for at in 0..10u32 {
            ring.store(at, at);
            for back in 0..4u32.min(at + 1) {
                assert_eq!(*ring.get(at - back), at - back);
            }
        }
        assert_eq!(ring.capacity(), 4);
    }
}
