//! The rings as processes use them: in order, wrapped, full, hostile; and under threads.
#![cfg(not(loom))]
use burst_base::verbs::send_flags;
use burst_shm::cq::{CqConsumer, CqProducer, CqSpec, Push};
use burst_shm::layout::{CQ_HEADER_BYTES, rq_stride, sq_stride};
use burst_shm::rq::{RqProducer, RqSpec};
use burst_shm::sq::{SqProducer, SqSpec};
use burst_shm::{Area, Cqe, Fetch, QUEUE_HEADER_BYTES, RecvWqe, SGE_MAX, SendWqe, Sge, WriteError, paired, protocol};
use proptest::prelude::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

const NO_SGES: [Sge; SGE_MAX as usize] = [Sge { addr: 0, length: 0, lkey: 0 }; SGE_MAX as usize];

fn wqe(wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: 2, ..SendWqe::default() }
}

fn sge(addr: u64) -> Sge {
    Sge { addr, length: 10, lkey: 20 }
}

#[test]
fn sends_arrive_in_order_across_many_wraps() {
    let (mut app, mut daemon) = paired::sq(5, 3, 100);
    assert_eq!((app.spec().entries(), app.room()), (8, 8));
    let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
    for i in 0..1000u64 {
        app.write(&wqe(i), &[sge(i), sge(i + 1)]).expect("room");
        assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Empty, "not posted yet");
        let _ = app.post();
        assert_eq!(daemon.pending(), 1);
        assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(i as u32));
        assert_eq!((out.wr_id, out.num_sge, sges[0], sges[1]), (i, 2, sge(i), sge(i + 1)));
        app.free(i as u32 + 1);
    }
}

#[test]
fn a_full_or_too_large_send_is_refused_and_changes_nothing() {
    let (mut app, mut daemon) = paired::sq(2, 1, 16);
    assert_eq!(app.write(&wqe(0), &[sge(1), sge(2)]), Err(WriteError::TooManySges));
    assert_eq!(app.write_inline_bytes(&wqe(0), &[0; 17]), Err(WriteError::InlineTooLong));
    app.write(&wqe(1), &[]).expect("room");
    app.write_inline_bytes(&wqe(2), &[7; 16]).expect("room");
    assert_eq!(app.write(&wqe(3), &[]), Err(WriteError::Full));
    assert!(app.post(), "a fresh queue is idle");
    let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(0));
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(1));
    assert_eq!((out.length, u32::from(out.flags) & send_flags::INLINE), (16, send_flags::INLINE));
    let mut data = [0; 16];
    daemon.inline_span(1, out.length).read_to(&mut data).expect("mapped");
    assert_eq!(data, [7; 16]);
    // Taken is not free: the daemon may send inline data again.
    assert_eq!(app.room(), 0);
    app.free(1);
    app.free(0);
    app.free(77);
    assert_eq!(app.room(), 1, "only a value between the last and the newest counts");
}

#[test]
fn idle_and_doorbell() {
    let (mut app, mut daemon) = paired::sq(8, 1, 0);
    let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
    app.write(&wqe(1), &[]).expect("room");
    assert!(app.post());
    app.write(&wqe(2), &[]).expect("room");
    assert!(!app.post(), "a busy queue is not rung");
    assert!(!daemon.try_idle(), "there is work");
    while daemon.fetch(&mut out, &mut sges) != Fetch::Empty {}
    assert!(daemon.try_idle());
    app.write(&wqe(3), &[]).expect("room");
    assert!(app.post());
    daemon.discard_all();
    app.free_all();
    assert_eq!((daemon.fetch(&mut out, &mut sges), app.room()), (Fetch::Empty, 8));
    app.write(&wqe(4), &[]).expect("room");
    assert!(app.post(), "after a reset the queue is idle");
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(3));
}

