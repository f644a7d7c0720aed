//! Does somebody else want this processor? Learned from whether yields switch to somebody.
//!
//! Pollers (workers, and programs that poll completion queues) may outnumber cores. Then each must give way at once, or the
//! one that has work waits for a spinner's patience. When nobody else is there, a yield is only a wasted system call. The
//! kernel counts a thread's involuntary switches (`getrusage`, `ru_nivcsw`); every [`SAMPLE_EVERY`] yields the caller
//! tells the count, and the processor counts as shared if at least every second yield switched.

/// Yields between two samples.
pub const SAMPLE_EVERY: u32 = 16;

/// What one thread has learned.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    shared: bool,
    yields: u32,
    switches: u64,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// Nothing learned yet: shared, which is the safe guess.
    pub const fn new() -> Self {
        Sharing { shared: true, yields: 0, switches: 0 }
    }
    /// Whether the processor is shared.
    pub const fn is_shared(self) -> bool {
        self.shared
    }
    /// The thread has yielded. True: call [`Sharing::sample`] now.
    #[must_use]
    pub fn yielded(&mut self) -> bool {
        self.yields += 1;
        self.yields >= SAMPLE_EVERY
    }
    /// The thread's involuntary switches so far.
    pub fn sample(&mut self, switches: u64) {
        self.shared = switches.saturating_sub(self.switches) >= u64::from(self.yields / 2);
        (self.yields, self.switches) = (0, switches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(s: &mut Sharing, n: u32) -> bool {
        (0..n).any(|_| s.yielded())
    }

    #[test]
    fn follows_the_samples() {
        let mut s = Sharing::new();
        assert!(s.is_shared());
        assert!(rounds(&mut s, SAMPLE_EVERY));
        s.sample(3);
        assert!(!s.is_shared(), "3 of 16 yields switched");
        assert!(!rounds(&mut s, SAMPLE_EVERY - 1));
        assert!(s.yielded());
        s.sample(3 + 8);
        assert!(s.is_shared(), "8 of 16 yields switched");
    }
}
