//! Two hostile programs and an honest one on a whole daemon without sockets and threads: control plane, connection
//! manager, a worker in the caller's thread (as inside a program), two devices joined in memory, and a node of URMA for each. The
//! input says what the programs do, and which packets a forger puts on the wire, who speaks for any host.
//!
//! Nothing panics, the honest program is served, and when the programs have gone nothing is charged to them any more.

mod steps;

use crate::Tape;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpCap, QpState, QpType, access, attr_mask as m};
use burst_base::{Nanos, Psn, Qpn, Reason};
use burst_control::urma_calls::{URMA_NONE, UrmaAnswer, UrmaCall, UrmaJettyAttr, UrmaPost};
use burst_control::{CqInitAttr, MrPiece, MrPieceKind, QpCookies, QpInitAttr, QueuePlace, Reply, Request, Response};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_host::{AccountBy, ClientProcess, Clock, Host, HostOptions, Policy, Session, Upkeep, WorkerMode};
use burst_port::mem::{Hub, MemConfig, MemPort, pair};
use burst_port::{NeighbourState, Port, PortCaps, PortError, RxSink};
use burst_shm::arena::Segment;
use burst_shm::doorbell::Doorbells;
use burst_shm::record_ring::{RECORD_BYTES_MAX, RecordRingProducer};
use burst_shm::{Area, ContextPage, QUEUE_HEADER_BYTES};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Actions of one input.
pub const ACTIONS_MAX: usize = 96;
/// Address and length of the memory that each hostile program registers.
const BASE: u64 = 0x10_0000;
const MEMORY: u64 = 64 << 10;
/// Descriptors of a program that are kept; more replies close theirs at once.
const KEPT_MAX: usize = 64;

const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

/// Packets of the forger that a device has not received yet: trains of packets of one length.
type Forged = Arc<Mutex<Vec<(Flow, Vec<Vec<u8>>)>>>;

/// The last packets that a node of URMA has received.
type Heard = Arc<Mutex<VecDeque<(Flow, Vec<u8>)>>>;
/// Packets that are kept of a node.
const HEARD_MAX: usize = 8;

/// Of both nodes of URMA: what a forger puts on the wire to it, and what it has received.
#[derive(Clone, Default)]
struct Bus {
    forged: [Forged; 2],
    heard: [Heard; 2],
}

/// A sink that keeps the last packets.
struct HearingSink<'a> {
    sink: &'a mut dyn RxSink,
    heard: &'a Heard,
}

impl RxSink for HearingSink<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        let mut heard = self.heard.lock().expect("one thread");
        heard.truncate(HEARD_MAX - 1);
        heard.push_front((frame.flow, frame.bytes.to_vec()));
        drop(heard);
        self.sink.frame(frame);
    }
    fn dropped(&mut self, reason: Reason) {
        self.sink.dropped(reason);
    }
}

/// A device that receives the forger's packets beside the other device's.
struct WiredPort {
    inner: MemPort,
    forged: Forged,
    /// What it receives is kept here.
    heard: Option<Heard>,
}

impl Port for WiredPort {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let trains = std::mem::take(&mut *self.forged.lock().expect("one thread"));
        let mut count = 0;
        for (flow, packets) in &trains {
            count += packets.len();
            match packets.as_slice() {
                [bytes] => sink.frame(&RxFrame { flow: *flow, bytes }),
                packets => {
                    let stride = packets[0].len() + 4;
                    let train: Vec<u8> = packets.iter().flat_map(|packet| [packet, &[0; 4][..]].concat()).collect();
                    sink.train(flow, &train, stride);
                }
            }
        }
        count
            + match &self.heard {
                Some(heard) => self.inner.rx_burst(now, budget, &mut HearingSink { sink, heard }),
                None => self.inner.rx_burst(now, budget, sink),
            }
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
    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.inner.join(group)
    }
    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }
    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        self.inner.next_hop(now, dst)
    }
}

