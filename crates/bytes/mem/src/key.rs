//! Keys of memory regions: unpredictable, carrying a generation (daemon side).
//!
//! High 24 bits: a permutation, keyed per daemon, of (generation, index). Low 8 bits: random. The permutation is a
//! Feistel network of four rounds over two 12-bit halves with a multiplicative round function: not cryptography
//! (24 bits can be tried out anyway), but keys that are allocated one after the other look unrelated. A region is protected
//! by the comparison of all 32 bits, the protection domain and the access rights; the key makes guessing expensive and
//! a stale key harmless.

/// Bits of the index in a key.
const INDEX_BITS: u32 = 17;
/// Most regions and windows of one daemon at a time.
pub const INDEX_MAX: usize = 1 << INDEX_BITS;
const GENERATION_MASK: u32 = (1 << (24 - INDEX_BITS)) - 1;
const HALF: u32 = 12;
const HALF_MASK: u32 = (1 << HALF) - 1;
const ROUNDS: usize = 4;
// Index and generation fill the 24 bits that are permuted as two halves.
const _: () = assert!(2 * HALF == 24 && INDEX_MAX * (GENERATION_MASK as usize + 1) == 1 << 24);

/// The keyed permutation. All replicas of a table need the same one.
#[derive(Clone, Copy, Debug)]
pub struct KeyCipher {
    /// Per round: an odd multiplier and an addend.
    rounds: [(u32, u32); ROUNDS],
}

impl KeyCipher {
    fn new(random: &mut impl FnMut() -> u64) -> KeyCipher {
        let mut round = || {
            let r = random();
            ((r >> 32) as u32 | 1, r as u32)
        };
        KeyCipher { rounds: [round(), round(), round(), round()] }
    }
    #[inline]
    fn mix(half: u32, (multiplier, addend): (u32, u32)) -> u32 {
        (half.wrapping_mul(multiplier).wrapping_add(addend)).wrapping_mul(multiplier) >> (32 - HALF)
    }
    fn permute(&self, x: u32) -> u32 {
        debug_assert!(x < 1 << 24);
        let (mut left, mut right) = (x >> HALF, x & HALF_MASK);
        for round in self.rounds {
            (left, right) = (right, left ^ Self::mix(right, round));
        }
        left << HALF | right
    }
    #[inline]
    fn unpermute(&self, x: u32) -> u32 {
        let (mut left, mut right) = (x >> HALF, x & HALF_MASK);
        for round in self.rounds.iter().rev() {
            (left, right) = (right ^ Self::mix(left, *round), left);
        }
        left << HALF | right
    }
    /// Table index of a key; below [`INDEX_MAX`] for every key.
    #[inline]
    pub(crate) fn index(&self, key: u32) -> usize {
        (self.unpermute(key >> 8) & (INDEX_MAX as u32 - 1)) as usize
    }
}

/// Allocator of keys (control thread).
pub struct KeySpace {
    cipher: KeyCipher,
    random: Box<dyn FnMut() -> u64 + Send>,
    /// Generation of each index ever used.
    generations: Vec<u8>,
    /// By index: whether it is in use. No index from its length on is in use or in `free`.
    live: Vec<bool>,
    /// Free indices, oldest first, so that a generation lasts long.
    free: std::collections::VecDeque<u32>,
}

impl core::fmt::Debug for KeySpace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KeySpace").field("used", &self.live.len()).field("free", &self.free.len()).finish()
    }
}

impl KeySpace {
    /// A key space whose secrets come from `random` (the system's generator in the daemon, a seeded one in tests).
    pub fn new(mut random: Box<dyn FnMut() -> u64 + Send>) -> KeySpace {
        let cipher = KeyCipher::new(&mut random);
        KeySpace { cipher, random, generations: Vec::new(), live: Vec::new(), free: Default::default() }
    }
    /// As [`KeySpace::new`], from the system's random generator.
    pub fn from_system() -> KeySpace {
        KeySpace::new(Box::new(system_random))
    }
    /// The permutation, which the tables of the workers need.
    pub fn cipher(&self) -> KeyCipher {
        self.cipher
    }
    /// One more than the highest index of a key that exists.
    pub fn index_end(&self) -> usize {
        self.live.len()
    }
    /// A fresh key. None when [`INDEX_MAX`] regions exist. Never 0.
    pub fn alloc(&mut self) -> Option<u32> {
        if burst_base::fault::fails() {
            return None;
        }
        let index = self.fresh_or_oldest()?;
        assert!(!self.live[index as usize], "an index is allocated once at a time");
        self.live[index as usize] = true;
        let generation = u32::from(self.generations[index as usize]);
        debug_assert!(generation <= GENERATION_MASK && (index as usize) < INDEX_MAX);
        let plain = generation << INDEX_BITS | index;
        // The low byte is 1..=255 so that no key is 0, which some programs take for "none".
        let low = 1 + ((self.random)() % 255) as u32;
        Some(self.cipher.permute(plain) << 8 | low)
    }
    /// An index above all others, or the index that has been free for the longest time.
    fn fresh_or_oldest(&mut self) -> Option<u32> {
        // A freed key stays invalid for REUSE_AFTER frees times the number of generations.
        if self.live.len() < INDEX_MAX && self.free.len() < REUSE_AFTER {
            let index = self.live.len();
            // An index that was used before a shrink goes on with its generation.
            if index == self.generations.len() {
                self.generations.push((self.random)() as u8 & GENERATION_MASK as u8);
            }
            self.live.push(false);
            return Some(index as u32);
        }
        self.free.pop_front()
    }
    /// Returns the memory of free indices above the largest one in use to the heap, except of the first `REUSE_AFTER` of them.
    /// The generations stay, one byte each: a freed key must stay invalid.
    pub fn shrink(&mut self) {
        let used = self.live.iter().rposition(|is_live| *is_live).map_or(0, |last| last + 1);
        let end = self.live.len().min(used + REUSE_AFTER);
        self.live.truncate(end);
        self.live.shrink_to_fit();
        self.free.retain(|index| (*index as usize) < end);
        self.free.shrink_to_fit();
        debug_assert!(self.live.iter().filter(|is_live| !**is_live).count() == self.free.len());
    }
    /// Frees a key after all replicas have removed it. False: it was not in use.
    pub fn release(&mut self, key: u32) -> bool {
        let (index, generation) = (self.cipher.index(key), self.cipher.unpermute(key >> 8) >> INDEX_BITS);
        let known = self.live.get(index).copied() == Some(true) && u32::from(self.generations[index]) == generation;
        if known {
            self.live[index] = false;
            self.generations[index] = ((generation + 1) & GENERATION_MASK) as u8;
            self.free.push_back(index as u32);
            debug_assert!(self.free.len() <= self.live.len(), "an index is free once");
        }
        known
    }
}

/// Freed indices that wait before the first is used again. Bounds the tables' size for programs that register
/// and deregister for ever.
const REUSE_AFTER: usize = 64;

fn system_random() -> u64 {
    let mut bytes = [0; 8];
    let mut have = 0;
    while have < bytes.len() {
        // Blocks only before the system's generator is seeded, at boot; interrupted calls are repeated.
        match rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => have += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("the system gives no random numbers: {e}"),
        }
    }
    u64::from_ne_bytes(bytes)
}
