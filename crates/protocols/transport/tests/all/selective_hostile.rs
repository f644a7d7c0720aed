//! Packets of the selective repeat family, and answers of the standard one, as no honest peer sends them, against a live pair:
//! nothing panics, records are bounded and come back, and each request ends once.
//!
//! `BURST_SEED=n` runs one seed; a failing seed is printed. `BURST_SEEDS` changes their number.
use crate::common::{LinkFaults, Pair, Setup, ip_of, qpn_of};
use burst_base::rng::Rng;
use burst_base::verbs::{QpAttr, QpState, WrOpcode, send_flags};
use burst_base::{Nanos, Psn, Rkey};
use burst_shm::layout::SendWqe;
use burst_transport::{RecordPool, WINDOW_PSNS};
use burst_wire::selective::AckBitmap;
use burst_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, HeadBuf, Ieth, ImmDt, NakCode, OpKind, Opcode, Reth, Saeth, Seth, Syndrome,
    Weth, XrcEth,
};

const MEMORY: u64 = 256 << 10;
const ACTIONS: u32 = 400;

fn near(rng: &mut Rng, psn: Psn, reach: u64) -> Psn {
    match rng.below(20) {
        0 => Psn::new(rng.next_u32()),
        1 => psn.add(WINDOW_PSNS - 2 + rng.below(4) as u32),
        _ => psn.add(rng.below(reach) as u32).sub(3),
    }
}

/// A packet of the family with plausible and impossible fields, of RC or XRC.
fn forge(rng: &mut Rng, xrc: bool, to: u8, psn: Psn, rkey: u32) -> Option<Vec<u8>> {
    let opcode = Opcode::from_number(if xrc { 0xe0 } else { 0xc0 } + rng.below(0x19) as u8)?;
    let info = opcode.info();
    let mtu = 1024;
    let len = match (info.kind, info.has_payload, rng.below(8)) {
        (OpKind::Ack, ..) | (_, false, _) => 0,
        (_, true, 0) => 4 * rng.below(300),
        (_, true, k) if info.position.is_end() && k < 4 => 4 * rng.below(64),
        _ => mtu,
    };
    let bth = Bth { ack_req: rng.below(2) == 0, solicited: rng.below(8) == 0, ..Bth::new(opcode, qpn_of(to), psn) };
    let index = if info.position.is_start() { 0 } else { 1 + rng.below(6) as u32 };
    let is_read = matches!(info.kind, OpKind::ReadRequest | OpKind::ReadResponse);
    let is_repair = is_read && rng.below(3) == 0;
    let rsn = rng.below(4) as u32 + if rng.below(9) == 0 { 0xff_fff0 } else { 0 };
    let seth = Seth { index, rsn, is_repair, transmission: rng.below(16) as u8, ..Seth::default() };
    let addr = if rng.below(12) == 0 { u64::MAX - 4096 } else { 8 * rng.below(MEMORY / 8) };
    let rkey = Rkey(if rng.below(12) == 0 { rng.next_u32() } else { rkey });
    let words = rng.below(16) as usize;
    let syndrome = match rng.below(10) {
        0 => Syndrome::Rnr { timer: 1 },
        1 => Syndrome::Nak(NakCode::RemoteAccess),
        _ => Syndrome::ACK,
    };
    let saeth = Saeth {
        words: words as u8,
        trigger: near(rng, psn, 64),
        transmission: rng.below(16) as u8,
        ..Saeth::default()
    };
    let head = HeadBuf::new(&bth);
    let names_queue = xrc && info.kind.is_request() && info.kind != OpKind::Probe;
    let head = if names_queue { head.xrceth(XrcEth { srqn: rng.below(4) as u32 }) } else { head };
    let head = match info.kind {
        OpKind::Ack => head.aeth(Aeth { syndrome, msn: 0 }).saeth(saeth),
        OpKind::ReadAck => head.saeth(Saeth { words: 0, ..saeth }),
        OpKind::Write => head.seth(seth).weth(Weth { addr, rkey }),
        OpKind::ReadRequest => head.seth(seth).reth(Reth { addr, rkey, len: rng.below(20_000) as u32 }),
        OpKind::CmpSwap | OpKind::FetchAdd => {
            head.seth(seth).atomic(AtomicEth { addr, rkey, swap_add: rng.next_u64(), compare: 0 })
        }
        OpKind::AtomicAck => {
            head.seth(seth).aeth(Aeth { syndrome: Syndrome::ACK, msn: 0 }).atomic_ack(AtomicAckEth { original: 5 })
        }
        _ => head.seth(seth),
    };
    let head = if info.has_imm { head.imm(ImmDt { bytes: [1; 4] }) } else { head };
    let head = if info.has_inv { head.ieth(Ieth { rkey }) } else { head };
    let mut bytes = head.as_slice().to_vec();
    if info.kind == OpKind::Ack {
        let bits: Vec<u64> = (0..words).map(|_| rng.next_u64() & rng.next_u64()).collect();
        let mut out = [0; 120];
        let len = AckBitmap::emit(&bits, &mut out);
        bytes.extend_from_slice(&out[..len]);
    }
    bytes.resize(bytes.len() + len as usize, 7);
    Some(bytes)
}

