//! The supervisor's loop: start the daemon, keep its descriptors, forward signals, start a successor.

use super::message::{SupervisorMessage, receive, send};
use super::report::{self, CrashLog};
use super::restarts::RestartPolicy;
use super::store::{REPORTS_DIRECTORY, SUPERVISOR_FD};
use super::{LISTENER, PANIC, REPORTS};
use crate::signals::signal_pipe;
use crate::systemd;
use burst_config::Config;
use burst_control::monitor::CrashReport;
use burst_host::listener::{bind_socket, remove_socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// Most descriptors that the supervisor keeps.
const DESCRIPTORS_MAX: usize = 4096;
/// The supervisor's own program, also if its file was replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The supervisor and what it keeps.
struct Supervisor<'a> {
    config: &'a Config,
    signals: OwnedFd,
    descriptors: BTreeMap<String, OwnedFd>,
    log: CrashLog,
    /// The settings under which the daemon opened its sockets.
    settings: String,
    policy: RestartPolicy,
    crashes: u64,
    /// Whether a daemon has ever served.
    has_served: bool,
    /// Whether a signal asked the daemon to end.
    asked_to_end: bool,
    /// The daemon's end of the ready descriptor is inherited; this one is closed when the daemon serves.
    ready_fd: Option<OwnedFd>,
}

/// A running daemon.
struct RunningDaemon {
    child: Child,
    /// Readable when the process has ended.
    ended: OwnedFd,
    /// `None` once the daemon has closed its end.
    channel: Option<OwnedFd>,
    since: Instant,
}

/// Runs daemons until one ends as it should, or cannot start. Returns the exit code of the last one.
///
/// # Errors
/// A sentence: the control socket cannot be bound, no process can be started.
pub fn supervise(config: &Config) -> Result<ExitCode, String> {
    burst_host::descriptors::raise_limit();
    let signals = signal_pipe().map_err(|e| format!("cannot take signals: {e}"))?;
    let passed = systemd::listening_socket(&systemd::own_environment)?;
    let owns_file = passed.is_none();
    let listener = passed.map_or_else(|| bind_socket(&config.socket, config.socket_mode), Ok)?;
    let mut supervisor = Supervisor {
        config,
        signals,
        log: CrashLog::open(config.state_dir.as_deref()),
        descriptors: BTreeMap::from([(LISTENER.to_owned(), listener)]),
        settings: String::new(),
        policy: RestartPolicy::default(),
        crashes: 0,
        has_served: false,
        asked_to_end: false,
        ready_fd: config.ready_fd.and_then(crate::inherited),
    };
    supervisor.pass_reports();
    let result = supervisor.run();
    let is_left = !matches!(result, Ok(code) if code == ExitCode::SUCCESS) && supervisor.config.socket.exists();
    if is_left && owns_file {
        remove_socket(&supervisor.config.socket);
    }
    result
}

