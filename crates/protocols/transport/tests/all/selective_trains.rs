//! Trains of the selective repeat family: middle packets executed together have the same result as packets one by one, whatever
//! the packets are and whatever state the queue pair is in.
use crate::common::{End, Setup, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpAttr, QpState, WcStatus, WrOpcode, access, send_flags};
use burst_base::{Nanos, Psn, Rkey};
use burst_shm::layout::SendWqe;
use burst_transport::WINDOW_PSNS;
use burst_wire::{Bth, HeadBuf, Opcode, Seth, Weth};

const NOW: Nanos = Nanos(1_000);
const MTU: u32 = 1024;
const MEMORY: usize = 256 << 10;
/// Packets of a piece of a READ.
const PIECE: u32 = 128;

/// A message that arrives: a SEND, a WRITE by this key to this address, or the response to a READ.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write(u32, u64),
    Response,
}

fn setup(first: u32, rights: u32) -> Setup {
    let base = Setup::default();
    let (rq_psn, sq_psn) = (Psn::new(first), Psn::new(first));
    let attr = QpAttr { qp_access_flags: rights, rq_psn, sq_psn, ..base.attr };
    Setup { selective: WINDOW_PSNS, memory: MEMORY, attr, ..base }
}

/// Packet `k` of a message whose last packet is number `count`.
fn packet(kind: Kind, first: u32, (k, count): (u32, u32), rest: usize) -> Vec<u8> {
    let opcodes = match kind {
        Kind::Send => [Opcode::RcSrSendFirst, Opcode::RcSrSendMiddle, Opcode::RcSrSendLast],
        Kind::Write(..) => [Opcode::RcSrWriteFirst, Opcode::RcSrWriteMiddle, Opcode::RcSrWriteLast],
        Kind::Response => [Opcode::RcSrReadResponseFirst, Opcode::RcSrReadResponseMiddle, Opcode::RcSrReadResponseLast],
    };
    // Each piece of a READ is a response of its own.
    let index = if kind == Kind::Response { k % PIECE } else { k };
    let ends = k == count || (kind == Kind::Response && index + 1 == PIECE);
    let opcode = opcodes[if ends { 2 } else { usize::from(index > 0) }];
    let asks_ack = k == count && kind != Kind::Response;
    let bth = Bth { ack_req: asks_ack, ..Bth::new(opcode, qpn_of(1), Psn::new(first).add(k)) };
    let rsn = u32::from(kind == Kind::Response);
    let head = HeadBuf::new(&bth).seth(Seth { index, rsn, ..Seth::default() });
    let head = match kind {
        Kind::Write(rkey, addr) => head.weth(Weth { addr: addr + u64::from(k * MTU), rkey: Rkey(rkey) }),
        _ => head,
    };
    let len = if k == count { rest } else { MTU as usize };
    let payload = (0..len).map(|i| (i as u32 * 7 + k * 13 + i as u32 / 251) as u8);
    head.as_slice().iter().copied().chain(payload).collect()
}

fn message(kind: Kind, first: u32, count: u32, rest: usize) -> Vec<Vec<u8>> {
    (0..=count).map(|k| packet(kind, first, (k, count), rest)).collect()
}

/// Entries of these lengths, each followed by a hole of 100 bytes.
fn pieces(end: &End, lengths: &[u32]) -> Vec<burst_shm::layout::Sge> {
    let mut addr = 0;
    let mut entry = |len: u32| {
        let sge = end.sge(addr, len);
        addr += u64::from(len) + 100;
        sge
    };
    lengths.iter().map(|len| entry(*len)).collect()
}

/// An end with a receive of such entries.
fn receiver(setup: &Setup, state: QpState, lengths: &[u32]) -> End {
    let mut end = End::new(1, setup);
    end.bring_up(0, setup, state);
    let sges = pieces(&end, lengths);
    end.post_receive(7, &sges);
    end
}

/// An end that has requested a READ into such entries.
fn reader(setup: &Setup, lengths: &[u32]) -> End {
    let mut end = End::new(1, setup);
    end.bring_up(0, setup, QpState::Rts);
    let sges = pieces(&end, lengths);
    let flags = send_flags::SIGNALED as u16;
    end.post(&SendWqe { wr_id: 1, opcode: WrOpcode::RdmaRead as u8, flags, ..SendWqe::default() }, &sges);
    end.drain(NOW);
    end
}

/// The observable state of an end after packets, with each byte of its answers.
fn outcome(end: &mut End) -> impl PartialEq + core::fmt::Debug + use<> {
    let answers = end.drain(NOW);
    let got: Vec<_> = end.fx.receives.iter().map(|(cqe, _)| (cqe.wr_id, cqe.byte_len, cqe.status)).collect();
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let sum = end.memory(0, MEMORY).chunks_exact(8).fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add(word(b)));
    let ends = (end.statuses(), end.qp.inflight_bytes(), end.qp.next_deadline(), end.fx.records.in_use());
    (answers, got, ends, sum, end.fx.reasons(), end.fx.events.clone(), end.qp.state(), end.qp.query().rq_psn)
}

