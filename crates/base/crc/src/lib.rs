//! CRC-32 of Ethernet over bytes, and the sum of windows by which one CRC checks many packets.
//!
//! [`update`] continues a CRC. It calls libdeflate, except on x86 processors that multiply 128 bits only (PCLMULQDQ
//! without VPCLMULQDQ): there the loop of `fold` takes a fifth fewer instructions. [`short`] uses a table and no call, for the
//! few bytes of a packet's head.
//!
//! [`xor_windows`] sums (exclusive or) windows of a buffer that begin at a fixed distance from each other, 32 bytes per
//! instruction, at an eighth of the cost of a CRC. `wire::train` checks trains with it.
//!
//! Processor features are looked up once (`std` keeps the result). Each function has a form that needs none.
//!
//! | file | what it holds |
//! |---|---|
//! | `fold` | the CRC by carry-less multiplication |
//! | `table` | the CRC by tables |
//! | `windows` | the sum of windows with AVX2 |

#[cfg(target_arch = "x86_64")]
mod fold;
mod table;
#[cfg(target_arch = "x86_64")]
mod windows;

pub use table::short;

/// The CRC of a message and `bytes` behind it; `crc` is the message's CRC, 0 for an empty message.
#[inline]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= fold::LEN_MIN && fold::is_better() {
        // SAFETY: `is_better` has checked the processor features with which `crc32` is compiled.
        return unsafe { fold::crc32(crc, bytes) };
    }
    let mut state = libdeflater::Crc::with_initial(crc);
    state.update(bytes);
    state.sum()
}

/// Makes `out[i]` the exclusive or of `bytes[i]`, `bytes[i + pitch]`, ... `bytes[i + (count - 1) * pitch]`. Panics if the
/// last window does not end in `bytes`, or without a window.
pub fn xor_windows(bytes: &[u8], pitch: usize, count: usize, out: &mut [u8]) {
    assert!(count > 0 && (count - 1) * pitch + out.len() <= bytes.len());
    #[cfg(target_arch = "x86_64")]
    if out.len() >= windows::LEN_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and the windows lie in `bytes`, as asserted.
        return unsafe { windows::xor(bytes, pitch, count, out) };
    }
    plain(bytes, pitch, count, out);
}

/// [`xor_windows`] without processor features.
fn plain(bytes: &[u8], pitch: usize, count: usize, out: &mut [u8]) {
    let len = out.len();
    out.copy_from_slice(&bytes[..len]);
    for window in (1..count).map(|i| &bytes[i * pitch..i * pitch + len]) {
        out.iter_mut().zip(window).for_each(|(sum, byte)| *sum ^= byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (x >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn every_length_and_place_has_the_crc_of_the_reference() {
        let bytes = noise(9000);
        for len in (0..700).chain([1023, 1024, 1040, 4095, 4096, 4097, 4112, 8999]) {
            for at in [0, 1] {
                let piece = &bytes[at..at + len];
                let mut want = crc32fast::Hasher::new_with_initial(0x1234_5678);
                want.update(piece);
                let want = want.finalize();
                assert_eq!(update(0x1234_5678, piece), want, "{len}");
                if len < 64 {
                    assert_eq!(short(0x1234_5678, piece), want, "{len}");
                }
                #[cfg(target_arch = "x86_64")]
                if len >= fold::LEN_MIN && fold::is_possible() {
                    // SAFETY: the features are there.
                    assert_eq!(unsafe { fold::crc32(0x1234_5678, piece) }, want, "{len}");
                }
            }
        }
    }

    #[test]
    fn windows_have_the_same_sum_with_and_without_vectors() {
        let bytes = noise(20_000);
        for (len, pitch, count) in
            [(1024, 1039, 16), (4096, 4111, 4), (300, 299, 60), (33, 7, 5), (31, 7, 5), (257, 0, 3)]
        {
            let (mut sum, mut want) = (vec![0xee; len], vec![0; len]);
            xor_windows(&bytes[1..], pitch, count, &mut sum);
            plain(&bytes[1..], pitch, count, &mut want);
            assert_eq!(sum, want);
            assert_eq!(want[len - 1], (0..count).fold(0, |x, i| x ^ bytes[1 + i * pitch + len - 1]));
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_window_beyond_the_bytes_is_refused() {
        xor_windows(&[0; 100], 10, 8, &mut [0; 31]);
    }
}
