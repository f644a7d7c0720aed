//! Caches the route of each destination: the MAC address of its next hop, as the kernel knows it.
//!
//! A new destination is looked up once (route, then neighbour); from then on the cache follows the kernel's events: an event
//! about a neighbour changes that neighbour's entries, and any change of routes, links or addresses empties the cache. A packet
//! to an unresolved next hop goes through the kernel ([`super::kernel_send`]), which resolves the next hop, queues the packet and
//! sends it. The next packet after the kernel has called a neighbour stale takes the same route, so that the kernel confirms the
//! neighbour as it does for its own traffic.
//!
//! The table has a fixed size; when it is three quarters full, all entries are removed.

use super::LocalLink;
use burst_base::Reason;
use burst_frame::Flow;
use burst_netif::netlink::{KernelRoute, NeighbourEntry, NetlinkEvent, RequestSocket};
use burst_wire::MacAddr;
use std::net::IpAddr;

/// Slots of the table, a power of two.
const SLOTS: usize = 4096;
/// Most entries, so that a search always meets an empty slot.
const ENTRIES_MAX: usize = SLOTS * 3 / 4;
/// Most unresolved next hops for which packets are counted.
const WAITING_MAX: usize = 64;

/// How a packet is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// The destination is the port's own address: the port delivers the packet itself.
    Local,
    /// The packet is sent on the link to the MAC address `mac`; the IP packet may have `mtu` bytes.
    Wire { mac: MacAddr, mtu: u32 },
    /// The packet is sent through the kernel, which resolves or confirms the next hop.
    Kernel,
    /// The packet is dropped.
    Drop(Reason),
}

/// An entry: the route from `src` to `dst`.
#[derive(Clone, Copy)]
struct CachedRoute {
    src: IpAddr,
    dst: IpAddr,
    hop: IpAddr,
    mtu: u32,
    forwarding: Forwarding,
    /// The next packet goes through the kernel, so that the kernel confirms a stale neighbour.
    confirm: bool,
}

/// The cache: an open-addressing hash table.
pub struct RouteCache {
    slots: Vec<Option<CachedRoute>>,
    /// Number of entries.
    len: usize,
    /// Slot last used.
    last: usize,
    /// Unresolved next hops, and how many packets were sent through the kernel to each.
    waiting: Vec<(IpAddr, usize)>,
}

