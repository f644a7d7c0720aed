//! One CRC checks the CRCs of many packets.
//!
//! A CRC is linear. A packet with a correct CRC at its end leaves the CRC register with a constant (`RESIDUE`). The sum
//! (exclusive or) of such packets therefore leaves the sum of constants, and summing costs an eighth of a CRC. Packet i of a
//! group is shifted by i bytes before it is summed, so that the check is as strong as one CRC for each packet. Errors at the
//! same offset of two packets, or parts of packets that were exchanged, do not cancel then:
//! e(x) * (x^8i + x^8j) is a multiple of the polynomial only if e(x) is one, as long as |i - j| < 2^32 - 1. A group with one bad
//! packet fails if and only if that packet's own CRC fails. A group with several bad packets passes with probability
//! 2^-32, like a packet with several errors. When a group fails, the caller checks its packets one by one.
//!
//! In a row of `len + 16` columns, packet i takes columns `i .. i + len`. Columns 16 to `len` have a byte of each packet: there
//! they are windows of the train, `stride - 1` bytes apart. The 16 columns at either end are made by shifting. The register
//! with which a packet begins adds to the packet's first four bytes. It depends on the packet format ([`FirstRegister`]: for
//! RoCEv2 pseudo headers, identification, and the masked byte of the BTH). Nothing else here does.

use burst_crc::{update, xor_windows};

/// Packets of a group. Their shifts fit into a margin.
const GROUP: usize = MARGIN;
/// Columns at either end.
const MARGIN: usize = 16;
/// Shortest packet for which summing is faster than one CRC for each packet.
const STRIDE_MIN: usize = 256;
/// Longest packet: a path MTU of 4096, 64 bytes of transport headers (RoCEv2 has 44), padding, and the CRC.
const STRIDE_MAX: usize = 4096 + 64 + 3 + crate::ICRC_LEN;
const _: () = assert!(crate::HEAD_MAX <= 64);
/// CRC register after a message that ends with its CRC.
const RESIDUE: u32 = 0xdebb_20e3;
/// Sum of the registers of a group, by its number of packets.
static GOOD: [u32; GROUP + 1] = {
    let mut sums = [0; GROUP + 1];
    let mut i = 0;
    while i < GROUP {
        // Packet i is followed by 16 - i columns of zeros.
        let mut register = RESIDUE;
        let mut bits = 8 * (MARGIN - i);
        while bits > 0 {
            register = (register >> 1) ^ (0xedb8_8320 & (register & 1).wrapping_neg());
            bits -= 1;
        }
        sums[i + 1] = sums[i] ^ register;
        i += 1;
    }
    sums
};

/// The CRC register before the first byte of an unchanged received packet: everything that the CRC covers before that byte, and
/// the difference that masked bytes of the packet make.
pub trait FirstRegister {
    /// The register of `packet`, sent with IPv4 identification `id`.
    fn first_register(&self, id: u16, packet: &[u8]) -> u32;
}

/// Checks trains: packets of one length, side by side.
#[derive(Debug)]
pub struct TrainCheck {
    /// The row.
    sums: Box<[u8]>,
}

impl Default for TrainCheck {
    fn default() -> Self {
        TrainCheck { sums: vec![0; STRIDE_MAX + MARGIN].into() }
    }
}

impl TrainCheck {
    /// Whether packets of this length, ICRC included, are checked faster together than one by one.
    #[inline]
    pub fn is_worth_while(stride: usize) -> bool {
        (STRIDE_MIN..=STRIDE_MAX).contains(&stride)
    }

    /// Whether all packets of `train`, `stride` bytes each from the transport header to the CRC, are good. `prepared` is that of
    /// their length. The identification is `id` in the first packet and grows by `step`. Panics unless the length of `train` is a
    /// multiple of `stride` and `stride` [is worth while](TrainCheck::is_worth_while).
    pub fn all_good<R: FirstRegister>(
        &mut self,
        prepared: &R,
        train: &[u8],
        stride: usize,
        mut id: u16,
        step: u16,
    ) -> bool {
        assert!(TrainCheck::is_worth_while(stride) && train.len().is_multiple_of(stride));
        for group in train.chunks(GROUP * stride) {
            if !self.group_is_good(prepared, group, stride, id, step) {
                return false;
            }
            id = id.wrapping_add((GROUP as u16).wrapping_mul(step));
        }
        true
    }

