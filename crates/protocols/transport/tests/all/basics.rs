//! RC, in order and without loss: every operation, sizes around the MTU, scatter/gather, inline, immediate data.
use crate::common::{End, LinkFaults, Pair, Setup, ip_of};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, WcOpcode, WcStatus, WrOpcode, send_flags, wc_flags};
use burst_shm::layout::{SendWqe, Sge};
use burst_transport::WINDOW_PSNS;
use burst_wire::{Bth, OpKind};

fn pattern(len: usize, tag: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(tag)).collect()
}

fn request(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: opcode as u8, flags: send_flags::SIGNALED as u16, ..SendWqe::default() }
}

/// `len` bytes from `addr` in up to `pieces` entries.
fn cut(end: &End, addr: u64, len: u32, pieces: u32) -> Vec<Sge> {
    let each = (len / pieces).max(1);
    let mut out = Vec::new();
    let mut at = 0;
    while at < len {
        let take = if out.len() as u32 + 1 == pieces { len - at } else { each.min(len - at) };
        out.push(end.sge(addr + u64::from(at), take));
        at += take;
    }
    out
}

const SIZES: [u32; 12] = [0, 1, 3, 4, 255, 256, 257, 1024, 1025, 4096, 9000, 300_000];

#[test]
fn send_carries_every_size_over_every_mtu_from_and_to_many_entries() {
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        for (size, pieces) in SIZES.into_iter().flat_map(|s| [(s, 1), (s, 7), (s, 32)]) {
            let mut pair = Pair::new(&Setup { mtu, ..Setup::default() }, 1, LinkFaults::default());
            let data = pattern(size as usize, 7);
            pair.ends[0].write_memory(0, &data);
            let to = cut(&pair.ends[1], 1000, size + 17, 33 - pieces);
            pair.ends[1].post_receive(5, &to);
            let from = cut(&pair.ends[0], 0, size, pieces);
            pair.ends[0].post(&request(WrOpcode::Send, 9), &from);
            pair.settle();
            assert_eq!(pair.ends[0].statuses(), [WcStatus::Success], "{mtu:?} {size} {pieces}");
            let (cqe, solicited) = pair.ends[1].fx.receives[0];
            assert_eq!((cqe.byte_len, cqe.wr_id, solicited), (size, 5, false));
            assert_eq!(pair.ends[1].memory(1000, size as usize), data);
        }
    }
}

#[test]
fn write_and_read_move_every_size() {
    for mtu in [Mtu::B256, Mtu::B2048] {
        for size in SIZES {
            let mut pair = Pair::new(&Setup { mtu, ..Setup::default() }, 1, LinkFaults::default());
            let (data, key) = (pattern(size as usize, 3), pair.ends[1].lkey);
            pair.ends[0].write_memory(0, &data);
            let write = SendWqe { remote_addr: 512, rkey: key, ..request(WrOpcode::RdmaWrite, 1) };
            let read = SendWqe { remote_addr: 512, rkey: key, ..request(WrOpcode::RdmaRead, 2) };
            let (from, to) = (cut(&pair.ends[0], 0, size, 3), cut(&pair.ends[0], 500_000, size, 4));
            pair.ends[0].post(&write, &from);
            pair.ends[0].post(&read, &to);
            pair.settle();
            assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 2], "{mtu:?} {size}");
            assert_eq!(pair.ends[1].memory(512, size as usize), data);
            assert_eq!(pair.ends[0].memory(500_000, size as usize), data);
            assert_eq!(pair.ends[0].fx.sends[1].byte_len, size);
            assert_eq!(pair.ends[0].qp.inflight_bytes(), 0);
        }
    }
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = Pair::new(&Setup::default(), 1, LinkFaults::default());
    let key = pair.ends[1].lkey;
    pair.ends[1].write_memory(64, &40u64.to_ne_bytes());
    let add = SendWqe { remote_addr: 64, rkey: key, compare_add: 2, ..request(WrOpcode::AtomicFetchAndAdd, 1) };
    let swap = SendWqe { compare_add: 42, swap: 99, ..SendWqe { opcode: WrOpcode::AtomicCmpAndSwp as u8, ..add } };
    let miss = SendWqe { compare_add: 1, ..swap };
    for (i, wqe) in [add, swap, miss].iter().enumerate() {
        let to = [pair.ends[0].sge(8 * i as u64, 8)];
        pair.ends[0].post(wqe, &to);
    }
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 3]);
    let values: Vec<u64> =
        pair.ends[0].memory(0, 24).chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
    assert_eq!(values, [40, 42, 99]);
    assert_eq!(pair.ends[1].memory(64, 8), 99u64.to_ne_bytes());
    assert_eq!(pair.ends[0].fx.sends[1].opcode, WcOpcode::CompSwap as u8);
}

