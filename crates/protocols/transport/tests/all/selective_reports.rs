//! What acknowledgements of the selective repeat family tell congestion control, and what a responder says in them: counts of
//! packets and marks, round trips, the peer's delay, pressure on receive buffers, losses that were none.
use crate::common::{End, Setup, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpAttr, QpState, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Rkey};
use burst_frame::{Ecn, Flow, RxFrame};
use burst_shm::layout::SendWqe;
use burst_transport::{AckReport, Env, HostPressure, Signal, TxBudget, WINDOW_PSNS};
use burst_wire::selective::AckBitmap;
use burst_wire::{Aeth, Bth, HeadBuf, Opcode, Packet, Saeth, Seth, Syndrome, Weth};

const MTU: u32 = 1024;
const FIRST: u32 = 10;
const US: u64 = 1_000;

fn end_of(index: u8) -> (End, Setup) {
    let base = Setup::default();
    let attr = QpAttr { rq_psn: Psn::new(FIRST), sq_psn: Psn::new(FIRST), ..base.attr };
    let setup = Setup { selective: WINDOW_PSNS, attr, ..base };
    let mut end = End::new(index, &setup);
    end.bring_up(1 - index, &setup, QpState::Rts);
    (end, setup)
}

fn post_write(end: &mut End, packets: u32) {
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { opcode: WrOpcode::RdmaWrite as u8, flags, rkey: 5, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(0, packets * MTU)]);
}

/// The acknowledgement of everything before `psn + 1`, with a bitmap of the PSNs `there` behind it.
fn acknowledge(end: &mut End, at: Nanos, psn: u32, there: &[u32], saeth: Saeth) {
    let mut word = 0u64;
    there.iter().for_each(|there| word |= 1 << (there - psn - 2));
    let words = usize::from(!there.is_empty());
    let saeth = Saeth { words: words as u8, ..saeth };
    let head = HeadBuf::new(&Bth::new(Opcode::RcSrAck, qpn_of(0), Psn::new(psn)));
    let head = head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).saeth(saeth);
    let mut bytes = [0; 8];
    AckBitmap::emit(&[word], &mut bytes);
    end.receive_from(at, ip_of(1), &[head.as_slice(), &bytes[..8 * words]].concat());
}

fn newest(psn: u32) -> Saeth {
    Saeth { trigger: Psn::new(psn), ..Saeth::default() }
}

#[test]
fn each_acknowledgement_reports_what_is_new_in_it() {
    let (mut end, _) = end_of(0);
    post_write(&mut end, 8);
    end.drain(Nanos(1_000));
    let said = Saeth { received_packets: 5, congested_packets: 2, delay: 10, pressure: 2, ..newest(14) };
    acknowledge(&mut end, Nanos(30 * US), 14, &[], said);
    let said = Saeth { received_packets: 8, congested_packets: 2, ..newest(17) };
    acknowledge(&mut end, Nanos(40 * US), 17, &[], said);
    // All eight packets left in one turn, so the first answer to any of them measures the round trip.
    let rtt = Some(Nanos(29 * US - 640));
    let first = AckReport { packets: 5, ce_packets: 2, pressure: 2, remote_delay: Nanos(640), rtt };
    let second = AckReport { packets: 3, ..AckReport::default() };
    assert_eq!(end.fx.reports, [first, second]);
    // One that comes again reports nothing new; one that is refused reports nothing.
    acknowledge(&mut end, Nanos(50 * US), 17, &[], said);
    acknowledge(&mut end, Nanos(50 * US), 12, &[], Saeth { received_packets: 900, ..newest(12) });
    assert_eq!(end.fx.reports[2..], [AckReport::default()]);
}

#[test]
fn a_round_trip_is_that_of_a_packet_sent_once_and_then() {
    // The newest packet was sent at the time of the measurement, later, and twice.
    for (trigger, transmission, rtt) in [(11, 0, Some(40 * US - 640)), (12, 0, None), (11, 1, None)] {
        let (mut end, _) = end_of(0);
        post_write(&mut end, 2);
        end.drain(Nanos(10 * US));
        post_write(&mut end, 1);
        end.drain(Nanos(30 * US));
        let said = Saeth { transmission, delay: 10, ..newest(trigger) };
        acknowledge(&mut end, Nanos(50 * US), trigger, &[], said);
        assert_eq!(end.fx.reports[0].rtt, rtt.map(Nanos), "{trigger} {transmission}");
    }
    // One that was sent at the same time in a later turn.
    let (mut end, _) = end_of(0);
    for _ in 0..2 {
        post_write(&mut end, 1);
        end.drain(Nanos(10 * US));
    }
    acknowledge(&mut end, Nanos(50 * US), 11, &[], newest(11));
    assert_eq!(end.fx.reports[0].rtt, Some(Nanos(40 * US)));
    // A delay longer than the whole time is no round trip below zero.
    let (mut end, _) = end_of(0);
    post_write(&mut end, 1);
    end.drain(Nanos(10 * US));
    acknowledge(&mut end, Nanos(20 * US), 10, &[], Saeth { delay: u16::MAX, ..newest(10) });
    assert_eq!(end.fx.reports[0].rtt, Some(Nanos(0)));
}

