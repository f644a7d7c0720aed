//! Loads, stores and atomics without a channel: what they do, what is refused, and that none is executed twice.

use crate::common::{FAIR, RAM_BASE, STORM, World};
use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, NextLayer, TaHeader, TaOpcode, UbPacket};
use burst_urma::{
    ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag, CrStatus, NodeEid, RemoteSegment, SegmentConfig,
    UrmaError, access,
};
use std::cell::RefCell;
use std::rc::Rc;

fn world(weather: crate::common::Weather) -> World {
    let mut world = World::new(2, 4096, 7, |_| {});
    world.weather = weather;
    world
}

fn store(bytes: &[u8]) -> AccessKind {
    let mut all = [0; ACCESS_MAX];
    all[..bytes.len()].copy_from_slice(bytes);
    AccessKind::Store { len: bytes.len() as u8, bytes: all }
}

fn atomic(opcode: TaOpcode, operand: u64, swap: u64) -> AccessKind {
    AccessKind::Atomic { opcode, operand, swap }
}

fn begin(world: &mut World, segment: u32, offset: u64, kind: AccessKind) -> Result<AccessTag, UrmaError> {
    world.hosts[0].node.begin_access(segment, RAM_BASE + offset, kind)
}

/// Runs until the access has an outcome.
fn end(world: &mut World, tag: AccessTag) -> AccessOutcome {
    loop {
        if let Some(outcome) = world.hosts[0].node.take_access(tag) {
            assert_eq!(world.hosts[0].node.take_access(tag), None, "taken");
            return outcome;
        }
        assert!(world.step(world.now + Nanos::from_ms(60_000)), "an access without end");
    }
}

fn whole(world: &mut World, segment: u32, offset: u64, kind: AccessKind) -> AccessOutcome {
    let tag = begin(world, segment, offset, kind).expect("sound");
    end(world, tag)
}

#[test]
fn loads_stores_and_atomics_do_what_they_say_without_a_channel() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    assert_eq!(whole(&mut world, segment, 100, store(&[1, 2, 3])).status, CrStatus::Success);
    assert_eq!(&world.hosts[1].ram.bytes[99..104], &[0, 1, 2, 3, 0]);
    let loaded = whole(&mut world, segment, 100, AccessKind::Load { len: 64 });
    assert_eq!((loaded.status, &loaded.bytes[..4]), (CrStatus::Success, &[1, 2, 3, 0][..]));
    let mut value = |opcode, operand, swap| whole(&mut world, segment, 8, atomic(opcode, operand, swap)).value();
    assert_eq!(value(TaOpcode::FetchAdd, 5, 0), 0);
    assert_eq!(value(TaOpcode::Cas, 4, 9), 5, "another value");
    assert_eq!(value(TaOpcode::Cas, 5, 9), 5);
    assert_eq!(value(TaOpcode::Swap, 0xff, 0), 9);
    assert_eq!(value(TaOpcode::FetchXor, 0x0f, 0), 0xff);
    assert_eq!(value(TaOpcode::FetchOr, 0, 0), 0xf0);
    for host in 0..2 {
        assert_eq!(world.hosts[host].node.state().channels, 0);
    }
    assert_eq!(world.sent, 2 * 8, "one packet asks, one answers");
}

#[test]
fn what_is_not_allowed_is_refused_and_touches_nothing() {
    let mut world = world(FAIR);
    let config = SegmentConfig { addr: RAM_BASE, len: 256, token: Some(77), access: access::READ };
    let token_id = world.hosts[1].node.register_segment(config).expect("room");
    let good = RemoteSegment { eid: NodeEid::numbered(2), token_id, addr: RAM_BASE, len: 4096, token: Some(77) };
    let mut import = |segment| world.hosts[0].node.import_segment(segment).expect("room");
    let (good, forged) = (import(good), import(RemoteSegment { token: Some(78), ..good }));
    let load = AccessKind::Load { len: 8 };
    let mut status = |segment, offset, kind| whole(&mut world, segment, offset, kind).status;
    assert_eq!(status(good, 248, load), CrStatus::Success);
    assert_eq!(status(good, 249, load), CrStatus::RemAccessAbort, "outside of what is registered");
    assert_eq!(status(forged, 0, load), CrStatus::RemAccessAbort, "another token");
    assert_eq!(status(good, 0, store(&[1])), CrStatus::RemAccessAbort, "no right to write");
    assert_eq!(status(good, 0, atomic(TaOpcode::FetchAdd, 1, 0)), CrStatus::RemAccessAbort);
    // Of these no packet leaves.
    let sent = world.sent;
    assert_eq!(begin(&mut world, good, 4095, store(&[1, 2])), Err(UrmaError::Access));
    assert_eq!(begin(&mut world, good, 4, atomic(TaOpcode::Swap, 1, 0)), Err(UrmaError::Value), "not aligned");
    assert_eq!(begin(&mut world, good, 8, atomic(TaOpcode::Write, 1, 0)), Err(UrmaError::Value), "no atomic");
    for len in [0, 65] {
        assert_eq!(begin(&mut world, good, 0, AccessKind::Load { len }), Err(UrmaError::Value));
    }
    assert_eq!(begin(&mut world, 99, 0, load), Err(UrmaError::NoObject));
    world.run_for(Nanos::from_ms(100));
    assert_eq!(world.sent, sent);
    assert!(world.hosts[1].ram.bytes.iter().all(|byte| *byte == 0));
    world.hosts[1].ram.is_gone = true;
    assert_eq!(whole(&mut world, good, 0, load).status, CrStatus::RemOperation, "the memory is gone");
}

