//! Selective repeat at its limits: the window of the peer, the window of bytes, the fast timer, the number of retries; what an
//! acknowledgement says; repetitions of READs and ATOMICs; requests that fail before they are repeated; the change of families.
use crate::common::{End, Setup, ip_of, qpn_of};
use burst_base::verbs::{QpAttr, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey, RtoMode};
use burst_frame::{Ecn, Flow, RxFrame};
use burst_shm::layout::SendWqe;
use burst_transport::{Env, TxBudget, TxState, WINDOW_PSNS};
use burst_wire::selective::AckBitmap;
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Packet, Reth, Saeth, Seth, Syndrome, Weth};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const FIRST: u32 = 10;
const OK: WcStatus = WcStatus::Success;

fn setup(window: u32) -> Setup {
    let base = Setup::default();
    let attr = QpAttr { rq_psn: Psn::new(FIRST), sq_psn: Psn::new(FIRST), ..base.attr };
    Setup { selective: window, attr, ..base }
}

fn requester_of(setup: &Setup) -> End {
    let mut end = End::new(0, setup);
    end.bring_up(1, setup, QpState::Rts);
    end
}

fn requester() -> End {
    requester_of(&setup(WINDOW_PSNS))
}

fn responder() -> End {
    let setup = setup(WINDOW_PSNS);
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    end
}

fn post_with(end: &mut End, opcode: WrOpcode, flags: u32, (addr, len): (u64, u32)) {
    let flags = (send_flags::SIGNALED | flags) as u16;
    let wqe = SendWqe { opcode: opcode as u8, flags, remote_addr: addr, rkey: 5, ..SendWqe::default() };
    end.post(&wqe, &[end.sge(addr, len)]);
}

fn post(end: &mut End, opcode: WrOpcode, len: u32) {
    post_with(end, opcode, 0, (0, len));
}

/// The packets that are sent now: opcode, PSN, transmission number; `P` marks a probe, `A` the repair of a READ.
fn sent(end: &mut End, now: Nanos) -> Vec<String> {
    let line = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        let seth = packet.seth().unwrap_or_default();
        let marks = [(seth.is_probe, " P"), (seth.is_repair, " A")].map(|(is, mark)| if is { mark } else { "" });
        format!("{:?} {} xn{}{}", packet.bth.opcode, packet.bth.psn.get(), seth.transmission, marks.concat())
    };
    end.drain(now).iter().map(line).collect()
}

/// An acknowledgement or NAK: its PSN and syndrome, what has arrived behind the first missing PSN, the newest packet and its
/// transmission number, and the time until the answer in units of 64 ns.
struct Answer<'a> {
    at: Nanos,
    psn: u32,
    syndrome: Syndrome,
    there: &'a [u32],
    trigger: (u32, u8),
    delay: u16,
}

fn answer(end: &mut End, answer: &Answer<'_>) {
    let Answer { at, psn, syndrome, there, trigger, delay } = *answer;
    let missing = if matches!(syndrome, Syndrome::Ack { .. }) { psn + 1 } else { psn };
    let mut words = [0u64; 15];
    there.iter().map(|psn| psn - missing - 1).for_each(|i| words[(i / 64) as usize] |= 1 << (i % 64));
    let count = there.last().map_or(0, |last| ((last - missing - 1) / 64 + 1) as usize);
    let (trigger, transmission) = (Psn::new(trigger.0), trigger.1);
    let saeth = Saeth { words: count as u8, trigger, transmission, delay, ..Saeth::default() };
    let head = HeadBuf::new(&Bth::new(Opcode::RcSrAck, qpn_of(0), Psn::new(psn)));
    let head = head.aeth(Aeth { syndrome, msn: 0 }).saeth(saeth);
    let mut bytes = [0; 120];
    let len = AckBitmap::emit(&words[..count], &mut bytes);
    end.receive_from(at, ip_of(1), &[head.as_slice(), &bytes[..len]].concat());
}

/// Acknowledges everything up to `psn`, the newest packet.
fn acknowledge(end: &mut End, at: Nanos, psn: u32) {
    answer(end, &Answer { at, psn, syndrome: Syndrome::ACK, there: &[], trigger: (psn, 0), delay: 0 });
}