const RC_ANSWERS: [Opcode; 7] = [
    Opcode::RcAck,
    Opcode::RcAck,
    Opcode::RcAtomicAck,
    Opcode::RcReadResponseFirst,
    Opcode::RcReadResponseMiddle,
    Opcode::RcReadResponseLast,
    Opcode::RcReadResponseOnly,
];
const XRC_ANSWERS: [Opcode; 7] = [
    Opcode::XrcAck,
    Opcode::XrcAck,
    Opcode::XrcAtomicAck,
    Opcode::XrcReadResponseFirst,
    Opcode::XrcReadResponseMiddle,
    Opcode::XrcReadResponseLast,
    Opcode::XrcReadResponseOnly,
];

/// An answer of the standard family. A pair in the other family takes none, except for a NAK that ends it.
fn forge_standard_answer(rng: &mut Rng, xrc: bool, to: u8, psn: Psn) -> Vec<u8> {
    let answers = if xrc { XRC_ANSWERS } else { RC_ANSWERS };
    let opcode = answers[rng.below(7) as usize];

    let syndrome = match rng.below(20) {
        0 => Syndrome::Nak(NakCode::RemoteOperation),
        1..4 => Syndrome::Rnr { timer: 1 },
        4..8 => Syndrome::Nak(NakCode::PsnSequence),
        _ => Syndrome::ACK,
    };
    let head = HeadBuf::new(&Bth::new(opcode, qpn_of(to), psn));
    let head = match opcode {
        Opcode::RcReadResponseMiddle | Opcode::XrcReadResponseMiddle => head,
        _ => head.aeth(Aeth { syndrome, msn: 0 }),
    };
    let head = if opcode.kind() == OpKind::AtomicAck { head.atomic_ack(AtomicAckEth { original: 5 }) } else { head };
    let mut bytes = head.as_slice().to_vec();
    if opcode.info().has_payload {
        bytes.resize(bytes.len() + 1024, 7);
    }
    bytes
}

fn post(rng: &mut Rng, pair: &mut Pair, me: usize, wr_id: u64) {
    let opcodes = [
        WrOpcode::Send,
        WrOpcode::RdmaWrite,
        WrOpcode::RdmaWriteWithImm,
        WrOpcode::RdmaRead,
        WrOpcode::AtomicFetchAndAdd,
    ];
    let opcode = opcodes[rng.below(5) as usize];
    let len = if opcode == WrOpcode::AtomicFetchAndAdd { 8 } else { rng.below(12_000) as u32 };
    let (rkey, at) = (pair.ends[1 - me].lkey, 8 * rng.below(MEMORY / 16));
    let flags = send_flags::SIGNALED as u16;
    let remote_qpn = 1 + rng.below(2) as u32;
    let wqe = SendWqe { wr_id, opcode: opcode as u8, flags, rkey, remote_addr: at, remote_qpn, ..SendWqe::default() };
    let sge = pair.ends[me].sge(at, len);
    pair.ends[me].post(&wqe, &[sge]);
}

