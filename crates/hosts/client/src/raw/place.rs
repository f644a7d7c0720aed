//! Where the host of a program is: behind the socket of a daemon, or in the program's own process.

use super::in_process::{self, LoadedHost};
use super::lock::HeldSignals;
use burst_control::in_process::InProcessCalls;
use burst_control::{Client, ControlError, socket_path};
use std::path::{Path, PathBuf};

/// Where a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// A daemon that listens on this socket.
    Socket(PathBuf),
    /// This process.
    InProcess,
}

impl HostPlace {
    /// The places to try, in order: this process if `BURST_MODE` says so, else the usual sockets.
    pub fn candidates() -> Vec<HostPlace> {
        if burst_control::in_process::is_chosen() {
            return vec![HostPlace::InProcess];
        }
        socket_path::candidates().into_iter().map(HostPlace::Socket).collect()
    }

    /// The places to try for connection management: in lent mode it is the daemon's.
    pub fn of_connections() -> Vec<HostPlace> {
        if burst_control::in_process::is_lent() {
            return socket_path::candidates().into_iter().map(HostPlace::Socket).collect();
        }
        HostPlace::candidates()
    }

    /// Connects, under a name for the host's log. The caller holds its signals until it has what it wants of the connection.
    ///
    /// # Errors
    /// [`ControlError::Connect`] if there is no host; as [`Client::connect`].
    pub fn connect(&self, program: &str, held: &HeldSignals) -> Result<Client, ControlError> {
        match self {
            HostPlace::Socket(path) => Client::connect_waiting(path, program, held.slow_answer()),
            HostPlace::InProcess => Client::connect_in_process(in_process::open_session()?, program),
        }
    }

    /// The functions of the host, if it is in this process and was loaded.
    pub fn in_process_calls(&self) -> Option<InProcessCalls> {
        match self {
            HostPlace::Socket(_) => None,
            HostPlace::InProcess => LoadedHost::get().ok().map(|host| host.calls),
        }
    }

    /// The daemon's socket; an empty path if there is none.
    pub fn socket(&self) -> &Path {
        match self {
            HostPlace::Socket(path) => path,
            HostPlace::InProcess => Path::new(""),
        }
    }
}
