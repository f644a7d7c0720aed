//! The active end: sends REQ, awaits REP or REJ, sends RTU (IBA 12.9.6).

use crate::api::{
    BURST_VENDOR, CmEffects, CmStep, ConnEventKind, ConnParam, ConnectParams, Ece, EndParams, PathRecord, PeerClass,
    QpSetup, Transport,
};
use crate::conn::{CmState, Conn, RESPONSE_TIMEOUT, RETRIES_MAX, SERVICE_TIME_MAX, time_of};
use crate::machine::{Cm, CmError};
use crate::message::{CmMessage, Mad, Mra, Rej, Rep, Req, Rtu, reject};
use crate::table::ConnKey;
use burst_base::gid::gid_of;
use burst_base::verbs::Mtu;
use burst_base::{Nanos, Reason};
use burst_wire::DEFAULT_PKEY;

/// The permissive LID: RoCE has no LIDs.
const PERMISSIVE_LID: u16 = 0xffff;

/// ECE options to send: the program's; if it has set none, Burst's vendor id without options.
pub(crate) fn ece_to_send(of_program: Ece) -> Ece {
    if of_program == Ece::NONE { Ece { vendor_id: BURST_VENDOR, options: 0 } } else { of_program }
}

/// ECE options of the peer for the program: Burst's vendor id is not one that a program has set.
pub(crate) fn ece_for_program(received: Ece) -> Ece {
    if received.vendor_id == BURST_VENDOR { Ece::NONE } else { received }
}

impl<O> Cm<O> {
    /// Requests a connection by a REQ; returns its id.
    ///
    /// # Errors
    /// [`CmError::NoRoom`], [`CmError::DataTooLong`].
    pub fn connect(
        &mut self,
        now: Nanos,
        owner: O,
        params: &ConnectParams<'_>,
        fx: &mut impl CmEffects<O>,
    ) -> Result<u32, CmError> {
        if params.end.data.len() > Req::DATA_LEN {
            return Err(CmError::DataTooLong);
        }
        let params = &ConnectParams { end: limited(params), ..*params };
        let mut conn = Conn::new(CmState::ReqSent, params.path, now);
        conn.owner = Some(owner);
        (conn.local_guid, conn.local_qpn) = (params.end.ca_guid, params.end.param.qpn);
        (conn.service_id, conn.transport) = (params.service_id, params.transport);
        conn.conn.rq_psn = self.draw_psn();
        conn.conn.responder_resources = params.end.param.responder_resources;
        conn.conn.initiator_depth = params.end.param.initiator_depth;
        conn.conn.retry_count = params.end.param.retry_count & 7;
        conn.conn.peer_rnr_retry_count = params.end.param.rnr_retry_count;
        conn.conn.ack_timeout = params.ack_timeout & 31;
        conn.conn.mtu = params.mtu;
        let psn = conn.conn.rq_psn;
        let tid_high = u64::from(self.table.draw()) << 32;
        let id = self.add(conn)?;
        let tid = tid_high | u64::from(id);
        if let Some(conn) = self.table.get_mut(id) {
            conn.tid = tid;
        }
        let Ece { vendor_id, options: modifier } = ece_to_send(params.end.param.ece);
        let req = request(params, id, psn, vendor_id);
        self.send_kept(now, id, &Mad { tid, modifier, message: req.into(), data: params.end.data }, true, fx);
        self.step(now, id, CmStep::ReqSent, fx);
        Ok(id)
    }

