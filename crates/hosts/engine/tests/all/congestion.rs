//! ECN and congestion notifications between whole workers over the `mem` port, whose frames are marked by `impair` or by hand.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cc::Params;
use burst_engine::counters::Traffic;
use burst_engine::{CNP_DSCP, CNP_QP_INTERVAL};
use burst_frame::{Ecn, Flow, RxFrame, TxBatch};
use burst_port::impair::Impair;
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use burst_port::{Port, RxSink};
use burst_wire::{Bth, CnpPayload, Opcode, Packet};
use std::net::IpAddr;

const BYTES: u32 = 1 << 20;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn ports() -> (MemPort, MemPort) {
    pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2))
}

/// Two hosts of which the second receives all ECN-capable frames marked.
fn marked_hosts(cc: &str) -> (Host, Host) {
    let (pa, pb) = ports();
    let spec = ImpairSpec { ecn: Ppm(1_000_000), seed: 1, ..ImpairSpec::default() };
    let cc = Params::parse(cc, 1 << 20).expect("a valid specification");
    let host = |port: MemPort| Host::with_cc(Box::new(Impair::new(Box::new(port), spec)), BYTES, cc);
    (host(pa), host(pb))
}

fn connected(a: &mut Host, b: &mut Host) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    (qa, qb)
}

fn traffic(host: &Host, what: Traffic) -> u64 {
    host.worker.counters(DeviceId(0)).traffic(what)
}

fn reason(host: &Host, what: Reason) -> u64 {
    host.worker.counters(DeviceId(0)).reason(what)
}

/// Transfers `bytes` from the first host to the second, or the other way by a READ.
fn transfer(a: &mut Host, b: &mut Host, qa: &mut AppQp, now: &mut Nanos, opcode: WrOpcode, bytes: u32) {
    let (sge, key) = (a.sge(0, bytes), b.key);
    a.post(qa, request(opcode, 1, BASE, key), &[sge]);
    let mut done = None;
    assert!(run(a, b, now, |_, _| {
        done = poll(qa);
        done.is_some()
    }));
    assert_eq!(done.map(|cqe| cqe.status), Some(0));
}

/// Runs both hosts until `done`, for what is still on its way after a transfer.
fn arrive(a: &mut Host, b: &mut Host, now: &mut Nanos, done: impl Fn(&Host, &Host) -> bool) -> bool {
    run(a, b, now, |a, b| done(a, b))
}

#[test]
fn marked_requests_are_answered_by_notifications_that_the_sender_obeys() {
    let (mut a, mut b) = marked_hosts("dcqcn");
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite, 512 << 10);
    assert!(traffic(&b, Traffic::MarkedPackets) > 0, "packets of dcqcn are ECN-capable");
    let sent = traffic(&b, Traffic::CnpsSent);
    assert!(sent > 0 && sent <= now.0 / CNP_QP_INTERVAL.0 + 1, "{sent} notifications in {now:?}");
    assert!(arrive(&mut a, &mut b, &mut now, |a, _| reason(a, Reason::CnpReceived) == sent), "{sent}");
    assert_eq!(traffic(&a, Traffic::CnpsSent), 0, "acknowledgements are not answered");
}

#[test]
fn marked_read_responses_are_answered_by_the_requester() {
    let (mut a, mut b) = marked_hosts("dcqcn");
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaRead, 512 << 10);
    let sent = traffic(&a, Traffic::CnpsSent);
    assert!(sent > 0 && arrive(&mut a, &mut b, &mut now, |_, b| reason(b, Reason::CnpReceived) == sent), "{sent}");
}

#[test]
fn without_a_controller_that_reacts_no_packet_is_ecn_capable() {
    for cc in ["aimd", "none", "swift", "timely"] {
        let (mut a, mut b) = marked_hosts(cc);
        let (mut qa, _qb) = connected(&mut a, &mut b);
        transfer(&mut a, &mut b, &mut qa, &mut Nanos(0), WrOpcode::RdmaWrite, 512 << 10);
        assert_eq!((traffic(&b, Traffic::MarkedPackets), traffic(&b, Traffic::CnpsSent)), (0, 0), "{cc}");
    }
}

