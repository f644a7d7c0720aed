//! Selective repeat, packet by packet: the examples of `docs/protocol.md`, "Order and visibility". A packet marked `✗` in an
//! example arrives last. The responder's first PSN is 10, the path MTU 1024.
use crate::common::{End, LinkFaults, Pair, Setup, ip_of, qpn_of};
use burst_base::verbs::{EventType, MwType, QpState, QpType, WcStatus, WrOpcode, access, send_flags, wc_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_shm::layout::SendWqe;
use burst_shm::paired;
use burst_transport::{Qp, QpConfig, RecvQueue, WINDOW_PSNS};
use burst_wire::selective::AckBitmap;
use burst_wire::{
    Aeth, AtomicEth, Bth, HeadBuf, Ieth, ImmDt, NakCode, Opcode, Packet, Reth, Saeth, Seth, Syndrome, Weth,
};
use std::sync::Arc;

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const FIRST: u32 = 10;
const OK: WcStatus = WcStatus::Success;

fn setup() -> Setup {
    let base = Setup::default();
    let attr = burst_base::verbs::QpAttr { rq_psn: Psn::new(FIRST), sq_psn: Psn::new(FIRST), ..base.attr };
    Setup { selective: WINDOW_PSNS, attr, ..base }
}

/// End 1 in this state.
fn responder_in(state: QpState) -> End {
    let mut end = End::new(1, &setup());
    end.bring_up(0, &setup(), state);
    end
}

fn responder() -> End {
    responder_in(QpState::Rts)
}

/// A request packet that arrives at end 1: PSN, index in its message, RSN.
#[derive(Clone, Copy, Default)]
struct Place {
    psn: u32,
    index: u32,
    rsn: u32,
    transmission: u8,
}

fn at(psn: u32, index: u32, rsn: u32) -> Place {
    Place { psn, index, rsn, transmission: 0 }
}

fn head(opcode: Opcode, place: Place) -> HeadBuf {
    let bth = Bth { ack_req: true, ..Bth::new(opcode, qpn_of(1), Psn::new(place.psn)) };
    let Place { index, rsn, transmission, .. } = place;
    HeadBuf::new(&bth).seth(Seth { index, rsn, transmission, ..Seth::default() })
}

fn feed(end: &mut End, head: HeadBuf, payload: &[u8]) {
    assert_eq!(payload.len() % 4, 0, "padding is tested elsewhere");
    end.receive_from(NOW, ip_of(0), &[head.as_slice(), payload].concat());
}

/// A WRITE packet of `len` bytes `byte` to `addr`, by the key of the responder's memory.
fn write(end: &mut End, opcode: Opcode, place: Place, addr: u64, byte: u8, len: usize) {
    let rkey = Rkey(end.lkey);
    write_by(end, opcode, place, (addr, rkey), byte, len);
}

fn write_by(end: &mut End, opcode: Opcode, place: Place, (addr, rkey): (u64, Rkey), byte: u8, len: usize) {
    let head = head(opcode, place).weth(Weth { addr, rkey });
    let head = if opcode.info().has_imm { head.imm(ImmDt { bytes: [1, 2, 3, 4] }) } else { head };
    feed(end, head, &vec![byte; len]);
}

fn send(end: &mut End, opcode: Opcode, place: Place, byte: u8, len: usize) {
    feed(end, head(opcode, place), &vec![byte; len]);
}

fn read(end: &mut End, place: Place, addr: u64, len: u32) {
    let rkey = Rkey(end.lkey);
    feed(end, head(Opcode::RcSrReadRequest, place).reth(Reth { addr, rkey, len }), &[]);
}

fn cmp_swap(end: &mut End, place: Place, addr: u64, compare: u64, swap_add: u64) {
    let rkey = Rkey(end.lkey);
    feed(end, head(Opcode::RcSrCmpSwap, place).atomic(AtomicEth { addr, rkey, swap_add, compare }), &[]);
}

/// What the responder answers now, one line for each packet: acknowledgements with the PSNs of their bitmap.
fn answers(end: &mut End) -> Vec<String> {
    end.drain(NOW).iter().map(|bytes| line(bytes)).collect()
}

fn line(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).expect("well-formed");
    let psn = packet.bth.psn;
    let (Some(aeth), Some(bitmap)) = (packet.aeth(), packet.bitmap()) else {
        return format!("{:?} {}", packet.bth.opcode, psn.get());
    };
    let is_ack = matches!(aeth.syndrome, Syndrome::Ack { .. });
    let expected = if is_ack { psn.next() } else { psn };
    let there: Vec<u32> = (0..960).filter(|i| bitmap.is_received(*i)).map(|i| expected.add(1 + i).get()).collect();
    let what = if is_ack { "ACK".to_owned() } else { format!("{:?}", aeth.syndrome) };
    if bitmap.words() == 0 { format!("{what} {}", psn.get()) } else { format!("{what} {} {there:?}", psn.get()) }
}

fn post_receives(end: &mut End, count: u64) {
    for k in 0..count {
        let sge = end.sge(k * 8192, 8192);
        end.post_receive(k, &[sge]);
    }
}

fn received(end: &End) -> Vec<(u64, u32)> {
    end.fx.receives.iter().map(|(cqe, _)| (cqe.wr_id, cqe.byte_len)).collect()
}

