//! The table of all metrics: name without the ending of its kind, kind, and what it says. The enum, the exposition and the page
//! docs/metrics.md are made from it.

use prometheus_client::metrics::MetricType;

macro_rules! families {
    ($($variant:ident, $name:literal, $kind:ident, $help:literal;)+) => {
        /// A metric, as an index of [`FAMILIES`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Metric { $(#[doc = $help] $variant),+ }

        /// All metrics, in the order of the output.
        pub const FAMILIES: &[MetricFamily] =
            &[$(MetricFamily { metric: Metric::$variant, name: $name, kind: FamilyKind::$kind, help: $help }),+];
    };
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricFamily {
    /// Its index.
    pub metric: Metric,
    /// Its name, to which a sample adds the ending of the kind.
    pub name: &'static str,
    /// Its kind.
    pub kind: FamilyKind,
    /// What it says.
    pub help: &'static str,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Rises only.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by upper bounds.
    Histogram,
}

impl FamilyKind {
    /// What names of samples end with.
    pub const fn endings(self) -> &'static [&'static str] {
        match self {
            FamilyKind::Counter => &["_total"],
            FamilyKind::Gauge => &[""],
            FamilyKind::Histogram => &["_bucket", "_sum", "_count"],
        }
    }
    /// The word of the formats.
    pub const fn word(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
    pub(crate) const fn metric_type(self) -> MetricType {
        match self {
            FamilyKind::Counter => MetricType::Counter,
            FamilyKind::Gauge => MetricType::Gauge,
            FamilyKind::Histogram => MetricType::Histogram,
        }
    }
}

families! {
    BuildInfo, "burst_build_info", Gauge, "Always 1; the label has the version.";
    Uptime, "burst_uptime_seconds", Gauge, "Time since the host began.";
    Contexts, "burst_contexts", Gauge, "Open contexts: programs that have opened a device.";
    Crashes, "burst_crashes", Counter, "Daemons that fell before this one, under the same supervisor.";
    DeviceUp, "burst_device_up", Gauge, "Whether the link of the device is up.";
    DeviceSpeed, "burst_device_speed_bytes_per_second", Gauge, "Speed of the link, as the interface says.";
    DeviceMtu, "burst_device_mtu_bytes", Gauge, "MTU of the interface.";
    // In the order of `burst_control::monitor::TRAFFIC`.
    RxPackets, "burst_rx_packets", Counter, "Packets received with a correct ICRC.";
    RxBytes, "burst_rx_bytes", Counter, "Their bytes from the BTH on.";
    TxPackets, "burst_tx_packets", Counter, "Packets given to the port.";
    TxBytes, "burst_tx_bytes", Counter, "Their bytes from the BTH on.";
    Completions, "burst_completions", Counter, "Completions written.";
    Events, "burst_events", Counter, "Completion events written.";
    LoopbackPackets, "burst_loopback_packets", Counter, "Packets that reached neither a wire nor the kernel: both ends are here.";
    MarkedPackets, "burst_marked_packets", Counter, "Packets that arrived with the ECN codepoint CE; a train of middle packets counts once.";
    CnpsSent, "burst_cnps_sent", Counter, "Congestion notification packets sent.";
    HandedOver, "burst_handed_over", Counter, "Packets that arrived at another worker than that of their queue pair.";
    HandoverWakes, "burst_handover_wakes", Counter, "Workers woken for packets that were handed over.";
    SendCalls, "burst_send_calls", Counter, "System calls that have sent packets.";
    ReceiveCalls, "burst_receive_calls", Counter, "System calls that have received packets.";
    Reasons, "burst_reason", Counter, "Drops, errors and notes by reason (docs/reasons.md); the label kind says which of these.";
    WorkerSeconds, "burst_worker_seconds", Counter, "Time of each worker: busy, spinning without work, asleep. All 0 inside a program.";
    MessageSeconds, "burst_message_seconds", Histogram, "From the turn that begins a request to its completion; of reliable queue pairs, of one turn in 16.";
    RoundTripSeconds, "burst_round_trip_seconds", Histogram, "From a packet to its acknowledgement, less the time that the peer says it waited; of each queue pair one packet at a time.";
    QueueingSeconds, "burst_queueing_seconds", Histogram, "From the worker's pass in which a queue pair became ready to that of its turn, of one turn in 16; 0 within one pass.";
    TrainPackets, "burst_train_packets", Histogram, "Packets of a turn of a queue pair that sends some, of one turn in 16.";
    WorkerQueuePairs, "burst_worker_queue_pairs", Gauge, "Queue pairs of each worker.";
    WorkerPeers, "burst_worker_peers", Gauge, "Peer addresses of each worker.";
    WorkerPackets, "burst_worker_packets", Counter, "Packets of each worker by direction.";
    WorkerBytes, "burst_worker_bytes", Counter, "Bytes of each worker by direction, from the BTH on.";
    QueuePairs, "burst_queue_pairs", Gauge, "Queue pairs that the scraper may see, by service type and state.";
    QueuePairsHidden, "burst_queue_pairs_hidden", Gauge, "Queue pairs of other users, which the scraper may not see.";
    QueuePairRequests, "burst_queue_pair_requests", Counter, "Work requests begun, modulo 2^32, of the queue pairs with the most.";
    QueuePairInflight, "burst_queue_pair_inflight_bytes", Gauge, "Bytes in flight of the same queue pairs.";
    QueuePairRtt, "burst_queue_pair_round_trip_seconds", Gauge, "Smoothed round trip of the same queue pairs, where one is known.";
    QueuePairNotes, "burst_queue_pair_notes", Counter, "What packets of the same queue pairs met, by reason: the first six reasons, up to 65535.";
    ProcessQueuePairs, "burst_process_queue_pairs", Gauge, "Queue pairs of the processes with the most.";
    AccountUsed, "burst_account_used", Gauge, "What the programs of an account use of a limited resource.";
    AccountLimit, "burst_account_limit", Gauge, "What they may use of it.";
    AccountRefused, "burst_account_refused", Counter, "Requests refused because of a share.";
    AccountControlSeconds, "burst_account_control_seconds", Counter, "Time of the control thread for the account.";
    AccountTurns, "burst_account_turns", Counter, "Turns of the account's queue pairs.";
    AccountRequests, "burst_account_requests", Counter, "Work requests begun or continued in these turns.";
    AccountBytes, "burst_account_sent_bytes", Counter, "Payload bytes sent in these turns.";
    PeerQueuePairs, "burst_peer_queue_pairs", Gauge, "Queue pairs connected to a peer address, of the addresses with the most.";
    PeerChannels, "burst_peer_channels", Gauge, "Channels of URMA to the same addresses.";
    PeerInflight, "burst_peer_inflight_bytes", Gauge, "Bytes in flight to the same addresses.";
    PeerWindow, "burst_peer_window_bytes", Gauge, "Most bytes in flight to the same addresses.";
    PeerRate, "burst_peer_rate_bytes_per_second", Gauge, "Rate of congestion control to the same addresses; 0: not paced.";
    CmNumbers, "burst_cm_objects", Gauge, "Counts of the connection manager: ids, listeners, connections, and what it refused or lost.";
    CmSteps, "burst_cm_step_seconds", Histogram, "Time of each step of connection setup.";
}

impl Metric {
    /// Its row.
    pub const fn family(self) -> &'static MetricFamily {
        &FAMILIES[self as usize]
    }
    /// The metric of a traffic counter, by its index in `burst_control::monitor::TRAFFIC`.
    pub(crate) const fn of_traffic(index: usize) -> Metric {
        FAMILIES[Metric::RxPackets as usize + index].metric
    }
}

