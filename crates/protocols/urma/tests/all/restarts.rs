//! Peers that restart or end: what is under way ends soon, what is not is not harmed, and nobody else can say that they did.

use crate::common::forge::{nothing, open_and_cut, packet, write};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{
    Btah, Dialect, Mtetah, NextLayer, Nth, OrderTag, Rtph, ServiceMode, TaHeader, TaOpcode, TaRequest, TpOpcode,
    UB_HEAD_MAX, UbHead, UbPacket,
};
use burst_urma::{CompletionRecord, CrStatus, JettyConfig, JfsWr};
use std::cell::RefCell;
use std::rc::Rc;

const MS: u64 = 1_000_000;

fn statuses(crs: &[CompletionRecord]) -> Vec<CrStatus> {
    crs.iter().map(|cr| cr.status).collect()
}

/// Jetty and completion queue of host 0, which has written once to host 1.
fn in_use(world: &mut World, service: ServiceMode, order: OrderTag) -> (u32, u32, JfsWr) {
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let wr = JfsWr { order, ..write(world, 0, segment, 0, 8) };
    for _ in 0..2 {
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(2 * MS));
    }
    assert_eq!(statuses(&world.poll(0, jfc)), [CrStatus::Success; 2]);
    (jetty, jfc, wr)
}

#[test]
fn a_peer_that_restarts_while_nothing_is_under_way_costs_no_request() {
    let kinds = [
        (ServiceMode::Roi, OrderTag::None),
        (ServiceMode::Roi, OrderTag::Strong),
        (ServiceMode::Rot, OrderTag::Relaxed),
        (ServiceMode::Rot, OrderTag::Strong),
        (ServiceMode::Rol, OrderTag::None),
    ];
    for ((service, order), lanes) in kinds.into_iter().flat_map(|kind| [(kind, 1), (kind, 4)]) {
        let mut world = World::new(2, 1 << 16, 1, |config| config.lanes = lanes);
        let (jetty, jfc, wr) = in_use(&mut world, service, order);
        world.run_for(Nanos(1000 * MS));
        world.restart(1, |config| (config.incarnation, config.lanes) = (5000, lanes));
        let began = world.now;
        for _ in 0..8 {
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(MS));
        assert_eq!(statuses(&world.poll(0, jfc)), [CrStatus::Success; 8], "{service:?} {order:?}, {lanes} lanes");
        assert!(world.now.since(began) <= Nanos(MS));
        assert!(world.count(0, Reason::UbPeerRestarted) > 0);
        world.run_for(Nanos(1000 * MS));
        world.assert_drained();
        assert_eq!(world.count(0, Reason::UbTimeout), 0, "{service:?} {order:?}, {lanes} lanes");
    }
}

#[test]
fn requests_that_the_former_life_may_have_executed_end_soon_and_others_go_on() {
    let mut world = World::new(2, 1 << 22, 1, |config| (config.caqm, config.window_max) = (false, 1 << 16));
    let (jetty, jfc, wr) = in_use(&mut world, ServiceMode::Roi, OrderTag::None);
    // The window takes the first one and a part of the second one.
    world.filter = Some(Box::new(|_, _, _| true));
    let (segment, long) = (world.import_all(0, 1), 60 << 10);
    let long = write(&world, 0, segment, 0, long);
    for wr in [long, long, wr, wr] {
        world.post_sound(0, jetty, wr);
    }
    world.transmit();
    world.restart(1, |config| config.incarnation = 5000);
    world.filter = None;
    let began = world.now;
    while world.hosts[0].node.state().requests > 0 {
        assert!(world.step(Nanos::NEVER));
    }
    let took = world.now.since(began);
    let crs = world.poll(0, jfc);
    use CrStatus::{AckTimeout, Success};
    assert_eq!(statuses(&crs), [AckTimeout, AckTimeout, Success, Success]);
    // The first time-out or probe of a packet, and some round trips; all tries would take 250 ms and more.
    assert!(took <= Nanos(10 * MS), "{} us", took.0 / 1000);
    world.run_for(Nanos(1000 * MS));
    world.assert_drained();
}

