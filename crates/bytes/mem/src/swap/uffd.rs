//! Replacing pages in place while other threads use them.
//!
//! A chunk is moved in five steps: register it with userfaultfd, write-protect it (from now on no store lands; a thread
//! that tries waits in its fault), copy, put the new mapping over the old one in one system call, wake the waiting
//! threads, whose stores then go to the new mapping. Readers of pages that are there never wait.
//!
//! Of private pages that were never touched there is nothing to protect: any access to them waits, and the pool gets
//! pages of zeros. `/proc/self/pagemap` shows which these are; without it, or if they are many short runs, they are made
//! present first, and all are copied.
//!
//! Between the protection and the wake-up this thread must not write into the chunk, or it would wait for itself: it
//! allocates nothing, takes no lock, and uses only system calls and its own stack. If the chunk contains this thread's
//! stack or `errno`, another thread does the work while this one waits in the kernel. All signals are blocked
//! meanwhile, because a signal handler could write anywhere.
use super::kernel;
use super::pagemap::{self, PageMap, each_run, is_own_page};
use super::pool::{PAGE, Pool, identity, raised};
use super::vma::{MappedPart, errno};
use crate::userfaultfd::{
    self, MODE_WP, REGISTER_MISSING, REGISTER_WP, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT,
    USER_MODE_ONLY,
};
use core::ptr::null_mut;
use std::os::fd::{BorrowedFd, IntoRawFd};

/// linux/userfaultfd.h: `_IO(0xAA, 0)` of /dev/userfaultfd.
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xAA00;
/// Feature: shared memory and huge pages can be write-protected (Linux 5.19). Swapping out needs it.
const WP_SHMEM: u64 = 1 << 12;

/// Bytes of a chunk if system calls of other threads wait like stores do.
const CHUNK: usize = 2 << 20;
/// Bytes of a chunk if such system calls fail with EFAULT instead: short, so that failures are rare.
const CHUNK_USER_MODE: usize = 64 << 10;
/// Ranges of fewer bytes are copied as a whole if no other thread runs.
const LOOKED_AT: usize = 64 << 10;
/// Most runs of pages never touched in a chunk whose accesses wait: each is a mapping of its own meanwhile.
const HOLES_MAX: usize = 16;
/// Bytes of stack below and above the present frame that count as in use.
const STACK_BELOW: usize = 256 << 10;
const STACK_ABOVE: usize = 16 << 10;
/// Stack bytes of the thread that works in place of the calling one.
const HELPER_STACK: usize = 256 << 10;
const _: () = assert!(PAGE < CHUNK_USER_MODE && CHUNK_USER_MODE < CHUNK && libc::PTHREAD_STACK_MIN < HELPER_STACK);

/// `struct uffdio_range` (linux/userfaultfd.h).
#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

/// A userfaultfd of this process. It is kept open: closing it takes the kernel a look at every mapping of the process. No range
/// is registered with it between two operations.
#[derive(Debug)]
pub(crate) struct PageMover {
    fd: i32,
    /// Device and inode: programs that become daemons close all descriptors that they do not know.
    identity: Option<((u32, u32), u64)>,
    features: u64,
    chunk: usize,
}

impl Drop for PageMover {
    fn drop(&mut self) {
        self.close();
    }
}

/// Direction of an exchange of pages.
#[derive(Clone, Copy)]
enum SwapDirection {
    /// Private pages become pages of the pool. With a descriptor of `/proc/self/pagemap`, which shows those never touched, or -1.
    In(i32),
    /// Pages of the pool become private pages.
    Out,
    /// A private mapping of the pool becomes a shared one; pages that were written meanwhile are copied to the pool. With a
    /// descriptor of `/proc/self/pagemap`, which shows them; without it all are copied.
    Thaw(i32),
}

/// The exchange of the pages of a whole range.
struct MoveJob<'a> {
    mover: &'a PageMover,
    pool: &'a Pool,
    lo: usize,
    hi: usize,
    /// Offset in the pool of the page at `lo`.
    offset: usize,
    prot: i32,
    direction: SwapDirection,
    /// Whether no other thread can write meanwhile.
    alone: bool,
    done: bool,
}

