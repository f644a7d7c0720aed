//! `burstd`: the daemon that carries RoCEv2 for the verbs programs of one host.

use std::process::ExitCode;

mod config;

fn main() -> ExitCode {
    match config::load() {
        Ok(config) => {
            eprintln!("{config:?}");
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}
