//! Programs of the studies: which operations a host begins, and when.

use crate::closed_form::StudyVerb;
use burst_base::rng::Rng;
use burst_sim::flows::exponential;
use burst_ubwire::OrderTag;
use std::collections::VecDeque;

/// An operation that a program begins.
#[derive(Clone, Copy, Debug)]
pub struct StudyOp {
    /// What it does.
    pub verb: StudyVerb,
    /// Bytes of payload; of an atomic 8.
    pub bytes: u32,
    /// The host it goes to.
    pub peer: u32,
    /// The Jetty, or the queue pair to that host.
    pub queue: u32,
    /// Order among those of its queue, on the bus.
    pub order: OrderTag,
    /// Where, from the beginning of the peer's memory.
    pub offset: u64,
    /// Operand, or compare and swap values.
    pub operands: [u64; 2],
    /// Nanoseconds in the processor's caches instead of an operation.
    pub cached: Option<u64>,
}

impl StudyOp {
    /// An operation on the first bytes of `peer`'s memory, by queue 0, without order.
    pub const fn new(verb: StudyVerb, bytes: u32, peer: u32) -> StudyOp {
        StudyOp { verb, bytes, peer, queue: 0, order: OrderTag::None, offset: 0, operands: [0, 0], cached: None }
    }
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedOp {
    /// What it was.
    pub op: StudyOp,
    /// Picoseconds from the program's call to its result.
    pub latency: u64,
    /// When it ended.
    pub at: u64,
    /// Whether it has failed.
    pub is_failure: bool,
    /// The old value of an atomic.
    pub value: u64,
}

/// What hosts' programs do.
pub trait StudyProgram {
    /// The next operation that the program of `host` begins now; `None`: it waits for one that it has begun, or is done.
    fn next(&mut self, host: u32, now: u64) -> Option<StudyOp>;
    /// An operation of a host has ended.
    fn ended(&mut self, host: u32, ended: &EndedOp);
    /// When the program of `host` begins something by itself.
    fn next_at(&self, _host: u32) -> Option<u64> {
        None
    }
}

/// Makes operation `index` of a host.
pub type MakeOp<'a> = Box<dyn FnMut(u32, u64) -> StudyOp + 'a>;

/// Programs with a number of operations under way each.
pub struct LoopProgram<'a> {
    make: MakeOp<'a>,
    depth: u64,
    /// Operations to begin, begun and ended, by host.
    state: Vec<[u64; 3]>,
    /// What has ended, in order: host and operation.
    pub ended: Vec<(u32, EndedOp)>,
}

impl<'a> LoopProgram<'a> {
    /// Host `h` does `counts[h]` operations, `depth` at a time.
    pub fn of_counts(counts: Vec<u64>, depth: u64, make: impl FnMut(u32, u64) -> StudyOp + 'a) -> LoopProgram<'a> {
        let state = counts.into_iter().map(|count| [count, 0, 0]).collect();
        LoopProgram { make: Box::new(make), depth, state, ended: Vec::new() }
    }
}

impl StudyProgram for LoopProgram<'_> {
    fn next(&mut self, host: u32, _now: u64) -> Option<StudyOp> {
        let [count, begun, ended] = self.state.get_mut(host as usize)?;
        if *begun == *count || *begun - *ended >= self.depth {
            return None;
        }
        *begun += 1;
        Some((self.make)(host, *begun - 1))
    }
    fn ended(&mut self, host: u32, ended: &EndedOp) {
        self.state[host as usize][2] += 1;
        self.ended.push((host, *ended));
    }
}

/// A program of host 0 that begins operations at random times, whatever is under way: arrivals of a Poisson process.
pub struct OpenProgram<'a> {
    make: MakeOp<'a>,
    times: VecDeque<u64>,
    index: u64,
    /// What has ended, in order.
    pub ended: Vec<EndedOp>,
}

impl<'a> OpenProgram<'a> {
    /// `count` operations, so many millions a second in the mean, from `begin` on.
    pub fn new(count: u64, mops: f64, begin: u64, seed: u64, make: impl FnMut(u32, u64) -> StudyOp + 'a) -> Self {
        let (mut rng, mut at) = (Rng::new(seed), begin as f64);
        let times = (0..count).map(|_| {
            at += exponential(&mut rng) * 1e6 / mops;
            at as u64
        });
        OpenProgram { make: Box::new(make), times: times.collect(), index: 0, ended: Vec::new() }
    }
}

impl StudyProgram for OpenProgram<'_> {
    fn next(&mut self, host: u32, now: u64) -> Option<StudyOp> {
        if host != 0 || self.times.front().is_none_or(|at| *at > now) {
            return None;
        }
        self.times.pop_front();
        self.index += 1;
        Some((self.make)(host, self.index - 1))
    }
    fn ended(&mut self, _host: u32, ended: &EndedOp) {
        self.ended.push(*ended);
    }
    fn next_at(&self, host: u32) -> Option<u64> {
        self.times.front().copied().filter(|_| host == 0)
    }
}
