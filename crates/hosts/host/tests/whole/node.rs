//! One host of a simulation: the control plane of a daemon without its sockets, and workers that are run by hand.
//!
//! A client's packets wait in a queue, as in a socket, until a pass of the host takes some of them; so do its replies. The order
//! of a pass is that of the daemon's server: commands in rings first, then clients without a context, then contexts.

use crate::network::SharedNetwork;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_control::frame::{self, ControlPacket, HEADER_BYTES};
use burst_control::{FDS_MAX, MESSAGE_MAX, Refusal};
use burst_host::session::ENDED_AT_ONCE;
use burst_host::{
    AccountBy, ClientProcess, Clock, Host, HostOptions, PacketAnswer, Policy, Session, Upkeep, WorkerMode,
};
use burst_ledger::{Account, AccountId, Resource};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Packets of one client that one pass carries out.
const PACKETS_PER_PASS: usize = 16;

/// A packet and its descriptors.
pub type Packet = (Vec<u8>, Vec<OwnedFd>);

/// Number of a connection; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(u64);

/// The host's end of a connection.
struct NodeClient {
    id: ClientId,
    session: Session,
    /// Packets of the client that the host has not read.
    inbox: VecDeque<Packet>,
    /// Replies that the client has not read.
    outbox: VecDeque<Packet>,
    /// The client has closed its end.
    closed: bool,
    /// The host's end of the socket for bells, and whether the ring of commands is marked as idle.
    bell: Option<OwnedFd>,
    idle: bool,
}

impl AsMut<Session> for NodeClient {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// One host.
pub struct Node {
    pub host: Host,
    number: usize,
    clients: Vec<NodeClient>,
    /// Sessions of clients that have left.
    ending: VecDeque<Session>,
    upkeep: Upkeep,
    asleep: Vec<bool>,
    network: SharedNetwork,
    rng: Rng,
    next_client: u64,
}

impl Node {
    /// A host on the network.
    pub fn new(number: usize, workers: usize, network: &SharedNetwork, clock: &Clock, rng: &mut Rng) -> Node {
        let options = HostOptions {
            packet_ring: false,
            ports: Vec::new(),
            workers,
            worker_mode: WorkerMode::InPlace,
            spin: Duration::ZERO,
            window_bytes: 1 << 20,
            cc: burst_cc::CcTable::default(),
            selective: false,
            rto: burst_base::RtoMode::default(),
            urma_lanes: 1,
            urma_caqm: false,
            hold_urma: false,
            gpu: true,
            policy: Policy { share_percent: 50, reserve_percent: 10 },
            account_by: AccountBy::User,
            account_depth: 0,
            subordinate_ids: None,
            lend: false,
            lent: None,
            seed: Some(rng.next_u64()),
        };
        let ports = (0..workers).map(|w| vec![Box::new(network.port(number, w)) as _]).collect();
        let host = Host::with_ports(&options, clock.clone(), ports).expect("a host");
        let upkeep = Upkeep::without_events(host.now());
        Node {
            host,
            number,
            clients: Vec::new(),
            ending: VecDeque::new(),
            upkeep,
            asleep: vec![false; workers],
            network: network.clone(),
            rng: rng.fork(),
            next_client: 0,
        }
    }

    /// A program of a user connects.
    pub fn connect(&mut self, uid: u32) -> Result<ClientId, Refusal> {
        let session = Session::admit(&self.host, ClientProcess { pid: std::process::id(), uid })?;
        self.next_client += 1;
        let id = ClientId(self.next_client);
        let (inbox, outbox) = (VecDeque::new(), VecDeque::new());
        self.clients.push(NodeClient { id, session, inbox, outbox, closed: false, bell: None, idle: false });
        Ok(id)
    }

    fn client(&mut self, id: ClientId) -> Option<&mut NodeClient> {
        self.clients.iter_mut().find(|c| c.id == id)
    }

    /// Whether the host has not ended the connection.
    pub fn is_connected(&mut self, id: ClientId) -> bool {
        self.client(id).is_some()
    }

