//! The settings of a host, as a plain struct: the caller decides where they come from.

use std::time::Duration;

/// Settings of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Port specifications as written, at least one; `burst_port` parses them.
    pub ports: Vec<String>,
    /// Number of workers, 1 to `burst_shm::layout::WORKER_MAX`.
    pub workers: usize,
    /// How long an idle worker spins before it sleeps.
    pub spin: Duration,
    /// Most unacknowledged bytes to one peer address.
    pub window_bytes: u32,
}
