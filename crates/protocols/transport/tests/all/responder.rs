//! The responder, packet by packet: in order, duplicate, gap, stale, malformed, at the limit, after close. Each test gives
//! packets and checks the answers.
use crate::common::{ALL_RIGHTS, End, Setup, describe, ip_of, qpn_of};
use burst_base::verbs::{EventType, QpAttr, QpState, WcStatus, WrOpcode, access, attr_mask, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_shm::layout::{SendWqe, Sge};
use burst_transport::{RD_ATOMIC_MAX, TxBudget, WINDOW_PSNS};
use burst_wire::{AtomicEth, Bth, HeadBuf, ImmDt, NakCode, Opcode, Packet, Reth, Syndrome};

const NOW: Nanos = Nanos(1_000);
const MTU: usize = 1024;

fn responder(setup: &Setup, state: QpState) -> End {
    let mut end = End::new(1, setup);
    end.bring_up(0, setup, state);
    end
}

/// A request packet to the responder; it asks for an acknowledgement.
fn packet(opcode: Opcode, psn: u32, payload: &[u8]) -> Vec<u8> {
    request(opcode, psn, Reth::default(), payload)
}

fn request(opcode: Opcode, psn: u32, reth: Reth, payload: &[u8]) -> Vec<u8> {
    let pad = payload.len().wrapping_neg() & 3;
    let bth = Bth { ack_req: true, pad: pad as u8, ..Bth::new(opcode, qpn_of(1), Psn::new(psn)) };
    let head = HeadBuf::new(&bth);
    let has_reth =
        matches!(opcode, Opcode::RcWriteFirst | Opcode::RcWriteOnly | Opcode::RcWriteOnlyImm | Opcode::RcReadRequest);
    let head = if has_reth { head.reth(reth) } else { head };
    let head = if opcode.info().has_imm { head.imm(ImmDt { bytes: [1, 2, 3, 4] }) } else { head };
    let mut bytes = head.as_slice().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + pad, 0);
    bytes
}

fn fetch_add(psn: u32, rkey: u32, addr: u64) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcFetchAdd, qpn_of(1), Psn::new(psn)) };
    let atomic = AtomicEth { addr, rkey: Rkey(rkey), swap_add: 1, compare: 0 };
    HeadBuf::new(&bth).atomic(atomic).as_slice().to_vec()
}

fn feed(end: &mut End, bytes: &[u8]) -> Vec<String> {
    end.receive_from(NOW, ip_of(0), bytes);
    answers(end)
}

fn answers(end: &mut End) -> Vec<String> {
    end.drain(NOW).iter().map(|bytes| describe(bytes)).collect()
}

fn ack(psn: u32) -> String {
    format!("RcAck {psn} {:?}", Syndrome::ACK)
}

fn nak(psn: u32, code: NakCode) -> String {
    format!("RcAck {psn} {:?}", Syndrome::Nak(code))
}

fn rnr(psn: u32) -> String {
    format!("RcAck {psn} {:?}", Syndrome::Rnr { timer: 1 })
}

fn post(end: &mut End, len: u32) {
    let sges = [end.sge(0, len)];
    end.post_receive(77, &sges);
}

#[test]
fn only_an_acknowledgement_that_follows_a_completed_receive_may_wait() {
    let reth = |end: &End| Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 };
    for (opcode, may_wait) in [
        (Opcode::RcSendOnly, true),
        (Opcode::RcWriteOnlyImm, true),
        (Opcode::RcWriteOnly, false),
        (Opcode::RcSendFirst, false),
    ] {
        let mut end = responder(&Setup::default(), QpState::Rts);
        post(&mut end, 4096);
        assert_eq!(answers(&mut end), [""; 0], "nothing else is to be sent");
        let payload = if opcode == Opcode::RcSendFirst { vec![1; MTU] } else { vec![1; 4] };
        let bytes = request(opcode, 100, reth(&end), &payload);
        end.receive_from(NOW, ip_of(0), &bytes);
        assert_eq!(end.qp.ack_may_wait(), may_wait, "{opcode:?}");
        assert_eq!(answers(&mut end), [ack(100)], "{opcode:?}");
    }
}

#[test]
fn a_burst_gets_one_acknowledgement() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    for psn in 100..103 {
        post(&mut end, 100);
        end.receive_from(NOW, ip_of(0), &packet(Opcode::RcSendOnly, psn, b"abc"));
    }
    assert_eq!(answers(&mut end), [ack(102)]);
    assert_eq!(end.fx.receives.len(), 3);
}

