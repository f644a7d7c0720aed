//! Two queue pairs over an in-memory link in virtual time: the harness of the transport's tests.
//!
//! [`End`] is one host: a queue pair, the application's ends of its queues, a memory region table, and everything the
//! protocol reported ([`RecordedEffects`]). [`Pair`] joins two ends by a [`Link`] that can lose, repeat, delay and reorder
//! packets, with one seeded generator. [`Pair::run`] plays events in time order until nothing is left to do before a given time.
#![allow(dead_code)]

pub mod shuffled;

use burst_base::rng::Rng;
use burst_base::verbs::{
    EventType, Mtu, MwType, QpAttr, QpCap, QpState, QpType, WcStatus, WrOpcode, access, attr_mask as m, send_flags,
};
use burst_base::{Lkey, Nanos, Psn, Qkey, Qpn, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_mem::{KeySpace, MapPiece, MrTable, Region, Window};
use burst_shm::layout::{Cqe, SendWqe, Sge};
use burst_shm::paired;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use burst_transport::{
    AckReport, CopyExecutor, Effects, Env, HostPressure, Qp, QpConfig, RecordPool, RecvQueue, Signal, TxBudget,
    TxState, XrcSrq,
};
use burst_wire::{Opcode, Packet};
use shuffled::Shuffled;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::Arc;

pub const PD: u32 = 7;
pub const SEND_CQ: u32 = 1;
pub const RECV_CQ: u32 = 2;
/// XRC domain of targets.
pub const DOMAIN: u32 = 5;
pub const QKEY: Qkey = Qkey(0x1234);
pub const ALL_RIGHTS: u32 =
    access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::MW_BIND;

const UC_RTR: u32 = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;

/// The effects of a queue pair's calls.
pub struct RecordedEffects {
    pub sends: Vec<Cqe>,
    pub receives: Vec<(Cqe, bool)>,
    /// Completion queues of `receives`.
    pub receive_cqs: Vec<u32>,
    pub events: Vec<EventType>,
    pub signals: Vec<Signal>,
    counts: [u32; Reason::COUNT],
    pub ah: Option<Flow>,
    /// Shared receive queues of XRC domains, by number.
    pub srqs: Vec<(u32, XrcSrq)>,
    /// Records of selective repeat.
    pub records: RecordPool,
    /// Times that the peer refused selective repeat.
    pub refused: u32,
    /// What acknowledgements of selective repeat said of the path.
    pub reports: Vec<AckReport>,
    /// Pressure on the receive buffers of this end.
    pub pressure: HostPressure,
    /// The sum of [`Effects::unacknowledged`] in this call.
    unacknowledged: i64,
    /// Who places the bytes, if not the calls themselves.
    pub copies: Option<Shuffled>,
}

impl RecordedEffects {
    pub fn count_of(&self, reason: Reason) -> u32 {
        self.counts[reason.index()]
    }
    /// Reasons counted so far, with their numbers.
    pub fn reasons(&self) -> Vec<(Reason, u32)> {
        Reason::ALL.iter().map(|r| (*r, self.counts[r.index()])).filter(|(_, n)| *n > 0).collect()
    }
}

impl Effects for RecordedEffects {
    fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool) {
        match cq {
            SEND_CQ => self.sends.push(cqe),
            _ => {
                self.receives.push((cqe, solicited));
                self.receive_cqs.push(cq);
            }
        }
    }
    fn event(&mut self, _qpn: Qpn, event: EventType) {
        self.events.push(event);
    }
    fn count(&mut self, reason: Reason) {
        self.counts[reason.index()] += 1;
    }
    fn ah_flow(&self, pd: u32, _ah: u32) -> Option<Flow> {
        assert_eq!(pd, PD);
        self.ah
    }
    fn xrc_srq(&self, domain: u32, srqn: u32) -> Option<&XrcSrq> {
        self.srqs.iter().find(|(n, srq)| *n == srqn && srq.domain == domain).map(|(_, srq)| srq)
    }
    fn congestion(&mut self, signal: Signal) {
        self.signals.push(signal);
    }
    fn records(&mut self) -> Option<&mut RecordPool> {
        Some(&mut self.records)
    }
    fn copies(&mut self) -> Option<&mut dyn CopyExecutor> {
        self.copies.as_mut().map(|copies| copies as &mut dyn CopyExecutor)
    }
    fn selective_refused(&mut self) {
        self.refused += 1;
    }
    fn acknowledged(&mut self, report: &AckReport) {
        self.reports.push(*report);
    }
    fn unacknowledged(&mut self, bytes: i64) {
        self.unacknowledged += bytes;
    }
    fn host_pressure(&self) -> HostPressure {
        self.pressure
    }
}