    /// A client sends a packet. Nothing happens if the host has ended the connection.
    pub fn send(&mut self, id: ClientId, packet: Packet) {
        if let Some(client) = self.client(id) {
            client.inbox.push_back(packet);
        }
    }

    /// A client reads a reply.
    pub fn receive(&mut self, id: ClientId) -> Option<Packet> {
        self.client(id)?.outbox.pop_front()
    }

    /// The client's end of a socket for the bells of its ring of commands.
    pub fn bell(&mut self, id: ClientId) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        self.client(id)?.bell = Some(ours);
        Some(theirs)
    }

    /// The client's program has closed its end, or has died. What it has sent is carried out first, as far as it was sent.
    pub fn close(&mut self, id: ClientId) {
        if let Some(client) = self.client(id) {
            client.closed = true;
            client.outbox.clear();
        }
    }

    /// The account of a user.
    pub fn account(&self, uid: u32) -> Account {
        self.host.ledger.account(AccountId::User(uid), false)
    }

    /// How many connections the workers have.
    pub fn connections(&self) -> u64 {
        let numbers = self.host.cm_stats().numbers;
        numbers.into_iter().find(|(name, _)| name == "connections").expect("a number").1
    }

    /// One pass of the control thread. Returns whether anything was done.
    pub fn pass(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.clients.len() {
            busy |= self.serve_ring(index);
        }
        for with_context in [false, true] {
            for index in 0..self.clients.len() {
                if self.clients[index].session.has_context() == with_context {
                    busy |= self.serve(index);
                }
            }
            self.host.post_cm_jobs();
        }
        busy |= self.end_clients();
        let due = self.upkeep.due_at(&self.host, !self.clients.is_empty()).is_some_and(|at| at <= self.host.now());
        self.upkeep.run(&mut self.host, self.clients.as_mut_slice(), false);
        busy | due
    }

    /// Carries out the commands in all rings.
    pub fn serve_rings(&mut self) {
        for client in &mut self.clients {
            if client.session.receive_commands(&mut self.host).is_err() {
                client.closed = true;
                client.inbox.clear();
            }
        }
    }

    /// Carries out the commands in a client's ring, unless the ring is idle and its bell has not rung.
    fn serve_ring(&mut self, index: usize) -> bool {
        let client = &mut self.clients[index];
        if !client.session.has_command_ring() {
            return false;
        }
        let rung = client.bell.as_ref().is_some_and(|bell| recv(bell, &mut [0u8; 64][..], RecvFlags::DONTWAIT).is_ok());
        if client.idle && !rung && client.inbox.is_empty() && !client.closed {
            return false;
        }
        client.idle = false;
        client.session.stay_awake();
        let count = match client.session.receive_commands(&mut self.host) {
            Ok(count) => count,
            Err(_) => {
                client.closed = true;
                client.inbox.clear();
                return true;
            }
        };
        client.idle = self.rng.chance(1, 4) && client.session.try_idle();
        count > 0 || rung
    }

    /// Carries out some packets of a client.
    fn serve(&mut self, index: usize) -> bool {
        let mut busy = false;
        for _ in 0..self.rng.between(1, PACKETS_PER_PASS as u64) {
            let client = &mut self.clients[index];
            let Some((bytes, fds)) = client.inbox.pop_front() else { break };
            busy = true;
            assert!(bytes.len() <= MESSAGE_MAX && fds.len() <= FDS_MAX, "the socket refuses such a packet");
            let fds = client.session.foreign(&self.host, fds);
            let packet = match ControlPacket::parse(&bytes) {
                Ok(packet) => packet,
                Err(_) => {
                    self.hang_up(index);
                    break;
                }
            };
            let sequence = packet.header.sequence;
            let answer = client.session.answer_packet(&mut self.host, &packet, fds);
            while client.session.is_unfinished() && !client.session.continue_request(&mut self.host) {}
            match answer {
                PacketAnswer::Nothing => {}
                PacketAnswer::Reply(answer) => {
                    let (reply, fds) = *answer;
                    let bytes = frame::encode(sequence, &reply).expect("a reply can be encoded");
                    assert!(
                        bytes.len() <= MESSAGE_MAX + HEADER_BYTES && fds.len() <= FDS_MAX,
                        "a reply that cannot be sent"
                    );
                    assert!(fds.len() >= reply.new_segments as usize);
                    if !client.closed {
                        client.outbox.push_back((bytes, fds));
                    }
                }
                PacketAnswer::WrongVersion(_) | PacketAnswer::Disconnect(_) => {
                    self.hang_up(index);
                    break;
                }
            }
        }
        busy
    }

