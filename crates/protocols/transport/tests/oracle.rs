//! Random operations of all kinds, both ways at once, over a link that loses, repeats and reorders, against a model.
//!
//! The model is the guarantee of the verbs API: requests of one direction are executed in order, each exactly once. Each end's
//! memory has a constant pool (source of everything sent, and of unfenced READs), a target that only the peer writes
//! (WRITE, atomics; READ from it makes the next request fenced, because a READ may otherwise see a later request), receive
//! slots, and a ring of destinations for READ and atomic results. Checked: bytes of each receive and READ, results of
//! atomics, order, number and fields of completions, the targets at the end, and that no request hangs.
//!
//! An XRC initiator and its target have one direction. The target's receives are those of two shared receive queues, of which
//! each request names one. Receives of a shared queue are taken in any order.
//!
//! `BURST_SEED=n` runs one seed; a failing seed is printed. `BURST_SEEDS`, `BURST_OPS` change the amounts.
mod common;

use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, QpAttr, QpType, WcOpcode, WcStatus, WrOpcode, send_flags, wc_flags};
use burst_base::{Nanos, Psn, Reason};
use burst_shm::layout::{Cqe, SGE_MAX, SendWqe, Sge};
use burst_shm::rq::RqProducer;
use burst_transport::{COPIES_PER_CALL, RD_ATOMIC_MAX, RECORDS_MAX, RecordPool};
use common::shuffled::Shuffled;
use common::{End, LinkFaults, Pair, Setup};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const POOL: u64 = 0;
const POOL_LEN: u64 = 512 << 10;
const TARGET: u64 = POOL + POOL_LEN;
const TARGET_LEN: u64 = 320 << 10;
const RECEIVES: u64 = TARGET + TARGET_LEN;
const RECEIVE_LEN: u64 = 64 << 10;
const RECEIVE_SLOTS: u64 = 16;
const RESULTS: u64 = RECEIVES + RECEIVE_LEN * RECEIVE_SLOTS;
const RESULTS_LEN: u64 = 1 << 20;
const MEMORY: u64 = RESULTS + RESULTS_LEN;
/// An end may go this many events without any completion.
const EVENTS_WITHOUT_PROGRESS: u64 = 2_000_000;

/// Paths that a run of all seeds must have taken.
const WHAT_MUST_HAPPEN: [Reason; 10] = [
    Reason::DuplicateRequest,
    Reason::SequenceGap,
    Reason::GapRepeated,
    Reason::ReceiverNotReady,
    Reason::StaleAck,
    Reason::UnexpectedResponse,
    Reason::ImpliedNak,
    Reason::SequenceNakReceived,
    Reason::RnrNakReceived,
    Reason::AckTimeout,
];

const WHAT_MUST_HAPPEN_SELECTIVELY: [Reason; 10] = [
    Reason::DuplicateRequest,
    Reason::ReceiverNotReady,
    Reason::RnrNakReceived,
    Reason::SrEarly,
    Reason::SrRecovery,
    Reason::SrRepeated,
    Reason::SrProbe,
    Reason::SrReordered,
    Reason::SrUnplaced,
    Reason::SrPoolEmpty,
];

/// What the ends are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Standard,
    Selective,
    /// Selective repeat between an XRC initiator, end 0, and its target.
    Xrc,
}

/// Bytes that a request moves to a place of its own: the place, and the expected bytes.
struct Result_ {
    sges: Vec<Sge>,
    bytes: Vec<u8>,
}

/// States of a memory window, in this order, then again from the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Window {
    Closed,
    /// This request binds it, or a later request has bound it.
    Binding(u64),
    Open,
    /// The peer sends its invalidation.
    Closing,
}

/// A posted request.
struct Posted {
    wr_id: u64,
    signaled: bool,
    opcode: WcOpcode,
    byte_len: u32,
    result: Option<Result_>,
    /// Bytes of the results ring it holds.
    ring: u64,
    /// What a WRITE has written in the peer's target: offset and length.
    written: (u64, u32),
}

