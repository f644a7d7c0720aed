//! rtnetlink (RFC 3549): requests about routes and neighbours, and events about links, addresses, routes and neighbours. Messages
//! are written and read by hand.
//!
//! The netlink crates build messages on the heap and block for replies. Here a worker sends requests within `tx_burst`, for each
//! destination that is new to it, from buffers allocated once; and the few fields that a port needs are a page of code.
//! Attributes of unexpected length are ignored, and no length in a message is trusted.

use crate::sys::netlink as sys;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Bits `RTMGRP_*`: links, neighbours, and addresses, routes and rules of both families.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400;
/// Longest datagram of the kernel in bytes.
const BUFFER_BYTES: usize = 32 << 10;
/// Datagrams that one [`EventSocket::events`] reads.
const READS_MAX: usize = 64;
/// Longest request in bytes: header, fixed part, three addresses' worth of attributes.
const REQUEST_BYTES: usize = 96;

const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_CREATE: u16 = 0x400;
/// All entries of a table.
const NLM_F_DUMP: u16 = 0x300;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

// States of a neighbour. `NUD_VALID` are the states in which its link-layer address may be used; `NUD_STALE`, one of them, asks
// for confirmation. In the states `NUD_INCOMPLETE` and `NUD_FAILED` there is no address.
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_STALE: u16 = 0x04;
const NUD_FAILED: u16 = 0x20;
const NUD_VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | NUD_STALE | 0x08;

/// Flag of `RTM_NEWNEIGH`: resolve the neighbour as if a packet were to be sent to it.
const NTF_USE: u8 = 0x01;

