//! Connection management between programs of one daemon: from the control socket through worker and port, and back.

mod common;

use burst_base::verbs::QpType;
use burst_control::cm::{CmCommand, CmData, CmEvent, CmEventKind as K, CmIdOption, CmReply, DAEMON_IDS, PortSpace};
use common::{Daemon, Program, addr, param};

const HERE: &str = "127.0.0.1";

fn pair(daemon: &Daemon) -> (Program, Program) {
    (daemon.program(), daemon.program())
}

/// Establishes a connection. Returns both ids, the CONNECT_REQUEST and the CONNECT_RESPONSE.
fn connected(server: &mut Program, client: &mut Program, port: u16) -> (u32, u32, CmEvent, CmEvent) {
    // A queue pair number cannot be used again during TIMEWAIT: take another one each time.
    let qpn = 100 + client.ids();
    let id = client.connect(PortSpace::Tcp, addr(HERE, port), param(qpn), CmData::EMPTY);
    let request = server.event();
    assert_eq!((request.kind, request.conn.remote_qpn), (K::ConnectRequest, qpn));
    assert_eq!(
        server.op(CmCommand::Accept { id: request.id, qp: None, param: param(100 + qpn), data: CmData::EMPTY }),
        CmReply::Done
    );
    let response = client.expect(K::ConnectResponse, id);
    // Only the passive end gets ESTABLISHED: the active end's program has called establish itself.
    assert_eq!(client.op(CmCommand::Establish { id }), CmReply::Done);
    server.expect(K::Established, request.id);
    (id, request.id, request, response)
}

#[test]
fn a_connection_is_made_and_ended() {
    let daemon = Daemon::start("ends", 1);
    let (mut server, mut client) = pair(&daemon);
    let listener = server.listen(PortSpace::Tcp, addr("0.0.0.0", 7174), 0);
    let (active, passive, request, response) = connected(&mut server, &mut client, 7174);
    assert!(passive >= DAEMON_IDS);
    assert_eq!(request.listener, listener);
    assert_eq!(response.conn.remote_qpn, 200);
    assert_eq!((request.conn.sq_psn, request.conn.rq_psn), (response.conn.rq_psn, response.conn.sq_psn));
    assert_eq!((response.conn.responder_resources, response.conn.initiator_depth), (4, 4));
    assert_eq!((request.route.src.map(|a| a.port), request.route.device), (Some(7174), Some(0)));
    assert_eq!(request.route.dst.map(|a| a.port), response.route.src.map(|a| a.port));
    assert_eq!(request.data.as_slice().len(), 56, "the room of a request");
    assert_eq!(response.data.as_slice().len(), 196);
    assert_eq!(client.op(CmCommand::Disconnect { id: active }), CmReply::Done);
    client.expect(K::Disconnected, active);
    server.expect(K::Disconnected, passive);
    // Disconnecting an ended connection is no error.
    assert_eq!(server.op(CmCommand::Disconnect { id: passive }), CmReply::Done);
    client.expect(K::TimewaitExit, active);
    server.expect(K::TimewaitExit, passive);
    assert_eq!(client.op(CmCommand::Destroy { id: active, read: 0 }), CmReply::Done);
    assert_eq!(client.errno(CmCommand::Query { id: active }), libc::EINVAL);
}

#[test]
fn private_data_goes_both_ways_and_refusals_carry_it() {
    let daemon = Daemon::start("data", 1);
    let (mut server, mut client) = pair(&daemon);
    server.listen(PortSpace::Tcp, addr(HERE, 7174), 0);
    let data = |text: &str| CmData::new(text.as_bytes()).expect("fits");
    let id = client.connect(PortSpace::Tcp, addr(HERE, 7174), param(100), data("please"));
    let request = server.event();
    assert_eq!(&request.data.as_slice()[..7], b"please\0");
    let op = CmCommand::Reject { id: request.id, reason: 28, data: data("no") };
    assert_eq!(server.op(op), CmReply::Done);
    let rejected = client.expect(K::Rejected, id);
    assert_eq!((rejected.status, &rejected.data.as_slice()[..3]), (28, &b"no\0"[..]));
    let long = CmData::new(&[1; 57]).expect("fits");
    let id = client.new_id(PortSpace::Tcp, QpType::Rc);
    client.op(CmCommand::ResolveAddr { id, src: None, dst: addr(HERE, 7174), timeout_ms: 0 });
    assert_eq!(client.errno(CmCommand::Connect { id, qp: None, param: param(1), data: long }), libc::EINVAL);
}