#[test]
fn example_1_a_gap_in_a_write_is_filled_and_the_last_bytes_appear_last() {
    let mut end = responder();
    let place = |k: u32| (at(FIRST + k, k, 0), u64::from(k * MTU));
    for (k, opcode) in [(0, Opcode::RcSrWriteFirst), (2, Opcode::RcSrWriteMiddle), (3, Opcode::RcSrWriteLast)] {
        write(&mut end, opcode, place(k).0, place(k).1, 7, 1024);
    }
    assert_eq!(end.memory(2048, 1024), [7; 1024]);
    assert_eq!((end.memory(3072, 960), end.memory(4032, 64)), (vec![7; 960], vec![0; 64]), "a poller sees nothing");
    assert_eq!(answers(&mut end), ["ACK 10 [12, 13]"]);
    write(&mut end, Opcode::RcSrWriteMiddle, place(1).0, place(1).1, 7, 1024);
    assert_eq!(end.memory(0, 4096), [7; 4096]);
    assert_eq!(answers(&mut end), ["ACK 13"]);
    assert_eq!(end.fx.records.in_use(), 0);
}

#[test]
fn the_last_bytes_of_an_early_write_appear_at_once_in_a_region_with_relaxed_ordering() {
    let mut end = responder();
    let relaxed = Rkey(end.register(4096, crate::common::ALL_RIGHTS | access::RELAXED_ORDERING));
    let bytes = |end: &End| {
        let mut bytes = [0; 256];
        let span = end.mem.local(crate::common::PD, burst_base::Lkey(relaxed.0), 0, 256, 0).expect("registered");
        span.read_to(&mut bytes).expect("mapped");
        bytes
    };
    write_by(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), (0, relaxed), 7, 256);
    assert_eq!((bytes(&end), answers(&mut end)), ([7; 256], vec!["ACK 9 [11]".to_owned()]));
    // Of two WRITEs to the same bytes the later still wins, and the key is still looked up in its turn.
    write_by(&mut end, Opcode::RcSrWriteOnly, at(12, 0, 0), (0, relaxed), 8, 128);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), (0, relaxed), 6, 256);
    assert_eq!((&bytes(&end)[..128], &bytes(&end)[128..]), (&[8; 128][..], &[7; 128][..]));
    assert_eq!(answers(&mut end), ["ACK 12"]);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(14, 0, 0), (0, relaxed), 9, 256);
    assert!(end.mem.remove(relaxed.0).is_some());
    let rkey = Rkey(end.lkey);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(13, 0, 0), (0, rkey), 1, 64);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn example_2_of_two_writes_to_the_same_bytes_the_later_wins() {
    for len in [1024, 32] {
        let mut end = responder();
        write(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), 0, 0xbb, len);
        assert_eq!(answers(&mut end), ["ACK 9 [11]"]);
        write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 0xaa, len);
        assert_eq!(end.memory(0, len), vec![0xbb; len]);
        assert_eq!(answers(&mut end), ["ACK 11"]);
        // Repeated, late: never written.
        write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 0xaa, len);
        assert_eq!((end.memory(0, len), answers(&mut end)), (vec![0xbb; len], vec!["ACK 11".to_owned()]));
    }
}

#[test]
fn example_2_the_last_bytes_of_an_earlier_write_do_not_overwrite_a_later_one() {
    let mut end = responder();
    write(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), 0, 0xaa, 1024);
    write(&mut end, Opcode::RcSrWriteOnly, at(12, 0, 0), 512, 0xbb, 1024);
    write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 4096, 0xcc, 1024);
    assert_eq!(end.memory(0, 1536), [[0xaa; 512].as_slice(), &[0xbb; 1024]].concat());
}

#[test]
fn example_2_writes_by_two_keys_of_the_same_addresses_keep_their_memories_apart() {
    let mut end = responder();
    // Another region at the same addresses: the harness makes each at 0.
    let other = Rkey(end.register(4096, crate::common::ALL_RIGHTS));
    write_by(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), (0, other), 0xbb, 1024);
    write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 0xaa, 1024);
    assert_eq!(end.memory(0, 1024), [0xaa; 1024]);
    let span = end.mem.local(crate::common::PD, burst_base::Lkey(other.0), 0, 1024, 0).expect("registered");
    let mut bytes = [0; 1024];
    assert_eq!((span.read_to(&mut bytes), bytes), (Ok(()), [0xbb; 1024]));
}

#[test]
fn example_3_an_early_message_fills_its_own_receive_and_completes_in_its_turn() {
    let mut end = responder();
    post_receives(&mut end, 2);
    send(&mut end, Opcode::RcSrSendFirst, at(10, 0, 0), 1, 1024);
    send(&mut end, Opcode::RcSrSendLast, at(12, 2, 0), 1, 512);
    send(&mut end, Opcode::RcSrSendOnly, at(13, 0, 1), 2, 100);
    assert_eq!((received(&end), answers(&mut end)), (vec![], vec!["ACK 10 [12, 13]".to_owned()]));
    assert_eq!(end.memory(8192, 100), [2; 100]);
    send(&mut end, Opcode::RcSrSendMiddle, at(11, 1, 0), 1, 1024);
    assert_eq!(received(&end), [(0, 2560), (1, 100)]);
    assert_eq!((end.memory(0, 2560), answers(&mut end)), (vec![1; 2560], vec!["ACK 13".to_owned()]));
    assert_eq!(end.fx.records.in_use(), 0);
}

