//! Requests and their listeners: a REQ or SIDR_REQ is shown to its listener, or queued while the listener's backlog is full.

use crate::api::{AdmissionRefusal, CmEffects, CmStep, ConnRequest, PathRecord};
use crate::backlog::{Backlog, BacklogPlace, RequestPlace};
use crate::conn::{CmState, Conn, SERVICE_TIME_MAX, time_of};
use crate::machine::{Cm, Listener};
use crate::message::{CmMessage, Dreq, Mad, Rej, SidrRep, reject};
use crate::service::{self, PrivateDataHeader};
use crate::sidr::SIDR_NO_QP;
use crate::source::{Question, Source};
use crate::table::ConnKey;
use burst_base::{Nanos, Reason};
use std::sync::Arc;

/// A request that may be shown: its connection, the keys of a repetition, and the message.
pub(crate) struct Arrival<'a, O> {
    pub conn: Conn<O>,
    pub keys: [Option<ConnKey>; 2],
    pub mad: &'a Mad<'a>,
}

/// The result of an attempt to show a queued request.
#[derive(PartialEq, Eq)]
enum Taken {
    /// The request has left the queue.
    Out,
    /// The listener's backlog is full.
    Full,
}

impl<O> Cm<O> {
    /// Takes a request for the listener with this backlog: shown at once if there is a place, else queued, else dropped. A drop
    /// has no answer: the peer repeats its request, and there may be room then. A request is rejected if the listener's user has
    /// its share of queued requests or of connections.
    pub(crate) fn admit(
        &mut self,
        now: Nanos,
        backlog: &Arc<Backlog>,
        arrival: Arrival<'_, O>,
        fx: &mut impl CmEffects<O>,
    ) {
        let Arrival { mut conn, keys, mad } = arrival;
        let (device, state, peer) = (conn.path.device, conn.state, conn.path.flow.dst);
        let is_proven = self.sources.is_proven(now, peer);
        if !is_proven && self.sources.is_pressed(self.limit) {
            return self.ask_source(now, &conn.path, mad, fx);
        }
        conn.waiting = if self.queue.has(backlog) { None } else { self.place(conn.service_id, backlog, fx) };
        if conn.waiting.is_none() {
            match self.queue_place(&conn, backlog, is_proven, fx) {
                Ok(place) => conn.queued = Some(place),
                Err(_) if !is_proven && self.queue.has_several_sources(backlog) => {
                    return self.ask_source(now, &conn.path, mad, fx);
                }
                Err(AdmissionRefusal::NoRoom) => return fx.count(device, Reason::CmBacklogFull),
                Err(AdmissionRefusal::OverShare) => return Self::refuse_over_share(&conn.path, mad, fx),
            }
            conn.state = CmState::Queued;
            mad.emit(&mut conn.mad);
        }
        let is_queued = conn.queued.is_some();
        debug_assert!(is_queued || conn.state == state);
        (conn.is_proven, conn.counts_unproven) = (is_proven, !is_proven);
        let Ok(id) = self.add(conn) else { return fx.count(device, Reason::CmNoRoom) };
        if !is_proven {
            self.sources.add_unproven(peer);
        }
        self.note_keys(id, keys);
        if is_queued {
            self.queue.push(now, backlog, Source::of(peer), is_proven, id);
            self.table.arm(id, now + given_up_after(&mad.message));
        } else {
            self.show(now, id, backlog, mad, fx);
        }
    }

    /// The connection is found by these keys.
    fn note_keys(&mut self, id: u32, keys: [Option<ConnKey>; 2]) {
        for (at, key) in keys.into_iter().enumerate() {
            if let Some(key) = key
                && self.table.know(key, id)
                && let Some(conn) = self.table.get_mut(id)
            {
                conn.keys[at] = Some(key);
            }
        }
    }

    /// A place in the queue for a request. Where there is none for a request of a source that has far fewer requests there than
    /// another, the newest of those is dropped: its peer repeats it.
    fn queue_place(
        &mut self,
        conn: &Conn<O>,
        backlog: &Arc<Backlog>,
        is_proven: bool,
        fx: &mut impl CmEffects<O>,
    ) -> Result<RequestPlace, AdmissionRefusal> {
        let refusal = match self.reserve(conn.service_id, backlog, fx) {
            Ok(place) => return Ok(place),
            Err(refusal) => refusal,
        };
        let victim = self.queue.victim(backlog, Source::of(conn.path.flow.dst), is_proven).ok_or(refusal)?;
        self.expire_queued(victim, fx);
        self.reserve(conn.service_id, backlog, fx)
    }

