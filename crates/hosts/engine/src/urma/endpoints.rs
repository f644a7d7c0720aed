//! The endpoints of a worker, one for each address: their turns, bursts and timers, and the programs that post to them.
//!
//! They have entry [`URMA_ENTRY`] of the tables, which no queue pair has: their places in ready queues and their timer in the
//! wheel are those of this entry. A place's ticket says whose turn it is: the endpoints', which send what is ready, or a
//! program's, which posts to its node ([`crate::urma::tenant`]).

use crate::objects::ContextSlot;
use crate::ring::PacketExcerpts;
use crate::tap::PortTap;
use crate::timers::ack_delay::{AckDelay, DelayedAcks};
use crate::transmit::priority::class_of;
use crate::transmit::sched::{NO_TICKET, ReceivedWork, Scheduler, URMA_ENTRY};
use crate::urma::PathTables;
use crate::urma::endpoint::NodeIo;
use crate::urma::endpoint_slot::EndpointSlot;
use crate::urma::tenant::{ByNumber, TURN_BYTES, TenantCall, UrmaTenant, context_of};
use burst_base::wheel::Wheel;
use burst_base::{DeviceId, Nanos};
use burst_control::failures::FailureRecord;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_ledger::{AccountRing, Charge};
use burst_mem::MrTable;
use burst_urma::UrmaError;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Packets of a burst whose answers may wait for the program: those of a ping-pong.
const ANSWERED_MAX: usize = 2;

/// What the endpoints of a worker share with its queue pairs.
pub(crate) struct UrmaShared<'a> {
    pub now: Nanos,
    pub regions: &'a MrTable,
    pub sched: &'a mut Scheduler,
    pub wheel: &'a mut Wheel,
    pub delayed_acks: &'a mut DelayedAcks,
    /// Completion queues whose programs must get an event.
    pub events: &'a mut Vec<u32>,
    /// Whether completions were written.
    pub delivered: &'a mut bool,
    /// The worker's contexts, by number.
    pub contexts: &'a [Option<ContextSlot>],
    /// Records of failures.
    pub failures: &'a mut AccountRing<FailureRecord>,
    /// The packets of what has failed, if the worker keeps any.
    pub excerpts: Option<&'a mut PacketExcerpts>,
    /// When the outbox looks at them next.
    pub retry_at: &'a mut Nanos,
    /// The paths to peers.
    pub tables: PathTables<'a>,
}

/// What a turn is charged for, and what it has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UrmaTurn {
    /// Requests that are charged.
    pub requests: u32,
    /// Bytes that are charged.
    pub charged: u64,
    /// Bytes that were sent.
    pub sent: u64,
}

/// The endpoints of a worker.
pub(crate) struct UrmaEndpoints {
    pub slots: Vec<EndpointSlot>,
    /// Programs that post from other processes, by context.
    tenants: ByNumber<UrmaTenant>,
    /// Contexts of programs that have a place in the ready queues, by ticket.
    tickets: ByNumber<u32>,
    context: u32,
    /// Place in the ready queue of its context.
    ticket: u32,
    /// Deadline in the wheel.
    armed: Nanos,
    /// Whether what is ready is answers to a short burst: they wait a moment for the program's own request.
    is_answering: bool,
    ack_delay: AckDelay,
    /// The endpoint whose turn is next.
    next: usize,
}

