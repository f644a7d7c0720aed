//! The `packet` port on a veth between two network namespaces: the frames that it sends, the frames that it accepts, and changes
//! of the link, its addresses and its neighbours. Needs root; skipped with a message otherwise.

mod common;

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::ether::{HeaderTemplate, IcrcSeal, LinkHeader, UdpChecksum};
use burst_port::packet::PacketPort;
use burst_port::{Encapsulation, Port, PortError, PortKind, PortSpec, ReceivePressure};
use burst_wire::{Ip, Layers, MacAddr};
use common::wire::{Capture, ETHERNET, IPV4, Injector, in_namespaces, ip, mac_of, run};
use common::{Collect, Deadline, flow, payloads, push_qpn, receive, receive_for, send};
use std::net::IpAddr;
use std::time::Duration;

fn open(text: &str) -> PacketPort {
    open_worker(text, 0, 1)
}

fn open_worker(text: &str, worker: usize, workers: usize) -> PacketPort {
    let spec = PortSpec::parse(text).unwrap();
    let PortKind::Packet(packet) = &spec.kind else { panic!("a packet port") };
    when_free(|| PacketPort::open(packet, &Encapsulation::ROCE, text, worker, workers))
}

/// Opens a port, again while its address is in use: a program that a test beside this one starts holds the sockets of a port
/// that has just been closed from its fork to its exec.
fn when_free<T>(open: impl Fn() -> Result<T, PortError>) -> T {
    let mut deadline = Deadline::new(Duration::from_secs(10));
    loop {
        match open() {
            Err(PortError::InUse { .. }) if deadline.nap() => {}
            result => return result.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// Sends one packet and waits until it has arrived; the next hop is resolved then.
fn resolve_next_hop(port: &mut PacketPort, flow: &Flow) {
    assert_eq!(send(port, flow, &payloads(&[8])), []);
    let mut deadline = Deadline::new(Duration::from_millis(300));
    while deadline.nap() {
        let _ = port.rx_burst(Nanos(0), 1, &mut Collect::default());
    }
}

const V4: (&str, &str) = ("10.77.0.1", "10.77.0.2");
const V6: (&str, &str) = ("fd77::1", "fd77::2");

#[test]
fn frames_on_the_wire_are_exact() {
    let lengths: &[&[usize]] = &[&[1024; 20], &[4096; 15], &[64; 64], &[1024, 1024, 100], &[700], &[0; 5]];
    let flow_of =
        |(src, dst)| Flow { src_port: 50_123, tos: 0x6a, hop_limit: 9, flow_label: 0xabcde, ..flow(src, dst) };
    in_namespaces(
        9000,
        move |wire| {
            // The kernel segments trains before the wire.
            run("ethtool", "-K va tx-checksum-ip-generic off");
            let mut port = open("packet:dev=va");
            for family in [V4, V6] {
                wire.wait();
                resolve_next_hop(&mut port, &flow_of(family));
                wire.go();
                for part in lengths {
                    wire.wait();
                    assert_eq!(send(&mut port, &flow_of(family), &payloads(part)), []);
                    wire.go();
                }
            }
            wire.wait();
        },
        move |wire| {
            let mut port = open("packet:dev=vb");
            let mut capture = Capture::new();
            for _ in [V4, V6] {
                wire.go();
                wire.wait();
                assert_eq!(capture.take(1).len(), 1, "the first packet, by way of the kernel");
                assert_eq!(receive(&mut port, 1).frames.len(), 1);
                for part in lengths {
                    wire.go();
                    wire.wait();
                    let frames = capture.take(part.len());
                    for (number, frame) in frames.iter().enumerate() {
                        let layers = Layers::parse(frame).unwrap();
                        assert_eq!(layers.computed_icrc(), layers.icrc, "{part:?} {number}");
                        assert_eq!(layers.udp.src_port, 50_123);
                        assert_eq!(layers.ethernet.dst, MacAddr(mac_of("vb")));
                        match layers.ip {
                            Ip::V4(ip) => {
                                assert_eq!((ip.id, ip.flags_fragment), (number as u16, 0x4000));
                                assert_eq!((ip.tos, ip.ttl), (0x6a, 9));
                                assert_eq!(ip.checksum, ip.computed_checksum());
                            }
                            Ip::V6(ip) => {
                                let seen = (ip.traffic_class, ip.hop_limit, ip.flow_label);
                                assert_eq!(seen, (0x6a, 9, 0xabcde));
                                assert_ne!(layers.udp.checksum, 0);
                            }
                        }
                    }
                    assert_eq!(frames.len(), part.len());
                    let got = receive(&mut port, part.len());
                    assert!(got.dropped.is_empty() && got.payloads() == payloads(part), "{part:?} {:?}", got.dropped);
                    let seen = got.frames[0].0;
                    assert_eq!((seen.tos, seen.hop_limit, seen.src_port), (0x6a, 9, 50_123));
                }
            }
            wire.go();
        },
    );
}

#[test]
fn trains_pass_whole_between_ports_of_both_kinds() {
    let lengths = [4096; 100];
    in_namespaces(
        9000,
        move |wire| {
            for text in ["packet:dev=va", "packet:dev=va", "udp:dev=va"] {
                let mut port = when_free(|| burst_port::open(&PortSpec::parse(text).unwrap(), &Encapsulation::ROCE));
                wire.wait();
                for (src, dst) in [V4, V6] {
                    assert_eq!(send(&mut *port, &flow(src, dst), &payloads(&[12])), []);
                    wire.go();
                    wire.wait();
                    let _ = port.rx_burst(Nanos(0), 64, &mut Collect::default());
                    assert_eq!(send(&mut *port, &flow(src, dst), &payloads(&lengths)), []);
                    wire.go();
                    wire.wait();
                }
                drop(port);
                wire.go();
            }
        },
        move |wire| {
            for text in ["packet:dev=vb,gro=off", "udp:dev=vb,strict_id", "packet:dev=vb,gro=off"] {
                let mut port = when_free(|| burst_port::open(&PortSpec::parse(text).unwrap(), &Encapsulation::ROCE));
                wire.go();
                for _ in [V4, V6] {
                    wire.wait();
                    assert_eq!(receive(&mut *port, 1).payloads(), payloads(&[12]), "{text}");
                    wire.go();
                    wire.wait();
                    let got = receive(&mut *port, 100);
                    assert!(got.dropped.is_empty() && got.payloads() == payloads(&lengths), "{text} {:?}", got.dropped);
                    wire.go();
                }
                drop(port);
                wire.wait();
            }
        },
    );
}

/// A valid frame from 10.77.0.1 or fd77::1 to vb, with `len` bytes after the BTH.
fn good(v6: bool, dst_mac: [u8; 6], len: usize, id: u16) -> Vec<u8> {
    let (src, dst) = if v6 { V6 } else { V4 };
    let flow = Flow { src_port: 50_000, ..flow(src, dst) };
    let link = LinkHeader { src: MacAddr([2, 0, 0, 0, 0, 9]), dst: MacAddr(dst_mac), vlan: None };
    let template = HeaderTemplate::new(&link, &flow, 50_000, 4791).unwrap();
    let mut frame = vec![0; template.header_len()];
    template.write(&mut frame, id, 12 + len + 4, UdpChecksum::Zero);
    let mut body = vec![0x0a, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 1];
    body.extend((0..len).map(|i| i as u8));
    frame.extend_from_slice(&body);
    let icrc = IcrcSeal::new(flow.src, flow.dst, 50_000, 4791).unwrap().begin(id, 12 + len + 4, &body).finish();
    frame.extend_from_slice(&icrc);
    template.complete_checksum(&mut frame);
    frame
}

/// Corrects the IPv4 header's checksum.
fn fix_ip(frame: &mut [u8]) {
    let header = burst_wire::Ipv4::parse(&frame[ETHERNET..]).unwrap();
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&header.computed_checksum().to_be_bytes());
}

/// `frame` after `change`; the IPv4 header's checksum is corrected afterwards if `fix`.
fn changed(mut frame: Vec<u8>, fix: bool, change: &dyn Fn(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut frame);
    if fix {
        fix_ip(&mut frame);
    }
    frame
}

/// Frames, each with its expected result.
fn defects(mac: [u8; 6]) -> Vec<(&'static str, Vec<u8>, Option<Reason>)> {
    let v4 = || good(false, mac, 64, 0x1234);
    let v6 = || good(true, mac, 64, 0);
    let udp4 = ETHERNET + IPV4;
    let no_checksum = move |f: &mut Vec<u8>| f[udp4 + 6..udp4 + 8].fill(0);
    vec![
        ("a valid frame", v4(), None),
        ("a valid frame", v6(), None),
        ("without a UDP checksum", changed(v4(), false, &no_checksum), None),
        ("with Ethernet padding", changed(v4(), false, &|f| f.extend_from_slice(&[0; 7])), None),
        ("another MAC address", changed(v4(), false, &|f| f[5] ^= 1), Some(Reason::NotOurs)),
        (
            "another IP address",
            changed(v4(), true, &|f| {
                no_checksum(f);
                f[ETHERNET + 19] = 77;
            }),
            Some(Reason::NotOurs),
        ),
        (
            "another IPv6 address",
            changed(v6(), false, &|f| {
                f[ETHERNET + 39] = 0x77;
                f[ETHERNET + 46..ETHERNET + 48].fill(0);
            }),
            Some(Reason::NotOurs),
        ),
        ("IP checksum", changed(v4(), false, &|f| f[ETHERNET + 10] ^= 1), Some(Reason::BadIpHeader)),
        (
            "IP options",
            changed(v4(), false, &|f| {
                f[ETHERNET] = 0x46;
                f.splice(ETHERNET + IPV4..ETHERNET + IPV4, [1, 1, 1, 0]);
            }),
            Some(Reason::BadIpHeader),
        ),
        ("UDP checksum", changed(v4(), false, &|f| f[udp4 + 6] ^= 1), Some(Reason::BadUdpChecksum)),
        ("damaged payload", changed(v4(), false, &|f| f[udp4 + 30] ^= 1), Some(Reason::BadUdpChecksum)),
        (
            "damaged payload without a checksum",
            changed(v4(), false, &|f| {
                no_checksum(f);
                f[udp4 + 30] ^= 1;
            }),
            Some(Reason::BadIcrc),
        ),
        ("an identification changed on the way", changed(v4(), true, &|f| f[ETHERNET + 5] ^= 1), Some(Reason::BadIcrc)),
        (
            "the port's own address as source",
            changed(v4(), true, &|f| f[ETHERNET + 15] = 2),
            Some(Reason::BadUdpChecksum),
        ),
        (
            "the port's own address as source, no checksum",
            changed(v4(), true, &|f| {
                no_checksum(f);
                f[ETHERNET + 15] = 2;
            }),
            Some(Reason::WrongSource),
        ),
        ("first fragment", changed(v4(), true, &|f| f[ETHERNET + 6] = 0x20), Some(Reason::Fragment)),
        ("UDP length too long", changed(v4(), false, &|f| f[udp4 + 5] += 1), Some(Reason::Truncated)),
        ("cut short", changed(v4(), false, &|f| f.truncate(90)), Some(Reason::Truncated)),
        ("a short transport part", good_but_short(mac), Some(Reason::Truncated)),
        ("oversize", good(false, mac, 4300, 3), Some(Reason::Oversize)),
        ("the longest", good(false, mac, 4096 + 12, 3), None),
    ]
}

/// A datagram of 8 bytes: less than a BTH.
fn good_but_short(mac: [u8; 6]) -> Vec<u8> {
    let link = LinkHeader { src: MacAddr([2, 0, 0, 0, 0, 9]), dst: MacAddr(mac), vlan: None };
    let template = HeaderTemplate::new(&link, &flow(V4.0, V4.1), 50_000, 4791).unwrap();
    let mut frame = vec![0; template.header_len() + 8];
    template.write(&mut frame, 5, 8, UdpChecksum::Zero);
    frame
}

/// An IPv6 fragment header in front of a UDP header: the first fragment of a RoCEv2 packet.
fn v6_fragment(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = good(true, mac, 64, 0);
    frame[ETHERNET + 6] = 44;
    let fragment = [17, 0, 0, 1, 0, 0, 0, 7];
    frame.splice(ETHERNET + 40..ETHERNET + 40, fragment);
    frame
}

#[test]
fn every_defect_is_dropped_with_its_reason() {
    in_namespaces(
        9000,
        |wire| {
            // The other side sends frames to any MAC address, as a switch that floods does.
            wire.wait();
            let mac: [u8; 6] = std::array::from_fn(|i| [2, 0, 0, 0, 0, 2][i]);
            let mut injector = Injector::new("va");
            for (_, frame, _) in defects(mac) {
                injector.send(&frame);
                wire.go();
                wire.wait();
            }
            for frame in [v6_fragment(mac), tagged(&good(false, mac, 64, 1), 7), tagged(&good(false, mac, 64, 1), 0)] {
                injector.send(&frame);
                wire.go();
                wire.wait();
            }
        },
        |wire| {
            ip("link set vb address 02:00:00:00:00:02 promisc on");
            let mut port = open("packet:dev=vb");
            wire.go();
            for (what, frame, reason) in defects(mac_of("vb")) {
                wire.wait();
                let got = receive(&mut port, 1);
                match reason {
                    Some(reason) => assert_eq!((got.frames.len(), &got.dropped[..]), (0, &[reason][..]), "{what}"),
                    None => assert_eq!(got.frames.len(), 1, "{what} ({} bytes): {:?}", frame.len(), got.dropped),
                }
                wire.go();
            }
            for reason in [Some(Reason::Fragment), Some(Reason::ForeignVlan), None] {
                wire.wait();
                let got = receive(&mut port, 1);
                assert_eq!(got.dropped.first().copied(), reason);
                assert_eq!(got.frames.len(), usize::from(reason.is_none()));
                wire.go();
            }
        },
    );
}

/// Bytes of each packet in [`train`], from BTH to ICRC; the last one has fewer.
const STRIDE: usize = 1040;

/// A virtio header and a train from 10.77.0.1 or fd77::1 to vb with identification `id` in its header: packets whose ICRCs cover
/// `ids`, the last of them shorter. Packet number `damage` has a flipped bit.
fn train(v6: bool, mac: [u8; 6], id: u16, ids: &[u16], damage: Option<usize>) -> Vec<u8> {
    let (src, dst) = if v6 { V6 } else { V4 };
    let flow = Flow { src_port: 50_000, ..flow(src, dst) };
    let link = LinkHeader { src: MacAddr([2, 0, 0, 0, 0, 9]), dst: MacAddr(mac), vlan: None };
    let template = HeaderTemplate::new(&link, &flow, 50_000, 4791).unwrap();
    let mut seal = IcrcSeal::new(flow.src, flow.dst, 50_000, 4791).unwrap();
    let mut packets = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let len = if number + 1 < ids.len() { STRIDE } else { STRIDE / 2 };
        let at = packets.len();
        packets.extend((0..len - 4).map(|i| (i + number) as u8));
        let icrc = seal.begin(*id, len, &packets[at..]).finish();
        packets.extend_from_slice(&icrc);
        if damage == Some(number) {
            packets[at + 77] ^= 4;
        }
    }
    // The kernel or the NIC completes each packet's checksum at `udp_at`, 6 bytes behind the begin of the UDP header.
    let (header_len, udp_at) = (template.header_len() as u16, template.udp_at() as u16);
    let mut bytes = vec![1, 5];
    for field in [header_len, STRIDE as u16, udp_at, 6] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    let at = bytes.len();
    bytes.resize(at + template.header_len(), 0);
    template.write(&mut bytes[at..], id, packets.len(), UdpChecksum::Partial);
    bytes.extend_from_slice(&packets);
    bytes
}

/// Packets of full length in a train.
const FULL: usize = 30;

/// A train and its expected result.
struct Case {
    what: &'static str,
    bytes: Vec<u8>,
    /// Index of the packet that is refused.
    refused: Option<usize>,
    /// Whether all packets of full length are delivered as one train.
    whole: bool,
    /// Number of identifications that are recovered.
    recovered: u64,
}

fn cases(mac: [u8; 6]) -> Vec<Case> {
    let count_on = |id: u16| (0..=FULL as u16).map(|i| id.wrapping_add(i)).collect::<Vec<_>>();
    let good = |what, v6, id: u16| {
        let bytes = train(v6, mac, id, &count_on(id), None);
        Case { what, bytes, refused: None, whole: true, recovered: 0 }
    };
    let damaged = |what, v6, at| {
        let bytes = train(v6, mac, 700, &count_on(700), Some(at));
        Case { what, bytes, refused: Some(at), whole: at == FULL, recovered: 0 }
    };
    let odd = |what, id, ids: &[u16], refused| Case {
        what,
        bytes: train(false, mac, id, ids, None),
        refused,
        whole: false,
        recovered: 1,
    };
    let mut jump = count_on(700);
    jump[20..].iter_mut().for_each(|id| *id += 5);
    let mut list = vec![
        good("good", false, 700),
        good("good over IPv6", true, 0),
        good("beyond the highest identification", false, 0xfffa),
        odd("another identification in the header", 699, &count_on(700), Some(0)),
        odd("a jump", 700, &jump, None),
        odd("always 0", 0, &[0; FULL + 1], None),
    ];
    for v6 in [false, true] {
        for (what, at) in [("first", 0), ("middle", 13), ("last of full length", FULL - 1), ("odd last", FULL)] {
            list.push(damaged(what, v6, at));
        }
    }
    list
}

#[test]
fn trains_are_delivered_whole_or_packet_by_packet() {
    in_namespaces(
        9000,
        |wire| {
            let mut injector = Injector::of_trains("va");
            wire.wait();
            for case in cases([2, 0, 0, 0, 0, 2]) {
                injector.send(&case.bytes);
                wire.go();
                wire.wait();
            }
        },
        |wire| {
            ip("link set vb address 02:00:00:00:00:02 promisc on");
            for Case { what, refused, whole, recovered, .. } in cases(mac_of("vb")) {
                // A new port, which has not seen a bad train yet.
                let mut port = open("packet:dev=vb");
                wire.go();
                wire.wait();
                let (mut got, mut deadline) = (Collect::default(), Deadline::new(Duration::from_secs(2)));
                while got.frames.len() + got.dropped.len() < FULL + 1 && deadline.nap() {
                    port.rx_burst(Nanos(0), 64, &mut got);
                }
                assert_eq!(got.dropped, vec![Reason::BadIcrc; refused.into_iter().len()], "{what}");
                let numbers = (0..=FULL).filter(|number| refused != Some(*number));
                assert!(got.frames.iter().map(|(_, bytes)| usize::from(bytes[0])).eq(numbers), "{what}");
                assert_eq!(
                    (got.trains, port.ids_recovered()),
                    (if whole { vec![FULL] } else { vec![] }, recovered),
                    "{what}"
                );
            }
            wire.go();
        },
    );
}

fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    let mut out = frame.to_vec();
    let tag = [0x81, 0x00, (tag >> 8) as u8, tag as u8];
    out.splice(12..12, tag);
    out
}

