//! Probes of the standard family: what is sent again when the peer says nothing, when, and how often.
use crate::common::{End, LinkFaults, Pair, Setup, ip_of, qpn_of};
use burst_base::verbs::{QpAttr, QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason};
use burst_shm::layout::SendWqe;
use burst_wire::aeth::ack_timeout;
use burst_wire::{Aeth, AtomicAckEth, Bth, HeadBuf, NakCode, Opcode, Packet, Syndrome};

const MTU: u32 = 1024;
/// Local ACK timeout 67 ms; PSNs from 100 on.
const TIMEOUT: u8 = 14;
/// The round trip of [`measured`], and the wait that follows from one measurement: it and four times its variation.
const RTT: Nanos = Nanos::from_us(300);
const WAIT: Nanos = Nanos(3 * RTT.0);
const OK: WcStatus = WcStatus::Success;
const START: Nanos = Nanos::from_ms(1);

fn setup() -> Setup {
    let base = Setup::default();
    Setup { attr: QpAttr { timeout: TIMEOUT, retry_cnt: 1, ..base.attr }, ..base }
}

fn wqe(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: opcode as u8, flags: send_flags::SIGNALED as u16, rkey: 9, ..SendWqe::default() }
}

fn post(end: &mut End, opcode: WrOpcode, len: u32) {
    let sges = [end.sge(0, len)];
    end.post(&wqe(opcode, 7), &sges);
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
    let opcode = if end.qp.qp_type() == QpType::XrcSend { Opcode::XrcAck } else { Opcode::RcAck };
    let head = HeadBuf::new(&Bth::new(opcode, qpn_of(0), Psn::new(psn))).aeth(Aeth { syndrome, msn: 0 });
    end.receive_from(now, ip_of(1), head.as_slice());
}

fn respond(end: &mut End, now: Nanos, psn: u32) {
    let mut bytes = HeadBuf::new(&Bth::new(Opcode::RcReadResponseMiddle, qpn_of(0), Psn::new(psn))).as_slice().to_vec();
    bytes.extend_from_slice(&[3; MTU as usize]);
    end.receive_from(now, ip_of(1), &bytes);
}

/// A requester that has measured its round trip with PSN 100, at [`START`].
fn measured_as(setup: &Setup) -> End {
    let mut end = End::new(0, setup);
    end.bring_up(1, setup, QpState::Rts);
    post(&mut end, WrOpcode::RdmaWrite, 8);
    sent(&mut end, Nanos(START.0 - RTT.0));
    answer(&mut end, START, 100, Syndrome::ACK);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
    end.fx.sends.clear();
    end
}

fn measured() -> End {
    measured_as(&setup())
}

/// The wait passes.
fn fire(end: &mut End) -> Nanos {
    let due = end.qp.next_deadline();
    end.fire(Nanos(due.0 - 1));
    assert!(!end.qp.wants_tx(), "before its time");
    end.fire(due);
    due
}

#[test]
fn the_last_packet_is_sent_again_twice_and_the_local_ack_timeout_stays_what_it_was() {
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaWrite, 3 * MTU);
    assert_eq!(sent(&mut end, START), ["RcWriteOnly 101", "RcWriteOnly 102", "RcWriteOnly 103!"]);
    assert_eq!(end.qp.next_deadline(), START + WAIT);
    for probe in 1..=2 {
        let due = fire(&mut end);
        assert_eq!(due, START + Nanos(probe * WAIT.0));
        assert_eq!(sent(&mut end, due), ["RcWriteOnly 103!"]);
    }
    assert_eq!(fire(&mut end), START + Nanos(3 * WAIT.0));
    assert!(!end.qp.wants_tx(), "no third probe");
    assert_eq!(end.qp.next_deadline(), START + ack_timeout(TIMEOUT), "since the packets left");
    assert_eq!((end.fx.signals.len(), end.fx.count_of(Reason::AckTimeout)), (0, 0));
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due).len(), 3, "everything again");
    assert_eq!((end.fx.count_of(Reason::TailProbe), end.fx.count_of(Reason::AckTimeout)), (2, 1));
    // No probes after a time-out: the next wait is twice as long, and ends the requests, because one retry was given.
    assert_eq!(fire(&mut end), due + Nanos(2 * ack_timeout(TIMEOUT).0));
    assert_eq!(end.statuses(), [WcStatus::RetryExcErr]);
}