/// A receive that the peer will complete here.
struct Awaited {
    bytes: Vec<u8>,
    byte_len: u32,
    imm: u32,
    wc_flags: u32,
    with_write: bool,
    solicited: bool,
    /// XRC: the shared receive queue that the message names.
    srqn: u32,
}

/// One direction: `from` posts, the other end's target is written.
struct Side {
    pool: Vec<u8>,
    /// Expected bytes of the peer's target, and of each the last request that writes it.
    target: Vec<u8>,
    writers: Vec<u32>,
    posted: VecDeque<Posted>,
    /// Messages that this end has sent and the peer has not received.
    awaited: VecDeque<Awaited>,
    next_wr: u64,
    retired: u32,
    unsignaled: u32,
    fence_next: bool,
    ring_next: u64,
    ring_free: u64,
    /// Receives of this end since the start: posted, completed.
    receives: [u64; 2],
    /// Memory windows of this end, which it binds and the peer invalidates.
    windows: Vec<(u32, Window)>,
}

struct Oracle {
    rng: Rng,
    pair: Pair,
    sides: [Side; 2],
    operations: u64,
    kind: Ends,
    /// XRC: the two shared receive queues, the queue of the next request, and which receive slots are posted. A slot is always
    /// one of the same queue.
    queues: Vec<RqProducer>,
    srqn: u32,
    slots: [bool; RECEIVE_SLOTS as usize],
}

/// XRC: number of the shared receive queue of a receive slot.
fn srqn_of(slot: u64) -> u32 {
    1 + (slot % 2) as u32
}

fn size(rng: &mut Rng, most: u64) -> u64 {
    let top = match rng.below(1000) {
        0..400 => 64,
        400..700 => 2048,
        700..950 => 16 << 10,
        950..996 => 64 << 10,
        _ => 300_000,
    };
    rng.between(0, top.min(most))
}

fn faults(rng: &mut Rng) -> LinkFaults {
    let delay_max = Nanos::from_us(100);
    match rng.below(8) {
        0 => LinkFaults::default(),
        1 => LinkFaults { loss: 500, duplication: 500, reordering: 500, delay_max },
        2 => LinkFaults { duplication: 1000, delay_max, ..LinkFaults::default() },
        3 => LinkFaults { reordering: 1000, delay_max, ..LinkFaults::default() },
        _ => LinkFaults { loss: 100, duplication: 100, reordering: 100, delay_max },
    }
}

/// An executor of an end; sometimes only one end has one.
fn executor(rng: &mut Rng, index: u8) -> Option<Shuffled> {
    let is_used = index == 1 || rng.below(4) > 0;
    let most = [COPIES_PER_CALL as u64, 100, 1000][rng.below(3) as usize] as usize;
    let late_max = Nanos::from_us([1, 10, 100][rng.below(3) as usize]);
    let executor = Shuffled::new(rng.next_u64(), most, late_max, [0, 30, 90][rng.below(3) as usize]);
    is_used.then_some(executor)
}

