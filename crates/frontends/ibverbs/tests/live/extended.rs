//! The extended interfaces: completion queues read field by field, batches of `ibv_wr_*`, memory windows.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{boundary, cq, cq_ex, mw, pd_mr, poll, qp};
use std::ptr::null_mut;
use std::time::Instant;

pub fn cq_ex(open: &Open, flags: u32) -> *mut ibv_cq_ex {
    let mut init = ibv_cq_init_attr_ex {
        cqe: 64,
        wc_flags: u64::from(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
        comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
        flags,
        ..Default::default()
    };
    // SAFETY: an open context and a valid struct.
    let cq = unsafe { cq_ex::create_cq_ex(open.context, &mut init) };
    assert!(!cq.is_null(), "{:?}", boundary::errno());
    cq
}

/// Two connected RC queue pairs, the first with the extended posting interface.
pub fn pair_ex(open: &Open, cq: *mut ibv_cq) -> (*mut ibv_qp_ex, *mut ibv_qp) {
    let mut init = ibv_qp_init_attr_ex {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 64 },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 1,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: open.pd,
        send_ops_flags: u64::from(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_BIND_MW),
        ..Default::default()
    };
    // SAFETY: an open context and a valid struct; then a live queue pair.
    let (a, ex) = unsafe {
        let a = qp::create_qp_ex(open.context, &mut init);
        assert!(!a.is_null(), "{:?}", boundary::errno());
        (a, qp::ibv_qp_to_qp_ex(a))
    };
    assert!(!ex.is_null());
    let b = open.qp(cq, IBV_QPT_RC);
    // SAFETY: live queue pairs.
    assert!(unsafe { qp::ibv_qp_to_qp_ex(b) }.is_null(), "only where asked for");
    open.connect(a, b);
    open.connect(b, a);
    (ex, b)
}

/// Calls `start_poll` until it finds a completion.
unsafe fn start(cq: *mut ibv_cq_ex) {
    let begin = Instant::now();
    let mut attr = ibv_poll_cq_attr::default();
    // SAFETY: a live CQ.
    while unsafe { (*cq).start_poll.unwrap()(cq, &mut attr) } == libc::ENOENT {
        assert!(begin.elapsed() < DEADLINE, "no completion");
    }
}

#[test]
fn fields_are_read_one_by_one_and_end_poll_follows_enoent() {
    let Some(open) = Open::new() else { return };
    for flags in [0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED] {
        let cq = cq_ex(&open, flags);
        let mut bytes = vec![7u8; 4096];
        let mr = open.mr(&mut bytes);
        let (ex, b) = pair_ex(&open, cq.cast());
        assert_eq!(recv(b, 77, &mut [sge(mr, 2048, 64)]), 0);
        let before = cq_ex::clock_ns(libc::CLOCK_MONOTONIC) as u64;
        // SAFETY: live objects, used as verbs prescribe.
        unsafe {
            (*ex).wr_start.unwrap()(ex);
            ((*ex).wr_id, (*ex).wr_flags) = (5, 0);
            (*ex).wr_send_imm.unwrap()(ex, 0x1234_5678);
            (*ex).wr_set_sge.unwrap()(ex, (*mr).lkey, (*mr).addr as u64, 16);
            assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
            let mut seen = Vec::new();
            while seen.len() < 2 {
                start(cq);
                loop {
                    assert_eq!((*cq).status, IBV_WC_SUCCESS);
                    let ts = (*cq).read_completion_ts.unwrap()(cq);
                    // The stamp is the start of the worker's pass, which may have begun just before the post it found.
                    let pass_max_ns = 1_000_000;
                    assert!(ts + pass_max_ns >= before && ts <= cq_ex::clock_ns(libc::CLOCK_MONOTONIC) as u64);
                    let wall = (*cq).read_completion_wallclock_ns.unwrap()(cq) as i64;
                    assert!((cq_ex::clock_ns(libc::CLOCK_REALTIME) - wall).abs() < 10_000_000_000);
                    let opcode = (*cq).read_opcode.unwrap()(cq);
                    if opcode == IBV_WC_RECV {
                        assert_eq!((*cq).read_imm_data.unwrap()(cq), 0x1234_5678);
                        assert_eq!((*cq).read_wc_flags.unwrap()(cq), IBV_WC_WITH_IMM);
                        assert_eq!((*cq).read_byte_len.unwrap()(cq), 16);
                        assert_eq!((*cq).read_qp_num.unwrap()(cq), (*b).qp_num);
                    }
                    seen.push(((*cq).wr_id, opcode));
                    if (*cq).next_poll.unwrap()(cq) == libc::ENOENT {
                        break;
                    }
                }
                (*cq).end_poll.unwrap()(cq);
            }
            seen.sort_unstable();
            assert_eq!(seen, [(5, IBV_WC_SEND), (77, IBV_WC_RECV)]);
            assert_eq!((*cq).start_poll.unwrap()(cq, &mut ibv_poll_cq_attr::default()), libc::ENOENT);
            // The classic poll takes the same lock: it would hang if a poll had not ended.
            assert!(poll_once(cq.cast()).is_none());
        }
        assert_eq!(bytes[2048..2064], [7; 16]);
    }
}

