//! The network between the hosts of a simulation: it loses, duplicates, delays and reorders frames by a seed.
//!
//! A [`SimPort`] is one worker's port. A frame goes to the worker that its queue pair number names, and sometimes to another one,
//! as the kernel's steering may. The network keeps the last frames, from which a hostile peer makes its own ([`Network::forge`]):
//! those come from an address that no host has, so no connection may take them for its peer's.

use burst_base::rng::Rng;
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};
use burst_port::{NeighbourState, Port, PortAddr, PortCaps, PortError, Reach, RxSink};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Frames that wait for one worker; more are dropped, as by a full socket buffer.
const DEPTH: usize = 4096;
/// Frames kept for a hostile peer.
const REMEMBERED: usize = 64;
/// The address of the hostile peer.
pub const HOSTILE_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 66));
/// First byte of the destination queue pair number in a BTH, and the length of a BTH.
const QPN_AT: usize = 5;
const BTH_BYTES: usize = 12;

/// What the network does to frames, in ten thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetConditions {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    /// Frames that reach another worker than their own.
    pub misdirection: u64,
    pub delay_max: Nanos,
}

impl NetConditions {
    /// Conditions under which a connection must live.
    pub fn random(rng: &mut Rng) -> NetConditions {
        let delay_max = Nanos(rng.between(0, 200_000));
        match rng.below(4) {
            0 => NetConditions { delay_max, ..NetConditions::default() },
            1 => NetConditions { loss: 400, delay_max, ..NetConditions::default() },
            2 => NetConditions { duplication: 500, reordering: 500, misdirection: 500, loss: 0, delay_max },
            _ => NetConditions { loss: 200, duplication: 200, reordering: 200, misdirection: 100, delay_max },
        }
    }
}

struct SimFrame {
    flow: Flow,
    bytes: Vec<u8>,
}

/// The frames of all ports.
pub struct Network {
    rng: Rng,
    pub conditions: NetConditions,
    /// MTU of the link, the same for all hosts.
    pub link_mtu: u32,
    /// Addresses by host.
    hosts: Vec<IpAddr>,
    workers: usize,
    /// Waiting frames in order of arrival, by host and worker.
    waiting: Vec<BTreeMap<(Nanos, u64), SimFrame>>,
    groups: BTreeSet<(IpAddr, usize)>,
    remembered: VecDeque<SimFrame>,
    next: u64,
    /// Frames sent, and those of the hostile peer.
    pub sent: u64,
    pub forged: u64,
}

/// The network, shared by its ports.
#[derive(Clone)]
pub struct SharedNetwork(Arc<Mutex<Network>>);