impl PageMover {
    /// Opens a userfaultfd, for kernel-mode faults too if this process may. None: the kernel or a seccomp filter refuses.
    pub(crate) fn open() -> Option<PageMover> {
        for (user_mode, features) in [(false, WP_SHMEM), (true, WP_SHMEM), (false, 0), (true, 0)] {
            let fd = if user_mode { system_uffd(USER_MODE_ONLY) } else { full_uffd() };
            if fd < 0 {
                continue;
            }
            let (fd, chunk) = (raised(fd), if user_mode { CHUNK_USER_MODE } else { CHUNK });
            let mover = PageMover { fd, identity: identity(fd), features, chunk };
            if userfaultfd::agree(mover.uffd(), features).is_some() {
                return Some(mover);
            }
        }
        None
    }
    /// Whether the descriptor still is the userfaultfd.
    pub(crate) fn is_alive(&self) -> bool {
        self.identity.is_some() && identity(self.fd) == self.identity
    }
    /// Closes the descriptor, if it still is the userfaultfd.
    pub(crate) fn close(&self) {
        if self.is_alive() {
            // SAFETY: our own descriptor.
            unsafe { libc::close(self.fd) };
        }
    }
    /// Replaces the private pages `[lo, hi)` by the pool's at the same offsets. False: the kernel has refused a chunk; the
    /// chunks before it stay swapped (the caller swaps them out).
    /// `alone`: the process has no other thread.
    pub(crate) fn swap_in(&self, pool: &Pool, (lo, hi): (usize, usize), prot: i32, alone: bool) -> bool {
        // Not worth its system calls for few pages that need no protection.
        let looks = pool.page == PAGE && (!alone || hi - lo >= LOOKED_AT);
        let map = looks.then(PageMap::open).flatten();
        let direction = SwapDirection::In(map.as_ref().map_or(-1, PageMap::fd));
        MoveJob { mover: self, pool, lo, hi, offset: lo, prot, direction, alone, done: false }.run()
    }
    /// Replaces the pool's pages that are mapped at `[lo, hi)`, from `part` on, by private copies. `alone`: the process has no
    /// other thread; then the copies become part of the mapping beside them.
    pub(crate) fn swap_out(&self, pool: &Pool, (lo, hi): (usize, usize), part: MappedPart, alone: bool) -> bool {
        let (MappedPart { offset, prot }, direction) = (part, SwapDirection::Out);
        self.features & WP_SHMEM != 0
            && MoveJob { mover: self, pool, lo, hi, offset, prot, direction, alone, done: false }.run()
    }
    /// Whether it can protect shared memory.
    pub(crate) fn moves_shared(&self) -> bool {
        self.features & WP_SHMEM != 0
    }
    /// Replaces the private mapping of the pool's pages at `[lo, hi)`, from `part` on, by a shared one, with what was written to
    /// it. `map`: a descriptor of `/proc/self/pagemap`, or -1.
    pub(crate) fn thaw(&self, pool: &Pool, (lo, hi): (usize, usize), part: MappedPart, map: i32) -> bool {
        let (MappedPart { offset, prot }, direction) = (part, SwapDirection::Thaw(map));
        MoveJob { mover: self, pool, lo, hi, offset, prot, direction, alone: false, done: false }.run()
    }
    fn uffd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is kept open; the program may have closed it, and then the kernel refuses.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
    fn ioctl<const N: usize>(&self, request: libc::c_ulong, words: &mut [u64; N]) -> bool {
        // SAFETY: the callers pass arrays of the size that `request` encodes.
        unsafe { userfaultfd::call(self.uffd(), request, words) }
    }
    /// Registers and write-protects the range (steps 1 and 2). `with_missing`: accesses to pages never touched wait as well.
    /// False: it is not protected.
    fn protect(&self, range: &UffdRange, with_missing: bool) -> bool {
        let mode = REGISTER_WP | if with_missing { REGISTER_MISSING } else { 0 };
        if !self.ioctl(UFFDIO_REGISTER, &mut [range.start, range.len, mode, 0]) {
            return false;
        }
        let protected = self.ioctl(UFFDIO_WRITEPROTECT, &mut [range.start, range.len, MODE_WP]);
        if !protected {
            self.give_up(range);
        }
        protected
    }
    /// Removes the protection and wakes the waiting threads; the mapping stays the old one.
    fn give_up(&self, range: &UffdRange) {
        self.ioctl(UFFDIO_UNREGISTER, &mut [range.start, range.len]);
        self.wake(range);
    }
    fn wake(&self, range: &UffdRange) {
        self.ioctl(UFFDIO_WAKE, &mut [range.start, range.len]);
    }
}

