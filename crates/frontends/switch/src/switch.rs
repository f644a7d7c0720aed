//! The switch without its sockets: frames come in with a time, and leave by [`SoftSwitch::advance`].
//!
//! It is the simulator's network ([`burst_fabric::Network`]) with one switch and a host for each port. What a port sends reaches
//! the switch at once, because a real link has carried it already; the rate, the buffer, the marks and the faults are those of
//! the links out of the switch. So a queue here and a queue of `burst sim` obey the same code.

use crate::frame::{EthernetFrame, FrameRefusal};
use burst_fabric::{CLASSES, ClassSettings, Cut, Delivery, HostId, LinkFaults, Network, Switches, Topology, Train};
use std::collections::HashMap;

/// Bytes of a frame on a link that are not in the frame: preamble, check sequence, and the gap to the next frame (IEEE 802.3).
pub const WIRE_BYTES: u32 = 24;
/// Rate of what comes in, in bit/s.
const INGRESS_BPS: u64 = 400_000_000_000;
/// Rate of what goes out if none is asked for.
const UNLIMITED_BPS: u64 = INGRESS_BPS;
/// Addresses that are remembered; frames to others go to all ports.
const ADDRESSES_MAX: usize = 4096;
/// Bytes that wait at the entrance.
const ENTRANCE_BYTES: u64 = 64 << 20;

/// What the switch does. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSettings {
    /// Rate of each port in bit/s; `None`: as fast as it goes.
    pub rate: Option<u64>,
    /// Bytes of the buffer, which all ports share.
    pub buffer: u64,
    /// Queue in bytes from which packets are marked, and from which all are.
    pub ecn: Option<(u64, u64)>,
    /// Picoseconds from port to port.
    pub delay: u64,
    /// Share of packets that are lost.
    pub loss: f64,
    /// Share of packets that come twice.
    pub duplicate: f64,
    /// Share of packets that are late.
    pub reorder: f64,
    /// The most picoseconds that a packet is late.
    pub late_max: u64,
    /// Seed of all that is random.
    pub seed: u64,
}

/// The packets of a train.
#[derive(Clone, Debug)]
struct Packets(Vec<EthernetFrame>);

impl Cut for Packets {
    fn cut(&mut self, keep: u32) -> Packets {
        Packets(self.0.split_off(keep as usize))
    }
}

/// What a port has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came in by it.
    pub received: u64,
    /// Packets for it that reached the queue of the switch, or were lost before.
    pub offered: u64,
    /// Packets that left by it.
    pub sent: u64,
    /// Their bytes on the link.
    pub sent_bytes: u64,
    /// Of these, packets with a mark from this switch.
    pub marked: u64,
    /// Packets that came in and cannot be forwarded: see [`FrameRefusal`].
    pub refused: u64,
}

/// Bytes in a queue over time.
#[derive(Clone, Copy, Debug, Default)]
struct QueueIntegral {
    byte_picoseconds: u128,
    since: u64,
}

/// A switch between `ports` ports.
pub struct SoftSwitch {
    network: Network<Packets>,
    addresses: HashMap<[u8; 6], u32>,
    counters: Vec<PortCounters>,
    queues: Vec<QueueIntegral>,
    deliveries: Vec<Delivery<Packets>>,
    began: Option<u64>,
}

impl SoftSwitch {
    /// A switch with empty queues.
    ///
    /// # Errors
    /// A sentence: the settings make no network.
    pub fn new(ports: u32, settings: &SwitchSettings) -> Result<SoftSwitch, String> {
        let mut topology = Topology { hosts: ports, ..Topology::default() };
        let switch = topology.add_switch("switch".to_owned());
        for port in 0..ports {
            topology.add_link([port, switch], settings.rate.unwrap_or(UNLIMITED_BPS), settings.delay / 2);
        }
        // A packet passes two links.
        let of_one_link = |share: f64| 1.0 - (1.0 - share).sqrt();
        topology.faults = LinkFaults {
            loss: of_one_link(settings.loss),
            duplicate: of_one_link(settings.duplicate),
            reorder: of_one_link(settings.reorder),
            corrupt: 0.0,
            late_max: settings.late_max.max(1),
        };
        let (ecn_min, ecn_max) = settings.ecn.unwrap_or((u64::MAX, u64::MAX));
        let class = ClassSettings { ecn_min, ecn_max, ..ClassSettings::default() };
        // The whole buffer is there for whoever needs it.
        topology.settings = Switches {
            buffer: settings.buffer,
            alpha: 1e9,
            adapter: ENTRANCE_BYTES,
            classes: [class; CLASSES],
            ..Switches::default()
        };
        topology.check()?;
        let mut network = Network::new(&topology, settings.seed);
        (0..ports).for_each(|port| network.set_host_rate(HostId(port), INGRESS_BPS));
        Ok(SoftSwitch {
            network,
            addresses: HashMap::new(),
            counters: vec![PortCounters::default(); ports as usize],
            queues: vec![QueueIntegral::default(); ports as usize],
            deliveries: Vec::new(),
            began: None,
        })
    }

