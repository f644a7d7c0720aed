//! Ports: the interface through which packets leave and arrive. One trait, one file or folder per kind of port.
//!
//! One worker drives a port: `tx_burst` sends a batch, `rx_burst` delivers received packets, `wait_fds` returns the descriptors
//! on which the worker sleeps. Wrappers ([`impair`], [`loopback`]) are ports around a port. [`open`] opens the port that a
//! specification of the user ([`PortSpec`]) describes, for the packets of one [`Encapsulation`]; a program that holds both ends
//! makes [`mem`] ports.
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | `udp:dev=eth0`, `impair:loss=1%/udp`: the grammar, with one table of options per kind |
//! | [`encapsulation`] | what a port must know of the transport in UDP: UDP port, checksum, shortest packet, worker; RoCEv2's |
//! | [`error`] | [`PortError`] |
//! | [`udp`] | UDP sockets, trains by UDP_SEGMENT and UDP_GRO: no privileges |
//! | [`packet`] | whole frames by AF_PACKET: exact headers, needs CAP_NET_RAW |
//! | `dpdk_opener` | where a program that links libdpdk says how ports on its devices are opened (crate `port-dpdk`) |
//! | [`mem`] | packets between engines of one process, in virtual or real time |
//! | [`ether`] | Ethernet, IP and UDP headers written and checked, the ICRC: for ports that own their frames |
//! | [`lan`] | ARP, neighbour discovery, echo, gateways: for ports that own their interface |
//! | [`loopback`] | packets to the port's own addresses, delivered by memory |
//! | [`impair`] | loss, duplication, reordering, delay, corruption, ECN marks around any port |
//! | [`held`] | UDP ports that are held for a transport while no program uses it |
//! | [`store`] | descriptors that a supervisor keeps for the successor of this process |
//! | `tx_train`, `rx_train` | trains sent by `sendmmsg` and received by `recvmmsg`, for `udp` and `packet` |
//! | `sys` | system calls; the only module with `unsafe` |
#![deny(unsafe_code)]

mod dpdk_opener;
pub mod encapsulation;
pub mod error;
pub mod ether;
pub mod held;
pub mod impair;
pub mod lan;
pub mod loopback;
pub mod mem;
pub mod packet;
mod rx_train;
pub mod spec;
pub mod store;
mod sys;
#[cfg(test)]
mod testing;
mod tx_train;
pub mod udp;

use dpdk_opener::dpdk_opener;
pub use dpdk_opener::{DpdkOpener, enable_dpdk};
pub use encapsulation::{Encapsulation, PacketChecksum};
pub use error::PortError;
pub use held::HeldPort;
pub use spec::{PortKind, PortSpec};
pub use store::DescriptorStore;

use burst_base::verbs::Mtu;
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};

pub use burst_netif::hops::NeighbourState;
use burst_netif::iface::{self, Interface};
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// An address of a port: an entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddr {
    /// The IP address.
    pub ip: IpAddr,
    /// Interface index, which is the scope of a link-local address.
    pub ifindex: u32,
    /// Interface name.
    pub ifname: String,
    /// Destinations that the port itself can reach; `None`: the kernel's routes decide.
    pub reach: Option<Reach>,
}

/// Destinations that a port which owns its interface can reach from one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The address, and the network on its link.
    pub prefix: lan::Prefix,
    /// Whether a gateway leads to all other networks.
    pub gateway: bool,
}

/// Properties of a port.
#[derive(Clone, Debug)]
pub struct PortCaps {
    /// The specification as the user wrote it: `udp:dev=eth0`.
    pub name: String,
    /// Addresses, the default one first: IPv4, global IPv6, link-local IPv6.
    pub addrs: Vec<PortAddr>,
    /// MTU of the link: bytes of the longest IP packet.
    pub link_mtu: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Link speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// Interface name, empty if none.
    pub ifname: String,
    /// MAC address, all zero if there is none.
    pub mac: [u8; 6],
}

impl PortCaps {
    /// The largest RDMA MTU that fits the link; 256 for a link that is too small for any.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::for_link(self.link_mtu).unwrap_or(Mtu::B256)
    }
}

/// Pressure on a port's receive buffers. Peers that use selective repeat learn of it (field R of their acknowledgements,
/// `docs/protocol.md`) and send less, before packets are lost where no switch marks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReceivePressure {
    /// At most half full.
    #[default]
    Free = 0,
    /// Over half full.
    Half = 1,
    /// Over three quarters full.
    ThreeQuarters = 2,
    /// Packets were lost there. It is no level: the level of before stays.
    Lost = 3,
}

