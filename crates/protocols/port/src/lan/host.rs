//! Addresses, prefixes and gateways of this host on the LAN, and the next hop to a destination.

use burst_wire::MacAddr;
use core::str::FromStr;
use std::net::{IpAddr, Ipv6Addr};

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network's prefix in bits.
    pub len: u8,
}

/// The addresses and gateways of this host on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanHost {
    /// MAC address.
    pub mac: MacAddr,
    /// Addresses, default first.
    pub addrs: Vec<Prefix>,
    /// Gateways; the first of an address family leads to all other networks.
    pub gateways: Vec<IpAddr>,
}

impl Prefix {
    /// Whether `other` is on the network of this prefix.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = u32::from(a) ^ u32::from(b);
                differ.checked_shr(32 - u32::from(self.len)).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = u128::from(a) ^ u128::from(b);
                differ.checked_shr(128 - u32::from(self.len)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;
    /// Reads `10.0.0.1/24` or `fd00::1/64`; without a length 24 and 64.
    fn from_str(text: &str) -> Result<Prefix, String> {
        let (ip, len) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, Some(len)));
        let ip: IpAddr = ip.trim().parse().map_err(|_| "is not an IP address".to_owned())?;
        let (usual, most) = if ip.is_ipv4() { (24, 32) } else { (64, 128) };
        let len = match len {
            None => usual,
            Some(len) => len
                .trim()
                .parse()
                .ok()
                .filter(|len| (1..=most).contains(len))
                .ok_or_else(|| format!("has a prefix length that is not from 1 to {most}"))?,
        };
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err("is not an address of a host".into());
        }
        Ok(Prefix { ip, len })
    }
}

impl LanHost {
    /// Whether the address is one of this host.
    #[inline]
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.addrs.iter().any(|p| p.ip == ip)
    }
    /// The neighbour to which packets for `dst` are sent; `None` if neither a prefix nor a gateway leads there.
    pub fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.addrs.iter().any(|p| p.contains(dst)) {
            return Some(dst);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == dst.is_ipv4())
    }
    /// The source address of a solicitation for `neighbour`: one on its network, else the first of its family.
    pub fn source_for(&self, neighbour: IpAddr) -> Option<IpAddr> {
        let on_link = self.addrs.iter().find(|p| p.contains(neighbour));
        on_link.or_else(|| self.addrs.iter().find(|p| p.ip.is_ipv4() == neighbour.is_ipv4())).map(|p| p.ip)
    }
}

/// The MAC address of a multicast group or of the IPv4 broadcast address (RFC 1112 section 6.4, RFC 2464 section 7); `None` for
/// unicast.
pub fn multicast_mac(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(ip) if ip.is_broadcast() => Some(MacAddr::BROADCAST),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(ip) if ip.is_multicast() => Some(multicast_mac_v6(ip)),
        _ => None,
    }
}

/// The MAC address of an IPv6 multicast group.
pub fn multicast_mac_v6(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> LanHost {
        LanHost {
            mac: MacAddr([2; 6]),
            addrs: ["10.1.0.1/16", "192.168.7.1", "fd00::1/64"].map(|p| p.parse().unwrap()).to_vec(),
            gateways: ["10.1.0.254", "fd00::fe"].map(|g| g.parse().unwrap()).to_vec(),
        }
    }

    #[test]
    fn prefixes_are_parsed_with_their_lengths() {
        assert_eq!("10.0.0.1".parse::<Prefix>().unwrap().len, 24);
        assert_eq!("fd00::1".parse::<Prefix>().unwrap().len, 64);
        for (bad, why) in [
            ("10.0.0.1/33", "from 1 to 32"),
            ("fd00::1/0", "from 1 to 128"),
            ("eth0", "not an IP"),
            ("ff02::1", "of a host"),
        ] {
            assert!(bad.parse::<Prefix>().unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn the_next_hop_is_on_the_link_or_the_gateway_of_the_family() {
        let hop = |dst: &str| host().next_hop(dst.parse().unwrap()).map(|h| h.to_string());
        assert_eq!(hop("10.1.9.9").as_deref(), Some("10.1.9.9"));
        assert_eq!(hop("192.168.7.3").as_deref(), Some("192.168.7.3"));
        assert_eq!(hop("8.8.8.8").as_deref(), Some("10.1.0.254"));
        assert_eq!(hop("2001:db8::1").as_deref(), Some("fd00::fe"));
        let without_gateway = LanHost { gateways: Vec::new(), ..host() };
        assert_eq!(without_gateway.next_hop("8.8.8.8".parse().unwrap()), None);
    }

    #[test]
    fn solicitations_come_from_an_address_on_the_network() {
        let source = |n: &str| host().source_for(n.parse().unwrap()).unwrap().to_string();
        assert_eq!(source("192.168.7.9"), "192.168.7.1");
        assert_eq!(source("172.16.0.1"), "10.1.0.1");
        assert_eq!(source("fd00::9"), "fd00::1");
    }

    #[test]
    fn a_prefix_of_full_length_is_one_address_and_groups_have_macs() {
        let alone: Prefix = "10.0.0.1/32".parse().unwrap();
        assert!(alone.contains(alone.ip) && !alone.contains("10.0.0.2".parse().unwrap()));
        assert_eq!(multicast_mac("224.129.2.3".parse().unwrap()), Some(MacAddr([1, 0, 0x5e, 1, 2, 3])));
        assert_eq!(multicast_mac("ff02::1:ff00:7".parse().unwrap()), Some(MacAddr([0x33, 0x33, 0xff, 0, 0, 7])));
        assert_eq!(multicast_mac("10.0.0.1".parse().unwrap()), None);
    }
}
