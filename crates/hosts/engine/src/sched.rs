//! Whose turn it is: contexts first, queue pairs second.
//!
//! Each context has a queue of ready queue pairs; contexts with a non-empty queue stand in line themselves. One turn
//! goes to the first queue pair of the first context; then both go to the back. So a process with a thousand queue
//! pairs gets no more than one with a single queue pair (SRNIC's ready queues, one level higher).
//!
//! A queue pair that ends is not searched for: who takes turns knows who is still ready, and what is over is passed over. Only
//! when more than half of a queue is over is it swept, so that the end of thousands at once costs each the same.

use std::collections::VecDeque;

/// A queue with fewer that are over is not swept.
const SWEPT_FROM: usize = 64;

/// The ticket of whoever does not stand in line.
pub const NO_TICKET: u32 = 0;

/// A place in a queue. It is over when its queue pair has another ticket or none, whoever has the slot by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyPlace {
    /// Slot of the queue pair.
    pub qp: u32,
    /// What [`Scheduler::push`] gave it.
    pub ticket: u32,
}

/// The queue pairs of one context.
#[derive(Debug, Default)]
struct ReadyQueue {
    queue: VecDeque<ReadyPlace>,
    /// How many of them are over, at most.
    over: usize,
}

/// The ready queues. Handles are table indices of the worker.
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: Vec<ReadyQueue>,
    line: VecDeque<u32>,
    in_line: Vec<bool>,
    tickets: u32,
}

impl Scheduler {
    /// Makes room for context `context`.
    pub fn add_context(&mut self, context: u32) {
        let len = context as usize + 1;
        if self.ready.len() < len {
            self.ready.resize_with(len, ReadyQueue::default);
            self.in_line.resize(len, false);
        }
    }
    /// Forgets what context `context` had ready.
    pub fn remove_context(&mut self, context: u32) {
        self.ready[context as usize] = ReadyQueue::default();
    }
    /// Queue pair `qp` of `context` is ready; returns its ticket. The caller sees to it that it is queued once.
    pub fn push(&mut self, context: u32, qp: u32) -> u32 {
        self.tickets = self.tickets.wrapping_add(1).max(NO_TICKET + 1);
        let place = ReadyPlace { qp, ticket: self.tickets };
        self.ready[context as usize].queue.push_back(place);
        if !self.in_line[context as usize] {
            self.in_line[context as usize] = true;
            self.line.push_back(context);
        }
        place.ticket
    }
    /// The next turn, of a queue pair that is `still` ready.
    pub fn take_turn(&mut self, still: impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        while let Some(context) = self.line.pop_front() {
            let ReadyQueue { queue, over } = &mut self.ready[context as usize];
            let mut qp = queue.pop_front();
            while qp.is_some_and(|q| !still(q)) {
                *over = over.saturating_sub(1);
                qp = queue.pop_front();
            }
            if queue.is_empty() {
                *over = 0;
                self.in_line[context as usize] = false;
            } else {
                self.line.push_back(context);
            }
            if let Some(place) = qp {
                return Some(place.qp);
            }
        }
        None
    }
    /// Whether nobody is ready.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
    /// A ready queue pair of `context` is over; those that are `still` ready keep their places.
    pub fn remove(&mut self, context: u32, still: impl Fn(ReadyPlace) -> bool) {
        let ReadyQueue { queue, over } = &mut self.ready[context as usize];
        *over += 1;
        if *over >= SWEPT_FROM && *over > queue.len() / 2 {
            queue.retain(|q| still(*q));
            *over = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_alternate_whatever_their_size() {
        let mut s = Scheduler::default();
        s.add_context(0);
        s.add_context(1);
        for qp in 0..4 {
            s.push(0, qp);
        }
        s.push(1, 100);
        s.push(1, 101);
        let order: Vec<_> = std::iter::from_fn(|| s.take_turn(|_| true)).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3]);
        assert!(s.is_empty());
    }

    #[test]
    fn removed_are_skipped() {
        let mut s = Scheduler::default();
        s.add_context(3);
        s.push(3, 7);
        s.push(3, 8);
        s.remove(3, |place| place.qp != 7);
        assert_eq!(s.take_turn(|place| place.qp != 7), Some(8));
        s.push(3, 9);
        s.remove_context(3);
        assert_eq!(s.take_turn(|_| true), None);
        s.push(3, 10);
        assert_eq!(s.take_turn(|_| true), Some(10));
    }

    #[test]
    fn whoever_has_the_slot_next_has_one_turn() {
        let mut s = Scheduler::default();
        s.add_context(0);
        let first = s.push(0, 7);
        s.remove(0, |place| place.ticket != first);
        let second = s.push(0, 7);
        let still = |place: ReadyPlace| place == ReadyPlace { qp: 7, ticket: second };
        assert_eq!((s.take_turn(still), s.take_turn(still)), (Some(7), None));
        s.tickets = u32::MAX;
        assert_ne!(s.push(0, 7), NO_TICKET);
    }

    #[test]
    fn thousands_that_end_at_once_are_each_looked_at_a_few_times() {
        use std::cell::Cell;
        let mut s = Scheduler::default();
        s.add_context(0);
        let count = 10_000;
        for qp in 0..count {
            s.push(0, qp);
        }
        let looked = Cell::new(0u32);
        for end in 1..=count {
            s.remove(0, |place| {
                looked.set(looked.get() + 1);
                place.qp >= end
            });
        }
        assert!(looked.get() < 4 * count, "{}", looked.get());
        assert!(s.ready[0].queue.len() < 2 * SWEPT_FROM);
        s.push(0, count);
        assert_eq!(s.take_turn(|place| place.qp >= count), Some(count));
        assert!(s.is_empty());
    }
}
