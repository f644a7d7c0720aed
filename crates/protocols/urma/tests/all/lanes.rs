//! Several lanes between two nodes: throughput over paths of equal rate, losses and failures of one of them, order, peers with
//! fewer lanes, forged messages, and the state that lanes cost.

use crate::common::forge::write;
use crate::common::*;
use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, OrderTag, ServiceMode, TaHeader, TaOpcode, UbPacket};
use burst_urma::{
    ChannelView, CrStatus, JettyConfig, JettyState, JfsWr, LANES_MAX, NoPaths, NodeEid, UrmaConfig, UrmaEnv, UrmaNode,
    WrData,
};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Nanoseconds for 1000 bytes on a path: 100 Gbit/s.
const NS_PER_KB: u64 = 80;
const DELAY: Nanos = Nanos(2_000);
const LEN: u32 = 65_536;

/// Hosts between which there are four paths of equal rate.
fn four_paths(hosts: usize, lanes: u8, seed: u64) -> World {
    let mut world = World::new(hosts, 1 << 20, seed, |config| {
        (config.lanes, config.caqm, config.window_max) = (lanes, false, 1 << 18);
    });
    world.paths = vec![Path::new(DELAY, NS_PER_KB); 4];
    world
}

fn channels(world: &World, host: usize) -> Vec<ChannelView> {
    world.hosts[host].node.channels_from(NodeEid::UNSPECIFIED).collect()
}

fn lanes_open(world: &World, host: usize) -> Vec<u8> {
    channels(world, host).iter().filter(|c| c.is_open).map(|c| c.lane).collect()
}

fn order_of(opcode: TaOpcode, world: &World, segment: u32, len: u32) -> JfsWr {
    JfsWr { opcode, ..write(world, 0, segment, 0, len) }
}

