//! Test harness: hosts in one process, whole workers over `mem` ports, with the application's end of every queue.
#![allow(dead_code)] // each test uses a part of it

pub mod small_buffer;

use burst_base::verbs::WrOpcode;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpCap, QpState, QpType, access, attr_mask, send_flags};
use burst_base::{DeviceId, Nanos, Psn, Qpn};
use burst_cc::{CcTable, Params};
use burst_cm::Secret;
use burst_control::events::{EventPipe, EventSink};
use burst_control::failures::FailedProgram;
use burst_engine::flow::{flow_of, gid_of};
use burst_engine::handover::Inbox;
use burst_engine::objects::{SrqShared, XrcEntry};
use burst_engine::qpn::QpnSpace;
use burst_engine::{ContextSlot, EngineCq, QpChange, QpHolder, QpSlot, Worker, WorkerOptions};
use burst_ledger::{Account, AccountId, Capacities, Ledger, Policy};
use burst_mem::{DeviceNumber, KeySpace, MapPiece, Mapping, MrTable, Region, Span};
use burst_port::{Port, PortCaps};
use burst_shm::cq::CqConsumer;
use burst_shm::doorbell::Doorbells;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use burst_shm::{Cqe, SendWqe, Sge, paired};
use burst_transport::{ModifyError, Qp, QpConfig, RecvQueue, XrcSrq};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

pub const PD: u32 = 1;
/// Address on the device of a region of a device's memory.
pub const DEVICE_BASE: u64 = 0x7f00_0000_0000;
pub const CAP: QpCap =
    QpCap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
const ALL_RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A host with one worker and one context.
pub struct Host {
    pub worker: Worker,
    pub caps: PortCaps,
    /// The doorbells of each context.
    pub bells: Vec<Doorbells>,
    /// The context of the queue pairs that are created.
    pub context: u32,
    pub key: u32,
    /// Traffic class of the queue pairs that are connected from now on.
    pub traffic_class: u8,
    pub memory: Span,
    qpns: QpnSpace,
    keys: KeySpace,
    async_events: Arc<dyn EventSink>,
    next_cq: u32,
    next_doorbell: u32,
    /// Keeps the test's own view of the memory.
    _view: Arc<Region>,
}

/// An application's ends of a queue pair.
pub struct AppQp<C = OwnedFd> {
    pub qpn: Qpn,
    pub context: u32,
    pub doorbell: u32,
    pub sq: SqProducer,
    pub rq: RqProducer,
    pub cq: CqConsumer,
    pub channel: C,
}

fn shared_memory(bytes: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&fd, bytes).expect("size");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
    fd
}

impl Host {
    /// A host with `bytes` of registered memory at address 0x10000 of its application.
    pub fn new(port: Box<dyn Port>, bytes: u32) -> Host {
        Host::with_inboxes(port, bytes, vec![Arc::new(Inbox::new(1).expect("inbox"))], 0)
    }

    /// A host with this congestion control.
    pub fn with_cc(port: Box<dyn Port>, bytes: u32, cc: Params) -> Host {
        let inboxes = vec![Arc::new(Inbox::new(1).expect("inbox"))];
        Host::with_options(port, bytes, inboxes, WorkerOptions { cc: cc.into(), ..WorkerOptions::default() })
    }

    /// A host with a congestion control for each kind of peer; its boot id follows from the secret.
    pub fn with_table(port: Box<dyn Port>, bytes: u32, cc: CcTable, cm_secret: Secret) -> Host {
        let inboxes = vec![Arc::new(Inbox::new(1).expect("inbox"))];
        Host::with_options(port, bytes, inboxes, WorkerOptions { cc, cm_secret, ..WorkerOptions::default() })
    }

    /// A host that uses selective repeat with peers that can do it.
    pub fn with_selective(port: Box<dyn Port>, bytes: u32, cc: Params) -> Host {
        let inboxes = vec![Arc::new(Inbox::new(1).expect("inbox"))];
        Host::with_options(
            port,
            bytes,
            inboxes,
            WorkerOptions { cc: cc.into(), selective: true, ..WorkerOptions::default() },
        )
    }

    pub fn with_inboxes(port: Box<dyn Port>, bytes: u32, inboxes: Vec<Arc<Inbox>>, id: u32) -> Host {
        Host::with_options(port, bytes, inboxes, WorkerOptions { id, ..WorkerOptions::default() })
    }

