//! Queue pair attributes and path records of an id: the attributes that `rdma_init_qp_attr` returns for each state.

use crate::boundary::{self, EINVAL, ENODEV, Outcome, lock};
use crate::id::{Id, Known};
use crate::sys::*;
use burst_base::verbs::min_rnr_timer;
use burst_control::cm::CmRoute;
use std::ffi::c_int;

/// The default P_Key, the only one.
const PKEY: u16 = 0xffff;
/// Selector "exactly" of the fields of a path record that have a selector.
const SELECT_EXACT: u8 = 2;
/// 10 Gbit/s in `enum ibv_rate`, for every path: a software port has no line rate.
const RATE: u8 = 3;
/// Packet life time code when no ACK timeout is set: 4.096 us * 2^16.
const LIFE_TIME: u8 = 16;
/// Access flags of a connected queue pair: all, because memory regions have their own.
pub const REMOTE_ACCESS: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// The address vector to the peer of an id.
pub fn ah_of(route: &CmRoute) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: route.dgid },
            flow_label: 0,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}

/// The path record of an id.
pub fn path_of(route: &CmRoute) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: route.dgid },
        sgid: ibv_gid { raw: route.sgid },
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        mtu_selector: SELECT_EXACT,
        mtu: route.mtu as u8,
        rate_selector: SELECT_EXACT,
        rate: RATE,
        packet_life_time_selector: SELECT_EXACT,
        packet_life_time: match route.ack_timeout {
            0 => LIFE_TIME,
            code => code - 1,
        },
        ..Default::default()
    }
}

