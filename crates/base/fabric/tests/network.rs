//! The network against what can be computed: times, conservation, flow control, marks, routes, determinism.

mod common;

use burst_fabric::topology::{FatTree, Speeds};
use burst_fabric::{CLASSES, ClassSettings, Delivery, HostId, LinkFaults, Network, Switches, Topology};
use common::{ALL_100, GBIT, Numbers, US, run, train};
use proptest::prelude::*;

/// The time of a packet there and of one back.
fn round_trip(topology: &Topology, to: u32, bytes: u32) -> u64 {
    let mut network = Network::new(topology, 1);
    network.send(0, train(0, to, 0, 1, bytes)).expect("room");
    let there = run(&mut network)[0].0;
    network.send(there, train(to, 0, 0, 1, 1)).expect("room");
    run(&mut network)[0].0
}

#[test]
fn base_round_trips_are_those_of_publications() {
    // 128 hosts under 8 leaves: 4 links of 1 us each way, and 1,000 bytes of 80 ns on each; the answer's byte takes 80 ps.
    let topology = Topology::leaf_spine(128, 8, 8, ALL_100);
    assert_eq!(round_trip(&topology, 127, 1_000) - 4 * 80, 8_320_000);
    // k = 8: 6 links. A bandwidth-delay product of 156,000 bytes at 100 Gbit/s is 12.48 us.
    let k8 = FatTree { pods: 8, edges: 4, aggregations: 4, cores: 16 };
    assert_eq!(round_trip(&Topology::fat_tree(128, k8, ALL_100), 127, 1_000) - 6 * 80, 12_480_000);
}

#[test]
fn a_train_takes_no_longer_than_its_packets_one_by_one() {
    let speeds = Speeds { host: 100 * GBIT, fabric: 400 * GBIT, delay: US };
    let topology = Topology::leaf_spine(4, 2, 1, speeds);
    for count in [1, 2, 16, 60] {
        let mut whole = Network::new(&topology, 1);
        whole.send(0, train(0, 3, 0, count, 1_000)).expect("room");
        let mut single = Network::new(&topology, 1);
        (0..count).for_each(|k| single.send(0, train(0, 3, k, 1, 1_000)).expect("room"));
        let last = |network: &mut Network<Numbers>| run(network).last().expect("an arrival").0;
        assert_eq!(last(&mut whole), last(&mut single), "{count} packets");
    }
}

#[test]
fn what_waits_at_a_stalled_adapter_keeps_its_order_if_another_stall_follows() {
    let arrivals = |second: u64| {
        let mut network = Network::new(&Topology::pair(ALL_100), 1);
        network.stall_nic(0, HostId(1), 5 * US);
        network.send(0, train(0, 1, 0, 1, 1_000)).expect("room");
        let mut out = Vec::new();
        network.step(3 * US, &mut out);
        network.stall_nic(3 * US, HostId(1), second);
        network.send(3 * US, train(0, 1, 1, 1, 1_000)).expect("room");
        assert!(out.is_empty());
        let came = run(&mut network);
        came.into_iter().map(|(at, a)| (at, a.train.expect("a train").body.0)).collect::<Vec<_>>()
    };
    assert_eq!(arrivals(8 * US), [(8 * US, vec![0]), (8 * US, vec![1])]);
    assert_eq!(arrivals(4 * US), [(5 * US, vec![0]), (5 * US, vec![1])], "the first one is longer");
}

#[test]
fn a_bottleneck_carries_its_rate() {
    let mut network = Network::new(&Topology::star(4, ALL_100), 1);
    for from in 0..3 {
        (0..10).for_each(|k| network.send(0, train(from, 3, k * 8, 8, 1_000)).expect("room"));
    }
    // 240 packets of 80 ns, after the first has come to the switch; two links of 1 us.
    assert_eq!(run(&mut network).last().expect("an arrival").0, 240 * 80_000 + 80_000 + 2 * US);
}

#[test]
fn flow_control_loses_nothing_with_headroom_and_loses_without() {
    let lost = |headroom: u64, pfc: bool| {
        let mut topology = Topology::star(9, ALL_100);
        let classes = [ClassSettings { pfc, ..ClassSettings::default() }; CLASSES];
        topology.settings =
            Switches { buffer: 200_000, alpha: 0.125, headroom, adapter: 8 << 20, classes, ..Switches::default() };
        let mut network = Network::new(&topology, 1);
        for from in 0..8 {
            (0..500).for_each(|k| network.send(0, train(from, 8, k * 4, 4, 1_000)).expect("room"));
        }
        let arrived: u32 = run(&mut network).iter().filter_map(|(_, a)| a.train.as_ref()).map(|t| t.count).sum();
        assert_eq!(u64::from(arrived) + network.totals().buffer_drops, 8 * 2_000);
        (network.totals().buffer_drops, network.totals().pauses > 0)
    };
    // What comes until a pause has effect: twice 100 Gbit/s · 1 us, the train that is being sent, the one that did not fit.
    let enough = 2 * 12_500 + 2 * 4_000;
    assert_eq!(lost(enough, true), (0, true));
    assert!(lost(enough / 2, true).0 > 0);
    let (drops, pauses) = lost(enough, false);
    assert!(drops > 0 && !pauses);
}

