//! Any bytes are parsed without a panic; parsing the written bytes of a header gives the same header.

use burst_base::{Psn, Qkey, Qpn, Reason, Rkey};
use burst_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CnpPayload, Deth, EtherType, Ethernet, HEAD_MAX, HeadBuf, Ieth, ImmDt, Ipv4,
    Ipv6, Layers, MAD_LEN, MacAddr, MadHeader, MgmtClass, OpKind, Opcode, Packet, Position, Reth, Saeth, Service,
    Syndrome, Udp, Vlan, XrcEth, grh_area_ipv4,
};
use proptest::prelude::*;

/// The opcodes of IBA, and the probe of UC. `selective.rs` tests the selective repeat family, `a_receipt_has_no_bitmap` receipts.
fn standard() -> Vec<Opcode> {
    let is_standard = |opcode: &Opcode| !opcode.service().is_selective() && *opcode != Opcode::UcReceipt;
    Opcode::ALL.iter().copied().filter(is_standard).collect()
}

#[test]
fn a_receipt_has_no_bitmap() {
    let bth = Bth::new(Opcode::UcReceipt, Qpn::new(0x1200), Psn::new(7));
    let aeth = Aeth { syndrome: Syndrome::Ack { credit: 9 }, msn: 5 };
    let saeth = Saeth { trigger: Psn::new(6), delay: 3, received_packets: 2, pressure: 1, ..Saeth::default() };
    let bytes = |saeth: Saeth| HeadBuf::new(&bth).aeth(aeth).saeth(saeth).as_slice().to_vec();
    let read = bytes(saeth);
    let packet = Packet::parse(&read).expect("well-formed");
    assert_eq!((packet.bth.psn, packet.aeth(), packet.saeth(), read.len()), (bth.psn, Some(aeth), Some(saeth), 28));
    let verdict = |bytes: &[u8]| Packet::parse(bytes).err();
    assert_eq!(verdict(&bytes(Saeth { words: 1, ..saeth })), Some(Reason::SrBitmap));
    assert_eq!(verdict(&[&read[..], &[0; 4]].concat()), Some(Reason::TrailingBytes));
    assert_eq!(verdict(&read[..24]), Some(Reason::Truncated));
}

prop_compose! {
    fn bth()(
        opcode in prop::sample::select(standard()),
        flags in any::<[bool; 5]>(),
        pad in 0u8..4,
        pkey in any::<u16>(),
        numbers in any::<[u32; 2]>(),
    ) -> Bth {
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        let (dest_qpn, psn) = (Qpn::new(numbers[0]), Psn::new(numbers[1]));
        Bth { opcode, solicited, mig_req, pad, pkey, fecn, becn, dest_qpn, ack_req, psn }
    }
}

prop_compose! {
    fn ipv4()(tos: u8, total_len: u16, id: u16, flags_fragment: u16, ttl: u8, protocol: u8, checksum: u16, a: [u8; 4], b: [u8; 4]) -> Ipv4 {
        Ipv4 { tos, total_len, id, flags_fragment, ttl, protocol, checksum, src: a.into(), dst: b.into() }
    }
}

prop_compose! {
    fn ipv6()(traffic_class: u8, flow_label in 0u32..1 << 20, payload_len: u16, next_header: u8, hop_limit: u8, a: [u8; 16], b: [u8; 16]) -> Ipv6 {
        Ipv6 { traffic_class, flow_label, payload_len, next_header, hop_limit, src: a.into(), dst: b.into() }
    }
}

prop_compose! {
    fn mad()(base_version in Just(1), class: u8, class_version: u8, method: u8, status: u16, class_specific: u16, tid: u64, attr_id: u16, attr_mod: u32) -> MadHeader {
        MadHeader { base_version, mgmt_class: MgmtClass(class), class_version, method, status, class_specific, tid, attr_id, attr_mod }
    }
}

