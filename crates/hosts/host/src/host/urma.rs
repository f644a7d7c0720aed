//! Nodes of URMA: one for each address that programs use, opened with the first program and closed with the last. Peers are
//! told when a node closes.

use super::Host;
use super::urma_ports::{HeldUrmaPorts, UrmaAddress, UrmaHold};
use crate::authority::Caller;
use crate::device::HostDevice;
use crate::limits::{URMA_JFCS_MAX, URMA_PEERS_MAX, URMA_REQUESTS_MAX};
use crate::options::HostOptions;
use crate::refusal::{no_room, refuse, refuse_charge};
use crate::urma_peers::{PeerHold, UrmaPeers};
use burst_base::{DeviceId, Nanos};
use burst_control::Refusal;
use burst_control::urma::{UrmaCursor, UrmaPage};
use burst_engine::WorkerTable;
use burst_engine::urma::address_of;
use burst_engine::urma::eid_of;
use burst_engine::urma::{UrmaEndpoint, node_at, window_max};
use burst_ledger::{AccountId, Charge, Policy, Resource, Scope, SharePool};
use burst_port::{Encapsulation, HeldPort, Port, PortSpec};
use burst_urma::{OBJECTS_MAX, SEGMENTS_MAX, UrmaConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Frames of one call of a port.
const FRAMES: usize = 128;
/// Channels of a node.
const CHANNELS_MAX: usize = 4096;

const _: () = assert!(URMA_PEERS_MAX * 4 <= CHANNELS_MAX as u64 * 3);

/// Opens a port for the node of an address of a device; `None`: it cannot.
pub type UrmaPortLender = Box<dyn FnMut(DeviceId, IpAddr) -> Option<Box<dyn Port>> + Send>;

/// The nodes of a host.
#[derive(Default)]
pub(crate) struct UrmaNodes {
    /// The ports' specifications, by device; none for a host on ports of somebody else.
    pub specs: Vec<PortSpec>,
    /// The UDP ports that are held while no program uses URMA.
    pub ports: HeldUrmaPorts,
    /// Opens ports in their place.
    lender: Option<UrmaPortLender>,
    /// Lanes of each node to a peer.
    lanes: u8,
    /// Whether switches bound the channels of each node, in place of paths.
    caqm: bool,
    open: BTreeMap<[u8; 16], OpenNode>,
    /// From which hosts programs import.
    peers: UrmaPeers,
}

impl UrmaNodes {
    /// No node; those that are opened have the lanes and the congestion control of these options.
    pub fn new(options: &HostOptions) -> UrmaNodes {
        UrmaNodes { lanes: options.urma_lanes, caqm: options.urma_caqm, ..UrmaNodes::default() }
    }
    /// Contexts of the host itself: each worker with nodes has one.
    pub fn contexts(&self) -> u32 {
        self.open.values().map(|open| open.worker).collect::<BTreeSet<_>>().len() as u32
    }
}

struct OpenNode {
    device: DeviceId,
    worker: usize,
    /// Places for objects of programs.
    places: NodePlaces,
    /// What the node costs the daemon's own account, if it has the worker's context.
    _charge: Option<Charge>,
}

/// Places of a node for objects of all programs that use it.
struct NodePlaces([(Resource, SharePool); 4]);

impl NodePlaces {
    fn new(policy: Policy) -> NodePlaces {
        let of = |resource, most: usize| (resource, SharePool::new(resource, Scope::Node, most as u64, policy));
        NodePlaces([
            of(Resource::Qp, OBJECTS_MAX),
            of(Resource::Srq, OBJECTS_MAX),
            of(Resource::Mw, SEGMENTS_MAX),
            of(Resource::Ah, OBJECTS_MAX),
        ])
    }
}

// Programs of all users cannot have more than a node may have.
const _: () = assert!(URMA_JFCS_MAX < OBJECTS_MAX as u64);

/// A node, for a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePlace {
    /// Its address.
    pub address: IpAddr,
    /// Its worker.
    pub worker: usize,
    /// Its address on the bus.
    pub cna: u32,
    /// Maximum payload of a packet.
    pub mtu: u16,
}

