//! The one clock that a worker's thread reads: CLOCK_MONOTONIC.
//!
//! [`crate::Worker`] reads no clock; its caller passes the time. Everything that compares times uses this clock: timers,
//! completion timestamps (programs read the same clock), times of events. A process that takes over from another one can
//! therefore go on with the times of its predecessor.

use burst_base::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_of_the_monotonic_clock_and_never_goes_back() {
        let kernel = || {
            let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `spec` is a timespec that the call fills.
            assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut spec) }, 0);
            Nanos(spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64)
        };
        let before = kernel();
        let between = monotonic();
        assert!(before <= between && between <= kernel());
    }
}
