//! What the kernel says about links, addresses, routes and neighbours (rtnetlink, RFC 3549): requests are written and
//! answers read by hand.
//!
//! A crate would do it too, but builds its messages on the heap and waits for answers; here the worker asks within
//! `tx_burst` for a destination that it has not met, into buffers made once, and the few fields that a port needs are a
//! page of code. Fields of foreign length are ignored; nothing here trusts a length.

use crate::sys::netlink as sys;
use burst_wire::MacAddr;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// `RTMGRP_*`: links, neighbours, addresses, routes and rules of both families.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400;
/// Longest datagram of the kernel.
const BUFFER: usize = 32 << 10;
/// Datagrams read at once.
const READS_MAX: usize = 64;

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

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// `NUD_*`: states in which a neighbour's address may be used, the one of them that wants to be confirmed, and two in which
/// there is no address.
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_STALE: u16 = 0x04;
const NUD_FAILED: u16 = 0x20;
const NUD_VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | NUD_STALE | 0x08;

/// Find the neighbour as if a packet was to be sent to it.
const NTF_USE: u8 = 0x01;

/// `RTN_*`: kinds of routes.
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// Answer with the entry of the table that matches.
const RTM_F_FIB_MATCH: u32 = 0x2000;

/// A message header, and the fixed part after it of routes, neighbours and links.
const HEADER: usize = 16;
const FIXED: usize = 12;

/// A neighbour, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface.
    pub ifindex: u32,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address, if that may be used.
    pub mac: Option<MacAddr>,
    /// Packets can be sent to it, now: its address may be used, or it needs none.
    pub known: bool,
    /// The address should be confirmed.
    pub stale: bool,
    /// It is being asked; packets wait for its answer.
    pub asked: bool,
    /// It does not answer; what waited for it is lost.
    pub failed: bool,
}

/// Something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour became known, unknown, or another.
    Neighbour(Neighbour),
    /// Routes or rules.
    Routes,
    /// Links or addresses.
    Interfaces,
    /// Messages were lost: anything.
    Everything,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this address on this interface, which may be the destination itself; with the route's MTU, 0 if it has none.
    Via { ifindex: u32, hop: IpAddr, mtu: u32 },
    /// To this host.
    Local,
    /// Nowhere.
    None,
}

/// A socket for events.
pub struct News {
    events: OwnedFd,
    buffer: Vec<u8>,
}

