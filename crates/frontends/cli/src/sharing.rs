//! The advice how two users share one daemon, when another user's daemon has bound UDP port 4791.
//!
//! `burst run` starts a private daemon: its socket's directory has mode 0700, its socket mode 0600. A second user's daemon cannot
//! have the UDP port too, so both must use one daemon. `/proc/net/unix` shows every user which sockets exist, and so where that
//! daemon listens.

use burst_control::trust::TRUST_ENV;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Flag of a listening socket in `/proc/net/unix` (`__SO_ACCEPTCON`).
const LISTENING: u32 = 0x1_0000;
/// Type of a SOCK_SEQPACKET socket in `/proc/net/unix`.
const SEQPACKET: &str = "0005";
/// The usual name of a daemon's socket.
const SOCKET_NAME: &str = "burstd.sock";
/// Permission bit: other users may enter the directory.
const OTHERS_MAY_ENTER: u32 = 0o001;

/// The cure if a daemon could not start because of `why`; `own` is the socket that it would have had. `None` if the UDP port is
/// not the reason, or no other daemon is seen.
pub fn cure(why: &str, own: &Path) -> Option<String> {
    if !why.contains("4791") {
        return None;
    }
    let table = std::fs::read_to_string("/proc/net/unix").ok()?;
    let other = daemon_sockets(&table).into_iter().find(|path| path != own)?;
    let closed = closed_directories(&other);
    // Inside a closed directory nothing can be seen; its owner is the daemon's user in the usual places.
    let owner = closed.first().unwrap_or(&other).metadata().ok()?.uid();
    Some(sentence(&other, &closed, owner))
}

/// The commands by which two users share the daemon of user `owner` at `socket`; other users cannot enter `closed`.
fn sentence(socket: &Path, closed: &[PathBuf], owner: u32) -> String {
    let shown = socket.display();
    let enter: String = closed.iter().map(|d| format!("chmod o+x {} && ", d.display())).collect();
    format!(
        "another daemon holds the port and listens at {shown}; to share it, its owner runs \
         `{enter}chmod 666 {shown}`, then, if you trust user {owner} with the memory of your programs, you run \
         `{TRUST_ENV}={owner} burst run --socket {shown} PROGRAM`"
    )
}

/// The sockets at which daemons listen, by their usual name.
fn daemon_sockets(table: &str) -> Vec<PathBuf> {
    let columns = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listens = |row: &Vec<&str>| u32::from_str_radix(row[3], 16).is_ok_and(|flags| flags & LISTENING != 0);
    columns
        .filter(|row| row.len() == 8 && row[4] == SEQPACKET && listens(row))
        .map(|row| PathBuf::from(row[7]))
        .filter(|path| path.is_absolute() && path.file_name().is_some_and(|name| name == SOCKET_NAME))
        .collect()
}

/// The directories above `socket` that other users cannot enter, the outermost first. A directory inside a closed one cannot be
/// seen from here: it counts as closed.
fn closed_directories(socket: &Path) -> Vec<PathBuf> {
    let mut above: Vec<&Path> = socket.ancestors().skip(1).collect();
    above.reverse();
    let is_open = |d: &Path| d.metadata().is_ok_and(|meta| meta.permissions().mode() & OTHERS_MAY_ENTER != 0);
    above.into_iter().filter(|d| !is_open(d)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0005 01 4242 /tmp/burst-1000/burstd.sock\n\
        0000000000000000: 00000003 00000000 00000000 0005 03 4243 /tmp/burst-1000/burstd.sock\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 4244 /tmp/other/burstd.sock\n\
        0000000000000000: 00000002 00000000 00010000 0005 01 4245 @burstd.sock\n\
        0000000000000000: 00000002 00000000 00010000 0005 01 4246\n";

    #[test]
    fn only_listening_daemons_are_found() {
        assert_eq!(daemon_sockets(TABLE), [Path::new("/tmp/burst-1000/burstd.sock")]);
        assert!(daemon_sockets("").is_empty());
    }

    #[test]
    fn the_sentence_has_the_commands_of_both_users() {
        let socket = Path::new("/tmp/burst-1000/burstd.sock");
        let text = sentence(socket, &[PathBuf::from("/tmp/burst-1000")], 1000);
        assert!(text.contains("`chmod o+x /tmp/burst-1000 && chmod 666 /tmp/burst-1000/burstd.sock`"), "{text}");
        assert!(
            text.contains("`BURST_TRUST_SOCKET_OF=1000 burst run --socket /tmp/burst-1000/burstd.sock PROGRAM`"),
            "{text}"
        );
    }

    #[test]
    fn closed_directories_are_named_from_the_outermost() {
        let top = std::env::temp_dir().join(format!("burst-sharing-{}", std::process::id()));
        let inner = top.join("inner");
        std::fs::create_dir_all(&inner).unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&top, 0o700);
        set(&inner, 0o755);
        assert_eq!(closed_directories(&inner.join(SOCKET_NAME)), [top.as_path()]);
        set(&top, 0o711);
        assert!(closed_directories(&inner.join(SOCKET_NAME)).is_empty());
        std::fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn a_failure_for_another_reason_has_another_cure() {
        assert_eq!(cure("there is no interface eth7", Path::new("/run/burst/burstd.sock")), None);
    }
}
