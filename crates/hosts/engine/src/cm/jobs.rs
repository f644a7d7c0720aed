//! What programs ask of their connections, as the control thread passes it on: many at a time, without waiting.

use super::channel::{CmChannel, News};
use super::effects::CmFx;
use super::entry::{CmEntry, CmQpRef, CmSession};
use super::host::CmHost;
use crate::worker::Worker;
use burst_base::verbs::{Mtu, QpType};
use burst_base::{DeviceId, Nanos};
use burst_cm::service::{self, service_id};
use burst_cm::{Backlog, CmError, ConnectParams, EndParams, Listener, Negotiated, PathRecord, SidrParams, Transport};
use burst_control::cm::{CmEvent, CmEventKind, CmParam, PortSpace};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a connection or datagram service is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CmRequest {
    /// Way to the peer.
    pub path: PathRecord,
    /// Addresses and our port for the RDMA-CM header; none for a program that speaks InfiniBand addresses.
    pub header: service::PrivateDataHeader,
    /// The peer's port.
    pub port: u16,
    /// MTU of our end.
    pub mtu: Mtu,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// Parameters.
    pub param: CmParam,
}

/// One wish.
#[derive(Debug)]
pub enum CmJob {
    /// REQ or SIDR_REQ.
    Connect(Arc<CmEntry>, Box<CmRequest>),
    /// REP or SIDR_REP. If the queue pair is the daemon's to move, it belongs to this worker, or is ready.
    Accept(Arc<CmEntry>, Box<CmParam>),
    /// REJ.
    Reject(Arc<CmEntry>, u16, Box<CmParam>),
    /// RTU.
    Establish(Arc<CmEntry>),
    /// Data came.
    Notify(Arc<CmEntry>),
    /// DREQ.
    Disconnect(Arc<CmEntry>),
    /// The id is over.
    Destroy(Arc<CmEntry>),
    /// To ERR, if it is this worker's.
    FailQp(CmQpRef),
    /// The channel is full: it shall be tried again.
    Retry(Arc<CmChannel>),
}

impl Worker {
    /// Carries out wishes; failures become events of their ids.
    pub fn cm_jobs(&mut self, now: Nanos, jobs: Vec<CmJob>) {
        self.with_cm(now, |host, worker| {
            for job in jobs {
                host.carry_out(now, worker, job);
            }
        });
        self.flush_all(now);
    }

    /// Makes ready the queue pair of an id that came with a request, before its accept; for a queue pair that is not
    /// on the worker of the connection. False when it cannot be.
    pub fn cm_ready(&mut self, now: Nanos, entry: &CmEntry, param: &CmParam) -> bool {
        let (Some(qp), Some(path), Some(wishes)) = (entry.qp.get(), &entry.path, &entry.wishes) else {
            return false;
        };
        let negotiated = Negotiated {
            responder_resources: wishes.responder_resources.min(param.responder_resources),
            initiator_depth: wishes.initiator_depth.min(param.initiator_depth),
            peer_rnr_retry_count: param.rnr_retry_count,
            ..entry.adjust(*wishes)
        };
        let done = self.connect_qp(now, qp, path, &negotiated);
        self.flush_all(now);
        done
    }

    /// Makes a service known. Every worker has every listener.
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
        let sidr = owner.qp_type == QpType::Ud;
        let transport = transport_of(owner.qp_type);
        let service_id = service_id(owner.ps as u16, port);
        let listener = Listener { service_id, owner, addr, device, sidr, transport, backlog };
        self.core.cm.as_mut().map_or(Ok(()), |host| host.machine.listen(listener))
    }

    /// Ends all listeners of a program. When this has run, no new id of the program comes from this worker.
    pub fn cm_end_listeners(&mut self, session: &Arc<CmSession>) {
        if let Some(host) = &mut self.core.cm {
            host.machine.unlisten(|owner| Arc::ptr_eq(&owner.session, session));
        }
    }

    /// Ends a listener.
    pub fn cm_unlisten(&mut self, entry: &Arc<CmEntry>) {
        if let Some(host) = &mut self.core.cm {
            host.machine.unlisten(|owner| Arc::ptr_eq(owner, entry));
        }
    }
}

