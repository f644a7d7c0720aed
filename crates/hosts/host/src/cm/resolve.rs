//! Addresses: binding, and from a destination to device, source and path. An address is resolved when its next hop is known
//! to be there (`hops.rs`); until then its id waits.

use super::UNKNOWN_PEER;
use super::client::{CmClient, CmIdStage, HostCmId};
use super::hops::{HopChanges, PendingHop};
use super::ports::PortBinding;
use super::route::RouteTable;
use super::waits::{AddrResolution, HopWait};
use crate::device::HostDevice;
use crate::host::Host;
use crate::session::refuse;
use burst_base::DeviceId;
use burst_base::gid::gid_of;
use burst_control::Refusal;
use burst_control::cm::{CmAddr, CmEvent, CmEventKind, CmId, CmReply, CmRoute};
use burst_engine::gsi::CmPhase;
use burst_engine::gsi::probes::CmProbe;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Local ACK timeout code when the program sets none: 4.096 us * 2^16 is 268 ms.
pub(super) const ACK_TIMEOUT: u8 = 16;

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub device: DeviceId,
    pub index: usize,
    /// Source on the wire.
    pub src: IpAddr,
    /// Destination on the wire.
    pub dst: IpAddr,
    /// Who finds the next hop.
    pub via: ResolveMethod,
}

/// Who finds a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResolveMethod {
    /// There is none: to this host itself, or to a multicast group.
    Local,
    /// The kernel.
    Kernel,
    /// The port, which owns its interface.
    Port,
}

/// The device and GID index that have an address.
fn owner_of(devices: &[HostDevice], ip: IpAddr, scope: u32) -> Option<(usize, usize)> {
    devices.iter().enumerate().find_map(|(n, d)| {
        let fits = |a: &burst_port::PortAddr| a.ip == ip && (scope == 0 || a.ifindex == scope);
        d.caps.addrs.iter().position(fits).map(|i| (n, i))
    })
}

/// The address of a port that finds the way itself and has one to `ip`: on its network, or by its gateway.
fn reached(devices: &[HostDevice], ip: IpAddr, by_gateway: bool) -> Option<(usize, usize)> {
    devices.iter().enumerate().find_map(|(n, d)| {
        let fits = |a: &burst_port::PortAddr| {
            a.reach.is_some_and(|r| r.prefix.contains(ip) || by_gateway && r.gateway && a.ip.is_ipv4() == ip.is_ipv4())
        };
        d.caps.addrs.iter().position(fits).map(|i| (n, i))
    })
}

/// The first address of a family, for loopback.
fn first_of(devices: &[HostDevice], v4: bool) -> Option<(usize, usize)> {
    let up = |d: &&(usize, &HostDevice)| d.1.caps.up;
    let all: Vec<(usize, &HostDevice)> = devices.iter().enumerate().collect();
    let ordered = all.iter().filter(up).chain(all.iter().filter(|d| !up(d)));
    ordered.filter_map(|(n, d)| d.caps.addrs.iter().position(|a| a.ip.is_ipv4() == v4).map(|i| (*n, i))).next()
}

fn no_device<T>(what: &str, ip: IpAddr) -> Result<T, Refusal> {
    refuse(libc::ENODEV, format!("{what} {ip} is not on an interface that Burst serves"))
}