#[test]
fn next_hops_are_resolved_updated_and_reported_as_failed() {
    in_namespaces(
        1500,
        |wire| {
            let mut port = open("packet:dev=va");
            wire.wait();
            // The next hop is unresolved: the first packets are sent nevertheless.
            assert_eq!(send(&mut port, &flow(V4.0, V4.1), &payloads(&[100; 3])), []);
            wire.go();
            wire.wait();
            // The peer has a new MAC address, and announces it.
            let got = receive_for(&mut port, Duration::from_millis(100));
            assert_eq!(got.dropped, []);
            assert_eq!(send(&mut port, &flow(V4.0, V4.1), &payloads(&[100; 3])), []);
            wire.go();
            wire.wait();
            // There is no such neighbour, and no such route.
            assert_eq!(send(&mut port, &flow(V4.0, "10.77.0.99"), &payloads(&[100])), []);
            assert_eq!(send(&mut port, &flow(V4.0, "192.0.2.1"), &payloads(&[100])), [Reason::NoRoute]);
            assert_eq!(send(&mut port, &flow(V4.0, V4.1), &payloads(&[1600])), [Reason::SendTooLong]);
            let (mut reasons, mut looks) = (Vec::new(), 0..400);
            while reasons.is_empty() && looks.next().is_some() {
                reasons = receive_for(&mut port, Duration::from_millis(20)).dropped;
            }
            assert_eq!(reasons, [Reason::NoNeighbour]);
            // A new route is used; its gateway is the peer.
            ip("route add 192.0.2.0/24 via 10.77.0.2");
            receive_for(&mut port, Duration::from_millis(50));
            assert_eq!(send(&mut port, &flow(V4.0, "192.0.2.1"), &payloads(&[100])), []);
            wire.go();
            wire.wait();
        },
        |wire| {
            ip("addr add 192.0.2.1/32 dev vb");
            let mut port = open("packet:dev=vb");
            wire.go();
            wire.wait();
            assert_eq!(receive(&mut port, 3).payloads(), payloads(&[100; 3]));
            ip("link set vb address 02:00:00:00:00:99");
            let mut injector = Injector::new("vb");
            injector.send(&gratuitous_arp(mac_of("vb")));
            receive_for(&mut port, Duration::from_millis(50));
            wire.go();
            wire.wait();
            assert_eq!(receive(&mut port, 3).payloads(), payloads(&[100; 3]));
            wire.go();
            wire.wait();
            let got = receive(&mut port, 1);
            assert_eq!((got.frames.len(), got.frames[0].0.dst), (1, "192.0.2.1".parse().unwrap()));
            wire.go();
        },
    );
}

