//! Where a daemon's socket may be, in the order in which programs look for it.

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::unix::fs::MetadataExt;
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

/// What a program with a host of its own runs: the beginning of its socket's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramKind {
    /// The engine of verbs.
    InProcess,
    /// Nodes of URMA.
    Urma,
}

impl ProgramKind {
    /// All kinds.
    pub const ALL: [ProgramKind; 2] = [ProgramKind::InProcess, ProgramKind::Urma];

    const fn prefix(self) -> &'static str {
        match self {
            ProgramKind::InProcess => "in-process-",
            ProgramKind::Urma => "urma-",
        }
    }
}

/// What names of sockets of programs end with; the process number is between this and the prefix of their kind.
const PROGRAM_SUFFIX: &str = ".sock";

/// The socket by which tools see a program with a host of its own: in the directory of the daemon's socket.
pub fn program_socket(kind: ProgramKind, pid: u32) -> PathBuf {
    let named = std::env::var_os(SOCKET_ENV).filter(|p| !p.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(daemon_socket).with_file_name(format!("{}{pid}{PROGRAM_SUFFIX}", kind.prefix()))
}

/// The sockets of programs with hosts of their own in a directory, by kind and process number.
pub fn program_sockets(directory: &Path) -> Vec<(ProgramKind, u32, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let (kind, rest) = ProgramKind::ALL.iter().find_map(|kind| Some((*kind, name.strip_prefix(kind.prefix())?)))?;
        Some((kind, rest.strip_suffix(PROGRAM_SUFFIX)?.parse().ok()?, entry.path()))
    });
    let mut found: Vec<(ProgramKind, u32, PathBuf)> = sockets.collect();
    found.sort();
    found
}

/// Removes the sockets of this user's programs that were killed. A socket whose process is not visible here may be that of
/// another PID namespace's program: it stays while a process listens.
pub fn remove_dead(directory: &Path) {
    for (_, pid, path) in program_sockets(directory) {
        let is_own = path.symlink_metadata().is_ok_and(|meta| meta.uid() == rustix::process::geteuid().as_raw());
        if is_own && !Path::new(&format!("/proc/{pid}")).exists() && refuses(&path) {
            // Removed meanwhile, or in a directory that is read-only: nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether no process listens on a socket.
fn refuses(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = SocketAddrUnix::new(path)
        .and_then(|addr| connect(&socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?, &addr));
    connected == Err(Errno::CONNREFUSED)
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
        for name in
            ["in-process-12.sock", "urma-9.sock", "in-process-7.sock", "in-process-x.sock", "urma-12", "burstd.sock"]
        {
            std::fs::write(base.join(name), "").unwrap();
        }
        let want = [(ProgramKind::InProcess, 7), (ProgramKind::InProcess, 12), (ProgramKind::Urma, 9)];
        let found: Vec<_> = program_sockets(&base).into_iter().map(|(kind, pid, _)| (kind, pid)).collect();
        assert_eq!(found, want);
        assert_eq!(program_sockets(&base)[2].2, base.join("urma-9.sock"));
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn sockets_of_dead_processes_are_removed_and_others_stay() {
        let base = std::env::temp_dir().join(format!("burst-dead-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        // Numbers that no process has.
        let [dead, elsewhere, foreign] = ["in-process-999999991", "urma-999999992", "in-process-999999993"];
        let own = format!("in-process-{}", std::process::id());
        let path = |name: &str| base.join(format!("{name}.sock"));
        let kept = [dead, elsewhere, foreign, &own].map(|name| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(path(name)).unwrap()).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            (name == elsewhere).then_some(socket)
        });
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            std::os::unix::fs::chown(path(foreign), Some(65534), None).unwrap();
        }
        remove_dead(&base);
        let is_there = [dead, elsewhere, foreign, &own].map(|name| path(name).exists());
        assert_eq!(is_there, [false, true, is_root, true]);
        drop(kept);
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
