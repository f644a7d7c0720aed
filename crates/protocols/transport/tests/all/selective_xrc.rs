//! Selective repeat of XRC, packet by packet: early requests take receives, protection domain and completion queue of the shared
//! receive queue that each names; what happens to taken receives when the target or the queue ends; the initiator's packets.
//! The target's first PSN is 10, the path MTU 1024. `tests/all/selective.rs` has what XRC shares with RC.
use crate::common::{ALL_RIGHTS, End, PD, Setup, ip_of, qpn_of};
use burst_base::verbs::{EventType, QpAttr, QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_shm::layout::SendWqe;
use burst_shm::rq::RqProducer;
use burst_transport::WINDOW_PSNS;
use burst_wire::{
    Aeth, AtomicEth, Bth, HeadBuf, ImmDt, NakCode, Opcode, Packet, Reth, Saeth, Service, Seth, Syndrome, Weth, XrcEth,
};

const NOW: Nanos = Nanos(1_000);
const FIRST: u32 = 10;
/// Completion queues of the shared receive queues 1 and 2.
const CQS: [u32; 2] = [11, 12];

fn setup(qp_type: QpType) -> Setup {
    let base = Setup::default();
    let attr = QpAttr { rq_psn: Psn::new(FIRST), sq_psn: Psn::new(FIRST), ..base.attr };
    Setup { qp_type, selective: WINDOW_PSNS, attr, ..base }
}

/// A target with two shared receive queues of four receives each. Receive `n` of queue `q` has number 100 q + n, and 4 KiB at
/// 64 KiB * q + 4 KiB * n. The second queue's memory belongs to protection domain `pd`.
fn target_with(pd: u32) -> (End, [RqProducer; 2]) {
    let setup = setup(QpType::XrcRecv);
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let lkeys = [end.lkey, if pd == PD { end.lkey } else { end.register_in(pd, 256 << 10, ALL_RIGHTS) }];
    let queues = [(1, PD, lkeys[0]), (2, pd, lkeys[1])].map(|(srqn, pd, lkey)| {
        let mut app = crate::common::xrc_queue(&mut end, srqn, pd, (4, 1));
        for n in 0..4u64 {
            let addr = u64::from(srqn) * 65536 + n * 4096;
            app.write(u64::from(srqn) * 100 + n, &[burst_shm::layout::Sge { addr, length: 4096, lkey }]).expect("room");
        }
        let _ = app.post();
        app
    });
    (end, queues)
}

fn target() -> (End, [RqProducer; 2]) {
    target_with(PD)
}

/// PSN, index in its message, RSN, shared receive queue.
type Place = (u32, u32, u32, u32);

fn head(opcode: Opcode, (psn, index, rsn, srqn): Place) -> HeadBuf {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, qpn_of(1), Psn::new(psn)) };
    HeadBuf::new(&bth).xrceth(XrcEth { srqn }).seth(Seth { index, rsn, ..Seth::default() })
}

fn feed(end: &mut End, head: HeadBuf, payload: &[u8]) {
    end.receive_from(NOW, ip_of(0), &[head.as_slice(), payload].concat());
}

fn send(end: &mut End, opcode: Opcode, place: Place, byte: u8, len: usize) {
    feed(end, head(opcode, place), &vec![byte; len]);
}

fn write(end: &mut End, opcode: Opcode, place: Place, (addr, rkey): (u64, u32), (byte, len): (u8, usize)) {
    let head = head(opcode, place).weth(Weth { addr, rkey: Rkey(rkey) });
    let head = if opcode.info().has_imm { head.imm(ImmDt { bytes: [1; 4] }) } else { head };
    feed(end, head, &vec![byte; len]);
}

/// The answers: opcode, PSN, and the syndrome of an acknowledgement.
fn answers(end: &mut End) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        assert_eq!(packet.info.service, Service::XrcSr);
        let syndrome = packet.aeth().map_or(String::new(), |aeth| match aeth.syndrome {
            Syndrome::Ack { .. } => String::new(),
            other => format!(" {other:?}"),
        });
        let words = packet.bitmap().map_or(0, |bitmap| bitmap.words());
        format!("{:?} {}{syndrome} w{words}", packet.bth.opcode, packet.bth.psn.get())
    };
    end.drain(NOW).iter().map(line).collect()
}

