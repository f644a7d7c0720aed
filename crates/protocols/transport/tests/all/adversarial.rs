//! Selective repeat against schedules that chance does not find soon: each packet of a flight lost, and each pair, whatever the
//! packets are (requests, responses, acknowledgements, repetitions); windows turned round; packets that come again; records that
//! are missing; queue pairs and peers that end in recovery; clocks that jump.
use crate::common::{LinkFaults, Pair, Setup, ip_of};
use burst_base::verbs::{Mtu, QpAttr, QpCap, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Reason};
use burst_shm::layout::SendWqe;
use burst_shm::rq::RqProducer;
use burst_transport::{RecordPool, WINDOW_PSNS};
use burst_wire::{Opcode, Packet};
use std::cell::RefCell;
use std::rc::Rc;

const MTU: u32 = 1024;
const OK: u8 = WcStatus::Success as u8;
/// Where the requester has the results of READs and ATOMICs, and the target of WRITEs and receives at the peer.
const RESULTS: u64 = 32 << 10;
const TARGET: u64 = 32 << 10;
const RECEIVES: u64 = 48 << 10;
const MEMORY: usize = 64 << 10;

/// What the ends are, and the records that each has.
#[derive(Clone, Copy)]
struct Kind {
    xrc: bool,
    read_acks: bool,
    records: usize,
    /// Window of bytes, so that responses wait for acknowledgements.
    window: u64,
}

fn setup(kind: Kind) -> Setup {
    let base = Setup::default();
    let psn = Psn::new(0xff_fff8);
    // 67 ms: the fast timers repair, and the program's retries are not used up.
    let attr = QpAttr { rq_psn: psn, sq_psn: psn, timeout: 14, retry_cnt: 7, ..base.attr };
    let Kind { read_acks, window, .. } = kind;
    Setup { selective: WINDOW_PSNS, read_acks, window, memory: MEMORY, attr, ..base }
}

/// A pair whose end 0 has posted a flight of requests of all kinds: twelve PSNs.
struct Flight {
    pair: Pair,
    records: usize,
    _queue: Option<RqProducer>,
}

impl Flight {
    fn new(kind: Kind) -> Flight {
        let setup = setup(kind);
        let make = if kind.xrc { Pair::xrc } else { Pair::new };
        let mut pair = make(&setup, 1, LinkFaults::default());
        for end in &mut pair.ends {
            end.fx.records = RecordPool::new(kind.records);
        }
        let pattern: Vec<u8> = (0..16 << 10).map(|i: u32| (i * 7 + i / 251) as u8).collect();
        pair.ends[0].write_memory(0, &pattern);
        pair.ends[1].write_memory(0, &pattern[..8192]);
        let mut queue = kind.xrc.then(|| crate::common::xrc_queue(&mut pair.ends[1], 1, crate::common::PD, (8, 1)));
        for k in 0..3 {
            let sge = pair.ends[1].sge(RECEIVES + k * 4096, 4096);
            match &mut queue {
                Some(queue) => {
                    queue.write(k, &[sge]).expect("room");
                    let _ = queue.post();
                }
                None => pair.ends[1].post_receive(k, &[sge]),
            }
        }
        let mut flight = Flight { pair, records: kind.records, _queue: queue };
        flight.post_all();
        flight
    }

    fn post(&mut self, wr_id: u64, wqe: SendWqe, (addr, len): (u64, u32)) {
        let (flags, rkey) = (wqe.flags | send_flags::SIGNALED as u16, self.pair.ends[1].lkey);
        let sge = self.pair.ends[0].sge(addr, len);
        self.pair.ends[0].post(&SendWqe { wr_id, flags, rkey, remote_qpn: 1, ..wqe }, &[sge]);
    }

    fn post_all(&mut self) {
        let wqe = |opcode: WrOpcode, remote_addr| SendWqe { opcode: opcode as u8, remote_addr, ..SendWqe::default() };
        self.post(0, wqe(WrOpcode::RdmaWrite, TARGET), (0, 2 * MTU + 500));
        self.post(1, wqe(WrOpcode::Send, 0), (1024, MTU + 8));
        self.post(2, wqe(WrOpcode::RdmaRead, 0), (RESULTS, 2 * MTU + 100));
        let add = SendWqe { compare_add: 5, ..wqe(WrOpcode::AtomicFetchAndAdd, TARGET + 8192) };
        self.post(3, add, (RESULTS + 8192, 8));
        // The same bytes as the first WRITE: the later wins. Fenced, because an ATOMIC behind it is not.
        self.post(4, wqe(WrOpcode::RdmaWriteWithImm, TARGET), (4096, 300));
        self.post(5, wqe(WrOpcode::Send, 0), (5000, 64));
        let again = SendWqe { flags: send_flags::FENCE as u16, ..add };
        self.post(6, again, (RESULTS + 8200, 8));
    }

