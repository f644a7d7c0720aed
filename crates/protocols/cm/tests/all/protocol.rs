//! Each message and its effects: in order, repeated, late, malformed, at a limit, after the end of the connection.

mod queued;

use crate::harness::{Harness, Host, PORT, Weather};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_cm::backlog::{LISTENER_QUEUE_MAX, QUEUED_PER_PLACE, READ_MIN};
use burst_cm::message::{Apr, CmMessage, Drep, Dreq, Lap, Mad, Mra, Rej, Rep, Req, Rtu, reject};
use burst_cm::service::{HEADER_LEN, PS_TCP, PS_UDP, PrivateDataHeader, service_id};
use burst_cm::{
    AdmissionRefusal, BURST_VENDOR, Backlog, CmError, CmState, ConnEventKind as K, ConnParam, EndParams, Listener,
    PathRecord, PeerClass, QpSetup, Transport, names_burst,
};
use burst_frame::Flow;
use burst_wire::MAD_LEN;
use std::net::IpAddr;
use std::sync::Arc;

const PEER: [u8; 4] = [10, 0, 0, 9];
const GUID: u64 = 99;
const NOW: Nanos = Nanos::from_ms(1);

/// The path of answers to the peer, which the test plays.
fn path() -> PathRecord {
    PathRecord {
        device: DeviceId(0),
        flow: Flow { src: IpAddr::from([10, 0, 0, 1]), dst: IpAddr::from(PEER), ..Flow::default() },
    }
}

fn give_at(host: &mut Host, now: Nanos, tid: u64, message: impl Into<CmMessage>, data: &[u8]) -> Vec<CmMessage> {
    let mut bytes = [0; 256];
    Mad { tid, modifier: 0, message: message.into(), data }.emit(&mut bytes);
    host.cm.on_mad(now, &path(), &bytes, &mut host.world);
    taken(host)
}

fn give(host: &mut Host, message: impl Into<CmMessage>) -> Vec<CmMessage> {
    give_at(host, NOW, 7, message, &[])
}

/// Messages that the host has sent.
fn taken(host: &mut Host) -> Vec<CmMessage> {
    host.world.sent.drain(..).map(|(_, mad)| Mad::parse(&mad).expect("well formed").message).collect()
}

fn header() -> [u8; HEADER_LEN] {
    PrivateDataHeader { src: IpAddr::from(PEER), port: 5, dst: IpAddr::from([10, 0, 0, 1]) }.to_bytes()
}

fn req(id: u32, qpn: u32) -> Req {
    Req {
        local_id: id,
        service_id: service_id(PS_TCP, PORT),
        ca_guid: GUID,
        qpn,
        responder_resources: 3,
        initiator_depth: 5,
        psn: 77,
        pkey: 0xffff,
        mtu: Mtu::B1024 as u8,
        retry_count: 6,
        rnr_retry_count: 4,
        ack_timeout: 12,
        ..Req::default()
    }
}

fn ask(host: &mut Host, req: Req) -> Vec<CmMessage> {
    give_at(host, NOW, 7, req, &header())
}

/// A host that has accepted a request; returns also the connection's id and the REP.
fn accepted() -> (Host, u32, Rep) {
    let mut host = Host::new(1);
    assert!(ask(&mut host, req(1, 50)).is_empty());
    host.accept(NOW, 0);
    let id = host.world.stories[0].conn;
    let [CmMessage::Rep(rep)] = taken(&mut host)[..] else { panic!("no REP") };
    (host, id, rep)
}

fn established() -> (Host, u32) {
    let (mut host, id, rep) = accepted();
    assert!(give(&mut host, Rtu { local_id: 1, remote_id: rep.local_id }).is_empty());
    assert_eq!(host.world.stories[0].last(), Some(K::Established));
    (host, id)
}

/// A host that has sent a request; returns also the connection's id.
fn asked(ready: QpSetup) -> (Host, u32) {
    let mut host = Host::new(1);
    host.world.ready = ready;
    host.connect(NOW, IpAddr::from(PEER), b"data");
    let id = host.world.stories[0].conn;
    let [CmMessage::Req(sent)] = taken(&mut host)[..] else { panic!("no REQ") };
    assert_eq!((sent.local_id, sent.vendor_id, sent.cm_retries), (id, BURST_VENDOR, 15));
    (host, id)
}

fn rep(to: u32) -> Rep {
    Rep {
        local_id: 9,
        remote_id: to,
        qpn: 60,
        psn: 5,
        responder_resources: 2,
        initiator_depth: 1,
        ca_guid: GUID,
        ..Rep::default()
    }
}

#[test]
fn a_request_is_shown_with_the_peers_parameters() {
    let (host, id, rep) = accepted();
    let story = &host.world.stories[0];
    let conn = story.negotiated.expect("a request");
    assert_eq!((conn.remote_qpn, conn.sq_psn, conn.mtu, conn.ack_timeout), (50, 77, Mtu::B1024, 12));
    assert_eq!((conn.responder_resources, conn.initiator_depth), (5, 3), "seen from this end");
    assert_eq!((story.peer_port, story.data.len()), (5, 56));
    // The program offers 2 and requests 16: each depth becomes the smaller of both ends' values.
    assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 3));
    assert_eq!((rep.local_id, rep.remote_id, rep.psn), (id, 1, conn.rq_psn));
}

