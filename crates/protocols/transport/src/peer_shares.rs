//! Shares of the peers in the records of loss recovery: one peer cannot take them all.
//!
//! A peer that sends packets behind a gap and never fills it keeps records for as long as it likes, over as many queue pairs as
//! programs connect to it. So a peer gets another record only while it has fewer than are left (the dynamic threshold by which
//! switches share their buffers): one peer has at most half of them, n peers have n/(n+1) together, and some are left for the
//! next. The same holds for the bytes by which records grow.
//!
//! Peers are distinguished by address. Addresses of one IPv6 network (/64) count as one peer, because one host may use them all;
//! link-local ones do not, because all hosts of a link have the same network.

use burst_base::heap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Arrivals,
    Receives,
    Losses,
}

const KINDS: usize = 3;

/// What one peer has.
#[derive(Clone, Copy, Debug)]
struct PeerShare {
    peer: IpAddr,
    records: [u32; KINDS],
    /// Bytes by which records have grown for it since it had none.
    grown: usize,
}

/// The peers that have records. Recoveries at one time are few, so they are searched one by one.
#[derive(Debug, Default)]
pub(crate) struct PeerShares {
    list: Vec<PeerShare>,
}

/// Network mask of IPv6 addresses that count as one peer.
const NETWORK: u128 = !0 << 64;

/// The address by which a peer is known here.
fn known_as(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => Ipv6Addr::from(u128::from(ip) & NETWORK).into(),
        _ => peer,
    }
}

impl PeerShares {
    fn find(&mut self, peer: IpAddr) -> Option<&mut PeerShare> {
        let peer = known_as(peer);
        self.list.iter_mut().find(|share| share.peer == peer)
    }
    /// Lends a record to `peer` if it has fewer of this kind than are `left`. False if it gets none, or there is no memory.
    pub(crate) fn lend(&mut self, kind: RecordKind, peer: IpAddr, left: usize) -> bool {
        if self.find(peer).is_none() {
            let entries = self.list.len() + 1;
            if heap::reserve(&mut self.list, entries.next_power_of_two()).is_err() {
                return false;
            }
            self.list.push(PeerShare { peer: known_as(peer), records: [0; KINDS], grown: 0 });
        }
        let Some(share) = self.find(peer) else { return false };
        let lent = (share.records[kind as usize] as usize) < left;
        share.records[kind as usize] += u32::from(lent);
        self.forget_without_records();
        lent
    }
    /// A record that was lent to `peer` is given back.
    pub(crate) fn take_back(&mut self, kind: RecordKind, peer: IpAddr) {
        let share = self.find(peer);
        debug_assert!(
            share.as_ref().is_some_and(|share| share.records[kind as usize] > 0),
            "a record that was not lent"
        );
        if let Some(share) = share {
            share.records[kind as usize] = share.records[kind as usize].saturating_sub(1);
        }
        self.forget_without_records();
    }
    fn forget_without_records(&mut self) {
        self.list.retain(|share| share.records != [0; KINDS]);
    }
    /// Bytes by which records of `peer` may grow while `left` are left for all.
    pub(crate) fn growth(&mut self, peer: IpAddr, left: usize) -> usize {
        left.saturating_sub(self.find(peer).map_or(0, |share| share.grown))
    }
    /// A record of `peer` has grown.
    pub(crate) fn grew(&mut self, peer: IpAddr, bytes: usize) {
        if let Some(share) = self.find(peer) {
            share.grown += bytes;
        }
    }
}

/// The peer of a record that was never lent.
pub(crate) const NO_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// Lends as many of `left` records as `peer` gets, and returns how many.
    fn lend_all(shares: &mut PeerShares, peer: IpAddr, left: &mut usize) -> usize {
        let before = *left;
        while shares.lend(RecordKind::Arrivals, peer, *left) {
            *left -= 1;
        }
        before - *left
    }

    #[test]
    fn some_records_are_left_beside_any_number_of_greedy_peers() {
        let (mut shares, mut left) = (PeerShares::default(), 256);
        assert_eq!(lend_all(&mut shares, peer(1), &mut left), 128);
        assert_eq!(lend_all(&mut shares, peer(2), &mut left), 64);
        assert_eq!(lend_all(&mut shares, peer(1), &mut left), 0, "it has more than are left");
        // One that had half gets no more, and the records that it gives back are for others.
        (0..128).for_each(|_| shares.take_back(RecordKind::Arrivals, peer(1)));
        left += 128;
        assert_eq!(lend_all(&mut shares, peer(3), &mut left), 96);
        assert_eq!(lend_all(&mut shares, peer(2), &mut left), 16);
        assert_eq!(left, 80);
        assert_eq!(shares.list.len(), 2, "a peer without records is forgotten");
    }

    #[test]
    fn kinds_and_peers_are_counted_apart_and_networks_together() {
        let mut shares = PeerShares::default();
        assert!(shares.lend(RecordKind::Losses, peer(1), 1) && !shares.lend(RecordKind::Losses, peer(1), 1));
        assert!(shares.lend(RecordKind::Receives, peer(1), 1) && shares.lend(RecordKind::Losses, peer(2), 1));
        let v6 = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(shares.lend(RecordKind::Losses, v6("2001:db8::1"), 1));
        assert!(!shares.lend(RecordKind::Losses, v6("2001:db8::2"), 1), "the same network");
        assert!(shares.lend(RecordKind::Losses, v6("2001:db8:0:1::1"), 1), "another network");
        assert!(shares.lend(RecordKind::Losses, v6("fe80::1"), 1) && shares.lend(RecordKind::Losses, v6("fe80::2"), 1));
    }

    #[test]
    fn growth_is_shared_in_the_same_way() {
        let mut shares = PeerShares::default();
        assert!(shares.lend(RecordKind::Arrivals, peer(1), 9));
        shares.grew(peer(1), 3000);
        assert_eq!((shares.growth(peer(1), 5000), shares.growth(peer(2), 5000)), (2000, 5000));
        shares.take_back(RecordKind::Arrivals, peer(1));
        assert_eq!(shares.growth(peer(1), 5000), 5000);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn without_memory_nothing_is_lent() {
        let mut shares = PeerShares::default();
        burst_base::fault::arm(0);
        assert!(!shares.lend(RecordKind::Arrivals, peer(1), 9) && burst_base::fault::disarm());
        assert!(shares.lend(RecordKind::Arrivals, peer(1), 9));
    }
}