/// Keeps `depth` unordered requests of 64 KiB outstanding; bytes that were completed within `time` after the first 200 us, and
/// those that each path carried.
fn run_load(world: &mut World, opcode: TaOpcode, depth: usize, time: Nanos) -> (u64, Vec<u64>) {
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { depth: 256, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let wr = order_of(opcode, world, segment, LEN);
    let begin = world.now + Nanos(200_000);
    let (end, mut outstanding, mut bytes, mut before) = (begin + time, 0, 0, Vec::new());
    loop {
        while outstanding < depth {
            world.post_sound(0, jetty, wr);
            outstanding += 1;
        }
        if !world.step(end) {
            break;
        }
        if world.now < begin {
            before = world.paths.iter().map(|path| path.carried).collect();
        }
        for cr in world.poll(0, jfc) {
            assert_eq!(cr.status, CrStatus::Success);
            bytes += u64::from(cr.len) * u64::from(world.now >= begin);
            outstanding -= 1;
        }
    }
    (bytes, world.paths.iter().zip(before).map(|(path, before)| path.carried - before).collect())
}

/// Opens all lanes between hosts 0 and 1 by traffic of host 0.
fn open_all(world: &mut World, lanes: usize) {
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    for _ in 0..40 {
        for _ in 0..2 * lanes {
            let wr = write(world, 0, segment, 0, 20_000);
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(100_000));
        if lanes_open(world, 0).len() == lanes {
            break;
        }
    }
    world.run_for(Nanos(1_000_000));
    assert_eq!(lanes_open(world, 0).len(), lanes);
    assert!(world.poll(0, jfc).iter().all(|cr| cr.status == CrStatus::Success));
}

#[test]
fn four_lanes_over_four_paths_carry_nearly_four_times_as_much() {
    for opcode in [TaOpcode::Write, TaOpcode::Read] {
        let time = Nanos(1_000_000);
        let (one, _) = run_load(&mut four_paths(2, 1, 1), opcode, 16, time);
        let (four, carried) = run_load(&mut four_paths(2, 4, 1), opcode, 64, time);
        let ratio = four as f64 / one as f64;
        println!("{opcode:?} of 64 KiB, 4 lanes over 4 paths: {ratio:.2} times one; bytes by path {carried:?}");
        assert!(ratio >= 3.5, "{opcode:?}: {ratio}");
    }
}

#[test]
fn a_lane_with_losses_does_not_slow_the_others() {
    let time = Nanos(2_000_000);
    let (clean, even) = run_load(&mut four_paths(2, 4, 1), TaOpcode::Write, 64, time);
    let mut world = four_paths(2, 4, 1);
    world.paths[2].loss = 50_000;
    let (bytes, carried) = run_load(&mut world, TaOpcode::Write, 64, time);
    let share = |i: usize| carried[i] as f64 / even[i] as f64;
    let total = bytes as f64 / clean as f64;
    println!("5 % loss on one of 4 paths: {total:.2} of all, by path {:.2?}", (0..4).map(share).collect::<Vec<_>>());
    for path in [0, 1, 3] {
        assert!(share(path) >= 0.95, "path {path}: {}", share(path));
    }
    assert!(total >= 0.8, "{total}");
}

#[test]
fn a_slow_path_gets_less_and_holds_no_more() {
    let time = Nanos(2_000_000);
    let (clean, _) = run_load(&mut four_paths(2, 4, 1), TaOpcode::Write, 64, time);
    let mut world = four_paths(2, 4, 1);
    world.paths[1].ns_per_kb = 10 * NS_PER_KB;
    let (bytes, carried) = run_load(&mut world, TaOpcode::Write, 64, time);
    let total = bytes as f64 / clean as f64;
    println!("one of 4 paths with a tenth of the rate: {total:.2} of all, bytes by path {carried:?}");
    // Three paths and a tenth of the fourth would be 0.775.
    assert!(total >= 0.7, "{total}");
}

#[test]
fn ordered_requests_stay_on_one_lane_and_in_order() {
    for service in [ServiceMode::Rol, ServiceMode::Rot] {
        let mut world = four_paths(2, 4, 3);
        for path in &mut world.paths {
            path.loss = 10_000;
        }
        let jfc = world.jfc(0);
        let ordered = world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) });
        let other = world.jetty(0, JettyConfig::new(jfc, None));
        let segment = world.import_all(0, 1);
        let lanes: Rc<RefCell<HashMap<u32, HashSet<u32>>>> = Rc::default();
        let copy = lanes.clone();
        world.filter = Some(Box::new(move |from, _, bytes| {
            let head = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet").head;
            if let (0, Some(rtph), Some(TaHeader::Request(request))) = (from, head.rtph, head.ta) {
                copy.borrow_mut().entry(request.base.rc_id).or_default().insert(rtph.src_tpn);
            }
            false
        }));
        let mut posted = [0u64; 2];
        for i in 0..2_000 {
            for (which, jetty, order) in [(0, ordered, OrderTag::Strong), (1, other, OrderTag::None)] {
                let wr = JfsWr { order, ..write(&world, 0, segment, 0, 1 + (i * 97) % 9_000) };
                posted[which] += u64::from(world.post(0, jetty, wr).is_ok());
            }
            world.run_for(Nanos(2_000));
        }
        world.run_for(Nanos(1_000_000_000));
        let crs = world.poll(0, jfc);
        assert_eq!(crs.len() as u64, posted[0] + posted[1]);
        assert!(crs.iter().all(|cr| cr.status == CrStatus::Success));
        let executed: Vec<u16> = world.hosts[1].log.executed.iter().filter(|e| e.1 == ordered).map(|e| e.2).collect();
        assert_eq!(executed, (0..posted[0]).map(|i| i as u16).collect::<Vec<_>>(), "{service:?}");
        let lanes = lanes.borrow();
        assert_eq!((lanes[&ordered].len(), lanes[&other].len()), (1, 4), "{service:?}");
    }
}