impl UrmaEndpoints {
    pub fn new(context: u32, slot: EndpointSlot) -> UrmaEndpoints {
        UrmaEndpoints {
            slots: vec![slot],
            tenants: ByNumber::default(),
            tickets: ByNumber::default(),
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
    /// Whether the endpoints have a place in the ready queue of their context.
    pub fn is_queued(&self) -> bool {
        self.ticket != NO_TICKET
    }
    /// Whether what is ready is more than acknowledgements of the transport, for which no program waits.
    fn owes_answers(&self) -> bool {
        self.slots.iter().any(|slot| slot.endpoint.node.owes_answers())
    }
    /// Whether a place in the ready queues is in use.
    pub fn has_ticket(&self, ticket: u32) -> bool {
        ticket != NO_TICKET && (self.ticket == ticket || self.tickets.contains_key(&ticket))
    }
    /// When the ports must be looked at.
    pub fn next_event(&self) -> Nanos {
        self.slots.iter().map(|slot| slot.endpoint.port_event()).min().unwrap_or(Nanos::NEVER)
    }
    /// True when packets have arrived meanwhile.
    pub fn before_sleep(&mut self) -> bool {
        self.slots.iter_mut().fold(false, |any, slot| any | slot.endpoint.before_sleep())
    }
    /// The sleep is over, or there was none.
    pub fn after_sleep(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.endpoint.after_sleep());
    }
    /// Descriptors that become readable when packets arrive.
    pub fn wait_fds(&self) -> Vec<RawFd> {
        self.slots.iter().flat_map(|slot| slot.endpoint.wait_fds()).collect()
    }
    /// All descriptors of the ports.
    pub fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.slots.iter().for_each(|slot| slot.endpoint.each_descriptor(take));
    }
    /// The slot of an address.
    pub fn find(&self, address: IpAddr) -> Option<usize> {
        self.slots.iter().position(|slot| slot.endpoint.address() == address)
    }
    /// The endpoints of a device.
    pub fn of_device(&self, device: DeviceId) -> impl Iterator<Item = &EndpointSlot> {
        self.slots.iter().filter(move |slot| slot.device == Some(device))
    }
    /// Ends the taps of a device's endpoints whose readers have gone.
    pub fn remove_left_taps(&mut self, device: DeviceId) {
        let slots = self.slots.iter_mut().filter(|slot| slot.device == Some(device));
        slots.for_each(|slot| slot.endpoint.remove_left_taps());
    }
    /// Each endpoint of a device gets one of the taps.
    pub fn add_taps(&mut self, device: DeviceId, taps: Vec<PortTap>) {
        let slots = self.slots.iter_mut().filter(|slot| slot.device == Some(device));
        for (slot, tap) in slots.zip(taps) {
            slot.endpoint.add_tap(tap);
        }
    }

    /// Adds a program.
    pub fn add_tenant(&mut self, tenant: UrmaTenant) {
        debug_assert!(!self.tenants.contains_key(&tenant.context), "a context has one program");
        if let Some(at) = self.find(tenant.address) {
            self.slots[at].tenants += 1;
        }
        self.tenants.insert(tenant.context, tenant);
    }
    /// Whether a program uses the node of an address.
    pub fn has_tenant(&self, address: IpAddr) -> bool {
        self.find(address).is_some_and(|at| self.slots[at].tenants > 0)
    }
    /// Removes a program, and returns whether it had a place in the ready queue of its context. Its objects must be given to
    /// [`Self::inherit`].
    pub fn remove_tenant(&mut self, context: u32) -> Option<(UrmaTenant, bool)> {
        let tenant = self.tenants.remove(&context)?;
        if let Some(at) = self.find(tenant.address) {
            assert!(self.slots[at].tenants > 0, "a program leaves a node that it does not use");
            self.slots[at].tenants -= 1;
        }
        let is_queued = self.tickets.remove(&tenant.ticket).is_some();
        debug_assert!(is_queued || tenant.ticket == NO_TICKET, "a program's place in the ready queue is not known");
        Some((tenant, is_queued))
    }
    /// Takes the objects of a program that has ended.
    pub fn inherit(&mut self, tenant: UrmaTenant, shared: &mut UrmaShared<'_>) {
        if let Some(at) = self.find(tenant.address) {
            self.slots[at].inherit(tenant);
            self.settle(shared);
        }
    }
    /// Deletes segments and imports of a program that has ended, and takes its completion queues from it, `most` at most. Returns
    /// how many; 0: there are no more.
    pub fn leave(&mut self, context: u32, most: usize) -> usize {
        assert!(most > 0, "no progress");
        let Some(tenant) = self.tenants.get_mut(&context) else { return 0 };
        let slot = self.slots.iter_mut().find(|slot| slot.endpoint.address() == tenant.address);
        let Some(slot) = slot else { return 0 };
        tenant.take_leaving().take(most).map(|object| object.end(slot)).count()
    }
    /// Sets what the objects of a program cost that has ended: until nothing uses them any more.
    pub fn keep_charges(&mut self, context: u32, charges: [Option<Charge>; 2]) {
        if let Some(tenant) = self.tenants.get_mut(&context) {
            tenant.charges = charges;
        }
    }
    /// Carries out a call of a program for an object. `None`: the program has no node here.
    pub fn tenant_call(
        &mut self,
        context: u32,
        call: TenantCall,
        shared: &mut UrmaShared<'_>,
    ) -> Option<Result<UrmaAnswer, UrmaError>> {
        self.is_answering = false;
        let tenant = self.tenants.get_mut(&context)?;
        let slot = self.slots.iter_mut().find(|slot| slot.endpoint.address() == tenant.address)?;
        Some(match call {
            TenantCall::Plain(UrmaCall::Remind { jfc }) => {
                tenant.remind(jfc, shared.events);
                Ok(UrmaAnswer::Done)
            }
            call => {
                let result = slot.carry_out(tenant, call, shared);
                self.settle(shared);
                result
            }
        })
    }
    /// The programs whose doorbells have rung get turns.
    pub fn admit(&mut self, rung: &mut Vec<u32>, sched: &mut Scheduler) {
        for context in rung.drain(..).rev() {
            if let Some(tenant) = self.tenants.get_mut(&context) {
                tenant.queue(sched, &mut self.tickets);
            }
        }
    }