impl ReceivePressure {
    /// The level of a buffer of `size` units of which `used` are in use.
    pub const fn of(used: u64, size: u64) -> ReceivePressure {
        match used.saturating_mul(4) {
            fourfold if fourfold > size.saturating_mul(3) => ReceivePressure::ThreeQuarters,
            fourfold if fourfold > size.saturating_mul(2) => ReceivePressure::Half,
            _ => ReceivePressure::Free,
        }
    }
}

/// Most UDP source ports of one address ([`Port::open_source_ports`]).
pub const SOURCE_PORTS_MAX: usize = 8;

/// Packets that a sink is told of before it gets the first of them.
pub const EXPECTED_MAX: usize = 32;

/// Receiver of packets and drop reasons from [`Port::rx_burst`].
pub trait RxSink {
    /// Called with a packet whose checksum is right.
    fn frame(&mut self, frame: &RxFrame<'_>);
    /// Called with a train: packets of one flow and one length whose checksums are right. One packet begins every `stride` bytes
    /// of `train`; the last four of those bytes are the packet's trailer (its ICRC), not part of the packet.
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        for packet in train.chunks_exact(stride) {
            self.frame(&RxFrame { flow: *flow, bytes: &packet[..stride - ether::icrc::ICRC] });
        }
    }
    /// Whether [`RxSink::expect`] should be called: so many queue pairs are in use that they are in no cache.
    fn expects(&self) -> bool {
        false
    }
    /// Called with packets that [`RxSink::frame`] is called with next, in the same order, [`EXPECTED_MAX`] at most.
    fn expect(&mut self, _packet: &[u8]) {}
    /// Called for each packet that the port drops.
    fn dropped(&mut self, reason: Reason);
    /// Called in place of [`RxSink::dropped`] with a packet that the port drops and of which it has flow and bytes, for captures.
    /// The bytes may be damaged.
    fn refused(&mut self, _frame: &RxFrame<'_>, reason: Reason) {
        self.dropped(reason);
    }
    /// Called when `packets` of this burst were looped back within the port.
    fn looped_back(&mut self, _packets: usize) {}
    /// Called before packets that have waited in the receive buffers of a port with [`Port::time_arrivals`]: the time until
    /// `now` of the burst. It is that of all packets until the next call, or the end of the burst.
    fn waited(&mut self, _waited: Nanos) {}
    /// Called when the level of the port's receive buffers has changed, and when packets were lost there that are not passed to
    /// [`RxSink::dropped`] as `ReceiveOverflow`. A port that cannot tell never calls it.
    fn pressure(&mut self, _pressure: ReceivePressure) {}
}

