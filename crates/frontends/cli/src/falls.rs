//! `burst why daemon`: how often, when and why the daemon fell.

use burst_control::monitor::{CrashReport, DaemonCrashes};
use clap::ArgMatches;
use serde_json::json;
use std::fmt::Write;
use std::process::ExitCode;

/// Prints what the daemon knows of its predecessors.
pub fn falls(matches: &ArgMatches) -> ExitCode {
    let asked = crate::sockets::connect(crate::chosen_socket(matches).as_deref())
        .and_then(|mut daemon| daemon.crashes().map_err(|e| e.to_string()));
    match asked {
        Ok(crashes) if matches.get_flag("json") => crate::finish(&crate::json_text(&json_of(&crashes))),
        Ok(crashes) => crate::finish(&text_of(&crashes)),
        Err(sentence) => crate::fail(sentence),
    }
}

fn json_of(crashes: &DaemonCrashes) -> serde_json::Value {
    let report = |r: &CrashReport| {
        json!({
            "time": utc(r.unix_s),
            "ran_ms": r.ran_ms,
            "version": r.version,
            "cause": r.cause,
            "details": r.details,
        })
    };
    json!({
        "guarded": crashes.guarded,
        "crashes": crashes.crashes,
        "directory": crashes.directory,
        "reports": crashes.reports.iter().map(report).collect::<Vec<_>>(),
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
    for report in &crashes.reports {
        let CrashReport { unix_s, ran_ms, version, cause, details } = report;
        let seconds = *ran_ms as f64 / 1000.0;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}  {cause}; version {version}, ran for {seconds:.1} s", utc(*unix_s));
        for line in details.lines() {
            let _ = writeln!(text, "    {}", printable(line));
        }
    }
    if let Some(directory) = &crashes.directory {
        let _ = writeln!(text, "Full reports: {directory}");
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
