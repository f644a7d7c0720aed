//! Connections made and ended by two machines in memory: the protocol alone, without sockets and queue pairs.
//!
//! `cargo bench -p burst-cm` prints the time per connection at several numbers of connections at once (it should not
//! grow). For counts of instructions: `valgrind --tool=callgrind target/release/deps/setup-* 10000`, divided by 10,000.

#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::Nanos;
use burst_cm::PathRecord;
use burst_frame::Flow;
use harness::Host;
use std::time::Instant;

/// Gives everything that one host has sent to the other; whether there was anything.
fn carry(now: Nanos, from: &mut Host, to: &mut Host) -> bool {
    let sent = std::mem::take(&mut from.world.sent);
    for (path, mad) in &sent {
        let back = PathRecord { flow: Flow { src: path.flow.dst, dst: path.flow.src, ..path.flow }, ..*path };
        to.cm.on_mad(now, &back, mad, &mut to.world);
    }
    for owner in std::mem::take(&mut to.world.requests) {
        to.accept(now, owner);
    }
    !sent.is_empty()
}

fn settle(now: Nanos, a: &mut Host, b: &mut Host) {
    while carry(now, a, b) | carry(now, b, a) {}
}

/// Sets `count` connections up at once, then ends them; nanoseconds per connection for each.
fn run(count: u32) -> [u64; 2] {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let now = Nanos::from_ms(1);
    let begun = Instant::now();
    for _ in 0..count {
        a.connect(now, b.ip, &[]);
    }
    settle(now, &mut a, &mut b);
    let setup = begun.elapsed();
    assert_eq!((a.cm.len(), b.cm.len()), (count, count));
    let begun = Instant::now();
    for owner in 0..count {
        a.disconnect(now, owner);
    }
    settle(now, &mut a, &mut b);
    let later = now + Nanos::from_ms(1_000);
    a.cm.on_timer(later, usize::MAX, &mut a.world);
    b.cm.on_timer(later, usize::MAX, &mut b.world);
    assert!(a.cm.is_empty() && b.cm.is_empty());
    [setup, begun.elapsed()].map(|t| t.as_nanos() as u64 / u64::from(count))
}

fn main() {
    let chosen = std::env::args().filter_map(|a| a.parse().ok()).next();
    if let Some(count) = chosen {
        run(count);
        return;
    }
    println!("connections   setup ns   teardown ns   both ends, per connection, median of 5");
    for count in [100, 500, 1_000, 10_000, 50_000] {
        let times: Vec<[u64; 2]> = (0..5).map(|_| run(count)).collect();
        let median = |k: usize| {
            let mut one: Vec<u64> = times.iter().map(|t| t[k]).collect();
            one.sort_unstable();
            one[2]
        };
        println!("{count:>11}   {:>8}   {:>11}", median(0), median(1));
    }
}
