//! Limits how often a wrong token may be shown, so that none is found by trying.
//!
//! Wrong tokens are counted in two ways:
//!
//! | by | at once | then | harm to others |
//! |---|---|---|---|
//! | source and its Jetty | 16 | 1 a second | none: a program's Jetties are its own |
//! | source and the object that it names | 256 | 16 a second | the source's requests to that object |
//!
//! A source without a channel has proved nothing, and may be any address at all: so all of them share one limit for each object.
//! A request over a limit is refused as for a wrong token, whether its token is right or not, until a guess is allowed again.
//! Requests with right tokens are never counted. Each count is the time at which all is forgiven (GCRA: one number, no timer).
//! The counts are in sets of four, and the one that is forgiven first makes room, so that counts of other keys displace no
//! exhausted one. Nothing is looked up while no wrong token was shown lately.

use crate::node_eid::NodeEid;
use burst_base::Nanos;
use burst_base::rng::splitmix64;

/// Counts in a set.
const WAYS: usize = 4;
/// Sets of a table; a power of two.
const SETS: usize = 128;

/// Who guesses, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guess {
    pub(crate) peer: NodeEid,
    /// The Jetty of the request.
    pub(crate) rc_id: u32,
    /// The object whose token is asked for.
    pub(crate) object: GuessedObject,
    /// Whether the request came by a channel, which shows that the peer receives at its address.
    pub(crate) has_channel: bool,
}

/// An object with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuessedObject {
    /// The segment with this token id.
    Segment(u32),
    /// The Jetty, JFR or group with this kind and number.
    Target(u8, u32),
}

impl GuessedObject {
    const fn key(self) -> u64 {
        match self {
            GuessedObject::Segment(token_id) => token_id as u64,
            GuessedObject::Target(kind, id) => 1 << 32 | (kind as u64) << 33 | id as u64,
        }
    }
}

/// A limit: guesses at once, and the time after which another one is allowed.
#[derive(Clone, Copy, Debug)]
struct GuessLimit {
    at_once: u64,
    interval: Nanos,
}

const OF_JETTY: GuessLimit = GuessLimit { at_once: 16, interval: Nanos::from_ms(1000) };
const OF_OBJECT: GuessLimit = GuessLimit { at_once: 256, interval: Nanos(62_500_000) };

/// The key of a count that was never used: no guess has it.
const NO_KEY: GuessKey = [u64::MAX; 3];

/// A count of wrong tokens.
#[derive(Clone, Copy, Debug)]
struct GuessCount {
    key: GuessKey,
    /// When all are forgiven.
    until: Nanos,
}

/// Counts of one kind.
#[derive(Debug)]
struct GuessTable {
    limit: GuessLimit,
    seed: u64,
    counts: Vec<GuessCount>,
}

impl GuessTable {
    fn new(limit: GuessLimit, seed: u64) -> GuessTable {
        GuessTable { limit, seed, counts: vec![GuessCount { key: NO_KEY, until: Nanos(0) }; SETS * WAYS] }
    }
    fn set(&mut self, key: GuessKey) -> &mut [GuessCount] {
        debug_assert!(key != NO_KEY, "no guess has this key");
        let mixed = key.into_iter().fold(self.seed, |mixed, word| splitmix64(&mut (mixed ^ word)));
        let at = mixed as usize % SETS * WAYS;
        &mut self.counts[at..at + WAYS]
    }
    fn is_shut(&mut self, key: GuessKey, now: Nanos) -> bool {
        let allowed = (self.limit.at_once - 1) * self.limit.interval.0;
        self.set(key).iter().any(|count| count.key == key && count.until.0 > now.0 + allowed)
    }
    /// Counts a wrong token, and returns when all of its key are forgiven.
    fn note(&mut self, key: GuessKey, now: Nanos) -> Nanos {
        let interval = self.limit.interval;
        let set = self.set(key);
        let at = set.iter().position(|count| count.key == key);
        let soonest = || (0..WAYS).min_by_key(|at| set[*at].until).unwrap_or(0);
        let at = at.unwrap_or_else(soonest);
        let before = if set[at].key == key { set[at].until.max(now) } else { now };
        set[at] = GuessCount { key, until: before + interval };
        set[at].until
    }
}

/// The wrong tokens that peers have shown.
#[derive(Debug)]
pub(crate) struct Guesses {
    by_jetty: GuessTable,
    by_object: GuessTable,
    /// When all are forgiven.
    until: Nanos,
}

