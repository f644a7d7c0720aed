//! `burst why`, `burst why all`, `burst why QPN|PID`: failures that the daemon and hosts inside programs keep, explained.

use crate::sockets::ShownHost;
use burst_client::explain::{self, Explanation, time_text};
use burst_control::failures::{FailureKind, FailureRecord};
use burst_control::socket_path::ProgramKind;
use clap::ArgMatches;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Most failures that are shown of one host.
const SHOWN_MAX: usize = 512;

/// Which failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// The last one.
    Last,
    /// All, in a line each.
    All,
    /// Those of a queue pair or a process.
    About(u32),
}

/// Shows failures.
pub fn failures(matches: &ArgMatches, which: Failures) -> ExitCode {
    let hosts = match crate::sockets::hosts(crate::chosen_socket(matches).as_deref(), &[ProgramKind::InProcess]) {
        Ok(hosts) => hosts,
        Err(sentence) => return crate::fail(sentence),
    };
    let (mut records, mut hidden) = (Vec::new(), 0);
    for host in hosts {
        match ask(host, which) {
            Ok((found, others)) => {
                records.extend(found);
                hidden += others;
            }
            Err(sentence) => crate::complain(sentence),
        }
    }
    records.sort_by_key(|record| record.ago_ns);
    if which == Failures::Last {
        records.truncate(1);
    }
    if matches.get_flag("json") {
        let failures: Vec<Value> = records.iter().map(as_json).collect();
        return crate::finish(&crate::json_text(&json!({ "failures": failures, "hidden": hidden })));
    }
    crate::finish(&as_text(&records, hidden, which))
}

/// Asks one host.
fn ask(mut host: ShownHost, which: Failures) -> Result<(Vec<FailureRecord>, u32), String> {
    let about = match which {
        Failures::About(number) => Some(number),
        Failures::Last | Failures::All => None,
    };
    let most = if which == Failures::Last { 1 } else { SHOWN_MAX };
    host.host.failures(about, most).map_err(|error| error.to_string())
}

fn as_text(records: &[FailureRecord], hidden: u32, which: Failures) -> String {
    let mut text = String::new();
    for record in records {
        match which {
            Failures::All => text.push_str(&as_line(record)),
            Failures::Last | Failures::About(_) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "{}{}", if text.is_empty() { "" } else { "\n" }, explain::text(record));
            }
        }
    }
    if records.is_empty() {
        text.push_str(match which {
            Failures::About(_) => "nothing is known of a queue pair or process with this number\n",
            Failures::Last | Failures::All => "nothing has failed since the daemon started\n",
        });
    }
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} failures of other users are not shown");
    }
    text
}

/// A failure in a line.
fn as_line(record: &FailureRecord) -> String {
    let whose = format!("{} {}", record.program.pid, record.program.name);
    let what = match &record.qp {
        Some(qp) => format!("qp {:#x}", qp.qpn),
        None => record.jetty.as_ref().map_or_else(|| kind_name(record.kind).into(), |j| format!("jetty {}", j.jetty)),
    };
    format!("{:>8} ago  {whose:<24} {what:<12} {}\n", time_text(record.ago_ns), explain::explain(record).cause)
}

const fn kind_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Request => "request",
        FailureKind::PeerRequest => "peer_request",
        FailureKind::Queue => "queue",
        FailureKind::Present => "present",
        FailureKind::Call => "call",
        FailureKind::Connection => "connection",
    }
}

fn as_json(record: &FailureRecord) -> Value {
    let Explanation { cause, cure } = explain::explain(record);
    let facts: Map<String, Value> =
        explain::facts(record).into_iter().map(|(name, value)| (name.replace(' ', "_"), value.into())).collect();
    json!({
        "kind": kind_name(record.kind),
        "ago_ns": record.ago_ns,
        "pid": record.program.pid,
        "uid": record.program.uid,
        "program": record.program.name,
        "qpn": record.qp.as_ref().map(|qp| qp.qpn),
        "jetty": record.jetty.as_ref().map(|jetty| jetty.jetty),
        "comm_id": (record.comm_id != 0).then_some(record.comm_id),
        "reason": record.reason().map(|reason| reason.name()),
        "status": record.jetty.as_ref().map_or(record.status, |jetty| jetty.status),
        "errno": record.errno,
        "facts": facts,
        "cause": cause,
        "cure": cure,
    })
}
