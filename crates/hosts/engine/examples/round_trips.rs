//! Whole workers over the `mem` port, for counting instructions: `round_trips [pings|stream|writes] COUNT [selective] [ring]`.
//!
//! `pings` are round trips of 64-byte SENDs, `stream` is one-way SENDs of 64 bytes in bursts of 16, `writes` is one-way WRITEs of
//! 64 KiB, which are 64 packets each. With `selective` both workers use selective repeat, with `ring` they keep their last
//! packets. Nothing here depends on time, so two counts differ by the instructions of the additional rounds alone: run it with
//! two counts under `valgrind --tool=callgrind` (or `perf stat -e instructions:u`) and subtract.
#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_cc::Params;
use burst_engine::WorkerOptions;
use burst_engine::handover::Inbox;
use burst_port::Port;
use burst_port::mem::{MemConfig, pair};
use harness::{AppQp, BASE, Host, poll, request};
use std::net::IpAddr;
use std::sync::Arc;

fn post_receive(host: &Host, qp: &mut AppQp) {
    qp.rq.write(0, &[host.sge(8192, 64)]).expect("room");
    let _ = qp.rq.post();
}

/// Bytes of registered memory, and of a WRITE.
const MEMORY: u32 = 1 << 17;
const WRITE: u32 = 1 << 16;

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next();
    let (stream, writes) = (kind.as_deref() == Some("stream"), kind.as_deref() == Some("writes"));
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let words: Vec<String> = args.collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let options = WorkerOptions {
        cc: Params::default().into(),
        selective: has("selective"),
        packet_ring: has("ring"),
        ..WorkerOptions::default()
    };
    let host = |port: Box<dyn Port>| {
        let inboxes = vec![Arc::new(Inbox::new(1).expect("an inbox"))];
        Host::with_options(port, MEMORY, inboxes, options)
    };
    let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let (pa, pb) = pair(MemConfig::default(), ip_a, ip_b);
    let (mut a, mut b): (Host, Host) = (host(Box::new(pa)), host(Box::new(pb)));
    let (mut qa, mut qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    let mut now = Nanos(0);
    for round in 0..count {
        if writes {
            let sge = a.sge(0, WRITE);
            a.post(&mut qa, request(WrOpcode::RdmaWrite, round, BASE, b.key), &[sge]);
            while poll(&mut qa).is_none() {
                now = now + Nanos(1_000);
                a.worker.run_once(now);
                b.worker.run_once(now);
            }
            continue;
        }
        let (sge_a, sge_b) = (a.sge(0, 64), b.sge(0, 64));
        let burst = if stream { 16 } else { 1 };
        for _ in 0..burst {
            post_receive(&b, &mut qb);
            a.post(&mut qa, request(WrOpcode::Send, round, 0, 0), &[sge_a]);
        }
        if !stream {
            post_receive(&a, &mut qa);
        }
        let (mut sent, mut received, mut answers) = (0, 0, 0);
        while sent < burst || received < burst || (!stream && answers < 2) {
            now = now + Nanos(1_000);
            a.worker.run_once(now);
            b.worker.run_once(now);
            while let Some(cqe) = poll(&mut qb) {
                received += u32::from(cqe.is_recv);
                answers += u32::from(cqe.is_recv == 0);
                if cqe.is_recv == 1 && !stream {
                    b.post(&mut qb, request(WrOpcode::Send, round, 0, 0), &[sge_b]);
                }
            }
            while let Some(cqe) = poll(&mut qa) {
                sent += u32::from(cqe.is_recv == 0);
                answers += u32::from(cqe.is_recv);
            }
        }
    }
}
