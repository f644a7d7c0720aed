//! The port of a simulated host: what the engine sends waits in [`Wire`] for the network, what the network delivers waits there
//! for the engine.

use crate::run::{PacketRun, RunPacket};
use burst_base::{Nanos, Reason};
use burst_fabric::HostId;
use burst_frame::{Flow, RxFrame, TRAILER_LEN, TxBatch, TxFrame};
use burst_port::{Port, PortAddr, PortCaps, ReceivePressure, RxSink};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a packet takes on an Ethernet link beside the transport's headers, payload and padding: preamble, start of frame
/// and gap between frames (20), Ethernet header and checksum (18), IPv4 (20), UDP (8), ICRC (4).
pub const WIRE_OVERHEAD: u32 = 20 + 18 + 20 + 8 + TRAILER_LEN as u32;
/// Buffers of runs that a host keeps for the next runs.
const BUFFERS_KEPT: usize = 64;

/// Packets to send: a run, and its bytes on the wire.
#[derive(Debug)]
pub struct Outgoing {
    /// The destination.
    pub to: HostId,
    /// The packets.
    pub run: PacketRun,
    /// Bytes of all packets on the wire.
    pub bytes: u32,
    /// Bytes of the last packet on the wire.
    pub last: u32,
}

/// What a host's port and the network exchange.
#[derive(Debug, Default)]
pub struct Wire {
    /// Runs that the engine has sent since the simulation looked.
    pub out: Vec<Outgoing>,
    /// Runs that have arrived, and the place of the first packet in the first of them.
    arrived: VecDeque<Arrived>,
    first_at: usize,
    /// Bytes in `arrived`, as on the wire.
    arrived_bytes: u64,
    /// Bytes that `arrived` may hold; 0: any number.
    room: u64,
    /// Whether packets found no room since the port has looked.
    has_lost: bool,
    /// Buffers for runs.
    buffers: Vec<Vec<u8>>,
    /// Packets, trains and bytes that have passed since the simulation looked.
    pub work: PassWork,
}

/// What a host's processor had to do for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassWork {
    /// Trains received and sent.
    pub trains: [u64; 2],
    /// Packets received and sent.
    pub packets: [u64; 2],
    /// Bytes received and sent, as on the wire.
    pub bytes: [u64; 2],
}

#[derive(Debug)]
struct Arrived {
    run: PacketRun,
    is_marked: bool,
    bytes: u32,
}

impl Wire {
    /// Packets have arrived. Returns false if there was no room for them: they are lost.
    pub fn deliver(&mut self, run: PacketRun, is_marked: bool, bytes: u32) -> bool {
        if self.room != 0 && self.arrived_bytes + u64::from(bytes) > self.room {
            self.has_lost = true;
            self.keep(run.into_buffer());
            return false;
        }
        self.arrived_bytes += u64::from(bytes);
        self.arrived.push_back(Arrived { run, is_marked, bytes });
        true
    }

    /// Whether packets wait for the engine.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Drops all packets, for a host that is started anew.
    pub fn clear(&mut self) {
        self.out.clear();
        self.arrived.clear();
        (self.first_at, self.arrived_bytes, self.has_lost) = (0, 0, false);
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_KEPT {
            self.buffers.push(buffer);
        }
    }

    /// The first run has been received.
    fn pop(&mut self) {
        if let Some(done) = self.arrived.pop_front() {
            self.arrived_bytes -= u64::from(done.bytes);
            self.work.trains[0] += 1;
            self.work.packets[0] += u64::from(done.run.count);
            self.work.bytes[0] += u64::from(done.bytes);
            self.keep(done.run.into_buffer());
        }
        self.first_at = 0;
    }
}

/// Locks what one thread at a time uses.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a host: 10.0.0.0/8 without its ends.
pub fn address_of(host: HostId) -> IpAddr {
    let [a, b, c, d] = (0x0a00_0001 + host.0).to_be_bytes();
    IpAddr::from([a, b, c, d])
}

/// The host that has an address, if it is in the network of simulated hosts.
fn host_of(ip: IpAddr) -> Option<HostId> {
    let IpAddr::V4(ip) = ip else { return None };
    let number = Ipv4Addr::to_bits(ip).checked_sub(0x0a00_0001)?;
    (number < 1 << 24).then_some(HostId(number))
}

/// Settings of a port.
#[derive(Clone, Copy, Debug)]
pub struct SimPortConfig {
    /// MTU of the link in bytes.
    pub link_mtu: u32,
    /// Rate of the link in bit/s.
    pub rate_bps: u64,
    /// Most bytes of a train, as on the wire; each train has at least one packet.
    pub train_bytes: u32,
    /// Bytes of packets that wait for the engine; 0: any number.
    pub receive_bytes: u64,
    /// Number of hosts.
    pub hosts: u32,
    /// Whether the engine gets management datagrams (QP1).
    pub knows_management: bool,
    /// Whether the engine sees which packets were marked.
    pub sees_marks: bool,
}

/// The port of a simulated host.
pub struct SimPort {
    caps: PortCaps,
    config: SimPortConfig,
    wire: Arc<Mutex<Wire>>,
    level: ReceivePressure,
}

