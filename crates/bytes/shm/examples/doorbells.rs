//! Many producers ring one consumer, by each design of a doorbell queue; and one producer with up to 65,536 queue pairs.
//!
//! usage: doorbells [ROUNDS]
//!
//! BURST's table 2: each of T threads rings for 10,000 items, and one thread consumes them. A time is from the start of the
//! producers until the consumer has seen every item, divided by the items. A bitmap and the indices of queue pairs join rings of
//! a queue that the consumer has not looked at; there the last index of each producer tells that all its items were seen.
//!
//! BURST's figure 3: one thread rings 64 of Q queues, then drains; the time of one ring and its part of the drain.
//!
//! A producer of the ring waits for all earlier ones; with more threads than processors these may wait for a processor, and 32
//! threads take seconds: it is measured with 8 at most.
//!
//! Prints medians of ROUNDS (5) rounds, the designs in turns, in nanoseconds for one item, as JSON:
//! `{"producers": {DESIGN: {T: NS}}, "queues": {DESIGN: {Q: NS}}}`.

use burst_shm::paired;
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::thread::{scope, yield_now};
use std::time::Instant;

#[path = "../benches/rivals/mod.rs"]
mod rivals;
use rivals::{BlockRing, Missing, OrderedRing, PerQp};

const PRODUCERS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const QUEUES: [u32; 5] = [16, 256, 4096, 16_384, 65_536];
/// Threads that the ordered ring is measured with.
const RING_PRODUCERS_MAX: u32 = 8;
/// Items of one producer.
const ITEMS: u32 = 10_000;
/// Queues that ring before one drain, and drains of one measurement.
const PER_DRAIN: u32 = 64;
const DRAINS: u32 = 1000;

/// Nanoseconds for one item: `ring` is called by each producer for each of its items, `drain` by the consumer until it has seen
/// all. `drain` returns how many items it has seen since its last call.
fn produced(producers: u32, ring: impl Fn(u32) + Sync, mut drain: impl FnMut() -> u64) -> f64 {
    let items = u64::from(producers) * u64::from(ITEMS);
    let begun = Instant::now();
    scope(|scope| {
        for producer in 0..producers {
            let ring = &ring;
            scope.spawn(move || (0..ITEMS).for_each(|_| ring(producer)));
        }
        let mut seen = 0;
        while seen < items {
            match drain() {
                0 => yield_now(),
                new => seen += new,
            }
        }
        assert_eq!(seen, items, "an item was seen twice");
    });
    begun.elapsed().as_nanos() as f64 / items as f64
}

/// What a design costs with `producers` threads.
fn with_producers(design: &str, producers: u32) -> f64 {
    // The requests of each producer, as the producer index of its send queue.
    let posted: Vec<AtomicU64> = (0..producers).map(|_| AtomicU64::new(0)).collect();
    let mut consumed = vec![0; producers as usize];
    let post = |producer: u32| {
        let posted = &posted[producer as usize];
        posted.store(posted.load(Relaxed) + 1, Release);
    };
    let mut take = |queue: u32| {
        let now = posted[queue as usize].load(Acquire);
        now - std::mem::replace(&mut consumed[queue as usize], now)
    };
    let mut new = 0;
    match design {
        "bitmap" => {
            let (bells, mut worker) = paired::doorbells(0);
            let ring = |producer| {
                post(producer);
                bells.ring(0, producer);
            };
            produced(producers, ring, || {
                new = 0;
                worker.drain(4096, |queue| new += take(queue));
                new
            })
        }
        "per_qp" => {
            let queues = PerQp::new(producers);
            let mut seen = queues.seen();
            let ring = |producer| {
                post(producer);
                queues.ring(producer);
            };
            produced(producers, ring, || {
                new = 0;
                queues.drain(&mut seen, |queue| new += take(queue));
                new
            })
        }
        "mutex" => {
            let queue = Mutex::new(VecDeque::with_capacity(4096));
            let ring = |producer| queue.lock().expect("unpoisoned").push_back(producer);
            produced(producers, ring, || {
                let mut taken = std::mem::take(&mut *queue.lock().expect("unpoisoned"));
                taken.drain(..).map(black_box).count() as u64
            })
        }
        "ring" => {
            let queue = OrderedRing::new();
            produced(producers, |producer| queue.ring(producer, yield_now), || counted(|f| queue.drain(f)))
        }
        "block" => {
            let (queue, mut missing) = (BlockRing::new(), Missing::default());
            let ring = |producer| queue.ring(producer, yield_now);
            produced(producers, ring, || {
                let before = missing.lost;
                // A lost item is never seen. It ends the wait for it, and is printed.
                counted(|f| queue.drain(&mut missing, f)) + missing.lost - before
            })
        }
        _ => unreachable!("a design"),
    }
}

