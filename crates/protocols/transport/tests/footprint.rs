//! Memory of idle queue pairs: the rings of requests in flight have room for one, whatever the depth.
mod common;

use burst_base::verbs::{QpCap, QpState};
use common::{End, Setup};

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

#[test]
fn a_thousand_idle_queue_pairs_cost_less_than_two_mebibytes() {
    const COUNT: usize = 1000;
    let cap = QpCap { max_send_wr: 128, max_recv_wr: 512, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 236 };
    let setup = Setup { cap, memory: 4096, ..Setup::default() };
    // Everything around the queue pairs (rings, regions, batches) is made before the first measurement and kept.
    let mut ends: Vec<End> = (0..COUNT).map(|_| End::new(0, &setup)).collect();
    let before = resident();
    for end in &mut ends {
        end.bring_up(1, &setup, QpState::Rts);
        end.drain(burst_base::Nanos(0));
    }
    let rings = resident().saturating_sub(before);
    let structs = (COUNT * size_of::<burst_transport::Qp>()) as u64;
    let total = rings + structs;
    println!("{COUNT} idle queue pairs: {} KiB, of which {} KiB are the struct itself", total >> 10, structs >> 10);
    assert!(total < 2 << 20, "{total} bytes");
}
