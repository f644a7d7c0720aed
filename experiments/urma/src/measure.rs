//! Runs a program in a world and says what was measured.

use crate::program::{EndedOp, LoopProgram, StudyOp};
use crate::world::{NS, StudyConfig, StudyWorld};

/// Operations of each queue to each peer before what is measured: they open channels and order streams.
const WARM_OPS: u64 = 2;
/// The longest time that a program may take: ten virtual seconds.
pub const RUN_MAX: u64 = 10_000_000_000_000;

/// Latencies in nanoseconds, sorted.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Those of operations.
    pub fn of(ended: impl IntoIterator<Item = EndedOp>) -> Latencies {
        let mut all: Vec<f64> = ended.into_iter().map(|ended| ended.latency as f64 / NS as f64).collect();
        all.sort_by(f64::total_cmp);
        Latencies(all)
    }
    /// Number.
    pub fn count(&self) -> usize {
        self.0.len()
    }
    /// Mean; 0 of none.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }
    /// Element ⌊n·share⌋; 0 of none.
    pub fn at(&self, share: f64) -> f64 {
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }
}

/// What was measured.
pub struct Measured {
    /// Latencies of operations that ended well.
    pub ns: Latencies,
    /// Millions of operations a second.
    pub mops: f64,
    /// Operations that failed.
    pub failed: u64,
    /// What ended, in order: host and operation.
    pub ended: Vec<(u32, EndedOp)>,
    /// The world afterwards.
    pub world: StudyWorld,
}

/// Runs a closed loop: each host that begins pairs does `count` operations, `depth` at a time, after some that are not measured.
///
/// # Errors
/// A sentence when the world cannot be made, or operations do not end.
pub fn closed_loop(
    config: StudyConfig,
    count: u64,
    depth: u64,
    make: impl FnMut(u32, u64) -> StudyOp,
) -> Result<Measured, String> {
    let mut world = warm_world(config, StudyOp::new(crate::closed_form::StudyVerb::Read, 8, 0))?;
    run_loop(&mut world, count, depth, make).map(|(ns, mops, failed, ended)| Measured {
        ns,
        mops,
        failed,
        ended,
        world,
    })
}

/// A world in which each queue has done a few operations like `op` to each of its peers.
///
/// # Errors
/// As [`closed_loop`].
pub fn warm_world(config: StudyConfig, op: StudyOp) -> Result<StudyWorld, String> {
    let (pairs, queues) = (config.pairs.clone(), u64::from(config.queues));
    let mut world = StudyWorld::new(config)?;
    let peers_of = |host: u32| pairs.iter().filter(move |pair| pair.0 == host).map(|pair| pair.1);
    let peers: Vec<Vec<u32>> = (0..world.config.hosts).map(|host| peers_of(host).collect()).collect();
    let counts: Vec<u64> = peers.iter().map(|peers| peers.len() as u64 * queues * WARM_OPS).collect();
    let mut program = LoopProgram::of_counts(counts, 1, |host, index| {
        let peers = &peers[host as usize];
        let queue = (index / WARM_OPS % queues) as u32;
        StudyOp { peer: peers[(index / WARM_OPS / queues) as usize % peers.len()], queue, ..op }
    });
    if !world.run(&mut program, RUN_MAX)? {
        return Err("operations before the measurement do not end".into());
    }
    // What is left of acknowledgements passes.
    world.rest(2_000_000)?;
    world.trace.clear();
    Ok(world)
}

/// Latencies, rate, failures, and what ended.
type LoopOutcome = (Latencies, f64, u64, Vec<(u32, EndedOp)>);

/// Runs a closed loop of all hosts that begin pairs in a world.
///
/// # Errors
/// As [`closed_loop`].
pub fn run_loop(
    world: &mut StudyWorld,
    count: u64,
    depth: u64,
    make: impl FnMut(u32, u64) -> StudyOp,
) -> Result<LoopOutcome, String> {
    let begins = |host: u32| world.config.pairs.iter().any(|pair| pair.0 == host);
    let counts = (0..world.config.hosts).map(|host| if begins(host) { count } else { 0 }).collect();
    let mut program = LoopProgram::of_counts(counts, depth, make);
    let began = world.now;
    if !world.run(&mut program, RUN_MAX)? {
        return Err("operations do not end".into());
    }
    let ended = program.ended;
    let end = ended.last().map_or(began, |last| last.1.at);
    let failed = ended.iter().filter(|(_, ended)| ended.is_failure).count() as u64;
    let ns = Latencies::of(ended.iter().map(|(_, ended)| *ended).filter(|ended| !ended.is_failure));
    let mops = ended.len() as f64 * 1e6 / (end - began).max(1) as f64;
    Ok((ns, mops, failed, ended))
}
