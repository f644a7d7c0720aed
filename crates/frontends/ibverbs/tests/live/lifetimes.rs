//! Objects that end: with completions pending, in use, and in a child process.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{cq, domain, ops, pd_mr, poll, qp};

#[test]
fn completions_of_a_destroyed_queue_pair_vanish() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let (c, _d) = open.pair(cq);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    for (qp, id) in [(a, 1), (c, 2), (a, 3)] {
        let mut sges = [sge(mr, 0, 8)];
        let mut request = to(wr(IBV_WR_RDMA_WRITE, &mut sges), mr, 8);
        request.wr_id = id;
        assert_eq!(send(qp, &mut request).0, 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    // SAFETY: live objects.
    unsafe {
        assert_eq!(qp::ibv_destroy_qp(a), 0);
        assert_eq!(qp::ibv_destroy_qp(b), 0);
    }
    assert_eq!(complete(cq).wr_id, 2);
    assert!(poll_once(cq).is_none());
}

#[test]
fn a_reset_queue_pair_can_be_used_again() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    for round in 0..3 {
        for _ in 0..12 {
            assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0, "round {round}");
        }
        assert_eq!(recv(b, 1, &mut [sge(mr, 0, 8)]), 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
        move_to(a, IBV_QPS_RESET);
        move_to(b, IBV_QPS_RESET);
        assert!(poll_once(cq).is_none());
        open.connect(a, b);
        open.connect(b, a);
    }
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
    complete_all(cq, 1);
}

#[test]
fn what_is_in_use_cannot_end() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(8);
    let qp = open.qp(cq, IBV_QPT_RC);
    // SAFETY: live objects.
    unsafe {
        assert_eq!(cq::ibv_destroy_cq(cq), libc::EBUSY);
        assert_eq!(domain::ibv_dealloc_pd(open.pd), libc::EBUSY);
        assert_eq!(qp::ibv_destroy_qp(qp), 0);
        assert_eq!(cq::ibv_destroy_cq(cq), 0);
        assert_eq!(domain::ibv_dealloc_pd(open.pd), 0);
    }
}

#[test]
fn a_child_s_objects_are_dead_and_the_parent_s_live_on() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(8);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    // SAFETY: the child calls the library and leaves.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut wc = ibv_wc::default();
        // SAFETY: inherited objects, which must refuse.
        let dead = unsafe {
            is_dead(open.context)
                && poll::poll_cq(cq, 1, &mut wc) == -1
                && send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)) == (libc::EIO, true)
                && pd_mr::ibv_alloc_pd(open.context).is_null()
                && qp::ibv_destroy_qp(a) == 0
                && ops::ibv_close_device(open.context) == 0
        };
        // SAFETY: ends the child without running destructors.
        unsafe { libc::_exit(i32::from(!dead)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
    complete_all(cq, 1);
}
