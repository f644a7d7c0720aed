//! Copiers in a worker's pass: what waited for copies that have ended leaves.

use crate::data_path::DataPath;
use burst_base::Nanos;
use burst_transport::CopyProgress;

impl DataPath<'_> {
    /// Looks at the copiers that have something under way. Returns whether copies have ended. At most
    /// [`crate::copiers::TRAILING_MAX`] queue pairs of each copier are called, or all, if more wait.
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
        let Some(progress) = self.core.outbox.copiers.look(context) else { return false };
        let mut at = 0;
        while let Some(qpn) = self.core.outbox.copiers.take_trailing(context, &mut at, progress) {
            // The queue pair may have been destroyed since.
            let _ = self.call_qp(now, qpn, |qp, env| qp.on_copies(progress, env));
            self.core.settle(now, self.core.directory.find(qpn));
        }
        if self.core.outbox.copiers.take_wakes_all(context) {
            self.call_all(now, context, progress);
        }
        true
    }

    /// Calls all queue pairs of a context: more of them wait for bytes to be sent than are noted.
    fn call_all(&mut self, now: Nanos, context: u32, progress: CopyProgress) {
        for index in 0..self.core.qps.len() as u32 {
            let slot = self.core.qps[index as usize].as_ref().filter(|slot| slot.holder.context == context);
            let Some(qpn) = slot.map(|slot| slot.qpn) else { continue };
            let _ = self.call_qp(now, qpn, |qp, env| qp.on_copies(progress, env));
            self.core.settle(now, index);
        }
    }
}
