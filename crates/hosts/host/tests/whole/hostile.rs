//! Hostile programs: connections that send random, mutated, repeated and meaningless messages with any descriptors, and that
//! write anything into the shared memory that the host reads.
//!
//! A hostile program knows what its replies tell it, and the queue pair numbers of others. Its replies are checked: nothing of
//! another user's may be in them.

use crate::node::{ClientId, Node, Packet};
use crate::program::{ALL_RIGHTS, MEMORY_AT, Memory, parse_reply, without_waiting};
use crate::requests::{COMMON_QKEY, Kind, Numbers};
use burst_base::rng::Rng;
use burst_base::verbs::QpType;
use burst_control::cm::{CmCommand, DAEMON_IDS};
use burst_control::{ArenaRef, CommandSender, FDS_MAX, QueuePlace, Request, Response, frame};
use burst_shm::{DoorbellTree, QUEUE_HEADER_BYTES};
use rustix::fs::{CWD, FallocateFlags, MemfdFlags, Mode, OFlags, openat};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Connections of a program at a time, and descriptors that it keeps.
const CONNECTIONS: usize = 5;
const FDS_KEPT: usize = 24;
/// Replies that a program leaves unread, at most.
const UNREAD: usize = 32;
/// Length of the program's memory.
const MEMORY: u64 = 64 << 10;
/// Bytes of an arena before the first doorbell tree.
const TREES_AT: u64 = 64;

/// A queue in shared memory.
#[derive(Clone, Copy)]
struct Place {
    at: ArenaRef,
    entries: u32,
    stride: u32,
    /// The doorbell and the worker of a send queue.
    doorbell: Option<(u32, u32)>,
}

/// A connection of a hostile program.
struct HostileConnection {
    id: ClientId,
    sequence: u32,
    /// The requests whose replies have not come.
    asked: VecDeque<(u32, Request)>,
    segments: Vec<OwnedFd>,
    places: Vec<Place>,
    fds: Vec<OwnedFd>,
    /// Handle, number and type of queue pairs.
    qps: Vec<(u32, u32, QpType)>,
    commands: Option<CommandSender>,
    ring: Option<OwnedFd>,
    numbers: Numbers,
}

/// A hostile program.
pub struct Hostile {
    rng: Rng,
    node: usize,
    uid: u32,
    addrs: Vec<IpAddr>,
    memory: Memory,
    connections: Vec<HostileConnection>,
    tokens: Vec<u64>,
    last: Vec<u8>,
    /// Steps until the program dies.
    steps_left: u64,
}

impl Hostile {
    pub fn new(mut rng: Rng, node: usize, uid: u32, addrs: &[IpAddr]) -> Hostile {
        let steps_left = rng.between(1, 1500);
        Hostile {
            node,
            uid,
            addrs: addrs.to_vec(),
            memory: Memory::new(MEMORY),
            connections: Vec::new(),
            tokens: Vec::new(),
            last: Vec::new(),
            steps_left,
            rng,
        }
    }

    pub fn node(&self) -> usize {
        self.node
    }

    /// The program dies: all its connections close, whatever they have begun.
    pub fn kill(self, node: &mut Node) {
        self.connections.iter().for_each(|c| node.close(c.id));
    }

    /// Queue pair numbers of the program.
    pub fn qpns(&mut self) -> Vec<u32> {
        self.connections.iter_mut().map(|c| c.numbers.some(Kind::Qpn)).collect()
    }

