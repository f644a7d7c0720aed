//! Programs of URMA in other processes: each posts by a ring of records, and gets its completions by completion queues.
//!
//! A program's turn takes records from its ring and posts them to the node of its address. That is when it pays, so the turns of
//! all programs, of both transports, are in one fair order. Every number in a record or a call must be one of the program's own
//! objects: others are refused as if they did not exist.

use crate::counters::Counters;
use crate::objects::{EngineCq, write_event};
use crate::transmit::priority::class_of;
use crate::transmit::sched::{NO_TICKET, Scheduler, URMA_ENTRY};
use crate::urma::endpoint::UrmaEndpoint;
use crate::urma::failures::{JettyFailure, is_failure};
use crate::urma::records::{cqe_of, receive_of, refused, request_of};
use burst_base::{Nanos, Reason};
use burst_control::AsyncObject;
use burst_control::events::EventSink;
use burst_control::urma_calls::UrmaPost;
use burst_ledger::Charge;
use burst_shm::Cqe;
use burst_shm::record_ring::{RECORD_BYTES_MAX, RecordRingConsumer};
use burst_urma::{CompletionRecord, CrStatus, JfsWr, NodeEid, TargetKind, UrmaEffects, UrmaError, UrmaEvent, UrmaNode};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod calls;
mod leaving;

pub(crate) use calls::ImportCall;
pub use calls::TenantCall;
pub(crate) use leaving::LeavingObjects;

/// Bytes of one turn, as of a queue pair's.
pub(crate) const TURN_BYTES: u64 = 64 << 10;
/// Records that one turn takes.
pub(crate) const TURN_RECORDS: u32 = 64;

/// By numbers that this host gives: the standard hasher, which is for keys that others choose, takes longer.
pub(crate) type ByNumber<T> = HashMap<u32, T, foldhash::fast::RandomState>;

/// A completion queue of a program.
pub(crate) struct TenantJfc {
    number: u32,
    shared: Arc<EngineCq>,
}

/// A Jetty or JFS of a program.
pub(crate) struct TenantJetty {
    jfc: u32,
    jfr: Option<u32>,
    /// Work requests that were taken from the ring.
    taken: u32,
    /// When it was made.
    made_at: Nanos,
}

/// A program with its objects.
pub struct UrmaTenant {
    /// Number of its context.
    pub(crate) context: u32,
    pub(crate) address: IpAddr,
    pub(crate) ring: RecordRingConsumer,
    events: Arc<dyn EventSink>,
    pub(crate) doorbell: u32,
    /// Place in the ready queue of its context.
    pub(crate) ticket: u32,
    /// A work request for which the node has no room.
    held: Option<(UrmaPost, JfsWr)>,
    is_broken: bool,
    pub(crate) jfcs: ByNumber<TenantJfc>,
    /// With the number of receives that were taken from the ring.
    pub(crate) jfrs: ByNumber<u32>,
    pub(crate) jetties: ByNumber<TenantJetty>,
    pub(crate) groups: HashSet<u32>,
    pub(crate) segments: HashSet<u32>,
    /// Imports, with the node from which they are.
    pub(crate) remote_segments: ByNumber<NodeEid>,
    pub(crate) targets: ByNumber<NodeEid>,
    /// Imports and segments that are left to delete, if the program has ended.
    pub(crate) leaving: Option<LeavingObjects>,
    /// What the program's objects cost that outlive it until nothing uses them.
    pub(crate) charges: [Option<Charge>; 2],
}

impl UrmaTenant {
    /// A program without objects at the node of an address.
    pub fn new(
        context: u32,
        address: IpAddr,
        ring: RecordRingConsumer,
        doorbell: u32,
        events: Arc<dyn EventSink>,
    ) -> UrmaTenant {
        UrmaTenant {
            context,
            address,
            ring,
            events,
            doorbell,
            ticket: NO_TICKET,
            held: None,
            is_broken: false,
            jfcs: ByNumber::default(),
            jfrs: ByNumber::default(),
            jetties: ByNumber::default(),
            groups: HashSet::new(),
            segments: HashSet::new(),
            remote_segments: ByNumber::default(),
            targets: ByNumber::default(),
            leaving: None,
            charges: [None, None],
        }
    }

    /// Queues the program for a turn, if it is not.
    pub(crate) fn queue(&mut self, sched: &mut Scheduler, tickets: &mut ByNumber<u32>) {
        if self.ticket == NO_TICKET {
            self.ticket = sched.push(self.context, class_of(0), URMA_ENTRY);
            let before = tickets.insert(self.ticket, self.context);
            debug_assert!(before.is_none(), "two programs have the same ticket");
        }
    }

    /// Whether a work request waits until the node has room.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The program's number among the owners of objects in a node; 0 means that an object has no owner.
    pub(crate) const fn owner(&self) -> u32 {
        self.context + 1
    }

    /// Adds a completion queue.
    pub(crate) fn add_jfc(&mut self, jfc: u32, number: u32, shared: Arc<EngineCq>) {
        let before = self.jfcs.insert(jfc, TenantJfc { number, shared });
        debug_assert!(before.is_none(), "JFC {jfc} was created twice");
    }