/// 10.77.0.2 solicits its own address, so that all hosts learn its new MAC address.
fn gratuitous_arp(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[10, 77, 0, 2]);
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&[10, 77, 0, 1]);
    frame
}

#[test]
fn packets_to_own_addresses_are_delivered() {
    in_namespaces(
        1500,
        |wire| {
            let mut port = open("packet:dev=va");
            let to = Flow { tos: 0x43, ..flow(V4.0, V4.0) };
            assert_eq!(port.next_event(), Nanos::NEVER);
            assert_eq!(send(&mut port, &to, &payloads(&[1024; 40])), []);
            assert_eq!(port.next_event(), Nanos(0), "there is something without a descriptor being readable");
            let got = receive(&mut port, 40);
            assert_eq!((got.payloads(), got.frames[0].0.tos), (payloads(&[1024; 40]), 0x43));
            assert_eq!(port.next_event(), Nanos::NEVER);
            // On the loopback interface: two ports, frames over lo.
            let (mut one, mut two) = (open("packet:dev=lo,addr=127.0.0.1"), open("packet:dev=lo,addr=127.0.0.2"));
            assert_eq!(send(&mut one, &flow("127.0.0.1", "127.0.0.2"), &payloads(&[4096; 40])), []);
            let got = receive(&mut two, 40);
            assert_eq!((got.payloads(), got.dropped.len()), (payloads(&[4096; 40]), 0));
            wire.wait();
        },
        |wire| wire.go(),
    );
}

