//! Small numbers that come back: table indices shared by the control thread and the workers.

/// Hands out numbers from 0, the smallest free one first, up to a limit.
#[derive(Debug)]
pub struct IdAllocator {
    next: u32,
    limit: u32,
    free: std::collections::BinaryHeap<std::cmp::Reverse<u32>>,
}

impl IdAllocator {
    /// IdAllocator `0..limit`.
    pub fn new(limit: u32) -> IdAllocator {
        IdAllocator { next: 0, limit, free: std::collections::BinaryHeap::new() }
    }
    /// The smallest free number.
    pub fn take(&mut self) -> Option<u32> {
        if let Some(std::cmp::Reverse(n)) = self.free.pop() {
            return Some(n);
        }
        (self.next < self.limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
    /// Gives a number back.
    pub fn put(&mut self, n: u32) {
        debug_assert!(n < self.next);
        self.free.push(std::cmp::Reverse(n));
    }
    /// One more than the largest number ever given out.
    pub fn taken_end(&self) -> u32 {
        self.next
    }
    /// How many are taken.
    pub fn taken(&self) -> u32 {
        self.next - self.free.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_first_and_limited() {
        let mut n = IdAllocator::new(3);
        assert_eq!([n.take(), n.take(), n.take(), n.take()], [Some(0), Some(1), Some(2), None]);
        n.put(2);
        n.put(0);
        assert_eq!(n.taken(), 1);
        assert_eq!([n.take(), n.take(), n.take()], [Some(0), Some(2), None]);
    }
}
