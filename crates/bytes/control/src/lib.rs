//! The control protocol between applications and the daemon.
//!
//! One `SOCK_SEQPACKET` Unix socket per daemon. A packet is a fixed [`frame::ControlHeader`] (magic, version, sequence) followed
//! by a postcard-encoded [`Request`] or [`Reply`]; descriptors travel by `SCM_RIGHTS`. The header alone is readable across
//! versions, so that a mismatch can be refused with a sentence. Requests are answered in order; [`commands`] of the connection
//! manager have no reply and another encoding. The data path does not use this socket.
#![forbid(unsafe_code)]

pub mod activity;
mod async_record;
pub mod capture;
pub mod client;
pub mod cm;
pub mod commands;
pub mod crash_report;
pub mod environment;
pub mod events;
pub mod failures;
pub mod frame;
pub mod in_process;
pub mod inspection;
pub mod lend;
mod limits;
pub mod listener;
pub mod messages;
pub mod metrics_place;
pub mod monitor;
pub mod names;
mod record;
mod refusal;
pub mod socket_path;
pub mod supervisor;
pub mod trust;
pub mod urma;
pub mod urma_calls;

pub use async_record::{AsyncObject, AsyncRecord};
pub use client::Client;
pub use commands::CommandSender;
pub use limits::Limits;
pub use messages::*;
pub use monitor::{Counter, Impairment};
pub use refusal::Refusal;

/// Why a control call failed, on the caller's side.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be reached.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// Path of the socket.
        path: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The socket or the daemon belongs to a user who is not trusted ([`trust`]).
    #[error("{0}")]
    Untrusted(String),
    /// A system call on the socket failed.
    #[error("the connection to the daemon broke: {0}")]
    Io(#[from] std::io::Error),
    /// The daemon closed the connection.
    #[error("the daemon closed the connection")]
    Closed,
    /// Library and daemon are of different versions.
    #[error("version mismatch: this library speaks {ours}, the daemon {theirs}: {sentence}")]
    Version {
        /// Version of this program.
        ours: u32,
        /// Version of the other end.
        theirs: u32,
        /// Sentence of the other end.
        sentence: String,
    },
    /// A packet that cannot be decoded.
    #[error("malformed control message: {0}")]
    Malformed(String),
    /// The daemon refused the request.
    #[error("{sentence}")]
    Refused {
        /// The errno for the verbs call.
        errno: i32,
        /// Cause, and what to do.
        sentence: String,
    },
}

impl ControlError {
    /// The errno that a verbs call reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            ControlError::Refused { errno, .. } => *errno,
            ControlError::Connect { source, .. } => source.raw_os_error().unwrap_or(libc::ENODEV),
            ControlError::Io(e) => e.raw_os_error().unwrap_or(libc::EIO),
            ControlError::Untrusted(_) => libc::EPERM,
            ControlError::Closed | ControlError::Malformed(_) => libc::EIO,
            ControlError::Version { .. } => libc::EPROTO,
        }
    }
}
