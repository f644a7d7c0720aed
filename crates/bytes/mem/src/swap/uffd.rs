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
//!
//! Other threads may unmap and move mappings at any time. Those calls that the library sees wait for the end of a chunk
//! (`calls`). For others a chunk is looked at before the first step, and before the fourth the kernel is asked whether the
//! range still is protected: a mapping that has come there is not. What is between that answer and the fourth step, one system
//! call, cannot be closed: the kernel replaces whatever is there.
use super::advice::AdviceFlags;
use super::calls;
use super::copies::{copy_from_pool, copy_to_pool, private_pages, put_over};
use super::kernel;
use super::pagemap::{self, PageMap, each_run, is_own_page};
use super::pool::{PAGE, Pool, identity, raised};
use super::vma::{MappedPart, Maps, errno};
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

/// A range whose pages are exchanged.
#[derive(Clone, Copy)]
pub(crate) struct MovedRange<'a> {
    pub(crate) pool: &'a Pool,
    /// First and end address.
    pub(crate) lo: usize,
    pub(crate) hi: usize,
    /// The pool's page at `lo`, and the rights of the mapping.
    pub(crate) part: MappedPart,
    /// Flags that the new mapping gets.
    pub(crate) flags: AdviceFlags,
    /// Where each chunk is looked for before it is exchanged; `None`: the caller knows that it is there.
    pub(crate) maps: Option<&'a Maps>,
}

