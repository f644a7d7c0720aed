//! A simulated world: hosts, the network between them, programs on them, and the virtual time.

use crate::honest::HonestPair;
use crate::hostile::Hostile;
use crate::network::SharedNetwork;
use crate::node::Node;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_host::Clock;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hosts.
const HOSTS: usize = 2;
/// Steps without any work after which the time jumps to the next thing that is due.
const IDLE_STEPS: u32 = 24;
/// Longest jump of the time when nothing is due.
const JUMP_MAX: Nanos = Nanos::from_ms(500);
/// Pairs of honest programs at a time.
const PAIRS: usize = 3;
/// Hostile programs at a time, and their users.
const HOSTILES: usize = 3;
const HOSTILE_UIDS: [u32; 2] = [1001, 1002];

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub steps: u64,
    pub pairs: u64,
    pub requests: u64,
    pub deaths: u64,
    pub hostiles: u64,
    pub frames: u64,
    pub forged: u64,
    pub virtual_ms: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.pairs += other.pairs;
        self.requests += other.requests;
        self.deaths += other.deaths;
        self.hostiles += other.hostiles;
        self.frames += other.frames;
        self.forged += other.forged;
        self.virtual_ms += other.virtual_ms;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { steps, pairs, requests, deaths, hostiles, frames, forged, virtual_ms } = self;
        write!(f, "{steps} steps, {pairs} honest pairs with {requests} requests, {deaths} deaths, ")?;
        write!(f, "{hostiles} hostile programs, {frames} frames, {forged} forged, {virtual_ms} ms of virtual time")
    }
}

/// Everything.
pub struct World {
    rng: Rng,
    time: Arc<AtomicU64>,
    network: SharedNetwork,
    nodes: Vec<Node>,
    addrs: Vec<IpAddr>,
    pairs: Vec<HonestPair>,
    hostiles: Vec<Hostile>,
    /// Whether there are hostile programs, and a hostile peer.
    has_hostiles: bool,
    has_forgery: bool,
    next_uid: u32,
    idle: u32,
    summary: Summary,
}

/// Jumps of the time until the last connection must be forgotten.
const JUMPS_MAX: u32 = 1_000_000;

impl World {
    /// A world that follows from the seed.
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let time = Arc::new(AtomicU64::new(1_000_000_000));
        let workers = rng.between(1, 3) as usize;
        let addrs: Vec<IpAddr> = (1..=HOSTS).map(|n| Ipv4Addr::new(10, 0, 0, n as u8).into()).collect();
        let network = SharedNetwork::new(rng.fork(), addrs.clone(), workers);
        let clock = Clock::Virtual(time.clone());
        let nodes = (0..HOSTS).map(|n| Node::new(n, workers, &network, &clock, &mut rng)).collect();
        let (has_hostiles, has_forgery) = (rng.chance(3, 4), rng.chance(1, 2));
        World {
            rng,
            time,
            network,
            nodes,
            addrs,
            pairs: Vec::new(),
            hostiles: Vec::new(),
            has_hostiles,
            has_forgery,
            next_uid: 2000,
            idle: 0,
            summary: Summary::default(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.time.load(Ordering::Relaxed))
    }

    /// One step of one part of the world.
    pub fn step(&mut self) {
        self.summary.steps += 1;
        let passed = self.rng.below(2_000);
        self.time.fetch_add(passed, Ordering::Relaxed);
        let busy = match self.rng.below(16) {
            0..6 => {
                let node = self.rng.below(HOSTS as u64) as usize;
                let worker = self.rng.below(self.nodes[node].host.workers().len() as u64) as usize;
                self.nodes[node].turn(worker)
            }
            6..8 => {
                let node = self.rng.below(HOSTS as u64) as usize;
                self.nodes[node].pass()
            }
            8..11 if self.has_hostiles => {
                self.step_hostile();
                // Not work: a program that disturbs must not keep the time from moving on.
                false
            }
            _ => self.step_honest(),
        };
        self.idle = if busy { 0 } else { self.idle + 1 };
        if self.idle >= IDLE_STEPS {
            self.jump();
        }
    }

