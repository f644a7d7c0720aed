//! Options of a worker, the limits of its passes, and what it says of itself to peers.

use burst_base::RtoMode;
use burst_base::verbs::Mtu;
use burst_cc::{CcTable, PeerKind};
use burst_cm::Secret;
use burst_transport::WINDOW_PSNS;
use burst_wire::hello::{
    FEATURE_READ_ACKS, FEATURE_SELECTIVE, FEATURE_UC_RECEIPTS, FEATURE_XRC_SELECTIVE, Hello, HelloCc,
};

/// What this daemon can do if it uses selective repeat.
const FEATURES: u32 = FEATURE_SELECTIVE | FEATURE_XRC_SELECTIVE | FEATURE_READ_ACKS | FEATURE_UC_RECEIPTS;
/// Separates the numbers that hellos derive from the secret from those that other code derives from it: `cm` and the GSI agent
/// use the domains 0 to 3.
pub(crate) const HELLO_DOMAIN: u8 = 4;
/// Frames of one transmit batch.
pub const BATCH_FRAMES: usize = 256;

/// Frames taken from a port in one pass.
pub const RX_BUDGET: usize = 256;

/// Entries of the lists of a pass: completions, events, queue pairs that lost completions.
pub const LIST_ROOM: usize = 1024;

/// Bytes of turns before the worker looks at its ports again: four full turns.
pub const PASS_BYTES: u64 = 256 << 10;

/// Options of a worker. Everything random in a worker comes from `cm_secret`; its time comes with each call.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Number of the worker.
    pub id: u32,
    /// Number of the first worker of this process, whose inbox is the first. Not 0: the number is lent, and other processes have
    /// the other queue pairs of the addresses, and QP1.
    pub first: u32,
    /// The number in hellos that stands for this start of the daemon; `None`: it follows from `cm_secret`.
    pub boot_id: Option<u64>,
    /// Congestion control for each kind of peer; its largest window bounds the bytes in flight to one peer.
    pub cc: CcTable,
    /// Makes communication ids unpredictable; the same for all workers of a daemon.
    pub cm_secret: Secret,
    /// Selective repeat with peers that can do it.
    pub selective: bool,
    /// Waits of loss recovery.
    pub rto: RtoMode,
    /// Bytes that are sent before the worker looks at its ports again, in turns of 64 KiB at most.
    pub pass_bytes: u64,
    /// Frames of a port's batch, at least 4.
    pub batch_frames: usize,
    /// Entries for which the lists of a pass have room from the beginning.
    pub list_room: usize,
    /// Keeps the last packets ([`crate::ring`]).
    pub packet_ring: bool,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let cm_secret = Secret::new([0; 2]);
        WorkerOptions {
            id: 0,
            first: 0,
            boot_id: None,
            cc: CcTable::default(),
            cm_secret,
            selective: false,
            rto: RtoMode::default(),
            pass_bytes: PASS_BYTES,
            batch_frames: BATCH_FRAMES,
            list_room: LIST_ROOM,
            packet_ring: false,
        }
    }
}

impl WorkerOptions {
    /// Identifies this start of the daemon.
    pub(crate) fn boot_id(&self) -> u64 {
        self.boot_id.unwrap_or_else(|| self.cm_secret.number((HELLO_DOMAIN, "boot")))
    }

    /// Whether this daemon asks its peers what they are.
    pub(crate) fn asks_peers(&self) -> bool {
        self.selective || self.cc.asks_for_kinds()
    }

    /// What this daemon says of itself.
    pub(crate) fn hello(&self, mtu: Mtu, tid: u64) -> Hello {
        let cc = self.cc.of(PeerKind::Burst);
        Hello {
            is_answer: false,
            tid,
            boot_id: self.boot_id(),
            features: if self.selective { FEATURES } else { 0 },
            window: WINDOW_PSNS,
            tail_bytes: burst_transport::TAIL_BYTES as u16,
            mtu: mtu as u8,
            cc: HelloCc::new(cc.rank.code(), &cc.params.to_string()),
        }
    }
}