#[test]
fn unknown_attributes_are_refused_as_not_supported() {
    let Some(open) = Open::new() else { return };
    let bad: [fn(&mut ibv_cq_init_attr_ex); 4] = [
        |i| (i.comp_mask, i.flags) = (IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),
        |i| i.wc_flags = u64::from(IBV_WC_EX_WITH_CVLAN),
        |i| (i.comp_mask, i.flags) = (IBV_CQ_INIT_ATTR_MASK_FLAGS, 1 << 9),
        |i| i.comp_mask = 1 << 9,
    ];
    for spoil in bad {
        let mut init = ibv_cq_init_attr_ex { cqe: 64, ..Default::default() };
        spoil(&mut init);
        // SAFETY: an open context and a valid struct.
        assert!(unsafe { cq_ex::create_cq_ex(open.context, &mut init) }.is_null());
        assert_eq!(boundary::errno(), boundary::EOPNOTSUPP);
    }
    let mut init = ibv_cq_init_attr_ex { cqe: 0, ..Default::default() };
    // SAFETY: as above.
    assert!(unsafe { cq_ex::create_cq_ex(open.context, &mut init) }.is_null());
    assert_eq!(boundary::errno(), boundary::EINVAL);
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 4096];
    bytes[..16].copy_from_slice(b"0123456789abcdef");
    let mr = open.mr(&mut bytes);
    let (ex, _b) = pair_ex(&open, cq);
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let (lkey, rkey, at) = ((*mr).lkey, (*mr).rkey, (*mr).addr as u64);
        let write = |to: u64| {
            (*ex).wr_id = to;
            (*ex).wr_rdma_write.unwrap()(ex, rkey, at + to);
        };
        // A good one, then one with too many SGEs.
        (*ex).wr_start.unwrap()(ex);
        write(100);
        (*ex).wr_set_sge.unwrap()(ex, lkey, at, 1);
        write(101);
        let list = [ibv_sge { addr: at, length: 1, lkey }; 4];
        (*ex).wr_set_sge_list.unwrap()(ex, 4, list.as_ptr());
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EINVAL);
        // Too long inline data, in two parts whose lengths overflow 32 bits together.
        (*ex).wr_start.unwrap()(ex);
        write(102);
        let mut word = [9u8; 8];
        (*ex).wr_set_inline_data.unwrap()(ex, word.as_mut_ptr().cast(), 8);
        (*ex).wr_set_inline_data.unwrap()(ex, word.as_mut_ptr().cast(), u32::MAX as usize);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EINVAL);
        // Aborted.
        (*ex).wr_start.unwrap()(ex);
        write(103);
        (*ex).wr_abort.unwrap()(ex);
        // More than the queue holds.
        (*ex).wr_start.unwrap()(ex);
        (0..17).for_each(|_| write(104));
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::ENOMEM);
        // Operations that the service does not support.
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_send_tso.unwrap()(ex, null_mut(), 0, 0);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EOPNOTSUPP);
        // Empty, then a good batch: SGEs, inline, inline list.
        (*ex).wr_start.unwrap()(ex);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        (*ex).wr_start.unwrap()(ex);
        write(200);
        let list = [ibv_sge { addr: at + 8, length: 8, lkey }, ibv_sge { addr: at, length: 8, lkey }];
        (*ex).wr_set_sge_list.unwrap()(ex, 2, list.as_ptr());
        write(300);
        (*ex).wr_set_inline_data.unwrap()(ex, word.as_mut_ptr().cast(), 8);
        write(400);
        let parts = [1u8, 2, 3, 4].map(|b| [b; 2]);
        let list = [0, 2].map(|i| ibv_data_buf { addr: parts[i].as_ptr().cast_mut().cast(), length: 2 });
        (*ex).wr_set_inline_data_list.unwrap()(ex, 2, list.as_ptr());
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
    }
    let ids: Vec<u64> = complete_all(cq, 3).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [200, 300, 400]);
    assert!(poll_once(cq).is_none(), "nothing else was posted");
    assert_eq!(&bytes[200..216], b"89abcdef01234567");
    assert_eq!((bytes[300], &bytes[400..405], bytes[100]), (9, &[1, 1, 3, 3, 0][..], 0));
}

