//! Transmit: turns in fair order, each limited in work requests, bytes and window; then one burst per port.

use crate::calls::{Completions, Egress};
use crate::counters::Traffic;
use crate::objects::{NO_PATH, is_ready};
use crate::sched::NO_TICKET;
use crate::worker::{Core, DataPath, PortSlot, Worker};
use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use burst_transport::{TxBudget, TxState};

/// Work requests in one turn.
const TURN_WQES: u32 = 64;
/// Bytes in one turn: about one GSO send of the largest path MTU.
const TURN_BYTES: u64 = 64 << 10;
/// Time between two questions to a port whether a next hop is resolved.
const RESOLVING_PAUSE: Nanos = Nanos::from_us(200);
/// Full turns before the worker looks at its ports again.
const TURNS_PER_PASS: u64 = 4;
/// Ready queue pairs served in one pass at most, when their turns are short.
const SHORT_TURNS_PER_PASS: usize = 64;

impl Worker {
    /// Gives turns to ready queue pairs and sends their packets.
    pub(crate) fn transmit(&mut self, now: Nanos) -> bool {
        let mut bytes_left = TURN_BYTES * TURNS_PER_PASS;
        let mut any = false;
        for _ in 0..SHORT_TURNS_PER_PASS {
            let Core { sched, qps, .. } = &mut self.core;
            let Some(index) = sched.take_turn(|place| is_ready(qps, place)) else { break };
            any = true;
            self.core.pulse.serve_qp(self.core.qps[index as usize].as_ref().map_or(0, |slot| slot.qpn.get()));
            let (requests, used) = self.turn(now, index);
            self.core.sched.charge(requests, used);
            bytes_left = bytes_left.saturating_sub(used);
            if bytes_left == 0 {
                break;
            }
        }
        self.flush_all(now);
        any
    }

    /// Sends the batch of every port, then makes the completions visible that waited for it.
    #[inline]
    pub(crate) fn flush_all(&mut self, now: Nanos) {
        self.data_path().flush_all(now);
    }

    /// One queue pair's turn. Returns how many work requests it has begun or continued, and payload bytes that it may have used.
    fn turn(&mut self, now: Nanos, index: u32) -> (u32, u64) {
        let (Some(slot), tables) = self.core.slot_and_tables(now, index) else { return (0, 0) };
        let port = &mut self.ports[slot.device.index()];
        debug_assert_ne!(slot.ticket, NO_TICKET, "a turn without a place in the ready queue");
        slot.ticket = NO_TICKET;
        let (mut bytes, mut window_bytes) = (TURN_BYTES, TURN_BYTES);
        if let Some(path) = tables.paths.get_mut(slot.path as usize) {
            window_bytes = path.room(slot.endpoint.inflight_bytes());
            if slot.endpoint.sends_unacknowledged() {
                bytes = bytes.min(path.may_send(now, || port.is_resolving(now, slot.endpoint.qp().flow())));
            }
        }
        if bytes == 0 {
            slot.wake_by(tables.wheel, now + RESOLVING_PAUSE);
            return (0, 0);
        }
        let mut budget = TxBudget { wqes: TURN_WQES, bytes, window_bytes };
        let egress = Egress { batch: &mut port.batch, counters: &port.counters };
        let state = tables.call_qp(slot, egress, Completions::AfterBatch, |qp, env| qp.poll_tx(&mut budget, env));
        let full = !port.batch.has_room();
        let (path, unacknowledged) = (slot.path, slot.endpoint.is_unacknowledged());
        let (requests, used) = (TURN_WQES - budget.wqes, bytes - budget.bytes.min(bytes));
        if unacknowledged && let Some(path) = self.core.paths.get_mut(path as usize) {
            path.sent(used, requests);
        }
        self.core.after_turn(now, index, path, state);
        if full {
            self.flush_all(now);
        }
        (requests, used)
    }

    /// Fires due timers.
    pub(crate) fn run_timers(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(index) = self.core.wheel.pop_due(now) {
            any |= self.fire(now, index);
        }
        any
    }

    /// A timer of the wheel is due. The queue pair's deadline may be later than when the timer was set.
    fn fire(&mut self, now: Nanos, index: u32) -> bool {
        let (Some(slot), tables) = self.core.slot_and_tables(now, index) else { return false };
        slot.armed = Nanos::NEVER;
        let due = slot.endpoint.next_deadline() <= now;
        if due {
            let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
            let egress = Egress { batch, counters };
            tables.call_qp(slot, egress, Completions::Visible, |qp, env| qp.on_timer(env));
        }
        self.core.settle(now, index);
        due
    }
}

impl Core {
    /// Queues a queue pair again, or lets it wait for the window of its path.
    #[inline]
    fn after_turn(&mut self, now: Nanos, index: u32, path: u32, state: TxState) {
        if state == TxState::Window
            && path != NO_PATH
            && let Some(slot) = self.qps[index as usize].as_mut()
            && !slot.waiting
        {
            slot.waiting = true;
            self.paths[path as usize].waiting.push_back(index);
        }
        if state == TxState::More {
            self.make_ready(index);
        }
        self.settle(now, index);
    }
}

impl DataPath<'_> {
    /// Sends the batch of every port, then makes the completions visible that waited for it.
    pub(crate) fn flush_all(&mut self, now: Nanos) {
        for slot in self.ports.iter_mut() {
            slot.flush(now);
        }
        self.core.show_completions(self.ports);
    }
}

impl PortSlot {
    /// Whether the port is still resolving the next hop of a flow. The batch leaves first, so that the port begins to resolve.
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
        for _ in 0..batch.fetch_remote() {
            counters.count(Reason::PageLate);
        }
        port.tx_burst(now, batch, &mut |reason: Reason| counters.count(reason));
        batch.clear();
        debug_assert!(batch.is_empty());
    }
}
