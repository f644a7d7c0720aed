//! Connections: connect, accept, reject, disconnect.
//!
//! If the queue pair was created on the id, the daemon moves it, or this library in lent mode ([`crate::lent`]). Otherwise the
//! program names its number in the parameters, moves it itself, and calls [`rdma_establish`].

use crate::boundary::{self, EINVAL, EOPNOTSUPP, Outcome, lock};
use crate::id::Id;
use crate::qp;
use crate::sys::*;
use burst_base::conn::{ConnParam, Ece, private_data_room as room};
use burst_control::cm::{CmCommand, CmData, PortSpace};
use std::ffi::{c_int, c_void};

/// IBA table 112: vendor option not supported.
const REASON_VENDOR_OPTION: u16 = 35;

/// Parameters when the program gives none: the maximum of each.
const DEFAULTS: ConnParam = ConnParam {
    responder_resources: RDMA_MAX_RESP_RES as u8,
    initiator_depth: RDMA_MAX_INIT_DEPTH as u8,
    flow_control: false,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: false,
    qpn: 0,
    qkey: 0,
    ece: Ece::NONE,
};

/// The private data of a call.
unsafe fn data_of(data: *const c_void, len: u8, most: usize) -> Outcome<CmData> {
    let len = usize::from(len);
    if data.is_null() || len == 0 {
        return Ok(CmData::EMPTY);
    }
    if len > most {
        return Err(EINVAL);
    }
    // SAFETY: the caller gives `len` readable bytes.
    CmData::new(unsafe { std::slice::from_raw_parts(data.cast(), len) }).ok_or(EINVAL)
}

/// Refuses more READs and atomics in flight than the device allows, for connected ids, as rdma-core does. 255
/// (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`) asks for the device's maximum.
fn check_depths(id: &Id, param: &rdma_conn_param) -> Outcome<()> {
    let most = lock(&id.known).device.map_or(u8::MAX, |device| device.max_rd_atomic);
    let fits = |depth: u8| depth == u8::MAX || depth <= most;
    let fit = fits(param.responder_resources) && fits(param.initiator_depth);
    if id.space != PortSpace::Tcp || fit { Ok(()) } else { Err(EINVAL) }
}

/// The parameters and the private data of a call.
unsafe fn param_of(id: &Id, given: *const rdma_conn_param, most: usize) -> Outcome<(ConnParam, CmData)> {
    let ece = lock(&id.known).ece;
    // SAFETY: NULL, or a valid struct.
    let Some(p) = (unsafe { given.as_ref() }) else {
        if id.public().qp.is_null() && id.space == PortSpace::Tcp {
            // Neither the id nor the parameters name a queue pair.
            return Err(EINVAL);
        }
        return Ok((ConnParam { ece, srq: has_srq(id), ..DEFAULTS }, CmData::EMPTY));
    };
    check_depths(id, p)?;
    // SAFETY: the caller's promise.
    let data = unsafe { data_of(p.private_data, p.private_data_len, most) }?;
    let param = ConnParam {
        responder_resources: p.responder_resources,
        initiator_depth: p.initiator_depth,
        flow_control: p.flow_control != 0,
        retry_count: p.retry_count.min(7),
        rnr_retry_count: p.rnr_retry_count.min(7),
        srq: p.srq != 0 || has_srq(id),
        qpn: p.qp_num,
        qkey: 0,
        ece,
    };
    Ok((param, data))
}

fn has_srq(id: &Id) -> bool {
    let qp = id.public().qp;
    // SAFETY: a queue pair on an id is alive.
    !qp.is_null() && unsafe { !(*qp).srq.is_null() }
}

/// `rdma_connect`: requests a connection, or the queue pair of a datagram service.
///
/// # Safety
/// `id` must be alive, `param` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        let most = if id.is_datagram() { room::SIDR_REQ } else { room::REQ };
        // SAFETY: as above.
        let (param, data) = unsafe { param_of(id, param, most) }?;
        let (qp, param) = qp::named_with(id, param)?;
        id.send_command(CmCommand::Connect { id: id.number, qp, param, data })?;
        id.complete()
    })
}

