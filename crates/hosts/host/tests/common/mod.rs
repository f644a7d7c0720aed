//! A host on a port in memory, and programs that speak to it without sockets.
#![allow(dead_code)] // each test file uses its own part

use burst_base::verbs::{QpCap, QpType};
use burst_base::{Nanos, Reason};
use burst_control::cm::{CmCommand, CmReply};
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_control::{CqInitAttr, QpCookies, QpInitAttr, Refusal, Request, Response};
use burst_frame::TxBatch;
use burst_host::{AccountBy, ClientProcess, Clock, Host, HostOptions, Policy, Session, WorkerMode};
use burst_ledger::Resource;
use burst_port::mem::{Hub, MemConfig, MemPort, pair};
use burst_port::{Port, PortCaps, PortError, RxSink};
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

/// A host with one device, on which one user may use `share` percent.
pub fn host(share: u8) -> Host {
    host_of(1, share)
}

/// The settings of these hosts.
pub fn options(workers: usize, share: u8) -> HostOptions {
    HostOptions {
        packet_ring: false,
        ports: Vec::new(),
        workers,
        worker_mode: WorkerMode::Threads,
        spin: Duration::ZERO,
        window_bytes: 1 << 20,
        cc: burst_cc::CcTable::default(),
        selective: false,
        rto: burst_base::RtoMode::default(),
        urma_lanes: 1,
        urma_caqm: false,
        hold_urma: false,
        gpu: false,
        policy: Policy { share_percent: share, reserve_percent: 10 },
        account_by: AccountBy::User,
        account_depth: 0,
        subordinate_ids: None,
        lend: false,
        lent: None,
        seed: Some(1),
    }
}

/// The same with several workers.
pub fn host_of(workers: usize, share: u8) -> Host {
    host_with(&options(workers, share))
}

/// The same with these options.
pub fn host_with(options: &HostOptions) -> Host {
    let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let port = || pair(MemConfig { latency: Nanos(1_000), ..MemConfig::default() }, a, b).0;
    let ports = (0..options.workers).map(|_| vec![Box::new(port()) as _]).collect();
    Host::with_ports(options, Clock::Monotonic, ports).expect("a host")
}

/// A host of one worker with this port.
pub fn host_of_port(options: &HostOptions, port: Box<dyn Port>) -> Host {
    Host::with_ports(options, Clock::Monotonic, vec![vec![port]]).expect("a host")
}

/// The same with several devices; `groups_max`: multicast groups of each port.
pub fn host_with_devices(devices: usize, share: u8, groups_max: usize) -> Host {
    let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let port = |_| Box::new(SmallPort { port: pair(MemConfig::default(), a, b).0, groups_max }) as Box<dyn Port>;
    let ports = vec![(0..devices).map(port).collect()];
    Host::with_ports(&options(1, share), Clock::Monotonic, ports).expect("a host")
}

/// A port with few multicast groups.
struct SmallPort {
    port: MemPort,
    groups_max: usize,
}

impl Port for SmallPort {
    fn caps(&self) -> &PortCaps {
        self.port.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.port.rx_burst(now, budget, sink)
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.port.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.port.wait_fds()
    }
    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.port.join(group)
    }
    fn leave(&mut self, group: IpAddr) {
        self.port.leave(group);
    }
    fn groups_max(&self) -> usize {
        self.groups_max
    }
}

/// Gives the host ports for nodes of URMA, at which there is no other host.
pub fn lend_nodes(host: &mut Host) {
    host.lend_urma_ports(Box::new(|_, address: IpAddr| {
        Some(Box::new(Hub::new(MemConfig::default()).port("urma", &[address])) as Box<dyn Port>)
    }));
}

/// The entity id of the host's network with this last byte of its address.
pub fn eid(last: u8) -> [u8; 16] {
    std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets()
}

/// Whether no account uses anything, after a moment: workers and other threads give back what they have ended.
pub fn is_all_given_back(host: &Host) -> bool {
    host.disposal.wait_until_idle();
    let is_free = || Resource::ALL.iter().all(|resource| host.ledger.used(*resource) == 0);
    (0..10_000).any(|_| {
        let free = is_free();
        if !free {
            std::thread::sleep(Duration::from_millis(1));
        }
        free
    })
}