#[test]
fn a_dead_lane_loses_no_read_and_new_requests_take_the_others() {
    let mut world = four_paths(2, 4, 5);
    open_all(&mut world, 4);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { depth: 512, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let (mut reads, mut slowest) = (0, Nanos(0));
    world.paths[2].loss = 1_000_000;
    let from = world.now;
    // The lane fails after 510 ms. Meanwhile and afterwards READs go on on other lanes after three time-outs.
    while world.now < from + Nanos(700_000_000) {
        let posted_at = world.now;
        for _ in 0..16 {
            let wr = order_of(TaOpcode::Read, &world, segment, LEN);
            world.post_sound(0, jetty, wr);
            reads += 1;
        }
        let mut left = 16;
        while left > 0 && world.step(posted_at + Nanos(1_000_000_000)) {
            for cr in world.poll(0, jfc) {
                assert_eq!(cr.status, CrStatus::Success);
                left -= 1;
            }
        }
        assert_eq!(left, 0);
        slowest = slowest.max(world.now.since(posted_at));
        world.run_for(Nanos(5_000_000));
    }
    println!("{reads} READs around the failure of a lane, the slowest sixteen took {} us", slowest.0 / 1000);
    assert!(slowest < Nanos(20_000_000), "{slowest:?}");
    assert_eq!((world.count(0, Reason::UbChannelFailed), lanes_open(&world, 0)), (1, vec![0, 1, 3]));
    // While the lane rests, stores find the others, in both directions.
    let (jfc1, back) = (world.jfc(1), world.import_all(1, 0));
    let jetty1 = world.jetty(1, JettyConfig::new(jfc1, None));
    assert_eq!(lanes_open(&world, 1), [0, 1, 3], "the peer was told");
    for _ in 0..32 {
        let (wr, wr1) = (write(&world, 0, segment, 0, 9_000), write(&world, 1, back, 0, 9_000));
        world.post_sound(0, jetty, wr);
        world.post_sound(1, jetty1, wr1);
    }
    world.run_for(Nanos(1_000_000));
    let crs: Vec<CrStatus> =
        [(0, jfc), (1, jfc1)].iter().flat_map(|(h, c)| world.poll(*h, *c)).map(|c| c.status).collect();
    assert_eq!(crs, [CrStatus::Success; 64]);
    // The path comes back, and so does the lane.
    world.paths[2].loss = 0;
    world.run_for(Nanos(2_000_000_000));
    open_all(&mut world, 4);
}

#[test]
fn a_lane_that_stays_dead_is_tried_again_ever_more_rarely() {
    let mut world = four_paths(2, 4, 5);
    open_all(&mut world, 4);
    world.paths[1].loss = 1_000_000;
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let mut tries = Vec::new();
    let mut was_there = false;
    for ms in (0..60_000u64).step_by(10) {
        for _ in 0..8 {
            let wr = order_of(TaOpcode::Read, &world, segment, 20_000);
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(10_000_000));
        let is_there = channels(&world, 0).iter().any(|c| c.lane == 1);
        if is_there && !was_there {
            tries.push(ms);
        }
        was_there = is_there;
        assert!(world.poll(0, jfc).iter().all(|cr| cr.status == CrStatus::Success));
    }
    let pauses: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((4..=7).contains(&pauses.len()) && pauses.windows(2).all(|p| p[1] > p[0] * 3 / 2), "{tries:?}");
}

#[test]
fn a_broken_path_of_the_first_lane_stops_nothing() {
    let mut world = four_paths(2, 4, 1);
    world.paths[0].loss = 1_000_000;
    let jfc = world.jfc(0);
    let segment = world.import_all(0, 1);
    for service in [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol] {
        let jetty = world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) });
        for _ in 0..4 {
            let wr = JfsWr { order: OrderTag::Strong, ..write(&world, 0, segment, 0, 8) };
            world.post_sound(0, jetty, wr);
        }
    }
    world.run_for(Nanos(100_000_000));
    let crs: Vec<CrStatus> = world.poll(0, jfc).iter().map(|cr| cr.status).collect();
    assert_eq!(crs, [CrStatus::Success; 12]);
}

