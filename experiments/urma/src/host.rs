//! A host of the studies: a simulated host with its adapter's stages, its program's processor, and what it has made.

use crate::interface::{CYCLE_PS, FLIT_BYTES};
use burst_sim::node::SimHost;
use burst_sim::port::Wire;
use burst_urma::AccessTag;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// One direction of an adapter: a pipeline that takes a flit in each cycle.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicStage {
    free_at: u64,
}

impl NicStage {
    /// A packet of `len` bytes comes at `now`; when its last flit is through `cycles` stages.
    pub fn pass(&mut self, now: u64, cycles: u64, len: u64) -> u64 {
        let flits = len.div_ceil(FLIT_BYTES).max(1);
        let begin = self.free_at.max(now);
        self.free_at = begin + flits * CYCLE_PS;
        begin + (cycles + flits - 1) * CYCLE_PS
    }
}

/// The contexts that an adapter holds; the one that was not used for longest makes room.
#[derive(Debug)]
pub struct ContextCache {
    room: usize,
    clock: u64,
    used_at: BTreeMap<u64, u64>,
    by_time: BTreeMap<u64, u64>,
    /// Contexts that were fetched.
    pub misses: u64,
}

impl ContextCache {
    /// A cache of so many contexts.
    pub fn new(room: u64) -> ContextCache {
        let (used_at, by_time) = (BTreeMap::new(), BTreeMap::new());
        ContextCache { room: room as usize, clock: 0, used_at, by_time, misses: 0 }
    }
    /// Uses a context. True if it has to be fetched.
    pub fn touch(&mut self, context: u64) -> bool {
        self.clock += 1;
        let before = self.used_at.insert(context, self.clock);
        self.by_time.insert(self.clock, context);
        if let Some(before) = before {
            self.by_time.remove(&before);
            return false;
        }
        self.misses += 1;
        if self.used_at.len() > self.room
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.used_at.remove(&oldest);
        }
        true
    }
}

/// A host.
pub struct StudyHost {
    /// Worker, queue pairs, URMA's endpoint.
    pub node: SimHost,
    /// What the bus' port exchanges with the network.
    pub bus: Option<Arc<Mutex<Wire>>>,
    /// Outgoing and incoming stages.
    pub stages: [NicStage; 2],
    /// The adapter's contexts, if they are modelled.
    pub cache: Option<ContextCache>,
    /// When the program's processor is free.
    pub processor_free_at: u64,
    /// When the engine is due.
    pub wake_at: u64,
    /// When the program begins something by itself.
    pub begin_at: u64,
    /// When the last packet of a context got to the engine: requests, answers.
    pub entered: BTreeMap<(u32, bool), u64>,
    /// When the last work request of a queue got to the adapter.
    pub posted: BTreeMap<u32, u64>,
    /// Queue pairs by queue and peer.
    pub pairs: BTreeMap<(u32, u32), u32>,
    /// Completion queue of the bus, Jetties by queue, receive queue, own segment.
    pub jfc: u32,
    /// See `jfc`.
    pub jetties: Vec<u32>,
    /// See `jfc`.
    pub jfr: u32,
    /// See `jfc`.
    pub token_id: u32,
    /// Imported segments and Jetties by peer.
    pub imports: BTreeMap<u32, (u32, u32)>,
    /// Accesses under way, with the operation's number.
    pub accesses: VecDeque<(AccessTag, u32)>,
    /// Operations whose access waits until the oldest one to its peer has ended.
    pub blocked: VecDeque<u32>,
}

impl StudyHost {
    /// A host that has nothing but its worker.
    pub fn new(node: SimHost, bus: Option<Arc<Mutex<Wire>>>, cache: Option<ContextCache>) -> StudyHost {
        StudyHost {
            node,
            bus,
            stages: [NicStage::default(); 2],
            cache,
            processor_free_at: 0,
            wake_at: u64::MAX,
            begin_at: u64::MAX,
            entered: BTreeMap::new(),
            posted: BTreeMap::new(),
            pairs: BTreeMap::new(),
            jfc: 0,
            jetties: Vec::new(),
            jfr: 0,
            token_id: 0,
            imports: BTreeMap::new(),
            accesses: VecDeque::new(),
            blocked: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_a_pipeline() {
        let mut stage = NicStage::default();
        assert_eq!(stage.pass(0, 25, 64), 26 * CYCLE_PS);
        assert_eq!(stage.pass(0, 25, 64), 28 * CYCLE_PS, "two cycles behind the first");
        assert_eq!(stage.pass(1_000_000, 25, 8), 1_000_000 + 25 * CYCLE_PS);
    }

    #[test]
    fn the_context_used_longest_ago_makes_room() {
        let mut cache = ContextCache::new(2);
        assert_eq!([1, 2, 1, 3, 1, 2].map(|context| cache.touch(context)), [true, true, false, true, false, true]);
        assert_eq!(cache.misses, 4);
    }
}
