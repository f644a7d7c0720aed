//! The requester: the packets that it sends, and the effect of answers: in order, duplicate, implied, stale, ghost, malformed,
//! late.
use crate::common::{End, Setup, frame_bytes, ip_of, qpn_of};
use burst_base::verbs::{EventType, QpAttr, QpCap, QpState, QpType, WcStatus, WrOpcode, attr_mask, send_flags};
use burst_base::{Nanos, Psn, Reason};
use burst_shm::layout::SendWqe;
use burst_transport::{READ_CHUNK_BYTES, Signal, TxBudget, TxState};
use burst_wire::aeth::ack_timeout;
use burst_wire::{Aeth, AtomicAckEth, Bth, HeadBuf, NakCode, Opcode, Packet, Syndrome};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;

fn requester(setup: &Setup) -> End {
    let mut end = End::new(0, setup);
    end.bring_up(1, setup, QpState::Rts);
    end
}

fn with_attr(change: impl FnOnce(&mut QpAttr)) -> Setup {
    let mut setup = Setup::default();
    change(&mut setup.attr);
    setup
}

fn wqe(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: opcode as u8, flags: send_flags::SIGNALED as u16, rkey: 9, ..SendWqe::default() }
}

fn post(end: &mut End, opcode: WrOpcode, wr_id: u64, len: u32) {
    let sges = [end.sge(0, len)];
    end.post(&wqe(opcode, wr_id), &sges);
}

/// The packets that the requester sends now: opcode and PSN, and "!" if the packet asks for an acknowledgement.
fn sent(end: &mut End, now: Nanos) -> Vec<String> {
    let name = |bytes: &Vec<u8>| {
        let bth = Packet::parse(bytes).expect("well-formed").bth;
        format!("{:?} {}{}", bth.opcode, bth.psn.get(), if bth.ack_req { "!" } else { "" })
    };
    end.drain(now).iter().map(name).collect()
}

fn answer(end: &mut End, now: Nanos, psn: u32, syndrome: Syndrome) {
    let bth = Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(psn));
    let head = HeadBuf::new(&bth).aeth(Aeth { syndrome, msn: 0 });
    end.receive_from(now, ip_of(1), head.as_slice());
}

fn ack(end: &mut End, psn: u32) {
    answer(end, NOW, psn, Syndrome::ACK);
}

fn read_response(end: &mut End, opcode: Opcode, psn: u32, payload: &[u8]) {
    let head = HeadBuf::new(&Bth::new(opcode, qpn_of(0), Psn::new(psn)));
    let head =
        if opcode == Opcode::RcReadResponseMiddle { head } else { head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }) };
    let mut bytes = head.as_slice().to_vec();
    bytes.extend_from_slice(payload);
    end.receive_from(NOW, ip_of(1), &bytes);
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn one_acknowledgement_completes_all_requests_before_it() {
    let mut end = requester(&Setup::default());
    for wr_id in 0..3 {
        post(&mut end, WrOpcode::RdmaWrite, wr_id, 2 * MTU);
    }
    let got = sent(&mut end, NOW);
    assert_eq!(got[..2], ["RcWriteOnly 100", "RcWriteOnly 101!"]);
    ack(&mut end, 102);
    assert_eq!((end.statuses(), end.qp.inflight_bytes()), (vec![OK], 3 * u64::from(MTU)));
    ack(&mut end, 105);
    assert_eq!((end.statuses(), end.qp.inflight_bytes()), (vec![OK; 3], 0));
    assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
}

#[test]
fn stale_and_ghost_answers_change_nothing() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    ack(&mut end, 99);
    ack(&mut end, 101);
    answer(&mut end, NOW, 101, Syndrome::Nak(NakCode::RemoteAccess));
    answer(&mut end, NOW, 100, Syndrome::Reserved(0x65));
    assert_eq!(end.statuses(), []);
    ack(&mut end, 100);
    ack(&mut end, 100);
    assert_eq!((end.statuses(), end.fx.count_of(Reason::StaleAck)), (vec![OK], 2));
    assert_eq!(end.fx.count_of(Reason::UnexpectedResponse), 3);
}

#[test]
fn a_sequence_nak_goes_back_to_its_packet() {
    let mut end = requester(&Setup::default());
    end.window = u64::from(4 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 1, 6 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 4);
    answer(&mut end, NOW, 102, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(end.qp.inflight_bytes(), 0);
    // The same NAK again, before anything was sent again, is stale.
    answer(&mut end, NOW, 102, Syndrome::Nak(NakCode::PsnSequence));
    let before = end.qp.next_deadline();
    assert_eq!(sent(&mut end, NOW), ["RcWriteOnly 102", "RcWriteOnly 103!"], "half of the window");
    assert_eq!(end.fx.signals, [Signal::Loss]);
    let shortest = NOW + Nanos::from_us(200);
    assert_eq!(
        (before, end.qp.next_deadline()),
        (Nanos::NEVER, shortest),
        "the repetition may be lost: two round trips, which the NAK has measured to be short"
    );
}

#[test]
fn a_repetition_is_repeated_after_a_quarter_of_the_wait_before_a_round_trip_was_measured() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaWrite, 1, 2 * MTU);
    sent(&mut end, NOW);
    answer(&mut end, NOW, 100, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end, NOW), ["RcWriteOnly 100", "RcWriteOnly 101!"]);
    assert_eq!(end.qp.next_deadline(), NOW + Nanos(ack_timeout(10).0 / 4));
}

