//! `burst cm`: the cost of each step of connection setup, and the connections with their peers.
//!
//! Without options a table of the steps since the daemon's start, with median, 99th percentile and longest time. `--watch`
//! prints what happened in each interval instead. `--connections` lists connections and listeners by state.

mod connections;
mod steps;

use crate::sockets::ShownHost;
use burst_control::monitor::CmStats;
use burst_control::socket_path::ProgramKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The command line.
pub fn command() -> Command {
    Command::new("cm")
        .about("Show what connection setup costs, step by step, and the connections")
        .long_about(
            "Show what connection setup costs, step by step, and the connections.\n\n\
             Each row is a step of librdmacm's connections as the daemon sees it, with the time it took: from the step \
             before, or, for addresses, routes and queue pairs, the daemon's own work. Percentiles are at most a quarter \
             too long. Steps of one pass of a worker take 0. share/cm-steps.bt shows the same per connection, live.",
        )
        .arg(super::socket())
        .arg(super::json())
        .arg(
            Arg::new("connections")
                .long("connections")
                .short('c')
                .action(ArgAction::SetTrue)
                .help("List connections and listeners, by state"),
        )
        .arg(
            Arg::new("state")
                .long("state")
                .value_name("STATE")
                .requires("connections")
                .value_parser(connections::state_names())
                .help("Only connections in this state"),
        )
        .arg(
            Arg::new("watch")
                .long("watch")
                .short('w')
                .value_name("SECONDS")
                .num_args(0..=1)
                .default_missing_value("1")
                .value_parser(seconds)
                .help("Again every so many seconds [1], each time what happened since, until interrupted"),
        )
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    let given = Duration::try_from_secs_f64(seconds).ok().filter(|d| *d >= Duration::from_millis(10));
    given.ok_or_else(|| "at least 0.01 seconds".to_owned())
}

/// Runs the command.
pub fn cm(matches: &ArgMatches) -> ExitCode {
    match show(matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => crate::fail(sentence),
    }
}

fn show(matches: &ArgMatches) -> Result<(), String> {
    let watch = matches.get_one::<Duration>("watch").copied();
    let json = matches.get_flag("json");
    let mut before = None;
    let mut next = Instant::now();
    let chosen = crate::chosen_socket(matches);
    let mut hosts = crate::sockets::hosts(chosen.as_deref(), &[ProgramKind::InProcess])?;
    loop {
        if matches.get_flag("connections") {
            let state = matches.get_one::<String>("state").map(String::as_str);
            let all = connections::ask_all(&mut hosts, state)?;
            out(json, watch.is_some(), || connections::as_json(&all), || connections::as_text(&all))?;
        } else {
            let now = ask_all(&mut hosts)?;
            let shown = steps::since(&now, before.as_ref());
            out(json, watch.is_some(), || stats_json(&shown), || steps::as_text(&shown))?;
            before = Some(now);
        }
        let Some(interval) = watch else { return Ok(()) };
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        hosts = crate::sockets::hosts(chosen.as_deref(), &[ProgramKind::InProcess])?;
    }
}

/// Prints one result: a JSON document, or with `--watch` one document per line.
fn out(json: bool, many: bool, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<(), String> {
    let written = match (json, many) {
        (true, false) => format!("{:#}\n", value()),
        (true, true) => format!("{}\n", value()),
        (false, _) => text(),
    };
    crate::print(&written)
}

/// The steps of the daemon and of programs with engines of their own, together.
fn ask_all(hosts: &mut [ShownHost]) -> Result<CmStats, String> {
    let mut all: Option<CmStats> = None;
    for shown in hosts {
        let stats = shown.host.cm_stats().map_err(|e| e.to_string())?;
        match &mut all {
            None => all = Some(stats),
            Some(all) => steps::add(all, &stats),
        }
    }
    all.ok_or_else(|| "no host answers".to_owned())
}

fn stats_json(stats: &CmStats) -> Value {
    let numbers = stats.numbers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({ "steps": steps::as_json(&stats.steps), "numbers": Value::Object(numbers) })
}
