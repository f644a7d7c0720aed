//! The state machine of one worker: its listeners, its connections, and the calls of programs.
//!
//! No I/O, no clock: `now` comes in, [`CmEffects`] go out. The protocol is IBA 12.9: `active` and
//! `passive` hold the two ends of a handshake, `release` the end of a connection, `sidr` datagram
//! services. This file has the common parts: sending, retransmission, events, timers, and the dispatch of received messages.

use crate::api::{CmEffects, CmStep, ConnEvent, ConnEventKind, PathRecord, StepTime, Transport};
use crate::backlog::Backlog;
use crate::conn::{CmState, Conn, FIRST_TIMEOUT, LONGEST_TIMEOUT, RETRIES_MAX};
use crate::early::EarlyRequests;
use crate::fold::Fold;
use crate::message::{CmMessage, Mad, Rej, reject};
use crate::queue::RequestQueue;
use crate::rto::RtoEstimator;
use crate::source::{Question, Sources};
use crate::table::{CONNECTIONS_MAX, Secret, Table};
use burst_base::{DeviceId, Nanos, Reason};
use burst_wire::MAD_LEN;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Reason for which a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// There is no such connection, or it has ended.
    Gone,
    /// The connection's state does not allow it.
    WrongState,
    /// The table of connections is full.
    NoRoom,
    /// The private data does not fit the message.
    DataTooLong,
    /// The address has a listener already.
    InUse,
}

/// A listener.
#[derive(Debug)]
pub struct Listener<O> {
    /// Owner, to whom requests are shown.
    pub owner: O,
    /// Service id.
    pub service_id: u64,
    /// Address; `None` for all addresses, an unspecified address for all addresses of its family.
    pub addr: Option<IpAddr>,
    /// Device; `None` for all devices.
    pub device: Option<DeviceId>,
    /// Whether it answers SIDR_REQs instead of REQs.
    pub sidr: bool,
    /// Transport service of its connections; meaningless if `sidr`.
    pub transport: Transport,
    /// Counts of its requests that wait.
    pub backlog: Arc<Backlog>,
}

/// The state machine of one worker.
#[derive(Debug)]
pub struct Cm<O> {
    pub(crate) table: Table<Conn<O>>,
    pub(crate) listeners: HashMap<u64, Vec<Listener<O>>, Fold>,
    pub(crate) limit: u32,
    pub(crate) rto: RtoEstimator,
    pub(crate) early: EarlyRequests,
    pub(crate) queue: RequestQueue,
    pub(crate) sources: Sources,
}

/// Most connections of one worker, unless [`Cm::set_limit`] changes it.
pub const LIMIT_DEFAULT: u32 = CONNECTIONS_MAX;

impl<O> Cm<O> {
    /// The machine of `worker`; all workers of a daemon share `secret`.
    pub fn new(worker: u32, secret: Secret) -> Cm<O> {
        Cm {
            table: Table::new(worker, secret),
            listeners: HashMap::with_hasher(secret.fold()),
            limit: LIMIT_DEFAULT,
            rto: RtoEstimator::default(),
            early: EarlyRequests::new(),
            queue: RequestQueue::new(),
            sources: Sources::new(worker, secret),
        }
    }

    /// Limits the number of connections, for tests and small hosts.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Number of connections in any state.
    pub fn len(&self) -> u32 {
        self.table.len()
    }