    /// One step. Returns false when the program dies next.
    pub fn step(&mut self, node: &mut Node, victims: &[u32]) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.connections.is_empty() || self.connections.len() < CONNECTIONS && self.rng.chance(1, 60) {
            self.connect(node);
            return self.steps_left > 0;
        }
        let at = self.rng.below(self.connections.len() as u64) as usize;
        self.connections[at].numbers.victims = victims.to_vec();
        self.read_replies(node, at);
        if !node.is_connected(self.connections[at].id) {
            // The host has hung up.
            self.connections.swap_remove(at);
            return self.steps_left > 0;
        }
        match self.rng.below(64) {
            0..30 => self.request(node, at),
            30..33 => self.raise(node, at),
            33..36 => {
                let commands = self.connections[at].numbers.climb();
                self.connections[at].send(node, Request::Cm { commands }, Vec::new());
            }
            36 => self.send_mutated(node, at),
            37..49 => self.post_anything(at),
            49..53 => self.scribble(at),
            53..59 => self.send_command(at),
            59 => self.scribble_on_ring(at),
            60 => self.use_descriptor(at),
            61 => self.punch(),
            62 if self.rng.chance(1, 3) => {
                node.close(self.connections[at].id);
                self.connections.swap_remove(at);
            }
            _ => {}
        }
        self.steps_left > 0
    }

    fn connect(&mut self, node: &mut Node) {
        // A share that is used up is no error of the host's.
        let Ok(id) = node.connect(self.uid) else { return };
        let mut connection = HostileConnection {
            id,
            sequence: 0,
            asked: VecDeque::new(),
            segments: Vec::new(),
            places: Vec::new(),
            fds: Vec::new(),
            qps: Vec::new(),
            commands: None,
            ring: None,
            numbers: Numbers::new(self.rng.fork(), self.addrs.clone()),
        };
        if self.rng.chance(15, 16) {
            connection.send(node, Request::Hello { program: "hostile".into() }, Vec::new());
            if self.rng.chance(3, 4) {
                connection.send(node, Request::OpenContext { device: 0 }, Vec::new());
                connection.send(node, Request::AllocPd, Vec::new());
                connection.send(node, Request::Token, Vec::new());
                let (request, fds) = self.memory.registration(0, ALL_RIGHTS);
                connection.send(node, request, fds);
            }
            if self.rng.chance(1, 2) {
                connection.send(node, Request::CmChannel { channel: 1 }, Vec::new());
                connection.send(node, Request::CmCommandRing, Vec::new());
                connection.numbers.learn(Kind::CmChannel, 1);
            }
        }
        self.connections.push(connection);
    }

    /// Sends a random request, with the descriptors that it needs, or others.
    fn request(&mut self, node: &mut Node, at: usize) {
        let request = self.connections[at].numbers.request(MEMORY);
        let needs = match &request {
            Request::RegMr { .. } | Request::AllocDm { .. } => 1,
            Request::OpenXrcd { with_file: true, .. } => 1,
            _ => 0,
        };
        let mut fds = Vec::new();
        if needs > 0 && self.rng.chance(7, 8) {
            fds.push(self.memory.fd.try_clone().expect("a descriptor"));
        } else if self.rng.chance(1, 8) {
            fds = self.any_descriptors(at);
        }
        crate::plan_failure(&mut self.rng);
        self.connections[at].send(node, request, fds);
        if self.rng.chance(1, 2) {
            node.serve_rings();
            crate::with_failure(|| node.pass());
        }
        crate::take_failure();
        if self.connections[at].asked.len() > UNREAD {
            self.read_replies(node, at);
        }
    }

    /// Connects two queue pairs of the program with each other, so that requests posted to them are carried out.
    fn raise(&mut self, node: &mut Node, at: usize) {
        let connection = &mut self.connections[at];
        let Some(&(a, a_number, qp_type)) = connection.qps.last() else { return };
        let other = connection.qps.iter().rev().skip(1).find(|qp| qp.2 == qp_type);
        let (b, b_number, _) = other.copied().unwrap_or((a, a_number, qp_type));
        for (qp, peer) in [(a, b_number), (b, a_number)] {
            for request in connection.numbers.raise(qp, qp_type, peer, self.node) {
                connection.send(node, request, Vec::new());
            }
        }
        if self.rng.chance(1, 2) {
            connection.qps.pop();
        }
    }

    /// Descriptors of all kinds.
    fn any_descriptors(&mut self, at: usize) -> Vec<OwnedFd> {
        let count = if self.rng.chance(1, 32) { FDS_MAX as u64 } else { self.rng.between(1, 4) };
        (0..count).map(|_| self.any_descriptor(at)).collect()
    }

    fn any_descriptor(&mut self, at: usize) -> OwnedFd {
        let connection = &self.connections[at];
        let all: Vec<&OwnedFd> = connection.segments.iter().chain(&connection.fds).collect();
        match self.rng.below(8) {
            0 => openat(CWD, "/etc/passwd", OFlags::PATH, Mode::empty()).expect("found"),
            1 => openat(CWD, "/dev/null", OFlags::RDONLY, Mode::empty()).expect("found"),
            2 => rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a memfd"),
            3 => rustix::pipe::pipe().expect("a pipe").0,
            4 => Memory::new(4096).fd,
            5 => self.memory.fd.try_clone().expect("a descriptor"),
            _ if !all.is_empty() => all[self.rng.below(all.len() as u64) as usize].try_clone().expect("a descriptor"),
            _ => rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd"),
        }
    }

    /// Sends the bytes of a message after some of them were changed, the last message again, or no message at all.
    fn send_mutated(&mut self, node: &mut Node, at: usize) {
        let request = self.connections[at].numbers.request(MEMORY);
        let mut bytes = frame::encode(self.rng.next_u32(), &request).expect("encoded");
        match self.rng.below(8) {
            0 => bytes = self.last.clone(),
            1 => bytes.truncate(self.rng.below(bytes.len() as u64) as usize),
            2 => {
                bytes = vec![0; self.rng.below(2000) as usize];
                self.rng.fill(&mut bytes);
            }
            3 => bytes.extend([0; 3]),
            _ => {
                // Behind the header most often: others end the connection.
                let first = if self.rng.chance(1, 8) { 0 } else { frame::HEADER_BYTES };
                for _ in 0..self.rng.between(1, 3) {
                    let place = self.rng.between(first as u64, bytes.len() as u64 - 1) as usize;
                    bytes[place] = self.rng.next_u32() as u8;
                }
            }
        }
        self.last = bytes.clone();
        // A socket carries no empty packet.
        if !bytes.is_empty() {
            let fds = if self.rng.chance(1, 4) { self.any_descriptors(at) } else { Vec::new() };
            node.send(self.connections[at].id, (bytes, fds));
        }
    }

    /// Writes entries into a queue and rings its doorbell.
    fn post_anything(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.places.is_empty() {
            return;
        }
        let place = connection.places[self.rng.below(connection.places.len() as u64) as usize];
        let numbers = &mut connection.numbers;
        let mut posted = [0; 4];
        read_at(&connection.segments, place.at, 0, &mut posted);
        let mut producer = u32::from_ne_bytes(posted);
        for _ in 0..self.rng.between(1, 3) {
            let entry = match place.doorbell {
                Some(_) => send_entry(numbers, place.stride),
                None => receive_entry(numbers, place.stride),
            };
            let slot = u64::from(producer & (place.entries - 1)) * u64::from(place.stride);
            write_at(&connection.segments, place.at, QUEUE_HEADER_BYTES as u64 + slot, &entry);
            producer = producer.wrapping_add(1);
        }
        if self.rng.chance(1, 30) {
            producer = numbers.odd();
        }
        write_at(&connection.segments, place.at, 0, &producer.to_ne_bytes());
        if let Some((doorbell, worker)) = place.doorbell {
            ring(&connection.segments, worker, doorbell);
        }
        // Every descriptor may be a wake-up.
        for fd in &connection.fds {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Writes anything anywhere into the arena, most often into a header or a doorbell.
    fn scribble(&mut self, at: usize) {
        let connection = &self.connections[at];
        if connection.segments.is_empty() {
            return;
        }
        let mut bytes = vec![0; self.rng.between(1, 64) as usize];
        match self.rng.below(3) {
            0 => bytes.fill(0xff),
            1 => bytes.fill(self.rng.next_u32() as u8),
            _ => self.rng.fill(&mut bytes),
        }
        let (start, within) = match self.rng.below(3) {
            0 => (ArenaRef { segment: 0, offset: 0 }, self.rng.below(70_000)),
            1 if !connection.places.is_empty() => {
                let place = connection.places[self.rng.below(connection.places.len() as u64) as usize];
                (place.at, self.rng.below(256))
            }
            _ => (ArenaRef { segment: 0, offset: 0 }, self.rng.below((64 << 20) - 64)),
        };
        write_at(&connection.segments, start, within, &bytes);
    }

    /// Sends a command by the ring.
    fn send_command(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let command: CmCommand = connection.numbers.command();
        if let Some(commands) = &connection.commands {
            let _ = commands.send(&[command]);
        }
    }

    fn scribble_on_ring(&mut self, at: usize) {
        let Some(ring) = &self.connections[at].ring else { return };
        let mut bytes = vec![0; self.rng.between(1, 16) as usize];
        self.rng.fill(&mut bytes);
        let _ = rustix::io::pwrite(ring, &bytes, self.rng.below(70_000));
    }

    /// Reads, writes, or closes some descriptor that the host has sent.
    fn use_descriptor(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.fds.is_empty() {
            return;
        }
        let which = self.rng.below(connection.fds.len() as u64) as usize;
        let mut buffer = [0; 4096];
        match self.rng.below(4) {
            0 => drop(connection.fds.swap_remove(which)),
            1 => drop(rustix::pipe::fcntl_setpipe_size(&connection.fds[which], 4096)),
            _ => drop(rustix::io::read(&connection.fds[which], &mut buffer)),
        }
    }

    /// Gives pages of the program's own memory back to the system, while the host has them mapped.
    fn punch(&mut self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.memory.fd, flags, self.rng.below(8) * 4096, 4096);
    }

    fn read_replies(&mut self, node: &mut Node, at: usize) {
        while let Some(packet) = node.receive(self.connections[at].id) {
            let (uid, tokens) = (self.uid, &mut self.tokens);
            self.connections[at].learn(node, packet, uid, tokens);
        }
    }
}

