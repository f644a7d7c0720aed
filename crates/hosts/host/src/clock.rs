//! The clock of a host: the only place in this crate that reads the time.
//!
//! A daemon uses CLOCK_MONOTONIC. A simulator sets the time itself, so that waits for next hops, trimming and the ages of
//! cached routes run in virtual time.

use burst_base::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where a host takes the time from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// CLOCK_MONOTONIC of the system.
    #[default]
    Monotonic,
    /// Virtual time, in nanoseconds, set by the owner of the other reference.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The time in nanoseconds since an arbitrary start.
    pub fn now(&self) -> Nanos {
        match self {
            Clock::Monotonic => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
            }
            // Relaxed: the value alone is shared, nothing is published with it.
            Clock::Virtual(time) => Nanos(time.load(Ordering::Relaxed)),
        }
    }
}

/// A span of time as a [`Duration`].
pub const fn duration(span: Nanos) -> Duration {
    Duration::from_nanos(span.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_when_it_is_set() {
        let time = Arc::new(AtomicU64::new(7));
        let clock = Clock::Virtual(time.clone());
        assert_eq!((clock.now(), clock.now()), (Nanos(7), Nanos(7)));
        time.store(9, Ordering::Relaxed);
        assert_eq!(clock.now(), Nanos(9));
    }

    #[test]
    fn monotonic_time_does_not_go_back() {
        let before = Clock::Monotonic.now();
        assert!(Clock::Monotonic.now() >= before && before > Nanos(0));
    }
}
