//! A set of PSNs of one window: one bit for each of [`WINDOW_PSNS`] PSNs, at the PSN's number modulo the window.
//!
//! The window itself is not stored: the owner keeps all members within [`WINDOW_PSNS`] of each other, and clears PSNs that leave
//! its window, so that a bit never stands for two PSNs. Searches work on words of 64 PSNs.

use burst_base::Psn;

/// PSNs that a receiver of the selective repeat family keeps track of, from the first missing one on.
pub const WINDOW_PSNS: u32 = 2048;
const WORD: u32 = u64::BITS;
const WORDS: usize = (WINDOW_PSNS / WORD) as usize;

const _: () = assert!(burst_base::num::PSN_MODULUS.is_multiple_of(WINDOW_PSNS) && WINDOW_PSNS.is_power_of_two());

/// The set.
#[derive(Clone, Debug)]
pub(crate) struct PsnBits {
    words: [u64; WORDS],
    count: u32,
}

/// Word and bit of a PSN.
fn place(psn: Psn) -> (usize, u32) {
    let at = psn.get() % WINDOW_PSNS;
    ((at / WORD) as usize, at % WORD)
}

impl PsnBits {
    pub(crate) const fn new() -> Self {
        PsnBits { words: [0; WORDS], count: 0 }
    }
    /// Number of members.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
    pub(crate) fn has(&self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        self.words[word] >> bit & 1 != 0
    }
    /// Adds `psn`; false if it is a member.
    pub(crate) fn add(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        // No boolean is converted to a number: rustc 1.95 makes a wrong number of one on which a caller branches (rust-lang/rust
        // issue 158206).
        let before = self.words[word] >> bit & 1;
        self.words[word] |= 1 << bit;
        self.count += 1 - before as u32;
        before == 0
    }
    /// Removes `psn`; false if it was no member.
    pub(crate) fn remove(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        // As in `add`.
        let before = self.words[word] >> bit & 1;
        self.words[word] &= !(1 << bit);
        self.count -= before as u32;
        before != 0
    }
    pub(crate) fn clear(&mut self) {
        *self = PsnBits::new();
    }
    /// Whether one of the `count` PSNs from `first` on is a member.
    pub(crate) fn has_any(&self, first: Psn, count: u32) -> bool {
        (0..count).any(|k| self.has(first.add(k)))
    }
    /// The 64 PSNs from `first` on: bit 0 is `first`.
    pub(crate) fn word_from(&self, first: Psn) -> u64 {
        let (word, bit) = place(first);
        let low = self.words[word] >> bit;
        if bit == 0 { low } else { low | self.words[(word + 1) % WORDS] << (WORD - bit) }
    }
    /// The first of the PSNs from `first` up to before `end` that is no member.
    pub(crate) fn next_missing(&self, first: Psn, end: Psn) -> Option<Psn> {
        let mut psn = first;
        while psn.is_before(end) {
            let present = self.word_from(psn).trailing_ones();
            psn = psn.add(present);
            if present < WORD {
                break;
            }
        }
        psn.is_before(end).then_some(psn)
    }
    /// The first of the PSNs from `first` up to before `end` that is a member.
    pub(crate) fn next_member(&self, first: Psn, end: Psn) -> Option<Psn> {
        let mut psn = first;
        while psn.is_before(end) {
            let absent = self.word_from(psn).trailing_zeros();
            psn = psn.add(absent);
            if absent < WORD {
                break;
            }
        }
        psn.is_before(end).then_some(psn)
    }
    /// Removes the PSNs from `first` up to before `end`.
    pub(crate) fn remove_until(&mut self, first: Psn, end: Psn) {
        let count = end.diff(first);
        if count >= WINDOW_PSNS as i32 {
            return self.clear();
        }
        let mut psn = first;
        while psn.is_before(end) && self.count > 0 {
            let (word, bit) = place(psn);
            let size = (WORD - bit).min(end.diff(psn) as u32);
            let mask = (u64::MAX >> (WORD - size)) << bit;
            self.count -= (self.words[word] & mask).count_ones();
            self.words[word] &= !mask;
            psn = psn.add(size);
        }
    }
    /// Members among the `count` PSNs from `first` on.
    pub(crate) fn count_within(&self, first: Psn, count: u32) -> u32 {
        let part = |done: u32| {
            let left = (count - done).min(WORD);
            let mask = if left == WORD { u64::MAX } else { (1 << left) - 1 };
            (self.word_from(first.add(done)) & mask).count_ones()
        };
        (0..count).step_by(WORD as usize).map(part).sum()
    }
    /// The PSN behind the last member among the PSNs from `first` up to before `end`; `first` if there is none.
    pub(crate) fn end_of_last(&self, first: Psn, end: Psn) -> Psn {
        let count = end.diff(first).clamp(0, WINDOW_PSNS as i32) as u32;
        let mut left = count;
        while left > 0 {
            let begin = left.saturating_sub(WORD);
            let size = left - begin;
            let mask = if size == WORD { u64::MAX } else { (1 << size) - 1 };
            let word = self.word_from(first.add(begin)) & mask;
            if word != 0 {
                return first.add(begin + WORD - word.leading_zeros());
            }
            left = begin;
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;
    use std::collections::BTreeSet;

    /// The same questions to a set of distances from a base.
    fn compare(bits: &PsnBits, model: &BTreeSet<u32>, base: Psn, rng: &mut Rng) {
        let (first, end) = (rng.below(1024) as u32, 1024 + rng.below(1024) as u32);
        let inside: Vec<u32> = model.range(first..end).copied().collect();
        let missing = (first..end).find(|d| !model.contains(d)).map(|d| base.add(d));
        assert_eq!(bits.next_missing(base.add(first), base.add(end)), missing);
        assert_eq!(bits.count_within(base.add(first), end - first), inside.len() as u32);
        assert_eq!(bits.next_member(base.add(first), base.add(end)), inside.first().map(|d| base.add(*d)));
        let last = inside.last().map_or(first, |d| d + 1);
        assert_eq!(bits.end_of_last(base.add(first), base.add(end)), base.add(last));
        assert_eq!(bits.len() as usize, model.len());
        let word = (0..64).filter(|k| model.contains(&(first + k))).fold(0u64, |word, k| word | 1 << k);
        assert_eq!(bits.word_from(base.add(first)), word);
    }

    #[test]
    fn the_set_equals_a_model_at_any_base_and_around_the_end_of_the_psns() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let base = Psn::new(if seed % 2 == 0 { 0xff_fc00 + rng.below(1024) as u32 } else { rng.next_u32() });
            let (mut bits, mut model) = (PsnBits::new(), BTreeSet::new());
            for _ in 0..400 {
                // Dense, so that whole words are full.
                let d = if seed % 4 < 2 { rng.below(200) } else { rng.below(2048) } as u32;
                if rng.below(3) > 0 {
                    assert_eq!(bits.add(base.add(d)), model.insert(d));
                } else {
                    assert_eq!(bits.remove(base.add(d)), model.remove(&d));
                }
                assert_eq!(bits.has(base.add(d)), model.contains(&d));
                if rng.below(40) == 0 {
                    let end = (d + rng.below(300) as u32).min(WINDOW_PSNS);
                    bits.remove_until(base.add(d), base.add(end));
                    model.retain(|member| !(d..end).contains(member));
                }
                compare(&bits, &model, base, &mut rng);
            }
        }
    }
}
