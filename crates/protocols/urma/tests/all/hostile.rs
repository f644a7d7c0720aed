//! Packets that no honest peer sends: nothing panics, memory outside of segments stays as it is, and a bystander is served.

use crate::common::*;
use burst_base::rng::Rng;
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{
    Atah, Btah, Cna, CongestionField, Dialect, Maetah, Mtetah, NextLayer, Nth, OrderTag, RC_TYPE_CONTEXT, Rtph,
    ServiceMode, TaHeader, TaOpcode, TaRequest, TpOpcode, UB_HEAD_MAX, UbHead, UbPacket, UbStatus,
};
use burst_urma::{CrStatus, ECHO_JETTY, JettyConfig, JfsWr};
use std::cell::RefCell;
use std::rc::Rc;

/// A random transaction header with plausible fields.
fn transaction(rng: &mut Rng, token_id: u32) -> TaHeader {
    let opcode = TaOpcode::ALL[rng.below(TaOpcode::ALL.len() as u64) as usize];
    let (tassn, rc_id) = (rng.below(6) as u16, 1024 + rng.below(3) as u32);
    let mode = [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol, ServiceMode::Uno][rng.below(4) as usize];
    let offset = if rng.chance(1, 2) { 0 } else { rng.next_u32() & 0xff_ffff };
    if opcode.is_response() {
        let status = UbStatus { status: rng.below(8) as u8, info: rng.below(32) as u8 };
        let granted = rng.chance(1, 4);
        let context = rng.below(3) as u16;
        return TaHeader::Response(Atah { status, mode, offset, granted, context, ..Atah::new(opcode, tassn, rc_id) });
    }
    let mut request = TaRequest::new(Btah { mode, offset, ..Btah::new(opcode, tassn, rc_id) });
    request.base.order = [OrderTag::None, OrderTag::Relaxed, OrderTag::Strong][rng.below(3) as usize];
    request.base.alloc = rng.chance(1, 4);
    request.base.poison = rng.chance(1, 10);
    if rng.chance(1, 3) {
        (request.base.rc_type, request.base.context) = (RC_TYPE_CONTEXT, rng.below(3) as u16);
        request.base.order_number = rng.below(200) as u16;
    }
    request.base.has_target = rng.chance(1, 2);
    let id = if rng.chance(1, 8) { ECHO_JETTY } else { 1024 + rng.below(3) as u32 };
    request.target = Some(Mtetah { hint: 0, kind: rng.below(4) as u8, id });
    let len = [8, 64, 1000, 1 << 24][rng.below(4) as usize];
    request.memory = Some(Maetah { addr: RAM_BASE + rng.below(70_000), token_id: token_id ^ rng.below(2) as u32, len });
    TaHeader::Request(request)
}

