//! The capabilities of a peer process, read from `/proc` at the moment at which they are needed, as `capable()` does in the
//! kernel.
//!
//! The process is named by its pidfd. Its number comes from the pidfd's `fdinfo`, which counts in the PID namespace of the
//! mounted `/proc` and not in this process's. The pidfd is polled after the files were read: if the process is still alive, its
//! number was its own all the time, so the files are its files.
//!
//! A capability counts if
//!
//! * it is in `CapEff`, which holds the effective capabilities of the process's first thread;
//! * the process still has the user id with which it connected, and is in this process's user namespace: a process that
//!   makes a namespace of its own has all capabilities, but only there;
//! * the process is dumpable, or root's. A program that gets capabilities from its file or its set-user-ID bit is not: without
//!   this, a process could connect, leave the socket to a child and run `ping`.

use crate::credentials::{self, PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A capability (capabilities(7)) that a request of a program may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Binding to privileged ports.
    NetBindService = 10,
    /// Privileged Q_Keys.
    NetRaw = 13,
}

impl Capability {
    /// Its name in capabilities(7).
    pub const fn name(self) -> &'static str {
        match self {
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetRaw => "CAP_NET_RAW",
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// The process that connected.
#[derive(Debug)]
pub struct PeerProcess {
    uid: u32,
    /// Number in the PID namespace of `/proc`; 0: not visible there.
    pid: u32,
    pidfd: OwnedFd,
}

impl PeerProcess {
    /// The peer of a connected Unix socket. `None` if the process has ended, or is outside this PID namespace on a kernel
    /// before 6.5.
    ///
    /// Before Linux 6.5 the pidfd is opened by number: if the peer has ended since it connected, the number may be another
    /// process's by now. That process counts only if it has the same user id.
    pub fn of(socket: impl AsFd) -> Option<PeerProcess> {
        let PeerCredentials { pid, uid } = credentials::of(&socket).ok()?;
        let pidfd = credentials::pidfd_of(&socket).ok().or_else(|| {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        })?;
        let pid = pid_in_proc(pidfd.as_fd()).unwrap_or(0);
        Some(PeerProcess { uid, pid, pidfd })
    }

    /// The process's number in the PID namespace of `/proc`; 0: the process is not visible there.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A descriptor that is readable when the process has exited.
    pub fn exit(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether the process has a capability now.
    ///
    /// # Errors
    /// Why it has not, as the end of a sentence.
    pub fn check(&self, capability: Capability) -> Result<(), String> {
        if self.pid == 0 {
            return Err("the program's process is not visible in the daemon's /proc".into());
        }
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        let found = self.check_files(&directory, capability);
        // Only now it is known whose files these were.
        if self.has_exited() { Err("the process that connected has exited".into()) } else { found }
    }

    fn check_files(&self, directory: &Path, capability: Capability) -> Result<(), String> {
        let unreadable = |e: io::Error| format!("{} cannot be read: {e}", directory.display());
        let status = directory.join("status");
        // Before and after: a process may run another program at any moment.
        let before = std::fs::metadata(&status).map_err(unreadable)?.uid();
        let text = std::fs::read_to_string(&status).map_err(unreadable)?;
        let after = std::fs::metadata(&status).map_err(unreadable)?.uid();
        let owner = if before == self.uid { after } else { before };
        if !is_in_this_user_namespace(directory) {
            return Err("the program is in another user namespace".into());
        }
        ProcessStatus::parse(&text).ok_or("its status has an unknown form")?.check(self.uid, owner, capability)
    }

    /// Whether the process is in this process's namespace of a kind, as `/proc/PID/ns` names it. False if that cannot be seen.
    pub fn shares_namespace(&self, kind: &str) -> bool {
        let namespace = |of: String| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
        let theirs = namespace(self.pid.to_string());
        let is_shared = self.pid != 0 && theirs.is_some() && theirs == namespace("self".into());
        // Only now it is known whose namespace it was.
        is_shared && !self.has_exited()
    }

    /// Whether the process has exited. As long as it has not, its number is its own.
    pub fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)) != Ok(0)
    }
}

/// Whether this process has a capability now.
pub fn own_capability(capability: Capability) -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ProcessStatus::parse(&text).is_some_and(|status| status.effective & capability.bit() != 0)
}

/// Whether this process has more rights than the user who started it (set-user-ID, file capabilities), so that it must not
/// believe its environment (`AT_SECURE`, as in `secure_getenv`).
pub fn is_secure_execution() -> bool {
    // SAFETY: reads a number of the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Fields of `/proc/PID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessStatus {
    /// Effective user id.
    euid: u32,
    /// Effective capabilities.
    effective: u64,
}

