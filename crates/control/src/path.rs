//! Where a daemon's socket may be, in the order in which programs look for it.

use std::path::PathBuf;

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

/// Where a daemon started for this user puts its socket.
pub fn user_socket() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_dir()) {
        Some(dir) => dir.join("burst/burstd.sock"),
        None => tmp_socket(),
    }
}

/// Where a daemon listens when nobody says: the host's place for root, the user's own for anybody else.
pub fn daemon_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() { SYSTEM_SOCKET.into() } else { user_socket() }
}

/// Name of a device's character node in `/dev/infiniband`.
pub fn device_node(device: &str) -> String {
    format!("uverbs_{device}")
}

fn tmp_socket() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    PathBuf::from(format!("/tmp/burst-{uid}/burstd.sock"))
}
