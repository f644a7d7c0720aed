//! Addresses: binding, and from a destination to device, source and path.

use super::UNKNOWN_PEER;
use super::client::{CmClient, Id, Stage};
use super::ports::Binding;
use super::route::Routes;
use crate::device::Device;
use crate::house::House;
use crate::session::refuse;
use burst_control::Refusal;
use burst_control::cm::{CmAddr, CmEvent, CmEventKind, CmId, CmReply, CmRoute};
use burst_engine::cm::CmPhase;
use burst_engine::cm::probes::CmProbe;
use burst_engine::flow::gid_of;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Local ACK timeout code when the program sets none: 4.096 us * 2^16 is 268 ms.
pub(super) const ACK_TIMEOUT: u8 = 16;

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub device: usize,
    pub index: usize,
    /// Source on the wire.
    pub src: IpAddr,
    /// Destination on the wire.
    pub dst: IpAddr,
}

/// The device and GID index that have an address.
fn owner_of(devices: &[Device], ip: IpAddr, scope: u32) -> Option<(usize, usize)> {
    devices.iter().enumerate().find_map(|(n, d)| {
        let fits = |a: &burst_port::PortAddr| a.ip == ip && (scope == 0 || a.ifindex == scope);
        d.caps.addrs.iter().position(fits).map(|i| (n, i))
    })
}

/// The address of a port that finds the way itself and has one to `ip`: on its network, or by its gateway.
fn reached(devices: &[Device], ip: IpAddr, by_gateway: bool) -> Option<(usize, usize)> {
    devices.iter().enumerate().find_map(|(n, d)| {
        let fits = |a: &burst_port::PortAddr| {
            a.reach.is_some_and(|r| r.prefix.contains(ip) || by_gateway && r.gateway && a.ip.is_ipv4() == ip.is_ipv4())
        };
        d.caps.addrs.iter().position(fits).map(|i| (n, i))
    })
}

/// The first address of a family, for loopback.
fn first_of(devices: &[Device], v4: bool) -> Option<(usize, usize)> {
    let up = |d: &&(usize, &Device)| d.1.caps.up;
    let all: Vec<(usize, &Device)> = devices.iter().enumerate().collect();
    let ordered = all.iter().filter(up).chain(all.iter().filter(|d| !up(d)));
    ordered.filter_map(|(n, d)| d.caps.addrs.iter().position(|a| a.ip.is_ipv4() == v4).map(|i| (*n, i))).next()
}

fn no_device<T>(what: &str, ip: IpAddr) -> Result<T, Refusal> {
    refuse(libc::ENODEV, format!("{what} {ip} is not on an interface that Burst serves"))
}

/// Finds device, source and destination. `src` may be unspecified.
pub(super) fn find(
    devices: &[Device],
    routes: &mut Routes,
    src: Option<CmAddr>,
    dst: CmAddr,
) -> Result<Found, Refusal> {
    let chosen = src.filter(|s| !s.ip.is_unspecified());
    if chosen.is_some_and(|s| s.ip.is_ipv4() != dst.ip.is_ipv4()) {
        return refuse(libc::EINVAL, "source and destination are of different families");
    }
    let at = |(device, index): (usize, usize), dst: Option<IpAddr>| {
        let src = devices[device].caps.addrs[index].ip;
        Found { device, index, src, dst: dst.unwrap_or(src) }
    };
    let bound = match chosen.filter(|s| !s.ip.is_loopback()) {
        Some(s) => Some(owner_of(devices, s.ip, s.scope).map_or_else(|| no_device("the source", s.ip), Ok)?),
        None => None,
    };
    // To oneself: by the device that has the address, or any device for 127.0.0.1, ::1 and the unspecified addresses.
    if dst.ip.is_loopback() || dst.ip.is_unspecified() {
        let first = || first_of(devices, dst.ip.is_ipv4()).map_or_else(|| no_device("the destination", dst.ip), Ok);
        return Ok(at(bound.map_or_else(first, Ok)?, None));
    }
    if let Some(own) = owner_of(devices, dst.ip, dst.scope) {
        return Ok(at(bound.unwrap_or(own), Some(dst.ip)));
    }
    // A group is on the device that the program chose; no route is needed then, nor with a single device.
    if dst.ip.is_multicast()
        && let Some(device) = bound.or_else(|| first_of(devices, dst.ip.is_ipv4()).filter(|_| devices.len() == 1))
    {
        return Ok(at(device, Some(dst.ip)));
    }
    // Of networks that a port serves without the kernel, the kernel's routes know nothing.
    let owned = bound.filter(|(device, index)| devices[*device].caps.addrs[*index].reach.is_some());
    if let Some(found) = owned.or_else(|| bound.is_none().then(|| reached(devices, dst.ip, false)).flatten()) {
        return Ok(at(found, Some(dst.ip)));
    }
    let gateway = || bound.is_none().then(|| reached(devices, dst.ip, true)).flatten();
    let way = match (routes.ask(dst.ip, chosen.map(|s| s.ip), dst.scope), gateway()) {
        (Ok(way), _) => way,
        (Err(_), Some(found)) => return Ok(at(found, Some(dst.ip))),
        (Err(errno), None) => {
            let error = std::io::Error::from_raw_os_error(errno);
            return refuse(errno, format!("there is no route to {}: {error}", dst.ip));
        }
    };
    if let Some(bound) = bound {
        return Ok(at(bound, Some(dst.ip)));
    }
    let by_source = way.src.and_then(|s| owner_of(devices, s, if s_is_link_local(s) { way.oif } else { 0 }));
    let by_interface = || {
        let fits = |a: &burst_port::PortAddr| a.ifindex == way.oif && a.ip.is_ipv4() == dst.ip.is_ipv4();
        devices.iter().enumerate().find_map(|(n, d)| d.caps.addrs.iter().position(fits).map(|i| (n, i)))
    };
    match by_source.or_else(by_interface).or_else(gateway) {
        Some(found) => Ok(at(found, Some(dst.ip))),
        None => no_device("the way to", dst.ip),
    }
}

