//! Acknowledgements of READ responses: when a requester sends them, and how a responder limits what it has in flight by them,
//! also if they are lost, late, forged or never come.
use crate::common::{End, LinkFaults, Pair, Setup, ip_of, qpn_of};
use burst_base::verbs::{QpAttr, QpState, QpType, WcStatus, WrOpcode, access, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_frame::{Ecn, Flow, RxFrame};
use burst_shm::layout::SendWqe;
use burst_transport::{Env, Signal, WINDOW_PSNS};
use burst_wire::{Bth, HeadBuf, Opcode, Packet, Reth, Saeth, Seth, Weth, XrcEth};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const FIRST: u32 = 10;
const MS: u64 = 1_000_000;

fn setup(window: u64) -> Setup {
    let base = Setup::default();
    let psn = Psn::new(FIRST);
    let attr = QpAttr { rq_psn: psn, sq_psn: psn, max_dest_rd_atomic: 4, timeout: 18, ..base.attr };
    Setup { selective: WINDOW_PSNS, read_acks: true, attr, window, ..base }
}

/// End 1, which answers READs with at most `window` bytes of responses in flight.
fn responder(window: u64) -> End {
    let setup = setup(window);
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    end
}

/// End 0, which sends READs.
fn requester() -> End {
    let setup = setup(1 << 20);
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    end
}

fn ask(end: &mut End, psn: u32, len: u32) {
    ask_again(end, psn, (0, len), false);
}

/// A READ request for `len` bytes from packet `first` of a READ from address 0 on.
fn ask_again(end: &mut End, psn: u32, (first, len): (u32, u32), is_repair: bool) {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcSrReadRequest, qpn_of(1), Psn::new(psn)) };
    let seth = Seth { is_repair, index: if is_repair { first } else { 0 }, ..Seth::default() };
    let reth = Reth { addr: u64::from(first * MTU), rkey: Rkey(end.lkey), len };
    end.receive_from(NOW, ip_of(0), HeadBuf::new(&bth).seth(seth).reth(reth).as_slice());
}

/// PSNs of the responses that are sent now.
fn responses(end: &mut End, now: Nanos) -> Vec<u32> {
    let packets = end.drain(now);
    let parsed = packets.iter().map(|bytes| Packet::parse(bytes).expect("well-formed"));
    parsed.filter(|packet| packet.saeth().is_none()).map(|packet| packet.bth.psn.get()).collect()
}

/// An acknowledgement of responses up to `psn`, with this newest packet, arrives.
fn acknowledge(end: &mut End, now: Nanos, psn: u32, (trigger, transmission): (u32, u8)) {
    let saeth = Saeth { trigger: Psn::new(trigger), transmission, ..Saeth::default() };
    let head = HeadBuf::new(&Bth::new(Opcode::RcSrReadAck, qpn_of(1), Psn::new(psn))).saeth(saeth);
    end.receive_from(now, ip_of(0), head.as_slice());
}

