//! Sequences of messages, calls and time against a machine with live connections.
//!
//! The input is a program. Messages are built so that they often name live ids: the fuzzer chooses kind, ids among
//! those that were seen, and then spoils any bytes it likes. Nothing may panic, the number of connections stays within
//! its limit, owners get no event after their end, and when all owners have gone and time has passed nothing is left.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/protocols/cm/tests/harness/mod.rs"]
mod harness;

use burst_base::{DeviceId, Nanos};
use burst_cm::message::{CmMessage, Drep, Dreq, Lap, Mad, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use burst_cm::service::{PS_TCP, PrivateDataHeader, service_id};
use burst_cm::{PathRecord, QpSetup};
use burst_frame::Flow;
use burst_fuzz::Tape;
use harness::{Host, PORT};
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;

const ACTIONS_MAX: usize = 300;
const CONNECTIONS: u32 = 64;

fn pick(tape: &mut Tape<'_>, ids: &[u32]) -> u32 {
    let n = tape.byte();
    ids.get(usize::from(n) % ids.len().max(1)).copied().unwrap_or(u32::from(n))
}

fn message(tape: &mut Tape<'_>, ids: &[u32]) -> CmMessage {
    let (local_id, remote_id) = (u32::from(tape.byte() % 8), pick(tape, ids));
    let small = tape.byte();
    match tape.byte() % 10 {
        0 | 1 => Req {
            local_id,
            service_id: service_id(PS_TCP, PORT),
            ca_guid: 9,
            qpn: 2 + u32::from(small % 16),
            pkey: 0xffff,
            mtu: 3,
            ..Req::default()
        }
        .into(),
        2 => Rep { local_id, remote_id, qpn: u32::from(small % 16), ..Rep::default() }.into(),
        3 => Rtu { local_id, remote_id }.into(),
        4 => Rej { local_id, remote_id, reason: u16::from(small), info_len: small & 0x7f, ..Rej::default() }.into(),
        5 => Mra { local_id, remote_id, message: small & 3, service_timeout: small >> 3 }.into(),
        6 => Dreq { local_id, remote_id, remote_qpn: 100 + u32::from(small % 64) }.into(),
        7 => Drep { local_id, remote_id }.into(),
        8 => SidrReq { request_id: local_id, pkey: 0xffff, service_id: service_id(PS_TCP, PORT) }.into(),
        _ if small & 1 == 0 => SidrRep { request_id: remote_id, ..SidrRep::default() }.into(),
        _ => Lap { local_id, remote_id, ..Lap::default() }.into(),
    }
}

fn deliver(host: &mut Host, now: Nanos, tape: &mut Tape<'_>) {
    let peer = IpAddr::from([10, 0, 0, 8 + tape.byte() % 2]);
    let ids: Vec<u32> = host.world.stories.iter().map(|s| s.conn).collect();
    let header = PrivateDataHeader { src: peer, port: 1, dst: host.ip }.to_bytes();
    let mut bytes = [0; 256];
    let message = message(tape, &ids);
    Mad { tid: u64::from(tape.byte() % 4), modifier: 0, message, data: &header }.emit(&mut bytes);
    for _ in 0..tape.byte() % 4 {
        bytes[usize::from(tape.byte())] ^= tape.byte();
    }
    let path = PathRecord { device: DeviceId(0), flow: Flow { src: host.ip, dst: peer, ..Flow::default() } };
    host.cm.on_mad(now, &path, &bytes, &mut host.world);
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let mut host = Host::new(1);
    host.cm.set_limit(CONNECTIONS);
    let mut now = Nanos::from_ms(1);
    for _ in 0..ACTIONS_MAX.min(data.len()) {
        let owner = u32::from(tape.byte()) % (host.world.stories.len() as u32).max(1);
        let known = !host.world.stories.is_empty();
        match tape.byte() % 16 {
            0 if host.cm.len() < CONNECTIONS => drop(host.connect(now, IpAddr::from([10, 0, 0, 8]), &[])),
            1 if known => host.accept(now, owner),
            2 if known => host.disconnect(now, owner),
            3 if known => {
                let id = host.world.stories[owner as usize].conn;
                // Any state may refuse any of these.
                let _ = host.cm.establish(now, id, &mut host.world);
            }
            4 if known => {
                let id = host.world.stories[owner as usize].conn;
                let _ = host.cm.reject(now, id, 28, b"no", &mut host.world);
            }
            5 if known => {
                let id = host.world.stories[owner as usize].conn;
                host.cm.destroy(now, id, &mut host.world);
            }
            6 => {
                now = now + Nanos(u64::from(tape.byte()) << (tape.byte() % 30));
                host.cm.on_timer(now, 1000, &mut host.world);
            }
            7 => host.world.ready = [QpSetup::Done, QpSetup::ByProgram, QpSetup::Failed][usize::from(tape.byte() % 3)],
            _ => deliver(&mut host, now, &mut tape),
        }
        assert!(host.cm.len() <= CONNECTIONS);
        host.world.sent.clear();
    }
    host.cm.destroy_all(now, |_| true, &mut host.world);
    let delivered: usize = host.world.stories.iter().map(|s| s.events.len()).sum();
    for _ in 0..400 {
        now = now + Nanos::from_ms(5_000);
        host.cm.on_timer(now, 1000, &mut host.world);
    }
    assert!(host.cm.is_empty(), "something is left");
    // The programs have gone that kept places of withdrawn requests.
    host.world.places.clear();
    assert_eq!(host.backlog.waiting(), 0);
    assert_eq!(delivered, host.world.stories.iter().map(|s| s.events.len()).sum::<usize>());
});