/// A port, driven by one thread.
pub trait Port: Send {
    /// Present properties. Addresses, MTU and link state may change: see [`Port::refresh`].
    fn caps(&self) -> &PortCaps;
    /// Receives up to `budget` packets; returns how many were taken from the port. Does not block.
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize;
    /// Sends every packet of the batch, in order, or drops it with a reason. Blocks for a few milliseconds at most, for room in a
    /// socket. The batch is not changed; its spans are not used after the call.
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason));
    /// Descriptors that become readable when `rx_burst` has packets.
    fn wait_fds(&self) -> Vec<RawFd>;
    /// Passes all descriptors of the port that keep its address in use: a child process closes its copies. A port of a host
    /// inside a program allocates no memory here: the fork may interrupt the allocator.
    fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.wait_fds().into_iter().for_each(take);
    }
    /// When `rx_burst` should be called even if no descriptor is readable, or `Nanos::NEVER`.
    fn next_event(&self) -> Nanos {
        Nanos::NEVER
    }
    /// Joins a multicast group: packets to the group are received from now on, those of this host included, and the network
    /// learns of the membership (IGMP, MLD). Only worker 0's port is called. The default implementation refuses.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] by default; otherwise the system's error.
    fn join(&mut self, _group: IpAddr) -> Result<(), PortError> {
        Err(PortError::Unsupported { kind: self.caps().name.clone(), what: "join a multicast group" })
    }
    /// How many multicast groups the port can be in at the same time. The default implementation has no limit of its own.
    fn groups_max(&self) -> usize {
        usize::MAX
    }
    /// Leaves a multicast group. A group that was not joined is no error.
    fn leave(&mut self, _group: IpAddr) {}
    /// Prepares to send from `count` UDP source ports of each address, its usual one included, so that switches and adapters can
    /// spread packets over paths and queues. Packets to the port come to the encapsulation's UDP port as before. The default
    /// implementation is that of ports that write source ports into packets themselves and need nothing for it.
    ///
    /// # Errors
    /// [`PortError`]: nothing has changed.
    fn open_source_ports(&mut self, _count: usize) -> Result<(), PortError> {
        Ok(())
    }
    /// The UDP source port with this number, from 1 on, that packets from `src` can have; `None`: they can have any.
    fn source_port(&self, _src: IpAddr, _number: usize) -> Option<u16> {
        None
    }
    /// Announces that packets of this flow will follow, so that slow preparations (resolving the next hop) can begin. A flow from
    /// an address that is not the port's is ignored.
    fn prepare(&mut self, _flow: &Flow) {}
    /// Whether the next hop of a flow is being resolved. Packets to it meanwhile wait in a queue for [`UNRESOLVED_BYTES`] and
    /// little more. Sending a packet, or [`Port::prepare`], makes a port resolve a next hop.
    fn is_resolving(&mut self, _now: Nanos, _flow: &Flow) -> bool {
        false
    }
    /// The state of the next hop to `dst`; a port resolves an unresolved one from now on. A port for which the kernel resolves
    /// next hops returns [`NeighbourState::Resolved`]: the caller asks the kernel ([`burst_netif::hops`]).
    fn next_hop(&mut self, _now: Nanos, _dst: IpAddr) -> NeighbourState {
        NeighbourState::Resolved
    }
    /// Prepares for a sleep of the worker on `wait_fds`, until `next_event` at the latest. True when packets have arrived
    /// meanwhile.
    fn before_sleep(&mut self) -> bool {
        false
    }
    /// The sleep that [`Port::before_sleep`] has announced is over, or there was none.
    fn after_sleep(&mut self) {}
    /// Reads addresses, MTU and link state again; true when one has changed. Called after an event from the kernel, and about
    /// once a second.
    fn refresh(&mut self) -> bool {
        false
    }
    /// The system calls since the last question that have sent or received packets.
    fn take_calls(&mut self) -> PortCalls {
        PortCalls::default()
    }
    /// From now on tells how long packets have waited in the receive buffers ([`RxSink::waited`]), as far as the port can. It
    /// costs a time stamp of the kernel for each packet, so a port does not do so by itself.
    fn time_arrivals(&mut self) {}
    /// Returns memory of past packets to the system. For times without traffic.
    fn shrink(&mut self) {}
    /// Lends a worker number to another process: from now on packets to queue pairs of that number come to sockets of which the
    /// caller gets duplicates, with their names for a [`DescriptorStore`]. Only worker 0's port is called. The
    /// default implementation refuses.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] by default; otherwise the system's error, and nothing is lent.
    fn lend(&mut self, _number: usize) -> Result<Vec<LentSocket>, PortError> {
        Err(PortError::Unsupported { kind: self.caps().name.clone(), what: "lend a worker number to a program" })
    }
    /// Takes a lent number back: packets to its queue pairs come to this port. Those that wait in its sockets are dropped.
    fn take_back(&mut self, _number: usize) {}
    /// The wrapper whose options may be changed while the port runs, if this port is one.
    fn impairment(&mut self) -> Option<&mut impair::Impair> {
        None
    }
}

/// Numbers of system calls ([`Port::take_calls`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCalls {
    /// Calls that have sent packets.
    pub send: u64,
    /// Calls that have received packets.
    pub receive: u64,
}

/// Bytes of payload, in packets of any path MTU, that every port queues for a next hop that is being resolved. The kernel's queue
/// is the smallest: 208 KiB of memory by default, of which a packet of 256 bytes takes 1 KiB and a packet of 4 KiB takes 8 KiB.
pub const UNRESOLVED_BYTES: u64 = 32 << 10;

/// A socket that is lent to another process, and its name in that process's [`DescriptorStore`].
pub type LentSocket = (String, OwnedFd);

/// Whether processes share the addresses of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressSharing {
    /// All queue pair numbers of the addresses belong to this process.
    #[default]
    Alone,
    /// This process has the addresses, and lends worker numbers from the number of its workers on.
    Lends,
    /// This process has one number, which was lent to it.
    Lent,
}

