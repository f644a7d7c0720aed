//! The worker: tables, and the loop that reads top to bottom.
//!
//! The control thread changes the tables by closures that run at the top of the loop ([`crate::runner`]), so that no
//! table needs a lock. Spans made in a turn are used up by `tx_burst` in the same turn; `MrTable::reclaim` runs first
//! thing in the next one.

use crate::cm::CmHost;
use crate::counters::Counters;
use crate::events::EventPipe;
use crate::handover::Inbox;
use crate::hold::Held;
use crate::multicast::Groups;
use crate::objects::{AddressHandle, ContextSlot, CqShared, NO_PATH, QpSlot, XrcEntry, write_async};
use crate::path::Path;
use crate::qpn::slot_of;
use crate::sched::{NO_TICKET, Scheduler};
use crate::tombstone::Graveyard;
use burst_base::verbs::EventType;
use burst_base::wheel::Wheel;
use burst_base::{Nanos, Qpn};
use burst_cm::Secret;
use burst_control::AsyncObject;
use burst_frame::TxBatch;
use burst_mem::MrTable;
use burst_port::Port;
use burst_shm::Cqe;
use std::sync::{Arc, Weak};

/// Frames of one transmit batch.
pub const BATCH_FRAMES: usize = 256;
/// Frames taken from a port in one pass.
pub const RX_BUDGET: usize = 256;

/// Doorbells answered for one context in one pass.
const DOORBELLS_PER_PASS: usize = 256;

/// Queue pairs noted in one pass for a lost completion; one more is noted when it loses the next.
const LOST_MAX: usize = 1024;

/// Time between two looks whether a program has read its events, so that those it had no room for can be written.
const EVENTS_PAUSE: Nanos = Nanos::from_ms(1);

/// What a worker is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Its number.
    pub id: u32,
    /// Bytes in flight to one peer, at most.
    pub window_bytes: u64,
    /// Makes communication ids unpredictable; the same for all workers of a daemon.
    pub cm_secret: Secret,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        WorkerOptions { id: 0, window_bytes: 1 << 20, cm_secret: Secret::new([0; 2]) }
    }
}

/// Things to write at the end of a turn.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Completion queues that owe an event.
    pub events: Vec<u32>,
    /// Completions that must not be seen before the batch has left.
    pub completions: Vec<(u32, Cqe, bool)>,
    /// Queue pairs whose completions were lost, because a completion queue was full.
    pub lost: Vec<Qpn>,
    /// Completion channels that had no room for an event.
    pub full: Vec<Weak<EventPipe>>,
    /// When events that had no room are tried again; never, if there are none.
    pub retry_at: Nanos,
    /// Completions were written since this was last asked.
    pub delivered: bool,
    /// What the worker's time 0 is on the clock that completions are stamped with (CLOCK_MONOTONIC).
    pub clock_base_ns: u64,
}

impl Outbox {
    /// Notes that a queue pair lost a completion.
    pub fn lose(&mut self, qpn: Qpn) {
        if self.lost.len() < LOST_MAX && self.lost.last() != Some(&qpn) {
            self.lost.push(qpn);
        }
    }
}

/// A port and what waits to leave by it.
pub(crate) struct PortSlot {
    pub port: Box<dyn Port>,
    pub batch: TxBatch,
    pub counters: Arc<Counters>,
}

/// Everything but the ports, so that a port can be borrowed beside it.
pub(crate) struct Core {
    pub options: WorkerOptions,
    pub qps: Vec<Option<Box<QpSlot>>>,
    pub cqs: Vec<Option<Arc<CqShared>>>,
    pub ahs: Vec<Option<AddressHandle>>,
    /// Shared receive queues of XRC domains, by number.
    pub xrc: Vec<Option<XrcEntry>>,
    pub contexts: Vec<Option<ContextSlot>>,
    pub mem: MrTable,
    pub sched: Scheduler,
    pub wheel: Wheel,
    pub paths: Vec<Path>,
    pub graves: Graveyard,
    pub groups: Groups,
    pub held: Held,
    pub outbox: Outbox,
    /// Queue pairs that got packets in this burst.
    pub touched: Vec<u32>,
    /// Every worker's inbox, by worker.
    pub inboxes: Vec<Arc<Inbox>>,
    /// Workers that were handed packets in this burst, one bit each.
    pub handed_to: u32,
    /// Whether packets of queue pairs came since the connection manager ran.
    pub data_came: bool,
    /// The last burst left packets where they were.
    pub unread: bool,
    /// Connection management; taken out while it works on the rest of the worker.
    pub cm: Option<Box<CmHost>>,
}

/// One worker. See the crate's documentation.
pub struct Worker {
    pub(crate) core: Core,
    pub(crate) ports: Vec<PortSlot>,
}

