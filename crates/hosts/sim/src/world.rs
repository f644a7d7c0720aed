//! A simulation: hosts, network and traffic in one virtual time.
//!
//! The loop goes from event to event: faults, messages that begin, packets that arrive, hosts that are due. Events of one time
//! come in this order, hosts by their numbers. A host that has run runs again when its processor is free and it has work, at the
//! engine's next deadline, or when packets arrive.

mod restart;

use crate::capture::SimCapture;
use crate::clock::HostClock;
use crate::connections::{Connections, Place};
use crate::flows::{SimMessage, TrafficSource, Transfer};
use crate::memory::{Parts, PatternMemory};
use crate::node::{MemoryPart, NodeConfig, SimHost, Verb};
use crate::oracle::EngineOracle;
use crate::port::{Outgoing, PassWork, SimPortConfig, lock};
use crate::results::{Results, Tally};
use crate::run::{PacketRun, PayloadMode};
use crate::scenario::{FaultKind, Scenario};
use crate::topology;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, WcStatus};
use burst_engine::WorkerOptions;
use burst_fabric::{Delivery, HostId, Network, PacketSchedule, Train};
use burst_shm::Cqe;
use burst_span::{PatternWrite, take_pattern_writes};
use burst_transport::READ_CHUNK_BYTES;
use rustix::fd::{AsFd, OwnedFd};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Picoseconds per nanosecond, the engine's unit.
const NANOSECOND: u64 = 1_000;
/// Instead of a time: never.
const NEVER: u64 = u64::MAX;

/// Why a simulation ends early.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The network of the scenario cannot be built.
    #[error("the network cannot be built: {0}")]
    Network(String),
    /// The system has no memory or descriptor left.
    #[error("host {host}: {error}")]
    Host {
        /// The host.
        host: u32,
        /// The system's error.
        error: std::io::Error,
    },
    /// A queue pair was refused.
    #[error("{0}")]
    Engine(String),
    /// A property of reliable transports was violated: a fault of Burst.
    #[error("violated at {at} ps: {what}")]
    Violation {
        /// When, in picoseconds.
        at: u64,
        /// What.
        what: String,
    },
    /// The programs' memory is too small for the messages at one time.
    #[error("host {0}: [hosts] memory is too small for the messages that are on their way at one time")]
    Memory(u32),
}

/// A host and when it runs.
struct HostState {
    node: Option<SimHost>,
    wake_at: u64,
    /// Until when the processor is busy.
    busy_until: u64,
    /// What its engine takes for the time.
    clock: HostClock,
    /// How often it has restarted, and when it is up again.
    boots: u32,
    up_at: u64,
    /// Trains that the adapter had no room for.
    backlog: VecDeque<Train<PacketRun>>,
    /// The parts of the program's memory that are in use.
    parts: Parts,
}

/// A simulation.
pub struct World {
    scenario: Scenario,
    node_config: NodeConfig,
    network: Network<PacketRun>,
    hosts: Vec<HostState>,
    wakes: BinaryHeap<Reverse<(u64, u32)>>,
    sources: Vec<TrafficSource>,
    connections: Connections,
    /// Messages on their way, by the number in their requests.
    flows: Vec<Transfer>,
    free_flows: Vec<u32>,
    /// Faults that have not happened, the next one last; and those that end.
    faults: Vec<(u64, usize, bool)>,
    memory: Option<OwnedFd>,
    /// The messages of programs without memory, if their bytes are checked.
    pattern: Option<PatternMemory>,
    writes: Vec<PatternWrite>,
    arrivals: Vec<Delivery<PacketRun>>,
    tally: Tally,
    capture: Option<SimCapture>,
    /// What must hold inside the engines, if it is checked.
    oracle: Option<EngineOracle>,
    /// Most bytes that one packet puts in flight.
    packet_most: u64,
    now: u64,
}

