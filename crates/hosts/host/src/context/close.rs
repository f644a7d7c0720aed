//! The end of a context: what a program has left behind is released, whatever state the program died in.

use super::domains::release_pd_number;
use super::state::Context;
use crate::device::DeviceObject;
use crate::host::Host;
use burst_base::verbs::{QpAttr, QpState, attr_mask};

/// Maximum number of queue pairs that a worker ends between two passes when a program dies.
const QPS_ENDED_AT_ONCE: usize = 64;

impl Context {
    /// Moves all queue pairs to the error state, so that their work requests are flushed while the program can still poll.
    pub fn fail_queue_pairs(&mut self, host: &mut Host) {
        for qp in self.qps.values() {
            let (qpn, attr) = (qp.qpn, QpAttr { qp_state: QpState::Err, ..QpAttr::default() });
            // A queue pair in RESET cannot move to ERR, and has nothing to flush.
            let _ =
                host.on_worker(qp.worker, move |w, now| w.modify_qp(now, qpn, &attr, attr_mask::STATE, None).map(drop));
        }
    }

    /// Releases all objects, each before the objects that it refers to. Returns how many queue pairs the program had left.
    ///
    /// Errors of single objects are ignored: the handles come from the tables themselves, and no object is in use any more.
    pub fn close(&mut self, host: &mut Host) -> usize {
        let left = self.qps.len();
        for qps in self.qps.handles().chunks(QPS_ENDED_AT_ONCE) {
            self.end_qps(host, qps, true);
        }
        for mw in self.mws.handles() {
            let _ = self.dealloc_mw(host, mw);
        }
        for mr in self.mrs.handles() {
            let _ = self.dereg_mr(host, mr);
        }
        for ah in self.ahs.handles() {
            let _ = self.destroy_ah(host, ah);
        }
        for srq in self.srqs.handles() {
            let _ = self.destroy_srq(host, srq);
        }
        for xrcd in self.xrcds.handles() {
            let _ = self.close_xrcd(host, xrcd);
        }
        for cq in self.cqs.handles() {
            if let Some(c) = self.cqs.remove(cq) {
                let number = c.object.number;
                host.on_all(move |w| w.remove_cq(number));
                host.cqs.put(number);
                host.uncount_object(self.device, DeviceObject::Cq);
            }
        }
        for pd in self.pds.handles() {
            if let Some(p) = self.pds.remove(pd) {
                release_pd_number(host, p.object);
            }
        }
        let id = self.id;
        host.exports.remove_context(id);
        host.on_all(move |w| w.remove_context(id));
        host.contexts.put(id);
        left
    }
}
