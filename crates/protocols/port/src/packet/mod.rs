//! The `packet` port: whole Ethernet frames by AF_PACKET, with the port's own headers, on an interface that the kernel goes on
//! using. It needs CAP_NET_RAW.
//!
//! Compared with the `udp` port it gives: a UDP source port and a flow label chosen by the application, or a source port per
//! queue pair, so that the network spreads queue pairs over its paths (packets of several queue pairs therefore share no train);
//! exact ICRCs in both directions with every peer, because the port writes and sees the IPv4 identification; and a reason for
//! every dropped packet.
//!
//! - `socks`, `filter`: the packet socket, the frames that the kernel gives to it, and how workers share it;
//! - `tx`, `vnet`: trains as Ethernet frames of 64 KiB; `rx`: received trains, verified whole or split (`crate::rx_train`);
//! - `route_cache`, `burst_netif::netlink`: next hops as the kernel knows them;
//! - `kernel_send`: packets to next hops that the kernel must resolve first;
//! - `local_ring`: packets to the port's own addresses.
//!
//! VLANs: name the VLAN's interface (`packet:dev=eth0.5`); the kernel writes and removes the tag. Frames with other tags are
//! dropped. IP options and fragments are not received. A UDP socket that receives nothing joins each multicast group, so that the
//! kernel speaks IGMP and MLD.
//!
//! The interface may go down, lose addresses, change its MTU, vanish and come back under its name. The kernel reports this by
//! netlink, and the next `rx_burst` updates the port; listing the interfaces then takes a moment within the data path.

mod filter;
mod kernel_send;
mod local_ring;
mod route_cache;
mod rx;
mod socks;
mod tx;
mod vnet;

use crate::error::PortError;
use crate::spec::PacketSpec;
use crate::sys::socket;
use crate::{Encapsulation, Port, PortAddr, PortCalls, PortCaps, RxSink, WorkerShare, store};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_netif::NetifError;
use burst_netif::iface::{self, Interface};
use burst_netif::netlink::{EventSocket, NetlinkEvent, RequestSocket};
use burst_wire::MacAddr;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Most addresses of an interface that are served.
pub const ADDRS_MAX: usize = 64;
/// Most multicast groups of a port.
pub const GROUPS_MAX: usize = 64;
/// Tokens of epoll: the packet socket, the netlink socket.
const FRAMES: u64 = 0;
const EVENTS: u64 = 1;
const NO_WAIT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };

/// The port's interface, addresses and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LocalLink {
    encapsulation: Encapsulation,
    name: String,
    ifindex: u32,
    mac: MacAddr,
    mtu: u32,
    loopback: bool,
    addrs: Vec<IpAddr>,
    /// Multicast groups that the port has joined.
    groups: Vec<IpAddr>,
    /// Whether packets to every group are accepted. Only worker 0 joins groups; the other workers accept what the interface
    /// receives.
    any_group: bool,
}

impl LocalLink {
    /// Whether `ip` is an address of the port.
    fn has(&self, ip: &IpAddr) -> bool {
        self.addrs.contains(ip)
    }
    /// Whether packets to the multicast group `ip` are accepted.
    fn has_group(&self, ip: &IpAddr) -> bool {
        ip.is_multicast() && (self.any_group || self.groups.contains(ip))
    }
    /// UDP source port of a flow.
    fn src_port(&self, flow: &Flow) -> u16 {
        self.encapsulation.src_port(flow.src_port)
    }
}

/// A port of whole frames on an interface.
pub struct PacketPort {
    spec: PacketSpec,
    share: WorkerShare,
    caps: PortCaps,
    own: LocalLink,
    fd: OwnedFd,
    /// UDP sockets of worker 0 that reserve the encapsulation's UDP port at each address and group.
    reserved: Vec<(IpAddr, OwnedFd)>,
    epoll: OwnedFd,
    events: EventSocket,
    netlink: RequestSocket,
    routes: route_cache::RouteCache,
    local: local_ring::LocalRing,
    kernel: kernel_send::KernelSender,
    tx: tx::PacketTx,
    rx: rx::PacketRx,
    /// Whether capabilities have changed since the last `refresh`.
    changed: bool,
}