#[test]
fn a_node_that_leaves_ends_its_peers_requests_at_once() {
    for lanes in [1, 4] {
        let mut world = World::new(2, 1 << 16, 1, |config| config.lanes = lanes);
        let (jetty, jfc, wr) = in_use(&mut world, ServiceMode::Roi, OrderTag::None);
        // Idle: nothing is harmed, although the pause is too short for a doubt.
        world.with(1, |node, _| node.leave());
        world.transmit();
        world.restart(1, |config| (config.incarnation, config.lanes) = (5000, lanes));
        world.run_for(Nanos(MS));
        assert_eq!(world.count(0, Reason::UbChannelEnded), 1);
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(MS));
        assert_eq!(statuses(&world.poll(0, jfc)), [CrStatus::Success]);
        // In use: what host 1 has executed is answered first, what has not arrived ends.
        world.post_sound(0, jetty, wr);
        world.transmit();
        world.step(Nanos::NEVER);
        world.filter = Some(Box::new(|from, _, _| from == 0));
        world.post_sound(0, jetty, wr);
        world.transmit();
        world.with(1, |node, _| node.leave());
        world.transmit();
        world.run_for(Nanos(MS));
        let own = world.poll(0, jfc);
        assert_eq!(statuses(&own), [CrStatus::Success, CrStatus::AckTimeout], "{lanes} lanes");
    }
}

#[test]
fn a_long_silence_costs_a_question_and_no_more() {
    for (recovery, loss) in [(0, 0), (1, 0), (0, 200_000), (1, 200_000)] {
        let recovery =
            if recovery == 0 { burst_urma::LossRecovery::Selective } else { burst_urma::LossRecovery::GoBackN };
        let mut world = World::new(2, 1 << 16, 1, |config| config.recovery = recovery);
        let (jetty, jfc, wr) = in_use(&mut world, ServiceMode::Roi, OrderTag::None);
        world.weather.loss = loss;
        for _ in 0..20 {
            world.run_for(Nanos(10_000 * MS));
            let before = world.sent;
            world.post_sound(0, jetty, wr);
            world.run_for(Nanos(MS));
            if loss == 0 {
                // REQUEST, REPLY, WRITE, its answer, the acknowledgements of both.
                assert!(world.sent - before <= 6, "{} packets", world.sent - before);
                assert_eq!(world.count(0, Reason::UbTimeout), 0);
            }
        }
        world.run_for(Nanos(10_000 * MS));
        assert_eq!(statuses(&world.poll(0, jfc)), [CrStatus::Success; 20]);
        assert_eq!(world.count(0, Reason::UbPeerRestarted), 0);
        world.assert_drained();
    }
}

#[test]
fn nodes_that_are_run_three_times_a_second_get_on() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 0, 8);
    for _ in 0..3 {
        world.post_sound(0, jetty, wr);
        let mut rounds = 0;
        let done = loop {
            // Each sends what it has, then takes what has come, as a pass does.
            let mut flying = Vec::new();
            for host in 0..2 {
                let mut out = vec![0; 16384];
                while let Some(sent) = world.with(host, |node, env| node.poll_tx(env, &mut out)) {
                    flying.push((1 - host, out[..sent.len].to_vec()));
                }
            }
            for (to, bytes) in flying {
                world.with(to, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
            }
            (0..2).for_each(|host| world.with(host, |node, env| node.on_timer(env)));
            world.now = world.now + Nanos(300 * MS);
            rounds += 1;
            let done = world.poll(0, jfc);
            if !done.is_empty() || rounds == 12 {
                break done;
            }
        };
        assert_eq!(statuses(&done), [CrStatus::Success]);
        world.now = world.now + Nanos(5000 * MS);
    }
}

/// The packet of a management message with these bytes, from host 1 to host 0.
fn management(message: &[u8; 32]) -> Vec<u8> {
    let mut request = TaRequest::new(Btah { mode: ServiceMode::Uno, ..Btah::new(TaOpcode::Management, 0, 0) });
    request.base.has_target = true;
    request.target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: 0 });
    let nth = Nth { next: NextLayer::Unreliable, ..crate::common::forge::nth() };
    let head = UbHead { nth, rtph: None, cetph: None, saetph: None, ta: Some(TaHeader::Request(request)) };
    let mut bytes = vec![0; UB_HEAD_MAX + message.len()];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    bytes[len..len + message.len()].copy_from_slice(message);
    bytes.truncate(len + message.len());
    bytes
}

