//! Two network namespaces joined by a veth: the packets on the wire, and peers that are not Burst.
//!
//! The ICRC over IPv4 relies on this: with DF on an unconnected socket, the kernel sends identification 0 in a single packet and
//! 0, 1, 2, … along a train that it segments. `gso_max_segs 1` on the sender's veth makes the kernel segment trains before the
//! wire, where a packet socket captures them. Needs root; skipped with a message otherwise. The namespaces belong to threads and
//! end with them.

mod common;

use burst_base::Reason;
use burst_frame::Flow;
use burst_port::{Encapsulation, Port, PortError, PortSpec};
use burst_wire::icrc::{Icrc, PseudoV4, PseudoV6};
use common::wire::{Capture, ETHERNET, IPV4, UDP, in_namespaces, ip};
use common::{flow, open, payloads, receive, send};
use std::os::fd::FromRawFd;

/// Returns the identification of an IPv4 frame; checks DF and, with that identification, the ICRC.
fn checked_id(frame: &[u8]) -> u16 {
    let ip = &frame[ETHERNET..];
    let be16 = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let addr = |at: usize| std::net::Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    assert_eq!(be16(6), 0x4000, "DF and nothing else");
    let transport = &ip[IPV4 + UDP..usize::from(be16(2))];
    let (body, trailer) = transport.split_at(transport.len() - 4);
    let pseudo = PseudoV4 { id: be16(4), ..PseudoV4::new(addr(12), addr(16), be16(20)) };
    assert_eq!(Icrc::ipv4(&pseudo, transport.len(), body).finish(), trailer, "ICRC with id {}", be16(4));
    be16(4)
}

#[test]
fn identifications_on_the_wire_are_what_the_sender_expects() {
    let lengths: &[&[usize]] = &[&[1024; 20], &[4096; 15], &[64; 64], &[1024, 1024, 100], &[700], &[0; 5]];
    in_namespaces(
        9000,
        move |wire| {
            ip("link set va gso_max_segs 1");
            let mut port = open("udp:dev=va");
            for part in lengths {
                wire.wait();
                assert_eq!(send(&mut port, &flow("10.77.0.1", "10.77.0.2"), &payloads(part)), []);
                wire.go();
            }
            wire.wait();
        },
        move |wire| {
            let mut port = open("udp:dev=vb");
            let mut capture = Capture::new();
            for part in lengths {
                wire.go();
                wire.wait();
                let frames = capture.take(part.len());
                let ids: Vec<u16> = frames.iter().map(|f| checked_id(f)).collect();
                assert_eq!(ids, (0..part.len() as u16).collect::<Vec<_>>(), "{part:?}");
                let got = receive(&mut port, part.len());
                assert!(got.dropped.is_empty() && got.payloads() == payloads(part), "{part:?} {:?}", got.dropped);
            }
            wire.go();
        },
    );
}

/// Not ECN-capable, ECT(1), ECT(0) and CE, each on a train of its own: the kernel neither changes nor joins them.
#[test]
fn each_ecn_codepoint_crosses_the_kernel_on_both_versions_of_ip() {
    const PAIRS: [(&str, &str); 2] = [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")];
    in_namespaces(
        9000,
        |wire| {
            let mut port = open("udp:dev=va");
            wire.wait();
            for (src, dst) in PAIRS {
                for ecn in 0..4u8 {
                    let marked = Flow { tos: 26 << 2 | ecn, ..flow(src, dst) };
                    assert_eq!(send(&mut port, &marked, &payloads(&[1024; 5])), []);
                }
            }
            wire.go();
            wire.wait();
        },
        |wire| {
            let mut port = open("udp:dev=vb");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 40);
            assert!(got.dropped.is_empty(), "{:?}", got.dropped);
            for v6 in [false, true] {
                let seen: Vec<u8> =
                    got.frames.iter().filter(|(f, _)| f.src.is_ipv6() == v6).map(|(f, _)| f.tos).collect();
                let sent: Vec<u8> = (0..4).flat_map(|ecn| [26 << 2 | ecn; 5]).collect();
                assert_eq!(seen, sent, "IPv6: {v6}");
            }
            wire.go();
        },
    );
}

