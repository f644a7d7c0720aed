//! Lent worker numbers: what a program with an engine of its own gets from the daemon whose addresses it shares.
//!
//! The reply to [`crate::Request::Lend`] brings descriptors: the program's end of a socket by which the daemon passes on packets
//! for QP1, then those of [`LentWorker::names`] in their order: UDP sockets, and the files in which the program notes its
//! connected queue pairs. The number is lent as long as the connection lives.

use crate::names;
use serde::{Deserialize, Serialize};

/// To `Lend`: a worker number, and the settings of the daemon that the engine shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentWorker {
    /// The number, which is in the queue pair numbers of the program.
    pub number: u32,
    /// The devices, in order.
    pub ports: Vec<LentPort>,
    /// Names of the descriptors behind the first.
    pub names: Vec<String>,
    /// The daemon's number in hellos.
    pub boot_id: u64,
    /// Whether queue pairs use selective repeat.
    pub selective: bool,
    /// Waits of loss recovery, as the key `rto` of the configuration.
    pub rto: String,
    /// Window of a peer address in bytes.
    pub window_bytes: u32,
    /// Congestion control for each kind of peer.
    pub cc: Vec<LentCc>,
}

/// A device's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentPort {
    /// Its specification: `udp:dev=eth0`.
    pub spec: String,
    /// The interface that it has.
    #[serde(deserialize_with = "names::file_name")]
    pub ifname: String,
}

/// Congestion control for a kind of peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentCc {
    /// The kind: standard, burst or loopback.
    pub kind: String,
    /// As the key `cc` of the configuration.
    pub cc: String,
    /// Who has chosen it, as in hellos.
    pub rank: u8,
}
