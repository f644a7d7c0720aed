//! The entity ids of this machine: the addresses of its interfaces.
//!
//! The kernel knows most of them. A device of DPDK has addresses that only its port knows: those of the daemon's devices, and
//! those that `BURST_PORT` gives to a node in this process, come first, because who configures such a device means it.

use crate::daemon;
use crate::link;
use burst_port::lan::Prefix;
use burst_port::{PortKind, PortSpec};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// The device that has them all.
pub const DEVICE_NAME: &CStr = c"burst0";

/// All addresses: those of DPDK's devices, those of the kernel's interfaces, those of its loopback interface; of each IPv4 first.
/// Link-local ones are left out.
pub fn addresses() -> Vec<IpAddr> {
    let mut owned: Vec<IpAddr> = daemon::devices().iter().flat_map(|device| owned_by(&device.port)).collect();
    owned.extend(link::port_of_program().iter().flat_map(|port| owned_by(port)));
    merged(owned, of_kernel().iter().map(|prefix| prefix.ip).collect())
}

/// The networks of all addresses but those of the loopback interface.
pub fn networks() -> Vec<Prefix> {
    let mut networks: Vec<Prefix> = daemon::devices().iter().flat_map(|device| prefixes_of(&device.port)).collect();
    networks.extend(link::port_of_program().iter().flat_map(|port| prefixes_of(port)));
    networks.extend(of_kernel());
    networks.retain(|network| !network.ip.is_loopback());
    networks
}

/// Addresses of which the kernel knows nothing, by the specification of a port.
fn owned_by(port: &str) -> Vec<IpAddr> {
    prefixes_of(port).iter().map(|prefix| prefix.ip).collect()
}

/// The same with their networks.
fn prefixes_of(port: &str) -> Vec<Prefix> {
    match PortSpec::parse(port).map(|spec| spec.kind) {
        Ok(PortKind::Dpdk(dpdk)) => dpdk.addrs,
        // A wrong specification is refused where the port is opened.
        _ => Vec::new(),
    }
}

fn merged(owned: Vec<IpAddr>, of_kernel: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut all: Vec<(IpAddr, bool)> = owned.into_iter().map(|address| (address, true)).collect();
    all.extend(of_kernel.into_iter().map(|address| (address, false)));
    all.retain(|(address, _)| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    all.sort_by_key(|(address, is_owned)| (!is_owned, address.is_loopback(), address.is_ipv6()));
    let mut found: Vec<IpAddr> = Vec::new();
    for (address, _) in all {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// Addresses of the kernel's interfaces, with their networks.
fn of_kernel() -> Vec<Prefix> {
    let mut first = null_mut::<libc::ifaddrs>();
    let mut found = Vec::new();
    // SAFETY: the list is freed below, and only read between.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return found;
    }
    let mut at = first;
    while !at.is_null() {
        // SAFETY: an entry of the list; an address that is not null has the structure of its family.
        unsafe {
            if let Some(ip) = ip_of((*at).ifa_addr) {
                let len = match ip_of((*at).ifa_netmask) {
                    Some(IpAddr::V4(mask)) => u32::from(mask).count_ones(),
                    Some(IpAddr::V6(mask)) => u128::from(mask).count_ones(),
                    None if ip.is_ipv4() => 32,
                    None => 128,
                };
                found.push(Prefix { ip, len: len as u8 });
            }
            at = (*at).ifa_next;
        }
    }
    // SAFETY: the list of `getifaddrs`.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// The IP address in a socket address.
///
/// # Safety
/// It is null, or has the structure of its family.
unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    unsafe {
        match i32::from(addr.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = (*addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4))))
            }
            libc::AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from((*addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_of_dpdk_devices_come_first_and_are_known_from_the_specification() {
        let owned = owned_by("impair:loss=1%/dpdk:dev=net_memif0,addr=fd77::1/64,addr=10.77.0.1/24");
        assert_eq!(owned, ips(&["fd77::1", "10.77.0.1"]));
        for other in ["udp:addr=127.0.0.5", "packet:dev=eth0", "", "dpdk:dev=net_memif0"] {
            assert!(owned_by(other).is_empty(), "{other}");
        }
        let kernel = ips(&["127.0.0.1", "10.1.0.1", "::1", "fd00::1", "fe80::1", "10.77.0.1"]);
        let want = ips(&["10.77.0.1", "fd77::1", "10.1.0.1", "fd00::1", "127.0.0.1", "::1"]);
        assert_eq!(merged(owned, kernel), want);
    }
}
