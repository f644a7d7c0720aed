//! What a swap leaves behind: no memory of the pool, no descriptor. And where the kernel offers userfaultfd, memory is swapped:
//! the other tests of swapping skip themselves where a registration stays in the process.

use burst_mem::swap::{Registration, register, release};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// The tests measure what the process holds, so they run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fresh private memory, filled with 1. Only tests unmap it.
fn anon(len: usize) -> &'static mut [u8] {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping made above.
    let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
    memory.fill(1);
    memory
}

fn registered(memory: &[u8]) -> Registration {
    register(memory.as_ptr() as usize, memory.len(), true).expect("registered")
}

fn can_swap() -> bool {
    let reg = registered(anon(PAGE));
    let can = !reg.is_in_process();
    release(reg);
    can
}

/// Whether the kernel gives a userfaultfd that protects shared memory against writes (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`).
fn kernel_offers_swap() -> bool {
    const USER_MODE_ONLY: libc::c_int = 1;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    let (mut api, flags) = ([0xaa_u64, 1 << 12, 0], libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY);
    // SAFETY: a system call with a number; the descriptor is fresh. `struct uffdio_api` is three words, which outlive the call.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
        fd >= 0 && libc::ioctl(OwnedFd::from_raw_fd(fd).as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
    }
}

#[test]
fn memory_is_swapped_where_the_kernel_offers_it() {
    let _alone = alone();
    assert!(can_swap() || !kernel_offers_swap());
}

#[test]
fn memory_that_was_unmapped_above_another_registration_is_given_back() {
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let (low, high) = anon(1025 * PAGE).split_at_mut(PAGE);
    let (kept, reg) = (registered(low), registered(high));
    let blocks = || rustix::fs::fstat(kept.fd(0).expect("the pool")).expect("open").st_blocks as usize * 512;
    let full = blocks();
    assert!(full >= high.len());
    // SAFETY: memory of this test, used no more.
    assert_eq!(unsafe { libc::munmap(high.as_mut_ptr().cast(), high.len()) }, 0);
    release(reg);
    let left = blocks();
    assert!(left <= full - high.len() / 2, "{left} of {full} left");
    release(kept);
}

#[test]
fn a_registration_leaves_no_descriptor_open() {
    let _alone = alone();
    // The first registration opens the pool.
    if !can_swap() {
        return;
    }
    let open = || std::fs::read_dir("/proc/self/fd").expect("listed").count();
    let before = open();
    for _ in 0..4 {
        release(registered(anon(PAGE)));
    }
    assert_eq!(open(), before);
}

/// `register` looks for large objects of glibc by the second word of a page: a length of two pages at least, with bit 1 set.
#[test]
fn memory_that_looks_like_an_object_without_length_is_registered() {
    let _alone = alone();
    for len in [0, PAGE] {
        let memory = anon(2 * PAGE);
        memory[8..16].copy_from_slice(&(len | 2).to_ne_bytes());
        release(registered(memory));
        assert_eq!(memory[8..16], (len | 2).to_ne_bytes());
    }
}
