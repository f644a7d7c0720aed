//! The worker's side of connection management: what the GSI agent needs of tables and ports, and the calls of the control thread.
//!
//! The agent moves queue pairs for programs that leave it to the daemon: INIT, RTR and RTS in one call, ERR at the end.

use crate::flow::{entropy_of, flow_of, gid_of};
use crate::worker::{DataPath, Worker};
use burst_base::conn::ConnParam;
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpState, QpType, access, attr_mask as m, min_rnr_timer};
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason};
use burst_cm::{Backlog, CmError, CmIds, ConnAttr, PathRecord};
use burst_control::monitor::CmConnection;
use burst_frame::Flow;
use burst_gsi::{CmEntry, CmJob, CmQpRef, CmSession, CmTimes, ConnCounts, PassLoad, WorkerAccess};
use burst_port::PortCaps;
use burst_span::Span;
use std::net::IpAddr;
use std::sync::Arc;

impl Worker {
    /// Lets the agent serve received management datagrams and due timers. Returns whether there were any.
    pub(crate) fn run_agent(&mut self, now: Nanos) -> bool {
        let Worker { core, ports, agent, .. } = self;
        if agent.next_deadline() > now {
            return false;
        }
        let load = PassLoad { data_came: std::mem::take(&mut core.data_came), unread: core.unread };
        let mut data_path = DataPath { core, ports };
        agent.run(now, load, &mut data_path);
        data_path.flush_all(now);
        true
    }

    /// Carries out what programs asked of their connections; failures become events of their ids.
    pub fn cm_jobs(&mut self, now: Nanos, jobs: Vec<CmJob>) {
        let Worker { core, ports, agent, .. } = self;
        let mut data_path = DataPath { core, ports };
        agent.carry_out(now, jobs, &mut data_path);
        data_path.flush_all(now);
    }

    /// Moves the queue pair of an id that came with a request to RTS, before its accept; for a queue pair that is not on the
    /// worker of the connection. False when that is not possible.
    pub fn cm_ready(&mut self, now: Nanos, entry: &CmEntry, param: &ConnParam) -> bool {
        let (Some(qp), Some(path), Some(negotiated)) = (entry.qp.get(), &entry.path, entry.negotiated(param)) else {
            return false;
        };
        let mut data_path = self.data_path();
        let done = data_path.connect_qp(now, qp, path, &negotiated);
        data_path.flush_all(now);
        done
    }

    /// Adds a listener. Every worker has all listeners.
    ///
    /// # Errors
    /// [`CmError::InUse`] when there is one with the same address already.
    pub fn cm_listen(
        &mut self,
        owner: Arc<CmEntry>,
        addr: Option<IpAddr>,
        device: Option<DeviceId>,
        port: u16,
        backlog: Arc<Backlog>,
    ) -> Result<(), CmError> {
        self.agent.listen(owner, addr, device, port, backlog)
    }

    /// Ends all listeners of a program. When this has run, no new id of the program comes from this worker.
    pub fn cm_end_listeners(&mut self, session: &Arc<CmSession>) {
        self.agent.end_listeners(session);
    }

    /// Ends a listener.
    pub fn cm_unlisten(&mut self, entry: &Arc<CmEntry>) {
        self.agent.unlisten(entry);
    }

    /// Times of the steps of connection setup.
    pub fn cm_times(&self) -> Arc<CmTimes> {
        self.agent.times()
    }

    /// Number of connections and of queued requests.
    pub fn cm_conn_counts(&self) -> ConnCounts {
        self.agent.conn_counts()
    }

    /// Up to `most` connections from a place in the table on, and where the next ones begin.
    pub fn cm_page(&mut self, now: Nanos, from: u32, most: usize) -> (Vec<CmConnection>, Option<u32>) {
        self.agent.page(now, from, most)
    }

    /// Up to `most` listeners, which are the same in every worker.
    pub fn cm_listeners(&self, most: usize) -> Vec<CmConnection> {
        self.agent.listeners(most)
    }

    /// Sets the GUIDs of the devices, in device order; requests and replies carry them.
    pub fn set_guids(&mut self, guids: Vec<u64>) {
        self.agent.set_guids(guids);
    }
}

impl WorkerAccess for DataPath<'_> {
    fn send(&mut self, now: Nanos, device: DeviceId, flow: &Flow, head: &[u8], payload: Span) -> bool {
        if !self.ports[device.index()].batch.has_room() {
            self.flush_all(now);
        }
        self.ports[device.index()].batch.push(flow, head, &[payload], 0)
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
        }
        self.core.settle(now, self.core.directory.find(qp.qpn));
        moved
    }

    fn fail_qp(&mut self, now: Nanos, qp: &CmQpRef) {
        let Some((_, state)) = self.owned_qp(qp) else { return };
        let mut go = |to: QpState, mask: u32| {
            let attr = QpAttr { qp_state: to, port_num: 1, ..QpAttr::default() };
            // Refused only if it is in ERR already.
            let _ = self.modify_qp(now, qp.qpn, &attr, m::STATE | mask, None);
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
            && slot.endpoint.qp().qp_type() == QpType::Rc
        {
            file.write(slot.index, &slot.tombstone(*slot.endpoint.qp().flow(), Some(ids)));
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
    /// Type and state of a queue pair that belongs to the context which `qp` names.
    fn owned_qp(&self, qp: &CmQpRef) -> Option<(QpType, QpState)> {
        let slot = self.core.slot(qp.qpn).filter(|s| s.holder.context == qp.context)?;
        let qp = slot.endpoint.qp();
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
