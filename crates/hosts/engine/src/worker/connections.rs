//! Calls for connections: the GSI agent (crate `gsi`) serves them with the worker's tables and ports.

use crate::data_path::DataPath;
use crate::worker::Worker;
use burst_base::Nanos;
use burst_base::conn::ConnParam;
use burst_cm::{Backlog, CmError};
use burst_control::monitor::CmConnection;
use burst_gsi::{CmEntry, CmJob, CmTimes, ConnCounts, ListenAddr, WorkerAccess};
use std::sync::Arc;

impl Worker {
    /// Carries out what programs asked of their connections; failures become events of their ids.
    pub fn cm_jobs(&mut self, now: Nanos, jobs: Vec<CmJob>) {
        let Worker { core, ports, agent, .. } = self;
        let mut data_path = DataPath { core, ports };
        agent.carry_out(now, jobs, &mut data_path);
        data_path.flush_all(now);
    }

    /// Moves the queue pair of an id that came with a request to RTS, before its accept; for a queue pair that is not on the
    /// worker of the connection. False when that is not possible.
    pub fn cm_ready(&mut self, now: Nanos, entry: &CmEntry, param: &ConnParam) -> bool {
        let (Some(qp), Some(path), Some(negotiated)) = (entry.qp.get(), &entry.path, entry.negotiated(param)) else {
            return false;
        };
        let mut data_path = self.data_path();
        let done = data_path.connect_qp(now, qp, path, &negotiated);
        data_path.flush_all(now);
        done
    }

    /// Adds a listener. Every worker has all listeners.
    ///
    /// # Errors
    /// [`CmError::InUse`] when there is one with the same address already.
    pub fn cm_listen(&mut self, owner: Arc<CmEntry>, at: ListenAddr, backlog: Arc<Backlog>) -> Result<(), CmError> {
        self.agent.listen(owner, at, backlog)
    }

    /// Ends the listener of an id, which listens on this port.
    pub fn cm_unlisten(&mut self, entry: &Arc<CmEntry>, port: u16) {
        self.agent.unlisten(entry, port);
    }

    /// Times of the steps of connection setup.
    pub fn cm_times(&self) -> Arc<CmTimes> {
        self.agent.times()
    }

    /// Number of connections and of queued requests.
    pub fn cm_conn_counts(&self) -> ConnCounts {
        self.agent.conn_counts()
    }

    /// Up to `most` connections from a place in the table on, and where the next ones begin.
    pub fn cm_page(&mut self, now: Nanos, from: u32, most: usize) -> (Vec<CmConnection>, Option<u32>) {
        self.agent.page(now, from, most)
    }

    /// Up to `most` listeners, which are the same in every worker.
    pub fn cm_listeners(&self, most: usize) -> Vec<CmConnection> {
        self.agent.listeners(most)
    }

    /// Sets the GUIDs of the devices, in device order; requests and replies carry them.
    pub fn set_guids(&mut self, guids: Vec<u64>) {
        self.agent.set_guids(guids);
    }
}
