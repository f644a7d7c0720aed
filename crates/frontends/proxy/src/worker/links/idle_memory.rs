//! Memory of streams that have ended: given back when no stream has used it from one sweep to the next.
//!
//! A sweep visits the pools of all links, [`LINKS_AT_ONCE`] in a tick, and frees at most [`REGIONS_AT_ONCE`] regions there,
//! because the device has to forget each of them. Between two sweeps lie [`SWEEP_PAUSE`], so that a region is freed when it has
//! been empty for that time, or twice that time. Without empty regions no timer runs. Connections that come more often than that
//! find the memory of the ones before.

use super::Links;
use crate::counters::ProxyCounter;
use crate::worker::env::WorkerEnv;
use std::time::{Duration, Instant};

/// Time between two sweeps.
pub(crate) const SWEEP_PAUSE: Duration = Duration::from_secs(8);
/// Links that one tick looks at.
const LINKS_AT_ONCE: usize = 64;
/// Regions that one tick frees.
pub(crate) const REGIONS_AT_ONCE: usize = 16;

/// How far the sweep is.
#[derive(Debug, Default)]
pub(super) struct IdleMemory {
    /// When the next one begins, or goes on; `None`: no region was empty.
    next: Option<Instant>,
    /// The link at which it goes on.
    at: usize,
}

impl Links {
    /// A stream has ended, perhaps the last one of a region.
    pub(crate) fn note_idle_memory(&mut self, env: &mut WorkerEnv) {
        if self.totals.has_unused() && self.idle_memory.next.is_none() {
            let next = env.timer.now() + SWEEP_PAUSE;
            self.idle_memory = IdleMemory { next: Some(next), at: 0 };
            env.timer.start_by(next);
        }
    }

    /// Gives memory back, if it is time; returns at how many links it has looked.
    pub(crate) fn free_idle_memory(&mut self, env: &mut WorkerEnv, now: Instant) -> usize {
        let Some(next) = self.idle_memory.next else { return 0 };
        if now < next {
            env.timer.start_by(next);
            return 0;
        }
        let (mut left, mut looked) = (REGIONS_AT_ONCE, 0);
        while self.idle_memory.at < self.links.len() && looked < LINKS_AT_ONCE && left > 0 {
            looked += 1;
            if let Some(link) = &mut self.links[self.idle_memory.at] {
                let (count, bytes) = link.pool.sweep(left);
                left -= count;
                if count > 0 {
                    env.counters.add(ProxyCounter::RegionsFreed, count as u64);
                    env.counters.add(ProxyCounter::BytesFreed, bytes);
                }
            }
            // Otherwise there may be more to free there.
            self.idle_memory.at += usize::from(left > 0);
        }
        if self.idle_memory.at < self.links.len() {
            env.timer.start();
            return looked;
        }
        let next = self.totals.has_unused().then(|| now + SWEEP_PAUSE);
        next.into_iter().for_each(|next| env.timer.start_by(next));
        self.idle_memory = IdleMemory { next, at: 0 };
        looked
    }
}
