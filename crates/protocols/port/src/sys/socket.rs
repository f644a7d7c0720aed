//! UDP sockets with the options that the ports need.

use super::bpf::{self, Attach, Insn, op};
use burst_base::Qpn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// Numbers of linux/udp.h and asm-generic/socket.h that the libc crate lacks.
const UDP_NO_CHECK6_RX: i32 = 102;
const SO_RXQ_OVFL: i32 = 40;
const SO_MEMINFO: i32 = 55;
/// Words that SO_MEMINFO gives (linux/sock_diag.h): those of the receive buffer, and the one that counts lost packets.
const MEMINFO_WORDS: usize = 9;
const MEMINFO_RECEIVE_USED: usize = 0;
const MEMINFO_RECEIVE_SIZE: usize = 1;
const MEMINFO_DROPS: usize = 8;
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;

/// Options of a socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The address to bind, with the scope of a link-local one.
    pub addr: SocketAddr,
    /// Whether to receive trains (UDP_GRO).
    pub gro: bool,
    /// Whether to share the address with the other workers' sockets.
    pub reuse: bool,
    /// Interface by which multicast packets leave, and on which a group address is joined.
    pub ifindex: u32,
    /// Receive buffer in bytes.
    pub rcvbuf: u32,
    /// Send buffer in bytes.
    pub sndbuf: u32,
}

/// Opens a non-blocking socket bound to `options.addr`.
pub fn open(options: &SocketOptions) -> io::Result<OwnedFd> {
    let v6 = options.addr.is_ipv6();
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_common(&fd, options)?;
    let group = options.addr.ip().is_multicast();
    if group {
        // Each of several sockets of a group gets its own copy of a packet.
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    if v6 {
        set_v6(&fd, options.ifindex)?
    } else {
        set_v4(&fd, options.ifindex)?
    }
    let name = SockAddr::new(&options.addr);
    // SAFETY: `name` is a valid socket address of the length given.
    if unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr(), name.len()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if group {
        join(&fd, &options.addr.ip(), options.ifindex)?;
    }
    Ok(fd)
}

/// Joins a group on the interface as long as the socket lives; the kernel speaks IGMP or MLD.
fn join(fd: &OwnedFd, group: &IpAddr, ifindex: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: u32::from(*group).to_be() },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: ifindex as i32,
            };
            set_bytes(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)?;
            // Receive only packets that arrive by this interface, whatever other sockets have joined.
            set(fd, libc::IPPROTO_IP, IP_MULTICAST_ALL, 0)
        }
        IpAddr::V6(group) => {
            let address = libc::in6_addr { s6_addr: group.octets() };
            let request = libc::ipv6_mreq { ipv6mr_multiaddr: address, ipv6mr_interface: ifindex };
            set_bytes(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
            // Kernels before 4.20 have no such option.
            let _ = set(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
            Ok(())
        }
    }
}

fn set_common(fd: &OwnedFd, options: &SocketOptions) -> io::Result<()> {
    if options.reuse {
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    set_buffers(fd, options.rcvbuf, options.sndbuf)?;
    set(fd, libc::SOL_SOCKET, SO_RXQ_OVFL, 1)?;
    if options.gro {
        // Kernels before 5.0 lack the option: every packet then arrives alone.
        let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(())
}

/// Makes the kernel note when each packet arrives, and tell it with the packet.
pub fn stamp_arrivals(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets the buffers of a socket, in bytes of the kernel's accounting.
pub fn set_buffers(fd: &OwnedFd, rcvbuf: u32, sndbuf: u32) -> io::Result<()> {
    for (force, plain, bytes) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, rcvbuf), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, sndbuf)]
    {
        // The kernel doubles the value. Without CAP_NET_ADMIN it limits it to rmem_max or wmem_max.
        let bytes = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
        if set(fd, libc::SOL_SOCKET, force, bytes).is_err() {
            set(fd, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(())
}

const NO_ADDRESS: libc::in_addr = libc::in_addr { s_addr: 0 };

/// DF is always set. The IPv4 identification is then 0, or counts from 0 along a train, on which the ICRC relies.
fn set_v4(fd: &OwnedFd, ifindex: u32) -> io::Result<()> {
    set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    set(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    set(fd, libc::IPPROTO_IP, libc::IP_TTL, i32::from(DEFAULT_HOPS))?;
    set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, i32::from(DEFAULT_HOPS))?;
    let by = libc::ip_mreqn { imr_multiaddr: NO_ADDRESS, imr_address: NO_ADDRESS, imr_ifindex: ifindex as i32 };
    set_bytes(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &by)?;
    set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
}

/// Accepts UDP checksum 0 over IPv6, which peers such as the kernel's soft-RoCE send.
fn set_v6(fd: &OwnedFd, ifindex: u32) -> io::Result<()> {
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, i32::from(DEFAULT_HOPS))?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, i32::from(DEFAULT_HOPS))?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, ifindex as i32)?;
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
    set(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)
}