    /// All has ended as it must, whatever happened in between.
    fn check(&self, what: &str) {
        let [a, b] = &self.pair.ends;
        let sends: Vec<_> = a.fx.sends.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
        assert_eq!(sends, (0..7).map(|k| (k, OK)).collect::<Vec<_>>(), "{what}");
        let mut received: Vec<_> = b.fx.receives.iter().map(|(cqe, _)| (cqe.byte_len, cqe.status)).collect();
        assert_eq!(received, [(MTU + 8, OK), (300, OK), (64, OK)], "{what}");
        received.clear();
        let from = |addr: u64, len: usize| a.memory(addr, len);
        assert!(b.memory(TARGET, 300) == from(4096, 300), "{what}: the later WRITE wins");
        assert!(b.memory(TARGET + 300, 2248) == from(300, 2248), "{what}: the rest of the first WRITE");
        let places: Vec<u64> = b.fx.receives.iter().map(|(cqe, _)| RECEIVES + cqe.wr_id * 4096).collect();
        assert!(b.memory(places[0], MTU as usize + 8) == from(1024, MTU as usize + 8), "{what}: first message");
        assert!(b.memory(places[2], 64) == from(5000, 64), "{what}: last message");
        assert!(a.memory(RESULTS, 2148) == b.memory(0, 2148), "{what}: READ");
        let results = [8192, 8200].map(|at| u64::from_ne_bytes(a.memory(RESULTS + at, 8).try_into().expect("8")));
        assert_eq!(results, [0, 5], "{what}: ATOMICs are executed once");
        for end in &self.pair.ends {
            assert_eq!((end.fx.records.in_use(), end.qp.inflight_bytes()), (0, 0), "{what}");
            assert_eq!(end.qp.next_deadline(), Nanos::NEVER, "{what}: a timer without anything outstanding");
        }
        self.check_acked(what);
    }
}

impl Flight {
    /// Each byte counts as acknowledged once, however often it was lost or sent; READs at the end that asked. Who goes back to
    /// the first missing packet may hear of bytes that it has not sent again yet, and counts less. The packet behind an ATOMIC
    /// is in question again when the answer comes, and counts twice if it was reported before.
    fn check_acked(&self, what: &str) {
        let [a, b] = &self.pair.ends;
        let lengths = [2 * MTU + 500, MTU + 8, 2 * MTU + 100, 8, 300, 64, 8];
        let all: u64 = lengths.iter().map(|len| u64::from(*len)).sum();
        match self.records {
            0 => assert!(a.acked_bytes <= all, "{what}: {} of {all} bytes", a.acked_bytes),
            _ => assert!((all..=all + 300).contains(&a.acked_bytes), "{what}: {} of {all} bytes", a.acked_bytes),
        }
        assert!(b.acked_bytes <= u64::from(lengths[2]), "{what}: {} bytes of responses", b.acked_bytes);
    }
}

const KINDS: [Kind; 5] = [
    Kind { xrc: false, read_acks: false, records: 4, window: 1 << 20 },
    Kind { xrc: false, read_acks: true, records: 4, window: 1 << 20 },
    Kind { xrc: false, read_acks: true, records: 4, window: 2048 },
    Kind { xrc: true, read_acks: true, records: 4, window: 1 << 20 },
    Kind { xrc: false, read_acks: true, records: 1, window: 1 << 20 },
];

/// Plays a flight of which the packets with these numbers are lost; returns how many packets were sent.
fn lose(kind: Kind, lost: &[u64]) -> u64 {
    let mut flight = Flight::new(kind);
    let numbers = lost.to_vec();
    flight.pair.link.drops = Some(Box::new(move |number, _, _| numbers.contains(&number)));
    flight.pair.settle();
    flight.check(&format!("xrc {} lost {lost:?}", kind.xrc));
    if lost.len() <= 2 {
        let used = flight.pair.ends[0].fx.count_of(Reason::AckTimeout);
        assert_eq!(used, 0, "lost {lost:?}: a retry of the program is used up");
        assert!(flight.pair.now < Nanos::from_ms(60), "lost {lost:?}: {:?}", flight.pair.now);
        // The path keeps the order: without a time-out only what was lost is sent again.
        let end = &flight.pair.ends[0].fx;
        if end.count_of(Reason::SrTimeout) == 0 && kind.records > 1 {
            assert!(end.count_of(Reason::SrRepeated) <= lost.len() as u32, "lost {lost:?}");
        }
    }
    flight.pair.link.sent
}

