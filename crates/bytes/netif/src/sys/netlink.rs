//! Netlink sockets of the routing family: open, send, receive. `crate::netlink` writes and reads the messages.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens a socket that receives the events of the multicast groups `groups` (bits `RTMGRP_*`).
pub fn open(groups: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a valid sockaddr_nl.
    let mut name: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
    name.nl_family = libc::AF_NETLINK as u16;
    name.nl_groups = groups;
    // SAFETY: a socket address of the length given.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), size_of_val(&name) as libc::socklen_t) };
    if rc == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Sends a request to the kernel, which puts its reply into the socket's receive queue before this call returns.
pub fn send(fd: &OwnedFd, request: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer lives during the call and has the length given.
    let n = unsafe { libc::send(fd.as_raw_fd(), request.as_ptr().cast(), request.len(), libc::MSG_DONTWAIT) };
    if n >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives one datagram of messages; does not block.
pub fn recv(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer lives during the call and has the length given.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