    pub fn with_options(port: Box<dyn Port>, bytes: u32, inboxes: Vec<Arc<Inbox>>, options: WorkerOptions) -> Host {
        let mut keys = KeySpace::from_system();
        let (id, caps) = (options.id, port.caps().clone());
        let mut worker = Worker::new(options, MrTable::new(keys.cipher()), vec![port], inboxes);
        let (pipe, _unread) = EventPipe::new().expect("pipe");
        let async_events: Arc<dyn EventSink> = Arc::new(pipe);
        let fd = shared_memory(u64::from(bytes));
        let piece = MapPiece { fd: fd.as_fd(), offset: 0, len: u64::from(bytes) };
        let key = keys.alloc().expect("key");
        let map = || Region::map(&[piece], ALL_RIGHTS).expect("map");
        worker.add_region(Arc::new(Region::new(key, PD, BASE, u64::from(bytes), ALL_RIGHTS, map())));
        let view = Arc::new(Region::new(key, PD, BASE, u64::from(bytes), ALL_RIGHTS, map()));
        let memory = view.span(BASE, bytes).expect("whole");
        let mut rng = burst_base::rng::Rng::new(id.into());
        let (bells, qpns) = (Vec::new(), QpnSpace::new(id, Box::new(move || rng.next_u64())));
        let (context, next_cq, next_doorbell, traffic_class) = (0, 0, 0, 0);
        let mut host = Host {
            worker,
            caps,
            bells,
            context,
            key,
            traffic_class,
            memory,
            qpns,
            keys,
            async_events,
            next_cq,
            next_doorbell,
            _view: view,
        };
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        host.add_context(&ledger.account(AccountId::User(0), false));
        host
    }

    /// A further context, for the queue pairs that are created from now on.
    pub fn add_context(&mut self, account: &Account) {
        let (bells, doorbells) = paired::doorbells(self.worker.id() as usize);
        let (account, async_events) = (account.clone(), self.async_events.clone());
        self.context = self.bells.len() as u32;
        self.bells.push(bells);
        let program = FailedProgram::default();
        let slot =
            ContextSlot { account, program, fills: None, doorbells, queues: Vec::new(), async_events, wake: None };
        self.worker.add_context(self.context, slot);
    }

    /// Registers `bytes` of a device's memory at [`BASE`], which the copier of this number copies; returns the key.
    pub fn add_device_region(&mut self, copier: DeviceNumber, bytes: u64) -> u32 {
        let key = self.keys.alloc().expect("key");
        let mapping = Mapping::Device { copier, addr: DEVICE_BASE };
        self.worker.add_region(Arc::new(Region::new(key, PD, BASE, bytes, ALL_RIGHTS, mapping)));
        key
    }

    pub fn create(&mut self, qp_type: QpType) -> AppQp {
        let (pipe, channel) = EventPipe::new().expect("pipe");
        self.create_with_channel(qp_type, Arc::new(pipe), channel)
    }

    /// A queue pair whose completion events go into `sink`; `channel` is the program's end of it.
    pub fn create_with_channel<C>(&mut self, qp_type: QpType, sink: Arc<dyn EventSink>, channel: C) -> AppQp<C> {
        let (cq_number, cq) = self.create_cq(512, sink);
        let (qpn, doorbell, sq, rq) = self.create_on(qp_type, CAP, cq_number);
        AppQp { qpn, context: self.context, doorbell, sq, rq, cq, channel }
    }

    /// A completion queue with `entries`, whose events go into `sink`: its number and the program's end.
    pub fn create_cq(&mut self, entries: u32, sink: Arc<dyn EventSink>) -> (u32, CqConsumer) {
        let number = self.next_cq;
        self.next_cq += 1;
        (number, self.create_cq_again(number, entries, sink))
    }

    /// The number of the last completion queue.
    pub fn last_cq(&self) -> u32 {
        self.next_cq - 1
    }

    /// A completion queue with a number that is free again.
    pub fn create_cq_again(&mut self, number: u32, entries: u32, sink: Arc<dyn EventSink>) -> CqConsumer {
        let (producer, cq) = paired::cq(entries);
        let shared = EngineCq {
            producer,
            channel: Some(sink),
            cookie: 0xc0de + u64::from(number),
            async_events: self.async_events.clone(),
            overrun_reported: Default::default(),
        };
        self.worker.add_cq(number, Arc::new(shared));
        cq
    }

