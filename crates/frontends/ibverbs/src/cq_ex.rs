//! Extended completion queues: completions are polled one at a time, and a function reads each field.
//!
//! Every CQ of this library has the extended struct, so `ibv_cq_ex_to_cq` and the classic poll work on all of them;
//! `ibv_create_cq_ex` adds the function pointers. From a `start_poll` that found a completion to `end_poll` the calling thread
//! holds the CQ's lock, unless the program promised to use the CQ from one thread only. The completion is copied out of the
//! ring once; `end_poll` frees its slot.
//!
//! Timestamps are CLOCK_MONOTONIC nanoseconds, the device's clock (1 GHz). A wall clock time is the timestamp plus the present
//! difference of the two clocks.

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::context::VerbsContext;
use crate::cq::{VerbsCq, create};
use crate::flush;
use crate::sys::*;
use burst_client::raw::idle::{found as found_some, pause};
use burst_ffi::failed_completion;
use burst_shm::Cqe;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// Fields that completions can have.
const FIELDS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;
/// Creation flags that are accepted. IGNORE_OVERRUN is refused, as the kernel's soft-RoCE refuses it: an overrun fails the queue
/// here, and a program that asks for the flag relies on the opposite.
const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;

/// Nanoseconds per second.
const SECOND: i64 = 1_000_000_000;

/// `ibv_create_cq_ex`.
///
/// # Safety
/// `context` must be open and `init` valid up to the fields that its mask names.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, init: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    boundary::pointer(|| {
        if init.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the fields up to the mask exist always, the later ones when the mask names them.
        unsafe {
            let mask = (*init).comp_mask;
            let flags = if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { (*init).flags } else { 0 };
            let unknown = mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0;
            if unknown || flags & !FLAGS != 0 || (*init).wc_flags & !FIELDS != 0 {
                return Err(EOPNOTSUPP);
            }
            let (cq_context, channel) = ((*init).cq_context, (*init).channel);
            let cq = create(context, (*init).cqe, (*init).comp_vector, cq_context, channel)?.cast::<ibv_cq_ex>();
            let single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
            fill(&mut *cq, single_threaded);
            (*cq.cast::<VerbsCq>()).single_threaded.store(single_threaded, Ordering::Relaxed);
            Ok(cq)
        }
    })
}

/// Sets the function pointers.
fn fill(cq: &mut ibv_cq_ex, single_threaded: bool) {
    if single_threaded {
        cq.start_poll = Some(start_poll::<false>);
        cq.end_poll = Some(end_poll::<false>);
    } else {
        cq.start_poll = Some(start_poll::<true>);
        cq.end_poll = Some(end_poll::<true>);
    }
    cq.next_poll = Some(next_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Takes a completion and sets the two fields that applications read directly. The caller holds the lock.
#[inline(always)]
unsafe fn step(cq: *mut ibv_cq_ex, ours: &VerbsCq, context: &VerbsContext) -> bool {
    // SAFETY: the caller holds the lock, and has no other reference to what it guards.
    let inner = unsafe { ours.inner.held() };
    let found = inner.next(&context.send_slots);
    if found {
        // SAFETY: a live CQ; only the thread that polls touches these fields.
        unsafe {
            (*cq).status = inner.current.status.into();
            (*cq).wr_id = inner.current.wr_id;
        }
        if failed_completion::is_asked() {
            failed_completion::completed(context, inner.current.qpn, inner.current.status.into());
        }
    }
    found
}

/// `ibv_start_poll`: ENOENT when there is no completion; then the program must not call `end_poll`.
unsafe extern "C" fn start_poll<const LOCKED: bool>(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller gives a live CQ of an open context, and NULL or a valid attribute.
    let (ours, context) = unsafe {
        if attr.as_ref().is_some_and(|a| a.comp_mask != 0) {
            return libc::EINVAL;
        }
        let Ok(ours) = VerbsCq::from_ibv(cq.cast()) else { return libc::EINVAL };
        let Ok(context) = ours.context() else { return libc::EIO };
        (ours, context)
    };
    if LOCKED {
        ours.inner.acquire();
    }
    // SAFETY: the lock is held, or the program promised to poll from one thread only.
    let found = unsafe { step(cq, ours, context) };
    if found {
        found_some();
        return 0;
    }
    if LOCKED {
        // SAFETY: as above; the references are gone.
        unsafe { ours.inner.release() };
    }
    // SAFETY: as above. A pass may have brought one.
    if context.turn_until(|| unsafe { start_poll_once::<LOCKED>(cq, ours, context) } == 0) {
        found_some();
        return 0;
    }
    // SAFETY: without the lock, the program promised to poll from one thread only; no other reference lives here.
    let progress =
        || if LOCKED { ours.inner.lock().progress.take() } else { unsafe { ours.inner.held() }.progress.take() };
    if pause(context.in_process_calls().is_none(), progress) && context.daemon_is_gone() {
        flush::flush(context, Some(ours));
        // SAFETY: as above. What was flushed is found now.
        return unsafe { start_poll_once::<LOCKED>(cq, ours, context) };
    }
    libc::ENOENT
}

/// Takes the first completion, if there is one.
///
/// # Safety
/// `cq` must be alive; this thread does not poll it.
#[cold]
unsafe fn start_poll_once<const LOCKED: bool>(cq: *mut ibv_cq_ex, ours: &VerbsCq, context: &VerbsContext) -> c_int {
    if LOCKED {
        ours.inner.acquire();
    }
    // SAFETY: the lock is held, or the program promised to poll from one thread only.
    let found = unsafe { step(cq, ours, context) };
    if LOCKED && !found {
        // SAFETY: taken above; the references are gone.
        unsafe { ours.inner.release() };
    }
    if found { 0 } else { libc::ENOENT }
}

/// `ibv_start_poll` after the end of the daemon: requests that were posted since the last poll are flushed first.
unsafe extern "C" fn start_poll_flushed<const LOCKED: bool>(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: as for `start_poll`.
    unsafe {
        if attr.as_ref().is_some_and(|a| a.comp_mask != 0) {
            return libc::EINVAL;
        }
        let Ok(ours) = VerbsCq::from_ibv(cq.cast()) else { return libc::EINVAL };
        let Ok(context) = ours.context() else { return libc::EIO };
        flush::flush(context, Some(ours));
        start_poll_once::<LOCKED>(cq, ours, context)
    }
}

/// Makes later polls of a CQ flush what was posted since: the daemon has ended.
///
/// # Safety
/// `cq` must be alive.
pub unsafe fn poll_flushed(cq: *mut ibv_cq) {
    let cq = cq.cast::<ibv_cq_ex>();
    // SAFETY: an aligned word of a live struct, which programs only read. A CQ without the extended interface has NULL there.
    unsafe {
        let locked = !(*cq.cast::<VerbsCq>()).single_threaded.load(Ordering::Relaxed);
        if (*cq).start_poll.is_some() {
            let start = if locked { start_poll_flushed::<true> } else { start_poll_flushed::<false> };
            (&raw mut (*cq).start_poll).write_volatile(Some(start));
        }
    }
}

/// `ibv_next_poll`: ENOENT when there is no completion. The program must call `end_poll` in both cases.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller gives a CQ that it is polling: it holds the lock, and `start_poll` has found CQ and context.
    unsafe {
        let ours = &*cq.cast::<VerbsCq>();
        if step(cq, ours, ours.context_found()) { 0 } else { libc::ENOENT }
    }
}

/// `ibv_end_poll`: frees the slots and lets other threads poll.
unsafe extern "C" fn end_poll<const LOCKED: bool>(cq: *mut ibv_cq_ex) {
    if LOCKED {
        // SAFETY: the caller gives a CQ that it is polling, and so holds its lock.
        unsafe { (*cq.cast::<VerbsCq>()).inner.release() };
    }
}

/// The completion being polled.
///
/// # Safety
/// `cq` must be alive and polled by this thread.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Cqe {
    // SAFETY: `ibv_cq_ex` is the first field of a `VerbsCq`; the caller holds its lock.
    unsafe { &(*cq.cast::<VerbsCq>()).inner.held().current }
}

