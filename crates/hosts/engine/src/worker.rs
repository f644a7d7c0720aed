//! The worker: its tables, and the loop that reads top to bottom.
//!
//! The control thread changes the tables by closures that run between two passes ([`crate::runner`]), so no table needs a lock.
//! Spans made in a turn are used up by `tx_burst` in the same turn; `MrTable::reclaim` runs first in the next pass.

use crate::ack_delay::DelayedAcks;
use crate::calls::DeferredCompletion;
use crate::counters::Traffic;
use crate::handover::Inbox;
use crate::hello;
use crate::lookahead::{self, DOORBELLS_AHEAD, ExpectedPackets};
use crate::multicast::GroupTable;
use crate::objects::{AddressHandle, ContextSlot, EngineCq, NO_PATH, QpSlot, XrcEntry, waits_for, write_async};
use crate::pacing::PaceQueue;
use crate::paths::{NOT_WAITING, Paths};
use crate::port_slot::PortSlot;
use crate::pulse::Pulse;
use crate::qpn::Directory;
use crate::sched::{NO_TICKET, Scheduler, URMA_ENTRY};
use crate::tombstone::Tombstones;
use crate::tombstone_file::TombstoneFile;
use crate::urma::{UrmaEndpoints, UrmaShared};
use burst_base::verbs::EventType;
use burst_base::wheel::Wheel;
use burst_base::{DeviceId, Nanos, Qpn, RtoMode};
use burst_cc::CcTable;
use burst_cm::Secret;
use burst_control::AsyncObject;
use burst_control::events::EventSink;
use burst_gsi::GsiAgent;
use burst_mem::MrTable;
use burst_port::Port;
use burst_transport::{AckReport, PACKETS_MAX, RECORDS_MAX, RecordPool};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

mod urma;

/// Frames of one transmit batch.
pub const BATCH_FRAMES: usize = 256;
/// Frames taken from a port in one pass.
pub const RX_BUDGET: usize = 256;

/// Doorbells answered for one context in one pass.
const DOORBELLS_PER_PASS: usize = 256;

/// Queue pairs noted in one pass for a lost completion. A further one is noted when it loses its next completion.
const LOST_MAX: usize = 1024;
/// Entries of the lists of a pass: completions, events, queue pairs that lost completions.
pub const LIST_ROOM: usize = 1024;
/// Bytes of turns before the worker looks at its ports again: four full turns.
pub const PASS_BYTES: u64 = 256 << 10;

/// Time between two attempts to write events for which a program has not made room.
const EVENTS_PAUSE: Nanos = Nanos::from_ms(1);

/// Options of a worker. Everything random in a worker comes from `cm_secret`; its time comes with each call.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Number of the worker.
    pub id: u32,
    /// Number of the first worker of this process, whose inbox is the first. Not 0: the number is lent, and other processes have
    /// the other queue pairs of the addresses, and QP1.
    pub first: u32,
    /// The number in hellos that stands for this start of the daemon; `None`: it follows from `cm_secret`.
    pub boot_id: Option<u64>,
    /// Congestion control for each kind of peer; its largest window bounds the bytes in flight to one peer.
    pub cc: CcTable,
    /// Makes communication ids unpredictable; the same for all workers of a daemon.
    pub cm_secret: Secret,
    /// Selective repeat with peers that can do it.
    pub selective: bool,
    /// Selective repeat keeps early packets until their turn.
    pub strict_placement: bool,
    /// Waits of loss recovery.
    pub rto: RtoMode,
    /// Bytes that are sent before the worker looks at its ports again, in turns of 64 KiB at most.
    pub pass_bytes: u64,
    /// Frames of a port's batch, at least 4.
    pub batch_frames: usize,
    /// Entries for which the lists of a pass have room from the beginning.
    pub list_room: usize,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let cm_secret = Secret::new([0; 2]);
        WorkerOptions {
            id: 0,
            first: 0,
            boot_id: None,
            cc: CcTable::default(),
            cm_secret,
            selective: false,
            strict_placement: false,
            rto: RtoMode::default(),
            pass_bytes: PASS_BYTES,
            batch_frames: BATCH_FRAMES,
            list_room: LIST_ROOM,
        }
    }
}

