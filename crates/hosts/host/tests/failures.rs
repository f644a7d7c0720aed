//! Every system call and allocation of every request fails in turn: a refused request has changed nothing, and the next try
//! succeeds. Steps fail in builds with debug assertions only.
#![cfg(debug_assertions)]
mod common;

use burst_base::fault;
use burst_base::gid::gid_of;
use burst_base::verbs::{AhAttr, MwType, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmReply, PortSpace};
use burst_control::{
    CqInitAttr, ImportObject, MrPiece, MrPieceKind, QpCookies, Request, Response, SrqInitAttr, XrcSrqAttr,
};
use burst_host::Host;
use burst_host::device::DeviceObject;
use burst_ledger::{AccountId, Resource};
use common::{Program, host, memfd, queue_pair};
use std::os::fd::OwnedFd;

const USER: u32 = 1001;
/// More fallible steps than any request has.
const STEPS_MAX: u64 = 64;
/// Entries of a completion queue of 1 MiB, and how many such queues fill the first segment of an arena.
const ENTRIES_OF_A_MIB: u32 = 16_384;
const FILLED_BY: u32 = 63;

/// Everything that a request may have changed in the tables of the host.
fn state(host: &Host) -> Vec<u64> {
    use DeviceObject::{Ah, Cq, Mr, Mw, Pd, Qp, Srq};
    let account = host.ledger.account(AccountId::User(USER), false);
    let charges = Resource::ALL.iter().map(|resource| account.used(*resource));
    let objects = [Qp, Cq, Mr, Pd, Ah, Srq, Mw].map(|object| u64::from(host.devices[0].objects.count(object)));
    let numbers = [&host.contexts, &host.pds, &host.cqs, &host.ahs].map(|numbers| u64::from(numbers.taken()));
    let ids = host.cm_stats().numbers.into_iter().take(2).map(|(_, count)| count);
    let shared = [host.groups.groups.len(), host.xrc.targets.len()].map(|n| n as u64);
    charges.chain(objects).chain(numbers).chain(ids).chain(shared).collect()
}

/// A program with one object of each kind that others need, and their handles.
struct Setup {
    program: Program,
    mr: u32,
    dm: u32,
    channel: u32,
    srq: u32,
    xrcd: u32,
    token: u64,
    datagrams: u32,
    target_qpn: u32,
}

fn handle(program: &mut Program, host: &mut Host, request: Request, fds: Vec<OwnedFd>) -> u32 {
    match program.ask_with(host, request, fds).unwrap_or_else(|refusal| panic!("{}", refusal.sentence)) {
        Response::Handle(handle) => handle,
        Response::Mr { mr, .. } => mr,
        Response::Channel { channel } => channel,
        Response::Srq { srq, .. } => srq,
        Response::Qps(grants) => grants[0].qp,
        Response::Target { qpn, .. } => qpn,
        other => panic!("{other:?}"),
    }
}

impl Setup {
    fn new(host: &mut Host) -> Setup {
        let mut p = Program::start(host, USER).expect("a program");
        let (pd, cq) = (p.pd, p.cq);
        let mr = handle(&mut p, host, region(pd, None), vec![memfd(4096)]);
        let dm = handle(&mut p, host, Request::AllocDm { len: 4096 }, vec![memfd(4096)]);
        let channel = handle(&mut p, host, Request::CreateChannel, Vec::new());
        let srq = handle(&mut p, host, shared_queue(pd, 16, None), Vec::new());
        let xrcd = handle(&mut p, host, Request::OpenXrcd { with_file: false, flags: libc::O_CREAT }, Vec::new());
        let datagrams = handle(&mut p, host, queue_pair(pd, cq, QpType::Ud), Vec::new());
        let target_qpn = handle(&mut p, host, Request::CreateTarget { xrcd, event_cookie: 0 }, Vec::new());
        let Ok(Response::Token(token)) = p.ask(host, Request::Token) else { panic!("no token") };
        p.ask(host, Request::CmChannel { channel: 0 }).expect("an event channel");
        let create = |id| CmCommand::Create { id, channel: 0, ps: PortSpace::Tcp, qp_type: QpType::Rc };
        p.ask(host, Request::Cm { commands: vec![create(1), create(2)] }).expect("ids");
        for _ in 0..FILLED_BY {
            p.ask(host, completion_queue(ENTRIES_OF_A_MIB, None)).expect("a completion queue");
        }
        Setup { program: p, mr, dm, channel, srq, xrcd, token, datagrams, target_qpn }
    }