#[test]
fn each_packet_of_a_flight_is_lost_and_each_pair_of_packets() {
    for kind in KINDS {
        let all = lose(kind, &[]);
        assert!((12..40).contains(&all), "{all} packets");
        // Repetitions, and acknowledgements of these, have numbers behind those of the flight.
        for first in 0..all {
            let sent = lose(kind, &[first]);
            (first + 1..sent).for_each(|second| {
                lose(kind, &[first, second]);
            });
        }
    }
}

#[test]
fn the_last_packets_the_first_ones_or_each_packet_once_are_lost() {
    for kind in KINDS {
        let all = lose(kind, &[]);
        for count in 1..=all {
            lose(kind, &(0..count).collect::<Vec<_>>());
            lose(kind, &(all - count..all).collect::<Vec<_>>());
        }
        lose(kind, &(0..all).step_by(2).collect::<Vec<_>>());
        lose(kind, &(1..all).step_by(2).collect::<Vec<_>>());
    }
}

/// The peer is taken for one that does not know the family while it holds packets and receives for what comes in front of them.
#[test]
fn records_of_a_family_that_is_given_up_are_given_back() {
    for kind in KINDS.into_iter().filter(|kind| kind.window > 4096) {
        let mut flight = Flight::new(kind);
        let first = setup(kind).attr.sq_psn;
        flight.pair.link.drops = Some(Box::new(move |_, to, bytes| {
            let packet = Packet::parse(bytes).expect("well-formed");
            packet.info.service.is_selective() && (to == 0 || packet.bth.psn == first.next())
        }));
        flight.pair.settle();
        let [a, b] = &flight.pair.ends;
        assert_eq!(a.fx.refused, 1, "the family is given up");
        assert!(b.fx.count_of(Reason::SrEarly) > 4, "{:?}", b.fx.reasons());
        flight.check("refused");
    }
}

/// Loses the first `count` packets with an opcode of these.
fn lose_kind(kind: Kind, count: usize, is_lost: fn(Opcode) -> bool) {
    let mut flight = Flight::new(kind);
    let mut left = count;
    flight.pair.link.drops = Some(Box::new(move |_, _, bytes| {
        let hit = left > 0 && is_lost(Packet::parse(bytes).expect("well-formed").bth.opcode);
        left -= usize::from(hit);
        hit
    }));
    flight.pair.settle();
    flight.check(&format!("xrc {} lost {count}", kind.xrc));
}

#[test]
fn acknowledgements_responses_and_requests_of_one_kind_are_lost_again_and_again() {
    use burst_wire::OpKind::{Ack, AtomicAck, FetchAdd, ReadAck, ReadRequest, ReadResponse};
    for kind in KINDS {
        for count in 1..8 {
            lose_kind(kind, count, |opcode| opcode.kind() == Ack);
            lose_kind(kind, count, |opcode| opcode.kind() == AtomicAck);
            lose_kind(kind, count, |opcode| opcode.kind() == ReadResponse);
            lose_kind(kind, count, |opcode| opcode.kind() == ReadRequest);
            lose_kind(kind, count, |opcode| opcode.kind() == FetchAdd);
            lose_kind(kind, count, |opcode| opcode.kind() == ReadAck);
        }
        lose_kind(kind, usize::MAX, |opcode| opcode.kind() == ReadAck);
    }
}

#[test]
fn without_records_everything_is_sent_again_and_all_ends_well() {
    let kind = Kind { records: 0, ..KINDS[1] };
    let all = lose(kind, &[]);
    for first in 0..all {
        // Without a record the local ACK timeout may have to help.
        for second in first..all {
            let mut flight = Flight::new(kind);
            flight.pair.link.drops = Some(Box::new(move |number, _, _| number == first || number == second));
            flight.pair.settle();
            assert!(flight.pair.ends[0].fx.sends.iter().all(|cqe| cqe.status == OK), "{first} {second}");
            assert_eq!(flight.pair.ends[0].fx.sends.len(), 7, "{first} {second}");
        }
    }
}