fn range(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

#[test]
fn responses_leave_as_far_as_the_window_allows_and_acknowledgements_open_it() {
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 10 * MTU + 100);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    assert_eq!((end.qp.response_bytes(), end.qp.inflight_bytes(), end.qp.wants_tx()), (4096, 4096, false));
    acknowledge(&mut end, NOW, 10, (10, 0));
    assert_eq!(responses(&mut end, NOW), [14]);
    acknowledge(&mut end, NOW, 14, (14, 0));
    assert_eq!(responses(&mut end, NOW), range(15, 4));
    acknowledge(&mut end, NOW, 18, (18, 0));
    assert_eq!(responses(&mut end, NOW), [19, 20]);
    assert_eq!(end.qp.response_bytes(), u64::from(MTU + 100), "the last packet is short");
    acknowledge(&mut end, NOW, 20, (20, 0));
    assert_eq!((end.qp.response_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
    // Several READs share the window; the one behind an ATOMIC or another READ waits with it.
    ask(&mut end, 21, 3 * MTU);
    ask(&mut end, 24, 3 * MTU);
    assert_eq!(responses(&mut end, NOW), range(21, 4));
    acknowledge(&mut end, NOW, 24, (24, 0));
    assert_eq!(responses(&mut end, NOW), [25, 26]);
    assert_eq!(end.qp.response_bytes(), 2048);
}

#[test]
fn one_packet_always_leaves_if_none_is_in_flight() {
    let mut end = responder(0);
    ask(&mut end, 10, 3 * MTU);
    for psn in 10..13 {
        assert_eq!((responses(&mut end, NOW), end.qp.wants_tx()), (vec![psn], false));
        acknowledge(&mut end, NOW, psn, (psn, 0));
    }
    ask(&mut end, 13, 0);
    assert_eq!(responses(&mut end, NOW), [13], "no bytes");
}

#[test]
fn repairs_of_what_is_in_flight_need_no_room() {
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 8 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    // 11 and 12 are asked for again; the rest waits as before.
    ask_again(&mut end, 11, (1, 2 * MTU), true);
    assert_eq!(responses(&mut end, NOW), [11, 12]);
    assert_eq!((end.qp.response_bytes(), end.qp.wants_tx()), (4096, false));
    // What was never sent needs room, whatever asks for it.
    ask_again(&mut end, 12, (2, 6 * MTU), false);
    assert_eq!(responses(&mut end, NOW), [12, 13]);
    acknowledge(&mut end, NOW, 13, (13, 0));
    assert_eq!(responses(&mut end, NOW), range(14, 4));
}

#[test]
fn responses_that_are_not_acknowledged_in_time_stop_counting_and_the_peer_is_believed_again_when_it_speaks() {
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 20 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    // Nothing is measured yet: ten milliseconds.
    let due = end.qp.next_deadline();
    assert_eq!(due, NOW + Nanos(10 * MS));
    end.fire(due);
    // Which may be shorter than the round trip: the first says nothing of the path.
    assert_eq!((end.fx.signals.clone(), end.fx.count_of(Reason::SrReadTimeout)), (vec![], 1));
    assert_eq!(responses(&mut end, due), range(14, 4), "the window is open again");
    let due = end.qp.next_deadline();
    end.fire(due);
    assert_eq!(end.fx.signals, [Signal::Timeout]);
    // It has never said a word: READs are answered without acknowledgements.
    assert_eq!(responses(&mut end, due), range(18, 12));
    assert_eq!((end.qp.response_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
    acknowledge(&mut end, due, 20, (20, 0));
    ask(&mut end, 30, 10 * MTU);
    assert_eq!((responses(&mut end, due), end.qp.response_bytes()), (range(30, 4), 4096));
    acknowledge(&mut end, due, 33, (33, 0));
    assert_eq!(responses(&mut end, due), range(34, 4));
}

#[test]
fn the_timeout_follows_the_round_trip_that_acknowledgements_measure() {
    let mut end = responder(1 << 20);
    ask(&mut end, 10, 4 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    let at = NOW + Nanos(2 * MS);
    acknowledge(&mut end, at, 13, (13, 0));
    ask(&mut end, 14, 4 * MTU);
    responses(&mut end, at);
    // The round trip of 2 ms, and four times its variation of 1 ms.
    assert_eq!(end.qp.next_deadline(), at + Nanos(6 * MS));
    // One that tells of a repetition measures nothing.
    acknowledge(&mut end, at + Nanos(5 * MS), 17, (15, 1));
    ask(&mut end, 18, 4 * MTU);
    responses(&mut end, at + Nanos(5 * MS));
    assert_eq!(end.qp.next_deadline(), at + Nanos(11 * MS));
    // It comes before the requester has waited for a local ACK timeout, if that of this end is as long.
    let base = setup(1 << 20);
    let setup = Setup { attr: QpAttr { timeout: 10, ..base.attr }, ..base };
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    ask(&mut end, 10, 4 * MTU);
    responses(&mut end, NOW);
    assert_eq!(end.qp.next_deadline(), NOW + Nanos(4_096 * 1024 / 4));
}

#[test]
fn congestion_control_gets_what_acknowledgements_of_responses_say() {
    let mut end = responder(1 << 20);
    ask(&mut end, 10, 4 * MTU);
    responses(&mut end, NOW);
    let mut tell = |at: u64, psn: u32, saeth: Saeth| {
        let head = HeadBuf::new(&Bth::new(Opcode::RcSrReadAck, qpn_of(1), Psn::new(psn))).saeth(saeth);
        end.receive_from(NOW + Nanos(at), ip_of(0), head.as_slice());
        std::mem::take(&mut end.fx.reports)
    };
    let saeth = Saeth { received_packets: 2, congested_packets: 1, pressure: 2, delay: 100, ..Saeth::default() };
    let report = tell(50_000, 11, Saeth { trigger: Psn::new(11), ..saeth })[0];
    assert_eq!((report.packets, report.ce_packets, report.pressure, report.rtt), (2, 1, 2, None));
    let last = Saeth { received_packets: 4, congested_packets: 3, pressure: 0, trigger: Psn::new(13), ..saeth };
    let report = tell(90_000, 13, last)[0];
    assert_eq!((report.packets, report.ce_packets, report.pressure), (2, 2, 0));
    assert_eq!((report.rtt, report.remote_delay), (Some(Nanos(90_000 - 6_400)), Nanos(6_400)));
    // What was never sent says nothing.
    assert_eq!(tell(95_000, 14, Saeth { received_packets: 900, ..last }), []);
}

/// The requester sees the gap, and the window of the responder is to become smaller: once for each flight.
#[test]
fn responses_that_are_asked_for_again_are_losses_of_the_responder() {
    let mut end = responder(8 * 1024);
    ask(&mut end, 10, 32 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 8));
    acknowledge(&mut end, NOW, 11, (17, 0));
    assert_eq!(responses(&mut end, NOW), [18, 19]);
    for psn in [12, 14] {
        ask_again(&mut end, psn, (psn - 10, MTU), true);
        assert_eq!(end.fx.signals, [Signal::Loss], "{psn}: one flight");
    }
    assert_eq!(responses(&mut end, NOW), [12, 14]);
    acknowledge(&mut end, NOW, 19, (19, 0));
    assert_eq!(responses(&mut end, NOW), range(20, 8));
    // Nothing has come behind it yet: the requester may be too early. Nor is what was not sent yet a loss.
    ask_again(&mut end, 20, (10, MTU), true);
    ask_again(&mut end, 30, (20, MTU), true);
    assert_eq!(end.fx.signals.len(), 1);
    acknowledge(&mut end, NOW, 19, (27, 0));
    ask_again(&mut end, 22, (12, MTU), true);
    assert_eq!(end.fx.signals, [Signal::Loss; 2], "the next flight");
}

/// A response that was taken back to its beginning does not send what the requester has meanwhile, above all on a slow path.
/// Behind a response that is missing no acknowledgement frees anything before that is repaired. That others arrive shows that
/// those in flight are not lost.
#[test]
fn responses_that_arrive_behind_a_missing_one_are_no_second_loss() {
    for is_heard in [true, false] {
        let mut end = responder(4 * 1024);
        ask(&mut end, 10, 20 * MTU);
        assert_eq!(responses(&mut end, NOW), range(10, 4));
        acknowledge(&mut end, NOW + Nanos(4 * MS), 13, (13, 0));
        assert_eq!(responses(&mut end, NOW + Nanos(4 * MS)), range(14, 4));
        // A round trip is known, and all four are lost: one loss.
        let lost = end.qp.next_deadline();
        end.fire(lost);
        assert_eq!(end.fx.signals, [Signal::Loss]);
        assert_eq!(responses(&mut end, lost), range(18, 4));
        let due = end.qp.next_deadline();
        if is_heard {
            let heard = Nanos(due.0 - MS);
            acknowledge(&mut end, heard, 13, (21, 0));
            assert!(end.qp.next_deadline() > due, "14 is missing, and 18 to 21 have arrived");
            ask_again(&mut end, 14, (4, 4 * MTU), true);
            assert_eq!(responses(&mut end, heard), range(14, 4));
        }
        end.fire(due);
        let expected = if is_heard { vec![Signal::Loss] } else { vec![Signal::Loss, Signal::Timeout] };
        assert_eq!(end.fx.signals, expected);
    }
}

#[test]
fn what_the_requester_has_is_not_sent_again() {
    let mut end = responder(2 * 1024);
    ask(&mut end, 10, 8 * MTU);
    assert_eq!(responses(&mut end, NOW), [10, 11]);
    acknowledge(&mut end, NOW, 11, (11, 0));
    assert_eq!(responses(&mut end, NOW), [12, 13]);
    // It is asked for as a whole; before anything leaves the requester says that it has four packets.
    ask_again(&mut end, 10, (0, 8 * MTU), false);
    acknowledge(&mut end, NOW, 13, (13, 0));
    assert_eq!(responses(&mut end, NOW), [14, 15]);
    acknowledge(&mut end, NOW, 15, (15, 0));
    assert_eq!(responses(&mut end, NOW), [16, 17]);
    // The whole of it has come: nothing is left to send, and what is behind it goes on.
    ask_again(&mut end, 10, (0, 8 * MTU), false);
    acknowledge(&mut end, NOW, 17, (17, 0));
    ask(&mut end, 18, 2 * MTU);
    assert_eq!((responses(&mut end, NOW), end.qp.wants_tx()), (vec![18, 19], false));
    assert_eq!(end.qp.response_bytes(), 2048);
    acknowledge(&mut end, NOW, 19, (19, 0));
    // Nobody needs a response without bytes whose acknowledgement comes first: its place is free for others.
    for psn in 20..30 {
        ask(&mut end, psn, 0);
        acknowledge(&mut end, NOW, psn, (psn, 0));
        responses(&mut end, NOW);
    }
    assert_eq!((end.fx.count_of(Reason::TooManyReads), end.qp.state()), (0, QpState::Rts));
}

#[test]
fn acknowledgements_that_cannot_be_change_nothing() {
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 8 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    let deadline = end.qp.next_deadline();
    // Sent never: the rest of the READ, what comes behind it, half of all numbers further on.
    for psn in [14, 17, 18, 500, 10 + (1 << 23) - 1, (1 << 23) + 20] {
        acknowledge(&mut end, NOW, psn, (psn, 0));
        assert_eq!((end.qp.response_bytes(), end.qp.wants_tx()), (4096, false), "{psn}");
    }
    assert_eq!(end.fx.count_of(Reason::UnexpectedResponse), 5);
    acknowledge(&mut end, NOW, 11, (11, 0));
    assert_eq!(responses(&mut end, NOW), [14, 15]);
    // Backwards, and again.
    for psn in [10, 9, 11, 0xff_fff0] {
        acknowledge(&mut end, NOW + Nanos(MS), psn, (psn, 0));
        assert_eq!((end.qp.response_bytes(), end.qp.wants_tx()), (4096, false), "{psn}");
    }
    assert_eq!(end.fx.count_of(Reason::StaleAck), 4 + 1);
    assert!(end.qp.next_deadline() <= deadline, "they do not put the time-out off");
    acknowledge(&mut end, NOW, 15, (15, 0));
    assert_eq!(responses(&mut end, NOW), [16, 17]);
    acknowledge(&mut end, NOW, 17, (17, 0));
    acknowledge(&mut end, NOW, 17, (17, 0));
    assert_eq!(end.qp.response_bytes(), 0);
}

#[test]
fn a_new_read_acknowledges_the_one_whose_place_it_needs() {
    let mut end = responder(1 << 20);
    (0..4).for_each(|k| ask(&mut end, 10 + 2 * k, 2 * MTU));
    assert_eq!(responses(&mut end, NOW), range(10, 8));
    assert_eq!(end.qp.response_bytes(), 8 * 1024);
    ask(&mut end, 18, 2 * MTU);
    assert_eq!(end.qp.response_bytes(), 6 * 1024);
    assert_eq!(responses(&mut end, NOW), [18, 19]);
    acknowledge(&mut end, NOW, 19, (19, 0));
    assert_eq!((end.qp.response_bytes(), end.fx.count_of(Reason::TooManyReads)), (0, 0));
}

#[test]
fn a_failed_queue_pair_has_no_response_in_flight_and_sends_those_in_front_of_a_refusal() {
    let mut end = responder(2 * 1024);
    ask(&mut end, 10, 4 * MTU);
    assert_eq!(responses(&mut end, NOW), [10, 11]);
    // A WRITE by a wrong key behind the READ: its NAK comes behind all of the response.
    let head = HeadBuf::new(&Bth::new(Opcode::RcSrWriteOnly, qpn_of(1), Psn::new(14))).seth(Seth::default());
    let bytes = [head.weth(Weth { addr: 0, rkey: Rkey(77) }).as_slice(), &[7; 64]].concat();
    end.receive_from(NOW, ip_of(0), &bytes);
    let out = end.drain(NOW);
    let psns: Vec<u32> = out.iter().map(|bytes| Packet::parse(bytes).expect("well-formed").bth.psn.get()).collect();
    assert_eq!((psns, end.qp.state()), (vec![12, 13, 14], QpState::Err));
    assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
    for state in [QpState::Err, QpState::Reset] {
        let mut end = responder(2 * 1024);
        ask(&mut end, 10, 4 * MTU);
        responses(&mut end, NOW);
        end.move_to(state);
        end.drain(NOW);
        assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER), "{state:?}");
    }
}

#[test]
fn a_packet_of_the_standard_family_ends_the_count() {
    let mut end = responder(2 * 1024);
    ask(&mut end, 10, 4 * MTU);
    assert_eq!(responses(&mut end, NOW), [10, 11]);
    let head = HeadBuf::new(&Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(10)));
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 * MTU };
    end.receive_from(NOW, ip_of(0), head.reth(reth).as_slice());
    assert_eq!(end.qp.response_bytes(), 0);
    assert!(responses(&mut end, NOW).len() >= 2);
}

