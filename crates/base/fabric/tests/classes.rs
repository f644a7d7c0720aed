//! Classes: strict priority, deficit round robin, marks and flow control of each class, storms of pauses.

mod common;

use burst_fabric::{CLASSES, ClassSettings, Delivery, HostId, Network, Switches, Topology, Train};
use common::{ALL_100, Numbers, US, run, train};
use proptest::prelude::*;
use std::collections::VecDeque;

fn of_class(class: u8, train: Train<Numbers>) -> Train<Numbers> {
    Train { class, ..train }
}

/// Classes with weights, the others of strict priority.
fn weights(of: &[(usize, u64)]) -> [ClassSettings; CLASSES] {
    let mut classes = [ClassSettings::default(); CLASSES];
    of.iter().for_each(|(class, weight)| classes[*class].weight = *weight);
    classes
}

/// A pair whose host 0 has all of `trains` in its adapter when it begins to send; class and bytes in the order of arrival.
fn order(classes: [ClassSettings; CLASSES], trains: &[(u8, u32)]) -> Vec<(u8, u64)> {
    let mut topology = Topology::pair(ALL_100);
    topology.settings = Switches { adapter: u64::MAX, classes, ..Switches::default() };
    let mut network = Network::new(&topology, 1);
    network.stall_nic(0, HostId(0), US);
    for (k, (class, bytes)) in trains.iter().enumerate() {
        network.send(0, of_class(*class, train(0, 1, k as u32, 1, *bytes))).expect("room");
    }
    let arrivals = run(&mut network);
    arrivals.iter().filter_map(|(_, a)| a.train.as_ref()).map(|train| (train.class, train.bytes())).collect()
}

#[test]
fn the_highest_class_goes_first() {
    let order = order(weights(&[]), &[(0, 900), (5, 900), (0, 900), (7, 900), (5, 900)]);
    assert_eq!(order.iter().map(|(class, _)| *class).collect::<Vec<_>>(), [7, 5, 5, 0, 0]);
}

#[test]
fn classes_with_weights_share_what_strict_priority_leaves() {
    // Packets of different sizes, so that a round robin of packets would give other shares; weights below and above a packet.
    let sizes = [(1u8, 1_500), (2, 400), (4, 4_000)];
    let mut trains: Vec<(u8, u32)> = Vec::new();
    for (class, bytes) in sizes {
        trains.extend(std::iter::repeat_n((class, bytes), 2_000_000 / bytes as usize));
    }
    trains.extend([(0, 1_000); 10]);
    let order = order(weights(&[(1, 1_000), (2, 2_000), (4, 4_000)]), &trains);
    assert!(order[..10].iter().all(|(class, _)| *class == 0), "strict priority first, even of the lowest class");
    // The first 2 MB: no queue is empty. Each is off by a train and a weight at most.
    let (mut sent, mut total) = ([0u64; CLASSES], 0);
    for (class, bytes) in order[10..].iter().take_while(|(_, bytes)| {
        total += bytes;
        total < 2_000_000
    }) {
        sent[usize::from(*class)] += bytes;
    }
    for (class, part) in [(1, 1), (2, 2), (4, 4)] {
        let expected = 2_000_000 * part / 7;
        assert!(sent[class].abs_diff(expected) <= 8_000, "class {class}: {} bytes, expected {expected}", sent[class]);
    }
}

/// Deficit round robin as it is described: one visit after the other.
fn reference(weights: &[(usize, u64)], trains: &[(u8, u32)]) -> Vec<(u8, u64)> {
    let queue = |class| trains.iter().filter(|(of, _)| *of == class).map(|(_, bytes)| u64::from(*bytes)).collect();
    let mut queues: Vec<(u8, u64, u64, VecDeque<u64>)> =
        weights.iter().map(|(class, weight)| (*class as u8, *weight, 0, queue(*class as u8))).collect();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.0));
    let mut order = Vec::new();
    while queues.iter().any(|queue| !queue.3.is_empty()) {
        for (class, weight, deficit, queue) in &mut queues {
            *deficit += *weight;
            while let Some(bytes) = queue.front().copied().filter(|bytes| bytes <= deficit) {
                *deficit -= bytes;
                queue.pop_front();
                order.push((*class, bytes));
            }
            if queue.is_empty() {
                *deficit = 0;
            }
        }
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Skipping rounds changes nothing.
    #[test]
    fn deficit_round_robin_is_that_of_its_description(
        weight in prop::collection::vec(1u64..5_000, 3),
        trains in prop::collection::vec((0u8..3, 64u32..9_000), 1..60),
    ) {
        let of: Vec<(usize, u64)> = weight.iter().copied().enumerate().collect();
        prop_assert_eq!(order(weights(&of), &trains), reference(&of, &trains));
    }
}

