//! Hosts that send by URMA or by RC through one switch port to host 0, in virtual time with the whole engine.

use burst_base::verbs::{Mtu, QpType};
use burst_base::{DeviceId, Nanos, RtoMode};
use burst_cc::{CcTable, Params};
use burst_fabric::topology::Speeds;
use burst_fabric::{ClassSettings, Delivery, HostId, Network, Switches, Topology, Totals};
use burst_ledger::Account;
use burst_sim::node::{MEMORY, NodeConfig, SimHost, Verb};
use burst_sim::port::{SimPortConfig, Wire, lock};
use burst_sim::run::{PacketRun, PayloadMode};
use burst_sim::world::train_of;
use burst_ubwire::TaOpcode;
use burst_urma::{CrStatus, JettyConfig, JfsWr, LocalRange, SegmentConfig, WrData, access};
use std::sync::{Arc, Mutex};

/// Picoseconds per nanosecond.
const NS: u64 = 1_000;
/// Bytes of a host's memory, which has addresses only.
const MEMORY_BYTES: u64 = 1 << 30;
/// Payload of a packet, and its bytes on the wire over those.
const MTU: u32 = 1024;
pub const WIRE: f64 = (MTU + 94) as f64 / MTU as f64;
/// Length of messages, and how many all senders together have under way, and each of them at least.
const MESSAGE: u32 = 64 << 10;
const DEPTH: u32 = 16;
const DEPTH_MIN: u32 = 2;
/// Runs of a host between two checks of what must hold.
const CHECKED_EVERY: u32 = 16;

/// How a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Rc,
    Uc,
    Urma,
}

/// A bottleneck and its senders.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    pub cc: &'static str,
    pub mbit: u64,
    pub buffer: u64,
    /// Bytes from which on packets are marked; 0: never.
    pub marks: u64,
    /// Propagation of each link.
    pub delay_us: u64,
    /// Bytes that a channel may have in flight, and a path.
    pub window: u32,
    /// Most bytes of packets that stay together on their way, as a train of a kernel's offload does on a virtual interface.
    pub train: u32,
}

/// What a bottleneck has seen since it was last looked at.
#[derive(Debug)]
pub struct Seen {
    /// Share of packets that were dropped.
    pub dropped: f64,
    /// Share of the link that payload used, with its headers.
    pub used: f64,
    /// Jain's index.
    pub jain: f64,
    /// Payload in bytes, by sender.
    pub bytes: Vec<u64>,
    pub marks: u64,
}

struct Sender {
    host: u32,
    transport: Transport,
    /// Of URMA: Jetty, completion queue, own segment, imported one.
    urma: [u32; 4],
    /// Of RC and UC: queue pair, the receiver's key, and the receiver's queue pair.
    qp: [u32; 3],
    under_way: u32,
    has_ended: bool,
    ended: u64,
    failed: u64,
}

struct LabHost {
    node: SimHost,
    bus: Arc<Mutex<Wire>>,
    wake_at: u64,
}

/// The network with its hosts.
pub struct Lab {
    pub now: u64,
    pub network: Network<PacketRun>,
    hosts: Vec<LabHost>,
    senders: Vec<Sender>,
    rate: u64,
    /// Counts at the last look.
    looked: (u64, Totals, Vec<u64>),
    arrivals: Vec<Delivery<PacketRun>>,
    /// Trains from this host to that one are lost.
    pub black_hole: Option<(u32, u32)>,
    /// How many were.
    pub swallowed: u64,
    /// Messages that each sender has under way.
    depth: u32,
    runs: u32,
}

impl Bottleneck {
    fn node(&self, hosts: u32) -> NodeConfig {
        let port = SimPortConfig {
            link_mtu: 1500,
            rate_bps: 10_000_000_000,
            train_bytes: self.train,
            receive_bytes: 0,
            hosts,
            knows_management: true,
            sees_marks: true,
        };
        let cc = Params::parse(self.cc, u64::from(self.window)).expect("a specification");
        NodeConfig {
            port,
            mtu: Mtu::B1024,
            cc: CcTable::from(cc),
            selective: true,
            rto: RtoMode::default(),
            is_adapter: false,
            timeout: 14,
            depth: DEPTH,
            pass_bytes: 64 << 10,
            payload: PayloadMode::Void,
            memory: MEMORY_BYTES,
            seed: 7,
        }
    }

