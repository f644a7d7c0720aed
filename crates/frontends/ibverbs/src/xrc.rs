//! Extended reliable connections (XRC): domains, their shared receive queues, and target queue pairs of other processes.

use crate::boundary::{self, EINVAL, EIO, EOPNOTSUPP, Outcome};
use crate::context::VerbsContext;
use crate::cq::VerbsCq;
use crate::qp;
use crate::srq::{self, VerbsSrq};
use crate::sys::*;
use burst_control::{Request, Response, XrcSrqAttr};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

/// An XRC domain.
#[repr(C)]
pub struct VerbsXrcd {
    base: ibv_xrcd,
    /// The daemon's handle.
    pub handle: u32,
}

impl VerbsXrcd {
    /// The domain behind an application's pointer.
    ///
    /// # Safety
    /// `xrcd` must be NULL or alive.
    pub unsafe fn from_ibv<'a>(xrcd: *mut ibv_xrcd) -> Outcome<&'a VerbsXrcd> {
        // SAFETY: `base` is the first field.
        unsafe { xrcd.cast::<VerbsXrcd>().as_ref() }.ok_or(EINVAL)
    }
}

/// `ibv_open_xrcd`: opens the domain of a file, or creates one that only this context has (descriptor -1).
///
/// # Safety
/// `context` must be open and `attr` valid.
pub unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context and a valid struct.
        let (ours, attr) = unsafe { (VerbsContext::from_ibv(context)?, attr.as_ref().ok_or(EINVAL)?) };
        if attr.comp_mask & !(IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS) != 0 {
            return Err(EOPNOTSUPP);
        }
        if attr.comp_mask & IBV_XRCD_INIT_ATTR_FD == 0 || attr.comp_mask & IBV_XRCD_INIT_ATTR_OFLAGS == 0 {
            return Err(EINVAL);
        }
        if attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(EINVAL);
        }
        let with_file = attr.fd != -1;
        // SAFETY: a descriptor number; asks whether it is one.
        if with_file && unsafe { libc::fcntl(attr.fd, libc::F_GETFD) } < 0 {
            return Err(boundary::errno());
        }
        // SAFETY: the caller's descriptor, alive during the call.
        let file = with_file.then(|| unsafe { BorrowedFd::borrow_raw(attr.fd) });
        let answer = ours.call(&Request::OpenXrcd { with_file, flags: attr.oflags }, file.as_slice())?;
        let Response::Handle(handle) = answer.response else { return Err(EIO) };
        Ok(Box::into_raw(Box::new(VerbsXrcd { base: ibv_xrcd { context }, handle })).cast())
    })
}

/// `ibv_close_xrcd`: EBUSY while this context has objects in the domain.
///
/// # Safety
/// `xrcd` must be alive; it is gone afterwards.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live domain of an open context.
        let ours = unsafe { VerbsXrcd::from_ibv(xrcd) }?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.base.context) }?;
        context.end_object(&Request::CloseXrcd { xrcd: ours.handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(xrcd.cast::<VerbsXrcd>()) });
        Ok(())
    })
}

/// `ibv_create_srq_ex`: creates basic and XRC shared receive queues. Tag matching is not supported.
///
/// # Safety
/// `context` must be open and `init` valid, with live objects in it.
pub unsafe extern "C" fn create_srq_ex(context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let init = unsafe {
            VerbsContext::from_ibv(context)?;
            init.as_mut().ok_or(EINVAL)?
        };
        const KNOWN: u32 =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let has = |bit: u32| init.comp_mask & bit != 0;
        let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
        if init.comp_mask & !KNOWN != 0 || srq_type == IBV_SRQT_TM {
            return Err(EOPNOTSUPP);
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) || srq_type > IBV_SRQT_TM {
            return Err(EINVAL);
        }
        let xrc = match srq_type {
            IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => {
                // SAFETY: as above.
                let (xrcd, cq) = unsafe { (VerbsXrcd::from_ibv(init.xrcd)?, VerbsCq::from_ibv(init.cq)?) };
                Some(XrcSrqAttr { xrcd: xrcd.handle, cq: cq.handle })
            }
            IBV_SRQT_XRC => return Err(EINVAL),
            _ => None,
        };
        // SAFETY: as above.
        unsafe { srq::create(init.pd, init.srq_context, &mut init.attr, xrc) }
    })
}

/// `ibv_get_srq_num`: the number that initiators name in their requests. Only XRC shared receive queues have one.
///
/// # Safety
/// `srq` must be alive and `number` writable.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live SRQ.
        let srqn = unsafe { VerbsSrq::from_ibv(srq) }?.srqn();
        if srqn == 0 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the caller gives a writable place.
        unsafe { *number = srqn };
        Ok(())
    })
}

/// `ibv_open_qp`: opens a target queue pair of the domain that this or another process has created.
///
/// # Safety
/// `context` must be open and `attr` valid, with a live domain in it.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let (ours, attr) = unsafe { (VerbsContext::from_ibv(context)?, attr.as_ref().ok_or(EINVAL)?) };
        const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD;
        const KNOWN: u32 = NEEDED | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(EOPNOTSUPP);
        }
        let named = |bit: u32| attr.comp_mask & bit != 0;
        if attr.comp_mask & NEEDED != NEEDED || (named(IBV_QP_OPEN_ATTR_TYPE) && attr.qp_type != IBV_QPT_XRC_RECV) {
            return Err(EINVAL);
        }
        // SAFETY: the mask says that there is a domain.
        let xrcd = unsafe { VerbsXrcd::from_ibv(attr.xrcd) }?.handle;
        let qpn = attr.qp_num;
        let qp_context = if named(IBV_QP_OPEN_ATTR_CONTEXT) { attr.qp_context } else { std::ptr::null_mut() };
        qp::new_target(ours, qp_context, |event_cookie| Request::OpenQp { xrcd, qpn, event_cookie })
    })
}