    /// Adds a Jetty.
    pub(crate) fn add_jetty(&mut self, jetty: u32, (jfc, jfr): (u32, Option<u32>), made_at: Nanos) {
        let before = self.jetties.insert(jetty, TenantJetty { jfc, jfr, taken: 0, made_at });
        debug_assert!(before.is_none(), "Jetty {jetty} was created twice");
    }

    /// Work requests of a Jetty that have ended.
    pub(crate) fn finished_sends(&self, jetty: u32, node: &UrmaNode) -> u32 {
        let taken = self.jetties.get(&jetty).map_or(0, |jetty| jetty.taken);
        taken.wrapping_sub(u32::from(node.outstanding(jetty).unwrap_or(0)))
    }

    /// Receives of a queue that have ended.
    pub(crate) fn finished_receives(&self, jfr: u32, node: &UrmaNode) -> u32 {
        let taken = self.jfrs.get(&jfr).copied().unwrap_or(0);
        taken.wrapping_sub(node.posted_receives(jfr).unwrap_or(0) as u32)
    }

    /// The entry for a completion.
    fn entry(&self, cr: &CompletionRecord, node: &UrmaNode) -> Cqe {
        if !cr.is_receive {
            return cqe_of(cr, cr.local_id, self.finished_sends(cr.local_id, node));
        }
        let jfr = match cr.local_kind {
            TargetKind::Jfr => Some(cr.local_id),
            _ => self.jetties.get(&cr.local_id).and_then(|jetty| jetty.jfr),
        };
        let jfr = jfr.unwrap_or(cr.local_id);
        cqe_of(cr, jfr, self.finished_receives(jfr, node))
    }

    /// Sends the event of a queue that is armed.
    pub(crate) fn remind(&self, jfc: u32, events: &mut Vec<u32>) {
        if let Some(queue) = self.jfcs.get(&jfc)
            && queue.shared.producer.event_due(true)
        {
            events.push(queue.number);
        }
    }

    /// Writes completions; false if one was lost.
    fn complete(&self, jfc: u32, entry: &Cqe, events: &mut Vec<u32>) -> bool {
        let Some(queue) = self.jfcs.get(&jfc) else { return true };
        let is_written = queue.shared.producer.publish(entry);
        if queue.shared.producer.event_due(true) {
            events.push(queue.number);
        }
        is_written
    }

    /// Whether all objects that a work request names are the program's.
    fn owns(&self, wr: &JfsWr) -> bool {
        let has = |objects: &ByNumber<NodeEid>, number: Option<u32>| number.is_none_or(|n| objects.contains_key(&n));
        let local = match &wr.data {
            burst_urma::WrData::Local(range) => self.segments.contains(&range.token_id),
            burst_urma::WrData::Inline { .. } => true,
        };
        local
            && has(&self.targets, wr.target)
            && has(&self.remote_segments, wr.segment)
            && has(&self.remote_segments, wr.notify.map(|notify| notify.0))
    }

    /// The next work request: the one that was held, or that of the next record of the ring. Receives are posted at once, and
    /// what is refused has its completion.
    pub(crate) fn next_request(&mut self, endpoint: &mut UrmaEndpoint, events: &mut Vec<u32>) -> NextRecord {
        if let Some((post, wr)) = self.held.take() {
            return NextRecord::Request(post, wr);
        }
        let mut buffer = [0; RECORD_BYTES_MAX];
        if self.is_broken {
            return NextRecord::Empty;
        }
        match self.ring.pending() {
            Ok(0) if self.ring.try_idle() => return NextRecord::Empty,
            Ok(0) => return NextRecord::Used,
            Ok(_) => {}
            Err(_) => return self.break_ring(endpoint.counters()),
        }
        let Ok(record) = self.ring.take(&mut buffer) else { return self.break_ring(endpoint.counters()) };
        let Some((post, inline)) = UrmaPost::parse(record) else { return self.break_ring(endpoint.counters()) };
        if post.kind == UrmaPost::RECEIVE {
            self.post_receive(&post, endpoint);
            return NextRecord::Used;
        }
        if !self.jetties.contains_key(&post.queue) {
            return NextRecord::Used;
        }
        match request_of(&post, inline).filter(|wr| self.owns(wr)) {
            Some(wr) => NextRecord::Request(post, wr),
            None => {
                self.refuse(&post, CrStatus::LocOperation, endpoint, events);
                self.note_taken(post.queue);
                NextRecord::Used
            }
        }
    }

    fn post_receive(&mut self, post: &UrmaPost, endpoint: &mut UrmaEndpoint) {
        let Some(taken) = self.jfrs.get_mut(&post.queue) else { return };
        *taken = taken.wrapping_add(1);
        let is_own = self.segments.contains(&post.token_id);
        let posted =
            if is_own { endpoint.node.post_recv(post.queue, receive_of(post)) } else { Err(UrmaError::Access) };
        if posted.is_err() {
            // The program has checked it: it was moved to ERROR or its segment has ended meanwhile, or it lies.
            endpoint.counters().count(Reason::UbRefused);
        }
    }

