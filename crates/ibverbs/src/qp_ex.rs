//! Extended posting: a work request is begun by `ibv_wr_<operation>`, completed by setters, and a batch is published by
//! `ibv_wr_complete`.
//!
//! From `wr_start` to `wr_complete` or `wr_abort` the calling thread holds the send queue's lock. Setters write SGEs and inline
//! bytes straight into the next slot of the ring; the head is kept in [`Build`] until the next operation or the end of the
//! batch writes it. The first error is remembered and everything after it ignored; `wr_complete` reports it and nothing of
//! the batch is posted.
//!
//! All operations that the service carries are offered, whatever `send_ops_flags` names; the others record EOPNOTSUPP.

use crate::ah;
use crate::mw;
use crate::post::{allowed, bit_of, bits};
use crate::qp::{Qp, SendSide};
use crate::sys::*;
use burst_base::verbs::{QpType, WrOpcode, send_flags};
use burst_shm::{SendWqe, Sge, WriteError};
use std::ffi::{c_int, c_void};

/// Flags of `wr_flags` that mean something; inline is the business of the setters.
const FLAGS: u32 = send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED;

/// A batch being built. Guarded by the send queue's lock.
#[derive(Debug, Default)]
pub struct Build {
    /// Head of the request that setters may still complete.
    open: Option<SendWqe>,
    /// First error of the batch, as errno.
    error: c_int,
    /// Index of the batch's first request.
    first: u32,
}

impl Build {
    fn fail(&mut self, error: c_int) {
        if self.error == 0 {
            self.error = error;
        }
    }
}

/// Operations that a service carries, in the numbering of `send_ops_flags`.
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
        QpType::Rc => reliable | windows,
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

/// The queue pair whose batch the caller builds.
///
/// # Safety
/// `qp` must be alive and of this library.
#[inline]
unsafe fn ours<'a>(qp: *mut ibv_qp_ex) -> &'a Qp {
    // SAFETY: `ibv_qp_ex` is the first field of a `Qp`.
    unsafe { &*qp.cast::<Qp>() }
}

impl SendSide {
    /// Writes the head of the request that is open.
    #[inline]
    fn close(&mut self) {
        if let Some(wqe) = self.build.open.take()
            && self.build.error == 0
            && let Err(e) = self.ring.commit(&wqe)
        {
            self.build.fail(errno_of(e));
        }
    }

    /// Opens the next request.
    #[inline]
    fn open(&mut self, wqe: SendWqe) {
        self.close();
        if self.ring.room() == 0 {
            self.build.fail(libc::ENOMEM);
        }
        self.build.open = Some(wqe);
    }

    /// The open request, while the batch is good.
    #[inline]
    fn pending(&mut self) -> Option<&mut SendWqe> {
        if self.build.error != 0 {
            return None;
        }
        self.build.open.as_mut()
    }

    fn put_sge(&mut self, sge: &Sge) {
        let Some(wqe) = self.pending() else { return };
        let at = wqe.num_sge;
        if wqe.flags & send_flags::INLINE as u16 != 0 {
            return self.build.fail(libc::EINVAL);
        }
        wqe.num_sge = at.saturating_add(1);
        if let Err(e) = self.ring.stage_sge(at.into(), sge) {
            self.build.fail(errno_of(e));
        }
    }

    /// # Safety
    /// `from` must be readable for `len` bytes.
    unsafe fn put_inline(&mut self, from: *const u8, len: usize) {
        let Some(wqe) = self.pending() else { return };
        let at = wqe.length;
        if wqe.num_sge != 0 || bit_of(wqe.opcode.into()) & crate::post::INLINE_OK == 0 {
            return self.build.fail(libc::EINVAL);
        }
        wqe.flags |= send_flags::INLINE as u16;
        // A sum beyond 32 bits is beyond every limit, which `stage_inline` checks with the untruncated length.
        wqe.length = at.wrapping_add(len as u32);
        // SAFETY: the caller's promise.
        if let Err(e) = unsafe { self.ring.stage_inline(at as usize, from, len) } {
            self.build.fail(errno_of(e));
        }
    }
}

