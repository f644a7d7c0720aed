//! The network alone, in packets per second: what a simulation pays beside its hosts.
//!
//! `cargo bench -p burst-fabric`. For a count of instructions, which other load on the machine does not change:
//! `valgrind --tool=callgrind target/release/deps/network-… --test`.

#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]

use burst_base::rng::Rng;
use burst_fabric::topology::Speeds;
use burst_fabric::{Cut, Delivery, HostId, LinkFaults, Network, Topology, Train};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const HOSTS: u32 = 64;
const PACKETS: u32 = 16_384;
const STRIDE: u32 = 1_000;

/// A body of no size.
#[derive(Clone, Debug)]
struct Nothing;

impl Cut for Nothing {
    fn cut(&mut self, _keep: u32) -> Nothing {
        Nothing
    }
}

/// Four leaves, four spines, and host links that are loaded to about 0.8: one packet each 6.4 µs and host at 10 Gbit/s.
fn topology() -> Topology {
    let speeds = Speeds { host: 10_000_000_000, fabric: 40_000_000_000, delay: 1_000_000 };
    Topology::leaf_spine(HOSTS, 4, 4, speeds)
}

/// Sends `PACKETS` packets in trains of `count` between random hosts, in random classes, and lets them arrive.
fn carry(topology: &Topology, count: u32) -> u64 {
    let mut network = Network::new(topology, 1);
    let (mut rng, mut out, mut now) = (Rng::new(2), Vec::new(), 0);
    let gap = u64::from(STRIDE * count) * 1_000 / u64::from(HOSTS);
    for k in 0..PACKETS / count {
        let (from, class) = (rng.next_u32() % HOSTS, (rng.next_u32() % 2 * 3) as u8);
        let to = (from + 1 + rng.next_u32() % (HOSTS - 1)) % HOSTS;
        let (flow, from, to) = (u64::from(k), HostId(from), HostId(to));
        let train = Train {
            flow,
            from,
            to,
            class,
            ecn_capable: true,
            marked: false,
            count,
            stride: STRIDE,
            last: STRIDE,
            body: Nothing,
        };
        now += gap;
        network.step(now, &mut out);
        out.clear();
        assert!(network.send(now, train).is_ok(), "the adapter has room");
    }
    while let Some(at) = network.next_event() {
        network.step(at, &mut out);
        out.retain(|delivery: &Delivery<Nothing>| delivery.train.is_none());
    }
    network.totals().arrived
}

fn network(c: &mut Criterion) {
    let mut group = c.benchmark_group("network");
    group.throughput(Throughput::Elements(u64::from(PACKETS)));
    let plain = topology();
    for count in [1, 16] {
        group.bench_function(BenchmarkId::new("trains of", count), |b| b.iter(|| carry(black_box(&plain), count)));
    }
    let mut lossy = topology();
    lossy.faults = LinkFaults { loss: 0.01, reorder: 0.01, ..LinkFaults::default() };
    group.bench_function("loss", |b| b.iter(|| carry(black_box(&lossy), 16)));
    group.finish();
}

criterion_group!(benches, network);
criterion_main!(benches);
