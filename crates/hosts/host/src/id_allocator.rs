//! Allocation of small numbers: indices of tables that the control thread shares with the workers.
//!
//! Numbers of all programs ([`ChargedNumbers`]) are given for a charge of their resource only.

use burst_ledger::{Charge, Resource};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Allocates numbers from 0 up to a limit, the smallest free number first.
#[derive(Debug)]
pub struct IdAllocator {
    /// All numbers from here on are free and not in `free`.
    next: u32,
    limit: u32,
    free: BinaryHeap<Reverse<u32>>,
}

impl IdAllocator {
    /// An allocator of the numbers `0..limit`.
    pub fn new(limit: u32) -> IdAllocator {
        IdAllocator { next: 0, limit, free: BinaryHeap::new() }
    }
    /// Allocates the smallest free number; `None` when all are in use.
    pub fn take(&mut self) -> Option<u32> {
        if burst_base::fault::fails() { None } else { self.take_free() }
    }
    /// As [`IdAllocator::take`], for an owner that never reaches the limit: tests cannot let it fail.
    pub fn take_free(&mut self) -> Option<u32> {
        if let Some(Reverse(n)) = self.free.pop() {
            debug_assert!(n < self.next);
            return Some(n);
        }
        (self.next < self.limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
    /// Frees a number that [`IdAllocator::take`] returned.
    pub fn put(&mut self, n: u32) {
        assert!(n < self.next, "number {n} was never allocated");
        self.free.push(Reverse(n));
    }
    /// Returns the memory of free numbers above the largest one in use to the heap.
    pub fn shrink(&mut self) {
        let mut free = std::mem::take(&mut self.free).into_vec();
        free.sort_unstable_by_key(|Reverse(n)| *n);
        while free.last().is_some_and(|Reverse(n)| n + 1 == self.next) {
            free.pop();
            self.next -= 1;
        }
        free.shrink_to_fit();
        self.free = free.into();
    }
    /// One more than the largest number allocated since the last [`IdAllocator::shrink`].
    pub fn taken_end(&self) -> u32 {
        self.next
    }
    /// How many numbers are in use.
    pub fn taken(&self) -> u32 {
        self.next - self.free.len() as u32
    }
}

/// Numbers of a resource that all programs share.
#[derive(Debug)]
pub struct ChargedNumbers {
    resource: Resource,
    numbers: IdAllocator,
}

impl ChargedNumbers {
    /// The numbers `0..limit` of a resource.
    pub fn new(resource: Resource, limit: u32) -> ChargedNumbers {
        ChargedNumbers { resource, numbers: IdAllocator::new(limit) }
    }
    /// Allocates the smallest free number for an object that is charged; `None` when all are in use.
    ///
    /// # Panics
    /// If the charge is of other resources.
    pub fn take(&mut self, charge: &Charge) -> Option<u32> {
        assert!(charge.covers(self.resource), "a number of {} without a charge", self.resource.words());
        self.numbers.take()
    }
    /// Frees a number.
    pub fn put(&mut self, n: u32) {
        self.numbers.put(n);
    }
    /// As [`IdAllocator::shrink`].
    pub fn shrink(&mut self) {
        self.numbers.shrink();
    }
    /// As [`IdAllocator::taken_end`].
    pub fn taken_end(&self) -> u32 {
        self.numbers.taken_end()
    }
    /// How many numbers are in use.
    pub fn taken(&self) -> u32 {
        self.numbers.taken()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_free_number_comes_first_and_the_limit_holds() {
        let mut n = IdAllocator::new(3);
        assert_eq!([n.take(), n.take(), n.take(), n.take()], [Some(0), Some(1), Some(2), None]);
        n.put(2);
        n.put(0);
        assert_eq!(n.taken(), 1);
        assert_eq!([n.take(), n.take(), n.take()], [Some(0), Some(2), None]);
    }

    #[test]
    fn free_numbers_above_those_in_use_cost_no_memory_after_a_shrink() {
        let mut n = IdAllocator::new(1000);
        assert_eq!(std::iter::from_fn(|| n.take()).count(), 1000);
        (0..1000).filter(|number| *number != 5).for_each(|number| n.put(number));
        assert!(n.free.capacity() >= 999);
        n.shrink();
        assert!(n.free.capacity() < 16 && (n.taken_end(), n.taken()) == (6, 1), "{n:?}");
        assert_eq!([n.take(), n.take()], [Some(0), Some(1)], "the smallest one is still the first");
        let rest: Vec<u32> = std::iter::from_fn(|| n.take()).collect();
        assert_eq!(rest, [2, 3, 4].into_iter().chain(6..1000).collect::<Vec<_>>(), "none is lost, none is given twice");
    }
}