/// Receive numbers with their completion queues.
fn received(end: &End) -> Vec<(u64, u32)> {
    end.fx.receives.iter().zip(&end.fx.receive_cqs).map(|((cqe, _), cq)| (cqe.wr_id, *cq)).collect()
}

#[test]
fn early_messages_take_the_next_receive_of_the_queue_that_each_names_and_complete_in_order() {
    let (mut end, _queues) = target();
    send(&mut end, Opcode::XrcSrSendOnly, (13, 0, 3, 2), 4, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (12, 0, 2, 1), 3, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (11, 0, 1, 2), 2, 64);
    assert_eq!((received(&end), answers(&mut end)), (vec![], vec!["XrcSrAck 9 w1".to_owned()]));
    assert_eq!(end.memory(2 * 65536, 64), [4; 64], "13 came first");
    send(&mut end, Opcode::XrcSrSendOnly, (10, 0, 0, 1), 1, 64);
    assert_eq!(received(&end), [(101, CQS[0]), (201, CQS[1]), (100, CQS[0]), (200, CQS[1])]);
    assert_eq!(answers(&mut end), ["XrcSrAck 13 w0"]);
    assert_eq!(end.fx.records.in_use(), 0);
    let bytes = [(65536 + 4096, 1), (2 * 65536 + 4096, 2), (65536, 3), (2 * 65536, 4)];
    bytes.iter().for_each(|(addr, byte)| assert_eq!(end.memory(*addr, 64), [*byte; 64]));
}

#[test]
fn a_write_in_turn_that_names_another_queue_leaves_the_receive_of_an_early_message_alone() {
    let (mut end, _queues) = target();
    let key = end.lkey;
    // The message of 12 and 13 is the next to complete a receive: RSN 0.
    send(&mut end, Opcode::XrcSrSendLast, (13, 1, 0, 1), 7, 64);
    write(&mut end, Opcode::XrcSrWriteOnly, (10, 0, 0, 2), (0, key), (1, 64));
    write(&mut end, Opcode::XrcSrWriteOnlyImm, (11, 0, 0, 2), (64, key), (2, 64));
    assert_eq!(end.qp.state(), QpState::Err, "two messages claim receive 0");
    let (mut end, _queues) = target();
    let key = end.lkey;
    send(&mut end, Opcode::XrcSrSendLast, (13, 1, 0, 1), 7, 64);
    write(&mut end, Opcode::XrcSrWriteOnly, (10, 0, 0, 2), (0, key), (1, 64));
    write(&mut end, Opcode::XrcSrWriteOnly, (11, 0, 0, 2), (64, key), (2, 64));
    assert_eq!(answers(&mut end), ["XrcSrAck 11 w1"]);
    send(&mut end, Opcode::XrcSrSendFirst, (12, 0, 0, 1), 6, 1024);
    assert_eq!((received(&end), answers(&mut end)), (vec![(100, CQS[0])], vec!["XrcSrAck 13 w0".to_owned()]));
    assert_eq!((end.memory(65536, 1024), end.memory(65536 + 1024, 64)), (vec![6; 1024], vec![7; 64]));
}