/// Finds device, source and destination. `src` may be unspecified.
pub(super) fn find(
    devices: &[HostDevice],
    routes: &mut RouteTable,
    src: Option<CmAddr>,
    dst: CmAddr,
) -> Result<Destination, Refusal> {
    let chosen = src.filter(|s| !s.ip.is_unspecified());
    if chosen.is_some_and(|s| s.ip.is_ipv4() != dst.ip.is_ipv4()) {
        return refuse(libc::EINVAL, "source and destination are of different families");
    }
    let at = |(device, index): (usize, usize), dst: Option<IpAddr>, via: ResolveMethod| {
        let src = devices[device].caps.addrs[index].ip;
        Destination { device: DeviceId::from_index(device), index, src, dst: dst.unwrap_or(src), via }
    };
    let bound = match chosen.filter(|s| !s.ip.is_loopback()) {
        Some(s) => Some(owner_of(devices, s.ip, s.scope).map_or_else(|| no_device("the source", s.ip), Ok)?),
        None => None,
    };
    // To oneself: by the device that has the address, or any device for 127.0.0.1, ::1 and the unspecified addresses.
    if dst.ip.is_loopback() || dst.ip.is_unspecified() {
        let first = || first_of(devices, dst.ip.is_ipv4()).map_or_else(|| no_device("the destination", dst.ip), Ok);
        return Ok(at(bound.map_or_else(first, Ok)?, None, ResolveMethod::Local));
    }
    if let Some(own) = owner_of(devices, dst.ip, dst.scope) {
        return Ok(at(bound.unwrap_or(own), Some(dst.ip), ResolveMethod::Local));
    }
    // A group is on the device that the program chose; no route is needed then, nor with a single device.
    if dst.ip.is_multicast()
        && let Some(device) = bound.or_else(|| first_of(devices, dst.ip.is_ipv4()).filter(|_| devices.len() == 1))
    {
        return Ok(at(device, Some(dst.ip), ResolveMethod::Local));
    }
    // Of networks that a port serves without the kernel, the kernel's routes know nothing.
    let owned = bound.filter(|(device, index)| devices[*device].caps.addrs[*index].reach.is_some());
    if let Some(found) = owned.or_else(|| bound.is_none().then(|| reached(devices, dst.ip, false)).flatten()) {
        return Ok(at(found, Some(dst.ip), ResolveMethod::Port));
    }
    let gateway = || bound.is_none().then(|| reached(devices, dst.ip, true)).flatten();
    let way = match (routes.ask(dst.ip, chosen.map(|s| s.ip), dst.scope), gateway()) {
        (Ok(way), _) => way,
        (Err(_), Some(found)) => return Ok(at(found, Some(dst.ip), ResolveMethod::Port)),
        (Err(errno), None) => {
            let error = std::io::Error::from_raw_os_error(errno);
            return refuse(errno, format!("there is no route to {}: {error}", dst.ip));
        }
    };
    let via = if dst.ip.is_multicast() { ResolveMethod::Local } else { ResolveMethod::Kernel };
    if let Some(bound) = bound {
        return Ok(at(bound, Some(dst.ip), via));
    }
    let by_source = way.src.and_then(|s| owner_of(devices, s, if s_is_link_local(s) { way.oif } else { 0 }));
    let by_interface = || {
        let fits = |a: &burst_port::PortAddr| a.ifindex == way.oif && a.ip.is_ipv4() == dst.ip.is_ipv4();
        devices.iter().enumerate().find_map(|(n, d)| d.caps.addrs.iter().position(fits).map(|i| (n, i)))
    };
    match (by_source.or_else(by_interface), gateway()) {
        (Some(found), _) => Ok(at(found, Some(dst.ip), via)),
        (None, Some(found)) => Ok(at(found, Some(dst.ip), ResolveMethod::Port)),
        (None, None) => no_device("the way to", dst.ip),
    }
}

fn s_is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

impl CmClient {
    pub(super) fn bind(&mut self, host: &mut Host, id: CmId, addr: CmAddr) -> Result<CmReply, Refusal> {
        let found = self.id(id)?;
        if found.stage != CmIdStage::Idle || found.binding.is_some() {
            return refuse(libc::EINVAL, "the id is bound already");
        }
        let device = match addr.ip {
            ip if ip.is_unspecified() => None,
            // As with the kernel, a loopback address is not a device's: libfabric asks by such a bind whether it must look
            // for the devices' own addresses.
            ip if ip.is_loopback() => {
                first_of(&host.devices, ip.is_ipv4()).map_or_else(|| no_device("the address", ip), Ok)?;
                None
            }
            ip => Some(owner_of(&host.devices, ip, addr.scope).map_or_else(|| no_device("the address", ip), Ok)?),
        };
        let wish = PortBinding {
            ps: found.entry.ps,
            ip: addr.ip,
            port: addr.port,
            only_v6: found.options.only_v6,
            reuse: found.options.reuse,
        };
        let Some(binding) = host.cm.ports.bind(wish) else {
            return refuse(libc::EADDRINUSE, format!("port {} of {} is in use", addr.port, addr.ip));
        };
        found.binding = Some(binding);
        found.route.src = Some(CmAddr { port: binding.port, ..addr });
        if let Some((device, index)) = device {
            set_device(&mut found.route, &host.devices[device], index);
        }
        Ok(CmReply::Route(found.route))
    }