/// A userfaultfd by its system call, or -1.
fn system_uffd(flags: i32) -> i32 {
    userfaultfd::open(flags).map_or(-1, IntoRawFd::into_raw_fd)
}

/// A userfaultfd for kernel-mode faults too, by the system call or `/dev/userfaultfd`, or -1.
fn full_uffd() -> i32 {
    let fd = system_uffd(0);
    if fd >= 0 { fd } else { device_uffd(libc::O_CLOEXEC | libc::O_NONBLOCK) }
}

/// A userfaultfd by `/dev/userfaultfd`, or -1.
fn device_uffd(flags: i32) -> i32 {
    // SAFETY: a constant path; numbers.
    unsafe {
        let device = libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if device < 0 {
            return -1;
        }
        let fd = libc::ioctl(device, USERFAULTFD_IOC_NEW, flags);
        libc::close(device);
        fd
    }
}

impl MoveJob<'_> {
    fn run(mut self) -> bool {
        debug_assert!(
            self.lo < self.hi && self.lo.is_multiple_of(self.pool.page) && self.hi.is_multiple_of(self.pool.page)
        );
        let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are written by these calls before they are used.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        if self.concerns_this_thread() {
            self.alone = false;
            self.run_elsewhere();
        } else {
            self.work();
        }
        // SAFETY: `before` was written above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
        self.done
    }
    /// Whether this thread's stack or errno lies in the range.
    fn concerns_this_thread(&self) -> bool {
        let mark = 0u8;
        let sp = &raw const mark as usize;
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() } as usize;
        let overlaps = |first: usize, last: usize| self.lo < last && first < self.hi;
        overlaps(sp.saturating_sub(STACK_BELOW), sp.saturating_add(STACK_ABOVE)) || overlaps(errno, errno + 4)
    }
    fn run_elsewhere(&mut self) {
        let job = (&raw mut *self).cast::<libc::c_void>();
        let mut thread = 0;
        // SAFETY: the attribute object is initialised before its use and destroyed after it; the thread gets a
        // pointer to `self`, which outlives it, for we join at once.
        unsafe {
            let mut attr = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
            libc::pthread_attr_init(attr.as_mut_ptr());
            libc::pthread_attr_setstacksize(attr.as_mut_ptr(), HELPER_STACK);
            let mut rc = libc::pthread_create(&raw mut thread, attr.as_ptr(), helper, job);
            libc::pthread_attr_destroy(attr.as_mut_ptr());
            if rc != 0 {
                // A program with much static thread-local storage needs a larger stack: the default.
                rc = libc::pthread_create(&raw mut thread, core::ptr::null(), helper, job);
            }
            if rc == 0 {
                libc::pthread_join(thread, null_mut());
            }
        }
    }
    fn work(&mut self) {
        let step = self.mover.chunk.max(self.pool.page);
        let mut at = self.lo;
        while at < self.hi {
            let len = step.min(self.hi - at);
            debug_assert!(len.is_multiple_of(self.pool.page) && len > 0);
            let chunk = Chunk { pool: self.pool, at, len, offset: self.offset + (at - self.lo), prot: self.prot };
            let moved = match self.direction {
                SwapDirection::In(map) if self.alone => chunk.swap_in_alone(map),
                SwapDirection::Out if self.alone && self.pool.page == PAGE => chunk.swap_out_alone(),
                SwapDirection::In(map) => chunk.swap_in(self.mover, map),
                SwapDirection::Out => chunk.swap_out(self.mover),
                SwapDirection::Thaw(map) => chunk.thaw(self.mover, map),
            };
            if !moved {
                return;
            }
            at += len;
        }
        self.done = true;
    }
}

