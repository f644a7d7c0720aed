//! The pools: sparse sealed memfds in which the page at address a lies at offset a.
//!
//! One pool for ordinary pages and one for each size of huge page, made when first needed. The size is that of the
//! whole address space, so a pool never grows and can be sealed against growing and shrinking from the start; pages
//! exist only at offsets that were swapped in.

use super::vma::{Maps, Vma};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of an ordinary page.
pub(crate) const PAGE: usize = crate::page::PAGE;
/// End of the user address space (47 bits on x86-64, 48 on aarch64), and size of a pool.
pub(crate) const ADDRESS_MAX: usize = 1 << 48;
/// Lowest preferred descriptor: programs expect low numbers to be their own.
const FD_FLOOR: i32 = 512;
/// Most pools, one for each page size.
const POOLS_MAX: usize = 3;

/// What the names of mappings of pools begin with.
pub(crate) const MAPPING_NAME: &[u8] = b"/memfd:burst-pool";

/// Whether this process, or one that it was forked from, has made a pool.
static MADE: AtomicBool = AtomicBool::new(false);

/// Whether there may be mappings of pools in the process.
pub fn is_any_made() -> bool {
    // Relaxed: whoever discards registered pages has learnt of the registration by something stronger.
    MADE.load(Relaxed)
}

/// A memfd with pages of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    fd: i32,
    device: (u32, u32),
    inode: u64,
    pub(crate) page: usize,
}

/// Device and inode of an open file.
pub(crate) fn identity(fd: i32) -> Option<((u32, u32), u64)> {
    // SAFETY: all zeroes is a valid `stat`; fstat writes only into it.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is writable; a bad descriptor is an error, not undefined.
    let ok = unsafe { libc::fstat(fd, &raw mut st) } == 0;
    ok.then(|| ((libc::major(st.st_dev), libc::minor(st.st_dev)), st.st_ino))
}

/// The same file under a number that programs do not expect to be their own, if there is one; the old number is free then.
pub(crate) fn raised(fd: i32) -> i32 {
    // SAFETY: numbers only.
    let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FD_FLOOR) };
    if high < 0 {
        return fd;
    }
    debug_assert!(fd >= 0, "only an open file has a second number");
    // SAFETY: the caller's descriptor, replaced by `high`.
    unsafe { libc::close(fd) };
    high
}