/// How often `drain` calls its argument.
fn counted(drain: impl FnOnce(&mut dyn FnMut(u32))) -> u64 {
    let mut new = 0;
    drain(&mut |queue| {
        black_box(queue);
        new += 1;
    });
    new
}

/// Nanoseconds for one ring and its part of a drain: `turn` rings the queues of its argument, then drains. It returns how many
/// queues the drain has seen.
fn drained(queues: u32, mut turn: impl FnMut([u32; PER_DRAIN as usize]) -> u64) -> f64 {
    let (mut next, mut seen) = (0u32, 0);
    let begun = Instant::now();
    for _ in 0..DRAINS {
        // An odd stride visits every queue of a power of two.
        seen += turn(std::array::from_fn(|_| {
            next = next.wrapping_add(1_000_003);
            next % queues
        }));
    }
    let ns = begun.elapsed().as_nanos() as f64 / f64::from(DRAINS * PER_DRAIN);
    // Sixteen queues are rung four times each before a drain: the designs that join rings see each once.
    assert!(seen >= u64::from(DRAINS * PER_DRAIN.min(queues)));
    ns
}

/// What a design costs one thread that has `queues` queue pairs.
fn with_queues(design: &str, queues: u32) -> f64 {
    let no_wait = || unreachable!("the queue is empty before each turn");
    match design {
        "bitmap" => {
            let (bells, mut worker) = paired::doorbells(0);
            drained(queues, |rung| {
                rung.iter().for_each(|queue| bells.ring(0, *queue));
                counted(|f| _ = worker.drain(4096, f))
            })
        }
        "per_qp" => {
            let per_qp = PerQp::new(queues);
            let mut before = per_qp.seen();
            drained(queues, |rung| {
                rung.iter().for_each(|queue| per_qp.ring(*queue));
                counted(|f| per_qp.drain(&mut before, f))
            })
        }
        "mutex" => {
            let queue = Mutex::new(VecDeque::with_capacity(4096));
            drained(queues, |rung| {
                rung.iter().for_each(|q| queue.lock().expect("unpoisoned").push_back(*q));
                counted(|f| queue.lock().expect("unpoisoned").drain(..).for_each(f))
            })
        }
        "ring" => {
            let ring = OrderedRing::new();
            drained(queues, |rung| {
                rung.iter().for_each(|queue| ring.ring(*queue, no_wait));
                counted(|f| ring.drain(f))
            })
        }
        "block" => {
            let (ring, mut missing) = (BlockRing::new(), Missing::default());
            drained(queues, |rung| {
                rung.iter().for_each(|queue| ring.ring(*queue, no_wait));
                counted(|f| ring.drain(&mut missing, f))
            })
        }
        _ => unreachable!("a design"),
    }
}

const DESIGNS: [&str; 5] = ["bitmap", "block", "ring", "mutex", "per_qp"];

/// Whether `design` is measured with that many threads.
fn is_measured(design: &str, threads: u32) -> bool {
    design != "ring" || threads <= RING_PRODUCERS_MAX
}

/// Medians of each design for each of `sizes`.
fn medians(rounds: usize, sizes: &[u32], cost: impl Fn(&str, u32) -> Option<f64>) -> String {
    let mut costs: BTreeMap<(&str, u32), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for size in sizes {
            for design in DESIGNS {
                costs.entry((design, *size)).or_default().extend(cost(design, *size));
            }
        }
    }
    let row = |design: &str| {
        let median = |size: &u32| {
            let mut all = costs[&(design, *size)].clone();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).map(|ns| format!("\"{size}\": {ns:.1}"))
        };
        format!("\"{design}\": {{{}}}", sizes.iter().filter_map(median).collect::<Vec<_>>().join(", "))
    };
    DESIGNS.map(row).join(", ")
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(5, |word| word.parse().expect("a number of rounds"));
    let threads = |design: &str, threads| is_measured(design, threads).then(|| with_producers(design, threads));
    let producers = medians(rounds, &PRODUCERS, threads);
    let queues = medians(rounds, &QUEUES, |design, queues| Some(with_queues(design, queues)));
    println!("{{\"producers\": {{{producers}}}, \"queues\": {{{queues}}}}}");
}