/// Attributes and mask with which a queue pair of an id moves to `state`.
pub fn for_state(known: &Known, qp_type: ibv_qp_type, state: ibv_qp_state) -> Outcome<(ibv_qp_attr, u32)> {
    let datagram = qp_type == IBV_QPT_UD;
    // An initiator of extended reliable connections receives no requests, a target sends none.
    let reliable = [IBV_QPT_RC, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV].contains(&qp_type);
    let (receives, sends) = (reliable && qp_type != IBV_QPT_XRC_SEND, reliable && qp_type != IBV_QPT_XRC_RECV);
    let conn = &known.conn;
    let mut a = ibv_qp_attr { qp_state: state, ..Default::default() };
    let mut mask = IBV_QP_STATE;
    match state {
        IBV_QPS_INIT => {
            a.port_num = 1;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if datagram {
                a.qkey = if conn.qkey == 0 { RDMA_UDP_QKEY } else { conn.qkey };
                mask |= IBV_QP_QKEY;
            } else {
                a.qp_access_flags = REMOTE_ACCESS;
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if !datagram => {
            a.ah_attr = ah_of(&known.route);
            a.path_mtu = known.route.mtu as ibv_mtu;
            a.dest_qp_num = conn.remote_qpn;
            a.rq_psn = conn.rq_psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if receives {
                a.max_dest_rd_atomic = conn.responder_resources;
                a.min_rnr_timer = min_rnr_timer(conn.peer_rnr_retry_count);
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            a.sq_psn = conn.sq_psn;
            mask |= IBV_QP_SQ_PSN;
            if reliable {
                a.timeout = known.ack_timeout.unwrap_or(conn.ack_timeout);
                mask |= IBV_QP_TIMEOUT;
            }
            if sends {
                a.retry_cnt = conn.retry_count;
                a.rnr_retry = conn.rnr_retry_count;
                a.max_rd_atomic = conn.initiator_depth;
                mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        IBV_QPS_RTR => (),
        _ => return Err(EINVAL),
    }
    Ok((a, mask))
}

/// `rdma_init_qp_attr`: attributes and mask for a program that moves the queue pair itself; `attr.qp_state` names the state.
///
/// # Safety
/// `id` must be alive, `attr` and `mask` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, attr, mask) =
            unsafe { (Id::from_rdma(id)?, attr.as_mut().ok_or(EINVAL)?, mask.as_mut().ok_or(EINVAL)?) };
        let known = lock(&id.known);
        if known.device.is_none() {
            return Err(ENODEV);
        }
        let (values, bits) = for_state(&known, id.public().qp_type, attr.qp_state)?;
        (*attr, *mask) = (values, bits as c_int);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::verbs::Mtu;
    use burst_control::cm::ConnAttr;

    fn known() -> Known {
        let conn = ConnAttr {
            remote_qpn: 0x11,
            sq_psn: 1,
            rq_psn: 2,
            responder_resources: 3,
            initiator_depth: 4,
            ack_timeout: 14,
            ..ConnAttr::default()
        };
        let route = CmRoute { dgid: [7; 16], sgid_index: 2, mtu: Mtu::B4096, ..CmRoute::default() };
        Known { conn, route, ..Known::default() }
    }

    #[test]
    fn a_reliable_connection_gets_what_each_state_demands() {
        let known = known();
        let (a, mask) = for_state(&known, IBV_QPT_RC, IBV_QPS_INIT).unwrap();
        assert_eq!((mask, a.port_num, a.qp_access_flags), (0b111001, 1, REMOTE_ACCESS));
        let (a, mask) = for_state(&known, IBV_QPT_RC, IBV_QPS_RTR).unwrap();
        assert_eq!(mask & IBV_QP_AV, IBV_QP_AV);
        assert_eq!((a.dest_qp_num, a.rq_psn, a.max_dest_rd_atomic, a.path_mtu), (0x11, 2, 3, IBV_MTU_4096));
        // If the peer gives up after some RNR retries, the RNR NAKs name a long time.
        assert_eq!(a.min_rnr_timer, 0);
        let patient = ConnAttr { peer_rnr_retry_count: 7, ..known.conn };
        let patient = Known { conn: patient, route: known.route, ..Known::default() };
        assert_eq!(for_state(&patient, IBV_QPT_RC, IBV_QPS_RTR).unwrap().0.min_rnr_timer, 12);
        assert_eq!((a.ah_attr.is_global, a.ah_attr.grh.sgid_index, a.ah_attr.port_num), (1, 2, 1));
        let (a, mask) = for_state(&known, IBV_QPT_RC, IBV_QPS_RTS).unwrap();
        assert_eq!((a.sq_psn, a.max_rd_atomic, a.timeout), (1, 4, 14));
        let own = Known { ack_timeout: Some(9), conn: known.conn, route: known.route, ..Known::default() };
        assert_eq!(
            for_state(&own, IBV_QPT_RC, IBV_QPS_RTS).unwrap().0.timeout,
            9,
            "the program's own goes before the peer's"
        );
        assert_eq!(mask & (IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC), IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC);
    }

    #[test]
    fn a_datagram_queue_pair_gets_the_key_of_the_port_space() {
        let (a, mask) = for_state(&known(), IBV_QPT_UD, IBV_QPS_INIT).unwrap();
        assert_eq!((a.qkey, mask & IBV_QP_QKEY), (0x0123_4567, IBV_QP_QKEY));
        assert_eq!(for_state(&known(), IBV_QPT_UD, IBV_QPS_RTR).unwrap().1, IBV_QP_STATE);
    }

    #[test]
    fn an_initiator_only_sends_and_a_target_only_receives() {
        let mask = |qp_type, state| for_state(&known(), qp_type, state).unwrap().1;
        let (receives, sends) = (
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        );
        let [both_rtr, both_rts] = [IBV_QPS_RTR, IBV_QPS_RTS].map(|state| mask(IBV_QPT_RC, state));
        assert_eq!(both_rtr & receives, receives);
        assert_eq!(both_rts & sends, sends);
        assert_eq!(mask(IBV_QPT_XRC_SEND, IBV_QPS_RTR), both_rtr & !receives);
        assert_eq!(mask(IBV_QPT_XRC_SEND, IBV_QPS_RTS), both_rts);
        assert_eq!(mask(IBV_QPT_XRC_RECV, IBV_QPS_RTR), both_rtr);
        assert_eq!(mask(IBV_QPT_XRC_RECV, IBV_QPS_RTS), both_rts & !sends);
    }

    #[test]
    fn other_states_are_refused() {
        assert!(for_state(&known(), IBV_QPT_RC, IBV_QPS_ERR).is_err());
        assert!(for_state(&known(), IBV_QPT_RC, 99).is_err());
    }
}
