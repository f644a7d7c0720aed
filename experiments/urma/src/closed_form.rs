//! The arithmetic behind the paper's figures: latencies of two nodes, bytes of state, times of connection setup.
//!
//! OpenURMA's two-node simulator waits for one constant after the other and takes one operation at a time. This module computes
//! the same integers, each term rounded down as there; its tests hold them against the artefact's committed files. Nothing of
//! Burst's protocol is in it: [`crate`] puts the results beside simulations that run the real code.

use crate::interface::{CYCLE_PS, FLIT_BYTES, JETTY_CACHE, QP_CACHE, StudyStack};

/// Rate of the link in Gbit/s.
pub const LINK_GBPS: u64 = 400;
/// Propagation of the link by default, in nanoseconds.
pub const LINK_NS: u64 = 100;

/// An operation of the paper's workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyVerb {
    /// READ or load.
    Read,
    /// WRITE or store.
    Write,
    /// SEND.
    Send,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

impl StudyVerb {
    /// All of them.
    pub const ALL: [StudyVerb; 5] =
        [StudyVerb::Read, StudyVerb::Write, StudyVerb::Send, StudyVerb::FetchAdd, StudyVerb::CompareSwap];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            StudyVerb::Read => "READ",
            StudyVerb::Write => "WRITE",
            StudyVerb::Send => "SEND",
            StudyVerb::FetchAdd => "FAA",
            StudyVerb::CompareSwap => "CAS",
        }
    }
    /// Whether it changes a word.
    pub const fn is_atomic(self) -> bool {
        matches!(self, StudyVerb::FetchAdd | StudyVerb::CompareSwap)
    }
}

/// An operation of two nodes.
#[derive(Clone, Copy, Debug)]
pub struct TwoNodes {
    /// How the program asks.
    pub stack: StudyStack,
    /// What it asks for.
    pub verb: StudyVerb,
    /// Bytes of payload.
    pub bytes: u64,
    /// Propagation of the link.
    pub link_ns: u64,
    /// Whether it has strong order.
    pub is_strong: bool,
    /// Connections in use.
    pub active: u64,
    /// Remote Jetties, or remote queue pairs of each.
    pub remotes: u64,
    /// Jetties that share the channel.
    pub sharing: u64,
    /// Whether stores and atomics are accesses without work request, too; the artefact has only such loads.
    pub by_access: bool,
}

