//! Connection management of the host: events and jobs of a pass, connections and statistics of all workers.

use super::Host;
use burst_control::Response;
use burst_control::monitor::{CM_PAGE, CmCursor, CmStats};

impl Host {
    /// Writes the events and posts the jobs of this pass.
    pub fn post_cm_jobs(&mut self) {
        // Events first: an event that a worker writes because of a job must come later.
        self.cm.write_events();
        for (worker, jobs) in self.cm.take_jobs() {
            self.post(worker, move |w, now| w.cm_jobs(now, jobs));
        }
    }

    /// A page of the connections of all workers, for `burst cm`, as a user may see them: of other users' connections only the
    /// number. Listeners come first, fewer than a page, so that the cursor of
    /// the next page differs from the first page's.
    pub fn cm_connections(&self, viewer: u32, from: CmCursor) -> Response {
        let CmCursor { mut worker, mut slot } = from;
        let mut connections = Vec::new();
        if from == CmCursor::default() {
            connections = self.on_worker(0, |w, _| w.cm_listeners(CM_PAGE - 1));
        }
        let room = CM_PAGE;
        while (worker as usize) < self.workers().len() && connections.len() < CM_PAGE {
            let most = room - connections.len();
            let (page, next) = self.on_worker(worker as usize, move |w, now| w.cm_page(now, slot, most));
            connections.extend(page);
            (worker, slot) = next.map_or((worker + 1, 0), |slot| (worker, slot));
        }
        let more = (worker as usize) < self.workers().len();
        let found = connections.len();
        connections.retain(|c| self.authority.may_see(viewer, c.uid));
        let hidden = (found - connections.len()) as u32;
        Response::CmConnections { connections, hidden, next: more.then_some(CmCursor { worker, slot }) }
    }

    /// Histograms and counts of all workers and of the control thread.
    pub fn cm_stats(&self) -> CmStats {
        let mut steps = Vec::new();
        self.cm.times().add_to(&mut steps);
        let (mut connections, mut queued) = (0, 0);
        for worker in 0..self.workers().len() {
            let (times, counts) = self.on_worker(worker, |w, _| (w.cm_times(), w.cm_conn_counts()));
            (connections, queued) = (connections + u64::from(counts.connections), queued + u64::from(counts.queued));
            times.add_to(&mut steps);
        }
        let numbers = [
            ("ids", self.cm.ids),
            ("listeners", self.cm.listeners),
            ("connections", connections),
            ("queued requests", queued),
            ("waiting for next hops", self.cm.hops.waiting()),
            ("refused", self.cm.refused),
            ("event writes lost", self.cm.lost),
        ];
        CmStats { steps, numbers: numbers.map(|(name, value)| (name.to_owned(), value)).into() }
    }
}