#[test]
fn a_read_that_is_asked_for_again_in_the_standard_family_is_answered_in_it() {
    let standard = |end: &mut End, psn: u32, (first, len): (u32, u32)| {
        let head = HeadBuf::new(&Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(psn)));
        let reth = Reth { addr: u64::from(first * MTU), rkey: Rkey(end.lkey), len };
        end.receive_from(NOW, ip_of(0), head.reth(reth).as_slice());
    };
    let sent = |end: &mut End| -> Vec<String> {
        let packets = end.drain(NOW);
        let parsed = packets.iter().map(|bytes| Packet::parse(bytes).expect("well-formed").bth);
        parsed.map(|bth| format!("{:?} {}", bth.opcode, bth.psn.get())).collect()
    };
    // The window lets a part of the first response go; the second waits behind it.
    for (window, before) in [(16 * 1024, 4 + 2), (2 * 1024, 2)] {
        let mut end = responder(window);
        ask(&mut end, 10, 4 * MTU);
        ask(&mut end, 14, 2 * MTU);
        assert_eq!(responses(&mut end, NOW).len(), before);
        // Also what was acknowledged in the other family is sent from its first packet on, if it is asked for.
        acknowledge(&mut end, NOW, 10, (10, 0));
        standard(&mut end, 10, (0, 4 * MTU));
        standard(&mut end, 14, (0, 2 * MTU));
        let first =
            ["RcReadResponseFirst 10", "RcReadResponseMiddle 11", "RcReadResponseMiddle 12", "RcReadResponseLast 13"];
        let second = ["RcReadResponseFirst 14", "RcReadResponseLast 15"];
        assert_eq!(sent(&mut end), [&first[..], &second].concat(), "window {window}");
        standard(&mut end, 12, (2, 2 * MTU));
        assert_eq!(sent(&mut end), ["RcReadResponseFirst 12", "RcReadResponseLast 13"]);
    }
}

