//! Sockets and descriptors: the system calls of the proxy in safe form.
#![allow(unsafe_code)]

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn check(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// An address as the kernel has it, and its length.
pub fn to_sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all fields may be zero.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a sockaddr_storage holds and is aligned for any address.
            let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

fn from_sockaddr(storage: &libc::sockaddr_storage) -> Result<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address it is.
            let from = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(ip.into(), u16::from_be(from.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let from = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(from.sin6_addr.s6_addr).to_canonical();
            Ok(SocketAddr::new(ip, u16::from_be(from.sin6_port)))
        }
        other => Err(Error::other(format!("an address of family {other}"))),
    }
}

/// A non-blocking TCP socket for addresses like `like`.
///
/// # Errors
/// Of `socket`.
pub fn tcp_socket(like: IpAddr) -> Result<OwnedFd> {
    let family = if like.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the kernel gave this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(fd: &impl AsRawFd, level: i32, name: i32, value: &T) -> Result<()> {
    let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is valid for the call, with its length.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) }).map(|_| ())
}

/// Sets an integer option.
///
/// # Errors
/// Of `setsockopt`.
pub fn set_option(fd: &impl AsRawFd, level: i32, name: i32, value: i32) -> Result<()> {
    set(fd, level, name, &value)
}

/// Whether closing the socket resets the connection (also when the process dies) or ends it in order.
///
/// # Errors
/// Of `setsockopt`.
pub fn set_reset_on_close(fd: &impl AsRawFd, on: bool) -> Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: on.into(), l_linger: 0 })
}

/// The pending error of a socket.
///
/// # Errors
/// Of `getsockopt`.
pub fn take_error(fd: &impl AsRawFd) -> Result<Option<Error>> {
    let code = get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR)?;
    Ok((code != 0).then(|| Error::from_raw_os_error(code)))
}

fn get_int(fd: &impl AsRawFd, level: i32, name: i32) -> Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: value and length are valid for the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// The cookie of the socket's network namespace (`SO_NETNS_COOKIE`).
///
/// # Errors
/// Of `getsockopt`.
pub fn namespace_cookie(fd: &impl AsRawFd) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (mut value, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: value and length are valid for the call.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut value).cast(), &raw mut len)
    })?;
    Ok(value)
}

/// Binds.
///
/// # Errors
/// Of `bind`.
pub fn bind(fd: &impl AsRawFd, to: SocketAddr) -> Result<()> {
    let (storage, len) = to_sockaddr(to);
    // SAFETY: the address is valid for the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), len) }).map(|_| ())
}

/// Begins to connect: true if it is done already.
///
/// # Errors
/// Of `connect`, but EINPROGRESS.
pub fn connect(fd: &impl AsRawFd, to: SocketAddr) -> Result<bool> {
    let (storage, len) = to_sockaddr(to);
    // SAFETY: the address is valid for the call.
    match check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const storage).cast(), len) }) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Listens.
///
/// # Errors
/// Of `listen`.
pub fn listen(fd: &impl AsRawFd, backlog: i32) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(|_| ())
}

/// The next connection, its peer's address and its own; `None` if none waits.
///
/// # Errors
/// Of `accept4` or `getsockname`. A connection that ended before is skipped by the caller.
pub fn accept(fd: &impl AsRawFd) -> Result<Option<(OwnedFd, SocketAddr, SocketAddr)>> {
    // SAFETY: all fields may be zero.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&storage) as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: address and length are valid for the call.
    let made = unsafe { libc::accept4(fd.as_raw_fd(), (&raw mut storage).cast(), &raw mut len, flags) };
    let socket = match check(made) {
        // SAFETY: the kernel gave this descriptor to nobody else.
        Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    let peer = from_sockaddr(&storage)?;
    let own = local_address(&socket)?;
    Ok(Some((socket, peer, own)))
}

/// The socket's own address.
///
/// # Errors
/// Of `getsockname`.
pub fn local_address(fd: &impl AsRawFd) -> Result<SocketAddr> {
    // SAFETY: all fields may be zero.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&storage) as libc::socklen_t;
    // SAFETY: address and length are valid for the call.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut storage).cast(), &raw mut len) })?;
    from_sockaddr(&storage)
}

/// Whether an error says that the process or the host has no descriptors, or no memory for one.
pub fn no_descriptors(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Raises the limit of open descriptors to the most that this process may have.
///
/// # Errors
/// Of `getrlimit` or `setrlimit`.
pub fn raise_descriptor_limit() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the same.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map(|_| ())
}

/// Repeats a call that a signal has interrupted.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize> {
    loop {
        let Ok(count) = usize::try_from(call()) else {
            let error = Error::last_os_error();
            if error.kind() == ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        };
        return Ok(count);
    }
}

