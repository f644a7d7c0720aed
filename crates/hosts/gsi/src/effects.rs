//! Carries out what the state machine decides: MADs into the port's batch, events to programs, queue pairs to RTS.

use crate::access::WorkerAccess;
use crate::agent::AgentIo;
use crate::channel::PendingEvent;
use crate::entry::{CmEntry, CmSession};
use crate::probes::{self, CmProbe};
use crate::stats::CmPhase;
use burst_base::gid::gid_of;
use burst_base::verbs::{Mtu, QpType};
use burst_base::{DeviceId, Nanos, Qkey, Qpn, Reason};
use burst_cm::message::CmMessage;
use burst_cm::service::parse_service_id;
use burst_cm::{
    AdmissionRefusal, BacklogPlace, CmEffects, CmStep, ConnAttr, ConnEvent, ConnEventKind, ConnRequest, PathRecord,
    QpSetup, RequestCharge, StepTime, Transport,
};
use burst_control::cm::{CmAddr, CmData, CmEvent, CmEventKind, CmRoute};
use burst_wire::{Bth, Deth, HeadBuf, MAD_LEN, Opcode};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The well-known Q_Key of QP1 (IBA 10.2.5).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// Status of an unreachable peer, as the kernel reports it.
const TIMED_OUT: i32 = -(rustix::io::Errno::TIMEDOUT.raw_os_error());
const NO_MEMORY: i32 = -(rustix::io::Errno::NOMEM.raw_os_error());

/// What a program sees of an event, and its status.
fn shown(owner: &CmEntry, event: &ConnEvent<'_>) -> (CmEventKind, i32) {
    match event.kind {
        ConnEventKind::Response => (CmEventKind::ConnectResponse, 0),
        ConnEventKind::Established => (CmEventKind::Established, 0),
        // As in Linux, a datagram service that refuses is reported as unreachable.
        ConnEventKind::Rejected if owner.qp_type == QpType::Ud => (CmEventKind::Unreachable, i32::from(event.status)),
        ConnEventKind::Rejected => (CmEventKind::Rejected, i32::from(event.status)),
        ConnEventKind::Unreachable => (CmEventKind::Unreachable, TIMED_OUT),
        ConnEventKind::ConnectError => (CmEventKind::ConnectError, NO_MEMORY),
        ConnEventKind::Disconnected => (CmEventKind::Disconnected, if event.status == 0 { 0 } else { TIMED_OUT }),
        ConnEventKind::TimewaitExit => (CmEventKind::TimewaitExit, 0),
    }
}

/// As in Linux, programs do not see the private data of an RTU, a DREQ or a DREP.
fn hides_data(owner: &CmEntry, kind: CmEventKind) -> bool {
    kind == CmEventKind::Disconnected || kind == CmEventKind::Established && owner.listener != 0
}

/// The agent and its worker, as the state machine sees them during one call.
pub(crate) struct AgentEffects<'a> {
    pub now: Nanos,
    pub worker: &'a mut dyn WorkerAccess,
    pub io: &'a mut AgentIo,
}

