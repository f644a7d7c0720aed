//! Connections: a command is checked here and becomes a job for the worker that has, or will have, the connection.

use super::client::CmClient;
use super::id::{CmIdStage, HostCmId};
use super::ports::PortBinding;
use super::resolve::{ACK_TIMEOUT, device_of};
use crate::host::Host;
use crate::refusal::refuse;
use burst_base::Qpn;
use burst_base::conn::private_data_room;
use burst_base::gid::ip_of;
use burst_base::verbs::{AhAttr, QpType};
use burst_cm::Backlog;
use burst_cm::service::PrivateDataHeader;
use burst_control::Refusal;
use burst_control::cm::{CmAddr, CmData, CmId, CmQp, CmReply, CmRoute, ConnParam, PortSpace};
use burst_engine::flow::flow_of;
use burst_engine::gsi::{CmEntry, CmJob, CmQpRef, CmRequest, ListenAddr};
use burst_engine::qpn::worker_of;
use burst_transport::RD_ATOMIC_MAX;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Backlog of a listener when the program gives 0.
const BACKLOG_DEFAULT: u32 = 1024;
/// Maximum backlog of a listener.
const BACKLOG_MAX: u32 = 65_536;
/// The Q_Key of RDMA-CM's datagram queue pairs (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;
/// Entropy of the flow of management datagrams, the same for all: all datagrams to a peer use one UDP source port, so that they
/// travel in trains.
const MAD_ENTROPY: u32 = 1;

/// EINVAL: the private data is too long for the message.
fn too_long<T>(len: usize, room: usize) -> Result<T, Refusal> {
    refuse(libc::EINVAL, format!("{len} bytes of private data do not fit into {room}"))
}

/// The parameters, limited to what the device can do.
fn granted(param: &ConnParam) -> ConnParam {
    let most = RD_ATOMIC_MAX;
    ConnParam {
        responder_resources: param.responder_resources.min(most),
        initiator_depth: param.initiator_depth.min(most),
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        qkey: if param.qkey == 0 { UDP_QKEY } else { param.qkey },
        ..*param
    }
}

impl CmClient {
    /// The queue pair that a command names, if its token is a context's. The worker checks that the queue pair belongs to the
    /// context.
    fn queue_pair(host: &Host, entry: &CmEntry, qp: Option<CmQp>) -> Result<Option<CmQpRef>, Refusal> {
        let Some(CmQp { token, qpn }) = qp else { return Ok(None) };
        let Some(context) = host.cm.context_of(token) else {
            return refuse(libc::EACCES, "the token is not a context's");
        };
        let reference = CmQpRef { qpn: Qpn::new(qpn), context };
        if worker_of(reference.qpn) as usize >= host.workers().len() {
            return refuse(libc::EINVAL, format!("there is no queue pair {qpn:#x}"));
        }
        if *entry.qp.get_or_init(|| reference) != reference {
            return refuse(libc::EINVAL, "the id has another queue pair");
        }
        Ok(Some(reference))
    }

    /// Checks that a queue pair which the program moves itself is not another user's. A peer takes a request that names the
    /// queue pair of an existing connection as a sign that this connection is stale, and ends it (IBA 12.9.8.3.1).
    fn check_own(&self, host: &Host, qpn: Qpn) -> Result<(), Refusal> {
        let worker = worker_of(qpn) as usize;
        if worker >= host.workers().len() {
            let is_lenders = host.lending.is_lent(worker) && !host.authority.is_owner(self.caller.process.uid);
            return if is_lenders {
                refuse(libc::EACCES, format!("queue pair {:#x} is another user's", qpn.get()))
            } else {
                Ok(())
            };
        }
        let context = host.on_worker(worker, move |w, _| w.context_of(qpn));
        match context.and_then(|context| host.context_users.get(&context)) {
            Some(uid) if *uid != self.caller.process.uid => {
                refuse(libc::EACCES, format!("queue pair {:#x} is another user's", qpn.get()))
            }
            _ => Ok(()),
        }
    }

