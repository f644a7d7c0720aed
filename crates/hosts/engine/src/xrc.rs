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
            slot.other_holders.push(holder);
        }
    }

    /// Removes a context that holds a target queue pair, if others hold it, too.
    pub fn release_qp(&mut self, qpn: Qpn, context: u32, event_cookie: u64) {
        let index = self.core.directory.find(qpn);
        let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut).filter(|s| s.qpn == qpn) else {
            return;
        };
        let leaves = |c: u32, cookie: u64| c == context && cookie == event_cookie;
        if !leaves(slot.holder.context, slot.holder.event_cookie) {
            return slot.other_holders.retain(|o| !leaves(o.context, o.event_cookie));
        }
        if slot.other_holders.is_empty() {
            return;
        }
        let next = slot.other_holders.remove(0);
        let was = std::mem::replace(&mut slot.holder, next).context;
        if std::mem::replace(&mut slot.ticket, NO_TICKET) != NO_TICKET {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(was, |place| is_ready(qps, place));
        }
        self.core.make_ready(index);
    }
}
