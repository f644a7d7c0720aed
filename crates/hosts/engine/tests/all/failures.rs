//! Records of queue pairs that ended in error: what they say at both ends, that they outlive queue pair and context, and that one
//! account does not push out another's.

use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode, access};
use burst_base::{Nanos, Psn, Qpn, Reason};
use burst_control::failures::{FailureKind, FailureRecord, MemoryFinding, QpRecord, RECORDS};
use burst_ledger::{AccountId, Capacities, Ledger, Policy};
use burst_port::mem::{MemConfig, pair};
use std::net::IpAddr;

const BYTES: u32 = 1 << 16;
const FIRST: u32 = 0x00ff_fff0;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn hosts() -> (Host, Host) {
    let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2));
    (Host::new(Box::new(pa), BYTES), Host::new(Box::new(pb), BYTES))
}

fn connected(a: &mut Host, b: &mut Host) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    (qa, qb)
}

/// Posts a WRITE and returns the status of its completion.
fn write(a: &mut Host, b: &mut Host, qa: &mut AppQp, (remote, rkey, len): (u64, u32, u32), now: &mut Nanos) -> u8 {
    let sge = a.sge(0, len);
    a.post(qa, request(WrOpcode::RdmaWrite, 1, remote, rkey), &[sge]);
    let mut got = None;
    assert!(run(a, b, now, |_, _| {
        got = poll(qa);
        got.is_some()
    }));
    got.map_or(0, |cqe| cqe.status)
}

fn only(records: Vec<FailureRecord>) -> (FailureRecord, QpRecord) {
    let [record] = <[FailureRecord; 1]>::try_from(records).expect("one record");
    let qp = record.qp.as_deref().expect("of a queue pair").clone();
    (record, qp)
}

#[test]
fn both_ends_of_a_wrong_range_say_what_they_know() {
    let (mut a, mut b) = hosts();
    let (mut qa, qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    let key = b.key;
    assert_eq!(write(&mut a, &mut b, &mut qa, (BASE, key, 3000), &mut now), WcStatus::Success as u8);
    assert!(a.worker.failures(now).is_empty() && b.worker.failures(now).is_empty());
    let outside = (BASE + u64::from(BYTES), key, 64);
    assert_eq!(write(&mut a, &mut b, &mut qa, outside, &mut now), WcStatus::RemAccessErr as u8);
    let (record, qp) = only(a.worker.failures(now));
    assert_eq!((record.kind, record.reason()), (FailureKind::Request, Some(Reason::RemoteAccessReported)));
    assert_eq!((record.status, qp.peer, qp.peer_qpn), (WcStatus::RemAccessErr as u8, ip(2), qb.qpn.get()));
    assert_eq!((qp.sent_psns[0], qp.sent_psns[1]), (FIRST, FIRST + 3), "three packets were answered");
    assert_eq!((qp.answered_bytes, qp.mtu, qp.retries), (3000, 1024, [7, 7, 7]));
    assert_eq!(qp.request.map(|r| (r.opcode, r.length, r.packets)), Some((WrOpcode::RdmaWrite, 64, 1)));
    let memory = qp.memory.expect("it names memory");
    assert_eq!((memory.rkey, memory.addr, memory.finding), (key, outside.0, None), "only the peer knows");
    assert!(qp.path.is_some_and(|path| path.acked_ago_ns.is_some() && path.unsent == 0));
    let (record, qp) = only(b.worker.failures(now));
    assert_eq!((record.kind, record.reason()), (FailureKind::PeerRequest, Some(Reason::RemoteAccess)));
    assert_eq!(qp.received_psns, [FIRST, FIRST + 3]);
    let memory = qp.memory.expect("it names memory");
    assert_eq!((memory.addr, memory.len, memory.right), (outside.0, 64, access::REMOTE_WRITE));
    assert_eq!(memory.finding, Some(MemoryFinding::OutOfRange { iova: BASE, len: u64::from(BYTES) }));
}

#[test]
fn a_peer_that_is_gone_leaves_a_record_with_what_was_counted() {
    let (mut a, mut b) = hosts();
    let (mut qa, qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    b.worker.destroy_qp(now, qb.qpn, false).expect("it exists");
    let key = b.key;
    let began = now;
    assert_eq!(write(&mut a, &mut b, &mut qa, (BASE, key, 64), &mut now), WcStatus::RetryExcErr as u8);
    let later = now + Nanos::from_ms(5);
    let (record, qp) = only(a.worker.failures(later));
    assert_eq!(record.reason(), Some(Reason::RetryExhausted));
    assert!(record.ago_ns >= Nanos::from_ms(5).0 && record.ago_ns < later.since(began).0, "{}", record.ago_ns);
    let psn = Psn::new(FIRST).get();
    assert_eq!((qp.sent_psns, qp.received_psns), ([psn, psn, psn + 1], [psn, psn]));
    assert_eq!((qp.retries[0], qp.answered_bytes), (0, 0));
    let timeouts = qp.counts.iter().find(|(reason, _)| *reason == Reason::AckTimeout.index() as u16);
    assert!(timeouts.is_some_and(|(_, count)| *count == 8), "{:?}", qp.counts);
}

#[test]
fn a_record_outlives_its_queue_pair_and_its_context() {
    let (mut a, mut b) = hosts();
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos(0);
    let wrong = b.key ^ 0x0100_0000;
    assert_eq!(write(&mut a, &mut b, &mut qa, (BASE, wrong, 64), &mut now), WcStatus::RemAccessErr as u8);
    assert!(a.worker.present(now, qa.qpn).is_some_and(|record| record.kind == FailureKind::Present));
    a.worker.destroy_qp(now, qa.qpn, false).expect("it exists");
    a.worker.remove_context(qa.context);
    assert_eq!(only(a.worker.failures(now)).1.qpn, qa.qpn.get());
    assert!(a.worker.present(now, qa.qpn).is_none() && a.worker.present(now, Qpn::new(0x1234)).is_none());
    assert_eq!(only(b.worker.failures(now)).1.memory.and_then(|m| m.finding), Some(MemoryFinding::Unknown));
}

#[test]
fn an_account_that_fails_without_end_keeps_the_others_records() {
    let (mut a, mut b) = hosts();
    let mut now = Nanos(0);
    let (mut first, _other) = connected(&mut a, &mut b);
    let wrong = b.key ^ 0x0100_0000;
    write(&mut a, &mut b, &mut first, (BASE, wrong, 64), &mut now);
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    a.add_context(&ledger.account(AccountId::User(7), false));
    for _ in 0..RECORDS + 40 {
        let (mut qa, qb) = connected(&mut a, &mut b);
        write(&mut a, &mut b, &mut qa, (BASE, wrong, 64), &mut now);
        a.worker.destroy_qp(now, qa.qpn, false).expect("it exists");
        b.worker.destroy_qp(now, qb.qpn, false).expect("it exists");
    }
    let records = a.worker.failures(now);
    assert_eq!(records.len(), RECORDS);
    let qpns: Vec<u32> = records.iter().filter_map(|record| Some(record.qp.as_ref()?.qpn)).collect();
    assert_eq!(qpns[0], first.qpn.get(), "the record of the other account is still there");
}
