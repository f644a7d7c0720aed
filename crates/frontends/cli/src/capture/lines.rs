//! A captured packet in a line.

use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::capture::CapturedPacket;
use burst_ubwire::{Dialect, TaHeader, TpOpcode, UB_UDP_PORT, UbPacket};
use burst_wire::{Packet, ROCE_PORT};
use std::fmt::Write;

const DAY: u64 = 86_400;
const BILLION: u64 = 1_000_000_000;

/// Time of day in UTC, direction, addresses, and what the packet is.
pub fn line_of(packet: &CapturedPacket<'_>) -> String {
    let (seconds, micros) = (packet.at_ns / BILLION % DAY, packet.at_ns % BILLION / 1000);
    let direction = if packet.is_sent { '>' } else { '<' };
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut line =
        format!("{hour:02}:{minute:02}:{second:02}.{micros:06} {direction} {} > {} ", packet.src, packet.dst);
    match packet.dst_port {
        ROCE_PORT => roce(packet, &mut line),
        UB_UDP_PORT => unified_bus(packet, &mut line),
        port => _ = write!(line, "UDP port {port}"),
    }
    if packet.tos & 3 == 3 {
        line.push_str(" CE");
    }
    if let Some(reason) = packet.reason {
        let _ = write!(line, " {} ({})", fate(reason), reason.name());
    }
    line.push('\n');
    line
}

/// What a reason says of a received packet.
pub const fn fate(reason: Reason) -> &'static str {
    match reason.class() {
        Class::Drop => "dropped",
        Class::Nak => "refused",
        Class::Completion | Class::Refusal | Class::Note => "noted",
    }
}

/// The reason that a comment has named, and the text of the comment.
pub fn comment(reason: Reason) -> String {
    format!("{}: {}. {} {}", fate(reason), reason.name(), reason.explanation(), reason.cure())
}

/// Name of a packet's opcode; empty if it has none. `bytes` are those of [`whole`].
pub fn opcode_of(packet: &CapturedPacket<'_>, bytes: &[u8]) -> String {
    match packet.dst_port {
        ROCE_PORT => Packet::parse(bytes).map_or_else(|_| String::new(), |parsed| parsed.bth.opcode.to_string()),
        UB_UDP_PORT => {
            let Ok(parsed) = UbPacket::parse(bytes, &Dialect::BURST) else { return String::new() };
            match parsed.head.ta {
                Some(TaHeader::Request(request)) => format!("{:?}", request.base.opcode),
                Some(TaHeader::Response(response)) => format!("{:?}", response.opcode),
                None if parsed.head.rtph.is_some() => "TPACK".into(),
                None => String::new(),
            }
        }
        _ => String::new(),
    }
}

/// What a parser needs: the beginning of a packet that is longer is followed by zeros.
pub fn whole(packet: &CapturedPacket<'_>) -> Vec<u8> {
    let mut bytes = packet.bytes.to_vec();
    bytes.resize(usize::from(packet.udp_len).saturating_sub(burst_wire::ICRC_LEN).max(bytes.len()), 0);
    bytes
}

fn roce(packet: &CapturedPacket<'_>, line: &mut String) {
    let bytes = whole(packet);
    let parsed = match Packet::parse(&bytes) {
        Ok(parsed) => parsed,
        Err(reason) => {
            let _ = write!(line, "malformed ({})", reason.name());
            return;
        }
    };
    let bth = parsed.bth;
    let _ = write!(line, "{} qp 0x{:06x} psn {}", bth.opcode, bth.dest_qpn.get(), bth.psn.get());
    if packet.sender != 0 {
        let _ = write!(line, " from 0x{:06x}", packet.sender);
    }
    if bth.ack_req {
        line.push_str(" ack-req");
    }
    if let Some(reth) = parsed.reth() {
        let _ = write!(line, " va 0x{:x} rkey 0x{:x} dma-len {}", reth.addr, reth.rkey.0, reth.len);
    }
    if let Some(aeth) = parsed.aeth() {
        let _ = write!(line, " {:?} msn {}", aeth.syndrome, aeth.msn);
    }
    if let Some(deth) = parsed.deth() {
        let _ = write!(line, " src-qp 0x{:06x}", deth.src_qpn.get());
    }
    if !parsed.payload.is_empty() {
        let _ = write!(line, " len {}", parsed.payload.len());
    }
}