/// Parameters of an [`End`].
#[derive(Clone, Copy)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub cap: QpCap,
    pub memory: usize,
    /// Attributes of RTR and RTS.
    pub attr: QpAttr,
    pub window: u64,
    /// Window of the selective repeat family, which both ends use; 0: they use the standard family.
    pub selective: u32,
    /// Both ends acknowledge READ responses.
    pub read_acks: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            qp_type: QpType::Rc,
            mtu: Mtu::B1024,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 32, max_recv_sge: 32, max_inline_data: 256 },
            memory: 1 << 20,
            attr: QpAttr {
                rq_psn: Psn::new(100),
                sq_psn: Psn::new(100),
                qp_access_flags: ALL_RIGHTS,
                qkey: QKEY,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
                timeout: 10,
                retry_cnt: 7,
                rnr_retry: 7,
                port_num: 1,
                ..QpAttr::default()
            },
            window: 1 << 20,
            selective: 0,
            read_acks: false,
        }
    }
}

/// One host.
pub struct End {
    pub qp: Qp,
    pub sq: SqProducer,
    pub rq: RqProducer,
    pub mem: MrTable,
    pub keys: KeySpace,
    pub fx: RecordedEffects,
    pub tx: TxBatch,
    pub ip: IpAddr,
    pub lkey: u32,
    pub window: u64,
    pub last: TxState,
    /// Packets that were executed together with others.
    pub carried: u64,
    /// How long received packets have waited in the port.
    pub waited: Nanos,
    /// Bytes in flight after the last call, and those that were acknowledged.
    inflight_seen: u64,
    pub acked_bytes: u64,
}

/// A request that binds `len` bytes from address 0 of a region.
pub fn bind(window: u32, rkey: u32, lkey: u32, len: u64) -> SendWqe {
    let rights = access::REMOTE_WRITE | access::REMOTE_READ;
    SendWqe {
        opcode: WrOpcode::BindMw as u8,
        flags: send_flags::SIGNALED as u16,
        imm: window,
        rkey,
        compare_add: len,
        swap: u64::from(lkey) << 32 | u64::from(rights),
        ..SendWqe::default()
    }
}

pub fn ip_of(index: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, index))
}

pub fn qpn_of(index: u8) -> Qpn {
    Qpn::new(0x100 + u32::from(index))
}

/// A region of zeroed memory, mapped as the daemon maps an application's memory. Its addresses begin at 0.
fn region(keys: &mut KeySpace, pd: u32, len: usize, rights: u32) -> Arc<Region> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&fd, len as u64).expect("size");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seal");
    let piece = MapPiece { fd: fd.as_fd(), offset: 0, len: len as u64 };
    let mapping = Region::map(&[piece], rights).expect("map");
    let key = keys.alloc().expect("key");
    Arc::new(Region::new(key, pd, 0, len as u64, rights, mapping))
}

/// A shared receive queue of [`DOMAIN`] for the targets of `end`, whose requests access the memory of protection domain `pd`.
pub fn xrc_queue(end: &mut End, srqn: u32, pd: u32, (entries, sges): (u32, u32)) -> RqProducer {
    let (app, queue) = paired::srq(entries, sges);
    end.fx.srqs.push((srqn, XrcSrq { domain: DOMAIN, pd, cq: 10 + srqn, queue: Arc::new(queue) }));
    app
}

