//! Two engines agree on selective repeat by a hello and use it over links that lose, repeat and reorder; others are never wrong
//! about their peer for long.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason};
use burst_cc::{Algorithm, Params};
use burst_control::events::EventQueue;
use burst_frame::{Flow, TxBatch};
use burst_gsi::GSI_QKEY;
use burst_port::Port;
use burst_port::impair::Impair;
use burst_port::mem::{Hub, MemConfig, MemPort, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use burst_shm::{Cqe, SendWqe};
use burst_wire::hello::Hello;
use burst_wire::{Bth, Deth, HeadBuf, Opcode};
use std::net::IpAddr;
use std::sync::Arc;

const BYTES: u32 = 1 << 20;
const DEVICE: DeviceId = DeviceId(0);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hosts(impair: ImpairSpec, selective: [bool; 2]) -> (Host, Host) {
    let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2));
    hosts_at(pa, pb, impair, selective)
}

fn hosts_at(pa: MemPort, pb: MemPort, impair: ImpairSpec, selective: [bool; 2]) -> (Host, Host) {
    let host = |port, seed, selective| {
        let port: Box<dyn Port> = Box::new(Impair::new(Box::new(port), ImpairSpec { seed, ..impair }));
        let cc = Params::new(Algorithm::None, 256 << 10);
        if selective { Host::with_selective(port, BYTES, cc) } else { Host::with_cc(port, BYTES, cc) }
    };
    (host(pa, 1, selective[0]), host(pb, 2, selective[1]))
}

fn connected(a: &mut Host, b: &mut Host) -> (AppQp, AppQp) {
    connected_as(a, b, [QpType::Rc; 2])
}

fn connected_as(a: &mut Host, b: &mut Host, qp_types: [QpType; 2]) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(qp_types[0]), b.create(qp_types[1]));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    (qa, qb)
}

/// Lets the hellos pass: a silent peer is given up after five seconds.
fn greet(a: &mut Host, b: &mut Host, now: &mut Nanos) {
    let until = *now + Nanos::from_ms(7_000);
    while *now < until {
        a.worker.run_once(*now);
        b.worker.run_once(*now);
        let next = a.worker.next_deadline().min(b.worker.next_deadline());
        *now = next.clamp(*now + Nanos(1_000), *now + Nanos::from_ms(100));
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

/// Moves a mebibyte in requests of 64 KiB, and returns how long it took.
fn transfer(a: &mut Host, b: &mut Host, qp: &mut AppQp, now: &mut Nanos, opcode: WrOpcode) -> Nanos {
    let (rkey, begin) = (b.key, *now);
    for k in 0..16u64 {
        let sge = a.sge(k << 16, 1 << 16);
        a.post(qp, request(opcode, k, BASE + (k << 16), rkey), &[sge]);
    }
    let mut done = 0;
    let all = run(a, b, now, |_, _| {
        while let Some(cqe) = poll(qp) {
            assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success as u8));
            done += 1;
        }
        done == 16
    });
    assert!(all, "only {done} completions");
    now.since(begin)
}

fn count(host: &Host, reason: Reason) -> u64 {
    host.worker.counters(DEVICE).reason(reason)
}

#[test]
fn two_engines_agree_by_a_hello_and_repair_only_what_is_lost() {
    let spec = ImpairSpec { loss: Ppm(10_000), ..ImpairSpec::default() };
    let (mut a, mut b) = hosts(spec, [true, true]);
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    for (round, opcode) in [(1, WrOpcode::RdmaWrite), (2, WrOpcode::RdmaRead)].into_iter().cycle().take(8) {
        let (from, to) = if opcode == WrOpcode::RdmaWrite { (&a, &b) } else { (&b, &a) };
        let bytes = fill(from, round);
        fill(to, 0);
        transfer(&mut a, &mut b, &mut qa, &mut now, opcode);
        let to = if opcode == WrOpcode::RdmaWrite { &b } else { &a };
        assert!(contents(to) == bytes, "{opcode:?}");
    }
    assert_eq!((count(&a, Reason::SequenceNakReceived), count(&b, Reason::SequenceGap)), (0, 0), "no go-back-N");
    let repeated = count(&a, Reason::SrRepeated);
    assert!(count(&b, Reason::SrEarly) > 100 && (20..200).contains(&repeated), "{repeated} of about 41 lost");
}

