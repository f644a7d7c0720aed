//! Work requests and completions.

use crate::abi::{
    EINVAL, EPERM, Eid, FAIL, ObjectId, RwWr, SUCCESS, SendWr, Status, TargetJetty, TargetSeg, UrmaContext, UrmaCr,
    UrmaJetty, UrmaJfc, UrmaJfce, UrmaJfr, UrmaJfrWr, UrmaJfs, UrmaJfsWr, UrmaSg, UrmaSge, WrBody,
};
use crate::host::UrmaHost;
use crate::macros::exported;
use crate::node::Inner;
use crate::objects::{OwnedJfce, host_of, status_of};
use crate::reports::{CLASS_JETTY, CLASS_JFC, CLASS_JFR};
use burst_client::raw::idle::{SendProgress, asks_progress, found, pause};
use burst_ubwire::{OrderTag, TaOpcode};
use burst_urma::{CompletionRecord, JfrWr, JfsWr, LocalRange, TargetKind, URMA_INLINE_MAX, UrmaError, WrData};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Flag bits of a work request.
const COMPLETION_ORDER: u32 = 1 << 2;
const FENCE: u32 = 1 << 3;
const COMPLETE: u32 = 1 << 5;
const INLINE: u32 = 1 << 6;

pub const fn opcode_of(number: u32) -> Option<TaOpcode> {
    Some(match number {
        0x00 => TaOpcode::Write,
        0x01 => TaOpcode::WriteImm,
        0x02 => TaOpcode::WriteNotify,
        0x10 => TaOpcode::Read,
        0x20 => TaOpcode::Cas,
        0x21 => TaOpcode::Swap,
        0x22 => TaOpcode::FetchAdd,
        0x23 => TaOpcode::FetchSub,
        0x24 => TaOpcode::FetchAnd,
        0x25 => TaOpcode::FetchOr,
        0x26 => TaOpcode::FetchXor,
        0x40 => TaOpcode::Send,
        0x41 => TaOpcode::SendImm,
        _ => return None,
    })
}

/// Opcode of a receive completion.
const fn receive_opcode(opcode: TaOpcode) -> u32 {
    match opcode {
        TaOpcode::SendImm => 1,
        TaOpcode::WriteImm | TaOpcode::WriteNotify => 3,
        _ => 0,
    }
}

/// The only entry of a list; an empty list is an entry without bytes.
///
/// # Safety
/// The list has as many entries as it says.
unsafe fn only(sg: &UrmaSg) -> Result<UrmaSge, UrmaError> {
    match sg.num {
        0 => Ok(UrmaSge { addr: 0, len: 0, tseg: null_mut(), user_tseg: null_mut() }),
        // SAFETY: as the caller promises.
        1 if !sg.sge.is_null() => Ok(unsafe { *sg.sge }),
        _ => Err(UrmaError::Unsupported),
    }
}

/// The first entry of a list of remote places; further ones are ignored.
///
/// # Safety
/// As for [`only`].
unsafe fn first(sg: &UrmaSg) -> Result<UrmaSge, UrmaError> {
    // SAFETY: as the caller promises.
    unsafe { only(&UrmaSg { sge: sg.sge, num: sg.num.min(1) }) }
}

/// # Safety
/// The entry's segment is alive, and its memory for inline data.
unsafe fn local(sge: &UrmaSge, flag: u32) -> Result<WrData, UrmaError> {
    if sge.len == 0 && sge.tseg.is_null() {
        return WrData::inline(&[]).ok_or(UrmaError::Value);
    }
    if flag & INLINE != 0 {
        if sge.addr == 0 || sge.len as usize > URMA_INLINE_MAX {
            return Err(UrmaError::Value);
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.len as usize) };
        return WrData::inline(bytes).ok_or(UrmaError::Value);
    }
    if sge.tseg.is_null() {
        return Err(UrmaError::Access);
    }
    // SAFETY: as the caller promises.
    let token_id = unsafe { (*sge.tseg).handle as u32 };
    Ok(WrData::Local(LocalRange { token_id, addr: sge.addr, len: sge.len }))
}