/// Loss, duplication and reordering: each addition counts once, and each store is the last one when its outcome is there.
#[test]
fn nothing_is_executed_twice_or_late_in_a_storm() {
    for seed in 0..20 {
        let mut world = World::new(2, 4096, seed, |_| {});
        world.weather =
            crate::common::Weather { loss: 100_000, duplication: 200_000, jitter: Nanos::from_ms(8), ..STORM };
        let segment = world.import_shown(0, 1);
        let mut rng = Rng::new(seed);
        let mut sum = 0;
        for round in 0..400u64 {
            let operand = rng.below(1 << 30);
            let add = begin(&mut world, segment, 0, atomic(TaOpcode::FetchAdd, operand, 0)).expect("room");
            let put = begin(&mut world, segment, 64, store(&round.to_le_bytes())).expect("room");
            assert_eq!(end(&mut world, put).status, CrStatus::Success);
            let outcome = end(&mut world, add);
            assert_eq!((outcome.status, outcome.value()), (CrStatus::Success, sum), "seed {seed}, round {round}");
            sum += operand;
            let loaded = whole(&mut world, segment, 64, AccessKind::Load { len: 8 });
            assert_eq!(loaded.value(), round, "seed {seed}");
        }
        // Copies that are still on the way change nothing.
        world.run_for(Nanos::from_ms(1_000));
        assert_eq!(world.hosts[1].ram.bytes[..8], sum.to_le_bytes());
        assert_eq!(world.hosts[1].ram.bytes[64..72], 399u64.to_le_bytes());
        assert!(world.count(1, Reason::UbDuplicate) > 0 && world.count(0, Reason::UbRepeated) > 0);
    }
}

#[test]
fn a_copy_that_comes_after_many_others_overwrites_nothing() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    let first: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let seen = first.clone();
    world.filter = Some(Box::new(move |_, dest, bytes| {
        if dest == 1 {
            seen.borrow_mut().get_or_insert_with(|| bytes.to_vec());
        }
        false
    }));
    whole(&mut world, segment, 0, store(&[1]));
    for round in 0..200u8 {
        whole(&mut world, segment, 0, store(&[round]));
        let copy = first.borrow().clone().expect("sent");
        world.inject(1, &copy);
        world.run_for(Nanos::from_ms(1));
        assert_eq!(world.hosts[1].ram.bytes[0], round);
    }
    assert_eq!(world.count(1, Reason::UbDuplicate) + world.count(1, Reason::UbLate), 200);
    assert!(world.count(1, Reason::UbLate) >= 200 - u64::from(ACCESS_WINDOW));
}

#[test]
fn numbers_of_many_loads_do_not_make_a_store_old() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    whole(&mut world, segment, 0, store(&[1]));
    (0..40_000).for_each(|_| assert_eq!(whole(&mut world, segment, 0, AccessKind::Load { len: 1 }).bytes[0], 1));
    whole(&mut world, segment, 0, store(&[2]));
    assert_eq!(world.hosts[1].ram.bytes[0], 2);
}

#[test]
fn a_node_that_was_started_again_is_served_and_its_former_life_is_not() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    let old: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let seen = old.clone();
    world.filter = Some(Box::new(move |_, dest, bytes| {
        if dest == 1 {
            seen.borrow_mut().push(bytes.to_vec());
        }
        false
    }));
    (1..=3).for_each(|n| assert_eq!(whole(&mut world, segment, 0, store(&[n])).status, CrStatus::Success));
    let copies = old.take();
    let again = World::new(1, 64, 7, |config| config.incarnation = 2);
    world.hosts[0].node = again.hosts.into_iter().next().expect("one").node;
    let segment = world.import_shown(0, 1);
    assert_eq!(whole(&mut world, segment, 0, store(&[9])).status, CrStatus::Success);
    copies.iter().for_each(|copy| world.inject(1, copy));
    world.run_for(Nanos::from_ms(1));
    assert_eq!(world.hosts[1].ram.bytes[0], 9);
    assert_eq!(world.count(1, Reason::UbLate), 3);
}

