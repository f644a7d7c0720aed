//! Shares of users: a hostile user drives each resource to the limit, beside a user whose requests must all succeed.
use crate::common::{Program, host, memfd, queue_pair};
use burst_base::verbs::{AhAttr, MwType, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmData, CmReply, ConnParam, PortSpace};
use burst_control::urma_calls::{UrmaCall, UrmaJettyAttr};
use burst_control::{CqInitAttr, MrPiece, MrPieceKind, Refusal, Request, Response, SrqInitAttr, XrcSrqAttr};
use burst_engine::tap::TAPS_MAX;
use burst_host::{ClientProcess, Host, HostOptions, Session};
use burst_ledger::{AccountId, Resource, Scope};
use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

thread_local! {
    /// The number of the target that all programs may open.
    static TARGET: Cell<u32> = const { Cell::new(0) };
}

const HOSTILE: u32 = 1001;
const BYSTANDER: u32 = 1002;

/// A program of the hostile user with the objects that other objects need.
struct Hostile {
    programs: Vec<Program>,
    count: u32,
}

impl Hostile {
    fn new(host: &mut Host) -> Hostile {
        Hostile { programs: vec![Program::start(host, HOSTILE).expect("the first program")], count: 0 }
    }

    /// Takes one more unit of a resource, or as much as one request can.
    fn take(&mut self, host: &mut Host, resource: Resource) -> Result<(), Refusal> {
        self.count += 1;
        match resource {
            Resource::Session => self.programs.push(Program::connect(host, HOSTILE)?),
            Resource::Context => {
                let mut program = Program::connect(host, HOSTILE)?;
                program.ask(host, Request::OpenContext { device: 0 })?;
                self.programs.push(program);
            }
            _ => return self.take_of_one(host, resource),
        }
        Ok(())
    }

    /// [`Hostile::take`] for what one program takes.
    fn take_of_one(&mut self, host: &mut Host, resource: Resource) -> Result<(), Refusal> {
        let (count, program) = (self.count, &mut self.programs[0]);
        let pd = program.pd;
        let request = match resource {
            Resource::Session | Resource::Context => panic!("more than one program takes it"),
            Resource::Pd => Request::AllocPd,
            Resource::Mr => region(pd, Vec::new()),
            Resource::Mapping => {
                let pieces = (0..8).map(|n| piece(n * 4096)).collect();
                return program.ask_with(host, region(pd, pieces), vec![memfd(8 * 4096)]).map(drop);
            }
            Resource::AddressSpace => {
                let len = 1 << 36;
                let all = MrPiece { addr: 0, len, kind: MrPieceKind::Fd { fd: 0, offset: 0 } };
                return program.ask_with(host, region(pd, vec![all]), vec![memfd(len)]).map(drop);
            }
            Resource::Mw => Request::AllocMw { pd, mw_type: MwType::Two },
            Resource::Cq => completion_queue(1),
            Resource::QueueBytes => completion_queue(1 << 16),
            Resource::Qp => program.queue_pair(QpType::Rc),
            Resource::Srq => {
                Request::CreateSrq(SrqInitAttr { pd, max_wr: 1, max_sge: 1, limit: 0, cookie: 0, xrc: None })
            }
            Resource::Ah => Request::CreateAh { pd, attr: address() },
            Resource::Channel | Resource::Descriptor => Request::CreateChannel,
            Resource::Dm => {
                return program.ask_with(host, Request::AllocDm { len: 4096 }, vec![memfd(4096)]).map(drop);
            }
            Resource::Xrcd => Request::OpenXrcd { with_file: false, flags: libc::O_CREAT },
            Resource::Group => Request::AttachMcast { qp: program.datagrams(host), gid: group(count) },
            Resource::GroupMember => {
                let request = program.queue_pair(QpType::Ud);
                let Response::Qps(grants) = program.ask(host, request)? else { panic!("no queue pair") };
                Request::AttachMcast { qp: grants[0].qp, gid: group(0) }
            }
            Resource::GroupJoin => return program.join(host, group(0)),
            Resource::CmId => return program.create_id(host, count),
            Resource::CmRequest => panic!("peers take it"),
            Resource::CmChannel => Request::CmChannel { channel: count },
            Resource::UnreadEvent => return program.leave_event_unread(host),
            Resource::UrmaJfc => {
                let cq = program.cq;
                program.open_node(host)?;
                return program.urma(host, UrmaCall::CreateJfc { cq }).map(drop);
            }
            Resource::UrmaRequest => {
                let jetty = program.jetty(host, 1 << 14)?;
                return program.urma(host, jetty).map(drop);
            }
            Resource::UrmaPeer => {
                program.open_node(host)?;
                return program.urma(host, import(count)).map(drop);
            }
            Resource::Port => {
                program.create_id(host, count)?;
                return program.bind(host, count, 0).map(drop);
            }
            // There are fewer windows than keys.
            Resource::Key if count.is_multiple_of(4) => Request::AllocMw { pd, mw_type: MwType::Two },
            Resource::Key => region(pd, Vec::new()),
            Resource::XrcSrq => {
                let xrcd = program.domain(host)?;
                let xrc = Some(XrcSrqAttr { xrcd, cq: program.cq });
                Request::CreateSrq(SrqInitAttr { pd, max_wr: 1, max_sge: 1, limit: 0, cookie: 0, xrc })
            }
            Resource::Capture => Request::Capture { device: 0, snap: 64 },
            Resource::WorkerNumber => Request::Lend,
        };
        program.ask(host, request).map(drop)
    }
}