#[test]
fn a_write_of_which_a_part_was_sent_ends_with_its_lane_and_one_that_waited_goes_on() {
    let mut world = four_paths(2, 4, 1);
    open_all(&mut world, 4);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let wr = |world: &World, number| JfsWr { user_ctx: number, ..write(world, 0, segment, 0, 1_000_000) };
    // The first one takes lane 0 and fills its window; of a late packet of it nobody could say which data it overwrites.
    world.paths[0].loss = 1_000_000;
    world.post_sound(0, jetty, wr(&world, 0));
    world.transmit();
    assert!(channels(&world, 0)[0].bytes >= 1 << 18);
    // The next three take the other lanes, and the fourth waits behind the first.
    for number in 1..=4 {
        world.post_sound(0, jetty, wr(&world, number));
    }
    assert_eq!(channels(&world, 0)[0].unanswered, 2);
    world.run_for(Nanos(1_000_000_000));
    let mut crs: Vec<(u64, CrStatus)> = world.poll(0, jfc).iter().map(|cr| (cr.user_ctx, cr.status)).collect();
    assert_eq!(crs.pop(), Some((0, CrStatus::AckTimeout)), "{crs:?}");
    crs.sort_by_key(|cr| cr.0);
    assert_eq!(crs, [1, 2, 3, 4].map(|number| (number, CrStatus::Success)));
}

#[test]
fn an_ordered_stream_on_a_dead_lane_ends_and_begins_anew_on_another() {
    for service in [ServiceMode::Rot, ServiceMode::Rol] {
        let mut world = four_paths(2, 4, 1);
        open_all(&mut world, 4);
        let jfc = world.jfc(0);
        let jetty = world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) });
        let segment = world.import_all(0, 1);
        let wr = JfsWr { order: OrderTag::Strong, ..write(&world, 0, segment, 0, 8) };
        // With all lanes idle the stream takes lane 0.
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(1_000_000));
        world.paths[0].loss = 1_000_000;
        for _ in 0..3 {
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(1_000_000_000));
        for _ in 0..3 {
            world.post_sound(0, jetty, wr);
        }
        world.run_for(Nanos(1_000_000));
        let crs: Vec<CrStatus> = world.poll(0, jfc).iter().map(|cr| cr.status).collect();
        let (ok, failed) = (CrStatus::Success, CrStatus::AckTimeout);
        assert_eq!(crs, [ok, failed, failed, failed, ok, ok, ok], "{service:?}");
    }
}

fn pick<'a, T>(rng: &mut Rng, list: &'a [T]) -> &'a T {
    &list[rng.below(list.len() as u64) as usize]
}

/// Requests of all kinds from host 0 to host 1, while paths come and go.
struct Flapping {
    world: World,
    rng: Rng,
    jetty: u32,
    jfc: u32,
    jfr: u32,
    segment: u32,
    target: u32,
    posted: Vec<TaOpcode>,
    statuses: HashMap<u64, CrStatus>,
}

impl Flapping {
    const COUNTER: u64 = 8 << 10;