/// A packet on the attacker's channel, whose numbers are `known`; half of the requests name the segment `token_id`.
fn forged(rng: &mut Rng, (known, token_id): (&Rtph, u32), i: u32) -> Vec<u8> {
    let mut rtph = Rtph { last: rng.chance(2, 3), psn: known.psn.add(i / 2 + rng.below(8) as u32), ..*known };
    rtph.opcode = TpOpcode::Data;
    rtph.tpmsn = rng.below(12) as u32;
    if rng.chance(1, 6) {
        let psn = Psn::new(rng.next_u32());
        rtph = Rtph { opcode: TpOpcode::Ack { congestion: false }, psn, ..rtph };
    }
    let congestion = CongestionField::parse(rng.next_u32() as u16);
    let nth = Nth {
        source: Cna::new(2),
        dest: Cna::new(1),
        congestion,
        balance: 0,
        service_level: 0,
        next: NextLayer::Reliable,
    };
    let ta = (rtph.opcode == TpOpcode::Data).then(|| transaction(rng, token_id));
    let head = UbHead { nth, rtph: Some(rtph), cetph: None, saetph: None, ta };
    let mut bytes = vec![0; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    bytes.truncate(len);
    bytes.extend(vec![i as u8; [0, 8, 64, 1000][rng.below(4) as usize]]);
    bytes
}

#[test]
fn random_packets_on_an_open_channel_harm_nobody() {
    for seed in 1..=40 {
        let mut world = World::new(3, 1 << 16, seed, |config| config.reorder_packets = 16);
        let jfc: Vec<u32> = (0..3).map(|h| world.jfc(h)).collect();
        let jfr = world.jfr(0, jfc[0]);
        let jetty: Vec<u32> =
            (0..3).map(|h| world.jetty(h, JettyConfig::new(jfc[h], (h == 0).then_some(jfr)))).collect();
        // The attacker is host 1: its channel's numbers are seen in its first packets.
        let seen = Rc::new(RefCell::new(None));
        let copy = seen.clone();
        world.filter = Some(Box::new(move |from, to, bytes| {
            let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
            if let (1, 0, Some(rtph)) = (from, to, packet.head.rtph) {
                *copy.borrow_mut() = Some(rtph);
            }
            false
        }));
        let segment = [world.import_all(1, 0), world.import_all(2, 0)];
        let write = |world: &World, host: usize, segment: u32, at: u64| JfsWr {
            segment: Some(segment),
            remote_addr: RAM_BASE + at,
            ..JfsWr::new(TaOpcode::Write, world.data(host, 0, 8), 1)
        };
        let wr = write(&world, 1, segment[0], 0);
        world.post(1, jetty[1], wr).expect("accepted");
        let own = world.import_all(0, 1);
        let back = write(&world, 0, own, 0);
        world.post(0, jetty[0], back).expect("accepted");
        world.run_for(Nanos(1_000_000));
        let known: Rtph = seen.borrow().expect("sent");
        world.poll(0, jfc[0]);
        let mut rng = Rng::new(seed);
        // Host 0 has requests outstanding, so that forged answers find some; the attacker answers nothing itself.
        world.filter = Some(Box::new(|from, to, _| from == 1 || to == 1));
        for _ in 0..4 {
            world.post(0, jetty[0], back).expect("accepted");
        }
        for _ in 0..6 {
            world.recv(0, jfr, 1000, 500, 9);
        }
        for i in 0..3000u32 {
            let bytes = forged(&mut rng, (&known, world.hosts[0].all), i);
            world.inject(0, &bytes);
            if i % 50 == 0 {
                world.run_for(Nanos(3_000));
                let wr = write(&world, 2, segment[1], 60_000);
                world.post(2, jetty[2], wr).expect("accepted");
                world.run_for(Nanos(10_000_000));
                let crs = world.poll(2, jfc[2]);
                assert_eq!(
                    crs.iter().map(|cr| cr.status).collect::<Vec<_>>(),
                    [CrStatus::Success],
                    "seed {seed} packet {i}"
                );
            }
        }
        world.run_for(Nanos(20_000_000_000));
        let state = world.hosts[0].node.state();
        assert_eq!(state.requests, 0, "seed {seed}: the channel has failed, and all requests have ended");
        assert_eq!((state.inbound, state.held_packets, state.responses), (0, 0, 0), "seed {seed}");
        assert!(world.count(0, Reason::UbChannelFailed) >= 1);
    }
}

#[test]
fn any_bytes_and_changed_bits_are_dropped_with_reasons() {
    let mut world = World::new(2, 1 << 12, 3, |_| ());
    let mut rng = Rng::new(8);
    let mut total = 0;
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.below(120) as usize];
        rng.fill(&mut bytes);
        if let Some(dest) = bytes.get_mut(4..7) {
            dest.copy_from_slice(&[0, 0, 1]);
        }
        if let Some(next) = bytes.get_mut(10) {
            *next = 1 + rng.below(3) as u8;
        }
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        total += 1;
    }
    let counted: u64 = world.hosts[0].log.counts.values().sum();
    assert!(counted >= total, "each has a reason: {counted} of {total}");
    assert_eq!(world.hosts[0].node.state().channels, 0);
}