#[test]
fn a_duplicate_send_is_acknowledged_and_not_executed() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    post(&mut end, 100);
    post(&mut end, 100);
    let first = packet(Opcode::RcSendOnly, 100, b"abc");
    assert_eq!(feed(&mut end, &first), [ack(100)]);
    assert_eq!(feed(&mut end, &first), [ack(100)]);
    assert_eq!((end.fx.receives.len(), end.fx.count_of(Reason::DuplicateRequest)), (1, 1));
}

#[test]
fn a_gap_is_reported_once_and_repaired_by_the_missing_packet() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let full = vec![7; MTU];
    post(&mut end, 5000);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendMiddle, 101, &full)), [nak(100, NakCode::PsnSequence)]);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendLast, 102, b"x")), [""; 0]);
    end.receive_from(NOW, ip_of(0), &packet(Opcode::RcSendFirst, 100, &full));
    end.receive_from(NOW, ip_of(0), &packet(Opcode::RcSendMiddle, 101, &full));
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendLast, 102, b"x")), [ack(102)]);
    assert_eq!(end.fx.receives[0].0.byte_len, 2 * MTU as u32 + 1);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendOnly, 104, b"x")), [nak(103, NakCode::PsnSequence)]);
}

#[test]
fn a_gap_that_stays_is_reported_again_after_a_while() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let (first, later) = (packet(Opcode::RcSendOnly, 101, b"x"), packet(Opcode::RcSendOnly, 102, b"x"));
    assert_eq!(feed(&mut end, &first), [nak(100, NakCode::PsnSequence)]);
    end.receive_from(NOW + Nanos::from_us(499), ip_of(0), &later);
    assert_eq!(answers(&mut end), [""; 0]);
    end.receive_from(NOW + Nanos::from_us(500), ip_of(0), &later);
    assert_eq!(answers(&mut end), [nak(100, NakCode::PsnSequence)]);
    // A receive that is missing is reported for each attempt, and not for the packets behind it.
    let mut end = responder(&Setup::default(), QpState::Rts);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendOnly, 100, b"x")), [rnr(100)]);
    end.receive_from(NOW + Nanos::from_ms(5), ip_of(0), &later);
    assert_eq!(answers(&mut end), [""; 0]);
}

#[test]
fn without_a_receive_the_answer_is_receiver_not_ready_until_one_is_posted() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let send = packet(Opcode::RcSendOnly, 100, b"abc");
    assert_eq!(feed(&mut end, &send), [rnr(100)]);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendOnly, 101, b"abc")), [""; 0]);
    assert_eq!(feed(&mut end, &send), [rnr(100)]);
    post(&mut end, 100);
    assert_eq!(feed(&mut end, &send), [ack(100)]);
    // A WRITE with immediate needs a receive for its last packet only.
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: MTU as u32 + 1 };
    assert_eq!(feed(&mut end, &request(Opcode::RcWriteFirst, 101, reth, &vec![1; MTU])), [ack(101)]);
    assert_eq!(feed(&mut end, &packet(Opcode::RcWriteLastImm, 102, b"x")), [rnr(102)]);
    post(&mut end, 0);
    assert_eq!(feed(&mut end, &packet(Opcode::RcWriteLastImm, 102, b"x")), [ack(102)]);
    assert_eq!(end.fx.receives[1].0.byte_len, MTU as u32 + 1);
}