#[test]
fn a_repeated_sequence_nak_is_ignored_until_there_is_progress() {
    let mut end = requester(&with_attr(|a| a.retry_cnt = 1));
    end.window = u64::from(4 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 1, 4 * MTU);
    sent(&mut end, NOW);
    answer(&mut end, NOW, 100, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end, NOW), ["RcWriteOnly 100", "RcWriteOnly 101!"]);
    for _ in 0..3 {
        answer(&mut end, NOW, 100, Syndrome::Nak(NakCode::PsnSequence));
    }
    assert_eq!((end.fx.count_of(Reason::NakRepeated), end.statuses(), sent(&mut end, NOW)), (3, vec![], vec![]));
    answer(&mut end, NOW, 101, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end, NOW), ["RcWriteOnly 101", "RcWriteOnly 102!"], "another packet");
    assert_eq!(end.fx.count_of(Reason::SequenceNakReceived), 2);
}

#[test]
fn after_going_back_half_of_the_window_is_sent_until_the_missing_packet_is_acknowledged() {
    let mut end = requester(&Setup::default());
    end.window = u64::from(20 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 1, 20 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 20);
    answer(&mut end, NOW, 104, Syndrome::Nak(NakCode::PsnSequence));
    let again = sent(&mut end, NOW);
    assert_eq!((again.len(), again[9].as_str()), (10, "RcWriteOnly 113!"), "half of 20; the last asks for an answer");
    ack(&mut end, 104);
    assert_eq!(sent(&mut end, NOW).len(), 6, "the rest");
}

/// Responders report a gap once. Without a timer of its own a packet that is lost twice would cost a local ACK timeout.
#[test]
fn a_packet_that_is_lost_again_is_repeated_after_two_round_trips_without_a_retry() {
    let mut end = requester(&with_attr(|a| a.retry_cnt = 1));
    let ms = Nanos::from_ms;
    post(&mut end, WrOpcode::RdmaWrite, 1, 8 * MTU);
    sent(&mut end, ms(1));
    answer(&mut end, ms(2), 100, Syndrome::Nak(NakCode::PsnSequence));
    sent(&mut end, ms(2));
    // The answer to the repetition measures a round trip of 300 us.
    let later = ms(2) + Nanos::from_us(300);
    answer(&mut end, later, 102, Syndrome::ACK);
    assert_eq!(end.qp.next_deadline(), later + Nanos::from_us(900), "a probe is next");
    answer(&mut end, later, 103, Syndrome::Nak(NakCode::PsnSequence));
    for (repeat, at) in [(0, later), (1, later + Nanos::from_us(900)), (2, later + Nanos::from_us(1_800))] {
        match repeat {
            0 => assert_eq!(sent(&mut end, at)[0], "RcWriteOnly 103"),
            _ => {
                let again = sent(&mut end, at);
                assert_eq!((again.len(), again[3].as_str()), (4, "RcWriteOnly 106!"), "after silence, {repeat}");
            }
        }
        let wait = if repeat < 2 { Nanos::from_us(900) } else { ack_timeout(10) };
        assert_eq!(end.qp.next_deadline(), at + wait, "round trip and four times its variation, {repeat}");
        if repeat < 2 {
            end.fire(at + wait);
        }
    }
    assert_eq!((end.fx.count_of(Reason::BackRepeated), end.statuses()), (2, vec![]), "one retry was given");
    answer(&mut end, ms(5), 107, Syndrome::ACK);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
}

