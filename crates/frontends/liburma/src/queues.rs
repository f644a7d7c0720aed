//! Queues and Jetties: the two steps by which they are made and end, options, queries, batches, groups.
//!
//! `alloc` makes the object of the interface, `active` its part in the node; `create` is both. A JFC, JFS, JFR or Jetty that is
//! not active has no number, and only its options can be used. Options are the fields of the configuration; queue addresses,
//! doorbells and indices belong to devices and are refused.

use crate::abi::{
    EINVAL, EPERM, GroupCfg, JettyCfg, JettyOpt, JfcCfg, JfrCfg, JfsCfg, MUTEX, QueueAttr, QueueOpt, SUCCESS, SYNC,
    Status, UrmaContext, UrmaJetty, UrmaJettyGroup, UrmaJfc, UrmaJfr, UrmaJfs,
};
use crate::checks::{UM, check_jetty, check_jfc, check_policy, check_receive, check_send};
use crate::device::OwnedContext;
use crate::host::UrmaHost;
use crate::log::{because, begin_call, explain_refusal};
use crate::macros::exported;
use crate::node::Inner;
use crate::objects::{
    OwnedJfce, create, destroy, done, host_of, id_of, kind_of, set_errno, status_of, token, users_of,
};
use crate::reports::{CLASS_JETTY, CLASS_JFC, CLASS_JFR, CLASS_JFS};
use burst_urma::{GROUP_MEMBERS_MAX, GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, UrmaError};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// Number in the node of an object that is not active: nothing has it.
const INACTIVE: u64 = u64::MAX;
/// The option that names the event channel of a JFC.
const JFC_JFCE: u64 = 0x2004;

/// # Safety
/// The configuration's JFC is alive, `jfr` too if it is not null.
unsafe fn jetty_config(cfg: &JfsCfg, jfr: *mut UrmaJfr) -> Result<JettyConfig, UrmaError> {
    let (mode, service) = check_send(cfg)?;
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
        err_timeout: cfg.err_timeout,
        ..JettyConfig::new(jfc, jfr)
    })
}

/// The node's delay, `10 us * 2^n`, for a code of IBA's table of RNR timers: those double every two codes from 10 us on, and
/// code 0 is the longest (IBA vol. 1, table 45).
const fn rnr_timer(code: u8) -> u8 {
    let code = code & 31;
    if code == 0 { 15 } else { code / 2 }
}

/// An object with a part in the node.
trait Queue: Sized {
    /// The configuration of the interface.
    type Cfg: Copy;
    /// Its class among the objects that events name.
    const CLASS: u32;
    /// Its options by number: offset in the configuration, and length.
    const OPTIONS: &'static [(u64, usize, u32)];
    /// The object without its part in the node.
    fn idle(ctx: *mut UrmaContext, cfg: Self::Cfg) -> Self;
    /// Makes the part in the node, and returns its number.
    ///
    /// # Safety
    /// What the configuration points to is alive.
    unsafe fn attach(&self, inner: &mut Inner) -> Result<u32, UrmaError>;
    /// Removes the part in the node.
    fn detach(host: &UrmaHost, inner: &mut Inner, id: u32) -> Result<(), UrmaError>;
    fn ctx(&self) -> *mut UrmaContext;
    fn cfg(&mut self) -> &mut Self::Cfg;
    fn handle(&mut self) -> &mut u64;
    fn is_active(&mut self) -> &mut bool;
    /// The number in the object's id.
    fn id(&mut self) -> &mut u32;
}

/// Why a number of the program's choice is refused.
const OWN_NUMBER: &str = "the node gives the numbers of Jetties and groups: the program may not choose one";