/// Each row: the packet at PSN 100 (a READ, WRITE or atomic uses the valid key unless given another), and the NAK.
#[test]
fn requests_that_break_a_rule_are_refused_by_the_right_nak_and_end_the_queue_pair() {
    let setup = Setup::default();
    let key = End::new(1, &setup).lkey;
    let reth = |addr, len| Reth { addr, rkey: Rkey(key), len };
    let bad_key = Reth { rkey: Rkey(key ^ 0x100), ..reth(0, 4) };
    let edge = setup.memory as u64;
    let full = vec![0; MTU];
    let invalid = NakCode::InvalidRequest;
    let rows: Vec<(&str, Vec<u8>, NakCode)> = vec![
        ("middle without first", packet(Opcode::RcSendMiddle, 100, &full), invalid),
        ("last without first", packet(Opcode::RcWriteLast, 100, b"x"), invalid),
        ("short first", packet(Opcode::RcSendFirst, 100, b"x"), invalid),
        ("only longer than the MTU", packet(Opcode::RcSendOnly, 100, &vec![0; MTU + 4]), invalid),
        ("write shorter than announced", request(Opcode::RcWriteOnly, 100, reth(0, 8), b"1234"), invalid),
        ("write longer than announced", request(Opcode::RcWriteOnly, 100, reth(0, 3), b"1234"), invalid),
        ("first that is all", request(Opcode::RcWriteFirst, 100, reth(0, MTU as u32), &full), invalid),
        ("write with a wrong key", request(Opcode::RcWriteOnly, 100, bad_key, b"1234"), NakCode::RemoteAccess),
        ("write over the edge", request(Opcode::RcWriteOnly, 100, reth(edge - 3, 4), b"1234"), NakCode::RemoteAccess),
        ("write around the end", request(Opcode::RcWriteOnly, 100, reth(u64::MAX, 4), b"1234"), NakCode::RemoteAccess),
        ("read with a wrong key", request(Opcode::RcReadRequest, 100, bad_key, b""), NakCode::RemoteAccess),
        ("read over the edge", request(Opcode::RcReadRequest, 100, reth(edge, 1), b""), NakCode::RemoteAccess),
        ("read of more than 2^31", request(Opcode::RcReadRequest, 100, reth(0, (1 << 31) + 1), b""), invalid),
        ("atomic that is not aligned", fetch_add(100, key, 4), invalid),
        ("atomic with a wrong key", fetch_add(100, key ^ 0x100, 8), NakCode::RemoteAccess),
    ];
    for (what, bytes, code) in rows {
        let mut end = responder(&setup, QpState::Rts);
        post(&mut end, 5000);
        assert_eq!(feed(&mut end, &bytes), [nak(100, code)], "{what}");
        assert_eq!(end.qp.state(), QpState::Err, "{what}");
        assert_eq!(end.receive_statuses(), [WcStatus::WrFlushErr], "{what}");
        let event = if code == NakCode::RemoteAccess { EventType::QpAccessErr } else { EventType::QpReqErr };
        assert_eq!(end.fx.events, [event], "{what}");
        // After close there is no answer.
        assert_eq!(feed(&mut end, &bytes), [""; 0], "{what}");
        assert_eq!(end.fx.count_of(Reason::WrongState), 1, "{what}");
    }
}

#[test]
fn a_right_that_the_queue_pair_lacks_is_an_invalid_request() {
    for (right, opcode) in [
        (access::REMOTE_WRITE, Opcode::RcWriteOnly),
        (access::REMOTE_READ, Opcode::RcReadRequest),
        (access::REMOTE_ATOMIC, Opcode::RcFetchAdd),
    ] {
        let base = Setup::default();
        let attr = QpAttr { qp_access_flags: crate::common::ALL_RIGHTS & !right, ..base.attr };
        let mut end = responder(&Setup { attr, ..base }, QpState::Rts);
        let bytes = match opcode {
            Opcode::RcFetchAdd => fetch_add(100, end.lkey, 0),
            _ => request(opcode, 100, Reth { addr: 0, rkey: Rkey(end.lkey), len: 0 }, b""),
        };
        assert_eq!(feed(&mut end, &bytes), [nak(100, NakCode::InvalidRequest)]);
    }
}

#[test]
fn a_right_that_the_region_lacks_is_an_access_error() {
    for (rights, opcode) in [
        (access::LOCAL_WRITE | access::REMOTE_READ, Opcode::RcWriteOnly),
        (access::REMOTE_WRITE | access::LOCAL_WRITE, Opcode::RcReadRequest),
        (access::LOCAL_WRITE | access::REMOTE_WRITE, Opcode::RcFetchAdd),
    ] {
        let mut end = responder(&Setup::default(), QpState::Rts);
        let key = end.register(4096, rights);
        let payload: &[u8] = if opcode == Opcode::RcWriteOnly { b"1234" } else { b"" };
        let bytes = match opcode {
            Opcode::RcFetchAdd => fetch_add(100, key, 0),
            _ => request(opcode, 100, Reth { addr: 0, rkey: Rkey(key), len: 4 }, payload),
        };
        assert_eq!(feed(&mut end, &bytes), [nak(100, NakCode::RemoteAccess)], "{opcode:?}");
    }
}

#[test]
fn zero_length_requests_need_no_key() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let nothing = Reth { addr: 5, rkey: Rkey(0xdead), len: 0 };
    assert_eq!(feed(&mut end, &request(Opcode::RcWriteOnly, 100, nothing, b"")), [ack(100)]);
    assert_eq!(feed(&mut end, &request(Opcode::RcReadRequest, 101, nothing, b"")), ["RcReadResponseOnly 101"]);
}

