//! From a destination address to a device, a source address and the way that packets take.
//!
//! Addresses of this host are found in the devices' tables. Networks that a port serves without the kernel are found by their
//! prefixes. For all others the kernel's routing table decides (`route.rs`).

use super::route::RouteTable;
use crate::device::HostDevice;
use crate::refusal::refuse;
use burst_base::{DeviceId, Nanos};
use burst_control::Refusal;
use burst_control::cm::CmAddr;
use burst_port::PortAddr;
use std::net::{IpAddr, Ipv4Addr};

/// Where a destination address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Device that packets leave by.
    pub device: DeviceId,
    /// Index of the source address in the device's GID table.
    pub index: usize,
    /// Source address on the wire.
    pub src: IpAddr,
    /// Destination address on the wire.
    pub dst: IpAddr,
    /// How the next hop is resolved.
    pub via: ResolveMethod,
}

/// How a next hop is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveMethod {
    /// Not at all: the destination is this host or a multicast group.
    Local,
    /// By the kernel.
    Kernel,
    /// By the port, which owns its interface.
    Port,
}

/// An entry of a device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalAddr {
    /// Device.
    pub device: DeviceId,
    /// Index in its GID table.
    pub index: usize,
}

/// The first address of any device that `fits`.
fn find_addr(devices: &[HostDevice], fits: impl Fn(&PortAddr) -> bool) -> Option<LocalAddr> {
    devices.iter().find_map(|d| Some(LocalAddr { device: d.id, index: d.caps.addrs.iter().position(&fits)? }))
}

/// The device with address `ip`; `scope` is the index of the interface, 0 for any.
pub(super) fn owner_of(devices: &[HostDevice], ip: IpAddr, scope: u32) -> Option<LocalAddr> {
    find_addr(devices, |a| a.ip == ip && (scope == 0 || a.ifindex == scope))
}

/// The address of a port that resolves next hops itself and reaches `ip`: on its network, or by its gateway.
fn reached(devices: &[HostDevice], ip: IpAddr, by_gateway: bool) -> Option<LocalAddr> {
    find_addr(devices, |a| {
        a.reach.is_some_and(|r| r.prefix.contains(ip) || by_gateway && r.gateway && a.ip.is_ipv4() == ip.is_ipv4())
    })
}

/// The first address of a family, for loopback; devices whose link is up come first.
pub(super) fn first_of(devices: &[HostDevice], v4: bool) -> Option<LocalAddr> {
    let of = |up: bool| devices.iter().filter(move |d| d.caps.up == up);
    of(true).chain(of(false)).find_map(|d| {
        let index = d.caps.addrs.iter().position(|a| a.ip.is_ipv4() == v4)?;
        Some(LocalAddr { device: d.id, index })
    })
}

/// ENODEV: no device has the address.
pub(super) fn no_device<T>(what: &str, ip: IpAddr) -> Result<T, Refusal> {
    refuse(libc::ENODEV, format!("{what} {ip} is not on an interface that Burst serves"))
}

