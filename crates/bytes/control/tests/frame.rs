//! Packets over a real socket pair: sent packets arrive unchanged, and malformed ones are refused with a reason.
use burst_control::frame::{self, ControlHeader, HEADER_BYTES};
use burst_control::{AsyncObject, AsyncRecord, ControlError, FDS_MAX, MESSAGE_MAX, Request, Response};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socketpair")
}

fn receive(fd: &OwnedFd) -> Result<frame::ControlPacket<'static>, ControlError> {
    frame::receive(fd, vec![0; MESSAGE_MAX].leak(), RecvFlags::empty(), &mut Vec::new())
}

#[test]
fn request_and_descriptor_arrive() {
    let (a, b) = pair();
    let (r, _w) = rustix::pipe::pipe().expect("pipe");
    let request = Request::Hello { program: "test".into() };
    frame::send(&a, 7, &request, &[r.as_fd()], SendFlags::empty()).expect("send");
    let (mut buffer, mut fds) = (vec![0; MESSAGE_MAX], Vec::new());
    let packet = frame::receive(&b, &mut buffer, RecvFlags::empty(), &mut fds).expect("receive");
    assert_eq!(packet.header, ControlHeader::new(7));
    assert_eq!(fds.len(), 1);
    assert_eq!(packet.decode::<Request>().expect("decode"), request);
}

#[test]
fn other_version_is_named() {
    let (a, b) = pair();
    frame::send_raw(&a, ControlHeader { version: 99, sequence: 1 }, b"daemon 9.9", &[], SendFlags::empty())
        .expect("send");
    match receive(&b).expect("receive").decode::<Response>() {
        Err(ControlError::Version { theirs: 99, sentence, .. }) => assert_eq!(sentence, "daemon 9.9"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn garbage_is_malformed_and_hangup_is_closed() {
    let (a, b) = pair();
    rustix::net::send(&a, b"GET / HTTP/1.0\r\n\r\n", SendFlags::empty()).expect("send");
    assert!(matches!(receive(&b), Err(ControlError::Malformed(_))));
    rustix::net::send(&a, &[0u8; 3], SendFlags::empty()).expect("send");
    assert!(matches!(receive(&b), Err(ControlError::Malformed(_))));
    frame::send_raw(&a, ControlHeader::new(1), &[0xff; 40], &[], SendFlags::empty()).expect("send");
    assert!(matches!(receive(&b).expect("header is fine").decode::<Request>(), Err(ControlError::Malformed(_))));
    drop(a);
    assert!(matches!(receive(&b), Err(ControlError::Closed)));
}

/// Closing a descriptor can block: the receiver gets those of refused packets too, and decides where they are closed.
#[test]
fn descriptors_of_refused_packets_arrive() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let (a, b) = pair();
    let (r, _w) = rustix::pipe::pipe().expect("pipe");
    for (bytes, count) in [(&b"no control packet"[..], 3), (&[0; 12], 253)] {
        let many = vec![r.as_fd(); count];
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&a, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("sent");
        let (mut buffer, mut fds) = (vec![0; MESSAGE_MAX], Vec::new());
        let refused = frame::receive(&b, &mut buffer, RecvFlags::empty(), &mut fds);
        assert!(matches!(refused, Err(ControlError::Malformed(_))), "{refused:?}");
        assert_eq!(fds.len(), count);
    }
}

#[test]
fn too_long_is_refused_by_the_sender() {
    let (a, _b) = pair();
    let body = vec![0; MESSAGE_MAX - HEADER_BYTES + 1];
    assert!(matches!(
        frame::send_raw(&a, ControlHeader::new(1), &body, &[], SendFlags::empty()),
        Err(ControlError::Malformed(_))
    ));
}

#[test]
fn the_longest_message_and_the_most_descriptors_arrive() {
    let (a, b) = pair();
    let (r, _w) = rustix::pipe::pipe().expect("pipe");
    let (body, most) = (vec![7; MESSAGE_MAX - HEADER_BYTES], vec![r.as_fd(); FDS_MAX + 1]);
    frame::send_raw(&a, ControlHeader::new(1), &body, &most[..FDS_MAX], SendFlags::empty()).expect("sent");
    let (mut buffer, mut fds) = (vec![0; MESSAGE_MAX], Vec::new());
    let packet = frame::receive(&b, &mut buffer, RecvFlags::empty(), &mut fds).expect("received");
    assert_eq!((packet.body, fds.len()), (&body[..], FDS_MAX));
    assert!(matches!(
        frame::send_raw(&a, ControlHeader::new(2), &body, &most, SendFlags::empty()),
        Err(ControlError::Malformed(_))
    ));
}

#[test]
fn async_record_round_trip() {
    for object in [
        AsyncObject::Qp,
        AsyncObject::Cq,
        AsyncObject::Srq,
        AsyncObject::Port,
        AsyncObject::Device,
        AsyncObject::Jfc,
        AsyncObject::Jfr,
        AsyncObject::Jetty,
    ] {
        let record = AsyncRecord { event: 16, object, cookie: 0x1122_3344_5566_7788 };
        assert_eq!(AsyncRecord::from_bytes(&record.to_bytes()), Some(record));
    }
    assert_eq!(AsyncRecord::from_bytes(&[0xff; 16]), None);
}
