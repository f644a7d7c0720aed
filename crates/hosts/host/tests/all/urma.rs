//! Programs of URMA on a host: what opens and closes nodes, what holds what, and that everything is charged and given back.
use crate::common::{Program, host, memfd};
use burst_base::{Nanos, Reason};
use burst_control::urma::UrmaCursor;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall, UrmaJettyAttr};
use burst_control::{MrPiece, MrPieceKind, Refusal, Request, Response};
use burst_engine::urma::{UrmaEndpoint, node_at};
use burst_frame::TxBatch;
use burst_host::{Host, HostOptions};
use burst_ledger::Resource;
use burst_port::mem::{Hub, MemConfig};
use burst_port::{Port, PortCaps, PortError, RxSink};
use burst_urma::{MemoryGone, UrmaConfig, UrmaEffects, UrmaMemory};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

const MEMORY: u64 = 64 << 10;
const BASE: u64 = 0x10_0000;

fn eid(last: u8) -> [u8; 16] {
    Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets()
}

/// A host whose nodes have ports in memory.
fn host_with_nodes(share: u8) -> Host {
    with_nodes(host(share))
}

fn with_nodes(mut host: Host) -> Host {
    host.lend_urma_ports(Box::new(|_, address: IpAddr| {
        let port: Box<dyn Port> = Box::new(Hub::new(MemConfig::default()).port("urma", &[address]));
        Some(port)
    }));
    host
}

/// A port in memory that notes for how many source ports it was asked.
struct CountingPort {
    inner: Box<dyn Port>,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Port for CountingPort {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.inner.rx_burst(now, budget, sink)
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.inner.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }
    fn open_source_ports(&mut self, count: usize) -> Result<(), PortError> {
        self.asked.lock().expect("no panic").push(count);
        if count > 7 { Err(PortError::System { what: "open".into(), source: no_descriptor() }) } else { Ok(()) }
    }
}

fn no_descriptor() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::EMFILE)
}

fn call(program: &mut Program, host: &mut Host, call: UrmaCall) -> Result<UrmaAnswer, Refusal> {
    match program.ask(host, Request::UrmaCall(call))? {
        Response::UrmaDone(answer) => Ok(answer),
        other => panic!("{other:?}"),
    }
}

fn number(program: &mut Program, host: &mut Host, wanted: UrmaCall) -> u32 {
    match call(program, host, wanted) {
        Ok(UrmaAnswer::Number(number)) => number,
        other => panic!("{other:?}"),
    }
}

