//! `loopback`: a wrapper that delivers the packets of a port to the port's own addresses by memory, as an adapter does.
//!
//! Such packets reach neither the wire nor the kernel: `tx_burst` copies them, and the next `rx_burst` delivers them, as trains
//! where consecutive packets have one flow and one length. They carry no checksum, because nothing outside this process touches
//! them. Ports that cannot reach their own addresses at all (whole frames on an interface) can do so by this wrapper.
//!
//! The destination queue pair number tells the worker that has the queue pair. Packets for the worker itself wait in a store
//! (`store`); packets for another worker go through a queue (`worker_queue`) to that worker's port of the same device. All
//! packets of one sender to one queue pair thus take one route and keep their order. Queue pairs of a worker number that another
//! process has ([`crate::AddressSharing`]) get their packets from the kernel. [`crate::impair`] wraps this wrapper, so
//! that its loss and delay apply to looped back packets too. A packet without room is dropped as `ReceiveOverflow`, as a socket
//! drops it; a worker whose own store had no room hears of it as receiver, too ([`ReceivePressure::Lost`]). Levels of pressure
//! are those of the wrapped port.
//!
//! Multicast of interface-local scope (ff01::/16) spans a single interface and serves loopback only (RFC 4291 section 2.7).
//! Packets to such a group are therefore looped back and never sent on the link. The sending worker delivers them; the engine
//! copies them to the members, on other workers too.
//!
//! In each pass the store and every queue get equal shares of the receive budget, and the wrapped port gets a quarter at least.

use crate::{LentSocket, NeighbourState, Port, PortCalls, PortCaps, PortError, ReceivePressure, RxSink, WorkerShare};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, SPANS_MAX, TxBatch, TxFrame};
use std::net::IpAddr;
use std::os::fd::RawFd;

mod store;
#[cfg(test)]
mod tests;
mod train;
pub mod wakeup;
mod worker_queue;

pub use store::{STORE_BYTES, TRAINS_MAX};
pub use train::copy as copy_frame;
pub use worker_queue::{BLOCK_BYTES, BLOCKS, WorkerQueues};

use store::LoopbackStore;
use worker_queue::LoopbackRoute;

/// Packets given to the wrapped port in one batch, where other packets of the caller's batch are looped back.
const BATCH: usize = 256;

const _: () = assert!(BATCH >= SPANS_MAX);

/// A port that loops back packets to its own addresses.
pub struct Loopback {
    inner: Box<dyn Port>,
    /// Addresses of the wrapped port.
    own: Vec<IpAddr>,
    /// Packets for this worker's queue pairs.
    store: LoopbackStore,
    /// Queues to and from the other workers, if there are several.
    queues: Option<WorkerQueues>,
    /// Tells which queue pairs of the addresses are in other processes: the kernel delivers their packets.
    share: WorkerShare,
    /// The packets of a batch that are not looped back, when some of the batch are.
    others: TxBatch,
    /// Whether a group of interface-local scope has been joined.
    warned: bool,
    /// Whether the store had no room since the last burst.
    has_lost: bool,
}

impl Loopback {
    /// Wraps `inner`, the port of a worker that has these queues to the other workers.
    pub fn new(inner: Box<dyn Port>, queues: Option<WorkerQueues>) -> Loopback {
        Loopback::sharing(inner, queues, WorkerShare::only())
    }

    /// As [`Loopback::new`], for the port of a worker whose addresses other processes may share.
    pub(crate) fn sharing(inner: Box<dyn Port>, queues: Option<WorkerQueues>, share: WorkerShare) -> Loopback {
        let (store, others) = (LoopbackStore::new(STORE_BYTES), TxBatch::new(BATCH));
        let mut port =
            Loopback { inner, own: Vec::new(), store, queues, share, others, warned: false, has_lost: false };
        port.update_addresses();
        port
    }

    fn update_addresses(&mut self) {
        self.own.clear();
        self.own.extend(self.inner.caps().addrs.iter().map(|addr| addr.ip));
    }

    /// Whether packets to `dst` are looped back.
    #[inline]
    fn is_looped_back(&self, dst: &IpAddr) -> bool {
        self.own.contains(dst) || is_interface_local(dst)
    }

    /// The route of a packet that is looped back; `None` for all others.
    fn route(&self, frame: &TxFrame) -> Option<LoopbackRoute> {
        if !self.is_looped_back(&frame.flow.dst) {
            return None;
        }
        let qpn = dest_qpn(frame);
        let is_here = !self.share.is_elsewhere(qpn);
        is_here.then(|| self.queues.as_ref().map_or(LoopbackRoute::Own, |queues| queues.route(qpn)))
    }

    /// Copies a packet into the store or into a queue.
    fn push(&mut self, route: LoopbackRoute, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        match (route, &mut self.queues) {
            (LoopbackRoute::Worker(worker), Some(queues)) => queues.push(worker, batch, frame),
            _ => {
                let pushed = self.store.push(batch, frame);
                self.has_lost |= pushed == Err(Reason::ReceiveOverflow);
                pushed
            }
        }
    }

