//! Freed memory that the allocator keeps for one thread.
//!
//! The C library's allocator (glibc) keeps up to seven freed blocks of each size up to 1,032 bytes for the thread that freed
//! them. It returns them to the heap when the thread exits, and `malloc_trim` does not. After a hundred thousand objects have
//! ended, these blocks lie far apart: each keeps a page of its own, together more than a megabyte a thread.

use std::hint::black_box;

/// Sizes of the blocks that are kept, in bytes: the smallest, the largest and the step.
const SIZES: (usize, usize, usize) = (24, 1032, 16);
/// Blocks of one size that are kept.
const KEPT: usize = 7;
/// Bytes of a block that is too large to be kept.
const TOO_LARGE: usize = 1200;

/// Returns the blocks that the allocator keeps for this thread to the heap, so that trimming can return their pages to the
/// system. Under another allocator it allocates and frees half a megabyte, and changes nothing.
pub fn return_thread_cache() {
    let (smallest, largest, step) = SIZES;
    let mut taken = Vec::with_capacity(KEPT * ((largest - smallest) / step + 1));
    for bytes in (smallest..=largest).step_by(step) {
        for _ in 0..KEPT {
            let mut block: Vec<u8> = black_box(Vec::with_capacity(bytes));
            // A block that lies alone between free memory grows in place, and is then too large to be kept when it is freed.
            block.reserve_exact(TOO_LARGE);
            taken.push(black_box(block));
        }
    }
}
