//! The pools: sparse sealed memfds in which the page at address a lies at offset a.
//!
//! One pool for ordinary pages and one for each size of huge page, made when first needed. The size is that of the
//! whole address space, so a pool never grows and can be sealed against growing and shrinking from the start; pages
//! exist only at offsets that were swapped in.

use super::vma::{Maps, Vma};

/// Bytes of an ordinary page.
pub(crate) const PAGE: usize = 4096;
/// End of the user address space (47 bits on x86-64, 48 on aarch64), and size of a pool.
pub(crate) const ADDRESS_MAX: usize = 1 << 48;
/// Lowest preferred descriptor: programs expect low numbers to be their own.
const FD_FLOOR: i32 = 512;
/// Most pools, one for each page size.
const POOLS_MAX: usize = 3;

/// A memfd with pages of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    fd: i32,
    device: (u32, u32),
    inode: u64,
    pub(crate) page: usize,
}

fn identity(fd: i32) -> Option<((u32, u32), u64)> {
    // SAFETY: all zeroes is a valid `stat`; fstat writes only into it.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is writable; a bad descriptor is an error, not undefined.
    let ok = unsafe { libc::fstat(fd, &raw mut st) } == 0;
    ok.then(|| ((libc::major(st.st_dev), libc::minor(st.st_dev)), st.st_ino))
}

impl Pool {
    fn create(page: usize) -> Option<Pool> {
        let huge = if page > PAGE { libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT } else { 0 };
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
        let name = c"burst-pool".as_ptr();
        // SAFETY: a constant string; the calls below only take numbers.
        let mut fd = unsafe { libc::memfd_create(name, flags | libc::MFD_NOEXEC_SEAL) };
        if fd < 0 {
            // SAFETY: as above; kernels before 6.3 do not know NOEXEC_SEAL.
            fd = unsafe { libc::memfd_create(name, flags) };
        }
        if fd < 0 {
            return None;
        }
        // SAFETY: numbers only.
        let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FD_FLOOR) };
        if high >= 0 {
            // SAFETY: our own descriptor, replaced by `high`.
            unsafe { libc::close(fd) };
            fd = high;
        }
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
        vma.shared && vma.inode == self.inode && vma.device == self.device
    }
    /// Whether the descriptor still is the pool: programs that become daemons close all descriptors that they do not know.
    pub(crate) fn is_alive(&self) -> bool {
        identity(self.fd) == Some((self.device, self.inode))
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
    /// The pool for this page size; it is made if there is none, or if the program has closed it.
    pub(crate) fn get(&mut self, page: usize) -> Option<Pool> {
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
    /// Frees the pages of `[lo, hi)`, where no pool is mapped any more, unless the program has moved the mapping elsewhere.
    pub(crate) fn forget(&self, maps: &Maps, lo: usize, hi: usize) {
        if lo >= hi {
            return;
        }
        for pool in self.0.iter().flatten() {
            let overlaps =
                |v: &Vma| pool.owns(v) && v.offset < hi as u64 && v.offset + ((v.end - v.start) as u64) > lo as u64;
            if !maps.any(overlaps) {
                let round = pool.page - 1;
                pool.punch((lo + round) & !round, (hi & !round).max((lo + round) & !round));
            }
        }
    }
    /// Closes the pools in a forked child: they belong to the parent.
    pub(crate) fn abandon(&mut self) {
        for pool in self.0.iter().flatten().filter(|p| p.is_alive()) {
            // SAFETY: our own descriptor, verified.
            unsafe { libc::close(pool.fd) };
        }
        self.0 = [None; POOLS_MAX];
    }
}
