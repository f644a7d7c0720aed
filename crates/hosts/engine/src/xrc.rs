//! XRC in a worker's tables: shared receive queues by number, and target queue pairs that several contexts hold.
//!
//! Every worker has all shared receive queues of all XRC domains, because a request to a target of any worker may name any of
//! them. A target takes its turns in the name of the context that has held it longest. When that context releases it, the next
//! one follows.

use crate::objects::{QpHolder, XrcEntry, is_ready};
use crate::sched::NO_TICKET;
use crate::worker::{Core, Worker};
use burst_base::Qpn;

impl Worker {
    /// Adds a shared receive queue of an XRC domain.
    pub fn add_xrc_srq(&mut self, srqn: u32, entry: XrcEntry) {
        let table = &mut self.core.xrc;
        if table.len() <= srqn as usize {
            table.resize_with(srqn as usize + 1, || None);
        }
        table[srqn as usize] = Some(entry);
    }

    /// Removes a shared receive queue, also from the targets that use it.
    pub fn remove_xrc_srq(&mut self, srqn: u32) {
        if let Some(entry) = self.core.xrc.get_mut(srqn as usize) {
            *entry = None;
        }
        for slot in self.core.qps.iter_mut().flatten() {
            slot.endpoint.qp_mut().forget_srq(srqn);
        }
    }

    /// Adds a context that holds a target queue pair.
    pub fn hold_qp(&mut self, qpn: Qpn, holder: QpHolder) {
        let index = self.core.directory.find(qpn);
        if let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut)
            && slot.qpn == qpn
        {
            let before = slot.other_holders.insert(holder.hold, holder);
            assert!(before.is_none(), "two holds of one queue pair have the same number");
        }
    }

    /// Ends one hold of a target queue pair, if there are others. Takes time for the logarithm of their number: a program may
    /// have thousands when it ends.
    pub fn release_qp(&mut self, qpn: Qpn, hold: u64) {
        let index = self.core.directory.find(qpn);
        let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut).filter(|s| s.qpn == qpn) else {
            return;
        };
        if slot.holder.hold != hold {
            slot.other_holders.remove(&hold);
            return;
        }
        let Some((_, next)) = slot.other_holders.pop_first() else { return };
        let was = std::mem::replace(&mut slot.holder, next).context;
        if std::mem::replace(&mut slot.ticket, NO_TICKET) != NO_TICKET {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(was, |place| is_ready(qps, place));
        }
        self.core.make_ready(index);
    }
}
