//! Floods of connection requests, from one address and from forged ones, beside a peer that wants to connect.
use crate::harness::{Host, PORT};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_cm::message::{CmMessage, Drep, Dreq, Mad, Rej, Rep, Req, Rtu, reject};
use burst_cm::service::{HEADER_LEN, PS_TCP, PrivateDataHeader, service_id};
use burst_cm::{ConnEventKind as K, PathRecord};
use burst_frame::Flow;
use std::net::IpAddr;

const NOW: Nanos = Nanos::from_ms(1);
const TID: u64 = 7;

fn honest() -> IpAddr {
    IpAddr::from([10, 0, 0, 200])
}

/// Forged address number `n` of a flood.
fn forged(n: u32) -> IpAddr {
    IpAddr::from((0x0b00_0000 + n).to_be_bytes())
}

fn path_to(peer: IpAddr) -> PathRecord {
    PathRecord { device: DeviceId(0), flow: Flow { src: IpAddr::from([10, 0, 0, 1]), dst: peer, ..Flow::default() } }
}

/// Passes a message from `peer` to the machine. Returns the messages that it sends.
fn give(host: &mut Host, now: Nanos, peer: IpAddr, tid: u64, message: impl Into<CmMessage>) -> Vec<(u64, CmMessage)> {
    let message = message.into();
    let header = PrivateDataHeader { src: peer, port: 5, dst: IpAddr::from([10, 0, 0, 1]) }.to_bytes();
    let data: &[u8] = if matches!(message, CmMessage::Req(_)) { &header[..HEADER_LEN] } else { &[] };
    let mut bytes = [0; 256];
    Mad { tid, modifier: 0, message, data }.emit(&mut bytes);
    host.cm.on_mad(now, &path_to(peer), &bytes, &mut host.world);
    taken(host)
}

fn taken(host: &mut Host) -> Vec<(u64, CmMessage)> {
    let parsed = |bytes: &[u8]| Mad::parse(bytes).map(|mad| (mad.tid, mad.message)).expect("well formed");
    host.world.sent.drain(..).map(|(_, bytes)| parsed(&bytes)).collect()
}

fn req(number: u32) -> Req {
    Req {
        local_id: number + 1,
        service_id: service_id(PS_TCP, PORT),
        ca_guid: 99,
        qpn: number + 2,
        pkey: 0xffff,
        mtu: Mtu::B1024 as u8,
        cm_retries: 15,
        remote_response_timeout: 20,
        ..Req::default()
    }
}

/// A host under a flood of requests with forged addresses: one DREQ for each that made no state, none longer than a REQ.
fn flooded(backlog: u32, requests: u32) -> Host {
    let mut host = Host::new(1);
    host.listen(backlog);
    let (mut sent, mut last) = (0, None);
    for n in 0..requests {
        for (tid, message) in give(&mut host, NOW, forged(n), TID, req(n)) {
            assert!(matches!(message, CmMessage::Dreq(_)), "{message:?}");
            (sent, last) = (sent + 1, Some((tid, message)));
        }
    }
    assert_eq!(sent, host.count(Reason::CmAddressAsked), "one question for each address");
    assert!(last.is_some() && host.cm.len() <= 4096 + 1, "{} connections", host.cm.len());
    host
}

fn is_proven(host: &mut Host, peer: IpAddr, tid: u64, message: impl Into<CmMessage>) -> bool {
    let mut bytes = [0; 256];
    Mad { tid, modifier: 0, message: message.into(), data: &[] }.emit(&mut bytes);
    host.cm.is_proven(peer, &bytes)
}

/// The answer of Linux and Burst to a DREQ for a connection that does not exist.
fn answer_to(dreq: &Dreq) -> Drep {
    Drep { local_id: dreq.remote_id, remote_id: dreq.local_id }
}

fn question(sent: &[(u64, CmMessage)]) -> (u64, Dreq) {
    let [(tid, CmMessage::Dreq(dreq))] = sent else { panic!("no question: {sent:?}") };
    (*tid, *dreq)
}

