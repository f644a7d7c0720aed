//! A token bucket: a limit on how often something is done, which permits bursts.
//!
//! The bucket begins full. Each use takes a token; one token comes back in each interval, up to the size of the bucket. What is
//! limited decides what happens without a token. Time is an argument.

use crate::Nanos;

/// A bucket of at most `SIZE` tokens, of which one comes back every `INTERVAL_NS` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket<const SIZE: u32, const INTERVAL_NS: u64> {
    tokens: u32,
    /// When the last token came back.
    refilled: Nanos,
}

impl<const SIZE: u32, const INTERVAL_NS: u64> Default for TokenBucket<SIZE, INTERVAL_NS> {
    fn default() -> Self {
        TokenBucket { tokens: SIZE, refilled: Nanos(0) }
    }
}

impl<const SIZE: u32, const INTERVAL_NS: u64> TokenBucket<SIZE, INTERVAL_NS> {
    fn refill(&mut self, now: Nanos) {
        let back = now.since(self.refilled).0 / INTERVAL_NS;
        if back >= u64::from(SIZE - self.tokens) {
            (self.tokens, self.refilled) = (SIZE, now);
        } else {
            self.tokens += back as u32;
            self.refilled = Nanos(self.refilled.0 + back * INTERVAL_NS);
        }
        debug_assert!(self.tokens <= SIZE);
    }

    /// Takes a token. False if there is none.
    pub fn take(&mut self, now: Nanos) -> bool {
        self.refill(now);
        let any = self.tokens > 0;
        self.tokens -= u32::from(any);
        any
    }

    /// Whether there is a token.
    pub fn has_token(&mut self, now: Nanos) -> bool {
        self.refill(now);
        self.tokens > 0
    }

    /// Whether the bucket is full: it need not be kept.
    pub fn is_full(&mut self, now: Nanos) -> bool {
        self.refill(now);
        self.tokens == SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Bucket = TokenBucket<4, 100>;

    #[test]
    fn a_full_bucket_permits_a_burst_and_then_one_per_interval() {
        let mut bucket = Bucket::default();
        let start = Nanos(1_000_000);
        assert!(bucket.is_full(start));
        assert_eq!((0..10).filter(|_| bucket.take(start)).count(), 4);
        assert!(!bucket.has_token(start + Nanos(99)) && !bucket.is_full(start + Nanos(99)));
        assert!(bucket.has_token(start + Nanos(100)));
        let taken = (0..1000).filter(|ns| bucket.take(start + Nanos(*ns))).count();
        assert_eq!(taken, 9, "one for each whole interval, however often it is asked");
    }

    #[test]
    fn tokens_come_back_up_to_the_size() {
        let mut bucket = Bucket::default();
        while bucket.take(Nanos(50)) {}
        assert!(!bucket.is_full(Nanos(449)) && bucket.is_full(Nanos(450)));
        assert_eq!((0..10).filter(|_| bucket.take(Nanos(u64::MAX))).count(), 4);
        // Time that goes back takes nothing away and gives nothing.
        assert!(!bucket.take(Nanos(0)));
    }
}
