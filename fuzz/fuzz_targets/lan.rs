//! Frames from the link, for the ports that read headers themselves: nothing panics, a frame is answered by one frame that is not
//! much longer, only frames that wait are sent beside it, and what is accepted lies within the frame.
#![no_main]

use burst_base::{Nanos, Reason};
use burst_fuzz::Tape;
use burst_port::ether::parse::from_type;
use burst_port::ether::{ChecksumState, ICRC, IcrcChecker, IcrcSeal, parse};
use burst_port::lan::neighbours::{RETRY, WAITING_MAX};
use burst_port::lan::{Lan, LanHost, Prefix};
use burst_wire::{MacAddr, ROCE_PORT};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;
use std::sync::Arc;

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const FRAME_MAX: usize = 2048;
const ACTIONS_MAX: usize = 64;
/// A neighbour advertisement: the longest reply to a shorter frame.
const REPLY_MIN: usize = 14 + 40 + 32;

/// The internet checksum of `bytes`, added to `sum`.
fn checksum(sum: u32, bytes: &[u8]) -> [u8; 2] {
    let pairs = bytes.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(*p.get(1).unwrap_or(&0)));
    let mut sum = pairs.fold(sum, |a, b| a + b);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Makes the checksums of an IP header and of ICMP or UDP behind it right: the fuzzer does not find them by itself.
fn correct(frame: &mut [u8]) {
    let (head, body) = match frame.split_at_mut_checked(14) {
        Some(parts) => parts,
        None => return,
    };
    match (head[12], head[13]) {
        (8, 0) if body.len() >= 28 => {
            body[10..12].fill(0);
            let sum = checksum(0, &body[..20]);
            body[10..12].copy_from_slice(&sum);
            if body[9] == 1 {
                body[22..24].fill(0);
                let len = usize::from(u16::from_be_bytes([body[2], body[3]])).clamp(24, body.len());
                let sum = checksum(0, &body[20..len]);
                body[22..24].copy_from_slice(&sum);
            }
        }
        (0x86, 0xdd) if body.len() >= 44 && body[6] == 58 => {
            let len = usize::from(u16::from_be_bytes([body[4], body[5]])).clamp(4, body.len() - 40);
            body[42..44].fill(0);
            let mut pseudo = body[8..40].to_vec();
            pseudo.extend((len as u32).to_be_bytes());
            pseudo.extend(58u32.to_be_bytes());
            pseudo.extend(&body[40..40 + len]);
            let sum = checksum(0, &pseudo);
            body[42..44].copy_from_slice(&sum);
        }
        _ => {}
    }
}

fn datagram(frame: &[u8], checksums: ChecksumState) {
    let Ok(datagram) = parse::parse(frame, checksums, ROCE_PORT) else { return };
    let (inside, payload) = (frame.as_ptr_range(), datagram.payload.as_ptr_range());
    assert!(inside.start < payload.start && payload.end <= inside.end);
    if datagram.payload.len() < 12 + ICRC {
        return;
    }
    let flow = datagram.flow;
    let mut seal = IcrcSeal::reuse(None, flow.src, flow.dst, flow.src_port, ROCE_PORT);
    let mut checker = IcrcChecker::new(flow.src_port % 2 == 0);
    checker.begin_train(datagram.header);
    if let Some(seal) = seal.as_mut() {
        checker.check(seal, datagram.payload);
    }
}

fn address(tape: &mut Tape<'_>) -> IpAddr {
    match tape.byte() {
        v4 @ 0..=127 => IpAddr::from([10, 0, v4 / 64, v4]),
        128..=159 => IpAddr::from([224, 0, 0, 251]),
        far @ 160..=191 => IpAddr::from([8, 8, 8, far]),
        v6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(v6)]),
    }
}

fn host() -> Arc<LanHost> {
    let addrs = ["10.0.0.1/24", "fd00::1/64"].map(|p| p.parse::<Prefix>().expect("a prefix")).to_vec();
    Arc::new(LanHost { mac: OWN, addrs, gateways: vec![IpAddr::from([10, 0, 0, 254])] })
}

/// Gives a frame of the input to the LAN, as the `dpdk` port does.
fn receive(lan: &mut Lan, now: Nanos, tape: &mut Tape<'_>, waiting: usize) {
    let (len, right) = (usize::from(tape.half() % 512), tape.byte() & 1 == 0);
    let mut frame = tape.take(len).to_vec();
    if right {
        correct(&mut frame);
    }
    datagram(&frame, ChecksumState::Unknown);
    datagram(&frame, ChecksumState::Trusted);
    let mut plain = frame.get(..12).unwrap_or(&[]).to_vec();
    plain.extend(from_type(&frame));
    let (mut sent, mut longest) = (0, 0);
    lan.receive(now, &plain, &mut |reply| {
        assert!(reply.len() >= 14 && reply[6..12] == OWN.0, "a frame of this host");
        (sent, longest) = (sent + 1, longest.max(reply.len()));
    });
    assert!(sent <= 1 + waiting && longest <= plain.len().max(REPLY_MIN).max(FRAME_MAX));
    assert!(waiting > 0 || longest <= plain.len().max(REPLY_MIN), "the reply is longer than the request");
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let mut lan = Lan::new(host(), Arc::default(), FRAME_MAX);
    let (mut now, mut waiting) = (Nanos::from_ms(1000), 0);
    for _ in 0..ACTIONS_MAX {
        if tape.is_empty() {
            break;
        }
        match tape.byte() % 8 {
            0..=3 => receive(&mut lan, now, &mut tape, waiting),
            4 => {
                let dst = address(&mut tape);
                let state = lan.neighbour(now, dst, &mut |frame| assert!(frame.len() <= REPLY_MIN));
                assert!(state.is_ok() || state == Err(Reason::NoRoute));
            }
            5 => {
                let mut frame = vec![0; 14 + usize::from(tape.byte())];
                frame[6..12].copy_from_slice(&OWN.0);
                waiting += usize::from(lan.enqueue(address(&mut tape), &frame));
                assert!(waiting <= 64 * WAITING_MAX);
            }
            6 => {
                lan.used(address(&mut tape));
                lan.announce(&mut |frame| assert!(frame.len() <= REPLY_MIN));
            }
            _ => {
                now = now + Nanos(RETRY.0 * (1 + u64::from(tape.byte())));
                let mut dropped = 0;
                lan.tick(now, &mut |_| (), &mut |reason| {
                    assert_eq!(reason, Reason::NoNeighbour);
                    dropped += 1;
                });
                assert!(dropped <= waiting);
                assert!(lan.next_event() > now, "all that was due is done");
            }
        }
    }
});
