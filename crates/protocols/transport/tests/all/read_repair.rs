//! Lost READ responses: what arrived behind a gap is kept, only what is missing is requested again, and nothing completes early.
use crate::common::{End, LinkFaults, Pair, Setup, describe, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpAttr, QpState, WcStatus, WrOpcode, access, send_flags};
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_shm::layout::{SendWqe, Sge};
use burst_transport::{READ_CHUNK_BYTES, Signal};
use burst_wire::{Aeth, AtomicAckEth, Bth, HeadBuf, Opcode, Packet, Reth, Syndrome};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const OK: WcStatus = WcStatus::Success;

fn requester() -> End {
    let setup = Setup { memory: 4 << 20, ..Setup::default() };
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    end
}

fn post(end: &mut End, opcode: WrOpcode, wr_id: u64, at: u64, len: u32) {
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { wr_id, opcode: opcode as u8, flags, rkey: 9, remote_addr: at, ..SendWqe::default() };
    let sges = [end.sge(at, len)];
    end.post(&wqe, &sges);
}

/// READ requests and others that are sent now: PSN and packets of a READ, PSN and 0 of others.
fn asked(end: &mut End, now: Nanos) -> Vec<(u32, u32)> {
    let what = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).expect("well-formed");
        (packet.bth.psn.get(), packet.reth().map_or(0, |reth| reth.len.div_ceil(MTU)))
    };
    end.drain(now).iter().map(what).collect()
}

/// The response packet of this PSN: each of its bytes is the PSN's last.
fn response(end: &mut End, psn: u32) {
    let head = HeadBuf::new(&Bth::new(Opcode::RcReadResponseMiddle, qpn_of(0), Psn::new(psn)));
    let bytes = [head.as_slice(), &[psn as u8; MTU as usize]].concat();
    end.receive_from(NOW, ip_of(1), &bytes);
}

/// Whether the memory of packets `psns` holds their responses; the READ of PSN 100 begins at address 0.
fn holds(end: &End, psns: std::ops::Range<u32>) -> bool {
    psns.into_iter()
        .all(|psn| end.memory(u64::from(psn - 100) * u64::from(MTU), MTU as usize) == [psn as u8; MTU as usize])
}

#[test]
fn only_missing_ranges_are_requested_again() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 10 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 10)]);
    for psn in [100, 103, 104, 106, 108] {
        response(&mut end, psn);
    }
    assert_eq!(asked(&mut end, NOW), [(101, 2), (105, 1), (107, 1)]);
    // Nothing is asked for twice, and one loss is reported.
    response(&mut end, 109);
    assert_eq!(asked(&mut end, NOW), []);
    assert_eq!((end.fx.count_of(Reason::ImpliedNak), &end.fx.signals[..]), (1, &[Signal::Loss][..]));
    assert_eq!(end.fx.count_of(Reason::ReadRepaired), 3);
    for psn in [105, 101, 107] {
        response(&mut end, psn);
        assert_eq!(end.statuses(), [], "102 is missing");
    }
    response(&mut end, 102);
    assert_eq!(end.statuses(), [OK]);
    assert!(holds(&end, 100..110));
    assert_eq!((end.qp.inflight_bytes(), end.qp.next_deadline()), (0, Nanos::NEVER));
}

/// The notes of responses behind a gap are allocated at the first gap. Without memory the READ goes back to the gap.
#[cfg(debug_assertions)]
#[test]
fn without_memory_for_notes_everything_behind_the_gap_is_requested_again() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 4)]);
    burst_base::fault::arm(0);
    response(&mut end, 102);
    assert!(burst_base::fault::disarm(), "the notes are not reserved before a gap");
    assert_eq!(asked(&mut end, NOW), [(100, 4)]);
    // There is memory again: the next gap is repaired by its range.
    for psn in [100, 102, 103] {
        response(&mut end, psn);
    }
    assert_eq!(asked(&mut end, NOW), [(101, 1)]);
    response(&mut end, 101);
    assert_eq!(end.statuses(), [OK]);
    assert!(holds(&end, 100..104));
}