/// The worker that a port serves, the number of workers, and the store of descriptors.
#[derive(Clone, Debug)]
pub(crate) struct WorkerShare {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// Number of workers of this process, at least 1; all numbers are below it.
    pub workers: usize,
    /// Keeps the port's sockets for a successor of this process, or has those that were lent to it.
    pub store: Option<Arc<dyn DescriptorStore>>,
    /// Whether other processes have worker numbers of the same addresses.
    pub sharing: AddressSharing,
}

impl WorkerShare {
    /// The only worker of a port.
    pub fn only() -> WorkerShare {
        WorkerShare { worker: 0, workers: 1, store: None, sharing: AddressSharing::Alone }
    }

    /// Whether several sockets are bound to each address.
    pub fn is_grouped(&self) -> bool {
        self.workers > 1 || self.sharing != AddressSharing::Alone
    }

    /// Whether a queue pair of one of the port's addresses is in another process.
    pub fn is_elsewhere(&self, qpn: Qpn) -> bool {
        let worker = qpn.worker() as usize;
        match self.sharing {
            AddressSharing::Alone => false,
            AddressSharing::Lends => qpn > Qpn::GSI && qpn != Qpn::MULTICAST && worker >= self.workers,
            AddressSharing::Lent => qpn <= Qpn::GSI || qpn != Qpn::MULTICAST && worker != self.worker,
        }
    }
}

/// Finds the interface that the specification names, or chooses one.
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

/// The addresses that the port serves: all of the interface's, at most `most`, or only the given one.
pub(crate) fn wanted(only: Option<IpAddr>, interface: &Interface, most: usize) -> Vec<PortAddr> {
    match only {
        // All of 127.0.0.0/8 is local, listed or not. Any other address must be bindable, as opening its socket shows.
        Some(ip) => vec![addr_of(interface, ip)],
        None => interface.addrs.iter().take(most).map(|ip| addr_of(interface, *ip)).collect(),
    }
}

/// An address of the interface as an entry of the GID table.
fn addr_of(interface: &Interface, ip: IpAddr) -> PortAddr {
    PortAddr { ip, ifindex: interface.index, ifname: interface.name.clone(), reach: None }
}

/// Properties of a port on `interface`.
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

/// The properties that [`Port::refresh`] compares.
pub(crate) fn essence(caps: &PortCaps) -> (Vec<IpAddr>, u32, bool, u32, [u8; 6]) {
    (caps.addrs.iter().map(|a| a.ip).collect(), caps.link_mtu, caps.up, caps.speed_mbps, caps.mac)
}

/// Opens the port that `spec` describes, for a single worker and the packets of one encapsulation.
///
/// # Errors
/// [`PortError`]: one sentence that names what is missing and what to do.
pub fn open(spec: &PortSpec, encapsulation: &Encapsulation) -> Result<Box<dyn Port>, PortError> {
    Ok(wrap(spec, open_kind(spec, encapsulation, &WorkerShare::only())?, None, &WorkerShare::only()))
}

/// Bytes of the smallest receive buffer among a port's sockets; `None` if it has none.
pub fn receive_buffer(port: &dyn Port) -> Option<u32> {
    let mut least = None;
    port.each_descriptor(&mut |fd| {
        let bytes = sys::socket::receive_buffer_of(fd);
        least = least.into_iter().chain(bytes).min();
    });
    least
}

/// Opens the port that `spec` describes, once for each of `workers` workers; returns the ports in order of the workers' numbers.
///
/// Where the kernel can tell, received packets go to the worker of their destination (`Qpn::worker`); a packet may still arrive
/// at another worker (trains of mixed queue pairs), so the engine must be able to hand it over. Packets from one worker to a
/// queue pair of another one of this host go to that worker's port directly ([`loopback`]).
///
/// With a `store`, the `udp` port takes over the sockets of the predecessor of this process, and stores its own.
///
/// # Errors
/// As [`open`].
pub fn open_all(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    workers: usize,
    store: Option<&Arc<dyn DescriptorStore>>,
) -> Result<Vec<Box<dyn Port>>, PortError> {
    open_shared(spec, encapsulation, workers, store, AddressSharing::Alone)
}