/// Written into dirty bytes and read back, it is the same; one byte too few is not read.
macro_rules! round_trip {
    ($header:ty, $value:expr, $len:expr) => {{
        let value: $header = $value;
        let mut bytes = vec![0xa5; $len];
        value.emit(&mut bytes);
        prop_assert_eq!(<$header>::parse(&bytes), Some(value));
        prop_assert_eq!(<$header>::parse(&bytes[..$len - 1]), None);
    }};
}

/// A head with every header its opcode wants.
fn full_head(bth: &Bth, n: [u64; 3]) -> HeadBuf {
    let (info, rkey, word) = (bth.opcode.info(), Rkey(n[0] as u32), n[1] as u32);
    let mut head = HeadBuf::new(bth);
    if info.service == Service::Ud {
        head = head.deth(Deth { qkey: Qkey(word), src_qpn: Qpn::new(word) });
    }
    if info.service == Service::Xrc && info.kind.is_request() {
        head = head.xrceth(XrcEth { srqn: word & 0xff_ffff });
    }
    if info.kind == OpKind::ReadRequest || info.kind == OpKind::Write && info.position.is_start() {
        head = head.reth(Reth { addr: n[2], rkey, len: word });
    }
    if info.kind.is_atomic() {
        head = head.atomic(AtomicEth { addr: n[2], rkey, swap_add: n[0], compare: n[1] });
    }
    if info.kind.is_response() && info.position != Position::Middle {
        head = head.aeth(Aeth { syndrome: Syndrome::from_byte(n[0] as u8), msn: word & 0xff_ffff });
    }
    if info.kind == OpKind::AtomicAck {
        head = head.atomic_ack(AtomicAckEth { original: n[2] });
    }
    if info.has_imm {
        head = head.imm(ImmDt::from_be32(word));
    }
    if info.has_inv { head.ieth(Ieth { rkey }) } else { head }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Layers::parse(&bytes);
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(packet.head().len() + packet.payload.len() + usize::from(packet.bth.pad), bytes.len());
        }
    }

    #[test]
    fn plausible_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 12..120), opcode in prop::sample::select(Opcode::ALL)) {
        bytes[0] = opcode.number();
        bytes[1] &= 0xf0;
        let all = (bytes.len() / 4) * 4;
        for end in 0..=all {
            let Ok(packet) = Packet::parse(&bytes[..end]) else { continue };
            let _ = (packet.deth(), packet.xrceth(), packet.reth(), packet.atomic(), packet.aeth());
            let _ = (packet.atomic_ack(), packet.imm(), packet.ieth());
            let _ = (packet.seth(), packet.weth(), packet.saeth(), packet.bitmap());
            prop_assert_eq!(packet.bth.opcode, opcode);
        }
    }

    #[test]
    fn any_frame_with_ip_inside_is_survived(mut bytes in prop::collection::vec(any::<u8>(), 14..160), v6: bool, vlan: bool, fix: bool) {
        let kind = if v6 { EtherType::IPV6 } else { EtherType::IPV4 }.0.to_be_bytes();
        let at = if vlan && bytes.len() >= 18 { 18 } else { 14 };
        if at == 18 {
            bytes[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        }
        bytes[at - 2..at].copy_from_slice(&kind);
        if fix && bytes.len() > at + 44 {
            let udp = if v6 { at + 40 } else { at + 20 };
            bytes[at] = if v6 { 0x60 } else { 0x45 };
            bytes[if v6 { at + 6 } else { at + 9 }] = 17;
            bytes[udp + 2..udp + 4].copy_from_slice(&4791u16.to_be_bytes());
        }
        if let Ok(layers) = Layers::parse(&bytes) {
            let _ = layers.computed_icrc();
        }
    }

    #[test]
    fn packets_are_read_as_they_were_written(bth in bth(), n: [u64; 3], payload in prop::collection::vec(any::<u8>(), 0..64)) {
        let payload = if bth.opcode.info().has_payload { &payload[..] } else { &[] };
        let pad = payload.len().wrapping_neg() as u8 & 3;
        let bth = Bth { pad, ..bth };
        let head = full_head(&bth, n);
        prop_assert_eq!(head.len(), bth.opcode.head_len());
        prop_assert!(head.len() <= HEAD_MAX);
        let mut bytes = head.as_slice().to_vec();
        bytes.extend(payload);
        bytes.resize(bytes.len() + usize::from(pad), 0);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!((packet.bth, packet.payload, packet.head()), (bth, payload, head.as_slice()));
        prop_assert_eq!(packet.imm().map(ImmDt::to_be32), bth.opcode.info().has_imm.then_some(n[1] as u32));
        prop_assert_eq!(packet.ieth().map(|h| h.rkey), bth.opcode.info().has_inv.then_some(Rkey(n[0] as u32)));
        prop_assert_eq!(packet.atomic().map(|h| h.compare), bth.opcode.kind().is_atomic().then_some(n[1]));
        prop_assert_eq!(Packet::parse(&bytes[..head.len() - 1]), Err(Reason::Truncated));
    }

    #[test]
    fn transport_headers_round_trip(n: [u64; 3], bytes: [u8; 16]) {
        let (rkey, word) = (Rkey(n[0] as u32), n[1] as u32);
        round_trip!(Deth, Deth { qkey: Qkey(word), src_qpn: Qpn::new(n[0] as u32) }, Deth::LEN);
        round_trip!(XrcEth, XrcEth { srqn: word & 0xff_ffff }, XrcEth::LEN);
        round_trip!(Reth, Reth { addr: n[2], rkey, len: word }, Reth::LEN);
        round_trip!(AtomicEth, AtomicEth { addr: n[2], rkey, swap_add: n[0], compare: n[1] }, AtomicEth::LEN);
        round_trip!(Aeth, Aeth { syndrome: Syndrome::from_byte(n[0] as u8), msn: word & 0xff_ffff }, Aeth::LEN);
        round_trip!(AtomicAckEth, AtomicAckEth { original: n[2] }, AtomicAckEth::LEN);
        round_trip!(ImmDt, ImmDt::from_be32(word), ImmDt::LEN);
        round_trip!(Ieth, Ieth { rkey }, Ieth::LEN);
        round_trip!(CnpPayload, CnpPayload { reserved: bytes }, CnpPayload::LEN);
    }

    #[test]
    fn outer_headers_round_trip(ip4 in ipv4(), ip6 in ipv6(), mad in mad(), m: [[u8; 6]; 2], p: [u16; 4], priority in 0u8..8, drop_eligible: bool) {
        round_trip!(Ipv4, ip4, Ipv4::LEN);
        round_trip!(Ipv6, ip6, Ipv6::LEN);
        round_trip!(Udp, Udp { src_port: p[0], dst_port: p[1], len: p[2], checksum: p[3] }, Udp::LEN);
        round_trip!(Ethernet, Ethernet { dst: MacAddr(m[0]), src: MacAddr(m[1]), ethertype: EtherType(p[0]) }, Ethernet::LEN);
        round_trip!(Vlan, Vlan { priority, drop_eligible, id: p[1] & 0xfff, ethertype: EtherType(p[0]) }, Vlan::LEN);
        round_trip!(MadHeader, mad, MAD_LEN);
        prop_assert_eq!(Ipv4::parse(&grh_area_ipv4(&ip4)[20..]), Some(ip4));
    }

    #[test]
    fn bth_round_trips(bth in bth()) {
        let mut bytes = [0xa5; Bth::LEN];
        bth.emit(&mut bytes);
        prop_assert_eq!(Bth::parse(&bytes), Ok(bth));
        prop_assert_eq!(Bth::parse(&bytes[1..]), Err(Reason::Truncated));
    }
}

