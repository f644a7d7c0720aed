//! Trains: middle packets executed together must have the same result as packets one by one, whatever the packets are.
use crate::common::{End, Setup, describe, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpState, WcStatus, WrOpcode, access, send_flags};
use burst_base::{Nanos, Psn, Rkey};
use burst_shm::layout::SendWqe;
use burst_transport::TxBudget;
use burst_wire::{Aeth, Bth, HeadBuf, Opcode, Packet, Reth, Syndrome};

const NOW: Nanos = Nanos(1_000);
const MTU: usize = 1024;
const FIRST_PSN: u32 = 100;
const MEMORY: usize = 128 << 10;

/// The packets of a message of `count` full packets and `rest` bytes; the last asks for an acknowledgement.
fn message(write: Option<(u32, u64)>, count: u32, rest: usize) -> Vec<Vec<u8>> {
    let opcodes = match write {
        None => [Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast],
        Some(_) => [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast],
    };
    let len = count * MTU as u32 + rest as u32;
    let packet = |k: u32| {
        let opcode = opcodes[if k == 0 { 0 } else { 1 + usize::from(k == count) }];
        let bth = Bth { ack_req: k == count, ..Bth::new(opcode, qpn_of(1), Psn::new(FIRST_PSN + k)) };
        let head = HeadBuf::new(&bth);
        let head = match write {
            Some((rkey, addr)) if k == 0 => head.reth(Reth { addr, rkey: Rkey(rkey), len }),
            _ => head,
        };
        let mut bytes = head.as_slice().to_vec();
        bytes.extend((0..if k == count { rest } else { MTU }).map(|i| (i as u32 * 7 + k * 13 + i as u32 / 251) as u8));
        bytes
    };
    (0..=count).map(packet).collect()
}

/// An end with a receive of entries of these lengths, each followed by a hole of 100 bytes.
fn receiver(sges: &[u32], rights: u32) -> End {
    let setup = Setup::default();
    let setup =
        Setup { attr: burst_base::verbs::QpAttr { qp_access_flags: rights, ..setup.attr }, memory: MEMORY, ..setup };
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    let mut addr = 0;
    let sges: Vec<_> = sges
        .iter()
        .map(|len| {
            addr += u64::from(*len) + 100;
            end.sge(addr - u64::from(*len) - 100, *len)
        })
        .collect();
    end.post_receive(7, &sges);
    end
}

/// The observable state of an end after packets.
fn outcome(end: &mut End) -> impl PartialEq + core::fmt::Debug + use<> {
    let answers: Vec<String> = end.drain(NOW).iter().map(|bytes| describe(bytes)).collect();
    let got: Vec<_> = end.fx.receives.iter().map(|(cqe, _)| (cqe.wr_id, cqe.byte_len, cqe.status)).collect();
    let sum = end.memory(0, MEMORY).iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let ends = (end.statuses(), end.qp.inflight_bytes(), end.qp.next_deadline());
    (answers, got, ends, sum, end.fx.reasons(), end.fx.events.clone(), end.qp.state(), end.qp.query().rq_psn)
}

#[test]
fn middle_packets_of_a_message_are_executed_together() {
    for write in [false, true] {
        let mut end = receiver(&[40 << 10], crate::common::ALL_RIGHTS);
        let packets = message(write.then_some((end.lkey, 0)), 30, 500);
        end.receive_train(NOW, ip_of(0), &packets[..1]);
        end.receive_train(NOW, ip_of(0), &packets[1..30]);
        assert_eq!(end.carried, 29);
        end.receive_train(NOW, ip_of(0), &packets[30..]);
        let payload: Vec<u8> = packets
            .iter()
            .enumerate()
            .flat_map(|(k, p)| &p[if write && k == 0 { 28 } else { 12 }..])
            .copied()
            .collect();
        assert_eq!(end.memory(0, payload.len()), payload);
        assert_eq!(end.drain(NOW).iter().map(|b| describe(b)).collect::<Vec<_>>(), ["RcAck 130 Ack { credit: 31 }"]);
    }
}

