//! The selective repeat family: written packets are read as they were written, truncated and impossible ones are refused with
//! the reason of the field, and one golden packet of each opcode stays byte for byte the same.

use burst_base::verbs::Mtu;
use burst_base::{Psn, Qpn, Reason, Rkey};
use burst_wire::selective::{BITMAP_WORDS_MAX, MESSAGE_PACKETS_MAX};
use burst_wire::{
    AckBitmap, Aeth, AtomicAckEth, AtomicEth, Bth, EtherType, Ethernet, HEAD_MAX, HeadBuf, ICRC_LEN, IP_PROTOCOL_UDP,
    Ieth, ImmDt, Ipv4, Ipv6, Layers, MacAddr, OpKind, Opcode, Packet, Position, ROCE_PORT, Reth, Saeth, Service, Seth,
    Syndrome, Udp, Weth, XrcEth,
};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

fn family() -> Vec<Opcode> {
    Opcode::ALL.iter().copied().filter(|opcode| opcode.service().is_selective()).collect()
}

/// The values of all extension headers.
#[derive(Clone, Copy, Debug)]
struct Fields {
    seth: Seth,
    weth: Weth,
    saeth: Saeth,
    aeth: Aeth,
    reth: Reth,
    atomic: AtomicEth,
    original: u64,
    imm: u32,
    inv: Rkey,
    srqn: u32,
}

/// BTH and the headers that the format table gives for its opcode.
fn head(bth: &Bth, f: &Fields) -> HeadBuf {
    let info = bth.opcode.info();
    let mut head = HeadBuf::new(bth);
    if info.service == Service::XrcSr && info.kind.is_request() {
        head = head.xrceth(XrcEth { srqn: f.srqn });
    }
    head = match info.kind {
        OpKind::Ack => head.aeth(f.aeth).saeth(f.saeth),
        OpKind::ReadAck => head.saeth(f.saeth),
        OpKind::AtomicAck => head.seth(f.seth).aeth(f.aeth).atomic_ack(AtomicAckEth { original: f.original }),
        OpKind::Write => head.seth(f.seth).weth(f.weth),
        OpKind::ReadRequest => head.seth(f.seth).reth(f.reth),
        OpKind::CmpSwap | OpKind::FetchAdd => head.seth(f.seth).atomic(f.atomic),
        _ => head.seth(f.seth),
    };
    if info.has_imm {
        head = head.imm(ImmDt::from_be32(f.imm));
    }
    if info.has_inv { head.ieth(Ieth { rkey: f.inv }) } else { head }
}

