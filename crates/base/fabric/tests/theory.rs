//! The network alone against closed formulas: one queue, a queue that is shared fairly, routes that share load.

mod common;

use burst_base::rng::Rng;
use burst_fabric::topology::{FatTree, Speeds};
use burst_fabric::traffic::SizeTable;
use burst_fabric::{Delivery, Network, Topology, Train};
use common::{ALL_100, GBIT, Numbers, US, run, train};

/// A random number in (0, 1).
fn uniform(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Mean time in us that `count` messages of cache-follower's sizes, each one packet, wait for a link of 100 Gbit/s.
fn mean_wait(table: &SizeTable, load: f64, count: u32, seed: u64) -> f64 {
    let mut topology = Topology::pair(Speeds { delay: 0, ..ALL_100 });
    topology.settings.adapter = u64::MAX;
    let (mut network, mut rng) = (Network::new(&topology, 1), Rng::new(seed));
    let mean_gap = table.mean() * 80.0 / load;
    let (mut now, mut began, mut waited, mut out) = (0u64, Vec::new(), 0u64, Vec::new());
    let mut count_waits = |out: &mut Vec<Delivery<Numbers>>, at: u64, began: &[(u64, u64)]| {
        for train in out.drain(..).filter_map(|arrival| arrival.train) {
            let (sent, service) = began[train.body.0[0] as usize];
            waited += at - sent - service;
        }
    };
    for k in 0..count {
        now += (-uniform(&mut rng).ln() * mean_gap) as u64;
        while let Some(at) = network.next_event().filter(|at| *at <= now) {
            network.step(at, &mut out);
            count_waits(&mut out, at, &began);
        }
        let bytes = table.sample(uniform(&mut rng)) as u32;
        began.push((now, u64::from(bytes) * 80));
        network.send(now, train(0, 1, k, 1, bytes)).expect("room");
    }
    while let Some(at) = network.next_event() {
        network.step(at, &mut out);
        count_waits(&mut out, at, &began);
    }
    assert_eq!(network.totals().arrived, u64::from(count));
    waited as f64 / f64::from(count) / 1e6
}

#[test]
fn the_queue_of_poisson_arrivals_is_that_of_pollaczek_and_khinchine() {
    let table = SizeTable::published("cache-follower").expect("a table");
    let service = table.mean() * 80.0 / 1e6;
    for (load, published) in [(0.3, 37.0), (0.5, 86.0), (0.7, 201.0), (0.8, 345.0)] {
        let expected = load / (1.0 - load) * (1.0 + table.cv_squared()) / 2.0 * service;
        assert!((expected / published - 1.0f64).abs() < 0.01, "load {load}: {expected} us, published {published}");
        let runs = [1, 2, 3, 4].map(|seed| mean_wait(&table, load, 100_000, seed));
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        assert!((mean / expected - 1.0).abs() < 0.05, "load {load}: {mean} us, expected {expected}; {runs:?}");
    }
}

/// Packets of a flow that is shared fairly: what is left to send, when it began, and its packets in all.
#[derive(Clone, Copy)]
struct SharedFlow {
    left: u32,
    began: u64,
    packets: u32,
}

/// Mean slowdown of flows of `packets()` packets that come at random times and share a link of 100 Gbit/s behind a switch. Each
/// has one packet in the network at any time and gives the next one when that has arrived: an ideal controller without delay.
/// The queue is then a round robin of packets, which is processor sharing but for half a packet of each flow.
fn mean_slowdown(load: f64, count: u32, mean: f64, packets: &dyn Fn(&mut Rng) -> u32) -> f64 {
    const HOSTS: u32 = 8;
    // The sources' links take a thousandth of a packet's time.
    let speeds = Speeds { host: 100_000 * GBIT, fabric: 0, delay: 0 };
    let mut topology = Topology::star(HOSTS, speeds);
    topology.links[0].rate = 100 * GBIT;
    let (mut network, mut rng) = (Network::new(&topology, 1), Rng::new(9));
    let (bytes, service) = (1_000, 80_000);
    let mean_gap = mean * service as f64 / load;
    let mut flows: Vec<SharedFlow> = Vec::new();
    let (mut next, mut slowdowns, mut ended, mut out) = (0u64, 0.0, 0, Vec::new());
    let packet = |flow: usize| train(1 + flow as u32 % (HOSTS - 1), 0, flow as u32, 1, bytes);
    while ended < count {
        let event = network.next_event().unwrap_or(u64::MAX);
        if flows.len() < count as usize && next <= event {
            let left = packets(&mut rng);
            network.send(next, packet(flows.len())).expect("room");
            flows.push(SharedFlow { left, began: next, packets: left });
            next += (-uniform(&mut rng).ln() * mean_gap) as u64;
            continue;
        }
        network.step(event, &mut out);
        for Train { body: Numbers(number), .. } in out.drain(..).filter_map(|arrival| arrival.train) {
            let flow = &mut flows[number[0] as usize];
            flow.left -= 1;
            if flow.left > 0 {
                network.send(event, packet(number[0] as usize)).expect("room");
                continue;
            }
            ended += 1;
            slowdowns += (event - flow.began) as f64 / (u64::from(flow.packets) * service) as f64;
        }
    }
    assert_eq!(network.totals().buffer_drops, 0);
    slowdowns / f64::from(count)
}

#[test]
fn a_link_shared_fairly_slows_flows_of_any_size_alike() {
    // M/G/1 with processor sharing: 1 / (1 - load), whatever the sizes are: all equal, or one of ten with 238 packets among those
    // of 18.
    let fixed = |_: &mut Rng| 40u32;
    let mixed = |rng: &mut Rng| if uniform(rng) < 0.9 { 18u32 } else { 238 };
    for (load, count) in [(0.3, 5_000), (0.5, 5_000), (0.7, 16_000)] {
        let expected = 1.0 / (1.0 - load);
        for packets in [&fixed as &dyn Fn(&mut Rng) -> u32, &mixed] {
            let slowdown = mean_slowdown(load, count, 40.0, packets);
            assert!((slowdown / expected - 1.0f64).abs() < 0.1, "load {load}: {slowdown}, expected {expected}");
        }
    }
}

/// Checks that numbers of packets are binomial with equal shares: each within five deviations of the mean.
fn check_balance(through: &[u64], sent: u64) {
    let ways = through.len() as f64;
    let mean = sent as f64 / ways;
    let deviation = (mean * (1.0 - 1.0 / ways)).sqrt();
    assert_eq!(through.iter().sum::<u64>(), sent, "{through:?}");
    assert!(through.iter().all(|packets| (*packets as f64 - mean).abs() < 5.0 * deviation), "{through:?}, mean {mean}");
}

/// One packet of each of `count` flows from host 0 to `to`, far enough apart not to meet.
fn send_flows(network: &mut Network<Numbers>, to: u32, count: u32) {
    let begin = network.next_event().unwrap_or(0);
    for k in 0..count {
        let now = begin + u64::from(k) * US / 10;
        network.step(now, &mut Vec::new());
        network.send(now, train(0, to, k, 1, 1_000)).expect("room");
    }
    run(network);
}

#[test]
fn equal_routes_are_used_equally() {
    let mut network = Network::new(&Topology::leaf_spine(16, 2, 4, ALL_100), 7);
    send_flows(&mut network, 15, 4_000);
    check_balance(&network.sent_through("spine"), 4_000);
}

#[test]
fn switches_of_two_tiers_choose_independently() {
    // 8 pods of 4 edge and 4 aggregation switches, 16 core switches: an edge switch chooses one of 4, that one of its 4. With one
    // hash at both tiers, each aggregation switch would use one core switch alone.
    let tree = FatTree { pods: 8, edges: 4, aggregations: 4, cores: 16 };
    let topology = Topology::fat_tree(128, tree, ALL_100);
    for seed in 1..=4 {
        let mut network = Network::new(&topology, seed);
        send_flows(&mut network, 127, 8_000);
        check_balance(&network.sent_through("core"), 8_000);
        let aggregation = network.sent_through("agg");
        check_balance(&aggregation[..4], 8_000);
        check_balance(&aggregation[28..], 8_000);
    }
}

#[test]
fn a_flow_stays_on_its_route() {
    let mut network = Network::new(&Topology::leaf_spine(16, 2, 4, ALL_100), 7);
    for k in 0..200 {
        let packet = Train { flow: 42, ..train(0, 15, k, 1, 1_000) };
        network.send(0, packet).expect("room");
    }
    let numbers: Vec<u32> =
        run(&mut network).iter().filter_map(|(_, a)| a.train.as_ref()).map(|t| t.body.0[0]).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "in the order of sending");
    assert_eq!(network.sent_through("spine").iter().filter(|packets| **packets > 0).count(), 1);
}
