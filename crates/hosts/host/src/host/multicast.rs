//! Membership in multicast groups: the port joins and leaves, the workers learn the members.
//!
//! Only the port of worker 0 joins a group. Worker 0 copies a datagram to its own members and hands one copy to each other
//! worker that has members.

use super::Host;
use crate::authority::Caller;
use crate::groups::GroupMembers;
use crate::limits::GROUPS_MAX;
use crate::refusal::refuse;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_engine::multicast::MulticastGroup;
use burst_engine::qpn::worker_of;
use burst_ledger::{Account, Charge, Resource};
use std::net::IpAddr;

impl Host {
    /// Attaches a queue pair to a group. Attaching it again changes nothing.
    ///
    /// # Errors
    /// ENOMEM when there are too many groups or members; the port's errno when it cannot join.
    pub(crate) fn attach(&mut self, caller: &Caller, device: DeviceId, ip: IpAddr, qpn: Qpn) -> Result<(), Refusal> {
        let (members, group) = self.join_port(caller, device, ip)?;
        let attached = members.attach(caller, qpn, group);
        if attached.is_ok() {
            self.update_workers(device, ip);
        } else {
            self.leave_port_if_empty(device, ip);
        }
        attached
    }

    /// Detaches a queue pair from a group.
    pub fn detach(&mut self, device: DeviceId, ip: IpAddr, qpn: Qpn) {
        if let Some(members) = self.groups.groups.get_mut(&(device, ip)) {
            members.detach(qpn);
            debug_assert!(members.qps().all(|attached| attached != qpn), "a queue pair is attached once");
        }
        self.update_workers(device, ip);
        self.leave_port_if_empty(device, ip);
    }

    /// Adds an id to a group.
    ///
    /// # Errors
    /// As [`Host::attach`].
    pub(crate) fn join(&mut self, caller: &Caller, device: DeviceId, ip: IpAddr) -> Result<(), Refusal> {
        let (members, group) = self.join_port(caller, device, ip)?;
        let joined = members.join(caller, group);
        self.leave_port_if_empty(device, ip);
        joined
    }

    /// Removes an id of a user that had joined from a group.
    pub(crate) fn leave(&mut self, account: &Account, device: DeviceId, ip: IpAddr) {
        if let Some(members) = self.groups.groups.get_mut(&(device, ip)) {
            members.leave(account);
        }
        self.leave_port_if_empty(device, ip);
    }

    /// Makes the port take part in the group, unless it does already. Returns the members, and what the group costs the caller if
    /// that has no member in it.
    fn join_port(
        &mut self,
        caller: &Caller,
        device: DeviceId,
        ip: IpAddr,
    ) -> Result<(&mut GroupMembers, Option<Charge>), Refusal> {
        let policy = self.ledger.policy();
        let known = self.groups.groups.get(&(device, ip));
        let has_member = known.is_some_and(|members| members.has_member_of(&caller.account));
        let is_new = known.is_none();
        let charge = if has_member { None } else { Some(self.charge_group(caller, device)?) };
        if is_new {
            self.take_part(device, ip)?;
        }
        let members = self.groups.groups.entry((device, ip)).or_insert_with(|| GroupMembers::new(policy));
        Ok((members, charge))
    }

    /// Charges a group to a user who has no member in it.
    fn charge_group(&self, caller: &Caller, device: DeviceId) -> Result<Charge, Refusal> {
        // A port may have a descriptor for each group.
        let charge = caller.charge(&[(Resource::Group, 1), (Resource::Descriptor, 1)])?;
        Ok(charge.with_place(caller.place(&self.devices[device.index()].groups)?))
    }

    /// Makes the port take part in a new group.
    fn take_part(&mut self, device: DeviceId, ip: IpAddr) -> Result<(), Refusal> {
        if self.groups.groups.len() >= GROUPS_MAX as usize {
            return refuse(libc::ENOMEM, format!("there are at most {GROUPS_MAX} multicast groups"));
        }
        let joined = self.on_worker(0, move |w, _| w.join_group(device, ip));
        joined.map_err(|e| {
            let errno = match &e {
                burst_port::PortError::Unsupported { .. } => libc::EOPNOTSUPP,
                burst_port::PortError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::ENOMEM,
            };
            Refusal { errno, sentence: e.to_string() }
        })
    }

    fn leave_port_if_empty(&mut self, device: DeviceId, ip: IpAddr) {
        let key = (device, ip);
        if self.groups.groups.get(&key).is_some_and(GroupMembers::is_empty) {
            self.groups.groups.remove(&key);
            self.on_worker(0, move |w, _| w.leave_group(device, ip));
        }
    }

    /// Gives every worker its members of the group, and the set of workers that have members.
    fn update_workers(&self, device: DeviceId, ip: IpAddr) {
        let Some(members) = self.groups.groups.get(&(device, ip)) else { return };
        let workers = members.qps().fold(0u32, |bits, q| bits | 1 << worker_of(q));
        assert!(
            workers.checked_shr(self.workers.len() as u32).unwrap_or(0) == 0,
            "a member of a worker that is not there"
        );
        for worker in 0..self.workers.len() {
            let own = members.qps().filter(|q| worker_of(*q) as usize == worker).collect();
            let group = MulticastGroup { device, ip, members: own, workers };
            self.on_worker(worker, move |w, _| w.set_group(group));
        }
    }
}
