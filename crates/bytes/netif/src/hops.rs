//! Next hops for the control plane, which must know that a peer's next hop answers before it sends anything.
//!
//! [`Hops::unresolved`] finds the next hop of a route that has no usable neighbour entry, [`Hops::resolve`] makes the kernel
//! resolve it (ARP, neighbour discovery), and [`Hops::events`] reports the next hops that have changed. No function here waits.
//!
//! With CAP_NET_ADMIN the kernel accepts a request to resolve a neighbour, and sends nothing else. Without that capability an
//! empty UDP datagram is sent to the discard port (RFC 863) of the next hop, with hop limit 1, so that no router passes it on;
//! the kernel queues it until the neighbour answers, as it does with every packet. Most hosts reply to it with an ICMP error,
//! which is not read. Links without neighbours (loopback, tunnels, `NOARP`) have no next hop that could be unresolved.
#![forbid(unsafe_code)]

use crate::is_link_local;
use crate::netlink::{EventSocket, KernelRoute, NetlinkEvent, RequestSocket};
use crate::sys::ifaddrs::flags;
use crate::sys::socket::{leave_by, set_hop_limit};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `IFF_LOOPBACK`, `IFF_POINTOPOINT` and `IFF_NOARP` of linux/if.h: a link with one of these flags has no neighbours to resolve.
const IFF_NO_NEIGHBOURS: u32 = 0x08 | 0x10 | 0x80;
/// UDP port of the discard service.
const DISCARD: u16 = 9;

/// A next hop: a neighbour on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// Index of the interface.
    pub ifindex: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
}

/// State of a next hop, after the kernel's neighbour states (`NUD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Packets can be sent: a link-layer address is known, perhaps an old one, or the link needs none.
    Resolved,
    /// An ARP request or neighbour solicitation has been sent and not answered yet (`NUD_INCOMPLETE`).
    Incomplete,
    /// The neighbour did not answer (`NUD_FAILED`).
    Failed,
    /// There is no entry, and nothing has been sent (`NUD_NONE`).
    Unresolved,
}

/// A change that [`Hops::events`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopEvent {
    /// The state of this next hop may have changed.
    Hop(Hop),
    /// Routes, links or addresses have changed, or events were lost: every next hop may be another one.
    Everything,
}

/// Requests to the kernel about next hops, and its events.
#[derive(Debug)]
pub struct Hops {
    requests: RequestSocket,
    /// Open from [`Hops::resolve`] to [`Hops::stop_events`], because the kernel reports every neighbour to an open socket.
    events: Option<EventSocket>,
}

impl Hops {
    /// Opens the socket for requests.
    ///
    /// # Errors
    /// The kernel's error; some sandboxes allow no netlink sockets.
    pub fn open() -> io::Result<Hops> {
        Ok(Hops { requests: RequestSocket::open()?, events: None })
    }

