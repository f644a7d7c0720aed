//! Errors of opening a port: each is one sentence that names the object, and then the remedy.

/// A port that cannot be specified or opened. `Display` is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The specification has a mistake; the text names the wrong word and the nearest valid one.
    #[error("{0}")]
    Spec(String),
    /// The interface does not exist, has no address, or cannot be listed.
    #[error(transparent)]
    Netif(#[from] burst_netif::NetifError),
    /// Another process has bound the UDP port.
    #[error(
        "UDP port {port} on {addr} is taken: another burstd, or the kernel's soft-RoCE (rdma_rxe), holds it; \
         stop it, or give this port another address with addr=IP"
    )]
    InUse {
        /// Address that could not be bound.
        addr: std::net::IpAddr,
        /// UDP port.
        port: u16,
    },
    /// The system refused for lack of privileges.
    #[error("no permission to {what}; run as root or grant CAP_NET_ADMIN/CAP_NET_RAW")]
    Permission {
        /// The attempted operation.
        what: String,
    },
    /// This kind of port does not support the operation.
    #[error("a port of kind '{kind}' cannot {what}")]
    Unsupported {
        /// The port's specification.
        kind: String,
        /// The operation.
        what: &'static str,
    },
    /// A device or its driver refuses.
    #[error("{0}")]
    Device(String),
    /// The kind of port was not built in.
    #[error("this burstd was built without {kind}; {cure}")]
    Absent {
        /// Kind of port.
        kind: &'static str,
        /// The remedy.
        cure: &'static str,
    },
    /// Any other error of the system.
    #[error("cannot {what}: {source}; check the interface with: ip addr")]
    System {
        /// The attempted operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl PortError {
    /// The error number of the system that is nearest.
    pub fn errno(&self) -> i32 {
        match self {
            PortError::Spec(_) | PortError::Device(_) => libc::EINVAL,
            PortError::Netif(_) => libc::EADDRNOTAVAIL,
            PortError::InUse { .. } => libc::EADDRINUSE,
            PortError::Permission { .. } => libc::EPERM,
            PortError::Unsupported { .. } | PortError::Absent { .. } => libc::EOPNOTSUPP,
            PortError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
    /// The error for a failed system call, by its error number.
    pub(crate) fn from_io(what: impl Into<String>, source: std::io::Error) -> PortError {
        let what = what.into();
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => PortError::Permission { what },
            _ => PortError::System { what, source },
        }
    }
}
