//! Requests of programs concerning their connections. The control thread passes them to the worker in batches and does not wait.

use crate::access::WorkerAccess;
use crate::agent::GsiAgent;
use crate::channel::{CmChannel, PendingEvent};
use crate::effects::AgentEffects;
use crate::entry::{CmEntry, CmQpRef};
use burst_base::verbs::{Mtu, QpType};
use burst_base::{DeviceId, Nanos};
use burst_cm::service::{self, service_id};
use burst_cm::{Backlog, CmError, ConnParam, ConnectParams, EndParams, Listener, PathRecord, Transport};
use burst_control::cm::{CmData, CmEvent, CmEventKind, PortSpace};
use burst_ledger::Charge;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Parameters of a REQ or SIDR_REQ.
#[derive(Clone, Copy, Debug)]
pub struct CmRequest {
    /// Path to the peer.
    pub path: PathRecord,
    /// Addresses and our port for the RDMA-CM header (IBA annex A11). With an unspecified source address and port space IB, the
    /// request has no such header.
    pub header: service::PrivateDataHeader,
    /// Port number of the peer's service.
    pub port: u16,
    /// Path MTU that our end can use.
    pub mtu: Mtu,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// Parameters of `rdma_connect`.
    pub param: ConnParam,
    /// Private data of `rdma_connect`.
    pub data: CmData,
}

/// One request of a program, or of the control thread for it.
#[derive(Debug)]
pub enum CmJob {
    /// Sends a REQ or SIDR_REQ.
    Connect(Arc<CmEntry>, Box<CmRequest>),
    /// Sends a REP or SIDR_REP. A queue pair that the daemon moves must belong to this worker, or be in RTS.
    Accept(Arc<CmEntry>, ConnParam, Box<CmData>),
    /// Sends a REJ with this reason.
    Reject(Arc<CmEntry>, u16, Box<CmData>),
    /// Sends an RTU.
    Establish(Arc<CmEntry>),
    /// Establishes the connection, because data came before the RTU (`rdma_notify`).
    Notify(Arc<CmEntry>),
    /// Sends a DREQ.
    Disconnect(Arc<CmEntry>),
    /// Ends the id's connection, whatever its state. What it costs is given back when the connection manager has forgotten it.
    Destroy(Arc<CmEntry>, Option<Box<Charge>>),
    /// Moves a queue pair to ERR, if it is this worker's.
    FailQp(CmQpRef),
    /// Retries a full channel from now on.
    Retry(Arc<CmChannel>),
}

/// Where a listener listens.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddr {
    /// `None`: all addresses of both families.
    pub addr: Option<IpAddr>,
    /// `None`: all devices.
    pub device: Option<DeviceId>,
    /// Port in the port space of the id.
    pub port: u16,
}

impl GsiAgent {
    /// Carries out what programs asked for; failures become events of their ids.
    pub fn carry_out(&mut self, now: Nanos, jobs: Vec<CmJob>, worker: &mut dyn WorkerAccess) {
        for job in jobs {
            self.carry_out_one(now, worker, job);
        }
        self.finish(now, worker);
    }

    /// Adds a listener. Every worker has all listeners.
    ///
    /// # Errors
    /// [`CmError::InUse`] when there is one with the same address already.
    pub fn listen(&mut self, owner: Arc<CmEntry>, at: ListenAddr, backlog: Arc<Backlog>) -> Result<(), CmError> {
        let ListenAddr { addr, device, port } = at;
        let sidr = owner.qp_type == QpType::Ud;
        let transport = transport_of(owner.qp_type);
        let service_id = service_id(owner.ps as u16, port);
        let listener = Listener { service_id, owner, addr, device, sidr, transport, backlog };
        self.machine.listen(listener)
    }

    /// Ends the listeners of an id, which listens on this port.
    pub fn unlisten(&mut self, entry: &Arc<CmEntry>, port: u16) {
        self.machine.unlisten_service(service_id(entry.ps as u16, port), |owner| Arc::ptr_eq(owner, entry));
    }

    fn carry_out_one(&mut self, now: Nanos, worker: &mut dyn WorkerAccess, mut job: CmJob) {
        let GsiAgent { machine, io, .. } = self;
        if let CmJob::Destroy(entry, charge) = &mut job
            && let Some(charge) = charge.take()
        {
            machine.keep_cost(entry.conn(), charge);
        }
        let conn = |entry: &Arc<CmEntry>| entry.conn();
        let failed = match &job {
            CmJob::Connect(entry, request) => return self.connect(now, worker, entry, request),
            CmJob::Accept(entry, param, data) => self.accept(now, worker, entry, param, data).err(),
            CmJob::Reject(entry, reason, data) => {
                let mut fx = AgentEffects { now, worker, io };
                entry.leave_place();
                // Fails if the peer has withdrawn the request: then no REJ is needed.
                let _ = machine.reject(now, conn(entry), *reason, data.as_slice(), &mut fx);
                None
            }
            CmJob::Establish(entry) => machine.establish(now, conn(entry), &mut AgentEffects { now, worker, io }).err(),
            CmJob::Notify(entry) => {
                // Fails if the connection is established already, or has ended: then there is nothing to do.
                let _ = machine.notify(now, conn(entry), &mut AgentEffects { now, worker, io });
                None
            }
            CmJob::Disconnect(entry) => {
                // Fails if the connection has ended: then it is disconnected.
                let _ = machine.disconnect(now, conn(entry), &mut AgentEffects { now, worker, io });
                None
            }
            CmJob::FailQp(qp) => {
                worker.fail_qp(now, qp);
                None
            }
            CmJob::Retry(channel) => {
                io.retry_later(now, channel.clone());
                None
            }
            CmJob::Destroy(entry, _) => {
                machine.destroy(now, conn(entry), &mut AgentEffects { now, worker, io });
                None
            }
        };
        if let (Some(error), CmJob::Accept(entry, ..) | CmJob::Establish(entry)) = (failed, &job) {
            self.report_failure(entry, error);
        }
    }