#[test]
fn no_more_packets_are_in_flight_than_the_peer_keeps_track_of() {
    let mut end = requester_of(&setup(8));
    post(&mut end, WrOpcode::RdmaWrite, 20 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 8);
    acknowledge(&mut end, NOW, 12);
    assert_eq!(sent(&mut end, NOW).len(), 3, "three have gone");
    acknowledge(&mut end, NOW, 20);
    assert_eq!(sent(&mut end, NOW).len(), 8);
    acknowledge(&mut end, NOW, 28);
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteLast 29 xn0"]);
    // A READ takes the PSNs of its response: it waits until all of them are inside.
    post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    acknowledge(&mut end, NOW, 29);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 30 xn0"]);
}

#[test]
fn the_fast_timer_follows_the_measured_round_trip() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 64);
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteOnly 10 xn0"]);
    // Nothing is measured: a quarter of the local ACK timeout, 4.096 us * 2^10.
    assert_eq!(end.qp.next_deadline(), NOW + Nanos(4_096 * 1024 / 4));
    // 228 us, of which the peer took 28 us: round trip 200 us, variation 100 us.
    let at = NOW + Nanos(200_000 + 64 * 437);
    answer(&mut end, &Answer { at, psn: 10, syndrome: Syndrome::ACK, there: &[], trigger: (10, 0), delay: 437 });
    assert_eq!((end.statuses(), end.qp.next_deadline()), (vec![OK], Nanos::NEVER));
    post(&mut end, WrOpcode::RdmaWrite, 64);
    sent(&mut end, at);
    assert_eq!(end.qp.next_deadline(), at + Nanos(600_000 + 64 * 437), "four variations and the time of the peer more");
    let due = end.qp.next_deadline();
    end.fire(Nanos(due.0 - 1));
    assert_eq!(sent(&mut end, due), Vec::<String>::new());
    end.fire(due);
    assert_eq!(sent(&mut end, due), ["RcSrWriteOnly 11 xn8 P"]);
    // The answer to a probe measures nothing.
    let late = due + Nanos(900_000);
    answer(&mut end, &Answer { at: late, psn: 11, syndrome: Syndrome::ACK, there: &[], trigger: (11, 8), delay: 0 });
    post(&mut end, WrOpcode::RdmaWrite, 64);
    sent(&mut end, late);
    assert_eq!(end.qp.next_deadline(), late + Nanos(600_000 + 64 * 437));
}

/// Repetitions may wait for their turn on a path that sends slowly. Time-outs meanwhile say nothing: no retry is used up, and
/// congestion control is told once.
#[test]
fn what_waits_to_be_sent_again_uses_up_no_retries() {
    for len in [3 * MTU, 0] {
        let mut end = requester();
        let opcode = if len > 0 { WrOpcode::RdmaWrite } else { WrOpcode::AtomicFetchAndAdd };
        post(&mut end, opcode, len.max(8));
        let first = sent(&mut end, NOW).len();
        acknowledge(&mut end, NOW, FIRST - 1);
        for _ in 0..3 {
            // Two probes, and a time-out.
            let due = end.qp.next_deadline();
            end.fire(due);
            let probes = end.fx.count_of(Reason::SrTimeout) == 0;
            assert!(!probes || sent(&mut end, due).len() == 1);
        }
        let mut now = NOW;
        for _ in 0..200 {
            let due = end.qp.next_deadline();
            if due == Nanos::NEVER {
                break;
            }
            now = due;
            end.fire(due);
        }
        assert_eq!((end.statuses(), end.qp.state()), (vec![], QpState::Rts), "{opcode:?}");
        assert_eq!(end.fx.count_of(Reason::SrTimeout), 1, "{opcode:?}");
        // Sent at last, and never answered: the retries begin to count.
        assert_eq!(sent(&mut end, now).len(), first, "{opcode:?}");
        for _ in 0..200 {
            let due = end.qp.next_deadline();
            end.fire(due);
            sent(&mut end, due);
            if end.qp.state() == QpState::Err {
                break;
            }
        }
        assert_eq!(end.statuses(), [WcStatus::RetryExcErr], "{opcode:?}");
    }
}

