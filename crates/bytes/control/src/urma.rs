//! What `burst ls` shows of a program of URMA: its nodes, one for each address, and their channels.
//!
//! A node may have more channels than fit one message, so each answer has one node and a page of its channels.

use crate::names;
use serde::{Deserialize, Serialize};

/// Maximum number of channels in one reply.
pub const URMA_PAGE: usize = 256;

/// Where a page begins: nodes are in order of their EIDs, their channels in order of the peers' EIDs. The default is the
/// beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UrmaCursor {
    /// EID of the node, or of none: the next one is meant.
    pub eid: [u8; 16],
    /// EID of the first channel's peer.
    pub peer: [u8; 16],
}

impl UrmaCursor {
    /// The node behind the one of this EID; `None` if there can be none.
    pub fn behind(eid: [u8; 16]) -> Option<UrmaCursor> {
        let next = u128::from_be_bytes(eid).checked_add(1)?;
        Some(UrmaCursor { eid: next.to_be_bytes(), peer: [0; 16] })
    }
}

/// A node, and the place of the next page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrmaPage {
    /// The node; `None`: there is none from the cursor on.
    pub node: Option<UrmaNodeInfo>,
    /// Beginning of the next page: the same node's if it has more channels. `None` after the last page.
    pub next: Option<UrmaCursor>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrmaNodeInfo {
    /// Name of the device: `burst0`.
    #[serde(deserialize_with = "names::file_name")]
    pub device: String,
    /// Entity id: its IP address, IPv4 mapped into IPv6.
    pub eid: [u8; 16],
    /// Network address on the Unified Bus.
    pub cna: u32,
    /// Maximum payload of a packet in bytes.
    pub mtu: u32,
    /// Jetties and JFSs.
    pub jetties: u32,
    /// Receive queues.
    pub jfrs: u32,
    /// Completion queues.
    pub jfcs: u32,
    /// Registered segments.
    pub segments: u32,
    /// Requests outstanding.
    pub requests: u32,
    /// Channels of the page.
    pub channels: Vec<UrmaChannelInfo>,
}

/// A transport channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrmaChannelInfo {
    /// The peer's EID.
    pub peer: [u8; 16],
    /// Number of this end, and of the peer's; 0 until it is known.
    pub tpns: [u32; 2],
    /// Whether the peer has answered; else the channel is being opened.
    pub is_open: bool,
    /// Packets in flight: sent, from the oldest one on that is not acknowledged.
    pub packets: u32,
    /// Their payload in bytes, without packets that are acknowledged or taken for lost.
    pub bytes: u32,
    /// Requests that the peer has not answered.
    pub unanswered: u32,
    /// Smoothed round-trip time; 0 until it is measured.
    pub srtt_ns: u64,
}
