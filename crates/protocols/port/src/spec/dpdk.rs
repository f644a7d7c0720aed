//! Options of the kind `dpdk`, and how they are separated from the device's own arguments.
//!
//! Commas separate the arguments of a DPDK device and the options of a port alike. Options of the port are the keys of
//! [`DPDK_OPTIONS`]; every other word after `dev=` belongs to the device:
//! `dpdk:dev=net_memif0,role=server,socket=/run/m.sock,addr=10.0.0.1/24`. `addr` and `gw` may be given several times.

use super::devargs::{DevArgs, Pages};
use super::placement::{Placed, PortPlacement, cpus_row, workers_row};
use super::{LOOPBACK, OptionRow, apply, nonempty, set, switch};
use crate::lan::Prefix;
use std::net::IpAddr;

/// Accepted MTUs in bytes, from the least for an RDMA MTU of 256 to a jumbo frame.
const MTU_RANGE: core::ops::RangeInclusive<u16> = 576..=9600;

/// Options of `dpdk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSpec {
    /// Name and arguments of the device, as for DPDK's `--vdev` or `--allow`.
    pub dev: String,
    /// Addresses with their prefixes, the default one first.
    pub addrs: Vec<Prefix>,
    /// Gateways, at most one per address family.
    pub gateways: Vec<IpAddr>,
    /// MTU of the link in bytes; `None`: the device's.
    pub mtu: Option<u16>,
    /// Pages of DPDK's memory.
    pub pages: Pages,
    /// Whether packets to own addresses are looped back in the daemon.
    pub loopback: bool,
    /// Workers and processors.
    pub placement: PortPlacement,
}

impl Placed for DpdkSpec {
    fn placement(&mut self) -> &mut PortPlacement {
        &mut self.placement
    }
}

impl Default for DpdkSpec {
    fn default() -> Self {
        DpdkSpec {
            dev: String::new(),
            addrs: Vec::new(),
            gateways: Vec::new(),
            mtu: None,
            pages: Pages::default(),
            loopback: true,
            placement: PortPlacement::default(),
        }
    }
}

/// Options of `dpdk`.
pub const DPDK_OPTIONS: &[OptionRow<DpdkSpec>] = &[
    OptionRow {
        key: "dev",
        value: "DEVARGS",
        help: "DPDK device and its arguments: net_memif0,role=server,socket=/run/m.sock or 0000:03:00.0",
        set: |s, v| set(&mut s.dev, nonempty(v).map(str::to_owned)),
    },
    OptionRow {
        key: "addr",
        value: "IP/PREFIX",
        help: "address and prefix length of this host on the device's network; may be repeated",
        set: |s, v| v.parse().map(|prefix| s.addrs.push(prefix)),
    },
    OptionRow {
        key: "gw",
        value: "IP",
        help: "gateway to other networks; may be repeated, once for IPv4 and once for IPv6",
        set: |s, v| v.parse().map(|ip| s.gateways.push(ip)).map_err(|_| "is not an IP address".into()),
    },
    OptionRow {
        key: "mtu",
        value: "BYTES",
        help: "MTU of the link; default: 4200 on memif and ring, else the device's",
        set: |s, v| {
            let mtu = v.parse().ok().filter(|mtu| MTU_RANGE.contains(mtu));
            set(&mut s.mtu, mtu.map(Some).ok_or("is not from 576 to 9600".into()))
        },
    },
    OptionRow {
        key: "huge",
        value: "auto|on|off",
        help: "huge pages; auto uses them when 64 MiB are free; physical devices need them",
        set: |s, v| {
            let pages = match (v, burst_grammar::switch(v)) {
                ("auto", _) => Ok(Pages::Auto),
                (_, Some(true)) => Ok(Pages::Huge),
                (_, Some(false)) => Ok(Pages::Small),
                _ => Err("is not auto, on or off".into()),
            };
            set(&mut s.pages, pages)
        },
    },
    OptionRow { key: "loopback", value: "on|off", help: LOOPBACK, set: |s, v| set(&mut s.loopback, switch(v)) },
    workers_row(),
    cpus_row(),
];

