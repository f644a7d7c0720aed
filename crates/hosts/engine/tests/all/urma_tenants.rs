//! Programs of URMA in other processes: what each posts by its ring, over `mem` ports in virtual time. Those that keep the rules
//! get their own completions and an equal part of the wire; those that do not reach nothing of others.
use crate::harness::{BASE, Host, run};
use burst_base::{DeviceId, Nanos, Reason};
use burst_cc::Params;
use burst_control::events::{EventQueue, EventSink};
use burst_control::urma_calls::{UrmaAnswer, UrmaCall, UrmaJettyAttr, UrmaPost};
use burst_control::{AsyncObject, AsyncRecord};
use burst_engine::counters::Traffic;
use burst_engine::urma::eid_of;
use burst_engine::urma::records::{post_of, receive_post};
use burst_engine::urma::{TenantCall, UrmaTenant};
use burst_engine::urma::{UrmaEndpoint, node_at};
use burst_ledger::{Account, AccountId, Capacities, Ledger, Policy};
use burst_port::mem::{Hub, MemConfig};
use burst_shm::Cqe;
use burst_shm::arena::Segment;
use burst_shm::cq::CqConsumer;
use burst_shm::record_ring::{self, RECORD_RING_ENTRIES, RecordRingProducer};
use burst_ubwire::TaOpcode;
use burst_urma::{
    CrStatus, JfrWr, JfsWr, LocalRange, ObjectCounts, SegmentConfig, UrmaConfig, UrmaError, WrData, access,
};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

const BYTES: u32 = 4 << 20;
/// Number of the host's own context: behind those of programs.
const OWN: u32 = 90;

pub(crate) fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// Two hosts with a node each.
pub(crate) fn pair() -> [Host; 2] {
    let hubs = [0, 1].map(|_| Hub::new(MemConfig { depth: 1 << 14, ..MemConfig::default() }));
    [1, 2].map(|last| {
        let port = |hub: &Hub| Box::new(hub.port(&format!("mem{last}"), &[address(last)]));
        let mut host = Host::with_cc(port(&hubs[0]), BYTES, Params::default().with_window(8 << 20));
        let config = |mtu| UrmaConfig {
            mtu,
            caqm: false,
            window_max: 2 << 20,
            ..UrmaConfig::new(node_at(address(last)), u64::from(last))
        };
        let endpoint = UrmaEndpoint::new(port(&hubs[1]), address(last), 64, config).expect("its address");
        assert!(host.worker.open_urma(OWN, DeviceId(0), &account(0), endpoint));
        host
    })
}

pub(crate) fn account(user: u32) -> Account {
    Ledger::new(Capacities::new(|_| 1), Policy::default()).account(AccountId::User(user), false)
}

/// A program: its ends of everything, and its part of the host's memory.
pub(crate) struct Program {
    host: usize,
    pub(crate) context: u32,
    ring: RecordRingProducer,
    events: Arc<EventQueue>,
    cq: CqConsumer,
    pub(crate) jfc: u32,
    jfr: u32,
    pub(crate) jetty: u32,
    pub(crate) token_id: u32,
    pub(crate) addr: u64,
    /// What was posted and is not in the ring yet.
    waiting: VecDeque<Vec<u8>>,
    finished: u32,
}

/// Bytes of each program.
pub(crate) const PART: u64 = 256 << 10;

