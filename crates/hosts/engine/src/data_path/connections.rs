//! What connection management does with queue pairs: INIT, RTR and RTS in one call, ERR at the end.

use crate::data_path::{DataPath, QpChange};
use crate::flow::{entropy_of, flow_of, gid_of};
use burst_base::conn::PeerClass;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpState, QpType, access, attr_mask as m, min_rnr_timer};
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason};
use burst_cm::{CmIds, ConnAttr, PathRecord};
use burst_gsi::{CmQpRef, WorkerAccess};
use burst_port::PortCaps;
use burst_span::Span;
use std::net::IpAddr;

impl WorkerAccess for DataPath<'_> {
    fn send(&mut self, now: Nanos, path: &PathRecord, head: &[u8], payload: Span) -> bool {
        if !self.ports[path.device.index()].batch.has_room() {
            self.flush_all(now);
        }
        self.ports[path.device.index()].batch.push(&path.flow, head, &[payload], 0)
    }

    fn caps(&self, device: DeviceId) -> &PortCaps {
        self.ports[device.index()].port.caps()
    }

    fn count(&mut self, device: DeviceId, reason: Reason) {
        self.ports[device.index()].counters.count(reason);
    }

    fn connect_qp(&mut self, now: Nanos, qp: &CmQpRef, path: &PathRecord, conn: &ConnAttr) -> bool {
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
        let flow = self.markable(qp.qpn, flow);
        let mut attr = attributes(conn, ah, mtu);
        let (rtr, rts) = needed(qp_type);
        let steps =
            [(QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS), (QpState::Rtr, rtr), (QpState::Rts, rts)];
        let skip = match state {
            QpState::Reset => 0,
            QpState::Init => 1,
            _ => return false,
        };
        if self.reserve_path().is_err() {
            return false;
        }
        self.follow_port(qp.qpn);
        let moved = self.call_qp(now, qp.qpn, |qp, env| {
            steps.into_iter().skip(skip).all(|(to, mask)| {
                attr.qp_state = to;
                qp.modify(&attr, mask | m::STATE, (mask & m::AV != 0).then_some(flow), env).is_ok()
            })
        });
        let moved = moved == Some(true);
        if moved {
            self.join_path(now, qp.qpn, flow);
            self.note_class(now, path.device, flow.dst, conn.peer);
        }
        self.core.settle(now, self.core.directory.find(qp.qpn));
        moved
    }

    fn fail_qp(&mut self, now: Nanos, qp: &CmQpRef) {
        let Some((_, state)) = self.owned_qp(qp) else { return };
        let mut go = |to: QpState, mask: u32| {
            let attr = QpAttr { qp_state: to, port_num: 1, ..QpAttr::default() };
            // Refused only if it is in ERR already.
            let _ = self.modify_qp(now, qp.qpn, QpChange { attr: &attr, mask: m::STATE | mask, flow: None });
        };
        // For the program the queue pair is in INIT, where receives may be posted, and these must be flushed. There is
        // no transition from RESET to ERR (IBA 10.3.1).
        if state == QpState::Reset {
            go(QpState::Init, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS);
        }
        go(QpState::Err, 0);
    }

    fn note_connection(&mut self, qpn: Qpn, ids: CmIds) {
        // A queue pair of another worker has a record without ids.
        if let (Some(file), Some(slot)) = (&self.core.tombstone_file, self.core.slot(qpn))
            && slot.qp.qp_type() == QpType::Rc
        {
            file.write(slot.index, &slot.tombstone(*slot.qp.flow(), Some(ids)));
        }
    }

    fn creation_ns(&self, qpn: Qpn) -> u32 {
        self.core.slot(qpn).map_or(0, |slot| slot.made_ns)
    }

    fn owns_qp(&self, qp: &CmQpRef) -> bool {
        self.owned_qp(qp).is_some()
    }
}

impl DataPath<'_> {
    /// A connection shows of which class its peer is: the path's controller follows at once. Only here, and not at each REQ and
    /// REP, because anybody can forge their sender, and a connection needs the peer's own numbers.
    fn note_class(&mut self, now: Nanos, device: DeviceId, peer: IpAddr, class: PeerClass) {
        let Some(at) = self.core.paths.find(device, peer) else { return };
        if class == PeerClass::Standard {
            self.core.paths[at as usize].conditions.note_adapter(now);
            self.follow_choice(now, at as usize);
        }
    }

    /// Type and state of a queue pair that belongs to the context which `qp` names.
    fn owned_qp(&self, qp: &CmQpRef) -> Option<(QpType, QpState)> {
        let slot = self.core.slot(qp.qpn).filter(|s| s.holder.context == qp.context)?;
        let qp = &slot.qp;
        Some((qp.qp_type(), qp.state()))
    }
}

/// Attributes that the moves to RTR and to RTS need. An XRC initiator receives no requests, and a target sends none.
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

fn attributes(conn: &ConnAttr, ah: AhAttr, path_mtu: Mtu) -> QpAttr {
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