    /// Asks for a connection (`rdma_connect`).
    pub(super) fn connect(
        &mut self,
        host: &mut Host,
        id: CmId,
        qp: Option<CmQp>,
        param: &ConnParam,
        data: &CmData,
    ) -> Result<CmReply, Refusal> {
        if qp.is_none() {
            self.check_own(host, Qpn::new(param.qpn))?;
        }
        let caller = self.caller.clone();
        let id = self.id(id)?;
        if id.stage != CmIdStage::Addressed {
            return refuse(libc::EINVAL, "resolve the address first");
        }
        if id.entry.qp_type == QpType::XrcRecv {
            return refuse(libc::EINVAL, "an XRC target does not ask for connections: use an id of IBV_QPT_XRC_SEND");
        }
        let datagrams = id.entry.qp_type == QpType::Ud;
        let room = private_data_room::request(datagrams);
        if data.as_slice().len() > room {
            return too_long(data.as_slice().len(), room);
        }
        let request = Box::new(request(host, id, granted(param), *data)?);
        let qp = Self::queue_pair(host, &id.entry, qp)?;
        let worker = match qp {
            Some(qp) => worker_of(qp.qpn),
            None => device_of(&id.route).map_or(0, |device| host.workers_of(device).pick() as u32),
        };
        id.charge.hold_place(caller.place(host.connection_places(worker))?);
        id.entry.worker.store(worker, Ordering::Relaxed);
        // The first and only `set`: an id connects once.
        let _ = id.entry.route.set(id.route);
        id.stage = CmIdStage::Connected;
        host.cm.job(worker, CmJob::Connect(id.entry.clone(), request));
        Ok(CmReply::Done)
    }

    /// Listens (`rdma_listen`) on all workers.
    pub(super) fn listen(&mut self, host: &mut Host, id: CmId, backlog: u32) -> Result<CmReply, Refusal> {
        let binding = self.own_address(host, id)?;
        let id = self.id(id)?;
        let limit = if backlog == 0 { BACKLOG_DEFAULT } else { backlog.min(BACKLOG_MAX) };
        let backlog = Arc::new(Backlog::new(limit));
        // `::` without RDMA_OPTION_ID_AFONLY listens for both families.
        let both = binding.ip.is_ipv6() && binding.ip.is_unspecified() && !binding.only_v6;
        let addr = (!both).then_some(binding.ip);
        let entry = id.entry.clone();
        let at = ListenAddr { addr, device: device_of(&id.route), port: binding.port };
        for worker in 0..host.workers().len() {
            let (owner, backlog) = (entry.clone(), backlog.clone());
            let done = host.on_worker(worker, move |w, _| w.cm_listen(owner, at, backlog));
            if done.is_err() {
                host.on_all({
                    let entry = entry.clone();
                    move |w| w.cm_unlisten(&entry, at.port)
                });
                return refuse(libc::EADDRINUSE, format!("another id listens on port {}", binding.port));
            }
        }
        self.id(id_of(&entry))?.stage = CmIdStage::Listening;
        self.listening.insert(id_of(&entry));
        host.cm.listeners += 1;
        Ok(CmReply::Route(self.id(id_of(&entry))?.route))
    }

