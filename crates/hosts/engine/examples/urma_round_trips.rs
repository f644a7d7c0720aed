//! Both transports over `mem` ports, for counting instructions: `urma_round_trips [pings|writes] COUNT [urma|worker|rc]`.
//!
//! `pings` are round trips of 64-byte WRITEs, as of `ib_write_lat` and `urma_perftest write_lat`: who sees the peer's WRITE in
//! its memory polls for its own completion and answers. `writes` is one-way WRITEs of 64 KiB, 8 under way. `urma`: two endpoints,
//! driven as a program without daemon drives its own; `worker`: the same in whole workers, `rc`: queue pairs in whole workers.
//! Nothing here depends on time, so two counts differ by the instructions of the additional rounds alone: run it with two counts
//! under `valgrind --tool=callgrind` and subtract.
#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{Nanos, Reason};
use burst_cc::Params;
use burst_engine::urma::{UrmaEndpoint, node_at};
use burst_ledger::{AccountId, Capacities, Ledger, Policy};
use burst_port::Port;
use burst_port::mem::{MemConfig, pair};
use burst_span::Span;
use burst_ubwire::TaOpcode;
use burst_urma::{
    CrStatus, JettyConfig, JfsWr, LocalRange, MemoryGone, RemoteSegment, SegmentConfig, UrmaConfig, UrmaEffects,
    UrmaEnv, UrmaEvent, UrmaMemory, UrmaNode, WrData, access,
};
use harness::{AppQp, BASE, Host, poll, request};
use std::net::IpAddr;

const MEMORY: usize = 1 << 17;
const PING: u32 = 64;
const WRITE: u32 = 1 << 16;
/// Where a host's data are sent from.
const SOURCE: u32 = 1 << 16;
/// WRITEs of 64 KiB under way.
const DEPTH: u64 = 8;

/// A program's memory, from address [`BASE`] on.
struct Own(Span);

impl Own {
    fn span(&self, addr: u64, len: usize) -> Result<Span, MemoryGone> {
        let at = addr.checked_sub(BASE).ok_or(MemoryGone)? as usize;
        if at + len <= MEMORY { Ok(self.0.sub(at, len)) } else { Err(MemoryGone) }
    }
}

impl UrmaMemory for Own {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        self.span(addr, out.len())?.read_to(out).map_err(|_| MemoryGone)
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.span(addr, bytes.len())?.write_from(bytes).map_err(|_| MemoryGone)
    }
    fn update(&mut self, _region: u32, _addr: u64, _change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        Err(MemoryGone)
    }
    fn lend(&self, _region: u32, addr: u64, len: u32) -> Option<Span> {
        self.span(addr, len as usize).ok()
    }
}

struct Silent;

