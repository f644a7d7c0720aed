//! Binding and resolving addresses. `rdma_resolve_addr` succeeds when the next hop answers (`hops.rs`); until then its id waits.

use super::client::CmClient;
use super::destination::{self, Destination, LocalAddr, is_link_local};
use super::hops::PendingHop;
use super::id::{AddrPair, AddrResolution, CmIdOptions, CmIdStage, HopWait, HostCmId};
use super::ports::{PortBinding, is_privileged};
use super::service::{FinishedStep, UNKNOWN_PEER};
use super::waits::WaitEnd;
use crate::device::HostDevice;
use crate::host::Host;
use crate::refusal::refuse;
use burst_base::gid::gid_of;
use burst_base::{DeviceId, Nanos};
use burst_control::Refusal;
use burst_control::cm::{CmAddr, CmEvent, CmEventKind, CmId, CmReply, CmRoute};
use burst_engine::gsi::CmPhase;
use burst_engine::gsi::probes::CmProbe;
use burst_peer::Capability;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// Local ACK timeout code when the program sets none: 4.096 us * 2^16 is 268 ms.
pub(super) const ACK_TIMEOUT: u8 = 16;

impl CmClient {
    /// Binds an id to an address (`rdma_bind_addr`).
    pub(super) fn bind(&mut self, host: &mut Host, id: CmId, addr: CmAddr) -> Result<CmReply, Refusal> {
        let found = self.id(id)?;
        if found.stage != CmIdStage::Idle || found.binding.is_some() {
            return refuse(libc::EINVAL, "the id is bound already");
        }
        let local = local_address(host, addr)?;
        if is_privileged(addr.port) {
            let what = format!("port {}", addr.port);
            host.authority.check(&self.caller, Capability::NetBindService, libc::EACCES, &what)?;
        }
        let found = self.id(id)?;
        let wanted = wanted_binding(found, addr);
        let binding = host.cm.ports.bind(&self.caller.account, wanted).map_err(|why| why.refusal(&wanted))?;
        let found = self.id(id)?;
        found.binding = Some(binding);
        found.route.src = Some(CmAddr { port: binding.port, ..addr });
        if let Some(local) = local {
            set_device(&mut found.route, &host.devices[local.device.index()], local.index);
        }
        Ok(CmReply::Route(found.route))
    }

    /// Resolves a destination (`rdma_resolve_addr`). The result comes as an event.
    pub(super) fn resolve_addr(
        &mut self,
        host: &mut Host,
        id: CmId,
        addrs: AddrPair,
        timeout_ms: u32,
    ) -> Result<CmReply, Refusal> {
        let begun = host.now();
        let found = self.id(id)?;
        if !matches!(found.stage, CmIdStage::Idle | CmIdStage::Addressed) {
            return refuse(libc::EINVAL, "the id is being resolved, is connected or listens");
        }
        // As in the kernel, a source that names a port is bound.
        let unbound = found.stage == CmIdStage::Idle && found.binding.is_none();
        if let Some(src) = addrs.src.filter(|s| s.port != 0 && unbound) {
            self.bind(host, id, src)?;
        }
        let found = self.id(id)?;
        let bound = found.route.src.filter(|_| found.binding.is_some());
        let addrs = AddrPair { src: bound.or(addrs.src), ..addrs };
        let resolution = AddrResolution::new(addrs, timeout_ms, begun, found.stage);
        self.resolve(host, id, begun, resolution)?;
        Ok(CmReply::Route(self.id(id)?.route))
    }

    /// Resolves the address now, or lets the id wait for the next hop.
    fn resolve(&mut self, host: &mut Host, id: CmId, now: Nanos, resolution: AddrResolution) -> Result<(), Refusal> {
        let AddrPair { src, dst } = resolution.addrs;
        let found = match destination::find(&host.devices, &mut host.cm.routes, now, src, dst) {
            Ok(found) => found,
            // The request itself was valid: the failure is an event.
            Err(refusal) => return self.fail_resolution(host, id, &resolution, &refusal),
        };
        if let Some(hop) = host.unresolved_hop(now, &found) {
            let number = host.cm.waits.number();
            return self.wait(host, id, now, HopWait { hop, resolution, device: found.device, number });
        }
        let id = self.id(id)?;
        set_address(host, id, resolution.addrs, &found);
        let event = CmEvent { route: id.route, ..CmEvent::new(CmEventKind::AddrResolved, id.entry.id) };
        host.cm.write(&id.entry, &event);
        record_duration(host, id, CmProbe::AddrResolved, &resolution);
        Ok(())
    }

