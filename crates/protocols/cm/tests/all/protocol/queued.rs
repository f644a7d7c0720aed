//! Requests over a listener's backlog: the bounded queue in which they wait until the program accepts. Part of the tests in
//! protocol.rs.

use super::*;

/// `cmtime -c 2000` against the default backlog of 1,024: no request is dropped, none is repeated by a timer.
#[test]
fn requests_over_the_backlog_wait_and_are_shown_as_the_program_accepts() {
    let mut harness = Harness::new(5, Weather::default());
    harness.hosts[1].listen(1024);
    let to = harness.hosts[1].ip;
    for _ in 0..2_000 {
        harness.hosts[0].connect(harness.now, to, &[]);
    }
    // All requests arrive before the program accepts the first.
    let begun = harness.now;
    while harness.now.since(begun) < Nanos::from_us(50) && harness.step() {}
    assert_eq!((harness.hosts[1].world.stories.len(), harness.hosts[1].backlog.queued()), (1_024, 976));
    harness.run(Nanos::from_ms(1_000));
    let [active, passive] = &harness.hosts;
    assert_eq!((active.count(Reason::CmRetry), passive.count(Reason::CmDuplicate)), (0, 0), "nothing is repeated");
    assert_eq!(passive.count(Reason::CmBacklogFull), 0, "nothing is dropped");
    assert_eq!(active.world.stories.iter().filter(|s| s.saw(K::Established)).count(), 2_000);
    assert_eq!((passive.backlog.waiting(), passive.backlog.queued()), (0, 0));
}

/// A host with a full backlog of 1, and `count` queued requests, with ids from 2 and queue pair numbers from 52 on.
fn with_queued(count: u32) -> Host {
    let mut host = Host::new(1);
    host.listen(1);
    for n in 1..=1 + count {
        assert!(ask(&mut host, Req { cm_retries: 1, remote_response_timeout: 18, ..req(n, 50 + n) }).is_empty());
    }
    assert_eq!((host.backlog.waiting(), host.backlog.queued()), (1, count));
    host
}

fn timeout_rej(local_id: u32) -> Rej {
    let mut rej = Rej { local_id, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
    rej.info[..8].copy_from_slice(&GUID.to_be_bytes());
    rej
}

#[test]
fn a_withdrawn_request_leaves_the_queue() {
    let mut host = with_queued(3);
    assert!(give(&mut host, timeout_rej(3)).is_empty());
    assert_eq!((host.backlog.queued(), host.cm.len()), (2, 3));
    host.accept(NOW, 0);
    host.cm.on_timer(NOW, 10, &mut host.world);
    host.accept(NOW, 1);
    host.cm.on_timer(NOW, 10, &mut host.world);
    let qpns: Vec<u32> = host.world.stories.iter().filter_map(|s| Some(s.negotiated?.remote_qpn)).collect();
    assert_eq!((qpns, host.backlog.queued()), (vec![51, 52, 54], 0), "the withdrawn request is not shown");
    assert_eq!(host.cm.next_deadline().max(NOW + Nanos::from_ms(50)), host.cm.next_deadline(), "no line is looked at");
}

#[test]
fn a_repeated_request_is_queued_once_and_answered_by_mra() {
    let mut host = with_queued(2);
    let again = Req { cm_retries: 1, remote_response_timeout: 18, ..req(2, 52) };
    let [CmMessage::Mra(mra)] = ask(&mut host, again)[..] else { panic!("no MRA") };
    assert_eq!((mra.remote_id, mra.message), (2, 0));
    assert_eq!((host.backlog.queued(), host.cm.len(), host.count(Reason::CmDuplicate)), (2, 3, 1));
    // The id of the MRA is the id of the REP.
    host.accept(NOW, 0);
    taken(&mut host);
    host.cm.on_timer(NOW, 10, &mut host.world);
    host.accept(NOW, 1);
    let [CmMessage::Rep(rep)] = taken(&mut host)[..] else { panic!("no REP") };
    assert_eq!((rep.local_id, rep.remote_id), (mra.local_id, 2));
}

#[test]
fn a_queued_request_expires_when_its_peer_has_given_up() {
    let mut host = with_queued(2);
    // Two waits of 4.096 us * 2^18, 1.07 s each; the second request is repeated after 1 s.
    let again = Req { cm_retries: 1, remote_response_timeout: 18, ..req(3, 53) };
    give_at(&mut host, NOW + Nanos::from_ms(1_000), 7, again, &header());
    host.cm.on_timer(NOW + Nanos::from_ms(2_100), 10, &mut host.world);
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (2, 0), "both peers may still wait");
    host.cm.on_timer(NOW + Nanos::from_ms(2_200), 10, &mut host.world);
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (1, 1));
    host.cm.on_timer(NOW + Nanos::from_ms(3_200), 10, &mut host.world);
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (0, 2));
    assert_eq!((host.world.stories.len(), host.cm.len(), taken(&mut host).len()), (1, 1, 0), "no event");
}

#[test]
fn a_request_for_a_queued_queue_pair_replaces_the_queued_request() {
    let mut host = with_queued(2);
    let [CmMessage::Rej(rej)] = ask(&mut host, req(9, 52))[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, host.backlog.queued()), (reject::STALE_CONNECTION, 1));
    assert!(ask(&mut host, req(9, 52)).is_empty());
    assert_eq!((host.backlog.queued(), host.world.stories.len()), (2, 1));
}

