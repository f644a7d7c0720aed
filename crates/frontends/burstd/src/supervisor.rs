//! `burstd --guarded`: a supervisor process that starts the daemon as its child, and starts another one when it falls.
//!
//! The supervisor parses nothing that a program or a peer has written. It keeps duplicates of descriptors that must survive the
//! daemon ([`store`]): the listening control socket, so that programs that connect meanwhile wait in its backlog; the sockets of
//! the `udp` port, so that peers' packets wait in their receive buffers and no ICMP error answers them; the tombstone files. It
//! holds no write end of an event pipe: the hang-up of these pipes tells the libraries that the daemon has ended.
//!
//! A daemon that ends by itself with exit code 0, or after a signal that the supervisor forwarded (SIGTERM, SIGINT, SIGHUP), is
//! not started again. Nor is one that fails before it has served for the first time: its configuration is wrong. Every other end
//! is a crash: [`restarts`] decides when the successor starts.
//!
//! | file | contents |
//! |---|---|
//! | `process` | the supervisor's loop |
//! | `restarts` | when to start the successor |
//! | `message` | messages between supervisor and daemon |
//! | `report` | crash reports |
//! | `panic` | what a panicking daemon leaves for its report |
//! | `store` | the descriptors, as the daemon stores and takes them |

mod message;
mod panic;
mod process;
mod report;
mod restarts;
mod store;

pub use process::supervise;
pub use store::SupervisorStore;

/// Name of the listening control socket in the store.
pub const LISTENER: &str = "listener";
/// Name of the memfd with crash reports in the store.
pub const REPORTS: &str = "reports";
/// Name of the memfd for the daemon's own panic.
pub const PANIC: &str = "panic";

/// Whether a supervisor has started this process.
pub fn is_supervised() -> bool {
    std::env::var_os(store::SUPERVISOR_FD).is_some()
}