/// A WRITE packet with this transmission number arrives in a packet with this ECN mark.
fn write(end: &mut End, now: Nanos, psn: u32, transmission: u8, ecn: Ecn) {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcSrWriteOnly, qpn_of(1), Psn::new(psn)) };
    let head = HeadBuf::new(&bth).seth(Seth { transmission, ..Seth::default() });
    let head = head.weth(Weth { addr: 0, rkey: Rkey(end.lkey) });
    let bytes = [head.as_slice(), &[7; 64]].concat();
    let packet = Packet::parse(&bytes).expect("well-formed");
    let flow = Flow { src: ip_of(0), dst: end.ip, tos: ecn as u8, ..Flow::default() };
    let mut env = Env { now, waited: Nanos(0), mem: &end.mem, tx: &mut end.tx, fx: &mut end.fx };
    end.qp.on_packet(&RxFrame { flow, bytes: &bytes }, &packet, &mut env);
}

fn only_saeth(end: &mut End, now: Nanos) -> (u32, Saeth) {
    let out = end.drain(now);
    let [bytes] = &out[..] else { panic!("one acknowledgement: {}", out.len()) };
    let packet = Packet::parse(bytes).expect("well-formed");
    (packet.bth.psn.get(), packet.saeth().expect("an acknowledgement"))
}

#[test]
fn an_acknowledgement_tells_of_the_newest_packet_and_of_congestion() {
    let mut end = responder();
    write(&mut end, NOW, 10, 0, Ecn::Ect0);
    write(&mut end, NOW + Nanos(100), 12, 3, Ecn::Ce);
    let expected = Saeth {
        is_congested: true,
        words: 1,
        trigger: Psn::new(12),
        delay: 10,
        congested_packets: 1,
        received_packets: 2,
        transmission: 3,
        ..Saeth::default()
    };
    assert_eq!(only_saeth(&mut end, NOW + Nanos(100 + 650)), (10, expected));
    // The mark is reported once, the counts go on. The delay has a largest value.
    write(&mut end, NOW + Nanos(1000), 11, 1, Ecn::NotEct);
    let expected = Saeth {
        is_congested: false,
        words: 0,
        trigger: Psn::new(11),
        delay: u16::MAX,
        received_packets: 3,
        transmission: 1,
        ..expected
    };
    assert_eq!(only_saeth(&mut end, Nanos::from_ms(1_000)), (12, expected));
}

#[test]
fn marks_are_counted_one_by_one_whatever_their_pattern() {
    type MarkPattern = (fn(u32) -> bool, u16);
    let patterns: [MarkPattern; 3] = [(|_| false, 0), (|_| true, 12), (|psn| psn % 2 == 1, 6)];
    for (marks, expected) in patterns {
        let mut end = responder();
        // In order, behind a gap, and the packet that fills it.
        for psn in [10, 11, 13, 14, 15, 16, 12, 17, 18, 19, 20, 21] {
            write(&mut end, NOW, psn, 0, if marks(psn) { Ecn::Ce } else { Ecn::Ect0 });
        }
        let (psn, saeth) = only_saeth(&mut end, NOW);
        assert_eq!((psn, saeth.received_packets, saeth.congested_packets), (21, 12, expected));
        assert_eq!(saeth.is_congested, expected > 0);
    }
}

#[test]
fn the_first_missing_packet_needs_no_room_in_the_window_and_others_do() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 6 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 6);
    answer(
        &mut end,
        &Answer { at: NOW, psn: 9, syndrome: Syndrome::ACK, there: &[12, 15], trigger: (15, 0), delay: 0 },
    );
    let turn = |end: &mut End, window_bytes: u64| {
        let state = end.poll(NOW, &mut TxBudget { wqes: 8, bytes: 16 << 10, window_bytes });
        let count = end.tx.len();
        end.tx.clear();
        (state, count)
    };
    assert_eq!(turn(&mut end, 0), (TxState::Window, 1), "10 and no more");
    assert_eq!(turn(&mut end, 1023), (TxState::Window, 0));
    assert_eq!(turn(&mut end, 2 * 1024), (TxState::Window, 2), "11 and 13");
    assert_eq!(turn(&mut end, 1024).1, 1, "14");
    assert_eq!(end.fx.count_of(Reason::SrRepeated), 4);
}

