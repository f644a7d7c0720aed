//! Packets of a capture file: pcapng of `burst capture`, or of another program on an Ethernet interface.
//!
//! What is no IP packet to the UDP port of RoCEv2 or of the Unified Bus is left out. The direction is that of the file's flags; a
//! file without them does not say at which host it was taken, so each of its packets counts as sent.

use burst_base::Reason;
use burst_control::capture::CapturedPacket;
use burst_ubwire::UB_UDP_PORT;
use burst_wire::{ICRC_LEN, IP_PROTOCOL_UDP, Ipv4, Ipv6, ROCE_PORT, Udp};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;

/// Most packets that are read of a file.
const PACKETS_MAX: usize = 1 << 20;
/// Bytes of an Ethernet header, and of a VLAN tag.
const ETHERNET: usize = 14;
const TAG: usize = 4;
/// Direction in the flags of a packet: received.
const INBOUND: u32 = 1;

/// A packet with its bytes.
#[derive(Clone, Debug)]
pub struct SeenPacket {
    head: CapturedPacket<'static>,
    bytes: Vec<u8>,
}

impl SeenPacket {
    /// A copy.
    pub fn of(packet: &CapturedPacket<'_>) -> SeenPacket {
        SeenPacket { head: CapturedPacket { bytes: &[], ..*packet }, bytes: packet.bytes.to_vec() }
    }
    /// The packet.
    pub fn packet(&self) -> CapturedPacket<'_> {
        CapturedPacket { bytes: &self.bytes, ..self.head }
    }
}

/// The packets of a file, in its order.
///
/// # Errors
/// A sentence: the file cannot be read, or is no pcapng file.
pub fn packets_of(path: &str) -> Result<Vec<SeenPacket>, String> {
    let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let no_file = |error| format!("{path} is no pcapng file, as `burst capture -w` writes it: {error}");
    let mut reader = PcapNgReader::new(BufReader::new(file)).map_err(no_file)?;
    let (mut packets, mut interfaces) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.map_err(no_file)? {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(interface) => interfaces.push(CapturedLink::of(&interface)),
            Block::EnhancedPacket(block) => {
                let interface = interfaces.get(block.interface_id as usize);
                packets.extend(interface.and_then(|interface| packet_of(&block, *interface)));
            }
            _ => {}
        }
        if packets.len() >= PACKETS_MAX {
            return Err(format!("{path} has more than {PACKETS_MAX} packets: write fewer, with --count or a filter"));
        }
    }
    Ok(packets)
}

/// What must be known of an interface.
#[derive(Clone, Copy, Debug)]
struct CapturedLink {
    link: DataLink,
    /// Nanoseconds of a unit of time.
    unit_ns: u64,
}

impl CapturedLink {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> CapturedLink {
        let resolution = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(exponent) => Some(*exponent),
            _ => None,
        });
        // Without the option it is microseconds.
        let unit_ns = match resolution.unwrap_or(6) {
            exponent @ 0..9 => 10u64.pow(9 - u32::from(exponent)),
            _ => 1,
        };
        CapturedLink { link: block.linktype, unit_ns }
    }
}

fn packet_of(block: &EnhancedPacketBlock<'_>, interface: CapturedLink) -> Option<SeenPacket> {
    let ip = match interface.link {
        DataLink::RAW => &block.data[..],
        DataLink::ETHERNET => behind_ethernet(&block.data)?,
        _ => return None,
    };
    let (mut packet, udp) = network_layer(ip)?;
    let head = Udp::parse(udp)?;
    let payload = udp.get(Udp::LEN..)?;
    (packet.src_port, packet.dst_port) = (head.src_port, head.dst_port);
    packet.udp_len = head.len.saturating_sub(Udp::LEN as u16);
    if ![ROCE_PORT, UB_UDP_PORT].contains(&head.dst_port) {
        return None;
    }
    let whole = usize::from(packet.udp_len);
    let payload = &payload[..payload.len().min(whole.saturating_sub(ICRC_LEN))];
    packet.at_ns = (block.timestamp.as_nanos() as u64).saturating_mul(interface.unit_ns);
    packet.is_sent = true;
    for option in &block.options {
        match option {
            EnhancedPacketOption::Flags(flags) => packet.is_sent = flags & 3 != INBOUND,
            EnhancedPacketOption::Comment(comment) => packet.reason = reason_in(comment),
            _ => {}
        }
    }
    Some(SeenPacket { head: packet, bytes: payload.to_vec() })
}