#[test]
fn without_the_peers_word_none_is_sent_and_none_is_expected() {
    let base = setup(2 * 1024);
    let mut end = End::new(1, &base);
    end.qp.use_read_acks(false);
    end.bring_up(0, &base, QpState::Rts);
    ask(&mut end, 10, 8 * MTU);
    assert_eq!((responses(&mut end, NOW), end.qp.response_bytes()), (range(10, 8), 0));
    acknowledge(&mut end, NOW, 12, (12, 0));
    assert_eq!(end.fx.count_of(Reason::UnexpectedResponse), 1);
    // The daemon's word comes while a response is under way, and is taken back.
    end.qp.use_read_acks(true);
    ask(&mut end, 18, 8 * MTU);
    assert_eq!(responses(&mut end, NOW), [18, 19]);
    end.qp.use_read_acks(false);
    assert_eq!(
        (responses(&mut end, NOW), end.qp.response_bytes(), end.qp.next_deadline()),
        (range(20, 6), 0, Nanos::NEVER)
    );
    let mut end = requester();
    end.qp.use_read_acks(false);
    read(&mut end, 8 * MTU);
    end.drain(NOW);
    (0..8).for_each(|k| respond(&mut end, (k, 8), 0, Ecn::NotEct));
    assert_eq!((sent(&mut end, NOW), end.statuses()), (vec![], vec![WcStatus::Success]));
}

