//! Allocation of small numbers: indices of tables that the control thread shares with the workers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Allocates numbers from 0 up to a limit, the smallest free number first.
#[derive(Debug)]
pub struct IdAllocator {
    /// The smallest number that was never allocated.
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
    /// One more than the largest number ever allocated.
    pub fn taken_end(&self) -> u32 {
        self.next
    }
    /// How many numbers are in use.
    pub fn taken(&self) -> u32 {
        self.next - self.free.len() as u32
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
}
