//! Where the links of a worker are, and which peer serves an address: events name a peer, a link or a token, and neither they nor
//! new connections may cost a look at each peer or link.

use crate::config::{Prefix, masked};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Peers by what they serve and by token, and links by peer and number.
#[derive(Debug, Default)]
pub(super) struct PeerIndex {
    /// Index of each link, by peer and number.
    links: BTreeMap<(usize, u32), usize>,
    /// Indices of links that have ended.
    free: Vec<usize>,
    tokens: HashMap<[u8; 16], usize>,
    /// Peers by each prefix that they serve.
    served: HashMap<Prefix, BTreeSet<usize>>,
    /// How many of these prefixes have each length, of IPv4 and IPv6.
    lengths: [BTreeMap<u8, usize>; 2],
    /// Prefixes that were looked for.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl PeerIndex {
    /// The index of a peer's link.
    pub(super) fn link(&self, peer: usize, number: u32) -> Option<usize> {
        self.links.get(&(peer, number)).copied()
    }

    /// The indices of a peer's links.
    pub(super) fn links_of(&self, peer: usize) -> impl Iterator<Item = usize> {
        self.links.range((peer, 0)..=(peer, u32::MAX)).map(|(_, at)| *at)
    }

    /// An index for a new link; `len`: how many there are, free ones included.
    pub(super) fn add_link(&mut self, peer: usize, number: u32, len: usize) -> usize {
        let at = self.free.pop().unwrap_or(len);
        let before = self.links.insert((peer, number), at);
        debug_assert!(before.is_none(), "a link of a peer twice");
        at
    }

    /// Takes out a link of a peer, if there is one; its index is free.
    pub(super) fn take_link_of(&mut self, peer: usize) -> Option<usize> {
        let key = self.links.range((peer, 0)..=(peer, u32::MAX)).next().map(|(key, _)| *key)?;
        let at = self.links.remove(&key);
        self.free.extend(at);
        at
    }

    /// Adds a peer.
    pub(super) fn add_peer(&mut self, peer: usize, token: [u8; 16], serves: &[Prefix]) {
        self.tokens.insert(token, peer);
        for prefix in serves {
            let peers = self.served.entry(*prefix).or_default();
            if peers.is_empty() {
                *self.lengths[usize::from(prefix.0.is_ipv6())].entry(prefix.1).or_default() += 1;
            }
            peers.insert(peer);
        }
    }

    /// Forgets a peer, which was added so.
    pub(super) fn remove_peer(&mut self, peer: usize, token: [u8; 16], serves: &[Prefix]) {
        self.tokens.remove(&token);
        self.remove_serves(peer, serves);
    }

    /// A peer serves these prefixes no more.
    pub(super) fn remove_serves(&mut self, peer: usize, serves: &[Prefix]) {
        for prefix in serves {
            let Some(peers) = self.served.get_mut(prefix) else { continue };
            peers.remove(&peer);
            if !peers.is_empty() {
                continue;
            }
            self.served.remove(prefix);
            let lengths = &mut self.lengths[usize::from(prefix.0.is_ipv6())];
            if let Some(count) = lengths.get_mut(&prefix.1) {
                *count -= 1;
                if *count == 0 {
                    lengths.remove(&prefix.1);
                }
            }
        }
    }

    /// The peer whose requests carry a token.
    pub(super) fn peer_of(&self, token: &[u8; 16]) -> Option<usize> {
        self.tokens.get(token).copied()
    }

    /// The peer with the longest prefix for an address; of several the last one. Looks once for each length in use.
    pub(super) fn serving(&self, ip: IpAddr) -> Option<usize> {
        let lengths = self.lengths[usize::from(ip.is_ipv6())].keys().rev();
        lengths.into_iter().find_map(|bits| {
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            self.served.get(&(masked(ip, *bits), *bits))?.last().copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(number).into()
    }

    /// Each peer serves its own addresses; all of them, and one more, are looked for.
    #[test]
    fn finding_the_peer_of_an_address_costs_the_same_with_many_peers() {
        for peers in [64u32, 256] {
            let mut index = PeerIndex::default();
            let serves = |peer: u32| vec![(ip(peer << 16), 16), (ip(peer << 16 | 7), 32), (ip(0), 0)];
            (0..peers).for_each(|peer| index.add_peer(peer as usize, [peer as u8; 16], &serves(peer + 1)));
            for peer in 0..peers {
                assert_eq!(index.serving(ip((peer + 1) << 16 | 9)), Some(peer as usize));
                assert_eq!(index.serving(ip((peer + 1) << 16 | 7)), Some(peer as usize));
            }
            assert_eq!(index.serving(ip(u32::MAX)), Some(peers as usize - 1), "all serve it: the last one");
            let steps = index.looks.take();
            assert!(steps <= 3 * (2 * peers as usize + 1), "{steps} looks of {peers}");
            (0..peers).for_each(|peer| index.remove_peer(peer as usize, [peer as u8; 16], &serves(peer + 1)));
            assert_eq!((index.serving(ip(1 << 16)), index.lengths[0].len(), index.served.len()), (None, 0, 0));
        }
    }

    #[test]
    fn the_longest_prefix_and_a_prefix_said_twice() {
        let mut index = PeerIndex::default();
        let (wide, narrow) = ((ip(10 << 24), 8), (ip(10 << 24 | 1 << 16), 16));
        index.add_peer(0, [0; 16], &[narrow, narrow]);
        index.add_peer(1, [1; 16], &[wide]);
        assert_eq!([1 << 16, 2 << 16].map(|low| index.serving(ip(10 << 24 | low))), [Some(0), Some(1)]);
        assert_eq!(index.serving("::1".parse().expect("an address")), None);
        index.remove_peer(0, [0; 16], &[narrow, narrow]);
        assert_eq!((index.serving(ip(10 << 24 | 1 << 16)), index.peer_of(&[0; 16])), (Some(1), None));
    }

    #[test]
    fn links_are_found_by_peer_and_number_and_their_places_used_again() {
        let mut index = PeerIndex::default();
        assert_eq!([index.add_link(3, 0, 0), index.add_link(3, 1, 1), index.add_link(4, 0, 2)], [0, 1, 2]);
        assert_eq!((index.link(3, 1), index.link(3, 2), index.links_of(3).count()), (Some(1), None, 2));
        assert_eq!([index.take_link_of(3), index.take_link_of(3), index.take_link_of(3)], [Some(0), Some(1), None]);
        assert_eq!((index.add_link(5, 0, 3), index.links_of(4).collect::<Vec<_>>()), (1, vec![2]));
    }
}
