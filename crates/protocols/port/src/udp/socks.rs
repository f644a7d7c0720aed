//! The sockets of a port: one per address and one per joined multicast group, so that the socket tells the address to which a
//! packet was sent.
//!
//! With several workers each sends by a second socket with a UDP port of its own. All packets of two hosts would otherwise be one
//! flow for receive side scaling and for ECMP, so that one processor of the receiver would feed the sockets of all its workers.
//! RoCEv2 gives no meaning to the source port (IBA annex A17), and answers go to the encapsulation's port.

use crate::error::PortError;
use crate::spec::UdpSpec;
use crate::sys::socket::{self, SocketOptions};
use crate::{Encapsulation, PortAddr, WorkerShare, store};
use burst_netif::is_link_local;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// A socket and its address.
pub struct UdpSocket {
    /// The address to which the socket is bound.
    pub ip: IpAddr,
    /// The socket.
    pub fd: OwnedFd,
    /// The socket that sends, and its UDP port, if it is not the same.
    sender: Option<(OwnedFd, u16)>,
    /// The kernel's count of packets lost for want of buffer, at the last report.
    pub lost_seen: u32,
    /// The socket's name in the store of descriptors.
    pub stored_as: Option<String>,
}

impl UdpSocket {
    /// The socket that sends.
    pub fn sender(&self) -> &OwnedFd {
        self.sender.as_ref().map_or(&self.fd, |(fd, _)| fd)
    }

    /// Its descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.fd.as_raw_fd()).chain(self.sender.iter().map(|(fd, _)| fd.as_raw_fd()))
    }

    /// The source port of what is sent; `own` is that of the encapsulation.
    pub fn source_port(&self, own: u16) -> u16 {
        self.sender.as_ref().map_or(own, |(_, port)| *port)
    }
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
        let sender = open_sender(spec, addr, share)?;
        return Ok(UdpSocket { ip: addr.ip, fd, sender, lost_seen, stored_as });
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
    Ok(UdpSocket { ip: addr.ip, fd, sender: open_sender(spec, addr, share)?, lost_seen: 0, stored_as })
}

/// Opens the socket by which one of several workers sends; the kernel chooses its port. It receives nothing but errors.
fn open_sender(spec: &UdpSpec, addr: &PortAddr, share: &WorkerShare) -> Result<Option<(OwnedFd, u16)>, PortError> {
    if share.workers == 1 {
        return Ok(None);
    }
    let options = SocketOptions {
        addr: socket_addr(addr, 0),
        gro: false,
        reuse: false,
        rcvbuf: 0,
        sndbuf: spec.sndbuf,
        ifindex: addr.ifindex,
    };
    let open = || {
        let fd = socket::open(&options)?;
        socket::receive_nothing(&fd)?;
        let port = socket::local_port(&fd)?;
        Ok(Some((fd, port)))
    };
    open().map_err(|e| PortError::from_io(format!("open a UDP socket on {}", addr.ip), e))
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
    Ok(UdpSocket { ip: group, fd, sender: None, lost_seen: 0, stored_as: None })
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