    /// The address was not resolved: writes the event with the reason.
    fn fail_resolution(
        &mut self,
        host: &mut Host,
        id: CmId,
        resolution: &AddrResolution,
        why: &Refusal,
    ) -> Result<(), Refusal> {
        self.log_refusal(host, id, why);
        let id = self.id(id)?;
        let route = CmRoute { dst: Some(resolution.addrs.dst), ..id.route };
        let event = CmEvent::new(CmEventKind::AddrError, id.entry.id);
        host.cm.write(&id.entry, &CmEvent { status: -why.errno, route, ..event }.with_sentence(&why.sentence));
        record_duration(host, id, CmProbe::Failed, resolution);
        Ok(())
    }

    fn wait(&mut self, host: &mut Host, id: CmId, now: Nanos, wait: HopWait) -> Result<(), Refusal> {
        let found = self.id(id)?;
        assert!(found.wait.is_none(), "an id waits for one next hop at a time");
        (found.stage, found.wait) = (CmIdStage::Resolving, Some(Box::new(wait)));
        host.cm.waits.insert((self.number, id), &wait);
        host.cm.hops.join(now, wait.hop);
        Ok(())
    }

    /// Ends the wait of an id.
    fn end_wait(&mut self, host: &mut Host, id: CmId) -> Option<HopWait> {
        let found = self.ids.get_mut(&id)?;
        let wait = *found.wait.take()?;
        debug_assert_eq!(found.stage, CmIdStage::Resolving);
        found.stage = wait.resolution.before;
        host.cm.waits.remove((self.number, id), &wait);
        host.cm.hops.leave(&wait.hop);
        Some(wait)
    }

    /// An id that waited for a next hop goes on.
    pub(crate) fn continue_resolving(&mut self, host: &mut Host, now: Nanos, id: CmId, how: WaitEnd) {
        match how {
            WaitEnd::Failed => self.time_out(host, id, libc::EHOSTUNREACH),
            WaitEnd::TimedOut => self.time_out(host, id, libc::ETIMEDOUT),
            WaitEnd::Retry => {
                let Some(wait) = self.end_wait(host, id) else { return };
                // The id exists: it waited until now.
                let _ = self.resolve(host, id, now, wait.resolution);
            }
        }
    }

    /// Ends the wait of an id whose next hop did not answer.
    fn time_out(&mut self, host: &mut Host, id: CmId, errno: i32) {
        let Some(wait) = self.end_wait(host, id) else { return };
        host.cm.hops.note_unanswered(wait.device);
        let sentence = no_answer(&host.devices[wait.device.index()], &wait, errno);
        // The id exists: it waited until now.
        let _ = self.fail_resolution(host, id, &wait.resolution, &Refusal { errno, sentence });
    }

    /// Resolves the route (`rdma_resolve_route`): on Ethernet it is known when the address is.
    pub(super) fn resolve_route(&mut self, host: &mut Host, id: CmId) -> Result<CmReply, Refusal> {
        let begun = host.now();
        let id = self.id(id)?;
        if id.stage != CmIdStage::Addressed {
            return refuse(libc::EINVAL, "resolve the address first");
        }
        let event = CmEvent { route: id.route, ..CmEvent::new(CmEventKind::RouteResolved, id.entry.id) };
        host.cm.write(&id.entry, &event);
        let peer = id.route.dst.map_or(UNKNOWN_PEER, |dst| dst.ip);
        let (phase, probe) = (CmPhase::Route, CmProbe::RouteResolved);
        let took = host.cm.record_step(FinishedStep { phase, probe, id: id.entry.id, qpn: 0, peer, begun });
        id.entry.route_ns.store(took, Ordering::Relaxed);
        Ok(CmReply::Route(id.route))
    }
}

/// The device and the index of an address that an id is to be bound to; `None`: any.
///
/// # Errors
/// As in the kernel: EADDRNOTAVAIL: it is no address of this host; ENODEV: no device has it.
fn local_address(host: &Host, addr: CmAddr) -> Result<Option<LocalAddr>, Refusal> {
    let no_device = |ip| {
        move || match is_of_host(ip) {
            true => destination::no_device("the address", ip),
            false => refuse(libc::EADDRNOTAVAIL, format!("{ip} is no address of this host")),
        }
    };
    Ok(match addr.ip {
        ip if ip.is_unspecified() => None,
        // As in the kernel, binding to a loopback address chooses no device: libfabric binds to it to learn whether it must
        // look for the devices' own addresses.
        ip if ip.is_loopback() => {
            destination::first_of(&host.devices, ip.is_ipv4()).map_or_else(no_device(ip), Ok)?;
            None
        }
        ip => Some(destination::owner_of(&host.devices, ip, addr.scope).map_or_else(no_device(ip), Ok)?),
    })
}

/// Whether an interface of this network namespace has the address.
fn is_of_host(ip: IpAddr) -> bool {
    ip.is_loopback() || burst_netif::iface::list().is_ok_and(|all| all.iter().any(|i| i.addrs.contains(&ip)))
}

/// The binding of an id to an address, with the id's options.
fn wanted_binding(id: &HostCmId, addr: CmAddr) -> PortBinding {
    let CmIdOptions { only_v6, reuse, .. } = id.options;
    PortBinding { ps: id.entry.ps, ip: addr.ip, port: addr.port, only_v6, reuse }
}

