//! The cost of a packet in `wire`: the CRC libraries side by side, the ICRC of a packet, parsing, and the arithmetic of
//! identifications. Prints nanoseconds (best of several rounds) and the ratio to the first row of each group.

use burst_base::{Psn, Qpn, Rkey};
use burst_wire::icrc::{IdDelta, PseudoV4, len_after_id, recover_ipv4_id};
use burst_wire::{Bth, HeadBuf, Icrc, Opcode, Packet, Reth};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

const ROUNDS: usize = 9;
const ROUND_NS: f64 = 4e6;

/// Nanoseconds per call, the best round.
fn time(mut f: impl FnMut()) -> f64 {
    let mut round = |calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let calls = (ROUND_NS / round(1_000).max(0.1)) as u32 + 1;
    (0..ROUNDS).map(|_| round(calls)).fold(f64::MAX, f64::min)
}

fn report(name: &str, ns: f64, first: f64) {
    println!("{name:44} {ns:9.1} ns {:6.2}", ns / first);
}

/// The rivals, each continuing from the CRC of eight ones as the ICRC does.
fn rivals() {
    let libdeflate = |data: &[u8]| {
        let mut crc = libdeflater::Crc::with_initial(0x2144_df1c);
        crc.update(data);
        crc.sum()
    };
    let crc32fast = |data: &[u8]| {
        let mut crc = crc32fast::Hasher::new_with_initial(0x2144_df1c);
        crc.update(data);
        crc.finalize()
    };
    let crc_fast = |data: &[u8]| {
        let initial = u64::from(!0x2144_df1c_u32);
        let mut crc = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32IsoHdlc, initial);
        crc.update(data);
        crc.finalize() as u32
    };
    assert_eq!(libdeflate(b"same answer"), crc32fast(b"same answer"));
    assert_eq!(libdeflate(b"same answer"), crc_fast(b"same answer"));
    for len in [20, 64, 1024, 4096] {
        let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let first = time(|| _ = black_box(libdeflate(black_box(&data))));
        report(&format!("libdeflate, {len} bytes"), first, first);
        report(&format!("crc32fast, {len} bytes"), time(|| _ = black_box(crc32fast(black_box(&data)))), first);
        report(&format!("crc-fast, {len} bytes"), time(|| _ = black_box(crc_fast(black_box(&data)))), first);
    }
}

fn packets() {
    let pseudo = PseudoV4::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 49_152);
    let bth = Bth::new(Opcode::RcWriteOnly, Qpn::new(1), Psn::new(2));
    let reth = Reth { addr: 4096, rkey: Rkey(3), len: 4096 };
    let build = || HeadBuf::new(black_box(&bth)).reth(black_box(reth));
    let head = build();
    let payload = vec![0x5a; 4096];
    let mut copy = vec![0; 4096];
    let bytes = [head.as_slice(), &payload].concat();
    let len = bytes.len() + 4;
    let first = time(|| _ = black_box(Icrc::ipv4(black_box(&pseudo), len, head.as_slice())));
    report("ICRC of the head", first, first);
    report("ICRC of head and 4 KiB", time(|| _ = black_box(Icrc::ipv4(&pseudo, len, black_box(&bytes)))), first);
    let both = time(|| {
        burst_span::copy(black_box(&mut copy), black_box(&payload));
        black_box(Icrc::ipv4(&pseudo, len, head.as_slice()).update(&copy));
    });
    report("ICRC of head and 4 KiB, copied first", both, first);
    let memory = burst_span::ProcessMemory::own().expect("own memory");
    let remote = memory.span(payload.as_ptr() as u64, 4096);
    let other = time(|| _ = black_box(Icrc::ipv4(&pseudo, len, head.as_slice()).copy_span(&remote, &mut copy)));
    report("ICRC of head and 4 KiB of another process", other, first);
    report("building a head of BTH and RETH", time(|| _ = black_box(build())), first);
    report(
        "parsing it, with its RETH",
        time(|| _ = black_box(Packet::parse(black_box(&bytes)).map(|p| p.reth()))),
        first,
    );
}

fn identifications() {
    let delta = IdDelta::new(1040);
    let zero = Icrc::ipv4(&PseudoV4::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 1), 1040, &[0; 1036]);
    let received = zero.finish_with_id(&delta, 0x1234);
    let first = time(|| _ = black_box(zero.finish_with_id(black_box(&delta), black_box(7))));
    report("shifting an ICRC to another identification", first, first);
    report("preparing a length", time(|| _ = black_box(IdDelta::new(black_box(1040)))), first);
    report(
        "recovering, length prepared",
        time(|| _ = black_box(delta.recover(black_box(zero.finish()), received))),
        first,
    );
    let once = time(|| _ = black_box(recover_ipv4_id(black_box(zero.finish()), received, len_after_id(1040))));
    report("recovering, any length", once, first);
}

fn main() {
    println!("{:44} {:>12} {:>6}", "", "best", "ratio");
    rivals();
    packets();
    identifications();
}
