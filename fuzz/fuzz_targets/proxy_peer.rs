//! A peer that a proxy lists, and that does what it likes: frames, hellos and events of any order for a whole worker without RDMA
//! (`burst_proxy::worker::fuzzed_worker`), while programs connect, write, read and go, and while descriptors run out.
//!
//! Nothing panics, the worker's memory stays within its share, and nothing is left when the peer has gone.
#![no_main]

use burst_fuzz::Tape;
use burst_proxy::worker::fuzzed_worker::FuzzedWorker;
use burst_relay::{Frame, Outcome, PeerWindow};
use libfuzzer_sys::fuzz_target;

const ACTIONS_MAX: usize = 64;

/// A frame with fields of the input, mostly for one of the first streams, or bytes of the input.
fn frame(tape: &mut Tape<'_>, to: &mut Vec<u8>) {
    let kind = tape.byte();
    let id = match tape.byte() {
        near @ 0..=223 => u32::from(near % 16),
        _ => tape.limit(),
    };
    let offset = match tape.byte() {
        near @ 0..=223 => u64::from(near) * 64,
        _ => tape.long(),
    };
    let len = tape.limit();
    let window = PeerWindow { address: if kind >= 128 { 0x1000 } else { 0 }, rkey: 1, len: len.max(1) };
    let client = ([10, 9, 0, tape.byte()], 1024 + u16::from(tape.byte())).into();
    let server = ([127, 0, 0, if kind >= 192 { tape.byte() } else { 3 }], 9).into();
    let data = &[0x5a; 3000][..usize::from(tape.half()) % 3000];
    let frame = match kind % 13 {
        0 => Frame::Open { client, server, window },
        1 | 2 => Frame::Accept { window },
        3 | 4 => Frame::Data { offset, bytes: data },
        5 => Frame::Placed { offset, len },
        6 => Frame::Credit { delivered: offset },
        7 => Frame::Fin { end: offset },
        8 => Frame::Urgent { offset, byte: 1 },
        9 => Frame::Want { len },
        10 => Frame::Grow { window, from: offset },
        11 => Frame::Probe { is_answer: kind >= 128 },
        _ if kind >= 224 => {
            to.extend(tape.take(len as usize % 64));
            return;
        }
        _ => Frame::End { outcome: Outcome::ALL[kind as usize % Outcome::ALL.len()] },
    };
    frame.write(id, to);
}

fn step(worker: &mut FuzzedWorker, tape: &mut Tape<'_>) {
    let action = tape.byte();
    match action {
        0..=119 => {
            let mut frames = Vec::new();
            (0..=tape.byte() % 4).for_each(|_| frame(tape, &mut frames));
            let (ack, skip) = (u64::from(tape.byte() % 8), u64::from(tape.byte() >= 240));
            worker.batch(&frames, ack, skip);
        }
        120..=127 => {
            let count = usize::from(tape.half() % 512);
            worker.message(tape.take(count).to_vec());
        }
        128..=159 => worker.connect(),
        160..=199 => worker.program(usize::from(tape.byte() % 8), tape.byte(), usize::from(tape.half()) * 2),
        200..=207 => {
            let windows: Vec<_> = (0..tape.byte() % 4)
                .map(|_| (u32::from(tape.byte() % 16), u64::from(tape.byte()), tape.limit()))
                .collect();
            worker.hello(u64::from(tape.byte() % 8), &windows);
        }
        208..=215 => worker.event(tape.byte()),
        216..=219 => {
            FuzzedWorker::limit_descriptors(None);
            FuzzedWorker::limit_descriptors(Some(u64::from(tape.byte() % 16)));
        }
        220..=223 => FuzzedWorker::limit_descriptors(None),
        224..=231 => worker.peer_up(),
        _ => worker.work(),
    }
}

fuzz_target!(
    init: {
        // SAFETY: before there is a second thread; as in every Rust program, writes to a pipe without reader fail.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    },
    |data: &[u8]| {
        let mut tape = Tape(data);
        let encrypts = tape.byte() >= 192;
        let mut worker = FuzzedWorker::new(encrypts).expect("there are descriptors");
        for _ in 0..ACTIONS_MAX {
            if tape.is_empty() {
                break;
            }
            step(&mut worker, &mut tape);
        }
        FuzzedWorker::limit_descriptors(None);
        worker.work();
        worker.end();
    }
);