impl HostileConnection {
    fn send(&mut self, node: &mut Node, request: Request, fds: Vec<OwnedFd>) {
        self.sequence += 1;
        // The kernel refuses a longer one.
        let bytes = frame::encode(self.sequence, &request).expect("encoded");
        if !request.is_without_reply() {
            self.asked.push_back((self.sequence, request));
        }
        node.send(self.id, (bytes, fds));
    }

    /// Takes what a reply tells, and checks that it is nothing of another user's.
    fn learn(&mut self, node: &mut Node, (bytes, fds): Packet, uid: u32, tokens: &mut Vec<u64>) {
        let sequence = frame::ControlPacket::parse(&bytes).expect("a packet").header.sequence;
        let asked = self.asked.iter().position(|(s, _)| *s == sequence).and_then(|at| self.asked.remove(at));
        let Ok(answer) = parse_reply(&bytes, fds) else { return };
        self.segments.extend(answer.segments);
        let request = asked.map(|(_, request)| request);
        match &answer.response {
            Response::Context { .. } => self.numbers.learn(Kind::Id, DAEMON_IDS),
            Response::Token(token) => {
                tokens.push(*token);
                self.numbers.tokens.push(*token);
            }
            Response::Imported { handle, .. } => {
                let Some(Request::Import { token, .. }) = &request else { panic!("imported without a request") };
                assert!(tokens.contains(token), "user {uid} imported by a token of another");
                self.numbers.learn(Kind::Pd, *handle);
            }
            Response::Users(page) => {
                let others = page.users.iter().filter(|u| u.owner != format!("user {uid}")).count();
                assert_eq!(others, 0, "user {uid} sees the accounts of others");
            }
            Response::CmConnections { connections, .. } => {
                assert!(connections.iter().all(|c| c.uid == Some(uid)), "user {uid} sees connections of others");
            }
            response => self.learn_object(request.as_ref(), response),
        }
        self.places.drain(..self.places.len().saturating_sub(24));
        if matches!(request, Some(Request::CmCommandRing)) {
            let mut fds = answer.fds.into_iter();
            if let (Some(ring), Some(socket)) = (fds.next(), node.bell(self.id)) {
                self.ring = ring.try_clone().ok();
                self.commands = CommandSender::new(socket, ring).ok();
            }
            return;
        }
        // Reading a blocking pipe would stop the test, not the host.
        self.fds.extend(answer.fds.into_iter().map(without_waiting));
        self.fds.drain(..self.fds.len().saturating_sub(FDS_KEPT));
    }

