//! IPv4 (RFC 791), IPv6 (RFC 8200), UDP (RFC 768) and the GRH (IBA 8.3).
//!
//! IPv4 options are not supported: RoCEv2 does not use them, and a header with options is not parsed.

use crate::bytes::{array, be16, be32, put};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Protocol number of UDP.
pub const IP_PROTOCOL_UDP: u8 = 17;
/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset as on the wire; [`Ipv4::DONT_FRAGMENT`].
    pub flags_fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: u16,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Length in bytes.
    pub const LEN: usize = 20;
    /// The DF flag in `flags_fragment`.
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// Reads the first [`Ipv4::LEN`] bytes; `None` unless version 4 without options. The checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Option<Ipv4> {
        let b = bytes.first_chunk::<{ Ipv4::LEN }>()?;
        (b[0] == 0x45).then(|| Ipv4 {
            tos: b[1],
            total_len: be16(b, 2),
            id: be16(b, 4),
            flags_fragment: be16(b, 6),
            ttl: b[8],
            protocol: b[9],
            checksum: be16(b, 10),
            src: array(b, 12).into(),
            dst: array(b, 16).into(),
        })
    }
    /// Writes the first [`Ipv4::LEN`] bytes. The checksum is written as given.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &[0x45, self.tos]);
        put(out, 2, &self.total_len.to_be_bytes());
        put(out, 4, &self.id.to_be_bytes());
        put(out, 6, &self.flags_fragment.to_be_bytes());
        put(out, 8, &[self.ttl, self.protocol]);
        put(out, 10, &self.checksum.to_be_bytes());
        put(out, 12, &self.src.octets());
        put(out, 16, &self.dst.octets());
    }
    /// The correct checksum of the other fields.
    pub fn computed_checksum(&self) -> u16 {
        let mut bytes = [0; Ipv4::LEN];
        Ipv4 { checksum: 0, ..*self }.emit(&mut bytes);
        let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(be16(pair, 0))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        !((folded & 0xffff) + (folded >> 16)) as u16
    }
}

/// IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

/// Global route header: an IPv6 header whose next header is 0x1b. A UD receiver gets it before the data.
pub type Grh = Ipv6;

impl Ipv6 {
    /// Length in bytes.
    pub const LEN: usize = 40;
    /// Reads the first [`Ipv6::LEN`] bytes; `None` unless version 6.
    pub fn parse(bytes: &[u8]) -> Option<Ipv6> {
        let b = bytes.first_chunk::<{ Ipv6::LEN }>()?;
        let first = be32(b, 0);
        (first >> 28 == 6).then(|| Ipv6 {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: be16(b, 4),
            next_header: b[6],
            hop_limit: b[7],
            src: array::<16>(b, 8).into(),
            dst: array::<16>(b, 24).into(),
        })
    }
    /// Writes the first [`Ipv6::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put(out, 0, &first.to_be_bytes());
        put(out, 4, &self.payload_len.to_be_bytes());
        put(out, 6, &[self.next_header, self.hop_limit]);
        put(out, 8, &self.src.octets());
        put(out, 24, &self.dst.octets());
    }
}

/// The 40 bytes of GRH area that a UD receiver gets with an IPv4 packet: 20 zero bytes, then the IPv4 header.
/// With an IPv6 packet the area holds the IPv6 header.
pub fn grh_area_ipv4(header: &Ipv4) -> [u8; Grh::LEN] {
    let mut area = [0; Grh::LEN];
    header.emit(&mut area[Grh::LEN - Ipv4::LEN..]);
    area
}

/// UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum, 0 if there is none.
    pub checksum: u16,
}

impl Udp {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// Reads the first [`Udp::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Udp> {
        let b = bytes.first_chunk::<{ Udp::LEN }>()?;
        Some(Udp { src_port: be16(b, 0), dst_port: be16(b, 2), len: be16(b, 4), checksum: be16(b, 6) })
    }
    /// Writes the first [`Udp::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.src_port.to_be_bytes());
        put(out, 2, &self.dst_port.to_be_bytes());
        put(out, 4, &self.len.to_be_bytes());
        put(out, 6, &self.checksum.to_be_bytes());
    }
}
