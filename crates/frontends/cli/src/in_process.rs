//! `burst run --in-process` and `--lent`: the program gets a host of its own ([`burst_control::in_process`]).
//!
//! The host is opened once before, in a process of its own: if that fails, the user reads why before the program starts, and if
//! it works, it says what the host files show. A thread of a host must not exist in `burst` itself, because a process with
//! threads cannot enter a user namespace.

use crate::host_files::DeviceSnapshot;
use burst_client::Daemon;
use burst_control::in_process::{IN_PROCESS_MODE, MODE_ENV};
use burst_control::{Counter, DeviceInfo};
use clap::Command;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The hidden command that opens a host in this process and prints what it shows.
pub const SNAPSHOT: &str = "in-process-snapshot";
/// Environment variable of the ports.
const PORT_ENV: &str = "BURST_PORT";

/// What the host files show, as it travels.
type Shown = (Vec<DeviceInfo>, Vec<Counter>);

/// The grammar of [`SNAPSHOT`].
pub fn snapshot_command() -> Command {
    Command::new(SNAPSHOT).hide(true).about("Open a host in this process, and print its devices as JSON")
}

/// Carries [`SNAPSHOT`] out.
pub fn snapshot() -> ExitCode {
    let taken = Daemon::in_process().map_err(|e| e.to_string()).and_then(|mut host| DeviceSnapshot::take(&mut host));
    match taken.and_then(|DeviceSnapshot { devices, counters }| {
        serde_json::to_string::<Shown>(&(devices, counters)).map_err(|e| e.to_string())
    }) {
        Ok(text) => crate::finish(&text),
        Err(sentence) => crate::fail(sentence),
    }
}

/// Opens a host as the program will, and returns what it shows.
///
/// # Errors
/// The host's sentence.
pub fn rehearse(libraries: &Path, variables: &[(&'static str, OsString)]) -> Result<DeviceSnapshot, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find out where burst itself is: {e}"))?;
    let mut command = std::process::Command::new(program);
    command.arg(SNAPSHOT).envs(variables.iter().cloned()).env("LD_LIBRARY_PATH", libraries);
    let output = command.output().map_err(|e| format!("cannot start burst itself: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.trim().lines().last().unwrap_or("the host in a process of its own has failed");
        return Err(last.trim_start_matches("burst: ").to_owned());
    }
    let (devices, counters) = serde_json::from_slice::<Shown>(&output.stdout).map_err(|e| e.to_string())?;
    Ok(DeviceSnapshot { devices, counters })
}

/// The environment variables of a program with a host of its own.
pub fn variables(ports: &[String]) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(MODE_ENV, OsString::from(IN_PROCESS_MODE))];
    if !ports.is_empty() {
        variables.push((PORT_ENV, ports.join(" ").into()));
    }
    variables
}