#[test]
fn a_message_longer_than_its_receive_ends_both_sides() {
    for (opcode, payload) in [(Opcode::RcSendOnly, vec![0; 11]), (Opcode::RcSendFirst, vec![0; MTU])] {
        let mut end = responder(&Setup::default(), QpState::Rts);
        post(&mut end, 10);
        post(&mut end, 10);
        assert_eq!(feed(&mut end, &packet(opcode, 100, &payload)), [nak(100, NakCode::InvalidRequest)]);
        assert_eq!(end.receive_statuses(), [WcStatus::LocLenErr, WcStatus::WrFlushErr]);
        assert_eq!(end.fx.receives[0].0.vendor_err, Reason::ReceiveTooShort.index() as u32 + 1);
    }
}

#[test]
fn a_receive_with_a_bad_key_ends_both_sides() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let mut sge = end.sge(0, 10);
    sge.lkey ^= 0x100;
    end.post_receive(1, &[sge]);
    assert_eq!(feed(&mut end, &packet(Opcode::RcSendOnly, 100, b"x")), [nak(100, NakCode::RemoteOperation)]);
    assert_eq!(end.receive_statuses(), [WcStatus::LocProtErr]);
}

#[test]
fn a_repeated_read_is_answered_again_in_whole_and_in_part() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    end.write_memory(0, &[5; 4 * MTU]);
    let key = Rkey(end.lkey);
    let whole = request(Opcode::RcReadRequest, 100, Reth { addr: 0, rkey: key, len: 4 * MTU as u32 }, b"");
    let answer =
        ["RcReadResponseFirst 100", "RcReadResponseMiddle 101", "RcReadResponseMiddle 102", "RcReadResponseLast 103"];
    assert_eq!(feed(&mut end, &whole), answer);
    assert_eq!(feed(&mut end, &whole), answer);
    let rest = |psn: u32, at: u64, len| request(Opcode::RcReadRequest, psn, Reth { addr: at, rkey: key, len }, b"");
    let part = rest(102, 2 * MTU as u64, 2 * MTU as u32);
    assert_eq!(feed(&mut end, &part), ["RcReadResponseFirst 102", "RcReadResponseLast 103"]);
    assert_eq!(feed(&mut end, &rest(103, 3 * MTU as u64, MTU as u32)), ["RcReadResponseOnly 103"]);
    // A range outside the first request is dropped.
    for bad in [rest(102, 0, 2 * MTU as u32), rest(102, 2 * MTU as u64, 3 * MTU as u32), rest(99, 0, 4)] {
        assert_eq!(feed(&mut end, &bad), [""; 0]);
    }
    assert_eq!(end.fx.count_of(Reason::DuplicateForgotten), 3);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn a_repeated_atomic_gives_the_saved_result_until_it_is_forgotten() {
    let setup = Setup { attr: QpAttr { max_dest_rd_atomic: 2, ..Setup::default().attr }, ..Setup::default() };
    let mut end = responder(&setup, QpState::Rts);
    let key = end.lkey;
    for psn in 100..103 {
        end.receive_from(NOW, ip_of(0), &fetch_add(psn, key, 8));
        let answer = end.drain(NOW);
        assert_eq!(Packet::parse(&answer[0]).unwrap().atomic_ack().unwrap().original, u64::from(psn - 100));
    }
    end.receive_from(NOW, ip_of(0), &fetch_add(101, key, 8));
    let answer = end.drain(NOW);
    assert_eq!(Packet::parse(&answer[0]).unwrap().atomic_ack().unwrap().original, 1);
    assert_eq!(end.memory(8, 8), 3u64.to_ne_bytes());
    assert_eq!(feed(&mut end, &fetch_add(100, key, 8)), [""; 0]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let setup = Setup { attr: QpAttr { max_dest_rd_atomic: 2, ..Setup::default().attr }, ..Setup::default() };
    let mut end = responder(&setup, QpState::Rts);
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 };
    for psn in 100..103 {
        end.receive_from(NOW, ip_of(0), &request(Opcode::RcReadRequest, psn, reth, b""));
    }
    assert_eq!(end.fx.count_of(Reason::TooManyReads), 1);
    let got = answers(&mut end);
    assert_eq!(
        got,
        ["RcReadResponseOnly 100".into(), "RcReadResponseOnly 101".into(), nak(102, NakCode::InvalidRequest)]
    );
}