impl Oracle {
    fn new(seed: u64, operations: u64, (kind, trails): (Ends, bool)) -> Oracle {
        let selective = kind != Ends::Standard;
        let mut rng = Rng::new(seed);
        let mtus = Mtu::ALL;
        let base = Setup::default();
        let depth = match rng.between(1, 16) as u8 {
            16 => RD_ATOMIC_MAX,
            few => few,
        };
        let psn = Psn::new(if rng.below(2) == 0 { 0xff_fff0 } else { rng.next_u32() });
        let setup = Setup {
            mtu: mtus[rng.below(mtus.len() as u64) as usize],
            memory: MEMORY as usize,
            window: 1 << rng.between(13, 20),
            selective: if selective { burst_transport::WINDOW_PSNS } else { 0 },
            read_acks: seed % 2 == 1,
            attr: QpAttr { max_rd_atomic: depth, max_dest_rd_atomic: depth, rq_psn: psn, sq_psn: psn, ..base.attr },
            ..base
        };
        let fate = faults(&mut rng);
        let link_seed = rng.next_u64();
        let mut pair = match kind {
            _ if trails => {
                let types = if kind == Ends::Xrc { [QpType::XrcSend, QpType::XrcRecv] } else { [QpType::Rc; 2] };
                let [a, b] = types.map(|qp_type| Setup { qp_type, ..setup });
                Pair::with_copies([&a, &b], link_seed, fate, |index| executor(&mut rng, index))
            }
            Ends::Xrc => Pair::xrc(&setup, link_seed, fate),
            _ => Pair::new(&setup, link_seed, fate),
        };
        let queues = match kind {
            Ends::Xrc => (1..=2).map(|n| common::xrc_queue(&mut pair.ends[1], n, common::PD, (16, SGE_MAX))).collect(),
            _ => Vec::new(),
        };
        // Without records, or with one of each kind, queue pairs go back to the first missing packet.
        let records = match selective {
            true => [0, 1, RECORDS_MAX, RECORDS_MAX][rng.below(4) as usize],
            false => 0,
        };
        for end in &mut pair.ends {
            end.fx.records = RecordPool::new(records);
        }
        let sides = [0, 1].map(|index| Side::new(&mut rng, &mut pair.ends[index]));
        Oracle { rng, pair, sides, operations, kind, queues, srqn: 0, slots: [false; RECEIVE_SLOTS as usize] }
    }

    /// Plays the whole run, and returns the reasons that either end counted.
    fn run(&mut self) -> [u32; Reason::COUNT] {
        let mut posted = 0;
        let mut idle_events = 0;
        loop {
            for me in 0..2 {
                self.post_receives(me);
                if me == 1 && self.kind == Ends::Xrc {
                    continue;
                }
                let count = if self.rng.below(3) == 0 { self.rng.between(1, 12) } else { 0 };
                for _ in 0..count {
                    if posted < self.operations && self.post(me) {
                        posted += 1;
                    }
                }
            }
            let mut is_idle = false;
            for _ in 0..self.rng.between(1, 30) {
                is_idle = !self.pair.step(Nanos::NEVER);
                idle_events += 1;
            }
            if self.check_completions() {
                idle_events = 0;
            }
            let is_done = self.sides.iter().all(|side| side.posted.is_empty() && side.awaited.is_empty());
            if posted == self.operations && is_done && is_idle {
                break;
            }
            assert!(idle_events < EVENTS_WITHOUT_PROGRESS, "hangs");
            if posted == self.operations && is_idle && self.tail_unsignaled() {
                self.post_closing();
            }
        }
        for me in 0..2 {
            let there = self.pair.ends[1 - me].memory(TARGET, TARGET_LEN as usize);
            assert!(there == self.sides[me].target, "target of end {} differs", 1 - me);
            assert_eq!(self.pair.ends[me].qp.inflight_bytes(), 0);
            assert_eq!(self.pair.ends[me].fx.records.in_use(), 0, "records are given back");
            assert!(self.pair.ends[me].fx.events.len() <= 1, "{:?}", self.pair.ends[me].fx.events);
        }
        std::array::from_fn(|i| self.pair.ends.iter().map(|end| end.fx.count_of(Reason::ALL[i])).sum())
    }

    fn tail_unsignaled(&self) -> bool {
        self.sides.iter().any(|side| side.posted.back().is_some_and(|p| !p.signaled))
    }

    /// Unsignaled requests at the end are retired by a signaled one.
    fn post_closing(&mut self) {
        for me in 0..2 {
            if self.sides[me].posted.back().is_some_and(|p| !p.signaled) {
                let wqe = SendWqe { rkey: self.pair.ends[1 - me].lkey, ..SendWqe::default() };
                let data = Data { sges: Vec::new(), bytes: Vec::new(), is_inline: false };
                self.submit(me, WrOpcode::RdmaWrite, wqe, data, None, true);
            }
        }
    }

