//! What the protocol wants done, done: completions into rings, events into pipes, reasons into counters.

use crate::counters::{Counters, Traffic};
use crate::objects::{AddressHandle, CqShared, Holder, XrcEntry, write_async};
use crate::worker::Outbox;
use burst_base::verbs::EventType;
use burst_base::{Qpn, Reason};
use burst_control::AsyncObject;
use burst_frame::Flow;
use burst_shm::Cqe;
use burst_shm::cq::Push;
use burst_transport::{Effects, Signal, XrcSrq};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The world, as one queue pair sees it during one call.
pub(crate) struct Fx<'a> {
    pub cqs: &'a [Option<Arc<CqShared>>],
    pub ahs: &'a [Option<AddressHandle>],
    pub xrc: &'a [Option<XrcEntry>],
    pub counters: &'a Counters,
    pub outbox: &'a mut Outbox,
    pub slot: SlotView<'a>,
    /// Loss or timeout told by the queue pair in this call.
    pub signal: Option<Signal>,
    /// Whether completions must wait until the batch has been sent: frames of this turn still point into the
    /// application's memory.
    pub defer: bool,
}

/// The parts of a slot that effects need while its queue pair is borrowed.
#[derive(Clone, Copy)]
pub(crate) struct SlotView<'a> {
    pub async_events: &'a crate::events::EventPipe,
    pub event_cookie: u64,
    pub others: &'a [Holder],
}

impl Effects for Fx<'_> {
    fn complete(&mut self, cq: u32, mut cqe: Cqe, solicited: bool) {
        cqe.timestamp_ns = cqe.timestamp_ns.wrapping_add(self.outbox.clock_base_ns);
        if self.defer {
            self.outbox.completions.push((cq, cqe, solicited));
            return;
        }
        write_completion(self.cqs, self.counters, self.outbox, cq, &cqe, solicited);
    }

    fn event(&mut self, _qpn: Qpn, event: EventType) {
        write_async(self.slot.async_events, event, AsyncObject::Qp, self.slot.event_cookie);
        for other in self.slot.others {
            write_async(&other.async_events, event, AsyncObject::Qp, other.event_cookie);
        }
    }

    fn count(&mut self, reason: Reason) {
        self.counters.count(reason);
    }

    fn ah_flow(&self, pd: u32, ah: u32) -> Option<Flow> {
        let handle = self.ahs.get(ah as usize)?.as_ref()?;
        (handle.pd == pd).then_some(handle.flow)
    }

    fn xrc_srq(&self, domain: u32, srqn: u32) -> Option<&XrcSrq> {
        let entry = self.xrc.get(srqn as usize)?.as_ref()?;
        (entry.srq.domain == domain).then_some(&entry.srq)
    }

    fn congestion(&mut self, signal: Signal) {
        self.signal = Some(signal);
    }
}

/// Writes a completion into its ring, and notes the event it owes.
pub(crate) fn write_completion(
    cqs: &[Option<Arc<CqShared>>],
    counters: &Counters,
    outbox: &mut Outbox,
    cq: u32,
    cqe: &Cqe,
    solicited: bool,
) {
    let Some(shared) = cqs.get(cq as usize).and_then(Option::as_ref) else { return };
    counters.add(Traffic::Completions, 1);
    outbox.delivered = true;
    match shared.producer.push(cqe, solicited) {
        Push::Quiet => {}
        Push::Event => outbox.events.push(cq),
        Push::Overrun => {
            counters.count(Reason::CqOverrun);
            outbox.lose(Qpn::new(cqe.qpn));
            if !shared.overrun_said.swap(true, Ordering::Relaxed) {
                write_async(&shared.async_events, EventType::CqErr, AsyncObject::Cq, shared.cookie);
            }
        }
    }
}