impl Pool {
    fn create(page: usize) -> Option<Pool> {
        let huge = if page > PAGE { libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT } else { 0 };
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
        let name = c"burst-pool".as_ptr();
        MADE.store(true, Relaxed);
        // SAFETY: a constant string; the calls below only take numbers.
        let mut fd = unsafe { libc::memfd_create(name, flags | libc::MFD_NOEXEC_SEAL) };
        if fd < 0 {
            // SAFETY: as above; kernels before 6.3 do not know NOEXEC_SEAL.
            fd = unsafe { libc::memfd_create(name, flags) };
        }
        if fd < 0 {
            return None;
        }
        fd = raised(fd);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: numbers only.
        let ready = unsafe {
            libc::ftruncate(fd, ADDRESS_MAX as libc::off_t) == 0 && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        match identity(fd) {
            Some((device, inode)) if ready => Some(Pool { fd, device, inode, page }),
            _ => {
                // SAFETY: our own descriptor.
                unsafe { libc::close(fd) };
                None
            }
        }
    }
    pub(crate) fn fd(&self) -> i32 {
        self.fd
    }
    fn owns(&self, vma: &Vma) -> bool {
        vma.shared && self.backs(vma)
    }
    /// Whether `vma` maps the pool, shared or not.
    pub(crate) fn backs(&self, vma: &Vma) -> bool {
        vma.inode == self.inode && vma.device == self.device
    }
    /// Whether the descriptor still is the pool: programs that become daemons close all descriptors that they do not know.
    pub(crate) fn is_alive(&self) -> bool {
        identity(self.fd) == Some((self.device, self.inode))
    }
    /// Gives the pages from `offset` on memory that reads as zeros. False: there is none.
    pub(crate) fn fill_with_zeros(&self, offset: usize, len: usize) -> bool {
        let call = |mode| {
            // SAFETY: numbers only.
            unsafe { libc::fallocate(self.fd, mode, offset as libc::off_t, len as libc::off_t) == 0 }
        };
        // What an earlier registration may have left there goes first.
        call(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) && call(libc::FALLOC_FL_KEEP_SIZE)
    }
    /// Frees the pages of `[lo, hi)`.
    pub(crate) fn punch(&self, lo: usize, hi: usize) {
        debug_assert!(lo.is_multiple_of(self.page) && hi.is_multiple_of(self.page) && lo <= hi && hi <= ADDRESS_MAX);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if self.is_alive() {
            // SAFETY: numbers only; a failure leaves memory allocated.
            unsafe { libc::fallocate(self.fd, mode, lo as libc::off_t, (hi - lo) as libc::off_t) };
        }
    }
}

/// How long the files may be that this process writes.
fn file_bytes_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// The pools of the process.
#[derive(Debug)]
pub(crate) struct PoolSet([Option<Pool>; POOLS_MAX]);

impl PoolSet {
    pub(crate) const fn new() -> PoolSet {
        PoolSet([None; POOLS_MAX])
    }
    /// The pool for this page size, if there is one.
    pub(crate) fn known(&self, page: usize) -> Option<&Pool> {
        self.0.iter().flatten().find(|p| p.page == page)
    }
    /// The pool for this page size; it is made if there is none, or if the program has closed it. `None` if files may not be as
    /// long (`RLIMIT_FSIZE`): a write beyond the limit is a signal that ends the program.
    pub(crate) fn get(&mut self, page: usize) -> Option<Pool> {
        if file_bytes_max() < ADDRESS_MAX as u64 {
            return None;
        }
        if let Some(pool) = self.known(page).filter(|p| p.is_alive()) {
            return Some(*pool);
        }
        let place = self.0.iter_mut().find(|p| p.is_none_or(|p| p.page == page))?;
        *place = Pool::create(page);
        *place
    }
    /// The pool that is mapped by `vma`.
    pub(crate) fn owner(&self, vma: &Vma) -> Option<&Pool> {
        self.0.iter().flatten().find(|p| p.owns(vma))
    }
    /// The pool of which `vma` is a private mapping.
    pub(crate) fn copied(&self, vma: &Vma) -> Option<&Pool> {
        self.0.iter().flatten().find(|p| !vma.shared && p.backs(vma))
    }
    /// Whether there is a pool.
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
    /// Whether a page of `[lo, hi)` of a pool is mapped anywhere.
    pub(crate) fn maps_any(&self, maps: &Maps, lo: usize, hi: usize) -> bool {
        maps.any(|vma| vma.offsets_in(lo, hi).is_some() && self.0.iter().flatten().any(|pool| pool.backs(vma)))
    }
    /// Frees the pages of `[lo, hi)`, where no pool is mapped any more, unless the program has moved the mapping elsewhere.
    /// False: it has.
    pub(crate) fn forget(&self, maps: &Maps, lo: usize, hi: usize) -> bool {
        let mut all = true;
        for pool in self.0.iter().flatten().filter(|_| lo < hi) {
            let is_mapped = maps.any(|vma| pool.backs(vma) && vma.offsets_in(lo, hi).is_some());
            if !is_mapped {
                let round = pool.page - 1;
                pool.punch((lo + round) & !round, (hi & !round).max((lo + round) & !round));
            }
            all &= !is_mapped;
        }
        all
    }
    /// Forgets the pools in a child: they belong to the parent. `closes`: the descriptors are copies, and closed.
    pub(crate) fn abandon(&mut self, closes: bool) {
        for pool in self.0.iter().flatten().filter(|p| closes && p.is_alive()) {
            // SAFETY: our own descriptor, verified.
            unsafe { libc::close(pool.fd) };
        }
        self.0 = [None; POOLS_MAX];
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Memory, in_child, is_open, limit, memfd, open_count};
    use super::super::vma::parse_line;
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    fn seals(fd: i32) -> i32 {
        // SAFETY: numbers only.
        unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }
    }

    fn status(fd: i32) -> libc::stat {
        // SAFETY: all zeroes is a valid `stat`.
        let mut st: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `st` is writable.
        assert_eq!(unsafe { libc::fstat(fd, &raw mut st) }, 0);
        st
    }

    /// A pool whose pages have `page` bytes, in a file of ordinary pages.
    fn pool_of(page: usize) -> Pool {
        let fd = memfd(64, libc::F_SEAL_SHRINK).into_raw_fd();
        let (device, inode) = identity(fd).expect("open");
        Pool { fd, device, inode, page }
    }

