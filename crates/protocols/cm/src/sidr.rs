//! Datagram services: a SIDR_REQ asks for the queue pair and Q_Key of a port, a SIDR_REP carries them (IBA 12.11).

use crate::active::{ece_for_program, ece_to_send};
use crate::api::{CmEffects, CmStep, ConnEventKind, Ece, EndParams, PathRecord};
use crate::conn::{CmState, Conn, TIME_WAIT};
use crate::machine::{Cm, CmError};
use crate::message::{Mad, SidrRep, SidrReq};
use crate::service::{self, PrivateDataHeader};
use crate::show::Arrival;
use crate::table::ConnKey;
use burst_base::{Nanos, Reason};
use burst_wire::DEFAULT_PKEY;

/// Status of a SIDR_REP: the service has no listener.
pub const SIDR_UNSUPPORTED: u8 = 1;
/// Status of a SIDR_REP: the program refused.
pub const SIDR_REJECT: u8 = 2;
/// Status of a SIDR_REP: there is no queue pair, or no other resource, for the request.
pub const SIDR_NO_QP: u8 = 3;

impl<O> Cm<O> {
    /// Requests a datagram service by a SIDR_REQ; returns the id of the request. The private data begins with the RDMA-CM header.
    ///
    /// # Errors
    /// [`CmError::NoRoom`], [`CmError::DataTooLong`].
    pub fn resolve(
        &mut self,
        now: Nanos,
        owner: O,
        path: &PathRecord,
        service_id: u64,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) -> Result<u32, CmError> {
        if data.len() > SidrReq::DATA_LEN {
            return Err(CmError::DataTooLong);
        }
        let mut conn = Conn::new(CmState::SidrSent, *path, now);
        conn.owner = Some(owner);
        conn.service_id = service_id;
        let tid_high = u64::from(self.table.draw()) << 32;
        let id = self.add(conn)?;
        let message = SidrReq { request_id: id, pkey: DEFAULT_PKEY, service_id };
        let mad = Mad { tid: tid_high | u64::from(id), modifier: 0, message: message.into(), data };
        self.send_kept(now, id, &mad, true, fx);
        self.step(now, id, CmStep::SidrReqSent, fx);
        Ok(id)
    }

    pub(crate) fn on_sidr_req(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        req: &SidrReq,
        fx: &mut impl CmEffects<O>,
    ) {
        let key = ConnKey::Sidr { peer: path.flow.dst, id: req.request_id };
        if let Some(id) = self.table.find(&key) {
            fx.count(path.device, Reason::CmDuplicate);
            match self.table.get_mut(id) {
                Some(conn) if conn.state == CmState::SidrDone => Self::repeat(conn, fx),
                Some(conn) if conn.state == CmState::Queued => self.keep_queued(now, id, &mad.message),
                _ => {}
            }
            return;
        }
        let header = PrivateDataHeader::parse(mad.data);
        let asked = crate::passive::asked_address(header, path);
        if service::parse_service_id(req.service_id).is_none() {
            return Self::refuse_sidr_without_listener(path, mad.tid, req, fx);
        }
        let Some(listener) = self.listener(req.service_id, asked, path.device, true) else {
            return match self.early.add(now, path, mad) {
                true => fx.count(path.device, Reason::CmEarly),
                false => Self::refuse_sidr_without_listener(path, mad.tid, req, fx),
            };
        };
        let backlog = listener.backlog.clone();
        let mut conn = Conn::new(CmState::SidrReceived, *path, now);
        (conn.remote_id, conn.tid, conn.service_id) = (req.request_id, mad.tid, req.service_id);
        self.admit(now, &backlog, Arrival { conn, keys: [Some(key), None], mad }, fx);
    }

    pub(crate) fn refuse_sidr_without_listener(path: &PathRecord, tid: u64, req: &SidrReq, fx: &mut impl CmEffects<O>) {
        fx.count(path.device, Reason::CmNobodyListens);
        let (request_id, service_id) = (req.request_id, req.service_id);
        let rep = SidrRep { request_id, status: SIDR_UNSUPPORTED, service_id, ..SidrRep::default() };
        Self::answer(path, tid, rep.into(), &[], fx);
    }

    /// Answers a request by a SIDR_REP with queue pair and Q_Key.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`], [`CmError::DataTooLong`].
    pub fn serve(
        &mut self,
        now: Nanos,
        id: u32,
        end: &EndParams<'_>,
        fx: &mut impl CmEffects<O>,
    ) -> Result<(), CmError> {
        let ece = ece_to_send(end.param.ece);
        let rep = SidrRep {
            qpn: end.param.qpn,
            qkey: end.param.qkey,
            vendor_low: ece.vendor_id as u16,
            vendor_high: (ece.vendor_id >> 16) as u8,
            ..SidrRep::default()
        };
        self.answer_sidr(now, id, rep, ece.options, end.data, fx)
    }

    pub(crate) fn reject_sidr(
        &mut self,
        now: Nanos,
        id: u32,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) -> Result<(), CmError> {
        self.answer_sidr(now, id, SidrRep { status: SIDR_REJECT, ..SidrRep::default() }, 0, data, fx)
    }

    fn answer_sidr(
        &mut self,
        now: Nanos,
        id: u32,
        rep: SidrRep,
        modifier: u32,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) -> Result<(), CmError> {
        if data.len() > SidrRep::DATA_LEN {
            return Err(CmError::DataTooLong);
        }
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        if conn.state != CmState::SidrReceived {
            return Err(CmError::WrongState);
        }
        debug_assert!(conn.waiting.is_some() && conn.queued.is_none());
        conn.state = CmState::SidrDone;
        if let Some(place) = conn.waiting.take() {
            self.queue.note_free(place.backlog());
        }
        let rep = SidrRep { request_id: conn.remote_id, service_id: conn.service_id, ..rep };
        let tid = conn.tid;
        self.send_kept(now, id, &Mad { tid, modifier, message: rep.into(), data }, false, fx);
        self.step(now, id, CmStep::SidrRepSent, fx);
        self.table.arm(id, now + TIME_WAIT);
        Ok(())
    }

    pub(crate) fn on_sidr_rep(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        rep: &SidrRep,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = rep.request_id;
        let Some(conn) = self.known(now, path, id, fx) else { return };
        if conn.state != CmState::SidrSent || conn.service_id != rep.service_id {
            return fx.count(path.device, Reason::CmUnexpected);
        }
        (conn.conn.remote_qpn, conn.conn.qkey) = (rep.qpn, rep.qkey);
        let vendor_id = u32::from(rep.vendor_high) << 16 | u32::from(rep.vendor_low);
        conn.conn.ece = ece_for_program(Ece { vendor_id, options: mad.modifier });
        self.step(now, id, CmStep::SidrRepReceived, fx);
        if rep.status == 0 {
            self.report(id, ConnEventKind::Established, 0, mad.data, fx);
        } else {
            fx.count(path.device, Reason::CmRejected);
            self.report(id, ConnEventKind::Rejected, u16::from(rep.status), mad.data, fx);
        }
        self.forget(id);
    }
}
