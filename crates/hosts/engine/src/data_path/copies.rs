//! Copiers in a worker's pass: what waited for copies that have ended leaves.

use crate::data_path::DataPath;
use burst_base::Nanos;

/// Places of a worker's table that one walk looks at in a pass.
const WALK_SLOTS: u32 = 256;

impl DataPath<'_> {
    /// Looks at the copiers that have something under way. Returns whether copies have ended. At most
    /// [`crate::copiers::TRAILING_MAX`] queue pairs of each copier are called; if more wait, `WALK_SLOTS` places of the table are
    /// looked at, too.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_copiers(&mut self, now: Nanos) -> bool {
        let (mut any, mut at) = (false, 0);
        while let Some(context) = self.core.outbox.copiers.active(at) {
            any |= self.run_copier(now, context);
            at += usize::from(!self.core.outbox.copiers.rest(at));
        }
        if any {
            self.flush_all(now);
        }
        any
    }

    fn run_copier(&mut self, now: Nanos, context: u32) -> bool {
        let Some(progress) = self.core.outbox.copiers.look(context) else {
            return self.walk(now, context);
        };
        let mut at = 0;
        while let Some(qpn) = self.core.outbox.copiers.take_trailing(context, &mut at, progress) {
            // The queue pair may have been destroyed since.
            let _ = self.call_qp(now, qpn, |qp, env| qp.on_copies(progress, env));
            self.core.settle(now, self.core.directory.find(qpn));
        }
        self.core.outbox.copiers.begin_walk(context);
        self.walk(now, context);
        true
    }

    /// Calls queue pairs of a context in a part of the worker's table: more of them wait for bytes to be sent than are noted.
    /// Returns whether a walk is under way.
    fn walk(&mut self, now: Nanos, context: u32) -> bool {
        let Some((from, progress)) = self.core.outbox.copiers.walk(context) else { return false };
        let end = self.core.qps.len() as u32;
        let until = from.saturating_add(WALK_SLOTS).min(end);
        for index in from..until {
            let slot = self.core.qps[index as usize].as_ref().filter(|slot| slot.holder.context == context);
            let Some(qpn) = slot.map(|slot| slot.qpn) else { continue };
            let _ = self.call_qp(now, qpn, |qp, env| qp.on_copies(progress, env));
            self.core.settle(now, index);
        }
        self.core.outbox.copiers.set_walk(context, (until < end).then_some(until));
        true
    }
}