/// Output that is written at the end of a turn, burst or pass.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Completion queues whose programs must get an event.
    pub events: Vec<u32>,
    /// Completions that must not be visible before the batch has left, or before the receive burst has ended.
    pub completions: Vec<DeferredCompletion>,
    /// Queue pairs that lost a completion because a completion queue was full.
    pub lost: Vec<Qpn>,
    /// Completion channels that had no room for an event.
    pub full: Vec<Weak<dyn EventSink>>,
    /// When events that had no room are tried again; never, if there are none.
    pub retry_at: Nanos,
    /// When a peer is to be asked what it can do.
    pub hello_due: Nanos,
    /// Whether completions were written since [`Worker::has_delivered`] was last called.
    pub delivered: bool,
    /// What acknowledgements have said of the path during a call to a queue pair.
    pub report: AckReport,
    /// Timers of queue pairs that were set when the last one fired.
    pub timers: u32,
}

impl Outbox {
    fn new(room: usize) -> Outbox {
        Outbox {
            events: Vec::with_capacity(room),
            completions: Vec::with_capacity(room),
            lost: Vec::with_capacity(room.min(LOST_MAX)),
            full: Vec::new(),
            retry_at: Nanos::NEVER,
            hello_due: Nanos::NEVER,
            delivered: false,
            report: AckReport::default(),
            timers: 0,
        }
    }

    /// Notes that a queue pair lost a completion.
    pub fn note_lost_completion(&mut self, qpn: Qpn) {
        if self.lost.len() < LOST_MAX && self.lost.last() != Some(&qpn) {
            self.lost.push(qpn);
        }
    }
}

/// A program has posted to the queue pair in slot `index`, which was idle.
#[inline(always)]
fn on_doorbell(context: u32, index: u32, qps: &mut [Option<Box<QpSlot>>], sched: &mut Scheduler) {
    let Some(slot) = qps.get_mut(index as usize).and_then(Option::as_mut) else { return };
    slot.endpoint.on_doorbell();
    slot.ack_delay.on_post();
    if slot.ticket == NO_TICKET {
        slot.ticket = sched.push(context, slot.priority(), index);
    }
}

/// Takes a context's doorbells where there are so many queue pairs that lines are asked for ahead. Returns whether any rang.
#[inline(never)]
fn take_many(
    context: u32,
    slot: &mut ContextSlot,
    (qps, sched, urma_rung): (&mut [Option<Box<QpSlot>>], &mut Scheduler, &mut Vec<u32>),
    is_selective: bool,
) -> bool {
    let mut taken = 0;
    while taken < DOORBELLS_PER_PASS {
        let (mut known, mut indices) = (0, [0; DOORBELLS_AHEAD]);
        let rung = slot.doorbells.drain(DOORBELLS_AHEAD, |queue| {
            let Some(index) = slot.queues.get(queue as usize) else { return };
            indices[known] = *index;
            known += 1;
            if let Some(slot) = qps.get(*index as usize).and_then(Option::as_ref) {
                slot.prefetch_requester(is_selective);
            }
        });
        indices[..known].iter().for_each(|index| match *index {
            URMA_ENTRY => urma_rung.push(context),
            index => on_doorbell(context, index, qps, sched),
        });
        taken += rung;
        if rung < DOORBELLS_AHEAD {
            break;
        }
    }
    taken > 0
}
const _: () = assert!(DOORBELLS_PER_PASS.is_multiple_of(DOORBELLS_AHEAD));

