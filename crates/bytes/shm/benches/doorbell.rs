//! Doorbell designs compared: one ring, then one drain that finds it, with 1, 64 and 4096 queue pairs attached.
//!
//! * `bitmap`: ours, three atomic ORs and three swaps.
//! * `per_qp`: a single-producer index per queue pair; the worker looks at all of them.
//! * `mutex`: one `Mutex<VecDeque>` for all.
//! * `block`: a multi-producer ring of slots with reserve and commit; the consumer gives up on a reserved slot that is
//!   not committed in time (BURST, appendix A.1.2). The clock is read only when a slot is missing.
//!
//! `burst` rings 64 different queues before one drain. One thread: this is the cost of the instructions and of the
//! cache lines at home; contention between cores is not measured here.
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]
use burst_shm::testing;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

const QUEUES: [u32; 3] = [1, 64, 4096];

/// A doorbell index per queue pair, on a cache line of its own as in a queue header.
#[repr(align(64))]
struct Line(AtomicU32);

struct PerQp {
    rung: Vec<Line>,
    seen: Vec<u32>,
}

impl PerQp {
    fn new(queues: u32) -> PerQp {
        PerQp { rung: (0..queues).map(|_| Line(AtomicU32::new(0))).collect(), seen: vec![0; queues as usize] }
    }
    fn ring(&self, queue: u32) {
        let line = &self.rung[queue as usize].0;
        line.store(line.load(Relaxed).wrapping_add(1), Release);
    }
    fn drain(&mut self, mut f: impl FnMut(u32)) {
        for (queue, (line, seen)) in self.rung.iter().zip(&mut self.seen).enumerate() {
            let now = line.0.load(Acquire);
            if now != *seen {
                *seen = now;
                f(queue as u32);
            }
        }
    }
}

/// Slots hold `ticket << 32 | queue + 1`; a producer reserves a ticket, then commits the slot.
struct BlockRing {
    slots: Vec<AtomicU64>,
    reserved: AtomicU64,
    consumed: u64,
    missing_since: Option<Instant>,
}

const SLOTS: u64 = 8192;
const RECLAIM_AFTER: Duration = Duration::from_millis(1);

impl BlockRing {
    fn new() -> BlockRing {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        BlockRing { slots, reserved: AtomicU64::new(0), consumed: 0, missing_since: None }
    }
    fn ring(&self, queue: u32) {
        let ticket = self.reserved.fetch_add(1, AcqRel);
        let value = (ticket + 1) << 32 | u64::from(queue);
        self.slots[(ticket % SLOTS) as usize].store(value, Release);
    }
    fn drain(&mut self, mut f: impl FnMut(u32)) {
        while self.consumed < self.reserved.load(Acquire) {
            let value = self.slots[(self.consumed % SLOTS) as usize].load(Acquire);
            if value >> 32 == (self.consumed + 1) & 0xffff_ffff {
                f(value as u32);
            } else if self.missing_since.get_or_insert_with(Instant::now).elapsed() < RECLAIM_AFTER {
                return;
            }
            self.missing_since = None;
            self.consumed += 1;
        }
    }
}

/// Runs `ring` for each queue of a turn, then `drain`; the queues walk through all that are attached.
fn turn(queues: u32, per_turn: u32, next: &mut u32, mut ring: impl FnMut(u32)) {
    for _ in 0..per_turn {
        // An odd stride visits every queue of a power of two.
        *next = next.wrapping_add(1_000_003);
        ring(*next % queues);
    }
}

fn designs(c: &mut Criterion) {
    for (name, per_turn) in [("single", 1), ("burst", 64)] {
        let mut group = c.benchmark_group(format!("doorbell/{name}"));
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
        group.throughput(criterion::Throughput::Elements(u64::from(per_turn)));
        for queues in QUEUES {
            let mut next = 0;
            let (bells, mut drain) = testing::doorbells(0);
            group.bench_function(BenchmarkId::new("bitmap", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| bells.ring(0, q));
                    drain.drain(4096, |q| _ = black_box(q))
                })
            });
            let mut per_qp = PerQp::new(queues);
            group.bench_function(BenchmarkId::new("per_qp", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| per_qp.ring(q));
                    per_qp.drain(|q| _ = black_box(q))
                })
            });
            let mutex = Mutex::new(VecDeque::with_capacity(4096));
            group.bench_function(BenchmarkId::new("mutex", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| mutex.lock().expect("unpoisoned").push_back(q));
                    while let Some(q) = mutex.lock().expect("unpoisoned").pop_front() {
                        black_box(q);
                    }
                })
            });
            let mut block = BlockRing::new();
            group.bench_function(BenchmarkId::new("block", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| block.ring(q));
                    block.drain(|q| _ = black_box(q))
                })
            });
        }
        group.finish();
    }
}

criterion_group!(benches, designs);
criterion_main!(benches);
