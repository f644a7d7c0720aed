//! `SO_PEERCRED` and `SO_PEERPIDFD` (unix(7)).
//!
//! The credentials are read into plain integers: the process number is 0 for a peer outside this PID namespace, which a type for
//! process numbers that are never 0 cannot hold.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `SO_PEERPIDFD` of asm-generic/socket.h, Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// The credentials of a socket's peer when it connected, or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process number in this process's PID namespace; 0: the process is outside it.
    pub pid: u32,
    /// Effective user id, in this process's user namespace.
    pub uid: u32,
}

/// The credentials of the peer of a connected Unix socket.
///
/// # Errors
/// The system's, for a descriptor that is no connected Unix socket.
pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` has room for `len` bytes, and any bytes make a valid `ucred`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid })
}

/// A pidfd of the process that connected. It names that process even after its number has been given to another one.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5; EINVAL or ESRCH when the process has been reaped already.
pub fn pidfd_of(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` has room for `len` bytes.
    let done = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the kernel has just made this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_pair_of_sockets_is_this_process() {
        let (a, _b) = UnixStream::pair().expect("a pair");
        let me = PeerCredentials { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
        assert_eq!(of(&a).expect("credentials"), me);
    }

    #[test]
    fn other_descriptors_have_no_credentials() {
        let file = std::fs::File::open("/dev/null").expect("opens");
        assert!(of(&file).is_err() && pidfd_of(&file).is_err());
    }
}
