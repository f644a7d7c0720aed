//! Golden packets of the dialect `burst` for the Wireshark dissector (share/wireshark/unified_bus.lua, tests/test_dissector.py):
//! `vectors/unified-bus.pcap`, raw IPv4 and UDP. `BLESS=1` writes the file.

use burst_base::Psn;
use burst_ubwire::{
    Atah, Btah, Cetph, Cna, CongestionField, Dialect, Maetah, Mtetah, NextLayer, NotifyTarget, Nth, OrderTag,
    RC_TYPE_CONTEXT, Rtph, SACK_WORDS_MAX, Saetph, ServiceMode, TaHeader, TaOpcode, TaRequest, TpOpcode, UB_HEAD_MAX,
    UB_UDP_PORT, UbHead, UbPacket, UbStatus, encap,
};
use std::path::PathBuf;

fn nth(next: NextLayer) -> Nth {
    let congestion = CongestionField { enable: true, increase: true, hint: 5, ..CongestionField::default() };
    Nth { source: Cna::new(0x01_0203), dest: Cna::new(0x04_0506), congestion, balance: 7, service_level: 3, next }
}

fn rtph(opcode: TpOpcode, n: u32) -> Rtph {
    Rtph {
        last: opcode == TpOpcode::Data,
        opcode,
        version: 0,
        padding: 0,
        src_tpn: 0x11_0000 + n,
        dst_tpn: 0x22_0000 + n,
        ack_req: opcode == TpOpcode::Data,
        flag: false,
        psn: Psn::new(0x10_0000 + n),
        status: UbStatus::SUCCESS,
        tpmsn: 0x33_0000 + n,
    }
}

fn data(ta: TaHeader, n: u32) -> UbHead {
    let rtph = Some(rtph(TpOpcode::Data, n));
    UbHead { nth: nth(NextLayer::Reliable), rtph, cetph: None, saetph: None, ta: Some(ta) }
}

/// The transaction header of an opcode, each field from its number.
fn transaction(opcode: TaOpcode) -> TaHeader {
    let n = opcode as u32;
    if opcode.is_response() {
        let status = UbStatus { status: UbStatus::OK, info: 2 };
        return TaHeader::Response(Atah {
            status,
            granted: true,
            context: 0x40 + n as u16,
            offset: 0x500 + n,
            ..Atah::new(opcode, 0x600 + n as u16, 0x700 + n)
        });
    }
    let mut request = TaRequest::new(Btah {
        has_token: opcode.has_memory() || n <= 1,
        order: OrderTag::Strong,
        completion_order: true,
        has_target: n <= 1 || n == 4 || n == 0x10,
        alloc: n == 3,
        rc_type: RC_TYPE_CONTEXT,
        mode: ServiceMode::Rot,
        context: 0x40 + n as u16,
        order_number: 0x80 + n as u16,
        offset: 0x500 + n,
        ..Btah::new(opcode, 0x600 + n as u16, 0x700 + n)
    });
    if opcode.has_memory() {
        let addr = 0x7f00_1122_3344_0000 + u64::from(n);
        request.memory = Some(Maetah { addr, token_id: 0xa_0000 + n, len: 0x2000 + n });
    }
    request.token = request.base.has_token.then_some(0xbeef_0000 + n);
    request.target = request.base.has_target.then_some(Mtetah { hint: 9, kind: Mtetah::GROUP, id: 0x5_0000 + n });
    request.operands =
        [0x1111_0000 + u64::from(n), if opcode == TaOpcode::Cas { 0x2222_0000 + u64::from(n) } else { 0 }];
    if !opcode.is_atomic() {
        request.operands = [0; 2];
    }
    if opcode.has_immediate() {
        request.immediate = 0x4444_0000 + u64::from(n);
    }
    if opcode == TaOpcode::WriteNotify {
        request.notify = Some(NotifyTarget { addr: 0x5555_0000, token_id: 0x6_0000, token: Some(0x7777_0000) });
    }
    TaHeader::Request(request)
}