#[test]
fn requests_and_replies_of_burst_are_known_by_their_vendor_id() {
    let named = |message| {
        let mut mad = [0; MAD_LEN];
        Mad { tid: 1, modifier: 0, message, data: &[] }.emit(&mut mad);
        let mut other_class = mad;
        other_class[1] = 0x32;
        assert!(!names_burst(&other_class));
        names_burst(&mad)
    };
    for (vendor_id, is_burst) in
        [(BURST_VENDOR, true), (0, false), (BURST_VENDOR ^ 1, false), (BURST_VENDOR ^ 1 << 16, false)]
    {
        assert_eq!(named(CmMessage::Req(Req { vendor_id, ..req(1, 50) })), is_burst);
        assert_eq!(named(CmMessage::Rep(Rep { vendor_id, ..rep(1) })), is_burst);
    }
    assert!(!named(CmMessage::Rtu(Rtu { local_id: 1, remote_id: 1 })));
}

#[test]
fn unknown_vendors_make_both_ends_fall_back() {
    for (vendor_id, answer, class) in
        [(0, 0, PeerClass::Standard), (0x1234, 0, PeerClass::Standard), (BURST_VENDOR, BURST_VENDOR, PeerClass::Burst)]
    {
        let mut host = Host::new(1);
        ask(&mut host, Req { vendor_id, ..req(1, 50) });
        assert_eq!(host.world.stories[0].negotiated.expect("a request").peer, class);
        host.accept(NOW, 0);
        let [CmMessage::Rep(rep)] = taken(&mut host)[..] else { panic!("no REP") };
        assert_eq!(rep.vendor_id, answer);
    }
}

#[test]
fn a_repeated_request_gets_what_the_first_got() {
    let mut host = Host::new(1);
    ask(&mut host, req(1, 50));
    let id = host.world.stories[0].conn;
    // The program has not accepted yet: an MRA asks the peer to wait.
    let [CmMessage::Mra(mra)] = ask(&mut host, req(1, 50))[..] else { panic!("no MRA") };
    assert_eq!((mra.local_id, mra.remote_id, mra.message), (id, 1, 0));
    host.accept(NOW, 0);
    let first = taken(&mut host);
    assert_eq!(ask(&mut host, req(1, 50)), first);
    give(&mut host, Rtu { local_id: 1, remote_id: id });
    assert!(ask(&mut host, req(1, 50)).is_empty());
    assert_eq!(host.world.stories.len(), 1, "shown once");
    assert_eq!(host.count(Reason::CmDuplicate), 3);
}

#[test]
fn another_request_with_the_same_id_is_rejected() {
    let mut host = Host::new(1);
    ask(&mut host, req(1, 50));
    let [CmMessage::Rej(rej)] = ask(&mut host, req(1, 51))[..] else { panic!("no REJ") };
    assert_eq!(rej.reason, reject::DUPLICATE_COMM_ID);
}

#[test]
fn requests_that_cannot_be_carried_are_rejected_with_the_reason() {
    let cases = [
        (Req { service_id: service_id(PS_TCP, 9), ..req(1, 50) }, reject::INVALID_SERVICE_ID),
        (Req { service_id: 0x0002_0001, ..req(1, 50) }, reject::INVALID_SERVICE_ID),
        (Req { transport: 2, ..req(1, 50) }, reject::INVALID_TRANSPORT),
        (Req { transport: 3, extended_transport: 1, ..req(1, 50) }, reject::INVALID_TRANSPORT),
        (Req { transport: 3, extended_transport: 2, ..req(1, 50) }, reject::INVALID_TRANSPORT),
        (Req { pkey: 0x8001, ..req(1, 50) }, reject::UNSUPPORTED),
        (Req { qpn: 1, ..req(1, 50) }, reject::UNSUPPORTED),
        (Req { local_id: 0, ..req(1, 50) }, reject::UNSUPPORTED),
        (Req { mtu: 5, ..req(1, 50) }, reject::INVALID_MTU),
        (Req { mtu: 9, ..req(1, 50) }, reject::INVALID_MTU),
    ];
    for (request, reason) in cases {
        let mut host = Host::new(1);
        host.world.mtu = Mtu::B2048;
        let mut sent = ask(&mut host, request);
        // Port 9 has no listener, but may get one soon.
        assert_eq!(sent.is_empty(), request.service_id == service_id(PS_TCP, 9));
        host.cm.on_timer(NOW + Nanos::from_ms(60), 10, &mut host.world);
        sent.extend(taken(&mut host));
        let [CmMessage::Rej(rej)] = sent[..] else { panic!("no REJ") };
        assert_eq!((rej.reason, rej.remote_id, rej.message), (reason, request.local_id, 0));
        assert!(host.cm.is_empty() && host.world.stories.is_empty());
    }
    let mut host = Host::new(1);
    let [CmMessage::Rej(rej)] = give_at(&mut host, NOW, 7, req(1, 50), &[1; 92])[..] else { panic!("no REJ") };
    assert_eq!(rej.reason, reject::UNSUPPORTED, "no RDMA-CM header");
}

