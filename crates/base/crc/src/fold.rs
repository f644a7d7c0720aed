//! CRC-32 by carry-less multiplication of 128 bits, after V. Gopal et al., "Fast CRC Computation for Generic Polynomials
//! Using PCLMULQDQ Instruction" (Intel, 2009).
//!
//! A message is a polynomial. 16 bytes that lie n bits before others are folded into them: each half is multiplied by x^n
//! modulo the polynomial, which is a product with a constant of 33 bits. Eight accumulators fold 128 bytes
//! at a time. They are folded into one, which takes the rest 16 bytes at a time and is then reduced
//! (Barrett). The last fewer than 16 bytes use the table. Bits are in reflected order: bit 0 of a word is its highest power.

use crate::table::short;
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_extract_epi32, _mm_loadu_si128, _mm_set_epi32,
    _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
};
use std::arch::is_x86_feature_detected;

/// Shortest message that [`crc32`] takes.
pub const LEN_MIN: usize = 256;
/// Bytes of all accumulators.
const STRIDE: usize = 128;
/// The polynomial with x^32, reflected.
const POLYNOMIAL: u64 = 0x1_db71_0641;
/// x^64 divided by the polynomial, reflected.
const QUOTIENT: u64 = 0x1_f701_1641;

/// Whether the processor has the features that [`crc32`] needs.
#[inline]
pub fn is_possible() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx")
}

/// Whether [`crc32`] is faster than libdeflate, which uses longer vectors if the processor multiplies them.
#[inline]
pub fn is_better() -> bool {
    is_possible() && !is_x86_feature_detected!("vpclmulqdq")
}

/// x^n modulo the polynomial, reflected, as a multiplier: a product of reflected numbers is one bit too low.
const fn power(n: u32) -> i64 {
    // Bit 31 is x^0.
    let mut a = 1u32 << 31;
    let mut i = 0;
    while i < n {
        a = (a >> 1) ^ (0xedb8_8320 & (a & 1).wrapping_neg());
        i += 1;
    }
    ((a as u64) << 1) as i64
}

/// The multipliers that fold 16 bytes into those that lie `bits` later.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
fn multipliers<const BITS: u32>() -> __m128i {
    _mm_set_epi64x(const { power(BITS - 32) }, const { power(BITS + 32) })
}

/// Folds `a` into `next`.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
fn fold(a: __m128i, by: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(a, by);
    let high = _mm_clmulepi64_si128::<0x11>(a, by);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

/// Loads 16 bytes.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is valid for 16 bytes, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Like [`crate::update`]; panics with fewer than [`LEN_MIN`] bytes.
#[target_feature(enable = "pclmulqdq,avx")]
pub fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    assert!(bytes.len() >= LEN_MIN);
    let (blocks, rest) = bytes.as_chunks::<16>();
    let (strides, last_blocks) = blocks.as_chunks::<{ STRIDE / 16 }>();
    let mut sums = [_mm_set_epi64x(0, 0); STRIDE / 16];
    let mut i = 0;
    while i < sums.len() {
        sums[i] = load(&strides[0][i]);
        i += 1;
    }
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(!crc as i32));
    let by = multipliers::<{ 8 * STRIDE as u32 }>();
    for stride in &strides[1..] {
        // No iterators: their functions are compiled with fewer processor features and cannot be inlined here.
        let mut i = 0;
        while i < sums.len() {
            sums[i] = fold(sums[i], by, load(&stride[i]));
            i += 1;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let by = multipliers::<512>();
    let (a, b, c, d) = (fold(a, by, e), fold(b, by, f), fold(c, by, g), fold(d, by, h));
    let by = multipliers::<256>();
    let (a, b) = (fold(a, by, c), fold(b, by, d));
    let by = multipliers::<128>();
    let mut sum = fold(a, by, b);
    for block in last_blocks {
        sum = fold(sum, by, load(block));
    }
    let crc = reduce(sum);
    if rest.is_empty() { crc } else { short(crc, rest) }
}

/// Reduces the last accumulator to the CRC.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
fn reduce(sum: __m128i) -> u32 {
    let low_words = _mm_set_epi32(0, -1, 0, -1);
    // From 128 bits to 96: the first eight bytes are folded into the last eight. Then to 64 in the same way.
    let folded = _mm_clmulepi64_si128::<0x10>(sum, multipliers::<128>());
    let sum = _mm_xor_si128(_mm_srli_si128::<8>(sum), folded);
    let to_64 = _mm_set_epi64x(0, const { power(64) });
    let folded = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(sum, low_words), to_64);
    let sum = _mm_xor_si128(_mm_srli_si128::<4>(sum), folded);
    // Barrett's reduction: the quotient by a multiplication, then the remainder.
    let constants = _mm_set_epi64x(QUOTIENT as i64, POLYNOMIAL as i64);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(sum, low_words), constants);
    let multiple = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_words), constants);
    !_mm_extract_epi32::<1>(_mm_xor_si128(sum, multiple)) as u32
}
