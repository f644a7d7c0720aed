//! Tables from handles to objects. An object lies in its table together with what its user is charged for it.

use crate::id_allocator::IdAllocator;
use burst_ledger::Charge;
use std::collections::BTreeMap;

/// The objects of one kind in one context, by handle.
#[derive(Debug)]
pub struct HandleTable<T> {
    handles: IdAllocator,
    // Boxed: handles are given out in ascending order, which leaves the nodes of the tree half empty. With 10,000 queue pairs of
    // 240 bytes in the nodes themselves, each cost 453 bytes.
    objects: BTreeMap<u32, Box<(T, Charge)>>,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        HandleTable { handles: IdAllocator::new(u32::MAX), objects: BTreeMap::new() }
    }
}

impl<T> HandleTable<T> {
    /// Adds an object and its charge. Its handle is the smallest free number.
    pub fn insert(&mut self, object: T, charge: Charge) -> u32 {
        // The limit is never reached: the device or the host limits every kind of object.
        let handle = self.handles.take_free().unwrap_or(u32::MAX);
        let before = self.objects.insert(handle, Box::new((object, charge)));
        assert!(before.is_none(), "handle {handle} is in use");
        handle
    }
    /// Adds an object under a number that is allocated elsewhere. A table uses either `insert` or `put`.
    pub fn put(&mut self, handle: u32, object: T, charge: Charge) {
        let before = self.objects.insert(handle, Box::new((object, charge)));
        assert!(before.is_none(), "handle {handle} is in use");
        assert_eq!(self.handles.taken_end(), 0, "a table of handles of its own");
    }
    /// Removes an object and gives back its charge.
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let (object, _charge) = *self.objects.remove(&handle)?;
        if handle < self.handles.taken_end() {
            self.handles.put(handle);
        }
        Some(object)
    }
    /// An object.
    pub fn get(&self, handle: u32) -> Option<&T> {
        self.objects.get(&handle).map(|entry| &entry.0)
    }
    /// An object, to change.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.objects.get_mut(&handle).map(|entry| &mut entry.0)
    }
    /// The smallest handles, at most `most`, in ascending order.
    pub fn first(&self, most: usize) -> Vec<u32> {
        self.objects.keys().copied().take(most).collect()
    }
    /// All objects, in the order of their handles.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values().map(|entry| &entry.0)
    }
    /// All handles and their objects, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects.iter().map(|(handle, entry)| (*handle, &entry.0))
    }
    /// The handles from `from` on and their objects, in order.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        self.objects.range(from..).map(|(handle, entry)| (*handle, &entry.0))
    }
    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
}