impl World {
    /// The world of a scenario at its beginning.
    ///
    /// # Errors
    /// When the network cannot be built, or when there is no memory for the programs.
    pub fn new(scenario: &Scenario) -> Result<World, SimError> {
        let settings = &scenario.node;
        let built = topology::build(scenario).map_err(SimError::Network)?;
        let mut rng = Rng::new(scenario.seed);
        let network = Network::new(&built, rng.next_u64());
        let rate_bps = topology::host_rate(scenario);
        let port = SimPortConfig {
            link_mtu: settings.mtu.bytes() + 128,
            rate_bps,
            train_bytes: settings.train_bytes,
            receive_bytes: settings.receive_bytes,
            hosts: scenario.hosts,
            knows_management: true,
            sees_marks: true,
        };
        let node_config = NodeConfig {
            port,
            mtu: settings.mtu,
            cc: settings.cc,
            selective: settings.selective,
            rto: settings.rto,
            is_adapter: false,
            timeout: settings.timeout,
            depth: topology::queue_depth(scenario),
            pass_bytes: pass_bytes(settings.send_bytes, settings.mtu),
            payload: scenario.payload,
            memory: settings.memory,
            seed: rng.next_u64(),
        };
        let sources =
            scenario.traffic.iter().map(|t| TrafficSource::new(t, scenario.hosts, rate_bps, rng.fork())).collect();
        let idle = || HostState {
            node: None,
            wake_at: NEVER,
            busy_until: 0,
            clock: HostClock::default(),
            boots: 0,
            up_at: 0,
            backlog: VecDeque::new(),
            parts: Parts::default(),
        };
        let faults = plan_faults(scenario);
        let memory = match scenario.payload {
            PayloadMode::Real => Some(shared_memory(u64::from(scenario.hosts) * settings.memory).map_err(no_memory)?),
            PayloadMode::Pattern | PayloadMode::Void => None,
        };
        // What an earlier simulation of this thread has left.
        take_pattern_writes(&mut Vec::new());
        Ok(World {
            scenario: scenario.clone(),
            node_config,
            network,
            hosts: (0..scenario.hosts).map(|_| idle()).collect(),
            wakes: BinaryHeap::new(),
            sources,
            connections: Connections::new(scenario.hosts),
            flows: Vec::new(),
            free_flows: Vec::new(),
            faults,
            memory,
            pattern: (scenario.payload == PayloadMode::Pattern).then(PatternMemory::default),
            writes: Vec::new(),
            arrivals: Vec::new(),
            tally: Tally::new(scenario),
            capture: None,
            oracle: None,
            packet_most: packet_most(scenario),
            now: 0,
        })
    }

    /// Checks what must hold inside the engines after each pass from now on ([`EngineOracle`]). It costs time.
    pub fn check_engines(&mut self) {
        self.oracle = Some(EngineOracle::new(self.scenario.hosts));
    }

    /// [`EngineOracle::progress`]; 0 without [`World::check_engines`].
    pub(crate) fn progress(&self) -> u64 {
        self.oracle.as_ref().map_or(0, EngineOracle::progress)
    }

    /// Writes the packets of one host into `capture` from now on.
    ///
    /// # Errors
    /// A sentence when there is no such host.
    pub fn set_capture(&mut self, capture: SimCapture) -> Result<(), String> {
        let (host, hosts) = (capture.host, self.scenario.hosts);
        if host >= hosts {
            return Err(format!("there is no host {host} to capture at, only 0 to {}", hosts - 1));
        }
        self.capture = Some(capture);
        Ok(())
    }

    /// Ends the capture, if there is one.
    ///
    /// # Errors
    /// A sentence when not everything could be written.
    pub fn end_capture(&mut self) -> Result<(), String> {
        self.capture.take().map_or(Ok(()), SimCapture::finish).map_err(|e| format!("the capture is not whole: {e}"))
    }

    /// The time, in picoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The most bytes that wait at a port of a switch now.
    pub fn queue_bytes(&self) -> u64 {
        self.network.queue_now()
    }

    /// Events until now: passes of hosts, and trains that have arrived.
    pub fn events(&self) -> u64 {
        self.tally.passes + self.tally.trains
    }

