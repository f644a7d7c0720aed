//! A small seeded generator: xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators",
//! 2021), its state filled by splitmix64 from one seed.
//!
//! It is used for jitter, impairments, simulations and tests: the same seed gives the same run. It is not for keys that
//! must not be guessed. The caller provides the seed.

/// Seeded pseudo-random numbers, not cryptographic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: advances `state` and returns a well mixed value.
pub const fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of this seed. Every seed is valid.
    pub const fn new(seed: u64) -> Self {
        let mut s = seed;
        // splitmix64 is a bijection of a counter: four zeros in a row cannot occur.
        Rng { state: [splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s)] }
    }
    /// Another generator, seeded by the next number of this generator.
    #[must_use]
    pub const fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }
    /// 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }
    /// 32 random bits.
    pub const fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
    /// A number in `0..bound`, 0 for a bound of 0. Multiply-shift: the bias is below `bound / 2^64`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }
    /// A number in `low..=high`; `low` if `high` is less.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        let count = high.saturating_sub(low).saturating_add(1);
        low + self.below(count)
    }
    /// True with the probability `numerator / denominator`, exact in 64 bits. Never true for a denominator of 0.
    pub const fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator && denominator != 0
    }
    /// A number in `[0, 1)` with 53 random bits.
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for piece in out.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_the_published_sequence() {
        let mut state = 1_234_567;
        let first: [u64; 3] = core::array::from_fn(|_| splitmix64(&mut state));
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn xoshiro_matches_the_published_sequence() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: [u64; 4] = core::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn same_seed_same_run_and_forks_differ() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert_eq!(a.next_u64(), b.next_u64());
        let mut fork = a.fork();
        assert_ne!(fork.next_u64(), a.next_u64());
        assert_ne!(Rng::new(0).next_u64(), Rng::new(1).next_u64());
    }

    #[test]
    fn ranges_hold_their_limits() {
        let mut rng = Rng::new(42);
        for _ in 0..10_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=7).contains(&rng.between(5, 7)));
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert_eq!((rng.below(0), rng.below(1), rng.between(9, 9), rng.between(9, 1)), (0, 0, 9, 9));
        assert!(!rng.chance(0, 10) && rng.chance(10, 10) && !rng.chance(1, 0));
        let hits = (0..100_000).filter(|_| rng.chance(1, 100)).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }

    #[test]
    fn fill_covers_every_byte() {
        let mut rng = Rng::new(3);
        let mut seen = [0u8; 13];
        for _ in 0..64 {
            let mut bytes = [0u8; 13];
            rng.fill(&mut bytes);
            seen.iter_mut().zip(bytes).for_each(|(s, b)| *s |= b);
        }
        assert_eq!(seen, [0xff; 13]);
    }
}