/// A sender whose rate was reduced to `rpg_min_rate` = 100 Mbit/s by notifications, with its peer.
fn slowed_hosts() -> (Host, Host, AppQp, AppQp, Nanos) {
    let (mut a, mut b) = marked_hosts("dcqcn:rpg_min_rate=100M,rpg_time_reset=1s,rpg_byte_reset=1GiB");
    let (mut qa, qb) = connected(&mut a, &mut b);
    let mut now = Nanos::from_ms(1);
    // Each transfer is marked, and each notification halves the rate; 100 Gbit/s is 2^10 times the smallest.
    for _ in 0..40 {
        transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite, 16 << 10);
        now = now + CNP_QP_INTERVAL;
    }
    (a, b, qa, qb, now)
}

/// 512 KiB in packets of 1024 bytes, each with 12 bytes of BTH, ICRC and frame around it, last 44 ms at 100 Mbit/s.
#[test]
fn sends_are_paced_by_the_rate() {
    let (mut a, mut b, mut qa, _qb, mut now) = slowed_hosts();
    let begin = now;
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite, 512 << 10);
    let spent = now.since(begin).0 as f64 / 1e6;
    let least = f64::from(512 << 10) * 8.0 / 100e6 * 1e3;
    assert!((least..least * 1.15).contains(&spent), "{spent} ms, {least} ms without headers");
}

#[test]
fn read_responses_are_paced_by_the_responder() {
    let (a, b, qa, mut qb, mut now) = slowed_hosts();
    // The slowed host answers the other's READ: notifications for its responses come to the same path.
    let (mut a, mut b) = (a, b);
    let _keep = qa;
    let begin = now;
    transfer(&mut b, &mut a, &mut qb, &mut now, WrOpcode::RdmaRead, 512 << 10);
    let (spent, least) = (now.since(begin).0 as f64 / 1e6, f64::from(512 << 10) * 8.0 / 100e6 * 1e3);
    assert!((least * 0.95..least * 1.15).contains(&spent), "{spent} ms, {least} ms without headers");
}

#[test]
fn a_slowed_host_acknowledges_at_once() {
    let (mut a, mut b, mut qa, mut qb, mut now) = slowed_hosts();
    // Its own transfer keeps the gate shut.
    let (sge, key) = (a.sge(0, 512 << 10), b.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
    for _ in 0..100 {
        now = now + Nanos(1_000);
        a.worker.run_once(now);
        b.worker.run_once(now);
    }
    let begin = now;
    transfer(&mut b, &mut a, &mut qb, &mut now, WrOpcode::RdmaWrite, 64);
    assert!(now.since(begin) < Nanos::from_us(100), "{:?} for 64 bytes", now.since(begin));
    assert!(poll(&mut qa).is_none(), "the long transfer goes on");
    assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qa).is_some()));
}

#[test]
fn queue_pairs_of_a_slowed_path_take_turns() {
    let (mut a, mut b, mut qa, _qb, mut now) = slowed_hosts();
    let (mut qc, _qd) = connected(&mut a, &mut b);
    let (sge, key) = (a.sge(0, 256 << 10), b.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
    a.post(&mut qc, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
    let begin = now;
    let mut ends = [Nanos(0); 2];
    let mut clock = now;
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        clock = clock + Nanos(1_000);
        for (end, qp) in ends.iter_mut().zip([&mut qa, &mut qc]) {
            if poll(qp).is_some() {
                *end = clock;
            }
        }
        ends.iter().all(|end| end.0 > 0)
    }));
    let both = now.since(begin).0 as f64 / 1e6;
    assert!((41.9..50.0).contains(&both), "{both} ms");
}

/// Destroying, and moving to ERR, what waits for the rate leaves nothing behind.
#[test]
fn queue_pairs_may_end_while_they_wait_for_the_rate() {
    let (mut a, mut b, mut qa, _qb, mut now) = slowed_hosts();
    let (mut qc, _qd) = connected(&mut a, &mut b);
    let (sge, key) = (a.sge(0, 512 << 10), b.key);
    for qp in [&mut qa, &mut qc] {
        a.post(qp, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
    }
    for _ in 0..100 {
        now = now + Nanos(1_000);
        a.worker.run_once(now);
        b.worker.run_once(now);
    }
    assert!(a.fail_qp(now, &qa));
    let begin = now;
    assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qa).is_some()), "flushed");
    assert!(now.since(begin) < Nanos::from_ms(5), "{:?}", now.since(begin));
    assert!(a.worker.destroy_qp(now, qa.qpn, false).is_some());
    assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut qc).is_some()), "the other goes on");
}

