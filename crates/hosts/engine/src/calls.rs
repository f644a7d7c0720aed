//! Calls to queue pairs: only here a queue pair gets the worker's tables, and its decisions are carried out.
//!
//! [`crate::core::Core::slot_and_tables`] splits the worker's tables into one slot and everything that a call needs besides;
//! [`Tables::call_qp`] makes the call. Completions go into rings, events into their sinks, reasons into counters, and every
//! signal of the call to the congestion controller of the queue pair's path.

use crate::counters::Counters;
use crate::failures::FailureView;
use crate::histograms::Measure;
use crate::objects::{AddressHandle, ContextSlot, EngineCq, OtherHolders, QpHolder, QpSlot, XrcEntry, write_async};
use crate::outbox::{Completions, CqEntry, Outbox};
use crate::paths::hello_times::HelloTimes;
use crate::paths::path::Path;
use crate::paths::signals::Signals;
use crate::probes;
use crate::tally::ReasonTally;
use crate::transmit::sched::ReceivedWork;
use burst_base::reason::Class;
use burst_base::verbs::EventType;
use burst_base::wheel::Wheel;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_control::AsyncObject;
use burst_frame::{Flow, TxBatch};
use burst_mem::MrTable;
use burst_shm::Cqe;
use burst_transport::{AckReport, CopyExecutor, Effects, Env, HostPressure, Qp, QpFailure, RecordPool, Signal, XrcSrq};
use std::sync::Arc;

/// Time between two timers for probes of the standard family, over all queue pairs of a worker: with many queue pairs each waits
/// longer. A timer that fires costs 0.1 us, so they take less than a hundredth of a worker.
const PROBE_SPACING: Nanos = Nanos::from_us(16);

/// Where a call's packets and counts go.
pub(crate) struct Egress<'a> {
    pub batch: &'a mut TxBatch,
    pub counters: &'a Counters,
}

/// The worker's tables without the slots of its queue pairs.
pub(crate) struct Tables<'a> {
    pub now: Nanos,
    pub waited: Nanos,
    pub cqs: &'a [Option<Arc<EngineCq>>],
    pub contexts: &'a [Option<ContextSlot>],
    pub ahs: &'a [Option<AddressHandle>],
    pub xrc: &'a [Option<XrcEntry>],
    pub mem: &'a MrTable,
    pub outbox: &'a mut Outbox,
    pub paths: &'a mut [Path],
    pub wheel: &'a mut Wheel,
    pub hello_times: &'a mut HelloTimes,
    pub records: &'a mut RecordPool,
}

impl Tables<'_> {
    /// Calls the queue pair of a slot.
    #[inline]
    pub fn call_qp<T>(
        self,
        slot: &mut QpSlot,
        egress: Egress<'_>,
        completions: Completions,
        f: impl FnOnce(&mut Qp, &mut Env<'_>) -> T,
    ) -> T {
        let Tables { now, waited, cqs, contexts, ahs, xrc, mem, outbox, paths, hello_times, records, .. } = self;
        let Egress { batch, counters } = egress;
        let QpSlot { qp, holder, other_holders, device, received, tally, .. } = &mut *slot;
        let (signals, first) = (Signals::default(), batch.len());
        let mut fx = QpEffects {
            cqs,
            ahs,
            xrc,
            counters,
            outbox: &mut *outbox,
            holder,
            other_holders,
            device: *device,
            signals,
            completions,
            records,
            received,
            tally,
        };
        let result = f(qp, &mut Env { now, waited, mem, tx: &mut *batch, fx: &mut fx });
        let signals = fx.signals;
        slot.note_sent(now, batch, first);
        slot.end_timed(now, &mut outbox.histograms);
        if signals.is_failed() {
            FailureView { now, contexts, paths: &mut *paths, mem, counters }.note(slot, outbox, hello_times);
        }
        if !signals.is_empty()
            && let Some(path) = paths.get_mut(slot.path as usize)
        {
            // First, because it may say where packets were lost.
            if signals.is_reported() {
                path.on_report(now, &outbox.report);
            }
            if signals.has_events() {
                let is_timeout = slot.times_out_path(now, path, signals.is_unanswered());
                if signals.has_lost_bytes() {
                    slot.lose_bytes(now, path, outbox.unacknowledged);
                }
                if signals.is_failed() {
                    slot.release_inflight(now, path);
                }
                let counts = |signal| signal != Signal::Timeout || is_timeout;
                signals.for_each(|signal| {
                    if signal == Signal::Cnp {
                        probes::cnp(slot.qp.qpn().get(), true);
                    }
                    if counts(signal) {
                        path.on_signal(now, signal)
                    }
                });
                if signals.is_refused() {
                    path.hello.doubted(now);
                    hello_times.note_change(now, slot.path, path);
                }
            }
            if path.conditions.is_new() {
                // The controller follows with the timers of this pass.
                hello_times.note_change(now, slot.path, path);
            }
        }
        result
    }
}

