//! Programs of URMA in other processes: each posts by a ring of records, and gets its completions by completion queues.
//!
//! A program's turn takes records from its ring and posts them to the node of its address. That is when it pays, so the turns of
//! all programs, of both transports, are in one fair order. Every number in a record or a call must be one of the program's own
//! objects: others are refused as if they did not exist.

use crate::objects::{EngineCq, is_ready, write_event};
use crate::priority::class_of;
use crate::sched::{NO_TICKET, Scheduler, URMA_ENTRY};
use crate::urma::UrmaImport;
use crate::urma_records::{cqe_of, receive_of, refused, request_of};
use crate::urma_turns::{TURN_BYTES, UrmaEnd, UrmaSlot};
use crate::worker::{Core, Worker};
use burst_base::verbs::access;
use burst_base::{Nanos, Reason};
use burst_control::AsyncObject;
use burst_control::events::EventSink;
use burst_control::urma_calls::UrmaPost;
use burst_ledger::Charge;
use burst_mem::MrTable;
use burst_shm::Cqe;
use burst_shm::record_ring::{RECORD_BYTES_MAX, RecordRingConsumer};
use burst_span::Span;
use burst_ubwire::Cna;
use burst_urma::{
    CompletionRecord, CrStatus, JfsWr, MemoryGone, TargetKind, UrmaError, UrmaEvent, UrmaMemory, UrmaNode,
};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// By numbers that this host gives: the standard hasher, which is for keys that others choose, takes longer.
pub(crate) type ByNumber<T> = HashMap<u32, T, foldhash::fast::RandomState>;

/// Records that one turn takes.
const TURN_RECORDS: u32 = 64;

/// The regions of a worker's programs: a segment's region is the key of a memory region.
pub(crate) struct RegionMemory<'a>(pub &'a MrTable);

impl RegionMemory<'_> {
    fn span(&self, region: u32, addr: u64, len: usize, rights: u32) -> Result<Span, MemoryGone> {
        // Peers write, and this host's programs send: mostly, each from one region.
        let region = if rights == 0 { self.0.get_local(region) } else { self.0.get_remote(region) };
        let found = region.filter(|region| region.access & rights == rights);
        found.and_then(|region| region.span(addr, len as u32)).ok_or(MemoryGone)
    }
}

impl UrmaMemory for RegionMemory<'_> {
    fn read(&self, region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        self.span(region, addr, out.len(), 0)?.read_to(out).map_err(|_| MemoryGone)
    }
    fn write(&mut self, region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.span(region, addr, bytes.len(), access::LOCAL_WRITE)?.write_from(bytes).map_err(|_| MemoryGone)
    }
    fn write_pieces(
        &mut self,
        region: u32,
        addr: u64,
        len: u32,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), MemoryGone> {
        let span = self.span(region, addr, len as usize, access::LOCAL_WRITE)?;
        span.write_pieces(pieces).map_err(|_| MemoryGone)
    }
    fn update(&mut self, region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let span = self.span(region, addr, 8, access::LOCAL_WRITE)?;
        let mut bytes = [0; 8];
        span.read_to(&mut bytes).map_err(|_| MemoryGone)?;
        let mut old = u64::from_ne_bytes(bytes);
        loop {
            match span.cmp_swap(old, change(old)).map_err(|_| MemoryGone)? {
                now if now == old => return Ok(old),
                now => old = now,
            }
        }
    }
    fn lend(&self, region: u32, addr: u64, len: u32) -> Option<Span> {
        self.span(region, addr, len as usize, 0).ok()
    }
}

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
}

