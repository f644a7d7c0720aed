//! `burst proxy`, `burst sim` and `burst switch`: execute the programs `burst-proxy`, `burst-sim` and `burst-switch`, which are
//! installed beside `burst`.
//!
//! They are programs of their own because of what they contain: the proxy is linked with libibverbs and librdmacm, the simulator
//! has the whole engine, the switch the network of the simulator. Everything behind the command's name is for them, `--help` too.

use clap::{Arg, ArgMatches, Command};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

/// The grammar of `burst proxy`.
pub fn proxy_command() -> Command {
    command(
        "proxy",
        "Carry TCP connections of unmodified programs over RDMA",
        "run, keys, ls, stats, why, log, reload, drain, metrics; `burst proxy --help` explains them",
    )
}

/// The grammar of `burst sim`.
pub fn sim_command() -> Command {
    command(
        "sim",
        "Simulate hosts that run the real engine on a modelled network (docs/simulator.md)",
        "SCENARIO.toml, sweep, hunt, replay; `burst sim --help` explains them",
    )
}

/// The grammar of `burst switch`.
pub fn switch_command() -> Command {
    command(
        "switch",
        "Switch frames between interfaces, with a rate, a buffer, marks and faults (docs/switch.md)",
        "INTERFACE...; `burst switch --help` explains its flags",
    )
}

fn command(name: &'static str, about: &'static str, words: &'static str) -> Command {
    Command::new(name).about(about).disable_help_flag(true).arg(
        Arg::new("words")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(clap::value_parser!(OsString))
            .help(words),
    )
}

/// Replaces this process by the program `burst-NAME`. Returns only on failure.
pub fn execute(name: &str, matches: &ArgMatches) -> ExitCode {
    let words = matches.get_many::<OsString>("words").into_iter().flatten();
    let program = match std::env::current_exe() {
        Ok(own) => own.with_file_name(format!("burst-{name}")),
        Err(e) => return crate::fail(format!("cannot find out where burst is installed: {e}")),
    };
    let error = std::process::Command::new(&program).args(words).exec();
    crate::fail(format!("cannot run {}: {error} (it is installed beside burst)", program.display()))
}
