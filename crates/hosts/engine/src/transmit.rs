//! Transmit: turns in fair order, each limited in work requests, bytes and window; then one burst per port.

use crate::calls::Egress;
use crate::core::Core;
use crate::data_path::DataPath;
use crate::histograms::Measure;
use crate::objects::{NO_PATH, answers_by, is_ready, slot_at};
use crate::outbox::Completions;
use crate::paths::NOT_WAITING;
use crate::paths::path::NO_QP;
use crate::port_slot::PortSlot;
use crate::probes;
use crate::transmit::sched::{NO_TICKET, ReadyPlace, URMA_ENTRY};
use crate::urma::{UrmaEndpoints, UrmaTurn};
use burst_base::Nanos;
use burst_transport::{Qp, TxBudget, TxState};
use std::cell::Cell;

pub(crate) mod doorbells;
pub(crate) mod priority;
pub mod sched;

/// Work requests in one turn.
const TURN_WQES: u32 = 64;

/// Bytes in one turn: about one GSO send of the largest path MTU.
const TURN_BYTES: u64 = 64 << 10;

/// Time between two questions to a port whether a next hop is resolved.
const RESOLVING_PAUSE: Nanos = Nanos::from_us(200);

/// Ready queue pairs served in one pass at most, when their turns are short.
const SHORT_TURNS_PER_PASS: usize = 64;
/// Turns between the request for the lines that a queue pair points to and its turn.
const TURNS_AHEAD: usize = 2;

/// The turns of one pass.
pub(crate) struct TransmitPass<'a> {
    pub now: Nanos,
    pub data_path: DataPath<'a>,
    pub urma: Option<&'a mut UrmaEndpoints>,
}

