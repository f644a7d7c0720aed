//! What a host's processor costs: how long a worker is busy with a pass.
//!
//! A pass takes `pass` and, for received and for sent packets, `train` for each system call's worth of them, `packet` for each
//! packet and `byte` for each byte. Packets that arrive meanwhile wait. A worker that has gone to sleep begins `wake` after the
//! packet that wakes it. The figures of `udp` and `dpdk` are of a core of 2.5 GHz; `experiments/calibration`
//! measures them again and prints them for this file.

use crate::port::PassWork;

/// Costs of a host's processor, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuProfile {
    /// The profile's name, which every result has.
    pub name: &'static str,
    /// A pass of the worker.
    pub pass: u64,
    /// A train received, and one sent.
    pub train: [u64; 2],
    /// A packet received, and one sent.
    pub packet: [u64; 2],
    /// A byte received, and one sent.
    pub byte: [u64; 2],
    /// From the arrival of a packet to the first pass of a worker that sleeps.
    pub wake: u64,
    /// Bytes of packets that wait for the worker before further ones are lost; 0: any number.
    pub receive_bytes: u64,
}

const NANOSECOND: u64 = 1_000;

/// A host that costs nothing, as an adapter in hardware: for comparisons with publications.
pub const IDEAL: CpuProfile =
    CpuProfile { name: "ideal", pass: 0, train: [0; 2], packet: [0; 2], byte: [0; 2], wake: 0, receive_bytes: 0 };

/// The `udp` port: a train is a system call with segmentation offload, and the kernel copies.
pub const UDP: CpuProfile = CpuProfile {
    name: "udp",
    pass: 300 * NANOSECOND,
    train: [3_000 * NANOSECOND; 2],
    packet: [12 * NANOSECOND; 2],
    byte: [120, 120],
    wake: 8_000 * NANOSECOND,
    receive_bytes: 4 << 20,
};

/// The `dpdk` port: no system calls, one copy, a worker that never sleeps.
pub const DPDK: CpuProfile = CpuProfile {
    name: "dpdk",
    pass: 300 * NANOSECOND,
    train: [0; 2],
    packet: [60 * NANOSECOND; 2],
    byte: [60, 60],
    wake: 0,
    receive_bytes: 4 << 20,
};

impl CpuProfile {
    /// All profiles.
    pub const ALL: [CpuProfile; 3] = [IDEAL, UDP, DPDK];

    /// Picoseconds of a pass that did this work.
    pub fn cost(&self, work: &PassWork) -> u64 {
        let side = |of: usize| {
            work.trains[of] * self.train[of] + work.packets[of] * self.packet[of] + work.bytes[of] * self.byte[of]
        };
        self.pass + side(0) + side(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_costs_what_it_did() {
        let work = PassWork { trains: [1, 2], packets: [10, 20], bytes: [1_000, 2_000] };
        assert_eq!(IDEAL.cost(&work), 0);
        assert_eq!(UDP.cost(&PassWork::default()), 300_000);
        assert_eq!(UDP.cost(&work), 300_000 + 3 * 3_000_000 + 30 * 12_000 + 3_000 * 120);
    }
}
