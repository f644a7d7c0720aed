//! An id (`rdma_cm_id`), as control thread and worker share it: its program, its event channel, its route and its queue pair.

use crate::channel::{CmChannel, UnreadCmEvents};
use burst_base::Qpn;
use burst_base::verbs::QpType;
use burst_cm::{
    AdmissionRefusal, BacklogPlace, CONNECTIONS_CHARGED, ConnAttr, ConnParam, PathRecord, RequestCharge,
    WORKER_QUEUE_MAX,
};
use burst_control::cm::{CmRoute, DAEMON_IDS, PortSpace};
use burst_ledger::{Account, Charge, Exhausted, Policy, Resource, Scope, SharePool};
use crossbeam_queue::SegQueue;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair that the daemon moves through its states for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmQpRef {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Context that the queue pair must belong to.
    pub context: u32,
}

/// The program of a session, as `burst cm` shows it.
#[derive(Clone, Debug, Default)]
pub struct CmProgram {
    /// Name.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// What all programs share of one worker.
#[derive(Debug)]
pub struct CmPlaces {
    /// Connections.
    pub connections: SharePool,
    /// Requests that wait for a place in their listener's backlog.
    pub requests: SharePool,
}

impl CmPlaces {
    /// The places of a worker, of which each user may have the policy's share.
    pub fn new(policy: Policy) -> CmPlaces {
        CmPlaces {
            connections: SharePool::new(Resource::CmId, Scope::Worker, CONNECTIONS_CHARGED.into(), policy),
            requests: SharePool::new(Resource::CmRequest, Scope::Worker, WORKER_QUEUE_MAX as u64, policy),
        }
    }
}

/// A program's user, and the places of the workers.
#[derive(Debug)]
struct CmShares {
    account: Account,
    workers: Arc<[CmPlaces]>,
}

impl CmShares {
    /// Charges one of a resource, with a place of a worker.
    fn charge(
        &self,
        resource: Resource,
        worker: u32,
        pool: impl FnOnce(&CmPlaces) -> &SharePool,
    ) -> Result<Charge, AdmissionRefusal> {
        let places = self.workers.get(worker as usize).ok_or(AdmissionRefusal::NoRoom)?;
        let refusal =
            |why: Exhausted| if why.over_share { AdmissionRefusal::OverShare } else { AdmissionRefusal::NoRoom };
        let charge = self.account.charge(&[(resource, 1)]).map_err(refusal)?;
        Ok(charge.with_place(pool(places).charge(&self.account).map_err(refusal)?))
    }
}

/// A program's session with the daemon, as the workers see it.
#[derive(Debug, Default)]
pub struct CmSession {
    /// The program.
    pub program: CmProgram,
    /// Whether the program has gone, so that it gets no new ids.
    ended: AtomicBool,
    next: AtomicU32,
    /// Length of the backlogs of all of the program's channels.
    pub(crate) unread: UnreadCmEvents,
    /// What requests to its listeners cost; `None`: nothing.
    shares: Option<CmShares>,
    /// Ids made for connect requests, for the control thread.
    pub arrivals: SegQueue<Arc<CmEntry>>,
}

impl CmSession {
    /// A session of a program.
    pub fn new(program: CmProgram) -> CmSession {
        CmSession { program, ..CmSession::default() }
    }
    /// A session of a program whose unread events count against its user's share: a user who starts many programs and reads no
    /// events takes no memory from others.
    ///
    /// Requests to the program's listeners are charged to its user as soon as they come, whether the program looks at them or
    /// not: its user's share of the places of `workers`, and of the daemon's, bounds them.
    pub fn of(program: CmProgram, account: &Account, workers: Arc<[CmPlaces]>) -> CmSession {
        let shares = Some(CmShares { account: account.clone(), workers });
        CmSession { program, unread: UnreadCmEvents::of(account), shares, ..CmSession::default() }
    }
    /// Charges a communication id that a worker is about to make for a request.
    pub(crate) fn charge_id(&self, worker: u32) -> Result<Option<Charge>, AdmissionRefusal> {
        let charge = |shares: &CmShares| shares.charge(Resource::CmId, worker, |places| &places.connections);
        self.shares.as_ref().map(charge).transpose()
    }
    /// Charges a request that a worker is about to queue.
    pub(crate) fn charge_queued(&self, worker: u32) -> Result<Option<RequestCharge>, AdmissionRefusal> {
        let charge = |shares: &CmShares| shares.charge(Resource::CmRequest, worker, |places| &places.requests);
        Ok(self.shares.as_ref().map(charge).transpose()?.map(|charge| Box::new(charge) as RequestCharge))
    }
    /// Marks the program as gone: it gets no new ids.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }
    /// Whether the program has gone.
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
    /// Length of the backlogs of all of the program's channels.
    pub fn backlog_len(&self) -> usize {
        self.unread.of_program()
    }
    /// A number for an id that is made for a connect request.
    pub(crate) fn next_id(&self) -> u32 {
        DAEMON_IDS | self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// An id, as control thread and worker share it.
#[derive(Debug)]
pub struct CmEntry {
    /// The id's program.
    pub session: Arc<CmSession>,
    /// Number of the id in its program.
    pub id: u32,
    /// The listening id, if this id was made for a connect request; else 0.
    pub listener: u32,
    /// Port space.
    pub ps: PortSpace,
    /// Service type.
    pub qp_type: QpType,
    /// The event channel. Locked for the time of a clone; only a migration changes it.
    pub channel: Mutex<Arc<CmChannel>>,
    /// Addresses and path, once they are known.
    pub route: OnceLock<CmRoute>,
    /// The queue pair, if the daemon moves it for the program.
    pub qp: OnceLock<CmQpRef>,
    /// Path to the peer, if this id was made for a connect request.
    pub path: Option<PathRecord>,
    /// Parameters that the peer requested, if this id was made for a connect request.
    pub requested: Option<ConnAttr>,
    /// Local ACK timeout code set by the program of an id that was made for a connect request; 0xff: the peer's code holds.
    pub ack_timeout: AtomicU8,
    /// Nanoseconds that resolving the address took, 4 s at most. For the tracepoint of the connection.
    pub address_ns: AtomicU32,
    /// Nanoseconds that resolving the route took, 4 s at most.
    pub route_ns: AtomicU32,
    /// Number of the worker that has the connection.
    pub worker: AtomicU32,
    /// Communication id of the connection in that worker, 0 if there is none. Written by the worker.
    pub(crate) conn: AtomicU32,
    /// Whether the program has accepted the connect request for which this id was made. Written by the worker.
    accepted: AtomicBool,
    /// The place in the listener's backlog of a connect request that the peer has withdrawn.
    place: Mutex<Option<BacklogPlace>>,
    /// What the id costs, if a worker has made it for a request, until the control thread takes the id over.
    pub(crate) charge: Mutex<Option<Charge>>,
    /// Events of this id that were written so far; for a listener, connect requests to it are among them.
    written: AtomicU32,
    /// Whether the program has destroyed the id.
    pub(crate) over: AtomicBool,
}

impl CmEntry {
    /// An id without a connection.
    pub fn new(session: Arc<CmSession>, id: u32, ps: PortSpace, qp_type: QpType, channel: Arc<CmChannel>) -> CmEntry {
        CmEntry {
            session,
            id,
            listener: 0,
            ps,
            qp_type,
            channel: Mutex::new(channel),
            route: OnceLock::new(),
            qp: OnceLock::new(),
            path: None,
            requested: None,
            ack_timeout: AtomicU8::new(u8::MAX),
            address_ns: AtomicU32::new(0),
            route_ns: AtomicU32::new(0),
            worker: AtomicU32::new(0),
            conn: AtomicU32::new(0),
            accepted: AtomicBool::new(false),
            place: Mutex::default(),
            charge: Mutex::default(),
            written: AtomicU32::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// The connection that this id's program may accept with `param`: the peer's parameters, limited by the program's. `None`
    /// if the id did not come with a request.
    pub fn negotiated(&self, param: &ConnParam) -> Option<ConnAttr> {
        let mut conn = self.adjust(*self.requested.as_ref()?);
        conn.limit(param);
        Some(conn)
    }

    /// Replaces the local ACK timeout by the program's, if it has set one.
    pub(crate) fn adjust(&self, conn: ConnAttr) -> ConnAttr {
        match self.ack_timeout.load(Ordering::Relaxed) {
            u8::MAX => conn,
            ack_timeout => ConnAttr { ack_timeout, ..conn },
        }
    }

    /// Notes that the program has accepted the connect request.
    pub(crate) fn accept(&self) {
        debug_assert_ne!(self.listener, 0, "only an id made for a connect request is accepted");
        // Relaxed: the worker that writes it is the one that reads it.
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Whether this id was made for a connect request that the program has not accepted. As in Linux, no events are delivered for
    /// such an id: `id->context` still points to the listener's, so the program would attribute the event to the listener. The
    /// program learns of a failure when its accept fails.
    pub(crate) fn is_requested(&self) -> bool {
        self.listener != 0 && !self.accepted.load(Ordering::Relaxed)
    }

    /// Marks the id as destroyed: it gets no further events.
    pub fn end(&self) {
        // Relaxed: the gate of the event channel (`CmChannel`) orders it.
        self.over.store(true, Ordering::Relaxed);
        self.leave_place();
    }

    /// Keeps the place in the backlog of a connect request that the peer withdrew before the program answered.
    pub(crate) fn keep_place(&self, place: BacklogPlace) {
        debug_assert_ne!(self.listener, 0, "a place in a backlog for an id that no listener got");
        *self.place.lock().unwrap_or_else(|e| e.into_inner()) = Some(place);
    }

    /// Gives that place up: the program has answered the request, or has destroyed the id.
    pub(crate) fn leave_place(&self) {
        drop(self.place.lock().unwrap_or_else(|e| e.into_inner()).take());
    }

    /// Takes out what an id costs that a worker has made for a request.
    pub fn take_charge(&self) -> Option<Charge> {
        self.charge.lock().unwrap_or_else(|e| e.into_inner()).take()
    }

    /// Whether the program has destroyed the id.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Counts an event that goes into a channel. A caller that reads the count later must count under the channel's gate, or on
    /// the thread that reads it.
    pub fn note_record(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Events of this id that were written.
    pub(crate) fn written(&self) -> u32 {
        self.written.load(Ordering::Relaxed)
    }

    /// The present event channel.
    pub fn channel(&self) -> Arc<CmChannel> {
        self.channel.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Communication id of the connection, 0 if there is none.
    pub(crate) fn conn(&self) -> u32 {
        self.conn.load(Ordering::Relaxed)
    }
}
