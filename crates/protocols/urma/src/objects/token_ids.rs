//! Token ids of segments: 20 bits, drawn so that no peer can foresee them, and none comes again before 2^20 others were given.
//!
//! The ids are the values of a counter under a permutation with a secret key (a Feistel network of six rounds over two halves of
//! 10 bits). Who sees ids of its own segments learns nothing of others' ids, and an import that has outlived its segment names no
//! segment until the counter has gone round.

use burst_base::rng::splitmix64;

/// Bits of a half of an id.
const HALF_BITS: u32 = 10;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;
/// Bits of an id, as on the wire.
pub(crate) const TOKEN_ID_BITS: u32 = 2 * HALF_BITS;
const TOKEN_IDS: u32 = 1 << TOKEN_ID_BITS;
const ROUNDS: usize = 6;
/// Ids in use that are passed over before the counter goes on somewhere else.
const RUN_MAX: u32 = 64;
/// Places at which the counter is tried. In use are at most a sixteenth of all ids.
const PLACES_MAX: u32 = 16;

/// The source of token ids.
#[derive(Debug)]
pub(crate) struct TokenIds {
    rounds: [u64; ROUNDS],
    /// State of the generator of places at which the counter goes on.
    places: u64,
    next: u32,
}

impl TokenIds {
    pub(crate) fn new(seed: u64) -> TokenIds {
        let mut state = seed;
        let rounds = std::array::from_fn(|_| splitmix64(&mut state));
        let places = splitmix64(&mut state);
        TokenIds { rounds, places, next: (places >> 32) as u32 & (TOKEN_IDS - 1) }
    }
    /// An id that is not in use. `None`: nearly all ids that were tried are in use.
    pub(crate) fn draw(&mut self, is_in_use: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..PLACES_MAX {
            for _ in 0..RUN_MAX {
                let id = self.permute(self.next);
                debug_assert!(id < TOKEN_IDS, "an id has more bits");
                self.next = (self.next + 1) & (TOKEN_IDS - 1);
                if !is_in_use(id) {
                    return Some(id);
                }
            }
            // Someone holds all ids of a long run: they are not passed over one by one in one call.
            self.next = (splitmix64(&mut self.places) >> 32) as u32 & (TOKEN_IDS - 1);
        }
        None
    }
    fn permute(&self, value: u32) -> u32 {
        debug_assert!(value < TOKEN_IDS, "the counter has more bits");
        let (mut left, mut right) = (value >> HALF_BITS, value & HALF_MASK);
        for key in self.rounds {
            let mut mixed = key ^ u64::from(right);
            (left, right) = (right, left ^ (splitmix64(&mut mixed) >> 32) as u32 & HALF_MASK);
        }
        left << HALF_BITS | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_id_is_given_once_before_one_comes_again() {
        let mut ids = TokenIds::new(7);
        let mut given = HashSet::new();
        for _ in 0..TOKEN_IDS {
            let id = ids.draw(|_| false).expect("free");
            assert!(id < TOKEN_IDS && given.insert(id), "{id:#x} comes again after {} others", given.len());
        }
    }

    #[test]
    fn ids_are_no_sequence_and_differ_from_seed_to_seed() {
        let draw = |seed| {
            let mut ids = TokenIds::new(seed);
            (0..1000).map(|_| ids.draw(|_| false).expect("free")).collect::<Vec<u32>>()
        };
        let (one, other) = (draw(1), draw(2));
        let steps: HashSet<u32> = one.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 990, "{} different steps between 1000 ids", steps.len());
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 5, "{same} ids do not depend on the seed");
        // Each bit is as often set as not: of 1000 ids, within six standard deviations.
        for bit in 0..TOKEN_ID_BITS {
            let set = one.iter().filter(|id| *id >> bit & 1 == 1).count();
            assert!((405..=595).contains(&set), "bit {bit} is set in {set} of 1000 ids");
        }
    }

    #[test]
    fn a_long_run_of_ids_in_use_is_left_and_a_full_space_refused() {
        let mut ids = TokenIds::new(3);
        let held: HashSet<u32> = (0..1 << 16).map(|_| ids.draw(|_| false).expect("free")).collect();
        ids.next = (ids.next.wrapping_sub(1 << 16)) & (TOKEN_IDS - 1);
        let looks = std::cell::Cell::new(0u32);
        let id = ids.draw(|id| {
            looks.set(looks.get() + 1);
            held.contains(&id)
        });
        assert!(id.is_some_and(|id| !held.contains(&id)));
        assert!(looks.get() <= PLACES_MAX * RUN_MAX, "{} ids were looked at", looks.get());
        assert_eq!(ids.draw(|_| true), None);
    }
}
