//! The world of the studies: hosts that run the real engine behind modelled host interfaces, on a modelled network.
//!
//! An operation's way: the program posts it (the processor is busy meanwhile), the adapter gets it, the protocol makes packets,
//! which pass the adapter's stages, the link and the other adapter's stages. What a request asks of the target's memory takes its
//! time before the target's protocol gets the packet; packets of one context do not overtake each other there. The answer comes
//! back in the same way, its completion gets to memory, and the program finds it. All but the protocol are constants of
//! [`crate::interface`] and the network of [`burst_fabric`]; a program has one processor.

use crate::closed_form::{LINK_GBPS, LINK_NS, StudyVerb};
use crate::host::{ContextCache, StudyHost};
use crate::interface::{HostInterface, JETTY_CACHE, QP_CACHE, StudyStack};
use crate::packets::{self, PacketRole, PacketView};
use crate::program::{EndedOp, StudyOp, StudyProgram};
use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, WcStatus};
use burst_base::{Nanos, RtoMode};
use burst_cc::{Algorithm, Params};
use burst_fabric::topology::Speeds;
use burst_fabric::{ClassSettings, Delivery, HostId, LinkFaults, Network, Switches, Topology, Train};
use burst_sim::flows::exponential;
use burst_sim::node::{MEMORY, MemoryPart, NodeConfig, SimHost};
use burst_sim::port::{Outgoing, SimPortConfig, lock};
use burst_sim::run::{PacketRun, PayloadMode};
use burst_sim::world::{shared_memory, train_of};
use burst_ubwire::ServiceMode;
use burst_urma::LossRecovery;
use rustix::fd::AsFd;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds per nanosecond.
pub const NS: u64 = 1_000;
/// Bytes of a host's memory, which has addresses only.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// The same if it has bytes.
const REAL_BYTES: u64 = 64 << 10;
/// Passes of a worker at one time.
const PASSES_MAX: u32 = 256;
/// Packets whose sizes are kept.
const TRACE_MAX: usize = 64;

/// Settings of a world.
#[derive(Clone, Debug)]
pub struct StudyConfig {
    /// How programs reach remote memory.
    pub stack: StudyStack,
    /// Number of hosts. Two have one link; more are around a switch, each link half as long.
    pub hosts: u32,
    /// Jetties of each host, or queue pairs to each peer.
    pub queues: u32,
    /// Pairs of hosts that talk: initiator, target.
    pub pairs: Vec<(u32, u32)>,
    /// Propagation from host to host.
    pub link_ns: u64,
    /// Rate of links in Gbit/s.
    pub rate_gbps: u64,
    /// Whether the adapter's stages take time.
    pub has_stages: bool,
    /// Share of packets lost on each link.
    pub loss: f64,
    /// Mean of a random part of each wait for link and PCI Express, in units of that wait.
    pub jitter: f64,
    /// Order of Jetties.
    pub service: ServiceMode,
    /// Selective repeat, otherwise go-back-N.
    pub is_selective: bool,
    /// Waits of RoCE's loss recovery.
    pub rto: RtoMode,
    /// First time-out of the bus, in nanoseconds.
    pub bus_rto_ns: u64,
    /// Congestion control: C-AQM on the bus, of RoCE this.
    pub cc: Option<Params>,
    /// Most bytes in flight.
    pub window: u32,
    /// Marks of switches.
    pub marks: ClassSettings,
    /// Bytes of a switch's buffer.
    pub buffer: u64,
    /// Whether the adapters' caches of contexts are modelled.
    pub has_caches: bool,
    /// Work requests that a queue pair holds.
    pub depth: u32,
    /// Whether RoCE's programs have memory, so that their atomics are real. (On the bus words that atomics change always are.)
    pub has_memory: bool,
    /// Seed.
    pub seed: u64,
}

