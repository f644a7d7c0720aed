//! A table from handles to objects.

use crate::id_allocator::IdAllocator;
use std::collections::BTreeMap;

/// Objects of one kind in one context.
#[derive(Debug)]
pub struct HandleTable<T> {
    numbers: IdAllocator,
    objects: BTreeMap<u32, T>,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        HandleTable { numbers: IdAllocator::new(u32::MAX), objects: BTreeMap::new() }
    }
}

impl<T> HandleTable<T> {
    /// Adds an object; its handle is the smallest free one.
    pub fn insert(&mut self, object: T) -> u32 {
        // The limit is never reached: every kind of object is limited by the host.
        let handle = self.numbers.take().unwrap_or(u32::MAX);
        self.objects.insert(handle, object);
        handle
    }
    /// Adds an object under a number that comes from elsewhere. A table uses either `insert` or `put`.
    pub fn put(&mut self, handle: u32, object: T) {
        self.objects.insert(handle, object);
    }
    /// Takes an object out.
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let object = self.objects.remove(&handle)?;
        if handle < self.numbers.taken_end() {
            self.numbers.put(handle);
        }
        Some(object)
    }
    /// An object.
    pub fn get(&self, handle: u32) -> Option<&T> {
        self.objects.get(&handle)
    }
    /// An object, to change.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.objects.get_mut(&handle)
    }
    /// All handles.
    pub fn handles(&self) -> Vec<u32> {
        self.objects.keys().copied().collect()
    }
    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.objects.len()
    }
}
