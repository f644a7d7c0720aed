//! The signals that end the daemon, as bytes in a pipe that the event loop polls.

use std::fs;
use std::os::fd::OwnedFd;

/// A pipe that gets a byte for SIGTERM and SIGINT, and for SIGHUP (the terminal closes) unless `nohup` has made the process
/// ignore it.
pub fn signal_pipe() -> std::io::Result<OwnedFd> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (read, write) = std::os::unix::net::UnixStream::pair()?;
    read.set_nonblocking(true)?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        if signal != SIGHUP || !is_ignored(&status, signal) {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
    }
    Ok(read.into())
}

/// Whether a process ignores a signal, by its `/proc/PID/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_recognised() {
        use signal_hook::consts::{SIGHUP, SIGTERM};
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && !is_ignored(status, SIGTERM) && !is_ignored("", SIGHUP));
    }
}