impl Program {
    pub(crate) fn new(hosts: &mut [Host; 2], at: usize, user: &Account) -> Program {
        let host = &mut hosts[at];
        host.add_context(user);
        let context = host.context;
        let (segment, consumer) = record_ring::create().expect("a ring");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        let ring = RecordRingProducer::new(Segment::map(fd).expect("mapped")).expect("large enough");
        let events = Arc::new(EventQueue::new());
        let sink: Arc<dyn EventSink> = events.clone();
        host.worker.add_urma_tenant(UrmaTenant::new(context, address(at as u8 + 1), consumer, 0, sink));
        let (number, cq) = host.create_cq(256, Arc::new(EventQueue::new()));
        let shared = host.worker.cq(number).expect("made").clone();
        let mut program = Program {
            host: at,
            context,
            ring,
            events,
            cq,
            jfc: 0,
            jfr: 0,
            jetty: 0,
            token_id: 0,
            addr: BASE + u64::from(context) * PART,
            waiting: VecDeque::new(),
            finished: 0,
        };
        program.jfc = program.number(hosts, TenantCall::CreateJfc(number, shared));
        let jfc = program.jfc;
        let jfr = UrmaCall::CreateJfr { jfc, depth: 64, token: None, rnr_timer: 3, is_unreliable: false };
        program.jfr = program.number(hosts, TenantCall::Plain(jfr));
        program.jetty = program.make_jetty(hosts, 128);
        program.token_id = program.register(hosts, program.addr, PART, access::READ | access::WRITE | access::ATOMIC);
        program
    }
    pub(crate) fn call(&self, hosts: &mut [Host; 2], call: TenantCall) -> Result<UrmaAnswer, UrmaError> {
        hosts[self.host].worker.urma_call(Nanos(0), self.context, call).expect("a node")
    }
    pub(crate) fn number(&self, hosts: &mut [Host; 2], call: TenantCall) -> u32 {
        match self.call(hosts, call) {
            Ok(UrmaAnswer::Number(number)) => number,
            other => panic!("{other:?}"),
        }
    }
    fn make_jetty(&self, hosts: &mut [Host; 2], depth: u16) -> u32 {
        let attr = UrmaJettyAttr {
            mode: 1,
            jfc: self.jfc,
            jfr: Some(self.jfr),
            depth,
            rnr_retry: 7,
            ..UrmaJettyAttr::default()
        };
        self.number(hosts, TenantCall::Plain(UrmaCall::CreateJetty(attr)))
    }
    fn register(&self, hosts: &mut [Host; 2], addr: u64, len: u64, access: u8) -> u32 {
        let key = hosts[self.host].key;
        self.number(hosts, TenantCall::RegisterSegment(key, SegmentConfig { addr, len, token: Some(7), access }))
    }
    /// Imports another program's memory.
    pub(crate) fn import(&self, hosts: &mut [Host; 2], peer: &Program) -> u32 {
        let eid = eid_of(address(peer.host as u8 + 1));
        let (token_id, addr) = (peer.token_id, peer.addr);
        self.number(
            hosts,
            TenantCall::Plain(UrmaCall::ImportSegment { eid, token_id, addr, len: PART, token: Some(7) }),
        )
    }
    /// Imports another program's Jetty.
    fn import_jetty(&self, hosts: &mut [Host; 2], peer: &Program) -> u32 {
        let eid = eid_of(address(peer.host as u8 + 1));
        let (id, kind, token) = (peer.jetty, 1, None);
        self.number(hosts, TenantCall::Plain(UrmaCall::ImportJetty { eid, id, kind, token }))
    }
    fn range(&self, len: u32) -> LocalRange {
        LocalRange { token_id: self.token_id, addr: self.addr, len }
    }
    /// A WRITE of the program's first bytes to the peer's.
    pub(crate) fn write(&self, segment: u32, peer: &Program, len: u32, user_ctx: u64) -> JfsWr {
        let data = WrData::Local(self.range(len));
        JfsWr { segment: Some(segment), remote_addr: peer.addr, ..JfsWr::new(TaOpcode::Write, data, user_ctx) }
    }
    pub(crate) fn post(&mut self, jetty: u32, wr: &JfsWr) {
        let (post, inline) = post_of(jetty, wr);
        self.waiting.push_back([&post.to_bytes()[..], inline].concat());
    }
    /// Shows the worker as much as there is room for.
    pub(crate) fn show(&mut self, hosts: &mut [Host; 2]) {
        while self.ring.has_room(1)
            && let Some(record) = self.waiting.pop_front()
        {
            self.ring.write(&record);
        }
        if self.ring.post() {
            hosts[self.host].bells[self.context as usize].ring(0, 0);
        }
    }
    pub(crate) fn poll(&mut self) -> Option<Cqe> {
        let mut cqe = Cqe::default();
        self.cq.poll(&mut cqe).then(|| {
            self.finished = cqe.sq_consumer;
            cqe
        })
    }
    pub(crate) fn counts(&self, hosts: &[Host; 2]) -> ObjectCounts {
        hosts[self.host].worker.urma_endpoint(address(self.host as u8 + 1)).expect("open").node.object_counts()
    }
}

/// Runs until `done`, for 20 virtual seconds at most.
fn until(hosts: &mut [Host; 2], now: &mut Nanos, mut done: impl FnMut() -> bool) -> bool {
    let [a, b] = hosts;
    run(a, b, now, |_, _| done())
}

