//! What the rooms of a worker share: its tables, and what must follow each call to a queue pair ([`Core::settle`]).

use crate::calls::Tables;
use crate::objects::{AddressHandle, ContextSlot, EngineCq, NO_PATH, QpSlot, XrcEntry, slot_at, waits_for};
use crate::options::WorkerOptions;
use crate::outbox::Outbox;
use crate::paths::hello::Hellos;
use crate::paths::path::{ChannelWakes, NO_QP, Path};
use crate::paths::{NOT_WAITING, Paths};
use crate::port_slot::PortSlot;
use crate::pulse::Pulse;
use crate::qpn::Directory;
use crate::receive::handover::Inbox;
use crate::timers::Timers;
use crate::tombstone::Tombstones;
use crate::tombstone_file::TombstoneFile;
use crate::transmit::sched::{NO_TICKET, Scheduler, URMA_ENTRY};
use crate::urma::{PathTables, UrmaShared};
use burst_base::{Nanos, Qpn};
use burst_mem::MrTable;
use burst_transport::RecordPool;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Entries of a worker's table of queue pairs from which lines are prefetched. The hot lines of so many are about 1 MiB, a
/// level 2 cache.
pub(crate) const MANY: usize = 1024;

/// Queue pairs in a path's line that are passed over at most, because their own acknowledgements must come first.
const PASSED_MAX: usize = 4;

/// All tables of a worker. Ports and agent lie beside it, so that they can be borrowed at the same time.
pub(crate) struct Core {
    pub options: WorkerOptions,
    /// Queue pairs by entry; entry 0 is never used.
    pub qps: Vec<Option<Box<QpSlot>>>,
    /// Entries of `qps` by queue pair number.
    pub directory: Directory,
    pub cqs: Vec<Option<Arc<EngineCq>>>,
    pub ahs: Vec<Option<AddressHandle>>,
    /// Shared receive queues of XRC domains, by number.
    pub xrc: Vec<Option<XrcEntry>>,
    pub contexts: Vec<Option<ContextSlot>>,
    /// Contexts whose programs of URMA have posted.
    pub urma_rung: Vec<u32>,
    /// Paths of URMA's channels on which something has happened.
    pub channel_wakes: ChannelWakes,
    /// The deadline of answers of URMA that has come.
    pub urma_due: Option<Nanos>,
    pub mem: MrTable,
    pub sched: Scheduler,
    pub timers: Timers,
    pub paths: Paths,
    pub tombstones: Tombstones,
    /// Notes connected queue pairs for a successor of this process; `None` without a supervisor.
    pub tombstone_file: Option<TombstoneFile>,
    pub outbox: Outbox,
    /// The inboxes of all workers, by worker.
    pub inboxes: Vec<Arc<Inbox>>,
    /// How long the received packet that is being handled has waited in its port ([`burst_port::RxSink::waited`]).
    pub waited: Nanos,
    /// Tells a watchdog that the worker goes on.
    pub pulse: Arc<Pulse>,
    /// Records of loss recovery, which queue pairs borrow.
    pub records: RecordPool,
    pub hellos: Hellos,
    /// What answers to the hellos of processes with lent numbers go through, by number.
    pub mail: Vec<(u32, OwnedFd)>,
}

impl Core {
    pub fn new(options: WorkerOptions, mem: MrTable, inboxes: Vec<Arc<Inbox>>) -> Core {
        Core {
            options,
            qps: Vec::new(),
            directory: Directory::new(),
            cqs: Vec::new(),
            ahs: Vec::new(),
            xrc: Vec::new(),
            contexts: Vec::new(),
            urma_rung: Vec::new(),
            channel_wakes: ChannelWakes::default(),
            urma_due: None,
            mem,
            sched: Scheduler::default(),
            timers: Timers::default(),
            paths: Paths::default(),
            tombstones: Tombstones::default(),
            tombstone_file: None,
            outbox: Outbox::new(options.list_room),
            inboxes,
            waited: Nanos(0),
            pulse: Arc::new(Pulse::new(format!("worker {}", options.id))),
            records: RecordPool::default(),
            hellos: Hellos::default(),
            mail: Vec::new(),
        }
    }