impl UrmaEffects for Silent {
    fn count(&mut self, _reason: Reason) {}
    fn completion(&mut self, _jfc: u32) {}
    fn event(&mut self, _event: UrmaEvent) {}
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// One end of a connection of either transport.
trait TransportEnd {
    /// Posts a WRITE of `len` bytes to the start of the peer's memory; its first byte is `mark`.
    fn post(&mut self, now: Nanos, len: u32, mark: u8);
    /// Whether a WRITE is done.
    fn poll(&mut self) -> bool;
    /// Runs the engine once.
    fn pass(&mut self, now: Nanos);
    /// First byte of the memory.
    fn mark(&self) -> u8;
}

/// A node and its program.
struct UrmaProgram {
    /// Runs the node, unless the program does; its memory is the program's.
    host: Host,
    own: Own,
    endpoint: Option<UrmaEndpoint>,
    token_id: u32,
    jfc: u32,
    jetty: u32,
    segment: u32,
}

impl UrmaProgram {
    fn new(port: Box<dyn Port>, last: u8, is_worker: bool) -> UrmaProgram {
        let config = |mtu| UrmaConfig {
            mtu,
            caqm: false,
            window_max: 1 << 20,
            ..UrmaConfig::new(node_at(address(last)), u64::from(last))
        };
        let endpoint = UrmaEndpoint::new(port, address(last), 64, config).expect("its address");
        let (roce, _) = pair(MemConfig::default(), address(last), address(9));
        let mut host = Host::with_cc(Box::new(roce), MEMORY as u32, Params::default());
        let own = Own(host.memory);
        let mut endpoint = Some(endpoint);
        if is_worker {
            let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
            host.add_context(&ledger.account(AccountId::User(u32::from(last)), false));
            host.worker.add_urma(1, endpoint.take().expect("made"), Box::new(Own(host.memory)));
        }
        let mut made = UrmaProgram { host, own, endpoint, token_id: 0, jfc: 0, jetty: 0, segment: 0 };
        (made.token_id, made.jfc, made.jetty) = made.with(Nanos(0), |node, _| {
            let config = SegmentConfig { addr: BASE, len: MEMORY as u64, token: Some(7), access: access::WRITE };
            let jfc = node.create_jfc(1024).expect("room");
            let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("room");
            (node.register_segment(config).expect("room"), jfc, jetty)
        });
        made
    }
    fn with<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> R {
        match &mut self.endpoint {
            Some(endpoint) => endpoint.with(now, &mut self.own, &mut Silent, call),
            None => self.host.worker.with_urma(now, call).expect("an endpoint"),
        }
    }
    fn import(&mut self, peer: &UrmaProgram, last: u8) {
        let (token_id, len) = (peer.token_id, MEMORY as u64);
        let remote = RemoteSegment { eid: node_at(address(last)), token_id, addr: BASE, len, token: Some(7) };
        self.segment = self.with(Nanos(0), |node, _| node.import_segment(remote)).expect("room");
    }
}

impl TransportEnd for UrmaProgram {
    fn post(&mut self, now: Nanos, len: u32, mark: u8) {
        set_mark(&self.host, mark);
        let range = LocalRange { token_id: self.token_id, addr: BASE + u64::from(SOURCE), len };
        let wr = JfsWr {
            segment: Some(self.segment),
            remote_addr: BASE,
            ..JfsWr::new(TaOpcode::Write, WrData::Local(range), 1)
        };
        let jetty = self.jetty;
        self.with(now, |node, env| node.post_send(jetty, &wr, env)).expect("room");
        match &mut self.endpoint {
            Some(endpoint) => {
                endpoint.send(now, &mut self.own, &mut Silent, u64::MAX);
                endpoint.flush(now);
            }
            None => _ = self.host.worker.run_once(now),
        }
    }
    fn poll(&mut self) -> bool {
        let jfc = self.jfc;
        let record = self.with(Nanos(0), |node, _| node.poll_jfc(jfc));
        assert!(record.is_none_or(|record| record.status == CrStatus::Success));
        record.is_some()
    }
    fn pass(&mut self, now: Nanos) {
        let Some(endpoint) = &mut self.endpoint else {
            self.host.worker.run_once(now);
            return;
        };
        endpoint.send(now, &mut self.own, &mut Silent, u64::MAX);
        endpoint.flush(now);
        endpoint.run_timers(now, &mut self.own, &mut Silent);
        endpoint.receive(now, &mut self.own, &mut Silent, 256);
    }
    fn mark(&self) -> u8 {
        mark(&self.host)
    }
}

fn set_mark(host: &Host, mark: u8) {
    host.memory.sub(SOURCE as usize, 1).write_from(&[mark]).expect("mapped");
}

fn mark(host: &Host) -> u8 {
    let mut first = [0];
    host.memory.sub(0, 1).read_to(&mut first).expect("mapped");
    first[0]
}

/// A queue pair and its program.
struct QueuePair {
    host: Host,
    qp: AppQp,
    peer_key: u32,
}

impl TransportEnd for QueuePair {
    fn post(&mut self, now: Nanos, len: u32, mark: u8) {
        set_mark(&self.host, mark);
        let sge = self.host.sge(u64::from(SOURCE), len);
        self.host.post(&mut self.qp, request(WrOpcode::RdmaWrite, 1, BASE, self.peer_key), &[sge]);
        self.pass(now);
    }
    fn poll(&mut self) -> bool {
        poll(&mut self.qp).is_some()
    }
    fn pass(&mut self, now: Nanos) {
        self.host.worker.run_once(now);
    }
    fn mark(&self) -> u8 {
        mark(&self.host)
    }
}

fn pings(a: &mut dyn TransportEnd, b: &mut dyn TransportEnd, count: u64) {
    let mark = |round: u64| (round % 250) as u8 + 1;
    let mut now = Nanos(0);
    a.post(now, PING, mark(0));
    // A channel opens first.
    while b.mark() != mark(0) {
        now = now + Nanos(1_000);
        a.pass(now);
        b.pass(now);
    }
    for round in 0..count {
        let ends: [(&mut dyn TransportEnd, _, _); 2] = [(&mut *b, round, round), (&mut *a, round, round + 1)];
        for (end, wanted, answer) in ends {
            while end.mark() != mark(wanted) {
                now = now + Nanos(1_000);
                end.pass(now);
            }
            end.post(now, PING, mark(answer));
            while end.poll() {}
        }
    }
}

fn writes(a: &mut dyn TransportEnd, b: &mut dyn TransportEnd, count: u64) {
    let (mut now, mut under_way, mut done) = (Nanos(0), 0, 0);
    while done < count {
        while under_way < DEPTH {
            a.post(now, WRITE, 1);
            under_way += 1;
        }
        now = now + Nanos(1_000);
        a.pass(now);
        b.pass(now);
        while a.poll() {
            (under_way, done) = (under_way - 1, done + 1);
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next();
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let family = args.next();
    let config = MemConfig { depth: 1 << 12, ..MemConfig::default() };
    let (pa, pb) = pair(config, address(1), address(2));
    let (mut a, mut b): (Box<dyn TransportEnd>, Box<dyn TransportEnd>) = if family.as_deref() == Some("rc") {
        let params = Params::default().with_window(1 << 20);
        let [mut a, mut b] = [Box::new(pa), Box::new(pb)].map(|port| Host::with_cc(port, MEMORY as u32, params));
        let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
        let (caps_a, caps_b, keys) = (a.caps.clone(), b.caps.clone(), [a.key, b.key]);
        a.connect(&qa, qb.qpn, &caps_b, Mtu::B4096);
        b.connect(&qb, qa.qpn, &caps_a, Mtu::B4096);
        (
            Box::new(QueuePair { host: a, qp: qa, peer_key: keys[1] }),
            Box::new(QueuePair { host: b, qp: qb, peer_key: keys[0] }),
        )
    } else {
        let is_worker = family.as_deref() == Some("worker");
        let mut a = UrmaProgram::new(Box::new(pa), 1, is_worker);
        let mut b = UrmaProgram::new(Box::new(pb), 2, is_worker);
        a.import(&b, 2);
        b.import(&a, 1);
        (Box::new(a), Box::new(b))
    };
    match kind.as_deref() {
        Some("writes") => writes(&mut *a, &mut *b, count),
        _ => pings(&mut *a, &mut *b, count),
    }
}