#[test]
fn a_run_ends_before_a_packet_that_crosses_entries_of_the_receive() {
    let mut end = receiver(&[10 * 1024, 3 * 1024 + 5, 30 << 10], crate::common::ALL_RIGHTS);
    end.receive_train(NOW, ip_of(0), &message(None, 30, 500)[..30]);
    // All packets but the first and the packet that crosses two entries.
    assert_eq!(end.carried, 28);
}

/// The response to a READ of `count` full packets and `rest` bytes.
fn read_answer(count: u32, rest: usize) -> Vec<Vec<u8>> {
    let packet = |k: u32| {
        let opcodes = [Opcode::RcReadResponseFirst, Opcode::RcReadResponseMiddle, Opcode::RcReadResponseLast];
        let opcode = opcodes[if k == 0 { 0 } else { 1 + usize::from(k == count) }];
        let head = HeadBuf::new(&Bth::new(opcode, qpn_of(1), Psn::new(FIRST_PSN + k)));
        let ends = k == 0 || k == count;
        let head = if ends { head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }) } else { head };
        let mut bytes = head.as_slice().to_vec();
        bytes.extend((0..if k == count { rest } else { MTU }).map(|i| (i as u32 * 11 + k * 17 + i as u32 / 251) as u8));
        bytes
    };
    (0..=count).map(packet).collect()
}

/// An end that has requested a READ into entries of these lengths, each followed by a hole of 100 bytes.
fn reader(sges: &[u32]) -> End {
    let mut end = receiver(&[], crate::common::ALL_RIGHTS);
    let mut addr = 0;
    let mut pieces = Vec::new();
    for len in sges {
        pieces.push(end.sge(addr, *len));
        addr += u64::from(*len) + 100;
    }
    let flags = send_flags::SIGNALED as u16;
    end.post(&SendWqe { wr_id: 1, opcode: WrOpcode::RdmaRead as u8, flags, ..SendWqe::default() }, &pieces);
    let asked: Vec<String> = end.drain(NOW).iter().map(|bytes| describe(bytes)).collect();
    assert!(asked.iter().all(|packet| packet.starts_with("RcReadRequest")), "{asked:?}");
    end
}

#[test]
fn middle_packets_of_a_read_response_are_placed_together() {
    let mut end = reader(&[30 * 1024 + 500]);
    let packets = read_answer(30, 500);
    end.receive_train(NOW, ip_of(0), &packets[..1]);
    end.receive_train(NOW, ip_of(0), &packets[1..30]);
    assert_eq!(end.carried, 29);
    assert_eq!(end.statuses(), []);
    end.receive_train(NOW, ip_of(0), &packets[30..]);
    assert_eq!(end.statuses(), [WcStatus::Success]);
    let payload = packets.iter().enumerate().flat_map(|(k, p)| &p[if k % 30 == 0 { 16 } else { 12 }..]);
    assert_eq!(end.memory(0, 30 * MTU + 500), payload.copied().collect::<Vec<u8>>());
}

#[test]
fn responses_beyond_the_requested_packets_are_not_placed() {
    for (sges, count) in [(&[4 * 1024 + 500][..], 30), (&[], 30)] {
        let (mut single, mut together) = (reader(sges), reader(sges));
        let packets = read_answer(count, 500);
        packets.iter().for_each(|packet| single.receive_from(NOW, ip_of(0), packet));
        together.receive_train(NOW, ip_of(0), &packets[..1]);
        together.receive_train(NOW, ip_of(0), &packets[1..30]);
        together.receive_train(NOW, ip_of(0), &packets[30..]);
        assert_eq!(outcome(&mut together), outcome(&mut single));
    }
}

