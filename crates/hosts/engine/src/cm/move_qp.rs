//! Queue pairs that the daemon moves for their programs: INIT, RTR and RTS in one go, ERR at the end.

use super::entry::CmQpRef;
use crate::flow::{entropy_of, flow_of, gid_of};
use crate::qpn::slot_of;
use crate::worker::Worker;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpState, QpType, access, attr_mask as m, min_rnr_timer};
use burst_base::{Nanos, Psn, Qpn};
use burst_cm::{Negotiated, PathRecord};

impl Worker {
    /// Makes a queue pair of this worker ready to send. False when it is not the program's, or in another state.
    pub(super) fn connect_qp(&mut self, now: Nanos, qp: &CmQpRef, path: &PathRecord, conn: &Negotiated) -> bool {
        let Some((qp_type, state)) = self.owned_qp(qp) else { return false };
        let caps = self.ports[path.device.index()].port.caps();
        let index = caps.addrs.iter().position(|a| a.ip == path.flow.src).unwrap_or(0);
        let ah = AhAttr {
            dgid: gid_of(path.flow.dst),
            sgid_index: index as u8,
            traffic_class: path.flow.tos,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let own = caps.active_mtu();
        let mtu = if own.bytes() < conn.mtu.bytes() { own } else { conn.mtu };
        let Ok(flow) = flow_of(caps, &ah, entropy_of(qp.qpn, Qpn::new(conn.remote_qpn))) else { return false };
        let mut attr = attributes(conn, ah, mtu);
        let (rtr, rts) = needed(qp_type);
        let steps =
            [(QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS), (QpState::Rtr, rtr), (QpState::Rts, rts)];
        let skip = match state {
            QpState::Reset => 0,
            QpState::Init => 1,
            _ => return false,
        };
        self.follow_port(qp.qpn);
        let moved = self.with_qp(qp.qpn, now, |slot, env| {
            steps.into_iter().skip(skip).all(|(to, mask)| {
                attr.qp_state = to;
                slot.qp.modify(&attr, mask | m::STATE, (mask & m::AV != 0).then_some(flow), env).is_ok()
            })
        });
        let moved = moved == Some(true);
        if moved {
            self.join_path(now, qp.qpn, flow);
        }
        self.core.settle(now, slot_of(qp.qpn));
        moved
    }

    /// Moves a queue pair to the error state, if it is the program's.
    pub(super) fn fail_qp(&mut self, now: Nanos, qp: &CmQpRef) {
        let Some((_, state)) = self.owned_qp(qp) else { return };
        let mut go = |to: QpState, mask: u32| {
            let attr = QpAttr { qp_state: to, port_num: 1, ..QpAttr::default() };
            // Refused only if it is in error already.
            let _ = self.modify_qp_unsent(now, qp.qpn, &attr, m::STATE | mask, None);
        };
        // The program believes it in INIT, and its receives shall be flushed; from RESET there is no way to ERR.
        if state == QpState::Reset {
            go(QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS);
        }
        go(QpState::Err, 0);
    }

    fn owned_qp(&self, qp: &CmQpRef) -> Option<(QpType, QpState)> {
        let slot = self.slot(qp.qpn).filter(|s| s.context == qp.context)?;
        Some((slot.qp.qp_type(), slot.qp.state()))
    }
}

/// What the moves to RTR and RTS need: an XRC initiator does not receive requests, a target does not send any.
fn needed(qp_type: QpType) -> (u32, u32) {
    let rtr = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::ACCESS_FLAGS;
    let (receives, sends) =
        (m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER, m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC);
    match qp_type {
        QpType::Rc => (rtr | receives, m::SQ_PSN | m::TIMEOUT | sends),
        QpType::XrcSend => (rtr, m::SQ_PSN | m::TIMEOUT | sends),
        QpType::XrcRecv => (rtr | receives, m::SQ_PSN | m::TIMEOUT),
        QpType::Uc | QpType::Ud => (rtr, m::SQ_PSN),
    }
}

fn attributes(conn: &Negotiated, ah: AhAttr, path_mtu: Mtu) -> QpAttr {
    let reads = if conn.responder_resources > 0 { access::REMOTE_READ | access::REMOTE_ATOMIC } else { 0 };
    QpAttr {
        path_mtu,
        port_num: 1,
        ah,
        dest_qpn: Qpn::new(conn.remote_qpn),
        rq_psn: Psn::new(conn.rq_psn),
        sq_psn: Psn::new(conn.sq_psn),
        qp_access_flags: access::REMOTE_WRITE | access::LOCAL_WRITE | reads,
        max_dest_rd_atomic: conn.responder_resources,
        max_rd_atomic: conn.initiator_depth,
        min_rnr_timer: min_rnr_timer(conn.peer_rnr_retry_count),
        timeout: conn.ack_timeout,
        retry_cnt: conn.retry_count,
        rnr_retry: conn.rnr_retry_count,
        ..QpAttr::default()
    }
}