    /// Handles all events of the next time. False at the end of the simulation.
    ///
    /// # Errors
    /// [`SimError::Violation`] when an oracle finds a fault; others when the scenario cannot go on.
    pub fn step(&mut self) -> Result<bool, SimError> {
        let source = self.sources.iter().filter_map(TrafficSource::next_at).min();
        let network = self.network.next_event();
        let wake = self.wakes.peek().map(|wake| wake.0.0);
        let fault = self.faults.last().map(|fault| fault.0);
        let Some(at) = [source, network, wake].into_iter().flatten().min() else { return Ok(false) };
        let at = fault.map_or(at, |fault| fault.min(at));
        let is_over = at > self.scenario.time && self.tally.in_flight == 0 && source.is_none();
        if is_over || at > self.scenario.time + self.scenario.drain {
            return Ok(false);
        }
        self.step_to(at)?;
        Ok(true)
    }

    /// Handles all events of the time `at`, which is the next one.
    fn step_to(&mut self, at: u64) -> Result<(), SimError> {
        debug_assert!(at >= self.now, "time goes forward");
        self.tally.on_time(at, &self.network);
        self.now = at;
        self.run_faults()?;
        self.run_sources()?;
        self.run_network();
        while let Some(Reverse((wake, host))) = self.wakes.peek().copied()
            && wake <= at
        {
            self.wakes.pop();
            if self.hosts[host as usize].wake_at == wake {
                self.run_host(host)?;
            }
        }
        Ok(())
    }

    /// After the end of all messages: lets what is left on the way come to its end within `span` picoseconds, and checks that
    /// the engines have returned what they had borrowed. Only with [`World::check_engines`].
    ///
    /// # Errors
    /// [`SimError::Violation`].
    pub fn check_rest(&mut self, span: u64) -> Result<(), SimError> {
        let until = self.now + span;
        while let Some(at) =
            [self.network.next_event(), self.wakes.peek().map(|wake| wake.0.0)].into_iter().flatten().min()
            && at <= until
        {
            self.step_to(at)?;
        }
        let Some(oracle) = &self.oracle else { return Ok(()) };
        for (host, state) in self.hosts.iter().enumerate() {
            let Some(node) = &state.node else { continue };
            let violation = |what| SimError::Violation { at: self.now, what: format!("host {host}: {what}") };
            oracle.at_rest(node.worker()).map_err(violation)?;
        }
        Ok(())
    }

    /// Checks what must hold when a simulation has come to its end: every message has ended well, and no packet has vanished.
    ///
    /// # Errors
    /// [`SimError::Violation`].
    pub fn check_end(&self) -> Result<(), SimError> {
        let violated = |what: String| Err(SimError::Violation { at: self.now, what });
        // First: a network that loses count loses messages, too.
        self.network.check_conservation().or_else(|what| violated(format!("packets have vanished: {what}")))?;
        if self.tally.in_flight > 0 {
            return violated(format!("{} messages have not ended", self.tally.in_flight));
        }
        if let Some(Transfer { message, verb, status, end, .. }) = &self.tally.first_failure {
            let (failed, SimMessage { at, from, to, bytes, .. }) = (self.tally.failed(), message);
            return violated(format!(
                "{failed} messages have failed; the first, a {verb:?} of {bytes} bytes from host {from} to host {to}, began at \
                 {at} ps and failed at {end} ps with status {status}"
            ));
        }
        Ok(())
    }

    /// What has been measured until now; `is_partial` if the simulation was stopped.
    pub fn results(&self, is_partial: bool) -> Results {
        let mut engine = self.tally.old_counters().clone();
        for node in self.hosts.iter().filter_map(|state| state.node.as_ref()) {
            for (name, value) in node.counters().snapshot().into_iter().filter(|(_, value)| *value > 0) {
                *engine.entry(name).or_insert(0) += value;
            }
        }
        Results { engine, is_partial, ..self.tally.results(&self.scenario, &self.network, self.now) }
    }