    /// Takes the numbers and the place of an object.
    fn learn_object(&mut self, request: Option<&Request>, response: &Response) {
        let kind = match request {
            Some(Request::AllocPd) => Kind::Pd,
            Some(Request::CreateAh { .. }) => Kind::Ah,
            Some(Request::OpenXrcd { .. }) => Kind::Xrcd,
            _ => Kind::Dm,
        };
        let numbers: Vec<(Kind, u32)> = match response {
            Response::Handle(n) => vec![(kind, *n)],
            Response::Mr { mr, lkey, .. } => vec![(Kind::Mr, *mr), (Kind::Key, *lkey)],
            Response::Mw { mw, rkey } => vec![(Kind::Mw, *mw), (Kind::Key, *rkey)],
            Response::Channel { channel } => vec![(Kind::Channel, *channel)],
            Response::Target { qp, qpn } => vec![(Kind::Qp, *qp), (Kind::Qpn, *qpn)],
            Response::Cq { cq, ring } => {
                self.places.push(Place { at: ring.place, entries: ring.entries, stride: 64, doorbell: None });
                vec![(Kind::Cq, *cq)]
            }
            Response::Srq { srq, queue, .. } => {
                self.place(queue, None);
                vec![(Kind::Srq, *srq)]
            }
            Response::Qps(grants) => {
                for grant in grants {
                    if let Some(Request::CreateQp { init, .. }) = request {
                        self.qps.push((grant.qp, grant.qpn, init.qp_type));
                    }
                    self.place(&grant.sq, Some((grant.doorbell, grant.worker)));
                    grant.rq.iter().for_each(|rq| self.place(rq, None));
                }
                grants.iter().flat_map(|grant| [(Kind::Qp, grant.qp), (Kind::Qpn, grant.qpn)]).collect()
            }
            _ => Vec::new(),
        };
        numbers.into_iter().for_each(|(kind, number)| self.numbers.learn(kind, number));
    }

