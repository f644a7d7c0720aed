//! The worker: its tables, and the loop that reads top to bottom.
//!
//! The control thread changes the tables by closures that run between two passes ([`crate::runner`]), so no table needs a lock.
//! Spans made in a turn are used up by `tx_burst` in the same turn; `MrTable::reclaim` runs first in the next pass.

use crate::core::Core;
use crate::data_path::DataPath;
use crate::histograms::PassStamp;
use crate::options::{RX_BUDGET, WorkerOptions};
use crate::outbox::Outbox;
use crate::port_slot::PortSlot;
use crate::pulse::Pulse;
use crate::receive::PacketReceiver;
use crate::receive::handover::Inbox;
use crate::ring::{PacketExcerpts, PacketRing};
use crate::timers::timer_pass::TimerPass;
use crate::transmit::TransmitPass;
use crate::transmit::doorbells::take_doorbells;
use crate::urma::UrmaEndpoints;
use burst_base::{DeviceId, Nanos};
use burst_gsi::{GsiAgent, PassLoad};
use burst_mem::MrTable;
use burst_port::Port;
use std::sync::Arc;

mod activity;
pub mod check;
mod connections;
mod copiers;
mod failures;
mod peers;
mod ports;
mod queue_pairs;
pub mod tables;
mod urma;

/// One worker. See the crate's documentation.
pub struct Worker {
    pub(crate) core: Core,
    pub(crate) ports: Vec<PortSlot>,
    pub(crate) receiver: PacketReceiver,
    pub(crate) agent: GsiAgent,
    /// The second transport.
    pub(crate) urma: Option<Box<UrmaEndpoints>>,
}

impl Worker {
    /// A worker with its key table, its ports (one per device, in device order), and the inboxes of all workers.
    pub fn new(options: WorkerOptions, mem: MrTable, ports: Vec<Box<dyn Port>>, inboxes: Vec<Arc<Inbox>>) -> Worker {
        assert!(options.id.checked_sub(options.first).is_some_and(|place| (place as usize) < inboxes.len()));
        let frames = options.batch_frames.max(4);
        let agent = GsiAgent::new(options.id, options.cm_secret, ports.len(), frames);
        let mut ports: Vec<_> =
            ports.into_iter().map(|port| PortSlot::new(port, burst_wire::ROCE_PORT, frames)).collect();
        let receiver = PacketReceiver::new(options.list_room);
        let mut core = Core::new(options, mem, inboxes);
        if options.packet_ring {
            let ring = Arc::<PacketRing>::default();
            for (at, slot) in ports.iter_mut().enumerate() {
                slot.keep_packets(ring.clone(), DeviceId::from_index(at));
            }
            core.outbox.excerpts = Some(Box::new(PacketExcerpts::new(ring)));
        }
        Worker { core, ports, receiver, agent, urma: None }
    }