impl TwoNodes {
    /// With the defaults of the paper.
    pub const fn new(stack: StudyStack, verb: StudyVerb, bytes: u64) -> TwoNodes {
        let (is_strong, by_access) = (false, false);
        TwoNodes { stack, verb, bytes, link_ns: LINK_NS, is_strong, active: 1, remotes: 1, sharing: 1, by_access }
    }
    const fn path(&self) -> StudyStack {
        match self.stack {
            StudyStack::LoadStore if !matches!(self.verb, StudyVerb::Read) && !self.by_access => StudyStack::Urma,
            stack => stack,
        }
    }
    /// Payload of the request and of the answer.
    pub const fn payloads(&self) -> [u64; 2] {
        match self.verb {
            StudyVerb::Read => [64, self.bytes],
            StudyVerb::Write | StudyVerb::Send => [self.bytes, 8],
            StudyVerb::FetchAdd | StudyVerb::CompareSwap => [64, 8],
        }
    }
    /// Nanoseconds from the program's call to its result.
    pub fn latency(&self) -> u64 {
        let [request, answer] = self.payloads();
        self.before() + self.way(request, 0) + self.target() + self.way(answer, 0) + self.after() + self.context()
    }
    /// The same with the sizes of real packets: adapters move `nic` bytes, links `wire` bytes, of request and answer.
    pub fn latency_of_packets(&self, nic: [u64; 2], wire: [u64; 2]) -> u64 {
        let way = |at: usize| self.way(nic[at], wire[at].saturating_sub(nic[at]));
        self.before() + way(0) + self.target() + way(1) + self.after() + self.context()
    }
    /// One direction: adapter, link, adapter.
    pub fn way(&self, bytes: u64, framing: u64) -> u64 {
        let nic = nic_ns(self.path().interface().nic_cycles, bytes);
        2 * nic + wire_ns(self.link_ns, bytes + framing)
    }
    /// Until the adapter has the request.
    pub fn before(&self) -> u64 {
        let interface = self.path().interface();
        let strong = if self.is_strong { interface.order_strong } else { 0 };
        let submit = self.path().submit(self.bytes);
        let order = interface.order_always + strong + 5 * (self.sharing - 1) * u64::from(self.stack.is_bus());
        // The artefact charges this for work requests that go to several receivers.
        let dispatch = if self.remotes > 1 && !self.stack.is_bus() { 200 } else { 0 };
        interface.walk + interface.post + interface.build + submit + order + dispatch
    }
    /// At the target, between the adapter's two ways.
    pub fn target(&self) -> u64 {
        let interface = self.path().interface();
        let reads = matches!(self.verb, StudyVerb::Read) || self.verb.is_atomic();
        let access = if reads { interface.memory_read } else { interface.memory_write };
        access + interface.dram + if matches!(self.verb, StudyVerb::Send) { interface.receive } else { 0 }
    }
    /// From the adapter to the program.
    pub fn after(&self) -> u64 {
        let interface = self.path().interface();
        let data = if matches!(self.verb, StudyVerb::Read) { interface.response_write } else { 0 };
        data + interface.completion + interface.poll + interface.poll_library
    }
    /// Contexts that the caches of both adapters do not have: all or none.
    fn context(&self) -> u64 {
        let is_missing = match self.stack.is_bus() {
            true => 2 * self.active + self.remotes > JETTY_CACHE,
            false => self.active * self.active * self.remotes > QP_CACHE,
        };
        if is_missing { 2 * self.stack.interface().context } else { 0 }
    }
    /// Mean with a share `loss` of requests lost: one round trip for each on the bus, 32 on RoCE.
    pub fn mean_with_loss(&self, loss: f64) -> f64 {
        let [request, _] = self.payloads();
        let trips = if self.stack.is_bus() { 1 } else { 32 };
        let nic = 4 * self.path().interface().nic_cycles * CYCLE_PS / 1_000;
        let penalty = trips * (nic + 2 * wire_ns(self.link_ns, request));
        self.latency() as f64 + loss * penalty as f64
    }
}

/// Nanoseconds of a packet in an adapter that has so many stages.
pub const fn nic_ns(cycles: u64, bytes: u64) -> u64 {
    let flits = bytes.div_ceil(FLIT_BYTES);
    (cycles + flits.saturating_sub(1)) * CYCLE_PS / 1_000
}

/// Nanoseconds of a packet on the link.
pub const fn wire_ns(link_ns: u64, bytes: u64) -> u64 {
    link_ns + bytes * 8 / LINK_GBPS
}

/// Nanoseconds of an operation between `nodes` that all talk to all, as the artefact's program for many nodes has it: 25 for
/// each further node, and RoCE's contexts from 23 nodes on (n² queue pairs).
pub fn all_to_all(stack: StudyStack, nodes: u64) -> f64 {
    let two = match stack {
        StudyStack::LoadStore => 446.95,
        StudyStack::Urma => 773.15,
        StudyStack::BlueFlame | StudyStack::Dma => 2_199.35,
    };
    let spill = if !stack.is_bus() && nodes * nodes > QP_CACHE { 1_000.0 } else { 0.0 };
    two + 25.0 * (nodes - 2) as f64 + spill
}

/// Bytes of a Jetty: of the paper's prototype, and with all fields of the specification.
pub const JETTY_STATE: [u64; 2] = [20, 48];
/// Bytes of a channel.
pub const CHANNEL_STATE: u64 = 56;
/// Bytes of a region.
pub const REGION_STATE: u64 = 32;
/// Bytes of a queue pair, as the paper assumes them.
pub const QP_STATE: u64 = 512;