fn s_is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

impl CmClient {
    pub(super) fn bind(&mut self, house: &mut House, id: CmId, addr: CmAddr) -> Result<CmReply, Refusal> {
        let found = self.id(id)?;
        if found.stage != Stage::Idle || found.binding.is_some() {
            return refuse(libc::EINVAL, "the id is bound already");
        }
        let device = match addr.ip {
            ip if ip.is_unspecified() => None,
            // As with the kernel, a loopback address is not a device's: libfabric asks by such a bind whether it must look
            // for the devices' own addresses.
            ip if ip.is_loopback() => {
                first_of(&house.devices, ip.is_ipv4()).map_or_else(|| no_device("the address", ip), Ok)?;
                None
            }
            ip => Some(owner_of(&house.devices, ip, addr.scope).map_or_else(|| no_device("the address", ip), Ok)?),
        };
        let wish = Binding {
            ps: found.entry.ps,
            ip: addr.ip,
            port: addr.port,
            only_v6: found.options.only_v6,
            reuse: found.options.reuse,
        };
        let Some(binding) = house.cm.ports.bind(wish) else {
            return refuse(libc::EADDRINUSE, format!("port {} of {} is in use", addr.port, addr.ip));
        };
        found.binding = Some(binding);
        found.route.src = Some(CmAddr { port: binding.port, ..addr });
        if let Some((device, index)) = device {
            set_device(&mut found.route, &house.devices[device], index);
        }
        Ok(CmReply::Route(found.route))
    }

    pub(super) fn resolve_addr(
        &mut self,
        house: &mut House,
        id: CmId,
        src: Option<CmAddr>,
        dst: CmAddr,
    ) -> Result<CmReply, Refusal> {
        let begun = Instant::now();
        let found = self.id(id)?;
        if !matches!(found.stage, Stage::Idle | Stage::Addressed) {
            return refuse(libc::EINVAL, "the id is connected or listens");
        }
        // A source that names a port is bound, as the kernel has it.
        if let Some(src) = src.filter(|s| s.port != 0 && found.stage == Stage::Idle && found.binding.is_none()) {
            self.bind(house, id, src)?;
        }
        let id = self.id(id)?;
        let bound = id.route.src.filter(|_| id.binding.is_some());
        let result = find(&house.devices, &mut house.cm.routes, bound.or(src), dst);
        let mut status = 0;
        match result {
            Ok(found) => address_id(house, id, bound.or(src), dst, &found),
            // The program asked well; the answer is an event.
            Err(refusal) => {
                house.cm.log_refusal(id.entry.id, refusal.errno, &refusal.sentence);
                status = -refusal.errno;
            }
        }
        let kind = if status == 0 { CmEventKind::AddrResolved } else { CmEventKind::AddrError };
        let route = if status == 0 { id.route } else { CmRoute { dst: Some(dst), ..id.route } };
        let event = CmEvent { status, route, ..CmEvent::new(kind, id.entry.id) };
        house.cm.write(&id.entry, &event);
        let probe = if status == 0 { CmProbe::AddrResolved } else { CmProbe::Failed };
        let took = house.cm.took(CmPhase::Address, probe, (id.entry.id, 0), dst.ip, begun);
        id.entry.address_ns.store(took, Ordering::Relaxed);
        Ok(CmReply::Route(id.route))
    }