/// Plays a flight without loss, and returns it with all packets that were sent: the end that each went to, and its bytes.
fn recorded(kind: Kind) -> (Flight, Vec<(usize, Vec<u8>)>) {
    let mut flight = Flight::new(kind);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = seen.clone();
    flight.pair.link.drops = Some(Box::new(move |_, to, bytes| {
        sink.borrow_mut().push((to, bytes.to_vec()));
        false
    }));
    flight.pair.settle();
    flight.pair.link.drops = None;
    flight.check("recorded");
    let packets = seen.take();
    (flight, packets)
}

#[test]
fn packets_that_come_again_after_all_has_ended_change_nothing() {
    for kind in KINDS {
        let (mut flight, packets) = recorded(kind);
        for _ in 0..3 {
            for (to, bytes) in packets.iter().chain(packets.iter().rev()) {
                let now = flight.pair.now;
                flight.pair.ends[*to].receive_from(now, ip_of(1 - *to as u8), bytes);
            }
            flight.pair.settle();
            flight.check("again");
        }
    }
}

#[test]
fn a_flight_that_arrives_in_reverse_order_is_executed_in_order() {
    for kind in KINDS.into_iter().filter(|kind| kind.window > 4096) {
        let mut flight = Flight::new(kind);
        let now = Nanos(1000);
        let requests = flight.pair.ends[0].drain(now);
        for bytes in requests.iter().rev() {
            flight.pair.ends[1].receive_from(now, ip_of(0), bytes);
        }
        flight.pair.settle();
        flight.check("reversed");
    }
}

#[test]
fn a_whole_window_in_reverse_order_is_one_message() {
    let base = setup(KINDS[0]);
    let setup = Setup { mtu: Mtu::B256, memory: 1 << 20, ..base };
    let mut pair = Pair::new(&setup, 1, LinkFaults::default());
    let len = (WINDOW_PSNS - 1) * 256;
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    pair.ends[0].write_memory(0, &bytes);
    let (rkey, sge) = (pair.ends[1].lkey, pair.ends[0].sge(0, len));
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { opcode: WrOpcode::RdmaWrite as u8, flags, rkey, ..SendWqe::default() };
    pair.ends[0].post(&wqe, &[sge]);
    let packets = pair.ends[0].drain(Nanos(1));
    assert_eq!(packets.len(), WINDOW_PSNS as usize - 1);
    for packet in packets.iter().rev() {
        pair.ends[1].receive_from(Nanos(1), ip_of(0), packet);
    }
    assert_eq!(pair.ends[1].fx.count_of(Reason::SrEarly), WINDOW_PSNS - 2);
    assert!(pair.ends[1].memory(0, len as usize) == bytes);
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success]);
    assert_eq!(pair.ends[0].fx.count_of(Reason::SrRepeated), 0);
}

/// Sequence numbers go once around under loss, by READs of 512 and WRITEs; packets of the first round come again in the second.
#[test]
fn sequence_numbers_go_around_once_and_packets_of_the_last_round_are_duplicates() {
    let base = setup(KINDS[1]);
    // A debug build begins shortly before the end of the numbers.
    let rounds = if cfg!(debug_assertions) { 96 } else { (1 << 24) / 512 + 96 };
    let psn = Psn::new(0).sub(40 * 512);
    let attr = QpAttr { rq_psn: psn, sq_psn: psn, ..base.attr };
    let setup = Setup { mtu: Mtu::B256, memory: 512 << 10, window: 1 << 17, attr, ..base };
    let faults = LinkFaults { loss: 2, ..LinkFaults::default() };
    let mut pair = Pair::new(&setup, 1, faults);
    let bytes: Vec<u8> = (0..128u32 << 10).map(|i| (i * 7 + i / 251) as u8).collect();
    pair.ends[1].write_memory(0, &bytes);
    let (mut old, mut done) = (Vec::new(), 0);
    for k in 0..rounds {
        let rkey = pair.ends[1].lkey;
        let flags = send_flags::SIGNALED as u16;
        let wqe = SendWqe { wr_id: k, opcode: WrOpcode::RdmaRead as u8, flags, rkey, ..SendWqe::default() };
        let sge = pair.ends[0].sge(128 << 10, 128 << 10);
        pair.ends[0].post(&wqe, &[sge]);
        let wqe = SendWqe { opcode: WrOpcode::RdmaWrite as u8, flags: 0, remote_addr: 256 << 10, ..wqe };
        let sge = pair.ends[0].sge(0, 200);
        pair.ends[0].post(&wqe, &[sge]);
        if k % 37 == 0 {
            // What is sent now comes at once, and again much later.
            let now = pair.now;
            old = pair.ends[0].drain(now);
            old.iter().for_each(|packet| pair.ends[1].receive_from(now, ip_of(0), packet));
        } else if k % 37 == 30 {
            let now = pair.now;
            old.iter().for_each(|packet| pair.ends[1].receive_from(now, ip_of(0), packet));
        }
        pair.settle();
        for cqe in std::mem::take(&mut pair.ends[0].fx.sends) {
            assert_eq!((cqe.wr_id, cqe.status), (done, OK));
            pair.ends[0].sq.free(cqe.sq_consumer);
            done += 1;
        }
    }
    assert_eq!(done, rounds);
    assert!(pair.ends[0].memory(128 << 10, 128 << 10) == bytes);
    assert!(pair.ends[1].fx.count_of(Reason::DuplicateRequest) > 0);
    assert_eq!(pair.ends[1].qp.query().rq_psn, psn.add(rounds as u32 * 513));
    assert_eq!(pair.ends.each_ref().map(|end| end.qp.inflight_bytes()), [0; 2]);
}

