//! Replays captures of Linux soft-RoCE. The responder gets the requests of rxe's requester and must give the
//! answers of rxe's responder, where both follow the specification exactly. The requester must make the
//! requests of rxe's requester. The captures are described in crates/bytes/wire/tests/vectors/README.md.
use crate::common::{End, Setup, describe, ip_of, qpn_of};
use burst_base::verbs::{Mtu, QpAttr, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Qpn};
use burst_shm::layout::SendWqe;
use burst_wire::{HeadBuf, Layers, NakCode, OpKind, Opcode, Packet, Syndrome};

const NOW: Nanos = Nanos(1_000);

/// One captured packet, changed so that it is for the test's queue pair.
struct Captured {
    is_request: bool,
    bytes: Vec<u8>,
}

/// Packets of `file`, BTH to padding.
fn capture(file: &str) -> Vec<Captured> {
    let path = format!("{}/../../bytes/wire/tests/vectors/{file}.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).expect("vector")).expect("pcap");
    let mut out = Vec::new();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.expect("whole");
        let layers = Layers::parse(&frame.data).expect("RoCEv2");
        let packet = Packet::parse(layers.transport).expect("well-formed");
        out.push(Captured { is_request: packet.info.kind.is_request(), bytes: layers.transport.to_vec() });
    }
    out
}

/// The request with the destination and key of the test's queue pair, and its addresses moved to begin at 0.
fn ours(bytes: &[u8], key: u32, base: u64) -> Vec<u8> {
    let packet = Packet::parse(bytes).expect("well-formed");
    let bth = burst_wire::Bth { dest_qpn: qpn_of(1), ..packet.bth };
    let mut head = HeadBuf::new(&bth);
    if let Some(reth) = packet.reth() {
        head = head.reth(burst_wire::Reth { rkey: burst_base::Rkey(key), addr: reth.addr.wrapping_sub(base), ..reth });
    }
    if let Some(atomic) = packet.atomic() {
        let rkey = burst_base::Rkey(key);
        head = head.atomic(burst_wire::AtomicEth { rkey, addr: atomic.addr.wrapping_sub(base), ..atomic });
    }
    if let Some(imm) = packet.imm() {
        head = head.imm(imm);
    }
    if let Some(ieth) = packet.ieth() {
        head = head.ieth(ieth);
    }
    let mut out = head.as_slice().to_vec();
    out.extend_from_slice(&bytes[packet.head().len()..]);
    out
}

/// A responder that expects the first request of `packets`, with the key and the base of the addresses for it.
fn responder(packets: &[Captured]) -> (End, u32, u64) {
    let first = Packet::parse(&packets[0].bytes).expect("well-formed").bth.psn;
    let base = Setup::default();
    let attr = QpAttr { rq_psn: first, min_rnr_timer: 22, max_dest_rd_atomic: 16, ..base.attr };
    let setup = Setup { mtu: Mtu::B1024, attr, ..base };
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let lowest = packets
        .iter()
        .filter_map(|p| {
            let packet = Packet::parse(&p.bytes).expect("well-formed");
            packet.reth().map(|r| r.addr).or(packet.atomic().map(|a| a.addr))
        })
        .min()
        .unwrap_or(0);
    let key = end.lkey;
    (end, key, lowest & !0xfff)
}

fn post_receives(end: &mut End, count: u64, len: u32) {
    for wr_id in 0..count {
        let sges = [end.sge(wr_id * 8192, len)];
        end.post_receive(wr_id, &sges);
    }
}

/// Plays the requests up to each answer of the capture, and returns the responder's answers.
fn replay(end: &mut End, packets: &[Captured], key: u32, base: u64) -> (Vec<String>, Vec<String>) {
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for packet in packets {
        if packet.is_request {
            got.extend(end.drain(NOW).iter().map(|b| describe(b)));
            end.receive_from(NOW, ip_of(0), &ours(&packet.bytes, key, base));
        } else {
            want.push(describe(&packet.bytes));
        }
    }
    got.extend(end.drain(NOW).iter().map(|b| describe(b)));
    (got, want)
}

