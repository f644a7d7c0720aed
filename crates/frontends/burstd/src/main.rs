//! `burstd`: the daemon that carries RoCEv2 for the verbs programs of one host.
//!
//! The control plane is the crate `burst_host`. This binary adds what a daemon needs: [`config`] reads the settings,
//! [`log`] writes lines to stderr, [`server`] owns the control socket, the event loop and the signals.

use std::process::ExitCode;

mod config;
mod log;
mod server;

fn main() -> ExitCode {
    let config = match config::load() {
        Ok(config) => config,
        Err(code) => return code,
    };
    one_heap();
    log::init(config.log_level, config.log_format);
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("burstd: {sentence}");
            ExitCode::from(2)
        }
    }
}

/// Objects are made on the control thread and ended on it, but grow on workers: with one heap for all threads they
/// are freed where they came from, and the heap grows by large steps instead of page by page.
#[cfg(target_env = "gnu")]
fn one_heap() {
    const GROW_BY: i32 = 1 << 20;
    // SAFETY: plain settings of the allocator, made before there is a second thread. If it refuses, it only is slower.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, GROW_BY);
    }
}

#[cfg(not(target_env = "gnu"))]
fn one_heap() {}

/// Gives free pages of the heap back to the system.
fn give_heap_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments but the bytes to keep; the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Opens everything, serves, and returns when asked to end.
fn run(config: &config::Config) -> Result<(), String> {
    let host = burst_host::Host::open(&config.host)?;
    let mut server = server::Server::bind(config, host)?;
    server.announce(config.ready_fd)?;
    server.serve()
}
