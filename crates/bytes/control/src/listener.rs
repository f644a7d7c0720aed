//! Socket files: bound, and given their mode.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Binds and listens for packets. Replaces a socket on which no process listens; refuses to replace a live one or another kind of
/// file.
///
/// # Errors
/// A sentence.
pub fn bind_socket(path: &Path, mode: u32) -> Result<OwnedFd, String> {
    bind_of(SocketType::SEQPACKET, path, mode)
}

/// As [`bind_socket`], for streams.
///
/// # Errors
/// A sentence.
pub fn bind_stream(path: &Path, mode: u32) -> Result<OwnedFd, String> {
    bind_of(SocketType::STREAM, path, mode)
}

fn bind_of(kind: SocketType, path: &Path, mode: u32) -> Result<OwnedFd, String> {
    let say = |what: &str, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
        fs::create_dir_all(dir).map_err(|e| say("make the directory of", e))?;
        let dir_mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        fs::set_permissions(dir, fs::Permissions::from_mode(dir_mode))
            .map_err(|e| say("set the mode of the directory of", e))?;
    }
    let address = SocketAddrUnix::new(path).map_err(|e| say("use the socket path", e.into()))?;
    let new_socket = || socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let listener = new_socket().map_err(|e| say("make the socket", e.into()))?;
    clear_place(path, &new_socket, &address)?;
    bind(&listener, &address).map_err(|e| say("bind", e.into()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| say("set the mode of", e))?;
    listen(listener.as_fd(), BACKLOG).map_err(|e| say("listen on", e.into()))?;
    Ok(listener)
}

/// Removes a socket file on which no process listens.
fn clear_place(
    path: &Path,
    new_socket: &dyn Fn() -> rustix::io::Result<OwnedFd>,
    address: &SocketAddrUnix,
) -> Result<(), String> {
    let say = |what: &str, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(format!("{} is there already and is no socket; choose another path", path.display()));
    }
    let probe = new_socket().map_err(|e| say("make the socket", e.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path).map_err(|e| say("replace the dead socket", e)),
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            Err(format!("another process serves {}; stop it, or choose another path", path.display()))
        }
        Err(e) => Err(say("probe", e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_is_replaced() {
        let directory = std::env::temp_dir().join(format!("burstd-bind-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("precious");
        fs::write(&file, "data").unwrap();
        let why = bind_socket(&file, 0o600).unwrap_err();
        assert!(why.contains("is no socket"), "{why}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        let socket = directory.join("socket");
        drop(bind_socket(&socket, 0o600).unwrap());
        bind_socket(&socket, 0o600).expect("a dead socket is replaced");
        fs::remove_dir_all(directory).unwrap();
    }
}
