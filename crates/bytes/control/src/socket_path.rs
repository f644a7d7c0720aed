//! Where a daemon's socket may be, in the order in which programs look for it.

use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// Environment variable that names the socket.
pub const SOCKET_ENV: &str = "BURST_SOCKET";
/// Socket of the host's daemon.
pub const SYSTEM_SOCKET: &str = "/run/burst/burstd.sock";

/// The candidates: only `BURST_SOCKET` if set, else the user's runtime directory, the host's daemon, and /tmp.
pub fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(SOCKET_ENV).filter(|p| !p.is_empty()) {
        return vec![path.into()];
    }
    let mut list = Vec::new();
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|p| !p.is_empty()) {
        list.push(PathBuf::from(dir).join("burst/burstd.sock"));
    }
    list.push(SYSTEM_SOCKET.into());
    list.push(tmp_socket());
    list
}

/// What names of sockets of programs with an engine of their own begin and end with; the process number is between.
const IN_PROCESS: (&str, &str) = ("in-process-", ".sock");

/// The socket by which tools see a program with an engine of its own: in the directory of the daemon's socket.
pub fn in_process_socket(pid: u32) -> PathBuf {
    let named = std::env::var_os(SOCKET_ENV).filter(|p| !p.is_empty()).map(PathBuf::from);
    let (first, last) = IN_PROCESS;
    named.unwrap_or_else(daemon_socket).with_file_name(format!("{first}{pid}{last}"))
}

/// The sockets of programs with engines of their own in a directory, by process number.
pub fn in_process_sockets(directory: &Path) -> Vec<(u32, PathBuf)> {
    let (first, last) = IN_PROCESS;
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let name = entry.file_name();
        let pid = name.to_str()?.strip_prefix(first)?.strip_suffix(last)?.parse().ok()?;
        Some((pid, entry.path()))
    });
    let mut found: Vec<(u32, PathBuf)> = sockets.collect();
    found.sort();
    found
}

/// Default socket of a daemon: for root the host's path; for other users, and for a root that may not write there (in a user
/// namespace, or with a read-only `/run`), the user's path.
pub fn daemon_socket() -> PathBuf {
    let system = rustix::process::geteuid().is_root().then(|| PathBuf::from(SYSTEM_SOCKET));
    system.filter(|path| has_room(path)).unwrap_or_else(user_socket)
}

/// The user's path. `XDG_RUNTIME_DIR` may be another user's, because `su` and `sudo -E` keep it: then the path in /tmp is used.
fn user_socket() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("burst/burstd.sock"));
    named.filter(|path| has_room(path)).unwrap_or_else(tmp_socket)
}

/// Whether this process may create a socket at this path, or its directory, if only the directory is missing.
fn has_room(socket: &Path) -> bool {
    let may_write = |dir: &Path| access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    socket.parent().is_some_and(|dir| if dir.exists() { may_write(dir) } else { dir.parent().is_some_and(may_write) })
}

/// Name of a device's character node in `/dev/infiniband`.
pub fn device_node(device: &str) -> String {
    format!("uverbs_{device}")
}

fn tmp_socket() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    PathBuf::from(format!("/tmp/burst-{uid}/burstd.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_programs_are_found_by_their_names() {
        let base = std::env::temp_dir().join(format!("burst-programs-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        for name in ["in-process-12.sock", "in-process-7.sock", "in-process-x.sock", "burstd.sock", "in-process-3"] {
            std::fs::write(base.join(name), "").unwrap();
        }
        let found = in_process_sockets(&base);
        assert_eq!(found, [(7, base.join("in-process-7.sock")), (12, base.join("in-process-12.sock"))]);
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn there_is_room_where_a_directory_can_be_made() {
        let base = std::env::temp_dir().join(format!("burst-room-{}", std::process::id()));
        std::fs::create_dir_all(base.join("burst")).unwrap();
        assert!(has_room(&base.join("burst/d.sock")) && has_room(&base.join("new/d.sock")));
        assert!(!has_room(&base.join("new/newer/d.sock")));
        // No user can write there, not even root.
        assert!(!has_room(Path::new("/proc/sys/burst/d.sock")) && !has_room(Path::new("/proc/sys/d.sock")));
        std::fs::remove_dir_all(base).unwrap();
    }
}