/// Where the notification of a WRITE with notify is written: the second entry, if there are two.
///
/// # Safety
/// The list's entries and their segments are alive.
unsafe fn notified(list: &UrmaSg) -> Result<Option<(u32, u64)>, UrmaError> {
    if list.num < 2 || list.sge.is_null() {
        return Ok(None);
    }
    // SAFETY: there are two entries; as the caller promises.
    let second = unsafe { *list.sge.add(1) };
    if second.tseg.is_null() {
        return Err(UrmaError::Unsupported);
    }
    // SAFETY: as the caller promises.
    Ok(Some((unsafe { (*second.tseg).handle } as u32, second.addr)))
}

/// The local place of a request, and the remote one if it has one.
///
/// # Safety
/// What the work request points to is alive, and it has this opcode.
unsafe fn places(opcode: TaOpcode, wr: &UrmaJfsWr) -> Result<(UrmaSge, Option<UrmaSge>), UrmaError> {
    // SAFETY: the opcode says which member of the union the program has filled; pointers as the caller promises.
    unsafe {
        if opcode.is_atomic() {
            let body = wr.body.atomic;
            return match body.src.is_null() || body.dst.is_null() {
                true => Err(UrmaError::Value),
                false => Ok((*body.src, Some(*body.dst))),
            };
        }
        let rw = &wr.body.rw;
        match opcode {
            TaOpcode::Read => Ok((only(&rw.dst)?, Some(first(&rw.src)?))),
            _ if opcode.has_memory() => Ok((only(&rw.src)?, Some(first(&rw.dst)?))),
            _ => Ok((only(&wr.body.send.src)?, None)),
        }
    }
}

/// # Safety
/// What the work request points to is alive.
unsafe fn translate(wr: &UrmaJfsWr) -> Result<JfsWr, UrmaError> {
    let opcode = opcode_of(wr.opcode).ok_or(UrmaError::Unsupported)?;
    // SAFETY: the opcode says which member of the union the program has filled; pointers as the caller promises.
    unsafe {
        let (near, far) = places(opcode, wr)?;
        let answers = opcode.is_atomic() || opcode == TaOpcode::Read;
        let flag = if answers { 0 } else { wr.flag };
        let mut out = JfsWr::new(opcode, local(&near, flag)?, wr.user_ctx);
        if !answers {
            out.hint = if opcode.has_memory() { wr.body.rw.target_hint } else { wr.body.send.target_hint };
        }
        if opcode == TaOpcode::WriteNotify {
            out.notify = notified(&wr.body.rw.dst)?;
        }
        out.target = (!wr.tjetty.is_null()).then(|| (*wr.tjetty).handle as u32);
        if let Some(far) = far {
            if far.tseg.is_null() {
                return Err(UrmaError::Unsupported);
            }
            (out.segment, out.remote_addr) = (Some((*far.tseg).handle as u32), far.addr);
        }
        if opcode.is_atomic() {
            (out.operand, out.swap) = (wr.body.atomic.first, wr.body.atomic.swap);
        } else if opcode.has_immediate() {
            out.immediate = if opcode.has_memory() { wr.body.rw.notify_data } else { wr.body.send.imm_data };
        }
        out.order = [OrderTag::None, OrderTag::Relaxed, OrderTag::Strong, OrderTag::Strong][(wr.flag & 3) as usize];
        (out.completion_order, out.fence) = (wr.flag & COMPLETION_ORDER != 0, wr.flag & FENCE != 0);
        out.complete = wr.flag & COMPLETE != 0;
        Ok(out)
    }
}

