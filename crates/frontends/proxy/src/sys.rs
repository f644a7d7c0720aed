//! Sockets and descriptors: what the proxy needs beside the calls of rustix, in safe form.
//!
//! rustix has no call for some options of sockets (SO_MARK, IP_TRANSPARENT, IPV6_TRANSPARENT, IP_BIND_ADDRESS_NO_PORT,
//! SO_NETNS_COOKIE), for the urgent mark, and to ignore signals; these go by libc.
#![allow(unsafe_code)]

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use rustix::event::epoll::{Event as PollEvent, EventFlags};

/// The bytes of a field of a message; `None`: the message ends before.
pub fn field<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..)?.first_chunk().copied()
}

/// A non-blocking TCP socket for addresses like `like`.
///
/// # Errors
/// Of `socket`.
pub fn tcp_socket(like: IpAddr) -> Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?)
}

/// Sets an integer option that rustix does not know.
///
/// # Errors
/// Of `setsockopt`.
pub fn set_option(fd: &impl AsRawFd, level: i32, name: i32, value: i32) -> Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the value is valid for the call, with its length.
    let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) };
    if set < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// The pending error of a socket.
///
/// # Errors
/// Of `getsockopt`.
pub fn take_error(fd: impl AsFd) -> Result<Option<Error>> {
    Ok(sockopt::socket_error(fd)?.err().map(Error::from))
}

/// The cookie of the socket's network namespace (`SO_NETNS_COOKIE`).
///
/// # Errors
/// Of `getsockopt`.
pub fn namespace_cookie(fd: &impl AsRawFd) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (mut value, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let (at, len) = ((&raw mut value).cast(), &raw mut len);
    // SAFETY: value and length are valid for the call.
    let got = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, at, len) };
    if got < 0 { Err(Error::last_os_error()) } else { Ok(value) }
}

/// Begins to connect: true if it is done already.
///
/// # Errors
/// Of `connect`, but EINPROGRESS.
pub fn connect(fd: impl AsFd, to: SocketAddr) -> Result<bool> {
    match net::connect(fd, &to) {
        Err(Errno::INPROGRESS) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// The next connection, its peer's address and its own; `None` if none waits.
///
/// # Errors
/// Of `accept4` or `getsockname`. A connection that ended before is skipped by the caller.
pub fn accept(fd: impl AsFd) -> Result<Option<(OwnedFd, SocketAddr, SocketAddr)>> {
    let (socket, peer) = match net::acceptfrom_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Err(Errno::AGAIN) => return Ok(None),
        other => other?,
    };
    let peer = canonical(SocketAddr::try_from(peer.ok_or(Errno::AFNOSUPPORT)?)?);
    let own = local_address(&socket)?;
    Ok(Some((socket, peer, own)))
}

/// The socket's own address.
///
/// # Errors
/// Of `getsockname`.
pub fn local_address(fd: impl AsFd) -> Result<SocketAddr> {
    Ok(canonical(SocketAddr::try_from(net::getsockname(fd)?)?))
}

/// IPv4 in its own form.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether an error says that the process or the host has no descriptors, or no memory for one.
pub fn no_descriptors(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Raises the limit of open descriptors to the most that this process may have.
///
/// # Errors
/// Of `setrlimit`.
pub fn raise_descriptor_limit() -> Result<()> {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Receives without waiting.
///
/// # Errors
/// Of `recv`.
pub fn receive(fd: impl AsFd, to: &mut [u8]) -> Result<usize> {
    let (_, got) = retry_on_intr(|| net::recv(&fd, &mut *to, RecvFlags::DONTWAIT))?;
    Ok(got)
}

/// Sends without waiting. `flags`: none, or `OOB`.
///
/// # Errors
/// Of `send`.
pub fn send(fd: impl AsFd, from: &[u8], flags: SendFlags) -> Result<usize> {
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| net::send(&fd, from, flags))?)
}

/// Whether the next byte to receive is the urgent one.
///
/// # Errors
/// Of `ioctl`.
pub fn at_mark(fd: &impl AsRawFd) -> Result<bool> {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let mut at = 0i32;
    // SAFETY: the integer is valid for the call.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCATMARK, &raw mut at) };
    if asked < 0 { Err(Error::last_os_error()) } else { Ok(at != 0) }
}

/// The urgent byte.
///
/// # Errors
/// Of `recv`: EINVAL if there is none.
pub fn receive_urgent(fd: impl AsFd) -> Result<u8> {
    let mut byte = [0];
    let (_, got) = net::recv(fd, &mut byte[..], RecvFlags::OOB | RecvFlags::DONTWAIT)?;
    if got == 1 { Ok(byte[0]) } else { Err(Errno::INVAL.into()) }
}

/// Moves the calling thread into a network namespace. Without CAP_SYS_ADMIN only the one in which it is.
///
/// # Errors
/// Of `setns`.
pub fn enter_namespace(namespace: impl AsFd) -> Result<()> {
    match move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)) {
        Err(Errno::PERM | Errno::ACCESS) if is_own_namespace(&namespace) => Ok(()),
        other => Ok(other?),
    }
}

fn is_own_namespace(namespace: impl AsFd) -> bool {
    let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|facts| (facts.st_dev, facts.st_ino));
    let own = std::fs::File::open("/proc/thread-self/ns/net").ok();
    own.and_then(|own| inode(own.as_fd())).is_some_and(|own| inode(namespace.as_fd()) == Some(own))
}

/// Ignores signals from now on.
pub fn ignore_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: no handler runs; the only failure is a number that is no signal.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// An epoll instance; readable while there are events.
#[derive(Debug)]
pub struct Poll(OwnedFd);

impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Poll {
    /// A new one.
    ///
    /// # Errors
    /// Of `epoll_create1`.
    pub fn new() -> Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor. A descriptor leaves by being closed.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub fn add(&self, fd: impl AsFd, events: EventFlags, token: u64) -> Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(token), events)?)
    }

    /// Changes the events of a descriptor.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub fn change(&self, fd: impl AsFd, events: EventFlags, token: u64) -> Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(token), events)?)
    }

    /// Waits for events, which take the place of those in `events`, at most its capacity; returns how many. `timeout`: `None`
    /// is without end.
    ///
    /// # Errors
    /// Of `epoll_wait`; an interruption by a signal is no event.
    pub fn wait(&self, events: &mut Vec<PollEvent>, timeout: Option<Duration>) -> Result<usize> {
        events.clear();
        let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
        match epoll::wait(&self.0, spare_capacity(events), timeout.as_ref()) {
            Err(Errno::INTR) => Ok(0),
            other => Ok(other?),
        }
    }
}

/// A counter that wakes an epoll of another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// Of `eventfd`.
    pub fn new() -> Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Wakes.
    pub fn wake(&self) {
        // The only failure is a counter at its end, which wakes as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the counter.
    pub fn clear(&self) {
        // EAGAIN says that it is clear.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Opens a TCP connection without waiting for it, as a socket of the standard library. `mark`: so that it is not
/// intercepted.
///
/// # Errors
/// Of `socket` or `connect`.
pub fn dial(to: SocketAddr, mark: i32) -> Result<std::net::TcpStream> {
    let socket = tcp_socket(to.ip())?;
    // Without CAP_NET_ADMIN the connection is not marked; then there is no interception either.
    let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark);
    sockopt::set_tcp_nodelay(&socket, true)?;
    connect(&socket, to)?;
    Ok(socket.into())
}