extern "C" fn helper(job: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `run_elsewhere` passes its job and waits for us. While a chunk is protected the job is only read; it is
    // written (`done`) after the last wake-up.
    unsafe { (*job.cast::<MoveJob<'_>>()).work() };
    null_mut()
}

/// A part of the range of a job.
struct Chunk<'a> {
    pool: &'a Pool,
    at: usize,
    len: usize,
    /// Offset in the pool of the page at `at`.
    offset: usize,
    prot: i32,
}

impl Chunk<'_> {
    fn range(&self) -> UffdRange {
        UffdRange { start: self.at as u64, len: self.len as u64 }
    }
    /// Maps the pool's pages shared in place.
    ///
    /// # Safety
    /// They have the contents of the pages that they replace.
    unsafe fn map_shared(&self) -> bool {
        // SAFETY: every address in the range stays valid with the same contents and rights.
        unsafe { kernel::map_over(self.at, self.len, self.prot, self.pool.fd(), self.offset) }
    }
    fn swap_in_alone(&self, map: i32) -> bool {
        // SAFETY: the pages are copied before.
        self.copy_touched_to_pool(map) && unsafe { self.map_shared() }
    }

    /// Fresh pages in place, not moved there, become part of the mapping beside them: moved pages keep the number of their first
    /// address, by which the kernel does not join them. Other threads would see them empty for a moment.
    fn swap_out_alone(&self) -> bool {
        // SAFETY: the pool's pages stay in the pool; this thread does not use them meanwhile (`concerns_this_thread`).
        let mapped = unsafe { kernel::map_fresh_over(self.at, self.len, self.prot | libc::PROT_WRITE) };
        if !mapped {
            return false;
        }
        // All at once. A failure leaves that to the copy.
        kernel::populate_for_writes(self.at, self.len);
        // SAFETY: the rights are those that the program has given; without a copy the pool's pages are mapped again.
        unsafe {
            if !copy_from_pool(self.pool, self.offset, self.len, self.at as *mut u8) {
                self.map_shared();
                return false;
            }
            self.prot & libc::PROT_WRITE != 0 || kernel::protect(self.at, self.len, self.prot)
        }
    }
    fn swap_in(&self, mover: &PageMover, map: i32) -> bool {
        let range = self.range();
        if map >= 0 && mover.protect(&range, false) {
            // SAFETY: the pages are copied before.
            if self.copy_sparse_to_pool(mover, map) && unsafe { self.map_shared() } {
                mover.wake(&range);
                return true;
            }
            mover.give_up(&range);
        }
        // Those that are missing would not be protected.
        if !kernel::populate(self.at, self.len) || !mover.protect(&range, false) {
            return false;
        }
        // SAFETY: the pages are copied before.
        let mapped = self.copy_part_to_pool(self.at, self.len) && unsafe { self.map_shared() };
        if mapped {
            mover.wake(&range)
        } else {
            mover.give_up(&range)
        }
        mapped
    }

    /// Copies pages that are protected, and lets accesses to those never touched wait. False: there are too many runs of such
    /// pages, or one was touched before accesses to it waited. Accesses to the copied pages do not wait if they are missing by
    /// now (the program discards them, or the kernel takes those of `MADV_FREE`): this thread would wait for itself.
    fn copy_sparse_to_pool(&self, mover: &PageMover, map: i32) -> bool {
        let mut holes = 0;
        each_run(map, (self.at, self.len), pagemap::is_touched, |at, len, is_touched| {
            let part = Chunk { at, len, offset: self.offset + (at - self.at), ..*self };
            if is_touched {
                // Again: pages may have come between the protection and the look.
                return mover.protect(&part.range(), false) && part.copy_part_to_pool(at, len);
            }
            holes += 1;
            holes <= HOLES_MAX
                && mover.protect(&part.range(), true)
                && each_run(map, (at, len), pagemap::is_touched, |_, _, is_touched| !is_touched)
                && self.pool.fill_with_zeros(part.offset, len)
        })
    }
    fn swap_out(&self, mover: &PageMover) -> bool {
        let (range, len) = (self.range(), self.len);
        let Some(copy) = private_pages(self.pool.page, len) else { return false };
        let moved = mover.protect(&range, false) && {
            let ok = copy_from_pool(self.pool, self.offset, len, copy) && put_over(copy, len, self.at, self.prot);
            if ok {
                mover.wake(&range)
            } else {
                mover.give_up(&range)
            }
            ok
        };
        if !moved {
            // SAFETY: the pages that `private_pages` made and that were not moved.
            unsafe { kernel::unmap(copy, len) };
        }
        moved
    }
    fn thaw(&self, mover: &PageMover, map: i32) -> bool {
        let (range, prot) = (self.range(), self.prot);
        // Present pages show in the map whether they are the pool's. A failure only makes more pages be copied.
        kernel::populate(self.at, self.len);
        if !mover.protect(&range, false) {
            return false;
        }
        // SAFETY: for the time of the copy the pages can be read; then they have their rights again.
        let readable =
            prot & libc::PROT_READ != 0 || unsafe { kernel::protect(self.at, self.len, prot | libc::PROT_READ) };
        // SAFETY: the pages are the pool's, or copied to it.
        let mapped = readable && self.copy_written_to_pool(map) && unsafe { self.map_shared() };
        if mapped {
            mover.wake(&range)
        } else {
            mover.give_up(&range)
        }
        mapped
    }

    /// Copies those pages to the pool that are not the pool's own, as `/proc/self/pagemap` shows them.
    fn copy_written_to_pool(&self, map: i32) -> bool {
        each_run(map, (self.at, self.len), is_own_page, |at, len, is_own| !is_own || self.copy_part_to_pool(at, len))
    }

    /// Copies the pages to the pool; of those that were never touched it gets pages of zeros.
    fn copy_touched_to_pool(&self, map: i32) -> bool {
        if map < 0 {
            return self.copy_part_to_pool(self.at, self.len);
        }
        each_run(map, (self.at, self.len), pagemap::is_touched, |at, len, is_touched| {
            let offset = self.offset + (at - self.at);
            if is_touched { self.copy_part_to_pool(at, len) } else { self.pool.fill_with_zeros(offset, len) }
        })
    }
    fn copy_part_to_pool(&self, at: usize, len: usize) -> bool {
        copy_to_pool(self.pool, at, len, self.offset + (at - self.at))
    }
}

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
fn copy_to_pool(pool: &Pool, at: usize, len: usize, offset: usize) -> bool {
    if pool.page > PAGE {
        return with_window(pool, offset, len, |window| {
            // SAFETY: source and window are mapped and `len` long; writers of the source are held by the protection.
            unsafe { core::ptr::copy_nonoverlapping(at as *const u8, window, len) }
        });
    }
    // SAFETY: the kernel checks the source; reading never waits for the protection.
    each(offset, len, |to, left| unsafe {
        libc::pwrite(pool.fd(), (at + (to - offset)) as *const _, left, to as libc::off_t)
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
    // SAFETY: `to` is writable for `len` bytes.
    each(at, len, |at, left| unsafe { libc::pread(pool.fd(), to.add(at - first).cast(), left, at as libc::off_t) })
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
    use super::super::pool::PoolSet;
    use super::super::testing::{Memory, in_child, is_open, is_root, limit, mapped_bytes, memfd, open_count};
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    /// Pages of the pool at their own address.
    fn in_place(at: usize, prot: i32) -> MappedPart {
        MappedPart { offset: at, prot }
    }

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

    /// The features that the kernel offers, of a userfaultfd for user-mode faults; `None`: the kernel or a filter refuses.
    fn offered() -> Option<u64> {
        userfaultfd::agree(userfaultfd::open(USER_MODE_ONLY)?.as_fd(), 0)
    }

    /// Opens a userfaultfd and moves memory to a pool and back by it.
    fn check_moves(is_full: bool) {
        let Some(offered) = offered() else { return assert!(PageMover::open().is_none()) };
        let mover = PageMover::open().expect("a userfaultfd");
        // Bit 12 is that of WP_HUGETLBFS_SHMEM in linux/userfaultfd.h.
        assert_eq!(mover.features, offered & 0x1000);
        assert_eq!(mover.chunk, if is_full { CHUNK } else { CHUNK_USER_MODE });
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::fcntl(mover.fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
        let pool = PoolSet::new().get(PAGE).expect("a pool");
        let mut memory = Memory::new(40);
        memory.bytes().fill(7);
        let (lo, hi) = (memory.page(2), memory.page(39));
        assert!(mover.swap_in(&pool, (lo, hi), libc::PROT_READ | libc::PROT_WRITE, false));
        let mut copy = vec![0; 37 * PAGE];
        assert!(copy_from_pool(&pool, lo, copy.len(), copy.as_mut_ptr()) && copy.iter().all(|byte| *byte == 7));
        memory.bytes()[2 * PAGE] = 8;
        assert!(copy_from_pool(&pool, lo, 1, copy.as_mut_ptr()) && copy[0] == 8, "shared");
        if mover.features & WP_SHMEM != 0 {
            let old =
                PageMover { fd: mover.fd, identity: None, features: mover.features & !WP_SHMEM, chunk: mover.chunk };
            assert!(
                !old.swap_out(&pool, (lo, hi), in_place(lo, libc::PROT_READ | libc::PROT_WRITE), false),
                "shared memory cannot be protected"
            );
            assert!(mover.swap_out(&pool, (lo, hi), in_place(lo, libc::PROT_READ | libc::PROT_WRITE), false));
            pool.punch(lo, hi);
            assert!(memory.bytes().iter().enumerate().all(|(i, byte)| *byte == if i == 2 * PAGE { 8 } else { 7 }));
        }
    }

    #[test]
    fn the_kernel_gives_a_userfaultfd_with_its_features() {
        in_child(|| check_moves(is_root()));
    }

    #[test]
    fn without_privileges_faults_in_user_mode_are_enough() {
        in_child(|| {
            // SAFETY: numbers only; this child has one thread. Without the right to do so it has no privileges already.
            unsafe { libc::setuid(65_534) };
            // `vm.unprivileged_userfaultfd` gives everybody all faults.
            let all =
                std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1");
            check_moves(all);
        });
    }

    #[test]
    fn descriptor_0_serves_as_a_userfaultfd_for_a_moment() {
        in_child(|| {
            // SAFETY: a descriptor that this child does not use.
            unsafe { libc::close(0) };
            let (before, mover) = (open_count(), PageMover::open());
            assert_eq!(mover.is_some(), offered().is_some());
            assert!(!is_open(0) && mover.as_ref().is_none_or(|mover| mover.fd >= 512 && mover.is_alive()));
            assert_eq!(open_count(), before + usize::from(mover.is_some()));
            drop(mover);
            assert_eq!(open_count(), before);
        });
    }

    #[test]
    fn a_descriptor_that_is_another_file_by_now_is_left_alone() {
        in_child(|| {
            let Some(mover) = PageMover::open() else { return };
            let file = memfd(1, 0);
            // SAFETY: two descriptors of this test.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), mover.fd) }, mover.fd);
            let fd = mover.fd;
            assert!(!mover.is_alive());
            drop(mover);
            assert!(is_open(fd));
        });
    }

    #[test]
    fn the_device_gives_a_userfaultfd_to_those_who_may_open_it() {
        in_child(|| {
            let may = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
            for close_first in [false, true] {
                if close_first {
                    // The device gets number 0 for a moment.
                    // SAFETY: a descriptor that this child does not use.
                    unsafe { libc::close(0) };
                }
                let before = open_count();
                let fd = device_uffd(libc::O_CLOEXEC);
                assert_eq!((fd >= 0, open_count()), (may, before + usize::from(may)));
                // SAFETY: open, unless there is none.
                assert!(!may || userfaultfd::agree(unsafe { BorrowedFd::borrow_raw(fd) }, 0).is_some());
            }
        });
    }

    #[test]
    fn memory_that_cannot_be_moved_leaves_nothing_behind() {
        in_child(|| {
            let Some(mover) = PageMover::open().filter(|mover| mover.features & WP_SHMEM != 0) else { return };
            let pool = PoolSet::new().get(PAGE).expect("a pool");
            let (memory, program) = (Memory::new(4), std::fs::File::open("/proc/self/exe").expect("exe"));
            let (at, flags) = (memory.page(2) as *mut _, libc::MAP_PRIVATE | libc::MAP_FIXED);
            // SAFETY: a page of this test.
            let file = unsafe { libc::mmap(at, PAGE, libc::PROT_READ, flags, program.as_raw_fd(), 0) };
            assert_eq!(file, at, "{}", std::io::Error::last_os_error());
            let (before, rights) = (mapped_bytes(), libc::PROT_READ | libc::PROT_WRITE);
            for (first, last) in [(0, 4), (2, 3)] {
                assert!(
                    !mover.swap_in(&pool, (memory.page(first), memory.page(last)), rights, false),
                    "a page of a file"
                );
                assert!(
                    !mover.swap_out(
                        &pool,
                        (memory.page(first), memory.page(last)),
                        in_place(memory.page(first), rights),
                        false
                    ),
                    "a page of a file"
                );
            }
            assert_eq!(mapped_bytes(), before);
        });
    }

    #[test]
    fn pages_without_rights_and_never_touched_are_protected() {
        let Some(mover) = PageMover::open() else { return };
        let memory = Memory::new(1);
        memory.protect(0..1, libc::PROT_NONE);
        let range = UffdRange { start: memory.at as u64, len: PAGE as u64 };
        for with_missing in [false, true] {
            assert!(mover.protect(&range, with_missing));
            mover.give_up(&range);
        }
    }

    /// Pages that another thread discards after the look at `/proc/self/pagemap`; a file in its place shows them as present.
    #[test]
    fn pages_that_are_missing_by_now_are_zeros_to_the_copy() {
        let Some(mover) = PageMover::open() else { return };
        let (pool, mut memory, map) = (PoolSet::new().get(PAGE).expect("a pool"), Memory::new(4), memfd(1, 0));
        let (entries, offset) = ([pagemap::PRESENT; 4], memory.at / PAGE * size_of::<u64>());
        // SAFETY: `entries` is readable for its length.
        let written = unsafe { libc::pwrite(map.as_raw_fd(), entries.as_ptr().cast(), 32, offset as libc::off_t) };
        assert_eq!(written, 32);
        let (prot, direction) = (libc::PROT_READ | libc::PROT_WRITE, SwapDirection::In(map.as_raw_fd()));
        let (lo, hi) = (memory.at, memory.at + 4 * PAGE);
        let job =
            MoveJob { mover: &mover, pool: &pool, lo, hi, offset: lo, prot, direction, alone: false, done: false };
        assert!(job.run());
        memory.bytes()[0] = 3;
        let mut copy = [9; 2];
        assert!(copy_from_pool(&pool, lo, 2, copy.as_mut_ptr()) && copy == [3, 0]);
    }

    #[test]
    fn a_thread_does_not_protect_its_own_stack_or_errno() {
        let (mover, pool) = (
            PageMover { fd: -1, identity: None, features: 0, chunk: CHUNK },
            PoolSet::new().get(PAGE).expect("a pool"),
        );
        // Keeps the frames below away from the memory of the thread, errno included, that lies above the stack.
        let room = std::hint::black_box([0u8; 8 * STACK_ABOVE]);
        let here = room.as_ptr() as usize;
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() } as usize;
        let concerns = |lo: usize, len: usize| {
            let (direction, prot, alone, done) = (SwapDirection::In(-1), 0, false, false);
            MoveJob { mover: &mover, pool: &pool, lo, hi: lo + len, offset: lo, prot, direction, alone, done }
                .concerns_this_thread()
        };
        assert!(
            concerns(errno, 4) && concerns(errno - 1, 2) && concerns(errno + 3, 1) && concerns(errno - PAGE, 2 * PAGE)
        );
        assert!(!concerns(errno - 4, 4) && !concerns(errno + 4, 4));
        // The frames below are a few KiB long.
        assert!(concerns(here - STACK_BELOW / 2, PAGE) && concerns(here + STACK_ABOVE / 4, 1));
        assert!(concerns(here - 4 * STACK_BELOW, 8 * STACK_BELOW), "the stack inside");
        assert!(!concerns(here - 2 * STACK_BELOW, PAGE) && !concerns(here + 4 * STACK_ABOVE, PAGE));
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
        assert!(!copy_from_pool(&pool, super::super::pool::ADDRESS_MAX - PAGE, 2 * PAGE, copy.as_mut_ptr()));
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