#[test]
fn programs_of_one_node_get_their_own_completions_and_data() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut q] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let [mut x, y] = [0, 1].map(|i| Program::new(&mut hosts, 1, &users[i]));
    let (to_x, to_y) = (p.import(&mut hosts, &x), q.import(&mut hosts, &y));
    let target = p.import_jetty(&mut hosts, &x);
    let bytes: Vec<u8> = (0..PART as usize).map(|i| (i * 7 + i / 251) as u8).collect();
    for program in [&p, &q] {
        let at = (program.addr - BASE) as usize;
        hosts[0].memory.sub(at, PART as usize).write_from(&bytes).expect("memory");
    }
    for i in 0..300 {
        let (jetty, wr) = (p.jetty, p.write(to_x, &x, 5000, i));
        p.post(jetty, &wr);
        let (jetty, wr) = (q.jetty, q.write(to_y, &y, 3000, 1000 + i));
        q.post(jetty, &wr);
    }
    // A message with inline data between them, into a receive.
    let wr = JfrWr { range: LocalRange { addr: x.addr + 100_000, ..x.range(64) }, user_ctx: 77 };
    x.waiting.push_back(receive_post(x.jfr, &wr).to_bytes().to_vec());
    x.show(&mut hosts);
    let send =
        JfsWr { target: Some(target), ..JfsWr::new(TaOpcode::Send, WrData::inline(b"hello").expect("short"), 300) };
    let jetty = p.jetty;
    p.post(jetty, &send);
    let (mut now, mut seen, mut received) = (Nanos(0), [Vec::new(), Vec::new()], None);
    for _ in 0..100_000 {
        p.show(&mut hosts);
        q.show(&mut hosts);
        until(&mut hosts, &mut now, || true);
        seen[0].extend(std::iter::from_fn(|| p.poll()));
        seen[1].extend(std::iter::from_fn(|| q.poll()));
        received = received.or_else(|| x.poll());
        if seen[0].len() == 301 && seen[1].len() == 300 && received.is_some() {
            break;
        }
        now = now + Nanos(1000);
    }
    assert_eq!([seen[0].len(), seen[1].len()], [301, 300]);
    assert!(seen.iter().flatten().all(|cqe| cqe.status == CrStatus::Success as u8));
    let numbers = |cqes: &[Cqe]| {
        let mut numbers: Vec<u64> = cqes.iter().map(|cqe| cqe.wr_id).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&seen[0]), (0..=300).collect::<Vec<_>>());
    assert_eq!(numbers(&seen[1]), (1000..1300).collect::<Vec<_>>());
    assert_eq!((p.finished, q.finished), (301, 300), "all entries of the queues are free");
    let received = received.expect("a receive");
    assert_eq!((received.wr_id, received.byte_len, received.qp_cookie, received.sq_consumer), (77, 5, x.jfr, 1));
    let mut there = vec![0; 5000];
    hosts[1].memory.sub((x.addr - BASE) as usize, 5000).read_to(&mut there).expect("memory");
    assert_eq!(there, bytes[..5000]);
    hosts[1].memory.sub((y.addr - BASE) as usize, 5000).read_to(&mut there).expect("memory");
    assert_eq!((&there[..3000], &there[3000..]), (&bytes[..3000], &[0; 2000][..]));
    hosts[1].memory.sub((x.addr - BASE) as usize + 100_000, 5).read_to(&mut there[..5]).expect("memory");
    assert_eq!(&there[..5], b"hello");
}

#[test]
fn accounts_share_a_node_whatever_they_post() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    // One program with four Jetties and messages of 64 KiB, against one with a Jetty and messages of 8 KiB.
    let [mut p, mut q] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let peers = [0, 1].map(|i| Program::new(&mut hosts, 1, &users[i]));
    let (to_x, to_y) = (p.import(&mut hosts, &peers[0]), q.import(&mut hosts, &peers[1]));
    let jetties: Vec<u32> = (0..4).map(|_| p.make_jetty(&mut hosts, 64)).collect();
    let (mut posted, mut done) = ([0usize; 2], [0u64; 2]);
    let (mut now, mut at_start) = (Nanos(0), [0; 2]);
    for pass in 0..3000 {
        if pass == 300 {
            at_start = done;
        }
        while let Some(cqe) = p.poll() {
            assert_eq!(cqe.status, 0);
            (posted[0], done[0]) = (posted[0] - 1, done[0] + (64 << 10));
        }
        while let Some(cqe) = q.poll() {
            assert_eq!(cqe.status, 0);
            (posted[1], done[1]) = (posted[1] - 1, done[1] + (8 << 10));
        }
        while posted[0] < 200 {
            let wr = p.write(to_x, &peers[0], 64 << 10, 0);
            p.post(jetties[posted[0] % 4], &wr);
            posted[0] += 1;
        }
        while posted[1] < 120 {
            let (jetty, wr) = (q.jetty, q.write(to_y, &peers[1], 8 << 10, 0));
            q.post(jetty, &wr);
            posted[1] += 1;
        }
        p.show(&mut hosts);
        q.show(&mut hosts);
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        now = now + Nanos(1_000);
    }
    let [p_bytes, q_bytes] = [0, 1].map(|i| done[i] - at_start[i]);
    let part = q_bytes * 100 / (p_bytes + q_bytes);
    println!("{p_bytes} and {q_bytes} bytes: {part} %");
    assert!(p_bytes + q_bytes > 40 << 20);
    assert!((40..=60).contains(&part), "the modest program has {part} % of {} bytes", p_bytes + q_bytes);
}