#[test]
fn a_hostile_producer_index_is_corrupt_and_takes_nothing() {
    let spec = SqSpec::new(4, 2, 0).expect("spec");
    let area = paired::area(spec.bytes());
    let mut daemon = burst_shm::sq::SqConsumer::new(area.clone(), spec).expect("fits");
    let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
    // SAFETY: the first word of the queue, which is aligned; accessed atomically only.
    let producer = unsafe { AtomicU32::from_ptr(area.as_ptr().cast()) };
    for bad in [5, 1 << 31, u32::MAX] {
        producer.store(bad, Relaxed);
        assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Corrupt);
        assert!(daemon.pending() <= 4);
    }
    // A possible index with an impossible entry.
    // SAFETY: the first slot lies inside the area.
    let entry = unsafe { area.as_ptr().add(QUEUE_HEADER_BYTES).cast::<SendWqe>() };
    // SAFETY: a slot is as long as a head, and aligned.
    unsafe { entry.write(SendWqe { wr_id: 9, num_sge: 3, ..SendWqe::default() }) };
    producer.store(1, Relaxed);
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Malformed(0));
    assert_eq!(out.wr_id, 9);
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Empty);
    assert_eq!(daemon.inline_span(u32::MAX, u32::MAX).len(), 0, "cut to the queue's limit");
}

proptest! {
    /// With any bytes in the queue, the daemon's end neither panics nor reads outside.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 1..700), turns in 1usize..20) {
        let spec = SqSpec::new(4, 2, 40).expect("spec");
        let area = paired::area(spec.bytes());
        let mut daemon = burst_shm::sq::SqConsumer::new(area.clone(), spec).expect("fits");
        let n = bytes.len().min(area.len());
        // SAFETY: both are at least `n` bytes long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), area.as_ptr(), n) };
        let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
        for _ in 0..turns {
            if let Fetch::Taken(index) = daemon.fetch(&mut out, &mut sges) {
                prop_assert!(u32::from(out.num_sge) <= 2);
                let span = daemon.inline_span(index, out.length);
                let mut copy = vec![0; span.len()];
                prop_assert!(span.read_to(&mut copy).is_ok());
            }
        }
    }

    /// Any order of writing, posting, fetching and freeing gives every request once, in order.
    #[test]
    fn send_queue_like_a_fifo(ops in prop::collection::vec(0u8..4, 1..400)) {
        let (mut app, mut daemon) = paired::sq(8, 2, 32);
        let (mut written, mut posted, mut fetched, mut freed) = (0u32, 0u32, 0u32, 0u32);
        let (mut out, mut sges) = (SendWqe::default(), NO_SGES);
        for op in ops {
            match op {
                0 => {
                    let result = app.write(&wqe(u64::from(written)), &[sge(u64::from(written))]);
                    prop_assert_eq!(result.is_ok(), written - freed < 8);
                    written += u32::from(result.is_ok());
                }
                1 => {
                    let _ = app.post();
                    posted = written;
                }
                2 => {
                    let expect = if fetched < posted { Fetch::Taken(fetched) } else { Fetch::Empty };
                    prop_assert_eq!(daemon.fetch(&mut out, &mut sges), expect);
                    if fetched < posted {
                        prop_assert_eq!((out.wr_id, sges[0].addr), (u64::from(fetched), u64::from(fetched)));
                        fetched += 1;
                    }
                }
                _ => {
                    freed = fetched;
                    app.free(freed);
                }
            }
            prop_assert_eq!(app.room(), 8 - (written - freed));
        }
    }
}

