//! Why a port could not be opened: one sentence that names the thing, then the cure.

/// A port that could not be described or opened. `Display` is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The specification has a mistake; the text names the wrong word and the nearest valid one.
    #[error("{0}")]
    Spec(String),
    /// The interface does not exist, has no address, or the kernel does not list it.
    #[error(transparent)]
    Netif(#[from] burst_netif::NetifError),
    /// Somebody else has the UDP port.
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
    /// The system refused for lack of rights.
    #[error("no permission to {what}; run as root or grant CAP_NET_ADMIN/CAP_NET_RAW")]
    Permission {
        /// What was tried.
        what: String,
    },
    /// This kind of port cannot do what was asked.
    #[error("a port of kind '{kind}' cannot {what}")]
    Unsupported {
        /// The port, as the user wrote it.
        kind: String,
        /// What was asked.
        what: &'static str,
    },
    /// A device refuses, or its driver does.
    #[error("{0}")]
    Device(String),
    /// A kind of port that was not built in.
    #[error("this burstd was built without {kind}; {cure}")]
    Absent {
        /// Kind of port.
        kind: &'static str,
        /// What to do.
        cure: &'static str,
    },
    /// Any other refusal of the system.
    #[error("cannot {what}: {source}; check the interface with: ip addr")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl PortError {
    /// The error for a failed system call, by its number.
    pub(crate) fn from_io(what: impl Into<String>, source: std::io::Error) -> PortError {
        let what = what.into();
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => PortError::Permission { what },
            _ => PortError::System { what, source },
        }
    }
}
