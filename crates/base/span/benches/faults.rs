//! What it costs a copy that its faults are caught.

use burst_span::{Span, catch_faults};
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds per call, the best of several rounds.
fn time(calls: u32, mut f: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    (0..15).map(|_| round()).fold(f64::MAX, f64::min)
}

fn main() {
    let (mut memory, payload) = (vec![0x5a_u8; 65_536], vec![1u8; 65_536]);
    let lens = [8, 64, 256, 1024, 4096, 65_536];
    let mut measure = || {
        lens.map(|len| {
            // SAFETY: inside `memory`, which outlives it.
            let span = unsafe { Span::local(memory.as_mut_ptr(), len as u32) };
            time(4_000_000 / (len as u32 + 200), || {
                black_box(&span).write_from(black_box(&payload[..len])).expect("mapped")
            })
        })
    };
    let plain = measure();
    assert!(catch_faults() || cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))));
    let guarded = measure();
    println!("{:>6} {:>9} {:>11}", "bytes", "plain ns", "guarded ns");
    for (len, (plain, guarded)) in lens.iter().zip(plain.iter().zip(guarded)) {
        println!("{len:6} {plain:9.1} {guarded:11.1}");
    }
}
