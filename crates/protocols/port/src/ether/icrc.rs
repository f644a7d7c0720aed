//! The ICRC of a flow's packets: the IPv4 identification that a sender covers, and the identifications that a receiver accepts.
//!
//! A UDP socket neither sets nor reports the IPv4 identification that the ICRC covers. With DF set on an unconnected socket,
//! Linux sends identification 0 in a single packet and counts from 0 along a train that it segments (`tests/namespaces.rs`
//! captures such packets). So the sender knows the identification, and a receiver that gets a whole train predicts it as the
//! position in the train. Where a train was split on its way, or the peer is another stack with other identifications, the
//! identification is recovered from the ICRC itself, and the next packets are expected to count up from it. Recovery weakens the
//! protection: a corrupted packet passes with probability 2^-16 instead of 2^-32 (the UDP checksum is verified before).
//! `strict_id` accepts recovered identifications only below [`TRAIN_MAX`], as packets of split trains have them.

use burst_wire::icrc::{IdDelta, Prepared, PseudoV4, PseudoV6};
use burst_wire::{Icrc, Ipv4, TrainCheck};
use std::net::IpAddr;

/// Most packets of a train: the kernel's `UDP_MAX_SEGMENTS` (64 before Linux 6.9).
pub const TRAIN_MAX: usize = 64;
/// Trains that are verified packet by packet after a train that could not be verified whole.
const DOUBTED: u32 = 64;
/// Bytes of the ICRC.
pub const ICRC: usize = burst_wire::ICRC_LEN;

/// Computes the ICRCs of packets of one flow. Packets of one length share the prepared beginning of the CRC.
#[derive(Clone, Copy, Debug)]
pub struct IcrcSeal {
    pseudo: IcrcAddresses,
    len: usize,
    prepared: Prepared,
}

/// The pseudo header that an ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IcrcAddresses {
    V4(PseudoV4),
    V6(PseudoV6),
    /// None: the CRC covers the packet alone ([`IcrcSeal::bare`]).
    Bare,
}

impl IcrcSeal {
    /// For packets from `src` to `dst`; `None` when one address is IPv4 and the other IPv6.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Option<IcrcSeal> {
        let pseudo = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                IcrcAddresses::V4(PseudoV4 { dst_port, ..PseudoV4::new(src, dst, src_port) })
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                IcrcAddresses::V6(PseudoV6 { dst_port, ..PseudoV6::new(src, dst, src_port) })
            }
            _ => return None,
        };
        Some(IcrcSeal { pseudo, len: 0, prepared: prepare(&pseudo, 0) })
    }
    /// For packets whose CRC covers no addresses (`Prepared::bare`).
    pub const fn bare() -> IcrcSeal {
        IcrcSeal { pseudo: IcrcAddresses::Bare, len: 0, prepared: Prepared::bare() }
    }
    /// Returns `last` if it is of the same flow, else a new seal.
    pub fn reuse(last: Option<IcrcSeal>, src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Option<IcrcSeal> {
        let same = last.is_some_and(|seal| match (&seal.pseudo, src, dst) {
            (IcrcAddresses::V4(p), IpAddr::V4(s), IpAddr::V4(d)) => {
                (p.src, p.dst, p.src_port, p.dst_port) == (s, d, src_port, dst_port)
            }
            (IcrcAddresses::V6(p), IpAddr::V6(s), IpAddr::V6(d)) => {
                (p.src, p.dst, p.src_port, p.dst_port) == (s, d, src_port, dst_port)
            }
            _ => false,
        });
        if same { last } else { IcrcSeal::new(src, dst, src_port, dst_port) }
    }
    /// Begins the ICRC of a packet of `udp_payload_len` bytes, ICRC included; `transport` are its first bytes, from the BTH on.
    #[inline]
    pub fn begin(&mut self, id: u16, udp_payload_len: usize, transport: &[u8]) -> Icrc {
        let id = if self.has_id() { id } else { 0 };
        self.of_length(udp_payload_len).begin(id, transport)
    }
    /// The prepared beginning for packets of this length.
    #[inline]
    fn of_length(&mut self, udp_payload_len: usize) -> &Prepared {
        if udp_payload_len != self.len {
            self.prepared = prepare(&self.pseudo, udp_payload_len);
            self.len = udp_payload_len;
        }
        &self.prepared
    }
    /// Whether the CRC covers an IPv4 identification.
    fn has_id(&self) -> bool {
        matches!(self.pseudo, IcrcAddresses::V4(_))
    }
    /// The ICRC of a packet with other flags than DF, for which nothing is prepared; `None` over IPv6.
    #[cold]
    fn unusual(&self, id: u16, flags_fragment: u16, udp_payload_len: usize, transport: &[u8]) -> Option<Icrc> {
        let IcrcAddresses::V4(pseudo) = self.pseudo else { return None };
        Some(Icrc::ipv4(&PseudoV4 { id, flags_fragment, ..pseudo }, udp_payload_len, transport))
    }
}

