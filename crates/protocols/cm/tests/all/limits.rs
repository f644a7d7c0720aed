//! Exactly at a limit: the longest private data of each message, the end of each timer, the last place of each store, and the
//! answers of workers that do not own a message.

use crate::harness::{Host, PORT, Story};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cm::conn::{FIRST_TIMEOUT, LONGEST_TIMEOUT, RETRIES_MAX, SERVICE_TIME_MAX, TIME_WAIT, time_of};
use burst_cm::message::{CmMessage, Drep, Dreq, Lap, Mad, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq, reject};
use burst_cm::service::{PS_TCP, PS_UDP, PrivateDataHeader, service_id};
use burst_cm::{
    Backlog, Cm, CmError, CmIds, CmState, ConnEventKind as K, ConnParam, ConnectParams, EndParams, Listener,
    PathRecord, QpSetup, Secret, Transport,
};
use burst_frame::Flow;
use std::net::IpAddr;
use std::sync::Arc;

const NOW: Nanos = Nanos::from_ms(1);
const GUID: u64 = 99;
/// A timer is served at most this late.
const TICK: Nanos = Nanos(1 << 14);
const SIDR: u64 = service_id(PS_UDP, 5);

fn peer() -> IpAddr {
    IpAddr::from([10, 0, 0, 9])
}

fn path_to(peer: IpAddr) -> PathRecord {
    PathRecord { device: DeviceId(0), flow: Flow { src: IpAddr::from([10, 0, 0, 1]), dst: peer, ..Flow::default() } }
}

fn bytes_of(message: impl Into<CmMessage>) -> [u8; 256] {
    let data = PrivateDataHeader { src: peer(), port: 5, dst: IpAddr::from([10, 0, 0, 1]) }.to_bytes();
    let mut bytes = [0; 256];
    Mad { tid: 7, modifier: 0, message: message.into(), data: &data }.emit(&mut bytes);
    bytes
}

/// Passes a message from `from` to the machine; returns what it sends.
fn give_from(host: &mut Host, now: Nanos, from: IpAddr, message: impl Into<CmMessage>) -> Vec<CmMessage> {
    host.cm.on_mad(now, &path_to(from), &bytes_of(message), &mut host.world);
    taken(host)
}

fn give(host: &mut Host, now: Nanos, message: impl Into<CmMessage>) -> Vec<CmMessage> {
    give_from(host, now, peer(), message)
}

fn taken(host: &mut Host) -> Vec<CmMessage> {
    host.world.sent.drain(..).map(|(_, mad)| Mad::parse(&mad).expect("well formed").message).collect()
}

fn req(id: u32) -> Req {
    Req {
        local_id: id,
        service_id: service_id(PS_TCP, PORT),
        ca_guid: GUID,
        qpn: 50 + id,
        pkey: 0xffff,
        mtu: Mtu::B1024 as u8,
        ..Req::default()
    }
}

fn rep(to: u32) -> Rep {
    Rep { local_id: 9, remote_id: to, qpn: 60, ca_guid: GUID, ..Rep::default() }
}

fn end(data: &[u8]) -> EndParams<'_> {
    EndParams { param: ConnParam { qpn: 77, ..ConnParam::default() }, ca_guid: 1, data }
}

/// A host that was shown a request; returns also the connection's id.
fn requested() -> (Host, u32) {
    let mut host = Host::new(1);
    assert_eq!(give(&mut host, NOW, req(1)), []);
    let id = host.world.stories[0].conn;
    (host, id)
}

/// Serves timers until a message is sent; returns when.
fn next_sent(host: &mut Host) -> Nanos {
    for _ in 0..1_000 {
        let now = host.cm.next_deadline();
        host.cm.on_timer(now, 10, &mut host.world);
        if !host.world.sent.is_empty() {
            return now;
        }
    }
    panic!("nothing is sent");
}

fn established() -> (Host, u32) {
    let (mut host, id) = requested();
    host.accept(NOW, 0);
    taken(&mut host);
    give(&mut host, NOW, Rtu { local_id: 1, remote_id: id });
    assert_eq!(host.cm.state(id), Some(CmState::Established));
    (host, id)
}

/// A host that has sent a request; returns also the connection's id.
fn asked(mtu: Mtu) -> (Host, u32) {
    let mut host = Host::new(1);
    host.world.mtu = mtu;
    host.connect(NOW, peer(), &[]);
    taken(&mut host);
    let id = host.world.stories[0].conn;
    (host, id)
}