#[test]
fn a_request_may_come_a_moment_before_its_listener() {
    let mut host = Host::new(1);
    host.cm.unlisten(|_| true);
    assert!(
        ask(&mut host, req(1, 50)).is_empty()
            && ask(&mut host, Req { service_id: service_id(PS_TCP, 9), ..req(2, 51) }).is_empty()
    );
    assert_eq!((host.count(Reason::CmEarly), host.world.stories.len()), (2, 0));
    let soon = NOW + Nanos::from_ms(10);
    assert_eq!(host.cm.on_timer(soon, 10, &mut host.world), 0, "nothing is due");
    host.listen(8);
    assert!(host.cm.next_deadline() <= soon);
    host.cm.on_timer(soon, 10, &mut host.world);
    assert_eq!(host.world.stories.len(), 1, "shown to its listener");
    assert!(taken(&mut host).is_empty(), "the other one still waits");
    host.accept(soon, 0);
    let [CmMessage::Rep(_)] = taken(&mut host)[..] else { panic!("no REP") };
    host.cm.on_timer(NOW + Nanos::from_ms(60), 10, &mut host.world);
    let [CmMessage::Rej(rej)] = taken(&mut host)[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.remote_id), (reject::INVALID_SERVICE_ID, 2));
}

#[test]
fn requests_that_come_early_have_little_room() {
    let mut host = Host::new(1);
    let strange = |n| Req { service_id: service_id(PS_TCP, 9), ..req(n, 50 + n) };
    let at_once = (1..=200).filter(|n| !ask(&mut host, strange(*n)).is_empty()).count();
    assert_eq!(at_once, 200 - 64);
    host.cm.on_timer(NOW + Nanos::from_ms(60), 1000, &mut host.world);
    assert_eq!((taken(&mut host).len(), host.count(Reason::CmNobodyListens)), (64, 200));
    assert!(ask(&mut host, strange(201)).is_empty(), "there is room again");
}

/// Sets bytes of a message's body, which begins after the MAD header of 24 bytes.
fn body(mad: &[u8; 256]) -> &[u8] {
    &mad[24..]
}

#[test]
fn an_initiator_requests_a_target_by_the_extended_transport_type() {
    let mut host = Host::new(1);
    host.xrc = true;
    host.connect(NOW, IpAddr::from(PEER), b"data");
    let sent = host.world.sent[0].1;
    // Transport service type 3 (bits 1 and 2 of byte 43), extended transport type 1 (bits 0 to 2 of byte 51).
    assert_eq!((body(&sent)[43] >> 1 & 3, body(&sent)[51] & 7), (3, 1));
    let [CmMessage::Req(sent)] = taken(&mut host)[..] else { panic!("no REQ") };
    assert_eq!((sent.initiator_depth, sent.responder_resources), (4, 0), "it answers no READs");
    assert_eq!((sent.retry_count, sent.rnr_retry_count, sent.srq), (0, 0, false));
    let id = host.world.stories[0].conn;
    let reply = Rep { qpn: 0, eecn: 60, srq: true, rnr_retry_count: 6, initiator_depth: 0, ..rep(id) };
    let [CmMessage::Rtu(_)] = give(&mut host, reply)[..] else { panic!("no RTU") };
    let n = host.world.stories[0].negotiated.expect("established");
    assert_eq!((n.remote_qpn, n.srq, n.sq_psn), (60, true, 5));
    assert_eq!((n.initiator_depth, n.responder_resources, n.retry_count, n.rnr_retry_count), (2, 0, 7, 6));
    host.disconnect(NOW, 0);
    let [CmMessage::Dreq(dreq)] = taken(&mut host)[..] else { panic!("no DREQ") };
    assert_eq!(dreq.remote_qpn, 60);
}

#[test]
fn a_target_answers_in_the_place_of_end_to_end_contexts() {
    let mut host = Host::new(1);
    host.xrc = true;
    host.listen(8);
    let request = Req { transport: 3, extended_transport: 1, responder_resources: 0, ..req(1, 50) };
    assert!(ask(&mut host, request).is_empty());
    host.accept(NOW, 0);
    let sent = host.world.sent[0].1;
    assert_eq!((&body(&sent)[12..15], &body(&sent)[16..19]), (&[0, 0, 0][..], &[0, 0, 101][..]), "QPN and EECN");
    let [CmMessage::Rep(rep)] = taken(&mut host)[..] else { panic!("no REP") };
    assert_eq!((rep.qpn, rep.eecn, rep.srq, rep.flow_control), (0, 101, true, false));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 0), "it asks for no READs");
    assert_eq!(host.world.stories[0].negotiated.map(|n| (n.remote_qpn, n.responder_resources)), Some((50, 5)));
    assert!(give(&mut host, Rtu { local_id: 1, remote_id: rep.local_id }).is_empty());
    let dreq = |remote_qpn| Dreq { local_id: 1, remote_id: rep.local_id, remote_qpn };
    assert!(give(&mut host, dreq(0)).is_empty(), "another queue pair");
    assert!(matches!(give(&mut host, dreq(101))[..], [CmMessage::Drep(_)]));
}

#[test]
fn a_listener_of_one_kind_refuses_requests_of_the_other() {
    for (xrc, transport) in [(false, Transport::Xrc), (false, Transport::Uc), (true, Transport::Rc)] {
        let mut host = Host::new(1);
        host.xrc = xrc;
        host.listen(8);
        let (transport, extended_transport) = transport.codes();
        let request = Req { transport, extended_transport, ..req(1, 50) };
        let [CmMessage::Rej(rej)] = ask(&mut host, request)[..] else { panic!("no REJ") };
        assert_eq!(rej.reason, reject::INVALID_TRANSPORT);
        assert_eq!((host.count(Reason::CmBadRequest), host.world.stories.len()), (1, 0));
    }
}

