//! A packet ladder as SVG: two hosts as vertical lines, each packet an arrow between them, with the times at the sides.
//!
//! The packets are of one capture or of two, one at each host. A packet that was sent and one that was received are the same if
//! their bytes and addresses are: of several equal ones (repetitions) the last that were sent are taken for those that arrived,
//! because a sender stops to repeat when one has. Where the receiving host was captured, a packet that never arrived is
//! marked as lost. Clocks of two hosts differ: the difference is taken to be half of that between the shortest times in the
//! two directions.

use super::lines::{fate, opcode_of, whole};
use super::read::SeenPacket;
use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::capture::CapturedPacket;
use burst_ubwire::{Dialect, UbPacket};
use burst_wire::{Packet, ROCE_PORT};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;

/// Packets of a ladder without `--count`.
pub const LADDER_PACKETS: u64 = 30;
/// Most packets of a ladder.
pub const LADDER_PACKETS_MAX: u64 = 1000;
/// Bytes by which packets are compared.
const COMPARED: usize = 48;

/// Measures of the drawing.
const WIDTH: u32 = 900;
const LEFT: u32 = 150;
const RIGHT: u32 = WIDTH - 150;
const TOP: u32 = 92;
const ROW: u32 = 30;
/// How much lower an arrow ends than it begins.
const SLOPE: u32 = 10;

/// One packet of the ladder.
#[derive(Debug, Default)]
struct LadderStep {
    label: String,
    from_left: bool,
    sent_ns: Option<i64>,
    received_ns: Option<i64>,
    reason: Option<Reason>,
    is_lost: bool,
    is_again: bool,
    /// Its place among the packets of all captures.
    place: usize,
}

impl LadderStep {
    fn at(&self) -> i64 {
        self.sent_ns.or(self.received_ns).unwrap_or(0)
    }
    fn is_answer(&self) -> bool {
        ["Acknowledge", "Response", "TPACK", "TAACK", "CNP"].iter().any(|word| self.label.contains(word))
    }
    fn is_refused(&self) -> bool {
        self.reason.is_some_and(|reason| matches!(reason.class(), Class::Drop | Class::Nak))
    }
}

/// The drawing of the first `most` packets between the two hosts that exchange most packets.
///
/// # Errors
/// A sentence, if there is no packet.
pub fn ladder(captures: &[Vec<SeenPacket>], most: usize) -> Result<String, String> {
    let (left, right) =
        two_hosts(captures).ok_or("there is no packet to draw: no packet was captured, or the filter takes none")?;
    let mut steps = steps_of(captures, left, right);
    let others = steps.len().saturating_sub(most);
    steps.truncate(most);
    Ok(drawing(&steps, [left, right], others))
}

/// The two addresses with most packets between them; the left one has sent the first of them.
fn two_hosts(captures: &[Vec<SeenPacket>]) -> Option<(IpAddr, IpAddr)> {
    let mut counts: HashMap<[IpAddr; 2], (usize, u64, IpAddr)> = HashMap::new();
    for seen in captures.iter().flatten() {
        let packet = seen.packet();
        let mut pair = [packet.src, packet.dst];
        pair.sort();
        let entry = counts.entry(pair).or_insert((0, u64::MAX, packet.src));
        entry.0 += 1;
        if packet.at_ns < entry.1 {
            (entry.1, entry.2) = (packet.at_ns, packet.src);
        }
    }
    let (pair, (_, _, left)) = counts.into_iter().max_by_key(|(pair, (count, ..))| (*count, *pair))?;
    Some((left, if pair[0] == left { pair[1] } else { pair[0] }))
}

/// What two observations of one packet have in common.
fn key_of(packet: &CapturedPacket<'_>) -> (IpAddr, IpAddr, u16, u16, Vec<u8>) {
    let bytes = packet.bytes[..packet.bytes.len().min(COMPARED)].to_vec();
    (packet.src, packet.dst, packet.dst_port, packet.udp_len, bytes)
}

