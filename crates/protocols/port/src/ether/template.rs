//! The headers of a flow, made once and copied before each packet or train: Ethernet, a VLAN tag, IPv4 or IPv6, UDP.
//!
//! IPv4 packets carry DF and an identification that the caller chooses (RFC 6864 allows any in a packet that is never
//! fragmented). Burst's ports send 0, and count from 0 along a train, as a kernel does that segments a train and as a UDP socket
//! of Burst does. Only lengths, the identification and checksums differ from packet to packet.

use super::checksum::InternetSum;
use burst_frame::Flow;
use burst_wire::{EtherType, Ethernet, IP_PROTOCOL_UDP, Ipv4, Ipv6, MacAddr, Udp, Vlan};
use std::net::IpAddr;

/// Bytes of the longest headers: Ethernet, one VLAN tag, IPv6, UDP.
pub const HEADERS_MAX: usize = Ethernet::LEN + Vlan::LEN + Ipv6::LEN + Udp::LEN;
/// TTL or hop limit of flows that name none.
const HOPS_DEFAULT: u8 = 64;
/// Largest flow label.
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// The Ethernet addresses and the VLAN of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// MAC address of the port.
    pub src: MacAddr,
    /// MAC address of the next hop.
    pub dst: MacAddr,
    /// VLAN ID (1..=4094) if the port itself writes tags; `None` if an interface below does, or there is no VLAN.
    pub vlan: Option<u16>,
}

/// The content of the UDP checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// Zero: no checksum. Allowed over IPv4; over IPv6 only between tunnels and RDMA stacks.
    Zero,
    /// The sum of the pseudo header; the kernel or the device completes it.
    Partial,
}

/// The headers of a flow.
#[derive(Clone, Copy, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; HEADERS_MAX],
    len: u8,
    ip_at: u8,
    v6: bool,
    src: IpAddr,
    dst: IpAddr,
}

