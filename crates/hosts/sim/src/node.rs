//! A simulated host: one real worker, one program's context, and the program's ends of its queues.
//!
//! Queue pairs are made when the first flow needs them, and are used again for later flows: they go through RESET and are
//! connected to the next peer. Connections are agreed out of band, without packets and in no time, and both ends know each
//! other's hello, unless one of them is an adapter.

mod urma;

use crate::port::{SimPort, SimPortConfig, Wire, address_of};
use crate::run::PayloadMode;
use burst_base::rng::Rng;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpCap, QpState, QpType, WrOpcode, access, attr_mask, send_flags};
use burst_base::{DeviceId, Nanos, Psn, Qpn, RtoMode};
use burst_cc::CcTable;
use burst_cm::Secret;
use burst_control::events::{EventQueue, EventSink};
use burst_control::failures::FailedProgram;
use burst_engine::flow::{entropy_of, flow_of, gid_of};
use burst_engine::handover::Inbox;
use burst_engine::qpn::QpnSpace;
use burst_engine::{ContextSlot, Counters, EngineCq, QpChange, QpHolder, QpSlot, Worker, WorkerOptions};
use burst_fabric::HostId;
use burst_ledger::{Account, AccountId, Capacities, Ledger, Policy};
use burst_mem::{KeySpace, MapPiece, Mapping, MrTable, Region};
use burst_port::{Port, PortCaps};
use burst_shm::cq::CqConsumer;
use burst_shm::doorbell::Doorbells;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use burst_shm::{Cqe, SendWqe, Sge, paired};
use burst_span::Span;
use burst_transport::{ModifyError, Qp, QpConfig, RecvQueue};
use burst_wire::hello::Hello;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// The protection domain of a host's program.
const PD: u32 = 1;
/// Where the program's memory begins, in the program's own addresses.
pub const MEMORY: u64 = 0x10_0000;
const ALL_RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Entries of a host's one completion queue, beside two for each request of a queue pair. It is read after every pass, which
/// receives at most 256 packets.
const CQ_ENTRIES: u32 = 512;
/// Packets that a pass sends at most, less than a daemon's: thousands of hosts need memory for them, and a real adapter stops a
/// worker more often than once in 256 packets.
const BATCH_FRAMES: usize = 64;
/// First room of a worker's lists.
const LIST_ROOM: usize = 16;

/// Settings of all hosts of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// The port.
    pub port: SimPortConfig,
    /// Path MTU of queue pairs.
    pub mtu: Mtu,
    /// Congestion control.
    pub cc: CcTable,
    /// Whether selective repeat is used; all hosts but adapters can do it then.
    pub selective: bool,
    /// Waits of loss recovery.
    pub rto: RtoMode,
    /// Whether it stands for an adapter: neither it nor its peers know more of each other than RoCEv2 says.
    pub is_adapter: bool,
    /// `timeout` of queue pairs: 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// Requests that a queue pair's queue holds.
    pub depth: u32,
    /// Bytes that a pass of the worker sends at most: no more than the adapter takes at once.
    pub pass_bytes: u64,
    /// What becomes of payload.
    pub payload: PayloadMode,
    /// Bytes of the program's memory; if it has none, any number of addresses.
    pub memory: u64,
    /// Seed of the simulation.
    pub seed: u64,
}

/// The kinds of requests that programs post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data; the other end posts the receives, which tell it that a message has come.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND; the other end posts the receives.
    Send,
}

/// A program's ends of a queue pair.
struct NodeQp {
    qpn: Qpn,
    context: u32,
    doorbell: u32,
    sq: SqProducer,
    rq: RqProducer,
}

/// A simulated host.
pub struct SimHost {
    /// Its number.
    pub host: HostId,
    worker: Worker,
    /// What its port exchanges with the network.
    pub wire: Arc<Mutex<Wire>>,
    caps: PortCaps,
    /// The doorbells of each program's context.
    bells: Vec<Doorbells>,
    cq: CqConsumer,
    qps: Vec<NodeQp>,
    qpns: QpnSpace,
    psns: Rng,
    async_events: Arc<EventQueue>,
    key: u32,
    config: NodeConfig,
    /// The program's own view of its memory, if it has any.
    view: Option<Region>,
}

