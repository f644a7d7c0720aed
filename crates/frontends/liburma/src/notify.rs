//! Imports and binds that end with a notification. Nothing has to be asked of the peer, so both are done when the call returns.

use crate::abi::{
    EINVAL, EPERM, FAIL, RJetty, SUCCESS, Status, TargetJetty, UrmaContext, UrmaJetty, UrmaNotifier, UrmaNotify,
};
use crate::macros::exported;
use crate::objects::{
    create, destroy, host_of, import, set_errno, urma_bind_jetty, urma_unbind_jetty, urma_unimport_jetty,
};
use burst_urma::UrmaError;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

const IMPORTED: u32 = 0;
const BOUND: u32 = 1;

/// A notifier with its queue. The descriptor is an eventfd that counts what is in the queue.
#[repr(C)]
struct OwnNotifier {
    c: UrmaNotifier,
    queue: Mutex<VecDeque<UrmaNotify>>,
}

/// # Safety
/// The notifier is alive.
unsafe fn push(notifier: *mut UrmaNotifier, notify: UrmaNotify) {
    // SAFETY: as the caller promises; all notifiers begin an `OwnNotifier`. The buffer has eight bytes.
    unsafe {
        let own = &*notifier.cast::<OwnNotifier>();
        own.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(notify);
        libc::write(own.c.fd, 1u64.to_ne_bytes().as_ptr().cast(), 8);
    }
}

exported! {
    fn urma_create_notifier(ctx: *mut UrmaContext) -> *mut UrmaNotifier {
        create(ctx, |_| {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE);
            if fd < 0 {
                return Err(UrmaError::Full);
            }
            Ok(OwnNotifier { c: UrmaNotifier { ctx, fd, list: null_mut() }, queue: Mutex::default() })
        })
        .cast()
    }
    fn urma_delete_notifier(notifier: *mut UrmaNotifier) -> Status {
        if notifier.is_null() {
            return EINVAL;
        }
        if !host_of((*notifier).ctx).is_ours() {
            return EPERM;
        }
        libc::close((*notifier).fd);
        destroy((*notifier).ctx, notifier.cast::<OwnNotifier>(), SUCCESS)
    }
    fn urma_import_jetty_async(notifier: *mut UrmaNotifier, remote: *const RJetty, token: *const u32, user_ctx: u64, _timeout: c_int) -> *mut TargetJetty {
        if notifier.is_null() || remote.is_null() || token.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        let target = import((*notifier).ctx, &*remote, token);
        if !target.is_null() {
            push(notifier, UrmaNotify { kind: IMPORTED, status: SUCCESS, user_ctx, object: target.cast() });
        }
        target
    }
    fn urma_unimport_jetty_async(target: *mut TargetJetty) -> Status { urma_unimport_jetty(target) }
    fn urma_bind_jetty_async(notifier: *mut UrmaNotifier, jetty: *mut UrmaJetty, target: *mut TargetJetty, user_ctx: u64, _timeout: c_int) -> Status {
        if notifier.is_null() {
            return EINVAL;
        }
        let status = urma_bind_jetty(jetty, target);
        if status == SUCCESS {
            push(notifier, UrmaNotify { kind: BOUND, status, user_ctx, object: jetty.cast() });
        }
        status
    }
    fn urma_unbind_jetty_async(jetty: *mut UrmaJetty) -> Status { urma_unbind_jetty(jetty) }
    fn urma_wait_notify(notifier: *mut UrmaNotifier, count: u32, notify: *mut UrmaNotify, timeout: c_int) -> c_int {
        if notifier.is_null() || notify.is_null() || count == 0 {
            return -EINVAL;
        }
        let mut poll = libc::pollfd { fd: (*notifier).fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut poll, 1, timeout) < 0 {
            return -FAIL;
        }
        let mut queue = (*notifier.cast::<OwnNotifier>()).queue.lock().unwrap_or_else(PoisonError::into_inner);
        for found in 0..count {
            let Some(next) = queue.pop_front() else { return found as c_int };
            let mut one = [0u8; 8];
            libc::read((*notifier).fd, one.as_mut_ptr().cast(), one.len());
            notify.add(found as usize).write(next);
        }
        count as c_int
    }
    fn urma_ack_notify(ctx: *mut c_void, _count: u32, notify: *mut c_void) -> Status { if ctx.is_null() || notify.is_null() { EINVAL } else { SUCCESS } }
}
