//! The command line of `burst proxy`.

use crate::admin_client::AdminClient;
use crate::config::{self, ProxyConfig};
use crate::control::DRAIN_MAX;
use crate::log::{self, ProxyLogLevel};
use crate::serve::RunFlags;
use crate::stream_failure::{AwayPeer, StreamFailure};
use burst_control::metrics_place::MetricsPlace;
use clap::{Arg, ArgMatches, Command};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

/// An argument that is a path.
fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_parser(clap::value_parser!(PathBuf)).help(help)
}

/// A flag that is a time.
fn seconds(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("SECONDS").value_parser(clap::value_parser!(u64).range(..=DRAIN_MAX))
}

/// Words and flags of `burst-proxy`.
pub fn command() -> Command {
    let admin = || {
        Arg::new("admin")
            .long("admin")
            .value_name("PATH")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Admin socket of the proxy [default: the only one in /run/burst]")
    };
    let json = || Arg::new("json").long("json").action(clap::ArgAction::SetTrue).help("Print JSON");
    Command::new("burst proxy")
        .bin_name("burst proxy")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Carry TCP connections of unmodified programs over RDMA (docs/proxy.md)")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(run_command())
        .subcommand(
            Command::new("keys")
                .about("Make a certificate authority and a certificate for each name, where they are missing")
                .arg(file("directory", "Where the files lie").required(true))
                .arg(Arg::new("names").value_name("NAME").num_args(1..).required(true).help("Names of proxies")),
        )
        .subcommand(Command::new("ls").about("List peers, links and streams").arg(admin()).arg(json()))
        .subcommand(Command::new("stats").about("Show counters").arg(admin()).arg(json()))
        .subcommand(Command::new("metrics").about("Show counters as Prometheus text").arg(admin()))
        .subcommand(
            Command::new("why")
                .about("Explain the last connection that ended in error, and show which ones no peer carried: the last 256 of each per worker")
                .arg(Arg::new("what").value_name("ADDRESS|NUMBER|all").help(
                    "Connections to this server only; one that ended in error, by its number; or all of those, a line each",
                ))
                .arg(admin())
                .arg(json()),
        )
        .subcommand(
            Command::new("log")
                .about("Show the level of the log, or change it while the proxy runs: `debug` has lines of each connection")
                .arg(Arg::new("level").value_name("LEVEL").value_parser(ProxyLogLevel::NAMES))
                .arg(admin()),
        )
        .subcommand(
            Command::new("drain").about("Take no new connections; open streams go on").arg(admin()).arg(
                seconds("end").help(
                    "End the proxy with its last open stream, and reset those that are left after so long; wait for that",
                ),
            ),
        )
        .subcommand(
            Command::new("reload").about("Read rules, peers and certificates again; open streams go on").arg(admin()),
        )
        .subcommand(
            Command::new("break-queue-pairs")
                .hide(true)
                .about("Break all queue pairs, to test resumption")
                .arg(admin()),
        )
        .subcommand(
            Command::new("janitor")
                .hide(true)
                .about("Remove routes when standard input ends")
                .arg(Arg::new("mark").required(true).value_parser(clap::value_parser!(u32)))
                .arg(Arg::new("namespaces").num_args(0..)),
        )
}

fn run_command() -> Command {
    Command::new("run")
                .about("Run a proxy until SIGTERM")
                .arg(file("config", "Configuration file").required(true))
                .arg(
                    Arg::new("metrics")
                        .long("metrics")
                        .value_name("PLACE")
                        .value_parser(clap::value_parser!(MetricsPlace))
                        .help("Show counters over HTTP, too: unix:PATH (root and the proxy's user see names of peers), or ADDRESS:PORT (totals only)"),
                )
                .arg(
                    Arg::new("log-level")
                        .long("log-level")
                        .value_name("LEVEL")
                        .value_parser(ProxyLogLevel::NAMES)
                        .help("Level of the log at the start [default: info]"),
                )
                .arg(seconds("replace").help(
                    "If a proxy runs at the admin socket of CONFIG: first let it end, as `drain --end SECONDS` does",
                ))
}