/// All tables of a worker. Ports and agent lie beside it, so that they can be borrowed at the same time.
pub(crate) struct Core {
    pub options: WorkerOptions,
    /// Queue pairs by entry; entry 0 is never used.
    pub qps: Vec<Option<Box<QpSlot>>>,
    /// Entries of `qps` by queue pair number.
    pub directory: Directory,
    /// Packets of this burst whose queue pairs are asked for.
    pub expected: ExpectedPackets,
    pub cqs: Vec<Option<Arc<EngineCq>>>,
    pub ahs: Vec<Option<AddressHandle>>,
    /// Shared receive queues of XRC domains, by number.
    pub xrc: Vec<Option<XrcEntry>>,
    pub contexts: Vec<Option<ContextSlot>>,
    /// Contexts whose programs of URMA have posted.
    pub urma_rung: Vec<u32>,
    /// The deadline of answers of URMA that has come.
    pub urma_due: Option<Nanos>,
    pub mem: MrTable,
    pub sched: Scheduler,
    pub wheel: Wheel,
    pub paths: Paths,
    pub pacing: PaceQueue,
    pub tombstones: Tombstones,
    /// Notes connected queue pairs for a successor of this process; `None` without a supervisor.
    pub tombstone_file: Option<TombstoneFile>,
    pub groups: GroupTable,
    pub delayed_acks: DelayedAcks,
    pub outbox: Outbox,
    /// Queue pairs that got packets in this burst.
    pub touched: Vec<u32>,
    /// The inboxes of all workers, by worker.
    pub inboxes: Vec<Arc<Inbox>>,
    /// Workers that packets of this burst were handed over to, one bit each.
    pub handed_to: u32,
    /// How long the received packet that is being handled has waited in its port ([`burst_port::RxSink::waited`]).
    pub waited: Nanos,
    /// Whether packets of queue pairs came since the agent ran.
    pub data_came: bool,
    /// Whether the last burst left packets in a port.
    pub unread: bool,
    /// Tells a watchdog that the worker goes on.
    pub pulse: Arc<Pulse>,
    /// Records of loss recovery, which queue pairs borrow.
    pub records: RecordPool,
    /// Questions asked.
    pub hellos_asked: u64,
    pub hello_answers: hello::AnswerBudget,
    /// What answers to the hellos of processes with lent numbers go through, by number.
    pub mail: Vec<(u32, OwnedFd)>,
    pub hello_questions: Vec<hello::HelloQuestion>,
}

/// One worker. See the crate's documentation.
pub struct Worker {
    pub(crate) core: Core,
    pub(crate) ports: Vec<PortSlot>,
    pub(crate) agent: GsiAgent,
    /// The second transport.
    pub(crate) urma: Option<Box<UrmaEndpoints>>,
}

/// A worker's tables and ports, borrowed while its agent runs.
pub(crate) struct DataPath<'a> {
    pub core: &'a mut Core,
    pub ports: &'a mut [PortSlot],
}

impl Core {
    fn new(options: WorkerOptions, mem: MrTable, inboxes: Vec<Arc<Inbox>>) -> Core {
        Core {
            options,
            qps: Vec::new(),
            directory: Directory::new(),
            expected: ExpectedPackets::default(),
            cqs: Vec::new(),
            ahs: Vec::new(),
            xrc: Vec::new(),
            contexts: Vec::new(),
            urma_rung: Vec::new(),
            urma_due: None,
            mem,
            sched: Scheduler::default(),
            wheel: Wheel::new(64),
            paths: Paths::default(),
            pacing: PaceQueue::default(),
            tombstones: Tombstones::default(),
            tombstone_file: None,
            groups: GroupTable::default(),
            delayed_acks: DelayedAcks::default(),
            outbox: Outbox::new(options.list_room),
            touched: Vec::with_capacity(options.list_room.min(RX_BUDGET)),
            inboxes,
            handed_to: 0,
            waited: Nanos(0),
            data_came: false,
            unread: false,
            pulse: Arc::new(Pulse::new(format!("worker {}", options.id))),
            records: match options.strict_placement {
                true => RecordPool::strict(RECORDS_MAX, PACKETS_MAX),
                false => RecordPool::default(),
            },
            hellos_asked: 0,
            hello_answers: hello::AnswerBudget::default(),
            mail: Vec::new(),
            hello_questions: Vec::new(),
        }
    }
}

impl Worker {
    /// A worker with its key table, its ports (one per device, in device order), and the inboxes of all workers.
    pub fn new(options: WorkerOptions, mem: MrTable, ports: Vec<Box<dyn Port>>, inboxes: Vec<Arc<Inbox>>) -> Worker {
        assert!(options.id.checked_sub(options.first).is_some_and(|place| (place as usize) < inboxes.len()));
        let frames = options.batch_frames.max(4);
        let agent = GsiAgent::new(options.id, options.cm_secret, ports.len(), frames);
        let ports = ports.into_iter().map(|port| PortSlot::new(port, burst_wire::ROCE_PORT, frames)).collect();
        Worker { core: Core::new(options, mem, inboxes), ports, agent, urma: None }
    }