impl Supervisor<'_> {
    fn run(&mut self) -> Result<ExitCode, String> {
        loop {
            let daemon = self.start().map_err(|e| format!("cannot start the daemon: {e}"))?;
            let since = daemon.since;
            let status = self.watch(daemon).map_err(|e| format!("cannot watch the daemon: {e}"))?;
            if status.success() || self.asked_to_end || !self.has_served {
                return Ok(exit_code(status));
            }
            let ran = since.elapsed();
            self.note_crash(status, ran);
            let pause = self.policy.crashed(ran);
            warn!(
                crashes = self.crashes,
                pause_s = pause.as_secs(),
                "the daemon fell after {} s: {status}",
                ran.as_secs()
            );
            if !pause.is_zero() && self.signal_within(pause) {
                return Ok(exit_code(status));
            }
        }
    }

    /// Keeps a report of a crash, for the successor as well.
    fn note_crash(&mut self, status: ExitStatus, ran: Duration) {
        self.crashes += 1;
        let details = self.descriptors.remove(PANIC).map(report::read_details).unwrap_or_default();
        self.log.add(CrashReport {
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            ran_ms: ran.as_millis() as u64,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cause: report::cause_of(status, &details),
            details,
        });
        self.pass_reports();
    }

    /// Makes the reports and their directory known to the next daemon.
    fn pass_reports(&mut self) {
        match self.log.to_memfd() {
            Ok(fd) => drop(self.descriptors.insert(REPORTS.to_owned(), fd)),
            Err(error) => warn!("the daemon cannot show crash reports: {error}"),
        }
    }

    /// Starts a daemon: this program with the same arguments. It has a process group of its own, so that a signal from the
    /// terminal reaches it once, by the supervisor.
    fn start(&mut self) -> std::io::Result<RunningDaemon> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        fcntl_setfd(&theirs, FdFlags::empty())?;
        let mut command = Command::new(OWN_PROGRAM);
        systemd::pass_on(&systemd::own_environment, &mut command);
        let child = command
            .arg0("burstd")
            .args(std::env::args_os().skip(1))
            .env(SUPERVISOR_FD, theirs.as_raw_fd().to_string())
            .envs(self.log.directory().map(|path| (REPORTS_DIRECTORY, path)))
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        info!(pid = child.id(), "started the daemon");
        Ok(RunningDaemon { child, ended, channel: Some(ours), since: Instant::now() })
    }

    /// Serves the daemon until it has ended.
    fn watch(&mut self, mut daemon: RunningDaemon) -> std::io::Result<ExitStatus> {
        loop {
            let (signalled, ended, talked) = {
                let mut fds =
                    vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&daemon.ended, PollFlags::IN)];
                fds.extend(daemon.channel.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
                (is_ready(0), is_ready(1), is_ready(2))
            };
            if signalled {
                self.forward_signal(&daemon.child);
            }
            // What the daemon has sent counts also after its end.
            if talked || ended {
                self.take_messages(&mut daemon);
            }
            if ended {
                return daemon.child.wait();
            }
        }
    }

    fn forward_signal(&mut self, child: &Child) {
        let mut bytes = [0; 64];
        let count = rustix::io::read(&self.signals, &mut bytes).unwrap_or(0);
        for _ in 0..count {
            self.asked_to_end = true;
            // It fails only if the daemon has ended.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// Waits. True when a signal came that asks to end.
    fn signal_within(&mut self, pause: Duration) -> bool {
        let timeout = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&timeout)), Ok(1))
    }

    fn take_messages(&mut self, daemon: &mut RunningDaemon) {
        while let Some(channel) = &daemon.channel {
            match receive(channel) {
                Ok(Some((message, fd))) => {
                    if let Err(error) = self.obey(message, fd, channel) {
                        warn!("the daemon does not take its descriptors: {error}");
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(None) | Err(_) => daemon.channel = None,
            }
        }
    }

    fn obey(&mut self, message: SupervisorMessage, fd: Option<OwnedFd>, channel: &OwnedFd) -> Result<(), Errno> {
        match message {
            SupervisorMessage::Setup(settings) => {
                if settings != self.settings {
                    // What is of no use with other settings: sockets and tombstones.
                    self.descriptors.retain(|name, _| [LISTENER, REPORTS].contains(&name.as_str()));
                    self.settings = settings;
                }
                for (name, fd) in &self.descriptors {
                    send(channel, &SupervisorMessage::Stored(name.clone()), Some(fd.as_fd()))?;
                }
                send(channel, &SupervisorMessage::End(self.crashes), None)?;
            }
            SupervisorMessage::Store(name) => {
                if let Some(fd) = fd.filter(|_| self.descriptors.len() < DESCRIPTORS_MAX) {
                    self.descriptors.insert(name, fd);
                }
            }
            SupervisorMessage::Remove(name) => drop(self.descriptors.remove(&name)),
            SupervisorMessage::Serving => {
                self.has_served = true;
                self.ready_fd = None;
            }
            // Messages of the supervisor.
            SupervisorMessage::Stored(_) | SupervisorMessage::End(_) => {}
        }
        Ok(())
    }
}

/// The exit code of a process: its own, or 128 and the number of the signal that killed it, as shells show it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