#[test]
fn lost_requests_of_reads_and_atomics_are_repeated_as_they_were() {
    let mut end = requester();
    post(&mut end, WrOpcode::AtomicFetchAndAdd, 8);
    post(&mut end, WrOpcode::RdmaRead, 3 * MTU);
    post_with(&mut end, WrOpcode::RdmaWrite, 0, (4096, 64));
    let first = end.drain(NOW);
    assert_eq!(first.len(), 3);
    answer(&mut end, &Answer { at: NOW, psn: 9, syndrome: Syndrome::ACK, there: &[14], trigger: (14, 0), delay: 0 });
    let again = end.drain(NOW);
    assert_eq!(again.len(), 2);
    for (old, new) in first.iter().zip(&again) {
        let (old, new) = (Packet::parse(old).expect("well-formed"), Packet::parse(new).expect("well-formed"));
        assert_eq!((old.bth.opcode, old.bth.psn, old.bth.ack_req), (new.bth.opcode, new.bth.psn, new.bth.ack_req));
        assert_eq!((old.reth(), old.atomic()), (new.reth(), new.atomic()));
        assert_eq!(old.seth(), new.seth().map(|seth| Seth { transmission: 0, ..seth }));
        assert_eq!(new.seth().map(|seth| seth.transmission), Some(1));
    }
    // All have arrived, and no response comes: the request of the oldest is repeated, not as one that was lost.
    acknowledge(&mut end, NOW, 14);
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    let due = end.qp.next_deadline();
    end.fire(due);
    assert_eq!(sent(&mut end, due), ["RcSrCmpSwap 10 xn1".replace("CmpSwap", "FetchAdd")]);
}

fn sent_probe(end: &mut End, probe: &str) -> Nanos {
    let due = end.qp.next_deadline();
    end.fire(due);
    assert_eq!(sent(end, due), [probe]);
    due
}

/// The repair of a response was lost with all that follows. A responder sends repairs first, so the answer to the probe behind it
/// shows that: it is asked for again at once, and not after two more waits.
#[test]
fn the_answer_to_a_probe_shows_that_responses_asked_for_before_are_lost() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 10 xn0"]);
    respond(&mut end, NOW, &[10, 14, 15, 16, 17]);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 11 xn1 A"]);
    let at = sent_probe(&mut end, "RcSrProbe 17 xn8 P");
    let answered = Answer { at, psn: 17, syndrome: Syndrome::ACK, there: &[], trigger: (17, 8), delay: 0 };
    answer(&mut end, &answered);
    assert_eq!(sent(&mut end, at), ["RcSrReadRequest 11 xn1 A"]);
    // A second answer to the same probe says nothing of what was asked for since.
    answer(&mut end, &answered);
    assert_eq!(sent(&mut end, at), Vec::<String>::new());
}

/// One request at a time would take a wait for each. Without a later response the first may still wait for the responder's
/// window, so the answer to the probe alone shows nothing, and one that has come begins the wait anew.
#[test]
fn all_responses_are_asked_for_again_that_stay_away_after_a_probe() {
    for comes in [false, true] {
        let mut end = requester();
        post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
        post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
        assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 10 xn0", "RcSrReadRequest 18 xn0"]);
        let at = sent_probe(&mut end, "RcSrProbe 25 xn8 P");
        answer(&mut end, &Answer { at, psn: 25, syndrome: Syndrome::ACK, there: &[], trigger: (25, 8), delay: 0 });
        assert_eq!(sent(&mut end, at), Vec::<String>::new());
        if comes {
            respond(&mut end, at, &[10]);
        }
        let due = end.qp.next_deadline();
        end.fire(due);
        let asked = sent(&mut end, due);
        match comes {
            false => assert_eq!(asked, ["RcSrReadRequest 10 xn1 A", "RcSrReadRequest 18 xn1 A"]),
            true => assert_eq!(asked, ["RcSrReadRequest 11 xn1 A"]),
        }
    }
}

