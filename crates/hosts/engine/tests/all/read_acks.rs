//! READ responses between two engines that acknowledge them: the responder's window bounds them, acknowledgements that are lost
//! take time and nothing else, and READs of both ends do not wait for each other.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cc::{Algorithm, Params};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::impair::Impair;
use burst_port::mem::{MemConfig, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use burst_port::{Port, PortCaps, RxSink};
use burst_wire::{Bth, OpKind};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BYTES: u32 = 1 << 20;
const DEVICE: DeviceId = DeviceId(0);

/// What a port has done to acknowledgements of READ responses.
#[derive(Default)]
struct ReadAckTap {
    seen: AtomicU64,
    /// Those to this queue pair are dropped.
    drops: AtomicU32,
}

/// A port that counts acknowledgements of READ responses, and loses those to one queue pair.
struct TappedPort(Box<dyn Port>, Arc<ReadAckTap>);

struct TappedSink<'a>(&'a mut dyn RxSink, &'a ReadAckTap);

impl RxSink for TappedSink<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        let bth = Bth::parse(frame.bytes).expect("a packet");
        if bth.opcode.kind() == OpKind::ReadAck {
            self.1.seen.fetch_add(1, Ordering::Relaxed);
            if bth.dest_qpn.get() == self.1.drops.load(Ordering::Relaxed) {
                return;
            }
        }
        self.0.frame(frame);
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        match Bth::parse(train).map(|bth| bth.opcode.kind()) {
            Ok(OpKind::ReadAck) => {
                let packets = train.chunks_exact(stride).map(|packet| &packet[..stride - burst_wire::ICRC_LEN]);
                packets.for_each(|bytes| self.frame(&RxFrame { flow: *flow, bytes }));
            }
            _ => self.0.train(flow, train, stride),
        }
    }
    fn dropped(&mut self, reason: Reason) {
        self.0.dropped(reason);
    }
}

impl Port for TappedPort {
    fn caps(&self) -> &PortCaps {
        self.0.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.0.rx_burst(now, budget, &mut TappedSink(sink, &self.1))
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.0.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.0.wait_fds()
    }
    fn next_event(&self) -> Nanos {
        self.0.next_event()
    }
}

/// Two hosts that use selective repeat, with this controller and largest window; what the second one's port has seen.
fn hosts(impair: ImpairSpec, cc: Params) -> (Host, Host, Arc<ReadAckTap>) {
    let ip = |last| IpAddr::from([10, 0, 0, last]);
    let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2));
    let tap = Arc::new(ReadAckTap::default());
    let impaired = |port, seed| Box::new(Impair::new(Box::new(port), ImpairSpec { seed, ..impair }));
    let (pa, pb) = (impaired(pa, 1), Box::new(TappedPort(impaired(pb, 2), tap.clone())));
    (Host::with_selective(pa, BYTES, cc), Host::with_selective(pb, BYTES, cc), tap)
}

fn connected(a: &mut Host, b: &mut Host) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    (qa, qb)
}

/// Lets the hellos pass.
fn greet(a: &mut Host, b: &mut Host, now: &mut Nanos) {
    let until = *now + Nanos::from_ms(10);
    while *now < until {
        a.worker.run_once(*now);
        b.worker.run_once(*now);
        *now = *now + Nanos(10_000);
    }
}

fn fill(host: &Host, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect();
    host.memory.write_from(&bytes).expect("local");
    bytes
}

fn contents(host: &Host) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    host.memory.read_to(&mut bytes).expect("local");
    bytes
}

/// Posts READs of 64 KiB that cover the whole memory.
fn post_reads(host: &mut Host, qp: &mut AppQp, rkey: u32) {
    for k in 0..16u64 {
        let sge = host.sge(k << 16, 1 << 16);
        host.post(qp, request(WrOpcode::RdmaRead, k, BASE + (k << 16), rkey), &[sge]);
    }
}

/// Takes completions; true when all 16 have come.
fn is_done(qp: &mut AppQp, done: &mut u64) -> bool {
    while let Some(cqe) = poll(qp) {
        assert_eq!((cqe.wr_id, cqe.status), (*done, WcStatus::Success as u8));
        *done += 1;
    }
    *done == 16
}

/// Bytes in flight and window of the host's only path.
fn flight(host: &Host) -> (u64, u64) {
    let (peers, _) = host.worker.cc_peers(0, 1);
    (peers[0].inflight_bytes, peers[0].window_bytes)
}

fn count(host: &Host, reason: Reason) -> u64 {
    host.worker.counters(DEVICE).reason(reason)
}

