//! The machine's choices: the listener of a request, the listeners that `unlisten` ends, the worker of a message, the next
//! deadline.

use crate::harness::{Host, World};
use burst_base::conn::ConnParam;
use burst_base::gid::gid_of;
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_cm::message::{CmMessage, Mad, Rej, Rep, Req, SidrReq, reject};
use burst_cm::service::{PS_TCP, PrivateDataHeader, service_id};
use burst_cm::table::Table;
use burst_cm::{
    AdmissionRefusal, BURST_VENDOR, Backlog, Cm, CmEffects, CmError, CmStep, ConnAttr, ConnEvent, ConnEventKind,
    ConnRequest, ConnectParams, EndParams, Listener, PathRecord, QpSetup, Secret, StepTime, Transport,
};
use burst_frame::Flow;
use std::net::IpAddr;
use std::sync::Arc;

const NOW: Nanos = Nanos::from_ms(1);
const SERVICE: u64 = service_id(PS_TCP, 9);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn listener(owner: u32, addr: Option<&str>, device: Option<u16>) -> (Listener<u32>, Arc<Backlog>) {
    let backlog = Arc::new(Backlog::new(8));
    let (addr, device, transport) = (addr.map(ip), device.map(DeviceId), Transport::Rc);
    let of = Listener { owner, service_id: SERVICE, addr, device, sidr: false, transport, backlog: backlog.clone() };
    (of, backlog)
}

/// A request to `to` on `device`, and the path of its answer.
fn request(number: u32, to: &str, device: u16) -> (PathRecord, [u8; 256]) {
    let (to, from) = (ip(to), if ip(to).is_ipv4() { ip("10.0.0.9") } else { ip("fd00::9") });
    let path = PathRecord { device: DeviceId(device), flow: Flow { src: to, dst: from, ..Flow::default() } };
    let req = Req {
        local_id: number,
        service_id: SERVICE,
        ca_guid: 99,
        qpn: 50 + number,
        pkey: 0xffff,
        mtu: 3,
        ..Req::default()
    };
    let data = PrivateDataHeader { src: from, port: 5, dst: to }.to_bytes();
    let mut bytes = [0; 256];
    Mad { tid: 7, modifier: 0, message: req.into(), data: &data }.emit(&mut bytes);
    (path, bytes)
}

/// Passes a request to `to` on `device` to the machine.
fn ask(host: &mut Host, number: u32, to: &str, device: u16) {
    let (path, bytes) = request(number, to, device);
    host.cm.on_mad(NOW, &path, &bytes, &mut host.world);
}

#[test]
fn a_request_meets_the_listener_with_the_closest_address() {
    let mut host = Host::new(1);
    let made = [
        listener(1, None, None),
        listener(2, Some("0.0.0.0"), None),
        listener(3, Some("10.0.0.1"), None),
        listener(4, Some("10.0.0.2"), Some(1)),
    ];
    let backlogs = made.map(|(listener, backlog)| {
        host.cm.listen(listener).expect("free");
        backlog
    });
    let waiting = || backlogs.each_ref().map(|b| b.waiting());
    ask(&mut host, 1, "fd00::1", 0);
    assert_eq!(waiting(), [1, 0, 0, 0], "all addresses");
    ask(&mut host, 2, "10.0.0.5", 0);
    assert_eq!(waiting(), [1, 1, 0, 0], "all addresses of its family go before all addresses");
    ask(&mut host, 3, "10.0.0.1", 0);
    assert_eq!(waiting(), [1, 1, 1, 0], "its address goes before all addresses of its family");
    ask(&mut host, 4, "10.0.0.2", 1);
    assert_eq!(waiting(), [1, 1, 1, 1]);
    ask(&mut host, 5, "10.0.0.2", 0);
    assert_eq!(waiting(), [1, 2, 1, 1], "another device");
    assert_eq!(host.world.stories.len(), 5);
}

#[test]
fn the_order_of_listeners_does_not_matter() {
    let mut host = Host::new(1);
    let made = [listener(1, Some("10.0.0.1"), None), listener(2, Some("0.0.0.0"), None), listener(3, None, None)];
    let backlogs = made.map(|(listener, backlog)| {
        host.cm.listen(listener).expect("free");
        backlog
    });
    ask(&mut host, 1, "10.0.0.1", 0);
    ask(&mut host, 2, "10.0.0.5", 0);
    ask(&mut host, 3, "fd00::1", 0);
    assert_eq!(backlogs.each_ref().map(|b| b.waiting()), [1, 1, 1]);
}

