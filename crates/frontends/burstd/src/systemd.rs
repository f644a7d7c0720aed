//! What systemd, or another supervisor that speaks its protocols, passes to the daemon by environment variables.
//!
//! | variables | meaning | manual |
//! |---|---|---|
//! | `LISTEN_FDS`, `LISTEN_PID` | the control socket listens already, as descriptor 3 | sd_listen_fds(3) |
//! | `NOTIFY_SOCKET` | where notifications go: `READY=1`, `STOPPING=1`, `STATUS=…`, `WATCHDOG=1` | sd_notify(3) |
//! | `WATCHDOG_USEC`, `WATCHDOG_PID` | the daemon is killed unless it sends `WATCHDOG=1` this often | sd_watchdog_enabled(3) |
//!
//! A socket that the supervisor has bound has two advantages: a program sees that root listens, although the daemon runs as
//! another user, and programs that connect while the daemon starts again wait in its backlog. The daemon does not remove the file
//! of such a socket.
//!
//! `WATCHDOG=1` says that the event loop runs and that each worker has made a pass since the notification before. Variables whose
//! process id is another process's are ignored, for every child inherits them. A process between supervisor and daemon that
//! passes them on removes the process ids.

use burst_base::Nanos;
use burst_control::supervisor::SupervisorNotifier;
use burst_host::Host;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::warn;

/// The first descriptor that systemd passes.
const LISTEN_FDS_START: RawFd = 3;
/// Minimum of the time between two notifications of the watchdog.
const INTERVAL_MIN: Nanos = Nanos::from_ms(10);

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process.
pub fn own_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn number(env: Env<'_>, name: &str) -> Option<u64> {
    env(name)?.to_str()?.parse().ok()
}

/// Whether the variable `name`, a process id, is this process's or not set.
fn is_for_us(env: Env<'_>, name: &str) -> bool {
    env(name).is_none() || number(env, name) == Some(std::process::id().into())
}

/// Whether the supervisor has bound the control socket. In the daemon under `--guarded` the descriptor itself is with the process
/// that guards it.
pub fn passes_socket(env: Env<'_>) -> bool {
    number(env, "LISTEN_FDS").unwrap_or(0) > 0 && is_for_us(env, "LISTEN_PID")
}

/// Makes the variables of this process hold for the child that `command` starts.
pub fn pass_on(env: Env<'_>, command: &mut Command) {
    for name in ["LISTEN_PID", "WATCHDOG_PID"] {
        if is_for_us(env, name) {
            command.env_remove(name);
        }
    }
}

/// The control socket that the supervisor has bound; `None` if it has passed none.
///
/// # Errors
/// A sentence: the supervisor has passed several sockets, or one of another kind.
pub fn listening_socket(env: Env<'_>) -> Result<Option<OwnedFd>, String> {
    if !passes_socket(env) {
        return Ok(None);
    }
    let count = number(env, "LISTEN_FDS").unwrap_or(0);
    if count > 1 {
        return Err(format!("LISTEN_FDS is {count}: the daemon has one control socket, so pass one"));
    }
    // SAFETY: the supervisor passes this descriptor to this process alone, and this function is called once.
    let socket = unsafe { OwnedFd::from_raw_fd(LISTEN_FDS_START) };
    check_listener(&socket)?;
    Ok(Some(socket))
}

/// Checks a socket of the supervisor and sets its flags.
fn check_listener(socket: &OwnedFd) -> Result<(), String> {
    let kind =
        sockopt::socket_type(socket).map_err(|e| format!("descriptor 3, which LISTEN_FDS names, is no socket: {e}"))?;
    let domain = sockopt::socket_domain(socket).ok();
    if kind != SocketType::SEQPACKET
        || domain != Some(AddressFamily::UNIX)
        || sockopt::socket_acceptconn(socket) != Ok(true)
    {
        return Err("the socket that LISTEN_FDS names is no listening SOCK_SEQPACKET Unix socket: use \
                    ListenSequentialPacket= in the socket unit"
            .into());
    }
    let cannot = |e: rustix::io::Errno| format!("cannot use the socket that LISTEN_FDS names: {e}");
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).map_err(cannot)?;
    rustix::io::ioctl_fionbio(socket, true).map_err(cannot)
}

/// Sends the daemon's notifications to the supervisor; does nothing without one.
#[derive(Debug, Default)]
pub struct Notifier {
    to: SupervisorNotifier,
}

impl Notifier {
    /// A notifier for the address in `NOTIFY_SOCKET`. An address that cannot be used is logged.
    pub fn new(env: Env<'_>) -> Notifier {
        let to = SupervisorNotifier::new(env("NOTIFY_SOCKET")).unwrap_or_else(|error| {
            warn!("NOTIFY_SOCKET cannot be used: {error}");
            SupervisorNotifier::default()
        });
        Notifier { to }
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.to.notify(message) {
            warn!("the supervisor was not notified: {error}");
        }
    }

    /// The daemon serves.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The daemon ends.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }
}