#[test]
fn example_4_an_early_message_without_a_receive_is_dropped_and_refused_in_its_turn() {
    let mut end = responder();
    post_receives(&mut end, 1);
    send(&mut end, Opcode::RcSrSendFirst, at(10, 0, 0), 1, 1024);
    send(&mut end, Opcode::RcSrSendLast, at(12, 2, 0), 1, 512);
    send(&mut end, Opcode::RcSrSendOnly, at(13, 0, 1), 2, 100);
    assert_eq!(end.fx.count_of(Reason::SrUnplaced), 1);
    assert_eq!(answers(&mut end), ["ACK 10 [12]"]);
    send(&mut end, Opcode::RcSrSendMiddle, at(11, 1, 0), 1, 1024);
    assert_eq!((received(&end), answers(&mut end)), (vec![(0, 2560)], vec!["ACK 12".to_owned()]));
    send(&mut end, Opcode::RcSrSendOnly, at(13, 0, 1), 2, 100);
    assert_eq!(answers(&mut end), [format!("{:?} 13", Syndrome::Rnr { timer: 1 })]);
    post_receives(&mut end, 1);
    send(&mut end, Opcode::RcSrSendOnly, at(13, 0, 1), 2, 100);
    assert_eq!((received(&end).len(), answers(&mut end)), (2, vec!["ACK 13".to_owned()]));
}

/// End 1 with a shared receive queue of `count` receives.
fn sharing(count: u64) -> (End, burst_shm::rq::RqProducer) {
    let setup = setup();
    let mut end = End::new(1, &setup);
    let (mut app, queue) = paired::srq(64, 2);
    (0..count).for_each(|k| app.write(k, &[end.sge(k * 8192, 8192)]).expect("room"));
    let _ = app.post();
    let (sq, sq_consumer) = paired::sq(setup.cap.max_send_wr, setup.cap.max_send_sge, setup.cap.max_inline_data);
    end.sq = sq;
    end.qp = Qp::new(QpConfig {
        qpn: qpn_of(1),
        qp_type: QpType::Rc,
        pd: crate::common::PD,
        send_cq: crate::common::SEND_CQ,
        recv_cq: crate::common::RECV_CQ,
        cookie: 0,
        cap: setup.cap,
        port_mtu: setup.mtu,
        sq: sq_consumer,
        rq: RecvQueue::Shared(Arc::new(queue)),
    });
    end.qp.accept_selective(true);
    end.bring_up(0, &setup, QpState::Rts);
    (end, app)
}

#[test]
fn example_5_a_shared_queue_gives_its_next_receive_and_a_failed_queue_pair_flushes_those_it_took() {
    let (mut end, _app) = sharing(8);
    send(&mut end, Opcode::RcSrSendOnly, at(12, 0, 2), 3, 100);
    send(&mut end, Opcode::RcSrSendOnly, at(11, 0, 1), 2, 100);
    assert_eq!((end.memory(0, 100), end.memory(8192, 100)), (vec![3; 100], vec![2; 100]));
    send(&mut end, Opcode::RcSrSendOnly, at(10, 0, 0), 1, 100);
    assert_eq!(received(&end), [(2, 100), (1, 100), (0, 100)], "in the order of the messages");
    assert_eq!(end.fx.records.in_use(), 0);
    // Two more are taken early, and the queue pair fails.
    send(&mut end, Opcode::RcSrSendOnly, at(15, 0, 5), 3, 100);
    send(&mut end, Opcode::RcSrSendOnly, at(14, 0, 4), 3, 100);
    end.move_to(QpState::Err);
    end.drain(NOW);
    assert_eq!(end.receive_statuses()[3..], [WcStatus::WrFlushErr; 2]);
    assert!(end.fx.events.contains(&EventType::QpLastWqeReached));
    assert_eq!(end.fx.records.in_use(), 0);
}

/// Between the arrival of a message and its turn another queue pair may empty the queue.
#[test]
fn example_5_a_queue_that_is_emptied_before_the_turn_of_an_early_message_refuses_only_what_has_no_receive() {
    let (mut end, mut app) = sharing(1);
    send(&mut end, Opcode::RcSrSendOnly, at(11, 0, 1), 2, 100);
    send(&mut end, Opcode::RcSrSendOnly, at(10, 0, 0), 1, 100);
    assert_eq!(answers(&mut end), ["Rnr { timer: 1 } 10 [11]"]);
    app.write(5, &[end.sge(5 * 8192, 8192)]).expect("room");
    let _ = app.post();
    send(&mut end, Opcode::RcSrSendOnly, Place { transmission: 1, ..at(10, 0, 0) }, 1, 100);
    assert_eq!((received(&end), answers(&mut end)), (vec![(5, 100), (0, 100)], vec!["ACK 11".to_owned()]));
    assert_eq!((end.memory(0, 100), end.fx.records.in_use()), (vec![2; 100], 0));
}

#[test]
fn example_5_a_shared_queue_gives_no_more_than_the_record_holds() {
    let (mut end, app) = sharing(64);
    for k in (1..64).rev() {
        send(&mut end, Opcode::RcSrSendOnly, at(FIRST + k, 0, k), 3, 100);
        end.drain(NOW);
    }
    assert_eq!((app.room(), received(&end)), (63, vec![]));
    end.move_to(QpState::Reset);
    assert_eq!(end.fx.records.in_use(), 0);
}

