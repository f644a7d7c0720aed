//! URMA's endpoint: a node of the Unified Bus with its port, as workers run it beside their queue pairs, and programs alone.
//!
//! All Jetties of an address share the channels of one node, so a worker has one endpoint for each address
//! ([`crate::Worker::open_urma`]). It is scheduled as a queue pair is: a turn in its context's order, bytes charged to the
//! account, deadlines in the wheel. Its port has an encapsulation of its own (`burst_port::Encapsulation::UNIFIED_BUS`), so a
//! packet's UDP port decides which transport gets it.
//!
//! Payload in registered memory is lent to the port; heads that are longer than a frame's are rare, and go by copy.
//!
//! Each lane leaves by a UDP source port of its own. A port that cannot send from any opens what it needs for all lanes with the
//! endpoint ([`Port::open_source_ports`]): later neither a peer's packet nor a program's request makes it open anything.

use crate::counters::{Counters, Traffic};
use crate::paths::ecn::is_marked;
use crate::port_slot::PortSlot;
use crate::ring::PacketRing;
use crate::tap::{PortTap, TappedBurst};
use crate::urma::channel_paths::{ChannelPaths, OwnPaths, PacedTurn, PathEnds, PathTables, tos_of};
use burst_base::gid::{gid_of, ip_of};
use burst_base::{DeviceId, Nanos, Reason};
use burst_cc::CcTable;
use burst_frame::{Flow, HEAD_MAX, RxFrame, TRAILER_LEN};
use burst_port::{Port, PortCaps, PortError, ReceivePressure, RxSink, SOURCE_PORTS_MAX};
use burst_ubwire::Cna;
use burst_urma::{LANES_MAX, NodeEid, UrmaConfig, UrmaEffects, UrmaEnv, UrmaMemory, UrmaNode, UrmaRun, UrmaTransmit};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

mod imports;
mod page;

/// Payloads of packets, the greatest first, that a link's MTU can carry.
const PAYLOADS: [u16; 5] = [4096, 2048, 1024, 512, 256];
/// Bytes of a packet beside its payload: IPv6, UDP, the longest usual head (`HEAD_MAX`), the checksum.
const OVERHEAD: u32 = 40 + 8 + HEAD_MAX as u32 + 4;

/// Largest window of a channel.
const WINDOW_MAX: u32 = 1 << 20;
/// Least window: a message of 64 KiB.
const WINDOW_MIN: u32 = 64 << 10;

/// Bytes that may be in flight to a peer: a quarter of this port's own receive buffer, as the peer's is unknown. The kernel
/// counts twice the length of a train, and half the buffer is left to others.
pub fn window_max(port: &dyn Port) -> u32 {
    burst_port::receive_buffer(port).map_or(WINDOW_MIN, |bytes| (bytes / 4).clamp(WINDOW_MIN, WINDOW_MAX))
}

/// What a node that closes sends at most before its last messages: answers that were ready, not the windows of all peers.
const LEAVE_BYTES: u64 = 4 << 20;

/// The node at an address.
pub fn node_at(address: IpAddr) -> NodeEid {
    NodeEid::new(gid_of(address))
}

/// Where a node is.
pub fn address_at(node: NodeEid) -> IpAddr {
    ip_of(node.octets())
}

const _: () = assert!(LANES_MAX as usize <= SOURCE_PORTS_MAX);

/// The UDP source port of a lane on a port that can send from any: switches and network cards choose a path by it. Lane 0 has the
/// transport's own port; the others have ports of the dynamic range, which differ from each other, and from those of most other
/// peers.
fn source_port(own: Cna, peer: Cna, lane: u8) -> u16 {
    if lane == 0 {
        return burst_ubwire::UB_UDP_PORT;
    }
    let mixed = (own.get() ^ peer.get().rotate_left(12)).wrapping_mul(0x9e37_79b1) >> 18;
    // An odd step, so that bits of all weights change from lane to lane.
    0xc000 | (mixed as u16).wrapping_add(u16::from(lane).wrapping_mul(0x0b2d)) & 0x3fff
}