#[test]
fn receives_free_their_slots_when_taken() {
    let (mut app, mut daemon) = paired::rq(4, 2);
    let (mut out, mut sges) = (RecvWqe::default(), NO_SGES);
    for i in 0..100u64 {
        app.write(i, &[sge(i)]).expect("room");
        assert!(!app.post(), "receives ring no doorbell");
        assert_eq!(app.room(), 3);
        assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(i as u32));
        assert_eq!((out.wr_id, out.num_sge, sges[0]), (i, 1, sge(i)));
        assert_eq!(app.room(), 4);
    }
    assert_eq!(app.write(0, &[sge(0); 3]), Err(WriteError::TooManySges));
    // A queue pair in error asks for a doorbell.
    assert!(daemon.try_idle());
    app.write(1, &[]).expect("room");
    assert!(app.post());
    assert!(!daemon.try_idle());
    assert_eq!(daemon.fetch(&mut out, &mut sges), Fetch::Taken(100));
    daemon.want_no_doorbell();
    (0..4).for_each(|i| app.write(i, &[]).expect("room"));
    assert!(!app.post());
    assert_eq!(app.write(9, &[]), Err(WriteError::Full));
    daemon.discard_all();
    assert_eq!((app.room(), daemon.fetch(&mut out, &mut sges)), (4, Fetch::Empty));
}

#[test]
fn a_shared_receive_queue_gives_each_entry_to_one_worker() {
    const COUNT: u64 = 40_000;
    let (mut app, daemon) = paired::srq(64, 2);
    let seen: Vec<AtomicBool> = (0..COUNT).map(|_| AtomicBool::new(false)).collect();
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (daemon, seen, total) = (daemon.clone(), &seen, &total);
            scope.spawn(move || {
                let (mut out, mut sges) = (RecvWqe::default(), NO_SGES);
                while total.load(Relaxed) < COUNT {
                    match daemon.fetch(&mut out, &mut sges) {
                        Fetch::Taken(index) => {
                            assert_eq!((out.wr_id, sges[0].addr), (u64::from(index), u64::from(index) * 3));
                            assert!(!seen[out.wr_id as usize].swap(true, Relaxed), "taken twice");
                            total.fetch_add(1, Relaxed);
                        }
                        Fetch::Empty => std::thread::yield_now(),
                        bad => panic!("{bad:?}"),
                    }
                }
            });
        }
        let mut next = 0;
        while next < COUNT {
            while next < COUNT && app.write(next, &[sge(next * 3)]).is_ok() {
                next += 1;
            }
            let _ = app.post();
            std::thread::yield_now();
        }
    });
    assert_eq!((app.room(), daemon.pending()), (64, 0));
}

fn cqe(wr_id: u64) -> Cqe {
    Cqe { wr_id, qp_cookie: wr_id as u32, ..Cqe::default() }
}

#[test]
fn completions_in_order_and_overrun() {
    let (daemon, mut app) = paired::cq(3);
    let mut out = Cqe::default();
    assert_eq!(app.entries(), 4);
    for i in 0..100 {
        assert!(!app.poll(&mut out));
        assert_eq!(daemon.push(&cqe(i), false), Push::Quiet);
        assert!(app.poll(&mut out));
        assert_eq!((out.wr_id, out.sequence), (i, i as u32 + 1));
    }
    for i in 0..4 {
        assert_eq!(daemon.push(&cqe(i), false), Push::Quiet);
    }
    assert!(!app.is_overrun());
    assert_eq!(daemon.push(&cqe(4), true), Push::Overrun);
    assert!(app.is_overrun());
    let mut taken = Vec::new();
    assert_eq!(app.poll_each(8, |cqe| taken.push(cqe.wr_id)), 4);
    assert_eq!(taken, [0, 1, 2, 3], "what was there before the overrun is whole");
    assert_eq!(daemon.push(&cqe(5), false), Push::Quiet);
}

#[test]
fn completions_that_are_taken_keep_their_slots_until_they_are_released() {
    let (daemon, mut app) = paired::cq(4);
    let mut out = Cqe::default();
    assert!(!app.take_next(&mut out));
    (0..4).for_each(|i| assert_eq!(daemon.push(&cqe(i), false), Push::Quiet));
    for i in 0..3 {
        assert!(app.take_next(&mut out));
        assert_eq!(out.wr_id, i);
    }
    app.release();
    (4..7).for_each(|i| assert_eq!(daemon.push(&cqe(i), false), Push::Quiet));
    assert!(app.take_next(&mut out));
    assert_eq!(daemon.push(&cqe(7), false), Push::Overrun, "the slot of the last one taken is not free yet");
    assert_eq!(out.wr_id, 3);
}