#[test]
fn a_lost_end_of_one_read_does_not_repeat_the_next() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    post(&mut end, WrOpcode::RdmaWrite, 2, 4 * u64::from(MTU), MTU);
    post(&mut end, WrOpcode::RdmaRead, 3, 5 * u64::from(MTU), 3 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 4), (104, 1), (105, 3)]);
    for psn in [100, 101, 105, 106, 107] {
        response(&mut end, psn);
    }
    assert_eq!(asked(&mut end, NOW), [(102, 2)]);
    response(&mut end, 102);
    assert_eq!(end.statuses(), []);
    // The last missing packet ends all three: the response to the second READ shows that the WRITE was executed.
    response(&mut end, 103);
    assert_eq!(end.statuses(), [OK; 3]);
    let order: Vec<u64> = end.fx.sends.iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(order, [1, 2, 3]);
    assert!(holds(&end, 100..104) && holds(&end, 105..108));
}

#[test]
fn a_lost_response_without_bytes_is_requested_again_by_itself() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 0);
    post(&mut end, WrOpcode::RdmaRead, 2, u64::from(MTU), 2 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 0), (101, 2)]);
    response(&mut end, 101);
    assert_eq!(asked(&mut end, NOW), [(100, 0)]);
    assert_eq!(end.fx.count_of(Reason::ReadRepaired), 1);
}

#[test]
fn a_lost_repair_is_asked_for_again_when_a_later_request_is_answered() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 3 * MTU);
    asked(&mut end, NOW);
    response(&mut end, 100);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(101, 1)]);
    post(&mut end, WrOpcode::RdmaRead, 2, 3 * u64::from(MTU), 2 * MTU);
    assert_eq!(asked(&mut end, NOW), [(103, 2)]);
    response(&mut end, 103);
    assert_eq!(asked(&mut end, NOW), [(101, 1)], "the repair came before this request");
    response(&mut end, 104);
    assert_eq!(asked(&mut end, NOW), []);
    response(&mut end, 101);
    assert_eq!(end.statuses(), [OK; 2]);
    assert!(holds(&end, 100..105));
}

#[test]
fn a_range_ends_with_the_piece_that_the_peer_keeps() {
    let mut end = requester();
    let piece = READ_CHUNK_BYTES / MTU;
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 2 * READ_CHUNK_BYTES);
    assert_eq!(asked(&mut end, NOW), [(100, piece), (100 + piece, piece)]);
    response(&mut end, 100);
    response(&mut end, 100 + piece + 2);
    assert_eq!(asked(&mut end, NOW), [(101, piece - 1), (100 + piece, 2)]);
    (101..100 + 2 * piece).for_each(|psn| response(&mut end, psn));
    assert_eq!(end.statuses(), [OK]);
    assert!(holds(&end, 100..100 + 2 * piece));
}

/// A peer that has lost the request of a piece executes its repair as a new READ. What is asked for again later must be a part of
/// it, so the repair is of the whole piece, or waits.
#[test]
fn a_time_out_requests_no_part_of_a_piece_that_reaches_beyond_the_notes() {
    let attr = QpAttr { max_rd_atomic: 32, ..Setup::default().attr };
    let setup = Setup { memory: 4 << 20, attr, window: 4 << 20, ..Setup::default() };
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    let piece = READ_CHUNK_BYTES / MTU;
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 64 * MTU);
    post(&mut end, WrOpcode::RdmaRead, 2, 64 * u64::from(MTU), 17 * READ_CHUNK_BYTES);
    let all: Vec<_> = [(100, 64)].into_iter().chain((0..17).map(|k| (164 + k * piece, piece))).collect();
    assert_eq!(asked(&mut end, NOW), all);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    let late = end.qp.next_deadline();
    end.fire(late);
    // 2,048 responses may be noted, from 100 on: the last piece but one would reach beyond.
    let whole = all[1..16].iter().copied();
    assert_eq!(asked(&mut end, late), [(100, 2), (103, 61)].into_iter().chain(whole).collect::<Vec<_>>());
}

