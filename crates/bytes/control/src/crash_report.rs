//! Crash reports as files: their text, and where the supervisor of a daemon keeps them (`burstd --guarded`).
//!
//! A report is text: a head of lines `name: value`, an empty line, and the details. The supervisor writes the files, and
//! `burst why daemon` reads them when no daemon answers.

use crate::monitor::CrashReport;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest report in a file, in bytes.
pub const REPORT_BYTES: usize = 64 << 10;
const FIRST_LINE: &str = "burst crash report 1";

/// The report as text.
pub fn show(report: &CrashReport) -> String {
    let CrashReport { unix_s, ran_ms, version, cause, details } = report;
    let (cause, length) = (cause.replace('\n', " "), details.len());
    format!(
        "{FIRST_LINE}\nunix_s: {unix_s}\nran_ms: {ran_ms}\nversion: {version}\ncause: {cause}\nlength: {length}\n\n{details}\n"
    )
}

/// Reads a report; returns what follows it.
pub fn parse(text: &str) -> Option<(CrashReport, &str)> {
    let (head, rest) = text.split_once("\n\n")?;
    let mut lines = head.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(": ");
    let report = CrashReport {
        unix_s: value("unix_s")?.parse().ok()?,
        ran_ms: value("ran_ms")?.parse().ok()?,
        version: value("version")?.chars().take(64).collect(),
        cause: value("cause")?.chars().take(512).collect(),
        details: String::new(),
    };
    let length: usize = value("length")?.parse().ok()?;
    let details = rest.get(..length)?.to_owned();
    Some((CrashReport { details, ..report }, rest.get(length + 1..).unwrap_or_default()))
}

/// The directory where the reports of this user's daemons are by default.
pub fn default_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(list) = set("STATE_DIRECTORY") {
        return std::env::split_paths(&list).next();
    }
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/burst"));
    }
    let default = || set("HOME").map(|directory| PathBuf::from(directory).join(".local/state"));
    set("XDG_STATE_HOME").map(PathBuf::from).or_else(default).map(|state| state.join("burst"))
}

/// The files of reports in a directory, the oldest first: their names begin with the time.
///
/// # Errors
/// The system's, if the directory cannot be read.
pub fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_report = |path: &PathBuf| {
        path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("crash-") && n.ends_with(".txt"))
    };
    let mut files: Vec<PathBuf> = directory.read_dir()?.flatten().map(|entry| entry.path()).filter(is_report).collect();
    files.sort();
    Ok(files)
}

/// The last `most` reports in a directory, the newest first. A file that is no report is left out.
///
/// # Errors
/// As for [`files`].
pub fn read_last(directory: &Path, most: usize) -> io::Result<Vec<CrashReport>> {
    Ok(files(directory)?.iter().rev().filter_map(|path| read(path)).take(most).collect())
}

/// The report in a file; `None` if it cannot be read or is no report.
pub fn read(path: &Path) -> Option<CrashReport> {
    parse(&read_file(path).ok()?).map(|(report, _)| report)
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(REPORT_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(unix_s: u64) -> CrashReport {
        let details = "panic at engine.rs:7 in thread worker-0\nnot even\n\n0: main\n".to_owned();
        CrashReport { unix_s, ran_ms: 1234, version: "0.1.0".into(), cause: "signal: 6".into(), details }
    }

    #[test]
    fn a_report_is_read_as_it_was_shown_and_rubbish_is_none() {
        let good = show(&report(1));
        assert_eq!(parse(&good), Some((report(1), "")));
        for text in ["", "\n\n", &good[1..], &good.replace("1234", "-1"), &good.replace("length: ", "length: 9")] {
            assert_eq!(parse(text), None, "{text}");
        }
        let two = good.clone() + &show(&report(2));
        let (_, rest) = parse(&two).expect("the first");
        assert_eq!(parse(rest), Some((report(2), "")));
    }

    #[test]
    fn the_last_reports_come_first_and_other_files_are_left_out() {
        let path = std::env::temp_dir().join(format!("burst-reports-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        assert!(read_last(&path, 2).is_err(), "no directory");
        std::fs::create_dir_all(&path).expect("made");
        for at in 1..=3 {
            std::fs::write(path.join(format!("crash-{at:012}-0.txt")), show(&report(at))).expect("written");
        }
        std::fs::write(path.join("crash-000000000004-0.txt"), "rubbish").expect("written");
        std::fs::write(path.join("other.txt"), show(&report(9))).expect("written");
        assert_eq!(read_last(&path, 2).expect("read"), [report(3), report(2)], "what is no report hides none");
        assert_eq!(read_last(&path, 9).expect("read"), [report(3), report(2), report(1)]);
        std::fs::remove_dir_all(path).expect("removed");
    }
}
