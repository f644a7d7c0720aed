//! Bytes arrive, by each opcode.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{boundary, cq, domain, pd_mr, qp};

#[test]
fn each_opcode_moves_bytes() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let (mut left, mut right) = (vec![0u8; 8192], vec![0u8; 8192]);
    for (i, byte) in left.iter_mut().enumerate() {
        *byte = i as u8;
    }
    let (lm, rm) = (open.mr(&mut left), open.mr(&mut right));
    // Write, from two pieces.
    let mut pieces = [sge(lm, 0, 1000), sge(lm, 1000, 2000)];
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut pieces), rm, 0)).0, 0);
    complete_all(cq, 1);
    assert_eq!(right[..3000], left[..3000]);
    // Send with immediate.
    assert_eq!(recv(b, 7, &mut [sge(rm, 4000, 500)]), 0);
    let mut request = wr(IBV_WR_SEND_WITH_IMM, &mut pieces[..0]);
    let mut piece = [sge(lm, 100, 300)];
    (request.sg_list, request.num_sge) = (piece.as_mut_ptr(), 1);
    request.__bindgen_anon_1.imm_data = 0xdead_beefu32.to_be();
    assert_eq!(send(a, &mut request).0, 0);
    let received = complete_all(cq, 2).into_iter().find(|wc| wc.opcode == IBV_WC_RECV).unwrap();
    assert_eq!((received.wr_id, received.byte_len), (7, 300));
    // SAFETY: a receive with immediate.
    assert_eq!(unsafe { received.__bindgen_anon_1.imm_data }, 0xdead_beefu32.to_be());
    assert_eq!(right[4000..4300], left[100..400]);
    // Inline send: the source may change at once.
    let mut word = *b"inline!!";
    assert_eq!(recv(b, 8, &mut [sge(rm, 5000, 8)]), 0);
    let mut inline = [ibv_sge { addr: word.as_mut_ptr() as u64, length: 8, lkey: 0 }];
    let mut request = wr(IBV_WR_SEND, &mut inline);
    request.send_flags = IBV_SEND_INLINE;
    assert_eq!(send(a, &mut request).0, 0);
    word.fill(0);
    complete_all(cq, 2);
    assert_eq!(&right[5000..5008], b"inline!!");
    // Read back.
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_READ, &mut [sge(lm, 6000, 8)]), rm, 5000)).0, 0);
    complete_all(cq, 1);
    assert_eq!(&left[6000..6008], b"inline!!");
    // Fetch and add.
    right[6400..6408].copy_from_slice(&40u64.to_ne_bytes());
    let mut result = [sge(lm, 6400, 8)];
    let mut request = wr(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut result);
    // SAFETY: live regions.
    unsafe {
        request.wr.atomic.remote_addr = (*rm).addr as u64 + 6400;
        request.wr.atomic.rkey = (*rm).rkey;
        request.wr.atomic.compare_add = 2;
    }
    assert_eq!(send(a, &mut request).0, 0);
    complete_all(cq, 1);
    assert_eq!((left[6400], right[6400]), (40, 42));
}

#[test]
fn completions_survive_a_resize() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(8);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![0u8; 4096];
    let mr = open.mr(&mut bytes);
    let post = |id: u64| {
        let mut piece = [sge(mr, 0, 8)];
        let mut request = to(wr(IBV_WR_RDMA_WRITE, &mut piece), mr, 64);
        request.wr_id = id;
        assert_eq!(send(a, &mut request).0, 0);
    };
    (0..4).for_each(post);
    std::thread::sleep(std::time::Duration::from_millis(50));
    // SAFETY: a live CQ.
    unsafe {
        assert_eq!(cq::ibv_resize_cq(cq, 64), 0);
        assert!((*cq).cqe >= 64);
        assert_eq!(cq::ibv_resize_cq(cq, 0), libc::EINVAL);
    }
    (4..8).for_each(post);
    let order: Vec<u64> = complete_all(cq, 8).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(order, (0..8).collect::<Vec<_>>());
}

#[test]
fn attributes_can_be_read_back() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(8);
    let (a, b) = open.pair(cq);
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: a live queue pair and writable places.
    unsafe {
        assert_eq!(qp::ibv_query_qp(a, &mut attr, IBV_QP_STATE as i32, &mut init), 0);
        assert_eq!(attr.dest_qp_num, (*b).qp_num);
        assert_eq!(attr.ah_attr.grh.dgid.raw, open.gid());
    }
    assert_eq!((attr.qp_state, attr.path_mtu, attr.timeout, attr.retry_cnt), (IBV_QPS_RTS, IBV_MTU_1024, 14, 7));
    assert!(init.send_cq == cq && init.sq_sig_all == 1 && init.cap.max_send_sge >= 2);
}

#[test]
fn a_null_region_reads_zeroes_and_discards_writes() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let mut bytes: Vec<u8> = (0..16_384).map(|i| i as u8 | 1).collect();
    let mr = open.mr(&mut bytes);
    // SAFETY: a live PD; the region is ended below, after the last request that uses it.
    let null = unsafe { pd_mr::alloc_null_mr(open.pd) };
    assert!(!null.is_null(), "{:?}", boundary::errno());
    // SAFETY: a live region.
    let lkey = unsafe { (*null).lkey };
    // Any address, more than one packet.
    let nowhere = |length: u32| ibv_sge { addr: 0xdead_beef_0000, length, lkey };
    // WRITE from the null region: zeroes at the target.
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [nowhere(6000)]), mr, 0)), (0, false));
    assert_eq!(complete(cq).status, IBV_WC_SUCCESS);
    assert!(bytes[..6000].iter().all(|b| *b == 0) && bytes[6000..].iter().all(|b| *b != 0));
    // READ into the null region, and a message into it: both succeed, and nothing is written anywhere.
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_READ, &mut [nowhere(9000)]), mr, 6000)), (0, false));
    assert_eq!(complete(cq).status, IBV_WC_SUCCESS);
    assert_eq!(recv(b, 7, &mut [nowhere(9000)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(mr, 6000, 9000)])), (0, false));
    let done = complete_all(cq, 2);
    assert!(done.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    assert!(done.iter().any(|wc| wc.wr_id == 7 && wc.byte_len == 9000));
    assert!(bytes[6000..].iter().all(|b| *b != 0));
    // SAFETY: the last use.
    assert_eq!(unsafe { pd_mr::ibv_dereg_mr(null) }, 0);
    // Its key opens nothing any more.
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [nowhere(8)]), mr, 0)), (0, false));
    assert_eq!(complete(cq).status, IBV_WC_LOC_PROT_ERR);
}

/// As with adapters: perftest deallocates the domain first.
#[test]
fn a_null_region_does_not_hold_its_domain() {
    let Some(open) = Open::new() else { return };
    // SAFETY: an open context; the objects are ended here, each once.
    unsafe {
        let pd = pd_mr::ibv_alloc_pd(open.context);
        let null = pd_mr::alloc_null_mr(pd);
        assert!(!null.is_null(), "{:?}", boundary::errno());
        assert_eq!(domain::ibv_dealloc_pd(pd), 0);
        assert_eq!(pd_mr::ibv_dereg_mr(null), 0);
    }
}