/// The answer to a probe is one of the usual answers.
#[test]
fn whatever_was_lost_the_answer_repairs_it() {
    let probed = || {
        let mut end = measured();
        post(&mut end, WrOpcode::RdmaWrite, 3 * MTU);
        sent(&mut end, START);
        let now = fire(&mut end);
        assert_eq!(sent(&mut end, now), ["RcWriteOnly 103!"]);
        (end, now + RTT)
    };
    // The last packet was lost, or the acknowledgement.
    let (mut end, now) = probed();
    answer(&mut end, now, 103, Syndrome::ACK);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
    // The last two.
    let (mut end, now) = probed();
    answer(&mut end, now, 102, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(sent(&mut end, now), ["RcWriteOnly 102", "RcWriteOnly 103!"]);
    answer(&mut end, now + RTT, 103, Syndrome::ACK);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
    // The peer has no receive.
    let (mut end, now) = probed();
    answer(&mut end, now, 103, Syndrome::Rnr { timer: 1 });
    assert_eq!(sent(&mut end, now), [""; 0]);
    let due = fire(&mut end);
    assert_eq!((due, sent(&mut end, due)), (now + Nanos::from_us(10), vec!["RcWriteOnly 103!".to_owned()]));
    assert_eq!(end.qp.next_deadline(), due + WAIT, "what follows an RNR NAK may be lost, too");
}

#[test]
fn nothing_is_probed_before_a_round_trip_is_known() {
    let mut end = End::new(0, &setup());
    end.bring_up(1, &setup(), QpState::Rts);
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    assert_eq!(end.qp.next_deadline(), START + ack_timeout(TIMEOUT));
    assert_eq!(fire(&mut end), START + ack_timeout(TIMEOUT));
    assert_eq!(end.fx.count_of(Reason::AckTimeout), 1);
    // What was repeated measures nothing.
    let now = START + ack_timeout(TIMEOUT);
    assert_eq!(sent(&mut end, now), ["RcSendOnly 100!"]);
    answer(&mut end, now + RTT, 100, Syndrome::ACK);
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, now + RTT);
    assert_eq!(end.qp.next_deadline(), now + RTT + ack_timeout(TIMEOUT));
    answer(&mut end, now + RTT + RTT, 101, Syndrome::ACK);
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, now);
    assert_eq!(end.qp.next_deadline(), now + WAIT);
}

/// A round trip of a quarter of the local ACK timeout or more leaves no time for probes.
#[test]
fn a_short_local_ack_timeout_leaves_no_room_for_probes() {
    let base = setup();
    for (timeout, wait) in [(10, WAIT), (9, ack_timeout(9)), (0, WAIT)] {
        let mut end = measured_as(&Setup { attr: QpAttr { timeout, ..base.attr }, ..base });
        post(&mut end, WrOpcode::Send, 4);
        sent(&mut end, START);
        assert_eq!(end.qp.next_deadline(), START + wait, "timeout {timeout}");
    }
    // Without a local ACK timeout two probes are sent, and then nothing more happens.
    let mut end = measured_as(&Setup { attr: QpAttr { timeout: 0, ..base.attr }, ..base });
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    for _ in 0..2 {
        let due = fire(&mut end);
        assert_eq!(sent(&mut end, due), ["RcSendOnly 101!"]);
    }
    fire(&mut end);
    assert_eq!((end.qp.next_deadline(), sent(&mut end, START).len()), (Nanos::NEVER, 0));
}