#[test]
fn time_outs_send_again_and_then_give_up() {
    let mut end = requester(&with_attr(|a| a.retry_cnt = 2));
    post(&mut end, WrOpcode::Send, 1, 4);
    post(&mut end, WrOpcode::Send, 2, 4);
    assert_eq!(sent(&mut end, NOW), ["RcSendOnly 100!", "RcSendOnly 101!"]);
    for _ in 0..2 {
        let due = end.qp.next_deadline();
        end.fire(Nanos(due.0 - 1));
        assert!(!end.qp.wants_tx());
        end.fire(due);
        assert_eq!(sent(&mut end, due), ["RcSendOnly 100!", "RcSendOnly 101!"]);
    }
    let due = end.qp.next_deadline();
    end.fire(due);
    assert_eq!(sent(&mut end, due), [""; 0]);
    assert_eq!(end.statuses(), [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
    assert_eq!(end.fx.sends[0].vendor_err, Reason::RetryExhausted.index() as u32 + 1);
    assert_eq!((end.qp.state(), end.qp.next_deadline()), (QpState::Err, Nanos::NEVER));
}

/// A slow peer acknowledges each repeated packet. It still works on them, and sending all a third time would only delay it.
#[test]
fn a_repeated_latest_acknowledgement_restarts_the_timer() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaWrite, 1, MTU);
    post(&mut end, WrOpcode::RdmaWrite, 2, MTU);
    post(&mut end, WrOpcode::RdmaWrite, 3, MTU);
    sent(&mut end, NOW);
    ack(&mut end, 100);
    ack(&mut end, 101);
    let due = end.qp.next_deadline();
    let later = Nanos(due.0 - 5);
    answer(&mut end, later, 100, Syndrome::ACK);
    assert_eq!(end.qp.next_deadline(), due, "older ones tell nothing");
    answer(&mut end, later, 101, Syndrome::ACK);
    assert_eq!(end.qp.next_deadline(), later + due.since(NOW));
    // Without a packet in flight no timer runs.
    answer(&mut end, later, 102, Syndrome::ACK);
    answer(&mut end, later, 102, Syndrome::ACK);
    assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
}

/// A peer that does not run for a second does not fail after eight waits of 67 ms. With a long timeout the failure comes when
/// the timeout and the retry count say.
#[test]
fn waits_grow_with_time_outs_up_to_the_limit() {
    for (timeout, waits_ms) in [(14, [67, 134, 268, 268]), (16, [268, 500, 500, 500]), (18, [1073, 1073, 1073, 1073])] {
        let mut end = requester(&with_attr(|a| (a.timeout, a.retry_cnt) = (timeout, 7)));
        post(&mut end, WrOpcode::Send, 1, 4);
        sent(&mut end, NOW);
        let mut now = NOW;
        for wait_ms in waits_ms {
            let due = end.qp.next_deadline();
            assert_eq!(due.since(now).0 / 1_000_000, wait_ms, "timeout {timeout}");
            end.fire(due);
            now = due;
            assert_eq!(sent(&mut end, now).len(), 1);
        }
        answer(&mut end, now, 100, Syndrome::ACK);
        post(&mut end, WrOpcode::Send, 2, 4);
        sent(&mut end, now);
        assert_eq!(end.qp.next_deadline().since(now).0 / 1_000_000, waits_ms[0], "progress makes it short again");
    }
}

#[test]
fn timeout_zero_never_expires() {
    let mut end = requester(&with_attr(|a| a.timeout = 0));
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
}

#[test]
fn an_rnr_nak_waits_and_uses_up_rnr_retry_only() {
    let mut end = requester(&with_attr(|a| (a.rnr_retry, a.retry_cnt) = (1, 0)));
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    answer(&mut end, NOW, 100, Syndrome::Rnr { timer: 1 });
    let due = end.qp.next_deadline();
    assert_eq!((due, sent(&mut end, NOW)), (NOW + Nanos::from_us(10), vec![]));
    let mut budget = TxBudget { wqes: 1, bytes: 1, window_bytes: 1 };
    assert_eq!(end.poll(NOW, &mut budget), TxState::Timer);
    end.fire(due);
    assert_eq!(sent(&mut end, due), ["RcSendOnly 100!"]);
    answer(&mut end, due, 100, Syndrome::Rnr { timer: 1 });
    assert_eq!(end.statuses(), [WcStatus::RnrRetryExcErr]);
}

#[test]
fn an_rnr_nak_acknowledges_everything_before_it() {
    let mut end = requester(&with_attr(|a| a.rnr_retry = 2));
    for wr_id in 1..=3 {
        post(&mut end, WrOpcode::Send, wr_id, 2 * MTU);
    }
    assert_eq!(sent(&mut end, NOW).len(), 6);
    // The third message finds no receive: two are complete, and the third is sent again after the wait, not before.
    answer(&mut end, NOW, 104, Syndrome::Rnr { timer: 2 });
    assert_eq!((end.statuses(), end.qp.inflight_bytes()), (vec![OK; 2], 0));
    let due = NOW + Nanos::from_us(20);
    assert_eq!((end.qp.next_deadline(), sent(&mut end, NOW)), (due, vec![]));
    end.fire(due);
    assert_eq!(sent(&mut end, due), ["RcSendFirst 104", "RcSendLast 105!"]);
    assert_eq!((end.fx.count_of(Reason::RnrNakReceived), end.fx.signals.len()), (1, 0));
    // In the middle of a message everything up to the packet before the NAK's counts.
    answer(&mut end, due, 105, Syndrome::Rnr { timer: 1 });
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK; 2], due + Nanos::from_us(10)));
    end.fire(due + Nanos::from_us(10));
    assert_eq!(sent(&mut end, due + Nanos::from_us(10)), ["RcSendLast 105!"]);
}