/// A program with the node of the host's address, and a memory region.
fn start(host: &mut Host, uid: u32) -> (Program, u32) {
    let mut program = Program::start(host, uid).expect("started");
    program.ask(host, Request::UrmaOpen { eid: eid(1) }).expect("a node");
    let pieces = vec![MrPiece { addr: BASE, len: MEMORY, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    let pd = program.pd;
    let region = Request::RegMr { pd, addr: BASE, len: MEMORY, iova: BASE, access: 1, pieces, replaces: None };
    let Ok(Response::Mr { mr, .. }) = program.ask_with(host, region, vec![memfd(MEMORY)]) else { panic!("no region") };
    (program, mr)
}

fn has_node(host: &Host) -> bool {
    host.urma_page(UrmaCursor::default()).node.is_some()
}

fn errno<T: std::fmt::Debug>(result: Result<T, Refusal>) -> i32 {
    result.expect_err("refused").errno
}

#[test]
fn the_first_program_opens_the_node_and_the_last_one_closes_it() {
    let mut host = host_with_nodes(100);
    let mut early = Program::start(&mut host, 1001).expect("started");
    assert_eq!(errno(early.ask(&mut host, Request::UrmaCall(UrmaCall::DeleteJfc { jfc: 0 }))), libc::EPROTO);
    assert_eq!(errno(early.ask(&mut host, Request::UrmaOpen { eid: eid(9) })), libc::EADDRNOTAVAIL);
    assert!(!has_node(&host));
    let contexts = host.contexts.taken();
    let (mut a, _) = start(&mut host, 1001);
    assert_eq!(errno(a.ask(&mut host, Request::UrmaOpen { eid: eid(1) })), libc::EEXIST);
    let (b, _) = start(&mut host, 1002);
    let page = host.urma_page(UrmaCursor::default());
    assert_eq!(
        (page.node.map(|node| (node.eid, node.device)), page.next.is_some()),
        (Some((eid(1), "burst0".into())), true)
    );
    a.end(&mut host);
    assert!(has_node(&host));
    b.end(&mut host);
    assert!(!has_node(&host));
    assert_eq!(host.contexts.taken(), contexts, "the node's own context is given back");
    early.end(&mut host);
}

#[test]
fn a_host_on_ports_of_somebody_else_says_that_it_has_none() {
    let mut host = host(100);
    let mut program = Program::start(&mut host, 1001).expect("started");
    let refusal = program.ask(&mut host, Request::UrmaOpen { eid: eid(1) }).expect_err("no port");
    assert_eq!(refusal.errno, libc::EOPNOTSUPP, "{}", refusal.sentence);
    program.end(&mut host);
}

#[test]
fn regions_and_completion_queues_end_after_what_uses_them() {
    let mut host = host_with_nodes(100);
    let (mut program, mr) = start(&mut host, 1001);
    let cq = program.cq;
    let segment = UrmaCall::RegisterSegment { mr, addr: BASE, len: MEMORY, token: None, access: 2 };
    let segments: Vec<u32> = (0..2).map(|_| number(&mut program, &mut host, segment.clone())).collect();
    for token_id in segments {
        // A key that was freed may be another program's next: a segment must not outlive its region.
        assert_eq!(errno(program.ask(&mut host, Request::DeregMr { mr })), libc::EBUSY);
        assert_eq!(call(&mut program, &mut host, UrmaCall::UnregisterSegment { token_id }), Ok(UrmaAnswer::Done));
    }
    program.ask(&mut host, Request::DeregMr { mr }).expect("nothing uses it");
    assert_eq!(errno(call(&mut program, &mut host, segment)), libc::EINVAL, "there is no such region");
    let jfc = number(&mut program, &mut host, UrmaCall::CreateJfc { cq });
    assert_eq!(errno(program.ask(&mut host, Request::DestroyCq { cq })), libc::EBUSY);
    let attr = UrmaJettyAttr { mode: 1, jfc, depth: 4, ..UrmaJettyAttr::default() };
    let jetty = number(&mut program, &mut host, UrmaCall::CreateJetty(attr));
    assert!(matches!(call(&mut program, &mut host, UrmaCall::DeleteJfc { jfc }), Ok(UrmaAnswer::Refused(_))));
    assert_eq!(call(&mut program, &mut host, UrmaCall::DeleteJetty { jetty }), Ok(UrmaAnswer::Done));
    assert_eq!(call(&mut program, &mut host, UrmaCall::DeleteJfc { jfc }), Ok(UrmaAnswer::Done));
    program.ask(&mut host, Request::DestroyCq { cq }).expect("nothing uses it");
    program.end(&mut host);
}

#[test]
fn objects_are_charged_and_given_back() {
    let mut host = host_with_nodes(40);
    let (mut program, mr) = start(&mut host, 1001);
    let used = |host: &Host, resource| {
        let uses = host.ledger.uses(host.now().0);
        let of = |account: &burst_ledger::AccountUse| {
            account.resources.iter().find(|r| r.resource == resource).map_or(0, |r| r.used)
        };
        uses.iter().map(of).max().unwrap_or(0)
    };
    let cq = program.cq;
    let before =
        [Resource::Qp, Resource::Srq, Resource::Ah, Resource::Mw, Resource::QueueBytes].map(|r| used(&host, r));
    let jfc = number(&mut program, &mut host, UrmaCall::CreateJfc { cq });
    let jfr = number(
        &mut program,
        &mut host,
        UrmaCall::CreateJfr { jfc, depth: 16, token: None, rnr_timer: 0, is_unreliable: false },
    );
    let attr = UrmaJettyAttr { mode: 1, jfc, jfr: Some(jfr), depth: 16, ..UrmaJettyAttr::default() };
    number(&mut program, &mut host, UrmaCall::CreateJetty(attr.clone()));
    let segment = UrmaCall::RegisterSegment { mr, addr: BASE, len: MEMORY, token: None, access: 2 };
    number(&mut program, &mut host, segment);
    number(&mut program, &mut host, UrmaCall::ImportJetty { eid: eid(2), id: 1024, kind: 1, token: None });
    number(&mut program, &mut host, UrmaCall::CreateGroup { policy: 0, token: None });
    let now = [Resource::Qp, Resource::Srq, Resource::Ah, Resource::Mw, Resource::QueueBytes].map(|r| used(&host, r));
    let grown: Vec<u64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(grown, [1, 2, 1, 1, 32 * 256]);
    // A refused call costs nothing.
    let refused = call(&mut program, &mut host, UrmaCall::CreateJetty(UrmaJettyAttr { mode: 9, ..attr.clone() }));
    assert!(matches!(refused, Ok(UrmaAnswer::Refused(_))));
    assert_eq!(used(&host, Resource::Qp), now[0]);
    // A share is a share.
    let refused = loop {
        if let Err(refusal) =
            call(&mut program, &mut host, UrmaCall::CreateJetty(UrmaJettyAttr { depth: 32_768, ..attr.clone() }))
        {
            break refusal;
        }
    };
    assert_eq!(refused.errno, libc::ENOMEM, "{}", refused.sentence);
    program.end(&mut host);
    // The worker deletes a program's objects in parts, and they are charged until then.
    assert!(crate::common::is_all_given_back(&host), "{:?}", host.ledger.uses(host.now().0));
}

#[test]
fn a_node_s_lanes_are_the_host_s_setting_whatever_programs_do() {
    for (lanes, is_open) in [(1, true), (4, true), (8, false)] {
        let asked: Arc<Mutex<Vec<usize>>> = Arc::default();
        let mut host = crate::common::host_with(&HostOptions { urma_lanes: lanes, ..crate::common::options(1, 100) });
        let noting = asked.clone();
        host.lend_urma_ports(Box::new(move |_, address: IpAddr| {
            let inner = Box::new(Hub::new(MemConfig::default()).port("urma", &[address]));
            Some(Box::new(CountingPort { inner, asked: noting.clone() }))
        }));
        let mut programs: Vec<Program> =
            (0..3).map(|n| Program::start(&mut host, 1001 + n).expect("started")).collect();
        for program in &mut programs {
            let opened = program.ask(&mut host, Request::UrmaOpen { eid: eid(1) });
            match is_open {
                true => assert!(opened.is_ok()),
                false => assert_eq!(errno(opened), libc::EMFILE),
            }
        }
        assert_eq!(has_node(&host), is_open);
        let asked = asked.lock().expect("no panic").clone();
        assert_eq!(asked, if is_open { vec![usize::from(lanes)] } else { vec![8; 3] }, "once for each node");
        programs.into_iter().for_each(|program| program.end(&mut host));
    }
}

#[test]
fn users_share_queues_requests_and_peers_of_a_node() {
    let mut host = host_with_nodes(50);
    let (mut hostile, _) = start(&mut host, 1001);
    let (mut other, _) = start(&mut host, 1002);
    let import = |n: u32| {
        let eid = std::net::Ipv4Addr::from(0x0b00_0000 | n).to_ipv6_mapped().octets();
        UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None }
    };
    let cq = hostile.cq;
    let jfc = number(&mut hostile, &mut host, UrmaCall::CreateJfc { cq });
    let attr = UrmaJettyAttr { mode: 1, jfc, depth: 1 << 15, ..UrmaJettyAttr::default() };
    let fill = |program: &mut Program, host: &mut Host, of: &mut dyn FnMut(u32) -> UrmaCall| {
        (0..=1 << 17).find_map(|n| call(program, host, of(n)).err().map(|refusal| (n, refusal)))
    };
    let (jetties, refusal) =
        fill(&mut hostile, &mut host, &mut |_| UrmaCall::CreateJetty(attr.clone())).expect("a share");
    // Half of what the reserve leaves of 2^22 requests.
    assert!(jetties == 57 && refusal.sentence.contains("user_share"), "{jetties}: {}", refusal.sentence);
    let (peers, refusal) = fill(&mut hostile, &mut host, &mut |n| import(n)).expect("a share");
    assert!(peers == 1382 && refusal.sentence.contains("user_share"), "{peers}: {}", refusal.sentence);
    // More imports from the same hosts cost no more peers.
    number(&mut hostile, &mut host, import(5));
    let (jfcs, refusal) = fill(&mut hostile, &mut host, &mut |_| UrmaCall::CreateJfc { cq }).expect("a share");
    assert!(jfcs < 1 << 16 && refusal.sentence.contains("user_share"), "{jfcs}: {}", refusal.sentence);
    let cq = other.cq;
    let jfc = number(&mut other, &mut host, UrmaCall::CreateJfc { cq });
    number(&mut other, &mut host, UrmaCall::CreateJetty(UrmaJettyAttr { jfc, ..attr }));
    number(&mut other, &mut host, import(1 << 20));
    // The end of so many objects is done in steps, between which the other is served.
    let mut steps = 0;
    while !hostile.end_some(&mut host, 256) {
        steps += 1;
        number(&mut other, &mut host, import(steps));
    }
    assert!(steps > (jfcs + peers) / 256, "{steps} steps");
    other.end(&mut host);
    drop(hostile);
    assert!(crate::common::is_all_given_back(&host));
}

/// Memory of a node that has no segments.
struct NoMemory;

impl UrmaMemory for NoMemory {
    fn read(&self, _: u32, _: u64, _: &mut [u8]) -> Result<(), MemoryGone> {
        Err(MemoryGone)
    }
    fn write(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), MemoryGone> {
        Err(MemoryGone)
    }
    fn update(&mut self, _: u32, _: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        Err(MemoryGone)
    }
}

struct Silent;

impl UrmaEffects for Silent {
    fn count(&mut self, _: Reason) {}
}

/// Other nodes, at 10.0.0.7 and so on, ask the host's node for channels.
fn open_channels(hub: &Hub, last: &[u8]) {
    for last in last {
        let address = IpAddr::from([10, 0, 0, *last]);
        let config = |mtu| UrmaConfig { mtu, ..UrmaConfig::new(node_at(address), u64::from(*last)) };
        let port = Box::new(hub.port("peer", &[address]));
        let mut peer = UrmaEndpoint::new(port, address, 16, config).expect("its address");
        let own = node_at(IpAddr::from([10, 0, 0, 1]));
        peer.with(Nanos(0), &mut NoMemory, &mut Silent, |node, _| node.open_channel(own, Nanos(0)));
        peer.send(Nanos(0), &mut NoMemory, &mut Silent, u64::MAX);
        peer.flush(Nanos(0));
    }
}

#[test]
fn a_user_sees_the_channels_to_hosts_from_which_it_imports() {
    let (mut host, hub) = (host(50), Hub::new(MemConfig::default()));
    let lent = hub.clone();
    host.lend_urma_ports(Box::new(move |_, address: IpAddr| Some(Box::new(lent.port("urma", &[address])))));
    let mut users = [1001, 1002, rustix::process::geteuid().as_raw()].map(|uid| start(&mut host, uid).0);
    // A host with an address that ends like another one's is another one.
    for (at, network, last) in [(0, 10, 7), (1, 11, 7), (1, 10, 8), (1, 10, 9)] {
        let eid = Ipv4Addr::new(network, 0, 0, last).to_ipv6_mapped().octets();
        number(&mut users[at], &mut host, UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None });
    }
    open_channels(&hub, &[7, 8, 9]);
    let mut peers =
        |at: usize, host: &mut Host| match users[at].ask(host, Request::Urma { from: UrmaCursor::default() }) {
            Ok(Response::Urma(page)) => {
                page.node.expect("the node").channels.iter().map(|c| c.peer[15]).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
    let all_open = (0..10_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        peers(2, &mut host).len() == 3
    });
    assert!(all_open, "the node has no channels: {:?}", peers(2, &mut host));
    assert_eq!((peers(0, &mut host), peers(1, &mut host), peers(2, &mut host)), (vec![7], vec![8, 9], vec![7, 8, 9]));
    users.into_iter().for_each(|user| user.end(&mut host));
}

#[test]
fn imports_from_invented_addresses_that_end_like_a_true_one_are_of_no_harm_to_others() {
    let mut host = host_with_nodes(50);
    let (mut hostile, _) = start(&mut host, 1001);
    let (mut other, _) = start(&mut host, 1002);
    let import = |network: u8| {
        let eid = Ipv4Addr::new(network, 0, 0, 2).to_ipv6_mapped().octets();
        UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None }
    };
    for round in 0..20 {
        for network in 11..200 {
            number(&mut hostile, &mut host, import(network));
            if network % 20 == 11 {
                // One call, and it is not repeated.
                let jetty = number(&mut other, &mut host, import(10));
                let done = call(&mut other, &mut host, UrmaCall::UnimportJetty { jetty });
                assert!(matches!(done, Ok(UrmaAnswer::Done)), "round {round}, network {network}: {done:?}");
            }
        }
        // It comes back with what it has imported gone.
        hostile.end(&mut host);
        hostile = start(&mut host, 1001).0;
    }
    hostile.end(&mut host);
    other.end(&mut host);
    assert!(crate::common::is_all_given_back(&host));
}

