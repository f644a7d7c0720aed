//! The worker's side of [`UrmaEndpoint`]: its turns, bursts and timers.
//!
//! The endpoint has entry [`URMA_ENTRY`] of the tables, which no queue pair has: its places in ready queues and its timer in the
//! wheel are those of this entry.

use crate::counters::Counters;
use crate::priority::class_of;
use crate::sched::{NO_TICKET, ReceivedWork, URMA_ENTRY};
use crate::urma::UrmaEndpoint;
use crate::worker::{RX_BUDGET, Worker};
use burst_base::{Nanos, Reason};
use burst_urma::{UrmaEffects, UrmaEnv, UrmaEvent, UrmaMemory, UrmaNode};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of one turn, as of a queue pair's.
const TURN_BYTES: u64 = 64 << 10;
/// Bursts whose news wait for their reader at most; further ones are the same news.
const NEWS_MAX: usize = 4096;

/// What the node has reported: completion queues with new records, and events.
#[derive(Debug)]
pub struct UrmaNews {
    counters: Arc<Counters>,
    /// Completion queues with new records, in order, each as often as it got one after it was read.
    pub completions: Vec<u32>,
    /// Events.
    pub events: Vec<UrmaEvent>,
}

impl UrmaEffects for UrmaNews {
    fn count(&mut self, reason: Reason) {
        self.counters.count(reason);
    }
    fn completion(&mut self, jfc: u32) {
        if self.completions.last() != Some(&jfc) && self.completions.len() < NEWS_MAX {
            self.completions.push(jfc);
        }
    }
    fn event(&mut self, event: UrmaEvent) {
        if self.events.len() < NEWS_MAX {
            self.events.push(event);
        }
    }
}

/// The endpoint in a worker.
pub(crate) struct UrmaSlot {
    endpoint: UrmaEndpoint,
    memory: Box<dyn UrmaMemory + Send>,
    news: UrmaNews,
    context: u32,
    /// Place in the ready queue of its context.
    pub ticket: u32,
    /// Deadline in the wheel.
    armed: Nanos,
}

impl UrmaSlot {
    /// When the port must be looked at.
    pub fn next_event(&self) -> Nanos {
        self.endpoint.port_event()
    }
    /// True when packets have arrived meanwhile.
    pub fn before_sleep(&mut self) -> bool {
        self.endpoint.before_sleep()
    }
    /// The sleep is over, or there was none.
    pub fn after_sleep(&mut self) {
        self.endpoint.after_sleep();
    }
    /// Descriptors that become readable when packets arrive.
    pub fn wait_fds(&self) -> Vec<RawFd> {
        self.endpoint.wait_fds()
    }
    /// All descriptors of the port.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.endpoint.descriptors()
    }
}

impl Worker {
    /// Adds URMA's endpoint: its turns are those of `context`, its memory is the program's.
    ///
    /// # Panics
    /// If the worker has one already.
    pub fn add_urma(&mut self, context: u32, endpoint: UrmaEndpoint, memory: Box<dyn UrmaMemory + Send>) {
        assert!(self.urma.is_none(), "one endpoint serves all Jetties of a host");
        let counters = endpoint.counters().clone();
        let news = UrmaNews { counters, completions: Vec::new(), events: Vec::new() };
        self.urma =
            Some(Box::new(UrmaSlot { endpoint, memory, news, context, ticket: NO_TICKET, armed: Nanos::NEVER }));
    }

    /// Removes URMA's endpoint.
    pub fn remove_urma(&mut self) -> Option<UrmaEndpoint> {
        self.core.wheel.cancel(URMA_ENTRY);
        self.urma.take().map(|slot| slot.endpoint)
    }

    /// URMA's endpoint.
    pub fn urma(&mut self) -> Option<&mut UrmaEndpoint> {
        self.urma.as_mut().map(|slot| &mut slot.endpoint)
    }

    /// What the node has reported since the last call; `None` without an endpoint.
    pub fn take_urma_news(&mut self) -> Option<(Vec<u32>, Vec<UrmaEvent>)> {
        let news = &mut self.urma.as_mut()?.news;
        Some((std::mem::take(&mut news.completions), std::mem::take(&mut news.events)))
    }

    /// Calls something of the node; what it makes ready leaves in its turn. `None` without an endpoint.
    pub fn with_urma<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> Option<R> {
        let UrmaSlot { endpoint, memory, news, .. } = self.urma.as_deref_mut()?;
        let result = endpoint.with(now, &mut **memory, news, call);
        self.settle_urma();
        Some(result)
    }

    /// Takes a burst from URMA's port. Returns whether there was one.
    pub(crate) fn receive_urma(&mut self, now: Nanos) -> bool {
        let Some(slot) = self.urma.as_deref_mut() else { return false };
        let UrmaSlot { endpoint, memory, news, context, .. } = slot;
        let burst = endpoint.receive(now, &mut **memory, news, RX_BUDGET);
        if burst.packets == 0 {
            return false;
        }
        let mut received = ReceivedWork::default();
        received.add_run(burst.packets, burst.bytes);
        if let Some(due) = received.take_due() {
            self.core.sched.charge_received(*context, due);
        }
        self.core.unread |= burst.packets >= RX_BUDGET;
        self.settle_urma();
        true
    }

    /// URMA's turn. Returns what it has used: requests, of which it counts none, and bytes.
    pub(crate) fn urma_turn(&mut self, now: Nanos) -> (u32, u64) {
        let Some(slot) = self.urma.as_deref_mut() else { return (0, 0) };
        let UrmaSlot { endpoint, memory, news, ticket, .. } = slot;
        *ticket = NO_TICKET;
        let used = endpoint.send(now, &mut **memory, news, TURN_BYTES);
        endpoint.flush(now);
        self.settle_urma();
        (0, used)
    }

    /// The wheel's entry is due.
    pub(crate) fn fire_urma(&mut self, now: Nanos) -> bool {
        let Some(slot) = self.urma.as_deref_mut() else { return false };
        slot.armed = Nanos::NEVER;
        let UrmaSlot { endpoint, memory, news, .. } = slot;
        let any = endpoint.run_timers(now, &mut **memory, news);
        self.settle_urma();
        any
    }

    /// After each call to the node: brings timer and ready queue up to date.
    fn settle_urma(&mut self) {
        let Some(slot) = self.urma.as_deref_mut() else { return };
        let due = slot.endpoint.node.next_deadline();
        if due < slot.armed {
            self.core.wheel.insert(URMA_ENTRY, due);
            slot.armed = due;
        }
        if slot.ticket == NO_TICKET && slot.endpoint.node.wants_tx() {
            slot.ticket = self.core.sched.push(slot.context, class_of(0), URMA_ENTRY);
        }
    }
}