/// A program with its objects.
pub struct UrmaTenant {
    /// Number of its context.
    pub(crate) context: u32,
    pub(crate) address: IpAddr,
    ring: RecordRingConsumer,
    events: Arc<dyn EventSink>,
    doorbell: u32,
    /// Place in the ready queue of its context.
    pub(crate) ticket: u32,
    /// A work request for which the node has no room.
    held: Option<(UrmaPost, JfsWr)>,
    /// How many requests of its Jetty were outstanding then.
    held_at: u16,
    is_broken: bool,
    pub(crate) jfcs: ByNumber<TenantJfc>,
    /// With the number of receives that were taken from the ring.
    pub(crate) jfrs: ByNumber<u32>,
    pub(crate) jetties: ByNumber<TenantJetty>,
    pub(crate) groups: HashSet<u32>,
    pub(crate) segments: HashSet<u32>,
    /// Imports, with the address on the bus from which they are.
    pub(crate) remote_segments: ByNumber<Cna>,
    pub(crate) targets: ByNumber<Cna>,
    /// The targets to which Jetties are bound.
    pub(crate) bindings: ByNumber<u32>,
    /// Imports and segments that are left to delete, if the program has ended.
    pub(crate) leaving: Option<Vec<UrmaLeaving>>,
    /// What the program's objects cost that outlive it until nothing uses them.
    pub(crate) charges: [Option<Charge>; 2],
}

/// An object that ends with its program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UrmaLeaving {
    Segment(u32),
    RemoteSegment(u32, Cna),
    Target(u32, Cna),
}

impl UrmaLeaving {
    /// Deletes the object. What is under way keeps no reference to it: it finds that it is gone.
    pub fn end(self, context: u32, end: &mut UrmaEnd) {
        let endpoint = &mut end.endpoint;
        // None is refused, as they are the program's own.
        match self {
            UrmaLeaving::Segment(number) => _ = endpoint.node.unregister_segment(number),
            UrmaLeaving::RemoteSegment(number, cna) => {
                let _ = endpoint.node.unimport_segment(number);
                endpoint.end_import(cna, UrmaImport::Segment(context, number));
            }
            UrmaLeaving::Target(number, cna) => {
                let _ = endpoint.node.unimport_jetty(number);
                endpoint.end_import(cna, UrmaImport::Jetty(context, number));
            }
        }
    }
}

/// Calls whose arguments are the host's own objects by now.
#[derive(Debug)]
pub enum TenantCall {
    /// As the program has asked.
    Plain(burst_control::urma_calls::UrmaCall),
    /// A JFC of a completion queue: its number in the workers' tables, and the queue.
    CreateJfc(u32, Arc<EngineCq>),
    /// A segment of the region with this key.
    RegisterSegment(u32, burst_urma::SegmentConfig),
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
            held_at: 0,
            is_broken: false,
            jfcs: ByNumber::default(),
            jfrs: ByNumber::default(),
            jetties: ByNumber::default(),
            groups: HashSet::new(),
            segments: HashSet::new(),
            remote_segments: ByNumber::default(),
            targets: ByNumber::default(),
            bindings: ByNumber::default(),
            leaving: None,
            charges: [None, None],
        }
    }

    /// Queues the program for a turn, if it is not.
    fn queue(&mut self, sched: &mut Scheduler, tickets: &mut ByNumber<u32>) {
        if self.ticket == NO_TICKET {
            self.ticket = sched.push(self.context, class_of(0), URMA_ENTRY);
            tickets.insert(self.ticket, self.context);
        }
    }

    /// True if the Jetty has outstanding requests, so that the end of one will free a slot. Remembers their number for
    /// [`Self::may_go_on`].
    fn may_wait(&mut self, jetty: u32, node: &UrmaNode) -> bool {
        self.held_at = node.outstanding(jetty).unwrap_or(0);
        self.held_at > 0
    }

    /// True if the number of outstanding requests of the held post's Jetty has changed since [`Self::may_wait`].
    fn may_go_on(&self, node: &UrmaNode) -> bool {
        self.held.as_ref().is_none_or(|(post, _)| node.outstanding(post.queue) != Some(self.held_at))
    }

    /// The program's number among the owners of objects in a node; 0 means that an object has no owner.
    pub(crate) const fn owner(&self) -> u32 {
        self.context + 1
    }

    /// Adds a completion queue.
    pub(crate) fn add_jfc(&mut self, jfc: u32, number: u32, shared: Arc<EngineCq>) {
        self.jfcs.insert(jfc, TenantJfc { number, shared });
    }

    /// Adds a Jetty.
    pub(crate) fn add_jetty(&mut self, jetty: u32, jfc: u32, jfr: Option<u32>) {
        self.jetties.insert(jetty, TenantJetty { jfc, jfr, taken: 0 });
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
        let has = |objects: &ByNumber<Cna>, number: Option<u32>| number.is_none_or(|n| objects.contains_key(&n));
        let local = match &wr.data {
            burst_urma::WrData::Local(range) => self.segments.contains(&range.token_id),
            burst_urma::WrData::Inline { .. } => true,
        };
        local
            && has(&self.targets, wr.target)
            && has(&self.remote_segments, wr.segment)
            && has(&self.remote_segments, wr.notify.map(|notify| notify.0))
    }
}

