//! `burst cc`: the congestion control of a running daemon, shown and changed.

use crate::sockets::ShownHost;
use burst_control::monitor::CcPeer;
use burst_control::socket_path::ProgramKind;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Words and flags of `burst cc`.
pub fn command() -> Command {
    Command::new("cc")
        .about("Show the congestion control of each peer, or change it")
        .long_about(
            "Show the congestion control of each peer, or change it for all or for one kind.\n\n\
             A peer is listed while a queue pair or a channel uses it, so look while programs run. \
             A change is in force until the daemon ends. Each peer's controller begins in its first state; parameters that \
             are not named have their defaults; `auto` chooses for each peer, as a daemon does that was given none. Two Burst daemons agree on one: a change is sent to peers that are Burst \
             daemons, and they follow unless they were changed themselves. Each worker has its own controller for a peer. Only root and the user who \
             runs the daemon may change it, and see the peers. Below the daemon's peers are those of your programs with hosts of \
             their own; what these do is not changed.",
        )
        .after_help("burst cc\nburst cc dcqcn rpg_ai_rate=100M\nburst cc --for burst dctcp\nburst cc auto")
        .arg(Arg::new("algorithm").value_name("ALGORITHM").help("auto, cubic, aimd, none, dcqcn, dcqcn-nvidia, dctcp, swift, timely"))
        .arg(
            Arg::new("parameters")
                .value_name("PARAMETER=VALUE")
                .num_args(0..)
                .help("Parameters that differ from the algorithm's defaults (docs/congestion.md)"),
        )
        .arg(
            Arg::new("for")
                .long("for")
                .value_name("KIND")
                .requires("algorithm")
                .help("Change it for peers of this kind only: standard, burst (other Burst daemons), loopback (own addresses)"),
        )
        .arg(crate::socket())
        .arg(crate::json())
}

/// Runs `burst cc`: the exit code.
pub fn cc(matches: &ArgMatches) -> ExitCode {
    let socket = crate::chosen_socket(matches);
    let done = match matches.get_one::<String>("algorithm") {
        None => crate::sockets::hosts(socket.as_deref(), &[ProgramKind::InProcess, ProgramKind::Urma]),
        Some(algorithm) => crate::sockets::connect(socket.as_deref()).and_then(|mut daemon| {
            let parameters = matches.get_many::<String>("parameters").unwrap_or_default().map(String::as_str);
            let kind = matches.get_one::<String>("for").map(String::as_str);
            daemon.set_congestion(kind, &specification(algorithm, parameters)).map_err(|e| e.to_string())?;
            Ok(vec![ShownHost { host: daemon, program: None, kind: ProgramKind::InProcess }])
        }),
    };
    let shown = done.and_then(|hosts| show(hosts, matches.get_flag("json")));
    shown.map_or_else(crate::fail, |text| crate::finish(&text))
}

/// The peers of the daemon, and below those of programs with hosts of their own.
fn show(hosts: Vec<ShownHost>, is_json: bool) -> Result<String, String> {
    let (mut text, mut all, mut programs) = (String::new(), None, Vec::new());
    for mut host in hosts {
        let (cc, peers, hidden) = host.host.congestion().map_err(|e| e.to_string())?;
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{}", host.heading(), as_text(&cc, &peers, hidden));
        let value = host.label(as_json(&cc, &peers, hidden));
        match host.program {
            None => all = Some(value),
            Some(_) => programs.push(value),
        }
    }
    if !is_json {
        return Ok(text);
    }
    let mut all = all.unwrap_or_else(|| json!({ "cc": null, "algorithm": null, "peers": [], "not_shown": 0 }));
    if !programs.is_empty() {
        all["programs"] = Value::Array(programs);
    }
    Ok(format!("{all:#}\n"))
}

/// As the key `cc` of the configuration.
fn specification<'a>(algorithm: &str, parameters: impl Iterator<Item = &'a str>) -> String {
    let parameters: Vec<&str> = parameters.collect();
    match (parameters.is_empty(), algorithm.contains(':')) {
        (true, _) => algorithm.into(),
        (false, true) => format!("{algorithm},{}", parameters.join(",")),
        (false, false) => format!("{algorithm}:{}", parameters.join(",")),
    }
}