    fn new(seed: u64) -> Flapping {
        let mut world = four_paths(2, 4, seed);
        let Receiver { jfr, target, .. } = world.receiver();
        let jfc = world.jfc(0);
        let jetty = world.jetty(0, JettyConfig { depth: 256, ..JettyConfig::new(jfc, None) });
        let segment = world.import_all(0, 1);
        let (posted, statuses) = (Vec::new(), HashMap::new());
        Flapping { world, rng: Rng::new(seed), jetty, jfc, jfr, segment, target, posted, statuses }
    }
    /// Now and then a path dies or loses some, in one direction or both, or is repaired; now and then there is no receive.
    fn change_paths(&mut self) {
        if self.rng.chance(1, 40) {
            let path = &mut self.world.paths[self.rng.below(4) as usize];
            path.loss = *pick(&mut self.rng, &[0, 0, 300_000, 1_000_000]);
            path.only_from = *pick(&mut self.rng, &[None, Some(0), Some(1)]);
        }
        if self.rng.chance(1, 2) {
            self.world.recv(1, self.jfr, 1 << 19, 20_000, 1);
        }
    }
    fn post(&mut self) {
        let opcodes = [TaOpcode::Write, TaOpcode::Read, TaOpcode::FetchAdd, TaOpcode::Send];
        let opcode = *pick(&mut self.rng, &opcodes);
        let is_add = opcode == TaOpcode::FetchAdd;
        let len = if is_add { 8 } else { 1 + self.rng.below(20_000) as u32 };
        let data = self.world.data(0, 1 << 17, len);
        let wr = JfsWr {
            segment: Some(self.segment),
            target: Some(self.target).filter(|_| opcode == TaOpcode::Send),
            remote_addr: RAM_BASE + if is_add { Self::COUNTER } else { 1 << 18 },
            operand: 1,
            ..JfsWr::new(opcode, data, self.posted.len() as u64)
        };
        if self.world.post(0, self.jetty, wr).is_ok() {
            self.posted.push(opcode);
        }
    }
    fn run_for(&mut self, time: Nanos) {
        self.world.run_for(time);
        for cr in self.world.poll(0, self.jfc) {
            assert!(self.statuses.insert(cr.user_ctx, cr.status).is_none(), "completed twice");
        }
    }
    /// Each request has ended, and was executed as often as it had to be.
    fn check(&self, seed: u64, seen: &mut HashMap<(TaOpcode, u8), u64>) {
        self.world.assert_drained();
        let mut executed: HashMap<u16, u32> = HashMap::new();
        for (_, _, tassn) in &self.world.hosts[1].log.executed {
            *executed.entry(*tassn).or_default() += 1;
        }
        let mut adds = 0;
        for (number, opcode) in self.posted.iter().enumerate() {
            let status = self.statuses[&(number as u64)];
            let times = executed.get(&(number as u16)).copied().unwrap_or(0);
            adds += u64::from(times) * u64::from(*opcode == TaOpcode::FetchAdd);
            let is_sound = match (opcode, status) {
                (TaOpcode::Read, CrStatus::Success) => times >= 1,
                (TaOpcode::Read, CrStatus::AckTimeout) => true,
                (_, CrStatus::Success) => times == 1,
                (_, CrStatus::AckTimeout) => times <= 1,
                _ => false,
            };
            assert!(is_sound, "seed {seed}: {opcode:?} {number} was executed {times} times and ended with {status:?}");
            *seen.entry((*opcode, status as u8)).or_default() += 1;
        }
        let counter = &self.world.hosts[1].ram.bytes[Self::COUNTER as usize..][..8];
        assert_eq!(u64::from_le_bytes(counter.try_into().expect("eight")), adds, "seed {seed}");
    }
}

#[test]
fn paths_that_come_and_go_execute_nothing_twice() {
    let mut seen: HashMap<(TaOpcode, u8), u64> = HashMap::new();
    for seed in 1..=6 {
        let mut test = Flapping::new(seed);
        for round in 0..1_500 {
            test.change_paths();
            test.post();
            let time = if round % 100 == 0 { 700_000_000 } else { test.rng.below(400_000) };
            test.run_for(Nanos(time));
        }
        test.world.paths.iter_mut().for_each(|path| path.loss = 0);
        (0..1_500).for_each(|_| test.world.recv(1, test.jfr, 1 << 19, 20_000, 1));
        test.run_for(Nanos(20_000_000_000));
        test.check(seed, &mut seen);
    }
    println!("paths that come and go: {seen:?}");
    assert!(seen[&(TaOpcode::Write, CrStatus::AckTimeout as u8)] > 0, "{seen:?}");
}