impl CmHost {
    fn carry_out(&mut self, now: Nanos, worker: &mut Worker, job: CmJob) {
        let CmHost { machine, rest, .. } = self;
        let conn = |entry: &Arc<CmEntry>| entry.conn();
        let failed = match &job {
            CmJob::Connect(entry, request) => return self.connect(now, worker, entry, request),
            CmJob::Accept(entry, param) => self.accept(now, worker, entry, param).err(),
            CmJob::Reject(entry, reason, param) => {
                let mut fx = CmFx { now, worker, rest };
                entry.leave_place();
                // The peer may have gone meanwhile: then there is nobody to refuse.
                let _ = machine.reject(now, conn(entry), *reason, param.data.as_slice(), &mut fx);
                None
            }
            CmJob::Establish(entry) => machine.establish(now, conn(entry), &mut CmFx { now, worker, rest }).err(),
            CmJob::Notify(entry) => {
                // Established already, or over: either is no news.
                let _ = machine.notify(now, conn(entry), &mut CmFx { now, worker, rest });
                None
            }
            CmJob::Disconnect(entry) => {
                // A connection that is over is disconnected.
                let _ = machine.disconnect(now, conn(entry), &mut CmFx { now, worker: &mut *worker, rest });
                None
            }
            CmJob::FailQp(qp) => {
                worker.fail_qp(now, qp);
                None
            }
            CmJob::Retry(channel) => {
                rest.owe(now, channel.clone());
                None
            }
            CmJob::Destroy(entry) => {
                machine.destroy(now, conn(entry), &mut CmFx { now, worker, rest });
                None
            }
        };
        if let (Some(error), CmJob::Accept(entry, _) | CmJob::Establish(entry)) = (failed, &job) {
            self.tell_failure(entry, error);
        }
    }

    /// An accept or establish that came too late, or cannot be.
    fn tell_failure(&mut self, entry: &Arc<CmEntry>, error: CmError) {
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
        let news = News { entry: entry.clone(), channel: entry.channel(), event };
        self.rest.events.push(news);
    }

    fn connect(&mut self, now: Nanos, worker: &mut Worker, entry: &Arc<CmEntry>, request: &CmRequest) {
        let CmHost { machine, rest, .. } = self;
        let param = &request.param;
        let mut data = [0; service::HEADER_LEN + burst_control::cm::CM_DATA_MAX];
        let skip =
            if entry.ps == PortSpace::Ib && request.header.src.is_unspecified() { 0 } else { service::HEADER_LEN };
        data[..skip].copy_from_slice(&request.header.to_bytes()[..skip]);
        let user = param.data.as_slice();
        data[skip..skip + user.len()].copy_from_slice(user);
        let data = &data[..skip + user.len()];
        let service = service_id(entry.ps as u16, request.port);
        let guid = rest.guids[request.path.device.index()];
        let mut fx = CmFx { now, worker, rest };
        let made = if entry.qp_type == QpType::Ud {
            machine.resolve(now, entry.clone(), &request.path, service, data, &mut fx)
        } else {
            let flow = &request.path.flow;
            let wish = ConnectParams {
                path: request.path,
                service_id: service,
                transport: transport_of(entry.qp_type),
                end: end_of(entry, param, guid, data),
                retry_count: param.retry_count,
                mtu: request.mtu,
                ack_timeout: request.ack_timeout,
                gids: (crate::flow::gid_of(flow.src), crate::flow::gid_of(flow.dst)),
            };
            machine.connect(now, entry.clone(), &wish, &mut fx)
        };
        match made {
            Ok(id) => entry.conn.store(id, Ordering::Relaxed),
            Err(error) => self.tell_failure(entry, error),
        }
    }

    fn accept(
        &mut self,
        now: Nanos,
        worker: &mut Worker,
        entry: &Arc<CmEntry>,
        param: &CmParam,
    ) -> Result<(), CmError> {
        let CmHost { machine, rest, .. } = self;
        let data = param.data.as_slice();
        entry.leave_place();
        if entry.qp_type == QpType::Ud {
            let qpn = entry.qp.get().map_or(param.qp_num, |qp| qp.qpn.get());
            let params = SidrParams { qpn, qkey: param.qkey, ece: param.ece, data };
            return machine.serve(now, entry.conn(), &params, &mut CmFx { now, worker, rest });
        }
        let port = entry.route.get().and_then(|r| r.device).unwrap_or(0);
        let end = end_of(entry, param, rest.guids[port as usize], data);
        let (path, negotiated) = machine.offer(entry.conn(), &end)?;
        if let Some(qp) = entry.qp.get()
            && crate::qpn::worker_of(qp.qpn) == rest.worker_id
            && !worker.connect_qp(now, qp, &path, &entry.adjust(negotiated))
        {
            return Err(CmError::WrongState);
        }
        machine.accept(now, entry.conn(), &end, &mut CmFx { now, worker, rest })?;
        entry.accept();
        Ok(())
    }
}

/// The service of connected queue pairs.
fn transport_of(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Uc => Transport::Uc,
        QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
        QpType::Rc | QpType::Ud => Transport::Rc,
    }
}

fn end_of<'a>(entry: &CmEntry, param: &CmParam, ca_guid: u64, data: &'a [u8]) -> EndParams<'a> {
    EndParams {
        qpn: entry.qp.get().map_or(param.qp_num, |qp| qp.qpn.get()),
        ca_guid,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        ece: param.ece,
        data,
    }
}
