//! Ethernet II and 802.1Q.

use crate::bytes::{array, be16, put};

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// Whether it is a group address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

/// Protocol of the payload of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// 802.1Q tag.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
}

/// Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ethernet {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// Protocol of the payload.
    pub ethertype: EtherType,
}

impl Ethernet {
    /// Length in bytes.
    pub const LEN: usize = 14;
    /// Reads the first [`Ethernet::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Ethernet> {
        let b = bytes.first_chunk::<{ Ethernet::LEN }>()?;
        Some(Ethernet { dst: MacAddr(array(b, 0)), src: MacAddr(array(b, 6)), ethertype: EtherType(be16(b, 12)) })
    }
    /// Writes the first [`Ethernet::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.dst.0);
        put(out, 6, &self.src.0);
        put(out, 12, &self.ethertype.0.to_be_bytes());
    }
}

/// 802.1Q tag: the bytes after type 0x8100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Vlan {
    /// Priority, 0..=7.
    pub priority: u8,
    /// Drop eligible.
    pub drop_eligible: bool,
    /// VLAN id, 12 bits.
    pub id: u16,
    /// Protocol of the payload.
    pub ethertype: EtherType,
}

impl Vlan {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// Reads the first [`Vlan::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Vlan> {
        let b = bytes.first_chunk::<{ Vlan::LEN }>()?;
        let tci = be16(b, 0);
        Some(Vlan {
            priority: (tci >> 13) as u8,
            drop_eligible: tci & 0x1000 != 0,
            id: tci & 0x0fff,
            ethertype: EtherType(be16(b, 2)),
        })
    }
    /// Writes the first [`Vlan::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let tci = u16::from(self.priority & 7) << 13 | u16::from(self.drop_eligible) << 12 | self.id & 0x0fff;
        put(out, 0, &tci.to_be_bytes());
        put(out, 2, &self.ethertype.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_address_has_the_lowest_bit_of_its_first_byte() {
        let first = |byte| MacAddr([byte, 1, 1, 1, 1, 1]);
        assert!(MacAddr::BROADCAST.is_multicast() && first(0x01).is_multicast() && first(0x33).is_multicast());
        // The next bit is that of addresses administered locally.
        assert!(!first(0x00).is_multicast() && !first(0x02).is_multicast() && !first(0xfe).is_multicast());
    }
}