#[test]
fn the_responder_answers_as_in_the_capture() {
    for file in [
        "rc-send",
        "rc-write",
        "rc-write-imm",
        "rc-read",
        "rc-atomic",
        "rc-psn-wrap",
        "nak-sequence",
        "rc-ipv6",
        "rc-ipv4-tclass",
    ] {
        let mut packets = capture(file);
        if file == "nak-sequence" {
            // Captured before the packet was lost.
            let lost = packets.iter().position(|p| Packet::parse(&p.bytes).unwrap().bth.psn.get() == 258);
            packets.remove(lost.expect("the lost packet"));
        }
        let (mut end, key, base) = responder(&packets);
        post_receives(&mut end, 16, 8192);
        let (got, want) = replay(&mut end, &packets, key, base);
        assert_eq!(got, want, "{file}");
    }
}

#[test]
fn answers_carry_the_captured_message_sequence_numbers() {
    for file in ["rc-send", "rc-write", "rc-atomic"] {
        let packets = capture(file);
        let (mut end, key, base) = responder(&packets);
        post_receives(&mut end, 16, 8192);
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for packet in &packets {
            if packet.is_request {
                end.receive_from(NOW, ip_of(0), &ours(&packet.bytes, key, base));
                got.extend(end.drain(NOW).iter().filter_map(|b| Packet::parse(b).unwrap().aeth()).map(|a| a.msn));
            } else {
                want.extend(Packet::parse(&packet.bytes).unwrap().aeth().map(|a| a.msn));
            }
        }
        // The capture may begin after other messages.
        let shift = want[0].wrapping_sub(got[0]);
        assert_eq!(got.iter().map(|m| m + shift).collect::<Vec<_>>(), want, "{file}");
    }
}

#[test]
fn receiver_not_ready_until_a_receive_is_posted() {
    let packets = capture("rnr-nak");
    let (mut end, key, base) = responder(&packets);
    let last = packets.len() - 2;
    let (mut got, mut want) = replay(&mut end, &packets[..last], key, base);
    post_receives(&mut end, 1, 8192);
    let (after, wanted) = replay(&mut end, &packets[last..], key, base);
    got.extend(after);
    want.extend(wanted);
    assert_eq!(got, want);
}

#[test]
fn a_partly_lost_read_is_answered_from_the_requested_packet() {
    let packets = capture("read-response-lost");
    let (mut end, key, base) = responder(&packets);
    let (got, want) = replay(&mut end, &packets, key, base);
    assert_eq!(got.len(), want.len());
    // rxe begins its second response with "middle"; the specification, and Burst, with "first" (IBA 9.7.5.1.3).
    for (i, (ours, theirs)) in got.iter().zip(&want).enumerate() {
        let theirs = if i == 4 { theirs.replace("Middle", "First") } else { theirs.clone() };
        assert_eq!(*ours, theirs);
    }
}

#[test]
fn refusals_are_those_captured() {
    let cases = [("nak-remote-access", NakCode::RemoteAccess), ("nak-qp-access", NakCode::InvalidRequest)];
    for (file, code) in cases {
        let packets = capture(file);
        let syndromes: Vec<_> =
            packets.iter().filter_map(|p| Packet::parse(&p.bytes).unwrap().aeth()).map(|a| a.syndrome).collect();
        assert!(syndromes.iter().all(|s| *s == Syndrome::Nak(code)), "{file}");
        // Every request of these captures was made on a fresh queue pair.
        for packet in packets.iter().filter(|p| p.is_request && begins(p)) {
            let one = [Captured { is_request: true, bytes: packet.bytes.clone() }];
            let (mut end, key, base) = responder(&one);
            if code == NakCode::InvalidRequest {
                let none = QpAttr { qp_access_flags: 0, ..QpAttr::default() };
                end.modify(&none, burst_base::verbs::attr_mask::ACCESS_FLAGS, 0).expect("allowed");
            }
            let wrong = if code == NakCode::RemoteAccess { key ^ 0x100 } else { key };
            let (got, _) = replay(&mut end, &one, wrong, base);
            let psn = Packet::parse(&packet.bytes).unwrap().bth.psn.get();
            assert_eq!(got, [format!("RcAck {psn} {:?}", Syndrome::Nak(code))], "{file}");
        }
    }
}

fn begins(packet: &Captured) -> bool {
    Packet::parse(&packet.bytes).unwrap().info.position.is_start()
}

