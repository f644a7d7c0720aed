//! Options of the UDP socket by which an unprivileged process makes the kernel resolve a next hop.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

// Numbers of linux/in.h and linux/in6.h that the libc crate lacks.
const IP_UNICAST_IF: i32 = 50;
const IPV6_UNICAST_IF: i32 = 76;

/// Makes unicast packets of the socket leave by interface `ifindex`, whatever the routes are. Unlike `SO_BINDTODEVICE`, this
/// needs no privilege.
pub fn leave_by(fd: &OwnedFd, v6: bool, ifindex: u32) -> io::Result<()> {
    let (level, option) = if v6 { (libc::IPPROTO_IPV6, IPV6_UNICAST_IF) } else { (libc::IPPROTO_IP, IP_UNICAST_IF) };
    // The kernel reads the index of both options in network byte order.
    set(fd, level, option, ifindex.to_be() as i32)
}

/// Sets the TTL or hop limit of the socket's unicast packets.
pub fn set_hop_limit(fd: &OwnedFd, v6: bool, hop_limit: u8) -> io::Result<()> {
    let (level, option) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) } else { (libc::IPPROTO_IP, libc::IP_TTL) };
    set(fd, level, option, i32::from(hop_limit))
}

/// Sets an option that has an `int` as its value.
fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value lives during the call and has the length given.
    let rc = unsafe {
        let len = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