/// A socket for questions.
pub struct Questions {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl News {
    /// Opens it.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn open() -> io::Result<News> {
        Ok(News { events: sys::open(GROUPS)?, buffer: vec![0; BUFFER] })
    }
    /// Readable when something changed.
    pub fn fd(&self) -> &OwnedFd {
        &self.events
    }
    /// Hands out what has changed.
    pub fn changes(&mut self, each: &mut dyn FnMut(Event)) {
        for _ in 0..READS_MAX {
            match sys::recv(&self.events, &mut self.buffer) {
                Ok(len) => messages(&self.buffer[..len], &mut |kind, body| {
                    if let Some(event) = event(kind, body) {
                        each(event);
                    }
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(Event::Everything),
                Err(_) => return,
            }
        }
    }
}

impl Questions {
    /// Opens it.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn open() -> io::Result<Questions> {
        Ok(Questions { socket: sys::open(0)?, buffer: vec![0; BUFFER] })
    }
    /// Whether the kernel is asking for the next hop from `src` to `dst` by interface `ifindex`: it keeps a few packets
    /// meanwhile, and drops the oldest when more come.
    pub fn is_asking(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> bool {
        match self.route(src, dst, ifindex) {
            Route::Via { ifindex, hop, .. } => self.neighbour(hop, ifindex).is_some_and(|n| n.asked),
            Route::Local | Route::None => false,
        }
    }
    /// The route from `src` to `dst` by interface `ifindex`.
    pub fn route(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> Route {
        // Where there is no route by the interface, the kernel assumes that the destination is on its link, unless it is
        // asked for the table's entry; but that leaves open which of several next hops is taken.
        match self.route_with(src, dst, ifindex, RTM_F_FIB_MATCH) {
            Route::None => Route::None,
            _ => self.route_with(src, dst, ifindex, 0),
        }
    }
    fn route_with(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32, flags: u32) -> Route {
        let mut request = Request::new(RTM_GETROUTE, family(&dst));
        let bits = if dst.is_ipv6() { 128 } else { 32 };
        request.fixed()[1..3].copy_from_slice(&[bits, bits]);
        request.fixed()[8..12].copy_from_slice(&flags.to_ne_bytes());
        request.address(RTA_DST, &dst);
        request.address(RTA_SRC, &src);
        request.attribute(RTA_OIF, &ifindex.to_ne_bytes());
        let mut found = Route::None;
        self.ask(&request, &mut |kind, body| {
            if kind == RTM_NEWROUTE {
                found = route(body, dst);
            }
        });
        found
    }
    /// The neighbour with address `ip` on interface `ifindex`.
    pub fn neighbour(&mut self, ip: IpAddr, ifindex: u32) -> Option<Neighbour> {
        let mut request = Request::new(RTM_GETNEIGH, family(&ip));
        request.fixed()[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        request.address(NDA_DST, &ip);
        let mut found = None;
        self.ask(&request, &mut |kind, body| {
            if kind == RTM_NEWNEIGH {
                found = neighbour(body);
            }
        });
        found
    }
    /// Makes the kernel ask for a neighbour without sending it anything else. Without CAP_NET_ADMIN nothing happens.
    pub fn use_neighbour(&mut self, ip: IpAddr, ifindex: u32) {
        let mut request = Request::new(RTM_NEWNEIGH, family(&ip));
        request.bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_CREATE).to_ne_bytes());
        request.fixed()[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        request.fixed()[10] = NTF_USE;
        request.address(NDA_DST, &ip);
        self.ask(&request, &mut |_, _| ());
    }
    /// Asks, and hands out the answer, which has come when the request has been sent.
    fn ask(&mut self, request: &Request, each: &mut dyn FnMut(u16, &[u8])) {
        if sys::send(&self.socket, request.bytes()).is_err() {
            return;
        }
        while let Ok(len) = sys::recv(&self.socket, &mut self.buffer) {
            messages(&self.buffer[..len], each);
        }
    }
}

fn family(ip: &IpAddr) -> u8 {
    (if ip.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

/// A request: header, fixed part, a few attributes.
struct Request {
    bytes: [u8; 96],
    len: usize,
}

impl Request {
    fn new(kind: u16, family: u8) -> Request {
        let mut bytes = [0; 96];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        bytes[HEADER] = family;
        let mut request = Request { bytes, len: HEADER + FIXED };
        request.seal();
        request
    }
    fn seal(&mut self) {
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
        self.seal();
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

/// Hands out kind and body of each message.
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

/// Hands out kind and value of each attribute.
fn attributes(mut rest: &[u8], each: &mut dyn FnMut(u16, &[u8])) {
    while rest.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        if len < 4 || len > rest.len() {
            return;
        }
        // The two highest bits are flags.
        each(u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff, &rest[4..len]);
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || value.try_into().ok().map(|octets: [u8; 4]| IpAddr::from(octets));
    let v6 = || value.try_into().ok().map(|octets: [u8; 16]| IpAddr::from(octets));
    v4().or_else(v6)
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

fn event(kind: u16, body: &[u8]) -> Option<Event> {
    match kind {
        RTM_NEWNEIGH => neighbour(body).map(Event::Neighbour),
        RTM_DELNEIGH => neighbour(body).map(|n| Event::Neighbour(Neighbour { mac: None, known: false, ..n })),
        RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWRULE | RTM_DELRULE => Some(Event::Routes),
        RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => Some(Event::Interfaces),
        _ => None,
    }
}

/// A neighbour message: family, padding, interface (4), state (2), flags, type; attributes.
fn neighbour(body: &[u8]) -> Option<Neighbour> {
    let (fixed, rest) = body.split_at_checked(FIXED)?;
    let state = u16::from_ne_bytes([fixed[8], fixed[9]]);
    let (mut ip, mut mac) = (None, None);
    attributes(rest, &mut |kind, value| match kind {
        NDA_DST => ip = address(value),
        NDA_LLADDR => mac = value.try_into().ok().map(MacAddr),
        _ => {}
    });
    let ifindex = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    let is = |flag| state & flag != 0;
    let (known, mac) = (is(NUD_VALID), mac.filter(|_| is(NUD_VALID)));
    let (asked, failed) = (is(NUD_INCOMPLETE), is(NUD_FAILED));
    Some(Neighbour { ifindex, ip: ip?, mac, known, stale: is(NUD_STALE), asked, failed })
}

/// A route message: family, lengths of destination and source, TOS, table, protocol, scope, type, flags (4); attributes.
fn route(body: &[u8], dst: IpAddr) -> Route {
    let Some((fixed, rest)) = body.split_at_checked(FIXED) else { return Route::None };
    let (mut hop, mut ifindex, mut mtu) = (dst, 0, 0);
    attributes(rest, &mut |kind, value| match kind {
        RTA_GATEWAY => hop = address(value).unwrap_or(hop),
        // A gateway of the other family: two bytes of family before it.
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
        RTN_UNICAST => Route::Via { ifindex, hop, mtu },
        RTN_LOCAL => Route::Local,
        _ => Route::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_host_is_local() {
        let mut netlink = Questions::open().unwrap();
        let lo = crate::iface::find("lo").unwrap().index;
        let ip = "127.0.0.1".parse().unwrap();
        assert_eq!(netlink.route(ip, ip, lo), Route::Local);
        let far = "203.0.113.77".parse().unwrap();
        assert!(!matches!(netlink.route(ip, far, lo), Route::Local));
        assert_eq!(netlink.neighbour(far, lo), None);
        assert!(!netlink.is_asking(ip, far, lo) && !netlink.is_asking(ip, ip, lo));
    }

    #[test]
    fn neighbour_messages_are_read() {
        let mut request = Request::new(RTM_NEWNEIGH, libc::AF_INET as u8);
        request.fixed()[4..8].copy_from_slice(&7u32.to_ne_bytes());
        request.fixed()[8..10].copy_from_slice(&NUD_STALE.to_ne_bytes());
        let ip = "10.0.0.9".parse().unwrap();
        request.address(NDA_DST, &ip);
        request.attribute(NDA_LLADDR, &[2, 1, 1, 1, 1, 1]);
        let mac = Some(MacAddr([2, 1, 1, 1, 1, 1]));
        let want = Neighbour { ifindex: 7, ip, mac, known: true, stale: true, asked: false, failed: false };
        let read = |bytes: &[u8]| {
            let mut got = Vec::new();
            messages(bytes, &mut |kind, body| got.extend(event(kind, body)));
            got
        };
        assert_eq!(read(request.bytes()), [Event::Neighbour(want)]);
        // Failed: the address it had must not be used.
        request.fixed()[8] = 0x20;
        assert_eq!(
            read(request.bytes()),
            [Event::Neighbour(Neighbour { mac: None, known: false, stale: false, failed: true, ..want })]
        );
    }

    #[test]
    fn rubbish_is_ignored_and_does_not_run_away() {
        for fill in [0u8, 1, 3, 16, 0x7f, 0xff] {
            let bytes = [fill; 300];
            messages(&bytes, &mut |kind, body| assert!(event(kind, body).is_none() || body.len() >= FIXED));
            attributes(&bytes, &mut |_, _| ());
            let _ = route(&bytes, "10.0.0.1".parse().unwrap());
            let _ = neighbour(&bytes[..13]);
        }
        let request = Request::new(RTM_NEWNEIGH, 2);
        for len in 0..request.len {
            messages(&request.bytes()[..len], &mut |_, _| panic!("cut messages are not handed out"));
        }
    }
}
