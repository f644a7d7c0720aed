//! The `packet` port: whole Ethernet frames by AF_PACKET, headers of our own, on an interface that the kernel goes on
//! using. It needs CAP_NET_RAW.
//!
//! What it gives over the `udp` port: the UDP source port and the flow label of the application's choice, or a port for
//! each queue pair (paths are spread by them; packets of several queue pairs therefore share no train), exact ICRCs in
//! both directions with any peer, because the IPv4 identification is ours to choose and to see, and a reason for
//! everything that is dropped.
//!
//! - `socks`, `filter`: the packet socket, what the kernel hands to it, how it is shared by workers;
//! - `tx`, `vnet`: trains as Ethernet frames of 64 KiB; `rx`: the same back, checked as one or split (`crate::receiving`);
//! - `paths`, `burst_netif::netlink`: next hops as the kernel knows them; `slow`: packets to those that it must find first;
//! - `home`: packets to ourselves.
//!
//! VLANs: name the VLAN's interface (`packet:dev=eth0.5`); the kernel writes and removes the tag. Frames with other tags
//! are dropped. IP options and fragments are not received.
//! Multicast groups are joined by a UDP socket that takes nothing, so the kernel speaks IGMP and MLD.
//!
//! The interface may go down, lose addresses, change its MTU, vanish and come back under its name: netlink tells,
//! and the next `rx_burst` follows; what then lies in the data path's way (listing interfaces) takes a moment.

mod filter;
mod home;
mod paths;
mod rx;
mod slow;
mod socks;
mod tx;
mod vnet;

use crate::error::PortError;
use crate::spec::PacketSpec;
use crate::{Port, PortAddr, PortCaps, ROCE_UDP_PORT, RxSink, Share};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_netif::NetifError;
use burst_netif::iface::{self, Interface};
use burst_netif::netlink::{EventSocket, NetlinkEvent, RequestSocket};
use burst_wire::MacAddr;
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Most addresses of an interface that are served.
pub const ADDRS_MAX: usize = 64;
/// Most multicast groups that a port takes part in.
pub const GROUPS_MAX: usize = 64;
/// What epoll says about: frames, or news.
const FRAMES: u64 = 0;
const NEWS: u64 = 1;
const NO_WAIT: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };

/// What the port is on its link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    name: String,
    ifindex: u32,
    mac: MacAddr,
    mtu: u32,
    loopback: bool,
    addrs: Vec<IpAddr>,
    /// Multicast groups in which the port takes part.
    groups: Vec<IpAddr>,
    /// Groups are joined by the first worker; the others take whatever the interface lets through.
    any_group: bool,
}

impl Own {
    fn has(&self, ip: &IpAddr) -> bool {
        self.addrs.contains(ip)
    }
    fn has_group(&self, ip: &IpAddr) -> bool {
        ip.is_multicast() && (self.any_group || self.groups.contains(ip))
    }
    /// UDP source port of a flow.
    fn src_port(&self, flow: &Flow) -> u16 {
        if flow.src_port == 0 { ROCE_UDP_PORT } else { flow.src_port }
    }
}

/// Whole frames on an interface.
pub struct PacketPort {
    spec: PacketSpec,
    share: Share,
    caps: PortCaps,
    own: Own,
    fd: OwnedFd,
    /// UDP sockets that hold port 4791 of the addresses: the first worker's.
    holds: Vec<(IpAddr, OwnedFd)>,
    epoll: OwnedFd,
    news: EventSocket,
    netlink: RequestSocket,
    paths: paths::Paths,
    home: home::Home,
    slow: slow::Slow,
    tx: tx::Tx,
    rx: rx::Rx,
    /// Something changed since `refresh` was asked.
    changed: bool,
}

impl PacketPort {
    /// Opens worker `worker` of `workers`; `name` is what the user wrote.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(spec: &PacketSpec, name: &str, worker: usize, workers: usize) -> Result<PacketPort, PortError> {
        assert!(worker < workers, "worker index out of range");
        let interface = crate::choose(spec.dev.as_deref(), spec.addr)?;
        // From here on the interface is fixed, whatever happens to the default route.
        let spec = PacketSpec { dev: Some(interface.name.clone()), ..spec.clone() };
        let share = Share { worker, workers };
        let addrs = crate::wanted(spec.addr, &interface, ADDRS_MAX);
        if addrs.is_empty() {
            return Err(NetifError::NoAddress { name: interface.name }.into());
        }
        let groups = Vec::with_capacity(GROUPS_MAX);
        let own = Own { groups, any_group: worker > 0, ..own_of(&interface, &addrs) };
        let watch = |e: rustix::io::Errno| PortError::from_io("watch a socket", e.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(watch)?;
        let no_netlink = |e| PortError::from_io("open a netlink socket", e);
        let (news, netlink) = (EventSocket::open().map_err(no_netlink)?, RequestSocket::open().map_err(no_netlink)?);
        epoll::add(&epoll, news.fd(), epoll::EventData::new_u64(NEWS), epoll::EventFlags::IN).map_err(watch)?;
        let fd = socks::open(&spec, &own, share)?;
        epoll::add(&epoll, &fd, epoll::EventData::new_u64(FRAMES), epoll::EventFlags::IN).map_err(watch)?;
        let mut port = PacketPort {
            tx: tx::Tx::new(spec.gso),
            rx: rx::Rx::new(!spec.gro),
            slow: slow::Slow::open(&own.name)?,
            caps: crate::caps_of(name, &interface, Vec::new()),
            paths: paths::Paths::new(),
            home: home::Home::new(),
            holds: Vec::new(),
            changed: false,
            spec,
            share,
            own,
            fd,
            epoll,
            news,
            netlink,
        };
        for addr in &addrs {
            port.hold(addr)?;
        }
        port.caps.addrs = addrs;
        Ok(port)
    }