    fn run_faults(&mut self) -> Result<(), SimError> {
        while let Some((at, index, begins)) = self.faults.last().copied()
            && at <= self.now
        {
            self.faults.pop();
            self.run_fault(index, begins)?;
        }
        Ok(())
    }

    /// Begins a fault, or ends it.
    fn run_fault(&mut self, index: usize, begins: bool) -> Result<(), SimError> {
        let fault = &self.scenario.faults[index];
        match &fault.kind {
            FaultKind::Link(name) => drop(self.network.set_link(name, !begins)),
            FaultKind::Drops { switch, share } => {
                self.network.set_drops(switch, if begins { *share } else { 0.0 });
            }
            FaultKind::Stall { host } if begins => {
                let until = if fault.lasts > 0 { self.now + fault.lasts } else { NEVER };
                self.network.stall_nic(self.now, HostId(*host), until);
            }
            FaultKind::Restart { host } if begins => {
                let (host, lasts) = (*host, fault.lasts);
                self.restart(host, lasts)?;
            }
            // They end by themselves.
            FaultKind::Stall { .. } | FaultKind::Restart { .. } => {}
            FaultKind::Clock { host, offset, drift } => {
                let (host, (offset, drift)) = (*host, if begins { (*offset, *drift) } else { (0, 0) });
                self.hosts[host as usize].clock.change(self.now, offset, drift);
                // What it waits for may be due.
                self.wake(host, self.now);
            }
            FaultKind::Packets { host, numbers, fate } => {
                self.network.add_schedule(HostId(*host), PacketSchedule::new(numbers, *fate));
            }
            FaultKind::PauseStorm { host, class } => {
                self.network.set_pause_storm(self.now, HostId(*host), *class, begins);
            }
        }
        Ok(())
    }

    fn run_sources(&mut self) -> Result<(), SimError> {
        for traffic in 0..self.sources.len() {
            while let Some(message) = self.sources[traffic].take(self.now) {
                self.send(traffic as u16, message)?;
            }
        }
        Ok(())
    }

    /// Wakes a host at `at`, or when its processor is free.
    fn wake(&mut self, host: u32, at: u64) {
        let state = &mut self.hosts[host as usize];
        let at = at.max(state.busy_until);
        if at < state.wake_at {
            state.wake_at = at;
            self.wakes.push(Reverse((at, host)));
        }
    }

    /// The node of a host, made when it is first needed.
    fn node(&mut self, host: u32) -> Result<&mut SimHost, SimError> {
        let state = &mut self.hosts[host as usize];
        if state.node.is_none() {
            let offset = u64::from(host) * self.node_config.memory;
            let part = self.memory.as_ref().map(|file| MemoryPart { file: file.as_fd(), offset });
            let adapter = self.scenario.adapters.iter().find(|adapter| adapter.hosts.contains(&host));
            let config = adapter.map_or(self.node_config, |adapter| adapter.apply(self.node_config));
            let node = SimHost::new(HostId(host), state.boots, config, part)
                .map_err(|error| SimError::Host { host, error })?;
            state.node = Some(node);
        }
        state.node.as_mut().ok_or(SimError::Engine("a host without a node".into()))
    }

    /// Begins a message.
    fn send(&mut self, traffic: u16, message: SimMessage) -> Result<(), SimError> {
        if self.up_at(&message) > self.now {
            self.refuse(traffic, message);
            return Ok(());
        }
        let connection = self.connection(traffic, &message)?;
        let verb = self.sources[usize::from(traffic)].traffic().verb;
        let ordered = matches!(verb, Verb::Write | Verb::WriteImm).then_some(connection);
        let memory = self.place(&message, ordered)?;
        let flow = Transfer { message, traffic, verb, connection, memory, end: 0, status: 0 };
        let id = self.free_flows.pop().unwrap_or_else(|| {
            self.flows.push(flow);
            self.flows.len() as u32 - 1
        });
        self.flows[id as usize] = flow;
        if self.memory.is_some() {
            self.fill(id)?;
        }
        self.post(id, &flow)?;
        self.connections.begin_request(connection);
        self.tally.begin();
        Ok(())
    }