#[test]
fn each_queue_gives_access_to_the_memory_of_its_own_protection_domain() {
    let (mut end, _queues) = target_with(PD + 1);
    let (own, other) = (end.lkey, end.register_in(PD + 1, 4096, ALL_RIGHTS));
    // 11 would write memory of the second domain as a request for the first queue.
    write(&mut end, Opcode::XrcSrWriteOnly, (11, 0, 0, 1), (0, other), (2, 256));
    assert_eq!(end.fx.count_of(Reason::SrUnplaced), 1);
    write(&mut end, Opcode::XrcSrWriteOnly, (11, 0, 0, 2), (0, other), (2, 256));
    write(&mut end, Opcode::XrcSrWriteOnly, (12, 0, 0, 1), (0, own), (3, 256));
    assert_eq!(end.fx.count_of(Reason::SrEarly), 2);
    // 10 has the address of 11 and of 12: what these have written, perhaps to the same memory, stays.
    write(&mut end, Opcode::XrcSrWriteOnly, (10, 0, 0, 1), (0, own), (1, 256));
    assert_eq!((end.qp.state(), end.qp.query().rq_psn.get()), (QpState::Rts, 13));
    assert_eq!(end.memory(0, 256), [3; 256]);
    let mut bytes = [0; 256];
    let span = end.mem.local(PD + 1, burst_base::Lkey(other), 0, 256, 0).expect("registered");
    span.read_to(&mut bytes).expect("mapped");
    assert_eq!(bytes, [2; 256]);
    // In its turn, a request by a key of another domain is refused.
    write(&mut end, Opcode::XrcSrWriteOnly, (13, 0, 0, 1), (0, other), (2, 256));
    assert_eq!(end.fx.events, [EventType::QpAccessErr]);
}

#[test]
fn early_reads_and_atomics_are_executed_in_the_domain_of_their_queue() {
    let (mut end, _queues) = target_with(PD + 1);
    let other = end.register_in(PD + 1, 4096, ALL_RIGHTS);
    let reth = Reth { addr: 0, rkey: Rkey(other), len: 2048 };
    feed(&mut end, head(Opcode::XrcSrReadRequest, (11, 0, 0, 2)).reth(reth), &[]);
    let atomic = AtomicEth { addr: 8, rkey: Rkey(other), swap_add: 5, compare: 0 };
    feed(&mut end, head(Opcode::XrcSrFetchAdd, (13, 0, 0, 2)).atomic(atomic), &[]);
    let key = end.lkey;
    write(&mut end, Opcode::XrcSrWriteOnly, (10, 0, 0, 1), (0, key), (1, 64));
    let expected =
        ["XrcSrAck 13 w0", "XrcSrReadResponseFirst 11 w0", "XrcSrReadResponseLast 12 w0", "XrcSrAtomicAck 13 w0"];
    assert_eq!(answers(&mut end), expected);
    // Repeated, they are answered again.
    feed(&mut end, head(Opcode::XrcSrReadRequest, (11, 0, 0, 2)).reth(reth), &[]);
    assert_eq!(answers(&mut end), expected[1..3]);
}

