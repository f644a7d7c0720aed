//! `burstd`: the daemon that carries RoCEv2 for the verbs programs of one host.
//!
//! The control plane is the crate `burst_host`. This binary adds what a daemon needs: [`config`] reads the settings,
//! [`log`] writes lines to stderr, [`server`] owns the event loop, [`listener`] the control socket's file, [`conversation`] a
//! client's socket, [`signals`] the signals.

use std::process::ExitCode;

mod clients;
mod config;
mod conversation;
mod listener;
mod log;
mod server;
mod signals;

fn main() -> ExitCode {
    let config = match config::load() {
        Ok(config) => config,
        Err(code) => return code,
    };
    one_heap();
    log::init(config.log_level, config.log_format);
    if let Some(sentence) = config.raised_window() {
        tracing::warn!("{sentence}");
    }
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("burstd: {sentence}");
            ExitCode::from(2)
        }
    }
}

/// Makes all threads use one heap, which grows by large steps. The control thread creates and frees objects, but they grow on
/// workers: with one heap their memory is freed to the heap that it came from.
#[cfg(target_env = "gnu")]
fn one_heap() {
    const GROW_BY: i32 = 1 << 20;
    // SAFETY: settings of the allocator, made before there is a second thread. If it refuses them, the daemon is only slower.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, GROW_BY);
    }
}

#[cfg(not(target_env = "gnu"))]
fn one_heap() {}

/// Returns free pages of the heap to the system.
fn return_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments but the bytes to keep; the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Opens everything, serves, and returns when asked to end.
fn run(config: &config::Config) -> Result<(), String> {
    let host = burst_host::Host::open(&config.host, burst_host::Clock::Monotonic)?;
    let mut server = server::Server::bind(config, host)?;
    server.announce(config.ready_fd)?;
    server.serve()
}
