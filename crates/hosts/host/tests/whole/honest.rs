//! Honest programs: two of them on two hosts connect by the connection manager, exchange data, and leave.
//!
//! All that they do is checked: bytes and order of messages, WRITEs, READs and atomics; order and status of completions; charges.
//! No request may be refused and no connection may break unless the peer has died, or a failure was injected into this very
//! request, which then must have changed nothing. No wait may be longer than [`PATIENCE`] of virtual time.

use crate::node::Node;
use crate::program::{
    Connection, Device, Memory, ProgramQp, pattern, read_cm_event, read_record, sge, without_waiting,
};
use burst_base::Nanos;
use burst_base::gid::gid_of;
use burst_base::rng::Rng;
use burst_base::verbs::{QpCap, QpType, WcOpcode, WcStatus, WrOpcode, send_flags};
use burst_control::cm::{CmAddr, CmCommand, CmData, CmEvent, CmEventKind, CmId, CmQp, CmReply, ConnParam, PortSpace};
use burst_control::{CommandSender, Refusal, Request};
use burst_ledger::Resource;
use burst_shm::cq::CqConsumer;
use burst_shm::{Cqe, SendWqe};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Longest wait for anything that must happen.
pub const PATIENCE: Nanos = Nanos::from_ms(240_000);
/// Slots of each kind in a program's memory, and their length.
const SLOTS: u64 = 8;
const SLOT: u64 = 16 << 10;
/// Places in a program's memory: sources of messages, receives, what the peer writes, what was read from the peer, a constant,
/// and a word for atomics.
const SOURCES: u64 = 0;
const RECEIVES: u64 = SOURCES + SLOTS * SLOT;
const TARGETS: u64 = RECEIVES + SLOTS * SLOT;
const RESULTS: u64 = TARGETS + SLOTS * SLOT;
const CONSTANT: u64 = RESULTS + SLOTS * SLOT;
const WORD: u64 = CONSTANT + SLOT;
const MEMORY: u64 = WORD + 4096;
/// The first id of a program: the connection's; the next is the listener's.
const ID: CmId = 10;
const LISTENER: CmId = 11;
/// The number of a program's event channel.
const CHANNEL: u32 = 3;
const CAP: QpCap = QpCap {
    max_send_wr: SLOTS as u32,
    max_recv_wr: SLOTS as u32,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 0,
};

/// What a program does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Makes its objects; the next is this one.
    Setup(u32),
    /// Its objects exist; the connection is not established.
    Ready,
    /// The client has begun to connect.
    Connecting,
    Connected,
    /// Ends its objects; the next is this one.
    Leaving(u32),
    Gone,
}

/// A work request in flight.
struct Posted {
    wr_id: u64,
    opcode: WcOpcode,
    len: u32,
    slot: u64,
    /// The number of the pattern that was written, or the value that an atomic must find.
    expected: u64,
}

/// One of two programs.
struct End {
    node: usize,
    uid: u32,
    phase: Phase,
    cm: Option<Connection>,
    ring: Option<CommandSender>,
    events: Option<OwnedFd>,
    /// A connection without a context.
    spare: Option<Connection>,
    device: Option<Device>,
    pd: u32,
    channel: Option<(u32, OwnedFd)>,
    cq: Option<(u32, CqConsumer)>,
    qp: Option<ProgramQp>,
    memory: Memory,
    mr: Option<(u32, u32)>,
    /// The id of the connection, and whether a listener exists.
    id: Option<CmId>,
    listens: bool,
    port: u16,
    peer_key: u32,
    events_read: BTreeMap<CmId, u32>,
    posted: VecDeque<Posted>,
    next_wr: u64,
    next_receive: u64,
    /// Requests still to post.
    left: u64,
    disconnected: bool,
    last_progress: Nanos,
}

/// A message that one end has sent and the other has not received: its length and the number of its pattern.
type Message = (u32, u64);