/// TTL and hop limit of packets whose flow names none.
pub const DEFAULT_HOPS: u8 = 64;

/// Receive buffer that the kernel granted, in bytes.
pub fn receive_buffer(fd: &OwnedFd) -> u32 {
    receive_buffer_of(fd.as_raw_fd()).unwrap_or(0)
}

/// The same; `None` for a descriptor that is no socket.
pub fn receive_buffer_of(fd: RawFd) -> Option<u32> {
    let (mut bytes, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the value and its length live during the call.
    let rc = unsafe {
        let value = (&raw mut bytes).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, value, &mut len)
    };
    if rc == 0 { u32::try_from(bytes).ok() } else { None }
}

/// The UDP port that the socket is bound to.
pub fn local_port(fd: &OwnedFd) -> io::Result<u16> {
    let (mut name, mut len) = (SockAddr::zero(), size_of::<SockAddr>() as libc::socklen_t);
    // SAFETY: the name and its length live during the call.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &mut len) };
    if rc == 0 { Ok(name.parts().1) } else { Err(io::Error::last_os_error()) }
}

/// What the kernel tells of a socket's memory; zeros if it does not.
fn memory(fd: RawFd) -> [u32; MEMINFO_WORDS] {
    let (mut words, mut len) = ([0u32; MEMINFO_WORDS], size_of::<[u32; MEMINFO_WORDS]>() as libc::socklen_t);
    // SAFETY: the words and their length live during the call.
    let rc = unsafe {
        let value = (&raw mut words).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, value, &mut len)
    };
    if rc == 0 { words } else { [0; MEMINFO_WORDS] }
}

/// Packets that the socket has lost for want of buffer since it was opened; 0 if the kernel does not tell.
pub fn lost(fd: &OwnedFd) -> u32 {
    memory(fd.as_raw_fd())[MEMINFO_DROPS]
}

/// Bytes of the receive buffer in use, and its size, in the kernel's accounting; zeros if the kernel does not tell. What was
/// received lately may still count as in use, up to a quarter of the size (`udp_rmem_release`).
pub fn receive_use(fd: RawFd) -> (u32, u32) {
    let words = memory(fd);
    (words[MEMINFO_RECEIVE_USED], words[MEMINFO_RECEIVE_SIZE])
}

/// Makes the kernel refuse trains on the socket, as some paths do: UDP_SEGMENT needs UDP checksums.
#[cfg(test)]
pub fn refuse_trains(fd: &OwnedFd) {
    set(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("the option needs no privilege");
}

/// Sets an option that has an `int` as its value.
pub fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(fd, level, name, &value)
}

fn set_bytes<T: Copy>(fd: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the option value lives during the call and has the length given.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Steers each datagram to the socket of its destination's worker ([`Qpn::worker`]) in the reuse group, whose sockets were bound
/// in the order of workers; numbers that no worker has are spread. The program sees the UDP payload; the low four bits of its
/// word at offset `word_at` name the worker.
pub fn steer_to_workers(fd: &OwnedFd, word_at: u32, workers: u32) -> io::Result<()> {
    let code = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, word_at),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, Qpn::WORKER_MASK),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, workers),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ];
    bpf::attach(fd, Attach::ReusePort, &code)
}

/// The same where worker numbers are lent to other processes. The first `workers` sockets are this process's, and `lent` has the
/// numbers that are lent now, each with the index of its socket. Numbers that are not lent are spread over the own sockets; the
/// management queue pairs' and multicast's packets come to the first socket.
pub fn steer_to_processes(fd: &OwnedFd, word_at: u32, workers: u32, lent: &[(u32, u32)]) -> io::Result<()> {
    bpf::attach(fd, Attach::ReusePort, &jump_table(word_at, workers, lent))
}

fn jump_table(word_at: u32, workers: u32, lent: &[(u32, u32)]) -> Vec<Insn> {
    let mut code = vec![
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, word_at),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, Qpn::MULTICAST.get()),
        // The first three rows: numbers that no worker has.
        bpf::branch(libc::BPF_JGT, Qpn::GSI.get(), 1, 0),
        op(libc::BPF_RET | libc::BPF_K, 0),
        bpf::branch(libc::BPF_JEQ, Qpn::MULTICAST.get(), 0, 1),
        op(libc::BPF_RET | libc::BPF_K, 0),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, Qpn::WORKER_MASK),
    ];
    for (number, index) in lent {
        code.push(bpf::branch(libc::BPF_JEQ, *number, 0, 1));
        code.push(op(libc::BPF_RET | libc::BPF_K, *index));
    }
    code.push(op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, workers));
    code.push(op(libc::BPF_RET | libc::BPF_A, 0));
    code
}

