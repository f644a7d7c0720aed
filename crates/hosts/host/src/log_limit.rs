//! Bounds the log lines that programs cause: a program that connects and misbehaves in a loop must not fill the disk.
//!
//! Every line that a client can cause has a [`LogCause`]. Of each cause, a user gets [`LINES_PER_USER`] lines in an interval of
//! [`INTERVAL`], and all users together [`LINES_PER_CAUSE`]: one person may have thousands of user ids (subuid(5)). The lines
//! left out are counted, and the count is logged when the interval ends. With 7 causes of at most 300 bytes, the worst case is
//! about 10 KiB per second, whatever the number of users.
//!
//! Lines at level debug are not limited.

use burst_base::Nanos;
use std::collections::BTreeMap;

/// The interval in which lines are counted.
pub const INTERVAL: Nanos = Nanos::from_ms(60_000);
/// Maximum number of lines of one cause and user in an interval.
pub const LINES_PER_USER: u32 = 32;
/// Maximum number of lines of one cause in an interval, of all users together.
pub const LINES_PER_CAUSE: u32 = 256;
/// Maximum number of causes and users that are told apart. Further ones share one place per cause.
const PLACES_MAX: usize = 1024;
/// Maximum number of lines with which the end of an interval is reported. The last one sums up the rest.
const REPORTS_MAX: usize = 16;

/// What a client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogCause {
    /// It sent nonsense, or reads no replies, and was disconnected.
    Disconnected,
    /// Its library has another version.
    WrongVersion,
    /// It was refused when it connected: no room for another client.
    NoRoom,
    /// A request was refused.
    Refused,
    /// A request for connection management was refused.
    CmRefused,
    /// It opened a context.
    Opened,
    /// Its context ended.
    Closed,
}

impl LogCause {
    /// All of them.
    pub const ALL: &[LogCause] = &[
        LogCause::Disconnected,
        LogCause::WrongVersion,
        LogCause::NoRoom,
        LogCause::Refused,
        LogCause::CmRefused,
        LogCause::Opened,
        LogCause::Closed,
    ];

    /// In a few words, for the line that reports lines left out.
    pub const fn name(self) -> &'static str {
        match self {
            LogCause::Disconnected => "client disconnected",
            LogCause::WrongVersion => "client refused: another version",
            LogCause::NoRoom => "client refused: no room",
            LogCause::Refused => "refused",
            LogCause::CmRefused => "connection management refused",
            LogCause::Opened => "context opened",
            LogCause::Closed => "context closed",
        }
    }
}

/// Lines that were left out in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinesLeftOut {
    /// What the lines would have said; `None`: several causes.
    pub cause: Option<LogCause>,
    /// Whose lines; `None`: several users'.
    pub uid: Option<u32>,
    /// How many.
    pub count: u64,
}

/// Counts of one cause and user in the present interval.
#[derive(Clone, Copy, Debug, Default)]
struct LineCount {
    admitted: u32,
    left_out: u64,
}

/// The limiter of one host.
#[derive(Debug, Default)]
pub struct LogLimiter {
    /// When the present interval began; `None`: no line since the last one.
    begun: Option<Nanos>,
    /// `None` for the users without a place of their own.
    counts: BTreeMap<(LogCause, Option<u32>), LineCount>,
    /// Lines admitted of each cause.
    admitted: BTreeMap<LogCause, u32>,
}

impl LogLimiter {
    /// Whether a line may be written. A line that may not is counted.
    pub fn admits(&mut self, now: Nanos, cause: LogCause, uid: u32) -> bool {
        self.begun.get_or_insert(now);
        let has_room = self.counts.len() < PLACES_MAX || self.counts.contains_key(&(cause, Some(uid)));
        let count = self.counts.entry((cause, has_room.then_some(uid))).or_default();
        let of_cause = self.admitted.entry(cause).or_default();
        let admits = count.admitted < LINES_PER_USER && *of_cause < LINES_PER_CAUSE;
        if admits {
            count.admitted += 1;
            *of_cause += 1;
        } else {
            count.left_out += 1;
        }
        admits
    }

    /// When the present interval ends; `None`: there is none.
    pub fn due_at(&self) -> Option<Nanos> {
        self.begun.map(|begun| begun + INTERVAL)
    }

    /// The lines left out in the interval, if it has ended: at most `REPORTS_MAX` reports. A new interval begins with the next
    /// line.
    pub fn take_left_out(&mut self, now: Nanos) -> Vec<LinesLeftOut> {
        if self.due_at().is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.begun = None;
        self.admitted.clear();
        let counts = std::mem::take(&mut self.counts);
        let mut all: Vec<LinesLeftOut> = counts
            .into_iter()
            .filter(|(_, count)| count.left_out > 0)
            .map(|((cause, uid), LineCount { left_out: count, .. })| LinesLeftOut { cause: Some(cause), uid, count })
            .collect();
        if all.len() > REPORTS_MAX {
            all.sort_by_key(|report| std::cmp::Reverse(report.count));
            let count = all.drain(REPORTS_MAX - 1..).map(|report| report.count).sum();
            all.push(LinesLeftOut { cause: None, uid: None, count });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_ms(5);

    fn admitted(limiter: &mut LogLimiter, cause: LogCause, uid: u32, lines: u32) -> u32 {
        (0..lines).map(|_| u32::from(limiter.admits(NOW, cause, uid))).sum()
    }

    #[test]
    fn a_user_who_floods_the_log_costs_others_nothing() {
        let mut limiter = LogLimiter::default();
        assert_eq!(admitted(&mut limiter, LogCause::Disconnected, 1001, 100_000), LINES_PER_USER);
        assert_eq!(admitted(&mut limiter, LogCause::Disconnected, 1002, 3), 3);
        assert_eq!(admitted(&mut limiter, LogCause::Refused, 1001, 3), 3, "another cause");
    }

    #[test]
    fn lines_left_out_are_reported_once_when_the_interval_ends() {
        let mut limiter = LogLimiter::default();
        assert_eq!(limiter.due_at(), None);
        admitted(&mut limiter, LogCause::Refused, 1001, LINES_PER_USER + 5);
        admitted(&mut limiter, LogCause::Refused, 1002, 1);
        assert!(limiter.take_left_out(NOW).is_empty(), "the interval has not ended");
        let end = limiter.due_at().expect("an interval");
        assert_eq!(end, NOW + INTERVAL);
        let left_out = LinesLeftOut { cause: Some(LogCause::Refused), uid: Some(1001), count: 5 };
        assert_eq!(limiter.take_left_out(end), [left_out]);
        assert!(limiter.take_left_out(end + INTERVAL).is_empty());
        assert!(limiter.admits(end, LogCause::Refused, 1001), "a new interval");
    }

    #[test]
    fn many_users_together_are_bounded_in_lines_memory_and_reports() {
        let mut limiter = LogLimiter::default();
        let total: u32 = (0..100_000).map(|uid| admitted(&mut limiter, LogCause::Opened, uid, 2)).sum();
        assert_eq!(total, LINES_PER_CAUSE);
        assert!(limiter.counts.len() <= PLACES_MAX + LogCause::ALL.len(), "{}", limiter.counts.len());
        let reports = limiter.take_left_out(NOW + INTERVAL);
        assert_eq!(reports.len(), REPORTS_MAX);
        assert_eq!(reports.iter().map(|r| r.count).sum::<u64>(), 200_000 - u64::from(LINES_PER_CAUSE));
        assert_eq!(reports.last().map(|r| (r.cause, r.uid)), Some((None, None)));
    }
}