fn steps_of(captures: &[Vec<SeenPacket>], left: IpAddr, right: IpAddr) -> Vec<LadderStep> {
    let is_between = |packet: &CapturedPacket<'_>| {
        (packet.src, packet.dst) == (left, right) || (packet.src, packet.dst) == (right, left)
    };
    let all: Vec<CapturedPacket<'_>> = captures.iter().flatten().map(SeenPacket::packet).filter(is_between).collect();
    let mut received: HashMap<_, Vec<(usize, &CapturedPacket<'_>)>> = HashMap::new();
    let mut sent: HashMap<_, Vec<(usize, &CapturedPacket<'_>)>> = HashMap::new();
    for (place, packet) in all.iter().enumerate() {
        let list = if packet.is_sent { &mut sent } else { &mut received };
        list.entry(key_of(packet)).or_default().push((place, packet));
    }
    let receivers: HashSet<IpAddr> = all.iter().filter(|packet| !packet.is_sent).map(|packet| packet.dst).collect();
    let senders: HashSet<IpAddr> = all.iter().filter(|packet| packet.is_sent).map(|packet| packet.src).collect();
    let has_both = |dst: &IpAddr, src: &IpAddr| receivers.contains(dst) && senders.contains(src);
    let mut steps = Vec::new();
    for (key, departures) in &sent {
        let arrivals = received.remove(key).unwrap_or_default();
        let lost = departures.len().saturating_sub(arrivals.len());
        for (at, (place, packet)) in departures.iter().enumerate() {
            let arrival = at.checked_sub(lost).and_then(|at| arrivals.get(at)).map(|(_, packet)| packet);
            steps.push(LadderStep {
                sent_ns: Some(packet.at_ns as i64),
                received_ns: arrival.map(|packet| packet.at_ns as i64),
                reason: arrival.and_then(|packet| packet.reason),
                is_lost: arrival.is_none() && has_both(&packet.dst, &packet.src),
                ..step_of(packet, *place, left)
            });
        }
        steps.extend(arrivals.iter().skip(departures.len()).map(|(place, packet)| arrival_only(packet, *place, left)));
    }
    steps.extend(received.values().flatten().map(|(place, packet)| arrival_only(packet, *place, left)));
    adjust_clocks(&mut steps);
    steps.sort_by_key(|step| (step.at(), step.place));
    mark_repetitions(&mut steps);
    steps
}

fn step_of(packet: &CapturedPacket<'_>, place: usize, left: IpAddr) -> LadderStep {
    LadderStep { label: label_of(packet), from_left: packet.src == left, place, ..LadderStep::default() }
}

fn arrival_only(packet: &CapturedPacket<'_>, place: usize, left: IpAddr) -> LadderStep {
    LadderStep { received_ns: Some(packet.at_ns as i64), reason: packet.reason, ..step_of(packet, place, left) }
}

/// Marks packets whose opcode, PSN and length one before had. Answers often have the same.
fn mark_repetitions(steps: &mut [LadderStep]) {
    let mut seen = HashSet::new();
    for step in steps {
        step.is_again = !step.is_answer() && !seen.insert((step.from_left, step.label.clone()));
    }
}

/// Puts the right host's times on the left host's clock.
fn adjust_clocks(steps: &mut [LadderStep]) {
    let shortest = |from_left: bool| {
        let times = steps.iter().filter(|step| step.from_left == from_left);
        times.filter_map(|step| Some(step.received_ns? - step.sent_ns?)).min()
    };
    let (Some(to_right), Some(to_left)) = (shortest(true), shortest(false)) else { return };
    let ahead = (to_right - to_left) / 2;
    for step in steps {
        let at_right = if step.from_left { &mut step.received_ns } else { &mut step.sent_ns };
        *at_right = at_right.map(|at| at - ahead);
    }
}

/// What a packet is, in a few words.
fn label_of(packet: &CapturedPacket<'_>) -> String {
    let bytes = whole(packet);
    let mut label = opcode_of(packet, &bytes);
    if label.is_empty() {
        label = "malformed".into();
    }
    if packet.dst_port == ROCE_PORT {
        if let Ok(parsed) = Packet::parse(&bytes) {
            let _ = write!(label, " psn {}", parsed.bth.psn.get());
            if let Some(aeth) = parsed.aeth() {
                let syndrome = format!("{:?}", aeth.syndrome);
                if !syndrome.starts_with("Ack") {
                    let _ = write!(label, " {syndrome}");
                }
            }
            if !parsed.payload.is_empty() {
                let _ = write!(label, " {} B", parsed.payload.len());
            }
        }
    } else if let Ok(parsed) = UbPacket::parse(&bytes, &Dialect::BURST) {
        if let Some(rtph) = parsed.head.rtph {
            let _ = write!(label, " psn {}", rtph.psn.get());
        }
        if !parsed.payload.is_empty() {
            let _ = write!(label, " {} B", parsed.payload.len());
        }
    }
    if packet.tos & 3 == 3 {
        label.push_str(" CE");
    }
    label
}

fn drawing(steps: &[LadderStep], hosts: [IpAddr; 2], others: usize) -> String {
    let bottom = TOP + ROW * steps.len() as u32 + 14;
    let height = bottom + 40;
    let lost = steps.iter().filter(|step| step.is_lost).count();
    let refused = steps.iter().filter(|step| step.is_refused()).count();
    let zero = steps.iter().map(LadderStep::at).min().unwrap_or(0);
    // Writing to a string cannot fail.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"12\">\n<style>{STYLE}</style>\n{MARKERS}\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (host, x) in hosts.into_iter().zip([LEFT, RIGHT]) {
        let _ = writeln!(svg, "<text class=\"host\" x=\"{x}\" y=\"40\">{host}</text>");
        let _ = writeln!(svg, "<line class=\"life\" x1=\"{x}\" y1=\"54\" x2=\"{x}\" y2=\"{bottom}\"/>");
    }
    let _ =
        writeln!(svg, "<text class=\"time\" x=\"{}\" y=\"66\" text-anchor=\"end\">sent, received</text>", LEFT - 12);
    let _ = writeln!(svg, "<text class=\"time\" x=\"{}\" y=\"66\">received, sent</text>", RIGHT + 12);
    for (row, step) in steps.iter().enumerate() {
        draw(&mut svg, step, TOP + ROW * row as u32, zero);
    }
    let mut sentence = format!("{} packets, {lost} lost, {refused} dropped or refused on receipt", steps.len());
    if others > 0 {
        let _ = write!(sentence, "; {others} later ones are not shown");
    }
    let _ = writeln!(
        svg,
        "<text class=\"time\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{sentence}</text>",
        WIDTH / 2,
        height - 14
    );
    svg.push_str("</svg>\n");
    svg
}

