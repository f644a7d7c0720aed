//! The process at the other end of a Unix socket, as the kernel describes it.
//!
//! | module | contents |
//! |---|---|
//! | [`credentials`] | user and process number (`SO_PEERCRED`), and a pidfd (`SO_PEERPIDFD`) |
//! | [`process`] | the capabilities that the process has at the moment, from `/proc` |
//! | [`namespace`] | this process's user namespace: which user ids it can tell apart |
//!
//! Nothing here is the peer's own word. `SO_PEERCRED` holds the credentials of the moment at which the peer connected or
//! listened, and it has the number 0 for a process outside this PID namespace.

pub mod credentials;
pub mod namespace;
pub mod process;

pub use credentials::PeerCredentials;
pub use process::{Capability, PeerProcess};
