//! `burstd`: the daemon that carries RoCEv2 for the verbs programs of one host.
//!
//! The control plane is the crate `burst_host`, the settings and the log are those of `burst_config`. This binary adds what a
//! daemon needs: [`server`] owns the event loop, [`rounds`] shares the loop's time between accounts,
//! [`clients`] and [`endings`] are the queues of the accounts, [`conversation`] a client's socket, [`exporter`] shows metrics,
//! [`reserve`] is memory for allocations that cannot fail, [`session`] the session's share of the processors,
//! [`signals`] the signals, [`supervisor`] the process that starts a successor when the daemon falls,
//! [`systemd`] what systemd passes.

use burst_config as config;
use burst_config::log;
use burst_port::DescriptorStore;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

mod clients;
mod conversation;
mod endings;
mod exporter;
mod reserve;
mod rounds;
mod server;
mod session;
mod signals;
mod supervisor;
mod systemd;

fn main() -> ExitCode {
    let config = match config::load() {
        Ok(config) => config,
        Err(code) => return code,
    };
    one_heap();
    #[cfg(feature = "dpdk")]
    burst_port_dpdk::enable();
    let log = log::init(config.log_level, config.log_format);
    if let Some(sentence) = config.raised_window() {
        tracing::warn!("{sentence}");
    }
    match session::prefer() {
        session::SessionShare::Larger => {
            tracing::debug!("the session's share of the processors is larger than a program's")
        }
        session::SessionShare::Unchanged(reason) => {
            tracing::debug!("the session's share of the processors is as it was: {reason}")
        }
    }
    let is_supervisor = config.guarded && !supervisor::is_supervised();
    let result = if is_supervisor { supervisor::supervise(&config) } else { run(&config, log) };
    match result {
        Ok(code) => code,
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
    burst_base::heap::return_thread_cache();
    #[cfg(target_env = "gnu")]
    // SAFETY: no arguments but the bytes to keep; the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Opens everything, serves, and returns when asked to end.
fn run(config: &config::Config, log: Arc<log::ProcessLog>) -> Result<ExitCode, String> {
    if !reserve::hold() {
        tracing::warn!("the system gives no memory for the daemon's reserve");
    }
    let store = supervisor::SupervisorStore::connect(&config.socket_settings())?.map(Arc::new);
    let shared = store.clone().map(|store| store as Arc<dyn DescriptorStore>);
    let crashes = store.as_ref().map(|store| store.crashes()).unwrap_or_default();
    let mut host = burst_host::Host::open(&config.host, burst_host::Clock::Monotonic, shared)?;
    let host_crashes = crashes.crashes;
    host.crashes = crashes;
    host.log = Some(log);
    let listener = store.as_ref().and_then(|store| store.take(supervisor::LISTENER));
    let mut server = server::Server::bind(config, host, listener)?;
    server.watch()?;
    // Until the server ends.
    let _metrics = exporter::start(config)?;
    // Only the first daemon of a supervisor has a starter that waits.
    let is_first = host_crashes == 0;
    server.announce(config.ready_fd.filter(|_| is_first))?;
    if let Some(store) = &store {
        store.serving();
    }
    server.serve()?;
    Ok(ExitCode::SUCCESS)
}

/// Takes over a descriptor that the starter of this process has passed by its number; `None` if there is none.
fn inherited(number: i32) -> Option<OwnedFd> {
    // SAFETY: the descriptor's flags are read, which changes nothing.
    let is_open = number >= 0 && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    // SAFETY: the starter gave the descriptor to this process alone, and nothing else in the process knows its number: numbers
    // come from the starter only, and each is taken over once.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}