/// A REQUEST of a channel (crate `urma`): kind, version, MTU, TPN, first PSN, incarnation.
fn request() -> Vec<u8> {
    let mut b = vec![1, 1, 0x10, 0, 0x01, 0x02, 0x03, 0x0a, 0x0b, 0x0c];
    b.resize(32, 0);
    b[16..24].copy_from_slice(&77u64.to_be_bytes());
    b
}

/// All golden packets: each opcode, the acknowledgements, and a management message.
fn packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut add = |head: &UbHead, payload: &[u8]| {
        let mut bytes = vec![0; UB_HEAD_MAX + payload.len() + encap::UB_CHECKSUM_LEN];
        let len = head.emit(&Dialect::BURST, &mut bytes);
        bytes[len..len + payload.len()].copy_from_slice(payload);
        let len = len + payload.len();
        assert_eq!(UbPacket::parse(&bytes[..len], &Dialect::BURST).expect("is a packet").head, *head);
        let len = encap::seal(&mut bytes, len);
        bytes.truncate(len);
        all.push(bytes);
    };
    for opcode in TaOpcode::ALL.iter().copied().filter(|opcode| *opcode != TaOpcode::Management) {
        let payload: &[u8] = if opcode.has_payload() { &[opcode as u8; 8] } else { &[] };
        add(&data(transaction(opcode), opcode as u32), payload);
    }
    for congestion in [false, true] {
        let cetph = congestion.then_some(Cetph { ack_bytes: 1234, increase: true, marked: 3, granted: 96 });
        let n = 0x80 + u32::from(congestion);
        let ack = UbHead {
            nth: nth(NextLayer::Reliable),
            rtph: Some(rtph(TpOpcode::Ack { congestion }, n)),
            cetph,
            saetph: None,
            ta: None,
        };
        add(&ack, &[]);
        let mut bitmap = [0; SACK_WORDS_MAX];
        bitmap[0] = 0b1010;
        bitmap[1] = 1 << 63;
        let saetph = Some(Saetph { max_psn: Psn::new(0x10_0000 + n + 127), bitmap, size_code: 1 });
        add(&UbHead { rtph: Some(rtph(TpOpcode::Sack { congestion }, n)), saetph, ..ack }, &[]);
    }
    let fused = Atah {
        status: UbStatus { status: UbStatus::FUSED, info: 0 },
        mode: ServiceMode::Rol,
        ..Atah::new(TaOpcode::TaAck, 8, 9)
    };
    let status = fused.status;
    let rtph = Some(Rtph { status, ..rtph(TpOpcode::Ack { congestion: false }, 0x90) });
    let ta = Some(TaHeader::Response(fused));
    add(&UbHead { nth: nth(NextLayer::Reliable), rtph, cetph: None, saetph: None, ta }, &[]);
    // A TAACK that acknowledges packets as well.
    let acknowledges = Atah { acknowledges: true, offset: 0x10_0095, ..Atah::new(TaOpcode::TaAck, 10, 11) };
    let carrier = data(TaHeader::Response(acknowledges), 0x91);
    add(&carrier, &[]);
    let ta = Some(transaction(TaOpcode::Management));
    add(&UbHead { nth: nth(NextLayer::Unreliable), rtph: None, cetph: None, saetph: None, ta }, &request());
    all
}

/// A capture of raw IPv4 packets (link type 101), without UDP checksums.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 0xffff, 101] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for (n, packet) in packets.iter().enumerate() {
        let len = (28 + packet.len()) as u32;
        for word in [n as u32, 0, len, len] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        let [high, low] = (len as u16).to_be_bytes();
        file.extend_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6]);
        let port = UB_UDP_PORT.to_be_bytes();
        let [high, low] = (8 + packet.len() as u16).to_be_bytes();
        file.extend_from_slice(&[port[0], port[1], port[0], port[1], high, low, 0, 0]);
        file.extend_from_slice(packet);
    }
    file
}

#[test]
fn the_golden_capture_is_that_of_this_encoder() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/unified-bus.pcap");
    let file = capture(&packets());
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &file).expect("a file");
    }
    assert!(std::fs::read(&path).expect("BLESS=1 writes it") == file, "the format has changed");
}