/// Posts a READ of `len` bytes to address 0.
fn read(end: &mut End, len: u32) {
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { opcode: WrOpcode::RdmaRead as u8, flags, rkey: 5, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(0, len)]);
}

/// Packet `index` of the response to a READ of `packets` that begins with the first PSN, of a repair if the transmission number
/// is not 0, with this ECN mark.
fn respond(end: &mut End, (index, packets): (u32, u32), transmission: u8, ecn: Ecn) {
    use Opcode::{RcSrReadResponseFirst, RcSrReadResponseLast, RcSrReadResponseMiddle, RcSrReadResponseOnly};
    let opcode = match (index == 0, index + 1 == packets) {
        (true, true) => RcSrReadResponseOnly,
        (true, false) => RcSrReadResponseFirst,
        (false, true) => RcSrReadResponseLast,
        (false, false) => RcSrReadResponseMiddle,
    };
    let seth = Seth { index, transmission, is_repair: transmission > 0, ..Seth::default() };
    let head = HeadBuf::new(&Bth::new(opcode, qpn_of(0), Psn::new(FIRST + index))).seth(seth);
    let bytes = [head.as_slice(), &vec![index as u8; MTU as usize]].concat();
    let packet = Packet::parse(&bytes).expect("well-formed");
    let flow = Flow { src: ip_of(1), dst: end.ip, tos: ecn as u8, ..Flow::default() };
    let mut env = Env { now: NOW, waited: Nanos(0), mem: &end.mem, tx: &mut end.tx, fx: &mut end.fx };
    end.qp.on_packet(&RxFrame { flow, bytes: &bytes }, &packet, &mut env);
}

/// Acknowledgements that are sent now: PSN, newest packet and its transmission number, packets received and marked, `E`.
fn sent(end: &mut End, now: Nanos) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let Some(saeth) = packet.saeth() else { return format!("{:?} {}", packet.bth.opcode, packet.bth.psn.get()) };
        assert!(matches!(packet.bth.opcode, Opcode::RcSrReadAck | Opcode::XrcSrReadAck) && saeth.words == 0);
        let (psn, trigger, xn) = (packet.bth.psn.get(), saeth.trigger.get(), saeth.transmission);
        let mark = if saeth.is_congested { " E" } else { "" };
        format!("{psn} newest {trigger} xn{xn} of {} marked {}{mark}", saeth.received_packets, saeth.congested_packets)
    };
    end.drain(now).iter().map(line).collect()
}

