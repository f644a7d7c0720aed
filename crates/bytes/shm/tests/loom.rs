//! Exhaustive models of the shared-word rules, with the very functions that the rings call.
//!
//! Run with `scripts/loom`. Each model is two or three threads and a handful of words; a lost wake-up
//! shows as a final state in which neither side knows that there is work.
#![cfg(loom)]
use burst_shm::protocol::{self, ARMED_ANY, ARMED_SOLICITED};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use loom::thread;

#[derive(Default)]
struct Words {
    producer: AtomicU32,
    idle: AtomicU32,
    entry: AtomicU32,
    armed: AtomicU32,
    sleeping: AtomicU32,
    leaf: AtomicU64,
    mid: AtomicU64,
    top: AtomicU64,
}

/// The daemon's turn: takes posted entries, declares the queue idle when there is none, and starts again if that fails.
/// Returns the number of entries taken before the queue is idle.
fn serve(w: &Words, mut taken: u32) -> u32 {
    loop {
        let posted = w.producer.load(Acquire);
        if posted != taken {
            // Data written before the index is visible.
            assert!(w.entry.load(Relaxed) >= posted);
            taken = posted;
        }
        if protocol::try_idle(&w.producer, &w.idle, taken) {
            return taken;
        }
    }
}

#[test]
fn an_idle_queue_is_rung() {
    loom::model(|| {
        let w = Arc::new(Words::default());
        let daemon = {
            let w = w.clone();
            thread::spawn(move || serve(&w, 0))
        };
        let mut rings = 0;
        for i in 1..=2 {
            w.entry.store(i, Relaxed);
            rings += u32::from(protocol::post(&w.producer, &w.idle, i));
        }
        let taken = daemon.join().unwrap();
        assert!(taken == 2 || rings > 0, "posted to a resting queue and did not ring: taken {taken}, rings {rings}");
        // The bell is answered.
        assert_eq!(serve(&w, taken), 2);
    });
}

#[test]
fn an_armed_queue_makes_an_event() {
    loom::model(|| {
        let w = Arc::new(Words::default());
        let head = Arc::new(AtomicU64::new(0));
        let slots = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (w, head, slots) = (w.clone(), head.clone(), slots.clone());
                thread::spawn(move || {
                    let word = protocol::reserve(&head, |seen| (seen as u32) < 2).expect("room for two");
                    slots[word as usize].store(word as u32 + 1, Release);
                    protocol::event_due(&w.armed, false)
                })
            })
            .collect();
        // The application: arm, poll once more, then wait.
        protocol::arm(&w.armed, ARMED_ANY);
        let seen = (0..2).take_while(|i| slots[*i].load(Acquire) == *i as u32 + 1).count();
        let events = workers.into_iter().map(|t| t.join().unwrap()).filter(|due| *due).count();
        assert!(events <= 1, "armed once");
        assert!(seen == 2 || events == 1, "waits for an event that no worker sends");
        assert!((0..2).all(|i| slots[i].load(Acquire) == i as u32 + 1), "each index was given once");
    });
}

#[test]
fn a_stronger_arming_is_not_lost() {
    loom::model(|| {
        let w = Arc::new(Words::default());
        protocol::arm(&w.armed, ARMED_SOLICITED);
        let worker = {
            let w = w.clone();
            thread::spawn(move || {
                w.entry.store(1, Release);
                protocol::event_due(&w.armed, false)
            })
        };
        protocol::arm(&w.armed, ARMED_ANY);
        let seen = w.entry.load(Acquire) == 1;
        let event = worker.join().unwrap();
        assert!(seen || event);
    });
}

#[test]
fn a_full_queue_gives_nothing() {
    loom::model(|| {
        let head = Arc::new(AtomicU64::new(protocol::head_word(3, u32::MAX)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let head = head.clone();
                thread::spawn(move || protocol::reserve(&head, |seen| (seen as u32).wrapping_sub(u32::MAX) < 1).is_ok())
            })
            .collect();
        let won = threads.into_iter().map(|t| t.join().unwrap()).filter(|won| *won).count();
        assert_eq!(won, 1);
        assert_eq!(head.load(Relaxed), protocol::head_word(3, 0), "the index wraps, the generation stays");
    });
}

/// Top to bottom, as `DoorbellDrain` does.
fn drain(w: &Words) -> bool {
    protocol::take_bits(&w.top) != 0 && protocol::take_bits(&w.mid) != 0 && protocol::take_bits(&w.leaf) != 0
}