    /// A queue pair on completion queue `cq`: its number, its doorbell, and the program's ends of its queues.
    pub fn create_on(&mut self, qp_type: QpType, cap: QpCap, cq: u32) -> (Qpn, u32, SqProducer, RqProducer) {
        let (sq, sq_end) = paired::sq(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        let (rq, rq_end) = paired::rq(cap.max_recv_wr, cap.max_recv_sge);
        let (qpn, doorbell) = (self.qpns.take().expect("qpn"), self.next_doorbell);
        self.next_doorbell += 1;
        let config = QpConfig {
            qpn,
            qp_type,
            pd: PD,
            send_cq: cq,
            recv_cq: cq,
            cookie: doorbell,
            cap,
            port_mtu: Mtu::B4096,
            sq: sq_end,
            rq: if qp_type == QpType::XrcRecv { RecvQueue::Xrc { domain: 0 } } else { RecvQueue::Own(rq_end) },
        };
        let holder = QpHolder {
            context: self.context,
            qpn: 0,
            async_events: self.async_events.clone(),
            event_cookie: 77,
            hold: 0,
        };
        let slot = QpSlot::new(Qp::new(config), qpn, DeviceId(0), doorbell, holder);
        self.worker.add_qp(Box::new(slot));
        (qpn, doorbell, sq, rq)
    }

    /// Adds a shared receive queue of XRC domain 0, whose receives complete on `cq`.
    pub fn add_xrc_srq(&mut self, srqn: u32, entries: u32, cq: u32) -> RqProducer {
        let (app, queue) = paired::srq(entries, 1);
        let queue = Arc::new(queue);
        let shared = Arc::new(SrqShared { consumer: queue.clone(), limit: AtomicU32::new(0), cookie: 0 });
        let srq = XrcSrq { domain: 0, pd: PD, cq, queue };
        self.worker.add_xrc_srq(srqn, XrcEntry { srq, shared, async_events: self.async_events.clone() });
        app
    }

    /// Moves a queue pair from RESET to RTS, connected to `peer` at the first address of `peer_caps`.
    pub fn connect<C>(&mut self, qp: &AppQp<C>, peer: Qpn, peer_caps: &PortCaps, mtu: Mtu) {
        self.connect_qpn(qp.qpn, peer, peer_caps, mtu);
    }

    /// As [`Host::connect`], for the queue pair with number `qpn`.
    pub fn connect_qpn(&mut self, qpn: Qpn, peer: Qpn, peer_caps: &PortCaps, mtu: Mtu) {
        use attr_mask as m;
        let dgid = gid_of(peer_caps.addrs[0].ip);
        let traffic_class = self.traffic_class;
        let ah = AhAttr { dgid, is_global: true, port_num: 1, traffic_class, ..AhAttr::default() };
        let attr = QpAttr {
            qp_access_flags: ALL_RIGHTS,
            port_num: 1,
            path_mtu: mtu,
            dest_qpn: peer,
            rq_psn: Psn::new(0x00ff_fff0),
            sq_psn: Psn::new(0x00ff_fff0),
            max_rd_atomic: 32,
            max_dest_rd_atomic: 32,
            min_rnr_timer: 1,
            timeout: 10,
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
            let flow = (mask & m::AV != 0).then(|| flow_of(&self.caps, &ah, 1).expect("flow"));
            let attr = QpAttr { qp_state: state, ..attr };
            let mut change = QpChange { attr: &attr, mask: mask | m::STATE, flow };
            let mut changed = self.worker.modify_qp(Nanos(0), qpn, change);
            if let Err(ModifyError::NotAllowed(more)) = changed {
                // UC has fewer attributes.
                change.mask &= !more;
                changed = self.worker.modify_qp(Nanos(0), qpn, change);
            }
            changed.expect("modify");
        }
    }

    /// Moves a queue pair to ERR.
    #[allow(dead_code)] // not every test file does
    pub fn fail_qp<C>(&mut self, now: Nanos, qp: &AppQp<C>) -> bool {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        self.worker
            .modify_qp(now, qp.qpn, QpChange { attr: &attr, mask: burst_base::verbs::attr_mask::STATE, flow: None })
            .is_ok()
    }

    /// Moves a queue pair to RESET and frees its send queue, as the library does.
    pub fn reset_qp(&mut self, now: Nanos, qp: &mut AppQp) {
        let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        self.worker
            .modify_qp(now, qp.qpn, QpChange { attr: &attr, mask: attr_mask::STATE, flow: None })
            .expect("any state may be reset");
        qp.sq.free_all();
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.key }
    }

    /// Posts a request, and rings the doorbell if the queue is idle.
    pub fn post<C>(&mut self, qp: &mut AppQp<C>, wqe: SendWqe, sges: &[Sge]) {
        qp.sq.write(&wqe, sges).expect("room");
        if qp.sq.post() {
            self.bells[qp.context as usize].ring(0, qp.doorbell);
        }
    }
}

/// Address of the registered memory in its application.
pub const BASE: u64 = 0x10000;

/// A signaled request.
pub fn request(opcode: WrOpcode, wr_id: u64, remote: u64, rkey: u32) -> SendWqe {
    SendWqe {
        wr_id,
        opcode: opcode as u8,
        flags: send_flags::SIGNALED as u16,
        remote_addr: remote,
        rkey,
        ..SendWqe::default()
    }
}

/// Runs both hosts in simulated time until `done`, for 20 seconds at most. Returns whether it was done.
pub fn run(a: &mut Host, b: &mut Host, now: &mut Nanos, mut done: impl FnMut(&mut Host, &mut Host) -> bool) -> bool {
    let end = *now + Nanos::from_ms(20_000);
    while *now < end {
        let busy = a.worker.run_once(*now) | b.worker.run_once(*now);
        if done(a, b) {
            return true;
        }
        let next = a.worker.next_deadline().min(b.worker.next_deadline());
        *now = if busy || next <= *now { *now + Nanos(1_000) } else { next.min(*now + Nanos::from_ms(100)) };
    }
    false
}

/// Takes one completion.
pub fn poll<C>(qp: &mut AppQp<C>) -> Option<Cqe> {
    let mut cqe = Cqe::default();
    qp.cq.poll(&mut cqe).then(|| {
        if cqe.is_recv == 0 {
            qp.sq.free(cqe.sq_consumer);
        }
        cqe
    })
}