/// Bytes in an adapter of `n` programs that talk to `m` hosts, on the bus, with Jetties of so many bytes.
pub const fn bus_state(n: u64, m: u64, jetty: u64) -> u64 {
    (jetty + REGION_STATE) * n + CHANNEL_STATE * m
}

/// The same for RoCE.
pub const fn roce_state(n: u64, m: u64) -> u64 {
    QP_STATE * n * m + REGION_STATE * n
}

/// Nanoseconds of a system call, and of a round trip out of band, in the model of setup.
const IOCTL_NS: u64 = 5_000;
const OUT_OF_BAND_NS: u64 = 500_000;

/// Nanoseconds in which `n` programs set up connections to `m` hosts, one after the other: a queue pair takes four calls and a
/// round trip, a Jetty a call, a channel a call and a round trip.
pub const fn setup_serial(is_bus: bool, n: u64, m: u64) -> u64 {
    match is_bus {
        true => n * IOCTL_NS + m * (IOCTL_NS + OUT_OF_BAND_NS),
        false => n * m * (4 * IOCTL_NS + OUT_OF_BAND_NS),
    }
}

/// The same with `workers` that take one task after the other, each a queue pair, a Jetty or a channel; Jetties come first.
pub fn setup_parallel(is_bus: bool, n: u64, m: u64, workers: u64) -> u64 {
    let pair = 4 * IOCTL_NS + OUT_OF_BAND_NS;
    if !is_bus {
        return (n * m).div_ceil(workers) * pair;
    }
    let mut free: std::collections::BinaryHeap<_> = (0..workers).map(|_| std::cmp::Reverse(0)).collect();
    let mut end = 0;
    for task in 0..n + m {
        let time = if task < n { IOCTL_NS } else { IOCTL_NS + OUT_OF_BAND_NS };
        let Some(std::cmp::Reverse(begin)) = free.pop() else { break };
        end = end.max(begin + time);
        free.push(std::cmp::Reverse(begin + time));
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artefact;

    fn of_all(verb: StudyVerb, bytes: u64, change: impl Fn(&mut TwoNodes)) -> [u64; 4] {
        StudyStack::ALL.map(|stack| {
            let mut nodes = TwoNodes::new(stack, verb, bytes);
            change(&mut nodes);
            nodes.latency()
        })
    }

    #[test]
    fn the_parts_of_a_read_are_those_of_table_7() {
        let parts = |stack| {
            let nodes = TwoNodes::new(stack, StudyVerb::Read, 64);
            [nodes.before(), nodes.way(64, 0), nodes.target(), nodes.after()]
        };
        assert_eq!(parts(StudyStack::LoadStore), [100, 155, 60, 30]);
        assert_eq!(parts(StudyStack::Urma), [110, 261, 60, 65]);
        assert_eq!(parts(StudyStack::Dma), [780, 163, 530, 600]);
    }

    #[test]
    fn every_operation_of_64_bytes_is_that_of_the_artefact() {
        for (verb, row) in StudyVerb::ALL.into_iter().zip(artefact::OPERATIONS) {
            let bytes = if verb.is_atomic() { 8 } else { 64 };
            assert_eq!(of_all(verb, bytes, |_| ()), row, "{verb:?}");
        }
    }

    #[test]
    fn delays_of_the_link_are_added_twice() {
        for (link, row) in artefact::LINK_READ {
            assert_eq!(of_all(StudyVerb::Read, 64, |nodes| nodes.link_ns = link), row, "{link}");
        }
        for (link, row) in artefact::LINK_ATOMIC {
            assert_eq!(of_all(StudyVerb::FetchAdd, 8, |nodes| nodes.link_ns = link), row, "{link}");
            assert_eq!(of_all(StudyVerb::CompareSwap, 8, |nodes| nodes.link_ns = link), row, "{link}");
        }
        for (link, row) in artefact::WRITE_DMA {
            for (bytes, expected) in [8, 64, 256].into_iter().zip(row) {
                let nodes = TwoNodes { link_ns: link, ..TwoNodes::new(StudyStack::Dma, StudyVerb::Write, bytes) };
                assert_eq!(nodes.latency(), expected, "{link} {bytes}");
            }
        }
    }

    #[test]
    fn every_payload_is_that_of_the_artefact() {
        for (verb, rows) in [
            (StudyVerb::Read, artefact::READS),
            (StudyVerb::Write, artefact::WRITES),
            (StudyVerb::Send, artefact::SENDS),
        ] {
            for &(bytes, row) in rows {
                assert_eq!(of_all(verb, bytes, |_| ()), row, "{verb:?} {bytes}");
            }
        }
        // A scan by words of 8 bytes: one of eight misses, the others take a nanosecond.
        let miss = TwoNodes::new(StudyStack::LoadStore, StudyVerb::Read, 8).latency();
        assert_eq!((7 + miss) as f64 / 8.0, artefact::SCAN_8);
    }

    #[test]
    fn contexts_spill_where_the_artefact_has_it() {
        for (n, row) in artefact::SPILL {
            assert_eq!(of_all(StudyVerb::Read, 64, |nodes| nodes.active = n), row, "{n}");
        }
        for (k, row) in artefact::SHARING {
            let got = of_all(StudyVerb::Read, 64, |nodes| nodes.sharing = k);
            assert_eq!([got[0], got[1], got[3]], row, "{k}");
        }
        for (k, row) in artefact::FAN_OUT {
            let got = of_all(StudyVerb::Send, 64, |nodes| nodes.remotes = k);
            assert_eq!([got[1], got[3]], row, "{k}");
        }
        for (k, row) in artefact::CONTENTION {
            // The artefact counts each contender as a connection.
            assert_eq!(of_all(StudyVerb::CompareSwap, 8, |nodes| nodes.active = k), row, "{k}");
        }
    }

    #[test]
    fn means_with_order_and_loss_are_those_of_the_artefact() {
        assert_eq!(of_all(StudyVerb::Read, 64, |nodes| nodes.is_strong = true), artefact::ALL_STRONG);
        // The committed means are of 5000 operations with one seed, so the share of lost ones is not the probability.
        for (loss, lost, row) in artefact::LOSS {
            for (stack, mean) in StudyStack::ALL.into_iter().zip(row) {
                let got = TwoNodes::new(stack, StudyVerb::Read, 64).mean_with_loss(lost / 5_000.0);
                assert!((got - mean).abs() < 0.06 + mean / 1e4, "{stack:?} {loss}: {got} {mean}");
            }
        }
        // What one loss costs is exact: the longest operation of the committed files.
        let penalty = |stack| TwoNodes::new(stack, StudyVerb::Read, 64).mean_with_loss(1.0);
        assert_eq!(StudyStack::ALL.map(penalty), artefact::ONE_LOSS);
    }

    #[test]
    fn many_nodes_are_those_of_the_artefact() {
        for (nodes, row) in artefact::MANY_NODES {
            for (stack, expected) in StudyStack::ALL.into_iter().zip(row) {
                assert!((all_to_all(stack, nodes) - expected).abs() < 0.2, "{stack:?} {nodes}");
            }
        }
    }

    #[test]
    fn state_and_setup_are_those_of_the_artefact() {
        for (n, m, bus, full, roce) in artefact::STATE {
            let [jetty, whole] = JETTY_STATE;
            assert_eq!((bus_state(n, m, jetty), bus_state(n, m, whole), roce_state(n, m)), (bus, full, roce));
        }
        for (n, serial) in artefact::SETUP_SERIAL {
            for (is_bus, seconds) in [(false, serial[0]), (true, serial[1])] {
                let got = setup_serial(is_bus, n, n) as f64 / 1e9;
                assert!((got / seconds - 1.0).abs() < 6e-4, "{n} {is_bus}: {got}");
            }
        }
        for (n, parallel) in artefact::SETUP_PARALLEL {
            for (is_bus, seconds) in [(false, parallel[0]), (true, parallel[1])] {
                let got = setup_parallel(is_bus, n, n, 32) as f64 / 1e9;
                assert!((got / seconds - 1.0).abs() < 6e-4, "{n} {is_bus}: {got}");
            }
        }
    }
}
