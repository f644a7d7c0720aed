//! Captured packets of Linux soft-RoCE are parsed, written again byte for byte, and their ICRCs verified.

use burst_base::Reason;
use burst_wire::icrc::{IdDelta, PseudoV4, len_after_id, recover_ipv4_id};
use burst_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, HeadBuf, ICRC_LEN, Icrc, ImmDt, Ip, Ipv4, Ipv6, Layers,
    MAD_LEN, MadHeader, MgmtClass, NakCode, OpKind, Opcode, Packet, Syndrome, Udp,
};
use pcap_file::pcap::PcapReader;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Each capture and how often each opcode occurs in it, as another dissector counted them.
const CAPTURES: [(&str, &str); 32] = [
    ("ack-lost", "0x2 2x2 12x2 16x2 17x3 18x2 20x2"),
    ("cm-peer-killed", "100x2"),
    ("cm-reject-consumer", "100x2"),
    ("cm-reject-no-listener", "100x2"),
    ("cm-rep-lost", "4x1 12x1 16x1 17x1 100x6"),
    ("cm-rping-ipv6", "4x1 12x1 16x1 17x1 100x5"),
    ("cm-rping", "4x1 12x1 16x1 17x1 100x5"),
    ("cm-sidr-no-listener", "100x2"),
    ("cm-sidr-udaddy", "100x2 101x4"),
    ("cm-ucmatose", "4x2 17x2 100x5"),
    ("nak-qp-access", "10x1 12x1 17x3 20x1"),
    ("nak-recv-too-short", "0x1 1x1 2x1 4x1 17x2"),
    ("nak-remote-access", "6x1 8x1 10x1 12x1 17x4 20x1"),
    ("nak-remote-operational", "4x1 17x1"),
    ("nak-sequence", "6x1 7x5 8x2 17x2"),
    ("rc-atomic", "18x4 19x2 20x2"),
    ("rc-ipv4-tclass", "10x1 12x1 16x1 17x1"),
    ("rc-ipv6", "0x1 2x1 10x1 12x1 13x1 15x1 17x2"),
    ("rc-mixed-batch", "0x1 2x1 4x2 6x1 8x1 11x1 12x2 13x1 15x1 16x1 17x5 18x1 20x1"),
    ("rc-psn-wrap", "6x1 7x2 8x1 12x1 13x1 15x1 17x1"),
    ("rc-read", "12x10 13x5 14x3 15x5 16x5"),
    ("rc-send-inv", "0x1 10x2 17x4 22x1 23x1"),
    ("rc-send", "0x3 1x1 2x2 3x1 4x2 5x1 17x6"),
    ("rc-write-imm", "6x1 7x1 9x1 11x3 17x4"),
    ("rc-write", "6x3 7x3 8x3 10x4 17x7"),
    ("read-response-lost", "12x2 13x1 14x4 15x2"),
    ("request-lost-timeout", "6x2 7x2 8x2 10x2 17x4"),
    ("retry-exceeded", "10x3"),
    ("rnr-nak", "4x12 17x12"),
    ("rnr-retry-exceeded", "4x3 17x3"),
    ("uc", "32x2 33x1 34x1 35x1 36x1 37x1 38x2 39x1 40x1 41x1 42x1"),
    ("ud-send", "100x3 101x1"),
];
const PACKETS: usize = 300;

fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(format!("{name}.pcap"));
    let mut reader = PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Every frame of every capture.
fn for_each(mut check: impl FnMut(&str, &[u8], &Layers<'_>, &Packet<'_>)) {
    let mut count = 0;
    for (name, _) in CAPTURES {
        for frame in frames(name) {
            let layers = Layers::parse(&frame).unwrap_or_else(|reason| panic!("{name}: {reason}"));
            let packet = Packet::parse(layers.transport).unwrap_or_else(|reason| panic!("{name}: {reason}"));
            check(name, &frame, &layers, &packet);
            count += 1;
        }
    }
    assert_eq!(count, PACKETS);
}