    /// A free place in the queue, charged to the listener's user.
    fn reserve(
        &self,
        service_id: u64,
        backlog: &Arc<Backlog>,
        fx: &mut impl CmEffects<O>,
    ) -> Result<RequestPlace, AdmissionRefusal> {
        let listener = self.listener_of(service_id, backlog).ok_or(AdmissionRefusal::NoRoom)?;
        let mut place = self.queue.reserve(backlog).ok_or(AdmissionRefusal::NoRoom)?;
        place.hold(fx.charge_queued(&listener.owner)?);
        Ok(place)
    }

    /// Rejects a request whose listener's user has its share of what another request needs: no resources are available (IBA
    /// 12.6.7.2, code 3), or no queue pair (the status of a SIDR_REP that comes nearest).
    fn refuse_over_share(path: &PathRecord, mad: &Mad<'_>, fx: &mut impl CmEffects<O>) {
        fx.count(path.device, Reason::CmUserShare);
        match mad.message {
            CmMessage::Req(req) => {
                let rej = Rej { remote_id: req.local_id, reason: reject::NO_RESOURCES, ..Rej::default() };
                Self::refuse(path, mad.tid, rej, fx);
            }
            CmMessage::SidrReq(req) => {
                let (request_id, service_id) = (req.request_id, req.service_id);
                let rep = SidrRep { request_id, status: SIDR_NO_QP, service_id, ..SidrRep::default() };
                Self::answer(path, mad.tid, rep.into(), &[], fx);
            }
            _ => debug_assert!(false, "only requests are shown"),
        }
    }

    /// Holds a request until its sender has proved its address (see [`crate::source`]).
    fn ask_source(&mut self, now: Nanos, path: &PathRecord, mad: &Mad<'_>, fx: &mut impl CmEffects<O>) {
        fx.count(path.device, Reason::CmAddressAsked);
        if let Some(Question { local_id, remote_id, tid }) = self.sources.challenge(now, path, mad) {
            let dreq = Dreq { local_id, remote_id, ..Dreq::default() };
            Self::answer(path, tid, dreq.into(), &[], fx);
        }
    }

    /// A peer has proved its address: its held requests go on.
    pub(crate) fn on_proof(&mut self, now: Nanos, path: &PathRecord, fx: &mut impl CmEffects<O>) {
        let peer = path.flow.dst;
        if self.sources.is_proven(now, peer) {
            return fx.count(path.device, Reason::CmDuplicate);
        }
        self.sources.prove(now, peer);
        for held in self.sources.take_held(peer) {
            let Ok(mad) = Mad::parse(&held.bytes) else { continue };
            match mad.message {
                CmMessage::Req(req) => self.on_req(now, &held.path, &mad, &req, fx),
                CmMessage::SidrReq(req) => self.on_sidr_req(now, &held.path, &mad, &req, fx),
                _ => debug_assert!(false, "only requests are held"),
            }
        }
    }

    /// Shows queued requests to listeners whose backlogs have places again; at most `budget` in one call. Returns how many
    /// requests have left the queue. [`Cm::on_timer`] does this, too; a host whose timers may have to wait calls it by itself.
    pub fn show_queued(&mut self, now: Nanos, budget: usize, fx: &mut impl CmEffects<O>) -> usize {
        let mut shown = 0;
        for _ in 0..self.queue.listeners_due(now) {
            let Some(backlog) = self.queue.next_listener() else { break };
            while let Some(id) = self.queue.first(&backlog) {
                if shown == budget {
                    self.queue.note_free(&backlog);
                    self.queue.look();
                    return shown;
                }
                if self.take_queued(now, id, &backlog, fx) == Taken::Full {
                    break;
                }
                shown += 1;
            }
        }
        debug_assert!(shown <= budget);
        shown
    }