/// Places for READs and ATOMICs are reserved as they are used, the first with the queue pair. Without memory for the second
/// nothing is executed, and the peer is asked to come again.
#[cfg(debug_assertions)]
#[test]
fn an_atomic_for_which_there_is_no_memory_is_asked_for_again() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let key = end.lkey;
    assert_eq!(feed(&mut end, &fetch_add(100, key, 8)).len(), 1);
    burst_base::fault::arm(0);
    let answer = feed(&mut end, &fetch_add(101, key, 8));
    assert!(burst_base::fault::disarm(), "the second place is not reserved before it is used");
    let timer = Setup::default().attr.min_rnr_timer;
    assert_eq!(answer, [format!("RcAck 101 {:?}", Syndrome::Rnr { timer })]);
    assert_eq!(end.fx.count_of(Reason::NoMemory), 1);
    assert_eq!(end.memory(8, 8), 1u64.to_ne_bytes(), "it was not executed");
    for psn in 101..120 {
        end.receive_from(NOW, ip_of(0), &fetch_add(psn, key, 8));
        let answer = end.drain(NOW);
        assert_eq!(Packet::parse(&answer[0]).unwrap().atomic_ack().unwrap().original, u64::from(psn - 100));
    }
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn repeated_reads_among_many_are_answered_in_psn_order() {
    let setup =
        Setup { attr: QpAttr { max_dest_rd_atomic: RD_ATOMIC_MAX, ..Setup::default().attr }, ..Setup::default() };
    let mut end = responder(&setup, QpState::Rts);
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 };
    let answer = |psn: u32| format!("RcReadResponseOnly {psn}");
    let past = 100 + u32::from(RD_ATOMIC_MAX);
    (100..past).for_each(|psn| end.receive_from(NOW, ip_of(0), &request(Opcode::RcReadRequest, psn, reth, b"")));
    assert_eq!(answers(&mut end), (100..past).map(answer).collect::<Vec<_>>());
    // One more READ replaces the oldest; the later of two repetitions is the earlier READ.
    for psn in [past, past - 10, 101] {
        end.receive_from(NOW, ip_of(0), &request(Opcode::RcReadRequest, psn, reth, b""));
    }
    assert_eq!(answers(&mut end), [101, past - 10, past].map(answer));
    assert_eq!(feed(&mut end, &request(Opcode::RcReadRequest, 100, reth, b"")), [""; 0]);
    assert_eq!(end.fx.count_of(Reason::DuplicateForgotten), 1);
}

#[test]
fn answers_are_sent_in_the_order_of_the_requests() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 };
    let key = end.lkey;
    post(&mut end, 10);
    post(&mut end, 10);
    end.receive_from(NOW, ip_of(0), &packet(Opcode::RcSendOnly, 100, b"x"));
    end.receive_from(NOW, ip_of(0), &request(Opcode::RcReadRequest, 101, reth, b""));
    end.receive_from(NOW, ip_of(0), &fetch_add(102, key, 8));
    end.receive_from(NOW, ip_of(0), &packet(Opcode::RcSendOnly, 103, b"x"));
    assert_eq!(answers(&mut end), ["RcReadResponseOnly 101".into(), "RcAtomicAck 102".into(), ack(103)]);
}

#[test]
fn requests_are_sent_while_the_peer_reads_without_pause() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let (rkey, sge) = (Rkey(end.lkey), end.sge(0, 100));
    let read = |psn| request(Opcode::RcReadRequest, psn, Reth { addr: 0, rkey, len: 128 << 10 }, &[]);
    // Three READ responses are always pending.
    let mut asked = 100;
    for _ in 0..3 {
        end.receive_from(NOW, ip_of(0), &read(asked));
        asked += 128;
    }
    let wqe = SendWqe { wr_id: 1, opcode: WrOpcode::Send as u8, ..SendWqe::default() };
    end.post(&wqe, &[sge]);
    let mut answered = 0;
    for turn in 0.. {
        assert!(turn < 4, "a request must not wait for the end of all READs");
        end.poll(NOW, &mut TxBudget { wqes: 64, bytes: 64 << 10, window_bytes: 64 << 10 });
        let opcodes: Vec<_> = end.tx.frames().iter().map(|frame| frame.head()[0]).collect();
        end.tx.clear();
        answered += opcodes.iter().filter(|number| **number != Opcode::RcSendOnly.number()).count();
        if answered >= 128 {
            answered -= 128;
            end.receive_from(NOW, ip_of(0), &read(asked));
            asked += 128;
        }
        if opcodes.contains(&Opcode::RcSendOnly.number()) {
            assert!(opcodes.len() > 1, "nor the READs for it");
            break;
        }
    }
    // READ responses get the rest of the turn.
    let left = end.drain(NOW);
    assert!(left.len() > 2 * 128 && left.iter().all(|bytes| bytes[0] != Opcode::RcSendOnly.number()));
}