impl RouteCache {
    /// An empty cache.
    pub fn new() -> RouteCache {
        RouteCache { slots: vec![None; SLOTS], len: 0, last: 0, waiting: Vec::with_capacity(WAITING_MAX) }
    }
    /// How the next packet of `flow` is forwarded. A packet through the kernel is counted, and confirms a stale neighbour.
    #[inline]
    pub fn forward(&mut self, flow: &Flow, own: &LocalLink, netlink: &mut RequestSocket) -> Forwarding {
        let forwarding = self.peek(flow, own, netlink);
        if let Some(route) = &mut self.slots[self.last] {
            route.confirm = false;
            if route.forwarding == Forwarding::Kernel {
                let hop = route.hop;
                self.count_waiting(hop);
            }
        }
        forwarding
    }
    /// [`RouteCache::forward`] without counting a packet.
    #[inline]
    pub fn peek(&mut self, flow: &Flow, own: &LocalLink, netlink: &mut RequestSocket) -> Forwarding {
        let is = |route: &Option<CachedRoute>| route.is_some_and(|r| r.dst == flow.dst && r.src == flow.src);
        if !is(&self.slots[self.last]) {
            self.last = self.find(flow, own, netlink);
        }
        match &self.slots[self.last] {
            Some(route) if route.confirm => Forwarding::Kernel,
            Some(route) => route.forwarding,
            None => Forwarding::Drop(Reason::NoRoute),
        }
    }
    /// The slot of `flow`; a new flow is looked up in the kernel's tables.
    fn find(&mut self, flow: &Flow, own: &LocalLink, netlink: &mut RequestSocket) -> usize {
        let mut at = hash(&flow.src).wrapping_add(hash(&flow.dst)) & (SLOTS - 1);
        debug_assert!(self.len <= ENTRIES_MAX && at < SLOTS);
        while let Some(route) = &self.slots[at] {
            if route.dst == flow.dst && route.src == flow.src {
                return at;
            }
            at = (at + 1) & (SLOTS - 1);
        }
        if self.len == ENTRIES_MAX {
            self.clear();
        }
        self.len += 1;
        debug_assert!(self.len <= ENTRIES_MAX);
        debug_assert!(self.slots[at].is_none(), "a route is replaced");
        self.slots[at] = Some(look_up(flow, own, netlink));
        at
    }
    /// Removes all entries.
    pub fn clear(&mut self) {
        self.slots.fill(None);
        self.len = 0;
    }
    /// Applies an event of the kernel. Returns how many packets were lost because their next hop has failed.
    pub fn apply(&mut self, event: &NetlinkEvent, own: &LocalLink) -> usize {
        match event {
            NetlinkEvent::Neighbour(neighbour) if neighbour.ifindex == own.ifindex => return self.neighbour(neighbour),
            NetlinkEvent::Neighbour(_) => {}
            NetlinkEvent::Routes | NetlinkEvent::Interfaces | NetlinkEvent::Everything => self.clear(),
        }
        0
    }
    /// Applies a neighbour's new state to its entries; returns how many packets to it were lost.
    fn neighbour(&mut self, neighbour: &NeighbourEntry) -> usize {
        debug_assert!(!neighbour.failed || neighbour.mac.is_none(), "a failed neighbour has no address");
        for route in self.slots.iter_mut().flatten() {
            if route.hop == neighbour.ip && matches!(route.forwarding, Forwarding::Wire { .. } | Forwarding::Kernel) {
                route.forwarding = neighbour
                    .mac
                    .map_or(Forwarding::Kernel, |mac| Forwarding::Wire { mac: MacAddr(mac), mtu: route.mtu });
                route.confirm = neighbour.stale;
            }
        }
        let Some(at) = self.waiting.iter().position(|(hop, _)| *hop == neighbour.ip) else { return 0 };
        let (_, packets) = self.waiting.swap_remove(at);
        if neighbour.failed { packets } else { 0 }
    }
    /// Counts a packet that the kernel queues for `hop`.
    fn count_waiting(&mut self, hop: IpAddr) {
        match self.waiting.iter().position(|(ip, _)| *ip == hop) {
            Some(at) => self.waiting[at].1 += 1,
            None if self.waiting.len() < WAITING_MAX => self.waiting.push((hop, 1)),
            None => {}
        }
        debug_assert!(self.waiting.len() <= WAITING_MAX);
    }
}

/// Hash of an address (Fibonacci hashing).
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

/// Looks up the route of a flow in the kernel's tables.
fn look_up(flow: &Flow, own: &LocalLink, netlink: &mut RequestSocket) -> CachedRoute {
    let route =
        |forwarding, hop, mtu| CachedRoute { src: flow.src, dst: flow.dst, hop, mtu, forwarding, confirm: false };
    let direct = |forwarding| route(forwarding, flow.dst, own.mtu);
    if own.has(&flow.dst) {
        return direct(Forwarding::Local);
    }
    // A group of a family of which the interface has no address.
    if flow.src.is_unspecified() {
        return direct(Forwarding::Drop(Reason::NoRoute));
    }
    if let Some(mac) = multicast(&flow.dst) {
        return direct(Forwarding::Wire { mac, mtu: own.mtu });
    }
    match netlink.route(flow.src, flow.dst, own.ifindex) {
        KernelRoute::Via { ifindex, hop, mtu } if ifindex == own.ifindex => {
            let mtu = if mtu == 0 { own.mtu } else { mtu.min(own.mtu) };
            match netlink.neighbour(hop, ifindex) {
                Some(NeighbourEntry { mac: Some(mac), stale, .. }) => {
                    CachedRoute { confirm: stale, ..route(Forwarding::Wire { mac: MacAddr(mac), mtu }, hop, mtu) }
                }
                _ => route(Forwarding::Kernel, hop, mtu),
            }
        }
        // The destination is another port on the loopback interface.
        KernelRoute::Local if own.loopback => direct(Forwarding::Wire { mac: MacAddr::default(), mtu: own.mtu }),
        KernelRoute::Via { .. } | KernelRoute::Local | KernelRoute::None => direct(Forwarding::Drop(Reason::NoRoute)),
    }
}

