//! Parses a received frame down to the UDP payload; each defect has a reason of its own.
//!
//! Checks, in order: Ethernet and its type (a VLAN tag inside the frame is foreign, because the interface has removed its own
//! tags; but a tag with VLAN ID 0 is a priority tag, IEEE 802.1Q section 6.9), the IP header (version, length, options,
//! checksum), fragments, the protocol, lengths against the frame's length, the UDP port, and the UDP checksum unless it was
//! verified before. A train that the kernel or a device has joined of equal packets is one datagram here; the caller splits it.
//! The caller also checks the addresses.
//!
//! IPv6: UDP checksum 0 is accepted, because the kernel's soft-RoCE sends it and the ICRC protects more. RoCEv2 does not use
//! extension headers other than a fragment header, and they are not parsed.

use super::checksum::InternetSum;
use super::icrc::IpId;
use burst_base::Reason;
use burst_frame::Flow;
use burst_wire::{EtherType, Ethernet, IP_PROTOCOL_UDP, Ipv4, Ipv6, MacAddr, Udp, Vlan};
use std::net::IpAddr;

/// Next header value of an IPv6 fragment header.
const IPV6_FRAGMENT: u8 = 44;
/// More fragments, or a fragment offset: not a whole packet. The mask leaves out the DF bit and the reserved bit.
const FRAGMENT_BITS: u16 = 0x3fff;
/// Bytes of the two Ethernet addresses.
pub const ADDRESSES: usize = 12;
/// 802.1ad service tag.
const SERVICE_TAG: EtherType = EtherType(0x88a8);

/// Whether a frame's UDP checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The checksum was not verified: it is verified here.
    Unknown,
    /// A device has verified it, or it was never completed because the frame has not left this host.
    Trusted,
}

/// The fields against which a datagram is checked.
#[derive(Clone, Copy)]
struct Expected {
    /// Destination UDP port of the encapsulation.
    udp_port: u16,
    checksums: ChecksumState,
}

/// A UDP datagram to the encapsulation's port, or a train of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Ethernet source.
    pub mac_src: MacAddr,
    /// Ethernet destination.
    pub mac_dst: MacAddr,
    /// Addresses and header fields as on the wire; the scope is 0.
    pub flow: Flow,
    /// Identification of the packet, or of the first packet of a train.
    pub header: IpId,
    /// The packet from its transport header to its trailer.
    pub payload: &'a [u8],
}

/// Parses `frame`. Bytes behind the IP packet (Ethernet padding) are ignored.
///
/// # Errors
/// The reason why the frame is not a datagram to `udp_port`.
pub fn parse(frame: &[u8], checksums: ChecksumState, udp_port: u16) -> Result<Datagram<'_>, Reason> {
    let expected = Expected { udp_port, checksums };
    let ethernet = Ethernet::parse(frame).ok_or(Reason::Truncated)?;
    let rest = &frame[Ethernet::LEN..];
    let mut datagram = match ethernet.ethertype {
        EtherType::VLAN => behind_tag(rest, expected)?,
        kind => network(kind, rest, expected)?,
    };
    (datagram.mac_src, datagram.mac_dst) = (ethernet.src, ethernet.dst);
    Ok(datagram)
}

/// The frame from its type on, without a priority tag. [`parse`] must have found no other tag in `frame`.
pub fn from_type(frame: &[u8]) -> &[u8] {
    match frame.get(ADDRESSES..) {
        Some([0x81, 0x00, _, _, rest @ ..]) => rest,
        Some(rest) => rest,
        None => &[],
    }
}

fn behind_tag(bytes: &[u8], expected: Expected) -> Result<Datagram<'_>, Reason> {
    let tag = Vlan::parse(bytes).ok_or(Reason::Truncated)?;
    if tag.id != 0 {
        return Err(Reason::ForeignVlan);
    }
    network(tag.ethertype, &bytes[Vlan::LEN..], expected)
}

#[inline]
fn network(kind: EtherType, bytes: &[u8], expected: Expected) -> Result<Datagram<'_>, Reason> {
    match kind {
        EtherType::IPV4 => ipv4(bytes, expected),
        EtherType::IPV6 => ipv6(bytes, expected),
        EtherType::VLAN | SERVICE_TAG => Err(Reason::ForeignVlan),
        _ => Err(Reason::NotOurs),
    }
}

fn ipv4(bytes: &[u8], expected: Expected) -> Result<Datagram<'_>, Reason> {
    let header = bytes.first_chunk::<{ Ipv4::LEN }>().ok_or(Reason::Truncated)?;
    // Another version, or options, which RoCEv2 does not use.
    let ip = Ipv4::parse(header).ok_or(Reason::BadIpHeader)?;
    if !InternetSum::default().over(header).is_right() {
        return Err(Reason::BadIpHeader);
    }
    if ip.flags_fragment & FRAGMENT_BITS != 0 {
        return Err(Reason::Fragment);
    }
    if ip.protocol != IP_PROTOCOL_UDP {
        return Err(Reason::NotOurs);
    }
    let len = usize::from(ip.total_len).checked_sub(Ipv4::LEN).ok_or(Reason::BadIpHeader)?;
    let rest = bytes[Ipv4::LEN..].get(..len).ok_or(Reason::Truncated)?;
    let flow = Flow {
        src: IpAddr::V4(ip.src),
        dst: IpAddr::V4(ip.dst),
        src_port: 0,
        tos: ip.tos,
        hop_limit: ip.ttl,
        flow_label: 0,
        scope: 0,
    };
    let header = IpId::Known { id: ip.id, flags_fragment: ip.flags_fragment };
    Ok(Datagram { header, ..udp(flow, rest, expected)? })
}