#[test]
fn a_step_marks_what_enters_a_longer_queue() {
    let mut topology = Topology::star(3, ALL_100);
    topology.settings.classes[0] = ClassSettings { ecn_min: 50_000, ecn_max: 50_000, ..ClassSettings::default() };
    let mut network = Network::new(&topology, 1);
    for from in 0..2 {
        (0..100).for_each(|k| network.send(0, train(from, 2, k, 1, 1_000)).expect("room"));
    }
    let marked: Vec<bool> = run(&mut network).iter().filter_map(|(_, a)| a.train.as_ref()).map(|t| t.marked).collect();
    // The queue grows by a packet with every two that come: one of the last before the 100th is the 51st in it, the one that is
    // being sent included.
    let unmarked = marked.iter().take_while(|marked| !**marked).count();
    assert!((95..=100).contains(&unmarked) && marked[unmarked..].iter().all(|marked| *marked), "{unmarked}");
}

#[test]
fn an_adapter_that_is_cleared_loses_what_waits_in_it() {
    let mut network = Network::new(&Topology::pair(ALL_100), 1);
    (0..10).for_each(|k| network.send(0, train(0, 1, k, 2, 1_000)).expect("room"));
    network.clear_adapter(HostId(0));
    assert_eq!(network.room(HostId(0)), (1 << 20) - 2_000, "what is being sent stays");
    assert_eq!((run(&mut network).len(), network.totals().losses), (1, 18));
    network.send(0, train(0, 1, 50, 2, 1_000)).expect("room");
    assert_eq!(run(&mut network).len(), 1);
}

#[test]
fn impairments_have_their_frequency() {
    let mut topology = Topology::pair(ALL_100);
    topology.faults = LinkFaults { loss: 0.01, reorder: 0.02, duplicate: 0.03, corrupt: 0.04, ..LinkFaults::default() };
    let mut network = Network::new(&topology, 3);
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for k in 0..10_000u64 {
        network.step(k * 2 * US, &mut out);
        all.extend(out.drain(..).map(|arrival| (0, arrival)));
        network.send(k * 2 * US, train(0, 1, k as u32 * 10, 10, 1_000)).expect("room");
    }
    all.extend(run(&mut network));
    let packets: u32 =
        all.iter().filter(|(_, a)| a.corrupted).filter_map(|(_, a)| a.train.as_ref()).map(|t| t.count).sum();
    let totals = *network.totals();
    let near = |value: u64, mean: f64| (value as f64 - mean).abs() < 5.0 * mean.sqrt();
    assert!(near(totals.losses, 1_000.0) && near(totals.duplicated, 2_970.0), "{totals:?}");
    assert!(near(u64::from(packets), 4_000.0 * 0.99 * 1.03), "{packets}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Nothing vanishes, nothing comes from nowhere, and a seed gives the same run.
    #[test]
    fn packets_are_conserved_and_runs_repeat(
        seed: u64,
        sends in prop::collection::vec((0u32..8, 0u32..8, 1u32..40, 64u32..4_200, 0u64..200), 1..80),
        loss in 0.0..0.1f64,
        pfc: bool,
        buffer in 20_000u64..400_000,
    ) {
        let trace = || {
            let mut topology = Topology::leaf_spine(8, 2, 2, ALL_100);
            topology.faults = LinkFaults { loss, reorder: loss, duplicate: loss, corrupt: loss, ..LinkFaults::default() };
            let class = ClassSettings { pfc, ecn_min: 20_000, ecn_max: 60_000, ..ClassSettings::default() };
            topology.settings = Switches { buffer, alpha: 0.5, classes: [class; CLASSES], ..Switches::default() };
            let mut network = Network::new(&topology, seed);
            let (mut now, mut out) = (0, Vec::new());
            for (k, (from, to, count, stride, gap)) in sends.iter().enumerate() {
                now += gap * US / 10;
                network.step(now, &mut out);
                if from != to {
                    let _ = network.send(now, train(*from, *to, k as u32 * 100, *count, *stride));
                }
                network.check_conservation().expect("every packet is somewhere");
            }
            let early = out.into_iter().map(|arrival| (now, arrival));
            let all: Vec<_> = early.chain(run(&mut network)).collect();
            let numbers = |a: &Delivery<Numbers>| a.train.as_ref().map(|t| (t.to, t.body.0.clone(), t.marked, t.bytes()));
            all.iter().map(|(at, a)| (*at, a.host, numbers(a), a.corrupted)).collect::<Vec<_>>()
        };
        prop_assert_eq!(trace(), trace());
    }
}