/// Whether an address is valid on one link only and needs the index of its interface.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Finds the device and the addresses for packets from `src` to `dst`. `src` may be unspecified.
///
/// # Errors
/// EINVAL: the families differ. ENODEV: no device serves the source or the way. Otherwise the errno of the kernel's lookup.
pub(super) fn find(
    devices: &[HostDevice],
    routes: &mut RouteTable,
    now: Nanos,
    src: Option<CmAddr>,
    dst: CmAddr,
) -> Result<Destination, Refusal> {
    let chosen = src.filter(|s| !s.ip.is_unspecified());
    if chosen.is_some_and(|s| s.ip.is_ipv4() != dst.ip.is_ipv4()) {
        return refuse(libc::EINVAL, "source and destination are of different families");
    }
    let bound = match chosen.filter(|s| !s.ip.is_loopback()) {
        Some(s) => Some(owner_of(devices, s.ip, s.scope).map_or_else(|| no_device("the source", s.ip), Ok)?),
        None => None,
    };
    if let Some(local) = find_local(devices, bound, dst)? {
        return Ok(local);
    }
    // The kernel has no routes for networks that a port serves without the kernel.
    let owned = bound.filter(|b| devices[b.device.index()].caps.addrs[b.index].reach.is_some());
    if let Some(found) = owned.or_else(|| bound.is_none().then(|| reached(devices, dst.ip, false)).flatten()) {
        return Ok(leads_to(devices, found, Some(dst.ip), ResolveMethod::Port));
    }
    let gateway = || bound.is_none().then(|| reached(devices, dst.ip, true)).flatten();
    let by_gateway = |found| Ok(leads_to(devices, found, Some(dst.ip), ResolveMethod::Port));
    let route = match (routes.lookup(now, dst.ip, chosen.map(|s| s.ip), dst.scope), gateway()) {
        (Ok(route), _) => route,
        (Err(_), Some(found)) => return by_gateway(found),
        (Err(errno), None) => {
            let error = std::io::Error::from_raw_os_error(errno);
            return refuse(errno, format!("there is no route to {}: {error}", dst.ip));
        }
    };
    let via = if dst.ip.is_multicast() { ResolveMethod::Local } else { ResolveMethod::Kernel };
    let by_source = || route.src.and_then(|s| owner_of(devices, s, if is_link_local(s) { route.oif } else { 0 }));
    let by_interface = || find_addr(devices, |a| a.ifindex == route.oif && a.ip.is_ipv4() == dst.ip.is_ipv4());
    match (bound.or_else(by_source).or_else(by_interface), gateway()) {
        (Some(found), _) => Ok(leads_to(devices, found, Some(dst.ip), via)),
        (None, Some(found)) => by_gateway(found),
        (None, None) => no_device("the way to", dst.ip),
    }
}

/// A destination that needs no route: this host, or a multicast group on a known device.
fn find_local(devices: &[HostDevice], bound: Option<LocalAddr>, dst: CmAddr) -> Result<Option<Destination>, Refusal> {
    let local = |at: LocalAddr, dst: Option<IpAddr>| Ok(Some(leads_to(devices, at, dst, ResolveMethod::Local)));
    // 127.0.0.1, ::1 and the unspecified addresses mean any device.
    if dst.ip.is_loopback() || dst.ip.is_unspecified() {
        let first = || first_of(devices, dst.ip.is_ipv4()).map_or_else(|| no_device("the destination", dst.ip), Ok);
        let at = bound.map_or_else(first, Ok)?;
        return local(at, is_beside(devices[at.device.index()].caps.addrs[at.index].ip, dst.ip).then_some(dst.ip));
    }
    if let Some(own) = owner_of(devices, dst.ip, dst.scope) {
        return local(bound.unwrap_or(own), Some(dst.ip));
    }
    // A group is on the device that the program chose. No route is needed then, nor with a single device.
    let only = || first_of(devices, dst.ip.is_ipv4()).filter(|_| devices.len() == 1);
    match bound.or_else(only).filter(|_| dst.ip.is_multicast()) {
        Some(at) => local(at, Some(dst.ip)),
        None => Ok(None),
    }
}

