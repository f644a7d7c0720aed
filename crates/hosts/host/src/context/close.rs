//! The end of a context: what a program has left behind is released, whatever state the program died in.

use super::domains::release_pd_number;
use super::state::Context;
use crate::device::DeviceObject;
use crate::host::Host;
use burst_base::verbs::{QpAttr, QpState, attr_mask};
use burst_engine::QpChange;

/// Maximum number of queue pairs that a worker ends between two passes when a program dies.
const QPS_ENDED_AT_ONCE: usize = 64;

impl Context {
    /// The shared memory keeps its contents when objects end.
    pub fn keep_contents(&mut self) {
        self.arena.keep_contents();
    }

    /// Moves all queue pairs to the error state, so that their work requests are flushed while the program can still poll. The
    /// host ends: the shared memory keeps its contents, from which the program's library flushes what is posted later.
    pub fn fail_queue_pairs(&mut self, host: &mut Host) {
        self.keep_contents();
        for qp in self.qps.values() {
            let (qpn, attr) = (qp.qpn, QpAttr { qp_state: QpState::Err, ..QpAttr::default() });
            // A queue pair in RESET cannot move to ERR, and has nothing to flush.
            let _ = host.on_worker(qp.worker, move |w, now| {
                w.modify_qp(now, qpn, QpChange { attr: &attr, mask: attr_mask::STATE, flow: None }).map(drop)
            });
        }
    }

    /// Releases objects, each before the objects that it refers to: about `budget` of them. Returns true when all have been
    /// released and the context has ended.
    ///
    /// Errors of single objects are ignored: the handles come from the tables themselves, and no object is in use any more.
    pub fn close_some(&mut self, host: &mut Host, budget: usize) -> bool {
        let mut left = budget.max(1);
        while left > 0 {
            match self.close_next(host, left) {
                0 => {
                    self.leave(host);
                    return true;
                }
                closed => left = left.saturating_sub(closed),
            }
        }
        false
    }

    /// Gives back what an ended context has. The pages of its queues are freed by another thread: they may be as many as the
    /// account's share of memory.
    pub fn release(self, host: &Host) {
        let Context { caller, arena, segment_charges, .. } = self;
        host.disposal.release(&caller.account, (arena, segment_charges));
    }

    /// The queue pairs that end next, about `most` steps, and their steps: each membership in a multicast group takes one, too.
    fn next_qps(&self, most: usize) -> (Vec<u32>, usize) {
        let (mut qps, mut steps) = (self.qps.first(most.min(QPS_ENDED_AT_ONCE)), 0);
        let fits = qps.iter().take_while(|qp| {
            let is_next = steps < most;
            steps += if is_next { 1 + self.qps.get(**qp).map_or(0, |object| object.groups.len()) } else { 0 };
            is_next
        });
        let fits = fits.count();
        qps.truncate(fits);
        (qps, steps)
    }

    /// Releases one object, or some queue pairs. Returns how many steps it took; 0: there are no more.
    fn close_next(&mut self, host: &mut Host, most: usize) -> usize {
        if let ended @ 1.. = self.end_urma_some(host, most) {
            return ended;
        }
        let (qps, steps) = self.next_qps(most);
        if !qps.is_empty() {
            self.end_qps(host, &qps, true);
            return steps;
        }
        let next = |handles: Vec<u32>| handles.first().copied();
        if let Some(mw) = next(self.mws.first(1)) {
            let _ = self.dealloc_mw(host, mw);
        } else if let Some(mr) = next(self.mrs.first(1)) {
            // Another context's window may be bound to it, which opens nothing then.
            let _ = self.remove_mr(host, mr);
        } else if let Some(ah) = next(self.ahs.first(1)) {
            let _ = self.destroy_ah(host, ah);
        } else if let Some(srq) = next(self.srqs.first(1)) {
            let _ = self.destroy_srq(host, srq);
            debug_assert!(
                self.srqs.get(srq).is_none(),
                "a shared receive queue is in use after all queue pairs have ended"
            );
        } else if let Some(xrcd) = next(self.xrcds.first(1)) {
            let _ = self.close_xrcd(host, xrcd);
            debug_assert!(self.xrcds.get(xrcd).is_none(), "an XRC domain is in use after all queue pairs have ended");
        } else if let Some(cq) = next(self.cqs.first(1)) {
            self.end_cq(host, cq);
        } else if let Some(pd) = next(self.pds.first(1)) {
            if let Some(p) = self.pds.remove(pd) {
                release_pd_number(host, p.object);
            }
        } else if let Some(dm) = next(self.dms.first(1)) {
            let _ = self.free_dm(host, dm);
        } else if let Some(channel) = next(self.channels.first(1)) {
            self.channels.remove(channel);
            host.note_ended(1);
        } else {
            return 0;
        }
        1
    }

    /// Removes a completion queue, whose ring ends with the context.
    fn end_cq(&mut self, host: &mut Host, cq: u32) {
        if let Some(c) = self.cqs.remove(cq) {
            let number = c.object.number;
            host.on_all(move |w| w.remove_cq(number));
            host.cqs.put(number);
            host.uncount_object(self.device, DeviceObject::Cq);
        }
    }

    /// Removes the context itself.
    fn leave(&mut self, host: &mut Host) {
        let id = self.id;
        host.exports.remove_context(id);
        host.on_all(move |w| w.remove_context(id));
        host.context_users.remove(&id);
        host.contexts.put(id);
    }
}
