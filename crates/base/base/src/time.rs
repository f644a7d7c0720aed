//! Protocol time: nanoseconds of a monotonic clock. The caller passes it; no crate below the engine reads a clock.

use core::ops::{Add, Sub};

/// A point in time or a span, in nanoseconds since an arbitrary start. `Nanos::NEVER` is later than any event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than anything that happens.
    pub const NEVER: Nanos = Nanos(u64::MAX);
    /// `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Nanos(us * 1_000)
    }
    /// `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }
    /// Time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, d: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(d.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, d: Nanos) -> Nanos {
        self.since(d)
    }
}
