//! The end of a program with many objects: in steps, between which other programs are served, and nothing is left.
use crate::common::{Program, host, queue_pair};
use burst_base::Nanos;
use burst_base::verbs::QpType;
use burst_control::cm::{CmAddr, CmCommand, CmReply, PortSpace};
use burst_control::{CqInitAttr, Request, Response, SrqInitAttr};
use burst_host::Host;
use burst_ledger::Resource;

const ENDING: u32 = 1001;
const BYSTANDER: u32 = 1002;
const BUDGET: usize = 100;

/// How many objects all programs have, apart from connections.
fn objects(host: &Host) -> u64 {
    use Resource::{Ah, Channel, CmId, Context, Cq, Mr, Mw, Pd, Qp, Srq};
    [Ah, Channel, CmId, Context, Cq, Mr, Mw, Pd, Qp, Srq].map(|resource| host.ledger.used(resource)).iter().sum()
}

#[test]
fn a_program_with_many_objects_ends_in_steps_and_leaves_nothing() {
    let mut host = host(90);
    let mut bystander = Program::start(&mut host, BYSTANDER).expect("a program");
    let before = objects(&host);
    let mut program = Program::start(&mut host, ENDING).expect("a program");
    let (pd, cq) = (program.pd, program.cq);
    for number in 0..300 {
        let region = Request::RegMr { pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
        program.ask(&mut host, region).expect("a region");
        program.ask(&mut host, queue_pair(pd, cq, QpType::Rc)).expect("a queue pair");
        let cq = CqInitAttr { entries: 16, channel: None, cookie: number, vector: 0 };
        program.ask(&mut host, Request::CreateCq(cq)).expect("a completion queue");
    }
    let mut steps = 0;
    loop {
        let had = objects(&host);
        let done = program.end_some(&mut host, BUDGET);
        steps += 1;
        // Queue pairs end in groups of up to 64; the last step also ends the context.
        assert!(had - objects(&host) <= BUDGET as u64 + 64, "step {steps}");
        let Ok(Response::Handle(pd)) = bystander.ask(&mut host, Request::AllocPd) else { panic!("step {steps}") };
        bystander.ask(&mut host, Request::DeallocPd { pd }).expect("deallocated");
        if done {
            break;
        }
    }
    assert!(steps >= 900 / (BUDGET + 64), "{steps} steps");
    assert_eq!(objects(&host), before);
    drop(program);
    bystander.end(&mut host);
    assert!(Resource::ALL.iter().all(|resource| host.ledger.used(*resource) == 0));
}

/// Each queue pair and each id leaves all of its groups: a step has as many memberships as objects.
#[test]
fn members_of_many_groups_end_in_steps() {
    const GROUPS: u32 = 60;
    let mut host = host(90);
    let mut program = Program::start(&mut host, ENDING).expect("a program");
    let (pd, cq) = (program.pd, program.cq);
    let group = |number: u32| std::net::Ipv4Addr::from(0xef01_0000 + number);
    let qps = (0..10).map(|_| {
        let Ok(Response::Qps(grants)) = program.ask(&mut host, queue_pair(pd, cq, QpType::Ud)) else { panic!("none") };
        grants[0].qp
    });
    let qps: Vec<u32> = qps.collect();
    program.ask(&mut host, Request::CmChannel { channel: 0 }).expect("a channel");
    for id in 0..10 {
        let create = CmCommand::Create { id, channel: 0, ps: PortSpace::Udp, qp_type: QpType::Ud };
        program.command(&mut host, create).expect("an id");
        let addr = CmAddr { ip: "10.0.0.1".parse().expect("an address"), port: 0, scope: 0 };
        program.command(&mut host, CmCommand::Bind { id, addr }).expect("bound");
    }
    for number in 0..GROUPS {
        let gid = group(number).to_ipv6_mapped().octets();
        qps.iter().for_each(|qp| drop(program.ask(&mut host, Request::AttachMcast { qp: *qp, gid }).expect("room")));
        for id in 0..10 {
            let addr = CmAddr { ip: group(number).into(), port: 0, scope: 0 };
            program.command(&mut host, CmCommand::Join { id, addr, cookie: 0 }).expect("valid");
        }
    }
    let memberships =
        |host: &Host| [Resource::GroupMember, Resource::GroupJoin].map(|of| host.ledger.used(of)).iter().sum::<u64>();
    assert_eq!(memberships(&host), 20 * u64::from(GROUPS));
    let mut is_over = false;
    while !is_over {
        let had = memberships(&host);
        is_over = program.end_some(&mut host, BUDGET);
        let left = had - memberships(&host);
        assert!(left <= BUDGET as u64 + u64::from(GROUPS), "{left} memberships ended in one step");
    }
    assert_eq!(memberships(&host), 0);
}

#[test]
fn listeners_end_first_so_that_their_ports_are_free() {
    let mut host = host(90);
    let mut program = Program::connect(&mut host, ENDING).expect("a program");
    let mut successor = Program::connect(&mut host, BYSTANDER).expect("a program");
    let addr = CmAddr { ip: "10.0.0.1".parse().expect("an address"), port: 7471, scope: 0 };
    let listen = |id| {
        vec![
            CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
            CmCommand::Bind { id, addr },
            CmCommand::Listen { id, backlog: 1 },
        ]
    };
    let all_done =
        |answer| matches!(answer, Ok(Response::Cm(r)) if r.iter().all(|r| !matches!(r, CmReply::Failed { .. })));
    for one in [&mut program, &mut successor] {
        one.ask(&mut host, Request::CmChannel { channel: 1 }).expect("a channel");
    }
    assert!(all_done(program.ask(&mut host, Request::Cm { commands: listen(1) })));
    for id in 2..500 {
        let commands = vec![CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc }];
        program.ask(&mut host, Request::Cm { commands }).expect("an id");
    }
    assert!(!all_done(successor.ask(&mut host, Request::Cm { commands: listen(1) })), "the address is in use");
    assert!(!program.end_some(&mut host, 1), "498 ids are left");
    assert!(all_done(successor.ask(&mut host, Request::Cm { commands: listen(2) })), "the address is free");
    while !program.end_some(&mut host, BUDGET) {}
    successor.end(&mut host);
    assert_eq!(host.ledger.used(Resource::CmId), 0);
}

