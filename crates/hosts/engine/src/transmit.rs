//! Transmit: turns in fair order, each limited in work requests, bytes and window; then one burst per port.

use crate::calls::{Completions, Egress};
use crate::core::Core;
use crate::objects::{NO_PATH, is_ready, waits_for};
use crate::paths::NOT_WAITING;
use crate::port_slot::PortSlot;
use crate::sched::{NO_TICKET, ReadyPlace, URMA_ENTRY};
use crate::worker::Worker;
use burst_base::Nanos;
use burst_transport::{TxBudget, TxState};
use std::cell::Cell;

/// Work requests in one turn.
const TURN_WQES: u32 = 64;
/// Bytes in one turn: about one GSO send of the largest path MTU.
const TURN_BYTES: u64 = 64 << 10;
/// Time between two questions to a port whether a next hop is resolved.
const RESOLVING_PAUSE: Nanos = Nanos::from_us(200);
/// Time between two queue pairs of a line that are made ready by an open gate, if the first did not close it.
const GATE_PAUSE: Nanos = Nanos::from_us(10);
/// Ready queue pairs served in one pass at most, when their turns are short.
const SHORT_TURNS_PER_PASS: usize = 64;

impl Worker {
    /// Gives turns to ready queue pairs and sends their packets.
    pub(crate) fn transmit(&mut self, now: Nanos) -> bool {
        let mut bytes_left = self.core.options.pass_bytes;
        let mut any = false;
        if !self.core.urma_rung.is_empty() {
            match &mut self.urma {
                Some(urma) => urma.admit(&mut self.core.urma_rung, &mut self.core.sched),
                None => self.core.urma_rung.clear(),
            }
        }
        for _ in 0..SHORT_TURNS_PER_PASS {
            let Core { sched, qps, .. } = &mut self.core;
            let (urma, ticket) = (&self.urma, Cell::new(NO_TICKET));
            let is_ready = |place: ReadyPlace| match place.qp {
                URMA_ENTRY => {
                    ticket.set(place.ticket);
                    urma.as_ref().is_some_and(|slot| slot.has_ticket(place.ticket))
                }
                _ => is_ready(qps, place),
            };
            let Some(index) = sched.take_turn(is_ready) else { break };
            any = true;
            if self.core.has_many() {
                self.core.prefetch_turn();
            }
            // Without queue pairs the table is empty, and has not even the endpoint's entry.
            let served = self.core.qps.get(index as usize).and_then(Option::as_ref);
            self.core.pulse.serve_qp(served.map_or(0, |slot| slot.endpoint.qp().qpn().get()));
            let (requests, charged, sent) = match index {
                URMA_ENTRY => {
                    let turn = self.urma.as_mut().map(|urma| urma.turn(ticket.get(), &mut self.core.urma_shared(now)));
                    turn.map_or((0, 0, 0), |turn| (turn.requests, turn.charged, turn.sent))
                }
                index => {
                    let (requests, used) = self.turn(now, index);
                    (requests, used, used)
                }
            };
            self.core.sched.charge(requests, charged);
            bytes_left = bytes_left.saturating_sub(sent);
            if bytes_left == 0 {
                break;
            }
        }
        self.flush_all(now);
        if let Some(urma) = &mut self.urma {
            urma.flush(now);
        }
        any
    }

    /// Sends the batch of every port, then makes the completions visible that waited for it.
    #[inline]
    pub(crate) fn flush_all(&mut self, now: Nanos) {
        self.data_path().flush_all(now);
    }

