//! Captured packets on their way from a worker to `burst capture`: messages on a socket of the kind SEQPACKET.
//!
//! A message is the number of packets that were lost since the one before (8 bytes), and packets: a head of
//! [`CAPTURED_HEAD`] bytes and the captured bytes, from the transport's first header on. Numbers are in the machine's
//! byte order: both ends are on one host.

use burst_base::Reason;
use std::net::IpAddr;

/// Longest message.
pub const CAPTURE_MESSAGE_MAX: usize = 64 << 10;
/// Bytes of a message before its first packet.
pub const CAPTURE_MESSAGE_HEAD: usize = 8;

/// Bytes of a packet's head.
pub const CAPTURED_HEAD: usize = 60;

/// A packet that a port has sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Sent; else received.
    pub is_sent: bool,
    /// What the host counted of it: why it was dropped, refused or noted.
    pub reason: Option<Reason>,
    /// Number of the queue pair that has sent it; 0: received, or not known.
    pub sender: u32,
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// UDP source port, as the transport asked for it or as it came.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Bytes of the UDP payload, the trailer included, which is never captured.
    pub udp_len: u16,
    /// The captured ones of them.
    pub bytes: &'a [u8],
}

const _: () = assert!(Reason::COUNT < u8::MAX as usize, "the number of a reason fits into its byte");

/// The number of a reason plus one; 0: none.
pub const fn reason_number(reason: Option<Reason>) -> u8 {
    match reason {
        Some(reason) => reason.index() as u8 + 1,
        None => 0,
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl CapturedPacket<'_> {
    /// The head; `bytes` captured bytes follow it.
    pub fn head(&self, bytes: u16) -> [u8; CAPTURED_HEAD] {
        let mut head = [0; CAPTURED_HEAD];
        head[..8].copy_from_slice(&self.at_ns.to_ne_bytes());
        head[8..10].copy_from_slice(&bytes.to_ne_bytes());
        head[10..12].copy_from_slice(&self.udp_len.to_ne_bytes());
        head[12..14].copy_from_slice(&self.src_port.to_ne_bytes());
        head[14..16].copy_from_slice(&self.dst_port.to_ne_bytes());
        head[16..20].copy_from_slice(&self.flow_label.to_ne_bytes());
        let flags = u8::from(self.is_sent) | u8::from(self.src.is_ipv6()) << 1;
        head[20..24].copy_from_slice(&[flags, reason_number(self.reason), self.tos, self.hop_limit]);
        head[24..40].copy_from_slice(&octets(self.src));
        head[40..56].copy_from_slice(&octets(self.dst));
        head[56..].copy_from_slice(&self.sender.to_ne_bytes());
        head
    }
}

/// The packets of a message, and how many were lost before it; `None` if it is none.
pub fn captured(message: &[u8]) -> Option<(u64, Vec<CapturedPacket<'_>>)> {
    let (lost, mut rest) = message.split_first_chunk::<CAPTURE_MESSAGE_HEAD>()?;
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<CAPTURED_HEAD>()?;
        let be16 = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let address = |at: usize| {
            let octets: [u8; 16] = head[at..at + 16].try_into().expect("sixteen bytes");
            let v6 = std::net::Ipv6Addr::from(octets);
            match v6.to_ipv4_mapped().filter(|_| head[20] & 2 == 0) {
                Some(v4) => IpAddr::V4(v4),
                None => IpAddr::V6(v6),
            }
        };
        let (bytes, next) = behind.split_at_checked(usize::from(be16(8)))?;
        packets.push(CapturedPacket {
            at_ns: u64::from_ne_bytes(head[..8].try_into().expect("eight bytes")),
            is_sent: head[20] & 1 != 0,
            reason: usize::from(head[21]).checked_sub(1).and_then(|index| Reason::ALL.get(index)).copied(),
            sender: u32::from_ne_bytes([head[56], head[57], head[58], head[59]]),
            src: address(24),
            dst: address(40),
            src_port: be16(12),
            dst_port: be16(14),
            tos: head[22],
            hop_limit: head[23],
            flow_label: u32::from_ne_bytes([head[16], head[17], head[18], head[19]]),
            udp_len: be16(10),
            bytes,
        });
        rest = next;
    }
    Some((u64::from_ne_bytes(*lost), packets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_they_were_written_and_no_message_is_read_beyond_its_end() {
        let v4 = CapturedPacket {
            at_ns: 1_700_000_000_123_456_789,
            is_sent: true,
            reason: Reason::ALL.last().copied(),
            sender: 0x12_3456,
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 50_000,
            dst_port: 4791,
            tos: 2,
            hop_limit: 64,
            flow_label: 0,
            udp_len: 1044,
            bytes: &[1, 2, 3],
        };
        let v6 = CapturedPacket {
            is_sent: false,
            reason: None,
            sender: 0,
            src: "fe80::1".parse().expect("an address"),
            dst: "::ffff:10.0.0.1".parse().expect("an address"),
            flow_label: 0xf_ffff,
            bytes: &[],
            ..v4
        };
        let mut message = 7u64.to_ne_bytes().to_vec();
        for packet in [v4, v6] {
            message.extend(packet.head(packet.bytes.len() as u16));
            message.extend(packet.bytes);
        }
        assert_eq!(captured(&message), Some((7, vec![v4, v6])));
        assert_eq!(captured(&message[..8]), Some((7, Vec::new())));
        let ends = [8 + CAPTURED_HEAD + 3, message.len()];
        for len in (0..8).chain(9..message.len()).filter(|len| !ends.contains(len)) {
            assert_eq!(captured(&message[..len]), None, "{len} bytes");
        }
    }
}
