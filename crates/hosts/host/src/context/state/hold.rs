//! The hold of a context's memory while its program forks: the queue pairs learn of it, and each region is replaced by one whose
//! memory is late.
//!
//! A program may have a hundred thousand regions and queue pairs. So a hold, and its end, go on in steps of [`STEP`] objects,
//! each in a turn of the program's account, and the program gets its reply after the last one ([`Context::continue_hold`]).
//! Workers do no more than one step between two passes.

use super::{Context, HeldPart, HoldProgress, MemoryFork};
use crate::context::memory::replace;
use crate::host::Host;
use crate::reply::ReplyParts;
use burst_base::Qpn;
use burst_control::{Refusal, Response};

/// Objects of one step.
const STEP: usize = 128;

impl Context {
    /// Stops or resumes accesses to the mappings of the regions. When no step is left, no worker uses those of held regions.
    pub(in crate::context) fn hold_memory(
        &mut self,
        host: &mut Host,
        hold: bool,
        in_place: bool,
    ) -> Result<ReplyParts, Refusal> {
        // The queue pairs learn of the hold before a page is late, and of its end when all are back.
        let part = if hold { HeldPart::QueuePairs } else { HeldPart::Regions };
        self.fork = match (hold, in_place) {
            (false, _) => MemoryFork::None,
            (true, false) => MemoryFork::Held,
            // A process that the daemon may not reach: its memory is late, as before.
            (true, true) => self.process_memory(host).map_or(MemoryFork::Held, MemoryFork::InProcess),
        };
        self.holding = Some(HoldProgress { hold, part, from: 0 });
        // One for each part: most programs have few objects.
        let _ = self.continue_hold(host) || self.continue_hold(host);
        Ok(Response::Done.into())
    }

    /// Whether a hold, or its end, has steps left.
    pub fn is_holding(&self) -> bool {
        self.holding.is_some()
    }

    /// A step of a hold, or of its end. Returns whether it was the last one.
    pub fn continue_hold(&mut self, host: &mut Host) -> bool {
        let Some(progress) = self.holding else { return true };
        let next = match progress.part {
            HeldPart::QueuePairs => self.hold_queue_pairs(host, progress),
            HeldPart::Regions => self.hold_regions(host, progress.from),
        };
        self.holding = match (next, progress.part, progress.hold) {
            (Some(from), ..) => Some(HoldProgress { from, ..progress }),
            (None, HeldPart::QueuePairs, true) => Some(HoldProgress { part: HeldPart::Regions, from: 0, ..progress }),
            (None, HeldPart::Regions, false) => Some(HoldProgress { part: HeldPart::QueuePairs, from: 0, ..progress }),
            (None, ..) => None,
        };
        self.holding.is_none()
    }

    /// Tells the workers of some queue pairs that their memory is held, or is back. Returns where the others begin.
    fn hold_queue_pairs(&self, host: &Host, progress: HoldProgress) -> Option<u32> {
        let HoldProgress { hold, from, .. } = progress;
        let mut of_workers: Vec<Vec<Qpn>> = vec![Vec::new(); host.workers().len()];
        let mut rest = self.qps.iter_from(from);
        for (_, qp) in rest.by_ref().take(STEP) {
            if let Some(qpns) = of_workers.get_mut(qp.worker) {
                qpns.push(qp.qpn);
            }
        }
        let next = rest.next().map(|(handle, _)| handle);
        for (worker, qpns) in of_workers.into_iter().enumerate().filter(|(_, qpns)| !qpns.is_empty()) {
            host.on_worker(worker, move |w, now| w.hold_memory(now, &qpns, hold));
        }
        next
    }

    /// Replaces some regions in the workers' tables. Returns where the others begin.
    fn hold_regions(&self, host: &Host, from: u32) -> Option<u32> {
        let mut rest = self.mrs.iter_from(from);
        let reached = rest.by_ref().take(STEP).filter(|(_, mr)| mr.holds_pd());
        let regions: Vec<_> = reached.map(|(_, mr)| self.shown(&mr.region, mr.addr)).collect();
        let next = rest.next().map(|(handle, _)| handle);
        replace(host, &regions);
        next
    }
}
