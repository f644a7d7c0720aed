//! Any bytes as a packet (standard or of the selective repeat family), as a frame and as a management datagram: nothing panics,
//! what is accepted hangs together, and what was understood is written so that it is understood the same again.
#![no_main]

use burst_base::Reason;
use burst_wire::icrc::{IdDelta, PseudoV4, len_after_id, recover_ipv4_id};
use burst_wire::selective::{BITMAP_WORDS_MAX, MESSAGE_PACKETS_MAX, VERSION};
use burst_wire::{
    AckBitmap, Bth, Ethernet, HeadBuf, ICRC_LEN, Icrc, Ip, Ipv4, Ipv6, Layers, MAD_LEN, MadHeader, Packet, Udp, Vlan,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    transport(bytes);
    frame(bytes);
    if let Some(header) = MadHeader::parse(bytes) {
        let mut again = [0xa5; MAD_LEN];
        header.emit(&mut again);
        assert_eq!(MadHeader::parse(&again), Some(header));
    }
});

fn transport(bytes: &[u8]) {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(reason) => return assert_parse_reason(reason),
    };
    assert_eq!(Bth::parse(bytes), Ok(packet.bth));
    assert_eq!(packet.head().len() + packet.payload.len() + usize::from(packet.bth.pad), bytes.len());
    let mut again = rebuild(&packet).as_slice().to_vec();
    again.extend(packet.payload);
    again.resize(bytes.len(), 0);
    let copy = Packet::parse(&again).expect("what was written is understood");
    assert_eq!((copy.bth, copy.payload), (packet.bth, packet.payload));
    assert_eq!((copy.deth(), copy.xrceth(), copy.reth()), (packet.deth(), packet.xrceth(), packet.reth()));
    assert_eq!((copy.atomic(), copy.aeth(), copy.atomic_ack()), (packet.atomic(), packet.aeth(), packet.atomic_ack()));
    assert_eq!((copy.imm(), copy.ieth()), (packet.imm(), packet.ieth()));
    assert_eq!((copy.seth(), copy.weth(), copy.saeth()), (packet.seth(), packet.weth(), packet.saeth()));
    if packet.info.service.is_selective() {
        assert_selective(&packet);
    }
}

/// What [`Packet::parse`] promises of an accepted packet of the selective repeat family.
fn assert_selective(packet: &Packet<'_>) {
    if let Some(seth) = packet.seth() {
        assert!(seth.version == VERSION && seth.lane == 0 && seth.index < MESSAGE_PACKETS_MAX);
        assert!(packet.info.position.is_start() || seth.index > 0);
    }
    if let Some(weth) = packet.weth() {
        assert!(weth.addr.checked_add(packet.payload.len() as u64).is_some());
    }
    let (Some(saeth), Some(bitmap)) = (packet.saeth(), packet.bitmap()) else {
        return assert!(packet.saeth().is_none());
    };
    assert!(usize::from(saeth.words) == bitmap.words() && bitmap.words() <= BITMAP_WORDS_MAX);
    let words: Vec<u64> = (0..bitmap.words()).map(|w| bitmap.word(w)).collect();
    let mut again = [0; 8 * BITMAP_WORDS_MAX];
    let len = AckBitmap::emit(&words, &mut again);
    assert_eq!(&again[..len], packet.payload);
    let received = (0..1024).filter(|&i| bitmap.is_received(i)).count() as u32;
    assert_eq!(received, words.iter().map(|word| word.count_ones()).sum::<u32>());
}

/// The head, from the parsed headers.
fn rebuild(packet: &Packet<'_>) -> HeadBuf {
    let mut head = HeadBuf::new(&packet.bth);
    head = packet.deth().map_or(head, |h| head.deth(h));
    head = packet.xrceth().map_or(head, |h| head.xrceth(h));
    head = packet.seth().map_or(head, |h| head.seth(h));
    head = packet.weth().map_or(head, |h| head.weth(h));
    head = packet.reth().map_or(head, |h| head.reth(h));
    head = packet.atomic().map_or(head, |h| head.atomic(h));
    head = packet.aeth().map_or(head, |h| head.aeth(h));
    head = packet.atomic_ack().map_or(head, |h| head.atomic_ack(h));
    head = packet.saeth().map_or(head, |h| head.saeth(h));
    head = packet.imm().map_or(head, |h| head.imm(h));
    packet.ieth().map_or(head, |h| head.ieth(h))
}

fn frame(bytes: &[u8]) {
    let layers = match Layers::parse(bytes) {
        Ok(layers) => layers,
        Err(reason) => return assert!(matches!(reason, Reason::NotOurs | Reason::Truncated)),
    };
    assert_outer_headers_survive(&layers, bytes);
    transport(layers.transport);
    let computed = layers.computed_icrc();
    let Ip::V4(ip) = &layers.ip else { return };
    let len = layers.transport.len() + ICRC_LEN;
    let blind = Icrc::ipv4(&PseudoV4 { id: 0, ..PseudoV4::of(ip, &layers.udp) }, len, layers.transport);
    let delta = IdDelta::new(len);
    assert_eq!(blind.finish_with_id(&delta, ip.id), computed);
    assert_eq!(delta.recover(blind.finish(), computed), Some(ip.id));
    let once = recover_ipv4_id(blind.finish(), layers.icrc, len_after_id(len));
    assert_eq!(delta.recover(blind.finish(), layers.icrc), once);
}

fn assert_outer_headers_survive(layers: &Layers<'_>, bytes: &[u8]) {
    let mut again = bytes.to_vec();
    layers.ethernet.emit(&mut again);
    let mut at = Ethernet::LEN;
    if let Some(tag) = layers.vlan {
        tag.emit(&mut again[at..]);
        at += Vlan::LEN;
    }
    match &layers.ip {
        Ip::V4(ip) => {
            ip.emit(&mut again[at..]);
            at += Ipv4::LEN;
        }
        Ip::V6(ip) => {
            ip.emit(&mut again[at..]);
            at += Ipv6::LEN;
        }
    }
    layers.udp.emit(&mut again[at..]);
    assert_eq!(again, bytes);
    assert_eq!(layers.transport.as_ptr(), bytes[at + Udp::LEN..].as_ptr());
}

fn assert_parse_reason(reason: Reason) {
    let known = [
        Reason::Truncated,
        Reason::BadVersion,
        Reason::UnknownOpcode,
        Reason::BadPadding,
        Reason::TrailingBytes,
        Reason::SrVersion,
        Reason::SrFlags,
        Reason::SrIndex,
        Reason::SrAddress,
        Reason::SrBitmap,
        Reason::SrSyndrome,
    ];
    assert!(known.contains(&reason), "{reason}");
}
