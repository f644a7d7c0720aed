//! The daemon's address space is shared by accounts: what programs let it map is charged, whatever it is, until it is unmapped.
mod common;

use burst_base::verbs::access;
use burst_control::{CqInitAttr, MrPiece, MrPieceKind, Refusal, Request, Response};
use burst_host::Host;
use burst_ledger::Resource;
use common::{Program, host, memfd};
use std::os::fd::{AsFd, OwnedFd};

const HOSTILE: u32 = 1001;
const OTHER: u32 = 1002;
const TIB: u64 = 1 << 40;

fn part(fd: u32, offset: u64, len: u64) -> MrPiece {
    MrPiece { addr: offset, len, kind: MrPieceKind::Fd { fd, offset } }
}

fn register(program: &mut Program, host: &mut Host, pieces: Vec<MrPiece>, fds: Vec<OwnedFd>) -> Result<u32, Refusal> {
    let len = pieces.iter().fold(0, |sum: u64, piece| sum.wrapping_add(piece.len));
    let (pd, access) = (program.pd, if len > TIB { access::ON_DEMAND } else { 1 });
    let request = Request::RegMr { pd, addr: 0, len, iova: 0, access, pieces, replaces: None };
    match program.ask_with(host, request, fds)? {
        Response::Mr { mr, .. } => Ok(mr),
        other => panic!("{other:?}"),
    }
}

fn register_whole(program: &mut Program, host: &mut Host, file: &OwnedFd, len: u64) -> Result<u32, Refusal> {
    let copy = file.as_fd().try_clone_to_owned().expect("a descriptor");
    register(program, host, vec![part(0, 0, len)], vec![copy])
}

fn used(host: &Host) -> u64 {
    host.ledger.used(Resource::AddressSpace)
}

/// Bytes of address space in which this process has `file` mapped. All of its mappings would include those of other tests.
fn mapped(file: &OwnedFd) -> u64 {
    let inode = rustix::fs::fstat(file).expect("its inode").st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel's list");
    let of_file = maps
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(4) == Some(&inode.as_str()));
    let number = |digits| u64::from_str_radix(digits, 16).expect("an address");
    of_file.map(|words| words[0].split_once('-').map_or(0, |(from, to)| number(to) - number(from))).sum()
}

/// Registers one file again and again, in many processes of one user. Returns the programs.
fn fill(host: &mut Host, uid: u32, file: &OwnedFd) -> Vec<Program> {
    let mut programs = vec![Program::start(host, uid).expect("a program")];
    loop {
        let program = programs.last_mut().expect("one");
        for _ in 0..16 {
            if let Err(refusal) = register_whole(program, host, file, TIB) {
                assert_eq!(refusal.errno, libc::ENOMEM);
                let sentence = refusal.sentence;
                assert!(sentence.contains("bytes of address space") && sentence.contains("user_share"), "{sentence}");
                return programs;
            }
        }
        programs.push(Program::start(host, uid).expect("another program"));
    }
}

#[test]
fn users_who_register_huge_files_leave_address_space_for_others() {
    let mut host = host(50);
    let file = memfd(TIB);
    let first = fill(&mut host, HOSTILE, &file);
    let second = fill(&mut host, OTHER, &file);
    let capacity = host.ledger.capacity(Resource::AddressSpace);
    assert!(used(&host) <= capacity / 10 * 7, "{} of {capacity}", used(&host));
    // The charge is what is mapped: the file's mappings, and little for rings.
    let mapped_now = mapped(&file);
    assert!(
        mapped_now > 0 && mapped_now.abs_diff(used(&host)) < 1 << 32,
        "{mapped_now} mapped, {} charged",
        used(&host)
    );
    let mut third = Program::start(&mut host, 1003).expect("a program of a third user");
    register_whole(&mut third, &mut host, &file, TIB).expect("its region");
    let mut root = Program::start(&mut host, 0).expect("a program of root");
    for _ in 0..16 {
        register_whole(&mut root, &mut host, &file, TIB).expect("a region of root");
    }
    first.into_iter().chain(second).chain([third, root]).for_each(|program| program.end(&mut host));
    assert_eq!(used(&host), 0);
    assert_eq!(mapped(&file), 0, "all is unmapped");
}

