//! Conversions of socket addresses between C's `sockaddr`, whose family determines its length, and [`CmAddr`].

use crate::boundary::{EINVAL, Outcome};
use crate::sys::rdma_addr;
use burst_control::cm::{CmAddr, CmRoute};
use libc::{sockaddr_in, sockaddr_in6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The default partition, big-endian as in `rdma_ib_addr`.
const PKEY: u16 = 0xffff;

/// The address family AF_IB, which Burst does not support.
pub const AF_IB: i32 = 27;

/// Length of an address of a supported family; 0 for others.
pub fn len_of(addr: &CmAddr) -> usize {
    match addr.ip {
        IpAddr::V4(_) => size_of::<sockaddr_in>(),
        IpAddr::V6(_) => size_of::<sockaddr_in6>(),
    }
}

/// Reads an address.
///
/// # Errors
/// EINVAL for NULL, and for other families than IPv4 and IPv6, as librdmacm (`ucma_addrlen`).
///
/// # Safety
/// `addr` must be NULL or as long as its family demands.
pub unsafe fn read<T>(addr: *const T) -> Outcome<CmAddr> {
    if addr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: every address begins with its family, and is as long as that says. It may lie unaligned in a buffer.
    unsafe {
        match i32::from(addr.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET => {
                let a = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Ok(CmAddr { ip: ip.into(), port: u16::from_be(a.sin_port), scope: 0 })
            }
            libc::AF_INET6 => {
                let a = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                Ok(CmAddr { ip: ip.into(), port: u16::from_be(a.sin6_port), scope: a.sin6_scope_id })
            }
            _ => Err(EINVAL),
        }
    }
}

/// Writes an address.
///
/// # Safety
/// `to` must have room for [`len_of`] bytes.
pub unsafe fn write<T>(to: *mut T, addr: &CmAddr) {
    // SAFETY: the caller's promise; all fields not named are zero, which is valid for plain C structs.
    unsafe {
        match addr.ip {
            IpAddr::V4(ip) => {
                let mut a: sockaddr_in = std::mem::zeroed();
                a.sin_family = libc::AF_INET as libc::sa_family_t;
                a.sin_port = addr.port.to_be();
                a.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
                to.cast::<sockaddr_in>().write_unaligned(a);
            }
            IpAddr::V6(ip) => {
                let mut a: sockaddr_in6 = std::mem::zeroed();
                a.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                a.sin6_port = addr.port.to_be();
                a.sin6_addr.s6_addr = ip.octets();
                a.sin6_scope_id = addr.scope;
                to.cast::<sockaddr_in6>().write_unaligned(a);
            }
        }
    }
}

/// Fills the public addresses of an id with those that are known.
///
/// # Safety
/// `to` must be writable.
pub unsafe fn write_route(to: *mut rdma_addr, route: &CmRoute) {
    // SAFETY: the caller's promise; each union has room for a `sockaddr_storage`.
    unsafe {
        if let Some(src) = &route.src {
            write(&raw mut (*to).__bindgen_anon_1, src);
        }
        if let Some(dst) = &route.dst {
            write(&raw mut (*to).__bindgen_anon_2, dst);
        }
        if route.device.is_some() {
            let ib = &mut (*to).addr.ibaddr;
            ib.sgid.raw = route.sgid;
            ib.dgid.raw = route.dgid;
            ib.pkey = PKEY.to_be();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(addr: CmAddr) {
        let mut room = [0u8; 129];
        // Odd addresses are as good.
        let at = room[1..].as_mut_ptr();
        // SAFETY: 128 bytes of room.
        let back = unsafe {
            write(at, &addr);
            read(at)
        };
        assert_eq!(back, Ok(addr));
    }

    #[test]
    fn addresses_survive_the_round_trip() {
        round(CmAddr { ip: "10.1.2.3".parse().unwrap(), port: 7174, scope: 0 });
        round(CmAddr { ip: "fe80::1:2".parse().unwrap(), port: 65535, scope: 9 });
        round(CmAddr { ip: "::".parse().unwrap(), port: 0, scope: 0 });
    }

    #[test]
    fn other_families_are_refused() {
        let mut storage = [0u8; 128];
        storage[..2].copy_from_slice(&(AF_IB as u16).to_ne_bytes());
        // SAFETY: 128 readable bytes, or NULL.
        unsafe {
            assert_eq!(read(storage.as_ptr()), Err(EINVAL));
            assert_eq!(read(std::ptr::null::<u8>()), Err(EINVAL));
        }
    }
}
