//! The heap after the end of programs with many objects of every kind: the host gives back what it has grown by.
//!
//! The test counts the bytes that are allocated, not the process's pages, so its result does not depend on the machine. It counts
//! those of the whole process, so it is the only test of this file: a second one would allocate at the same time.
mod common;

use burst_base::Nanos;
use burst_base::verbs::{MwType, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmReply, PortSpace};
use burst_control::{ImportObject, MrPiece, MrPieceKind, Request, Response};
use burst_host::Host;
use common::{Program, host, memfd, queue_pair};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HOSTILE: u32 = 1001;
const OBJECTS: u32 = 20_000;
const PAGE: u64 = 4096;
/// What the tables of a host may keep in addition: a few numbers that rest before they are used again.
const KEPT_BYTES: usize = 64 << 10;

/// Makes objects of one kind, or does so much of one thing, in a program that has a context.
type Attack = fn(&mut Program, &mut Host);

const ATTACKS: &[(&str, Attack)] = &[
    ("nothing", |_, _| ()),
    ("protection domains", |program, host| repeat(program, host, |_| Request::AllocPd)),
    ("windows", |program, host| {
        let pd = program.pd;
        repeat(program, host, |_| Request::AllocMw { pd, mw_type: MwType::Two });
    }),
    ("regions", |program, host| {
        let pd = program.pd;
        let region = |_| Request::RegMr { pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
        repeat(program, host, region);
    }),
    ("regions of pieces", |program, host| {
        let (pd, memory) = (program.pd, memfd(16 * PAGE));
        for _ in 0..2000 {
            // Every other page of the file, so that no two pieces are one mapping.
            let kind = |n| MrPieceKind::Fd { fd: 0, offset: 2 * n * PAGE };
            let pieces = (0..8).map(|n| MrPiece { addr: n * PAGE, len: PAGE, kind: kind(n) }).collect();
            let region = Request::RegMr { pd, addr: 0, len: 8 * PAGE, iova: 0, access: 1, pieces, replaces: None };
            let copy = memory.try_clone().expect("a copy");
            program.ask_with(host, region, vec![copy]).unwrap_or_else(|refusal| panic!("{}", refusal.sentence));
        }
    }),
    ("imports", |program, host| {
        let Ok(Response::Token(token)) = program.ask(host, Request::Token) else { panic!("no token") };
        let pd = program.pd;
        repeat(program, host, |_| Request::Import { token, object: ImportObject::Pd(pd) });
    }),
    ("XRC domains", |program, host| {
        for _ in 0..4000 {
            program.ask(host, Request::OpenXrcd { with_file: false, flags: libc::O_CREAT }).expect("a domain");
        }
    }),
    ("holds of a target", |program, host| {
        let Ok(Response::Handle(xrcd)) =
            program.ask(host, Request::OpenXrcd { with_file: false, flags: libc::O_CREAT })
        else {
            panic!("no domain")
        };
        for _ in 0..4 {
            let target = program.ask(host, Request::CreateTarget { xrcd, event_cookie: 0 });
            let Ok(Response::Target { qpn, .. }) = target else { panic!("no target") };
            for event_cookie in 0..800 {
                program.ask(host, Request::OpenQp { xrcd, qpn, event_cookie }).expect("a hold");
            }
        }
    }),
    ("queue pairs", |program, host| {
        let (pd, cq) = (program.pd, program.cq);
        for _ in 0..2000 {
            program.ask(host, queue_pair(pd, cq, QpType::Rc)).expect("a queue pair");
        }
    }),
    ("ids", |program, host| {
        program.ask(host, Request::CmChannel { channel: 1 }).expect("a channel");
        repeat(program, host, |n| {
            let create = CmCommand::Create { id: n + 1, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc };
            Request::Cm { commands: vec![create] }
        });
    }),
    ("bound ports", |program, host| {
        program.ask(host, Request::CmChannel { channel: 1 }).expect("a channel");
        let addr = CmAddr { ip: "10.0.0.1".parse().expect("an address"), port: 0, scope: 0 };
        for id in 1..=4000 {
            let create = CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc };
            let answer = program.ask(host, Request::Cm { commands: vec![create, CmCommand::Bind { id, addr }] });
            let Ok(Response::Cm(replies)) = answer else { panic!("no answer") };
            assert!(replies.iter().all(|reply| !matches!(reply, CmReply::Failed { .. })), "{replies:?}");
        }
    }),
];

fn repeat(program: &mut Program, host: &mut Host, request: impl Fn(u32) -> Request) {
    for n in 0..OBJECTS {
        program.ask(host, request(n)).unwrap_or_else(|refusal| panic!("{n}: {}", refusal.sentence));
    }
}

/// The bytes in use when the workers have nothing left to do.
fn in_use(host: &mut Host) -> usize {
    host.on_all(|_| ());
    host.shrink();
    host.on_all(|_| ());
    IN_USE.load(Relaxed)
}

#[test]
fn the_memory_of_ended_objects_is_given_back() {
    let mut host = host(90);
    for (name, attack) in ATTACKS {
        let before = in_use(&mut host);
        let mut program = Program::start(&mut host, HOSTILE).expect("a program");
        attack(&mut program, &mut host);
        program.end(&mut host);
        let is_due = host.trimmer.due_at().is_some();
        assert!(is_due || *name == "nothing", "{name}: the host does not notice that many objects have ended");
        let _ = host.trimmer.take_due(Nanos(u64::MAX));
        let after = in_use(&mut host);
        assert!(after <= before + KEPT_BYTES, "{name}: {before} bytes before, {after} after");
    }
}