/// A host with a listener for datagram services.
fn sidr_host() -> Host {
    let mut host = Host::new(1);
    let (backlog, owner, transport) = (Arc::new(Backlog::new(8)), u32::MAX, Transport::Rc);
    let listener = Listener { owner, service_id: SIDR, addr: None, device: None, sidr: true, transport, backlog };
    host.cm.listen(listener).expect("free");
    host
}

fn sidr_req(request_id: u32) -> SidrReq {
    SidrReq { request_id, pkey: 0xffff, service_id: SIDR }
}

#[test]
fn private_data_may_be_as_long_as_its_message_has_room_and_no_longer() {
    // Each call with data of a length, and the longest data of its message.
    type Call = fn(&[u8]) -> Result<(), CmError>;
    let calls: [(Call, usize); 6] = [
        (
            |data| {
                let mut host = Host::new(1);
                host.world.stories.push(Story::default());
                let (path, service_id, transport) = (path_to(peer()), service_id(PS_TCP, PORT), Transport::Rc);
                let end = EndParams { data, ..end(&[]) };
                let params = ConnectParams { path, service_id, transport, end, mtu: Mtu::B1024, ack_timeout: 14 };
                host.cm.connect(NOW, 0, &params, &mut host.world).map(drop)
            },
            Req::DATA_LEN,
        ),
        (
            |data| {
                let (mut host, id) = requested();
                host.cm.accept(NOW, id, &end(data), &mut host.world)
            },
            Rep::DATA_LEN,
        ),
        (
            |data| {
                let (mut host, id) = requested();
                host.cm.reject(NOW, id, reject::CONSUMER, data, &mut host.world)
            },
            Rej::DATA_LEN,
        ),
        (
            |data| {
                let mut host = Host::new(1);
                host.world.stories.push(Story::default());
                host.cm.resolve(NOW, 0, &path_to(peer()), SIDR, data, &mut host.world).map(drop)
            },
            SidrReq::DATA_LEN,
        ),
        (
            |data| {
                let mut host = sidr_host();
                give(&mut host, NOW, sidr_req(3));
                let id = host.world.stories[0].conn;
                host.cm.serve(NOW, id, &end(data), &mut host.world)
            },
            SidrRep::DATA_LEN,
        ),
        (
            |data| {
                let mut host = sidr_host();
                give(&mut host, NOW, sidr_req(3));
                let id = host.world.stories[0].conn;
                host.cm.reject(NOW, id, reject::CONSUMER, data, &mut host.world)
            },
            SidrRep::DATA_LEN,
        ),
    ];
    for (at, (call, longest)) in calls.into_iter().enumerate() {
        assert_eq!(call(&[]), Ok(()), "{at}");
        assert_eq!(call(&vec![7; longest]), Ok(()), "{at}");
        assert_eq!(call(&vec![7; longest + 1]), Err(CmError::DataTooLong), "{at}");
    }
}

#[test]
fn a_message_without_answer_is_repeated_after_waits_that_double_up_to_two_seconds() {
    let (mut host, id) = asked(Mtu::B1024);
    let (mut sent_at, mut wait) = (NOW, FIRST_TIMEOUT.0);
    for retry in 1..=RETRIES_MAX {
        let at = next_sent(&mut host);
        let (least, most) = (sent_at + Nanos(wait - wait / 4), sent_at + Nanos(wait + wait / 4) + TICK);
        assert!(at >= least && at <= most, "{retry}: {at:?} is not in {least:?} to {most:?}");
        assert_eq!(taken(&mut host).len(), 1, "{retry}");
        (sent_at, wait) = (at, (2 * wait).min(LONGEST_TIMEOUT.0));
    }
    assert_eq!((host.count(Reason::CmRetry), host.cm.state(id)), (15, Some(CmState::ReqSent)));
    next_sent(&mut host);
    assert!(matches!(taken(&mut host)[..], [CmMessage::Rej(Rej { reason: reject::TIMEOUT, .. })]));
    assert_eq!((host.count(Reason::CmTimeout), host.cm.is_empty()), (1, true));
    assert_eq!(host.world.stories[0].events, [(K::Unreachable, 0)]);
}