#[test]
fn the_responders_window_bounds_responses_whatever_the_controller() {
    for algorithm in Algorithm::ALL {
        let (mut a, mut b, tap) = hosts(ImpairSpec::default(), Params::new(algorithm, 64 << 10));
        let (mut qa, _qb) = connected(&mut a, &mut b);
        let mut now = Nanos(0);
        greet(&mut a, &mut b, &mut now);
        let bytes = fill(&b, 3);
        let rkey = b.key;
        post_reads(&mut a, &mut qa, rkey);
        let (mut done, mut most) = (0, 0);
        assert!(run(&mut a, &mut b, &mut now, |_, b| {
            let (inflight, window) = flight(b);
            most = inflight.max(most);
            assert!(inflight <= window + 1024, "{algorithm}: {inflight} of {window}");
            is_done(&mut qa, &mut done)
        }));
        assert!(most > 0, "{algorithm}: nothing was counted");
        assert!(contents(&a) == bytes, "{algorithm}");
        assert!(tap.seen.load(Ordering::Relaxed) >= 8, "{algorithm}");
        assert_eq!(
            (flight(&a).0, count(&b, Reason::SrReadTimeout), count(&a, Reason::SrProbe)),
            (0, 0, 0),
            "{algorithm}"
        );
        assert!(run(&mut a, &mut b, &mut now, |_, b| flight(b).0 == 0), "{algorithm}: bytes stay in flight");
    }
}

#[test]
fn reads_end_on_a_lossy_path_whatever_the_controller() {
    for algorithm in Algorithm::ALL {
        let spec = ImpairSpec { loss: Ppm(20_000), reorder: Ppm(5_000), ..ImpairSpec::default() };
        let (mut a, mut b, _) = hosts(spec, Params::new(algorithm, 128 << 10));
        let (mut qa, mut qb) = connected(&mut a, &mut b);
        let mut now = Nanos(0);
        greet(&mut a, &mut b, &mut now);
        for round in 0..4 {
            let bytes = fill(&b, round);
            let rkey = b.key;
            post_reads(&mut a, &mut qa, rkey);
            let mut done = 0;
            assert!(run(&mut a, &mut b, &mut now, |_, _| is_done(&mut qa, &mut done)), "{algorithm}: {done}");
            assert!(contents(&a) == bytes, "{algorithm}");
        }
        assert!(run(&mut a, &mut b, &mut now, |a, b| flight(a).0 == 0 && flight(b).0 == 0), "{algorithm}");
        assert!(poll(&mut qb).is_none());
    }
}

#[test]
fn a_queue_pair_whose_acknowledgements_never_come_stalls_neither_itself_nor_others() {
    let cc = Params::new(Algorithm::Aimd, 64 << 10);
    let (mut a, mut b, tap) = hosts(ImpairSpec::default(), cc);
    let (mut qa, qb) = connected(&mut a, &mut b);
    let (mut other, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    tap.drops.store(qb.qpn.get(), Ordering::Relaxed);
    fill(&b, 3);
    let (begin, rkey) = (now, b.key);
    post_reads(&mut a, &mut qa, rkey);
    post_reads(&mut a, &mut other, rkey);
    let (mut done, mut others, mut first) = (0, 0, None);
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        let both = [is_done(&mut qa, &mut done), is_done(&mut other, &mut others)];
        if both[1] {
            first.get_or_insert(());
        }
        both == [true; 2]
    }));
    assert_eq!(count(&b, Reason::SrReadTimeout), 2, "then no acknowledgement is expected");
    assert!(now.since(begin) < Nanos::from_ms(50), "took {:?}", now.since(begin));
    assert!(run(&mut a, &mut b, &mut now, |a, b| flight(a).0 == 0 && flight(b).0 == 0));
    assert_eq!((count(&a, Reason::AckTimeout), count(&b, Reason::TooManyReads)), (0, 0));
    // It speaks again: its responses count again.
    tap.drops.store(Qpn::GSI.get(), Ordering::Relaxed);
    done = 0;
    post_reads(&mut a, &mut qa, rkey);
    let mut most = 0;
    assert!(run(&mut a, &mut b, &mut now, |_, b| {
        most = flight(b).0.max(most);
        is_done(&mut qa, &mut done)
    }));
    assert!(most > 0, "counted");
}

#[test]
fn reads_of_both_ends_that_fill_both_windows_do_not_wait_for_each_other() {
    let (mut a, mut b, _) = hosts(ImpairSpec::default(), Params::new(Algorithm::None, 64 << 10));
    let mut pairs: Vec<_> = (0..4).map(|_| connected(&mut a, &mut b)).collect();
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    let (key_a, key_b) = (a.key, b.key);
    for (qa, qb) in &mut pairs {
        post_reads(&mut a, qa, key_b);
        post_reads(&mut b, qb, key_a);
    }
    let mut done = [[0; 2]; 4];
    let begin = now;
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        let each = pairs.iter_mut().zip(&mut done);
        each.fold(true, |all, ((qa, qb), [da, db])| is_done(qa, da) & is_done(qb, db) & all)
    }));
    for host in [&a, &b] {
        let counts = [Reason::SrReadTimeout, Reason::SrProbe, Reason::SrTimeout].map(|reason| count(host, reason));
        assert_eq!(counts, [0; 3]);
    }
    assert!(now.since(begin) < Nanos::from_ms(20), "took {:?}", now.since(begin));
    assert!(run(&mut a, &mut b, &mut now, |a, b| flight(a).0 == 0 && flight(b).0 == 0));
}