    /// Posts the requests of a message, and wakes the hosts that have them.
    fn post(&mut self, id: u32, flow: &Transfer) -> Result<(), SimError> {
        let Transfer { message, verb, connection, memory, .. } = *flow;
        let [source, target] = self.connections.get(connection).ends;
        let len = message.bytes as u32;
        let (poster, other) = if verb == Verb::Read { (target, source) } else { (source, target) };
        let [at, there] = if verb == Verb::Read { [memory[1], memory[0]] } else { memory };
        let rkey = self.node(other.host)?.key();
        if verb.is_received() && !self.node(target.host)?.post_receive(target.qp, u64::from(id), memory[1], len) {
            return Err(SimError::Engine("a receive queue is full".into()));
        }
        if !self.node(poster.host)?.post(poster.qp, verb, u64::from(id), [at, there], len, rkey) {
            return Err(SimError::Engine("a send queue is full".into()));
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.on_post((poster.host, poster.qp), false, id);
            if verb.is_received() {
                oracle.on_post((target.host, target.qp), true, id);
            }
        }
        self.wake(poster.host, self.now);
        if verb.is_received() {
            self.wake(target.host, self.now);
        }
        Ok(())
    }

    /// The connection for a message.
    fn connection(&mut self, traffic: u16, message: &SimMessage) -> Result<u32, SimError> {
        let (from, to) = (message.from, message.to);
        let class = self.sources[usize::from(traffic)].traffic().class;
        let known = match message.lane {
            Some(lane) => self.connections.lane(traffic, lane),
            None => self.connections.take(from, to, class),
        };
        if let Some(number) = known {
            return Ok(number);
        }
        let mut ends = [Place { host: from, qp: 0 }, Place { host: to, qp: 0 }];
        for end in &mut ends {
            end.qp = match self.connections.take_queue_pair(end.host) {
                Some(qp) => qp,
                None => self.node(end.host)?.create().map_err(SimError::Engine)?,
            };
        }
        let [a, b] = [self.node(from)?.end(ends[0].qp), self.node(to)?.end(ends[1].qp)];
        let [from_now, to_now] = [from, to].map(|host| self.hosts[host as usize].clock.nanos(self.now));
        // The responder first: it must be able to receive.
        self.node(to)?.connect(to_now, ends[1].qp, &b, &a, class).map_err(SimError::Engine)?;
        self.node(from)?.connect(from_now, ends[0].qp, &a, &b, class).map_err(SimError::Engine)?;
        if let Some(oracle) = &mut self.oracle {
            oracle.forget(from, ends[0].qp, a.qpn);
            oracle.forget(to, ends[1].qp, b.qpn);
        }
        let number = self.connections.add(ends, class);
        if let Some(lane) = message.lane {
            self.connections.set_lane(traffic, lane, number);
        }
        self.wake(from, self.now);
        self.wake(to, self.now);
        Ok(number)
    }

    /// Places a message in the memory of both programs.
    fn place(&mut self, message: &SimMessage, ordered: Option<u32>) -> Result<[u64; 2], SimError> {
        let mut places = [0; 2];
        if let Some(pattern) = &mut self.pattern {
            places = [pattern.take(message.bytes, message.to, ordered); 2];
        }
        if self.memory.is_some() {
            for (place, host) in places.iter_mut().zip([message.from, message.to]) {
                let parts = &mut self.hosts[host as usize].parts;
                *place = parts.take(message.bytes, self.node_config.memory).ok_or(SimError::Memory(host))?;
            }
        }
        Ok(places)
    }