#[test]
fn progress_puts_the_probe_off_and_two_are_sent_per_flight() {
    let mut end = measured();
    for _ in 0..4 {
        post(&mut end, WrOpcode::Send, 4);
    }
    assert_eq!(sent(&mut end, START).len(), 4);
    let mut now = START;
    for psn in 101..103 {
        now = now + Nanos(WAIT.0 - 1);
        answer(&mut end, now, psn, Syndrome::ACK);
        assert_eq!(end.qp.next_deadline(), now + WAIT, "{psn}");
    }
    // Progress after the first probe does not give another two: they are those of the flight.
    now = fire(&mut end);
    assert_eq!(sent(&mut end, now), ["RcSendOnly 104!"]);
    now = now + Nanos(1);
    answer(&mut end, now, 103, Syndrome::ACK);
    now = fire(&mut end);
    assert_eq!(sent(&mut end, now), ["RcSendOnly 104!"]);
    let last = Nanos(now.0 - WAIT.0);
    assert_eq!(fire(&mut end), now + WAIT);
    assert!(!end.qp.wants_tx());
    assert_eq!(end.qp.next_deadline(), last + ack_timeout(TIMEOUT), "since the last progress");
    // Another flight has its own.
    answer(&mut end, now + WAIT, 104, Syndrome::ACK);
    post(&mut end, WrOpcode::Send, 4);
    now = now + WAIT;
    sent(&mut end, now);
    let due = fire(&mut end);
    assert_eq!((due, sent(&mut end, due)), (now + WAIT, vec!["RcSendOnly 105!".to_owned()]));
}

/// PSNs of all parts of their space, and those that begin again at 0.
#[test]
fn flights_have_their_probes_wherever_their_psns_are() {
    for first in [0, 1, 0x7f_fffe, 0x80_0001, 0xc0_0000, 0xff_fffd, 0xff_ffff] {
        let base = setup();
        let psn = Psn::new(first);
        let mut end = End::new(0, &base);
        let setup = Setup { attr: QpAttr { sq_psn: psn, rq_psn: psn, ..base.attr }, ..base };
        end.bring_up(1, &setup, QpState::Rts);
        let mut now = START;
        for flight in 0..4 {
            let last = psn.add(flight).get();
            post(&mut end, WrOpcode::Send, 4);
            let packet = sent(&mut end, now);
            if flight > 0 {
                for _ in 0..2 {
                    now = fire(&mut end);
                    assert_eq!(sent(&mut end, now), packet, "from {first:#x}, flight {flight}");
                }
            }
            now = now + RTT;
            answer(&mut end, now, last, Syndrome::ACK);
        }
        assert_eq!(end.fx.count_of(Reason::TailProbe), 6);
    }
}

#[test]
fn an_acknowledgement_that_comes_before_the_turn_of_the_probe_makes_it_needless() {
    let mut end = measured();
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    let due = fire(&mut end);
    assert!(end.qp.wants_tx());
    answer(&mut end, due, 101, Syndrome::ACK);
    assert_eq!((sent(&mut end, due), end.fx.count_of(Reason::TailProbe)), (vec![], 0));
}

/// Going back has a timer of its own.
#[test]
fn nothing_is_probed_while_going_back() {
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaWrite, 4 * MTU);
    sent(&mut end, START);
    answer(&mut end, START, 101, Syndrome::Nak(NakCode::PsnSequence));
    sent(&mut end, START);
    for _ in 0..2 {
        let due = end.qp.next_deadline();
        end.fire(due);
        sent(&mut end, due);
    }
    while end.fx.count_of(Reason::AckTimeout) == 0 {
        let due = end.qp.next_deadline();
        end.fire(due);
        assert!(end.fx.count_of(Reason::AckTimeout) > 0 || !end.qp.wants_tx());
        assert!(due <= START + Nanos(2 * ack_timeout(TIMEOUT).0));
    }
    assert_eq!((end.fx.count_of(Reason::TailProbe), end.fx.count_of(Reason::BackRepeated)), (0, 2));
}