/// The head, built anew from the parsed headers.
fn rebuilt(packet: &Packet<'_>) -> HeadBuf {
    let mut head = HeadBuf::new(&packet.bth);
    head = packet.deth().map_or(head, |h| head.deth(h));
    head = packet.xrceth().map_or(head, |h| head.xrceth(h));
    head = packet.reth().map_or(head, |h| head.reth(h));
    head = packet.atomic().map_or(head, |h| head.atomic(h));
    head = packet.aeth().map_or(head, |h| head.aeth(h));
    head = packet.atomic_ack().map_or(head, |h| head.atomic_ack(h));
    head = packet.imm().map_or(head, |h| head.imm(h));
    packet.ieth().map_or(head, |h| head.ieth(h))
}

#[test]
fn every_frame_is_written_again_byte_for_byte() {
    for_each(|name, frame, layers, packet| {
        let mut out = vec![0; Ethernet::LEN];
        layers.ethernet.emit(&mut out);
        let mut network = vec![0; Ipv6::LEN];
        match &layers.ip {
            Ip::V4(ip) => {
                ip.emit(&mut network);
                network.truncate(Ipv4::LEN);
                assert_eq!(ip.checksum, ip.computed_checksum());
            }
            Ip::V6(ip) => ip.emit(&mut network),
        }
        out.extend(network);
        let mut udp = [0; Udp::LEN];
        layers.udp.emit(&mut udp);
        out.extend(udp);
        out.extend(rebuilt(packet).as_slice());
        out.extend(packet.payload);
        out.extend(&[0; 3][..usize::from(packet.bth.pad)]);
        out.extend(layers.computed_icrc());
        assert_eq!(out, frame, "{name}");
    });
}

#[test]
fn the_captures_hold_the_expected_opcodes() {
    for (name, expected) in CAPTURES {
        let mut counts = BTreeMap::new();
        for frame in frames(name) {
            let layers = Layers::parse(&frame).unwrap();
            *counts.entry(Packet::parse(layers.transport).unwrap().bth.opcode.number()).or_insert(0) += 1;
        }
        let text: Vec<String> = counts.iter().map(|(opcode, count)| format!("{opcode}x{count}")).collect();
        assert_eq!(text.join(" "), expected, "{name}");
    }
}

#[test]
fn identification_is_recovered_from_every_ipv4_packet() {
    let mut recovered = 0;
    for_each(|name, _, layers, _| {
        let Ip::V4(ip) = &layers.ip else { return };
        let len = layers.transport.len() + ICRC_LEN;
        let blind = Icrc::ipv4(&PseudoV4 { id: 0, ..PseudoV4::of(ip, &layers.udp) }, len, layers.transport);
        assert_ne!(ip.id, 0, "{name}: rxe counts from a random start");
        assert_eq!(recover_ipv4_id(blind.finish(), layers.icrc, len_after_id(len)), Some(ip.id), "{name}");
        let delta = IdDelta::new(len);
        assert_eq!(delta.recover(blind.finish(), layers.icrc), Some(ip.id), "{name}");
        assert_eq!(blind.finish_with_id(&delta, ip.id), layers.icrc, "{name}");
        recovered += 1;
    });
    assert!(recovered > PACKETS / 2);
}

#[test]
fn a_flipped_bit_spoils_the_icrc_except_where_it_is_masked() {
    let frame = &frames("rc-write-imm")[0];
    let icrc = |frame: &[u8]| Layers::parse(frame).map(|layers| layers.computed_icrc() == layers.icrc);
    let udp = Ethernet::LEN + Ipv4::LEN;
    let bth = udp + Udp::LEN;
    let masked =
        [Ethernet::LEN + 1, Ethernet::LEN + 8, Ethernet::LEN + 10, Ethernet::LEN + 11, udp + 6, udp + 7, bth + 4];
    for at in Ethernet::LEN..frame.len() {
        let mut changed = frame.clone();
        changed[at] ^= 0x20;
        match icrc(&changed) {
            Ok(verdict) => assert_eq!(verdict, masked.contains(&at), "byte {at}"),
            Err(reason) => assert!(matches!(reason, Reason::NotOurs | Reason::Truncated), "byte {at}: {reason}"),
        }
    }
}

