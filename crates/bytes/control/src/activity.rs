//! What workers and queue pairs do: answers for `burst stats`, `burst top` and metrics.
//!
//! A worker knows all of it anyway: its time is counted once for each pass, the counts of a queue pair lie in its queues and in
//! its state. Queue pairs are listed in pages, because a daemon may have more of them than fit one message, and because a worker
//! serves no packets while it looks at them.

use crate::failures::FailedProgram;
use crate::monitor::{CcPeer, CmCursor, CmStats, TRAFFIC, UserUse};
use crate::{Counter, DeviceInfo};
use burst_base::verbs::{QpState, QpType};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Most queue pairs in one reply.
pub const QUEUE_PAIRS_PAGE: usize = 256;

/// How a worker has spent its time since it began, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTime {
    /// In passes that did something.
    pub busy_ns: u64,
    /// In passes that found nothing to do, while it did not sleep yet.
    pub spinning_ns: u64,
    /// Asleep.
    pub asleep_ns: u64,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerUse {
    /// Number.
    pub worker: u32,
    /// Its time; all 0 for an engine that runs in the threads of its program.
    pub time: WorkerTime,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Peer addresses to which queue pairs or channels are connected.
    pub paths: u32,
    /// Traffic counters by device number.
    pub traffic: Vec<[u64; TRAFFIC.len()]>,
}

/// Names of the histograms of a worker.
pub const WORK_HISTOGRAMS: [&str; 4] = ["message", "round_trip", "queueing", "train"];
/// Buckets of each: bucket `n` counts values below 2^n that are in none before it, the last one all larger ones.
pub const HISTOGRAM_BUCKETS: usize = 40;

/// A histogram: of nanoseconds, or of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkHistogram {
    /// Sum of all values, modulo 2^64.
    pub sum: u64,
    /// Counts by [`WorkHistogram::bucket`].
    pub buckets: Vec<u64>,
}

impl WorkHistogram {
    /// The bucket of a value.
    #[inline]
    pub const fn bucket(value: u64) -> usize {
        let bits = (u64::BITS - value.leading_zeros()) as usize;
        if bits < HISTOGRAM_BUCKETS { bits } else { HISTOGRAM_BUCKETS - 1 }
    }
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
    /// Adds the values of another one.
    pub fn add(&mut self, other: &WorkHistogram) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, count)| *to += count);
    }
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpUse {
    /// Worker.
    pub worker: u32,
    /// Device number.
    pub device: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// Service type.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Address of the peer, and number of its queue pair; unspecified and 0 if it is not connected.
    pub peer: IpAddr,
    /// See `peer`.
    pub peer_qpn: u32,
    /// The program.
    pub program: FailedProgram,
    /// Work requests that it has begun, modulo 2^32.
    pub requests: u32,
    /// Payload bytes of a full packet.
    pub mtu: u32,
    /// PSN of the next new packet, which rises with each packet of a request, modulo 2^24.
    pub sent_psn: u32,
    /// PSN that is expected of the peer, likewise.
    pub expected_psn: u32,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Smoothed round trip; 0: unknown.
    pub rtt_ns: u64,
    /// What its packets met, by number of the reason; the first few reasons, with their counts.
    pub counts: Vec<(u16, u32)>,
}

/// The name of a state in tables and labels.
pub const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "reset",
        QpState::Init => "init",
        QpState::Rtr => "rtr",
        QpState::Rts => "rts",
        QpState::Sqd => "sqd",
        QpState::Sqe => "sqe",
        QpState::Err => "err",
    }
}

/// The name of a service type in tables and labels.
pub const fn type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "rc",
        QpType::Uc => "uc",
        QpType::Ud => "ud",
        QpType::XrcSend => "xrc-send",
        QpType::XrcRecv => "xrc-recv",
    }
}

/// To [`crate::Request::QueuePairs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpPage {
    /// Queue pairs whose users the viewer may see.
    pub queue_pairs: Vec<QpUse>,
    /// How many queue pairs of other users were left out.
    pub hidden: u32,
    /// Beginning of the next page; `None`: there are no more.
    pub next: Option<CmCursor>,
}

/// All that a host reports, as one viewer may see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostReport {
    /// Version of the host.
    pub version: String,
    /// The user who runs it.
    pub uid: u32,
    /// Time since it began, in seconds.
    pub uptime_s: u64,
    /// Open contexts.
    pub contexts: u32,
    /// Daemons that fell before this one.
    pub crashes: u64,
    /// Devices.
    pub devices: Vec<DeviceInfo>,
    /// Counters of the devices and of the host.
    pub counters: Vec<Counter>,
    /// Workers.
    pub workers: Vec<WorkerUse>,
    /// Of all workers together, in the order of [`WORK_HISTOGRAMS`].
    pub histograms: Vec<WorkHistogram>,
    /// Queue pairs.
    pub queue_pairs: Vec<QpUse>,
    /// How many queue pairs of other users there are.
    pub hidden_queue_pairs: u64,
    /// Accounts.
    pub users: Vec<UserUse>,
    /// Congestion control towards each peer address.
    pub peers: Vec<CcPeer>,
    /// Connection management.
    pub cm: CmStats,
}