    /// The address of an id that is about to listen, which is shared with no other id from now on. An id without an address gets
    /// a free port of all addresses.
    fn own_address(&mut self, host: &mut Host, id: CmId) -> Result<PortBinding, Refusal> {
        if self.id(id)?.binding.is_none() {
            let any =
                if self.id(id)?.options.only_v6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from([0, 0, 0, 0]) };
            self.bind(host, id, CmAddr { ip: any, port: 0, scope: 0 })?;
        }
        let id = self.id(id)?;
        let (CmIdStage::Idle, Some(binding)) = (id.stage, id.binding) else {
            return refuse(libc::EINVAL, "the id is connected or listens already");
        };
        if id.entry.qp_type == QpType::XrcSend {
            return refuse(libc::EINVAL, "an XRC initiator does not listen: use an id of IBV_QPT_XRC_RECV");
        }
        let binding = host.cm.ports.listen(&binding).map_err(|why| why.refusal(&binding))?;
        id.binding = Some(binding);
        Ok(binding)
    }

    /// Accepts a connection request (`rdma_accept`).
    pub(super) fn accept(
        &mut self,
        host: &mut Host,
        id: CmId,
        qp: Option<CmQp>,
        param: &ConnParam,
        data: &CmData,
    ) -> Result<CmReply, Refusal> {
        if qp.is_none() {
            self.check_own(host, Qpn::new(param.qpn))?;
        }
        let id = self.arrived(host, id)?;
        if id.stage != CmIdStage::Requested {
            return refuse(libc::EINVAL, "there is no request to accept");
        }
        let datagrams = id.entry.qp_type == QpType::Ud;
        let room = private_data_room::accept(datagrams);
        if data.as_slice().len() > room {
            return too_long(data.as_slice().len(), room);
        }
        let param = granted(param);
        let qp = Self::queue_pair(host, &id.entry, qp)?;
        if let Some(code) = id.options.ack_timeout {
            id.entry.ack_timeout.store(code, Ordering::Relaxed);
        }
        let worker = id.entry.worker.load(Ordering::Relaxed);
        if let Some(qp) = qp.filter(|qp| worker_of(qp.qpn) != worker && !datagrams) {
            let entry = id.entry.clone();
            let ready = host.on_worker(worker_of(qp.qpn) as usize, move |w, now| w.cm_ready(now, &entry, &param));
            if !ready {
                return refuse(libc::EINVAL, "the queue pair cannot be made ready");
            }
        }
        id.stage = CmIdStage::Connected;
        host.cm.job(worker, CmJob::Accept(id.entry.clone(), param, Box::new(*data)));
        Ok(CmReply::Done)
    }

    /// Rejects a connection request (`rdma_reject`).
    pub(super) fn reject(&mut self, host: &mut Host, id: CmId, reason: u16, data: &CmData) -> Result<CmReply, Refusal> {
        let id = self.arrived(host, id)?;
        let room = private_data_room::reject(id.entry.qp_type == QpType::Ud);
        if data.as_slice().len() > room {
            return too_long(data.as_slice().len(), room);
        }
        if !matches!(id.stage, CmIdStage::Requested | CmIdStage::Connected) {
            return refuse(libc::EINVAL, "there is nothing to reject");
        }
        let worker = id.entry.worker.load(Ordering::Relaxed);
        host.cm.job(worker, CmJob::Reject(id.entry.clone(), reason, Box::new(*data)));
        Ok(CmReply::Done)
    }

    /// Disconnects (`rdma_disconnect`).
    pub(super) fn disconnect(&mut self, host: &mut Host, id: CmId) -> Result<CmReply, Refusal> {
        let id = self.arrived(host, id)?;
        if id.stage != CmIdStage::Connected {
            return refuse(libc::EINVAL, "the id is not connected");
        }
        let worker = id.entry.worker.load(Ordering::Relaxed);
        // The queue pair first: it must send nothing after the DREQ.
        if let Some(qp) = id.entry.qp.get() {
            host.cm.job(worker_of(qp.qpn), CmJob::FailQp(*qp));
        }
        host.cm.job(worker, CmJob::Disconnect(id.entry.clone()));
        Ok(CmReply::Done)
    }

    /// Sends a job to the worker of a connected id.
    pub(super) fn send_job(
        &mut self,
        host: &mut Host,
        id: CmId,
        job: impl FnOnce(Arc<CmEntry>) -> CmJob,
    ) -> Result<CmReply, Refusal> {
        let id = self.arrived(host, id)?;
        if id.stage != CmIdStage::Connected {
            return refuse(libc::EINVAL, "the id is not connected");
        }
        host.cm.job(id.entry.worker.load(Ordering::Relaxed), job(id.entry.clone()));
        Ok(CmReply::Done)
    }
}

fn id_of(entry: &CmEntry) -> CmId {
    entry.id
}

/// The request that the worker sends in a REQ or SIDR_REQ.
fn request(host: &Host, id: &HostCmId, param: ConnParam, data: CmData) -> Result<CmRequest, Refusal> {
    let (CmRoute { src: Some(src), dst: Some(dst), .. }, Some(device)) = (id.route, device_of(&id.route)) else {
        return refuse(libc::EINVAL, "resolve the address first");
    };
    let ah = AhAttr { traffic_class: id.options.tos, ..id.route.ah() };
    let Some(caps) = host.devices.get(device.index()).map(|d| &d.caps) else {
        return refuse(libc::ENODEV, "the device is gone");
    };
    let flow = flow_of(caps, &ah, MAD_ENTROPY).map_err(|e| Refusal { errno: libc::EINVAL, sentence: e.0 })?;
    // The header carries the addresses on the wire, except for connections of the host to its own loopback address.
    let own_loopback = dst.ip.is_loopback();
    let on_wire = |seen: IpAddr, gid: [u8; 16]| if own_loopback { seen } else { ip_of(gid) };
    let header =
        PrivateDataHeader { src: on_wire(src.ip, id.route.sgid), port: src.port, dst: on_wire(dst.ip, id.route.dgid) };
    let without_header = id.entry.ps == PortSpace::Ib && src.ip.is_unspecified();
    debug_assert!(!without_header);
    Ok(CmRequest {
        path: burst_cm::PathRecord { device, flow },
        header,
        port: dst.port,
        mtu: id.route.mtu,
        ack_timeout: id.options.ack_timeout.unwrap_or(ACK_TIMEOUT),
        param,
        data,
    })
}
