//! Several nodes and a network in virtual time: delay, loss, duplication, reordering by random delays; all from one seed.
#![allow(dead_code)]

pub mod forge;

use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_span::{ProcessMemory, Span};
use burst_ubwire::encap;
use burst_urma::{
    CompletionRecord, JettyConfig, JfrConfig, JfrWr, JfsWr, LocalRange, MemoryGone, NoPaths, NodeEid, RemoteJetty,
    SegmentConfig, TargetKind, UrmaConfig, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent, UrmaMemory, UrmaNode,
    UrmaTransmit, WrData, access,
};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;

/// Memory of one host: bytes from address 0x10000 on.
pub struct Ram {
    pub bytes: Vec<u8>,
    pub is_gone: bool,
    /// Reaches `bytes` by the kernel.
    pub own: ProcessMemory,
}

pub const RAM_BASE: u64 = 0x1_0000;
/// Token of segments that have one.
pub const TOKEN: u32 = 0x5eed_70c4;

impl Ram {
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemoryGone> {
        let from = addr.checked_sub(RAM_BASE).ok_or(MemoryGone)? as usize;
        if self.is_gone || from + len > self.bytes.len() { Err(MemoryGone) } else { Ok(from..from + len) }
    }
}

impl UrmaMemory for Ram {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        out.copy_from_slice(&self.bytes[self.range(addr, out.len())?]);
        Ok(())
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        let range = self.range(addr, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }
    fn update(&mut self, _region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let range = self.range(addr, 8)?;
        let old = u64::from_le_bytes(self.bytes[range.clone()].try_into().expect("eight bytes"));
        self.bytes[range].copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
    fn lend(&self, _region: u32, addr: u64, len: u32) -> Option<Span> {
        let at = self.range(addr, len as usize).ok()?;
        Some(self.own.span(self.bytes[at].as_ptr() as u64, len))
    }
}

/// Reports of one host.
#[derive(Default)]
pub struct Log {
    pub counts: HashMap<Reason, u64>,
    pub events: Vec<UrmaEvent>,
    /// Executed requests of peers: peer, Jetty, TASSN.
    pub executed: Vec<(u32, u32, u16)>,
    /// The number of each execution among those of all hosts.
    pub executed_at: Vec<u64>,
    /// Executions at all hosts.
    pub clock: Rc<Cell<u64>>,
}

impl UrmaEffects for Log {
    fn count(&mut self, reason: Reason) {
        *self.counts.entry(reason).or_default() += 1;
    }
    fn event(&mut self, event: UrmaEvent) {
        self.events.push(event);
    }
    fn executed(&mut self, peer: NodeEid, rc_id: u32, tassn: u16) {
        self.executed.push((peer.cna().get(), rc_id, tassn));
        self.executed_at.push(self.clock.get());
        self.clock.set(self.clock.get() + 1);
    }
}

/// One host.
pub struct TestHost {
    pub node: UrmaNode,
    pub ram: Ram,
    pub log: Log,
    /// The whole memory as a segment, with all rights and no token.
    pub all: u32,
    /// The link to the network is busy until then.
    pub busy_until: Nanos,
    /// Calls until the node is checked again ([`UrmaNode::check`]).
    unchecked: i64,
}

/// How the network treats packets.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Of a million packets.
    pub loss: u64,
    pub duplication: u64,
    /// Packets that take up to `jitter` longer.
    pub reorder: u64,
    pub jitter: Nanos,
    pub delay: Nanos,
    /// Nanoseconds for 1000 bytes at a host's link; 0: no limit.
    pub ns_per_kb: u64,
}

pub const FAIR: Weather =
    Weather { loss: 0, duplication: 0, reorder: 0, jitter: Nanos(0), delay: Nanos(1_000), ns_per_kb: 0 };
pub const STORM: Weather = Weather {
    loss: 20_000,
    duplication: 20_000,
    reorder: 100_000,
    jitter: Nanos(20_000),
    delay: Nanos(1_000),
    ns_per_kb: 100,
};

