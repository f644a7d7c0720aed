//! The clock of a host: what its engine takes for the time.
//!
//! It is right until a fault gives it an offset or a drift. Offsets only go forward, because the engine reads a monotonic
//! clock. A clock that drifts runs faster or slower than the simulation's time by a part of it.

use burst_base::Nanos;

/// Picoseconds per nanosecond, the engine's unit.
const NANOSECOND: u64 = 1_000;
/// Parts of a drift.
const MILLION: i128 = 1_000_000;
/// Most drift in parts per million, forward or back.
pub const DRIFT_MAX: i32 = 500_000;

/// A host's clock. Times are in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock {
    /// A time of the simulation, and what the clock shows then.
    since: u64,
    shows: u64,
    /// Parts per million that it is faster.
    drift: i32,
}

impl HostClock {
    /// What the clock shows at a time of the simulation, not before its last change.
    pub fn at(&self, time: u64) -> u64 {
        let passed = time.saturating_sub(self.since);
        let shown = i128::from(self.shows) + i128::from(passed) * (MILLION + i128::from(self.drift)) / MILLION;
        shown.min(i128::from(u64::MAX)) as u64
    }

    /// The same in the engine's unit.
    pub fn nanos(&self, time: u64) -> Nanos {
        Nanos(self.at(time) / NANOSECOND)
    }

    /// The first time of the simulation at which the clock shows `shown` or more, not before its last change.
    pub fn when(&self, shown: Nanos) -> u64 {
        let shown = shown.0.saturating_mul(NANOSECOND);
        let passed = i128::from(shown.saturating_sub(self.shows)) * MILLION;
        let rate = MILLION + i128::from(self.drift);
        let time = i128::from(self.since) + (passed + rate - 1) / rate;
        time.min(i128::from(u64::MAX)) as u64
    }

    /// From `time` on the clock is `offset` further and faster by `drift` parts per million.
    pub fn change(&mut self, time: u64, offset: u64, drift: i32) {
        *self = HostClock { since: time, shows: self.at(time) + offset, drift };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_right_until_it_is_changed() {
        let mut clock = HostClock::default();
        assert_eq!((clock.at(123_456), clock.nanos(123_456), clock.when(Nanos(7))), (123_456, Nanos(123), 7_000));
        clock.change(1_000_000, 500_000, 0);
        assert_eq!(
            (clock.at(1_000_000), clock.at(2_000_000), clock.when(Nanos(2_500))),
            (1_500_000, 2_500_000, 2_000_000)
        );
        clock.change(2_000_000, 0, -250_000);
        assert_eq!((clock.at(2_000_000), clock.at(6_000_000)), (2_500_000, 5_500_000));
        assert_eq!(clock.when(Nanos(1)), 2_000_000, "the past is now");
    }

    #[test]
    fn the_time_of_a_deadline_is_the_first_at_which_it_is_shown() {
        for drift in [-DRIFT_MAX, -333_333, -7, 0, 7, 50_001, DRIFT_MAX] {
            let mut clock = HostClock::default();
            clock.change(777_777, 5, drift);
            for shown in [777, 778, 1_000, 123_457, 98_765_432_101] {
                let time = clock.when(Nanos(shown));
                assert!(clock.nanos(time) >= Nanos(shown), "{drift}: {shown}");
                assert!(time == 777_777 || clock.nanos(time - 1) < Nanos(shown), "{drift}: {shown}");
            }
        }
        assert_eq!(HostClock::default().when(Nanos::NEVER), u64::MAX);
    }
}