#[test]
fn groups_are_joined_and_left() {
    let groups = ["239.7.7.7", "ff15::7:7"];
    in_namespaces(
        1500,
        move |wire| {
            let mut port = open("packet:dev=va");
            let froms = ["10.77.0.1", "fd77::1"];
            for round in 0..2 {
                wire.wait();
                for (group, from) in groups.iter().zip(froms) {
                    assert_eq!(send(&mut port, &flow(from, group), &payloads(&[64; 2])), [], "{round}");
                    assert!(!port.caps().addrs.is_empty());
                }
                wire.go();
            }
            wire.wait();
            // The port's own packets to the group are delivered once it has joined.
            port.join(groups[0].parse().unwrap()).unwrap();
            assert_eq!(send(&mut port, &flow(froms[0], groups[0]), &payloads(&[64; 2])), []);
            assert_eq!(receive(&mut port, 2).payloads(), payloads(&[64; 2]));
            let error = open("packet:dev=lo,addr=127.0.0.3").join(groups[0].parse().unwrap()).unwrap_err();
            assert!(matches!(error, PortError::Unsupported { .. }), "{error}");
        },
        move |wire| {
            let mut port = open("packet:dev=vb");
            let ips = groups.map(|g| g.parse::<IpAddr>().unwrap());
            for group in ips {
                port.join(group).unwrap();
                port.join(group).unwrap();
            }
            assert!(port.join(V4.0.parse().unwrap()).is_err());
            wire.go();
            wire.wait();
            let got = receive(&mut port, 4);
            assert_eq!((got.frames.len(), got.dropped.len()), (4, 0), "{:?}", got.dropped);
            assert!(ips.iter().all(|ip| got.frames.iter().filter(|(f, _)| f.dst == *ip).count() == 2));
            ips.iter().for_each(|group| port.leave(*group));
            wire.go();
            wire.wait();
            let got = receive_for(&mut port, Duration::from_millis(50));
            assert!(got.frames.is_empty() && got.dropped.iter().all(|r| *r == Reason::NotOurs), "{:?}", got.dropped);
            wire.go();
        },
    );
}