fn packet(bth: &Bth, f: &Fields, payload: &[u8]) -> Vec<u8> {
    let bth = Bth { pad: payload.len().wrapping_neg() as u8 & 3, ..*bth };
    let mut bytes = head(&bth, f).as_slice().to_vec();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

prop_compose! {
    /// Possible values for any opcode: what an opcode restricts is added by [`fitted`].
    fn fields()(
        n in any::<[u64; 5]>(),
        flags in any::<[bool; 3]>(),
        small in (0u8..16, 0u8..4, 0u8..16, 0u8..32),
        counts in any::<[u16; 3]>(),
        index in 1..MESSAGE_PACKETS_MAX,
    ) -> Fields {
        let (rkey, word) = (Rkey(n[0] as u32), n[1] as u32);
        let (transmission, pressure, words, credit) = small;
        let rsn = (n[3] >> 40) as u32;
        Fields {
            seth: Seth { version: 0, is_probe: flags[0], is_repair: flags[1], transmission, rsn, lane: 0, index },
            weth: Weth { addr: n[2] >> 1, rkey },
            saeth: Saeth {
                pressure,
                is_congested: flags[2],
                words,
                trigger: Psn::new(word),
                delay: counts[0],
                congested_packets: counts[1],
                received_packets: counts[2],
                transmission,
            },
            aeth: Aeth { syndrome: Syndrome::Ack { credit }, msn: word & 0xff_ffff },
            reth: Reth { addr: n[2], rkey, len: word },
            atomic: AtomicEth { addr: n[2], rkey, swap_add: n[0], compare: n[1] },
            original: n[4],
            imm: word,
            inv: rkey,
            srqn: word & 0xff_ffff,
        }
    }
}

/// `f` with what this opcode and payload demand.
fn fitted(opcode: Opcode, f: Fields, payload: &[u8]) -> Fields {
    let (kind, starts) = (opcode.kind(), opcode.position().is_start());
    let is_read = matches!(kind, OpKind::ReadRequest | OpKind::ReadResponse);
    let is_repair = f.seth.is_repair && is_read;
    let is_probe = f.seth.is_probe && (kind.is_request() || kind == OpKind::Probe);
    let index = if starts && !(is_repair && kind == OpKind::ReadRequest) { 0 } else { f.seth.index };
    let words = (payload.len() / 8) as u8;
    Fields { seth: Seth { is_probe, is_repair, index, ..f.seth }, saeth: Saeth { words, ..f.saeth }, ..f }
}

/// The payload that this opcode may have: a bitmap, these bytes, or none.
fn payload_of(opcode: Opcode, bytes: &[u8]) -> &[u8] {
    match opcode.kind() {
        OpKind::Ack => &bytes[..bytes.len().min(8 * BITMAP_WORDS_MAX) / 8 * 8],
        _ if opcode.info().has_payload => bytes,
        _ => &[],
    }
}

proptest! {
    #[test]
    fn packets_are_read_as_they_were_written(
        opcode in prop::sample::select(family()),
        f in fields(),
        bytes in prop::collection::vec(any::<u8>(), 0..160),
        numbers: [u32; 2],
        flags: [bool; 2],
    ) {
        let payload = payload_of(opcode, &bytes);
        let f = fitted(opcode, f, payload);
        let bth = Bth { solicited: flags[0], ack_req: flags[1], ..Bth::new(opcode, Qpn::new(numbers[0]), Psn::new(numbers[1])) };
        let bytes = packet(&bth, &f, payload);
        let p = Packet::parse(&bytes).unwrap();
        let (info, kind) = (opcode.info(), opcode.kind());
        prop_assert_eq!((p.bth.psn, p.bth.dest_qpn, p.payload), (bth.psn, bth.dest_qpn, payload));
        prop_assert_eq!(p.head().len(), opcode.head_len());
        prop_assert!(p.head().len() <= HEAD_MAX);
        let is_ack = kind == OpKind::Ack || kind == OpKind::ReadAck;
        prop_assert_eq!(p.seth(), (!is_ack).then_some(f.seth));
        prop_assert_eq!(p.weth(), (kind == OpKind::Write).then_some(f.weth));
        prop_assert_eq!(p.saeth(), is_ack.then_some(f.saeth));
        prop_assert_eq!(p.bitmap().map(|b| b.words()), is_ack.then_some(payload.len() / 8));
        prop_assert_eq!(p.aeth(), matches!(kind, OpKind::Ack | OpKind::AtomicAck).then_some(f.aeth));
        prop_assert_eq!(p.reth(), (kind == OpKind::ReadRequest).then_some(f.reth));
        prop_assert_eq!(p.atomic(), kind.is_atomic().then_some(f.atomic));
        prop_assert_eq!(p.atomic_ack(), (kind == OpKind::AtomicAck).then_some(AtomicAckEth { original: f.original }));
        prop_assert_eq!(p.imm().map(ImmDt::to_be32), info.has_imm.then_some(f.imm));
        prop_assert_eq!(p.ieth(), info.has_inv.then_some(Ieth { rkey: f.inv }));
        let has_srq = info.service == Service::XrcSr && kind.is_request();
        prop_assert_eq!(p.xrceth(), has_srq.then_some(XrcEth { srqn: f.srqn }));
    }

    /// Cut at every byte: refused, or a packet with less payload whose headers are the same.
    #[test]
    fn no_truncation_is_misread(
        opcode in prop::sample::select(family()),
        f in fields(),
        bytes in prop::collection::vec(any::<u8>(), 0..130),
    ) {
        let payload = payload_of(opcode, &bytes);
        let f = fitted(opcode, f, payload);
        let bytes = packet(&Bth::new(opcode, Qpn::new(9), Psn::new(5)), &f, payload);
        let whole = Packet::parse(&bytes).unwrap();
        for end in 0..bytes.len() {
            match Packet::parse(&bytes[..end]) {
                Err(reason) if end < opcode.head_len() => prop_assert_eq!(reason, Reason::Truncated),
                Err(Reason::BadPadding) => prop_assert!(!end.is_multiple_of(4) || whole.bth.pad > 0),
                Err(reason) => prop_assert_eq!((reason, opcode.kind()), (Reason::SrBitmap, OpKind::Ack)),
                Ok(p) => {
                    prop_assert!(opcode.kind() != OpKind::Ack && p.payload.len() < whole.payload.len());
                    prop_assert_eq!((p.head(), p.seth(), p.weth()), (whole.head(), whole.seth(), whole.weth()));
                }
            }
        }
    }

    #[test]
    fn any_bytes_behind_an_opcode_are_survived(
        opcode in prop::sample::select(family()),
        mut bytes in prop::collection::vec(any::<u8>(), 12..200),
    ) {
        bytes[0] = opcode.number();
        bytes[1] &= 0xf0;
        for end in (0..=bytes.len()).step_by(4) {
            let Ok(p) = Packet::parse(&bytes[..end]) else { continue };
            prop_assert_eq!(p.bth.opcode, opcode);
            if let Some(seth) = p.seth() {
                prop_assert!(seth.version == 0 && seth.lane == 0 && seth.index < MESSAGE_PACKETS_MAX);
            }
            if let (Some(saeth), Some(bitmap)) = (p.saeth(), p.bitmap()) {
                prop_assert_eq!(usize::from(saeth.words), bitmap.words());
            }
        }
    }
}

/// Fields that every opcode accepts once they are fitted.
fn plain() -> Fields {
    Fields {
        seth: Seth { index: 7, ..Seth::default() },
        weth: Weth::default(),
        saeth: Saeth::default(),
        aeth: Aeth { syndrome: Syndrome::ACK, msn: 1 },
        reth: Reth::default(),
        atomic: AtomicEth::default(),
        original: 0,
        imm: 0,
        inv: Rkey(0),
        srqn: 0,
    }
}

/// The verdict on a packet of this opcode whose fitted fields were changed by `change`.
fn verdict(opcode: Opcode, payload: &[u8], change: impl FnOnce(&mut Fields)) -> Option<Reason> {
    let mut f = fitted(opcode, plain(), payload);
    change(&mut f);
    Packet::parse(&packet(&Bth::new(opcode, Qpn::new(1), Psn::new(2)), &f, payload)).err()
}

#[test]
fn each_impossible_value_has_its_reason() {
    for opcode in family() {
        let (info, kind) = (opcode.info(), opcode.kind());
        let payload: &[u8] = if info.has_payload { &[0; 16] } else { &[] };
        assert_eq!(verdict(opcode, payload, |_| ()), None, "{opcode}");
        if kind == OpKind::Ack || kind == OpKind::ReadAck {
            let words = payload.len() as u8 / 8;
            for wrong in (0..16).filter(|&w| w != words) {
                assert_eq!(verdict(opcode, payload, |f| f.saeth.words = wrong), Some(Reason::SrBitmap), "{opcode}");
            }
            continue;
        }
        for version in 1..4 {
            assert_eq!(verdict(opcode, payload, |f| f.seth.version = version), Some(Reason::SrVersion), "{opcode}");
        }
        assert_eq!(verdict(opcode, payload, |f| f.seth.lane = 1), Some(Reason::SrVersion), "{opcode}");
        let wrong = if opcode.position().is_start() { 1 } else { 0 };
        assert_eq!(verdict(opcode, payload, |f| f.seth.index = wrong), Some(Reason::SrIndex), "{opcode}");
        let may_repair = matches!(kind, OpKind::ReadRequest | OpKind::ReadResponse);
        let expected = (!may_repair).then_some(Reason::SrFlags);
        assert_eq!(verdict(opcode, payload, |f| f.seth.is_repair = true), expected, "{opcode}");
        let may_probe = kind.is_request() || kind == OpKind::Probe;
        let expected = (!may_probe).then_some(Reason::SrFlags);
        assert_eq!(verdict(opcode, payload, |f| f.seth.is_probe = true), expected, "{opcode}");
    }
}

#[test]
fn indices_and_addresses_are_refused_at_their_limits() {
    let middle = |index| verdict(Opcode::RcSrSendMiddle, &[0; 256], |f| f.seth.index = index);
    assert_eq!(middle(MESSAGE_PACKETS_MAX - 1), None);
    assert_eq!(middle(MESSAGE_PACKETS_MAX), Some(Reason::SrIndex));
    let repair = |index| verdict(Opcode::RcSrReadRequest, &[], |f| f.seth = Seth { is_repair: true, index, ..f.seth });
    assert_eq!((repair(0), repair(511), repair(MESSAGE_PACKETS_MAX)), (None, None, Some(Reason::SrIndex)));
    let write = |addr, len: usize| verdict(Opcode::XrcSrWriteOnly, &vec![0; len], |f| f.weth.addr = addr);
    assert_eq!((write(u64::MAX - 4, 4), write(u64::MAX, 0)), (None, None));
    assert_eq!(write(u64::MAX - 3, 4), Some(Reason::SrAddress));
}

#[test]
fn bitmaps_and_syndromes_of_acknowledgements() {
    for words in 0..=BITMAP_WORDS_MAX {
        assert_eq!(verdict(Opcode::RcSrAck, &vec![0xff; 8 * words], |_| ()), None);
    }
    assert_eq!(verdict(Opcode::RcSrAck, &[0; 12], |_| ()), Some(Reason::SrBitmap));
    assert_eq!(verdict(Opcode::RcSrAck, &[0; 7], |f| f.saeth.words = 1), Some(Reason::SrBitmap));
    let ack = |byte| verdict(Opcode::XrcSrAck, &[0; 8], |f| f.aeth.syndrome = Syndrome::from_byte(byte));
    assert_eq!(ack(0x60), Some(Reason::SrSyndrome));
    assert_eq!([0x00, 0x1f, 0x2e, 0x61, 0x62, 0x63].map(ack), [None; 6]);
    let atomic = |byte| verdict(Opcode::RcSrAtomicAck, &[], |f| f.aeth.syndrome = Syndrome::from_byte(byte));
    assert_eq!([0x20, 0x60, 0x61, 0x62].map(atomic), [Some(Reason::SrSyndrome); 4]);
    assert_eq!(atomic(0x1f), None);
}

/// Byte counts of the format table in docs/protocol.md.
#[test]
fn heads_are_as_long_as_the_format_table_says() {
    for opcode in family() {
        let (info, kind) = (opcode.info(), opcode.kind());
        let srq = if info.service == Service::XrcSr && kind.is_request() { 4 } else { 0 };
        let tail = if info.has_imm || info.has_inv { 4 } else { 0 };
        let expected = match kind {
            OpKind::Send | OpKind::ReadResponse | OpKind::Probe => 20,
            OpKind::Write | OpKind::AtomicAck => 32,
            OpKind::ReadRequest => 36,
            OpKind::Ack => 28,
            OpKind::CmpSwap | OpKind::FetchAdd => 48,
            OpKind::ReadAck => 24,
            OpKind::Cnp => unreachable!(),
        };
        assert_eq!(opcode.head_len(), expected + srq + tail, "{opcode}");
        // The largest packet fits the links for which a path MTU of 4096 is granted: 4168 bytes over IPv4, 4188 over IPv6.
        let largest = 4096 + opcode.head_len() + ICRC_LEN + Udp::LEN + Ipv6::LEN;
        if kind == OpKind::Send || kind == OpKind::Write {
            assert!(largest <= 4188, "{opcode}");
        }
    }
    assert_eq!((Mtu::for_link(4188), Mtu::for_link(4187)), (Some(Mtu::B4096), Some(Mtu::B2048)));
    // An opcode is that of its standard form, with other bits in front.
    for opcode in family().into_iter().filter(|opcode| !matches!(opcode.kind(), OpKind::ReadAck | OpKind::Probe)) {
        let base = if opcode.service() == Service::RcSr { 0 } else { 0xa0 };
        let standard = Opcode::from_number(base | opcode.number() & 0x1f).unwrap();
        let facts = |o: Opcode| (o.kind(), o.position(), o.info().has_imm, o.info().has_inv);
        assert_eq!(facts(opcode), facts(standard), "{opcode}");
    }
}

// --- golden packets

fn golden_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/selective-repeat.pcap")
}