/// What a hand-made peer received.
#[derive(Default)]
struct Received(Vec<(Flow, Vec<u8>)>);

impl RxSink for Received {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.0.push((frame.flow, frame.bytes.to_vec()));
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason}");
    }
}

/// A host, and a peer of which each packet is made by hand.
struct HandMade {
    host: Host,
    peer: MemPort,
    now: Nanos,
}

/// Number of the peer's queue pair.
const PEER_QPN: Qpn = Qpn::new(0x1234);

impl HandMade {
    fn new() -> (HandMade, AppQp) {
        let (own, peer) = ports();
        let mut host = Host::new(Box::new(own), BYTES);
        let qp = host.create(QpType::Rc);
        host.connect(&qp, PEER_QPN, peer.caps(), Mtu::B1024);
        (HandMade { host, peer, now: Nanos::from_ms(1) }, qp)
    }

    /// Sends a packet, and returns the notifications that come back.
    fn send(&mut self, src: IpAddr, ecn: Ecn, head: &[u8]) -> Vec<(Flow, Vec<u8>)> {
        let flow = Flow { src, dst: ip(1), tos: 26 << 2 | ecn as u8, ..Flow::default() };
        let mut batch = TxBatch::new(1);
        assert!(batch.push(&flow, head, &[], 0));
        self.peer.tx_burst(self.now, &batch, &mut |reason| panic!("{reason}"));
        self.now = self.now + Nanos(2_000);
        self.host.worker.run_once(self.now);
        self.host.worker.run_once(self.now);
        let mut received = Received::default();
        self.peer.rx_burst(self.now + Nanos(2_000), 64, &mut received);
        received.0.retain(|(_, bytes)| bytes[0] == Opcode::Cnp.number());
        received.0
    }
}

fn head(opcode: Opcode, qpn: Qpn, psn: u32) -> Vec<u8> {
    let mut bytes = vec![0; opcode.head_len()];
    Bth::new(opcode, qpn, burst_base::Psn::new(psn)).emit(&mut bytes);
    bytes
}

#[test]
fn a_notification_has_the_format_of_annex_a17() {
    let (mut hand, qp) = HandMade::new();
    let answers = hand.send(ip(2), Ecn::Ce, &head(Opcode::RcSendOnly, qp.qpn, 0x00ff_fff0));
    let [(flow, bytes)] = &answers[..] else { panic!("{} notifications", answers.len()) };
    assert_eq!((flow.src, flow.dst, flow.tos), (ip(1), ip(2), CNP_DSCP << 2));
    assert_eq!(bytes.len(), Bth::LEN + CnpPayload::LEN);
    // Opcode 0x81; SE, M, padding and version 0; default partition; BECN; the peer's queue pair; PSN 0; 16 reserved bytes.
    assert_eq!(bytes[..12], [0x81, 0, 0xff, 0xff, 0x40, 0, 0x12, 0x34, 0, 0, 0, 0]);
    assert_eq!(bytes[12..], [0; 16]);
    let packet = Packet::parse(bytes).expect("a valid packet");
    assert!(packet.bth.becn && !packet.bth.mig_req);
}

#[test]
fn marks_are_answered_at_most_once_in_the_interval_and_packets_without_mark_never() {
    let (mut hand, qp) = HandMade::new();
    let packet = head(Opcode::RcSendOnly, qp.qpn, 0x00ff_fff0);
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1] {
        assert!(hand.send(ip(2), ecn, &packet).is_empty(), "{ecn:?}");
    }
    let begin = hand.now;
    let mut answered = 0;
    while hand.now < begin + Nanos::from_ms(1) {
        answered += hand.send(ip(2), Ecn::Ce, &packet).len();
    }
    assert!((19..=21).contains(&answered), "{answered} notifications in a millisecond");
    assert_eq!(traffic(&hand.host, Traffic::CnpsSent), answered as u64);
}

