//! Estimates from yields whether a polling thread shares its processor with other pollers or with computing threads.
//!
//! Pollers (workers, and programs that poll completion queues) may outnumber processors. A poller without work must then yield
//! at once, or a poller with work waits. If no other thread is runnable, a yield is a wasted system call. The
//! kernel counts a thread's context switches at yields (`getrusage`, `ru_nivcsw`). Every [`SAMPLE_EVERY`] yields the caller
//! passes the count, and the processor is *shared* if at least every second yield switched.
//!
//! Another poller gives the processor back in microseconds. A yield that took longer than [`LONG`] went to a computing thread,
//! which keeps the processor for a whole time slice. Then sleeping is better than yielding, because the kernel prefers a thread
//! that is woken to a thread that yielded. The processor is *contended* for a time, which doubles when the next trial has the
//! same result.
//!
//! A yield that took longer than [`NOTED`] shows at least that another thread has work for this processor. If most yields do not
//! switch all the same, the other thread belongs to another session (the kernel's autogroups): each gets an equal share, however
//! little the one has to do. The processor is *disputed* for [`DISPUTED`]: who can sleep without a loss should do so.

use crate::Nanos;

/// Yields between two samples.
pub const SAMPLE_EVERY: u32 = 16;
/// A yield that took longer went to a computing thread.
pub const LONG: Nanos = Nanos::from_us(400);
/// A yield that took longer went to another thread with work.
pub const NOTED: Nanos = Nanos::from_us(20);
/// Time for which the processor is disputed after a yield longer than [`NOTED`].
pub const DISPUTED: Nanos = Nanos::from_ms(20);
/// Time for which the processor is contended after the first long yield. It doubles up to [`CONTENDED_MAX`].
pub const CONTENDED_MIN: Nanos = Nanos::from_ms(20);
/// Longest time for which the processor is contended after a long yield.
pub const CONTENDED_MAX: Nanos = Nanos::from_ms(1_000);

/// The estimate of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    shared: bool,
    yields: u32,
    switches: u64,
    contended_until: Nanos,
    disputed_until: Nanos,
    penalty: Nanos,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// The initial estimate: shared, which is the safe guess, and not contended.
    pub const fn new() -> Self {
        Sharing {
            shared: true,
            yields: 0,
            switches: 0,
            contended_until: Nanos(0),
            disputed_until: Nanos(0),
            penalty: Nanos(0),
        }
    }
    /// Whether other pollers share the processor.
    pub const fn is_shared(self) -> bool {
        self.shared
    }
    /// Whether a computing thread shares the processor. Then do not yield, and sleep instead of spinning if something can wake
    /// the thread.
    pub fn is_contended(self, now: Nanos) -> bool {
        now < self.contended_until
    }
    /// Whether another thread with work ran on this processor lately that most yields do not reach.
    pub fn is_disputed(self, now: Nanos) -> bool {
        !self.shared && now < self.disputed_until
    }
    /// Whether [`Sharing::is_disputed`] may be true at some time: needs no clock.
    pub const fn is_ever_disputed(self) -> bool {
        !self.shared && self.disputed_until.0 != 0
    }
    /// The thread has yielded and runs again at `now`, after `took`. True: call [`Sharing::sample`] now.
    #[must_use]
    pub fn yielded(&mut self, now: Nanos, took: Nanos) -> bool {
        if took > NOTED {
            self.disputed_until = now + DISPUTED;
        }
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
        // Sixteen yields since the last sample: the computing thread may have ended.
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
    fn a_processor_is_disputed_for_a_while_after_another_thread_ran() {
        let (mut s, now) = (Sharing::new(), Nanos::from_ms(5));
        let _ = s.yielded(now, NOTED);
        assert!(!s.is_disputed(now));
        let _ = s.yielded(now, NOTED + Nanos(1));
        assert!(!s.is_disputed(now), "yields reach it, as far as is known");
        s.sample(0);
        assert!(s.is_disputed(now) && !s.is_contended(now) && !s.is_disputed(now + DISPUTED));
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