/// `rdma_accept`.
///
/// # Safety
/// `id` must come with a request, `param` be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        id.steps.check_accept()?;
        let datagram = id.is_datagram();
        let most = if datagram { room::SIDR_REP } else { room::REP };
        // SAFETY: as above.
        let (mut wanted, data) = unsafe { param_of(id, param, most) }?;
        if param.is_null() {
            // The depths that the peer requested.
            let conn = lock(&id.known).conn;
            (wanted.responder_resources, wanted.initiator_depth) = (conn.responder_resources, conn.initiator_depth);
        }
        let (qp, wanted) = qp::named_with(id, wanted)?;
        qp::before_accept(id, &wanted)?;
        // Requests posted before the worker has moved the queue pair wait in the send queue until then.
        id.send_command(CmCommand::Accept { id: id.number, qp, param: wanted, data })?;
        if datagram {
            return Ok(());
        }
        qp::note_state(id, IBV_QPS_RTS);
        id.complete()
    })
}

unsafe fn reject(id: *mut rdma_cm_id, reason: u16, data: *const c_void, len: u8) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let id = unsafe { Id::from_rdma(id) }?;
    id.due.check_met()?;
    let most = if id.is_datagram() { room::SIDR_REP } else { room::REJ };
    // SAFETY: as above.
    let data = unsafe { data_of(data, len, most) }?;
    id.send_command(CmCommand::Reject { id: id.number, reason, data })
}

/// `rdma_reject`: rejects a request, or a response.
///
/// # Safety
/// `id` must come with a request or have got a response; `data` NULL or `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    boundary::status(|| unsafe { reject(id, qp::REASON_CONSUMER, data, len) })
}

/// `rdma_reject_ece`: as [`rdma_reject`], with the reason that the ECE options are not supported.
///
/// # Safety
/// As for [`rdma_reject`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    boundary::status(|| unsafe { reject(id, REASON_VENDOR_OPTION, data, len) })
}

/// `rdma_establish`: completes a connection whose queue pair was not created on the id; EINVAL for others.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        if !id.public().qp.is_null() {
            return Err(EINVAL);
        }
        id.due.check_met()?;
        id.send_command(CmCommand::Establish { id: id.number })
    })
}

/// `rdma_disconnect`: EINVAL for an id that never had a peer, and for a synchronous id without connection, or whose last event
/// was read. A listener has nothing to do. What is posted to a connected queue pair is flushed in any case, as with the kernel's
/// library.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        if id.steps.is_listening() && !id.is_sync() {
            // As in the kernel: it has nothing to disconnect.
            return Ok(());
        }
        // Without a connection no event would end the wait.
        let waits_in_vain = id.is_sync() && (id.is_datagram() || !id.due.is_awaited());
        if id.due.check_met().is_err() || waits_in_vain {
            qp::fail(id);
            return Err(EINVAL);
        }
        qp::before_disconnect(id);
        id.send_command(CmCommand::Disconnect { id: id.number })?;
        qp::note_state(id, IBV_QPS_ERR);
        id.complete()
    })
}

/// `rdma_notify`: with IBV_EVENT_COMM_EST, establishes a connection whose first data came before the RTU.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        match event {
            IBV_EVENT_COMM_EST => id.send_command(CmCommand::Notify { id: id.number }),
            IBV_EVENT_PATH_MIG => Ok(()),
            _ => Err(EINVAL),
        }
    })
}

/// `rdma_set_local_ece`: ECE options for the REQ or REP of this id.
///
/// # Safety
/// `id` must be alive, `ece` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, ece) = unsafe { (Id::from_rdma(id)?, ece.as_ref().ok_or(EINVAL)?) };
        if ece.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        lock(&id.known).ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        Ok(())
    })
}

/// `rdma_get_remote_ece`: the peer's ECE options.
///
/// # Safety
/// `id` must be alive, `ece` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, ece) = unsafe { (Id::from_rdma(id)?, ece.as_mut().ok_or(EINVAL)?) };
        let Ece { vendor_id, options } = lock(&id.known).conn.ece;
        *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_a_limit() {
        let bytes = [7u8; 255];
        // SAFETY: 255 readable bytes.
        let data = |len, most| unsafe { data_of(bytes.as_ptr().cast(), len, most) };
        assert_eq!(data(56, room::REQ).unwrap().as_slice(), &bytes[..56]);
        assert_eq!(data(57, room::REQ), Err(EINVAL));
        assert_eq!(data(196, room::REP).unwrap().as_slice().len(), 196);
        assert_eq!(data(255, 255), Err(EINVAL));
        // SAFETY: NULL is no data, whatever the length says.
        assert_eq!(unsafe { data_of(std::ptr::null(), 9, 8) }, Ok(CmData::EMPTY));
    }
}
