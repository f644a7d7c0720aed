//! Receipts of UC between Burst peers: what is in flight is bounded by them, and no silence stops a queue pair for good.

use crate::common::{End, LinkFaults, Pair, Setup, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason};
use burst_shm::layout::SendWqe;
use burst_transport::{HostPressure, Signal};
use burst_wire::{Aeth, Bth, HeadBuf, OpKind, Opcode, Packet, Saeth, Syndrome};

const MESSAGE: u32 = 32 << 10;
const WINDOW: u64 = 64 << 10;

fn uc() -> Setup {
    Setup { qp_type: QpType::Uc, window: WINDOW, ..Setup::default() }
}

fn wqe(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: opcode as u8, flags: send_flags::SIGNALED as u16, ..SendWqe::default() }
}

fn send(end: &mut End, wr_id: u64, len: u32) {
    let sges = [end.sge(0, len)];
    end.post(&wqe(WrOpcode::Send, wr_id), &sges);
}

/// Whether another request has a place, after those that have completed.
fn has_room(end: &mut End) -> bool {
    if let Some(cqe) = end.fx.sends.last() {
        end.sq.free(cqe.sq_consumer);
    }
    end.sq.room() > 0
}

fn receive(end: &mut End, wr_id: u64) {
    let sges = [end.sge(100_000, MESSAGE)];
    end.post_receive(wr_id, &sges);
}

/// Two connected ends that have learnt by hellos that both answer.
fn burst_pair(faults: LinkFaults) -> Pair {
    let mut pair = Pair::new(&uc(), 1, faults);
    pair.ends.iter_mut().for_each(|end| end.qp.use_receipts(true));
    pair
}

fn kinds(packets: &[Vec<u8>]) -> Vec<(OpKind, bool)> {
    let parse = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        (packet.info.kind, packet.bth.ack_req)
    };
    packets.iter().map(parse).collect()
}

fn receipt(psn: u32, credit: u8, received: u16) -> Vec<u8> {
    let bth = Bth::new(Opcode::UcReceipt, qpn_of(0), Psn::new(psn));
    let saeth = Saeth { received_packets: received, trigger: Psn::new(psn), ..Saeth::default() };
    HeadBuf::new(&bth).aeth(Aeth { syndrome: Syndrome::Ack { credit }, msn: 0 }).saeth(saeth).as_slice().to_vec()
}

fn sender() -> End {
    let mut end = End::new(0, &uc());
    end.bring_up(1, &uc(), QpState::Rts);
    end.qp.use_receipts(true);
    send(&mut end, 0, 1);
    assert_eq!(end.drain(Nanos(0)).len(), 1);
    end.receive_from(Nanos(0), ip_of(1), &receipt(100, 30, 1));
    end.fx.sends.clear();
    end.fx.reports.clear();
    end
}

#[test]
fn until_the_first_receipt_one_message_is_sent() {
    let mut end = End::new(0, &uc());
    end.bring_up(1, &uc(), QpState::Rts);
    end.qp.use_receipts(true);
    (0..3).for_each(|wr_id| send(&mut end, wr_id, 2000));
    assert_eq!(kinds(&end.drain(Nanos(0))), [(OpKind::Send, false), (OpKind::Send, true)]);
    end.receive_from(Nanos(0), ip_of(1), &receipt(101, 1, 2));
    assert_eq!(end.drain(Nanos(0)).len(), 2, "the peer has one receive");
    end.receive_from(Nanos(0), ip_of(1), &receipt(103, 31, 4));
    assert_eq!(end.drain(Nanos(0)).len(), 2, "its receives are shared");
}

#[test]
fn a_peer_whose_hello_names_no_receipts_is_sent_standard_packets_without_a_limit() {
    let mut end = End::new(0, &uc());
    end.bring_up(1, &uc(), QpState::Rts);
    (0..20).for_each(|wr_id| send(&mut end, wr_id, MESSAGE));
    let packets = end.drain(Nanos(0));
    assert_eq!((packets.len(), end.statuses().len()), (20 * 32, 20));
    assert!(kinds(&packets).iter().all(|kind| *kind == (OpKind::Send, false)));
    assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
}

