//! Errors about network interfaces: each is one sentence for the user that names the interface or the refused operation.

/// An interface that cannot be used, or a refusal of the kernel. `Display` is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum NetifError {
    /// No interface has the name.
    #[error("there is no network interface '{name}'; this host has: {have}")]
    NoInterface {
        /// Name asked for.
        name: String,
        /// Names that exist, separated by commas.
        have: String,
    },
    /// The interface has no usable address.
    #[error("interface '{name}' has no IP address; give it one, for example: ip addr add 10.0.0.1/24 dev {name}")]
    NoAddress {
        /// Interface name.
        name: String,
    },
    /// The kernel refuses to list the interfaces.
    #[error("cannot list the network interfaces: {0}; check them with: ip addr")]
    List(std::io::Error),
}
