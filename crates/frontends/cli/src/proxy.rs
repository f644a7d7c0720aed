//! `burst proxy`: executes `burst-proxy`, a program of its own because it is linked with libibverbs and librdmacm, which
//! `burst` is not.

use clap::{Arg, ArgMatches, Command};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

/// The grammar: everything behind `proxy` is for `burst-proxy`.
pub fn command() -> Command {
    Command::new("proxy").about("Carry TCP connections of unmodified programs over RDMA").disable_help_flag(true).arg(
        Arg::new("words")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(clap::value_parser!(OsString))
            .help("run, keys, ls, stats, why, drain, metrics; `burst proxy --help` explains them"),
    )
}

/// Replaces this process by `burst-proxy`. Returns only on failure.
pub fn proxy(matches: &ArgMatches) -> ExitCode {
    let words = matches.get_many::<OsString>("words").into_iter().flatten();
    let program = match std::env::current_exe() {
        Ok(own) => own.with_file_name("burst-proxy"),
        Err(e) => return crate::fail(format!("cannot find out where burst is installed: {e}")),
    };
    let error = std::process::Command::new(&program).args(words).exec();
    crate::fail(format!("cannot run {}: {error} (it is installed beside burst)", program.display()))
}
