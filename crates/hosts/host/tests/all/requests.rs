//! Connection requests from the network that programs do not answer: what they cost, and whom.
use crate::common::{Program, host_of_port, is_all_given_back, options};
use burst_base::verbs::{Mtu, QpType};
use burst_base::{Nanos, Psn, Qpn};
use burst_cm::message::{CmMessage, Mad, Rej, Req, reject};
use burst_cm::service::{PS_TCP, PrivateDataHeader, service_id};
use burst_control::cm::{CmAddr, CmCommand, CmReply, PortSpace};
use burst_control::{Refusal, Request};
use burst_engine::gsi::{ConnCounts, GSI_QKEY};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_host::{Clock, Host};
use burst_ledger::{AccountId, Resource, Scope};
use burst_port::mem::{Hub, MemConfig, MemPort};
use burst_port::{Port, RxSink};
use burst_wire::{Bth, Deth, HeadBuf, MAD_LEN, Opcode};
use std::net::IpAddr;

const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const HOSTILE: u32 = 1001;
const BYSTANDER: u32 = 1002;
/// Requests of one burst.
const BURST: u32 = 256;
/// Most requests that a hostile peer sends: no share is as large.
const FLOOD: u32 = 40_000;

/// A host on the network that sends requests.
struct Peer {
    port: MemPort,
    ip: IpAddr,
    sent: u32,
    /// Rejections, by their reason.
    rejected: Vec<u16>,
}

/// A host of one worker, on which a user may use `share` percent, and peers.
fn host_with_peers<const N: usize>(share: u8) -> (Host, [Peer; N]) {
    let hub = Hub::new(MemConfig { depth: 1 << 16, wake: true, ..MemConfig::default() });
    let host = host_of_port(&options(1, share), Box::new(hub.port("own", &[OWN])));
    let peer = |n| {
        let ip = IpAddr::from([10, 0, 0, 2 + n as u8]);
        Peer { port: hub.port("peer", &[ip]), ip, sent: 0, rejected: Vec::new() }
    };
    (host, std::array::from_fn(peer))
}

struct Answers<'a>(&'a mut Vec<u16>);

impl RxSink for Answers<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        let mad = frame.bytes.get(20..20 + MAD_LEN).and_then(|mad| Mad::parse(mad).ok());
        if let Some(Mad { message: CmMessage::Rej(Rej { reason, .. }), .. }) = mad {
            self.0.push(reason);
        }
    }
    fn dropped(&mut self, reason: burst_base::Reason) {
        panic!("{reason}");
    }
}

impl Peer {
    /// Asks for connections to a service.
    fn ask(&mut self, port: u16, count: u32) {
        let flow = Flow { src: self.ip, dst: OWN, ..Flow::default() };
        let head = HeadBuf::new(&Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::default()))
            .deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        for _ in 0..count {
            self.sent += 1;
            let req = Req {
                local_id: self.sent,
                service_id: service_id(PS_TCP, port),
                ca_guid: 9,
                qpn: 16 + self.sent,
                pkey: 0xffff,
                mtu: Mtu::B1024 as u8,
                // It waits for hours.
                remote_response_timeout: 31,
                cm_retries: 15,
                ..Req::default()
            };
            let data = PrivateDataHeader { src: self.ip, port: 5, dst: OWN }.to_bytes();
            let mut mad = [0; MAD_LEN];
            Mad { tid: u64::from(self.sent), modifier: 0, message: req.into(), data: &data }.emit(&mut mad);
            let mut batch = TxBatch::new(1);
            assert!(batch.push_copied(&flow, head.as_slice(), &mad));
            self.port.tx_burst(Nanos(0), &batch, &mut |reason| panic!("{reason}"));
        }
        let mut sink = Answers(&mut self.rejected);
        while self.port.rx_burst(Clock::Monotonic.now(), 64, &mut sink) > 0 {}
    }

    /// Asks until a rejection says that no resources are left. The number of requests.
    fn ask_until_rejected(&mut self, host: &Host, ports: &[u16]) -> u32 {
        for (_, port) in (0..FLOOD / BURST).zip(ports.iter().cycle()) {
            let before = counts(host);
            self.ask(*port, BURST);
            // All are kept, or the share is reached: then some are not.
            let more = |now: ConnCounts| now.connections + now.queued - before.connections - before.queued;
            for _ in 0..10_000 {
                self.ask(*port, 0);
                if more(counts(host)) == BURST || !self.rejected.is_empty() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            if let Some(reason) = self.rejected.first() {
                assert_eq!(*reason, reject::NO_RESOURCES);
                break;
            }
        }
        self.sent
    }
}

/// Connections and queued requests of the only worker.
fn counts(host: &Host) -> ConnCounts {
    host.on_worker(0, |worker, _| worker.cm_conn_counts())
}