    /// Tables and ports without the agent.
    #[inline]
    pub(crate) fn data_path(&mut self) -> DataPath<'_> {
        DataPath { core: &mut self.core, ports: &mut self.ports }
    }

    /// The worker will have no queue pairs of the device, and looks at its port seldom.
    pub fn leave_port(&mut self, device: DeviceId) {
        self.ports[device.index()].attention.set_unused();
    }

    /// Tells the worker that this thread is its own: the worker charges the missing pages that the thread allocates.
    pub fn own_thread(&self) {
        burst_mem::holes::count_for_worker(self.core.options.id as usize);
    }

    /// One pass: doorbells, transmit, receive, management, timers, publish. Returns whether anything was done.
    ///
    /// Transmit comes before receive: posted requests leave without waiting for a look at the sockets, and an ACK waits until the
    /// program has had a chance to answer ([`Worker::has_delivered`]), so that both leave in one system call and arrive as one.
    pub fn run_once(&mut self, now: Nanos) -> bool {
        self.core.reclaim();
        let mut busy = self.core.take_doorbells();
        self.core.release_delayed_acks(now);
        self.release_urma(now);
        busy |= self.transmit(now);
        busy |= self.receive(now);
        busy |= self.receive_urma(now);
        busy |= self.run_agent(now);
        busy |= self.run_timers(now);
        busy |= self.fail_overrun(now);
        busy | self.core.publish(now, &self.ports)
    }

    /// Lets answers of URMA leave that waited for a program's next request, once their time has come.
    fn release_urma(&mut self, now: Nanos) {
        if let Some(at) = self.core.urma_due.take()
            && let Some(urma) = &mut self.urma
        {
            let has_posted = !self.core.urma_rung.is_empty();
            urma.release_answers(at, has_posted, &mut self.core.urma_shared(now));
        }
    }

    /// Takes a burst from each of URMA's ports. Returns whether there was one.
    fn receive_urma(&mut self, now: Nanos) -> bool {
        let Some(urma) = &mut self.urma else { return false };
        let largest = urma.receive(&mut self.core.urma_shared(now), RX_BUDGET);
        self.core.unread |= largest >= RX_BUDGET;
        largest > 0
    }

    /// Moves queue pairs that lost a completion to ERR.
    fn fail_overrun(&mut self, now: Nanos) -> bool {
        let any = !self.core.outbox.lost.is_empty();
        while let Some(qpn) = self.core.outbox.lost.pop() {
            // The queue pair may have been destroyed since.
            let _ = self.data_path().call_qp(now, qpn, |qp, env| qp.on_lost_completion(env));
            self.core.settle(now, self.core.directory.find(qpn));
        }
        any
    }

    /// The first half of a pass: requests that programs have posted until now leave, as far as the limits of a pass allow.
    pub fn send_posted(&mut self, now: Nanos) {
        self.core.take_doorbells();
        self.transmit(now);
    }

    /// Whether the last pass wrote completions: a program on the same processor should run before the next pass.
    pub fn has_delivered(&mut self) -> bool {
        std::mem::take(&mut self.core.outbox.delivered)
    }

    /// When the next pass is due if nothing else happens before.
    pub fn next_deadline(&self) -> Nanos {
        let ports = self.ports.iter().map(|p| p.port.next_event()).min().unwrap_or(Nanos::NEVER);
        let Core { wheel, pacing, delayed_acks, outbox, .. } = &self.core;
        let tables = wheel
            .next_deadline()
            .min(pacing.next_deadline())
            .min(delayed_acks.next_deadline())
            .min(outbox.retry_at)
            .min(outbox.hello_due);
        let urma = self.urma.as_ref().map_or(Nanos::NEVER, |slot| slot.next_event());
        ports.min(self.agent.next_deadline()).min(tables).min(urma)
    }

    /// The pulse of the thread that runs this worker.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.core.pulse
    }

    /// This worker's inbox, with the eventfd that wakes it.
    pub fn inbox(&self) -> &Arc<Inbox> {
        self.core.own_inbox()
    }

    /// Announces to the ports that the worker sleeps next. True if one of them has packets.
    pub(crate) fn before_sleep(&mut self) -> bool {
        self.core.sched.forgive_received();
        let urma = self.urma.as_mut().is_some_and(|slot| slot.before_sleep());
        self.ports.iter_mut().fold(urma, |any, slot| {
            slot.attention.wake();
            any | slot.port.before_sleep()
        })
    }

    /// The sleep is over, or there was none.
    pub(crate) fn after_sleep(&mut self) {
        self.ports.iter_mut().for_each(|slot| slot.port.after_sleep());
        if let Some(slot) = &mut self.urma {
            slot.after_sleep();
        }
    }

    /// Whether some queue pair is ready now (the worker must not sleep).
    pub fn has_work(&mut self) -> bool {
        let pending = !self.core.own_inbox().is_empty() || !self.core.outbox.lost.is_empty();
        pending || self.core.take_doorbells() || !self.core.urma_rung.is_empty() || !self.core.sched.is_empty()
    }
}

