//! Registrations leave the number of a process's mappings as it was when they end, in a process with one thread.

use burst_mem::swap::{Registration, register, release};
use std::io::Write as _;

const PAGE: usize = 4096;

fn anon(pages: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn bytes<'a>(at: *mut u8, pages: usize) -> &'a mut [u8] {
    // SAFETY: memory that the test has mapped.
    unsafe { std::slice::from_raw_parts_mut(at, pages * PAGE) }
}

/// Mappings of the test's pages and of the library's memory: the allocator's own, a sanitizer's say, come and go.
fn mappings(at: *mut u8, pages: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let (first, end) = (at as usize, at as usize + pages * PAGE);
    let is_counted = |line: &&str| {
        let range = line.split_once(' ').expect("an address range").0.split_once('-').expect("a range");
        let [begin, past] = [range.0, range.1].map(|hex| usize::from_str_radix(hex, 16).expect("a number"));
        line.contains("memfd:") || begin < end && past > first
    };
    maps.lines().filter(is_counted).count()
}

fn registered(at: *mut u8, page: usize, pages: usize, write: bool) -> Registration {
    register(at as usize + page * PAGE, pages * PAGE, write).expect("registered")
}

fn can_swap() -> bool {
    let reg = registered(anon(1), 0, 1, true);
    let can = !reg.is_in_process();
    release(reg);
    if !can {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
    }
    can
}

/// Runs a check in a child, which has one thread.
fn in_child(check: impl FnOnce()) {
    // SAFETY: the child runs the check and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the child's checks");
}

#[test]
fn single_pages_become_part_of_their_mapping_again() {
    in_child(|| {
        if !can_swap() {
            return;
        }
        const PAGES: usize = 800;
        let memory = anon(PAGES);
        bytes(memory, PAGES).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 7) as u8);
        let before = mappings(memory, PAGES);
        let regs: Vec<_> = (0..PAGES).step_by(2).map(|page| registered(memory, page, 1, true)).collect();
        assert!(
            mappings(memory, PAGES) > before && mappings(memory, PAGES) <= before + 64,
            "{} mappings, {before} before",
            mappings(memory, PAGES)
        );
        regs.into_iter().for_each(release);
        assert!(mappings(memory, PAGES) <= before + 2, "{} mappings, {before} before", mappings(memory, PAGES));
        assert!(bytes(memory, PAGES).iter().enumerate().all(|(i, byte)| *byte == (i / 7) as u8));
    });
}

#[test]
fn cycles_of_overlapping_pieces_leave_no_mapping() {
    in_child(|| {
        if !can_swap() {
            return;
        }
        const PAGES: usize = 512;
        let memory = anon(PAGES);
        bytes(memory, PAGES).fill(7);
        let (before, mut held) = (mappings(memory, PAGES), Vec::new());
        for i in 0..600usize {
            held.push(registered(memory, i * 61 % (PAGES - 8), 1 + i % 8, true));
            if held.len() > 5 {
                release(held.remove(i % 5));
            }
        }
        held.into_iter().for_each(release);
        assert!(mappings(memory, PAGES) <= before + 2, "{} mappings, {before} before", mappings(memory, PAGES));
        assert!(bytes(memory, PAGES).iter().all(|byte| *byte == 7));
    });
}

#[test]
fn pages_without_the_right_to_write_keep_their_rights() {
    in_child(|| {
        if !can_swap() {
            return;
        }
        let memory = anon(8);
        bytes(memory, 8).fill(3);
        // SAFETY: memory of this test.
        assert_eq!(unsafe { libc::mprotect(memory.cast(), 8 * PAGE, libc::PROT_READ) }, 0);
        let before = mappings(memory, 8);
        release(registered(memory, 2, 3, false));
        assert_eq!(mappings(memory, 8), before);
        assert!(bytes(memory, 8).iter().all(|byte| *byte == 3));
        let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
        // SAFETY: the kernel checks the address.
        let n = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), memory.add(2 * PAGE).cast(), 1) };
        assert_eq!(n, -1, "not writable");
    });
}
