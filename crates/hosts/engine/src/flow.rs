//! From verbs addresses to flows: GIDs, GID indices, traffic class.

pub use burst_base::gid::{gid_of, ip_of};

use crate::paths::ecn::sent_tos;
use burst_base::Qpn;
use burst_base::verbs::AhAttr;
use burst_frame::Flow;
use burst_port::{PortAddr, PortCaps};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hop limit when the application gives none.
pub const HOP_LIMIT_DEFAULT: u8 = 64;
/// First UDP source port of RoCEv2 flows.
const SRC_PORT_FIRST: u16 = 0xC000;

/// Why an address cannot be used, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowError(pub String);

/// 20 bits that spread connected queue pairs over UDP source ports. Programs that start together often have the same queue pair
/// numbers at both ends, so the difference of both would not spread them; a multiplicative hash of both does.
pub fn entropy_of(local: Qpn, remote: Qpn) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let pair = u64::from(local.get()) << 24 | u64::from(remote.get());
    (pair.wrapping_mul(ODD) >> 44) as u32
}

/// The flow that an address vector means on a port. `entropy` ([`entropy_of`]) spreads flows over UDP source ports when
/// the application gave no flow label.
///
/// # Errors
/// A sentence for the log and the refusal.
pub fn flow_of(caps: &PortCaps, attr: &AhAttr, entropy: u32) -> Result<Flow, FlowError> {
    if !attr.is_global {
        return Err(FlowError(
            "RoCE needs a global address: set ah_attr.is_global and a GID index (-g or -x on test programs)".into(),
        ));
    }
    let source = caps.addrs.get(usize::from(attr.sgid_index)).ok_or_else(|| {
        FlowError(format!("GID index {} does not exist; the port has {}", attr.sgid_index, caps.addrs.len()))
    })?;
    let dst = ip_of(attr.dgid);
    // The kernel resolves a group by its own address only (`ib_resolve_eth_dmac`), whatever the source is: perftest's default
    // group is of IPv6, and its default GID of IPv4. The datagram leaves from another address of the interface. If the interface
    // has none of that family, the flow has no source, and ports drop and count its packets.
    let of_family = |addr: &&PortAddr| addr.ip.is_ipv4() == dst.is_ipv4() && addr.ifindex == source.ifindex;
    let src = match dst.is_multicast() && dst.is_ipv4() != source.ip.is_ipv4() {
        true => caps.addrs.iter().find(of_family).map_or(unspecified_like(dst), |addr| addr.ip),
        false => source.ip,
    };
    if dst.is_unspecified() {
        return Err(FlowError("the destination GID is zero".into()));
    }
    if dst.is_ipv4() != src.is_ipv4() {
        return Err(FlowError(format!(
            "GID index {} is {}, but the destination is {dst}: use GIDs of one family at both ends",
            attr.sgid_index, source.ip
        )));
    }
    let label = if attr.flow_label == 0 { entropy } else { attr.flow_label };
    let link_local = matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast());
    Ok(Flow {
        src,
        dst,
        src_port: SRC_PORT_FIRST | (fold(label) & 0x3fff),
        tos: sent_tos(attr.traffic_class, None),
        hop_limit: if attr.hop_limit == 0 { HOP_LIMIT_DEFAULT } else { attr.hop_limit },
        flow_label: attr.flow_label & 0xf_ffff,
        scope: if link_local { source.ifindex } else { 0 },
    })
}

/// The unspecified address of the family of `ip`.
fn unspecified_like(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Folds 20 bits of flow label into 14 bits of port number.
fn fold(label: u32) -> u16 {
    let low = label & 0x3fff;
    let high = (label & 0xf_c000) >> 14;
    (low ^ high) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_port::PortAddr;

    fn caps() -> PortCaps {
        let addr = |ip: &str| PortAddr { ip: ip.parse().expect("ip"), ifindex: 3, ifname: "eth0".into(), reach: None };
        PortCaps {
            name: "mem".into(),
            addrs: vec![addr("10.0.0.1"), addr("fd00::1"), addr("fe80::1")],
            link_mtu: 9000,
            up: true,
            speed_mbps: 0,
            ifname: "eth0".into(),
            mac: [0; 6],
        }
    }

    fn attr(ip: &str, index: u8) -> AhAttr {
        AhAttr { dgid: gid_of(ip.parse().expect("ip")), sgid_index: index, is_global: true, ..AhAttr::default() }
    }

    #[test]
    fn ipv4_and_link_local() {
        let flow = flow_of(&caps(), &attr("10.0.0.2", 0), 7).expect("flow");
        assert_eq!(
            (flow.src.to_string(), flow.dst.to_string(), flow.hop_limit),
            ("10.0.0.1".into(), "10.0.0.2".into(), 64)
        );
        assert!(flow.src_port >= SRC_PORT_FIRST);
        assert_eq!(flow_of(&caps(), &attr("fe80::2", 2), 0).expect("flow").scope, 3);
    }

    #[test]
    fn datagrams_to_a_group_leave_from_an_address_of_its_family() {
        let flow = |group: &str, index| flow_of(&caps(), &attr(group, index), 0).map(|flow| flow.src.to_string());
        assert_eq!(flow("ff0e::1", 0), Ok("fd00::1".into()));
        assert_eq!(flow("ff0e::1", 2), Ok("fe80::1".into()));
        assert_eq!(flow("239.0.0.1", 1), Ok("10.0.0.1".into()));
        assert!(flow("fd00::2", 0).is_err(), "no group");
        let no_ipv6 = PortCaps { addrs: caps().addrs[..1].to_vec(), ..caps() };
        let nowhere = flow_of(&no_ipv6, &attr("ff0e::1", 0), 0).expect("as in the kernel").src;
        assert_eq!(nowhere.to_string(), "::", "no port has it");
    }

    #[test]
    fn queue_pairs_with_the_same_numbers_at_both_ends_take_different_ports() {
        let numbers = (0..1000u32).map(|i| Qpn::new(0x20_0000 | (16 + i) << 4));
        let port = |qpn: Qpn| flow_of(&caps(), &attr("10.0.0.2", 0), entropy_of(qpn, qpn)).expect("flow").src_port;
        let ports: std::collections::HashSet<u16> = numbers.map(port).collect();
        assert!(ports.len() > 900, "{} ports", ports.len());
    }

    #[test]
    fn refusals_name_their_cause() {
        let say = |a: &AhAttr| flow_of(&caps(), a, 0).expect_err("refused").0;
        assert!(say(&attr("10.0.0.2", 9)).contains("does not exist"));
        assert!(say(&attr("10.0.0.2", 1)).contains("family"));
        assert!(say(&AhAttr { is_global: false, ..attr("10.0.0.2", 0) }).contains("is_global"));
        assert!(say(&attr("::", 1)).contains("zero"));
    }
}
