//! Ethernet frames as the kernel passes them: behind a `struct virtio_net_hdr`, which says what is left to do with checksums and
//! segmentation (include/uapi/linux/virtio_net.h).
//!
//! Hosts with offloads send trains: one frame of up to 64 KiB that stands for many packets of one flow. A switch queues, marks
//! and drops single packets, so [`EthernetFrame::packets`] cuts a train as an adapter would: TCP (sequence numbers, flags) and
//! UDP, on IPv4 and IPv6. Checksums are left to the kernel, which completes them on sending where the header asks for it.

use std::ops::Range;

/// Bytes of `struct virtio_net_hdr`.
pub const VNET_BYTES: usize = 10;
/// Bytes of an Ethernet header without VLAN tag. The kernel takes tags out.
const ETHERNET_BYTES: usize = 14;
/// The checksum field holds the sum of the pseudo header.
const NEEDS_CSUM: u8 = 1;
/// Types of segmentation: none, TCP over IPv4, TCP over IPv6, UDP.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Flag beside the type: CWR is set in the first segment only.
const GSO_ECN: u8 = 0x80;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Flags of TCP that only the last segment has (FIN, PSH), and only the first one (CWR).
const TCP_LAST: u8 = 0x01 | 0x08;
const TCP_FIRST: u8 = 0x80;

/// Why a frame cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRefusal {
    /// It is shorter than its headers.
    Short,
    /// It is a train of a kind that is not known (a tunnel, SCTP).
    UnknownTrain,
}

/// A frame: the kernel's header, then the frame without its check sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthernetFrame(Vec<u8>);

/// Where the parts of an IP packet lie in the bytes of a [`EthernetFrame`].
struct Layout {
    is_v4: bool,
    ip: usize,
    protocol: u8,
    l4: usize,
    payload: usize,
}

impl EthernetFrame {
    /// A frame as it was received.
    ///
    /// # Errors
    /// [`FrameRefusal::Short`].
    pub fn new(bytes: Vec<u8>) -> Result<EthernetFrame, FrameRefusal> {
        if bytes.len() < VNET_BYTES + ETHERNET_BYTES { Err(FrameRefusal::Short) } else { Ok(EthernetFrame(bytes)) }
    }

    /// The kernel's header and the frame, as they are sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The frame.
    pub fn ethernet(&self) -> &[u8] {
        &self.0[VNET_BYTES..]
    }

    /// Destination and source.
    pub fn addresses(&self) -> ([u8; 6], [u8; 6]) {
        let address = |at: usize| std::array::from_fn(|k| self.0[VNET_BYTES + at + k]);
        (address(0), address(6))
    }

