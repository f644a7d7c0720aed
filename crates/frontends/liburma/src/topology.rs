//! The map of the network that programs ask for before they use it ([`crate::ubagg`]): which addresses have a node, and by which
//! address of this machine each is reached.
//!
//! On the Unified Bus a fabric manager knows all hosts. An IP network has no such list, so the map has whatever may be meant: the
//! machine's own addresses, those that `BURST_URMA_TOPOLOGY` names, the neighbours that the kernel has heard of, and the
//! networks of the machine's addresses: of IPv4 with all addresses, of IPv6, whose networks cannot be listed, the first
//! [`LISTED_V6`]. Whether a host is there shows when something is sent to it.

use crate::eids::networks;
use burst_netif::netlink::RequestSocket;
use burst_port::lan::Prefix;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Names addresses and networks beside those that are found.
pub const TOPOLOGY_ENV: &str = "BURST_URMA_TOPOLOGY";
/// Addresses in the map at most: an IPv4 network with a prefix of 16 bits.
const PLACES_MAX: usize = 1 << 16;
/// Addresses of a large IPv6 network that are in the map: its first ones, which are those of networks numbered by hand.
const LISTED_V6: u128 = 255;
/// Bits of a host in a network of which all addresses are in the map.
const HOST_BITS_MAX: u32 = 16;

/// An address in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPlace {
    pub address: IpAddr,
    /// The address of this machine that reaches it, by its place in [`crate::eids::addresses`].
    pub source: u32,
}

/// The map as it is now; `own`, this machine's addresses, come first, in their order.
///
/// # Errors
/// A sentence: the environment names something that is no address.
pub fn places(own: &[IpAddr]) -> Result<Vec<MapPlace>, String> {
    let named = std::env::var(TOPOLOGY_ENV).unwrap_or_default();
    let mut map = MapBuilder::new(own);
    for prefix in named_prefixes(&named)? {
        // The route of one of its addresses is that of all.
        let source = map.source_by(kernel_source, prefix.ip);
        map.add_network(prefix, source);
    }
    let neighbours = RequestSocket::open().map(|mut socket| socket.neighbours()).unwrap_or_default();
    for neighbour in neighbours.iter().filter(|neighbour| !neighbour.failed && is_unicast(neighbour.ip)) {
        if map.is_full() {
            break;
        }
        let source = map.source_by(kernel_source, neighbour.ip);
        map.add(neighbour.ip, source);
    }
    for network in networks() {
        if let Some(source) = map.source_of_own(network.ip) {
            map.add_network(network, source);
        }
    }
    Ok(map.places)
}

struct MapBuilder<'a> {
    own: &'a [IpAddr],
    places: Vec<MapPlace>,
    known: HashSet<IpAddr>,
    by_own: HashMap<IpAddr, u32>,
}

impl<'a> MapBuilder<'a> {
    fn new(own: &'a [IpAddr]) -> MapBuilder<'a> {
        let by_own = own.iter().enumerate().map(|(i, address)| (*address, i as u32)).collect();
        let mut map = MapBuilder { own, places: Vec::new(), known: HashSet::new(), by_own };
        for (i, address) in own.iter().enumerate() {
            map.add(*address, i as u32);
        }
        map
    }
    fn is_full(&self) -> bool {
        self.places.len() >= PLACES_MAX
    }
    fn add(&mut self, address: IpAddr, source: u32) {
        if !self.is_full() && self.known.insert(address) {
            self.places.push(MapPlace { address, source });
        }
    }
    /// Adds the hosts of a network, if they can be listed.
    fn add_network(&mut self, network: Prefix, source: u32) {
        match network.ip {
            IpAddr::V4(ip) => {
                let host_bits = 32 - u32::from(network.len.min(32));
                if host_bits > HOST_BITS_MAX {
                    return;
                }
                let first = u32::from(ip) & !((1u64 << host_bits) - 1) as u32;
                let last = first + ((1u64 << host_bits) - 1) as u32;
                // The first and the last address are the network's and that of a broadcast (RFC 3021: not of two).
                let hosts = if host_bits > 1 { first + 1..=last - 1 } else { first..=last };
                hosts.for_each(|host| self.add(IpAddr::V4(Ipv4Addr::from(host)), source));
            }
            IpAddr::V6(ip) => {
                let host_bits = 128 - u32::from(network.len.min(128));
                let mask = if host_bits == 128 { u128::MAX } else { (1 << host_bits) - 1 };
                let first = u128::from(ip) & !mask;
                let count = if host_bits > HOST_BITS_MAX { LISTED_V6 } else { mask };
                // The first one is any router's (RFC 4291 section 2.6.1), but in networks of one and of two hosts (RFC 6164).
                let skipped = u128::from(host_bits > 1);
                (skipped..=count).for_each(|host| self.add(IpAddr::V6(Ipv6Addr::from(first + host)), source));
            }
        }
    }
    fn source_of_own(&self, address: IpAddr) -> Option<u32> {
        self.by_own.get(&address).copied()
    }
    /// The own address of the route to another one, else the first one of its family, else the first one.
    fn source_by(&self, route: impl Fn(IpAddr) -> Option<IpAddr>, to: IpAddr) -> u32 {
        let of_route = route(to).and_then(|source| self.source_of_own(source));
        let of_family = || self.own.iter().position(|own| own.is_ipv4() == to.is_ipv4()).map(|at| at as u32);
        of_route.or_else(of_family).unwrap_or(0)
    }
}

/// The kernel's choice of a source. Nothing is sent.
fn kernel_source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, burst_ubwire::UB_UDP_PORT)).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

