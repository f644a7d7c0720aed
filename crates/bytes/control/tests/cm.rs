//! Records of event channels: the longest one fits, and parsing is the inverse of writing.

use burst_base::conn::PeerClass;
use burst_base::verbs::{AhAttr, Mtu, QpType};
use burst_control::cm::{
    CM_DATA_MAX, CmAddr, CmCommand, CmData, CmEvent, CmEventKey, CmEventKind, CmIdOption, CmQp, CmRoute, ConnAttr,
    ConnParam, Ece, PortSpace,
};
use burst_control::commands::CommandReceiver;
use burst_control::frame::{self, ControlHeader};
use burst_control::{CommandSender, ControlError, MESSAGE_MAX, Request};
use burst_shm::arena::Segment;
use burst_shm::record_ring::RecordRingProducer;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde::Deserialize;
use serde::de::value::BytesDeserializer;
use std::os::fd::OwnedFd;

fn longest() -> CmEvent {
    let addr = CmAddr { ip: [0xff; 16].into(), port: u16::MAX, scope: u32::MAX };
    let route = CmRoute {
        src: Some(addr),
        dst: Some(addr),
        device: Some(u32::MAX),
        sgid: [0xff; 16],
        dgid: [0xff; 16],
        sgid_index: 255,
        mtu: Mtu::B4096,
        traffic_class: 255,
        hop_limit: 255,
        ack_timeout: 255,
    };
    let max = u32::MAX;
    let conn = ConnAttr {
        remote_qpn: max,
        sq_psn: max,
        rq_psn: max,
        responder_resources: 255,
        initiator_depth: 255,
        retry_count: 255,
        rnr_retry_count: 255,
        peer_rnr_retry_count: 255,
        ack_timeout: 255,
        flow_control: true,
        srq: true,
        qkey: max,
        mtu: Mtu::B4096,
        ece: Ece { vendor_id: max, options: max },
        peer: PeerClass::Burst,
    };
    CmEvent {
        kind: CmEventKind::TimewaitExit,
        id: max,
        listener: max,
        status: i32::MIN,
        cookie: u64::MAX,
        route,
        conn,
        data: CmData::new(&[0xff; CM_DATA_MAX]).expect("fits"),
    }
}

#[test]
fn the_longest_event_fits_and_comes_back() {
    let event = longest();
    assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    assert_eq!(event.to_bytes()[CmEvent::BYTES - 1], 0, "it does not fill the record");
    let short = CmEvent::new(CmEventKind::Established, 7);
    assert_eq!(CmEvent::from_bytes(&short.to_bytes()), Some(short));
}

#[test]
fn every_kind_comes_back_under_its_number() {
    for (number, kind) in CmEventKind::ALL.iter().enumerate() {
        assert_eq!(*kind as usize, number);
        let src = Some(CmAddr { ip: [192, 0, 2, number as u8].into(), port: 7, scope: 0 });
        let event = CmEvent { route: CmRoute { src, ..CmRoute::default() }, ..CmEvent::new(*kind, 1 << number) };
        assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    }
}

#[test]
fn junk_is_no_event_and_private_data_has_a_limit() {
    assert_eq!(CmEvent::from_bytes(&[0xff; CmEvent::BYTES]), None);
    // Bytes that determine what follows (kind, option, family, MTU, bool, length) are checked; all others may have any value.
    let good = longest().to_bytes();
    let refused = (0..CmEvent::BYTES).filter(|at| {
        let mut bad = good;
        bad[*at] = 0xfe;
        CmEvent::from_bytes(&bad).is_none()
    });
    assert_eq!(refused.count(), 12);
    assert!(CmData::new(&[0; CM_DATA_MAX + 1]).is_none());
    let too_long = postcard::to_stdvec(&vec![0u8; CM_DATA_MAX + 1]).expect("encodes");
    assert!(postcard::from_bytes::<CmData>(&too_long).is_err());
}

