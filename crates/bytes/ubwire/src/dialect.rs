//! The dialect table: what differs between the encoders of Unified Bus packets. Everything else is common to all.
//!
//! The specification of the bus is not public. [`Dialect::BURST`] is what Burst sends and accepts. [`Dialect::OPENURMA`] is
//! the encoder of OpenURMA's published hardware model, whose recorded packets are the golden tests of this crate. Burst's
//! dialect uses bytes that OpenURMA leaves zero: each packet of a message says where its payload belongs, so that no packet
//! waits for another one before it is placed.

/// How packets travel below the NTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UbEncapsulation {
    /// UDP with this destination port, and a CRC-32 behind the packet ([`crate::encap`]).
    Udp(u16),
    /// Ethernet with this EtherType, no checksum of its own.
    Ethernet(u16),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Name in logs and tests.
    pub name: &'static str,
    /// What carries the packets.
    pub encapsulation: UbEncapsulation,
    /// Whether only transport version 0 is accepted.
    pub version_zero: bool,
    /// TVETAH follows whenever TV_EN is set. Otherwise only behind a MAETAH.
    pub token_with_send: bool,
    /// BTAH bytes 6-7, 11-12 and 13-15 are sequence context, order number and payload offset.
    pub placement: bool,
    /// Immediate data (8 bytes) are on the wire, behind the operands.
    pub immediate: bool,
    /// CAS carries two operands (compare, swap). Otherwise one.
    pub cas_operands: u8,
    /// The payload of a WRITE is as long as MAETAH says and zeros follow. Otherwise the payload is the rest of the packet.
    pub padded: bool,
}

impl Dialect {
    /// What Burst sends and accepts.
    pub const BURST: Dialect = Dialect {
        name: "burst",
        encapsulation: UbEncapsulation::Udp(UB_UDP_PORT),
        version_zero: true,
        token_with_send: true,
        placement: true,
        immediate: true,
        cas_operands: 2,
        padded: false,
    };
    /// OpenURMA's encoder: EtherType 0x88B5 (IEEE 802 local experimental 1), no payload offsets, no immediate data.
    pub const OPENURMA: Dialect = Dialect {
        name: "openurma",
        encapsulation: UbEncapsulation::Ethernet(0x88b5),
        version_zero: false,
        token_with_send: false,
        placement: false,
        immediate: false,
        cas_operands: 1,
        padded: true,
    };
    /// All rows.
    pub const ALL: [Dialect; 2] = [Dialect::BURST, Dialect::OPENURMA];
}

/// UDP destination port of the bus: the one that the public network models of the Unified Bus use over IP.
pub const UB_UDP_PORT: u16 = 4792;