    /// Handles a REP: the peer accepts.
    pub(crate) fn on_rep(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        rep: &Rep,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = rep.remote_id;
        let Some(conn) = self.known(now, path, id, fx) else {
            let rej = Rej {
                local_id: rep.remote_id,
                remote_id: rep.local_id,
                message: 1,
                reason: reject::INVALID_COMM_ID,
                ..Rej::default()
            };
            return Self::refuse(path, mad.tid, rej, fx);
        };
        match conn.state {
            CmState::ReqSent => {
                self.answered(now, id);
                self.accept_rep(now, path, id, mad, rep, fx);
            }
            // The REP is repeated, because the RTU was lost.
            CmState::Established | CmState::DreqSent | CmState::TimeWait if conn.remote_id == rep.local_id => {
                let rtu = Rtu { local_id: id, remote_id: rep.local_id };
                Self::answer(path, conn.tid, rtu.into(), &[], fx);
                fx.count(path.device, Reason::CmDuplicate);
            }
            // The program has not moved its queue pair yet: ask the peer to wait.
            CmState::RepReceived if conn.remote_id == rep.local_id => {
                let mra = Mra {
                    local_id: id,
                    remote_id: rep.local_id,
                    message: 1,
                    service_timeout: crate::conn::SERVICE_TIMEOUT,
                };
                Self::answer(path, conn.tid, mra.into(), &[], fx);
                fx.count(path.device, Reason::CmDuplicate);
            }
            _ => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    fn accept_rep(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        id: u32,
        mad: &Mad<'_>,
        rep: &Rep,
        fx: &mut impl CmEffects<O>,
    ) {
        let Some(transport) = self.table.get_mut(id).map(|conn| conn.transport) else { return };
        let qpn = passive_qpn(transport, rep);
        let key = ConnKey::QueuePair { peer: path.flow.dst, ca_guid: rep.ca_guid, qpn };
        if let Some(old) = self.table.find(&key)
            && self.state(old) == Some(CmState::TimeWait)
        {
            // The peer uses its queue pair again, so its end of the old connection has left TIMEWAIT.
            self.table.forget_key(&key);
        }
        if !self.table.know(key, id) {
            fx.count(path.device, Reason::CmStale);
            let stale = (1, reject::STALE_CONNECTION, rep.local_id);
            self.reject_now(now, id, stale, ConnEventKind::ConnectError, &[], fx);
            // The peer uses its queue pair for a new connection, so the old one has ended (IBA 12.9.8.3.1).
            return self.table.find(&key).into_iter().for_each(|old| self.end_stale(now, old, fx));
        }
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(conn.state == CmState::ReqSent && conn.keys == [None; 2]);
        conn.keys[1] = Some(key);
        (conn.remote_id, conn.remote_guid) = (rep.local_id, rep.ca_guid);
        conn.conn.remote_qpn = qpn;
        conn.conn.sq_psn = rep.psn;
        // Neither end asks for more than the other gives.
        conn.conn.initiator_depth = conn.conn.initiator_depth.min(rep.responder_resources);
        conn.conn.responder_resources = conn.conn.responder_resources.min(rep.initiator_depth);
        conn.conn.rnr_retry_count = rep.rnr_retry_count;
        (conn.conn.flow_control, conn.conn.srq) = (rep.flow_control, rep.srq);
        conn.conn.peer = PeerClass::of(rep.vendor_id);
        conn.conn.ece = ece_for_program(Ece { vendor_id: rep.vendor_id, options: mad.modifier });
        let (way, negotiated) = (conn.path, conn.conn);
        let verdict = conn.owner.as_ref().map_or(QpSetup::Failed, |owner| fx.ready(owner, &way, &negotiated));
        self.step(now, id, CmStep::RepReceived, fx);
        match verdict {
            QpSetup::Done => {
                self.send_rtu(now, id, fx);
                self.report(id, ConnEventKind::Established, 0, mad.data, fx);
            }
            QpSetup::ByProgram => {
                if let Some(conn) = self.table.get_mut(id) {
                    conn.state = CmState::RepReceived;
                }
                self.table.arm(id, Nanos::NEVER);
                self.report(id, ConnEventKind::Response, 0, mad.data, fx);
            }
            QpSetup::Failed => {
                self.reject_now(now, id, (1, reject::CONSUMER, rep.local_id), ConnEventKind::ConnectError, &[], fx);
            }
        }
    }

    /// Sends the RTU: the program has moved its queue pair to RTS. No event follows (rdma_establish(3)).
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub fn establish(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) -> Result<(), CmError> {
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        if conn.state != CmState::RepReceived {
            return Err(CmError::WrongState);
        }
        self.send_rtu(now, id, fx);
        Ok(())
    }

    fn send_rtu(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(matches!(conn.state, CmState::ReqSent | CmState::RepReceived));
        conn.state = CmState::Established;
        let rtu = Rtu { local_id: id, remote_id: conn.remote_id };
        Self::answer(&conn.path, conn.tid, rtu.into(), &[], fx);
        self.table.arm(id, Nanos::NEVER);
        self.step(now, id, CmStep::RtuSent, fx);
        self.step(now, id, CmStep::Established, fx);
    }

    /// Handles a REJ of a request, a reply or an established connection.
    pub(crate) fn on_rej(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        rej: &Rej,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = if rej.remote_id != 0 { rej.remote_id } else { self.rejected_early(path, rej) };
        if id == 0 && self.table.worker() != 0 {
            // All workers look for the request; only worker 0 counts that it is unknown.
            return;
        }
        let Some(conn) = self.known(now, path, id, fx) else { return };
        let named = conn.remote_id == rej.local_id;
        let state = conn.state;
        match state {
            CmState::ReqSent if rej.reason == reject::INVALID_MTU && self.try_smaller_mtu(now, id, rej, fx) => {}
            CmState::ReqSent => self.rejected(now, id, rej.reason, mad.data, fx),
            CmState::Queued | CmState::ReqReceived | CmState::RepSent | CmState::RepReceived if named => {
                self.rejected(now, id, rej.reason, mad.data, fx);
            }
            // The peer gave up waiting for the RTU, or has forgotten the connection.
            CmState::Established | CmState::DreqSent if named => {
                self.rejected_after_setup(now, id, rej.reason, mad.data, fx);
            }
            _ => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    /// Finds the request that a peer withdraws before it knows this end's id: it names its own id, and its GUID as additional
    /// information.
    fn rejected_early(&mut self, path: &PathRecord, rej: &Rej) -> u32 {
        if rej.reason != reject::TIMEOUT || rej.info_len < 8 {
            return 0;
        }
        let ca_guid = crate::fields::be64::get(&rej.info, 0);
        self.table.find(&ConnKey::Request { peer: path.flow.dst, ca_guid, id: rej.local_id }).unwrap_or(0)
    }

    fn rejected(&mut self, now: Nanos, id: u32, reason: u16, data: &[u8], fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        fx.count(conn.path.device, Reason::CmRejected);
        self.step(now, id, CmStep::RejReceived, fx);
        self.report(id, ConnEventKind::Rejected, reason, data, fx);
        self.withdraw(id, fx);
    }

    /// A REJ ends a connection that was established: REJECTED is reported, and no TIMEWAIT_EXIT after it (Linux:
    /// `cm_rej_handler`, `cma_ib_handler`).
    fn rejected_after_setup(&mut self, now: Nanos, id: u32, reason: u16, data: &[u8], fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        fx.count(conn.path.device, Reason::CmRejected);
        self.step(now, id, CmStep::RejReceived, fx);
        self.report(id, ConnEventKind::Rejected, reason, data, fx);
        self.begin_timewait(now, id);
        if let Some(conn) = self.table.get_mut(id) {
            conn.owner = None;
        }
    }

    /// Repeats the request with the MTU that the REJ names, because the peer's link has a smaller one. Once per connection.
    fn try_smaller_mtu(&mut self, now: Nanos, id: u32, rej: &Rej, fx: &mut impl CmEffects<O>) -> bool {
        let Some(conn) = self.table.get_mut(id) else { return false };
        let code = if rej.info[0] > 0xf { rej.info[0] >> 4 } else { rej.info[0] };
        let Some(mtu) =
            Mtu::from_number(u32::from(code)).filter(|m| *m as u8 != 0 && m.bytes() < conn.conn.mtu.bytes())
        else {
            return false;
        };
        if rej.info_len == 0 || std::mem::replace(&mut conn.smaller_mtu, true) {
            return false;
        }
        let bytes = conn.mad;
        conn.conn.mtu = mtu;
        let Ok(Mad { message: CmMessage::Req(mut req), modifier, data, tid }) = Mad::parse(&bytes) else {
            return false;
        };
        req.mtu = mtu as u8;
        self.send_kept(now, id, &Mad { tid, modifier, message: req.into(), data }, true, fx);
        true
    }

    /// Handles an MRA: the peer's answer takes longer, so the retransmission timer is suspended.
    pub(crate) fn on_mra(&mut self, now: Nanos, path: &PathRecord, mra: &Mra, fx: &mut impl CmEffects<O>) {
        let id = mra.remote_id;
        let Some(conn) = self.known(now, path, id, fx) else { return };
        let fits = match conn.state {
            CmState::ReqSent => mra.message == 0,
            CmState::RepSent => mra.message == 1 && mra.local_id == conn.remote_id,
            _ => false,
        };
        if !fits {
            return fx.count(path.device, Reason::CmUnexpected);
        }
        debug_assert!(conn.state.awaits_answer());
        let wait = time_of(mra.service_timeout).min(SERVICE_TIME_MAX) + conn.interval;
        self.table.arm(id, now + wait);
    }

    /// Rejects and ends a connection, and reports an event of `kind` to its program.
    pub(crate) fn reject_now(
        &mut self,
        now: Nanos,
        id: u32,
        (message, reason, remote_id): (u8, u16, u32),
        kind: ConnEventKind,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) {
        let rej = Rej { local_id: id, remote_id, message, reason, ..Rej::default() };
        self.reject_conn(now, id, rej, data, fx);
        self.step(now, id, CmStep::Failed, fx);
        self.report(id, kind, reason, &[], fx);
        self.forget(id);
    }
}

/// Parameters that an active end can offer: an XRC initiator receives no requests, so it offers nothing for them.
fn limited<'a>(params: &ConnectParams<'a>) -> EndParams<'a> {
    match params.transport {
        Transport::Xrc => {
            let param = ConnParam { responder_resources: 0, rnr_retry_count: 0, srq: false, ..params.end.param };
            EndParams { param, ..params.end }
        }
        _ => params.end,
    }
}

/// The passive end's queue pair: an XRC target has the place that end-to-end contexts have in other services, and the
/// other one stays empty (annex A14; so does Linux).
fn passive_qpn(transport: Transport, rep: &Rep) -> u32 {
    if transport == Transport::Xrc { rep.eecn } else { rep.qpn }
}

fn request(params: &ConnectParams<'_>, id: u32, psn: u32, vendor_id: u32) -> Req {
    let EndParams { param, ca_guid, .. } = &params.end;
    let flow = &params.path.flow;
    let receives = params.transport != Transport::Xrc;
    let (transport, extended_transport) = params.transport.codes();
    Req {
        local_id: id,
        vendor_id,
        service_id: params.service_id,
        ca_guid: *ca_guid,
        qpn: param.qpn,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport,
        flow_control: param.flow_control,
        psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: if receives { param.retry_count } else { 0 },
        pkey: DEFAULT_PKEY,
        mtu: params.mtu as u8,
        rnr_retry_count: param.rnr_retry_count,
        cm_retries: RETRIES_MAX,
        srq: param.srq,
        extended_transport,
        local_lid: PERMISSIVE_LID,
        remote_lid: PERMISSIVE_LID,
        local_gid: gid_of(flow.src),
        remote_gid: gid_of(flow.dst),
        flow_label: flow.flow_label,
        traffic_class: flow.tos,
        hop_limit: flow.hop_limit,
        ack_timeout: params.ack_timeout,
        ..Req::default()
    }
}