    /// Moves the time on to the next thing that is due.
    fn jump(&mut self) {
        self.idle = 0;
        let due = self.nodes.iter().map(Node::next_deadline).min().unwrap_or(Nanos::NEVER);
        let due = due.min(self.network.lock().next_due()).min(self.now() + JUMP_MAX);
        self.time.fetch_max(due.0, Ordering::Relaxed);
    }

    fn victims(&self) -> Vec<u32> {
        self.pairs.iter().flat_map(HonestPair::qpns).collect()
    }

    fn step_hostile(&mut self) {
        let victims = self.victims();
        if self.has_forgery && self.rng.chance(1, 4) {
            let mut known = victims.clone();
            self.hostiles.iter_mut().for_each(|h| known.extend(h.qpns()));
            return self.network.lock().forge(self.now(), &known);
        }
        if self.hostiles.len() < HOSTILES && self.rng.chance(1, 20) || self.hostiles.is_empty() {
            let node = self.rng.below(HOSTS as u64) as usize;
            let uid = HOSTILE_UIDS[self.rng.below(2) as usize];
            return self.hostiles.push(Hostile::new(self.rng.fork(), node, uid, &self.addrs));
        }
        let at = self.rng.below(self.hostiles.len() as u64) as usize;
        let node = &mut self.nodes[self.hostiles[at].node()];
        if !self.hostiles[at].step(node, &victims) {
            self.hostiles.swap_remove(at).kill(node);
            self.summary.hostiles += 1;
        }
    }

    fn step_honest(&mut self) -> bool {
        self.pairs.retain(|pair| {
            let over = pair.is_over();
            self.summary.pairs += u64::from(over);
            self.summary.requests += if over { pair.completed } else { 0 };
            !over
        });
        if self.pairs.len() < PAIRS {
            let client = self.rng.below(HOSTS as u64) as usize;
            let nodes = if self.rng.chance(1, 8) { [client, client] } else { [client, 1 - client] };
            self.pairs.push(HonestPair::new(self.rng.fork(), nodes, self.next_uid, self.now()));
            self.next_uid += 2;
            return true;
        }
        let at = self.rng.below(self.pairs.len() as u64) as usize;
        if self.rng.chance(1, 20_000) {
            self.pairs[at].kill(&mut self.nodes);
            self.summary.deaths += 1;
            return true;
        }
        self.pairs[at].step(&mut self.nodes, &self.addrs)
    }

    /// Lets the time pass in which connections that have ended are forgotten: peers answer or do not, and TIMEWAIT.
    fn forget_connections(&mut self) {
        let mut jumps = 0;
        while self.nodes.iter().any(|node| node.connections() > 0) {
            assert!(jumps < JUMPS_MAX, "connections stay after the end of all programs");
            let mut is_busy = false;
            for node in &mut self.nodes {
                is_busy |= (0..node.host.workers().len()).fold(false, |busy, worker| node.turn(worker) | busy);
                // What is due for the control thread would stop the time.
                is_busy |= node.pass();
            }
            if !is_busy {
                jumps += 1;
                self.jump();
            }
        }
    }

    /// Ends everything, and checks that nothing is left.
    pub fn end(mut self) -> Summary {
        self.pairs.clear();
        for hostile in self.hostiles.drain(..) {
            let node = &mut self.nodes[hostile.node()];
            hostile.kill(node);
        }
        self.nodes.iter_mut().for_each(Node::end_all);
        self.forget_connections();
        for node in &mut self.nodes {
            // What the ends of the programs left to the workers.
            for worker in 0..node.host.workers().len() {
                node.turn(worker);
            }
            node.check_empty();
        }
        if std::env::var("BURST_COUNTERS").is_ok() {
            for c in self.nodes.iter().flat_map(|n| n.host.stats()) {
                println!("COUNT {} {}", c.name, c.value);
            }
        }
        let network = self.network.lock();
        Summary { frames: network.sent, forged: network.forged, virtual_ms: self.now().0 / 1_000_000, ..self.summary }
    }
}