    /// Shows a queued request if its listener has a place, and refuses it if the listener has ended.
    fn take_queued(&mut self, now: Nanos, id: u32, backlog: &Arc<Backlog>, fx: &mut impl CmEffects<O>) -> Taken {
        let Some(conn) = self.table.get_mut(id) else {
            debug_assert!(false, "a queued request is in the table");
            self.queue.remove(id);
            return Taken::Out;
        };
        debug_assert_eq!(conn.state, CmState::Queued);
        let (path, service_id, bytes) = (conn.path, conn.service_id, conn.mad);
        let Ok(mad) = Mad::parse(&bytes) else {
            self.forget(id);
            return Taken::Out;
        };
        if self.listener_of(service_id, backlog).is_none() {
            self.forget(id);
            match mad.message {
                CmMessage::Req(req) => Self::refuse_without_listener(&path, mad.tid, &req, fx),
                CmMessage::SidrReq(req) => Self::refuse_sidr_without_listener(&path, mad.tid, &req, fx),
                _ => {}
            }
            return Taken::Out;
        }
        let Some(place) = self.place(service_id, backlog, fx) else { return Taken::Full };
        self.queue.remove(id);
        self.queue.pass_turn(backlog);
        self.table.arm(id, Nanos::NEVER);
        if let Some(conn) = self.table.get_mut(id) {
            let is_req = matches!(mad.message, CmMessage::Req(_));
            conn.state = if is_req { CmState::ReqReceived } else { CmState::SidrReceived };
            (conn.waiting, conn.queued) = (Some(place), None);
        }
        self.show(now, id, backlog, &mad, fx);
        Taken::Out
    }

    /// A queued request was repeated: its peer still waits, and asks again less soon.
    pub(crate) fn keep_queued(&mut self, now: Nanos, id: u32, message: &CmMessage) {
        debug_assert_eq!(self.state(id), Some(CmState::Queued));
        self.table.arm(id, now + given_up_after(message));
    }

    /// The peer of a queued request has certainly given up.
    pub(crate) fn expire_queued(&mut self, id: u32, fx: &mut impl CmEffects<O>) {
        debug_assert_eq!(self.state(id), Some(CmState::Queued));
        if let Some(conn) = self.forget(id) {
            fx.count(conn.path.device, Reason::CmBacklogFull);
        }
    }

    /// The listener with this backlog.
    fn listener_of(&self, service_id: u64, backlog: &Arc<Backlog>) -> Option<&Listener<O>> {
        self.listeners.get(&service_id)?.iter().find(|l| Arc::ptr_eq(&l.backlog, backlog))
    }

    /// A place in the backlog of a listener that has not ended.
    fn place(&self, service_id: u64, backlog: &Arc<Backlog>, fx: &impl CmEffects<O>) -> Option<BacklogPlace> {
        let listener = self.listener_of(service_id, backlog)?;
        BacklogPlace::enter(backlog, || fx.unread(&listener.owner))
    }

    /// Shows a request to its listener.
    fn show(&mut self, now: Nanos, id: u32, backlog: &Arc<Backlog>, mad: &Mad<'_>, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(conn.owner.is_none() && conn.waiting.is_some() && conn.queued.is_none());
        let is_sidr = conn.state == CmState::SidrReceived;
        let header = PrivateDataHeader::parse(mad.data);
        let request = ConnRequest {
            id,
            path: conn.path,
            src: header.map(|h| (h.src, h.port)),
            service_id: conn.service_id,
            transport: (!is_sidr).then_some(conn.transport),
            conn: conn.conn,
            data: &mad.data[header.map_or(0, |_| service::HEADER_LEN)..],
        };
        let listener = self.listener_of(request.service_id, backlog).ok_or(AdmissionRefusal::NoRoom);
        let owner = match listener.and_then(|listener| fx.incoming(&listener.owner, &request)) {
            Ok(owner) => owner,
            Err(refusal) => {
                self.forget(id);
                return match refusal {
                    AdmissionRefusal::NoRoom => fx.count(request.path.device, Reason::CmNoRoom),
                    AdmissionRefusal::OverShare => Self::refuse_over_share(&request.path, mad, fx),
                };
            }
        };
        if let Some(conn) = self.table.get_mut(id) {
            conn.owner = Some(owner);
        }
        self.step(now, id, if is_sidr { CmStep::SidrReqReceived } else { CmStep::ReqReceived }, fx);
    }
}

/// The time after which a peer that has had no answer to its request has certainly given up: all its retries, as far as its
/// message says (IBA 12.6.5, Remote CM Response Timeout and Max CM Retries).
fn given_up_after(request: &CmMessage) -> Nanos {
    match request {
        CmMessage::Req(req) => {
            let waits = u64::from(req.cm_retries) + 1;
            Nanos(time_of(req.remote_response_timeout).0.saturating_mul(waits)).min(SERVICE_TIME_MAX)
        }
        _ => SERVICE_TIME_MAX,
    }
}
