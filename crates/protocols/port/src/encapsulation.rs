//! How a transport's packets are encapsulated in UDP: everything that a port must know of the transport whose packets it carries.
//!
//! RoCEv2 ([`Encapsulation::ROCE`]) and the Unified Bus ([`Encapsulation::UNIFIED_BUS`]) have one each, given when ports are
//! opened ([`crate::open_all`]). A port looks at these fields when it is opened, and once per flow or per received train; the
//! fields are plain values, so that the path per packet has no indirect call.
//!
//! | what | belongs to |
//! |---|---|
//! | addresses, next hops, trains, IP and UDP headers and checksums, loopback, multicast | any encapsulation |
//! | destination UDP port, by which received packets are classified | this description |
//! | checksum behind each packet: for RoCEv2 the ICRC (IBA 7.8.1, annex A17), for the Unified Bus a CRC-32 | this description |
//! | position of the word that names the worker of the destination | this description |

use crate::ether::{IcrcSeal, TRANSPORT_MIN};
use burst_base::Reason;
use std::net::IpAddr;

/// The checksum that a port seals and verifies at the end of each packet. In every case the packet ends with the four bytes of
/// the trailer, for which [`burst_frame::TxFrame::udp_payload_len`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketChecksum {
    /// The invariant CRC of RoCEv2, which covers addresses, ports and the IPv4 identification too.
    Icrc,
    /// A CRC-32 over the packet alone, with bytes 7 and 8 as ones, because switches change them (`docs/urma-packets.md`).
    Crc32,
    /// The trailer is sent as zero and not verified; for measurements between trusted hosts.
    None,
}

/// The encapsulation of one transport in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Destination UDP port. Packets to other UDP ports are dropped as `NotOurs`.
    pub udp_port: u16,
    /// The checksum at the end of each packet.
    pub checksum: PacketChecksum,
    /// Bytes of the shortest packet, trailer included.
    pub packet_min: usize,
    /// Offset in the UDP payload of the big-endian 32-bit word whose low four bits name the worker of the destination. In RoCEv2
    /// it is the BTH's second word, with the destination queue pair.
    pub worker_word_at: u32,
}

impl Encapsulation {
    /// RoCEv2: UDP port 4791 (IBA annex A17), ICRC, at least a BTH and an ICRC.
    pub const ROCE: Encapsulation = Encapsulation {
        udp_port: burst_wire::ROCE_PORT,
        checksum: PacketChecksum::Icrc,
        packet_min: TRANSPORT_MIN,
        worker_word_at: 4,
    };

    /// The Unified Bus in UDP (`docs/urma.md`): port 4792, CRC-32, at least a network header and the CRC. The first bytes of the
    /// RTPH, which name the channel, have no word for the worker; 12 is the word with the source channel.
    pub const UNIFIED_BUS: Encapsulation = Encapsulation {
        udp_port: burst_ubwire::UB_UDP_PORT,
        checksum: PacketChecksum::Crc32,
        packet_min: burst_ubwire::Nth::LEN + burst_ubwire::encap::UB_CHECKSUM_LEN,
        worker_word_at: 12,
    };

    /// Whether packets are sealed and verified.
    pub const fn is_sealed(&self) -> bool {
        !matches!(self.checksum, PacketChecksum::None)
    }

    /// The reason to drop a packet whose checksum is wrong.
    pub const fn bad_checksum(&self) -> Reason {
        if matches!(self.checksum, PacketChecksum::Crc32) { Reason::UbChecksum } else { Reason::BadIcrc }
    }

    /// The UDP source port of a flow: the flow's own, or the encapsulation's port where the flow leaves it open.
    pub const fn src_port(&self, flow_src_port: u16) -> u16 {
        if flow_src_port == 0 { self.udp_port } else { flow_src_port }
    }

    /// The seal for packets of a flow from `src_port`; `None` when one address is IPv4 and the other IPv6.
    pub fn seal(&self, src: IpAddr, dst: IpAddr, src_port: u16) -> Option<IcrcSeal> {
        self.reuse_seal(None, src, dst, src_port)
    }

    /// As [`Encapsulation::seal`]; returns `last` if it is of the same flow.
    #[inline]
    pub fn reuse_seal(&self, last: Option<IcrcSeal>, src: IpAddr, dst: IpAddr, src_port: u16) -> Option<IcrcSeal> {
        match self.checksum {
            PacketChecksum::Crc32 => Some(IcrcSeal::bare()),
            PacketChecksum::Icrc | PacketChecksum::None => IcrcSeal::reuse(last, src, dst, src_port, self.udp_port),
        }
    }
}

const _: () = assert!(Encapsulation::ROCE.worker_word_at as usize + 4 <= Encapsulation::ROCE.packet_min);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_bus_has_its_own_checksum() {
        let bus = Encapsulation::UNIFIED_BUS;
        assert_eq!((bus.udp_port, bus.packet_min, bus.bad_checksum()), (4792, 16, Reason::UbChecksum));
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        for len in [12, 60, 300, 4160] {
            let packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut seal = bus.seal(src, dst, 4792).expect("addresses are not covered");
            let sum = seal.begin(5, len + 4, &packet).finish();
            assert_eq!(sum, burst_ubwire::encap::checksum(&packet), "{len}");
        }
    }

    #[test]
    fn roce_is_described_as_in_annex_a17() {
        let roce = Encapsulation::ROCE;
        assert_eq!((roce.udp_port, roce.packet_min, roce.worker_word_at), (4791, 16, 4));
        assert!(roce.is_sealed() && !Encapsulation { checksum: PacketChecksum::None, ..roce }.is_sealed());
        assert_eq!(roce.bad_checksum(), Reason::BadIcrc);
        assert_eq!((roce.src_port(0), roce.src_port(50_000)), (4791, 50_000));
    }
}