fn prepare(pseudo: &IcrcAddresses, udp_payload_len: usize) -> Prepared {
    match pseudo {
        IcrcAddresses::V4(pseudo) => Prepared::ipv4(pseudo, udp_payload_len),
        IcrcAddresses::V6(pseudo) => Prepared::ipv6(pseudo, udp_payload_len),
        IcrcAddresses::Bare => Prepared::bare(),
    }
}

/// The IPv4 identification of a packet, or of the first packet of a train, whose packets count up from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpId {
    /// Unknown, as with sockets; or there is none, over IPv6.
    #[default]
    Unknown,
    /// Known from the IPv4 header.
    Known {
        /// The identification.
        id: u16,
        /// Flags and fragment offset: DF, or none from some devices.
        flags_fragment: u16,
    },
}

/// Verifies the packets of one train after another.
pub struct IcrcChecker {
    strict: bool,
    /// The identification expected next, and the difference to the one after it.
    next: u16,
    step: u16,
    /// Whether `next` was read from the packet's own header.
    exact: bool,
    /// Flags and fragment offset of all packets of the train.
    flags_fragment: u16,
    /// Tables for the packet length for which an identification was recovered last.
    delta: Option<(usize, IdDelta)>,
    /// Number of recovered identifications.
    pub recovered: u64,
    sums: TrainCheck,
    /// Trains still to be verified packet by packet, because the peer does not count identifications as expected.
    doubted: u32,
}

impl IcrcChecker {
    /// `strict`: see the description of this module.
    pub fn new(strict: bool) -> IcrcChecker {
        IcrcChecker {
            strict,
            next: 0,
            step: 1,
            exact: false,
            flags_fragment: Ipv4::DONT_FRAGMENT,
            delta: None,
            recovered: 0,
            sums: TrainCheck::default(),
            doubted: 0,
        }
    }
    /// Begins a train or a single packet.
    #[inline]
    pub fn begin_train(&mut self, header: IpId) {
        (self.next, self.step) = (0, 1);
        (self.exact, self.flags_fragment) = (false, Ipv4::DONT_FRAGMENT);
        if let IpId::Known { id, flags_fragment } = header {
            (self.next, self.exact, self.flags_fragment) = (id, true, flags_fragment);
        }
    }
    /// Whether the ICRCs of all packets of `train`, `stride` bytes each, are right with the predicted identifications. False does
    /// not tell which is wrong: the caller then verifies the packets one by one.
    pub fn check_train(&mut self, seal: &mut IcrcSeal, train: &[u8], stride: usize) -> bool {
        if self.flags_fragment != Ipv4::DONT_FRAGMENT && seal.has_id() {
            return false;
        }
        if !TrainCheck::is_worth_while(stride) || self.doubted > 0 {
            self.doubted = self.doubted.saturating_sub(1);
            return false;
        }
        let (id, step) = if seal.has_id() { (self.next, self.step) } else { (0, 0) };
        let good = self.sums.all_good(seal.of_length(stride), train, stride, id, step);
        if good {
            self.exact = false;
            self.next = self.next.wrapping_add(self.step.wrapping_mul((train.len() / stride) as u16));
        } else {
            self.doubted = DOUBTED;
        }
        good
    }
    /// Whether the ICRC at the end of the train's next packet is right. `packet` reaches from BTH to ICRC, at least [`ICRC`] + 12
    /// bytes.
    #[inline]
    pub fn check(&mut self, seal: &mut IcrcSeal, packet: &[u8]) -> bool {
        let (body, trailer) = packet.split_at(packet.len() - ICRC);
        let (id, exact) = (self.next, std::mem::take(&mut self.exact));
        self.next = id.wrapping_add(self.step);
        if self.flags_fragment != Ipv4::DONT_FRAGMENT && seal.has_id() {
            let icrc = seal.unusual(id, self.flags_fragment, packet.len(), body);
            return icrc.is_some_and(|icrc| icrc.finish() == trailer);
        }
        let icrc = seal.begin(id, packet.len(), body);
        icrc.finish() == trailer || (!exact && self.recover(seal, icrc, id, packet.len(), trailer))
    }

