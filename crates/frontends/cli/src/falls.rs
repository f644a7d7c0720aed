//! `burst why daemon`: how often, when and why the daemon fell.

use burst_control::crash_report;
use burst_control::monitor::{CrashReport, DaemonCrashes};
use clap::ArgMatches;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// How long a daemon may take to answer. While a supervisor waits before it starts a successor, the socket accepts, and no
/// answer comes.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Prints what the daemon knows of its predecessors; without a daemon that answers, the reports in the directory `--reports`.
pub fn falls(matches: &ArgMatches) -> ExitCode {
    let sentence = match ask(crate::chosen_socket(matches)) {
        Ok(crashes) if matches.get_flag("json") => return crate::finish(&crate::json_text(&json_of(&crashes))),
        Ok(crashes) => return crate::finish(&text_of(&crashes)),
        Err(sentence) => sentence,
    };
    let chosen = matches.get_one::<PathBuf>("reports").cloned().or_else(crash_report::default_directory);
    let Some((directory, reports)) = chosen.and_then(|path| Some((path.clone(), kept_in(&path)?))) else {
        return crate::fail(sentence);
    };
    let text = if matches.get_flag("json") {
        let directory = directory.to_string_lossy();
        let reports: Vec<_> = reports.iter().map(report_json).collect();
        crate::json_text(&json!({ "guarded": null, "crashes": null, "directory": directory, "reports": reports }))
    } else {
        format!("{}Full reports: {}\n", reports.iter().map(report_text).collect::<String>(), directory.display())
    };
    let _ = crate::finish(&text);
    crate::fail(sentence)
}

/// Asks the daemon, for at most [`ANSWER_MAX`].
fn ask(socket: Option<PathBuf>) -> Result<DaemonCrashes, String> {
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let asked = crate::sockets::connect(socket.as_deref())
            .and_then(|mut daemon| daemon.crashes().map_err(|error| error.to_string()));
        // The receiver is gone if the answer came too late.
        let _ = sender.send(asked);
    });
    answer.recv_timeout(ANSWER_MAX).unwrap_or_else(|_| {
        Err(format!(
            "the daemon's socket accepts, but no answer comes within {} s: the daemon stands still, or it fell several times \
             and its supervisor waits before it starts the next one; its log tells which",
            ANSWER_MAX.as_secs()
        ))
    })
}

/// The reports in a directory, the newest first; `None` if there are none that this user can read.
fn kept_in(directory: &Path) -> Option<Vec<CrashReport>> {
    crash_report::read_last(directory, usize::MAX).ok().filter(|reports| !reports.is_empty())
}

fn json_of(crashes: &DaemonCrashes) -> serde_json::Value {
    json!({
        "guarded": crashes.guarded,
        "crashes": crashes.crashes,
        "directory": crashes.directory,
        "reports": crashes.reports.iter().map(report_json).collect::<Vec<_>>(),
    })
}

fn report_json(report: &CrashReport) -> serde_json::Value {
    json!({
        "time": utc(report.unix_s),
        "ran_ms": report.ran_ms,
        "version": report.version,
        "cause": report.cause,
        "details": report.details,
    })
}

fn text_of(crashes: &DaemonCrashes) -> String {
    if !crashes.guarded {
        return "The daemon is not guarded: no supervisor starts a successor or keeps reports when it falls \
                (burstd --guarded).\n"
            .to_owned();
    }
    let mut text = match crashes.crashes {
        0 => "The daemon is guarded, and has not fallen since its supervisor started.\n".to_owned(),
        1 => "The daemon is guarded, and has fallen once since its supervisor started.\n".to_owned(),
        n => format!("The daemon is guarded, and has fallen {n} times since its supervisor started.\n"),
    };
    text.extend(crashes.reports.iter().map(report_text));
    if let Some(directory) = &crashes.directory {
        let _ = writeln!(text, "Full reports: {directory}");
    }
    text
}

fn report_text(report: &CrashReport) -> String {
    let CrashReport { unix_s, ran_ms, version, cause, details } = report;
    let (cause, version, seconds) = (printable(cause), printable(version), *ran_ms as f64 / 1000.0);
    let mut text = format!("{}  {cause}; version {version}, ran for {seconds:.1} s\n", utc(*unix_s));
    for line in details.lines() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {}", printable(line));
    }
    text
}

/// A line without control characters, which could change the terminal.
fn printable(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).collect()
}

/// A time in RFC 3339, UTC.
fn utc(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Year, month and day of a day since 1970-01-01, counted in years that begin in March, so that a leap day is a year's last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_078_012_799, "2004-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_795_411_052, "2026-11-23T05:17:32Z"),
        ] {
            assert_eq!(utc(unix_s), text);
        }
    }

    #[test]
    fn a_daemon_without_a_supervisor_says_so() {
        assert!(text_of(&DaemonCrashes::default()).contains("not guarded"));
    }

    #[test]
    fn each_fall_has_its_cause_and_only_what_may_be_seen() {
        let report = CrashReport {
            unix_s: 0,
            ran_ms: 1500,
            version: "0.1.0".into(),
            cause: "signal 11 (SIGSEGV)".into(),
            details: "first\nsecond\x1b[2J".into(),
        };
        let hidden = CrashReport { details: String::new(), ..report.clone() };
        let crashes = DaemonCrashes { guarded: true, crashes: 2, directory: None, reports: vec![report, hidden] };
        let text = text_of(&crashes);
        assert!(text.contains("fallen 2 times") && !text.contains('\x1b') && !text.contains("Full reports"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("SIGSEGV") && line.contains("ran for 1.5 s")).count(), 2);
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}
