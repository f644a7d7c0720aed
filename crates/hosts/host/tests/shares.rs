//! Shares of users: a hostile user drives each resource to the limit, beside a user whose requests must all succeed.
mod common;

use burst_base::verbs::{AhAttr, MwType, QpType};
use burst_control::cm::{CmCommand, CmReply, PortSpace};
use burst_control::{CqInitAttr, MrPiece, MrPieceKind, Refusal, Request, Response, SrqInitAttr};
use burst_host::{ClientProcess, Host, Session};
use burst_ledger::Resource;
use common::{Program, host, memfd, queue_pair};

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
        let (count, program) = (self.count, &mut self.programs[0]);
        let pd = program.pd;
        let request = match resource {
            Resource::Session => {
                self.programs.push(Program::connect(host, HOSTILE)?);
                return Ok(());
            }
            Resource::Context => {
                let mut program = Program::connect(host, HOSTILE)?;
                program.ask(host, Request::OpenContext { device: 0 })?;
                self.programs.push(program);
                return Ok(());
            }
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
            Resource::CmId => return program.create_id(host, count),
            Resource::CmChannel => Request::CmChannel { channel: count },
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

/// What an honest program does: a program starts, makes one of each object, and ends.
fn honest_program(host: &mut Host) {
    let mut program = Program::start(host, BYSTANDER).expect("a program starts");
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
    program.create_id(host, 1).expect("an id");
    program.end(host);
}

#[test]
fn a_user_at_the_limit_of_any_resource_disturbs_no_other() {
    for resource in Resource::ALL {
        let mut host = host(1);
        let mut hostile = Hostile::new(&mut host);
        let refusal = loop {
            // No resource has as much: a share that never ends fails here.
            assert!(hostile.count < 200_000, "{resource:?} has no limit");
            if let Err(refusal) = hostile.take(&mut host, *resource) {
                break refusal;
            }
        };
        let sentence = &refusal.sentence;
        assert!(sentence.contains("user_share") && sentence.contains("user 1001"), "{resource:?}: {sentence}");
        assert!([libc::ENOMEM, libc::EMFILE].contains(&refusal.errno), "{resource:?}: errno {}", refusal.errno);
        honest_program(&mut host);
        assert!(hostile.take(&mut host, *resource).is_err(), "{resource:?}: an honest program changed the share");
        hostile.programs.drain(..).for_each(|program| program.end(&mut host));
        for each in Resource::ALL {
            assert_eq!(host.ledger.used(*each), 0, "{each:?} of ended programs, after {resource:?}");
        }
    }
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
fn an_admitted_session_is_charged_until_it_is_dropped() {
    let host = host(50);
    let process = ClientProcess { pid: std::process::id(), uid: HOSTILE };
    let session = Session::admit(&host, process).expect("room");
    assert_eq!(host.ledger.used(Resource::Session), 1);
    drop(session);
    assert_eq!(host.ledger.used(Resource::Session), 0);
}

impl Program {
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

    /// Creates a communication id.
    fn create_id(&mut self, host: &mut Host, id: u32) -> Result<(), Refusal> {
        if !std::mem::replace(&mut self.has_events, true) {
            self.ask(host, Request::CmChannel { channel: 0 })?;
        }
        let command = CmCommand::Create { id, channel: 0, ps: PortSpace::Tcp, qp_type: QpType::Rc };
        match self.ask(host, Request::Cm { commands: vec![command] })? {
            Response::Cm(replies) => match replies.into_iter().next() {
                Some(CmReply::Failed { errno, sentence }) => Err(Refusal { errno, sentence }),
                Some(_) => Ok(()),
                None => panic!("no reply to a command"),
            },
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
    program.ask(&mut host, Request::HoldMemory { hold: true }).expect("held");
    program.ask(&mut host, Request::DeregMr { mr }).expect("ended");
    let third = program.ask_with(&mut host, region(pd, vec![piece(0)]), vec![memfd(4096)]);
    let Ok(Response::Mr { mr: third, .. }) = third else { panic!("a mapped region") };
    program.ask(&mut host, Request::HoldMemory { hold: false }).expect("released");
    for mr in [second, third] {
        program.ask(&mut host, Request::DeregMr { mr }).expect("ended");
    }
    assert_eq!(host.ledger.used(Resource::Mapping), before);
}
