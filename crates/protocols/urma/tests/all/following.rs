//! Packets that follow another one of their message take a short way (the module `following`). What is sent is what the long way
//! sends, and what is received has the same effect, whatever is wrong with it.

use crate::common::forge::{deliver, open_and_cut, packet, write, write_request};
use crate::common::*;
use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Btah, Maetah, Rtph, ServiceMode, TaHeader, TaOpcode, TaRequest};
use burst_urma::{CrStatus, JettyConfig, JfsWr, LocalRange, LossRecovery, SegmentConfig, UrmaConfig, WrData, access};
use std::cell::RefCell;
use std::rc::Rc;

/// Payload of a packet.
const MTU: usize = 4096;

/// Packets with their senders, and the memories of two hosts.
type Traffic = (Vec<(usize, Vec<u8>)>, [Vec<u8>; 2]);

/// All packets of two hosts whose Jetties move long and short messages in both directions, and what is in their memories then.
fn packets(lending: Lending, weather: Weather, change: impl Fn(&mut UrmaConfig)) -> Traffic {
    let mut world = World::new(2, 1 << 20, 5, change);
    (world.lending, world.weather) = (lending, weather);
    let log = Rc::new(RefCell::new(Vec::new()));
    let list = log.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        list.borrow_mut().push((from, bytes.to_vec()));
        false
    }));
    let jfcs = [0, 1].map(|host| world.jfc(host));
    let jetties = [0, 1].map(|host| [0; 2].map(|_| world.jetty(host, JettyConfig::new(jfcs[host], None))));
    let segments = [0, 1].map(|host| world.import_all(host, 1 - host));
    for (host, ram) in [(0, 3), (1, 7)] {
        world.hosts[host].ram.bytes[..1 << 18].iter_mut().enumerate().for_each(|(i, b)| *b = (i / ram) as u8);
    }
    // Alone first, then both Jetties of both hosts at once, then READs, whose answers have the requests' turns.
    for (jetty, opcode, lens) in [
        (0, TaOpcode::Write, &[200_000, 4096, 4097, 64][..]),
        (1, TaOpcode::Write, &[70_001, 1, 30_000]),
        (1, TaOpcode::Read, &[50_000, 9000]),
        (0, TaOpcode::Write, &[100_000]),
    ] {
        for (i, len) in lens.iter().enumerate() {
            for host in 0..2 {
                let at = (1 << 18) + (i as u64) * (1 << 18) / 2 + (jetty as u64) * 4096;
                let data = world.data(host, if opcode == TaOpcode::Read { 1 << 19 } else { i as u64 * 64 }, *len);
                let remote_addr = RAM_BASE + if opcode == TaOpcode::Read { 0 } else { at };
                let wr = JfsWr { segment: Some(segments[host]), remote_addr, ..JfsWr::new(opcode, data, 1) };
                world.post_sound(host, jetties[host][jetty], wr);
            }
        }
        if jetty == 0 {
            world.run_for(Nanos(3_000_000_000));
        }
    }
    let done = [0, 1].map(|host| world.poll(host, jfcs[host]).len());
    assert_eq!(done, [10, 10]);
    let packets = log.borrow().clone();
    (packets, [0, 1].map(|host| world.hosts[host].ram.bytes.clone()))
}

#[test]
fn the_same_packets_leave_with_and_without_copies() {
    for weather in [FAIR, STORM, Weather { ns_per_kb: 0, ..STORM }] {
        for caqm in [false, true] {
            for recovery in [LossRecovery::Selective, LossRecovery::GoBackN] {
                let run =
                    |lending| packets(lending, weather, |config| (config.caqm, config.recovery) = (caqm, recovery));
                let copied = run(Lending::Never);
                for lending in [Lending::Always, Lending::Runs] {
                    let lent = run(lending);
                    assert_eq!(copied.0.len(), lent.0.len(), "{lending:?} {weather:?} {caqm} {recovery:?}");
                    for (number, (one, other)) in copied.0.iter().zip(&lent.0).enumerate() {
                        assert!(one == other, "packet {number}, {lending:?} {weather:?} {caqm} {recovery:?}");
                    }
                    assert!(copied.1 == lent.1);
                }
            }
        }
    }
}