macro_rules! queue {
    ($ty:ident, $cfg:ident, $class:ident, $active:ident $(. $more:ident)?, [$($option:literal: $field:ident $(. $inner:ident)?, $len:literal;)+],
     $self:ident, $inner_arg:ident => $attach:expr, $host:ident, $locked:ident, $number:ident => $detach:expr, { $($init:ident: $value:expr),* }) => {
        impl Queue for $ty {
            type Cfg = $cfg;
            const CLASS: u32 = $class;
            const OPTIONS: &'static [(u64, usize, u32)] = &[$(($option, offset_of!($cfg, $field $(. $inner)?), $len)),+];
            fn idle(ctx: *mut UrmaContext, cfg: $cfg) -> $ty {
                // SAFETY: the caller's context is alive.
                let id = id_of(unsafe { &*ctx }, 0);
                $ty { ctx, id, cfg, handle: INACTIVE, sync: [0; SYNC], $($init: $value),* }
            }
            unsafe fn attach(&$self, $inner_arg: &mut Inner) -> Result<u32, UrmaError> {
                // SAFETY: as the caller promises.
                #[allow(unused_unsafe, reason = "some bodies follow no pointer")]
                unsafe {
                    $attach
                }
            }
            fn detach($host: &UrmaHost, $locked: &mut Inner, $number: u32) -> Result<(), UrmaError> { $detach }
            fn ctx(&self) -> *mut UrmaContext { self.ctx }
            fn cfg(&mut self) -> &mut $cfg { &mut self.cfg }
            fn handle(&mut self) -> &mut u64 { &mut self.handle }
            fn is_active(&mut self) -> &mut bool { &mut self.$active $(. $more)? }
            fn id(&mut self) -> &mut u32 { &mut self.id.id }
        }
    };
}

queue!(UrmaJfc, JfcCfg, CLASS_JFC, opt.is_active,
    [0x2001: depth, 4; 0x2002: flag, 4; 0x2003: ceqn, 4; 0x2004: jfce, 8; 0x2005: user_ctx, 8;],
    self, inner => {
        check_jfc(&self.cfg)?;
        let channel = self.cfg.jfce.cast::<OwnedJfce>();
        inner.create_jfc(self.cfg.depth, channel.as_ref().map(|channel| channel.number))
    },
    _host, inner, id => inner.delete_jfc(id),
    { opt: QueueOpt::default() });

queue!(UrmaJfs, JfsCfg, CLASS_JFS, opt.is_active,
    [0x1: depth, 4; 0x2: flag, 4; 0x3: trans_mode, 4; 0x4: priority, 1; 0x5: max_sge, 1; 0x6: max_rsge, 1; 0x7: max_inline, 4;
     0x8: rnr_retry, 1; 0x9: err_timeout, 1; 0xa: jfc, 8; 0xb: user_ctx, 8;],
    self, inner => inner.create_jetty(jetty_config(&self.cfg, null_mut())?),
    host, inner, id => delete_jetty(host, inner, id),
    { opt: QueueOpt::default() });

queue!(UrmaJfr, JfrCfg, CLASS_JFR, opt.is_active,
    [0x1001: depth, 4; 0x1002: flag, 4; 0x1003: trans_mode, 4; 0x1004: max_sge, 1; 0x1005: min_rnr_timer, 1; 0x1006: jfc, 8;
     0x1007: token, 4; 0x1008: user_ctx, 8;],
    self, inner => {
        let c = &self.cfg;
        check_receive(c)?;
        let (jfc, rnr_timer) = ((*c.jfc).handle as u32, rnr_timer(c.min_rnr_timer));
        let is_unreliable = c.trans_mode == UM;
        inner.create_jfr(JfrConfig {
            depth: c.depth as u16,
            jfc,
            token: token(c.flag, c.token),
            rnr_timer,
            limit: 0,
            is_unreliable,
        })
    },
    _host, inner, id => inner.delete_jfr(id),
    { opt: QueueOpt::default() });