/// A file in memory that cannot shrink, as the library sends it.
pub fn memfd(bytes: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("program", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, bytes).expect("its length");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    fd
}

/// The request for a queue pair of one request each way.
pub fn queue_pair(pd: u32, cq: u32, qp_type: QpType) -> Request {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInitAttr { pd, qp_type, send_cq: cq, recv_cq: cq, srq: None, cap };
    Request::CreateQp { init, names: vec![QpCookies { cookie: 0, event_cookie: 0 }] }
}

/// A program with one connection to the host.
pub struct Program {
    session: Session,
    /// A protection domain.
    pub pd: u32,
    /// A completion queue.
    pub cq: u32,
    /// A queue pair for datagrams, if one was made.
    pub datagrams: Option<u32>,
    /// Whether event channel 0 exists.
    pub has_events: bool,
    pub has_joined: bool,
    /// A completion queue of URMA, if one was made.
    pub jfc: Option<u32>,
    /// A memory region, if one was made.
    pub mr: Option<u32>,
    /// An XRC domain, if it was opened.
    pub xrcd: Option<u32>,
}

impl Program {
    /// A program that has said hello and opened nothing.
    pub fn connect(host: &mut Host, uid: u32) -> Result<Program, Refusal> {
        let session = Session::admit(host, ClientProcess { pid: std::process::id(), uid })?;
        let mut program = Program {
            session,
            pd: 0,
            cq: 0,
            datagrams: None,
            has_events: false,
            has_joined: false,
            jfc: None,
            mr: None,
            xrcd: None,
        };
        program.ask(host, Request::Hello { program: "test".into() })?;
        Ok(program)
    }

    /// A program with a context, a protection domain and a completion queue.
    pub fn start(host: &mut Host, uid: u32) -> Result<Program, Refusal> {
        Program::start_on(host, uid, 0)
    }

    /// The same on another device than the first.
    pub fn start_on(host: &mut Host, uid: u32, device: u32) -> Result<Program, Refusal> {
        let mut program = Program::connect(host, uid)?;
        program.ask(host, Request::OpenContext { device })?;
        let Response::Handle(pd) = program.ask(host, Request::AllocPd)? else { panic!("no protection domain") };
        let cq = Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 });
        let Response::Cq { cq, .. } = program.ask(host, cq)? else { panic!("no completion queue") };
        (program.pd, program.cq) = (pd, cq);
        Ok(program)
    }

    /// Carries out a request.
    pub fn ask(&mut self, host: &mut Host, request: Request) -> Result<Response, Refusal> {
        self.ask_with(host, request, Vec::new())
    }

    /// Carries out a request with descriptors. The descriptors of the reply are closed.
    pub fn ask_with(&mut self, host: &mut Host, request: Request, fds: Vec<OwnedFd>) -> Result<Response, Refusal> {
        let fds = self.session.foreign(host, fds);
        let reply = self.session.handle(host, request, fds)?;
        Ok(reply.response)
    }

    /// Carries out a command of connection management.
    pub fn command(&mut self, host: &mut Host, command: CmCommand) -> Result<CmReply, Refusal> {
        match self.ask(host, Request::Cm { commands: vec![command] })? {
            Response::Cm(replies) => match replies.into_iter().next() {
                Some(CmReply::Failed { errno, sentence }) => Err(Refusal { errno, sentence }),
                Some(reply) => Ok(reply),
                None => panic!("no reply to a command"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Carries out a call of URMA. Returns the number of the new object.
    pub fn urma(&mut self, host: &mut Host, call: UrmaCall) -> Result<u32, Refusal> {
        match self.ask(host, Request::UrmaCall(call))? {
            Response::UrmaDone(UrmaAnswer::Number(number)) => Ok(number),
            other => panic!("{other:?}"),
        }
    }

    /// The program has exited: a step of the end of its session.
    pub fn end_some(&mut self, host: &mut Host, budget: usize) -> bool {
        let is_over = self.session.end_some(host, budget);
        host.post_cm_jobs();
        is_over
    }

    /// The program exits.
    pub fn end(mut self, host: &mut Host) {
        self.session.end(host);
        // As each pass does.
        host.post_cm_jobs();
        host.disposal.wait_until_idle();
    }
}

impl AsMut<Session> for Program {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}
