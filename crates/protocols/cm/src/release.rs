//! The end of a connection: DREQ, DREP, time-wait (IBA 12.9.8); alternate paths, which are declined; and an owner's end.

use crate::api::{CmEffects, CmIds, CmStep, ConnEventKind, PathRecord};
use crate::conn::{CmState, Conn, TIME_WAIT};
use crate::machine::{Cm, CmError};
use crate::message::{Apr, Drep, Dreq, Lap, Mad, Rej, reject};
use crate::source::Question;
use burst_base::{Nanos, Qpn, Reason};
use std::any::Any;

/// APR status: the connection is unknown.
const APR_INVALID_COMM_ID: u8 = 1;
/// APR status: alternate paths are not supported.
const APR_UNSUPPORTED: u8 = 2;

impl<O> Cm<O> {
    /// Disconnects by a DREQ, which is repeated until the DREP is received. In TIMEWAIT this does nothing and is no error.
    ///
    /// # Errors
    /// [`CmError::Gone`], [`CmError::WrongState`].
    pub fn disconnect(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) -> Result<(), CmError> {
        let conn = self.table.get_mut(id).ok_or(CmError::Gone)?;
        match conn.state {
            CmState::Established | CmState::RepSent | CmState::RepReceived => {}
            CmState::DreqSent | CmState::TimeWait => return Ok(()),
            _ => return Err(CmError::WrongState),
        }
        conn.state = CmState::DreqSent;
        let dreq = Dreq { local_id: id, remote_id: conn.remote_id, remote_qpn: conn.conn.remote_qpn };
        let tid = !0 << 63 | u64::from(id);
        self.send_kept(now, id, &Mad { tid, modifier: 0, message: dreq.into(), data: &[] }, true, fx);
        self.step(now, id, CmStep::DreqSent, fx);
        Ok(())
    }

    /// The number of a connection's own queue pair, and its ids.
    pub fn ids_of(&mut self, id: u32) -> Option<(Qpn, CmIds)> {
        let conn = self.table.get_mut(id)?;
        Some((Qpn::new(conn.local_qpn), CmIds { local: id, remote: conn.remote_id }))
    }

    /// Sends the DREQ of a connection that is not in this machine: its machine has died.
    pub fn announce_end(path: &PathRecord, ids: CmIds, remote_qpn: Qpn, fx: &mut impl CmEffects<O>) {
        let dreq = Dreq { local_id: ids.local, remote_id: ids.remote, remote_qpn: remote_qpn.get() };
        let tid = !0 << 63 | u64::from(ids.local);
        Self::answer(path, tid, dreq.into(), &[], fx);
    }