/// A path whose controller uses little of the reports gets those that say something: round trips, of which a sixteenth is
/// measured, marks, pressure, and counts that have become large.
#[test]
fn acknowledgements_that_say_nothing_need_no_report() {
    let (mut end, _) = end_of(0);
    end.qp.report_each(false);
    let (mut now, mut packets) = (Nanos(0), 0);
    let mut ping = |end: &mut End, said: Saeth| {
        let psn = FIRST + packets;
        packets += 1;
        post_write(end, 1);
        end.drain(now);
        now = now + Nanos(10 * US);
        let received_packets = said.received_packets + packets as u16;
        acknowledge(end, now, psn, &[], Saeth { received_packets, trigger: Psn::new(psn), ..said });
        std::mem::take(&mut end.fx.reports)
    };
    let (plain, rtt) = (Saeth::default(), Some(Nanos(10 * US)));
    for round in 0..3 {
        let packets = if round == 0 { 1 } else { 16 };
        assert_eq!(ping(&mut end, plain), [AckReport { packets, rtt, ..AckReport::default() }], "round {round}");
        (1..16).for_each(|_| assert_eq!(ping(&mut end, plain), []));
    }
    assert_eq!(ping(&mut end, plain).len(), 1);
    let marked = Saeth { is_congested: true, congested_packets: 1, ..plain };
    assert_eq!(ping(&mut end, marked), [AckReport { packets: 1, ce_packets: 1, ..AckReport::default() }]);
    let pressed = Saeth { pressure: 1, congested_packets: 1, ..plain };
    assert_eq!(ping(&mut end, pressed), [AckReport { packets: 1, pressure: 1, ..AckReport::default() }]);
    let many = |more| Saeth { received_packets: more, congested_packets: 1, ..plain };
    assert_eq!(ping(&mut end, many(1022)), []);
    assert_eq!(ping(&mut end, many(1022)), [AckReport { packets: 1024, ..AckReport::default() }]);
    end.qp.report_each(true);
    (0..3)
        .for_each(|_| assert_eq!(ping(&mut end, many(1022)), [AckReport { packets: 1, rtt, ..AckReport::default() }]));
}

/// A round trip that could not be measured is measured in the next turn.
#[test]
fn a_measurement_that_fails_is_repeated() {
    let (mut end, _) = end_of(0);
    end.qp.report_each(false);
    post_write(&mut end, 1);
    end.drain(Nanos(0));
    acknowledge(&mut end, Nanos(10 * US), FIRST, &[], Saeth { transmission: 1, ..newest(FIRST) });
    assert_eq!(end.fx.reports[0].rtt, None, "the answer to a repetition");
    post_write(&mut end, 1);
    end.drain(Nanos(20 * US));
    acknowledge(&mut end, Nanos(50 * US), FIRST + 1, &[], newest(FIRST + 1));
    assert_eq!(end.fx.reports[1].rtt, Some(Nanos(30 * US)));
}

/// What a packet has waited in the buffer of its receiver is no time of the network: the requester leaves it out, and the
/// responder tells it as its own delay.
#[test]
fn time_in_the_receive_buffer_is_the_host_s() {
    let (mut end, _) = end_of(0);
    end.qp.report_each(true);
    post_write(&mut end, 1);
    end.drain(Nanos(0));
    end.waited = Nanos(70 * US);
    acknowledge(&mut end, Nanos(100 * US), FIRST, &[], newest(FIRST));
    assert_eq!(end.fx.reports[0].rtt, Some(Nanos(30 * US)));
    let (mut end, _) = end_of(1);
    let rkey = end.lkey;
    assert_eq!(answered(&mut end, Nanos(100 * US), 10, Ecn::NotEct, rkey).delay, 0);
    end.waited = Nanos(64 * 100);
    assert_eq!(answered(&mut end, Nanos(100 * US), 11, Ecn::NotEct, rkey).delay, 100);
}

