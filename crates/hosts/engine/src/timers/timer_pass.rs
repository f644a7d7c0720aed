//! Timers that are due in a pass.

use crate::calls::Egress;
use crate::core::Core;
use crate::data_path::DataPath;
use crate::objects::answers_by;
use crate::outbox::Completions;
use crate::paths::NOT_WAITING;
use crate::paths::path::NO_QP;
use crate::port_slot::PortSlot;
use crate::transmit::sched::URMA_ENTRY;
use crate::urma::UrmaEndpoints;
use burst_base::Nanos;

/// Time between two queue pairs that an open gate gives a turn, if the first did not close it.
const GATE_PAUSE: Nanos = Nanos::from_us(10);

/// The timers' part of a pass.
pub(crate) struct TimerPass<'a> {
    pub now: Nanos,
    pub data_path: DataPath<'a>,
    pub urma: Option<&'a mut UrmaEndpoints>,
}

impl TimerPass<'_> {
    /// Opens the gates that are due. By turns the first one in the line goes on, if the window has room for it, and the first of
    /// those whose answers wait for the rate, and with them the channels of URMA, which keep their place: they may have answers.
    #[cold]
    #[inline(never)]
    pub fn open_gates(&mut self) -> bool {
        let now = self.now;
        let mut any = false;
        while let Some((at, index)) = self.data_path.core.timers.pacing.pop_due(now) {
            let Core { paths, timers, qps, channel_wakes, .. } = &mut *self.data_path.core;
            let Some(path) = paths.get_mut(index as usize) else { continue };
            if !path.gate().is_some_and(|gate| gate.take_entry(at)) {
                continue;
            }
            if let Some(gate) = path.closed_gate(now) {
                timers.pacing.arm(index, gate, gate.opens_at());
                continue;
            }
            any = true;
            if path.channels.ticket != NOT_WAITING {
                channel_wakes.opened.push(index);
            }
            let is_answers_turn = !std::mem::replace(&mut path.was_answerers, false) || path.waiting.is_empty();
            let answerer = match is_answers_turn && path.turn_of == NO_QP {
                true => path.waiting.pop_answerer(|place| answers_by(qps, index, place)),
                false => None,
            };
            if path.waiting.has_answerers()
                && let Some(gate) = path.gate()
            {
                timers.pacing.arm(index, gate, now + GATE_PAUSE);
            }
            let Some(answerer) = answerer else {
                self.data_path.core.wake_waiting(now, index);
                continue;
            };
            path.was_answerers = true;
            path.turn_of = answerer;
            if let Some(slot) = qps.get_mut(answerer as usize).and_then(Option::as_mut) {
                slot.answering = NOT_WAITING;
            }
            self.data_path.core.make_ready(answerer);
        }
        any
    }

    /// Fires the timers of the wheel that are due, each once: one that is due again at once has its turn in the next pass.
    #[inline(always)]
    pub fn fire_due(mut self) -> bool {
        let (mut any, mut is_urma_due) = (false, false);
        self.data_path.core.timers.wheel.begin_firing(self.now);
        while let Some(index) = self.data_path.core.timers.wheel.pop_firing() {
            if index == URMA_ENTRY {
                is_urma_due = true;
            } else {
                // A copy, so that the pass itself stays in registers.
                any |= TimerPass { now: self.now, data_path: self.data_path.reborrow(), urma: None }.fire(index);
            }
        }
        // Once in a pass: URMA does a part of what is due, and is due again at once.
        if is_urma_due && let Some(urma) = &mut self.urma {
            any |= urma.run_timers(&mut self.data_path.core.urma_shared(self.now));
        }
        any
    }

    /// A timer of the wheel is due. The queue pair's deadline may be later than when the timer was set.
    fn fire(self, index: u32) -> bool {
        let now = self.now;
        self.data_path.core.outbox.timers = self.data_path.core.timers.wheel.len();
        let (Some(slot), tables) = self.data_path.core.slot_and_tables(now, index) else { return false };
        debug_assert_ne!(slot.armed, Nanos::NEVER, "a timer that was not set has fired");
        slot.armed = Nanos::NEVER;
        let due = slot.qp.next_deadline() <= now;
        if due {
            let PortSlot { batch, counters, .. } = &mut self.data_path.ports[slot.device.index()];
            let egress = Egress { batch, counters };
            tables.call_qp(slot, egress, Completions::Visible, |qp, env| qp.on_timer(env));
        } else {
            slot.qp.timer_passed();
        }
        self.data_path.core.settle(now, index);
        due
    }
}
