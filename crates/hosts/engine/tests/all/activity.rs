//! What a worker says of itself and of its queue pairs.

use crate::harness::{BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpState, QpType, WrOpcode};
use burst_base::{Nanos, Reason};
use burst_control::activity::WORK_HISTOGRAMS;
use burst_engine::counters::Traffic;
use burst_port::mem::{MemConfig, pair};
use std::net::IpAddr;

#[test]
fn a_page_looks_at_a_part_of_the_table() {
    let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let (pa, _pb) = pair(MemConfig::default(), ip_a, ip_b);
    let mut host = Host::new(Box::new(pa), 1 << 16);
    let queue_pairs: Vec<_> = (0..1500).map(|_| host.create(QpType::Ud)).collect();
    let (last, others) = queue_pairs.split_last().expect("some");
    for qp in others {
        host.worker.destroy_qp(Nanos(0), qp.qpn, false).expect("it exists");
    }
    assert_eq!(host.worker.activity().queue_pairs, 1);
    let (page, next) = host.worker.queue_pair_page(0, 10);
    assert!(page.is_empty(), "far from the only one");
    let (page, end) = host.worker.queue_pair_page(next.expect("more to look at"), 10);
    assert_eq!((page.len(), page[0].qpn, end), (1, last.qpn.get(), None));
}

#[test]
fn a_queue_pair_shows_its_requests_its_peer_and_what_its_packets_met() {
    let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip_a, ip_b);
    let (mut a, mut b) = (Host::new(Box::new(pa), 1 << 16), Host::new(Box::new(pb), 1 << 16));
    let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let unused = a.create(QpType::Ud);
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    let mut now = Nanos(0);
    for _ in 0..3 {
        let sge = a.sge(0, 3000);
        a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]);
        assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qa).is_some()));
    }
    let (page, next) = a.worker.queue_pair_page(0, 10);
    assert_eq!((page.len(), next), (2, None));
    let shown = page.iter().find(|qp| qp.qpn == qa.qpn.get()).expect("it is listed");
    assert_eq!((shown.requests, shown.state, shown.qp_type), (3, QpState::Rts, QpType::Rc));
    assert_eq!((shown.peer, shown.peer_qpn, shown.mtu, shown.inflight_bytes), (ip_b, qb.qpn.get(), 1024, 0));
    let idle = page.iter().find(|qp| qp.qpn == unused.qpn.get()).expect("it is listed");
    assert_eq!((idle.requests, idle.peer_qpn, idle.counts.len()), (0, 0, 0));
    // A page of one, and the other from where it says.
    let (first, next) = a.worker.queue_pair_page(0, 1);
    let (second, end) = a.worker.queue_pair_page(next.expect("one more"), 1);
    assert_eq!((first.len(), second.len(), end), (1, 1, None));
    assert!(first[0].qpn != second[0].qpn);
    let activity = a.worker.activity();
    assert_eq!((activity.queue_pairs, activity.paths), (2, 1));
    assert_eq!(activity.traffic[0][Traffic::Completions as usize], 3);
    // A peer that is gone leaves its mark.
    b.worker.destroy_qp(now, qb.qpn, false).expect("it exists");
    let sge = a.sge(0, 64);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]);
    assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qa).is_some()));
    let (page, _) = a.worker.queue_pair_page(0, 10);
    let failed = page.iter().find(|qp| qp.qpn == qa.qpn.get()).expect("it is listed");
    assert_eq!((failed.state, failed.requests), (QpState::Err, 4));
    assert!(failed.counts.iter().any(|(reason, count)| *reason == Reason::AckTimeout.index() as u16 && *count > 0));
}

/// Messages that are sent one by one, each in a turn with all of its packets. One turn of 16 is measured, the first one is.
#[test]
fn histograms_have_messages_round_trips_waits_and_trains() {
    let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let latency = Nanos(20_000);
    let (pa, pb) = pair(MemConfig { latency, ..MemConfig::default() }, ip_a, ip_b);
    let (mut a, mut b) = (Host::new(Box::new(pa), 1 << 16), Host::new(Box::new(pb), 1 << 16));
    let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    let before: Vec<u64> = a.worker.histograms().iter().map(|histogram| histogram.count()).collect();
    assert_eq!(before, [0; WORK_HISTOGRAMS.len()]);
    let (mut now, messages) = (Nanos(0), 320);
    for _ in 0..messages {
        let sge = a.sge(0, 3000);
        a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]);
        assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qa).is_some()));
    }
    let [message, round_trip, queueing, train] = &a.worker.histograms()[..] else { panic!("four") };
    let measured = message.count();
    assert_eq!(measured, messages / 16);
    let round_trip_ns = 2 * latency.0;
    // Stamps have 64 ns.
    assert!(message.sum + 64 * measured >= measured * round_trip_ns, "{message:?}");
    assert!(message.sum <= now.0, "one after the other");
    assert!(round_trip.count() > 0 && round_trip.sum >= round_trip.count() * round_trip_ns, "{round_trip:?}");
    assert_eq!((train.count(), train.sum), (measured, 3 * measured), "three packets each");
    assert_eq!((queueing.count(), queueing.sum), (measured, 0), "nothing else wants a turn");
    let [message, _, _, train] = &b.worker.histograms()[..] else { panic!("four") };
    assert_eq!((message.count(), train.count()), (0, measured), "acknowledgements only");
}