#[test]
fn example_6_a_message_completes_after_the_writes_in_front_of_it() {
    let mut end = responder();
    post_receives(&mut end, 1);
    write(&mut end, Opcode::RcSrWriteLast, at(11, 1, 0), 9216, 7, 1024);
    send(&mut end, Opcode::RcSrSendOnly, at(12, 0, 0), 1, 100);
    assert_eq!((received(&end), answers(&mut end)), (vec![], vec!["ACK 9 [11, 12]".to_owned()]));
    write(&mut end, Opcode::RcSrWriteFirst, at(10, 0, 0), 8192, 7, 1024);
    assert_eq!((received(&end), end.memory(8192, 2048)), (vec![(0, 100)], vec![7; 2048]));
    assert_eq!(answers(&mut end), ["ACK 12"]);
}

#[test]
fn examples_7_and_8_atomics_and_reads_wait_for_the_writes_in_front_of_them() {
    let mut end = responder();
    cmp_swap(&mut end, at(11, 0, 0), 0, u64::from_ne_bytes([5; 8]), 9);
    read(&mut end, at(12, 0, 0), 0, 3000);
    assert_eq!(answers(&mut end), ["ACK 9 [11, 12, 13, 14]"]);
    write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 5, 1024);
    let out = end.drain(NOW);
    let lines: Vec<String> = out.iter().map(|bytes| line(bytes)).collect();
    let read_lines = ["RcSrReadResponseFirst 12", "RcSrReadResponseMiddle 13", "RcSrReadResponseLast 14"];
    assert_eq!(lines, [["ACK 14", "RcSrAtomicAck 11"].as_slice(), &read_lines].concat());
    let original = Packet::parse(&out[1]).expect("packet").atomic_ack().expect("result").original;
    assert_eq!((original, end.memory(0, 8)), (u64::from_ne_bytes([5; 8]), 9u64.to_ne_bytes().to_vec()));
    let first = Packet::parse(&out[2]).expect("packet");
    assert_eq!((&first.payload[..8], first.payload[8]), (&9u64.to_ne_bytes()[..], 5));
    assert_eq!(first.seth().map(|seth| (seth.index, seth.rsn)), Some((0, 3)), "index and MSN");
}

/// An early READ takes all PSNs of its response. When its turn comes and it cannot be noted, none of them counts as arrived.
#[cfg(debug_assertions)]
#[test]
fn an_early_read_for_which_there_is_no_memory_is_asked_for_again() {
    let mut end = responder();
    read(&mut end, at(10, 0, 0), 0, 4);
    assert_eq!(answers(&mut end), ["RcSrReadResponseOnly 10"]);
    read(&mut end, at(12, 0, 0), 0, 3000);
    assert_eq!(answers(&mut end), ["ACK 10 [12, 13, 14]"]);
    burst_base::fault::arm(0);
    write(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), 0, 5, 1024);
    assert!(burst_base::fault::disarm(), "the second place for READs is not reserved before it is used");
    assert_eq!(answers(&mut end), [format!("{:?} 12", Syndrome::Rnr { timer: 1 })]);
    assert_eq!(end.fx.count_of(Reason::NoMemory), 1);
    read(&mut end, Place { transmission: 1, ..at(12, 0, 0) }, 0, 3000);
    let lines = ["RcSrReadResponseFirst 12", "RcSrReadResponseMiddle 13", "RcSrReadResponseLast 14"];
    assert_eq!(answers(&mut end), lines);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn example_9_an_unfenced_write_behind_a_lost_read_is_placed() {
    let mut end = responder();
    write(&mut end, Opcode::RcSrWriteOnly, at(26, 0, 0), 0, 8, 1024);
    assert_eq!(end.memory(0, 960), [8; 960]);
    read(&mut end, at(10, 0, 0), 0, 16 * MTU);
    let out = end.drain(NOW);
    assert_eq!((out.len(), line(&out[0])), (17, "ACK 26".to_owned()));
    assert_eq!(Packet::parse(&out[1]).expect("packet").payload[..960], [8; 960]);
}

#[test]
fn example_9_a_fenced_write_is_not_sent_before_the_read_is_answered() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 16 * MTU);
    let flags = (send_flags::SIGNALED | send_flags::FENCE) as u16;
    let wqe = SendWqe { wr_id: 2, opcode: WrOpcode::RdmaWrite as u8, flags, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(0, 100)]);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 10 xn0"]);
    acknowledge(&mut end, 26, &[], (10, 0));
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new(), "received is not answered");
}

#[test]
fn example_10_a_key_that_a_message_invalidates_refuses_a_later_write_in_its_turn() {
    let mut end = responder();
    post_receives(&mut end, 1);
    let window = end.window_of(MwType::Two);
    let key = window & !0xff | window.wrapping_add(1) & 0xff;
    end.post(&crate::common::bind(window, key, end.lkey, 4096), &[]);
    end.drain(NOW);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 1), (0, Rkey(key)), 7, 1024);
    assert_eq!((end.memory(0, 960), answers(&mut end)), (vec![7; 960], vec!["ACK 9 [11]".to_owned()]));
    feed(&mut end, head(Opcode::RcSrSendOnlyInv, at(10, 0, 0)).ieth(Ieth { rkey: Rkey(key) }), &[1; 8]);
    assert_eq!(end.fx.receives[0].0.wc_flags, wc_flags::WITH_INV);
    let nak = format!("{:?} 11", Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!((answers(&mut end), end.qp.state()), (vec![nak], QpState::Err));
    assert_eq!((end.memory(960, 64), end.fx.records.in_use()), (vec![0; 64], 0));
}