/// A window of less than two pieces would carry one, half of what it allows. In this family the responder's window counts
/// packets.
#[test]
fn a_piece_of_a_read_needs_half_of_its_room_in_the_standard_family() {
    for (window_psns, needed) in [(WINDOW_PSNS, u64::from(8 * MTU)), (0, u64::from(4 * MTU))] {
        let mut end = requester_of(&setup(window_psns));
        post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
        post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
        let turn = |end: &mut End, window_bytes: u64| {
            let state = end.poll(NOW, &mut TxBudget { wqes: 8, bytes: 16 << 10, window_bytes });
            let count = end.tx.len();
            end.tx.clear();
            (state, count)
        };
        assert_eq!(turn(&mut end, u64::from(8 * MTU) + needed - 1), (TxState::Window, 1));
        assert_eq!(end.qp.next_bytes(), needed);
        assert_eq!(turn(&mut end, needed - 1), (TxState::Window, 0));
        assert_eq!(turn(&mut end, needed).1, 1);
    }
}

#[test]
fn a_read_is_probed_without_a_payload() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 3 * MTU);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 10 xn0"]);
    for probe in ["RcSrProbe 12 xn8 P", "RcSrProbe 12 xn9 P"] {
        let due = end.qp.next_deadline();
        end.fire(due);
        assert_eq!(sent(&mut end, due), [probe]);
    }
    assert_eq!(end.fx.count_of(Reason::SrProbe), 2);
}

/// Responses with these PSNs to a READ of 8 packets whose PSNs begin at [`FIRST`].
fn respond(end: &mut End, at: Nanos, psns: &[u32]) {
    for &psn in psns {
        let index = psn - FIRST;
        let opcode = match index {
            0 => Opcode::RcSrReadResponseFirst,
            7 => Opcode::RcSrReadResponseLast,
            _ => Opcode::RcSrReadResponseMiddle,
        };
        let head = HeadBuf::new(&Bth::new(opcode, qpn_of(0), Psn::new(psn))).seth(Seth { index, ..Seth::default() });
        end.receive_from(at, ip_of(1), &[head.as_slice(), &[psn as u8; MTU as usize]].concat());
    }
}

/// The packets that the next `count` timers send, without probes, and the packets that each READ request asks for.
fn sent_by_timers(end: &mut End, count: usize) -> Vec<(String, u32)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let due = end.qp.next_deadline();
        end.fire(due);
        for bytes in end.drain(due) {
            let packet = Packet::parse(&bytes).expect("well-formed");
            let (seth, len) = (packet.seth().expect("a request"), packet.reth().map_or(0, |reth| reth.len / MTU));
            if !seth.is_probe {
                let mark = if seth.is_repair { " A" } else { "" };
                all.push((format!("{:?} {}{mark}", packet.bth.opcode, packet.bth.psn.get()), len));
            }
        }
    }
    all
}

/// A responder on a slow path would send its response from the first packet on each time, and might never come to the first one
/// that is missing.
#[test]
fn time_outs_ask_for_what_is_missing_of_a_response_that_has_begun() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
    sent(&mut end, NOW);
    respond(&mut end, NOW, &[10, 11, 12]);
    // Two probes, and time-outs.
    let rest = ("RcSrReadRequest 13 A".to_owned(), 5);
    let asked = sent_by_timers(&mut end, 5);
    assert!(asked.len() >= 3 && asked.iter().all(|packet| *packet == rest), "{asked:?}");
    let late = end.qp.next_deadline();
    respond(&mut end, late, &[13]);
    let (asked, rest) = (sent_by_timers(&mut end, 5), ("RcSrReadRequest 14 A".to_owned(), 4));
    assert!(asked.len() >= 3 && asked.iter().all(|packet| *packet == rest), "{asked:?}");
    respond(&mut end, late, &[14, 15, 16, 17]);
    assert_eq!(end.statuses(), [OK]);
}