    /// Channels that have waited for their paths go on. Who waits behind them is looked at after their turn.
    pub fn resume(&mut self, shared: &mut UrmaShared<'_>) {
        while let Some(path) = shared.tables.wakes.opened.pop() {
            self.slots.iter_mut().for_each(|slot| slot.endpoint.node.resume_path(path));
            shared.tables.wakes.freed.push(path);
        }
        self.settle(shared);
    }

    /// Takes a burst from each port. Returns the packets of the largest one.
    pub fn receive(&mut self, shared: &mut UrmaShared<'_>, budget: usize) -> usize {
        let mut received = ReceivedWork::default();
        let (mut largest, mut packets) = (0, 0);
        let was_idle = self.ticket == NO_TICKET && !self.is_answering;
        for slot in &mut self.slots {
            let (now, tables) = (shared.now, shared.tables.reborrow());
            let burst = slot
                .call(shared.regions, |endpoint, mem, fx| endpoint.receive_on(NodeIo { now, mem, fx, tables }, budget));
            if burst.packets > 0 {
                received.add_run(burst.packets, burst.bytes);
                packets += burst.packets;
                largest = largest.max(burst.packets);
            }
        }
        if packets == 0 {
            return 0;
        }
        if let Some(due) = received.take_due() {
            shared.sched.charge_received(self.context, due);
        }
        self.is_answering = (was_idle || self.is_answering) && packets <= ANSWERED_MAX && !self.tenants.is_empty();
        self.settle(shared);
        largest
    }

    /// The turn of a ticket.
    pub fn turn(&mut self, ticket: u32, shared: &mut UrmaShared<'_>) -> UrmaTurn {
        if self.ticket != ticket {
            return self.tenant_turn(ticket, shared);
        }
        self.ticket = NO_TICKET;
        debug_assert!(!self.slots.is_empty(), "a turn of no endpoint");
        let (mut sent, count) = (0, self.slots.len());
        for turn in 0..count {
            let slot = &mut self.slots[(self.next + turn) % count];
            let left = TURN_BYTES - sent;
            let is_alone = slot.memory.is_some();
            let (now, tables) = (shared.now, shared.tables.reborrow());
            sent += slot.call(shared.regions, |endpoint, mem, fx| {
                let bytes = endpoint.send_on(NodeIo { now, mem, fx, tables }, left);
                if is_alone {
                    endpoint.flush(now);
                }
                bytes.min(left)
            });
            if sent >= TURN_BYTES {
                break;
            }
        }
        debug_assert!(sent <= TURN_BYTES, "a turn is too long");
        self.next = (self.next + 1) % count.max(1);
        // Programs in other processes have paid when they posted.
        let charged = if self.tenants.is_empty() { sent } else { 0 };
        self.settle(shared);
        UrmaTurn { requests: 0, charged, sent }
    }

    /// A program's turn: its next records.
    fn tenant_turn(&mut self, ticket: u32, shared: &mut UrmaShared<'_>) -> UrmaTurn {
        self.is_answering = false;
        self.ack_delay.on_post();
        let UrmaEndpoints { slots, tenants, tickets, .. } = self;
        let tenant = tickets.remove(&ticket).and_then(|context| tenants.get_mut(&context));
        let Some(tenant) = tenant else { return UrmaTurn::default() };
        tenant.ticket = NO_TICKET;
        let slot = slots.iter_mut().find(|slot| slot.endpoint.address() == tenant.address);
        let Some(slot) = slot else { return UrmaTurn::default() };
        let turn = slot.post_next(tenant, shared);
        debug_assert!(!(turn.goes_on && tenant.is_held()), "a program that waits has another turn");
        if turn.goes_on {
            tenant.queue(shared.sched, tickets);
        }
        self.settle(shared);
        UrmaTurn { requests: turn.requests, charged: turn.bytes, sent: 0 }
    }