fn every_command() -> Vec<CmCommand> {
    let (id, max) = (u32::MAX, u32::MAX);
    let addr = CmAddr { ip: [0xff; 16].into(), port: u16::MAX, scope: max };
    let small = CmAddr { ip: [192, 0, 2, 1].into(), port: 1, scope: 0 };
    let data = CmData::new(&[0xff; CM_DATA_MAX]).expect("fits");
    let param = ConnParam {
        responder_resources: 255,
        initiator_depth: 255,
        flow_control: true,
        retry_count: 255,
        rnr_retry_count: 255,
        srq: true,
        qpn: max,
        qkey: max,
        ece: Ece { vendor_id: max, options: max },
    };
    let qp = Some(CmQp { token: u64::MAX, qpn: max });
    vec![
        CmCommand::Create { id: 7, channel: 9, ps: PortSpace::Tcp, qp_type: QpType::Rc },
        CmCommand::Create { id, channel: max, ps: PortSpace::Udp, qp_type: QpType::Ud },
        CmCommand::Create { id, channel: max, ps: PortSpace::Ib, qp_type: QpType::XrcRecv },
        CmCommand::Destroy { id, read: max },
        CmCommand::Migrate { id, channel: 3 },
        CmCommand::Bind { id, addr: small },
        CmCommand::ResolveAddr { id, src: None, dst: small, timeout_ms: 1 },
        CmCommand::ResolveAddr { id, src: Some(small), dst: addr, timeout_ms: max },
        CmCommand::ResolveRoute { id, timeout_ms: max },
        CmCommand::Connect { id, qp: None, param: ConnParam::default(), data: CmData::EMPTY },
        CmCommand::Connect { id, qp, param, data },
        CmCommand::Listen { id, backlog: 128 },
        CmCommand::Accept { id, qp, param, data },
        CmCommand::Reject { id, reason: 28, data },
        CmCommand::Establish { id },
        CmCommand::Notify { id },
        CmCommand::Disconnect { id },
        CmCommand::SetOption { id, option: CmIdOption::Tos(255) },
        CmCommand::SetOption { id, option: CmIdOption::ReuseAddr(true) },
        CmCommand::SetOption { id, option: CmIdOption::AfOnly(false) },
        CmCommand::SetOption { id, option: CmIdOption::AckTimeout(31) },
        CmCommand::Join { id, addr, cookie: u64::MAX },
        CmCommand::Leave { id, addr },
        CmCommand::Query { id },
        CmCommand::QueryConn { id },
    ]
}

#[test]
fn private_data_is_shown_by_its_length_and_refused_with_the_limit() {
    let data = CmData::new(&[7; 3]).expect("fits");
    assert_eq!((format!("{data:?}"), format!("{:?}", CmData::EMPTY)), ("3 bytes".into(), "0 bytes".into()));
    let too_long = BytesDeserializer::<serde::de::value::Error>::new(&[0; CM_DATA_MAX + 1]);
    let error = CmData::deserialize(too_long).expect_err("too long").to_string();
    assert!(error.contains("225") && error.contains("at most 224 bytes"), "{error}");
}

#[test]
fn every_command_names_its_id() {
    let ids: Vec<_> = every_command().iter().map(CmCommand::id).collect();
    assert_eq!(ids[0], 7);
    assert!(ids[1..].iter().all(|id| *id == u32::MAX), "{ids:?}");
}

#[test]
fn a_command_that_fails_is_reported_by_the_event_that_its_call_awaits() {
    use CmEventKind::{AddrError, ConnectError, MulticastError, RouteError};
    for command in every_command() {
        let event = match command {
            CmCommand::Bind { .. } | CmCommand::ResolveAddr { .. } => Some(AddrError),
            CmCommand::ResolveRoute { .. } => Some(RouteError),
            CmCommand::Connect { .. } | CmCommand::Accept { .. } | CmCommand::Establish { .. } => Some(ConnectError),
            CmCommand::Join { .. } => Some(MulticastError),
            _ => None,
        };
        assert_eq!(command.failure_event(), event, "{command:?}");
    }
}

#[test]
fn the_address_vector_of_a_route_is_global_and_its_port_is_1() {
    let route = CmRoute { dgid: [5; 16], sgid_index: 6, traffic_class: 7, hop_limit: 8, ..CmRoute::default() };
    let expected = AhAttr {
        dgid: [5; 16],
        sgid_index: 6,
        traffic_class: 7,
        hop_limit: 8,
        is_global: true,
        port_num: 1,
        ..AhAttr::default()
    };
    assert_eq!(route.ah(), expected);
}

#[test]
fn a_sentence_travels_in_address_errors_only_and_is_cut_to_the_room_for_private_data() {
    let error = CmEvent::new(CmEventKind::AddrError, 1);
    assert_eq!(error.sentence(), None);
    assert_eq!(error.with_sentence("no route").sentence(), Some("no route".into()));
    let long = "x".repeat(CM_DATA_MAX + 1);
    assert_eq!(error.with_sentence(&long).sentence(), Some(long[1..].into()));
    let data = CmData::new(b"private").expect("fits");
    let rejected = CmEvent { data, ..CmEvent::new(CmEventKind::Rejected, 1) };
    assert_eq!((rejected.with_sentence("no route"), rejected.sentence()), (rejected, None));
}

