//! `burst stats`: the counters of the daemon, and of programs with hosts of their own; once, as rates while `--watch` runs, or as
//! metrics.

use crate::sockets::ShownHost;
use burst_base::Reason;
use burst_control::Counter;
use burst_control::monitor::TRAFFIC;
use burst_control::socket_path::ProgramKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Words and flags of `burst stats`.
pub fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    Command::new("stats")
        .about("Show the daemon's counters")
        .arg(crate::socket())
        .arg(crate::json())
        .arg(flag("all", "Also counters that are 0"))
        .arg(
            Arg::new("watch")
                .long("watch")
                .value_name("TIME")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("1s")
                .value_parser(read_interval)
                .help("Show what was counted in each interval, per second, until stopped [default: 1s]"),
        )
        .arg(
            Arg::new("count")
                .long("count")
                .value_name("N")
                .requires("watch")
                .value_parser(clap::value_parser!(u32).range(1..))
                .help("Stop after so many intervals"),
        )
        .arg(
            flag("prometheus", "Print metrics for Prometheus (docs/metrics.md)")
                .conflicts_with_all(["json", "all", "watch"]),
        )
        .arg(flag("names", "List the names of all counters; needs no daemon").conflicts_with_all([
            "socket",
            "json",
            "all",
            "watch",
            "prometheus",
        ]))
}

/// An interval, from a hundredth of a second to an hour.
pub(crate) fn read_interval(text: &str) -> Result<Duration, String> {
    let time = burst_grammar::duration(text).map_err(|why| format!("{text:?} {why}"))?;
    let bounds = Duration::from_millis(10)..=Duration::from_secs(3600);
    if bounds.contains(&time) { Ok(time) } else { Err(format!("{text} is not between 10ms and 1h")) }
}

/// Prints the counters.
pub fn stats(matches: &ArgMatches) -> ExitCode {
    if let Some(interval) = matches.get_one::<Duration>("watch") {
        return watch(matches, *interval).map_or_else(crate::fail, |()| ExitCode::SUCCESS);
    }
    text(matches).map_or_else(crate::fail, |text| crate::finish(&text))
}

fn text(matches: &ArgMatches) -> Result<String, String> {
    if matches.get_flag("names") {
        return Ok(names().map(|name| format!("{name}\n")).collect());
    }
    if matches.get_flag("prometheus") {
        return crate::metrics::page(crate::chosen_socket(matches).as_deref());
    }
    let all = matches.get_flag("all");
    let (mut rows, mut text) = (Vec::new(), String::new());
    for mut host in hosts(matches)? {
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

fn hosts(matches: &ArgMatches) -> Result<Vec<ShownHost>, String> {
    crate::sockets::hosts(crate::chosen_socket(matches).as_deref(), &ProgramKind::ALL)
}

/// The counters of a host by device and name.
type CounterValues = HashMap<(String, String), u64>;

/// A host that is watched, and its counters at the last look.
struct WatchedHost {
    shown: ShownHost,
    at: Instant,
    before: CounterValues,
}

/// Shows rates, an interval after the other. A program that ends is left out from then on.
fn watch(matches: &ArgMatches, interval: Duration) -> Result<(), String> {
    let (all, as_json) = (matches.get_flag("all"), matches.get_flag("json"));
    let mut watched = Vec::new();
    for mut shown in hosts(matches)? {
        let before = values(shown.host.counters().map_err(|e| e.to_string())?);
        watched.push(WatchedHost { shown, at: Instant::now(), before });
    }
    let mut left = matches.get_one::<u32>("count").copied();
    while left != Some(0) && !watched.is_empty() {
        std::thread::sleep(interval);
        let mut page = String::new();
        watched.retain_mut(|host| match host.shown.host.counters() {
            Ok(counters) => {
                page.push_str(&interval_page(host, counters, all, as_json));
                true
            }
            Err(e) => {
                crate::complain(format!("{}{e}", host.shown.heading().replace('\n', " ")));
                false
            }
        });
        crate::print(&page)?;
        left = left.map(|left| left - 1);
    }
    if watched.is_empty() { Err("no daemon or program answers any more".into()) } else { Ok(()) }
}

/// What a host has counted since the last look.
fn interval_page(host: &mut WatchedHost, counters: Vec<Counter>, all: bool, as_json: bool) -> String {
    let now = Instant::now();
    let seconds = now.duration_since(host.at).as_secs_f64();
    let risen = |c: &Counter| {
        let before = host.before.get(&(c.device.clone(), c.name.clone())).copied().unwrap_or(0);
        c.value.wrapping_sub(before)
    };
    let rows: Vec<(&Counter, u64)> = counters.iter().map(|c| (c, risen(c))).filter(|(_, n)| all || *n > 0).collect();
    let page = if as_json {
        let row = |(c, n): &(&Counter, u64)| json!({"name": c.name, "device": c.device, "rise": n, "per_second": *n as f64 / seconds});
        let rows: Vec<Value> = rows.iter().map(row).collect();
        format!("{}\n", host.shown.label(json!({ "seconds": seconds, "counters": rows })))
    } else {
        let line = |(c, n): &(&Counter, u64)| {
            let device = if c.device.is_empty() { "-" } else { &c.device };
            format!("{device:<10} {:<32} {:>18.1} /s\n", c.name, *n as f64 / seconds)
        };
        let lines: String = rows.iter().map(line).collect();
        let lines = if lines.is_empty() { "Nothing was counted.\n".to_owned() } else { lines };
        format!("{}in {seconds:.2} s:\n{lines}\n", host.shown.heading())
    };
    (host.at, host.before) = (now, values(counters));
    page
}

fn values(counters: Vec<Counter>) -> CounterValues {
    counters.into_iter().map(|c| ((c.device, c.name), c.value)).collect()
}

/// Names of all counters: each reason has one, and the traffic.
fn names() -> impl Iterator<Item = &'static str> {
    Reason::ALL.iter().map(|reason| reason.name()).chain(TRAFFIC)
}

fn as_line(c: &Counter) -> String {
    format!("{:<10} {:<32} {:>20}\n", if c.device.is_empty() { "-" } else { &c.device }, c.name, c.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_bounded() {
        assert_eq!(read_interval("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["0", "2h", "x", ""] {
            assert!(read_interval(wrong).is_err(), "{wrong}");
        }
    }
}
