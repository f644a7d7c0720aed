//! Posting work requests: the sending half of the data path. It does not allocate, and makes a system call only to wake a worker.
//!
//! The requests of one call are written into the ring one after the other and published together. The first request that cannot
//! be written ends the call: the requests before it are posted, and `bad_wr` points to it.

use crate::ah;
use crate::boundary::{EINVAL, Errno, Outcome};
use crate::context::VerbsContext;
use crate::flush;
use crate::mw;
use crate::qp::VerbsQp;
use crate::srq::VerbsSrq;
use crate::sys::*;
use burst_base::verbs::{QpType, WrOpcode, send_flags};
use burst_shm::rq::RqProducer;
use burst_shm::sq::{ShortWqe, SqProducer};
use burst_shm::{SendWqe, Sge, WriteError};
use std::ffi::c_int;
use std::mem::offset_of;

const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && offset_of!(Sge, addr) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, length) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// Send flags that the queue entry has. Checksum offload has no meaning for RC, UC and UD.
const FLAGS: u32 = send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED | send_flags::INLINE;

/// The bit set of these opcodes.
pub const fn bits(opcodes: &[WrOpcode]) -> u32 {
    let mut set = 0;
    let mut i = 0;
    while i < opcodes.len() {
        set |= 1 << opcodes[i] as u32;
        i += 1;
    }
    set
}

/// The bit set of one opcode; empty for numbers beyond the width of a set.
#[inline]
pub const fn bit_of(opcode: u32) -> u32 {
    if opcode < u32::BITS { 1 << opcode } else { 0 }
}

/// Opcodes that may carry inline data.
pub const INLINE_OK: u32 = bits(&[
    WrOpcode::Send,
    WrOpcode::SendWithImm,
    WrOpcode::SendWithInv,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaWriteWithImm,
]);
const UD_OK: u32 = bits(&[WrOpcode::Send, WrOpcode::SendWithImm]);
const WINDOWS: u32 = bits(&[WrOpcode::LocalInv, WrOpcode::BindMw]);
const UC_OK: u32 = INLINE_OK & !bits(&[WrOpcode::SendWithInv]) | WINDOWS;
const RC_OK: u32 =
    INLINE_OK | WINDOWS | bits(&[WrOpcode::RdmaRead, WrOpcode::AtomicCmpAndSwp, WrOpcode::AtomicFetchAndAdd]);

/// Opcodes that a service supports (IBA table 3.4, transport functions), and the local operations on keys.
pub const fn allowed(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::Rc | QpType::XrcSend => RC_OK,
        QpType::XrcRecv => 0,
        QpType::Uc => UC_OK,
        QpType::Ud => UD_OK,
    }
}

/// Opcodes of a service whose requests fit a [`ShortWqe`]: the most frequent ones.
pub const fn short(qp_type: QpType) -> u32 {
    match qp_type {
        // Requests of UD and XRC have more fields.
        QpType::Ud | QpType::XrcSend | QpType::XrcRecv => 0,
        _ => allowed(qp_type) & (INLINE_OK | bits(&[WrOpcode::RdmaRead])),
    }
}

#[cold]
fn errno_of(e: WriteError) -> c_int {
    match e {
        WriteError::Full => libc::ENOMEM,
        WriteError::TooManySges | WriteError::InlineTooLong => libc::EINVAL,
    }
}

/// The SGE list of a request: `None` if it is longer than `max`, or NULL.
///
/// # Safety
/// `list` must be valid for `count` entries.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int, max: u32) -> Option<&'a [Sge]> {
    let count = count as u32;
    if count > max || (list.is_null() && count > 0) {
        return None;
    }
    let list = if list.is_null() { std::ptr::NonNull::dangling().as_ptr() } else { list.cast() };
    // SAFETY: the caller's promise; the layouts are the same (asserted above).
    Some(unsafe { std::slice::from_raw_parts(list, count as usize) })
}