fn is_unicast(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(is_link_local || is_broadcast || address.is_multicast() || address.is_unspecified())
}

/// Addresses, and networks with a prefix's length, that commas or spaces separate.
fn named_prefixes(text: &str) -> Result<Vec<Prefix>, String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let parse = |word: &str| {
        let whole = |ip: IpAddr| Prefix { ip, len: if ip.is_ipv4() { 32 } else { 128 } };
        let parsed = word.parse().map(whole).ok().or_else(|| word.parse().ok());
        parsed.ok_or_else(|| format!("{TOPOLOGY_ENV}: \"{word}\" is neither an address nor a network (ADDRESS/BITS)"))
    };
    words.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eids::addresses;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn listed(own: &[IpAddr], network: &str) -> Vec<String> {
        let mut map = MapBuilder::new(own);
        map.add_network(network.parse().unwrap(), 0);
        map.places[own.len()..].iter().map(|place| place.address.to_string()).collect()
    }

    #[test]
    fn networks_are_listed_with_their_hosts() {
        assert_eq!(listed(&[], "10.1.2.9/30"), ["10.1.2.9", "10.1.2.10"]);
        assert_eq!(listed(&[], "10.1.2.8/31"), ["10.1.2.8", "10.1.2.9"]);
        assert_eq!(listed(&[], "10.1.2.8/32"), ["10.1.2.8"]);
        assert_eq!(listed(&[ip("10.1.2.9")], "10.1.2.9/30"), ["10.1.2.10"], "its own is there");
        assert_eq!(listed(&[], "255.255.255.255/32"), ["255.255.255.255"]);
        assert_eq!(listed(&[], "10.1.0.0/16").len(), 65_534);
        assert_eq!(listed(&[], "10.0.0.0/15"), [""; 0], "too many");
        let large = listed(&[], "fd99::7/64");
        assert_eq!((large.len(), &large[0][..], &large[254][..]), (255, "fd99::1", "fd99::ff"));
        assert_eq!(listed(&[], "fd99::6/127"), ["fd99::6", "fd99::7"]);
        assert_eq!(listed(&[], "fd99::6/128"), ["fd99::6"]);
        assert_eq!(listed(&[], "fd99::/126"), ["fd99::1", "fd99::2", "fd99::3"]);
        assert_eq!(listed(&[], "fdff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124").len(), 15, "the last ones of all");
    }

    #[test]
    fn the_map_is_bounded() {
        let mut map = MapBuilder::new(&[]);
        for network in ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"] {
            map.add_network(network.parse().unwrap(), 0);
        }
        assert_eq!(map.places.len(), PLACES_MAX);
    }

    #[test]
    fn the_source_is_that_of_the_route_or_one_of_the_family() {
        let own = [ip("10.1.0.1"), ip("10.2.0.1"), ip("fd99::1")];
        let map = MapBuilder::new(&own);
        assert_eq!(map.source_by(|_| Some(ip("10.2.0.1")), ip("10.9.0.9")), 1);
        assert_eq!(map.source_by(|_| None, ip("10.9.0.9")), 0);
        assert_eq!(map.source_by(|_| Some(ip("192.0.2.1")), ip("fd88::9")), 2, "not one of the EIDs");
        assert_eq!(MapBuilder::new(&[]).source_by(|_| None, ip("fd88::9")), 0);
        assert_eq!(map.places.iter().map(|place| place.source).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(kernel_source(ip("127.0.0.9")), Some(ip("127.0.0.1")));
    }

    #[test]
    fn named_addresses_and_networks_are_read_or_refused_with_a_sentence() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let read = named_prefixes("10.7.0.9, fd77::9,10.8.0.0/24 ").unwrap();
        assert_eq!(read, [prefix("10.7.0.9/32"), prefix("fd77::9/128"), prefix("10.8.0.0/24")]);
        assert_eq!(named_prefixes("").unwrap(), []);
        for wrong in ["host", "10.7.0.9/33", "10.7.0", "10.7.0.9/x"] {
            let sentence = named_prefixes(wrong).unwrap_err();
            assert!(sentence.starts_with(&format!("BURST_URMA_TOPOLOGY: \"{wrong}\" is neither")), "{sentence}");
        }
    }

    #[test]
    fn the_map_has_this_machine_and_no_odd_neighbours() {
        let own = addresses();
        let map = places(&own).unwrap();
        let first: Vec<IpAddr> = map.iter().take(own.len()).map(|place| place.address).collect();
        assert_eq!(first, own);
        for odd in ["ff02::1", "224.0.0.1", "fe80::1", "255.255.255.255", "0.0.0.0", "::"] {
            assert!(!is_unicast(ip(odd)), "{odd}");
        }
    }
}
