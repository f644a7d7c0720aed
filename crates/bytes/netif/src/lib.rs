//! Network interfaces, routes and neighbours of this host, as the Linux kernel reports them.
//!
//! The ports and the control plane both need this knowledge: a port to choose its interface and to find the next hop of a
//! packet, the control plane to resolve the address of a peer. The crate knows nothing of RDMA.
//!
//! | module | what |
//! |---|---|
//! | [`iface`] | interfaces of this host: addresses, MTU, state, speed; the interface to use when the user names none |
//! | [`netlink`] | rtnetlink requests and events: routes, neighbours, links, addresses |
//! | `error` | [`NetifError`] |
//! | [`hops`] | next hops for the control plane: which one is unresolved, how the kernel is made to resolve it, its events |
//! | [`watch`] | wakes the control plane when interfaces or addresses change |
//! | `sys` | system calls; the only module with `unsafe` |
#![deny(unsafe_code)]

mod error;
pub mod hops;
pub mod iface;
pub mod netlink;
mod sys;
pub mod watch;

pub use error::NetifError;

use std::net::Ipv6Addr;

/// Whether `ip` is link-local (fe80::/10, RFC 4291 section 2.5.6): such an address is only meaningful together with an interface.
pub fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}