// Types of routes.
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// Flag of `RTM_GETROUTE`: reply with the matching entry of the routing table.
const RTM_F_FIB_MATCH: u32 = 0x2000;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct rtmsg` and of `struct ndmsg`, which follow the header.
const FIXED: usize = 12;

/// An entry of the kernel's neighbour table (ARP, neighbour discovery).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourEntry {
    /// Index of the interface.
    pub ifindex: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// Ethernet address of the neighbour, if packets may be sent to that address now.
    pub mac: Option<[u8; 6]>,
    /// Whether packets can be sent now: the link-layer address is valid, or the link needs none.
    pub resolved: bool,
    /// Whether the link-layer address should be confirmed (`NUD_STALE`).
    pub stale: bool,
    /// Whether the kernel is resolving the neighbour and queues packets to it (`NUD_INCOMPLETE`).
    pub incomplete: bool,
    /// Whether the neighbour did not answer; the kernel has dropped the packets to it (`NUD_FAILED`).
    pub failed: bool,
}

/// A change that the kernel has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkEvent {
    /// A neighbour entry was added, changed or deleted; a deleted one has no address any more.
    Neighbour(NeighbourEntry),
    /// Routes or rules have changed.
    Routes,
    /// Links or addresses have changed.
    Interfaces,
    /// Events were lost: anything may have changed.
    Everything,
}

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelRoute {
    /// The route leads to a next hop on a link.
    Via {
        /// Index of the interface.
        ifindex: u32,
        /// Address of the next hop, which may be the destination itself.
        hop: IpAddr,
        /// MTU of the route in bytes, 0 if it has none.
        mtu: u32,
    },
    /// The destination is this host.
    Local,
    /// There is no route, or one that refuses packets.
    None,
}

/// A netlink socket for events.
#[derive(Debug)]
pub struct EventSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// A netlink socket for requests. The kernel replies within the `send`, so no request waits.
#[derive(Debug)]
pub struct RequestSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl EventSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<EventSocket> {
        Ok(EventSocket { socket: sys::open(GROUPS)?, buffer: vec![0; BUFFER_BYTES] })
    }
    /// The descriptor, readable when there are events.
    pub fn fd(&self) -> &OwnedFd {
        &self.socket
    }
    /// Calls `each` for every queued event.
    pub fn events(&mut self, each: &mut dyn FnMut(NetlinkEvent)) {
        for _ in 0..READS_MAX {
            match sys::recv(&self.socket, &mut self.buffer) {
                Ok(len) => messages(&self.buffer[..len], &mut |kind, body| {
                    if let Some(event) = event(kind, body) {
                        each(event);
                    }
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(NetlinkEvent::Everything),
                Err(_) => return,
            }
        }
    }
}

impl RequestSocket {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<RequestSocket> {
        Ok(RequestSocket { socket: sys::open(0)?, buffer: vec![0; BUFFER_BYTES] })
    }
    /// Whether the kernel is resolving the next hop from `src` to `dst` by interface `ifindex`. Meanwhile it queues a few
    /// packets, and drops the oldest when more come.
    pub fn is_resolving(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> bool {
        match self.route(src, dst, ifindex) {
            KernelRoute::Via { ifindex, hop, .. } => self.neighbour(hop, ifindex).is_some_and(|n| n.incomplete),
            KernelRoute::Local | KernelRoute::None => false,
        }
    }
    /// The route from `src` to `dst` by interface `ifindex`.
    pub fn route(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> KernelRoute {
        // Where no route leads over the interface, the kernel assumes that the destination is on the interface's link. Only a
        // request for the matching table entry shows that there is no route. Such a request, however, does not tell which of
        // several next hops the kernel would select, so a second, plain request follows.
        match self.request_route(src, dst, ifindex, RTM_F_FIB_MATCH) {
            KernelRoute::None => KernelRoute::None,
            _ => self.request_route(src, dst, ifindex, 0),
        }
    }
    fn request_route(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32, flags: u32) -> KernelRoute {
        let mut request = RequestMessage::new(RTM_GETROUTE, family(&dst));
        let bits = if dst.is_ipv6() { 128 } else { 32 };
        request.fixed()[1..3].copy_from_slice(&[bits, bits]);
        request.fixed()[8..12].copy_from_slice(&flags.to_ne_bytes());
        request.address(RTA_DST, &dst);
        request.address(RTA_SRC, &src);
        request.attribute(RTA_OIF, &ifindex.to_ne_bytes());
        let mut found = KernelRoute::None;
        self.exchange(&request, &mut |kind, body| {
            if kind == RTM_NEWROUTE {
                found = route(body, dst);
            }
        });
        found
    }
    /// The entry of the neighbour with address `ip` on interface `ifindex`, if there is one.
    pub fn neighbour(&mut self, ip: IpAddr, ifindex: u32) -> Option<NeighbourEntry> {
        let mut request = RequestMessage::new(RTM_GETNEIGH, family(&ip));
        request.fixed()[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        request.address(NDA_DST, &ip);
        let mut found = None;
        self.exchange(&request, &mut |kind, body| {
            if kind == RTM_NEWNEIGH {
                found = neighbour(body);
            }
        });
        found
    }
    /// The entries of all neighbours on all interfaces, IPv4 and IPv6.
    pub fn neighbours(&mut self) -> Vec<NeighbourEntry> {
        let mut request = RequestMessage::new(RTM_GETNEIGH, libc::AF_UNSPEC as u8);
        request.bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        let mut found = Vec::new();
        self.exchange(&request, &mut |kind, body| {
            if kind == RTM_NEWNEIGH {
                found.extend(neighbour(body));
            }
        });
        found
    }
    /// Makes the kernel resolve a neighbour; no packet but the ARP request or neighbour solicitation is sent. Without
    /// CAP_NET_ADMIN this has no effect.
    pub fn resolve_neighbour(&mut self, ip: IpAddr, ifindex: u32) {
        let mut request = RequestMessage::new(RTM_NEWNEIGH, family(&ip));
        request.bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_CREATE).to_ne_bytes());
        request.fixed()[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        request.fixed()[10] = NTF_USE;
        request.address(NDA_DST, &ip);
        self.exchange(&request, &mut |_, _| ());
    }
    /// Sends a request and calls `each` with type and body of every message of the reply, which has arrived when `send` returns.
    fn exchange(&mut self, request: &RequestMessage, each: &mut dyn FnMut(u16, &[u8])) {
        if sys::send(&self.socket, request.bytes()).is_err() {
            return;
        }
        while let Ok(len) = sys::recv(&self.socket, &mut self.buffer) {
            messages(&self.buffer[..len], each);
        }
    }
}

/// Address family of `ip` in the first byte of a message's fixed part.
fn family(ip: &IpAddr) -> u8 {
    (if ip.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

/// A request message: header, fixed part, a few attributes.
struct RequestMessage {
    bytes: [u8; REQUEST_BYTES],
    /// Bytes in use.
    len: usize,
}

impl RequestMessage {
    fn new(kind: u16, family: u8) -> RequestMessage {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        bytes[HEADER] = family;
        let mut request = RequestMessage { bytes, len: HEADER + FIXED };
        request.write_len();
        request
    }
    fn write_len(&mut self) {
        debug_assert!(self.len <= REQUEST_BYTES && self.len.is_multiple_of(4));
        self.bytes[..4].copy_from_slice(&(self.len as u32).to_ne_bytes());
    }
    fn fixed(&mut self) -> &mut [u8] {
        &mut self.bytes[HEADER..HEADER + FIXED]
    }
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let place = &mut self.bytes[self.len..self.len + 4 + value.len()];
        place[..2].copy_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        place[2..4].copy_from_slice(&kind.to_ne_bytes());
        place[4..].copy_from_slice(value);
        self.len += (4 + value.len()).next_multiple_of(4);
        self.write_len();
    }
    fn address(&mut self, kind: u16, ip: &IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attribute(kind, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(kind, &ip.octets()),
        }
    }
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Calls `each` with type and body of each message of a datagram; error messages are left out, and a message cut short ends the
/// loop.
fn messages(mut rest: &[u8], each: &mut dyn FnMut(u16, &[u8])) {
    while rest.len() >= HEADER {
        let len = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if len < HEADER || len > rest.len() {
            return;
        }
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        if kind != NLMSG_ERROR {
            each(kind, &rest[HEADER..len]);
        }
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
}

/// Calls `each` with type and value of each attribute.
fn attributes(mut rest: &[u8], each: &mut dyn FnMut(u16, &[u8])) {
    while rest.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        if len < 4 || len > rest.len() {
            return;
        }
        // The two highest bits of the type are flags.
        each(u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff, &rest[4..len]);
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
}

/// The IP address that is the value of an attribute.
fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || value.try_into().ok().map(|octets: [u8; 4]| IpAddr::from(octets));
    let v6 = || value.try_into().ok().map(|octets: [u8; 16]| IpAddr::from(octets));
    v4().or_else(v6)
}

/// The 32-bit number that is the value of an attribute.
fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// The event that a message reports.
fn event(kind: u16, body: &[u8]) -> Option<NetlinkEvent> {
    match kind {
        RTM_NEWNEIGH => neighbour(body).map(NetlinkEvent::Neighbour),
        RTM_DELNEIGH => neighbour(body).map(NetlinkEvent::deleted),
        RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWRULE | RTM_DELRULE => Some(NetlinkEvent::Routes),
        RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => Some(NetlinkEvent::Interfaces),
        _ => None,
    }
}

impl NetlinkEvent {
    /// The event for a neighbour entry that was deleted.
    fn deleted(entry: NeighbourEntry) -> NetlinkEvent {
        NetlinkEvent::Neighbour(NeighbourEntry { mac: None, resolved: false, ..entry })
    }
}

/// Reads a neighbour message: family, padding, interface (4), state (2), flags, type; attributes.
fn neighbour(body: &[u8]) -> Option<NeighbourEntry> {
    let (fixed, rest) = body.split_at_checked(FIXED)?;
    let state = u16::from_ne_bytes([fixed[8], fixed[9]]);
    let (mut ip, mut mac) = (None, None);
    attributes(rest, &mut |kind, value| match kind {
        NDA_DST => ip = address(value),
        NDA_LLADDR => mac = value.try_into().ok(),
        _ => {}
    });
    let ifindex = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    let is = |flag| state & flag != 0;
    Some(NeighbourEntry {
        ifindex,
        ip: ip?,
        mac: mac.filter(|_| is(NUD_VALID)),
        resolved: is(NUD_VALID),
        stale: is(NUD_STALE),
        incomplete: is(NUD_INCOMPLETE),
        failed: is(NUD_FAILED),
    })
}

/// Reads a route message: family, prefix lengths of destination and source, TOS, table, protocol, scope, type, flags (4);
/// attributes.
fn route(body: &[u8], dst: IpAddr) -> KernelRoute {
    let Some((fixed, rest)) = body.split_at_checked(FIXED) else { return KernelRoute::None };
    let (mut hop, mut ifindex, mut mtu) = (dst, 0, 0);
    attributes(rest, &mut |kind, value| match kind {
        RTA_GATEWAY => hop = address(value).unwrap_or(hop),
        // A gateway of the other address family: two bytes of family precede its address.
        RTA_VIA => hop = value.get(2..).and_then(address).unwrap_or(hop),
        RTA_OIF => ifindex = number(value).unwrap_or(0),
        RTA_METRICS => attributes(value, &mut |kind, value| {
            if kind == RTAX_MTU {
                mtu = number(value).unwrap_or(0);
            }
        }),
        _ => {}
    });
    match fixed[7] {
        RTN_UNICAST => KernelRoute::Via { ifindex, hop, mtu },
        RTN_LOCAL => KernelRoute::Local,
        _ => KernelRoute::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_host_is_local() {
        let mut netlink = RequestSocket::open().unwrap();
        let lo = crate::iface::find("lo").unwrap().index;
        let ip = "127.0.0.1".parse().unwrap();
        assert_eq!(netlink.route(ip, ip, lo), KernelRoute::Local);
        let far = "203.0.113.77".parse().unwrap();
        assert!(!matches!(netlink.route(ip, far, lo), KernelRoute::Local));
        assert_eq!(netlink.neighbour(far, lo), None);
        assert!(!netlink.is_resolving(ip, far, lo) && !netlink.is_resolving(ip, ip, lo));
    }

    #[test]
    fn neighbour_messages_are_read() {
        let mut request = RequestMessage::new(RTM_NEWNEIGH, libc::AF_INET as u8);
        request.fixed()[4..8].copy_from_slice(&7u32.to_ne_bytes());
        request.fixed()[8..10].copy_from_slice(&NUD_STALE.to_ne_bytes());
        let ip = "10.0.0.9".parse().unwrap();
        request.address(NDA_DST, &ip);
        request.attribute(NDA_LLADDR, &[2, 1, 1, 1, 1, 1]);
        let mac = Some([2, 1, 1, 1, 1, 1]);
        let (ifindex, resolved, stale, incomplete, failed) = (7, true, true, false, false);
        let want = NeighbourEntry { ifindex, ip, mac, resolved, stale, incomplete, failed };
        let read = |bytes: &[u8]| {
            let mut got = Vec::new();
            messages(bytes, &mut |kind, body| got.extend(event(kind, body)));
            got
        };
        assert_eq!(read(request.bytes()), [NetlinkEvent::Neighbour(want)]);
        // In the state NUD_FAILED the former address must not be used.
        request.fixed()[8] = 0x20;
        let failed = NeighbourEntry { mac: None, resolved: false, stale: false, failed: true, ..want };
        assert_eq!(read(request.bytes()), [NetlinkEvent::Neighbour(failed)]);
    }

    #[test]
    fn malformed_messages_are_ignored_and_every_loop_ends() {
        for fill in [0u8, 1, 3, 16, 0x7f, 0xff] {
            let bytes = [fill; 300];
            messages(&bytes, &mut |kind, body| assert!(event(kind, body).is_none() || body.len() >= FIXED));
            attributes(&bytes, &mut |_, _| ());
            let _ = route(&bytes, "10.0.0.1".parse().unwrap());
            let _ = neighbour(&bytes[..13]);
        }
        let request = RequestMessage::new(RTM_NEWNEIGH, 2);
        for len in 0..request.len {
            messages(&request.bytes()[..len], &mut |_, _| panic!("a message cut short was reported"));
        }
    }
}