    /// Requests that make something, with their descriptors.
    fn requests(&self) -> Vec<(Request, Vec<OwnedFd>)> {
        let (pd, cq) = (self.program.pd, self.program.cq);
        let plain = |request| (request, Vec::new());
        let import = |object| Request::Import { token: self.token, object };
        let command = |command| Request::Cm { commands: vec![command] };
        let xrc = XrcSrqAttr { xrcd: self.xrcd, cq };
        let names = vec![QpCookies { cookie: 0, event_cookie: 0 }; 3];
        let Request::CreateQp { mut init, .. } = queue_pair(pd, cq, QpType::Rc) else { panic!("no queue pair") };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (8192, 8192);
        let addr = CmAddr { ip: [10, 0, 0, 1].into(), port: 0, scope: 0 };
        let ah = AhAttr { dgid: gid_of([10, 0, 0, 2].into()), is_global: true, port_num: 1, ..AhAttr::default() };
        vec![
            plain(Request::AllocPd),
            (region(pd, None), vec![memfd(4096)]),
            (region(pd, Some(self.mr)), vec![memfd(4096)]),
            plain(Request::AllocNullMr { pd }),
            (Request::AllocDm { len: 4096 }, vec![memfd(4096)]),
            plain(import(ImportObject::Pd(pd))),
            plain(import(ImportObject::Dm(self.dm))),
            plain(Request::AllocMw { pd, mw_type: MwType::Two }),
            plain(Request::CreateChannel),
            plain(completion_queue(ENTRIES_OF_A_MIB, Some(self.channel))),
            plain(Request::ResizeCq { cq, entries: ENTRIES_OF_A_MIB }),
            plain(shared_queue(pd, 32_768, None)),
            plain(shared_queue(pd, 32_768, Some(xrc))),
            plain(Request::ResizeSrq { srq: self.srq, max_wr: 32_768 }),
            plain(Request::CreateQp { init, names }),
            plain(Request::OpenXrcd { with_file: false, flags: libc::O_CREAT }),
            plain(Request::CreateTarget { xrcd: self.xrcd, event_cookie: 0 }),
            plain(Request::OpenQp { xrcd: self.xrcd, qpn: self.target_qpn, event_cookie: 0 }),
            plain(Request::AttachMcast { qp: self.datagrams, gid: gid_of([239, 0, 0, 1].into()) }),
            plain(Request::CreateAh { pd, attr: ah }),
            plain(Request::CmChannel { channel: 1 }),
            plain(Request::CmCommandRing),
            plain(command(CmCommand::Create { id: 3, channel: 0, ps: PortSpace::Tcp, qp_type: QpType::Rc })),
            plain(command(CmCommand::Listen { id: 1, backlog: 0 })),
            plain(command(CmCommand::Bind { id: 2, addr })),
        ]
    }
}

fn region(pd: u32, replaces: Option<u32>) -> Request {
    let pieces = vec![MrPiece { addr: 0, len: 4096, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    Request::RegMr { pd, addr: 0, len: 4096, iova: 0, access: 1, pieces, replaces }
}

fn completion_queue(entries: u32, channel: Option<u32>) -> Request {
    Request::CreateCq(CqInitAttr { entries, channel, cookie: 0, vector: 0 })
}

fn shared_queue(pd: u32, max_wr: u32, xrc: Option<XrcSrqAttr>) -> Request {
    Request::CreateSrq(SrqInitAttr { pd, max_wr, max_sge: 1, limit: 0, cookie: 0, xrc })
}

/// Whether a request was carried out.
fn is_done(result: Result<Response, burst_control::Refusal>) -> bool {
    match result {
        Ok(Response::Cm(replies)) => !replies.iter().any(|reply| matches!(reply, CmReply::Failed { .. })),
        other => other.is_ok(),
    }
}

#[test]
fn a_request_that_fails_at_any_step_has_changed_nothing() {
    let mut host = host(50);
    let count = {
        let setup = Setup::new(&mut host);
        let count = setup.requests().len();
        setup.program.end(&mut host);
        count
    };
    for index in 0..count {
        let mut setup = Setup::new(&mut host);
        let name = format!("{:?}", setup.requests()[index].0);
        let mut failures = 0;
        for step in 0..=STEPS_MAX {
            assert!(step < STEPS_MAX, "{name} has more steps");
            let (request, fds) = setup.requests().swap_remove(index);
            let before = state(&host);
            fault::arm(step);
            let done = is_done(setup.program.ask_with(&mut host, request, fds));
            let failed = fault::disarm();
            if done {
                // Some failures are survived: a request for three queue pairs may get two. Without a failure it must succeed.
                if !failed {
                    break;
                }
                setup.program.end(&mut host);
                setup = Setup::new(&mut host);
                continue;
            }
            assert!(failed, "{name} was refused although nothing failed");
            failures += 1;
            assert_eq!(state(&host), before, "{name} was refused at step {step} and has changed something");
        }
        // Binding and listening take nothing that can be used up.
        let takes = !name.contains("Bind") && !name.contains("Listen");
        assert_eq!(takes, failures > 0, "{name}: {failures} steps can fail");
        setup.program.end(&mut host);
        assert!(Resource::ALL.iter().all(|r| host.ledger.used(*r) == 0), "after {name}");
    }
}

#[test]
fn a_context_that_fails_to_open_at_any_step_has_changed_nothing() {
    let mut host = host(50);
    for step in 0..STEPS_MAX {
        let mut program = Program::connect(&mut host, USER).expect("a connection");
        let before = state(&host);
        fault::arm(step);
        let done = program.ask(&mut host, Request::OpenContext { device: 0 }).is_ok();
        let failed = fault::disarm();
        assert_ne!(done, failed, "at step {step}");
        if failed {
            assert_eq!(state(&host), before, "refused at step {step}");
            program.ask(&mut host, Request::OpenContext { device: 0 }).expect("the next try");
        }
        program.end(&mut host);
        assert!(Resource::ALL.iter().all(|r| host.ledger.used(*r) == 0), "after step {step}");
        if done {
            return;
        }
    }
    panic!("opening a context has more steps");
}