#[test]
fn arming() {
    let (daemon, mut app) = paired::cq(16);
    app.arm(false);
    assert_eq!(daemon.push(&cqe(0), false), Push::Event);
    assert_eq!(daemon.push(&cqe(0), true), Push::Quiet, "one event per arming");
    app.arm(true);
    assert_eq!(daemon.push(&cqe(0), false), Push::Quiet);
    assert_eq!(daemon.push(&cqe(0), true), Push::Event);
    app.arm(false);
    app.arm(true);
    assert_eq!(daemon.push(&cqe(0), false), Push::Event, "a weaker request does not replace a stronger one");
    assert_eq!(app.poll_each(100, |_| ()), 5);
}

#[test]
fn a_hostile_consumer_index_only_hurts_itself() {
    let spec = CqSpec::new(4).expect("spec");
    let area = paired::area(spec.bytes());
    let daemon = CqProducer::new(area.clone(), spec).expect("fits");
    // SAFETY: the first word of the queue, which is aligned; accessed atomically only.
    let consumer = unsafe { AtomicU32::from_ptr(area.as_ptr().cast()) };
    for value in [1, 5, 1 << 31, u32::MAX, 0] {
        consumer.store(value, Relaxed);
        let _ = daemon.push(&cqe(1), false);
    }
    assert!(CqConsumer::new(paired::area(64), spec).is_none() && CqSpec::new(0).is_none());
}

#[test]
fn a_worker_that_was_overtaken_does_not_find_a_full_queue() {
    let head = AtomicU64::new(0);
    let mut looked = 0;
    let has_room = |seen| {
        looked += 1;
        if looked == 1 {
            // Between its looks at head and consumer others make six, and the application takes them.
            head.store(6, Release);
        }
        (seen as u32).wrapping_sub(6) < 4
    };
    assert_eq!(protocol::reserve(&head, has_room), Ok(6));
    assert_eq!(protocol::reserve(&head, |_| false), Err(7), "full it is");
}

#[test]
fn many_workers_one_queue_and_events_are_never_lost() {
    const WORKERS: u64 = 3;
    const EACH: u64 = 30_000;
    let (daemon, mut app) = paired::cq(256);
    let (events, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (daemon, events, consumed) = (daemon.clone(), &events, &consumed);
            scope.spawn(move || {
                for i in 0..EACH {
                    // No more outstanding than fit.
                    let start = std::time::Instant::now();
                    while i * WORKERS > consumed.load(Acquire) + 150 {
                        assert!(start.elapsed().as_secs() < 60, "the consumer has gone");
                        std::thread::yield_now();
                    }
                    match daemon.push(&cqe(worker << 32 | i), false) {
                        Push::Event => drop(events.fetch_add(1, AcqRel)),
                        Push::Quiet => {}
                        Push::Overrun => panic!("never full by construction"),
                    }
                }
            });
        }
        let mut next = [0u64; WORKERS as usize];
        let mut waits = 0u64;
        while next.iter().sum::<u64>() < WORKERS * EACH {
            let mut take = |app: &mut CqConsumer| {
                let n = app.poll_each(16, |c| {
                    let (worker, i) = ((c.wr_id >> 32) as usize, c.wr_id & 0xffff_ffff);
                    assert_eq!(next[worker], i, "each worker's completions in order, none lost, none twice");
                    next[worker] += 1;
                });
                consumed.fetch_add(n as u64, AcqRel);
                n
            };
            if take(&mut app) > 0 {
                continue;
            }
            let before = events.load(Acquire);
            app.arm(false);
            if take(&mut app) > 0 {
                continue;
            }
            // Waits, as on a completion channel: an event must come.
            waits += 1;
            let start = std::time::Instant::now();
            while events.load(Acquire) == before {
                assert!(start.elapsed().as_secs() < 20, "an event was lost");
                std::thread::yield_now();
            }
        }
        assert!(waits > 0);
    });
}