/// A path through the network: the one of all lanes with its number, modulo the number of paths.
#[derive(Clone, Debug)]
pub struct Path {
    /// Of a million packets.
    pub loss: u64,
    /// Only packets of this host are lost.
    pub only_from: Option<usize>,
    pub delay: Nanos,
    /// Nanoseconds for 1000 bytes in one direction.
    pub ns_per_kb: u64,
    /// Bytes that have come through.
    pub carried: u64,
    /// Of each host: until when the path is busy with its packets.
    busy: Vec<Nanos>,
}

impl Path {
    pub fn new(delay: Nanos, ns_per_kb: u64) -> Path {
        Path { loss: 0, only_from: None, delay, ns_per_kb, carried: 0, busy: Vec::new() }
    }
}

struct Flight {
    at: Nanos,
    number: u64,
    from: NodeEid,
    dest: usize,
    bytes: Vec<u8>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A Jetty that receives ([`World::receiver`]).
pub struct Receiver {
    pub jfr: u32,
    pub jetty: u32,
    /// The number of the import at host 0.
    pub target: u32,
}

/// The node from which a packet comes that names its source truly.
pub fn sender(packet: &[u8]) -> NodeEid {
    let source = packet.get(1..4).map_or(0, |cna| u32::from_be_bytes([0, cna[0], cna[1], cna[2]]));
    NodeEid::numbered(source)
}

/// A packet that a filter sees: source host, destination host, bytes. True drops it.
pub type Filter = Box<dyn FnMut(usize, usize, &[u8]) -> bool>;

/// All hosts.
pub struct World {
    pub now: Nanos,
    pub hosts: Vec<TestHost>,
    /// Their ids.
    pub eids: Vec<NodeEid>,
    pub weather: Weather,
    pub rng: Rng,
    pub filter: Option<Filter>,
    /// If there are any, lanes take these, and the weather is not asked.
    pub paths: Vec<Path>,
    /// Packets sent, before losses.
    pub sent: u64,
    flights: BinaryHeap<Reverse<Flight>>,
    number: u64,
    buffer: Vec<u8>,
    pub lending: Lending,
    /// Packets of a run that have not left yet.
    run: VecDeque<(UrmaTransmit, Vec<u8>)>,
}

/// Which packets leave without a copy of their payload by the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    Never,
    EachSecond,
    Always,
    /// As `Always`, and packets that follow each other are taken together.
    Runs,
}