#[test]
fn numbers_of_other_programs_do_not_exist() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, evil] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let (to_x, target) = (p.import(&mut hosts, &x), p.import_jetty(&mut hosts, &x));
    let before = p.counts(&hosts);
    // Calls.
    for call in [
        UrmaCall::DeleteJfc { jfc: p.jfc },
        UrmaCall::DeleteJfr { jfr: p.jfr },
        UrmaCall::QueryJfr { jfr: p.jfr },
        UrmaCall::LimitJfr { jfr: p.jfr, limit: 1 },
        UrmaCall::ModifyJfr { jfr: p.jfr, state: 2 },
        UrmaCall::DeleteJetty { jetty: p.jetty },
        UrmaCall::QueryJetty { jetty: p.jetty },
        UrmaCall::ModifyJetty { jetty: p.jetty, state: 3 },
        UrmaCall::FlushJetty { jetty: p.jetty, most: 9 },
        UrmaCall::BindJetty { jetty: p.jetty, target },
        UrmaCall::BindJetty { jetty: evil.jetty, target },
        UrmaCall::UnbindJetty { jetty: p.jetty },
        UrmaCall::UnregisterSegment { token_id: p.token_id },
        UrmaCall::UnimportSegment { segment: to_x },
        UrmaCall::UnimportJetty { jetty: target },
        UrmaCall::DeleteGroup { group: 0 },
        UrmaCall::CreateJfr { jfc: p.jfc, depth: 4, token: None, rnr_timer: 0, is_unreliable: false },
        UrmaCall::CreateJetty(UrmaJettyAttr { mode: 1, jfc: p.jfc, depth: 4, ..UrmaJettyAttr::default() }),
        UrmaCall::CreateJetty(UrmaJettyAttr {
            mode: 1,
            jfc: evil.jfc,
            jfr: Some(p.jfr),
            depth: 4,
            ..UrmaJettyAttr::default()
        }),
    ] {
        assert_eq!(evil.call(&mut hosts, TenantCall::Plain(call.clone())), Err(UrmaError::NoObject), "{call:?}");
    }
    assert_eq!(p.counts(&hosts), before, "nothing has changed");
    let outside = SegmentConfig { addr: BASE, len: u64::from(BYTES) + 1, token: None, access: access::READ };
    let key = hosts[0].key;
    assert_eq!(evil.call(&mut hosts, TenantCall::RegisterSegment(key, outside)), Err(UrmaError::Access));
    assert!(evil.waiting.is_empty() && p.poll().is_none());
}

