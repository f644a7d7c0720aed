//! Queues, Jetties, segments, imports.

use crate::abi::{
    EAGAIN, EEXIST, EINVAL, ENOMEM, EPERM, FAIL, JettyCfg, JfcCfg, JfrCfg, JfsCfg, ObjectId, RJetty, RJfr, SUCCESS,
    SegCfg, Status, TargetJetty, TargetSeg, TokenId, UbVa, UrmaContext, UrmaJetty, UrmaJfc, UrmaJfce, UrmaJfr, UrmaJfs,
    UrmaSeg,
};
use crate::device::{DEPTH_MAX, OwnedContext, address_of, explain};
use crate::host::{ChannelNews, Inner, UrmaHost, cna_of};
use crate::macros::exported;
use burst_ubwire::ServiceMode;
use burst_urma::{
    JettyConfig, JettyState, JfrConfig, JfrState, RemoteJetty, RemoteSegment, SegmentConfig, TransMode, UrmaError,
};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::MutexGuard;

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

fn set_errno(status: Status) {
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
unsafe fn create<T>(
    ctx: *mut UrmaContext,
    make: impl FnOnce(&mut MutexGuard<'_, Inner>) -> Result<T, UrmaError>,
) -> *mut T {
    if ctx.is_null() {
        set_errno(EINVAL);
        return null_mut();
    }
    // SAFETY: as the caller promises.
    let host = unsafe { host_of(ctx) };
    match make(&mut host.lock()) {
        Ok(object) => {
            // SAFETY: as above; programs do not create objects of one context while they delete it.
            unsafe { (*ctx.cast::<OwnedContext>()).objects += 1 };
            Box::into_raw(Box::new(object))
        }
        Err(error) => {
            explain(&format!("an object was refused: {error:?}"));
            set_errno(status_of(error));
            null_mut()
        }
    }
}

/// Frees an object whose part in the node is gone.
///
/// # Safety
/// The object is one of [`create`] and of this context.
unsafe fn destroy<T>(ctx: *mut UrmaContext, object: *mut T, status: Status) -> Status {
    if status == SUCCESS {
        // SAFETY: as the caller promises.
        unsafe {
            (*ctx.cast::<OwnedContext>()).objects -= 1;
            drop(Box::from_raw(object));
        }
    }
    status
}

fn id_of(ctx: &UrmaContext, id: u32) -> ObjectId {
    ObjectId { eid: ctx.eid, uasid: ctx.uasid, id }
}

/// Token policy in the low three bits of a flag: 0 none.
fn token(flag: u32, value: u32) -> Option<u32> {
    (flag & 7 != 0).then_some(value)
}

/// Mode and order of a Jetty; DEF is the mode's default.
fn mode_of(cfg: &JfsCfg) -> Result<(TransMode, ServiceMode), UrmaError> {
    let order = cfg.flag >> 3 & 0xff;
    match (cfg.trans_mode, order) {
        (1, 0 | 2) => Ok((TransMode::Rm, ServiceMode::Roi)),
        (1, 1) => Ok((TransMode::Rm, ServiceMode::Rot)),
        (1, 3) => Ok((TransMode::Rm, ServiceMode::Rol)),
        (2, 0 | 3) => Ok((TransMode::Rc, ServiceMode::Rol)),
        (2, 1) => Ok((TransMode::Rc, ServiceMode::Rot)),
        (2, 2) => Ok((TransMode::Rc, ServiceMode::Roi)),
        (4, 0 | 4) => Ok((TransMode::Um, ServiceMode::Uno)),
        _ => Err(UrmaError::Unsupported),
    }
}

/// # Safety
/// The configuration's JFC is alive, `jfr` too if it is not null.
unsafe fn jetty_config(cfg: &JfsCfg, jfr: *mut UrmaJfr) -> Result<JettyConfig, UrmaError> {
    let (mode, service) = mode_of(cfg)?;
    if cfg.jfc.is_null() || cfg.depth == 0 || cfg.depth > DEPTH_MAX {
        return Err(UrmaError::Value);
    }
    // SAFETY: as the caller promises.
    let (jfc, jfr, shown) = unsafe {
        let jfr = (!jfr.is_null()).then(|| &*jfr);
        let shown = jfr.and_then(|jfr| token(jfr.cfg.flag, jfr.cfg.token));
        ((*cfg.jfc).handle as u32, jfr.map(|jfr| jfr.handle as u32), shown)
    };
    Ok(JettyConfig {
        mode,
        service,
        depth: cfg.depth as u16,
        token: shown,
        error_suspend: cfg.flag & 2 != 0,
        outorder_comp: cfg.flag & 4 != 0,
        rnr_retry: cfg.rnr_retry.min(7),
        ..JettyConfig::new(jfc, jfr)
    })
}

/// Imports a remote Jetty or JFR.
///
/// # Safety
/// As for [`host_of`]; the token may be null.
unsafe fn import(ctx: *mut UrmaContext, remote: &RJetty, value: *const u32) -> *mut TargetJetty {
    // SAFETY: as the caller promises.
    unsafe {
        create(ctx, |inner| {
            let address = address_of(&remote.id.eid.0);
            if remote.kind > 1 {
                return Err(UrmaError::Unsupported);
            }
            if !host_of(ctx).learn(inner, address) {
                explain(&format!("{address} ends like the address of another peer: both have the same CNA"));
                return Err(UrmaError::Bound);
            }
            let shown = if value.is_null() { None } else { token(remote.flag, *value) };
            let jetty = RemoteJetty { cna: cna_of(address), id: remote.id.id, is_jfr: remote.kind == 0, token: shown };
            let handle = u64::from(inner.node.import_jetty(jetty)?);
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
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(UrmaError::Full);
            }
            inner.reports.channels.insert(fd as usize, ChannelNews { fd, ..ChannelNews::default() });
            Ok(UrmaJfce { ctx, fd, refs: 1 })
        })
    }
    fn urma_delete_jfce(jfce: *mut UrmaJfce) -> Status {
        if jfce.is_null() {
            return EINVAL;
        }
        let (ctx, fd) = ((*jfce).ctx, (*jfce).fd);
        host_of(ctx).lock().reports.channels.remove(&(fd as usize));
        libc::close(fd);
        destroy(ctx, jfce, SUCCESS)
    }
    fn urma_create_jfc(ctx: *mut UrmaContext, cfg: *mut JfcCfg) -> *mut UrmaJfc {
        if cfg.is_null() {
            return null_mut();
        }
        let jfc = create(ctx, |inner| {
            let handle = inner.node.create_jfc((*cfg).depth)?;
            Ok(UrmaJfc { ctx, id: id_of(&*ctx, handle), cfg: *cfg, handle: u64::from(handle), private: [0; 22] })
        });
        if !jfc.is_null() {
            host_of(ctx).lock().pointers.insert((0, (*jfc).handle as u32), jfc as u64);
        }
        jfc
    }
    fn urma_modify_jfc(jfc: *mut UrmaJfc, _attr: *mut u8) -> Status { if jfc.is_null() { EINVAL } else { SUCCESS } }
    fn urma_delete_jfc(jfc: *mut UrmaJfc) -> Status {
        if jfc.is_null() {
            return EINVAL;
        }
        let (ctx, handle) = ((*jfc).ctx, (*jfc).handle as u32);
        let mut inner = host_of(ctx).lock();
        let status = done(inner.node.delete_jfc(handle));
        if status == SUCCESS {
            inner.pointers.remove(&(0, handle));
        }
        drop(inner);
        destroy(ctx, jfc, status)
    }
    fn urma_create_jfs(ctx: *mut UrmaContext, cfg: *mut JfsCfg) -> *mut UrmaJfs {
        if cfg.is_null() {
            return null_mut();
        }
        let jfs = create(ctx, |inner| {
            let id = inner.node.create_jetty(jetty_config(&*cfg, null_mut())?)?;
            Ok(UrmaJfs { ctx, id: id_of(&*ctx, id), cfg: *cfg, handle: u64::from(id), private: [0; 22] })
        });
        if !jfs.is_null() {
            host_of(ctx).lock().pointers.insert((1, (*jfs).handle as u32), jfs as u64);
        }
        jfs
    }
    fn urma_delete_jfs(jfs: *mut UrmaJfs) -> Status {
        if jfs.is_null() {
            return EINVAL;
        }
        let (ctx, id) = ((*jfs).ctx, (*jfs).handle as u32);
        let status = delete_jetty(host_of(ctx), id);
        destroy(ctx, jfs, status)
    }
    fn urma_create_jfr(ctx: *mut UrmaContext, cfg: *mut JfrCfg) -> *mut UrmaJfr {
        if cfg.is_null() || (*cfg).jfc.is_null() {
            return null_mut();
        }
        let jfr = create(ctx, |inner| {
            let c = &*cfg;
            if c.depth > DEPTH_MAX {
                return Err(UrmaError::Value);
            }
            let jfc = (*c.jfc).handle as u32;
            let shown = token(c.flag, c.token);
            // URMA's timer codes are those of IBA; the node's double from 10 us on.
            let config = JfrConfig { depth: c.depth as u16, jfc, token: shown, rnr_timer: c.min_rnr_timer.min(31) / 3, limit: 0 };
            let id = inner.node.create_jfr(config)?;
            Ok(UrmaJfr { ctx, id: id_of(&*ctx, id), cfg: *cfg, handle: u64::from(id), private: [0; 22] })
        });
        if !jfr.is_null() {
            let mut inner = host_of(ctx).lock();
            for kind in [2, 3] {
                inner.pointers.insert((kind, (*jfr).handle as u32), jfr as u64);
            }
        }
        jfr
    }
    fn urma_delete_jfr(jfr: *mut UrmaJfr) -> Status {
        if jfr.is_null() {
            return EINVAL;
        }
        let (ctx, id) = ((*jfr).ctx, (*jfr).handle as u32);
        let status = done(host_of(ctx).lock().node.delete_jfr(id));
        destroy(ctx, jfr, status)
    }
    fn urma_create_jetty(ctx: *mut UrmaContext, cfg: *mut JettyCfg) -> *mut UrmaJetty {
        if cfg.is_null() {
            return null_mut();
        }
        let jetty = create(ctx, |inner| {
            let c = &*cfg;
            if c.flag & 1 == 0 || c.jfr.is_null() || !c.group.is_null() {
                return Err(UrmaError::Unsupported);
            }
            let id = inner.node.create_jetty(jetty_config(&c.jfs, c.jfr)?)?;
            inner.jetties.insert(id);
            Ok(UrmaJetty { ctx, id: id_of(&*ctx, id), remote: null_mut(), cfg: *c, handle: u64::from(id), private: [0; 27] })
        });
        if !jetty.is_null() {
            host_of(ctx).lock().pointers.insert((4, (*jetty).handle as u32), jetty as u64);
        }
        jetty
    }
    fn urma_delete_jetty(jetty: *mut UrmaJetty) -> Status {
        if jetty.is_null() {
            return EINVAL;
        }
        let (ctx, id) = ((*jetty).ctx, (*jetty).handle as u32);
        let status = delete_jetty(host_of(ctx), id);
        destroy(ctx, jetty, status)
    }
    fn urma_modify_jetty(jetty: *mut UrmaJetty, attr: *const [u32; 3]) -> Status {
        if jetty.is_null() || attr.is_null() { EINVAL } else { modify(host_of((*jetty).ctx), (*jetty).handle as u32, (*attr)[0] >> 1, (*attr)[2]) }
    }
    fn urma_modify_jfs(jfs: *mut UrmaJfs, attr: *const [u32; 2]) -> Status {
        if jfs.is_null() || attr.is_null() { EINVAL } else { modify(host_of((*jfs).ctx), (*jfs).handle as u32, (*attr)[0], (*attr)[1]) }
    }
    fn urma_modify_jfr(jfr: *mut UrmaJfr, attr: *const [u32; 3]) -> Status {
        if jfr.is_null() || attr.is_null() || (*attr)[0] & 2 == 0 {
            return EINVAL;
        }
        let state = match (*attr)[2] {
            0 => JfrState::Reset,
            1 => JfrState::Ready,
            _ => JfrState::Error,
        };
        let (host, id) = (host_of((*jfr).ctx), (*jfr).handle as u32);
        done(host.with(&mut host.lock(), |node, env| node.modify_jfr(id, state, env.fx)))
    }
    fn urma_import_jetty(ctx: *mut UrmaContext, remote: *const RJetty, token_value: *const u32) -> *mut TargetJetty {
        if remote.is_null() { null_mut() } else { import(ctx, &*remote, token_value) }
    }
    fn urma_import_jfr(ctx: *mut UrmaContext, remote: *const RJfr, token_value: *const u32) -> *mut TargetJetty {
        if remote.is_null() {
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
        let status = done(host_of(ctx).lock().node.unimport_jetty(handle));
        destroy(ctx, target, status)
    }
    fn urma_unimport_jfr(target: *mut TargetJetty) -> Status { urma_unimport_jetty(target) }
    fn urma_bind_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status {
        if jetty.is_null() || target.is_null() {
            return EINVAL;
        }
        let host = host_of((*jetty).ctx);
        let status = done(host.lock().node.bind_jetty((*jetty).handle as u32, (*target).handle as u32));
        if status == SUCCESS {
            (*jetty).remote = target;
        }
        status
    }
    fn urma_unbind_jetty(jetty: *mut UrmaJetty) -> Status {
        if jetty.is_null() {
            return EINVAL;
        }
        let status = done(host_of((*jetty).ctx).lock().node.unbind_jetty((*jetty).handle as u32));
        if status == SUCCESS {
            (*jetty).remote = null_mut();
        }
        status
    }
    fn urma_advise_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status { if jetty.is_null() || target.is_null() { EINVAL } else { SUCCESS } }
    fn urma_unadvise_jetty(jetty: *mut UrmaJetty, target: *mut TargetJetty) -> Status { if jetty.is_null() || target.is_null() { EINVAL } else { SUCCESS } }
    fn urma_advise_jfr(jfs: *mut UrmaJfs, target: *mut TargetJetty) -> Status { if jfs.is_null() || target.is_null() { EINVAL } else { SUCCESS } }
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
        let order = (*jetty).cfg.jfs.flag >> 3 & 0xff;
        *copy = RJetty { id: (*jetty).id, trans_mode: (*jetty).cfg.jfs.trans_mode, policy: 0, kind: 1, flag: policy | order << 3, tp_type: 0 };
        (*remote, *len) = (copy, size_of::<RJetty>() as u32);
        SUCCESS
    }
    fn urma_put_rjetty(remote: *mut RJetty) { libc::free(remote.cast()) }
    fn urma_get_tpn(jetty: *mut UrmaJetty) -> c_int { if jetty.is_null() { -1 } else { 0 } }
    fn urma_alloc_token_id(ctx: *mut UrmaContext) -> *mut TokenId {
        create(ctx, |_| Ok(TokenId { ctx, token_id: 0, handle: 0, refs: 1, flag: 0 }))
    }
    fn urma_free_token_id(token_id: *mut TokenId) -> Status { if token_id.is_null() { EINVAL } else { destroy((*token_id).ctx, token_id, SUCCESS) } }
    fn urma_register_seg(ctx: *mut UrmaContext, cfg: *const SegCfg) -> *mut TargetSeg {
        if cfg.is_null() {
            return null_mut();
        }
        create(ctx, |inner| {
            let c = &*cfg;
            let access = (c.flag >> 5 & 0x3f) as u8;
            if access & 1 != 0 && access & 0xe != 0 || c.len == 0 {
                return Err(UrmaError::Value);
            }
            let config = SegmentConfig { addr: c.va, len: c.len, token: token(c.flag, c.token), access };
            let token_id = inner.node.register_segment(config)?;
            if !c.token_id.is_null() {
                (*c.token_id).token_id = token_id;
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
        let ctx = (*seg).ctx;
        let status = done(host_of(ctx).lock().node.unregister_segment((*seg).handle as u32));
        destroy(ctx, seg, status)
    }
    fn urma_import_seg(ctx: *mut UrmaContext, seg: *const UrmaSeg, value: *const u32, _addr: u64, _flag: u32) -> *mut TargetSeg {
        if seg.is_null() {
            return null_mut();
        }
        create(ctx, |inner| {
            let s = *seg;
            let address = address_of(&{ s.ubva.eid });
            if !host_of(ctx).learn(inner, address) {
                return Err(UrmaError::Bound);
            }
            let shown = if value.is_null() { None } else { token(s.attr, *value) };
            let remote = RemoteSegment { cna: cna_of(address), token_id: s.token_id, addr: s.ubva.va, len: s.len, token: shown };
            let handle = u64::from(inner.node.import_segment(remote)?);
            Ok(TargetSeg { seg: s, user_ctx: 0, mva: s.ubva.va, ctx, token_id: null_mut(), handle })
        })
    }
    fn urma_unimport_seg(seg: *mut TargetSeg) -> Status {
        if seg.is_null() {
            return EINVAL;
        }
        let ctx = (*seg).ctx;
        let status = done(host_of(ctx).lock().node.unimport_segment((*seg).handle as u32));
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

fn delete_jetty(host: &UrmaHost, id: u32) -> Status {
    let mut inner = host.lock();
    let mut result = inner.node.delete_jetty(id);
    if result == Err(UrmaError::Busy) {
        // As an adapter does: the queue is stopped, and what was not executed is dropped.
        let stopped = host.with(&mut inner, |node, env| node.modify_jetty(id, JettyState::Error, env.fx));
        while stopped.is_ok() && inner.node.flush_jetty(id).is_some() {}
        result = inner.node.delete_jetty(id);
    }
    if result.is_ok() {
        inner.jetties.remove(&id);
        for kind in [1, 4] {
            inner.pointers.remove(&(kind, id));
        }
        // The end of an ordered stream is told to the peer.
        host.flush(&mut inner);
    }
    done(result)
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
    let mut inner = host.lock();
    let result = host.with(&mut inner, |node, env| node.modify_jetty(id, state, env.fx));
    host.flush(&mut inner);
    done(result)
}
