//! Worker numbers lent to programs: who gets one, what comes with it, and what the host believes of the notes of a program that
//! has ended.
use burst_base::{DeviceId, Nanos, Qpn};
use burst_control::lend::LentWorker;
use burst_control::{Refusal, Request, Response};
use burst_engine::tombstone::{LINGER, Tombstone};
use burst_engine::tombstone_file::TombstoneFile;
use burst_frame::Flow;
use burst_host::{ClientProcess, Clock, Host, HostOptions, Session};
use burst_peer::PeerProcess;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A host on an address of the loopback interface, with a UDP port of the test's own.
fn host(number: u16, workers: usize, lend: bool) -> Host {
    let udp_port = number + (std::process::id() % 200) as u16 * 100;
    let ports = vec![format!("udp:dev=lo,addr=127.0.0.4,udp_port={udp_port}")];
    let options = HostOptions { ports, lend, ..crate::common::options(workers, 50) };
    Host::open(&options, Clock::Monotonic, None).expect("a host")
}

/// A host that lends numbers.
pub fn lender() -> Host {
    host(24_000, 1, true)
}

/// A program of a user; `known`: the kernel describes its process, which is this one.
fn program(host: &Host, uid: u32, known: bool) -> Session {
    let pid = std::process::id();
    let mut session = Session::admit(host, ClientProcess { pid, uid }).expect("admitted");
    if known {
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        session.set_peer(PeerProcess::of(&ours).expect("this process"));
    }
    session
}

fn ask(session: &mut Session, host: &mut Host, request: Request) -> Result<(Response, Vec<OwnedFd>), Refusal> {
    let fds = session.foreign(host, Vec::new());
    session.handle(host, Request::Hello { program: "test".into() }, fds)?;
    let fds = session.foreign(host, Vec::new());
    session.handle(host, request, fds).map(|reply| (reply.response, reply.fds))
}

fn borrow(session: &mut Session, host: &mut Host) -> Result<(LentWorker, Vec<OwnedFd>), String> {
    match ask(session, host, Request::Lend).map_err(|refusal| refusal.sentence)? {
        (Response::Lent(worker), fds) => Ok((worker, fds)),
        (other, _) => panic!("{other:?}"),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn only_a_program_of_the_same_user_that_can_be_seen_gets_a_number() {
    let mut off = host(10_830, 1, false);
    let mut on = host(10_831, 1, true);
    let why = |host: &mut Host, uid, known| {
        let mut session = program(host, uid, known);
        let refused = borrow(&mut session, host).expect_err("refused");
        session.end(host);
        refused
    };
    assert!(why(&mut off, own_uid(), true).contains("--lend same-user"));
    assert!(why(&mut on, own_uid() + 1000, true).contains("its own user only"));
    assert!(why(&mut on, own_uid(), false).contains("not visible"));
    // A port without sockets of its own.
    let mut in_memory = crate::common::host(50);
    assert!(why(&mut in_memory, own_uid(), true).contains("--lend same-user"));
}

#[test]
fn numbers_are_lent_once_until_their_holders_end() {
    let mut host = host(10_832, 13, true);
    let mut sessions: Vec<Session> = (0..3).map(|_| program(&host, own_uid(), true)).collect();
    let numbers: Vec<u32> =
        sessions.iter_mut().map(|session| borrow(session, &mut host).expect("lent").0.number).collect();
    assert_eq!(numbers, [13, 14, 15]);
    let mut late = program(&host, own_uid(), true);
    assert!(borrow(&mut late, &mut host).expect_err("all are lent").contains("all 3 worker numbers"));
    assert!(borrow(&mut sessions[0], &mut host).expect_err("it has one").contains("number 13 already"));
    sessions.remove(1).end(&mut host);
    assert_eq!(borrow(&mut late, &mut host).expect("free again").0.number, 14);
    sessions.push(late);
    sessions.iter_mut().for_each(|session| session.end(&mut host));
}

#[test]
fn a_borrower_gets_sockets_files_and_the_daemons_settings() {
    let mut host = host(10_833, 2, true);
    let mut session = program(&host, own_uid(), true);
    let (worker, fds) = borrow(&mut session, &mut host).expect("lent");
    assert_eq!(fds.len(), worker.names.len() + 1, "the socket for mail comes first");
    assert!(worker.names[0].starts_with("udp 127.0.0.4 ") && worker.names[0].ends_with(" 2"), "{:?}", worker.names);
    assert_eq!(worker.names[1..], ["tombstones 2", "psns 2"]);
    assert_eq!((worker.ports[0].ifname.as_str(), worker.cc.len(), worker.rto.as_str()), ("lo", 3, "shared"));
    session.end(&mut host);
}

#[test]
fn notes_of_other_numbers_and_addresses_are_not_believed() {
    let mut host = host(10_834, 1, true);
    let mut session = program(&host, own_uid(), true);
    let (worker, fds) = borrow(&mut session, &mut host).expect("lent");
    let mut named: Vec<(String, OwnedFd)> = worker.names.into_iter().zip(fds.into_iter().skip(1)).collect();
    let (psns, records) = (named.pop().expect("PSNs").1, named.pop().expect("records").1);
    let file = TombstoneFile::from_fds(records, Some(psns)).expect("mapped");
    let [own, peer, stranger] = ["127.0.0.4", "127.0.0.9", "127.0.0.5"].map(|ip| ip.parse::<IpAddr>().expect("ip"));
    let stone = |qpn: u32, src| {
        let flow = Flow { src, dst: peer, ..Flow::default() };
        let (qpn, device, until) = (Qpn::new(qpn), DeviceId(0), Nanos(0) + LINGER);
        Tombstone { qpn, peer: Qpn::new(77), is_xrc: false, cm: None, device, flow, until, expected: None }
    };
    file.write(1, &stone(0x501, own));
    file.write(2, &stone(0x510, own));
    file.write(3, &stone(0x521, stranger));
    drop(file);
    session.end(&mut host);
    let buried = host.on_worker(0, |worker, _| [0x501, 0x510, 0x521].map(|qpn| worker.has_tombstone(Qpn::new(qpn))));
    assert_eq!(buried, [true, false, false], "the daemon's number, and another address");
}