#[test]
fn a_disconnect_before_the_rtu_reaches_the_peer() {
    let (mut host, id, rep) = accepted();
    host.disconnect(NOW, 0);
    let [CmMessage::Dreq(_)] = taken(&mut host)[..] else { panic!("no DREQ") };
    // The REP was lost: the peer repeats its REQ, and does not know the id in the DREQ.
    let [CmMessage::Rej(rej)] = ask(&mut host, req(1, 50))[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.remote_id, rej.local_id), (reject::CONSUMER, 1, 0));
    assert_eq!(host.cm.state(id), Some(CmState::DreqSent));
    assert!(give(&mut host, Drep { local_id: 1, remote_id: rep.local_id }).is_empty());
    assert!(host.world.stories[0].saw(K::Disconnected));
}

#[test]
fn a_smaller_link_is_found_out() {
    let mut harness = Harness::new(1, Weather::default());
    harness.hosts[1].world.mtu = Mtu::B1024;
    let to = harness.hosts[1].ip;
    harness.hosts[0].connect(harness.now, to, b"kept");
    harness.run(Nanos::from_ms(1000));
    for host in &harness.hosts {
        assert!(host.world.stories[0].saw(K::Established));
        assert_eq!(host.world.stories[0].negotiated.expect("conn").mtu, Mtu::B1024);
    }
    assert_eq!(harness.hosts[1].count(Reason::CmBadRequest), 1);
}

#[test]
fn the_backlog_bounds_what_waits_and_the_peer_may_ask_again() {
    let mut host = Host::new(1);
    host.listen(2);
    let queue_limit = host.backlog.queue_limit();
    assert_eq!(queue_limit, 2 * QUEUED_PER_PLACE);
    // The last request finds backlog and queue full.
    let last = 2 + queue_limit + 1;
    for n in 1..=last {
        assert!(ask(&mut host, req(n, 50 + n)).is_empty());
    }
    assert_eq!((host.world.stories.len(), host.count(Reason::CmBacklogFull)), (2, 1));
    assert_eq!((host.backlog.waiting(), host.backlog.queued()), (2, queue_limit));
    assert_eq!(host.cm.on_timer(NOW, 10, &mut host.world), 0, "nothing is due");
    host.accept(NOW, 0);
    assert_eq!((host.backlog.waiting(), host.cm.next_deadline()), (1, Nanos(0)));
    assert_eq!(host.cm.on_timer(NOW, 10, &mut host.world), 1);
    assert_eq!((host.world.stories.len(), host.backlog.waiting(), host.backlog.queued()), (3, 2, queue_limit - 1));
    assert_eq!(host.world.stories[2].negotiated.map(|n| n.remote_qpn), Some(53), "the oldest first");
    assert!(ask(&mut host, req(last, 50 + last)).iter().all(|m| !matches!(m, CmMessage::Rej(_))));
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (queue_limit, 1), "there is room again");
    taken(&mut host);
    host.cm.unlisten(|_| true);
    host.cm.on_timer(NOW, 100, &mut host.world);
    assert_eq!(taken(&mut host).len() as u32, queue_limit, "queued requests end with their listener");
    let mut host = Host::new(1);
    host.listen(2);
    ask(&mut host, req(1, 51));
    host.cm.set_limit(1);
    ask(&mut host, req(4, 53));
    assert_eq!(host.count(Reason::CmNoRoom), 1);
    host.cm.set_limit(100);
    host.world.refuses = Some(AdmissionRefusal::NoRoom);
    ask(&mut host, req(4, 53));
    assert_eq!((host.count(Reason::CmNoRoom), host.backlog.waiting()), (2, 1), "the place is given back");
}

#[test]
fn a_small_backlog_is_of_requests_that_are_not_read() {
    let mut host = Host::new(1);
    host.listen(1);
    host.world.unread = 1;
    ask(&mut host, req(1, 50));
    ask(&mut host, req(2, 51));
    assert_eq!((host.world.stories.len(), host.backlog.queued()), (1, 1));
    // The program has read the first, and waits for the second before it accepts any.
    host.world.unread = 0;
    let later = NOW + Nanos::from_ms(10);
    assert!(host.cm.next_deadline() <= later, "nothing tells the machine that events were read: it looks by itself");
    host.cm.on_timer(later, 10, &mut host.world);
    assert_eq!((host.world.stories.len(), host.backlog.queued()), (2, 0));
    for n in 3..READ_MIN + 9 {
        ask(&mut host, req(n, 50 + n));
    }
    assert_eq!((host.backlog.waiting(), host.backlog.queued()), (READ_MIN, 8));
    for n in READ_MIN + 9..READ_MIN + 29 {
        ask(&mut host, req(n, 50 + n));
    }
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (QUEUED_PER_PLACE, 12), "not without end");
}