/// Carries out the command line of this process; returns its exit code.
pub fn main() -> ExitCode {
    let matches = match burst_args::parse(command(), std::env::args_os()) {
        Ok(matches) => matches,
        Err(code) => return ExitCode::from(code),
    };
    let (name, m) = matches.subcommand().unwrap_or(("", &matches));
    let done = match name {
        "run" => {
            crate::engine::prepare();
            let level = m.get_one::<String>("log-level").and_then(|name| ProxyLogLevel::named(name));
            level.into_iter().for_each(log::set_level);
            let config = match ProxyConfig::load(&path(m, "config")) {
                Ok(config) => config,
                Err(sentence) => {
                    crate::log(sentence);
                    return ExitCode::from(burst_args::EXIT_USAGE);
                }
            };
            let how = RunFlags { metrics: m.get_one("metrics"), replace: m.get_one("replace").copied() };
            crate::serve::run(config, path(m, "config"), &how).map(|()| String::new())
        }
        "keys" => {
            let names: Vec<String> = m.get_many::<String>("names").into_iter().flatten().cloned().collect();
            crate::keys::make(&path(m, "directory"), &names)
                .map(|made| made.iter().fold(String::new(), |text, file| text + file + "\n"))
        }
        "janitor" => {
            let namespaces: Vec<String> = m.get_many::<String>("namespaces").into_iter().flatten().cloned().collect();
            crate::intercept::janitor(m.get_one::<u32>("mark").copied().unwrap_or(0), &namespaces)
                .map(|()| String::new())
        }
        "ls" => show(m, list),
        "stats" => show(m, stats),
        "drain" => drain(m),
        "log" => {
            let level = m.get_one::<String>("level").map(String::as_str).unwrap_or_default();
            ask(m, &format!("log {level}"))
        }
        "why" => explain(m, m.get_one::<String>("what").map(String::as_str)),
        other => ask(m, other),
    };
    match done {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(e) => fail(&format!("cannot write the answer: {e}")),
        },
        Err(sentence) => fail(&sentence),
    }
}

fn fail(sentence: &str) -> ExitCode {
    crate::log(sentence);
    ExitCode::FAILURE
}

fn path(m: &ArgMatches, name: &str) -> PathBuf {
    m.get_one::<PathBuf>(name).cloned().unwrap_or_default()
}

/// Asks a running proxy.
fn ask(m: &ArgMatches, word: &str) -> Result<String, String> {
    AdminClient::connect(&admin_socket(m)?)?.ask(word)
}

/// Takes no new connections any more; with `--end` waits for the proxy's end.
fn drain(m: &ArgMatches) -> Result<String, String> {
    let proxy = AdminClient::connect(&admin_socket(m)?)?;
    match m.get_one::<u64>("end") {
        Some(seconds) => proxy.end(*seconds, None),
        None => proxy.ask("drain"),
    }
}

fn admin_socket(m: &ArgMatches) -> Result<PathBuf, String> {
    m.get_one::<PathBuf>("admin").cloned().map_or_else(only_socket, Ok)
}

fn only_socket() -> Result<PathBuf, String> {
    let entries = std::fs::read_dir("/run/burst").into_iter().flatten().flatten().map(|entry| entry.path());
    let is = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("proxy-") && name.ends_with(".sock"))
    };
    let found: Vec<PathBuf> = entries.filter(is).collect();
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => Err("no proxy runs here: there is no admin socket in /run/burst; --admin names another place".into()),
        _ => Err("several proxies run here: choose one by --admin".into()),
    }
}

