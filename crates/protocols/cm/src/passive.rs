//! The passive end: checks a REQ and shows it to a listener, sends REP or REJ, awaits RTU (IBA 12.9.7).

use crate::active::ece_for_program;
use crate::api::{
    CmEffects, CmStep, ConnAttr, ConnEventKind, ConnParam, Ece, EndParams, PathRecord, PeerClass, Transport,
};
use crate::conn::{CmState, Conn, SERVICE_TIMEOUT};
use crate::machine::{Cm, CmError};
use crate::message::{CmMessage, Mad, Mra, Rej, Rep, Req, Rtu, reject};
use crate::service::{self, PrivateDataHeader};
use crate::show::Arrival;
use crate::table::ConnKey;
use burst_base::verbs::Mtu;
use burst_base::{Nanos, Reason};
use std::net::IpAddr;

/// Bits of a P_Key that identify the partition.
const PARTITION_BITS: u16 = 0x7fff;

/// A request that passed the checks.
struct CheckedReq {
    transport: Transport,
    header: Option<PrivateDataHeader>,
    mtu: Mtu,
}

impl<O> Cm<O> {
    /// Handles a REQ: a peer requests a connection.
    pub(crate) fn on_req(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        req: &Req,
        fx: &mut impl CmEffects<O>,
    ) {
        let peer = path.flow.dst;
        let request = ConnKey::Request { peer, ca_guid: req.ca_guid, id: req.local_id };
        if let Some(id) = self.table.find(&request) {
            return self.repeated_req(now, path, id, mad, req, fx);
        }
        let checked = match check_req(mad, req, fx.mtu(path.device)) {
            Ok(checked) => checked,
            Err(rej) => {
                fx.count(path.device, Reason::CmBadRequest);
                return Self::refuse(path, mad.tid, rej, fx);
            }
        };
        let pair = ConnKey::QueuePair { peer, ca_guid: req.ca_guid, qpn: req.qpn };
        if let Some(old) = self.table.find(&pair) {
            fx.count(path.device, Reason::CmStale);
            if self.state(old) == Some(CmState::TimeWait) {
                // No answer: the peer repeats its REQ, which is accepted after TIMEWAIT.
                return;
            }
            Self::refuse(path, mad.tid, rej_of(req, reject::STALE_CONNECTION), fx);
            // The peer has forgotten the old connection, so it ends here, too (IBA 12.9.8.3.1).
            return self.end_stale(now, old, fx);
        }
        let asked = asked_address(checked.header, path);
        let Some(listener) = self.listener(req.service_id, asked, path.device, false) else {
            return match self.early.add(now, path, mad) {
                true => fx.count(path.device, Reason::CmEarly),
                false => Self::refuse_without_listener(path, mad.tid, req, fx),
            };
        };
        if listener.transport != checked.transport {
            fx.count(path.device, Reason::CmBadRequest);
            return Self::refuse(path, mad.tid, rej_of(req, reject::INVALID_TRANSPORT), fx);
        }
        let backlog = listener.backlog.clone();
        let mut conn = Conn::new(CmState::ReqReceived, *path, now);
        (conn.remote_id, conn.remote_guid, conn.tid) = (req.local_id, req.ca_guid, mad.tid);
        (conn.service_id, conn.transport) = (req.service_id, checked.transport);
        conn.conn = ConnAttr { rq_psn: self.draw_psn(), ..requested_by(mad, req, checked.mtu) };
        conn.path.flow.tos = req.traffic_class;
        self.admit(now, &backlog, Arrival { conn, keys: [Some(request), Some(pair)], mad }, fx);
    }

    /// Shows early requests that have a listener now, and rejects those whose time has passed. Returns their number.
    pub(crate) fn on_early(&mut self, now: Nanos, budget: usize, fx: &mut impl CmEffects<O>) -> usize {
        let mut seen = 0;
        while seen < budget
            && let Some(early) = self.early.next(now)
        {
            seen += 1;
            let Ok(mad) = Mad::parse(&early.bytes) else { continue };
            let (service_id, sidr) = match mad.message {
                CmMessage::Req(req) => (req.service_id, false),
                CmMessage::SidrReq(req) => (req.service_id, true),
                _ => continue,
            };
            let asked = asked_address(PrivateDataHeader::parse(mad.data), &early.path);
            let listens = self.listener(service_id, asked, early.path.device, sidr).is_some();
            if !listens && early.due > now {
                self.early.put_back(early);
                continue;
            }
            match mad.message {
                CmMessage::Req(req) if listens => self.on_req(now, &early.path, &mad, &req, fx),
                CmMessage::Req(req) => Self::refuse_without_listener(&early.path, mad.tid, &req, fx),
                CmMessage::SidrReq(req) if listens => self.on_sidr_req(now, &early.path, &mad, &req, fx),
                CmMessage::SidrReq(req) => Self::refuse_sidr_without_listener(&early.path, mad.tid, &req, fx),
                _ => {}
            }
        }
        seen
    }