queue!(UrmaJetty, JettyCfg, CLASS_JETTY, opt.is_active,
    [0x3001: id, 4; 0x3002: flag, 4; 0x3003: jfr, 8; 0x3004: jfr_jfc, 8; 0x3005: group, 8; 0x3006: user_ctx, 8;
     0x1: jfs.depth, 4; 0x2: jfs.flag, 4; 0x3: jfs.trans_mode, 4; 0x4: jfs.priority, 1; 0x5: jfs.max_sge, 1; 0x6: jfs.max_rsge, 1;
     0x7: jfs.max_inline, 4; 0x8: jfs.rnr_retry, 1; 0x9: jfs.err_timeout, 1; 0xa: jfs.jfc, 8; 0xb: jfs.user_ctx, 8;],
    self, inner => {
        let c = &self.cfg;
        if c.flag & 1 == 0 || c.jfr.is_null() {
            return Err(because(UrmaError::Unsupported, "a Jetty needs the flag share_jfr and a JFR"));
        }
        // Least of all may a program choose the number of the echo.
        if c.id != 0 {
            return Err(because(UrmaError::Unsupported, OWN_NUMBER));
        }
        check_jetty(c, &(*c.jfr).cfg, c.group.as_ref().map(|group| &group.cfg))?;
        let group = (!c.group.is_null()).then(|| (*c.group).handle as u32);
        inner.create_jetty(JettyConfig { group, ..jetty_config(&c.jfs, c.jfr)? })
    },
    host, inner, id => delete_jetty(host, inner, id),
    { remote: null_mut(), opt: JettyOpt::default() });

/// A JFC begins or ends to use its event channel.
///
/// # Safety
/// The object is alive or null, and so is its event channel.
unsafe fn count_jfce<T: Queue>(object: *mut T, change: i64) {
    if T::CLASS != CLASS_JFC || object.is_null() {
        return;
    }
    // SAFETY: the class says that it is a JFC; the rest as the caller promises.
    unsafe {
        let jfce = (*object.cast::<UrmaJfc>()).cfg.jfce;
        if !jfce.is_null() {
            users_of(jfce).fetch_add(change as u64, Ordering::AcqRel);
        }
    }
}

/// Whether it is a Jetty that is bound: it must be unbound first.
///
/// # Safety
/// The object is alive.
unsafe fn is_bound<T: Queue>(object: *mut T) -> bool {
    // SAFETY: the class says that it is a Jetty.
    T::CLASS == CLASS_JETTY && unsafe { !(*object.cast::<UrmaJetty>()).remote.is_null() }
}

/// # Safety
/// As for [`host_of`].
unsafe fn alloc<T: Queue>(ctx: *mut UrmaContext, cfg: *mut T::Cfg) -> *mut T {
    if cfg.is_null() {
        set_errno(EINVAL);
        return null_mut();
    }
    // SAFETY: as the caller promises.
    unsafe {
        let object = create(ctx, |_| Ok(T::idle(ctx, *cfg)));
        count_jfce(object, 1);
        object
    }
}

/// # Safety
/// The object is alive or null.
unsafe fn activate<T: Queue>(object: *mut T) -> Status {
    // SAFETY: as the caller promises.
    let Some(queue) = (unsafe { object.as_mut() }) else { return EINVAL };
    if *queue.is_active() {
        return EINVAL;
    }
    // SAFETY: as above.
    let Some(mut inner) = (unsafe { host_of(queue.ctx()) }).enter() else { return EPERM };
    begin_call();
    // SAFETY: as above.
    match unsafe { queue.attach(&mut inner) } {
        Ok(id) => {
            (*queue.handle(), *queue.id(), *queue.is_active()) = (u64::from(id), id, true);
            // SAFETY: contexts of this library begin a `OwnedContext`.
            let context = unsafe { (*queue.ctx().cast::<OwnedContext>()).number };
            inner.reports.add_object(T::CLASS, id, object as u64, context);
            note_member(object, true);
            SUCCESS
        }
        Err(error) => {
            explain_refusal(kind_of::<T>(), error);
            status_of(error)
        }
    }
}