impl Host {
    /// The node of an address of a device; opens it if no program has it.
    ///
    /// # Errors
    /// EADDRNOTAVAIL: the device does not have the address. EADDRINUSE and others: the port cannot be opened.
    pub(crate) fn open_urma(&mut self, device: DeviceId, address: IpAddr) -> Result<NodePlace, Refusal> {
        let name = format!("burst{device}");
        if !self.devices[device.index()].caps.addrs.iter().any(|own| own.ip == address) {
            return refuse(libc::EADDRNOTAVAIL, format!("{name} does not have the address {address}"));
        }
        let eid = eid_of(address);
        if let Some(worker) = self.urma.open.get(&eid).map(|open| open.worker) {
            let known = self.on_worker(worker, move |w, _| {
                w.urma_endpoint(address).map(|end| (end.node.cna().get(), end.node.mtu()))
            });
            let Some((cna, mtu)) = known else { return refuse(libc::EIO, "the node of the address has ended") };
            return Ok(NodePlace { address, worker, cna, mtu });
        }
        let worker = self.workers_of(device).pick();
        let port = self.urma_port(device, address, worker)?;
        let started = self.start_urma(device, address, (worker, port));
        if started.is_err() {
            self.urma.ports.get(device, address).into_iter().for_each(HeldPort::rest);
        }
        started
    }

    /// Holds the UDP port of URMA at the present addresses, if it is to be held.
    pub(super) fn hold_urma_ports(&mut self) {
        if !self.urma.ports.is_on {
            return;
        }
        let of_device = |device: &HostDevice| {
            let id = device.id;
            device.caps.addrs.iter().map(move |addr| (id, addr.ip)).collect::<Vec<_>>()
        };
        let mut present: Vec<UrmaAddress> = self.devices.iter().flat_map(of_device).collect();
        // A node that is open has its port until it ends, whether or not its address is away for a while.
        let nodes = self.urma.open.iter().map(|(eid, open)| (open.device, address_of(*eid)));
        let away: Vec<UrmaAddress> = nodes.filter(|at| !present.contains(at)).collect();
        present.extend(away);
        let mut ports = std::mem::take(&mut self.urma.ports);
        ports.update(&present, |at| self.hold_urma_port(at));
        self.urma.ports = ports;
    }

    fn hold_urma_port(&self, (device, address): UrmaAddress) -> Result<UrmaHold, String> {
        let Some(spec) = self.urma.specs.get(device.index()) else { return Ok(None) };
        let account = self.ledger.account(AccountId::User(rustix::process::getuid().as_raw()), true);
        let charge = account.charge(&[(Resource::Descriptor, 1)]).map_err(|why| why.to_string())?;
        let held = HeldPort::hold(spec, &Encapsulation::UNIFIED_BUS, address, self.store.clone());
        Ok(held.map_err(|why| why.to_string())?.map(|held| (held, charge)))
    }

    /// A host on ports of somebody else ([`Host::with_ports`]) takes those of URMA's nodes from `lender`.
    pub fn lend_urma_ports(&mut self, lender: UrmaPortLender) {
        self.urma.lender = Some(lender);
    }

    fn urma_port(&mut self, device: DeviceId, address: IpAddr, worker: usize) -> Result<Box<dyn Port>, Refusal> {
        if let Some(lender) = &mut self.urma.lender {
            let lent = lender(device, address);
            return lent.map_or_else(|| refuse(libc::EADDRNOTAVAIL, "no port is lent for the address"), Ok);
        }
        let Some(spec) = self.urma.specs.get(device.index()) else {
            return refuse(libc::EOPNOTSUPP, "this host has ports of its own and no URMA");
        };
        let opened = match self.urma.ports.get(device, address) {
            Some(held) => held.open(),
            None => burst_port::open_beside(spec, &Encapsulation::UNIFIED_BUS, address, worker),
        };
        opened.or_else(|why| refuse(why.errno(), format!("URMA at {address}: {why}")))
    }