impl End {
    /// End number `index` in RESET, with `setup.memory` bytes of memory registered with all rights.
    pub fn new(index: u8, setup: &Setup) -> End {
        let (sq, sq_consumer) = paired::sq(setup.cap.max_send_wr, setup.cap.max_send_sge, setup.cap.max_inline_data);
        let (rq, rq_consumer) = paired::rq(setup.cap.max_recv_wr, setup.cap.max_recv_sge);
        let mut seeded = Rng::new(0xb0 + u64::from(index));
        let mut keys = KeySpace::new(Box::new(move || seeded.next_u64()));
        let mut mem = MrTable::new(keys.cipher());
        let main = region(&mut keys, PD, setup.memory, ALL_RIGHTS);
        let lkey = main.key;
        assert!(mem.insert(main));
        let mut qp = Qp::new(QpConfig {
            qpn: qpn_of(index),
            qp_type: setup.qp_type,
            pd: PD,
            send_cq: SEND_CQ,
            recv_cq: RECV_CQ,
            cookie: 0xc00c1e,
            cap: setup.cap,
            port_mtu: setup.mtu,
            sq: sq_consumer,
            rq: match setup.qp_type {
                QpType::XrcRecv => RecvQueue::Xrc { domain: DOMAIN },
                _ => RecvQueue::Own(rq_consumer),
            },
        });
        qp.accept_selective(setup.selective > 0);
        qp.use_selective(setup.selective);
        qp.use_read_acks(setup.read_acks);
        let fx = RecordedEffects {
            sends: Vec::new(),
            receives: Vec::new(),
            receive_cqs: Vec::new(),
            events: Vec::new(),
            signals: Vec::new(),
            counts: [0; Reason::COUNT],
            ah: None,
            srqs: Vec::new(),
            records: RecordPool::default(),
            refused: 0,
            reports: Vec::new(),
            pressure: HostPressure::default(),
            unacknowledged: 0,
            copies: None,
        };
        let (ip, window) = (ip_of(index), setup.window);
        End {
            qp,
            sq,
            rq,
            mem,
            keys,
            fx,
            tx: TxBatch::new(64),
            ip,
            lkey,
            window,
            last: TxState::Idle,
            carried: 0,
            waited: Nanos(0),
            inflight_seen: 0,
            acked_bytes: 0,
        }
    }

    /// Counts what the last call has acknowledged, as an engine does for its congestion control.
    fn count_acked(&mut self) {
        let inflight = self.qp.inflight_bytes() as i64;
        let left = self.inflight_seen as i64 - std::mem::take(&mut self.fx.unacknowledged);
        assert!(left >= 0, "{left} bytes in flight before what is acknowledged");
        self.acked_bytes += (left - inflight).max(0) as u64;
        self.inflight_seen = inflight as u64;
    }

    /// Registers another region.
    pub fn register(&mut self, len: usize, rights: u32) -> u32 {
        self.register_in(PD, len, rights)
    }

    /// Registers another region in this protection domain.
    pub fn register_in(&mut self, pd: u32, len: usize, rights: u32) -> u32 {
        let region = region(&mut self.keys, pd, len, rights);
        let key = region.key;
        assert!(self.mem.insert(region));
        key
    }

    /// A memory window of type 2, closed.
    pub fn window(&mut self) -> u32 {
        self.window_of(MwType::Two)
    }

    /// A memory window, closed.
    pub fn window_of(&mut self, mw_type: MwType) -> u32 {
        let key = self.keys.alloc().expect("key");
        assert!(self.mem.insert_window(Arc::new(Window::new(key, PD, mw_type))));
        key
    }

