//! Golden tests: packets recorded from OpenURMA's encoder (specification notes 3.10) are written byte for byte by the dialect
//! `openurma`, and read back to the same headers. Frames begin with the Ethernet header; the zeros that fill the last 32
//! bytes are cut.

use burst_base::Psn;
use burst_ubwire::{
    Atah, Btah, BtahFlags, Cna, CongestionField, Dialect, Maetah, Mtetah, NextLayer, Nth, OrderTag, RC_TYPE_CONTEXT,
    Rtph, ServiceMode, TaHeader, TaOpcode, TaRequest, TpOpcode, UB_HEAD_MAX, UbEncapsulation, UbHead, UbPacket,
    UbStatus,
};

const ETHERNET: &str = "ffffffffffff 000000000000 88b5";
const NTH: &str = "00010203abc12300005a3200";
const RTPH: &str = "81001112132122238000a1b20000c3d4";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(core::str::from_utf8(d).expect("ASCII"), 16).expect("hex")).collect()
}

fn nth(next: NextLayer) -> Nth {
    Nth {
        source: Cna::new(0x01_0203),
        dest: Cna::new(0xab_c123),
        congestion: CongestionField::default(),
        balance: 0x5a,
        service_level: 3,
        next,
    }
}

fn rtph(opcode: TpOpcode) -> Rtph {
    Rtph {
        last: opcode == TpOpcode::Data,
        opcode,
        version: 0,
        padding: 0,
        src_tpn: 0x11_1213,
        dst_tpn: 0x21_2223,
        ack_req: opcode == TpOpcode::Data,
        flag: false,
        psn: Psn::new(0xa1b2),
        status: UbStatus::SUCCESS,
        tpmsn: 0xc3d4,
    }
}

fn request(opcode: TaOpcode, change: impl FnOnce(&mut TaRequest)) -> TaHeader {
    let mut request = TaRequest::new(Btah::new(opcode, 0x1234, 0x5_6789));
    change(&mut request);
    TaHeader::Request(request)
}

fn memory(addr: u64, len: u32) -> Option<Maetah> {
    Some(Maetah { addr, token_id: 0xa_bcde, len })
}

fn reliable(ta: TaHeader) -> UbHead {
    UbHead { nth: nth(NextLayer::Reliable), rtph: Some(rtph(TpOpcode::Data)), cetph: None, saetph: None, ta: Some(ta) }
}

/// Writes and reads, and compares with the recorded frame.
fn check(head: UbHead, payload: &[u8], recorded: &str) {
    let dialect = Dialect::OPENURMA;
    assert_eq!(dialect.encapsulation, UbEncapsulation::Ethernet(0x88b5));
    let mut frame = hex(ETHERNET);
    let mut buffer = [0xa5; UB_HEAD_MAX];
    let len = head.emit(&dialect, &mut buffer);
    frame.extend(&buffer[..len]);
    frame.extend(payload);
    assert_eq!(frame, hex(recorded), "{recorded}");
    frame.resize(frame.len().next_multiple_of(32), 0);
    let packet = UbPacket::parse(&frame[14..], &dialect).expect("is a packet");
    assert_eq!(packet.head, head);
    assert!(packet.payload.starts_with(payload));
}

#[test]
fn read_unordered() {
    let ta = request(TaOpcode::Read, |r| r.memory = memory(0x1122_3344_5566_7788, 64));
    let bytes = "06101234000000000567890000000000 1122334455667788000abcde00000040";
    check(reliable(ta), &[], &format!("{ETHERNET}{NTH}{RTPH}{bytes}"));
}

#[test]
fn read_with_token() {
    let ta = request(TaOpcode::Read, |r| {
        r.memory = memory(0x1122_3344_5566_7788, 64);
        (r.base.has_token, r.token) = (true, Some(0xdead_beef));
    });
    let bytes = "06181234000000000567890000000000 1122334455667788000abcde00000040 deadbeef";
    check(reliable(ta), &[], &format!("{ETHERNET}{NTH}{RTPH}{bytes}"));
}

#[test]
fn write_strongly_ordered_by_the_target_with_ordered_completion() {
    let ta = request(TaOpcode::Write, |r| {
        r.memory = memory(0x1000, 40);
        (r.base.has_token, r.token) = (true, Some(0xdead_beef));
        (r.base.order, r.base.completion_order, r.base.mode) = (OrderTag::Strong, true, ServiceMode::Rot);
    });
    let payload: Vec<u8> = (0x10..=0x37).collect();
    let data: String = payload.iter().map(|b| format!("{b:02x}")).collect();
    let bytes = "03181234600100000567890000000000 0000000000001000000abcde00000028 deadbeef";
    check(reliable(ta), &payload, &format!("{ETHERNET}{NTH}{RTPH}{bytes}{data}"));
}

#[test]
fn compare_and_swap() {
    let ta = request(TaOpcode::Cas, |r| {
        r.memory = memory(0x2000, 8);
        (r.base.has_token, r.token) = (true, Some(0xdead_beef));
        r.base.order = OrderTag::Strong;
        r.operands[0] = 0x0102_0304_0506_0708;
    });
    let bytes = "07181234200000000567890000000000 0000000000002000000abcde00000008 deadbeef 0102030405060708";
    check(reliable(ta), &[], &format!("{ETHERNET}{NTH}{RTPH}{bytes}"));
}

