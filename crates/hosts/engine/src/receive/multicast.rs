//! Multicast groups: which queue pairs get a copy of a datagram to a group (IBA 10.5).
//!
//! Each worker has all groups and its own members. A datagram arrives at one worker, which delivers it to its members and
//! hands one copy to each other worker that has members ([`super::handover`]). A queue pair that is attached to the group gets a
//! copy of its own datagrams, too.

use crate::calls::Egress;
use crate::receive::RxBurst;
use burst_base::{DeviceId, Qpn, Reason};
use burst_frame::RxFrame;
use burst_wire::Packet;
use std::net::IpAddr;

/// A group of one device, in one worker's table.
#[derive(Clone, Debug)]
pub struct MulticastGroup {
    /// Device.
    pub device: DeviceId,
    /// Address.
    pub ip: IpAddr,
    /// Members that belong to this worker.
    pub members: Vec<Qpn>,
    /// Workers that have members, one bit each.
    pub workers: u32,
}

/// The groups of one worker.
#[derive(Debug, Default)]
pub(crate) struct GroupTable {
    groups: Vec<MulticastGroup>,
}

impl GroupTable {
    fn find(&self, device: DeviceId, ip: IpAddr) -> Option<&MulticastGroup> {
        self.groups.iter().find(|g| g.device == device && g.ip == ip)
    }

    /// Replaces a group. A group without members on any worker is removed.
    pub fn set(&mut self, group: MulticastGroup) {
        debug_assert!(group.workers != 0 || group.members.is_empty(), "members of a group without workers");
        self.groups.retain(|g| g.device != group.device || g.ip != group.ip);
        if group.workers != 0 {
            self.groups.push(group);
        }
    }
}

impl RxBurst<'_> {
    /// Delivers a datagram to all members of its group, here and on other workers.
    pub(super) fn multicast(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        let own = self.core.options.id;
        let Some(group) = self.rx.groups.find(self.device, frame.flow.dst) else {
            return self.counters.count(Reason::MulticastMissing);
        };
        let mut others = if self.handed_over { 0 } else { group.workers & !(1 << own) };
        for at in 0..group.members.len() {
            self.deliver_copy(frame, packet, at);
        }
        while others != 0 {
            self.hand_over(others.trailing_zeros(), frame);
            others &= others - 1;
        }
    }

    fn deliver_copy(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>, member: usize) {
        let group = self.rx.groups.find(self.device, frame.flow.dst);
        let Some(&qpn) = group.and_then(|g| g.members.get(member)) else { return };
        let index = self.core.directory.find(qpn);
        let (slot, tables) = self.core.slot_and_tables(self.now, index);
        let Some(slot) = slot.filter(|slot| slot.qpn == qpn) else { return };
        let completions = slot.touch(self.now, &mut self.rx.touched);
        slot.received.add(frame.bytes.len());
        let egress = Egress { batch: self.batch, counters: self.counters };
        tables.call_qp(slot, egress, completions, |qp, env| qp.on_packet(frame, packet, env));
    }
}