/// Two hosts send to a third one at the same time, each `packets` packets of 1,000 bytes in each of two classes.
fn two_to_one(classes: [ClassSettings; CLASSES], packets: u32) -> (Network<Numbers>, Vec<(u64, Delivery<Numbers>)>) {
    let mut topology = Topology::star(3, ALL_100);
    topology.settings = Switches { buffer: 200_000, alpha: 0.5, adapter: u64::MAX, classes, ..Switches::default() };
    let mut network = Network::new(&topology, 1);
    for k in 0..packets {
        for (from, class) in [(0, 0), (1, 0), (0, 3), (1, 3)] {
            network.send(0, of_class(class, train(from, 2, k, 1, 1_000))).expect("room");
        }
    }
    let arrivals = run(&mut network);
    (network, arrivals)
}

fn packets_of(arrivals: &[(u64, Delivery<Numbers>)], keep: impl Fn(&Train<Numbers>) -> bool) -> u64 {
    arrivals.iter().filter_map(|(_, a)| a.train.as_ref()).filter(|t| keep(t)).map(|t| u64::from(t.count)).sum()
}

#[test]
fn marks_are_those_of_the_class() {
    let mut classes = weights(&[(0, 10_000), (3, 10_000)]);
    (classes[3].ecn_min, classes[3].ecn_max) = (10_000, 10_000);
    let (network, arrivals) = two_to_one(classes, 20);
    assert_eq!(packets_of(&arrivals, |train| train.marked && train.class != 3), 0);
    let marked = packets_of(&arrivals, |train| train.marked);
    assert!(marked > 0 && network.totals().marks == marked, "{marked}");
}

#[test]
fn red_marks_by_the_length_of_the_queue() {
    let class = ClassSettings { ecn_min: 10_000, ecn_max: 30_000, ecn_share: 0.2, ..ClassSettings::default() };
    let share = |queued| class.mark_share(queued, 2_000);
    assert_eq!((share(8_000), share(9_000)), (None, Some(0.0)));
    // Half-way between, in the middle of the train; and from the upper end on.
    assert_eq!((share(19_000), share(29_999).map(|s| s < 0.21), share(30_000)), (Some(0.1), Some(true), Some(1.0)));
}

#[test]
fn flow_control_of_a_class_leaves_the_others() {
    let mut classes = weights(&[(0, 10_000), (3, 10_000)]);
    classes[3].pfc = true;
    let (network, arrivals) = two_to_one(classes, 2_000);
    let totals = *network.totals();
    let [lossy, lossless] = [0, 3].map(|class| packets_of(&arrivals, |train| train.class == class));
    assert_eq!(lossless, 4_000, "{totals:?}");
    assert!(lossy < 4_000 && totals.buffer_drops == 4_000 - lossy && totals.pauses > 0, "{totals:?}");
}

/// Host 2's adapter pauses class 3 from 10 us to 510 us; both other hosts send to it in classes 0 and 3, and host 1 to host 0.
fn storm(watchdog: u64) -> (Network<Numbers>, Vec<(u64, Delivery<Numbers>)>) {
    let mut topology = Topology::star(3, ALL_100);
    let classes = [ClassSettings { pfc: true, ..ClassSettings::default() }; CLASSES];
    topology.settings = Switches { buffer: 400_000, watchdog, adapter: u64::MAX, classes, ..Switches::default() };
    let mut network = Network::new(&topology, 1);
    let (mut all, mut out) = (Vec::new(), Vec::new());
    for k in 0..700u64 {
        if k == 10 || k == 510 {
            network.set_pause_storm(k * US, HostId(2), 3, k == 10);
        }
        let number = k as u32 * 8;
        for (from, to, class) in [(0, 2, 0), (1, 2, 3), (1, 0, 3)] {
            network.send(k * US, of_class(class, train(from, to, number, 2, 1_000))).expect("room");
        }
        network.step((k + 1) * US - 1, &mut out);
        network.check_conservation().expect("every packet is somewhere");
        all.extend(out.drain(..).map(|arrival| (k * US, arrival)));
    }
    all.extend(run(&mut network));
    (network, all)
}