#[test]
fn time_outs_ask_for_the_missing_ranges_of_a_response_with_gaps() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 8 * MTU);
    sent(&mut end, NOW);
    respond(&mut end, NOW, &[10, 14]);
    let gap = ("RcSrReadRequest 11 A".to_owned(), 3);
    assert_eq!(sent(&mut end, NOW), ["RcSrReadRequest 11 xn1 A"]);
    let asked = sent_by_timers(&mut end, 5);
    let ranges = [gap, ("RcSrReadRequest 15 A".to_owned(), 3)];
    assert!(asked.len() >= 4 && asked.chunks(2).all(|pair| *pair == ranges), "{asked:?}");
    let late = end.qp.next_deadline();
    respond(&mut end, late, &[15, 16, 17]);
    respond(&mut end, late, &[11, 12, 13]);
    assert_eq!(end.statuses(), [OK]);
}

#[test]
fn time_outs_differ_between_queue_pairs_by_an_eighth_at_most() {
    let setup = setup(WINDOW_PSNS);
    let waits = (0..16).map(|index| {
        let mut end = End::new(index, &setup);
        end.bring_up(99, &setup, QpState::Rts);
        post(&mut end, WrOpcode::RdmaWrite, 64);
        sent(&mut end, NOW);
        let mut due = NOW;
        for _ in 0..2 {
            due = end.qp.next_deadline();
            end.fire(due);
            assert_eq!(sent(&mut end, due).len(), 1, "a probe");
        }
        (end.qp.next_deadline().0 - due.0) as f64 / (4096.0 * 1024.0 / 4.0)
    });
    let mut waits: Vec<f64> = waits.collect();
    assert!(waits.iter().all(|wait| (0.87..1.13).contains(wait)), "{waits:?}");
    waits.sort_by(f64::total_cmp);
    waits.dedup();
    assert!(waits.len() >= 10 && waits[0] < 0.95 && waits[waits.len() - 1] > 1.05, "{waits:?}");
}

#[test]
fn an_answer_that_tells_of_arrivals_behind_a_gap_begins_the_probes_anew() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 6 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 6);
    let probe = |end: &mut End, number: u8| {
        let due = end.qp.next_deadline();
        end.fire(due);
        assert_eq!(sent(end, due), [format!("RcSrWriteLast 15 xn{number} P")]);
        due
    };
    probe(&mut end, 8);
    let at = probe(&mut end, 9);
    // Nothing new is acknowledged, but packets have arrived: the peer answers, so not everything is lost.
    answer(&mut end, &Answer { at, psn: 9, syndrome: Syndrome::ACK, there: &[12, 15], trigger: (15, 9), delay: 0 });
    assert_eq!(sent(&mut end, at).len(), 4, "10, 11, 13 and 14");
    probe(&mut end, 8);
    probe(&mut end, 9);
}

#[test]
fn a_peer_without_receives_is_asked_as_often_as_the_program_allows() {
    let base = setup(WINDOW_PSNS);
    let mut end = requester_of(&Setup { attr: QpAttr { rnr_retry: 2, ..base.attr }, ..base });
    post(&mut end, WrOpcode::Send, 64);
    sent(&mut end, NOW);
    let mut now = NOW;
    let nak = |at| Answer { at, psn: 10, syndrome: Syndrome::Rnr { timer: 1 }, there: &[], trigger: (10, 0), delay: 0 };
    for left in [1, 0] {
        answer(&mut end, &nak(now));
        answer(&mut end, &nak(now));
        assert_eq!(end.fx.count_of(Reason::RnrNakReceived), 2 - left, "one at a time");
        now = end.qp.next_deadline();
        end.fire(now);
        assert_eq!(sent(&mut end, now).len(), 1);
    }
    answer(&mut end, &nak(now));
    end.drain(now);
    assert_eq!((end.statuses(), end.qp.state()), (vec![WcStatus::RnrRetryExcErr], QpState::Err));
}