#[test]
fn what_a_program_posts_with_numbers_of_others_is_refused() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut evil] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let (to_x, target) = (p.import(&mut hosts, &x), p.import_jetty(&mut hosts, &x));
    // With an own Jetty, but another's memory, imports or target.
    let own_import = evil.import(&mut hosts, &x);
    let read_of = |range| JfsWr {
        segment: Some(own_import),
        remote_addr: x.addr,
        ..JfsWr::new(TaOpcode::Write, WrData::Local(range), 0)
    };
    let stolen = [
        read_of(p.range(8)),
        JfsWr { segment: Some(to_x), ..read_of(evil.range(8)) },
        JfsWr { target: Some(target), ..JfsWr::new(TaOpcode::Send, WrData::Local(evil.range(8)), 0) },
        JfsWr { notify: Some((to_x, x.addr)), ..JfsWr { opcode: TaOpcode::WriteNotify, ..read_of(evil.range(8)) } },
    ];
    let jetty = evil.jetty;
    for wr in &stolen {
        evil.post(jetty, wr);
    }
    // Another's Jetty and receive queue, and records that mean nothing.
    evil.post(p.jetty, &read_of(evil.range(8)));
    let receive = JfrWr { range: evil.range(8), user_ctx: 0 };
    evil.waiting.push_back(receive_post(p.jfr, &receive).to_bytes().to_vec());
    let nonsense = UrmaPost { opcode: 0xee, order: 9, queue: jetty, ..UrmaPost::default() };
    evil.waiting.push_back(nonsense.to_bytes().to_vec());
    evil.post(jetty, &read_of(evil.range(16)));
    evil.show(&mut hosts);
    let (mut now, mut seen) = (Nanos(0), Vec::new());
    assert!(
        until(&mut hosts, &mut now, || {
            seen.extend(std::iter::from_fn(|| evil.poll()).map(|cqe| cqe.status));
            seen.len() == 6
        }),
        "{seen:?}"
    );
    let refused = CrStatus::LocOperation as u8;
    assert_eq!(seen, [refused, refused, refused, refused, refused, 0]);
    assert_eq!(evil.finished, 6);
    assert!(p.poll().is_none());
    let counters = hosts[0].worker.urma_counters(DeviceId(0));
    assert_eq!(counters[0].reason(Reason::UbRefused), 5);
    // And the other one works.
    let (jetty, wr) = (p.jetty, p.write(to_x, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    assert!(until(&mut hosts, &mut now, || p.poll().is_some_and(|cqe| (cqe.wr_id, cqe.status) == (5, 0))));
}

#[test]
fn a_ring_that_lies_is_not_read_any_more() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut evil] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let to_x = p.import(&mut hosts, &x);
    // A record that is too short for its head, then more than the queue was made for.
    evil.waiting.push_back(vec![0; 20]);
    evil.show(&mut hosts);
    let mut now = Nanos(0);
    until(&mut hosts, &mut now, || true);
    let own = evil.import(&mut hosts, &x);
    for i in 0..u64::from(RECORD_RING_ENTRIES) - 1 {
        let (jetty, wr) = (evil.jetty, evil.write(own, &x, 8, i));
        evil.post(jetty, &wr);
    }
    evil.show(&mut hosts);
    let (jetty, wr) = (p.jetty, p.write(to_x, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    assert!(until(&mut hosts, &mut now, || p.poll().is_some()));
    assert!(evil.poll().is_none(), "nothing of it was carried out");
    assert!(!hosts[0].worker.remove_urma_tenant(now, evil.context), "another program uses the node");
}

#[test]
fn more_requests_than_the_queue_has_are_refused_and_lost_completions_are_reported() {
    let mut hosts = pair();
    let [mut p, x] = [0, 1].map(|host| Program::new(&mut hosts, host, &account(1)));
    let to_x = p.import(&mut hosts, &x);
    // The completion queue has 256 entries, and no program reads it.
    for i in 0..600 {
        p.post(p.jetty, &p.write(to_x, &x, 8, i));
    }
    let mut now = Nanos(0);
    while p.events.len() < 2 || !p.waiting.is_empty() {
        p.show(&mut hosts);
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        now = now + Nanos(1_000);
        assert!(now < Nanos::from_ms(1000));
    }
    assert_eq!(std::iter::from_fn(|| p.poll()).count(), 256);
    // As of a queue pair whose completion queue is overrun.
    for (kind, id) in [(AsyncObject::Jfc, p.jfc), (AsyncObject::Jetty, p.jetty)] {
        let record = p.events.pop().expect("an event");
        let record = AsyncRecord::from_bytes(record.as_slice().try_into().expect("16 bytes")).expect("known");
        assert_eq!((record.object, record.event, record.cookie), (kind, 0, u64::from(id)));
    }
    assert!(p.events.is_empty(), "once");
    let state = p.call(&mut hosts, TenantCall::Plain(UrmaCall::QueryJetty { jetty: p.jetty }));
    assert!(matches!(state, Ok(UrmaAnswer::State { state: 3, .. })), "{state:?}");
    assert_eq!(hosts[0].worker.urma_counters(DeviceId(0))[0].reason(Reason::CqOverrun), 1);
}

#[test]
fn a_full_jetty_goes_on_when_requests_without_completions_end() {
    let mut hosts = pair();
    let user = account(1);
    let mut p = Program::new(&mut hosts, 0, &user);
    let x = Program::new(&mut hosts, 1, &user);
    let to_x = p.import(&mut hosts, &x);
    // More than the Jetty's depth of 128, and only the last one has a completion.
    for i in 0..=300 {
        let (jetty, wr) = (p.jetty, JfsWr { complete: i == 300, ..p.write(to_x, &x, 8, i) });
        p.post(jetty, &wr);
    }
    let (mut now, mut last) = (Nanos(0), None);
    while last.is_none() {
        p.show(&mut hosts);
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        last = p.poll();
        now = now + Nanos(1_000);
        assert!(now < Nanos::from_ms(1000), "{} requests are outstanding", p.counts(&hosts).requests);
    }
    assert_eq!(last.map(|cqe| (cqe.wr_id, cqe.status, cqe.sq_consumer)), Some((300, 0, 301)));
}

#[test]
fn answers_leave_with_the_request_of_a_program_that_answers() {
    let mut hosts = pair();
    let user = account(1);
    let (mut p, mut x) = (Program::new(&mut hosts, 0, &user), Program::new(&mut hosts, 1, &user));
    let (to_x, to_p) = (p.import(&mut hosts, &x), x.import(&mut hosts, &p));
    let sent =
        |hosts: &[Host; 2], at: usize| hosts[at].worker.urma_counters(DeviceId(0))[0].traffic(Traffic::TxPackets);
    let mut now = Nanos(0);
    // The channel opens, and the first answers have waited in vain.
    for i in 0..80 {
        let (jetty, wr) = (p.jetty, p.write(to_x, &x, 8, i));
        p.post(jetty, &wr);
        p.show(&mut hosts);
        assert!(until(&mut hosts, &mut now, || p.poll().is_some()));
        now = now + Nanos(100_000);
    }
    let mut together = 0;
    for i in 0..80 {
        let (jetty, wr) = (p.jetty, p.write(to_x, &x, 8, i));
        p.post(jetty, &wr);
        p.show(&mut hosts);
        let before = sent(&hosts, 1);
        for _ in 0..3 {
            hosts[0].worker.run_once(now);
            hosts[1].worker.run_once(now);
            now = now + Nanos(1_000);
        }
        let waiting = sent(&hosts, 1) == before;
        let (jetty, wr) = (x.jetty, x.write(to_p, &p, 8, i));
        x.post(jetty, &wr);
        x.show(&mut hosts);
        hosts[1].worker.run_once(now);
        together += usize::from(waiting && sent(&hosts, 1) == before + 2);
        let mut ends = [false; 2];
        assert!(until(&mut hosts, &mut now, || {
            ends[0] |= p.poll().is_some();
            ends[1] |= x.poll().is_some();
            ends == [true; 2]
        }));
    }
    assert!(together >= 70, "{together} of 80");
}

#[test]
fn an_answer_that_is_there_when_the_worker_gets_its_processor_late_is_in_time() {
    let mut hosts = pair();
    let user = account(1);
    let mut ends = [Program::new(&mut hosts, 0, &user), Program::new(&mut hosts, 1, &user)];
    let segments = [0, 1].map(|at| ends[at].import(&mut hosts, &ends[1 - at]));
    let sent =
        |hosts: &[Host; 2], at: usize| hosts[at].worker.urma_counters(DeviceId(0))[0].traffic(Traffic::TxPackets);
    let (mut now, mut together, mut alone) = (Nanos(0), 0, 0);
    for turn in 0..600 {
        let (at, other) = (turn % 2, 1 - turn % 2);
        let wr = ends[at].write(segments[at], &ends[other], 8, 0);
        let jetty = ends[at].jetty;
        ends[at].post(jetty, &wr);
        ends[at].show(&mut hosts);
        let before = sent(&hosts, at);
        hosts[at].worker.run_once(now);
        together += u64::from(turn >= 400 && sent(&hosts, at) == before + 2);
        let before = sent(&hosts, other);
        for _ in 0..3 {
            hosts[other].worker.run_once(now);
            now = now + Nanos(1_000);
        }
        alone += u64::from(turn >= 400 && sent(&hosts, other) > before);
        while ends[0].poll().is_some() || ends[1].poll().is_some() {}
        // The program answers; its worker runs again when the time for answers is long over.
        now = now + Nanos(100_000);
    }
    // In the first half the channel opens, and answers wait in vain, so that later ones do not wait for a while.
    assert_eq!((together, alone), (200, 0));
}

#[test]
fn what_a_killed_program_has_is_gone_and_the_others_go_on() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut dead] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let (to_x, of_dead) = (p.import(&mut hosts, &x), dead.import(&mut hosts, &x));
    for i in 0..100 {
        let (jetty, wr) = (dead.jetty, dead.write(of_dead, &x, 64 << 10, i));
        dead.post(jetty, &wr);
    }
    dead.show(&mut hosts);
    let mut now = Nanos(0);
    hosts[0].worker.run_once(now);
    assert!(p.counts(&hosts).requests > 0, "requests of the dead one are under way");
    // As the host does after many objects have ended.
    hosts[0].worker.shrink();
    assert!(!hosts[0].worker.remove_urma_tenant(now, dead.context));
    hosts[0].worker.remove_context(dead.context);
    let (jetty, wr) = (p.jetty, p.write(to_x, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    assert!(until(&mut hosts, &mut now, || p.poll().is_some_and(|cqe| cqe.status == 0)));
    let end = now + Nanos::from_ms(100);
    while now < end {
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        now = now + Nanos(10_000);
    }
    let ObjectCounts { jetties, jfrs, jfcs, segments, requests } = p.counts(&hosts);
    assert_eq!((jetties, jfrs, jfcs, segments, requests), (1, 1, 1, 1, 0), "only the living one's are left");
    // The last one closes the node.
    assert!(hosts[0].worker.remove_urma_tenant(now, p.context));
    assert_eq!(hosts[0].worker.close_urma(now, address(1)), Some(OWN));
    assert!(hosts[0].worker.urma_endpoint(address(1)).is_none());
    hosts[0].worker.run_once(now);
}

#[test]
fn a_wrong_token_is_refused_and_counted_where_the_memory_is() {
    let mut hosts = pair();
    let user = account(1);
    let mut p = Program::new(&mut hosts, 0, &user);
    let x = Program::new(&mut hosts, 1, &user);
    let eid = eid_of(address(2));
    let (token_id, addr) = (x.token_id, x.addr);
    let call = UrmaCall::ImportSegment { eid, token_id, addr, len: PART, token: Some(8) };
    let wrong = p.number(&mut hosts, TenantCall::Plain(call));
    let (jetty, wr) = (p.jetty, p.write(wrong, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    let (mut now, mut seen) = (Nanos(0), None);
    assert!(until(&mut hosts, &mut now, || {
        seen = seen.or_else(|| p.poll());
        seen.is_some()
    }));
    assert_eq!(seen.map(|cqe| (cqe.wr_id, cqe.status)), Some((5, CrStatus::RemAccessAbort as u8)));
    assert_eq!(hosts[1].worker.urma_counters(DeviceId(0))[0].reason(Reason::UbToken), 1);
    let record = hosts[0].worker.failures(now).pop().and_then(|record| record.jetty).expect("a record");
    assert_eq!((record.jetty, record.status, record.peer), (p.jetty, 8, Some(address(2))));
}

#[test]
fn the_node_s_work_is_seen_in_the_counters_of_its_device() {
    let mut hosts = pair();
    let user = account(1);
    let mut p = Program::new(&mut hosts, 0, &user);
    let x = Program::new(&mut hosts, 1, &user);
    let to_x = p.import(&mut hosts, &x);
    let (jetty, wr) = (p.jetty, p.write(to_x, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    let mut now = Nanos(0);
    assert!(until(&mut hosts, &mut now, || p.poll().is_some()));
    let counters = hosts[0].worker.urma_counters(DeviceId(0));
    assert!(counters[0].traffic(Traffic::TxPackets) >= 2);
    assert!(hosts[0].worker.urma_counters(DeviceId(1)).is_empty());
}

#[test]
fn a_node_that_closes_answers_what_it_has_executed() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let p = Program::new(&mut hosts, 0, &users[0]);
    let mut x = Program::new(&mut hosts, 1, &users[1]);
    let to_p = x.import(&mut hosts, &p);
    let at = (p.addr - BASE) as usize;
    let mut now = Nanos(0);
    for closes in [false, true] {
        hosts[1].memory.sub((x.addr - BASE) as usize, 8).write_from(&[7 + u8::from(closes); 8]).expect("memory");
        let (jetty, wr) = (x.jetty, x.write(to_p, &p, 8, 5));
        x.post(jetty, &wr);
        x.show(&mut hosts);
        let mut bytes = [0; 8];
        while bytes != [7 + u8::from(closes); 8] {
            hosts.iter_mut().rev().for_each(|host| _ = host.worker.run_once(now));
            hosts[0].memory.sub(at, 8).read_to(&mut bytes).expect("memory");
            now = now + Nanos(1000);
        }
        if closes {
            // In the pass in which the request was executed its answer has not left.
            assert!(hosts[0].worker.remove_urma_tenant(now, p.context));
            assert_eq!(hosts[0].worker.close_urma(now, address(1)), Some(OWN));
        }
        assert!(until(&mut hosts, &mut now, || x.poll().is_some_and(|cqe| cqe.status == 0)));
    }
    // The channel has ended, too: nothing waits for time-outs of a node that is not there any more.
    let page = |hosts: &[Host; 2]| hosts[1].worker.urma_endpoint(address(2)).expect("open").node.state().channels;
    until(&mut hosts, &mut now, || true);
    assert_eq!(page(&hosts), 0);
}

/// An import by a program of a Jetty at an address, at a time.
fn import_at(hosts: &mut [Host; 2], now: Nanos, program: &Program, eid: [u8; 16]) -> Result<UrmaAnswer, UrmaError> {
    let call = UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None };
    hosts[program.host].worker.urma_call(now, program.context, TenantCall::Plain(call)).expect("a node")
}

/// Addresses at which there is no node. The last 24 bits are those of the second host's, of an IPv6 address, too.
fn invented(network: u8) -> [u8; 16] {
    let like = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, u16::from(network) << 8, 2);
    if network.is_multiple_of(2) { eid_of(like.into()) } else { eid_of(IpAddr::from([network, 0, 0, 2])) }
}

#[test]
fn imports_from_invented_addresses_that_end_like_a_true_one_change_nothing_for_others() {
    let mut hosts = pair();
    let users = [account(1), account(2)];
    let [mut p, mut evil] = [0, 1].map(|i| Program::new(&mut hosts, 0, &users[i]));
    let x = Program::new(&mut hosts, 1, &users[0]);
    let mut now = Nanos(0);
    // The invented addresses come first, and again and again, with requests that open channels.
    let import = |hosts: &mut [Host; 2], now, evil: &mut Program, network| {
        let eid = invented(network);
        let call = UrmaCall::ImportSegment { eid, token_id: 0x10000, addr: x.addr, len: 4096, token: Some(1) };
        let made = hosts[0].worker.urma_call(now, evil.context, TenantCall::Plain(call)).expect("a node");
        let Ok(UrmaAnswer::Number(segment)) = made else { panic!("{made:?}") };
        let (jetty, wr) = (evil.jetty, evil.write(segment, &x, 64, u64::from(network)));
        evil.post(jetty, &wr);
        evil.show(hosts);
    };
    (11..60).for_each(|network| import(&mut hosts, now, &mut evil, network));
    let eid = eid_of(address(2));
    for round in 0..100 {
        // A single call is enough, at any time.
        let Ok(UrmaAnswer::Number(to_x)) = import_at(&mut hosts, now, &p, eid) else { panic!("round {round}") };
        let segment = p.import(&mut hosts, &x);
        import(&mut hosts, now, &mut evil, 60 + round);
        let (jetty, wr) = (p.jetty, p.write(segment, &x, 64, 5));
        p.post(jetty, &wr);
        p.show(&mut hosts);
        let before = now;
        assert!(until(&mut hosts, &mut now, || p.poll().is_some_and(|cqe| cqe.status == 0)), "round {round}");
        assert!(now.since(before) < Nanos::from_ms(10), "round {round}: {:?}", now.since(before));
        let ends = [UrmaCall::UnimportSegment { segment }, UrmaCall::UnimportJetty { jetty: to_x }];
        for end in ends {
            assert_eq!(p.call(&mut hosts, TenantCall::Plain(end)), Ok(UrmaAnswer::Done), "round {round}");
        }
        now = now + Nanos::from_ms(30);
    }
    let node = &hosts[0].worker.urma_endpoint(address(1)).expect("open").node;
    assert!(node.channels().all(|channel| !channel.is_open || channel.peer == node_at(address(2))));
    // A program that imports again and again opens no channel by it, and what it imports ends with it.
    assert!(!hosts[0].worker.remove_urma_tenant(now, evil.context));
    hosts[0].worker.remove_context(evil.context);
}

#[test]
fn completions_name_peers_by_their_whole_addresses() {
    let mut hosts = pair();
    let user = account(1);
    let mut p = Program::new(&mut hosts, 0, &user);
    let eid = invented(11);
    let x = Program::new(&mut hosts, 1, &user);
    let call = UrmaCall::ImportSegment { eid, token_id: 0x10000, addr: x.addr, len: 4096, token: Some(1) };
    let segment = p.number(&mut hosts, TenantCall::Plain(call));
    let (jetty, wr) = (p.jetty, p.write(segment, &x, 64, 5));
    p.post(jetty, &wr);
    p.show(&mut hosts);
    let (mut now, mut seen) = (Nanos(0), None);
    while seen.is_none() {
        assert!(now < Nanos::from_ms(100_000), "no time-out");
        hosts.iter_mut().for_each(|host| _ = host.worker.run_once(now));
        seen = p.poll();
        now = now + Nanos::from_ms(1);
    }
    let record = seen.map(|cqe| burst_engine::urma::records::record_of(&cqe)).expect("a completion");
    assert_eq!((record.status, record.remote.map(|remote| remote.0.octets())), (CrStatus::AckTimeout, Some(eid)));
}
