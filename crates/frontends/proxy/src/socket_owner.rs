//! The user of a program's socket, by the addresses of its connection: sock_diag(7).
//!
//! The kernel answers for an exact pair of addresses. A socket that its program has closed has no user any more, and the kernel
//! says 0 then: only an answer with an inode counts, so that no program is taken for root's.

use crate::sys::field;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct nlmsghdr`, and `struct inet_diag_req_v2` behind it.
const HEADER: usize = 16;
const REQUEST: usize = 56;
/// Of `struct inet_diag_msg`: the local and the remote port, the user, the inode.
const LOCAL_PORT: usize = 4;
const REMOTE_PORT: usize = 6;
const USER: usize = 64;
const INODE: usize = 68;

/// A socket to the kernel's table of sockets, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct SocketTable(OwnedFd);

impl SocketTable {
    /// Opens it.
    ///
    /// # Errors
    /// Of `socket`.
    pub fn open() -> Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        Ok(Self(net::socket_with(AddressFamily::NETLINK, kind, flags, Some(net::netlink::SOCK_DIAG))?))
    }

    /// The user of the socket at `local` that is connected, or connects, to `remote`; `None`: its program has closed it.
    ///
    /// # Errors
    /// Of the calls; the kernel has no table of TCP sockets (`CONFIG_INET_TCP_DIAG`).
    pub fn user_of(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>> {
        net::send(&self.0, &request(local, remote), SendFlags::empty())?;
        // The kernel has answered before `send` returns.
        let mut buffer = [0; 1024];
        let (got, _) = net::recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)?;
        user_in(&buffer[..got], (local.port(), remote.port()))
    }
}

/// A question about the socket between two addresses.
fn request(local: SocketAddr, remote: SocketAddr) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    bytes[..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    let body = &mut bytes[HEADER..];
    body[0] = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    body[1] = libc::IPPROTO_TCP as u8;
    // In all states.
    body[4..8].fill(0xff);
    body[8..10].copy_from_slice(&local.port().to_be_bytes());
    body[10..12].copy_from_slice(&remote.port().to_be_bytes());
    for (at, ip) in [(12, local.ip()), (28, remote.ip())] {
        match ip {
            IpAddr::V4(v4) => body[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => body[at..at + 16].copy_from_slice(&v6.octets()),
        }
    }
    // No cookie.
    body[48..56].fill(0xff);
    bytes
}

/// The user in an answer about the socket between two ports.
fn user_in(answer: &[u8], ports: (u16, u16)) -> Result<Option<u32>> {
    let cut = || Error::new(ErrorKind::InvalidData, "an answer that is cut short");
    let kind = u16::from_ne_bytes(field(answer, 4).ok_or_else(cut)?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let error = Error::from_raw_os_error(-i32::from_ne_bytes(field(answer, HEADER).ok_or_else(cut)?));
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let number = |at| field(answer, HEADER + at).map(u32::from_ne_bytes).ok_or_else(cut);
    let (user, inode) = (number(USER)?, number(INODE)?);
    // Without such a connection the kernel finds a listener at the local address, which has no remote port.
    let port = |at| field(answer, HEADER + at).map(u16::from_be_bytes).ok_or_else(cut);
    let is_asked = (port(LOCAL_PORT)?, port(REMOTE_PORT)?) == ports;
    Ok((inode != 0 && is_asked).then_some(user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_user_of_a_connected_socket_is_found_and_that_of_a_closed_one_is_not() {
        let table = SocketTable::open().unwrap();
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(own) else { continue };
            let server = listener.local_addr().unwrap();
            let program = TcpStream::connect(server).unwrap();
            let (accepted, client) = listener.accept().unwrap();
            let uid = rustix::process::getuid().as_raw();
            assert_eq!(table.user_of(client, server).unwrap(), Some(uid), "{own}");
            drop(program);
            assert_eq!(table.user_of(client, server).unwrap(), None, "it waits for its peer's end, without a program");
            drop(accepted);
            let nowhere = (client.ip(), 1).into();
            assert_eq!(table.user_of(client, nowhere).unwrap(), None);
            assert_eq!(
                table.user_of(server, nowhere).unwrap(),
                None,
                "a listener is there, which is connected to none"
            );
        }
    }

    #[test]
    fn answers_that_are_cut_short_are_errors() {
        let ports = (8, 7);
        let mut answer = vec![0; HEADER + INODE + 4];
        answer[4] = SOCK_DIAG_BY_FAMILY as u8;
        answer[HEADER + LOCAL_PORT + 1] = 8;
        answer[HEADER + REMOTE_PORT + 1] = 7;
        answer[HEADER + USER] = 9;
        answer[HEADER + INODE] = 1;
        assert_eq!(user_in(&answer, ports).unwrap(), Some(9));
        for others in [(8, 6), (9, 7)] {
            assert_eq!(user_in(&answer, others).unwrap(), None, "an answer to another question");
        }
        assert!((0..answer.len()).all(|len| user_in(&answer[..len], ports).is_err()));
        answer[4] = libc::NLMSG_ERROR as u8;
        answer[HEADER..HEADER + 4].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(user_in(&answer, ports).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