impl Guesses {
    pub(crate) fn new(seed: u64) -> Guesses {
        let mut state = seed;
        let mut table = |limit| GuessTable::new(limit, splitmix64(&mut state));
        Guesses { by_jetty: table(OF_JETTY), by_object: table(OF_OBJECT), until: Nanos(0) }
    }
    /// Whether no wrong token was shown lately.
    #[inline]
    pub(crate) fn is_idle(&self, now: Nanos) -> bool {
        self.until <= now
    }
    /// Whether a request is refused whatever its token is.
    pub(crate) fn is_shut(&mut self, guess: &Guess, now: Nanos) -> bool {
        let (jetty, object) = keys(guess);
        self.by_jetty.is_shut(jetty, now) || self.by_object.is_shut(object, now)
    }
    /// A request has shown a wrong token.
    pub(crate) fn note(&mut self, guess: &Guess, now: Nanos) {
        let (jetty, object) = keys(guess);
        let until = self.by_jetty.note(jetty, now).max(self.by_object.note(object, now));
        self.until = self.until.max(until);
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.by_jetty.counts.capacity() + self.by_object.counts.capacity()) * size_of::<GuessCount>()
    }
}

/// What is counted for one key: the words of the source's address, and what it guesses or by which Jetty.
type GuessKey = [u64; 3];

/// The keys of a guess in the two tables.
fn keys(guess: &Guess) -> (GuessKey, GuessKey) {
    let by_channel = u64::from(guess.has_channel);
    let [high, low] = guess.peer.words();
    let source = if guess.has_channel { [high, low] } else { [0; 2] };
    (
        [high, low, u64::from(guess.rc_id) << 1 | by_channel],
        [source[0], source[1], guess.object.key() << 1 | by_channel],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(peer: u32, rc_id: u32, token_id: u32, has_channel: bool) -> Guess {
        Guess { peer: NodeEid::numbered(peer), rc_id, object: GuessedObject::Segment(token_id), has_channel }
    }

    #[test]
    fn a_jetty_has_so_many_guesses_and_one_more_each_second() {
        let mut guesses = Guesses::new(1);
        let (own, now) = (guess(2, 1024, 7, true), Nanos::from_ms(5_000));
        assert!(guesses.is_idle(now));
        for n in 0..16 {
            assert!(!guesses.is_shut(&own, now), "guess {n}");
            guesses.note(&own, now);
        }
        assert!(guesses.is_shut(&own, now) && !guesses.is_idle(now));
        assert!(!guesses.is_shut(&guess(2, 1025, 7, true), now), "another Jetty of the same host");
        assert!(!guesses.is_shut(&guess(3, 1024, 7, true), now), "another host");
        let later = now + Nanos::from_ms(1000);
        assert!(!guesses.is_shut(&own, later));
        guesses.note(&own, later);
        assert!(guesses.is_shut(&own, later));
        assert!(guesses.is_idle(later + Nanos::from_ms(17_000)), "all are forgiven");
    }

    #[test]
    fn jetties_of_one_source_share_the_limit_of_an_object_and_sources_without_channel_do() {
        for has_channel in [true, false] {
            let mut guesses = Guesses::new(1);
            let now = Nanos(1);
            let mut made = 0;
            for n in 0..10_000 {
                // Without a channel any source address may be forged.
                let peer = if has_channel { 2 } else { 2 + n };
                let next = guess(peer, 1024 + n, 7, has_channel);
                if !guesses.is_shut(&next, now) {
                    guesses.note(&next, now);
                    made += 1;
                }
            }
            assert_eq!(made, 256);
            assert!(!guesses.is_shut(&guess(2, 1, 8, has_channel), now), "another object");
            assert!(!guesses.is_shut(&guess(9_999_999, 1, 7, true), now), "another source, by a channel");
        }
    }

    #[test]
    fn guesses_at_other_objects_do_not_make_an_exhausted_count_forgotten() {
        let mut guesses = Guesses::new(1);
        let now = Nanos(1);
        let without = |n: u32, object| guess(n, n, object, false);
        (0..256).for_each(|n| guesses.note(&without(n, 7), now));
        (0..100_000).for_each(|n| guesses.note(&without(n, 1000 + n), now));
        assert!(guesses.is_shut(&without(5_000_000, 7), now));
    }
}
