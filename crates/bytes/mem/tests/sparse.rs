//! Registrations of more address space than the machine has memory.

use burst_mem::swap::{register, release};
use std::io::Write as _;

const PAGE: usize = 4096;

/// A byte of the memory, after it was written if a value is given.
fn byte(p: *mut u8, offset: usize, value: Option<u8>) -> u8 {
    // SAFETY: within the memory of this test.
    unsafe {
        if let Some(value) = value {
            p.add(offset).write_volatile(value);
        }
        p.add(offset).read_volatile()
    }
}

/// Which pages are in memory.
fn present(p: *mut u8, pages: usize) -> Vec<usize> {
    let mut found = vec![0u8; pages];
    // SAFETY: memory of this test; a byte for each page.
    assert_eq!(unsafe { libc::mincore(p.cast(), pages * PAGE, found.as_mut_ptr()) }, 0);
    (0..pages).filter(|i| found[*i] & 1 == 1).collect()
}

/// An adapter would pin all of it, or fail.
#[test]
fn a_range_that_memory_cannot_hold_is_reached_in_the_process_and_costs_none() {
    // SAFETY: all zeroes is a valid `sysinfo`, which the call fills.
    let total = unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        assert_eq!(libc::sysinfo(&raw mut info), 0);
        info.totalram as usize * info.mem_unit as usize
    };
    let len = (total + total / 4).next_multiple_of(PAGE);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) }.cast::<u8>();
    if p.cast() == libc::MAP_FAILED {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel gives no more address space than memory here");
        return;
    }
    // SAFETY: advice on memory of this test.
    unsafe { libc::madvise(p.cast(), len, libc::MADV_NOHUGEPAGE) };
    byte(p, len / 2, Some(7));
    let reg = register(p as usize, len, true).expect("registered");
    assert!(reg.is_in_process());
    assert_eq!(byte(p, len / 2, None), 7);
    release(reg);
    let pages = 1024;
    // SAFETY: within the mapping.
    assert_eq!(present(unsafe { p.add(len / 2 / PAGE * PAGE) }, pages), [0]);
    // SAFETY: memory of this test, used no more.
    unsafe { libc::munmap(p.cast(), len) };
}
