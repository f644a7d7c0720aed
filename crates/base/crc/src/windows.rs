//! The sum of windows by AVX2: eight registers hold 256 columns while all windows pass.

use core::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256};

/// Columns of one register: the least that [`xor`] takes.
pub const LEN_MIN: usize = 32;
/// Registers of sums.
const LANES: usize = 8;

/// Like [`crate::xor_windows`].
///
/// # Safety
/// The processor has AVX2, `out` has at least [`LEN_MIN`] bytes, and the windows, of which there is at least one, lie in
/// `bytes`.
#[target_feature(enable = "avx2")]
pub unsafe fn xor(bytes: &[u8], pitch: usize, count: usize, out: &mut [u8]) {
    let len = out.len();
    let mut at = 0;
    while at + LANES * LEN_MIN <= len {
        // SAFETY: `at + 256 <= len`, and windows of `len` bytes lie in `bytes`.
        unsafe { columns::<LANES>(bytes.as_ptr().add(at), pitch, count, out.as_mut_ptr().add(at)) };
        at += LANES * LEN_MIN;
    }
    while at < len {
        // The last columns are summed with some that are done.
        let place = at.min(len - LEN_MIN);
        // SAFETY: `place + 32 <= len`.
        unsafe { columns::<1>(bytes.as_ptr().add(place), pitch, count, out.as_mut_ptr().add(place)) };
        at = place + LEN_MIN;
    }
}

/// Sums `N * 32` columns of all windows.
///
/// # Safety
/// The columns of each window are readable, those of `out` writable.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn columns<const N: usize>(first: *const u8, pitch: usize, count: usize, out: *mut u8) {
    let mut sums = [core::arch::x86_64::_mm256_setzero_si256(); N];
    let mut window = first;
    for left in (0..count).rev() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            // SAFETY: as the caller promises.
            *sum = _mm256_xor_si256(*sum, unsafe { _mm256_loadu_si256(window.cast::<__m256i>().add(lane)) });
        }
        if left > 0 {
            // SAFETY: there is another window.
            window = unsafe { window.add(pitch) };
        }
    }
    for (lane, sum) in sums.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { _mm256_storeu_si256(out.cast::<__m256i>().add(lane), *sum) };
    }
}
