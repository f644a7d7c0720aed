//! `burst stats`: the counters of the daemon, and of programs with hosts of their own.

use burst_base::Reason;
use burst_control::Counter;
use burst_control::monitor::TRAFFIC;
use burst_control::socket_path::ProgramKind;
use clap::ArgMatches;
use serde_json::json;
use std::process::ExitCode;

/// Prints the counters.
pub fn stats(matches: &ArgMatches) -> ExitCode {
    text(matches).map_or_else(crate::fail, |text| crate::finish(&text))
}

fn text(matches: &ArgMatches) -> Result<String, String> {
    if matches.get_flag("names") {
        return Ok(names().map(|name| format!("{name}\n")).collect());
    }
    let all = matches.get_flag("all");
    let (mut rows, mut text) = (Vec::new(), String::new());
    for mut host in crate::sockets::hosts(crate::chosen_socket(matches).as_deref(), &ProgramKind::ALL)? {
        let counters = host.host.counters().map_err(|e| e.to_string())?;
        let shown: Vec<&Counter> = counters.iter().filter(|c| all || c.value != 0).collect();
        let row = |c: &&Counter| host.label(json!({"name": c.name, "device": c.device, "value": c.value}));
        rows.extend(shown.iter().map(row));
        text.push_str(&host.heading());
        if shown.is_empty() {
            text.push_str("Every counter is 0.\n");
        }
        text.extend(shown.into_iter().map(as_line));
    }
    Ok(if matches.get_flag("json") { crate::json_text(&json!({ "counters": rows })) } else { text })
}

/// Names of all counters: each reason has one, and the traffic.
fn names() -> impl Iterator<Item = &'static str> {
    Reason::ALL.iter().map(|reason| reason.name()).chain(TRAFFIC)
}

fn as_line(c: &Counter) -> String {
    format!("{:<10} {:<32} {:>20}\n", if c.device.is_empty() { "-" } else { &c.device }, c.name, c.value)
}
