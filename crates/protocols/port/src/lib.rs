//! Ports: where frames leave and arrive (storey 2). One trait; one file per backend.
//!
//! A port is driven by one worker: `tx_burst` sends a batch, `rx_burst` hands over what arrived, `wait_fds` gives
//! what to sleep on. Wrappers ([`impair`]) are ports around a port. [`open`] makes a port out of what the user wrote
//! ([`PortSpec`]); [`mem`] ports are made by the program that holds both ends.
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | `udp:dev=eth0`, `impair:loss=1%/udp`: parsing, one table of options per kind |
//! | [`udp`] | UDP sockets on 4791, trains by UDP_SEGMENT and UDP_GRO: no privileges |
//! | [`packet`] | whole frames by AF_PACKET: exact headers, needs CAP_NET_RAW |
//! | `dpdk` | devices of DPDK (with the feature of that name) |
//! | [`mem`] | frames between engines of one process, in virtual or real time |
//! | [`ether`] | Ethernet, IP and UDP headers made and checked, the ICRC sealed: for ports that own their frames |
//! | [`lan`] | ARP, neighbour discovery, echo, gateways: for ports that own their interface |
//! | [`loopback`] | what a port sends to itself turns round in it |
//! | [`impair`] | loss, duplication, reordering, delay, damage, ECN marks around any port |
//! | `sys` | the system calls; the only module with `unsafe` |
#![deny(unsafe_code)]

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod encapsulation;
pub mod error;
pub mod ether;
pub mod impair;
pub mod lan;
pub mod loopback;
pub mod mem;
pub mod packet;
mod rx_train;
pub mod spec;
mod sys;
#[cfg(test)]
mod testing;
mod tx_train;
pub mod udp;

pub use encapsulation::{Encapsulation, PacketChecksum};
pub use error::PortError;
pub use spec::{PortKind, PortSpec};

use burst_base::verbs::Mtu;
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};

pub use burst_netif::hops::NeighbourState;
use burst_netif::iface::{self, Interface};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// An address of a port: one GID table entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddr {
    /// The address.
    pub ip: IpAddr,
    /// Interface index, for link-local scope.
    pub ifindex: u32,
    /// Interface name.
    pub ifname: String,
    /// Where the port itself finds the way; `None`: the kernel's routes tell.
    pub reach: Option<Reach>,
}

/// Where the packets of an address of a port can go that owns its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The address and its network.
    pub prefix: lan::Prefix,
    /// Whether a gateway leads everywhere else.
    pub gateway: bool,
}

/// What a port is and can do.
#[derive(Clone, Debug)]
pub struct PortCaps {
    /// Kind and argument, as the user wrote it: `udp:dev=eth0`.
    pub name: String,
    /// Addresses, default first: IPv4 before global IPv6 before link-local.
    pub addrs: Vec<PortAddr>,
    /// MTU of the link in bytes (IP packet).
    pub link_mtu: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Link speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// Interface name, empty if none.
    pub ifname: String,
    /// MAC address, zero if none.
    pub mac: [u8; 6],
}

impl PortCaps {
    /// RDMA MTU that fits the link; 256 is assumed for links that are too small to carry any.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::for_link(self.link_mtu).unwrap_or(Mtu::B256)
    }
}

/// Takes received frames and drop reasons from `rx_burst`.
pub trait RxSink {
    /// A frame with a correct ICRC.
    fn frame(&mut self, frame: &RxFrame<'_>);
    /// A train of frames of one length and one flow with correct ICRCs: one every `stride` bytes of `train`, followed by four
    /// bytes that are none of its (its ICRC).
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        for packet in train.chunks_exact(stride) {
            self.frame(&RxFrame { flow: *flow, bytes: &packet[..stride - ether::icrc::ICRC] });
        }
    }
    /// A packet that was dropped by the port.
    fn dropped(&mut self, reason: Reason);
    /// So many of the frames of this burst were sent by the port itself.
    fn looped_back(&mut self, _packets: usize) {}
}