    /// Moves the queue pair through INIT and RTR to `to`, connected to end `peer`.
    pub fn bring_up(&mut self, peer: u8, setup: &Setup, to: QpState) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.advance(peer, setup, state);
            if state == to {
                return;
            }
        }
    }

    /// The last step of [`End::bring_up`].
    pub fn bring_up_from_rtr(&mut self, peer: u8, setup: &Setup) {
        self.advance(peer, setup, QpState::Rts);
    }

    fn advance(&mut self, peer: u8, setup: &Setup, to: QpState) {
        let connected = setup.qp_type != QpType::Ud;
        let sends = matches!(setup.qp_type, QpType::Rc | QpType::XrcSend);
        let receives = matches!(setup.qp_type, QpType::Rc | QpType::XrcRecv);
        let mask = match to {
            QpState::Init if connected => m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS,
            QpState::Init => m::PKEY_INDEX | m::PORT | m::QKEY,
            QpState::Rtr if receives => UC_RTR | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER,
            QpState::Rtr if connected => UC_RTR,
            QpState::Rts if sends => m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC,
            QpState::Rts if receives => m::TIMEOUT | m::SQ_PSN,
            QpState::Rts => m::SQ_PSN,
            _ => 0,
        };
        let attr = QpAttr { qp_state: to, dest_qpn: qpn_of(peer), path_mtu: setup.mtu, ..setup.attr };
        self.modify(&attr, mask | m::STATE, peer).expect("legal transition");
    }

    /// `modify` with a flow to end `peer`.
    pub fn modify(&mut self, attr: &QpAttr, mask: u32, peer: u8) -> Result<(), burst_transport::ModifyError> {
        let flow = Flow { src: self.ip, dst: ip_of(peer), ..Flow::default() };
        self.fx.ah = Some(flow);
        let mut env = Env { now: Nanos(0), waited: Nanos(0), mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.qp.modify(attr, mask, Some(flow), &mut env)
    }

    /// Moves to another state without attributes.
    pub fn move_to(&mut self, state: QpState) {
        self.modify(&QpAttr { qp_state: state, ..QpAttr::default() }, m::STATE, 0).expect("legal transition");
    }

    pub fn write_memory(&self, addr: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            let span = self.mem.local(PD, Lkey(self.lkey), addr, bytes.len() as u32, 0).expect("inside");
            span.write_from(bytes).expect("mapped");
        }
    }

    pub fn read_memory(&self, addr: u64, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let span = self.mem.local(PD, Lkey(self.lkey), addr, bytes.len() as u32, 0).expect("inside");
            span.read_to(bytes).expect("mapped");
        }
    }

    pub fn memory(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_memory(addr, &mut bytes);
        bytes
    }

    pub fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.lkey }
    }

    /// Posts a send request.
    pub fn post(&mut self, wqe: &SendWqe, sges: &[Sge]) {
        self.sq.write(wqe, sges).expect("room");
        if self.sq.post() {
            self.qp.on_doorbell();
        }
    }

    pub fn post_inline(&mut self, wqe: &SendWqe, data: &[u8]) {
        self.sq.write_inline_bytes(wqe, data).expect("room");
        if self.sq.post() {
            self.qp.on_doorbell();
        }
    }

    pub fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) {
        self.rq.write(wr_id, sges).expect("room");
        if self.rq.post() {
            self.qp.on_doorbell();
        }
    }

    /// One turn. The frames stay in `tx`.
    pub fn poll(&mut self, now: Nanos, budget: &mut TxBudget) -> TxState {
        self.qp.allow_responses(self.window.saturating_sub(self.qp.response_bytes()));
        let mut env = Env { now, waited: Nanos(0), mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.last = self.qp.poll_tx(budget, &mut env);
        self.count_acked();
        self.last
    }

    /// Runs turns until the queue pair wants none, and returns the packets.
    pub fn drain(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for _ in 0..10_000 {
            if !self.qp.wants_tx() {
                return out;
            }
            let room = self.window.saturating_sub(self.qp.inflight_bytes());
            self.poll(now, &mut TxBudget { wqes: 8, bytes: 16 << 10, window_bytes: room });
            for frame in self.tx.frames() {
                let mut bytes = Vec::new();
                frame_bytes(&self.tx, frame, &mut bytes);
                out.push(bytes);
            }
            self.tx.clear();
        }
        panic!("wants to send for ever: {:?}", self.last);
    }

    /// A packet arrives from `src`.
    pub fn receive_from(&mut self, now: Nanos, src: IpAddr, bytes: &[u8]) {
        self.receive_from_port(now, src, Flow::default().src_port, bytes);
    }

    /// A packet arrives from this address and UDP source port.
    pub fn receive_from_port(&mut self, now: Nanos, src: IpAddr, src_port: u16, bytes: &[u8]) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(reason) => return self.fx.count(reason),
        };
        let frame = RxFrame { flow: Flow { src, src_port, dst: self.ip, ..Flow::default() }, bytes };
        let mut env = Env { now, waited: self.waited, mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.qp.on_packet(&frame, &packet, &mut env);
        self.count_acked();
    }

    /// Packets of one length arrive from `src` side by side, as a port hands over a train.
    pub fn receive_train(&mut self, now: Nanos, src: IpAddr, packets: &[Vec<u8>]) {
        let Some(stride) = packets.first().map(|packet| packet.len() + burst_wire::ICRC_LEN) else { return };
        let bytes: Vec<u8> =
            packets.iter().flat_map(|packet| packet.iter().chain(&[0xcc; burst_wire::ICRC_LEN])).copied().collect();
        let flow = Flow { src, dst: self.ip, ..Flow::default() };
        let mut at = 0;
        while at < packets.len() {
            let train = burst_transport::MiddleRun { bytes: &bytes[at * stride..], stride };
            let mut env = Env { now, waited: self.waited, mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
            let taken = self.qp.on_middles(&flow, &train, &mut env);
            self.carried += taken as u64;
            self.count_acked();
            if taken == 0 {
                self.receive_from(now, src, &packets[at]);
            }
            at += taken.max(1);
        }
    }

    pub fn fire(&mut self, now: Nanos) {
        let mut env = Env { now, waited: Nanos(0), mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.qp.on_timer(&mut env);
        self.count_acked();
    }

    /// Has its bytes placed by an executor. Before [`End::bring_up`].
    pub fn use_copies(&mut self, executor: Shuffled) {
        self.qp.use_copies().expect("memory");
        self.fx.copies = Some(executor);
    }

    /// Runs copies whose time has come, and tells the queue pair.
    pub fn run_copies(&mut self, now: Nanos) {
        let Some(copies) = &mut self.fx.copies else { return };
        copies.set_now(now);
        copies.run(now);
        self.note_copies(now);
    }

    /// Tells the queue pair how far its executor is.
    pub fn note_copies(&mut self, now: Nanos) {
        let Some(copies) = &self.fx.copies else { return };
        let progress = copies.progress();
        let mut env = Env { now, waited: Nanos(0), mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.qp.on_copies(progress, &mut env);
        self.count_acked();
    }

    /// When copies run next.
    fn next_copies(&self) -> Nanos {
        self.fx.copies.as_ref().map_or(Nanos::NEVER, Shuffled::next_at)
    }

    /// The program begins or ends a fork.
    pub fn hold_memory(&mut self, now: Nanos, hold: bool) {
        self.qp.hold_memory(now, hold);
    }

    /// A completion found its queue full.
    pub fn lose_completion(&mut self, now: Nanos) {
        let mut env = Env { now, waited: Nanos(0), mem: &self.mem, tx: &mut self.tx, fx: &mut self.fx };
        self.qp.on_lost_completion(&mut env);
    }

    /// Statuses of send completions, in order.
    pub fn statuses(&self) -> Vec<WcStatus> {
        self.fx.sends.iter().map(|c| WcStatus::from_number(u32::from(c.status)).expect("status")).collect()
    }
    pub fn receive_statuses(&self) -> Vec<WcStatus> {
        self.fx.receives.iter().map(|(c, _)| WcStatus::from_number(u32::from(c.status)).expect("status")).collect()
    }
}

/// The bytes of a frame from the BTH to the end of the padding.
pub fn frame_bytes(batch: &TxBatch, frame: &burst_frame::TxFrame, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(frame.head());
    for span in batch.spans_of(frame) {
        let at = out.len();
        out.resize(at + span.len(), 0);
        span.read_to(&mut out[at..]).expect("mapped");
    }
    out.resize(out.len() + usize::from(frame.pad), 0);
}

/// "ACK 105", "WRITE_FIRST 100 a" (a: asks for an acknowledgement): for golden sequences.
pub fn describe(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).expect("well-formed");
    let mut text = format!("{:?} {}", packet.bth.opcode, packet.bth.psn.get());
    if packet.bth.opcode == Opcode::RcAck {
        text = format!("{text} {:?}", packet.aeth().expect("AETH").syndrome);
    }
    text
}

/// Probabilities of faults of the link, in ten-thousandths.
#[derive(Clone, Copy, Default)]
pub struct LinkFaults {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    /// Longest extra delay of a reordered or repeated packet.
    pub delay_max: Nanos,
}

struct InFlight {
    at: Nanos,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for InFlight {}
impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The link: packets in flight, and a seeded generator for their faults.
pub struct Link {
    pub faults: LinkFaults,
    pub rng: Rng,
    pub latency: Nanos,
    on_way: BinaryHeap<Reverse<InFlight>>,
    number: u64,
    spare: Vec<Vec<u8>>,
    pub sent: u64,
    pub lost: u64,
    /// Says of each packet (its number from 0, the end that it goes to, its bytes) whether it is lost.
    pub drops: Option<PacketFilter>,
    /// Says of each packet, like [`Link::drops`], how much later than others it arrives.
    pub delays: Option<PacketDelay>,
}

/// See [`Link::drops`].
pub type PacketFilter = Box<dyn FnMut(u64, usize, &[u8]) -> bool>;
/// See [`Link::delays`].
pub type PacketDelay = Box<dyn FnMut(u64, usize, &[u8]) -> Nanos>;

impl Link {
    pub fn new(seed: u64, faults: LinkFaults) -> Link {
        let rng = Rng::new(seed);
        let on_way = BinaryHeap::new();
        let latency = Nanos::from_us(5);
        Link { faults, rng, latency, on_way, number: 0, spare: Vec::new(), sent: 0, lost: 0, drops: None, delays: None }
    }

    fn carry(&mut self, now: Nanos, to: usize, batch: &TxBatch) {
        for frame in batch.frames() {
            self.sent += 1;
            if let Some(drops) = &mut self.drops {
                let mut bytes = Vec::new();
                frame_bytes(batch, frame, &mut bytes);
                if drops(self.sent - 1, to, &bytes) {
                    self.lost += 1;
                    continue;
                }
            }
            if self.rng.below(10_000) < self.faults.loss {
                self.lost += 1;
                continue;
            }
            let mut late = Nanos(0);
            if let Some(delays) = &mut self.delays {
                let mut bytes = Vec::new();
                frame_bytes(batch, frame, &mut bytes);
                late = delays(self.sent - 1, to, &bytes);
            }
            let copies = 1 + u64::from(self.rng.below(10_000) < self.faults.duplication);
            for copy in 0..copies {
                let strays = copy > 0 || self.rng.below(10_000) < self.faults.reordering;
                let extra = if strays { self.rng.below(self.faults.delay_max.0 + 1) } else { 0 };
                let mut bytes = self.spare.pop().unwrap_or_default();
                frame_bytes(batch, frame, &mut bytes);
                self.number += 1;
                let at = now + self.latency + late + Nanos(extra);
                self.on_way.push(Reverse(InFlight { at, number: self.number, to, bytes }));
            }
        }
    }
}

/// Two ends and the link between them.
pub struct Pair {
    pub ends: [End; 2],
    pub link: Link,
    pub now: Nanos,
}

impl Pair {
    /// Two connected ends in RTS.
    pub fn new(setup: &Setup, seed: u64, faults: LinkFaults) -> Pair {
        Pair::of([setup; 2], seed, faults, |_| None)
    }

    /// The same; `copies` gives the executor of each end.
    pub fn with_copies(
        [a, b]: [&Setup; 2],
        seed: u64,
        faults: LinkFaults,
        copies: impl FnMut(u8) -> Option<Shuffled>,
    ) -> Pair {
        Pair::of([a, b], seed, faults, copies)
    }

    /// An XRC initiator, end 0, and its target.
    pub fn xrc(setup: &Setup, seed: u64, faults: LinkFaults) -> Pair {
        let [ini, tgt] = [QpType::XrcSend, QpType::XrcRecv].map(|qp_type| Setup { qp_type, ..*setup });
        Pair::of([&ini, &tgt], seed, faults, |_| None)
    }

    fn of(setups: [&Setup; 2], seed: u64, faults: LinkFaults, mut copies: impl FnMut(u8) -> Option<Shuffled>) -> Pair {
        let mut ends = [End::new(0, setups[0]), End::new(1, setups[1])];
        for (index, end) in ends.iter_mut().enumerate() {
            copies(index as u8).into_iter().for_each(|executor| end.use_copies(executor));
        }
        ends[0].bring_up(1, setups[0], QpState::Rts);
        ends[1].bring_up(0, setups[1], QpState::Rts);
        Pair { ends, link: Link::new(seed, faults), now: Nanos(0) }
    }

    /// Lets both ends send.
    pub fn pump(&mut self) {
        for index in 0..2 {
            for turn in 0.. {
                let end = &mut self.ends[index];
                if !end.qp.wants_tx() {
                    break;
                }
                assert!(turn < 100_000, "end {index} wants to send for ever: {:?}", end.last);
                let room = end.window.saturating_sub(end.qp.inflight_bytes());
                end.poll(self.now, &mut TxBudget { wqes: 8, bytes: 16 << 10, window_bytes: room });
                self.link.carry(self.now, 1 - index, &end.tx);
                end.tx.clear();
            }
        }
    }

    /// Time of the next event.
    pub fn next_event(&self) -> Nanos {
        let arrival = self.link.on_way.peek().map_or(Nanos::NEVER, |p| p.0.at);
        self.ends.iter().map(|end| end.qp.next_deadline().min(end.next_copies())).fold(arrival, Nanos::min)
    }

    /// Plays the next event; false when there is none before `until`.
    pub fn step(&mut self, until: Nanos) -> bool {
        self.pump();
        let next = self.next_event();
        if next > until || next == Nanos::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        let mut train = Vec::new();
        while self.link.on_way.peek().is_some_and(|p| p.0.at <= self.now) {
            let Some(Reverse(packet)) = self.link.on_way.pop() else { break };
            let (src, to, len) = (self.ends[1 - packet.to].ip, packet.to, packet.bytes.len());
            train.push(packet.bytes);
            while self.link.on_way.peek().is_some_and(|p| p.0.at <= self.now && p.0.to == to && p.0.bytes.len() == len)
            {
                let Some(Reverse(packet)) = self.link.on_way.pop() else { break };
                train.push(packet.bytes);
            }
            match &train[..] {
                [packet] => self.ends[to].receive_from(self.now, src, packet),
                packets => self.ends[to].receive_train(self.now, src, packets),
            }
            self.link.spare.append(&mut train);
        }
        for end in &mut self.ends {
            if end.qp.next_deadline() <= self.now {
                end.fire(self.now);
            }
            end.run_copies(self.now);
        }
        true
    }

    /// Plays until there are no more events, or until `until`.
    pub fn run(&mut self, until: Nanos) {
        while self.step(until) {}
        self.now = if until == Nanos::NEVER { self.now } else { self.now.max(until) };
    }

    /// Plays to the end, at most ten virtual minutes.
    pub fn settle(&mut self) {
        let until = self.now + Nanos::from_ms(600_000);
        while self.step(until) {}
        assert!(self.now < until, "does not come to rest");
    }
}