#[test]
fn what_has_no_receipt_is_bounded_by_the_window_and_a_receipt_opens_it() {
    let mut end = sender();
    (0..20).for_each(|wr_id| send(&mut end, wr_id, MESSAGE));
    let first = end.drain(Nanos(0));
    assert_eq!((first.len(), end.qp.inflight_bytes()), (64, WINDOW));
    assert!(kinds(&first)[63].1, "the last packet before it stops asks");
    assert!(end.qp.next_deadline() < Nanos::NEVER && !end.qp.wants_tx());
    // The peer has seen 32 more packets, the first with PSN 101.
    end.receive_from(Nanos(5_000), ip_of(1), &receipt(132, 20, 33));
    assert_eq!(end.qp.inflight_bytes(), WINDOW / 2);
    assert_eq!(end.drain(Nanos(5_000)).len(), 32);
    assert_eq!((end.fx.reports.len(), end.fx.reports[0].packets), (1, 32));
    assert_eq!(end.fx.reports[0].rtt, Some(Nanos(5_000)));
}

#[test]
fn the_packets_of_short_messages_in_flight_are_bounded() {
    let mut end = sender();
    let mut sent = 0;
    for wr_id in 0..1000 {
        if has_room(&mut end) {
            send(&mut end, wr_id, 2);
        }
        sent += end.drain(Nanos(0)).len();
    }
    // Each counts 512 bytes of the window, and one in 16 asks.
    assert!((128..=144).contains(&sent), "{sent}");
    end.receive_from(Nanos(9), ip_of(1), &receipt(228, 30, 129));
    assert!(!end.drain(Nanos(9)).is_empty());
}

#[test]
fn all_messages_arrive_whose_receives_come_in_time() {
    let mut pair = burst_pair(LinkFaults::default());
    let (mut posted, mut received) = (0, 0);
    (0..3).for_each(|k| receive(&mut pair.ends[1], k));
    for round in 0..4000 {
        while posted < 500 && has_room(&mut pair.ends[0]) {
            posted += 1;
            send(&mut pair.ends[0], posted, if posted % 7 == 0 { MESSAGE } else { 2 });
        }
        let until = pair.now + Nanos::from_us(20);
        pair.run(until);
        // The program runs now and then, and posts each receive again.
        if round % 5 == 0 {
            let done = pair.ends[1].fx.receives.len();
            (received..done).for_each(|k| receive(&mut pair.ends[1], k as u64));
            received = done;
        }
    }
    let [a, b] = &pair.ends;
    assert_eq!((a.statuses().len(), b.fx.receives.len()), (500, 500));
    assert!(b.receive_statuses().iter().all(|status| *status == WcStatus::Success));
    assert_eq!((b.fx.count_of(Reason::ReceiverNotReady), a.fx.count_of(Reason::UcReceiptTimeout)), (0, 0));
}

#[test]
fn messages_wait_for_a_receive_and_are_sent_without_one_after_a_while() {
    for late in [Nanos::from_ms(100), Nanos::from_ms(2_000)] {
        let mut pair = burst_pair(LinkFaults::default());
        receive(&mut pair.ends[1], 0);
        send(&mut pair.ends[0], 0, 100);
        pair.run(Nanos::from_ms(1));
        assert_eq!(pair.ends[1].fx.receives.len(), 1);
        (1..=8).for_each(|wr_id| send(&mut pair.ends[0], wr_id, 100));
        pair.run(Nanos::from_ms(1) + late);
        let is_late = late > Nanos::from_ms(1_000);
        assert_eq!(pair.ends[0].statuses().len() == 9, is_late, "{late:?}");
        (1..=8).for_each(|wr_id| receive(&mut pair.ends[1], wr_id));
        let until = pair.now + Nanos::from_ms(500);
        pair.run(until);
        let [a, b] = &pair.ends;
        assert_eq!(a.statuses().len(), 9);
        let lost = b.fx.count_of(Reason::ReceiverNotReady);
        assert_eq!((b.fx.receives.len(), lost), if is_late { (1, 8) } else { (9, 0) });
        // Probes wait longer and longer: few packets say that nothing has changed.
        assert!(pair.link.sent < 1000, "{} packets", pair.link.sent);
    }
}

