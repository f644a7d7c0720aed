//! What a worker writes at the end of a turn, burst or pass: completions, completion events, and events that had no room.

use crate::copiers::Copiers;
use crate::counters::{Counters, Traffic};
use crate::histograms::WorkHistograms;
use crate::objects::{ContextSlot, EngineCq, write_async};
use crate::port_slot::PortSlot;
use crate::probes;
use crate::ring::PacketExcerpts;
use burst_base::verbs::EventType;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_control::AsyncObject;
use burst_control::events::EventSink;
use burst_control::failures::{FailureRecord, RECORDS};
use burst_ledger::AccountRing;
use burst_shm::Cqe;
use burst_shm::cq::Push;
use burst_transport::{AckReport, QpFailure};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Queue pairs noted in one pass for a lost completion. A further one is noted when it loses its next completion.
const LOST_MAX: usize = 1024;

/// Time between two attempts to write events for which a program has not made room.
const EVENTS_PAUSE: Nanos = Nanos::from_ms(1);

/// When the completions of a call become visible to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completions {
    /// At once.
    Visible,
    /// After the batch has been sent: frames of this turn still point into the application's memory.
    AfterBatch,
    /// Send completions at once, receive completions at the end of the receive burst.
    ///
    /// A peer that answers a message sends its ACK behind the answer in one train (`transport::Qp::poll_tx`). The program must
    /// see its request completed before it sees the answer: programs free or reuse the request's buffer when the answer comes.
    ReceivesLast,
}

/// A completion of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqEntry {
    /// Number of the completion queue.
    pub cq: u32,
    pub solicited: bool,
    /// Device of the queue pair, for its counters.
    pub device: DeviceId,
    pub cqe: Cqe,
}

/// Output that is written at the end of a turn, burst or pass.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Completion queues whose programs must get an event.
    pub events: Vec<u32>,
    /// Completions that must not be visible before the batch has left, or before the receive burst has ended.
    pub completions: Vec<CqEntry>,
    /// Queue pairs that lost a completion because a completion queue was full.
    pub lost: Vec<Qpn>,
    /// Completion channels that had no room for an event.
    pub full: Vec<Weak<dyn EventSink>>,
    /// When events that had no room are tried again, and packets of failed queue pairs are copied; never, if there are none.
    pub retry_at: Nanos,
    /// Whether completions were written since [`crate::Worker::has_delivered`] was last called.
    pub delivered: bool,
    /// What acknowledgements have said of the path during a call to a queue pair.
    pub report: AckReport,
    /// Bytes in flight that left it in this call without an acknowledgement ([`burst_transport::Effects::unacknowledged`]).
    pub unacknowledged: i64,
    /// Timers of queue pairs that were set when the last one fired.
    pub timers: u32,
    /// What a queue pair has said of its failure during a call.
    pub failure: Option<QpFailure>,
    /// Records of failures.
    pub failures: AccountRing<FailureRecord>,
    /// Packets of queue pairs that have failed, if the worker keeps its last packets.
    pub excerpts: Option<Box<PacketExcerpts>>,
    /// What took how long.
    pub histograms: Box<WorkHistograms>,
    /// Programs that copy for the worker.
    pub copiers: Copiers,
}

impl Outbox {
    /// An outbox whose lists have room for `room` entries.
    pub fn new(room: usize) -> Outbox {
        Outbox {
            events: Vec::with_capacity(room),
            completions: Vec::with_capacity(room),
            lost: Vec::with_capacity(room.min(LOST_MAX)),
            full: Vec::new(),
            retry_at: Nanos::NEVER,
            delivered: false,
            report: AckReport::default(),
            unacknowledged: 0,
            timers: 0,
            failure: None,
            failures: AccountRing::new(RECORDS),
            excerpts: None,
            histograms: Box::default(),
            copiers: Copiers::default(),
        }
    }

    /// Notes that a queue pair lost a completion.
    fn note_lost_completion(&mut self, qpn: Qpn) {
        if self.lost.len() < LOST_MAX && self.lost.last() != Some(&qpn) {
            self.lost.push(qpn);
        }
    }

