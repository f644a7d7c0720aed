//! `loopback`: what a port sends to its own addresses comes back to it at once, as in an adapter.
//!
//! Such frames never reach the wire or the kernel: they are copied, and the next `rx_burst` hands them out, those side
//! by side that are of one flow and one length as a train. There is no ICRC, because nothing but this process touches them.
//! Ports that cannot reach their own addresses at all (whole frames on an interface) can do so by this wrapper.
//!
//! The destination's number says which worker has it: frames for the worker itself wait in a store (`store`), those
//! for another one go by a lane (`lane`) to that worker's port of the same device, which hands them out; so all frames of a
//! sender to one queue pair take one way and keep their order. [`crate::impair`] wraps around this wrapper, so that its
//! loss and delay concern these frames too. What does not fit is dropped as `ReceiveOverflow`, as it is by a socket.
//!
//! In each pass the store and every lane get the same share of what may be received, and the port below a quarter at least.

use crate::{NeighbourState, Port, PortCaps, PortError, RxSink};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, SPANS_MAX, TxBatch, TxFrame};
use std::net::IpAddr;
use std::os::fd::RawFd;

mod bell;
mod lane;
mod store;
#[cfg(test)]
mod tests;
mod train;

pub use lane::{BLOCK_BYTES, BLOCKS, Lanes};
pub use store::{STORE_BYTES, TRAINS_MAX};

use lane::Way;
use store::Store;

/// Frames passed on to the port below in one batch, where some of the batch turn round.
const BATCH: usize = 256;

const _: () = assert!(BATCH >= SPANS_MAX);

/// A port whose frames to itself turn round.
pub struct Loopback {
    inner: Box<dyn Port>,
    /// The addresses of the port below.
    own: Vec<IpAddr>,
    store: Store,
    /// To and from other workers, if there are any.
    lanes: Option<Lanes>,
    /// The frames of a batch that do not turn round, when some do.
    others: TxBatch,
}

impl Loopback {
    /// Wraps `inner`, the port of a worker that has these lanes to others.
    pub fn new(inner: Box<dyn Port>, lanes: Option<Lanes>) -> Loopback {
        let (store, others) = (Store::new(STORE_BYTES), TxBatch::new(BATCH));
        let mut port = Loopback { inner, own: Vec::new(), store, lanes, others };
        port.follow();
        port
    }

    fn follow(&mut self) {
        self.own.clear();
        self.own.extend(self.inner.caps().addrs.iter().map(|addr| addr.ip));
    }

    /// Where a frame turns round, if it does.
    fn way(&self, frame: &TxFrame) -> Option<Way> {
        let lanes = self.lanes.as_ref();
        self.own.contains(&frame.flow.dst).then(|| lanes.map_or(Way::Own, |lanes| lanes.way(dest_qpn(frame))))
    }

    /// Puts a frame where it turns round.
    fn put(&mut self, way: Way, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        match (way, &mut self.lanes) {
            (Way::Lane(worker), Some(lanes)) => lanes.put(worker, batch, frame),
            _ => self.store.put(batch, frame),
        }
    }

    /// Hands out up to `budget` frames that have turned round, shared among all who have sent some.
    fn hand_out(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let waiting = self.lanes.as_ref().map_or(0, Lanes::waiting);
        let share = if waiting == 0 { budget } else { budget.div_ceil(waiting + 1) };
        let own = self.store.hand_out(share, sink);
        own + self.lanes.as_mut().map_or(0, |lanes| lanes.hand_out(waiting, budget - own, sink))
    }

    /// Passes a frame on to the port below, with others.
    fn pass(&mut self, now: Nanos, batch: &TxBatch, frame: &TxFrame, dropped: &mut dyn FnMut(Reason)) {
        let spans = batch.spans_of(frame);
        if !self.others.push(&frame.flow, frame.head(), spans, frame.pad) {
            self.flush(now, dropped);
            let fits = self.others.push(&frame.flow, frame.head(), spans, frame.pad);
            assert!(fits, "an empty batch takes any frame");
        }
    }

    fn flush(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        if !self.others.is_empty() {
            self.inner.tx_burst(now, &self.others, dropped);
            self.others.clear();
        }
    }
}

/// The queue pair that a frame's BTH names; 0 in a frame that is shorter than one.
fn dest_qpn(frame: &TxFrame) -> Qpn {
    let word = frame.head().get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
    Qpn::new(word.map_or(0, |word| u32::from_be_bytes(*word)))
}

impl Port for Loopback {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        if let Some(lanes) = &mut self.lanes {
            lanes.rise();
        }
        // The wire gets its turn in every pass, however much turns round.
        let own = self.hand_out(budget - budget / 4, sink);
        if own > 0 {
            sink.looped_back(own);
        }
        own + self.inner.rx_burst(now, budget - own, sink)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        if !frames.iter().any(|frame| !frame.continues && self.own.contains(&frame.flow.dst)) {
            return self.inner.tx_burst(now, batch, dropped);
        }
        let mut way = None;
        for frame in frames {
            way = if frame.continues { way } else { self.way(frame) };
            match way.map(|way| self.put(way, batch, frame)) {
                Some(Ok(())) => {}
                Some(Err(reason)) => dropped(reason),
                None => self.pass(now, batch, frame, dropped),
            }
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.flush();
        }
        self.flush(now, dropped);
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn prepare(&mut self, flow: &Flow) {
        if !self.own.contains(&flow.dst) {
            self.inner.prepare(flow);
        }
    }

    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        !self.own.contains(&flow.dst) && self.inner.is_resolving(now, flow)
    }

    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        if self.own.contains(&dst) { NeighbourState::Resolved } else { self.inner.next_hop(now, dst) }
    }

    fn before_sleep(&mut self) -> bool {
        // All of them, in any case: each has to be ready for the sleep.
        let by_lane = self.lanes.as_mut().is_some_and(Lanes::before_sleep);
        self.inner.before_sleep() | by_lane | !self.store.is_empty()
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = self.inner.wait_fds();
        fds.extend(self.lanes.as_ref().map(Lanes::fd));
        fds
    }

    fn next_event(&self) -> Nanos {
        let now = !self.store.is_empty() || self.lanes.as_ref().is_some_and(Lanes::has_work);
        if now { Nanos(0) } else { self.inner.next_event() }
    }

    fn refresh(&mut self) -> bool {
        let changed = self.inner.refresh();
        self.follow();
        changed
    }
}