    pub(crate) fn refuse_without_listener(path: &PathRecord, tid: u64, req: &Req, fx: &mut impl CmEffects<O>) {
        fx.count(path.device, Reason::CmNobodyListens);
        Self::refuse(path, tid, rej_of(req, reject::INVALID_SERVICE_ID), fx);
    }

    /// Handles a repeated REQ: the answer was lost, or there is none yet.
    fn repeated_req(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        id: u32,
        mad: &Mad<'_>,
        req: &Req,
        fx: &mut impl CmEffects<O>,
    ) {
        let Some(conn) = self.table.get_mut(id) else { return };
        if conn.conn.remote_qpn != req.qpn || conn.tid != mad.tid {
            fx.count(path.device, Reason::CmBadRequest);
            return Self::refuse(path, mad.tid, rej_of(req, reject::DUPLICATE_COMM_ID), fx);
        }
        fx.count(path.device, Reason::CmDuplicate);
        match conn.state {
            state @ (CmState::Queued | CmState::ReqReceived) => {
                let mra = Mra { local_id: id, remote_id: req.local_id, message: 0, service_timeout: SERVICE_TIMEOUT };
                Self::answer(path, mad.tid, mra.into(), &[], fx);
                if state == CmState::Queued {
                    self.keep_queued(now, id, &mad.message);
                }
            }
            CmState::RepSent => Self::repeat(conn, fx),
            CmState::TimeWait => Self::refuse(path, mad.tid, rej_of(req, reject::STALE_CONNECTION), fx),
            // The REP was lost, and the program has disconnected. An established peer ignores the REJ.
            CmState::DreqSent => Self::refuse(path, mad.tid, rej_of(req, reject::CONSUMER), fx),
            // The REQ was sent before the RTU and was delayed.
            _ => {}
        }
    }

    /// Accepts a request by a REP. The queue pair must be in RTS, or be moved there before anything is sent on it.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`], [`CmError::DataTooLong`].
    pub fn accept(
        &mut self,
        now: Nanos,
        id: u32,
        end: &EndParams<'_>,
        fx: &mut impl CmEffects<O>,
    ) -> Result<(), CmError> {
        if end.data.len() > Rep::DATA_LEN {
            return Err(CmError::DataTooLong);
        }
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        if conn.state != CmState::ReqReceived {
            return Err(CmError::WrongState);
        }
        debug_assert!(conn.waiting.is_some() && conn.queued.is_none());
        conn.state = CmState::RepSent;
        if let Some(place) = conn.waiting.take() {
            self.queue.note_free(place.backlog());
        }
        (conn.local_qpn, conn.local_guid) = (end.param.qpn, end.ca_guid);
        let param = limited(conn.transport, &end.param);
        let (qpn, eecn) = if conn.transport == Transport::Xrc { (0, param.qpn) } else { (param.qpn, 0) };
        conn.conn.limit(&param);
        let ece = match param.ece {
            Ece::NONE => Ece { vendor_id: conn.conn.peer.answer(), options: 0 },
            of_program => of_program,
        };
        let rep = Rep {
            local_id: id,
            remote_id: conn.remote_id,
            qpn,
            eecn,
            vendor_id: ece.vendor_id,
            psn: conn.conn.rq_psn,
            responder_resources: conn.conn.responder_resources,
            initiator_depth: conn.conn.initiator_depth,
            ack_delay: 15,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            ca_guid: end.ca_guid,
            ..Rep::default()
        };
        let mad = Mad { tid: conn.tid, modifier: ece.options, message: rep.into(), data: end.data };
        self.send_kept(now, id, &mad, true, fx);
        self.step(now, id, CmStep::RepSent, fx);
        Ok(())
    }

