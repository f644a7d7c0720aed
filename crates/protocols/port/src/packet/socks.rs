//! The sockets of a port: the packet socket of each worker, and, once per address, a UDP socket that takes nothing.
//!
//! The latter holds port 4791: without it the kernel would answer every packet, which it sees too, with an ICMP error.
//! It shows who has the port (`ss -u`), and it refuses to share an address with another Burst or with the kernel's
//! soft-RoCE. It asks for trains (UDP_GRO), so that the kernel need not cut one only to throw its pieces away.

use super::{Own, filter};
use crate::error::PortError;
use crate::spec::PacketSpec;
use crate::sys::bpf::{Attach, attach};
use crate::sys::packet as sys;
use crate::sys::socket::{self, SocketOptions};
use crate::{PortAddr, ROCE_UDP_PORT, Share};
use burst_netif::is_link_local;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`: links whose frames begin with an Ethernet header.
const ETHERNET: [u16; 2] = [1, 772];

/// Opens the packet socket of a worker on the interface.
pub fn open(spec: &PacketSpec, own: &Own, share: Share) -> Result<OwnedFd, PortError> {
    let device = &own.name;
    let sentence = |error| PortError::from_io(format!("open a packet socket on {device}"), error);
    let fd = sys::open(spec.rcvbuf, spec.sndbuf).map_err(sentence)?;
    attach(&fd, Attach::Filter, &filter::receive(spec.addr)).map_err(sentence)?;
    let kind = sys::bind(&fd, own.ifindex).map_err(sentence)?;
    if !ETHERNET.contains(&kind) {
        return Err(PortError::Spec(format!(
            "interface '{device}' does not carry Ethernet frames; use the port udp:dev={device}"
        )));
    }
    if share.workers > 1 {
        sys::join_group(&fd, group(spec, own), &filter::steer()).map_err(sentence)?;
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

/// The number of the fanout group that the workers of this process have on this interface, for these addresses.
fn group(spec: &PacketSpec, own: &Own) -> u16 {
    let bits = match spec.addr {
        Some(IpAddr::V4(ip)) => u128::from(u32::from(ip)),
        Some(IpAddr::V6(ip)) => u128::from(ip),
        None => 0,
    };
    let mixed = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (std::process::id() as u16).wrapping_mul(31) ^ (own.ifindex as u16).rotate_left(11) ^ mixed as u16
}

/// Takes UDP port 4791 of an address.
pub fn hold(addr: &PortAddr) -> Result<OwnedFd, PortError> {
    let name = match addr.ip {
        IpAddr::V6(ip) if is_link_local(&ip) => SocketAddr::V6(SocketAddrV6::new(ip, ROCE_UDP_PORT, 0, addr.ifindex)),
        ip => SocketAddr::new(ip, ROCE_UDP_PORT),
    };
    let options = SocketOptions { addr: name, gro: true, reuse: false, ifindex: addr.ifindex, rcvbuf: 0, sndbuf: 0 };
    let fd = socket::open(&options).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::InUse { addr: addr.ip, port: ROCE_UDP_PORT },
        _ => PortError::from_io(format!("hold UDP port {ROCE_UDP_PORT} on {}", addr.ip), error),
    })?;
    socket::take_nothing(&fd).map_err(|e| PortError::from_io("attach a filter to a socket", e))?;
    Ok(fd)
}