impl StudyConfig {
    /// The paper's two nodes.
    pub fn new(stack: StudyStack) -> StudyConfig {
        StudyConfig {
            stack,
            hosts: 2,
            queues: 1,
            pairs: vec![(0, 1)],
            link_ns: LINK_NS,
            rate_gbps: LINK_GBPS,
            has_stages: true,
            loss: 0.0,
            jitter: 0.0,
            service: ServiceMode::Roi,
            is_selective: true,
            rto: RtoMode::Dedicated,
            bus_rto_ns: 100_000,
            cc: None,
            window: 1 << 20,
            marks: ClassSettings::default(),
            buffer: 32_000_000,
            has_caches: false,
            depth: 128,
            has_memory: false,
            seed: 1,
        }
    }
    /// Hosts around a switch, each of which talks to each.
    pub fn mesh(stack: StudyStack, hosts: u32) -> StudyConfig {
        let pairs = (0..hosts).flat_map(|a| (0..hosts).filter(move |b| *b != a).map(move |b| (a, b))).collect();
        StudyConfig { hosts, pairs, ..StudyConfig::new(stack) }
    }
    fn topology(&self) -> Topology {
        let links = if self.hosts == 2 { 1 } else { 2 };
        let rate = self.rate_gbps * 1_000_000_000;
        let speeds = Speeds { host: rate, fabric: rate, delay: self.link_ns * NS / links };
        let mut topology = if self.hosts == 2 { Topology::pair(speeds) } else { Topology::star(self.hosts, speeds) };
        topology.faults = LinkFaults { loss: self.loss, ..LinkFaults::default() };
        let classes = [self.marks; burst_fabric::CLASSES];
        topology.settings = Switches { adapter: u64::MAX / 2, buffer: self.buffer, classes, ..Switches::default() };
        topology
    }
    fn node(&self) -> NodeConfig {
        let mtu = Mtu::B4096;
        let port = SimPortConfig {
            link_mtu: mtu.bytes() + 128,
            rate_bps: self.rate_gbps * 1_000_000_000,
            // Each packet by itself.
            train_bytes: 1,
            receive_bytes: 0,
            hosts: self.hosts,
            knows_management: true,
            sees_marks: true,
        };
        let cc = self.cc.unwrap_or(Params::new(Algorithm::None, u64::from(self.window)));
        NodeConfig {
            port,
            mtu,
            cc: cc.with_window(u64::from(self.window)).into(),
            selective: self.is_selective,
            rto: self.rto,
            is_adapter: false,
            timeout: 8,
            depth: self.depth,
            pass_bytes: 1 << 20,
            payload: if self.has_memory { PayloadMode::Real } else { PayloadMode::Void },
            memory: if self.has_memory { REAL_BYTES } else { MEMORY_BYTES },
            seed: self.seed,
        }
    }
}

/// Something that happens at a host.
#[derive(Debug)]
enum StudyEvent {
    /// The program begins something by itself.
    Begin,
    /// The adapter has a work request.
    Post(u32),
    /// A packet leaves the adapter.
    Leave(Box<Train<PacketRun>>),
    /// A packet gets to the protocol.
    Enter { run: Box<PacketRun>, is_bus: bool, is_marked: bool, bytes: u32 },
    /// A completion is in memory.
    Complete(u32),
    /// The program has the result.
    End(u32),
    /// The engine is due.
    Wake,
}