fn host(time: &Arc<AtomicU64>, forged: &[Forged; 2], bus: &Bus) -> Host {
    let options = HostOptions {
        ports: Vec::new(),
        workers: 1,
        worker_mode: WorkerMode::InPlace,
        spin: Duration::ZERO,
        window_bytes: 1 << 20,
        cc: burst_cc::CcTable::default(),
        selective: false,
        rto: Default::default(),
        urma_lanes: 1,
        urma_caqm: false,
        hold_urma: false,
        gpu: true,
        policy: Policy { share_percent: 40, reserve_percent: 10 },
        account_by: AccountBy::User,
        account_depth: 0,
        subordinate_ids: None,
        lend: false,
        lent: None,
        packet_ring: true,
        seed: Some(1),
    };
    let [a, b] = ADDRESSES.map(IpAddr::from);
    let (left, right) = pair(MemConfig { latency: Nanos(1_000), ..MemConfig::default() }, a, b);
    let clock = Clock::Virtual(time.clone());
    let mut devices = [left, right].into_iter().zip(forged.clone());
    let ports = devices
        .by_ref()
        .map(|(inner, forged)| Box::new(WiredPort { inner, forged, heard: None }) as Box<dyn Port>)
        .collect();
    let mut host = Host::with_ports(&options, clock, vec![ports]).expect("a host");
    let mut hub = Hub::new(MemConfig::default());
    let (mut used, bus) = (Vec::new(), bus.clone());
    host.lend_urma_ports(Box::new(move |_, address| {
        if used.contains(&address) {
            // A hub has each address once: the node's next incarnation is on another one.
            hub = Hub::new(MemConfig::default());
            used.clear();
        }
        used.push(address);
        let at = usize::from(address != IpAddr::from(ADDRESSES[0]));
        let inner = hub.port("urma", &[address]);
        let (forged, heard) = (bus.forged[at].clone(), Some(bus.heard[at].clone()));
        let port: Box<dyn Port> = Box::new(WiredPort { inner, forged, heard });
        Some(port)
    }));
    host
}

/// The entity id of an address.
fn eid(address: [u8; 4]) -> [u8; 16] {
    Ipv4Addr::from(address).to_ipv6_mapped().octets()
}

/// Memory that cannot shrink, as the library sends it; without seals it is refused.
fn memfd(sealed: bool) -> OwnedFd {
    let fd = memfd_create("program", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, MEMORY).expect("its length");
    if sealed {
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    }
    fd
}

/// A descriptor that a program may send with a request.
fn foreign(kind: u8) -> OwnedFd {
    let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    match kind % 6 {
        0..=2 => memfd(true),
        3 => memfd(false),
        4 => open("/dev/null", OFlags::RDWR).expect("opened"),
        _ => open("/proc/self/exe", OFlags::PATH).expect("opened"),
    }
}

/// A queue pair of a hostile program.
#[derive(Clone, Copy)]
struct HostileQp {
    qp: u32,
    qpn: u32,
    sq: QueuePlace,
    doorbell: u32,
}

/// A program that may do anything.
pub struct Hostile {
    session: Session,
    segments: Vec<Arc<Segment>>,
    /// Descriptors of replies, so that pipes keep their readers.
    kept: Vec<OwnedFd>,
    ring: Option<RecordRingProducer>,
    qps: Vec<HostileQp>,
    /// Places of queues: segment, offset, length.
    places: Vec<(usize, usize, usize)>,
    lkey: u32,
    rkey: u32,
    urma: UrmaNumbers,
}

/// What a hostile program has of URMA.
#[derive(Default)]
struct UrmaNumbers {
    posts: Option<RecordRingProducer>,
    doorbell: u32,
    jfr: u32,
    jetty: u32,
    token_id: u32,
    segment: u32,
    target: u32,
}

impl AsMut<Session> for Hostile {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Hostile {
    /// A program that has said hello; `None`: it is refused, for want of descriptors.
    fn connect(host: &mut Host, uid: u32) -> Option<Hostile> {
        let session = Session::admit(host, ClientProcess { pid: 0, uid }).ok()?;
        let mut program = Hostile {
            session,
            segments: Vec::new(),
            kept: Vec::new(),
            ring: None,
            qps: Vec::new(),
            places: Vec::new(),
            lkey: 0,
            rkey: 0,
            urma: UrmaNumbers::default(),
        };
        program.ask(host, Request::Hello { program: "fuzz".into() }, Vec::new());
        Some(program)
    }