    /// Tables and ports without the agent.
    #[inline]
    pub(crate) fn data_path(&mut self) -> DataPath<'_> {
        DataPath { core: &mut self.core, ports: &mut self.ports }
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
        self.core.sched.begin_pass(PassStamp::of(now));
        self.core.reclaim();
        let mut busy = take_doorbells(&mut self.core);
        self.core.release_delayed_acks(now);
        self.release_urma(now);
        busy |= self.transmit(now);
        busy |= self.receive(now);
        busy |= self.receive_urma(now);
        self.wake_freed(now);
        busy |= self.run_agent(now);
        busy |= self.run_timers(now);
        busy |= self.fail_overrun(now);
        busy |= self.run_copiers(now);
        busy | self.publish(now)
    }

    /// Gives turns to ready queue pairs and sends their packets.
    #[inline]
    fn transmit(&mut self, now: Nanos) -> bool {
        let Worker { core, ports, urma, .. } = self;
        TransmitPass { now, data_path: DataPath { core, ports }, urma: urma.as_deref_mut() }.run()
    }

    /// Takes a burst from each port; queue pairs that now have something to send become ready.
    fn receive(&mut self, now: Nanos) -> bool {
        let Worker { core, ports, receiver, agent, .. } = self;
        receiver.run(now, &mut DataPath { core, ports }, agent)
    }

    /// Opens gates, asks peers what they can do, and fires timers, as far as they are due.
    fn run_timers(&mut self, now: Nanos) -> bool {
        let mut any = self.core.timers.pacing.next_deadline() <= now && self.timer_pass(now).open_gates();
        any |= self.core.hellos.times.due() <= now && self.data_path().run_hellos(now);
        any | self.timer_pass(now).fire_due()
    }

    fn timer_pass(&mut self, now: Nanos) -> TimerPass<'_> {
        let Worker { core, ports, urma, .. } = self;
        TimerPass { now, data_path: DataPath { core, ports }, urma: urma.as_deref_mut() }
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

    /// Wakes who waits for paths on which URMA's channels have made room.
    #[inline]
    fn wake_freed(&mut self, now: Nanos) {
        if !self.core.channel_wakes.freed.is_empty() {
            self.core.wake_freed(now);
        }
    }

    /// Takes a burst from each of URMA's ports. Returns whether there was one.
    fn receive_urma(&mut self, now: Nanos) -> bool {
        let Some(urma) = &mut self.urma else { return false };
        let largest = urma.receive(&mut self.core.urma_shared(now), RX_BUDGET);
        self.receiver.unread |= largest >= RX_BUDGET;
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

    /// Looks at the programs that copy for this worker. Returns whether copies have ended.
    #[inline]
    fn run_copiers(&mut self, now: Nanos) -> bool {
        !self.core.outbox.copiers.is_idle() && self.data_path().run_copiers(now)
    }

    /// Lets the agent serve received management datagrams and due timers. Returns whether there were any.
    fn run_agent(&mut self, now: Nanos) -> bool {
        let Worker { core, ports, receiver, agent, .. } = self;
        if agent.next_deadline() > now {
            return false;
        }
        let load = PassLoad { data_came: std::mem::take(&mut receiver.data_came), unread: receiver.unread };
        let mut data_path = DataPath { core, ports };
        agent.run(now, load, &mut data_path);
        data_path.flush_all(now);
        true
    }

    /// Writes the events of this pass.
    fn publish(&mut self, now: Nanos) -> bool {
        let Core { outbox, cqs, contexts, .. } = &mut self.core;
        outbox.publish(now, cqs, contexts, &self.ports[0].counters)
    }

    /// The first half of a pass: requests that programs have posted until now leave, as far as the limits of a pass allow.
    pub fn send_posted(&mut self, now: Nanos) {
        take_doorbells(&mut self.core);
        self.transmit(now);
        if !self.core.outbox.copiers.is_idle() {
            self.core.outbox.copiers.post();
        }
    }

    /// As [`Worker::send_posted`], where perhaps no pass follows: events of requests that have completed are written, too.
    /// Returns whether nothing is left that a pass must do at once; the limits of a pass hold here, too.
    #[inline]
    pub(crate) fn send_posted_alone(&mut self, now: Nanos) -> bool {
        self.send_posted(now);
        if !self.core.outbox.events.is_empty() {
            self.publish(now);
        }
        self.core.sched.is_empty() && self.core.outbox.lost.is_empty() && !self.core.has_urma_work()
    }

    /// Whether the last pass wrote completions: a program on the same processor should run before the next pass.
    pub fn has_delivered(&mut self) -> bool {
        std::mem::take(&mut self.core.outbox.delivered)
    }

    /// When the next pass is due if nothing else happens before.
    pub fn next_deadline(&self) -> Nanos {
        let ports = self.ports.iter().map(|p| p.port.next_event()).min().unwrap_or(Nanos::NEVER);
        let Core { timers, outbox, hellos, .. } = &self.core;
        let tables = timers.next_deadline().min(outbox.retry_at).min(hellos.times.due());
        let urma = self.urma.as_ref().map_or(Nanos::NEVER, |slot| slot.next_event());
        ports.min(self.agent.next_deadline()).min(tables).min(urma)
    }

    /// The pulse of the thread that runs this worker.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.core.pulse
    }

    /// Number of this worker.
    pub fn id(&self) -> u32 {
        self.core.options.id
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

    /// Whether some queue pair is ready now, or an event of a completion must be written (the worker must not sleep).
    pub fn has_work(&mut self) -> bool {
        let Outbox { lost, events, copiers, .. } = &self.core.outbox;
        let pending = !self.core.own_inbox().is_empty() || !lost.is_empty() || !events.is_empty();
        pending
            || copiers.has_changes()
            || take_doorbells(&mut self.core)
            || self.core.has_urma_work()
            || !self.core.sched.is_empty()
    }
}
