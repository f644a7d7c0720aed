//! The log: lines on stderr, with their priority where stderr is the journal's (sd-daemon(3)).
//!
//! At level `debug` there are lines of each connection: by what it goes, and its end. The level can be changed while the proxy
//! runs (`burst proxy log`).
//!
//! Programs and peers choose how often a line is written: one for each connection that fails, for example. So each place in the
//! code has a budget of lines, as each message of the daemon's log has; the log says how many were left out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one place in an interval.
const LINES_MAX: u32 = 512;
/// The same of lines of connections, which are asked for.
const DEBUG_LINES_MAX: u32 = 20_000;
const INTERVAL: Duration = Duration::from_secs(60);

/// Which lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProxyLogLevel {
    /// What an operator should know.
    Info = 6,
    /// Each connection, too.
    Debug = 7,
}

impl ProxyLogLevel {
    /// The names of all.
    pub const NAMES: [&'static str; 2] = ["info", "debug"];

    /// That of a name.
    pub fn named(name: &str) -> Option<ProxyLogLevel> {
        match name {
            "info" => Some(ProxyLogLevel::Info),
            "debug" => Some(ProxyLogLevel::Debug),
            _ => None,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            ProxyLogLevel::Info => "info",
            ProxyLogLevel::Debug => "debug",
        }
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(ProxyLogLevel::Info as u8);

/// The level in force.
pub fn level() -> ProxyLogLevel {
    if is_debug() { ProxyLogLevel::Debug } else { ProxyLogLevel::Info }
}

/// Changes the level.
pub fn set_level(level: ProxyLogLevel) {
    // Relaxed: the number alone is shared.
    LEVEL.store(level as u8, Ordering::Relaxed);
}

fn is_debug() -> bool {
    LEVEL.load(Ordering::Relaxed) >= ProxyLogLevel::Debug as u8
}

/// Whether stderr is the journal: systemd names its device and inode.
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stat = rustix::fs::fstat(std::io::stderr());
        stat.is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
    })
}

/// A file and a line of the code.
type Place = (&'static str, u32);

/// What a place has written in its interval.
#[derive(Debug)]
struct PlaceLines {
    since: Instant,
    lines: u32,
    left_out: u32,
}

/// The budgets of all places; as many rows as there are places in the code.
#[derive(Debug, Default)]
struct LogBudget(BTreeMap<Place, PlaceLines>);

impl LogBudget {
    /// Whether a place may write a line now.
    fn admits(&mut self, place: Place, most: u32, now: Instant) -> bool {
        let used = self.0.entry(place).or_insert(PlaceLines { since: now, lines: 0, left_out: 0 });
        if now.duration_since(used.since) >= INTERVAL && used.left_out == 0 {
            *used = PlaceLines { since: now, lines: 0, left_out: 0 };
        }
        let admits = used.lines < most;
        if admits {
            used.lines += 1;
        } else {
            used.left_out = used.left_out.saturating_add(1);
        }
        admits
    }

    /// The places whose interval has ended, with the number of lines that were left out; their budgets begin again.
    fn take_left_out(&mut self, now: Instant) -> Vec<(Place, u32)> {
        let has_ended = |used: &PlaceLines| used.left_out > 0 && now.duration_since(used.since) >= INTERVAL;
        let ended = self.0.iter_mut().filter(|(_, used)| has_ended(used));
        ended
            .map(|(place, used)| {
                let left_out = used.left_out;
                *used = PlaceLines { since: now, lines: 0, left_out: 0 };
                (*place, left_out)
            })
            .collect()
    }
}

static BUDGET: Mutex<LogBudget> = Mutex::new(LogBudget(BTreeMap::new()));

/// Writes a line of the log, unless this place in the code has written too many.
#[track_caller]
pub(crate) fn log(line: impl Display) {
    write(ProxyLogLevel::Info, &line);
}

/// Writes a line of a connection, if the level says so.
#[track_caller]
pub(crate) fn log_connection(line: impl Display) {
    if is_debug() {
        write(ProxyLogLevel::Debug, &line);
    }
}

#[cold]
#[track_caller]
fn write(level: ProxyLogLevel, line: &dyn Display) {
    if cfg!(fuzzing) {
        return;
    }
    let (caller, now) = (Location::caller(), Instant::now());
    let most = if level == ProxyLogLevel::Debug { DEBUG_LINES_MAX } else { LINES_MAX };
    let (left_out, admits) = {
        let mut budget = BUDGET.lock().unwrap_or_else(PoisonError::into_inner);
        (budget.take_left_out(now), budget.admits((caller.file(), caller.line()), most, now))
    };
    // A log that cannot be written must not end the proxy.
    let mut to = std::io::stderr();
    let priority = |level: ProxyLogLevel| if is_journal() { format!("<{}>", level as u8) } else { String::new() };
    for ((file, at), count) in left_out {
        let _ = writeln!(
            to,
            "{}burst-proxy: {count} lines were left out of this log: one message came too often ({file}:{at})",
            priority(ProxyLogLevel::Info)
        );
    }
    if admits {
        let _ = writeln!(to, "{}burst-proxy: {line}", priority(level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_too_often_is_counted_and_keeps_no_other_out() {
        let (mut budget, begin) = (LogBudget::default(), Instant::now());
        let (often, seldom) = (("often.rs", 1), ("seldom.rs", 2));
        let written = (0..10_000).filter(|_| budget.admits(often, LINES_MAX, begin)).count();
        assert_eq!(written as u32, LINES_MAX);
        assert!(budget.admits(seldom, LINES_MAX, begin));
        assert_eq!(budget.take_left_out(begin), []);
        let later = begin + INTERVAL;
        assert!(!budget.admits(often, LINES_MAX, later), "until the log has said what it left out");
        assert_eq!(budget.take_left_out(later), [(often, 10_000 - LINES_MAX + 1)]);
        assert!(budget.admits(often, LINES_MAX, later));
        assert_eq!(budget.take_left_out(later + INTERVAL), []);
    }

    #[test]
    fn a_budget_begins_again_with_each_interval() {
        let (mut budget, begin) = (LogBudget::default(), Instant::now());
        for interval in 0..3 {
            let now = begin + interval * INTERVAL;
            assert_eq!((0..LINES_MAX).filter(|_| budget.admits(("a.rs", 1), LINES_MAX, now)).count() as u32, LINES_MAX);
        }
    }
}
