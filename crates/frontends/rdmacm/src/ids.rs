//! The table of ids by number: events contain the daemon's number of an id.
//!
//! The table has `SHARDS` parts, chosen by the number, each with a lock, so that threads which work on different ids do not wait
//! for each other. A lock is held while an id is looked up and an event is counted at it. The table is generic over the object,
//! so that this file does not depend on the file of the id.

use crate::boundary::lock;
use burst_control::cm::{CmId, DAEMON_IDS};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Parts of the table, a power of two.
const SHARDS: usize = 64;

/// Capacity up to which an empty part keeps its memory.
const KEPT: usize = 32;

/// Hash of an id's number. This library and the daemon assign numbers in order, so a multiplication spreads them well enough.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }
    fn write_u32(&mut self, n: u32) {
        // 2^64 divided by the golden ratio, odd.
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// A pointer from the table may be used only while the lock is held.
struct Shard<T> {
    map: HashMap<CmId, NonNull<T>, BuildHasherDefault<Spread>>,
}

// SAFETY: the pointers are used under the lock, and an id leaves the map before it is freed.
unsafe impl<T> Send for Shard<T> {}

/// Objects of type `T` by number.
pub struct IdTable<T> {
    last: AtomicU32,
    shards: [Mutex<Shard<T>>; SHARDS],
}

impl<T> Default for IdTable<T> {
    fn default() -> IdTable<T> {
        IdTable { last: AtomicU32::new(0), shards: [const { Mutex::new(Shard::EMPTY) }; SHARDS] }
    }
}

impl<T> Shard<T> {
    const EMPTY: Shard<T> = Shard { map: HashMap::with_hasher(BuildHasherDefault::new()) };
}

impl<T> IdTable<T> {
    fn shard(&self, number: CmId) -> &Mutex<Shard<T>> {
        &self.shards[number as usize % SHARDS]
    }

    /// A number for a new id.
    pub fn number(&self) -> CmId {
        loop {
            // Relaxed: the counter orders nothing.
            let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1) % DAEMON_IDS;
            if number != 0 && !lock(self.shard(number)).map.contains_key(&number) {
                return number;
            }
        }
    }

    /// Enters an id under its number.
    pub fn put(&self, number: CmId, id: NonNull<T>) {
        lock(self.shard(number)).map.insert(number, id);
    }

    /// Removes an id.
    pub fn remove(&self, number: CmId) {
        let mut shard = lock(self.shard(number));
        shard.map.remove(&number);
        if shard.map.is_empty() && shard.map.capacity() > KEPT {
            // An empty part frees its memory if it had many ids.
            shard.map = HashMap::default();
        }
    }

    /// The number of some id that `accepts` accepts.
    pub fn find(&self, accepts: impl Fn(&T) -> bool) -> Option<CmId> {
        self.shards.iter().find_map(|shard| {
            let shard = lock(shard);
            // SAFETY: an id leaves the map under this lock before it is freed.
            shard.map.iter().find(|(_, id)| accepts(unsafe { id.as_ref() })).map(|(number, _)| *number)
        })
    }

    /// Calls `inside` with an id; the lock keeps the id from being destroyed meanwhile.
    pub fn with<R>(&self, number: CmId, inside: impl FnOnce(&T) -> R) -> Option<R> {
        let shard = lock(self.shard(number));
        // SAFETY: an id leaves the map under this lock before it is freed.
        shard.map.get(&number).map(|id| inside(unsafe { id.as_ref() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    #[test]
    fn numbers_are_given_once_while_they_are_taken() {
        let table = IdTable::<u8>::default();
        let taken = NonNull::dangling();
        assert_eq!(table.number(), 1);
        // The next number is still in use: numbers have wrapped around.
        table.put(2, taken);
        assert_eq!(table.number(), 3);
        table.last.store(DAEMON_IDS - 1, Ordering::Relaxed);
        assert_eq!(table.number(), 1, "0 is no number");
        assert_eq!(table.number(), 4 - 1, "2 is still taken");
    }

    #[test]
    fn what_is_removed_is_not_found() {
        let table = IdTable::<u8>::default();
        let (first, second) = (7, 7 + SHARDS as u32);
        let knows = |number| lock(table.shard(number)).map.contains_key(&number);
        table.put(first, NonNull::dangling());
        table.put(second, NonNull::dangling());
        assert!(knows(first) && knows(second));
        table.remove(first);
        assert!(table.with(first, |_| ()).is_none() && knows(second));
    }

    #[test]
    fn numbers_of_one_shard_spread() {
        let top = |n: u32| {
            let mut hasher = Spread::default();
            n.hash(&mut hasher);
            hasher.finish() >> 57
        };
        let different: std::collections::HashSet<u64> = (0..1000).map(|n| top(n * SHARDS as u32)).collect();
        assert!(different.len() > 100, "{} of 128", different.len());
    }
}