/// Posts a list of work requests; on a refusal `bad` points to the first one that was not posted.
///
/// # Safety
/// The list and what it points to is alive; `bad` is writable.
unsafe fn post_list(host: &UrmaHost, jetty: u32, mut wr: *mut UrmaJfsWr, bad: *mut *mut UrmaJfsWr) -> Status {
    let Some(mut inner) = host.enter() else { return EPERM };
    while !wr.is_null() {
        // SAFETY: as the caller promises.
        let result = unsafe { translate(&*wr) }.and_then(|request| inner.post_send(host.now(), jetty, &request));
        if let Err(error) = result {
            // SAFETY: as the caller promises.
            unsafe { *bad = wr };
            host.flush(&mut inner);
            return status_of(error);
        }
        // SAFETY: as the caller promises.
        wr = unsafe { (*wr).next };
    }
    host.flush(&mut inner);
    SUCCESS
}

/// # Safety
/// As for [`post_list`].
unsafe fn post_receives(host: &UrmaHost, jfr: u32, mut wr: *mut UrmaJfrWr, bad: *mut *mut UrmaJfrWr) -> Status {
    let Some(mut inner) = host.enter() else { return EPERM };
    while !wr.is_null() {
        // SAFETY: as the caller promises.
        let result = unsafe {
            only(&(*wr).src).and_then(|sge| local(&sge, 0)).and_then(|data| match data {
                WrData::Local(range) => inner.post_recv(jfr, JfrWr { range, user_ctx: (*wr).user_ctx }),
                WrData::Inline { .. } => Err(UrmaError::Value),
            })
        };
        if let Err(error) = result {
            // SAFETY: as the caller promises.
            unsafe { *bad = wr };
            inner.show_receives();
            return status_of(error);
        }
        // SAFETY: as the caller promises.
        wr = unsafe { (*wr).next };
    }
    inner.show_receives();
    SUCCESS
}

fn record(inner: &mut Inner, cr: &CompletionRecord) -> UrmaCr {
    // JFRs and Jetties are counted from the same number.
    let class = match cr.local_kind {
        TargetKind::Jfr => CLASS_JFR,
        TargetKind::Jetty | TargetKind::Group => inner.reports.sender_class(cr.local_id),
    };
    let status = cr.status as u32;
    let flag = u8::from(cr.is_receive)
        | u8::from(class == CLASS_JETTY) << 1
        | u8::from(cr.status == burst_urma::CrStatus::SuspendDone) << 2
        | u8::from(cr.status == burst_urma::CrStatus::FlushErrDone) << 3;
    let (eid, id) = cr.remote.map_or(([0; 16], 0), |(peer, id)| (peer.octets(), id));
    let remote = ObjectId { eid: Eid(eid), uasid: 0, id };
    UrmaCr {
        status,
        user_ctx: cr.user_ctx,
        opcode: receive_opcode(cr.opcode),
        flag,
        len: cr.len,
        local_id: cr.local_id,
        remote,
        imm_data: cr.immediate,
        tpn: 0,
        user_data: inner.reports.pointer_of(class, cr.local_id) as usize,
    }
}

/// A work request of the flat functions.
fn single(opcode: u32, flag: u32, tjetty: *mut TargetJetty, user_ctx: u64, body: WrBody) -> UrmaJfsWr {
    UrmaJfsWr { opcode, flag, tjetty, user_ctx, body, next: null_mut() }
}

fn entry(addr: u64, len: u32, tseg: *mut TargetSeg) -> UrmaSge {
    UrmaSge { addr, len, tseg, user_tseg: null_mut() }
}