    /// What became of a work request that was offered to the node. False: the program's turn ends, because the request is held
    /// until one of its Jetty has ended.
    pub(crate) fn posted(
        &mut self,
        request: (UrmaPost, JfsWr),
        result: Result<(), UrmaError>,
        endpoint: &mut UrmaEndpoint,
        events: &mut Vec<u32>,
    ) -> bool {
        debug_assert!(self.held.is_none(), "two requests are held");
        let jetty = request.0.queue;
        match result {
            Ok(()) => {}
            // The end of one of the Jetty's requests will free a slot.
            Err(UrmaError::Full) if endpoint.node.await_end(jetty) => {
                self.held = Some(request);
                return false;
            }
            Err(error) => self.refuse(&request.0, status_of(error), endpoint, events),
        }
        self.note_taken(jetty);
        true
    }

    /// A work request of a Jetty was taken from the ring.
    fn note_taken(&mut self, jetty: u32) {
        if let Some(jetty) = self.jetties.get_mut(&jetty) {
            jetty.taken = jetty.taken.wrapping_add(1);
        }
    }

    /// Nothing is read from the ring any more: the program has written what no library writes.
    fn break_ring(&mut self, counters: &Counters) -> NextRecord {
        self.is_broken = true;
        counters.count(Reason::UbRefused);
        NextRecord::Empty
    }

    /// Completes a work request that the node has not taken.
    fn refuse(&mut self, post: &UrmaPost, status: CrStatus, endpoint: &UrmaEndpoint, events: &mut Vec<u32>) {
        endpoint.counters().count(Reason::UbRefused);
        let Some(jetty) = self.jetties.get(&post.queue) else { return };
        let entry = self.entry(&refused(post.queue, post, status), &endpoint.node);
        let entry = Cqe { sq_consumer: entry.sq_consumer.wrapping_add(1), ..entry };
        if !self.complete(jetty.jfc, &entry, events) {
            self.overrun(jetty.jfc, endpoint.counters());
        }
    }

    /// Writes the records of a completion queue of the node into the program's. Returns those that report failures.
    pub(crate) fn deliver(
        &self,
        jfc: u32,
        endpoint: &mut UrmaEndpoint,
        fx: &mut dyn UrmaEffects,
        events: &mut Vec<u32>,
    ) -> Vec<JettyFailure> {
        let (mut is_whole, mut failures) = (true, Vec::new());
        while let Some(cr) = endpoint.node.poll_jfc(jfc) {
            if is_failure(cr.status) {
                // Receive queues have numbers of their own.
                let jetty = self.jetties.get(&cr.local_id).filter(|_| cr.local_kind == TargetKind::Jetty);
                let since = jetty.map(|jetty| jetty.made_at);
                failures.push(JettyFailure { context: self.context, completion: cr, since });
            }
            let entry = self.entry(&cr, &endpoint.node);
            if !self.complete(jfc, &entry, events) {
                is_whole = false;
                endpoint.node.completion_lost(cr.local_kind, cr.local_id, fx);
            }
        }
        if !is_whole {
            self.overrun(jfc, endpoint.counters());
        }
        failures
    }

    /// Writes an event of the node, if its object is the program's.
    pub(crate) fn deliver_event(&self, event: UrmaEvent) {
        let (is_own, kind, object, id) = match event {
            UrmaEvent::JfcError(id) => (self.jfcs.contains_key(&id), 0, AsyncObject::Jfc, id),
            UrmaEvent::JfrError(id) => (self.jfrs.contains_key(&id), 0, AsyncObject::Jfr, id),
            UrmaEvent::JfrLimit(id) => (self.jfrs.contains_key(&id), 1, AsyncObject::Jfr, id),
            UrmaEvent::JettyError(id) => (self.jetties.contains_key(&id), 0, AsyncObject::Jetty, id),
        };
        if is_own {
            write_event(&*self.events, kind, object, u64::from(id));
        }
    }

    /// A completion was lost: the program has not read as many as the queue holds.
    fn overrun(&self, jfc: u32, counters: &Counters) {
        let Some(queue) = self.jfcs.get(&jfc) else { return };
        if !queue.shared.overrun_reported.swap(true, Ordering::Relaxed) {
            counters.count(Reason::CqOverrun);
            write_event(&*self.events, 0, AsyncObject::Jfc, u64::from(jfc));
        }
    }
}

/// The context of the program that is an owner of objects in a node ([`UrmaTenant::owner`]).
pub(crate) const fn context_of(owner: u32) -> u32 {
    owner.wrapping_sub(1)
}

/// The status of the completion that reports a refusal of the node.
const fn status_of(error: UrmaError) -> CrStatus {
    match error {
        UrmaError::Access => CrStatus::LocAccess,
        UrmaError::State => CrStatus::FlushErr,
        _ => CrStatus::LocOperation,
    }
}

/// What a turn finds next.
#[allow(clippy::large_enum_variant, reason = "it is on the stack, for one record")]
pub(crate) enum NextRecord {
    /// Nothing: the ring is idle.
    Empty,
    /// A record that needs no work request.
    Used,
    /// A work request.
    Request(UrmaPost, JfsWr),
}