    /// Makes the completions visible that waited for the end of a batch or burst.
    #[inline]
    pub fn show_completions(&mut self, cqs: &[Option<Arc<EngineCq>>], ports: &[PortSlot]) {
        if !self.completions.is_empty() {
            self.write_deferred(cqs, ports);
        }
    }

    fn write_deferred(&mut self, cqs: &[Option<Arc<EngineCq>>], ports: &[PortSlot]) {
        // Taken out, because writing needs the outbox, too. It adds no completions.
        let mut completions = std::mem::take(&mut self.completions);
        completions.iter().for_each(|entry| self.write(entry, cqs, &ports[entry.device.index()].counters));
        completions.clear();
        debug_assert!(self.completions.is_empty(), "writing a completion has deferred another one");
        self.completions = completions;
    }

    /// Writes a completion into its ring, and notes the completion event that must follow.
    pub fn write(&mut self, entry: &CqEntry, cqs: &[Option<Arc<EngineCq>>], counters: &Counters) {
        let Some(shared) = cqs.get(entry.cq as usize).and_then(Option::as_ref) else { return };
        counters.add(Traffic::Completions, 1);
        probes::completion(entry.cq, &entry.cqe);
        self.delivered = true;
        match shared.producer.push(&entry.cqe, entry.solicited) {
            Push::Quiet => {}
            Push::Event => self.events.push(entry.cq),
            Push::Overrun => {
                counters.count(Reason::CqOverrun);
                self.note_lost_completion(Qpn::new(entry.cqe.qpn));
                if !shared.overrun_reported.swap(true, Ordering::Relaxed) {
                    write_async(&*shared.async_events, EventType::CqErr, AsyncObject::Cq, shared.cookie);
                }
            }
        }
    }

    /// Drops the events of a completion queue that ends: the next one with this number would get them.
    pub fn forget_cq(&mut self, cq: u32) {
        debug_assert!(self.completions.is_empty(), "completions wait between two passes");
        self.events.retain(|of| *of != cq);
    }

    /// Writes the events of this pass. A full sink keeps its records, and `retry_events` tries them again.
    #[inline(always)]
    pub fn publish(
        &mut self,
        now: Nanos,
        cqs: &[Option<Arc<EngineCq>>],
        contexts: &[Option<ContextSlot>],
        counters: &Counters,
    ) -> bool {
        debug_assert!(self.completions.is_empty(), "completions wait at the end of a pass");
        self.retry_events(now, contexts);
        let any = !self.events.is_empty();
        for cq in self.events.drain(..) {
            let Some(shared) = cqs.get(cq as usize).and_then(Option::as_ref) else { continue };
            let Some(channel) = &shared.channel else { continue };
            if channel.write(&shared.cookie.to_ne_bytes()).is_ok() {
                counters.add(Traffic::Events, 1);
            }
            if channel.has_backlog()
                && !self.full.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(channel)))
            {
                self.full.push(Arc::downgrade(channel));
            }
        }
        // Events wait for some program to make room.
        if self.retry_at == Nanos::NEVER
            && (!self.full.is_empty() || contexts.iter().flatten().any(|c| c.async_events.has_backlog()))
        {
            self.retry_at = now + EVENTS_PAUSE;
        }
        any
    }

    /// Writes events that had no room, as far as their programs have read; at most once per `EVENTS_PAUSE`. Copies the packets of
    /// queue pairs that have failed.
    fn retry_events(&mut self, now: Nanos, contexts: &[Option<ContextSlot>]) {
        if now < self.retry_at {
            return;
        }
        self.retry_at = Nanos::NEVER;
        if let Some(excerpts) = &mut self.excerpts {
            excerpts.take_due(now);
        }
        for context in contexts.iter().flatten().filter(|c| c.async_events.has_backlog()) {
            context.async_events.retry();
        }
        // A channel that was destroyed has no backlog.
        self.full.retain(|channel| {
            channel.upgrade().is_some_and(|channel| {
                channel.retry();
                channel.has_backlog()
            })
        });
    }
}