#[derive(Debug)]
struct Scheduled {
    at: u64,
    number: u64,
    host: u32,
    event: StudyEvent,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct OpState {
    op: StudyOp,
    begun: u64,
    is_failure: bool,
    value: u64,
}

/// A packet that a host has sent: its role, bytes in the adapter and bytes on the link.
#[derive(Clone, Copy, Debug)]
pub struct TracedPacket {
    /// The sender.
    pub host: u32,
    /// What it asks for.
    pub role: PacketRole,
    /// Bytes of headers and payload behind UDP.
    pub nic: u64,
    /// Bytes with all that it takes on a link.
    pub wire: u64,
}

/// A program that does nothing.
struct Idle;

impl StudyProgram for Idle {
    fn next(&mut self, _host: u32, _now: u64) -> Option<StudyOp> {
        None
    }
    fn ended(&mut self, _host: u32, _ended: &EndedOp) {}
}

/// A world.
pub struct StudyWorld {
    /// Its settings.
    pub config: StudyConfig,
    /// The network.
    pub network: Network<PacketRun>,
    /// The hosts.
    pub hosts: Vec<StudyHost>,
    /// The first packets since this was cleared.
    pub trace: Vec<TracedPacket>,
    /// When an operation passed which place, if it is wanted: time, host, place. Acknowledgements are left out.
    pub timeline: Option<Vec<(u64, u32, &'static str)>>,
    /// The time, in picoseconds.
    pub now: u64,
    interface: HostInterface,
    events: BinaryHeap<Reverse<Scheduled>>,
    number: u64,
    ops: Vec<OpState>,
    free_ops: Vec<u32>,
    under_way: u64,
    rng: Rng,
    arrivals: Vec<Delivery<PacketRun>>,
    scratch: Vec<u8>,
}

impl StudyWorld {
    /// Hosts with their queues and connections, idle.
    ///
    /// # Errors
    /// A sentence when a host cannot be made.
    pub fn new(config: StudyConfig) -> Result<StudyWorld, String> {
        let topology = config.topology();
        topology.check()?;
        let node_config = config.node();
        let mut hosts = Vec::new();
        let memory = match config.has_memory {
            true => Some(shared_memory(u64::from(config.hosts) * REAL_BYTES).map_err(|e| e.to_string())?),
            false => None,
        };
        for host in 0..config.hosts {
            let offset = u64::from(host) * REAL_BYTES;
            let part = memory.as_ref().map(|file| MemoryPart { file: file.as_fd(), offset });
            let mut node = SimHost::new(HostId(host), 0, node_config, part).map_err(|e| e.to_string())?;
            let bus = match config.stack.is_bus() {
                true => Some(node.add_urma(|urma| {
                    urma.caqm = config.cc.is_some();
                    urma.window_max = config.window;
                    urma.rto_base = Nanos(config.bus_rto_ns);
                    let recovery = [LossRecovery::GoBackN, LossRecovery::Selective];
                    urma.recovery = recovery[usize::from(config.is_selective)];
                })?),
                false => None,
            };
            let room = if config.stack.is_bus() { JETTY_CACHE } else { QP_CACHE };
            hosts.push(StudyHost::new(node, bus, config.has_caches.then(|| ContextCache::new(room))));
        }
        let mut world = StudyWorld {
            interface: config.stack.interface(),
            network: Network::new(&topology, config.seed),
            hosts,
            trace: Vec::new(),
            timeline: None,
            now: 0,
            events: BinaryHeap::new(),
            number: 0,
            ops: Vec::new(),
            free_ops: Vec::new(),
            under_way: 0,
            rng: Rng::new(config.seed ^ 0x5bd1_e995),
            arrivals: Vec::new(),
            scratch: Vec::new(),
            config,
        };
        world.connect()?;
        // Receives that were posted get to the engines.
        (0..world.config.hosts).try_for_each(|host| world.run_host(host))?;
        Ok(world)
    }

    /// The time for engines.
    pub fn nanos(&self) -> Nanos {
        Nanos(self.now / NS)
    }

    /// Runs until all that the program begins has ended, or for `limit` picoseconds. True if all has ended.
    ///
    /// # Errors
    /// A sentence when an operation is refused, or nothing happens any more.
    pub fn run(&mut self, program: &mut dyn StudyProgram, limit: u64) -> Result<bool, String> {
        let until = self.now.saturating_add(limit);
        for host in 0..self.config.hosts {
            self.pump(host, program);
        }
        loop {
            let waits = (0..self.config.hosts).any(|host| program.next_at(host).is_some());
            if self.under_way == 0 && !waits {
                return Ok(true);
            }
            let Some(at) = self.next_event() else { return Err("operations wait for ever".into()) };
            if at > until {
                self.now = until;
                return Ok(false);
            }
            self.step(at, program)?;
        }
    }

    /// Lets what is on its way pass for `span` picoseconds; no program begins anything.
    ///
    /// # Errors
    /// As [`StudyWorld::run`].
    pub fn rest(&mut self, span: u64) -> Result<(), String> {
        let until = self.now + span;
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            self.step(at, &mut Idle)?;
        }
        self.now = until;
        Ok(())
    }

