//! Order of turns: round robin over contexts, and over the ready queue pairs of each context.
//!
//! Each context has a queue of ready queue pairs, and contexts with a non-empty queue are queued themselves. One turn goes to the
//! first queue pair of the first context; then both go to the back. So a process with a thousand queue pairs gets no more turns
//! than one with a single queue pair (SRNIC's ready queues, one level higher).
//!
//! A destroyed queue pair is not searched for in its queue. Its place becomes void, and [`Scheduler::take_turn`] skips void
//! places. A queue is swept only when more than half of its places are void, so each of thousands of queue pairs that end at
//! once costs constant time.

use std::collections::VecDeque;

/// A queue with fewer void places is not swept.
const SWEPT_FROM: usize = 64;

/// Ticket of a queue pair that is in no ready queue.
pub const NO_TICKET: u32 = 0;

/// A place in a ready queue. It is void when the slot's queue pair has another ticket or none, also if the slot has a new queue
/// pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyPlace {
    /// Slot of the queue pair.
    pub qp: u32,
    /// Ticket from [`Scheduler::push`].
    pub ticket: u32,
}

/// The queue pairs of one context.
#[derive(Debug, Default)]
struct ReadyQueue {
    queue: VecDeque<ReadyPlace>,
    /// Upper bound on the number of void places.
    void: usize,
}

/// The ready queues. Contexts and queue pairs are named by their indices in the worker's tables.
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: Vec<ReadyQueue>,
    /// Contexts with ready queue pairs, in order of their turns.
    queued: VecDeque<u32>,
    /// By context: whether it is in `queued`.
    is_queued: Vec<bool>,
    tickets: u32,
}

impl Scheduler {
    /// Makes room for context `context`.
    pub fn add_context(&mut self, context: u32) {
        let len = context as usize + 1;
        if self.ready.len() < len {
            self.ready.resize_with(len, ReadyQueue::default);
            self.is_queued.resize(len, false);
        }
    }
    /// Empties the ready queue of context `context`.
    pub fn remove_context(&mut self, context: u32) {
        self.ready[context as usize] = ReadyQueue::default();
    }
    /// Returns memory that is not in use. `contexts` is one more than the largest number of a context that exists.
    pub fn shrink(&mut self, contexts: usize) {
        // A removed context may be queued until its next turn.
        let queued = self.queued.iter().max().map_or(0, |last| *last as usize + 1);
        let used = contexts.max(queued);
        self.ready.truncate(used);
        self.ready.shrink_to_fit();
        self.is_queued.truncate(used);
        self.is_queued.shrink_to_fit();
        self.queued.shrink_to_fit();
        self.ready.iter_mut().for_each(|ready| ready.queue.shrink_to_fit());
    }
    /// Appends queue pair `qp` of `context`, which must not be queued, and returns its ticket.
    pub fn push(&mut self, context: u32, qp: u32) -> u32 {
        assert!((context as usize) < self.ready.len(), "context {context} was not added");
        self.tickets = self.tickets.wrapping_add(1).max(NO_TICKET + 1);
        let place = ReadyPlace { qp, ticket: self.tickets };
        self.ready[context as usize].queue.push_back(place);
        if !self.is_queued[context as usize] {
            self.is_queued[context as usize] = true;
            self.queued.push_back(context);
        }
        place.ticket
    }
    /// Takes the queue pair that has the next turn, of those that are `still` ready.
    pub fn take_turn(&mut self, still: impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        while let Some(context) = self.queued.pop_front() {
            debug_assert!(self.is_queued[context as usize], "context {context} is queued without its mark");
            let ReadyQueue { queue, void } = &mut self.ready[context as usize];
            let mut qp = queue.pop_front();
            while qp.is_some_and(|q| !still(q)) {
                *void = void.saturating_sub(1);
                qp = queue.pop_front();
            }
            if queue.is_empty() {
                *void = 0;
                self.is_queued[context as usize] = false;
            } else {
                self.queued.push_back(context);
            }
            if let Some(place) = qp {
                return Some(place.qp);
            }
        }
        debug_assert!(self.is_queued.iter().all(|queued| !queued), "a context is marked and not queued");
        None
    }
    /// Whether no context is queued.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }
    /// Notes that a place of `context` has become void. Places that are `still` valid keep their order.
    pub fn remove(&mut self, context: u32, still: impl Fn(ReadyPlace) -> bool) {
        let ReadyQueue { queue, void } = &mut self.ready[context as usize];
        *void += 1;
        if *void >= SWEPT_FROM && *void > queue.len() / 2 {
            queue.retain(|q| still(*q));
            *void = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_alternate_whatever_their_number_of_queue_pairs() {
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
    fn void_places_are_skipped() {
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
    fn the_next_queue_pair_in_a_slot_has_one_turn() {
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
    fn each_of_thousands_that_end_at_once_costs_a_few_looks() {
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
