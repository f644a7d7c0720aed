//! Queues, Jetties, segments, imports.

use crate::abi::{
    EAGAIN, EEXIST, EINVAL, ENOMEM, EPERM, FAIL, ObjectId, RJetty, RJfr, SUCCESS, SegCfg, Status, TargetJetty,
    TargetSeg, TokenId, UbVa, UrmaContext, UrmaJetty, UrmaJfce, UrmaJfs, UrmaSeg,
};
use crate::checks::{RC, RM, check_policy, check_remote, check_segment, remote_order, send_order};
use crate::daemon::NewChannel;
use crate::device::OwnedContext;
use crate::host::UrmaHost;
use crate::log::{begin_call, explain_refusal};
use crate::macros::exported;
use crate::node::Inner;
use crate::reports::CLASS_JETTY;
use burst_client::raw::ended_pipe::EventEnd;
use burst_urma::{JettyState, NodeEid, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, UrmaError};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

/// An event channel with its number in [`crate::reports::Reports`].
#[repr(C)]
pub struct OwnedJfce {
    c: UrmaJfce,
    pub number: u64,
    /// Threads that wait for it, and what becomes of it when the daemon has ended.
    pub end: EventEnd<8>,
}

/// A status of the interface for a refusal of the node.
pub const fn status_of(error: UrmaError) -> Status {
    match error {
        UrmaError::NoObject | UrmaError::Value | UrmaError::Unsupported | UrmaError::State => EINVAL,
        UrmaError::Access => EPERM,
        UrmaError::Full => ENOMEM,
        UrmaError::Bound => EEXIST,
        UrmaError::Busy => EAGAIN,
    }
}

pub fn done(result: Result<(), UrmaError>) -> Status {
    result.map_or_else(status_of, |()| SUCCESS)
}

pub fn set_errno(status: Status) {
    // SAFETY: glibc returns the address of this thread's errno.
    unsafe { *libc::__errno_location() = status };
}

/// The host of a context.
///
/// # Safety
/// The context is one of this library's and alive.
pub unsafe fn host_of<'a>(ctx: *mut UrmaContext) -> &'a UrmaHost {
    // SAFETY: contexts of this library begin a `OwnedContext`.
    unsafe { &(*ctx.cast::<OwnedContext>()).host }
}

/// Locks the host of a context and makes an object; null with errno if it is refused.
///
/// # Safety
/// As for [`host_of`].
pub unsafe fn create<T>(
    ctx: *mut UrmaContext,
    make: impl FnOnce(&mut MutexGuard<'_, Inner>) -> Result<T, UrmaError>,
) -> *mut T {
    if ctx.is_null() {
        set_errno(EINVAL);
        return null_mut();
    }
    begin_call();
    // SAFETY: as the caller promises.
    let host = unsafe { host_of(ctx) };
    let made = host.enter().map_or(Err(UrmaError::Access), |mut inner| make(&mut inner));
    match made {
        Ok(object) => {
            // SAFETY: as above; programs do not create objects of one context while they delete it.
            unsafe { (*ctx.cast::<OwnedContext>()).objects.fetch_add(1, Ordering::Relaxed) };
            Box::into_raw(Box::new(object))
        }
        Err(error) => {
            explain_refusal(kind_of::<T>(), error);
            set_errno(status_of(error));
            null_mut()
        }
    }
}

/// What a sentence calls an object of a type.
pub fn kind_of<T>() -> &'static str {
    match std::any::type_name::<T>().rsplit("::").next().unwrap_or_default() {
        "UrmaJfc" => "a JFC",
        "UrmaJfs" => "a JFS",
        "UrmaJfr" => "a JFR",
        "UrmaJetty" => "a Jetty",
        "UrmaJettyGroup" => "a group of Jetties",
        "OwnedJfce" => "a JFCE",
        "TokenId" => "a token id",
        "TargetSeg" => "a segment",
        "TargetJetty" => "an imported Jetty, JFR or group",
        _ => "an object",
    }
}

/// Frees an object whose part in the node is gone.
///
/// # Safety
/// The object is one of [`create`] and of this context.
pub unsafe fn destroy<T>(ctx: *mut UrmaContext, object: *mut T, status: Status) -> Status {
    if status == SUCCESS {
        // SAFETY: as the caller promises.
        unsafe {
            drop(Box::from_raw(object));
            // Pairs with the load of the thread that deletes the context.
            (*ctx.cast::<OwnedContext>()).objects.fetch_sub(1, Ordering::Release);
        }
    }
    status
}