fn region(pd: u32, pieces: Vec<MrPiece>) -> Request {
    let len = pieces.iter().map(|p| p.len).sum();
    Request::RegMr { pd, addr: 0, len, iova: 0, access: 1, pieces, replaces: None }
}

fn piece(offset: u64) -> MrPiece {
    MrPiece { addr: offset, len: 4096, kind: MrPieceKind::Fd { fd: 0, offset } }
}

fn completion_queue(entries: u32) -> Request {
    Request::CreateCq(CqInitAttr { entries, channel: None, cookie: 0, vector: 0 })
}

fn address() -> AhAttr {
    AhAttr { dgid: gid([10, 0, 0, 2]), is_global: true, port_num: 1, ..AhAttr::default() }
}

fn group(number: u32) -> [u8; 16] {
    let [_, b, c, d] = number.to_be_bytes();
    gid([239, b, c, d])
}

fn gid(ip: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets()
}

/// How many writes of events were lost.
fn lost_events(host: &Host) -> u64 {
    let numbers = host.cm_stats().numbers;
    numbers.into_iter().find(|(name, _)| name == "event writes lost").expect("a number").1
}

/// An import from a host.
fn import(host: u32) -> UrmaCall {
    let eid = std::net::Ipv4Addr::from(0x0b00_0000 | host).to_ipv6_mapped().octets();
    UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None }
}

impl Hostile {
    /// Takes one more place of a resource in an object, or as much as one request can.
    fn take_in(&mut self, host: &mut Host, row: (Resource, Scope)) -> Result<(), Refusal> {
        let count = self.count + 1;
        let program = &mut self.programs[0];
        match row {
            (Resource::Qp, Scope::Worker) => {
                // A device has fewer queue pairs: those of several are at one worker.
                self.count = count;
                if self.programs.len() == 1 {
                    self.programs.push(Program::start_on(host, HOSTILE, 1)?);
                }
                let program = &mut self.programs[(count % 2) as usize];
                let request = program.queue_pair(QpType::Rc);
                program.ask(host, request).map(drop)
            }
            (Resource::Qp, Scope::XrcTarget) => {
                self.count = count;
                program.open_shared_target(host).map(drop)
            }
            (Resource::Qp, Scope::Node) => {
                self.count = count;
                let attr = UrmaJettyAttr { mode: 1, jfc: program.jfc(host)?, depth: 1, ..UrmaJettyAttr::default() };
                program.urma(host, UrmaCall::CreateJetty(attr)).map(drop)
            }
            (Resource::Srq, Scope::Node) => {
                self.count = count;
                let jfc = program.jfc(host)?;
                let call = UrmaCall::CreateJfr { jfc, depth: 1, token: None, rnr_timer: 3, is_unreliable: false };
                program.urma(host, call).map(drop)
            }
            (Resource::Mw, Scope::Node) => {
                self.count = count;
                program.register_segment(host).map(drop)
            }
            (Resource::Ah, Scope::Node) => {
                self.count = count;
                program.open_node(host)?;
                program.urma(host, import(1)).map(drop)
            }
            (Resource::CmId, Scope::Worker) => {
                self.count = count;
                program.connect_id(host, count)
            }
            (resource, Scope::Device | Scope::Port | Scope::Group) => self.take(host, resource),
            other => panic!("{other:?} is not driven to its limit"),
        }
    }
}