#[test]
fn an_rnr_nak_beyond_an_unanswered_read_is_an_implied_nak() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaRead, 1, 4);
    post(&mut end, WrOpcode::Send, 2, 4);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!", "RcSendOnly 101!"]);
    answer(&mut end, NOW, 101, Syndrome::Rnr { timer: 1 });
    let counts = |end: &End| (end.fx.count_of(Reason::ImpliedNak), end.fx.count_of(Reason::RnrNakReceived));
    assert_eq!((counts(&end), end.fx.signals.as_slice()), ((1, 0), &[Signal::Loss][..]));
    // The READ is requested again at once, without waiting.
    assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!", "RcSendOnly 101!"]);
    read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[1; 4]);
    answer(&mut end, NOW, 101, Syndrome::Rnr { timer: 1 });
    assert_eq!((counts(&end), end.statuses()), ((1, 1), vec![OK]));
}

#[test]
fn an_rnr_nak_during_the_wait_is_stale() {
    let mut end = requester(&with_attr(|a| a.rnr_retry = 1));
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    answer(&mut end, NOW, 100, Syndrome::Rnr { timer: 1 });
    let due = end.qp.next_deadline();
    answer(&mut end, NOW + Nanos::from_us(5), 100, Syndrome::Rnr { timer: 9 });
    assert_eq!((end.qp.next_deadline(), end.statuses()), (due, vec![]), "no retry is used up, no other wait");
    assert_eq!((end.fx.count_of(Reason::StaleAck), end.fx.count_of(Reason::RnrNakReceived)), (1, 1));
    // A sequence NAK during the wait is stale too, and does not end it.
    answer(&mut end, NOW, 100, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!((end.qp.next_deadline(), end.fx.count_of(Reason::StaleAck)), (due, 2));
}

#[test]
fn rnr_retries_seven_never_end_and_progress_restores_fewer() {
    let mut end = requester(&with_attr(|a| a.rnr_retry = 7));
    post(&mut end, WrOpcode::Send, 1, 4);
    let mut now = NOW;
    for _ in 0..20 {
        sent(&mut end, now);
        answer(&mut end, now, 100, Syndrome::Rnr { timer: 1 });
        now = end.qp.next_deadline();
        end.fire(now);
    }
    assert_eq!((end.statuses(), end.fx.count_of(Reason::RnrNakReceived)), (vec![], 20));

    let mut end = requester(&with_attr(|a| a.rnr_retry = 1));
    let mut now = NOW;
    for (wr_id, psn) in [(1, 100), (2, 101), (3, 102)] {
        post(&mut end, WrOpcode::Send, wr_id, 4);
        sent(&mut end, now);
        answer(&mut end, now, psn, Syndrome::Rnr { timer: 1 });
        now = end.qp.next_deadline();
        end.fire(now);
        sent(&mut end, now);
        answer(&mut end, now, psn, Syndrome::ACK);
    }
    assert_eq!(end.statuses(), [OK; 3]);
}

#[test]
fn a_nak_beyond_an_unanswered_read_goes_back_to_the_read() {
    for code in [NakCode::PsnSequence, NakCode::RemoteAccess, NakCode::InvalidRequest] {
        let mut end = requester(&Setup::default());
        post(&mut end, WrOpcode::RdmaRead, 1, 4);
        post(&mut end, WrOpcode::Send, 2, 4);
        sent(&mut end, NOW);
        answer(&mut end, NOW, 101, Syndrome::Nak(code));
        assert_eq!((end.statuses(), end.fx.count_of(Reason::ImpliedNak)), (vec![], 1), "{code:?}");
        assert_eq!(end.fx.count_of(Reason::SequenceNakReceived), 0);
        assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!", "RcSendOnly 101!"]);
    }
}

#[test]
fn a_fatal_nak_fails_its_request_and_flushes_the_rest() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperation, WcStatus::RemOpErr),
    ] {
        let mut end = requester(&Setup::default());
        for wr_id in 0..4 {
            post(&mut end, WrOpcode::Send, wr_id, 4);
        }
        sent(&mut end, NOW);
        answer(&mut end, NOW, 101, Syndrome::Nak(code));
        sent(&mut end, NOW);
        assert_eq!(end.statuses(), [OK, status, WcStatus::WrFlushErr, WcStatus::WrFlushErr]);
        let consumers: Vec<u32> = end.fx.sends.iter().map(|c| c.sq_consumer).collect();
        assert_eq!(consumers, [1, 2, 3, 4]);
        // Requests posted later are flushed as well: sends and receives, unsignaled ones too.
        end.post(&SendWqe { flags: 0, ..wqe(WrOpcode::Send, 9) }, &[]);
        end.post_receive(8, &[]);
        sent(&mut end, NOW);
        assert_eq!(end.statuses()[4..], [WcStatus::WrFlushErr]);
        assert_eq!(end.receive_statuses(), [WcStatus::WrFlushErr]);
        end.post_receive(9, &[]);
        sent(&mut end, NOW);
        assert_eq!(end.fx.receives.len(), 2);
    }
}