    /// One queue pair's turn. Returns how many work requests it has begun or continued, and payload bytes that it may have used.
    fn turn(&mut self, now: Nanos, index: u32) -> (u32, u64) {
        let turn_most = TURN_BYTES.min(self.core.options.pass_bytes);
        let (Some(slot), tables) = self.core.slot_and_tables(now, index) else { return (0, 0) };
        let port = &mut self.ports[slot.device.index()];
        debug_assert_ne!(slot.ticket, NO_TICKET, "a turn without a place in the ready queue");
        slot.ticket = NO_TICKET;
        let (mut bytes, mut window_bytes, mut tuned) = (turn_most, TURN_BYTES, false);
        if let Some(path) = tables.paths.get_mut(slot.path as usize) {
            path.begin_turn(now);
            window_bytes = path.room(slot.endpoint.request_bytes());
            if slot.endpoint.qp().wants_response_room() {
                let room = path.response_room(slot.endpoint.response_bytes());
                slot.endpoint.qp_mut().allow_responses(room);
            }
            let Some(burst) = path.burst(now) else { return self.wait_for_rate(now, index) };
            bytes = bytes.min(burst);
            tuned = path.is_measured();
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
        let (first, before) = (egress.batch.frames().len(), if tuned { slot.endpoint.inflight_bytes() } else { 0 });
        let state = tables.call_qp(slot, egress, Completions::AfterBatch, |qp, env| qp.poll_tx(&mut budget, env));
        let full = !port.batch.has_room();
        let (path, unacknowledged) = (slot.path, slot.endpoint.is_unacknowledged());
        if tuned {
            let after = slot.endpoint.inflight_bytes();
            self.core.paths[path as usize].left(now, index, &port.batch.frames()[first..], (before, after));
        }
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

    /// A turn while the path's rate allows nothing: acknowledgements leave, requests of a failed queue pair are flushed, and
    /// any other queue pair waits in the path's line.
    #[cold]
    #[inline(never)]
    fn wait_for_rate(&mut self, now: Nanos, index: u32) -> (u32, u64) {
        let (Some(slot), tables) = self.core.slot_and_tables(now, index) else { return (0, 0) };
        let path = slot.path;
        let flushes = slot.endpoint.is_in_error();
        if flushes || slot.endpoint.owes_acknowledgement() {
            let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
            let mut budget = TxBudget { wqes: TURN_WQES, bytes: 0, window_bytes: TURN_BYTES };
            let egress = Egress { batch, counters };
            tables.call_qp(slot, egress, Completions::AfterBatch, |qp, env| qp.poll_tx(&mut budget, env));
            if flushes {
                self.core.settle(now, index);
                return (0, 0);
            }
        }
        let Core { qps, wheel, paths, pacing, .. } = &mut self.core;
        let (Some(slot), Some(path_slot)) = (qps[index as usize].as_mut(), paths.get_mut(path as usize)) else {
            return (0, 0);
        };
        slot.wake_by(wheel, slot.endpoint.next_deadline());
        if slot.waiting == NOT_WAITING {
            slot.waiting = path_slot.waiting.push(index);
        }
        path_slot.gate_turns = path_slot.waiting.len();
        if let Some(gate) = path_slot.gate() {
            pacing.arm(path, gate, gate.opens_at());
        }
        (0, 0)
    }

    /// Opens the gates that are due: each makes the first queue pair of its line ready, whether or not the window has room for
    /// its requests, because it may have READ responses to send, and after a pause the next of those that waited for it.
    #[cold]
    #[inline(never)]
    fn open_gates(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some((at, index)) = self.core.pacing.pop_due(now) {
            let Core { paths, pacing, qps, .. } = &mut self.core;
            let Some(path) = paths.get_mut(index as usize) else { continue };
            if !path.gate().is_some_and(|gate| gate.take_entry(at)) {
                continue;
            }
            let Some(first) = path.waiting.first(|place| waits_for(qps, index, place)) else { continue };
            path.waiting.pop();
            any = true;
            if let Some(slot) = qps.get_mut(first as usize).and_then(Option::as_mut) {
                slot.waiting = NOT_WAITING;
            }
            if path.take_gate_turn()
                && let Some(gate) = path.gate()
            {
                pacing.arm(index, gate, gate.opens_at().max(now + GATE_PAUSE));
            }
            self.core.make_ready(first);
        }
        any
    }

    /// Fires due timers.
    pub(crate) fn run_timers(&mut self, now: Nanos) -> bool {
        let mut any = self.core.pacing.next_deadline() <= now && self.open_gates(now);
        any |= self.core.outbox.hello_due <= now && self.run_hellos(now);
        let mut is_urma_due = false;
        while let Some(index) = self.core.wheel.pop_due(now) {
            if index == URMA_ENTRY {
                is_urma_due = true;
            } else {
                any |= self.fire(now, index);
            }
        }
        // Once in a pass: URMA does a part of what is due, and is due again at once.
        if is_urma_due && let Some(urma) = &mut self.urma {
            any |= urma.run_timers(&mut self.core.urma_shared(now));
        }
        any
    }

    /// A timer of the wheel is due. The queue pair's deadline may be later than when the timer was set.
    fn fire(&mut self, now: Nanos, index: u32) -> bool {
        self.core.outbox.timers = self.core.wheel.len();
        let (Some(slot), tables) = self.core.slot_and_tables(now, index) else { return false };
        slot.armed = Nanos::NEVER;
        let due = slot.endpoint.next_deadline() <= now;
        if due {
            let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
            let egress = Egress { batch, counters };
            tables.call_qp(slot, egress, Completions::Visible, |qp, env| qp.on_timer(env));
        } else {
            slot.endpoint.timer_passed();
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
            && slot.waiting == NOT_WAITING
        {
            slot.waiting = self.paths[path as usize].waiting.push(index);
        }
        if state == TxState::More {
            self.make_ready(index);
        }
        self.settle(now, index);
    }
}