exported! {
    fn urma_post_jfs_wr(jfs: *mut UrmaJfs, wr: *mut UrmaJfsWr, bad: *mut *mut UrmaJfsWr) -> Status {
        if jfs.is_null() || wr.is_null() || bad.is_null() { EINVAL } else { post_list(host_of((*jfs).ctx), (*jfs).handle as u32, wr, bad) }
    }
    fn urma_post_jetty_send_wr(jetty: *mut UrmaJetty, wr: *mut UrmaJfsWr, bad: *mut *mut UrmaJfsWr) -> Status {
        if jetty.is_null() || wr.is_null() || bad.is_null() { EINVAL } else { post_list(host_of((*jetty).ctx), (*jetty).handle as u32, wr, bad) }
    }
    fn urma_post_jfr_wr(jfr: *mut UrmaJfr, wr: *mut UrmaJfrWr, bad: *mut *mut UrmaJfrWr) -> Status {
        if jfr.is_null() || wr.is_null() || bad.is_null() { EINVAL } else { post_receives(host_of((*jfr).ctx), (*jfr).handle as u32, wr, bad) }
    }
    fn urma_post_jetty_recv_wr(jetty: *mut UrmaJetty, wr: *mut UrmaJfrWr, bad: *mut *mut UrmaJfrWr) -> Status {
        if jetty.is_null() || wr.is_null() || bad.is_null() || (*jetty).cfg.jfr.is_null() {
            return EINVAL;
        }
        post_receives(host_of((*jetty).ctx), (*(*jetty).cfg.jfr).handle as u32, wr, bad)
    }
    fn urma_write(jfs: *mut UrmaJfs, target: *mut TargetJetty, dst_seg: *mut TargetSeg, src_seg: *mut TargetSeg, dst: u64, src: u64, len: u32, flag: u32, user_ctx: u64) -> Status {
        // Data may be inline: then there is no segment.
        if target.is_null() || dst_seg.is_null() {
            return EINVAL;
        }
        let (mut near, mut far, mut bad) = (entry(src, len, src_seg), entry(dst, len, dst_seg), null_mut());
        let rw = RwWr { src: UrmaSg { sge: &raw mut near, num: 1 }, dst: UrmaSg { sge: &raw mut far, num: 1 }, target_hint: 0, notify_data: 0 };
        let mut wr = single(0, flag, target, user_ctx, WrBody { rw });
        urma_post_jfs_wr(jfs, &raw mut wr, &raw mut bad)
    }
    fn urma_read(jfs: *mut UrmaJfs, target: *mut TargetJetty, dst_seg: *mut TargetSeg, src_seg: *mut TargetSeg, dst: u64, src: u64, len: u32, flag: u32, user_ctx: u64) -> Status {
        if target.is_null() || dst_seg.is_null() || src_seg.is_null() {
            return EINVAL;
        }
        let (mut near, mut far, mut bad) = (entry(dst, len, dst_seg), entry(src, len, src_seg), null_mut());
        let rw = RwWr { src: UrmaSg { sge: &raw mut far, num: 1 }, dst: UrmaSg { sge: &raw mut near, num: 1 }, target_hint: 0, notify_data: 0 };
        let mut wr = single(0x10, flag, target, user_ctx, WrBody { rw });
        urma_post_jfs_wr(jfs, &raw mut wr, &raw mut bad)
    }
    fn urma_send(jfs: *mut UrmaJfs, target: *mut TargetJetty, src_seg: *mut TargetSeg, src: u64, len: u32, flag: u32, user_ctx: u64) -> Status {
        if target.is_null() || flag & INLINE == 0 && src_seg.is_null() {
            return EINVAL;
        }
        let (mut near, mut bad) = (entry(src, len, src_seg), null_mut());
        let send = SendWr { src: UrmaSg { sge: &raw mut near, num: 1 }, target_hint: 0, imm_data: 0, tseg: null_mut() };
        let mut wr = single(0x40, flag, target, user_ctx, WrBody { send });
        urma_post_jfs_wr(jfs, &raw mut wr, &raw mut bad)
    }
    fn urma_recv(jfr: *mut UrmaJfr, seg: *mut TargetSeg, buf: u64, len: u32, user_ctx: u64) -> Status {
        if seg.is_null() {
            return EINVAL;
        }
        if buf == 0 {
            return FAIL;
        }
        let (mut near, mut bad) = (entry(buf, len, seg), null_mut());
        let mut wr = UrmaJfrWr { src: UrmaSg { sge: &raw mut near, num: 1 }, user_ctx, next: null_mut() };
        urma_post_jfr_wr(jfr, &raw mut wr, &raw mut bad)
    }
    fn urma_poll_jfc(jfc: *mut UrmaJfc, count: c_int, crs: *mut UrmaCr) -> c_int {
        if jfc.is_null() || crs.is_null() || count < 0 {
            return -1;
        }
        let (ctx, handle) = ((*jfc).ctx, (*jfc).handle as u32);
        let host = host_of(ctx);
        if !host.is_ours() {
            return -1;
        }
        let Some(mut inner) = host.lock_for_poll() else {
            pause(false, SendProgress::default);
            return 0;
        };
        if !inner.has_completions(handle) {
            host.turn(&mut inner);
        }
        for i in 0..count {
            let Some(cr) = inner.poll_jfc(handle) else {
                if i > 0 {
                    found();
                    return i;
                }
                let is_daemons = inner.is_daemons();
                let progress = if asks_progress() { inner.progress() } else { SendProgress::default() };
                drop(inner);
                // A program that only polls has no other way to learn that the daemon has ended.
                let is_check_due = pause(is_daemons, || progress);
                return if is_check_due && is_daemons && host.lock().has_ended() { -1 } else { 0 };
            };
            crs.add(i as usize).write(record(&mut inner, &cr));
        }
        found();
        count
    }
    fn urma_rearm_jfc(jfc: *mut UrmaJfc, _solicited_only: bool) -> Status {
        if jfc.is_null() || !(*jfc).opt.is_active || (*jfc).cfg.jfce.is_null() {
            return EINVAL;
        }
        let host = host_of((*jfc).ctx);
        let Some(mut inner) = host.enter() else { return EPERM };
        host.arm(&mut inner, (*jfc).handle as u32, (*(*jfc).cfg.jfce.cast::<OwnedJfce>()).number);
        SUCCESS
    }
    fn urma_wait_jfc(jfce: *mut UrmaJfce, count: u32, timeout: c_int, jfcs: *mut *mut UrmaJfc) -> c_int {
        if jfce.is_null() || jfcs.is_null() || count == 0 {
            return -1;
        }
        let (fd, host, own) = ((*jfce).fd, host_of((*jfce).ctx), &*jfce.cast::<OwnedJfce>());
        let end = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let left = end.map_or(-1, |end| end.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000) as c_int);
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // Otherwise the daemon has ended.
            if !own.end.enter() {
                return -1;
            }
            let ready = libc::poll(&raw mut poll, 1, left);
            own.end.leave();
            if ready <= 0 {
                return ready;
            }
            let Some(mut inner) = host.enter() else { return -1 };
            let mut found = 0;
            while found < count {
                let Some(queue) = inner.next_queue(own.number) else { break };
                *jfcs.add(found as usize) = inner.reports.pointer_of(CLASS_JFC, queue) as *mut UrmaJfc;
                found += 1;
            }
            // Another thread may have been faster.
            if found > 0 {
                return found as c_int;
            }
            // The end of the daemon is an event of its pipe, until it is seen here.
            if inner.has_ended() {
                own.end.rest(fd);
                return -1;
            }
        }
    }
    fn urma_ack_jfc(_jfcs: *mut *mut UrmaJfc, _events: *mut u32, _count: u32) {}
    fn urma_flush_jetty(jetty: *mut UrmaJetty, count: c_int, crs: *mut UrmaCr) -> c_int {
        if jetty.is_null() || crs.is_null() || count <= 0 { -EINVAL } else { flush((*jetty).ctx, (*jetty).handle as u32, count, crs) }
    }
    fn urma_flush_jfs(jfs: *mut UrmaJfs, count: c_int, crs: *mut UrmaCr) -> c_int {
        if jfs.is_null() || crs.is_null() || count <= 0 { -EINVAL } else { flush((*jfs).ctx, (*jfs).handle as u32, count, crs) }
    }
}

/// # Safety
/// There is room for `count` records.
unsafe fn flush(ctx: *mut UrmaContext, jetty: u32, count: c_int, crs: *mut UrmaCr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(mut inner) = host_of(ctx).enter() else { return -EPERM };
        let flushed = inner.flush_jetty(jetty, count as usize);
        for (i, cr) in flushed.iter().enumerate() {
            crs.add(i).write(record(&mut inner, cr));
        }
        flushed.len() as c_int
    }
}