#[test]
fn example_11_a_refused_packet_ends_the_queue_pair_and_flushes_receives_taken_early() {
    let mut end = responder();
    post_receives(&mut end, 2);
    send(&mut end, Opcode::RcSrSendOnly, at(11, 0, 0), 1, 100);
    send(&mut end, Opcode::RcSrSendOnly, at(12, 0, 1), 1, 100);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), (0, Rkey(0x1234)), 7, 64);
    let nak = format!("{:?} 10 [11, 12]", Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!((answers(&mut end), end.qp.state()), (vec![nak], QpState::Err));
    assert_eq!(end.receive_statuses(), [WcStatus::WrFlushErr; 2]);
    assert_eq!(end.fx.records.in_use(), 0);
}

#[test]
fn example_12_the_completion_of_an_early_write_with_immediate_data_waits() {
    let mut end = responder();
    post_receives(&mut end, 1);
    for (k, opcode) in [(0, Opcode::RcSrWriteFirst), (1, Opcode::RcSrWriteMiddle), (3, Opcode::RcSrWriteLastImm)] {
        write(&mut end, opcode, at(FIRST + k, k, 0), 8192 + u64::from(k * MTU), 7, 1024);
    }
    assert_eq!((received(&end), end.memory(8192 + 4032, 64)), (vec![], vec![0; 64]));
    write(&mut end, Opcode::RcSrWriteMiddle, at(12, 2, 0), 8192 + 2048, 7, 1024);
    assert_eq!((received(&end), end.memory(8192, 4096)), (vec![(0, 4096)], vec![7; 4096]));
    assert_eq!(end.fx.receives[0].0.imm.to_ne_bytes(), [1, 2, 3, 4]);
}

#[test]
fn example_13_a_region_deregistered_between_placing_and_turn_refuses_the_write() {
    let mut end = responder();
    let key = end.register(4096, crate::common::ALL_RIGHTS);
    write_by(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), (0, Rkey(key)), 7, 1024);
    assert!(end.mem.remove(key).is_some());
    write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 7, 1024);
    let nak = format!("{:?} 11", Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!((answers(&mut end), end.qp.state()), (vec![nak], QpState::Err));
}

// The requester: end 0, with acknowledgements that the test makes.

fn requester() -> End {
    let mut end = End::new(0, &setup());
    end.bring_up(1, &setup(), QpState::Rts);
    end
}

fn post(end: &mut End, opcode: WrOpcode, wr_id: u64, addr: u64, len: u32) {
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { wr_id, opcode: opcode as u8, flags, remote_addr: addr, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(addr, len)]);
}

/// The packets that are sent now, with their transmission numbers; `P` marks a probe, `A` the repair of a READ.
fn sent(end: &mut End, now: Nanos) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let seth = packet.seth().unwrap_or_default();
        let mark = if seth.is_probe {
            " P"
        } else if seth.is_repair {
            " A"
        } else {
            ""
        };
        format!("{:?} {} xn{}{mark}", packet.bth.opcode, packet.bth.psn.get(), seth.transmission)
    };
    end.drain(now).iter().map(line).collect()
}

/// An acknowledgement: the first missing PSN, what has arrived behind it, the newest packet and its transmission number.
fn answer_with(
    end: &mut End,
    now: Nanos,
    (psn, syndrome): (u32, Syndrome),
    missing: u32,
    there: &[u32],
    trigger: (u32, u8),
) {
    let mut words = [0u64; 15];
    there.iter().map(|psn| psn - missing - 1).for_each(|i| words[(i / 64) as usize] |= 1 << (i % 64));
    let count = there.last().map_or(0, |last| ((last - missing - 1) / 64 + 1) as usize);
    let saeth = Saeth { words: count as u8, trigger: Psn::new(trigger.0), transmission: trigger.1, ..Saeth::default() };
    let bth = Bth::new(Opcode::RcSrAck, qpn_of(0), Psn::new(psn));
    let head = HeadBuf::new(&bth).aeth(Aeth { syndrome, msn: 0 }).saeth(saeth);
    let mut bytes = [0; 120];
    let len = AckBitmap::emit(&words[..count], &mut bytes);
    end.receive_from(now, ip_of(1), &[head.as_slice(), &bytes[..len]].concat());
}

fn acknowledge(end: &mut End, missing: u32, there: &[u32], trigger: (u32, u8)) {
    answer_with(end, NOW, (missing - 1, Syndrome::ACK), missing, there, trigger);
}

#[test]
fn only_missing_packets_are_sent_again_and_once() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 8 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 8);
    acknowledge(&mut end, 11, &[12, 14, 15], (15, 0));
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteMiddle 11 xn1", "RcSrWriteMiddle 13 xn1"]);
    acknowledge(&mut end, 11, &[12, 14, 15, 16], (16, 0));
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    assert_eq!((end.fx.count_of(Reason::SrRecovery), end.fx.signals.len()), (1, 1), "one signal");
    // The repetition of 13 has arrived, which was sent after that of 11.
    acknowledge(&mut end, 11, &[12, 13, 14, 15, 16], (13, 1));
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteMiddle 11 xn2"]);
    acknowledge(&mut end, 18, &[], (17, 0));
    assert_eq!((end.statuses(), end.qp.inflight_bytes(), end.fx.records.in_use()), (vec![OK], 0, 0));
    assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
}

/// An acknowledgement or a NAK of the standard family.
fn answer_standard(end: &mut End, psn: u32, syndrome: Syndrome) {
    let head = HeadBuf::new(&Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(psn))).aeth(Aeth { syndrome, msn: 0 });
    end.receive_from(NOW, ip_of(1), head.as_slice());
}

