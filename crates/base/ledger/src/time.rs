//! Time that a thread has spent on an account: since the account was opened, and lately.
//!
//! The last seconds are kept as one sum for each second, in a ring. Time is in nanoseconds of any clock that does not go back:
//! the monotonic clock of a daemon, or the virtual clock of a simulation.

/// Seconds, the present one included, over which [`TimeSpent::recent_share`] is taken.
pub const RECENT_SECONDS: u64 = 10;

const SECOND: u64 = 1_000_000_000;

/// What [`TimeSpent::recent_share`] is a part of: one million is all of the time.
pub const WHOLE_SHARE: u32 = 1_000_000;

/// Time spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Nanoseconds since the account was opened.
    pub total_ns: u64,
    /// The part of the last seconds that was spent, in millionths of their time.
    pub recent_share: u32,
}

/// The record of the time spent.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeRecord {
    total_ns: u64,
    /// Nanoseconds spent in each of the last seconds; the place of a second is its number modulo the length.
    seconds: [u64; RECENT_SECONDS as usize],
    /// The number of the latest second in the ring.
    latest: u64,
}

impl TimeRecord {
    /// Notes that the time from `begin` to `end` was spent.
    pub(crate) fn add(&mut self, begin: u64, end: u64) {
        let begin = begin.min(end);
        self.total_ns = self.total_ns.saturating_add(end - begin);
        self.advance(end / SECOND);
        // The seconds that have left the ring are not visited, however long the time is.
        let first = (begin / SECOND).max(self.latest.saturating_sub(RECENT_SECONDS - 1));
        for second in first..=end / SECOND {
            let from = begin.max(second * SECOND);
            let to = end.min((second + 1).saturating_mul(SECOND));
            let sum = &mut self.seconds[(second % RECENT_SECONDS) as usize];
            *sum = sum.saturating_add(to.saturating_sub(from));
        }
    }

    /// What was spent until `now`.
    pub(crate) fn spent(&mut self, now: u64) -> TimeSpent {
        self.advance(now / SECOND);
        let recent = self.seconds.iter().fold(0, |sum: u64, second| sum.saturating_add(*second));
        let window = now.saturating_sub(self.latest.saturating_sub(RECENT_SECONDS - 1) * SECOND);
        let share = u128::from(recent) * u128::from(WHOLE_SHARE) / u128::from(window.max(1));
        TimeSpent { total_ns: self.total_ns, recent_share: share.min(u128::from(WHOLE_SHARE)) as u32 }
    }

    /// Clears the places of the seconds that have begun since the latest one. A clock that goes back changes nothing.
    fn advance(&mut self, second: u64) {
        if second <= self.latest {
            return;
        }
        let first = (self.latest + 1).max(second.saturating_sub(RECENT_SECONDS - 1));
        for begun in first..=second {
            self.seconds[(begun % RECENT_SECONDS) as usize] = 0;
        }
        self.latest = second;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_share_is_that_of_the_last_seconds_only() {
        let mut record = TimeRecord::default();
        record.add(20 * SECOND, 20 * SECOND + 500 * MS);
        // 500 ms of the nine seconds before and half a second.
        let spent = record.spent(20 * SECOND + 500 * MS);
        assert_eq!(spent, TimeSpent { total_ns: 500 * MS, recent_share: 52_631 });
        assert_eq!(record.spent(29 * SECOND + 999 * MS).recent_share, 50_005);
        assert_eq!(record.spent(30 * SECOND), TimeSpent { total_ns: 500 * MS, recent_share: 0 });
        assert_eq!(record.spent(u64::MAX).total_ns, 500 * MS);
    }

    #[test]
    fn a_long_time_belongs_to_each_second_that_it_covers() {
        let mut record = TimeRecord::default();
        record.add(SECOND / 2, 3 * SECOND + SECOND / 4);
        assert_eq!(record.seconds[..4], [SECOND / 2, SECOND, SECOND, SECOND / 4]);
        // Longer than the ring: no share exceeds the whole.
        record.add(4 * SECOND, 1_000_000 * SECOND);
        let spent = record.spent(1_000_000 * SECOND);
        assert_eq!((spent.recent_share, record.seconds.iter().max()), (WHOLE_SHARE, Some(&SECOND)));
    }

    #[test]
    fn hostile_clocks_neither_overflow_nor_panic() {
        let mut record = TimeRecord::default();
        record.add(0, u64::MAX);
        record.add(7, 3);
        record.add(u64::MAX, u64::MAX);
        record.add(0, SECOND);
        let spent = record.spent(0);
        assert!(spent.recent_share <= WHOLE_SHARE && spent.total_ns == u64::MAX);
        record.spent(u64::MAX);
    }
}