#[test]
fn nodes_with_different_numbers_of_lanes_take_the_fewer() {
    for (own, theirs) in [(4, 1), (1, 4), (4, 2), (3, LANES_MAX), (0, 4), (200, 200)] {
        let mut world = four_paths(2, own, 1);
        let config = UrmaConfig { lanes: theirs, ..UrmaConfig::new(NodeEid::numbered(2), 9) };
        let rights = burst_urma::access::READ | burst_urma::access::WRITE;
        world.hosts[1].node = UrmaNode::new(config);
        let all = burst_urma::SegmentConfig { addr: RAM_BASE, len: 1 << 20, token: None, access: rights };
        world.hosts[1].all = world.hosts[1].node.register_segment(all).expect("room");
        let (mut posted, mut ended) = (0, 0);
        let jfc: Vec<u32> = (0..2).map(|h| world.jfc(h)).collect();
        let jetty: Vec<u32> = (0..2).map(|h| world.jetty(h, JettyConfig::new(jfc[h], None))).collect();
        let segment = [world.import_all(0, 1), world.import_all(1, 0)];
        for _ in 0..60 {
            for (host, (jetty, segment)) in jetty.iter().zip(segment).enumerate() {
                for _ in 0..10 {
                    let wr = write(&world, host, segment, 0, 5_000);
                    posted += u64::from(world.post(host, *jetty, wr).is_ok());
                }
            }
            world.run_for(Nanos(20_000));
            for (host, jfc) in jfc.iter().enumerate() {
                let crs = world.poll(host, *jfc);
                assert!(crs.iter().all(|cr| cr.status == CrStatus::Success));
                ended += crs.len() as u64;
            }
        }
        world.run_for(Nanos(100_000_000));
        ended += (0..2).map(|host| world.poll(host, jfc[host]).len() as u64).sum::<u64>();
        assert_eq!(posted, ended);
        let fewer = usize::from(own.min(theirs).clamp(1, LANES_MAX));
        for host in 0..2 {
            assert_eq!(
                lanes_open(&world, host),
                (0..fewer as u8).collect::<Vec<_>>(),
                "{own} and {theirs}: host {host}"
            );
            assert_eq!(world.count(host, Reason::UbChannelFailed), 0);
        }
    }
}

#[test]
fn a_peer_that_has_restarted_gets_no_request_on_lanes_of_its_former_life() {
    for seed in 1..=4 {
        let mut world = four_paths(2, 4, seed);
        open_all(&mut world, 4);
        let config =
            UrmaConfig { lanes: 4, incarnation: 900 + seed, ..UrmaConfig::new(NodeEid::numbered(2), 50 + seed) };
        world.hosts[1].node = UrmaNode::new(config);
        let rights = burst_urma::access::READ | burst_urma::access::WRITE;
        let all = burst_urma::SegmentConfig { addr: RAM_BASE, len: 1 << 20, token: None, access: rights };
        world.hosts[1].all = world.hosts[1].node.register_segment(all).expect("room");
        let jfc1 = world.jfc(1);
        let jetty1 = world.jetty(1, JettyConfig::new(jfc1, None));
        let back = world.import_all(1, 0);
        let wr = write(&world, 1, back, 0, 8);
        world.post_sound(1, jetty1, wr);
        world.run_for(Nanos(100_000));
        assert_eq!(lanes_open(&world, 0), [0]);
        run_load_once(&mut world);
        assert!(world.poll(1, jfc1).iter().all(|cr| cr.status == CrStatus::Success));
        assert_eq!(world.count(0, Reason::UbChannelFailed), 0);
    }
}

#[test]
fn lanes_open_one_after_the_other_and_only_with_traffic() {
    let mut world = four_paths(2, 4, 1);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 0, 8);
    for _ in 0..50 {
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(100_000));
    }
    assert_eq!(lanes_open(&world, 0), [0], "one request at a time needs one lane");
    for lanes in 2..=4 {
        for _ in 0..lanes {
            world.post_sound(0, jetty, wr);
        }
        assert_eq!(channels(&world, 0).iter().filter(|c| !c.is_open).count(), 1);
        world.run_for(Nanos(100_000));
        assert_eq!(lanes_open(&world, 0), (0..lanes).collect::<Vec<u8>>());
    }
}

