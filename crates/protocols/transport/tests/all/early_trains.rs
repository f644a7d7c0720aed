//! Trains behind a gap: middle packets that are placed together must have the same result as packets one by one.
use crate::common::{End, Setup, ip_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpState, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::layout::SendWqe;
use burst_transport::WINDOW_PSNS;
use burst_wire::Packet;

const NOW: Nanos = Nanos(1_000);
const MTU: usize = 1024;
/// Of each message: its bytes at the requester begin at a multiple of this.
const SLOT: u64 = 64 << 10;
const MEMORY: usize = 1 << 20;

fn setup() -> Setup {
    Setup { selective: WINDOW_PSNS, memory: MEMORY, ..Setup::default() }
}

fn end(index: u8) -> End {
    let mut end = End::new(index, &setup());
    end.bring_up(1 - index, &setup(), QpState::Rts);
    end
}

/// A message: WRITE to this address, or SEND; its bytes.
#[derive(Clone, Copy)]
struct Message {
    write: Option<u64>,
    len: u32,
}

/// The packets of these messages, none of which is acknowledged. The bytes of message `k` are those of a sequence of its own.
fn packets(rkey: u32, messages: &[Message]) -> Vec<Vec<u8>> {
    let mut sender = end(0);
    for (k, message) in messages.iter().enumerate() {
        let bytes: Vec<u8> =
            (0..message.len).map(|i| (i / 3) as u8 ^ (i >> 7) as u8 ^ (k as u8).wrapping_mul(37)).collect();
        sender.write_memory(k as u64 * SLOT, &bytes);
        let opcode = if message.write.is_some() { WrOpcode::RdmaWrite } else { WrOpcode::Send };
        let remote_addr = message.write.unwrap_or(0);
        let flags = send_flags::SIGNALED as u16;
        let wqe = SendWqe { opcode: opcode as u8, flags, remote_addr, rkey, ..SendWqe::default() };
        let sge = sender.sge(k as u64 * SLOT, message.len);
        sender.post(&wqe, &[sge]);
    }
    sender.drain(NOW)
}

/// A responder with receives of two entries each, the first of an odd length.
fn responder(receives: u64) -> End {
    let mut end = end(1);
    for k in 0..receives {
        let at = MEMORY as u64 / 2 + k * SLOT;
        let sges = [end.sge(at, 5 * MTU as u32 + 77), end.sge(at + 8192, 40 << 10)];
        end.post_receive(k, &sges);
    }
    end
}

fn opcode(packet: &[u8]) -> u8 {
    Packet::parse(packet).expect("well-formed").bth.opcode.number()
}

/// Delivers packets in trains: packets of one opcode that follow each other, as a port joins packets of one length.
fn deliver_trains(end: &mut End, packets: &[Vec<u8>]) {
    for train in packets.chunk_by(|a, b| a.len() == b.len() && opcode(a) == opcode(b)) {
        end.receive_train(NOW, ip_of(0), train);
    }
}

/// What a program and the peer see of a responder, beside its memory.
fn outcome(end: &mut End) -> impl PartialEq + core::fmt::Debug + use<> {
    let got: Vec<_> = end.fx.receives.iter().map(|(cqe, _)| (cqe.wr_id, cqe.byte_len, cqe.status)).collect();
    (end.drain(NOW), got, end.fx.reasons(), end.qp.state(), end.qp.query().rq_psn, end.fx.records.in_use())
}

#[test]
fn middle_packets_behind_a_gap_are_placed_together_and_the_end_waits_for_its_turn() {
    for write in [Some(0), None] {
        let mut end = responder(1);
        let message = Message { write, len: 12 << 10 };
        let packets = packets(end.lkey, &[message]);
        assert_eq!(packets.len(), 12);
        let rest: Vec<_> = packets.iter().take(1).chain(&packets[2..]).cloned().collect();
        deliver_trains(&mut end, &rest);
        // Of the receive, the packet that crosses two entries is placed alone.
        let (together, held) = if write.is_some() { (9, 64) } else { (8, 0) };
        assert_eq!((end.carried, end.fx.count_of(Reason::SrEarly)), (together, 10));
        let tail = 12 * MTU - 64;
        if held > 0 {
            assert_eq!(end.memory(tail as u64, held), vec![0; held], "a poller sees nothing");
        }
        assert!(end.fx.receives.is_empty());
        deliver_trains(&mut end, &packets[1..2]);
        assert_eq!((end.fx.receives.len(), end.fx.records.in_use()), (usize::from(write.is_none()), 0));
        let mut single = responder(1);
        packets.iter().for_each(|packet| single.receive_from(NOW, ip_of(0), packet));
        assert!(end.memory(0, MEMORY) == single.memory(0, MEMORY));
    }
}

/// Messages of random kinds and lengths, of which many write to the same bytes.
fn some_messages(rng: &mut Rng) -> Vec<Message> {
    let message = |rng: &mut Rng| {
        let len = 1 + rng.below(24 << 10) as u32;
        let write = (rng.below(3) > 0).then(|| rng.below(32 << 10));
        Message { write, len }
    };
    (0..2 + rng.below(6)).map(|_| message(rng)).collect()
}

#[test]
fn trains_have_the_result_of_single_packets_whatever_is_lost_repeated_and_overwritten() {
    let mut carried = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let messages = some_messages(&mut rng);
        let (mut trains, mut singles) = (responder(8), responder(8));
        let all = packets(trains.lkey, &messages);
        let loss = 1 + rng.below(20);
        let mut missing: Vec<usize> = (0..all.len()).collect();
        for round in 0..200 {
            // Packets of the round: a part in order, now and then some that have arrived before.
            let from = if round % 3 == 0 { 0 } else { rng.below(missing.len() as u64) as usize };
            let mut now: Vec<usize> = missing[from..].iter().copied().filter(|_| rng.below(100) >= loss).collect();
            if round % 4 == 3 {
                let first = rng.below(all.len() as u64) as usize;
                now.extend(first..all.len().min(first + 10));
            }
            let batch: Vec<_> = now.iter().map(|k| all[*k].clone()).collect();
            deliver_trains(&mut trains, &batch);
            batch.iter().for_each(|packet| singles.receive_from(NOW, ip_of(0), packet));
            assert_eq!(outcome(&mut trains), outcome(&mut singles), "seed {seed} round {round}");
            assert!(trains.memory(0, MEMORY) == singles.memory(0, MEMORY), "seed {seed} round {round}");
            missing.retain(|k| !now.contains(k));
            if missing.is_empty() {
                break;
            }
        }
        carried += trains.carried;
        assert!(missing.is_empty() && trains.fx.records.in_use() == 0, "seed {seed}");
        let mut ordered = responder(8);
        all.iter().for_each(|packet| ordered.receive_from(NOW, ip_of(0), packet));
        assert!(trains.memory(0, MEMORY) == ordered.memory(0, MEMORY), "seed {seed}");
        let received = |end: &End| end.fx.receives.iter().map(|(cqe, _)| (cqe.wr_id, cqe.byte_len)).collect::<Vec<_>>();
        assert_eq!(received(&trains), received(&ordered), "seed {seed}");
    }
    assert!(carried > 1_000, "{carried}");
}