/// A part of the one file in which the programs of a simulation have their memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPart<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Where the part begins, a multiple of a page.
    pub offset: u64,
}

/// Registers the memory of a program with all rights, or as many addresses without memory.
fn region(key: u32, part: Option<MemoryPart<'_>>, config: &NodeConfig) -> std::io::Result<Region> {
    let len = config.memory;
    let mapping = match part {
        Some(MemoryPart { file, offset }) => {
            Region::map(&[MapPiece { fd: file, offset, len }], ALL_RIGHTS).map_err(std::io::Error::other)?
        }
        None if config.payload == PayloadMode::Pattern => Mapping::Pattern,
        None => Mapping::Null,
    };
    Ok(Region::new(key, PD, MEMORY, len, ALL_RIGHTS, mapping))
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct End {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Its first PSN.
    pub psn: Psn,
    /// Its host.
    pub host: HostId,
    /// What its worker can do; `None` of an adapter.
    pub hello: Option<Hello>,
}

impl Verb {
    /// Whether the other end posts a receive for each request.
    pub fn is_received(self) -> bool {
        matches!(self, Verb::Send | Verb::WriteImm)
    }
}

impl SimHost {
    /// Host number `host`, which has restarted `boots` times, and whose program has the memory of `part`, or none.
    ///
    /// # Errors
    /// The system's, when there is no descriptor or memory.
    pub fn new(host: HostId, boots: u32, config: NodeConfig, part: Option<MemoryPart<'_>>) -> std::io::Result<SimHost> {
        let of_host = u64::from(host.0) | u64::from(boots) << 32;
        let mut rng = Rng::new(config.seed ^ of_host.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (port, wire) = SimPort::new(host, config.port);
        let caps = port.caps().clone();
        let mut random = rng.fork();
        let mut keys = KeySpace::new(Box::new(move || random.next_u64()));
        let options = WorkerOptions {
            id: 0,
            first: 0,
            boot_id: None,
            cc: config.cc,
            cm_secret: Secret::new([rng.next_u64(), rng.next_u64()]),
            selective: config.selective,
            rto: config.rto,
            pass_bytes: config.pass_bytes,
            batch_frames: BATCH_FRAMES,
            list_room: LIST_ROOM,
            packet_ring: false,
        };
        let inbox = Arc::new(Inbox::new(1)?);
        let mut worker = Worker::new(options, MrTable::new(keys.cipher()), vec![Box::new(port)], vec![inbox]);
        let async_events = Arc::new(EventQueue::new());
        let sink: Arc<dyn EventSink> = async_events.clone();
        let key = keys.alloc().ok_or_else(|| std::io::Error::other("no key is free"))?;
        worker.add_region(Arc::new(region(key, part, &config)?));
        let view = if part.is_some() { Some(region(key, part, &config)?) } else { None };
        let (producer, cq) = paired::cq(CQ_ENTRIES + 2 * config.depth);
        let shared =
            EngineCq { producer, channel: None, cookie: 0, async_events: sink, overrun_reported: Default::default() };
        worker.add_cq(0, Arc::new(shared));
        let mut random = rng.fork();
        let qpns = QpnSpace::new(0, Box::new(move || random.next_u64()));
        let psns = rng.fork();
        let account = Ledger::new(Capacities::new(|_| 1), Policy::default()).account(AccountId::User(0), false);
        let mut made = SimHost {
            host,
            worker,
            wire,
            caps,
            bells: Vec::new(),
            cq,
            qps: Vec::new(),
            qpns,
            psns,
            async_events,
            key,
            config,
            view,
        };
        made.add_program(&account);
        Ok(made)
    }

    /// Adds a program of a user beside those that are there, all with the same memory. Returns its number; the first is 0.
    pub fn add_program(&mut self, account: &Account) -> u32 {
        let (bells, doorbells) = paired::doorbells(0);
        let (number, account, async_events) = (self.bells.len() as u32, account.clone(), self.async_events.clone());
        self.bells.push(bells);
        let program = FailedProgram::default();
        let slot =
            ContextSlot { account, program, fills: None, doorbells, queues: Vec::new(), async_events, wake: None };
        self.worker.add_context(number, slot);
        number
    }

    /// The engine's counters.
    pub fn counters(&self) -> Arc<Counters> {
        self.worker.counters(DeviceId(0))
    }

    /// The worker, for looks into its state.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The key of the program's memory.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Makes an RC queue pair of the first program in RESET and returns its number in this host.
    ///
    /// # Errors
    /// A sentence when the host has no queue pair number left.
    pub fn create(&mut self) -> Result<u32, String> {
        self.create_for(0, QpType::Rc)
    }

    /// As [`SimHost::create`], of a service and for program number `context`.
    ///
    /// # Errors
    /// As [`SimHost::create`].
    pub fn create_for(&mut self, context: u32, qp_type: QpType) -> Result<u32, String> {
        let depth = self.config.depth;
        let cap =
            QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (sq, sq_end) = paired::sq(depth, 1, 0);
        let (rq, rq_end) = paired::rq(depth, 1);
        let qpn = self.qpns.take().ok_or("a simulated host has no queue pair number left")?;
        let doorbell = self.qps.len() as u32;
        let config = QpConfig {
            qpn,
            qp_type,
            pd: PD,
            send_cq: 0,
            recv_cq: 0,
            cookie: doorbell,
            cap,
            port_mtu: self.caps.active_mtu(),
            sq: sq_end,
            rq: RecvQueue::Own(rq_end),
        };
        let async_events: Arc<dyn EventSink> = self.async_events.clone();
        let holder = QpHolder { context, qpn: 0, async_events, event_cookie: u64::from(doorbell), hold: 0 };
        self.worker.add_qp(Box::new(QpSlot::new(Qp::new(config), qpn, DeviceId(0), doorbell, holder)));
        self.qps.push(NodeQp { qpn, context, doorbell, sq, rq });
        Ok(doorbell)
    }

    /// What the other end of a connection must know of queue pair `at`. Each call gives the queue pair a new first PSN.
    pub fn end(&mut self, at: u32) -> End {
        let qpn = self.qps[at as usize].qpn;
        let psn = Psn::new(self.psns.next_u32() & 0xff_ffff);
        let hello = (!self.config.is_adapter).then(|| self.worker.hello(DeviceId(0)));
        End { qpn, psn, host: self.host, hello }
    }

    /// Takes queue pair `at` to RESET: what was posted to it is forgotten. Returns its number.
    ///
    /// # Errors
    /// A sentence with the engine's error.
    pub fn reset(&mut self, now: Nanos, at: u32) -> Result<Qpn, String> {
        let qp = &mut self.qps[at as usize];
        let (host, qpn) = (self.host.0, qp.qpn);
        let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        let failed = |e| format!("host {host}: queue pair {:#x}: {e:?}", qpn.get());
        self.worker
            .modify_qp(now, qpn, QpChange { attr: &reset, mask: attr_mask::STATE, flow: None })
            .map_err(failed)?;
        qp.sq.free_all();
        Ok(qpn)
    }

    /// Connects queue pair `at`, in whatever state it is, with the PSN of `own` to `peer`. Its packets are of `class`, which is
    /// the upper three bits of their traffic class (RFC 2474, section 4.2.2: class selectors).
    ///
    /// # Errors
    /// A sentence with the engine's error.
    pub fn connect(&mut self, now: Nanos, at: u32, own: &End, peer: &End, class: u8) -> Result<(), String> {
        use attr_mask as m;
        self.reset(now, at)?;
        let qpn = self.qps[at as usize].qpn;
        let failed = |e| format!("host {}: queue pair {:#x}: {e:?}", own.host.0, qpn.get());
        let ip = address_of(peer.host);
        let traffic_class = class << 5;
        let ah = AhAttr { dgid: gid_of(ip), is_global: true, port_num: 1, traffic_class, ..AhAttr::default() };
        let attr = QpAttr {
            qp_access_flags: ALL_RIGHTS,
            port_num: 1,
            path_mtu: self.config.mtu,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: own.psn,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: self.config.timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            ah,
            ..QpAttr::default()
        };
        let steps = [
            (QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
            (QpState::Rtr, m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER),
            (QpState::Rts, m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC),
        ];
        for (state, mask) in steps {
            let flow = match mask & m::AV {
                0 => None,
                _ => Some(flow_of(&self.caps, &ah, entropy_of(own.qpn, peer.qpn)).map_err(|e| e.0)?),
            };
            let attr = QpAttr { qp_state: state, ..attr };
            let mut change = QpChange { attr: &attr, mask: mask | m::STATE, flow };
            let mut changed = self.worker.modify_qp(now, qpn, change);
            if let Err(ModifyError::NotAllowed(more)) = changed {
                // UC has fewer attributes.
                change.mask &= !more;
                changed = self.worker.modify_qp(now, qpn, change);
            }
            changed.map_err(failed)?;
        }
        if let Some(hello) = peer.hello.filter(|_| !self.config.is_adapter) {
            self.worker.know_peer(now, DeviceId(0), ip, &hello);
        }
        Ok(())
    }

    /// Posts a signaled request of `len` bytes at `local` and `remote`, offsets in the programs' memory. False if the queue is
    /// full.
    pub fn post(&mut self, at: u32, verb: Verb, id: u64, places: [u64; 2], len: u32, rkey: u32) -> bool {
        let opcode = match verb {
            Verb::Write => WrOpcode::RdmaWrite,
            Verb::WriteImm => WrOpcode::RdmaWriteWithImm,
            Verb::Read => WrOpcode::RdmaRead,
            Verb::Send => WrOpcode::Send,
        };
        let wqe = SendWqe { wr_id: id, opcode: opcode as u8, rkey, ..SendWqe::default() };
        self.post_entry(at, wqe, places, len)
    }

    /// Posts a signaled atomic of eight bytes: FAA with the addend, or CAS with compare and swap values. False if the queue is
    /// full.
    pub fn post_atomic(
        &mut self,
        at: u32,
        opcode: WrOpcode,
        id: u64,
        places: [u64; 2],
        operands: [u64; 2],
        rkey: u32,
    ) -> bool {
        let [compare_add, swap] = operands;
        let wqe = SendWqe { wr_id: id, opcode: opcode as u8, rkey, compare_add, swap, ..SendWqe::default() };
        self.post_entry(at, wqe, places, 8)
    }

    fn post_entry(&mut self, at: u32, wqe: SendWqe, [local, remote]: [u64; 2], len: u32) -> bool {
        let qp = &mut self.qps[at as usize];
        let wqe = SendWqe { flags: send_flags::SIGNALED as u16, remote_addr: MEMORY + remote, ..wqe };
        if qp.sq.room() == 0 || qp.sq.write(&wqe, &[Sge { addr: MEMORY + local, length: len, lkey: self.key }]).is_err()
        {
            return false;
        }
        if qp.sq.post() {
            self.bells[qp.context as usize].ring(0, qp.doorbell);
        }
        true
    }

    /// Posts a receive of `len` bytes at offset `local`. False if the queue is full.
    pub fn post_receive(&mut self, at: u32, id: u64, local: u64, len: u32) -> bool {
        let sge = Sge { addr: MEMORY + local, length: len, lkey: self.key };
        let qp = &mut self.qps[at as usize];
        let ok = qp.rq.room() > 0 && qp.rq.write(id, &[sge]).is_ok();
        if ok && qp.rq.post() {
            self.bells[qp.context as usize].ring(0, qp.doorbell);
        }
        ok
    }

    /// One pass of the worker. Returns whether it did anything.
    pub fn run_once(&mut self, now: Nanos) -> bool {
        self.worker.run_once(now)
    }

    /// When the worker wants to run if nothing arrives before; `now` if it has work.
    pub fn next_deadline(&mut self, now: Nanos) -> Nanos {
        if self.worker.has_work() { now } else { self.worker.next_deadline() }
    }

    /// Takes one completion, and the number of its queue pair.
    pub fn poll(&mut self) -> Option<(u32, Cqe)> {
        let mut cqe = Cqe::default();
        if !self.cq.poll(&mut cqe) {
            return None;
        }
        let at = cqe.qp_cookie;
        if cqe.is_recv == 0
            && let Some(qp) = self.qps.get_mut(at as usize)
        {
            qp.sq.free(cqe.sq_consumer);
        }
        Some((at, cqe))
    }

    /// `len` bytes of the program's memory at offset `at`, if it has any.
    pub fn memory(&self, at: u64, len: u32) -> Option<Span> {
        self.view.as_ref()?.span(MEMORY + at, len)
    }
}
