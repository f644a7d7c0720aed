//! Shared receive queues of an id. The SRQ of an id of `IBV_QPT_XRC_RECV` is in an XRC domain, the device's default one if the
//! program names none, and has a completion queue: the program's, or the id's, which `rdma_get_recv_comp` polls.

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Outcome, errno};
use crate::device::RdmaDevice;
use crate::id::Id;
use crate::qp::{domain, end_queue, end_queues, make_queue};
use crate::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

/// Makes sure that the id has a completion queue of at least `entries`.
fn own_queue(id: &Id, device: &RdmaDevice, entries: u32) -> Outcome<*mut ibv_cq> {
    let public = id.as_rdma();
    // SAFETY: fields of a live struct, which other threads leave alone while its objects are made; a queue is alive.
    unsafe {
        let has = (*public).recv_cq;
        if !has.is_null() && u32::try_from((*has).cqe).is_ok_and(|room| room >= entries) {
            return Ok(has);
        }
        let made = make_queue(id, device, entries)?;
        // The id's completion queues were created with its target, which does not use them: replace them.
        let (mut channel, mut small) = ((*public).recv_cq_channel, has);
        end_queue(&mut channel, &mut small);
        ((*public).recv_cq_channel, (*public).recv_cq) = made;
        Ok(made.1)
    }
}

/// Creates an SRQ in an XRC domain, with default objects where the struct names none.
///
/// # Safety
/// `init` must be valid up to the fields that its mask names, and writable up to the completion queue.
unsafe fn in_domain(id: &Id, device: &RdmaDevice, init: *mut ibv_srq_init_attr_ex) -> Outcome<*mut ibv_srq> {
    let create = device.extended(|calls| calls.create_srq_ex)?;
    // SAFETY: the caller's promise; an open context.
    unsafe {
        let mask = (*init).comp_mask;
        if mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || (*init).xrcd.is_null() {
            (*init).xrcd = device.xrcd()?;
        }
        if mask & IBV_SRQ_INIT_ATTR_CQ == 0 || (*init).cq.is_null() {
            (*init).cq = own_queue(id, device, (*init).attr.max_wr)?;
        }
        (*init).comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let srq = create(device.context, init);
        if srq.is_null() { Err(errno()) } else { Ok(srq) }
    }
}

/// Creates the id's shared receive queue.
///
/// # Safety
/// `init` must be valid up to the fields that its mask names, and writable.
unsafe fn create(id: &Id, init: *mut ibv_srq_init_attr_ex) -> Outcome<()> {
    let device = id.device()?;
    // SAFETY: fields that the mask names; the caller's promise for the rest.
    let (srq_type, given) = unsafe {
        let named = |bit: u32| (*init).comp_mask & bit != 0;
        (
            if named(IBV_SRQ_INIT_ATTR_TYPE) { (*init).srq_type } else { IBV_SRQT_BASIC },
            if named(IBV_SRQ_INIT_ATTR_PD) { (*init).pd } else { null_mut() },
        )
    };
    let pd = domain(id, device, given)?;
    if !id.public().srq.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: a live domain, the caller's struct; fields of a live struct.
    unsafe {
        let srq = match srq_type {
            IBV_SRQT_BASIC => {
                let mut basic = ibv_srq_init_attr { srq_context: (*init).srq_context, attr: (*init).attr };
                let srq = ibv_create_srq(pd, &mut basic);
                (*init).attr = basic.attr;
                if srq.is_null() { Err(errno()) } else { Ok(srq) }
            }
            IBV_SRQT_XRC => {
                ((*init).pd, (*init).comp_mask) = (pd, (*init).comp_mask | IBV_SRQ_INIT_ATTR_PD);
                in_domain(id, device, init)
            }
            _ => Err(EOPNOTSUPP),
        }?;
        ((*id.as_rdma()).srq, (*id.as_rdma()).pd) = (srq, pd);
    }
    Ok(())
}

/// `rdma_create_srq`: creates the id's shared receive queue, in an XRC domain if the id is of `IBV_QPT_XRC_RECV`.
///
/// # Safety
/// `id` must be alive, `pd` NULL or alive, `init` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (Id::from_rdma(id)?, init.as_mut().ok_or(EINVAL)?) };
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
            srq_type: if id.public().qp_type == IBV_QPT_XRC_RECV { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
            pd,
            ..Default::default()
        };
        // SAFETY: a valid struct.
        unsafe { create(id, &mut extended) }?;
        init.attr = extended.attr;
        Ok(())
    })
}

/// `rdma_create_srq_ex`: as [`rdma_create_srq`], with the extended struct, which can name an XRC domain and a completion queue.
///
/// # Safety
/// `id` must be alive, `init` valid up to the fields that its mask names; for a queue in an XRC domain, writable up to the
/// completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    boundary::status(|| {
        if init.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { create(Id::from_rdma(id)?, init) }
    })
}

/// `rdma_destroy_srq`: destroys the id's shared receive queue and its default completion queues.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    boundary::nothing(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        // SAFETY: the field of a live struct; the queue is the id's.
        unsafe {
            let srq = std::mem::replace(&mut (*id.as_rdma()).srq, null_mut());
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
        }
        // The completion queues stay while a queue pair uses them; an XRC target uses none.
        if id.public().qp.is_null() || id.public().qp_type == IBV_QPT_XRC_RECV {
            end_queues(id);
        }
        Ok(())
    });
}
