//! Connections by communication id, by the peer's id and by the peer's queue pair.
//!
//! A communication id is the worker in bits 0..4, the slot in bits 4..21 and a random salt in bits 21..32, the whole permuted by
//! a secret (`IdCipher`): ids cannot be guessed, not even by a peer that knows some of them, and any worker can tell the owner
//! of a message. Slots come in chunks that are allocated when they are needed and freed when they are empty, so ten thousand
//! connections leave no memory in use.

use crate::fold::Fold;
use crate::queue::WORKER_QUEUE_MAX;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_base::slab::Slab;
use burst_base::wheel::Wheel;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Slots of one chunk.
const CHUNK: u32 = 1024;
/// Most connections of one worker.
pub const CONNECTIONS_MAX: u32 = 1 << 17;
/// Connections of one worker that are charged to users: queued requests have places of their own.
pub const CONNECTIONS_CHARGED: u32 = CONNECTIONS_MAX - WORKER_QUEUE_MAX as u32;
const CHUNKS_MAX: u32 = CONNECTIONS_MAX / CHUNK;

/// A permutation of 32-bit numbers with a secret key: a Feistel network of four rounds over two halves of 16 bits. Its round
/// function is a multiplication of 64 by 64 bits whose halves are folded together.
#[derive(Clone, Copy, Debug)]
struct IdCipher {
    rounds: [u64; 4],
}

impl IdCipher {
    fn mix(half: u32, key: u64) -> u32 {
        let product = u128::from((u64::from(half) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key) * u128::from(key | 1);
        ((product >> 64) as u64 ^ product as u64) as u32 >> 16
    }
    fn permute(&self, x: u32) -> u32 {
        let (mut left, mut right) = (x >> 16, x & 0xffff);
        for key in self.rounds {
            (left, right) = (right, left ^ IdCipher::mix(right, key));
        }
        left << 16 | right
    }
    fn unpermute(&self, x: u32) -> u32 {
        let (mut left, mut right) = (x >> 16, x & 0xffff);
        for key in self.rounds.iter().rev() {
            (left, right) = (right ^ IdCipher::mix(left, *key), left);
        }
        left << 16 | right
    }
}

/// The secret from which ids, PSNs (SipHash in counter mode) and the hashing of keys are derived.
#[derive(Clone, Copy, Debug)]
pub struct Secret {
    key: [u64; 2],
    ids: IdCipher,
}

fn number_of(key: [u64; 2], what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(key[0]);
    hasher.write_u64(key[1]);
    what.hash(&mut hasher);
    hasher.finish()
}

impl Secret {
    /// A secret from random bits of the system. All workers of a daemon share one.
    pub fn new(key: [u64; 2]) -> Secret {
        Secret { key, ids: IdCipher { rounds: [0u32, 1, 2, 3].map(|round| number_of(key, ("id", round))) } }
    }
    /// A number that cannot be computed without the secret.
    pub fn number(&self, what: impl Hash) -> u64 {
        number_of(self.key, what)
    }
    /// The hash of keys. Its words are derived, so that observing a table reveals nothing of the secret.
    pub(crate) fn fold(&self) -> Fold {
        Fold::new(self.number(0u8), self.number(1u8))
    }
    /// The worker that made a communication id.
    pub fn worker_of(&self, id: u32) -> u32 {
        self.ids.unpermute(id) & 0xf
    }
    /// An id that messages to this worker may carry, from 28 bits of a hash. It is the id of no connection, except by a chance of
    /// one in millions.
    pub(crate) fn id_of(&self, worker: u32, hash: u32) -> u32 {
        self.ids.permute(hash << 4 | worker)
    }
    /// The worker that owns a request of a peer.
    pub fn worker_for(&self, peer: IpAddr, number: u32, workers: u32) -> u32 {
        if workers <= 1 { 0 } else { (self.number((peer, number)) % u64::from(workers)) as u32 }
    }
}

/// Key by which a peer's request or queue pair is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnKey {
    /// A request by the peer's communication id.
    #[allow(missing_docs)]
    Request { peer: IpAddr, ca_guid: u64, id: u32 },
    /// A datagram service request.
    #[allow(missing_docs)]
    Sidr { peer: IpAddr, id: u32 },
    /// A connected queue pair.
    #[allow(missing_docs)]
    QueuePair { peer: IpAddr, ca_guid: u64, qpn: u32 },
}

