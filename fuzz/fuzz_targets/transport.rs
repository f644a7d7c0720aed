//! Sequences of posts, packets, losses, time and state changes against a live queue pair pair.
//!
//! The input is a program: its first bytes choose service, MTU and depth; each further opcode byte is an action with a few
//! operand bytes. Nothing may panic, no end may want to send for ever, completions come once and in the order of posting,
//! and after both ends have been moved to ERR every request has been retired.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/protocols/transport/tests/common/mod.rs"]
mod common;

use burst_base::verbs::{Mtu, QpAttr, QpState, QpType, attr_mask};
use burst_base::{Nanos, Psn, Rkey};
use burst_fuzz::Tape;
use burst_shm::layout::{SendWqe, Sge};
use burst_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HeadBuf, Ieth, ImmDt, OpKind, Opcode, Reth, Saeth, Seth, Syndrome, Weth,
    XrcEth,
};
use common::{LinkFaults, Pair, Setup, ip_of, qpn_of};
use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;

const MEMORY: usize = 64 << 10;
const ACTIONS_MAX: usize = 400;

/// Operands of actions.
trait Operands {
    /// Mostly near `from`, sometimes anything.
    fn psn(&mut self, from: Psn) -> Psn;
    /// Mostly inside the memory, sometimes anything.
    fn addr(&mut self) -> u64;
    /// Mostly short, sometimes anything.
    fn len(&mut self) -> u32;
    /// Mostly `good`, sometimes anything.
    fn key(&mut self, good: u32) -> u32;
}

impl Operands for Tape<'_> {
    fn psn(&mut self, from: Psn) -> Psn {
        match self.byte() {
            255 => Psn::new(self.word()),
            near => from.add(u32::from(near)).sub(64),
        }
    }
    fn addr(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from(self.word()) << 32 | u64::from(self.word()),
            page => u64::from(page) << 8 | u64::from(self.byte()),
        }
    }
    fn len(&mut self) -> u32 {
        match self.byte() {
            255 => self.word(),
            small @ 0..128 => u32::from(small),
            large => u32::from(large - 127) * 250,
        }
    }
    fn key(&mut self, good: u32) -> u32 {
        if self.byte() % 16 == 0 { self.word() } else { good }
    }
}

/// What one end has posted and seen.
#[derive(Default)]
struct Book {
    posted: u64,
    /// The next wr_id that may complete: completions of unsignaled requests may be skipped, never repeated.
    next: u64,
    receives: u64,
    received: u64,
    /// Receives of an XRC target that have completed.
    ended: HashSet<u64>,
}

fn setup(tape: &mut Tape<'_>) -> Setup {
    let base = Setup::default();
    let kinds = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud];
    let first = tape.byte();
    let (depth, selective) = (first % 17, if first >= 128 { burst_transport::WINDOW_PSNS } else { 0 });
    let read_acks = first >= 192;
    let second = tape.byte();
    let timeout = second % 16;
    let attr = QpAttr {
        max_rd_atomic: depth,
        max_dest_rd_atomic: tape.byte() % 17,
        timeout,
        retry_cnt: tape.byte() % 8,
        rnr_retry: tape.byte() % 8,
        ..base.attr
    };
    let kind = kinds[usize::from(tape.byte() % 4)];
    // The initiator's type stands for an initiator and its target.
    let qp_type = if second >= 192 && kind == QpType::Rc { QpType::XrcSend } else { kind };
    let (qp_type, mtu) = (qp_type, Mtu::ALL[usize::from(tape.byte() % 5)]);
    Setup { qp_type, mtu, memory: MEMORY, attr, window: 1 << (8 + tape.byte() % 13), selective, read_acks, ..base }
}

fn post(tape: &mut Tape<'_>, pair: &mut Pair, me: usize, book: &mut Book) {
    let peer_key = pair.ends[1 - me].lkey;
    let end = &mut pair.ends[me];
    if end.sq.room() == 0 || end.qp.qp_type() == QpType::XrcRecv {
        return;
    }
    let is_xrc = end.qp.qp_type() == QpType::XrcSend;
    let wqe = SendWqe {
        wr_id: book.posted,
        opcode: tape.byte() % 11,
        flags: u16::from(tape.byte() & 7),
        imm: tape.key(peer_key),
        remote_addr: tape.addr(),
        rkey: tape.key(peer_key),
        compare_add: u64::from(tape.byte()),
        swap: u64::from(tape.byte()),
        remote_qpn: if is_xrc { u32::from(tape.byte() % 4) } else { qpn_of(1 - me as u8).get() },
        remote_qkey: common::QKEY.0,
        ..SendWqe::default()
    };
    book.posted += 1;
    match tape.byte() % 4 {
        0 => {
            let data = tape.take(usize::from(end.sq.spec().max_inline().min(40) as u8));
            end.post_inline(&wqe, &data);
        }
        count => {
            let lkey = end.lkey;
            let sges: Vec<Sge> = (0..count * 3 % 7)
                .map(|_| Sge { addr: tape.addr(), length: tape.len(), lkey: tape.key(lkey) })
                .collect();
            end.post(&wqe, &sges);
        }
    }
}