    /// Delivers up to `budget` looped back packets, shared equally among the store and the queues that have some.
    fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let waiting = self.queues.as_ref().map_or(0, WorkerQueues::waiting);
        let share = if waiting == 0 { budget } else { budget.div_ceil(waiting + 1) };
        let own = self.store.deliver(share, sink);
        own + self.queues.as_mut().map_or(0, |queues| queues.deliver(waiting, budget - own, sink))
    }

    /// Adds a packet to the batch for the wrapped port.
    fn pass(&mut self, now: Nanos, batch: &TxBatch, frame: &TxFrame, dropped: &mut dyn FnMut(Reason)) {
        let spans = batch.spans_of(frame);
        if !self.others.push(&frame.flow, frame.head(), spans, frame.pad) {
            self.flush(now, dropped);
            let fits = self.others.push(&frame.flow, frame.head(), spans, frame.pad);
            assert!(fits, "an empty batch has room for every frame");
        }
    }

    /// Sends the batch for the wrapped port.
    fn flush(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        if !self.others.is_empty() {
            self.inner.tx_burst(now, &self.others, dropped);
            self.others.clear();
        }
        debug_assert!(self.others.is_empty());
    }
}

/// The destination queue pair of a packet's BTH; 0 if the packet is shorter than a BTH.
fn dest_qpn(frame: &TxFrame) -> Qpn {
    let word = frame.head().get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
    Qpn::new(word.map_or(0, |word| u32::from_be_bytes(*word)))
}

/// Whether `ip` is a multicast address of interface-local scope: ff01::/16, whatever its flags (RFC 4291 section 2.7).
#[inline]
fn is_interface_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xff0f == 0xff01)
}

impl Port for Loopback {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        if let Some(queues) = &mut self.queues {
            queues.leave_sleep();
        }
        if std::mem::take(&mut self.has_lost) {
            sink.pressure(ReceivePressure::Lost);
        }
        // A quarter of the budget is kept for the wrapped port, however many packets are looped back.
        let own = self.deliver(budget - budget / 4, sink);
        debug_assert!(own <= budget);
        if own > 0 {
            sink.looped_back(own);
        }
        own + self.inner.rx_burst(now, budget - own, sink)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        if !frames.iter().any(|frame| !frame.continues && self.is_looped_back(&frame.flow.dst)) {
            return self.inner.tx_burst(now, batch, dropped);
        }
        let mut route = None;
        for frame in frames {
            route = if frame.continues { route } else { self.route(frame) };
            match route.map(|route| self.push(route, batch, frame)) {
                Some(Ok(())) => {}
                Some(Err(reason)) => dropped(reason),
                None => self.pass(now, batch, frame, dropped),
            }
        }
        if let Some(queues) = &mut self.queues {
            queues.flush();
        }
        self.flush(now, dropped);
    }

    fn groups_max(&self) -> usize {
        self.inner.groups_max()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        if !is_interface_local(&group) {
            return self.inner.join(group);
        }
        // Once: any program may join.
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "multicast group {group} has interface-local scope (RFC 4291): its datagrams reach queue pairs of this device only, \
             not other hosts; a group in ff02::/16 reaches the link"
            );
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if !is_interface_local(&group) {
            self.inner.leave(group);
        }
    }

    fn open_source_ports(&mut self, count: usize) -> Result<(), PortError> {
        self.inner.open_source_ports(count)
    }

    fn source_port(&self, src: IpAddr, number: usize) -> Option<u16> {
        self.inner.source_port(src, number)
    }

    fn prepare(&mut self, flow: &Flow) {
        if !self.is_looped_back(&flow.dst) {
            self.inner.prepare(flow);
        }
    }

    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        !self.is_looped_back(&flow.dst) && self.inner.is_resolving(now, flow)
    }

    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        if self.is_looped_back(&dst) { NeighbourState::Resolved } else { self.inner.next_hop(now, dst) }
    }

    fn before_sleep(&mut self) -> bool {
        // Every part is called in any case, because each has to prepare for the sleep.
        let in_queues = self.queues.as_mut().is_some_and(WorkerQueues::before_sleep);
        self.inner.before_sleep() | in_queues | !self.store.is_empty()
    }

    fn after_sleep(&mut self) {
        self.inner.after_sleep();
    }

    fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.inner.each_descriptor(take);
    }

    fn time_arrivals(&mut self) {
        self.inner.time_arrivals();
    }

    fn take_calls(&mut self) -> PortCalls {
        self.inner.take_calls()
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = self.inner.wait_fds();
        fds.extend(self.queues.as_ref().map(WorkerQueues::fd));
        fds
    }

    fn next_event(&self) -> Nanos {
        let has_packets = !self.store.is_empty() || self.queues.as_ref().is_some_and(WorkerQueues::has_work);
        if has_packets { Nanos(0) } else { self.inner.next_event() }
    }

    fn lend(&mut self, number: usize) -> Result<Vec<LentSocket>, PortError> {
        self.inner.lend(number)
    }

    fn take_back(&mut self, number: usize) {
        self.inner.take_back(number);
    }

    fn refresh(&mut self) -> bool {
        let changed = self.inner.refresh();
        self.update_addresses();
        changed
    }

    fn shrink(&mut self) {
        self.inner.shrink();
        self.store.shrink();
        if let Some(queues) = &mut self.queues {
            queues.shrink();
        }
    }
}