/// A peer that sends and withdraws requests repeatedly makes no more work for a program than a peer that only sends requests.
#[test]
fn requests_that_are_taken_back_keep_their_places() {
    let mut host = Host::new(1);
    host.listen(2);
    for n in 1..=50 {
        ask(&mut host, req(n, 50 + n));
        let mut rej = Rej { local_id: n, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
        rej.info[..8].copy_from_slice(&GUID.to_be_bytes());
        give(&mut host, rej);
    }
    assert_eq!((host.world.stories.len(), host.backlog.queued(), host.count(Reason::CmBacklogFull)), (2, 0, 0));
    assert_eq!((host.cm.len(), host.backlog.waiting()), (0, 2));
    host.world.places.clear();
    // The same with requests that replace each other: the older one is refused, because the peer's queue pair has a new request.
    for n in 1..=50 {
        ask(&mut host, req(100 + n, 50));
    }
    assert_eq!((host.world.stories.len(), host.backlog.waiting()), (4, 2));
}

/// The peer has a new queue pair with the number of an old one, whose connection was not ended.
#[test]
fn a_stale_connection_is_ended_by_a_reply() {
    let (mut host, id) = asked(QpSetup::Done);
    let [CmMessage::Rtu(_)] = give(&mut host, rep(id))[..] else { panic!("no RTU") };
    host.connect(NOW, IpAddr::from(PEER), b"again");
    let second = host.world.stories[1].conn;
    taken(&mut host);
    let sent = give(&mut host, Rep { local_id: 10, ..rep(second) });
    let [CmMessage::Rej(rej), CmMessage::Dreq(dreq)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.message, rej.remote_id), (reject::STALE_CONNECTION, 1, 10));
    assert_eq!((dreq.local_id, dreq.remote_id, dreq.remote_qpn), (id, 9, 60));
    give(&mut host, Drep { local_id: 9, remote_id: id });
    assert_eq!(host.world.stories[0].last(), Some(K::Disconnected));
    assert_eq!(host.world.stories[1].events, [(K::ConnectError, reject::STALE_CONNECTION)]);
}

#[test]
fn an_accepted_connection_may_be_rejected_until_the_rtu() {
    let (mut host, id, _) = accepted();
    host.cm.reject(NOW, id, reject::CONSUMER, b"no", &mut host.world).expect("no RTU came");
    let [CmMessage::Rej(rej)] = taken(&mut host)[..] else { panic!("no REJ") };
    assert_eq!((rej.local_id, rej.remote_id, rej.message, rej.reason), (id, 1, 2, reject::CONSUMER));
    assert!(host.cm.is_empty());
    let (mut host, id) = established();
    let late = host.cm.reject(NOW, id, reject::CONSUMER, b"no", &mut host.world);
    assert_eq!(late, Err(CmError::WrongState));
}

/// The peer's transactions have other ids: those of the DREQs of this end are its connection's id below the highest bit.
#[test]
fn a_disconnect_has_a_transaction_id_of_its_own() {
    let (mut host, id) = established();
    host.disconnect(NOW, 0);
    let [(_, mad)] = host.world.sent[..] else { panic!("no DREQ") };
    assert_eq!(Mad::parse(&mad).expect("well formed").tid, 1 << 63 | u64::from(id));
}

#[test]
fn a_disconnect_without_answer_reports_the_time_out() {
    let (mut host, id) = established();
    host.disconnect(NOW, 0);
    while host.cm.state(id) == Some(CmState::DreqSent) {
        host.cm.on_timer(host.cm.next_deadline(), 1, &mut host.world);
    }
    assert_eq!(host.world.stories[0].events.last(), Some(&(K::Disconnected, reject::TIMEOUT)));
}

#[test]
fn a_stale_connection_is_ended_by_a_new_request() {
    let (mut host, id) = established();
    let sent = ask(&mut host, req(2, 50));
    let [CmMessage::Rej(rej), CmMessage::Dreq(dreq)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.remote_id), (reject::STALE_CONNECTION, 2));
    assert_eq!((dreq.local_id, dreq.remote_id, dreq.remote_qpn), (id, 1, 50));
    // The peer does not know the old connection: a new request is accepted after TIMEWAIT.
    give(&mut host, Drep { local_id: 1, remote_id: id });
    assert!(ask(&mut host, req(2, 50)).is_empty());
    host.cm.on_timer(Nanos::from_ms(600), 10, &mut host.world);
    assert!(ask(&mut host, req(2, 50)).is_empty());
    assert_eq!(host.world.stories.len(), 2);
}