fn play(seed: u64, xrc: bool) {
    let mut rng = Rng::new(seed);
    let base = Setup::default();
    let psn = Psn::new(if rng.below(2) == 0 { 0xff_fff0 } else { 5 });
    let attr = QpAttr { rq_psn: psn, sq_psn: psn, ..base.attr };
    let window = 1 << rng.between(12, 18);
    let setup =
        Setup { selective: WINDOW_PSNS, read_acks: seed % 2 == 1, attr, memory: MEMORY as usize, window, ..base };
    let faults = LinkFaults { loss: 300, duplication: 300, reordering: 300, delay_max: Nanos::from_us(50) };
    let pair_of = if xrc { Pair::xrc } else { Pair::new };
    let mut pair = pair_of(&setup, rng.next_u64(), faults);
    let mut queues = [1, 2].map(|srqn| crate::common::xrc_queue(&mut pair.ends[1], srqn, crate::common::PD, (64, 1)));
    let mut posted = [0u64; 2];
    for end in &mut pair.ends {
        let records = rng.below(3) as usize;
        end.fx.records = if seed % 4 == 3 { RecordPool::strict(records, 5) } else { RecordPool::new(records) };
    }
    for _ in 0..ACTIONS {
        let me = rng.below(2) as usize;
        match rng.below(6) {
            0 if xrc && me == 1 => {
                let sge = pair.ends[1].sge(8 * rng.below(1000), 16_000);
                let queue = &mut queues[rng.below(2) as usize];
                if queue.write(9, &[sge]).is_ok() {
                    let _ = queue.post();
                }
            }
            0 if pair.ends[me].sq.room() > 8 && pair.ends[me].qp.state() == QpState::Rts => {
                post(&mut rng, &mut pair, me, posted[me]);
                posted[me] += 1;
            }
            1 if pair.ends[me].rq.room() > 8 => {
                let sge = pair.ends[me].sge(8 * rng.below(1000), 16_000);
                pair.ends[me].post_receive(9, &[sge]);
            }
            2 | 3 => {
                let query = pair.ends[me].qp.query();
                // Near what the end expects as responder, or has in flight as requester.
                let about = if rng.below(2) == 0 { query.rq_psn } else { query.sq_psn.sub(rng.below(20) as u32) };
                let (psn, rkey) = (near(&mut rng, about, 40), pair.ends[me].lkey);
                let forged = match rng.below(5) {
                    0 => Some(forge_standard_answer(&mut rng, xrc, me as u8, psn)),
                    _ => forge(&mut rng, xrc, me as u8, psn, rkey),
                };
                if let Some(bytes) = forged {
                    let now = pair.now;
                    pair.ends[me].receive_from(now, ip_of(1 - me as u8), &bytes);
                }
            }
            _ => {
                let until = pair.now + Nanos(rng.below(200_000));
                pair.run(until);
            }
        }
        assert!(pair.ends.iter().all(|end| end.fx.records.in_use() <= 6));
    }
    for (end, posted) in pair.ends.iter_mut().zip(posted) {
        if end.qp.state() != QpState::Err {
            end.move_to(QpState::Err);
        }
        end.drain(Nanos::from_ms(1_000_000));
        let ids: Vec<u64> = end.fx.sends.iter().map(|cqe| cqe.wr_id).collect();
        assert_eq!(ids, (0..posted).collect::<Vec<_>>(), "each request ends once, in order");
        assert_eq!((end.fx.records.in_use(), end.qp.inflight_bytes()), (0, 0));
        assert_eq!(end.fx.records.packets_in_use(), 0);
        assert_eq!(end.qp.next_deadline(), Nanos::NEVER);
    }
}

#[test]
fn forged_packets_break_no_live_pair() {
    play_seeds(false);
}

#[test]
fn forged_packets_break_no_live_pair_of_xrc() {
    play_seeds(true);
}

fn play_seeds(xrc: bool) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = number("BURST_SEEDS").unwrap_or(if cfg!(debug_assertions) { 150 } else { 20_000 });
    for seed in number("BURST_SEED").map_or(0..seeds, |seed: u64| seed..seed + 1) {
        if std::panic::catch_unwind(|| play(seed, xrc)).is_err() {
            panic!("seed {seed}: BURST_SEED={seed} runs it again");
        }
    }
}
