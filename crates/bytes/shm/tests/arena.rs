//! The arena, segments and doorbells: allocation, reuse, limits, and descriptors that must be refused.
#![cfg(not(loom))]
use burst_shm::arena::{Arena, ArenaView, PUNCH_BYTES_MIN, SEGMENT_BYTES_MAX, Segment, SegmentError};
use burst_shm::doorbell::{DoorbellDrain, Doorbells};
use burst_shm::life::LifePage;
use burst_shm::status::{StatusOwner, WorkerView};
use burst_shm::{Area, ContextPage, DOORBELL_QUEUES, SEGMENT_BYTES, ShmRef, WORKER_MAX, paired};
use proptest::prelude::*;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

fn dup(fd: std::os::fd::BorrowedFd) -> OwnedFd {
    fd.try_clone_to_owned().expect("duplicated")
}

#[allow(clippy::mut_from_ref, reason = "shared memory, used by one thread here")]
fn bytes(area: &burst_shm::Area) -> &mut [u8] {
    // SAFETY: the area is mapped as long as `area` is borrowed.
    unsafe { std::slice::from_raw_parts_mut(area.as_ptr(), area.len()) }
}

#[test]
fn the_other_side_sees_what_this_side_writes() {
    let mut arena = Arena::new().expect("arena");
    let at = arena.alloc(1000).expect("room");
    assert!(at.offset as usize >= size_of::<ContextPage>() && at.offset.is_multiple_of(64));
    let mut view = ArenaView::new();
    view.add(Segment::map(dup(arena.segment_fd(0).expect("fd"))).expect("mapped"));
    assert!(view.context().is_ok());
    bytes(&arena.area(at, 1000).expect("inside")).fill(3);
    assert_eq!(bytes(&view.area(at, 1000).expect("inside")), [3; 1000]);
    assert!(view.ptr(at, 1000).is_some());
    for (segment, offset, len) in [(1, 0, 64), (0, 32, 64), (0, SEGMENT_BYTES as u32 - 64, 65), (0, 64, usize::MAX)] {
        assert!(view.area(ShmRef { segment, offset }, len).is_none());
    }
}

#[test]
fn freed_space_is_zero_and_used_again() {
    let mut arena = Arena::new().expect("arena");
    for len in [64, 5000, PUNCH_BYTES_MIN + 777] {
        let at = arena.alloc(len).expect("room");
        bytes(&arena.area(at, len).expect("inside")).fill(0xFF);
        assert!(arena.free(at));
        assert!(!arena.free(at), "freed twice");
        let again = arena.alloc(len).expect("room");
        assert_eq!(again, at, "first fit");
        assert!(bytes(&arena.area(again, len).expect("inside")).iter().all(|b| *b == 0));
        arena.free(again);
    }
    assert!(!arena.free(ShmRef { segment: 9, offset: 0 }));
}

#[test]
fn grows_by_segments_and_has_a_limit() {
    let mut arena = Arena::new().expect("arena");
    let half = SEGMENT_BYTES as usize / 2;
    let first = arena.alloc(half).expect("room");
    let second = arena.alloc(half).expect("room");
    assert_eq!((first.segment, second.segment, arena.segments()), (0, 1, 2));
    let large = arena.alloc(SEGMENT_BYTES as usize + 1).expect("a segment of its own size");
    assert_eq!(large.segment, 2);
    let error = loop {
        match arena.alloc(1 << 30) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert_eq!(error, SegmentError::ArenaFull);
    assert!(arena.alloc(64).is_ok(), "small things still fit");
    assert!(arena.alloc(usize::MAX).is_err() && arena.alloc(1 << 40).is_err());
}

#[test]
fn foreign_descriptors_are_verified() {
    let file = std::fs::File::open("/proc/self/exe").expect("exe");
    assert_eq!(Segment::map(file.into()).err(), Some(SegmentError::Unsealed));
    let plain = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&plain, 4096).expect("size");
    assert_eq!(Segment::map(dup(plain.as_fd())).err(), Some(SegmentError::Unsealed));
    rustix::fs::fcntl_add_seals(&plain, rustix::fs::SealFlags::SHRINK).expect("sealed");
    assert!(Segment::map(dup(plain.as_fd())).is_ok());
    let odd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::fcntl_add_seals(&odd, rustix::fs::SealFlags::SHRINK).expect("sealed");
    assert_eq!(Segment::map(dup(odd.as_fd())).err(), Some(SegmentError::BadSize));
    rustix::fs::ftruncate(&odd, 4097).expect("size");
    assert_eq!(Segment::map(dup(odd.as_fd())).err(), Some(SegmentError::BadSize), "no whole pages");
    // Ours cannot be cut.
    let ours = Segment::create(8192).expect("segment");
    assert!(rustix::fs::ftruncate(ours.fd().expect("fd"), 4096).is_err());
}