    /// What URMA's endpoints share with the queue pairs.
    pub(crate) fn urma_shared(&mut self, now: Nanos) -> UrmaShared<'_> {
        let Core { mem, sched, timers, contexts, outbox, .. } = self;
        let Outbox { events, delivered, failures, excerpts, retry_at, .. } = outbox;
        let excerpts = excerpts.as_deref_mut();
        let Timers { wheel, delayed_acks, pacing } = timers;
        let hellos = Some((&mut self.hellos, self.options.asks_peers()));
        let (wakes, cc) = (&mut self.channel_wakes, &self.options.cc);
        let tables = PathTables { paths: &mut self.paths, pacing, wakes, cc, hellos };
        UrmaShared {
            now,
            regions: mem,
            sched,
            wheel,
            delayed_acks,
            events,
            delivered,
            contexts,
            failures,
            excerpts,
            retry_at,
            tables,
        }
    }

    /// Whether programs of URMA have posted, or channels may go on.
    pub(crate) fn has_urma_work(&self) -> bool {
        !(self.urma_rung.is_empty() && self.channel_wakes.opened.is_empty() && self.channel_wakes.freed.is_empty())
    }

    /// The inbox of a worker of this process.
    #[inline]
    pub(crate) fn inbox_of(&self, worker: u32) -> Option<&Arc<Inbox>> {
        self.inboxes.get(worker.checked_sub(self.options.first)? as usize)
    }

    pub fn own_inbox(&self) -> &Arc<Inbox> {
        &self.inboxes[(self.options.id - self.options.first) as usize]
    }

    /// Drops removed regions, and charges pages that were allocated for programs.
    #[inline]
    pub(crate) fn reclaim(&mut self) {
        if self.mem.reclaim() {
            self.sched.charge_fills();
        }
    }

    /// The slot of a queue pair.
    pub(crate) fn slot(&self, qpn: Qpn) -> Option<&QpSlot> {
        let slot = self.qps.get(self.directory.find(qpn) as usize)?.as_deref()?;
        (slot.qpn == qpn).then_some(slot)
    }

    /// The slot at `index`, if there is one, and the tables that a call to its queue pair needs.
    #[inline]
    pub fn slot_and_tables(&mut self, now: Nanos, index: u32) -> (Option<&mut QpSlot>, Tables<'_>) {
        let Core { qps, cqs, contexts, ahs, xrc, mem, outbox, paths, timers, hellos, records, waited, .. } = self;
        let slot = qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        debug_assert!(slot.as_ref().is_none_or(|slot| slot.index == index), "a slot at the entry of another");
        (
            slot,
            Tables {
                now,
                waited: *waited,
                cqs,
                contexts,
                ahs,
                xrc,
                mem,
                outbox,
                paths,
                wheel: &mut timers.wheel,
                hello_times: &mut hellos.times,
                records,
            },
        )
    }

    /// Makes the completions visible that waited for the end of a batch or burst.
    #[inline]
    pub fn show_completions(&mut self, ports: &[PortSlot]) {
        self.outbox.show_completions(&self.cqs, ports);
    }

    /// Whether there are so many queue pairs that their lines are prefetched.
    #[inline]
    pub fn has_many(&self) -> bool {
        self.qps.len() >= MANY
    }

    /// Makes queue pairs ready whose delayed ACK is due.
    pub fn release_delayed_acks(&mut self, now: Nanos) {
        while let Some((index, at)) = self.timers.delayed_acks.pop_due(now) {
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
        let inflight = slot.qp.inflight_bytes();
        if inflight != slot.inflight_seen {
            slot.count_inflight(now, inflight, self.paths.get_mut(slot.path as usize));
        }
        slot.report_srq_limit();
        if let Some(srqn) = slot.qp.srqn()
            && let Some(entry) = self.xrc.get(srqn as usize).and_then(Option::as_ref)
        {
            entry.shared.report_limit(&*entry.async_events);
        }
        debug_assert!(slot.path == NO_PATH || self.paths[slot.path as usize].users > 0, "a path without users");
        if let Some(file) = &self.tombstone_file {
            file.note_expected(index, slot.qp.expected_psn());
        }
        slot.wake_by(&mut self.timers.wheel, slot.qp.next_deadline());
        // A queue pair that waits for a window wants to send only if it must answer its peer, or got an answer.
        let delayed = slot.qp.ack_may_wait() && self.timers.delayed_acks.delay(index, &mut slot.ack_delay, now);
        let (ready, path) = (slot.qp.wants_tx() && !delayed, slot.path);
        if ready {
            self.make_ready(index);
        }
        self.wake_waiting(now, path);
    }

    /// Makes the first queue pair ready that waits for a path's window, if the window has room for its next packet and the rate
    /// allows a burst.
    #[inline]
    pub(crate) fn wake_waiting(&mut self, now: Nanos, path: u32) {
        if self.paths.get(path as usize).is_some_and(Path::awaits_turn) {
            self.wake_first(now, path);
        }
    }

    /// Paths have room because of what channels of URMA have done: the first in their lines get turns.
    #[cold]
    pub fn wake_freed(&mut self, now: Nanos) {
        while let Some(path) = self.channel_wakes.freed.pop() {
            if let Some(p) = self.paths.get_mut(path as usize)
                && p.turn_of == URMA_ENTRY
                && !self.channel_wakes.opened.contains(&path)
            {
                // The channels have had their turn.
                p.turn_of = NO_QP;
            }
            self.wake_waiting(now, path);
        }
    }

    /// A turn ends, which the line of the path may have given, and in which so many bytes of payload have left.
    #[inline(always)]
    pub(crate) fn end_line_turn(&mut self, index: u32, used: u64) {
        if let Some(slot) = slot_at(&self.qps, index)
            && let Some(path) = self.paths.get_mut(slot.path as usize)
            && (path.turn_of != NO_QP || !path.waiting.is_empty())
        {
            path.charge_turn(slot, used);
        }
    }

    #[inline(never)]
    fn wake_first(&mut self, now: Nanos, path: u32) {
        let p = &mut self.paths[path as usize];
        if let Some(gate) = p.faster_gate(now) {
            // Whoever waits there may have READ responses, which need no room for requests.
            self.timers.pacing.arm(path, gate, gate.opens_at());
        }
        if let Some(gate) = p.closed_gate(now) {
            return self.timers.pacing.arm(path, gate, gate.opens_at());
        }
        for _ in 0..PASSED_MAX {
            let waiter = (path, p.channels.ticket);
            let Some(index) = p.waiting.first(|place| waits_for(&self.qps, waiter, place)) else { return };
            if index == URMA_ENTRY {
                match p.has_channel_room() {
                    true => p.open_to_channels(path, &mut self.channel_wakes),
                    false => p.was_full = true,
                }
                return;
            }
            let Some(slot) = self.qps[index as usize].as_mut() else { return };
            if slot.has_room_on(p) {
                return self.give_line_turn(path, index);
            }
            p.was_full = true;
            if !slot.is_hopeless_on(p) {
                return;
            }
            // Only its own acknowledgements can help it: others do not wait for them.
            p.waiting.pop();
            slot.waiting = p.waiting.push(slot.line, index);
        }
    }

    /// The first of a path's line has its turn next.
    fn give_line_turn(&mut self, path: u32, index: u32) {
        let (p, Some(slot)) = (&mut self.paths[path as usize], self.qps[index as usize].as_mut()) else { return };
        // One at a time: the next is made ready when this one has had its turn.
        debug_assert_ne!(slot.waiting, NOT_WAITING, "a queue pair in a line does not wait");
        p.waiting.pop();
        p.turn_of = index;
        slot.waiting = NOT_WAITING;
        self.make_ready(index);
    }

    /// Sets the family that the queue pairs of these paths use, as far as their peers can: one walk over all queue pairs,
    /// whatever the number of paths.
    pub(crate) fn set_families(&mut self, of: &mut [u32]) {
        if of.is_empty() {
            return;
        }
        of.sort_unstable();
        let Core { paths, qps, options, .. } = self;
        for slot in qps.iter_mut().flatten().filter(|slot| of.binary_search(&slot.path).is_ok()) {
            if let Some(path) = paths.get(slot.path as usize) {
                path.hello.tell(&mut slot.qp, options.selective);
            }
        }
    }

    /// Takes a queue pair off its path, together with its bytes in flight and its place in the line for the window.
    pub fn leave_path(&mut self, now: Nanos, slot: &mut QpSlot, index: u32) {
        if slot.path == NO_PATH {
            return;
        }
        debug_assert!(slot.index == index, "a slot at the entry of another");
        let path = &mut self.paths[slot.path as usize];
        path.release(now, index, slot.inflight_seen as i64);
        path.responses_moved(slot.responses_seen, 0);
        if slot.waiting != NOT_WAITING {
            let waiter = (slot.path, path.channels.ticket);
            path.waiting.vacate(slot.line, |place| waits_for(&self.qps, waiter, place));
        }
        path.waiting.leave(slot.line);
        if path.turn_of == index {
            path.turn_of = NO_QP;
        }
        // What it had in flight makes room, and its turn is the next one's.
        if !path.waiting.is_empty() {
            self.channel_wakes.freed.push(slot.path);
        }
        self.paths.leave(slot.path);
        (slot.path, slot.inflight_seen, slot.responses_seen) = (NO_PATH, 0, 0);
        (slot.waiting, slot.answering) = (NOT_WAITING, NOT_WAITING);
    }
}