#[test]
fn forged_and_unknown_messages_change_nothing() {
    let (mut host, id) = established();
    let own_qpn = 101;
    assert!(give(&mut host, Rtu { local_id: 1, remote_id: id ^ 0x0100_0000 }).is_empty());
    assert!(give(&mut host, Mra { local_id: 1, remote_id: 5, ..Mra::default() }).is_empty());
    assert!(give(&mut host, Rej { local_id: 1, remote_id: 5, reason: 28, ..Rej::default() }).is_empty());
    let [CmMessage::Rej(rej)] = give(&mut host, rep(5))[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.message, rej.remote_id), (reject::INVALID_COMM_ID, 1, 9));
    let [CmMessage::Drep(_)] = give(&mut host, Dreq { local_id: 4, remote_id: 5, remote_qpn: 1 })[..] else {
        panic!("no DREP")
    };
    // Wrong queue pair, wrong peer id, wrong address.
    assert!(give(&mut host, Dreq { local_id: 1, remote_id: id, remote_qpn: own_qpn + 1 }).is_empty());
    assert!(give(&mut host, Dreq { local_id: 2, remote_id: id, remote_qpn: own_qpn }).is_empty());
    let mut bytes = [0; 256];
    let message = Dreq { local_id: 1, remote_id: id, remote_qpn: own_qpn }.into();
    Mad { tid: 1, modifier: 0, message, data: &[] }.emit(&mut bytes);
    let elsewhere = PathRecord { flow: Flow { dst: IpAddr::from([10, 0, 0, 8]), ..path().flow }, ..path() };
    host.cm.on_mad(NOW, &elsewhere, &bytes, &mut host.world);
    assert_eq!(host.cm.state(id), Some(CmState::Established));
    assert_eq!(host.count(Reason::CmForged), 3);
    // The valid message.
    let [CmMessage::Drep(_)] = give(&mut host, message)[..] else { panic!("no DREP") };
    assert_eq!(host.world.stories[0].last(), Some(K::Disconnected));
    let [CmMessage::Drep(_)] = give(&mut host, message)[..] else { panic!("a late one is answered") };
}

#[test]
fn what_is_no_message_is_dropped_with_a_reason() {
    let mut host = Host::new(1);
    let mut good = [0; 256];
    Mad { tid: 1, modifier: 0, message: req(1, 50).into(), data: &header() }.emit(&mut good);
    let mut drop = |bytes: &[u8], reason: Reason| {
        host.cm.on_mad(NOW, &path(), bytes, &mut host.world);
        assert_eq!(host.count(reason), 1, "{reason:?}");
        host.world.reasons.clear();
        assert!(host.cm.is_empty() && host.world.sent.is_empty());
    };
    drop(&[], Reason::MadMalformed);
    drop(&good[..255], Reason::MadMalformed);
    for (at, value, reason) in [
        (1, 0x04, Reason::MadClass),
        (2, 1, Reason::MadVersion),
        (3, 1, Reason::MadUnknown),
        (17, 0x1b, Reason::MadUnknown),
    ] {
        let mut bad = good;
        bad[at] = value;
        drop(&bad, reason);
    }
    give(&mut host, Apr::default());
    assert_eq!(host.count(Reason::CmUnexpected), 1);
}

#[test]
fn a_reply_is_acknowledged_again_when_it_comes_again() {
    let (mut host, id) = asked(QpSetup::Done);
    let first = give(&mut host, rep(id));
    assert_eq!(first, [CmMessage::Rtu(Rtu { local_id: id, remote_id: 9 })]);
    let conn = host.world.stories[0].negotiated.expect("conn");
    assert_eq!((conn.remote_qpn, conn.sq_psn), (60, 5));
    assert_eq!((conn.responder_resources, conn.initiator_depth), (1, 2));
    assert_eq!(give(&mut host, rep(id)), first);
    assert!(give(&mut host, Rep { local_id: 10, ..rep(id) }).is_empty(), "another's");
    assert_eq!(host.world.stories[0].events.len(), 1);
}

#[test]
fn a_peer_may_choose_0_as_its_id() {
    let (mut host, id) = asked(QpSetup::Done);
    let rtu = give(&mut host, Rep { local_id: 0, ..rep(id) });
    assert_eq!(rtu, [CmMessage::Rtu(Rtu { local_id: id, remote_id: 0 })]);
    assert_eq!(host.world.stories[0].last(), Some(K::Established));
}

#[test]
fn a_program_may_ready_its_queue_pair_itself() {
    let (mut host, id) = asked(QpSetup::ByProgram);
    assert!(give(&mut host, rep(id)).is_empty());
    assert_eq!(host.world.stories[0].last(), Some(K::Response));
    let [CmMessage::Mra(mra)] = give(&mut host, rep(id))[..] else { panic!("the peer shall wait") };
    assert_eq!((mra.message, mra.remote_id), (1, 9));
    assert_eq!(host.cm.establish(NOW, id, &mut host.world), Ok(()));
    assert_eq!(taken(&mut host), [CmMessage::Rtu(Rtu { local_id: id, remote_id: 9 })]);
    assert_eq!(host.cm.establish(NOW, id, &mut host.world), Err(CmError::WrongState));
}

#[test]
fn a_queue_pair_that_fails_rejects_the_reply() {
    let (mut host, id) = asked(QpSetup::Failed);
    let [CmMessage::Rej(rej)] = give(&mut host, rep(id))[..] else { panic!("no REJ") };
    assert_eq!((rej.message, rej.reason, rej.remote_id), (1, reject::CONSUMER, 9));
    assert_eq!(host.world.stories[0].last(), Some(K::ConnectError));
    assert!(host.cm.is_empty());
}

#[test]
fn an_mra_stops_the_clock() {
    let (mut host, id) = asked(QpSetup::Done);
    // 4.096 us * 2^20 is 4.3 s.
    give(&mut host, Mra { local_id: 9, remote_id: id, message: 0, service_timeout: 20 });
    host.cm.on_timer(Nanos::from_ms(4_200), 10, &mut host.world);
    assert!(taken(&mut host).is_empty());
    host.cm.on_timer(Nanos::from_ms(4_500), 10, &mut host.world);
    assert_eq!(taken(&mut host).len(), 1, "the request, again");
    give(&mut host, Mra { local_id: 9, remote_id: id, message: 2, service_timeout: 20 });
    assert_eq!(host.count(Reason::CmUnexpected), 1, "an MRA of something else");
}