    fn note(&mut self, at: u64, host: u32, place: &'static str) {
        if let Some(timeline) = &mut self.timeline {
            timeline.push((at, host, place));
        }
    }

    fn next_event(&self) -> Option<u64> {
        let own = self.events.peek().map(|event| event.0.at);
        [own, self.network.next_event()].into_iter().flatten().min()
    }

    /// Handles what happens at `at`, which is the next time.
    fn step(&mut self, at: u64, program: &mut dyn StudyProgram) -> Result<(), String> {
        self.now = at;
        self.run_network();
        while self.events.peek().is_some_and(|event| event.0.at <= at) {
            let Some(Reverse(Scheduled { host, event, .. })) = self.events.pop() else { break };
            self.on_event(host, event, program)?;
        }
        Ok(())
    }

    fn schedule(&mut self, at: u64, host: u32, event: StudyEvent) {
        self.number += 1;
        self.events.push(Reverse(Scheduled { at, number: self.number, host, event }));
    }

    /// A wait of so many nanoseconds for PCI Express or the link, with its random part.
    fn wait(&mut self, ns: u64, is_random: bool) -> u64 {
        let wait = ns * NS;
        if self.config.jitter == 0.0 || !is_random {
            return wait;
        }
        wait + (exponential(&mut self.rng) * self.config.jitter * wait as f64) as u64
    }

    fn on_event(&mut self, host: u32, event: StudyEvent, program: &mut dyn StudyProgram) -> Result<(), String> {
        match event {
            StudyEvent::Begin => self.pump(host, program),
            StudyEvent::Post(id) => {
                self.note(self.now, host, "posted");
                self.post(host, id)?;
                self.run_host(host)?;
            }
            StudyEvent::Leave(train) => {
                if self.network.send(self.now, *train).is_err() {
                    return Err("an adapter is full".into());
                }
                self.run_network();
            }
            StudyEvent::Enter { run, is_bus, is_marked, bytes } => {
                let host_state = &self.hosts[host as usize];
                let wire = match &host_state.bus {
                    Some(bus) if is_bus => bus,
                    _ => &host_state.node.wire,
                };
                lock(wire).deliver(*run, is_marked, bytes);
                self.run_host(host)?;
            }
            StudyEvent::Complete(id) => {
                let interface = self.interface;
                let state = &mut self.hosts[host as usize];
                let end = state.processor_free_at.max(self.now) + (interface.poll + interface.poll_library) * NS;
                if interface.poll > 0 {
                    state.processor_free_at = end;
                }
                self.schedule(end, host, StudyEvent::End(id));
            }
            StudyEvent::End(id) => {
                self.end(host, id, program);
                self.pump(host, program);
            }
            StudyEvent::Wake => {
                if self.hosts[host as usize].wake_at <= self.now {
                    self.run_host(host)?;
                }
            }
        }
        Ok(())
    }

    /// Lets the program of a host begin what it wants to.
    fn pump(&mut self, host: u32, program: &mut dyn StudyProgram) {
        while let Some(op) = program.next(host, self.now) {
            self.begin(host, op);
        }
        // One event for each time: programs are asked after each of their operations.
        if let Some(at) = program.next_at(host).filter(|at| self.hosts[host as usize].begin_at != *at) {
            self.hosts[host as usize].begin_at = at;
            self.schedule(at.max(self.now), host, StudyEvent::Begin);
        }
    }

