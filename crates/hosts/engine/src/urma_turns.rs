//! The worker's side of [`UrmaEndpoint`]: its turns, bursts and timers.
//!
//! All endpoints of a worker, one for each address, have entry [`URMA_ENTRY`] of the tables, which no queue pair has: their
//! places in ready queues and their timer in the wheel are those of this entry. A place's ticket says whose turn it is: the
//! endpoints', which send what is ready, or a program's, which posts to its node ([`crate::urma_tenants`]).

use crate::ack_delay::AckDelay;
use crate::counters::Counters;
use crate::priority::class_of;
use crate::sched::{NO_TICKET, ReceivedWork, URMA_ENTRY};
use crate::tap::PortTap;
use crate::urma::UrmaEndpoint;
use crate::urma_remains::AllRemains;
use crate::urma_tenants::{ByNumber, RegionMemory, UrmaTenant};
use crate::worker::{RX_BUDGET, Worker};
use burst_base::{DeviceId, Nanos, Reason};
use burst_ledger::Account;
use burst_mem::MrTable;
use burst_urma::{UrmaEffects, UrmaEnv, UrmaEvent, UrmaMemory, UrmaNode};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of one turn, as of a queue pair's.
pub(crate) const TURN_BYTES: u64 = 64 << 10;
/// Packets of a burst whose answers may wait for the program: those of a ping-pong.
const ANSWERED_MAX: usize = 2;
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

/// An endpoint in a worker.
pub(crate) struct UrmaEnd {
    pub endpoint: UrmaEndpoint,
    /// Device, for its counters.
    pub device: Option<DeviceId>,
    /// Memory of the one program; `None`: the regions of the worker's programs.
    memory: Option<Box<dyn UrmaMemory + Send>>,
    pub news: UrmaNews,
    /// Contexts of the programs that have completion queues, by JFC.
    pub owners: ByNumber<u32>,
    /// What programs have left behind.
    pub remains: AllRemains,
}

impl UrmaEnd {
    fn new(endpoint: UrmaEndpoint, device: Option<DeviceId>, memory: Option<Box<dyn UrmaMemory + Send>>) -> UrmaEnd {
        let counters = endpoint.counters().clone();
        UrmaEnd {
            endpoint,
            device,
            memory,
            news: UrmaNews { counters, completions: Vec::new(), events: Vec::new() },
            owners: ByNumber::default(),
            remains: AllRemains::default(),
        }
    }
    /// When timers are due, or more of what programs have left behind can be deleted.
    fn next_deadline(&self) -> Nanos {
        if self.remains.is_due { Nanos(0) } else { self.endpoint.node.next_deadline() }
    }
    /// Calls something of the endpoint with its memory and its reports.
    pub fn call<R>(
        &mut self,
        regions: &MrTable,
        call: impl FnOnce(&mut UrmaEndpoint, &mut dyn UrmaMemory, &mut UrmaNews) -> R,
    ) -> R {
        let mut regions = RegionMemory(regions);
        let memory: &mut dyn UrmaMemory = match &mut self.memory {
            Some(own) => &mut **own,
            None => &mut regions,
        };
        call(&mut self.endpoint, memory, &mut self.news)
    }
}

/// The endpoints of a worker.
pub(crate) struct UrmaSlot {
    pub ends: Vec<UrmaEnd>,
    /// Programs that post from other processes, by context.
    pub tenants: ByNumber<UrmaTenant>,
    /// Contexts of programs that have a place in the ready queues, by ticket.
    pub tickets: ByNumber<u32>,
    /// Contexts of programs that wait until the node has room.
    pub held: Vec<u32>,
    context: u32,
    /// Place in the ready queue of its context.
    ticket: u32,
    /// Deadline in the wheel.
    armed: Nanos,
    /// Whether what is ready is answers to a short burst: they wait a moment for the program's own request.
    pub is_answering: bool,
    pub ack_delay: AckDelay,
    /// The end whose turn is next.
    next: usize,
}