    /// Looks for another identification with which the ICRC is right.
    #[cold]
    fn recover(&mut self, seal: &IcrcSeal, icrc: Icrc, id: u16, len: usize, trailer: &[u8]) -> bool {
        if !seal.has_id() {
            return false;
        }
        if self.delta.as_ref().is_none_or(|(made_for, _)| *made_for != len) {
            self.delta = Some((len, IdDelta::new(len)));
        }
        let Some((_, delta)) = &self.delta else { return false };
        let mut received = [0; ICRC];
        received.copy_from_slice(trailer);
        // The difference table leads from the ICRC with `id` to the ICRC with 0 as well.
        let Some(found) = delta.recover(icrc.finish_with_id(delta, id), received) else { return false };
        if self.strict && usize::from(found) >= TRAIN_MAX {
            return false;
        }
        // Peers that always send identification 0 are as common as peers that count.
        self.step = u16::from(found != 0);
        self.next = found.wrapping_add(self.step);
        self.recovered += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> IcrcSeal {
        IcrcSeal::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 49_152, 4791).unwrap()
    }

    fn sealed(id: u16, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let icrc = seal().begin(id, len + ICRC, &packet).finish();
        packet.extend_from_slice(&icrc);
        packet
    }

    /// Verifies packets with these identifications as one train; returns the results and the number of recovered identifications.
    fn train(strict: bool, ids: &[u16]) -> (Vec<bool>, u64) {
        let mut checker = IcrcChecker::new(strict);
        checker.begin_train(IpId::Unknown);
        let verdicts = ids.iter().map(|&id| checker.check(&mut seal(), &sealed(id, 100))).collect();
        (verdicts, checker.recovered)
    }

    #[test]
    fn a_whole_train_is_predicted() {
        let ids: Vec<u16> = (0..64).collect();
        assert_eq!(train(true, &ids), (vec![true; 64], 0));
    }

    #[test]
    fn a_train_is_verified_whole_until_one_is_wrong() {
        let mut checker = IcrcChecker::new(true);
        let good: Vec<u8> = (0..40).flat_map(|id| sealed(id, 296)).collect();
        let mut bad = good.clone();
        bad[7 * 300 + 50] ^= 1;
        checker.begin_train(IpId::Unknown);
        assert!(checker.check_train(&mut seal(), &good, 300));
        // The packets behind it have the identifications that follow.
        assert!(checker.check(&mut seal(), &sealed(40, 100)) && checker.recovered == 0);
        checker.begin_train(IpId::Unknown);
        assert!(!checker.check_train(&mut seal(), &bad, 300));
        let verdicts: Vec<bool> = bad.chunks(300).map(|packet| checker.check(&mut seal(), packet)).collect();
        assert!(verdicts.iter().enumerate().all(|(k, good)| *good == (k != 7)));
        for _ in 0..DOUBTED {
            checker.begin_train(IpId::Unknown);
            assert!(!checker.check_train(&mut seal(), &good, 300), "doubted");
        }
        checker.begin_train(IpId::Unknown);
        assert!(checker.check_train(&mut seal(), &good, 300));
        assert!(!checker.check_train(&mut seal(), &good[..200], 100), "too short to be worth while");
    }

