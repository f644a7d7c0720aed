//! Starting a daemon for this user, as `burst run` does when none runs.
//!
//! Two `burst run` at the same time must start one daemon: the starter holds a lock file beside the socket, and looks for a
//! daemon again after it has the lock. The daemon must not be a child of the program (a shell's `wait` would wait for it), so a
//! second `burst` ([`DETACH`]) opens a session, starts the daemon and exits. The daemon's log is a file beside the socket: an
//! inherited stderr would keep pipes open long after the program has exited.

use crate::install;
use crate::sockets::{self, FoundDaemon};
use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

/// Hidden command that starts a daemon in a new session.
pub const DETACH: &str = "detach-daemon";
/// Maximum time in seconds until a started daemon serves.
const READY_TIMEOUT_S: i64 = 15;
/// Time after which a daemon started here ends if no program is connected.
const IDLE_EXIT: &str = "30s";
/// Environment variable that overrides it.
const IDLE_EXIT_ENV: &str = "BURST_IDLE_EXIT";

/// What to do about a place where nothing can be written.
const ELSEWHERE: &str = ": name a socket in a directory that can be written by --socket or BURST_SOCKET, or such a directory by XDG_RUNTIME_DIR";

/// Starts a daemon that listens at `socket`, unless another process has started one meanwhile. Returns when it serves.
///
/// # Errors
/// A sentence.
pub fn start(socket: &Path, ports: &[String]) -> Result<(), String> {
    make_directory(socket)?;
    let _lock = lock(socket).map_err(|why| why + ELSEWHERE)?;
    if matches!(sockets::try_socket(socket), FoundDaemon::Alive(_)) {
        return Ok(());
    }
    let program = install::daemon_program()?;
    let log = beside(socket, "log");
    let (ready, announce) = rustix::pipe::pipe().map_err(|e| format!("cannot make a pipe: {e}"))?;
    spawn_detached(&program, socket, ports, &log, &announce)?;
    drop(announce);
    await_ready(ready).map_err(|why| {
        let last = last_line(&log).map_or_else(String::new, |l| format!(": {l}"));
        format!("{} {why}{last}", program.display())
    })
}

/// Creates the socket's directory. Refuses a directory in /tmp that belongs to another user.
fn make_directory(socket: &Path) -> Result<(), String> {
    let Some(directory) = socket.parent().filter(|d| !d.as_os_str().is_empty()) else { return Ok(()) };
    let root = rustix::process::geteuid().is_root();
    let mode = if root { 0o755 } else { 0o700 };
    let made = std::fs::DirBuilder::new().mode(mode).recursive(true).create(directory);
    made.map_err(|e| format!("cannot make {}: {e}{ELSEWHERE}", directory.display()))?;
    let private = directory.file_name().is_some_and(|n| n.to_string_lossy().starts_with("burst"));
    let meta = directory.symlink_metadata().map_err(|e| format!("{}: {e}", directory.display()))?;
    if private && (meta.file_type().is_symlink() || meta.uid() != rustix::process::geteuid().as_raw()) {
        return Err(format!("{} belongs to another user: name a socket with --socket", directory.display()));
    }
    Ok(())
}

/// Path of the file beside the socket with this ending.
fn beside(socket: &Path, ending: &str) -> PathBuf {
    socket.with_extension(ending)
}

/// Waits until no other `burst run` is starting a daemon here.
fn lock(socket: &Path) -> Result<OwnedFd, String> {
    let path = beside(socket, "lock");
    let say = |e: rustix::io::Errno| format!("cannot lock {}: {e}", path.display());
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(say)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(say(e)),
        }
    }
}

/// Runs `burst detach-daemon` with the daemon's command line and waits for it, not for the daemon.
fn spawn_detached(
    program: &Path,
    socket: &Path,
    ports: &[String],
    log: &Path,
    announce: &OwnedFd,
) -> Result<(), String> {
    let burst = std::env::current_exe().map_err(|e| format!("cannot find out where burst itself is: {e}"))?;
    let log_file = open_log(log)?;
    // The pipe was made without CLOEXEC, and this process has one thread: only the daemon inherits it.
    let mut words: Vec<OsString> = vec![program.into(), "--socket".into(), socket.into()];
    words.extend(["--socket-mode".into(), "0600".into()]);
    words.extend(["--ready-fd".into(), announce.as_raw_fd().to_string().into()]);
    if std::env::var_os(IDLE_EXIT_ENV).is_none() {
        words.extend(["--idle-exit".into(), IDLE_EXIT.into()]);
    }
    for port in ports {
        words.extend(["--port".into(), port.into()]);
    }
    let status = std::process::Command::new(burst)
        .arg(DETACH)
        .arg("--")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file)
        .status()
        .map_err(|e| format!("cannot start the daemon: {e}"))?;
    if status.success() { Ok(()) } else { Err(last_line(log).unwrap_or_else(|| "cannot start the daemon".to_owned())) }
}

fn open_log(path: &Path) -> Result<File, String> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    opened.map(File::from).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Waits for the daemon's line in the pipe.
fn await_ready(ready: OwnedFd) -> Result<(), String> {
    let limit = Timespec { tv_sec: READY_TIMEOUT_S, tv_nsec: 0 };
    let polled = loop {
        match poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.map_err(|e| e.to_string())?,
        }
    };
    if polled == 0 {
        return Err(format!("does not serve after {READY_TIMEOUT_S} s"));
    }
    let mut byte = [0];
    match File::from(ready).read(&mut byte) {
        Ok(1) => Ok(()),
        _ => Err("ended at once".to_owned()),
    }
}

fn last_line(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    text.lines().rfind(|l| !l.trim().is_empty()).map(str::to_owned)
}

/// Command line of the hidden command.
pub fn detach_command() -> Command {
    Command::new(DETACH).hide(true).arg(
        Arg::new("line")
            .required(true)
            .num_args(1..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .action(ArgAction::Append)
            .value_parser(clap::value_parser!(OsString)),
    )
}

/// Opens a session, starts the daemon in it and exits, so that the daemon is not a child of the program.
pub fn detach(matches: &ArgMatches) -> ExitCode {
    let mut words = matches.get_many::<OsString>("line").into_iter().flatten();
    let Some(program) = words.next() else { return ExitCode::FAILURE };
    if let Err(e) = rustix::process::setsid() {
        return crate::fail(format!("cannot open a session: {e}"));
    }
    match std::process::Command::new(program).args(words).current_dir("/").spawn() {
        Ok(_) => ExitCode::SUCCESS,
        Err(e) => crate::fail(format!("cannot start {}: {e}", program.to_string_lossy())),
    }
}
