//! Where packets go: for each destination the next hop's Ethernet address, as the kernel knows it.
//!
//! A destination that is new is looked up once (route, then neighbour), and the table follows what the kernel tells
//! from then on: a neighbour's change at once, any change of routes, links or addresses by looking everything up anew.
//! Where the next hop is not resolved, the packet itself goes through the kernel ([`super::slow`]), which resolves,
//! queues and sends it; so does the next packet after the kernel has called a neighbour stale, and so the kernel confirms
//! it as it would for its own traffic.
//!
//! The table has a fixed size; when it is nearly full everything in it is forgotten.

use super::Own;
use burst_base::Reason;
use burst_frame::Flow;
use burst_netif::netlink::{KernelRoute, NeighbourEntry, NetlinkEvent, RequestSocket};
use burst_wire::MacAddr;
use std::net::IpAddr;

/// Places of the table, a power of two.
const PLACES: usize = 4096;
/// Destinations remembered.
const KNOWN_MAX: usize = PLACES * 3 / 4;
/// Unresolved next hops whose packets are counted.
const WAITING_MAX: usize = 64;

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is for ourselves.
    Home,
    /// To this Ethernet address, at most so long an IP packet.
    Wire { mac: MacAddr, mtu: u32 },
    /// The kernel shall send it.
    Kernel,
    /// It cannot be sent.
    Nowhere(Reason),
}

#[derive(Clone, Copy)]
struct Path {
    src: IpAddr,
    dst: IpAddr,
    hop: IpAddr,
    mtu: u32,
    way: Way,
    /// The next packet goes through the kernel.
    nudge: bool,
}

/// The table.
pub struct Paths {
    places: Vec<Option<Path>>,
    known: usize,
    /// Place last used.
    last: usize,
    /// Next hops that are not resolved, and how many packets went to the kernel for them.
    waiting: Vec<(IpAddr, usize)>,
}

impl Paths {
    /// An empty table.
    pub fn new() -> Paths {
        Paths { places: vec![None; PLACES], known: 0, last: 0, waiting: Vec::with_capacity(WAITING_MAX) }
    }
    /// What to do with the next packet of `flow`.
    #[inline]
    pub fn way(&mut self, flow: &Flow, own: &Own, netlink: &mut RequestSocket) -> Way {
        let way = self.peek(flow, own, netlink);
        if let Some(path) = &mut self.places[self.last] {
            path.nudge = false;
            if path.way == Way::Kernel {
                let hop = path.hop;
                self.waits(hop);
            }
        }
        way
    }
    /// [`Paths::way`] without taking note that a packet goes this way.
    #[inline]
    pub fn peek(&mut self, flow: &Flow, own: &Own, netlink: &mut RequestSocket) -> Way {
        let is = |path: &Option<Path>| path.is_some_and(|p| p.dst == flow.dst && p.src == flow.src);
        if !is(&self.places[self.last]) {
            self.last = self.find(flow, own, netlink);
        }
        match &self.places[self.last] {
            Some(path) if path.nudge => Way::Kernel,
            Some(path) => path.way,
            None => Way::Nowhere(Reason::NoRoute),
        }
    }
    /// The place of `flow`, looked up if it is new.
    fn find(&mut self, flow: &Flow, own: &Own, netlink: &mut RequestSocket) -> usize {
        let mut at = hash(&flow.src).wrapping_add(hash(&flow.dst)) & (PLACES - 1);
        while let Some(path) = &self.places[at] {
            if path.dst == flow.dst && path.src == flow.src {
                return at;
            }
            at = (at + 1) & (PLACES - 1);
        }
        if self.known == KNOWN_MAX {
            self.forget();
        }
        self.known += 1;
        self.places[at] = Some(look_up(flow, own, netlink));
        at
    }
    /// Forgets everything.
    pub fn forget(&mut self) {
        self.places.fill(None);
        self.known = 0;
    }
    /// Takes note of a change. Returns how many packets that waited for a next hop are lost.
    pub fn note(&mut self, event: &NetlinkEvent, own: &Own) -> usize {
        match event {
            NetlinkEvent::Neighbour(neighbour) if neighbour.ifindex == own.ifindex => return self.neighbour(neighbour),
            NetlinkEvent::Neighbour(_) => {}
            NetlinkEvent::Routes | NetlinkEvent::Interfaces | NetlinkEvent::Everything => self.forget(),
        }
        0
    }
    fn neighbour(&mut self, neighbour: &NeighbourEntry) -> usize {
        for path in self.places.iter_mut().flatten() {
            if path.hop == neighbour.ip && matches!(path.way, Way::Wire { .. } | Way::Kernel) {
                path.way = neighbour.mac.map_or(Way::Kernel, |mac| Way::Wire { mac: MacAddr(mac), mtu: path.mtu });
                path.nudge = neighbour.stale;
            }
        }
        let Some(at) = self.waiting.iter().position(|(hop, _)| *hop == neighbour.ip) else { return 0 };
        let (_, packets) = self.waiting.swap_remove(at);
        if neighbour.failed { packets } else { 0 }
    }
    /// A packet waits for `hop`, in the kernel.
    fn waits(&mut self, hop: IpAddr) {
        match self.waiting.iter().position(|(ip, _)| *ip == hop) {
            Some(at) => self.waiting[at].1 += 1,
            None if self.waiting.len() < WAITING_MAX => self.waiting.push((hop, 1)),
            None => {}
        }
    }
}

