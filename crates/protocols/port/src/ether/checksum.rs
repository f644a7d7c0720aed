//! The internet checksum (RFC 1071) of UDP over IPv4 and IPv6.
//!
//! A sum is kept in 64 bits and folded to 16 bits at the end, so that the compiler can vectorise the loop. Words are added in the
//! machine's byte order; the result is right if it is written back in that order.

use std::net::IpAddr;

/// An unfinished sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InternetSum(u64);

impl InternetSum {
    /// Adds bytes. A last odd byte counts as if a zero followed, so only the last piece may have an odd length.
    #[must_use]
    pub fn over(self, bytes: &[u8]) -> InternetSum {
        let mut sum = self.0;
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let (words, rest) = rest.as_chunks::<2>();
        for word in words {
            sum += u64::from(u16::from_ne_bytes(*word));
        }
        if let [last] = rest {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        InternetSum(sum)
    }
    /// Adds the pseudo header of UDP (RFC 768, RFC 8200 section 8.1). Both addresses must be of one family.
    #[must_use]
    pub fn pseudo(self, src: &IpAddr, dst: &IpAddr, udp_len: usize) -> InternetSum {
        let sum = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.over(&src.octets()).over(&dst.octets()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.over(&src.octets()).over(&dst.octets()),
            _ => unreachable!("flows of mixed families have no template"),
        };
        sum.over(&[0, burst_wire::IP_PROTOCOL_UDP]).over(&(udp_len as u32).to_be_bytes())
    }
    /// The folded sum as it is written into a header when a device completes the checksum.
    pub fn partial(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (sum as u16).to_ne_bytes()
    }
    /// The checksum: the complement of the sum; all ones where it would be zero, because zero means "no checksum" in UDP.
    pub fn finish(self) -> [u8; 2] {
        let [a, b] = self.partial();
        if (a, b) == (0xff, 0xff) { [0xff, 0xff] } else { [!a, !b] }
    }
    /// Whether a sum over everything, the checksum included, is right.
    pub fn is_right(self) -> bool {
        self.partial() == [0xff, 0xff]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum word by word, as RFC 1071 defines it.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn sums_agree_with_the_definition_for_every_length() {
        let bytes: Vec<u8> = (0..4200u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in (0..70).chain([1499, 4096, 4199]) {
            let want = plain(&bytes[..len]);
            let want = if want == 0 { 0xffff } else { want };
            assert_eq!(InternetSum::default().over(&bytes[..len]).finish(), want.to_be_bytes(), "{len}");
            let even = len / 4 * 2;
            assert_eq!(
                InternetSum::default().over(&bytes[..even]).over(&bytes[even..len]).finish(),
                want.to_be_bytes()
            );
        }
    }

    #[test]
    fn a_datagram_of_rfc_768_is_right_only_with_its_checksum() {
        // An IPv6 datagram with the checksum that the kernel has computed.
        let (src, dst) = ("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap());
        let mut udp = vec![0x12, 0xb7, 0x12, 0xb7, 0, 11, 0, 0, 1, 2, 3];
        let checksum = InternetSum::default().pseudo(&src, &dst, udp.len()).over(&udp).finish();
        udp[6..8].copy_from_slice(&checksum);
        assert!(InternetSum::default().pseudo(&src, &dst, udp.len()).over(&udp).is_right());
        for bit in 0..udp.len() * 8 {
            let mut bad = udp.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!InternetSum::default().pseudo(&src, &dst, bad.len()).over(&bad).is_right(), "bit {bit}");
        }
    }

    #[test]
    fn zero_is_never_written() {
        assert_eq!(InternetSum::default().over(&[0xff, 0xff]).finish(), [0xff, 0xff]);
        assert_eq!(InternetSum::default().finish(), [0xff, 0xff]);
    }
}