impl UrmaTenant {
    /// Takes the next record. Receives are posted at once, and what is refused has its completion.
    fn next_request(&mut self, end: &mut UrmaEnd, events: &mut Vec<u32>) -> NextRecord {
        let mut buffer = [0; RECORD_BYTES_MAX];
        if self.is_broken {
            return NextRecord::Empty;
        }
        match self.ring.pending() {
            Ok(0) if self.ring.try_idle() => return NextRecord::Empty,
            Ok(0) => return NextRecord::Used,
            Ok(_) => {}
            Err(_) => return self.break_ring(end),
        }
        let Ok(record) = self.ring.take(&mut buffer) else { return self.break_ring(end) };
        let Some((post, inline)) = UrmaPost::parse(record) else { return self.break_ring(end) };
        if post.kind == UrmaPost::RECEIVE {
            let Some(taken) = self.jfrs.get_mut(&post.queue) else { return NextRecord::Used };
            *taken = taken.wrapping_add(1);
            let is_own = self.segments.contains(&post.token_id);
            let posted = if is_own {
                end.endpoint.node.post_recv(post.queue, receive_of(&post))
            } else {
                Err(UrmaError::Access)
            };
            if posted.is_err() {
                // The program has checked it: it was moved to ERROR or its segment has ended meanwhile, or it lies.
                end.endpoint.counters().count(Reason::UbRefused);
            }
            return NextRecord::Used;
        }
        if !self.jetties.contains_key(&post.queue) {
            return NextRecord::Used;
        }
        match request_of(&post, inline).filter(|wr| self.owns(wr)) {
            Some(wr) => NextRecord::Request(post, wr),
            None => {
                self.refuse(post.queue, &post, CrStatus::LocOperation, (end, events));
                if let Some(jetty) = self.jetties.get_mut(&post.queue) {
                    jetty.taken = jetty.taken.wrapping_add(1);
                }
                NextRecord::Used
            }
        }
    }

    /// Nothing is read from the ring any more: the program has written what no library writes.
    fn break_ring(&mut self, end: &UrmaEnd) -> NextRecord {
        self.is_broken = true;
        end.endpoint.counters().count(Reason::UbRefused);
        NextRecord::Empty
    }

    /// Completes a work request that the node has not taken.
    fn refuse(&mut self, jetty: u32, post: &UrmaPost, status: CrStatus, (end, events): (&mut UrmaEnd, &mut Vec<u32>)) {
        end.endpoint.counters().count(Reason::UbRefused);
        let Some(of) = self.jetties.get(&jetty) else { return };
        let entry = self.entry(&refused(jetty, post, status), &end.endpoint.node);
        let entry = Cqe { sq_consumer: entry.sq_consumer.wrapping_add(1), ..entry };
        if !self.complete(of.jfc, &entry, events) {
            self.overrun(of.jfc, end);
        }
    }

    /// A completion was lost: the program has not read as many as the queue holds.
    fn overrun(&self, jfc: u32, end: &UrmaEnd) {
        let Some(queue) = self.jfcs.get(&jfc) else { return };
        if !queue.shared.overrun_reported.swap(true, Ordering::Relaxed) {
            end.endpoint.counters().count(Reason::CqOverrun);
            write_event(&*self.events, 0, AsyncObject::Jfc, u64::from(jfc));
        }
    }
}

/// The status by which a refusal of the node is told when the program has gone on.
const fn status_of(error: UrmaError) -> CrStatus {
    match error {
        UrmaError::Access => CrStatus::LocAccess,
        UrmaError::State => CrStatus::FlushErr,
        _ => CrStatus::LocOperation,
    }
}