    /// Carries out a request, and notes what the reply brings.
    fn ask(&mut self, host: &mut Host, request: Request, fds: Vec<OwnedFd>) -> Option<Response> {
        let fds = self.session.foreign(host, fds);
        let wants_ring = matches!(request, Request::CmCommandRing);
        let wants_posts = matches!(request, Request::UrmaOpen { .. });
        let (Reply { new_segments, result }, mut fds) = self.session.answer(host, request, fds)?;
        let at = fds.len() - new_segments as usize;
        for fd in fds.split_off(at) {
            self.segments.push(Arc::new(Segment::map(fd).expect("a segment")));
        }
        if wants_ring && let Some(fd) = fds.pop() {
            self.ring = RecordRingProducer::new(Segment::map(fd).expect("a ring")).ok();
        }
        if wants_posts && let Some(fd) = fds.pop() {
            self.urma.posts = RecordRingProducer::new(Segment::map(fd).expect("a ring")).ok();
        }
        self.kept.extend(fds);
        self.kept.truncate(KEPT_MAX);
        let response = result.ok()?;
        self.note(&response);
        Some(response)
    }

    fn note(&mut self, response: &Response) {
        match response {
            Response::Qps(made) => {
                for grant in made {
                    let qp = HostileQp { qp: grant.qp, qpn: grant.qpn, sq: grant.sq, doorbell: grant.doorbell };
                    self.qps.push(qp);
                    self.note_queue(grant.sq);
                    grant.rq.iter().for_each(|rq| self.note_queue(*rq));
                }
            }
            Response::Cq { ring, .. } | Response::CqResized { ring, .. } => {
                self.places.push((
                    ring.place.segment as usize,
                    ring.place.offset as usize,
                    256 + 64 * ring.entries as usize,
                ));
            }
            Response::Srq { queue, .. } => self.note_queue(*queue),
            Response::Mr { lkey, rkey, .. } => (self.lkey, self.rkey) = (*lkey, *rkey),
            Response::UrmaOpened { doorbell, .. } => self.urma.doorbell = *doorbell,
            _ => {}
        }
    }

    fn note_queue(&mut self, queue: QueuePlace) {
        let len = QUEUE_HEADER_BYTES + queue.entries as usize * queue.stride as usize;
        self.places.push((queue.place.segment as usize, queue.place.offset as usize, len));
    }

    /// Opens a context with registered memory, a completion queue and a queue pair.
    fn open(&mut self, host: &mut Host, device: u32) {
        self.ask(host, Request::OpenContext { device }, Vec::new());
        self.ask(host, Request::AllocPd, Vec::new());
        let pieces = vec![MrPiece { addr: BASE, len: MEMORY, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let region = Request::RegMr { pd: 0, addr: BASE, len: MEMORY, iova: BASE, access, pieces, replaces: None };
        self.ask(host, region, vec![memfd(true)]);
        let cq = CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 };
        self.ask(host, Request::CreateCq(cq), Vec::new());
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        let init = QpInitAttr { pd: 0, qp_type: QpType::Rc, send_cq: 0, recv_cq: 0, srq: None, cap };
        let names = vec![QpCookies { cookie: 0, event_cookie: 0 }];
        self.ask(host, Request::CreateQp { init, names }, Vec::new());
    }

    /// A call that makes an object of URMA: its number.
    fn make(&mut self, host: &mut Host, call: UrmaCall) -> u32 {
        match self.ask(host, Request::UrmaCall(call), Vec::new()) {
            Some(Response::UrmaDone(UrmaAnswer::Number(number))) => number,
            _ => 0,
        }
    }

    /// Opens the node of `address`, with a Jetty, and a segment of its memory.
    fn open_urma(&mut self, host: &mut Host, address: [u8; 4]) {
        self.ask(host, Request::UrmaOpen { eid: eid(address) }, Vec::new());
        self.ask(host, Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 1, vector: 0 }), Vec::new());
        let jfc = self.make(host, UrmaCall::CreateJfc { cq: 1 });
        self.urma.jfr =
            self.make(host, UrmaCall::CreateJfr { jfc, depth: 8, token: None, rnr_timer: 1, is_unreliable: false });
        let jetty = UrmaJettyAttr { mode: 1, jfc, jfr: Some(self.urma.jfr), depth: 8, ..UrmaJettyAttr::default() };
        self.urma.jetty = self.make(host, UrmaCall::CreateJetty(jetty));
        let segment = UrmaCall::RegisterSegment { mr: 0, addr: BASE, len: MEMORY, token: Some(5), access: 14 };
        self.urma.token_id = self.make(host, segment);
    }

