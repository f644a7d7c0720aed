//! What the library has of CUDA is given back, and not before CUDA's copies have ended.

use crate::daemon::DEADLINE;
use crate::fake::{FakeCuda, cuda, lock};
use crate::pair::*;
use crate::receiving::{device_mr, pattern};
use burst_ibverbs::pd_mr::ibv_dereg_mr;
use burst_ibverbs::qp::ibv_destroy_qp;
use burst_ibverbs::sys::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Waits until no more pinned memory and streams are left than `before`.
fn await_given_back(cuda: &FakeCuda, before: (i32, i32)) {
    let begin = Instant::now();
    while cuda.kept().0 > before.0 || cuda.kept().1 > before.1 {
        assert!(begin.elapsed() < DEADLINE, "{:?} and not {before:?}", cuda.kept());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `len` bytes to the device. Returns the completion queue and the region.
fn send_to_device(open: &Open, cuda: &FakeCuda, len: usize) -> (*mut ibv_cq, *mut ibv_mr) {
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let target = device_mr(open, cuda.alloc(len), len);
    let source = open.mr(Box::leak(pattern(1, len).into_boxed_slice()));
    assert_eq!(recv(b, 1, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(source, 0, len as u32)])).0, 0);
    (cq, target)
}

#[test]
fn a_closed_context_leaves_no_stream_and_no_pinned_memory() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let before = cuda.kept();
    let (cq, target) = send_to_device(&open, cuda, 100_000);
    complete_all(cq, 2);
    assert!(cuda.kept().0 > before.0 && cuda.kept().1 > before.1);
    // SAFETY: a live region, used no more.
    assert_eq!(unsafe { ibv_dereg_mr(target) }, 0);
    drop(open);
    await_given_back(cuda, before);
}

#[test]
fn a_question_that_fails_leaves_the_memory_to_the_copies_under_way() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let before = cuda.kept();
    cuda.hold(true);
    cuda.fail_query(0);
    let (cq, target) = send_to_device(&open, cuda, 5000);
    let mut ends = [complete(cq), complete(cq)].map(|wc| (wc.wr_id, wc.status));
    ends.sort_unstable();
    assert_eq!(ends, [(0, IBV_WC_REM_OP_ERR), (1, IBV_WC_LOC_PROT_ERR)], "the daemon waits for nothing");
    let is_gone = AtomicBool::new(false);
    let region = target as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a live region.
            assert_eq!(unsafe { ibv_dereg_mr(region as *mut ibv_mr) }, 0);
            is_gone.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_gone.load(Ordering::Acquire), "its bytes may still be written");
        cuda.hold(false);
    });
    drop(open);
    await_given_back(cuda, before);
}

#[test]
fn a_context_is_closed_although_cuda_does_not_answer() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let before = cuda.kept();
    cuda.hold(true);
    let copies = cuda.copies();
    send_to_device(&open, cuda, 5000);
    let begin = Instant::now();
    while cuda.kept().1 == before.1 {
        assert!(begin.elapsed() < DEADLINE, "a copy is submitted");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(open);
    assert!(cuda.kept().0 > before.0 && cuda.copies() == copies, "CUDA has what it uses");
    cuda.hold(false);
    await_given_back(cuda, before);
}

#[test]
fn a_queue_pair_that_is_destroyed_or_reset_has_no_copies_under_way() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    for resets in [false, true] {
        let cq = open.cq(64);
        let (a, b) = open.pair(cq);
        let len = 5000;
        let (device, source) = (cuda.alloc(len), open.mr(Box::leak(pattern(2, len).into_boxed_slice())));
        let target = device_mr(&open, device, len);
        cuda.hold(true);
        let streams = cuda.kept().1;
        assert_eq!(recv(b, 1, &mut [sge(target, 0, len as u32)]), 0);
        assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(source, 0, len as u32)])).0, 0);
        // The first copy makes the stream; for the second queue pair a pause has to do.
        let begin = Instant::now();
        while !resets && cuda.kept().1 == streams {
            assert!(begin.elapsed() < DEADLINE, "a copy is submitted");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        let (is_gone, at) = (AtomicBool::new(false), b as usize);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let b = at as *mut ibv_qp;
                match resets {
                    true => move_to(b, IBV_QPS_RESET),
                    // SAFETY: a live queue pair, used no more.
                    false => assert_eq!(unsafe { ibv_destroy_qp(b) }, 0),
                }
                is_gone.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!is_gone.load(Ordering::Acquire), "its bytes may still be written");
            cuda.hold(false);
        });
    }
}