    /// A mapping of the pool's page `page` at the address `at`, as a line of `/proc/self/maps`.
    fn mapping_of(pool: &Pool, at: usize, rights: &str, (device, inode): ((u32, u32), u64)) -> Vma {
        let (end, offset, (major, minor)) = (at + PAGE, pool.page, device);
        let line =
            format!("{at:x}-{end:x} {rights} {offset:x} {major:x}:{minor:x} {inode} /memfd:burst-pool (deleted)");
        parse_line(line.as_bytes()).expect("a line")
    }

    /// Gives the pages of the file memory.
    fn fill(pool: &Pool, pages: std::ops::Range<usize>) {
        for page in pages {
            // SAFETY: one byte of a live array.
            let n = unsafe { libc::pwrite(pool.fd, [1u8].as_ptr().cast(), 1, (page * PAGE) as i64) };
            assert_eq!(n, 1);
        }
    }

    /// The first and last of the file's first 64 pages with memory, and their number.
    fn filled(pool: &Pool) -> (Option<usize>, Option<usize>, usize) {
        let has_memory = |page: &usize| {
            let mut byte = [0u8];
            // SAFETY: one writable byte.
            unsafe { libc::pread(pool.fd, byte.as_mut_ptr().cast(), 1, (page * PAGE) as i64) };
            byte == [1]
        };
        let pages: Vec<usize> = (0..64).filter(has_memory).collect();
        (pages.first().copied(), pages.last().copied(), pages.len())
    }

    #[test]
    fn a_pool_is_sealed_sparse_and_away_from_the_programs_descriptors() {
        in_child(|| {
            let before = open_count();
            let pool = Pool::create(PAGE).expect("a pool");
            assert_eq!(open_count(), before + 1, "one descriptor");
            assert!(pool.fd() >= FD_FLOOR && pool.fd() == pool.fd);
            // SAFETY: numbers only.
            assert_eq!(unsafe { libc::fcntl(pool.fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
            let (st, all) = (status(pool.fd), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL);
            assert_eq!((st.st_size, st.st_blocks, seals(pool.fd) & all), (ADDRESS_MAX as i64, 0, all));
            // The kernel knows the seal against execution: it is set.
            // SAFETY: a constant name, and numbers.
            let plain = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_NOEXEC_SEAL) };
            assert_eq!(seals(pool.fd) & libc::F_SEAL_EXEC != 0, plain >= 0);
            assert_eq!((pool.device, pool.inode), ((libc::major(st.st_dev), libc::minor(st.st_dev)), st.st_ino));
        });
    }

    #[test]
    fn descriptor_0_serves_as_well_as_others_for_a_moment() {
        in_child(|| {
            // A program that has closed its standard input.
            // SAFETY: a descriptor that this child does not use.
            unsafe { libc::close(0) };
            let before = open_count();
            assert!(Pool::create(PAGE).is_some_and(|pool| pool.fd >= FD_FLOOR));
            assert!(!is_open(0) && open_count() == before + 1);
        });
    }

    #[test]
    fn a_pool_is_made_within_the_programs_limits_or_leaves_nothing() {
        in_child(|| {
            limit(libc::RLIMIT_NOFILE, 64);
            let before = open_count();
            assert!(
                Pool::create(PAGE).is_some_and(|pool| pool.fd < 64 && pool.is_alive()),
                "a low number is better than none"
            );
            assert_eq!(open_count(), before + 1);
            // SAFETY: numbers only.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            limit(libc::RLIMIT_FSIZE, 1 << 20);
            assert!(Pool::create(PAGE).is_none(), "the size of the file is limited");
            assert_eq!(open_count(), before + 1);
        });
    }

    #[test]
    fn each_size_of_huge_pages_has_a_pool_of_its_own() {
        let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return };
        for name in sizes.flatten().map(|entry| entry.file_name().into_string().expect("text")) {
            let kilobytes = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")).expect("a size");
            let page = kilobytes.parse::<usize>().expect("a number") << 10;
            let pool = Pool::create(page).expect("a pool");
            assert_eq!((pool.page, status(pool.fd).st_blksize as usize), (page, page));
            // SAFETY: the pool of this test.
            unsafe { libc::close(pool.fd) };
        }
    }

