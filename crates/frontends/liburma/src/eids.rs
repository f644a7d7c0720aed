//! The entity ids of this machine: the addresses of its interfaces.
//!
//! The kernel knows most of them. A device of DPDK has addresses that only its port knows: those of the daemon's devices, and
//! those that `BURST_PORT` gives to a node in this process, come first, because who configures such a device means it.

use crate::daemon;
use crate::link;
use burst_port::{PortKind, PortSpec};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// All addresses: those of DPDK's devices, those of the kernel's interfaces, those of its loopback interface; of each IPv4 first.
/// Link-local ones are left out.
pub fn addresses() -> Vec<IpAddr> {
    let mut owned: Vec<IpAddr> = daemon::devices().iter().flat_map(|device| owned_by(&device.port)).collect();
    owned.extend(link::port_of_program().iter().flat_map(|port| owned_by(port)));
    merged(owned, of_kernel())
}

/// Addresses of which the kernel knows nothing, by the specification of a port.
fn owned_by(port: &str) -> Vec<IpAddr> {
    match PortSpec::parse(port).map(|spec| spec.kind) {
        Ok(PortKind::Dpdk(dpdk)) => dpdk.addrs.iter().map(|prefix| prefix.ip).collect(),
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

/// Addresses of the kernel's interfaces.
fn of_kernel() -> Vec<IpAddr> {
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
            let addr = (*at).ifa_addr;
            if !addr.is_null() && i32::from((*addr).sa_family) == libc::AF_INET {
                let v4 = (*addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                found.push(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4))));
            } else if !addr.is_null() && i32::from((*addr).sa_family) == libc::AF_INET6 {
                let v6 = Ipv6Addr::from((*addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr);
                found.push(IpAddr::V6(v6));
            }
            at = (*at).ifa_next;
        }
    }
    // SAFETY: the list of `getifaddrs`.
    unsafe { libc::freeifaddrs(first) };
    found
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