fn ipv6(bytes: &[u8], expected: Expected) -> Result<Datagram<'_>, Reason> {
    let header = bytes.first_chunk::<{ Ipv6::LEN }>().ok_or(Reason::Truncated)?;
    let ip = Ipv6::parse(header).ok_or(Reason::BadIpHeader)?;
    match ip.next_header {
        IP_PROTOCOL_UDP => {}
        IPV6_FRAGMENT => return Err(Reason::Fragment),
        _ => return Err(Reason::NotOurs),
    }
    let rest = bytes[Ipv6::LEN..].get(..usize::from(ip.payload_len)).ok_or(Reason::Truncated)?;
    let flow = Flow {
        src: IpAddr::V6(ip.src),
        dst: IpAddr::V6(ip.dst),
        src_port: 0,
        tos: ip.traffic_class,
        hop_limit: ip.hop_limit,
        flow_label: ip.flow_label,
        scope: 0,
    };
    udp(flow, rest, expected)
}

fn udp(flow: Flow, bytes: &[u8], expected: Expected) -> Result<Datagram<'_>, Reason> {
    let udp = Udp::parse(bytes).ok_or(Reason::Truncated)?;
    if udp.dst_port != expected.udp_port {
        return Err(Reason::NotOurs);
    }
    let len = usize::from(udp.len);
    let whole = bytes.get(..len).filter(|_| len >= Udp::LEN).ok_or(Reason::Truncated)?;
    let unverified = expected.checksums == ChecksumState::Unknown && udp.checksum != 0;
    if unverified && !InternetSum::default().pseudo(&flow.src, &flow.dst, len).over(whole).is_right() {
        return Err(Reason::BadUdpChecksum);
    }
    Ok(Datagram {
        mac_src: MacAddr::default(),
        mac_dst: MacAddr::default(),
        flow: Flow { src_port: udp.src_port, ..flow },
        header: IpId::Unknown,
        payload: &whole[Udp::LEN..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ether::template::{HeaderTemplate, LinkHeader, UdpChecksum};
    use crate::testing::flow;
    use burst_wire::ROCE_PORT;

    const ETHERNET: usize = Ethernet::LEN;

    /// A valid frame with a complete UDP checksum and 40 bytes of UDP payload.
    fn good(src: &str, dst: &str) -> Vec<u8> {
        let link = LinkHeader { src: MacAddr([2; 6]), dst: MacAddr([4; 6]), vlan: None };
        let template = HeaderTemplate::new(&link, &flow(src, dst), 50_000, ROCE_PORT).unwrap();
        let mut frame = vec![0x33; template.header_len() + 40];
        template.write(&mut frame, 77, 40, UdpChecksum::Zero);
        template.complete_checksum(&mut frame);
        frame
    }

    fn v4() -> Vec<u8> {
        good("10.0.0.1", "10.0.0.2")
    }

    fn v6() -> Vec<u8> {
        good("fd00::1", "fd00::2")
    }

    /// The result for the frame after `change`; the IPv4 checksum is corrected afterwards if `fix`.
    fn after(mut frame: Vec<u8>, fix: bool, change: impl FnOnce(&mut Vec<u8>)) -> Result<usize, Reason> {
        change(&mut frame);
        if fix {
            frame[ETHERNET + 10..ETHERNET + 12].fill(0);
            let checksum = InternetSum::default().over(&frame[ETHERNET..ETHERNET + 20]).finish();
            frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum);
        }
        parse(&frame, ChecksumState::Unknown, ROCE_PORT).map(|d| d.payload.len())
    }

    #[test]
    fn valid_frames_are_accepted_and_ethernet_padding_is_ignored() {
        for frame in [v4(), v6()] {
            assert_eq!(after(frame.clone(), false, |_| ()), Ok(40));
            assert_eq!(after(frame, false, |f| f.extend_from_slice(&[0; 9])), Ok(40));
        }
    }

    #[test]
    fn frames_cut_anywhere_are_truncated() {
        for frame in [v4(), v6()] {
            for len in 0..frame.len() {
                assert_eq!(after(frame.clone(), false, |f| f.truncate(len)), Err(Reason::Truncated), "{len}");
            }
        }
    }

    #[test]
    fn bad_ip_headers_have_a_reason() {
        let bad = |at: usize, value: u8| after(v4(), true, |f| f[ETHERNET + at] = value);
        assert_eq!(bad(0, 0x46), Err(Reason::BadIpHeader), "options");
        assert_eq!(bad(0, 0x65), Err(Reason::BadIpHeader), "version");
        assert_eq!(bad(3, 19), Err(Reason::BadIpHeader), "shorter than its own header");
        assert_eq!(bad(3, 21), Err(Reason::Truncated), "no room for UDP");
        assert_eq!(after(v4(), false, |f| f[ETHERNET + 8] ^= 1), Err(Reason::BadIpHeader), "checksum");
        assert_eq!(after(v6(), false, |f| f[ETHERNET] = 0x40), Err(Reason::BadIpHeader));
    }

    #[test]
    fn fragments_tags_and_other_protocols_have_a_reason() {
        let flags = |value: u16| after(v4(), true, |f| f[ETHERNET + 6..][..2].copy_from_slice(&value.to_be_bytes()));
        assert_eq!(flags(0x2000), Err(Reason::Fragment), "the first");
        assert_eq!(flags(0x0001), Err(Reason::Fragment), "the last");
        assert_eq!(flags(0x0000), Ok(40), "without DF");
        assert_eq!(after(v6(), false, |f| f[ETHERNET + 6] = 44), Err(Reason::Fragment));
        assert_eq!(after(v6(), false, |f| f[ETHERNET + 6] = 6), Err(Reason::NotOurs));
        assert_eq!(after(v4(), true, |f| f[ETHERNET + 9] = 6), Err(Reason::NotOurs));
        for tag in [[0x81, 0x00], [0x88, 0xa8]] {
            assert_eq!(after(v4(), false, |f| f[12..14].copy_from_slice(&tag)), Err(Reason::ForeignVlan));
        }
        assert_eq!(after(v4(), false, |f| f[12..14].copy_from_slice(&[8, 6])), Err(Reason::NotOurs), "ARP");
    }

    #[test]
    fn a_priority_tag_is_not_a_vlan() {
        let tagged = |tags: &[u8]| {
            let mut frame = v6();
            frame.splice(12..12, tags.iter().copied());
            frame
        };
        let plain = v6();
        let seen = tagged(&[0x81, 0, 0xe0, 0]);
        let parsed = |frame: &[u8]| {
            parse(frame, ChecksumState::Unknown, ROCE_PORT).map(|d| (d.mac_src, d.flow, d.payload.to_vec()))
        };
        assert_eq!(parsed(&seen), parsed(&plain));
        assert_eq!([from_type(&seen), from_type(&plain)], [&plain[12..]; 2]);
        assert!(from_type(&plain[..3]).is_empty());
        for foreign in [&[0x81, 0, 0xe0, 1][..], &[0x88, 0xa8, 0, 0], &[0x81, 0, 0, 0, 0x81, 0, 0, 0]] {
            assert_eq!(parsed(&tagged(foreign)), Err(Reason::ForeignVlan), "{foreign:x?}");
        }
        assert_eq!(parsed(&seen[..17]), Err(Reason::Truncated));
    }

    #[test]
    fn randomly_changed_frames_are_accepted_or_refused_within_their_length() {
        let mut rng = burst_base::rng::Rng::new(7);
        let (mut taken, mut dropped) = (0, 0);
        for round in 0..40_000 {
            let mut frame = if round % 2 == 0 { v4() } else { v6() };
            for _ in 0..1 + rng.next_u64() % 3 {
                let at = rng.next_u64() as usize % frame.len();
                frame[at] = rng.next_u64() as u8;
            }
            frame.truncate(frame.len() - rng.next_u64() as usize % 4);
            match parse(&frame, if round % 3 == 0 { ChecksumState::Trusted } else { ChecksumState::Unknown }, ROCE_PORT)
            {
                Ok(datagram) => {
                    assert!(datagram.payload.len() <= frame.len() - ETHERNET - 28);
                    taken += 1;
                }
                Err(_) => dropped += 1,
            }
        }
        assert!(taken > 1000 && dropped > 1000, "{taken} {dropped}");
    }

    #[test]
    fn udp_ports_lengths_and_checksums_are_checked() {
        for frame in [v4(), v6()] {
            let udp = frame.len() - 48;
            assert_eq!(after(frame.clone(), false, |f| f[udp + 3] ^= 1), Err(Reason::NotOurs));
            assert_eq!(after(frame.clone(), false, |f| f[udp + 5] = 7), Err(Reason::Truncated));
            assert_eq!(after(frame.clone(), false, |f| f[udp + 5] = 49), Err(Reason::Truncated));
            assert_eq!(after(frame.clone(), false, |f| f[udp + 20] ^= 1), Err(Reason::BadUdpChecksum));
            assert_eq!(after(frame.clone(), false, |f| f[udp + 6] ^= 1), Err(Reason::BadUdpChecksum));
            assert_eq!(after(frame.clone(), false, |f| f[udp + 6..udp + 8].fill(0)), Ok(40), "none");
            let mut partial = frame;
            partial[udp + 6] ^= 0x55;
            assert!(parse(&partial, ChecksumState::Trusted, ROCE_PORT).is_ok());
        }
    }
}
