//! Any bytes are a packet or have a named reason; what is accepted is written so that it is read the same again, in every
//! dialect.

use burst_base::Reason;
use burst_ubwire::{Cna, Dialect, NextLayer, Nth, Rtph, TpOpcode, UB_HEAD_MAX, UbHead, UbPacket, UbStatus};
use proptest::prelude::*;

fn reread(bytes: &[u8], dialect: &Dialect) -> Option<Reason> {
    let packet = match UbPacket::parse(bytes, dialect) {
        Ok(packet) => packet,
        Err(reason) => return Some(reason),
    };
    let mut again = vec![0xa5; UB_HEAD_MAX];
    let len = packet.head.emit(dialect, &mut again);
    again.truncate(len);
    again.extend(packet.payload);
    let copy = UbPacket::parse(&again, dialect).expect("what was written is read");
    assert_eq!(copy.head, packet.head, "{}", dialect.name);
    assert!(dialect.padded || copy.payload == packet.payload);
    None
}

proptest! {
    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for dialect in Dialect::ALL {
            reread(&bytes, &dialect);
        }
    }

    /// Bytes whose selectors are right more often.
    #[test]
    fn nearly_packets(
        mut bytes in proptest::collection::vec(any::<u8>(), 28..300),
        next in 1u8..4, tp in 0u8..9, ta in 0u8..0x18, cut in any::<prop::sample::Index>(), quiet in any::<bool>(),
    ) {
        bytes[10] = bytes[10] & 0xf0 | next;
        bytes[12] = tp;
        bytes[13] = 0;
        if quiet && bytes.len() > 60 {
            bytes[45..60].fill(0);
        }
        let at = match next { 1 => 12, _ => 28 };
        if let Some(byte) = bytes.get_mut(at) { *byte = ta; }
        let cut = cut.index(bytes.len() + 1);
        for dialect in Dialect::ALL {
            reread(&bytes, &dialect);
            reread(&bytes[..cut], &dialect);
        }
    }
}

#[test]
fn every_prefix_of_an_acknowledgement_is_refused() {
    let rtph = Rtph {
        last: false,
        opcode: TpOpcode::Sack { congestion: true },
        version: 0,
        padding: 0,
        src_tpn: 1,
        dst_tpn: 2,
        ack_req: false,
        flag: false,
        psn: burst_base::Psn::new(9),
        status: UbStatus::SUCCESS,
        tpmsn: 0,
    };
    let mut bitmap = [0; burst_ubwire::SACK_WORDS_MAX];
    bitmap[1] = 0x8000_0000_0000_0001;
    let head = UbHead {
        nth: Nth {
            source: Cna::new(1),
            dest: Cna::new(2),
            congestion: Default::default(),
            balance: 0,
            service_level: 0,
            next: NextLayer::Reliable,
        },
        rtph: Some(rtph),
        cetph: Some(burst_ubwire::Cetph { ack_bytes: 7, increase: true, marked: 3, granted: 500 }),
        saetph: Some(burst_ubwire::Saetph { max_psn: burst_base::Psn::new(136), bitmap, size_code: 1 }),
        ta: None,
    };
    let mut bytes = [0; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    assert_eq!(len, 12 + 16 + 8 + 4 + 16);
    let packet = UbPacket::parse(&bytes[..len], &Dialect::BURST).expect("is a packet");
    assert_eq!(packet.head, head);
    let saetph = packet.head.saetph.expect("has a bitmap");
    assert!(saetph.has(64) && saetph.has(127) && !saetph.has(0) && !saetph.has(128));
    for cut in 0..len {
        assert_eq!(UbPacket::parse(&bytes[..cut], &Dialect::BURST).map(|_| ()), Err(Reason::Truncated), "{cut}");
    }
    assert_eq!(UbPacket::parse(&bytes[..len + 1], &Dialect::BURST), Err(Reason::TrailingBytes));
    bytes[36] = 5;
    assert_eq!(UbPacket::parse(&bytes[..len], &Dialect::BURST), Err(Reason::UbSackSize));
    bytes[13] = 0x40;
    assert_eq!(UbPacket::parse(&bytes[..len], &Dialect::BURST), Err(Reason::UbVersion));
    (bytes[13], bytes[12]) = (0, 8);
    assert_eq!(UbPacket::parse(&bytes[..len], &Dialect::BURST), Err(Reason::UbTransportOpcode));
    bytes[10] = 0;
    assert_eq!(UbPacket::parse(&bytes[..len], &Dialect::BURST), Err(Reason::UbNextLayer));
}
