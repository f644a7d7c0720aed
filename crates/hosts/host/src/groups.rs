//! Multicast groups: who is in them, and so which groups the ports take part in and what the workers deliver.
//!
//! A port takes part in a group as long as a queue pair is attached to it (`ibv_attach_mcast`) or an id has joined it
//! (`rdma_join_multicast`). Only worker 0's port is asked: datagrams to groups are copied to the other workers' members.

use crate::host::Host;
use crate::session::refuse;
use burst_base::gid::ip_of;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_engine::multicast::MulticastGroup;
use burst_engine::qpn::worker_of;
use std::collections::HashMap;
use std::net::IpAddr;

/// Most groups of the daemon.
pub const GROUPS_MAX: u32 = 256;
/// Most queue pairs attached to one group.
pub const GROUP_QPS_MAX: u32 = 1024;

/// Members of one group.
#[derive(Debug, Default)]
struct GroupMembers {
    qps: Vec<Qpn>,
    /// Ids that have joined.
    joins: u32,
}

/// See the module. By device and address.
#[derive(Debug, Default)]
pub struct MulticastGroups {
    groups: HashMap<(DeviceId, IpAddr), GroupMembers>,
}

/// The address of a multicast GID.
///
/// # Errors
/// EINVAL for any other GID.
pub fn group_of(gid: [u8; 16]) -> Result<IpAddr, Refusal> {
    let ip = ip_of(gid);
    if ip.is_multicast() { Ok(ip) } else { refuse(libc::EINVAL, format!("{ip} is not a multicast address")) }
}

impl Host {
    /// Attaches a queue pair; once more is the same.
    pub fn attach(&mut self, device: DeviceId, ip: IpAddr, qpn: Qpn) -> Result<(), Refusal> {
        self.enter(device, ip)?;
        let members = self.groups.groups.entry((device, ip)).or_default();
        if members.qps.len() >= GROUP_QPS_MAX as usize {
            return refuse(libc::ENOMEM, format!("a multicast group has at most {GROUP_QPS_MAX} queue pairs"));
        }
        if !members.qps.contains(&qpn) {
            members.qps.push(qpn);
        }
        self.tell_workers(device, ip);
        Ok(())
    }

    /// Detaches a queue pair.
    pub fn detach(&mut self, device: DeviceId, ip: IpAddr, qpn: Qpn) {
        if let Some(members) = self.groups.groups.get_mut(&(device, ip)) {
            members.qps.retain(|q| *q != qpn);
        }
        self.tell_workers(device, ip);
        self.quit_if_empty(device, ip);
    }

    /// An id joins a group.
    pub fn join(&mut self, device: DeviceId, ip: IpAddr) -> Result<(), Refusal> {
        self.enter(device, ip)?;
        self.groups.groups.entry((device, ip)).or_default().joins += 1;
        Ok(())
    }

    /// An id leaves a group that it had joined.
    pub fn leave(&mut self, device: DeviceId, ip: IpAddr) {
        if let Some(members) = self.groups.groups.get_mut(&(device, ip)) {
            members.joins = members.joins.saturating_sub(1);
        }
        self.quit_if_empty(device, ip);
    }

    /// Makes the port take part in the group, if it does not yet.
    fn enter(&mut self, device: DeviceId, ip: IpAddr) -> Result<(), Refusal> {
        if self.groups.groups.contains_key(&(device, ip)) {
            return Ok(());
        }
        if self.groups.groups.len() >= GROUPS_MAX as usize {
            return refuse(libc::ENOMEM, format!("there are at most {GROUPS_MAX} multicast groups"));
        }
        self.on_worker(0, move |w, _| w.join_group(device, ip)).map_err(|e| {
            let errno = match &e {
                burst_port::PortError::Unsupported { .. } => libc::EOPNOTSUPP,
                burst_port::PortError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::ENOMEM,
            };
            Refusal { errno, sentence: e.to_string() }
        })
    }

    fn quit_if_empty(&mut self, device: DeviceId, ip: IpAddr) {
        let key = (device, ip);
        if self.groups.groups.get(&key).is_some_and(|m| m.qps.is_empty() && m.joins == 0) {
            self.groups.groups.remove(&key);
            self.on_worker(0, move |w, _| w.leave_group(device, ip));
        }
    }

    fn tell_workers(&self, device: DeviceId, ip: IpAddr) {
        let Some(members) = self.groups.groups.get(&(device, ip)) else { return };
        let workers = members.qps.iter().fold(0u32, |bits, q| bits | 1 << worker_of(*q));
        for worker in 0..self.workers().len() {
            let own = members.qps.iter().copied().filter(|q| worker_of(*q) as usize == worker).collect();
            let group = MulticastGroup { device, ip, members: own, workers };
            self.on_worker(worker, move |w, _| w.set_group(group));
        }
    }
}