fn variable(peer: &CcPeer, name: &str) -> Option<f64> {
    peer.variables.iter().find(|variable| variable.name == name).map(|variable| variable.millionths as f64 / 1e6)
}

/// What is known of the path to a peer: from its acknowledgements if it reports it, else from the controller.
struct PathNumbers {
    rtt_ns: Option<f64>,
    remote_delay_ns: Option<f64>,
    ce_share: Option<f64>,
    pressure: Option<f64>,
    selective: bool,
}

impl PathNumbers {
    fn of(peer: &CcPeer) -> PathNumbers {
        PathNumbers {
            rtt_ns: variable(peer, "path_rtt_ns").or_else(|| variable(peer, "rtt_ns")),
            remote_delay_ns: variable(peer, "remote_delay_ns"),
            ce_share: variable(peer, "ce_share").or_else(|| variable(peer, "alpha")),
            pressure: variable(peer, "pressure"),
            selective: variable(peer, "selective_repeat").is_some_and(|on| on > 0.0),
        }
    }
}

fn as_text(cc: &str, peers: &[CcPeer], hidden: u64) -> String {
    let mut text = format!("{cc}\n");
    if !peers.is_empty() {
        let _ = writeln!(
            text,
            "{:<8} {:<6} {:<28} {:>5} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9} {:>8} {:>8}  {:<10} {:<8} algorithm",
            "device",
            "worker",
            "peer",
            "qps",
            "channels",
            "in flight",
            "window",
            "Mbit/s",
            "rtt us",
            "delay us",
            "ce share",
            "pressure",
            "repeat",
            "kind"
        );
    }
    for peer in peers {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        let rate = (peer.rate_bps > 0).then_some(peer.rate_bps as f64 / 1e6);
        let path = PathNumbers::of(peer);
        let _ = writeln!(
            text,
            "{:<8} {:<6} {:<28} {:>5} {:>8} {:>10} {:>10} {:>10} {:>9} {:>9} {:>8} {:>8}  {:<10} {:<8} {}: {}",
            format!("burst{}", peer.device),
            peer.worker,
            peer.peer.to_string(),
            peer.queue_pairs,
            peer.channels,
            peer.inflight_bytes,
            peer.window_bytes,
            number(rate),
            number(path.rtt_ns.map(|rtt| rtt / 1e3)),
            number(path.remote_delay_ns.map(|delay| delay / 1e3)),
            path.ce_share.map_or_else(|| "-".to_owned(), |share| format!("{share:.3}")),
            path.pressure.map_or_else(|| "-".to_owned(), |pressure| format!("{pressure:.0}")),
            if path.selective { "selective" } else { "standard" },
            peer.kind,
            peer.cc,
            peer.why,
        );
    }
    if peers.is_empty() && hidden == 0 {
        text.push_str("no peers: a peer leaves this list with its last queue pair or channel\n");
    }
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} peers are not shown; root sees them");
    }
    text
}