#[test]
fn a_segment_has_whole_pages_and_at_most_2_gib() {
    for bytes in [0, 100, 4097, SEGMENT_BYTES_MAX as usize + 4096] {
        assert_eq!(Segment::create(bytes).err(), Some(SegmentError::BadSize), "{bytes} bytes");
    }
    // Sparse: it takes no memory.
    let longest = Segment::create(SEGMENT_BYTES_MAX as usize).expect("the longest");
    assert_eq!(longest.len() as u64, SEGMENT_BYTES_MAX);
    let too_long = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&too_long, SEGMENT_BYTES_MAX + 4096).expect("size");
    rustix::fs::fcntl_add_seals(&too_long, rustix::fs::SealFlags::SHRINK).expect("sealed");
    assert_eq!(Segment::map(too_long).err(), Some(SegmentError::BadSize));
}

#[test]
fn an_area_may_end_where_its_segment_ends() {
    let segment = Arc::new(Segment::create(8192).expect("segment"));
    assert!(Area::new(&segment, 64, 8192 - 64).is_some_and(|area| area.len() == 8192 - 64));
    assert!(Area::new(&segment, 64, 8192 - 63).is_none());
    assert!(Area::new(&segment, 8192, 0).is_some() && Area::new(&segment, 32, 64).is_none());
}

/// A page that tells a process from its forked children.
#[test]
fn a_forked_child_finds_the_page_of_its_parent_dead() {
    let page = LifePage::new().expect("page");
    assert!(page.is_alive());
    // SAFETY: the child only reads one word of its memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process without running anything of it.
        unsafe { libc::_exit(i32::from(page.is_alive())) };
    }
    let mut status = 0;
    // SAFETY: the child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "alive in the child: {status}");
    assert!(page.is_alive());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Areas never overlap, are zero when handed out, and freed space is handed out again.
    #[test]
    fn allocator_like_a_model(ops in prop::collection::vec((1usize..20_000, any::<bool>()), 1..80)) {
        let mut arena = Arena::new().expect("arena");
        let mut live: Vec<(ShmRef, usize)> = Vec::new();
        for (len, free) in ops {
            if free && !live.is_empty() {
                prop_assert!(arena.free(live.swap_remove(len % live.len()).0));
                continue;
            }
            let at = arena.alloc(len).expect("room");
            let area = arena.area(at, len).expect("inside");
            prop_assert!(bytes(&area).iter().all(|b| *b == 0));
            bytes(&area).fill(1);
            for (other, other_len) in &live {
                let apart = at.offset as usize + len <= other.offset as usize
                    || other.offset as usize + other_len <= at.offset as usize;
                prop_assert!(apart);
            }
            live.push((at, len));
        }
        live.drain(..).for_each(|(at, _)| assert!(arena.free(at)));
        prop_assert!(arena.alloc(60 << 20).expect("room").segment == 0, "merged again");
    }

    /// Each ringing queue is handed over exactly once, with any budget.
    #[test]
    fn doorbells_like_a_set(
        rings in prop::collection::vec((0..DOORBELL_QUEUES, 0u32..4), 0..200),
        budget in 1usize..50,
    ) {
        let (bells, mut drain) = paired::doorbells(3);
        for (queue, near) in &rings {
            bells.ring(3, queue ^ near);
            bells.ring(2, 5);
        }
        prop_assert_eq!(drain.is_ringing(), !rings.is_empty());
        let mut drained = Vec::new();
        while drain.drain(budget, |queue| drained.push(queue)) > 0 {}
        drained.sort_unstable();
        let mut expect: Vec<u32> = rings.iter().map(|(queue, near)| queue ^ near).collect();
        expect.sort_unstable();
        expect.dedup();
        prop_assert_eq!(drained, expect);
        prop_assert!(!drain.is_ringing());
    }
}

