//! Random operations of all kinds and order types between several hosts, under loss, duplication and reordering, in virtual time,
//! against an oracle:
//!
//! * each reliable operation completes once and was executed once, or was refused as it had to be, and then not at all;
//! * the bytes of a finished WRITE are at the target and those of a READ here; afterwards nothing writes there again;
//! * atomics return each old value once; each message is received once, with its bytes;
//! * an SO request executes after all earlier RO and SO requests of its Jetty, in ROL each request after all earlier ones, a
//!   fenced one after all earlier READs and atomics; completions with the bit for order come in posting order;
//! * at the end no record, held packet or response is left at any host.
//!
//! `BURST_URMA_SEEDS` and `BURST_URMA_OPS` make it longer than the few seconds of the default, `BURST_URMA_SEED` runs one seed.

mod common;

use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_ubwire::{OrderTag, ServiceMode, TaOpcode};
use burst_urma::{
    CompletionRecord, CrStatus, JettyConfig, JfsWr, LossRecovery, RemoteSegment, TransMode, UrmaConfig, UrmaError,
};
use common::*;
use std::collections::{HashMap, HashSet};

const HOSTS: usize = 4;
/// Operations that a Jetty may have outstanding.
const DEPTH: usize = 16;
/// Bytes of a slot: source and destination of one operation.
const SLOT: u64 = 9_016;
/// Where in its slot the notification of a WRITE is written.
const NOTIFY: u64 = 9_008;
const SERVICES: [ServiceMode; 5] =
    [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol, ServiceMode::Rot, ServiceMode::Uno];
/// After its operation is checked, a slot is filled with this, and nothing may change it.
const QUIET: u8 = 0xee;
/// Receives of a host: so few that messages find none.
const RECEIVES: u64 = 4;

/// Slots: for each Jetty of each host, sources and destinations; then receives, then the counter.
fn source(jetty: usize, slot: usize) -> u64 {
    ((jetty * DEPTH + slot) as u64) * SLOT
}
fn dest(host: usize, jetty: usize, slot: usize) -> u64 {
    (((1 + host) * SERVICES.len() + jetty) * DEPTH + slot) as u64 * SLOT
}
fn receives_at() -> u64 {
    dest(HOSTS, 0, 0)
}
fn counter_at() -> u64 {
    receives_at() + RECEIVES * SLOT
}

#[derive(Clone, Debug)]
struct Op {
    host: usize,
    jetty: usize,
    tassn: u16,
    slot: usize,
    peer: usize,
    opcode: TaOpcode,
    len: u32,
    order: OrderTag,
    fence: bool,
    completion_order: bool,
    is_wrong: bool,
    status: Option<CrStatus>,
    executed_at: Vec<u64>,
}

struct Oracle {
    world: World,
    rng: Rng,
    seed: u64,
    jfc: Vec<u32>,
    jfr: Vec<u32>,
    jetties: Vec<Vec<u32>>,
    targets: Vec<Vec<Vec<u32>>>,
    segments: Vec<Vec<u32>>,
    /// The same memory by segments with a token, as mode UM needs it.
    shown: Vec<Vec<u32>>,
    wrong: Vec<Vec<u32>>,
    ops: Vec<Op>,
    posted: HashMap<(usize, usize), Vec<usize>>,
    free_slots: Vec<Vec<Vec<usize>>>,
    old_values: HashSet<(usize, u64)>,
    adds: Vec<u64>,
    messages: HashMap<usize, u32>,
    completed_order: HashMap<(usize, usize), Vec<usize>>,
    /// Receives that are posted again a little later.
    used_receives: Vec<(usize, u64)>,
}

fn pattern(op: usize, len: u32) -> Vec<u8> {
    let mut rng = Rng::new(op as u64 + 1);
    let mut bytes = vec![0; len as usize];
    rng.fill(&mut bytes);
    bytes
}

/// A Jetty of each service mode.
fn create_jetties(world: &mut World, host: usize, jfc: u32, jfr: u32) -> Vec<u32> {
    let create = |service: &ServiceMode| {
        let mode = if *service == ServiceMode::Uno { TransMode::Um } else { TransMode::Rm };
        world.jetty(host, JettyConfig { service: *service, mode, ..JettyConfig::new(jfc, Some(jfr)) })
    };
    SERVICES.iter().map(create).collect()
}

