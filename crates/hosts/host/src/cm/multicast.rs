//! Ids in multicast groups: `rdma_join_multicast` and `rdma_leave_multicast`.
//!
//! Ethernet has no subnet administrator to ask: the group's GID is its IP address, and the port joins by IGMP or MLD. The event
//! carries what a program needs to send: the group's GID, and the Q_Key that all ids of the port space share.

use super::client::CmClient;
use super::resolve::device_of;
use crate::host::Host;
use crate::refusal::refuse;
use burst_base::gid::gid_of;
use burst_base::verbs::QpType;
use burst_control::Refusal;
use burst_control::cm::{CmAddr, CmEvent, CmEventKind, CmId, CmReply, CmRoute, ConnAttr};

/// Q_Key of all ids of the datagram port space (`RDMA_UDP_QKEY` of rdma_cma.h).
const DATAGRAM_QKEY: u32 = 0x0123_4567;
/// Maximum number of groups of one id.
const GROUPS_MAX: usize = 256;

impl CmClient {
    /// Joins a group (`rdma_join_multicast`). The result comes as an event.
    pub(super) fn join(&mut self, host: &mut Host, id: CmId, addr: CmAddr, cookie: u64) -> Result<CmReply, Refusal> {
        let caller = self.caller.clone();
        let id = self.id(id)?;
        if id.entry.qp_type != QpType::Ud {
            return refuse(libc::EINVAL, "groups are for datagrams: use an id of IBV_QPT_UD");
        }
        let Some(device) = device_of(&id.route) else {
            return refuse(libc::ENODEV, "the id has no device yet: bind it or resolve an address first");
        };
        if !addr.ip.is_multicast() {
            return refuse(libc::EINVAL, format!("{} is not a multicast address", addr.ip));
        }
        if id.groups.len() >= GROUPS_MAX {
            return refuse(libc::ENOMEM, format!("an id is in at most {GROUPS_MAX} multicast groups"));
        }
        // The command itself was valid: whether the port could join is in the event.
        let (kind, status) = match host.join(&caller, device, addr.ip) {
            Ok(()) => {
                id.groups.push((device, addr));
                (CmEventKind::MulticastJoin, 0)
            }
            Err(refusal) => {
                tracing::debug!(errno = refusal.errno, "multicast join failed: {}", refusal.sentence);
                (CmEventKind::MulticastError, -refusal.errno)
            }
        };
        let route = CmRoute { dst: Some(addr), dgid: gid_of(addr.ip), ..id.route };
        let conn = ConnAttr { qkey: DATAGRAM_QKEY, ..ConnAttr::default() };
        let event = CmEvent { status, cookie, route, conn, ..CmEvent::new(kind, id.entry.id) };
        host.cm.write(&id.entry, &event);
        Ok(CmReply::Done)
    }

    /// Leaves a group (`rdma_leave_multicast`).
    pub(super) fn leave(&mut self, host: &mut Host, id: CmId, addr: CmAddr) -> Result<CmReply, Refusal> {
        let id = self.id(id)?;
        let Some(at) = id.groups.iter().position(|(_, a)| a.ip == addr.ip) else {
            return refuse(libc::EADDRNOTAVAIL, format!("the id has not joined {}", addr.ip));
        };
        let (device, addr) = id.groups.swap_remove(at);
        host.leave(&self.caller.account, device, addr.ip);
        Ok(CmReply::Done)
    }
}