/// The connections of one worker.
#[derive(Debug)]
pub struct Table<C> {
    worker: u32,
    secret: Secret,
    drawn: u64,
    /// The unused half of the last word.
    spare: Option<u32>,
    chance: Rng,
    chunks: Vec<Option<Slab<(u32, C)>>>,
    keys: HashMap<ConnKey, u32, Fold>,
    /// One timer per slot.
    pub wheel: Wheel,
    len: u32,
}

impl<C> Table<C> {
    /// An empty table of `worker`.
    pub fn new(worker: u32, secret: Secret) -> Table<C> {
        assert!(worker < 16);
        Table {
            worker,
            secret,
            drawn: 0,
            spare: None,
            chance: Rng::new(secret.number((2u8, worker))),
            chunks: Vec::new(),
            keys: HashMap::with_hasher(secret.fold()),
            wheel: Wheel::new(CHUNK),
            len: 0,
        }
    }

    /// The next unpredictable number: half of a hashed word, because each connection needs five.
    pub fn draw(&mut self) -> u32 {
        if let Some(half) = self.spare.take() {
            return half;
        }
        self.drawn += 1;
        let word = self.secret.number(u64::from(self.worker) << 60 | self.drawn);
        self.spare = Some((word >> 32) as u32);
        word as u32
    }

    /// A random number that need not be secret.
    pub fn chance(&mut self) -> u64 {
        self.chance.next_u64()
    }

    /// The worker that owns the table.
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// The secret.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Number of connections.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a connection. Returns its id, or `None` when the table is full.
    pub fn insert(&mut self, connection: C) -> Option<u32> {
        let chunk = self.chunk_with_room()?;
        let salt = self.draw() << 21;
        let (worker, cipher) = (self.worker, self.secret.ids);
        let slab = self.chunks[chunk as usize].as_mut()?;
        let mut id = 0;
        let made = slab.insert_with(|handle| {
            let plain = salt | (chunk * CHUNK + handle.index()) << 4 | worker;
            // 0 means "no id" on the wire; another salt is as good.
            id = match cipher.permute(plain) {
                0 => cipher.permute(plain ^ 1 << 31),
                id => id,
            };
            (id, connection)
        });
        made.ok().map(|handle| {
            self.len += 1;
            debug_assert!(id != 0 && self.slot_of(id) == Some(chunk * CHUNK + handle.index()), "the id names its slot");
            debug_assert_eq!(self.len, self.chunks.iter().flatten().map(Slab::len).sum());
            id
        })
    }

    fn chunk_with_room(&mut self) -> Option<u32> {
        let has_room = |c: &Option<Slab<(u32, C)>>| c.as_ref().is_some_and(|s| s.len() < CHUNK);
        if let Some(found) = self.chunks.iter().position(has_room) {
            return Some(found as u32);
        }
        let free = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        if free as u32 >= CHUNKS_MAX {
            return None;
        }
        if free == self.chunks.len() {
            self.chunks.push(None);
            self.wheel.grow((free as u32 + 1) * CHUNK);
        }
        self.chunks[free] = Some(Slab::new(CHUNK));
        Some(free as u32)
    }

    /// The slot that an id names, if this worker's table could have issued the id; the slot may hold another connection.
    fn slot_of(&self, id: u32) -> Option<u32> {
        let plain = self.secret.ids.unpermute(id);
        (plain & 0xf == self.worker).then_some(plain >> 4 & (CONNECTIONS_MAX - 1))
    }