/// The fields of the golden packet of an opcode: each follows from the opcode's number, so that a misplaced byte shows.
fn golden_fields(opcode: Opcode) -> Fields {
    let n = u32::from(opcode.number());
    let (starts, kind) = (opcode.position().is_start(), opcode.kind());
    let is_repair = kind == OpKind::ReadRequest;
    let is_probe = kind == OpKind::Probe;
    let index = if starts && !is_repair { 0 } else { 0x0500 + n };
    Fields {
        seth: Seth { is_probe, is_repair, transmission: 2, rsn: 0x01_0200 + n, index, ..Seth::default() },
        weth: Weth { addr: 0x7f00_1122_3344_0000 + u64::from(n), rkey: Rkey(0xabcd_0000 + n) },
        saeth: Saeth {
            pressure: 2,
            is_congested: true,
            words: if kind == OpKind::Ack { 2 } else { 0 },
            trigger: Psn::new(0x20_0000 + n),
            delay: 0x0300 + n as u16,
            congested_packets: 0x0400 + n as u16,
            received_packets: 0x0500 + n as u16,
            transmission: 3,
        },
        aeth: Aeth { syndrome: Syndrome::ACK, msn: 0x03_0000 + n },
        reth: Reth { addr: 0x7e00_1122_3344_0000 + u64::from(n), rkey: Rkey(0xbcde_0000 + n), len: 0x2000 + n },
        atomic: AtomicEth {
            addr: 0x7d00_1122_3344_5560,
            rkey: Rkey(0xcdef_0000 + n),
            swap_add: 0x1111_0000_0000_0000 + u64::from(n),
            compare: 0x2222_0000_0000_0000 + u64::from(n),
        },
        original: 0x3333_0000_0000_0000 + u64::from(n),
        imm: u32::from_ne_bytes([0xde, 0xad, 0xbe, opcode.number()]),
        inv: Rkey(0xdef0_0000 + n),
        srqn: 0x04_0000 + n,
    }
}