    fn begin(&mut self, host: u32, op: StudyOp) {
        self.note(self.now, host, "begun");
        let record = OpState { op, begun: self.now, is_failure: false, value: 0 };
        let id = self.free_ops.pop().unwrap_or(self.ops.len() as u32);
        if id as usize == self.ops.len() {
            self.ops.push(record);
        }
        self.ops[id as usize] = record;
        self.under_way += 1;
        if let Some(ns) = op.cached {
            return self.schedule(self.now + ns * NS, host, StudyEvent::End(id));
        }
        let (interface, stack) = (self.interface, self.config.stack);
        let is_strong = op.order == burst_ubwire::OrderTag::Strong;
        let busy = (interface.post + interface.build) * NS;
        let state = &mut self.hosts[host as usize];
        let begin = state.processor_free_at.max(self.now);
        if busy > 0 {
            state.processor_free_at = begin + busy;
        }
        let misses = state.cache.as_mut().map_or(0, |cache| match stack.is_bus() {
            // The Jetty, and the channel.
            true => {
                let jetty = cache.touch(u64::from(op.queue) << 32 | 0xffff_ffff);
                u64::from(jetty) + u64::from(cache.touch(u64::from(op.peer)))
            }
            false => u64::from(cache.touch(u64::from(op.queue) << 32 | u64::from(op.peer))),
        });
        let order = interface.order_always + if is_strong { interface.order_strong } else { 0 };
        let submit = self.wait(stack.submit(u64::from(op.bytes)), !stack.is_bus());
        let at = begin + busy + submit + (interface.walk + order + misses * interface.context) * NS;
        // Work requests of a queue come in the order of posting. Loads and stores have no queue.
        let last = self.hosts[host as usize].posted.entry(op.queue).or_insert(0);
        let at = if stack == StudyStack::LoadStore { at } else { at.max(*last) };
        *last = at;
        self.schedule(at, host, StudyEvent::Post(id));
    }

    fn end(&mut self, host: u32, id: u32, program: &mut dyn StudyProgram) {
        self.note(self.now, host, "ended");
        let OpState { op, begun, is_failure, value } = self.ops[id as usize];
        self.free_ops.push(id);
        self.under_way -= 1;
        program.ended(host, &EndedOp { op, latency: self.now - begun, at: self.now, is_failure, value });
    }

    /// The protocol has ended an operation.
    pub(super) fn complete(&mut self, host: u32, id: u32, is_failure: bool, value: u64) {
        let state = &mut self.ops[id as usize];
        (state.is_failure, state.value) = (is_failure, value);
        let wait = self.wait(self.interface.completion, !self.config.stack.is_bus());
        self.schedule(self.now + wait, host, StudyEvent::Complete(id));
    }

    pub(super) fn op(&self, id: u32) -> StudyOp {
        self.ops[id as usize].op
    }

    /// Gives what has come over the network to adapters.
    fn run_network(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.network.step(self.now, &mut arrivals);
        for Delivery { host, train, .. } in arrivals.drain(..) {
            if let Some(train) = train {
                self.arrive(host.0, train);
            }
        }
        self.arrivals = arrivals;
    }

    /// A packet comes to the adapter of a host; what memory it needs is asked for before the protocol gets it.
    fn arrive(&mut self, host: u32, train: Train<PacketRun>) {
        let is_bus = train.body.flow.src_port == burst_ubwire::UB_UDP_PORT;
        let (is_marked, bytes, run) = (train.marked, train.last, train.body);
        let Some(PacketView { role, context, len }) = packets::view(&run, is_bus, &mut self.scratch) else { return };
        let (interface, is_random) = (self.interface, !is_bus);
        let link = self.config.link_ns;
        let late = if self.config.jitter > 0.0 { self.wait(link, true) - link * NS } else { 0 };
        let now = self.now + late;
        let state = &mut self.hosts[host as usize];
        let through = match self.config.has_stages {
            true => state.stages[1].pass(now, interface.nic_cycles, len),
            false => now,
        };
        let is_missing = match (&mut state.cache, context) {
            (Some(cache), Some(context)) if role.is_request() => cache.touch(1 << 63 | u64::from(context)),
            _ => false,
        };
        let memory = match role {
            PacketRole::Read | PacketRole::Atomic => interface.memory_read,
            PacketRole::Write | PacketRole::Send => interface.memory_write,
            PacketRole::ReadData => interface.response_write,
            PacketRole::Answer | PacketRole::Other => 0,
        };
        let mut ready = through + self.wait(memory, is_random);
        if role.is_request() {
            ready += interface.dram * NS;
        }
        if role == PacketRole::Send {
            ready += interface.receive * NS;
        }
        if is_missing {
            ready += interface.context * NS;
        }
        // A channel has one sequence of packets; a queue pair has one of requests and one of answers.
        if let Some(context) = context.filter(|_| role != PacketRole::Other) {
            let key = (context, !is_bus && role.is_request());
            let last = self.hosts[host as usize].entered.entry(key).or_insert(0);
            ready = ready.max(*last);
            *last = ready;
        }
        if role != PacketRole::Other {
            self.note(now, host, "arrived");
            self.note(through, host, "received");
            self.note(ready, host, "entered");
        }
        self.schedule(ready, host, StudyEvent::Enter { run: Box::new(run), is_bus, is_marked, bytes });
    }