/// Host 0 with a segment of 24 bytes in which a WRITE of host 1 has begun, and the known header of host 1's packets.
fn begun() -> (World, Rtph, u32, impl Fn(u32) -> TaHeader) {
    begun_of(24)
}

/// As [`begun`], a WRITE of so many bytes.
fn begun_of(len: u32) -> (World, Rtph, u32, impl Fn(u32) -> TaHeader) {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let known = open_and_cut(&mut world);
    let rights = access::READ | access::WRITE;
    let segment = SegmentConfig { addr: RAM_BASE + 0x8000, len: 0x100, token: Some(1), access: rights };
    let token_id = world.hosts[0].node.register_segment(segment).expect("room");
    let part = move |offset| {
        let request = write_request(ServiceMode::Roi, Maetah { addr: segment.addr, token_id, len }, offset);
        TaHeader::Request(TaRequest { token: Some(1), base: Btah { has_token: true, ..request.base }, ..request })
    };
    deliver(&mut world, &packet(&known, 1, (9, false), part(0), &[1; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8000..0x8010], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    (world, known, token_id, part)
}

#[test]
fn a_packet_that_follows_is_placed_and_the_last_one_is_answered() {
    let (mut world, known, _, part) = begun();
    deliver(&mut world, &packet(&known, 2, (9, false), part(8), &[2; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8008..0x8010], [2; 8]);
    assert!(world.hosts[0].log.executed.len() == 1, "the one that has opened the channel");
    assert!(deliver(&mut world, &packet(&known, 3, (9, true), part(16), &[3; 8])) > 0, "its answer");
    assert_eq!(world.hosts[0].ram.bytes[0x8010..0x8018], [3; 8]);
    assert_eq!(world.hosts[0].log.executed.len(), 2);
}

#[test]
fn a_packet_that_reaches_behind_its_message_is_dropped() {
    let (mut world, known, _, part) = begun();
    deliver(&mut world, &packet(&known, 2, (9, false), part(20), &[0x66; 8]));
    deliver(&mut world, &packet(&known, 2, (9, true), part(16), &[0x66; 9]));
    assert_eq!(world.count(0, Reason::UbLength), 2);
    assert!(world.hosts[0].ram.bytes[0x8008..0x8100].iter().all(|byte| *byte == 0));
    deliver(&mut world, &packet(&known, 2, (9, false), part(8), &[2; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8008..0x8010], [2; 8], "the number is still free");
}

#[test]
fn duplicates_gaps_and_other_heads_are_none_that_follow() {
    let (mut world, known, _, part) = begun();
    deliver(&mut world, &packet(&known, 1, (9, false), part(8), &[0x66; 8]));
    assert_eq!(world.count(0, Reason::UbDuplicate), 1);
    // Early, and its message's last: it waits for the one that is missing.
    deliver(&mut world, &packet(&known, 3, (9, true), part(16), &[3; 8]));
    assert!(world.hosts[0].ram.bytes[0x8008..0x8018].iter().all(|byte| *byte == 0));
    let foreign = with_token(part(8), 2);
    deliver(&mut world, &packet(&known, 2, (9, false), foreign, &[0x66; 8]));
    assert_eq!(world.count(0, Reason::UbRefused), 1, "another token under the number of a message");
    deliver(&mut world, &packet(&known, 4, (9, false), foreign, &[0x66; 8]));
    assert_eq!(world.count(0, Reason::UbRefused), 2, "its head is not the message's now");
    assert!(world.hosts[0].ram.bytes[0x8008..0x8018].iter().all(|byte| *byte == 0));
}

fn with_token(ta: TaHeader, token: u32) -> TaHeader {
    let TaHeader::Request(request) = ta else { unreachable!("a request") };
    TaHeader::Request(TaRequest { token: Some(token), ..request })
}

/// What a host has seen and done: counts, memory, executed requests, and packets that it has sent after each one.
type Outcome = (Vec<(Reason, u64)>, Vec<u8>, Vec<(u32, u32, u16)>, Vec<usize>);

/// Random packets of two messages and of others under their numbers, some of them with the usual way only.
fn random_packets(seed: u64, has_short_way: bool) -> Outcome {
    let (mut world, known, token_id, part) = begun();
    let mut rng = Rng::new(seed);
    let (mut next, mut answers) = (2, Vec::new());
    for step in 0..60 {
        let offset = 8 * rng.below(4) as u32;
        let mut ta = with_token(part(offset), 1 + u32::from(rng.chance(1, 8)));
        if let TaHeader::Request(request) = &mut ta {
            request.base.poison = rng.chance(1, 40);
            request.base.mode = if rng.chance(1, 10) { ServiceMode::Rol } else { ServiceMode::Roi };
            request.base.opcode = if rng.chance(1, 10) { TaOpcode::WriteImm } else { TaOpcode::Write };
        }
        let ahead = if rng.chance(1, 4) { next + rng.below(4) as u32 - 1 } else { next };
        next += u32::from(ahead == next);
        let message = (9 + rng.below(3) as u32, rng.chance(1, 4));
        let bytes = packet(&known, ahead, message, ta, &[step as u8; 16][..8 * rng.below(3) as usize]);
        if !has_short_way {
            world.hosts[0].node.forget_part();
        }
        answers.push(deliver(&mut world, &bytes));
        if rng.chance(1, 200) {
            let _ = world.hosts[0].node.unregister_segment(token_id);
        }
    }
    let host = &world.hosts[0];
    let mut counts: Vec<(Reason, u64)> = host.log.counts.iter().map(|(reason, count)| (*reason, *count)).collect();
    counts.sort_by_key(|(reason, _)| reason.name());
    (counts, host.ram.bytes.clone(), host.log.executed.clone(), answers)
}

#[test]
fn the_short_way_takes_what_the_usual_way_takes() {
    for seed in 0..3000 {
        assert!(random_packets(seed, true) == random_packets(seed, false), "seed {seed}");
    }
}

/// A train of a long WRITE's packets, most of which follow each other, and other ones: all of one length.
fn random_train(rng: &mut Rng, known: &Rtph, next: &mut (u32, u32), part: &impl Fn(u32) -> TaHeader) -> Vec<Vec<u8>> {
    let payload = [rng.below(256) as u8; 8];
    let mut train: Vec<Vec<u8>> = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let odd = rng.below(40);
        let psn = if odd == 0 { next.0 + rng.below(4) as u32 - 1 } else { next.0 };
        let offset = if odd == 1 { 8 * rng.below(20) as u32 } else { next.1 };
        let ta = with_token(part(offset), if odd == 2 { 2 } else { 1 });
        let known = Rtph { ack_req: rng.chance(1, 6), ..*known };
        let mut bytes = packet(&known, psn, (if odd == 3 { 10 } else { 9 }, odd == 4), ta, &payload);
        if odd == 5 {
            let at = rng.below(bytes.len() as u64 - 8) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        *next = (next.0 + u32::from(psn == next.0), offset + 8);
        train.push(bytes);
    }
    let len = train[0].len();
    train.retain(|packet| packet.len() == len);
    train
}

/// Random trains, taken as runs or packet by packet; what a host has done, all that it has sent, and the packets taken in runs.
fn random_trains(seed: u64, has_runs: bool) -> (Outcome, Vec<Vec<u8>>, usize) {
    const TRAILER: [u8; 4] = [0xee; 4];
    let (mut world, known, token_id, part) = begun_of(160);
    let (mut rng, mut next, mut sent, mut taken) = (Rng::new(seed), (2, 8), Vec::new(), 0);
    let mut answers = Vec::new();
    for _ in 0..6 {
        let train = random_train(&mut rng, &known, &mut next, &part);
        let (len, stride) = (train[0].len(), train[0].len() + TRAILER.len());
        let bytes: Vec<u8> = train.iter().flat_map(|packet| [packet.as_slice(), &TRAILER].concat()).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let run = if has_runs {
                world.with(0, |node, env| node.on_run(env, crate::common::sender(rest), rest, (stride, len)))
            } else {
                0
            };
            if run == 0 {
                world.with(0, |node, env| node.on_packet(env, crate::common::sender(&rest[..len]), &rest[..len]));
            }
            taken += run;
            rest = &rest[run.max(1) * stride..];
        }
        let before = sent.len();
        let mut out = vec![0; 16384];
        while let Some(packet) = world.with(0, |node, env| node.poll_tx(env, &mut out)) {
            sent.push(out[..packet.len].to_vec());
        }
        answers.push(sent.len() - before);
        if rng.chance(1, 40) {
            let _ = world.hosts[0].node.unregister_segment(token_id);
        }
        world.hosts[0].ram.is_gone |= rng.chance(1, 40);
    }
    let host = &world.hosts[0];
    let mut counts: Vec<(Reason, u64)> = host.log.counts.iter().map(|(reason, count)| (*reason, *count)).collect();
    counts.sort_by_key(|(reason, _)| reason.name());
    ((counts, host.ram.bytes.clone(), host.log.executed.clone(), answers), sent, taken)
}

#[test]
fn runs_take_what_single_packets_do() {
    let mut all = 0;
    for seed in 0..3000 {
        let ((runs, sent, taken), (singles, sent_for_singles, _)) =
            (random_trains(seed, true), random_trains(seed, false));
        assert!(runs == singles && sent == sent_for_singles, "seed {seed}");
        all += taken;
    }
    assert!(all > 3000, "{all} packets were taken in runs");
}

#[test]
fn a_segment_that_ends_in_between_gets_nothing_more() {
    let (mut world, known, token_id, part) = begun();
    world.hosts[0].node.unregister_segment(token_id).expect("there");
    deliver(&mut world, &packet(&known, 2, (9, false), part(8), &[0x66; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8008..0x8010], [0; 8]);
    assert!(deliver(&mut world, &packet(&known, 3, (9, true), part(16), &[0x66; 8])) > 0, "its refusal");
    assert_eq!(world.count(0, Reason::UbAccess), 1);
}

#[test]
fn memory_that_is_gone_is_no_source_of_packets_that_follow() {
    let mut world = World::new(2, 1 << 20, 1, |config| config.caqm = false);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let own = SegmentConfig { addr: RAM_BASE, len: 1 << 16, token: None, access: access::LOCAL_ONLY };
    let token_id = world.hosts[0].node.register_segment(own).expect("room");
    let mut wr = write(&world, 0, segment, 1 << 17, 1 << 16);
    wr.data = WrData::Local(LocalRange { token_id, addr: RAM_BASE, len: 1 << 16 });
    world.hosts[0].ram.bytes[..1 << 16].fill(1);
    let opening = write(&world, 0, segment, 1 << 19, 8);
    world.post(0, jetty, opening).expect("accepted");
    world.run_for(Nanos(1_000_000));
    assert_eq!(world.poll(0, jfc).len(), 1);
    world.post(0, jetty, wr).expect("accepted");
    // Four packets leave; then the segment ends.
    let mut out = vec![0; 16384];
    for _ in 0..4 {
        let sent = world.with(0, |node, env| node.poll_tx_lent(env, &mut out)).expect("a packet");
        let span = sent.lent.expect("registered memory");
        span.read_to(&mut out[sent.len..sent.len + span.len()]).expect("mapped");
        let bytes = out[..sent.len + span.len()].to_vec();
        world.with(1, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    world.hosts[0].node.unregister_segment(token_id).expect("there");
    world.run_for(Nanos(3_000_000_000));
    assert_eq!(world.poll(0, jfc).first().map(|record| record.status), Some(CrStatus::LocAccess));
    let written = world.hosts[1].ram.bytes[1 << 17..1 << 18].iter().filter(|byte| **byte == 1).count();
    assert_eq!(written, 4 * MTU, "what had left");
}