/// A whole frame: RC over IPv4, XRC over IPv6.
fn golden_frame(opcode: Opcode) -> Vec<u8> {
    let n = u32::from(opcode.number());
    let payload: Vec<u8> = match (opcode.kind(), opcode.position()) {
        (OpKind::Ack, _) => [1u64 | 1 << 9, 1 << 63].iter().flat_map(|w| w.to_le_bytes()).collect(),
        (_, Position::First | Position::Middle) => (0..=255).collect(),
        _ if opcode.info().has_payload => (1..=7).collect(),
        _ => Vec::new(),
    };
    let bth =
        Bth { ack_req: opcode.position().is_end(), ..Bth::new(opcode, Qpn::new(0x1200 + n), Psn::new(0x10_0000 + n)) };
    let transport = packet(&bth, &golden_fields(opcode), &payload);
    let is_v4 = opcode.service() == Service::RcSr;
    let udp_len = (Udp::LEN + transport.len() + ICRC_LEN) as u16;
    let udp = Udp { src_port: 0xc123, dst_port: ROCE_PORT, len: udp_len, checksum: 0 };
    let ethertype = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let mut frame = vec![0; Ethernet::LEN];
    Ethernet { dst: MacAddr([2, 0, 0, 0, 0, 2]), src: MacAddr([2, 0, 0, 0, 0, 1]), ethertype }.emit(&mut frame);
    let at = frame.len();
    if is_v4 {
        let mut ip = Ipv4 {
            tos: 0,
            total_len: Ipv4::LEN as u16 + udp_len,
            id: n as u16,
            flags_fragment: Ipv4::DONT_FRAGMENT,
            ttl: 64,
            protocol: IP_PROTOCOL_UDP,
            checksum: 0,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
        };
        ip.checksum = ip.computed_checksum();
        frame.resize(at + Ipv4::LEN, 0);
        ip.emit(&mut frame[at..]);
    } else {
        let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let next_header = IP_PROTOCOL_UDP;
        frame.resize(at + Ipv6::LEN, 0);
        Ipv6 { traffic_class: 0, flow_label: 0, payload_len: udp_len, next_header, hop_limit: 64, src, dst }
            .emit(&mut frame[at..]);
    }
    let at = frame.len();
    frame.resize(at + Udp::LEN, 0);
    udp.emit(&mut frame[at..]);
    frame.extend(transport);
    frame.extend([0; ICRC_LEN]);
    let icrc = Layers::parse(&frame).unwrap().computed_icrc();
    let end = frame.len();
    frame[end - ICRC_LEN..].copy_from_slice(&icrc);
    if !is_v4 {
        // RFC 8200 8.1: compulsory over IPv6. The ICRC does not cover it.
        let sum = udp_checksum_ipv6(&frame[Ethernet::LEN + 8..]);
        frame[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// The checksum of a UDP datagram whose checksum field is 0, from the IPv6 source address to the end (RFC 768, RFC 8200 8.1).
fn udp_checksum_ipv6(from_src: &[u8]) -> u16 {
    let len = from_src.len() - 32;
    let words = from_src.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)));
    let mut sum = words.sum::<u32>() + len as u32 + u32::from(IP_PROTOCOL_UDP);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// `BLESS=1` writes the file. `tests/test_dissector.py` reads it with tshark, and computes its ICRCs with scapy.
#[test]
fn golden_packets_stay_the_same() {
    if std::env::var_os("BLESS").is_some() {
        let mut writer = PcapWriter::new(std::fs::File::create(golden_path()).unwrap()).unwrap();
        for opcode in family() {
            let frame = golden_frame(opcode);
            writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame)).unwrap();
        }
    }
    let mut reader = PcapReader::new(std::fs::File::open(golden_path()).unwrap()).unwrap();
    for opcode in family() {
        let stored = reader.next_packet().expect("a packet for each opcode").unwrap().data;
        assert_eq!(golden_frame(opcode), &stored[..], "{opcode}");
        let layers = Layers::parse(&stored).unwrap();
        assert_eq!(layers.computed_icrc(), layers.icrc);
        let p = Packet::parse(layers.transport).unwrap();
        assert_eq!(p.bth.opcode, opcode);
        if opcode.kind() == OpKind::Ack {
            let bitmap: AckBitmap<'_> = p.bitmap().unwrap();
            assert_eq!((0..128).filter(|&i| bitmap.is_received(i)).collect::<Vec<_>>(), [0, 9, 127]);
        }
    }
    assert!(reader.next_packet().is_none());
}

/// One packet written out by hand, so that writer and reader cannot be wrong together.
#[test]
fn a_packet_by_hand() {
    let bytes = [
        0xc6, 0x40, 0xff, 0xff, 0x00, 0x00, 0x00, 0x07, 0x80, 0x00, 0x00, 0x2a, // BTH: WRITE First, QP 7, PSN 42
        0x03, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, // SETH: transmission 3, RSN 0x102, index 0
        0x00, 0x00, 0x7f, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0xab, 0xcd, // WETH
        1, 2, 3, 4,
    ];
    let p = Packet::parse(&bytes).unwrap();
    assert_eq!(p.seth(), Some(Seth { transmission: 3, rsn: 0x102, ..Seth::default() }));
    assert_eq!(p.weth(), Some(Weth { addr: 0x7f00_0000_1000, rkey: Rkey(0xabcd) }));
    assert_eq!((p.bth.psn, p.bth.ack_req, p.payload), (Psn::new(42), true, &[1, 2, 3, 4][..]));
}
