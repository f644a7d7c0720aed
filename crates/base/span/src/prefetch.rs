//! Asks the processor for cache lines before they are used.
//!
//! A queue pair whose turn comes among thousands of others is in no cache. Each of its lines then costs a whole access to memory,
//! one after the other, because the next address depends on the one before. Lines that are asked for some queue pairs ahead come
//! side by side. A request is a hint: it changes nothing, faults for no address, and may be dropped.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the line that holds address `at`. The address may be anything.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: PREFETCHT0 reads nothing into the program and raises no exception for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM reads nothing into the program and raises no exception for any address.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for the lines of `bytes` bytes from `at` on.
#[inline(always)]
pub fn prefetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(LINE) {
        prefetch_line(at.wrapping_add(line * LINE));
    }
}
