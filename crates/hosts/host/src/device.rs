//! Devices: one per configured port, named `burst0`, `burst1`, …

use crate::groups::{GROUP_QPS_MAX, GROUPS_MAX};
use burst_base::DeviceId;
use burst_base::gid::gid_of;
use burst_control::{DeviceInfo, GidInfo, Limits};
use burst_port::{PortAddr, PortCaps};
use burst_shm::{CQE_MAX, INLINE_MAX, SGE_MAX, WR_MAX};
use burst_transport::{MESSAGE_BYTES_MAX, RD_ATOMIC_MAX};

/// What every device allows.
pub const LIMITS: Limits = Limits {
    max_qp: 100_000,
    max_qp_wr: WR_MAX,
    max_sge: SGE_MAX,
    max_inline: INLINE_MAX,
    max_cq: 1 << 17,
    max_cqe: CQE_MAX,
    max_mr: 1 << 19,
    max_pd: 1 << 16,
    max_ah: 1 << 17,
    max_srq: 1 << 16,
    max_srq_wr: WR_MAX,
    max_rd_atomic: RD_ATOMIC_MAX as u32,
    max_msg_sz: MESSAGE_BYTES_MAX as u32,
    max_mr_size: 1 << 40,
    max_dm_size: 1 << 20,
    max_mcast_grp: GROUPS_MAX,
    max_mcast_qp_attach: GROUP_QPS_MAX,
};

const _: () = assert!(MESSAGE_BYTES_MAX <= u32::MAX as u64);

/// A device and what its port was when last asked.
#[derive(Debug)]
pub struct HostDevice {
    /// Number.
    pub id: DeviceId,
    /// Port as it is.
    pub caps: PortCaps,
    /// What programs were last told of it.
    last_reported: PortReport,
}

/// What programs learn of by events.
#[derive(Debug, PartialEq, Eq)]
struct PortReport {
    up: bool,
    addrs: Vec<PortAddr>,
}

/// What programs shall be told of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortChanges {
    /// The link went up or down.
    pub up: Option<bool>,
    /// The GID table changed.
    pub gids: bool,
}

impl HostDevice {
    /// A device whose port is `caps`.
    pub fn new(id: DeviceId, caps: PortCaps) -> HostDevice {
        let last_reported = PortReport { up: caps.up, addrs: caps.addrs.clone() };
        HostDevice { id, caps, last_reported }
    }

    /// What has changed since this was last asked; `None` if nothing has.
    pub fn news(&mut self) -> Option<PortChanges> {
        let now = PortReport { up: self.caps.up, addrs: self.caps.addrs.clone() };
        let before = std::mem::replace(&mut self.last_reported, now);
        let (up, gids) = (self.last_reported.up, self.last_reported.addrs != before.addrs);
        (before != self.last_reported).then_some(PortChanges { up: (up != before.up).then_some(up), gids })
    }
}

impl HostDevice {
    /// As told to applications.
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
        }
    }

    /// EUI-64 of the MAC address (IBA 4.1), with the device number in the filler when there is no MAC.
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
    fn each_change_is_news_once() {
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
        assert_eq!(device.news(), None);
        device.caps.link_mtu = 1500;
        assert_eq!(device.news(), None);
        device.caps.addrs.push(addr("192.0.2.2"));
        assert_eq!(device.news(), Some(PortChanges { up: None, gids: true }));
        device.caps.up = false;
        assert_eq!(device.news(), Some(PortChanges { up: Some(false), gids: false }));
        device.caps.up = true;
        device.caps.addrs.pop();
        assert_eq!(device.news(), Some(PortChanges { up: Some(true), gids: true }));
        assert_eq!(device.news(), None);
    }
}