#[test]
fn rejects_end_what_they_name() {
    let (mut host, id) = asked(QpSetup::Done);
    give(&mut host, Rej { local_id: 9, remote_id: id, reason: 28, ..Rej::default() });
    assert_eq!(host.world.stories[0].events, [(K::Rejected, 28)]);
    assert!(host.cm.is_empty());
    let (mut host, id, _) = accepted();
    give(&mut host, Rej { local_id: 2, remote_id: id, message: 1, reason: 28, ..Rej::default() });
    assert_eq!(host.cm.state(id), Some(CmState::RepSent), "another's");
    give(&mut host, Rej { local_id: 1, remote_id: id, message: 1, reason: 28, ..Rej::default() });
    assert_eq!(host.world.stories[0].events, [(K::Rejected, 28)]);
    // The peer gave up before it knew this end's id: the REJ has the peer's id and GUID.
    let mut host = Host::new(1);
    ask(&mut host, req(1, 50));
    let mut rej = Rej { local_id: 1, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
    give(&mut host, rej);
    assert_eq!(host.cm.len(), 1, "the GUID is wrong");
    rej.info[..8].copy_from_slice(&GUID.to_be_bytes());
    give(&mut host, rej);
    assert_eq!(host.world.stories[0].events, [(K::Rejected, reject::TIMEOUT)]);
    host.world.places.clear();
    assert_eq!(host.backlog.waiting(), 0);
}

#[test]
fn the_first_data_may_come_before_the_rtu() {
    let (mut host, id, _) = accepted();
    assert_eq!(host.cm.notify(NOW, id, &mut host.world), Ok(()));
    assert_eq!(host.world.stories[0].events, [(K::Established, 0)]);
    give(&mut host, Rtu { local_id: 1, remote_id: id });
    assert_eq!((host.world.stories[0].events.len(), host.count(Reason::CmDuplicate)), (1, 1));
}

#[test]
fn crossed_releases_end_once_at_both_ends() {
    let (mut host, id) = established();
    host.disconnect(NOW, 0);
    assert!(matches!(taken(&mut host)[..], [CmMessage::Dreq(_)]));
    let [CmMessage::Drep(_)] = give(&mut host, Dreq { local_id: 1, remote_id: id, remote_qpn: 101 })[..] else {
        panic!("no DREP")
    };
    give(&mut host, Drep { local_id: 1, remote_id: id });
    let kinds: Vec<K> = host.world.stories[0].events.iter().map(|(k, _)| *k).collect();
    assert_eq!(kinds, [K::Established, K::Disconnected]);
    host.disconnect(NOW, 0);
    assert!(taken(&mut host).is_empty());
    host.cm.on_timer(Nanos::from_ms(500), 10, &mut host.world);
    assert_eq!(host.world.stories[0].last(), Some(K::TimewaitExit));
    assert!(host.cm.is_empty());
}

#[test]
fn alternate_paths_are_declined() {
    let (mut host, id) = established();
    let [CmMessage::Apr(apr)] = give(&mut host, Lap { local_id: 1, remote_id: id, ..Lap::default() })[..] else {
        panic!("no APR")
    };
    assert_eq!(apr.status, 2);
    let [CmMessage::Apr(apr)] = give(&mut host, Lap { local_id: 1, remote_id: 77, ..Lap::default() })[..] else {
        panic!("no APR")
    };
    assert_eq!(apr.status, 1);
}

#[test]
fn an_ended_owner_sends_the_message_of_the_state() {
    let gone = |mut host: Host, id: u32| {
        host.cm.destroy(NOW, id, &mut host.world);
        let events = host.world.stories[0].events.len();
        let sent = taken(&mut host);
        host.cm.on_timer(Nanos::from_ms(100_000), 100, &mut host.world);
        assert_eq!(host.world.stories[0].events.len(), events, "no further events");
        sent
    };
    let (host, id) = asked(QpSetup::Done);
    let [CmMessage::Rej(rej)] = gone(host, id)[..] else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.info_len), (reject::TIMEOUT, 8));
    let mut host = Host::new(1);
    ask(&mut host, req(1, 50));
    let id = host.world.stories[0].conn;
    let [CmMessage::Rej(rej)] = gone(host, id)[..] else { panic!("no REJ") };
    assert_eq!(rej.reason, reject::CONSUMER);
    let (host, id, _) = accepted();
    assert!(matches!(gone(host, id)[..], [CmMessage::Dreq(_)]));
    let (host, id) = established();
    assert!(matches!(gone(host, id)[..], [CmMessage::Dreq(_)]));
}

#[test]
fn two_ends_that_ask_each_other_get_two_connections() {
    let mut harness = Harness::new(3, Weather::default());
    let (a, b) = (harness.hosts[0].ip, harness.hosts[1].ip);
    harness.hosts[0].connect(harness.now, b, &[]);
    harness.hosts[1].connect(harness.now, a, &[]);
    harness.run(Nanos::from_ms(1000));
    for host in &harness.hosts {
        assert_eq!(host.world.stories.iter().filter(|s| s.saw(K::Established)).count(), 2);
    }
}

