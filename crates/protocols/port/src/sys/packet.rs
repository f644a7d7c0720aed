//! AF_PACKET sockets with virtio headers, fanout groups, and raw IP sockets.

use super::bpf::{self, Attach, Insn};
use super::socket::{set, set_buffers};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// Numbers of linux/if_packet.h that the libc crate may lack.
const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_FANOUT: i32 = 18;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_FANOUT_CBPF: i32 = 6;
const SO_RXQ_OVFL: i32 = 40;

/// Opens a packet socket that receives nothing until it is bound.
pub fn open(rcvbuf: u32, sndbuf: u32) -> io::Result<OwnedFd> {
    let fd = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    set_buffers(&fd, rcvbuf, sndbuf)?;
    set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set(&fd, libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
    set(&fd, libc::SOL_SOCKET, SO_RXQ_OVFL, 1)?;
    // Linux before 4.20 lacks the option; the filter rejects this host's own frames in any case.
    let _ = set(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    Ok(fd)
}

/// Binds the socket to interface `ifindex`; returns the type of the link (`ARPHRD_*`).
pub fn bind(fd: &OwnedFd, ifindex: u32) -> io::Result<u16> {
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut name: libc::sockaddr_ll = unsafe { core::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    name.sll_ifindex = ifindex as i32;
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `name` is a socket address of the length given, valid during both calls.
    let rc = unsafe {
        match libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) {
            0 => libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &mut len),
            failed => failed,
        }
    };
    if rc == 0 { Ok(name.sll_hatype) } else { Err(io::Error::last_os_error()) }
}

/// Joins fanout group `id`; the program `code` decides which socket of the group receives a frame.
pub fn join_group(fd: &OwnedFd, id: u16, code: &[Insn]) -> io::Result<()> {
    set(fd, libc::SOL_PACKET, PACKET_FANOUT, i32::from(id) | PACKET_FANOUT_CBPF << 16)?;
    bpf::attach(fd, Attach::Fanout, code)
}

/// Opens a socket, bound to interface `device`, for whole IP packets that the kernel routes, resolves and queues. It receives
/// nothing.
pub fn open_raw(v6: bool, device: &str, sndbuf: u32) -> io::Result<OwnedFd> {
    let fd = socket(if v6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    set_buffers(&fd, 0, sndbuf)?;
    // SAFETY: the name lives during the call and its length is given.
    let rc = unsafe {
        let (name, len) = (device.as_ptr().cast(), device.len() as libc::socklen_t);
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, len)
    };
    if rc == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends one packet to `to`.
pub fn send_to(fd: &OwnedFd, packet: &[u8], to: &super::socket::SockAddr) -> io::Result<()> {
    // SAFETY: buffer and address live during the call and have the lengths given.
    let n = unsafe {
        let (bytes, len) = (packet.as_ptr().cast(), packet.len());
        libc::sendto(fd.as_raw_fd(), bytes, len, libc::MSG_DONTWAIT, to.as_ptr(), to.len())
    };
    if n >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
