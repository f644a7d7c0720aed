//! What the tests of the network share: packets with numbers, and a run to the end.

use burst_fabric::topology::Speeds;
use burst_fabric::{Cut, Delivery, HostId, Network, Train};

/// Picoseconds of a microsecond.
pub const US: u64 = 1_000_000;
/// bit/s.
pub const GBIT: u64 = 1_000_000_000;
/// 100 Gbit/s and 1 us everywhere: 80 ps a byte.
pub const ALL_100: Speeds = Speeds { host: 100 * GBIT, fabric: 100 * GBIT, delay: US };

/// Numbers of packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers(pub Vec<u32>);

impl Cut for Numbers {
    fn cut(&mut self, keep: u32) -> Numbers {
        Numbers(self.0.split_off(keep as usize))
    }
}

/// A train of class 0 with packets of `stride` bytes, numbered from `first`.
pub fn train(from: u32, to: u32, first: u32, count: u32, stride: u32) -> Train<Numbers> {
    let body = Numbers((first..first + count).collect());
    let (flow, from, to) = (u64::from(first) << 20 ^ u64::from(from), HostId(from), HostId(to));
    Train { flow, from, to, class: 0, ecn_capable: true, marked: false, count, stride, last: stride, body }
}

/// Runs to the end; what arrived, with times.
pub fn run(network: &mut Network<Numbers>) -> Vec<(u64, Delivery<Numbers>)> {
    let (mut all, mut out) = (Vec::new(), Vec::new());
    while let Some(at) = network.next_event() {
        network.step(at, &mut out);
        network.check_conservation().expect("every packet is somewhere");
        all.extend(out.drain(..).map(|arrival| (at, arrival)));
    }
    all
}
