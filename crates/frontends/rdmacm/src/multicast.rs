//! Multicast groups. The daemon joins a group; the id's queue pair is attached when the join's event is read.

use crate::addr;
use crate::boundary::{self, EINVAL, ENODEV, Errno, Outcome, lock, verbs};
use crate::id::Id;
use crate::sys::*;
use burst_control::cm::{CmAddr, CmCommand, CmEvent};
use std::ffi::{c_int, c_void};

/// Queue pair number for datagrams to a group.
pub const GROUP_QPN: u32 = 0xff_ffff;

/// A group that an id has joined.
pub struct JoinedGroup {
    addr: CmAddr,
    /// Number of the join in its command and event.
    cookie: u64,
    /// The program's context, which the event returns.
    context: *mut c_void,
    /// Whether the queue pair receives datagrams to the group.
    receives: bool,
    /// The attached queue pair, and the group's GID.
    attached: Option<(*mut ibv_qp, ibv_gid)>,
}

// SAFETY: the pointers are the program's; they are used in calls on behalf of the program only.
unsafe impl Send for JoinedGroup {}

fn join(id: &Id, to: CmAddr, context: *mut c_void, receives: bool) -> Outcome<()> {
    crate::lent::refuse("multicast")?;
    let cookie = {
        let mut known = lock(&id.known);
        if known.device.is_none() {
            return Err(ENODEV);
        }
        let cookie = known.groups.iter().map(|g| g.cookie).max().unwrap_or(0) + 1;
        known.groups.push(JoinedGroup { addr: to, cookie, context, receives, attached: None });
        cookie
    };
    let asked = id.ask(vec![CmCommand::Join { id: id.number, addr: to, cookie }]);
    if let Err(e) = asked {
        lock(&id.known).groups.retain(|g| g.cookie != cookie);
        return Err(e);
    }
    id.complete()
}

/// Attaches the queue pair after a successful join.
///
/// # Errors
/// The errno of `ibv_attach_mcast`.
pub fn joined(id: &Id, event: &CmEvent) -> Outcome<()> {
    let qp = id.public().qp;
    let mut known = lock(&id.known);
    let Some(group) = known.groups.iter_mut().find(|g| g.cookie == event.cookie) else { return Ok(()) };
    if event.status != 0 || qp.is_null() || !group.receives {
        return Ok(());
    }
    let gid = ibv_gid { raw: event.route.dgid };
    // SAFETY: a queue pair on an id is alive.
    verbs(unsafe { ibv_attach_mcast(qp, &gid, 0) })?;
    group.attached = Some((qp, gid));
    Ok(())
}

/// Whether the id is still in the group of an event. If not, the program may have freed the context of the join.
pub fn is_wanted(id: &Id, cookie: u64) -> bool {
    lock(&id.known).groups.iter().any(|g| g.cookie == cookie)
}

/// The context that the program passed to a join.
pub fn context_of(id: &Id, cookie: u64) -> *const c_void {
    lock(&id.known).groups.iter().find(|g| g.cookie == cookie).map_or(std::ptr::null(), |g| g.context)
}

/// `rdma_join_multicast`: joins a group for sending and receiving.
///
/// # Safety
/// `id` must be alive, `to` as long as its family demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, to: *mut sockaddr, context: *mut c_void) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, to) = unsafe { (Id::from_rdma(id)?, addr::read(to)?) };
        join(id, to, context, true)
    })
}

/// `rdma_join_multicast_ex`: joins a group for sending and receiving, or for sending only.
///
/// # Safety
/// `id` must be alive, `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, attr) = unsafe { (Id::from_rdma(id)?, attr.as_ref().ok_or(EINVAL)?) };
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno(libc::ENOTSUP));
        }
        if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0 {
            return Err(EINVAL);
        }
        let flags = if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS != 0 { attr.join_flags } else { 0 };
        if flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(EINVAL);
        }
        // SAFETY: the mask says that there is an address.
        join(id, unsafe { addr::read(attr.addr) }?, context, flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
    })
}

/// `rdma_leave_multicast`: EADDRNOTAVAIL if the id is not in the group.
///
/// # Safety
/// `id` must be alive, `to` as long as its family demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, to) = unsafe { (Id::from_rdma(id)?, addr::read(to)?) };
        let group = {
            let groups = &mut lock(&id.known).groups;
            let at = groups.iter().position(|g| g.addr == to).ok_or(Errno(libc::EADDRNOTAVAIL))?;
            groups.swap_remove(at)
        };
        let joined_again = lock(&id.known).groups.iter().any(|g| g.addr.ip == to.ip && g.attached.is_some());
        if let Some((qp, gid)) = group.attached.filter(|(qp, _)| *qp == id.public().qp && !joined_again) {
            // Fails only if the program has detached the queue pair itself.
            // SAFETY: the id's queue pair is alive.
            let _ = unsafe { ibv_detach_mcast(qp, &gid, 0) };
        }
        id.ask(vec![CmCommand::Leave { id: id.number, addr: to }]).map(drop)
    })
}