#[test]
fn an_address_has_one_listener_and_unlisten_ends_the_matching_ones() {
    let mut cm: Cm<u32> = Cm::new(0, Secret::new([1, 2]));
    let all =
        [(1, None, None), (2, Some("0.0.0.0"), None), (3, Some("10.0.0.1"), None), (4, Some("10.0.0.1"), Some(1))];
    for (owner, addr, device) in all {
        cm.listen(listener(owner, addr, device).0).expect("free");
        assert_eq!(cm.listen(listener(9, addr, device).0), Err(CmError::InUse));
    }
    let datagrams = Listener { sidr: true, ..listener(5, None, None).0 };
    cm.listen(datagrams).expect("another kind of service");
    cm.unlisten(|owner| *owner == 2 || *owner == 4);
    let mut left: Vec<u32> = cm.listeners().map(|l| l.owner).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 3, 5]);
    cm.listen(listener(6, Some("0.0.0.0"), None).0).expect("free again");
    cm.unlisten(|_| true);
    assert_eq!(cm.listeners().count(), 0);
}

fn mad_of(message: impl Into<CmMessage>) -> [u8; 256] {
    let mut bytes = [0; 256];
    Mad { tid: 1, modifier: 0, message: message.into(), data: &[] }.emit(&mut bytes);
    bytes
}

#[test]
fn a_message_goes_to_the_worker_that_owns_its_connection() {
    let secret = Secret::new([0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]);
    let peer = ip("10.0.0.9");
    let worker_of = |mad: &[u8]| Cm::<u32>::worker_of(&secret, peer, mad, 4);
    for worker in 0..4 {
        let id = Table::new(worker, secret).insert(()).expect("room");
        assert_eq!(worker_of(&mad_of(Rep { local_id: 1, remote_id: id, ..Rep::default() })), Some(worker));
        assert_eq!(worker_of(&mad_of(Rej { local_id: 1, remote_id: id, ..Rej::default() })), Some(worker));
    }
    // Worker 0 counts a message with an id of a worker that does not exist.
    for beyond in [4, 9] {
        let id = Table::new(beyond, secret).insert(()).expect("room");
        assert_eq!(worker_of(&mad_of(Rep { remote_id: id, ..Rep::default() })), Some(0));
    }
    // A REJ that withdraws a request has no communication id of this host: every worker searches for it.
    assert_eq!(worker_of(&mad_of(Rej { local_id: 1, ..Rej::default() })), None);
    assert_eq!(worker_of(&[0; 256]), Some(0));
    // Requests are spread by queue pair number or request id; a retransmission goes to the same worker.
    let requests =
        |n: u32| [mad_of(Req { qpn: n, ..Req::default() }), mad_of(SidrReq { request_id: n, ..SidrReq::default() })];
    for kind in 0..2 {
        let owners: Vec<Option<u32>> = (2..66).map(|n| worker_of(&requests(n)[kind])).collect();
        assert!((0..4).all(|worker| owners.contains(&Some(worker))), "{owners:?}");
        assert_eq!(owners, (2..66).map(|n| worker_of(&requests(n)[kind])).collect::<Vec<_>>());
    }
}

#[test]
fn the_next_deadline_is_the_earliest_of_all_timers() {
    let mut host = Host::new(1);
    assert_eq!(host.cm.next_deadline(), Nanos::NEVER, "nothing waits");
    host.connect(NOW, ip("10.0.0.9"), &[]);
    let resend = host.cm.next_deadline();
    assert!(
        resend > Nanos(0) && resend <= NOW + Nanos::from_ms(100),
        "the first timeout is 80 ms and a quarter: {resend:?}"
    );
    // A request without listener is rejected after 50 ms, which may be earlier.
    ask(&mut host, 1, "10.0.0.1", 0);
    assert!(host.cm.next_deadline() <= NOW + Nanos::from_ms(50));
    host.cm.listen(listener(1, None, None).0).expect("free");
    assert_eq!(host.cm.next_deadline(), Nanos(0), "it may have a listener now");
    assert_eq!(host.cm.on_timer(NOW, 10, &mut host.world), 1);
    assert_eq!((host.world.stories.len(), host.cm.next_deadline()), (2, resend));
}