#[test]
fn a_read_is_requested_again_from_its_first_missing_response() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaRead, 1, 4 * MTU);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!"]);
    let full = [6; MTU as usize];
    read_response(&mut end, Opcode::RcReadResponseFirst, 100, &full);
    read_response(&mut end, Opcode::RcReadResponseMiddle, 102, &full);
    read_response(&mut end, Opcode::RcReadResponseLast, 103, &full);
    assert_eq!(end.fx.count_of(Reason::ImpliedNak), 1);
    let again = end.drain(NOW);
    let packet = Packet::parse(&again[0]).unwrap();
    let reth = packet.reth().unwrap();
    assert_eq!((packet.bth.psn, reth.addr, reth.len, again.len()), (Psn::new(101), u64::from(MTU), MTU, 1));
    // The second answer may be a "middle", as Linux rxe's is, and may go on behind what was asked for.
    for psn in 101..103 {
        read_response(&mut end, Opcode::RcReadResponseMiddle, psn, &full);
    }
    read_response(&mut end, Opcode::RcReadResponseLast, 103, &full);
    assert_eq!(end.statuses(), [OK]);
    assert_eq!(end.fx.count_of(Reason::StaleAck), 2);
    assert_eq!(end.memory(0, 4 * MTU as usize), [6; 4 * MTU as usize]);
}

#[test]
fn a_response_acknowledges_the_requests_before_it() {
    for (opcode, expected) in [(WrOpcode::RdmaRead, [1; 8]), (WrOpcode::AtomicFetchAndAdd, [2; 8])] {
        let mut end = requester(&Setup::default());
        post(&mut end, WrOpcode::Send, 1, 4);
        post(&mut end, WrOpcode::RdmaWrite, 2, 2 * MTU);
        post(&mut end, opcode, 3, 8);
        sent(&mut end, NOW);
        if opcode == WrOpcode::RdmaRead {
            read_response(&mut end, Opcode::RcReadResponseOnly, 103, &[1; 8]);
        } else {
            let head = HeadBuf::new(&Bth::new(Opcode::RcAtomicAck, qpn_of(0), Psn::new(103)))
                .aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 })
                .atomic_ack(AtomicAckEth { original: u64::from_ne_bytes([2; 8]) });
            end.receive_from(NOW, ip_of(1), head.as_slice());
        }
        assert_eq!(end.statuses(), [OK; 3], "{opcode:?}");
        assert_eq!(end.memory(0, 8), expected);
        assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
    }
}

#[test]
fn an_acknowledgement_does_not_end_a_read_before_it() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaRead, 1, 4);
    post(&mut end, WrOpcode::RdmaWrite, 2, 4);
    sent(&mut end, NOW);
    ack(&mut end, 101);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!", "RcWriteOnly 101!"]);
    // Without progress the next implied NAK is ignored; the timer repeats the READ.
    ack(&mut end, 101);
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[1; 4]);
    ack(&mut end, 101);
    assert_eq!(end.statuses(), [OK; 2]);
}

#[test]
fn a_response_of_the_wrong_length_or_kind_is_a_bad_response() {
    for case in 0..3 {
        let mut end = requester(&Setup::default());
        let opcode = if case == 2 { WrOpcode::RdmaWrite } else { WrOpcode::RdmaRead };
        post(&mut end, opcode, 1, 8);
        sent(&mut end, NOW);
        match case {
            0 => read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[0; 4]),
            1 => {
                let head = HeadBuf::new(&Bth::new(Opcode::RcAtomicAck, qpn_of(0), Psn::new(100)))
                    .aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 })
                    .atomic_ack(AtomicAckEth { original: 1 });
                end.receive_from(NOW, ip_of(1), head.as_slice());
            }
            _ => read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[0; 8]),
        }
        assert_eq!(end.statuses(), [WcStatus::BadRespErr], "{case}");
    }
}

