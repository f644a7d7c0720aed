//! Copies of pages: between memory and the pool, and into fresh private pages that take the place of others.
//!
//! Bytes go to the pool and back by `pwrite` and `pread`: the pool need not be mapped a second time, and memory that cannot be
//! read is an error, not a fault. hugetlbfs has no `write`; there a part of the pool is mapped for the time of a copy.

use super::kernel;
use super::pool::{PAGE, Pool};
use super::vma::errno;

/// Maps fresh private memory in whole pages of size `page`.
pub(crate) fn private_pages(page: usize, len: usize) -> Option<*mut u8> {
    let huge = if page > PAGE { libc::MAP_HUGETLB | (page.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT } else { 0 };
    kernel::map_private(len, huge)
}

/// Moves the pages at `from` over the mapping at `to`, in one step, with the rights `prot`.
pub(crate) fn put_over(from: *mut u8, len: usize, to: usize, prot: i32) -> bool {
    // SAFETY: `from` is our own fresh memory; at `to` it replaces pages with the same contents.
    unsafe { kernel::move_over(from, len, to, prot) }
}

/// Copies memory at `at` to the pool, by a write of the kernel: the pool need not be mapped a second time.
pub(super) fn copy_to_pool(pool: &Pool, at: usize, len: usize, offset: usize) -> bool {
    if pool.page > PAGE {
        return with_window(pool, offset, len, |window| {
            // SAFETY: source and window are mapped and `len` long; writers of the source are held by the protection.
            unsafe { core::ptr::copy_nonoverlapping(at as *const u8, window, len) }
        });
    }
    // By its number, because AddressSanitizer's own `pwrite` refuses bytes between a program's objects.
    // SAFETY: the kernel checks the source; reading never waits for the protection.
    each(offset, len, |to, left| unsafe {
        libc::syscall(libc::SYS_pwrite64, pool.fd(), at + (to - offset), left, to as libc::off_t) as isize
    })
}

/// Copies the pool's bytes at offset `at` to `to`.
pub(crate) fn copy_from_pool(pool: &Pool, at: usize, len: usize, to: *mut u8) -> bool {
    if pool.page > PAGE {
        return with_window(pool, at, len, |window| {
            // SAFETY: window and destination are mapped and `len` long.
            unsafe { core::ptr::copy_nonoverlapping(window, to, len) }
        });
    }
    let first = at;
    // By its number, as above.
    // SAFETY: `to` is writable for `len` bytes.
    each(at, len, |at, left| unsafe {
        libc::syscall(libc::SYS_pread64, pool.fd(), to.add(at - first), left, at as libc::off_t) as isize
    })
}

/// Maps a part of a huge-page pool for the duration of `f` (hugetlbfs has no `write`).
fn with_window(pool: &Pool, at: usize, len: usize, f: impl FnOnce(*mut u8)) -> bool {
    // Populated: with no free huge page the mapping fails here and not in the copy.
    let Some(window) = kernel::map_window(pool.fd(), at, len) else { return false };
    f(window);
    // SAFETY: the window mapped above.
    unsafe { kernel::unmap(window, len) };
    true
}

/// Repeats a transfer of `left` bytes at `at` until none is left.
fn each(mut at: usize, mut left: usize, mut transfer: impl FnMut(usize, usize) -> isize) -> bool {
    while left > 0 {
        match transfer(at, left) {
            n if n > 0 => (at, left) = (at + n as usize, left - n as usize),
            -1 if errno() == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::pool::{ADDRESS_MAX, PoolSet};
    use super::super::testing::{Memory, in_child, limit, mapped_bytes};
    use super::*;

    #[test]
    fn a_transfer_is_repeated_until_all_is_done_and_ends_at_a_failure() {
        let mut calls = Vec::new();
        assert!(each(100, 8, |at, left| {
            calls.push((at, left));
            left.min(3) as isize
        }));
        assert_eq!(calls, [(100, 8), (103, 5), (106, 2)]);
        assert!(!each(0, 8, |_, _| -2) && !each(0, 8, |_, _| 0) && each(0, 0, |_, _| -2));
    }

    #[test]
    fn an_interrupted_transfer_is_repeated() {
        let fail_first = |error| {
            let mut calls = 0;
            let done = each(0, 8, |_, left| {
                calls += 1;
                // SAFETY: the thread's own errno.
                unsafe { *libc::__errno_location() = error };
                if calls == 1 { -1 } else { left as isize }
            });
            (done, calls)
        };
        assert_eq!((fail_first(libc::EINTR), fail_first(libc::ENOSPC)), ((true, 2), (false, 1)));
    }

    #[test]
    fn what_cannot_be_read_is_not_copied() {
        let pool = PoolSet::new().get(PAGE).expect("a pool");
        let mut memory = Memory::new(3);
        memory.bytes().fill(5);
        assert!(copy_to_pool(&pool, memory.at, 2 * PAGE, memory.at));
        let mut copy = vec![0; 2 * PAGE];
        assert!(copy_from_pool(&pool, memory.at, 2 * PAGE, copy.as_mut_ptr()) && copy == [5; 2 * PAGE]);
        memory.protect(2..3, libc::PROT_NONE);
        assert!(!copy_to_pool(&pool, memory.page(1), 2 * PAGE, memory.page(1)), "the second page has no rights");
        // Beyond the end of the pool there is nothing.
        assert!(!copy_from_pool(&pool, ADDRESS_MAX - PAGE, 2 * PAGE, copy.as_mut_ptr()));
        // Reading gives absent pages no memory.
        let blocks = || {
            // SAFETY: all zeroes is a valid `stat`.
            let mut st: libc::stat = unsafe { core::mem::zeroed() };
            // SAFETY: `st` is writable.
            unsafe { libc::fstat(pool.fd(), &raw mut st) };
            st.st_blocks
        };
        let before = blocks();
        assert!(copy_from_pool(&pool, memory.page(8), 2 * PAGE, copy.as_mut_ptr()) && copy == [0; 2 * PAGE]);
        assert_eq!(blocks(), before);
    }

    #[test]
    fn huge_pages_are_copied_through_a_mapping() {
        in_child(|| {
            let ordinary = PoolSet::new().get(PAGE).expect("a pool");
            let huge = of_huge_pages(ordinary);
            let mut memory = Memory::new(12);
            memory.bytes().fill(5);
            let (at, before) = (memory.at.next_multiple_of(4 * PAGE), mapped_bytes());
            // hugetlbfs has no `write`; here it is the limit that refuses.
            // SAFETY: numbers only.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            limit(libc::RLIMIT_FSIZE, 0);
            assert!(copy_to_pool(&huge, at, 8 * PAGE, at) && !copy_to_pool(&ordinary, at, 8 * PAGE, at));
            let mut copy = Memory::new(8);
            assert!(copy_from_pool(&huge, at, 8 * PAGE, copy.at as *mut u8));
            assert!(copy.bytes().iter().all(|byte| *byte == 5));
            drop(copy);
            assert_eq!(mapped_bytes(), before, "the windows are gone");
            assert!(!copy_to_pool(&of_huge_pages(closed(ordinary)), at, 8 * PAGE, at));
        });
    }

    /// The same file as a pool of larger pages.
    fn of_huge_pages(mut pool: Pool) -> Pool {
        pool.page = 4 * PAGE;
        pool
    }

    /// The pool after its descriptor was closed.
    fn closed(pool: Pool) -> Pool {
        // SAFETY: the pool of one test.
        unsafe { libc::close(pool.fd()) };
        pool
    }

    #[test]
    fn fresh_pages_have_the_size_of_the_pools() {
        const HUGE: usize = 2 << 20;
        let at = private_pages(PAGE, 2 * PAGE).expect("ordinary pages");
        // SAFETY: the pages made above, not used.
        assert_eq!(unsafe { (libc::munmap(at.cast(), PAGE), libc::munmap(at.add(PAGE).cast(), PAGE)) }, (0, 0));
        // With no free huge page there are none.
        if let Some(at) = private_pages(HUGE, HUGE) {
            // SAFETY: the page made above, not used.
            unsafe {
                assert_eq!(libc::munmap(at.cast(), PAGE), -1, "a huge page is unmapped as a whole");
                kernel::unmap(at, HUGE);
            }
        }
    }
}