/// Two programs; the first one connects to the second.
pub struct HonestPair {
    name: String,
    rng: Rng,
    ends: [Option<End>; 2],
    /// Messages under way from each end.
    messages: [VecDeque<Message>; 2],
    /// The value of each end's word for atomics, which the other end changes.
    words: [u64; 2],
    /// A program has died.
    bereaved: bool,
    /// The client has disconnected.
    parting: bool,
    /// Requests completed.
    pub completed: u64,
}

fn fresh_end(node: usize, uid: u32, left: u64, now: Nanos) -> End {
    End {
        node,
        uid,
        phase: Phase::Setup(0),
        cm: None,
        ring: None,
        events: None,
        spare: None,
        device: None,
        pd: 0,
        channel: None,
        cq: None,
        qp: None,
        memory: Memory::new(MEMORY),
        mr: None,
        id: None,
        listens: false,
        port: 0,
        peer_key: 0,
        events_read: BTreeMap::new(),
        posted: VecDeque::new(),
        next_wr: 0,
        next_receive: 0,
        left,
        disconnected: false,
        last_progress: now,
    }
}

impl HonestPair {
    /// Two programs that have not started, on the hosts `nodes`, of users of their own.
    pub fn new(mut rng: Rng, nodes: [usize; 2], first_uid: u32, now: Nanos) -> HonestPair {
        let ends = [0, 1].map(|n| Some(fresh_end(nodes[n], first_uid + n as u32, rng.between(0, 200), now)));
        for end in ends.iter().flatten() {
            end.memory.write(CONSTANT, &pattern(u64::from(end.uid), SLOT as usize));
        }
        let name = format!("users {first_uid} and {}", first_uid + 1);
        let messages = [VecDeque::new(), VecDeque::new()];
        HonestPair { name, rng, ends, messages, words: [0; 2], bereaved: false, parting: false, completed: 0 }
    }

    /// Whether both programs have left or died.
    pub fn is_over(&self) -> bool {
        self.ends.iter().flatten().all(|end| end.phase == Phase::Gone)
    }

    /// Queue pair numbers of the programs.
    pub fn qpns(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().flatten().filter_map(|end| end.qp.as_ref().map(|qp| qp.grant.qpn))
    }

    /// A program dies at once, whatever it has begun.
    pub fn kill(&mut self, nodes: &mut [Node]) {
        let which = self.rng.below(2) as usize;
        let Some(end) = self.ends[which].take_if(|end| end.phase != Phase::Gone) else { return };
        self.bereaved = true;
        let connections = [&end.cm, &end.spare].map(|c| c.as_ref().map(|c| c.id));
        let device = end.device.as_ref().map(|d| d.connection.id);
        connections.into_iter().chain([device]).flatten().for_each(|id| nodes[end.node].close(id));
        if let Some(other) = &mut self.ends[1 - which] {
            other.last_progress = nodes[end.node].host.now();
        }
    }

    /// One step of one of the programs. Returns whether it did anything.
    pub fn step(&mut self, nodes: &mut [Node], addrs: &[IpAddr]) -> bool {
        let which = self.rng.below(2) as usize;
        let Some(mut end) = self.ends[which].take() else { return false };
        let node = end.node;
        let now = nodes[node].host.now();
        let busy = match end.phase {
            Phase::Setup(step) => self.set_up(&mut end, &mut nodes[node], step, which),
            Phase::Ready | Phase::Connecting => self.connect(&mut end, &mut nodes[node], addrs, which),
            Phase::Connected => self.exchange(&mut end, &mut nodes[node], addrs, which),
            Phase::Leaving(step) => self.leave(&mut end, &mut nodes[node], step),
            Phase::Gone => false,
        };
        if busy || end.phase == Phase::Gone {
            end.last_progress = now;
        }
        let waited = now.since(end.last_progress);
        if waited > PATIENCE && self.may_wait_no_longer(&mut end, which) {
            panic!("{}: program {which} waits in {:?} since {} ms", self.name, end.phase, waited.0 / 1_000_000);
        }
        if self.rng.chance(1, 8) {
            check_charges(&end, &nodes[end.node]);
        }
        self.ends[which] = Some(end);
        busy
    }