impl UrmaSlot {
    fn new(context: u32, end: UrmaEnd) -> UrmaSlot {
        UrmaSlot {
            ends: vec![end],
            tenants: ByNumber::default(),
            tickets: ByNumber::default(),
            held: Vec::new(),
            context,
            ticket: NO_TICKET,
            armed: Nanos::NEVER,
            is_answering: false,
            ack_delay: AckDelay::default(),
            next: 0,
        }
    }
    /// The context of the endpoints' turns.
    pub fn context(&self) -> u32 {
        self.context
    }
    /// Whether what is ready is more than acknowledgements of the transport, for which no program waits.
    fn owes_answers(&self) -> bool {
        self.ends.iter().any(|end| end.endpoint.node.owes_answers())
    }
    /// Whether a place in the ready queues is in use.
    pub fn has_ticket(&self, ticket: u32) -> bool {
        ticket != NO_TICKET && (self.ticket == ticket || self.tickets.contains_key(&ticket))
    }
    /// When the ports must be looked at.
    pub fn next_event(&self) -> Nanos {
        self.ends.iter().map(|end| end.endpoint.port_event()).min().unwrap_or(Nanos::NEVER)
    }
    /// True when packets have arrived meanwhile.
    pub fn before_sleep(&mut self) -> bool {
        self.ends.iter_mut().fold(false, |any, end| any | end.endpoint.before_sleep())
    }
    /// The sleep is over, or there was none.
    pub fn after_sleep(&mut self) {
        self.ends.iter_mut().for_each(|end| end.endpoint.after_sleep());
    }
    /// Descriptors that become readable when packets arrive.
    pub fn wait_fds(&self) -> Vec<RawFd> {
        self.ends.iter().flat_map(|end| end.endpoint.wait_fds()).collect()
    }
    /// All descriptors of the ports.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.ends.iter().flat_map(|end| end.endpoint.descriptors()).collect()
    }
    /// The end of an address.
    pub fn end_of(&self, address: IpAddr) -> Option<usize> {
        self.ends.iter().position(|end| end.endpoint.address() == address)
    }
}

impl Worker {
    /// Adds URMA's endpoint: its turns are those of `context`, its memory is the program's.
    ///
    /// # Panics
    /// If the worker has one already.
    pub fn add_urma(&mut self, context: u32, endpoint: UrmaEndpoint, memory: Box<dyn UrmaMemory + Send>) {
        assert!(self.urma.is_none(), "an endpoint of one program is the only one");
        self.urma = Some(Box::new(UrmaSlot::new(context, UrmaEnd::new(endpoint, None, Some(memory)))));
    }

    /// Adds the endpoint of an address, for programs that post from other processes. What it sends is paid for by the programs
    /// when they post, so its turns are those of a context of the host itself, number `context`, if it is the worker's first one.
    /// Returns whether it is.
    pub fn open_urma(&mut self, context: u32, device: DeviceId, account: &Account, endpoint: UrmaEndpoint) -> bool {
        let mut end = UrmaEnd::new(endpoint, Some(device), None);
        // Who captures the device's packets gets these, too.
        for tap in self.ports[device.index()].taps.copies() {
            end.endpoint.add_tap(tap);
        }
        match &mut self.urma {
            Some(slot) => {
                slot.ends.push(end);
                false
            }
            None => {
                self.core.sched.add_context(context, account, self.core.options.id as usize, None);
                self.urma = Some(Box::new(UrmaSlot::new(context, end)));
                true
            }
        }
    }

    /// Removes the endpoint of an address, which no program uses any more. Returns the number of the context that the last one
    /// gives back.
    pub fn close_urma(&mut self, now: Nanos, address: IpAddr) -> Option<u32> {
        let slot = self.urma.as_deref_mut()?;
        if let Some(at) = slot.end_of(address) {
            slot.ends[at].call(&self.core.mem, |endpoint, mem, news| endpoint.leave(now, mem, news));
        }
        slot.ends.retain(|end| end.endpoint.address() != address);
        if !slot.ends.is_empty() {
            return None;
        }
        let (context, ticket) = (slot.context, slot.ticket);
        if ticket != NO_TICKET {
            self.core.sched.remove(context, |_| false);
        }
        self.core.wheel.cancel(URMA_ENTRY);
        self.core.sched.remove_context(context);
        self.urma = None;
        Some(context)
    }