fn show(m: &ArgMatches, text: impl Fn(&Value) -> String) -> Result<String, String> {
    let answer = ask(m, "show")?;
    let snapshot: Value =
        serde_json::from_str(&answer).map_err(|e| format!("the proxy's answer cannot be read: {e}"))?;
    Ok(if m.get_flag("json") { format!("{snapshot:#}\n") } else { text(&snapshot) })
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

fn rows<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn list(snapshot: &Value) -> String {
    let mut text = String::new();
    for place in rows(snapshot, "intercept") {
        let (namespace, by) = (word(place, "namespace"), word(place, "by"));
        let _ = writeln!(text, "connections of {namespace} are taken by {by}: {}", word(place, "why"));
    }
    let _ = writeln!(text, "{:<16} {:<24} {:<8} serves", "peer", "address", "state");
    for peer in rows(snapshot, "peers") {
        let state = match (peer["carries"].as_bool(), peer["channel"].as_bool()) {
            _ if peer["draining"] == true => "draining",
            (Some(true), _) => "carries",
            (_, Some(true)) => "channel",
            _ => "away",
        };
        let serves: Vec<&str> = rows(peer, "serves").filter_map(Value::as_str).collect();
        let trouble = if state == "away" { word(peer, "trouble") } else { "" };
        let _ = writeln!(
            text,
            "{:<16} {:<24} {state:<8} {} {trouble}",
            word(peer, "name"),
            word(peer, "address"),
            serves.join(",")
        );
    }
    let _ = writeln!(
        text,
        "\n{:<16} {:>4} {:<16} {:<9} {:>7} {:>12}",
        "link to", "no.", "carried by", "encrypted", "streams", "memory"
    );
    for link in rows(snapshot, "links") {
        let memory = burst_grammar::show_bytes(link["memory"].as_u64().unwrap_or(0));
        let (peer, carrier) = (word(link, "peer"), word(link, "carrier"));
        let encrypted = if link["encrypted"] == true { "yes" } else { "no" };
        let (number, streams) = (&link["link"], &link["streams"]);
        let _ = writeln!(text, "{peer:<16} {number:>4} {carrier:<16} {encrypted:<9} {streams:>7} {memory:>12}");
    }
    let _ = writeln!(
        text,
        "\n{:<28} {:<28} {:<12} {:>8} {:>8} {:>14} {:>14} state",
        "client", "server", "peer", "window", "back", "sent", "delivered"
    );
    for stream in rows(snapshot, "streams") {
        let (client, server, peer) = (word(stream, "client"), word(stream, "server"), word(stream, "peer"));
        let (sent, delivered, state) = (&stream["sent"], &stream["delivered"], word(stream, "state"));
        let window = |key: &str| burst_grammar::show_bytes(stream[key].as_u64().unwrap_or(0));
        let (out, back) = (window("window"), window("window_in"));
        let _ = writeln!(
            text,
            "{client:<28} {server:<28} {peer:<12} {out:>8} {back:>8} {sent:>14} {delivered:>14} {state}"
        );
    }
    text
}

fn stats(snapshot: &Value) -> String {
    let counters = snapshot["counters"].as_object().into_iter().flatten();
    counters.fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<32} {value:>20}");
        text
    })
}

/// The answer to `why`: failures, then connections that no peer carried.
fn explain(m: &ArgMatches, what: Option<&str>) -> Result<String, String> {
    let answer = ask(m, "why")?;
    let unreadable = |e: serde_json::Error| format!("the proxy's answer cannot be read: {e}");
    let mut snapshot: Value = serde_json::from_str(&answer).map_err(unreadable)?;
    let failures: Vec<StreamFailure> = serde_json::from_value(snapshot["failures"].take()).map_err(unreadable)?;
    let away = away_peers(&snapshot);
    if m.get_flag("json") {
        snapshot["failures"] = chosen(&failures, what).iter().map(|failure| failure.json(&away)).collect();
        return Ok(format!("{snapshot:#}\n"));
    }
    failure_text(&failures, what, &away).map(|text| match what {
        Some(word) if is_number(word) || word == "all" => text,
        server => text + &why(&snapshot, server),
    })
}

fn is_number(what: &str) -> bool {
    what.bytes().all(|byte| byte.is_ascii_digit())
}

/// The failures that were asked for, the latest first.
fn chosen<'a>(failures: &'a [StreamFailure], what: Option<&str>) -> Vec<&'a StreamFailure> {
    let is_meant = |failure: &&StreamFailure| match what {
        None | Some("all") => true,
        Some(number) if is_number(number) => number.parse() == Ok(failure.number),
        Some(server) => failure.is_about(server),
    };
    failures.iter().filter(is_meant).collect()
}

/// The last failure, the one with a number, or a line of each.
fn failure_text(failures: &[StreamFailure], what: Option<&str>, away: &[AwayPeer]) -> Result<String, String> {
    let meant = chosen(failures, what);
    match (what, meant.first()) {
        (Some("all"), None) => Ok("No connection has ended in error.\n".into()),
        (Some("all"), Some(_)) => Ok(meant.iter().map(|failure| failure.line(away)).collect()),
        (Some(number), None) if is_number(number) => {
            Err(format!("no connection that ended in error has the number {number}: `burst proxy why all` lists them"))
        }
        (_, None) => Ok(String::new()),
        (Some(number), Some(one)) if is_number(number) => Ok(one.text(away)),
        (_, Some(last)) => Ok(last.text(away) + "\n"),
    }
}

/// Peers that carry nothing, with their trouble.
fn away_peers(snapshot: &Value) -> Vec<AwayPeer> {
    let away = rows(snapshot, "peers").filter(|peer| peer["carries"] == false);
    let troubled = away.filter(|peer| peer["trouble"].as_str().is_some_and(|trouble| !trouble.is_empty()));
    troubled.map(|peer| (word(peer, "name").to_owned(), word(peer, "trouble").to_owned())).collect()
}

