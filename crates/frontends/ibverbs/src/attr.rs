//! Conversions between the C structs of QP attributes and address vectors and the types of the control messages.

use crate::boundary::{EINVAL, EOPNOTSUPP, Outcome};
use crate::port::check_port;
use crate::sys::*;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpCap, QpState, attr_mask};
use burst_base::{Psn, Qkey, Qpn};

/// Converts an address vector for the daemon.
pub fn ah_from_ibv(a: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        // SAFETY: every bit pattern is a valid `raw`.
        dgid: unsafe { a.grh.dgid.raw },
        sgid_index: a.grh.sgid_index,
        traffic_class: a.grh.traffic_class,
        hop_limit: a.grh.hop_limit,
        flow_label: a.grh.flow_label,
        is_global: a.is_global != 0,
        port_num: a.port_num,
        sl: a.sl,
        static_rate: a.static_rate,
        dlid: a.dlid,
        src_path_bits: a.src_path_bits,
    }
}

/// Converts an address vector for the application.
pub fn ah_to_ibv(a: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: a.dgid },
            flow_label: a.flow_label,
            sgid_index: a.sgid_index,
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
        },
        dlid: a.dlid,
        sl: a.sl,
        src_path_bits: a.src_path_bits,
        static_rate: a.static_rate,
        is_global: a.is_global.into(),
        port_num: a.port_num,
    }
}

/// Converts capacities for the daemon.
pub fn cap_from_ibv(c: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Converts capacities for the application.
pub fn cap_to_ibv(c: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Refuses attributes that would have no effect, as the kernel does: an alternate path, because RoCE has no path migration
/// (`_ib_modify_qp`), a rate limit, which only raw packet queue pairs have, and an address vector of another port.
fn check_effect(a: &ibv_qp_attr, mask: u32) -> Outcome<()> {
    if mask & attr_mask::RATE_LIMIT != 0 {
        return Err(EOPNOTSUPP);
    }
    if mask & attr_mask::ALT_PATH != 0 {
        return Err(EINVAL);
    }
    if mask & attr_mask::AV != 0 { check_port(a.ah_attr.port_num.into()) } else { Ok(()) }
}

/// Converts the attributes that `mask` names; the others get defaults, because the application need not set them.
///
/// # Errors
/// EINVAL for values that no queue pair can have, EINVAL or EOPNOTSUPP for attributes without effect.
pub fn qp_from_ibv(a: &ibv_qp_attr, mask: u32) -> Outcome<QpAttr> {
    check_effect(a, mask)?;
    let given = |bit: u32| mask & bit != 0;
    let mut q = QpAttr::default();
    if given(attr_mask::STATE) {
        q.qp_state = QpState::from_number(a.qp_state).ok_or(EINVAL)?;
    }
    if given(attr_mask::CUR_STATE) {
        q.cur_qp_state = QpState::from_number(a.cur_qp_state).ok_or(EINVAL)?;
    }
    if given(attr_mask::PATH_MTU) {
        q.path_mtu = Mtu::from_number(a.path_mtu).ok_or(EINVAL)?;
    }
    if given(attr_mask::AV) {
        q.ah = ah_from_ibv(&a.ah_attr);
    }
    if given(attr_mask::CAP) {
        q.cap = cap_from_ibv(&a.cap);
    }
    if given(attr_mask::PATH_MIG_STATE) {
        q.path_mig_state = u8::try_from(a.path_mig_state).map_err(|_| EINVAL)?;
    }
    q.qkey = Qkey(a.qkey);
    q.rq_psn = Psn::new(a.rq_psn);
    q.sq_psn = Psn::new(a.sq_psn);
    q.dest_qpn = Qpn::new(a.dest_qp_num);
    q.qp_access_flags = a.qp_access_flags;
    q.pkey_index = a.pkey_index;
    q.en_sqd_async_notify = a.en_sqd_async_notify != 0;
    q.max_rd_atomic = a.max_rd_atomic;
    q.max_dest_rd_atomic = a.max_dest_rd_atomic;
    q.min_rnr_timer = a.min_rnr_timer;
    q.port_num = a.port_num;
    q.timeout = a.timeout;
    q.retry_cnt = a.retry_cnt;
    q.rnr_retry = a.rnr_retry;
    Ok(q)
}

/// Converts all attributes for the application.
pub fn qp_to_ibv(q: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: q.qp_state as ibv_qp_state,
        cur_qp_state: q.cur_qp_state as ibv_qp_state,
        path_mtu: q.path_mtu as ibv_mtu,
        path_mig_state: q.path_mig_state.into(),
        qkey: q.qkey.0,
        rq_psn: q.rq_psn.get(),
        sq_psn: q.sq_psn.get(),
        dest_qp_num: q.dest_qpn.get(),
        qp_access_flags: q.qp_access_flags,
        cap: cap_to_ibv(&q.cap),
        ah_attr: ah_to_ibv(&q.ah),
        pkey_index: q.pkey_index,
        en_sqd_async_notify: q.en_sqd_async_notify.into(),
        sq_draining: q.sq_draining.into(),
        max_rd_atomic: q.max_rd_atomic,
        max_dest_rd_atomic: q.max_dest_rd_atomic,
        min_rnr_timer: q.min_rnr_timer,
        port_num: q.port_num,
        timeout: q.timeout,
        retry_cnt: q.retry_cnt,
        rnr_retry: q.rnr_retry,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_round_trip() {
        let a = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_2048,
            qkey: 7,
            rq_psn: 0x12_3456,
            dest_qp_num: 0x654321,
            timeout: 14,
            rnr_retry: 7,
            ah_attr: ibv_ah_attr { is_global: 1, port_num: 1, sl: 3, ..Default::default() },
            ..Default::default()
        };
        let q = qp_from_ibv(&a, attr_mask::STATE | attr_mask::PATH_MTU | attr_mask::AV).unwrap();
        let b = qp_to_ibv(&q);
        assert_eq!((b.qp_state, b.path_mtu, b.qkey), (a.qp_state, a.path_mtu, a.qkey));
        assert_eq!((b.rq_psn, b.dest_qp_num, b.timeout), (a.rq_psn, a.dest_qp_num, a.timeout));
        assert_eq!((b.ah_attr.sl, b.ah_attr.is_global), (3, 1));
    }

    #[test]
    fn garbage_in_unnamed_fields_is_ignored_and_in_named_ones_refused() {
        let a = ibv_qp_attr { path_mtu: 99, qp_state: 99, ..Default::default() };
        assert!(qp_from_ibv(&a, attr_mask::PORT).is_ok());
        assert_eq!(qp_from_ibv(&a, attr_mask::PATH_MTU), Err(EINVAL));
        assert_eq!(qp_from_ibv(&a, attr_mask::STATE), Err(EINVAL));
    }
}