/// A head with the SETH that this opcode wants, and the WETH.
fn with_selective(head: HeadBuf, tape: &mut Tape<'_>, opcode: Opcode, weth: Weth) -> HeadBuf {
    let index = if opcode.position().is_start() { 0 } else { 1 + u32::from(tape.byte()) };
    let seth = Seth { transmission: tape.byte() & 15, index, ..Seth::default() };
    match opcode.kind() {
        OpKind::Ack | OpKind::ReadAck => head,
        OpKind::Write => head.seth(seth).weth(weth),
        _ => head.seth(seth),
    }
}

/// Whether the opcode's packets name a shared receive queue.
fn names_queue(opcode: Opcode) -> bool {
    use burst_wire::Service;
    let is_xrc = matches!(opcode.service(), Service::Xrc | Service::XrcSr);
    is_xrc && opcode.kind().is_request() && opcode.kind() != OpKind::Probe
}

/// A packet, or a train of such with numbers that rise, as a peer, or somebody else, might send it.
fn inject(tape: &mut Tape<'_>, pair: &mut Pair, me: usize) {
    let end = &mut pair.ends[me];
    let Some(opcode) = Opcode::from_number(tape.byte()) else { return };
    let query = end.qp.query();
    let from = if opcode.kind().is_response() { query.sq_psn } else { query.rq_psn };
    let flags = tape.byte();
    let payload_len = if opcode.info().has_payload { tape.len().min(5000) as usize } else { 0 };
    let pad = payload_len.wrapping_neg() & 3;
    let bth = Bth {
        ack_req: flags & 1 != 0,
        solicited: flags & 2 != 0,
        pad: pad as u8,
        ..Bth::new(opcode, qpn_of(me as u8), tape.psn(from))
    };
    let key = Rkey(tape.key(end.lkey));
    let (addr, len) = (tape.addr(), tape.len());
    let mut bytes = HeadBuf::new(&bth);
    let template = opcode.head_len();
    // Add whatever makes the head as long as the opcode wants, in the order of the wire.
    let kind = opcode.kind();
    if opcode.service() == burst_wire::Service::Ud {
        bytes = bytes.deth(Deth { qkey: common::QKEY, src_qpn: qpn_of(9) });
    }
    if names_queue(opcode) {
        bytes = bytes.xrceth(XrcEth { srqn: u32::from(tape.byte() % 4) });
    }
    if opcode.service().is_selective() {
        bytes = with_selective(bytes, tape, opcode, Weth { addr, rkey: key });
    }
    if (kind == OpKind::Write && opcode.position().is_start() && !opcode.service().is_selective())
        || kind == OpKind::ReadRequest
    {
        bytes = bytes.reth(Reth { addr, rkey: key, len });
    }
    if kind.is_atomic() {
        bytes = bytes.atomic(AtomicEth { addr, rkey: key, swap_add: 1, compare: 0 });
    }
    if matches!(kind, OpKind::Ack | OpKind::AtomicAck) || (kind == OpKind::ReadResponse && bytes.len() < template) {
        bytes = bytes.aeth(Aeth { syndrome: Syndrome::from_byte(tape.byte()), msn: u32::from(tape.byte()) });
    }
    if kind == OpKind::AtomicAck {
        bytes = bytes.atomic_ack(AtomicAckEth { original: 1 });
    }
    if opcode.service().is_selective() && matches!(kind, OpKind::Ack | OpKind::ReadAck) {
        let words = if kind == OpKind::Ack { (payload_len / 8).min(15) as u8 } else { 0 };
        bytes = bytes.saeth(Saeth { words, ..Saeth::default() });
    }
    if opcode.info().has_imm {
        bytes = bytes.imm(ImmDt { bytes: [1, 2, 3, 4] });
    }
    if opcode.info().has_inv {
        bytes = bytes.ieth(Ieth { rkey: key });
    }
    if bytes.len() != template {
        return;
    }
    let mut packet = bytes.as_slice().to_vec();
    packet.resize(packet.len() + payload_len + pad, tape.byte());
    let src = ip_of(1 - me as u8);
    if flags & 4 == 0 {
        return end.receive_from(pair.now, src, &packet);
    }
    let numbered = |k: u32| {
        let mut packet = packet.clone();
        Bth::set_psn(&mut packet, bth.psn.add(k));
        packet
    };
    let train: Vec<Vec<u8>> = (0..2 + u32::from(flags >> 3)).map(numbered).collect();
    end.receive_train(pair.now, src, &train);
}