#[test]
fn a_request_without_a_listener_is_rejected() {
    let daemon = Daemon::start("unheard", 1);
    let mut client = daemon.program();
    let id = client.connect(PortSpace::Tcp, addr(HERE, 9), param(100), CmData::EMPTY);
    assert_eq!(client.expect(K::Rejected, id).status, 8);
    let id = client.connect(PortSpace::Udp, addr(HERE, 9), param(100), CmData::EMPTY);
    assert_eq!(client.expect(K::Unreachable, id).status, 1);
}

#[test]
fn datagram_services_tell_queue_pair_and_key() {
    let daemon = Daemon::start("sidr", 1);
    let (mut server, mut client) = pair(&daemon);
    server.listen(PortSpace::Udp, addr(HERE, 7174), 0);
    let id = client.connect(PortSpace::Udp, addr(HERE, 7174), param(0), CmData::EMPTY);
    let request = server.event();
    assert_eq!((request.kind, request.data.as_slice().len()), (K::ConnectRequest, 180));
    server.op(CmCommand::Accept { id: request.id, qp: None, param: param(77), data: CmData::EMPTY });
    let event = client.expect(K::Established, id);
    assert_eq!((event.conn.remote_qpn, event.conn.qkey), (77, 0x0123_4567));
    assert_eq!(event.data.as_slice().len(), 136);
}

#[test]
fn a_dead_program_is_reported_to_the_peer() {
    let daemon = Daemon::start("dies", 1);
    let (mut server, mut client) = pair(&daemon);
    server.listen(PortSpace::Tcp, addr(HERE, 7174), 0);
    let (_, passive, ..) = connected(&mut server, &mut client, 7174);
    client.connect(PortSpace::Tcp, addr(HERE, 7174), param(101), CmData::EMPTY);
    assert_eq!(server.event().kind, K::ConnectRequest);
    drop(client);
    let mut other = daemon.program();
    let id = other.connect(PortSpace::Tcp, addr(HERE, 7174), param(102), CmData::EMPTY);
    // The request that was not accepted ends silently.
    let mut seen = [server.event(), server.event(), server.event()].map(|e| (e.kind, e.id));
    seen.sort_by_key(|(kind, _)| *kind as u32);
    let [(request, _), end @ ..] = seen;
    assert_eq!((request, end), (K::ConnectRequest, [(K::Disconnected, passive), (K::TimewaitExit, passive)]));
    drop(server);
    assert_eq!(other.expect(K::Rejected, id).status, 28);
    let id = other.connect(PortSpace::Tcp, addr(HERE, 7174), param(103), CmData::EMPTY);
    assert_eq!(other.expect(K::Rejected, id).status, 8, "its listener is gone");
}

#[test]
fn addresses_are_taken_once_and_checked() {
    let daemon = Daemon::start("bind", 1);
    let (mut one, mut two) = pair(&daemon);
    one.listen(PortSpace::Tcp, addr("0.0.0.0", 7174), 0);
    let id = two.new_id(PortSpace::Tcp, QpType::Rc);
    assert_eq!(two.errno(CmCommand::Bind { id, addr: addr(HERE, 7174) }), libc::EADDRNOTAVAIL);
    assert_eq!(two.errno(CmCommand::Bind { id, addr: addr("0.0.0.0", 7174) }), libc::EADDRNOTAVAIL);
    assert_eq!(two.errno(CmCommand::Bind { id, addr: addr("192.0.2.1", 1) }), libc::EADDRNOTAVAIL);
    let CmReply::Route(route) = two.op(CmCommand::Bind { id, addr: addr("0.0.0.0", 0) }) else { panic!("bound") };
    assert!(route.src.is_some_and(|a| a.port >= 32_768));
    assert_eq!(two.errno(CmCommand::Bind { id, addr: addr(HERE, 1) }), libc::EINVAL);
    assert_eq!(two.errno(CmCommand::SetOption { id, option: CmIdOption::AckTimeout(32) }), libc::EINVAL);
    assert_eq!(two.errno(CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc }), libc::EEXIST);
    assert_eq!(
        two.errno(CmCommand::Create { id: 99, channel: 5, ps: PortSpace::Tcp, qp_type: QpType::Rc }),
        libc::EINVAL
    );
    assert_eq!(
        two.errno(CmCommand::Create { id: 99, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Ud }),
        libc::EINVAL
    );
    // The command was valid: the failure of the network is an event.
    let id = two.new_id(PortSpace::Tcp, QpType::Rc);
    two.op(CmCommand::ResolveAddr { id, src: Some(addr("192.0.2.1", 0)), dst: addr(HERE, 1), timeout_ms: 0 });
    assert_eq!(two.expect(K::AddrError, id).status, -libc::ENODEV);
}