#[test]
fn a_partly_drained_tree_rings_on() {
    // After the first queue the words of two levels are equal: of groups and of words in a group, or of words and of queues. In
    // the last case only the word of queues is left.
    for rings in [[0, 64, 4096], [0, 1, 64], [0, 1, 2]] {
        let (bells, mut drain) = paired::doorbells(1);
        rings.iter().for_each(|queue| bells.ring(1, *queue));
        let mut drained = Vec::new();
        assert_eq!(drain.drain(1, |queue| drained.push(queue)), 1);
        assert!(drain.is_ringing(), "{rings:?}");
        assert_eq!(drain.drain(10, |queue| drained.push(queue)), 2, "{rings:?}");
        assert!(drained == rings && !drain.is_ringing());
    }
}

#[test]
fn rings_out_of_range_change_nothing() {
    let (bells, mut drain) = paired::doorbells(0);
    bells.ring(WORKER_MAX, 0);
    bells.ring(0, DOORBELL_QUEUES);
    assert_eq!(drain.drain(10, |_| ()), 0);
    assert!(Doorbells::new(paired::area(64)).is_none());
    assert!(DoorbellDrain::new(paired::area(size_of::<ContextPage>()), WORKER_MAX).is_none());
}

#[test]
fn no_ring_is_lost_between_threads() {
    const RINGS: u32 = 50_000;
    let (bells, mut drain) = paired::doorbells(1);
    // The work of a queue is a counter that only grows; a ring announces a change.
    let posted: Vec<std::sync::atomic::AtomicU32> = (0..512).map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for t in 0..2u32 {
            let (bells, posted) = (bells.clone(), &posted);
            scope.spawn(move || {
                for i in 0..RINGS {
                    let queue = i.wrapping_mul(2_654_435_761) % 256 * 2 + t;
                    posted[queue as usize].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    bells.ring(1, queue);
                }
            });
        }
        let mut done = vec![0u32; 512];
        let start = std::time::Instant::now();
        while done.iter().sum::<u32>() < 2 * RINGS {
            drain.drain(64, |queue| {
                done[queue as usize] = posted[queue as usize].load(std::sync::atomic::Ordering::Relaxed);
            });
            assert!(start.elapsed().as_secs() < 30, "work that no ring announces");
        }
    });
}

#[test]
fn status_page_is_read_only_for_others() {
    let owner = StatusOwner::create().expect("page");
    let fd = owner.fd().expect("fd");
    let view = WorkerView::map(dup(fd)).expect("mapped");
    assert_eq!(Segment::map(dup(fd)).err(), Some(SegmentError::Os(rustix::io::Errno::PERM)));
    let sleeper = owner.sleep_flag(2).expect("worker");
    assert!(!view.needs_wake(2));
    sleeper.set_sleeping();
    assert!(view.needs_wake(2) && !view.needs_wake(1) && !view.needs_wake(WORKER_MAX));
    sleeper.awake();
    assert!(!view.needs_wake(2));
    assert!(owner.sleep_flag(WORKER_MAX).is_none());
    let other = Segment::create(8192).expect("segment");
    assert_eq!(WorkerView::map(dup(other.fd().expect("fd"))).err(), Some(SegmentError::BadVersion));
}