/// The reason that a comment of `burst capture` names.
fn reason_in(comment: &str) -> Option<Reason> {
    let name = comment.split_once(": ")?.1.split_once('.')?.0;
    Reason::ALL.iter().find(|reason| reason.name() == name).copied()
}

fn behind_ethernet(frame: &[u8]) -> Option<&[u8]> {
    let kind_at = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let tags = usize::from(kind_at(ETHERNET - 2)? == 0x8100) * TAG;
    frame.get(ETHERNET + tags..)
}

/// A packet with what the IP header says, and the UDP header with its payload.
fn network_layer(bytes: &[u8]) -> Option<(CapturedPacket<'static>, &[u8])> {
    let (src, dst, tos, hop_limit, flow_label, len) = match bytes.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse(bytes).filter(|ip| ip.protocol == IP_PROTOCOL_UDP)?;
            (IpAddr::V4(ip.src), IpAddr::V4(ip.dst), ip.tos, ip.ttl, 0, Ipv4::LEN)
        }
        6 => {
            let ip = Ipv6::parse(bytes).filter(|ip| ip.next_header == IP_PROTOCOL_UDP)?;
            (IpAddr::V6(ip.src), IpAddr::V6(ip.dst), ip.traffic_class, ip.hop_limit, ip.flow_label, Ipv6::LEN)
        }
        _ => return None,
    };
    let packet = CapturedPacket {
        at_ns: 0,
        is_sent: true,
        reason: None,
        sender: 0,
        src,
        dst,
        src_port: 0,
        dst_port: 0,
        tos,
        hop_limit,
        flow_label,
        udp_len: 0,
        bytes: &[],
    };
    Some((packet, bytes.get(len..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::file::CaptureFile;
    use crate::capture::lines::tests::packet;

    #[test]
    fn a_written_file_is_read_with_directions_times_and_reasons() {
        let path = std::env::temp_dir().join(format!("burst-read-{}.pcapng", std::process::id()));
        let ack = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7, 0x1f, 0, 0, 1];
        let v4 = CapturedPacket { at_ns: 1_700_000_000_123_456_789, ..packet(&ack, 20, ROCE_PORT) };
        let v6 = CapturedPacket {
            is_sent: true,
            src: "2001:db8::1".parse().expect("v6"),
            dst: "2001:db8::2".parse().expect("v6"),
            flow_label: 5,
            ..v4
        };
        let written = [v4, CapturedPacket { reason: Some(Reason::StaleAck), ..v4 }, v6, packet(&ack[..12], 1044, 4791)];
        let out = Box::new(File::create(&path).expect("a file"));
        let mut file = CaptureFile::to(out, &[("burst0", "eth0")]).expect("a head");
        written.iter().for_each(|packet| file.packet(0, packet, 0).expect("written"));
        file.flush().expect("written");
        let read = packets_of(path.to_str().expect("text")).expect("a capture");
        assert_eq!(read.iter().map(SeenPacket::packet).collect::<Vec<_>>(), written);
        std::fs::write(&path, "no capture").expect("written");
        let refused = packets_of(path.to_str().expect("text")).expect_err("no pcapng");
        assert!(refused.contains("is no pcapng file"), "{refused}");
        std::fs::remove_file(&path).expect("removed");
        assert!(packets_of("/nonexistent").expect_err("nothing").contains("No such file"));
    }
}