/// A packet of 12 bytes with this opcode, and the rest.
fn packet(opcode: u8, second: u8, rest: usize) -> Vec<u8> {
    let mut bytes = vec![0; 12 + rest];
    (bytes[0], bytes[1]) = (opcode, second);
    bytes
}

#[test]
fn each_fault_has_its_reason() {
    let verdict = |bytes: &[u8]| Packet::parse(bytes).err();
    assert_eq!(verdict(&packet(0x04, 0x00, 0)), None);
    assert_eq!(verdict(&[]), Some(Reason::Truncated));
    assert_eq!(verdict(&packet(0x04, 0, 0)[..11]), Some(Reason::Truncated));
    assert_eq!(verdict(&packet(0x06, 0, 12)), Some(Reason::Truncated));
    assert_eq!(verdict(&packet(0x04, 0x01, 0)), Some(Reason::BadVersion));
    assert_eq!(verdict(&packet(0x15, 0, 0)), Some(Reason::UnknownOpcode));
    assert_eq!(verdict(&packet(0x44, 0, 0)), Some(Reason::UnknownOpcode));
    assert_eq!(verdict(&packet(0xff, 0, 0)), Some(Reason::UnknownOpcode));
    assert_eq!(verdict(&packet(0x04, 0x10, 0)), Some(Reason::BadPadding));
    assert_eq!(verdict(&packet(0x04, 0x10, 3)), Some(Reason::BadPadding));
    assert_eq!(verdict(&packet(0x04, 0x30, 4)), None);
    assert_eq!(verdict(&packet(0x11, 0, 4)), None);
    assert_eq!(verdict(&packet(0x11, 0, 8)), Some(Reason::TrailingBytes));
}

