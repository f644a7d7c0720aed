//! A producer that is killed at any instruction of a ring stops no other producer.
//!
//! A child process rings in an endless loop. When the consumer has seen its ring, it is killed wherever it stands. Meanwhile
//! other producers, whose queues share every word with the child's, post and ring one item after the other; each waits until the
//! consumer has seen an item before it posts the next one.
#![cfg(target_os = "linux")]

use burst_base::rng::Rng;
use burst_shm::doorbell::Doorbells;
use burst_shm::paired;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread::{scope, yield_now};

/// Kills, unless the variable `BURST_KILLS` says another number (`make threads`: 20,000). Beside a busy compiler each takes some
/// 20 ms: a dozen changes between threads, each of which waits for a processor.
const KILLS: u64 = 250;
/// Looks at the child between its ring and its death, at most: the child rings several times meanwhile.
const LOOKS_MAX: u64 = 400;
/// Queue of the child; those of the other producers follow.
const CHILD_QUEUE: u32 = 128;
const OTHERS: usize = 3;

/// One producer beside the child.
#[derive(Default)]
struct Producer {
    posted: AtomicU64,
    seen: AtomicU64,
}

/// A child process that rings without end. Nothing but atomics of shared memory happens in it: other threads of this process may
/// have held locks when it was made.
struct Child(libc::pid_t);

impl Child {
    fn start(bells: &Doorbells) -> Child {
        // SAFETY: the child touches atomics only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                bells.ring(0, CHILD_QUEUE);
            }
        }
        assert!(pid > 0, "fork failed");
        Child(pid)
    }
    /// Kills the child where it stands.
    fn kill(self) {
        let mut status = 0;
        // SAFETY: the child is not reaped yet, so the number is its own; the status outlives the call.
        unsafe {
            assert_eq!(libc::kill(self.0, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(self.0, &mut status, 0), self.0);
        }
        assert!(libc::WIFSIGNALED(status));
    }
}

/// Posts and rings until `end`, each item after the one before was seen.
fn produce(producer: &Producer, bells: &Doorbells, queue: u32, end: &AtomicBool) {
    while !end.load(Relaxed) {
        let item = producer.posted.load(Relaxed) + 1;
        producer.posted.store(item, Release);
        bells.ring(0, queue);
        while producer.seen.load(Acquire) < item && !end.load(Relaxed) {
            yield_now();
        }
    }
}

fn kills() -> u64 {
    std::env::var("BURST_KILLS").map_or(KILLS, |text| text.parse().expect("BURST_KILLS is a number"))
}

#[test]
fn every_other_producer_completes() {
    let (bells, mut worker) = paired::doorbells(0);
    let producers: [Producer; OTHERS] = Default::default();
    let (end, child_rings, mut rng) = (AtomicBool::new(false), AtomicU64::new(0), Rng::new(7));
    scope(|scope| {
        for (at, producer) in producers.iter().enumerate() {
            let (bells, end) = (&bells, &end);
            scope.spawn(move || produce(producer, bells, CHILD_QUEUE + 1 + at as u32, end));
        }
        let consumer = || {
            while !end.load(Relaxed) {
                let taken = worker.drain(64, |queue| {
                    let Some(at) = queue.checked_sub(CHILD_QUEUE + 1) else {
                        child_rings.fetch_add(1, Release);
                        return;
                    };
                    let producer = &producers[at as usize];
                    producer.seen.store(producer.posted.load(Acquire), Release);
                });
                if taken == 0 {
                    yield_now();
                }
            }
        };
        scope.spawn(consumer);
        for kill in 0..kills() {
            let before = child_rings.load(Acquire);
            let child = Child::start(&bells);
            while child_rings.load(Acquire) == before {
                yield_now();
            }
            (0..rng.below(LOOKS_MAX)).for_each(|_| _ = child_rings.load(Acquire));
            child.kill();
            // Three items after the kill: the first may have been rung before.
            for (at, producer) in producers.iter().enumerate() {
                let until = producer.seen.load(Acquire) + 3;
                let mut looks = 0u64;
                while producer.seen.load(Acquire) < until {
                    looks += 1;
                    if looks > 20_000_000 {
                        end.store(true, Relaxed);
                        panic!("producer {at} stands still after kill {kill}");
                    }
                    yield_now();
                }
            }
        }
        end.store(true, Relaxed);
    });
}