#[test]
fn packets_that_are_not_for_this_queue_pair_are_dropped_silently() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let good = packet(Opcode::RcSendOnly, 100, b"abc");
    let mut bad_pkey = good.clone();
    bad_pkey[2..4].copy_from_slice(&0x7ffeu16.to_be_bytes());
    let rows = [
        (ip_of(9), good.clone(), Reason::WrongSource),
        (ip_of(0), bad_pkey, Reason::BadPkey),
        (ip_of(0), packet(Opcode::UcSendOnly, 100, b"abc"), Reason::WrongTransport),
    ];
    for (src, bytes, reason) in rows {
        end.receive_from(NOW, src, &bytes);
        assert_eq!(end.fx.count_of(reason), 1);
        assert_eq!(answers(&mut end), [""; 0]);
    }
    for state in [QpState::Init, QpState::Rtr] {
        let mut end = responder(&Setup::default(), state);
        end.receive_from(NOW, ip_of(0), &good);
        let is_ready = state == QpState::Rtr;
        assert_eq!(end.fx.count_of(Reason::WrongState), u32::from(!is_ready));
        assert_eq!(end.fx.events, if is_ready { vec![EventType::CommEst] } else { vec![] });
    }
}

#[test]
fn a_region_deregistered_during_a_read_response_is_a_nak() {
    let setup = Setup::default();
    let mut end = responder(&setup, QpState::Rts);
    let key = end.register(8 * MTU, crate::common::ALL_RIGHTS);
    let reth = Reth { addr: 0, rkey: Rkey(key), len: 8 * MTU as u32 };
    end.receive_from(NOW, ip_of(0), &request(Opcode::RcReadRequest, 100, reth, b""));
    let mut budget = burst_transport::TxBudget { wqes: 1, bytes: 2 * MTU as u64, window_bytes: 0 };
    assert_eq!(end.poll(NOW, &mut budget), burst_transport::TxState::More);
    assert_eq!(end.tx.len(), 2);
    end.tx.clear();
    assert!(end.mem.remove(key).is_some());
    assert_eq!(answers(&mut end), [nak(102, NakCode::RemoteAccess)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn access_flags_may_change_in_rts() {
    let mut end = responder(&Setup::default(), QpState::Rts);
    let attr = QpAttr { qp_access_flags: access::REMOTE_READ, ..QpAttr::default() };
    end.modify(&attr, attr_mask::ACCESS_FLAGS, 0).expect("allowed in RTS");
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 };
    assert_eq!(feed(&mut end, &request(Opcode::RcReadRequest, 100, reth, b"")), ["RcReadResponseOnly 100"]);
    let write = request(Opcode::RcWriteOnly, 101, reth, b"1234");
    assert_eq!(feed(&mut end, &write), [nak(101, NakCode::InvalidRequest)]);
}

#[test]
fn a_receive_may_reach_beyond_its_region_if_the_message_does_not() {
    let cases =
        [(1, WcStatus::Success), (1000, WcStatus::Success), (1001, WcStatus::LocProtErr), (3000, WcStatus::LocProtErr)];
    for (selective, (length, expected)) in [0, WINDOW_PSNS].into_iter().flat_map(|s| cases.map(|case| (s, case))) {
        let setup = Setup { selective, ..Setup::default() };
        let mut ends = [End::new(0, &setup), End::new(1, &setup)];
        ends[0].bring_up(1, &setup, QpState::Rts);
        ends[1].bring_up(0, &setup, QpState::Rts);
        let lkey = ends[1].register(1000, ALL_RIGHTS);
        ends[1].post_receive(1, &[Sge { addr: 0, length: 4096, lkey }]);
        let sge = ends[0].sge(0, length);
        let wqe = SendWqe { opcode: WrOpcode::Send as u8, flags: send_flags::SIGNALED as u16, ..SendWqe::default() };
        ends[0].post(&wqe, &[sge]);
        for packet in ends[0].drain(NOW) {
            ends[1].receive_from(NOW, ip_of(0), &packet);
        }
        assert_eq!(ends[1].receive_statuses(), [expected], "{length} bytes, selective {selective}");
    }
}