/// A port, driven by one thread.
pub trait Port: Send {
    /// What it is now (addresses, MTU and state may change: see `poll_changes`).
    fn caps(&self) -> &PortCaps;
    /// Receives up to `budget` frames; returns how many packets were taken from the port. Never blocks.
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize;
    /// Sends every frame of the batch, in order, or drops it with a reason. Never blocks. The batch is left as it is;
    /// spans are not used after return.
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason));
    /// Descriptors that become readable when `rx_burst` has something.
    fn wait_fds(&self) -> Vec<RawFd>;
    /// When `rx_burst` should be called even if no descriptor is readable (simulated links), else `Nanos::NEVER`.
    fn next_event(&self) -> Nanos {
        Nanos::NEVER
    }
    /// Takes part in a multicast group from now on: frames sent to it arrive, those of this host included, and the network
    /// learns of the membership (IGMP, MLD). Only worker 0's port is asked. Without an implementation of its own a port
    /// cannot take part in groups.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] by default; otherwise why the system refuses.
    fn join(&mut self, _group: IpAddr) -> Result<(), PortError> {
        Err(PortError::Unsupported { kind: self.caps().name.clone(), what: "join a multicast group" })
    }
    /// Takes part no more. A group that was not joined is no error.
    fn leave(&mut self, _group: IpAddr) {}
    /// Frames of this flow are to be expected: what takes time before the first one can begin now. Flows of other ports'
    /// addresses are left alone.
    fn prepare(&mut self, _flow: &Flow) {}
    /// Whether the next hop of a flow is being asked for: frames to it wait in a store, which keeps [`UNRESOLVED_BYTES`] but little
    /// more. Sending a frame, or [`Port::prepare`], is what makes a port ask.
    fn is_resolving(&mut self, _now: Nanos, _flow: &Flow) -> bool {
        false
    }
    /// The state of the next hop to `dst`; an unresolved one is resolved from now on. A port for which the kernel resolves next hops
    /// answers [`NeighbourState::Resolved`]: the caller asks the kernel ([`burst_netif::hops`]).
    fn next_hop(&mut self, _now: Nanos, _dst: IpAddr) -> NeighbourState {
        NeighbourState::Resolved
    }
    /// The worker is about to sleep on `wait_fds` until `next_event` at the latest: what is needed for that. True when
    /// something has arrived meanwhile.
    fn before_sleep(&mut self) -> bool {
        false
    }
    /// Re-reads addresses, MTU and link state; true when something changed. Called from the control thread's pace.
    fn refresh(&mut self) -> bool {
        false
    }
}

/// Payload in packets of any path MTU that every port keeps for a next hop that is being asked for. The kernel's store is the
/// smallest: 208 KiB by default, in which a packet of 256 bytes takes a KiB and one of 4 KiB eight.
pub const UNRESOLVED_BYTES: u64 = 32 << 10;

/// Which of how many workers a port serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerShare {
    /// From 0.
    pub worker: usize,
    /// At least 1.
    pub workers: usize,
}

/// The interface that the specification means.
pub(crate) fn choose(dev: Option<&str>, addr: Option<IpAddr>) -> Result<Interface, PortError> {
    match (dev, addr) {
        (Some(dev), _) => Ok(iface::find(dev)?),
        (None, Some(ip)) => {
            let all = iface::list()?;
            let has = |i: &&Interface| i.addrs.contains(&ip);
            let lo = |i: &&Interface| i.loopback && ip.is_loopback();
            all.iter().find(has).or_else(|| all.iter().find(lo)).cloned().ok_or_else(|| {
                let have: Vec<String> = all.iter().flat_map(|i| &i.addrs).map(IpAddr::to_string).collect();
                PortError::Spec(format!("no interface has the address {ip}; this host has: {}", have.join(", ")))
            })
        }
        (None, None) => Ok(iface::choose()?),
    }
}

/// The addresses that are served: all of the interface's, or the one asked for.
pub(crate) fn wanted(only: Option<IpAddr>, interface: &Interface, most: usize) -> Vec<PortAddr> {
    match only {
        // All of 127.0.0.0/8 is local, listed or not; any other address must be bindable, which `add` finds out.
        Some(ip) => vec![addr_of(interface, ip)],
        None => interface.addrs.iter().take(most).map(|ip| addr_of(interface, *ip)).collect(),
    }
}

