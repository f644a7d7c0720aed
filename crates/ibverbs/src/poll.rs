//! Taking completions and arming completion queues: the receiving half of the data path.
//!
//! A completion names its queue pair by cookie. For send completions that queue pair learns how many of its slots are free
//! again. A completion whose queue pair is gone is dropped, as verbs promise.
//!
//! A thread that finds nothing `PATIENCE` times in a row gives up the processor at every further empty poll: the worker that is
//! to make the completion may be waiting for this very core.

use crate::cq::{Cq, Inner};
use crate::registry::QpTable;
use crate::sys::*;
use burst_shm::Cqe;
use std::cell::Cell;
use std::ffi::c_int;

/// Empty polls in a row before a thread yields.
const PATIENCE: u32 = 24;

thread_local! {
    /// Empty polls of this thread since its last completion.
    static EMPTY: Cell<u32> = const { Cell::new(0) };
}

/// Takes up to `count` completions; how many there were, or -1.
///
/// # Safety
/// `cq` must be alive and `wc` writable for `count` entries.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context.
    let Ok(cq) = (unsafe { Cq::from_ibv(cq) }) else { return -1 };
    // SAFETY: as above.
    let Ok(context) = (unsafe { cq.context() }) else { return -1 };
    let wanted = count.max(0) as usize;
    // SAFETY: the caller gives `count` writable entries.
    let done = unsafe { take(&mut cq.inner.lock(), &context.qps, wanted, wc) };
    pause_if_idle(done == 0 && wanted > 0);
    done as c_int
}

#[inline]
fn pause_if_idle(idle: bool) {
    EMPTY.with(|empty| {
        if !idle {
            return empty.set(0);
        }
        let so_far = empty.get();
        if so_far < PATIENCE {
            empty.set(so_far + 1);
        } else {
            crate::lock::yield_now();
        }
    });
}

#[inline]
unsafe fn take(inner: &mut Inner, qps: &QpTable, wanted: usize, wc: *mut ibv_wc) -> usize {
    let mut done = 0;
    let mut deliver = |cqe: &Cqe| {
        if retire(qps, cqe) {
            // SAFETY: `done` is below `wanted`, for which the caller gave room: each round takes at most what is missing.
            unsafe { wc.add(done).write(wc_of(cqe)) };
            done += 1;
        }
        done
    };
    let mut missing = wanted;
    while missing > 0 {
        let Some(cqe) = inner.carry.pop_front() else { break };
        missing = wanted - deliver(&cqe);
    }
    while missing > 0 {
        let mut total = wanted - missing;
        if inner.ring.poll_each(missing, |cqe| total = deliver(cqe)) == 0 {
            break;
        }
        missing = wanted - total;
    }
    done
}

/// Tells the queue pair that its slots are free. False: there is no such queue pair any more.
#[inline]
fn retire(qps: &QpTable, cqe: &Cqe) -> bool {
    let Some(qp) = qps.get(cqe.qp_cookie) else { return false };
    if cqe.is_recv == 0 {
        // SAFETY: the caller holds the lock of a CQ of this queue pair; destruction takes it before freeing.
        unsafe { qp.as_ref() }.set_retired(cqe.sq_consumer);
    }
    true
}

#[inline]
fn wc_of(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: cqe.vendor_err,
        byte_len: cqe.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: cqe.imm },
        qp_num: cqe.qpn,
        src_qp: cqe.src_qpn,
        wc_flags: cqe.wc_flags,
        pkey_index: cqe.pkey_index,
        slid: 0,
        sl: cqe.sl,
        dlid_path_bits: 0,
    }
}

/// Asks for an event at the next completion.
///
/// # Safety
/// `cq` must be alive.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context.
    let Ok(cq) = (unsafe { Cq::from_ibv(cq) }) else { return libc::EINVAL };
    // SAFETY: as above.
    if unsafe { cq.context() }.is_err() {
        return libc::EIO;
    }
    cq.inner.lock().ring.arm(solicited_only != 0);
    0
}
