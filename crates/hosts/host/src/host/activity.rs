//! What workers and queue pairs do, for `burst stats`, `burst top` and metrics.

use super::Host;
use burst_control::Response;
use burst_control::activity::{QUEUE_PAIRS_PAGE, QpPage, WORK_HISTOGRAMS, WorkHistogram, WorkerUse};
use burst_control::monitor::CmCursor;

/// Most visits to workers for one page.
const VISITS_MAX: usize = 8;

impl Host {
    /// Every worker.
    pub fn worker_uses(&self) -> Vec<WorkerUse> {
        (0..self.workers().len()).map(|worker| self.on_worker(worker, |w, _| w.activity())).collect()
    }

    /// The histograms of all workers together.
    pub fn histograms(&self) -> Vec<WorkHistogram> {
        let mut sums = vec![WorkHistogram::default(); WORK_HISTOGRAMS.len()];
        for worker in 0..self.workers().len() {
            let of_worker = self.on_worker(worker, |w, _| w.histograms());
            sums.iter_mut().zip(&of_worker).for_each(|(sum, histogram)| sum.add(histogram));
        }
        sums
    }

    /// A page of the queue pairs of all workers, as a user may see them: of other users' only the number. It may be empty, and
    /// others follow.
    pub fn queue_pairs(&self, viewer: u32, from: CmCursor) -> Response {
        let CmCursor { mut worker, mut slot } = from;
        let mut all = Vec::new();
        for _ in 0..VISITS_MAX {
            if (worker as usize) >= self.workers().len() || all.len() >= QUEUE_PAIRS_PAGE {
                break;
            }
            let most = QUEUE_PAIRS_PAGE - all.len();
            let (page, next) = self.on_worker(worker as usize, move |w, _| w.queue_pair_page(slot, most));
            all.extend(page);
            (worker, slot) = next.map_or((worker + 1, 0), |slot| (worker, slot));
        }
        debug_assert!(all.len() <= QUEUE_PAIRS_PAGE, "a page is full");
        let next = ((worker as usize) < self.workers().len()).then_some(CmCursor { worker, slot });
        let found = all.len();
        all.retain(|qp| self.authority.may_see(viewer, Some(qp.program.uid)));
        let hidden = (found - all.len()) as u32;
        debug_assert!(next.is_none_or(|next| next > from), "pages go on");
        Response::QueuePairs(QpPage { queue_pairs: all, hidden, next })
    }
}