    /// Reports a failed connect, accept or establish by an event.
    fn report_failure(&mut self, entry: &Arc<CmEntry>, error: CmError) {
        let errno = match error {
            CmError::Gone => rustix::io::Errno::CONNRESET,
            CmError::WrongState => rustix::io::Errno::INVAL,
            CmError::NoRoom => rustix::io::Errno::NOMEM,
            CmError::DataTooLong => rustix::io::Errno::MSGSIZE,
            CmError::InUse => rustix::io::Errno::ADDRINUSE,
        };
        let event = CmEvent {
            status: -errno.raw_os_error(),
            route: entry.route.get().copied().unwrap_or_default(),
            ..CmEvent::new(CmEventKind::ConnectError, entry.id)
        };
        self.io.events.push(PendingEvent { entry: entry.clone(), channel: entry.channel(), event });
    }

    fn connect(&mut self, now: Nanos, worker: &mut dyn WorkerAccess, entry: &Arc<CmEntry>, request: &CmRequest) {
        // A peer takes a request that names the queue pair of an existing connection as a sign that this connection is stale, and
        // ends it (IBA 12.9.8.3.1): a program names its own queue pair.
        if entry.qp.get().is_some_and(|qp| !worker.owns_qp(qp)) {
            return self.report_failure(entry, CmError::WrongState);
        }
        let GsiAgent { machine, io, .. } = self;
        let mut data = [0; service::HEADER_LEN + burst_control::cm::CM_DATA_MAX];
        let skip =
            if entry.ps == PortSpace::Ib && request.header.src.is_unspecified() { 0 } else { service::HEADER_LEN };
        data[..skip].copy_from_slice(&request.header.to_bytes()[..skip]);
        let user = request.data.as_slice();
        data[skip..skip + user.len()].copy_from_slice(user);
        let data = &data[..skip + user.len()];
        let service = service_id(entry.ps as u16, request.port);
        let guid = io.guids[request.path.device.index()];
        let mut fx = AgentEffects { now, worker, io };
        let made = if entry.qp_type == QpType::Ud {
            machine.resolve(now, entry.clone(), &request.path, service, data, &mut fx)
        } else {
            let params = ConnectParams {
                path: request.path,
                service_id: service,
                transport: transport_of(entry.qp_type),
                end: end_of(entry, &request.param, guid, data),
                mtu: request.mtu,
                ack_timeout: request.ack_timeout,
            };
            machine.connect(now, entry.clone(), &params, &mut fx)
        };
        match made {
            Ok(id) => {
                debug_assert_ne!(id, 0, "0 means that there is no connection");
                entry.conn.store(id, Ordering::Relaxed);
            }
            Err(error) => self.report_failure(entry, error),
        }
    }

    fn accept(
        &mut self,
        now: Nanos,
        worker: &mut dyn WorkerAccess,
        entry: &Arc<CmEntry>,
        param: &ConnParam,
        data: &CmData,
    ) -> Result<(), CmError> {
        let GsiAgent { machine, io, .. } = self;
        entry.leave_place();
        let device = entry.route.get().and_then(|r| r.device).unwrap_or(0);
        let end = end_of(entry, param, io.guids[device as usize], data.as_slice());
        if entry.qp_type == QpType::Ud {
            return machine.serve(now, entry.conn(), &end, &mut AgentEffects { now, worker, io });
        }
        let (path, negotiated) = machine.offer(entry.conn(), &end.param)?;
        if let Some(qp) = entry.qp.get()
            && qp.qpn.worker() == io.worker_id
            && !worker.connect_qp(now, qp, &path, &entry.adjust(negotiated))
        {
            return Err(CmError::WrongState);
        }
        machine.accept(now, entry.conn(), &end, &mut AgentEffects { now, worker, io })?;
        entry.accept();
        Ok(())
    }
}

/// The transport service of connected queue pairs.
fn transport_of(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Uc => Transport::Uc,
        QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
        QpType::Rc | QpType::Ud => Transport::Rc,
    }
}

/// Parameters of this end: the program's, with the number of the queue pair that the daemon moves, if it moves one.
fn end_of<'a>(entry: &CmEntry, param: &ConnParam, ca_guid: u64, data: &'a [u8]) -> EndParams<'a> {
    let qpn = entry.qp.get().map_or(param.qpn, |qp| qp.qpn.get());
    EndParams { param: ConnParam { qpn, ..*param }, ca_guid, data }
}
