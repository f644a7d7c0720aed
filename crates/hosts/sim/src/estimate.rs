//! What a simulation will need, before it begins.

use crate::run::PayloadMode;
use crate::scenario::{Pattern, Scenario, Sizes};
use crate::topology;
use burst_fabric::traffic::SizeTable;
use std::fmt;

/// Bytes of a host that has begun: its worker with agent and tables.
const HOST_BYTES: u64 = 116 << 10;
/// Bytes of both ends of a connection with queues of four requests.
const CONNECTION_BYTES: u64 = 12 << 10;
/// Bytes of both ends of a connection for each further request that its queues hold.
const REQUEST_BYTES: u64 = 2 * (128 + 32);
/// Connections that a host has at one time, when messages begin at random times.
const CONNECTIONS: f64 = 96.0;
/// Bytes kept of a message that has ended.
const ENDED_BYTES: u64 = 64;
/// Trains that one core handles per second when hosts are too many for its caches.
const TRAINS_PER_SECOND: f64 = 100_000.0;

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bytes of memory.
    pub bytes: u64,
    /// Messages.
    pub messages: f64,
    /// Packets with data.
    pub packets: f64,
    /// Time on one core, in seconds.
    pub seconds: f64,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { bytes, messages, packets, seconds } = self;
        let (messages, packets, mib) = (messages.round(), packets / 1e6, (bytes >> 20) + 1);
        write!(f, "estimate: {messages} messages, {packets:.2} M packets, {mib} MiB, {seconds:.0} s")
    }
}

impl Scenario {
    /// What the simulation will need, as far as the scenario says.
    pub fn estimate(&self) -> Estimate {
        let rate = topology::host_rate(self) as f64;
        let hosts = f64::from(self.hosts);
        let (mut messages, mut bytes, mut at_once) = (0.0, 0.0, 0.0);
        for traffic in &self.traffic {
            let seconds = (traffic.end - traffic.begin) as f64 / 1e12;
            let line = rate / 8.0 * seconds;
            let rounds = |every: u64| if every == 0 { 1.0 } else { (seconds * 1e12 / every as f64).ceil() };
            let (count, size) = match &traffic.pattern {
                Pattern::Stream { bytes, count, .. } => ((*count as f64).min(line / *bytes as f64), *bytes as f64),
                Pattern::Poisson { sizes, load } => {
                    let mean = mean_bytes(sizes);
                    (load * line * hosts / mean, mean)
                }
                Pattern::Incast { senders, bytes, every, .. } => (rounds(*every) * f64::from(*senders), *bytes as f64),
                Pattern::AllToAll { bytes, every } => (rounds(*every) * hosts * (hosts - 1.0), *bytes as f64),
                Pattern::Permutation { bytes, every, .. } => (rounds(*every) * hosts, *bytes as f64),
                Pattern::Ring { bytes } => {
                    let part = (*bytes as f64 / hosts).ceil();
                    (line / part * hosts, part)
                }
            };
            at_once += match &traffic.pattern {
                Pattern::Stream { .. } => 1.0,
                Pattern::Poisson { .. } => count.min(CONNECTIONS * hosts),
                Pattern::Incast { senders, .. } => f64::from(*senders),
                Pattern::AllToAll { .. } => hosts * (hosts - 1.0),
                Pattern::Permutation { .. } | Pattern::Ring { .. } => hosts,
            };
            messages += count;
            bytes += count * size;
        }
        let mtu = f64::from(self.node.mtu.bytes());
        let packets = bytes / mtu + messages;
        let per_train = (f64::from(self.node.train_bytes) / mtu).max(1.0);
        let trains = bytes / mtu / per_train + messages;
        let requests = u64::from(topology::queue_depth(self)).saturating_sub(4);
        let connection = CONNECTION_BYTES + requests * REQUEST_BYTES;
        let programs = if self.payload == PayloadMode::Real { self.node.memory } else { 0 };
        let memory =
            hosts * (HOST_BYTES + programs) as f64 + messages * ENDED_BYTES as f64 + at_once * connection as f64;
        Estimate { bytes: memory as u64, messages, packets, seconds: 2.0 * trains / TRAINS_PER_SECOND }
    }
}

fn mean_bytes(sizes: &Sizes) -> f64 {
    match sizes {
        Sizes::Fixed(bytes) => *bytes as f64,
        Sizes::Table(name) => SizeTable::published(name).map_or(1.0, |table| table.mean()),
        Sizes::Own(steps) => SizeTable::new(steps).map_or(1.0, |table| table.mean()),
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::Scenario;

    /// A fat tree of 1,024 hosts at load 0.7 for 7 ms took 112 s and 1.6 GB beside other load on one core.
    #[test]
    fn the_estimate_is_near_a_measured_run() {
        let text = "time = \"7ms\"\n[topology]\nkind = \"fat-tree\"\nhosts = 1024\n[hosts]\ntrain = \"16KiB\"\n[[traffic]]\n\
                    kind = \"poisson\"\nsizes = \"cache-follower\"\nload = 0.7\n";
        let estimate = Scenario::parse(text).expect("a scenario").estimate();
        assert!((1 << 30..2 << 30).contains(&estimate.bytes), "{estimate}");
        assert!((50.0..200.0).contains(&estimate.seconds) && (15e6..16e6).contains(&estimate.packets), "{estimate}");
    }

    #[test]
    fn what_begins_at_one_time_has_connections_at_one_time() {
        let estimate = |hosts: u32, payload: &str, traffic: &str| {
            let text = format!(
                "time = \"7ms\"\npayload = \"{payload}\"\n[topology]\nkind = \"star\"\nhosts = {hosts}\n[[traffic]]\n{traffic}\n"
            );
            Scenario::parse(&text).expect("a scenario").estimate().bytes >> 20
        };
        let all = "kind = \"all-to-all\"\nsize = 4096";
        // Measured: 626 MiB, and 760 with messages of 1 MiB.
        assert!((600..850).contains(&estimate(256, "void", all)), "{}", estimate(256, "void", all));
        assert!(estimate(4_096, "void", all) > 150 << 10, "{}", estimate(4_096, "void", all));
        let stream = "kind = \"stream\"\nsize = 4096\ncount = 1";
        assert_eq!([estimate(64, "void", stream), estimate(64, "real", stream)], [7, 7 + 256]);
    }
}
