//! `burst stats`: the daemon's counters.

use burst_control::Counter;
use clap::ArgMatches;
use serde_json::json;
use std::process::ExitCode;

/// Prints the counters.
pub fn stats(matches: &ArgMatches) -> ExitCode {
    let counters = match ask(matches) {
        Ok(counters) => counters,
        Err(sentence) => return crate::fail(sentence),
    };
    let all = matches.get_flag("all");
    let shown: Vec<&Counter> = counters.iter().filter(|c| all || c.value != 0).collect();
    if matches.get_flag("json") {
        let rows = shown.iter().map(|c| json!({"name": c.name, "device": c.device, "value": c.value}));
        return crate::finish(&crate::json_text(&json!({ "counters": rows.collect::<Vec<_>>() })));
    }
    if shown.is_empty() {
        return crate::finish("Every counter is 0.\n");
    }
    crate::finish(&shown.into_iter().map(as_line).collect::<String>())
}

fn as_line(c: &Counter) -> String {
    format!("{:<10} {:<32} {:>20}\n", if c.device.is_empty() { "-" } else { &c.device }, c.name, c.value)
}

fn ask(matches: &ArgMatches) -> Result<Vec<Counter>, String> {
    let mut daemon = crate::sockets::connect(crate::chosen_socket(matches).as_deref())?;
    daemon.counters().map_err(|e| e.to_string())
}
