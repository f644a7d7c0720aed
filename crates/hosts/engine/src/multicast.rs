//! Multicast groups: which queue pairs get a copy of a datagram to a group (IBA 10.5).
//!
//! Each worker has the same groups and its own members. A datagram arrives at one worker, whichever the port chose; it
//! delivers to its members and hands one copy to each other worker that has members too ([`crate::handover`]). The queue
//! pair that sent it gets its copy as the others do, if it is attached.

use crate::effects::{Fx, SlotView};
use crate::qpn::slot_of;
use crate::receive::Walk;
use crate::worker::{Core, Worker};
use burst_base::{DeviceId, Qpn, Reason};
use burst_frame::RxFrame;
use burst_port::PortError;
use burst_transport::Env;
use burst_wire::Packet;
use std::net::IpAddr;

/// A group of one port, as one worker sees it.
#[derive(Clone, Debug)]
pub struct Group {
    /// Device.
    pub device: DeviceId,
    /// Address.
    pub ip: IpAddr,
    /// Members that this worker owns.
    pub members: Vec<Qpn>,
    /// Workers that have members, one bit each.
    pub workers: u32,
}

/// The groups of one worker.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<Group>,
}

impl Groups {
    fn find(&self, device: DeviceId, ip: IpAddr) -> Option<&Group> {
        self.groups.iter().find(|g| g.device == device && g.ip == ip)
    }
}

impl Worker {
    /// Says who is in a group now; without members anywhere it is forgotten.
    pub fn set_group(&mut self, group: Group) {
        let groups = &mut self.core.groups.groups;
        groups.retain(|g| g.device != group.device || g.ip != group.ip);
        if group.workers != 0 {
            groups.push(group);
        }
    }

    /// Makes a port take part in a group.
    ///
    /// # Errors
    /// What the port says.
    pub fn join_group(&mut self, device: DeviceId, ip: IpAddr) -> Result<(), PortError> {
        self.ports[device.index()].port.join(ip)
    }

    /// Makes a port leave a group.
    pub fn leave_group(&mut self, device: DeviceId, ip: IpAddr) {
        self.ports[device.index()].port.leave(ip);
    }
}

impl Walk<'_> {
    /// A datagram to a group: to all members, here and on other workers.
    pub(crate) fn multicast(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        let own = self.core.options.id;
        let Some(group) = self.core.groups.find(self.device, frame.flow.dst) else {
            return self.counters.count(Reason::MulticastMissing);
        };
        let mut others = if self.handed { 0 } else { group.workers & !(1 << own) };
        for at in 0..group.members.len() {
            self.deliver_copy(frame, packet, at);
        }
        while others != 0 {
            self.hand_over(others.trailing_zeros(), frame);
            others &= others - 1;
        }
    }

    fn deliver_copy(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>, member: usize) {
        let Core { qps, cqs, ahs, xrc, mem, outbox, touched, groups, .. } = &mut *self.core;
        let Some(&qpn) = groups.find(self.device, frame.flow.dst).and_then(|g| g.members.get(member)) else { return };
        let index = slot_of(qpn);
        let Some(slot) = qps.get_mut(index as usize).and_then(Option::as_mut).filter(|s| s.qpn == qpn) else { return };
        let view = SlotView { async_events: &slot.async_events, event_cookie: slot.event_cookie, others: &slot.others };
        let mut fx = Fx { cqs, ahs, xrc, counters: self.counters, outbox, slot: view, signal: None, defer: false };
        slot.qp.on_packet(frame, packet, &mut Env { now: self.now, mem, tx: self.batch, fx: &mut fx });
        if !slot.touched {
            slot.touched = true;
            touched.push(index);
        }
    }
}