    /// Sends what the turns of this pass have made for programs in other processes: their regions stay as they are until the
    /// pass ends, so the frames of several turns leave in one call.
    pub fn flush(&mut self, now: Nanos) {
        self.slots.iter_mut().for_each(|slot| slot.endpoint.flush(now));
    }

    /// The wheel's entry is due. Returns whether anything was done.
    pub fn run_timers(&mut self, shared: &mut UrmaShared<'_>) -> bool {
        // Answers go on waiting for the program: timers are set anew as late as possible, so in a ping-pong one fires in each few
        // round trips and finds nothing to do.
        self.armed = Nanos::NEVER;
        let mut any = false;
        for slot in &mut self.slots {
            let (now, tables) = (shared.now, shared.tables.reborrow());
            any |=
                slot.call(shared.regions, |endpoint, mem, fx| endpoint.run_timers_on(NodeIo { now, mem, fx, tables }));
        }
        self.settle(shared);
        any
    }

    /// To be called after each call to a node: gives programs their completions, and brings timer and ready queue up to date.
    pub fn settle(&mut self, shared: &mut UrmaShared<'_>) {
        self.deliver(shared);
        let due = self.slots.iter().map(EndpointSlot::next_deadline).min().unwrap_or(Nanos::NEVER);
        if due < self.armed {
            shared.wheel.insert(URMA_ENTRY, due);
            self.armed = due;
        }
        debug_assert!(self.armed <= due, "the timer of the endpoints is too late");
        if self.ticket != NO_TICKET || !self.slots.iter().any(|slot| slot.endpoint.node.wants_tx()) {
            return;
        }
        if self.is_answering {
            if !self.owes_answers() {
                shared.delayed_acks.hold(URMA_ENTRY, &mut self.ack_delay, shared.now);
                return;
            }
            self.is_answering = shared.delayed_acks.delay(URMA_ENTRY, &mut self.ack_delay, shared.now);
        }
        if !self.is_answering {
            self.ticket = shared.sched.push(self.context, class_of(0), URMA_ENTRY);
        }
    }

    /// Lets answers leave that waited for the program's next request, once their time, `at`, has come.
    pub fn release_answers(&mut self, at: Nanos, has_posted: bool, shared: &mut UrmaShared<'_>) {
        if has_posted {
            // The program's turn comes next in this pass, and the answers leave behind its request in one train. The answers
            // wait once more in case no turn follows.
            if self.ack_delay.pass(at) {
                shared.delayed_acks.hold(URMA_ENTRY, &mut self.ack_delay, shared.now);
            }
            return;
        }
        if if self.owes_answers() { self.ack_delay.expire(at) } else { self.ack_delay.pass(at) } {
            self.is_answering = false;
            self.settle(shared);
        }
    }

    /// Gives programs the completions and events of their nodes.
    fn deliver(&mut self, shared: &mut UrmaShared<'_>) {
        let is_idle = |slot: &EndpointSlot| slot.orphans.is_empty();
        if self.tenants.is_empty() && self.slots.iter().all(is_idle) {
            return;
        }
        let UrmaEndpoints { slots, tenants, tickets, .. } = self;
        for slot in slots {
            if !slot.orphans.is_empty() {
                slot.delete_orphans(shared);
            }
            *shared.delivered |= slot.deliver_completions(tenants, shared);
            slot.deliver_events(tenants);
            while let Some(owner) = slot.endpoint.node.pop_freed() {
                if let Some(tenant) = tenants.get_mut(&context_of(owner)).filter(|tenant| tenant.is_held()) {
                    tenant.queue(shared.sched, tickets);
                }
            }
        }
    }

    /// The endpoint of an address is about to be removed: its node leaves its peers. Returns whether no endpoint is left.
    pub fn close(&mut self, address: IpAddr, shared: &mut UrmaShared<'_>) -> bool {
        if let Some(at) = self.find(address) {
            let (now, tables) = (shared.now, shared.tables.reborrow());
            self.slots[at].call(shared.regions, |endpoint, mem, fx| endpoint.leave_on(NodeIo { now, mem, fx, tables }));
        }
        self.slots.retain(|slot| slot.endpoint.address() != address);
        self.slots.is_empty()
    }
}