#[test]
fn an_early_message_for_an_empty_or_unknown_queue_is_dropped_and_refused_in_its_turn() {
    let (mut end, _queues) = target();
    (0..4).for_each(|k| send(&mut end, Opcode::XrcSrSendOnly, (10 + k, 0, k, 1), 1, 64));
    send(&mut end, Opcode::XrcSrSendOnly, (15, 0, 5, 1), 1, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (15, 0, 5, 9), 1, 64);
    assert_eq!(end.fx.count_of(Reason::SrUnplaced), 2);
    assert_eq!(answers(&mut end), ["XrcSrAck 13 w0"]);
    send(&mut end, Opcode::XrcSrSendOnly, (14, 0, 4, 1), 1, 64);
    assert_eq!(answers(&mut end), ["XrcSrAck 14 Rnr { timer: 1 } w0"]);
    assert_eq!((end.qp.state(), end.fx.count_of(Reason::ReceiverNotReady)), (QpState::Rts, 1));
    send(&mut end, Opcode::XrcSrSendOnly, (14, 0, 4, 2), 1, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (15, 0, 5, 9), 1, 64);
    let refusal = format!("XrcSrAck 15 {:?} w0", Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!((answers(&mut end), end.qp.state()), (vec![refusal], QpState::Err));
}

#[test]
fn all_packets_of_a_message_name_one_queue() {
    // Early: the packet for the other queue finds the receive of the first.
    let (mut end, _queues) = target();
    send(&mut end, Opcode::XrcSrSendMiddle, (12, 1, 1, 1), 1, 1024);
    send(&mut end, Opcode::XrcSrSendLast, (13, 2, 1, 2), 1, 64);
    assert_eq!((end.fx.count_of(Reason::SrEarly), end.fx.count_of(Reason::SrUnplaced)), (1, 1));
    // In turn.
    let key = end.lkey;
    write(&mut end, Opcode::XrcSrWriteMiddle, (15, 1, 1, 2), (1024, key), (1, 1024));
    write(&mut end, Opcode::XrcSrWriteLast, (16, 2, 1, 1), (2048, key), (1, 64));
    send(&mut end, Opcode::XrcSrSendOnly, (10, 0, 0, 1), 1, 64);
    send(&mut end, Opcode::XrcSrSendFirst, (11, 0, 1, 1), 1, 1024);
    send(&mut end, Opcode::XrcSrSendLast, (13, 2, 1, 1), 1, 64);
    assert_eq!((end.qp.state(), end.qp.query().rq_psn.get()), (QpState::Rts, 14));
    write(&mut end, Opcode::XrcSrWriteFirst, (14, 0, 2, 2), (0, key), (1, 1024));
    assert_eq!((end.qp.state(), end.fx.count_of(Reason::InvalidOpcodeSequence)), (QpState::Err, 1), "16 in its turn");
}

#[test]
fn a_failed_target_flushes_each_receive_that_it_has_taken_to_the_queue_that_it_came_from() {
    let (mut end, _queues) = target();
    send(&mut end, Opcode::XrcSrSendOnly, (13, 0, 3, 2), 4, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (12, 0, 2, 1), 3, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (11, 0, 0, 2), 3, 64);
    end.move_to(QpState::Err);
    end.drain(NOW);
    let mut flushed = received(&end);
    flushed.sort_unstable();
    assert_eq!(flushed, [(100, CQS[0]), (200, CQS[1]), (201, CQS[1])]);
    assert_eq!(end.receive_statuses(), [WcStatus::WrFlushErr; 3]);
    assert_eq!((end.fx.events.clone(), end.fx.records.in_use()), (vec![EventType::QpLastWqeReached], 0));
}

#[test]
fn a_destroyed_queue_takes_the_receives_along_that_early_messages_have_taken() {
    let (mut end, _queues) = target();
    send(&mut end, Opcode::XrcSrSendOnly, (11, 0, 0, 2), 2, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (13, 0, 2, 2), 2, 64);
    send(&mut end, Opcode::XrcSrSendOnly, (12, 0, 1, 1), 3, 64);
    end.fx.srqs.retain(|(srqn, _)| *srqn != 2);
    end.qp.forget_srq(2);
    let key = end.lkey;
    write(&mut end, Opcode::XrcSrWriteOnly, (10, 0, 0, 1), (0, key), (1, 64));
    let refusal = format!("XrcSrAck 11 {:?} w1", Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(answers(&mut end)[0][..refusal.len() - 3], refusal[..refusal.len() - 3]);
    end.drain(NOW);
    assert_eq!((received(&end), end.receive_statuses()), (vec![(100, CQS[0])], vec![WcStatus::WrFlushErr]));
    assert_eq!(end.fx.records.in_use(), 0);
}

fn initiator() -> End {
    let setup = setup(QpType::XrcSend);
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    end
}

fn post(end: &mut End, opcode: WrOpcode, srqn: u32, len: u32) {
    let flags = send_flags::SIGNALED as u16;
    let (opcode, remote_qpn) = (opcode as u8, srqn);
    let wqe = SendWqe { opcode, flags, remote_qpn, remote_addr: 0x1000, rkey: 5, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(0, len)]);
}

/// Opcode, PSN, shared receive queue, index and transmission number, and the address of a WRITE or READ.
fn sent(end: &mut End, now: Nanos) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let (seth, queue) = (packet.seth().unwrap_or_default(), packet.xrceth().map(|eth| eth.srqn));
        let addr = packet.weth().map(|weth| weth.addr).or(packet.reth().map(|reth| reth.addr));
        let marks =
            [(seth.is_probe, " P"), (seth.is_repair, " A")].map(|(is, mark)| if is { mark } else { "" }).concat();
        let queue = queue.map_or(String::new(), |queue| format!(" q{queue}"));
        let addr = addr.map_or(String::new(), |addr| format!(" {addr:#x}"));
        let (opcode, psn) = (packet.bth.opcode, packet.bth.psn.get());
        format!("{opcode:?} {psn}{queue} i{} r{} x{}{addr}{marks}", seth.index, seth.rsn, seth.transmission)
    };
    end.drain(now).iter().map(line).collect()
}