impl HeaderTemplate {
    /// Makes the headers of packets of `flow` from UDP port `src_port` to `dst_port`; `None` when one address is IPv4 and the
    /// other IPv6.
    pub fn new(link: &LinkHeader, flow: &Flow, src_port: u16, dst_port: u16) -> Option<HeaderTemplate> {
        let mut bytes = [0; HEADERS_MAX];
        let v6 = flow.dst.is_ipv6();
        let network = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let outer = if link.vlan.is_some() { EtherType::VLAN } else { network };
        Ethernet { dst: link.dst, src: link.src, ethertype: outer }.emit(&mut bytes);
        let mut ip_at = Ethernet::LEN;
        if let Some(id) = link.vlan {
            let tag = Vlan { priority: 0, drop_eligible: false, id, ethertype: network };
            tag.emit(&mut bytes[ip_at..]);
            ip_at += Vlan::LEN;
        }
        let hops = if flow.hop_limit == 0 { HOPS_DEFAULT } else { flow.hop_limit };
        let udp_at = match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = Ipv4 {
                    tos: flow.tos,
                    total_len: 0,
                    id: 0,
                    flags_fragment: Ipv4::DONT_FRAGMENT,
                    ttl: hops,
                    protocol: IP_PROTOCOL_UDP,
                    checksum: 0,
                    src,
                    dst,
                };
                ip.emit(&mut bytes[ip_at..]);
                ip_at + Ipv4::LEN
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 {
                    traffic_class: flow.tos,
                    flow_label: flow.flow_label & FLOW_LABEL_MASK,
                    payload_len: 0,
                    next_header: IP_PROTOCOL_UDP,
                    hop_limit: hops,
                    src,
                    dst,
                };
                ip.emit(&mut bytes[ip_at..]);
                ip_at + Ipv6::LEN
            }
            _ => return None,
        };
        Udp { src_port, dst_port, len: 0, checksum: 0 }.emit(&mut bytes[udp_at..]);
        let len = (udp_at + Udp::LEN) as u8;
        Some(HeaderTemplate { bytes, len, ip_at: ip_at as u8, v6, src: flow.src, dst: flow.dst })
    }
    /// Bytes of the headers: the offset of the transport header.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.len as usize
    }
    /// Offset of the IP header.
    pub const fn ip_at(&self) -> usize {
        self.ip_at as usize
    }
    /// Offset of the UDP header, which is `csum_start` of a virtio header.
    pub const fn udp_at(&self) -> usize {
        self.len as usize - Udp::LEN
    }
    /// Whether the flow is over IPv6.
    pub const fn is_v6(&self) -> bool {
        self.v6
    }
    /// Bytes of the IP packet with this UDP payload, which the MTU limits.
    pub const fn ip_len(&self, udp_payload_len: usize) -> usize {
        self.header_len() - self.ip_at() + udp_payload_len
    }
    /// Writes the headers of a packet or a train, followed by `udp_payload_len` bytes (ICRCs included), into the first
    /// [`HeaderTemplate::header_len`] bytes of `out`. `id` is used over IPv4 only.
    #[inline]
    pub fn write(&self, out: &mut [u8], id: u16, udp_payload_len: usize, checksum: UdpChecksum) {
        let out = &mut out[..self.header_len()];
        out.copy_from_slice(&self.bytes[..self.header_len()]);
        let udp_len = (Udp::LEN + udp_payload_len) as u16;
        let (ip, udp) = out[self.ip_at()..].split_at_mut(self.udp_at() - self.ip_at());
        if self.v6 {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&(udp_len + Ipv4::LEN as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            let [a, b] = InternetSum::default().over(ip).partial();
            ip[10..12].copy_from_slice(&[!a, !b]);
        }
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        if checksum == UdpChecksum::Partial {
            udp[6..8].copy_from_slice(&self.pseudo(udp_len).partial());
        }
    }
    /// Completes the UDP checksum of a whole packet whose headers [`HeaderTemplate::write`] has written.
    pub fn complete_checksum(&self, packet: &mut [u8]) {
        let udp = &mut packet[self.udp_at()..];
        udp[6..8].fill(0);
        let checksum = self.pseudo(udp.len() as u16).over(udp).finish();
        udp[6..8].copy_from_slice(&checksum);
    }
    fn pseudo(&self, udp_len: u16) -> InternetSum {
        InternetSum::default().pseudo(&self.src, &self.dst, usize::from(udp_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ether::icrc::{ICRC, IcrcSeal, IpId};
    use crate::ether::parse::{ChecksumState, parse};
    use crate::testing::flow;
    use burst_wire::{Layers, ROCE_PORT};

    const LINK: LinkHeader =
        LinkHeader { src: MacAddr([2, 0, 0, 0, 0, 1]), dst: MacAddr([2, 0, 0, 0, 0, 2]), vlan: None };

    /// A frame of `flow` with this body and its ICRC.
    fn frame(link: &LinkHeader, flow: &Flow, id: u16, body: &[u8]) -> Vec<u8> {
        let template = HeaderTemplate::new(link, flow, flow.src_port, ROCE_PORT).unwrap();
        let len = body.len() + ICRC;
        let mut frame = vec![0; template.header_len()];
        template.write(&mut frame, id, len, UdpChecksum::Zero);
        let mut seal = IcrcSeal::new(flow.src, flow.dst, flow.src_port, ROCE_PORT).unwrap();
        frame.extend_from_slice(body);
        frame.extend_from_slice(&seal.begin(id, len, body).finish());
        frame
    }

    #[test]
    fn frames_are_read_back_with_every_field() {
        let v4 = Flow { src_port: 50_000, tos: 0x6a, hop_limit: 3, ..flow("10.0.0.1", "10.0.0.2") };
        let v6 = Flow { src_port: 50_001, tos: 2, flow_label: 0xabcde, ..flow("fd00::1", "fd00::2") };
        for flow in [v4, v6] {
            for vlan in [None, Some(5)] {
                let bytes = frame(&LinkHeader { vlan, ..LINK }, &flow, 0x1234, &[0x55; 60]);
                let layers = Layers::parse(&bytes).unwrap();
                assert_eq!(layers.computed_icrc(), layers.icrc);
                assert_eq!((layers.ethernet.src, layers.ethernet.dst), (LINK.src, LINK.dst));
                assert_eq!(layers.vlan.map(|v| v.id), vlan);
                if vlan.is_none() {
                    let datagram = parse(&bytes, ChecksumState::Unknown, ROCE_PORT).unwrap();
                    let want = Flow { hop_limit: if flow.hop_limit == 0 { 64 } else { flow.hop_limit }, ..flow };
                    assert_eq!(datagram.flow, want);
                    let seen = IpId::Known { id: 0x1234, flags_fragment: Ipv4::DONT_FRAGMENT };
                    assert_eq!(datagram.header, if flow.dst.is_ipv4() { seen } else { IpId::Unknown });
                }
            }
        }
    }

    #[test]
    fn checksums_completed_here_and_by_a_device_are_equal() {
        for flow in [flow("10.0.0.1", "10.0.0.2"), flow("fd00::1", "fd00::2")] {
            let flow = Flow { src_port: 4791, ..flow };
            for len in [12, 13, 1040] {
                let mut bytes = frame(&LINK, &flow, 9, &vec![0xa5; len]);
                let template = HeaderTemplate::new(&LINK, &flow, 4791, 4791).unwrap();
                template.complete_checksum(&mut bytes);
                assert!(parse(&bytes, ChecksumState::Unknown, ROCE_PORT).is_ok());
                let complete = bytes.clone();
                // As a device does it: the sum from the UDP header on, including the partial sum in the checksum field.
                let udp_at = template.udp_at();
                let udp_payload = bytes.len() - template.header_len();
                template.write(&mut bytes, 9, udp_payload, UdpChecksum::Partial);
                let checksum = InternetSum::default().over(&bytes[udp_at..]).finish();
                bytes[udp_at + 6..udp_at + 8].copy_from_slice(&checksum);
                assert_eq!(bytes, complete);
            }
        }
    }

    #[test]
    fn mixed_families_have_no_template_and_lengths_add_up() {
        assert!(HeaderTemplate::new(&LINK, &flow("10.0.0.1", "fd00::1"), 1, 2).is_none());
        let v6 = HeaderTemplate::new(&LinkHeader { vlan: Some(7), ..LINK }, &flow("fd00::2", "fd00::1"), 1, 2).unwrap();
        assert_eq!((v6.header_len(), v6.ip_len(100), v6.is_v6()), (HEADERS_MAX, 148, true));
        let v4 = HeaderTemplate::new(&LINK, &flow("10.0.0.2", "10.0.0.1"), 1, 2).unwrap();
        assert_eq!((v4.header_len(), v4.ip_len(100), v4.ip_at(), v4.udp_at()), (42, 128, 14, 34));
    }
}
