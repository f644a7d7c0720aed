//! A capture file: pcapng, one interface for each device, IP packets without link layer, times in nanoseconds, directions.
//!
//! The IP and UDP headers are made from the addresses that the port got with the packet. Checksums of UDP are left out (0 means
//! none in IPv4; in IPv6 the kernel or the adapter makes it later). The invariant CRC was not captured either, and is zero. Why
//! the host dropped or refused a packet is the packet's comment.

use super::lines::comment;
use burst_control::capture::CapturedPacket;
use burst_wire::{ICRC_LEN, IP_PROTOCOL_UDP, Ipv4, Ipv6, Udp};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::time::Duration;

/// Exponent of the resolution of times: nanoseconds.
const RESOLUTION: u8 = 9;
/// Direction in the flags of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A file that is being written.
pub struct CaptureFile {
    writer: PcapNgWriter<BufWriter<Box<dyn Write>>>,
    /// One packet is put together here.
    packet: Vec<u8>,
}

impl CaptureFile {
    /// A new file for the packets of these devices, each with the name of its interface.
    ///
    /// # Errors
    /// The system's.
    pub fn to(out: Box<dyn Write>, devices: &[(&str, &str)]) -> std::io::Result<CaptureFile> {
        let mut writer = PcapNgWriter::new(BufWriter::new(out)).map_err(system_error)?;
        for (name, interface) in devices.iter().copied() {
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                    InterfaceDescriptionOption::IfDescription(Cow::Borrowed(interface)),
                    InterfaceDescriptionOption::IfTsResol(RESOLUTION),
                ],
            };
            writer.write_pcapng_block(block).map_err(system_error)?;
        }
        Ok(CaptureFile { writer, packet: Vec::new() })
    }

    /// Writes a packet of a device, before which so many were lost.
    ///
    /// # Errors
    /// The system's.
    pub fn packet(&mut self, device: usize, packet: &CapturedPacket<'_>, lost: u64) -> std::io::Result<()> {
        let original_len = put_together(packet, &mut self.packet);
        let mut options = vec![EnhancedPacketOption::Flags(if packet.is_sent { OUTBOUND } else { INBOUND })];
        if let Some(reason) = packet.reason {
            options.push(EnhancedPacketOption::Comment(comment(reason).into()));
        }
        if lost > 0 {
            options.push(EnhancedPacketOption::DropCount(lost));
        }
        let block = EnhancedPacketBlock {
            interface_id: device as u32,
            timestamp: Duration::from_nanos(packet.at_ns),
            original_len,
            data: Cow::Borrowed(&self.packet),
            options,
        };
        self.writer.write_pcapng_block(block).map(|_| ()).map_err(system_error)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The system's.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.writer.get_mut().flush()
    }
}

/// The packet from the IP header on, in `out`; returns its length on the wire.
fn put_together(packet: &CapturedPacket<'_>, out: &mut Vec<u8>) -> u32 {
    let udp_len = packet.udp_len.saturating_add(Udp::LEN as u16);
    out.clear();
    let ip_len = match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4 {
                tos: packet.tos,
                total_len: udp_len.saturating_add(Ipv4::LEN as u16),
                id: 0,
                flags_fragment: Ipv4::DONT_FRAGMENT,
                ttl: packet.hop_limit,
                protocol: IP_PROTOCOL_UDP,
                checksum: 0,
                src,
                dst,
            };
            ip.checksum = ip.computed_checksum();
            out.resize(Ipv4::LEN + Udp::LEN, 0);
            ip.emit(&mut out[..Ipv4::LEN]);
            Ipv4::LEN
        }
        (src, dst) => {
            let v6 = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let ip = Ipv6 {
                traffic_class: packet.tos,
                flow_label: packet.flow_label & 0xf_ffff,
                payload_len: udp_len,
                next_header: IP_PROTOCOL_UDP,
                hop_limit: packet.hop_limit,
                src: v6(src),
                dst: v6(dst),
            };
            out.resize(Ipv6::LEN + Udp::LEN, 0);
            ip.emit(&mut out[..Ipv6::LEN]);
            Ipv6::LEN
        }
    };
    let udp = Udp { src_port: packet.src_port, dst_port: packet.dst_port, len: udp_len, checksum: 0 };
    udp.emit(&mut out[ip_len..]);
    out.extend(packet.bytes);
    if packet.bytes.len() + ICRC_LEN == usize::from(packet.udp_len) {
        out.extend([0; ICRC_LEN]);
    }
    ip_len as u32 + u32::from(udp_len)
}

/// The system's error: that of the library does not show it.
fn system_error(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_wire::Layers;

    #[test]
    fn a_packet_has_its_headers_and_its_length_on_the_wire() {
        let head = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 1];
        let v4 = CapturedPacket {
            at_ns: 1,
            is_sent: true,
            reason: None,
            sender: 0,
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 50_000,
            dst_port: 4791,
            tos: 2,
            hop_limit: 64,
            flow_label: 3,
            udp_len: 20,
            bytes: &head,
        };
        let v6 = CapturedPacket { src: "2001::1".parse().expect("one"), dst: "2001::2".parse().expect("one"), ..v4 };
        for (packet, ether_type, len) in [(v4, [8, 0], 48), (v6, [0x86, 0xdd], 68)] {
            let mut out = Vec::new();
            assert_eq!(put_together(&packet, &mut out), len);
            let frame: Vec<u8> = [&[0; 12][..], &ether_type, &out].concat();
            assert_eq!(Layers::parse(&frame).expect("RoCEv2").transport, head);
        }
    }
}