    /// IPv4 identifications that had to be recovered from the ICRC: those of trains that GRO has made.
    pub fn ids_recovered(&self) -> u64 {
        self.rx.recovered()
    }

    /// Takes port 4791 of an address, once for all workers.
    fn hold(&mut self, addr: &PortAddr) -> Result<(), PortError> {
        if self.share.worker == 0 && self.holds.iter().all(|(ip, _)| *ip != addr.ip) {
            self.holds.push((addr.ip, socks::hold(addr)?));
        }
        Ok(())
    }

    /// Reads the news and acts on them.
    fn hear(&mut self, sink: &mut dyn RxSink) {
        let (mut anew, paths, own) = (false, &mut self.paths, &self.own);
        self.news.events(&mut |event| {
            anew |= matches!(event, NetlinkEvent::Interfaces | NetlinkEvent::Everything);
            let lost = paths.note(&event, own);
            (0..lost).for_each(|_| sink.dropped(Reason::NoNeighbour));
        });
        if anew {
            self.follow();
        }
    }

    /// Makes the port what its interface now is.
    fn follow(&mut self) {
        let Ok(all) = iface::list() else { return };
        let before = crate::essence(&self.caps);
        match all.iter().find(|i| i.name == self.own.name) {
            Some(interface) => self.adopt(interface),
            // The interface is gone; it may come back under its name.
            None => {
                self.caps.up = false;
                self.caps.addrs.clear();
                self.own.addrs.clear();
                self.holds.retain(|(ip, _)| ip.is_multicast());
            }
        }
        if crate::essence(&self.caps) != before {
            self.changed = true;
            self.paths.forget();
            self.tx.forget();
        }
    }

    fn adopt(&mut self, interface: &Interface) {
        let mut addrs = crate::wanted(self.spec.addr, interface, ADDRS_MAX);
        if interface.index != self.own.ifindex
            && let Err(error) = self.reopen(interface, &addrs)
        {
            tracing::warn!("interface {} is back but not served: {error}", interface.name);
            return;
        }
        self.holds.retain(|(ip, _)| ip.is_multicast() || addrs.iter().any(|a| a.ip == *ip));
        addrs.retain(|addr| match self.hold(addr) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("address {} is left out: {error}", addr.ip);
                false
            }
        });
        let Own { groups, any_group, .. } = &mut self.own;
        self.own = Own { groups: core::mem::take(groups), any_group: *any_group, ..own_of(interface, &addrs) };
        self.caps = crate::caps_of(&self.caps.name, interface, addrs);
    }

    /// The interface is another one of the same name.
    fn reopen(&mut self, interface: &Interface, addrs: &[PortAddr]) -> Result<(), PortError> {
        let own = own_of(interface, addrs);
        let fd = socks::open(&self.spec, &own, self.share)?;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(FRAMES), epoll::EventFlags::IN)
            .map_err(|e| PortError::from_io("watch a socket", e.into()))?;
        self.slow = slow::Slow::open(&own.name)?;
        self.fd = fd;
        self.rx.forget();
        self.join_anew(interface.index);
        Ok(())
    }

    /// Joins the groups again, on another interface of the same name.
    fn join_anew(&mut self, ifindex: u32) {
        self.holds.retain(|(ip, _)| !ip.is_multicast());
        for group in core::mem::take(&mut self.own.groups) {
            let addr = PortAddr { ip: group, ifindex, ifname: self.own.name.clone(), reach: None };
            match socks::hold(&addr) {
                Ok(fd) => {
                    self.holds.push((group, fd));
                    self.own.groups.push(group);
                }
                Err(error) => tracing::warn!("multicast group {group} is left: {error}"),
            }
        }
    }
}

fn own_of(interface: &Interface, addrs: &[PortAddr]) -> Own {
    Own {
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

    fn rx_burst(&mut self, _now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = self.rx.leftover(&self.own, budget, sink);
        taken += self.home.deliver(budget - taken, sink);
        if taken >= budget {
            return taken;
        }
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(NEWS) };
        let mut ready = [none; 2];
        let found = epoll::wait(&self.epoll, &mut ready[..], Some(&NO_WAIT)).unwrap_or(0);
        for event in &ready[..found] {
            match event.data.u64() {
                NEWS => self.hear(sink),
                _ => taken += self.rx.burst(self.fd.as_raw_fd(), &self.own, budget - taken, sink),
            }
        }
        taken
    }

    fn tx_burst(&mut self, _now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let PacketPort { fd, own, paths, netlink, home, slow, .. } = self;
        let mut out = tx::Outlets { fd: fd.as_raw_fd(), own, paths, netlink, home, slow };
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
            return Err(PortError::Spec(format!("a port takes part in at most {GROUPS_MAX} multicast groups")));
        }
        let addr = PortAddr { ip: group, ifindex: self.own.ifindex, ifname: self.own.name.clone(), reach: None };
        self.holds.push((group, socks::hold(&addr)?));
        self.own.groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if group.is_multicast() {
            self.own.groups.retain(|ip| *ip != group);
            self.holds.retain(|(ip, _)| *ip != group);
        }
    }

    fn is_resolving(&mut self, _now: Nanos, flow: &Flow) -> bool {
        !self.own.has(&flow.dst) && self.netlink.is_resolving(flow.src, flow.dst, self.own.ifindex)
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.epoll.as_raw_fd()]
    }

    fn next_event(&self) -> Nanos {
        if self.home.is_empty() { Nanos::NEVER } else { Nanos(0) }
    }

    fn refresh(&mut self) -> bool {
        self.follow();
        core::mem::take(&mut self.changed)
    }
}