#[test]
fn a_registration_that_fails_or_ends_gives_its_address_space_back() {
    let mut host = host(50);
    let (file, short) = (memfd(TIB), memfd(4096));
    let mut program = Program::start(&mut host, HOSTILE).expect("a program");
    let alone = used(&host);
    let descriptors = host.ledger.used(Resource::Descriptor);
    for _ in 0..200 {
        let mr = register_whole(&mut program, &mut host, &file, TIB).expect("a region");
        assert_eq!(
            host.ledger.used(Resource::Descriptor),
            descriptors,
            "the descriptor of a mapped file waits for none"
        );
        assert!(used(&host) >= alone + TIB);
        program.ask(&mut host, Request::DeregMr { mr }).expect("deregistered");
        // Another thread unmaps a large file, and it is charged until then.
        host.disposal.wait_until_idle();
        assert_eq!(used(&host), alone);
        // The second piece lies outside its file.
        let copies = [&file, &short].map(|file| file.as_fd().try_clone_to_owned().expect("a descriptor"));
        let pieces = vec![part(0, 0, TIB / 2), part(1, 0, TIB / 4)];
        register(&mut program, &mut host, pieces, copies.into()).expect_err("outside");
        assert_eq!(used(&host), alone);
        host.disposal.wait_until_idle();
    }
    // Replacing a region needs room for both, and leaves one.
    let mr = register_whole(&mut program, &mut host, &file, TIB).expect("a region");
    let copy = file.as_fd().try_clone_to_owned().expect("a descriptor");
    let pieces = vec![part(0, 0, TIB / 2)];
    let (pd, len) = (program.pd, TIB / 2);
    let request = Request::RegMr { pd, addr: 0, len, iova: 0, access: 1, pieces, replaces: Some(mr) };
    program.ask_with(&mut host, request, vec![copy]).expect("replaced");
    host.disposal.wait_until_idle();
    assert!(used(&host) < alone + TIB, "{} bytes", used(&host));
    program.end(&mut host);
    assert_eq!(used(&host), 0);
}

#[test]
fn lengths_that_exceed_an_address_space_are_refused() {
    let mut host = host(50);
    let mut program = Program::start(&mut host, HOSTILE).expect("a program");
    let alone = used(&host);
    const LARGEST: u64 = (1 << 63) - 4096;
    let files = || vec![memfd(TIB), memfd(LARGEST), memfd(LARGEST - TIB + 4096), memfd(8192)];
    let sums: [Vec<MrPiece>; 3] = [
        vec![part(1, 0, LARGEST)],
        vec![part(0, 0, TIB), part(1, 0, LARGEST), part(2, 0, LARGEST - TIB)],
        // 2^64 - 1 bytes; rounded up to pages that is 2^64.
        vec![part(0, 0, TIB), part(1, 0, LARGEST), part(2, 0, LARGEST - TIB + 4096), part(3, 0, 4095)],
    ];
    for pieces in sums {
        let words = format!("{pieces:?}");
        register(&mut program, &mut host, pieces, files()).expect_err(&words);
        assert_eq!(used(&host), alone, "{words}");
    }
    program.end(&mut host);
}

#[test]
fn further_segments_of_an_arena_are_charged_until_the_context_ends() {
    let mut host = host(50);
    let mut program = Program::start(&mut host, HOSTILE).expect("a program");
    let alone = used(&host);
    assert!(alone >= 64 << 20, "the first segment: {alone}");
    let queue = Request::CreateCq(CqInitAttr { entries: 1 << 20, channel: None, cookie: 0, vector: 0 });
    for _ in 0..3 {
        let Response::Cq { cq, .. } = program.ask(&mut host, queue.clone()).expect("a queue") else {
            panic!("no queue")
        };
        program.ask(&mut host, Request::DestroyCq { cq }).expect("destroyed");
    }
    let grown = used(&host);
    assert!(grown >= alone + (64 << 20) && grown < alone + (256 << 20), "{grown}, {alone} before");
    program.end(&mut host);
    assert_eq!(used(&host), 0);
}
