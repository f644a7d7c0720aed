//! A heap in which few blocks are left: only their pages stay when it is trimmed. One test in this file: it measures the memory
//! of the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use burst_base::heap;
use burst_base::rng::Rng;
use std::collections::BTreeSet;
use std::process::Command;

const PAGE: usize = 4096;
const BLOCKS: usize = 40_000;
/// One block of so many stays.
const LEFT: usize = 256;
/// Pages that the test and the allocator take besides.
const SLACK_PAGES: usize = 64;

fn anonymous_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024 / PAGE
}

fn trim() -> usize {
    heap::return_thread_cache();
    // SAFETY: no arguments but the bytes to keep; the allocator locks itself.
    unsafe { libc::malloc_trim(0) };
    anonymous_pages()
}

/// Makes blocks of all sizes, and frees most of them in random order. Returns the others.
fn fragments(rng: &mut Rng) -> Vec<Vec<u8>> {
    let blocks = (0..BLOCKS).map(|_| vec![7; 24 + 16 * (rng.next_u32() as usize % 70)]);
    let mut blocks: Vec<Option<Vec<u8>>> = blocks.map(Some).collect();
    let mut order: Vec<usize> = (0..BLOCKS).filter(|number| number % LEFT != 0).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.next_u32() as usize % (last + 1));
    }
    order.into_iter().for_each(|number| blocks[number] = None);
    blocks.into_iter().flatten().collect()
}

/// Of the C library, read when a process begins: all threads have one heap, as in the daemon. glibc trims the top of the first
/// heap only.
const ONE_HEAP: &str = "MALLOC_ARENA_MAX";

#[test]
fn only_pages_with_blocks_in_use_stay() {
    if std::env::var_os(ONE_HEAP).is_some() {
        return measure();
    }
    let mut again = Command::new(std::env::current_exe().expect("a path"));
    let status =
        again.args(["--exact", "only_pages_with_blocks_in_use_stay", "--nocapture"]).env(ONE_HEAP, "1").status();
    assert!(status.expect("a process").success());
}

fn measure() {
    let before = trim();
    for seed in 1..=4 {
        let left = fragments(&mut Rng::new(seed));
        let trimmed = trim();
        let ends = |block: &Vec<u8>| [block.as_ptr().addr(), block.as_ptr().addr() + block.len()];
        let pages: BTreeSet<usize> = left.iter().flat_map(ends).map(|at| at / PAGE).collect();
        let most = before + pages.len() + SLACK_PAGES;
        println!("{before} pages before, {} with blocks, {trimmed} after", pages.len());
        assert!(trimmed <= most, "{trimmed} pages, of which {} have blocks, and {before} before", pages.len());
    }
}