#[test]
fn workers_share_frames_by_queue_pair() {
    in_namespaces(
        1500,
        |wire| {
            let mut port = open("packet:dev=va");
            for (src, dst) in [V4, V6] {
                wire.wait();
                resolve_next_hop(&mut port, &flow(src, dst));
                let bytes = payloads(&[100; 30]);
                let mut batch = TxBatch::new(30);
                for (i, payload) in bytes.iter().enumerate() {
                    // One packet at a time, because a train goes to the worker of its first packet.
                    batch.clear();
                    push_qpn(&mut batch, &flow(src, dst), payload, 0x100 + i as u32 % 3);
                    port.tx_burst(Nanos(0), &batch, &mut |reason| panic!("{reason}"));
                }
                wire.go();
            }
            wire.wait();
        },
        |wire| {
            let mut ports: Vec<PacketPort> = (0..3).map(|w| open_worker("packet:dev=vb", w, 3)).collect();
            for _ in [V4, V6] {
                wire.go();
                wire.wait();
                for (worker, port) in ports.iter_mut().enumerate() {
                    let got = receive_for(port, Duration::from_millis(50));
                    let mine = |b: &[u8]| u32::from_be_bytes([0, b[5], b[6], b[7]]) == 0x100 + worker as u32;
                    let frames: Vec<_> = got.frames.iter().filter(|(_, b)| b.len() > 50).collect();
                    assert_eq!((frames.len(), got.dropped.len()), (10, 0), "worker {worker}");
                    assert!(frames.iter().all(|(_, b)| mine(b)), "worker {worker}");
                }
            }
            wire.go();
        },
    );
}