#[test]
fn resize_under_load_keeps_order_and_events() {
    const COUNT: u64 = 60_000;
    let (daemon, mut app) = paired::cq(64);
    let (events, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (worker, events, consumed) = (daemon.clone(), &events, &consumed);
        scope.spawn(move || {
            for i in 0..COUNT {
                while i > consumed.load(Acquire) + 40 {
                    std::thread::yield_now();
                }
                match worker.push(&cqe(i), false) {
                    Push::Event => drop(events.fetch_add(1, AcqRel)),
                    Push::Quiet => {}
                    Push::Overrun => panic!("overrun at {i}"),
                }
            }
        });
        let (mut next, mut polls, mut switches) = (0, 0u64, 0);
        while next < COUNT {
            polls += 1;
            if polls.is_multiple_of(50) && !app.is_draining() {
                daemon.retire_old();
                let spec = CqSpec::new(if switches % 2 == 0 { 128 } else { 64 }).expect("spec");
                let area = paired::area(spec.bytes());
                let base = daemon.switch_to(area.clone(), spec).expect("switched");
                if polls.is_multiple_of(100) {
                    std::thread::yield_now();
                }
                assert!(app.switch_to(area, spec, base));
                switches += 1;
            }
            let mut take = |app: &mut CqConsumer| {
                let n = app.poll_each(8, |c| {
                    assert_eq!(c.wr_id, next);
                    next += 1;
                });
                consumed.fetch_add(n as u64, AcqRel);
                n
            };
            if take(&mut app) > 0 {
                continue;
            }
            let before = events.load(Acquire);
            app.arm(false);
            if take(&mut app) > 0 {
                continue;
            }
            let start = std::time::Instant::now();
            while events.load(Acquire) == before {
                assert!(start.elapsed().as_secs() < 20, "an event was lost in a resize");
                std::thread::yield_now();
            }
        }
        assert!(switches > 10, "{switches} resizes");
    });
}

#[test]
fn a_second_resize_waits_for_the_first() {
    let (daemon, mut app) = paired::cq(4);
    let mut out = Cqe::default();
    (0..3).for_each(|i| assert_eq!(daemon.push(&cqe(i), false), Push::Quiet));
    app.arm(true);
    let spec = CqSpec::new(8).expect("spec");
    let (one, two) = (paired::area(spec.bytes()), paired::area(spec.bytes()));
    let base = daemon.switch_to(one.clone(), spec).expect("switched");
    assert_eq!(base, 3);
    assert!(daemon.switch_to(two.clone(), spec).is_err(), "the old ring is not retired");
    assert!(daemon.switch_to(paired::area(64), spec).is_err());
    // Armed on the old ring, pushed to the new one, before the library knows of it.
    assert_eq!(daemon.push(&cqe(3), true), Push::Event);
    assert!(app.switch_to(one, spec, base));
    assert!(app.is_draining() && !app.switch_to(two.clone(), spec, base));
    for i in 0..4 {
        assert!(app.poll(&mut out));
        assert_eq!(out.wr_id, i);
    }
    assert!(!app.is_draining() && app.entries() == 8);
    daemon.retire_old();
    assert_eq!(daemon.switch_to(two, spec), Ok(4));
}

/// Each leaves a few words in the daemon: a program must not fill its memory with them.
#[test]
fn resizes_have_an_end() {
    let (daemon, _app) = paired::cq(4);
    let spec = CqSpec::new(4).expect("spec");
    let areas = [paired::area(spec.bytes()), paired::area(spec.bytes())];
    let mut done = 0;
    while daemon.switch_to(areas[done % 2].clone(), spec).is_ok() {
        daemon.retire_old();
        done += 1;
        assert!(done < 1 << 16);
    }
    assert_eq!(done, (1 << 14) - 1);
}