    fn post_receives(&mut self, me: usize) {
        if self.kind == Ends::Xrc {
            return self.post_shared(me);
        }
        let count = self.rng.below(6);
        for _ in 0..count {
            let side = &mut self.sides[me];
            if side.receives[0] - side.receives[1] >= RECEIVE_SLOTS {
                return;
            }
            let number = side.receives[0];
            side.receives[0] += 1;
            let addr = RECEIVES + number % RECEIVE_SLOTS * RECEIVE_LEN;
            let sges = cut(&mut self.rng, self.pair.ends[me].lkey, addr, RECEIVE_LEN);
            self.pair.ends[me].post_receive(number, &sges);
        }
    }

    /// XRC: posts receives to the target's shared receive queues.
    fn post_shared(&mut self, me: usize) {
        for _ in 0..if me == 1 { self.rng.below(6) } else { 0 } {
            let slot = self.rng.below(RECEIVE_SLOTS);
            if std::mem::replace(&mut self.slots[slot as usize], true) {
                continue;
            }
            let sges = cut(&mut self.rng, self.pair.ends[me].lkey, RECEIVES + slot * RECEIVE_LEN, RECEIVE_LEN);
            let queue = &mut self.queues[srqn_of(slot) as usize - 1];
            queue.write(slot, &sges).expect("room");
            let _ = queue.post();
        }
    }

    /// Posts one random request, if the queue has room.
    fn post(&mut self, me: usize) -> bool {
        if self.pair.ends[me].sq.room() < 2 {
            return false;
        }
        if self.kind == Ends::Xrc {
            self.srqn = 1 + self.rng.below(2) as u32;
        }
        let rkey = self.pair.ends[1 - me].lkey;
        match self.rng.below(10) {
            0 | 1 => self.post_send(me),
            2 | 3 => self.post_write(me, rkey),
            4 | 5 => self.post_read(me, rkey),
            6 | 7 => self.post_atomic(me, rkey),
            8 => self.post_bind(me),
            _ => self.post_write_imm(me, rkey),
        }
    }

    /// Binds a window that the peer has closed.
    fn post_bind(&mut self, me: usize) -> bool {
        let lkey = self.pair.ends[me].lkey;
        let wr_id = self.sides[me].next_wr;
        let Some(window) = self.sides[me].windows.iter_mut().find(|w| w.1 == Window::Closed) else { return false };
        window.1 = Window::Binding(wr_id);
        let wqe = SendWqe { flags: 0, ..common::bind(window.0, window.0, lkey, 4096) };
        let data = Data { sges: Vec::new(), bytes: Vec::new(), is_inline: false };
        self.submit(me, WrOpcode::BindMw, wqe, data, None, false)
    }

    fn post_send(&mut self, me: usize) -> bool {
        let data = self.data(me, RECEIVE_LEN);
        let mut opcode = [WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::SendWithInv][self.rng.below(3) as usize];
        let mut imm = self.rng.next_u32();
        let mut flags = if opcode == WrOpcode::SendWithImm { wc_flags::WITH_IMM } else { 0 };
        if opcode == WrOpcode::SendWithInv {
            match self.sides[1 - me].windows.iter_mut().find(|w| w.1 == Window::Open) {
                Some(window) => {
                    window.1 = Window::Closing;
                    (imm, flags) = (window.0, wc_flags::WITH_INV);
                }
                None => opcode = WrOpcode::Send,
            }
        }
        let solicited = self.rng.below(4) == 0;
        self.sides[me].awaited.push_back(Awaited {
            bytes: data.bytes.clone(),
            byte_len: data.bytes.len() as u32,
            imm: if flags == 0 { 0 } else { imm },
            wc_flags: flags,
            with_write: false,
            solicited,
            srqn: self.srqn,
        });
        let wqe = SendWqe { imm, flags: solicit(solicited), ..SendWqe::default() };
        self.submit(me, opcode, wqe, data, None, false)
    }

    fn post_write(&mut self, me: usize, rkey: u32) -> bool {
        let data = self.data(me, TARGET_LEN);
        let at = self.write_target(me, &data.bytes);
        let wqe = SendWqe { remote_addr: TARGET + at, rkey, ..SendWqe::default() };
        self.submit(me, WrOpcode::RdmaWrite, wqe, data, None, false)
    }