#[test]
fn no_other_program_takes_the_port_of_urma_before_between_and_after_programs_that_use_it() {
    use std::net::UdpSocket;
    const BUS: u16 = 4792;
    let [held, taken, free] =
        ["127.0.45.11", "127.0.45.12", "127.0.45.13"].map(|ip| ip.parse::<Ipv4Addr>().expect("ip"));
    let other = UdpSocket::bind((taken, BUS)).expect("no program of this machine uses URMA here");
    let open = |ip: Ipv4Addr, hold_urma: bool| {
        let ports = vec![format!("udp:dev=lo,addr={ip}")];
        let options = HostOptions { ports, hold_urma, ..crate::common::options(1, 50) };
        Host::open(&options, burst_host::Clock::Monotonic, None).expect("a host")
    };
    let is_free = |ip: Ipv4Addr| UdpSocket::bind((ip, BUS)).is_ok();
    let uses = |host: &mut Host, ip: Ipv4Addr| {
        let mut program = Program::start(host, 1001).expect("a program");
        let opened = program.ask(host, Request::UrmaOpen { eid: ip.to_ipv6_mapped().octets() });
        let is_free = is_free(ip);
        program.end(host);
        (opened.map(drop), is_free)
    };
    let mut host = open(held, true);
    assert!(!is_free(held), "before a program uses URMA");
    for _ in 0..2 {
        let (opened, was_free) = uses(&mut host, held);
        opened.expect("a node");
        assert!(!was_free && !is_free(held));
    }
    drop(host);
    assert!(is_free(held));

    // The daemon serves verbs all the same, and takes the port when it is free.
    let mut host = open(taken, true);
    assert_eq!(uses(&mut host, taken).0.expect_err("another process has the port").errno, libc::EADDRINUSE);
    drop(other);
    host.refresh();
    assert!(!is_free(taken));
    uses(&mut host, taken).0.expect("a node");

    let mut host = open(free, false);
    assert!(is_free(free));
    uses(&mut host, free).0.expect("a node");
}

