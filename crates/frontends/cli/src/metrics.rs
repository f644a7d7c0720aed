//! `burst metrics`: what the daemon and programs with engines of their own report, as metrics: printed once, or shown over HTTP.

use burst_control::metrics_place::MetricsPlace;
use burst_control::socket_path::ProgramKind;
use burst_metrics::exposition::{EngineReport, TextFormat, write};
use clap::{Arg, ArgMatches, Command};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Words and flags of `burst metrics`.
pub fn command() -> Command {
    Command::new("metrics")
        .about("Show metrics of the daemon and of programs with engines of their own, for Prometheus")
        .long_about(
            "Show metrics of the daemon and of programs with engines of their own, for Prometheus (docs/metrics.md).\n\n\
             Without --listen they are printed once. A daemon can show its own: burstd --metrics.",
        )
        .after_help("burst metrics\nburst metrics --listen unix:/run/burst/metrics.sock")
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("PLACE")
                .value_parser(clap::value_parser!(MetricsPlace))
                .help("Show them over HTTP until stopped: unix:PATH (each user sees its own, too), or ADDRESS:PORT (totals only)"),
        )
        .arg(crate::socket())
}

/// Runs `burst metrics`: the exit code.
pub fn metrics(matches: &ArgMatches) -> ExitCode {
    let socket: Option<PathBuf> = crate::chosen_socket(matches);
    let Some(place) = matches.get_one::<MetricsPlace>("listen") else {
        return page(socket.as_deref()).map_or_else(crate::fail, |text| crate::finish(&text));
    };
    let owner = rustix::process::geteuid().as_raw();
    match burst_metrics::server::serve(place, owner, Box::new(move || Ok(Box::new(reports(socket.as_deref())?)))) {
        Err(sentence) => crate::fail(sentence),
    }
}

/// One page in the text format of Prometheus.
///
/// # Errors
/// A sentence.
pub fn page(socket: Option<&Path>) -> Result<String, String> {
    write(&reports(socket)?, TextFormat::Prometheus).map_err(|e| format!("cannot write the metrics: {e}"))
}

/// The reports of all engines that answer.
///
/// # Errors
/// A sentence: none does.
pub fn reports(socket: Option<&Path>) -> Result<Vec<EngineReport>, String> {
    let mut reports = Vec::new();
    let mut why = None;
    for mut host in crate::sockets::hosts(socket, &[ProgramKind::InProcess])? {
        let engine = host.program.as_ref().map_or_else(|| "daemon".to_owned(), |(name, pid)| format!("{name}:{pid}"));
        match host.host.report() {
            Ok(report) => reports.push(EngineReport { engine, report }),
            // A program may end while it is asked.
            Err(e) => why = Some(format!("{engine} does not answer: {e}")),
        }
    }
    match why {
        Some(why) if reports.is_empty() => Err(why),
        _ => Ok(reports),
    }
}