    fn post_write_imm(&mut self, me: usize, rkey: u32) -> bool {
        let data = self.data(me, TARGET_LEN);
        let at = self.write_target(me, &data.bytes);
        let imm = self.rng.next_u32();
        let solicited = self.rng.below(2) == 0;
        self.sides[me].awaited.push_back(Awaited {
            bytes: Vec::new(),
            byte_len: data.bytes.len() as u32,
            imm,
            wc_flags: wc_flags::WITH_IMM,
            with_write: true,
            solicited,
            srqn: self.srqn,
        });
        let wqe = SendWqe { remote_addr: TARGET + at, rkey, imm, flags: solicit(solicited), ..SendWqe::default() };
        self.submit(me, WrOpcode::RdmaWriteWithImm, wqe, data, None, false)
    }

    /// The model's WRITE; returns the offset in the target.
    fn write_target(&mut self, me: usize, bytes: &[u8]) -> u64 {
        let at = self.rng.below(TARGET_LEN - bytes.len() as u64 + 1);
        let (side, range) = (&mut self.sides[me], at as usize..at as usize + bytes.len());
        side.target[range.clone()].copy_from_slice(bytes);
        side.writers[range].fill(side.next_wr as u32);
        at
    }

    fn post_read(&mut self, me: usize, rkey: u32) -> bool {
        let len = size(&mut self.rng, TARGET_LEN);
        let Some((at, ring)) = self.sides[me].take_results(len) else { return false };
        let from_target = self.rng.below(2) == 0;
        let (remote_addr, bytes) = if from_target {
            let offset = self.rng.below(TARGET_LEN - len + 1);
            (TARGET + offset, self.sides[me].target[offset as usize..(offset + len) as usize].to_vec())
        } else {
            let offset = self.rng.below(POOL_LEN - len + 1);
            (POOL + offset, self.sides[1 - me].pool[offset as usize..(offset + len) as usize].to_vec())
        };
        let sges = cut(&mut self.rng, self.pair.ends[me].lkey, at, len);
        let data = Data { sges: sges.clone(), bytes: Vec::new(), is_inline: false };
        let wqe = SendWqe { remote_addr, rkey, ..SendWqe::default() };
        let posted = self.submit(me, WrOpcode::RdmaRead, wqe, data, Some((Result_ { sges, bytes }, ring)), false);
        self.sides[me].fence_next |= from_target;
        posted
    }

    fn post_atomic(&mut self, me: usize, rkey: u32) -> bool {
        let Some((at, ring)) = self.sides[me].take_results(8) else { return false };
        let cell = (self.rng.below(64) * 8) as usize;
        let side = &mut self.sides[me];
        let before = u64::from_ne_bytes(side.target[cell..cell + 8].try_into().expect("8"));
        let add = self.rng.next_u64();
        let is_add = self.rng.below(2) == 0;
        let compare = if self.rng.below(2) == 0 { before } else { before ^ 1 };
        let after = match (is_add, compare == before) {
            (true, _) => before.wrapping_add(add),
            (false, true) => add,
            (false, false) => before,
        };
        side.target[cell..cell + 8].copy_from_slice(&after.to_ne_bytes());
        side.writers[cell..cell + 8].fill(side.next_wr as u32);
        let sges = vec![self.pair.ends[me].sge(at, 8)];
        let data = Data { sges: sges.clone(), bytes: Vec::new(), is_inline: false };
        let opcode = if is_add { WrOpcode::AtomicFetchAndAdd } else { WrOpcode::AtomicCmpAndSwp };
        let (compare_add, swap) = if is_add { (add, 0) } else { (compare, add) };
        let wqe = SendWqe { remote_addr: TARGET + cell as u64, rkey, compare_add, swap, ..SendWqe::default() };
        let result = Result_ { sges, bytes: before.to_ne_bytes().to_vec() };
        let posted = self.submit(me, opcode, wqe, data, Some((result, ring)), false);
        // Without a fence a later WRITE may be placed before an ATOMIC is executed (IBA 10.8.3.3), if the ATOMIC was lost.
        self.sides[me].fence_next |= self.kind != Ends::Standard;
        posted
    }

