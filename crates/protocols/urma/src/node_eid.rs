//! The entity id of a node: its IP address.
//!
//! The network header carries 24 bits of an address (CNA), but a packet also has the addresses of its IP header, and peers are
//! distinguished by those. So two peers may have the same CNA: neither takes anything from the other, and a program that imports
//! from an invented address changes nothing for those that import from a true one which ends alike.

use burst_ubwire::Cna;
use std::fmt;

/// Entity id (EID) of a node: its IPv6 address, or its IPv4 address mapped into IPv6, as two words in the address's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeEid {
    high: u64,
    low: u64,
}

impl NodeEid {
    /// The unspecified address, which no node has. It is the first one in order.
    pub const UNSPECIFIED: NodeEid = NodeEid { high: 0, low: 0 };

    /// The id with these octets.
    pub const fn new(octets: [u8; 16]) -> NodeEid {
        let all = u128::from_be_bytes(octets);
        NodeEid { high: (all >> 64) as u64, low: all as u64 }
    }
    /// The id that is this number: of nodes in a network without IP addresses.
    pub const fn numbered(number: u32) -> NodeEid {
        NodeEid { high: 0, low: number as u64 }
    }
    /// Its octets, as in an IPv6 address.
    pub const fn octets(self) -> [u8; 16] {
        ((self.high as u128) << 64 | self.low as u128).to_be_bytes()
    }
    /// The node's compact network address: the last 24 bits.
    pub const fn cna(self) -> Cna {
        Cna::new(self.low as u32)
    }
    /// The id of these two words ([`NodeEid::words`]).
    pub const fn of_words([high, low]: [u64; 2]) -> NodeEid {
        NodeEid { high, low }
    }
    /// Its two words, in the address's order.
    pub const fn words(self) -> [u64; 2] {
        [self.high, self.low]
    }
    /// The next one in order; `None` behind the last one.
    pub fn next(self) -> Option<NodeEid> {
        u128::from_be_bytes(self.octets()).checked_add(1).map(|next| NodeEid::new(next.to_be_bytes()))
    }
}

impl fmt::Debug for NodeEid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&std::net::Ipv6Addr::from(self.octets()), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_out_as_it_went_in_and_ends_in_its_cna() {
        let octets: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
        let eid = NodeEid::new(octets);
        assert_eq!((eid.octets(), eid.cna()), (octets, Cna::new(0x0e_0f10)));
        assert_eq!(eid.words(), [0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10]);
        assert_eq!(NodeEid::of_words(eid.words()), eid);
        assert_eq!(NodeEid::numbered(7).octets()[12..], [0, 0, 0, 7]);
        let other = NodeEid::new(std::array::from_fn(|at| if at == 12 { 99 } else { octets[at] }));
        assert!(other != eid && other.cna() == eid.cna(), "two nodes with one CNA");
    }

    #[test]
    fn ids_are_in_the_order_of_addresses() {
        let of =
            |last: [u8; 2]| NodeEid::new([1, 0, 0, 0, 0, 0, 0, last[0], 255, 255, 255, 255, 255, 255, 255, last[1]]);
        assert_eq!(of([0, 255]).next(), Some(NodeEid::new([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])));
        assert!(of([0, 255]) < of([1, 0]) && NodeEid::UNSPECIFIED < of([0, 0]));
        assert_eq!(NodeEid::new([255; 16]).next(), None);
    }
}
