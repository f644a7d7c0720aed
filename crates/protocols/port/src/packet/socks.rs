//! The sockets of a port: the packet socket of each worker, and one UDP socket per address that receives nothing.
//!
//! The UDP socket reserves the encapsulation's UDP port. Without it the kernel, which receives every packet too, would answer
//! each one with an ICMP error. The socket also shows the owner of the port (`ss -u`), and makes a second Burst or the kernel's
//! soft-RoCE fail to bind the same address. It accepts trains (UDP_GRO), so that the kernel need not cut trains only to discard
//! the pieces.

use super::{LocalLink, filter};
use crate::error::PortError;
use crate::spec::PacketSpec;
use crate::sys::bpf::{Attach, attach};
use crate::sys::packet as sys;
use crate::sys::socket::{self, SocketOptions};
use crate::{PortAddr, WorkerShare};
use burst_netif::is_link_local;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`: types of links whose frames begin with an Ethernet header.
const ETHERNET: [u16; 2] = [1, 772];

/// Opens the packet socket of a worker on the interface.
pub fn open(spec: &PacketSpec, own: &LocalLink, share: &WorkerShare) -> Result<OwnedFd, PortError> {
    let device = &own.name;
    let explain = |error| PortError::from_io(format!("open a packet socket on {device}"), error);
    let fd = sys::open(spec.rcvbuf, spec.sndbuf).map_err(explain)?;
    attach(&fd, Attach::Filter, &filter::receive(spec.addr, own.encapsulation.udp_port)).map_err(explain)?;
    let kind = sys::bind(&fd, own.ifindex).map_err(explain)?;
    if !ETHERNET.contains(&kind) {
        return Err(PortError::Spec(format!(
            "interface '{device}' does not carry Ethernet frames; use the port udp:dev={device}"
        )));
    }
    if share.workers > 1 {
        sys::join_group(&fd, group(spec, own), &filter::steer(own.encapsulation.worker_word_at)).map_err(explain)?;
    }
    let granted = socket::receive_buffer(&fd);
    if granted < spec.rcvbuf && share.worker == 0 {
        tracing::info!(
            "the receive buffer of {device} has {granted} bytes of {} asked for: raise net.core.rmem_max",
            spec.rcvbuf
        );
    }
    Ok(fd)
}

/// Number of the fanout group of this process's workers on this interface, for these addresses.
fn group(spec: &PacketSpec, own: &LocalLink) -> u16 {
    let bits = match spec.addr {
        Some(IpAddr::V4(ip)) => u128::from(u32::from(ip)),
        Some(IpAddr::V6(ip)) => u128::from(ip),
        None => 0,
    };
    let mixed = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (std::process::id() as u16).wrapping_mul(31) ^ (own.ifindex as u16).rotate_left(11) ^ mixed as u16
}

/// Reserves the UDP port of the encapsulation at an address, by a socket that receives nothing.
pub fn reserve(addr: &PortAddr, port: u16) -> Result<OwnedFd, PortError> {
    let name = match addr.ip {
        IpAddr::V6(ip) if is_link_local(&ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, addr.ifindex)),
        ip => SocketAddr::new(ip, port),
    };
    let options = SocketOptions { addr: name, gro: true, reuse: false, ifindex: addr.ifindex, rcvbuf: 0, sndbuf: 0 };
    let fd = socket::open(&options).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::InUse { addr: addr.ip, port },
        _ => PortError::from_io(format!("reserve UDP port {port} on {}", addr.ip), error),
    })?;
    socket::receive_nothing(&fd).map_err(|e| PortError::from_io("attach a filter to a socket", e))?;
    Ok(fd)
}