#[test]
fn a_refusal_ends_the_request_that_it_names_and_those_before_it_have_arrived() {
    let mut end = requester();
    (0..3).for_each(|_| post(&mut end, WrOpcode::Send, 64));
    sent(&mut end, NOW);
    let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
    // One that was never sent.
    answer(&mut end, &Answer { at: NOW, psn: 13, syndrome, there: &[], trigger: (12, 0), delay: 0 });
    assert_eq!((end.statuses(), end.fx.count_of(Reason::UnexpectedResponse)), (vec![], 1));
    answer(&mut end, &Answer { at: NOW, psn: 11, syndrome, there: &[], trigger: (11, 0), delay: 0 });
    end.drain(NOW);
    assert_eq!(end.statuses(), [OK, WcStatus::RemAccessErr, WcStatus::WrFlushErr]);
}

#[test]
fn a_request_whose_memory_has_gone_fails_when_it_is_to_be_repeated() {
    let mut end = requester();
    let key = end.register(8192, crate::common::ALL_RIGHTS);
    let wqe = SendWqe { opcode: WrOpcode::RdmaWrite as u8, ..SendWqe::default() };
    end.post(&wqe, &[burst_shm::layout::Sge { addr: 0, length: 2 * MTU, lkey: key }]);
    assert_eq!(sent(&mut end, NOW).len(), 2);
    assert!(end.mem.remove(key).is_some());
    answer(&mut end, &Answer { at: NOW, psn: 9, syndrome: Syndrome::ACK, there: &[11], trigger: (11, 0), delay: 0 });
    assert_eq!(sent(&mut end, NOW), Vec::<String>::new());
    assert_eq!((end.statuses(), end.qp.state()), (vec![WcStatus::LocProtErr], QpState::Err));
    assert_eq!((end.fx.records.in_use(), end.qp.inflight_bytes()), (0, 0));
}

#[test]
fn the_family_changes_when_nothing_is_in_flight() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 64);
    assert_eq!(sent(&mut end, NOW), ["RcSrWriteOnly 10 xn0"]);
    end.qp.use_selective(0);
    post(&mut end, WrOpcode::RdmaWrite, 64);
    assert_eq!((sent(&mut end, NOW), end.qp.sends_selective()), (vec![], true), "the first is in flight");
    acknowledge(&mut end, NOW, 10);
    assert_eq!((sent(&mut end, NOW), end.qp.sends_selective()), (vec!["RcWriteOnly 11 xn0".to_owned()], false));
    end.qp.use_selective(WINDOW_PSNS);
    let head = HeadBuf::new(&Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(11)));
    end.receive_from(NOW, ip_of(1), head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).as_slice());
    post(&mut end, WrOpcode::RdmaWrite, 64);
    assert_eq!((sent(&mut end, NOW), end.qp.sends_selective()), (vec!["RcSrWriteOnly 12 xn0".to_owned()], true));
    assert_eq!(end.statuses(), [OK; 2]);
}

#[test]
fn an_early_write_that_leaves_its_region_writes_nothing_and_is_refused_in_its_turn() {
    let mut end = responder();
    let key = end.register(4096, crate::common::ALL_RIGHTS);
    let write = |end: &mut End, psn: u32, (addr, rkey): (u64, u32), len: usize| {
        let head = HeadBuf::new(&Bth::new(Opcode::RcSrWriteOnly, qpn_of(1), Psn::new(psn))).seth(Seth::default());
        let head = head.weth(Weth { addr, rkey: Rkey(rkey) });
        end.receive_from(NOW, ip_of(0), &[head.as_slice(), &vec![7; len]].concat());
    };
    for addr in [4096 - 512 + 4, 4096, u64::MAX - 4096] {
        write(&mut end, 11, (addr, key), 512);
    }
    assert_eq!((end.fx.count_of(Reason::SrUnplaced), end.fx.records.in_use()), (3, 0));
    let mut bytes = [0; 4096];
    let span = end.mem.local(crate::common::PD, burst_base::Lkey(key), 0, 4096, 0).expect("registered");
    span.read_to(&mut bytes).expect("mapped");
    assert_eq!(bytes, [0; 4096]);
    write(&mut end, 11, (4096 - 512, key), 512);
    assert_eq!(end.fx.count_of(Reason::SrEarly), 1);
    let own = end.lkey;
    write(&mut end, 10, (0, own), 64);
    write(&mut end, 12, (4096 - 508, key), 512);
    assert_eq!((end.qp.state(), end.qp.query().rq_psn.get()), (QpState::Err, 12));
}

