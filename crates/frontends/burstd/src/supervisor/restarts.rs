//! When the successor of a daemon that crashed starts: at once the first [`AT_ONCE`] times, then after pauses that double up to
//! [`PAUSE_MAX`]. A daemon that has run for [`STEADY`] makes the supervisor forget the crashes before.

use std::time::Duration;

/// Crashes in a row after which the successor starts at once.
pub const AT_ONCE: u32 = 3;
/// A daemon that ran for this long did not crash for the reason of the one before.
pub const STEADY: Duration = Duration::from_secs(20);
/// The first pause.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause, shorter than `WatchdogSec=` of the service: nothing notifies systemd meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Counts crashes in a row.
#[derive(Debug, Default)]
pub struct RestartPolicy {
    in_a_row: u32,
}

impl RestartPolicy {
    /// Notes a crash of a daemon that ran for `ran`. Returns the pause before the successor starts.
    pub fn crashed(&mut self, ran: Duration) -> Duration {
        if ran >= STEADY {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.in_a_row.checked_sub(AT_ONCE + 1) {
            None => Duration::ZERO,
            Some(doublings) => PAUSE_MIN.saturating_mul(1 << doublings.min(16)).min(PAUSE_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_restarts_are_at_once_then_the_pauses_grow() {
        let mut policy = RestartPolicy::default();
        let pauses: Vec<u64> = (0..12).map(|_| policy.crashed(Duration::from_secs(1)).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 10, 10, 10, 10, 10]);
    }

    #[test]
    fn a_daemon_that_ran_steadily_is_restarted_at_once() {
        let mut policy = RestartPolicy::default();
        for _ in 0..20 {
            let _ = policy.crashed(Duration::ZERO);
        }
        assert_eq!(policy.crashed(STEADY), Duration::ZERO);
        assert_eq!(policy.crashed(STEADY), Duration::ZERO, "and each time that it runs so long");
    }

    #[test]
    fn crashes_without_number_do_not_overflow() {
        let mut policy = RestartPolicy { in_a_row: u32::MAX };
        assert_eq!(policy.crashed(Duration::ZERO), PAUSE_MAX);
    }
}