/// Opens a request of `opcode`.
///
/// # Safety
/// The caller builds a batch on `qp`.
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: WrOpcode, fields: SendWqe) {
    // SAFETY: the caller's promise: the lock is held.
    let (ours, wr_id, wr_flags) = unsafe { (ours(qp), (*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: as above.
    let side = unsafe { ours.sq.held() };
    if bits(&[opcode]) & allowed(ours.qp_type) == 0 {
        return side.build.fail(libc::EOPNOTSUPP);
    }
    let mut flags = wr_flags & FLAGS;
    if ours.signal_all {
        flags |= send_flags::SIGNALED;
    }
    side.open(SendWqe { wr_id, opcode: opcode as u8, flags: flags as u16, ..fields });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller gives a live queue pair.
    let ours = unsafe { ours(qp) };
    ours.sq.acquire();
    // SAFETY: the lock is held, and the context is open.
    let (side, alive) = unsafe { (ours.sq.held(), ours.context().is_ok()) };
    side.ring.free(ours.retired());
    side.build = Build { open: None, error: 0, first: side.ring.written() };
    if !alive {
        side.build.error = libc::EIO;
    } else if ours.state() < IBV_QPS_RTS {
        side.build.error = libc::EINVAL;
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller builds a batch, and so holds the lock.
    let ours = unsafe { ours(qp) };
    // SAFETY: as above.
    let side = unsafe { ours.sq.held() };
    side.close();
    let error = side.build.error;
    let mut ring = false;
    if error != 0 {
        side.ring.rewind(side.build.first);
    } else if side.ring.written() != side.build.first {
        ring = side.ring.post();
    }
    // SAFETY: as above; `side` is not used any more.
    unsafe { ours.sq.release() };
    // SAFETY: a live queue pair.
    if ring && let Ok(context) = unsafe { ours.context() } {
        context.bells.ring(ours.worker, ours.doorbell);
    }
    error
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller builds a batch, and so holds the lock.
    unsafe {
        let ours = ours(qp);
        let side = ours.sq.held();
        side.build.open = None;
        side.ring.rewind(side.build.first);
        ours.sq.release();
    }
}

macro_rules! operations {
    ($($name:ident, $opcode:ident, ($($arg:ident: $type:ty),*), { $($field:ident: $value:expr),* };)+) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: the caller builds a batch on a live queue pair.
            unsafe { begin(qp, WrOpcode::$opcode, SendWqe { $($field: $value,)* ..SendWqe::default() }) }
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
    wr_atomic_cmp_swp, AtomicCmpAndSwp, (rkey: u32, addr: u64, compare: u64, swap: u64),
        { rkey: rkey, remote_addr: addr, compare_add: compare, swap: swap };
    wr_atomic_fetch_add, AtomicFetchAndAdd, (rkey: u32, addr: u64, add: u64),
        { rkey: rkey, remote_addr: addr, compare_add: add };
    wr_local_inv, LocalInv, (rkey: u32), { imm: rkey };
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind: *const ibv_mw_bind_info) {
    // SAFETY: the caller builds a batch, and gives a live window and a valid description.
    unsafe {
        match mw::bind_fields(mw, rkey, bind) {
            Ok(fields) => begin(qp, WrOpcode::BindMw, fields),
            Err(e) => ours(qp).sq.held().build.fail(e.0),
        }
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _head: *mut c_void, _head_size: u16, _segment: u16) {
    // SAFETY: the caller builds a batch.
    unsafe { ours(qp).sq.held() }.build.fail(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _srqn: u32) {
    // SAFETY: the caller builds a batch.
    unsafe { ours(qp).sq.held() }.build.fail(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, handle: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller builds a batch and gives a live address handle.
    let (side, number) = unsafe { (ours(qp).sq.held(), ah::number_of(handle)) };
    match (side.pending(), number) {
        (Some(wqe), Some(ah)) => (wqe.ah, wqe.remote_qpn, wqe.remote_qkey) = (ah, remote_qpn, remote_qkey),
        (Some(_), None) => side.build.fail(libc::EINVAL),
        (None, _) => {}
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller builds a batch.
    unsafe { ours(qp).sq.held() }.put_sge(&Sge { addr, length, lkey });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller builds a batch.
    let side = unsafe { ours(qp).sq.held() };
    for i in 0..count {
        if side.build.error != 0 {
            return;
        }
        // SAFETY: the caller gives `count` valid entries.
        let sge = unsafe { *list.add(i) };
        side.put_sge(&Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller builds a batch and gives `length` readable bytes.
    unsafe { ours(qp).sq.held().put_inline(addr.cast(), length) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller builds a batch.
    let side = unsafe { ours(qp).sq.held() };
    for i in 0..count {
        if side.build.error != 0 {
            return;
        }
        // SAFETY: the caller gives `count` valid entries, each with readable bytes.
        unsafe {
            let part = *list.add(i);
            side.put_inline(part.addr.cast(), part.length);
        }
    }
}