    /// The flow: a hash of addresses, ports and protocol.
    pub fn flow(&self) -> u64 {
        let range = match self.layout() {
            Some(layout) => layout.ip + if layout.is_v4 { 12 } else { 8 }..(layout.l4 + 4).min(self.0.len()),
            None => VNET_BYTES..VNET_BYTES + ETHERNET_BYTES,
        };
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        self.0[range].iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether a switch may mark it: ECT(0) or ECT(1) (RFC 3168).
    pub fn is_ecn_capable(&self) -> bool {
        self.layout().is_some_and(|layout| matches!(self.traffic_class(&layout) & 3, 1 | 2))
    }

    fn traffic_class(&self, layout: &Layout) -> u8 {
        let [a, b] = [self.0[layout.ip], self.0[layout.ip + 1]];
        if layout.is_v4 { b } else { (a << 4) | (b >> 4) }
    }

    /// Marks it: congestion experienced (CE). The checksum of the IPv4 header follows (RFC 1624).
    pub fn mark(&mut self) {
        let Some(layout) = self.layout() else { return };
        let ip = layout.ip;
        if !layout.is_v4 {
            self.0[ip + 1] |= 0x30;
            return;
        }
        let before = self.number(ip);
        self.0[ip + 1] |= 3;
        let sum = u32::from(!self.number(ip + 10)) + u32::from(!before) + u32::from(self.number(ip));
        self.set(ip + 10, !fold(sum));
    }

    /// Cuts a train into its packets; a frame that is no train stays as it is.
    ///
    /// # Errors
    /// The train cannot be cut.
    pub fn packets(self) -> Result<Vec<EthernetFrame>, FrameRefusal> {
        let kind = self.0[1] & !GSO_ECN;
        if kind == GSO_NONE {
            let mut frame = self;
            // Only the request to complete the checksum is for the other side, too.
            frame.0[0] &= NEEDS_CSUM;
            return Ok(vec![frame]);
        }
        let layout = self.layout().ok_or(FrameRefusal::UnknownTrain)?;
        let wanted = match (kind, layout.is_v4) {
            (GSO_TCPV4, true) | (GSO_TCPV6, false) => TCP,
            (GSO_UDP_L4, _) => UDP,
            _ => return Err(FrameRefusal::UnknownTrain),
        };
        let size = usize::from(u16::from_ne_bytes([self.0[4], self.0[5]]));
        if layout.protocol != wanted || size == 0 || self.0[0] & NEEDS_CSUM == 0 || layout.payload >= self.0.len() {
            return Err(FrameRefusal::UnknownTrain);
        }
        let starts = (layout.payload..self.0.len()).step_by(size);
        let ranges = starts.map(|from| from..(from + size).min(self.0.len()));
        Ok(ranges.enumerate().map(|(number, range)| self.packet(&layout, number, range)).collect())
    }

    /// Packet `number` of a train, with the payload in `range`.
    fn packet(&self, layout: &Layout, number: usize, range: Range<usize>) -> EthernetFrame {
        let (is_first, is_last) = (number == 0, range.end == self.0.len());
        let sent_before = range.start - layout.payload;
        let mut frame = EthernetFrame([&self.0[..layout.payload], &self.0[range]].concat());
        let (ip, l4) = (layout.ip, layout.l4);
        let l4_bytes = (frame.0.len() - l4) as u16;
        // No train any more; the kernel completes the checksum from its start and the offset of its field.
        frame.0[..VNET_BYTES].fill(0);
        frame.0[0] = NEEDS_CSUM;
        let field = if layout.protocol == TCP { 16 } else { 6 };
        frame.0[2..4].copy_from_slice(&((layout.payload - VNET_BYTES) as u16).to_ne_bytes());
        frame.0[6..8].copy_from_slice(&((l4 - VNET_BYTES) as u16).to_ne_bytes());
        frame.0[8..10].copy_from_slice(&(field as u16).to_ne_bytes());
        if layout.is_v4 {
            frame.set(ip + 2, (frame.0.len() - ip) as u16);
            frame.set(ip + 4, frame.number(ip + 4).wrapping_add(number as u16));
            frame.set(ip + 10, 0);
            frame.set(ip + 10, !frame.sum(ip..l4));
        } else {
            // The payload of IPv6 begins behind its 40 bytes, extension headers included.
            frame.set(ip + 4, (frame.0.len() - ip - 40) as u16);
        }
        if layout.protocol == TCP {
            let sequence = u32::from_be_bytes(std::array::from_fn(|k| frame.0[l4 + 4 + k]));
            frame.0[l4 + 4..l4 + 8].copy_from_slice(&sequence.wrapping_add(sent_before as u32).to_be_bytes());
            frame.0[l4 + 13] &= !(if is_last { 0 } else { TCP_LAST } | if is_first { 0 } else { TCP_FIRST });
        } else {
            frame.set(l4 + 4, l4_bytes);
        }
        let addresses = if layout.is_v4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
        let pseudo = u32::from(frame.sum(addresses)) + u32::from(layout.protocol) + u32::from(l4_bytes);
        frame.set(l4 + field, fold(pseudo));
        frame
    }

    /// Finds the headers; `None` if it is no whole IP packet.
    fn layout(&self) -> Option<Layout> {
        let ip = VNET_BYTES + ETHERNET_BYTES;
        let byte = |at: usize| self.0.get(at).copied();
        let kind = [byte(ip - 2)?, byte(ip - 1)?];
        let (is_v4, protocol, l4) = match (kind, byte(ip)? >> 4) {
            ([0x08, 0x00], 4) => (true, byte(ip + 9)?, ip + usize::from(byte(ip)? & 15) * 4),
            ([0x86, 0xdd], 6) => (false, byte(ip + 6)?, ip + 40),
            _ => return None,
        };
        let l4_header = match protocol {
            TCP => usize::from(byte(l4 + 12)? >> 4) * 4,
            UDP => 8,
            _ => 0,
        };
        let is_whole = l4 >= ip + 20 && (protocol != TCP || l4_header >= 20) && l4 + l4_header <= self.0.len();
        is_whole.then_some(Layout { is_v4, ip, protocol, l4, payload: l4 + l4_header })
    }

    fn number(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn set(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// The one's complement sum of 16-bit words (RFC 1071).
    fn sum(&self, range: Range<usize>) -> u16 {
        let words = self.0[range].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        fold(words.sum())
    }
}

/// Adds the carries of a sum of 16-bit words.
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 or IPv6 packet behind the kernel's header.
    fn packet(is_v4: bool, protocol: u8, payload: &[u8], segment: u16) -> EthernetFrame {
        let mut bytes = vec![0u8; VNET_BYTES];
        bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let l4: Vec<u8> = if protocol == TCP {
            let mut header =
                vec![0, 80, 0x12, 0x34, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 0, 5 << 4, TCP_LAST | TCP_FIRST | 0x10];
            header.extend([0; 6]);
            header
        } else {
            vec![0x12, 0xb7, 0x12, 0xb7, 0, 0, 0, 0]
        };
        if is_v4 {
            bytes.extend([8, 0, 0x45, 2, 0, 0, 0xff, 0xff, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            bytes.extend([0x86, 0xdd, 0x60, 0x20, 0, 0, 0, 0, protocol, 64]);
            bytes.extend([1; 32]);
        }
        bytes.extend(l4);
        bytes.extend(payload);
        if segment > 0 {
            bytes[0] = NEEDS_CSUM;
            bytes[1] = match (protocol, is_v4) {
                (TCP, true) => GSO_TCPV4,
                (TCP, false) => GSO_TCPV6,
                _ => GSO_UDP_L4,
            };
            bytes[4..6].copy_from_slice(&segment.to_ne_bytes());
        }
        EthernetFrame::new(bytes).expect("long enough")
    }

    /// The checksum of the upper layer is completed as the kernel does it, and then verified over the pseudo header.
    fn is_valid(frame: &EthernetFrame) -> bool {
        let layout = frame.layout().expect("an IP packet");
        let mut done = frame.clone();
        let field = layout.l4 + usize::from(u16::from_ne_bytes([frame.0[8], frame.0[9]]));
        done.set(field, !done.sum(layout.l4..done.0.len()));
        let addresses = if layout.is_v4 { layout.ip + 12..layout.ip + 20 } else { layout.ip + 8..layout.ip + 40 };
        let length = done.0.len() - layout.l4;
        let whole = u32::from(done.sum(addresses)) + u32::from(layout.protocol) + length as u32;
        let header_ok = !layout.is_v4 || frame.sum(layout.ip..layout.l4) == 0xffff;
        header_ok && fold(whole + u32::from(done.sum(layout.l4..done.0.len()))) == 0xffff
    }

    #[test]
    fn a_train_becomes_the_packets_that_an_adapter_would_send() {
        let payload: Vec<u8> = (0..2500u32).map(|k| k as u8).collect();
        for (is_v4, protocol) in [(true, TCP), (false, TCP), (true, UDP), (false, UDP)] {
            let packets = packet(is_v4, protocol, &payload, 1000).packets().expect("a known train");
            assert_eq!(packets.len(), 3);
            let mut together = Vec::<u8>::new();
            for (number, frame) in packets.iter().enumerate() {
                let layout = frame.layout().expect("an IP packet");
                assert!(is_valid(frame), "packet {number} of {is_v4} {protocol}");
                assert_eq!(frame.0[1], GSO_NONE);
                if is_v4 {
                    assert_eq!(frame.number(layout.ip + 4), 0xffff_u16.wrapping_add(number as u16));
                    assert_eq!(usize::from(frame.number(layout.ip + 2)), frame.0.len() - layout.ip);
                } else {
                    assert_eq!(usize::from(frame.number(layout.ip + 4)), frame.0.len() - layout.ip - 40);
                }
                if protocol == TCP {
                    let flags = [0x10 | TCP_FIRST, 0x10, 0x10 | TCP_LAST][number];
                    assert_eq!(frame.0[layout.l4 + 13], flags);
                    let sequence = 0xffff_ff00_u32.wrapping_add(number as u32 * 1000);
                    assert_eq!(frame.0[layout.l4 + 4..layout.l4 + 8], sequence.to_be_bytes());
                } else {
                    assert_eq!(usize::from(frame.number(layout.l4 + 4)), frame.0.len() - layout.l4);
                }
                together.extend(&frame.0[layout.payload..]);
            }
            assert_eq!(together, payload);
        }
    }

    #[test]
    fn a_mark_keeps_the_header_valid() {
        for is_v4 in [true, false] {
            let mut frame = packet(is_v4, UDP, &[7; 100], 1000).packets().expect("one packet").remove(0);
            assert!(frame.is_ecn_capable() && is_valid(&frame));
            frame.mark();
            assert!(!frame.is_ecn_capable() && is_valid(&frame));
            let layout = frame.layout().expect("an IP packet");
            assert_eq!(frame.traffic_class(&layout) & 3, 3);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_or_passed() {
        assert_eq!(EthernetFrame::new(vec![0; 23]), Err(FrameRefusal::Short));
        // A train of a tunnel: UDP headers where TCP should be.
        let mut tunnel = packet(true, UDP, &[0; 3000], 1000);
        tunnel.0[1] = GSO_TCPV4;
        assert_eq!(tunnel.packets(), Err(FrameRefusal::UnknownTrain));
        // Headers that are cut off at any place neither panic nor become a train.
        let whole = packet(true, TCP, &[0; 3000], 1000);
        for len in VNET_BYTES + ETHERNET_BYTES..VNET_BYTES + 60 {
            let frame = EthernetFrame::new(whole.0[..len].to_vec()).expect("long enough");
            let (_, _) = (frame.flow(), frame.is_ecn_capable());
            frame.clone().mark();
            let _ = frame.packets();
        }
        // ARP is passed as it is.
        let mut arp = vec![0; 60];
        arp[VNET_BYTES + 12..VNET_BYTES + 14].copy_from_slice(&[8, 6]);
        let arp = EthernetFrame::new(arp).expect("long enough");
        assert!(!arp.is_ecn_capable());
        assert_eq!(arp.clone().packets(), Ok(vec![arp]));
    }
}