/// # Safety
/// As for [`activate`].
unsafe fn deactivate<T: Queue>(object: *mut T) -> Status {
    // SAFETY: as the caller promises.
    let Some(queue) = (unsafe { object.as_mut() }) else { return EINVAL };
    if !*queue.is_active() {
        return EINVAL;
    }
    let id = *queue.handle() as u32;
    // SAFETY: as above.
    let host = unsafe { host_of(queue.ctx()) };
    let Some(mut inner) = host.enter() else { return EPERM };
    let status = done(T::detach(host, &mut inner, id));
    if status == SUCCESS {
        (*queue.handle(), *queue.is_active()) = (INACTIVE, false);
        inner.reports.remove_object(T::CLASS, id);
        note_member(object, false);
    }
    status
}

/// A Jetty joins the list of its group, or leaves it.
fn note_member<T: Queue>(object: *mut T, joins: bool) {
    if T::CLASS != CLASS_JETTY {
        return;
    }
    let jetty = object.cast::<UrmaJetty>();
    // SAFETY: the class says that it is a Jetty; its group lives as long as it has members.
    unsafe {
        let Some(group) = (*jetty).cfg.group.as_mut() else { return };
        let (list, count) = (group.list, group.count as usize);
        let members = std::slice::from_raw_parts_mut(list, GROUP_MEMBERS_MAX);
        if joins && count < members.len() {
            members[count] = jetty;
            group.count += 1;
        } else if let Some(at) = members[..count].iter().position(|member| *member == jetty) {
            members[at] = members[count - 1];
            group.count -= 1;
        }
    }
}

/// # Safety
/// As for [`host_of`]; the configuration is alive or null.
unsafe fn make<T: Queue>(ctx: *mut UrmaContext, cfg: *mut T::Cfg) -> *mut T {
    // SAFETY: as the caller promises.
    unsafe {
        let object = alloc::<T>(ctx, cfg);
        if object.is_null() {
            return object;
        }
        let status = activate(object);
        if status == SUCCESS {
            return object;
        }
        free(object);
        set_errno(status);
        null_mut()
    }
}

/// Frees an object that is not active.
///
/// # Safety
/// As for [`activate`].
unsafe fn free<T: Queue>(object: *mut T) -> Status {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(queue) = object.as_mut() else { return EINVAL };
        if *queue.is_active() {
            return EINVAL;
        }
        if !host_of(queue.ctx()).is_ours() || is_bound(object) {
            return EPERM;
        }
        count_jfce(object, -1);
        destroy(queue.ctx(), object, SUCCESS)
    }
}

/// # Safety
/// As for [`activate`].
unsafe fn remove<T: Queue>(object: *mut T) -> Status {
    // SAFETY: as the caller promises.
    unsafe {
        if !object.is_null() && is_bound(object) {
            return EPERM;
        }
        match deactivate(object) {
            SUCCESS => free(object),
            status => status,
        }
    }
}

/// # Safety
/// An array of `count` objects; `bad` is writable.
unsafe fn remove_all<T: Queue>(objects: *mut *mut T, count: i32, bad: *mut *mut T) -> Status {
    if objects.is_null() || count <= 0 || bad.is_null() {
        return EINVAL;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let list = std::slice::from_raw_parts(objects, count as usize);
        if list.iter().any(|object| object.is_null()) {
            *bad = list[0];
            return EINVAL;
        }
        for object in list {
            let status = remove(*object);
            if status != SUCCESS {
                *bad = *object;
                return status;
            }
        }
        SUCCESS
    }
}

