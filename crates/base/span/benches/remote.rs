//! The cost of a train in memory of another process, reached by `/proc/PID/mem`: one system call per packet against one for all.

use burst_span::{ProcessMemory, STAGING_BYTES, Span, Staging};
use std::hint::black_box;
use std::time::Instant;

/// Packets of a train, and their payload in bytes.
const PACKETS: usize = 16;
const MTU: usize = 4096;

/// Nanoseconds per call, the best of several rounds.
fn time(mut f: impl FnMut()) -> f64 {
    const CALLS: u32 = 2000;
    let mut round = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..9).map(|_| round()).fold(f64::MAX, f64::min)
}

fn main() {
    const { assert!(PACKETS * MTU <= STAGING_BYTES) };
    let memory = vec![1u8; PACKETS * MTU];
    let own = ProcessMemory::own().expect("own memory");
    let span = own.span(memory.as_ptr() as u64, memory.len() as u32);
    let pieces: Vec<Span> = (0..PACKETS).map(|k| span.sub(k * MTU, MTU)).collect();
    let mut train = vec![2u8; PACKETS * (MTU + 16)];
    let read_each = time(|| {
        for (piece, packet) in pieces.iter().zip(train.chunks_mut(MTU + 16)) {
            piece.read_to(black_box(&mut packet[12..12 + MTU])).expect("there");
        }
    });
    let mut staging = Staging::default();
    let read_train = time(|| {
        let mut spans: [Span; PACKETS] = core::array::from_fn(|k| pieces[k]);
        staging.clear();
        black_box(staging.fetch(&mut spans));
    });
    let payloads = || train.chunks(MTU + 16).map(|packet| &packet[12..12 + MTU]);
    let write_each =
        time(|| pieces.iter().zip(payloads()).for_each(|(piece, bytes)| piece.write_from(bytes).expect("there")));
    let write_train = time(|| span.write_pieces(payloads()).expect("there"));
    println!("{PACKETS} packets of {MTU} bytes      per packet ns   per train ns   ratio");
    for (what, each, train) in [("read", read_each, read_train), ("write", write_each, write_train)] {
        println!("{what:26} {each:15.0} {train:14.0} {:7.2}", each / train);
    }
}