impl Oracle {
    fn new(seed: u64, lanes: u8) -> Oracle {
        let mut rng = Rng::new(seed);
        let (mtu, small, gbn, caqm) =
            (*pick(&mut rng, &[256, 1024, 4096]), rng.chance(1, 2), rng.chance(1, 4), rng.chance(1, 2));
        let mut world = World::new(HOSTS, (counter_at() + 8) as usize, seed, |config: &mut UrmaConfig| {
            config.mtu = mtu;
            config.caqm = caqm;
            config.lanes = lanes;
            if gbn {
                config.recovery = LossRecovery::GoBackN;
            }
            if small {
                // Limits that are reached: contexts denied, messages refused because the reorder buffer is full.
                (config.contexts_max, config.reorder_packets, config.inbound_max) = (3, 1, 4);
                config.responses_max = 8;
            }
        });
        world.weather = STORM;
        world.weather.loss = rng.below(40_000);
        for host in &mut world.hosts {
            host.ram.bytes.fill(QUIET);
            host.ram.bytes[counter_at() as usize..].fill(0);
        }
        let jfc: Vec<u32> = (0..HOSTS).map(|h| world.jfc(h)).collect();
        let jfr: Vec<u32> = (0..HOSTS).map(|h| world.jfr(h, jfc[h])).collect();
        let jetties: Vec<Vec<u32>> = (0..HOSTS).map(|h| create_jetties(&mut world, h, jfc[h], jfr[h])).collect();
        let each = |make: &mut dyn FnMut(usize, usize) -> u32| -> Vec<Vec<u32>> {
            (0..HOSTS).map(|h| (0..HOSTS).map(|p| make(h, p)).collect()).collect()
        };
        let segments = each(&mut |h, p| world.import_all(h, p));
        let shown = each(&mut |h, p| world.import_shown(h, p));
        let wrong = each(&mut |h, p| {
            let token_id = world.hosts[p].all;
            let good = world.hosts[p].node.export_segment(token_id).expect("registered");
            let bad = RemoteSegment { token_id: good.token_id ^ 0x1_0000, ..good };
            world.hosts[h].node.import_segment(bad).expect("room")
        });
        let targets = (0..HOSTS)
            .map(|h| {
                (0..HOSTS)
                    .map(|p| (0..SERVICES.len()).map(|j| world.import_jetty(h, p, jetties[p][j])).collect())
                    .collect()
            })
            .collect();
        let slots = || (0..SERVICES.len()).map(|_| (0..DEPTH).collect()).collect();
        Oracle {
            world,
            rng,
            seed,
            jfc,
            jfr,
            jetties,
            targets,
            segments,
            shown,
            wrong,
            ops: Vec::new(),
            posted: HashMap::new(),
            free_slots: (0..HOSTS).map(|_| slots()).collect(),
            old_values: HashSet::new(),
            adds: vec![0; HOSTS],
            messages: HashMap::new(),
            completed_order: HashMap::new(),
            used_receives: Vec::new(),
        }
    }
    /// Posts the receive with this number.
    fn post_receive(&mut self, host: usize, number: u64) {
        self.world.recv(host, self.jfr[host], receives_at() + number * SLOT, SLOT as u32, number);
    }
    fn post_used_receives(&mut self) {
        for (host, number) in std::mem::take(&mut self.used_receives) {
            self.post_receive(host, number);
        }
    }
    fn choose(&mut self) -> Option<Op> {
        let rng = &mut self.rng;
        let host = rng.below(HOSTS as u64) as usize;
        let jetty = rng.below(SERVICES.len() as u64) as usize;
        // Often the same peer, so that streams of ordered requests become long.
        let peer = match rng.chance(3, 4) {
            true => (host + 1 + jetty % (HOSTS - 1)) % HOSTS,
            false => (host + 1 + rng.below(HOSTS as u64 - 1) as usize) % HOSTS,
        };
        let is_uno = SERVICES[jetty] == ServiceMode::Uno;
        use TaOpcode::{FetchAdd, Read, Send, SendImm, Write, WriteImm, WriteNotify};
        let all = [Write, Write, Read, FetchAdd, Send, SendImm, WriteImm, WriteNotify];
        let opcode = if is_uno { *pick(rng, &[Write, Send]) } else { *pick(rng, &all) };
        let len = match (opcode, is_uno) {
            (FetchAdd, _) => 8,
            (_, true) => rng.below(200) as u32,
            _ => *pick(rng, &[0, 1, 8, 255, 256, 257, 1000, 4096, 4097, 9000]),
        };
        let slot = self.free_slots[host][jetty].pop()?;
        Some(Op {
            host,
            jetty,
            tassn: 0,
            slot,
            peer,
            opcode,
            len,
            order: if is_uno {
                OrderTag::None
            } else {
                *pick(rng, &[OrderTag::None, OrderTag::Relaxed, OrderTag::Strong])
            },
            fence: !is_uno && rng.chance(1, 20),
            completion_order: !is_uno && rng.chance(1, 3),
            is_wrong: opcode.has_memory() && rng.chance(1, 30),
            status: None,
            executed_at: Vec::new(),
        })
    }
    fn post(&mut self) {
        let Some(mut op) = self.choose() else { return };
        let number = self.ops.len();
        let (from, to) = (source(op.jetty, op.slot), dest(op.host, op.jetty, op.slot));
        let bytes = pattern(number, op.len);
        let (filled, at) = if op.opcode == TaOpcode::Read { (op.peer, to) } else { (op.host, from) };
        self.world.hosts[filled].ram.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        let segments = match (op.is_wrong, SERVICES[op.jetty]) {
            (true, _) => &self.wrong,
            (false, ServiceMode::Uno) => &self.shown,
            (false, _) => &self.segments,
        };
        let is_add = op.opcode == TaOpcode::FetchAdd;
        let wr = JfsWr {
            target: Some(self.targets[op.host][op.peer][op.jetty]),
            segment: Some(segments[op.host][op.peer]),
            remote_addr: RAM_BASE + if is_add { counter_at() } else { to },
            operand: 1,
            immediate: number as u64,
            notify: Some((segments[op.host][op.peer], RAM_BASE + to + NOTIFY)),
            order: op.order,
            fence: op.fence,
            completion_order: op.completion_order,
            ..JfsWr::new(op.opcode, self.world.data(op.host, from, op.len), number as u64)
        };
        let list = self.posted.entry((op.host, op.jetty)).or_default();
        op.tassn = list.len() as u16;
        match self.world.post(op.host, self.jetties[op.host][op.jetty], wr) {
            Ok(()) => {
                list.push(number);
                self.ops.push(op);
            }
            Err(UrmaError::Full) => self.free_slots[op.host][op.jetty].push(op.slot),
            Err(error) => panic!("seed {}: {error:?} for {op:?}", self.seed),
        }
    }
    fn take_executions(&mut self) {
        for host in 0..HOSTS {
            let log = &mut self.world.hosts[host].log;
            let entries: Vec<_> = log.executed.drain(..).zip(log.executed_at.drain(..)).collect();
            for ((peer, rc_id, tassn), at) in entries {
                let from = peer as usize - 1;
                let jetty = self.jetties[from].iter().position(|j| *j == rc_id).expect("a Jetty");
                let list = &self.posted[&(from, jetty)];
                // TASSNs wrap; the newest posted one with this number is meant.
                let back = (list.len() as u16).wrapping_sub(tassn) as usize;
                let number = list[list.len() - back];
                assert_eq!(self.ops[number].peer, host);
                self.ops[number].executed_at.push(at);
            }
        }
    }
    fn take_completions(&mut self) {
        for host in 0..HOSTS {
            for cr in self.world.poll(host, self.jfc[host]) {
                if cr.is_receive { self.check_receive(host, &cr) } else { self.check_send(host, &cr) }
            }
        }
    }
    fn check_receive(&mut self, host: usize, cr: &CompletionRecord) {
        assert_eq!(cr.status, CrStatus::Success, "seed {}", self.seed);
        let at = receives_at() + cr.user_ctx * SLOT;
        if matches!(cr.opcode, TaOpcode::Send | TaOpcode::SendImm) {
            // A message without immediate data is known by its bytes; those of unreliable ones are checked by their length only.
            let bytes = &self.world.hosts[host].ram.bytes[at as usize..][..cr.len as usize];
            let (from, rc_id) = cr.remote.expect("a receive");
            let from = from.cna().get() as usize - 1;
            let jetty = self.jetties[from].iter().position(|j| *j == rc_id).expect("a Jetty");
            let sent = self.posted[&(from, jetty)].iter().rev();
            let found = sent.copied().find(|n| {
                let op = &self.ops[*n];
                let is_candidate = (op.opcode, op.peer, op.len) == (cr.opcode, host, cr.len)
                    && (cr.opcode != TaOpcode::SendImm || cr.immediate == *n as u64);
                is_candidate && (SERVICES[jetty] == ServiceMode::Uno || op.len < 8 || pattern(*n, op.len) == bytes)
            });
            let number = found.unwrap_or_else(|| panic!("seed {}: an unknown message {cr:?}", self.seed));
            if SERVICES[jetty] != ServiceMode::Uno && cr.len >= 8 {
                *self.messages.entry(number).or_default() += 1;
            }
        }
        self.world.hosts[host].ram.bytes[at as usize..at as usize + SLOT as usize].fill(QUIET);
        self.used_receives.push((host, cr.user_ctx));
    }
    fn check_send(&mut self, host: usize, cr: &CompletionRecord) {
        let number = cr.user_ctx as usize;
        let op = self.ops[number].clone();
        assert!(op.host == host && op.status.is_none(), "seed {}: completed twice: {op:?}", self.seed);
        let expected = if op.is_wrong { CrStatus::RemAccessAbort } else { CrStatus::Success };
        let is_uno = SERVICES[op.jetty] == ServiceMode::Uno;
        assert!(cr.status == expected || is_uno, "seed {}: {cr:?} {op:?}", self.seed);
        let (from, to) = (source(op.jetty, op.slot) as usize, dest(op.host, op.jetty, op.slot) as usize);
        let len = op.len as usize;
        let bytes = pattern(number, op.len);
        if cr.status == CrStatus::Success && !is_uno {
            match op.opcode {
                TaOpcode::Write | TaOpcode::WriteImm | TaOpcode::WriteNotify => {
                    assert!(self.world.hosts[op.peer].ram.bytes[to..to + len] == bytes, "seed {}: {op:?}", self.seed);
                    if op.opcode == TaOpcode::WriteNotify {
                        let at = to + NOTIFY as usize;
                        let notification = &self.world.hosts[op.peer].ram.bytes[at..at + 8];
                        assert_eq!(notification, (number as u64).to_le_bytes(), "seed {}: {op:?}", self.seed);
                    }
                }
                TaOpcode::Read => {
                    assert!(self.world.hosts[host].ram.bytes[from..from + len] == bytes, "seed {}: {op:?}", self.seed);
                }
                TaOpcode::FetchAdd => {
                    let old = self.world.hosts[host].ram.bytes[from..from + 8].try_into().expect("eight");
                    let old = u64::from_le_bytes(old);
                    assert!(self.old_values.insert((op.peer, old)), "seed {}: {old} was returned twice", self.seed);
                    self.adds[op.peer] += 1;
                }
                _ => {}
            }
        }
        if op.completion_order {
            self.completed_order.entry((op.host, op.jetty)).or_default().push(number);
        }
        self.ops[number].status = Some(cr.status);
        self.world.hosts[host].ram.bytes[from..from + SLOT as usize].fill(QUIET);
        if !is_uno {
            self.world.hosts[op.peer].ram.bytes[to..to + SLOT as usize].fill(QUIET);
            self.free_slots[host][op.jetty].insert(0, op.slot);
        } else {
            // An unreliable write may still be on its way.
            self.free_slots[host][op.jetty].insert(0, op.slot);
        }
    }
    /// What is free is quiet: no late or repeated packet has written there.
    fn check_quiet(&self) {
        for (host, jetties) in self.free_slots.iter().enumerate() {
            for (jetty, slots) in jetties.iter().enumerate().filter(|(j, _)| SERVICES[*j] != ServiceMode::Uno) {
                for slot in slots {
                    let (from, to) = (source(jetty, *slot) as usize, dest(host, jetty, *slot) as usize);
                    let is_quiet = |h: usize, at: usize| {
                        self.world.hosts[h].ram.bytes[at..at + SLOT as usize].iter().all(|b| *b == QUIET)
                    };
                    assert!(is_quiet(host, from), "seed {}: source", self.seed);
                    assert!((0..HOSTS).all(|h| is_quiet(h, to)), "seed {}: destination", self.seed);
                }
            }
        }
    }
    fn check_order(&self) {
        for ((_, jetty), list) in &self.posted {
            let service = SERVICES[*jetty];
            let (mut ordered, mut reads) = (None::<u64>, None::<u64>);
            for number in list {
                let op = &self.ops[*number];
                if service == ServiceMode::Uno {
                    assert!(op.executed_at.len() <= 2, "once, and once more for a duplicate in the network");
                    continue;
                }
                let times = usize::from(!op.is_wrong);
                assert_eq!(op.executed_at.len(), times, "seed {}: {op:?}", self.seed);
                let Some(&at) = op.executed_at.first() else { continue };
                let order = if service == ServiceMode::Rol { OrderTag::Strong } else { op.order };
                if order == OrderTag::Strong {
                    assert!(ordered.is_none_or(|earlier| earlier < at), "seed {}: order {service:?} {op:?}", self.seed);
                }
                if op.fence {
                    assert!(reads.is_none_or(|earlier| earlier < at), "seed {}: fence {op:?}", self.seed);
                }
                if order != OrderTag::None {
                    ordered = ordered.max(Some(at));
                }
                // A READ with order in ROT or ROL counts as executed when the answer is acknowledged, after the initiator has it.
                let is_late_mark =
                    op.opcode == TaOpcode::Read && order != OrderTag::None && service != ServiceMode::Roi;
                if (op.opcode == TaOpcode::Read || op.opcode.is_atomic()) && !is_late_mark {
                    reads = reads.max(Some(at));
                }
            }
        }
        for list in self.completed_order.values() {
            assert!(list.is_sorted(), "seed {}: completions {list:?}", self.seed);
        }
    }
    fn run(mut self, count: usize) -> World {
        for host in 0..HOSTS {
            for number in 0..RECEIVES {
                self.post_receive(host, number);
            }
        }
        while self.ops.len() < count {
            for _ in 0..self.rng.below(6) {
                self.post();
            }
            // After a long pause channels ask whether their peers are in the same life.
            let pause = if self.rng.chance(1, 60) { 300_000_000 } else { 20_000 };
            let until = self.world.now + Nanos(self.rng.below(pause));
            self.world.run(until);
            self.take_executions();
            self.take_completions();
            if self.rng.chance(1, 4) {
                self.post_used_receives();
            }
        }
        let limit = self.world.now + Nanos(60_000_000_000);
        while self.world.step(limit) {
            self.take_executions();
            self.take_completions();
            self.post_used_receives();
        }
        let open: Vec<&Op> = self.ops.iter().filter(|op| op.status.is_none()).collect();
        assert!(open.is_empty(), "seed {}: {} operations hang, the first is {:?}", self.seed, open.len(), open[0]);
        self.world.assert_drained();
        self.check_quiet();
        self.check_order();
        for (host, adds) in self.adds.iter().enumerate() {
            let counter = &self.world.hosts[host].ram.bytes[counter_at() as usize..];
            assert_eq!(u64::from_le_bytes(counter.try_into().expect("eight")), *adds, "seed {}", self.seed);
        }
        for (number, op) in self.ops.iter().enumerate() {
            let is_message = matches!(op.opcode, TaOpcode::Send | TaOpcode::SendImm);
            if is_message && SERVICES[op.jetty] != ServiceMode::Uno && op.len >= 8 {
                assert_eq!(self.messages.get(&number), Some(&1), "seed {}: {op:?}", self.seed);
            }
        }
        self.world
    }
}

