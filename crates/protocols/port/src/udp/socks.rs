//! The sockets of a port: one per address and one per joined multicast group, so that the socket tells the address to which a
//! packet was sent.
//!
//! With several workers each sends by a second socket with a UDP port of its own. All packets of two hosts would otherwise be one
//! flow for receive side scaling and for ECMP, so that one processor of the receiver would feed the sockets of all its workers.
//! RoCEv2 gives no meaning to the source port (IBA annex A17), and answers go to the encapsulation's port.
//!
//! For the same reason an address may have further sockets that only send ([`UdpSocket::open_further`]). A frame whose flow names
//! the port of one of them leaves by it.
//!
//! The sockets of an address are a reuse group, in which they have the order in which they were bound; the program that steers
//! datagrams names them by it. Sockets for lent worker numbers follow those of the workers. They stay open while the group lives,
//! because the kernel moves the last member into the place of one that leaves (`reuseport_detach_sock`).

use crate::error::PortError;
use crate::spec::UdpSpec;
use crate::sys::socket::{self, SocketOptions};
use crate::{AddressSharing, Encapsulation, LentSocket, PortAddr, WorkerShare, store};
use burst_base::Qpn;
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
    /// Sockets that send from further source ports, and these.
    further: Vec<(OwnedFd, u16)>,
    /// The kernel's count of packets lost for want of buffer, at the last report.
    pub lost_seen: u32,
    /// The socket's name in the store of descriptors.
    pub stored_as: Option<String>,
    /// Sockets for lent worker numbers, in the order of the group: behind those of the workers.
    for_others: Vec<OwnedFd>,
    /// The numbers that are lent with this address, and the places of their sockets in `for_others`.
    lent: Vec<(usize, usize)>,
}

impl UdpSocket {
    /// A socket that sends by itself.
    fn bare(ip: IpAddr, fd: OwnedFd) -> UdpSocket {
        UdpSocket {
            ip,
            fd,
            sender: None,
            further: Vec::new(),
            lost_seen: 0,
            stored_as: None,
            for_others: Vec::new(),
            lent: Vec::new(),
        }
    }

    /// The socket that sends frames of a flow with this source port, and its own source port; `own` is that of the encapsulation.
    pub fn sender_of(&self, src_port: u16, own: u16) -> (&OwnedFd, u16) {
        let chosen = self.further.iter().find(|(_, port)| *port == src_port).or(self.sender.as_ref());
        chosen.map_or((&self.fd, own), |(fd, port)| (fd, *port))
    }

    /// Whether the flow's source port decides which socket sends.
    pub fn has_further(&self) -> bool {
        !self.further.is_empty()
    }

    /// The source port of a further socket, by its number from 1 on.
    pub fn further_port(&self, number: usize) -> Option<u16> {
        self.further.get(number.checked_sub(1)?).map(|(_, port)| *port)
    }

    /// Opens sockets for source ports, until there are `count` with the usual one.
    pub fn open_further(&mut self, spec: &UdpSpec, addr: &PortAddr, count: usize) -> Result<(), PortError> {
        while self.further.len() + 1 < count {
            self.further.push(open_sender(spec, addr)?);
        }
        Ok(())
    }

    /// Closes further sockets behind the first `count` source ports.
    pub fn close_further(&mut self, count: usize) {
        self.further.truncate(count.saturating_sub(1));
        debug_assert!(self.further.len() < count.max(1));
    }