#[test]
fn kind_id_and_listener_are_read_without_the_rest() {
    let event = CmEvent { listener: 3, ..CmEvent::new(CmEventKind::ConnectRequest, 2) };
    let key = CmEventKey { kind: CmEventKind::ConnectRequest, id: 2, listener: 3 };
    assert_eq!(CmEventKey::of(&event.to_bytes()), Some(key));
    assert_eq!(CmEventKey::of(&[0xff; CmEvent::BYTES]), None);
}

/// The program's end and the daemon's end of a command ring, and the daemon's socket.
fn command_ring() -> (CommandSender, CommandReceiver, OwnedFd) {
    let (program, daemon) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socketpair");
    let (fd, commands) = CommandReceiver::create().expect("a command ring");
    (CommandSender::new(program, fd).expect("a command ring"), commands, daemon)
}

/// Receives all commands in the ring; `None` if a record is no command.
fn receive_one(commands: &mut CommandReceiver) -> Option<Vec<CmCommand>> {
    let mut all = Vec::new();
    commands.receive(|op| all.push(op)).ok().map(|_| all)
}

#[test]
fn every_command_arrives_unchanged_and_in_order() {
    let (sender, mut commands, _daemon) = command_ring();
    for op in every_command() {
        assert!(sender.send(std::slice::from_ref(&op)).expect("said"));
        assert_eq!(receive_one(&mut commands), Some(vec![op]));
    }
    assert!(sender.send(&every_command()).expect("said"));
    assert_eq!(receive_one(&mut commands), Some(every_command()));
    assert_eq!(receive_one(&mut commands), Some(Vec::new()));
}

#[test]
fn a_sleeping_daemon_gets_one_bell() {
    let (sender, mut commands, daemon) = command_ring();
    let ops = [CmCommand::Establish { id: 1 }];
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut rung = || match frame::receive(&daemon, &mut buffer, RecvFlags::DONTWAIT, &mut Vec::new()) {
        Ok(packet) => {
            assert!(packet.is_bell());
            assert!(matches!(packet.decode::<Request>(), Err(ControlError::Malformed(_))), "a bell is no request");
            true
        }
        Err(_) => false,
    };
    assert!(sender.send(&ops).expect("said"));
    assert!(!rung(), "it is awake");
    assert!(!commands.try_idle(), "a command is there");
    assert_eq!(receive_one(&mut commands).map(|all| all.len()), Some(1));
    assert!(commands.try_idle());
    assert!(sender.send(&ops).expect("said"));
    assert!(sender.send(&ops).expect("said"));
    assert!(rung() && !rung());
    commands.stay_awake();
    assert_eq!(receive_one(&mut commands).map(|all| all.len()), Some(2));
}

#[test]
fn a_full_lane_takes_nothing_until_there_is_room() {
    let (sender, mut commands, _daemon) = command_ring();
    let said = |id| sender.send(&[CmCommand::Establish { id }, CmCommand::Disconnect { id }]).expect("said");
    let pairs = (0..u32::MAX).take_while(|id| said(*id)).count();
    assert!(pairs > 10);
    let all = receive_one(&mut commands).expect("commands");
    assert_eq!(all.len(), 2 * pairs);
    assert!(all.chunks(2).zip(0..).all(|(two, id)| two == [CmCommand::Establish { id }, CmCommand::Disconnect { id }]));
    assert!(said(0));
}

#[test]
fn records_that_are_no_command_end_the_receiver() {
    let (segment, consumer) = burst_shm::record_ring::create().expect("a command ring");
    let mut commands = CommandReceiver::from(consumer);
    let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
    let mut ring = RecordRingProducer::new(Segment::map(fd).expect("mapped")).expect("a command ring");
    // The record of Establish is the number 10 and an id.
    let establish = [10, 1, 0, 0, 0];
    for (record, is_command) in [
        (&establish[..], true),
        (&establish[..4], false),
        (&[10, 1, 0, 0, 0, 10], false),
        (&[], false),
        (&[0xff; 40], false),
        (&establish[..], true),
    ] {
        ring.write(record);
        assert!(!ring.post());
        assert_eq!(receive_one(&mut commands).is_some(), is_command, "{record:?}");
    }
}

#[test]
fn a_bell_of_another_version_or_with_content_is_none() {
    let (program, daemon) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socketpair");
    let bell = ControlHeader { version: 99, sequence: 0 }.to_bell();
    let long = [&ControlHeader::new(0).to_bell()[..], &[0]].concat();
    for packet in [&bell[..], &long] {
        rustix::net::send(&program, packet, SendFlags::empty()).expect("sent");
        let mut buffer = vec![0; MESSAGE_MAX];
        assert!(
            !frame::receive(&daemon, &mut buffer, RecvFlags::empty(), &mut Vec::new()).expect("a packet").is_bell()
        );
    }
}