    /// Finds a connection.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut C> {
        let slot = self.slot_of(id)?;
        self.at_mut(slot).filter(|(found, _)| *found == id).map(|(_, c)| c)
    }

    /// The connection in a slot, with its id.
    pub fn at_mut(&mut self, slot: u32) -> Option<(u32, &mut C)> {
        let chunk = self.chunks.get_mut((slot / CHUNK) as usize)?.as_mut()?;
        chunk.at_index_mut(slot % CHUNK).map(|(id, c)| (*id, c))
    }

    /// Sets or clears (`Nanos::NEVER`) the timer of a connection.
    pub fn arm(&mut self, id: u32, deadline: Nanos) {
        if let Some(slot) = self.slot_of(id)
            && slot < self.wheel.capacity()
        {
            debug_assert!(self.get_mut(id).is_some(), "the timer of a slot belongs to its present connection");
            self.wheel.insert(slot, deadline);
        }
    }

    /// Finds the connection of a key.
    pub fn find(&mut self, key: &ConnKey) -> Option<u32> {
        let slot = *self.keys.get(key)?;
        self.at_mut(slot).map(|(id, _)| id)
    }

    /// Adds a key of a connection; false when the key is in use.
    pub fn know(&mut self, key: ConnKey, id: u32) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        debug_assert!(self.get_mut(id).is_some(), "only a connection in the table has keys");
        match self.keys.entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(slot);
                true
            }
        }
    }

    /// Removes a key.
    pub fn forget_key(&mut self, key: &ConnKey) {
        self.keys.remove(key);
    }

    /// Removes a connection and its keys.
    pub fn remove(&mut self, id: u32, keys: [Option<ConnKey>; 2]) -> Option<C> {
        let slot = self.slot_of(id)?;
        self.get_mut(id)?;
        self.wheel.cancel(slot);
        for key in keys.into_iter().flatten() {
            if self.keys.get(&key) == Some(&slot) {
                self.keys.remove(&key);
            }
        }
        let chunk = (slot / CHUNK) as usize;
        let slab = self.chunks[chunk].as_mut()?;
        let (handle, _) = slab.at_index(slot % CHUNK)?;
        let (_, connection) = slab.remove(handle)?;
        debug_assert!(self.len > 0 && self.wheel.deadline_of(slot).is_none());
        self.len -= 1;
        if slab.is_empty() && self.chunks.iter().flatten().filter(|s| s.is_empty()).count() > 1 {
            self.chunks[chunk] = None;
        }
        if self.len == 0 {
            self.release();
        }
        Some(connection)
    }

    /// Frees memory, except one chunk, when the table is empty.
    fn release(&mut self) {
        debug_assert!(self.keys.is_empty() && self.wheel.is_empty(), "keys and timers belong to connections");
        self.chunks.iter_mut().skip(1).for_each(|c| *c = None);
        if self.keys.capacity() > 4 * CHUNK as usize {
            self.keys = HashMap::with_hasher(self.secret.fold());
        }
    }

    /// Frees all unused memory. See [`crate::Cm::shrink`].
    pub fn shrink(&mut self) {
        self.chunks.iter_mut().for_each(|c| drop(c.take_if(|slab| slab.is_empty())));
        let used = self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.chunks.truncate(used);
        self.wheel.shrink(used.max(1) as u32 * CHUNK);
        debug_assert!(self.wheel.capacity() as usize >= used * CHUNK as usize, "each slot has a timer");
        self.keys.shrink_to_fit();
    }

    /// The first occupied slot from `slot` on.
    pub fn next_slot(&self, slot: u32) -> Option<u32> {
        let end = self.chunks.len() as u32 * CHUNK;
        let mut slot = slot;
        while slot < end {
            match &self.chunks[(slot / CHUNK) as usize] {
                None => slot = (slot / CHUNK + 1) * CHUNK,
                Some(chunk) if chunk.at_index(slot % CHUNK).is_some() => return Some(slot),
                Some(_) => slot += 1,
            }
        }
        None
    }

    /// All ids.
    pub fn ids(&self) -> Vec<u32> {
        self.chunks.iter().flatten().flat_map(|slab| slab.iter().map(|(_, (id, _))| *id)).collect()
    }
}
