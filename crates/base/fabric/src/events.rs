//! What will happen, in the order of time; at one time, in the order of scheduling.
//!
//! Events are as large as trains. They stay where they are put, and a heap orders short entries that name their places.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events to come.
#[derive(Debug)]
pub(crate) struct NetworkEvents<E> {
    /// Time, number of the event, place.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    places: Vec<Option<E>>,
    free: Vec<u32>,
    scheduled: u64,
}

impl<E> NetworkEvents<E> {
    pub fn new() -> NetworkEvents<E> {
        NetworkEvents { heap: BinaryHeap::new(), places: Vec::new(), free: Vec::new(), scheduled: 0 }
    }

    /// Lets an event happen at a time.
    pub fn push(&mut self, at: u64, event: E) {
        let place = self.free.pop().unwrap_or(self.places.len() as u32);
        match self.places.get_mut(place as usize) {
            Some(free) => *free = Some(event),
            None => self.places.push(Some(event)),
        }
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, place)));
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|next| next.0.0)
    }

    /// Takes the next event if its time is `until` or earlier.
    pub fn pop(&mut self, until: u64) -> Option<(u64, E)> {
        let Reverse((at, _, place)) = *self.heap.peek().filter(|next| next.0.0 <= until)?;
        self.heap.pop();
        self.free.push(place);
        let event = self.places.get_mut(place as usize)?.take();
        debug_assert!(event.is_some(), "an entry names the place of an event");
        Some((at, event?))
    }

    /// All events to come, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_scheduling() {
        let mut queue = NetworkEvents::new();
        for (at, event) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            queue.push(at, event);
        }
        assert_eq!((queue.next_at(), queue.pop(2)), (Some(3), None));
        assert_eq!(queue.pop(4), Some((3, 'b')));
        queue.push(3, 'e');
        queue.push(5, 'f');
        assert_eq!(queue.iter().count(), 5);
        let rest: Vec<char> = std::iter::from_fn(|| queue.pop(9)).map(|(_, event)| event).collect();
        assert_eq!(rest, ['d', 'e', 'a', 'c', 'f']);
        assert_eq!((queue.next_at(), queue.places.len()), (None, 5), "places are used again");
    }
}
