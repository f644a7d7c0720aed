//! A keyed hash for keys of a few words that peers choose: each word is added to the state and multiplied by a secret, and
//! the halves of the product are folded together. A peer that does not know the secret cannot choose keys that collide in a
//! table. It costs one multiplication per word; SipHash costs a hundred instructions. Its results must not leave the process.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers that share one secret.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    start: u64,
    factor: u64,
}

impl Fold {
    /// A hash with a secret of random bits.
    pub const fn new(start: u64, factor: u64) -> Fold {
        // An even factor would lose bits, a small one would not mix.
        Fold { start, factor: factor | 1 << 63 | 1 }
    }
}

impl Default for Fold {
    /// A hash with a secret from the system's random bits, as the tables of the standard library have.
    fn default() -> Fold {
        let words = RandomState::new();
        Fold::new(words.hash_one(0), words.hash_one(1))
    }
}

impl BuildHasher for Fold {
    type Hasher = Folding;
    fn build_hasher(&self) -> Folding {
        Folding { state: self.start, factor: self.factor }
    }
}

/// State of a hash.
#[derive(Clone, Copy, Debug)]
pub struct Folding {
    state: u64,
    factor: u64,
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        // The last word is mixed once more, so that it reaches the high bits, of which tables take their tags.
        fold(self.state, self.factor)
    }
    fn write_u64(&mut self, n: u64) {
        self.state = fold(self.state ^ n, self.factor);
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.write_u64(u64::from_ne_bytes(*w)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_ne_bytes(last));
        }
    }
}

fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::IpAddr;

    fn spread(fold: Fold, mask: u64) -> usize {
        let peer: IpAddr = "192.0.2.1".parse().expect("ip");
        let places: HashSet<u64> = (0..1024u32).map(|n| fold.hash_one((peer, 7u64, n << 8)) & mask).collect();
        places.len()
    }

    #[test]
    fn keys_in_a_row_spread_over_low_and_high_bits() {
        // 1024 balls in 2^16 boxes: some 1016 boxes are hit; 950 is far out in the tail.
        for fold in [Fold::new(1, 0x9e37_79b9_7f4a_7c15), Fold::new(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321)] {
            assert!(spread(fold, 0xffff) > 950, "{fold:?}");
            // Seven high bits: each of the 128 tags is hit.
            assert!(spread(fold, 0x7f << 57) > 120, "{fold:?}");
        }
    }

    #[test]
    fn each_byte_matters() {
        let hash = |bytes: &[u8]| {
            let mut folding = Fold::new(3, 5).build_hasher();
            folding.write(bytes);
            folding.finish()
        };
        for len in 1..20 {
            let zeros = vec![0; len];
            for at in 0..len {
                let mut other = zeros.clone();
                other[at] = 1;
                assert_ne!(hash(&zeros), hash(&other), "byte {at} of {len}");
            }
        }
        // Whole words are folded once each, without a word of the empty rest.
        let mut words = Fold::new(3, 5).build_hasher();
        words.write_u64(u64::from_ne_bytes([7; 8]));
        assert_eq!(hash(&[7; 8]), words.finish());
    }

    #[test]
    fn order_length_and_secret_matter() {
        let fold = Fold::new(3, 5);
        assert_ne!(fold.hash_one((1u32, 2u32)), fold.hash_one((2u32, 1u32)));
        assert_ne!(fold.hash_one([1u8, 0]), fold.hash_one([1u8]));
        assert_ne!(fold.hash_one(1u32), Fold::new(4, 5).hash_one(1u32));
        assert_ne!(fold.hash_one(1u32), Fold::new(3, 0x77).hash_one(1u32));
        assert_ne!(Fold::default().hash_one(1u32), Fold::default().hash_one(1u32));
    }
}