    fn run_network(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.network.step(self.now, &mut arrivals);
        for arrival in arrivals.drain(..) {
            let host = arrival.host.0;
            let Some(train) = arrival.train else {
                // The adapter has room again.
                if !self.hosts[host as usize].backlog.is_empty() {
                    self.wake(host, self.now);
                }
                continue;
            };
            self.tally.on_arrival(self.now, &train, arrival.corrupted);
            if arrival.corrupted {
                continue;
            }
            let state = &self.hosts[host as usize];
            // A packet to a host that has never sent: nobody listens.
            let Some(node) = &state.node else { continue };
            if let Some(capture) = self.capture.as_mut().filter(|capture| capture.host == host) {
                capture.run(self.now / NANOSECOND, &train.body, train.marked);
            }
            let bytes = train.stride * (train.count - 1) + train.last;
            if !lock(&node.wire).deliver(train.body, train.marked, bytes) {
                self.tally.overflows += u64::from(train.count);
            }
            let sleeps = state.wake_at == NEVER || state.wake_at > self.now + self.scenario.node.cpu.wake;
            let latency = if sleeps { self.scenario.node.cpu.wake } else { 0 };
            self.wake(host, self.now + latency);
        }
        self.arrivals = arrivals;
    }

    /// Gives trains that waited, and those that the engine has sent, to the adapter. False if some have no room.
    fn transmit(&mut self, host: u32) -> bool {
        let state = &mut self.hosts[host as usize];
        let Some(node) = &state.node else { return true };
        {
            let mut wire = lock(&node.wire);
            if let Some(capture) = self.capture.as_mut().filter(|capture| capture.host == host) {
                wire.out.iter().for_each(|out| capture.run(self.now / NANOSECOND, &out.run, false));
            }
            let trains = wire.out.drain(..).map(|out| train_of(HostId(host), out));
            state.backlog.extend(trains);
        }
        while let Some(train) = state.backlog.pop_front() {
            if let Err(train) = self.network.send(self.now, train) {
                state.backlog.push_front(train);
                return false;
            }
        }
        true
    }

    /// One pass of a host.
    fn run_host(&mut self, host: u32) -> Result<(), SimError> {
        self.hosts[host as usize].wake_at = NEVER;
        if !self.transmit(host) {
            return Ok(());
        }
        let state = &mut self.hosts[host as usize];
        let (clock, Some(node)) = (state.clock, &mut state.node) else { return Ok(()) };
        if let Some(oracle) = &mut self.oracle {
            oracle.before_pass(host, node.worker());
        }
        let is_busy = node.run_once(clock.nanos(self.now));
        if let Some(oracle) = &mut self.oracle {
            let violation = |what| SimError::Violation { at: self.now, what: format!("host {host}: {what}") };
            oracle.after_pass(host, node.worker(), self.packet_most).map_err(violation)?;
        }
        self.tally.passes += 1;
        let work: PassWork = std::mem::take(&mut lock(&node.wire).work);
        self.hosts[host as usize].busy_until = self.now + self.scenario.node.cpu.cost(&work);
        self.check_writes(host)?;
        let is_blocked = !self.transmit(host);
        while let Some((qp, cqe)) = self.hosts[host as usize].node.as_mut().and_then(SimHost::poll) {
            self.on_completion(host, qp, &cqe)?;
        }
        if !is_blocked {
            self.wake_next(host, is_busy);
        }
        Ok(())
    }

    /// Wakes a host, one of whose passes has ended, for the next one. `is_busy`: it had something to do.
    fn wake_next(&mut self, host: u32, is_busy: bool) {
        let now = self.now;
        let state = &mut self.hosts[host as usize];
        let Some(node) = &mut state.node else { return };
        let soon = now + NANOSECOND;
        let next = match node.next_deadline(state.clock.nanos(now)) {
            _ if is_busy || lock(&node.wire).has_arrived() => soon,
            Nanos::NEVER => return,
            deadline => state.clock.when(deadline).max(soon),
        };
        self.wake(host, next);
    }

    /// Checks what a host has written to pattern memory in a pass.
    fn check_writes(&mut self, host: u32) -> Result<(), SimError> {
        let Some(pattern) = &mut self.pattern else { return Ok(()) };
        take_pattern_writes(&mut self.writes);
        for write in self.writes.drain(..).filter(|write| write.len > 0) {
            pattern.on_write(host, &write).map_err(|what| SimError::Violation { at: self.now, what })?;
        }
        Ok(())
    }