impl Worker {
    /// Adds a program. Its context must have been added.
    pub fn add_urma_tenant(&mut self, mut tenant: UrmaTenant) {
        let doorbell = tenant.doorbell as usize;
        if let Some(context) = self.core.contexts.get_mut(tenant.context as usize).and_then(Option::as_mut) {
            if context.queues.len() <= doorbell {
                context.queues.resize(doorbell + 1, u32::MAX);
            }
            context.queues[doorbell] = URMA_ENTRY;
        }
        tenant.ring.try_idle();
        if let Some(slot) = &mut self.urma {
            slot.tenants.insert(tenant.context, tenant);
        }
    }

    /// Whether a program uses the node of an address.
    pub fn has_urma_tenant(&self, address: IpAddr) -> bool {
        self.urma.iter().flat_map(|slot| slot.tenants.values()).any(|tenant| tenant.address == address)
    }

    /// Deletes segments and imports of a program that has ended, `most` at most. Returns how many; 0: there are no more.
    pub fn leave_urma(&mut self, context: u32, most: usize) -> usize {
        assert!(most > 0, "no progress");
        let Some(UrmaSlot { ends, tenants, .. }) = self.urma.as_deref_mut() else { return 0 };
        let Some(tenant) = tenants.get_mut(&context) else { return 0 };
        let Some(end) = ends.iter_mut().find(|end| end.endpoint.address() == tenant.address) else { return 0 };
        let leaving = tenant.take_leaving();
        let part = leaving.split_off(leaving.len().saturating_sub(most));
        part.iter().for_each(|object| object.end(context, end));
        part.len()
    }

    /// Sets what the objects of a program cost that has ended: until nothing uses them any more.
    pub fn keep_urma_charges(&mut self, context: u32, charges: [Option<Charge>; 2]) {
        if let Some(tenant) = self.urma.as_deref_mut().and_then(|slot| slot.tenants.get_mut(&context)) {
            tenant.charges = charges;
        }
    }

    /// Removes a program with all its objects: what it has not executed is dropped. Returns whether its node has no other one.
    pub fn remove_urma_tenant(&mut self, now: Nanos, context: u32) -> bool {
        let Some(slot) = self.urma.as_deref_mut() else { return false };
        let Some(tenant) = slot.tenants.remove(&context) else { return false };
        let address = tenant.address;
        if slot.tickets.remove(&tenant.ticket).is_some() {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(context, |place| place.qp != URMA_ENTRY && is_ready(qps, place));
        }
        if let Some(context) = self.core.contexts.get_mut(context as usize).and_then(Option::as_mut)
            && let Some(queue) = context.queues.get_mut(tenant.doorbell as usize)
        {
            *queue = u32::MAX;
        }
        if let Some(end) = slot.end_of(tenant.address) {
            slot.ends[end].inherit(tenant);
            self.settle_urma(now);
        }
        !self.has_urma_tenant(address)
    }

    /// The programs whose doorbells have rung get turns.
    pub(crate) fn admit_urma(&mut self) {
        while let Some(context) = self.core.urma_rung.pop() {
            if let Some(slot) = self.urma.as_deref_mut()
                && let Some(tenant) = slot.tenants.get_mut(&context)
            {
                tenant.queue(&mut self.core.sched, &mut slot.tickets);
            }
        }
    }