#[test]
fn a_standard_answer_ends_no_request_of_the_family() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, MTU);
    post(&mut end, WrOpcode::RdmaWrite, 2, 0, 3 * MTU);
    sent(&mut end, NOW);
    // 10 and 12 are lost; an acknowledgement of both must not retire their requests.
    acknowledge(&mut end, 10, &[11, 13], (13, 0));
    let syndromes = [Syndrome::ACK, Syndrome::Rnr { timer: 1 }, Syndrome::Nak(NakCode::PsnSequence)];
    syndromes.into_iter().for_each(|syndrome| answer_standard(&mut end, 13, syndrome));
    assert_eq!((end.statuses(), end.fx.count_of(Reason::UnexpectedResponse)), (vec![], 3));
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteOnly 10 xn1", "RcSrWriteMiddle 12 xn1"]);
    acknowledge(&mut end, 14, &[], (12, 1));
    assert_eq!((end.statuses(), end.fx.records.in_use()), (vec![OK, OK], 0));
}

#[test]
fn a_standard_nak_of_a_dead_peer_ends_the_queue_pair() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, MTU);
    post(&mut end, WrOpcode::RdmaWrite, 2, 0, 3 * MTU);
    sent(&mut end, NOW);
    acknowledge(&mut end, 10, &[11, 13], (13, 0));
    answer_standard(&mut end, 12, Syndrome::Nak(NakCode::RemoteOperation));
    end.drain(NOW);
    assert_eq!(end.statuses(), [OK, WcStatus::RemOpErr]);
    assert_eq!((end.qp.state(), end.fx.records.in_use(), end.qp.inflight_bytes()), (QpState::Err, 0, 0));
}

#[test]
fn bytes_that_have_arrived_make_room_in_the_window() {
    let mut end = requester();
    end.window = 8 << 10;
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 32 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 8);
    acknowledge(&mut end, 10, &[11, 12, 13], (13, 0));
    assert_eq!(end.qp.inflight_bytes(), 4 * u64::from(MTU), "10 is lost, 11 to 13 have arrived");
    let again = sent(&mut end, NOW);
    assert_eq!((again[0].as_str(), again.len()), ("RcSrWriteFirst 10 xn1", 4));
    assert_eq!(end.qp.inflight_bytes(), 8 * u64::from(MTU));
}

#[test]
fn example_14_after_an_rnr_nak_only_what_has_not_arrived_is_sent_again() {
    let mut end = requester();
    (0..5).for_each(|k| post(&mut end, WrOpcode::Send, k, 0, 100));
    assert_eq!(sent(&mut end, NOW).len(), 5);
    answer_with(&mut end, NOW, (12, Syndrome::Rnr { timer: 1 }), 12, &[13], (13, 0));
    assert_eq!((end.statuses(), sent(&mut end, NOW)), (vec![OK; 2], vec![]));
    let later = end.qp.next_deadline();
    assert_eq!(later, NOW + burst_wire::aeth::rnr_timer(1));
    end.fire(later);
    assert_eq!(sent(&mut end, later), ["RcSrSendOnly 12 xn1", "RcSrSendOnly 14 xn1"]);
}

#[test]
fn example_15_sequence_numbers_wrap() {
    let base = Setup::default();
    let attr = burst_base::verbs::QpAttr { rq_psn: Psn::new(0xff_fffe), ..base.attr };
    let wrapping = Setup { selective: WINDOW_PSNS, attr, ..base };
    let mut end = End::new(1, &wrapping);
    end.bring_up(0, &wrapping, QpState::Rts);
    let place = |k: u32| at(Psn::new(0xff_fffe).add(k).get(), k, 0);
    for (k, opcode) in [(0, Opcode::RcSrWriteFirst), (3, Opcode::RcSrWriteLast), (1, Opcode::RcSrWriteMiddle)] {
        write(&mut end, opcode, place(k), u64::from(k * MTU), 7, 1024);
    }
    assert_eq!(answers(&mut end), ["ACK 16777215 [1]"]);
    write(&mut end, Opcode::RcSrWriteMiddle, place(2), 2048, 7, 1024);
    assert_eq!((end.memory(0, 4096), answers(&mut end)), (vec![7; 4096], vec!["ACK 1".to_owned()]));
}

#[test]
fn example_16_the_first_packet_may_be_early_in_rtr() {
    let mut end = responder_in(QpState::Rtr);
    write(&mut end, Opcode::RcSrWriteLast, at(11, 1, 0), 1024, 7, 1024);
    write(&mut end, Opcode::RcSrWriteFirst, at(10, 0, 0), 0, 7, 1024);
    assert_eq!(end.memory(0, 2048), [7; 2048]);
    assert_eq!(end.fx.events, [EventType::CommEst]);
}

#[test]
fn example_17_holes_are_repaired_in_sqd_and_an_error_gives_the_record_back() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 4 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 4);
    end.move_to(QpState::Sqd);
    acknowledge(&mut end, 10, &[11, 12], (12, 0));
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteFirst 10 xn1"]);
    assert_eq!(end.fx.records.in_use(), 1);
    end.move_to(QpState::Err);
    end.drain(NOW);
    assert_eq!((end.statuses(), end.fx.records.in_use()), (vec![WcStatus::WrFlushErr], 0));
    assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
}

// Trains.