    /// A program that waits for a peer that has died before they were connected gives up. False: it did.
    fn may_wait_no_longer(&self, end: &mut End, which: usize) -> bool {
        let other = self.ends[1 - which].as_ref();
        let unconnected = matches!(end.phase, Phase::Ready | Phase::Connecting);
        if unconnected && (self.bereaved || other.is_some_and(|o| matches!(o.phase, Phase::Leaving(_) | Phase::Gone))) {
            end.phase = Phase::Leaving(0);
            return false;
        }
        true
    }

    /// The result of a request; `None` if a failure was injected into it, and it must be tried again.
    fn granted<T>(&self, end: &End, result: Result<T, Refusal>) -> Option<T> {
        let injected = crate::take_failure();
        match result {
            Ok(value) => Some(value),
            Err(_) if injected => None,
            Err(why) => panic!("{}: user {} in {:?} was refused: {}", self.name, end.uid, end.phase, why.sentence),
        }
    }

    /// Makes the next object of a program.
    fn set_up(&mut self, end: &mut End, node: &mut Node, step: u32, which: usize) -> bool {
        let before = charges(end.uid, node);
        crate::plan_failure(&mut self.rng);
        let result = set_up_object(end, node, step, which == 1, &mut self.rng);
        if self.granted(end, result).is_some() {
            end.phase = if step == LAST_OBJECT { Phase::Ready } else { Phase::Setup(step + 1) };
        } else {
            assert_eq!(charges(end.uid, node), before, "{}: a refused request was charged, step {step}", self.name);
        }
        true
    }

    /// Sends a command of connection management, with or without waiting for it.
    fn command(&mut self, end: &mut End, node: &mut Node, command: CmCommand) {
        if let Some(ring) = end.ring.as_ref().filter(|_| self.rng.chance(3, 4)) {
            assert!(ring.send(std::slice::from_ref(&command)).expect("sent"), "the ring is full");
            return;
        }
        let result = end.cm.as_mut().expect("connected").command(node, command);
        if let Err(why) = result {
            assert!(self.bereaved, "{}: user {} in {:?}: {}", self.name, end.uid, end.phase, why.sentence);
        }
    }

    /// Reads one event and acts on it; begins the connection.
    fn connect(&mut self, end: &mut End, node: &mut Node, addrs: &[IpAddr], which: usize) -> bool {
        if let Some(event) = next_event(end) {
            self.on_event(end, node, addrs, &event);
            return true;
        }
        let server = self.ends[1].as_ref().filter(|s| s.phase == Phase::Ready);
        if which == 0
            && end.phase == Phase::Ready
            && let Some(dst) = server.map(|s| CmAddr { ip: addrs[s.node], port: s.port, scope: 0 })
        {
            end.phase = Phase::Connecting;
            self.command(end, node, CmCommand::ResolveAddr { id: ID, src: None, dst, timeout_ms: 2000 });
            return true;
        }
        false
    }

