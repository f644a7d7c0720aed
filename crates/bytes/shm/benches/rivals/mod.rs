//! The designs of a doorbell queue that BURST compares (figure 3, table 2), for benchmarks beside [`burst_shm::doorbell`].
//!
//! * [`OrderedRing`]: a ring for many producers, as DPDK's: a producer takes a place by compare-and-swap, fills it, and waits
//!   until all earlier producers have published theirs.
//! * `Mutex<VecDeque>` needs no code here.
//! * [`BlockRing`]: a producer reserves a place and commits it, and waits for no other. A place that is not committed in time is
//!   given up by the consumer (appendix A.1.2).
//! * [`PerQp`]: an index for each queue pair, on a line of its own as in a queue header; the consumer looks at all of them.
//!
//! An item is the number of a queue. A producer that finds no room calls its `wait`.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Places of the rings.
const PLACES: u64 = 8192;
/// How long the consumer waits for a place that a producer has reserved.
const RECLAIM_AFTER: Duration = Duration::from_millis(1);

/// A counter on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Line<T>(T);

fn places() -> Vec<AtomicU64> {
    (0..PLACES).map(|_| AtomicU64::new(0)).collect()
}

/// A ring whose producers publish in order.
pub struct OrderedRing {
    places: Vec<AtomicU64>,
    taken: Line<AtomicU64>,
    published: Line<AtomicU64>,
    consumed: Line<AtomicU64>,
}

impl OrderedRing {
    pub fn new() -> OrderedRing {
        OrderedRing { places: places(), taken: Line::default(), published: Line::default(), consumed: Line::default() }
    }
    pub fn ring(&self, queue: u32, mut wait: impl FnMut()) {
        let mut at = self.taken.0.load(Relaxed);
        loop {
            if at - self.consumed.0.load(Acquire) == PLACES {
                wait();
                at = self.taken.0.load(Relaxed);
                continue;
            }
            match self.taken.0.compare_exchange_weak(at, at + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        self.places[(at % PLACES) as usize].store(u64::from(queue), Relaxed);
        while self.published.0.load(Acquire) != at {
            wait();
        }
        self.published.0.store(at + 1, Release);
    }
    pub fn drain(&self, mut f: impl FnMut(u32)) {
        let (from, to) = (self.consumed.0.load(Relaxed), self.published.0.load(Acquire));
        for at in from..to {
            f(self.places[(at % PLACES) as usize].load(Relaxed) as u32);
        }
        self.consumed.0.store(to, Release);
    }
}

/// A ring of places that are reserved and committed. A place holds `(ticket + 1) << 32 | queue`.
pub struct BlockRing {
    places: Vec<AtomicU64>,
    reserved: Line<AtomicU64>,
    consumed: Line<AtomicU64>,
}

/// What the consumer of a [`BlockRing`] misses.
#[derive(Default)]
pub struct Missing {
    /// Since when it has waited for a place.
    since: Option<Instant>,
    /// Items given up. Their producers may be alive, and only late: their rings are lost.
    pub lost: u64,
}

impl BlockRing {
    pub fn new() -> BlockRing {
        BlockRing { places: places(), reserved: Line::default(), consumed: Line::default() }
    }
    pub fn ring(&self, queue: u32, mut wait: impl FnMut()) {
        let ticket = self.reserved.0.fetch_add(1, AcqRel);
        // The consumer may have given this place up already.
        while ticket >= self.consumed.0.load(Acquire) + PLACES {
            wait();
        }
        self.places[(ticket % PLACES) as usize].store((ticket + 1) << 32 | u64::from(queue), Release);
    }
    pub fn drain(&self, missing: &mut Missing, mut f: impl FnMut(u32)) {
        let (mut at, to) = (self.consumed.0.load(Relaxed), self.reserved.0.load(Acquire));
        while at < to {
            let value = self.places[(at % PLACES) as usize].load(Acquire);
            if value >> 32 == (at + 1) & 0xffff_ffff {
                f(value as u32);
            } else if missing.since.get_or_insert_with(Instant::now).elapsed() < RECLAIM_AFTER {
                break;
            } else {
                missing.lost += 1;
            }
            missing.since = None;
            at += 1;
        }
        self.consumed.0.store(at, Release);
    }
}

/// Indices that the consumer compares with those that it saw.
pub struct PerQp {
    rung: Vec<Line<AtomicU32>>,
}

impl PerQp {
    pub fn new(queues: u32) -> PerQp {
        PerQp { rung: (0..queues).map(|_| Line::default()).collect() }
    }
    /// What the consumer has seen at the beginning.
    pub fn seen(&self) -> Vec<u32> {
        vec![0; self.rung.len()]
    }
    /// Has one caller for each queue.
    pub fn ring(&self, queue: u32) {
        let line = &self.rung[queue as usize].0;
        line.store(line.load(Relaxed).wrapping_add(1), Release);
    }
    pub fn drain(&self, seen: &mut [u32], mut f: impl FnMut(u32)) {
        for (queue, (line, seen)) in self.rung.iter().zip(seen).enumerate() {
            let now = line.0.load(Acquire);
            if now != *seen {
                *seen = now;
                f(queue as u32);
            }
        }
    }
}
