//! Ends of programs of URMA and of their Jetties: in parts, however much there is to delete.
use crate::harness::{Host, run};
use crate::urma_tenants::{PART, Program, account, address, pair};
use burst_base::Nanos;
use burst_control::events::EventQueue;
use burst_control::urma_calls::{URMA_FLUSHED_MAX, UrmaAnswer, UrmaCall, UrmaJettyAttr};
use burst_engine::urma::{TenantCall, eid_of};
use burst_ubwire::OrderTag;
use burst_urma::{CrStatus, JfsWr, UrmaError};
use std::sync::Arc;

#[test]
fn a_call_that_deletes_a_jetty_drops_a_bounded_number_of_requests() {
    const REQUESTS: usize = 1000;
    let mut hosts = pair();
    let user = account(1);
    let mut p = Program::new(&mut hosts, 0, &user);
    let x = Program::new(&mut hosts, 1, &user);
    let nowhere = eid_of(address(77));
    let call = UrmaCall::ImportSegment { eid: nowhere, token_id: x.token_id, addr: x.addr, len: PART, token: Some(7) };
    let to_nowhere = p.number(&mut hosts, TenantCall::Plain(call));
    // The first one asks for a sequence context, and the others wait for the answer.
    let attr = UrmaJettyAttr { mode: 1, service: 1, jfc: p.jfc, depth: 1024, ..UrmaJettyAttr::default() };
    let jetty = p.number(&mut hosts, TenantCall::Plain(UrmaCall::CreateJetty(attr)));
    for i in 0..REQUESTS as u64 {
        let wr = JfsWr { order: OrderTag::Strong, ..p.write(to_nowhere, &x, 8, i) };
        p.post(jetty, &wr);
    }
    let mut now = Nanos(0);
    while p.counts(&hosts).requests < REQUESTS {
        p.show(&mut hosts);
        hosts[0].worker.run_once(now);
        now = now + Nanos(1_000);
    }
    let delete = |hosts: &mut [Host; 2], p: &Program| p.call(hosts, TenantCall::Plain(UrmaCall::DeleteJetty { jetty }));
    assert_eq!(delete(&mut hosts, &p), Err(UrmaError::Busy), "one is under way");
    let [a, b] = &mut hosts;
    assert!(run(a, b, &mut now, |_, _| p.poll().is_some_and(|cqe| cqe.status == CrStatus::AckTimeout as u8)));
    let mut left = p.counts(&hosts).requests;
    assert_eq!(left, REQUESTS - 1, "dropped by the call that finds none under way");
    loop {
        let deleted = delete(&mut hosts, &p);
        let after = p.counts(&hosts).requests;
        assert!(left - after <= URMA_FLUSHED_MAX, "{left} requests before, {after} after one call");
        assert_eq!(deleted, if after > 0 { Err(UrmaError::Busy) } else { Ok(UrmaAnswer::Done) });
        assert!(after < left, "each call goes on");
        left = after;
        if left == 0 {
            break;
        }
    }
    assert_eq!(p.counts(&hosts).jetties, 1);
}

#[test]
fn completion_queues_of_a_program_that_ends_leave_in_parts() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [p, dead] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let (number, _cq) = hosts[0].create_cq(256, Arc::new(EventQueue::new()));
    for _ in 0..1000 {
        let shared = hosts[0].worker.cq(number).expect("made").clone();
        dead.number(&mut hosts, TenantCall::CreateJfc(number, shared));
    }
    let mut left = 0;
    loop {
        match hosts[0].worker.leave_urma(dead.context, 64) {
            0 => break,
            some @ 1..=64 => left += some,
            more => panic!("{more} in one step"),
        }
    }
    assert_eq!(left, 1002, "the queues and a segment");
    assert_eq!(p.counts(&hosts).jfcs, 1002, "deleted after what uses them");
    assert!(!hosts[0].worker.remove_urma_tenant(Nanos(0), dead.context));
    let mut now = Nanos(0);
    while p.counts(&hosts).jfcs > 1 {
        let before = p.counts(&hosts).jfcs;
        hosts[0].worker.run_once(now);
        assert!(before - p.counts(&hosts).jfcs <= 4 * 256);
        now = now + Nanos(10_000);
        assert!(now < Nanos::from_ms(1000));
    }
}

#[test]
fn what_a_program_with_many_objects_leaves_behind_is_deleted_in_parts() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut dead] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let (to_x, of_dead) = (p.import(&mut hosts, &x), dead.import(&mut hosts, &x));
    let jfc = dead.number(&mut hosts, TenantCall::Plain(UrmaCall::CreateGroup { policy: 0, token: None }));
    assert!(jfc > 0, "an object of another kind");
    for _ in 0..3_000 {
        dead.number(&mut hosts, TenantCall::Plain(UrmaCall::CreateGroup { policy: 0, token: None }));
    }
    for i in 0..100 {
        let (jetty, wr) = (dead.jetty, dead.write(of_dead, &x, 64 << 10, i));
        dead.post(jetty, &wr);
    }
    dead.show(&mut hosts);
    let mut now = Nanos(0);
    hosts[0].worker.run_once(now);
    let groups = |hosts: &[Host; 2]| hosts[0].worker.urma_endpoint(address(1)).expect("open").node.group_count();
    assert_eq!(groups(&hosts), 3_001);
    assert!(!hosts[0].worker.remove_urma_tenant(now, dead.context));
    hosts[0].worker.remove_context(dead.context);
    let (mut before, mut most) = (groups(&hosts), 0);
    let (jetty, wr) = (p.jetty, p.write(to_x, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    let mut is_done = false;
    for _ in 0..20_000 {
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        is_done |= p.poll().is_some_and(|cqe| cqe.status == 0);
        most = most.max(before - groups(&hosts));
        before = groups(&hosts);
        now = now + Nanos(10_000);
    }
    assert!(is_done, "the other program is served meanwhile");
    assert_eq!((before, p.counts(&hosts).requests), (0, 0));
    assert!(most <= 4 * 256, "{most} objects in one pass");
}
