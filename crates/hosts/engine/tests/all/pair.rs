//! Whole workers of two hosts over the `mem` port: data transfer, events, recovery from loss, death of a process.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_engine::WorkerOptions;
use burst_engine::handover::Inbox;
use burst_port::Port;
use burst_port::impair::Impair;
use burst_port::mem::{Hub, MemConfig, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use std::net::IpAddr;
use std::sync::Arc;

const BYTES: u32 = 1 << 20;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hosts(impair: Option<ImpairSpec>) -> (Host, Host) {
    let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2));
    let wrap = |port: burst_port::mem::MemPort, seed| -> Box<dyn Port> {
        match impair {
            Some(spec) => Box::new(Impair::new(Box::new(port), ImpairSpec { seed, ..spec })),
            None => Box::new(port),
        }
    };
    (Host::new(wrap(pa, 1), BYTES), Host::new(wrap(pb, 2), BYTES))
}

fn connected(a: &mut Host, b: &mut Host, mtu: Mtu) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, mtu);
    b.connect(&qb, qa.qpn, &caps_a, mtu);
    (qa, qb)
}

fn fill(host: &Host, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> =
        (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8)).collect();
    host.memory.write_from(&bytes).expect("local");
    bytes
}

fn contents(host: &Host) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    host.memory.read_to(&mut bytes).expect("local");
    bytes
}

fn wait(a: &mut Host, b: &mut Host, qp: &mut AppQp, now: &mut Nanos) -> burst_shm::Cqe {
    let mut got = None;
    assert!(
        run(a, b, now, |_, _| {
            got = poll(qp);
            got.is_some()
        }),
        "no completion"
    );
    got.expect("just seen")
}

#[test]
fn a_write_moves_a_megabyte_and_a_read_moves_it_back() {
    let (mut a, mut b) = hosts(None);
    let (mut qa, _qb) = connected(&mut a, &mut b, Mtu::B4096);
    let bytes = fill(&a, 7);
    let mut now = Nanos(0);
    let (sge, rkey) = (a.sge(0, BYTES), b.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 11, BASE, rkey), &[sge]);
    let cqe = wait(&mut a, &mut b, &mut qa, &mut now);
    assert_eq!((cqe.wr_id, cqe.status), (11, WcStatus::Success as u8));
    assert_eq!(contents(&b), bytes);
    fill(&a, 0);
    a.post(&mut qa, request(WrOpcode::RdmaRead, 12, BASE, rkey), &[sge]);
    assert_eq!(wait(&mut a, &mut b, &mut qa, &mut now).wr_id, 12);
    assert_eq!(contents(&a), bytes);
}

#[test]
fn a_send_completes_both_ends_and_writes_the_event() {
    let (mut a, mut b) = hosts(None);
    let (mut qa, mut qb) = connected(&mut a, &mut b, Mtu::B1024);
    let bytes = fill(&a, 3);
    let sge = b.sge(0, 5000);
    qb.rq.write(99, &[sge]).expect("room");
    let _ = qb.rq.post();
    qb.cq.arm(false);
    let mut now = Nanos(0);
    let sge = a.sge(100, 3000);
    a.post(&mut qa, request(WrOpcode::Send, 1, 0, 0), &[sge]);
    assert_eq!(wait(&mut a, &mut b, &mut qa, &mut now).status, WcStatus::Success as u8);
    let cqe = poll(&mut qb).expect("received");
    assert_eq!((cqe.wr_id, cqe.byte_len, cqe.is_recv), (99, 3000, 1));
    assert_eq!(contents(&b)[..3000], bytes[100..3100]);
    let mut cookie = [0; 8];
    assert_eq!(rustix::io::read(&qb.channel, &mut cookie), Ok(8));
    assert_eq!(u64::from_ne_bytes(cookie), 0xc0de);
}

#[test]
fn a_thousand_writes_complete_over_a_lossy_link() {
    let spec = ImpairSpec {
        loss: Ppm(10_000),
        dup: Ppm(10_000),
        reorder: Ppm(10_000),
        corrupt: Ppm(1_000),
        ..ImpairSpec::default()
    };
    let (mut a, mut b) = hosts(Some(spec));
    let (mut qa, _qb) = connected(&mut a, &mut b, Mtu::B1024);
    let bytes = fill(&a, 9);
    let mut now = Nanos(0);
    let (mut posted, mut done) = (0u64, 0u64);
    let chunk = u64::from(BYTES) / 1000;
    while done < 1000 {
        while posted < 1000 && posted - done < 100 {
            let (sge, rkey) = (a.sge(posted * chunk, chunk as u32), b.key);
            a.post(&mut qa, request(WrOpcode::RdmaWrite, posted, BASE + posted * chunk, rkey), &[sge]);
            posted += 1;
        }
        let cqe = wait(&mut a, &mut b, &mut qa, &mut now);
        assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success as u8));
        done += 1;
    }
    let end = (1000 * chunk) as usize;
    assert_eq!(contents(&b)[..end], bytes[..end]);
    let counters = a.worker.counters(DeviceId(0));
    assert!(
        counters.reason(Reason::SequenceNakReceived) + counters.reason(Reason::AckTimeout) > 0,
        "the link lost nothing"
    );
}