#[test]
fn a_batch_on_a_queue_pair_that_is_not_ready_is_refused() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let (ex, _b) = pair_ex(&open, cq);
    move_to(ex.cast(), IBV_QPS_RESET);
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_rdma_write.unwrap()(ex, 1, 2);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EINVAL);
    }
}

#[test]
fn windows_open_what_they_are_bound_to() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(64);
    let mut bytes = vec![0u8; 8192];
    let mr = open.mr(&mut bytes[..4096]);
    let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) as i32;
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let target = pd_mr::ibv_reg_mr(open.pd, bytes[4096..].as_mut_ptr().cast(), 4096, rights);
        assert!(!target.is_null());
        let (a, b) = open.pair(cq);
        let through = |rkey: u32| {
            let mut sges = [sge(mr, 0, 8)];
            let mut request = to(wr(IBV_WR_RDMA_WRITE, &mut sges), target, 0);
            request.wr.rdma.rkey = rkey;
            assert_eq!(send(a, &mut request).0, 0);
            complete(cq).status
        };
        // Type 1, twice bound.
        let one = mw::alloc_mw(open.pd, IBV_MW_TYPE_1);
        let first = (*one).rkey;
        let bind_info = ibv_mw_bind_info {
            mr: target,
            addr: (*target).addr as u64,
            length: 64,
            mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
        };
        let mut bind = ibv_mw_bind { wr_id: 9, send_flags: IBV_SEND_SIGNALED, bind_info };
        for _ in 0..2 {
            assert_eq!(mw::bind_mw(b, one, &mut bind), 0);
            assert_eq!((complete(cq).opcode, (*one).rkey == first), (IBV_WC_BIND_MW, false));
        }
        assert_eq!(through((*one).rkey), IBV_WC_SUCCESS);
        // Type 2, by a work request; ibv_bind_mw is not for it.
        let two = mw::alloc_mw(open.pd, IBV_MW_TYPE_2);
        assert_eq!(mw::bind_mw(b, two, &mut bind), libc::EINVAL);
        let mut request = ibv_send_wr { opcode: IBV_WR_BIND_MW, ..Default::default() };
        request.__bindgen_anon_2.bind_mw.mw = two;
        request.__bindgen_anon_2.bind_mw.rkey = (*two).rkey ^ 1;
        request.__bindgen_anon_2.bind_mw.bind_info = bind_info;
        assert_eq!(send(b, &mut request).0, 0);
        assert_eq!(complete(cq).status, IBV_WC_SUCCESS);
        assert_eq!(through((*two).rkey ^ 1), IBV_WC_SUCCESS);
        // A region without the right is refused at once.
        bind.bind_info.mr = mr;
        bind.bind_info.addr = (*mr).addr as u64;
        assert_eq!(mw::bind_mw(b, one, &mut bind), libc::EINVAL);
        // Deallocated while bound: closed.
        let key = (*two).rkey ^ 1;
        assert_eq!(mw::dealloc_mw(two), 0);
        assert_eq!(through(key), IBV_WC_REM_ACCESS_ERR);
        assert_eq!(mw::dealloc_mw(one), 0);
        assert!(mw::alloc_mw(open.pd, 3).is_null());
        assert_eq!(boundary::errno(), boundary::EINVAL);
    }
}

#[test]
fn the_classic_poll_works_on_an_extended_queue() {
    let Some(open) = Open::new() else { return };
    let cq = cq_ex(&open, 0).cast::<ibv_cq>();
    let mut bytes = vec![0u8; 64];
    let mr = open.mr(&mut bytes);
    let (a, _b) = open.pair(cq);
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
    complete_all(cq, 1);
    // SAFETY: a live CQ.
    unsafe {
        assert_eq!(poll::req_notify_cq(cq, 0), 0);
        assert_eq!(cq::ibv_resize_cq(cq, 128), 0);
        let mut attr = ibv_modify_cq_attr { attr_mask: IBV_CQ_ATTR_MODERATE, ..Default::default() };
        assert_eq!(cq_ex::modify_cq(cq, &mut attr), 0);
        attr.attr_mask = 1 << 9;
        assert_eq!(cq_ex::modify_cq(cq, &mut attr), libc::EOPNOTSUPP);
    }
}