/// What an honest program does: a program starts, makes one of each object, and ends.
fn honest_program(host: &mut Host, uid: u32) {
    let mut program = Program::start(host, uid).expect("a program starts");
    let pd = program.pd;
    let requests = [
        Request::AllocPd,
        region(pd, Vec::new()),
        Request::AllocMw { pd, mw_type: MwType::One },
        completion_queue(256),
        program.queue_pair(QpType::Rc),
        Request::CreateSrq(SrqInitAttr { pd, max_wr: 16, max_sge: 1, limit: 0, cookie: 0, xrc: None }),
        Request::CreateAh { pd, attr: address() },
        Request::CreateChannel,
        Request::OpenXrcd { with_file: false, flags: libc::O_CREAT },
        Request::CmChannel { channel: 7 },
    ];
    for request in requests {
        let words = format!("{request:?}");
        program.ask(host, request).unwrap_or_else(|refusal| panic!("{words}: {}", refusal.sentence));
    }
    program.ask_with(host, region(pd, vec![piece(0)]), vec![memfd(4096)]).expect("a mapped region");
    program.ask_with(host, Request::AllocDm { len: 4096 }, vec![memfd(4096)]).expect("device memory");
    let qp = program.datagrams(host);
    program.ask(host, Request::AttachMcast { qp, gid: group(0) }).expect("a group");
    program.join(host, group(0)).expect("a joined group");
    program.create_id(host, 1).expect("an id");
    program.bind(host, 1, 0).expect("a port");
    let jetty = program.jetty(host, 64).expect("a completion queue of URMA");
    program.urma(host, jetty).expect("a Jetty");
    program.urma(host, import(1 << 16)).expect("a peer");
    let jfc = program.jfc(host).expect("another completion queue of URMA");
    let jfr = UrmaCall::CreateJfr { jfc, depth: 1, token: None, rnr_timer: 3, is_unreliable: false };
    program.urma(host, jfr).expect("a receive queue of URMA");
    program.register_segment(host).expect("a segment");
    let xrc = Some(XrcSrqAttr { xrcd: program.domain(host).expect("a domain"), cq: program.cq });
    let srq = SrqInitAttr { pd, max_wr: 1, max_sge: 1, limit: 0, cookie: 0, xrc };
    program.ask(host, Request::CreateSrq(srq)).expect("a shared receive queue in a domain");
    program.open_shared_target(host).expect("a target of another program");
    program.connect_id(host, 2).expect("a connection");
    program.end(host);
}

/// Those of another user, and of root.
fn honest_programs(host: &mut Host) {
    let root = rustix::process::geteuid().as_raw();
    [BYSTANDER, root].into_iter().for_each(|uid| honest_program(host, uid));
}

#[test]
fn root_captures_as_often_as_a_port_may_have_taps_and_what_has_ended_is_free() {
    let mut host = host(50);
    let mut root = Program::connect(&mut host, rustix::process::geteuid().as_raw()).expect("a program");
    let before = host.ledger.used(Resource::Descriptor);
    // The reader's end, which the program would get, is closed with the reply: its capture has ended.
    for _ in 0..3 * TAPS_MAX {
        root.ask(&mut host, Request::Capture { device: 0, snap: 64 }).expect("room");
        assert_eq!(host.ledger.used(Resource::Capture), 1);
    }
    assert_eq!(host.ledger.used(Resource::Descriptor), before + 1);
    let mut readers = Vec::new();
    while readers.len() < TAPS_MAX {
        readers.push(root.readers(&mut host).expect("room"));
    }
    let refusal = root.readers(&mut host).expect_err("there are as many as may be");
    assert_eq!(refusal.errno, libc::EBUSY, "{}", refusal.sentence);
    readers.pop();
    root.readers(&mut host).expect("the last reader has gone");
    root.end(&mut host);
}

/// The rows of the table of resources: of the daemon, and in single objects.
fn rows() -> Vec<(Resource, Option<Scope>)> {
    let of = |resource: &Resource| {
        let resource = *resource;
        std::iter::once((resource, None)).chain(resource.scopes().iter().map(move |scope| (resource, Some(*scope))))
    };
    Resource::ALL.iter().flat_map(of).collect()
}