#[test]
fn a_shared_receive_queue_moves_with_what_is_posted() {
    let (mut app, old) = paired::srq(4, 2);
    let (mut wqe, mut sges) = (RecvWqe::default(), [Sge::default(); SGE_MAX as usize]);
    let sge = |n: u64| Sge { addr: n, length: 8, lkey: 1 };
    // Indices that wrap around the old ring.
    for n in 0..6 {
        app.write(n, &[sge(n), sge(n + 100)]).expect("room");
        let _ = app.post();
        if n < 3 {
            assert!(matches!(old.fetch(&mut wqe, &mut sges), Fetch::Taken(_)));
        }
    }
    let spec = RqSpec::new(16, 2).expect("within limits");
    let area = paired::area(spec.bytes());
    let new = old.move_to(area.clone(), spec).expect("fits");
    // A worker that has not changed over yet.
    assert!(matches!(old.fetch(&mut wqe, &mut sges), Fetch::Taken(3)));
    assert!(matches!(new.fetch(&mut wqe, &mut sges), Fetch::Taken(4)));
    assert_eq!((wqe.wr_id, sges[0], sges[1]), (4, sge(4), sge(104)));
    new.publish_taken();
    let mut app = RqProducer::resume(area, spec, app.written()).expect("fits");
    assert_eq!(app.room(), 15);
    app.write(6, &[sge(6)]).expect("room");
    let _ = app.post();
    for n in [5, 6] {
        assert!(matches!(new.fetch(&mut wqe, &mut sges), Fetch::Taken(_)));
        assert_eq!((wqe.wr_id, sges[0]), (n, sge(n)));
    }
    assert_eq!(new.fetch(&mut wqe, &mut sges), Fetch::Empty);
}

#[test]
fn a_shared_receive_queue_does_not_move_where_it_does_not_fit() {
    let (mut app, old) = paired::srq(8, 1);
    for n in 0..8 {
        app.write(n, &[]).expect("room");
    }
    let _ = app.post();
    for (max_wr, max_sge, bytes) in [(4, 1, usize::MAX), (16, 2, usize::MAX), (8, 1, 64)] {
        let spec = RqSpec::new(max_wr, max_sge).expect("within limits");
        assert!(old.move_to(paired::area(spec.bytes().min(bytes)), spec).is_none());
    }
}

/// The word at `offset` of a queue that no thread uses at the moment.
fn word(area: &Area, offset: usize) -> u64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= area.len());
    // SAFETY: inside the area and aligned; accessed atomically only.
    unsafe { AtomicU64::from_ptr(area.as_ptr().add(offset).cast()) }.load(Relaxed)
}

/// An entry of a send queue is whole cache lines, one of a receive queue whole pairs of SGEs.
#[test]
fn entries_have_their_sizes() {
    let sends = [(0, 0, 64), (1, 0, 128), (4, 0, 128), (5, 0, 192), (1, 64, 128), (1, 65, 192), (32, 512, 576)];
    for (max_sge, max_inline, bytes) in sends {
        assert_eq!(sq_stride(max_sge, max_inline), bytes, "{max_sge} SGEs, {max_inline} inline bytes");
    }
    for (max_sge, bytes) in [(0, 32), (1, 32), (2, 64), (3, 64), (31, 512), (32, 544)] {
        assert_eq!(rq_stride(max_sge), bytes, "{max_sge} SGEs");
    }
}

