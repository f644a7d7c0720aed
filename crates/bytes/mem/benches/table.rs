//! Translation of one SGE, with 1, 1,000 and 100,000 regions registered: nanoseconds per look-up.
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]
use burst_base::{Lkey, Qpn, Rkey};
use burst_mem::{KeySpace, MrTable, Peer, ProcessMemory, Region};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const PEER: Peer = Peer { pd: 1, qpn: Qpn::new(5) };

fn lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("mr");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
    for regions in [1usize, 1_000, 100_000] {
        let mut keys = KeySpace::from_system();
        let mut table = MrTable::new(keys.cipher());
        let live: Vec<u32> = (0..regions).filter_map(|_| keys.alloc()).collect();
        let own = Arc::new(ProcessMemory::own().expect("own memory"));
        for key in &live {
            assert!(table.insert(Arc::new(Region::new(*key, 1, 0, 4096, 7, Region::in_process(own.clone(), 4096)))));
        }
        let mut next = 0;
        let mut key = || {
            next = (next + 1_009) % live.len();
            live[next]
        };
        group.bench_function(BenchmarkId::new("local", regions), |b| {
            b.iter(|| black_box(table.local(1, Lkey(key()), 100, 64, 1)))
        });
        group.bench_function(BenchmarkId::new("remote", regions), |b| {
            b.iter(|| black_box(table.remote(PEER, Rkey(key()), 100, 64, 2)))
        });
    }
    group.finish();
}

criterion_group!(benches, lookup);
criterion_main!(benches);
