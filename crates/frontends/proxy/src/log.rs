//! The log: lines on stderr.
//!
//! Programs and peers choose how often a line is written: one for each connection that fails, for example. So each place in the
//! code has a budget of lines, as each message of the daemon's log has; the log says how many were left out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one place in an interval.
const LINES_MAX: u32 = 512;
const INTERVAL: Duration = Duration::from_secs(60);

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
    fn admits(&mut self, place: Place, now: Instant) -> bool {
        let used = self.0.entry(place).or_insert(PlaceLines { since: now, lines: 0, left_out: 0 });
        if now.duration_since(used.since) >= INTERVAL && used.left_out == 0 {
            *used = PlaceLines { since: now, lines: 0, left_out: 0 };
        }
        let admits = used.lines < LINES_MAX;
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
    if cfg!(fuzzing) {
        return;
    }
    let (caller, now) = (Location::caller(), Instant::now());
    let (left_out, admits) = {
        let mut budget = BUDGET.lock().unwrap_or_else(PoisonError::into_inner);
        (budget.take_left_out(now), budget.admits((caller.file(), caller.line()), now))
    };
    // A log that cannot be written must not end the proxy.
    let mut to = std::io::stderr();
    for ((file, at), count) in left_out {
        let _ = writeln!(
            to,
            "burst-proxy: {count} lines were left out of this log: one message came too often ({file}:{at})"
        );
    }
    if admits {
        let _ = writeln!(to, "burst-proxy: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_too_often_is_counted_and_keeps_no_other_out() {
        let (mut budget, begin) = (LogBudget::default(), Instant::now());
        let (often, seldom) = (("often.rs", 1), ("seldom.rs", 2));
        let written = (0..10_000).filter(|_| budget.admits(often, begin)).count();
        assert_eq!(written as u32, LINES_MAX);
        assert!(budget.admits(seldom, begin));
        assert_eq!(budget.take_left_out(begin), []);
        let later = begin + INTERVAL;
        assert!(!budget.admits(often, later), "until the log has said what it left out");
        assert_eq!(budget.take_left_out(later), [(often, 10_000 - LINES_MAX + 1)]);
        assert!(budget.admits(often, later));
        assert_eq!(budget.take_left_out(later + INTERVAL), []);
    }

    #[test]
    fn a_budget_begins_again_with_each_interval() {
        let (mut budget, begin) = (LogBudget::default(), Instant::now());
        for interval in 0..3 {
            let now = begin + interval * INTERVAL;
            assert_eq!((0..LINES_MAX).filter(|_| budget.admits(("a.rs", 1), now)).count() as u32, LINES_MAX);
        }
    }
}