/// Receives without waiting.
///
/// # Errors
/// Of `recv`.
pub fn receive(fd: &impl AsRawFd, to: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for the call, with its length.
    retry(|| unsafe { libc::recv(fd.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), libc::MSG_DONTWAIT) })
}

/// Sends without waiting. `flags`: 0 or MSG_OOB.
///
/// # Errors
/// Of `send`.
pub fn send(fd: &impl AsRawFd, from: &[u8], flags: i32) -> Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the buffer is valid for the call, with its length.
    retry(|| unsafe { libc::send(fd.as_raw_fd(), from.as_ptr().cast(), from.len(), flags) })
}

/// Whether the next byte to receive is the urgent one.
///
/// # Errors
/// Of `ioctl`.
pub fn at_mark(fd: &impl AsRawFd) -> Result<bool> {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let mut at = 0i32;
    // SAFETY: the integer is valid for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCATMARK, &raw mut at) })?;
    Ok(at != 0)
}

/// The urgent byte.
///
/// # Errors
/// Of `recv`: EINVAL if there is none.
pub fn receive_urgent(fd: &impl AsRawFd) -> Result<u8> {
    let mut byte = 0u8;
    // SAFETY: one byte is valid for the call.
    let got = unsafe { libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_OOB | libc::MSG_DONTWAIT) };
    if got == 1 { Ok(byte) } else { Err(Error::last_os_error()) }
}

/// Shuts down a direction.
///
/// # Errors
/// Of `shutdown`.
pub fn shutdown(fd: &impl AsRawFd, how: Shutdown) -> Result<()> {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: no memory is passed.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), how) }).map(|_| ())
}

/// Moves the calling thread into a network namespace. Without CAP_SYS_ADMIN only the one in which it is.
///
/// # Errors
/// Of `setns`.
pub fn enter_namespace(namespace: &impl AsRawFd) -> Result<()> {
    // SAFETY: no memory is passed; the thread's other attributes stay.
    match check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && is_own_namespace(namespace) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn is_own_namespace(namespace: &impl AsRawFd) -> bool {
    let inode = |fd: &dyn AsRawFd| {
        // SAFETY: all fields may be zero.
        let mut facts: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid for the call.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut facts) }).ok().map(|_| (facts.st_dev, facts.st_ino))
    };
    let own = std::fs::File::open("/proc/thread-self/ns/net").ok();
    own.and_then(|own| inode(&own)).is_some_and(|own| inode(namespace) == Some(own))
}

/// Gives the processor to a thread that waits for it.
pub fn yield_now() {
    // SAFETY: no memory is passed; it does not fail on Linux.
    unsafe { libc::sched_yield() };
}

/// Ignores signals from now on.
pub fn ignore_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: no handler runs; the only failure is a number that is no signal.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// An epoll instance.
#[derive(Debug)]
pub struct Poll(OwnedFd);

/// One event: what was registered, and the flags.
pub type PollEvent = libc::epoll_event;

impl Poll {
    /// A new one.
    ///
    /// # Errors
    /// Of `epoll_create1`.
    pub fn new() -> Result<Self> {
        // SAFETY: no memory is passed.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel gave this descriptor to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor; readable while there are events.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds a descriptor. A descriptor leaves by being closed.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub fn add(&self, fd: RawFd, events: i32, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event is valid for the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(|_| ())
    }

    /// Changes the events of a descriptor.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub fn change(&self, fd: RawFd, events: i32, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event is valid for the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, &raw mut event) }).map(|_| ())
    }

    /// Waits for events; `timeout_ms` -1: without end.
    ///
    /// # Errors
    /// Of `epoll_wait`; an interruption by a signal is no event.
    pub fn wait<'a>(&self, into: &'a mut [PollEvent], timeout_ms: i32) -> Result<&'a [PollEvent]> {
        // SAFETY: there are as many places as said.
        let got = unsafe { libc::epoll_wait(self.0.as_raw_fd(), into.as_mut_ptr(), into.len() as i32, timeout_ms) };
        match check(got) {
            Ok(count) => Ok(&into[..count as usize]),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(&[]),
            Err(e) => Err(e),
        }
    }
}

/// A counter that wakes an epoll of another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// Of `eventfd`.
    pub fn new() -> Result<Self> {
        // SAFETY: no memory is passed.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        // SAFETY: the kernel gave this descriptor to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are valid. The only failure is a counter at its end, which wakes as well.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Clears the counter.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes are valid. EAGAIN says that it is clear.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
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
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    connect(&socket, to)?;
    Ok(socket.into())
}