#[test]
fn a_read_may_take_512_sequence_numbers_and_no_more() {
    let read = |len: u32| {
        let mut end = responder();
        let head = HeadBuf::new(&Bth::new(Opcode::RcSrReadRequest, qpn_of(1), Psn::new(10))).seth(Seth::default());
        let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len };
        end.receive_from(NOW, ip_of(0), head.reth(reth).as_slice());
        (end.fx.count_of(Reason::SrWindow), end.qp.query().rq_psn.get())
    };
    assert_eq!(read(513 * MTU), (1, 10));
    assert_eq!(read(1), (0, 11));
    assert_eq!(read(0), (0, 11), "no bytes are answered by one packet");
    assert_eq!(read(2 * MTU + 1), (0, 13));
}

#[test]
fn flushing_keeps_to_the_budget_of_a_turn() {
    let mut end = requester();
    (0..20).for_each(|_| post(&mut end, WrOpcode::Send, 64));
    for k in 0..10 {
        let sge = end.sge(0, 64);
        end.post_receive(k, &[sge]);
    }
    // Some are in flight, the others are still in the queue.
    end.poll(NOW, &mut TxBudget { wqes: 5, bytes: 1 << 20, window_bytes: 1 << 20 });
    end.tx.clear();
    end.move_to(QpState::Err);
    let mut ended = Vec::new();
    while end.qp.wants_tx() && ended.len() < 50 {
        end.poll(NOW, &mut TxBudget { wqes: 4, bytes: 1 << 20, window_bytes: 1 << 20 });
        ended.push(end.fx.sends.len() + end.fx.receives.len());
    }
    assert_eq!((end.statuses().len(), end.receive_statuses().len()), (20, 10));
    assert!(ended.iter().zip(&ended[1..]).all(|(before, after)| after - before <= 4), "{ended:?}");
}

/// IRN's time-outs begin with 320 us, in which a peer behind a queue cannot have answered. There are no probes.
#[test]
fn with_the_time_outs_of_irn_more_of_them_are_waited_for() {
    let fallen_back_after = |rto: RtoMode| {
        let mut end = requester();
        end.qp.set_rto(rto);
        post(&mut end, WrOpcode::RdmaWrite, 5 * MTU);
        sent(&mut end, NOW);
        for fired in 1..20 {
            let now = end.qp.next_deadline();
            end.fire(now);
            if end.fx.refused > 0 {
                let counts =
                    [Reason::SrProbe, Reason::SrTimeout, Reason::AckTimeout].map(|reason| end.fx.count_of(reason));
                return (fired, counts);
            }
            sent(&mut end, now);
        }
        panic!("{rto:?}: it never falls back")
    };
    assert_eq!(fallen_back_after(RtoMode::Shared), (4, [2, 2, 0]));
    assert_eq!(fallen_back_after(RtoMode::Irn), (7, [0, 6, 1]));
}

/// Its peer's queue pair may be gone: a whole flight in flight would keep the room of others on the path. One packet is sent, and
/// the rest at once when an answer comes.
#[test]
fn after_a_second_time_out_one_packet_waits_for_an_answer() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaWrite, 8 * MTU);
    assert_eq!(sent(&mut end, NOW).len(), 8);
    acknowledge(&mut end, NOW, FIRST - 1);
    let mut repeated = Vec::new();
    while repeated.len() < 3 {
        let (due, before) = (end.qp.next_deadline(), end.fx.count_of(Reason::SrTimeout));
        assert_ne!(due, Nanos::NEVER);
        end.fire(due);
        let count = sent(&mut end, due).len();
        if end.fx.count_of(Reason::SrTimeout) > before {
            repeated.push(count);
        }
    }
    assert_eq!(repeated, [8, 1, 1]);
    let now = end.qp.next_deadline() - Nanos(1);
    acknowledge(&mut end, now, FIRST);
    assert_eq!(sent(&mut end, now).len(), 7);
}
