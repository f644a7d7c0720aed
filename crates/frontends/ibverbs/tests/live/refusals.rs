//! Refused calls, and their errno; objects stay usable.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{ah, boundary, cq, pd_mr, port, post, qp};
use std::ptr::null_mut;

#[test]
fn bad_sends_are_refused_and_the_queue_stays_usable() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let fresh = open.qp(cq, IBV_QPT_RC);
    let mut one = [sge(mr, 0, 8)];
    assert_eq!(send(fresh, &mut wr(IBV_WR_SEND, &mut one)), (libc::EINVAL, true), "RESET");
    assert_eq!(recv(fresh, 1, &mut one), libc::EINVAL, "RESET");
    let (a, _b) = open.pair(cq);
    let mut three = [sge(mr, 0, 8); 3];
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut three), mr, 0)), (libc::EINVAL, true), "SGEs");
    assert_eq!(send(a, &mut wr(IBV_WR_TSO, &mut one)), (libc::EINVAL, true), "opcode");
    assert_eq!(send(a, &mut wr(77, &mut one)), (libc::EINVAL, true), "opcode");
    let mut long = [sge(mr, 0, 2000)];
    let mut request = wr(IBV_WR_SEND, &mut long);
    request.send_flags = IBV_SEND_INLINE;
    assert_eq!(send(a, &mut request), (libc::EINVAL, true), "inline");
    let mut request = to(wr(IBV_WR_RDMA_READ, &mut one), mr, 0);
    request.send_flags = IBV_SEND_INLINE;
    assert_eq!(send(a, &mut request), (libc::EINVAL, true), "inline read");
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut one), mr, 8)).0, 0);
    complete_all(cq, 1);
}

#[test]
fn a_list_is_posted_up_to_the_bad_request() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let (a, _b) = open.pair(cq);
    let mut one = [sge(mr, 0, 8)];
    let mut bad_one = wr(IBV_WR_TSO, &mut one);
    let mut good = to(wr(IBV_WR_RDMA_WRITE, &mut one), mr, 8);
    good.next = &raw mut bad_one;
    let mut bad = null_mut();
    // SAFETY: a live queue pair and a valid list.
    assert_eq!(unsafe { post::post_send(a, &mut good, &mut bad) }, libc::EINVAL);
    assert!(std::ptr::eq(bad, &bad_one));
    complete_all(cq, 1);
}

#[test]
fn a_full_queue_refuses_and_is_drained() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let (a, b) = open.pair(cq);
    // Receives are taken only when messages arrive: this queue fills.
    let mut posted = 0;
    while recv(b, posted, &mut [sge(mr, 0, 8)]) == 0 {
        posted += 1;
        assert!(posted <= 1024);
    }
    assert!(posted >= 16);
    assert_eq!(recv(b, 0, &mut [sge(mr, 0, 8)]), libc::ENOMEM);
    // Sends without a poll in between: slots are freed by polling only.
    let mut sent = 0;
    let full = loop {
        let (rc, _) = send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8));
        if rc != 0 {
            break rc;
        }
        sent += 1;
    };
    assert_eq!((full, sent), (libc::ENOMEM, 16));
    complete_all(cq, 16);
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
    complete_all(cq, 1);
}

#[test]
fn a_send_queue_of_one_has_the_four_entries_that_are_reported() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    for (asked, granted) in [(1, 4), (4, 4), (5, 8)] {
        let ((a, reported), b) = (open.qp_of(cq, IBV_QPT_RC, asked), open.qp(cq, IBV_QPT_RC));
        assert_eq!(reported, granted, "{asked} asked for");
        open.connect(a, b);
        open.connect(b, a);
        // Without a poll in between.
        let write = || send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0;
        let posted = (0..granted).filter(|_| write() == 0).count();
        assert_eq!((posted as u32, write()), (granted, libc::ENOMEM));
        complete_all(cq, posted);
    }
}

#[test]
fn a_wrong_rkey_ends_in_error_completions() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let (a, _b) = open.pair(cq);
    assert_eq!(recv(a, 5, &mut [sge(mr, 0, 8)]), 0);
    let mut sges = [sge(mr, 0, 8)];
    let mut request = to(wr(IBV_WR_RDMA_WRITE, &mut sges), mr, 8);
    // SAFETY: a write holds the `rdma` member.
    unsafe { request.wr.rdma.rkey ^= 0x100 };
    assert_eq!(send(a, &mut request).0, 0);
    let first = complete(cq);
    assert_eq!(first.status, IBV_WC_REM_ACCESS_ERR);
    assert_ne!(first.vendor_err, 0);
    let second = complete(cq);
    assert_eq!((second.status, second.wr_id), (IBV_WC_WR_FLUSH_ERR, 5));
    // Requests posted in ERR are flushed too.
    assert_eq!(recv(a, 6, &mut [sge(mr, 0, 8)]), 0);
    assert_eq!(complete(cq).wr_id, 6);
}