#[test]
fn a_watchdog_ends_a_storm_of_pauses() {
    // Of each flow, packets that arrived while the storm lasted: 2 each microsecond.
    let during = |arrivals: &[(u64, Delivery<Numbers>)], from: u32, to: u32| {
        let in_time = |(at, _): &&(u64, Delivery<Numbers>)| (15 * US..510 * US).contains(at);
        let trains = arrivals.iter().filter(in_time).filter_map(|(_, a)| a.train.as_ref());
        trains.filter(|t| (t.from, t.to) == (HostId(from), HostId(to))).map(|t| t.count).sum::<u32>()
    };
    let (network, arrivals) = storm(0);
    assert_eq!((network.totals().pause_storms, network.totals().watchdog_drops), (0, 0));
    assert_eq!(during(&arrivals, 1, 2), 0, "class 3 is paused");
    assert!(during(&arrivals, 0, 2) > 980, "class 0 is not");
    let blocked = during(&arrivals, 1, 0);
    assert!(blocked < 700, "host 1 was paused for what waits for host 2: {blocked} packets to host 0");
    assert_eq!(network.totals().arrived, 700 * 6, "nothing is lost, all of it late");

    let (network, arrivals) = storm(50 * US);
    let totals = *network.totals();
    assert_eq!((totals.pause_storms, totals.arrived + totals.watchdog_drops), (1, 700 * 6), "{totals:?}");
    // What came in 500 us, less what had no room and waited in host 1.
    assert!((900..=1_010).contains(&totals.watchdog_drops), "{totals:?}");
    assert!(during(&arrivals, 1, 0) > 980, "host 0 gets all of its packets: {}", during(&arrivals, 1, 0));
    let after = arrivals.iter().filter(|(at, a)| *at > 515 * US && a.train.as_ref().is_some_and(|t| t.class == 3));
    assert!(after.count() > 2 * 150, "class 3 is carried again when host 2 resumes it");
}

/// Five switches in a ring with two hosts each. Each host sends two switches further: every link of the ring carries two
/// sources' packets for the next switch and for the one after, and a paused link can wait for itself around the ring.
fn deadlock(watchdog: u64) -> Network<Numbers> {
    let mut topology = Topology::ring(10, 5, ALL_100);
    let classes = [ClassSettings { pfc: true, ..ClassSettings::default() }; CLASSES];
    topology.settings =
        Switches { buffer: 60_000, alpha: 0.25, watchdog, adapter: u64::MAX, classes, ..Switches::default() };
    let mut network = Network::new(&topology, 1);
    for k in 0..500 {
        for from in 0..10 {
            network.send(0, train(from, (from + 4) % 10, k, 1, 1_000)).expect("room");
        }
    }
    run(&mut network);
    network
}

#[test]
fn a_watchdog_ends_a_deadlock_of_pauses() {
    let stuck = deadlock(0);
    let totals = *stuck.totals();
    // Nothing will happen any more, and most packets have not arrived.
    assert!(stuck.next_event().is_none() && totals.arrived < 2_500 && totals.buffer_drops == 0, "{totals:?}");
    let freed = deadlock(100 * US);
    let totals = *freed.totals();
    assert_eq!((totals.arrived + totals.watchdog_drops, totals.buffer_drops), (5_000, 0), "{totals:?}");
    assert!(totals.pause_storms > 0 && totals.arrived > 3 * stuck.totals().arrived, "{totals:?}");
}

#[test]
fn a_pause_shorter_than_the_watchdog_is_none_of_its_business() {
    let mut topology = Topology::star(2, ALL_100);
    topology.settings.watchdog = 50 * US;
    let mut network = Network::new(&topology, 1);
    for k in 0..4u64 {
        network.set_pause_storm(k * 60 * US, HostId(1), 0, true);
        network.send(k * 60 * US, train(0, 1, k as u32, 1, 1_000)).expect("room");
        network.set_pause_storm(k * 60 * US + 45 * US, HostId(1), 0, false);
        network.step((k + 1) * 60 * US - 1, &mut Vec::new());
    }
    assert_eq!((network.totals().arrived, network.totals().pause_storms), (4, 0));
}