macro_rules! read {
    ($($(#[$doc:meta])* $name:ident -> $type:ty { |$cqe:ident| $value:expr })+) => { $(
        $(#[$doc])*
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller polls this CQ.
            let $cqe = unsafe { current(cq) };
            $value
        }
    )+ };
}

read! {
    read_opcode -> ibv_wc_opcode { |cqe| cqe.opcode.into() }
    read_vendor_err -> u32 { |cqe| cqe.vendor_err }
    read_byte_len -> u32 { |cqe| cqe.byte_len }
    /// Immediate data in network byte order, or the invalidated key in the program's byte order; the flags say which.
    read_imm_data -> __be32 { |cqe| cqe.imm }
    read_qp_num -> u32 { |cqe| cqe.qpn }
    read_src_qp -> u32 { |cqe| cqe.src_qpn }
    read_wc_flags -> c_uint { |cqe| cqe.wc_flags }
    /// RoCE has no local identifiers.
    read_slid -> u32 { |_cqe| 0 }
    read_sl -> u8 { |cqe| cqe.sl }
    read_dlid_path_bits -> u8 { |_cqe| 0 }
    read_completion_ts -> u64 { |cqe| cqe.timestamp_ns }
    read_completion_wallclock_ns -> u64 { |cqe| wall_clock(cqe.timestamp_ns) }
}

/// The time of a clock in nanoseconds.
pub fn clock_ns(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable place; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * SECOND + now.tv_nsec
}

fn wall_clock(monotonic_ns: u64) -> u64 {
    let distance = clock_ns(libc::CLOCK_REALTIME) - clock_ns(libc::CLOCK_MONOTONIC);
    monotonic_ns.wrapping_add_signed(distance)
}

/// `ibv_query_rt_values_ex`: the present time of the device's clock.
///
/// # Safety
/// `context` must be open and `values` valid.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context and a valid struct.
        let values = unsafe {
            VerbsContext::from_ibv(context)?;
            values.as_mut().ok_or(EINVAL)?
        };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(EOPNOTSUPP);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = clock_ns(libc::CLOCK_MONOTONIC);
            // The device's clock has no epoch: `tv_sec` is 0, and `tv_nsec` counts cycles, of 1 ns each.
            (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, now);
        }
        Ok(())
    })
}

/// `ibv_modify_cq`: moderation is accepted without effect, because a worker writes at most one event per armed CQ and pass.
///
/// # Safety
/// `cq` must be alive and `attr` valid.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live CQ and a valid struct.
        let attr = unsafe {
            VerbsCq::from_ibv(cq)?.context()?;
            attr.as_ref().ok_or(EINVAL)?
        };
        check_moderation(attr)
    })
}

fn check_moderation(attr: &ibv_modify_cq_attr) -> Outcome<()> {
    if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
}