    /// Random bytes out of the pool, in up to 32 pieces, or inline.
    fn data(&mut self, me: usize, most: u64) -> Data {
        let len = size(&mut self.rng, most);
        let offset = self.rng.below(POOL_LEN - len + 1);
        let bytes = self.sides[me].pool[offset as usize..(offset + len) as usize].to_vec();
        let is_inline = len <= 256 && self.rng.below(2) == 0;
        let sges = cut(&mut self.rng, self.pair.ends[me].lkey, POOL + offset, len);
        Data { sges, bytes, is_inline }
    }

    fn submit(
        &mut self,
        me: usize,
        opcode: WrOpcode,
        wqe: SendWqe,
        data: Data,
        result: Option<(Result_, u64)>,
        closing: bool,
    ) -> bool {
        let (side, end) = (&mut self.sides[me], &mut self.pair.ends[me]);
        let signaled = closing || side.unsignaled >= 16 || end.sq.room() < 8 || self.rng.below(3) == 0;
        side.unsignaled = if signaled { 0 } else { side.unsignaled + 1 };
        let fence = std::mem::take(&mut side.fence_next) || self.rng.below(50) == 0;
        let mut flags = wqe.flags;
        flags |= if signaled { send_flags::SIGNALED as u16 } else { 0 };
        flags |= if fence { send_flags::FENCE as u16 } else { 0 };
        let wr_id = side.next_wr;
        side.next_wr += 1;
        let wqe = SendWqe { wr_id, opcode: opcode as u8, flags, remote_qpn: self.srqn, ..wqe };
        if data.is_inline {
            end.post_inline(&wqe, &data.bytes);
        } else {
            end.post(&wqe, &data.sges);
        }
        let (wc_opcode, byte_len) = match opcode {
            WrOpcode::RdmaRead => (WcOpcode::RdmaRead, result.as_ref().map_or(0, |r| r.0.bytes.len())),
            WrOpcode::AtomicCmpAndSwp => (WcOpcode::CompSwap, 8),
            WrOpcode::AtomicFetchAndAdd => (WcOpcode::FetchAdd, 8),
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => (WcOpcode::RdmaWrite, data.bytes.len()),
            WrOpcode::BindMw => (WcOpcode::BindMw, 0),
            _ => (WcOpcode::Send, data.bytes.len()),
        };
        let (result, ring) = result.map_or((None, 0), |(result, ring)| (Some(result), ring));
        let byte_len = byte_len as u32;
        let written = if wc_opcode == WcOpcode::RdmaWrite && byte_len > 0 {
            (wqe.remote_addr - TARGET, byte_len)
        } else {
            (0, 0)
        };
        side.posted.push_back(Posted { wr_id, signaled, opcode: wc_opcode, byte_len, result, ring, written });
        true
    }

    /// Checks all completions, and returns whether there were any.
    fn check_completions(&mut self) -> bool {
        let mut any = false;
        for me in 0..2 {
            let sends = std::mem::take(&mut self.pair.ends[me].fx.sends);
            let receives = std::mem::take(&mut self.pair.ends[me].fx.receives);
            any |= !sends.is_empty() || !receives.is_empty();
            for cqe in &sends {
                self.check_send(me, cqe);
            }
            for (cqe, solicited) in &receives {
                self.check_receive(me, cqe, *solicited);
            }
        }
        any
    }