#[test]
fn the_first_answer_to_a_read_measures_the_round_trip() {
    // Only a response to the request's first packet, sent once, measures: then time-outs are short. The first wait is 10 ms.
    for (index, transmission, is_measured) in [(0, 0, true), (1, 0, false), (0, 1, false)] {
        let mut end = requester();
        read(&mut end, 8 * MTU);
        end.drain(Nanos(0));
        respond(&mut end, (index, 8), transmission, Ecn::NotEct);
        let wait = end.qp.next_deadline().since(NOW);
        assert_eq!(wait < Nanos::from_ms(1), is_measured, "{index} {transmission}: {wait:?}");
    }
}

#[test]
fn a_requester_acknowledges_every_64_kib_and_the_end() {
    let mut end = requester();
    read(&mut end, 100 * MTU);
    end.drain(NOW);
    (0..63).for_each(|k| respond(&mut end, (k, 100), 0, Ecn::NotEct));
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    respond(&mut end, (63, 100), 0, Ecn::NotEct);
    assert_eq!(sent(&mut end, NOW), ["73 newest 73 xn0 of 64 marked 0"]);
    (64..99).for_each(|k| respond(&mut end, (k, 100), 0, Ecn::NotEct));
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    respond(&mut end, (99, 100), 0, Ecn::NotEct);
    assert_eq!(sent(&mut end, NOW), ["109 newest 109 xn0 of 100 marked 0"]);
    assert_eq!((end.statuses(), end.qp.wants_tx()), (vec![WcStatus::Success], false));
}

#[test]
fn a_requester_acknowledges_marks_gaps_and_repairs_at_once() {
    let mut end = requester();
    read(&mut end, 8 * MTU);
    end.drain(NOW);
    respond(&mut end, (0, 8), 0, Ecn::Ect0);
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    respond(&mut end, (1, 8), 0, Ecn::Ce);
    assert_eq!(sent(&mut end, NOW), ["11 newest 11 xn0 of 2 marked 1 E"]);
    respond(&mut end, (4, 8), 0, Ecn::NotEct);
    let both = sent(&mut end, NOW);
    assert_eq!(both, ["11 newest 14 xn0 of 3 marked 1", "RcSrReadRequest 12"]);
    respond(&mut end, (2, 8), 1, Ecn::NotEct);
    assert_eq!(sent(&mut end, NOW), ["12 newest 12 xn1 of 4 marked 1"]);
    respond(&mut end, (3, 8), 1, Ecn::NotEct);
    assert_eq!(sent(&mut end, NOW), ["14 newest 13 xn1 of 5 marked 1"]);
    (5..8).for_each(|k| respond(&mut end, (k, 8), 0, Ecn::NotEct));
    assert_eq!(sent(&mut end, NOW), ["17 newest 17 xn0 of 8 marked 1"]);
    // The peer, which sends one once more, does not know how far this end is.
    respond(&mut end, (7, 8), 0, Ecn::NotEct);
    respond(&mut end, (2, 8), 0, Ecn::NotEct);
    assert_eq!(sent(&mut end, NOW), ["17 newest 12 xn0 of 10 marked 1"]);
}

/// Moves `count` READs of 96 KiB over the link, and returns the pair.
fn run(xrc: bool, read_acks: [bool; 2], seed: u64, faults: LinkFaults) -> Pair {
    let psn = Psn::new(0xff_ffc0);
    let base = setup(64 << 10);
    let setup = Setup { attr: QpAttr { rq_psn: psn, sq_psn: psn, ..base.attr }, ..base };
    let mut pair = if xrc { Pair::xrc(&setup, seed, faults) } else { Pair::new(&setup, seed, faults) };
    let _queue = crate::common::xrc_queue(&mut pair.ends[1], 3, crate::common::PD, (4, 1));
    pair.ends.iter_mut().zip(read_acks).for_each(|(end, on)| end.qp.use_read_acks(on));
    let bytes: Vec<u8> = (0..96u32 << 10).map(|i| (i * 7 + i / 251) as u8).collect();
    pair.ends[1].write_memory(0, &bytes);
    let rkey = pair.ends[1].lkey;
    for k in 0..8 {
        let flags = send_flags::SIGNALED as u16;
        let opcode = WrOpcode::RdmaRead as u8;
        let wqe = SendWqe { wr_id: k, opcode, flags, rkey, remote_qpn: 3, ..SendWqe::default() };
        let sge = pair.ends[0].sge(k * (96 << 10), 96 << 10);
        pair.ends[0].post(&wqe, &[sge]);
    }
    while pair.step(Nanos::from_ms(600_000)) {
        let end = &pair.ends[1];
        assert!(end.qp.response_bytes() <= end.window + u64::from(MTU), "{}", end.qp.response_bytes());
    }
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 8]);
    (0..8).for_each(|k| assert!(pair.ends[0].memory(k * (96 << 10), 96 << 10) == bytes, "READ {k}"));
    assert_eq!((pair.ends[0].qp.inflight_bytes(), pair.ends[1].qp.inflight_bytes()), (0, 0));
    pair
}