/// The MAC address of a multicast group (RFC 1112 section 6.4, RFC 2464 section 7).
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

    fn own() -> LocalLink {
        let addrs = vec!["127.0.0.1".parse().unwrap()];
        let ifindex = burst_netif::iface::find("lo").unwrap().index;
        LocalLink {
            addrs,
            ifindex,
            loopback: true,
            mtu: 65_535,
            mac: MacAddr::default(),
            name: "lo".into(),
            groups: Vec::new(),
            any_group: false,
            encapsulation: crate::Encapsulation::ROCE,
        }
    }

    #[test]
    fn destinations_are_looked_up_once_until_routes_change() {
        let (mut cache, mut netlink, own) = (RouteCache::new(), RequestSocket::open().unwrap(), own());
        let mut forward =
            |cache: &mut RouteCache, dst: &str| cache.forward(&flow("127.0.0.1", dst), &own, &mut netlink);
        assert_eq!(forward(&mut cache, "127.0.0.1"), Forwarding::Local);
        assert_eq!(forward(&mut cache, "127.0.0.9"), Forwarding::Wire { mac: MacAddr::default(), mtu: 65_535 });
        let group = Forwarding::Wire { mac: MacAddr([1, 0, 0x5e, 1, 2, 3]), mtu: 65_535 };
        assert_eq!(forward(&mut cache, "239.129.2.3"), group);
        assert_eq!(cache.len, 3);
        assert_eq!(forward(&mut cache, "127.0.0.1"), Forwarding::Local);
        assert_eq!(cache.len, 3);
        cache.apply(&NetlinkEvent::Routes, &own);
        assert_eq!(cache.len, 0);
    }

    #[test]
    fn a_neighbours_events_are_applied_and_a_stale_one_is_confirmed() {
        let (mut cache, mut netlink, own) = (RouteCache::new(), RequestSocket::open().unwrap(), own());
        let flow = flow("127.0.0.1", "127.0.0.9");
        let mut forward = |cache: &mut RouteCache| cache.forward(&flow, &own, &mut netlink);
        let _ = forward(&mut cache);
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
        let wire = Forwarding::Wire { mac, mtu: 65_535 };
        cache.apply(&NetlinkEvent::Neighbour(known), &own);
        assert_eq!(forward(&mut cache), wire);
        cache.apply(&NetlinkEvent::Neighbour(NeighbourEntry { stale: true, ..known }), &own);
        assert_eq!([forward(&mut cache), forward(&mut cache)], [Forwarding::Kernel, wire]);
        let gone = NetlinkEvent::Neighbour(NeighbourEntry { mac: None, resolved: false, failed: true, ..known });
        assert_eq!(cache.apply(&gone, &own), 0, "no packet was sent through the kernel");
        assert_eq!([forward(&mut cache), forward(&mut cache)], [Forwarding::Kernel, Forwarding::Kernel]);
        assert_eq!((cache.apply(&gone, &own), cache.apply(&gone, &own)), (2, 0));
        cache.apply(&NetlinkEvent::Neighbour(NeighbourEntry { ifindex: own.ifindex + 1, ..known }), &own);
        assert_eq!(forward(&mut cache), Forwarding::Kernel, "on another interface");
        cache.apply(&NetlinkEvent::Neighbour(known), &own);
        assert_eq!(forward(&mut cache), wire);
    }

    #[test]
    fn more_destinations_than_slots_are_served() {
        let (mut cache, mut netlink, own) = (RouteCache::new(), RequestSocket::open().unwrap(), own());
        for i in 0..2 * SLOTS as u32 {
            let dst = IpAddr::from((0xef00_0000 + i).to_be_bytes());
            let forwarding = cache.forward(&Flow { dst, ..flow("127.0.0.1", "0.0.0.0") }, &own, &mut netlink);
            assert!(matches!(forwarding, Forwarding::Wire { .. }));
            assert!(cache.len <= ENTRIES_MAX);
        }
    }
}