/// Management message REQUEST of a host for a lane.
fn open_request(peer: u32, lane: u8, lanes: u8) -> Vec<u8> {
    let mut node = UrmaNode::new(UrmaConfig { lanes, ..UrmaConfig::new(NodeEid::numbered(peer), u64::from(peer)) });
    let jfc = node.create_jfc(16).expect("room");
    let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("sound");
    let remote = burst_urma::RemoteSegment {
        eid: NodeEid::numbered(2),
        token_id: 0x1_0000,
        addr: RAM_BASE,
        len: 64,
        token: None,
    };
    let segment = node.import_segment(remote).expect("room");
    let mut ram =
        Ram { bytes: vec![0; 64], is_gone: false, own: burst_span::ProcessMemory::own().expect("own memory") };
    let mut log = Log::default();
    let mut env = UrmaEnv { now: Nanos(0), mem: &mut ram, fx: &mut log, paths: &mut NoPaths };
    let data = WrData::inline(&[1]).expect("short");
    let wr = JfsWr { segment: Some(segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Write, data, 0) };
    node.post_send(jetty, &wr, &mut env).expect("accepted");
    let mut out = vec![0; node.packet_max()];
    let sent = node.poll_tx(&mut env, &mut out).expect("a REQUEST");
    out.truncate(sent.len);
    // Byte 13 of the message, which is the payload.
    let at = out.len() - 32 + 13;
    assert_eq!((&out[at..at + 2], out[at + 2] != 0), (&[0, lanes - 1][..], lanes > 1));
    out[at] = lane;
    out
}

#[test]
fn forged_requests_of_many_lanes_are_bounded_and_end_no_living_lane() {
    let mut world = World::new(2, 1 << 20, 1, |config| {
        (config.lanes, config.channels_max, config.caqm) = (4, 32, false);
    });
    let late: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copy = late.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        if from == 0 && UbPacket::parse(bytes, &Dialect::BURST).is_ok_and(|p| p.head.rtph.is_none()) {
            copy.borrow_mut().push(bytes.to_vec());
        }
        false
    }));
    open_all(&mut world, 4);
    let before = channels(&world, 0);
    let mut out = vec![0; 16384];
    for peer in 1..400 {
        for lane in 0..=u8::MAX {
            let request = if lane < 8 || peer < 3 { open_request(peer, lane, 8) } else { continue };
            world.with(1, |node, env| node.on_packet(env, crate::common::sender(&request), &request));
            while world.with(1, |node, env| node.poll_tx(env, &mut out)).is_some() {}
        }
        assert!(world.hosts[1].node.state().channels <= 32);
    }
    // Late copies of the REQUESTs of the living lanes change nothing either.
    for request in late.borrow().iter() {
        world.inject(1, request);
    }
    world.run_for(Nanos(1_000_000));
    assert!(world.count(1, Reason::UbChannelLimit) > 0 && world.count(1, Reason::UbStaleChannel) >= 4);
    assert_eq!(lanes_open(&world, 1)[..4], [0, 1, 2, 3]);
    let numbers = |views: &[ChannelView]| views.iter().map(|c| (c.lane, c.local_tpn, c.peer_tpn)).collect::<Vec<_>>();
    assert_eq!(numbers(&channels(&world, 0)), numbers(&before));
    let (_, _) = run_load_once(&mut world);
    assert_eq!(world.count(0, Reason::UbChannelFailed), 0);
}

/// Eight WRITEs from host 0 to host 1 that succeed.
fn run_load_once(world: &mut World) -> (u32, u32) {
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    for _ in 0..8 {
        let wr = write(world, 0, segment, 0, 9_000);
        world.post_sound(0, jetty, wr);
    }
    world.run_for(Nanos(1_000_000));
    assert_eq!(world.poll(0, jfc).iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success; 8]);
    (jfc, jetty)
}

#[test]
fn further_lanes_leave_half_of_the_table_to_first_ones() {
    let mut world = World::new(6, 1 << 16, 1, |config| (config.lanes, config.channels_max) = (4, 8));
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { depth: 512, ..JettyConfig::new(jfc, None) });
    // One peer has four lanes, half of the table; four others have one.
    for peer in 1..6 {
        let segment = world.import_all(0, peer);
        for _ in 0..20 {
            for _ in 0..10 {
                let wr = write(&world, 0, segment, 0, 3_000);
                world.post_sound(0, jetty, wr);
            }
            world.run_for(Nanos(100_000));
            assert!(world.poll(0, jfc).iter().all(|cr| cr.status == CrStatus::Success));
        }
    }
    let lanes: Vec<u8> = channels(&world, 0).iter().map(|c| c.lane).collect();
    assert_eq!(lanes, [0, 1, 2, 3, 0, 0, 0, 0]);
}

