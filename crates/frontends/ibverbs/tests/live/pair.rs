//! A context, and two connected queue pairs.

pub use crate::daemon::DEADLINE;
use crate::daemon::socket;
use burst_ibverbs::sys::*;
use burst_ibverbs::{boundary, context, cq, device, ops, pd_mr, poll, port, post, qp};
use std::ptr::null_mut;
use std::time::Instant;

/// An open device with a PD.
pub struct Open {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
}
// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Open {
    /// Opens the first device. `None`: no daemon can be started.
    pub fn new() -> Option<Open> {
        socket()?;
        // SAFETY: the sequence that the API prescribes.
        unsafe {
            let list = device::ibv_get_device_list(null_mut());
            assert!(!(*list).is_null(), "the daemon has no device");
            let context = ops::ibv_open_device(*list);
            assert!(!context.is_null(), "{:?}", boundary::errno());
            device::ibv_free_device_list(list);
            let pd = pd_mr::ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Some(Open { context, pd })
        }
    }
    pub fn cq(&self, entries: i32) -> *mut ibv_cq {
        self.cq_on(entries, null_mut())
    }
    pub fn cq_on(&self, entries: i32, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the context is open.
        let cq = unsafe { cq::ibv_create_cq(self.context, entries, null_mut(), channel, 0) };
        assert!(!cq.is_null(), "{:?}", boundary::errno());
        cq
    }
    pub fn qp(&self, cq: *mut ibv_cq, qp_type: ibv_qp_type) -> *mut ibv_qp {
        self.qp_of(cq, qp_type, 16).0
    }
    /// A queue pair for which `sends` entries of the send queue are asked for, and how many it has.
    pub fn qp_of(&self, cq: *mut ibv_cq, qp_type: ibv_qp_type, sends: u32) -> (*mut ibv_qp, u32) {
        let mut init = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            cap: ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            qp_type,
            sq_sig_all: 1,
            ..Default::default()
        };
        // SAFETY: live objects.
        let qp = unsafe { qp::ibv_create_qp(self.pd, &mut init) };
        assert!(!qp.is_null(), "{:?}", boundary::errno());
        assert!(init.cap.max_send_wr >= sends && init.cap.max_inline_data >= 64);
        (qp, init.cap.max_send_wr)
    }
    pub fn mr(&self, bytes: &mut [u8]) -> *mut ibv_mr {
        let access =
            (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
                as i32;
        // SAFETY: the slice outlives the region in these tests.
        let mr = unsafe { pd_mr::ibv_reg_mr(self.pd, bytes.as_mut_ptr().cast(), bytes.len(), access) };
        assert!(!mr.is_null(), "{:?}", boundary::errno());
        mr
    }
    pub fn gid(&self) -> [u8; 16] {
        let mut gid = ibv_gid::default();
        // SAFETY: an open context and a writable place.
        unsafe {
            assert_eq!(port::ibv_query_gid(self.context, 1, 0, &mut gid), 0);
            gid.raw
        }
    }
    /// Moves a queue pair from RESET to RTS, towards `peer`.
    pub fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        self.init(qp);
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_1024,
            // SAFETY: a live queue pair.
            dest_qp_num: unsafe { (*peer).qp_num },
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        attr.ah_attr.grh.dgid.raw = self.gid();
        attr.ah_attr.grh.hop_limit = 64;
        modify(
            qp,
            &mut attr,
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        );
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let rts = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        modify(qp, &mut attr, rts);
        // SAFETY: a live queue pair.
        assert_eq!(unsafe { (*qp).state }, IBV_QPS_RTS);
    }
    pub fn init(&self, qp: *mut ibv_qp) {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        modify(qp, &mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    }
    /// Two connected RC queue pairs with completion queue `cq`.
    pub fn pair(&self, cq: *mut ibv_cq) -> (*mut ibv_qp, *mut ibv_qp) {
        let (a, b) = (self.qp(cq, IBV_QPT_RC), self.qp(cq, IBV_QPT_RC));
        self.connect(a, b);
        self.connect(b, a);
        (a, b)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: closing ends whatever a test has left.
        unsafe { ops::ibv_close_device(self.context) };
    }
}

pub fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) {
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { qp::ibv_modify_qp(qp, attr, mask as i32) }, 0);
}

pub fn move_to(qp: *mut ibv_qp, state: ibv_qp_state) {
    modify(qp, &mut ibv_qp_attr { qp_state: state, ..Default::default() }, IBV_QP_STATE);
}

pub fn sge(mr: *mut ibv_mr, offset: usize, length: u32) -> ibv_sge {
    // SAFETY: a live region.
    unsafe { ibv_sge { addr: (*mr).addr as u64 + offset as u64, length, lkey: (*mr).lkey } }
}

/// Posts one send request. Returns errno, and whether `bad_wr` points to the request.
pub fn send(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (i32, bool) {
    let mut bad = null_mut();
    // SAFETY: a live queue pair and a valid request.
    let rc = unsafe { post::post_send(qp, wr, &mut bad) };
    (rc, std::ptr::eq(bad, wr))
}

/// Posts one receive.
pub fn recv(qp: *mut ibv_qp, wr_id: u64, list: &mut [ibv_sge]) -> i32 {
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: list.len() as i32 };
    let mut bad = null_mut();
    // SAFETY: a live queue pair and a valid request.
    unsafe { post::post_recv(qp, &mut wr, &mut bad) }
}

pub fn wr(opcode: ibv_wr_opcode, list: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr { opcode, sg_list: list.as_mut_ptr(), num_sge: list.len() as i32, ..Default::default() }
}

/// Sets the remote side of an RDMA request.
pub fn to(mut wr: ibv_send_wr, mr: *mut ibv_mr, offset: u64) -> ibv_send_wr {
    // SAFETY: a live region.
    unsafe {
        wr.wr.rdma.remote_addr = (*mr).addr as u64 + offset;
        wr.wr.rdma.rkey = (*mr).rkey;
    }
    wr
}

/// Polls once.
pub fn poll_once(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    // SAFETY: a live CQ.
    match unsafe { poll::poll_cq(cq, 1, &mut wc) } {
        0 => None,
        1 => Some(wc),
        n => panic!("poll_cq: {n}"),
    }
}

/// Waits for one completion.
pub fn complete(cq: *mut ibv_cq) -> ibv_wc {
    let begin = Instant::now();
    loop {
        if let Some(wc) = poll_once(cq) {
            return wc;
        }
        assert!(begin.elapsed() < DEADLINE, "no completion");
    }
}

/// Waits for `count` completions, all successful.
pub fn complete_all(cq: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
    (0..count)
        .map(|_| {
            let wc = complete(cq);
            assert_eq!(wc.status, IBV_WC_SUCCESS, "opcode {} vendor {}", wc.opcode, wc.vendor_err);
            wc
        })
        .collect()
}

/// Whether calls on the context fail as in a child process.
pub fn is_dead(context: *mut ibv_context) -> bool {
    // SAFETY: an open context.
    unsafe { context::VerbsContext::from_ibv(context) }.is_err()
}