/// Library and daemon of different builds meet at these offsets.
#[test]
fn entries_lie_one_after_the_other_behind_the_header() {
    let spec = CqSpec::new(3).expect("spec");
    assert_eq!(spec.entries(), 4, "a power of two");
    let area = paired::area(spec.bytes());
    let completions = CqProducer::new(area.clone(), spec).expect("fits");
    (0..4).for_each(|i| assert_eq!(completions.push(&cqe(100 + i), false), Push::Quiet));
    let at = |i| CQ_HEADER_BYTES + i * size_of::<Cqe>() + offset_of!(Cqe, wr_id);
    assert_eq!([0, 1, 2, 3].map(|i| word(&area, at(i))), [100, 101, 102, 103]);
    assert_eq!(area.len(), at(4) - offset_of!(Cqe, wr_id));

    let spec = SqSpec::new(4, 2, 0).expect("spec");
    let area = paired::area(spec.bytes());
    let mut sends = SqProducer::new(area.clone(), spec).expect("fits");
    (0..4).for_each(|i| sends.write(&wqe(100 + i), &[sge(i)]).expect("room"));
    let stride = sq_stride(2, 0) as usize;
    let at = |i| QUEUE_HEADER_BYTES + i * stride + offset_of!(SendWqe, wr_id);
    assert_eq!([0, 1, 2, 3].map(|i| word(&area, at(i))), [100, 101, 102, 103]);
    assert_eq!([0, 1, 2, 3].map(|i| word(&area, QUEUE_HEADER_BYTES + i * stride + size_of::<SendWqe>())), [0, 1, 2, 3]);

    let spec = RqSpec::new(4, 2).expect("spec");
    let area = paired::area(spec.bytes());
    let mut receives = RqProducer::new(area.clone(), spec).expect("fits");
    (0..4).for_each(|i| receives.write(100 + i, &[sge(i)]).expect("room"));
    let stride = rq_stride(2) as usize;
    let at = |i| QUEUE_HEADER_BYTES + i * stride + offset_of!(RecvWqe, wr_id);
    assert_eq!([0, 1, 2, 3].map(|i| word(&area, at(i))), [100, 101, 102, 103]);
    assert_eq!([0, 1, 2, 3].map(|i| word(&area, QUEUE_HEADER_BYTES + i * stride + size_of::<RecvWqe>())), [0, 1, 2, 3]);
}

#[test]
fn places_that_are_freed_in_the_old_ring_count_in_the_new_one() {
    let (daemon, mut app) = paired::cq(4);
    assert!(daemon.publish(&cqe(0)) && daemon.publish(&cqe(1)));
    let spec = CqSpec::new(8).expect("spec");
    let area = paired::area(spec.bytes());
    let base = daemon.switch_to(area.clone(), spec).expect("the first resize");
    assert_eq!(base, 2);
    (2..8).for_each(|i| assert!(daemon.publish(&cqe(i)), "{i}"));
    assert!(!daemon.publish(&cqe(8)), "eight completions that the application has not taken");
    // The application does not know of the new ring yet, and says so in the old one.
    let mut out = Cqe::default();
    assert!(app.poll(&mut out) && out.wr_id == 0);
    assert!(daemon.publish(&cqe(8)), "a place is free");
    assert!(!daemon.publish(&cqe(9)));
    assert!(app.switch_to(area, spec, base));
    for i in 1..9 {
        assert!(app.poll(&mut out) && out.wr_id == i, "{i}: {out:?}");
    }
    assert!(!app.poll(&mut out));
}

#[test]
fn an_arming_goes_along_to_the_new_ring_with_its_kind() {
    for solicited_only in [true, false] {
        let (daemon, mut app) = paired::cq(4);
        app.arm(solicited_only);
        let spec = CqSpec::new(8).expect("spec");
        let area = paired::area(spec.bytes());
        let base = daemon.switch_to(area.clone(), spec).expect("the first resize");
        assert!(app.switch_to(area, spec, base) && !app.is_draining());
        daemon.retire_old();
        assert_eq!(daemon.event_due(false), !solicited_only);
        assert_eq!(daemon.event_due(true), solicited_only, "one event for one arming");
    }
}