    fn group_is_good<R: FirstRegister>(
        &mut self,
        prepared: &R,
        group: &[u8],
        stride: usize,
        mut id: u16,
        step: u16,
    ) -> bool {
        let count = group.len() / stride;
        let row = &mut self.sums[..stride + MARGIN];
        xor_windows(&group[MARGIN..], stride - 1, count, &mut row[MARGIN..stride]);
        let (mut first, mut second, mut last) = (0u128, 0u128, 0u128);
        for (shift, packet) in group.chunks_exact(stride).enumerate().map(|(i, packet)| (8 * i as u32, packet)) {
            let (Some(head), Some(tail)) = (packet.first_chunk(), packet.last_chunk()) else { return false };
            let register = u128::from(!prepared.first_register(id, packet));
            first ^= (u128::from_le_bytes(*head) ^ register) << shift;
            // The bits that the shift to the left has pushed out of the margin: none for shift 0.
            second ^= register.checked_shr(128 - shift).unwrap_or(0);
            last ^= u128::from_le_bytes(*tail).checked_shr(128 - shift).unwrap_or(0);
            id = id.wrapping_add(step);
        }
        row[..MARGIN].copy_from_slice(&first.to_le_bytes());
        row[MARGIN..].iter_mut().zip(second.to_le_bytes()).for_each(|(sum, byte)| *sum ^= byte);
        row[stride..].copy_from_slice(&last.to_le_bytes());
        !update(!0, row) == GOOD[count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::{Prepared, PseudoV4};
    use core::net::Ipv4Addr;

    const STRIDE: usize = 300;

    fn prepared() -> Prepared {
        Prepared::ipv4(&PseudoV4::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 50_000), STRIDE)
    }

    /// `count` good packets whose identifications are 3, 4, 5...
    fn train(count: usize) -> Vec<u8> {
        let mut train = Vec::new();
        for k in 0..count {
            let body: Vec<u8> = (0..STRIDE - 4).map(|i| (i * i + 31 * k) as u8).collect();
            train.extend_from_slice(&body);
            train.extend_from_slice(&prepared().begin(3 + k as u16, &body).finish());
        }
        train
    }

    fn is_good(train: &[u8]) -> bool {
        TrainCheck::default().all_good(&prepared(), train, STRIDE, 3, 1)
    }

    #[test]
    fn lengths_from_256_to_the_longest_packet_are_worth_while() {
        let worth = [255, 256, 4096 + 64 + 3 + 4, 4096 + 64 + 3 + 5].map(TrainCheck::is_worth_while);
        assert_eq!(worth, [false, true, true, false]);
    }

    #[test]
    fn trains_of_good_packets_pass_at_any_length() {
        for count in 1..70 {
            assert!(is_good(&train(count)), "{count}");
        }
        assert!(!TrainCheck::default().all_good(&prepared(), &train(5), STRIDE, 4, 1), "other identifications");
    }

    #[test]
    fn every_damaged_bit_of_any_packet_is_detected() {
        let good = train(18);
        for k in [0, 1, 12, 13, 15, 16, 17] {
            for bit in (0..STRIDE * 8).filter(|bit| bit / 8 != 4) {
                let mut bad = good.clone();
                bad[k * STRIDE + bit / 8] ^= 1 << (bit % 8);
                assert!(!is_good(&bad), "packet {k}, bit {bit}");
            }
            // The masked byte may be anything.
            let mut marked = good.clone();
            marked[k * STRIDE + 4] ^= 0xc0;
            assert!(is_good(&marked));
        }
    }

    #[test]
    fn equal_damage_in_two_packets_and_exchanged_parts_are_detected() {
        let good = train(16);
        for (a, b) in [(0, 1), (0, 15), (7, 12), (13, 15)] {
            for at in [0, 8, 20, 150, STRIDE - 1] {
                let mut bad = good.clone();
                bad[a * STRIDE + at] ^= 0x10;
                bad[b * STRIDE + at] ^= 0x10;
                assert!(!is_good(&bad), "{a} {b} {at}");
            }
            let mut bad = good.clone();
            (0..64).for_each(|i| bad.swap(a * STRIDE + 100 + i, b * STRIDE + 100 + i));
            assert!(!is_good(&bad), "exchanged {a} {b}");
        }
    }

    #[test]
    fn damage_of_all_packets_is_detected() {
        let mut seed = 1u32;
        for _ in 0..2000 {
            let mut bad = train(16);
            for packet in bad.chunks_mut(STRIDE) {
                seed = seed.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                packet[(seed >> 16) as usize % (STRIDE - 40) + 20] ^= 1 + (seed >> 8) as u8 % 255;
            }
            assert!(!is_good(&bad));
        }
    }
}