/// Packets that are about to be sent ask for an acknowledgement themselves.
#[test]
fn nothing_is_probed_while_other_packets_wait_for_their_turn() {
    let mut end = measured();
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    post(&mut end, WrOpcode::Send, 4);
    end.fire(START + WAIT);
    assert_eq!(sent(&mut end, START + WAIT), ["RcSendOnly 102!"]);
    let due = fire(&mut end);
    assert_eq!((due, sent(&mut end, due)), (START + Nanos(2 * WAIT.0), vec!["RcSendOnly 102!".to_owned()]));
}

/// A closed window is no reason to wait: the packets in it may all be lost.
#[test]
fn a_flight_that_fills_the_window_is_probed() {
    let mut end = measured();
    end.window = u64::from(2 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 6 * MTU);
    assert_eq!(sent(&mut end, START), ["RcWriteOnly 101", "RcWriteOnly 102!"]);
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), ["RcWriteOnly 102!"]);
    answer(&mut end, due + RTT, 102, Syndrome::ACK);
    assert_eq!(sent(&mut end, due + RTT), ["RcWriteOnly 103", "RcWriteOnly 104!"]);
}

#[test]
fn of_a_read_the_missing_part_is_requested() {
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaRead, 4 * MTU);
    assert_eq!(sent(&mut end, START), ["RcReadRequest 101!"]);
    // No response: the request may be lost.
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), ["RcReadRequest 101!"]);
    respond(&mut end, due + RTT, 101);
    respond(&mut end, due + RTT, 102);
    let due = fire(&mut end);
    let packets = end.drain(due);
    let packet = Packet::parse(&packets[0]).expect("well-formed");
    let reth = packet.reth().expect("a READ request");
    assert_eq!((packets.len(), packet.bth.psn.get(), reth.addr, reth.len), (1, 103, 2 * u64::from(MTU), 2 * MTU));
    respond(&mut end, due + RTT, 103);
    respond(&mut end, due + RTT, 104);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
    assert_eq!(end.fx.count_of(Reason::TailProbe), 2);
}

/// A READ behind other requests is requested again as a whole: its response acknowledges them.
#[test]
fn a_read_or_atomic_behind_other_requests_is_sent_again() {
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaWrite, 8);
    post(&mut end, WrOpcode::RdmaRead, 2 * MTU);
    sent(&mut end, START);
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), ["RcReadRequest 102!"]);
    respond(&mut end, due, 102);
    respond(&mut end, due, 103);
    assert_eq!(end.statuses(), [OK; 2]);
    post(&mut end, WrOpcode::RdmaWrite, 8);
    post(&mut end, WrOpcode::AtomicFetchAndAdd, 8);
    sent(&mut end, due);
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), ["RcFetchAdd 105!"]);
    let head = HeadBuf::new(&Bth::new(Opcode::RcAtomicAck, qpn_of(0), Psn::new(105)));
    let head = head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).atomic_ack(AtomicAckEth { original: 1 });
    end.receive_from(due, ip_of(1), head.as_slice());
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK; 4], Nanos::NEVER));
}

/// Responses have come behind a gap: the probe requests what is missing in front of them.
#[test]
fn a_lost_repair_of_a_read_is_requested_again() {
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaRead, 4 * MTU);
    sent(&mut end, START);
    respond(&mut end, START + RTT, 102);
    respond(&mut end, START + RTT, 104);
    let repairs = ["RcReadRequest 101!", "RcReadRequest 103!"];
    assert_eq!(sent(&mut end, START + RTT), repairs);
    let due = fire(&mut end);
    assert_eq!((sent(&mut end, due), end.fx.count_of(Reason::TailProbe)), (repairs.map(str::to_owned).to_vec(), 1));
    respond(&mut end, due + RTT, 101);
    respond(&mut end, due + RTT, 103);
    assert_eq!(end.statuses(), [OK]);
}