#[test]
fn a_peer_that_falls_silent_stops_nothing_for_good() {
    let mut pair = burst_pair(LinkFaults::default());
    (0..60).for_each(|k| receive(&mut pair.ends[1], k));
    send(&mut pair.ends[0], 0, MESSAGE);
    pair.run(Nanos::from_ms(1));
    assert_eq!((pair.ends[0].statuses().len(), pair.ends[0].fx.signals.len()), (1, 0), "answered");
    pair.link.drops = Some(Box::new(|_, to, _| to == 0));
    assert!(has_room(&mut pair.ends[0]));
    (0..59).for_each(|wr_id| send(&mut pair.ends[0], wr_id, MESSAGE));
    pair.run(Nanos::from_ms(500));
    let sent = pair.link.sent;
    pair.run(Nanos::from_ms(1_000));
    // A packet for each KiB, in 25 waits, and at most two receipts for each, which are lost.
    let in_silence = pair.link.sent - sent;
    assert!((180..=26 * 10).contains(&in_silence), "{in_silence} packets in 500 ms");
    pair.run(Nanos::from_ms(6_000));
    let a = &pair.ends[0];
    assert_eq!((a.statuses().len(), a.qp.inflight_bytes(), a.qp.next_deadline()), (60, 0, Nanos::NEVER));
    // All are released, and the first counts if nothing else on the path is acknowledged.
    let timeouts = a.fx.count_of(Reason::UcReceiptTimeout);
    let count = |kind| a.fx.signals.iter().filter(|signal| **signal == kind).count() as u32;
    assert_eq!((count(Signal::Unanswered), count(Signal::Timeout), count(Signal::Loss)), (timeouts, 1, 0));
    // It is limited by the window again when receipts come.
    pair.link.drops = None;
    assert!(has_room(&mut pair.ends[0]));
    (0..60).for_each(|k| receive(&mut pair.ends[1], k));
    (0..60).for_each(|wr_id| send(&mut pair.ends[0], wr_id, MESSAGE));
    let (before, until) = (pair.ends[0].statuses().len(), pair.now + Nanos::from_ms(60));
    pair.run(until);
    assert_eq!(pair.ends[0].statuses().len(), before + 60);
    assert!(!pair.ends[0].fx.signals.contains(&Signal::Loss), "what was lost in the silence has timed out");
}

#[test]
fn a_sender_that_was_never_answered_is_no_signal_of_the_path() {
    let mut end = End::new(0, &uc());
    end.bring_up(1, &uc(), QpState::Rts);
    end.qp.use_receipts(true);
    send(&mut end, 0, MESSAGE);
    let (mut now, mut sent) = (Nanos(0), 0);
    while now < Nanos::from_ms(100) {
        sent += end.drain(now).len();
        end.fire(now);
        now = now + Nanos::from_ms(1);
    }
    assert_eq!((sent, end.fx.signals.clone()), (32, vec![Signal::Unanswered]));
    assert_eq!(end.qp.inflight_bytes(), 0);
}

#[test]
fn a_receipt_that_comes_late_makes_the_wait_longer() {
    let mut end = sender();
    // Receipts come after 50 ms: the first two are too late, and the wait is 100 ms from then on.
    (0..8).for_each(|wr_id| send(&mut end, wr_id, MESSAGE));
    let mut under_way: Vec<(Nanos, u32)> = Vec::new();
    let (mut now, mut next) = (Nanos(0), 101);
    while now < Nanos::from_ms(2_000) {
        for bytes in end.drain(now) {
            let packet = Packet::parse(&bytes).expect("well-formed");
            next = packet.bth.psn.get();
            if packet.bth.ack_req {
                under_way.push((now + Nanos::from_ms(50), next));
            }
        }
        if let Some(at) = under_way.iter().position(|(at, _)| *at <= now) {
            let (_, psn) = under_way.remove(at);
            end.receive_from(now, ip_of(1), &receipt(psn, 31, (psn - 99) as u16));
        }
        end.fire(now);
        now = now + Nanos::from_ms(1);
    }
    assert_eq!((end.statuses().len(), next), (8, 100 + 8 * 32));
    let timeouts = end.fx.count_of(Reason::UcReceiptTimeout);
    assert!((1..=3).contains(&timeouts), "{timeouts}");
}

#[test]
fn lost_packets_are_a_loss_to_congestion_control_and_pressure_is_reported() {
    let mut pair = burst_pair(LinkFaults::default());
    pair.link.drops = Some(Box::new(|number, to, _| to == 1 && (10..14).contains(&number)));
    (0..8).for_each(|k| receive(&mut pair.ends[1], k));
    pair.ends[1].fx.pressure = HostPressure { level: 2, lost: 0 };
    (0..8).for_each(|wr_id| send(&mut pair.ends[0], wr_id, MESSAGE));
    pair.settle();
    let [a, b] = &pair.ends;
    assert_eq!((a.statuses().len(), b.fx.receives.len()), (8, 7), "nothing is repeated");
    assert_eq!(a.fx.signals, [Signal::Loss]);
    assert!(a.fx.reports.iter().all(|report| report.pressure == 2) && !a.fx.reports.is_empty());
    assert_eq!(a.qp.inflight_bytes(), 0);
}