fn pick<'a, T>(rng: &mut Rng, list: &'a [T]) -> &'a T {
    &list[rng.below(list.len() as u64) as usize]
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// Runs the seeds and counts the reasons of all hosts.
fn run_seeds(lanes: u8, seeds: u64, ops: u64) -> HashMap<Reason, u64> {
    let first = from_env("BURST_URMA_SEED", 0);
    let last = if first > 0 { first } else { seeds };
    let mut counts: HashMap<Reason, u64> = HashMap::new();
    for seed in first.max(1)..=last {
        let world = Oracle::new(seed, lanes).run(ops as usize);
        for (h, host) in world.hosts.iter().enumerate() {
            for (reason, count) in &host.log.counts {
                *counts.entry(*reason).or_default() += count;
            }
            let channels = host.node.state().channels;
            let most = (HOSTS - 1) * usize::from(lanes);
            assert!(
                channels <= most && (lanes == 1 || channels > HOSTS),
                "seed {seed}: host {h} has {channels} channels"
            );
        }
    }
    counts
}

#[test]
fn random_operations_keep_all_promises() {
    let (seeds, ops) = (from_env("BURST_URMA_SEEDS", 40), from_env("BURST_URMA_OPS", 600));
    let counts = run_seeds(1, seeds, ops);
    // What the seeds are for has happened.
    if from_env("BURST_URMA_SEED", 0) == 0 && seeds >= 40 {
        for reason in [
            Reason::UbDuplicate,
            Reason::UbGap,
            Reason::UbRepeated,
            Reason::UbTimeout,
            Reason::UbNotReady,
            Reason::UbContextDenied,
            Reason::UbOrderBufferFull,
            Reason::UbPoolFull,
            Reason::UbToken,
        ] {
            assert!(counts.get(&reason).is_some_and(|count| *count > 0), "{reason:?} has not happened: {counts:?}");
        }
    }
}

#[test]
fn random_operations_over_four_lanes_keep_all_promises() {
    run_seeds(4, from_env("BURST_URMA_SEEDS", 10), from_env("BURST_URMA_OPS", 600));
}