    /// The parameters that an accept with `param` would negotiate, so that the queue pair can be moved to RTS before the REP.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub fn offer(&mut self, id: u32, param: &ConnParam) -> Result<(PathRecord, ConnAttr), CmError> {
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        if conn.state != CmState::ReqReceived {
            return Err(CmError::WrongState);
        }
        let mut negotiated = conn.conn;
        negotiated.limit(&limited(conn.transport, param));
        Ok((conn.path, negotiated))
    }

    /// Rejects a request (possible until the RTU is received), or a REP that the program does not accept.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`], [`CmError::DataTooLong`].
    pub fn reject(
        &mut self,
        now: Nanos,
        id: u32,
        reason: u16,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) -> Result<(), CmError> {
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        let message = match conn.state {
            CmState::ReqReceived => 0,
            CmState::RepReceived => 1,
            // Accepted already, but the RTU was not received yet.
            CmState::RepSent => 2,
            CmState::SidrReceived => return self.reject_sidr(now, id, data, fx),
            _ => return Err(CmError::WrongState),
        };
        if data.len() > Rej::DATA_LEN {
            return Err(CmError::DataTooLong);
        }
        let rej = Rej { local_id: id, remote_id: conn.remote_id, message, reason, ..Rej::default() };
        self.reject_conn(now, id, rej, data, fx);
        self.forget(id);
        Ok(())
    }

    /// Handles an RTU: the active end has moved its queue pair to RTS.
    pub(crate) fn on_rtu(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        rtu: &Rtu,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = rtu.remote_id;
        let Some(conn) = self.known(now, path, id, fx) else { return };
        if conn.remote_id != rtu.local_id {
            return fx.count(path.device, Reason::CmForged);
        }
        match conn.state {
            CmState::RepSent => {
                self.answered(now, id);
                self.connected(now, id, mad.data, fx);
            }
            CmState::Established => fx.count(path.device, Reason::CmDuplicate),
            _ => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    /// Establishes a connection whose first data arrived before the RTU.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub fn notify(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) -> Result<(), CmError> {
        match self.table.get_mut(id).ok_or(CmError::Gone)?.state {
            CmState::RepSent => self.connected(now, id, &[], fx),
            CmState::Established => {}
            _ => return Err(CmError::WrongState),
        }
        Ok(())
    }

    fn connected(&mut self, now: Nanos, id: u32, data: &[u8], fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(conn.state == CmState::RepSent && conn.waiting.is_none());
        conn.state = CmState::Established;
        self.table.arm(id, Nanos::NEVER);
        self.step(now, id, CmStep::RtuReceived, fx);
        self.step(now, id, CmStep::Established, fx);
        self.report(id, ConnEventKind::Established, 0, data, fx);
    }
}

/// Parameters that a passive end can offer: an XRC target sends no requests, and receives into shared receive queues only.
fn limited(transport: Transport, param: &ConnParam) -> ConnParam {
    match transport {
        Transport::Xrc => ConnParam { initiator_depth: 0, flow_control: false, srq: true, ..*param },
        _ => *param,
    }
}

/// The requested address: the destination of the packet, or a loopback address in the header if the host sends to itself.
pub(crate) fn asked_address(header: Option<PrivateDataHeader>, path: &PathRecord) -> IpAddr {
    let to_itself = path.flow.src == path.flow.dst;
    header.map(|h| h.dst).filter(|dst| to_itself && dst.is_loopback()).unwrap_or(path.flow.src)
}

pub(crate) fn rej_of(req: &Req, reason: u16) -> Rej {
    Rej { remote_id: req.local_id, reason, ..Rej::default() }
}

/// Checks that this end can serve a REQ; the error is the REJ to send.
fn check_req(mad: &Mad<'_>, req: &Req, mtu: Mtu) -> Result<CheckedReq, Rej> {
    let Some(transport) = Transport::of((req.transport, req.extended_transport)) else {
        return Err(rej_of(req, reject::INVALID_TRANSPORT));
    };
    if req.local_id == 0 || req.qpn < 2 || req.pkey & PARTITION_BITS != PARTITION_BITS {
        return Err(rej_of(req, reject::UNSUPPORTED));
    }
    let Some((space, _)) = service::parse_service_id(req.service_id) else {
        return Err(rej_of(req, reject::INVALID_SERVICE_ID));
    };
    let header = PrivateDataHeader::parse(mad.data);
    if header.is_none() && space != service::PS_IB {
        return Err(rej_of(req, reject::UNSUPPORTED));
    }
    let requested = Mtu::from_number(u32::from(req.mtu)).ok_or_else(|| too_large(req, mtu))?;
    if requested.bytes() > mtu.bytes() {
        return Err(too_large(req, mtu));
    }
    Ok(CheckedReq { transport, header, mtu: requested })
}

/// The REJ that names the largest possible MTU.
fn too_large(req: &Req, mtu: Mtu) -> Rej {
    let mut rej = Rej { info_len: 1, ..rej_of(req, reject::INVALID_MTU) };
    rej.info[0] = mtu as u8;
    rej
}

/// The parameters that the peer requests, seen from this end.
fn requested_by(mad: &Mad<'_>, req: &Req, mtu: Mtu) -> ConnAttr {
    ConnAttr {
        remote_qpn: req.qpn,
        sq_psn: req.psn,
        rq_psn: 0,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        // Until the accept: programs mostly choose the same number at both ends.
        peer_rnr_retry_count: req.rnr_retry_count,
        ack_timeout: req.ack_timeout,
        flow_control: req.flow_control,
        srq: req.srq,
        qkey: 0,
        mtu,
        ece: ece_for_program(Ece { vendor_id: req.vendor_id, options: mad.modifier }),
        peer: PeerClass::of(req.vendor_id),
    }
}