    /// A frame has come in by `port` at `now`. Call [`SoftSwitch::advance`] with the same time first.
    pub fn receive(&mut self, now: u64, port: u32, frame: Result<EthernetFrame, FrameRefusal>) {
        let packets = match frame.and_then(EthernetFrame::packets) {
            Ok(packets) => packets,
            Err(_) => {
                self.counters[port as usize].refused += 1;
                return;
            }
        };
        self.counters[port as usize].received += packets.len() as u64;
        let (to, from) = packets[0].addresses();
        if from[0] & 1 == 0 && (self.addresses.len() < ADDRESSES_MAX || self.addresses.contains_key(&from)) {
            self.addresses.insert(from, port);
        }
        match self.addresses.get(&to).filter(|_| to[0] & 1 == 0) {
            // The host is behind the port by which the frame came.
            Some(known) if *known == port => {}
            Some(known) => self.offer(now, port, *known, packets),
            None => {
                for other in (0..self.counters.len() as u32).filter(|other| *other != port) {
                    self.offer(now, port, other, packets.clone());
                }
            }
        }
    }

    fn offer(&mut self, now: u64, from: u32, to: u32, packets: Vec<EthernetFrame>) {
        let bytes = |frame: &EthernetFrame| frame.ethernet().len() as u32 + WIRE_BYTES;
        let (first, last, count) = (&packets[0], packets.last().map_or(0, bytes), packets.len() as u32);
        let train = Train {
            flow: first.flow(),
            from: HostId(from),
            to: HostId(to),
            class: 0,
            ecn_capable: first.is_ecn_capable(),
            marked: false,
            count,
            stride: bytes(first),
            last,
            body: Packets(packets),
        };
        self.counters[to as usize].offered += u64::from(count);
        // What finds no place at the entrance counts as dropped: it was offered and does not leave.
        let _ = self.network.send(now, train);
    }

    /// The time at which something happens next, if nothing comes in.
    pub fn next_event(&self) -> Option<u64> {
        self.network.next_event()
    }

    /// Lets the time become `now`, and appends what leaves the switch until then, with its port.
    pub fn advance(&mut self, now: u64, out: &mut Vec<(u32, EthernetFrame)>) {
        self.began.get_or_insert(now);
        while let Some(at) = self.network.next_event().filter(|at| *at <= now) {
            self.integrate(at);
            self.network.step(at, &mut self.deliveries);
        }
        self.integrate(now);
        for delivery in self.deliveries.drain(..) {
            let Some(train) = delivery.train else { continue };
            let counters = &mut self.counters[delivery.host.0 as usize];
            counters.sent += u64::from(train.count);
            counters.sent_bytes += train.bytes();
            for mut frame in train.body.0 {
                if train.marked {
                    counters.marked += 1;
                    frame.mark();
                }
                out.push((delivery.host.0, frame));
            }
        }
    }

    fn integrate(&mut self, now: u64) {
        for (queue, port) in self.queues.iter_mut().zip(0..) {
            let (bytes, _) = self.network.queue_to(HostId(port));
            queue.byte_picoseconds += u128::from(bytes) * u128::from(now.saturating_sub(queue.since));
            queue.since = now;
        }
    }

    /// What each port has seen.
    pub fn counters(&self) -> &[PortCounters] {
        &self.counters
    }

    /// Packets for a port that the buffer had no room for, or that were lost on purpose, less those that were doubled. Exact once
    /// nothing is in the switch any more.
    pub fn missing(&self, port: u32) -> u64 {
        let counters = &self.counters[port as usize];
        counters.offered.saturating_sub(counters.sent)
    }

    /// Packets dropped for want of buffer, and packets lost on purpose, at all ports.
    pub fn drops(&self) -> (u64, u64) {
        let totals = self.network.totals();
        (totals.buffer_drops, totals.losses)
    }

    /// The queue of a port in bytes on the link: now, at most, and in the mean since the first call of [`SoftSwitch::advance`].
    pub fn queue(&self, port: u32) -> (u64, u64, f64) {
        let (now, most) = self.network.queue_to(HostId(port));
        let queue = &self.queues[port as usize];
        let time = queue.since.saturating_sub(self.began.unwrap_or(0));
        let mean = if time == 0 { 0.0 } else { queue.byte_picoseconds as f64 / time as f64 };
        (now, most, mean)
    }
}