    fn check_send(&mut self, me: usize, cqe: &Cqe) {
        assert_eq!(cqe.status, WcStatus::Success as u8, "wr {} vendor_err {}", cqe.wr_id, cqe.vendor_err);
        let side = &mut self.sides[me];
        loop {
            let done = side.posted.pop_front().expect("a request for each completion");
            side.retired = side.retired.wrapping_add(1);
            side.ring_free += done.ring;
            for window in &mut side.windows {
                if window.1 == Window::Binding(done.wr_id) {
                    window.1 = Window::Open;
                }
            }
            if let Some(result) = &done.result {
                let mut at = 0;
                for sge in &result.sges {
                    let got = self.pair.ends[me].memory(sge.addr, sge.length as usize);
                    assert!(got == result.bytes[at..at + got.len()], "result of wr {} differs", done.wr_id);
                    at += got.len();
                }
            }
            check_written(side, &self.pair.ends[1 - me], &done);
            if done.signaled {
                let want = (done.wr_id, done.opcode as u8, side.retired, done.byte_len);
                assert_eq!((cqe.wr_id, cqe.opcode, cqe.sq_consumer, cqe.byte_len), want);
                break;
            }
        }
        self.pair.ends[me].sq.free(cqe.sq_consumer);
    }

    fn check_receive(&mut self, me: usize, cqe: &Cqe, solicited: bool) {
        assert_eq!(cqe.status, WcStatus::Success as u8);
        let want = self.sides[1 - me].awaited.pop_front().expect("a message for each receive");
        let number = if self.kind == Ends::Xrc { cqe.wr_id } else { self.sides[me].receives[1] };
        if self.kind == Ends::Xrc {
            assert!(std::mem::replace(&mut self.slots[number as usize], false), "receive {number} completes twice");
            assert_eq!(srqn_of(number), want.srqn, "of another queue");
        }
        self.sides[me].receives[1] += 1;
        let opcode = if want.with_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        assert_eq!(
            (cqe.wr_id, cqe.byte_len, cqe.imm, cqe.wc_flags, cqe.opcode, solicited),
            (number, want.byte_len, want.imm, want.wc_flags, opcode as u8, want.solicited)
        );
        let got = self.pair.ends[me].memory(RECEIVES + number % RECEIVE_SLOTS * RECEIVE_LEN, want.bytes.len());
        assert!(got == want.bytes, "receive {number} differs");
        if want.wc_flags == wc_flags::WITH_INV {
            // Binding it again fails unless it was invalidated.
            let window = self.sides[me].windows.iter_mut().find(|w| w.0 == want.imm).expect("ours");
            assert!(window.1 == Window::Closing);
            window.1 = Window::Closed;
        }
    }
}

/// The bytes of a WRITE that has been acknowledged are there, where no later request writes.
fn check_written(side: &Side, peer: &End, done: &Posted) {
    let (at, len) = done.written;
    let there = peer.memory(TARGET + at, len as usize);
    let range = at as usize..at as usize + len as usize;
    let expected = side.target[range.clone()].iter().zip(&side.writers[range]);
    let is_there =
        there.iter().zip(expected).all(|(byte, (want, writer))| *writer != done.wr_id as u32 || byte == want);
    assert!(is_there, "wr {} is acknowledged, and its bytes are not there", done.wr_id);
}

/// The bytes of a request.
struct Data {
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    is_inline: bool,
}

fn solicit(solicited: bool) -> u16 {
    if solicited { send_flags::SOLICITED as u16 } else { 0 }
}

/// `len` bytes from `addr` in one to 32 entries, some of them empty.
fn cut(rng: &mut Rng, lkey: u32, addr: u64, len: u64) -> Vec<Sge> {
    let pieces = if rng.below(2) == 0 { 1 } else { rng.between(1, 32) };
    let mut sges = Vec::new();
    let mut at = 0;
    for piece in 0..pieces {
        let rest = len - at;
        let take = if piece + 1 == pieces { rest } else { rng.below(rest.min(2 * len / pieces) + 1) };
        sges.push(Sge { addr: addr + at, length: take as u32, lkey });
        at += take;
    }
    sges
}

impl Side {
    fn new(rng: &mut Rng, end: &mut End) -> Side {
        let mut pool = vec![0; POOL_LEN as usize];
        rng.fill(&mut pool);
        end.write_memory(POOL, &pool);
        let windows = (0..3).map(|_| (end.window(), Window::Closed)).collect();
        Side {
            pool,
            target: vec![0; TARGET_LEN as usize],
            writers: vec![u32::MAX; TARGET_LEN as usize],
            posted: VecDeque::new(),
            awaited: VecDeque::new(),
            next_wr: 0,
            retired: 0,
            unsignaled: 0,
            fence_next: false,
            ring_next: 0,
            ring_free: RESULTS_LEN,
            receives: [0; 2],
            windows,
        }
    }