/// A packet of a WRITE arrives at the end; the acknowledgement that follows.
fn answered(end: &mut End, now: Nanos, psn: u32, ecn: Ecn, rkey: u32) -> Saeth {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcSrWriteOnly, qpn_of(1), Psn::new(psn)) };
    let head = HeadBuf::new(&bth).seth(Seth::default()).weth(Weth { addr: 0, rkey: Rkey(rkey) });
    let bytes = [head.as_slice(), &[7; 64]].concat();
    let packet = Packet::parse(&bytes).expect("well-formed");
    let flow = Flow { src: ip_of(0), dst: end.ip, tos: ecn as u8, ..Flow::default() };
    let mut env = Env { now, waited: end.waited, mem: &end.mem, tx: &mut end.tx, fx: &mut end.fx };
    end.qp.on_packet(&RxFrame { flow, bytes: &bytes }, &packet, &mut env);
    let sent = end.drain(now);
    let saeth = sent.last().and_then(|bytes| Packet::parse(bytes).ok()?.saeth());
    saeth.expect("an acknowledgement of the family")
}

#[test]
fn a_responder_says_its_pressure_and_tells_of_losses_once() {
    let (mut end, _) = end_of(1);
    let rkey = end.lkey;
    let mut say = |psn: u32, level, lost| {
        end.fx.pressure = HostPressure { level, lost };
        answered(&mut end, Nanos(1_000), psn, Ecn::NotEct, rkey).pressure
    };
    assert_eq!(say(10, 1, 500), 1, "what was lost before is no news");
    assert_eq!(say(11, 2, 500), 2);
    assert_eq!((say(12, 0, 501), say(13, 0, 501)), (3, 0));
    assert_eq!((say(14, 2, 0), say(15, 200, 0)), (3, 2), "counters wrap");
}

#[test]
fn a_responder_counts_marks_for_good_and_flags_new_ones() {
    let (mut end, _) = end_of(1);
    let rkey = end.lkey;
    let mut seen = Vec::new();
    for (psn, ecn) in [(10, Ecn::Ect0), (11, Ecn::Ce), (12, Ecn::Ect0)] {
        let saeth = answered(&mut end, Nanos(1_000), psn, ecn, rkey);
        seen.push((saeth.received_packets, saeth.congested_packets, saeth.is_congested));
    }
    assert_eq!(seen, [(1, 0, false), (2, 1, true), (3, 1, false)]);
}

/// Four packets are in flight and the second is missing for a while: the signals of the recovery.
fn signals_of(late: Option<u8>, repeats: bool) -> Vec<Signal> {
    let (mut end, _) = end_of(0);
    post_write(&mut end, 4);
    end.drain(Nanos(1_000));
    acknowledge(&mut end, Nanos(20 * US), 10, &[12, 13], newest(13));
    if repeats {
        assert_eq!(end.drain(Nanos(21 * US)).len(), 1, "packet 11 again");
    }
    if let Some(transmission) = late {
        acknowledge(&mut end, Nanos(40 * US), 13, &[], Saeth { transmission, ..newest(11) });
    } else {
        acknowledge(&mut end, Nanos(40 * US), 13, &[], newest(13));
    }
    end.fx.signals.clone()
}

#[test]
fn a_loss_is_taken_back_if_the_first_transmission_has_arrived() {
    assert_eq!(signals_of(Some(0), true), [Signal::Loss, Signal::Spurious]);
    assert_eq!(signals_of(Some(1), true), [Signal::Loss], "the repetition has filled the gap");
    assert_eq!(signals_of(None, true), [Signal::Loss], "nobody knows which transmission has");
    assert_eq!(signals_of(None, false), [Signal::Loss, Signal::Spurious], "it was never sent again");
}

#[test]
fn of_several_repetitions_each_must_have_been_needless() {
    for (triggers, expected) in [([11, 13], vec![Signal::Loss, Signal::Spurious]), ([13, 13], vec![Signal::Loss])] {
        let (mut end, _) = end_of(0);
        post_write(&mut end, 6);
        end.drain(Nanos(1_000));
        acknowledge(&mut end, Nanos(20 * US), 10, &[12, 14, 15], newest(15));
        assert_eq!(end.drain(Nanos(21 * US)).len(), 2, "packets 11 and 13 again");
        acknowledge(&mut end, Nanos(40 * US), 12, &[14, 15], newest(triggers[0]));
        acknowledge(&mut end, Nanos(41 * US), 15, &[], newest(triggers[1]));
        assert_eq!(end.fx.signals, expected, "{triggers:?}");
    }
}