#[test]
fn trains_pass_a_veth_whole() {
    in_namespaces(
        9000,
        |wire| {
            let mut port = open("udp:dev=va");
            wire.wait();
            assert_eq!(send(&mut port, &flow("10.77.0.1", "10.77.0.2"), &payloads(&[4096; 100])), []);
            assert_eq!(send(&mut port, &flow("fd77::1", "fd77::2"), &payloads(&[4096; 100])), []);
            wire.go();
            wire.wait();
        },
        |wire| {
            let mut port = open("udp:dev=vb,strict_id");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 200);
            let counters = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            let by_kernel = ["snmp", "snmp6"].map(|name| counters(name).expect("a file of the kernel")).concat();
            assert_eq!((got.frames.len(), got.dropped.len()), (200, 0), "{by_kernel}");
            assert_eq!(port.ids_recovered(), 0);
            wire.go();
        },
    );
}

/// An IPv4 packet as another stack sends it: its own identification and source port, and UDP checksum 0 as soft-RoCE sends it.
fn foreign_v4(id: u16, body: &[u8]) -> Vec<u8> {
    let src_port = 51_234;
    let pseudo = PseudoV4 { id, ..PseudoV4::new("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap(), src_port) };
    let len = body.len() + 4;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&((IPV4 + UDP + len) as u16).to_be_bytes());
    packet.extend_from_slice(&id.to_be_bytes());
    packet.extend_from_slice(&[0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    for word in [src_port, 4791, (UDP + len) as u16, 0] {
        packet.extend_from_slice(&word.to_be_bytes());
    }
    packet.extend_from_slice(body);
    packet.extend_from_slice(&Icrc::ipv4(&pseudo, len, body).finish());
    packet
}

/// The UDP part of an IPv6 packet of another stack, checksum 0.
fn foreign_v6(body: &[u8]) -> Vec<u8> {
    let pseudo = PseudoV6::new("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap(), 51_234);
    let len = body.len() + 4;
    let mut packet = Vec::new();
    for word in [51_234, 4791, (UDP + len) as u16, 0] {
        packet.extend_from_slice(&word.to_be_bytes());
    }
    packet.extend_from_slice(body);
    packet.extend_from_slice(&Icrc::ipv6(&pseudo, len, body).finish());
    packet
}

/// Sends bytes by a raw socket: IPv4 with its header, IPv6 from the UDP header on.
fn send_raw(v6: bool, to: &str, packet: &[u8]) {
    let (family, protocol) = if v6 { (libc::AF_INET6, libc::IPPROTO_UDP) } else { (libc::AF_INET, libc::IPPROTO_RAW) };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW, protocol) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor without another owner; std's type only passes buffers to send_to.
    let socket = unsafe { std::net::UdpSocket::from_raw_fd(fd) };
    assert_eq!(socket.send_to(packet, (to, 0)).unwrap(), packet.len());
}

#[test]
fn packets_of_other_stacks_are_accepted() {
    let body = |i: u8| {
        let mut body = vec![i; 12 + 1024];
        body[1] = 0;
        body
    };
    in_namespaces(
        9000,
        move |wire| {
            wire.wait();
            for (i, id) in [10_717u16, 10_718, 0xffff, 1, 63].into_iter().enumerate() {
                send_raw(false, "10.77.0.2", &foreign_v4(id, &body(i as u8)));
            }
            send_raw(true, "fd77::2", &foreign_v6(&body(5)));
            let mut damaged = foreign_v4(7, &body(6));
            damaged[600] ^= 1;
            send_raw(false, "10.77.0.2", &damaged);
            wire.go();
            wire.wait();
            for id in [10_717u16, 63] {
                send_raw(false, "10.77.0.2", &foreign_v4(id, &body(id as u8)));
            }
            wire.go();
            wire.wait();
        },
        move |wire| {
            let mut port = open("udp:dev=vb");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 7);
            assert_eq!((got.frames.len(), &got.dropped[..]), (6, &[Reason::BadIcrc][..]));
            for i in 0..6u8 {
                let (flow, _) = got.frames.iter().find(|(_, b)| *b == body(i)).expect("each arrives");
                assert_eq!(flow.src_port, 51_234);
            }
            assert_eq!(port.ids_recovered(), 5);
            drop(port);
            let mut strict = open("udp:dev=vb,strict_id");
            wire.go();
            wire.wait();
            let got = receive(&mut strict, 2);
            assert_eq!((got.frames.len(), &got.dropped[..]), (1, &[Reason::BadIcrc][..]));
            assert_eq!(got.frames[0].1, body(63));
            wire.go();
        },
    );
}

#[test]
fn packets_longer_than_the_path_have_a_reason() {
    in_namespaces(
        1500,
        |wire| {
            let mut port = open("udp:dev=va");
            assert_eq!(port.caps().link_mtu, 1500);
            wire.wait();
            let to = flow("10.77.0.1", "10.77.0.2");
            assert_eq!(send(&mut port, &to, &payloads(&[4096; 3])), [Reason::SendTooLong; 3]);
            assert_eq!(send(&mut port, &to, &payloads(&[4096])), [Reason::SendTooLong]);
            // Trains are still used afterwards: 5 packets of 1024 bytes arrive as one.
            assert_eq!(send(&mut port, &to, &payloads(&[1024; 5])), []);
            assert_eq!(receive(&mut port, 1).dropped, [], "an own refusal is not counted twice");
            wire.go();
            wire.wait();
        },
        |wire| {
            let mut port = open("udp:dev=vb,strict_id");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 5);
            assert_eq!((got.frames.len(), got.dropped.len(), port.ids_recovered()), (5, 0, 0));
            wire.go();
        },
    );
}

#[test]
fn changes_of_addresses_mtu_and_state_are_applied() {
    in_namespaces(
        1500,
        |wire| {
            wire.wait();
            let mut port = open("udp:dev=va");
            let ips = |port: &dyn Port| port.caps().addrs.iter().map(|a| a.ip.to_string()).collect::<Vec<_>>();
            let has = |port: &dyn Port, ip: &str| ips(port).contains(&ip.to_owned());
            assert!(port.caps().up && has(&port, "10.77.0.1") && has(&port, "fd77::1"));
            ip("addr add 10.77.9.1/24 dev va");
            ip("addr del 10.77.0.1/24 dev va");
            ip("link set va mtu 9000");
            assert!(port.refresh());
            assert_eq!(port.caps().link_mtu, 9000);
            assert!(has(&port, "10.77.9.1") && !has(&port, "10.77.0.1"));
            assert_eq!(ips(&port)[0], "10.77.9.1", "IPv4 first");
            assert!(!port.refresh());
            // The new socket works, for packets to its own address.
            assert_eq!(send(&mut port, &flow("10.77.9.1", "10.77.9.1"), &payloads(&[512; 4])), []);
            assert_eq!(receive(&mut port, 4).frames.len(), 4);
            assert_eq!(send(&mut port, &flow("10.77.0.1", "10.77.9.1"), &payloads(&[4])), [Reason::SendFailed]);
            ip("link set va down");
            assert!(port.refresh() && !port.caps().up);
            ip("link del va");
            assert!(port.refresh() && port.caps().addrs.is_empty());
            wire.go();
        },
        |wire| {
            wire.go();
            wire.wait();
        },
    );
}

#[test]
fn interfaces_without_addresses_and_link_local_ones() {
    in_namespaces(
        1500,
        |wire| {
            ip("addr flush dev va");
            let error =
                PortSpec::parse("udp:dev=va").and_then(|s| burst_port::open(&s, &Encapsulation::ROCE)).err().unwrap();
            assert!(matches!(error, PortError::Netif(burst_netif::NetifError::NoAddress { .. })), "{error}");
            assert!(error.to_string().contains("ip addr add"), "{error}");
            // Only lo has an address, so it is chosen.
            assert_eq!(burst_netif::iface::choose().unwrap().name, "lo");
            ip("addr add fe80::77/64 dev va nodad");
            assert_eq!(burst_netif::iface::choose().unwrap().name, "va");
            let mut port = open("udp:dev=va");
            let scope = port.caps().addrs[0].ifindex;
            wire.wait();
            let flow = burst_frame::Flow { scope, ..flow("fe80::77", "fe80::78") };
            assert_eq!(send(&mut port, &flow, &payloads(&[1024; 3])), []);
            wire.go();
            wire.wait();
        },
        |wire| {
            ip("addr add fe80::78/64 dev vb nodad");
            let mut port = open("udp:dev=vb,addr=fe80::78");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 3);
            assert_eq!((got.frames.len(), got.dropped.len()), (3, 0));
            assert_eq!(got.frames[0].0.scope, port.caps().addrs[0].ifindex);
            wire.go();
        },
    );
}