    /// Number of connections that are requests waiting for a place in their listener's backlog.
    pub fn queued(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns unused memory. To be called when the host is idle: the next connections allocate again.
    pub fn shrink(&mut self) {
        self.table.shrink();
        self.queue.shrink();
        self.sources.shrink();
    }

    /// The state of a connection.
    pub fn state(&mut self, id: u32) -> Option<CmState> {
        self.table.get_mut(id).map(|c| c.state)
    }

    /// The worker that owns the connection of a MAD, out of `workers`. `None` for a REJ that withdraws a request: it
    /// names no communication id of this host, so all workers must look for the request.
    pub fn worker_of(secret: &Secret, peer: IpAddr, mad: &[u8], workers: u32) -> Option<u32> {
        match Mad::parse(mad).map(|m| m.message) {
            Ok(CmMessage::Req(m)) => Some(secret.worker_for(peer, m.qpn, workers)),
            Ok(CmMessage::SidrReq(m)) => Some(secret.worker_for(peer, m.request_id, workers)),
            Ok(CmMessage::Rej(m)) if m.remote_id == 0 => None,
            Ok(m) => Some(secret.worker_of(m.receiver_id())).filter(|w| *w < workers).or(Some(0)),
            // Worker 0 counts the malformed MAD.
            Err(_) => Some(0),
        }
    }

    /// Whether a MAD shows that its sender's address is not forged, or the address was proved before: it carries the id of a
    /// connection with this peer, or of a question to it. Ids cannot be guessed.
    pub fn is_proven(&mut self, peer: IpAddr, mad: &[u8]) -> bool {
        let Ok(mad) = Mad::parse(mad) else { return false };
        let id = mad.message.receiver_id();
        if id != 0 && self.table.get_mut(id).is_some_and(|conn| conn.path.flow.dst == peer) {
            return true;
        }
        let now = self.sources.now;
        let answer = match mad.message {
            CmMessage::Drep(drep) => Some(Question { local_id: id, remote_id: drep.local_id, tid: mad.tid }),
            _ => None,
        };
        answer.is_some_and(|answer| self.sources.is_answer(now, peer, answer)) || self.sources.is_proven(now, peer)
    }

    /// Adds a listener. Requests that arrived before it are shown by the next [`Cm::on_timer`], which is due at once if
    /// there are any.
    ///
    /// # Errors
    /// [`CmError::InUse`] when the same address of the same service has a listener.
    pub fn listen(&mut self, listener: Listener<O>) -> Result<(), CmError> {
        let all = self.listeners.entry(listener.service_id).or_default();
        let same = |l: &Listener<O>| (l.addr, l.device, l.sidr) == (listener.addr, listener.device, listener.sidr);
        if all.iter().any(same) {
            return Err(CmError::InUse);
        }
        all.push(listener);
        self.early.look();
        Ok(())
    }

    /// Removes the listeners of owners for which `is_ended` is true: a walk over all listeners.
    pub fn unlisten(&mut self, mut is_ended: impl FnMut(&O) -> bool) {
        let queue = &mut self.queue;
        self.listeners.retain(|_, all| {
            remove_ended(all, queue, &mut is_ended);
            !all.is_empty()
        });
    }

    /// As [`Cm::unlisten`] for the listeners of one service.
    pub fn unlisten_service(&mut self, service_id: u64, mut is_ended: impl FnMut(&O) -> bool) {
        let Some(all) = self.listeners.get_mut(&service_id) else { return };
        remove_ended(all, &mut self.queue, &mut is_ended);
        if all.is_empty() {
            self.listeners.remove(&service_id);
        }
    }

    /// The listener for a request: the exact address is preferred to all addresses of the family, and these to all addresses.
    pub(crate) fn listener(&self, service_id: u64, addr: IpAddr, device: DeviceId, sidr: bool) -> Option<&Listener<O>> {
        let family = |a: IpAddr| a.is_unspecified() && a.is_ipv4() == addr.is_ipv4();
        let fits = |l: &&Listener<O>| {
            l.sidr == sidr && l.addr.is_none_or(|a| a == addr || family(a)) && l.device.is_none_or(|d| d == device)
        };
        let rank = |l: &&Listener<O>| l.addr.map_or(0, |a| 1 + u8::from(!a.is_unspecified()));
        self.listeners.get(&service_id)?.iter().filter(fits).max_by_key(rank)
    }

    /// Time at which [`Cm::on_timer`] is due.
    pub fn next_deadline(&self) -> Nanos {
        self.table.wheel.next_deadline().min(self.early.next_deadline()).min(self.queue.next_deadline())
    }

    /// Retransmits messages and ends connections whose timers have expired; at most `budget` connections in one call.
    /// Returns the number of timers served.
    pub fn on_timer(&mut self, now: Nanos, budget: usize, fx: &mut impl CmEffects<O>) -> usize {
        let mut fired = self.on_early(now, budget, fx);
        fired += self.show_queued(now, budget - fired.min(budget), fx);
        while fired < budget
            && let Some(slot) = self.table.wheel.pop_due(now)
        {
            fired += 1;
            let rto = self.rto;
            let Some((id, conn)) = self.table.at_mut(slot) else { continue };
            match conn.state {
                CmState::TimeWait => self.forget_after_timewait(now, id, fx),
                CmState::SidrDone => drop(self.forget(id)),
                CmState::Queued => self.expire_queued(id, fx),
                CmState::ReqReceived | CmState::RepReceived | CmState::SidrReceived | CmState::Established => {}
                _ if conn.retries == 0 && rto.until(now, conn.sent) > now => {
                    let until = rto.until(now, conn.sent);
                    self.table.arm(id, until);
                }
                _ if conn.retries >= RETRIES_MAX => self.give_up(now, id, fx),
                _ => self.send_again(now, id, fx),
            }
        }
        debug_assert!(fired <= budget);
        fired
    }

    /// Handles a received MAD. `path` is the path of an answer: the MAD came from `path.flow.dst` to `path.flow.src`.
    pub fn on_mad(&mut self, now: Nanos, path: &PathRecord, bytes: &[u8], fx: &mut impl CmEffects<O>) {
        self.sources.now = now;
        let mad = match Mad::parse(bytes) {
            Ok(mad) => mad,
            Err(reason) => return fx.count(path.device, reason),
        };
        match mad.message {
            CmMessage::Req(m) => self.on_req(now, path, &mad, &m, fx),
            CmMessage::Rep(m) => self.on_rep(now, path, &mad, &m, fx),
            CmMessage::Rtu(m) => self.on_rtu(now, path, &mad, &m, fx),
            CmMessage::Rej(m) => self.on_rej(now, path, &mad, &m, fx),
            CmMessage::Mra(m) => self.on_mra(now, path, &m, fx),
            CmMessage::Dreq(m) => self.on_dreq(now, path, &mad, &m, fx),
            CmMessage::Drep(m) => self.on_drep(now, path, &mad, &m, fx),
            CmMessage::SidrReq(m) => self.on_sidr_req(now, path, &mad, &m, fx),
            CmMessage::SidrRep(m) => self.on_sidr_rep(now, path, &mad, &m, fx),
            CmMessage::Lap(m) => self.on_lap(now, path, &mad, &m, fx),
            // This stack never sends a LAP.
            CmMessage::Apr(_) => fx.count(path.device, Reason::CmUnexpected),
        }
    }

    /// The connection that a message names, if the message comes from its peer. Ids cannot be guessed: the peer has received
    /// something at its address.
    pub(crate) fn known(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        id: u32,
        fx: &mut impl CmEffects<O>,
    ) -> Option<&mut Conn<O>> {
        let Some(conn) = self.table.get_mut(id) else {
            fx.count(path.device, Reason::CmUnknownId);
            return None;
        };
        if conn.path.flow.dst != path.flow.dst {
            fx.count(path.device, Reason::CmForged);
            return None;
        }
        if !conn.is_proven {
            conn.is_proven = true;
            if std::mem::take(&mut conn.counts_unproven) {
                self.sources.remove_unproven(path.flow.dst);
            }
            self.sources.prove(now, path.flow.dst);
        }
        Some(conn)
    }

    /// Sends a message once; no answer is expected.
    pub(crate) fn answer(path: &PathRecord, tid: u64, message: CmMessage, data: &[u8], fx: &mut impl CmEffects<O>) {
        let mut bytes = [0; MAD_LEN];
        Mad { tid, modifier: 0, message, data }.emit(&mut bytes);
        fx.send(path, &message, &bytes);
    }

    /// Rejects a message that has no connection here, or none any more.
    pub(crate) fn refuse(path: &PathRecord, tid: u64, rej: Rej, fx: &mut impl CmEffects<O>) {
        Self::answer(path, tid, rej.into(), &[], fx);
        fx.step(None, path, rej.local_id, CmStep::RejSent, StepTime::default());
    }

    /// Rejects the last message of a connection's peer.
    pub(crate) fn reject_conn(&mut self, now: Nanos, id: u32, rej: Rej, data: &[u8], fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        Self::answer(&conn.path, conn.tid, rej.into(), data, fx);
        self.step(now, id, CmStep::RejSent, fx);
    }

    /// Sends a message and keeps it for retransmission: by a timer if `timed`, else only when the peer repeats its
    /// request.
    pub(crate) fn send_kept(&mut self, now: Nanos, id: u32, mad: &Mad<'_>, timed: bool, fx: &mut impl CmEffects<O>) {
        let chance = self.table.chance();
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(
            if timed { conn.state.awaits_answer() } else { conn.state == CmState::SidrDone },
            "{:?} does not match a message that is {} by a timer",
            conn.state,
            if timed { "repeated" } else { "not repeated" }
        );
        mad.emit(&mut conn.mad);
        (conn.retries, conn.interval, conn.sent) = (0, FIRST_TIMEOUT, now);
        fx.send(&conn.path, &mad.message, &conn.mad);
        let due = if timed { now + jittered(conn.interval, chance) } else { Nanos::NEVER };
        self.table.arm(id, due);
    }

    /// The kept message was answered: the time that this took is a sample for the retransmission timeout.
    pub(crate) fn answered(&mut self, now: Nanos, id: u32) {
        if let Some(conn) = self.table.get_mut(id).filter(|c| c.retries == 0) {
            self.rto.answered(now, now.since(conn.sent));
        }
    }

    fn send_again(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        let chance = self.table.chance();
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(conn.state.awaits_answer() && conn.retries < RETRIES_MAX);
        debug_assert!((FIRST_TIMEOUT..=LONGEST_TIMEOUT).contains(&conn.interval));
        conn.retries += 1;
        conn.interval = Nanos((conn.interval.0 * 2).min(LONGEST_TIMEOUT.0));
        let due = now + jittered(conn.interval, chance);
        Self::repeat(conn, fx);
        fx.count(conn.path.device, Reason::CmRetry);
        self.table.arm(id, due);
    }

    /// Sends the kept message again.
    pub(crate) fn repeat(conn: &Conn<O>, fx: &mut impl CmEffects<O>) {
        if let Some(mad) = conn.stored() {
            fx.send(&conn.path, &mad.message, &conn.mad);
        }
    }

    /// Ends a connection whose peer has not answered after all retries.
    fn give_up(&mut self, now: Nanos, id: u32, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        debug_assert!(conn.state.awaits_answer() && conn.retries == RETRIES_MAX);
        fx.count(conn.path.device, Reason::CmTimeout);
        match conn.state {
            // A peer that does not answer a DREQ has ended the connection, too.
            CmState::DreqSent => return self.end_unanswered(now, id, fx),
            CmState::SidrSent => {}
            CmState::ReqSent => {
                let rej = Rej::timeout(id, conn.local_guid);
                self.reject_conn(now, id, rej, &[], fx);
            }
            _ => {
                let reason = reject::TIMEOUT;
                let rej = Rej { local_id: id, remote_id: conn.remote_id, message: 1, reason, ..Rej::default() };
                self.reject_conn(now, id, rej, &[], fx);
            }
        }
        self.step(now, id, CmStep::Failed, fx);
        self.report(id, ConnEventKind::Unreachable, 0, &[], fx);
        self.forget(id);
    }

    /// Reports an event to the owner, if there still is one.
    pub(crate) fn report(
        &mut self,
        id: u32,
        kind: ConnEventKind,
        status: u16,
        data: &[u8],
        fx: &mut impl CmEffects<O>,
    ) {
        let Some(conn) = self.table.get_mut(id) else { return };
        if let Some(owner) = &conn.owner {
            fx.event(owner, &conn.path, &ConnEvent { kind, status, conn: conn.conn, data });
        }
    }

    /// Reports a step and its duration.
    pub(crate) fn step(&mut self, now: Nanos, id: u32, step: CmStep, fx: &mut impl CmEffects<O>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let mut took = StepTime { elapsed: now.since(conn.stepped), ..StepTime::default() };
        match step {
            CmStep::RepSent | CmStep::RepReceived => conn.replied = now,
            CmStep::Established => {
                took = StepTime { elapsed: now.since(conn.begun), reply: conn.replied.since(conn.begun) };
            }
            _ => {}
        }
        conn.stepped = now;
        fx.step(conn.owner.as_ref(), &conn.path, id, step, took);
    }

    /// Takes a connection out of the table.
    pub(crate) fn forget(&mut self, id: u32) -> Option<Conn<O>> {
        let keys = self.table.get_mut(id)?.keys;
        let conn = self.table.remove(id, keys)?;
        debug_assert_eq!(conn.id, id);
        debug_assert!(conn.waiting.is_none() || conn.queued.is_none(), "a request has one place");
        if let Some(place) = &conn.queued {
            debug_assert!(place.backlog().queued() > 0, "a queued request that its listener does not count");
            self.queue.remove(id);
        }
        if conn.counts_unproven {
            self.sources.remove_unproven(conn.path.flow.dst);
        }
        if let Some(place) = &conn.waiting {
            self.queue.note_free(place.backlog());
        }
        Some(conn)
    }

    /// Puts a connection into the table; returns its id.
    pub(crate) fn add(&mut self, conn: Conn<O>) -> Result<u32, CmError> {
        if self.table.len() >= self.limit {
            return Err(CmError::NoRoom);
        }
        debug_assert_eq!(conn.state == CmState::Queued, conn.queued.is_some());
        let id = self.table.insert(conn).ok_or(CmError::NoRoom)?;
        if let Some(conn) = self.table.get_mut(id) {
            conn.id = id;
        }
        Ok(id)
    }

    /// An unpredictable first PSN.
    pub(crate) fn draw_psn(&mut self) -> u32 {
        self.table.draw() & 0x00ff_ffff
    }
}

/// Removes listeners that have ended. Requests that are queued for them are refused in the next pass.
fn remove_ended<O>(all: &mut Vec<Listener<O>>, queue: &mut RequestQueue, is_ended: &mut impl FnMut(&O) -> bool) {
    all.retain(|listener| {
        let ended = is_ended(&listener.owner);
        if ended {
            queue.note_free(&listener.backlog);
        }
        !ended
    });
}

/// `interval`, varied by chance by up to a quarter.
fn jittered(interval: Nanos, chance: u64) -> Nanos {
    let quarter = interval.0 / 4;
    Nanos(interval.0 - quarter + chance % (2 * quarter + 1))
}