    fn on_event(&mut self, end: &mut End, node: &mut Node, addrs: &[IpAddr], event: &CmEvent) {
        use CmEventKind as K;
        let qp =
            || CmQp { token: end.device.as_ref().expect("open").token, qpn: end.qp.as_ref().expect("made").grant.qpn };
        match event.kind {
            K::AddrResolved => self.command(end, node, CmCommand::ResolveRoute { id: ID, timeout_ms: 2000 }),
            K::RouteResolved => {
                let data = CmData::new(&own_data(end)).expect("short");
                let command = CmCommand::Connect { id: ID, qp: Some(qp()), param: param(), data };
                self.command(end, node, command);
            }
            K::ConnectRequest => {
                // A hostile peer may have seen the private data; it has another address.
                let theirs = self.ends[0].as_ref().map(|client| (own_data(client), gid_of(addrs[client.node])));
                let expected = theirs
                    .is_some_and(|(data, gid)| event.data.as_slice().starts_with(&data) && event.route.dgid == gid);
                if end.id.is_none() && expected && end.phase == Phase::Ready {
                    end.id = Some(event.id);
                    end.peer_key = key_in(event);
                    let data = CmData::new(&own_data(end)).expect("short");
                    let command = CmCommand::Accept { id: event.id, qp: Some(qp()), param: param(), data };
                    self.command(end, node, command);
                } else {
                    // Of a hostile peer, or a repetition.
                    let command = CmCommand::Destroy { id: event.id, read: 0 };
                    let _ = end.cm.as_mut().expect("connected").command(node, command);
                }
            }
            K::Established if end.id == Some(event.id) => {
                if event.id == ID {
                    end.peer_key = key_in(event);
                }
                end.phase = Phase::Connected;
            }
            K::Disconnected => end.disconnected = true,
            K::TimewaitExit => {}
            _ => {
                let gone = self.bereaved || self.parting;
                assert!(
                    gone,
                    "{}: user {} in {:?}: event {event:?} ({:?})",
                    self.name,
                    end.uid,
                    end.phase,
                    event.sentence()
                );
                end.phase = Phase::Leaving(0);
            }
        }
        let over = end.disconnected && (self.bereaved || self.parting);
        if end.disconnected && !over {
            panic!("{}: user {} was disconnected in {:?}", self.name, end.uid, end.phase);
        }
        if over && !matches!(end.phase, Phase::Leaving(_)) {
            end.phase = Phase::Leaving(0);
        }
    }

    /// Whether nothing of this end's is under way.
    fn is_drained(&self, end: &End) -> bool {
        end.left == 0 && end.posted.is_empty() && self.messages.iter().all(VecDeque::is_empty)
    }

    /// Takes a completion, or an event, or posts a request.
    fn exchange(&mut self, end: &mut End, node: &mut Node, addrs: &[IpAddr], which: usize) -> bool {
        let mut cqe = Cqe::default();
        if end.cq.as_mut().expect("made").1.poll(&mut cqe) {
            self.on_completion(end, &cqe, which);
            return true;
        }
        if let Some((_, pipe)) = &end.channel {
            // Events of completions are only counted on: polling finds all completions.
            while read_record::<8>(pipe).is_some() {}
        }
        if let Some(event) = next_event(end) {
            self.on_event(end, node, addrs, &event);
            return true;
        }
        if end.left > 0 && (end.posted.len() as u64) < SLOTS && self.rng.chance(1, 2) {
            self.post(end, which);
            return true;
        }
        let other_done = self.ends[1 - which].as_ref().is_some_and(|o| o.left == 0 && o.posted.is_empty());
        if which == 0 && other_done && self.is_drained(end) && !end.disconnected && end.phase == Phase::Connected {
            (end.disconnected, self.parting) = (true, true);
            end.phase = Phase::Leaving(0);
            self.command(end, node, CmCommand::Disconnect { id: ID });
            return true;
        }
        false
    }

    fn on_completion(&mut self, end: &mut End, cqe: &Cqe, which: usize) {
        if cqe.status != WcStatus::Success as u8 {
            let why = format!("{}: user {}: completion {cqe:?}", self.name, end.uid);
            assert!(self.bereaved || self.parting, "{why}");
            end.phase = Phase::Leaving(0);
            return;
        }
        if cqe.is_recv != 0 {
            return self.on_message(end, cqe, which);
        }
        end.qp.as_mut().expect("made").sq.free(cqe.sq_consumer);
        let posted = end.posted.pop_front().expect("a completion of a request");
        let Posted { wr_id, opcode, len, slot, expected } = posted;
        assert_eq!((cqe.wr_id, cqe.opcode), (wr_id, opcode as u8), "{}: completions are out of order", self.name);
        self.completed += 1;
        let peer = self.ends[1 - which].as_ref();
        match opcode {
            WcOpcode::RdmaWrite => {
                // A peer that has died has no memory.
                if let Some(peer) = peer {
                    let seen = peer.memory.read(TARGETS + slot * SLOT, len as usize);
                    assert!(seen == pattern(expected, len as usize), "{}: wrong bytes were written", self.name);
                }
            }
            WcOpcode::RdmaRead => {
                let seen = end.memory.read(RESULTS + slot * SLOT, len as usize);
                assert!(
                    seen == pattern(expected, SLOT as usize)[..len as usize],
                    "{}: wrong bytes were read",
                    self.name
                );
                assert_eq!(cqe.byte_len, len);
            }
            WcOpcode::FetchAdd | WcOpcode::CompSwap => {
                assert_eq!(
                    end.memory.word(RESULTS + slot * SLOT),
                    expected,
                    "{}: an atomic found another value",
                    self.name
                );
            }
            _ => {}
        }
    }

