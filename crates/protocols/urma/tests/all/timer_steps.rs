//! What a call of `on_timer` costs: a bounded number of steps, however many requests and channels the node has.
//!
//! Steps are requests, packets and timers that were handled. Peers that never answer have addresses that no host has.

use crate::common::forge::write;
use crate::common::*;
use burst_base::Nanos;
use burst_ubwire::Cna;
use burst_urma::{CrStatus, JettyConfig, RemoteSegment, UrmaConfig};

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
    let (cna, token_id) = (Cna::new(peer), 0x10000);
    let remote = RemoteSegment { cna, token_id, addr: RAM_BASE, len: 1 << 16, token: None };
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
fn requests_of_a_channel_that_has_failed_end_with_their_jetty_in_any_order() {
    let mut world = silent_world();
    let jfc = world.jfc(0);
    post_to(&mut world, jfc, 100, (3_000, 0));
    world.run_for(Nanos(1_000_000));
    world.hosts[0].node.end_channel(Cna::new(100));
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