    /// Handles a DREQ. It is answered at once, so that the peer does not depend on the program.
    pub(crate) fn on_dreq(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        dreq: &Dreq,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = dreq.remote_id;
        let drep = Drep { local_id: dreq.remote_id, remote_id: dreq.local_id };
        let Some(conn) = self.table.get_mut(id) else {
            // The connection has ended here, so the DREQ is granted.
            fx.count(path.device, Reason::CmUnknownId);
            return Self::answer(path, mad.tid, drep.into(), &[], fx);
        };
        let peers = conn.path.flow.dst == path.flow.dst;
        if !peers || conn.remote_id != dreq.local_id || conn.local_qpn != dreq.remote_qpn {
            return fx.count(path.device, Reason::CmForged);
        }
        match conn.state {
            CmState::Established | CmState::RepSent | CmState::RepReceived | CmState::DreqSent => {
                Self::answer(path, mad.tid, drep.into(), &[], fx);
                self.step(now, id, CmStep::DreqReceived, fx);
                self.enter_timewait(now, id, mad.data, fx);
            }
            CmState::TimeWait => {
                fx.count(path.device, Reason::CmDuplicate);
                Self::answer(path, mad.tid, drep.into(), &[], fx);
            }
            _ => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    /// Handles a DREP: the peer agrees to the end of the connection.
    pub(crate) fn on_drep(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        drep: &Drep,
        fx: &mut impl CmEffects<O>,
    ) {
        let id = drep.remote_id;
        let answer = Question { local_id: id, remote_id: drep.local_id, tid: mad.tid };
        if self.state(id).is_none() && self.sources.is_answer(now, path.flow.dst, answer) {
            return self.on_proof(now, path, fx);
        }
        let Some(conn) = self.known(now, path, id, fx) else { return };
        if conn.remote_id != drep.local_id {
            return fx.count(path.device, Reason::CmForged);
        }
        match conn.state {
            CmState::DreqSent => {
                self.answered(now, id);
                self.step(now, id, CmStep::DrepReceived, fx);
                self.enter_timewait(now, id, mad.data, fx);
            }
            _ => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    /// Ends a connection by the peer's DREQ or DREP, which carried `data`.
    pub(crate) fn enter_timewait(&mut self, now: Nanos, id: u32, data: &[u8], fx: &mut impl CmEffects<O>) {
        self.over(now, id, 0, data, fx);
    }

    /// Ends a connection whose peer does not answer the DREQ.
    pub(crate) fn end_unanswered(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        self.over(now, id, reject::TIMEOUT, &[], fx);
    }

    fn over(&mut self, now: Nanos, id: u32, status: u16, data: &[u8], fx: &mut impl CmEffects<O>) {
        self.step(now, id, CmStep::Disconnected, fx);
        self.report(id, ConnEventKind::Disconnected, status, data, fx);
        self.begin_timewait(now, id);
    }

    /// Moves a connection to TIMEWAIT, which a timer ends.
    pub(crate) fn begin_timewait(&mut self, now: Nanos, id: u32) {
        if let Some(conn) = self.table.get_mut(id) {
            debug_assert!(conn.waiting.is_none() && conn.queued.is_none(), "an accept gives the place back");
            debug_assert!(conn.state != CmState::TimeWait, "TIMEWAIT is not prolonged");
            conn.state = CmState::TimeWait;
        }
        self.table.arm(id, now + TIME_WAIT);
    }

    pub(crate) fn forget_after_timewait(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        debug_assert_eq!(self.state(id), Some(CmState::TimeWait));
        self.step(now, id, CmStep::TimewaitExit, fx);
        self.report(id, ConnEventKind::TimewaitExit, 0, &[], fx);
        self.forget(id);
    }

    /// Ends a connection that the peer has forgotten, as a new request for its queue pair shows.
    pub(crate) fn end_stale(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        match conn.state {
            CmState::Established | CmState::RepSent | CmState::RepReceived => {
                // The state allows it.
                let _ = self.disconnect(now, id, fx);
            }
            CmState::Queued | CmState::ReqReceived => {
                self.report(id, ConnEventKind::Rejected, reject::STALE_CONNECTION, &[], fx);
                self.withdraw(id, fx);
            }
            _ => {}
        }
    }

    /// Removes a connection that the peer has withdrawn. An unanswered request keeps its place in the backlog until its owner
    /// answers.
    pub(crate) fn withdraw(&mut self, id: u32, fx: &mut impl CmEffects<O>) {
        if let Some(Conn { owner: Some(owner), waiting: Some(place), .. }) = self.forget(id) {
            fx.keep_place(&owner, place);
        }
    }

    /// Declines a LAP: RoCE connections have one path.
    pub(crate) fn on_lap(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        mad: &Mad<'_>,
        lap: &Lap,
        fx: &mut impl CmEffects<O>,
    ) {
        let known = self.known(now, path, lap.remote_id, fx).is_some_and(|c| c.remote_id == lap.local_id);
        let status = if known { APR_UNSUPPORTED } else { APR_INVALID_COMM_ID };
        let apr = Apr { local_id: lap.remote_id, remote_id: lap.local_id, status, ..Apr::default() };
        Self::answer(path, mad.tid, apr.into(), &[], fx);
    }

    /// A connection whose owner is about to end keeps this until it is forgotten: it takes a place of the table as long as the
    /// peer has not answered, and in TIMEWAIT. Without the connection it is dropped.
    pub fn keep_cost(&mut self, id: u32, cost: Box<dyn Any + Send>) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.cost = Some(cost);
        }
    }

    /// Ends a connection whose owner has ended: the peer is notified according to the state; no event is reported here.
    pub fn destroy(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.owner = None;
        match conn.state {
            CmState::ReqSent => {
                let rej = Rej::timeout(id, conn.local_guid);
                self.reject_and_forget(id, rej, fx);
            }
            CmState::ReqReceived => {
                let rej = Rej { local_id: id, remote_id: conn.remote_id, reason: reject::CONSUMER, ..Rej::default() };
                self.reject_and_forget(id, rej, fx);
            }
            CmState::RepReceived => {
                let rej = Rej {
                    local_id: id,
                    remote_id: conn.remote_id,
                    message: 1,
                    reason: reject::CONSUMER,
                    ..Rej::default()
                };
                self.reject_and_forget(id, rej, fx);
            }
            CmState::RepSent | CmState::Established => {
                // The state allows it.
                let _ = self.disconnect(now, id, fx);
            }
            CmState::SidrReceived => {
                // The state allows it, and there is no data.
                let _ = self.reject_sidr(now, id, &[], fx);
            }
            CmState::SidrSent | CmState::Queued => drop(self.forget(id)),
            CmState::DreqSent | CmState::TimeWait | CmState::SidrDone => {}
        }
    }

    fn reject_and_forget(&mut self, id: u32, rej: Rej, fx: &mut impl CmEffects<O>) {
        if let Some(Conn { path, tid, .. }) = self.forget(id) {
            Self::refuse(&path, tid, rej, fx);
        }
    }

    /// Ends all listeners and connections of owners for which `is_ended` is true.
    pub fn destroy_all(&mut self, now: Nanos, mut is_ended: impl FnMut(&O) -> bool, fx: &mut impl CmEffects<O>) {
        self.unlisten(&mut is_ended);
        for id in self.table.ids() {
            if self.table.get_mut(id).is_some_and(|c| c.owner.as_ref().is_some_and(&mut is_ended)) {
                self.destroy(now, id, fx);
            }
        }
    }
}