    /// Senders are at these hosts, from 1 on; a host may have two.
    pub fn build(&self, senders: &[(u32, Transport)]) -> Lab {
        let hosts = 1 + senders.iter().map(|sender| sender.0).max().unwrap_or(0);
        let rate = self.mbit * 1_000_000;
        let speeds = Speeds { host: rate, fabric: rate, delay: self.delay_us * 1_000 * NS };
        let mut topology = Topology::star(hosts, speeds);
        let marked = ClassSettings { ecn_min: self.marks, ecn_max: self.marks, ..ClassSettings::default() };
        let class = if self.marks > 0 { marked } else { ClassSettings::default() };
        let classes = [class; burst_fabric::CLASSES];
        // One port of the switch is used: it may take the whole buffer.
        topology.settings =
            Switches { adapter: u64::MAX / 2, buffer: self.buffer, alpha: 1e6, classes, ..Switches::default() };
        let mut network = Network::new(&topology, 7);
        (1..hosts).for_each(|host| network.set_host_rate(HostId(host), 10_000_000_000));
        let node = self.node(hosts);
        let hosts = (0..hosts).map(|host| {
            let mut sim = SimHost::new(HostId(host), 0, node, None).expect("a host");
            let bus = sim.add_urma(|urma| (urma.caqm, urma.window_max) = (false, self.window)).expect("an endpoint");
            LabHost { node: sim, bus, wake_at: 0 }
        });
        let mut lab = Lab {
            now: 0,
            network,
            hosts: hosts.collect(),
            senders: Vec::new(),
            rate,
            looked: (0, Totals::default(), vec![0; senders.len()]),
            arrivals: Vec::new(),
            black_hole: None,
            swallowed: 0,
            depth: (DEPTH / senders.len() as u32).max(DEPTH_MIN),
            runs: 0,
        };
        senders.iter().for_each(|(host, transport)| lab.add_sender(*host, *transport));
        lab
    }

    /// `count` senders of one kind, each at a host of its own.
    pub fn of(&self, transport: Transport, count: u32) -> Lab {
        let senders: Vec<(u32, Transport)> = (1..=count).map(|host| (host, transport)).collect();
        self.build(&senders)
    }
}

impl Lab {
    fn nanos(&self) -> Nanos {
        Nanos(self.now / NS)
    }

    fn add_sender(&mut self, host: u32, transport: Transport) {
        let mut sender =
            Sender { host, transport, urma: [0; 4], qp: [0; 3], under_way: 0, has_ended: false, ended: 0, failed: 0 };
        match transport {
            Transport::Rc => sender.qp = self.connect(host, 0, QpType::Rc),
            Transport::Uc => sender.qp = self.connect(host, 0, QpType::Uc),
            Transport::Urma => sender.urma = self.import(host, 0),
        }
        self.senders.push(sender);
    }

    /// Adds a sender of RC at a host: a queue pair of a further program of a user, or of program number `program`.
    pub fn add_queue_pair(&mut self, host: u32, program: u32) {
        let qp = self.connect(host, program, QpType::Rc);
        self.senders.push(Sender {
            host,
            transport: Transport::Rc,
            urma: [0; 4],
            qp,
            under_way: 0,
            has_ended: false,
            ended: 0,
            failed: 0,
        });
        self.looked.2.push(0);
        self.hosts[host as usize].wake_at = self.now;
    }

    /// A further program at a host, of this user. Returns its number.
    pub fn add_program(&mut self, host: u32, user: &Account) -> u32 {
        self.hosts[host as usize].node.add_program(user)
    }

    /// A queue pair of a host's program number `context`, connected to one of host 0.
    fn connect(&mut self, host: u32, context: u32, service: QpType) -> [u32; 3] {
        let now = self.nanos();
        let mut end = |host: u32, context: u32| {
            let node = &mut self.hosts[host as usize].node;
            let at = node.create_for(context, service).expect("a queue pair");
            (at, node.end(at))
        };
        let ((a, end_a), (b, end_b)) = (end(host, context), end(0, 0));
        self.hosts[0].node.connect(now, b, &end_b, &end_a, 0).expect("connected");
        self.hosts[host as usize].node.connect(now, a, &end_a, &end_b, 0).expect("connected");
        [a, self.hosts[0].node.key(), b]
    }

