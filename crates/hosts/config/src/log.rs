//! The log: lines on stderr, or entries of the journal, written by `tracing`.
//!
//! Each line has a level, a target, a sentence and fields. Three layers handle it:
//!
//! 1. the level of its target (`target_levels`), which `burst log` changes at run time: `tracing` compares a number before
//!    anything of a line is computed;
//! 2. a budget for each message (`line_budget`), so that no program and no peer fills the disk;
//! 3. the output. Where stderr is the journal (`JOURNAL_STREAM`, systemd.exec(5)) and the format is text, entries go to the
//!    journal's socket: PRIORITY, TARGET, CODE_FILE, CODE_LINE, and each field as BURST_NAME. Otherwise lines go to stderr,
//!    as text or JSON.
//!
//! A line that cannot be written (a full disk) is lost; the daemon continues.

mod line_budget;
mod target_levels;

use crate::{LogFormat, LogLevel};
use burst_base::Nanos;
use burst_control::monitor::LogState;
use burst_host::log_levels::LogLevels;
use line_budget::{BudgetLayer, LinesOfMessage};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use target_levels::TargetLevels;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// The variable by which systemd names the stream of a service's output.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Levels and budget of the log that [`init`] has started.
pub struct ProcessLog {
    levels: Mutex<TargetLevels>,
    filter: reload::Handle<Targets, Registry>,
    budget: BudgetLayer,
    started: Instant,
}

/// Starts the log, for the life of the process.
pub fn init(level: LogLevel, format: LogFormat) -> Arc<ProcessLog> {
    try_init(level, format).expect("the log was started before")
}

/// Starts the log unless it was started before: then there is none to return.
pub fn try_init(level: LogLevel, format: LogFormat) -> Option<Arc<ProcessLog>> {
    let levels = TargetLevels::new(level);
    let (filter, handle) = reload::Layer::new(levels.filter());
    let started = Instant::now();
    let budget = BudgetLayer::new(started);
    let subscriber = tracing_subscriber::registry().with(filter).with(budget.clone()).with(output(format));
    subscriber.try_init().ok()?;
    Some(Arc::new(ProcessLog { levels: Mutex::new(levels), filter: handle, budget, started }))
}

/// What writes the lines.
fn output<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    if format == LogFormat::Text
        && is_journal(std::env::var(JOURNAL_STREAM).ok().as_deref())
        && let Ok(journal) = tracing_journald::layer()
    {
        return Box::new(journal.with_field_prefix(Some("BURST".into())).with_priority_mappings(priorities()));
    }
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    // tracing would report a failed write on stderr, which would panic.
    let lines = lines.log_internal_errors(false);
    match format {
        LogFormat::Text => Box::new(lines.with_ansi(false)),
        LogFormat::Json => Box::new(lines.with_target(true).json()),
    }
}

/// The priorities of syslog(3) for levels.
fn priorities() -> tracing_journald::PriorityMappings {
    use tracing_journald::{Priority, PriorityMappings};
    PriorityMappings {
        error: Priority::Error,
        warn: Priority::Warning,
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
    }
}

/// Whether stderr is the stream with the device and inode number of `JOURNAL_STREAM`: a service may have redirected stderr, and a
/// program started by it inherits the variable.
fn is_journal(variable: Option<&str>) -> bool {
    let numbers = variable.and_then(|text| text.split_once(':'));
    let numbers = numbers.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    let stderr = rustix::fs::fstat(std::io::stderr()).ok();
    numbers.is_some() && numbers == stderr.map(|stat| (stat.st_dev, stat.st_ino))
}

impl ProcessLog {
    /// The time of the budget.
    fn now(&self) -> Nanos {
        line_budget::since(self.started)
    }
}

impl LogLevels for ProcessLog {
    fn state(&self) -> LogState {
        let targets = self.levels.lock().unwrap_or_else(PoisonError::into_inner).state();
        LogState { targets, left_out: self.budget.left_out() }
    }

    fn set(&self, words: &str) -> Result<(), String> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = levels.changed(words)?;
        self.filter.reload(changed.filter()).map_err(|error| format!("the levels cannot be changed: {error}"))?;
        *levels = changed;
        Ok(())
    }

    fn due_at(&self, now: Nanos) -> Option<Nanos> {
        // The host's time and the budget's have different beginnings.
        self.budget.due_at().map(|due| now + due.since(self.now()))
    }

    fn report(&self, _now: Nanos) {
        for LinesOfMessage { target, place, level, count } in self.budget.take_left_out() {
            tracing::warn!(
                target_of = target,
                place,
                level,
                count,
                "lines were left out of this log: one message came too often"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_is_the_journal_only_if_both_numbers_are_its_own() {
        let stat = rustix::fs::fstat(std::io::stderr()).expect("stderr");
        assert!(is_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        for other in [format!("{}:{}", stat.st_dev, stat.st_ino + 1), "8".into(), "a:b".into(), String::new()] {
            assert!(!is_journal(Some(&other)), "{other}");
        }
        assert!(!is_journal(None));
    }
}