fn as_json(cc: &str, peers: &[CcPeer], hidden: u64) -> Value {
    let name = |cc: &str| cc.split(':').next().unwrap_or_default().to_owned();
    // Kinds of peers with different algorithms have no common one.
    let algorithm = (!cc.contains(", ")).then(|| name(cc));
    let rows = peers.iter().map(|peer| {
        let path = PathNumbers::of(peer);
        let variables = peer.variables.iter().map(|v| (v.name.clone(), json!(v.millionths as f64 / 1e6))).collect();
        json!({
            "device": format!("burst{}", peer.device),
            "worker": peer.worker,
            "peer": peer.peer.to_string(),
            "kind": peer.kind,
            "algorithm": name(&peer.cc),
            "cc": peer.cc,
            "peers_choice": peer.is_peers_choice,
            "why": peer.why,
            "queue_pairs": peer.queue_pairs,
            "channels": peer.channels,
            "inflight_bytes": peer.inflight_bytes,
            "window_bytes": peer.window_bytes,
            "rate_bps": (peer.rate_bps > 0).then_some(peer.rate_bps),
            "rtt_ns": path.rtt_ns,
            "remote_delay_ns": path.remote_delay_ns,
            "ce_share": path.ce_share,
            "pressure": path.pressure,
            "selective_repeat": path.selective,
            "variables": Value::Object(variables),
        })
    });
    json!({ "cc": cc, "algorithm": algorithm, "peers": rows.collect::<Vec<_>>(), "not_shown": hidden })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::monitor::CcVariable;

    #[test]
    fn parameters_follow_the_algorithm() {
        let say = |algorithm, parameters: &[&str]| specification(algorithm, parameters.iter().copied());
        assert_eq!(say("aimd", &[]), "aimd");
        assert_eq!(say("dcqcn", &["a=1", "b=2"]), "dcqcn:a=1,b=2");
        assert_eq!(say("dcqcn:a=1", &["b=2"]), "dcqcn:a=1,b=2");
    }

    #[test]
    fn a_peer_shows_what_its_controller_knows() {
        let variable = |name: &str, millionths| CcVariable { name: name.into(), millionths };
        let mut peer = CcPeer {
            worker: 0,
            device: 1,
            peer: [10, 0, 0, 2].into(),
            queue_pairs: 3,
            channels: 2,
            inflight_bytes: 4096,
            window_bytes: 65_536,
            rate_bps: 2_500_000_000,
            kind: "burst".into(),
            cc: "dcqcn:rpg_ai_rate=100M".into(),
            is_peers_choice: true,
            why: "the peer's choice".into(),
            variables: vec![variable("alpha", 250_000), variable("selective_repeat", 0)],
        };
        let text = as_text("dcqcn", std::slice::from_ref(&peer), 0);
        let row: Vec<&str> = text.lines().nth(2).expect("a row").split_whitespace().collect();
        let known = ["burst1", "0", "10.0.0.2", "3", "2", "4096", "65536", "2500.0"];
        let chosen = ["burst", "dcqcn:rpg_ai_rate=100M:", "the", "peer's", "choice"];
        assert_eq!(row, [&known[..], &["-", "-", "0.250", "-", "standard"], &chosen].concat());
        let value = as_json("dcqcn:a=1", std::slice::from_ref(&peer), 2);
        assert_eq!((&value["algorithm"], &value["not_shown"]), (&json!("dcqcn"), &json!(2)));
        assert_eq!(
            (&value["peers"][0]["algorithm"], &value["peers"][0]["peers_choice"]),
            (&json!("dcqcn"), &json!(true))
        );
        assert_eq!(value["peers"][0]["why"], json!("the peer's choice"));
        assert_eq!(as_json("standard aimd, burst dctcp, loopback aimd", &[], 0)["algorithm"], Value::Null);
        assert_eq!((&value["peers"][0]["ce_share"], &value["peers"][0]["rtt_ns"]), (&json!(0.25), &Value::Null));
        // A peer that reports: its numbers, not what the controller thinks of them.
        let reported = [("path_rtt_ns", 12_000), ("remote_delay_ns", 6_400), ("pressure", 2), ("selective_repeat", 1)];
        peer.variables = reported.map(|(name, value)| variable(name, value * 1_000_000)).to_vec();
        peer.variables.extend([variable("alpha", 250_000), variable("ce_share", 100_000), variable("rtt_ns", 1)]);
        let text = as_text("dctcp", std::slice::from_ref(&peer), 0);
        let row: Vec<&str> = text.lines().nth(2).expect("a row").split_whitespace().collect();
        assert_eq!(row[8..13], ["12.0", "6.4", "0.100", "2", "selective"]);
        let value = &as_json("dctcp", &[peer], 0)["peers"][0];
        assert_eq!((&value["pressure"], &value["remote_delay_ns"]), (&json!(2.0), &json!(6_400.0)));
        assert_eq!((&value["selective_repeat"], &value["rtt_ns"]), (&json!(true), &json!(12_000.0)));
        assert!(
            as_text("auto", &[], 0).starts_with("auto\nno peers: a peer leaves this list with its last queue pair")
        );
        assert_eq!(as_text("aimd", &[], 7), "aimd\n7 peers are not shown; root sees them\n");
    }
}
