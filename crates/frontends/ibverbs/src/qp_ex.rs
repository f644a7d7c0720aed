//! Extended posting: `ibv_wr_<operation>` begins a work request, setters complete it, and `ibv_wr_complete` publishes the batch.
//!
//! From `wr_start` to `wr_complete` or `wr_abort` the calling thread holds the send queue's lock. Operations and setters write
//! into the ring, which the daemon does not read before the batch is published. After the first error all further calls are
//! ignored; `wr_complete` returns the error, and no request of the batch is posted.
//!
//! All operations that the service supports are available, whatever `send_ops_flags` names; the others record EOPNOTSUPP.

use crate::ah;
use crate::mw;
use crate::post::{allowed, bit_of, note_posted};
use crate::qp::VerbsQp;
use crate::sys::*;
use burst_base::verbs::{QpType, WrOpcode, send_flags};
use burst_client::raw::queue::SendSide;
use burst_shm::sq::{ShortWqe, Staged};
use burst_shm::{SendWqe, Sge, WriteError};
use std::ffi::{c_int, c_void};

/// Flags of `wr_flags` that have an effect. INLINE has none: the setters decide.
const FLAGS: u32 = send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED;

/// The batch that is being built. The send queue's lock guards it.
#[derive(Debug, Default)]
pub struct WrBatch {
    /// The request that setters complete; `None` after an error.
    open: Option<Staged>,
    /// First error of the batch, as errno.
    error: c_int,
    /// Index of the batch's first request.
    first: u32,
}

impl WrBatch {
    #[cold]
    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
        self.open = None;
    }
}

/// Operations that a service supports, as bits of `send_ops_flags`.
pub const fn offered(qp_type: QpType) -> u64 {
    let basic = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let connected = basic | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let reliable = connected
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_SEND_WITH_INV;
    let windows = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    let set = match qp_type {
        QpType::Rc | QpType::XrcSend => reliable | windows,
        QpType::XrcRecv => 0,
        QpType::Uc => connected | windows,
        QpType::Ud => basic,
    };
    set as u64
}

/// Sets the function pointers of a queue pair created with `send_ops_flags`.
pub fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
}

#[cold]
fn errno_of(e: WriteError) -> c_int {
    match e {
        WriteError::Full => libc::ENOMEM,
        WriteError::TooManySges | WriteError::InlineTooLong => libc::EINVAL,
    }
}

/// The queue pair of a batch.
///
/// # Safety
/// `qp` must be alive and of this library.
#[inline]
unsafe fn ours<'a>(qp: *mut ibv_qp_ex) -> &'a VerbsQp {
    // SAFETY: `ibv_qp_ex` is the first field of a `VerbsQp`.
    unsafe { &*qp.cast::<VerbsQp>() }
}

/// Adds an SGE to the request.
#[inline]
fn put_sge(side: &mut SendSide<WrBatch>, sge: &Sge) {
    let Some(open) = &mut side.extra.open else { return };
    if open.is_inline() {
        return side.extra.fail(libc::EINVAL);
    }
    if let Err(e) = side.ring.stage_sge(open, sge) {
        side.extra.fail(errno_of(e));
    }
}

/// Adds inline data to the request.
///
/// # Safety
/// `from` must be readable for `len` bytes.
#[inline]
unsafe fn put_inline(side: &mut SendSide<WrBatch>, from: *const u8, len: usize) {
    let Some(open) = &mut side.extra.open else { return };
    if open.num_sge() != 0 || bit_of(open.opcode().into()) & crate::post::INLINE_OK == 0 {
        return side.extra.fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    if let Err(e) = unsafe { side.ring.stage_inline(open, from, len) } {
        side.extra.fail(errno_of(e));
    }
}

/// Begins a request of `opcode`, in the short form if the service allows it.
///
/// # Safety
/// The caller must be between `wr_start` and `wr_complete` of `qp`.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: WrOpcode, fields: ShortWqe) {
    // SAFETY: the caller's promise: the lock is held.
    let (ours, wr_id, wr_flags) = unsafe { (ours(qp), (*qp).wr_id, (*qp).wr_flags) };
    if bit_of(opcode as u32) & ours.short == 0 {
        let ShortWqe { imm, remote_addr, rkey, .. } = fields;
        // SAFETY: the caller's promise.
        return unsafe { begin_whole(qp, opcode, &SendWqe { imm, remote_addr, rkey, ..SendWqe::default() }) };
    }
    // SAFETY: as above.
    let side = unsafe { ours.sq.side.held() };
    if side.extra.error != 0 {
        return;
    }
    let flags = (wr_flags & FLAGS | ours.always) as u16;
    match side.ring.begin(&ShortWqe { wr_id, opcode: opcode as u8, flags, ..fields }) {
        Some(open) => side.extra.open = Some(open),
        None => side.extra.fail(libc::ENOMEM),
    }
}