/// A host on which a row can be driven to its limit: where single objects have nearly as much as the daemon, there are many.
fn host_for(row: (Resource, Option<Scope>)) -> Host {
    let mut host = match row {
        (Resource::WorkerNumber, _) => crate::lent::lender(),
        (_, None) => host(1),
        (Resource::GroupMember, Some(Scope::Group)) => host(1),
        (_, Some(Scope::Port)) => crate::common::host_with_devices(3, 2, 64),
        (_, Some(Scope::Node)) => crate::common::host_with_devices(18, 1, 256),
        (_, Some(_)) => crate::common::host_with_devices(3, 1, 256),
    };
    crate::common::lend_nodes(&mut host);
    host
}

/// A user at the limit of a row, beside another user and root, whose requests all succeed.
fn drive((resource, scope): (Resource, Option<Scope>)) {
    let row = (resource, scope);
    if resource == Resource::CmRequest {
        return crate::requests::drive();
    }
    let mut host = host_for(row);
    let mut owner = Program::start(&mut host, BYSTANDER).expect("a program");
    owner.share_target(&mut host);
    let mut hostile = Hostile::new(&mut host);
    let take = |hostile: &mut Hostile, host: &mut Host| match scope {
        None => hostile.take(host, resource),
        Some(scope) => hostile.take_in(host, (resource, scope)),
    };
    let refusal = loop {
        // No resource has as much: a share that never ends fails here.
        assert!(hostile.count < 200_000, "{row:?} has no limit");
        if let Err(refusal) = take(&mut hostile, &mut host) {
            break refusal;
        }
    };
    let sentence = &refusal.sentence;
    if matches!(resource, Resource::UnreadEvent | Resource::GroupJoin) {
        // Nothing is refused: the program loses its own events, and learns by an event that it has not joined.
        let accounts = host.ledger.uses(0);
        let account = accounts.iter().find(|account| account.id == AccountId::User(HOSTILE)).expect("the account");
        let row = account.resources.iter().find(|row| row.resource == resource).expect("a row");
        assert!(row.used > 0 && host.ledger.used(resource) == row.used, "{row:?}");
        // A group has fewer joins than the daemon.
        let place =
            account.places.iter().find(|place| place.resource == resource).map(|place| (place.used, place.limit));
        let (used, limit) = place.unwrap_or((row.used, row.limit));
        assert_eq!(used, limit, "{row:?}");
        honest_programs(&mut host);
        hostile.programs.drain(..).chain([owner]).for_each(|program| program.end(&mut host));
        assert!(crate::common::is_all_given_back(&host), "after {row:?}");
        return;
    }
    if matches!(resource, Resource::WorkerNumber | Resource::Capture) {
        // Only programs of root and of the daemon's own user get one: no other user has a share.
        assert_eq!((refusal.errno, hostile.count), (libc::EPERM, 1), "{sentence}");
        hostile.programs.drain(..).chain([owner]).for_each(|program| program.end(&mut host));
        return;
    }
    assert!(sentence.contains("user_share") && sentence.contains("user 1001"), "{row:?}: {sentence}");
    let words = resource.words();
    let what = scope.map_or(words.to_owned(), |scope| format!("{words} of {}", scope.words()));
    // A completion channel costs a descriptor, and there are as many of either.
    let is_named = sentence.contains(&what) || scope.is_none();
    assert!(is_named, "{row:?}: {sentence}");
    assert!([libc::ENOMEM, libc::EMFILE].contains(&refusal.errno), "{row:?}: errno {}", refusal.errno);
    if let Some(scope) = scope {
        let accounts = host.ledger.uses(0);
        let account = accounts.iter().find(|account| account.id == AccountId::User(HOSTILE)).expect("the account");
        let place = account.places.iter().find(|place| (place.resource, place.scope) == (resource, scope));
        assert!(place.is_some_and(|place| place.used > 0 && place.used == place.limit), "{row:?} is shown: {place:?}");
    }
    honest_programs(&mut host);
    assert!(take(&mut hostile, &mut host).is_err(), "{row:?}: an honest program changed the share");
    hostile.programs.drain(..).chain([owner]).for_each(|program| program.end(&mut host));
    if !crate::common::is_all_given_back(&host) {
        let left = Resource::ALL.iter().filter(|each| host.ledger.used(**each) > 0).collect::<Vec<_>>();
        panic!("{left:?} of ended programs, after {row:?}");
    }
}

#[test]
fn a_user_at_the_limit_of_any_resource_disturbs_no_other() {
    let rows = rows();
    rows.iter().for_each(|row| drive(*row));
    println!("{} rows: {} of the daemon, the others of single objects", rows.len(), Resource::COUNT);
}

