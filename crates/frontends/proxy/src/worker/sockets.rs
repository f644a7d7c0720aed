//! The worker's TCP sockets: listeners to which connections are steered, and connections to servers.
//!
//! The accepted socket's own address is the server's, because the program's SYN was not rewritten. All sockets reset their
//! connection when they are closed, also by the death of the process, until both directions have ended in order: so a program
//! never takes a cut stream for a whole one.

use super::shares::ConnCharges;
use crate::sys::{self, EventFlags};
use rustix::net::{self, sockopt};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Kernel buffer of each socket of the proxy and direction, in bytes: with the program's own buffers and the windows
/// it bounds what a stalled stream holds.
pub(super) const SOCKET_BUFFER: usize = 1 << 20;
/// Bytes that a connection may move before others have their turn.
pub(super) const TURN_BYTES: usize = 256 << 10;
/// Events for which a connection is watched.
pub(super) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::PRI).union(EventFlags::ET);

const IP_TRANSPARENT: i32 = 19;
const IPV6_TRANSPARENT: i32 = 75;
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;

/// Client and server.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// This host's end of a TCP connection of a program.
#[derive(Debug)]
pub(super) struct TcpEnd {
    /// Index of the place where the program is.
    pub(super) place: usize,
    /// `None`: the program's SYN is held, or this side has not connected.
    pub(super) socket: Option<OwnedFd>,
    /// Client and server.
    pub(super) ends: Ends,
    /// What it has of the worker.
    pub(super) charges: Box<ConnCharges>,
}

/// The mark of the proxy's own connections, which no policy takes and no rule routes: the intercepted ones' plus 2^16.
pub fn own_mark(mark: i32) -> i32 {
    mark + (1 << 16)
}

/// A listener at all addresses of one family, to which connections of any address can be steered.
///
/// # Errors
/// CAP_NET_ADMIN is missing, or no descriptors.
pub fn listener(v6: bool) -> Result<OwnedFd> {
    let any: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let socket = sys::tcp_socket(any)?;
    set_transparent(&socket, v6)?;
    // Accepted sockets inherit it. They hold the server's port on the client's host, where a program may want to listen
    // at the same one.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddr::new(any, 0))?;
    net::listen(&socket, 4096)?;
    Ok(socket)
}

fn set_transparent(socket: &OwnedFd, v6: bool) -> Result<()> {
    if v6 {
        sys::set_option(socket, libc::SOL_IPV6, IPV6_TRANSPARENT, 1)
    } else {
        sys::set_option(socket, libc::SOL_IP, IP_TRANSPARENT, 1)
    }
}

/// Sets the options of every socket that leads to a program.
///
/// # Errors
/// Of `setsockopt`.
pub(super) fn prepare(socket: &OwnedFd) -> Result<()> {
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER)?;
    Ok(sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER)?)
}

/// The connection has ended in order: what the kernel still holds must reach the program, so the close is an ordinary one.
pub(super) fn close_in_order(socket: &OwnedFd) {
    if let Err(e) = sockopt::set_socket_linger(socket, None) {
        crate::log(format_args!("a socket keeps its reset on close: {e}"));
    }
}

/// Whether an address is one of this host, in the namespace of the calling thread: an ordinary socket can be bound to
/// no other.
pub(super) fn is_local(address: SocketAddr) -> bool {
    sys::tcp_socket(address.ip()).is_ok_and(|socket| net::bind(&socket, &SocketAddr::new(address.ip(), 0)).is_ok())
}

/// Begins to connect to a server of this host from the client's own address and port. The mark goes over to the
/// server's socket (`tcp_fwmark_accept`), so that its packets come back here.
///
/// # Errors
/// PermissionDenied if the client's address is one of this host, which its programs may trust; those of the calls.
pub(super) fn connect_as(client: SocketAddr, server: SocketAddr, mark: i32) -> Result<OwnedFd> {
    let local = client.ip().is_unspecified() || is_local(client);
    if local || client.ip().is_loopback() || client.ip().is_multicast() {
        return Err(Error::new(ErrorKind::PermissionDenied, "the client's address is one of this host"));
    }
    let socket = sys::tcp_socket(server.ip())?;
    prepare(&socket)?;
    set_transparent(&socket, server.is_ipv6())?;
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &client)?;
    sys::connect(&socket, server)?;
    Ok(socket)
}

/// Begins to connect to a server by TCP, from the client's address but another port.
///
/// # Errors
/// Of the calls.
pub(super) fn connect_onward(client: SocketAddr, server: SocketAddr, mark: i32) -> Result<OwnedFd> {
    let socket = sys::tcp_socket(server.ip())?;
    prepare(&socket)?;
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, own_mark(mark))?;
    sys::set_option(&socket, libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)?;
    net::bind(&socket, &SocketAddr::new(client.ip(), 0))?;
    sys::connect(&socket, server)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::connect_as;

    #[test]
    fn no_peer_speaks_for_a_client_of_this_host() {
        for client in ["127.0.0.1:5", "[::1]:5", "0.0.0.0:5", "224.0.0.1:5"] {
            let refused = connect_as(client.parse().unwrap(), "127.0.0.1:9".parse().unwrap(), 81).unwrap_err();
            assert_eq!(refused.to_string(), "the client's address is one of this host", "{client}");
        }
    }
}