impl Core {
    /// The inbox of a worker of this process.
    #[inline]
    pub(crate) fn inbox_of(&self, worker: u32) -> Option<&Arc<Inbox>> {
        self.inboxes.get(worker.checked_sub(self.options.first)? as usize)
    }

    fn own_inbox(&self) -> &Arc<Inbox> {
        &self.inboxes[(self.options.id - self.options.first) as usize]
    }

    /// What URMA's endpoints share with the queue pairs.
    pub(crate) fn urma_shared(&mut self, now: Nanos) -> UrmaShared<'_> {
        let Core { mem, sched, wheel, delayed_acks, outbox: Outbox { events, delivered, .. }, .. } = self;
        UrmaShared { now, regions: mem, sched, wheel, delayed_acks, events, delivered }
    }

    /// Drops removed regions, and charges pages that were allocated for programs.
    #[inline]
    pub(crate) fn reclaim(&mut self) {
        if self.mem.reclaim() {
            self.sched.charge_fills();
        }
    }

    /// Turns doorbells into ready queue pairs.
    fn take_doorbells(&mut self) -> bool {
        let mut any = false;
        let Core { contexts, qps, sched, options, urma_rung, .. } = self;
        for (context, slot) in contexts.iter_mut().enumerate() {
            let Some(slot) = slot.as_mut().filter(|slot| slot.doorbells.is_ringing()) else { continue };
            if qps.len() >= lookahead::MANY {
                any |= take_many(context as u32, slot, (qps, sched, urma_rung), options.selective);
                continue;
            }
            let rung = slot.doorbells.drain(DOORBELLS_PER_PASS, |queue| match slot.queues.get(queue as usize) {
                Some(&URMA_ENTRY) => urma_rung.push(context as u32),
                Some(index) => on_doorbell(context as u32, *index, qps, sched),
                None => {}
            });
            any |= rung > 0;
        }
        any
    }

    /// Makes queue pairs ready whose delayed ACK is due.
    fn release_delayed_acks(&mut self, now: Nanos) {
        while let Some((index, at)) = self.delayed_acks.pop_due(now) {
            if index == URMA_ENTRY {
                self.urma_due = Some(at);
                continue;
            }
            let slot = self.qps.get_mut(index as usize).and_then(Option::as_mut);
            if slot.is_some_and(|s| s.ack_delay.expire(at)) {
                self.make_ready(index);
            }
        }
    }

    /// Marks a queue pair ready if it wants to send.
    pub(crate) fn make_ready(&mut self, index: u32) {
        if let Some(slot) = self.qps.get_mut(index as usize).and_then(Option::as_mut)
            && slot.ticket == NO_TICKET
        {
            slot.ticket = self.sched.push(slot.holder.context, slot.priority(), index);
        }
    }

    /// To be called after each call to a queue pair: brings the path's bytes in flight, the timer and the ready queue up to date.
    pub(crate) fn settle(&mut self, now: Nanos, index: u32) {
        let Some(slot) = self.qps.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let inflight = slot.endpoint.inflight_bytes();
        if inflight != slot.inflight_seen {
            if let Some(path) = self.paths.get_mut(slot.path as usize) {
                path.is_recovering = slot.endpoint.qp().is_recovering();
                path.moved(now, index, slot.inflight_seen, inflight);
                let responses = slot.endpoint.response_bytes();
                if responses > 0 || slot.has_more {
                    path.responses_moved(slot.responses_seen, responses);
                    slot.responses_seen = responses;
                    slot.has_more = slot.srq.is_some() || responses > 0;
                }
            }
            slot.inflight_seen = inflight;
        }
        if slot.has_more
            && let Some(srq) = &slot.srq
            && srq.limit_reached()
        {
            write_async(&*slot.holder.async_events, EventType::SrqLimitReached, AsyncObject::Srq, srq.cookie);
        }
        if let Some(srqn) = slot.endpoint.qp().srqn()
            && let Some(entry) = self.xrc.get(srqn as usize).and_then(Option::as_ref)
            && entry.shared.limit_reached()
        {
            write_async(&*entry.async_events, EventType::SrqLimitReached, AsyncObject::Srq, entry.shared.cookie);
        }
        debug_assert!(slot.path == NO_PATH || self.paths[slot.path as usize].users > 0, "a path without users");
        if let Some(file) = &self.tombstone_file {
            file.note_expected(index, slot.endpoint.qp().expected_psn());
        }
        slot.wake_by(&mut self.wheel, slot.endpoint.next_deadline());
        // A queue pair that waits for a window wants to send only if it must answer its peer, or got an answer.
        let delayed = slot.endpoint.ack_may_wait() && self.delayed_acks.delay(index, &mut slot.ack_delay, now);
        let (ready, path) = (slot.endpoint.wants_tx() && !delayed, slot.path);
        if ready {
            self.make_ready(index);
        }
        self.wake_waiting(now, path);
    }

    /// Makes the first queue pair ready that waits for a path's window, if the window has room for its next packet and the rate
    /// allows a burst.
    #[inline]
    fn wake_waiting(&mut self, now: Nanos, path: u32) {
        if self.paths.get(path as usize).is_some_and(|path| !path.waiting.is_empty()) {
            self.wake_first(now, path);
        }
    }

    #[inline(never)]
    fn wake_first(&mut self, now: Nanos, path: u32) {
        let p = &mut self.paths[path as usize];
        let Some(index) = p.waiting.first(|place| waits_for(&self.qps, path, place)) else { return };
        if let Some(gate) = p.faster_gate(now) {
            // Whoever waits there may have READ responses, which need no room for requests.
            self.pacing.arm(path, gate, gate.opens_at());
        }
        if let Some(gate) = p.closed_gate(now) {
            return self.pacing.arm(path, gate, gate.opens_at());
        }
        let Some(slot) = self.qps[index as usize].as_mut() else { return };
        if !p.has_room(slot.inflight_seen - slot.responses_seen, slot.endpoint.next_bytes()) {
            return;
        }
        // One at a time: the next is made ready when this one has settled.
        p.waiting.pop();
        slot.waiting = NOT_WAITING;
        self.make_ready(index);
    }

    /// Writes the events of this pass. A full sink keeps its records, and `retry_events` tries them again.
    fn publish(&mut self, now: Nanos, ports: &[PortSlot]) -> bool {
        self.retry_events(now);
        let any = !self.outbox.events.is_empty();
        for cq in self.outbox.events.drain(..) {
            let Some(shared) = self.cqs.get(cq as usize).and_then(Option::as_ref) else { continue };
            let Some(channel) = &shared.channel else { continue };
            if channel.write(&shared.cookie.to_ne_bytes()).is_ok() {
                ports[0].counters.add(Traffic::Events, 1);
            }
            if channel.has_backlog()
                && !self.outbox.full.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(channel)))
            {
                self.outbox.full.push(Arc::downgrade(channel));
            }
        }
        if self.outbox.retry_at == Nanos::NEVER && self.has_event_backlog() {
            self.outbox.retry_at = now + EVENTS_PAUSE;
        }
        any
    }

    /// Whether events wait for some program to make room.
    fn has_event_backlog(&self) -> bool {
        !self.outbox.full.is_empty() || self.contexts.iter().flatten().any(|c| c.async_events.has_backlog())
    }

    /// Writes events that had no room, as far as their programs have read; at most once per `EVENTS_PAUSE`.
    fn retry_events(&mut self, now: Nanos) {
        if now < self.outbox.retry_at {
            return;
        }
        self.outbox.retry_at = Nanos::NEVER;
        for context in self.contexts.iter().flatten().filter(|c| c.async_events.has_backlog()) {
            context.async_events.retry();
        }
        // A channel that was destroyed has no backlog.
        self.outbox.full.retain(|channel| {
            channel.upgrade().is_some_and(|channel| {
                channel.retry();
                channel.has_backlog()
            })
        });
    }
}