#[test]
fn middle_packets_of_a_train_are_executed_together() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead] {
        let mut pair = Pair::new(&setup(), 1, LinkFaults::default());
        let bytes: Vec<u8> = (0..64u32 << 10).map(|i| (i / 7) as u8 ^ (i >> 8) as u8).collect();
        let source = usize::from(opcode == WrOpcode::RdmaRead);
        pair.ends[source].write_memory(0, &bytes);
        let sge = pair.ends[1].sge(0, 64 << 10);
        pair.ends[1].post_receive(1, &[sge]);
        let rkey = pair.ends[1].lkey;
        let wqe = SendWqe { opcode: opcode as u8, flags: send_flags::SIGNALED as u16, rkey, ..SendWqe::default() };
        let sge = pair.ends[0].sge(0, 64 << 10);
        pair.ends[0].post(&wqe, &[sge]);
        pair.settle();
        assert_eq!((pair.ends[0].statuses(), pair.ends[1 - source].memory(0, 64 << 10) == bytes), (vec![OK], true));
        // All but first and last, and those that ask for an acknowledgement at the end of a turn.
        assert!(pair.ends[1 - source].carried >= 50, "{opcode:?}: {}", pair.ends[1 - source].carried);
        assert_eq!(pair.ends.iter().map(|end| end.fx.count_of(Reason::SrRecovery)).sum::<u32>(), 0);
    }
}

#[test]
fn a_lossy_path_repeats_no_more_than_was_lost() {
    let faults = LinkFaults { loss: 200, ..LinkFaults::default() };
    let mut pair = Pair::new(&setup(), 5, faults);
    let (rkey, sge) = (pair.ends[1].lkey, pair.ends[0].sge(0, 512 << 10));
    for k in 0..8 {
        let wqe = SendWqe { wr_id: k, opcode: WrOpcode::RdmaWrite as u8, rkey, ..SendWqe::default() };
        let flags = send_flags::SIGNALED as u16;
        pair.ends[0].post(&SendWqe { flags, ..wqe }, &[sge]);
    }
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [OK; 8]);
    let fx = &pair.ends[0].fx;
    let (repeated, lost) = (fx.count_of(Reason::SrRepeated), pair.link.lost as u32);
    let blind = fx.count_of(Reason::SrTimeout) + fx.count_of(Reason::AckTimeout);
    assert!(
        lost > 40 && blind <= 2 && repeated <= lost + 64 * blind,
        "{repeated} repeated, {lost} lost, {blind} time-outs"
    );
}

// Time-outs and fallback.

#[test]
fn a_lost_end_is_probed_and_then_all_is_lost() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 4 * MTU);
    sent(&mut end, NOW);
    acknowledge(&mut end, 11, &[], (10, 0));
    for probe in ["RcSrWriteLast 13 xn8 P", "RcSrWriteLast 13 xn9 P"] {
        let now = end.qp.next_deadline();
        end.fire(now);
        assert_eq!(sent(&mut end, now), [probe]);
    }
    let probed = end.qp.next_deadline();
    end.fire(probed);
    let all = ["RcSrWriteMiddle 11 xn1", "RcSrWriteMiddle 12 xn1", "RcSrWriteLast 13 xn1"];
    assert_eq!(sent(&mut end, probed), all);
    assert_eq!((end.fx.count_of(Reason::SrProbe), end.fx.count_of(Reason::SrTimeout)), (2, 1));
    assert_eq!(end.fx.refused, 0, "the peer has answered");
}

#[test]
fn a_peer_that_never_answers_gets_the_standard_packets_from_the_first_message_on() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 2 * MTU);
    assert_eq!(sent(&mut end, NOW)[0], "RcSrWriteFirst 10 xn0");
    for _ in 0..20 {
        let now = end.qp.next_deadline();
        end.fire(now);
        let out = sent(&mut end, now);
        if out.first().is_some_and(|line| line.starts_with("RcWrite")) {
            assert_eq!(out, ["RcWriteOnly 10 xn0", "RcWriteOnly 11 xn0"]);
            assert!(end.fx.refused == 1 && end.fx.count_of(Reason::SrRefused) == 1 && !end.qp.sends_selective());
            assert!(now < NOW + Nanos::from_ms(200), "{now:?}");
            return;
        }
    }
    panic!("no standard packet");
}

#[test]
fn a_message_that_began_in_one_family_is_received_again_in_the_other() {
    let mut end = responder();
    write(&mut end, Opcode::RcSrWriteFirst, at(10, 0, 0), 0, 7, 1024);
    write(&mut end, Opcode::RcSrWriteLast, at(12, 2, 0), 2048, 7, 1024);
    let standard = |opcode: Opcode, psn: u32| {
        let bth = Bth { ack_req: true, ..Bth::new(opcode, qpn_of(1), Psn::new(psn)) };
        let head = HeadBuf::new(&bth);
        match opcode {
            Opcode::RcWriteFirst => head.reth(Reth { addr: 0, rkey: Rkey(0), len: 3072 }),
            _ => head,
        }
    };
    let rkey = Rkey(end.lkey);
    let first = HeadBuf::new(&Bth::new(Opcode::RcWriteFirst, qpn_of(1), Psn::new(10)));
    feed(&mut end, first.reth(Reth { addr: 0, rkey, len: 3072 }), &[9; 1024]);
    feed(&mut end, standard(Opcode::RcWriteMiddle, 11), &[9; 1024]);
    feed(&mut end, standard(Opcode::RcWriteLast, 12), &[9; 1024]);
    assert_eq!((end.memory(0, 3072), end.fx.records.in_use()), (vec![9; 3072], 0));
    assert_eq!(
        end.drain(NOW).iter().map(|b| Packet::parse(b).expect("ack").bth.opcode).collect::<Vec<_>>(),
        [Opcode::RcAck]
    );
}