#[test]
fn a_time_out_requests_all_that_is_missing() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 6 * MTU);
    asked(&mut end, NOW);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    let late = end.qp.next_deadline();
    end.fire(late);
    assert_eq!(end.fx.count_of(Reason::AckTimeout), 1);
    assert_eq!(asked(&mut end, late), [(100, 2), (103, 3)], "the lost end as well");
    for psn in [103, 104, 105, 100, 101] {
        response(&mut end, psn);
    }
    assert_eq!(end.statuses(), [OK]);
    assert!(holds(&end, 100..106));
}

#[test]
fn a_time_out_with_other_requests_in_flight_goes_back_and_forgets_what_was_ahead() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    post(&mut end, WrOpcode::Send, 2, 0, 4);
    asked(&mut end, NOW);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    let late = end.qp.next_deadline();
    end.fire(late);
    assert_eq!(asked(&mut end, late), [(100, 4), (104, 0)]);
    (100..104).for_each(|psn| response(&mut end, psn));
    assert_eq!(end.statuses(), [OK]);
    assert!(holds(&end, 100..104));
}

#[test]
fn a_repair_that_is_never_answered_ends_with_the_retries() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    asked(&mut end, NOW);
    response(&mut end, 102);
    for _ in 0..20 {
        let now = end.qp.next_deadline().min(Nanos::from_ms(60_000));
        end.drain(now);
        end.fire(end.qp.next_deadline());
    }
    assert_eq!(end.statuses(), [WcStatus::RetryExcErr]);
}

#[test]
fn an_unanswered_atomic_in_between_is_repeated_by_going_back() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 2 * MTU);
    post(&mut end, WrOpcode::AtomicFetchAndAdd, 2, 4096, 8);
    post(&mut end, WrOpcode::RdmaRead, 3, 3 * u64::from(MTU), 2 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 2), (102, 0), (103, 2)]);
    response(&mut end, 100);
    response(&mut end, 103);
    assert_eq!(asked(&mut end, NOW), [(101, 1), (102, 0), (103, 2)]);
    response(&mut end, 101);
    let atomic = HeadBuf::new(&Bth::new(Opcode::RcAtomicAck, qpn_of(0), Psn::new(102)))
        .aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 })
        .atomic_ack(AtomicAckEth { original: 7 });
    end.receive_from(NOW, ip_of(1), atomic.as_slice());
    response(&mut end, 103);
    response(&mut end, 104);
    assert_eq!(end.statuses(), [OK; 3]);
}

/// The same addresses by two keys: here they are other bytes; they could be the same, which must come in order.
#[test]
fn responses_into_addresses_of_a_read_before_them_by_another_key_wait_for_it() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 2 * MTU);
    let lkey = end.register(4 * MTU as usize, access::LOCAL_WRITE);
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { wr_id: 2, opcode: WrOpcode::RdmaRead as u8, flags, rkey: 9, ..SendWqe::default() };
    end.post(&wqe, &[Sge { addr: u64::from(MTU), length: MTU, lkey }]);
    assert_eq!(asked(&mut end, NOW), [(100, 2), (102, 1)]);
    response(&mut end, 100);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(101, 1), (102, 1)], "both again");
    response(&mut end, 101);
    response(&mut end, 102);
    assert_eq!(end.statuses(), [OK; 2]);
    assert!(holds(&end, 100..102));
    end.lkey = lkey;
    assert_eq!(end.memory(u64::from(MTU), MTU as usize), [102; MTU as usize]);
}

#[test]
fn responses_of_a_read_that_writes_twice_to_the_same_memory_are_placed_in_order() {
    // The later entry wins.
    let mut end = requester();
    let sges = [end.sge(0, MTU), end.sge(0, MTU)];
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { wr_id: 1, opcode: WrOpcode::RdmaRead as u8, flags, rkey: 9, ..SendWqe::default() };
    end.post(&wqe, &sges);
    asked(&mut end, NOW);
    response(&mut end, 101);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    response(&mut end, 100);
    response(&mut end, 101);
    assert_eq!((end.statuses(), end.memory(0, MTU as usize)), (vec![OK], vec![101; MTU as usize]));
}