    pub(super) fn resolve_addr(
        &mut self,
        host: &mut Host,
        id: CmId,
        (src, dst): (Option<CmAddr>, CmAddr),
        timeout_ms: u32,
    ) -> Result<CmReply, Refusal> {
        let begun = Instant::now();
        let found = self.id(id)?;
        if !matches!(found.stage, CmIdStage::Idle | CmIdStage::Addressed) {
            return refuse(libc::EINVAL, "the id is being resolved, is connected or listens");
        }
        // A source that names a port is bound, as the kernel has it.
        if let Some(src) = src.filter(|s| s.port != 0 && found.stage == CmIdStage::Idle && found.binding.is_none()) {
            self.bind(host, id, src)?;
        }
        let found = self.id(id)?;
        let bound = found.route.src.filter(|_| found.binding.is_some());
        let what = AddrResolution::new((bound.or(src), dst), timeout_ms, begun, found.stage);
        self.resolve(host, id, begun, what)?;
        Ok(CmReply::Route(self.id(id)?.route))
    }

    /// Resolves, or waits for the next hop.
    fn resolve(&mut self, host: &mut Host, id: CmId, now: Instant, what: AddrResolution) -> Result<(), Refusal> {
        let found = match find(&host.devices, &mut host.cm.routes, what.src, what.dst) {
            Ok(found) => found,
            // The program asked well; the answer is an event.
            Err(refusal) => return self.unresolved(host, id, &what, &refusal),
        };
        if let Some(hop) = host.missing_hop(now, &found) {
            return self.wait(host, id, now, HopWait { hop, what, device: found.device });
        }
        let id = self.id(id)?;
        address_id(host, id, what.src, what.dst, &found);
        let event = CmEvent { route: id.route, ..CmEvent::new(CmEventKind::AddrResolved, id.entry.id) };
        host.cm.write(&id.entry, &event);
        note_time(host, id, CmProbe::AddrResolved, &what);
        Ok(())
    }

    /// The address was not resolved: says so, and why.
    fn unresolved(&mut self, host: &mut Host, id: CmId, what: &AddrResolution, why: &Refusal) -> Result<(), Refusal> {
        let id = self.id(id)?;
        host.cm.log_refusal(id.entry.id, why.errno, &why.sentence);
        let route = CmRoute { dst: Some(what.dst), ..id.route };
        let event = CmEvent::new(CmEventKind::AddrError, id.entry.id);
        host.cm.write(&id.entry, &CmEvent { status: -why.errno, route, ..event }.with_sentence(&why.sentence));
        note_time(host, id, CmProbe::Failed, what);
        Ok(())
    }

    fn wait(&mut self, host: &mut Host, id: CmId, now: Instant, wait: HopWait) -> Result<(), Refusal> {
        let found = self.id(id)?;
        (found.stage, found.wait) = (CmIdStage::AddrResolution, Some(Box::new(wait)));
        self.waits.insert(id, &wait);
        host.cm.hops.join(now, wait.hop);
        Ok(())
    }

    /// Ends the wait of an id.
    fn unwait(&mut self, host: &mut Host, id: CmId) -> Option<HopWait> {
        let found = self.ids.get_mut(&id)?;
        let wait = *found.wait.take()?;
        found.stage = wait.what.before;
        self.waits.remove(id, &wait);
        host.cm.hops.leave(&wait.hop);
        Some(wait)
    }

    /// When the next id gives its next hop up, if any waits.
    pub fn gives_up_at(&self) -> Option<Instant> {
        self.waits.next()
    }

    /// Goes on with ids whose next hop has answered, and ends those that wait in vain.
    pub fn resolve_on(&mut self, host: &mut Host, now: Instant, news: &HopChanges) {
        let mut again = if news.all { self.waits.all() } else { Vec::new() };
        let mut failed = Vec::new();
        for (hop, answered) in &news.hops {
            if *answered { &mut again } else { &mut failed }.extend(self.waits.of(*hop));
        }
        for id in failed {
            self.give_up(host, id, libc::EHOSTUNREACH);
        }
        for id in again {
            let Some(wait) = self.unwait(host, id) else { continue };
            // The id is there: it waited until now.
            let _ = self.resolve(host, id, now, wait.what);
        }
        for id in self.waits.expired(now) {
            self.give_up(host, id, libc::ETIMEDOUT);
        }
    }