    /// Endpoints of a device.
    pub(crate) fn urma_ends_of(&self, device: DeviceId) -> usize {
        self.urma.iter().flat_map(|slot| &slot.ends).filter(|end| end.device == Some(device)).count()
    }

    /// Each endpoint of a device gets one of the taps.
    pub(crate) fn tap_urma(&mut self, device: DeviceId, taps: Vec<PortTap>) {
        let ends = self.urma.iter_mut().flat_map(|slot| &mut slot.ends).filter(|end| end.device == Some(device));
        for (end, tap) in ends.zip(taps) {
            end.endpoint.add_tap(tap);
        }
    }

    /// Removes URMA's only endpoint.
    pub fn remove_urma(&mut self) -> Option<UrmaEndpoint> {
        self.core.wheel.cancel(URMA_ENTRY);
        self.urma.take().and_then(|slot| slot.ends.into_iter().next()).map(|end| end.endpoint)
    }

    /// URMA's first endpoint.
    pub fn urma(&mut self) -> Option<&mut UrmaEndpoint> {
        self.urma.as_mut()?.ends.first_mut().map(|end| &mut end.endpoint)
    }

    /// The endpoint of an address.
    pub fn urma_endpoint(&self, address: IpAddr) -> Option<&UrmaEndpoint> {
        let slot = self.urma.as_deref()?;
        slot.end_of(address).map(|at| &slot.ends[at].endpoint)
    }

    /// Counters of the endpoints of a device.
    pub fn urma_counters(&self, device: DeviceId) -> Vec<Arc<Counters>> {
        let of_device = self.urma.iter().flat_map(|slot| &slot.ends).filter(|end| end.device == Some(device));
        of_device.map(|end| end.endpoint.counters().clone()).collect()
    }

    /// What the first node has reported since the last call; `None` without an endpoint.
    pub fn take_urma_news(&mut self) -> Option<(Vec<u32>, Vec<UrmaEvent>)> {
        let news = &mut self.urma.as_mut()?.ends.first_mut()?.news;
        Some((std::mem::take(&mut news.completions), std::mem::take(&mut news.events)))
    }

    /// Calls something of the first node; what it makes ready leaves in its turn. `None` without an endpoint.
    pub fn with_urma<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> Option<R> {
        self.with_urma_end(0, now, |endpoint, mem, news| endpoint.with(now, mem, news, call))
    }

    /// Calls something of an endpoint.
    pub(crate) fn with_urma_end<R>(
        &mut self,
        end: usize,
        now: Nanos,
        call: impl FnOnce(&mut UrmaEndpoint, &mut dyn UrmaMemory, &mut UrmaNews) -> R,
    ) -> Option<R> {
        let end = self.urma.as_deref_mut()?.ends.get_mut(end)?;
        let result = end.call(&self.core.mem, call);
        self.settle_urma(now);
        Some(result)
    }

    /// Takes a burst from each of URMA's ports. Returns whether there was one.
    pub(crate) fn receive_urma(&mut self, now: Nanos) -> bool {
        let Some(slot) = self.urma.as_deref_mut() else { return false };
        let mut received = ReceivedWork::default();
        let (mut any, mut packets) = (false, 0);
        let was_idle = slot.ticket == NO_TICKET && !slot.is_answering;
        for end in &mut slot.ends {
            let burst = end.call(&self.core.mem, |endpoint, mem, news| endpoint.receive(now, mem, news, RX_BUDGET));
            if burst.packets > 0 {
                received.add_run(burst.packets, burst.bytes);
                packets += burst.packets;
                self.core.unread |= burst.packets >= RX_BUDGET;
                any = true;
            }
        }
        if !any {
            return false;
        }
        if let Some(due) = received.take_due() {
            self.core.sched.charge_received(slot.context, due);
        }
        slot.is_answering = (was_idle || slot.is_answering) && packets <= ANSWERED_MAX && !slot.tenants.is_empty();
        self.settle_urma(now);
        true
    }