/// The queue entry of a request: addresses and operands depend on the opcode. `None` for a datagram without address handle, or a
/// memory window that cannot be bound as requested.
#[inline]
unsafe fn head_of(qp: &VerbsQp, wr: &ibv_send_wr) -> Option<SendWqe> {
    let flags = wr.send_flags & FLAGS | qp.always;
    // SAFETY: the union's members are both 32-bit words; the opcode decides the meaning.
    let imm = unsafe { wr.__bindgen_anon_1.imm_data };
    let mut wqe = SendWqe { wr_id: wr.wr_id, opcode: wr.opcode as u8, flags: flags as u16, imm, ..SendWqe::default() };
    if qp.qp_type == QpType::Ud {
        // SAFETY: a datagram's request holds the `ud` member, whose handle is NULL or alive.
        unsafe {
            wqe.ah = ah::number_of(wr.wr.ud.ah)?;
            wqe.remote_qpn = wr.wr.ud.remote_qpn;
            wqe.remote_qkey = wr.wr.ud.remote_qkey;
        }
    } else if wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        // SAFETY: an atomic's request holds the `atomic` member.
        let atomic = unsafe { wr.wr.atomic };
        wqe.remote_addr = atomic.remote_addr;
        wqe.rkey = atomic.rkey;
        wqe.compare_add = atomic.compare_add;
        wqe.swap = atomic.swap;
    } else if wr.opcode == IBV_WR_BIND_MW {
        // SAFETY: a bind's request holds the `bind_mw` member.
        unsafe {
            let bind = wr.__bindgen_anon_2.bind_mw;
            if bind.mw.as_ref()?.type_ != IBV_MW_TYPE_2 {
                return None;
            }
            let fields = mw::bind_fields(bind.mw, bind.rkey, &bind.bind_info).ok()?;
            wqe = SendWqe { wr_id: wqe.wr_id, opcode: wqe.opcode, flags: wqe.flags, ..fields };
        }
    } else {
        // SAFETY: plain integers; sends carry garbage here that the daemon does not look at.
        let rdma = unsafe { wr.wr.rdma };
        wqe.remote_addr = rdma.remote_addr;
        wqe.rkey = rdma.rkey;
    }
    if qp.qp_type == QpType::XrcSend {
        // SAFETY: a plain integer; local operations do not look at it.
        wqe.remote_qpn = unsafe { wr.qp_type.xrc.remote_srqn };
    }
    Some(wqe)
}

/// Writes one request into the ring.
///
/// # Safety
/// `wr` and what it names are valid.
#[inline]
unsafe fn write_send(qp: &VerbsQp, sq: &mut SqProducer, wr: &ibv_send_wr) -> Result<(), c_int> {
    if bit_of(wr.opcode) & qp.short == 0 || wr.send_flags & send_flags::INLINE != 0 {
        // SAFETY: the caller's promise.
        return unsafe { write_rare(qp, sq, wr) };
    }
    // SAFETY: plain integers; sends carry garbage here that the daemon does not look at.
    let (imm, rdma) = unsafe { (wr.__bindgen_anon_1.imm_data, wr.wr.rdma) };
    // SAFETY: the caller gives a valid list.
    let list = unsafe { sges(wr.sg_list, wr.num_sge, sq.spec().max_sge()) };
    let Some(list) = list else { return Err(libc::EINVAL) };
    let head = ShortWqe {
        wr_id: wr.wr_id,
        opcode: wr.opcode as u8,
        flags: (wr.send_flags & FLAGS | qp.always) as u16,
        imm,
        remote_addr: rdma.remote_addr,
        rkey: rdma.rkey,
    };
    sq.write_short(&head, list).map_err(errno_of)
}

/// Writes a request of any kind: datagrams, atomics, memory windows, inline data. Refuses invalid ones.
///
/// # Safety
/// As for [`write_send`].
#[inline(never)]
unsafe fn write_rare(qp: &VerbsQp, sq: &mut SqProducer, wr: &ibv_send_wr) -> Result<(), c_int> {
    let opcode = bit_of(wr.opcode);
    if opcode & allowed(qp.qp_type) == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller gives a valid list of requests.
    let (wqe, list) = unsafe { (head_of(qp, wr), sges(wr.sg_list, wr.num_sge, sq.spec().max_sge())) };
    let (Some(wqe), Some(list)) = (wqe, list) else { return Err(libc::EINVAL) };
    if wr.send_flags & send_flags::INLINE == 0 {
        return sq.write(&wqe, list).map_err(errno_of);
    }
    if opcode & INLINE_OK == 0 {
        return Err(libc::EINVAL);
    }
    let parts = list.iter().map(|s| (s.addr as *const u8, s.length as usize));
    // SAFETY: inline SGEs name readable memory of the caller.
    unsafe { sq.write_inline(&wqe, parts) }.map_err(errno_of)
}

/// Posts one request to bind a memory window.
///
/// # Safety
/// `qp` must be alive.
pub unsafe fn bind(qp: &VerbsQp, wr_id: u64, flags: u32, fields: SendWqe) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let context = unsafe { qp.context() }?;
    if qp.state() < IBV_QPS_RTS || WINDOWS & allowed(qp.qp_type) == 0 {
        return Err(EINVAL);
    }
    let flags = (flags & (send_flags::FENCE | send_flags::SIGNALED) | qp.always) as u16;
    let wqe = SendWqe { wr_id, flags, opcode: WrOpcode::BindMw as u8, ..fields };
    let posted = qp.sq.post(context, |ring| ring.write(&wqe, &[])).map_err(|e| Errno(errno_of(e)));
    note_posted(context);
    posted
}