/// Takes the decisions of one queue pair during one call.
struct QpEffects<'a> {
    cqs: &'a [Option<Arc<EngineCq>>],
    ahs: &'a [Option<AddressHandle>],
    xrc: &'a [Option<XrcEntry>],
    counters: &'a Counters,
    outbox: &'a mut Outbox,
    holder: &'a QpHolder,
    other_holders: &'a OtherHolders,
    device: DeviceId,
    signals: Signals,
    completions: Completions,
    records: &'a mut RecordPool,
    received: &'a mut ReceivedWork,
    tally: &'a mut ReasonTally,
}

impl Effects for QpEffects<'_> {
    fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool) {
        let deferred = match self.completions {
            Completions::Visible => false,
            Completions::AfterBatch => true,
            Completions::ReceivesLast => cqe.is_recv != 0,
        };
        let entry = CqEntry { cq, solicited, device: self.device, cqe };
        match deferred {
            true => self.outbox.completions.push(entry),
            false => self.outbox.write(&entry, self.cqs, self.counters),
        }
    }

    fn event(&mut self, _qpn: Qpn, event: EventType) {
        for holder in std::iter::once(self.holder).chain(self.other_holders.iter()) {
            write_async(&*holder.async_events, event, AsyncObject::Qp, holder.event_cookie);
        }
    }

    #[cold]
    fn failed(&mut self, failure: QpFailure) {
        // The first failure of a call is the cause of the others.
        if !self.signals.is_failed() {
            self.outbox.failure = Some(failure);
            self.signals.fail();
        }
    }

    fn count(&mut self, reason: Reason) {
        if matches!(reason.class(), Class::Drop | Class::Nak) {
            self.received.refuse_last();
        }
        self.tally.count(reason);
        self.counters.count_of(reason, self.holder.qpn);
    }

    fn round_trip(&mut self, elapsed: Nanos) {
        self.outbox.histograms.add(Measure::RoundTrip, elapsed.0);
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
        self.signals.add(signal);
    }

    fn acknowledged(&mut self, report: &AckReport) {
        if self.signals.is_reported() {
            return self.outbox.report.add(report);
        }
        self.outbox.report = *report;
        self.signals.report();
    }

    #[cold]
    fn unacknowledged(&mut self, bytes: i64) {
        let before = if self.signals.has_lost_bytes() { self.outbox.unacknowledged } else { 0 };
        self.outbox.unacknowledged = before + bytes;
        self.signals.lose_bytes();
    }

    fn host_pressure(&self) -> HostPressure {
        self.counters.host_pressure()
    }

    fn probe_wait_min(&self) -> Nanos {
        Nanos(PROBE_SPACING.0 * u64::from(self.outbox.timers))
    }

    fn records(&mut self) -> Option<&mut RecordPool> {
        Some(self.records)
    }

    #[cold]
    fn copies(&mut self) -> Option<&mut dyn CopyExecutor> {
        self.outbox.copiers.for_call(self.holder.context, self.holder.qpn)
    }

    fn selective_refused(&mut self) {
        self.signals.refuse();
    }
}
