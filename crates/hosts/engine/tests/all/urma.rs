//! One worker runs both transports: RoCE queue pairs and URMA's endpoint, over `mem` ports, with one scheduler and one wheel.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{Nanos, Reason};
use burst_cc::Params;
use burst_engine::counters::Traffic;
use burst_engine::urma::{UrmaEndpoint, node_at};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_ledger::{AccountId, Capacities, Ledger, Policy};
use burst_port::impair::Impair;
use burst_port::mem::{Hub, MemConfig};
use burst_port::spec::ImpairSpec;
use burst_port::{Port, PortCaps, PortError, RxSink};
use burst_span::{ProcessMemory, Span};
use burst_ubwire::TaOpcode;
use burst_urma::{
    CrStatus, JettyConfig, JfsWr, LocalRange, MemoryGone, RemoteSegment, SegmentConfig, UrmaConfig, UrmaError,
    UrmaMemory, WrData, access,
};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const BYTES: usize = 1 << 20;

/// A program's memory: the addresses of a buffer that lives as long as the process's own memory is open.
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    own: ProcessMemory,
    /// Payloads that came in runs.
    pieces: Arc<AtomicUsize>,
}

impl Memory {
    fn span(&self, addr: u64, len: usize) -> Result<Span, MemoryGone> {
        let bytes = self.bytes.lock().expect("no panic");
        let base = bytes.as_ptr() as u64;
        let inside = addr >= base && addr + len as u64 <= base + bytes.len() as u64;
        inside.then(|| self.own.span(addr, len as u32)).ok_or(MemoryGone)
    }
}

impl UrmaMemory for Memory {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        self.span(addr, out.len())?.read_to(out).map_err(|_| MemoryGone)
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.span(addr, bytes.len())?.write_from(bytes).map_err(|_| MemoryGone)
    }
    fn write_pieces(
        &mut self,
        region: u32,
        addr: u64,
        len: u32,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), MemoryGone> {
        let all: Vec<&[u8]> = pieces.collect();
        self.pieces.fetch_add(all.len(), Ordering::Relaxed);
        let bytes = all.concat();
        assert_eq!(bytes.len(), len as usize);
        self.write(region, addr, &bytes)
    }
    fn update(&mut self, _region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let span = self.span(addr, 8)?;
        let mut old = [0; 8];
        span.read_to(&mut old).map_err(|_| MemoryGone)?;
        let old = u64::from_le_bytes(old);
        span.write_from(&change(old).to_le_bytes()).map_err(|_| MemoryGone)?;
        Ok(old)
    }
    fn lend(&self, _region: u32, addr: u64, len: u32) -> Option<Span> {
        self.span(addr, len as usize).ok()
    }
}

