//! Crash reports: when and why a daemon fell, how long it had run, its version, and message and backtrace of its panic.
//!
//! The supervisor keeps the last [`REPORTS_MAX`] as files ([`burst_control::crash_report`]), which only its user can read, in a
//! directory that only its user can write; without such a directory it keeps them in memory. It passes them to the next daemon in
//! a memfd, and the daemon shows them (`burst why daemon`).

use burst_control::crash_report::{REPORT_BYTES, default_directory, files, parse, read_last, show};
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

/// Writes a report, and removes the oldest ones.
fn keep_file(directory: &Path, report: &CrashReport) -> io::Result<()> {
    write_file(directory, report)?;
    files(directory)?.iter().rev().skip(REPORTS_MAX).try_for_each(std::fs::remove_file)
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
