//! The cost of the protocol per message without ports: times of requester, responder and completer of one RC pair.
//!
//! `cargo run --release -p burst-transport --example turns`. Packets are passed in memory. The responder's copy
//! into the target is part of its time, the harness's own copy of the frames is not. For comparison the same number
//! of bytes is copied by `copy_from_slice` in the same run.

#[path = "../tests/common/mod.rs"]
mod common;

use burst_base::Nanos;
use burst_base::verbs::{Mtu, WrOpcode, send_flags};
use burst_shm::layout::SendWqe;
use burst_transport::TxBudget;
use common::{LinkFaults, Pair, Setup, frame_bytes};
use std::time::{Duration, Instant};

/// Messages of each kind, unless the first argument says otherwise.
const ROUNDS: usize = 20_000;

#[derive(Default)]
struct Times {
    request: Duration,
    respond: Duration,
    complete: Duration,
    packets: u64,
}

/// `rounds` messages of `len` bytes, `batch` at a time.
#[inline(never)]
fn run(opcode: WrOpcode, len: u32, batch: usize, rounds: usize) -> Times {
    let setup = Setup { mtu: Mtu::B4096, ..Setup::default() };
    let mut pair = Pair::new(&setup, 1, LinkFaults::default());
    let rkey = pair.ends[1].lkey;
    let flags = send_flags::SIGNALED as u16;
    let wqe = SendWqe { opcode: opcode as u8, flags, rkey, ..SendWqe::default() };
    let mut times = Times::default();
    let mut wire: Vec<Vec<u8>> = (0..512).map(|_| Vec::with_capacity(5000)).collect();
    for _ in 0..rounds / batch {
        for _ in 0..batch {
            let sges = [pair.ends[0].sge(0, len)];
            pair.ends[0].post(&wqe, &sges);
        }
        times.request += turn(&mut pair, 0, &mut wire, &mut times.packets, &mut times.respond);
        times.respond += turn(&mut pair, 1, &mut wire, &mut times.packets, &mut times.complete);
        for cqe in pair.ends[0].fx.sends.drain(..) {
            pair.ends[0].sq.free(cqe.sq_consumer);
        }
    }
    times
}

/// End `from` sends all its packets and the other end handles them. Returns the sender's time and adds the receiver's to `taken`.
fn turn(pair: &mut Pair, from: usize, wire: &mut [Vec<u8>], packets: &mut u64, taken: &mut Duration) -> Duration {
    let mut sent = Duration::ZERO;
    while pair.ends[from].qp.wants_tx() {
        let end = &mut pair.ends[from];
        let begin = Instant::now();
        end.poll(Nanos(0), &mut TxBudget { wqes: 64, bytes: 64 << 10, window_bytes: 1 << 20 });
        sent += begin.elapsed();
        let count = end.tx.len();
        for (frame, bytes) in end.tx.frames().iter().zip(wire.iter_mut()) {
            frame_bytes(&end.tx, frame, bytes);
        }
        end.tx.clear();
        *packets += count as u64;
        let src = end.ip;
        let begin = Instant::now();
        for bytes in &wire[..count] {
            pair.ends[1 - from].receive_from(Nanos(0), src, bytes);
        }
        *taken += begin.elapsed();
    }
    sent
}

fn copy_time(bytes: u64) -> Duration {
    let (from, mut to) = (vec![1u8; 64 << 10], vec![0u8; 64 << 10]);
    let begin = Instant::now();
    for _ in 0..bytes / from.len() as u64 {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    begin.elapsed()
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    println!("{:24} {:>9} {:>9} {:>9} {:>8} {:>9}", "per message", "request", "respond", "complete", "packets", "copy");
    for (opcode, len, batch) in [
        (WrOpcode::RdmaWrite, 64, 32),
        (WrOpcode::RdmaWrite, 64 << 10, 1),
        (WrOpcode::RdmaRead, 64, 4),
        (WrOpcode::RdmaRead, 64 << 10, 1),
    ] {
        let times = run(opcode, len, batch, rounds);
        let each = |time: Duration| format!("{} ns", time.as_nanos() / rounds as u128);
        let copy = copy_time(u64::from(len) * rounds as u64);
        println!(
            "{:24} {:>9} {:>9} {:>9} {:>8.1} {:>9}",
            format!("{opcode:?} {len}"),
            each(times.request),
            each(times.respond),
            each(times.complete),
            times.packets as f64 / rounds as f64,
            each(copy)
        );
    }
}