    fn on_message(&mut self, end: &mut End, cqe: &Cqe, which: usize) {
        let slot = end.next_receive % SLOTS;
        end.next_receive += 1;
        let (len, number) = self.messages[1 - which].pop_front().expect("a message was sent");
        assert_eq!((cqe.wr_id, cqe.byte_len), (slot, len), "{}: a message out of order", self.name);
        let seen = end.memory.read(RECEIVES + slot * SLOT, len as usize);
        assert!(seen == pattern(number, len as usize), "{}: wrong bytes were received", self.name);
        post_receive(end, slot);
    }

    /// Posts a random request.
    fn post(&mut self, end: &mut End, which: usize) {
        end.left -= 1;
        let (wr_id, slot) = (end.next_wr, end.next_wr % SLOTS);
        end.next_wr += 1;
        let most = [64, 2048, SLOT][self.rng.below(3) as usize];
        let (len, number) = (self.rng.between(0, most) as u32, self.rng.next_u64());
        let key = end.mr.expect("registered").1;
        let remote = |at: u64| (crate::program::MEMORY_AT + at, end.peer_key);
        let mut wqe = SendWqe { wr_id, flags: send_flags::SIGNALED as u16, ..SendWqe::default() };
        let mut from = (SOURCES + slot * SLOT, len);
        let (request, opcode, expected) = match self.rng.below(5) {
            0 | 1 => {
                end.memory.write(from.0, &pattern(number, len as usize));
                self.messages[which].push_back((len, number));
                (WrOpcode::Send, WcOpcode::Send, number)
            }
            2 => {
                end.memory.write(from.0, &pattern(number, len as usize));
                (wqe.remote_addr, wqe.rkey) = remote(TARGETS + slot * SLOT);
                (WrOpcode::RdmaWrite, WcOpcode::RdmaWrite, number)
            }
            3 => {
                from.0 = RESULTS + slot * SLOT;
                (wqe.remote_addr, wqe.rkey) = remote(CONSTANT);
                let peer = u64::from(if end.uid.is_multiple_of(2) { end.uid + 1 } else { end.uid - 1 });
                (WrOpcode::RdmaRead, WcOpcode::RdmaRead, peer)
            }
            _ => {
                from = (RESULTS + slot * SLOT, 8);
                (wqe.remote_addr, wqe.rkey) = remote(WORD);
                let (before, word) = (self.words[1 - which], &mut self.words[1 - which]);
                wqe.compare_add = if number.is_multiple_of(3) { before } else { number };
                wqe.swap = number / 3;
                if number.is_multiple_of(2) {
                    *word = before.wrapping_add(wqe.compare_add);
                    (WrOpcode::AtomicFetchAndAdd, WcOpcode::FetchAdd, before)
                } else {
                    *word = if wqe.compare_add == before { wqe.swap } else { before };
                    (WrOpcode::AtomicCmpAndSwp, WcOpcode::CompSwap, before)
                }
            }
        };
        wqe.opcode = request as u8;
        end.posted.push_back(Posted { wr_id, opcode, len: from.1, slot, expected });
        let qp = end.qp.as_mut().expect("made");
        qp.sq.write(&wqe, &[sge(from.0, from.1, key)]).expect("room in the send queue");
        if qp.sq.post() {
            end.device.as_ref().expect("open").ring(end.qp.as_ref().expect("made"));
        }
    }