/// Whether `dst` is another loopback address than that of the device, which has one, too: several daemons of one machine serve
/// 127.0.0.2, 127.0.0.3 and so on, and each is a host for the others. 127.0.0.1 is the daemon that is asked.
fn is_beside(own: IpAddr, dst: IpAddr) -> bool {
    own.is_loopback() && dst.is_loopback() && dst != own && dst != IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// The destination by the local address `at`. Without `dst` the packets go to `at` itself.
fn leads_to(devices: &[HostDevice], at: LocalAddr, dst: Option<IpAddr>, via: ResolveMethod) -> Destination {
    let LocalAddr { device, index } = at;
    let src = devices[device.index()].caps.addrs[index].ip;
    Destination { device, index, src, dst: dst.unwrap_or(src), via }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_port::PortCaps;

    fn device(index: u16, ips: &[&str]) -> HostDevice {
        let addr = |ip: &&str| PortAddr {
            ip: ip.parse().expect("ip"),
            ifindex: 100 + u32::from(index),
            ifname: "x".into(),
            reach: None,
        };
        let caps = PortCaps {
            name: "udp".into(),
            addrs: ips.iter().map(addr).collect(),
            link_mtu: 9000,
            up: true,
            speed_mbps: 0,
            ifname: "x".into(),
            mac: [0; 6],
        };
        HostDevice::new(DeviceId(index), caps)
    }

    fn addr(ip: &str) -> CmAddr {
        CmAddr { ip: ip.parse().expect("ip"), port: 1, scope: 0 }
    }

    const NOW: Nanos = Nanos::from_ms(1);

    #[test]
    fn loopback_and_own_addresses_are_on_their_device() {
        let devices = [device(0, &["192.0.2.1", "2001:db8::1"]), device(1, &["198.51.100.1"])];
        let mut routes = RouteTable::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, NOW, src.map(addr), addr(dst));
        let found = go(None, "127.0.0.1").expect("found");
        assert_eq!((found.device, found.src, found.dst), (DeviceId(0), addr("192.0.2.1").ip, addr("192.0.2.1").ip));
        let found = go(None, "::1").expect("found");
        assert_eq!((found.device, found.index, found.dst), (DeviceId(0), 1, addr("2001:db8::1").ip));
        let found = go(None, "198.51.100.1").expect("found");
        assert_eq!((found.device, found.src, found.via), (DeviceId(1), addr("198.51.100.1").ip, ResolveMethod::Local));
        let found = go(Some("192.0.2.1"), "198.51.100.1").expect("found");
        assert_eq!((found.device, found.dst), (DeviceId(0), addr("198.51.100.1").ip));
        assert_eq!(go(Some("192.0.2.1"), "239.1.2.3").expect("a group").via, ResolveMethod::Local);
        assert_eq!(go(Some("192.0.2.9"), "198.51.100.1").expect_err("not ours").errno, libc::ENODEV);
        assert_eq!(go(Some("192.0.2.1"), "2001:db8::1").expect_err("families").errno, libc::EINVAL);
    }

    #[test]
    fn a_daemon_on_a_loopback_address_reaches_those_on_others() {
        let devices = [device(0, &["127.0.0.2"])];
        let mut routes = RouteTable::default();
        for (dst, wire) in [("127.0.0.3", "127.0.0.3"), ("127.0.0.2", "127.0.0.2"), ("127.0.0.1", "127.0.0.2")] {
            let found = find(&devices, &mut routes, NOW, None, addr(dst)).expect("found");
            assert_eq!((found.src, found.dst, found.via), (addr("127.0.0.2").ip, addr(wire).ip, ResolveMethod::Local));
        }
        // Where the device has an address of a network all loopback addresses are its own.
        let found = find(&[device(0, &["192.0.2.1"])], &mut routes, NOW, None, addr("127.0.0.3")).expect("found");
        assert_eq!(found.dst, addr("192.0.2.1").ip);
    }

    #[test]
    fn networks_without_a_kernel_are_found_by_their_prefix_and_the_rest_by_the_gateway() {
        let mut owner = device(1, &["10.77.0.1"]);
        let prefix = "10.77.0.1/24".parse().expect("a prefix");
        owner.caps.addrs[0].reach = Some(burst_port::Reach { prefix, gateway: true });
        let devices = [device(0, &["192.0.2.1"]), owner];
        let mut routes = RouteTable::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, NOW, src.map(addr), addr(dst));
        let found = go(None, "10.77.0.9").expect("on the network");
        assert_eq!((found.device, found.src, found.dst), (DeviceId(1), addr("10.77.0.1").ip, addr("10.77.0.9").ip));
        let found = go(Some("10.77.0.1"), "203.0.113.7").expect("bound to the port");
        assert_eq!((found.device, found.dst, found.via), (DeviceId(1), addr("203.0.113.7").ip, ResolveMethod::Port));
        assert_eq!(go(None, "203.0.113.7").expect("by the gateway").device, DeviceId(1));
    }
}
