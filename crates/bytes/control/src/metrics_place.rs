//! Where a host shows its metrics: `127.0.0.1:9317` (TCP) or `unix:PATH`.

use crate::listener::bind_stream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// A place where metrics are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsPlace {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket file.
    Unix(PathBuf),
}

impl FromStr for MetricsPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<MetricsPlace, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(MetricsPlace::Unix(path))
            } else {
                Err(format!("{text:?}: the path of unix:PATH begins with /"))
            };
        }
        let wrong = || format!("{text:?} is neither ADDRESS:PORT (127.0.0.1:9317, [::1]:9317) nor unix:PATH");
        text.parse().map(MetricsPlace::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for MetricsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsPlace::Tcp(address) => address.fmt(f),
            MetricsPlace::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl MetricsPlace {
    /// Listens there, not blocking.
    ///
    /// # Errors
    /// A sentence.
    pub fn listen(&self) -> Result<OwnedFd, String> {
        match self {
            MetricsPlace::Unix(path) => bind_stream(path, 0o666),
            MetricsPlace::Tcp(address) => listen_tcp(address)
                .map_err(|e| format!("cannot show metrics at {address}: {}", std::io::Error::from(e))),
        }
    }
}

fn listen_tcp(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_shown_alike() {
        for text in ["127.0.0.1:9317", "[::1]:9317", "unix:/run/burst/metrics.sock"] {
            assert_eq!(text.parse::<MetricsPlace>().map(|place| place.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["9317", "localhost:9317", "unix:", "unix:metrics", "127.0.0.1", ""] {
            assert!(wrong.parse::<MetricsPlace>().is_err(), "{wrong}");
        }
    }
}