#[test]
fn an_answered_datagram_request_is_answered_again_until_timewait_ends_and_then_forgotten() {
    let mut host = sidr_host();
    assert_eq!(give(&mut host, NOW, sidr_req(3)), []);
    let id = host.world.stories[0].conn;
    host.cm.serve(NOW, id, &end(&[]), &mut host.world).expect("shown");
    let first = taken(&mut host);
    assert_eq!(
        (host.cm.state(id), host.cm.next_deadline() <= NOW + TIME_WAIT + Nanos::from_ms(2)),
        (Some(CmState::SidrDone), true)
    );
    assert_eq!(give(&mut host, NOW + Nanos::from_ms(200), sidr_req(3)), first);
    assert_eq!(host.cm.on_timer(NOW + Nanos::from_ms(240), 10, &mut host.world), 0, "not yet");
    assert_eq!(host.cm.on_timer(NOW + Nanos::from_ms(260), 10, &mut host.world), 1);
    assert_eq!((host.cm.len(), taken(&mut host)), (0, vec![]));
    assert_eq!(host.world.stories[0].events, [], "a service has no end");
}

#[test]
fn timewait_lasts_a_quarter_of_a_second() {
    let (mut host, id) = established();
    give(&mut host, NOW, Dreq { local_id: 1, remote_id: id, remote_qpn: 101 });
    assert_eq!(host.cm.state(id), Some(CmState::TimeWait));
    host.cm.on_timer(NOW + Nanos::from_ms(245), 10, &mut host.world);
    assert_eq!(host.world.stories[0].last(), Some(K::Disconnected));
    host.cm.on_timer(NOW + Nanos::from_ms(255), 10, &mut host.world);
    assert_eq!((host.world.stories[0].last(), host.cm.is_empty()), (Some(K::TimewaitExit), true));
}

#[test]
fn an_mra_suspends_a_timer_for_its_time_and_70_seconds_at_most() {
    // The wait that an MRA may prolong goes on after its time: 80 ms.
    let is_repeated_after = |host: &mut Host, time: Nanos| {
        let (at, expected) = (next_sent(host), NOW + time + FIRST_TIMEOUT);
        assert!(at >= expected && at <= expected + TICK, "{at:?} is not {expected:?}");
    };
    for (code, time) in [(10, time_of(10)), (20, time_of(20)), (31, SERVICE_TIME_MAX)] {
        let (mut host, id) = asked(Mtu::B1024);
        give(&mut host, NOW, Mra { local_id: 9, remote_id: id, message: 0, service_timeout: code });
        is_repeated_after(&mut host, time);
        let (mut host, id) = requested();
        host.accept(NOW, 0);
        taken(&mut host);
        give(&mut host, NOW, Mra { local_id: 1, remote_id: id, message: 1, service_timeout: code });
        is_repeated_after(&mut host, time);
    }
    assert_eq!((time_of(0), time_of(20)), (Nanos(4_096), Nanos(4_096 << 20)));
    // An MRA of another message, or of a connection that awaits nothing.
    let (mut host, id) = requested();
    host.accept(NOW, 0);
    let due = host.cm.next_deadline();
    for (local_id, message) in [(1, 0), (2, 1), (1, 2)] {
        give(&mut host, NOW, Mra { local_id, remote_id: id, message, service_timeout: 20 });
    }
    assert_eq!((host.cm.next_deadline(), host.count(Reason::CmUnexpected)), (due, 3));
    let (mut host, id) = established();
    give(&mut host, NOW, Mra { local_id: 1, remote_id: id, message: 1, service_timeout: 20 });
    assert_eq!((host.cm.next_deadline(), host.count(Reason::CmUnexpected)), (Nanos::NEVER, 1));
}

#[test]
fn a_rej_with_a_smaller_mtu_repeats_the_request_once() {
    let rej = |id: u32, info_len: u8, code: u8| {
        let mut rej = Rej { local_id: 9, remote_id: id, reason: reject::INVALID_MTU, info_len, ..Rej::default() };
        rej.info[0] = code;
        rej
    };
    // The code is in the low bits, or, as other stacks write it, in the high ones.
    for code in [Mtu::B1024 as u8, (Mtu::B1024 as u8) << 4] {
        let (mut host, id) = asked(Mtu::B2048);
        let [CmMessage::Req(again)] = give(&mut host, NOW, rej(id, 1, code))[..] else { panic!("no REQ") };
        assert_eq!((again.mtu, again.local_id, host.cm.state(id)), (Mtu::B1024 as u8, id, Some(CmState::ReqSent)));
        assert_eq!(give(&mut host, NOW, rej(id, 1, Mtu::B512 as u8)), [], "once");
        assert_eq!(host.world.stories[0].events, [(K::Rejected, reject::INVALID_MTU)]);
    }
    // The same MTU, a larger one, none, and one without a code.
    for (info_len, code) in [(1, Mtu::B2048 as u8), (1, Mtu::B4096 as u8), (1, 9), (1, 0), (0, Mtu::B1024 as u8)] {
        let (mut host, id) = asked(Mtu::B2048);
        assert_eq!(give(&mut host, NOW, rej(id, info_len, code)), [], "{info_len} {code}");
        assert_eq!(host.world.stories[0].events, [(K::Rejected, reject::INVALID_MTU)], "{info_len} {code}");
    }
}

