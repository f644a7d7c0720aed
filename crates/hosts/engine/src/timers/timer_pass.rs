//! Timers that are due in a pass.

use crate::calls::Egress;
use crate::core::Core;
use crate::data_path::DataPath;
use crate::objects::waits_for;
use crate::outbox::Completions;
use crate::paths::NOT_WAITING;
use crate::port_slot::PortSlot;
use crate::transmit::sched::URMA_ENTRY;
use crate::urma::UrmaEndpoints;
use burst_base::Nanos;

/// Time between two queue pairs of a line that are made ready by an open gate, if the first did not close it.
const GATE_PAUSE: Nanos = Nanos::from_us(10);

/// The timers' part of a pass.
pub(crate) struct TimerPass<'a> {
    pub now: Nanos,
    pub data_path: DataPath<'a>,
    pub urma: Option<&'a mut UrmaEndpoints>,
}

impl TimerPass<'_> {
    /// Opens the gates that are due: each makes the first queue pair of its line ready, whether or not the window has room for
    /// its requests, because it may have READ responses to send, and after a pause the next of those that waited for it.
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
            let waiter = (index, path.channels.ticket);
            let Some(first) = path.waiting.first(|place| waits_for(qps, waiter, place)) else { continue };
            any = true;
            if first == URMA_ENTRY {
                path.open_to_channels(index, channel_wakes);
                continue;
            }
            path.waiting.pop();
            if let Some(slot) = qps.get_mut(first as usize).and_then(Option::as_mut) {
                slot.waiting = NOT_WAITING;
            }
            if path.take_gate_turn()
                && let Some(gate) = path.gate()
            {
                timers.pacing.arm(index, gate, gate.opens_at().max(now + GATE_PAUSE));
            }
            self.data_path.core.make_ready(first);
        }
        any
    }

    /// Fires the timers of the wheel that are due.
    #[inline(always)]
    pub fn fire_due(mut self) -> bool {
        let (mut any, mut is_urma_due) = (false, false);
        while let Some(index) = self.data_path.core.timers.wheel.pop_due(self.now) {
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