#[test]
fn reads_end_whatever_the_link_loses_and_the_window_is_kept() {
    for seed in 0..40 {
        let rate = [0, 100, 1000, 3000][seed as usize % 4];
        let faults = LinkFaults { loss: rate, duplication: rate / 4, reordering: rate / 4, delay_max: Nanos(100_000) };
        let pair = run(seed % 8 >= 4, [true; 2], seed, faults);
        if rate == 0 {
            assert_eq!(pair.ends[1].fx.signals, [], "nothing was lost");
            assert_eq!(pair.ends[1].fx.count_of(Reason::StaleAck), 0);
        }
    }
}

#[test]
fn a_requester_that_never_acknowledges_gets_its_responses_and_takes_only_time() {
    let pair = run(false, [false, true], 1, LinkFaults::default());
    // Without a measured round trip the first time-out says nothing of the path.
    assert_eq!(pair.ends[1].fx.signals, [Signal::Timeout]);
    assert_eq!(pair.ends[1].fx.count_of(Reason::SrReadTimeout), 2);
    assert!(pair.now < Nanos::from_ms(60), "{:?}: two time-outs", pair.now);
    // And the other way round: acknowledgements that nobody expects.
    let pair = run(false, [true, false], 1, LinkFaults::default());
    assert!(pair.ends[1].fx.count_of(Reason::UnexpectedResponse) >= 8);
}

#[test]
fn reads_in_both_directions_do_not_wait_for_each_other() {
    let mut pair = Pair::new(&setup(16 << 10), 1, LinkFaults::default());
    for me in 0..2 {
        let rkey = pair.ends[1 - me].lkey;
        for k in 0..8 {
            let flags = send_flags::SIGNALED as u16;
            let wqe = SendWqe { wr_id: k, opcode: WrOpcode::RdmaRead as u8, flags, rkey, ..SendWqe::default() };
            let sge = pair.ends[me].sge(0, 96 << 10);
            pair.ends[me].post(&wqe, &[sge]);
        }
    }
    pair.settle();
    for end in &pair.ends {
        assert_eq!(end.statuses(), [WcStatus::Success; 8]);
        assert_eq!((end.fx.count_of(Reason::SrReadTimeout), end.fx.count_of(Reason::SrProbe)), (0, 0));
    }
}

#[test]
fn an_xrc_target_counts_its_responses_as_well() {
    let setup = Setup { qp_type: QpType::XrcRecv, ..setup(2 * 1024) };
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let _queue = crate::common::xrc_queue(&mut end, 1, crate::common::PD, (4, 1));
    let head = HeadBuf::new(&Bth::new(Opcode::XrcSrReadRequest, qpn_of(1), Psn::new(10)));
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: 4 * MTU };
    end.receive_from(NOW, ip_of(0), head.xrceth(XrcEth { srqn: 1 }).seth(Seth::default()).reth(reth).as_slice());
    assert_eq!(responses(&mut end, NOW), [10, 11]);
    let ack = HeadBuf::new(&Bth::new(Opcode::XrcSrReadAck, qpn_of(1), Psn::new(11))).saeth(Saeth::default());
    end.receive_from(NOW, ip_of(0), ack.as_slice());
    assert_eq!(responses(&mut end, NOW), [12, 13]);
}

#[test]
fn a_region_that_is_gone_while_its_responses_wait_is_refused_when_they_go_on() {
    let mut end = responder(2 * 1024);
    let key = end.register(8192, access::REMOTE_READ);
    let head = HeadBuf::new(&Bth::new(Opcode::RcSrReadRequest, qpn_of(1), Psn::new(10))).seth(Seth::default());
    end.receive_from(NOW, ip_of(0), head.reth(Reth { addr: 0, rkey: Rkey(key), len: 4 * MTU }).as_slice());
    assert_eq!(responses(&mut end, NOW), [10, 11]);
    assert!(end.mem.remove(key).is_some());
    acknowledge(&mut end, NOW, 11, (11, 0));
    end.drain(NOW);
    assert_eq!((end.qp.state(), end.qp.inflight_bytes()), (QpState::Err, 0));
}

