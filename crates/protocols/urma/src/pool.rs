//! Records behind references with a generation: a reference to a record that was freed finds nothing, even if its place is used
//! again. A pool grows by doubling up to its limit, and gives its memory back when it is empty and large.
//!
//! A record may be in one list ([`PoolList`]), so that those of one channel are found without a look at all others. The links are
//! beside the records: adding and removing take the same time however many there are.

use std::collections::VecDeque;

/// Reference to a record of a [`UrmaPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolRef {
    index: u32,
    generation: u32,
}

impl PoolRef {
    /// No record has it.
    pub(crate) const NONE: PoolRef = PoolRef { index: u32::MAX, generation: 0 };
    pub(crate) const fn index(self) -> u32 {
        self.index
    }
    /// A short number of the record, for a pool of at most `limit`, 1 to 2^16: its place and, in the bits that are left, the
    /// generation. So the number of a freed record comes again as late as it may.
    pub(crate) const fn short(self, limit: usize) -> u16 {
        debug_assert!(limit > 0 && limit <= 1 << 16, "places do not fit into a short number");
        (self.generation << place_bits(limit) | self.index) as u16
    }
    pub(crate) fn is_none(self) -> bool {
        self == PoolRef::NONE
    }
}

/// Bits of a place in a pool of at most `limit` records.
const fn place_bits(limit: usize) -> u32 {
    usize::BITS - (limit - 1).leading_zeros()
}

#[derive(Debug)]
struct UrmaPlace<T> {
    generation: u32,
    /// Neighbours in the list that the record is in.
    prev: u32,
    next: u32,
    value: Option<T>,
}

/// No place.
const NO_PLACE: u32 = u32::MAX;

/// A list of records of one pool, in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolList {
    first: u32,
    last: u32,
}

impl PoolList {
    /// A list without records.
    pub(crate) const EMPTY: PoolList = PoolList { first: NO_PLACE, last: NO_PLACE };
    pub(crate) const fn is_empty(&self) -> bool {
        self.first == NO_PLACE
    }
}

/// Records of one type.
#[derive(Debug)]
pub(crate) struct UrmaPool<T> {
    places: Vec<UrmaPlace<T>>,
    /// Places without a record, in the order in which they were freed.
    free: VecDeque<u32>,
    /// So many places are kept out of use, so that the index of a freed one comes again late.
    rest: usize,
    limit: usize,
    used: usize,
    /// Generation of places made after the memory was given back: no old reference may find a new record.
    first_generation: u32,
    /// How often a place was freed since the memory was given back.
    freed: u32,
}

/// Empty pools with more places than this give their memory back.
const KEEP: usize = 64;