#[test]
fn only_worker_0_counts_a_withdrawal_that_no_worker_knows() {
    let mut withdrawn = Rej { local_id: 5, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
    withdrawn.info[..8].copy_from_slice(&GUID.to_be_bytes());
    for worker in [0, 1, 15] {
        let mut host = Host::new(1);
        host.cm = Cm::new(worker, Secret::new([1, 2]));
        give(&mut host, NOW, withdrawn);
        assert_eq!(host.count(Reason::CmUnknownId), u64::from(worker == 0), "worker {worker}");
        // A message with an id is counted wherever it arrives.
        give(&mut host, NOW, Rej { remote_id: 77, ..withdrawn });
        assert_eq!(host.count(Reason::CmUnknownId), u64::from(worker == 0) + 1);
    }
}

#[test]
fn a_withdrawal_needs_its_reason_and_the_whole_guid() {
    for (reason, info_len, is_withdrawn) in [
        (reject::TIMEOUT, 8, true),
        (reject::TIMEOUT, 9, true),
        (reject::TIMEOUT, 7, false),
        (reject::CONSUMER, 8, false),
    ] {
        let (mut host, _) = requested();
        let mut withdrawn = Rej { local_id: 1, reason, info_len, ..Rej::default() };
        withdrawn.info[..8].copy_from_slice(&GUID.to_be_bytes());
        give(&mut host, NOW, withdrawn);
        assert_eq!(host.cm.is_empty(), is_withdrawn, "reason {reason}, {info_len} bytes");
    }
}

#[test]
fn early_requests_have_64_places_per_source_and_128_in_all() {
    let mut host = Host::new(1);
    let strange = |n| Req { service_id: service_id(PS_TCP, 9), ..req(n) };
    let sources = [2, 3, 4].map(|last| IpAddr::from([10, 0, 0, last]));
    let mut refused = [0; 3];
    for (source, refused) in sources.into_iter().zip(&mut refused) {
        *refused = (1..=70).filter(|n| !give_from(&mut host, NOW, source, strange(*n)).is_empty()).count();
    }
    assert_eq!(refused, [6, 6, 70]);
    assert_eq!((host.count(Reason::CmEarly), host.count(Reason::CmNobodyListens)), (128, 82));
    let grace_ends = NOW + Nanos::from_ms(50);
    assert_eq!(host.cm.next_deadline(), grace_ends);
    assert_eq!(host.cm.on_timer(Nanos(grace_ends.0 - 1), 1000, &mut host.world), 0);
    assert_eq!(host.cm.on_timer(grace_ends, 100, &mut host.world), 100, "within the budget");
    assert_eq!(host.cm.on_timer(grace_ends, 100, &mut host.world), 28);
    assert_eq!((taken(&mut host).len(), host.cm.next_deadline()), (128, Nanos::NEVER));
}

#[test]
fn the_first_sequence_number_has_24_bits() {
    let (mut host, mut seen) = (Host::new(1), 0);
    for _ in 0..64 {
        host.connect(NOW, peer(), &[]);
        let [CmMessage::Req(sent)] = taken(&mut host)[..] else { panic!("no REQ") };
        assert!(sent.psn < 1 << 24);
        seen |= sent.psn;
    }
    assert_eq!(seen, 0xff_ffff, "each bit is used");
}

#[test]
fn a_request_has_a_transaction_id_of_chance_and_its_own_id() {
    let mut host = Host::new(1);
    let mut chances = Vec::new();
    for owner in 0..8 {
        host.connect(NOW, peer(), &[]);
        host.world.stories.push(Story::default());
        let id = host.cm.resolve(NOW, 2 * owner + 1, &path_to(peer()), SIDR, &[], &mut host.world).expect("room");
        let tids: Vec<u64> = host.world.sent.iter().map(|(_, mad)| Mad::parse(mad).expect("well formed").tid).collect();
        let ids = [host.world.stories[2 * owner as usize].conn, id];
        assert_eq!(tids.iter().map(|tid| *tid as u32).collect::<Vec<_>>(), ids);
        chances.extend(tids.iter().map(|tid| tid >> 32));
        host.world.sent.clear();
    }
    chances.sort_unstable();
    chances.dedup();
    assert_eq!(chances.len(), 16, "the peer cannot guess the upper half");
}

#[test]
fn a_connection_of_a_machine_that_has_died_is_ended_at_its_peer() {
    let (mut host, id) = established();
    let (qpn, ids) = host.cm.ids_of(id).expect("established");
    assert_eq!((qpn, (ids.local, ids.remote)), (Qpn::new(101), (id, 1)));
    assert!(host.cm.ids_of(id ^ 1).is_none());
    let ids = CmIds { local: 5, remote: 6 };
    Cm::<u32>::announce_end(&path_to(peer()), ids, Qpn::new(70), &mut host.world);
    let [(path, mad)] = host.world.sent[..] else { panic!("no DREQ") };
    let mad = Mad::parse(&mad).expect("well formed");
    assert_eq!((path, mad.tid), (path_to(peer()), 1 << 63 | 5));
    assert_eq!(mad.message, Dreq { local_id: 5, remote_id: 6, remote_qpn: 70 }.into());
}

#[test]
fn ids_of_ended_connections_are_refused_by_every_call() {
    let (mut host, id) = established();
    host.cm.disconnect(NOW, id, &mut host.world).expect("established");
    assert_eq!(host.cm.disconnect(NOW, id, &mut host.world), Ok(()), "a second time");
    assert_eq!(host.cm.accept(NOW, id, &end(&[]), &mut host.world), Err(CmError::WrongState));
    assert_eq!(host.cm.notify(NOW, id, &mut host.world), Err(CmError::WrongState));
    assert_eq!(host.cm.establish(NOW, id, &mut host.world), Err(CmError::WrongState));
    assert_eq!(host.cm.serve(NOW, id, &end(&[]), &mut host.world), Err(CmError::WrongState));
    assert_eq!(host.cm.offer(id, &ConnParam::default()).err(), Some(CmError::WrongState));
    give(&mut host, NOW, Drep { local_id: 1, remote_id: id });
    host.cm.on_timer(NOW + Nanos::from_ms(600), 10, &mut host.world);
    assert_eq!((host.cm.state(id), host.cm.len()), (None, 0));
    assert_eq!(host.cm.disconnect(NOW, id, &mut host.world), Err(CmError::Gone));
    assert_eq!(host.cm.accept(NOW, id, &end(&[]), &mut host.world), Err(CmError::Gone));
    assert_eq!(host.cm.reject(NOW, id, 28, &[], &mut host.world), Err(CmError::Gone));
    assert_eq!(host.cm.notify(NOW, id, &mut host.world), Err(CmError::Gone));
    assert_eq!(host.cm.establish(NOW, id, &mut host.world), Err(CmError::Gone));
    assert_eq!(host.cm.offer(id, &ConnParam::default()).err(), Some(CmError::Gone));
    let (mut host, id) = requested();
    assert_eq!(host.cm.disconnect(NOW, id, &mut host.world), Err(CmError::WrongState), "it is rejected instead");
}

#[test]
fn the_number_of_connections_is_limited_exactly() {
    let mut host = Host::new(1);
    host.cm.set_limit(3);
    (1..=3).for_each(|n| drop(give(&mut host, NOW, req(n))));
    assert_eq!((host.cm.len(), host.count(Reason::CmNoRoom)), (3, 0));
    give(&mut host, NOW, req(4));
    assert_eq!((host.cm.len(), host.count(Reason::CmNoRoom)), (3, 1));
    host.world.stories.push(Story::default());
    let asked = host.cm.resolve(NOW, 3, &path_to(peer()), SIDR, &[], &mut host.world);
    assert_eq!(asked, Err(CmError::NoRoom));
}

#[test]
fn what_has_ended_for_its_program_sends_the_message_of_its_state() {
    // A REP that the program has not answered.
    let (mut host, id) = asked(Mtu::B1024);
    host.world.ready = QpSetup::ByProgram;
    give(&mut host, NOW, rep(id));
    host.cm.destroy(NOW, id, &mut host.world);
    let [CmMessage::Rej(rej)] = taken(&mut host)[..] else { panic!("no REJ") };
    assert_eq!((rej.local_id, rej.remote_id, rej.message, rej.reason), (id, 9, 1, reject::CONSUMER));
    assert!(host.cm.is_empty());
    // Datagram services: a request that was shown is refused, one that was sent is forgotten.
    let mut host = sidr_host();
    give(&mut host, NOW, sidr_req(3));
    let id = host.world.stories[0].conn;
    host.cm.destroy(NOW, id, &mut host.world);
    let [CmMessage::SidrRep(refused)] = taken(&mut host)[..] else { panic!("no SIDR_REP") };
    assert_eq!((refused.request_id, refused.status, refused.service_id), (3, 2, SIDR));
    host.world.stories.push(Story::default());
    let id = host.cm.resolve(NOW, 1, &path_to(peer()), SIDR, &[], &mut host.world).expect("room");
    taken(&mut host);
    host.cm.destroy(NOW, id, &mut host.world);
    assert_eq!((host.cm.state(id), taken(&mut host)), (None, vec![]));
    // In TIMEWAIT and while a DREQ is repeated, nothing is left to be said.
    let (mut host, id) = established();
    host.cm.disconnect(NOW, id, &mut host.world).expect("established");
    taken(&mut host);
    host.cm.destroy(NOW, id, &mut host.world);
    assert_eq!((host.cm.state(id), taken(&mut host)), (Some(CmState::DreqSent), vec![]));
}

#[test]
fn what_a_connection_costs_is_given_back_when_it_is_forgotten() {
    // Nothing answers the DREQ: it is repeated, and TIMEWAIT follows.
    let (mut host, id) = established();
    let cost = std::sync::Arc::new(());
    let costs = |cost: &std::sync::Arc<()>| std::sync::Arc::strong_count(cost) - 1;
    host.cm.keep_cost(id, Box::new(cost.clone()));
    host.cm.destroy(NOW, id, &mut host.world);
    let mut now = NOW;
    while host.cm.state(id).is_some() {
        assert_eq!(costs(&cost), 1, "{:?}", host.cm.state(id));
        now = now + Nanos::from_ms(50);
        host.cm.on_timer(now, 10, &mut host.world);
    }
    assert_eq!((costs(&cost), host.cm.is_empty()), (0, true));
    host.cm.keep_cost(id, Box::new(cost.clone()));
    assert_eq!(costs(&cost), 0, "there is no connection");
}

#[test]
fn all_that_ended_owners_have_ends_and_others_keep_theirs() {
    let mut host = Host::new(1);
    (0..6).for_each(|owner| assert_eq!(host.connect(NOW, peer(), &[]), owner));
    taken(&mut host);
    host.cm.destroy_all(NOW, |owner| owner % 2 == 0, &mut host.world);
    assert_eq!((taken(&mut host).len(), host.cm.len(), host.cm.listeners().count()), (3, 3, 1));
    let mut left = Vec::new();
    assert_eq!(host.cm.view(0, 10, |view| left.push(*view.owner.expect("an owner"))), None);
    left.sort_unstable();
    assert_eq!(left, [1, 3, 5]);
    host.cm.destroy_all(NOW, |_| true, &mut host.world);
    assert_eq!((host.cm.len(), host.cm.listeners().count()), (0, 0));
}

#[test]
fn what_the_list_shows_of_a_connection_is_what_it_is() {
    let (mut host, id) = established();
    let mut seen = 0;
    host.cm.view(0, 10, |view| {
        assert_eq!((view.owner, view.state, view.path), (Some(&0), CmState::Established, path_to(peer())));
        assert_eq!((view.comm_id, view.peer_comm_id, view.qpn, view.peer_qpn), (id, 1, 101, 51));
        assert_eq!((view.service_id, view.stepped), (service_id(PS_TCP, PORT), NOW));
        seen += 1;
    });
    assert_eq!(seen, 1);
}

#[test]
fn a_lap_of_another_connection_is_answered_as_unknown() {
    let (mut host, id) = established();
    for (local_id, from, status) in [(1, peer(), 2), (2, peer(), 1), (1, IpAddr::from([10, 0, 0, 8]), 1)] {
        let lap = Lap { local_id, remote_id: id, ..Lap::default() };
        let [CmMessage::Apr(apr)] = give_from(&mut host, NOW, from, lap)[..] else { panic!("no APR") };
        assert_eq!((apr.local_id, apr.remote_id, apr.status), (id, local_id, status));
    }
}
