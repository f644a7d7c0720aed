//! The checks that need Burst's libibverbs: they run `burst-pair` with it, under a time limit.

use super::{Finding, fail};
use crate::install::{PAIR_PROGRAM, VERBS_LIBRARY};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a check.
const LIMIT: Duration = Duration::from_secs(20);
/// Interval in which its end is polled.
const PACE: Duration = Duration::from_millis(10);

/// Checks that a program started with Burst's directory first in the search path loads Burst's library, in this version.
pub fn check(directory: &Path) -> Finding {
    let answer = match pair(directory, None, &["--library"]) {
        Ok(answer) => answer,
        Err(finding) => return finding,
    };
    let mut words = answer.split_whitespace();
    let (path, abi) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let ours = directory.join(VERBS_LIBRARY);
    if Path::new(path).canonicalize().ok() != ours.canonicalize().ok() {
        return fail(
            format!("programs load {path} instead of {}", ours.display()),
            "start programs with burst run; an LD_PRELOAD or an RPATH in the program comes before LD_LIBRARY_PATH",
        );
    }
    let want = burst_shm::ABI_VERSION.to_string();
    if abi != want {
        return fail(
            format!("{path} speaks version {abi} of the protocol, this program {want}"),
            "install library, daemon and command line from one build",
        );
    }
    Finding::Ok(format!("{path}, protocol version {abi}"))
}

/// Moves bytes through an RC queue pair of the device and compares them.
pub fn transfer(directory: &Path, socket: &Path, device: &str) -> Finding {
    match pair(directory, Some(socket), &[device]) {
        Ok(answer) => Finding::Ok(answer),
        Err(finding) => finding,
    }
}

/// Runs `burst-pair`. Returns the last line of its stdout, or the finding.
fn pair(directory: &Path, socket: Option<&Path>, args: &[&str]) -> Result<String, Finding> {
    let program = directory.join(PAIR_PROGRAM);
    let mut command = Command::new(&program);
    command.args(args).env("LD_LIBRARY_PATH", directory).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(socket) = socket {
        command.env(burst_control::socket_path::SOCKET_ENV, socket);
    }
    let again = "run make build, or install Burst again";
    let mut child = command.spawn().map_err(|e| fail(format!("cannot run {}: {e}", program.display()), again))?;
    let began = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if began.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(fail(
                format!("no answer after {} s", LIMIT.as_secs()),
                "look at burst stats and the daemon's log",
            ));
        }
        std::thread::sleep(PACE);
    }
    let output = child.wait_with_output().map_err(|e| fail(e.to_string(), again))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(out.lines().last().unwrap_or_default().to_owned());
    }
    let why = err.lines().last().unwrap_or("it answer nothing").to_owned();
    Err(fail(format!("{why} ({})", output.status), "burst why CODE explains a vendor_err; then burst stats"))
}
