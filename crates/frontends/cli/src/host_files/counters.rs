//! The counters of the host files: standard counters of a port in `counters`, and in `hw_counters` all counters under Burst's
//! names, under those of the kernel's soft-RoCE and under those of mlx5.
//!
//! A counter of another driver is the sum of Burst's counters of the same event. Those without a counterpart are left out, and
//! those of events that cannot happen here are 0.

use burst_control::Counter;

/// File with the milliseconds for which values may be kept, beside the hardware's counters.
pub const LIFESPAN: &str = "lifespan";
/// Its value: to write all files anew costs a processor half a millisecond.
pub const LIFESPAN_MS: u64 = 1000;

/// Standard counters, the daemon's counter of each, and bytes per unit. Without a daemon's counter: always 0.
const STANDARD: &[(&str, &str, u64)] = &[
    // IBA counts data in words of 4 bytes.
    ("port_xmit_data", "tx_bytes", 4),
    ("port_rcv_data", "rx_bytes", 4),
    ("port_xmit_packets", "tx_packets", 1),
    ("port_rcv_packets", "rx_packets", 1),
    ("unicast_xmit_packets", "tx_packets", 1),
    ("unicast_rcv_packets", "rx_packets", 1),
    ("port_rcv_errors", "bad_icrc", 1),
    ("port_xmit_discards", "", 1),
    ("port_xmit_wait", "", 1),
    ("port_rcv_constraint_errors", "", 1),
    ("port_rcv_remote_physical_errors", "", 1),
    ("port_rcv_switch_relay_errors", "", 1),
    ("port_xmit_constraint_errors", "", 1),
    ("local_link_integrity_errors", "", 1),
    ("excessive_buffer_overrun_errors", "", 1),
    ("link_downed", "", 1),
    ("link_error_recovery", "", 1),
    ("symbol_error", "", 1),
    ("VL15_dropped", "", 1),
];

/// Counters of the kernel's soft-RoCE and of mlx5, each the sum of these of the daemon's.
const OF_DRIVERS: &[(&str, &[&str])] = &[
    // Soft-RoCE.
    ("sent_pkts", &["tx_packets"]),
    ("rcvd_pkts", &["rx_packets"]),
    ("out_of_seq_request", &["sequence_gap", "gap_repeated", "sr_early"]),
    ("rcvd_rnr_err", &["rnr_nak_received"]),
    ("send_rnr_err", &["receiver_not_ready"]),
    ("rcvd_seq_err", &["sequence_nak_received"]),
    ("retry_exceeded_err", &["retry_exhausted"]),
    ("retry_rnr_exceeded_err", &["rnr_retry_exhausted"]),
    ("completer_retry_err", &["ack_timeout", "sequence_nak_received", "implied_nak", "sr_recovery", "sr_timeout"]),
    ("send_err", &["send_failed", "send_too_long", "no_neighbour", "no_route"]),
    // mlx5.
    ("implied_nak_seq_err", &["implied_nak"]),
    ("local_ack_timeout_err", &["ack_timeout", "sr_timeout", "sr_read_timeout"]),
    ("np_cnp_sent", &["cnps_sent"]),
    ("np_ecn_marked_roce_packets", &["marked_packets"]),
    ("out_of_buffer", &["receiver_not_ready", "ud_no_receive"]),
    ("out_of_sequence", &["sequence_gap", "gap_repeated", "sr_early"]),
    ("packet_seq_err", &["sequence_nak_received", "sr_recovery"]),
    (
        "req_cqe_error",
        &[
            "retry_exhausted",
            "rnr_retry_exhausted",
            "remote_access_reported",
            "remote_invalid_reported",
            "remote_operation_reported",
            "bad_response",
            "local_protection",
            "local_length",
            "window_bind",
            "local_operation",
        ],
    ),
    // Receives are flushed together with requests: they are counted here, too.
    ("req_cqe_flush_error", &["flushed"]),
    ("req_remote_access_errors", &["remote_access_reported"]),
    ("req_remote_invalid_request", &["remote_invalid_reported"]),
    ("resp_cqe_error", &["receive_too_short", "receive_protection"]),
    ("resp_local_length_error", &["receive_too_short"]),
    ("resp_remote_access_errors", &["remote_access"]),
    ("rnr_nak_retry_err", &["rnr_nak_received"]),
    ("roce_adp_retrans", &["tail_probe", "sr_probe"]),
    ("roce_adp_retrans_to", &["sr_timeout"]),
    ("rp_cnp_handled", &["cnp_received"]),
    ("rp_cnp_ignored", &[]),
    ("rx_icrc_encapsulated", &["bad_icrc"]),
];

/// Paths below the device's directory, and values.
pub fn counters(own: &[&Counter]) -> Vec<(String, u64)> {
    let value = |name: &str| own.iter().find(|c| c.name == name).map_or(0, |c| c.value);
    let standard =
        STANDARD.iter().map(|(name, source, unit)| (format!("ports/1/counters/{name}"), value(source) / unit));
    let hardware = |name: &str| format!("ports/1/hw_counters/{name}");
    let of_drivers =
        OF_DRIVERS.iter().map(|(name, sources)| (hardware(name), sources.iter().map(|source| value(source)).sum()));
    standard.chain(of_drivers).chain(own.iter().map(|c| (hardware(&c.name), c.value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::Reason;
    use burst_control::monitor::TRAFFIC;
    use std::collections::HashSet;

    fn all() -> Vec<Counter> {
        let names = TRAFFIC.into_iter().chain(Reason::ALL.iter().map(|reason| reason.name()));
        names
            .enumerate()
            .map(|(at, name)| Counter { name: name.into(), device: "burst0".into(), value: at as u64 + 1 })
            .collect()
    }

    #[test]
    fn each_source_is_a_counter_of_the_daemon() {
        let names: HashSet<String> = all().into_iter().map(|c| c.name).collect();
        let sources = OF_DRIVERS.iter().flat_map(|(_, sources)| sources.iter());
        for source in sources.chain(STANDARD.iter().map(|(_, source, _)| source).filter(|source| !source.is_empty())) {
            assert!(names.contains(*source), "{source}");
        }
    }

    #[test]
    fn each_path_is_there_once() {
        let all = all();
        let files = counters(&all.iter().collect::<Vec<_>>());
        let paths: HashSet<&String> = files.iter().map(|(path, _)| path).collect();
        assert_eq!(paths.len(), files.len());
        let value = |path: &str| files.iter().find(|(p, _)| p == path).map(|(_, value)| *value);
        let of = |name: &str| all.iter().find(|c| c.name == name).map(|c| c.value);
        assert_eq!(value("ports/1/hw_counters/np_cnp_sent"), of("cnps_sent"));
        assert_eq!(value("ports/1/hw_counters/duplicate_request"), of("duplicate_request"));
        assert_eq!(value("ports/1/counters/port_rcv_data"), of("rx_bytes").map(|bytes| bytes / 4));
    }
}
