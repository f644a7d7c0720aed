//! The switch without its sockets, in virtual time: who gets a frame, at which rate, and what is dropped, marked, late or
//! doubled.

use burst_switch::frame::{EthernetFrame, VNET_BYTES};
use burst_switch::switch::{SoftSwitch, SwitchSettings, WIRE_BYTES};

const PS: u64 = 1_000_000_000_000;
/// Bytes of a frame in these tests.
const FRAME: usize = 1500;

fn settings() -> SwitchSettings {
    SwitchSettings {
        rate: Some(300_000_000),
        buffer: 50_000,
        ecn: None,
        delay: 0,
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        late_max: 1,
        seed: 1,
    }
}

/// An IPv4 frame with ECT(0) between the hosts of two ports, with a number.
fn frame(from: u8, to: u8, number: u32) -> EthernetFrame {
    let mut bytes = vec![0u8; VNET_BYTES + FRAME];
    bytes[VNET_BYTES..VNET_BYTES + 12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    bytes[VNET_BYTES + 12..VNET_BYTES + 16].copy_from_slice(&[8, 0, 0x45, 2]);
    bytes[VNET_BYTES + 23] = 17;
    bytes[VNET_BYTES + FRAME - 4..].copy_from_slice(&number.to_be_bytes());
    EthernetFrame::new(bytes).expect("long enough")
}

fn number(frame: &EthernetFrame) -> u32 {
    let bytes = frame.ethernet();
    u32::from_be_bytes(bytes[bytes.len() - 4..].try_into().expect("four bytes"))
}

fn is_marked(frame: &EthernetFrame) -> bool {
    frame.ethernet()[15] & 3 == 3
}

/// A switch whose hosts are known: each has sent a frame to all.
fn learned(ports: u32, settings: &SwitchSettings) -> SoftSwitch {
    let mut switch = SoftSwitch::new(ports, &SwitchSettings { loss: 0.0, duplicate: 0.0, reorder: 0.0, ..*settings })
        .expect("a switch");
    if settings.loss + settings.duplicate + settings.reorder > 0.0 {
        switch = SoftSwitch::new(ports, settings).expect("a switch");
    }
    let mut out = Vec::new();
    for port in 0..ports {
        switch.advance(u64::from(port), &mut out);
        switch.receive(u64::from(port), port, Ok(frame(port as u8, 0xff, 0)));
    }
    switch.advance(PS, &mut out);
    switch
}

/// Sends `count` frames from port 0 to port 1, one each `gap` picoseconds, and returns what left, with its time to a
/// millisecond's tenth.
fn stream(switch: &mut SoftSwitch, from: u64, count: u32, gap: u64) -> Vec<(u64, EthernetFrame)> {
    let (mut out, mut all) = (Vec::new(), Vec::new());
    let mut sent = 0;
    let step = PS / 10_000;
    let mut now = from;
    while sent < count || switch.next_event().is_some() {
        while sent < count && from + u64::from(sent) * gap <= now {
            let at = from + u64::from(sent) * gap;
            switch.advance(at, &mut out);
            switch.receive(at, 0, Ok(frame(0, 1, sent)));
            sent += 1;
        }
        switch.advance(now, &mut out);
        all.extend(out.drain(..).map(|(port, frame)| {
            assert_eq!(port, 1);
            (now, frame)
        }));
        now += step;
    }
    all
}

#[test]
fn unknown_and_broadcast_frames_go_to_all_and_known_ones_to_one() {
    let mut switch = SoftSwitch::new(3, &settings()).expect("a switch");
    let mut out = Vec::new();
    switch.advance(0, &mut out);
    switch.receive(0, 0, Ok(frame(0, 1, 7)));
    switch.advance(PS, &mut out);
    assert_eq!(out.drain(..).map(|(port, _)| port).collect::<Vec<_>>(), [1, 2]);
    switch.receive(PS, 1, Ok(frame(1, 0, 8)));
    switch.advance(2 * PS, &mut out);
    assert_eq!(out.drain(..).map(|(port, _)| port).collect::<Vec<_>>(), [0]);
    // To a host behind the same port.
    switch.receive(2 * PS, 1, Ok(frame(9, 1, 9)));
    switch.advance(3 * PS, &mut out);
    assert!(out.is_empty());
}

#[test]
fn a_port_has_its_rate_and_the_buffer_its_size() {
    let mut switch = learned(2, &settings());
    let on_link = FRAME as u64 + u64::from(WIRE_BYTES);
    let packet_time = on_link * 8 * PS / 300_000_000;
    // Twice as fast as the port, for 0.1 s.
    let count = (PS / 10 / packet_time * 2) as u32;
    let before = switch.counters()[1].sent;
    let out = stream(&mut switch, 2 * PS, count, packet_time / 2);
    let (queue, most, mean) = switch.queue(1);
    assert_eq!(queue, 0);
    assert!(most <= 50_000 && most > 50_000 - 2 * on_link, "{most} bytes");
    assert!(mean < most as f64);
    let held = 50_000 / on_link;
    let expected = u64::from(count) / 2 + held;
    assert!(
        out.len() as u64 >= expected - 2 && out.len() as u64 <= expected + 2,
        "{} of {count}, {expected} expected",
        out.len()
    );
    assert_eq!(switch.counters()[1].sent - before, out.len() as u64);
    assert_eq!(switch.missing(1), u64::from(count) - out.len() as u64);
    assert!(out.is_sorted_by_key(|(_, frame)| number(frame)));
}

#[test]
fn at_its_rate_nothing_is_dropped() {
    let mut switch = learned(2, &settings());
    let packet_time = (FRAME as u64 + u64::from(WIRE_BYTES)) * 8 * PS / 300_000_000;
    assert_eq!(stream(&mut switch, 2 * PS, 1000, packet_time).len(), 1000);
    assert_eq!((switch.missing(1), switch.drops()), (0, (0, 0)));
}

#[test]
fn packets_that_find_a_long_queue_are_marked() {
    let mut switch = learned(2, &SwitchSettings { ecn: Some((20_000, 20_000)), ..settings() });
    let packet_time = (FRAME as u64 + u64::from(WIRE_BYTES)) * 8 * PS / 300_000_000;
    let out = stream(&mut switch, 2 * PS, 30, packet_time / 100);
    let marked = out.iter().filter(|(_, frame)| is_marked(frame)).count();
    // 20,000 bytes are 13 packets.
    assert!((15..=18).contains(&marked), "{marked} of {}", out.len());
    assert_eq!(switch.counters()[1].marked, marked as u64);
    assert!(!is_marked(&out[0].1));
}

#[test]
fn the_delay_is_the_whole_way() {
    let mut switch = learned(2, &SwitchSettings { delay: PS / 100, ..settings() });
    let out = stream(&mut switch, 2 * PS, 1, 1);
    let late = out[0].0 - 2 * PS;
    assert!((PS / 100..PS / 100 + PS / 1000).contains(&late), "{late} ps");
}

#[test]
fn faults_have_their_frequency_on_the_whole_way() {
    let packet_time = (FRAME as u64 + u64::from(WIRE_BYTES)) * 8 * PS / 300_000_000;
    let count = 20_000;
    let shares = |loss, duplicate, reorder| {
        let mut switch = learned(2, &SwitchSettings { loss, duplicate, reorder, late_max: PS / 100, ..settings() });
        let out = stream(&mut switch, 2 * PS, count, 2 * packet_time);
        let numbers: Vec<u32> = out.iter().map(|(_, frame)| number(frame)).collect();
        let mut unique = numbers.clone();
        unique.sort_unstable();
        unique.dedup();
        let late = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
        let share = |number: usize| number as f64 / f64::from(count);
        (share(count as usize - unique.len()), share(numbers.len() - unique.len()), share(late))
    };
    let near = |found: f64, wanted: f64| (found - wanted).abs() < wanted / 5.0;
    let (lost, doubled, late) = shares(0.02, 0.0, 0.0);
    assert!(near(lost, 0.02) && doubled == 0.0 && late == 0.0, "{lost} {doubled} {late}");
    let (lost, doubled, _) = shares(0.0, 0.02, 0.0);
    assert!(lost == 0.0 && near(doubled, 0.02), "{lost} {doubled}");
    let (lost, doubled, late) = shares(0.0, 0.0, 0.02);
    assert!(lost == 0.0 && doubled == 0.0 && near(late, 0.02), "{lost} {doubled} {late}");
}

#[test]
fn a_seed_repeats_what_is_random() {
    let run = |seed| {
        let mut switch = learned(2, &SwitchSettings { loss: 0.1, seed, ..settings() });
        stream(&mut switch, 2 * PS, 500, PS / 1000).into_iter().map(|(_, frame)| number(&frame)).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
