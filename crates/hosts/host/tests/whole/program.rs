//! A program's ends: connections to a host, an open context with its mapped queues, memory, pipes of events.

use crate::node::{ClientId, Node};
use burst_base::rng::Rng;
use burst_base::verbs::{QpAttr, QpCap, QpState, QpType, access, attr_mask};
use burst_control::cm::{CmCommand, CmEvent, CmReply};
use burst_control::frame::{self, ControlPacket};
use burst_control::{
    CommandSender, CqInitAttr, MrPiece, MrPieceKind, QpCookies, QpGrant, QpInitAttr, Refusal, Reply, Request, Response,
};
use burst_shm::Sge;
use burst_shm::arena::{ArenaView, Segment};
use burst_shm::cq::{CqConsumer, CqSpec};
use burst_shm::doorbell::Doorbells;
use burst_shm::rq::{RqProducer, RqSpec};
use burst_shm::sq::{SqProducer, SqSpec};
use burst_shm::status::WorkerView;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// All rights of a region.
pub const ALL_RIGHTS: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::MW_BIND;
/// Passes of the host that a request may need.
const PASSES_MAX: usize = 1000;
/// The address at which programs see their memory.
pub const MEMORY_AT: u64 = 0x10_0000;

/// A connection to a host.
pub struct Connection {
    pub id: ClientId,
    sequence: u32,
}

/// The reply to a request.
#[derive(Debug)]
pub struct Answer {
    pub response: Response,
    pub fds: Vec<OwnedFd>,
    pub segments: Vec<OwnedFd>,
}

/// Parses a reply.
pub fn parse_reply(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
    let reply: Reply = ControlPacket::parse(bytes).and_then(|p| p.decode()).expect("a well-formed reply");
    let segments = fds.split_off(fds.len() - reply.new_segments as usize);
    Ok(Answer { response: reply.result?, fds, segments })
}

impl Connection {
    /// Connects a program of a user and says hello.
    pub fn open(node: &mut Node, uid: u32) -> Result<Connection, Refusal> {
        let mut connection = Connection { id: node.connect(uid)?, sequence: 0 };
        connection.call(node, &Request::Hello { program: format!("user{uid}") }, Vec::new())?;
        Ok(connection)
    }

    /// Sends a request and lets the host run until it has replied. Requests of other programs that wait are carried out too.
    pub fn call(&mut self, node: &mut Node, request: &Request, fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        self.sequence += 1;
        node.send(self.id, (frame::encode(self.sequence, request).expect("encoded"), fds));
        // The failure is for this request, not for commands of others that wait in rings.
        node.serve_rings();
        let reply = crate::with_failure(|| {
            (0..PASSES_MAX).find_map(|_| {
                node.pass();
                node.receive(self.id)
            })
        });
        let (bytes, fds) = reply.unwrap_or_else(|| panic!("no reply to {request:?}"));
        parse_reply(&bytes, fds)
    }

    /// As [`Connection::call`], for the response alone.
    pub fn ask(&mut self, node: &mut Node, request: &Request) -> Result<Response, Refusal> {
        self.call(node, request, Vec::new()).map(|answer| answer.response)
    }

    /// A connection management command, waited for.
    pub fn command(&mut self, node: &mut Node, command: CmCommand) -> Result<CmReply, Refusal> {
        let Response::Cm(replies) = self.ask(node, &Request::Cm { commands: vec![command] })? else {
            panic!("no reply of connection management")
        };
        match replies.into_iter().next().expect("one reply for each command") {
            CmReply::Failed { errno, sentence } => Err(Refusal { errno, sentence }),
            reply => Ok(reply),
        }
    }

    /// The ring for commands without replies.
    pub fn command_ring(&mut self, node: &mut Node) -> Result<CommandSender, Refusal> {
        let mut answer = self.call(node, &Request::CmCommandRing, Vec::new())?;
        let socket = node.bell(self.id).expect("connected");
        Ok(CommandSender::new(socket, answer.fds.pop().expect("the ring's descriptor")).expect("a ring"))
    }
}