/// Copies an option to the object or from it.
///
/// # Safety
/// The object is alive or null; the buffer has `len` bytes.
unsafe fn option<T: Queue>(object: *mut T, number: u64, buffer: *mut u8, len: u32, sets: bool) -> Status {
    // SAFETY: as the caller promises.
    let Some(queue) = (unsafe { object.as_mut() }) else { return EINVAL };
    if buffer.is_null() || len == 0 || (sets && *queue.is_active()) {
        return EINVAL;
    }
    let Some((_, offset, size)) = T::OPTIONS.iter().find(|option| option.0 == number) else { return EINVAL };
    if *size != len {
        return EINVAL;
    }
    let field = std::ptr::from_mut(queue.cfg()).cast::<u8>().wrapping_add(*offset);
    // SAFETY: the table gives a field of the configuration, of plain data.
    unsafe {
        if sets {
            let is_jfce = T::CLASS == CLASS_JFC && number == JFC_JFCE;
            if is_jfce {
                count_jfce(object, -1);
            }
            std::ptr::copy_nonoverlapping(buffer, field, len as usize);
            if is_jfce {
                count_jfce(object, 1);
            }
        } else {
            std::ptr::copy_nonoverlapping(field, buffer, len as usize);
        }
    }
    SUCCESS
}

const fn jetty_state(state: Option<JettyState>) -> u32 {
    match state {
        None | Some(JettyState::Reset) => 0,
        Some(JettyState::Ready) => 1,
        Some(JettyState::Suspended) => 2,
        Some(JettyState::Error) => 3,
    }
}

