//! The kernel's routes (rtnetlink, RTM_GETROUTE): which interface and source address packets to a destination use.
//!
//! The kernel owns the interfaces, so its routing table decides. An answer is kept for [`CACHE_TIME`], so that a storm of
//! connects to one host asks once.

use burst_base::Nanos;
use burst_cm::Fold;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// How long an answer is kept.
const CACHE_TIME: Nanos = Nanos::from_ms(200);
/// Maximum number of answers kept.
const ROUTES_MAX: usize = 4096;

const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Length of `struct nlmsghdr` and `struct rtmsg`, in bytes.
const HEADERS: usize = 16 + 12;

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface that packets leave by.
    pub oif: u32,
    /// Source address of the packets, if the route prefers one.
    pub src: Option<IpAddr>,
}

/// A query of the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RouteQuery {
    dst: IpAddr,
    /// Source, if the id is bound.
    src: Option<IpAddr>,
    /// Index of the interface if the address needs one, else 0.
    scope: u32,
}

/// The kernel's routes, with the answers of the last moments.
#[derive(Debug, Default)]
pub struct RouteTable {
    socket: Option<OwnedFd>,
    sequence: u32,
    /// When each query was answered, and the answer.
    answers: HashMap<RouteQuery, (Nanos, Result<Route, i32>), Fold>,
}

impl RouteTable {
    /// The route to `dst`.
    ///
    /// # Errors
    /// The errno of the kernel: ENETUNREACH, EHOSTUNREACH, …
    pub fn lookup(&mut self, now: Nanos, dst: IpAddr, src: Option<IpAddr>, scope: u32) -> Result<Route, i32> {
        let query = RouteQuery { dst, src, scope };
        if let Some((answered, answer)) = self.answers.get(&query)
            && now.since(*answered) < CACHE_TIME
        {
            return *answer;
        }
        let answer = self.ask_kernel(query);
        if self.answers.len() >= ROUTES_MAX {
            self.answers.clear();
        }
        self.answers.insert(query, (now, answer));
        debug_assert!(self.answers.len() <= ROUTES_MAX);
        answer
    }

    fn ask_kernel(&mut self, query: RouteQuery) -> Result<Route, i32> {
        let raw = |e: rustix::io::Errno| e.raw_os_error();
        if self.socket.is_none() {
            let made = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
            self.socket = Some(made.map_err(raw)?);
        }
        let Some(socket) = &self.socket else { return Err(libc::ENOBUFS) };
        self.sequence = self.sequence.wrapping_add(1);
        send(socket, &request(query, self.sequence), SendFlags::empty()).map_err(raw)?;
        let mut buffer = [0u8; 4096];
        loop {
            // The kernel has written the answer when `send` returns: `recv` does not wait.
            let (n, _) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).map_err(raw)?;
            if let Some(answer) = parse(&buffer[..n], self.sequence) {
                return answer;
            }
        }
    }
}

/// Appends a routing attribute (`struct rtattr`), padded to 4 bytes.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// An RTM_GETROUTE request.
fn request(RouteQuery { dst, src, scope }: RouteQuery, sequence: u32) -> Vec<u8> {
    let family = if dst.is_ipv4() { AF_INET } else { AF_INET6 };
    let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    let mut message = vec![0; 16];
    message.extend([family, bits(dst), src.map_or(0, bits), 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    attribute(&mut message, RTA_DST, &bytes_of(dst));
    if let Some(src) = src {
        attribute(&mut message, RTA_SRC, &bytes_of(src));
    }
    if scope != 0 {
        attribute(&mut message, RTA_OIF, &scope.to_ne_bytes());
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message[8..12].copy_from_slice(&sequence.to_ne_bytes());
    message
}

fn word(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*b.get(at..)?.first_chunk()?))
}

fn half(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*b.get(at..)?.first_chunk()?))
}

/// The answer in a netlink message; `None` if it answers another request or is malformed.
fn parse(bytes: &[u8], sequence: u32) -> Option<Result<Route, i32>> {
    if word(bytes, 8)? != sequence {
        return None;
    }
    if half(bytes, 4)? == NLMSG_ERROR {
        let error = word(bytes, 16)? as i32;
        return Some(Err(if error < 0 { -error } else { libc::EPROTO }));
    }
    let mut route = Route { oif: 0, src: None };
    let mut rest = bytes.get(HEADERS..)?;
    while let (Some(len), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(len)) else { break };
        match kind {
            RTA_OIF => route.oif = word(value, 0).unwrap_or(0),
            RTA_PREFSRC => route.src = ip_of(value),
            _ => {}
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(Ok(route))
}

fn ip_of(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_ms(1);

    #[test]
    fn loopback_has_a_route_and_the_answer_is_kept() {
        let mut routes = RouteTable::default();
        let dst: IpAddr = "127.0.0.1".parse().expect("ip");
        let route = routes.lookup(NOW, dst, None, 0).expect("a route to itself");
        assert_eq!((route.oif, route.src), (1, Some(dst)));
        assert_eq!(routes.lookup(NOW, dst, None, 0), Ok(route));
        assert_eq!(routes.sequence, 1);
        assert_eq!(routes.lookup(NOW + CACHE_TIME, dst, None, 0), Ok(route));
        assert_eq!(routes.sequence, 2, "the answer is too old");
    }

    #[test]
    fn malformed_messages_are_no_answer() {
        assert_eq!(parse(&[], 1), None);
        assert_eq!(parse(&[0; 40], 1), None);
        let mut refused = [0; 36];
        refused[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        refused[8..12].copy_from_slice(&7u32.to_ne_bytes());
        refused[16..20].copy_from_slice(&(-libc::ENETUNREACH).to_ne_bytes());
        assert_eq!(parse(&refused, 7), Some(Err(libc::ENETUNREACH)));
    }
}