    #[test]
    fn a_split_train_is_recovered_once() {
        assert_eq!(train(true, &[40, 41, 42, 43]), (vec![true; 4], 1));
    }

    #[test]
    fn constant_zero_is_recovered_once() {
        assert_eq!(train(true, &[0, 0, 0, 0]), (vec![true; 4], 1));
    }

    #[test]
    fn counters_of_other_stacks_are_recovered_unless_strict() {
        assert_eq!(train(false, &[0xfffe, 0xffff, 0, 1]), (vec![true; 4], 1));
        assert_eq!(train(true, &[0xfffe, 64]), (vec![false; 2], 0));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sealed(0, 60);
        for bit in 0..good.len() * 8 {
            // The ICRC does not cover byte 4 of the BTH.
            if bit / 8 == 4 {
                continue;
            }
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut checker = IcrcChecker::new(true);
            assert!(!checker.check(&mut seal(), &bad), "bit {bit}");
        }
    }

    fn seen(id: u16, flags_fragment: u16) -> IpId {
        IpId::Known { id, flags_fragment }
    }

    #[test]
    fn known_identifications_are_exact_and_begin_a_train() {
        let mut checker = IcrcChecker::new(false);
        checker.begin_train(seen(700, Ipv4::DONT_FRAGMENT));
        assert!(checker.check(&mut seal(), &sealed(700, 100)));
        assert!(checker.check(&mut seal(), &sealed(701, 100)));
        checker.begin_train(seen(701, Ipv4::DONT_FRAGMENT));
        assert!(!checker.check(&mut seal(), &sealed(700, 100)), "nothing is recovered");
        assert_eq!(checker.recovered, 0);
        assert!(checker.check(&mut seal(), &sealed(900, 100)), "behind the first");
        assert_eq!(checker.recovered, 1);
        let train: Vec<u8> = (0xfff0..0xffff).chain([0xffff, 0, 1]).flat_map(|id| sealed(id, 296)).collect();
        checker.begin_train(seen(0xfff0, Ipv4::DONT_FRAGMENT));
        assert!(checker.check_train(&mut seal(), &train, 300));
        assert!(checker.check(&mut seal(), &sealed(2, 100)) && checker.recovered == 1);
    }

    #[test]
    fn packets_without_df_are_verified_with_their_own_flags() {
        let pseudo = |id| PseudoV4 {
            id,
            flags_fragment: 0,
            ..PseudoV4::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 49_152)
        };
        let packet = |id| {
            let mut packet = vec![0x42; 296];
            let icrc = Icrc::ipv4(&pseudo(id), 300, &packet).finish();
            packet.extend_from_slice(&icrc);
            packet
        };
        let mut checker = IcrcChecker::new(false);
        let mut check = |header, packets: &[Vec<u8>]| {
            checker.begin_train(header);
            packets.iter().map(|packet| checker.check(&mut seal(), packet)).collect::<Vec<_>>()
        };
        assert_eq!(check(seen(9, 0), &[packet(9), packet(10), packet(10)]), [true, true, false]);
        assert_eq!(check(seen(9, Ipv4::DONT_FRAGMENT), &[packet(9)]), [false]);
        assert_eq!(check(seen(8, 0), &[packet(9)]), [false]);
        checker.begin_train(seen(9, 0));
        assert!(!checker.check_train(&mut seal(), &[packet(9), packet(10)].concat(), 300), "not together");
        let mut v6 = IcrcSeal::new("::2".parse().unwrap(), "::1".parse().unwrap(), 1, 2).unwrap();
        assert!(!checker.check(&mut v6, &packet(9)), "no flags over IPv6");
    }

    #[test]
    fn mixed_families_have_no_seal() {
        assert!(IcrcSeal::new("10.0.0.1".parse().unwrap(), "::1".parse().unwrap(), 1, 2).is_none());
    }
}