/// Parses the options after `dpdk:`.
pub(super) fn parse(options: &str) -> Result<DpdkSpec, String> {
    let is_ours = |word: &str| DPDK_OPTIONS.iter().any(|row| row.key == word.split('=').next().unwrap_or(word).trim());
    let (mut ours, mut device, mut named) = (Vec::new(), Vec::new(), false);
    for word in options.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        if let Some(dev) = word.strip_prefix("dev=") {
            device.insert(0, dev);
            named = true;
        } else if named && !is_ours(word) {
            device.push(word);
        } else {
            ours.push(word);
        }
    }
    let mut spec = apply(DpdkSpec::default(), DPDK_OPTIONS, "dpdk", &ours.join(","))?;
    spec.dev = device.join(",");
    DevArgs::parse(&spec.dev).map_err(|why| format!("dpdk {why}"))?;
    if spec.addrs.is_empty() {
        return Err("dpdk owns its device, so it needs an address: add addr=10.0.0.1/24".into());
    }
    for v4 in [true, false] {
        if spec.gateways.iter().filter(|g| g.is_ipv4() == v4).count() > 1 {
            return Err("gw= is given twice for one address family".into());
        }
    }
    if let Some(lost) = spec.gateways.iter().find(|g| !spec.addrs.iter().any(|p| p.contains(**g))) {
        return Err(format!("gw={lost} is not on the network of any addr="));
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, PortSpec};
    use super::*;

    fn dpdk(text: &str) -> DpdkSpec {
        let PortKind::Dpdk(dpdk) = PortSpec::parse(text).unwrap().kind else { panic!("{text}") };
        dpdk
    }

    fn why(text: &str) -> String {
        PortSpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn options_of_the_device_and_of_the_port_are_separated() {
        let text =
            "dpdk:dev=net_memif0,role=server,socket=/run/a/m.sock,addr=10.0.0.1/24,bsize=8192,addr=fd00::1/64,mtu=4000";
        let spec = dpdk(text);
        assert_eq!(spec.dev, "net_memif0,role=server,socket=/run/a/m.sock,bsize=8192");
        assert_eq!(spec.addrs.iter().map(|p| p.len).collect::<Vec<_>>(), [24, 64]);
        assert_eq!((spec.mtu, spec.pages), (Some(4000), Pages::Auto));
        let spec = dpdk("dpdk:addr=10.0.0.1/16,gw=10.0.0.254,huge=on,dev=0000:03:00.0");
        assert_eq!((spec.dev.as_str(), spec.pages, spec.gateways.len()), ("0000:03:00.0", Pages::Huge, 1));
    }

    #[test]
    fn it_can_be_wrapped_and_displays_its_text() {
        let text = "impair:loss=1%/dpdk:dev=net_ring0,addr=10.0.0.1/24";
        let spec = PortSpec::parse(text).unwrap();
        assert_eq!((spec.impair.len(), spec.to_string().as_str()), (1, text));
    }

    #[test]
    fn mistakes_get_a_sentence() {
        assert!(why("dpdk").contains("names no device"));
        assert!(why("dpdk:addr=10.0.0.1/24").contains("names no device"));
        assert!(why("dpdk:dev=net_ring0").contains("needs an address"));
        assert!(why("dpdk:adr=10.0.0.1,dev=net_ring0").contains("did you mean 'addr'?"));
        assert!(why("dpdk:dev=net_ring0,addr=10.0.0.1/40").contains("from 1 to 32"));
        assert!(why("dpdk:dev=net_ring0,addr=10.0.0.1,mtu=100").contains("from 576 to 9600"));
        assert!(why("dpdk:dev=net_ring0,addr=10.0.0.1,huge=maybe").contains("auto, on or off"));
        assert!(why("dpdk:dev=net_ring0,addr=10.0.0.1,gw=10.9.0.1").contains("not on the network"));
        assert!(why("dpdk:dev=net_ring0,addr=10.0.0.1,gw=10.0.0.3,gw=10.0.0.4").contains("twice"));
    }
}