fn modify(tape: &mut Tape<'_>, pair: &mut Pair, me: usize) {
    let state = QpState::ALL[usize::from(tape.byte() % 7)];
    // RESET would begin the numbering of completions anew: it is tested elsewhere.
    if state == QpState::Reset {
        return;
    }
    let attr = QpAttr { qp_state: state, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = if state == QpState::Sqd { attr_mask::EN_SQD_ASYNC_NOTIFY } else { 0 };
    let _ = pair.ends[me].modify(&attr, attr_mask::STATE | mask, 1 - me as u8);
}

fn check(pair: &mut Pair, books: &mut [Book; 2]) {
    for (end, book) in pair.ends.iter_mut().zip(books) {
        for cqe in end.fx.sends.drain(..) {
            assert!(cqe.wr_id >= book.next && cqe.wr_id < book.posted, "completed twice, out of order or from nowhere");
            book.next = cqe.wr_id + 1;
            assert_eq!(u64::from(cqe.sq_consumer), book.next);
            end.sq.free(cqe.sq_consumer);
        }
        let is_target = end.qp.qp_type() == QpType::XrcRecv;
        for (cqe, _) in end.fx.receives.drain(..) {
            // Receives of shared queues complete in any order.
            assert!(
                is_target && book.ended.insert(cqe.wr_id) || cqe.wr_id == book.received,
                "a receive completes twice"
            );
            book.received += 1;
            assert!(book.received <= book.receives);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let setup = setup(&mut tape);
    let delay_max = Nanos::from_us(100);
    let bad = LinkFaults { loss: 1000, duplication: 1000, reordering: 1000, delay_max };
    let faults = if tape.byte() % 2 == 0 { LinkFaults::default() } else { bad };
    let is_xrc = setup.qp_type == QpType::XrcSend;
    let pair_of = if is_xrc { Pair::xrc } else { Pair::new };
    let mut pair = pair_of(&setup, u64::from(tape.byte()), faults);
    let mut queues: Vec<_> =
        (1..3).map(|srqn| common::xrc_queue(&mut pair.ends[1], srqn, common::PD, (16, 1))).collect();
    let mut books = [Book::default(), Book::default()];
    for _ in 0..ACTIONS_MAX {
        if tape.is_empty() {
            break;
        }
        let action = tape.byte();
        let me = usize::from(action & 1);
        match action >> 1 & 7 {
            0 | 1 => post(&mut tape, &mut pair, me, &mut books[me]),
            2 => {
                let (end, book) = (&mut pair.ends[me], &mut books[me]);
                let sges = [Sge { addr: tape.addr(), length: tape.len(), lkey: end.lkey }];
                if is_xrc {
                    let queue = &mut queues[usize::from(tape.byte() % 2)];
                    if me == 1 && queue.write(book.receives, &sges).is_ok() {
                        let _ = queue.post();
                        book.receives += 1;
                    }
                } else if end.rq.room() > 0 {
                    end.post_receive(book.receives, &sges);
                    book.receives += 1;
                }
            }
            3 | 4 => {
                for _ in 0..1 + tape.byte() % 8 {
                    pair.step(Nanos::NEVER);
                }
            }
            5 => inject(&mut tape, &mut pair, me),
            6 => {
                let len = usize::from(tape.byte());
                let raw = tape.take(len);
                let now = pair.now;
                pair.ends[me].receive_from(now, ip_of(1 - me as u8), &raw);
            }
            _ if tape.byte() % 8 == 0 => modify(&mut tape, &mut pair, me),
            _ => {
                pair.now = pair.now + Nanos::from_us(u64::from(tape.byte()) * 50);
                let until = pair.now;
                for _ in 0..64 {
                    pair.step(until);
                }
            }
        }
        check(&mut pair, &mut books);
    }
    for (end, book) in pair.ends.iter_mut().zip(&mut books) {
        end.move_to(QpState::Err);
        end.drain(pair.now);
        if end.qp.qp_type() == QpType::XrcRecv {
            continue;
        }
        // Unsignaled requests that succeeded last are ended by the completion of one more.
        end.sq.free_all();
        end.post(&SendWqe { wr_id: book.posted, ..SendWqe::default() }, &[]);
        book.posted += 1;
        end.drain(pair.now);
    }
    check(&mut pair, &mut books);
    for (book, end) in books.iter().zip(&pair.ends) {
        assert_eq!(book.next, book.posted, "not all requests were flushed");
        // Receives of shared queues serve other targets as well.
        assert!(is_xrc || book.received == book.receives, "not all receives were flushed");
        assert_eq!(end.qp.inflight_bytes(), 0);
    }
});