thread_local! {
    /// Packets are put together here for the engine; one for all ports of a thread, so that it stays in the caches.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl SimPort {
    /// The port of `host`, and what it exchanges with the network.
    pub fn new(host: HostId, config: SimPortConfig) -> (SimPort, Arc<Mutex<Wire>>) {
        let wire = Arc::new(Mutex::new(Wire { room: config.receive_bytes, ..Wire::default() }));
        let addr = PortAddr { ip: address_of(host), ifindex: 1, ifname: "sim0".into(), reach: None };
        let caps = PortCaps {
            name: format!("sim:{}", host.0),
            addrs: vec![addr],
            link_mtu: config.link_mtu,
            up: true,
            speed_mbps: u32::try_from(config.rate_bps / 1_000_000).unwrap_or(u32::MAX),
            ifname: "sim0".into(),
            mac: [0; 6],
        };
        (SimPort { caps, config, wire: wire.clone(), level: ReceivePressure::Free }, wire)
    }

    /// Appends a frame to the runs that wait for the network.
    fn send(config: &SimPortConfig, wire: &mut Wire, batch: &TxBatch, frame: &TxFrame) -> Result<u32, Reason> {
        let to = host_of(frame.flow.dst).filter(|host| host.0 < config.hosts).ok_or(Reason::SendFailed)?;
        let packet = (frame.udp_payload_len() - TRAILER_LEN) as u32;
        if packet + 20 + 8 + TRAILER_LEN as u32 > config.link_mtu {
            return Err(Reason::SendTooLong);
        }
        let bytes = packet + WIRE_OVERHEAD;
        let joins = wire.out.last().is_some_and(|last| {
            (frame.continues || last.run.flow == frame.flow) && last.bytes + bytes <= config.train_bytes
        });
        if !joins {
            let buffer = wire.buffers.pop().unwrap_or_default();
            let run = PacketRun::new(frame.flow, buffer);
            wire.out.push(Outgoing { to, run, bytes: 0, last: 0 });
        }
        let Some(out) = wire.out.last_mut() else { return Err(Reason::SendFailed) };
        if !out.run.push(frame, batch.spans_of(frame)) {
            if !joins {
                wire.out.pop();
            }
            return Err(Reason::SendFailed);
        }
        out.bytes += bytes;
        out.last = bytes;
        Ok(bytes)
    }

    /// Tells the level of the receive buffer if it has changed, and losses.
    fn tell_pressure(&mut self, found: u64, has_lost: bool, sink: &mut dyn RxSink) {
        if self.config.receive_bytes == 0 {
            return;
        }
        let level = ReceivePressure::of(found, self.config.receive_bytes);
        if level != self.level {
            self.level = level;
            sink.pressure(level);
        }
        if has_lost {
            sink.pressure(ReceivePressure::Lost);
        }
    }
}

/// Whether a packet is a management datagram: its destination is QP1 (IBA 9.2: bytes 5 to 7 of the BTH).
fn is_management(packet: &RunPacket<'_>) -> bool {
    packet.head.get(5..8) == Some(&[0, 0, 1])
}

/// Gives packets of one run to the sink, from the one at `at` on and `budget` at most. Packets of one length go together.
/// Returns their number and where the next one begins, 0 at the end. Packets that are not `wanted` are dropped.
fn give(
    (run, is_marked): (&PacketRun, bool),
    mut at: usize,
    budget: usize,
    wanted: impl Fn(&RunPacket<'_>) -> bool,
    sink: &mut dyn RxSink,
) -> (usize, usize) {
    let flow = if is_marked { Flow { tos: run.flow.tos | 3, ..run.flow } } else { run.flow };
    SCRATCH.with_borrow_mut(|scratch| {
        let mut given = 0;
        while given < budget
            && let Some((first, next)) = run.packet_at(at)
        {
            if !wanted(&first) {
                (given, at) = (given + 1, next);
                continue;
            }
            let stride = first.len() + TRAILER_LEN;
            let mut count = 0;
            while given + count < budget
                && let Some((packet, next)) = run.packet_at(at)
                && packet.len() + TRAILER_LEN == stride
                && wanted(&packet)
            {
                let from = count * stride;
                if scratch.len() < from + stride {
                    scratch.resize(from + stride, 0);
                }
                packet.write_to(&mut scratch[from..from + stride]);
                (count, at) = (count + 1, next);
            }
            if count == 1 {
                sink.frame(&RxFrame { flow, bytes: &scratch[..stride - TRAILER_LEN] });
            } else {
                sink.train(&flow, &scratch[..count * stride], stride);
            }
            given += count;
        }
        (given, if run.packet_at(at).is_some() { at } else { 0 })
    })
}

impl Port for SimPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, _now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let wire = self.wire.clone();
        let mut wire = lock(&wire);
        let (found, has_lost) = (wire.arrived_bytes, std::mem::take(&mut wire.has_lost));
        let mut taken = 0;
        while taken < budget
            && let Some(first) = wire.arrived.front()
        {
            let SimPortConfig { knows_management, sees_marks, .. } = self.config;
            let wanted = |packet: &RunPacket<'_>| knows_management || !is_management(packet);
            let run = (&first.run, first.is_marked && sees_marks);
            let (given, next) = give(run, wire.first_at, budget - taken, wanted, sink);
            taken += given;
            match next {
                0 => wire.pop(),
                next => wire.first_at = next,
            }
        }
        self.tell_pressure(found, has_lost, sink);
        taken
    }

    fn tx_burst(&mut self, _now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let mut wire = lock(&self.wire);
        let known = wire.out.len();
        for frame in batch.frames() {
            match SimPort::send(&self.config, &mut wire, batch, frame) {
                Ok(bytes) => {
                    wire.work.packets[1] += 1;
                    wire.work.bytes[1] += u64::from(bytes);
                }
                Err(reason) => dropped(reason),
            }
        }
        wire.work.trains[1] += (wire.out.len() - known) as u64;
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}