    /// Reserves `len` result bytes: the address, and the bytes to free later.
    fn take_results(&mut self, len: u64) -> Option<(u64, u64)> {
        let offset = self.ring_next % RESULTS_LEN;
        let skip = if offset + len > RESULTS_LEN { RESULTS_LEN - offset } else { 0 };
        if skip + len > self.ring_free {
            return None;
        }
        self.ring_free -= skip + len;
        let at = (self.ring_next + skip) % RESULTS_LEN;
        self.ring_next += skip + len;
        Some((RESULTS + at, skip + len))
    }
}

fn amount(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn memory_equals_the_model_and_each_completion_comes_once() {
    check_seeds((Ends::Standard, false), &WHAT_MUST_HAPPEN);
}

#[test]
fn with_selective_repeat_memory_equals_the_model_and_each_completion_comes_once() {
    check_seeds((Ends::Selective, false), &WHAT_MUST_HAPPEN_SELECTIVELY);
}

#[test]
fn with_selective_repeat_of_xrc_memory_equals_the_model_and_each_completion_comes_once() {
    check_seeds((Ends::Xrc, false), &WHAT_MUST_HAPPEN_SELECTIVELY);
}

#[test]
fn with_late_copies_memory_equals_the_model_when_completions_come() {
    check_seeds(
        (Ends::Standard, true),
        &[&WHAT_MUST_HAPPEN[..], &[Reason::CopyPending, Reason::CopyQueueFull]].concat(),
    );
}

#[test]
fn with_late_copies_and_selective_repeat_memory_equals_the_model_when_completions_come() {
    let of_copies = [Reason::SrEarly, Reason::SrRepeated, Reason::CopyPending, Reason::CopyQueueFull];
    check_seeds((Ends::Selective, true), &of_copies);
}

#[test]
fn with_late_copies_of_an_xrc_target_memory_equals_the_model_when_completions_come() {
    let of_copies = [Reason::SrEarly, Reason::SrRepeated, Reason::CopyPending, Reason::CopyQueueFull];
    check_seeds((Ends::Xrc, true), &of_copies);
}

fn check_seeds(ends: (Ends, bool), what_must_happen: &[Reason]) {
    let kind = ends.0;
    let seeds = if kind == Ends::Standard { 6 } else { 12 };
    let (seeds, operations) = if cfg!(debug_assertions) { (seeds, 1_000) } else { (200, 10_000) };
    let of_seeds = if ends.1 { "BURST_LATE_SEEDS" } else { "BURST_SEEDS" };
    let (seeds, operations) = (amount(of_seeds, seeds), amount("BURST_OPS", operations));
    if let Ok(seed) = std::env::var("BURST_SEED") {
        Oracle::new(seed.parse().expect("a number"), operations, ends).run();
        return;
    }
    let next = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    let totals = Mutex::new([0u64; Reason::COUNT]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let run = std::panic::catch_unwind(|| Oracle::new(seed, operations, ends).run());
                    match run {
                        Ok(counts) => {
                            let mut totals = totals.lock().expect("not poisoned");
                            totals.iter_mut().zip(counts).for_each(|(total, count)| *total += u64::from(count));
                        }
                        Err(_) => {
                            eprintln!("seed {seed} failed: BURST_SEED={seed} BURST_OPS={operations} runs it again");
                            failed.lock().expect("not poisoned").push(seed);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("not poisoned");
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
    let totals = totals.into_inner().expect("not poisoned");
    for &reason in what_must_happen {
        assert!(totals[reason.index()] > 0, "{} never happened: the test is too kind", reason.name());
    }
    for reason in Reason::ALL {
        println!("{:>12} {}", totals[reason.index()], reason.name());
    }
}