impl World {
    /// Hosts with addresses 1, 2, …; each with `ram` bytes of memory.
    pub fn new(count: usize, ram: usize, seed: u64, change: impl Fn(&mut UrmaConfig)) -> World {
        let clock = Rc::new(Cell::new(0));
        let mut eids = Vec::new();
        let hosts = (0..count).map(|i| {
            let seed = seed.wrapping_mul(31).wrapping_add(i as u64);
            let mut config =
                UrmaConfig { token_seed: i as u64, ..UrmaConfig::new(NodeEid::numbered(i as u32 + 1), seed) };
            change(&mut config);
            eids.push(config.eid);
            let mut node = UrmaNode::new(config);
            let rights = access::READ | access::WRITE | access::ATOMIC;
            let all = SegmentConfig { addr: RAM_BASE, len: ram as u64, token: None, access: rights };
            let all = node.register_segment(all).expect("room");
            let ram = Ram { bytes: vec![0; ram], is_gone: false, own: ProcessMemory::own().expect("own memory") };
            TestHost {
                node,
                ram,
                log: Log { clock: clock.clone(), ..Log::default() },
                all,
                busy_until: Nanos(0),
                unchecked: 0,
            }
        });
        World {
            now: Nanos(0),
            hosts: hosts.collect(),
            eids,
            weather: FAIR,
            rng: Rng::new(seed),
            filter: None,
            paths: Vec::new(),
            sent: 0,
            flights: BinaryHeap::new(),
            number: 0,
            buffer: vec![0; 16384],
            lending: Lending::EachSecond,
            run: VecDeque::new(),
        }
    }
    /// Calls something of a host's node.
    pub fn with<R>(&mut self, host: usize, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> R {
        let h = &mut self.hosts[host];
        let mut env = UrmaEnv { now: self.now, mem: &mut h.ram, fx: &mut h.log, paths: &mut NoPaths };
        let result = call(&mut h.node, &mut env);
        h.unchecked -= 1;
        if h.unchecked <= 0 {
            h.node.check().expect("what must hold between two calls");
            // It looks at every record, so that it is made once in so many calls, and less often with many records.
            let state = h.node.state();
            let records = state.requests + state.jetties + state.channels + state.inbound + state.responses;
            h.unchecked = 64 + 4 * records as i64;
        }
        result
    }
    pub fn post(&mut self, host: usize, jetty: u32, wr: JfsWr) -> Result<(), UrmaError> {
        self.with(host, |node, env| node.post_send(jetty, &wr, env))
    }
    pub fn poll(&mut self, host: usize, jfc: u32) -> Vec<CompletionRecord> {
        std::iter::from_fn(|| self.hosts[host].node.poll_jfc(jfc)).collect()
    }
    pub fn count(&self, host: usize, reason: Reason) -> u64 {
        self.hosts[host].log.counts.get(&reason).copied().unwrap_or(0)
    }
    fn schedule(&mut self, (from, dest): (NodeEid, usize), at: Nanos, bytes: Vec<u8>) {
        self.number += 1;
        self.flights.push(Reverse(Flight { at, number: self.number, from, dest, bytes }));
    }
    /// Puts a packet into the network, sealed, as if a host had sent it.
    pub fn inject(&mut self, dest: usize, packet: &[u8]) {
        let mut bytes = packet.to_vec();
        bytes.resize(packet.len() + encap::UB_CHECKSUM_LEN, 0);
        encap::seal(&mut bytes, packet.len());
        self.schedule((sender(packet), dest), self.now + self.weather.delay, bytes);
    }
    /// Sends all that the hosts may send now.
    pub fn transmit(&mut self) {
        for host in 0..self.hosts.len() {
            let mut buffer = std::mem::take(&mut self.buffer);
            loop {
                if self.weather.ns_per_kb > 0 && self.hosts[host].busy_until > self.now {
                    break;
                }
                let Some(sent) = self.next_packet(host, &mut buffer) else { break };
                self.sent += 1;
                let busy = Nanos(sent.len as u64 * self.weather.ns_per_kb / 1000);
                self.hosts[host].busy_until = self.now + busy;
                let dest = self.eids.iter().position(|eid| *eid == sent.dest).unwrap_or(usize::MAX);
                let is_dropped = self.filter.as_mut().is_some_and(|filter| filter(host, dest, &buffer[..sent.len]));
                if is_dropped || dest >= self.hosts.len() {
                    continue;
                }
                let len = encap::seal(&mut buffer, sent.len);
                if self.paths.is_empty() {
                    self.fly((host, dest), busy, &buffer[..len]);
                } else {
                    self.take_path((host, dest), sent.lane, &buffer[..len]);
                }
            }
            self.buffer = buffer;
        }
    }
    /// The next packet of a host.
    fn next_packet(&mut self, host: usize, buffer: &mut [u8]) -> Option<UrmaTransmit> {
        if let Some((sent, bytes)) = self.run.pop_front() {
            buffer[..sent.len].copy_from_slice(&bytes);
            return Some(sent);
        }
        let lends = match self.lending {
            Lending::Never => false,
            Lending::EachSecond => self.sent.is_multiple_of(2),
            Lending::Always | Lending::Runs => true,
        };
        // Where a link has a rate, packets leave one by one.
        let count_max = if self.lending == Lending::Runs && self.weather.ns_per_kb == 0 { 5 } else { 0 };
        if let Some(run) = self.with(host, |node, env| node.poll_run(env, count_max)) {
            for index in 0..run.count() {
                let mut bytes = self.hosts[host].node.run_head().to_vec();
                run.vary(index as u32, &mut bytes);
                let (head, len) = (bytes.len(), usize::from(run.len));
                bytes.resize(head + len, 0);
                run.payload.sub(index * len, len).read_to(&mut bytes[head..]).expect("registered memory");
                let sent =
                    UrmaTransmit { dest: run.dest, lane: run.lane, len: bytes.len(), lent: None, path: run.path };
                self.run.push_back((sent, bytes));
            }
            return self.next_packet(host, buffer);
        }
        self.with(host, |node, env| {
            let mut sent = if lends { node.poll_tx_lent(env, buffer) } else { node.poll_tx(env, buffer) }?;
            if let Some(span) = sent.lent.take() {
                let end = sent.len + span.len();
                span.read_to(&mut buffer[sent.len..end]).expect("registered memory");
                sent.len = end;
            }
            Some(sent)
        })
    }
    fn take_path(&mut self, (host, dest): (usize, usize), lane: u8, bytes: &[u8]) {
        let index = usize::from(lane) % self.paths.len();
        let path = &mut self.paths[index];
        path.busy.resize(self.hosts.len(), Nanos(0));
        let sent_at = path.busy[host].max(self.now) + Nanos(bytes.len() as u64 * path.ns_per_kb / 1000);
        path.busy[host] = sent_at;
        if path.only_from.is_none_or(|from| from == host) && self.rng.chance(path.loss, 1_000_000) {
            return;
        }
        path.carried += bytes.len() as u64;
        let at = sent_at + path.delay;
        self.schedule((self.eids[host], dest), at, bytes.to_vec());
    }
    fn fly(&mut self, (host, dest): (usize, usize), busy: Nanos, bytes: &[u8]) {
        let weather = self.weather;
        let copies = 1 + u64::from(self.rng.chance(weather.duplication, 1_000_000));
        for _ in 0..copies {
            if self.rng.chance(weather.loss, 1_000_000) {
                continue;
            }
            let is_late = self.rng.chance(weather.reorder, 1_000_000);
            let jitter = if is_late { self.rng.below(weather.jitter.0) } else { 0 };
            self.schedule((self.eids[host], dest), self.now + busy + weather.delay + Nanos(jitter), bytes.to_vec());
        }
    }
    /// The time of the next event.
    fn next(&self) -> Nanos {
        let flight = self.flights.peek().map_or(Nanos::NEVER, |f| f.0.at);
        let timer = self.hosts.iter().map(|h| h.node.next_deadline()).min().unwrap_or(Nanos::NEVER);
        let link = self.hosts.iter().map(|h| h.busy_until).filter(|at| *at > self.now).min().unwrap_or(Nanos::NEVER);
        flight.min(timer).min(link)
    }
    /// Goes on to the next event and handles it; false if there is none before `limit`.
    pub fn step(&mut self, limit: Nanos) -> bool {
        self.transmit();
        let next = self.next();
        if next > limit {
            self.now = self.now.max(limit);
            return false;
        }
        self.now = self.now.max(next);
        while self.flights.peek().is_some_and(|f| f.0.at <= self.now) {
            let Some(Reverse(flight)) = self.flights.pop() else { break };
            let packet = encap::open(&flight.bytes).expect("the network corrupts nothing").to_vec();
            self.with(flight.dest, |node, env| node.on_packet(env, flight.from, &packet));
        }
        for host in 0..self.hosts.len() {
            self.with(host, |node, env| node.on_timer(env));
        }
        true
    }
    /// Runs until nothing happens any more, or until `limit`.
    pub fn run(&mut self, limit: Nanos) {
        while self.step(limit) {}
    }
    /// Runs for a time.
    pub fn run_for(&mut self, time: Nanos) {
        self.run(self.now + time);
    }
    pub fn jfc(&mut self, host: usize) -> u32 {
        self.hosts[host].node.create_jfc(1 << 20).expect("room")
    }
    pub fn jfr(&mut self, host: usize, jfc: u32) -> u32 {
        let config = JfrConfig { depth: 4096, ..JfrConfig::new(jfc) };
        self.hosts[host].node.create_jfr(config).expect("room")
    }
    pub fn jetty(&mut self, host: usize, config: JettyConfig) -> u32 {
        self.hosts[host].node.create_jetty(config).expect("sound")
    }
    /// Posts a receive of a part of the memory.
    pub fn recv(&mut self, host: usize, jfr: u32, offset: u64, len: u32, user_ctx: u64) {
        let range = self.local(host, offset, len);
        self.hosts[host].node.post_recv(jfr, JfrWr { range, user_ctx }).expect("room");
    }
    pub fn local(&self, host: usize, offset: u64, len: u32) -> LocalRange {
        LocalRange { token_id: self.hosts[host].all, addr: RAM_BASE + offset, len }
    }
    pub fn data(&self, host: usize, offset: u64, len: u32) -> WrData {
        WrData::Local(self.local(host, offset, len))
    }
    /// Imports the whole memory of another host.
    pub fn import_all(&mut self, host: usize, owner: usize) -> u32 {
        let token_id = self.hosts[owner].all;
        let segment = self.hosts[owner].node.export_segment(token_id).expect("registered");
        self.hosts[host].node.import_segment(segment).expect("room")
    }
    /// The same by another registration, with a token: requests without a channel need one.
    pub fn import_shown(&mut self, host: usize, owner: usize) -> u32 {
        let config = SegmentConfig { token: Some(TOKEN), ..self.whole_segment(owner) };
        let owner = &mut self.hosts[owner].node;
        let token_id = owner.register_segment(config).expect("room");
        let segment = owner.export_segment(token_id).expect("registered");
        self.hosts[host].node.import_segment(segment).expect("room")
    }
    /// The whole memory of a host, with all rights and without token.
    pub fn whole_segment(&self, host: usize) -> SegmentConfig {
        let rights = access::READ | access::WRITE | access::ATOMIC;
        SegmentConfig { addr: RAM_BASE, len: self.hosts[host].ram.bytes.len() as u64, token: None, access: rights }
    }
    pub fn import_jetty(&mut self, host: usize, owner: usize, id: u32) -> u32 {
        let jetty = RemoteJetty { eid: self.eids[owner], id, kind: TargetKind::Jetty, token: None };
        self.hosts[host].node.import_jetty(jetty).expect("room")
    }
    /// A Jetty of host 1 with a receive queue, which host 0 has imported.
    pub fn receiver(&mut self) -> Receiver {
        let jfc = self.jfc(1);
        let jfr = self.jfr(1, jfc);
        let jetty = self.jetty(1, JettyConfig::new(jfc, Some(jfr)));
        Receiver { jfr, jetty, target: self.import_jetty(0, 1, jetty) }
    }
    /// A host restarts: it forgets all. Its whole memory is registered again, by the same token id.
    pub fn restart(&mut self, host: usize, change: impl Fn(&mut UrmaConfig)) {
        let mut config = UrmaConfig { token_seed: host as u64, ..UrmaConfig::new(self.eids[host], 77) };
        change(&mut config);
        let mut node = UrmaNode::new(config);
        self.hosts[host].all = node.register_segment(self.whole_segment(host)).expect("room");
        self.hosts[host].node = node;
    }
    /// Posts a request that is accepted.
    pub fn post_sound(&mut self, host: usize, jetty: u32, wr: JfsWr) {
        self.post(host, jetty, wr).expect("accepted");
    }
    /// No request, message, response or held packet is left anywhere.
    pub fn assert_drained(&self) {
        for (i, host) in self.hosts.iter().enumerate() {
            let s = host.node.state();
            assert_eq!((s.requests, s.inbound, s.held_packets, s.responses), (0, 0, 0, 0), "host {i}: {s:?}");
        }
    }
}