#[test]
fn a_lossy_path_never_stops_a_queue_pair() {
    for seed in 0..20 {
        let faults = LinkFaults { loss: 500, duplication: 300, reordering: 300, delay_max: Nanos::from_us(300) };
        let mut pair = Pair::new(&uc(), seed, faults);
        pair.ends.iter_mut().for_each(|end| end.qp.use_receipts(true));
        (0..64).for_each(|k| receive(&mut pair.ends[1], k));
        (0..64).for_each(|wr_id| send(&mut pair.ends[0], wr_id, 1 + (wr_id as u32 * 997) % MESSAGE));
        pair.settle();
        assert_eq!(pair.ends[0].statuses().len(), 64, "seed {seed}");
        pair.ends[0].qp.check().expect("consistent");
    }
}

#[test]
fn receipts_of_what_was_never_sent_and_rubbish_change_nothing() {
    let mut end = sender();
    (0..4).for_each(|wr_id| send(&mut end, wr_id, MESSAGE));
    end.drain(Nanos(0));
    let before = end.qp.inflight_bytes();
    end.receive_from(Nanos(1), ip_of(1), &receipt(100 + 65, 5, 65));
    assert_eq!((end.qp.inflight_bytes(), end.fx.count_of(Reason::UnexpectedResponse)), (before, 1));
    end.receive_from(Nanos(1), ip_of(1), &receipt(120, 5, 21));
    end.receive_from(Nanos(1), ip_of(1), &receipt(110, 5, 11));
    assert_eq!(end.fx.count_of(Reason::StaleAck), 1);
    let mut rng = Rng::new(9);
    for k in 0..20_000u64 {
        let psn = (100 + rng.below(400) as u32) & 0xff_ffff;
        let mut bytes = receipt(psn, rng.below(32) as u8, rng.next_u32() as u16);
        if rng.below(4) == 0 {
            bytes[12] = rng.next_u32() as u8;
        }
        let now = Nanos(k * 10_000);
        end.receive_from(now, ip_of(1), &bytes);
        if has_room(&mut end) {
            send(&mut end, k, rng.below(5000) as u32);
        }
        end.drain(now);
        end.fire(now);
        assert!(end.qp.inflight_bytes() <= 2 * WINDOW);
    }
    assert!(end.fx.sends.len() > 100);
}

#[test]
fn a_receiver_answers_only_packets_that_ask_and_each_burst_once() {
    let mut end = End::new(1, &uc());
    end.bring_up(0, &uc(), QpState::Rtr);
    (0..4).for_each(|k| receive(&mut end, k));
    let packet = |psn, ack_req| {
        let bth = Bth { ack_req, ..Bth::new(Opcode::UcSendOnly, qpn_of(1), Psn::new(psn)) };
        HeadBuf::new(&bth).as_slice().to_vec()
    };
    end.receive_from(Nanos(0), ip_of(0), &packet(100, false));
    assert!(!end.qp.wants_tx());
    (101..103).for_each(|psn| end.receive_from(Nanos(0), ip_of(0), &packet(psn, true)));
    let answers = end.drain(Nanos(640));
    let answer = Packet::parse(&answers[0]).expect("well-formed");
    assert_eq!((answers.len(), answer.bth.opcode, answer.bth.psn.get()), (1, Opcode::UcReceipt, 102));
    assert_eq!(answer.aeth().map(|aeth| aeth.syndrome), Some(Syndrome::Ack { credit: 1 }), "one receive is left");
    let saeth = answer.saeth().expect("there");
    assert_eq!((saeth.received_packets, saeth.delay, saeth.words), (3, 10, 0));
    // A probe is answered for the packets before it, which are lost.
    let probe = Bth { ack_req: true, ..Bth::new(Opcode::UcProbe, qpn_of(1), Psn::new(120)) };
    end.receive_from(Nanos(700), ip_of(0), HeadBuf::new(&probe).as_slice());
    let answers = end.drain(Nanos(700));
    assert_eq!(Packet::parse(&answers[0]).expect("well-formed").bth.psn.get(), 120);
    assert_eq!(end.qp.query().rq_psn.get(), 103, "a probe consumes no PSN");
}

#[test]
fn a_queue_pair_that_fails_or_is_reset_has_nothing_in_flight() {
    for state in [QpState::Err, QpState::Reset] {
        let mut end = sender();
        (0..8).for_each(|wr_id| send(&mut end, wr_id, MESSAGE));
        end.drain(Nanos(0));
        assert!(end.qp.inflight_bytes() > 0);
        end.move_to(state);
        end.drain(Nanos(0));
        assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
        end.qp.check().expect("consistent");
    }
}