#[test]
fn users_see_their_own_use_and_root_that_of_all() {
    let mut host = host(50);
    let own = rustix::process::geteuid().as_raw();
    let mut programs: Vec<Program> =
        [own, HOSTILE, BYSTANDER].map(|uid| Program::start(&mut host, uid).expect("a program")).into();
    let seen: Vec<(Vec<String>, u32)> = programs
        .iter_mut()
        .map(|program| match program.ask(&mut host, Request::Users { from: 0 }) {
            Ok(Response::Users(page)) => (page.users.into_iter().map(|u| u.owner).collect(), page.hidden),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((seen[0].0.len(), seen[0].1), (3, 0));
    assert_eq!(seen[1], (vec!["user 1001".to_owned()], 2));
    assert_eq!(seen[2], (vec!["user 1002".to_owned()], 2));
    programs.into_iter().for_each(|program| program.end(&mut host));
}

#[test]
fn the_daemons_own_user_is_limited_by_the_capacity_alone() {
    let mut host = host(1);
    let mut program = Program::start(&mut host, rustix::process::geteuid().as_raw()).expect("a program");
    // One percent would be 589 of the capacity's 65,536.
    for _ in 0..2_000 {
        program.ask(&mut host, Request::AllocPd).expect("no share for the owner");
    }
    program.end(&mut host);
}

#[test]
fn a_user_fills_neither_a_group_nor_the_groups_of_a_port() {
    let mut host = host(50);
    let mut programs = [HOSTILE, BYSTANDER, 0].map(|uid| Program::start(&mut host, uid).expect("a program"));
    let [hostile, others @ ..] = &mut programs;
    let mut attached = 0;
    let join = |program: &mut Program, host: &mut Host| {
        let request = program.queue_pair(QpType::Ud);
        let Ok(Response::Qps(grants)) = program.ask(host, request) else { panic!("no queue pair") };
        program.ask(host, Request::AttachMcast { qp: grants[0].qp, gid: group(0) })
    };
    let refusal = loop {
        match join(hostile, &mut host) {
            Ok(_) => attached += 1,
            Err(refusal) => break refusal,
        }
    };
    // Half of what the reserve leaves of 1,024.
    assert_eq!(attached, 461, "{}", refusal.sentence);
    assert!(refusal.sentence.contains("user_share") && refusal.errno == libc::ENOMEM, "{}", refusal.sentence);
    let mut number = 0;
    let qp = hostile.datagrams(&mut host);
    while hostile.ask(&mut host, Request::AttachMcast { qp, gid: group(number + 1) }).is_ok() {
        number += 1;
    }
    assert_eq!(number, 114, "with the first, half of what the reserve leaves of the port's 256");
    for program in others {
        join(program, &mut host).expect("places are left in the group");
        let qp = program.datagrams(&mut host);
        program.ask(&mut host, Request::AttachMcast { qp, gid: group(10_000) }).expect("groups are left at the port");
    }
    programs.into_iter().for_each(|program| program.end(&mut host));
    for resource in [Resource::Group, Resource::GroupMember] {
        assert_eq!(host.ledger.used(resource), 0);
    }
}

#[test]
fn a_group_costs_each_user_in_it_as_long_as_it_is_in_it() {
    let mut host = host(50);
    let mut programs = [HOSTILE, BYSTANDER].map(|uid| Program::start(&mut host, uid).expect("a program"));
    let groups_of = |host: &Host, uid| {
        let all = host.ledger.uses(0);
        let account = all.iter().find(|account| account.id == AccountId::User(uid)).expect("an account");
        account.resources.iter().find(|row| row.resource == Resource::Group).expect("a row").used
    };
    let [hostile, other] = &mut programs;
    // The other user makes a group, the hostile user joins it and stays in it.
    let qp = other.datagrams(&mut host);
    for number in 0..20 {
        other.ask(&mut host, Request::AttachMcast { qp, gid: group(number) }).expect("room");
        hostile.join(&mut host, group(number)).expect("room");
    }
    assert_eq!([HOSTILE, BYSTANDER].map(|uid| groups_of(&host, uid)), [20, 20]);
    for number in 0..20 {
        other.ask(&mut host, Request::DetachMcast { qp, gid: group(number) }).expect("attached");
    }
    assert_eq!([HOSTILE, BYSTANDER].map(|uid| groups_of(&host, uid)), [20, 0], "who stays pays");
    other.ask(&mut host, Request::AttachMcast { qp, gid: group(0) }).expect("room");
    programs.into_iter().for_each(|program| program.end(&mut host));
    assert_eq!([Resource::Group, Resource::GroupJoin, Resource::GroupMember].map(|of| host.ledger.used(of)), [0; 3]);
}

#[test]
fn resized_queues_give_their_old_bytes_back() {
    let mut host = host(50);
    let mut program = Program::start(&mut host, HOSTILE).expect("a program");
    let Ok(Response::Cq { cq, .. }) = program.ask(&mut host, completion_queue(64)) else { panic!("no queue") };
    let small = host.ledger.used(Resource::QueueBytes);
    program.ask(&mut host, Request::ResizeCq { cq, entries: 4096 }).expect("resized");
    let both = host.ledger.used(Resource::QueueBytes);
    program.ask(&mut host, Request::RetireCq { cq }).expect("retired");
    let large = host.ledger.used(Resource::QueueBytes);
    assert!(small < large && large < both, "{small} {large} {both}");
    program.ask(&mut host, Request::DestroyCq { cq }).expect("destroyed");
    assert!(host.ledger.used(Resource::QueueBytes) < small);
    program.end(&mut host);
}

#[test]
fn rings_of_commands_cost_descriptors_and_root_has_room() {
    let mut host = host(5);
    let mut programs = Vec::new();
    for uid in [HOSTILE, BYSTANDER] {
        let (mut rings, before) = (0, host.ledger.used(Resource::Descriptor));
        let refusal = loop {
            let ring = Program::connect(&mut host, uid).and_then(|mut program| {
                program.ask(&mut host, Request::CmCommandRing)?;
                Ok(program)
            });
            match ring {
                Ok(program) => programs.push(program),
                Err(refusal) => break refusal,
            }
            rings += 1;
        };
        assert!(refusal.sentence.contains("user_share"), "{}", refusal.sentence);
        // The socket, the pidfd and the ring.
        assert_eq!(host.ledger.used(Resource::Descriptor) - before, 3 * rings);
    }
    let mut root = Program::connect(&mut host, rustix::process::geteuid().as_raw()).expect("a connection");
    root.ask(&mut host, Request::CmCommandRing).expect("a ring");
    programs.into_iter().chain([root]).for_each(|program| program.end(&mut host));
}

#[test]
fn a_user_has_one_share_with_all_its_subordinate_ids() {
    let file = std::env::temp_dir().join(format!("burst-shares-subuid-{}", std::process::id()));
    std::fs::write(&file, format!("{HOSTILE}:100000:65536\n0:400000:65536\n")).expect("written");
    let options = HostOptions { subordinate_ids: Some(file.clone()), ..crate::common::options(1, 50) };
    let mut host = crate::common::host_with(&options);
    let uids = [HOSTILE, 100_000, 165_535, BYSTANDER, 165_536, 400_000, 400_001];
    let mut programs: Vec<Program> = Vec::new();
    for uid in uids {
        programs.push(Program::start(&mut host, uid).expect("a program"));
    }
    let owners: Vec<String> = host.ledger.uses(0).into_iter().map(|account| account.id.to_string()).collect();
    // Root gives ranges to containers, which are users of their own.
    assert_eq!(owners, ["user 1001", "user 1002", "user 165536", "user 400000", "user 400001"]);
    let mut domains = 0;
    for program in &mut programs[..3] {
        while program.ask(&mut host, Request::AllocPd).is_ok() {
            domains += 1;
        }
    }
    // Half of what the reserve leaves of 65,536, less what others have.
    assert!((29_400..=29_491).contains(&domains), "{domains}");
    let other = &mut programs[3];
    other.ask(&mut host, Request::AllocPd).expect("another user's share");
    programs.into_iter().for_each(|program| program.end(&mut host));
    std::fs::remove_file(&file).expect("removed");
}

#[test]
fn an_admitted_session_is_charged_until_it_is_dropped() {
    let host = host(50);
    let process = ClientProcess { pid: std::process::id(), uid: HOSTILE };
    let session = Session::admit(&host, process).expect("room");
    assert_eq!(host.ledger.used(Resource::Session), 1);
    drop(session);
    assert_eq!(host.ledger.used(Resource::Session), 0);
}

impl Program {
    /// Captures packets; the sockets by which they come.
    fn readers(&mut self, host: &mut Host) -> Result<Vec<OwnedFd>, Refusal> {
        let fds = self.as_mut().foreign(host, Vec::new());
        Ok(self.as_mut().handle(host, Request::Capture { device: 0, snap: 64 }, fds)?.fds)
    }

    /// The request for a queue pair.
    fn queue_pair(&self, qp_type: QpType) -> Request {
        queue_pair(self.pd, self.cq, qp_type)
    }

    /// A queue pair for datagrams, made at the first call.
    fn datagrams(&mut self, host: &mut Host) -> u32 {
        if let Some(qp) = self.datagrams {
            return qp;
        }
        let request = self.queue_pair(QpType::Ud);
        let Ok(Response::Qps(grants)) = self.ask(host, request) else { panic!("no queue pair for datagrams") };
        *self.datagrams.insert(grants[0].qp)
    }

    /// Opens the node of the host's address, once.
    fn open_node(&mut self, host: &mut Host) -> Result<(), Refusal> {
        match self.ask(host, Request::UrmaOpen { eid: crate::common::eid(1) }) {
            Err(refusal) if refusal.errno != libc::EEXIST => Err(refusal),
            _ => Ok(()),
        }
    }

    /// A completion queue of URMA, made at the first call.
    fn jfc(&mut self, host: &mut Host) -> Result<u32, Refusal> {
        if let Some(jfc) = self.jfc {
            return Ok(jfc);
        }
        self.open_node(host)?;
        let cq = self.cq;
        let jfc = self.urma(host, UrmaCall::CreateJfc { cq })?;
        Ok(*self.jfc.insert(jfc))
    }

    /// Registers a segment, of a region that is made at the first call.
    fn register_segment(&mut self, host: &mut Host) -> Result<u32, Refusal> {
        self.open_node(host)?;
        if self.mr.is_none() {
            let mapped = self.ask_with(host, region(self.pd, vec![piece(0)]), vec![memfd(4096)])?;
            let Response::Mr { mr, .. } = mapped else { panic!("no region") };
            self.mr = Some(mr);
        }
        let mr = self.mr.expect("a region");
        self.urma(host, UrmaCall::RegisterSegment { mr, addr: 0, len: 4096, token: Some(7), access: 1 })
    }

    /// The XRC domain of this test program's file: all programs have the same.
    fn domain(&mut self, host: &mut Host) -> Result<u32, Refusal> {
        if let Some(xrcd) = self.xrcd {
            return Ok(xrcd);
        }
        let file = std::fs::File::open(std::env::current_exe().expect("this program")).expect("readable");
        let request = Request::OpenXrcd { with_file: true, flags: libc::O_CREAT };
        let Response::Handle(xrcd) = self.ask_with(host, request, vec![file.into()])? else { panic!("no domain") };
        Ok(*self.xrcd.insert(xrcd))
    }

    /// Creates the target that all programs may open, the first of its host.
    fn share_target(&mut self, host: &mut Host) {
        let Ok(xrcd) = self.domain(host) else { return };
        let Ok(Response::Target { qpn, .. }) = self.ask(host, Request::CreateTarget { xrcd, event_cookie: 0 }) else {
            panic!("no target");
        };
        TARGET.set(qpn);
    }

    /// Opens the target of another program.
    fn open_shared_target(&mut self, host: &mut Host) -> Result<(), Refusal> {
        let xrcd = self.domain(host)?;
        self.ask(host, Request::OpenQp { xrcd, qpn: TARGET.get(), event_cookie: 0 }).map(drop)
    }

    /// Asks for a connection to the host itself, which has no listener.
    fn connect_id(&mut self, host: &mut Host, id: u32) -> Result<(), Refusal> {
        self.create_id(host, id)?;
        let dst = CmAddr { ip: IpAddr::from([10, 0, 0, 1]), port: 7, scope: 0 };
        self.command(host, CmCommand::ResolveAddr { id, src: None, dst, timeout_ms: 1000 })?;
        let data = CmData::new(&[]).expect("short");
        self.command(host, CmCommand::Connect { id, qp: None, param: ConnParam::default(), data }).map(drop)
    }

    /// The call for a Jetty, with a completion queue that is made for it.
    fn jetty(&mut self, host: &mut Host, depth: u16) -> Result<UrmaCall, Refusal> {
        self.open_node(host)?;
        let cq = self.cq;
        let jfc = self.urma(host, UrmaCall::CreateJfc { cq })?;
        Ok(UrmaCall::CreateJetty(UrmaJettyAttr { mode: 1, jfc, depth, ..UrmaJettyAttr::default() }))
    }

    /// Lets an event be written that the program does not read.
    ///
    /// # Errors
    /// The event is lost.
    fn leave_event_unread(&mut self, host: &mut Host) -> Result<(), Refusal> {
        const ID: u32 = 1 << 20;
        if !self.has_events {
            self.create_id(host, ID)?;
        }
        let lost = lost_events(host);
        let dst = CmAddr { ip: IpAddr::from([10, 0, 0, 1]), port: 7, scope: 0 };
        self.command(host, CmCommand::ResolveAddr { id: ID, src: None, dst, timeout_ms: 1000 })?;
        match lost_events(host) == lost {
            true => Ok(()),
            false => Err(Refusal { errno: libc::ENOBUFS, sentence: "an event was lost".into() }),
        }
    }

    /// Lets an id for datagrams, which is made at the first call, join a group once more.
    ///
    /// # Errors
    /// It has not joined.
    fn join(&mut self, host: &mut Host, gid: [u8; 16]) -> Result<(), Refusal> {
        const ID: u32 = 1 << 21;
        let (joins, ip) = (host.ledger.used(Resource::GroupJoin), burst_base::gid::ip_of(gid));
        if !std::mem::replace(&mut self.has_joined, true) {
            self.create_id_of(host, ID, (PortSpace::Udp, QpType::Ud))?;
            let addr = CmAddr { ip: IpAddr::from([10, 0, 0, 1]), port: 0, scope: 0 };
            self.command(host, CmCommand::Bind { id: ID, addr })?;
        }
        self.command(host, CmCommand::Join { id: ID, addr: CmAddr { ip, port: 0, scope: 0 }, cookie: 0 })?;
        match host.ledger.used(Resource::GroupJoin) > joins {
            true => Ok(()),
            false => Err(Refusal { errno: libc::ENOMEM, sentence: "the id has not joined".into() }),
        }
    }

    /// Creates a communication id.
    fn create_id(&mut self, host: &mut Host, id: u32) -> Result<(), Refusal> {
        self.create_id_of(host, id, (PortSpace::Tcp, QpType::Rc))
    }

    /// The same of a port space and a type.
    fn create_id_of(&mut self, host: &mut Host, id: u32, (ps, qp_type): (PortSpace, QpType)) -> Result<(), Refusal> {
        if !std::mem::replace(&mut self.has_events, true) {
            self.ask(host, Request::CmChannel { channel: 0 })?;
        }
        self.command(host, CmCommand::Create { id, channel: 0, ps, qp_type }).map(drop)
    }

    /// Binds an id to a port of all IPv4 addresses; 0: any port. Returns the port.
    fn bind(&mut self, host: &mut Host, id: u32, port: u16) -> Result<u16, Refusal> {
        let addr = CmAddr { ip: IpAddr::from([0, 0, 0, 0]), port, scope: 0 };
        match self.command(host, CmCommand::Bind { id, addr })? {
            CmReply::Route(route) => Ok(route.src.expect("a bound address").port),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn regions_in_their_process_need_no_mapping_of_the_host() {
    let mut host = host(90);
    let mut program = Program::start(&mut host, BYSTANDER).expect("a program");
    let pd = program.pd;
    let before = host.ledger.used(Resource::Mapping);
    let Ok(Response::Mr { mr, .. }) = program.ask(&mut host, region(pd, Vec::new())) else { panic!("a region") };
    assert_eq!(host.ledger.used(Resource::Mapping), before);
    let mapped = program.ask_with(&mut host, region(pd, vec![piece(0)]), vec![memfd(4096)]);
    let Ok(Response::Mr { mr: second, .. }) = mapped else { panic!("a mapped region") };
    assert_eq!(host.ledger.used(Resource::Mapping), before + 2, "the piece, and its reservation");
    // While the program forks, regions come and go as well.
    program.ask(&mut host, Request::HoldMemory { hold: true, in_place: true }).expect("held");
    program.ask(&mut host, Request::DeregMr { mr }).expect("ended");
    let third = program.ask_with(&mut host, region(pd, vec![piece(0)]), vec![memfd(4096)]);
    let Ok(Response::Mr { mr: third, .. }) = third else { panic!("a mapped region") };
    program.ask(&mut host, Request::HoldMemory { hold: false, in_place: false }).expect("released");
    for mr in [second, third] {
        program.ask(&mut host, Request::DeregMr { mr }).expect("ended");
    }
    assert_eq!(host.ledger.used(Resource::Mapping), before);
}