    fn on_completion(&mut self, host: u32, qp: u32, cqe: &Cqe) -> Result<(), SimError> {
        let id = cqe.wr_id as u32;
        let now = self.now;
        let violation = |what: String| SimError::Violation { at: now, what };
        let Some(flow) = self.flows.get_mut(id as usize).filter(|flow| flow.end == 0) else {
            return Err(violation(format!("host {host} got a second completion of request {id}")));
        };
        if let Some(oracle) = &mut self.oracle {
            oracle.on_completion((host, qp), cqe.is_recv == 1, id).map_err(violation)?;
        }
        let is_failure = cqe.status != WcStatus::Success as u8;
        if cqe.is_recv == 1 {
            if !is_failure && u64::from(cqe.byte_len) != flow.message.bytes {
                let (got, sent) = (cqe.byte_len, flow.message.bytes);
                return Err(violation(format!("host {host} received {got} bytes of a message of {sent}")));
            }
            if is_failure {
                return Ok(());
            }
            let (traffic, message) = (usize::from(flow.traffic), flow.message);
            self.sources[traffic].on_receipt(now, &message);
            return self.run_sources();
        }
        let poster = self.connections.get(flow.connection).ends[usize::from(flow.verb == Verb::Read)];
        if (poster.host, poster.qp) != (host, qp) {
            return Err(violation(format!("host {host} got the completion of another queue pair's request {id}")));
        }
        self.finish(id, cqe.status)
    }

    /// A message does not use its connection any more. A connection of a lane whose request has failed stays: requests behind it
    /// have failed, too.
    fn leave_connection(&mut self, flow: &Transfer, is_stale: bool, is_failure: bool) -> Result<(), SimError> {
        self.connections.end_request(flow.connection);
        if is_stale {
            if self.connections.is_idle(flow.connection) {
                self.drop_connection(flow.connection)?;
            }
        } else if flow.message.lane.is_none() {
            match is_failure {
                true => self.connections.forget(flow.connection),
                false => self.connections.release(flow.connection),
            }
        }
        Ok(())
    }

    /// A message has ended: what it took is free, and others may begin.
    fn finish(&mut self, id: u32, status: u8) -> Result<(), SimError> {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        (flow.end, flow.status) = (now.max(1), status);
        let flow = *flow;
        let is_failure = status != WcStatus::Success as u8;
        // What a host had that has restarted is not known any more.
        let is_stale = self.connections.is_stale(flow.connection);
        if let Some(pattern) = &mut self.pattern {
            let violation = |what: String| SimError::Violation { at: now, what };
            pattern.end(flow.memory[1], is_failure || is_stale).map_err(violation)?;
        }
        if self.memory.is_some() {
            if !is_failure && !is_stale {
                self.check(&flow, id)?;
            }
            let SimMessage { from, to, .. } = flow.message;
            self.hosts[from as usize].parts.free(flow.memory[0]);
            self.hosts[to as usize].parts.free(flow.memory[1]);
        }
        self.tally.end(&flow, is_stale);
        self.free_flows.push(id);
        self.leave_connection(&flow, is_stale, is_failure)?;
        let up_at = self.up_at(&flow.message).max(now);
        let source = &mut self.sources[usize::from(flow.traffic)];
        if is_failure {
            if is_stale {
                source.on_loss(up_at);
                return self.run_sources();
            }
            return Ok(());
        }
        source.on_end(now);
        if flow.verb == Verb::Read {
            source.on_receipt(now, &flow.message);
        }
        self.run_sources()
    }