#[test]
fn acknowledgements_and_notifications_of_other_hosts_are_not_answered() {
    let (mut hand, qp) = HandMade::new();
    assert!(hand.send(ip(2), Ecn::Ce, &head(Opcode::RcAck, qp.qpn, 0x00ff_fff0)).is_empty());
    let mut cnp = head(Opcode::Cnp, qp.qpn, 0);
    cnp.extend([0; CnpPayload::LEN]);
    assert!(hand.send(ip(2), Ecn::Ce, &cnp).is_empty());
    assert_eq!(reason(&hand.host, Reason::CnpReceived), 1);
    // Another queue pair's number, and another address: the peer's own queue pair must not hear of it.
    assert!(hand.send(ip(2), Ecn::Ce, &head(Opcode::RcSendOnly, Qpn::new(0x77_7700), 0)).is_empty());
    assert_eq!(traffic(&hand.host, Traffic::CnpsSent), 0);
    assert!(hand.send(ip(3), Ecn::Ce, &head(Opcode::RcSendOnly, qp.qpn, 0x00ff_fff0)).is_empty());
    assert_eq!(traffic(&hand.host, Traffic::CnpsSent), 0);
    // The interval was not used up by them.
    assert_eq!(hand.send(ip(2), Ecn::Ce, &head(Opcode::RcSendOnly, qp.qpn, 0x00ff_fff0)).len(), 1);
}

#[test]
fn a_queue_pair_that_does_not_receive_answers_no_mark() {
    let (mut hand, mut qp) = HandMade::new();
    hand.host.reset_qp(Nanos(0), &mut qp);
    assert!(hand.send(ip(2), Ecn::Ce, &head(Opcode::RcSendOnly, qp.qpn, 0x00ff_fff0)).is_empty());
}

/// The one peer of a host.
fn peer_of(host: &Host) -> burst_control::monitor::CcPeer {
    let (mut peers, next) = host.worker.cc_peers(0, 8);
    assert!(peers.len() == 1 && next.is_none(), "{peers:?}");
    peers.remove(0)
}

fn set_cc(host: &mut Host, now: Nanos, cc: &str) {
    host.worker.set_cc(now, Params::parse(cc, 1 << 20).expect("a valid specification").into());
}

/// A queue pair whose transfer has begun goes on under each algorithm, from the closed gate of a rate and from a closed window.
#[test]
fn a_change_of_controller_leaves_no_queue_pair_waiting() {
    let names = ["none", "swift", "dctcp", "timely", "dcqcn-nvidia", "aimd", "dcqcn:rpg_min_rate=100M"];
    let (mut a, mut b, mut qa, _qb, mut now) = slowed_hosts();
    let (mut qc, _qd) = connected(&mut a, &mut b);
    for cc in names {
        let (sge, key) = (a.sge(0, 512 << 10), b.key);
        for qp in [&mut qa, &mut qc] {
            a.post(qp, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
        }
        for _ in 0..20 {
            now = now + Nanos(1_000);
            a.worker.run_once(now);
            b.worker.run_once(now);
        }
        set_cc(&mut a, now, cc);
        assert_eq!(peer_of(&a).queue_pairs, 2);
        for qp in [&mut qa, &mut qc] {
            let mut done = None;
            assert!(run(&mut a, &mut b, &mut now, |_, _| {
                done = poll(qp);
                done.is_some()
            }));
            assert_eq!(done.map(|cqe| cqe.status), Some(0), "{cc}");
        }
        assert_eq!(peer_of(&a).inflight_bytes, 0, "{cc}");
    }
}

#[test]
fn queue_pairs_that_are_connected_become_markable_with_the_controller() {
    let (mut a, mut b) = marked_hosts("aimd");
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite, 512 << 10);
    assert_eq!((traffic(&b, Traffic::MarkedPackets), peer_of(&a).rate_bps), (0, 0));
    set_cc(&mut a, now, "dcqcn:rpg_time_reset=1s,rpg_byte_reset=1GiB");
    assert_eq!(peer_of(&a).rate_bps, 0, "the rate of the link is not paced");
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite, 512 << 10);
    assert!(traffic(&b, Traffic::CnpsSent) > 0);
    let sent = traffic(&b, Traffic::CnpsSent);
    assert!(arrive(&mut a, &mut b, &mut now, |a, _| reason(a, Reason::CnpReceived) == sent));
    let slowed = peer_of(&a);
    assert!(slowed.rate_bps > 0 && slowed.variables.iter().any(|v| v.name == "alpha"), "{slowed:?}");
    // The same algorithm again begins in its first state.
    set_cc(&mut a, now, "dcqcn");
    assert_eq!(peer_of(&a).rate_bps, 0);
}