impl PacketPort {
    /// Opens the port of worker `worker` of `workers`; `name` is the specification as the user wrote it.
    ///
    /// # Errors
    /// [`PortError`]: one sentence.
    pub fn open(
        spec: &PacketSpec,
        encapsulation: &Encapsulation,
        name: &str,
        worker: usize,
        workers: usize,
    ) -> Result<PacketPort, PortError> {
        PacketPort::open_share(spec, encapsulation, name, WorkerShare { worker, workers, ..WorkerShare::only() })
    }

    pub(crate) fn open_share(
        spec: &PacketSpec,
        encapsulation: &Encapsulation,
        name: &str,
        share: WorkerShare,
    ) -> Result<PacketPort, PortError> {
        assert!(share.worker < share.workers, "worker index out of range");
        let interface = crate::choose(spec.dev.as_deref(), spec.addr)?;
        // From here on the interface is fixed, even if the default route changes.
        let spec = PacketSpec { dev: Some(interface.name.clone()), ..spec.clone() };
        let addrs = crate::wanted(spec.addr, &interface, ADDRS_MAX);
        if addrs.is_empty() {
            return Err(NetifError::NoAddress { name: interface.name }.into());
        }
        let groups = Vec::with_capacity(GROUPS_MAX);
        let own = LocalLink { groups, any_group: share.worker > 0, ..own_of(encapsulation, &interface, &addrs) };
        let watch = |e: rustix::io::Errno| PortError::from_io("watch a socket", e.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let no_netlink = |e| PortError::from_io("open a netlink socket", e);
        let (events, netlink) = (EventSocket::open().map_err(no_netlink)?, RequestSocket::open().map_err(no_netlink)?);
        epoll::add(&epoll, events.fd(), epoll::EventData::new_u64(EVENTS), epoll::EventFlags::IN).map_err(watch)?;
        let fd = socks::open(&spec, &own, &share)?;
        epoll::add(&epoll, &fd, epoll::EventData::new_u64(FRAMES), epoll::EventFlags::IN).map_err(watch)?;
        let mut port = PacketPort {
            tx: tx::PacketTx::new(spec.gso, encapsulation),
            rx: rx::PacketRx::new(encapsulation, !spec.gro),
            kernel: kernel_send::KernelSender::open(&own.name)?,
            caps: crate::caps_of(name, &interface, Vec::new()),
            routes: route_cache::RouteCache::new(),
            local: local_ring::LocalRing::new(),
            reserved: Vec::new(),
            changed: false,
            spec,
            share,
            own,
            fd,
            epoll,
            events,
            netlink,
        };
        for addr in &addrs {
            port.reserve(addr)?;
        }
        port.caps.addrs = addrs;
        Ok(port)
    }

    /// Number of IPv4 identifications that had to be recovered from the ICRC: those in trains that GRO has joined.
    pub fn ids_recovered(&self) -> u64 {
        self.rx.recovered()
    }

    /// Reserves the UDP port of an address, once for all workers.
    fn reserve(&mut self, addr: &PortAddr) -> Result<(), PortError> {
        if self.share.worker == 0 && self.reserved.iter().all(|(ip, _)| *ip != addr.ip) {
            let port = self.own.encapsulation.udp_port;
            let name = store::udp_socket(addr.ip, port, addr.ifindex, 0);
            let stored = self.share.store.as_ref().and_then(|store| store.take(&name));
            let fd = stored.map_or_else(|| socks::reserve(addr, port), Ok)?;
            if let Some(store) = &self.share.store {
                store.store(&name, fd.as_fd());
            }
            self.reserved.push((addr.ip, fd));
        }
        Ok(())
    }

    /// Ends the reservations of addresses that `stays` does not accept.
    fn end_reservations(&mut self, stays: impl Fn(&IpAddr) -> bool) {
        let PacketPort { reserved, share, own, .. } = self;
        reserved.retain(|(ip, _)| {
            let stays = ip.is_multicast() || stays(ip);
            if let (false, Some(store)) = (stays, &share.store) {
                store.remove(&store::udp_socket(*ip, own.encapsulation.udp_port, own.ifindex, 0));
            }
            stays
        });
    }

    /// Reads the kernel's events and applies them.
    fn read_events(&mut self, sink: &mut dyn RxSink) {
        let (mut stale, routes, own) = (false, &mut self.routes, &self.own);
        self.events.events(&mut |event| {
            stale |= matches!(event, NetlinkEvent::Interfaces | NetlinkEvent::Everything);
            let lost = routes.apply(&event, own);
            (0..lost).for_each(|_| sink.dropped(Reason::NoNeighbour));
        });
        if stale {
            self.update();
        }
    }

    /// Updates the port to the present state of its interface.
    fn update(&mut self) {
        let Ok(all) = iface::list() else { return };
        let before = crate::essence(&self.caps);
        match all.iter().find(|i| i.name == self.own.name) {
            Some(interface) => self.adopt(interface),
            // The interface does not exist any more; it may come back under its name.
            None => {
                self.caps.up = false;
                self.caps.addrs.clear();
                self.own.addrs.clear();
                self.end_reservations(|_| false);
            }
        }
        if crate::essence(&self.caps) != before {
            self.changed = true;
            self.routes.clear();
            self.tx.forget();
        }
    }

    /// Updates the port to an interface of its name.
    fn adopt(&mut self, interface: &Interface) {
        let mut addrs = crate::wanted(self.spec.addr, interface, ADDRS_MAX);
        if interface.index != self.own.ifindex
            && let Err(error) = self.reopen(interface, &addrs)
        {
            tracing::warn!("interface {} exists again but cannot be used: {error}", interface.name);
            return;
        }
        self.end_reservations(|ip| addrs.iter().any(|a| a.ip == *ip));
        addrs.retain(|addr| match self.reserve(addr) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("address {} is left out: {error}", addr.ip);
                false
            }
        });
        let LocalLink { groups, any_group, .. } = &mut self.own;
        self.own = LocalLink {
            groups: core::mem::take(groups),
            any_group: *any_group,
            ..own_of(&self.own.encapsulation, interface, &addrs)
        };
        self.caps = crate::caps_of(&self.caps.name, interface, addrs);
    }

    /// Opens the sockets again, on another interface of the same name.
    fn reopen(&mut self, interface: &Interface, addrs: &[PortAddr]) -> Result<(), PortError> {
        let own = own_of(&self.own.encapsulation, interface, addrs);
        let fd = socks::open(&self.spec, &own, &self.share)?;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(FRAMES), epoll::EventFlags::IN)
            .map_err(|e| PortError::from_io("watch a socket", e.into()))?;
        self.kernel = kernel_send::KernelSender::open(&own.name)?;
        self.fd = fd;
        self.rx.forget();
        if self.rx.is_timed() {
            self.time_arrivals();
        }
        self.rejoin(interface.index);
        Ok(())
    }

    /// Joins the groups again, on another interface of the same name.
    fn rejoin(&mut self, ifindex: u32) {
        self.reserved.retain(|(ip, _)| !ip.is_multicast());
        for group in core::mem::take(&mut self.own.groups) {
            let addr = PortAddr { ip: group, ifindex, ifname: self.own.name.clone(), reach: None };
            match socks::reserve(&addr, self.own.encapsulation.udp_port) {
                Ok(fd) => {
                    self.reserved.push((group, fd));
                    self.own.groups.push(group);
                }
                Err(error) => tracing::warn!("multicast group {group} could not be joined again: {error}"),
            }
        }
    }
}

