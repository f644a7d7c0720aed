//! The sockets of a port: one per address and one per joined multicast group, so that the socket tells the address to which a
//! packet was sent.

use crate::error::PortError;
use crate::spec::UdpSpec;
use crate::sys::socket::{self, SocketOptions};
use crate::{Encapsulation, PortAddr, WorkerShare, store};
use burst_netif::is_link_local;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

/// A socket and its address.
pub struct UdpSocket {
    /// The address to which the socket is bound.
    pub ip: IpAddr,
    /// The socket.
    pub fd: OwnedFd,
    /// The kernel's count of packets lost for want of buffer, at the last report.
    pub lost_seen: u32,
    /// The socket's name in the store of descriptors.
    pub stored_as: Option<String>,
}

/// Opens the socket of `addr`.
///
/// With several workers the sockets of one address form a reuse group, and the kernel steers datagrams by the worker word. A
/// reuse group would also accept another program that has bound the same UDP port with reuse, so worker 0 first tests, without
/// reuse, whether the UDP port is free.
///
/// A socket of this process's predecessor is taken over with its options, its reuse group and its packets.
pub fn open(
    spec: &UdpSpec,
    encapsulation: &Encapsulation,
    addr: &PortAddr,
    share: &WorkerShare,
) -> Result<UdpSocket, PortError> {
    let udp_port = encapsulation.udp_port;
    let name = store::udp_socket(addr.ip, udp_port, addr.ifindex, share.worker);
    let stored_as = share.store.is_some().then(|| name.clone());
    if let Some(fd) = share.store.as_ref().and_then(|store| store.take(&name)) {
        // What it has lost so far, the predecessor has reported.
        let lost_seen = socket::lost(&fd);
        return Ok(UdpSocket { ip: addr.ip, fd, lost_seen, stored_as });
    }
    let options = SocketOptions {
        addr: socket_addr(addr, udp_port),
        gro: spec.gro,
        reuse: share.workers > 1,
        rcvbuf: spec.rcvbuf,
        sndbuf: spec.sndbuf,
        ifindex: addr.ifindex,
    };
    let sentence = |error| explain(addr.ip, udp_port, error);
    if share.workers > 1 && share.worker == 0 {
        socket::open(&SocketOptions { reuse: false, ..options }).map_err(sentence)?;
    }
    let fd = socket::open(&options).map_err(sentence)?;
    if share.workers > 1
        && share.worker == 0
        && let Err(error) = socket::steer_to_workers(&fd, encapsulation.worker_word_at, share.workers as u32)
    {
        tracing::warn!("packets are not steered to workers ({error}): workers hand them over to each other");
    }
    let granted = socket::receive_buffer(&fd);
    if granted < spec.rcvbuf && share.worker == 0 {
        let ip = addr.ip;
        tracing::info!(
            "the receive buffer of {ip} has {granted} bytes of {} asked for: raise net.core.rmem_max",
            spec.rcvbuf
        );
    }
    if let Some(store) = &share.store {
        store.store(&name, fd.as_fd());
    }
    Ok(UdpSocket { ip: addr.ip, fd, lost_seen: 0, stored_as })
}

/// Opens the socket of a multicast group on interface `ifindex`; the socket only receives.
pub fn open_group(
    spec: &UdpSpec,
    encapsulation: &Encapsulation,
    group: IpAddr,
    ifindex: u32,
) -> Result<UdpSocket, PortError> {
    let udp_port = encapsulation.udp_port;
    let options = SocketOptions {
        addr: match group {
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, udp_port, 0, ifindex)),
            ip => SocketAddr::new(ip, udp_port),
        },
        gro: spec.gro,
        reuse: false,
        rcvbuf: spec.rcvbuf,
        sndbuf: spec.sndbuf,
        ifindex,
    };
    let fd = socket::open(&options).map_err(|e| PortError::from_io(format!("join {group}"), e))?;
    Ok(UdpSocket { ip: group, fd, lost_seen: 0, stored_as: None })
}

fn socket_addr(addr: &PortAddr, port: u16) -> SocketAddr {
    match addr.ip {
        IpAddr::V6(ip) if is_link_local(&ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, addr.ifindex)),
        ip => SocketAddr::new(ip, port),
    }
}

fn explain(addr: IpAddr, port: u16, error: io::Error) -> PortError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::InUse { addr, port },
        _ => PortError::from_io(format!("open UDP port {port} on {addr}"), error),
    }
}