#[test]
fn the_interface_may_change_vanish_and_come_back() {
    in_namespaces(
        1500,
        |wire| {
            wire.wait();
            let mut port = open("packet:dev=va");
            port.time_arrivals();
            let ips = |port: &PacketPort| port.caps().addrs.iter().map(|a| a.ip.to_string()).collect::<Vec<_>>();
            assert!(port.caps().up && ips(&port)[0] == V4.0);
            ip("addr add 10.77.9.1/24 dev va");
            ip("addr del 10.77.0.1/24 dev va");
            ip("link set va mtu 9000");
            // The port applies the netlink event before `refresh` is called.
            receive_for(&mut port, Duration::from_millis(50));
            assert!(port.caps().link_mtu == 9000 && ips(&port)[0] == "10.77.9.1", "{:?}", ips(&port));
            assert!(port.refresh() && !port.refresh());
            assert_eq!(send(&mut port, &flow("10.77.9.1", "10.77.9.1"), &payloads(&[512])), []);
            assert_eq!(receive(&mut port, 1).frames.len(), 1);
            ip("link set va down");
            receive_for(&mut port, Duration::from_millis(50));
            assert!(!port.caps().up && port.refresh());
            let _ = send(&mut port, &flow("10.77.9.1", "10.77.9.2"), &payloads(&[4; 3]));
            ip("link del va");
            receive_for(&mut port, Duration::from_millis(50));
            assert!(port.caps().addrs.is_empty() && !port.caps().up);
            assert_ne!(send(&mut port, &flow("10.77.9.1", "10.77.9.2"), &payloads(&[4])), []);
            // Another interface of the same name.
            ip("link add va type veth peer name vx");
            ip("addr add 10.77.0.1/24 dev va");
            ip("link set va up");
            ip("link set vx up");
            receive_for(&mut port, Duration::from_millis(100));
            assert!(port.caps().up && ips(&port)[0] == V4.0, "{:?}", port.caps());
            ip("neigh add 10.77.0.7 lladdr 02:00:00:00:00:07 dev va");
            let mut capture = Capture::new();
            assert_eq!(send(&mut port, &flow(V4.0, "10.77.0.7"), &payloads(&[256; 4])), []);
            assert!(!capture.take(1).is_empty());
            // The port receives again.
            let mut frame = good(false, mac_of("va"), 20, 1);
            frame[ETHERNET + 12..ETHERNET + 20].copy_from_slice(&[10, 77, 0, 2, 10, 77, 0, 1]);
            fix_ip(&mut frame);
            Injector::new("vx").send(&frame);
            // By a clock that is long after the arrival: the new socket tells times of arrival, too.
            let mut got = Collect::default();
            let mut deadline = Deadline::new(Duration::from_secs(20));
            while got.dropped.len() + got.frames.len() < 1 && deadline.nap() {
                port.rx_burst(Nanos(u64::MAX >> 1), 64, &mut got);
            }
            assert_eq!((got.dropped.len() + got.frames.len(), &got.waits[..]), (1, &[Nanos::from_ms(1_000)][..]));
            wire.go();
        },
        |wire| {
            wire.go();
            wire.wait();
        },
    );
}