#[test]
fn a_target_is_not_made_as_a_queue_pair_with_queues() {
    let mut host = host(90);
    let mut program = Program::start(&mut host, ENDING).expect("a program");
    let srq = SrqInitAttr { pd: program.pd, max_wr: 1, max_sge: 1, limit: 0, cookie: 0, xrc: None };
    let Ok(Response::Srq { srq, .. }) = program.ask(&mut host, Request::CreateSrq(srq)) else { panic!("no queue") };
    let Request::CreateQp { mut init, names } = queue_pair(program.pd, program.cq, QpType::XrcRecv) else {
        panic!("no queue pair")
    };
    init.srq = Some(srq);
    let refusal = program.ask(&mut host, Request::CreateQp { init, names }).expect_err("a target has no queues");
    assert_eq!(refusal.errno, libc::EINVAL);
    program.end(&mut host);
    assert_eq!(objects(&host), 0);
}

#[test]
fn memory_is_given_back_after_the_last_program() {
    let mut host = host(90);
    let mut upkeep = burst_host::Upkeep::without_events(host.now());
    let none: &mut [Program] = &mut [];
    assert!(!upkeep.run(&mut host, none, false) && host.trimmer.due_at().is_none(), "nothing was used yet");
    let mut program = Program::start(&mut host, ENDING).expect("a program");
    upkeep.run(&mut host, std::slice::from_mut(&mut program), false);
    program.end(&mut host);
    assert_eq!(host.trimmer.due_at(), None, "few objects have ended");
    upkeep.run(&mut host, none, false);
    assert!(host.trimmer.take_due(Nanos(u64::MAX)), "the last program has gone");
    upkeep.run(&mut host, none, false);
    assert_eq!(host.trimmer.due_at(), None, "once");
}
