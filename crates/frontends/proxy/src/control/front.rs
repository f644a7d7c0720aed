//! Channels that others have opened and on which no peer has introduced itself: how many there may be, and for how long.
//!
//! Anybody who reaches the proxy's port may open one. So a channel ends that has no introduction [`HANDSHAKE`] after it was
//! accepted or dialled, however many bytes come meanwhile. A source has at most [`SOURCE_MAX`] of them: a further one takes the
//! place of a random one of the same source, so that who opens them again and again keeps no other program of that host, a
//! restarted proxy say, out for long. If all [`UNKNOWN_MAX`] places are in use, the source that has the most gives one up. The
//! addresses of peers have places of their own, which no other source can take.

use burst_ledger::OpenPool;
use std::net::IpAddr;
use std::time::Duration;

/// Time in which a peer introduces itself, from the connection on.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Channels without an introduction of sources that are no peer's address.
const UNKNOWN_MAX: usize = OpenPool::ProxyChannel.places();
/// Channels without an introduction of one source.
const SOURCE_MAX: usize = OpenPool::ProxyChannel.of_one();

/// Who has opened a channel, as far as shares go: an IPv4 address or the first 64 bits of an IPv6 address.
pub(super) fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The channel that ends so that there is room for one more of `source`; `None`: there is room. `unknown` has the channels
/// without an introduction, with their sources. `random` is any number.
pub(super) fn displaced(
    unknown: &[(usize, IpAddr)],
    source: IpAddr,
    is_peers: impl Fn(IpAddr) -> bool,
    random: u64,
) -> Option<usize> {
    let one_of = |source: IpAddr| {
        let own: Vec<usize> = unknown.iter().filter(|(_, other)| *other == source).map(|(at, _)| *at).collect();
        own.get(random as usize % own.len().max(1)).copied()
    };
    let count = |source: IpAddr| unknown.iter().filter(|(_, other)| *other == source).count();
    if count(source) >= SOURCE_MAX {
        return one_of(source);
    }
    let others = || unknown.iter().map(|(_, source)| *source).filter(|source| !is_peers(*source));
    if is_peers(source) || others().count() < UNKNOWN_MAX {
        return None;
    }
    others().max_by_key(|source| count(*source)).and_then(one_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// Opens channels one after the other; returns those that are left.
    fn opened(sources: impl Iterator<Item = IpAddr>, is_peers: impl Fn(IpAddr) -> bool + Copy) -> Vec<(usize, IpAddr)> {
        let mut unknown = Vec::new();
        for (at, source) in sources.enumerate() {
            if let Some(gone) = displaced(&unknown, source, is_peers, at as u64 * 7919) {
                unknown.retain(|(other, _)| *other != gone);
            }
            unknown.push((at, source));
        }
        unknown
    }

    #[test]
    fn a_source_has_its_share_and_leaves_the_others_theirs() {
        let left = opened((0..1000).map(|n| if n % 100 == 99 { ip(2) } else { ip(1) }), |_| false);
        let count = |source| left.iter().filter(|(_, other)| *other == source).count();
        let of_one = OpenPool::ProxyChannel.of_one();
        assert_eq!((count(ip(1)), count(ip(2))), (of_one, of_one));
    }

    #[test]
    fn a_channel_among_those_of_an_attacker_on_its_host_survives_some_of_them() {
        let mut survived = 0;
        for seed in 0..1000 {
            let mut unknown: Vec<(usize, IpAddr)> = (0..SOURCE_MAX).map(|at| (at, ip(1))).collect();
            for n in 0..4 {
                let gone = displaced(&unknown, ip(1), |_| false, seed * 31 + n * 17).expect("the share is used up");
                unknown.retain(|(at, _)| *at != gone);
                unknown.push((100 + n as usize, ip(1)));
            }
            survived += usize::from(unknown.iter().any(|(at, _)| *at == 100));
        }
        assert!(survived > 400, "{survived} of 1000");
    }

    #[test]
    fn many_sources_do_not_take_the_places_of_peers_and_the_largest_gives_way() {
        let is_peers = |source| source == ip(250);
        let others = (1..=9).flat_map(|n| std::iter::repeat_n(ip(n), SOURCE_MAX));
        let left = opened(others.chain([ip(250), ip(10)]), is_peers);
        assert_eq!(left.iter().filter(|(_, source)| !is_peers(*source)).count(), UNKNOWN_MAX);
        assert!(left.iter().any(|(_, source)| is_peers(*source)), "a peer finds room");
        assert!(left.iter().any(|(_, source)| *source == ip(10)), "and so does a new source");
        for n in 1..=9 {
            assert!(left.iter().any(|(_, source)| *source == ip(n)), "no source loses all");
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let source = |text: &str| source_of(text.parse().expect("an address"));
        assert_eq!(source("fd00:1:2:3:4::1"), source("fd00:1:2:3:ffff::2"));
        assert_ne!(source("fd00:1:2:3::1"), source("fd00:1:2:4::1"));
        assert_eq!(source("::ffff:10.0.0.1"), ip(1));
    }
}