    /// The turn of a ticket. Returns what it is charged for, requests and bytes, and the bytes that it has sent.
    pub(crate) fn urma_turn(&mut self, now: Nanos, ticket: u32) -> (u32, u64, u64) {
        let Some(slot) = self.urma.as_deref_mut() else { return (0, 0, 0) };
        if slot.ticket != ticket {
            let (requests, bytes) = self.tenant_turn(now, ticket);
            return (requests, bytes, 0);
        }
        slot.ticket = NO_TICKET;
        let (mut used, count) = (0, slot.ends.len());
        for turn in 0..count {
            let end = &mut slot.ends[(slot.next + turn) % count];
            let left = TURN_BYTES - used;
            let is_alone = end.memory.is_some();
            used += end.call(&self.core.mem, |endpoint, mem, news| {
                let bytes = endpoint.send(now, mem, news, left);
                if is_alone {
                    endpoint.flush(now);
                }
                bytes.min(left)
            });
            if used >= TURN_BYTES {
                break;
            }
        }
        slot.next = (slot.next + 1) % count.max(1);
        // Programs in other processes have paid when they posted.
        let charged = if slot.tenants.is_empty() { used } else { 0 };
        self.settle_urma(now);
        (0, charged, used)
    }

    /// Sends what the turns of this pass have made for programs in other processes: their regions stay as they are until the
    /// pass ends, so the frames of several turns leave in one call.
    pub(crate) fn flush_urma(&mut self, now: Nanos) {
        if let Some(slot) = self.urma.as_deref_mut() {
            slot.ends.iter_mut().for_each(|end| end.endpoint.flush(now));
        }
    }

    /// The wheel's entry is due.
    pub(crate) fn fire_urma(&mut self, now: Nanos) -> bool {
        let Some(slot) = self.urma.as_deref_mut() else { return false };
        // Answers go on waiting for the program: timers are set anew as late as possible, so in a ping-pong one fires in each few
        // round trips and finds nothing to do.
        slot.armed = Nanos::NEVER;
        let mut any = false;
        for end in &mut slot.ends {
            any |= end.call(&self.core.mem, |endpoint, mem, news| endpoint.run_timers(now, mem, news));
        }
        self.settle_urma(now);
        any
    }

    /// After each call to a node: gives programs their completions, and brings timer and ready queue up to date.
    pub(crate) fn settle_urma(&mut self, now: Nanos) {
        self.deliver_urma(now);
        let Some(slot) = self.urma.as_deref_mut() else { return };
        let due = slot.ends.iter().map(UrmaEnd::next_deadline).min().unwrap_or(Nanos::NEVER);
        if due < slot.armed {
            self.core.wheel.insert(URMA_ENTRY, due);
            slot.armed = due;
        }
        if slot.ticket != NO_TICKET || !slot.ends.iter().any(|end| end.endpoint.node.wants_tx()) {
            return;
        }
        if slot.is_answering {
            let delayed_acks = &mut self.core.delayed_acks;
            if !slot.owes_answers() {
                delayed_acks.hold(URMA_ENTRY, &mut slot.ack_delay, now);
                return;
            }
            slot.is_answering = delayed_acks.delay(URMA_ENTRY, &mut slot.ack_delay, now);
        }
        if !slot.is_answering {
            slot.ticket = self.core.sched.push(slot.context, class_of(0), URMA_ENTRY);
        }
    }

    /// Lets answers leave that waited for the program's next request, once their time is over.
    pub(crate) fn release_urma(&mut self, now: Nanos) {
        let Some(at) = self.core.urma_due.take() else { return };
        if !self.core.urma_rung.is_empty() {
            // A program has posted meanwhile. Its turn comes next in this pass, and the answers leave behind its request in one
            // train. The answers wait once more in case no turn follows.
            if let Some(slot) = self.urma.as_deref_mut()
                && slot.ack_delay.pass(at)
            {
                self.core.delayed_acks.hold(URMA_ENTRY, &mut slot.ack_delay, now);
            }
            return;
        }
        if let Some(slot) = self.urma.as_deref_mut()
            && (if slot.owes_answers() { slot.ack_delay.expire(at) } else { slot.ack_delay.pass(at) })
        {
            slot.is_answering = false;
            self.settle_urma(now);
        }
    }
}