    /// A program's turn: its next records. Returns requests and bytes.
    pub(crate) fn tenant_turn(&mut self, now: Nanos, ticket: u32) -> (u32, u64) {
        let Some(slot) = self.urma.as_deref_mut() else { return (0, 0) };
        slot.is_answering = false;
        slot.ack_delay.on_post();
        let UrmaSlot { ends, tenants, tickets, held, .. } = slot;
        let Some(tenant) = tickets.remove(&ticket).and_then(|context| tenants.get_mut(&context)) else { return (0, 0) };
        tenant.ticket = NO_TICKET;
        let Some(end) = ends.iter_mut().find(|end| end.endpoint.address() == tenant.address) else { return (0, 0) };
        let events = &mut self.core.outbox.events;
        let (mut requests, mut bytes) = (0, 0);
        let goes_on = loop {
            if requests >= TURN_RECORDS || bytes >= TURN_BYTES {
                break true;
            }
            let (post, wr) = match tenant.held.take() {
                Some(held) => held,
                None => match tenant.next_request(end, events) {
                    NextRecord::Empty => break false,
                    NextRecord::Used => {
                        requests += 1;
                        continue;
                    }
                    NextRecord::Request(post, wr) => (post, wr),
                },
            };
            let jetty = post.queue;
            let posted = end.call(&self.core.mem, |endpoint, mem, news| {
                endpoint.with(now, mem, news, |node, env| node.post_send(jetty, &wr, env))
            });
            requests += 1;
            match posted {
                Ok(()) => bytes += u64::from(wr.data.len()),
                Err(UrmaError::Full) if tenant.may_wait(jetty, &end.endpoint.node) => {
                    // It goes on when a request of the Jetty has ended.
                    tenant.held = Some((post, wr));
                    held.push(tenant.context);
                    break false;
                }
                Err(error) => tenant.refuse(jetty, &post, status_of(error), (end, events)),
            }
            if let Some(jetty) = tenant.jetties.get_mut(&jetty) {
                jetty.taken = jetty.taken.wrapping_add(1);
            }
        };
        if goes_on {
            tenant.queue(&mut self.core.sched, tickets);
        }
        self.settle_urma(now);
        (requests, bytes)
    }

    /// Gives programs the completions and events of their nodes.
    pub(crate) fn deliver_urma(&mut self, now: Nanos) {
        let Some(slot) = self.urma.as_deref_mut() else { return };
        let UrmaSlot { ends, tenants, tickets, held, .. } = slot;
        if tenants.is_empty() && ends.iter().all(|end| end.remains.is_empty()) {
            return;
        }
        let core = &mut self.core;
        for end in ends {
            let address = end.endpoint.address();
            if !end.remains.is_empty() {
                end.bury(now, &core.mem);
            }
            let (completions, events) =
                (std::mem::take(&mut end.news.completions), std::mem::take(&mut end.news.events));
            for jfc in &completions {
                let Some(tenant) = end.owners.get(jfc).and_then(|context| tenants.get(context)) else {
                    // Of a program that has ended.
                    while end.endpoint.node.poll_jfc(*jfc).is_some() {}
                    continue;
                };
                let mut is_whole = true;
                while let Some(cr) = end.endpoint.node.poll_jfc(*jfc) {
                    let entry = tenant.entry(&cr, &end.endpoint.node);
                    is_whole &= tenant.complete(*jfc, &entry, &mut core.outbox.events);
                }
                core.outbox.delivered = true;
                if !is_whole {
                    tenant.overrun(*jfc, end);
                }
            }
            for event in events {
                let (kind, object, id) = match event {
                    UrmaEvent::JfcError(id) => (0, AsyncObject::Jfc, id),
                    UrmaEvent::JfrError(id) => (0, AsyncObject::Jfr, id),
                    UrmaEvent::JfrLimit(id) => (1, AsyncObject::Jfr, id),
                    UrmaEvent::JettyError(id) => (0, AsyncObject::Jetty, id),
                };
                let owner = tenants.values().filter(|t| t.address == address).find(|t| match object {
                    AsyncObject::Jfc => t.jfcs.contains_key(&id),
                    AsyncObject::Jfr => t.jfrs.contains_key(&id),
                    _ => t.jetties.contains_key(&id),
                });
                if let Some(tenant) = owner {
                    write_event(&*tenant.events, kind, object, u64::from(id));
                }
            }
            // What was taken has its capacity back.
            (end.news.completions, end.news.events) = (cleared(completions), Vec::new());
            held.retain(|context| {
                let Some(tenant) = tenants.get_mut(context) else { return false };
                let goes_on = tenant.address == address && tenant.may_go_on(&end.endpoint.node);
                if goes_on {
                    tenant.queue(&mut core.sched, tickets);
                }
                !goes_on
            });
        }
    }
}

fn cleared(mut list: Vec<u32>) -> Vec<u32> {
    list.clear();
    list
}

/// What a turn finds next.
#[allow(clippy::large_enum_variant, reason = "it is on the stack, for one record")]
enum NextRecord {
    /// Nothing: the ring is idle.
    Empty,
    /// A record that needs no work request.
    Used,
    /// A work request.
    Request(UrmaPost, JfsWr),
}