    /// Ends a connection: nothing more of the client is read.
    fn hang_up(&mut self, index: usize) {
        self.clients[index].closed = true;
        self.clients[index].inbox.clear();
    }

    /// Ends sessions of clients that have left, in steps.
    fn end_clients(&mut self) -> bool {
        let mut index = 0;
        while index < self.clients.len() {
            if self.clients[index].closed && self.clients[index].inbox.is_empty() {
                let gone = self.clients.swap_remove(index);
                self.ending.push_back(gone.session);
            } else {
                index += 1;
            }
        }
        let Some(mut session) = self.ending.pop_front() else { return false };
        let budget = self.rng.between(1, ENDED_AT_ONCE as u64) as usize;
        if !session.end_some(&mut self.host, budget) {
            self.ending.push_back(session);
        }
        true
    }

    /// One pass of a worker, if it is awake or something wakes it. Returns whether anything was done.
    pub fn turn(&mut self, worker: usize) -> bool {
        let handle = &self.host.workers()[worker];
        if self.asleep[worker] {
            let now = self.host.now();
            let due = handle.next_deadline().min(self.network.lock().due(self.number, worker)) <= now;
            if !due && !handle.is_woken() {
                return false;
            }
            handle.wake();
            self.asleep[worker] = false;
        }
        let busy = handle.turn().expect("the worker is alive");
        if !busy && self.rng.chance(1, 4) {
            self.asleep[worker] = handle.try_sleep();
        }
        busy
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Nanos {
        let workers = self.host.workers().iter().map(|w| w.next_deadline()).min().unwrap_or(Nanos::NEVER);
        workers.min(self.upkeep.due_at(&self.host, !self.clients.is_empty()).unwrap_or(Nanos::NEVER))
    }

    /// Ends all clients' connections and carries out everything that this causes.
    pub fn end_all(&mut self) {
        self.clients.iter_mut().for_each(|client| client.closed = true);
        while self.pass() && !(self.clients.is_empty() && self.ending.is_empty()) {}
    }

    /// Checks that nothing is left of any program.
    pub fn check_empty(&self) {
        assert!(self.clients.is_empty() && self.ending.is_empty(), "sessions are left");
        for resource in Resource::ALL {
            assert_eq!(self.host.ledger.used(*resource), 0, "{resource:?} of ended programs");
        }
        let host = &self.host;
        let numbers = [&host.contexts, &host.pds, &host.cqs, &host.ahs].map(|numbers| numbers.taken());
        assert_eq!(numbers, [0; 4], "numbers of contexts, protection domains, completion queues, address handles");
        assert!(
            host.groups.groups.is_empty() && host.xrc.targets.is_empty(),
            "multicast groups or XRC targets are left"
        );
        use burst_host::device::DeviceObject::{Ah, Cq, Mr, Mw, Pd, Qp, Srq};
        for object in [Qp, Cq, Mr, Pd, Ah, Srq, Mw] {
            assert_eq!(host.devices[0].objects.count(object), 0, "{object:?} of ended programs");
        }
        let ids = host.cm_stats().numbers.into_iter().filter(|(name, _)| name == "ids" || name == "listeners");
        ids.for_each(|(name, count)| assert_eq!(count, 0, "{name} of ended programs"));
    }
}
