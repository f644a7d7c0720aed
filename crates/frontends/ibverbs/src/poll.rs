//! Polling and arming completion queues: the receiving half of the data path ([`burst_client::raw::completion`]).
//!
//! With a host in this process, a poll that finds no completion runs passes of its engine, as long as they find work. One that
//! still finds none may yield the processor, and checks from time to time whether the daemon runs
//! ([`burst_client::raw::idle`]). If the daemon has ended, the library flushes what is posted ([`crate::flush`]).

use crate::context::VerbsContext;
use crate::cq::VerbsCq;
use crate::flush;
use crate::sys::*;
use burst_client::raw::idle::{found, pause};
use burst_ffi::failed_completion;
use burst_shm::Cqe;
use std::ffi::c_int;

/// `ibv_poll_cq`: takes up to `count` completions. Returns their number, or -1.
///
/// # Safety
/// `cq` must be alive and `wc` writable for `count` entries.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context.
    let Ok(cq) = (unsafe { VerbsCq::from_ibv(cq) }) else { return -1 };
    // SAFETY: as above.
    let Ok(context) = (unsafe { cq.context() }) else { return -1 };
    let wanted = count.max(0) as usize;
    // SAFETY: the caller gives `wanted` writable entries.
    let mut done = unsafe { take(cq, context, wanted, wc) };
    if done == 0 && wanted > 0 {
        context.turn_until(|| {
            // SAFETY: as above.
            done = unsafe { take(cq, context, wanted, wc) };
            done > 0
        });
    }
    if done > 0 {
        found();
        if failed_completion::is_asked() {
            // SAFETY: so many entries were written.
            explain(context, unsafe { std::slice::from_raw_parts(wc, done) });
        }
    } else if wanted > 0
        && pause(context.in_process_calls().is_none(), || cq.inner.lock().progress.take())
        && context.daemon_is_gone()
    {
        // SAFETY: as above.
        return unsafe { poll_flushed(cq.as_ibv(), count, wc) };
    }
    done as c_int
}

/// Explains completions that failed.
#[cold]
fn explain(context: &VerbsContext, found: &[ibv_wc]) {
    found.iter().for_each(|wc| failed_completion::completed(context, wc.qp_num, wc.status));
}

/// Takes up to `wanted` completions.
///
/// # Safety
/// `wc` must be writable for `wanted` entries.
#[inline(always)]
unsafe fn take(cq: &VerbsCq, context: &VerbsContext, wanted: usize, wc: *mut ibv_wc) -> usize {
    let mut inner = cq.inner.lock();
    if wanted == 1 {
        // SAFETY: the caller gives a writable entry.
        inner.take_one(&context.send_slots, move |cqe| unsafe { wc.write(wc_of(cqe)) })
    } else {
        // SAFETY: the caller gives `wanted` writable entries, and `i` is below `wanted`.
        inner.take(&context.send_slots, wanted, move |i, cqe| unsafe { wc.add(i).write(wc_of(cqe)) })
    }
}

/// `ibv_poll_cq` after the end of the daemon: requests that were posted since the last poll are flushed first.
///
/// # Safety
/// As for [`poll_cq`].
#[cold]
pub unsafe extern "C" fn poll_flushed(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context.
    let Ok(cq) = (unsafe { VerbsCq::from_ibv(cq) }) else { return -1 };
    // SAFETY: as above.
    let Ok(context) = (unsafe { cq.context() }) else { return -1 };
    flush::flush(context, Some(cq));
    let wanted = count.max(0) as usize;
    // SAFETY: the caller gives `wanted` writable entries, and `i` is below `wanted`.
    cq.inner.lock().take(&context.send_slots, wanted, move |i, cqe| unsafe { wc.add(i).write(wc_of(cqe)) }) as c_int
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

/// `ibv_req_notify_cq`: requests an event at the next completion.
///
/// # Safety
/// `cq` must be alive.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context.
    let Ok(cq) = (unsafe { VerbsCq::from_ibv(cq) }) else { return libc::EINVAL };
    // SAFETY: as above.
    let Ok(context) = (unsafe { cq.context() }) else { return libc::EIO };
    cq.inner.lock().ring.arm(solicited_only != 0);
    if let Some(calls) = context.in_process_calls() {
        (calls.armed)();
    }
    0
}
