//! The packets of a run as a ladder: a column for each host, a line for each packet, time from top to bottom.

use crate::host::LabHost;
use crate::packet::{LabPacket, PacketKind};
use std::fmt::Write;

/// Columns from one host to the next.
const STEP: usize = 10;
/// Columns of the time.
const TIME: usize = 12;
/// Lines of a ladder that is not asked for in full.
const LINES: usize = 24;
/// Of these before the first packet that is out of the ordinary.
const BEFORE: usize = 8;

/// Draws the ladder; all of it, or its first lines.
pub fn draw(hosts: &[LabHost], packets: &[LabPacket], all: bool) -> String {
    let letters: Vec<&str> =
        hosts.iter().map(|host| host.letter.as_str()).filter(|letter| is_there(packets, letter)).collect();
    let Some(first) = packets.first() else { return "  (no packet went)\n".to_owned() };
    let mut text = format!("{:TIME$}", "");
    for letter in &letters {
        let _ = write!(text, "{letter:<STEP$}");
    }
    text = text.trim_end().to_owned() + "\n";
    let shown = if all { 0..packets.len() } else { window(packets) };
    if shown.start > 0 {
        let _ = writeln!(text, "  … after {} packets:", shown.start);
    }
    for packet in &packets[shown.clone()] {
        text.push_str(&line(&letters, packet, packet.at_ns - first.at_ns));
    }
    if shown.end < packets.len() {
        let _ = writeln!(text, "  … and {} more packets: burst lab ladder --all", packets.len() - shown.end);
    }
    text
}

/// The packets of a short ladder: from the first, or from a little before the first that is out of the ordinary.
fn window(packets: &[LabPacket]) -> std::ops::Range<usize> {
    if packets.len() <= LINES + 4 {
        return 0..packets.len();
    }
    let is_notable = |packet: &LabPacket| {
        !packet.arrived || matches!(packet.kind, PacketKind::NotReady | PacketKind::Refused | PacketKind::Congestion)
    };
    let notable = packets.iter().position(is_notable).unwrap_or(0);
    let start = if notable < LINES - BEFORE { 0 } else { (notable - BEFORE).min(packets.len() - LINES) };
    start..start + LINES
}

fn is_there(packets: &[LabPacket], letter: &str) -> bool {
    packets.iter().any(|packet| packet.from == letter || packet.to == letter)
}

/// A packet in a line.
fn line(letters: &[&str], packet: &LabPacket, after_ns: u64) -> String {
    let place = |letter: &str| letters.iter().position(|own| *own == letter).unwrap_or(0) * STEP;
    let width = (letters.len() - 1) * STEP + 1;
    let mut row: Vec<char> = (0..width).map(|at| if at % STEP == 0 { '|' } else { ' ' }).collect();
    let (from, to) = (place(&packet.from), place(&packet.to));
    let (left, right) = (from.min(to), from.max(to));
    for cell in &mut row[left + 1..right] {
        *cell = '-';
    }
    match to > from {
        true => row[right - 1] = '>',
        false => row[left + 1] = '<',
    }
    if !packet.arrived {
        // The arrow ends half way.
        let middle = left.midpoint(right);
        let beyond = if to > from { middle + 1..right } else { left + 1..middle };
        for at in beyond {
            row[at] = if at % STEP == 0 { '|' } else { ' ' };
        }
        row[middle] = 'x';
    }
    let arrow: String = row.into_iter().collect();
    let time = format!("{}.{:03} ms", after_ns / 1_000_000, after_ns / 1000 % 1000);
    format!("{time:>10}  {arrow}  {}\n", label(packet))
}

fn label(packet: &LabPacket) -> String {
    let mut text = packet.name.clone();
    if packet.kind != PacketKind::Congestion && packet.kind != PacketKind::Connection {
        let _ = write!(text, " #{}", packet.psn);
    }
    if packet.bytes > 0 {
        let _ = write!(text, ", {} bytes", packet.bytes);
    }
    if packet.marked {
        text.push_str(", marked (CE)");
    }
    if !packet.arrived {
        text.push_str("   LOST");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_lead_from_host_to_host_and_a_lost_packet_ends_half_way() {
        let packet = |from: &str, to: &str, arrived| LabPacket {
            at_ns: 1_000_000,
            from: from.into(),
            to: to.into(),
            qpn: 2,
            psn: 7,
            bytes: 64,
            name: "SEND Only".into(),
            kind: PacketKind::Data,
            marked: false,
            arrived,
        };
        let letters = ["a", "b", "c"];
        assert_eq!(
            line(&letters, &packet("a", "b", true), 1500),
            "  0.001 ms  |-------->|         |  SEND Only #7, 64 bytes\n"
        );
        assert_eq!(
            line(&letters, &packet("c", "b", false), 0),
            "  0.000 ms  |         |    x----|  SEND Only #7, 64 bytes   LOST\n"
        );
        assert_eq!(
            line(&letters, &packet("a", "c", true), 0),
            "  0.000 ms  |------------------>|  SEND Only #7, 64 bytes\n"
        );
    }
}