/// A host with both transports, and what URMA's program has made.
struct Both {
    host: Host,
    bytes: Arc<Mutex<Vec<u8>>>,
    token_id: u32,
    jfc: u32,
    jetty: u32,
    /// The peer's memory.
    segment: u32,
    pieces: Arc<AtomicUsize>,
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

impl Both {
    /// Host `last` on the hubs of RoCE and of URMA; URMA's turns are those of an account of its own.
    fn new(hubs: &[Hub; 2], last: u8, loss: Option<ImpairSpec>) -> Both {
        let port = |hub: &Hub| -> Box<dyn Port> {
            let port = Box::new(hub.port(&format!("mem{last}"), &[address(last)]));
            match loss {
                Some(spec) => Box::new(Impair::new(port, spec)),
                None => port,
            }
        };
        Both::on([port(&hubs[0]), port(&hubs[1])], last, 1)
    }
    /// Host `last` on the ports of RoCE and of URMA, with so many lanes.
    fn on([roce, urma]: [Box<dyn Port>; 2], last: u8, lanes: u8) -> Both {
        let mut host = Host::with_cc(roce, BYTES as u32, Params::default().with_window(8 << 20));
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        host.add_context(&ledger.account(AccountId::User(u32::from(last)), false));
        let config = |mtu| UrmaConfig {
            mtu,
            caqm: false,
            window_max: 2 << 20,
            lanes,
            ..UrmaConfig::new(node_at(address(last)), u64::from(last))
        };
        let endpoint = UrmaEndpoint::new(urma, address(last), 64, config).expect("its address");
        assert_eq!(endpoint.node.packet_max() & !0xfff, 4096, "packets of 4 KiB fit");
        let bytes = Arc::new(Mutex::new(vec![0; BYTES]));
        let pieces = Arc::new(AtomicUsize::new(0));
        let memory =
            Memory { bytes: bytes.clone(), own: ProcessMemory::own().expect("own memory"), pieces: pieces.clone() };
        host.worker.add_urma(1, endpoint, Box::new(memory));
        let addr = bytes.lock().expect("no panic").as_ptr() as u64;
        let (token_id, jfc, jetty) = host
            .worker
            .with_urma(Nanos(0), |node, _| {
                let config =
                    SegmentConfig { addr, len: BYTES as u64, token: Some(7), access: access::READ | access::WRITE };
                let jfc = node.create_jfc(1024).expect("room");
                let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("room");
                (node.register_segment(config).expect("room"), jfc, jetty)
            })
            .expect("an endpoint");
        Both { host, bytes, token_id, jfc, jetty, segment: 0, pieces }
    }
    fn addr(&self) -> u64 {
        self.bytes.lock().expect("no panic").as_ptr() as u64
    }
    fn import(&mut self, peer: &Both, last: u8) {
        let remote = RemoteSegment {
            eid: node_at(address(last)),
            token_id: peer.token_id,
            addr: peer.addr(),
            len: BYTES as u64,
            token: Some(7),
        };
        let segment = self.host.worker.with_urma(Nanos(0), |node, _| node.import_segment(remote));
        self.segment = segment.expect("an endpoint").expect("room");
    }
    fn write(&mut self, now: Nanos, len: u32, peer: &Both) -> Result<(), UrmaError> {
        let data = WrData::Local(LocalRange { token_id: self.token_id, addr: self.addr(), len });
        let wr = JfsWr {
            segment: Some(self.segment),
            remote_addr: peer.addr(),
            ..JfsWr::new(TaOpcode::Write, data, u64::from(len))
        };
        let jetty = self.jetty;
        self.host.worker.with_urma(now, |node, env| node.post_send(jetty, &wr, env)).expect("an endpoint")
    }
    fn poll(&mut self) -> Option<CrStatus> {
        let jfc = self.jfc;
        self.host.worker.with_urma(Nanos(0), |node, _| node.poll_jfc(jfc).map(|cr| cr.status)).flatten()
    }
}

fn pair(loss: Option<ImpairSpec>, latency: Nanos) -> (Both, Both, [AppQp; 2]) {
    let hubs = [0, 1].map(|_| Hub::new(MemConfig { depth: 1 << 14, latency, ..MemConfig::default() }));
    let (mut a, mut b) = (Both::new(&hubs, 1, loss), Both::new(&hubs, 2, loss));
    a.import(&b, 2);
    b.import(&a, 1);
    (a.host.context, b.host.context) = (0, 0);
    let (qa, qb) = (a.host.create(QpType::Rc), b.host.create(QpType::Rc));
    let (caps_a, caps_b) = (a.host.caps.clone(), b.host.caps.clone());
    a.host.connect(&qa, qb.qpn, &caps_b, Mtu::B4096);
    b.host.connect(&qb, qa.qpn, &caps_a, Mtu::B4096);
    (a, b, [qa, qb])
}

#[test]
fn writes_of_both_transports_arrive_through_losses() {
    let loss = ImpairSpec::parse("loss=3%,reorder=2%,dup=1%,seed=5").expect("a specification");
    let (mut a, mut b, [mut qa, _qb]) = pair(Some(loss), Nanos(5_000));
    for (i, byte) in a.bytes.lock().expect("no panic").iter_mut().enumerate() {
        *byte = (i * 7 + i / 251) as u8;
    }
    let mut now = Nanos(0);
    const COUNT: usize = 20;
    for k in 0..COUNT {
        let len = 40_000 + k as u32 * 1000;
        a.write(now, len, &b).expect("room");
        let write = request(WrOpcode::RdmaWrite, k as u64, BASE, b.host.key);
        let sge = a.host.sge(0, 30_000);
        a.host.post(&mut qa, write, &[sge]);
    }
    let (mut done, jfc) = ([0, 0], a.jfc);
    let finished = run(&mut a.host, &mut b.host, &mut now, |a, _| {
        done[0] += std::iter::from_fn(|| poll(&mut qa)).count();
        while let Some(Some(record)) = a.worker.with_urma(Nanos(0), |node, _| node.poll_jfc(jfc)) {
            assert_eq!(record.status, CrStatus::Success);
            done[1] += 1;
        }
        done == [COUNT; 2]
    });
    assert!(finished, "{done:?} at {now:?}");
    let end = 40_000 + (COUNT - 1) * 1000;
    assert_eq!(a.bytes.lock().expect("no panic")[..end], b.bytes.lock().expect("no panic")[..end]);
    let (completions, _) = a.host.worker.take_urma_reports().expect("an endpoint");
    assert!(completions.contains(&jfc), "the program learns of completions");
    assert!(a.poll().is_none());
}

#[test]
fn the_scheduler_gives_both_transports_the_same_bytes() {
    let (mut a, mut b, [mut qa, _qb]) = pair(None, Nanos(0));
    let (mut posted, mut now) = ([0usize; 2], Nanos(0));
    let mut at_start = [0; 2];
    let sent = |a: &mut Both| {
        let roce = a.host.worker.counters(burst_base::DeviceId(0)).traffic(Traffic::TxBytes);
        [roce, a.host.worker.urma().expect("an endpoint").counters().traffic(Traffic::TxBytes)]
    };
    for pass in 0..600 {
        if pass == 100 {
            at_start = sent(&mut a);
        }
        posted[0] -= std::iter::from_fn(|| poll(&mut qa)).count();
        posted[1] -= std::iter::from_fn(|| a.poll()).count();
        while posted[0] < 64 {
            let write = request(WrOpcode::RdmaWrite, 0, BASE, b.host.key);
            let sge = a.host.sge(0, 64 << 10);
            a.host.post(&mut qa, write, &[sge]);
            posted[0] += 1;
        }
        while posted[1] < 64 {
            a.write(now, 64 << 10, &b).expect("room");
            posted[1] += 1;
        }
        a.host.worker.run_once(now);
        b.host.worker.run_once(now);
        now = now + Nanos(1_000);
    }
    let end = sent(&mut a);
    let [roce, urma] = [0, 1].map(|i| end[i] - at_start[i]);
    assert!(roce > 20 << 20, "{roce} {urma}");
    let part = urma * 100 / (roce + urma);
    assert!((47..=53).contains(&part), "URMA has {part} % of {} bytes", roce + urma);
}

#[test]
fn a_worker_without_queue_pairs_runs_the_endpoint() {
    let hubs = [0, 1].map(|_| Hub::new(MemConfig::default()));
    let (mut a, mut b) = (Both::new(&hubs, 1, None), Both::new(&hubs, 2, None));
    a.import(&b, 2);
    b.import(&a, 1);
    a.write(Nanos(0), 4096, &b).expect("room");
    let ended = (0..100).find_map(|pass| {
        let now = Nanos(pass * 1_000);
        a.host.worker.run_once(now);
        b.host.worker.run_once(now);
        a.poll()
    });
    assert_eq!(ended, Some(CrStatus::Success));
}

/// What a port was asked for, and the source ports of what it has sent.
#[derive(Default)]
struct Sources {
    opened: Vec<usize>,
    sent: BTreeSet<u16>,
}

/// A port that notes source ports. With `first` it can send from those numbers on only, else from any.
struct SourcePorts {
    inner: Box<dyn Port>,
    first: Option<u16>,
    seen: Arc<Mutex<Sources>>,
}

impl Port for SourcePorts {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.inner.rx_burst(now, budget, sink)
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.seen.lock().expect("no panic").sent.extend(batch.frames().iter().map(|frame| frame.flow.src_port));
        self.inner.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }
    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }
    fn open_source_ports(&mut self, count: usize) -> Result<(), PortError> {
        self.seen.lock().expect("no panic").opened.push(count);
        if count > 6 { Err(PortError::Spec("six at most".into())) } else { Ok(()) }
    }
    fn source_port(&self, src: IpAddr, number: usize) -> Option<u16> {
        assert_eq!(src, address(1));
        self.first.map(|first| first + number as u16)
    }
}