/// To be called after requests were published: after the end of the daemon the library completes them.
#[inline]
pub fn note_posted(context: &VerbsContext) {
    if context.is_known_to_have_ended() {
        flush::posted(context);
    }
}

/// `ibv_post_send`: posts a list of send requests.
///
/// # Safety
/// `qp` must be alive, `wr` a valid list, `bad_wr` writable.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's promise.
    let (rc, bad) = unsafe {
        match VerbsQp::from_ibv(qp) {
            Ok(qp) => send_list(qp, wr),
            Err(e) => (e.0, wr),
        }
    };
    if rc != 0 && !bad_wr.is_null() {
        // SAFETY: the caller gives a writable place.
        unsafe { *bad_wr = bad };
    }
    rc
}

#[inline]
unsafe fn send_list(qp: &VerbsQp, mut wr: *mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
    // SAFETY: the queue pair is alive and its context open.
    let Ok(context) = (unsafe { qp.context() }) else { return (libc::EIO, wr) };
    if qp.state() < IBV_QPS_RTS {
        return (libc::EINVAL, wr);
    }
    let rc = qp.sq.post(context, |ring| {
        // SAFETY: a valid, NULL-terminated list.
        while let Some(one) = unsafe { wr.as_ref() } {
            // SAFETY: as above.
            if let Err(e) = unsafe { write_send(qp, ring, one) } {
                return e;
            }
            wr = one.next;
        }
        0
    });
    note_posted(context);
    (rc, wr)
}

/// Writes a list of receives. Returns the error, the request that caused it, and whether the doorbell must be rung.
#[inline]
unsafe fn recv_list(rq: &mut RqProducer, mut wr: *mut ibv_recv_wr) -> (c_int, *mut ibv_recv_wr, bool) {
    let mut rc = 0;
    let before = rq.written();
    // SAFETY: a valid, NULL-terminated list.
    while let Some(one) = unsafe { wr.as_ref() } {
        // SAFETY: the caller gives a valid SGE list.
        let list = unsafe { sges(one.sg_list, one.num_sge, rq.spec().max_sge()) };
        rc = list.map_or(libc::EINVAL, |l| rq.write(one.wr_id, l).map_or_else(errno_of, |()| 0));
        if rc != 0 {
            break;
        }
        wr = one.next;
    }
    (rc, wr, rq.written() != before && rq.post())
}

/// `ibv_post_recv`.
///
/// # Safety
/// `qp` must be alive, `wr` a valid list, `bad_wr` writable.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's promise.
    let (rc, bad) = unsafe { recv_on_qp(qp, wr) };
    if rc != 0 && !bad_wr.is_null() {
        // SAFETY: the caller gives a writable place.
        unsafe { *bad_wr = bad };
    }
    rc
}

#[inline]
unsafe fn recv_on_qp(qp: *mut ibv_qp, wr: *mut ibv_recv_wr) -> (c_int, *mut ibv_recv_wr) {
    // SAFETY: the caller gives a live queue pair of an open context.
    let Ok(qp) = (unsafe { VerbsQp::from_ibv(qp) }) else { return (libc::EINVAL, wr) };
    // SAFETY: as above.
    let Ok(context) = (unsafe { qp.context() }) else { return (libc::EIO, wr) };
    let Some(rq) = qp.rq.as_ref().filter(|_| qp.state() != IBV_QPS_RESET) else { return (libc::EINVAL, wr) };
    // SAFETY: the caller gives a valid list.
    let (rc, bad, ring) = unsafe { recv_list(&mut rq.lock(), wr) };
    if ring {
        qp.sq.doorbell.ring(context);
    }
    note_posted(context);
    (rc, bad)
}

/// `ibv_post_srq_recv`. An SRQ has no doorbell: workers read the queue when a message arrives.
///
/// # Safety
/// `srq` must be alive, `wr` a valid list, `bad_wr` writable.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a live SRQ of an open context and a valid list.
    let (rc, bad) = match unsafe { VerbsSrq::from_ibv(srq) } {
        // SAFETY: as above.
        Ok(srq) if unsafe { srq.context() }.is_ok() => {
            // SAFETY: as above.
            let (rc, bad, _) = unsafe { recv_list(&mut srq.queue.lock(), wr) };
            (rc, bad)
        }
        Ok(_) => (libc::EIO, wr),
        Err(e) => (e.0, wr),
    };
    if rc != 0 && !bad_wr.is_null() {
        // SAFETY: the caller gives a writable place.
        unsafe { *bad_wr = bad };
    }
    rc
}