/// One more than the completion queues that use an event channel, as in UMDK's library.
///
/// # Safety
/// The channel is alive for as long as the counter is used.
pub unsafe fn users_of<'a>(jfce: *mut UrmaJfce) -> &'a AtomicU64 {
    // SAFETY: as the caller promises; the library changes the field by this function only.
    unsafe { AtomicU64::from_ptr(&raw mut (*jfce).refs) }
}

/// The segments that are registered with a token id.
///
/// # Safety
/// The token id is alive for as long as the counter is used.
unsafe fn segments_of<'a>(token_id: *mut TokenId) -> &'a AtomicU64 {
    // SAFETY: as the caller promises; the library changes the field by this function only.
    unsafe { AtomicU64::from_ptr(&raw mut (*token_id).refs) }
}

pub fn id_of(ctx: &UrmaContext, id: u32) -> ObjectId {
    ObjectId { eid: ctx.eid, uasid: ctx.uasid, id }
}

/// Token policy in the low three bits of a flag: 0 none.
pub fn token(flag: u32, value: u32) -> Option<u32> {
    (flag & 7 != 0).then_some(value)
}

/// Imports a remote Jetty or JFR.
///
/// # Safety
/// As for [`host_of`]; the token may be null.
pub unsafe fn import(ctx: *mut UrmaContext, remote: &RJetty, value: *const u32) -> *mut TargetJetty {
    // SAFETY: as the caller promises.
    unsafe {
        create(ctx, |inner| {
            check_policy(remote.flag)?;
            check_remote(remote)?;
            let kind = match remote.kind {
                0 => TargetKind::Jfr,
                1 => TargetKind::Jetty,
                2 => TargetKind::Group,
                _ => return Err(UrmaError::Value),
            };
            let shown = if value.is_null() { None } else { token(remote.flag, *value) };
            let jetty = RemoteJetty { eid: NodeEid::new(remote.id.eid.0), id: remote.id.id, kind, token: shown };
            let handle = u64::from(inner.import_jetty(jetty)?);
            Ok(TargetJetty {
                ctx,
                id: remote.id,
                handle,
                trans_mode: remote.trans_mode,
                tpn: 0,
                kind: remote.kind,
                flag: remote.flag,
                policy: remote.policy,
                tp_type: remote.tp_type,
            })
        })
    }
}

