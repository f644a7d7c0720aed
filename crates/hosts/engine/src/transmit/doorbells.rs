//! Doorbells: which queue pairs, and programs of URMA, have posted since the last pass.

use crate::core::{Core, MANY};
use crate::objects::{ContextSlot, QpSlot};
use crate::probes;
use crate::transmit::sched::{NO_TICKET, Scheduler, URMA_ENTRY};

/// Doorbells whose queue pairs are prefetched together.
const DOORBELLS_AHEAD: usize = 16;
/// Doorbells answered for one context in one pass.
const DOORBELLS_PER_PASS: usize = 256;
const _: () = assert!(DOORBELLS_PER_PASS.is_multiple_of(DOORBELLS_AHEAD));

/// What doorbells lead to.
struct DoorbellTargets<'a> {
    context: u32,
    qps: &'a mut [Option<Box<QpSlot>>],
    sched: &'a mut Scheduler,
    urma_rung: &'a mut Vec<u32>,
}

/// Turns doorbells into ready queue pairs. Returns whether any rang.
pub(crate) fn take_doorbells(core: &mut Core) -> bool {
    let mut any = false;
    let Core { contexts, qps, sched, options, urma_rung, .. } = core;
    for (context, slot) in contexts.iter_mut().enumerate() {
        let Some(slot) = slot.as_mut().filter(|slot| slot.doorbells.is_ringing()) else { continue };
        let mut targets = DoorbellTargets { context: context as u32, qps, sched, urma_rung };
        any |= match targets.qps.len() >= MANY {
            true => targets.take_many(slot, options.selective),
            false => targets.take_few(slot),
        };
    }
    any
}

impl DoorbellTargets<'_> {
    /// A program has posted to the queue pair at an entry, which was idle.
    #[inline(always)]
    fn ring(&mut self, entry: u32) {
        if entry == URMA_ENTRY {
            return self.urma_rung.push(self.context);
        }
        let Some(slot) = self.qps.get_mut(entry as usize).and_then(Option::as_mut) else { return };
        slot.qp.on_doorbell();
        slot.ack_delay.on_post();
        if slot.ticket == NO_TICKET {
            slot.ticket = self.sched.push(self.context, slot.priority(), entry);
        }
    }

    /// Takes a context's doorbells. Returns whether any rang.
    fn take_few(&mut self, slot: &mut ContextSlot) -> bool {
        let ContextSlot { doorbells, queues, .. } = slot;
        let rung = doorbells.drain(DOORBELLS_PER_PASS, |queue| {
            if let Some(entry) = queues.get(queue as usize) {
                self.ring(*entry);
            }
        });
        probes::doorbell(self.context, rung);
        rung > 0
    }

    /// As [`Self::take_few`], where there are so many queue pairs that lines are prefetched.
    #[inline(never)]
    fn take_many(&mut self, slot: &mut ContextSlot, is_selective: bool) -> bool {
        let mut taken = 0;
        while taken < DOORBELLS_PER_PASS {
            let (mut known, mut entries) = (0, [0; DOORBELLS_AHEAD]);
            let rung = slot.doorbells.drain(DOORBELLS_AHEAD, |queue| {
                let Some(entry) = slot.queues.get(queue as usize) else { return };
                entries[known] = *entry;
                known += 1;
                if let Some(slot) = self.qps.get(*entry as usize).and_then(Option::as_ref) {
                    slot.prefetch_requester(is_selective);
                }
            });
            entries[..known].iter().for_each(|entry| self.ring(*entry));
            taken += rung;
            if rung < DOORBELLS_AHEAD {
                break;
            }
        }
        probes::doorbell(self.context, taken);
        taken > 0
    }
}