/// Begins a request of `opcode`, if the service supports it.
///
/// # Safety
/// The caller must be between `wr_start` and `wr_complete` of `qp`.
#[inline(never)]
unsafe fn begin_whole(qp: *mut ibv_qp_ex, opcode: WrOpcode, fields: &SendWqe) {
    // SAFETY: the caller's promise: the lock is held.
    let (ours, wr_id, wr_flags) = unsafe { (ours(qp), (*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: as above.
    let side = unsafe { ours.sq.side.held() };
    if side.extra.error != 0 {
        return;
    }
    if bit_of(opcode as u32) & allowed(ours.qp_type) == 0 {
        return side.extra.fail(libc::EOPNOTSUPP);
    }
    let flags = (wr_flags & FLAGS | ours.always) as u16;
    match side.ring.begin_whole(&SendWqe { wr_id, opcode: opcode as u8, flags, ..*fields }) {
        Some(open) => side.extra.open = Some(open),
        None => side.extra.fail(libc::ENOMEM),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller gives a live queue pair of an open context.
    let ours = unsafe { ours(qp) };
    // SAFETY: as above.
    let alive = unsafe { ours.context() }.is_ok();
    // In a child process the lock may be held by a thread that does not exist there: no lock is taken.
    if alive {
        ours.sq.side.acquire();
    }
    // SAFETY: the lock is held.
    let side = unsafe { ours.sq.side.held() };
    side.ring.free(ours.sq.slots.retired());
    side.extra.open = None;
    side.extra.first = side.ring.written();
    side.extra.error = match (alive, ours.state() < IBV_QPS_RTS) {
        (false, _) => libc::EIO,
        (true, true) => libc::EINVAL,
        (true, false) => 0,
    };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller builds a batch, and so holds the lock.
    let ours = unsafe { ours(qp) };
    // SAFETY: as above.
    let side = unsafe { ours.sq.side.held() };
    let error = side.extra.error;
    let mut ring = false;
    if error != 0 {
        side.ring.rewind(side.extra.first);
    } else if side.ring.written() != side.extra.first {
        ring = side.ring.post();
        ours.sq.slots.set_posted(side.ring.written());
    }
    // SAFETY: as above; `side` is not used any more.
    unsafe { ours.sq.side.release() };
    // SAFETY: a live queue pair.
    if let Ok(context) = unsafe { ours.context() } {
        if ring {
            ours.sq.doorbell.ring(context);
        }
        note_posted(context);
    }
    error
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller builds a batch, and so holds the lock.
    unsafe {
        let ours = ours(qp);
        let side = ours.sq.side.held();
        side.extra.open = None;
        side.ring.rewind(side.extra.first);
        ours.sq.side.release();
    }
}

macro_rules! operations {
    ($($name:ident, $opcode:ident, ($($arg:ident: $type:ty),*), { $($field:ident: $value:expr),* };)+) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the caller builds a batch on a live queue pair.
            unsafe { begin(qp, WrOpcode::$opcode, ShortWqe { $($field: $value,)* ..ShortWqe::default() }) }
        }
    )+ };
}

operations! {
    wr_send, Send, (), {};
    wr_send_imm, SendWithImm, (imm: __be32), { imm: imm };
    wr_send_inv, SendWithInv, (rkey: u32), { imm: rkey };
    wr_rdma_read, RdmaRead, (rkey: u32, addr: u64), { rkey: rkey, remote_addr: addr };
    wr_rdma_write, RdmaWrite, (rkey: u32, addr: u64), { rkey: rkey, remote_addr: addr };
    wr_rdma_write_imm, RdmaWriteWithImm, (rkey: u32, addr: u64, imm: __be32), { rkey: rkey, remote_addr: addr, imm: imm };
    wr_local_inv, LocalInv, (rkey: u32), { imm: rkey };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare_add: u64, swap: u64) {
    let fields = SendWqe { rkey, remote_addr, compare_add, swap, ..SendWqe::default() };
    // SAFETY: the caller builds a batch on a live queue pair.
    unsafe { begin_whole(qp, WrOpcode::AtomicCmpAndSwp, &fields) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare_add: u64) {
    let fields = SendWqe { rkey, remote_addr, compare_add, ..SendWqe::default() };
    // SAFETY: the caller builds a batch on a live queue pair.
    unsafe { begin_whole(qp, WrOpcode::AtomicFetchAndAdd, &fields) }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind: *const ibv_mw_bind_info) {
    // SAFETY: the caller builds a batch, and gives a live window and a valid description.
    unsafe {
        match mw::bind_fields(mw, rkey, bind) {
            Ok(fields) => begin_whole(qp, WrOpcode::BindMw, &fields),
            Err(e) => ours(qp).sq.side.held().extra.fail(e.0),
        }
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _head: *mut c_void, _head_size: u16, _segment: u16) {
    // SAFETY: the caller builds a batch.
    unsafe { ours(qp).sq.side.held() }.extra.fail(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller builds a batch.
    let (qp, side) = unsafe { (ours(qp), ours(qp).sq.side.held()) };
    match &side.extra.open {
        Some(open) if qp.qp_type == QpType::XrcSend => side.ring.stage_srqn(open, srqn),
        Some(_) => side.extra.fail(libc::EINVAL),
        None => {}
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, handle: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller builds a batch and gives a live address handle.
    let (side, number) = unsafe { (ours(qp).sq.side.held(), ah::number_of(handle)) };
    match (&side.extra.open, number) {
        (Some(open), Some(ah)) => side.ring.stage_datagram(open, ah, remote_qpn, remote_qkey),
        (Some(_), None) => side.extra.fail(libc::EINVAL),
        (None, _) => {}
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller builds a batch.
    put_sge(unsafe { ours(qp).sq.side.held() }, &Sge { addr, length, lkey });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller builds a batch.
    let side = unsafe { ours(qp).sq.side.held() };
    for i in 0..count {
        if side.extra.error != 0 {
            return;
        }
        // SAFETY: the caller gives `count` valid entries.
        let sge = unsafe { *list.add(i) };
        put_sge(side, &Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller builds a batch and gives `length` readable bytes.
    unsafe { put_inline(ours(qp).sq.side.held(), addr.cast(), length) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller builds a batch.
    let side = unsafe { ours(qp).sq.side.held() };
    for i in 0..count {
        if side.extra.error != 0 {
            return;
        }
        // SAFETY: the caller gives `count` valid entries, each with readable bytes.
        unsafe {
            let part = *list.add(i);
            put_inline(side, part.addr.cast(), part.length);
        }
    }
}
