//! The settings of a host as a plain struct. The caller decides where they come from: flags, a file, a test.

use crate::accounts::AccountBy;
use crate::lent::LentIdentity;
use burst_base::RtoMode;
use burst_cc::CcTable;
use burst_ledger::Policy;
use std::path::PathBuf;
use std::time::Duration;

/// Who runs the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerMode {
    /// A thread for each worker.
    #[default]
    Threads,
    /// The owner of the host, by `burst_engine::WorkerHandle::turn` and the host's clock. The host starts no thread at all: a
    /// simulation, or an engine inside a program.
    InPlace,
}

/// The settings of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Port specifications as written, one per device, at least one; `burst_port` parses them.
    pub ports: Vec<String>,
    /// Number of workers, 1 to `burst_shm::layout::WORKER_MAX`.
    pub workers: usize,
    /// Who runs the workers.
    pub worker_mode: WorkerMode,
    /// How long an idle worker spins before it sleeps.
    pub spin: Duration,
    /// Maximum number of unacknowledged bytes to one peer address, all queue pairs of a worker together. A value under
    /// [`WINDOW_BYTES_MIN`] is raised to it: see [`HostOptions::window_in_force`].
    pub window_bytes: u32,
    /// Congestion control for each kind of peer. Its largest window is `window_bytes`, whatever it says.
    pub cc: CcTable,
    /// Whether RC queue pairs repeat only lost packets, with peers whose daemon says by a hello that it can.
    pub selective: bool,
    /// Waits of loss recovery.
    pub rto: RtoMode,
    /// Lanes of each node of URMA to a peer, 1 to [`URMA_LANES_MAX`]: channels that leave by UDP source ports of their own.
    pub urma_lanes: u8,
    /// Whether channels of URMA have the C-AQM of switches instead of the congestion control of their paths.
    pub urma_caqm: bool,
    /// Whether the UDP port of URMA is held at each address while no program uses URMA. Only a host that opens its ports itself
    /// holds it.
    pub hold_urma: bool,
    /// Whether programs may open copiers for the memory of their GPUs.
    pub gpu: bool,
    /// Whether workers keep their last packets, for `burst why QPN --pcap`.
    pub packet_ring: bool,
    /// How users share what there is.
    pub policy: Policy,
    /// What an account of the ledger belongs to.
    pub account_by: AccountBy,
    /// The depth of a control group that has an account: those below it belong to that account. 0: each has one.
    pub account_depth: usize,
    /// A file like `/etc/subuid`: ids in a user's range belong to the user's account. `None`: each id is a user.
    pub subordinate_ids: Option<PathBuf>,
    /// Whether worker numbers are lent to programs of this process's user ([`crate::lent`]).
    pub lend: bool,
    /// The number that this host has of another's addresses; `None`: the addresses are its own.
    pub lent: Option<LentIdentity>,
    /// Seed of all random numbers, for simulations and tests; `None`: the system's generator.
    pub seed: Option<u64>,
}

/// Most lanes of a node of URMA to a peer.
pub const URMA_LANES_MAX: u8 = burst_urma::LANES_MAX;

/// The smallest window of a peer address, in bytes: one GSO send.
pub const WINDOW_BYTES_MIN: u32 = 64 << 10;

const _: () = assert!(WINDOW_BYTES_MIN as u64 == burst_cc::WINDOW_MIN);

impl HostOptions {
    /// The window that the engine uses: `window_bytes`, raised to [`WINDOW_BYTES_MIN`] if it is smaller.
    pub fn window_in_force(&self) -> u32 {
        self.window_bytes.max(WINDOW_BYTES_MIN)
    }
}
