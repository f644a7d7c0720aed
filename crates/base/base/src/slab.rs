//! A slab of fixed capacity whose handles detect reuse.
//!
//! `new` allocates all memory; after that `insert`, `remove` and `get` allocate nothing and cost O(1). A
//! [`Handle`] is an index and a generation. A reused slot has another generation, so a stale handle finds nothing instead of
//! another object. Free slots are reused in the order in which they were freed
//! (first in, first out), so that generations wrap as late as possible.

/// Index of an object in a [`Slab`], and the generation of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Index in the slab, below its capacity. It does not change during the object's life.
    pub const fn index(self) -> u32 {
        self.index
    }
    /// Number of objects that the slot held before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
    /// Both in one word, to pass through memory or a map.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }
    /// The handle of which [`Handle::to_bits`] returned `bits`. Any word is safe: a wrong word finds nothing.
    pub const fn from_bits(bits: u64) -> Self {
        Handle { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
enum SlotState<T> {
    Used(T),
    /// Next free slot, or `NONE`.
    Free(u32),
}

#[derive(Debug)]
struct SlabSlot<T> {
    generation: u32,
    state: SlotState<T>,
}

const NONE: u32 = u32::MAX;

/// Objects at stable indices, with a fixed capacity.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Box<[SlabSlot<T>]>,
    free_first: u32,
    free_last: u32,
    len: u32,
}

impl<T> Slab<T> {
    /// An empty slab for `capacity` objects (below 2^32 - 1; panics otherwise).
    pub fn new(capacity: u32) -> Self {
        assert!(capacity < NONE);
        let next = |i: u32| if i + 1 == capacity { NONE } else { i + 1 };
        let slots = (0..capacity).map(|i| SlabSlot { generation: 0, state: SlotState::Free(next(i)) }).collect();
        let (free_first, free_last) = if capacity == 0 { (NONE, NONE) } else { (0, capacity - 1) };
        Slab { slots, free_first, free_last, len: 0 }
    }
    /// Stores `value` in a free slot; returns it as an error if there is none.
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        self.insert_with(|_| value)
    }
    /// Like [`Slab::insert`], for objects that contain their own handle. If the slab is full, `make` is still
    /// called, with a handle that finds nothing, and its object is returned as an error.
    pub fn insert_with(&mut self, make: impl FnOnce(Handle) -> T) -> Result<Handle, T> {
        let index = self.free_first;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(make(Handle { index: NONE, generation: 0 }));
        };
        let handle = Handle { index, generation: slot.generation };
        debug_assert!(matches!(slot.state, SlotState::Free(_)), "the free list holds free slots only");
        if let SlotState::Free(next) = slot.state {
            self.free_first = next;
        }
        if self.free_first == NONE {
            self.free_last = NONE;
        }
        slot.state = SlotState::Used(make(handle));
        self.len += 1;
        self.check();
        Ok(handle)
    }
    /// Removes and returns an object. Its handle finds nothing from then on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        let slot = &mut self.slots[handle.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let old = core::mem::replace(&mut slot.state, SlotState::Free(NONE));
        match self.slots.get_mut(self.free_last as usize) {
            Some(last) => last.state = SlotState::Free(handle.index),
            None => self.free_first = handle.index,
        }
        self.free_last = handle.index;
        self.len -= 1;
        self.check();
        match old {
            SlotState::Used(value) => Some(value),
            SlotState::Free(_) => None,
        }
    }
    /// The free list is empty if the slab is full, and only then; its last slot has no successor.
    fn check(&self) {
        debug_assert!(self.len <= self.capacity());
        debug_assert_eq!(self.free_first == NONE, self.len == self.capacity());
        debug_assert_eq!(self.free_last == NONE, self.len == self.capacity());
        debug_assert!(self.slots.get(self.free_last as usize).is_none_or(|s| matches!(s.state, SlotState::Free(NONE))));
    }
    /// The object, if it has not been removed.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        match self.slots.get(handle.index as usize)? {
            SlabSlot { generation, state: SlotState::Used(value) } if *generation == handle.generation => Some(value),
            _ => None,
        }
    }
    /// The object, if it has not been removed.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        match self.slots.get_mut(handle.index as usize)? {
            SlabSlot { generation, state: SlotState::Used(value) } if *generation == handle.generation => Some(value),
            _ => None,
        }
    }
    /// The object at this index, with its handle.
    pub fn at_index(&self, index: u32) -> Option<(Handle, &T)> {
        let slot = self.slots.get(index as usize)?;
        match &slot.state {
            SlotState::Used(value) => Some((Handle { index, generation: slot.generation }, value)),
            SlotState::Free(_) => None,
        }
    }
    /// The object at this index.
    pub fn at_index_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slots.get_mut(index as usize)?.state {
            SlotState::Used(value) => Some(value),
            SlotState::Free(_) => None,
        }
    }
    /// All objects, by index. Cost: the capacity.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        (0..self.capacity()).filter_map(|i| self.at_index(i))
    }
    /// All objects, by index. Cost: the capacity.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        self.slots.iter_mut().zip(0u32..).filter_map(|(slot, index)| match &mut slot.state {
            SlotState::Used(value) => Some((Handle { index, generation: slot.generation }, value)),
            SlotState::Free(_) => None,
        })
    }
    /// Number of objects.
    pub const fn len(&self) -> u32 {
        self.len
    }
    /// Whether the slab is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Most objects it can hold.
    pub const fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn stale_handle_finds_nothing() {
        let mut slab = Slab::new(1);
        let a = slab.insert("a").unwrap();
        assert_eq!(slab.insert("b"), Err("b"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        let b = slab.insert("b").unwrap();
        assert_eq!((a.index(), slab.get(a), slab.get(b)), (b.index(), None, Some(&"b")));
        assert_eq!(Handle::from_bits(b.to_bits()), b);
        assert_eq!(slab.get(Handle::from_bits(u64::MAX)), None);
    }

    #[test]
    fn an_object_has_its_handle() {
        let mut slab = Slab::new(2);
        let h = slab.insert_with(|h| h).unwrap();
        assert_eq!(slab.get(h), Some(&h));
        assert_eq!(slab.at_index(h.index()), Some((h, &h)));
    }

    #[test]
    fn slots_are_reused_first_in_first_out() {
        let mut slab = Slab::new(3);
        let handles: Vec<_> = (0..3).map(|i| slab.insert(i).unwrap()).collect();
        slab.remove(handles[2]);
        slab.remove(handles[0]);
        assert_eq!(slab.insert(7).unwrap().index(), 2);
        assert_eq!(slab.insert(8).unwrap().index(), 0);
    }

    #[test]
    fn empty_slab_takes_nothing() {
        let mut slab = Slab::new(0);
        assert_eq!(slab.insert(1), Err(1));
        assert!(slab.is_empty() && slab.capacity() == 0);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(capacity in 0u32..9, ops in prop::collection::vec((any::<bool>(), 0usize..32), 0..200)) {
            let mut slab = Slab::new(capacity);
            let mut model: HashMap<Handle, u32> = HashMap::new();
            let mut ever: Vec<Handle> = Vec::new();
            for (n, (insert, pick)) in ops.into_iter().enumerate() {
                if insert {
                    match slab.insert(n as u32) {
                        Ok(h) => {
                            prop_assert!(model.insert(h, n as u32).is_none());
                            ever.push(h);
                        }
                        Err(_) => prop_assert_eq!(model.len(), capacity as usize),
                    }
                } else if let Some(h) = ever.get(pick) {
                    prop_assert_eq!(slab.remove(*h), model.remove(h));
                }
                prop_assert_eq!(slab.len() as usize, model.len());
                for h in &ever {
                    prop_assert_eq!(slab.get(*h), model.get(h));
                }
                prop_assert_eq!(slab.iter().count(), model.len());
            }
        }
    }
}
