//! Heads that are made and recognized from another one of their message are those that are written and read as a whole.

use burst_base::Psn;
use burst_ubwire::{
    Btah, Cna, CongestionField, Dialect, Maetah, MessageHead, Mtetah, NextLayer, NextPart, Nth, Rtph, TaHeader,
    TaOpcode, TaRequest, TpOpcode, UB_HEAD_MAX, UbHead, UbStatus,
};
use proptest::prelude::*;

/// What differs between the packets of a message.
type Part = (u32, bool, bool, u32, u16);

fn head(
    (psn, last, ack_req, offset, congestion): Part,
    (opcode, tassn, token): (TaOpcode, u16, Option<u32>),
) -> UbHead {
    let mut request = TaRequest::new(Btah::new(opcode, tassn, 0x401));
    (request.base.offset, request.base.has_token, request.token) = (offset, token.is_some(), token);
    if opcode.has_memory() {
        request.memory = Some(Maetah { addr: 0x1122_3344_5566_7788, token_id: 0x5_4321, len: 1 << 20 });
    } else {
        request.target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: 0x402 });
    }
    let nth = Nth {
        source: Cna::new(0x01_0203),
        dest: Cna::new(0x04_0506),
        congestion: CongestionField::parse(congestion),
        balance: 7,
        service_level: 3,
        next: NextLayer::Reliable,
    };
    let rtph = Rtph {
        last,
        opcode: TpOpcode::Data,
        version: 0,
        padding: 0,
        src_tpn: 0x11_2233,
        dst_tpn: 0x44_5566,
        ack_req,
        flag: true,
        psn: Psn::new(psn),
        status: UbStatus::SUCCESS,
        tpmsn: 0x77_8899,
    };
    UbHead { nth, rtph: Some(rtph), cetph: None, saetph: None, ta: Some(TaHeader::Request(request)) }
}

fn bytes(head: &UbHead) -> Vec<u8> {
    let mut bytes = vec![0xa5; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    bytes.truncate(len);
    bytes
}

fn part() -> impl Strategy<Value = Part> {
    (0u32..1 << 24, any::<bool>(), any::<bool>(), 0u32..1 << 24, any::<u16>())
}

proptest! {
    #[test]
    fn a_head_made_from_another_one_is_written_and_recognized(
        (first, second) in (part(), part()), tassn in any::<u16>(), token in any::<Option<u32>>(),
        opcode in prop::sample::select(vec![TaOpcode::Write, TaOpcode::WriteImm, TaOpcode::Send, TaOpcode::SendImm]),
        payload in proptest::collection::vec(any::<u8>(), 0..20),
        (at, bit) in (any::<prop::sample::Index>(), 0u32..8),
    ) {
        let of = (opcode, tassn, token);
        let mut kept = MessageHead::new();
        kept.keep(&bytes(&head(first, of)));
        let other = head(second, of);
        prop_assert_eq!(kept.bytes(), &bytes(&head(first, of))[..]);
        let mut made = [0x5a; UB_HEAD_MAX];
        let len = kept.emit(other.nth.congestion, &mut made);
        MessageHead::set(&mut made, Psn::new(second.0), (second.1, second.2), second.3);
        let whole = bytes(&other);
        prop_assert_eq!(&made[..len], &whole[..]);

        let mut packet = [&whole[..], &payload].concat();
        let (psn, last, ack_req, offset, congestion) = second;
        let congestion = CongestionField::parse(congestion);
        let wanted = NextPart { congestion, last, ack_req, psn: Psn::new(psn), offset, payload: &payload };
        prop_assert_eq!(kept.follow(&packet), Some(wanted));
        for cut in 0..len {
            prop_assert_eq!(kept.follow(&packet[..cut]), None);
        }
        // Any other bit makes it another message's.
        let at = at.index(len);
        packet[at] ^= 1 << bit;
        let may_differ = match at {
            7 | 8 | 21..=23 | 41..=43 => true,
            12 | 20 => bit == 7,
            _ => false,
        };
        prop_assert_eq!(kept.follow(&packet).is_some(), may_differ, "byte {}", at);
    }
}

#[test]
fn no_head_is_followed_by_nothing() {
    assert!(MessageHead::new().bytes().is_empty());
    assert_eq!(MessageHead::default().follow(&[0; 200]), None);
}