#[test]
fn what_a_probe_answers_measures_nothing() {
    let mut end = measured();
    end.qp.timer_passed();
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    let due = fire(&mut end);
    sent(&mut end, due);
    answer(&mut end, due + Nanos(1), 101, Syndrome::ACK);
    // The measurement is made with the next packet: an eighth of the way from 300 us to 1.1 ms, and a quarter of the variation.
    let now = due + Nanos(1);
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, now);
    assert_eq!(end.qp.next_deadline(), now + WAIT);
    answer(&mut end, now + Nanos::from_us(700), 102, Syndrome::ACK);
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, now);
    let (srtt, rttvar) = (350, 112_500 + 100_000);
    assert_eq!(end.qp.next_deadline(), now + Nanos(srtt * 1_000 + 4 * rttvar));
}

/// While packets are in flight a measurement begins with the next one, when an acknowledgement has made room for it.
#[test]
fn a_stream_that_never_pauses_is_measured() {
    let mut end = measured();
    end.window = u64::from(2 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 10 * MTU);
    sent(&mut end, START);
    end.qp.timer_passed();
    let ms = |n: u64| START + Nanos::from_us(800 * n);
    for (n, psn) in [(1, 101), (2, 102)] {
        answer(&mut end, ms(n), psn, Syndrome::ACK);
        assert_eq!(end.qp.next_deadline(), ms(n) + WAIT, "{psn}");
        sent(&mut end, ms(n));
    }
    // PSN 103 left after the first acknowledgement, and is acknowledged 1.6 ms later.
    answer(&mut end, ms(3), 103, Syndrome::ACK);
    let (srtt, rttvar) = (262_500 + 200_000, 112_500 + 325_000);
    assert_eq!(end.qp.next_deadline(), ms(3) + Nanos(srtt + 4 * rttvar));
}

#[test]
fn a_probe_is_sent_while_draining_and_not_in_error() {
    let mut end = measured();
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    end.move_to(QpState::Sqd);
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), ["RcSendOnly 101!"]);
    let due = fire(&mut end);
    end.move_to(QpState::Err);
    assert_eq!(sent(&mut end, due), [""; 0]);
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![WcStatus::WrFlushErr], Nanos::NEVER));
}

/// Memory that is deregistered while the packet is in flight ends the request, as if it were repeated after a time-out.
#[test]
fn inline_data_is_sent_again_and_memory_that_is_gone_is_not() {
    let mut end = measured();
    end.post_inline(
        &SendWqe { flags: (send_flags::SIGNALED | send_flags::INLINE) as u16, ..wqe(WrOpcode::Send, 1) },
        b"tail",
    );
    let first = end.drain(START);
    let due = fire(&mut end);
    assert_eq!(end.drain(due), first);
    answer(&mut end, due, 101, Syndrome::ACK);
    post(&mut end, WrOpcode::Send, 64);
    sent(&mut end, due);
    let key = end.lkey;
    assert!(end.mem.remove(key).is_some());
    let due = fire(&mut end);
    assert_eq!(sent(&mut end, due), [""; 0]);
    assert_eq!(end.statuses(), [OK, WcStatus::LocProtErr]);
}

#[test]
fn an_xrc_initiator_names_the_queue_again() {
    let mut end = measured_as(&Setup { qp_type: QpType::XrcSend, ..setup() });
    let sges = [end.sge(0, 2 * MTU)];
    end.post(&SendWqe { remote_qpn: 5, ..wqe(WrOpcode::Send, 1) }, &sges);
    let first = end.drain(START);
    let due = fire(&mut end);
    assert_eq!(end.drain(due), first[1..]);
}