#[test]
fn a_listener_that_ends_refuses_its_queued_requests() {
    let mut host = with_queued(3);
    host.cm.unlisten(|_| true);
    assert_eq!(host.cm.on_timer(NOW, 2, &mut host.world), 2, "within the budget");
    assert_eq!((taken(&mut host).len(), host.cm.next_deadline()), (2, Nanos(0)));
    host.cm.on_timer(NOW, 10, &mut host.world);
    let [CmMessage::Rej(rej)] = taken(&mut host)[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.remote_id, host.backlog.queued()), (reject::INVALID_SERVICE_ID, 4, 0));
    assert_eq!(host.cm.len(), 1, "the request that was shown waits for its program");
}

#[test]
fn one_listener_cannot_fill_the_whole_queue() {
    let mut host = Host::new(1);
    host.listen(1024);
    for n in 1..=20_000 {
        ask(&mut host, req(n, 50 + n));
    }
    assert_eq!((host.backlog.waiting(), host.backlog.queued()), (1024, LISTENER_QUEUE_MAX));
    assert_eq!(host.count(Reason::CmBacklogFull), u64::from(20_000 - 1024 - LISTENER_QUEUE_MAX));
    let (backlog, owner) = (Arc::new(Backlog::new(1024)), u32::MAX);
    let (service_id, transport) = (service_id(PS_TCP, 9), Transport::Rc);
    let listener =
        Listener { owner, service_id, addr: None, device: None, sidr: false, transport, backlog: backlog.clone() };
    host.cm.listen(listener).expect("free");
    for n in 30_001..=40_000 {
        ask(&mut host, Req { service_id, ..req(n, 50 + n) });
    }
    assert_eq!(
        (backlog.waiting(), backlog.queued()),
        (1024, 16_384 - LISTENER_QUEUE_MAX),
        "the worker's store is full"
    );
    // The places of a listener's backlog are for its own requests.
    host.accept(NOW, 0);
    host.accept(NOW, 1024);
    assert_eq!(host.cm.on_timer(NOW, 100, &mut host.world), 2);
    assert_eq!((host.backlog.waiting(), backlog.waiting()), (1024, 1024));
}

#[test]
fn datagram_service_requests_are_queued_as_well() {
    use burst_cm::message::SidrReq;
    let mut host = Host::new(1);
    let (backlog, owner) = (Arc::new(Backlog::new(1)), u32::MAX);
    let (service_id, transport) = (service_id(PS_UDP, 5), Transport::Rc);
    let listener =
        Listener { owner, service_id, addr: None, device: None, sidr: true, transport, backlog: backlog.clone() };
    host.cm.listen(listener).expect("free");
    for id in [1, 2, 2] {
        assert!(give(&mut host, SidrReq { request_id: id, pkey: 0xffff, service_id }).is_empty());
    }
    assert_eq!((backlog.waiting(), backlog.queued(), host.count(Reason::CmDuplicate)), (1, 1, 1));
    let param = ConnParam { qpn: 1, qkey: 2, ..ConnParam::default() };
    let params = EndParams { param, ..EndParams::default() };
    for story in 0..2 {
        let id = host.world.stories[story].conn;
        host.cm.serve(NOW, id, &params, &mut host.world).expect("shown");
        let [CmMessage::SidrRep(rep)] = taken(&mut host)[..] else { panic!("no SIDR_REP") };
        assert_eq!((rep.request_id, rep.status), (story as u32 + 1, 0));
        host.cm.on_timer(NOW, 10, &mut host.world);
    }
    assert_eq!((backlog.waiting(), backlog.queued()), (0, 0));
}

#[test]
fn a_request_over_the_share_of_the_listeners_user_is_rejected_and_one_over_its_backlog_is_not_answered() {
    let mut host = Host::new(1);
    host.listen(2);
    host.world.queued_max = Some(5);
    for n in 1..=7 {
        assert!(ask(&mut host, req(n, 50 + n)).is_empty(), "two are shown, five are queued");
    }
    let [CmMessage::Rej(rej)] = ask(&mut host, req(8, 58))[..] else { panic!("one REJ") };
    assert_eq!((rej.reason, rej.remote_id, rej.message), (reject::NO_RESOURCES, 8, 0));
    assert_eq!((host.count(Reason::CmUserShare), host.count(Reason::CmBacklogFull)), (1, 0));
    // A source with few requests takes the place of one of those.
    let mut other = path();
    other.flow.dst = IpAddr::from([10, 0, 0, 3]);
    let mut bytes = [0; 256];
    Mad { tid: 7, modifier: 0, message: req(9, 59).into(), data: &header() }.emit(&mut bytes);
    host.cm.on_mad(NOW, &other, &bytes, &mut host.world);
    assert_eq!((taken(&mut host).len(), host.count(Reason::CmBacklogFull), host.backlog.queued()), (0, 1, 5));
    // A request that is queued is rejected when its turn comes, if its user has its share of connections by then.
    host.world.refuses = Some(AdmissionRefusal::OverShare);
    host.accept(NOW, 0);
    taken(&mut host);
    host.cm.on_timer(NOW, 100, &mut host.world);
    assert!(taken(&mut host).iter().all(|m| matches!(m, CmMessage::Rej(rej) if rej.reason == reject::NO_RESOURCES)));
    assert_eq!((host.count(Reason::CmUserShare), host.backlog.queued(), host.backlog.waiting()), (6, 0, 1));
    assert_eq!(Arc::strong_count(&host.world.charges), 1, "what was charged is given back");
}