/// The requests of a capture, posted as work requests, make the same packets.
#[test]
fn the_requester_makes_the_captured_packets() {
    for file in ["rc-send", "rc-write", "rc-write-imm", "rc-psn-wrap"] {
        let packets = capture(file);
        let is_message = |p: &&Captured| {
            matches!(Packet::parse(&p.bytes).expect("well-formed").info.kind, OpKind::Send | OpKind::Write)
        };
        let requests: Vec<&[u8]> = packets.iter().filter(is_message).map(|p| &p.bytes[..]).collect();
        let base = Setup::default();
        let first = Packet::parse(requests[0]).unwrap().bth;
        let attr = QpAttr { sq_psn: first.psn, dest_qpn: first.dest_qpn, ..base.attr };
        let setup = Setup { mtu: Mtu::B1024, attr, ..base };
        let mut end = End::new(0, &setup);
        end.bring_up(1, &setup, QpState::Rts);
        post_captured(&mut end, &requests);
        let mut made = Vec::new();
        let mut psn = first.psn;
        while made.len() < requests.len() {
            let more = end.drain(NOW);
            psn = psn.add(more.len() as u32);
            made.extend(more);
            acknowledge(&mut end, psn.prev());
        }
        let made: Vec<Readable> = made.iter().map(|packet| readable(packet)).collect();
        assert_eq!(made, split(requests.iter().map(|packet| readable(packet)).collect()), "{file}");
        assert!(end.statuses().iter().all(|s| *s == WcStatus::Success));
    }
}

/// Short WRITEs as Burst sends them: each packet a message of its own.
fn split(mut packets: Vec<Readable>) -> Vec<Readable> {
    for first in 0..packets.len() {
        let Some(reth) = packets[first].reth.filter(|_| packets[first].opcode == Opcode::RcWriteFirst) else {
            continue;
        };
        let end =
            packets[first..].iter().position(|p| p.opcode != Opcode::RcWriteFirst && p.opcode != Opcode::RcWriteMiddle);
        let end = first + end.expect("a last packet");
        if packets[end].opcode != Opcode::RcWriteLast {
            continue;
        }
        let mut addr = reth.addr;
        for packet in &mut packets[first..=end] {
            let len = packet.payload.len() as u32;
            packet.opcode = Opcode::RcWriteOnly;
            packet.reth = Some(burst_wire::Reth { addr, len, ..reth });
            addr += u64::from(len);
        }
        assert_eq!(addr, reth.addr + u64::from(reth.len));
    }
    packets
}

/// A packet without the fields that the specification leaves open: MigReq, destination, and AckReq of packets that are not
/// the last.
#[derive(Debug, PartialEq)]
struct Readable {
    opcode: Opcode,
    psn: Psn,
    asks: bool,
    reth: Option<burst_wire::Reth>,
    imm: Option<burst_wire::ImmDt>,
    payload: Vec<u8>,
}

fn readable(bytes: &[u8]) -> Readable {
    let packet = Packet::parse(bytes).unwrap();
    Readable {
        opcode: packet.bth.opcode,
        psn: packet.bth.psn,
        asks: packet.bth.ack_req && packet.info.position.is_end(),
        reth: packet.reth(),
        imm: packet.imm(),
        payload: packet.payload.to_vec(),
    }
}

fn acknowledge(end: &mut End, psn: Psn) {
    let bth = burst_wire::Bth::new(Opcode::RcAck, Qpn::new(0), psn);
    let head = HeadBuf::new(&bth).aeth(burst_wire::Aeth { syndrome: Syndrome::ACK, msn: 0 });
    end.receive_from(NOW, ip_of(1), head.as_slice());
}

/// Puts the captured messages together and posts each.
fn post_captured(end: &mut End, requests: &[&[u8]]) {
    let (mut at, mut begin, mut head) = (0u64, 0u64, None);
    for bytes in requests {
        let packet = Packet::parse(bytes).unwrap();
        if packet.info.position.is_start() {
            (begin, head) = (at, packet.reth());
        }
        end.write_memory(at, packet.payload);
        at += packet.payload.len() as u64;
        if !packet.info.position.is_end() {
            continue;
        }
        let opcode = match (packet.info.kind, packet.info.has_imm) {
            (OpKind::Send, false) => WrOpcode::Send,
            (OpKind::Send, true) => WrOpcode::SendWithImm,
            (_, false) => WrOpcode::RdmaWrite,
            (_, true) => WrOpcode::RdmaWriteWithImm,
        };
        let wqe = SendWqe {
            opcode: opcode as u8,
            flags: send_flags::SIGNALED as u16,
            imm: packet.imm().map_or(0, |imm| imm.to_be32()),
            remote_addr: head.map_or(0, |reth| reth.addr),
            rkey: head.map_or(0, |reth| reth.rkey.0),
            ..SendWqe::default()
        };
        let sges = [end.sge(begin, (at - begin) as u32)];
        end.post(&wqe, &sges);
    }
}