#[test]
fn a_ring_is_drained_before_sleep_or_wakes_the_worker() {
    loom::model(|| {
        let w = Arc::new(Words::default());
        let daemon = {
            let w = w.clone();
            thread::spawn(move || {
                let mut heard = drain(&w);
                protocol::go_to_sleep(&w.sleeping);
                heard |= drain(&w);
                if heard {
                    assert_eq!(w.entry.load(Relaxed), 1, "the work is visible with the bell");
                }
                heard
            })
        };
        w.entry.store(1, Relaxed);
        protocol::ring_bit(&w.leaf, &w.mid, &w.top, 5, 0, 0);
        let woken = protocol::needs_wake(&w.sleeping);
        let heard = daemon.join().unwrap();
        assert!(heard || woken, "the worker sleeps on a ringing bell");
        // The woken worker finds the bell, unless it was drained before.
        assert!(heard || drain(&w));
    });
}

/// A worker that sleeps on a descriptor as soon as it finds no new work. Returns which of the words in `given` it has seen
/// when it sleeps; `None` if it never sleeps.
fn sleep_and_look(sleeping: &AtomicU32, fd: &AtomicU32, given: &[AtomicU32; 2]) -> Option<[bool; 2]> {
    // Writes that were announced and not read.
    let mut owed = 0;
    let mut seen = [false; 2];
    for _ in 0..5 {
        protocol::go_to_sleep(sleeping);
        let look = [0, 1].map(|i| given[i].load(Acquire) == 1);
        if look == seen && fd.load(Acquire) == 0 {
            return Some(seen);
        }
        owed += u32::from(protocol::rise(sleeping));
        if owed > 0 {
            // Reading the descriptor takes what was written; what is not there yet is looked for again.
            owed = u32::checked_sub(owed, fd.swap(0, AcqRel)).expect("each write was announced");
        }
        seen = [0, 1].map(|i| given[i].load(Acquire) == 1);
    }
    None
}

#[test]
fn passing_work_wakes_a_sleeping_worker() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let all = Arc::new((AtomicU32::new(0), AtomicU32::new(0), [AtomicU32::new(0), AtomicU32::new(0)]));
        let givers: Vec<_> = (0..2)
            .map(|i| {
                let all = all.clone();
                thread::spawn(move || {
                    let (sleeping, fd, given) = &*all;
                    given[i].store(1, Release);
                    if protocol::claim_wake(sleeping) {
                        fd.fetch_add(1, AcqRel);
                    }
                })
            })
            .collect();
        let (sleeping, fd, given) = &*all;
        let seen = sleep_and_look(sleeping, fd, given).expect("three things can happen, each wakes once or twice");
        givers.into_iter().for_each(|t| t.join().unwrap());
        assert!(seen == [true; 2] || fd.load(Acquire) > 0, "the worker sleeps and is not woken: {seen:?}");
    });
}

#[test]
fn rings_in_one_word_are_all_kept() {
    loom::model(|| {
        let w = Arc::new(Words::default());
        let ringers: Vec<_> = (0..2)
            .map(|bit| {
                let w = w.clone();
                thread::spawn(move || protocol::ring_bit(&w.leaf, &w.mid, &w.top, bit, 0, 0))
            })
            .collect();
        let mut heard = 0;
        let mut hear = || {
            if protocol::take_bits(&w.top) != 0 && protocol::take_bits(&w.mid) != 0 {
                heard |= protocol::take_bits(&w.leaf);
            }
        };
        hear();
        ringers.into_iter().for_each(|t| t.join().unwrap());
        hear();
        assert_eq!(heard, 3);
    });
}

#[test]
fn a_shared_receive_is_taken_once() {
    loom::model(|| {
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let words = words.clone();
                thread::spawn(move || {
                    loop {
                        let index = words.0.load(Acquire);
                        if index == 2 {
                            return 0u32;
                        }
                        if protocol::take(&words.0, &words.1, index) {
                            return 1 << index;
                        }
                    }
                })
            })
            .collect();
        let taken: Vec<u32> = workers.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(taken.iter().sum::<u32>(), 3, "both entries, each once: {taken:?}");
        assert_eq!(words.1.load(Relaxed), 2, "the application knows that both slots are free");
    });
}