#[test]
fn duplicates_and_wrong_lengths_ahead_change_nothing() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    asked(&mut end, NOW);
    response(&mut end, 102);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    assert_eq!(end.fx.count_of(Reason::UnexpectedResponse), 1);
    // A response that is too short is no part of the READ: an implied NAK, as without the record.
    let head = HeadBuf::new(&Bth::new(Opcode::RcReadResponseMiddle, qpn_of(0), Psn::new(103)));
    end.receive_from(NOW, ip_of(1), &[head.as_slice(), &[0; 64]].concat());
    assert_eq!(asked(&mut end, NOW), [(100, 4)]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn an_error_with_responses_ahead_flushes_everything() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    post(&mut end, WrOpcode::RdmaRead, 2, 0, MTU);
    asked(&mut end, NOW);
    response(&mut end, 102);
    let nak = HeadBuf::new(&Bth::new(Opcode::RcAck, qpn_of(0), Psn::new(100)))
        .aeth(Aeth { syndrome: Syndrome::from_byte(0x62), msn: 0 });
    end.receive_from(NOW, ip_of(1), nak.as_slice());
    assert_eq!(asked(&mut end, NOW), []);
    assert_eq!(end.statuses(), [WcStatus::RemAccessErr, WcStatus::WrFlushErr]);
}

#[test]
fn a_part_asked_for_while_the_response_is_sent_does_not_take_it_back() {
    let setup = Setup::default();
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let read = |end: &End, psn: u32, packets: u32| {
        let addr = u64::from(psn - 100) * u64::from(MTU);
        let reth = Reth { addr, rkey: Rkey(end.lkey), len: packets * MTU };
        HeadBuf::new(&Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(psn))).reth(reth).as_slice().to_vec()
    };
    // One turn of four packets, and the names of what it sends.
    let turn = |end: &mut End| -> Vec<String> {
        end.poll(NOW, &mut burst_transport::TxBudget { wqes: 8, bytes: u64::from(4 * MTU), window_bytes: 1 << 20 });
        let mut bytes = Vec::new();
        let frames = end.tx.frames().iter();
        let names = frames.map(|frame| {
            crate::common::frame_bytes(&end.tx, frame, &mut bytes);
            describe(&bytes).replace("RcReadResponse", "")
        });
        let names = names.collect();
        end.tx.clear();
        names
    };
    let whole = read(&end, 100, 10);
    end.receive_from(NOW, ip_of(0), &whole);
    assert_eq!(turn(&mut end), ["First 100", "Middle 101", "Middle 102", "Middle 103"]);
    let part = read(&end, 101, 1);
    end.receive_from(NOW, ip_of(0), &part);
    assert_eq!(turn(&mut end), ["Only 101", "Middle 104", "Middle 105", "Middle 106"]);
    // Two parts before the next turn are sent each by itself, in the order of their PSNs.
    for (psn, packets) in [(103, 1), (100, 2)] {
        let part = read(&end, psn, packets);
        end.receive_from(NOW, ip_of(0), &part);
    }
    assert_eq!(turn(&mut end), ["First 100", "Last 101", "Only 103", "Middle 107"]);
    assert_eq!(turn(&mut end), ["Middle 108", "Last 109"]);
    // A part that reaches the end takes the response back, as a requester that goes back expects.
    end.receive_from(NOW, ip_of(0), &whole);
    turn(&mut end);
    let rest = read(&end, 102, 8);
    end.receive_from(NOW, ip_of(0), &rest);
    assert_eq!(turn(&mut end), ["First 102", "Middle 103", "Middle 104", "Middle 105"]);
    assert_eq!(turn(&mut end), ["Middle 106", "Middle 107", "Middle 108", "Last 109"]);
    assert_eq!(turn(&mut end), [""; 0]);
}