/// How many packets are repeated when the second packet of a message comes so much later than those behind it. The path has
/// reordered once before, and a round trip takes 10 us.
fn repeated_if_late(late: Nanos) -> u32 {
    let mut pair = Pair::new(&setup(KINDS[1]), 1, LinkFaults::default());
    let mut write = |late: Nanos| {
        let (rkey, sge) = (pair.ends[1].lkey, pair.ends[0].sge(0, 4 * MTU));
        let flags = send_flags::SIGNALED as u16;
        let wqe = SendWqe { opcode: WrOpcode::RdmaWrite as u8, flags, rkey, remote_addr: TARGET, ..SendWqe::default() };
        pair.ends[0].post(&wqe, &[sge]);
        let second = pair.link.sent + 1;
        pair.link.delays = Some(Box::new(move |number, _, _| if number == second { late } else { Nanos(0) }));
        pair.settle();
        let done = std::mem::take(&mut pair.ends[0].fx.sends);
        assert_eq!(done.iter().map(|cqe| cqe.status).collect::<Vec<_>>(), [OK]);
        pair.ends[0].sq.free(done[0].sq_consumer);
        pair.ends[0].fx.count_of(Reason::SrRepeated)
    };
    // Round trips are measured, and then the path reorders: what is tolerated is a quarter of a round trip from then on.
    (0..50).for_each(|_| assert_eq!(write(Nanos(0)), 0));
    assert_eq!(write(Nanos(4_000)), 1, "nothing is tolerated yet");
    write(late) - 1
}

#[test]
fn a_packet_is_repeated_when_it_is_later_than_is_tolerated_and_not_before() {
    const TOLERANCE: u64 = 10_000 / 4;
    assert_eq!([0, 1, TOLERANCE - 1].map(|late| repeated_if_late(Nanos(late))), [0; 3]);
    assert_eq!([TOLERANCE + 1, 2 * TOLERANCE].map(|late| repeated_if_late(Nanos(late))), [1; 2]);
}

/// A flight in recovery: each third packet of the first flight was lost, and no repetition has been sent.
fn in_recovery(kind: Kind) -> Flight {
    let mut flight = Flight::new(kind);
    flight.pair.link.drops = Some(Box::new(|number, to, _| to == 1 && number % 3 == 0));
    for _ in 0..2 {
        flight.pair.step(Nanos::NEVER);
    }
    flight.pair.link.drops = None;
    assert!(flight.pair.ends.iter().any(|end| end.fx.records.in_use() > 0), "not in recovery");
    flight
}

#[test]
fn ends_that_leave_in_recovery_give_their_records_back() {
    for kind in KINDS.into_iter().filter(|kind| kind.window > 4096) {
        for (me, state) in [(0, QpState::Err), (1, QpState::Err), (0, QpState::Reset), (1, QpState::Reset)] {
            let mut flight = in_recovery(kind);
            let now = flight.pair.now;
            flight.pair.ends[me].move_to(state);
            flight.pair.ends[me].drain(now);
            let end = &flight.pair.ends[me];
            assert_eq!((end.fx.records.in_use(), end.qp.inflight_bytes()), (0, 0), "end {me} in {state:?}");
            assert_eq!(end.qp.next_deadline(), Nanos::NEVER, "end {me} in {state:?}");
            // The other end tries as long as it may, and gives its records back as well.
            flight.pair.settle();
            if me == 1 {
                let statuses = flight.pair.ends[0].statuses();
                assert_eq!(statuses.len(), 7, "{state:?}");
                assert!(statuses.contains(&WcStatus::RetryExcErr), "{statuses:?}");
                assert_eq!(flight.pair.ends[0].fx.records.in_use(), 0, "{state:?}");
            }
        }
    }
}

