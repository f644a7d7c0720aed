//! What one simulated host sends and receives, written as a capture file for Wireshark and tshark.
//!
//! Packets are IPv4 with UDP (link type RAW), with times in nanoseconds since the beginning of the simulation. The invariant CRC
//! is zero, since no simulated packet has one. Payload that does not travel is left out, as by a capture with a snap length.

use crate::run::{PacketRun, RunPacket, RunPayload};
use burst_frame::TRAILER_LEN;
use burst_wire::{IP_PROTOCOL_UDP, Ipv4, ROCE_PORT, Udp};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Longest packet of a capture, as the file's head promises.
const SNAP_LEN: u32 = 65_535;

/// A capture file that is being written.
pub struct SimCapture {
    /// The host whose packets are written.
    pub host: u32,
    writer: PcapWriter<BufWriter<File>>,
    /// One packet is put together here.
    packet: Vec<u8>,
    /// The first error; nothing is written after it.
    error: Option<PcapError>,
}

impl SimCapture {
    /// A new file at `path` for the packets of `host`.
    ///
    /// # Errors
    /// The system's, when the file cannot be made.
    pub fn create(path: &Path, host: u32) -> std::io::Result<SimCapture> {
        let header = PcapHeader {
            snaplen: SNAP_LEN,
            datalink: DataLink::RAW,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(File::create(path)?), header).map_err(system_error)?;
        Ok(SimCapture { host, writer, packet: Vec::new(), error: None })
    }

    /// Writes all packets of a run at `at` nanoseconds; `is_marked` if a switch has marked them (ECN CE).
    pub fn run(&mut self, at: u64, run: &PacketRun, is_marked: bool) {
        let mut next = 0;
        while let Some((packet, end)) = run.packet_at(next) {
            let len = self.put_together(run, &packet, is_marked);
            if self.error.is_none() {
                let packet = PcapPacket::new(Duration::from_nanos(at), len, &self.packet);
                self.error = self.writer.write_packet(&packet).err();
            }
            next = end;
        }
    }

    /// Puts the bytes of one packet into `self.packet`, up to the first that do not travel. Returns the packet's length.
    fn put_together(&mut self, run: &PacketRun, packet: &RunPacket<'_>, is_marked: bool) -> u32 {
        let flow = &run.flow;
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else {
            unreachable!("simulated hosts have IPv4 addresses")
        };
        let len = (Udp::LEN + packet.len() + TRAILER_LEN) as u16;
        let mut ip = Ipv4 {
            tos: if is_marked { flow.tos | 3 } else { flow.tos },
            total_len: Ipv4::LEN as u16 + len,
            id: 0,
            flags_fragment: Ipv4::DONT_FRAGMENT,
            ttl: flow.hop_limit,
            protocol: IP_PROTOCOL_UDP,
            checksum: 0,
            src,
            dst,
        };
        ip.checksum = ip.computed_checksum();
        let out = &mut self.packet;
        out.clear();
        out.resize(Ipv4::LEN + Udp::LEN, 0);
        ip.emit(&mut out[..Ipv4::LEN]);
        Udp { src_port: flow.src_port, dst_port: ROCE_PORT, len, checksum: 0 }.emit(&mut out[Ipv4::LEN..]);
        let headers = out.len();
        out.resize(usize::from(ip.total_len), 0);
        packet.write_to(&mut out[headers..]);
        if packet.payload == RunPayload::Nowhere && packet.payload_len > 0 {
            out.truncate(headers + packet.head.len());
        }
        u32::from(ip.total_len)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The first error that writing met.
    pub fn finish(self) -> std::io::Result<()> {
        match self.error {
            Some(error) => Err(system_error(error)),
            None => self.writer.into_writer().flush(),
        }
    }
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
    use burst_frame::{Flow, TxBatch};
    use burst_span::Span;
    use burst_wire::Layers;

    #[test]
    fn a_captured_packet_has_all_layers_and_its_length() {
        let flow = Flow {
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 50_000,
            tos: 0x22,
            ..Flow::default()
        };
        let mut batch = TxBatch::new(2);
        let head = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 1]; // an ACK of queue pair 5, PSN 7
        assert!(batch.push(&flow, &head, &[], 0) && batch.push(&flow, &[4; 12], &[Span::null(100)], 0));
        let mut run = PacketRun::new(flow, Vec::new());
        assert!(batch.frames().iter().all(|frame| run.push(frame, batch.spans_of(frame))));
        let path = std::env::temp_dir().join(format!("burst-sim-capture-{}", std::process::id()));
        let mut capture = SimCapture::create(&path, 0).expect("a capture");
        capture.run(1_234_567_891, &run, true);
        capture.finish().expect("written");
        let file = File::open(&path).expect("the file");
        std::fs::remove_file(&path).expect("removed");
        let mut reader = pcap_file::pcap::PcapReader::new(file).expect("a capture file");
        let packet = reader.next_packet().expect("a packet").expect("whole");
        assert_eq!((packet.timestamp, packet.orig_len), (Duration::from_nanos(1_234_567_891), 20 + 8 + 16 + 4));
        let ip = Ipv4::parse(&packet.data).expect("IPv4");
        assert_eq!((ip.checksum, ip.tos), (ip.computed_checksum(), 0x23));
        let ether: Vec<u8> = [&[0; 12][..], &[8, 0], &packet.data].concat();
        assert_eq!(Layers::parse(&ether).expect("RoCEv2").transport, head);
        let packet = reader.next_packet().expect("a packet").expect("whole");
        assert_eq!((packet.data.len(), packet.orig_len), (20 + 8 + 12, 20 + 8 + 12 + 100 + 4));
        assert!(reader.next_packet().is_none());
    }
}