    /// Imports a segment and a Jetty of the program at `address`.
    fn import(&mut self, host: &mut Host, (token_id, id): (u32, u32), address: [u8; 4]) {
        let eid = eid(address);
        let segment = UrmaCall::ImportSegment { eid, token_id, addr: BASE, len: MEMORY, token: Some(5) };
        self.urma.segment = self.make(host, segment);
        self.urma.target = self.make(host, UrmaCall::ImportJetty { eid, id, kind: 1, token: None });
    }

    /// Writes a record into the ring for posts: of the fuzzer's fields, or of its bytes.
    fn post_urma(&mut self, tape: &mut Tape<'_>) {
        let UrmaNumbers { jfr, jetty, token_id, segment, target, doorbell, .. } = self.urma;
        let Some(posts) = self.urma.posts.as_mut().filter(|posts| posts.has_room(1)) else { return };
        let number = |tape: &mut Tape<'_>, usual: u32| match tape.byte() {
            0..=223 => usual,
            224..=239 => URMA_NONE,
            _ => tape.limit(),
        };
        let near = |tape: &mut Tape<'_>| BASE + u64::from(tape.half()) + if tape.byte() % 16 == 0 { MEMORY } else { 0 };
        let shape = tape.byte();
        if shape >= 240 {
            let len = usize::from(tape.half()) % RECORD_BYTES_MAX;
            posts.write(tape.take(len));
        } else {
            let (is_receive, opcode, inline_len) = (shape % 4 == 0, tape.byte(), tape.byte());
            let usual = [0, 1, 3, 4, 5, 6, 7, 8, 0xb, 0xf][usize::from(opcode) % 10];
            let post = UrmaPost {
                kind: if is_receive { UrmaPost::RECEIVE } else { UrmaPost::SEND },
                opcode: if opcode < 240 { usual } else { opcode },
                flags: tape.byte(),
                hint: tape.byte(),
                inline_len,
                order: tape.byte() % 4,
                queue: number(tape, if is_receive { jfr } else { jetty }),
                target: number(tape, target),
                segment: number(tape, segment),
                token_id: number(tape, token_id),
                len: tape.limit(),
                notify_segment: number(tape, segment),
                addr: near(tape),
                user_ctx: tape.long(),
                remote_addr: near(tape),
                operand: tape.long(),
                swap: tape.long(),
                immediate: tape.long(),
                notify_addr: near(tape),
            };
            let data = tape.take(usize::from(inline_len).min(RECORD_BYTES_MAX - UrmaPost::BYTES));
            posts.write(&[&post.to_bytes()[..], data].concat());
        }
        if posts.post() {
            self.ring(doorbell);
        }
    }

    /// Moves its first queue pair to RTS, connected with `peer` at `address`.
    fn join(&mut self, host: &mut Host, peer: u32, address: [u8; 4]) {
        let Some(qp) = self.qps.first().copied() else { return };
        let dgid = burst_base::gid::gid_of(address.into());
        let attr = QpAttr {
            qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            path_mtu: Mtu::B1024,
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(1),
            dest_qpn: Qpn::new(peer),
            ah: AhAttr { dgid, hop_limit: 64, is_global: true, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            port_num: 1,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            ..QpAttr::default()
        };
        let steps = [
            (QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
            (QpState::Rtr, m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER),
            (QpState::Rts, m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC),
        ];
        for (qp_state, mask) in steps {
            let attr = QpAttr { qp_state, ..attr };
            self.ask(host, Request::ModifyQp { qp: qp.qp, attr, mask: mask | m::STATE }, Vec::new());
        }
    }

    /// A word of its shared memory; `None` outside of the segments.
    fn word(&self, segment: usize, at: usize) -> Option<&AtomicU64> {
        let segment = self.segments.get(segment)?;
        let at = at / 8 * 8;
        // SAFETY: inside the segment and aligned, checked here; all accesses to shared memory are atomic.
        (at + 8 <= segment.len()).then(|| unsafe { AtomicU64::from_ptr(segment.base().as_ptr().add(at).cast()) })
    }

    /// Writes half a word into a queue, often into its header.
    fn scribble(&self, tape: &mut Tape<'_>) {
        let Some(&(segment, offset, len)) = self.places.get(usize::from(tape.byte()) % self.places.len().max(1)) else {
            return;
        };
        let at = match tape.byte() {
            near @ 0..=127 => usize::from(near) * 4,
            _ => usize::from(tape.half()) * 4,
        };
        let at = offset + at % len.max(8);
        let Some(word) = self.word(segment, at) else { return };
        let (value, shift) = (u64::from(tape.limit()), if at % 8 >= 4 { 32 } else { 0 });
        word.store(word.load(Relaxed) & !(0xffff_ffff << shift) | value << shift, Relaxed);
    }

    /// Posts a work request of the fuzzer's fields to a queue pair, and rings.
    fn post(&self, tape: &mut Tape<'_>, peer_key: u32) {
        let Some(qp) = self.qps.get(usize::from(tape.byte()) % self.qps.len().max(1)) else { return };
        let (segment, queue) = (qp.sq.place.segment as usize, qp.sq.place.offset as usize);
        let Some(header) = self.word(segment, queue) else { return };
        let producer = header.load(Relaxed) as u32;
        let slot = queue + QUEUE_HEADER_BYTES + (producer & (qp.sq.entries - 1)) as usize * qp.sq.stride as usize;
        let key = |tape: &mut Tape<'_>, key: u32| u64::from(if tape.byte() % 16 == 0 { tape.word() } else { key });
        let near = |tape: &mut Tape<'_>| BASE + u64::from(tape.half()) + if tape.byte() % 16 == 0 { MEMORY } else { 0 };
        let kind = u64::from(tape.byte()) | u64::from(tape.byte() % 4) << 8 | u64::from(tape.byte()) << 16;
        let words = [
            tape.long(),
            kind | key(tape, peer_key) << 32,
            near(tape),
            key(tape, peer_key) | u64::from(tape.limit()) << 32,
            1,
            2,
            u64::from(tape.word()),
            0,
            near(tape),
            u64::from(tape.limit()) | key(tape, self.lkey) << 32,
            near(tape),
            u64::from(tape.byte()) | key(tape, self.lkey) << 32,
        ];
        for (i, value) in words.iter().enumerate() {
            if let Some(word) = self.word(segment, slot + i * 8) {
                word.store(*value, Relaxed);
            }
        }
        header.store(u64::from(producer.wrapping_add(1)), Relaxed);
        self.ring(qp.doorbell);
    }

    fn ring(&self, doorbell: u32) {
        let Some(segment) = self.segments.first() else { return };
        let page = Area::new(segment, 0, size_of::<ContextPage>()).and_then(Doorbells::new);
        page.iter().for_each(|bells| bells.ring(0, doorbell));
    }

    /// Writes a record of the input's bytes into the ring for commands.
    fn command(&mut self, host: &mut Host, tape: &mut Tape<'_>) {
        let Some(ring) = &mut self.ring else {
            self.ask(host, Request::CmCommandRing, Vec::new());
            return;
        };
        let record = tape.take(usize::from(tape.0.first().copied().unwrap_or(0)) % RECORD_BYTES_MAX);
        if ring.has_room(1) {
            ring.write(record.get(1..).unwrap_or(&[]));
            let _ = ring.post();
        }
    }
}

/// The daemon, its programs and the time.
pub struct World {
    time: Arc<AtomicU64>,
    host: Host,
    upkeep: Upkeep,
    programs: [Hostile; 2],
    forged: [Forged; 2],
    /// Packets of the bus.
    bus: Bus,
    /// Descriptors are few.
    limit: Option<DescriptorLimit>,
}

/// User ids of the hostile programs.
const UIDS: [u32; 2] = [70_001, 70_002];

impl World {
    /// A daemon with two programs that are connected.
    pub fn new() -> World {
        let time = Arc::new(AtomicU64::new(1_000_000_000));
        let (forged, bus) = (<[Forged; 2]>::default(), Bus::default());
        let mut host = host(&time, &forged, &bus);
        let programs = UIDS.map(|uid| Hostile::connect(&mut host, uid).expect("admitted"));
        let upkeep = Upkeep::without_events(host.now());
        World { time, host, upkeep, programs, forged, bus, limit: None }
    }

    /// Both programs open everything, and connect with each other.
    pub fn join(&mut self) {
        for (device, program) in self.programs.iter_mut().enumerate() {
            program.open(&mut self.host, device as u32);
        }
        let numbers = [0, 1].map(|at: usize| self.programs[at].qps.first().map_or(0, |qp| qp.qpn));
        for at in 0..2 {
            self.programs[at].join(&mut self.host, numbers[1 - at], ADDRESSES[1 - at]);
            self.programs[at].open_urma(&mut self.host, ADDRESSES[at]);
        }
        let theirs = [0, 1].map(|at: usize| (self.programs[at].urma.token_id, self.programs[at].urma.jetty));
        for at in 0..2 {
            self.programs[at].import(&mut self.host, theirs[1 - at], ADDRESSES[1 - at]);
        }
    }

    /// Some passes of the worker.
    pub fn work(&self) {
        for _ in 0..4 {
            self.time.fetch_add(10_000, Relaxed);
            self.host.workers()[0].turn().expect("alive");
        }
    }

    fn restart(&mut self, at: usize) {
        self.programs[at].session.end(&mut self.host);
        // The program itself needs some, too.
        set_limit(None);
        self.programs[at] = Hostile::connect(&mut self.host, UIDS[at]).expect("admitted");
        self.limit.iter().for_each(DescriptorLimit::set);
    }

    fn request(&mut self, at: usize, tape: &mut Tape<'_>) {
        set_limit(None);
        let fds = (0..tape.byte() % 4).map(|_| foreign(tape.byte())).collect();
        self.limit.iter().for_each(DescriptorLimit::set);
        match postcard::take_from_bytes::<Request>(tape.0) {
            Ok((request, rest)) => {
                tape.0 = rest;
                self.programs[at].ask(&mut self.host, request, fds);
            }
            Err(_) => drop(tape.byte()),
        }
    }

    /// One action of the input.
    pub fn step(&mut self, tape: &mut Tape<'_>) {
        let action = tape.byte();
        let at = usize::from(action >> 7);
        match action & 0x7f {
            0..=63 => self.request(at, tape),
            64..=79 => self.programs[at].scribble(tape),
            80..=95 => {
                let key = self.programs[1 - at].rkey;
                self.programs[at].post(tape, key);
            }
            96 | 97 => self.programs[at].ring(tape.limit()),
            98 | 99 => (0..=tape.byte() % 8).for_each(|_| self.programs[at].post_urma(tape)),
            100..=107 => self.programs[at].command(&mut self.host, tape),
            108 | 109 => self.forge(at, tape),
            110 | 111 => {
                if self.programs[at].session.receive_commands(&mut self.host).is_err() {
                    self.restart(at);
                }
            }
            112..=119 => self.work(),
            120..=123 => {
                self.time.fetch_add(u64::from(tape.half()) << (tape.byte() % 24), Relaxed);
                self.upkeep.run(&mut self.host, self.programs.as_mut_slice(), tape.byte() & 1 == 1);
            }
            124 | 125 => self.programs[at].session.fail_queue_pairs(&mut self.host),
            _ => self.restart(at),
        }
    }

    /// Packets to a queue pair of a device, or to its QP1, in the name of the other device or of a third host.
    fn forge(&self, at: usize, tape: &mut Tape<'_>) {
        let shape = tape.byte();
        let qpn = match shape % 8 {
            0 => 1,
            1 => tape.word(),
            _ => self.programs[at].qps.first().map_or(1, |qp| qp.qpn),
        };
        let src = if shape >= 250 { IpAddr::from([10, 0, 0, 66]) } else { ADDRESSES[1 - at].into() };
        let flow = Flow { src, dst: ADDRESSES[at].into(), ..Flow::default() };
        let (opcode, flags, psn, asked) = (tape.byte(), tape.byte(), u32::from(tape.byte()), tape.byte() & 0x80);
        // The region's address and key stand where RETH, WETH and AtomicETH have them, in one of four places.
        let mut behind = tape.take(usize::from(tape.0.first().copied().unwrap_or(0)) * 4).to_vec();
        let place = usize::from(shape >> 3 & 3) * 4;
        if shape & 4 == 4 && behind.len() >= place + 12 {
            let offset = u64::from(behind[place]) << 8;
            behind[place..place + 8].copy_from_slice(&(BASE + offset).to_be_bytes());
            behind[place + 8..place + 12].copy_from_slice(&self.programs[at].rkey.to_be_bytes());
        }
        behind.resize(behind.len() + usize::from(tape.byte()) * 16, 0x5a);
        let count = if tape.byte() & 3 == 3 { 2 + u32::from(tape.byte() % 30) } else { 1 };
        let packets = (0..count).map(|number| {
            let [_, psn @ ..] = psn.wrapping_add(number).to_be_bytes();
            let [_, qpn @ ..] = qpn.to_be_bytes();
            let bth = [opcode, flags & 0xf0, 0xff, 0xff, 0, qpn[0], qpn[1], qpn[2], asked, psn[0], psn[1], psn[2]];
            [&bth[..], &behind].concat()
        });
        self.forged[at].lock().expect("one thread").push((flow, packets.collect()));
    }

    /// A program of another user is served as if it were alone.
    pub fn check_honest(&mut self) {
        let mut honest = Hostile::connect(&mut self.host, 70_003).expect("admitted");
        honest.open(&mut self.host, 0);
        assert_eq!((honest.qps.len(), honest.places.len(), honest.segments.len()), (1, 3, 1), "not served");
        assert_ne!(honest.lkey, 0);
        honest.session.end(&mut self.host);
    }

    /// Lets the time pass in which connections that have ended are forgotten: their peers do not answer, and TIMEWAIT.
    fn forget_connections(&mut self) {
        /// The greatest time between two passes, and how many there are at most.
        const JUMP_NS: u64 = 250_000_000;
        const JUMPS_MAX: u32 = 1000;
        self.host.post_cm_jobs();
        for _ in 0..JUMPS_MAX {
            self.work();
            let mut numbers = self.host.cm_stats().numbers.into_iter();
            if numbers.any(|(name, count)| name == "connections" && count == 0) {
                return;
            }
            self.time.fetch_add(JUMP_NS, Relaxed);
        }
    }

    /// Ends all programs; nothing may be left.
    pub fn end(mut self) {
        for program in &mut self.programs {
            program.session.end(&mut self.host);
        }
        self.forget_connections();
        let World { host, programs, .. } = self;
        assert_eq!(host.contexts.taken(), 0);
        drop(programs);
        for account in host.ledger.uses(host.now().0) {
            let left =
                account.resources.iter().filter(|r| r.used != 0 && r.resource != burst_ledger::Resource::Descriptor);
            assert_eq!(left.count(), 0, "{account:?}");
        }
    }
}

/// A limit of descriptors, until it is dropped.
#[derive(Debug)]
struct DescriptorLimit {
    most: u64,
}

impl DescriptorLimit {
    /// So many more than are open.
    fn at(more: u64) -> Self {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let limit = Self { most: open + more };
        limit.set();
        limit
    }

    fn set(&self) {
        set_limit(Some(self.most));
    }
}

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        set_limit(None);
    }
}

/// Sets the soft limit of descriptors; `None`: as many as there may be.
fn set_limit(most: Option<u64>) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = most.or(maximum);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("below the hard limit");
}
