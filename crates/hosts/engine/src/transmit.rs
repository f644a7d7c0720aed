//! Transmit: turns in fair order, each limited in work requests, bytes and window; then one burst per port.

use crate::counters::Traffic;
use crate::effects::{Fx, SlotView, write_completion};
use crate::objects::{NO_PATH, is_ready};
use crate::sched::NO_TICKET;
use crate::worker::{Core, PortSlot, Worker};
use burst_base::verbs::QpType;
use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use burst_transport::{Env, Signal, TxBudget, TxState};

/// Work requests in one turn.
const TURN_WQES: u32 = 64;
/// Bytes in one turn: about one GSO send of the largest path MTU.
const TURN_BYTES: u64 = 64 << 10;
/// Time between two questions whether a next hop has answered.
const SEEKING_PAUSE: Nanos = Nanos::from_us(200);
/// Turns before the worker looks at its ports again.
const TURNS_PER_PASS: usize = 4;
/// Ready queue pairs served in one pass at most, when their turns are short.
const SHORT_TURNS_PER_PASS: usize = 64;

impl Worker {
    /// Gives turns to ready queue pairs and sends what they made.
    pub(crate) fn transmit(&mut self, now: Nanos) -> bool {
        let mut bytes_left = TURN_BYTES as usize * TURNS_PER_PASS;
        let mut any = false;
        for _ in 0..SHORT_TURNS_PER_PASS {
            let Core { sched, qps, .. } = &mut self.core;
            let Some(index) = sched.take_turn(|place| is_ready(qps, place)) else { break };
            any = true;
            let used = self.turn(now, index);
            bytes_left = bytes_left.saturating_sub(used);
            if bytes_left == 0 {
                break;
            }
        }
        self.flush_all(now);
        any
    }

    /// Sends every port's batch, then shows the completions that waited for it.
    pub(crate) fn flush_all(&mut self, now: Nanos) {
        for slot in &mut self.ports {
            slot.flush(now);
        }
        let Core { outbox, cqs, .. } = &mut self.core;
        let mut completions = std::mem::take(&mut outbox.completions);
        for (cq, cqe, solicited) in completions.drain(..) {
            write_completion(cqs, &self.ports[0].counters, outbox, cq, &cqe, solicited);
        }
        outbox.completions = completions;
    }

    /// One queue pair's turn. Returns payload bytes it may have used.
    fn turn(&mut self, now: Nanos, index: u32) -> usize {
        let Some(port) = self.core.qps.get(index as usize).and_then(Option::as_ref).map(|s| s.device.index()) else {
            return 0;
        };
        let port = &mut self.ports[port];
        let Core { qps, cqs, ahs, xrc, mem, outbox, paths, wheel, .. } = &mut self.core;
        let Some(slot) = qps[index as usize].as_mut() else { return 0 };
        slot.ticket = NO_TICKET;
        let (mut bytes, mut window_bytes) = (TURN_BYTES, TURN_BYTES);
        if let Some(path) = paths.get_mut(slot.path as usize) {
            window_bytes = path.room(slot.qp.inflight_bytes());
            if slot.sends_unacknowledged() {
                bytes = bytes.min(path.may_send(now, || port.is_resolving(now, slot.qp.flow())));
            }
        }
        if bytes == 0 {
            slot.wake_by(wheel, now + SEEKING_PAUSE);
            return 0;
        }
        let PortSlot { batch, counters, .. } = port;
        let mut budget = TxBudget { wqes: TURN_WQES, bytes, window_bytes };
        let view = SlotView { async_events: &slot.async_events, event_cookie: slot.event_cookie, others: &slot.others };
        let mut fx = Fx { cqs, ahs, xrc, counters, outbox, slot: view, signal: None, defer: true };
        let state = slot.qp.poll_tx(&mut budget, &mut Env { now, mem, tx: batch, fx: &mut fx });
        let signal = fx.signal;
        let full = !batch.has_room();
        let path = slot.path;
        let used = bytes - budget.bytes.min(bytes);
        if slot.qp.qp_type() == QpType::Uc
            && let Some(path) = paths.get_mut(path as usize)
        {
            path.sent(used, TURN_WQES - budget.wqes);
        }
        self.after_turn(now, index, path, state, signal);
        if full {
            self.flush_all(now);
        }
        used as usize
    }

    fn after_turn(&mut self, now: Nanos, index: u32, path: u32, state: TxState, signal: Option<Signal>) {
        if path != NO_PATH {
            let p = &mut self.core.paths[path as usize];
            if let Some(signal) = signal {
                p.on_signal(now, signal);
            }
            if state == TxState::Window
                && let Some(slot) = self.core.qps[index as usize].as_mut()
                && !slot.waiting
            {
                slot.waiting = true;
                p.waiting.push_back(index);
            }
        }
        if state == TxState::More {
            self.core.make_ready(index);
        }
        self.core.settle(now, index);
    }

    /// Fires due timers.
    pub(crate) fn run_timers(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(index) = self.core.wheel.pop_due(now) {
            any |= self.fire(now, index);
        }
        any
    }

    /// A timer went off: the deadline may have moved on since it was set.
    fn fire(&mut self, now: Nanos, index: u32) -> bool {
        let Core { qps, cqs, ahs, xrc, mem, outbox, paths, .. } = &mut self.core;
        let Some(slot) = qps.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        slot.armed = Nanos::NEVER;
        let due = slot.qp.next_deadline() <= now;
        if due {
            let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
            let view =
                SlotView { async_events: &slot.async_events, event_cookie: slot.event_cookie, others: &slot.others };
            let mut fx = Fx { cqs, ahs, xrc, counters, outbox, slot: view, signal: None, defer: false };
            slot.qp.on_timer(&mut Env { now, mem, tx: batch, fx: &mut fx });
            if let Some(signal) = fx.signal
                && slot.path != NO_PATH
            {
                paths[slot.path as usize].on_signal(now, signal);
            }
        }
        self.core.settle(now, index);
        due
    }
}

impl PortSlot {
    /// Whether the port still asks for the next hop of a flow; what has been made for it leaves first, so that it asks.
    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        self.flush(now);
        self.port.is_resolving(now, flow)
    }
    /// Sends the batch.
    pub(crate) fn flush(&mut self, now: Nanos) {
        if self.batch.is_empty() {
            return;
        }
        let PortSlot { port, batch, counters } = self;
        let bytes: usize = batch.frames().iter().map(|f| f.udp_payload_len()).sum();
        counters.add(Traffic::TxPackets, batch.len() as u64);
        counters.add(Traffic::TxBytes, bytes as u64);
        batch.fetch_remote();
        port.tx_burst(now, batch, &mut |reason: Reason| counters.count(reason));
        batch.clear();
    }
}