    /// Ends the next object of a program.
    fn leave(&mut self, end: &mut End, node: &mut Node, step: u32) -> bool {
        // A part of the programs dies instead.
        if self.rng.chance(1, 40) {
            end.phase = Phase::Gone;
        } else {
            crate::plan_failure(&mut self.rng);
            let result = end_object(end, node, step);
            if self.granted(end, result).is_some() {
                end.phase = if step == LAST_END { Phase::Gone } else { Phase::Leaving(step + 1) };
            }
        }
        if end.phase == Phase::Gone {
            (end.ring, end.events, end.qp, end.cq, end.channel) = (None, None, None, None, None);
            let device = end.device.take().map(|d| d.connection.id);
            [end.cm.take().map(|c| c.id), device].into_iter().flatten().for_each(|id| node.close(id));
        }
        true
    }
}

/// The private data of an end: its user and its key.
fn own_data(end: &End) -> [u8; 8] {
    let [uid, key] = [end.uid, end.mr.map_or(0, |mr| mr.1)].map(u32::to_be_bytes);
    [uid[0], uid[1], uid[2], uid[3], key[0], key[1], key[2], key[3]]
}

fn key_in(event: &CmEvent) -> u32 {
    let data = event.data.as_slice();
    u32::from_be_bytes([data[4], data[5], data[6], data[7]])
}