#[test]
fn the_kernel_sends_no_errors_and_refusals_are_sentences() {
    in_namespaces(
        9000,
        |wire| {
            let mut port = open("packet:dev=va");
            let mut capture = Capture::new();
            wire.wait();
            for (src, dst) in [V4, V6] {
                resolve_next_hop(&mut port, &flow(src, dst));
                assert_eq!(send(&mut port, &flow(src, dst), &payloads(&[4096; 30])), []);
            }
            wire.go();
            wire.wait();
            let answers: Vec<_> = capture.all(Duration::from_millis(200)).into_iter().filter(|f| is_error(f)).collect();
            assert!(answers.is_empty(), "{answers:x?}");
            // The UDP port is taken: the sentence names the holder and the remedy.
            let error = burst_port::open(&PortSpec::parse("udp:dev=va").unwrap(), &Encapsulation::ROCE).err().unwrap();
            assert!(matches!(error, PortError::InUse { .. }), "{error}");
            let error =
                burst_port::open(&PortSpec::parse("packet:dev=va").unwrap(), &Encapsulation::ROCE).err().unwrap();
            assert!(matches!(error, PortError::InUse { .. }), "{error}");
            drop(port);
            ip("addr flush dev va");
            let error =
                burst_port::open(&PortSpec::parse("packet:dev=va").unwrap(), &Encapsulation::ROCE).err().unwrap();
            assert!(matches!(error, PortError::Netif(burst_netif::NetifError::NoAddress { .. })), "{error}");
            wire.go();
        },
        |wire| {
            let mut port = open("packet:dev=vb");
            wire.go();
            wire.wait();
            let got = receive(&mut port, 62);
            assert_eq!((got.frames.len(), got.dropped.len()), (62, 0));
            wire.go();
            wire.wait();
        },
    );
}