#[test]
fn failures_of_commands_without_a_reply_become_events() {
    let daemon = Daemon::start("without", 1);
    let mut client = daemon.program();
    let id = client.new_id(PortSpace::Tcp, QpType::Rc);
    client.without_reply(vec![
        CmCommand::Connect { id, qp: None, param: param(1), data: CmData::EMPTY },
        CmCommand::Disconnect { id },
    ]);
    assert_eq!(client.expect(K::ConnectError, id).status, -libc::EINVAL);
    // The connection to the daemon is still usable.
    assert!(matches!(client.op(CmCommand::Query { id }), CmReply::Route(_)));
}

#[test]
fn a_migrated_id_takes_its_events_along() {
    let daemon = Daemon::start("migrate", 1);
    let (mut server, mut client) = pair(&daemon);
    let fds = server.client.call(&burst_control::Request::CmChannel { channel: 2 }, &[]).expect("channel").fds;
    server.listen(PortSpace::Tcp, addr(HERE, 7174), 0);
    let id = client.connect(PortSpace::Tcp, addr(HERE, 7174), param(100), CmData::EMPTY);
    let request = server.event();
    server.op(CmCommand::Accept { id: request.id, qp: None, param: param(200), data: CmData::EMPTY });
    client.expect(K::ConnectResponse, id);
    client.op(CmCommand::Establish { id });
    // ESTABLISHED may be unread in the old channel, or come later: the new channel gets it in both cases.
    assert_eq!(server.op(CmCommand::Migrate { id: request.id, channel: 2 }), CmReply::Done);
    let mut record = [0; CmEvent::BYTES];
    assert_eq!(rustix::io::read(&fds[0], &mut record), Ok(CmEvent::BYTES));
    let event = CmEvent::from_bytes(&record).expect("an event");
    assert_eq!((event.kind, event.id), (K::Established, request.id));
    assert_eq!(server.errno(CmCommand::Migrate { id: request.id, channel: 3 }), libc::EINVAL);
}

#[test]
fn several_workers_share_the_work() {
    let daemon = Daemon::start("workers", 3);
    let (mut server, mut client) = pair(&daemon);
    server.listen(PortSpace::Tcp, addr("0.0.0.0", 7174), 0);
    for _ in 0..50 {
        let (active, passive, ..) = connected(&mut server, &mut client, 7174);
        client.op(CmCommand::Disconnect { id: active });
        client.expect(K::Disconnected, active);
        server.expect(K::Disconnected, passive);
        client.op(CmCommand::Destroy { id: active, read: 0 });
        server.op(CmCommand::Destroy { id: passive, read: 0 });
    }
}

#[test]
fn malformed_commands_end_only_their_own_conversation() {
    use burst_control::frame::ControlHeader;
    use burst_control::{ControlError, Request};
    use burst_shm::arena::Segment;
    use burst_shm::record_ring::RecordRingProducer;
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};
    use std::os::fd::{AsFd, BorrowedFd};
    let daemon = Daemon::start("malformed", 1);
    let (mut server, mut client) = pair(&daemon);
    server.listen(PortSpace::Tcp, addr("0.0.0.0", 7175), 0);
    let ended = |socket: BorrowedFd<'_>| {
        let mut bytes = [0; 64];
        // The daemon closes the connection, after any other packets.
        (0..4).any(|_| !matches!(rustix::io::read(socket, &mut bytes), Ok(1..)))
    };
    let bell = ControlHeader::new(0).to_bell();
    // A bell before the Hello is refused.
    let early = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    connect(&early, &SocketAddrUnix::new(&daemon.socket).expect("an address")).expect("connects");
    send(&early, &bell, SendFlags::NOSIGNAL).expect("sent");
    assert!(ended(early.as_fd()));
    // A bell without commands in the ring is ignored, and a second command ring is refused.
    let mut liar = daemon.connect();
    send(liar.socket().expect("a socket"), &bell, SendFlags::NOSIGNAL).expect("sent");
    let fd = liar.call(&Request::CmCommandRing, &[]).expect("a command ring").fds.remove(0);
    assert!(matches!(liar.command_sender(), Err(ControlError::Refused { errno: libc::EEXIST, .. })));
    let mut ring = RecordRingProducer::new(Segment::map(fd).expect("mapped")).expect("a command ring");
    ring.write(&[0xff; 40]);
    if ring.post() {
        send(liar.socket().expect("a socket"), &bell, SendFlags::NOSIGNAL).expect("sent");
    }
    assert!(ended(liar.socket().expect("a socket")));
    connected(&mut server, &mut client, 7175);
}
