//! What a worker and the control thread share of an id: whom to tell, and what it is about.

use crate::channel::CmChannel;
use burst_base::Qpn;
use burst_base::verbs::QpType;
use burst_cm::{BacklogPlace, Negotiated, PathRecord};
use burst_control::cm::{CmParam, CmRoute, DAEMON_IDS, PortSpace};
use crossbeam_queue::SegQueue;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair that the daemon moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmQpRef {
    /// Its number.
    pub qpn: Qpn,
    /// Context that it must belong to.
    pub context: u32,
}

/// One program's connection to the daemon, as the workers see it.
#[derive(Debug, Default)]
pub struct CmSession {
    /// Name and process id of the program.
    pub who: OnceLock<(String, u32)>,
    /// The program has gone: no new ids.
    ended: AtomicBool,
    next: AtomicU32,
    /// Writes that wait for room in the program's channels, all together.
    pub(crate) owed: Arc<AtomicUsize>,
    /// Ids that came with requests, for the control thread.
    pub arrivals: SegQueue<Arc<CmEntry>>,
}

impl CmSession {
    /// No new ids from now on.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }
    /// Whether the program has gone.
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
    /// Writes that wait for room in the program's channels.
    pub fn owed(&self) -> usize {
        self.owed.load(Ordering::Relaxed)
    }
    /// A number for an id that comes with a request.
    pub(crate) fn next_id(&self) -> u32 {
        DAEMON_IDS | self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub struct CmEntry {
    /// Its program.
    pub session: Arc<CmSession>,
    /// Its number there.
    pub id: u32,
    /// Id that listened, for one that came with a request.
    pub listener: u32,
    /// Port space.
    pub ps: PortSpace,
    /// Service.
    pub qp_type: QpType,
    /// Where its events go. Locked for the time of a clone; only a migration changes it.
    pub channel: Mutex<Arc<CmChannel>>,
    /// Addresses and path, once they are known.
    pub route: OnceLock<CmRoute>,
    /// Queue pair that the daemon moves.
    pub qp: OnceLock<CmQpRef>,
    /// Way of its packets, in an id that came with a request.
    pub path: Option<PathRecord>,
    /// What the peer wishes, in an id that came with a request.
    pub wishes: Option<Negotiated>,
    /// Local ACK timeout code that the program of one that came with a request has set, else 0xff: the peer's holds.
    pub ack_timeout: AtomicU8,
    /// What resolving its address and route took, at most 4 s; for the probe of its connection.
    pub address_ns: AtomicU32,
    /// As above.
    pub route_ns: AtomicU32,
    /// Worker that has the connection.
    pub worker: AtomicU32,
    /// The connection's communication id in that worker, 0 none. Written by the worker.
    pub(crate) conn: AtomicU32,
    /// For one that came with a request: its program has accepted it. Written by the worker.
    accepted: AtomicBool,
    /// For one that came with a request that the peer has taken back: its place in the listener's backlog.
    place: Mutex<Option<BacklogPlace>>,
    /// Records of it (for a listener: and of requests to it) put into channels so far.
    written: AtomicU32,
    /// The program has destroyed it.
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
            wishes: None,
            ack_timeout: AtomicU8::new(u8::MAX),
            address_ns: AtomicU32::new(0),
            route_ns: AtomicU32::new(0),
            worker: AtomicU32::new(0),
            conn: AtomicU32::new(0),
            accepted: AtomicBool::new(false),
            place: Mutex::default(),
            written: AtomicU32::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// The connection that this id's program may accept with `param`: the peer's parameters, limited by the program's. `None` if the id
    /// did not come with a request.
    pub fn negotiated(&self, param: &CmParam) -> Option<Negotiated> {
        let asked = self.wishes.as_ref()?;
        Some(Negotiated {
            responder_resources: asked.responder_resources.min(param.responder_resources),
            initiator_depth: asked.initiator_depth.min(param.initiator_depth),
            peer_rnr_retry_count: param.rnr_retry_count,
            ..self.adjust(*asked)
        })
    }

    /// The connection as its program wants it.
    pub(crate) fn adjust(&self, conn: Negotiated) -> Negotiated {
        match self.ack_timeout.load(Ordering::Relaxed) {
            u8::MAX => conn,
            ack_timeout => Negotiated { ack_timeout, ..conn },
        }
    }

    /// The program has accepted the request.
    pub(crate) fn accept(&self) {
        // Relaxed: the worker that writes it is the one that reads it.
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Whether it came with a request that is not accepted. Programs are told nothing of such an id, as the kernel has it: its
    /// context is still its listener's, for whose event they would take it. An accept fails later.
    pub(crate) fn is_requested(&self) -> bool {
        self.listener != 0 && !self.accepted.load(Ordering::Relaxed)
    }

    /// The program has destroyed it: there is nobody to tell anything.
    pub fn end(&self) {
        // Relaxed: the channel's gate orders it (`CmChannel::write_news`).
        self.over.store(true, Ordering::Relaxed);
        self.leave_place();
    }

    /// Its request was taken back before its program has said anything.
    pub(crate) fn keep_place(&self, place: BacklogPlace) {
        *self.place.lock().unwrap_or_else(|e| e.into_inner()) = Some(place);
    }

    /// Its program has answered its request, or has destroyed it.
    pub(crate) fn leave_place(&self) {
        drop(self.place.lock().unwrap_or_else(|e| e.into_inner()).take());
    }

    /// Whether the program has destroyed it.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Another record of it goes into a channel. Whoever counts on `written` writes under the channel's gate, or
    /// on the thread that asks.
    pub fn note_record(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// How many records of it were written.
    pub(crate) fn written(&self) -> u32 {
        self.written.load(Ordering::Relaxed)
    }

    /// Where its events go now.
    pub fn channel(&self) -> Arc<CmChannel> {
        self.channel.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The connection's id, if there is one.
    pub(crate) fn conn(&self) -> u32 {
        self.conn.load(Ordering::Relaxed)
    }
}