#[test]
fn the_peer_of_a_dead_process_gets_an_error_at_once() {
    let (mut a, mut b) = hosts(None);
    let (mut qa, qb) = connected(&mut a, &mut b, Mtu::B4096);
    let mut now = Nanos::from_ms(1);
    drop(b.worker.destroy_qp(now, qb.qpn, true));
    let (sge, rkey) = (a.sge(0, 64), b.key);
    let started = now;
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 5, BASE, rkey), &[sge]);
    let cqe = wait(&mut a, &mut b, &mut qa, &mut now);
    assert_eq!(cqe.status, WcStatus::RemOpErr as u8);
    assert!(now.since(started) < Nanos::from_ms(1), "took {now:?}");
    assert_eq!(b.worker.counters(DeviceId(0)).reason(Reason::ProcessDied), 1);
}

/// A program may end as soon as it has received its last message. The sender must not see an error for a message that arrived.
#[test]
fn a_received_message_is_acknowledged_before_its_queue_pair_ends() {
    type End = fn(&mut Host, Nanos, &AppQp);
    let destroy: End = |b, now, qp| drop(b.worker.destroy_qp(now, qp.qpn, false));
    let fail: End = |b, now, qp| assert!(b.fail_qp(now, qp));
    for end in [destroy, fail] {
        let (mut a, mut b) = hosts(None);
        let (mut qa, mut qb) = connected(&mut a, &mut b, Mtu::B1024);
        let sge = b.sge(0, 64);
        qb.rq.write(99, &[sge]).expect("room");
        let _ = qb.rq.post();
        let mut now = Nanos(0);
        let sge = a.sge(0, 64);
        a.post(&mut qa, request(WrOpcode::Send, 1, 0, 0), &[sge]);
        let received = run(&mut a, &mut b, &mut now, |_, _| poll(&mut qb).is_some());
        assert!(received && poll(&mut qa).is_none(), "the acknowledgement waits for the next pass");
        end(&mut b, now, &qb);
        assert_eq!(wait(&mut a, &mut b, &mut qa, &mut now).status, WcStatus::Success as u8);
    }
}

#[test]
fn a_cleanly_destroyed_queue_pair_does_not_answer() {
    let (mut a, mut b) = hosts(None);
    let (mut qa, qb) = connected(&mut a, &mut b, Mtu::B4096);
    let mut now = Nanos(0);
    drop(b.worker.destroy_qp(now, qb.qpn, false));
    let (sge, rkey) = (a.sge(0, 64), b.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 5, BASE, rkey), &[sge]);
    assert_eq!(wait(&mut a, &mut b, &mut qa, &mut now).status, WcStatus::RetryExcErr as u8);
    assert!(b.worker.counters(DeviceId(0)).reason(Reason::UnknownQpn) >= 8);
}

#[test]
fn packets_at_the_wrong_worker_are_handed_over() {
    let hub = Hub::new(MemConfig::default());
    let mut a = Host::new(Box::new(hub.port("a", &[ip(1)])), BYTES);
    let inboxes: Vec<_> = (0..2).map(|_| Arc::new(Inbox::new(2).expect("inbox"))).collect();
    let wrong_port: Box<dyn Port> = Box::new(hub.port("b0", &[ip(2)]));
    let right_port: Box<dyn Port> = Box::new(hub.port("b1", &[ip(3)]));
    let mut wrong = Host::with_inboxes(wrong_port, BYTES, inboxes.clone(), 0);
    let mut right = Host::with_inboxes(right_port, BYTES, inboxes, 1);
    let (mut qa, qb) = (a.create(QpType::Rc), right.create(QpType::Rc));
    let (caps_a, caps_wrong) = (a.caps.clone(), wrong.caps.clone());
    a.connect(&qa, qb.qpn, &caps_wrong, Mtu::B4096);
    // The owner answers from its own address, so it gets the address to which the peer sends.
    right.caps = caps_wrong;
    right.connect(&qb, qa.qpn, &caps_a, Mtu::B4096);
    let bytes = fill(&a, 5);
    let (sge, rkey) = (a.sge(0, 9000), right.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, rkey), &[sge]);
    let mut now = Nanos(0);
    let done = run(&mut a, &mut wrong, &mut now, |_, _| {
        right.worker.run_once(Nanos(0));
        poll(&mut qa).is_some()
    });
    assert!(done, "no completion");
    assert_eq!(contents(&right)[..9000], bytes[..9000]);
}