impl Worker {
    /// A worker with its key table, its ports (one per device, in device order), and every worker's inbox.
    pub fn new(options: WorkerOptions, mem: MrTable, ports: Vec<Box<dyn Port>>, inboxes: Vec<Arc<Inbox>>) -> Worker {
        assert!((options.id as usize) < inboxes.len());
        let cm = CmHost::new(options.id, options.cm_secret, ports.len());
        let slot = |port| PortSlot { port, batch: TxBatch::new(BATCH_FRAMES), counters: Arc::new(Counters::default()) };
        Worker {
            core: Core {
                options,
                qps: Vec::new(),
                cqs: Vec::new(),
                ahs: Vec::new(),
                xrc: Vec::new(),
                contexts: Vec::new(),
                mem,
                sched: Scheduler::default(),
                wheel: Wheel::new(64),
                paths: Vec::new(),
                graves: Graveyard::default(),
                groups: Groups::default(),
                held: Held::default(),
                outbox: Outbox {
                    events: Vec::with_capacity(1024),
                    completions: Vec::with_capacity(1024),
                    lost: Vec::with_capacity(LOST_MAX),
                    full: Vec::new(),
                    retry_at: Nanos::NEVER,
                    delivered: false,
                    clock_base_ns: 0,
                },
                touched: Vec::with_capacity(RX_BUDGET),
                inboxes,
                handed_to: 0,
                data_came: false,
                unread: false,
                cm: Some(Box::new(cm)),
            },
            ports: ports.into_iter().map(slot).collect(),
        }
    }

    /// One pass: doorbells, transmit, receive, timers, publish. Returns whether anything was done.
    ///
    /// Transmit comes before receive: what was posted leaves without waiting for a look at the sockets, and an
    /// acknowledgement waits until the program has had a chance to answer ([`Worker::has_delivered`]), so that both
    /// leave in one system call and arrive as one.
    pub fn run_once(&mut self, now: Nanos) -> bool {
        self.core.mem.reclaim();
        let mut busy = self.core.take_doorbells();
        self.core.release_held(now);
        busy |= self.transmit(now);
        busy |= self.receive(now);
        busy |= self.run_cm(now);
        busy |= self.run_timers(now);
        busy |= self.fail_unheard(now);
        busy | self.core.publish(now, &self.ports)
    }

    /// Queue pairs that lost a completion go to error.
    fn fail_unheard(&mut self, now: Nanos) -> bool {
        let any = !self.core.outbox.lost.is_empty();
        while let Some(qpn) = self.core.outbox.lost.pop() {
            // It may have been destroyed since.
            let _ = self.with_qp(qpn, now, |slot, env| slot.qp.on_lost_completion(env));
            self.core.settle(now, slot_of(qpn));
        }
        any
    }

    /// The first half of a pass: what programs have posted until now leaves, as far as a pass allows.
    pub fn send_posted(&mut self, now: Nanos) {
        self.core.take_doorbells();
        self.transmit(now);
    }

    /// Says what time 0 of `now` is on CLOCK_MONOTONIC: completions carry that clock's time to the programs.
    pub fn set_clock_base(&mut self, base_ns: u64) {
        self.core.outbox.clock_base_ns = base_ns;
    }

    /// Whether the last pass wrote completions: a program on the same processor should run before the next pass.
    pub fn has_delivered(&mut self) -> bool {
        std::mem::take(&mut self.core.outbox.delivered)
    }

    /// When the next pass is due if nothing else happens before.
    pub fn next_deadline(&self) -> Nanos {
        let ports = self.ports.iter().map(|p| p.port.next_event()).min().unwrap_or(Nanos::NEVER);
        let cm = self.core.cm.as_ref().map_or(Nanos::NEVER, |host| host.next_deadline());
        let Core { wheel, held, outbox, .. } = &self.core;
        ports.min(wheel.next_deadline()).min(cm).min(held.next_deadline()).min(outbox.retry_at)
    }

    /// This worker's inbox, with the eventfd that wakes it.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.core.inboxes[self.core.options.id as usize]
    }

    /// Tells the ports that the worker sleeps next. True if one of them has something.
    pub(crate) fn before_sleep(&mut self) -> bool {
        self.ports.iter_mut().fold(false, |any, slot| any | slot.port.before_sleep())
    }

    /// Whether some queue pair is ready now (the worker must not sleep).
    pub fn has_work(&mut self) -> bool {
        let inbox = &self.core.inboxes[self.core.options.id as usize];
        let owed = !inbox.is_empty() || !self.core.outbox.lost.is_empty();
        owed || self.core.take_doorbells() || !self.core.sched.is_empty()
    }
}

impl Core {
    /// Turns doorbells into ready queue pairs.
    fn take_doorbells(&mut self) -> bool {
        let mut any = false;
        let Core { contexts, qps, sched, .. } = self;
        for (context, slot) in contexts.iter_mut().enumerate() {
            let Some(ContextSlot { doorbells, queues, .. }) = slot else { continue };
            let rung = doorbells.drain(DOORBELLS_PER_PASS, |queue| {
                let Some(qp) =
                    queues.get(queue as usize).and_then(|i| qps.get_mut(*i as usize)).and_then(Option::as_mut)
                else {
                    return;
                };
                qp.qp.on_doorbell();
                qp.hold.answered();
                if qp.ticket == NO_TICKET {
                    qp.ticket = sched.push(context as u32, queues[queue as usize]);
                }
            });
            any |= rung > 0;
        }
        any
    }

