//! Any bytes as a Unified Bus datagram and packet, in every dialect: nothing panics, and what is accepted is written so that
//! it is read the same again.
#![no_main]

use burst_ubwire::{Dialect, UB_HEAD_MAX, UbPacket, encap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(packet) = encap::open(bytes) {
        assert_eq!(packet.len() + encap::UB_CHECKSUM_LEN, bytes.len());
    }
    for dialect in Dialect::ALL {
        let Ok(packet) = UbPacket::parse(bytes, &dialect) else { continue };
        let mut again = vec![0xa5; UB_HEAD_MAX];
        let len = packet.head.emit(&dialect, &mut again);
        again.truncate(len);
        again.extend(packet.payload);
        let copy = UbPacket::parse(&again, &dialect).expect("what was written is understood");
        assert_eq!(copy.head, packet.head);
        assert!(dialect.padded || copy.payload == packet.payload);
    }
});