#[test]
fn a_lent_engine_drops_what_is_for_others_and_passes_on_nothing() {
    let hub = Hub::new(MemConfig::default());
    let mut a = Host::new(Box::new(hub.port("a", &[ip(1)])), BYTES);
    let options = WorkerOptions { id: 5, first: 5, ..WorkerOptions::default() };
    let inbox = Arc::new(Inbox::new(1).expect("inbox"));
    let mut b = Host::with_options(Box::new(hub.port("b", &[ip(2)])), BYTES, vec![inbox], options);
    let (mut own, mut foreign) = (a.create(QpType::Rc), a.create(QpType::Rc));
    let qb = b.create(QpType::Rc);
    assert_eq!(qb.qpn.worker(), 5);
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&own, qb.qpn, &caps_b, Mtu::B4096);
    b.connect(&qb, own.qpn, &caps_a, Mtu::B4096);
    a.connect(&foreign, Qpn::new(qb.qpn.get() ^ 1), &caps_b, Mtu::B4096);
    let (sge, rkey) = (a.sge(0, 64), b.key);
    a.post(&mut foreign, request(WrOpcode::RdmaWrite, 1, BASE, rkey), &[sge]);
    a.post(&mut own, request(WrOpcode::RdmaWrite, 2, BASE, rkey), &[sge]);
    let mut now = Nanos(0);
    assert!(run(&mut a, &mut b, &mut now, |_, _| poll(&mut own).is_some()), "its own queue pair is served");
    assert!(b.worker.counters(DeviceId(0)).reason(Reason::ForeignWorker) >= 1);
    assert_eq!(b.worker.counters(DeviceId(0)).reason(Reason::UnknownQpn), 0);
}

/// ACKs to one queue pair make room in the window that all queue pairs towards a host share, and wake those that wait for the
/// window. This includes a queue pair that waited before, was reset and connected again.
#[test]
fn a_queue_pair_that_was_reset_while_it_waited_is_woken_again() {
    let (mut a, mut b) = hosts(None);
    let (mut busy, _qb) = connected(&mut a, &mut b, Mtu::B4096);
    let mut waits = a.create(QpType::Rc);
    let (caps, unknown) = (b.caps.clone(), Qpn::new(0x00ab_cdf0));
    let (all, part, rkey) = (a.sge(0, BYTES), a.sge(0, 64 << 10), b.key);
    let mut now = Nanos(0);
    a.post(&mut busy, request(WrOpcode::RdmaWrite, 1, BASE, rkey), &[all]);
    for _ in 0..8 {
        a.worker.run_once(now);
    }
    for _ in 0..2 {
        // This queue pair gets no answers: only ACKs to the other one make room.
        a.connect(&waits, unknown, &caps, Mtu::B4096);
        a.post(&mut waits, request(WrOpcode::RdmaWrite, 2, BASE, rkey), &[part]);
        a.worker.run_once(now);
        a.reset_qp(now, &mut waits);
    }
    a.connect(&waits, unknown, &caps, Mtu::B4096);
    a.post(&mut waits, request(WrOpcode::RdmaWrite, 3, BASE, rkey), &[part]);
    a.worker.run_once(now);
    // A queue pair may always have one packet in flight.
    let sent_at_once = 1;
    let whole = 16;
    let seen = |b: &Host| b.worker.counters(DeviceId(0)).reason(Reason::UnknownQpn);
    assert!(run(&mut a, &mut b, &mut now, |_, b| poll(&mut busy).is_some() && seen(b) >= 3 * sent_at_once));
    let limit = now + Nanos::from_ms(1);
    run(&mut a, &mut b, &mut now, |_, b| seen(b) == 2 * sent_at_once + whole);
    assert_eq!((seen(&b), now < limit), (2 * sent_at_once + whole, true));
}

#[test]
fn reads_that_wait_for_the_window_cost_no_passes() {
    const LENGTH: u32 = 96 << 10;
    let (mut a, mut b) = hosts(None);
    let (mut qa, _qb) = connected(&mut a, &mut b, Mtu::B4096);
    let (sge, key) = (a.sge(0, LENGTH), b.key);
    // The window of 1 MiB has room for ten READs and for a part of another one.
    for wr_id in 0..16 {
        a.post(&mut qa, request(WrOpcode::RdmaRead, wr_id, BASE, key), &[sge]);
    }
    assert!(a.worker.run_once(Nanos(0)));
    assert!(!a.worker.run_once(Nanos(1)) && !a.worker.has_work(), "there is nothing to do until an answer comes");
    let mut now = Nanos(1_000);
    for wr_id in 0..16 {
        assert_eq!(wait(&mut a, &mut b, &mut qa, &mut now).wr_id, wr_id);
    }
    assert_eq!(b.worker.counters(DeviceId(0)).reason(Reason::DuplicateRequest), 0);
}

/// A program may destroy a queue pair right after posting to it: the request leaves before the command runs.
#[test]
fn a_posted_request_leaves_before_a_command_runs() {
    let (mut a, mut b) = hosts(None);
    let (mut qa, _qb) = connected(&mut a, &mut b, Mtu::B1024);
    let bytes = fill(&a, 5);
    let (sge, rkey) = (a.sge(0, 3000), b.key);
    a.post(&mut qa, request(WrOpcode::RdmaWrite, 1, BASE, rkey), &[sge]);
    let now = Nanos(0);
    a.worker.send_posted(now);
    drop(a.worker.destroy_qp(now, qa.qpn, false));
    b.worker.run_once(Nanos::from_ms(1));
    assert_eq!(contents(&b)[..3000], bytes[..3000]);
}