impl CmEffects<Arc<CmEntry>> for AgentEffects<'_> {
    fn send(&mut self, path: &PathRecord, _message: &CmMessage, mad: &[u8; MAD_LEN]) {
        let mads = &mut self.io.mads;
        mads.psn = mads.psn.next();
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, mads.psn);
        let head = HeadBuf::new(&bth).deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        let span = mads.put(mad);
        if !self.worker.send(self.now, path, head.as_slice(), span) {
            self.worker.count(path.device, Reason::SendQueueFull);
        }
    }

    fn event(&mut self, owner: &Arc<CmEntry>, path: &PathRecord, event: &ConnEvent<'_>) {
        if owner.is_requested() {
            return;
        }
        if event.kind == ConnEventKind::TimewaitExit {
            return self.io.timewait_exits.add(self.now, owner);
        }
        let (kind, status) = shown(owner, event);
        let route = owner.route.get().copied().unwrap_or_else(|| self.route_of(path, None, None));
        self.io.note_failure(self.now, owner, (event.kind, status), &route);
        let cookie = if kind == CmEventKind::Disconnected { self.now.0 } else { 0 };
        let event = CmEvent {
            status,
            cookie,
            route: CmRoute { mtu: event.conn.mtu, ..route },
            conn: event.conn,
            data: if hides_data(owner, kind) { CmData::EMPTY } else { CmData::new(event.data).unwrap_or_default() },
            ..CmEvent::new(kind, owner.id)
        };
        self.io.events.push(PendingEvent { entry: owner.clone(), channel: owner.channel(), event });
    }

    fn incoming(
        &mut self,
        listener: &Arc<CmEntry>,
        request: &ConnRequest<'_>,
    ) -> Result<Arc<CmEntry>, AdmissionRefusal> {
        let session = &listener.session;
        if session.is_over() {
            return Err(AdmissionRefusal::NoRoom);
        }
        let charge = session.charge_id(self.io.worker_id)?;
        let qp_type = match request.transport {
            Some(Transport::Rc) => QpType::Rc,
            Some(Transport::Uc) => QpType::Uc,
            Some(Transport::Xrc) => QpType::XrcRecv,
            None => QpType::Ud,
        };
        let port = parse_service_id(request.service_id).map_or(0, |(_, port)| port);
        let channel = listener.channel();
        let id = CmSession::next_id(session);
        let mut entry = CmEntry::new(session.clone(), id, listener.ps, qp_type, channel.clone());
        entry.listener = listener.id;
        let dst = request.src.map(|(ip, port)| address(&request.path, ip, port));
        let src = address(&request.path, request.path.flow.src, port);
        let mut route = self.route_of(&request.path, Some(src), dst);
        route.mtu = request.conn.mtu;
        route.ack_timeout = request.conn.ack_timeout;
        (entry.route, entry.requested, entry.path) = (route.into(), Some(request.conn), Some(request.path));
        entry.worker.store(self.io.worker_id, Ordering::Relaxed);
        entry.conn.store(request.id, Ordering::Relaxed);
        entry.charge = Mutex::new(charge);
        let entry = Arc::new(entry);
        session.arrivals.push(entry.clone());
        let event = CmEvent {
            listener: listener.id,
            route,
            conn: request.conn,
            data: CmData::new(request.data).unwrap_or_default(),
            ..CmEvent::new(CmEventKind::ConnectRequest, id)
        };
        self.io.events.push(PendingEvent { entry: listener.clone(), channel, event });
        Ok(entry)
    }

    fn charge_queued(&mut self, listener: &Arc<CmEntry>) -> Result<Option<RequestCharge>, AdmissionRefusal> {
        listener.session.charge_queued(self.io.worker_id)
    }

    fn unread(&self, listener: &Arc<CmEntry>) -> u32 {
        let channel = listener.channel();
        // Events that will be written at the end of this pass are unread, too.
        let coming = self.io.events.iter().filter(|e| Arc::ptr_eq(&e.channel, &channel)).count();
        if channel.has_backlog() { u32::MAX } else { (channel.unread() + coming) as u32 }
    }

    fn keep_place(&mut self, owner: &Arc<CmEntry>, place: BacklogPlace) {
        owner.keep_place(place);
    }

    fn ready(&mut self, owner: &Arc<CmEntry>, path: &PathRecord, conn: &ConnAttr) -> QpSetup {
        let Some(qp) = owner.qp.get() else { return QpSetup::ByProgram };
        if self.worker.connect_qp(self.now, qp, path, conn) { QpSetup::Done } else { QpSetup::Failed }
    }

    fn mtu(&self, device: DeviceId) -> Mtu {
        Mtu::for_link(self.worker.caps(device).link_mtu).unwrap_or(Mtu::B256)
    }

    fn count(&mut self, device: DeviceId, reason: Reason) {
        self.worker.count(device, reason);
    }

    fn step(&mut self, owner: Option<&Arc<CmEntry>>, path: &PathRecord, id: u32, step: CmStep, took: StepTime) {
        if let Some(phase) = CmPhase::ended_by(step) {
            self.io.times.note(phase, took.elapsed);
        }
        if let (CmStep::Established, Some(established)) = (step, &mut self.io.established) {
            established.push(id);
        }
        let owner_id = owner.map_or(0, |o| o.id);
        match CmProbe::of(step) {
            Some(probe) => probes::fire(probe, owner_id, id, path.flow.dst, took.elapsed),
            None => {
                let worker = &*self.worker;
                probes::established(owner_id, id, path.flow.dst, took, || prepared(worker, owner));
                self.io.setups.note(owner_id, took, || prepared(worker, owner));
            }
        }
    }
}

impl AgentEffects<'_> {
    /// The route of a connection, made from the path of its packets.
    fn route_of(&self, path: &PathRecord, src: Option<CmAddr>, dst: Option<CmAddr>) -> CmRoute {
        let caps = self.worker.caps(path.device);
        let index = caps.addrs.iter().position(|a| a.ip == path.flow.src).unwrap_or(0);
        CmRoute {
            src,
            dst,
            device: Some(path.device.into()),
            sgid: gid_of(path.flow.src),
            dgid: gid_of(path.flow.dst),
            sgid_index: index as u8,
            mtu: self.mtu(path.device),
            traffic_class: path.flow.tos,
            ..CmRoute::default()
        }
    }
}

/// Nanoseconds that resolving the address, resolving the route and creating the queue pair took. 0 where unknown.
fn prepared(worker: &dyn WorkerAccess, owner: Option<&Arc<CmEntry>>) -> [u64; 3] {
    let Some(owner) = owner else { return [0; 3] };
    let made = owner.qp.get().map_or(0, |qp| worker.creation_ns(qp.qpn));
    let ns = |cell: &AtomicU32| u64::from(cell.load(Ordering::Relaxed));
    [ns(&owner.address_ns), ns(&owner.route_ns), u64::from(made)]
}

fn address(path: &PathRecord, ip: IpAddr, port: u16) -> CmAddr {
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    CmAddr { ip, port, scope: if link_local { path.flow.scope } else { 0 } }
}