    /// Acknowledgements that have waited long enough.
    fn release_held(&mut self, now: Nanos) {
        while let Some((index, at)) = self.held.pop_due(now) {
            let slot = self.qps.get_mut(index as usize).and_then(Option::as_mut);
            if slot.is_some_and(|s| s.hold.expire(at)) {
                self.make_ready(index);
            }
        }
    }

    /// Marks a queue pair ready if it wants to send.
    pub(crate) fn make_ready(&mut self, index: u32) {
        if let Some(slot) = self.qps.get_mut(index as usize).and_then(Option::as_mut)
            && slot.ticket == NO_TICKET
        {
            slot.ticket = self.sched.push(slot.context, index);
        }
    }

    /// After a queue pair was called: its bytes in flight, its timer, its wish to send.
    pub(crate) fn settle(&mut self, now: Nanos, index: u32) {
        let Some(slot) = self.qps.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let inflight = slot.qp.inflight_bytes();
        if inflight != slot.inflight_seen {
            if let Some(path) = self.paths.get_mut(slot.path as usize) {
                path.moved(now, slot.inflight_seen, inflight);
            }
            slot.inflight_seen = inflight;
        }
        if let Some(srq) = &slot.srq
            && srq.limit_reached()
        {
            write_async(&slot.async_events, EventType::SrqLimitReached, AsyncObject::Srq, srq.cookie);
        }
        if let Some(srqn) = slot.qp.srqn()
            && let Some(entry) = self.xrc.get(srqn as usize).and_then(Option::as_ref)
            && entry.shared.limit_reached()
        {
            write_async(&entry.async_events, EventType::SrqLimitReached, AsyncObject::Srq, entry.shared.cookie);
        }
        slot.wake_by(&mut self.wheel, slot.qp.next_deadline());
        // Also while it waits for a window: it says yes then only if it owes an answer, or was answered itself.
        let waits = slot.qp.ack_may_wait() && self.held.wait(index, &mut slot.hold, now);
        let (ready, path) = (slot.qp.wants_tx() && !waits, slot.path);
        if ready {
            self.make_ready(index);
        }
        self.wake_waiting(path);
    }

    /// Lets queue pairs that wait for a path's window try again, as long as there is room.
    fn wake_waiting(&mut self, path: u32) {
        if path == NO_PATH {
            return;
        }
        let p = &mut self.paths[path as usize];
        let Some(index) = p.waiting.front().copied() else { return };
        let first = self.qps.get_mut(index as usize).and_then(Option::as_mut);
        if first.as_ref().is_some_and(|slot| !p.has_room(slot.inflight_seen, slot.qp.next_bytes())) {
            return;
        }
        // One at a time: the next is woken when this one has settled.
        p.waiting.pop_front();
        if let Some(slot) = first {
            slot.waiting = false;
            self.make_ready(index);
        }
    }

    /// Writes the events of this pass; records a full pipe could not take are tried again later.
    fn publish(&mut self, now: Nanos, ports: &[PortSlot]) -> bool {
        self.retry_events(now);
        let any = !self.outbox.events.is_empty();
        for cq in self.outbox.events.drain(..) {
            let Some(shared) = self.cqs.get(cq as usize).and_then(Option::as_ref) else { continue };
            let Some(channel) = &shared.channel else { continue };
            if channel.write(&shared.cookie.to_ne_bytes()).is_ok() {
                ports[0].counters.add(crate::counters::Traffic::Events, 1);
            }
            if channel.has_backlog() && !self.outbox.full.iter().any(|known| known.as_ptr() == Arc::as_ptr(channel)) {
                self.outbox.full.push(Arc::downgrade(channel));
            }
        }
        if self.outbox.retry_at == Nanos::NEVER && self.owes_events() {
            self.outbox.retry_at = now + EVENTS_PAUSE;
        }
        any
    }

    /// Whether some program has no room for its events.
    fn owes_events(&self) -> bool {
        !self.outbox.full.is_empty() || self.contexts.iter().flatten().any(|c| c.async_events.has_backlog())
    }

    /// Now and then: writes what pipes had no room for, as far as their programs have read.
    fn retry_events(&mut self, now: Nanos) {
        if now < self.outbox.retry_at {
            return;
        }
        self.outbox.retry_at = Nanos::NEVER;
        for context in self.contexts.iter().flatten().filter(|c| c.async_events.has_backlog()) {
            context.async_events.retry();
        }
        // A channel that was destroyed owes nothing.
        self.outbox.full.retain(|channel| {
            channel.upgrade().is_some_and(|channel| {
                channel.retry();
                channel.has_backlog()
            })
        });
    }
}