#[test]
fn immediate_data_invalidate_solicited_and_inline() {
    let mut pair = Pair::new(&Setup::default(), 1, LinkFaults::default());
    let key = pair.ends[1].lkey;
    let window = pair.ends[1].window();
    pair.ends[1].post(&crate::common::bind(window, window, key, 4096), &[]);
    for wr_id in 0..3 {
        let to = [pair.ends[1].sge(1000 * wr_id, 1000)];
        pair.ends[1].post_receive(wr_id, &to);
    }
    let flags = (send_flags::SIGNALED | send_flags::SOLICITED) as u16;
    let imm = 0x0102_0304u32;
    pair.ends[0].post_inline(&SendWqe { imm, flags, ..request(WrOpcode::SendWithImm, 1) }, b"hello");
    let write = SendWqe { imm, remote_addr: 8000, rkey: key, ..request(WrOpcode::RdmaWriteWithImm, 2) };
    pair.ends[0].post_inline(&write, b"there");
    pair.ends[0].post_inline(&SendWqe { imm: window, ..request(WrOpcode::SendWithInv, 3) }, b"");
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 3]);
    let got: Vec<_> =
        pair.ends[1].fx.receives.iter().map(|(c, s)| (c.opcode, c.byte_len, c.imm, c.wc_flags, *s)).collect();
    assert_eq!(
        got,
        [
            (WcOpcode::Recv as u8, 5, imm, wc_flags::WITH_IMM, true),
            (WcOpcode::RecvRdmaWithImm as u8, 5, imm, wc_flags::WITH_IMM, false),
            (WcOpcode::Recv as u8, 0, window, wc_flags::WITH_INV, false),
        ]
    );
    assert_eq!((pair.ends[1].memory(0, 5), pair.ends[1].memory(8000, 5)), (b"hello".to_vec(), b"there".to_vec()));
    let write = SendWqe { rkey: window, ..request(WrOpcode::RdmaWrite, 4) };
    pair.ends[0].post_inline(&write, b"x");
    pair.settle();
    assert_eq!(pair.ends[0].statuses()[3], WcStatus::RemAccessErr);
}

#[test]
fn unsignaled_requests_are_retired_by_the_next_signaled_one() {
    let mut pair = Pair::new(&Setup::default(), 1, LinkFaults::default());
    let key = pair.ends[1].lkey;
    for wr_id in 0..6 {
        let flags = if wr_id % 3 == 2 { send_flags::SIGNALED as u16 } else { 0 };
        pair.ends[0].post_inline(&SendWqe { flags, rkey: key, ..request(WrOpcode::RdmaWrite, wr_id) }, b"abc");
    }
    pair.settle();
    let got: Vec<_> = pair.ends[0].fx.sends.iter().map(|c| (c.wr_id, c.sq_consumer)).collect();
    assert_eq!(got, [(2, 3), (5, 6)]);
}

#[test]
fn a_message_of_two_gibibytes_less_one_is_accepted_and_one_byte_over_the_limit_is_not() {
    let mut pair = Pair::new(&Setup::default(), 1, LinkFaults::default());
    let key = pair.ends[1].lkey;
    // The region is smaller than the message; the status shows which check refuses.
    let sges = [Sge { addr: 0, length: 1 << 31, lkey: pair.ends[0].lkey }];
    pair.ends[0].post(&SendWqe { rkey: key, ..request(WrOpcode::RdmaWrite, 1) }, &sges);
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::LocProtErr]);

    let mut pair = Pair::new(&Setup::default(), 1, LinkFaults::default());
    let lkey = pair.ends[0].lkey;
    let sges = [Sge { addr: 0, length: 1 << 31, lkey }, Sge { addr: 0, length: 1, lkey }];
    pair.ends[0].post(&SendWqe { rkey: key, ..request(WrOpcode::RdmaWrite, 1) }, &sges);
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::LocLenErr]);
}

/// Lengths of what end 1 sends, in order, when it answers a message by others of these sizes.
fn answers(selective: u32, sizes: &[u32]) -> Vec<(bool, usize)> {
    let mut pair = Pair::new(&Setup { selective, ..Setup::default() }, 1, LinkFaults::default());
    let to = cut(&pair.ends[1], 1000, 64, 1);
    pair.ends[1].post_receive(5, &to);
    let from = cut(&pair.ends[0], 0, 8, 1);
    pair.ends[0].post(&request(WrOpcode::Send, 9), &from);
    for packet in pair.ends[0].drain(Nanos(1)) {
        pair.ends[1].receive_from(Nanos(2), ip_of(0), &packet);
    }
    for size in sizes {
        let from = cut(&pair.ends[1], 0, *size, 1);
        pair.ends[1].post(&request(WrOpcode::Send, 9), &from);
    }
    let sent = pair.ends[1].drain(Nanos(3));
    sent.iter()
        .map(|bytes| (Bth::parse(bytes).expect("a packet").opcode.info().kind == OpKind::Ack, bytes.len()))
        .collect()
}

#[test]
fn an_answer_and_the_acknowledgement_are_a_train_whichever_is_longer() {
    for (selective, ack, own) in [(0, 16, 12), (WINDOW_PSNS, 28, 20)] {
        for size in [0usize, 1, 4, 5, 8, 9, 64] {
            let answer = (false, own + size.next_multiple_of(4));
            let want = if answer.1 < ack { [(true, ack), answer] } else { [answer, (true, ack)] };
            assert_eq!(answers(selective, &[size as u32]), want, "{selective} {size}");
        }
        // What is sent first decides; the others keep their order.
        let [short, long] = [own, own + 64].map(|len| (false, len));
        assert_eq!(answers(selective, &[0, 64, 0]), [(true, ack), short, long, short]);
        assert_eq!(answers(selective, &[64, 0, 64]), [long, short, long, (true, ack)]);
    }
}