/// UNKNOWN about a packet, or with `kind` 2 a REPLY whose incarnations are guessed.
fn forged(kind: u8, rtph: &Rtph) -> Vec<u8> {
    let mut message = [0; 32];
    (message[0], message[1]) = (kind, 1);
    message[4..7].copy_from_slice(&rtph.dst_tpn.to_be_bytes()[1..]);
    message[7..10].copy_from_slice(&rtph.psn.get().to_be_bytes()[1..]);
    message[10..13].copy_from_slice(&rtph.src_tpn.to_be_bytes()[1..]);
    message[16..24].copy_from_slice(&7u64.to_be_bytes());
    message[24..32].copy_from_slice(&8u64.to_be_bytes());
    management(&message)
}

#[test]
fn who_forges_the_end_of_a_peer_gets_a_question_asked_and_no_channel_ended() {
    let mut world = World::new(2, 1 << 20, 1, |config| config.incarnation = 0x1234_5678_9abc);
    let (jetty, jfc, wr) = in_use(&mut world, ServiceMode::Roi, OrderTag::None);
    let seen: Rc<RefCell<Option<Rtph>>> = Rc::default();
    let copy = seen.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        let rtph = UbPacket::parse(bytes, &Dialect::BURST).expect("packet").head.rtph;
        if from == 0 && rtph.is_some() {
            *copy.borrow_mut() = rtph;
        }
        true
    }));
    world.post_sound(0, jetty, wr);
    world.transmit();
    world.filter = None;
    let sent = seen.borrow().expect("sent");
    let wrong = [
        Rtph { psn: sent.psn.add(1), ..sent },
        Rtph { psn: sent.psn.prev(), ..sent },
        Rtph { dst_tpn: sent.dst_tpn ^ 1, ..sent },
        Rtph { src_tpn: sent.src_tpn ^ 0x10000, ..sent },
    ];
    for rtph in wrong {
        let bytes = forged(5, &rtph);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    let before = world.sent;
    world.transmit();
    assert_eq!((world.count(0, Reason::UbStaleChannel), world.sent - before), (4, 0));
    // Who sees the packet can have a question asked, but cannot answer it.
    for kind in [5, 2, 3, 2] {
        let bytes = forged(kind, &sent);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    world.run_for(Nanos(1000 * MS));
    assert_eq!(statuses(&world.poll(0, jfc)), [CrStatus::Success]);
    assert_eq!((world.count(0, Reason::UbPeerRestarted), world.count(0, Reason::UbChannelEnded)), (0, 0));
    assert_eq!(world.hosts[0].node.state().channels, 1);
}

#[test]
fn packets_of_unknown_channels_are_answered_within_limits() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let known = open_and_cut(&mut world);
    let sent: Rc<RefCell<u32>> = Rc::default();
    let count = sent.clone();
    world.filter = Some(Box::new(move |from, _, _| {
        *count.borrow_mut() += u32::from(from == 0);
        true
    }));
    for i in 0..1000u32 {
        let unknown = Rtph { dst_tpn: 0xff_0000 | i & 0xffff, ..known };
        let bytes = packet(&unknown, 1, (1, true), nothing(), &[]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        world.transmit();
    }
    let burst = *sent.borrow();
    assert!((1..=64).contains(&burst), "{burst} answers to 1000 packets at once");
    assert_eq!(world.count(0, Reason::UbUnknownChannel), 1000);
    world.now = world.now + Nanos(10 * MS);
    for i in 0..1000u32 {
        let unknown = Rtph { dst_tpn: 0xff_0000 | i & 0xffff, ..known };
        let bytes = packet(&unknown, 1, (1, true), nothing(), &[]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        world.transmit();
    }
    let later = *sent.borrow() - burst;
    assert!((5..=15).contains(&later), "{later} answers 10 ms later");
    // Acknowledgements are not answered.
    world.now = world.now + Nanos(100 * MS);
    let before = *sent.borrow();
    let ack = Rtph { dst_tpn: 0xff_0000, opcode: TpOpcode::Ack { congestion: false }, ..known };
    let head = UbHead { nth: crate::common::forge::nth(), rtph: Some(ack), cetph: None, saetph: None, ta: None };
    let mut bytes = vec![0; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes[..len]), &bytes[..len]));
    world.transmit();
    assert_eq!((world.count(0, Reason::UbUnknownChannel), *sent.borrow()), (2001, before));
}