/// Makes a descriptor of a pipe's read end non-blocking.
pub fn without_waiting(fd: OwnedFd) -> OwnedFd {
    let flags = rustix::fs::fcntl_getfl(&fd).expect("flags");
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).expect("non-blocking");
    fd
}

/// Reads a record from a pipe; `None` if it has none.
pub fn read_record<const N: usize>(fd: &OwnedFd) -> Option<[u8; N]> {
    let mut record = [0; N];
    rustix::io::read(fd, &mut record).is_ok_and(|n| n == N).then_some(record)
}

/// Reads an event of connection management.
pub fn read_cm_event(fd: &OwnedFd) -> Option<CmEvent> {
    read_record(fd).map(|record| CmEvent::from_bytes(&record).expect("a well-formed event"))
}

/// Memory of a program in a file that it registers.
pub struct Memory {
    pub fd: OwnedFd,
    pub bytes: u64,
}

impl Memory {
    /// Zero bytes, whole pages.
    pub fn new(bytes: u64) -> Memory {
        let fd = rustix::fs::memfd_create("program", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&fd, bytes).expect("its length");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        Memory { fd, bytes }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.fd, bytes, at), Ok(bytes.len()));
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::pread(&self.fd, &mut bytes, at), Ok(len));
        bytes
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().expect("8 bytes"))
    }

    /// The request that registers all of it, and its descriptor.
    pub fn registration(&self, pd: u32, access: u32) -> (Request, Vec<OwnedFd>) {
        let kind = MrPieceKind::Fd { fd: 0, offset: 0 };
        let pieces = vec![MrPiece { addr: MEMORY_AT, len: self.bytes, kind }];
        let (addr, len, iova) = (MEMORY_AT, self.bytes, MEMORY_AT);
        let request = Request::RegMr { pd, addr, len, iova, access, pieces, replaces: None };
        (request, vec![self.fd.try_clone().expect("a descriptor")])
    }
}

/// A queue pair with its mapped queues and its own completion queue.
pub struct ProgramQp {
    pub grant: QpGrant,
    pub sq: SqProducer,
    pub rq: RqProducer,
}

/// An open context.
pub struct Device {
    pub connection: Connection,
    pub arena: ArenaView,
    doorbells: Doorbells,
    workers: WorkerView,
    wake: VecDeque<OwnedFd>,
    /// Asynchronous events, which nobody reads.
    _async_pipe: OwnedFd,
    pub token: u64,
}

impl Device {
    /// Opens a context over a connection.
    pub fn open(node: &mut Node, mut connection: Connection) -> Result<Device, (Connection, Refusal)> {
        let answer = match connection.call(node, &Request::OpenContext { device: 0 }, Vec::new()) {
            Ok(answer) => answer,
            Err(refusal) => return Err((connection, refusal)),
        };
        let mut arena = ArenaView::new();
        answer.segments.into_iter().for_each(|fd| arena.add(Segment::map(fd).expect("a segment")));
        let mut fds: VecDeque<OwnedFd> = answer.fds.into();
        let workers = WorkerView::map(fds.pop_front().expect("the status page")).expect("mapped");
        let _async_pipe = without_waiting(fds.pop_front().expect("the event pipe"));
        let doorbells = Doorbells::new(arena.context().expect("a context page")).expect("doorbells");
        let Ok(Response::Token(token)) = connection.ask(node, &Request::Token) else { panic!("no token") };
        Ok(Device { connection, arena, doorbells, workers, wake: fds, _async_pipe, token })
    }

    /// Sends a request; maps new segments of the arena.
    pub fn call(&mut self, node: &mut Node, request: &Request, fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let mut answer = self.connection.call(node, request, fds)?;
        answer.segments.drain(..).for_each(|fd| self.arena.add(Segment::map(fd).expect("a segment")));
        Ok(answer)
    }

