//! Short WRITEs towards standard peers: their packets are messages of their own, with one length for all.
use crate::common::{End, Setup, ip_of, qpn_of};
use burst_base::verbs::{QpState, QpType, WrOpcode, send_flags};
use burst_base::{Nanos, Psn};
use burst_shm::layout::SendWqe;
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Packet, Syndrome};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const REMOTE: u64 = 0x7000;

fn requester(qp_type: QpType) -> End {
    let setup = Setup { qp_type, ..Setup::default() };
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    end
}

fn post(end: &mut End, opcode: WrOpcode, len: u32) {
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { opcode: opcode as u8, flags, remote_addr: REMOTE, rkey: 9, ..SendWqe::default() };
    let sges = [end.sge(0, len)];
    end.post(&wqe, &sges);
}

/// The packets that the requester sends now: opcode and PSN; where an RETH says that they are written, and of how many bytes.
fn sent(end: &mut End) -> Vec<String> {
    let name = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let place = packet.reth().map_or(String::new(), |reth| format!(" {:#x}+{}", reth.addr, reth.len));
        format!("{:?} {}{place}", packet.bth.opcode, packet.bth.psn.get())
    };
    end.drain(NOW).iter().map(name).collect()
}

fn answer(end: &mut End, psn: u32, msn: u32, syndrome: Syndrome) {
    let head = HeadBuf::new(&Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(psn))).aeth(Aeth { syndrome, msn });
    end.receive_from(NOW, ip_of(1), head.as_slice());
}

#[test]
fn each_packet_says_where_its_bytes_belong() {
    for (qp_type, only) in [(QpType::Rc, "RcWriteOnly"), (QpType::XrcSend, "XrcWriteOnly")] {
        let mut end = requester(qp_type);
        post(&mut end, WrOpcode::RdmaWrite, 3 * MTU + 5);
        let wanted = [(100, 0x7000, 1024), (101, 0x7400, 1024), (102, 0x7800, 1024), (103, 0x7c00, 5)];
        assert_eq!(sent(&mut end), wanted.map(|(psn, addr, len)| format!("{only} {psn} {addr:#x}+{len}")));
    }
}

#[test]
fn the_packets_of_two_requests_have_one_length() {
    let mut end = requester(QpType::Rc);
    post(&mut end, WrOpcode::RdmaWrite, 4 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 2 * MTU);
    let lengths: Vec<usize> = end.drain(NOW).iter().map(Vec::len).collect();
    assert_eq!(lengths, [12 + 16 + 1024; 6]);
}

#[test]
fn a_packet_is_sent_again_as_it_was() {
    let mut end = requester(QpType::Rc);
    post(&mut end, WrOpcode::RdmaWrite, 3 * MTU);
    let first = sent(&mut end);
    answer(&mut end, 101, 1, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end), first[1..]);
    answer(&mut end, 102, 3, Syndrome::ACK);
    assert_eq!(end.statuses().len(), 1, "one completion");
}

/// A long one, one whose length the peer is told, one whose packets must not come apart, and what is no WRITE.
#[test]
fn other_requests_are_one_message() {
    let cases = [
        (QpType::Rc, WrOpcode::RdmaWrite, 33 * MTU, "RcWriteFirst 100 0x7000+33792"),
        (QpType::Rc, WrOpcode::RdmaWriteWithImm, 2 * MTU, "RcWriteFirst 100 0x7000+2048"),
        (QpType::Uc, WrOpcode::RdmaWrite, 2 * MTU, "UcWriteFirst 100 0x7000+2048"),
        (QpType::Rc, WrOpcode::RdmaWrite, MTU, "RcWriteOnly 100 0x7000+1024"),
        (QpType::Rc, WrOpcode::Send, 2 * MTU, "RcSendFirst 100"),
    ];
    for (qp_type, opcode, len, first) in cases {
        let mut end = requester(qp_type);
        post(&mut end, opcode, len);
        assert_eq!(sent(&mut end)[0], first);
    }
}

/// The peer counts each packet as a message (MSN), and its credits begin there.
#[test]
fn credits_are_those_of_the_peers_messages() {
    let one_credit = Syndrome::Ack { credit: 1 };
    let mut end = requester(QpType::Rc);
    post(&mut end, WrOpcode::RdmaWrite, 4 * MTU);
    sent(&mut end);
    answer(&mut end, 103, 4, one_credit);
    for _ in 0..3 {
        post(&mut end, WrOpcode::Send, 4);
    }
    assert_eq!(sent(&mut end), ["RcSendOnly 104"], "the second waits for a receive");
    answer(&mut end, 104, 5, one_credit);
    assert_eq!(sent(&mut end), ["RcSendOnly 105"]);
    // A repetition is not counted again.
    post(&mut end, WrOpcode::RdmaWrite, 2 * MTU);
    answer(&mut end, 105, 6, Syndrome::Ack { credit: 2 });
    assert_eq!(sent(&mut end).len(), 3);
    answer(&mut end, 107, 7, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end).len(), 2);
    answer(&mut end, 108, 9, one_credit);
    post(&mut end, WrOpcode::Send, 4);
    post(&mut end, WrOpcode::Send, 4);
    assert_eq!(sent(&mut end), ["RcSendOnly 109"]);
}