/// As [`open_all`]; with [`AddressSharing::Lends`] the first port can lend worker numbers ([`Port::lend`]).
///
/// # Errors
/// As [`open`].
pub fn open_shared(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    workers: usize,
    store: Option<&Arc<dyn DescriptorStore>>,
    sharing: AddressSharing,
) -> Result<Vec<Box<dyn Port>>, PortError> {
    debug_assert_ne!(sharing, AddressSharing::Lent, "a lent port has one worker");
    let share = |worker| WorkerShare { worker, workers, store: store.cloned(), sharing };
    let ports: Result<Vec<_>, _> = (0..workers).map(|worker| open_kind(spec, encapsulation, &share(worker))).collect();
    // A port that cannot be opened for so many workers refuses first, with its own sentence.
    let ports = ports?;
    let joined = workers > 1 && spec.kind.loops_back();
    let mut queues = if joined { loopback::WorkerQueues::between(workers)? } else { Vec::new() }.into_iter();
    Ok(ports.into_iter().enumerate().map(|(worker, port)| wrap(spec, port, queues.next(), &share(worker))).collect())
}

/// Opens the port of a worker number that another process has lent to this one, with the sockets in `store`. The port has the
/// addresses of these sockets, and no others later.
///
/// # Errors
/// As [`open`]; there is no socket of any of the interface's addresses.
pub fn open_lent(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    number: usize,
    store: &Arc<dyn DescriptorStore>,
) -> Result<Box<dyn Port>, PortError> {
    let share =
        WorkerShare { worker: number, workers: number + 1, store: Some(store.clone()), sharing: AddressSharing::Lent };
    Ok(wrap(spec, open_kind(spec, encapsulation, &share)?, None, &share))
}

/// Opens a port of one address for a transport beside the one of the ports that [`open_shared`] has opened by `spec`, for worker
/// `worker`, which runs one of those: a port of its own, or a guest on their DPDK device.
///
/// # Errors
/// As [`open`]; another port has the address and the encapsulation's UDP port.
pub fn open_beside(
    spec: &PortSpec,
    encapsulation: &Encapsulation,
    address: IpAddr,
    worker: usize,
) -> Result<Box<dyn Port>, PortError> {
    if let PortKind::Dpdk(device) = &spec.kind {
        let guest = (dpdk_opener()?.open_guest)(device, encapsulation, &spec.to_string(), address, worker)?;
        return Ok(wrap(spec, guest, None, &WorkerShare::only()));
    }
    // A port of its own does not care which worker runs it.
    let _ = worker;
    open(&spec.at(address), encapsulation)
}

/// Whether ports of this kind can lend worker numbers: a socket of the others is the whole wire.
pub fn can_lend(spec: &PortSpec) -> bool {
    matches!(spec.kind, PortKind::Udp(_))
}

/// Puts the wrappers of the specification around a worker's port.
fn wrap(
    spec: &PortSpec,
    mut port: Box<dyn Port>,
    queues: Option<loopback::WorkerQueues>,
    share: &WorkerShare,
) -> Box<dyn Port> {
    if spec.kind.loops_back() {
        port = Box::new(loopback::Loopback::sharing(port, queues, share.clone()));
    }
    for impair in spec.impair.iter().rev() {
        // Workers get different seeds, so that they do not make the same random choices.
        let seed = impair.seed.wrapping_add(share.worker as u64);
        port = Box::new(impair::Impair::new(port, spec::ImpairSpec { seed, ..*impair }));
    }
    port
}

/// Opens the port without wrappers.
fn open_kind(spec: &PortSpec, encapsulation: &Encapsulation, share: &WorkerShare) -> Result<Box<dyn Port>, PortError> {
    let name = spec.to_string();
    if share.sharing == AddressSharing::Lent && !can_lend(spec) {
        return Err(PortError::Unsupported { kind: name, what: "be lent to a program" });
    }
    let (worker, workers, share) = (share.worker, share.workers, share.clone());
    Ok(match &spec.kind {
        PortKind::Udp(udp) => Box::new(udp::UdpPort::open_share(udp, encapsulation, &name, share)?),
        PortKind::Packet(packet) => Box::new(packet::PacketPort::open_share(packet, encapsulation, &name, share)?),
        PortKind::Dpdk(dpdk) => (dpdk_opener()?.open)(dpdk, encapsulation, &name, (worker, workers))?,
    })
}

#[cfg(test)]
mod tests {
    use super::ReceivePressure::{self, *};

    #[test]
    fn pressure_rises_over_a_half_and_over_three_quarters() {
        let levels = [0, 50, 51, 75, 76, 100, 1000].map(|used| ReceivePressure::of(used, 100));
        assert_eq!(levels, [Free, Free, Half, Half, ThreeQuarters, ThreeQuarters, ThreeQuarters]);
        assert_eq!((ReceivePressure::of(0, 0), ReceivePressure::of(u64::MAX, u64::MAX)), (Free, Free));
    }
}
