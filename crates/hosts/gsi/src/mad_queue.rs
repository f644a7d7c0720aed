//! Received MADs that wait for the state machine: each source has its share, and connections in progress come before new
//! requests.
//!
//! There is one first-in-first-out chain per source and class, and sources take turns. Messages with an id of a connection of
//! their sender, and requests from addresses that have proved themselves, are a class of their own: forged addresses are not in
//! it, and three of four turns belong to it. If the queue is full, a MAD of a source that has few waiting displaces the oldest of
//! a source that has many, and a message of a connection displaces any other. A flood therefore delays and drops its own
//! messages.
//!
//! The chains lie in one array of nodes, so a flood with a million source addresses allocates as little as one with a single
//! address.

use burst_cm::{Fold, Source};
use burst_ledger::OpenPool;
use std::collections::{HashMap, VecDeque};

/// Turns of new requests among all turns: one in this many, if messages of connections wait as well.
const NEW_TURN: u32 = 4;
/// Chains that are compared to find a long one.
const COMPARED: usize = 8;
const NONE: u32 = u32::MAX;

/// Possible senders of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MadClass {
    /// Anybody: nothing shows that the address is not forged.
    New = 0,
    /// The peer of a connection, or an address that has proved itself.
    Connection = 1,
}

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
    len: usize,
}

/// The chains of one class. A source is in `turns` once, as long as it is in `chains`; its chain may be empty.
#[derive(Debug, Default)]
struct Chains {
    by_source: HashMap<Source, Chain, Fold>,
    turns: VecDeque<Source>,
}

impl Chains {
    fn len_of(&self, source: &Source) -> usize {
        self.by_source.get(source).map_or(0, |chain| chain.len)
    }

    /// The source with most waiting, of a few that `chance` selects.
    fn longest(&self, chance: usize) -> Option<Source> {
        let few = (0..COMPARED.min(self.turns.len())).map(|k| self.turns[(chance + k) % self.turns.len()]);
        few.max_by_key(|source| self.len_of(source)).filter(|source| self.len_of(source) > 0)
    }
}

/// A bounded queue that is fair to sources.
#[derive(Debug)]
pub(crate) struct MadQueue<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    classes: [Chains; 2],
    len: usize,
    limit: usize,
    /// Turns given, and the place where a comparison begins.
    count: u32,
}

impl<T> MadQueue<T> {
    /// The queue of a row of the table of pools.
    pub fn new(pool: OpenPool) -> MadQueue<T> {
        MadQueue::of(pool.places())
    }