/// Changes a train as a network, a faulty peer or a faulty program could.
fn spoil(rng: &mut Rng, packets: &mut Vec<Vec<u8>>) {
    let at = rng.below(packets.len() as u64) as usize;
    let other = rng.below(packets.len() as u64) as usize;
    match rng.below(10) {
        0 => drop(packets.remove(at)),
        1 => packets.insert(at, packets[other].clone()),
        2 => packets.swap(at, other),
        3 => packets[at].truncate(20 + 4 * rng.below(256) as usize),
        4 => packets[at][8] |= 0x80,
        // A bit of BTH, SETH or WETH.
        _ => {
            let bit = rng.below(8 * packets[at].len().min(32) as u64) as usize;
            packets[at][bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Passes the packets to the first end one by one and to the second in trains of one length, and compares the ends.
fn compare(single: &mut End, together: &mut End, trains: &[Vec<Vec<u8>>; 2], seed: u64) {
    trains[0].iter().for_each(|packet| single.receive_from(NOW, ip_of(0), packet));
    let mut rest = &trains[1][..];
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|packet| packet.len() == first.len()).count();
        together.receive_train(NOW, ip_of(0), &rest[..alike]);
        rest = &rest[alike..];
    }
    assert_eq!(outcome(together), outcome(single), "seed {seed}");
}

/// Changes both trains in the same way, up to twice.
fn spoil_both(rng: &mut Rng, trains: &mut [Vec<Vec<u8>>; 2]) {
    for _ in 0..rng.below(3) {
        let again = rng.next_u64();
        trains.iter_mut().for_each(|train| spoil(&mut Rng::new(again), train));
        if trains[0].is_empty() {
            break;
        }
    }
}

/// Lengths of some pieces of memory.
fn some_pieces(rng: &mut Rng) -> Vec<u32> {
    (0..1 + rng.below(4)).map(|_| MTU * rng.below(24) as u32 + [0, 0, 0, 9][rng.below(4) as usize]).collect()
}

fn some_psn(rng: &mut Rng) -> u32 {
    if rng.below(3) == 0 { 0xff_fff0 } else { 100 }
}

#[test]
fn middle_packets_of_a_message_are_executed_together() {
    for write in [false, true] {
        let setup = setup(0xff_fff0, crate::common::ALL_RIGHTS);
        let mut end = receiver(&setup, QpState::Rts, &[40 << 10]);
        let kind = if write { Kind::Write(end.lkey, 0) } else { Kind::Send };
        let packets = message(kind, 0xff_fff0, 30, 500);
        end.receive_train(NOW, ip_of(0), &packets[..1]);
        end.receive_train(NOW, ip_of(0), &packets[1..30]);
        assert_eq!(end.carried, 29);
        end.receive_train(NOW, ip_of(0), &packets[30..]);
        let head = if write { 32 } else { 20 };
        assert_eq!(
            end.memory(0, 30 * MTU as usize + 500),
            packets.iter().flat_map(|p| p[head..].to_vec()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn middle_packets_of_each_piece_of_a_read_response_are_placed_together() {
    let mut end = reader(&setup(100, crate::common::ALL_RIGHTS), &[200 * MTU]);
    let packets = message(Kind::Response, 100, 199, 1024);
    end.receive_train(NOW, ip_of(0), &packets);
    // All but the first and the last packet of both pieces.
    assert_eq!((end.carried, end.statuses()), (196, vec![WcStatus::Success]));
    assert_eq!(end.memory(0, 200 << 10), packets.iter().flat_map(|p| p[20..].to_vec()).collect::<Vec<_>>());
}

#[test]
fn a_train_has_the_same_result_as_its_packets_one_by_one() {
    let mut carried = 0;
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let lengths = some_pieces(&mut rng);
        let rights = if rng.below(20) == 0 { access::REMOTE_READ } else { crate::common::ALL_RIGHTS };
        let first = some_psn(&mut rng);
        let setup = setup(first, rights);
        let state = if rng.below(4) == 0 { QpState::Rtr } else { QpState::Rts };
        let (mut single, mut together) = (receiver(&setup, state, &lengths), receiver(&setup, state, &lengths));
        let (count, rest) = (1 + rng.below(40) as u32, 4 + 4 * rng.below(255) as usize);
        // Sometimes beyond the end of the region.
        let addr = if rng.below(10) == 0 { MEMORY as u64 - 20_000 } else { rng.below(5000) };
        let is_write = rng.below(2) == 0;
        let mut trains = [&single, &together].map(|end| {
            let kind = if is_write { Kind::Write(end.lkey, addr) } else { Kind::Send };
            message(kind, first, count, rest)
        });
        spoil_both(&mut rng, &mut trains);
        let is_told = rng.below(20) > 0;
        [&mut single, &mut together].into_iter().for_each(|end| end.qp.accept_selective(is_told));
        compare(&mut single, &mut together, &trains, seed);
        carried += together.carried;
    }
    assert!(carried > 1_000, "{carried} packets were carried out together");
}

#[test]
fn a_train_of_responses_has_the_same_result_as_its_packets_one_by_one() {
    let mut carried = 0;
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let lengths = some_pieces(&mut rng);
        let first = some_psn(&mut rng);
        let setup = setup(first, crate::common::ALL_RIGHTS);
        let (mut single, mut together) = (reader(&setup, &lengths), reader(&setup, &lengths));
        // Usually the requested length, sometimes more or less. A READ of no bytes is answered by one packet.
        let less = [0, 0, 0, 4, 2048][rng.below(5) as usize];
        let len = lengths.iter().sum::<u32>().saturating_sub(less).max(4);
        let count = (len - 1) / MTU;
        let answer = message(Kind::Response, first, count.max(1), (len - count * MTU) as usize);
        let mut trains = [answer.clone(), answer];
        spoil_both(&mut rng, &mut trains);
        compare(&mut single, &mut together, &trains, seed);
        carried += together.carried;
    }
    assert!(carried > 1_000, "{carried} packets were placed together");
}