/// The answer that was due when the family changed would acknowledge packets that are received again: the requester would
/// never send them.
#[test]
fn an_answer_that_is_due_does_not_outlive_the_family_of_its_message() {
    let mut end = responder();
    let rkey = Rkey(end.lkey);
    let standard = |opcode: Opcode, psn: u32| HeadBuf::new(&Bth::new(opcode, qpn_of(1), Psn::new(psn)));
    let opcodes = [Opcode::RcSrWriteFirst, Opcode::RcSrWriteMiddle, Opcode::RcSrWriteMiddle];
    for (index, opcode) in opcodes.into_iter().enumerate() {
        let head = at(10 + index as u32, index as u32, 0);
        write(&mut end, opcode, head, index as u64 * 1024, 7, 1024);
    }
    // Before they are acknowledged, a packet of the other family arrives.
    feed(&mut end, standard(Opcode::RcWriteFirst, 10).reth(Reth { addr: 0, rkey, len: 4096 }), &[9; 1024]);
    assert_eq!(end.drain(NOW).len(), 0, "packets 11 and 12 are not there");
    for (psn, opcode) in [(11, Opcode::RcWriteMiddle), (12, Opcode::RcWriteMiddle), (13, Opcode::RcWriteLast)] {
        feed(&mut end, standard(opcode, psn), &[9; 1024]);
    }
    assert_eq!(end.memory(0, 4096), vec![9; 4096]);
}

#[test]
fn a_queue_pair_that_was_not_told_drops_the_family() {
    let plain = Setup { selective: 0, ..setup() };
    let mut end = End::new(1, &plain);
    end.bring_up(0, &plain, QpState::Rts);
    write(&mut end, Opcode::RcSrWriteOnly, at(10, 0, 0), 0, 7, 64);
    assert_eq!((end.fx.count_of(Reason::SrNotNegotiated), end.drain(NOW).len()), (1, 0));
}

// Hostile packets.

#[test]
fn packets_without_room_are_dropped_and_reported() {
    let mut end = responder();
    write(&mut end, Opcode::RcSrWriteOnly, at(FIRST + WINDOW_PSNS, 0, 0), 0, 7, 64);
    read(&mut end, at(FIRST + WINDOW_PSNS - 2, 0, 0), 0, 3 * MTU);
    assert_eq!((end.fx.count_of(Reason::SrWindow), end.fx.records.in_use()), (2, 0));
    end.fx.records = burst_transport::RecordPool::new(0);
    write(&mut end, Opcode::RcSrWriteOnly, at(11, 0, 0), 0, 7, 64);
    assert_eq!((end.fx.count_of(Reason::SrPoolEmpty), answers(&mut end)), (1, vec!["ACK 9".to_owned()]));
    assert_eq!(end.memory(0, 64), [0; 64]);
}

#[test]
fn impossible_indices_and_receive_numbers_are_dropped_early_and_refused_in_their_turn() {
    let mut end = responder();
    post_receives(&mut end, 8);
    // A message that began before the first PSN; a receive for which there are too few messages.
    send(&mut end, Opcode::RcSrSendLast, at(12, 5, 0), 1, 100);
    send(&mut end, Opcode::RcSrSendOnly, at(12, 0, 7), 1, 100);
    assert_eq!((end.fx.count_of(Reason::SrIndex), end.fx.records.in_use()), (2, 0));
    // Two packets that claim the same message and do not belong together.
    send(&mut end, Opcode::RcSrSendLast, at(12, 1, 0), 1, 100);
    write(&mut end, Opcode::RcSrWriteFirst, at(11, 0, 0), 65536, 7, 1024);
    send(&mut end, Opcode::RcSrSendOnly, at(10, 0, 0), 1, 100);
    let nak = format!("{:?} 12", Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!((answers(&mut end), end.qp.state(), end.fx.records.in_use()), (vec![nak], QpState::Err, 0));
}

#[test]
fn impossible_acknowledgements_change_nothing() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 1, 0, 4 * MTU);
    sent(&mut end, NOW);
    acknowledge(&mut end, 15, &[], (14, 0));
    assert_eq!((end.fx.count_of(Reason::UnexpectedResponse), end.statuses()), (1, vec![]));
    acknowledge(&mut end, 9, &[], (14, 0));
    assert_eq!(end.fx.count_of(Reason::StaleAck), 1);
    let all: Vec<u32> = (12..972).collect();
    acknowledge(&mut end, 11, &all, (0xff_ffff, 15));
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteMiddle 11 xn1"]);
    acknowledge(&mut end, 14, &[], (11, 1));
    assert_eq!((end.statuses(), end.fx.records.in_use()), (vec![OK], 0));
}

#[test]
fn a_record_is_bounded_whatever_arrives() {
    let mut end = responder();
    let rkey = Rkey(end.lkey);
    for k in 0..2 * WINDOW_PSNS {
        let psn = FIRST + 1 + k % (WINDOW_PSNS - 1);
        let addr = u64::from(k % 500) * 2048;
        write_by(&mut end, Opcode::RcSrWriteOnly, at(psn, 0, 0), (addr, rkey), 7, 8);
        end.drain(NOW);
    }
    assert!(end.fx.count_of(Reason::SrRecordFull) > 0 && end.fx.records.in_use() == 1);
    write(&mut end, Opcode::RcSrWriteOnly, at(FIRST, 0, 0), 0, 7, 8);
    end.move_to(QpState::Reset);
    assert_eq!(end.fx.records.in_use(), 0);
}