/// Records how long resolving an address took, including the wait for the next hop.
fn record_duration(host: &Host, id: &HostCmId, probe: CmProbe, resolution: &AddrResolution) {
    let (phase, peer, begun) = (CmPhase::Address, resolution.addrs.dst.ip, resolution.begun);
    let took = host.cm.record_step(FinishedStep { phase, probe, id: id.entry.id, qpn: 0, peer, begun });
    id.entry.address_ns.store(took, Ordering::Relaxed);
}

/// The sentence for a next hop that did not answer.
fn no_answer(device: &HostDevice, wait: &HopWait, errno: i32) -> String {
    let dst = wait.resolution.addrs.dst.ip;
    let (hop, place) = match wait.hop {
        PendingHop::Kernel(hop) => (hop.ip, device.caps.ifname.as_str()),
        // Only the port knows which gateway it uses.
        PendingHop::Port(_, dst) => (dst, device.caps.name.as_str()),
    };
    let how = if hop.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let mut sentence = format!("no answer from next hop {hop} on {place} ({how})");
    if hop != dst {
        sentence.push_str(&format!(", which leads to {dst}"));
    }
    if errno == libc::ETIMEDOUT {
        let waited = wait.resolution.deadline.since(wait.resolution.begun);
        let comma = if hop == dst { "" } else { "," };
        sentence.push_str(&format!("{comma} within {} ms", waited.0 / 1_000_000));
    }
    sentence
}

/// The device of a route.
pub(super) fn device_of(route: &CmRoute) -> Option<DeviceId> {
    route.device.and_then(|number| DeviceId::try_from(number).ok())
}

/// Sets device, GID and MTU of a route.
fn set_device(route: &mut CmRoute, device: &HostDevice, index: usize) {
    route.device = Some(device.id.into());
    route.sgid = gid_of(device.caps.addrs[index].ip);
    route.sgid_index = index as u8;
    route.mtu = device.caps.active_mtu();
}

/// Sets route and state of an id after its address was resolved.
fn set_address(host: &mut Host, id: &mut HostCmId, addrs: AddrPair, found: &Destination) {
    let AddrPair { src, dst } = addrs;
    id.stage = CmIdStage::Addressed;
    set_device(&mut id.route, &host.devices[found.device.index()], found.index);
    let scope = |ip: IpAddr| if is_link_local(ip) { dst.scope } else { 0 };
    // A program sees loopback addresses where it used them.
    let shown = |ip: IpAddr, wire: IpAddr| if ip.is_unspecified() { wire } else { ip };
    let own = src.map_or(found.src, |s| shown(s.ip, found.src));
    // Another daemon's loopback address is no address of this id.
    let is_own = dst.ip.is_loopback() && (dst.ip != found.dst || found.dst == found.src);
    let own = if is_own && src.is_none_or(|s| s.ip.is_unspecified()) { dst.ip } else { own };
    let port = src.map(|s| s.port).filter(|p| *p != 0);
    let port = port.unwrap_or_else(|| host.cm.ports.any());
    id.route.src = Some(CmAddr { ip: own, port, scope: scope(own) });
    id.route.dst = Some(CmAddr { ip: shown(dst.ip, found.dst), ..dst });
    id.route.dgid = gid_of(found.dst);
    id.route.ack_timeout = id.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_netif::hops::Hop;
    use burst_port::PortCaps;

    fn addr(ip: &str) -> CmAddr {
        CmAddr { ip: ip.parse().expect("ip"), port: 1, scope: 0 }
    }

    #[test]
    fn the_sentence_names_the_hop_the_link_and_the_time() {
        let caps = PortCaps {
            name: "udp".into(),
            addrs: Vec::new(),
            link_mtu: 9000,
            up: true,
            speed_mbps: 0,
            ifname: "x".into(),
            mac: [0; 6],
        };
        let device = HostDevice::new(DeviceId(0), caps);
        let addrs = AddrPair { src: None, dst: addr("203.0.113.7") };
        let resolution = AddrResolution::new(addrs, 1500, Nanos::from_ms(5), CmIdStage::Idle);
        let kernels = |ip: &str| PendingHop::Kernel(Hop { ifindex: 100, ip: addr(ip).ip });
        let say = |hop, errno| no_answer(&device, &HopWait { hop, resolution, device: DeviceId(0), number: 1 }, errno);
        assert_eq!(say(kernels("203.0.113.7"), libc::EHOSTUNREACH), "no answer from next hop 203.0.113.7 on x (ARP)");
        assert_eq!(
            say(kernels("fe80::1"), libc::ETIMEDOUT),
            "no answer from next hop fe80::1 on x (neighbour discovery), which leads to 203.0.113.7, within 1500 ms"
        );
    }
}