fn why(snapshot: &Value, server: Option<&str>) -> String {
    let decisions = rows(snapshot, "decisions").filter(|decision| {
        server.is_none_or(|server| {
            let starts =
                |at: &str| at == server || [":", "]:"].iter().any(|end| at.starts_with(&format!("{server}{end}")));
            decision[1].as_str().is_some_and(|at| starts(at) || at.strip_prefix('[').is_some_and(starts))
        })
    });
    let mut text = server.and_then(|server| not_named(snapshot, server)).unwrap_or_default();
    for decision in decisions {
        let part = |at: usize| decision[at].as_str().unwrap_or("-");
        let _ = writeln!(text, "{:<28} {:<28} {}", part(0), part(1), part(2));
    }
    if text.is_empty() {
        text = "Every connection that was taken is carried by a peer.\n".into();
    }
    text + &not_taken(snapshot)
}

/// A line if no rule takes connections to an address, or to its port.
fn not_named(snapshot: &Value, server: &str) -> Option<String> {
    let (ip, port) = match server.parse::<SocketAddr>() {
        Ok(at) => (at.ip(), Some(at.port())),
        Err(_) => (server.trim_matches(['[', ']']).parse::<IpAddr>().ok()?, None),
    };
    let ip = ip.to_canonical();
    let named = |take: &Value| {
        let to: Vec<String> = rows(take, "to").filter_map(|text| text.as_str().map(str::to_owned)).collect();
        let inside = |text: &String| config::prefix(text).is_ok_and(|prefix| config::within(ip, prefix));
        to.iter().any(inside).then(|| take["ports"].as_str().unwrap_or_default().to_owned())
    };
    let ports: Vec<String> = rows(snapshot, "takes").filter_map(named).collect();
    if ports.is_empty() {
        return Some(format!("No rule [[take]] names {ip}: connections to it are ordinary TCP connections.\n"));
    }
    let port = port.filter(|port| !ports.iter().any(|text| config::names_port(text, *port)))?;
    Some(format!(
        "The rules [[take]] that name {ip} do not name port {port}, but {}: connections to it are ordinary TCP connections.\n",
        ports.join(",")
    ))
}

/// A line for each reason for which connections were not taken.
fn not_taken(snapshot: &Value) -> String {
    const REASONS: [(&str, &str); 4] = [
        ("connects_without_peer", "no peer that serves the address was connected (`burst proxy ls` tells why)"),
        ("connects_without_listener", "the proxy had no listener in their namespace"),
        ("connects_without_policy", "no rule [[take]] names the address"),
        ("connects_marked", "they had a mark of their own"),
    ];
    let counters = &snapshot["counters"];
    REASONS.iter().fold(String::new(), |mut text, (name, reason)| {
        if let Some(count @ 1..) = counters[*name].as_u64() {
            let _ = writeln!(
                text,
                "{count} connects since the start of the proxy went by TCP, and not encrypted by it: {reason}."
            );
        }
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn why_counts_what_went_by_tcp() {
        let snapshot = |counters| serde_json::json!({ "decisions": [], "counters": counters });
        let none = super::why(&snapshot(serde_json::json!({ "connects_without_peer": 0 })), None);
        assert_eq!(none, "Every connection that was taken is carried by a peer.\n");
        let two = super::why(&snapshot(serde_json::json!({ "connects_without_peer": 2, "connects_marked": 1 })), None);
        assert!(
            two.contains("\n2 connects since") && two.contains("no peer that serves") && two.contains("\n1 connects")
        );
    }

    #[test]
    fn why_says_that_no_rule_names_an_address() {
        let takes = serde_json::json!([{ "to": ["10.0.0.0/8", "fd00::/64"], "ports": "80,8000-8010" }]);
        let snapshot = serde_json::json!({ "decisions": [], "counters": {}, "takes": takes });
        let why = |server: &str| super::why(&snapshot, Some(server));
        let unnamed = |server: &str| why(server).starts_with("No rule [[take]] names ");
        assert!(unnamed("192.0.2.1") && unnamed("192.0.2.1:80") && unnamed("[fd01::1]:80") && unnamed("fd01::1"));
        assert_eq!(why("10.1.2.3"), "Every connection that was taken is carried by a peer.\n");
        assert_eq!(why("::ffff:10.1.2.3"), why("10.1.2.3"));
        assert_eq!(why("[fd00::7]:8001"), why("10.1.2.3"));
        assert!(
            why("10.1.2.3:81")
                .starts_with("The rules [[take]] that name 10.1.2.3 do not name port 81, but 80,8000-8010:")
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
