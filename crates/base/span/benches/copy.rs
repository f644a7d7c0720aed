//! The library's copy against the platform's, at placements that packets have.

use burst_span::copy;
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds per call, the best of several rounds.
fn time(calls: u32, mut f: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    (0..9).map(|_| round()).fold(f64::MAX, f64::min)
}

fn main() {
    let mut memory = vec![0x5a_u8; 400_000];
    let aligned = memory.as_ptr().align_offset(4096);
    println!("{:>6} {:>8} {:>10} {:>10} {:>6}", "bytes", "dst-src", "memcpy ns", "copy ns", "ratio");
    for len in [1024, 4096, 65536] {
        for offset in [0, 12, 28, 54, 128, 4084] {
            let (low, high) = memory[aligned..].split_at_mut(131_072);
            let (src, dst) = (&low[..len], &mut high[offset..offset + len]);
            let calls = 40_000_000 / (len as u32 + 200);
            let plain = time(calls / 20, || black_box(&mut *dst).copy_from_slice(black_box(src)));
            let pieces = time(calls / 20, || copy(black_box(&mut *dst), black_box(src)));
            println!("{len:6} {offset:8} {plain:10.1} {pieces:10.1} {:6.2}", plain / pieces);
        }
    }
}
