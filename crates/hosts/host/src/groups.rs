//! The members of multicast groups: queue pairs that are attached and ids that have joined.
//!
//! A port takes part in a group as long as a queue pair is attached to it (`ibv_attach_mcast`) or an id has joined it
//! (`rdma_join_multicast`). `host/multicast.rs` passes changes on to the port and the workers.
//!
//! Each member is charged to its user, and the group itself to each user with a member in it for as long as there is one: a user
//! neither pays for a group that only others keep, nor keeps one without paying.

use crate::authority::Caller;
use crate::limits::{GROUP_JOINS_MAX, GROUP_QPS_MAX};
use crate::refusal::refuse;
use burst_base::gid::ip_of;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_ledger::{Account, Charge, Policy, Resource, Scope, SharePool};
use std::collections::HashMap;
use std::net::IpAddr;

/// The members of one group.
#[derive(Debug)]
pub struct GroupMembers {
    /// Attached queue pairs, and what each costs.
    qps: Vec<(Qpn, Charge)>,
    /// Places for queue pairs.
    places: SharePool,
    /// What each join of an id costs, in no order.
    joins: Vec<Charge>,
    /// Places for joins.
    join_places: SharePool,
    /// The users with members.
    payers: Vec<GroupPayer>,
}

/// A user with members in a group.
#[derive(Debug)]
struct GroupPayer {
    /// How many.
    members: u32,
    /// The charge of the group and of its place at the port.
    charge: Charge,
}

impl GroupMembers {
    /// A group without members.
    pub fn new(policy: Policy) -> GroupMembers {
        let pool = |resource, most: u32| SharePool::new(resource, Scope::Group, u64::from(most), policy);
        let (places, join_places) =
            (pool(Resource::GroupMember, GROUP_QPS_MAX), pool(Resource::GroupJoin, GROUP_JOINS_MAX));
        GroupMembers { qps: Vec::new(), places, joins: Vec::new(), join_places, payers: Vec::new() }
    }

    /// The attached queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = Qpn> {
        self.qps.iter().map(|(qpn, _)| *qpn)
    }

    /// Whether the group has no members.
    pub fn is_empty(&self) -> bool {
        self.qps.is_empty() && self.joins.is_empty()
    }

    /// Whether a user has a member.
    pub fn has_member_of(&self, account: &Account) -> bool {
        self.payers.iter().any(|payer| payer.charge.account().id() == account.id())
    }

    /// Attaches a queue pair. Attaching it again changes nothing. `group`: what the group costs its user, if that has no member
    /// yet.
    ///
    /// # Errors
    /// ENOMEM: the caller has its share of the group's places, or of all groups', or the group is full.
    pub fn attach(&mut self, caller: &Caller, qpn: Qpn, group: Option<Charge>) -> Result<(), Refusal> {
        if self.qps().any(|attached| attached == qpn) {
            return Ok(());
        }
        let charge = caller.charge(&[(Resource::GroupMember, 1)])?.with_place(caller.place(&self.places)?);
        self.count_member(&caller.account, group);
        self.qps.push((qpn, charge));
        assert!(self.qps.len() <= GROUP_QPS_MAX as usize, "a group has more members than places");
        Ok(())
    }

    /// Detaches a queue pair.
    pub fn detach(&mut self, qpn: Qpn) {
        if let Some(at) = self.qps.iter().position(|(attached, _)| *attached == qpn) {
            let (_, charge) = self.qps.swap_remove(at);
            self.discount_member(charge.account());
        }
    }

    /// Adds a join of one of the caller's ids; `group` as for [`GroupMembers::attach`].
    ///
    /// # Errors
    /// ENOMEM: the caller has its share of the group's joins, or of all groups', or there are as many as there may be.
    pub fn join(&mut self, caller: &Caller, group: Option<Charge>) -> Result<(), Refusal> {
        let charge = caller.charge(&[(Resource::GroupJoin, 1)])?.with_place(caller.place(&self.join_places)?);
        self.count_member(&caller.account, group);
        self.joins.push(charge);
        assert!(self.joins.len() <= GROUP_JOINS_MAX as usize, "a group has more joins than places");
        Ok(())
    }

    /// Removes a join of one of a user's ids.
    pub fn leave(&mut self, account: &Account) {
        let at = self.joins.iter().position(|charge| charge.account().id() == account.id());
        debug_assert!(at.is_some(), "no id of {} has joined", account.id());
        if let Some(at) = at {
            let charge = self.joins.swap_remove(at);
            self.discount_member(charge.account());
        }
    }

    fn count_member(&mut self, account: &Account, group: Option<Charge>) {
        let known = self.payers.iter_mut().find(|payer| payer.charge.account().id() == account.id());
        match (known, group) {
            (Some(payer), _) => payer.members += 1,
            (None, Some(charge)) => self.payers.push(GroupPayer { members: 1, charge }),
            (None, None) => unreachable!("the first member of a user has the group's charge"),
        }
    }

    fn discount_member(&mut self, account: &Account) {
        let at = self.payers.iter().position(|payer| payer.charge.account().id() == account.id());
        let at = at.expect("the user of a member pays for the group");
        self.payers[at].members -= 1;
        if self.payers[at].members == 0 {
            self.payers.swap_remove(at);
        }
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