/// What a host with four lanes to a peer with `lanes` has sent from.
fn sources(first: Option<u16>, lanes: u8) -> Arc<Mutex<Sources>> {
    let hubs = [0, 1].map(|_| Hub::new(MemConfig { depth: 1 << 14, ..MemConfig::default() }));
    let port =
        |hub: usize, last: u8| -> Box<dyn Port> { Box::new(hubs[hub].port(&format!("mem{last}"), &[address(last)])) };
    let seen: Arc<Mutex<Sources>> = Arc::default();
    let noting = Box::new(SourcePorts { inner: port(1, 1), first, seen: seen.clone() });
    let mut a = Both::on([port(0, 1), noting], 1, 4);
    let mut b = Both::on([port(0, 2), port(1, 2)], 2, lanes);
    a.import(&b, 2);
    b.import(&a, 1);
    let mut done = 0;
    for pass in 0..200 {
        let now = Nanos(pass * 1_000);
        (0..3).for_each(|_| a.write(now, 64 << 10, &b).expect("room"));
        a.host.worker.run_once(now);
        b.host.worker.run_once(now);
        done += std::iter::from_fn(|| a.poll()).filter(|status| *status == CrStatus::Success).count();
    }
    assert!(done > 50, "{done}");
    seen
}

#[test]
fn lanes_leave_by_the_source_ports_that_the_port_has() {
    let seen = sources(Some(50_000), 8);
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.sent, BTreeSet::from([4792, 50_001, 50_002, 50_003]));
    let seen = sources(None, 8);
    let seen = seen.lock().expect("no panic");
    assert_eq!((seen.sent.len(), seen.sent.first(), seen.sent.range(0xc000..).count()), (4, Some(&4792), 3));
}