/// Names of all samples.
pub fn sample_names() -> impl Iterator<Item = String> {
    FAMILIES.iter().flat_map(|family| family.kind.endings().iter().map(|ending| format!("{}{ending}", family.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::monitor::TRAFFIC;
    use std::collections::HashSet;

    #[test]
    fn each_traffic_counter_has_its_metric() {
        for (index, name) in TRAFFIC.iter().enumerate() {
            assert_eq!(Metric::of_traffic(index).family().name, format!("burst_{name}"));
        }
    }

    #[test]
    fn names_are_unique_and_follow_the_rules_of_the_format() {
        let all: Vec<String> = sample_names().collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        for family in FAMILIES {
            assert!(family.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\', '|']), "{}", family.name);
            assert!(
                !family.name.ends_with("_total") && !family.name.ends_with("_count")
                    || family.kind == FamilyKind::Gauge
            );
        }
    }

    #[test]
    fn docs_show_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/metrics.md");
        let written = std::fs::read_to_string(path).expect("docs/metrics.md");
        let mark = "<!-- The table is written by BLESS=1 cargo test -p burst-metrics -->\n";
        let (text, _) = written.split_once(mark).expect("the mark above the table");
        let head = "\n| metric | kind | what it says |\n|---|---|---|\n".to_owned();
        let row = |table: String, f: &MetricFamily| {
            table
                + &format!(
                    "| `{}{}` | {} | {} |\n",
                    f.name,
                    f.kind.endings()[0].replace("_bucket", ""),
                    f.kind.word(),
                    f.help
                )
        };
        let page = format!("{text}{mark}{}", FAMILIES.iter().fold(head, row));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &page).expect("a page that can be written");
            return;
        }
        assert!(written == page, "docs/metrics.md is stale: run BLESS=1 cargo test -p burst-metrics");
    }

    /// Names in the queries of the board.
    fn queried(board: &serde_json::Value, found: &mut Vec<String>) {
        match board {
            serde_json::Value::Object(map) => {
                map.iter().for_each(|(key, value)| match (key.as_str(), value.as_str()) {
                    ("expr" | "query", Some(query)) => {
                        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                        found.extend(words.filter(|word| word.starts_with("burst_")).map(str::to_owned));
                    }
                    _ => queried(value, found),
                })
            }
            serde_json::Value::Array(list) => list.iter().for_each(|value| queried(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_board_asks_for_metrics_that_there_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/grafana/burst.json");
        let board = serde_json::from_str(&std::fs::read_to_string(path).expect("the board")).expect("JSON");
        let mut found = Vec::new();
        queried(&board, &mut found);
        let names: HashSet<String> = sample_names().collect();
        let missing: Vec<&String> = found.iter().filter(|name| !names.contains(*name)).collect();
        assert!(missing.is_empty() && found.len() >= 20, "{} queries, not exported: {missing:?}", found.len());
    }
}
