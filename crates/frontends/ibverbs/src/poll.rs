//! Taking completions and arming completion queues: the receiving half of the data path.
//!
//! A completion names its queue pair by cookie. For send completions that queue pair learns how many of its slots are free
//! again. A completion whose queue pair is gone is dropped, as verbs promise.
//!
//! A thread that finds nothing `PATIENCE` times in a row gives up the processor now and then: the worker that is to make the
//! completion may be waiting for this very core. Once a yield shows that somebody was waiting, every empty poll yields. Once
//! in a while it also asks whether the daemon is still there: nobody else could tell a program that only polls, and -1 is
//! better than waiting for ever.

use crate::cq::{Cq, Inner};
use crate::qp::Qp;
use crate::registry::QpTable;
use crate::sys::*;
use burst_base::sharing::Sharing;
use burst_shm::Cqe;
use burst_shm::cq::CqConsumer;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::NonNull;

/// Empty polls in a row before a thread yields.
const PATIENCE: u32 = 24;
/// Empty polls in a row between two looks whether the daemon lives. One look costs a system call, as each yield does.
const LOOK: u32 = 1024;

/// Further empty polls between two yields while nobody else wants the processor.
const YIELD_EVERY: u32 = 4;

/// Cookie of completions that belong to no queue pair of this context; those of queue pairs are never 0.
const NO_QP: u32 = 0;

/// What a thread knows of its own polling.
struct Idle {
    /// Empty polls since its last completion.
    empty: Cell<u32>,
    /// Whether others want its processor.
    sharing: Cell<Sharing>,
}

thread_local! {
    static IDLE: Idle = const { Idle { empty: Cell::new(0), sharing: Cell::new(Sharing::new()) } };
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
    let mut inner = cq.inner.lock();
    // SAFETY: the caller gives `count` writable entries.
    let done = unsafe {
        if wanted == 1 { take_one(&mut inner, &context.qps, wc) } else { take(&mut inner, &context.qps, wanted, wc) }
    };
    drop(inner);
    if done > 0 {
        found();
    } else if wanted > 0 && pause() && context.daemon_is_gone() {
        return -1;
    }
    done as c_int
}

/// This thread has found a completion.
#[inline]
pub fn found() {
    IDLE.with(|idle| idle.empty.set(0));
}

/// This thread has found nothing: yields when that lasts; true when it is time to look whether the daemon lives.
#[inline(never)]
pub fn pause() -> bool {
    IDLE.with(|idle| {
        let so_far = idle.empty.get().wrapping_add(1);
        idle.empty.set(so_far);
        let mut sharing = idle.sharing.get();
        if sharing.is_shared() || (so_far > PATIENCE && so_far.is_multiple_of(YIELD_EVERY)) {
            let before = crate::lock::monotonic();
            crate::lock::yield_now();
            let now = crate::lock::monotonic();
            if sharing.yielded(now, now.since(before)) {
                sharing.sample(crate::lock::switches());
            }
            idle.sharing.set(sharing);
        }
        so_far.is_multiple_of(LOOK)
    })
}

/// Takes the next completion that belongs to a living queue pair; false: none there. It is a copy: its slot in the ring is
/// free before the queue pair learns that it may post again.
#[inline(always)]
pub fn next(ring: &mut CqConsumer, carry: &mut VecDeque<Cqe>, qps: &QpTable, cqe: &mut Cqe) -> bool {
    if carry.is_empty() {
        if !ring.poll(cqe) {
            return false;
        }
        if retire(qps, cqe) {
            return true;
        }
    }
    next_past(ring, carry, qps).map(|found| *cqe = found).is_some()
}

/// As [`next`], where completions were carried over or have lost their queue pair.
#[cold]
fn next_past(ring: &mut CqConsumer, carry: &mut VecDeque<Cqe>, qps: &QpTable) -> Option<Cqe> {
    loop {
        let mut cqe = Cqe::default();
        if let Some(carried) = carry.pop_front() {
            cqe = carried;
        } else if !ring.poll(&mut cqe) {
            return None;
        }
        if retire(qps, &cqe) {
            return Some(cqe);
        }
    }
}

/// As [`take`], for one: what most programs ask for.
///
/// # Safety
/// `wc` is writable for one entry.
#[inline]
unsafe fn take_one(inner: &mut Inner, qps: &QpTable, wc: *mut ibv_wc) -> usize {
    let mut cqe = Cqe::default();
    if !next(&mut inner.ring, &mut inner.carry, qps, &mut cqe) {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { wc.write(wc_of(&cqe)) };
    1
}

/// # Safety
/// `wc` is writable for `wanted` entries.
#[inline]
unsafe fn take(inner: &mut Inner, qps: &QpTable, wanted: usize, wc: *mut ibv_wc) -> usize {
    // SAFETY: the caller's promise.
    let mut done = if inner.carry.is_empty() { 0 } else { unsafe { carried(inner, qps, wanted, wc) } };
    let mut cqe = Cqe::default();
    let mut taken = false;
    // Who is to learn of free send slots, and how many. Not before the completions' own slots are free: another thread may
    // post at once, and the CQ must have room for what comes of it.
    let mut owed: Option<(NonNull<Qp>, u32)> = None;
    while done < wanted && inner.ring.take_next(&mut cqe) {
        taken = true;
        match qps.get(cqe.qp_cookie) {
            Some(qp) if cqe.is_recv == 0 => {
                if owed.is_some_and(|(other, _)| other != qp) {
                    inner.ring.release();
                    pay(owed);
                }
                owed = Some((qp, cqe.sq_consumer));
            }
            None if cqe.qp_cookie != NO_QP => continue,
            _ => {}
        }
        // SAFETY: `done` is below `wanted`.
        unsafe { wc.add(done).write(wc_of(&cqe)) };
        done += 1;
    }
    if taken {
        inner.ring.release();
        pay(owed);
    }
    done
}

/// Tells a queue pair how many of its send slots were ever freed.
#[inline]
fn pay(owed: Option<(NonNull<Qp>, u32)>) {
    if let Some((qp, count)) = owed {
        // SAFETY: found by `take`, whose caller holds the lock of a CQ of this queue pair; destruction takes it before freeing.
        unsafe { qp.as_ref() }.set_retired(count);
    }
}

/// Delivers what had to leave the ring before.
///
/// # Safety
/// As for [`take`].
#[cold]
unsafe fn carried(inner: &mut Inner, qps: &QpTable, wanted: usize, wc: *mut ibv_wc) -> usize {
    let mut done = 0;
    while done < wanted
        && let Some(cqe) = inner.carry.pop_front()
    {
        if retire(qps, &cqe) {
            // SAFETY: `done` is below `wanted`.
            unsafe { wc.add(done).write(wc_of(&cqe)) };
            done += 1;
        }
    }
    done
}

/// Tells the queue pair that its slots are free; the completion's own slot must be free before. False: there is no such queue
/// pair any more. A receive of a queue in an XRC domain names none: its queue pair may be another process's.
#[inline]
pub fn retire(qps: &QpTable, cqe: &Cqe) -> bool {
    let Some(qp) = qps.get(cqe.qp_cookie) else { return cqe.qp_cookie == NO_QP };
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