#[test]
fn a_first_transmission_that_the_peer_has_dropped_proves_nothing() {
    let (mut end, _) = end_of(0);
    post_write(&mut end, 4);
    end.drain(Nanos(1_000));
    acknowledge(&mut end, Nanos(20 * US), 10, &[12, 13], newest(13));
    assert_eq!(end.drain(Nanos(21 * US)).len(), 1, "packet 11 again");
    // Without a bitmap the newest packet was dropped, for want of a record.
    acknowledge(&mut end, Nanos(30 * US), 10, &[], newest(11));
    end.drain(Nanos(31 * US));
    acknowledge(&mut end, Nanos(40 * US), 13, &[], newest(13));
    assert_eq!(end.fx.signals, [Signal::Loss]);
}

#[test]
fn a_first_repetition_that_arrives_late_proves_nothing() {
    let (mut end, _) = end_of(0);
    post_write(&mut end, 4);
    end.drain(Nanos(1_000));
    acknowledge(&mut end, Nanos(20 * US), 10, &[12, 13], newest(13));
    post_write(&mut end, 1);
    assert_eq!(end.drain(Nanos(21 * US)).len(), 2, "packet 11 again, and 14");
    acknowledge(&mut end, Nanos(30 * US), 10, &[12, 13, 14], newest(14));
    assert_eq!(end.drain(Nanos(31 * US)).len(), 1, "packet 11 for the third time");
    acknowledge(&mut end, Nanos(40 * US), 14, &[], Saeth { transmission: 1, ..newest(11) });
    assert_eq!(end.fx.signals, [Signal::Loss, Signal::Loss], "the packet, and its repetition; neither is taken back");
}

#[test]
fn first_transmissions_that_fill_gaps_in_any_order_are_noticed() {
    let (mut end, _) = end_of(0);
    post_write(&mut end, 6);
    end.drain(Nanos(1_000));
    acknowledge(&mut end, Nanos(20 * US), 10, &[12, 14, 15], newest(15));
    assert_eq!(end.drain(Nanos(21 * US)).len(), 2, "packets 11 and 13 again");
    acknowledge(&mut end, Nanos(40 * US), 10, &[12, 13, 14, 15], newest(13));
    acknowledge(&mut end, Nanos(41 * US), 15, &[], newest(11));
    assert_eq!(end.fx.signals, [Signal::Loss, Signal::Spurious]);
}

/// Acknowledgements with numbers as no honest peer has them, to a requester that goes on sending.
#[test]
fn hostile_numbers_are_reported_within_what_is_plausible() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut end, _) = end_of(0);
        let (mut now, mut acked) = (Nanos(1_000), FIRST - 1);
        for _ in 0..100 {
            if end.qp.inflight_bytes() == 0 {
                post_write(&mut end, 1 + rng.below(40) as u32);
            }
            now = now + Nanos(rng.below(200 * US));
            end.poll(now, &mut TxBudget { wqes: 8, bytes: 64 << 10, window_bytes: 1 << 20 });
            end.tx.clear();
            let at = acked + rng.below(12) as u32;
            let said = Saeth {
                pressure: rng.below(4) as u8,
                is_congested: rng.below(2) == 0,
                delay: rng.next_u32() as u16,
                congested_packets: rng.next_u32() as u16,
                received_packets: rng.next_u32() as u16,
                transmission: rng.below(16) as u8,
                ..newest(at + rng.below(20) as u32)
            };
            let there: Vec<u32> = (at + 2..at + 40).filter(|_| rng.below(9) == 0).collect();
            let before = end.fx.reports.len();
            acknowledge(&mut end, now, at, &there, said);
            if end.fx.reports.len() > before && at < acked + 12 {
                acked = acked.max(at);
            }
        }
        assert!(!end.fx.reports.is_empty(), "seed {seed}");
        for report in &end.fx.reports {
            assert!(report.packets <= 2 * WINDOW_PSNS && report.ce_packets <= report.packets, "{report:?}");
            assert!(report.pressure <= 3 && report.rtt.is_none_or(|rtt| rtt <= now), "{report:?}");
        }
    }
}