exported! {
    fn urma_create_jfce(ctx: *mut UrmaContext) -> *mut UrmaJfce {
        create(ctx, |inner| {
            let NewChannel { fd, number } = inner.open_channel()?;
            Ok(OwnedJfce { c: UrmaJfce { ctx, fd, refs: 1 }, number, end: EventEnd::default() })
        })
        .cast()
    }
    fn urma_delete_jfce(jfce: *mut UrmaJfce) -> Status {
        if jfce.is_null() {
            return EINVAL;
        }
        let (ctx, fd, own) = ((*jfce).ctx, (*jfce).fd, jfce.cast::<OwnedJfce>());
        let Some(mut inner) = host_of(ctx).enter() else { return EPERM };
        if users_of(jfce).load(Ordering::Acquire) > 1 {
            return FAIL;
        }
        inner.close_channel((*own).number);
        drop(inner);
        libc::close(fd);
        destroy(ctx, own, SUCCESS)
    }
    fn urma_modify_jetty(jetty: *mut UrmaJetty, attr: *const [u32; 3]) -> Status {
        if jetty.is_null() || attr.is_null() { EINVAL } else { modify(host_of((*jetty).ctx), (*jetty).handle as u32, (*attr)[0] >> 1, (*attr)[2]) }
    }
    fn urma_modify_jfs(jfs: *mut UrmaJfs, attr: *const [u32; 2]) -> Status {
        if jfs.is_null() || attr.is_null() { EINVAL } else { modify(host_of((*jfs).ctx), (*jfs).handle as u32, (*attr)[0], (*attr)[1]) }
    }
    fn urma_import_jetty(ctx: *mut UrmaContext, remote: *const RJetty, token_value: *const u32) -> *mut TargetJetty {
        if remote.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        import(ctx, &*remote, token_value)
    }
    fn urma_import_jfr(ctx: *mut UrmaContext, remote: *const RJfr, token_value: *const u32) -> *mut TargetJetty {
        if remote.is_null() || (*remote).flag & 7 != 0 && token_value.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        let r = &*remote;
        let remote = RJetty { id: r.id, trans_mode: r.trans_mode, policy: 0, kind: 0, flag: r.flag, tp_type: r.tp_type };
        import(ctx, &remote, token_value)
    }
    fn urma_unimport_jetty(target: *mut TargetJetty) -> Status {
        if target.is_null() {
            return EINVAL;
        }
        let (ctx, handle) = ((*target).ctx, (*target).handle as u32);
        let Some(mut inner) = host_of(ctx).enter() else { return EPERM };
        let status = done(inner.unimport_jetty(handle));
        if status == SUCCESS {
            // The node keeps the binding until the Jetty is unbound or deleted; the pointer would dangle.
            inner.reports.objects_of(CLASS_JETTY).map(|jetty| jetty as *mut UrmaJetty).filter(|jetty| (**jetty).remote == target).for_each(|jetty| (*jetty).remote = null_mut());
        }
        drop(inner);
        destroy(ctx, target, status)
    }
    fn urma_unimport_jfr(target: *mut TargetJetty) -> Status { urma_unimport_jetty(target) }
    fn urma_bind_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status {
        if jetty.is_null() || target.is_null() {
            return EINVAL;
        }
        let (cfg, t) = (&(*jetty).cfg.jfs, &*target);
        if cfg.trans_mode != RC || t.trans_mode != RC || send_order(cfg) != remote_order(t.trans_mode, t.flag) {
            return EPERM;
        }
        let Some(mut inner) = host_of((*jetty).ctx).enter() else { return EPERM };
        let status = done(inner.bind_jetty((*jetty).handle as u32, t.handle as u32));
        if status == SUCCESS {
            (*jetty).remote = target;
        }
        status
    }
    fn urma_unbind_jetty(jetty: *mut UrmaJetty) -> Status {
        if jetty.is_null() {
            return EINVAL;
        }
        if (*jetty).cfg.jfs.trans_mode != RC {
            return EPERM;
        }
        let Some(mut inner) = host_of((*jetty).ctx).enter() else { return EPERM };
        let status = done(inner.unbind_jetty((*jetty).handle as u32));
        if status == SUCCESS {
            (*jetty).remote = null_mut();
        }
        status
    }
    fn urma_advise_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status {
        if jetty.is_null() || target.is_null() || (*jetty).cfg.jfs.trans_mode != RM || (*target).trans_mode != RM { EINVAL } else { SUCCESS }
    }
    fn urma_unadvise_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status { if jetty.is_null() || target.is_null() { EINVAL } else { SUCCESS } }
    fn urma_advise_jfr(jfs: *mut UrmaJfs, target: *mut TargetJetty) -> Status {
        if jfs.is_null() || target.is_null() || (*jfs).cfg.trans_mode != RM || (*target).trans_mode != RM { EINVAL } else { SUCCESS }
    }
    /// Nothing to prepare: a device of type UB is ready, and the function is not called, as in UMDK's library.
    fn urma_advise_jfr_async(jfs: *mut UrmaJfs, target: *mut TargetJetty, function: *const c_void, argument: *const c_void) -> Status {
        if jfs.is_null() || target.is_null() || function.is_null() || argument.is_null() { EINVAL } else { SUCCESS }
    }
    fn urma_unadvise_jfr(jfs: *mut UrmaJfs, target: *mut TargetJetty) -> Status { if jfs.is_null() || target.is_null() { EINVAL } else { SUCCESS } }
    fn urma_get_rjetty(jetty: *mut UrmaJetty, remote: *mut *mut RJetty, len: *mut u32) -> Status {
        if jetty.is_null() || remote.is_null() || len.is_null() {
            return EINVAL;
        }
        let policy = if (*jetty).cfg.jfr.is_null() { 0 } else { (*(*jetty).cfg.jfr).cfg.flag & 7 };
        let copy = libc::calloc(1, size_of::<RJetty>()).cast::<RJetty>();
        if copy.is_null() {
            return ENOMEM;
        }
        let order = send_order(&(*jetty).cfg.jfs);
        *copy = RJetty { id: (*jetty).id, trans_mode: (*jetty).cfg.jfs.trans_mode, policy: 0, kind: 1, flag: policy | order << 3, tp_type: 0 };
        (*remote, *len) = (copy, size_of::<RJetty>() as u32);
        SUCCESS
    }
    fn urma_put_rjetty(remote: *mut RJetty) { libc::free(remote.cast()) }
    fn urma_get_tpn(jetty: *mut UrmaJetty) -> c_int { if jetty.is_null() { -1 } else { 0 } }
    fn urma_alloc_token_id(ctx: *mut UrmaContext) -> *mut TokenId {
        create(ctx, |_| Ok(TokenId { ctx, token_id: 0, handle: 0, refs: 0, flag: 0 }))
    }
    /// One segment a token id.
    fn urma_alloc_token_id_ex(ctx: *mut UrmaContext, flag: u32) -> *mut TokenId {
        if flag & 1 != 0 {
            set_errno(EINVAL);
            return null_mut();
        }
        urma_alloc_token_id(ctx)
    }
    fn urma_free_token_id(token_id: *mut TokenId) -> Status {
        if token_id.is_null() || segments_of(token_id).load(Ordering::Acquire) > 0 {
            return EINVAL;
        }
        destroy((*token_id).ctx, token_id, SUCCESS)
    }
    fn urma_register_seg(ctx: *mut UrmaContext, cfg: *const SegCfg) -> *mut TargetSeg {
        if cfg.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        create(ctx, |inner| {
            let c = &*cfg;
            check_segment(c)?;
            let access = (c.flag >> 5 & 0x3f) as u8;
            let config = SegmentConfig { addr: c.va, len: c.len, token: token(c.flag, c.token), access };
            let token_id = inner.register_segment(config)?;
            if !c.token_id.is_null() {
                (*c.token_id).token_id = token_id;
                segments_of(c.token_id).fetch_add(1, Ordering::Relaxed);
            }
            let ubva = UbVa { eid: (*ctx).eid.0, uasid: (*ctx).uasid, va: c.va };
            // The bits for policy, cacheability and access lie at the same places in both flags.
            let seg = UrmaSeg { ubva, len: c.len, attr: c.flag & 0x7ff, token_id };
            Ok(TargetSeg { seg, user_ctx: c.user_ctx, mva: 0, ctx, token_id: c.token_id, handle: u64::from(token_id) })
        })
    }
    fn urma_unregister_seg(seg: *mut TargetSeg) -> Status {
        if seg.is_null() {
            return EINVAL;
        }
        let (ctx, token_id) = ((*seg).ctx, (*seg).token_id);
        let Some(mut inner) = host_of(ctx).enter() else { return EPERM };
        let status = done(inner.unregister_segment((*seg).handle as u32));
        drop(inner);
        if status == SUCCESS && !token_id.is_null() {
            segments_of(token_id).fetch_sub(1, Ordering::Release);
        }
        destroy(ctx, seg, status)
    }
    fn urma_import_seg(ctx: *mut UrmaContext, seg: *const UrmaSeg, value: *const u32, _addr: u64, _flag: u32) -> *mut TargetSeg {
        if seg.is_null() || { (*seg).attr } & 7 != 0 && value.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        create(ctx, |inner| {
            let s = *seg;
            check_policy(s.attr)?;
            let shown = if value.is_null() { None } else { token(s.attr, *value) };
            let remote = RemoteSegment { eid: NodeEid::new(s.ubva.eid), token_id: s.token_id, addr: s.ubva.va, len: s.len, token: shown };
            let handle = u64::from(inner.import_segment(remote)?);
            Ok(TargetSeg { seg: s, user_ctx: 0, mva: s.ubva.va, ctx, token_id: null_mut(), handle })
        })
    }
    fn urma_unimport_seg(seg: *mut TargetSeg) -> Status {
        if seg.is_null() {
            return EINVAL;
        }
        let ctx = (*seg).ctx;
        let Some(mut inner) = host_of(ctx).enter() else { return EPERM };
        let status = done(inner.unimport_segment((*seg).handle as u32));
        drop(inner);
        destroy(ctx, seg, status)
    }
    fn urma_get_seg_ctx(tseg: *mut TargetSeg, seg: *mut *mut UrmaSeg, len: *mut u32) -> Status {
        if tseg.is_null() || seg.is_null() || len.is_null() {
            return EINVAL;
        }
        let copy = libc::calloc(1, size_of::<UrmaSeg>()).cast::<UrmaSeg>();
        if copy.is_null() {
            return ENOMEM;
        }
        *copy = (*tseg).seg;
        (*seg, *len) = (copy, size_of::<UrmaSeg>() as u32);
        SUCCESS
    }
    fn urma_put_seg_ctx(seg: *mut UrmaSeg) { libc::free(seg.cast()) }
}

fn modify(host: &UrmaHost, id: u32, mask: u32, state: u32) -> Status {
    let state = match state {
        0 => JettyState::Reset,
        1 => JettyState::Ready,
        2 => JettyState::Suspended,
        3 => JettyState::Error,
        _ => return EINVAL,
    };
    if mask & 1 == 0 {
        return FAIL;
    }
    let Some(mut inner) = host.enter() else { return EPERM };
    let result = inner.modify_jetty(host.now(), id, state);
    host.flush(&mut inner);
    done(result)
}