#[test]
fn a_reply_that_is_never_answered_is_rejected_after_all_retries() {
    let mut host = Host::new(1);
    host.cm.listen(listener(1, None, None).0).expect("free");
    ask(&mut host, 3, "10.0.0.1", 0);
    let accepted_at = NOW + Nanos::from_ms(7);
    host.accept(accepted_at, 0);
    let [(_, rep)] = host.world.sent[..] else { panic!("no REP") };
    let CmMessage::Rep(rep) = Mad::parse(&rep).expect("well formed").message else { panic!("no REP") };
    while !host.cm.is_empty() {
        let now = host.cm.next_deadline().max(accepted_at);
        assert!(now < Nanos::from_ms(60_000), "no end of retries");
        host.cm.on_timer(now, 10, &mut host.world);
    }
    let (_, last) = host.world.sent.last().expect("a message");
    let CmMessage::Rej(rej) = Mad::parse(last).expect("well formed").message else { panic!("no REJ") };
    let expected = Rej { local_id: rep.local_id, remote_id: 3, message: 1, reason: reject::TIMEOUT, ..Rej::default() };
    assert_eq!(rej, expected);
    assert_eq!(host.world.sent.len(), 17, "the REP, 15 retries and the REJ");
    assert_eq!(host.world.stories[0].events, [(ConnEventKind::Unreachable, 0)]);
}

#[test]
fn steps_carry_the_time_since_the_step_before() {
    let mut host = Host::new(1);
    host.cm.listen(listener(1, None, None).0).expect("free");
    ask(&mut host, 3, "10.0.0.1", 0);
    host.accept(NOW + Nanos::from_ms(7), 0);
    let id = host.world.stories[0].conn;
    host.cm.notify(NOW + Nanos::from_ms(9), id, &mut host.world).expect("accepted");
    let time = |step| {
        let found = host.world.steps.iter().find(|(_, s, _)| *s == step);
        found.map(|(_, _, time)| (time.elapsed, time.reply)).expect("a step")
    };
    assert_eq!(time(CmStep::ReqReceived), (Nanos(0), Nanos(0)));
    assert_eq!(time(CmStep::RepSent), (Nanos::from_ms(7), Nanos(0)));
    assert_eq!(time(CmStep::RtuReceived), (Nanos::from_ms(2), Nanos(0)));
    assert_eq!(time(CmStep::Established), (Nanos::from_ms(9), Nanos::from_ms(7)), "since the REQ");
}

/// A host with an established connection, whose answer took 56 ms, and a request; and when the request is repeated: its first
/// wait is 100 ms at most, but twice the recent time of an answer is 112 ms.
fn with_a_prolonged_wait() -> (Host, Nanos) {
    let mut host = Host::new(1);
    let (peer, asked_at) = (ip("10.0.0.9"), Nanos::from_ms(10_000));
    host.connect(asked_at, peer, &[]);
    let id = host.world.stories[0].conn;
    let answered_at = asked_at + Nanos::from_ms(56);
    let rep = Rep { local_id: 9, remote_id: id, qpn: 60, ca_guid: 99, ..Rep::default() };
    let path = host.path_to(peer);
    host.cm.on_mad(answered_at, &path, &mad_of(rep), &mut host.world);
    assert_eq!(host.world.stories[0].last(), Some(ConnEventKind::Established));

    host.connect(answered_at, peer, &[]);
    host.world.sent.clear();
    (host, answered_at + Nanos::from_ms(112))
}

#[test]
fn a_request_is_repeated_at_the_very_end_of_its_prolonged_wait() {
    let (mut host, prolonged) = with_a_prolonged_wait();
    assert_eq!(host.cm.on_timer(prolonged, 100, &mut host.world), 1, "one timer, served once");
    assert_eq!(host.world.sent.len(), 1, "the request is repeated");
}