#[test]
fn loss_costs_less_than_a_third_of_the_time_that_go_back_n_needs() {
    let time = |loss, selective| {
        let (mut a, mut b) = hosts(ImpairSpec { loss: Ppm(loss), ..ImpairSpec::default() }, [selective; 2]);
        let (mut qa, _qb) = connected(&mut a, &mut b);
        let mut now = Nanos(0);
        greet(&mut a, &mut b, &mut now);
        fill(&a, 1);
        let time = (0..8).map(|_| transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite).0).sum::<u64>();
        let noted = [Reason::SrRepeated, Reason::SrProbe, Reason::SrTimeout, Reason::SrRecovery, Reason::AckTimeout];
        println!("loss {loss}: {:?}", noted.map(|reason| (reason.name(), count(&a, reason))));
        time
    };
    let [clean, lossy] = [0, 10_000].map(|loss| time(loss, true));
    let back = time(10_000, false);
    println!(
        "8 MiB in us of simulated time: {} without loss, {} with 1 %, go-back-N {}",
        clean / 1000,
        lossy / 1000,
        back / 1000
    );
    assert!(3 * lossy < back, "{clean} {lossy} {back}");
}

#[test]
fn xrc_queue_pairs_use_the_family_as_well() {
    let (mut a, mut b) = hosts(ImpairSpec { loss: Ppm(10_000), ..ImpairSpec::default() }, [true, true]);
    let (mut qa, qb) = connected_as(&mut a, &mut b, [QpType::XrcSend, QpType::XrcRecv]);
    let (cq, mut completions) = b.create_cq(128, Arc::new(EventQueue::default()));
    let mut queue = b.add_xrc_srq(3, 64, cq);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    let bytes = fill(&a, 7);
    for k in 0..64 {
        queue.write(k, &[b.sge(k << 14, 1 << 14)]).expect("room");
        let sge = a.sge(k << 14, 1 << 14);
        a.post(&mut qa, SendWqe { remote_qpn: 3, ..request(WrOpcode::Send, k, 0, 0) }, &[sge]);
    }
    let _ = queue.post();
    let (mut sent, mut places) = (0, Vec::new());
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        while let Some(cqe) = poll(&mut qa) {
            assert_eq!((cqe.wr_id, cqe.status), (sent, WcStatus::Success as u8));
            sent += 1;
        }
        let mut cqe = Cqe::default();
        while completions.poll(&mut cqe) {
            assert_eq!(cqe.status, WcStatus::Success as u8);
            places.push(cqe.wr_id);
        }
        places.len() == 64 && sent == 64
    }));
    let there = contents(&b);
    for (k, place) in places.into_iter().enumerate() {
        let [from, to] = [k, place as usize].map(|at| at << 14);
        assert!(there[to..][..1 << 14] == bytes[from..][..1 << 14], "message {k} in receive {place}");
    }
    assert!(count(&b, Reason::SrEarly) > 50 && count(&a, Reason::SrRepeated) > 5);
    assert_eq!((count(&a, Reason::SequenceNakReceived), count(&b, Reason::SequenceGap)), (0, 0), "no go-back-N");
    // The target's process dies: the initiator learns of it at once.
    drop(b.worker.destroy_qp(now, qb.qpn, true));
    let (sge, begin) = (a.sge(0, 64), now);
    a.post(&mut qa, SendWqe { remote_qpn: 3, ..request(WrOpcode::Send, 99, 0, 0) }, &[sge]);
    let mut status = None;
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        status = poll(&mut qa).map(|cqe| cqe.status);
        status.is_some()
    }));
    assert_eq!(status, Some(WcStatus::RemOpErr as u8));
    assert!(now.since(begin) < Nanos::from_ms(1), "took {now:?}");
}