impl TransmitPass<'_> {
    /// Gives turns to ready queue pairs and sends their packets. Returns whether there was a turn.
    #[inline]
    pub fn run(mut self) -> bool {
        let mut bytes_left = self.data_path.core.options.pass_bytes;
        let mut any = false;
        self.admit_programs();
        for _ in 0..SHORT_TURNS_PER_PASS {
            let Some((index, ticket)) = self.next_turn() else { break };
            any = true;
            if self.data_path.core.has_many() {
                prefetch_turn(self.data_path.core);
            }
            let core = &mut *self.data_path.core;
            let is_measured = core.outbox.histograms.samples_turn();
            if let Some(since) = core.sched.end_timed(ticket) {
                core.outbox.histograms.add(Measure::Queueing, since.until(self.now));
            }
            // Without queue pairs the table is empty, and has not even the endpoint's entry.
            let qpn = slot_at(&core.qps, index).map_or(0, |slot| slot.qp.qpn().get());
            core.pulse.serve_qp(qpn);
            let (requests, charged, sent) = match index {
                URMA_ENTRY => {
                    let turn = self.urma.as_mut().map(|urma| urma.turn(ticket, &mut core.urma_shared(self.now)));
                    let UrmaTurn { requests, charged, sent } = turn.unwrap_or_default();
                    (requests, charged, sent)
                }
                index => {
                    let (requests, used) = self.turn(index, is_measured);
                    (requests, used, used)
                }
            };
            probes::turn(qpn, requests, sent);
            self.data_path.core.sched.charge(requests, charged);
            bytes_left = bytes_left.saturating_sub(sent);
            if bytes_left == 0 {
                break;
            }
        }
        self.data_path.reborrow().flush_all(self.now);
        if let Some(urma) = &mut self.urma {
            urma.flush(self.now);
        }
        any
    }

    /// Gives turns to the programs of URMA whose doorbells have rung.
    #[inline(always)]
    fn admit_programs(&mut self) {
        if !self.data_path.core.channel_wakes.opened.is_empty() {
            self.resume_channels();
        }
        let Core { urma_rung, sched, .. } = &mut *self.data_path.core;
        match &mut self.urma {
            _ if urma_rung.is_empty() => {}
            Some(urma) => urma.admit(urma_rung, sched),
            None => urma_rung.clear(),
        }
    }

    /// Gives turns to the channels of URMA that have waited for their paths.
    #[cold]
    fn resume_channels(&mut self) {
        match &mut self.urma {
            Some(urma) => urma.resume(&mut self.data_path.core.urma_shared(self.now)),
            None => self.data_path.core.channel_wakes.opened.clear(),
        }
    }

    /// Whose turn is next: its entry, and the ticket of its place.
    #[inline(always)]
    fn next_turn(&mut self) -> Option<(u32, u32)> {
        let Core { sched, qps, .. } = &mut *self.data_path.core;
        let (urma, ticket) = (&self.urma, Cell::new(NO_TICKET));
        let is_ready = |place: ReadyPlace| {
            ticket.set(place.ticket);
            match place.qp {
                URMA_ENTRY => urma.as_ref().is_some_and(|slot| slot.has_ticket(place.ticket)),
                _ => is_ready(qps, place),
            }
        };
        sched.take_turn(is_ready).map(|index| (index, ticket.get()))
    }

    /// The same pass for a call that is not inlined: this one stays in registers.
    fn cold_turn(&mut self) -> TransmitPass<'_> {
        TransmitPass { now: self.now, data_path: self.data_path.reborrow(), urma: None }
    }

    /// One queue pair's turn. Returns how many work requests it has begun or continued, and payload bytes that it may have used.
    #[inline(always)]
    fn turn(&mut self, index: u32, is_measured: bool) -> (u32, u64) {
        let now = self.now;
        let turn_most = TURN_BYTES.min(self.data_path.core.options.pass_bytes);
        let (Some(slot), tables) = self.data_path.core.slot_and_tables(now, index) else { return (0, 0) };
        let port = &mut self.data_path.ports[slot.device.index()];
        debug_assert_ne!(slot.ticket, NO_TICKET, "a turn without a place in the ready queue");
        slot.ticket = NO_TICKET;
        let begun = slot.qp.begun_requests();
        let (mut bytes, mut window_bytes, mut tuned) = (turn_most, TURN_BYTES, false);
        if let Some(path) = tables.paths.get_mut(slot.path as usize) {
            path.begin_turn(now);
            window_bytes = path.turn_room(index, slot.qp.request_bytes(), slot.waiting != NOT_WAITING);
            if slot.qp.wants_response_room() {
                let room = path.response_room(slot.qp.response_bytes());
                slot.qp.allow_responses(room);
            }
            let Some(burst) = path.burst(now) else { return self.cold_turn().wait_for_rate(index) };
            bytes = bytes.min(burst);
            tuned = path.is_measured();
            if slot.sends_unacknowledged() {
                let is_awaited = path.hello.is_first_awaited(now);
                bytes = bytes.min(path.may_send(now, || is_awaited || port.is_resolving(now, slot.qp.flow())));
            }
        }
        if bytes == 0 {
            slot.wake_by(tables.wheel, now + RESOLVING_PAUSE);
            self.data_path.core.end_line_turn(index, 0);
            return (0, 0);
        }
        debug_assert!(bytes <= turn_most, "a turn is too long");
        let mut budget = TxBudget { wqes: TURN_WQES, bytes, window_bytes };
        let egress = Egress { batch: &mut port.batch, counters: &port.counters };
        let in_flight = |qp: &Qp| (qp.sent_psn(), qp.inflight_bytes());
        let (first, before) = (egress.batch.len(), tuned.then(|| in_flight(&slot.qp)));
        let state = tables.call_qp(slot, egress, Completions::AfterBatch, |qp, env| qp.poll_tx(&mut budget, env));
        let (full, packets) = (!port.batch.has_room(), port.batch.len() - first);
        if is_measured {
            slot.timed.begin(now, begun, slot.qp.begun_requests());
        }
        let (path, unacknowledged) = (slot.path, slot.is_unacknowledged());
        if let Some((sent, before)) = before {
            let after = in_flight(&slot.qp);
            // What is sent again measures no round trip: the packets that were sent before may be acknowledged (Karn).
            let inflight = if after.0 == sent { (after.1, after.1) } else { (before, after.1) };
            self.data_path.core.paths[path as usize].left(now, index, &port.batch.frames()[first..], inflight);
        }
        if is_measured {
            self.data_path.core.outbox.histograms.add_train(packets);
        }
        let (requests, used) = (TURN_WQES - budget.wqes, bytes - budget.bytes.min(bytes));
        if unacknowledged && let Some(path) = self.data_path.core.paths.get_mut(path as usize) {
            path.sent(used, requests);
        }
        self.after_turn(index, (path, used), state);
        if full {
            self.data_path.reborrow().flush_all(now);
        }
        (requests, used)
    }

    /// A turn while the path's rate allows nothing: acknowledgements leave, requests of a failed queue pair are flushed, and
    /// any other queue pair waits in the path's line.
    #[cold]
    #[inline(never)]
    fn wait_for_rate(self, index: u32) -> (u32, u64) {
        let now = self.now;
        let (Some(slot), tables) = self.data_path.core.slot_and_tables(now, index) else { return (0, 0) };
        let path = slot.path;
        let flushes = slot.is_in_error();
        if flushes || slot.qp.owes_acknowledgement() {
            let PortSlot { batch, counters, .. } = &mut self.data_path.ports[slot.device.index()];
            let mut budget = TxBudget { wqes: TURN_WQES, bytes: 0, window_bytes: TURN_BYTES };
            let egress = Egress { batch, counters };
            tables.call_qp(slot, egress, Completions::AfterBatch, |qp, env| qp.poll_tx(&mut budget, env));
            if flushes {
                self.data_path.core.end_line_turn(index, 0);
                self.data_path.core.settle(now, index);
                return (0, 0);
            }
        }
        let Core { qps, timers, paths, .. } = &mut *self.data_path.core;
        let (Some(slot), Some(path_slot)) = (qps[index as usize].as_mut(), paths.get_mut(path as usize)) else {
            return (0, 0);
        };
        slot.wake_by(&mut timers.wheel, slot.qp.next_deadline());
        let had_turn = path_slot.turn_of == index;
        if had_turn {
            // Another one's burst has closed the gate: it stays the first.
            path_slot.turn_of = NO_QP;
        }
        if had_turn && slot.waiting == NOT_WAITING {
            slot.waiting = path_slot.waiting.push_front(slot.line, index);
        } else if slot.waiting == NOT_WAITING {
            slot.waiting = path_slot.waiting.push(slot.line, index);
        }
        let answers = slot.answering == NOT_WAITING && slot.qp.sends_without_room();
        if answers {
            let ticket = path_slot.waiting.push_answerer(index, |place| answers_by(qps, path, place));
            if let Some(slot) = qps[index as usize].as_mut() {
                slot.answering = ticket;
            }
        }
        if let Some(gate) = path_slot.gate() {
            timers.pacing.arm(path, gate, gate.opens_at().max(now));
        }
        (0, 0)
    }

    /// Queues a queue pair again, or lets it wait for the window of its path.
    #[inline(always)]
    fn after_turn(&mut self, index: u32, (path, used): (u32, u64), state: TxState) {
        let core = &mut *self.data_path.core;
        core.end_line_turn(index, used);
        let mut is_ready = state == TxState::More;
        if matches!(state, TxState::Window | TxState::More)
            && path != NO_PATH
            && let Some(slot) = core.qps[index as usize].as_mut()
            && (state == TxState::Window || !core.paths[path as usize].waiting.is_empty())
        {
            // While others wait, the next turn is that of the line.
            is_ready &= slot.qp.sends_without_room();
            if slot.waiting == NOT_WAITING {
                slot.waiting = core.paths[path as usize].waiting.push(slot.line, index);
            }
        }
        if is_ready {
            core.make_ready(index);
        }
        core.settle(self.now, index);
    }
}

/// Prefetches what a turn soon reads.
#[inline(never)]
fn prefetch_turn(core: &Core) {
    if let Some(place) = core.sched.after(TURNS_AHEAD)
        && let Some(slot) = slot_at(&core.qps, place.qp)
    {
        slot.qp.prefetch_turn();
    }
}
