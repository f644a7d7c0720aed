//! GIDs: the 16 bytes by which verbs name an address. RoCEv2 uses IPv6 addresses as they are and maps IPv4 addresses
//! (IBA annex A17, RFC 4291 2.5.5.2).

use std::net::{IpAddr, Ipv6Addr};

/// The GID of an address: IPv6 as it is, IPv4 mapped.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address of a GID.
pub fn ip_of(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_and_addresses_name_each_other() {
        for text in ["192.0.2.7", "2001:db8::1", "fe80::2"] {
            let ip: IpAddr = text.parse().expect("an address");
            assert_eq!(ip_of(gid_of(ip)), ip);
        }
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7];
        assert_eq!(gid_of(IpAddr::from([192, 0, 2, 7])), mapped);
    }
}