#[test]
fn a_peer_that_is_silent_ends_an_access_and_a_window_bounds_them() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    world.filter = Some(Box::new(|_, _, _| true));
    let load = AccessKind::Load { len: 8 };
    let tags: Vec<_> = (0..ACCESS_WINDOW).map(|_| begin(&mut world, segment, 0, load).expect("room")).collect();
    assert_eq!(begin(&mut world, segment, 0, load), Err(UrmaError::Full));
    for tag in tags {
        assert_eq!(end(&mut world, tag).status, CrStatus::AckTimeout);
    }
    assert_eq!(world.count(0, Reason::UbTimeout), u64::from(ACCESS_WINDOW));
    // 2 ms, and twice as long each time: 8 packets.
    assert!(world.now >= Nanos::from_ms(2 * 255) && world.now < Nanos::from_ms(2 * 256), "{:?}", world.now);
    assert_eq!(world.sent, 8 * u64::from(ACCESS_WINDOW));
    world.filter = None;
    assert_eq!(whole(&mut world, segment, 0, load).status, CrStatus::Success);
}

/// Answers that nobody asked for, of another kind, or too short: dropped, and the right one is still taken.
#[test]
fn forged_answers_are_dropped() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    let answers: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let seen = answers.clone();
    world.filter = Some(Box::new(move |_, dest, bytes| {
        if dest == 0 {
            seen.borrow_mut().push(bytes.to_vec());
        }
        dest == 0
    }));
    let tag = begin(&mut world, segment, 0, AccessKind::Load { len: 8 }).expect("room");
    world.run_for(Nanos::from_ms(1));
    let good = answers.take().pop().expect("answered");
    let parsed = UbPacket::parse(&good, &Dialect::BURST).expect("sound");
    let Some(TaHeader::Response(response)) = parsed.head.ta else { panic!("an answer") };
    assert_eq!(parsed.head.nth.next, NextLayer::Bypass);
    let mut forge = |change: &dyn Fn(&mut burst_ubwire::Atah), payload: usize| {
        let mut response = response;
        change(&mut response);
        let mut head = parsed.head;
        head.ta = Some(TaHeader::Response(response));
        let mut bytes = vec![0; 256];
        let len = head.emit(&Dialect::BURST, &mut bytes);
        bytes.truncate(len + payload);
        world.inject(0, &bytes);
        world.run_for(Nanos(2_000));
        assert_eq!(world.hosts[0].node.take_access(tag), None);
    };
    forge(&|r| r.rc_id ^= 1, 8);
    forge(&|r| r.tassn += 1, 8);
    forge(&|_| {}, 7);
    forge(&|r| r.opcode = TaOpcode::TaAck, 0);
    forge(&|r| r.opcode = TaOpcode::AtomicResponse, 8);
    assert_eq!((world.count(0, Reason::UbLate), world.count(0, Reason::UbLength)), (2, 3));
    world.inject(0, &good);
    world.run_for(Nanos(2_000));
    assert_eq!(world.hosts[0].node.take_access(tag).map(|o| o.status), Some(CrStatus::Success));
    world.inject(0, &good);
    world.run_for(Nanos(2_000));
    assert_eq!(world.count(0, Reason::UbLate), 3);
}

/// What a target remembers is bounded, whatever addresses ask.
#[test]
fn many_initiators_take_bounded_memory() {
    let mut world = world(FAIR);
    let segment = world.import_shown(0, 1);
    let request: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let seen = request.clone();
    world.filter = Some(Box::new(move |_, dest, bytes| {
        if dest == 1 {
            seen.borrow_mut().replace(bytes.to_vec());
        }
        false
    }));
    whole(&mut world, segment, 0, store(&[1]));
    let packet = request.take().expect("sent");
    let mut most = 0;
    for source in 10..5_000u32 {
        let mut copy = packet.clone();
        copy[1..4].copy_from_slice(&source.to_be_bytes()[1..]);
        world.inject(1, &copy);
        world.run_for(Nanos(10_000));
        most = most.max(world.hosts[1].node.state().other_bytes);
    }
    assert!(most < 544 << 10, "{most}");
}
