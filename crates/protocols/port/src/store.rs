//! Descriptors that outlive the process: an interface to a supervisor that keeps them for the successor of this process.
//!
//! The `udp` port stores the sockets of its addresses. A successor takes them over with the packets in their receive buffers, and
//! meanwhile no packet of a peer is answered by an ICMP error. The `packet` port stores the sockets that reserve its UDP port, so
//! that there is no ICMP error either; frames that arrive while no process reads are lost.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Keeps descriptors by name.
pub trait DescriptorStore: Send + Sync + std::fmt::Debug {
    /// Takes a descriptor of the predecessor; the store keeps its duplicate.
    fn take(&self, name: &str) -> Option<OwnedFd>;
    /// Keeps a duplicate of a descriptor; an older one of the name is closed.
    fn store(&self, name: &str, fd: BorrowedFd<'_>);
    /// Closes the store's duplicate.
    fn remove(&self, name: &str);
    /// Whether the supervisor still runs.
    fn is_kept(&self) -> bool;
}

/// The name of the UDP socket of a worker on an address.
pub(crate) fn udp_socket(ip: IpAddr, udp_port: u16, ifindex: u32, worker: usize) -> String {
    format!("udp {ip} {udp_port} {ifindex} {worker}")
}
