//! What a call of `on_timer` and what an answer cost: a bounded number of steps, however many requests and channels the node
//! has.
//!
//! Steps are requests, packets and timers that were handled, and requests that a search has passed. Peers that never answer have
//! addresses that no host has.

use crate::common::forge::{deliver, open_and_cut, packet, write};
use crate::common::*;
use burst_base::Nanos;
use burst_ubwire::{Btah, Mtetah, OrderTag, ServiceMode, TaHeader, TaOpcode, TaRequest};
use burst_urma::{CrStatus, JettyConfig, JfrState, JfsWr, NodeEid, RemoteSegment, UrmaConfig, UrmaError};

/// Steps of one call that is bounded by its budgets, and of the packets in flight of the last channel.
const STEPS_MAX: u64 = 2 * 1024 + 256 + 1000;
const ERROR_TIMEOUT_LONGEST: u8 = 31;

fn large(config: &mut UrmaConfig) {
    config.requests_max = 1 << 20;
}

/// A host whose packets vanish.
fn silent_world() -> World {
    let mut world = World::new(1, 1 << 16, 1, large);
    world.filter = Some(Box::new(|_, _, _| true));
    world
}

/// Posts `count` requests of as many Jetties as they need to a peer.
fn post_to(world: &mut World, jfc: u32, peer: u32, (count, err_timeout): (u32, u8)) {
    let (eid, token_id) = (NodeEid::numbered(peer), 0x10000);
    let remote = RemoteSegment { eid, token_id, addr: RAM_BASE, len: 1 << 16, token: None };
    let segment = world.hosts[0].node.import_segment(remote).expect("room");
    let mut jetty = 0;
    for number in 0..count {
        if number % 500 == 0 {
            jetty = world.jetty(0, JettyConfig { depth: 500, err_timeout, ..JettyConfig::new(jfc, None) });
        }
        let wr = write(world, 0, segment, 0, 8);
        world.post_sound(0, jetty, wr);
    }
}

/// The most steps of one call within a time, and of all calls.
fn run(world: &mut World, time: Nanos) -> (u64, u64) {
    let (limit, before) = (world.now + time, world.hosts[0].node.timer_steps());
    let (mut most, mut last) = (0, before);
    while world.step(limit) {
        let steps = world.hosts[0].node.timer_steps();
        most = most.max(steps - last);
        last = steps;
    }
    (most, last - before)
}

#[test]
fn time_outs_of_a_channel_cost_the_same_however_many_requests_others_have() {
    let steps = |others: u32| {
        let mut world = silent_world();
        let jfc = world.jfc(0);
        post_to(&mut world, jfc, 100, (others, ERROR_TIMEOUT_LONGEST));
        // The others' channel is silent for long, so that it asks seldom.
        run(&mut world, Nanos(40_000_000_000));
        post_to(&mut world, jfc, 200, (1, ERROR_TIMEOUT_LONGEST));
        run(&mut world, Nanos(20_000_000_000)).1
    };
    let (few, many) = (steps(2_000), steps(8_000));
    assert!(few > 0 && many <= few + 2, "{few} steps with 2,000 requests, {many} with 8,000");
}

#[test]
fn a_pass_handles_a_bounded_part_of_the_channels_that_fail_together() {
    let fail = |peers: u32, requests: u32| {
        let mut world = silent_world();
        let jfc = world.jfc(0);
        for peer in 0..peers {
            post_to(&mut world, jfc, 100 + peer, (requests, 0));
        }
        let (most, all) = run(&mut world, Nanos(3_600_000_000_000));
        let crs = world.poll(0, jfc);
        assert_eq!(crs.len() as u32, peers * requests);
        assert!(crs.iter().all(|cr| cr.status == CrStatus::AckTimeout));
        world.assert_drained();
        (most, all)
    };
    let (most_few, few) = fail(50, 200);
    let (most_many, many) = fail(200, 200);
    assert!(many <= 4 * few + few / 10, "{few} steps, and {many} for four times as many");
    let (most_one, _) = fail(1, 40_000);
    let most = most_few.max(most_many).max(most_one);
    assert!(most <= STEPS_MAX, "{most} steps in one call");
}

#[test]
fn the_end_of_a_receive_queue_costs_the_same_however_many_messages_others_receive() {
    let steps = |others: u32| {
        let mut world = World::new(2, 1 << 16, 1, |config| config.inbound_max = 4096);
        let known = open_and_cut(&mut world);
        let jfc = world.jfc(0);
        let (idle, busy) = (world.jfr(0, jfc), world.jfr(0, jfc));
        for number in 0..others {
            world.recv(0, busy, 0, 4096, u64::from(number));
            let base =
                Btah { has_target: true, tassn: number as u16, ..Btah::new(TaOpcode::Send, number as u16, 1024) };
            let target = Some(Mtetah { hint: 0, kind: Mtetah::JFR, id: busy });
            let request = TaRequest { target, ..TaRequest::new(base) };
            // The first packet of a message that goes on.
            deliver(
                &mut world,
                &packet(&known, 1 + number, (9 + number, false), TaHeader::Request(request), &[1; 256]),
            );
        }
        let state = world.hosts[0].node.state();
        assert_eq!(state.inbound, others as usize, "messages are incomplete");
        let before = world.hosts[0].node.timer_steps();
        world.with(0, |node, env| node.modify_jfr(idle, JfrState::Error, env.fx)).expect("ready");
        world.hosts[0].node.delete_jfr(idle).expect("idle");
        assert_eq!(world.hosts[0].node.delete_jfr(busy), Err(UrmaError::Busy));
        world.hosts[0].node.timer_steps() - before
    };
    assert_eq!((steps(20), steps(80)), (0, 0));
}

