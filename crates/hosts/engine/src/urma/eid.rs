//! Entity ids: the addresses of nodes as programs of URMA see them.

use std::net::{IpAddr, Ipv6Addr};

/// The entity id of an address: IPv4 is mapped into IPv6.
pub fn eid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address in an entity id.
pub fn address_of(eid: &[u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(*eid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}
