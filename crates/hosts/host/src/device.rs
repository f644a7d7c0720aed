//! Devices: one per configured port, named `burst0`, `burst1`, …

use crate::limits::{GROUPS_MAX, LIMITS};
use crate::refusal::refuse;
use burst_base::gid::gid_of;
use burst_base::{DeviceId, Nanos};
use burst_control::{DeviceInfo, GidInfo, Impairment, Refusal};
use burst_engine::tap::TAPS_MAX;
use burst_ledger::{Policy, Resource, Scope, SharePool};
use burst_port::{PortAddr, PortCaps};

/// A device, and the state of its port as of the last refresh.
#[derive(Debug)]
pub struct HostDevice {
    /// Number of the device: N in `burstN`.
    pub id: DeviceId,
    /// Addresses, link and MTU of the port as of the last refresh.
    pub caps: PortCaps,
    /// The state that the last events to programs described.
    last_reported: PortReport,
    /// How many objects all contexts have on the device.
    pub objects: DeviceObjects,
    /// Places for multicast groups at the port.
    pub(crate) groups: SharePool,
    /// Places for captures of the port's packets.
    pub(crate) captures: SharePool,
    /// Places for objects, by kind; `None` for regions, of which a device may have as many as the daemon has keys.
    pub(crate) places: [Option<SharePool>; DeviceObject::ALL.len()],
    /// Options of `impair` that were set while the daemon runs, and when they end.
    pub impairment: Option<(String, Nanos)>,
}

/// A kind of object whose number per device is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceObject {
    /// Queue pairs.
    Qp,
    /// Completion queues.
    Cq,
    /// Memory regions.
    Mr,
    /// Protection domains.
    Pd,
    /// Address handles.
    Ah,
    /// Shared receive queues.
    Srq,
    /// Memory windows.
    Mw,
}

impl DeviceObject {
    /// Every kind.
    pub const ALL: [DeviceObject; 7] = [
        DeviceObject::Qp,
        DeviceObject::Cq,
        DeviceObject::Mr,
        DeviceObject::Pd,
        DeviceObject::Ah,
        DeviceObject::Srq,
        DeviceObject::Mw,
    ];
    /// The resource of which it is one.
    pub const fn resource(self) -> Resource {
        match self {
            DeviceObject::Qp => Resource::Qp,
            DeviceObject::Cq => Resource::Cq,
            DeviceObject::Mr => Resource::Mr,
            DeviceObject::Mw => Resource::Mw,
            DeviceObject::Pd => Resource::Pd,
            DeviceObject::Ah => Resource::Ah,
            DeviceObject::Srq => Resource::Srq,
        }
    }
    /// The objects' name, the name of the limit in `ibv_query_device`, and the limit.
    const fn limit(self) -> (&'static str, &'static str, u32) {
        match self {
            DeviceObject::Qp => ("queue pairs", "max_qp", LIMITS.max_qp),
            DeviceObject::Cq => ("completion queues", "max_cq", LIMITS.max_cq),
            DeviceObject::Mr => ("memory regions", "max_mr", LIMITS.max_mr),
            DeviceObject::Pd => ("protection domains", "max_pd", LIMITS.max_pd),
            DeviceObject::Ah => ("address handles", "max_ah", LIMITS.max_ah),
            DeviceObject::Srq => ("shared receive queues", "max_srq", LIMITS.max_srq),
            DeviceObject::Mw => ("memory windows", "max_mw", LIMITS.max_mw),
        }
    }
}

/// Counts of a device's objects, of all contexts together: as in the kernel, the limits that `ibv_query_device` reports are
/// the device's, not a context's.
#[derive(Debug, Default)]
pub struct DeviceObjects {
    counts: [u32; DeviceObject::ALL.len()],
}

impl DeviceObjects {
    /// Counts a new object of device `id`.
    ///
    /// # Errors
    /// ENOMEM when the device has as many as its limit allows.
    pub fn add(&mut self, id: DeviceId, object: DeviceObject) -> Result<(), Refusal> {
        let (name, limit, max) = object.limit();
        let count = &mut self.counts[object as usize];
        assert!(*count <= max);
        if *count == max {
            let sentence = format!("device burst{id} has {max} {name}, its limit ({limit}), in all programs together");
            return refuse(libc::ENOMEM, sentence);
        }
        *count += 1;
        Ok(())
    }

    /// Uncounts an object that has ended.
    pub fn remove(&mut self, object: DeviceObject) {
        let count = &mut self.counts[object as usize];
        assert!(*count > 0, "a device has no {object:?} that could end");
        *count -= 1;
    }

    /// How many objects of a kind the device has.
    pub fn count(&self, object: DeviceObject) -> u32 {
        self.counts[object as usize]
    }
}

/// The part of a port's state that programs learn by asynchronous events.
#[derive(Debug, PartialEq, Eq)]
struct PortReport {
    up: bool,
    addrs: Vec<PortAddr>,
}

/// Changes of a port that programs must learn by asynchronous events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortChanges {
    /// The new state of the link, if it changed.
    pub up: Option<bool>,
    /// The GID table changed.
    pub gids: bool,
}

/// The pool of captures of a port.
fn taps(policy: Policy) -> SharePool {
    SharePool::new(Resource::Capture, Scope::Port, TAPS_MAX as u64, policy)
}

