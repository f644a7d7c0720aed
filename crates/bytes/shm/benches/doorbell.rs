//! Doorbell designs compared: one ring, then one drain that finds it, with 1, 64 and 4096 queue pairs attached.
//!
//! * `bitmap`: ours, one to three atomic ORs and three swaps.
//! * `mutex`: one `Mutex<VecDeque>` for all.
//! * `ring`, `block`, `per_qp`: see [`rivals`].
//!
//! `burst` rings 64 different queues before one drain. One thread: this is the cost of the instructions and of the
//! cache lines in one core's cache; `examples/doorbells.rs` measures many producers.
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]
use burst_shm::paired;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::sync::Mutex;
use std::time::Duration;

mod rivals;
use rivals::{BlockRing, Missing, OrderedRing, PerQp};

const QUEUES: [u32; 3] = [1, 64, 4096];

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
            let (bells, mut drain) = paired::doorbells(0);
            group.bench_function(BenchmarkId::new("bitmap", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| bells.ring(0, q));
                    drain.drain(4096, |q| _ = black_box(q))
                })
            });
            let per_qp = PerQp::new(queues);
            let mut seen = per_qp.seen();
            group.bench_function(BenchmarkId::new("per_qp", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| per_qp.ring(q));
                    per_qp.drain(&mut seen, |q| _ = black_box(q))
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
            let ring = OrderedRing::new();
            group.bench_function(BenchmarkId::new("ring", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| ring.ring(q, spin_loop));
                    ring.drain(|q| _ = black_box(q))
                })
            });
            let (block, mut missing) = (BlockRing::new(), Missing::default());
            group.bench_function(BenchmarkId::new("block", queues), |b| {
                b.iter(|| {
                    turn(queues, per_turn, &mut next, |q| block.ring(q, spin_loop));
                    block.drain(&mut missing, |q| _ = black_box(q))
                })
            });
        }
        group.finish();
    }
}

criterion_group!(benches, designs);
criterion_main!(benches);