#[test]
fn a_lane_that_a_node_does_not_take_is_not_opened() {
    for lanes in [1, 4] {
        let mut world = four_paths(2, lanes, 1);
        for lane in [lanes, 7, 255] {
            let request = open_request(9, lane, 8);
            world.with(1, |node, env| node.on_packet(env, crate::common::sender(&request), &request));
        }
        assert_eq!((world.count(1, Reason::UbChannelLimit), world.hosts[1].node.state().channels), (3, 0));
        let request = open_request(9, lanes - 1, 8);
        world.with(1, |node, env| node.on_packet(env, crate::common::sender(&request), &request));
        assert_eq!(lanes_open(&world, 1), [lanes - 1]);
    }
}

#[test]
fn forged_and_late_ends_do_nothing() {
    let mut world = four_paths(2, 4, 1);
    open_all(&mut world, 4);
    let mut end = open_request(1, 2, 4);
    let kind = end.len() - 32;
    // END of host 0's address for lane 2, with other values than the lane's.
    end[kind] = 4;
    world.with(1, |node, env| node.on_packet(env, crate::common::sender(&end), &end));
    assert_eq!((world.count(1, Reason::UbStaleChannel), lanes_open(&world, 1)), (1, vec![0, 1, 2, 3]));
}

#[test]
fn a_jetty_that_fails_with_a_lane_is_drained_of_what_goes_on() {
    let mut world = four_paths(2, 4, 1);
    open_all(&mut world, 4);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { error_suspend: true, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    world.paths.iter_mut().for_each(|path| path.loss = 1_000_000);
    for opcode in [TaOpcode::Read, TaOpcode::Write] {
        for _ in 0..8 {
            let wr = order_of(opcode, &world, segment, 9_000);
            world.post_sound(0, jetty, wr);
        }
    }
    world.run_for(Nanos(5_000_000_000));
    let crs = world.poll(0, jfc);
    assert_eq!(crs.iter().filter(|cr| cr.status == CrStatus::AckTimeout).count(), 16, "{crs:?}");
    assert_eq!(crs.last().map(|cr| cr.status), Some(CrStatus::SuspendDone));
    assert_eq!(world.hosts[0].node.jetty_state(jetty), Some(JettyState::Suspended));
    assert_eq!(world.hosts[0].node.state().channels, 0);
}

#[test]
fn jetties_and_lanes_cost_their_sum() {
    const PEERS: usize = 16;
    let mut world = World::new(PEERS + 1, 1 << 16, 1, |config| config.lanes = 4);
    let jfc = world.jfc(0);
    let jetties: Vec<u32> = (0..1000)
        .map(|i| {
            let service = [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol][i % 3];
            world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) })
        })
        .collect();
    let alone = world.hosts[0].node.state().jetty_bytes;
    for peer in 1..=PEERS {
        let segment = world.import_all(0, peer);
        for _ in 0..4 {
            for jetty in &jetties {
                let wr = write(&world, 0, segment, 0, 8);
                world.post_sound(0, *jetty, wr);
            }
            world.run_for(Nanos(10_000_000));
        }
    }
    let state = world.hosts[0].node.state();
    println!(
        "{} bytes for each of 1000 Jetties, {} for each of {} channels to {PEERS} hosts",
        state.jetty_bytes / 1000,
        state.channel_bytes / state.channels,
        state.channels
    );
    assert_eq!((state.jetties, state.channels, state.requests), (1000, 4 * PEERS, 0));
    assert_eq!(state.jetty_bytes, alone, "Jetties know no lanes");
    assert!(state.channel_bytes / state.channels <= 2048);
}