#[test]
fn large_reads_are_requested_in_pieces_as_the_window_allows() {
    let chunk = READ_CHUNK_BYTES;
    let setup = Setup { window: u64::from(chunk) * 2, ..Setup::default() };
    let mut end = requester(&setup);
    post(&mut end, WrOpcode::RdmaRead, 1, chunk * 4);
    let packets = chunk / MTU;
    let names: Vec<String> = (0..4).map(|i| format!("RcReadRequest {}!", 100 + i * packets)).collect();
    assert_eq!(sent(&mut end, NOW), names[..2]);
    assert_eq!(end.last, TxState::Window);
    let full = [0; MTU as usize];
    for psn in 100..100 + packets {
        read_response(&mut end, Opcode::RcReadResponseMiddle, psn, &full);
    }
    assert_eq!(sent(&mut end, NOW), names[2..3]);

    // The limit of outstanding reads counts pieces.
    let mut end = requester(&with_attr(|a| a.max_rd_atomic = 1));
    post(&mut end, WrOpcode::RdmaRead, 1, chunk * 4);
    assert_eq!(sent(&mut end, NOW), names[..1]);
    assert_eq!(end.last, TxState::Idle);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaRead, 1, 4);
    let fenced = SendWqe { flags: (send_flags::FENCE | send_flags::SIGNALED) as u16, ..wqe(WrOpcode::Send, 2) };
    end.post(&fenced, &[]);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!"]);
    read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[0; 4]);
    assert_eq!(sent(&mut end, NOW), ["RcSendOnly 101!"]);
}

#[test]
fn the_last_packet_before_a_closed_window_asks_for_an_acknowledgement() {
    let mut end = requester(&Setup { window: 3 * u64::from(MTU), ..Setup::default() });
    post(&mut end, WrOpcode::RdmaWrite, 1, 5 * MTU);
    let got = sent(&mut end, NOW);
    assert_eq!(got, ["RcWriteOnly 100", "RcWriteOnly 101", "RcWriteOnly 102!"]);
    assert_eq!((end.last, end.qp.inflight_bytes()), (TxState::Window, 3 * u64::from(MTU)));
    assert!(!end.qp.wants_tx());
    ack(&mut end, 102);
    assert_eq!(sent(&mut end, NOW), ["RcWriteOnly 103", "RcWriteOnly 104!"]);
}

#[test]
fn the_last_packet_of_a_turn_asks_for_an_acknowledgement() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::RdmaWrite, 1, 5 * MTU);
    let mut turn = |packets: u64| {
        end.poll(NOW, &mut TxBudget { wqes: 8, bytes: packets * u64::from(MTU), window_bytes: 1 << 20 });
        let asks: Vec<bool> = end
            .tx
            .frames()
            .iter()
            .map(|frame| {
                let mut bytes = Vec::new();
                frame_bytes(&end.tx, frame, &mut bytes);
                Packet::parse(&bytes).expect("well-formed").bth.ack_req
            })
            .collect();
        end.tx.clear();
        asks
    };
    assert_eq!(turn(2), [false, true]);
    assert_eq!(turn(1), [true]);
    assert_eq!(turn(9), [false, true], "the last of the message");
}

#[test]
fn entries_of_length_0_are_passed_over() {
    let mut end = requester(&Setup::default());
    end.write_memory(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let lengths = [(0, 0), (0, 3), (50, 0), (60, 0), (3, 5), (70, 0)];
    let sges = lengths.map(|(addr, len)| end.sge(addr, len));
    end.post(&wqe(WrOpcode::Send, 1), &sges);
    let packets = end.drain(NOW);
    let payloads: Vec<&[u8]> = packets.iter().map(|bytes| Packet::parse(bytes).expect("well-formed").payload).collect();
    assert_eq!(payloads, [[1, 2, 3, 4, 5, 6, 7, 8]]);
}

#[test]
fn without_credits_one_packet_at_a_time_is_sent() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    // MSN 1 without credits: the second send exceeds them.
    let credit = |end: &mut End, psn: u32, msn: u32, credit: u8| {
        let bth = Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(psn));
        let head = HeadBuf::new(&bth).aeth(Aeth { syndrome: Syndrome::Ack { credit }, msn });
        end.receive_from(NOW, ip_of(1), head.as_slice());
    };
    credit(&mut end, 100, 1, 0);
    for wr_id in 2..5 {
        post(&mut end, WrOpcode::Send, wr_id, 2 * MTU);
    }
    assert_eq!(sent(&mut end, NOW), ["RcSendFirst 101!"]);
    credit(&mut end, 101, 1, 0);
    assert_eq!(sent(&mut end, NOW), ["RcSendLast 102!"]);
    // One more receive was posted: a repeated acknowledgement carries the new credit.
    credit(&mut end, 102, 2, 1);
    assert_eq!(sent(&mut end, NOW), ["RcSendFirst 103", "RcSendLast 104!"]);
    credit(&mut end, 104, 3, 31);
    assert_eq!(sent(&mut end, NOW), ["RcSendFirst 105", "RcSendLast 106!"]);
    credit(&mut end, 106, 4, 31);
    assert_eq!(end.statuses(), [OK; 4]);
}

