//! A real daemon for tests, on the loopback interface of its own network namespace. Where no namespace can be made (no root, no
//! user namespaces), or `burstd` is not built (`cargo build -p burstd`), tests print a sentence and pass.
//!
//! The tests of libibverbs include this file by its path: cargo has no other way to share the code of tests without a crate.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time limit of a test for anything that must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The process, which ends after the last context is closed, and its socket.
struct TestDaemon {
    _process: Child,
    socket: PathBuf,
}

/// Starts the daemon, once for all tests of this process, and names its socket in the environment. `None`: it cannot be started.
pub fn socket() -> Option<&'static Path> {
    static DAEMON: OnceLock<Option<TestDaemon>> = OnceLock::new();
    DAEMON.get_or_init(start).as_ref().map(|d| d.socket.as_path())
}

fn start() -> Option<TestDaemon> {
    // The tests use the host in this process then: scripts/test-in-process runs them on an address of their own.
    if burst_control::in_process::is_chosen() {
        let idle = Command::new("true").spawn().ok()?;
        return Some(TestDaemon { _process: idle, socket: PathBuf::new() });
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    let built = ["debug", "release"].iter().map(|p| target.join(p).join("burstd")).find(|p| p.exists());
    // BURST_DAEMON names a daemon that was built otherwise than the test: without the sanitizer, or optimised.
    let Some(burstd) = std::env::var_os("BURST_DAEMON").map(PathBuf::from).or(built) else {
        eprintln!("skipped: burstd is not built");
        return None;
    };
    let socket = std::env::temp_dir().join(format!("burst-live-{}.sock", std::process::id()));
    // The idle time is longer than pauses between tests on a busy machine, during which no context is open.
    let script = "ip link set lo up && exec \"$0\" --socket \"$1\" --port udp:dev=lo --idle-exit 10s --log-level warn";
    // SAFETY: asks for this process's user.
    let root = unsafe { libc::geteuid() } == 0;
    let mut command = Command::new("unshare");
    command.args(if root { &["-n"][..] } else { &["-rn"][..] }).args(["sh", "-c", script]).arg(burstd).arg(&socket);
    let mut child = command.stdin(Stdio::null()).spawn().ok()?;
    let begin = Instant::now();
    while !socket.exists() {
        if begin.elapsed() > DEADLINE || child.try_wait().ok()?.is_some() {
            eprintln!("skipped: no daemon in a namespace of its own");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: done once, before any test reads the environment.
    unsafe { std::env::set_var("BURST_SOCKET", &socket) };
    Some(TestDaemon { _process: child, socket })
}