#[test]
fn a_request_is_not_repeated_before_the_end_of_its_prolonged_wait() {
    let (mut host, prolonged) = with_a_prolonged_wait();
    let early = Nanos(prolonged.0 - 1);
    assert_eq!(host.cm.on_timer(early, 100, &mut host.world), 1, "the timer of the first wait");
    let again = host.cm.next_deadline();
    assert!(host.world.sent.is_empty() && again >= prolonged, "{again:?}");
    host.cm.on_timer(again, 100, &mut host.world);
    assert_eq!(host.world.sent.len(), 1);
}

#[test]
fn pages_of_the_list_show_each_connection_once() {
    let mut host = Host::new(1);
    for owner in 0..5 {
        assert_eq!(host.connect(NOW, ip("10.0.0.9"), &[]), owner);
    }
    let (mut seen, mut pages, mut next) = (Vec::new(), Vec::new(), Some(0));
    while let Some(from) = next {
        let before = seen.len();
        next = host.cm.view(from, 2, |view| seen.push((*view.owner.expect("an owner"), view.comm_id)));
        pages.push(seen.len() - before);
        assert!(pages.len() < 5, "no end of pages");
    }
    seen.sort_unstable();
    let made: Vec<_> = host.world.stories.iter().zip(0..).map(|(story, owner)| (owner, story.conn)).collect();
    assert_eq!((seen, pages), (made, vec![2, 2, 1]));
    assert_eq!(Host::new(2).cm.view(0, 2, |_| panic!("no connection")), None);
}

#[test]
fn the_answer_to_a_datagram_request_names_the_request_and_the_service() {
    let mut host = Host::new(1);
    host.cm.listen(Listener { sidr: true, ..listener(1, None, None).0 }).expect("free");
    assert_eq!(ask_sidr(&mut host, 11), []);
    let param = ConnParam { qpn: 5, qkey: 6, ..ConnParam::default() };
    let params = EndParams { param, ..EndParams::default() };
    let id = host.world.stories[0].conn;
    assert_eq!(host.cm.serve(NOW, id, &params, &mut host.world), Ok(()));
    let [CmMessage::SidrRep(rep)] = sent_by(&mut host)[..] else { panic!("one SIDR_REP") };
    assert_eq!((rep.request_id, rep.service_id, rep.status, rep.qpn, rep.qkey), (11, SERVICE, 0, 5, 6));
}

/// Effects of a host that does not report unread events, and keeps no backlog places of withdrawn requests.
struct Silent(World);

impl CmEffects<u32> for Silent {
    fn send(&mut self, path: &PathRecord, message: &CmMessage, mad: &[u8; 256]) {
        self.0.send(path, message, mad);
    }
    fn event(&mut self, owner: &u32, path: &PathRecord, event: &ConnEvent<'_>) {
        self.0.event(owner, path, event);
    }
    fn incoming(&mut self, listener: &u32, request: &ConnRequest<'_>) -> Result<u32, AdmissionRefusal> {
        self.0.incoming(listener, request)
    }
    fn ready(&mut self, owner: &u32, path: &PathRecord, conn: &ConnAttr) -> QpSetup {
        self.0.ready(owner, path, conn)
    }
    fn mtu(&self, device: DeviceId) -> Mtu {
        self.0.mtu(device)
    }
    fn count(&mut self, device: DeviceId, reason: Reason) {
        self.0.count(device, reason);
    }
    fn step(&mut self, owner: Option<&u32>, path: &PathRecord, id: u32, step: CmStep, took: StepTime) {
        self.0.step(owner, path, id, step, took);
    }
}

#[test]
fn a_backlog_is_not_exceeded_while_the_number_of_unread_events_is_unknown() {
    let mut host = Host::new(1);
    let (one, backlog) = listener(1, None, None);
    host.cm.listen(one).expect("free");
    let Host { mut cm, world, .. } = host;
    let mut fx = Silent(world);
    for number in 1..=9 {
        let (path, mad) = request(number, "10.0.0.1", 0);
        cm.on_mad(NOW, &path, &mad, &mut fx);
    }
    assert_eq!((backlog.waiting(), backlog.queued()), (8, 1), "the ninth waits in the queue");
}

