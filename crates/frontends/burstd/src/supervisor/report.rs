//! Crash reports: when and why a daemon fell, how long it had run, its version, and message and backtrace of its panic.
//!
//! The supervisor keeps [`REPORTS_MAX`] of them as files ([`burst_control::crash_report`]), which only its user can read, in a
//! directory that only its user can write; without such a directory it keeps them in memory. Of falls with one cause the first
//! and the last stay longest, so that a daemon that falls again and again leaves those with other causes. The supervisor passes
//! them to the next daemon in a memfd, and the daemon shows them (`burst why daemon`).

use burst_control::crash_report::{REPORT_BYTES, default_directory, files, parse, read, read_last, show};
use burst_control::monitor::CrashReport;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tracing::warn;

/// Reports that are kept.
pub const REPORTS_MAX: usize = 8;
/// Details of a daemon that fell without a panic.
const NO_PANIC: &str =
    "no panic: the cause is a signal, of the processor, of the kernel when memory ran out, or of another process\n";
/// Longest details that the daemon shows, in bytes: all reports fit one control message.
const SHOWN_BYTES: usize = 6 << 10;

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
        let kept = directory.as_deref().and_then(|path| read_last(path, REPORTS_MAX).ok());
        CrashLog { directory, reports: kept.unwrap_or_default().into() }
    }

    /// Where the files are; `None`: in memory.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Adds a report, and removes the oldest ones.
    pub fn add(&mut self, report: CrashReport) {
        if let Some(directory) = &self.directory
            && let Err(error) = keep_file(directory, &report)
        {
            warn!("the crash report cannot be written to {}: {error}", directory.display());
        }
        self.reports.push_front(report);
        while self.reports.len() > REPORTS_MAX {
            let causes: Vec<&str> = self.reports.iter().map(|report| report.cause.as_str()).collect();
            self.reports.remove(spare(&causes));
        }
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
    let details = read_whole(&File::from(fd), REPORT_BYTES - 1024).unwrap_or_default();
    if details.is_empty() { NO_PANIC.to_owned() } else { details }
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

/// The report that can be spared, of more than two; `causes` are those of all, the newest first. If several have one cause, it is
/// the second of those of the most frequent one, so that its first fall and its last ones stay; otherwise the oldest.
fn spare(causes: &[&str]) -> usize {
    let count = |cause: &str| causes.iter().filter(|other| **other == cause).count();
    let most = causes.iter().copied().max_by_key(|cause| count(cause)).unwrap_or_default();
    let own = (0..causes.len()).rev().filter(|at| causes[*at] == most);
    // The first one of two stays, too: the second is the last.
    let most_often = count(most);
    let second = own.skip(1).find(|_| most_often > 2);
    second.unwrap_or(causes.len().saturating_sub(1))
}

/// Writes a report, and removes those that can be spared. Files that are no reports go first.
fn keep_file(directory: &Path, report: &CrashReport) -> io::Result<()> {
    write_file(directory, report)?;
    let mut kept = Vec::new();
    for path in files(directory)?.into_iter().rev() {
        match read(&path) {
            Some(report) => kept.push((path, report.cause)),
            None => std::fs::remove_file(path)?,
        }
    }
    while kept.len() > REPORTS_MAX {
        let causes: Vec<&str> = kept.iter().map(|(_, cause)| cause.as_str()).collect();
        std::fs::remove_file(kept.remove(spare(&causes)).0)?;
    }
    Ok(())
}

/// Writes a file that gets its name when it is whole: one that could not be written is no report.
fn write_file(directory: &Path, report: &CrashReport) -> io::Result<()> {
    let unfinished = directory.join("unfinished");
    let _ = std::fs::remove_file(&unfinished);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    let written = written.and_then(|mut file| file.write_all(show(report).as_bytes()));
    // A second report of the same second gets the next free number.
    let name = |number| directory.join(format!("crash-{:012}-{number}.txt", report.unix_s));
    let is_free = |path: &PathBuf| !path.exists();
    let named = written.and_then(|()| match (0..2 * REPORTS_MAX).map(name).find(is_free) {
        Some(path) => std::fs::rename(&unfinished, path),
        None => Err(io::Error::from(io::ErrorKind::AlreadyExists)),
    });
    if named.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    named
}

/// The report with as much of its details as the daemon shows.
fn shortened(report: &CrashReport) -> CrashReport {
    let mut details = report.details.clone();
    let end = (0..=SHOWN_BYTES.min(details.len())).rev().find(|at| details.is_char_boundary(*at));
    details.truncate(end.unwrap_or(0));
    CrashReport { details, ..report.clone() }
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
        assert_eq!(files(&path).expect("read").len(), REPORTS_MAX);
        let passed = read_memfd(log.to_memfd().expect("a memfd"));
        assert_eq!(passed.len(), REPORTS_MAX);
        assert_eq!((&passed[0], passed[1].unix_s, passed[2].unix_s), (&report(1009), 1009, 1008));
        let file = files(&path).expect("read")[0].metadata().expect("a file");
        assert_eq!((file.mode() & 0o777, path.metadata().expect("it").mode() & 0o777), (0o600, 0o700));
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn falls_of_one_cause_leave_the_reports_of_others_and_the_first_of_their_own() {
        let path = directory("causes");
        let mut log = CrashLog::open(Some(&path));
        let of = |unix_s, cause: &str| CrashReport { cause: cause.into(), ..report(unix_s) };
        ["a", "b", "c"].into_iter().enumerate().for_each(|(at, cause)| log.add(of(at as u64, cause)));
        (10..60).for_each(|at| log.add(of(at, "again")));
        for log in [&log, &CrashLog::open(Some(&path))] {
            let kept: Vec<u64> = log.reports.iter().map(|report| report.unix_s).collect();
            assert_eq!(kept, [59, 58, 57, 56, 10, 2, 1, 0]);
        }
        // Different ones: the oldest goes.
        (0..6).for_each(|at| log.add(of(100 + at, &at.to_string())));
        assert_eq!(log.reports.back().map(|report| report.unix_s), Some(10), "{:?}", log.reports);
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn files_that_are_no_reports_hide_none() {
        let path = directory("empty");
        let mut log = CrashLog::open(Some(&path));
        log.add(report(1));
        (0..2 * REPORTS_MAX)
            .for_each(|n| _ = File::create(path.join(format!("crash-{:012}-0.txt", 100 + n))).expect("made"));
        assert_eq!(CrashLog::open(Some(&path)).reports, [report(1)]);
        log.add(report(2));
        assert_eq!(files(&path).expect("read").len(), 2, "they are removed");
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_fall_without_a_panic_says_so() {
        let empty = memfd_create("empty", MemfdFlags::CLOEXEC).expect("a memfd");
        assert!(read_details(empty).starts_with("no panic: "));
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
    fn long_details_are_cut() {
        let long = CrashReport { details: "ä".repeat(SHOWN_BYTES), ..report(1) };
        let log = CrashLog { directory: None, reports: VecDeque::from([long, report(2)]) };
        let passed = read_memfd(log.to_memfd().expect("a memfd"));
        assert_eq!((passed[0].details.len(), passed.len()), (SHOWN_BYTES, 2));
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
