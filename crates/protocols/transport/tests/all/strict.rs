//! Selective repeat with strict placement: an early packet is kept whole, and changes nothing before its turn.
use crate::common::{End, Setup, ip_of, qpn_of};
use burst_base::verbs::{QpAttr, QpState, WcStatus};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_transport::{RecordPool, WINDOW_PSNS};
use burst_wire::{AtomicEth, Bth, HeadBuf, Opcode, Packet, Reth, Seth, Weth};

const NOW: Nanos = Nanos(1_000);
const FIRST: u32 = 10;

fn responder(packets: usize) -> End {
    let base = Setup::default();
    let attr = QpAttr { rq_psn: Psn::new(FIRST), sq_psn: Psn::new(FIRST), ..base.attr };
    let setup = Setup { selective: WINDOW_PSNS, attr, ..base };
    let mut end = End::new(1, &setup);
    end.fx.records = RecordPool::strict(4, packets);
    end.bring_up(0, &setup, QpState::Rts);
    end
}

/// PSN, index in its message, RSN.
fn head(opcode: Opcode, (psn, index, rsn): (u32, u32, u32)) -> HeadBuf {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, qpn_of(1), Psn::new(psn)) };
    HeadBuf::new(&bth).seth(Seth { index, rsn, ..Seth::default() })
}

fn feed(end: &mut End, head: HeadBuf, byte: u8, len: usize) {
    end.receive_from(NOW, ip_of(0), &[head.as_slice(), &vec![byte; len]].concat());
}

fn write(end: &mut End, opcode: Opcode, place: (u32, u32, u32), addr: u64, byte: u8, len: usize) {
    let weth = Weth { addr, rkey: Rkey(end.lkey) };
    feed(end, head(opcode, place).weth(weth), byte, len);
}

fn answers(end: &mut End) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        format!("{:?} {}", packet.bth.opcode, packet.bth.psn.get())
    };
    end.drain(NOW).iter().map(line).collect()
}

#[test]
fn nothing_of_an_early_packet_is_seen_before_its_turn() {
    let mut end = responder(16);
    for k in 0..2 {
        let sge = end.sge(8192 + k * 4096, 4096);
        end.post_receive(k, &[sge]);
    }
    let before = end.memory(0, 32 << 10);
    write(&mut end, Opcode::RcSrWriteMiddle, (11, 1, 0), 1024, 2, 1024);
    write(&mut end, Opcode::RcSrWriteLast, (12, 2, 0), 2048, 3, 500);
    feed(&mut end, head(Opcode::RcSrSendFirst, (13, 0, 0)), 4, 1024);
    feed(&mut end, head(Opcode::RcSrSendLast, (14, 1, 0)), 5, 100);
    // Overwrites the middle of the first message.
    write(&mut end, Opcode::RcSrWriteOnly, (15, 0, 1), 1500, 6, 100);
    let atomic = AtomicEth { addr: 4096, rkey: Rkey(end.lkey), swap_add: 7, compare: 0 };
    feed(&mut end, head(Opcode::RcSrFetchAdd, (16, 0, 1)).atomic(atomic), 0, 0);
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 2048 };
    feed(&mut end, head(Opcode::RcSrReadRequest, (17, 0, 1)).reth(reth), 0, 0);
    assert!(end.memory(0, 32 << 10) == before && end.fx.receives.is_empty());
    assert_eq!((end.fx.count_of(Reason::SrEarly), end.fx.records.packets_in_use()), (7, 7));
    assert_eq!(answers(&mut end), ["RcSrAck 9"]);
    // One of them again is a duplicate.
    write(&mut end, Opcode::RcSrWriteOnly, (15, 0, 1), 1500, 9, 100);
    assert_eq!((end.fx.count_of(Reason::DuplicateRequest), end.fx.records.packets_in_use()), (1, 7));
    write(&mut end, Opcode::RcSrWriteFirst, (10, 0, 0), 0, 1, 1024);
    let memory = end.memory(0, 32 << 10);
    let expected = [vec![1; 1024], vec![2; 476], vec![6; 100], vec![2; 448], vec![3; 500]].concat();
    assert!(memory[..2548] == expected);
    assert!(memory[8192..8192 + 1024] == [4; 1024] && memory[9216..9316] == [5; 100]);
    assert_eq!(memory[4096..4104], 7u64.to_ne_bytes());
    let sent = ["RcSrAck 18", "RcSrAtomicAck 16", "RcSrReadResponseFirst 17", "RcSrReadResponseLast 18", "RcSrAck 18"];
    let answers = answers(&mut end);
    assert!(answers.iter().all(|answer| sent.contains(&answer.as_str())) && answers.len() >= 4, "{answers:?}");
    assert_eq!(end.receive_statuses(), [WcStatus::Success]);
    assert_eq!((end.fx.records.in_use(), end.fx.records.packets_in_use()), (0, 0));
}

#[test]
fn packets_without_room_are_dropped_and_a_refusal_drops_what_is_kept() {
    let mut end = responder(2);
    for psn in 11..15 {
        write(&mut end, Opcode::RcSrWriteOnly, (psn, 0, 0), 0, 1, 64);
    }
    assert_eq!((end.fx.count_of(Reason::SrEarly), end.fx.count_of(Reason::SrPoolEmpty)), (2, 2));
    // No receive for 10, so it is refused for now, and 11 and 12 stay.
    feed(&mut end, head(Opcode::RcSrSendOnly, (10, 0, 0)), 1, 64);
    assert_eq!((end.fx.count_of(Reason::ReceiverNotReady), end.fx.records.packets_in_use()), (1, 2));
    let sge = end.sge(8192, 4096);
    end.post_receive(0, &[sge]);
    feed(&mut end, head(Opcode::RcSrSendOnly, (10, 0, 0)), 1, 64);
    assert_eq!(end.fx.records.packets_in_use(), 1, "11 has the wrong RSN: it is refused in its turn");
    assert_eq!(end.qp.state(), QpState::Err);
    end.drain(NOW);
    assert_eq!((end.fx.records.in_use(), end.fx.records.packets_in_use()), (0, 0));
}

#[test]
fn a_kept_message_without_a_receive_is_refused_in_its_turn_and_comes_again() {
    let mut end = responder(8);
    feed(&mut end, head(Opcode::RcSrSendOnly, (11, 0, 0)), 1, 64);
    write(&mut end, Opcode::RcSrWriteOnly, (12, 0, 1), 0, 2, 64);
    write(&mut end, Opcode::RcSrWriteOnly, (10, 0, 0), 64, 3, 64);
    assert_eq!((end.fx.count_of(Reason::ReceiverNotReady), end.qp.query().rq_psn.get()), (1, 11));
    assert_eq!((end.memory(0, 64), end.fx.records.packets_in_use()), (vec![0; 64], 1));
    let sge = end.sge(8192, 4096);
    end.post_receive(0, &[sge]);
    feed(&mut end, head(Opcode::RcSrSendOnly, (11, 0, 0)), 1, 64);
    assert_eq!((end.receive_statuses(), end.memory(0, 64)), (vec![WcStatus::Success], vec![2; 64]));
    assert_eq!((end.fx.records.in_use(), end.fx.records.packets_in_use()), (0, 0));
}