/// Prepares a socket of the reuse group for another process: it can attach no program to the socket or its group.
pub fn lock_programs(fd: &OwnedFd) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1)
}

/// Whether somebody has connected the socket to a peer. It took all of that peer's packets from the group then, and has left the
/// group when it was disconnected (Linux 6.13 and later).
pub fn was_connected(fd: &OwnedFd) -> bool {
    let (mut name, mut len) = (SockAddr::zero(), size_of::<SockAddr>() as libc::socklen_t);
    // SAFETY: the name and its length live during the call.
    let is_connected = unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut name).cast(), &mut len) } == 0;
    // The kernel notes the processor of received packets in connected sockets only; -1 in others.
    let (mut cpu, mut len) = (-1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the value and its length live during the call.
    let rc = unsafe {
        let value = (&raw mut cpu).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_INCOMING_CPU, value, &mut len)
    };
    is_connected || rc == 0 && cpu >= 0
}

/// Lets a connected socket receive from nobody in particular.
pub fn disconnect(fd: &OwnedFd) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: a socket address of the length given. It cannot fail.
    unsafe { libc::connect(fd.as_raw_fd(), &nobody, size_of_val(&nobody) as libc::socklen_t) };
}

/// Drops the packets that wait.
pub fn drain(fd: &OwnedFd) {
    for _ in 0..DRAINED_MAX {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: no bytes are written.
        if unsafe { libc::recv(fd.as_raw_fd(), std::ptr::null_mut(), 0, flags) } < 0 {
            return;
        }
    }
}

/// Messages that a returned socket may have: a receive buffer holds fewer.
const DRAINED_MAX: usize = 1 << 16;

/// Makes the socket receive nothing, so that it only reserves its UDP port.
pub fn receive_nothing(fd: &OwnedFd) -> io::Result<()> {
    bpf::attach(fd, Attach::Filter, &[op(libc::BPF_RET | libc::BPF_K, 0)])
}

/// Ends what [`receive_nothing`] has begun, or does nothing.
pub fn receive_all(fd: &OwnedFd) -> io::Result<()> {
    let value: libc::c_int = 0;
    // SAFETY: the value lives during the call, and its length is given.
    let rc = unsafe {
        let length = size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, (&raw const value).cast(), length)
    };
    let error = io::Error::last_os_error();
    // Without a filter there is none to detach.
    if rc == 0 || error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) }
}

/// Waits until the socket has room, at most `timeout_ms` milliseconds.
pub fn wait_writable(fd: RawFd, timeout_ms: i32) {
    let mut request = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd that lives during the call.
    unsafe { libc::poll(&mut request, 1, timeout_ms) };
}

/// Whether one of the descriptors is readable now.
#[cfg(test)]
pub fn is_readable(fds: &[RawFd]) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array lives during the call and has the length given.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) > 0 }
}

/// A socket address in the kernel's format.
#[derive(Clone, Copy)]
#[repr(C)]
pub union SockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// An all-zero address.
    pub const fn zero() -> SockAddr {
        // SAFETY: all zero bytes are valid for these plain structures.
        unsafe { core::mem::zeroed() }
    }
    /// The address, port and scope of `addr`.
    pub fn new(addr: &SocketAddr) -> SockAddr {
        let scope = match addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        SockAddr::from_parts(&addr.ip(), addr.port(), scope)
    }
    /// The address of `ip`, `port`, and the scope of link-local IPv6 addresses.
    pub fn from_parts(ip: &IpAddr, port: u16, scope: u32) -> SockAddr {
        let mut name = SockAddr::zero();
        match ip {
            IpAddr::V4(ip) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*ip).to_be() },
                    sin_zero: [0; 8],
                }
            }
            IpAddr::V6(ip) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: scope,
                }
            }
        }
        name
    }
    /// Returns address, port and scope.
    pub fn parts(&self) -> (IpAddr, u16, u32) {
        // SAFETY: the family comes first in both; every bit pattern of both structures is valid, and all of the union
        // is initialised (it is only made by `zero`, or filled by the kernel over that).
        unsafe {
            if i32::from(self.v4.sin_family) == libc::AF_INET6 {
                let v6 = &self.v6;
                (IpAddr::V6(v6.sin6_addr.s6_addr.into()), u16::from_be(v6.sin6_port), v6.sin6_scope_id)
            } else {
                let ip = u32::from_be(self.v4.sin_addr.s_addr);
                (IpAddr::V4(ip.into()), u16::from_be(self.v4.sin_port), 0)
            }
        }
    }
    /// Pointer for system calls.
    pub fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const *self).cast()
    }
    /// Number of bytes in use.
    pub fn len(&self) -> libc::socklen_t {
        // SAFETY: as in `parts`.
        let v6 = i32::from(unsafe { self.v4.sin_family }) == libc::AF_INET6;
        let len = if v6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
        len as libc::socklen_t
    }
}
