//! The cost of a train in memory of another process, reached by `/proc/PID/mem`: one system call per packet against one for
//! all; and the write of all pieces by `pwritev`, which the kernel carries out piece by piece.

use burst_span::{ProcessMemory, STAGING_BYTES, Span, Staging};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Bytes of a train, and of a packet's head and trailer.
const TRAIN: usize = 60 << 10;
const AROUND: usize = 16;

/// Nanoseconds per call, the best of several rounds.
fn time(mut f: impl FnMut()) -> f64 {
    const CALLS: u32 = 500;
    let mut round = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..9).map(|_| round()).fold(f64::MAX, f64::min)
}

/// Writes the slices to `addr` of this process by one system call.
fn write_vectored(file: &File, addr: u64, slices: &[IoSlice<'_>]) {
    let (fd, first, count) = (file.as_raw_fd(), slices.as_ptr().cast(), slices.len() as i32);
    // SAFETY: an `IoSlice` is an `iovec` by contract, and the kernel only reads the live slices that they describe.
    let moved = unsafe { libc::pwritev(fd, first, count, addr as i64) };
    assert_eq!(moved as usize, slices.iter().map(|slice| slice.len()).sum::<usize>());
}

fn train_of(mtu: usize, file: &File) {
    const { assert!(TRAIN <= STAGING_BYTES) };
    let packets = TRAIN / mtu;
    let memory = vec![1u8; TRAIN];
    let own = ProcessMemory::own().expect("own memory");
    let span = own.span(memory.as_ptr() as u64, TRAIN as u32);
    let pieces: Vec<Span> = (0..packets).map(|k| span.sub(k * mtu, mtu)).collect();
    let mut train = vec![2u8; packets * (mtu + AROUND)];
    let read_each = time(|| {
        for (piece, packet) in pieces.iter().zip(train.chunks_mut(mtu + AROUND)) {
            piece.read_to(black_box(&mut packet[12..12 + mtu])).expect("there");
        }
    });
    let (mut staging, mut spans) = (Staging::default(), pieces.clone());
    let read_train = time(|| {
        spans.copy_from_slice(&pieces);
        staging.clear();
        black_box(staging.fetch(&mut spans));
    });
    let payloads = || train.chunks(mtu + AROUND).map(|packet| &packet[12..12 + mtu]);
    let write_each =
        time(|| pieces.iter().zip(payloads()).for_each(|(piece, bytes)| piece.write_from(bytes).expect("there")));
    let slices: Vec<IoSlice<'_>> = payloads().map(IoSlice::new).collect();
    let write_slices = time(|| write_vectored(file, memory.as_ptr() as u64, &slices));
    let write_train = time(|| span.write_pieces(payloads()).expect("there"));
    println!("{packets} packets of {mtu} bytes   per packet ns   pwritev ns   per train ns   ratio");
    let rows = [("read", read_each, f64::NAN, read_train), ("write", write_each, write_slices, write_train)];
    for (what, each, vectored, train) in rows {
        println!("{what:24} {each:15.0} {vectored:12.0} {train:14.0} {:7.2}", each / train);
    }
}

fn main() {
    let file = OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("own memory");
    [1024, 2048, 4096].iter().for_each(|mtu| train_of(*mtu, &file));
}