/// The exchange of the pages of a whole range.
struct MoveJob<'a> {
    mover: &'a PageMover,
    range: MovedRange<'a>,
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
    /// Replaces private pages by the pool's. False: the kernel has refused a chunk; the chunks before it stay swapped (the caller
    /// swaps them out).
    /// `alone`: the process has no other thread.
    pub(crate) fn swap_in(&self, range: MovedRange<'_>, alone: bool) -> bool {
        // Not worth its system calls for few pages that need no protection.
        let looks = range.pool.page == PAGE && (!alone || range.hi - range.lo >= LOOKED_AT);
        let map = looks.then(PageMap::open).flatten();
        let direction = SwapDirection::In(map.as_ref().map_or(-1, PageMap::fd));
        MoveJob { mover: self, range, direction, alone, done: false }.run()
    }
    /// Replaces mapped pages of the pool by private copies. `alone`: the process has no other thread; then the copies become part
    /// of the mapping beside them. False: the kernel refuses, or other memory has come there; the chunks before are private.
    pub(crate) fn swap_out(&self, range: MovedRange<'_>, alone: bool) -> bool {
        let direction = SwapDirection::Out;
        self.features & WP_SHMEM != 0 && MoveJob { mover: self, range, direction, alone, done: false }.run()
    }
    /// Whether it can protect shared memory.
    pub(crate) fn moves_shared(&self) -> bool {
        self.features & WP_SHMEM != 0
    }
    /// Replaces a private mapping of the pool's pages by a shared one, with what was written to it. `map`: a descriptor of
    /// `/proc/self/pagemap`, or -1. False: as of [`PageMover::swap_out`].
    pub(crate) fn thaw(&self, range: MovedRange<'_>, map: i32) -> bool {
        let direction = SwapDirection::Thaw(map);
        MoveJob { mover: self, range, direction, alone: false, done: false }.run()
    }
    /// Whether the range, in one mapping, is registered with another userfaultfd: the program's.
    pub(crate) fn is_anothers(&self, lo: usize, hi: usize) -> bool {
        let range = UffdRange { start: lo as u64, len: (hi - lo) as u64 };
        if self.ioctl(UFFDIO_REGISTER, &mut [range.start, range.len, REGISTER_MISSING, 0]) {
            self.give_up(&range);
            return false;
        }
        errno() == libc::EBUSY
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
    /// Whether the range still is the memory that was protected: a mapping that has come there is not registered.
    fn still_protects(&self, range: &UffdRange) -> bool {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut [range.start, range.len, MODE_WP])
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
        let MovedRange { lo, hi, pool, .. } = self.range;
        debug_assert!(lo < hi && lo.is_multiple_of(pool.page) && hi.is_multiple_of(pool.page));
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
        let overlaps = |first: usize, last: usize| self.range.lo < last && first < self.range.hi;
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
        let MovedRange { pool, lo, hi, part, .. } = self.range;
        let step = self.mover.chunk.max(pool.page);
        let mut at = lo;
        while at < hi {
            let len = step.min(hi - at);
            debug_assert!(len.is_multiple_of(pool.page) && len > 0);
            let chunk = Chunk { pool, at, len, offset: part.offset + (at - lo), prot: part.prot };
            let _exchange = calls::exchange();
            if !self.exchange(chunk) {
                return;
            }
            self.range.flags.apply(at, at + len);
            at += len;
        }
        self.done = true;
    }
    /// False: it was refused, or is not there any more.
    fn exchange(&self, mut chunk: Chunk<'_>) -> bool {
        let is_shared = matches!(self.direction, SwapDirection::Out);
        if let Some(maps) = self.range.maps.filter(|maps| chunk.at == self.range.lo || maps.is_asked()) {
            let Some(prot) = chunk.look(maps, is_shared) else { return false };
            chunk.prot = prot;
        }
        match self.direction {
            SwapDirection::In(map) if self.alone => chunk.swap_in_alone(map),
            SwapDirection::Out if self.alone && chunk.pool.page == PAGE => chunk.swap_out_alone(),
            SwapDirection::In(map) => chunk.swap_in(self.mover, map),
            SwapDirection::Out => chunk.swap_out(self.mover),
            SwapDirection::Thaw(map) => chunk.thaw(self.mover, map),
        }
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
    /// The rights of the pool's pages, if they still are mapped here.
    fn look(&self, maps: &Maps, is_shared: bool) -> Option<i32> {
        debug_assert!(self.len > 0 && self.offset.is_multiple_of(PAGE));
        let distance = (self.offset as u64).wrapping_sub(self.at as u64);
        maps.rights_of(self.at, self.at + self.len, |vma| {
            let is_place = vma.offset.wrapping_sub(vma.start as u64) == distance;
            vma.shared == is_shared && self.pool.backs(vma) && is_place
        })
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
            if self.copy_sparse_to_pool(mover, map) && mover.still_protects(&range) && unsafe { self.map_shared() } {
                mover.wake(&range);
                return true;
            }
            mover.give_up(&range);
        }
        // Those that are missing would not be protected.
        if !kernel::populate(self.at, self.len) || !mover.protect(&range, false) {
            return false;
        }
        let copied = self.copy_part_to_pool(self.at, self.len) && mover.still_protects(&range);
        // SAFETY: the pages are copied before.
        let mapped = copied && unsafe { self.map_shared() };
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
            let ok = copy_from_pool(self.pool, self.offset, len, copy)
                && mover.still_protects(&range)
                && put_over(copy, len, self.at, self.prot);
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
        let mapped =
            readable && self.copy_written_to_pool(map) && mover.still_protects(&range) && unsafe { self.map_shared() };
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

#[cfg(test)]
mod tests {
    use super::super::pool::PoolSet;
    use super::super::testing::{Memory, in_child, is_open, is_root, mapped_bytes, memfd, open_count};
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    /// Pages of the pool at their own address, readable and writable.
    fn in_place(pool: &Pool, (lo, hi): (usize, usize)) -> MovedRange<'_> {
        let part = MappedPart { offset: lo, prot: libc::PROT_READ | libc::PROT_WRITE };
        MovedRange { pool, lo, hi, part, flags: AdviceFlags::default(), maps: None }
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
        assert!(mover.swap_in(in_place(&pool, (lo, hi)), false));
        let mut copy = vec![0; 37 * PAGE];
        assert!(copy_from_pool(&pool, lo, copy.len(), copy.as_mut_ptr()) && copy.iter().all(|byte| *byte == 7));
        memory.bytes()[2 * PAGE] = 8;
        assert!(copy_from_pool(&pool, lo, 1, copy.as_mut_ptr()) && copy[0] == 8, "shared");
        if mover.features & WP_SHMEM != 0 {
            let old =
                PageMover { fd: mover.fd, identity: None, features: mover.features & !WP_SHMEM, chunk: mover.chunk };
            assert!(!old.swap_out(in_place(&pool, (lo, hi)), false), "shared memory cannot be protected");
            assert!(mover.swap_out(in_place(&pool, (lo, hi)), false));
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
            let before = mapped_bytes();
            for (first, last) in [(0, 4), (2, 3)] {
                let range = in_place(&pool, (memory.page(first), memory.page(last)));
                assert!(!mover.swap_in(range, false) && !mover.swap_out(range, false), "a page of a file");
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
        let (lo, direction) = (memory.at, SwapDirection::In(map.as_raw_fd()));
        let range = in_place(&pool, (lo, lo + 4 * PAGE));
        assert!(MoveJob { mover: &mover, range, direction, alone: false, done: false }.run());
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
            let (direction, range) = (SwapDirection::In(-1), in_place(&pool, (lo, lo + len)));
            MoveJob { mover: &mover, range, direction, alone: false, done: false }.concerns_this_thread()
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

    /// Maps the pool's pages at the memory's address, or copies of them.
    fn map_pool(pool: &Pool, memory: &Memory, is_shared: bool) {
        let (at, rights) = (memory.at, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the test's memory.
        assert!(unsafe {
            match is_shared {
                true => kernel::map_over(at, memory.len(), rights, pool.fd(), at),
                false => kernel::map_copy_over(at, memory.len(), rights, pool.fd(), at),
            }
        });
    }

    /// What another thread has mapped where the pool's pages were, between the question about them and their exchange.
    #[test]
    fn memory_that_has_come_since_stays() {
        let Some(mover) = PageMover::open().filter(|mover| mover.moves_shared()) else { return };
        let (pool, maps) = (PoolSet::new().get(PAGE).expect("a pool"), Maps::open().expect("/proc/self/maps"));
        let text = Maps::open_text().expect("/proc/self/maps");
        for maps in [&maps, &text] {
            let mut memory = Memory::new(4);
            let range = MovedRange { maps: Some(maps), ..in_place(&pool, (memory.at, memory.page(4))) };
            for came in 0..3 {
                memory.bytes().fill(6);
                match came {
                    // Other memory.
                    0 => {}
                    // The pool's pages of another address.
                    1 => {
                        let offset = memory.at + (1 << 30);
                        // SAFETY: the test's memory.
                        assert!(unsafe { kernel::map_over(memory.at, 4 * PAGE, range.part.prot, pool.fd(), offset) });
                        memory.bytes().fill(6);
                    }
                    // Less than before.
                    _ => {
                        map_pool(&pool, &memory, true);
                        memory.bytes().fill(6);
                        // SAFETY: a page of this test.
                        assert!(unsafe { kernel::map_fresh_over(memory.page(2), PAGE, range.part.prot) });
                        memory.bytes().fill(6);
                    }
                }
                let before: Vec<_> = memory.mappings(maps);
                assert!(!mover.swap_out(range, false) && !mover.thaw(range, -1), "{came}");
                assert_eq!(memory.mappings(maps), before, "{came}");
                assert!(memory.bytes().iter().all(|byte| *byte == 6), "{came}");
            }
        }
    }

    #[test]
    fn nothing_is_mapped_where_nothing_is_any_more() {
        in_child(|| {
            let Some(mover) = PageMover::open().filter(|mover| mover.moves_shared()) else { return };
            let (pool, maps) = (PoolSet::new().get(PAGE).expect("a pool"), Maps::open().expect("/proc/self/maps"));
            let memory = Memory::new(4);
            let range = MovedRange { maps: Some(&maps), ..in_place(&pool, (memory.at, memory.page(4))) };
            drop(memory);
            let before = mapped_bytes();
            assert!(!mover.swap_out(range, false) && !mover.thaw(range, -1));
            assert_eq!(mapped_bytes(), before);
        });
    }

    #[test]
    fn rights_that_have_changed_since_are_kept() {
        let Some(mover) = PageMover::open().filter(|mover| mover.moves_shared()) else { return };
        let (pool, maps) = (PoolSet::new().get(PAGE).expect("a pool"), Maps::open().expect("/proc/self/maps"));
        for is_shared in [true, false] {
            let mut memory = Memory::new(4);
            map_pool(&pool, &memory, is_shared);
            memory.bytes().fill(6);
            memory.protect(0..4, libc::PROT_READ);
            let range = MovedRange { maps: Some(&maps), ..in_place(&pool, (memory.at, memory.page(4))) };
            assert!(if is_shared { mover.swap_out(range, false) } else { mover.thaw(range, -1) });
            let vma = maps.at_or_after(memory.at).expect("mapped");
            assert_eq!((vma.prot(), vma.shared), (libc::PROT_READ, !is_shared));
            memory.protect(0..4, libc::PROT_READ | libc::PROT_WRITE);
            assert!(memory.bytes().iter().all(|byte| *byte == 6));
        }
    }

    /// A call that the library does not see, after the range was protected.
    #[test]
    fn a_range_that_was_mapped_anew_is_not_protected_any_more() {
        let Some(mover) = PageMover::open() else { return };
        let memory = Memory::new(4);
        let range = UffdRange { start: memory.at as u64, len: 4 * PAGE as u64 };
        assert!(mover.protect(&range, false) && mover.still_protects(&range));
        // SAFETY: the test's memory.
        assert!(unsafe { kernel::map_fresh_over(memory.at, 4 * PAGE, libc::PROT_READ) });
        assert!(!mover.still_protects(&range));
        mover.give_up(&range);
    }
}