#[test]
fn requests_of_a_channel_that_has_failed_end_with_their_jetty_in_any_order() {
    let mut world = silent_world();
    let jfc = world.jfc(0);
    post_to(&mut world, jfc, 100, (3_000, 0));
    world.run_for(Nanos(1_000_000));
    world.hosts[0].node.end_channel(NodeEid::numbered(100));
    // One pass has handled a part; then the program posts again, to the same peer and to another one.
    world.step(Nanos::NEVER);
    let first = world.poll(0, jfc).len();
    assert!(0 < first && first < 3_000, "{first} in the first pass");
    post_to(&mut world, jfc, 100, (10, 0));
    post_to(&mut world, jfc, 101, (10, 0));
    world.run_for(Nanos(3_600_000_000_000));
    assert_eq!(first + world.poll(0, jfc).len(), 3_020);
    world.assert_drained();
}

/// Steps of the answers to 200 requests of a Jetty that has `silent` others before them, to a peer that does not answer. Some
/// come first: the first searches may pass the others.
fn steps_behind(silent: u32, service: ServiceMode, change: impl Fn(JfsWr) -> JfsWr) -> u64 {
    let mut world = World::new(2, 1 << 16, 1, large);
    let jfc = world.jfc(0);
    let config =
        JettyConfig { depth: 20_000, err_timeout: ERROR_TIMEOUT_LONGEST, service, ..JettyConfig::new(jfc, None) };
    let jetty = world.jetty(0, config);
    let remote =
        RemoteSegment { eid: NodeEid::numbered(100), token_id: 0x10000, addr: RAM_BASE, len: 1 << 16, token: None };
    let nowhere = world.hosts[0].node.import_segment(remote).expect("room");
    for _ in 0..silent {
        let wr = write(&world, 0, nowhere, 0, 8);
        world.post_sound(0, jetty, wr);
    }
    let answering = world.import_all(0, 1);
    let answered = |world: &mut World, count: u32| {
        for _ in 0..count {
            let wr = change(write(world, 0, answering, 0, 8));
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(1_000_000));
        let state = world.hosts[0].node.state();
        assert_eq!(state.requests, silent as usize, "the peer has answered");
    };
    // The first ones may make an index, or pass the others once.
    (0..3).for_each(|_| answered(&mut world, 1));
    let before = world.hosts[0].node.timer_steps();
    answered(&mut world, 200);
    world.hosts[0].node.timer_steps() - before
}

#[test]
fn an_answer_costs_the_same_however_many_requests_are_outstanding_before_its_own() {
    type Change = fn(JfsWr) -> JfsWr;
    let plain: Change = |wr| wr;
    let in_order: Change = |wr| JfsWr { completion_order: true, ..wr };
    let silent: Change = |wr| JfsWr { completion_order: true, complete: false, ..wr };
    let numbered: Change = |wr| JfsWr { order: OrderTag::Strong, ..wr };
    let kinds = [
        ("plain", ServiceMode::Roi, plain),
        ("ordered completion", ServiceMode::Roi, in_order),
        ("no completion", ServiceMode::Roi, silent),
        ("numbered", ServiceMode::Rot, numbered),
    ];
    for (kind, service, change) in kinds {
        let (few, many) = (steps_behind(1_000, service, change), steps_behind(4_000, service, change));
        println!("{kind}: {few} steps behind 1,000 requests, {many} behind 4,000");
        assert!(many <= few + 8, "{kind}: {few} steps behind 1,000 requests, {many} behind 4,000");
    }
}

#[test]
fn requests_are_found_by_number_while_others_come_and_go() {
    let mut world = World::new(2, 1 << 16, 1, large);
    let jfc = world.jfc(0);
    let config = JettyConfig { depth: 4096, err_timeout: ERROR_TIMEOUT_LONGEST, ..JettyConfig::new(jfc, None) };
    let jetty = world.jetty(0, config);
    let remote =
        RemoteSegment { eid: NodeEid::numbered(100), token_id: 0x10000, addr: RAM_BASE, len: 1 << 16, token: None };
    let nowhere = world.hosts[0].node.import_segment(remote).expect("room");
    let answering = world.import_all(0, 1);
    let mut answered = 0;
    for round in 0..300 {
        for number in 0..20 {
            let segment = if (round * 20 + number) % 23 == 0 { nowhere } else { answering };
            let wr = write(&world, 0, segment, 0, 8);
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(200_000));
        answered += world.poll(0, jfc).len();
        world.hosts[0].node.check().expect("what must hold between two calls");
    }
    let unanswered = 6_000usize.div_ceil(23);
    assert_eq!((answered, world.hosts[0].node.state().requests), (6_000 - unanswered, unanswered));
    // They end, and so does the index.
    world.hosts[0].node.end_channel(NodeEid::numbered(100));
    world.run_for(Nanos(3_600_000_000_000));
    assert_eq!(world.poll(0, jfc).len(), unanswered);
    world.assert_drained();
    world.hosts[0].node.check().expect("what must hold between two calls");
}