    fn place(&mut self, queue: &QueuePlace, doorbell: Option<(u32, u32)>) {
        let QueuePlace { place: at, entries, stride, .. } = *queue;
        self.places.push(Place { at, entries, stride, doorbell });
    }
}

/// Where a place in the arena lies: its segment, and the offset in it.
fn locate(segments: &[OwnedFd], at: ArenaRef, within: u64) -> Option<(&OwnedFd, u64)> {
    Some((segments.get(at.segment as usize)?, u64::from(at.offset) + within))
}

fn write_at(segments: &[OwnedFd], at: ArenaRef, within: u64, bytes: &[u8]) {
    if let Some((segment, offset)) = locate(segments, at, within) {
        let _ = rustix::io::pwrite(segment, bytes, offset);
    }
}

fn read_at(segments: &[OwnedFd], at: ArenaRef, within: u64, bytes: &mut [u8]) {
    if let Some((segment, offset)) = locate(segments, at, within) {
        let _ = rustix::io::pread(segment, bytes, offset);
    }
}

/// Sets the bits of a doorbell, from the leaf up.
fn ring(segments: &[OwnedFd], worker: u32, doorbell: u32) {
    let tree = TREES_AT + u64::from(worker) * size_of::<DoorbellTree>() as u64;
    let (leaf, mid) = (u64::from(doorbell / 64), u64::from(doorbell / 4096));
    let set = |at: u64, bit: u32| {
        let mut word = [0; 8];
        read_at(segments, ArenaRef { segment: 0, offset: 0 }, at, &mut word);
        let word = u64::from_ne_bytes(word) | 1 << bit;
        write_at(segments, ArenaRef { segment: 0, offset: 0 }, at, &word.to_ne_bytes());
    };
    set(tree + 64 + 512 + 8 * leaf, doorbell % 64);
    set(tree + 64 + 8 * mid, doorbell / 64 % 64);
    set(tree, doorbell / 4096 % 64);
}