#[test]
fn a_peer_that_was_started_anew_in_recovery_ends_the_requests_by_retries() {
    let mut flight = in_recovery(KINDS[1]);
    // It does not know the queue pair: whatever comes is dropped.
    flight.pair.link.drops = Some(Box::new(|_, to, _| to == 1));
    flight.pair.settle();
    let statuses = flight.pair.ends[0].statuses();
    assert_eq!((statuses.len(), flight.pair.ends[0].qp.state()), (7, QpState::Err));
    assert!(statuses.contains(&WcStatus::RetryExcErr));
    assert_eq!((flight.pair.ends[0].fx.records.in_use(), flight.pair.ends[0].qp.inflight_bytes()), (0, 0));
}

#[test]
fn a_queue_pair_that_drains_in_recovery_goes_on_afterwards() {
    let mut flight = in_recovery(KINDS[1]);
    flight.pair.ends[0].move_to(QpState::Sqd);
    flight.pair.settle();
    flight.pair.ends[0].move_to(QpState::Rts);
    flight.pair.settle();
    flight.check("drained");
}

#[test]
fn a_clock_that_jumps_costs_repetitions_and_nothing_else() {
    for kind in KINDS {
        for at in 0..12 {
            let mut flight = Flight::new(kind);
            flight.pair.link.drops = Some(Box::new(|number, _, _| number % 4 == 1 && number < 12));
            for _ in 0..at {
                flight.pair.step(Nanos::NEVER);
            }
            flight.pair.now = flight.pair.now + Nanos::from_ms(10_000);
            flight.pair.settle();
            let sends: Vec<u8> = flight.pair.ends[0].fx.sends.iter().map(|cqe| cqe.status).collect();
            assert_eq!(sends, [OK; 7], "jump after {at} events");
            assert_eq!(flight.pair.ends[1].fx.receives.len(), 3, "jump after {at} events");
        }
    }
}

/// 4096 queue pairs lose packets at once and have 256 records together.
#[test]
fn more_queue_pairs_in_recovery_than_there_are_records() {
    const COUNT: usize = if cfg!(debug_assertions) { 1024 } else { 4096 };
    let base = setup(KINDS[0]);
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let setup = Setup { cap, memory: 16 << 10, ..base };
    let mut shared = [RecordPool::new(256), RecordPool::new(256)];
    let mut pairs: Vec<Pair> = (0..COUNT)
        .map(|k| {
            let mut pair = Pair::new(&setup, k as u64, LinkFaults::default());
            pair.ends.iter_mut().for_each(|end| end.fx.records = RecordPool::new(0));
            let (rkey, sge) = (pair.ends[1].lkey, pair.ends[0].sge(0, 8 * MTU));
            let flags = send_flags::SIGNALED as u16;
            let opcode = WrOpcode::RdmaWrite as u8;
            let wqe = SendWqe { opcode, flags, rkey, remote_addr: 8192, ..SendWqe::default() };
            pair.ends[0].post(&wqe, &[sge]);
            pair.link.drops = Some(Box::new(|number, _, _| number == 2));
            pair
        })
        .collect();
    let (mut most, mut busy) = (0, true);
    while busy {
        busy = false;
        for pair in &mut pairs {
            // All of them share one worker's records at each side.
            pair.ends.iter_mut().zip(&mut shared).for_each(|(end, pool)| std::mem::swap(&mut end.fx.records, pool));
            busy |= pair.step(Nanos::NEVER);
            pair.ends.iter_mut().zip(&mut shared).for_each(|(end, pool)| std::mem::swap(&mut end.fx.records, pool));
            most = shared[1].in_use().max(most);
        }
    }
    // One peer has at most half of them.
    assert_eq!((most, shared[0].in_use(), shared[1].in_use()), (128, 0, 0));
    assert!(pairs.iter().all(|pair| pair.ends[0].statuses() == [WcStatus::Success]));
    let refused: u32 = pairs.iter().map(|pair| pair.ends[1].fx.count_of(Reason::SrPoolEmpty)).sum();
    assert!(refused as usize >= COUNT - 256, "{refused}");
}