/// The pools of a device: groups of its port, and objects by kind.
fn pools(groups: u64, policy: Policy) -> (SharePool, [Option<SharePool>; DeviceObject::ALL.len()]) {
    let of = |kind: DeviceObject| {
        let is_shared = kind.resource().scopes().contains(&Scope::Device);
        is_shared.then(|| SharePool::new(kind.resource(), Scope::Device, kind.limit().2.into(), policy))
    };
    (SharePool::new(Resource::Group, Scope::Port, groups, policy), DeviceObject::ALL.map(of))
}

impl HostDevice {
    /// A device whose port is `caps`.
    pub fn new(id: DeviceId, caps: PortCaps) -> HostDevice {
        let last_reported = PortReport { up: caps.up, addrs: caps.addrs.clone() };
        let policy = Policy::default();
        let (groups, places) = pools(u64::from(GROUPS_MAX), policy);
        let (objects, captures) = (DeviceObjects::default(), taps(policy));
        HostDevice { id, caps, last_reported, objects, groups, captures, places, impairment: None }
    }

    /// Shares the device's objects by `policy`, and as many multicast groups as the port can be in at the same time.
    #[must_use]
    pub fn with_groups(self, port_max: usize, policy: Policy) -> HostDevice {
        let (groups, places) = pools((port_max as u64).min(u64::from(GROUPS_MAX)), policy);
        HostDevice { groups, places, captures: taps(policy), ..self }
    }

    /// The changes since the last call; `None` if nothing has changed.
    pub fn take_changes(&mut self) -> Option<PortChanges> {
        let now = PortReport { up: self.caps.up, addrs: self.caps.addrs.clone() };
        let before = std::mem::replace(&mut self.last_reported, now);
        let (up, gids) = (self.last_reported.up, self.last_reported.addrs != before.addrs);
        (before != self.last_reported).then_some(PortChanges { up: (up != before.up).then_some(up), gids })
    }
}

impl HostDevice {
    /// The description of the device, with the impairment in force at `now`.
    pub fn info_at(&self, now: Nanos) -> DeviceInfo {
        let in_force = self.impairment.as_ref().filter(|(_, until)| *until > now);
        let impairment =
            in_force.map(|(options, until)| Impairment { options: options.clone(), left_ns: until.since(now).0 });
        DeviceInfo { impairment, ..self.info() }
    }

    /// The description of the device for programs.
    pub fn info(&self) -> DeviceInfo {
        let gid =
            |a: &burst_port::PortAddr| GidInfo { gid: gid_of(a.ip), ifname: a.ifname.clone(), ifindex: a.ifindex };
        DeviceInfo {
            index: self.id.into(),
            name: format!("burst{}", self.id),
            guid: self.guid(),
            port: self.caps.name.clone(),
            up: self.caps.up,
            link_mtu: self.caps.link_mtu,
            active_mtu: self.caps.active_mtu(),
            speed_mbps: self.caps.speed_mbps,
            ifname: self.caps.ifname.clone(),
            mac: self.caps.mac,
            gids: self.caps.addrs.iter().map(gid).collect(),
            limits: LIMITS,
            impairment: None,
        }
    }

    /// The EUI-64 of the MAC address (IBA 4.1.1). Without a MAC address: the process id and the device number.
    fn guid(&self) -> u64 {
        let m = self.caps.mac;
        if m == [0; 6] {
            let id = u64::from(std::process::id());
            return 0x0200_0000_0000_0000 | (id << 8) | u64::from(self.id.0);
        }
        u64::from_be_bytes([m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_to_the_limit_of_the_device() {
        let mut objects = DeviceObjects::default();
        for _ in 0..LIMITS.max_pd {
            objects.add(DeviceId(0), DeviceObject::Pd).expect("below the limit");
        }
        let refusal = objects.add(DeviceId(0), DeviceObject::Pd).expect_err("full");
        assert_eq!(refusal.errno, libc::ENOMEM);
        assert!(refusal.sentence.contains("burst0") && refusal.sentence.contains("max_pd"), "{}", refusal.sentence);
        assert!(objects.add(DeviceId(0), DeviceObject::Cq).is_ok(), "each kind has its own limit");
        objects.remove(DeviceObject::Pd);
        assert_eq!(objects.count(DeviceObject::Pd), LIMITS.max_pd - 1);
        assert!(objects.add(DeviceId(0), DeviceObject::Pd).is_ok());
    }

    #[test]
    fn each_change_is_reported_once() {
        let addr = |ip: &str| PortAddr { ip: ip.parse().expect("ip"), ifindex: 1, ifname: "x".into(), reach: None };
        let caps = PortCaps {
            name: "udp".into(),
            addrs: vec![addr("192.0.2.1")],
            link_mtu: 9000,
            up: true,
            speed_mbps: 0,
            ifname: "x".into(),
            mac: [0; 6],
        };
        let mut device = HostDevice::new(DeviceId(0), caps);
        assert_eq!(device.take_changes(), None);
        device.caps.link_mtu = 1500;
        assert_eq!(device.take_changes(), None);
        device.caps.addrs.push(addr("192.0.2.2"));
        assert_eq!(device.take_changes(), Some(PortChanges { up: None, gids: true }));
        device.caps.up = false;
        assert_eq!(device.take_changes(), Some(PortChanges { up: Some(false), gids: false }));
        device.caps.up = true;
        device.caps.addrs.pop();
        assert_eq!(device.take_changes(), Some(PortChanges { up: Some(true), gids: true }));
        assert_eq!(device.take_changes(), None);
    }
}