/// A node and its port, and the nodes that were heard of.
pub struct UrmaEndpoint {
    /// The node.
    pub node: UrmaNode,
    slot: PortSlot,
    /// Imports of programs in other processes from each node, as long as there are any. Each is charged to its user.
    imports: HashMap<NodeEid, u32>,
    head: Vec<u8>,
    address: IpAddr,
    scope: u32,
    /// Where channels that no import needs are looked for next.
    looked: NodeEid,
    device: DeviceId,
    turn: PacedTurn,
    /// The paths to peers, if it has no worker. They are taken out for the time of a call.
    own: Option<Box<OwnPaths>>,
}

/// What a call to a node needs besides the node.
pub(crate) struct NodeIo<'a> {
    pub now: Nanos,
    pub mem: &'a mut dyn UrmaMemory,
    pub fx: &'a mut dyn UrmaEffects,
    pub tables: PathTables<'a>,
}

/// What a burst brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct UrmaBurst {
    /// Packets taken from the port.
    pub packets: usize,
    /// Bytes of those that the node got.
    pub bytes: usize,
}

impl UrmaEndpoint {
    /// The endpoint of `address`, one of the port's, with batches of `frames` frames. `config` gets the payload of packets that
    /// fit through the link.
    ///
    /// # Errors
    /// The port has no such address, or cannot send from a source port for each lane.
    pub fn new(
        mut port: Box<dyn Port>,
        address: IpAddr,
        frames: usize,
        config: impl FnOnce(u16) -> UrmaConfig,
    ) -> Result<UrmaEndpoint, PortError> {
        let caps = port.caps();
        let Some(own) = caps.addrs.iter().find(|a| a.ip == address) else {
            let source = std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
            return Err(PortError::System { what: format!("use {address} on the port {}", caps.name), source });
        };
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let scope = if is_link_local { own.ifindex } else { 0 };
        let node = UrmaNode::new(config(payload_max(caps)));
        port.open_source_ports(usize::from(node.lanes()))?;
        let head = vec![0; node.packet_max()];
        let slot = PortSlot::new(port, burst_ubwire::UB_UDP_PORT, frames);
        Ok(UrmaEndpoint {
            node,
            slot,
            imports: HashMap::new(),
            head,
            address,
            scope,
            looked: NodeEid::UNSPECIFIED,
            device: DeviceId(0),
            turn: PacedTurn::default(),
            own: Some(Box::default()),
        })
    }
    /// It is in a worker, whose paths it uses, and belongs to this device.
    pub(crate) fn join_worker(&mut self, device: DeviceId) {
        debug_assert!(self.node.channel_count() == 0, "channels have paths already");
        (self.device, self.own) = (device, None);
    }
    /// Congestion control of an endpoint without a worker, for peers to which nothing was sent yet.
    pub fn set_cc(&mut self, cc: CcTable) {
        if let Some(own) = &mut self.own {
            own.set_cc(cc);
        }
    }
    /// Calls something with the endpoint's own paths. Channels that have waited for them may go on afterwards.
    fn on_own_paths<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaEndpoint, PathTables<'_>) -> R) -> R {
        debug_assert!(self.own.is_some(), "an endpoint of a worker has no paths of its own");
        let mut own = self.own.take().unwrap_or_default();
        let result = call(self, own.tables());
        while let Some(path) = own.take_opened(now) {
            self.node.resume_path(path);
        }
        self.own = Some(own);
        result
    }
    /// Opens gates of the endpoint's own paths that are due. Whether there were any.
    fn open_gates(&mut self, now: Nanos) -> bool {
        let is_due = self.own.as_ref().is_some_and(|own| own.pacing.next_deadline() <= now);
        if is_due && let Some(own) = &mut self.own {
            own.open_gates(now);
        }
        is_due
    }
    /// Counters of the port.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.slot.counters
    }
    /// The port.
    pub fn port(&mut self) -> &mut dyn Port {
        &mut *self.slot.port
    }
    /// Its packets are captured.
    pub(crate) fn add_tap(&mut self, tap: PortTap) -> bool {
        self.slot.add_tap(tap)
    }
    /// Its packets are kept in the ring of the worker.
    pub(crate) fn keep_packets(&mut self, ring: Arc<PacketRing>) {
        self.slot.keep_packets(ring, self.device);
    }
    /// Captures end whose readers have gone.
    pub(crate) fn remove_left_taps(&mut self) {
        self.slot.taps.remove_left();
    }
    /// Its device.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }
    /// Own address.
    pub fn address(&self) -> IpAddr {
        self.address
    }
    /// Calls something of the node.
    pub fn with<R>(
        &mut self,
        now: Nanos,
        mem: &mut dyn UrmaMemory,
        fx: &mut dyn UrmaEffects,
        call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R,
    ) -> R {
        self.on_own_paths(now, |end, tables| end.call_node(NodeIo { now, mem, fx, tables }, call))
    }
    /// Calls something of the node.
    pub(crate) fn call_node<R>(
        &mut self,
        io: NodeIo<'_>,
        call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R,
    ) -> R {
        let NodeIo { now, mem, fx, tables } = io;
        let UrmaEndpoint { node, turn, .. } = self;
        let mut paths = ChannelPaths { tables, turn, ends: None };
        let result = call(node, &mut UrmaEnv { now, mem, fx, paths: &mut paths });
        node.leave_paths(now, &mut paths);
        result
    }
    /// Gives the node what has arrived.
    pub fn receive(
        &mut self,
        now: Nanos,
        mem: &mut dyn UrmaMemory,
        fx: &mut dyn UrmaEffects,
        budget: usize,
    ) -> UrmaBurst {
        self.on_own_paths(now, |end, tables| end.receive_on(NodeIo { now, mem, fx, tables }, budget))
    }
    /// Gives the node what has arrived.
    pub(crate) fn receive_on(&mut self, io: NodeIo<'_>, budget: usize) -> UrmaBurst {
        let NodeIo { now, mem, fx, tables } = io;
        let UrmaEndpoint { node, slot: PortSlot { port, counters, taps, .. }, turn, .. } = self;
        let mut paths = ChannelPaths { tables, turn, ends: None };
        let env = UrmaEnv { now, mem, fx, paths: &mut paths };
        let mut sink = UrmaSink { node, env, counters, bytes: 0 };
        let packets = match taps.is_empty() {
            true => port.rx_burst(now, budget, &mut sink),
            false => taps.receive(now, TappedBurst { port: &mut **port, budget, sink: &mut sink, counters }),
        };
        let bytes = sink.bytes;
        node.leave_paths(now, &mut paths);
        UrmaBurst { packets, bytes }
    }
    /// Handles what is due. True if anything was.
    pub fn run_timers(&mut self, now: Nanos, mem: &mut dyn UrmaMemory, fx: &mut dyn UrmaEffects) -> bool {
        let has_opened = self.open_gates(now);
        if self.node.next_deadline() > now && !has_opened {
            return false;
        }
        self.on_own_paths(now, |end, tables| end.run_timers_on(NodeIo { now, mem, fx, tables })) | has_opened
    }
    /// Handles what is due. True if anything was.
    pub(crate) fn run_timers_on(&mut self, io: NodeIo<'_>) -> bool {
        let is_due = self.node.next_deadline() <= io.now;
        if is_due {
            self.call_node(io, |node, env| node.on_timer(env));
        }
        is_due
    }
    /// Makes frames of what the node has ready, until they have about `bytes_max` bytes; returns their bytes.
    /// [`UrmaEndpoint::flush`] must follow before anything else is done with the node: payload is sent from the program's
    /// memory.
    pub fn send(&mut self, now: Nanos, mem: &mut dyn UrmaMemory, fx: &mut dyn UrmaEffects, bytes_max: u64) -> u64 {
        if !self.node.wants_tx() {
            return 0;
        }
        self.on_own_paths(now, |end, tables| end.send_on(NodeIo { now, mem, fx, tables }, bytes_max))
    }
    /// As [`UrmaEndpoint::send`].
    pub(crate) fn send_on(&mut self, io: NodeIo<'_>, bytes_max: u64) -> u64 {
        let NodeIo { now, mem, fx, mut tables } = io;
        let mut bytes = 0;
        while bytes < bytes_max {
            let room = self.room_for_run(bytes_max - bytes);
            let UrmaEndpoint { node, slot, turn, head, .. } = self;
            let flow = Flow { src: self.address, scope: self.scope, ..Flow::default() };
            let ends = Some(PathEnds { device: self.device, flow, caps: slot.port.caps() });
            let mut paths = ChannelPaths { tables: tables.reborrow(), turn, ends };
            let env = &mut UrmaEnv { now, mem, fx, paths: &mut paths };
            if let Some(run) = node.poll_run(env, room) {
                let tos = tos_of(tables.paths, run.path);
                bytes += (run.count() * self.node.run_head().len() + run.payload.len()) as u64;
                self.push_run(&run, tos, fx);
                self.flush_full(now);
                continue;
            }
            let Some(packet) = node.poll_tx_lent(env, head) else { break };
            bytes += (packet.len + packet.lent.map_or(0, |span| span.len())) as u64;
            let flow = self.flow_to((packet.dest, packet.lane), tos_of(tables.paths, packet.path));
            if !self.push(&flow, &packet) {
                self.flush(now);
                if !self.push(&flow, &packet) {
                    fx.count(Reason::SendTooLong);
                }
            }
            self.flush_full(now);
        }
        self.turn.end(now, tables.paths);
        bytes
    }
    /// Packets of a run that fit into the batch and into so many bytes. Longer heads than usual are no runs'.
    fn room_for_run(&self, bytes: u64) -> usize {
        if self.node.run_head().len() > HEAD_MAX {
            return 0;
        }
        let packets = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(self.node.packet_max());
        packets.min(self.slot.batch.room_for_run())
    }
    /// Sends the frames if there is no room for another one.
    fn flush_full(&mut self, now: Nanos) {
        if !self.slot.batch.has_room() {
            self.flush(now);
        }
    }
    /// Makes frames of a run, for which there is room.
    fn push_run(&mut self, run: &UrmaRun, tos: u8, fx: &mut dyn UrmaEffects) {
        let flow = self.flow_to((run.dest, run.lane), tos);
        debug_assert!(run.count() <= self.slot.batch.room_for_run(), "the batch has no room for the run");
        let vary = |index, head: &mut [u8; HEAD_MAX]| run.vary(index, head);
        if !self.slot.batch.push_run(&flow, self.node.run_head(), &run.payload, run.len, vary) {
            fx.count(Reason::SendTooLong);
        }
    }
    /// Addresses of packets on a lane to a peer, with their traffic class.
    fn flow_to(&self, (peer, lane): (NodeEid, u8), tos: u8) -> Flow {
        let src_port = self.source_port(peer.cna(), lane);
        Flow { src: self.address, dst: address_at(peer), scope: self.scope, src_port, tos, ..Flow::default() }
    }
    /// The UDP source port of a lane to a peer.
    fn source_port(&self, peer: Cna, lane: u8) -> u16 {
        let ports_own = if lane == 0 { None } else { self.slot.port.source_port(self.address, usize::from(lane)) };
        ports_own.unwrap_or_else(|| source_port(self.node.cna(), peer, lane))
    }
    fn push(&mut self, flow: &Flow, packet: &UrmaTransmit) -> bool {
        let batch = &mut self.slot.batch;
        let (head, rest) = self.head[..packet.len].split_at(packet.len.min(HEAD_MAX));
        match packet.lent {
            None if rest.is_empty() => batch.push(flow, head, &[], 0),
            None => batch.push_copied(flow, head, rest),
            Some(payload) if rest.is_empty() => batch.push(flow, head, &[payload], 0),
            Some(payload) => {
                let mut whole = rest.to_vec();
                whole.resize(rest.len() + payload.len(), 0);
                payload.read_to(&mut whole[rest.len()..]).is_ok() && batch.push_copied(flow, head, &whole)
            }
        }
    }
    /// The endpoint is about to be dropped: sends what the node owes its peers, and tells them ([`UrmaNode::leave`]).
    pub fn leave(&mut self, now: Nanos, mem: &mut dyn UrmaMemory, fx: &mut dyn UrmaEffects) {
        self.on_own_paths(now, |end, tables| end.leave_on(NodeIo { now, mem, fx, tables }));
    }
    /// As [`UrmaEndpoint::leave`]. Its channels leave their paths.
    pub(crate) fn leave_on(&mut self, io: NodeIo<'_>) {
        let NodeIo { now, mem, fx, mut tables } = io;
        self.send_on(NodeIo { now, mem, fx, tables: tables.reborrow() }, LEAVE_BYTES);
        self.node.leave();
        self.send_on(NodeIo { now, mem, fx, tables: tables.reborrow() }, u64::MAX);
        self.flush(now);
        self.leave_paths(now, tables);
    }
    /// Takes all channels off their paths.
    pub(crate) fn leave_paths(&mut self, now: Nanos, tables: PathTables<'_>) {
        let UrmaEndpoint { node, turn, .. } = self;
        node.leave_all_paths(now, &mut ChannelPaths { tables, turn, ends: None });
    }
    /// Sends the frames.
    pub fn flush(&mut self, now: Nanos) {
        self.slot.flush(now);
    }
    /// When node or port must be looked at.
    pub fn next_deadline(&self) -> Nanos {
        let gates = self.own.as_ref().map_or(Nanos::NEVER, |own| own.pacing.next_deadline());
        self.node.next_deadline().min(self.slot.port.next_event()).min(gates)
    }
    /// When the port must be looked at.
    pub(crate) fn port_event(&self) -> Nanos {
        self.slot.port.next_event()
    }
    /// All descriptors of the port.
    pub fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.slot.port.each_descriptor(take);
    }
    /// True when packets have arrived meanwhile.
    pub fn before_sleep(&mut self) -> bool {
        self.slot.port.before_sleep()
    }
    /// The sleep is over, or there was none. Who may be woken by [`UrmaEndpoint::wait_fds`] at any time does not call this.
    pub fn after_sleep(&mut self) {
        self.slot.port.after_sleep();
    }
    /// Descriptors that become readable when packets arrive.
    pub fn wait_fds(&self) -> Vec<RawFd> {
        self.slot.port.wait_fds()
    }
}