impl SharedNetwork {
    pub fn new(mut rng: Rng, hosts: Vec<IpAddr>, workers: usize) -> SharedNetwork {
        let waiting = (0..hosts.len() * workers).map(|_| BTreeMap::new()).collect();
        let conditions = NetConditions::random(&mut rng);
        let link_mtu = [1500, 4500][rng.below(2) as usize];
        SharedNetwork(Arc::new(Mutex::new(Network {
            rng,
            conditions,
            link_mtu,
            hosts,
            workers,
            waiting,
            groups: BTreeSet::new(),
            remembered: VecDeque::new(),
            next: 0,
            sent: 0,
            forged: 0,
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Network> {
        self.0.lock().expect("one thread")
    }

    /// The port of a worker.
    pub fn port(&self, host: usize, worker: usize) -> SimPort {
        let (ip, link_mtu) = {
            let network = self.lock();
            (network.hosts[host], network.link_mtu)
        };
        let prefix = format!("{ip}/24").parse().expect("a prefix");
        let reach = Some(Reach { prefix, gateway: false });
        let addr = PortAddr { ip, ifindex: 100, ifname: "sim0".into(), reach };
        let caps = PortCaps {
            name: format!("sim:{host}"),
            addrs: vec![addr],
            link_mtu,
            up: true,
            speed_mbps: 0,
            ifname: "sim0".into(),
            mac: [2, 0, 0, 0, 0, host as u8],
        };
        SimPort { caps, network: self.clone(), host, worker }
    }
}

impl Network {
    fn send(&mut self, now: Nanos, flow: Flow, bytes: Vec<u8>) -> Result<(), Reason> {
        self.sent += 1;
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(SimFrame { flow, bytes: bytes.clone() });
        if flow.dst.is_multicast() {
            let members: Vec<usize> = self.groups.iter().filter(|(ip, _)| *ip == flow.dst).map(|g| g.1).collect();
            members.into_iter().for_each(|host| self.carry(now, host, flow, &bytes));
            return Ok(());
        }
        let host = self.hosts.iter().position(|ip| *ip == flow.dst).ok_or(Reason::SendFailed)?;
        self.carry(now, host, flow, &bytes);
        Ok(())
    }

    /// Delivers a frame to a host: not at all, once or twice, early or late.
    fn carry(&mut self, now: Nanos, host: usize, flow: Flow, bytes: &[u8]) {
        let NetConditions { loss, duplication, reordering, misdirection, delay_max } = self.conditions;
        if self.rng.chance(loss, 10_000) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(duplication, 10_000));
        for _ in 0..copies {
            let late = self.rng.chance(reordering, 10_000);
            let delay = 1_000 + if late { self.rng.below(10 * delay_max.0 + 50_000) } else { delay_max.0 / 2 };
            let mut worker = worker_of(bytes) % self.workers;
            if self.rng.chance(misdirection, 10_000) {
                worker = self.rng.below(self.workers as u64) as usize;
            }
            let waiting = &mut self.waiting[host * self.workers + worker];
            if waiting.len() < DEPTH {
                self.next += 1;
                waiting.insert((now + Nanos(delay), self.next), SimFrame { flow, bytes: bytes.to_vec() });
            }
        }
    }

    /// When the next frame for a worker is due.
    pub fn due(&self, host: usize, worker: usize) -> Nanos {
        self.waiting[host * self.workers + worker].first_key_value().map_or(Nanos::NEVER, |((at, _), _)| *at)
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Nanos {
        self.waiting.iter().filter_map(|w| w.first_key_value()).map(|((at, _), _)| *at).min().unwrap_or(Nanos::NEVER)
    }

    /// A hostile peer sends a frame to a host: a remembered one, perhaps with some bytes changed, or a random one.
    pub fn forge(&mut self, now: Nanos, qpns: &[u32]) {
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let mut bytes = vec![0; self.rng.between(0, 400) as usize];
        self.rng.fill(&mut bytes);
        let mut flow = Flow::default();
        if !self.remembered.is_empty() && self.rng.chance(7, 8) {
            let frame = &self.remembered[self.rng.below(self.remembered.len() as u64) as usize];
            (flow, bytes) = (frame.flow, frame.bytes.clone());
        }
        if self.rng.chance(1, 2) {
            for _ in 0..self.rng.between(1, 4) {
                let at = self.rng.below(bytes.len().max(1) as u64) as usize;
                let value = [0, 0xff, self.rng.next_u32() as u8][self.rng.below(3) as usize];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
        }
        if !qpns.is_empty() && bytes.len() >= BTH_BYTES && self.rng.chance(1, 4) {
            let qpn = qpns[self.rng.below(qpns.len() as u64) as usize].to_be_bytes();
            bytes[QPN_AT..QPN_AT + 3].copy_from_slice(&qpn[1..]);
        }
        if self.rng.chance(1, 16) {
            bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize);
        }
        self.forged += 1;
        (flow.src, flow.dst) = (HOSTILE_IP, self.hosts[host]);
        self.carry(now, host, flow, &bytes);
    }
}

/// The worker that a frame's queue pair number names.
fn worker_of(bytes: &[u8]) -> usize {
    let qpn = bytes.get(QPN_AT..QPN_AT + 3).map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
    burst_engine::qpn::worker_of(Qpn::new(qpn)) as usize
}

/// One worker's port.
pub struct SimPort {
    caps: PortCaps,
    network: SharedNetwork,
    host: usize,
    worker: usize,
}

/// Head, payload and padding of a frame, one after the other; `None` when the program's memory is gone.
fn bytes_of(batch: &TxBatch, frame: &TxFrame) -> Option<Vec<u8>> {
    let mut bytes = frame.head().to_vec();
    for span in batch.spans_of(frame) {
        let at = bytes.len();
        bytes.resize(at + span.len(), 0);
        span.read_to(&mut bytes[at..]).ok()?;
    }
    bytes.resize(bytes.len() + usize::from(frame.pad), 0);
    Some(bytes)
}

impl Port for SimPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = Vec::new();
        {
            let mut network = self.network.lock();
            let workers = network.workers;
            let waiting = &mut network.waiting[self.host * workers + self.worker];
            while taken.len() < budget
                && let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now)
            {
                taken.push(first.remove());
            }
        }
        taken.iter().for_each(|frame| sink.frame(&RxFrame { flow: frame.flow, bytes: &frame.bytes }));
        taken.len()
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        for frame in batch.frames() {
            assert!(frame.udp_payload_len() as u32 + 28 <= self.caps.link_mtu, "a frame over the link's MTU");
            assert_eq!(frame.flow.src, self.caps.addrs[0].ip, "a frame from another's address");
            let sent = match bytes_of(batch, frame) {
                Some(bytes) => self.network.lock().send(now, frame.flow, bytes),
                None => Err(Reason::SendFailed),
            };
            sent.unwrap_or_else(&mut *dropped);
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn next_event(&self) -> Nanos {
        self.network.lock().due(self.host, self.worker)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        if burst_base::fault::fails() {
            return Err(PortError::Unsupported { kind: self.caps.name.clone(), what: "join a multicast group" });
        }
        self.network.lock().groups.insert((group, self.host));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.network.lock().groups.remove(&(group, self.host));
    }

    fn next_hop(&mut self, _now: Nanos, dst: IpAddr) -> NeighbourState {
        let known = self.network.lock().hosts.contains(&dst);
        if known { NeighbourState::Resolved } else { NeighbourState::Failed }
    }
}