/// A READ of 1 MiB over a link that loses packets: what is sent beyond the READ itself is little more than what was lost.
#[test]
fn a_long_read_under_loss_repeats_little_more_than_what_was_lost() {
    let (mut lost, mut sent) = (0, 0);
    for seed in 0..20 {
        let setup = Setup { memory: 2 << 20, ..Setup::default() };
        let mut pair = Pair::new(&setup, seed, LinkFaults { loss: 100, ..LinkFaults::default() });
        let len = 1 << 20;
        pair.ends[1].write_memory(0, &(0..len).map(|i| (i / 7) as u8).collect::<Vec<u8>>());
        let rkey = pair.ends[1].lkey;
        let sges = [pair.ends[0].sge(0, len)];
        let flags = send_flags::SIGNALED as u16;
        let wqe = SendWqe { wr_id: 1, opcode: WrOpcode::RdmaRead as u8, flags, rkey, ..SendWqe::default() };
        pair.ends[0].post(&wqe, &sges);
        pair.settle();
        assert_eq!(pair.ends[0].statuses(), [OK], "seed {seed}");
        assert_eq!(pair.ends[0].memory(0, len as usize), pair.ends[1].memory(0, len as usize), "seed {seed}");
        lost += pair.link.lost;
        sent += pair.link.sent;
    }
    let needed = 20 * u64::from((1 << 20) / MTU + (1 << 20) / READ_CHUNK_BYTES);
    println!("{needed} packets needed, {lost} lost, {} sent beyond them", sent - needed);
    assert!(sent - needed < 4 * lost, "{lost} lost, {} sent beyond the {needed} needed", sent - needed);
}

/// READs in flight that write to the same memory: the later wins, in whatever order the responses come.
#[test]
fn a_repair_does_not_overwrite_what_a_later_read_has_brought() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 4 * MTU);
    post(&mut end, WrOpcode::RdmaRead, 2, 0, 4 * MTU);
    assert_eq!(asked(&mut end, NOW), [(100, 4), (104, 4)]);
    for psn in [100, 103, 105, 106] {
        response(&mut end, psn);
    }
    assert_eq!(asked(&mut end, NOW), [(101, 2), (104, 1)], "nothing was dropped");
    response(&mut end, 101);
    response(&mut end, 102);
    assert_eq!(end.statuses(), [OK]);
    let bytes = |end: &End| (0..4).map(|k| end.memory(k * u64::from(MTU), 1)[0]).collect::<Vec<_>>();
    assert_eq!(bytes(&end), [100, 105, 106, 103]);
    response(&mut end, 104);
    response(&mut end, 107);
    assert_eq!((end.statuses(), bytes(&end)), (vec![OK; 2], vec![104, 105, 106, 107]));
}

/// Byte `at` of a response.
fn pattern(psn: u32, at: usize) -> u8 {
    (psn as usize * 31 + at * 7 + at / 256) as u8
}