#[test]
fn repairs_of_one_response_are_sent_each_by_itself_in_the_order_in_which_they_were_asked_for() {
    let mut end = responder(1 << 20);
    ask(&mut end, 10, 100 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 100));
    // Far apart, asked for together: nothing between them is sent, and nothing is lost.
    ask_again(&mut end, 20, (10, MTU), true);
    ask_again(&mut end, 90, (80, 2 * MTU), true);
    ask_again(&mut end, 12, (2, MTU), true);
    ask_again(&mut end, 90, (80, 2 * MTU), true);
    assert_eq!(responses(&mut end, NOW), [20, 90, 91, 12], "the same range twice is sent once");
    ask_again(&mut end, 90, (80, 2 * MTU), true);
    assert_eq!(responses(&mut end, NOW), [90, 91], "asked for again after it was sent");
    // The last packet is short, and another READ waits for the window meanwhile.
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 2 * MTU + 1);
    ask(&mut end, 13, 4 * MTU);
    assert_eq!((responses(&mut end, NOW), end.qp.wants_tx()), (range(10, 4), false));
    ask_again(&mut end, 12, (2, 1), true);
    ask_again(&mut end, 10, (0, MTU), true);
    assert_eq!((responses(&mut end, NOW), end.qp.response_bytes()), (vec![12, 10], 3 * 1024 + 1));
    acknowledge(&mut end, NOW, 12, (12, 1));
    assert_eq!(responses(&mut end, NOW), [14, 15, 16], "marked as no repair, in turn");
}

#[test]
fn what_follows_a_repair_is_not_marked_as_one() {
    let mut end = responder(4 * 1024);
    ask(&mut end, 10, 8 * MTU);
    assert_eq!(responses(&mut end, NOW), range(10, 4));
    ask_again(&mut end, 11, (1, MTU), true);
    acknowledge(&mut end, NOW, 13, (13, 0));
    let packets = end.drain(NOW);
    let marks = packets.iter().map(|bytes| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let seth = packet.seth().expect("of the family");
        (packet.bth.psn.get(), seth.is_repair, seth.transmission)
    });
    let rest = range(14, 4).into_iter().map(|psn| (psn, false, 0));
    assert_eq!(marks.collect::<Vec<_>>(), [(11, true, 1)].into_iter().chain(rest).collect::<Vec<_>>());
}

#[test]
fn more_repairs_than_wait_are_answered_by_going_back() {
    let mut end = responder(1 << 20);
    ask(&mut end, 10, 128 * MTU);
    responses(&mut end, NOW);
    (0..65).for_each(|k| ask_again(&mut end, 10 + k, (k, MTU), true));
    let sent = responses(&mut end, NOW);
    (0..65).for_each(|k| assert!(sent.contains(&(10 + k)), "packet {k} of {sent:?}"));
}

/// A requester of the standard family that asks for missing ranges, as Burst does: none is forgotten, and nothing between them
/// is sent.
#[test]
fn standard_repairs_of_one_response_are_sent_each_by_itself() {
    let setup = Setup {
        attr: QpAttr {
            rq_psn: Psn::new(FIRST),
            sq_psn: Psn::new(FIRST),
            max_dest_rd_atomic: 4,
            ..Setup::default().attr
        },
        ..Setup::default()
    };
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let ask = |end: &mut End, psn: u32, (first, len): (u32, u32)| {
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(psn)) };
        let reth = Reth { addr: u64::from(first * MTU), rkey: Rkey(end.lkey), len };
        end.receive_from(NOW, ip_of(0), HeadBuf::new(&bth).reth(reth).as_slice());
    };
    ask(&mut end, 10, (0, 100 * MTU));
    assert_eq!(responses(&mut end, NOW), range(10, 100));
    ask(&mut end, 20, (10, MTU));
    ask(&mut end, 90, (80, 2 * MTU));
    ask(&mut end, 12, (2, MTU));
    assert_eq!(responses(&mut end, NOW), [12, 20, 90, 91]);
    // Going back: the rest of the READ, and what follows, in order.
    ask(&mut end, 110, (0, 2 * MTU));
    assert_eq!(responses(&mut end, NOW), [110, 111]);
    ask(&mut end, 108, (98, 2 * MTU));
    ask(&mut end, 110, (0, 2 * MTU));
    let packets = end.drain(NOW);
    let places: Vec<_> = packets
        .iter()
        .map(|bytes| Packet::parse(bytes).expect("well-formed"))
        .map(|p| (p.bth.psn.get(), p.info.position))
        .collect();
    use burst_wire::Position::{First, Last};
    assert_eq!(places, [(108, First), (109, Last), (110, First), (111, Last)]);
}
