//! Crash reports: when and why a daemon fell, how long it had run, its version, and message and backtrace of its panic.
//!
//! A report is text: a head of lines `name: value`, an empty line, and the details. The supervisor keeps the last
//! [`REPORTS_MAX`] as files, which only its user can read, in a directory that only its user can write; without such a directory
//! it keeps them in memory. It passes them to the next daemon in a memfd, and the daemon shows them (`burst why daemon`).

use burst_control::monitor::CrashReport;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tracing::warn;

/// Reports that are kept.
pub const REPORTS_MAX: usize = 8;
/// Longest report in a file, in bytes.
const REPORT_BYTES: usize = 64 << 10;
/// Longest details that the daemon shows, in bytes: all reports fit one control message.
const SHOWN_BYTES: usize = 6 << 10;
const FIRST_LINE: &str = "burst crash report 1";

const _: () = assert!(REPORTS_MAX * (SHOWN_BYTES + 1024) <= burst_control::MESSAGE_MAX);

/// The reports, the newest first.
#[derive(Debug)]
pub struct CrashLog {
    directory: Option<PathBuf>,
    reports: VecDeque<CrashReport>,
}

impl CrashLog {
    /// The reports in `directory`, or in the default one, which is made if it is missing.
    pub fn open(directory: Option<&Path>) -> CrashLog {
        let chosen = directory.map(Path::to_path_buf).or_else(default_directory);
        let directory = chosen.and_then(|path| match prepare(&path) {
            Ok(()) => Some(path),
            Err(error) => {
                warn!("crash reports are kept in memory only: {}: {error}", path.display());
                None
            }
        });
        let mut log = CrashLog { directory, reports: VecDeque::new() };
        for path in log.files().iter().rev().take(REPORTS_MAX) {
            log.reports.extend(read_file(path).ok().as_deref().and_then(parse).map(|(report, _)| report));
        }
        log
    }

    /// Where the files are; `None`: in memory.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Adds a report, and removes the oldest ones.
    pub fn add(&mut self, report: CrashReport) {
        if let Some(directory) = &self.directory
            && let Err(error) = write_file(directory, &report)
        {
            warn!("the crash report cannot be written to {}: {error}", directory.display());
        }
        let files = self.files();
        files.iter().rev().skip(REPORTS_MAX).for_each(|path| drop(std::fs::remove_file(path)));
        self.reports.push_front(report);
        self.reports.truncate(REPORTS_MAX);
    }

    /// The reports as a memfd.
    ///
    /// # Errors
    /// The system's.
    pub fn to_memfd(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("burst-crash-reports", MemfdFlags::CLOEXEC)?);
        for report in &self.reports {
            file.write_all(show(&shortened(report)).as_bytes())?;
        }
        Ok(file.into())
    }

    /// The files of reports, the oldest first: their names begin with the time.
    fn files(&self) -> Vec<PathBuf> {
        let Some(entries) = self.directory.as_ref().and_then(|path| path.read_dir().ok()) else { return Vec::new() };
        let is_report = |path: &PathBuf| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("crash-") && n.ends_with(".txt"))
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_report).collect();
        files.sort();
        files
    }
}

/// Reads the reports that a supervisor has passed.
pub fn read_memfd(fd: OwnedFd) -> Vec<CrashReport> {
    let Ok(text) = read_whole(&File::from(fd), REPORTS_MAX * (SHOWN_BYTES + 1024)) else { return Vec::new() };
    let (mut reports, mut rest) = (Vec::new(), text.as_str());
    while reports.len() < REPORTS_MAX
        && let Some((report, behind)) = parse(rest)
    {
        reports.push(report);
        rest = behind;
    }
    reports
}

/// Reads the text that a fallen daemon has left ([`super::panic`]).
pub fn read_details(fd: OwnedFd) -> String {
    read_whole(&File::from(fd), REPORT_BYTES - 1024).unwrap_or_default()
}

fn read_whole(file: &File, most: usize) -> io::Result<String> {
    let length = (file.metadata()?.len() as usize).min(most);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How a process ended, and where it panicked, without the panic's message, which may contain users' data.
pub fn cause_of(status: ExitStatus, details: &str) -> String {
    let place = details.lines().next().filter(|line| line.starts_with("panic at "));
    place.map_or_else(|| status.to_string(), |place| format!("{place}; {status}"))
}

/// The directory where reports go by default.
fn default_directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(list) = set("STATE_DIRECTORY") {
        return std::env::split_paths(&list).next();
    }
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/burst"));
    }
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    set("XDG_STATE_HOME").map(PathBuf::from).or_else(home).map(|state| state.join("burst"))
}