#[test]
fn bad_requests_fail_in_order_with_the_right_status() {
    let bad_key = |end: &End| burst_shm::layout::Sge { lkey: end.lkey ^ 0x100, ..end.sge(0, 4) };
    type Make = fn(&mut End);
    let rows: [(&str, Make, WcStatus); 5] = [
        ("opcode", |e| e.post(&SendWqe { opcode: 77, ..wqe(WrOpcode::Send, 2) }, &[]), WcStatus::LocQpOpErr),
        ("bind", |e| e.post(&wqe(WrOpcode::BindMw, 2), &[]), WcStatus::MwBindErr),
        ("atomic of 4 bytes", |e| post(e, WrOpcode::AtomicFetchAndAdd, 2, 4), WcStatus::LocLenErr),
        ("past the region", |e| post(e, WrOpcode::RdmaWrite, 2, 2 << 20), WcStatus::LocProtErr),
        ("inline read", |e| e.post_inline(&wqe(WrOpcode::RdmaRead, 2), b"x"), WcStatus::LocQpOpErr),
    ];
    for (what, make, status) in rows {
        let mut end = requester(&Setup::default());
        post(&mut end, WrOpcode::Send, 1, 4);
        make(&mut end);
        post(&mut end, WrOpcode::Send, 3, 4);
        assert_eq!(sent(&mut end, NOW), ["RcSendOnly 100!"], "{what}");
        assert_eq!(end.statuses(), [], "{what}: the first is still on its way");
        ack(&mut end, 100);
        sent(&mut end, NOW);
        assert_eq!(end.statuses(), [OK, status, WcStatus::WrFlushErr], "{what}");
    }
    let mut end = requester(&Setup::default());
    let sges = [bad_key(&end)];
    end.post(&wqe(WrOpcode::Send, 1), &sges);
    sent(&mut end, NOW);
    assert_eq!(end.statuses(), [WcStatus::LocProtErr]);
}

#[test]
fn a_region_deregistered_in_the_middle_of_a_message_is_a_protection_error() {
    let mut end = requester(&Setup { window: 2 * u64::from(MTU), ..Setup::default() });
    let key = end.register(4 * MTU as usize, crate::common::ALL_RIGHTS);
    let sge = burst_shm::layout::Sge { addr: 0, length: 4 * MTU, lkey: key };
    end.post(&wqe(WrOpcode::RdmaWrite, 1), &[sge]);
    assert_eq!(sent(&mut end, NOW).len(), 2);
    assert!(end.mem.remove(key).is_some());
    ack(&mut end, 101);
    sent(&mut end, NOW);
    assert_eq!(end.statuses(), [WcStatus::LocProtErr]);
}

#[test]
fn sqd_finishes_requests_in_flight_and_rts_resumes() {
    let mut end = requester(&Setup::default());
    post(&mut end, WrOpcode::Send, 1, 4);
    sent(&mut end, NOW);
    let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    end.modify(&sqd, attr_mask::STATE | attr_mask::EN_SQD_ASYNC_NOTIFY, 1).unwrap();
    post(&mut end, WrOpcode::Send, 2, 4);
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    assert!(end.qp.query().sq_draining && end.fx.events.is_empty());
    ack(&mut end, 100);
    assert!(!end.qp.query().sq_draining);
    assert_eq!((end.statuses(), end.fx.events.clone()), (vec![OK], vec![EventType::SqDrained]));
    end.move_to(QpState::Rts);
    assert_eq!(sent(&mut end, NOW), ["RcSendOnly 101!"]);
}

#[test]
fn a_program_is_told_once_that_the_queue_has_drained() {
    let mut end = requester(&Setup::default());
    let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, max_rd_atomic: 2, ..QpAttr::default() };
    end.modify(&sqd, attr_mask::STATE | attr_mask::EN_SQD_ASYNC_NOTIFY, 1).unwrap();
    assert_eq!(end.fx.events, [EventType::SqDrained]);
    // Attributes change while it is drained.
    end.modify(&sqd, attr_mask::STATE | attr_mask::MAX_QP_RD_ATOMIC, 1).unwrap();
    assert_eq!(end.fx.events, [EventType::SqDrained]);
    // It sends, and drains again.
    end.move_to(QpState::Rts);
    end.modify(&sqd, attr_mask::STATE | attr_mask::EN_SQD_ASYNC_NOTIFY, 1).unwrap();
    assert_eq!(end.fx.events, [EventType::SqDrained; 2]);
}

/// A limit of 0 that is set while READs wait refuses new READs. READs that were taken from the queue before go on.
#[test]
fn reads_in_flight_finish_when_their_limit_becomes_zero() {
    let mut end = requester(&with_attr(|a| a.max_rd_atomic = 1));
    (1..=2).for_each(|wr_id| post(&mut end, WrOpcode::RdmaRead, wr_id, 4));
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 100!"]);
    end.move_to(QpState::Sqd);
    let none = QpAttr { qp_state: QpState::Sqd, max_rd_atomic: 0, ..QpAttr::default() };
    end.modify(&none, attr_mask::STATE | attr_mask::MAX_QP_RD_ATOMIC, 1).unwrap();
    read_response(&mut end, Opcode::RcReadResponseOnly, 100, &[0; 4]);
    end.move_to(QpState::Rts);
    assert_eq!(sent(&mut end, NOW), ["RcReadRequest 101!"]);
    read_response(&mut end, Opcode::RcReadResponseOnly, 101, &[0; 4]);
    post(&mut end, WrOpcode::RdmaRead, 3, 4);
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    assert_eq!(end.statuses(), [OK, OK, WcStatus::LocQpOpErr]);
}

