//! `burst`: the command line.
//!
//! `burst run` starts verbs programs on Burst, `ls` and `stats` show devices and counters, `doctor` finds faults of the set-up,
//! `why` explains a reason. Each command has a file; this one parses the command line. Results go to stdout, errors to stderr.
//! Exit codes: 0 success, 1 failure, 2 usage error; for `run` the program's exit code, or 125 (Burst could not start it),
//! 126 (not executable), 127 (not found).
#![deny(unsafe_code)]

mod capture;
mod cc;
mod cm;
mod daemon;
mod doctor;
mod extcap;
mod failures;
mod falls;
mod host_files;
mod impair;
mod in_process;
mod install;
mod lab;
mod log;
mod ls;
mod metrics;
mod programs;
mod run;
mod sharing;
mod sockets;
mod stats;
mod top;
mod users;
mod vendored;
mod why;

use clap::{Arg, ArgAction, ArgMatches, Command};
use std::path::PathBuf;
use std::process::ExitCode;

/// Carries out the command line of this process; returns its exit code.
pub fn main() -> ExitCode {
    extcap::extcap().unwrap_or_else(|| match burst_args::parse(command(), std::env::args_os()) {
        Ok(matches) => carry_out(&matches),
        Err(code) => ExitCode::from(code),
    })
}

fn carry_out(matches: &ArgMatches) -> ExitCode {
    match matches.subcommand() {
        Some(("run", m)) => run::run(m),
        Some(("ls", m)) => ls::ls(m),
        Some(("doctor", m)) => doctor::doctor(m),
        Some(("why", m)) => why::why(m),
        Some(("capture", m)) => capture::capture(m),
        Some((name @ ("impair" | "cc" | "log"), m)) => change(name, m),
        Some((name @ ("sim" | "proxy" | "switch"), m)) => programs::execute(name, m),
        Some((name @ ("stats" | "metrics" | "top" | "cm"), m)) => watch(name, m),
        Some(("lab", m)) => lab::lab(m),
        Some(("host-files", m)) => host_files::system::host_files(m),
        Some((daemon::DETACH, m)) => daemon::detach(m),
        Some((in_process::SNAPSHOT, _)) => in_process::snapshot(),
        _ => ExitCode::from(burst_args::EXIT_USAGE),
    }
}

/// Commands that change a running daemon.
fn change(name: &str, matches: &ArgMatches) -> ExitCode {
    match name {
        "impair" => impair::impair(matches),
        "log" => log::log(matches),
        _ => cc::cc(matches),
    }
}

/// Commands that show what is counted.
fn watch(name: &str, matches: &ArgMatches) -> ExitCode {
    match name {
        "metrics" => metrics::metrics(matches),
        "top" => top::top(matches),
        "cm" => cm::cm(matches),
        _ => stats::stats(matches),
    }
}

/// The grammar of the command line.
pub fn command() -> Command {
    Command::new("burst")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run RDMA (verbs) programs on any network interface, and see how they fare")
        .after_help(
            "Two terminals, no root, no configuration:\n  \
             burst run -- ib_write_bw -d burst0\n  \
             burst run -- ib_write_bw -d burst0 127.0.0.1",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(run_command())
        .subcommand(
            Command::new("ls").about("List devices, their ports and addresses").arg(socket()).arg(json()).arg(users()),
        )
        .subcommand(doctor_command())
        .subcommand(
            Command::new("why")
                .about("Explain the last failure, those of a queue pair or process, or a reason")
                .arg(Arg::new("reason").value_name("NAME|CODE|QPN|PID").help(
                    "Nothing: the last failure. A queue pair number or a process id (qp:0x11f, pid:4711; the prefix may be left \
                     out of large numbers): its failures, and the queue pair as it is now. A Jetty or a connection (jetty:20, \
                     id:0x1a2b, as comm_id of burst cm --json): its failures. `all`: all failures. A reason, \
                     vendor_err (decimal, or 0x and hexadecimal) or IBV_WC_…_ERR: what it means; `reasons` lists them. \
                     `daemon`: how often, when and why the daemon fell",
                ))
                .arg(socket())
                .arg(json())
                .arg(reports())
                .arg(pcap()),
        )
        .subcommand(stats::command())
        .subcommand(metrics::command())
        .subcommand(top::command())
        .subcommand(capture::command())
        .subcommand(cc::command())
        .subcommand(cm::command())
        .subcommand(impair::command())
        .subcommand(lab::command())
        .subcommand(log::command())
        .subcommand(programs::sim_command())
        .subcommand(programs::proxy_command())
        .subcommand(programs::switch_command())
        .subcommand(host_files::system::command())
        .subcommand(daemon::detach_command())
        .subcommand(in_process::snapshot_command())
}

fn run_command() -> Command {
    Command::new("run")
        .about("Run a program whose verbs calls go to Burst")
        .long_about(
            "Run a program whose verbs calls go to Burst.\n\n\
             Finds the running daemon, or starts one for this user on the udp port (it ends by itself when it has \
             been idle for 30 seconds), puts Burst's libraries first in LD_LIBRARY_PATH, shows the devices in \
             /sys/class/infiniband and /dev/infiniband to the program alone (a mount namespace; without root in a user \
             namespace, where set-user-ID programs have no effect) and becomes the program. The exit code is the \
             program's. A program that uses no RDMA runs as it would without Burst.",
        )
        .arg(socket())
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("SPEC")
                .action(ArgAction::Append)
                .help("Port of a daemon that has to be started, for example udp:dev=eth0 [default: udp]"),
        )
        .arg(
            Arg::new("in-process")
                .long("in-process")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["socket", "no-start"])
                .help("Run the engine inside the program, without a daemon; the program needs an address that no daemon serves"),
        )
        .arg(
            Arg::new("lent")
                .long("lent")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["port", "no-start", "in-process"])
                .help("Run the engine inside the program, on the addresses of the running daemon, which must allow it (burstd --lend same-user)"),
        )
        .arg(
            Arg::new("no-start").long("no-start").action(ArgAction::SetTrue).help("Fail if no daemon runs: start none"),
        )
        .arg(
            Arg::new("no-host-files")
                .long("no-host-files")
                .action(ArgAction::SetTrue)
                .help("Run the program in the host's namespaces, without /dev/infiniband and /sys/class/infiniband"),
        )
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .value_parser(clap::value_parser!(std::ffi::OsString))
                .help("Program and its arguments"),
        )
}