/// Makes the directory if it is missing, and checks that only this user can write to it.
fn prepare(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = path.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let others_write = found.permissions().mode() & 0o022 != 0;
    if !found.is_dir() || found.uid() != own || others_write {
        return Err(io::Error::other(
            "not a directory that belongs to the daemon's user and that only this user can write",
        ));
    }
    Ok(())
}

fn write_file(directory: &Path, report: &CrashReport) -> io::Result<()> {
    // A second report of the same second gets the next free number.
    for number in 0..REPORTS_MAX {
        let path = directory.join(format!("crash-{:012}-{number}.txt", report.unix_s));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => return file.write_all(show(report).as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(REPORT_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The report with as much of its details as the daemon shows.
fn shortened(report: &CrashReport) -> CrashReport {
    let mut details = report.details.clone();
    let end = (0..=SHOWN_BYTES.min(details.len())).rev().find(|at| details.is_char_boundary(*at));
    details.truncate(end.unwrap_or(0));
    CrashReport { details, ..report.clone() }
}

/// The report as text.
fn show(report: &CrashReport) -> String {
    let CrashReport { unix_s, ran_ms, version, cause, details } = report;
    let (cause, length) = (cause.replace('\n', " "), details.len());
    format!(
        "{FIRST_LINE}\nunix_s: {unix_s}\nran_ms: {ran_ms}\nversion: {version}\ncause: {cause}\nlength: {length}\n\n{details}\n"
    )
}

/// Reads a report; returns what follows it.
fn parse(text: &str) -> Option<(CrashReport, &str)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn report(unix_s: u64) -> CrashReport {
        let details = "panic at engine.rs:7 in thread worker-0\nnot even\n\n0: main\n".to_owned();
        CrashReport { unix_s, ran_ms: 1234, version: "0.1.0".into(), cause: "signal: 6".into(), details }
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("burstd-crashes-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn reports_outlive_the_supervisor_and_are_bounded() {
        let path = directory("kept");
        let mut log = CrashLog::open(Some(&path));
        (0..20).for_each(|at| log.add(report(1000 + at / 2)));
        let log = CrashLog::open(Some(&path));
        assert_eq!(log.files().len(), REPORTS_MAX);
        let passed = read_memfd(log.to_memfd().expect("a memfd"));
        assert_eq!(passed.len(), REPORTS_MAX);
        assert_eq!((&passed[0], passed[1].unix_s, passed[2].unix_s), (&report(1009), 1009, 1008));
        let file = log.files()[0].metadata().expect("a file");
        assert_eq!((file.mode() & 0o777, path.metadata().expect("it").mode() & 0o777), (0o600, 0o700));
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let path = directory("open");
        std::fs::create_dir_all(&path).expect("made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("set");
        let mut log = CrashLog::open(Some(&path));
        log.add(report(1));
        assert_eq!((log.directory(), path.read_dir().expect("it").count()), (None, 0));
        assert_eq!(read_memfd(log.to_memfd().expect("a memfd")), [report(1)], "in memory");
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn long_details_are_cut_and_rubbish_is_no_report() {
        let long = CrashReport { details: "ä".repeat(SHOWN_BYTES), ..report(1) };
        let log = CrashLog { directory: None, reports: VecDeque::from([long, report(2)]) };
        let passed = read_memfd(log.to_memfd().expect("a memfd"));
        assert_eq!((passed[0].details.len(), passed.len()), (SHOWN_BYTES, 2));
        let good = show(&report(1));
        assert_eq!(parse(&good), Some((report(1), "")));
        for text in ["", "\n\n", &good[1..], &good.replace("1234", "-1"), &good.replace("length: ", "length: 9")] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_cause_has_the_place_of_a_panic_but_not_its_message() {
        let status = ExitStatus::from_raw(libc::SIGABRT);
        let cause = cause_of(status, &report(1).details);
        assert!(cause.starts_with("panic at engine.rs:7") && cause.contains("signal: 6"), "{cause}");
        assert!(!cause.contains("not even"));
        assert!(cause_of(ExitStatus::from_raw(libc::SIGSEGV), "").contains("signal: 11"));
    }
}