    fn give_up(&mut self, host: &mut Host, id: CmId, errno: i32) {
        let Some(wait) = self.unwait(host, id) else { return };
        host.cm.hops.count_unanswered(wait.device);
        let sentence = no_answer(&host.devices[wait.device.index()], &wait, errno);
        // The id is there: it waited until now.
        let _ = self.unresolved(host, id, &wait.what, &Refusal { errno, sentence });
    }

    pub(super) fn resolve_route(&mut self, host: &mut Host, id: CmId) -> Result<CmReply, Refusal> {
        let begun = Instant::now();
        let id = self.id(id)?;
        if id.stage != CmIdStage::Addressed {
            return refuse(libc::EINVAL, "resolve the address first");
        }
        let event = CmEvent { route: id.route, ..CmEvent::new(CmEventKind::RouteResolved, id.entry.id) };
        host.cm.write(&id.entry, &event);
        let peer = id.route.dst.map_or(UNKNOWN_PEER, |dst| dst.ip);
        let took = host.cm.took(CmPhase::Route, CmProbe::RouteResolved, (id.entry.id, 0), peer, begun);
        id.entry.route_ns.store(took, Ordering::Relaxed);
        Ok(CmReply::Route(id.route))
    }
}

/// What resolving an address took: the wait for the next hop included.
fn note_time(host: &Host, id: &HostCmId, probe: CmProbe, what: &AddrResolution) {
    let took = host.cm.took(CmPhase::Address, probe, (id.entry.id, 0), what.dst.ip, what.begun);
    id.entry.address_ns.store(took, Ordering::Relaxed);
}

/// Why an id does not wait any more.
fn no_answer(device: &HostDevice, wait: &HopWait, errno: i32) -> String {
    let dst = wait.what.dst.ip;
    let (hop, place) = match wait.hop {
        PendingHop::Kernel(hop) => (hop.ip, device.caps.ifname.as_str()),
        // The port knows which gateway it takes.
        PendingHop::Port(_, dst) => (dst, device.caps.name.as_str()),
    };
    let how = if hop.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let mut sentence = format!("no answer from next hop {hop} on {place} ({how})");
    if hop != dst {
        sentence.push_str(&format!(", which leads to {dst}"));
    }
    if errno == libc::ETIMEDOUT {
        let waited = wait.what.deadline.saturating_duration_since(wait.what.begun);
        let comma = if hop == dst { "" } else { "," };
        sentence.push_str(&format!("{comma} within {} ms", waited.as_millis()));
    }
    sentence
}

/// The device of a route, once one is known.
pub(super) fn device_of(route: &CmRoute) -> Option<DeviceId> {
    route.device.and_then(|number| DeviceId::try_from(number).ok())
}

/// Device, GIDs and MTU of a route.
fn set_device(route: &mut CmRoute, device: &HostDevice, index: usize) {
    route.device = Some(device.id.into());
    route.sgid = gid_of(device.caps.addrs[index].ip);
    route.sgid_index = index as u8;
    route.mtu = device.caps.active_mtu();
}