impl<T> UrmaPool<T> {
    /// An empty pool for at most `limit` records.
    pub(crate) fn new(limit: usize) -> Self {
        UrmaPool { places: Vec::new(), free: VecDeque::new(), rest: 0, limit, used: 0, first_generation: 0, freed: 0 }
    }
    /// A pool whose indices peers know. A peer that has not heard that a record is gone would reach the next one with its index:
    /// that one comes after `rest` others were freed, or when all other indices are in use.
    pub(crate) fn with_rest(limit: usize, rest: usize) -> Self {
        debug_assert!(rest < limit, "all places rest");
        UrmaPool { rest, ..UrmaPool::new(limit) }
    }
    /// A place to be used again: the one that was freed last, as it is in the cache, or the one that has rested longest.
    fn take_free(&mut self) -> Option<u32> {
        if self.rest == 0 {
            return self.free.pop_back();
        }
        if self.free.len() > self.rest || self.places.len() >= self.limit { self.free.pop_front() } else { None }
    }
    /// Records in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }
    /// Whether another record fits.
    pub(crate) fn has_room(&self) -> bool {
        self.used < self.limit
    }
    /// Stores a record; gives it back if the pool is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<PoolRef, T> {
        if !self.has_room() {
            return Err(value);
        }
        self.used += 1;
        let index = match self.take_free() {
            Some(index) => index,
            None => {
                self.places.push(UrmaPlace {
                    generation: self.first_generation,
                    prev: NO_PLACE,
                    next: NO_PLACE,
                    value: None,
                });
                (self.places.len() - 1) as u32
            }
        };
        let place = &mut self.places[index as usize];
        debug_assert!(place.value.is_none(), "a place is given twice");
        place.value = Some(value);
        debug_assert!(self.used <= self.limit, "more records than the pool may have");
        Ok(PoolRef { index, generation: place.generation })
    }
    pub(crate) fn get(&self, at: PoolRef) -> Option<&T> {
        let place = self.places.get(at.index as usize)?;
        if place.generation == at.generation { place.value.as_ref() } else { None }
    }
    pub(crate) fn get_mut(&mut self, at: PoolRef) -> Option<&mut T> {
        let place = self.places.get_mut(at.index as usize)?;
        if place.generation == at.generation { place.value.as_mut() } else { None }
    }
    pub(crate) fn remove(&mut self, at: PoolRef) -> Option<T> {
        let value = self.places.get_mut(at.index as usize).filter(|place| place.generation == at.generation);
        let value = value?.value.take()?;
        self.free_place(at);
        Some(value)
    }
    /// Removes a record that is there, without a copy of it.
    pub(crate) fn discard(&mut self, at: PoolRef) {
        let Some(place) = self.places.get_mut(at.index as usize).filter(|p| p.generation == at.generation) else {
            return;
        };
        if place.value.is_some() {
            place.value = None;
            self.free_place(at);
        }
    }
    /// The record of a place was taken.
    fn free_place(&mut self, at: PoolRef) {
        let Some(place) = self.places.get_mut(at.index as usize) else { return };
        debug_assert!(place.value.is_none() && self.used > 0, "a place is freed that has a record");
        place.generation = place.generation.wrapping_add(1);
        self.freed = self.freed.wrapping_add(1);
        self.used -= 1;
        self.free.push_back(at.index);
        if self.used == 0 && self.places.len() > KEEP && self.rest == 0 {
            // No place has had a greater generation, as none was freed more often than all together.
            self.first_generation = self.first_generation.wrapping_add(self.freed).wrapping_add(1);
            self.freed = 0;
            (self.places, self.free) = (Vec::new(), VecDeque::new());
        }
    }
    /// Adds a record that is in no list to the end of one.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut PoolList, at: PoolRef) {
        let last = list.last;
        debug_assert!((last == NO_PLACE) == list.is_empty(), "a list has one end");
        let place = &mut self.places[at.index as usize];
        debug_assert!(place.value.is_some() && place.generation == at.generation, "a vacant place is listed");
        (place.prev, place.next) = (last, NO_PLACE);
        match self.places.get_mut(last as usize) {
            Some(last) => last.next = at.index,
            None => list.first = at.index,
        }
        list.last = at.index;
    }
    /// Takes a record out of the list in which it is.
    #[inline]
    pub(crate) fn take_out(&mut self, list: &mut PoolList, at: PoolRef) {
        let &UrmaPlace { prev, next, .. } = &self.places[at.index as usize];
        debug_assert!(prev != NO_PLACE || list.first == at.index, "a record is taken out of another list");
        debug_assert!(next != NO_PLACE || list.last == at.index, "a record is taken out of another list");
        match self.places.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => list.first = next,
        }
        match self.places.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => list.last = prev,
        }
    }
    /// The records of a list, in its order.
    pub(crate) fn listed(&self, list: PoolList) -> impl Iterator<Item = PoolRef> + '_ {
        let next = |at: &PoolRef| self.ref_of(self.places[at.index as usize].next);
        std::iter::successors(self.ref_of(list.first), next)
    }
    /// The record at a place, whatever its generation.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.places.get(index as usize)?.value.as_ref()
    }
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.value.as_mut()
    }
    /// The present reference of a place in use.
    pub(crate) fn ref_of(&self, index: u32) -> Option<PoolRef> {
        let place = self.places.get(index as usize)?;
        place.value.as_ref().map(|_| PoolRef { index, generation: place.generation })
    }
    /// The record with a short number ([`PoolRef::short`]).
    pub(crate) fn ref_of_short(&self, short: u16) -> Option<PoolRef> {
        let place = u32::from(short) & ((1 << place_bits(self.limit)) - 1);
        self.ref_of(place).filter(|at| at.short(self.limit) == short)
    }
    /// Most records.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
    /// All records with their references.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolRef, &T)> {
        self.places.iter().enumerate().filter_map(|(i, place)| {
            place.value.as_ref().map(|v| (PoolRef { index: i as u32, generation: place.generation }, v))
        })
    }
    /// Bytes on the heap, records' own heap not counted.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<UrmaPlace<T>>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_to_a_freed_record_finds_nothing() {
        let mut pool = UrmaPool::new(2);
        let a = pool.insert(1).expect("room");
        let b = pool.insert(2).expect("room");
        assert_eq!((pool.insert(3), pool.get(b)), (Err(3), Some(&2)));
        assert_eq!(pool.remove(a), Some(1));
        let c = pool.insert(4).expect("room");
        assert_eq!(pool.remove(a), None);
        assert_eq!((pool.get(a), pool.get(c)), (None, Some(&4)));
        assert_eq!(c.index(), a.index());
    }

    #[test]
    fn a_list_keeps_its_order_whichever_record_leaves() {
        let mut pool = UrmaPool::new(8);
        let refs: Vec<PoolRef> = (0..4).map(|i| pool.insert(i).expect("room")).collect();
        for leaves in 0..4 {
            let mut list = PoolList::EMPTY;
            assert!(list.is_empty() && pool.listed(list).next().is_none());
            refs.iter().for_each(|at| pool.push_back(&mut list, *at));
            pool.take_out(&mut list, refs[leaves]);
            let left: Vec<PoolRef> = refs.iter().copied().filter(|at| *at != refs[leaves]).collect();
            assert_eq!(pool.listed(list).collect::<Vec<_>>(), left);
            pool.push_back(&mut list, refs[leaves]);
            assert_eq!(pool.listed(list).last(), Some(refs[leaves]));
            left.iter().for_each(|at| pool.take_out(&mut list, *at));
            pool.take_out(&mut list, refs[leaves]);
            assert!(list.is_empty());
        }
    }

    #[test]
    fn a_short_number_comes_again_after_all_generations_that_fit() {
        for (limit, lives) in [(1, 1 << 16), (3, 1 << 14), (4096, 16), (1 << 16, 1)] {
            let mut pool = UrmaPool::new(limit);
            let first = pool.insert(0).expect("room");
            let short = first.short(limit);
            pool.remove(first);
            let mut count = 0;
            loop {
                count += 1;
                let at = pool.insert(count).expect("room");
                assert_eq!(pool.ref_of_short(at.short(limit)), Some(at));
                if pool.ref_of_short(short).is_some() {
                    break;
                }
                pool.remove(at);
            }
            assert_eq!(count, lives, "limit {limit}");
        }
    }

    #[test]
    fn an_index_that_peers_know_rests_before_it_comes_again() {
        let mut pool = UrmaPool::with_rest(6, 2);
        let mut churn = || {
            let at = pool.insert(0).expect("room");
            pool.remove(at);
            at.index()
        };
        assert_eq!((0..7).map(|_| churn()).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
        let all: Vec<u32> = (0..6).map(|_| pool.insert(0).expect("room").index()).collect();
        assert_eq!((all, pool.insert(0)), (vec![1, 3, 4, 5, 2, 0], Err(0)), "rather an index than none");
    }

    #[test]
    fn an_old_reference_finds_nothing_after_the_memory_was_given_back() {
        let mut pool = UrmaPool::new(1000);
        let refs: Vec<PoolRef> = (0..500).map(|i| pool.insert(i).expect("room")).collect();
        assert!(pool.heap_bytes() > 0);
        for r in &refs {
            pool.remove(*r);
        }
        assert_eq!(pool.heap_bytes(), 0);
        for i in 0..500 {
            pool.insert(i).expect("room");
        }
        assert!(refs.iter().all(|r| pool.get(*r).is_none()));
    }
}