    /// Runs the worker of a host until it has nothing to do now.
    fn run_host(&mut self, host: u32) -> Result<(), String> {
        let now = self.nanos();
        let mut is_busy = true;
        let mut passes = 0;
        while is_busy && passes < PASSES_MAX {
            is_busy = self.hosts[host as usize].node.run_once(now);
            passes += 1;
            self.drain(host);
            self.collect(host, now)?;
        }
        let state = &mut self.hosts[host as usize];
        let next = match state.node.next_deadline(now) {
            _ if is_busy => self.now + NS,
            Nanos::NEVER => u64::MAX,
            deadline => deadline.0.saturating_mul(NS).max(self.now + NS),
        };
        state.wake_at = next;
        if next != u64::MAX {
            self.schedule(next, host, StudyEvent::Wake);
        }
        Ok(())
    }

    /// Puts what the worker has sent into the adapter.
    fn drain(&mut self, host: u32) {
        let mut out: Vec<(bool, Outgoing)> = Vec::new();
        let state = &mut self.hosts[host as usize];
        out.extend(lock(&state.node.wire).out.drain(..).map(|sent| (false, sent)));
        if let Some(bus) = &state.bus {
            out.extend(lock(bus).out.drain(..).map(|sent| (true, sent)));
        }
        for (is_bus, sent) in out {
            let bytes = u64::from(sent.bytes);
            let Some(view) = packets::view(&sent.run, is_bus, &mut self.scratch) else { continue };
            if self.trace.len() < TRACE_MAX {
                self.trace.push(TracedPacket { host, role: view.role, nic: view.len, wire: bytes });
            }
            let state = &mut self.hosts[host as usize];
            let at = match self.config.has_stages {
                true => state.stages[0].pass(self.now, self.interface.nic_cycles, view.len),
                false => self.now,
            };
            if view.role != PacketRole::Other {
                self.note(self.now, host, "made");
                self.note(at, host, "left");
            }
            let train = Box::new(train_of(HostId(host), sent));
            self.schedule(at, host, StudyEvent::Leave(train));
        }
    }

    /// Takes the completions of RoCE; those of the bus are taken by [`StudyWorld::collect_bus`].
    fn collect(&mut self, host: u32, now: Nanos) -> Result<(), String> {
        while let Some((qp, cqe)) = self.hosts[host as usize].node.poll() {
            if cqe.is_recv == 1 {
                self.hosts[host as usize].node.post_receive(qp, 0, 0, 1 << 20);
                continue;
            }
            let id = cqe.wr_id as u32;
            let value = self.old_value(host, id);
            self.complete(host, id, cqe.status != WcStatus::Success as u8, value);
        }
        if self.config.stack.is_bus() { self.collect_bus(host, now) } else { Ok(()) }
    }

    /// The old value that an atomic of RoCE has written to the program's memory, if it has any.
    fn old_value(&self, host: u32, id: u32) -> u64 {
        let op = self.op(id);
        let mut word = [0; 8];
        if self.config.has_memory
            && op.verb.is_atomic()
            && let Some(span) = self.hosts[host as usize].node.memory(op.offset, 8)
        {
            // Registered memory can be read.
            let _ = span.read_to(&mut word);
        }
        u64::from_ne_bytes(word)
    }

    /// The address of an operation's data at the target.
    pub(super) const fn remote(op: &StudyOp) -> u64 {
        MEMORY + op.offset
    }

    /// Whether messages are among what is sent: targets post receives.
    pub(super) const fn is_message(verb: StudyVerb) -> bool {
        matches!(verb, StudyVerb::Send)
    }
}