/// Whether a frame is ICMP or ICMPv6 destination unreachable.
fn is_error(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame[ETHERNET + 9] == 1 && frame[ETHERNET + 20] == 3,
        Some([0x86, 0xdd]) => frame[ETHERNET + 6] == 58 && frame[ETHERNET + 40] == 1,
        _ => false,
    }
}

#[test]
fn the_fill_of_the_socket_s_buffer_is_told() {
    in_namespaces(
        1500,
        |wire| {
            let mut port = open("packet:dev=va");
            wire.wait();
            let flow = flow(V4.0, V4.1);
            resolve_next_hop(&mut port, &flow);
            for count in [100, 1000] {
                assert_eq!(send(&mut port, &flow, &payloads(&vec![1024; count])), []);
                wire.go();
                wire.wait();
            }
        },
        |wire| {
            let mut port = open("packet:dev=vb,rcvbuf=500K");
            wire.go();
            wire.wait();
            // After trains a call takes few of them, so that there is something left to look at.
            let mut sink = Collect::default();
            while port.rx_burst(Nanos(0), 1000, &mut sink) > 0 {}
            assert!(sink.frames.len() >= 100, "and what resolved the next hop");
            wire.go();
            wire.wait();
            let mut sink = Collect::default();
            port.rx_burst(Nanos(0), 1000, &mut sink);
            assert!(sink.frames.len() < 1000, "more than the buffer holds");
            assert_eq!(sink.pressure, [ReceivePressure::ThreeQuarters]);
            let mut sink = Collect::default();
            while port.rx_burst(Nanos(0), 1000, &mut sink) > 0 {}
            port.rx_burst(Nanos(0), 1000, &mut sink);
            assert_eq!(sink.pressure, [ReceivePressure::Free]);
            wire.go();
        },
    );
}