/// Two queue pairs and a link that loses chosen packets: each of the last packets, whatever it is, costs round trips and not the
/// local ACK timeout.
#[test]
fn lost_ends_of_flights_are_repaired_within_a_few_round_trips() {
    for (opcode, len) in [
        (WrOpcode::RdmaWrite, 4 * MTU),
        (WrOpcode::Send, 3 * MTU + 5),
        (WrOpcode::RdmaRead, 4 * MTU),
        (WrOpcode::AtomicFetchAndAdd, 8),
    ] {
        for lost in 0..8_u32 {
            let base = setup();
            // Sequence NAKs use up retries, probes do not.
            let setup = Setup { attr: QpAttr { retry_cnt: 2, ..base.attr }, ..base };
            let mut pair = Pair::new(&setup, 1, LinkFaults::default());
            let sge = pair.ends[1].sge(0, 8 * MTU);
            pair.ends[1].post_receive(1, &[sge]);
            let rkey = pair.ends[1].lkey;
            let post = |pair: &mut Pair, opcode: WrOpcode, len| {
                let sge = pair.ends[0].sge(0, len);
                pair.ends[0].post(&SendWqe { rkey, ..wqe(opcode, 1) }, &[sge]);
            };
            post(&mut pair, WrOpcode::RdmaWrite, 8);
            pair.settle();
            let (begun, sent) = (pair.now, pair.link.sent);
            // Two packets in a row, counted from the first of the flight.
            pair.link.drops = Some(Box::new(move |number, _, _| {
                (number - sent) as u32 / 2 == lost / 2 && lost % 2 <= (number - sent) as u32 % 2
            }));
            post(&mut pair, opcode, len);
            pair.settle();
            let what = format!("{opcode:?}, packet {lost}");
            assert_eq!(pair.ends[0].statuses(), [OK; 2], "{what}");
            let took = pair.now.since(begun);
            let most = if pair.link.lost > 0 { Nanos::from_ms(2) } else { Nanos::from_us(50) };
            assert!(took <= most, "{what}: {took:?}");
            assert_eq!(pair.ends[0].fx.count_of(Reason::AckTimeout), 0, "{what}");
        }
    }
}

/// A repetition of the latest acknowledgement shows that the peer works: the wait begins anew, also its last part.
#[test]
fn a_sign_of_life_begins_the_wait_anew() {
    let mut end = measured();
    post(&mut end, WrOpcode::Send, 4);
    sent(&mut end, START);
    let due = START + Nanos(WAIT.0 - 1);
    answer(&mut end, due, 100, Syndrome::ACK);
    assert_eq!(end.qp.next_deadline(), due + WAIT);
    for _ in 0..3 {
        let due = fire(&mut end);
        sent(&mut end, due);
    }
    let due = Nanos(end.qp.next_deadline().0 - 1);
    answer(&mut end, due, 100, Syndrome::ACK);
    assert_eq!(fire(&mut end), due + ack_timeout(TIMEOUT));
    assert_eq!((end.fx.count_of(Reason::TailProbe), end.fx.count_of(Reason::AckTimeout)), (2, 1));
    // While going back the wait has no parts.
    let mut end = measured();
    post(&mut end, WrOpcode::RdmaWrite, 2 * MTU);
    sent(&mut end, START);
    answer(&mut end, START, 101, Syndrome::Nak(NakCode::PsnSequence));
    sent(&mut end, START);
    for repeat in 1..=2 {
        let due = fire(&mut end);
        assert_eq!((due, sent(&mut end, due).len()), (START + Nanos(repeat * WAIT.0), 2));
        answer(&mut end, due, 100, Syndrome::ACK);
    }
    assert_eq!(end.qp.next_deadline(), START + Nanos(2 * WAIT.0) + ack_timeout(TIMEOUT));
}

/// The peer's queue pair may be gone: a whole flight in flight would keep the room of others on the path.
#[test]
fn after_a_second_time_out_four_packets_wait_for_an_answer() {
    let base = setup();
    let setup = Setup { attr: QpAttr { retry_cnt: 7, ..base.attr }, ..base };
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    post(&mut end, WrOpcode::RdmaWrite, 8 * MTU);
    assert_eq!(sent(&mut end, START).len(), 8);
    let mut repeated = Vec::new();
    while repeated.len() < 3 {
        let due = fire(&mut end);
        repeated.push(sent(&mut end, due).len());
    }
    assert_eq!((repeated, end.fx.count_of(Reason::AckTimeout)), (vec![8, 4, 4], 3));
    let now = end.qp.next_deadline();
    answer(&mut end, now, 100, Syndrome::ACK);
    assert_eq!(sent(&mut end, now).len(), 4, "those that were held back, once the peer answers");
}