#[test]
fn middle_packets_of_a_read_response_are_made_together() {
    let mut end = receiver(&[], crate::common::ALL_RIGHTS);
    let memory: Vec<u8> = (0..20 * MTU).map(|i| (i / 3) as u8).collect();
    end.write_memory(0, &memory);
    let reth = Reth { addr: 0, rkey: Rkey(end.lkey), len: memory.len() as u32 };
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(FIRST_PSN)) };
    end.receive_from(NOW, ip_of(0), HeadBuf::new(&bth).reth(reth).as_slice());
    end.poll(NOW, &mut TxBudget { wqes: 8, bytes: 1 << 20, window_bytes: 1 << 20 });
    let continued = end.tx.frames().iter().filter(|frame| frame.continues).count();
    assert_eq!((end.tx.len(), continued), (20, 17), "all but the first middle packet go on with a run");
    let mut payload = Vec::new();
    for (k, frame) in end.tx.frames().iter().enumerate() {
        let mut bytes = Vec::new();
        crate::common::frame_bytes(&end.tx, frame, &mut bytes);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.bth.psn, Psn::new(FIRST_PSN + k as u32));
        payload.extend_from_slice(packet.payload);
    }
    assert!(payload == memory);
}

/// Changes a train as a network, a faulty peer or a faulty program could.
fn spoil(rng: &mut Rng, packets: &mut Vec<Vec<u8>>) {
    let at = rng.below(packets.len() as u64) as usize;
    let other = rng.below(packets.len() as u64) as usize;
    match rng.below(8) {
        0 => drop(packets.remove(at)),
        1 => packets.insert(at, packets[other].clone()),
        2 => packets.swap(at, other),
        // A bit of the BTH, but none of the padding count: lengths stay.
        3..=5 => {
            let bit = rng.below(96) as usize;
            packets[at][bit / 8] ^= 1 << (bit % 8);
        }
        6 => packets[at].truncate(12 + 4 * rng.below(256) as usize),
        _ => packets[at][8] |= 0x80,
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
    (0..1 + rng.below(4)).map(|_| 1024 * rng.below(24) as u32 + [0, 0, 0, 9][rng.below(4) as usize]).collect()
}

#[test]
fn a_train_has_the_same_result_as_its_packets_one_by_one() {
    let mut carried = 0;
    for seed in 0..250 {
        let mut rng = Rng::new(seed);
        let sges = some_pieces(&mut rng);
        let rights = if rng.below(20) == 0 { access::REMOTE_READ } else { crate::common::ALL_RIGHTS };
        let (mut single, mut together) = (receiver(&sges, rights), receiver(&sges, rights));
        let (count, rest) = (1 + rng.below(40) as u32, 4 + 4 * rng.below(255) as usize);
        // Sometimes beyond the end of the region.
        let addr = if rng.below(10) == 0 { MEMORY as u64 - 20_000 } else { rng.below(5000) };
        let write = (rng.below(2) == 0).then_some(addr);
        let mut trains = [&single, &together].map(|end| message(write.map(|addr| (end.lkey, addr)), count, rest));
        spoil_both(&mut rng, &mut trains);
        compare(&mut single, &mut together, &trains, seed);
        carried += together.carried;
    }
    assert!(carried > 1_000, "{carried} packets were carried out together");
}

#[test]
fn a_train_of_responses_has_the_same_result_as_its_packets_one_by_one() {
    let mut carried = 0;
    for seed in 0..250 {
        let mut rng = Rng::new(seed);
        let sges = some_pieces(&mut rng);
        let asked: u32 = sges.iter().sum();
        let (mut single, mut together) = (reader(&sges), reader(&sges));
        // Usually the requested length, sometimes more or less. A READ of no bytes is answered by one packet.
        let less = [0, 0, 0, 4, 2048][rng.below(5) as usize];
        let len = asked.saturating_sub(less).max(4);
        let count = (len - 1) / MTU as u32;
        let answer = read_answer(count.max(1), (len - count * MTU as u32) as usize);
        let mut trains = [answer.clone(), answer];
        spoil_both(&mut rng, &mut trains);
        compare(&mut single, &mut together, &trains, seed);
        carried += together.carried;
    }
    assert!(carried > 1_000, "{carried} packets were placed together");
}
