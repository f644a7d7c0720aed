//! The requests in flight, their positions and the room of their rings.

use super::*;
use burst_base::fault;

const MTU: u32 = 1024;

fn recovery() -> Recovery {
    let mut recovery = Recovery::new();
    recovery.allocate(4, 8, 2).expect("memory");
    recovery.start(Psn::new(100));
    recovery
}

fn push(recovery: &mut Recovery, work: Work, packets: u32, length: u32) {
    let new =
        NewRequest { wqe: &SendWqe::default(), work, opcode: WrOpcode::Send, sq_index: 0, packets, length, fail: None };
    assert!(recovery.has_room() || recovery.grow());
    recovery.push(new);
}

/// The rings double while requests with entries are in flight; nothing of them changes, and a failing allocation changes
/// nothing.
#[test]
fn room_grows_with_the_requests_in_flight() {
    let mut r = Recovery::new();
    r.allocate(8, 13, 3).expect("memory");
    r.start(Psn::new(100));
    let entries = |tag: u32| (0..tag % 4).map(move |k| Sge { addr: u64::from(tag * 10 + k), length: 1, lkey: tag });
    let (mut tag, mut oldest) = (0, 0);
    for round in 0..40 {
        // Requests until no more fit, then some end.
        loop {
            if !r.has_room() {
                fault::arm(0);
                let grew = r.grow();
                assert!(!(grew && fault::disarm()), "without memory it does not grow");
                fault::disarm();
                if !r.has_room() && !r.grow() {
                    break;
                }
            }
            let sges: Vec<_> = entries(tag).collect();
            r.sge_places()[..sges.len()].copy_from_slice(&sges);
            let wqe = SendWqe { num_sge: sges.len() as u8, ..SendWqe::default() };
            let (work, opcode) = (Work::Write, WrOpcode::RdmaWrite);
            r.push(NewRequest { wqe: &wqe, work, opcode, sq_index: tag, packets: 1, length: 1, fail: None });
            tag += 1;
        }
        send_all(&mut r);
        let in_flight = tag - oldest;
        assert!((4..=8).contains(&in_flight), "{in_flight} of up to 8 requests, with 13 entries together");
        for _ in 0..1 + round % in_flight {
            let request = *r.oldest().expect("in flight");
            assert_eq!(request.sq_index, oldest);
            assert_eq!(r.sges_of(&request), entries(oldest).collect::<Vec<_>>());
            r.on_acked(1);
            r.retire_oldest();
            oldest += 1;
        }
    }
}

fn send_all(recovery: &mut Recovery) {
    while let Some(request) = recovery.next() {
        let packets = request.packets - recovery.next_packet();
        recovery.on_sent(packets);
        recovery.on_request_sent();
    }
}

#[test]
fn the_receives_that_requests_consume_are_counted() {
    for opcode in (0..32).filter_map(WrOpcode::from_number) {
        let mut r = recovery();
        let (wqe, work) = (&SendWqe::default(), Work::of(opcode));
        r.push(NewRequest { wqe, work, opcode, sq_index: 0, packets: 1, length: 8, fail: None });
        assert_eq!(r.next_rsn == 1, r.next().is_some_and(InflightWqe::takes_credit), "{opcode:?}");
    }
}

#[test]
fn positions_give_bytes_reads_and_psns() {
    let mut r = recovery();
    push(&mut r, Work::Write, 3, 2 * MTU + 5);
    push(&mut r, Work::Read, READ_CHUNK_BYTES / MTU + 1, READ_CHUNK_BYTES + 1);
    push(&mut r, Work::Atomic, 1, 8);
    assert_eq!((r.inflight_bytes(MTU), r.reads_outstanding(MTU), r.psn_distance()), (0, 0, 0));
    assert!(!r.is_outstanding());
    r.on_sent(2);
    assert_eq!((r.inflight_bytes(MTU), r.psn_distance()), (u64::from(2 * MTU), 2));
    r.on_sent(1);
    r.on_request_sent();
    r.on_sent(READ_CHUNK_BYTES / MTU);
    assert_eq!((r.reads_outstanding(MTU), r.next_packet()), (1, READ_CHUNK_BYTES / MTU));
    r.on_sent(1);
    assert_eq!(r.reads_outstanding(MTU), 2);
    r.on_request_sent();
    send_all(&mut r);
    assert_eq!(r.reads_outstanding(MTU), 3);
    let bytes = u64::from(2 * MTU + 5 + READ_CHUNK_BYTES + 1 + 8);
    assert_eq!((r.inflight_bytes(MTU), r.sent_psn()), (bytes, r.next_request_psn()));
    r.on_acked(1);
    assert_eq!((r.inflight_bytes(MTU), r.una_psn(), r.una_packet()), (bytes - u64::from(MTU), Psn::new(101), 1));
}

#[test]
fn going_back_repeats_from_the_oldest_unacknowledged_packet_and_forgets_nothing() {
    let mut r = recovery();
    push(&mut r, Work::Send, 3, 3 * MTU);
    push(&mut r, Work::Send, 1, 7);
    send_all(&mut r);
    r.on_acked(1);
    r.go_back();
    assert_eq!((r.next_packet(), r.psn_distance(), r.inflight_bytes(MTU)), (1, 0, 0));
    assert_eq!((r.sent_psn(), r.una_psn()), (Psn::new(104), Psn::new(101)));
    // The acknowledgement of a packet sent before: it is not sent a third time.
    r.on_acked(2);
    r.retire_oldest();
    r.sync_cursor();
    assert_eq!((r.next_packet(), r.next().map(|w| w.length)), (0, Some(7)));
    // A cursor in front of una within one request moves as well.
    let mut r = recovery();
    push(&mut r, Work::Send, 3, 3 * MTU);
    send_all(&mut r);
    r.go_back();
    r.on_acked(2);
    r.sync_cursor();
    assert_eq!(r.next_packet(), 2);
    // One that is not in front stays.
    r.on_sent(1);
    r.sync_cursor();
    assert_eq!(r.next_packet(), 3);
}

#[test]
fn an_implied_loss_goes_back_once_until_there_is_progress() {
    let mut r = recovery();
    assert!(!r.on_implied_loss(), "nothing is outstanding");
    push(&mut r, Work::Read, 1, 5);
    send_all(&mut r);
    assert!(r.on_implied_loss());
    r.go_back();
    send_all(&mut r);
    assert!(!r.on_implied_loss(), "repeated");
    r.rearm_implied_loss();
    assert!(r.on_implied_loss());
}

#[test]
fn room_ends_with_the_ring_and_comes_back_with_retired_requests() {
    let mut r = recovery();
    for _ in 0..4 {
        assert!(r.has_room() || r.grow());
        push(&mut r, Work::Send, 1, 1);
    }
    assert!(!r.has_room() && !r.grow());
    send_all(&mut r);
    r.retire_oldest();
    assert!(r.has_room());
    assert_eq!(r.oldest().map(|w| w.ssn), Some(2));
}

#[test]
fn message_numbers_count_read_pieces_and_skip_local_operations() {
    let mut r = recovery();
    push(&mut r, Work::Read, READ_CHUNK_BYTES / MTU * 2, 2 * READ_CHUNK_BYTES);
    push(&mut r, Work::Local, 0, 0);
    push(&mut r, Work::Send, 1, 0);
    push(&mut r, Work::Send, 1, 0);
    let ssn: Vec<u32> = (0..4).map(|k| r.wqes.get(k).ssn).collect();
    assert_eq!(ssn, [1, 3, 3, 4]);
}
