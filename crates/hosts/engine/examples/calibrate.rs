//! What a pass, a train, a packet and a byte cost a worker, for the simulator's processor profiles:
//! `calibrate [mem | SPEC SPEC]`; port specifications as in the daemon's configuration, by default `udp` on the loopback.
//!
//! One thread runs two workers in turns; WRITEs of several sizes and path MTUs, one at a time, each one train. The processor time
//! of each worker's passes is measured for each size (medians), less that of as many passes that do nothing. What is left for a
//! message of P packets and B bytes is fitted by least squares as train + P packet + B byte: with the sender of the messages that
//! is what sending costs, with the other one receiving. Each also handles the acknowledgement, a train the other way, so a train
//! is half of the constant. On the loopback the kernel's work for the receiver is done in the sender's system call.
//! Prints JSON, in nanoseconds.
#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_cc::Params;
use burst_port::mem::{MemConfig, pair};
use burst_port::{Encapsulation, Port, PortSpec, open};
use harness::{BASE, Host, poll, request};
use rustix::time::{ClockId, clock_gettime};
use std::net::IpAddr;
use std::time::Instant;

const MEMORY: u32 = 1 << 17;
/// Bytes of messages; the largest is one train with the headers of 60 packets.
const SIZES: [u32; 7] = [64, 1_024, 4_096, 8_192, 16_384, 32_768, 57_344];
/// Messages of each size and MTU.
const MESSAGES: usize = 400;
/// Passes that do nothing, for the cost of one.
const IDLE_PASSES: u32 = 20_000;

/// Processor time of this thread in nanoseconds.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Solves three linear equations, given as rows of three coefficients and a right side.
fn solve(mut rows: [[f64; 4]; 3]) -> [f64; 3] {
    for k in 0..3 {
        let pivot = (k..3).max_by(|a, b| rows[*a][k].abs().total_cmp(&rows[*b][k].abs())).unwrap_or(k);
        rows.swap(k, pivot);
        let lead = rows[k];
        for (at, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != k) {
            debug_assert_ne!(at, k);
            let share = row[k] / lead[k];
            row.iter_mut().zip(lead).for_each(|(value, of_lead)| *value -= share * of_lead);
        }
    }
    [0, 1, 2].map(|k| rows[k][3] / rows[k][k])
}

/// The least squares of value = constant + P packet + B byte, each point weighted by its value: small messages count as large
/// ones.
fn fit(points: &[([f64; 3], f64)]) -> [f64; 3] {
    let mut rows = [[0.0; 4]; 3];
    for (of, value) in points {
        let weight = 1.0 / (value * value);
        for k in 0..3 {
            (0..3).for_each(|j| rows[k][j] += weight * of[k] * of[j]);
            rows[k][3] += weight * of[k] * value;
        }
    }
    solve(rows)
}

fn ports(specs: &[String]) -> [Box<dyn Port>; 2] {
    match specs {
        [kind] if kind == "mem" => {
            let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
            let (a, b) = pair(MemConfig::default(), a, b);
            [Box::new(a), Box::new(b)]
        }
        [a, b] => [a, b].map(|text| {
            let spec = PortSpec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            open(&spec, &Encapsulation::ROCE).unwrap_or_else(|e| panic!("{text}: {e}"))
        }),
        _ => panic!("usage: calibrate [mem | SPEC SPEC]"),
    }
}

fn main() {
    let mut specs: Vec<String> = std::env::args().skip(1).collect();
    if specs.is_empty() {
        specs = ["127.0.0.1", "127.0.0.2"].map(|addr| format!("udp:dev=lo,addr={addr}")).into();
    }
    let [mut a, mut b] = ports(&specs).map(|port| Host::with_cc(port, MEMORY, Params::default()));
    let begun = Instant::now();
    let now = || Nanos(begun.elapsed().as_nanos() as u64);
    // A pass that does nothing, with the clock's own cost, which each measured pass has, too.
    let mut idle = Vec::new();
    for _ in 0..IDLE_PASSES {
        let before = processor_ns();
        a.worker.run_once(now());
        idle.push(processor_ns() - before);
    }
    let idle = median(&mut idle);
    let clock = median(&mut (0..IDLE_PASSES).map(|_| -processor_ns() + processor_ns()).collect::<Vec<_>>());
    let mut points: [Vec<([f64; 3], f64)>; 2] = Default::default();
    for mtu in [Mtu::B1024, Mtu::B4096] {
        let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
        let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
        a.connect(&qa, qb.qpn, &caps_b, mtu);
        b.connect(&qb, qa.qpn, &caps_a, mtu);
        for size in SIZES {
            let mut spent: [Vec<f64>; 2] = Default::default();
            for message in 0..MESSAGES {
                a.post(&mut qa, request(WrOpcode::RdmaWrite, message as u64, BASE, b.key), &[a.sge(0, size)]);
                let (mut cost, mut passes) = ([0.0; 2], 0.0);
                while poll(&mut qa).is_none() {
                    for (host, cost) in [&mut a, &mut b].into_iter().zip(&mut cost) {
                        let before = processor_ns();
                        host.worker.run_once(now());
                        *cost += processor_ns() - before;
                    }
                    passes += 1.0;
                }
                spent.iter_mut().zip(cost).for_each(|(all, cost)| all.push(cost - passes * idle));
            }
            let packets = f64::from(size.div_ceil(mtu.bytes()));
            for (points, spent) in points.iter_mut().zip(&mut spent) {
                points.push(([1.0, packets, f64::from(size)], median(spent).max(1.0)));
            }
        }
    }
    let [sent, received] = points.map(|points| fit(&points));
    println!(
        "{{\"port\": {:?}, \"pass\": {:.0}, \"train\": [{:.0}, {:.0}], \"packet\": [{:.1}, {:.1}], \"byte\": [{:.4}, {:.4}]}}",
        specs.join(" "),
        idle - clock,
        received[0] / 2.0,
        sent[0] / 2.0,
        received[1],
        sent[1],
        received[2],
        sent[2]
    );
}