    fn of(limit: usize) -> MadQueue<T> {
        MadQueue { nodes: Vec::new(), free: NONE, classes: Default::default(), len: 0, limit, count: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item. Returns false if something was dropped for want of room: this item or another.
    pub fn push(&mut self, class: MadClass, source: Source, item: T) -> bool {
        let is_full = self.len == self.limit;
        if is_full && !self.make_room(class, source) {
            return false;
        }
        let node = match self.free {
            NONE => {
                self.nodes.push(Node { item: Some(item), next: NONE });
                self.nodes.len() as u32 - 1
            }
            free => {
                let reused = &mut self.nodes[free as usize];
                self.free = reused.next;
                *reused = Node { item: Some(item), next: NONE };
                free
            }
        };
        let Chains { by_source, turns } = &mut self.classes[class as usize];
        let chain = by_source.entry(source).or_insert_with(|| {
            turns.push_back(source);
            Chain { first: NONE, last: NONE, len: 0 }
        });
        match chain.last {
            NONE => chain.first = node,
            last => self.nodes[last as usize].next = node,
        }
        chain.last = node;
        chain.len += 1;
        self.len += 1;
        debug_assert!(self.len <= self.limit && self.nodes.len() <= self.limit);
        !is_full
    }

    /// Drops the oldest item of a source that has more waiting than `source`.
    fn make_room(&mut self, class: MadClass, source: Source) -> bool {
        self.count = self.count.wrapping_add(1);
        let chance = self.count as usize * COMPARED;
        let [new, connections] = self.classes.each_ref().map(|chains| chains.longest(chance));
        let own = self.classes[class as usize].len_of(&source);
        let (from, victim) = match (class, new, connections) {
            (MadClass::Connection, Some(victim), _) => (MadClass::New, victim),
            (MadClass::New, Some(victim), _) | (MadClass::Connection, None, Some(victim))
                if self.classes[class as usize].len_of(&victim) > own + 1 =>
            {
                (class, victim)
            }
            _ => return false,
        };
        self.take_first(from, victim).is_some()
    }

    fn take_first(&mut self, class: MadClass, source: Source) -> Option<T> {
        let chain = self.classes[class as usize].by_source.get_mut(&source)?;
        let node = self.nodes.get_mut(chain.first as usize)?;
        let first = std::mem::replace(&mut chain.first, node.next);
        chain.len -= 1;
        if chain.first == NONE {
            chain.last = NONE;
        }
        debug_assert_eq!(chain.len == 0, chain.first == NONE);
        node.next = std::mem::replace(&mut self.free, first);
        self.len -= 1;
        node.item.take()
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        self.count = self.count.wrapping_add(1);
        let order = match self.count % NEW_TURN {
            0 => [MadClass::New, MadClass::Connection],
            _ => [MadClass::Connection, MadClass::New],
        };
        order.into_iter().find_map(|class| self.pop_of(class))
    }

    fn pop_of(&mut self, class: MadClass) -> Option<T> {
        while let Some(source) = self.classes[class as usize].turns.front().copied() {
            let taken = self.take_first(class, source);
            let Chains { by_source, turns } = &mut self.classes[class as usize];
            if by_source.get(&source).is_some_and(|chain| chain.len > 0) {
                turns.rotate_left(1);
            } else {
                by_source.remove(&source);
                turns.pop_front();
            }
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Returns memory that is not in use.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = MadQueue::of(self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MadClass::{Connection, New};
    use super::*;

    fn source(n: u32) -> Source {
        Source::of(std::net::IpAddr::from(n.to_be_bytes()))
    }

    fn all(queue: &mut MadQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn a_full_queue_of_one_source_leaves_others_room() {
        let (pool, flood, other) = (OpenPool::ReceivedMad, source(1), source(2));
        let (most, mut queue) = (pool.places() as u32, MadQueue::new(pool));
        (0..2 * most).for_each(|n| assert_eq!(queue.push(New, flood, n), n < most));
        // The longest chain gives way to another source until both have half of the places.
        (0..most).for_each(|n| assert!(!queue.push(New, other, 2 * most + n), "something was dropped"));
        let has = |queue: &MadQueue<u32>, source| queue.classes[New as usize].len_of(source) as u32;
        assert_eq!((queue.len() as u32, has(&queue, &flood), has(&queue, &other)), (most, most / 2, most / 2));
        // A connection's messages need no room of either.
        assert!(!queue.push(Connection, source(3), 0) && queue.classes[1].len_of(&source(3)) == 1);
        assert!((0..8).filter_map(|_| queue.pop()).any(|n| n >= 2 * most), "others have turns");
    }

    #[test]
    fn each_source_keeps_its_order_and_sources_take_turns() {
        let mut queue = MadQueue::of(100);
        for n in 0..5 {
            assert!(queue.push(New, source(1), n));
        }
        assert!(queue.push(New, source(2), 20) && queue.push(New, source(2), 21) && queue.push(New, source(3), 30));
        assert_eq!((queue.len(), all(&mut queue)), (8, vec![0, 20, 30, 1, 21, 2, 3, 4]));
        assert!(queue.is_empty() && queue.classes.iter().all(|c| c.by_source.is_empty() && c.turns.is_empty()));
    }

    #[test]
    fn connections_come_first_and_do_not_stop_requests() {
        let mut queue = MadQueue::of(100);
        (0..3).for_each(|n| assert!(queue.push(New, source(1), n)));
        (10..19).for_each(|n| assert!(queue.push(Connection, source(1), n)));
        let order = all(&mut queue);
        assert_eq!(order.iter().filter(|n| **n >= 10).copied().collect::<Vec<_>>(), (10..19).collect::<Vec<_>>());
        let requests: Vec<usize> = (0..order.len()).filter(|at| order[*at] < 10).collect();
        assert_eq!(requests, [3, 7, 11], "one turn in four");
    }

    #[test]
    fn a_flood_loses_its_own_messages_and_displaces_no_others() {
        let mut queue = MadQueue::of(64);
        (0..1000).for_each(|n| assert_eq!(queue.push(New, source(1), n), n < 64));
        assert!(!queue.push(New, source(2), 2000), "something was dropped");
        assert!(!queue.push(Connection, source(3), 3000));
        assert!(!queue.push(New, source(1), 5000));
        let order = all(&mut queue);
        assert_eq!(order.len(), 64);
        assert!(order.contains(&2000) && order.contains(&3000) && !order.contains(&5000));
        assert!(!order.contains(&0) && !order.contains(&1), "the oldest of the flood made room");
    }

    #[test]
    fn a_flood_with_forged_addresses_does_not_displace_connections() {
        let mut queue = MadQueue::of(64);
        (0..40).for_each(|n| assert!(queue.push(Connection, source(1), 100 + n)));
        (0..10_000).for_each(|n| assert_eq!(queue.push(New, source(1000 + n), n), n < 24));
        (40..64).for_each(|n| assert!(!queue.push(Connection, source(1), 100 + n)));
        assert!(!queue.push(Connection, source(1), 999), "only connections are left");
        assert_eq!(all(&mut queue), (100..164).collect::<Vec<_>>());
        // Empty chains that lost their only item are forgotten.
        assert!(queue.classes.iter().all(|c| c.by_source.is_empty() && c.turns.is_empty()));
        assert_eq!(queue.nodes.len(), 64, "nodes are used again");
        queue.shrink();
        assert_eq!(queue.nodes.capacity(), 0);
    }
}
