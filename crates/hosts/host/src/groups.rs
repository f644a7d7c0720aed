//! The members of multicast groups: queue pairs that are attached and ids that have joined.
//!
//! A port takes part in a group as long as a queue pair is attached to it (`ibv_attach_mcast`) or an id has joined it
//! (`rdma_join_multicast`). `host/multicast.rs` passes changes on to the port and the workers.

use crate::authority::Caller;
use crate::limits::GROUP_QPS_MAX;
use crate::refusal::refuse;
use burst_base::gid::ip_of;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_ledger::{Charge, Policy, Resource, Scope, SharePool};
use std::collections::HashMap;
use std::net::IpAddr;

/// The members of one group.
#[derive(Debug)]
pub struct GroupMembers {
    /// Attached queue pairs, and what each costs.
    qps: Vec<(Qpn, Charge)>,
    /// Places for queue pairs.
    places: SharePool,
    /// How many ids have joined.
    pub joins: u32,
    /// The charge of the group and of its place at the port, to the user whose program was its first member.
    _charge: Charge,
}

impl GroupMembers {
    /// A group without members.
    pub fn new(charge: Charge, policy: Policy) -> GroupMembers {
        let places = SharePool::new(Resource::GroupMember, Scope::Group, u64::from(GROUP_QPS_MAX), policy);
        GroupMembers { qps: Vec::new(), places, joins: 0, _charge: charge }
    }

    /// The attached queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = Qpn> {
        self.qps.iter().map(|(qpn, _)| *qpn)
    }

    /// Whether the group has no members.
    pub fn is_empty(&self) -> bool {
        self.qps.is_empty() && self.joins == 0
    }

    /// Attaches a queue pair. Attaching it again changes nothing.
    ///
    /// # Errors
    /// ENOMEM: the caller has its share of the group's places, or of all groups', or the group is full.
    pub fn attach(&mut self, caller: &Caller, qpn: Qpn) -> Result<(), Refusal> {
        if self.qps().any(|attached| attached == qpn) {
            return Ok(());
        }
        let charge = caller.charge(&[(Resource::GroupMember, 1)])?.with_place(caller.place(&self.places)?);
        self.qps.push((qpn, charge));
        assert!(self.qps.len() <= GROUP_QPS_MAX as usize, "a group has more members than places");
        Ok(())
    }

    /// Detaches a queue pair.
    pub fn detach(&mut self, qpn: Qpn) {
        self.qps.retain(|(attached, _)| *attached != qpn);
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