exported! {
    fn urma_create_jfc(ctx: *mut UrmaContext, cfg: *mut JfcCfg) -> *mut UrmaJfc { make(ctx, cfg) }
    fn urma_delete_jfc(object: *mut UrmaJfc) -> Status { remove(object) }
    fn urma_delete_jfc_batch(objects: *mut *mut UrmaJfc, count: i32, bad: *mut *mut UrmaJfc) -> Status { remove_all(objects, count, bad) }
    fn urma_alloc_jfc(ctx: *mut UrmaContext, cfg: *mut JfcCfg, object: *mut *mut UrmaJfc) -> Status {
        if ctx.is_null() || cfg.is_null() || object.is_null() {
            return EINVAL;
        }
        *object = alloc(ctx, cfg);
        SUCCESS
    }
    fn urma_set_jfc_opt(object: *mut UrmaJfc, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, true) }
    fn urma_get_jfc_opt(object: *mut UrmaJfc, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, false) }
    fn urma_active_jfc(object: *mut UrmaJfc) -> Status { activate(object) }
    fn urma_deactive_jfc(object: *mut UrmaJfc) -> Status { deactivate(object) }
    fn urma_free_jfc(object: *mut UrmaJfc) -> Status { free(object) }
    fn urma_create_jfs(ctx: *mut UrmaContext, cfg: *mut JfsCfg) -> *mut UrmaJfs { make(ctx, cfg) }
    fn urma_delete_jfs(object: *mut UrmaJfs) -> Status { remove(object) }
    fn urma_delete_jfs_batch(objects: *mut *mut UrmaJfs, count: i32, bad: *mut *mut UrmaJfs) -> Status { remove_all(objects, count, bad) }
    fn urma_alloc_jfs(ctx: *mut UrmaContext, cfg: *mut JfsCfg, object: *mut *mut UrmaJfs) -> Status {
        if ctx.is_null() || cfg.is_null() || object.is_null() {
            return EINVAL;
        }
        *object = alloc(ctx, cfg);
        SUCCESS
    }
    fn urma_set_jfs_opt(object: *mut UrmaJfs, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, true) }
    fn urma_get_jfs_opt(object: *mut UrmaJfs, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, false) }
    fn urma_active_jfs(object: *mut UrmaJfs) -> Status { activate(object) }
    fn urma_deactive_jfs(object: *mut UrmaJfs) -> Status { deactivate(object) }
    fn urma_free_jfs(object: *mut UrmaJfs) -> Status { free(object) }
    fn urma_create_jfr(ctx: *mut UrmaContext, cfg: *mut JfrCfg) -> *mut UrmaJfr { make(ctx, cfg) }
    fn urma_delete_jfr(object: *mut UrmaJfr) -> Status { remove(object) }
    fn urma_delete_jfr_batch(objects: *mut *mut UrmaJfr, count: i32, bad: *mut *mut UrmaJfr) -> Status { remove_all(objects, count, bad) }
    fn urma_alloc_jfr(ctx: *mut UrmaContext, cfg: *mut JfrCfg, object: *mut *mut UrmaJfr) -> Status {
        if ctx.is_null() || cfg.is_null() || object.is_null() {
            return EINVAL;
        }
        *object = alloc(ctx, cfg);
        SUCCESS
    }
    fn urma_set_jfr_opt(object: *mut UrmaJfr, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, true) }
    fn urma_get_jfr_opt(object: *mut UrmaJfr, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, false) }
    fn urma_active_jfr(object: *mut UrmaJfr) -> Status { activate(object) }
    fn urma_deactive_jfr(object: *mut UrmaJfr) -> Status { deactivate(object) }
    fn urma_free_jfr(object: *mut UrmaJfr) -> Status { free(object) }
    fn urma_create_jetty(ctx: *mut UrmaContext, cfg: *mut JettyCfg) -> *mut UrmaJetty { make(ctx, cfg) }
    fn urma_delete_jetty(object: *mut UrmaJetty) -> Status { remove(object) }
    fn urma_delete_jetty_batch(objects: *mut *mut UrmaJetty, count: i32, bad: *mut *mut UrmaJetty) -> Status { remove_all(objects, count, bad) }
    fn urma_alloc_jetty(ctx: *mut UrmaContext, cfg: *mut JettyCfg, object: *mut *mut UrmaJetty) -> Status {
        if ctx.is_null() || cfg.is_null() || object.is_null() {
            return EINVAL;
        }
        *object = alloc(ctx, cfg);
        SUCCESS
    }
    fn urma_set_jetty_opt(object: *mut UrmaJetty, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, true) }
    fn urma_get_jetty_opt(object: *mut UrmaJetty, number: u64, buffer: *mut u8, len: u32) -> Status { option(object, number, buffer, len, false) }
    fn urma_active_jetty(object: *mut UrmaJetty) -> Status { activate(object) }
    fn urma_deactive_jetty(object: *mut UrmaJetty) -> Status { deactivate(object) }
    fn urma_free_jetty(object: *mut UrmaJetty) -> Status { free(object) }
    fn urma_modify_jfc(jfc: *mut UrmaJfc, attr: *mut u8) -> Status { if jfc.is_null() || attr.is_null() { EINVAL } else { SUCCESS } }
    fn urma_query_jfs(jfs: *mut UrmaJfs, cfg: *mut JfsCfg, attr: *mut [u32; 2]) -> Status {
        if jfs.is_null() || cfg.is_null() || attr.is_null() {
            return EINVAL;
        }
        *cfg = (*jfs).cfg;
        let Some(mut inner) = host_of((*jfs).ctx).enter() else { return EPERM };
        *attr = [1, jetty_state(inner.jetty_state((*jfs).handle as u32))];
        SUCCESS
    }
    fn urma_query_jetty(jetty: *mut UrmaJetty, cfg: *mut JettyCfg, attr: *mut QueueAttr) -> Status {
        if jetty.is_null() || cfg.is_null() || attr.is_null() {
            return EINVAL;
        }
        *cfg = (*jetty).cfg;
        let Some(mut inner) = host_of((*jetty).ctx).enter() else { return EPERM };
        let state = jetty_state(inner.jetty_state((*jetty).handle as u32));
        *attr = QueueAttr { mask: 2, threshold: 0, state };
        SUCCESS
    }
    fn urma_query_jfr(jfr: *mut UrmaJfr, cfg: *mut JfrCfg, attr: *mut QueueAttr) -> Status {
        if jfr.is_null() || cfg.is_null() || attr.is_null() {
            return EINVAL;
        }
        *cfg = (*jfr).cfg;
        let Some(mut inner) = host_of((*jfr).ctx).enter() else { return EPERM };
        let (state, limit) = inner.jfr_state((*jfr).handle as u32).unwrap_or((JfrState::Reset, 0));
        let state = match state {
            JfrState::Reset => 0,
            JfrState::Ready => 1,
            JfrState::Error => 2,
        };
        *attr = QueueAttr { mask: 3, threshold: u32::from(limit), state };
        SUCCESS
    }
    fn urma_modify_jfr(jfr: *mut UrmaJfr, attr: *const QueueAttr) -> Status {
        if jfr.is_null() || attr.is_null() || (*attr).mask & 3 == 0 {
            return EINVAL;
        }
        let (host, id, attr) = (host_of((*jfr).ctx), (*jfr).handle as u32, &*attr);
        let Some(mut inner) = host.enter() else { return EPERM };
        if attr.mask & 1 != 0 {
            let Ok(limit) = u16::try_from(attr.threshold) else { return EINVAL };
            let status = done(inner.set_jfr_limit(id, limit));
            if status != SUCCESS {
                return status;
            }
        }
        if attr.mask & 2 == 0 {
            return SUCCESS;
        }
        let state = match attr.state {
            0 => JfrState::Reset,
            1 => JfrState::Ready,
            2 => JfrState::Error,
            _ => return EINVAL,
        };
        done(inner.modify_jfr(host.now(), id, state))
    }
    fn urma_create_jetty_grp(ctx: *mut UrmaContext, cfg: *mut GroupCfg) -> *mut UrmaJettyGroup {
        if cfg.is_null() || (*cfg).name.iter().all(|c| *c != 0) {
            set_errno(EINVAL);
            return null_mut();
        }
        create(ctx, |inner| {
            let policy = match (*cfg).policy {
                0 => GroupPolicy::RoundRobin,
                1 => GroupPolicy::HashHint,
                _ => return Err(UrmaError::Value),
            };
            if (*cfg).id != 0 {
                return Err(because(UrmaError::Unsupported, OWN_NUMBER));
            }
            check_policy((*cfg).flag)?;
            let id = inner.create_group(policy, token((*cfg).flag, (*cfg).token))?;
            let list = Box::into_raw(vec![null_mut::<UrmaJetty>(); GROUP_MEMBERS_MAX].into_boxed_slice()).cast();
            let (count, list_mutex) = (0, [0; MUTEX]);
            Ok(UrmaJettyGroup { ctx, id: id_of(&*ctx, id), cfg: *cfg, count, list, list_mutex, handle: u64::from(id), sync: [0; SYNC] })
        })
    }
    fn urma_delete_jetty_grp(group: *mut UrmaJettyGroup) -> Status {
        if group.is_null() {
            return EINVAL;
        }
        let (ctx, list) = ((*group).ctx, (*group).list);
        let Some(mut inner) = host_of(ctx).enter() else { return EPERM };
        let status = done(inner.delete_group((*group).handle as u32));
        drop(inner);
        if status == SUCCESS {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, GROUP_MEMBERS_MAX)));
        }
        destroy(ctx, group, status)
    }
}

fn delete_jetty(host: &UrmaHost, inner: &mut Inner, id: u32) -> Result<(), UrmaError> {
    let result = inner.delete_jetty(host.now(), id);
    if result.is_ok() {
        // The end of an ordered stream is told to the peer.
        host.flush(inner);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::rnr_timer;

    #[test]
    fn rnr_timers_are_those_of_the_table() {
        // Microseconds by code; the node has powers of two, and its longest is half the table's.
        for (code, us) in [(1, 10), (2, 20), (4, 40), (6, 80), (12, 640), (18, 5120), (31, 327_680), (0, 327_680)] {
            assert_eq!(10 << rnr_timer(code), us, "code {code}");
        }
    }
}