    pub(super) fn resolve_route(&mut self, house: &mut House, id: CmId) -> Result<CmReply, Refusal> {
        let begun = Instant::now();
        let id = self.id(id)?;
        if id.stage != Stage::Addressed {
            return refuse(libc::EINVAL, "resolve the address first");
        }
        let event = CmEvent { route: id.route, ..CmEvent::new(CmEventKind::RouteResolved, id.entry.id) };
        house.cm.write(&id.entry, &event);
        let peer = id.route.dst.map_or(UNKNOWN_PEER, |dst| dst.ip);
        let took = house.cm.took(CmPhase::Route, CmProbe::RouteResolved, (id.entry.id, 0), peer, begun);
        id.entry.route_ns.store(took, Ordering::Relaxed);
        Ok(CmReply::Route(id.route))
    }
}

/// Device, GIDs and MTU of a route.
fn set_device(route: &mut CmRoute, device: &Device, index: usize) {
    route.device = Some(device.index);
    route.sgid = gid_of(device.caps.addrs[index].ip);
    route.sgid_index = index as u8;
    route.mtu = device.caps.active_mtu();
}

/// What an id knows after its address was resolved.
fn address_id(house: &mut House, id: &mut Id, src: Option<CmAddr>, dst: CmAddr, found: &Found) {
    id.stage = Stage::Addressed;
    set_device(&mut id.route, &house.devices[found.device], found.index);
    let scope = |ip: IpAddr| if s_is_link_local(ip) { dst.scope } else { 0 };
    // Programs see loopback addresses where they used them.
    let seen = |ip: IpAddr, wire: IpAddr| if ip.is_unspecified() { wire } else { ip };
    let own = src.map_or(found.src, |s| seen(s.ip, found.src));
    let own = if dst.ip.is_loopback() && src.is_none_or(|s| s.ip.is_unspecified()) { dst.ip } else { own };
    let port = src.map(|s| s.port).filter(|p| *p != 0);
    let port = port.unwrap_or_else(|| house.cm.ports.any());
    id.route.src = Some(CmAddr { ip: own, port, scope: scope(own) });
    id.route.dst = Some(CmAddr { ip: seen(dst.ip, found.dst), ..dst });
    id.route.dgid = gid_of(found.dst);
    id.route.ack_timeout = id.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_port::{PortAddr, PortCaps};

    fn device(index: u32, ips: &[&str]) -> Device {
        let addr =
            |ip: &&str| PortAddr { ip: ip.parse().expect("ip"), ifindex: 100 + index, ifname: "x".into(), reach: None };
        let caps = PortCaps {
            name: "udp".into(),
            addrs: ips.iter().map(addr).collect(),
            link_mtu: 9000,
            up: true,
            speed_mbps: 0,
            ifname: "x".into(),
            mac: [0; 6],
        };
        Device::new(index, caps)
    }

    fn addr(ip: &str) -> CmAddr {
        CmAddr { ip: ip.parse().expect("ip"), port: 1, scope: 0 }
    }

    #[test]
    fn loopback_and_own_addresses_are_on_their_device() {
        let devices = [device(0, &["192.0.2.1", "2001:db8::1"]), device(1, &["198.51.100.1"])];
        let mut routes = Routes::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, src.map(addr), addr(dst));
        let found = go(None, "127.0.0.1").expect("found");
        assert_eq!((found.device, found.src, found.dst), (0, addr("192.0.2.1").ip, addr("192.0.2.1").ip));
        let found = go(None, "::1").expect("found");
        assert_eq!((found.device, found.index, found.dst), (0, 1, addr("2001:db8::1").ip));
        let found = go(None, "198.51.100.1").expect("found");
        assert_eq!((found.device, found.src), (1, addr("198.51.100.1").ip));
        let found = go(Some("192.0.2.1"), "198.51.100.1").expect("found");
        assert_eq!((found.device, found.dst), (0, addr("198.51.100.1").ip));
        assert_eq!(go(Some("192.0.2.9"), "198.51.100.1").expect_err("not ours").errno, libc::ENODEV);
        assert_eq!(go(Some("192.0.2.1"), "2001:db8::1").expect_err("families").errno, libc::EINVAL);
    }

    #[test]
    fn networks_without_a_kernel_are_found_by_their_prefix_and_the_rest_by_the_gateway() {
        let mut owner = device(1, &["10.77.0.1"]);
        let prefix = "10.77.0.1/24".parse().expect("a prefix");
        owner.caps.addrs[0].reach = Some(burst_port::Reach { prefix, gateway: true });
        let devices = [device(0, &["192.0.2.1"]), owner];
        let mut routes = Routes::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, src.map(addr), addr(dst));
        let found = go(None, "10.77.0.9").expect("on the network");
        assert_eq!((found.device, found.src, found.dst), (1, addr("10.77.0.1").ip, addr("10.77.0.9").ip));
        let found = go(Some("10.77.0.1"), "203.0.113.7").expect("bound to the port");
        assert_eq!((found.device, found.dst), (1, addr("203.0.113.7").ip));
        assert_eq!(go(None, "203.0.113.7").expect("by the gateway").device, 1);
    }
}