fn param() -> ConnParam {
    ConnParam { responder_resources: 8, initiator_depth: 8, retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
}

/// The next event of connection management.
fn next_event(end: &mut End) -> Option<CmEvent> {
    let event = read_cm_event(end.events.as_ref()?)?;
    let of = if event.kind == CmEventKind::ConnectRequest { event.listener } else { event.id };
    *end.events_read.entry(of).or_default() += 1;
    Some(event)
}

fn post_receive(end: &mut End, slot: u64) {
    let key = end.mr.expect("registered").1;
    let qp = end.qp.as_mut().expect("made");
    qp.rq.write(slot, &[sge(RECEIVES + slot * SLOT, SLOT as u32, key)]).expect("room in the receive queue");
    if qp.rq.post() {
        end.device.as_ref().expect("open").ring(end.qp.as_ref().expect("made"));
    }
}

const LAST_OBJECT: u32 = 12;

/// Makes object number `step`.
fn set_up_object(end: &mut End, node: &mut Node, step: u32, serves: bool, rng: &mut Rng) -> Result<(), Refusal> {
    let cm = end.cm.as_mut();
    let device = end.device.as_mut();
    match step {
        0 => end.cm = Some(Connection::open(node, end.uid)?),
        1 => {
            let request = Request::CmChannel { channel: CHANNEL };
            let mut answer = cm.expect("connected").call(node, &request, Vec::new())?;
            end.events = answer.fds.pop().map(without_waiting);
        }
        2 => end.ring = if rng.chance(1, 2) { Some(cm.expect("connected").command_ring(node)?) } else { None },
        3 => end.spare = Some(Connection::open(node, end.uid)?),
        4 => {
            let opened = Device::open(node, end.spare.take().expect("connected"));
            end.device = Some(opened.map_err(|(connection, why)| {
                end.spare = Some(connection);
                why
            })?);
        }
        5 => end.pd = device.expect("open").pd(node)?,
        6 => end.channel = Some(device.expect("open").channel(node)?),
        7 => end.cq = Some(device.expect("open").cq(node, 64, end.channel.as_ref().map(|c| c.0))?),
        8 => end.mr = Some(device.expect("open").register(node, end.pd, &end.memory)?),
        9 => {
            let cq = end.cq.as_ref().expect("made").0;
            end.qp = Some(device.expect("open").qp(node, end.pd, cq, CAP)?);
        }
        10 => {
            let qp = end.qp.as_ref().expect("made").grant.qp;
            device.expect("open").init(node, qp)?;
            (0..SLOTS).for_each(|slot| post_receive(end, slot));
        }
        11 => {
            let id = if serves { LISTENER } else { ID };
            let create = CmCommand::Create { id, channel: CHANNEL, ps: PortSpace::Tcp, qp_type: QpType::Rc };
            cm.expect("connected").command(node, create)?;
            (end.id, end.listens) = if serves { (None, true) } else { (Some(ID), false) };
        }
        _ if serves => {
            let listen = CmCommand::Listen { id: LISTENER, backlog: 4 };
            let CmReply::Route(route) = cm.expect("connected").command(node, listen)? else { panic!("no route") };
            end.port = route.src.expect("bound").port;
        }
        _ => {}
    }
    Ok(())
}

const LAST_END: u32 = 8;

/// Ends object number `step`.
fn end_object(end: &mut End, node: &mut Node, step: u32) -> Result<(), Refusal> {
    let read = |end: &End, id: CmId| end.events_read.get(&id).copied().unwrap_or(0);
    let device = |end: &mut End, node: &mut Node, request: Request| {
        end.device.as_mut().expect("open").call(node, &request, Vec::new()).map(drop)
    };
    match step {
        0 => {
            if let Some(id) = end.id {
                let command = CmCommand::Destroy { id, read: read(end, id) };
                end.cm.as_mut().expect("connected").command(node, command)?;
                end.id = None;
            }
        }
        1 if end.listens => {
            let command = CmCommand::Destroy { id: LISTENER, read: read(end, LISTENER) };
            end.cm.as_mut().expect("connected").command(node, command)?;
            end.listens = false;
        }
        2 => {
            let qp = end.qp.as_ref().expect("made").grant.qp;
            device(end, node, Request::DestroyQp { qp })?;
            end.qp = None;
        }
        3 => {
            let mr = end.mr.expect("registered").0;
            device(end, node, Request::DeregMr { mr })?;
            end.mr = None;
        }
        4 => {
            let cq = end.cq.as_ref().expect("made").0;
            device(end, node, Request::DestroyCq { cq })?;
            end.cq = None;
        }
        5 => {
            let channel = end.channel.as_ref().expect("made").0;
            device(end, node, Request::DestroyChannel { channel })?;
            end.channel = None;
        }
        6 => {
            let pd = end.pd;
            device(end, node, Request::DeallocPd { pd })?;
            end.pd = u32::MAX;
        }
        7 => {
            let request = Request::CmCloseChannel { channel: CHANNEL };
            end.cm.as_mut().expect("connected").call(node, &request, Vec::new())?;
            end.events = None;
        }
        _ => {}
    }
    Ok(())
}

/// What an account is charged, by resource.
fn charges(uid: u32, node: &Node) -> Vec<u64> {
    let account = node.account(uid);
    Resource::ALL.iter().map(|resource| account.used(*resource)).collect()
}

/// Compares what the program's account is charged with what the program has.
fn check_charges(end: &End, node: &Node) {
    let account = node.account(end.uid);
    let sessions = [end.cm.is_some(), end.spare.is_some(), end.device.is_some()].map(u64::from).iter().sum();
    let Phase::Gone = end.phase else {
        let pd = end.device.is_some() && !matches!(end.phase, Phase::Setup(0..=5)) && end.pd != u32::MAX;
        let expected = [
            (Resource::Session, sessions),
            (Resource::Context, u64::from(end.device.is_some())),
            (Resource::Pd, u64::from(pd)),
            (Resource::Channel, u64::from(end.channel.is_some())),
            (Resource::Cq, u64::from(end.cq.is_some())),
            (Resource::Mr, u64::from(end.mr.is_some())),
            (Resource::Qp, u64::from(end.qp.is_some())),
            (Resource::CmChannel, u64::from(end.events.is_some())),
            (Resource::Srq, 0),
            (Resource::Mw, 0),
            (Resource::Ah, 0),
        ];
        for (resource, count) in expected {
            assert_eq!(account.used(resource), count, "{resource:?} of user {} in {:?}", end.uid, end.phase);
        }
        return;
    };
    if account.used(Resource::Session) == 0 {
        // A connection takes its place until it is forgotten, after TIMEWAIT.
        let left = node.connections().min(account.used(Resource::CmId));
        let mut expected = vec![0; Resource::COUNT];
        expected[Resource::CmId as usize] = left;
        assert_eq!(charges(end.uid, node), expected, "user {} has left and is charged", end.uid);
    }
}