#[test]
fn a_program_opens_one_copier_and_its_device_memory_is_no_segment() {
    let mut off = host(100);
    let mut refused = Program::start(&mut off, 1001).expect("a program");
    let refusal = refused.ask(&mut off, Request::OpenCopier).expect_err("no copiers unless they are allowed");
    assert_eq!(refusal.errno, libc::EOPNOTSUPP);
    assert!(refusal.sentence.contains("the key gpu"), "{}", refusal.sentence);
    refused.end(&mut off);

    let mut host = with_nodes(crate::common::host_with(&HostOptions { gpu: true, ..crate::common::options(1, 100) }));
    let (mut a, _) = start(&mut host, 1001);
    let pd = a.pd;
    let device = |pieces| Request::RegMr { pd, addr: BASE, len: 100, iova: BASE, access: 1, pieces, replaces: None };
    let piece = |len| MrPiece { addr: 0x7f00_0000_0000, len, kind: MrPieceKind::Device };
    let refusal = a.ask(&mut host, device(vec![piece(100)])).expect_err("no copier");
    assert_eq!(refusal.errno, libc::EINVAL, "{}", refusal.sentence);
    assert!(matches!(a.ask(&mut host, Request::OpenCopier), Ok(Response::Done)));
    assert_eq!(errno(a.ask(&mut host, Request::OpenCopier)), libc::EEXIST);
    let beyond = MrPiece { addr: u64::MAX, ..piece(100) };
    for wrong in [vec![piece(99)], vec![piece(50), piece(50)], vec![beyond]] {
        assert_eq!(errno(a.ask(&mut host, device(wrong))), libc::EINVAL);
    }
    let Ok(Response::Mr { mr, .. }) = a.ask(&mut host, device(vec![piece(100)])) else { panic!("no region") };
    let segment = UrmaCall::RegisterSegment { mr, addr: BASE, len: 100, token: Some(1), access: 1 };
    assert_eq!(errno(call(&mut a, &mut host, segment)), libc::EOPNOTSUPP);
    assert!(matches!(a.ask(&mut host, Request::DeregMr { mr }), Ok(Response::Done)));
    a.end(&mut host);
}