    /// Adds a sender of URMA from host 0 to another.
    pub fn add_urma_back(&mut self, to: u32) {
        let urma = self.import(0, to);
        let (transport, qp) = (Transport::Urma, [0; 3]);
        self.senders.push(Sender { host: 0, transport, urma, qp, under_way: 0, has_ended: false, ended: 0, failed: 0 });
        self.looked.2.push(0);
        self.hosts[0].wake_at = self.now;
    }

    fn import(&mut self, host: u32, to: u32) -> [u32; 4] {
        let now = self.nanos();
        let mut make = |host: u32| {
            let made = self.hosts[host as usize].node.with_urma(now, |node, _| {
                let all = SegmentConfig {
                    addr: MEMORY,
                    len: MEMORY_BYTES,
                    token: None,
                    access: access::READ | access::WRITE,
                };
                let segment = node.register_segment(all).expect("room");
                let jfc = node.create_jfc(1 << 12).expect("room");
                let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("room");
                (jetty, jfc, segment, node.export_segment(segment).expect("a segment"))
            });
            made.expect("an endpoint")
        };
        let ((jetty, jfc, own, _), (.., remote)) = (make(host), make(to));
        let imported = self.hosts[host as usize].node.with_urma(now, |node, _| node.import_segment(remote));
        [jetty, jfc, own, imported.expect("an endpoint").expect("room")]
    }

    /// Posts what a sender may have under way, and takes its completions.
    fn pump(&mut self, host: u32) {
        let now = self.nanos();
        for at in (0..self.senders.len()).filter(|at| self.senders[*at].host == host).collect::<Vec<_>>() {
            match self.senders[at].transport {
                Transport::Rc | Transport::Uc => self.pump_queue_pair(at),
                Transport::Urma => self.pump_urma(at, now),
            }
        }
    }

    fn pump_queue_pair(&mut self, at: usize) {
        let host = self.senders[at].host;
        let node = &mut self.hosts[host as usize].node;
        // Queue pairs of a host have one completion queue.
        while let Some((qp, cqe)) = node.poll() {
            let is_its = |sender: &&mut Sender| sender.transport != Transport::Urma && sender.qp[0] == qp;
            let mut own = self.senders.iter_mut().filter(|sender| sender.host == host);
            let sender = own.find(is_its).expect("a sender for each queue pair");
            (sender.under_way, sender.ended) = (sender.under_way - 1, sender.ended + 1);
            sender.failed += u64::from(cqe.status != 0);
        }
        let sender = &mut self.senders[at];
        let [qp, key, _] = sender.qp;
        while !sender.has_ended && sender.under_way < self.depth && node.post(qp, Verb::Write, 1, [0, 0], MESSAGE, key)
        {
            sender.under_way += 1;
        }
    }

    fn pump_urma(&mut self, at: usize, now: Nanos) {
        let sender = &mut self.senders[at];
        let node = &mut self.hosts[sender.host as usize].node;
        let [jetty, jfc, token_id, segment] = sender.urma;
        let depth = self.depth;
        node.with_urma(now, |node, env| {
            while let Some(record) = node.poll_jfc(jfc) {
                (sender.under_way, sender.ended) = (sender.under_way - 1, sender.ended + 1);
                sender.failed += u64::from(record.status != CrStatus::Success);
            }
            while sender.under_way < depth {
                let data = WrData::Local(LocalRange { token_id, addr: MEMORY, len: MESSAGE });
                let wr = JfsWr { segment: Some(segment), remote_addr: MEMORY, ..JfsWr::new(TaOpcode::Write, data, 1) };
                node.post_send(jetty, &wr, env).expect("room");
                sender.under_way += 1;
            }
        })
        .expect("an endpoint");
    }

