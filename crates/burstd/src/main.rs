//! `burstd`: the daemon that carries RoCEv2 for the verbs programs of one host.
//!
//! [`house`] owns devices, workers and numbers; [`server`] the socket and the signals; [`session`] one client's
//! conversation; [`context`] the objects of one client. All of it runs on the control thread; the data path runs on
//! the workers' threads and never waits for it.

use std::process::ExitCode;

mod cm;
mod config;
mod context;
mod device;
mod exports;
mod house;
mod log;
mod numbers;
mod server;
mod session;

fn main() -> ExitCode {
    let config = match config::load() {
        Ok(config) => config,
        Err(code) => return code,
    };
    log::init(config.log_level, config.log_format);
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("burstd: {sentence}");
            ExitCode::from(2)
        }
    }
}

/// Opens everything, serves, and returns when asked to end.
fn run(config: &config::Config) -> Result<(), String> {
    let house = house::House::open(config)?;
    let mut server = server::Server::bind(config, house)?;
    server.announce(config.ready_fd)?;
    server.serve()
}