#[test]
fn reads_into_shared_memory_end_as_if_their_responses_had_come_in_order() {
    let mut placed_ahead = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut end = requester();
        let (mut psn, mut reads, mut expected) = (100, Vec::new(), vec![0; 16 * MTU as usize]);
        for wr_id in 0..6 {
            let entries: Vec<(u64, u32)> =
                (0..1 + rng.below(3)).map(|_| (rng.below(12 * u64::from(MTU)), rng.below(2500) as u32)).collect();
            let len: u32 = entries.iter().map(|entry| entry.1).sum();
            let sges: Vec<_> = entries.iter().map(|&(addr, len)| end.sge(addr, len)).collect();
            let wqe = SendWqe {
                wr_id,
                opcode: WrOpcode::RdmaRead as u8,
                flags: send_flags::SIGNALED as u16,
                rkey: 9,
                ..SendWqe::default()
            };
            end.post(&wqe, &sges);
            let places = entries.iter().flat_map(|&(addr, len)| addr..addr + u64::from(len));
            for (k, addr) in places.enumerate() {
                expected[addr as usize] = pattern(psn + k as u32 / MTU, k % MTU as usize);
            }
            reads.push((psn, len));
            psn += len.div_ceil(MTU).max(1);
        }
        let packets = |psn: u32, count: u32| (psn..psn + count.max(1)).collect::<Vec<u32>>();
        let (mut waiting, mut now) = (Vec::new(), NOW);
        while end.statuses().len() < 6 {
            waiting.extend(asked(&mut end, now).iter().flat_map(|&(psn, count)| packets(psn, count)));
            if waiting.is_empty() {
                now = end.qp.next_deadline();
                assert_ne!(now, Nanos::NEVER, "seed {seed}: nothing is asked for");
                end.fire(now);
            }
            let Some(psn) =
                (!waiting.is_empty()).then(|| waiting.swap_remove(rng.below(waiting.len() as u64) as usize))
            else {
                continue;
            };
            let &(first, len) = reads.iter().rev().find(|read| read.0 <= psn).expect("a READ");
            let payload: Vec<u8> =
                (0..(len - (psn - first) * MTU).min(MTU) as usize).map(|at| pattern(psn, at)).collect();
            let pad = (4 - payload.len() % 4) % 4;
            let bth = Bth { pad: pad as u8, ..Bth::new(Opcode::RcReadResponseMiddle, qpn_of(0), Psn::new(psn)) };
            let head = HeadBuf::new(&bth);
            end.receive_from(now, ip_of(1), &[head.as_slice(), &payload, &vec![0; pad]].concat());
        }
        assert_eq!(end.statuses(), [OK; 6], "seed {seed}");
        assert!(end.memory(0, expected.len()) == expected, "seed {seed}: wrong bytes");
        placed_ahead += end.fx.count_of(Reason::ReadRepaired);
    }
    assert!(placed_ahead > 300, "{placed_ahead}");
}

/// An entry without bytes, at an address where a response is written late.
#[test]
fn entries_without_bytes_do_not_stop_a_repair() {
    let mut end = requester();
    post(&mut end, WrOpcode::RdmaRead, 1, 0, 2 * MTU);
    let sges = [end.sge(0, 0), end.sge(u64::from(MTU) / 2, 0), end.sge(u64::from(MTU), MTU)];
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { wr_id: 2, opcode: WrOpcode::RdmaRead as u8, flags, rkey: 9, ..SendWqe::default() };
    end.post(&wqe, &sges);
    assert_eq!(asked(&mut end, NOW), [(100, 2), (102, 1)]);
    response(&mut end, 102);
    assert_eq!(asked(&mut end, NOW), [(100, 2)]);
    response(&mut end, 100);
    response(&mut end, 101);
    assert_eq!(end.statuses(), [OK; 2]);
    assert!(holds(&end, 100..101));
    assert_eq!(end.memory(u64::from(MTU), MTU as usize), [102; MTU as usize], "the later READ wins");
}

/// The comparison with READs that share memory is bounded: a response to one too many requests further on waits its turn.
#[test]
fn few_reads_of_one_buffer_are_placed_out_of_order_at_a_time() {
    let setup = Setup { memory: 4 << 20, ..Setup::default() };
    let attr = QpAttr { max_rd_atomic: 32, ..setup.attr };
    let setup = Setup { attr, ..setup };
    let mut end = End::new(0, &setup);
    end.bring_up(1, &setup, QpState::Rts);
    (0..20).for_each(|k| post(&mut end, WrOpcode::RdmaRead, k, 0, MTU));
    assert_eq!(asked(&mut end, NOW).len(), 20);
    (101..117).for_each(|psn| response(&mut end, psn));
    assert_eq!(asked(&mut end, NOW), [(100, 1)], "all were placed");
    response(&mut end, 117);
    assert_eq!(asked(&mut end, NOW), (100..120).map(|psn| (psn, 1)).collect::<Vec<_>>(), "goes back");
    (100..120).for_each(|psn| response(&mut end, psn));
    assert_eq!((end.statuses(), end.memory(0, 1)), (vec![OK; 20], vec![119]));
}