#[test]
fn datagram_services_are_requested_and_answered() {
    let mut host = Host::new(1);
    let service = service_id(PS_UDP, 5);
    host.world.stories.push(crate::harness::Story::default());
    let id = host.cm.resolve(NOW, 0, &path(), service, &header(), &mut host.world).expect("room");
    let [CmMessage::SidrReq(sent)] = taken(&mut host)[..] else { panic!("no SIDR_REQ") };
    assert_eq!((sent.request_id, sent.service_id, sent.pkey), (id, service, 0xffff));
    let answer =
        burst_cm::message::SidrRep { request_id: id, qpn: 5, qkey: 6, service_id: service, ..Default::default() };
    give(&mut host, burst_cm::message::SidrRep { service_id: 1, ..answer });
    assert!(host.world.stories[0].events.is_empty(), "another's");
    give(&mut host, answer);
    let story = &host.world.stories[0];
    assert_eq!((story.last(), story.negotiated.map(|n| (n.remote_qpn, n.qkey))), (Some(K::Established), Some((5, 6))));
    assert!(host.cm.is_empty());
    let param = ConnParam { qpn: 1, qkey: 2, ..ConnParam::default() };
    let params = EndParams { param, ..EndParams::default() };
    assert_eq!(host.cm.serve(NOW, id, &params, &mut host.world), Err(CmError::Gone));
}

#[test]
fn a_datagram_request_may_arrive_just_before_its_listener() {
    use burst_cm::message::SidrReq;
    let mut host = Host::new(1);
    let req = |id, port| SidrReq { request_id: id, pkey: 0xffff, service_id: service_id(PS_UDP, port) };
    for (id, port) in [(1, 5), (2, 9)] {
        assert!(give_at(&mut host, NOW, 7, req(id, port), &header()).is_empty());
    }
    assert_eq!((host.count(Reason::CmEarly), host.world.stories.len()), (2, 0));
    let (backlog, soon) = (Arc::new(Backlog::new(8)), NOW + Nanos::from_ms(10));
    let (owner, service_id) = (u32::MAX, service_id(PS_UDP, 5));
    let listener =
        Listener { owner, service_id, addr: None, device: None, sidr: true, transport: Transport::Rc, backlog };
    host.cm.listen(listener).expect("free");
    host.cm.on_timer(soon, 10, &mut host.world);
    assert_eq!(host.world.stories.len(), 1, "shown to its listener");
    assert!(taken(&mut host).is_empty(), "the other one still waits");
    host.cm.on_timer(NOW + Nanos::from_ms(60), 10, &mut host.world);
    let [CmMessage::SidrRep(rep)] = taken(&mut host)[..] else { panic!("no SIDR_REP") };
    assert_eq!((rep.request_id, rep.status), (2, 1), "service not supported");
    assert_eq!(host.count(Reason::CmNobodyListens), 1);
    let strange = SidrReq { service_id: 1, ..req(3, 5) };
    assert!(matches!(give(&mut host, strange)[..], [CmMessage::SidrRep(_)]), "no service of rdma_cm's: at once");
}

#[test]
fn how_often_the_peer_tries_again_is_what_we_ask_of_it() {
    let mut host = Host::new(1);
    ask(&mut host, req(1, 50));
    let id = host.world.stories[0].conn;
    let requested = host.world.stories[0].negotiated.expect("a request");
    assert_eq!((requested.rnr_retry_count, requested.peer_rnr_retry_count), (4, 4), "this end has not chosen yet");
    let (_, offer) = host.cm.offer(id, &ConnParam { rnr_retry_count: 7, ..ConnParam::default() }).expect("in time");
    assert_eq!((offer.rnr_retry_count, offer.peer_rnr_retry_count), (4, 7));
}

/// Linux: `cm_rej_handler` moves the connection to TIMEWAIT, `cma_ib_handler` reports REJECTED with the reason and the private
/// data. No TIMEWAIT_EXIT follows, because the id is not in state DISCONNECT.
#[test]
fn a_reject_of_an_established_connection_is_reported_as_rejected() {
    for disconnecting in [false, true] {
        let (mut host, id) = established();
        if disconnecting {
            host.disconnect(NOW, 0);
            taken(&mut host);
        }
        let rej = Rej { local_id: 1, remote_id: id, message: 2, reason: reject::TIMEOUT, ..Rej::default() };
        assert!(give_at(&mut host, NOW, 7, Rej { local_id: 2, ..rej }, b"why").is_empty());
        assert_eq!(host.world.stories[0].events.len(), 1, "a REJ of another connection");
        assert!(give_at(&mut host, NOW, 7, rej, b"why").is_empty());
        let story = &host.world.stories[0];
        assert_eq!(story.events, [(K::Established, 0), (K::Rejected, reject::TIMEOUT)]);
        assert_eq!((&story.data[..3], host.count(Reason::CmRejected)), (&b"why"[..], 1));
        assert_eq!(host.cm.state(id), Some(CmState::TimeWait));
        host.disconnect(NOW, 0);
        host.cm.on_timer(Nanos::from_ms(500), 10, &mut host.world);
        assert_eq!((host.world.stories[0].events.len(), host.cm.len()), (2, 0), "the id is rejected, and no more");
        assert!(taken(&mut host).is_empty());
    }
}