#[test]
fn send_with_hint_and_target() {
    let ta = request(TaOpcode::Send, |r| {
        (r.base.order, r.base.has_target) = (OrderTag::Relaxed, true);
        r.target = Some(Mtetah { hint: 0x7e, kind: Mtetah::JETTY, id: 0x1_2345 });
    });
    let payload: Vec<u8> = (0x10..=0x2f).collect();
    let data: String = payload.iter().map(|b| format!("{b:02x}")).collect();
    check(reliable(ta), &payload, &format!("{ETHERNET}{NTH}{RTPH} 00101234180000000567890000000000 7e412345 {data}"));
}

#[test]
fn unreliable_send() {
    let ta = request(TaOpcode::Send, |r| {
        (r.base.mode, r.base.has_target) = (ServiceMode::Uno, true);
        r.target = Some(Mtetah { hint: 0, kind: Mtetah::JFR, id: 0x2a });
    });
    let head = UbHead { nth: nth(NextLayer::Unreliable), rtph: None, cetph: None, saetph: None, ta: Some(ta) };
    let utph = "00".repeat(16);
    let bytes = "00101234080300000567890000000000 0000002a";
    check(head, &[], &format!("{ETHERNET} 00010203abc12300005a3300 {utph} {bytes}"));
}

#[test]
fn transaction_acknowledgement() {
    let ta = TaHeader::Response(Atah::new(TaOpcode::TaAck, 0x1234, 0x5_6789));
    check(reliable(ta), &[], &format!("{ETHERNET}{NTH}{RTPH} 11101234000000000567890000000000"));
}

#[test]
fn fused_acknowledgement() {
    let fused = UbStatus { status: UbStatus::FUSED, info: 0 };
    let ta = TaHeader::Response(Atah { status: fused, ..Atah::new(TaOpcode::TaAck, 0x1234, 0x5_6789) });
    let rtph = Rtph { status: fused, ..rtph(TpOpcode::Ack { congestion: false }) };
    let bytes = "02001112132122230000a1b2a000c3d4 11101234a00000000567890000000000";
    check(UbHead { rtph: Some(rtph), ..reliable(ta) }, &[], &format!("{ETHERNET}{NTH}{bytes}"));
}

#[test]
fn read_with_every_flag() {
    let ta = request(TaOpcode::Read, |r| {
        r.memory = memory(0x1122_3344_5566_7788, 64);
        r.base.poison = true;
        (r.base.retry, r.base.alloc, r.base.rc_type) = (true, true, RC_TYPE_CONTEXT);
        r.base.flags = BtahFlags { target_hint: true, user_data: true, fce: true, e_bit: true };
    });
    let rtph = Rtph { version: 2, padding: 3, flag: true, ..rtph(TpOpcode::Data) };
    let bytes = "81b0111213212223c000a1b20000c3d4 0617123407c000000567890000000000 1122334455667788000abcde00000040";
    check(UbHead { rtph: Some(rtph), ..reliable(ta) }, &[], &format!("{ETHERNET}{NTH}{bytes}"));
}

#[test]
fn the_fields_of_burst_lie_where_the_documentation_draws_them() {
    let mut cas = TaRequest::new(Btah::new(TaOpcode::Cas, 0x1234, 0x5_6789));
    (cas.base.context, cas.base.order_number, cas.base.offset) = (0x0a0b, 0x0c0d, 0x0e_0f10);
    (cas.memory, cas.operands) = (memory(0x2000, 8), [1, 2]);
    let mut send = TaRequest::new(Btah { has_token: true, ..Btah::new(TaOpcode::SendImm, 0x1234, 0x5_6789) });
    (send.token, send.immediate) = (Some(0xdead_beef), 0x1122_3344_5566_7788);
    send.target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: 0x400 });
    let granted = Atah {
        granted: true,
        context: 0x0a0b,
        offset: 0x0e_0f10,
        ..Atah::new(TaOpcode::ReadResponse, 0x1234, 0x5_6789)
    };
    let cases = [
        (
            TaHeader::Request(cas),
            "07101234 00000a0b 0567890c 0d0e0f10 0000000000002000 000abcde 00000008 0000000000000001 0000000000000002",
        ),
        (TaHeader::Request(send), "01181234 00000000 05678900 00000000 deadbeef 00400400 1122334455667788"),
        (TaHeader::Response(granted), "12181234 00000a0b 05678900 000e0f10"),
    ];
    for (ta, bytes) in cases {
        let mut buffer = [0xa5; UB_HEAD_MAX];
        let head = reliable(ta);
        let len = head.emit(&Dialect::BURST, &mut buffer);
        let expected = hex(&format!("{NTH}{RTPH}{bytes}"));
        assert_eq!(buffer[..len], expected);
        assert_eq!(UbPacket::parse(&expected, &Dialect::BURST).map(|p| p.head), Ok(head));
    }
}