impl ProcessStatus {
    fn parse(text: &str) -> Option<ProcessStatus> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Some(ProcessStatus {
            euid: field("Uid")?.split_whitespace().nth(1)?.parse().ok()?,
            effective: u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?,
        })
    }

    /// `uid`: the user that connected; `owner`: the owner of the status file, root if the process is not dumpable.
    fn check(&self, uid: u32, owner: u32, capability: Capability) -> Result<(), String> {
        if self.euid != uid {
            return Err(format!("its user id is {} now, and was {uid} when it connected", self.euid));
        }
        if owner != uid {
            return Err(format!(
                "the process is not dumpable, so that it may have become another program than the one of user {uid} that connected"
            ));
        }
        if self.effective & capability.bit() == 0 {
            return Err(format!("the program lacks {}", capability.name()));
        }
        Ok(())
    }
}

/// The number of the process behind a pidfd, in the PID namespace of the mounted `/proc`.
fn pid_in_proc(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    // 0: the process is outside that namespace. -1: it has ended.
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

/// Whether the process is in this process's user namespace. Where the kernel does not show its namespace, because it belongs to
/// another user, its map of user ids decides: a map without privileges differs from that of its parent.
fn is_in_this_user_namespace(directory: &Path) -> bool {
    let ours = Path::new("/proc/self");
    let namespace = |of: &Path| std::fs::read_link(of.join("ns/user"));
    match (namespace(directory), namespace(ours)) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => {
            let map = |of: &Path| std::fs::read_to_string(of.join("uid_map")).ok().filter(|text| !text.is_empty());
            map(directory).is_some_and(|theirs| Some(theirs) == map(ours))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const STATUS: &str = "Name:\tx\nUid:\t1001\t1001\t1001\t1001\nGid:\t1\t1\t1\t1\nCapInh:\t0000000000000000\n\
                          CapPrm:\t0000000000002400\nCapEff:\t0000000000002000\nCapBnd:\t000001ffffffffff\n";

    #[test]
    fn effective_capabilities_count_and_permitted_ones_do_not() {
        let status = ProcessStatus::parse(STATUS).expect("a status");
        assert_eq!(status, ProcessStatus { euid: 1001, effective: 0x2000 });
        assert_eq!(status.check(1001, 1001, Capability::NetRaw), Ok(()));
        let why = status.check(1001, 1001, Capability::NetBindService).expect_err("not effective");
        assert!(why.contains("lacks CAP_NET_BIND_SERVICE"), "{why}");
    }

    #[test]
    fn a_process_that_has_become_another_program_has_none() {
        let status = ProcessStatus::parse(STATUS).expect("a status");
        let set_user_id = status.check(1002, 1001, Capability::NetRaw).expect_err("another user");
        assert!(set_user_id.contains("was 1002"), "{set_user_id}");
        let file_capabilities = status.check(1001, 0, Capability::NetRaw).expect_err("not dumpable");
        assert!(file_capabilities.contains("not dumpable"), "{file_capabilities}");
    }

    #[test]
    fn a_status_of_another_form_is_refused() {
        for text in ["", "Uid:\t0\nCapEff:\t0\n", "Uid:\t0\t0\t0\t0\n", "Uid:\t0\t0\t0\t0\nCapEff:\tzz\n"] {
            assert_eq!(ProcessStatus::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_process_is_its_own_peer() {
        let (a, _b) = UnixStream::pair().expect("a pair");
        let me = PeerProcess::of(&a).expect("this process");
        assert_eq!(me.pid(), std::process::id());
        assert_eq!(me.check(Capability::NetRaw).is_ok(), own_capability(Capability::NetRaw));
        assert!(!me.has_exited());
    }

    #[test]
    fn a_process_that_has_exited_has_no_capability() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a number");
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("a pidfd");
        let peer = PeerProcess { uid: rustix::process::geteuid().as_raw(), pid: child.id(), pidfd };
        child.kill().expect("killed");
        child.wait().expect("reaped");
        let why = peer.check(Capability::NetRaw).expect_err("gone");
        assert!(why.contains("has exited"), "{why}");
    }

    #[test]
    fn a_process_that_is_not_visible_has_no_capability() {
        let (a, _b) = UnixStream::pair().expect("a pair");
        let me = PeerProcess { pid: 0, ..PeerProcess::of(&a).expect("this process") };
        assert!(me.check(Capability::NetRaw).expect_err("not visible").contains("not visible"));
    }
}
