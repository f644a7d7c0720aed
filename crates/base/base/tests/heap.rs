//! Memory that the C library's allocator keeps for a thread is returned before the heap is trimmed. One test in this file: it
//! measures the memory of the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use burst_base::heap;

/// Sizes that the allocator keeps for a thread, blocks of one size that it keeps, and blocks of each size that are made.
const SIZES: usize = 64;
const KEPT: usize = 7;
const EACH: usize = KEPT * SIZES;

fn anonymous_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

fn trimmed_kib() -> usize {
    // SAFETY: no arguments but the bytes to keep; the allocator locks itself.
    unsafe { libc::malloc_trim(0) };
    anonymous_kib()
}

#[test]
fn kept_blocks_are_returned() {
    // One heap for all threads, as in the daemon: glibc trims the top of the first heap only.
    // SAFETY: a setting of the allocator.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    let mut blocks: Vec<Option<Vec<u8>>> =
        (0..SIZES * EACH).map(|number| Some(vec![7; 24 + number % SIZES * 16])).collect();
    // The allocator keeps the blocks that are freed first: no two of them lie in the same page.
    for kept in 0..KEPT * SIZES {
        blocks[kept * SIZES + kept % SIZES] = None;
    }
    drop(blocks);
    let kept = trimmed_kib();
    heap::return_thread_cache();
    let returned = trimmed_kib();
    assert!(returned + 1000 < kept, "{kept} KiB, and {returned} KiB after the kept blocks were returned");
}