/// Waits until the worker's counts are as expected, after it has received what was sent. Returns the last counts.
fn await_counts(host: &Host, expected: impl Fn(ConnCounts) -> bool) -> ConnCounts {
    for _ in 0..10_000 {
        let now = counts(host);
        if expected(now) {
            return now;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    counts(host)
}

/// Listens on a port that the host chooses.
fn listen(program: &mut Program, host: &mut Host, id: u32, backlog: u32) -> Result<u16, Refusal> {
    if !std::mem::replace(&mut program.has_events, true) {
        program.ask(host, Request::CmChannel { channel: 0 })?;
    }
    program.command(host, CmCommand::Create { id, channel: 0, ps: PortSpace::Tcp, qp_type: QpType::Rc })?;
    let addr = CmAddr { ip: IpAddr::from([0, 0, 0, 0]), port: 0, scope: 0 };
    let CmReply::Route(route) = program.command(host, CmCommand::Bind { id, addr })? else { panic!("not bound") };
    program.command(host, CmCommand::Listen { id, backlog })?;
    Ok(route.src.expect("an address").port)
}

/// What a user uses of a resource, and of it at one worker: use and limit.
fn uses(host: &Host, uid: u32, resource: Resource) -> [(u64, u64); 2] {
    let accounts = host.ledger.uses(0);
    let account = accounts.iter().find(|account| account.id == AccountId::User(uid)).expect("the account");
    let row = account.resources.iter().find(|row| row.resource == resource).expect("a row");
    let place = account.places.iter().find(|place| (place.resource, place.scope) == (resource, Scope::Worker));
    [(row.used, row.limit), place.map_or((0, 0), |place| (place.used, place.limit))]
}

/// A user with listeners that accept nothing, a hostile peer, and a bystander: another user, whose listener with a short backlog
/// must get a request, and have room for one that waits.
fn attacked(share: u8, listeners: u32, backlog: u32) -> (Host, Vec<Program>, [Peer; 2]) {
    let (mut host, mut peers) = host_with_peers(share);
    let mut hostile = Program::start(&mut host, HOSTILE).expect("a program");
    let listen_hostile = |id| listen(&mut hostile, &mut host, id, backlog).expect("a listener");
    let ports: Vec<u16> = (1..=listeners).map(listen_hostile).collect();
    let sent = peers[0].ask_until_rejected(&host, &ports);
    assert!(sent < FLOOD, "{sent} requests, and none was rejected: {:?}", counts(&host));
    (host, vec![hostile], peers)
}

/// The bystander's listener gets a request, and another one waits. Root's as well.
fn others_are_served(host: &mut Host, programs: &mut Vec<Program>, peer: &mut Peer) {
    for uid in [BYSTANDER, rustix::process::geteuid().as_raw()] {
        let mut program = Program::start(host, uid).expect("a program");
        let port = listen(&mut program, host, 1, 1).expect("a listener");
        let before = counts(host);
        peer.ask(port, 2);
        let wanted = (before.connections + 1, before.queued + 1);
        let after = await_counts(host, |now| (now.connections, now.queued) == wanted);
        assert_eq!((after.connections, after.queued), wanted, "of user {uid}");
        programs.push(program);
    }
    assert_eq!(peer.rejected, [0; 0]);
}

/// All programs end, and nothing is left of their charges.
fn end(mut host: Host, programs: Vec<Program>) {
    programs.into_iter().for_each(|program| program.end(&mut host));
    let left: Vec<_> = Resource::ALL.iter().filter(|each| host.ledger.used(**each) > 0).collect();
    assert!(is_all_given_back(&host), "{left:?} of ended programs");
}

/// A user at the limit of queued requests beside another user and root. Each worker has as many of a user's as the daemon has
/// for it, divided by the number of workers, so that the worker's limit comes first.
pub fn drive() {
    let (mut host, mut programs, mut peers) = attacked(1, 2, 64);
    let [(used, limit), (at_worker, worker_limit)] = uses(&host, HOSTILE, Resource::CmRequest);
    assert!(at_worker > 0 && at_worker == worker_limit && used == at_worker && used <= limit);
    others_are_served(&mut host, &mut programs, &mut peers[1]);
    end(host, programs);
}

#[test]
fn requests_that_one_users_listeners_queue_leave_room_for_others() {
    let (mut host, mut programs, mut peers) = attacked(50, 4, 256);
    // Half of what the reserve leaves of the worker's 16,384.
    assert_eq!(uses(&host, HOSTILE, Resource::CmRequest)[1], (7_373, 7_373));
    assert_eq!(counts(&host).queued, 7_373);
    others_are_served(&mut host, &mut programs, &mut peers[1]);
    end(host, programs);
}

#[test]
fn a_request_is_an_id_of_the_listeners_user_before_the_program_looks_at_it() {
    let (mut host, mut programs, mut peers) = attacked(1, 2, 1 << 16);
    let ids = uses(&host, HOSTILE, Resource::CmId);
    // One percent of what the reserve leaves of the worker's 114,688; the listeners are at no worker.
    assert_eq!((ids[0].0, ids[1]), (1_032 + 2, (1_032, 1_032)));
    assert_eq!((counts(&host).connections, counts(&host).queued), (1_032, 0));
    others_are_served(&mut host, &mut programs, &mut peers[1]);
    end(host, programs);
}

#[test]
fn listeners_of_a_program_that_ends_get_no_further_requests_and_their_ports_are_free() {
    let (mut host, [mut peer]) = host_with_peers(50);
    let mut program = Program::start(&mut host, HOSTILE).expect("a program");
    let ports: Vec<u16> = (1..=600).map(|id| listen(&mut program, &mut host, id, 4).expect("a listener")).collect();
    for port in &ports[..100] {
        peer.ask(*port, 8);
    }
    await_counts(&host, |now| (now.connections, now.queued) == (400, 400));
    assert_eq!((counts(&host).connections, counts(&host).queued), (400, 400));
    let mut bystander = Program::start(&mut host, BYSTANDER).expect("a program");
    let port = listen(&mut bystander, &mut host, 1, 4).expect("a listener");
    assert!(!program.end_some(&mut host, 256), "a step ends so many of 600");
    peer.ask(ports[599], 1);
    // What comes behind it on the same way has been received: so has the request.
    peer.ask(port, 1);
    let after = await_counts(&host, |now| now.connections > 400);
    assert_eq!(after.connections, 401, "no id for a session that has ended");
    end(host, vec![program, bystander]);
}
