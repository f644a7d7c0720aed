//! Does somebody else want this processor, and who? Learned from yields.
//!
//! Pollers (workers, and programs that poll completion queues) may outnumber cores. Then each must give way at once, or the
//! one that has work waits for a spinner's patience. When nobody else is there, a yield is only a wasted system call. The
//! kernel counts a thread's involuntary switches (`getrusage`, `ru_nivcsw`); every [`SAMPLE_EVERY`] yields the caller
//! tells the count, and the processor counts as *shared* if at least every second yield switched.
//!
//! Other pollers give the processor back in microseconds. A yield that took longer than [`LONG`] went to somebody who
//! computes and keeps it for a whole time slice: then yielding is the wrong manner, because the kernel favours a thread
//! that sleeps and is woken over one that gives its turn away. The processor counts as *contended* for a while, longer each
//! time the next trial ends the same.

use crate::Nanos;

/// Yields between two samples.
pub const SAMPLE_EVERY: u32 = 16;
/// A yield that took longer met somebody who computes.
pub const LONG: Nanos = Nanos::from_us(400);
/// How long the first such yield is remembered; it doubles up to [`CONTENDED_MAX`].
pub const CONTENDED_MIN: Nanos = Nanos::from_ms(20);
/// How long at most.
pub const CONTENDED_MAX: Nanos = Nanos::from_ms(1_000);

/// What one thread has learned.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    shared: bool,
    yields: u32,
    switches: u64,
    contended_until: Nanos,
    penalty: Nanos,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// Nothing learned yet: shared, which is the safe guess, and not contended.
    pub const fn new() -> Self {
        Sharing { shared: true, yields: 0, switches: 0, contended_until: Nanos(0), penalty: Nanos(0) }
    }
    /// Whether other pollers share the processor.
    pub const fn is_shared(self) -> bool {
        self.shared
    }
    /// Whether somebody who computes has it: do not yield; sleep instead of spinning, if you can be woken.
    pub fn is_contended(self, now: Nanos) -> bool {
        now < self.contended_until
    }
    /// The thread has yielded, and was back at `now` after `took`. True: call [`Sharing::sample`] now.
    #[must_use]
    pub fn yielded(&mut self, now: Nanos, took: Nanos) -> bool {
        if took > LONG {
            self.penalty = Nanos((self.penalty.0 * 2).clamp(CONTENDED_MIN.0, CONTENDED_MAX.0));
            self.contended_until = now + self.penalty;
        }
        self.yields += 1;
        self.yields >= SAMPLE_EVERY
    }
    /// The thread's involuntary switches so far.
    pub fn sample(&mut self, switches: u64) {
        self.shared = switches.saturating_sub(self.switches) >= u64::from(self.yields / 2);
        (self.yields, self.switches) = (0, switches);
        // Sixteen yields in a row without a long one: whoever computed is gone.
        self.penalty = Nanos(self.penalty.0 / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(s: &mut Sharing, n: u32) -> bool {
        (0..n).any(|_| s.yielded(Nanos(0), Nanos(900)))
    }

    #[test]
    fn sharing_follows_the_samples() {
        let mut s = Sharing::new();
        assert!(s.is_shared());
        assert!(rounds(&mut s, SAMPLE_EVERY));
        s.sample(3);
        assert!(!s.is_shared(), "3 of 16 yields switched");
        assert!(!rounds(&mut s, SAMPLE_EVERY - 1));
        assert!(s.yielded(Nanos(0), Nanos(900)));
        s.sample(3 + 8);
        assert!(s.is_shared(), "8 of 16 yields switched");
    }

    #[test]
    fn a_long_yield_is_remembered_longer_each_time() {
        let mut s = Sharing::new();
        let mut now = Nanos::from_ms(5);
        let _ = s.yielded(now, Nanos::from_ms(3));
        assert!(s.is_contended(now) && !s.is_contended(now + CONTENDED_MIN));
        for _ in 0..10 {
            now = now + CONTENDED_MAX;
            assert!(!s.is_contended(now));
            let _ = s.yielded(now, Nanos::from_ms(3));
        }
        assert!(s.is_contended(now + Nanos::from_ms(999)) && !s.is_contended(now + CONTENDED_MAX));
    }
}