    fn run_host(&mut self, host: u32) {
        let now = self.nanos();
        for _ in 0..64 {
            self.pump(host);
            let state = &mut self.hosts[host as usize];
            let is_busy = state.node.run_once(now);
            self.runs += 1;
            if self.runs.is_multiple_of(CHECKED_EVERY) {
                state.node.worker().check().unwrap_or_else(|what| panic!("host {host}: {what}"));
            }
            let mut out: Vec<_> = lock(&state.node.wire).out.drain(..).collect();
            out.append(&mut lock(&state.bus).out);
            for sent in out {
                let train = train_of(HostId(host), sent);
                if self.black_hole == Some((train.from.0, train.to.0)) {
                    self.swallowed += 1;
                } else {
                    assert!(self.network.send(self.now, train).is_ok(), "an adapter is full");
                }
            }
            if !is_busy {
                break;
            }
        }
        let state = &mut self.hosts[host as usize];
        let next = state.node.next_deadline(now);
        state.wake_at = if next == Nanos::NEVER { u64::MAX } else { next.0.saturating_mul(NS).max(self.now + NS) };
    }

    /// Runs for so many microseconds.
    pub fn run(&mut self, us: u64) {
        let until = self.now + us * 1_000 * NS;
        loop {
            let wake = self.hosts.iter().map(|host| host.wake_at).min().unwrap_or(u64::MAX);
            let at = wake.min(self.network.next_event().unwrap_or(u64::MAX)).max(self.now);
            if at > until {
                self.now = until;
                return;
            }
            self.now = at;
            let mut arrivals = std::mem::take(&mut self.arrivals);
            self.network.step(at, &mut arrivals);
            let mut touched: Vec<u32> = Vec::new();
            for Delivery { host, train, .. } in arrivals.drain(..) {
                let Some(train) = train else { continue };
                let state = &self.hosts[host.0 as usize];
                let is_bus = train.body.flow.src_port == burst_ubwire::UB_UDP_PORT;
                let wire = if is_bus { &state.bus } else { &state.node.wire };
                lock(wire).deliver(train.body, train.marked, train.last);
                touched.push(host.0);
            }
            self.arrivals = arrivals;
            touched.extend((0..self.hosts.len() as u32).filter(|host| self.hosts[*host as usize].wake_at <= at));
            touched.sort_unstable();
            touched.dedup();
            touched.into_iter().for_each(|host| self.run_host(host));
        }
    }

    /// The queue pair at which a sender's messages arrive is there no more.
    pub fn end_receiver(&mut self, sender: usize) {
        let (now, [.., at]) = (self.nanos(), self.senders[sender].qp);
        self.hosts[0].node.reset(now, at).expect("any state may be reset");
    }

    /// A sender posts nothing more.
    pub fn end_sender(&mut self, sender: usize) {
        self.senders[sender].has_ended = true;
    }

    /// Messages that have failed.
    pub fn failed(&self) -> u64 {
        self.senders.iter().map(|sender| sender.failed).sum()
    }

    /// Messages that a sender has sent.
    pub fn ended(&self, sender: usize) -> u64 {
        self.senders[sender].ended
    }

    /// What has happened since the last look.
    pub fn look(&mut self) -> Seen {
        let totals = *self.network.totals();
        let ended: Vec<u64> = self.senders.iter().map(|sender| sender.ended).collect();
        let (at, before, ended_before) = std::mem::replace(&mut self.looked, (self.now, totals, ended.clone()));
        let bytes: Vec<u64> = ended.iter().zip(&ended_before).map(|(a, b)| (a - b) * u64::from(MESSAGE)).collect();
        let sum = bytes.iter().sum::<u64>() as f64;
        let squares: f64 = bytes.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
        let most = self.rate as f64 / 8.0 * (self.now - at) as f64 * 1e-12;
        Seen {
            dropped: (totals.buffer_drops - before.buffer_drops) as f64 / (totals.sent - before.sent) as f64,
            used: sum * WIRE / most,
            jain: sum * sum / (bytes.len() as f64 * squares),
            bytes,
            marks: totals.marks - before.marks,
        }
    }

    /// The load of the path from a host to host 0.
    pub fn path(&self, host: u32) -> Option<burst_engine::PathLoad> {
        let mut found = None;
        self.hosts[host as usize].node.worker().visit_paths(&mut |load| {
            if load.peer == (DeviceId(0), burst_sim::port::address_of(HostId(0))) {
                found = Some(load);
            }
        });
        found
    }
}