/// Payload of packets that fit through a port's link.
fn payload_max(caps: &PortCaps) -> u16 {
    let room = caps.link_mtu.saturating_sub(OVERHEAD);
    PAYLOADS.into_iter().find(|payload| u32::from(*payload) <= room).unwrap_or(256)
}

/// Gives received packets to the node.
struct UrmaSink<'a, 'b> {
    node: &'a mut UrmaNode,
    env: UrmaEnv<'b>,
    counters: &'a Counters,
    bytes: usize,
}

impl UrmaSink<'_, '_> {
    fn count(&mut self, packets: usize, bytes: usize) {
        self.counters.add(Traffic::RxPackets, packets as u64);
        self.counters.add(Traffic::RxBytes, bytes as u64);
    }
}

impl RxSink for UrmaSink<'_, '_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.count(1, frame.bytes.len());
        let from = node_at(frame.flow.src);
        self.bytes += frame.bytes.len();
        match is_marked(&frame.flow) {
            false => self.node.on_packet(&mut self.env, from, frame.bytes),
            true => {
                self.counters.add(Traffic::MarkedPackets, 1);
                self.node.on_marked_packet(&mut self.env, from, frame.bytes);
            }
        }
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let (mut rest, len, from) = (train, stride - TRAILER_LEN, node_at(flow.src));
        // Marked packets are counted one by one.
        let has_runs = !is_marked(flow);
        while rest.len() >= stride {
            // Counted before, so that a capture finds the packet that a reason belongs to: the first one.
            self.count(1, len);
            let taken = if has_runs { self.node.on_run(&mut self.env, from, rest, (stride, len)) } else { 0 };
            let more = (taken as u64).wrapping_sub(1);
            self.counters.add(Traffic::RxPackets, more);
            self.counters.add(Traffic::RxBytes, more.wrapping_mul(len as u64));
            if taken > 0 {
                self.bytes += taken * len;
            } else {
                self.frame(&RxFrame { flow: *flow, bytes: &rest[..len] });
            }
            rest = &rest[taken.max(1) * stride..];
        }
    }
    fn dropped(&mut self, reason: Reason) {
        self.env.fx.count(reason);
    }
    fn pressure(&mut self, _pressure: ReceivePressure) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_a_source_port_of_its_own() {
        for (own, peer) in [(1, 2), (2, 1), (0x00_0a01, 0x00_0a02), (0xff_ffff, 0)] {
            let ports: Vec<u16> = (0..8).map(|lane| source_port(Cna::new(own), Cna::new(peer), lane)).collect();
            assert_eq!(ports[0], burst_ubwire::UB_UDP_PORT);
            assert!(ports[1..].iter().all(|port| *port >= 0xc000), "{ports:?}");
            let mut sorted = ports.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 8, "{ports:?}");
        }
    }
}