    /// The byte at `at` of message `id`, which nothing else has.
    fn pattern(id: u32, begin: u64, at: usize) -> u8 {
        let word = (u64::from(id) << 32 ^ begin).wrapping_add(at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.to_le_bytes()[at % 8] ^ word.to_le_bytes()[7 - at % 8]
    }

    /// Fills the memory from which message `id` is sent.
    fn fill(&mut self, id: u32) -> Result<(), SimError> {
        let Transfer { message, memory, .. } = self.flows[id as usize];
        let bytes: Vec<u8> = (0..message.bytes as usize).map(|at| World::pattern(id, message.at, at)).collect();
        let span = self.node(message.from)?.memory(memory[0], message.bytes as u32);
        match span.map(|span| span.write_from(&bytes)) {
            Some(Ok(())) => Ok(()),
            _ => Err(SimError::Memory(message.from)),
        }
    }

    /// Compares what has arrived with what was sent.
    fn check(&mut self, flow: &Transfer, id: u32) -> Result<(), SimError> {
        let SimMessage { to, bytes, at: begin, .. } = flow.message;
        let mut got = vec![0; bytes as usize];
        let span = self.node(to)?.memory(flow.memory[1], bytes as u32);
        if !matches!(span.map(|span| span.read_to(&mut got)), Some(Ok(()))) {
            return Err(SimError::Memory(to));
        }
        match got.iter().enumerate().find(|(at, byte)| **byte != World::pattern(id, begin, *at)) {
            None => Ok(()),
            Some((at, _)) => Err(SimError::Violation {
                at: self.now,
                what: format!("byte {at} of a message of {bytes} bytes to host {to} is not what was sent"),
            }),
        }
    }
}

/// Times, numbers in the scenario, and whether they begin, of all faults; the next one last.
fn plan_faults(scenario: &Scenario) -> Vec<(u64, usize, bool)> {
    let mut faults: Vec<(u64, usize, bool)> = Vec::new();
    for (index, fault) in scenario.faults.iter().enumerate() {
        let times = (0..).map(|time| fault.at + time * fault.every);
        let repeats = scenario.time.saturating_sub(fault.at).checked_div(fault.every).unwrap_or(0);
        for at in times.take(1 + repeats as usize) {
            faults.push((at, index, true));
            if fault.lasts > 0 {
                faults.push((at + fault.lasts, index, false));
            }
        }
    }
    faults.sort_unstable_by_key(|fault| Reverse(*fault));
    faults
}

/// What a pass of the worker sends at most. What the adapter has no room for waits in front of it, and the worker, which
/// sends before it receives, sees nothing of the network meanwhile.
fn pass_bytes(send_queue: u64, mtu: Mtu) -> u64 {
    send_queue.clamp(u64::from(mtu.bytes()), WorkerOptions::default().pass_bytes)
}

/// Most bytes that one packet puts in flight: a READ asks for many.
fn packet_most(scenario: &Scenario) -> u64 {
    let has_reads = scenario.traffic.iter().any(|part| part.verb == Verb::Read);
    u64::from(if has_reads { READ_CHUNK_BYTES } else { scenario.node.mtu.bytes() })
}

fn no_memory(error: rustix::io::Errno) -> SimError {
    SimError::Engine(format!("no memory for the programs: {error}"))
}

/// A file without a name, sealed against shrinking.
pub fn shared_memory(bytes: u64) -> Result<OwnedFd, rustix::io::Errno> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("burst-sim", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    Ok(fd)
}

/// The train of a run. Packets differ by the headers of first and last packets, a few bytes; the train's bytes are exact.
pub fn train_of(from: HostId, out: Outgoing) -> Train<PacketRun> {
    let Outgoing { to, run, bytes, last } = out;
    let count = run.count;
    let stride = if count > 1 { (bytes - last) / (count - 1) } else { last };
    let last = bytes - stride * (count - 1);
    let flow = &run.flow;
    let key = u64::from(flow.src_port) << 48 ^ u64::from(from.0) << 24 ^ u64::from(to.0);
    let (class, capable) = (flow.tos >> 5, flow.tos & 3 != 0);
    Train { flow: key, from, to, class, ecn_capable: capable, marked: false, count, stride, last, body: run }
}
