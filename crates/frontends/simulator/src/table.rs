//! The results of a simulation as a table for a terminal.

use burst_sim::results::{NetworkTotals, Results, TrafficResults};
use std::fmt::Write;

/// The table.
pub fn of(results: &Results) -> String {
    let mut text = String::new();
    let partial = if results.is_partial { ", PARTIAL: stopped before its end" } else { "" };
    let Results { scenario, seed, hosts, cpu, payload, simulated_us, packets, trains, passes, .. } = results;
    let _ = writeln!(
        text,
        "{scenario}: seed {seed}, {hosts} hosts ({cpu}), payload {payload}, {:.3} ms simulated{partial}",
        simulated_us / 1e3
    );
    let _ = writeln!(text, "{packets} packets in {trains} trains arrived; hosts ran {passes} passes\n");
    let _ = writeln!(
        text,
        "{:<12} {:>9} {:>7} {:>9} {:>6} {:>10} {:>10} {:>10} {:>9} {:>9}",
        "traffic", "messages", "failed", "Gbit/s", "Jain", "mean us", "p50 us", "p99 us", "slowdown", "its p99"
    );
    for TrafficResults { kind, messages, failed, goodput_gbps, jain, time_us, slowdown, .. } in &results.traffic {
        let _ = writeln!(
            text,
            "{kind:<12} {messages:>9} {failed:>7} {goodput_gbps:>9.2} {jain:>6.3} {:>10.2} {:>10.2} {:>10.2} {:>9.2} {:>9.2}",
            time_us.mean, time_us.p50, time_us.p99, slowdown.mean, slowdown.p99
        );
    }
    let _ = write!(text, "{}", failures(results));
    let NetworkTotals { buffer_drops, losses, corrupted, receive_overflows, .. } = results.network;
    let NetworkTotals { marks, pauses, pause_storms, watchdog_drops, queue_bytes_max, queue_bytes_mean, .. } =
        results.network;
    let _ = writeln!(
        text,
        "\nnetwork: {buffer_drops} dropped by full buffers, {losses} lost, {corrupted} corrupted, {receive_overflows} dropped \
         by hosts, {marks} marked, {pauses} pauses, fullest queue {:.1} KiB, \
         longest in the mean {:.1} KiB",
        queue_bytes_max as f64 / 1024.0,
        queue_bytes_mean as f64 / 1024.0
    );
    if pause_storms > 0 {
        let _ = writeln!(text, "watchdog: {pause_storms} pauses ended, {watchdog_drops} packets dropped");
    }
    text
}

/// A line for each reason why messages have failed.
fn failures(results: &Results) -> String {
    let mut text = String::new();
    for (number, part) in results.traffic.iter().enumerate() {
        for (status, count) in &part.failures {
            let why = match status.as_str() {
                "RetryExcErr" => format!(
                    "all retries passed without an answer; the local ACK timeout was {} ms (key timeout)",
                    results.ack_timeout_us / 1e3
                ),
                "RnrRetryExcErr" => "the receiver was not ready after all retries".into(),
                "WrFlushErr" => "an earlier request of the same queue pair had failed".into(),
                other => format!("status {other}"),
            };
            let _ = writeln!(text, "failed: {count} of traffic {number} ({}): {why}", part.kind);
        }
        if part.restarted > 0 {
            let _ = writeln!(text, "failed: {} of traffic {number} ({}): a host restarted", part.restarted, part.kind);
        }
    }
    if results.unfinished > 0 {
        let unfinished = results.unfinished;
        let _ = writeln!(text, "not ended: {unfinished} messages when the time was over (keys time, drain)");
    }
    text
}