/// Notifies the supervisor's watchdog.
#[derive(Debug)]
pub struct WatchdogNotifier {
    interval: Nanos,
    /// When the workers are looked at next.
    due: Nanos,
    /// By worker: whether it has made a pass since it was asked.
    passed: Vec<Arc<AtomicBool>>,
    /// Whether it has been logged that a worker stands still.
    reported: bool,
}

impl WatchdogNotifier {
    /// The watchdog that `WATCHDOG_USEC` asks for; it is notified twice in that time.
    pub fn new(env: Env<'_>, now: Nanos, workers: usize) -> Option<WatchdogNotifier> {
        let limit_us = number(env, "WATCHDOG_USEC").filter(|us| *us > 0 && is_for_us(env, "WATCHDOG_PID"))?;
        let interval = Nanos(limit_us.saturating_mul(1_000) / 2).max(INTERVAL_MIN);
        let passed = (0..workers).map(|_| Arc::new(AtomicBool::new(true))).collect();
        Some(WatchdogNotifier { interval, due: now, passed, reported: false })
    }

    /// When [`WatchdogNotifier::run`] must be called.
    pub fn due_at(&self) -> Nanos {
        self.due
    }

    /// Notifies if it is time and each worker has made a pass since the last time; then asks the workers for another.
    pub fn run(&mut self, host: &Host, notifier: &Notifier) {
        let now = host.now();
        if now < self.due {
            return;
        }
        self.due = now + self.interval;
        // Relaxed: the flag alone is shared.
        if let Some(worker) = self.passed.iter().position(|passed| !passed.load(Ordering::Relaxed)) {
            if !std::mem::replace(&mut self.reported, true) {
                warn!(
                    worker,
                    "a worker has made no pass for {} ms: the watchdog is not notified",
                    self.interval.0 / 1_000_000
                );
            }
            return;
        }
        self.reported = false;
        notifier.send("WATCHDOG=1");
        for (worker, passed) in self.passed.iter().enumerate() {
            passed.store(false, Ordering::Relaxed);
            let passed = passed.clone();
            host.post(worker, move |_, _| passed.store(true, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvFlags, SocketAddrUnix, SocketFlags, bind, listen, recv, socket_with};

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
    }

    fn unix(kind: SocketType, name: &[u8]) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&socket, &SocketAddrUnix::new_abstract_name(name).expect("an address")).expect("bound");
        socket
    }

    #[test]
    fn notifications_arrive_at_an_abstract_name_and_at_a_path() {
        let name = format!("burst-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let at_path = std::os::unix::net::UnixDatagram::bind(&path).expect("bound");
        let abstract_name = format!("@{name}");
        for (address, socket) in [
            (abstract_name.as_str(), unix(SocketType::DGRAM, name.as_bytes())),
            (path.to_str().expect("UTF-8"), at_path.into()),
        ] {
            let notifier = Notifier::new(&env(&[("NOTIFY_SOCKET", address)]));
            notifier.ready("serving");
            let mut message = [0; 64];
            let (len, _) = recv(&socket, &mut message, RecvFlags::DONTWAIT).expect("a message");
            assert_eq!(&message[..len], b"READY=1\nSTATUS=serving");
        }
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn without_a_supervisor_nothing_happens() {
        let none = env(&[]);
        Notifier::new(&none).stopping("x");
        Notifier::new(&env(&[("NOTIFY_SOCKET", "@without-a-listener")])).ready("x");
        assert!(listening_socket(&none).expect("no socket").is_none());
        assert!(WatchdogNotifier::new(&none, Nanos(0), 1).is_none());
    }

    #[test]
    fn variables_for_another_process_are_ignored() {
        let other = [("LISTEN_FDS", "1"), ("LISTEN_PID", "1"), ("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")];
        assert!(listening_socket(&env(&other)).expect("for another").is_none());
        assert!(WatchdogNotifier::new(&env(&other), Nanos(0), 1).is_none());
        let own = std::process::id().to_string();
        let ours = [("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", own.as_str())];
        let watchdog = WatchdogNotifier::new(&env(&ours), Nanos(7), 2).expect("ours");
        assert_eq!((watchdog.interval, watchdog.due_at(), watchdog.passed.len()), (Nanos::from_ms(500), Nanos(7), 2));
        assert!(listening_socket(&env(&[("LISTEN_FDS", "2")])).expect_err("one socket").contains("pass one"));
    }

    #[test]
    fn only_a_listening_socket_of_the_right_kind_is_taken() {
        let name = |kind: &str| format!("burst-listen-{kind}-{}", std::process::id()).into_bytes();
        let stream = unix(SocketType::STREAM, &name("stream"));
        listen(&stream, 1).expect("listens");
        let idle = unix(SocketType::SEQPACKET, &name("idle"));
        for wrong in [stream, idle] {
            assert!(check_listener(&wrong).expect_err("refused").contains("ListenSequentialPacket="));
        }
        let right = unix(SocketType::SEQPACKET, &name("right"));
        listen(&right, 1).expect("listens");
        check_listener(&right).expect("taken");
        assert_eq!(rustix::net::accept(&right).map(drop), Err(rustix::io::Errno::AGAIN), "it does not block");
        let file = std::fs::File::open("/dev/null").expect("opened").into();
        assert!(check_listener(&file).expect_err("no socket").contains("is no socket"));
    }
}
