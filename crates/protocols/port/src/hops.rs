//! Next hops as the kernel knows them, for whoever must know that one answers before anything is sent.
//!
//! [`Hops::missing`] finds the next hop of a way that has no usable neighbour entry; [`Hops::seek`] makes the kernel ask for it
//! (ARP, neighbour discovery), and [`Hops::heard`] tells of which next hops there is news. Nothing here waits.
//!
//! With CAP_NET_ADMIN the kernel is told to ask, and nothing else is sent. Without, an empty datagram is sent to the next hop's
//! discard port (RFC 863), with a hop limit of 1, so that it ends there; the kernel keeps it until the neighbour answers, as it
//! would keep any packet. Most hosts answer it by an ICMP error, which nobody here reads.
//! Links without neighbours (loopback, tunnels, `NOARP`) have no next hop that could be missing.
#![forbid(unsafe_code)]

use crate::PortAddr;
use crate::iface::is_link_local;
use crate::netlink::{Event, News, Questions, Route};
use crate::sys::ifaddrs::flags;
use crate::sys::socket::{leave_by, set};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `IFF_LOOPBACK`, `IFF_POINTOPOINT` and `IFF_NOARP` of `struct ifreq`: nobody is asked on such a link.
const IFF_ALONE: u32 = 0x08 | 0x10 | 0x80;
/// The discard service.
const DISCARD: u16 = 9;

/// A next hop: a neighbour on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// Interface.
    pub ifindex: u32,
    /// Address of the neighbour.
    pub ip: IpAddr,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopState {
    /// Its address on the link, perhaps an old one; or it needs none.
    Known,
    /// It is being asked.
    Asked,
    /// It did not answer.
    Failed,
    /// Nothing.
    Unknown,
}

/// Something that may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopNews {
    /// The state of this one.
    Of(Hop),
    /// Routes, links, addresses; or news were lost.
    Anything,
}

/// See the module.
pub struct Hops {
    questions: Questions,
    /// Open while somebody waits: others need not hear of every neighbour.
    news: Option<News>,
}

impl Hops {
    /// Opens it.
    ///
    /// # Errors
    /// As the kernel says; some sandboxes know no netlink.
    pub fn open() -> io::Result<Hops> {
        Ok(Hops { questions: Questions::open()?, news: None })
    }

    /// The next hop from `src` to `dst` by interface `ifindex`, if its address on the link is not known. `None` also where there
    /// is none: the destination is this host, the link has no neighbours, or there is no route, which is for others to say.
    pub fn missing(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> Option<Hop> {
        let Route::Via { ifindex, hop, .. } = self.questions.route(src, dst, ifindex) else { return None };
        let hop = Hop { ifindex, ip: hop };
        (self.state(hop) != HopState::Known && has_neighbours(ifindex)).then_some(hop)
    }

    /// What is known of a next hop now.
    pub fn state(&mut self, hop: Hop) -> HopState {
        match self.questions.neighbour(hop.ip, hop.ifindex) {
            Some(n) if n.known => HopState::Known,
            Some(n) if n.asked => HopState::Asked,
            Some(n) if n.failed => HopState::Failed,
            Some(_) | None => HopState::Unknown,
        }
    }

    /// Makes the kernel ask for a next hop, from `src`, and begins to listen for what comes of it. The state afterwards.
    ///
    /// # Errors
    /// When the kernel sends nothing to it, or tells no news: then nobody can be waited for.
    pub fn seek(&mut self, src: IpAddr, hop: Hop) -> io::Result<HopState> {
        if self.news.is_none() {
            self.news = Some(News::open()?);
        }
        if !hop.ip.is_ipv6() || has_link_local(hop.ifindex) {
            self.questions.use_neighbour(hop.ip, hop.ifindex);
        }
        match self.state(hop) {
            HopState::Failed | HopState::Unknown => {
                nudge(src, hop)?;
                Ok(self.state(hop))
            }
            known => Ok(known),
        }
    }

    /// Nobody waits any more.
    pub fn rest(&mut self) {
        self.news = None;
    }

    /// Readable when there is news, while somebody waits.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(|news| news.fd().as_fd())
    }

    /// Hands out the news.
    pub fn heard(&mut self, each: &mut dyn FnMut(HopNews)) {
        let Some(news) = &mut self.news else { return };
        news.changes(&mut |event| {
            each(match event {
                Event::Neighbour(n) => HopNews::Of(Hop { ifindex: n.ifindex, ip: n.ip }),
                Event::Routes | Event::Interfaces | Event::Everything => HopNews::Anything,
            });
        });
    }
}

fn has_neighbours(ifindex: u32) -> bool {
    flags(ifindex).is_none_or(|flags| flags & IFF_ALONE == 0)
}

/// Whether the kernel can ask in its own name there: neighbour discovery is from a link-local address then.
fn has_link_local(ifindex: u32) -> bool {
    let all = crate::iface::list().unwrap_or_default();
    let is_here = |a: &PortAddr| a.ifindex == ifindex && matches!(a.ip, IpAddr::V6(ip) if is_link_local(&ip));
    all.iter().flat_map(|i| &i.addrs).any(is_here)
}

/// Sends an empty datagram to a next hop.
fn nudge(src: IpAddr, hop: Hop) -> io::Result<()> {
    // A gateway may be of the other family.
    let src = match hop.ip {
        _ if src.is_ipv4() == hop.ip.is_ipv4() => src,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let place = |ip: IpAddr, port: u16| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, if is_link_local(&ip) { hop.ifindex } else { 0 }).into(),
    };
    let socket = OwnedFd::from(UdpSocket::bind(place(src, 0))?);
    // A link-local source has bound it already, and then the kernel takes no other word for it.
    if !matches!(src, IpAddr::V6(ip) if is_link_local(&ip)) {
        leave_by(&socket, hop.ip.is_ipv6(), hop.ifindex)?;
    }
    let (level, option) = match hop.ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    };
    set(&socket, level, option, 1)?;
    let socket = UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    socket.send_to(&[], place(hop.ip, DISCARD)).map(drop)
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
        assert_eq!(hops.missing(ip, ip, lo()), None);
        assert_eq!(hops.missing(ip, "203.0.113.77".parse().unwrap(), lo()), None);
        assert!(!has_neighbours(lo()) && has_neighbours(u32::MAX));
        assert!(hops.fd().is_none(), "nobody waits");
    }

    #[test]
    fn news_is_heard_while_somebody_waits() {
        let mut hops = Hops::open().unwrap();
        let hop = Hop { ifindex: lo(), ip: "127.0.0.77".parse().unwrap() };
        assert_ne!(hops.seek("127.0.0.1".parse().unwrap(), hop).unwrap(), HopState::Asked);
        assert!(hops.fd().is_some());
        hops.heard(&mut |_| ());
        hops.rest();
        assert!(hops.fd().is_none());
        hops.heard(&mut |news| panic!("{news:?}"));
    }

    #[test]
    fn what_cannot_be_asked_is_an_error() {
        let hop = Hop { ifindex: lo(), ip: "127.0.0.77".parse().unwrap() };
        // An address that is not this host's.
        assert!(Hops::open().unwrap().seek("192.0.2.1".parse().unwrap(), hop).is_err());
    }
}
