//! The members of multicast groups: queue pairs that are attached and ids that have joined.
//!
//! A port takes part in a group as long as a queue pair is attached to it (`ibv_attach_mcast`) or an id has joined it
//! (`rdma_join_multicast`). `host/multicast.rs` passes changes on to the port and the workers.

use crate::refusal::refuse;
use burst_base::gid::ip_of;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_ledger::Charge;
use std::collections::HashMap;
use std::net::IpAddr;

/// The members of one group.
#[derive(Debug)]
pub struct GroupMembers {
    /// Attached queue pairs.
    pub qps: Vec<Qpn>,
    /// How many ids have joined.
    pub joins: u32,
    /// The charge of the group, to the user whose program was its first member.
    _charge: Charge,
}

impl GroupMembers {
    /// A group without members.
    pub fn new(charge: Charge) -> GroupMembers {
        GroupMembers { qps: Vec::new(), joins: 0, _charge: charge }
    }
}

/// The multicast groups with members, by device and address.
#[derive(Debug, Default)]
pub struct MulticastGroups {
    /// Groups.
    pub groups: HashMap<(DeviceId, IpAddr), GroupMembers>,
}

/// The address of a multicast GID.
///
/// # Errors
/// EINVAL for a GID of any other kind.
pub fn group_of(gid: [u8; 16]) -> Result<IpAddr, Refusal> {
    let ip = ip_of(gid);
    if ip.is_multicast() { Ok(ip) } else { refuse(libc::EINVAL, format!("{ip} is not a multicast address")) }
}