    /// The next hop from `src` to `dst` by interface `ifindex`, if its link-layer address is unknown. `None` also where there is
    /// no next hop: the destination is this host, the link has no neighbours, or there is no route, which is reported elsewhere.
    pub fn unresolved(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> Option<Hop> {
        let KernelRoute::Via { ifindex, hop, .. } = self.requests.route(src, dst, ifindex) else { return None };
        let hop = Hop { ifindex, ip: hop };
        (self.state(hop) != NeighbourState::Resolved && has_neighbours(ifindex)).then_some(hop)
    }

    /// Whether there is a route from `src` to `dst` by interface `ifindex`, or `dst` is this host.
    pub fn has_route(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> bool {
        !matches!(self.requests.route(src, dst, ifindex), KernelRoute::None)
    }

    /// The present state of a next hop.
    pub fn state(&mut self, hop: Hop) -> NeighbourState {
        match self.requests.neighbour(hop.ip, hop.ifindex) {
            Some(n) if n.resolved => NeighbourState::Resolved,
            Some(n) if n.incomplete => NeighbourState::Incomplete,
            Some(n) if n.failed => NeighbourState::Failed,
            Some(_) | None => NeighbourState::Unresolved,
        }
    }

    /// Makes the kernel resolve a next hop for packets from `src`, and opens the socket for events. Returns the state afterwards.
    ///
    /// # Errors
    /// When the kernel sends nothing to the next hop, or gives no socket for events: then the caller cannot wait for it.
    pub fn resolve(&mut self, src: IpAddr, hop: Hop) -> io::Result<NeighbourState> {
        if self.events.is_none() {
            self.events = Some(EventSocket::open()?);
        }
        if !hop.ip.is_ipv6() || has_link_local(hop.ifindex) {
            self.requests.resolve_neighbour(hop.ip, hop.ifindex);
        }
        match self.state(hop) {
            NeighbourState::Failed | NeighbourState::Unresolved => {
                send_empty_datagram(src, hop)?;
                Ok(self.state(hop))
            }
            state => Ok(state),
        }
    }

    /// Closes the socket for events: no next hop is waited for any more.
    pub fn stop_events(&mut self) {
        self.events = None;
    }

    /// The descriptor that is readable when there are events, while the socket for events is open.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(|events| events.fd().as_fd())
    }

    /// Calls `each` for every queued event.
    pub fn events(&mut self, each: &mut dyn FnMut(HopEvent)) {
        let Some(events) = &mut self.events else { return };
        events.events(&mut |event| {
            each(match event {
                NetlinkEvent::Neighbour(n) => HopEvent::Hop(Hop { ifindex: n.ifindex, ip: n.ip }),
                NetlinkEvent::Routes | NetlinkEvent::Interfaces | NetlinkEvent::Everything => HopEvent::Everything,
            });
        });
    }
}

/// Whether packets on the link of an interface need a neighbour's link-layer address.
fn has_neighbours(ifindex: u32) -> bool {
    flags(ifindex).is_none_or(|flags| flags & IFF_NO_NEIGHBOURS == 0)
}

/// Whether the interface has a link-local IPv6 address. The kernel needs one as the source of a neighbour solicitation that no
/// packet has caused.
fn has_link_local(ifindex: u32) -> bool {
    let interfaces = crate::iface::list().unwrap_or_default();
    let is_v6_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if is_link_local(ip));
    interfaces.iter().any(|i| i.index == ifindex && i.addrs.iter().any(is_v6_link_local))
}

/// Sends an empty datagram to the discard port of a next hop.
fn send_empty_datagram(src: IpAddr, hop: Hop) -> io::Result<()> {
    // A gateway may be of the other address family.
    let src = match hop.ip {
        _ if src.is_ipv4() == hop.ip.is_ipv4() => src,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket_addr = |ip: IpAddr, port: u16| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, if is_link_local(&ip) { hop.ifindex } else { 0 }).into(),
    };
    let socket = OwnedFd::from(UdpSocket::bind(socket_addr(src, 0))?);
    // Binding to a link-local source has bound the socket to the interface; the kernel then refuses the option.
    if !matches!(src, IpAddr::V6(ip) if is_link_local(&ip)) {
        leave_by(&socket, hop.ip.is_ipv6(), hop.ifindex)?;
    }
    set_hop_limit(&socket, hop.ip.is_ipv6(), 1)?;
    let socket = UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    socket.send_to(&[], socket_addr(hop.ip, DISCARD)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lo() -> u32 {
        crate::iface::find("lo").unwrap().index
    }

    #[test]
    fn this_host_and_its_loopback_have_no_next_hop() {
        let mut hops = Hops::open().unwrap();
        let ip = "127.0.0.1".parse().unwrap();
        assert_eq!(hops.unresolved(ip, ip, lo()), None);
        assert_eq!(hops.unresolved(ip, "203.0.113.77".parse().unwrap(), lo()), None);
        assert!(!has_neighbours(lo()) && has_neighbours(u32::MAX));
        assert!(hops.fd().is_none(), "no socket for events before the first resolve");
    }

    #[test]
    fn events_are_reported_from_resolve_to_stop_events() {
        let mut hops = Hops::open().unwrap();
        let hop = Hop { ifindex: lo(), ip: "127.0.0.77".parse().unwrap() };
        assert_ne!(hops.resolve("127.0.0.1".parse().unwrap(), hop).unwrap(), NeighbourState::Incomplete);
        assert!(hops.fd().is_some());
        hops.events(&mut |_| ());
        hops.stop_events();
        assert!(hops.fd().is_none());
        hops.events(&mut |event| panic!("{event:?}"));
    }

    #[test]
    fn a_next_hop_to_which_nothing_can_be_sent_is_an_error() {
        let hop = Hop { ifindex: lo(), ip: "127.0.0.77".parse().unwrap() };
        // The source address is not this host's.
        assert!(Hops::open().unwrap().resolve("192.0.2.1".parse().unwrap(), hop).is_err());
    }
}