    /// Its descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let senders = self.sender.iter().chain(&self.further);
        std::iter::once(self.fd.as_raw_fd()).chain(senders.map(|(fd, _)| fd.as_raw_fd()))
    }

    /// A duplicate of the socket of worker number `number`, to which packets are steered from now on, and its name.
    pub fn lend(
        &mut self,
        (spec, encapsulation): (&UdpSpec, &Encapsulation),
        addr: &PortAddr,
        share: &WorkerShare,
        number: usize,
    ) -> io::Result<LentSocket> {
        assert!((share.workers..=Qpn::WORKER_MASK as usize).contains(&number), "a number that cannot be lent");
        self.lent.retain(|(of, _)| *of != number);
        let free = (0..self.for_others.len()).find(|place| self.lent.iter().all(|(_, taken)| taken != place));
        let place = free.unwrap_or(self.for_others.len());
        if place == self.for_others.len() {
            let fd = socket::open(&group_options(spec, encapsulation, addr))?;
            socket::lock_programs(&fd)?;
            self.for_others.push(fd);
            self.keep(encapsulation, addr.ifindex, share, place);
        }
        debug_assert!(self.lent.iter().all(|(_, taken)| *taken != place), "a socket is lent twice");
        let fd = &self.for_others[place];
        socket::drain(fd);
        let copy = fd.try_clone()?;
        self.lent.push((number, place));
        if let Err(error) = self.steer(encapsulation, share) {
            self.lent.pop();
            return Err(error);
        }
        Ok((store::udp_socket(addr.ip, encapsulation.udp_port, addr.ifindex, number), copy))
    }

    /// Packets to the queue pairs of the number come to this process again.
    pub fn take_back(&mut self, encapsulation: &Encapsulation, ifindex: u32, share: &WorkerShare, number: usize) {
        let Some(at) = self.lent.iter().position(|(of, _)| *of == number) else { return };
        let (_, place) = self.lent.swap_remove(at);
        let fd = &self.for_others[place];
        if socket::was_connected(fd) {
            tracing::warn!("a program has connected the socket of worker number {number} of {} to a peer", self.ip);
            socket::disconnect(fd);
            self.forget(encapsulation, ifindex, share, place);
        }
        if let Err(error) = self.steer(encapsulation, share) {
            tracing::warn!("packets to worker number {number} of {} are lost ({error})", self.ip);
        }
        if let Some(fd) = self.for_others.get(place) {
            socket::drain(fd);
        }
    }

    /// Closes a socket that has left the group. The last is in its place from now on.
    fn forget(&mut self, encapsulation: &Encapsulation, ifindex: u32, share: &WorkerShare, place: usize) {
        assert!(
            place < self.for_others.len() && self.lent.iter().all(|(_, of)| *of != place),
            "a socket in use is closed"
        );
        let last = self.for_others.len() - 1;
        self.for_others.swap_remove(place);
        self.lent.iter_mut().filter(|(_, of)| *of == last).for_each(|(_, of)| *of = place);
        if let Some(store) = &share.store {
            let name = |place| store::udp_socket(self.ip, encapsulation.udp_port, ifindex, share.workers + place);
            store.remove(&name(last));
            if place < last {
                self.keep(encapsulation, ifindex, share, place);
            }
        }
    }

    /// Keeps a socket for a successor of this process.
    fn keep(&self, encapsulation: &Encapsulation, ifindex: u32, share: &WorkerShare, place: usize) {
        if let Some(store) = &share.store {
            let name = store::udp_socket(self.ip, encapsulation.udp_port, ifindex, share.workers + place);
            store.store(&name, self.for_others[place].as_fd());
        }
    }

    fn steer(&self, encapsulation: &Encapsulation, share: &WorkerShare) -> io::Result<()> {
        let index = |place: usize| (share.workers + place) as u32;
        let lent: Vec<(u32, u32)> = self.lent.iter().map(|(number, place)| (*number as u32, index(*place))).collect();
        socket::steer_to_processes(&self.fd, encapsulation.worker_word_at, share.workers as u32, &lent)
    }

    /// Names of its sockets in the store.
    pub fn names(&self, encapsulation: &Encapsulation, ifindex: u32, share: &WorkerShare) -> Vec<String> {
        let indices = share.workers..share.workers + self.for_others.len();
        let lent = indices.map(|index| store::udp_socket(self.ip, encapsulation.udp_port, ifindex, index));
        self.stored_as.clone().into_iter().chain(lent).collect()
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
        // What it has lost so far, the predecessor or the lender has reported.
        let lost_seen = socket::lost(&fd);
        let sender = own_sender(spec, addr, share)?;
        let for_others = take_for_others(encapsulation, addr, share);
        let sock = UdpSocket { sender, lost_seen, stored_as, for_others, ..UdpSocket::bare(addr.ip, fd) };
        if !sock.for_others.is_empty() {
            // The programs have ended with the predecessor.
            sock.steer(encapsulation, share).map_err(|e| PortError::from_io("steer packets to workers", e))?;
        }
        return Ok(sock);
    }
    let fd = open_anew(spec, encapsulation, addr, share)?;
    if let Some(store) = &share.store {
        store.store(&name, fd.as_fd());
    }
    let sender = own_sender(spec, addr, share)?;
    Ok(UdpSocket { sender, stored_as, ..UdpSocket::bare(addr.ip, fd) })
}

/// Opens a socket that there was not before.
fn open_anew(
    spec: &UdpSpec,
    encapsulation: &Encapsulation,
    addr: &PortAddr,
    share: &WorkerShare,
) -> Result<OwnedFd, PortError> {
    let udp_port = encapsulation.udp_port;
    if share.sharing == AddressSharing::Lent {
        return Err(PortError::Spec(format!("the daemon has lent no socket of {}", addr.ip)));
    }
    let options = SocketOptions { reuse: share.is_grouped(), ..group_options(spec, encapsulation, addr) };
    let sentence = |error| explain(addr.ip, udp_port, error);
    if share.is_grouped() && share.worker == 0 {
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
    Ok(fd)
}

/// Options of a socket in an address's reuse group.
fn group_options(spec: &UdpSpec, encapsulation: &Encapsulation, addr: &PortAddr) -> SocketOptions {
    SocketOptions {
        addr: socket_addr(addr, encapsulation.udp_port),
        gro: spec.gro,
        reuse: true,
        rcvbuf: spec.rcvbuf,
        sndbuf: spec.sndbuf,
        ifindex: addr.ifindex,
    }
}

/// The sockets for lent numbers of this process's predecessor.
fn take_for_others(encapsulation: &Encapsulation, addr: &PortAddr, share: &WorkerShare) -> Vec<OwnedFd> {
    let Some(store) = share.store.as_ref().filter(|_| share.sharing == AddressSharing::Lends && share.worker == 0)
    else {
        return Vec::new();
    };
    let name = |index| store::udp_socket(addr.ip, encapsulation.udp_port, addr.ifindex, index);
    (share.workers..=Qpn::WORKER_MASK as usize).map_while(|index| store.take(&name(index))).collect()
}

/// The socket by which one of several workers sends.
fn own_sender(spec: &UdpSpec, addr: &PortAddr, share: &WorkerShare) -> Result<Option<(OwnedFd, u16)>, PortError> {
    (share.workers > 1).then(|| open_sender(spec, addr)).transpose()
}

/// Opens a socket that sends; the kernel chooses its port. It receives nothing but errors.
fn open_sender(spec: &UdpSpec, addr: &PortAddr) -> Result<(OwnedFd, u16), PortError> {
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
        Ok((fd, port))
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
    Ok(UdpSocket::bare(group, fd))
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
