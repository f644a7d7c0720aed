//! `getifaddrs`, and the index, flags and MTU of an interface.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

/// One entry of the list of `getifaddrs`: an interface and one of its addresses.
pub struct IfaddrsRow {
    /// Interface name.
    pub name: String,
    /// Flags `IFF_*` of linux/if.h.
    pub flags: u32,
    /// The IP address, if the entry has one.
    pub ip: Option<IpAddr>,
    /// The MAC address, if the entry is of the family `AF_PACKET`.
    pub mac: Option<[u8; 6]>,
}

/// Lists all entries.
pub fn rows() -> io::Result<Vec<IfaddrsRow>> {
    let mut head: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: `head` is a valid place for the result; the list is freed below, once.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut rows = Vec::new();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list, which lives until freeifaddrs; its name is a C string.
        let entry = unsafe { &*at };
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let (ip, mac) = if entry.ifa_addr.is_null() { (None, None) } else { decode(entry.ifa_addr) };
        rows.push(IfaddrsRow { name, flags: entry.ifa_flags, ip, mac });
        at = entry.ifa_next;
    }
    // SAFETY: `head` came from getifaddrs and nothing borrowed from the list is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(rows)
}

/// Reads the IP address or the MAC address of a socket address.
fn decode(addr: *const libc::sockaddr) -> (Option<IpAddr>, Option<[u8; 6]>) {
    // SAFETY: getifaddrs gives a valid socket address; its family says which structure it is.
    unsafe {
        match i32::from((*addr).sa_family) {
            libc::AF_INET => {
                let v4 = &*addr.cast::<libc::sockaddr_in>();
                (Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)))), None)
            }
            libc::AF_INET6 => {
                let v6 = &*addr.cast::<libc::sockaddr_in6>();
                (Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))), None)
            }
            libc::AF_PACKET => {
                let link = &*addr.cast::<libc::sockaddr_ll>();
                let mut mac = [0; 6];
                mac.copy_from_slice(&link.sll_addr[..6]);
                (None, (link.sll_halen == 6).then_some(mac))
            }
            _ => (None, None),
        }
    }
}

/// Index of an interface, 0 if there is no such interface.
pub fn index(name: &str) -> u32 {
    let Ok(name) = CString::new(name) else { return 0 };
    // SAFETY: a C string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Flags `IFF_*` of an interface; `None` if there is no such interface.
pub fn flags(index: u32) -> Option<u32> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    // SAFETY: room for the longest name.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: if_indextoname wrote a C string.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().ok()?;
    // SAFETY: SIOCGIFFLAGS writes ifru_flags.
    query(name, libc::SIOCGIFFLAGS).map(|reply| unsafe { u32::from(reply.ifr_ifru.ifru_flags as u16) })
}

/// MTU of an interface in bytes.
pub fn mtu(name: &str) -> Option<u32> {
    // SAFETY: SIOCGIFMTU writes ifru_mtu.
    query(name, libc::SIOCGIFMTU).and_then(|reply| u32::try_from(unsafe { reply.ifr_ifru.ifru_mtu }).ok())
}

/// Calls `ioctl` with a request about an interface for which the kernel writes its reply into the same `struct ifreq`.
fn query(name: &str, request_code: libc::Ioctl) -> Option<libc::ifreq> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: such a request reads the name in the structure given and writes that structure.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request_code, &mut request) };
    (rc == 0).then_some(request)
}