/// Describes the interface with these addresses, without multicast groups.
fn own_of(encapsulation: &Encapsulation, interface: &Interface, addrs: &[PortAddr]) -> LocalLink {
    LocalLink {
        encapsulation: *encapsulation,
        name: interface.name.clone(),
        ifindex: interface.index,
        mac: MacAddr(interface.mac),
        mtu: interface.mtu,
        loopback: interface.loopback,
        addrs: addrs.iter().map(|a| a.ip).collect(),
        groups: Vec::new(),
        any_group: false,
    }
}

impl Port for PacketPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.rx.begin_burst(now);
        let mut taken = self.rx.deliver_rest(&self.own, budget, sink);
        // What is delivered within the port has waited in no buffer of the kernel.
        if !self.local.is_empty() {
            sink.waited(Nanos(0));
            taken += self.local.deliver(budget - taken, sink);
        }
        if taken >= budget {
            return taken;
        }
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(EVENTS) };
        let mut ready = [none; 2];
        let found = epoll::wait(&self.epoll, &mut ready[..], Some(&NO_WAIT)).unwrap_or(0);
        for event in &ready[..found] {
            match event.data.u64() {
                EVENTS => self.read_events(sink),
                _ => taken += self.rx.burst(self.fd.as_raw_fd(), &self.own, budget - taken, sink),
            }
        }
        self.rx.end_burst(sink);
        taken
    }

    fn tx_burst(&mut self, _now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let PacketPort { fd, own, routes, netlink, local, kernel, .. } = self;
        let mut out = tx::PacketOutputs { fd: fd.as_raw_fd(), own, routes, netlink, local, kernel };
        self.tx.burst(&mut out, batch, dropped);
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        if !group.is_multicast() {
            return Err(PortError::Spec(format!("{group} is not a multicast address")));
        }
        if self.spec.addr.is_some() {
            return Err(PortError::Unsupported { kind: self.caps.name.clone(), what: "join a multicast group" });
        }
        if self.own.groups.contains(&group) {
            return Ok(());
        }
        if self.own.groups.len() == GROUPS_MAX {
            return Err(PortError::Spec(format!("a port joins at most {GROUPS_MAX} multicast groups")));
        }
        let addr = PortAddr { ip: group, ifindex: self.own.ifindex, ifname: self.own.name.clone(), reach: None };
        self.reserved.push((group, socks::reserve(&addr, self.own.encapsulation.udp_port)?));
        self.own.groups.push(group);
        Ok(())
    }

    fn groups_max(&self) -> usize {
        GROUPS_MAX
    }

    fn leave(&mut self, group: IpAddr) {
        if group.is_multicast() {
            self.own.groups.retain(|ip| *ip != group);
            self.reserved.retain(|(ip, _)| *ip != group);
        }
    }

    fn is_resolving(&mut self, _now: Nanos, flow: &Flow) -> bool {
        !self.own.has(&flow.dst) && self.netlink.is_resolving(flow.src, flow.dst, self.own.ifindex)
    }

    fn time_arrivals(&mut self) {
        match socket::stamp_arrivals(&self.fd) {
            Ok(()) => self.rx.time_arrivals(),
            Err(error) => tracing::warn!("{}: packets have no times of arrival: {error}", self.caps.name),
        }
    }

    fn take_calls(&mut self) -> PortCalls {
        PortCalls { send: self.tx.take_calls(), receive: self.rx.take_calls() }
    }

    fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        take(self.epoll.as_raw_fd());
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.epoll.as_raw_fd()]
    }

    fn next_event(&self) -> Nanos {
        if self.local.is_empty() { Nanos::NEVER } else { Nanos(0) }
    }

    fn refresh(&mut self) -> bool {
        self.update();
        core::mem::take(&mut self.changed)
    }
}