fn hash(ip: &IpAddr) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let number = match ip {
        IpAddr::V4(ip) => u64::from(u32::from(*ip)),
        IpAddr::V6(ip) => {
            let bits = u128::from(*ip);
            (bits as u64) ^ ((bits >> 64) as u64).rotate_left(17)
        }
    };
    (number.wrapping_mul(ODD) >> 40) as usize
}

fn look_up(flow: &Flow, own: &Own, netlink: &mut RequestSocket) -> Path {
    let path = |way, hop, mtu| Path { src: flow.src, dst: flow.dst, hop, mtu, way, nudge: false };
    let direct = |way| path(way, flow.dst, own.mtu);
    if own.has(&flow.dst) {
        return direct(Way::Home);
    }
    if let Some(mac) = multicast(&flow.dst) {
        return direct(Way::Wire { mac, mtu: own.mtu });
    }
    match netlink.route(flow.src, flow.dst, own.ifindex) {
        KernelRoute::Via { ifindex, hop, mtu } if ifindex == own.ifindex => {
            let mtu = if mtu == 0 { own.mtu } else { mtu.min(own.mtu) };
            match netlink.neighbour(hop, ifindex) {
                Some(NeighbourEntry { mac: Some(mac), stale, .. }) => {
                    Path { nudge: stale, ..path(Way::Wire { mac: MacAddr(mac), mtu }, hop, mtu) }
                }
                _ => path(Way::Kernel, hop, mtu),
            }
        }
        // Another port on the loopback interface.
        KernelRoute::Local if own.loopback => direct(Way::Wire { mac: MacAddr::default(), mtu: own.mtu }),
        KernelRoute::Via { .. } | KernelRoute::Local | KernelRoute::None => direct(Way::Nowhere(Reason::NoRoute)),
    }
}

/// The Ethernet address of a multicast group (RFC 1112 6.4, RFC 2464 7).
fn multicast(ip: &IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let o = ip.octets();
            Some(MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::flow;

    fn own() -> Own {
        let addrs = vec!["127.0.0.1".parse().unwrap()];
        let ifindex = burst_netif::iface::find("lo").unwrap().index;
        Own {
            addrs,
            ifindex,
            loopback: true,
            mtu: 65_535,
            mac: MacAddr::default(),
            name: "lo".into(),
            groups: Vec::new(),
            any_group: false,
        }
    }

    #[test]
    fn destinations_are_looked_up_once_and_forgotten_on_demand() {
        let (mut paths, mut netlink, own) = (Paths::new(), RequestSocket::open().unwrap(), own());
        let mut way = |paths: &mut Paths, dst: &str| paths.way(&flow("127.0.0.1", dst), &own, &mut netlink);
        assert_eq!(way(&mut paths, "127.0.0.1"), Way::Home);
        assert_eq!(way(&mut paths, "127.0.0.9"), Way::Wire { mac: MacAddr::default(), mtu: 65_535 });
        let group = Way::Wire { mac: MacAddr([1, 0, 0x5e, 1, 2, 3]), mtu: 65_535 };
        assert_eq!(way(&mut paths, "239.129.2.3"), group);
        assert_eq!(paths.known, 3);
        assert_eq!(way(&mut paths, "127.0.0.1"), Way::Home);
        assert_eq!(paths.known, 3);
        paths.note(&NetlinkEvent::Routes, &own);
        assert_eq!(paths.known, 0);
    }

    #[test]
    fn a_neighbour_is_followed_and_nudged_when_stale() {
        let (mut paths, mut netlink, own) = (Paths::new(), RequestSocket::open().unwrap(), own());
        let flow = flow("127.0.0.1", "127.0.0.9");
        let mut way = |paths: &mut Paths| paths.way(&flow, &own, &mut netlink);
        let _ = way(&mut paths);
        let mac = MacAddr([2; 6]);
        let known = NeighbourEntry {
            ifindex: own.ifindex,
            ip: flow.dst,
            mac: Some(mac.0),
            resolved: true,
            stale: false,
            incomplete: false,
            failed: false,
        };
        let wire = Way::Wire { mac, mtu: 65_535 };
        paths.note(&NetlinkEvent::Neighbour(known), &own);
        assert_eq!(way(&mut paths), wire);
        paths.note(&NetlinkEvent::Neighbour(NeighbourEntry { stale: true, ..known }), &own);
        assert_eq!([way(&mut paths), way(&mut paths)], [Way::Kernel, wire]);
        let gone = NetlinkEvent::Neighbour(NeighbourEntry { mac: None, resolved: false, failed: true, ..known });
        assert_eq!(paths.note(&gone, &own), 0, "nothing waited");
        assert_eq!([way(&mut paths), way(&mut paths)], [Way::Kernel, Way::Kernel]);
        assert_eq!((paths.note(&gone, &own), paths.note(&gone, &own)), (2, 0));
        paths.note(&NetlinkEvent::Neighbour(NeighbourEntry { ifindex: own.ifindex + 1, ..known }), &own);
        assert_eq!(way(&mut paths), Way::Kernel, "on another interface");
        paths.note(&NetlinkEvent::Neighbour(known), &own);
        assert_eq!(way(&mut paths), wire);
    }

    #[test]
    fn more_destinations_than_places_are_served() {
        let (mut paths, mut netlink, own) = (Paths::new(), RequestSocket::open().unwrap(), own());
        for i in 0..2 * PLACES as u32 {
            let dst = IpAddr::from((0xef00_0000 + i).to_be_bytes());
            let way = paths.way(&Flow { dst, ..flow("127.0.0.1", "0.0.0.0") }, &own, &mut netlink);
            assert!(matches!(way, Way::Wire { .. }));
            assert!(paths.known <= KNOWN_MAX);
        }
    }
}