#[test]
fn reordering_and_duplication_break_nothing() {
    let spec = ImpairSpec { loss: Ppm(5_000), dup: Ppm(10_000), reorder: Ppm(10_000), ..ImpairSpec::default() };
    let (mut a, mut b) = hosts(spec, [true, true]);
    let (mut qa, mut qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    let bytes = fill(&a, 5);
    let mut done = 0u64;
    while done < 96 {
        for k in 0..32 {
            let sge = b.sge((done + k) * 8192, 8192);
            qb.rq.write(done + k, &[sge]).expect("room");
        }
        let _ = qb.rq.post();
        for k in done..done + 32 {
            let sge = a.sge(k * 8192, 8000);
            a.post(&mut qa, request(WrOpcode::Send, k, 0, 0), &[sge]);
        }
        let end = done + 32;
        assert!(run(&mut a, &mut b, &mut now, |_, _| {
            while let Some(cqe) = poll(&mut qa) {
                assert_eq!(cqe.status, WcStatus::Success as u8);
            }
            while let Some(cqe) = poll(&mut qb) {
                assert_eq!((cqe.wr_id, cqe.byte_len, cqe.status), (done, 8000, WcStatus::Success as u8));
                done += 1;
            }
            done == end
        }));
    }
    let there = contents(&b);
    for k in 0..96 {
        assert!(there[k * 8192..][..8000] == bytes[k * 8192..][..8000], "message {k}");
    }
    assert!(count(&b, Reason::SrEarly) > 0);
}

#[test]
fn the_peer_of_a_dead_process_gets_an_error_at_once() {
    let (mut a, mut b) = hosts(ImpairSpec::default(), [true, true]);
    let (mut qa, qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    fill(&a, 1);
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite);
    drop(b.worker.destroy_qp(now, qb.qpn, true));
    let (sge, rkey, begin) = (a.sge(0, 64), b.key, now);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 5, BASE, rkey), &[sge]);
    let mut status = None;
    assert!(run(&mut a, &mut b, &mut now, |_, _| {
        status = poll(&mut qa).map(|cqe| cqe.status);
        status.is_some()
    }));
    assert_eq!(status, Some(WcStatus::RemOpErr as u8));
    assert!(now.since(begin) < Nanos::from_ms(1), "took {now:?}");
}

#[test]
fn an_engine_that_does_not_use_it_gets_the_standard_family() {
    let (mut a, mut b) = hosts(ImpairSpec::default(), [true, false]);
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    let bytes = fill(&a, 9);
    transfer(&mut a, &mut b, &mut qa, &mut now, WrOpcode::RdmaWrite);
    assert!(contents(&b) == bytes);
    assert_eq!((count(&b, Reason::SrNotNegotiated), count(&a, Reason::SrRefused)), (0, 0));
    let kind = |host: &Host| host.worker.cc_peers(0, 8).0[0].kind.clone();
    assert_eq!((kind(&a), kind(&b)), ("burst".into(), "burst".into()), "it answers, and asks those who ask");
}

/// Sends a hello to host 1 in the name of host 2.
fn forge(port: &mut MemPort, now: Nanos, hello: &Hello) {
    let flow = Flow { src: ip(2), dst: ip(1), ..Flow::default() };
    let head = HeadBuf::new(&Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::default()))
        .deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
    let mut batch = TxBatch::new(1);
    assert!(batch.push_copied(&flow, head.as_slice(), &hello.to_mad()));
    port.tx_burst(now, &batch, &mut |reason| panic!("{reason}"));
}

/// Questions and answers in the peer's name, each with another boot id and without selective repeat: b has not asked for the
/// answers, and questions make the host ask the peer itself, which says what it is.
#[test]
fn forged_hellos_with_changing_boot_ids_disturb_no_transfer() {
    let hub = Hub::new(MemConfig { latency: Nanos(2_000), ..MemConfig::default() });
    let (pa, pb, mut forger) = (hub.port("a", &[ip(1)]), hub.port("b", &[ip(2)]), hub.port("forger", &[ip(3)]));
    let (mut a, mut b) = hosts_at(pa, pb, ImpairSpec { loss: Ppm(10_000), ..ImpairSpec::default() }, [true, true]);
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    greet(&mut a, &mut b, &mut now);
    let mut rng = Rng::new(3);
    for round in 0..4 {
        let (bytes, rkey) = (fill(&a, round), b.key);
        for k in 0..16u64 {
            let sge = a.sge(k << 16, 1 << 16);
            a.post(&mut qa, request(WrOpcode::RdmaWrite, k, BASE + (k << 16), rkey), &[sge]);
        }
        let mut done = 0;
        while done < 16 {
            let (tid, boot_id, is_answer) = (rng.next_u64(), rng.next_u64(), rng.next_u32().is_multiple_of(2));
            forge(&mut forger, now, &Hello { is_answer, tid, boot_id, window: 1, ..Hello::default() });
            let mut passes = 0;
            run(&mut a, &mut b, &mut now, |_, _| {
                while let Some(cqe) = poll(&mut qa) {
                    assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success as u8));
                    done += 1;
                }
                passes += 1;
                done == 16 || passes > 3
            });
        }
        assert!(contents(&b) == bytes, "round {round}");
    }
    assert!(count(&a, Reason::HelloUnexpected) > 10, "{}", count(&a, Reason::HelloUnexpected));
    assert_eq!((count(&a, Reason::SequenceNakReceived), count(&b, Reason::SequenceGap)), (0, 0), "no go-back-N");
    assert_eq!((count(&a, Reason::SrRefused), a.worker.cc_peers(0, 8).0[0].kind.as_str()), (0, "burst"));
}