    #[test]
    fn a_shared_mapping_of_the_file_is_the_pools() {
        let (pool, other) = (pool_of(PAGE), pool_of(2 * PAGE));
        let (own, foreign) = ((pool.device, pool.inode), (other.device, other.inode));
        let set = PoolSet([Some(other), Some(pool), None]);
        let page_of = |vma: &Vma| set.owner(vma).map(|pool| pool.page);
        assert_eq!(page_of(&mapping_of(&pool, 0x10000, "rw-s", own)), Some(PAGE));
        assert_eq!(page_of(&mapping_of(&pool, 0x10000, "r--s", foreign)), Some(2 * PAGE));
        assert_eq!(page_of(&mapping_of(&pool, 0x10000, "rw-p", own)), None, "private");
        assert_eq!(page_of(&mapping_of(&pool, 0x10000, "rw-s", (own.0, own.1 ^ 1 << 40))), None, "another inode");
        assert_eq!(
            page_of(&mapping_of(&pool, 0x10000, "rw-s", ((own.0.0, own.0.1 + 1), own.1))),
            None,
            "another device"
        );
        assert_eq!((set.known(PAGE).map(|p| p.fd), set.known(2 * PAGE).map(|p| p.fd)), (Some(pool.fd), Some(other.fd)));
        assert!(set.known(4 * PAGE).is_none());
    }

    #[test]
    fn a_pool_that_the_program_has_closed_is_made_anew() {
        in_child(|| {
            let mut set = PoolSet::new();
            let first = set.get(PAGE).expect("a pool");
            assert_eq!(set.get(PAGE).map(|pool| pool.inode), Some(first.inode), "one pool");
            assert!(first.is_alive());
            // SAFETY: the pool of this test.
            unsafe { libc::close(first.fd) };
            assert!(!first.is_alive() && set.known(PAGE).is_some());
            let second = set.get(PAGE).expect("a pool");
            assert!(second.is_alive() && second.inode != first.inode);
            // Its number is that of another file now.
            let file = memfd(1, 0);
            // SAFETY: two descriptors of this test.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), second.fd) }, second.fd);
            fill(&second, 0..1);
            assert!(!second.is_alive());
            second.punch(0, PAGE);
            assert_eq!(filled(&second).2, 1, "the other file keeps its memory");
            let third = set.get(PAGE).expect("a pool");
            assert!(third.is_alive() && third.fd != second.fd && set.0.iter().flatten().count() == 1);
            // In a forked child: what is not the pool stays open.
            set.0[1] = Some(second);
            set.abandon(true);
            assert!(!is_open(third.fd) && is_open(second.fd) && set.0.iter().flatten().count() == 0);
        });
    }

    #[test]
    fn pages_are_freed_where_the_pool_is_mapped_nowhere() {
        let pool = pool_of(PAGE);
        fill(&pool, 0..64);
        let moved = Memory::of(pool.fd, 5 * PAGE, 2);
        let (set, maps) = (PoolSet([None, Some(pool), None]), Maps::open().expect("/proc/self/maps"));
        let forget = |lo: usize, hi: usize| {
            set.forget(&maps, lo * PAGE, hi * PAGE);
            filled(&pool).2
        };
        // The mapping of the pages 5 and 6 is there, or a part of it.
        assert_eq!([(5, 7), (5, 6), (6, 7), (4, 6), (6, 8), (0, 64)].map(|(lo, hi)| forget(lo, hi)), [64; 6]);
        assert_eq!((forget(8, 8), forget(9, 8)), (64, 64), "no page");
        assert_eq!((forget(3, 5), forget(7, 9)), (62, 60), "up to the mapping, and from its end on");
        drop(moved);
        assert_eq!(forget(4, 64), 3);
        assert_eq!(filled(&pool), (Some(0), Some(2), 3));
    }

    #[test]
    fn only_whole_pages_of_a_pool_are_freed() {
        let pool = pool_of(4 * PAGE);
        fill(&pool, 0..64);
        let (set, maps) = (PoolSet([Some(pool), None, None]), Maps::open().expect("/proc/self/maps"));
        for (lo, hi) in [(1, 3), (1, 4), (5, 7), (1, 7)] {
            set.forget(&maps, lo * PAGE, hi * PAGE);
            assert_eq!(filled(&pool).2, 64, "{lo} to {hi}");
        }
        set.forget(&maps, 0, 5 * PAGE);
        assert_eq!(filled(&pool), (Some(4), Some(63), 60));
        set.forget(&maps, 45 * PAGE, 64 * PAGE);
        assert_eq!(filled(&pool), (Some(4), Some(47), 44));
        set.forget(&maps, 8 * PAGE, 12 * PAGE);
        assert_eq!(filled(&pool).2, 40);
    }
}