#[test]
fn no_peer_makes_a_port_open_source_ports() {
    for (lanes, used) in [(1, 1), (2, 2), (8, 4)] {
        let seen = sources(Some(50_000), lanes);
        let seen = seen.lock().expect("no panic");
        assert_eq!((&seen.opened[..], seen.sent.len()), (&[4][..], used), "a peer with {lanes} lanes");
    }
}

#[test]
fn a_port_without_enough_source_ports_has_no_endpoint() {
    let port = || -> Box<dyn Port> { Box::new(Hub::new(MemConfig::default()).port("mem1", &[address(1)])) };
    let six = || SourcePorts { inner: port(), first: None, seen: Arc::default() };
    let config = |lanes| move |mtu| UrmaConfig { mtu, lanes, ..UrmaConfig::new(node_at(address(1)), 1) };
    assert!(UrmaEndpoint::new(Box::new(six()), address(1), 64, config(6)).is_ok());
    let why = UrmaEndpoint::new(Box::new(six()), address(1), 64, config(7)).err().expect("refused");
    assert_eq!(why.to_string(), "six at most");
    let why = UrmaEndpoint::new(port(), address(9), 64, config(1)).err().expect("refused");
    assert_eq!(why.errno(), 99, "EADDRNOTAVAIL: {why}");
}

/// A port that hands packets of one length over as trains. While `is_forged`, another host seems to have sent them.
struct Trains {
    inner: Box<dyn Port>,
    is_forged: Arc<AtomicBool>,
}

/// The packets of a burst.
#[derive(Default)]
struct Collected(Vec<(Flow, Vec<u8>)>);

impl RxSink for Collected {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.0.push((frame.flow, frame.bytes.to_vec()));
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason:?}");
    }
}

impl Port for Trains {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut all = Collected::default();
        let count = self.inner.rx_burst(now, budget, &mut all);
        for train in all.0.chunk_by(|one, other| one.1.len() == other.1.len()) {
            let mut flow = train[0].0;
            if self.is_forged.load(Ordering::Relaxed) {
                flow.src = address(9);
            }
            let bytes: Vec<u8> =
                train.iter().flat_map(|(_, packet)| [packet.as_slice(), &[0xee; 4]].concat()).collect();
            sink.train(&flow, &bytes, train[0].1.len() + 4);
        }
        count
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.inner.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }
    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }
}

#[test]
fn trains_are_taken_in_runs_and_only_from_their_sender() {
    let hubs = [0, 1].map(|_| Hub::new(MemConfig { depth: 1 << 14, ..MemConfig::default() }));
    let port =
        |hub: usize, last: u8| -> Box<dyn Port> { Box::new(hubs[hub].port(&format!("mem{last}"), &[address(last)])) };
    let is_forged = Arc::new(AtomicBool::new(false));
    let mut a = Both::new(&hubs, 1, None);
    let trains = Box::new(Trains { inner: port(1, 2), is_forged: is_forged.clone() });
    let mut b = Both::on([port(0, 2), trains], 2, 1);
    a.import(&b, 2);
    b.import(&a, 1);
    let fill = |a: &Both, salt: usize| {
        a.bytes.lock().expect("no panic").iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 5 + salt) as u8);
    };
    fill(&a, 0);
    a.write(Nanos(0), 768 << 10, &b).expect("room");
    let now = Cell::new(Nanos(0));
    let pass = |a: &mut Both, b: &mut Both| {
        now.set(now.get() + Nanos(1_000));
        a.host.worker.run_once(now.get());
        b.host.worker.run_once(now.get());
        a.poll()
    };
    assert_eq!((0..200).find_map(|_| pass(&mut a, &mut b)), Some(CrStatus::Success));
    let written = |b: &Both| b.bytes.lock().expect("no panic")[..768 << 10].to_vec();
    let expected = a.bytes.lock().expect("no panic")[..768 << 10].to_vec();
    assert!(written(&b) == expected);
    let pieces = b.pieces.load(Ordering::Relaxed);
    assert!(pieces > 96, "{pieces} of 192 packets came in runs");
    // A message has begun when all that comes seems to be of another host: it does not go on.
    fill(&a, 1);
    a.write(now.get(), 768 << 10, &b).expect("room");
    assert_eq!(pass(&mut a, &mut b), None);
    let (begun, pieces) = (written(&b), b.pieces.load(Ordering::Relaxed));
    assert!(begun != expected, "a part has come");
    is_forged.store(true, Ordering::Relaxed);
    for _ in 0..200 {
        assert_eq!(pass(&mut a, &mut b), None, "no answer");
    }
    assert!(written(&b) == begun && b.pieces.load(Ordering::Relaxed) == pieces);
    assert!(b.host.worker.urma().expect("an endpoint").counters().reason(Reason::UbForeign) > 16);
}