/// Field by field, because peers of other vendors read all of them.
#[test]
fn a_req_carries_what_the_program_asks_and_what_roce_prescribes() {
    let mut host = Host::new(1);
    let flow =
        Flow { src: host.ip, dst: ip("10.0.0.9"), tos: 104, flow_label: 0x12345, hop_limit: 63, ..Flow::default() };
    let params = ConnectParams {
        path: PathRecord { device: DeviceId(0), flow },
        service_id: SERVICE,
        transport: Transport::Rc,
        end: EndParams {
            param: ConnParam {
                qpn: 50,
                responder_resources: 8,
                initiator_depth: 4,
                flow_control: true,
                retry_count: 5,
                rnr_retry_count: 6,
                srq: true,
                ..ConnParam::default()
            },
            ca_guid: 77,
            data: b"data",
        },
        mtu: Mtu::B2048,
        ack_timeout: 14,
    };
    host.world.stories.push(Default::default());
    let id = host.cm.connect(NOW, 0, &params, &mut host.world).expect("room");
    let [(path, bytes)] = host.world.sent[..] else { panic!("one message") };
    let mad = Mad::parse(&bytes).expect("well formed");
    let CmMessage::Req(req) = mad.message else { panic!("no REQ") };
    let expected = Req {
        local_id: id,
        vendor_id: BURST_VENDOR,
        service_id: SERVICE,
        ca_guid: 77,
        qpn: 50,
        responder_resources: 8,
        initiator_depth: 4,
        // 4.3 s at both ends.
        remote_response_timeout: 20,
        local_response_timeout: 20,
        flow_control: true,
        psn: req.psn,
        retry_count: 5,
        pkey: 0xffff,
        mtu: Mtu::B2048 as u8,
        rnr_retry_count: 6,
        cm_retries: 15,
        srq: true,
        // RoCE has no LIDs: the permissive one.
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid_of(flow.src),
        remote_gid: gid_of(flow.dst),
        flow_label: 0x12345,
        traffic_class: 104,
        hop_limit: 63,
        ack_timeout: 14,
        ..Req::default()
    };
    assert_eq!((req, &mad.data[..4], path), (expected, &b"data"[..], params.path));
}

/// Gives a SIDR_REQ to a host; returns what it has sent.
fn ask_sidr(host: &mut Host, request_id: u32) -> Vec<CmMessage> {
    let (path, _) = request(1, "10.0.0.1", 0);
    let data = PrivateDataHeader { src: ip("10.0.0.9"), port: 5, dst: ip("10.0.0.1") }.to_bytes();
    let mut bytes = [0; 256];
    let message = SidrReq { request_id, pkey: 0xffff, service_id: SERVICE };
    Mad { tid: 7, modifier: 0, message: message.into(), data: &data }.emit(&mut bytes);
    host.cm.on_mad(NOW, &path, &bytes, &mut host.world);
    sent_by(host)
}

fn sent_by(host: &mut Host) -> Vec<CmMessage> {
    host.world.sent.drain(..).map(|(_, mad)| Mad::parse(&mad).expect("well formed").message).collect()
}

#[test]
fn queued_datagram_requests_wait_are_repeated_and_end_with_their_listener() {
    let mut host = Host::new(1);
    let backlog = Arc::new(Backlog::new(1));
    host.cm.listen(Listener { sidr: true, backlog: backlog.clone(), ..listener(1, None, None).0 }).expect("free");
    assert_eq!((ask_sidr(&mut host, 11), ask_sidr(&mut host, 12)), (vec![], vec![]));
    assert_eq!((backlog.waiting(), backlog.queued(), host.world.stories.len()), (1, 1, 1));
    // Repetitions of the shown request and of the queued one.
    assert_eq!((ask_sidr(&mut host, 11), ask_sidr(&mut host, 12)), (vec![], vec![]));
    assert_eq!(host.world.reasons.get(&Reason::CmDuplicate), Some(&2));
    assert_eq!((backlog.waiting(), backlog.queued(), host.world.stories.len()), (1, 1, 1));

    host.cm.unlisten(|owner| *owner == 1);
    host.cm.on_timer(NOW, 10, &mut host.world);
    let [CmMessage::SidrRep(rep)] = sent_by(&mut host)[..] else { panic!("one SIDR_REP") };
    assert_eq!((rep.request_id, rep.status, rep.service_id), (12, 1, SERVICE), "no listener");
    assert_eq!((backlog.waiting(), backlog.queued()), (1, 0));
}