/// What an id knows after its address was resolved.
fn address_id(host: &mut Host, id: &mut HostCmId, src: Option<CmAddr>, dst: CmAddr, found: &Destination) {
    id.stage = CmIdStage::Addressed;
    set_device(&mut id.route, &host.devices[found.device.index()], found.index);
    let scope = |ip: IpAddr| if s_is_link_local(ip) { dst.scope } else { 0 };
    // Programs see loopback addresses where they used them.
    let seen = |ip: IpAddr, wire: IpAddr| if ip.is_unspecified() { wire } else { ip };
    let own = src.map_or(found.src, |s| seen(s.ip, found.src));
    let own = if dst.ip.is_loopback() && src.is_none_or(|s| s.ip.is_unspecified()) { dst.ip } else { own };
    let port = src.map(|s| s.port).filter(|p| *p != 0);
    let port = port.unwrap_or_else(|| host.cm.ports.any());
    id.route.src = Some(CmAddr { ip: own, port, scope: scope(own) });
    id.route.dst = Some(CmAddr { ip: seen(dst.ip, found.dst), ..dst });
    id.route.dgid = gid_of(found.dst);
    id.route.ack_timeout = id.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_port::{PortAddr, PortCaps};

    fn device(number: u16, ips: &[&str]) -> HostDevice {
        let addr = |ip: &&str| PortAddr {
            ip: ip.parse().expect("ip"),
            ifindex: 100 + u32::from(number),
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
        HostDevice::new(DeviceId(number), caps)
    }

    fn addr(ip: &str) -> CmAddr {
        CmAddr { ip: ip.parse().expect("ip"), port: 1, scope: 0 }
    }

    #[test]
    fn loopback_and_own_addresses_are_on_their_device() {
        let devices = [device(0, &["192.0.2.1", "2001:db8::1"]), device(1, &["198.51.100.1"])];
        let mut routes = RouteTable::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, src.map(addr), addr(dst));
        let found = go(None, "127.0.0.1").expect("found");
        assert_eq!((found.device.0, found.src, found.dst), (0, addr("192.0.2.1").ip, addr("192.0.2.1").ip));
        let found = go(None, "::1").expect("found");
        assert_eq!((found.device.0, found.index, found.dst), (0, 1, addr("2001:db8::1").ip));
        let found = go(None, "198.51.100.1").expect("found");
        assert_eq!((found.device.0, found.src, found.via), (1, addr("198.51.100.1").ip, ResolveMethod::Local));
        let found = go(Some("192.0.2.1"), "198.51.100.1").expect("found");
        assert_eq!((found.device.0, found.dst), (0, addr("198.51.100.1").ip));
        assert_eq!(go(Some("192.0.2.1"), "239.1.2.3").expect("a group").via, ResolveMethod::Local);
        assert_eq!(go(Some("192.0.2.9"), "198.51.100.1").expect_err("not ours").errno, libc::ENODEV);
        assert_eq!(go(Some("192.0.2.1"), "2001:db8::1").expect_err("families").errno, libc::EINVAL);
    }

    #[test]
    fn networks_without_a_kernel_are_found_by_their_prefix_and_the_rest_by_the_gateway() {
        let mut owner = device(1, &["10.77.0.1"]);
        let prefix = "10.77.0.1/24".parse().expect("a prefix");
        owner.caps.addrs[0].reach = Some(burst_port::Reach { prefix, gateway: true });
        let devices = [device(0, &["192.0.2.1"]), owner];
        let mut routes = RouteTable::default();
        let mut go = |src: Option<&str>, dst: &str| find(&devices, &mut routes, src.map(addr), addr(dst));
        let found = go(None, "10.77.0.9").expect("on the network");
        assert_eq!((found.device.0, found.src, found.dst), (1, addr("10.77.0.1").ip, addr("10.77.0.9").ip));
        let found = go(Some("10.77.0.1"), "203.0.113.7").expect("bound to the port");
        assert_eq!((found.device.0, found.dst, found.via), (1, addr("203.0.113.7").ip, ResolveMethod::Port));
        assert_eq!(go(None, "203.0.113.7").expect("by the gateway").device.0, 1);
    }

    #[test]
    fn the_sentence_names_the_hop_the_link_and_the_time() {
        let (device, begun) = (device(0, &["192.0.2.1"]), Instant::now());
        let what = AddrResolution::new((None, addr("203.0.113.7")), 1500, begun, CmIdStage::Idle);
        let kernels = |ip: &str| PendingHop::Kernel(burst_netif::hops::Hop { ifindex: 100, ip: addr(ip).ip });
        let say = |hop, errno| no_answer(&device, &HopWait { hop, what, device: DeviceId(0) }, errno);
        assert_eq!(say(kernels("203.0.113.7"), libc::EHOSTUNREACH), "no answer from next hop 203.0.113.7 on x (ARP)");
        assert_eq!(
            say(kernels("fe80::1"), libc::ETIMEDOUT),
            "no answer from next hop fe80::1 on x (neighbour discovery), which leads to 203.0.113.7, within 1500 ms"
        );
    }
}