#[test]
fn the_opcode_table_is_consistent() {
    assert_eq!(Opcode::ALL.len(), 23 + 12 + 2 + 1 + 23 + 25 + 25 + 2);
    assert!(Opcode::ALL.is_sorted());
    for number in 0..=255u8 {
        match Opcode::from_number(number) {
            None => assert!(Opcode::lookup(number).is_none()),
            Some(opcode) => {
                assert_eq!(opcode.number(), number);
                assert_eq!(opcode.info().opcode, opcode);
                assert_eq!(Opcode::lookup(number), Some(opcode.info()));
                assert_eq!(opcode.to_string(), opcode.name());
            }
        }
    }
    // XRC is RC, shifted, with an SRQ number in front of requests.
    for rc in Opcode::ALL.iter().filter(|o| o.service() == Service::Rc) {
        let xrc = Opcode::from_number(rc.number() + 0xa0).unwrap();
        let extra = if rc.kind().is_request() { XrcEth::LEN } else { 0 };
        assert_eq!((xrc.kind(), xrc.position(), xrc.head_len()), (rc.kind(), rc.position(), rc.head_len() + extra));
    }
}

#[test]
fn a_wrong_length_field_is_rejected() {
    let mut frame = vec![0; 14 + 20 + 8 + 12 + 4];
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip = Ipv4 {
        tos: 0,
        total_len: 44,
        id: 0,
        flags_fragment: Ipv4::DONT_FRAGMENT,
        ttl: 64,
        protocol: 17,
        checksum: 0,
        src: [1; 4].into(),
        dst: [2; 4].into(),
    };
    let udp = Udp { src_port: 1, dst_port: 4791, len: 24, checksum: 0 };
    let mut verdict = |ip: Ipv4, udp: Udp| {
        ip.emit(&mut frame[14..]);
        udp.emit(&mut frame[34..]);
        Layers::parse(&frame).err()
    };
    assert_eq!(verdict(ip, udp), None);
    assert_eq!(verdict(ip, Udp { len: 25, ..udp }), Some(Reason::Truncated));
    assert_eq!(verdict(ip, Udp { len: 7, ..udp }), Some(Reason::Truncated));
    assert_eq!(verdict(ip, Udp { len: 23, ..udp }), Some(Reason::Truncated));
    assert_eq!(verdict(ip, Udp { dst_port: 4790, ..udp }), Some(Reason::NotOurs));
    assert_eq!(verdict(Ipv4 { total_len: 45, ..ip }, udp), Some(Reason::Truncated));
    assert_eq!(verdict(Ipv4 { total_len: 19, ..ip }, udp), Some(Reason::Truncated));
    assert_eq!(verdict(Ipv4 { protocol: 6, ..ip }, udp), Some(Reason::NotOurs));
    assert_eq!(verdict(Ipv4 { flags_fragment: 0x2000, ..ip }, udp), Some(Reason::NotOurs));
}