#[test]
fn management_datagrams_have_their_envelope() {
    let mut mads = 0;
    for_each(|name, _, _, packet| {
        if packet.bth.dest_qpn != burst_base::Qpn::GSI {
            return;
        }
        assert_eq!((packet.bth.opcode, packet.payload.len()), (Opcode::UdSendOnly, MAD_LEN), "{name}");
        assert_eq!(packet.deth().unwrap().qkey.0, 0x8001_0000);
        let header = MadHeader::parse(packet.payload).unwrap();
        assert_eq!(
            (header.mgmt_class, header.class_version, header.method),
            (MgmtClass::CM, 2, MadHeader::METHOD_SEND)
        );
        assert!((0x10..=0x19).contains(&header.attr_id), "{name}: {:x}", header.attr_id);
        let mut again = packet.payload.to_vec();
        again[..MadHeader::LEN].fill(0xff);
        header.emit(&mut again);
        assert_eq!(again, packet.payload);
        mads += 1;
    });
    assert_eq!(mads, 31);
}

#[test]
fn syndromes_are_those_of_the_captures() {
    let seen = |name: &str| -> Vec<Syndrome> {
        let frames = frames(name);
        let transports = frames.iter().map(|frame| Layers::parse(frame).unwrap().transport);
        transports.filter_map(|t| Packet::parse(t).unwrap().aeth()).map(|aeth| aeth.syndrome).collect()
    };
    assert_eq!(seen("nak-qp-access"), [Syndrome::Nak(NakCode::InvalidRequest); 3]);
    assert_eq!(seen("nak-remote-access"), [Syndrome::Nak(NakCode::RemoteAccess); 4]);
    assert_eq!(seen("nak-recv-too-short"), [Syndrome::Nak(NakCode::RemoteOperation); 2]);
    assert_eq!(seen("nak-sequence"), [Syndrome::Nak(NakCode::PsnSequence), Syndrome::ACK]);
    assert_eq!(seen("rnr-retry-exceeded"), [Syndrome::Rnr { timer: 10 }; 3]);
    let rnr = seen("rnr-nak");
    assert_eq!((rnr[0], rnr[11], rnr.len()), (Syndrome::Rnr { timer: 22 }, Syndrome::ACK, 12));
}

#[test]
fn headers_are_where_the_table_says() {
    for_each(|name, _, layers, packet| {
        let info = packet.info;
        assert_eq!(packet.head().len() + packet.payload.len() + usize::from(packet.bth.pad), layers.transport.len());
        assert_eq!(packet.imm().is_some(), info.has_imm, "{name}");
        assert_eq!(packet.ieth().is_some(), info.has_inv, "{name}");
        assert_eq!(packet.atomic().is_some(), info.kind.is_atomic(), "{name}");
        assert_eq!(packet.atomic_ack().is_some(), info.kind == OpKind::AtomicAck, "{name}");
        let lens = [
            packet.deth().map_or(0, |_| Deth::LEN),
            packet.reth().map_or(0, |_| burst_wire::Reth::LEN),
            packet.atomic().map_or(0, |_| AtomicEth::LEN),
            packet.aeth().map_or(0, |_| Aeth::LEN),
            packet.atomic_ack().map_or(0, |_| AtomicAckEth::LEN),
            packet.imm().map_or(0, |_| ImmDt::LEN),
            packet.ieth().map_or(0, |_| burst_wire::Ieth::LEN),
        ];
        assert_eq!(Bth::LEN + lens.iter().sum::<usize>(), packet.head().len(), "{name}");
    });
}
