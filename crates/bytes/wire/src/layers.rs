//! Parses a whole Ethernet frame down to the transport part and its ICRC, for ports that receive frames and for
//! captures. [`crate::Packet`] parses the transport part.

use crate::eth::{EtherType, Ethernet, Vlan};
use crate::icrc::{Icrc, PseudoV4, PseudoV6};
use crate::ip::{IP_PROTOCOL_UDP, Ipv4, Ipv6, ROCE_PORT, Udp};
use crate::{Bth, ICRC_LEN};
use burst_base::Reason;

/// The network header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

/// A RoCEv2 frame, layer by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers<'a> {
    /// Ethernet header.
    pub ethernet: Ethernet,
    /// 802.1Q tag, if there is one.
    pub vlan: Option<Vlan>,
    /// Network header.
    pub ip: Ip,
    /// UDP header.
    pub udp: Udp,
    /// BTH to the end of the padding.
    pub transport: &'a [u8],
    /// ICRC as received.
    pub icrc: [u8; ICRC_LEN],
}

impl<'a> Layers<'a> {
    /// Parses a frame. [`Reason::NotOurs`] if it is not unfragmented RoCEv2 over UDP; [`Reason::Truncated`] if
    /// a length field exceeds the frame or leaves no room for a BTH. Bytes after the UDP payload (Ethernet
    /// padding) are ignored. Neither the IPv4 checksum nor the UDP checksum is verified: the ICRC covers more.
    pub fn parse(frame: &'a [u8]) -> Result<Layers<'a>, Reason> {
        let (ethernet, rest) = split(frame, Ethernet::LEN, Ethernet::parse)?;
        let (vlan, rest) = match ethernet.ethertype {
            EtherType::VLAN => split(rest, Vlan::LEN, Vlan::parse).map(|(tag, rest)| (Some(tag), rest))?,
            _ => (None, rest),
        };
        let (ip, datagram) = parse_ip(vlan.map_or(ethernet.ethertype, |tag| tag.ethertype), rest)?;
        let (udp, body) = split(datagram, Udp::LEN, Udp::parse)?;
        if udp.dst_port != ROCE_PORT {
            return Err(Reason::NotOurs);
        }
        let body_len = usize::from(udp.len).checked_sub(Udp::LEN).ok_or(Reason::Truncated)?;
        let body = body.get(..body_len).ok_or(Reason::Truncated)?;
        let (transport, &icrc) = body.split_last_chunk::<ICRC_LEN>().ok_or(Reason::Truncated)?;
        if transport.len() < Bth::LEN {
            return Err(Reason::Truncated);
        }
        Ok(Layers { ethernet, vlan, ip, udp, transport, icrc })
    }
    /// The correct ICRC of the frame.
    pub fn computed_icrc(&self) -> [u8; ICRC_LEN] {
        let udp_payload_len = self.transport.len() + ICRC_LEN;
        match &self.ip {
            Ip::V4(ip) => Icrc::ipv4(&PseudoV4::of(ip, &self.udp), udp_payload_len, self.transport).finish(),
            Ip::V6(ip) => Icrc::ipv6(&PseudoV6::of(ip, &self.udp), udp_payload_len, self.transport).finish(),
        }
    }
}

/// Splits a header of `len` bytes off the front.
fn split<T>(bytes: &[u8], len: usize, parse: impl FnOnce(&[u8]) -> Option<T>) -> Result<(T, &[u8]), Reason> {
    let (head, rest) = bytes.split_at_checked(len).ok_or(Reason::Truncated)?;
    Ok((parse(head).ok_or(Reason::NotOurs)?, rest))
}

/// The network header, and the payload that its length field gives.
fn parse_ip(ethertype: EtherType, bytes: &[u8]) -> Result<(Ip, &[u8]), Reason> {
    match ethertype {
        EtherType::IPV4 => {
            let (ip, rest) = split(bytes, Ipv4::LEN, Ipv4::parse)?;
            // More fragments, or an offset: not a whole datagram.
            if ip.protocol != IP_PROTOCOL_UDP || ip.flags_fragment & 0x3fff != 0 {
                return Err(Reason::NotOurs);
            }
            let len = usize::from(ip.total_len).checked_sub(Ipv4::LEN).ok_or(Reason::Truncated)?;
            Ok((Ip::V4(ip), rest.get(..len).ok_or(Reason::Truncated)?))
        }
        EtherType::IPV6 => {
            let (ip, rest) = split(bytes, Ipv6::LEN, Ipv6::parse)?;
            if ip.next_header != IP_PROTOCOL_UDP {
                return Err(Reason::NotOurs);
            }
            Ok((Ip::V6(ip), rest.get(..usize::from(ip.payload_len)).ok_or(Reason::Truncated)?))
        }
        _ => Err(Reason::NotOurs),
    }
}