    /// A protection domain.
    pub fn pd(&mut self, node: &mut Node) -> Result<u32, Refusal> {
        match self.call(node, &Request::AllocPd, Vec::new())?.response {
            Response::Handle(pd) => Ok(pd),
            other => panic!("{other:?}"),
        }
    }

    /// A completion channel: its handle and its pipe.
    pub fn channel(&mut self, node: &mut Node) -> Result<(u32, OwnedFd), Refusal> {
        let mut answer = self.call(node, &Request::CreateChannel, Vec::new())?;
        let Response::Channel { channel } = answer.response else { panic!("no channel") };
        Ok((channel, without_waiting(answer.fds.pop().expect("its pipe"))))
    }

    /// A completion queue: its handle and its ring.
    pub fn cq(&mut self, node: &mut Node, entries: u32, channel: Option<u32>) -> Result<(u32, CqConsumer), Refusal> {
        let request = Request::CreateCq(CqInitAttr { entries, channel, cookie: 1, vector: 0 });
        let Response::Cq { cq, ring } = self.call(node, &request, Vec::new())?.response else { panic!("no queue") };
        let spec = CqSpec::new(ring.entries).expect("a size");
        let area = self.arena.area(ring.place.into(), spec.bytes()).expect("inside the arena");
        Ok((cq, CqConsumer::new(area, spec).expect("a ring")))
    }

    /// A queue pair.
    pub fn qp(&mut self, node: &mut Node, pd: u32, cq: u32, cap: QpCap) -> Result<ProgramQp, Refusal> {
        let init = QpInitAttr { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
        let request = Request::CreateQp { init, names: vec![QpCookies { cookie: 7, event_cookie: 8 }] };
        let Response::Qps(grants) = self.call(node, &request, Vec::new())?.response else { panic!("no queue pair") };
        let grant = grants[0];
        let sq = SqSpec::new(grant.sq.entries, grant.sq.max_sge, grant.cap.max_inline_data).expect("a size");
        let place = grant.rq.expect("a receive queue");
        let rq = RqSpec::new(place.entries, place.max_sge).expect("a size");
        let area = |at: burst_control::ArenaRef, len| self.arena.area(at.into(), len).expect("inside the arena");
        let (sq, rq) = (SqProducer::new(area(grant.sq.place, sq.bytes()), sq), (area(place.place, rq.bytes()), rq));
        Ok(ProgramQp { grant, sq: sq.expect("a ring"), rq: RqProducer::new(rq.0, rq.1).expect("a ring") })
    }

    /// Moves a queue pair to INIT.
    pub fn init(&mut self, node: &mut Node, qp: u32) -> Result<(), Refusal> {
        let attr = QpAttr { qp_state: QpState::Init, port_num: 1, qp_access_flags: ALL_RIGHTS, ..QpAttr::default() };
        let mask = attr_mask::STATE | attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
        self.call(node, &Request::ModifyQp { qp, attr, mask }, Vec::new()).map(drop)
    }

    /// Registers memory; its key.
    pub fn register(&mut self, node: &mut Node, pd: u32, memory: &Memory) -> Result<(u32, u32), Refusal> {
        let (request, fds) = memory.registration(pd, ALL_RIGHTS);
        match self.call(node, &request, fds)?.response {
            Response::Mr { mr, lkey, .. } => Ok((mr, lkey)),
            other => panic!("{other:?}"),
        }
    }

    /// Rings the doorbell of a queue pair, and wakes its worker if that sleeps.
    pub fn ring(&self, qp: &ProgramQp) {
        let worker = qp.grant.worker as usize;
        self.doorbells.ring(worker, qp.grant.doorbell);
        if self.workers.needs_wake(worker) {
            let _ = rustix::io::write(&self.wake[worker], &1u64.to_ne_bytes());
        }
    }
}

/// A part of a program's memory as a work request names it.
pub fn sge(at: u64, length: u32, lkey: u32) -> Sge {
    Sge { addr: MEMORY_AT + at, length, lkey }
}

/// Bytes that follow from a number.
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(number).fill(&mut bytes);
    bytes
}