#[test]
fn queries_and_creations_check_their_arguments() {
    let Some(open) = Open::new() else { return };
    let mut attr = [0xaau8; 64];
    let mut gid = ibv_gid::default();
    let mut entry = ibv_gid_entry::default();
    // SAFETY: an open context and writable places.
    unsafe {
        assert_eq!(port::query_port(open.context, 2, attr.as_mut_ptr().cast(), 52), libc::EINVAL);
        assert_eq!(port::ibv_query_port(open.context, 1, attr.as_mut_ptr().cast()), 0);
        assert_eq!(attr[48..], [0xaa; 16], "the exported function writes 48 bytes");
        assert_eq!(port::query_port(open.context, 1, attr.as_mut_ptr().cast(), 56), 0);
        assert_eq!(attr[56..], [0xaa; 8]);
        assert_eq!(port::ibv_query_gid(open.context, 1, 99, &mut gid), -1);
        assert_eq!(port::_ibv_query_gid_ex(open.context, 1, 15, &mut entry, 0, 32), libc::ENODATA);
        assert_eq!(port::_ibv_query_gid_ex(open.context, 1, 0, &mut entry, 0, 32), 0);
        assert_eq!(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
        assert!(cq::ibv_create_cq(open.context, 0, null_mut(), null_mut(), 0).is_null());
        assert_eq!(boundary::errno(), boundary::EINVAL);
        assert!(cq::ibv_create_cq(open.context, 8, null_mut(), null_mut(), 99).is_null());
        let mut no_grh = ibv_ah_attr { port_num: 1, ..Default::default() };
        assert!(ah::ibv_create_ah(open.pd, &mut no_grh).is_null());
        assert_eq!(boundary::errno(), boundary::EINVAL);
        assert!(pd_mr::ibv_reg_mr(open.pd, 4096 as *mut _, 4096, 1).is_null());
        assert_eq!(boundary::errno(), boundary::Errno(libc::EFAULT));
    }
}

/// The public field `state`.
fn shown_state(qp: *mut ibv_qp) -> ibv_qp_state {
    // SAFETY: a live queue pair.
    unsafe { (*qp).state }
}

#[test]
fn the_public_state_changes_only_if_the_mask_names_it() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let (a, _b) = open.pair(cq);
    // An invalid key moves the queue pair to ERR at the daemon; the program learns that from a completion only.
    let mut sges = [sge(mr, 0, 8)];
    let mut request = to(wr(IBV_WR_RDMA_WRITE, &mut sges), mr, 8);
    // SAFETY: a WRITE's request holds the `rdma` member.
    unsafe { request.wr.rdma.rkey ^= 0x5555_5500 };
    assert_eq!(send(a, &mut request).0, 0);
    assert_eq!(complete(cq).status, IBV_WC_REM_ACCESS_ERR);
    assert_eq!(shown_state(a), IBV_QPS_RTS);
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: a live queue pair and writable places.
    let mut query = |mask: ibv_qp_attr_mask| unsafe {
        assert_eq!(qp::ibv_query_qp(a, &mut attr, mask as i32, &mut init), 0);
        attr.qp_state
    };
    assert_eq!((query(IBV_QP_CAP), shown_state(a)), (IBV_QPS_ERR, IBV_QPS_RTS));
    assert_eq!((query(IBV_QP_STATE), shown_state(a)), (IBV_QPS_ERR, IBV_QPS_ERR));
}

#[test]
fn connection_enhancements_are_refused_by_query_and_by_set() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let qp = open.qp(cq, IBV_QPT_RC);
    let mut ece = ibv_ece::default();
    assert_eq!(qp::ibv_query_ece(qp, &mut ece), libc::EOPNOTSUPP);
    assert_eq!(qp::ibv_set_ece(qp, &mut ece), libc::EOPNOTSUPP);
}

#[test]
fn more_reads_in_flight_than_the_device_allows_are_refused() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (a, _b) = open.pair(cq);
    let mut device = ibv_device_attr::default();
    // SAFETY: an open context and a writable place; then a live queue pair and a valid struct.
    unsafe {
        assert_eq!(port::ibv_query_device(open.context, &mut device), 0);
        for (depth, want) in [(device.max_qp_init_rd_atom + 1, libc::EINVAL), (device.max_qp_init_rd_atom, 0)] {
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, ..Default::default() };
            assert_eq!(qp::ibv_modify_qp(a, &mut attr, IBV_QP_STATE as i32), 0);
            attr.max_rd_atomic = depth as u8;
            let mask = IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC;
            attr.qp_state = IBV_QPS_SQD;
            assert_eq!(qp::ibv_modify_qp(a, &mut attr, mask as i32), want, "{depth}");
        }
    }
}