/// An SGE, most often inside the program's memory.
fn any_sge(numbers: &mut Numbers) -> [u8; 16] {
    let (addr, len) = match numbers.rng.below(8) {
        0 => (numbers.odd64(), numbers.odd()),
        1 => (MEMORY_AT, 0),
        _ => (MEMORY_AT + numbers.rng.below(8192), numbers.rng.below(9000) as u32),
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_ne_bytes());
    bytes[8..12].copy_from_slice(&len.to_ne_bytes());
    bytes[12..].copy_from_slice(&numbers.some(Kind::Key).to_ne_bytes());
    bytes
}

/// An entry of a send queue.
fn send_entry(numbers: &mut Numbers, stride: u32) -> Vec<u8> {
    let mut bytes = vec![0; stride as usize];
    if numbers.rng.chance(1, 16) {
        numbers.rng.fill(&mut bytes);
        return bytes;
    }
    let sges = numbers.rng.below(3) as u8;
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &numbers.rng.next_u64().to_ne_bytes());
    let opcode = if numbers.rng.chance(1, 16) { numbers.odd() as u8 } else { numbers.rng.below(10) as u8 };
    let flags = [2u16, 0, numbers.odd() as u16][numbers.rng.below(3) as usize];
    put(8, &[opcode, if numbers.rng.chance(1, 16) { 0xff } else { sges }]);
    put(10, &flags.to_ne_bytes());
    put(12, &numbers.some(Kind::Key).to_ne_bytes());
    let remote = if numbers.rng.chance(1, 8) { numbers.odd64() } else { MEMORY_AT + numbers.rng.below(1024) * 8 };
    put(16, &remote.to_ne_bytes());
    put(24, &numbers.some(Kind::Key).to_ne_bytes());
    put(28, &numbers.size(256).to_ne_bytes());
    put(32, &numbers.some(Kind::Mr).to_ne_bytes());
    put(40, &numbers.odd64().to_ne_bytes());
    put(48, &numbers.some(Kind::Qpn).to_ne_bytes());
    let qkey = if numbers.rng.chance(1, 8) { numbers.odd() } else { COMMON_QKEY };
    put(52, &qkey.to_ne_bytes());
    put(56, &numbers.some(Kind::Ah).to_ne_bytes());
    for n in 0..usize::from(sges) {
        if 64 + 16 * (n + 1) <= stride as usize {
            bytes[64 + 16 * n..80 + 16 * n].copy_from_slice(&any_sge(numbers));
        }
    }
    bytes
}

/// An entry of a receive queue, or of whatever it is written into.
fn receive_entry(numbers: &mut Numbers, stride: u32) -> Vec<u8> {
    let mut bytes = vec![0; stride as usize];
    if numbers.rng.chance(1, 16) {
        numbers.rng.fill(&mut bytes);
        return bytes;
    }
    bytes[..8].copy_from_slice(&numbers.rng.next_u64().to_ne_bytes());
    bytes[8] = if numbers.rng.chance(1, 16) { 0xff } else { 1 };
    bytes[16..32].copy_from_slice(&any_sge(numbers));
    bytes
}