fn doctor_command() -> Command {
    Command::new("doctor")
        .about("Check, step by step, whether verbs programs can work here, and say what to do if not")
        .long_about(
            "Check, step by step, whether verbs programs can work here, and say what to do if not.\n\n\
             The last check moves real bytes through a queue pair. Exit code 1 when any check failed.",
        )
        .arg(socket())
        .arg(json())
}

fn socket() -> Arg {
    Arg::new("socket")
        .long("socket")
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Control socket [default: $BURST_SOCKET, else the first of the usual places that answers]")
}

/// `--users` of `ls`.
fn users() -> Arg {
    Arg::new("users")
        .long("users")
        .action(clap::ArgAction::SetTrue)
        .help("List what the programs of each user use of the daemon's limited resources, and how much they may use")
}

/// `--pcap` of `why`.
fn pcap() -> Arg {
    Arg::new("pcap").long("pcap").value_name("FILE").help(
        "With qp:NUMBER or jetty:ID: write its last packets, up to its failure, as pcapng; the host must keep them (packet_ring)",
    )
}

/// `--reports` of `why`.
fn reports() -> Arg {
    Arg::new("reports").long("reports").value_name("DIR").value_parser(clap::value_parser!(PathBuf)).help(
        "With `daemon`: the directory of crash reports to read if no daemon answers (state_dir) [default: this user's]",
    )
}

fn json() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON")
}

/// The socket of `--socket`, if it was given.
fn chosen_socket(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>("socket").cloned()
}

/// Writes to stdout. A closed pipe (`| head`) is no error: the program exits with code 0.
///
/// # Errors
/// A sentence.
fn print(text: &str) -> Result<(), String> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(|e| format!("cannot write the answer: {e}")),
    }
}

/// A value as JSON.
fn json_text(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// Prints a command's result; returns its exit code.
fn finish(text: &str) -> ExitCode {
    print(text).map_or_else(fail, |()| ExitCode::SUCCESS)
}

/// Prints one sentence to stderr. Errors of the write are ignored.
fn complain(sentence: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "burst: {sentence}");
}

/// Prints one sentence to stderr; returns exit code 1.
fn fail(sentence: impl std::fmt::Display) -> ExitCode {
    complain(sentence);
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }

    #[test]
    fn the_programs_own_flags_are_not_ours() {
        let line = ["burst", "run", "--", "ib_write_bw", "-d", "burst0", "--json"];
        let matches = super::command().try_get_matches_from(line).unwrap();
        let run = matches.subcommand_matches("run").unwrap();
        let words: Vec<_> = run.get_many::<std::ffi::OsString>("program").unwrap().collect();
        assert_eq!(words, ["ib_write_bw", "-d", "burst0", "--json"]);
        let without = super::command().try_get_matches_from(["burst", "run", "ls", "-l", "--socket"]).unwrap();
        let words: Vec<_> =
            without.subcommand_matches("run").unwrap().get_many::<std::ffi::OsString>("program").unwrap().collect();
        assert_eq!(words, ["ls", "-l", "--socket"]);
        assert!(super::command().try_get_matches_from(["burst", "run", "--sokcet", "x", "--", "true"]).is_err());
    }
}