/// An address of the interface as an entry of the GID table.
fn addr_of(interface: &Interface, ip: IpAddr) -> PortAddr {
    PortAddr { ip, ifindex: interface.index, ifname: interface.name.clone(), reach: None }
}

/// Capabilities of a port on `interface`.
pub(crate) fn caps_of(name: &str, interface: &Interface, addrs: Vec<PortAddr>) -> PortCaps {
    PortCaps {
        name: name.to_owned(),
        addrs,
        link_mtu: interface.mtu,
        up: interface.up,
        speed_mbps: interface.speed_mbps,
        ifname: interface.name.clone(),
        mac: interface.mac,
    }
}

/// What `refresh` compares.
pub(crate) fn essence(caps: &PortCaps) -> (Vec<IpAddr>, u32, bool, u32, [u8; 6]) {
    (caps.addrs.iter().map(|a| a.ip).collect(), caps.link_mtu, caps.up, caps.speed_mbps, caps.mac)
}

/// Opens the port that `spec` describes, for a single worker and the packets of one encapsulation.
///
/// # Errors
/// [`PortError`]: one sentence that names what is missing and what to do.
pub fn open(spec: &PortSpec, encapsulation: &Encapsulation) -> Result<Box<dyn Port>, PortError> {
    Ok(wrap(spec, open_kind(spec, encapsulation, 0, 1)?, None, 0))
}

/// Opens the port that `spec` describes, once for each of `workers` workers; returns the ports in order of the workers' numbers.
///
/// Where the kernel can tell, received packets go to the worker of their destination (`Qpn::worker`); a packet may still arrive at
/// another worker (trains of mixed queue pairs), so the engine must be able to hand it over. Packets from one worker to a queue pair of
/// another one of this host go to that worker's port directly ([`loopback`]).
///
/// # Errors
/// As [`open`].
pub fn open_all(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    workers: usize,
) -> Result<Vec<Box<dyn Port>>, PortError> {
    let ports: Result<Vec<_>, _> = (0..workers).map(|worker| open_kind(spec, encapsulation, worker, workers)).collect();
    let joined = workers > 1 && spec.kind.loops_back();
    let mut queues = if joined { loopback::WorkerQueues::between(workers)? } else { Vec::new() }.into_iter();
    Ok(ports?.into_iter().enumerate().map(|(worker, port)| wrap(spec, port, queues.next(), worker)).collect())
}

/// Puts the wrappers of the specification around a worker's port.
fn wrap(
    spec: &PortSpec,
    mut port: Box<dyn Port>,
    queues: Option<loopback::WorkerQueues>,
    worker: usize,
) -> Box<dyn Port> {
    if spec.kind.loops_back() {
        port = Box::new(loopback::Loopback::new(port, queues));
    }
    for impair in spec.impair.iter().rev() {
        // Workers get different seeds, so that they do not make the same random choices.
        let seed = impair.seed.wrapping_add(worker as u64);
        port = Box::new(impair::Impair::new(port, spec::ImpairSpec { seed, ..*impair }));
    }
    port
}

/// Opens the port without wrappers.
fn open_kind(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    worker: usize,
    workers: usize,
) -> Result<Box<dyn Port>, PortError> {
    let name = spec.to_string();
    Ok(match &spec.kind {
        PortKind::Udp(udp) => Box::new(udp::UdpPort::open(udp, encapsulation, &name, worker, workers)?),
        PortKind::Packet(packet) => Box::new(packet::PacketPort::open(packet, encapsulation, &name, worker, workers)?),
        #[cfg(feature = "dpdk")]
        PortKind::Dpdk(dpdk) => Box::new(dpdk::DpdkPort::open(dpdk, encapsulation, &name, worker, workers)?),
        #[cfg(not(feature = "dpdk"))]
        PortKind::Dpdk(_) => {
            return Err(PortError::Absent { kind: "dpdk", cure: "install libdpdk-dev and run make build" });
        }
    })
}