/// The target has everything up to `psn`, and one packet behind the one after.
fn acknowledge(end: &mut End, psn: u32, words: &[u64]) {
    let trigger = Psn::new(psn + 2);
    let saeth = Saeth { words: words.len() as u8, trigger, ..Saeth::default() };
    let head = HeadBuf::new(&Bth::new(Opcode::XrcSrAck, qpn_of(0), Psn::new(psn)));
    let head = head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).saeth(saeth);
    let mut bytes = [0; 120];
    let len = burst_wire::selective::AckBitmap::emit(words, &mut bytes);
    end.receive_from(NOW, ip_of(1), &[head.as_slice(), &bytes[..len]].concat());
}

#[test]
fn an_initiator_names_the_queue_in_each_request_and_in_each_repetition() {
    let mut end = initiator();
    post(&mut end, WrOpcode::RdmaWrite, 1, 4 * 1024);
    post(&mut end, WrOpcode::Send, 2, 8);
    post(&mut end, WrOpcode::RdmaRead, 1, 1500);
    post(&mut end, WrOpcode::AtomicFetchAndAdd, 2, 8);
    let expected = [
        "XrcSrWriteFirst 10 q1 i0 r0 x0 0x1000",
        "XrcSrWriteMiddle 11 q1 i1 r0 x0 0x1400",
        "XrcSrWriteMiddle 12 q1 i2 r0 x0 0x1800",
        "XrcSrWriteLast 13 q1 i3 r0 x0 0x1c00",
        "XrcSrSendOnly 14 q2 i0 r0 x0",
        "XrcSrReadRequest 15 q1 i0 r1 x0 0x1000",
        "XrcSrFetchAdd 17 q2 i0 r1 x0",
    ];
    assert_eq!(sent(&mut end, NOW), expected);
    // 11, 14 and 15 are missing.
    acknowledge(&mut end, 10, &[0b100011]);
    let again = sent(&mut end, NOW);
    let lost = [expected[1], expected[4], expected[5]].map(|line| line.replace("x0", "x1"));
    assert_eq!(again, lost);
    let due = end.qp.next_deadline();
    end.fire(due);
    assert_eq!(sent(&mut end, due), ["XrcSrProbe 17 i0 r0 x8 P"]);
}

#[test]
fn a_family_is_accepted_by_targets_and_used_by_initiators_only_if_they_were_told() {
    let (mut end, _queues) = target();
    end.qp.accept_selective(false);
    send(&mut end, Opcode::XrcSrSendOnly, (10, 0, 0, 1), 1, 64);
    assert_eq!((end.fx.count_of(Reason::SrNotNegotiated), received(&end)), (1, vec![]));
    let mut end = initiator();
    send(&mut end, Opcode::XrcSrSendOnly, (10, 0, 0, 1), 1, 64);
    assert_eq!(end.fx.count_of(Reason::SrNotNegotiated), 1, "an initiator executes no request");
    let (mut end, _queues) = target();
    let ack = HeadBuf::new(&Bth::new(Opcode::XrcSrAck, qpn_of(1), Psn::new(10)));
    feed(&mut end, ack.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).saeth(Saeth::default()), &[]);
    assert_eq!(end.fx.count_of(Reason::SrNotNegotiated), 1, "a target has no request in flight");
    let mut end = initiator();
    end.qp.use_selective(0);
    post(&mut end, WrOpcode::Send, 1, 8);
    assert_eq!(sent(&mut end, NOW), ["XrcSendOnly 10 q1 i0 r0 x0"]);
}
