//! UbEncapsulation in UDP: the packet, then a CRC-32 (IEEE 802.3, least significant byte first) over it.
//!
//! The congestion field of the NTH counts as ones, because switches change it on the way. IP addresses and UDP ports are not
//! covered: the NTH has addresses of its own, and a middle box may rewrite the outer ones.

use crate::nth::Nth;
use burst_base::Reason;

/// Bytes of the checksum.
pub const UB_CHECKSUM_LEN: usize = 4;

/// The checksum of a packet. Packets shorter than an NTH have one as well.
pub fn checksum(packet: &[u8]) -> [u8; UB_CHECKSUM_LEN] {
    let at = Nth::CONGESTION_AT.min(packet.len());
    let end = (at + 2).min(packet.len());
    let mut crc = burst_crc::update(0, &packet[..at]);
    crc = burst_crc::update(crc, &[0xff; 2][..end - at]);
    burst_crc::update(crc, &packet[end..]).to_le_bytes()
}

/// Checks the checksum of a datagram's payload and returns the packet: [`Reason::Truncated`] or [`Reason::UbChecksum`].
pub fn open(datagram: &[u8]) -> Result<&[u8], Reason> {
    let (packet, &sum) = datagram.split_last_chunk::<UB_CHECKSUM_LEN>().ok_or(Reason::Truncated)?;
    if checksum(packet) == sum { Ok(packet) } else { Err(Reason::UbChecksum) }
}

/// Writes the checksum behind the first `len` bytes of `buffer`, and returns the datagram's length. Panics if there is no room.
pub fn seal(buffer: &mut [u8], len: usize) -> usize {
    let sum = checksum(&buffer[..len]);
    buffer[len..len + UB_CHECKSUM_LEN].copy_from_slice(&sum);
    len + UB_CHECKSUM_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_but_those_of_the_congestion_field_is_found() {
        let mut buffer: Vec<u8> = (0..40).collect();
        let len = seal(&mut buffer, 36);
        assert_eq!(open(&buffer[..len]), Ok(&buffer[..36]));
        for bit in 0..len * 8 {
            let mut changed = buffer[..len].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let is_congestion = (Nth::CONGESTION_AT..Nth::CONGESTION_AT + 2).contains(&(bit / 8));
            assert_eq!(open(&changed).is_ok(), is_congestion, "bit {bit}");
        }
    }

    #[test]
    fn short_datagrams_are_refused() {
        for len in 0..UB_CHECKSUM_LEN {
            assert_eq!(open(&vec![0; len]), Err(Reason::Truncated));
        }
        let mut empty = [0; UB_CHECKSUM_LEN];
        seal(&mut empty, 0);
        assert_eq!(open(&empty), Ok(&[][..]));
    }

    #[test]
    fn the_checksum_is_the_crc_of_ethernet() {
        // Values of zlib's crc32 over "1234", and over "1234567", two bytes of ones and "0".
        assert_eq!(u32::from_le_bytes(checksum(b"1234")), 0x9be3_e0a3);
        assert_eq!(u32::from_le_bytes(checksum(b"1234567890")), 0x2f5d_5ee8);
    }
}