#[test]
fn impossible_queue_indices_raise_qp_fatal_once() {
    let setup = Setup::default();
    let mut end = requester(&setup);
    // More entries than the queue has: a faulty or malicious program.
    for wr_id in 0..=u64::from(end.sq.spec().entries()) {
        end.sq.free_all();
        post(&mut end, WrOpcode::Send, wr_id, 4);
    }
    for _ in 0..3 {
        assert_eq!(sent(&mut end, NOW), [""; 0]);
        end.qp.on_doorbell();
    }
    assert_eq!((end.qp.state(), end.fx.events.clone()), (QpState::Err, vec![EventType::QpFatal]));
    assert!(end.fx.count_of(Reason::QueueCorrupt) >= 1 && end.fx.sends.is_empty());
}

#[test]
fn a_lost_completion_fails_the_queue_pair_once_and_flushes_the_rest() {
    let mut end = requester(&Setup::default());
    (0..3).for_each(|wr_id| post(&mut end, WrOpcode::Send, wr_id, 4));
    assert_eq!(sent(&mut end, NOW).len(), 3);
    (0..2).for_each(|_| end.lose_completion(NOW));
    assert_eq!((end.qp.state(), end.fx.events.clone()), (QpState::Err, vec![EventType::QpFatal]));
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    assert_eq!(end.statuses(), [WcStatus::WrFlushErr; 3]);
    // A queue pair in RESET is not affected.
    end.move_to(QpState::Reset);
    end.lose_completion(NOW);
    assert_eq!((end.qp.state(), end.fx.events.len()), (QpState::Reset, 1));
}

#[test]
fn moving_to_error_flushes_everything_and_reset_forgets_everything() {
    let mut end = requester(&Setup::default());
    for wr_id in 0..20 {
        post(&mut end, WrOpcode::Send, wr_id, 4);
        end.post_receive(wr_id, &[]);
    }
    let mut budget = TxBudget { wqes: 3, bytes: 1 << 20, window_bytes: 1 << 20 };
    end.poll(NOW, &mut budget);
    end.tx.clear();
    end.move_to(QpState::Err);
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    let ids: Vec<u64> = end.fx.sends.iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert_eq!(end.statuses(), [WcStatus::WrFlushErr; 20]);
    assert_eq!(end.receive_statuses(), [WcStatus::WrFlushErr; 20]);

    end.move_to(QpState::Reset);
    end.sq.free_all();
    post(&mut end, WrOpcode::Send, 50, 4);
    end.move_to(QpState::Reset);
    end.sq.free_all();
    end.bring_up(1, &Setup::default(), QpState::Rts);
    post(&mut end, WrOpcode::Send, 51, 4);
    assert_eq!(sent(&mut end, NOW), ["RcSendOnly 100!"]);
    ack(&mut end, 100);
    let last = end.fx.sends.last().unwrap();
    assert_eq!((last.wr_id, last.sq_consumer, last.status), (51, 22, OK as u8));
}

#[test]
fn requests_wait_for_rts() {
    let setup = Setup::default();
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rtr);
    post(&mut end, WrOpcode::Send, 1, 4);
    assert_eq!(sent(&mut end, NOW), [""; 0]);
    end.bring_up_from_rtr(1, &setup);
    assert_eq!(sent(&mut end, NOW), ["RcSendOnly 100!"]);
}

#[test]
fn requests_of_full_scatter_lists_are_in_flight_together() {
    let mut end = requester(&Setup::default());
    let full = vec![end.sge(0, 1); 30];
    (0..32).for_each(|wr_id| end.post(&wqe(WrOpcode::Send, wr_id), &full));
    assert_eq!(sent(&mut end, NOW).len(), 32, "960 entries, of at most 1024");
    ack(&mut end, 131);
    assert_eq!(end.statuses(), [OK; 32]);
}

#[test]
fn a_ring_smaller_than_the_queue_passes_all_requests() {
    let cap = QpCap { max_send_wr: 1024, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut end = requester(&Setup { cap, ..Setup::default() });
    for wr_id in 0..1000 {
        post(&mut end, WrOpcode::RdmaWrite, wr_id, 8);
    }
    let mut psn = 99;
    while end.fx.sends.len() < 1000 {
        psn += sent(&mut end, NOW).len() as u32;
        ack(&mut end, psn);
    }
    assert_eq!(end.statuses(), vec![OK; 1000]);
    assert_eq!(end.qp.qp_type(), QpType::Rc);
}