fn unified_bus(packet: &CapturedPacket<'_>, line: &mut String) {
    let bytes = whole(packet);
    let parsed = match UbPacket::parse(&bytes, &Dialect::BURST) {
        Ok(parsed) => parsed,
        Err(reason) => {
            let _ = write!(line, "URMA malformed ({})", reason.name());
            return;
        }
    };
    line.push_str("URMA");
    if let Some(rtph) = parsed.head.rtph {
        if rtph.opcode != TpOpcode::Data {
            line.push_str(" TPACK");
        }
        let _ = write!(line, " tpn 0x{:06x} psn {}", rtph.dst_tpn, rtph.psn.get());
    }
    match parsed.head.ta {
        Some(TaHeader::Request(request)) => {
            let _ = write!(line, " {:?} tassn {}", request.base.opcode, request.base.tassn);
            if let Some(target) = request.target {
                let _ = write!(line, " jetty {}", target.id);
            }
        }
        Some(TaHeader::Response(response)) => {
            let _ = write!(line, " {:?} tassn {}", response.opcode, response.tassn);
            if response.acknowledges {
                let _ = write!(line, " TPACK {}", response.offset);
            }
        }
        None => {}
    }
    if !parsed.payload.is_empty() {
        let _ = write!(line, " len {}", parsed.payload.len());
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::net::IpAddr;

    /// A received packet with these bytes.
    pub fn packet(bytes: &[u8], udp_len: u16, dst_port: u16) -> CapturedPacket<'_> {
        CapturedPacket {
            at_ns: (3 * 3600 + 4 * 60 + 5) * BILLION + 6_007_008,
            is_sent: false,
            reason: None,
            sender: 0,
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 50_000,
            dst_port,
            tos: 3,
            hop_limit: 64,
            flow_label: 0,
            udp_len,
            bytes,
        }
    }

    #[test]
    fn a_line_says_what_a_packet_is() {
        let ack = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7, 0x1f, 0, 0, 1];
        let line = line_of(&packet(&ack, 20, 4791));
        assert!(line.starts_with("03:04:05.006007 < 10.0.0.1 > 10.0.0.2 "), "{line}");
        assert!(line.contains(" qp 0x000005 psn 7") && line.ends_with(" CE\n"), "{line}");
        // A first packet of which the capture has the head.
        let first = [0x00, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 7];
        assert!(line_of(&packet(&first, 12 + 1024 + 4, 4791)).contains("len 1024"));
        assert!(line_of(&packet(&[0xff; 12], 16, 4791)).contains("malformed ("));
        assert!(line_of(&packet(&[0xff; 12], 16, 4792)).contains("URMA malformed"));
        let sent = CapturedPacket { is_sent: true, sender: 0x11f, ..packet(&ack, 20, 4791) };
        assert!(line_of(&sent).contains(" psn 7 from 0x00011f"), "{}", line_of(&sent));
        for (reason, end) in
            [(Reason::StaleAck, " CE dropped (stale_ack)"), (Reason::RemoteAccess, "refused (remote_access)")]
        {
            let line = line_of(&CapturedPacket { reason: Some(reason), ..packet(&ack, 20, 4791) });
            assert!(line.ends_with(&format!("{end}\n")), "{line}");
            assert!(comment(reason).contains(&format!("{}. ", reason.name())));
        }
        assert!(line_of(&packet(&[], 16, 53)).contains("UDP port 53"));
    }
}
