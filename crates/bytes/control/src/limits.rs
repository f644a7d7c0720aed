//! The limits of a device, in its description ([`crate::DeviceInfo`]).

use serde::{Deserialize, Serialize};

/// Limits of a device: maximum numbers and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per queue.
    pub max_qp_wr: u32,
    /// SGEs per work request.
    pub max_sge: u32,
    /// Bytes of inline data per work request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries per completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// READs and atomics in flight per queue pair, as requester and as responder.
    pub max_rd_atomic: u32,
    /// Bytes of a message.
    pub max_msg_sz: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
}