#[test]
fn a_flood_with_forged_addresses_makes_little_state_and_a_peer_connects_at_once() {
    // A backlog without a limit, one that is full, and a small one.
    for backlog in [1 << 20, 1024, 16] {
        let mut host = flooded(backlog, 20_000);
        let shown = host.world.stories.len();
        let (tid, dreq) = question(&give(&mut host, NOW, honest(), TID, req(5)));
        // Still more forged requests come before the answer.
        (20_000..21_000).for_each(|n| drop(give(&mut host, NOW, forged(n), TID, req(n))));
        let later = NOW + Nanos(50_000);
        give(&mut host, later, honest(), tid, answer_to(&dreq));
        // The programs of the forged requests accept one of them, if the backlog is full.
        if host.world.stories.len() == shown {
            host.accept(later, 0);
            host.cm.on_timer(later + Nanos::from_ms(20), 1, &mut host.world);
        }
        let story = host.world.stories.len() - 1;
        assert_eq!((story, host.world.stories[story].negotiated.map(|c| c.remote_qpn)), (shown, Some(7)), "{backlog}");
        taken(&mut host);
        host.accept(later, story as u32);
        let [(_, CmMessage::Rep(Rep { local_id, .. }))] = taken(&mut host)[..] else { panic!("no REP") };
        give(&mut host, later, honest(), TID, Rtu { local_id: 6, remote_id: local_id });
        assert_eq!(host.world.stories[story].last(), Some(K::Established));
        // Its next request needs no proof.
        let sent = give(&mut host, later, honest(), TID, req(6));
        assert!(sent.is_empty(), "{sent:?}");
    }
}

#[test]
fn an_address_is_probed_once_and_only_its_own_answer_proves_it() {
    let mut host = flooded(1 << 20, 5_000);
    let connections = host.cm.len();
    let (tid, dreq) = question(&give(&mut host, NOW, honest(), TID, req(5)));
    assert!(give(&mut host, NOW, honest(), TID, req(6)).is_empty(), "asked a moment ago");
    let answer = answer_to(&dreq);
    for (peer, tid, answer) in [
        (forged(4_999), tid, answer),
        (honest(), tid + 1, answer),
        (honest(), tid, Drep { local_id: answer.local_id ^ 1, ..answer }),
        (honest(), tid, Drep { remote_id: answer.remote_id ^ 1, ..answer }),
    ] {
        assert!(give(&mut host, NOW, peer, tid, answer).is_empty());
    }
    assert_eq!((host.cm.len(), host.count(Reason::CmUnknownId)), (connections, 4));
    // The answer comes before forged messages, as all later ones from this address do.
    assert!(is_proven(&mut host, honest(), tid, answer) && !is_proven(&mut host, honest(), TID, req(7)));
    assert!(!is_proven(&mut host, honest(), tid + 1, answer));
    give(&mut host, NOW, honest(), tid, answer);
    assert!(is_proven(&mut host, honest(), TID, req(7)) && !is_proven(&mut host, forged(1), TID, req(7)));
    assert_eq!(host.cm.len(), connections + 2, "both requests go on");
    give(&mut host, NOW, honest(), tid, answer);
    assert_eq!((host.cm.len(), host.count(Reason::CmDuplicate)), (connections + 2, 1));
}

#[test]
fn a_source_that_fills_the_queue_makes_room_for_others() {
    let mut host = Host::new(1);
    host.listen(16);
    let flooder = IpAddr::from([10, 0, 0, 66]);
    (0..10_000).for_each(|n| drop(give(&mut host, NOW, flooder, TID, req(n))));
    assert_eq!((host.backlog.waiting(), host.backlog.queued()), (16, 256));
    let dropped = host.count(Reason::CmBacklogFull);
    assert!(give(&mut host, NOW, honest(), TID, req(5)).is_empty());
    assert_eq!((host.backlog.queued(), host.count(Reason::CmBacklogFull)), (256, dropped + 1));
    // Its turn comes after one of the flooder's, not after 256.
    (0..2).for_each(|story| host.accept(NOW, story));
    host.cm.on_timer(NOW + Nanos::from_ms(20), 10, &mut host.world);
    let qpns: Vec<u32> = host.world.stories[16..].iter().filter_map(|s| Some(s.negotiated?.remote_qpn)).collect();
    assert_eq!(qpns, [18, 7]);
}

#[test]
fn unanswered_requests_stop_counting_when_they_end() {
    let mut host = flooded(1 << 20, 5_000);
    for n in 0..4_096 {
        let withdrawn = Rej { local_id: n + 1, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
        let mut withdrawn = withdrawn;
        withdrawn.info[..8].copy_from_slice(&99u64.to_be_bytes());
        give(&mut host, NOW, forged(n), TID, withdrawn);
    }
    assert_eq!(host.cm.len(), 0);
    assert!(give(&mut host, NOW, honest(), TID, req(5)).is_empty(), "the pressure has ended");
    assert_eq!(host.cm.len(), 1);
}