const STYLE: &str = ".host{font-weight:bold;font-size:15px;text-anchor:middle}.life{stroke:#444;stroke-width:2}\
.time{fill:#555;font-size:11px}.packet{stroke:#1f5fa8;stroke-width:1.5}.answer{stroke:#2e7d32}.bad{stroke:#c62828}\
.label{text-anchor:middle}.badtext{fill:#c62828}.note{fill:#777}.cross{stroke:#c62828;stroke-width:3}";

const MARKERS: &str = "<defs>\
<marker id=\"h\" markerWidth=\"9\" markerHeight=\"8\" refX=\"8\" refY=\"4\" orient=\"auto\"><path d=\"M0,0L9,4L0,8z\" fill=\"#1f5fa8\"/></marker>\
<marker id=\"a\" markerWidth=\"9\" markerHeight=\"8\" refX=\"8\" refY=\"4\" orient=\"auto\"><path d=\"M0,0L9,4L0,8z\" fill=\"#2e7d32\"/></marker>\
<marker id=\"b\" markerWidth=\"9\" markerHeight=\"8\" refX=\"8\" refY=\"4\" orient=\"auto\"><path d=\"M0,0L9,4L0,8z\" fill=\"#c62828\"/></marker>\
</defs>";

fn draw(svg: &mut String, step: &LadderStep, y: u32, zero: i64) {
    let (from, to) = if step.from_left { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
    let is_bad = step.is_lost || step.is_refused();
    let (class, marker) = match (is_bad, step.is_answer()) {
        (true, _) => ("packet bad", "b"),
        (false, true) => ("packet answer", "a"),
        (false, false) => ("packet", "h"),
    };
    // A lost packet ends on its way.
    let (end_x, end_y) = match step.is_lost {
        true => ((from + to * 3) / 4, y + SLOPE * 3 / 4),
        false => (if step.from_left { to - 2 } else { to + 2 }, y + SLOPE),
    };
    let head = if step.is_lost { String::new() } else { format!(" marker-end=\"url(#{marker})\"") };
    let _ = writeln!(svg, "<line class=\"{class}\" x1=\"{from}\" y1=\"{y}\" x2=\"{end_x}\" y2=\"{end_y}\"{head}/>");
    if step.is_lost {
        let _ = writeln!(svg, "<path class=\"cross\" d=\"M{},{}l12,12m0,-12l-12,12\"/>", end_x - 6, end_y - 6);
    }
    let mut label = step.label.clone();
    if step.is_again {
        label.push_str(" (again)");
    }
    let text = match step.reason {
        _ if step.is_lost => "lost".to_owned(),
        Some(reason) => format!("{}: {}", fate(reason), reason.name()),
        None => String::new(),
    };
    let _ = writeln!(
        svg,
        "<text class=\"label\" x=\"{}\" y=\"{}\">{}<tspan dx=\"8\" class=\"{}\">{text}</tspan></text>",
        WIDTH / 2,
        y - 1,
        escaped(&label),
        if is_bad { "badtext" } else { "note" }
    );
    for (time, x, anchor, y) in times(step, y) {
        let text = time_text(time - zero);
        let _ = writeln!(svg, "<text class=\"time\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
    }
}

/// The times of a step, with their places.
fn times(step: &LadderStep, y: u32) -> impl Iterator<Item = (i64, u32, &'static str, u32)> {
    let left = (LEFT - 12, "end");
    let right = (RIGHT + 12, "start");
    let (of_sender, of_receiver) = if step.from_left { (left, right) } else { (right, left) };
    let sent = step.sent_ns.map(|at| (at, of_sender.0, of_sender.1, y + 4));
    let received = step.received_ns.filter(|_| !step.is_lost);
    sent.into_iter().chain(received.map(|at| (at, of_receiver.0, of_receiver.1, y + SLOPE + 4)))
}

/// Nanoseconds since the first packet.
fn time_text(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    match ns {
        0..1_000_000 => format!("{sign}{}.{:03} µs", ns / 1000, ns % 1000),
        1_000_000..1_000_000_000 => format!("{sign}{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000),
        _ => format!("{sign}{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::lines::tests::packet;

    fn send_only(psn: u8) -> [u8; 16] {
        [4, 0x40, 0xff, 0xff, 0, 0, 0, 5, 0x80, 0, 0, psn, 1, 2, 3, 4]
    }

    fn seen(psn: u8, at_ns: u64, is_sent: bool) -> SeenPacket {
        SeenPacket::of(&CapturedPacket { at_ns, is_sent, tos: 0, ..packet(&send_only(psn), 20, ROCE_PORT) })
    }

    fn ack(psn: u8, at_ns: u64, is_sent: bool) -> SeenPacket {
        let bytes = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 6, 0, 0, 0, psn, 0, 0, 0, 1];
        let packet = packet(&bytes, 20, ROCE_PORT);
        SeenPacket::of(&CapturedPacket { at_ns, is_sent, tos: 0, src: packet.dst, dst: packet.src, ..packet })
    }

    fn steps(captures: &[Vec<SeenPacket>]) -> Vec<LadderStep> {
        let (left, right) = two_hosts(captures).expect("hosts");
        steps_of(captures, left, right)
    }

    #[test]
    fn with_captures_of_both_hosts_losses_are_found_and_clocks_agree() {
        // The right host's clock is 1,000,000 ahead, a way takes 500.
        let a = vec![seen(1, 100, true), seen(2, 200, true), ack(1, 1_200, false), seen(2, 9_000, true)];
        let b = vec![seen(1, 1_000_600, false), ack(1, 1_000_700, true), seen(2, 1_009_500, false)];
        let steps = steps(&[a.clone(), b.clone()]);
        let facts: Vec<_> =
            steps.iter().map(|s| (s.from_left, s.sent_ns, s.received_ns, s.is_lost, s.is_again)).collect();
        assert_eq!(
            facts,
            [
                (true, Some(100), Some(600), false, false),
                (true, Some(200), None, true, false),
                (false, Some(700), Some(1_200), false, false),
                (true, Some(9_000), Some(9_500), false, true),
            ]
        );
        let svg = ladder(&[a, b], 3).expect("a drawing");
        assert!(svg.contains("3 packets, 1 lost, 0 dropped") && svg.contains("; 1 later ones are not shown"), "{svg}");
        assert_eq!(svg.matches("class=\"cross\"").count(), 1);
    }

    #[test]
    fn with_a_capture_of_one_host_nothing_is_called_lost() {
        let dropped = SeenPacket::of(&CapturedPacket { reason: Some(Reason::StaleAck), ..ack(1, 300, false).packet() });
        let a = vec![seen(1, 100, true), seen(1, 200, true), dropped];
        let svg = ladder(std::slice::from_ref(&a), 30).expect("a drawing");
        assert!(svg.contains("3 packets, 0 lost, 1 dropped") && svg.contains("dropped: stale_ack"), "{svg}");
        assert!(svg.contains("(again)") && !svg.contains("class=\"cross\""), "{svg}");
        assert!(ladder(&[Vec::new()], 30).is_err());
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let texts = [0, 1_234, -5, 2_345_678, 3_456_000_000].map(time_text);
        assert_eq!(texts, ["0.000 µs", "1.234 µs", "-0.005 µs", "2.345 ms", "3.456 s"]);
    }
}