    /// Starts the node of an address on a worker, with its port.
    fn start_urma(
        &mut self,
        device: DeviceId,
        address: IpAddr,
        (worker, port): (usize, Box<dyn Port>),
    ) -> Result<NodePlace, Refusal> {
        let seed = self.random_number().or_else(|why| refuse(libc::EIO, why))?;
        let token_seed = self.random_number().or_else(|why| refuse(libc::EIO, why))?;
        let incarnation = self.random_number().or_else(|why| refuse(libc::EIO, why))?;
        let window = window_max(&*port);
        let UrmaNodes { lanes, caqm, .. } = self.urma;
        let config = |mtu| UrmaConfig {
            incarnation,
            token_seed,
            lanes,
            mtu,
            caqm,
            window_max: window,
            rto_base: Nanos::from_ms(10),
            requests_max: URMA_REQUESTS_MAX as usize,
            channels_max: CHANNELS_MAX,
            ..UrmaConfig::new(node_at(address), seed)
        };
        let endpoint = UrmaEndpoint::new(port, address, FRAMES, config);
        let endpoint = endpoint.or_else(|why| refuse(why.errno(), format!("URMA at {address}: {why}")))?;
        let (cna, mtu) = (endpoint.node.cna().get(), endpoint.node.mtu());
        self.make_room(WorkerTable::Contexts, "context")?;
        let account = self.ledger.account(AccountId::User(rustix::process::getuid().as_raw()), true);
        let charge = account.charge(&[(Resource::Context, 1)]).or_else(refuse_charge)?;
        let Some(context) = self.contexts.take(&charge) else { return no_room("context") };
        let is_used = self.on_worker(worker, move |w, _| w.open_urma(context, device, &account, endpoint));
        if !is_used {
            // The worker has one already, for its other addresses.
            self.contexts.put(context);
        }
        tracing::info!(%address, worker, mtu, lanes, "node of URMA opened");
        let (places, _charge) = (NodePlaces::new(self.ledger.policy()), is_used.then_some(charge));
        let before = self.urma.open.insert(eid_of(address), OpenNode { device, worker, places, _charge });
        assert!(before.is_none(), "two nodes of {address}");
        debug_assert!(self.urma.contexts() as usize <= self.workers.len(), "a worker's nodes have one context");
        Ok(NodePlace { address, worker, cna, mtu })
    }

    /// Adds to a charge of an object its place in the node of `own`.
    ///
    /// # Errors
    /// ENOMEM: the caller's user has the share of one user of what the node may have.
    pub(crate) fn charge_in_node(&self, caller: &Caller, own: IpAddr, charge: &mut Charge) -> Result<(), Refusal> {
        let Some(open) = self.urma.open.get(&eid_of(own)) else {
            return refuse(libc::EIO, "the node of the address has ended");
        };
        for (resource, pool) in &open.places.0 {
            if charge.covers(*resource) {
                charge.hold_place(caller.place(pool)?);
            }
        }
        Ok(())
    }

    /// Closes the node of an address that no program uses.
    pub(crate) fn close_urma(&mut self, address: IpAddr) {
        let is_used = |open: &OpenNode| self.on_worker(open.worker, move |w, _| w.has_urma_tenant(address));
        if self.urma.open.get(&eid_of(address)).is_some_and(is_used) {
            return;
        }
        let Some(open) = self.urma.open.remove(&eid_of(address)) else { return };
        if let Some(context) = self.on_worker(open.worker, move |w, now| w.close_urma(now, address)) {
            self.contexts.put(context);
        }
        self.urma.ports.get(open.device, address).into_iter().for_each(HeldPort::rest);
        tracing::info!(%address, "node of URMA closed");
    }

    /// Closes all nodes: the host ends.
    pub(crate) fn close_all_urma(&mut self) {
        for (eid, open) in std::mem::take(&mut self.urma.open) {
            let address = address_of(eid);
            // A worker that has ended has taken its nodes with it; peers find out themselves.
            let _ = self.workers[open.worker].call(move |w, now| w.close_urma(now, address));
        }
    }

    /// Holds the channels to a peer for a caller's import at the node of `own`.
    ///
    /// # Errors
    /// ENOMEM: the account imports from as many hosts as one account may.
    pub(crate) fn hold_urma_peer(&mut self, caller: &Caller, own: IpAddr, peer: IpAddr) -> Result<PeerHold, Refusal> {
        self.urma.peers.hold(caller, own, peer)
    }

    /// What a caller sees of [`Host::urma_page`]: root and the daemon's user all channels, others those to hosts from which they
    /// import.
    pub(crate) fn urma_page_for(&self, caller: &Caller, from: UrmaCursor) -> UrmaPage {
        let mut page = self.urma_page(from);
        if !self.authority.sees_all(caller.process.uid)
            && let Some(node) = &mut page.node
        {
            let own = address_of(node.eid);
            node.channels.retain(|channel| self.urma.peers.has(&caller.account, own, address_of(channel.peer)));
        }
        page
    }

    /// The first node from the cursor on, and a page of its channels.
    pub fn urma_page(&self, from: UrmaCursor) -> UrmaPage {
        let Some((eid, open)) = self.urma.open.range(from.eid..).next() else { return UrmaPage::default() };
        let (address, name) = (address_of(*eid), format!("burst{}", open.device));
        let page = self.on_worker(open.worker, move |w, _| w.urma_endpoint(address).map(|end| end.page(&name, from)));
        page.unwrap_or_default()
    }
}
