//! RDMA-CM's additions to the InfiniBand connection manager (IBA annex A11): service ids from port spaces and ports, and a
//! header of 36 bytes at the start of a request's private data with the addresses of both ends.

use crate::fields::{be16, raw};
use crate::message::{Rej, Rep, Req, SidrRep, SidrReq};
use burst_base::conn::private_data_room;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header.
pub const HEADER_LEN: usize = private_data_room::HEADER;

const _: () = {
    assert!(
        Req::DATA_LEN == private_data_room::REQ + HEADER_LEN
            && SidrReq::DATA_LEN == private_data_room::SIDR_REQ + HEADER_LEN
    );
    assert!(Rep::DATA_LEN == private_data_room::REP && SidrRep::DATA_LEN == private_data_room::SIDR_REP);
    assert!(Rej::DATA_LEN == private_data_room::REJ);
};

/// Port space of datagram services over IPoIB: not carried over Ethernet.
pub const PS_IPOIB: u16 = 0x0002;
/// Port space of connections.
pub const PS_TCP: u16 = 0x0106;
/// Port space of datagrams.
pub const PS_UDP: u16 = 0x0111;
/// Port space of both, without a header when the program speaks InfiniBand addresses.
pub const PS_IB: u16 = 0x013f;

/// The service id of a port: `0000 0000 01 ss pppp` in hexadecimal digits, `ss` the low byte of the port space
/// (annex A11.2.3).
pub const fn service_id(port_space: u16, port: u16) -> u64 {
    (port_space as u64) << 16 | port as u64
}

/// Port space and port of a service id; `None` if it is not one of RDMA-CM's, or of IPoIB.
pub const fn parse_service_id(id: u64) -> Option<(u16, u16)> {
    let (space, port) = ((id >> 16) as u16, id as u16);
    if id >> 32 == 0 && matches!(space, PS_TCP | PS_UDP | PS_IB) { Some((space, port)) } else { None }
}

/// The header: version 0, IP version, source port, both addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataHeader {
    /// Address of the sender.
    pub src: IpAddr,
    /// Port of the sender.
    pub port: u16,
    /// Address of the requested service.
    pub dst: IpAddr,
}

fn put_ip(out: &mut [u8], at: usize, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => raw::put(out, at + 12, v4.octets()),
        IpAddr::V6(v6) => raw::put(out, at, v6.octets()),
    }
}

impl PrivateDataHeader {
    /// Reads the start of private data. `None` for another version, family, or too few bytes.
    pub fn parse(data: &[u8]) -> Option<PrivateDataHeader> {
        let b = data.first_chunk::<HEADER_LEN>()?;
        let ip = |at: usize| match b[1] >> 4 {
            4 => Some(IpAddr::V4(Ipv4Addr::from(raw::get::<4>(b, at + 12)))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(raw::get::<16>(b, at)))),
            _ => None,
        };
        (b[0] == 0).then_some(())?;
        Some(PrivateDataHeader { port: be16::get(b, 2), src: ip(4)?, dst: ip(20)? })
    }

    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[1] = if self.dst.is_ipv4() { 4 << 4 } else { 6 << 4 };
        be16::put(&mut out, 2, self.port);
        put_ip(&mut out, 4, self.src);
        put_ip(&mut out, 20, self.dst);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_are_those_of_the_captures() {
        assert_eq!(service_id(PS_TCP, 7174), 0x0000_0000_0106_1c06);
        assert_eq!(parse_service_id(0x0111_1c06), Some((PS_UDP, 7174)));
        assert_eq!(parse_service_id(service_id(PS_IPOIB, 1)), None);
        assert_eq!(parse_service_id(1 << 32 | 0x0106_1c06), None);
    }

    #[test]
    fn headers_come_back_and_others_do_not() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fe80::2")] {
            let header = PrivateDataHeader { src: src.parse().expect("ip"), port: 4711, dst: dst.parse().expect("ip") };
            let bytes = header.to_bytes();
            assert_eq!(PrivateDataHeader::parse(&bytes), Some(header));
            assert_eq!(PrivateDataHeader::parse(&bytes[..35]), None);
            let mut other = bytes;
            other[0] = 1;
            assert_eq!(PrivateDataHeader::parse(&other), None);
            other = bytes;
            other[1] = 0x50;
            assert_eq!(PrivateDataHeader::parse(&other), None);
        }
    }
}
