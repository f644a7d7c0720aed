//! Sharing an application's memory with the daemon, inside the application.
//!
//! [`register`] makes a range reachable for the daemon, in place: private anonymous pages (heap, stack, bss, private
//! huge pages) are replaced by a shared mapping of one sealed, sparse memfd, the *pool* (`pool`). The page at
//! address a lies at file offset a, so adjacent swaps merge in the kernel, one descriptor serves all regions, and a
//! range is always one piece. Of sealed shared memory that the program has made itself, the descriptor is passed. All
//! other memory, and any range that cannot be given as at most [`PIECES_MAX`] pieces, is left as it is and reached in the
//! process, through `/proc/PID/mem`.
//!
//! The mappings are always asked from the kernel (`vma`), never remembered: the program may unmap, remap or move
//! registered memory at any time. Only the number of registrations per page is remembered (`refs`): when the last one
//! ends, [`release`] makes those pages private again, so that `MADV_DONTNEED` zeroes them and a forked child gets a copy.
//! A swap loses no write of another thread (`uffd`). After a fork the child owns private copies (`fork`).
//!
//! Memory that a device has pinned stays where it is (`pinned`): a range that is pinned when it is registered is reached in
//! the process, and pages that are pinned when their last registration ends stay shared. `BURST_SWAP=off` in the
//! environment switches swapping off: every registration is then reached in the process.
//!
//! Limits: pages pinned for the duration of one direct I/O keep pointing at the old page, and so do those that no counter
//! of the kernel shows (`pinned`); a fork moves the live stack pages of the forking thread even if they are pinned; an
//! earlier `mlock` ends; memory moved by `mremap` while registered stays shared (`realloc` is kept from it). Where the
//! kernel lends userfaultfd for user-mode faults only, a system call that writes into a range while it is being swapped
//! may fail with EFAULT; ranges are swapped in pieces of at most 64 KiB there.
//!
//! This code runs inside other people's programs: it does not panic, does not print, and holds no lock across a fork.
mod foreign;
mod fork;
mod kernel;
mod lock;
mod pinned;
mod pool;
mod refs;
mod uffd;
mod vma;

use crate::region;
use lock::ForkLock;
use pinned::Pins;
use pool::PoolSet;
use refs::PageCounts;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use uffd::PageMover;
use vma::{Maps, Vma};

/// Most pieces of a registration; a range that needs more is reached in the process as a whole.
pub const PIECES_MAX: usize = region::PIECES_MAX;
/// Most mappings in the range of one registration; a range with more is reached in the process.
const VMAS_MAX: usize = 65_536;

/// How the daemon reaches a part of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceSource {
    /// By mapping the file of [`Registration::fd`]`(fd)`, from `offset` on.
    Fd {
        /// Index of the descriptor in the registration.
        fd: usize,
        /// Offset in the file, in bytes.
        offset: u64,
    },
    /// In this process only, by system calls.
    InProcess,
}

/// A part of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address in this process.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// How the daemon reaches it.
    pub kind: PieceSource,
}

/// Why a range cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// A part of the range is not mapped, or not readable, or not writable although writing was asked for: `EFAULT`.
    #[error("a part of the range is not mapped, or not with the rights that the region asks for")]
    Fault,
    /// Length 0 or beyond the address space: `EINVAL`.
    #[error("the range is empty or longer than the address space")]
    BadRange,
    /// A part of the range is a device's memory, mapped from its character device: `EFAULT`, as without a driver that
    /// gives adapters access to it.
    #[error(
        "a part of the range is a mapping of a device file: the daemon cannot reach memory of other devices; \
         register host memory (cudaHostAlloc, malloc) instead"
    )]
    Device,
}

/// The descriptor of a file that backs pieces of a registration.
#[derive(Debug)]
enum PieceFile {
    /// Of the pool, which exists as long as the process.
    Pool(i32),
    /// A duplicate of a descriptor of the program.
    Own(OwnedFd),
}

/// A registered range. [`release`] ends it, after the daemon has dropped the region.
#[derive(Debug)]
pub struct Registration {
    pieces: [Piece; PIECES_MAX],
    count: usize,
    fds: [Option<PieceFile>; PIECES_MAX],
    /// First and end address of the pages that are counted in the registry; both 0 when no page is the pool's.
    lo: usize,
    hi: usize,
    /// The epoch of the registry in which the pages were counted; a fork begins a new epoch in the child.
    epoch: u64,
}

impl Registration {
    /// The pieces, in order of address and without gaps.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
    /// Number of descriptors.
    pub fn fds(&self) -> usize {
        self.fds.iter().flatten().count()
    }
    /// Descriptor `i`, to be sent to the daemon at once.
    pub fn fd(&self, i: usize) -> Option<BorrowedFd<'_>> {
        match self.fds.get(i)?.as_ref()? {
            // SAFETY: the pool's descriptor is never closed by us while the process lives; if the program closes
            // it, sending fails or sends a file that the daemon refuses, for it checks seals and size.
            PieceFile::Pool(fd) => Some(unsafe { BorrowedFd::borrow_raw(*fd) }),
            PieceFile::Own(fd) => Some(fd.as_fd()),
        }
    }
    /// Whether the daemon must use system calls.
    pub fn is_in_process(&self) -> bool {
        self.pieces().iter().any(|p| p.kind == PieceSource::InProcess)
    }
    fn in_process(addr: usize, len: usize) -> Registration {
        let mut r = Registration::empty();
        r.pieces[0] = Piece { addr, len, kind: PieceSource::InProcess };
        r.count = 1;
        r
    }
    fn empty() -> Registration {
        let none = Piece { addr: 0, len: 0, kind: PieceSource::InProcess };
        Registration { pieces: [none; PIECES_MAX], count: 0, fds: [const { None }; PIECES_MAX], lo: 0, hi: 0, epoch: 0 }
    }
    /// Appends a piece, or extends the last one if the file goes on there. False: there are [`PIECES_MAX`] pieces already.
    fn push(&mut self, addr: usize, len: usize, offset: u64, source: PieceFile) -> bool {
        let same = |s: &Option<PieceFile>| match (s, &source) {
            (Some(PieceFile::Pool(a)), PieceFile::Pool(b)) => a == b,
            _ => false,
        };
        let known = self.fds.iter().position(same);
        if let (Some(fd), Some(last)) = (known, self.count.checked_sub(1)) {
            let last = &mut self.pieces[last];
            if last.kind == (PieceSource::Fd { fd, offset: offset.wrapping_sub(last.len as u64) }) {
                last.len += len;
                return true;
            }
        }
        let Some(fd) = known.or_else(|| self.fds.iter().position(Option::is_none)) else { return false };
        debug_assert!(
            self.count == 0 || self.pieces[self.count - 1].addr + self.pieces[self.count - 1].len == addr,
            "no gaps"
        );
        let Some(piece) = self.pieces.get_mut(self.count) else { return false };
        *piece = Piece { addr, len, kind: PieceSource::Fd { fd, offset } };
        self.fds[fd].get_or_insert(source);
        self.count += 1;
        true
    }
}

/// The state of swapping in this process.
#[derive(Debug)]
pub(crate) struct Registry {
    refs: PageCounts,
    pools: PoolSet,
    epoch: u64,
    /// Whether the fork handlers are installed.
    handlers: bool,
    /// Pages made private for the duration of a fork ([`fork`]).
    evicted: (usize, usize),
}

static REGISTRY: ForkLock<Registry> = ForkLock::new(Registry {
    refs: PageCounts::new(),
    pools: PoolSet::new(),
    epoch: 0,
    handlers: false,
    evicted: (0, 0),
});

/// Kind of a mapping, which decides how it is registered.
enum MappingClass {
    /// Already swapped: the page at address a is at offset a of the pool.
    Swapped,
    /// Private pages, which can be swapped.
    Private,
    /// Shared memory of the program, perhaps sealed.
    Shared,
    /// Any other mapping, which is reached by system calls.
    Other,
}

impl Registry {
    fn class(&self, vma: &Vma) -> MappingClass {
        if let Some(pool) = self.pools.owner(vma) {
            // The program has moved a mapping of the pool to another address.
            return if vma.offset == vma.start as u64 && pool.is_alive() {
                MappingClass::Swapped
            } else {
                MappingClass::Other
            };
        }
        match (vma.shared, vma.inode) {
            (false, 0) => MappingClass::Private,
            (false, _) if vma.page > pool::PAGE && vma.name().starts_with(b"/anon_hugepage") => MappingClass::Private,
            (true, inode) if inode != 0 => MappingClass::Shared,
            _ => MappingClass::Other,
        }
    }

    /// Checks the rights on the range, and whether the whole range can be given as pieces.
    fn survey(
        &self,
        maps: &Maps,
        pins: &mut Pins,
        (addr, end): (usize, usize),
        write: bool,
    ) -> Result<bool, RegisterError> {
        let (mut at, mut pieces, mut mappable, mut in_pool) = (addr, 0, true, 0);
        for _ in 0..VMAS_MAX {
            let vma = maps.at_or_after(at).filter(|v| v.start <= at).ok_or(RegisterError::Fault)?;
            if !vma.readable || (write && !vma.writable) {
                return Err(RegisterError::Fault);
            }
            let first = at.max(vma.start) & !(vma.page - 1);
            let class = self.class(&vma);
            if matches!(class, MappingClass::Shared | MappingClass::Other) && foreign::is_refused_device(&vma) {
                return Err(RegisterError::Device);
            }
            match class {
                // The lowest page of a stack must stay private, so that the stack can grow.
                MappingClass::Private if first <= vma.start && vma.name() == b"[stack]" => mappable = false,
                // The device would keep the old pages.
                MappingClass::Private if pins.may_hold(first, vma.end.min(end)) => mappable = false,
                MappingClass::Swapped | MappingClass::Private => {
                    pieces += usize::from(in_pool != vma.page);
                    in_pool = vma.page;
                }
                MappingClass::Shared => (pieces, in_pool) = (pieces + 1, 0),
                MappingClass::Other => mappable = false,
            }
            at = vma.end;
            if at >= end {
                return Ok(mappable && pieces <= PIECES_MAX);
            }
        }
        Ok(false)
    }

    /// Swaps the private pages in and collects the pieces. False: a part was refused. The caller counts the pages that are
    /// swapped by then and makes them private again.
    fn collect(&mut self, maps: &Maps, addr: usize, end: usize, write: bool) -> (Registration, bool) {
        let mut reg = Registration::empty();
        let (mut at, mut mover) = (addr, None);
        for _ in 0..VMAS_MAX {
            let Some(vma) = maps.at_or_after(at).filter(|v| v.start <= at) else { return (reg, false) };
            let stop = vma.end.min(end);
            // Whole pages, of the mapping's size.
            let (lo, hi) = (at & !(vma.page - 1), (stop + vma.page - 1) & !(vma.page - 1));
            debug_assert!(vma.start <= lo && hi <= vma.end && lo < hi, "mappings are whole pages");
            let source = match self.class(&vma) {
                MappingClass::Shared => {
                    foreign::descriptor(&vma, write).map(PieceFile::Own).map(|s| (s, vma.offset_of(at)))
                }
                MappingClass::Other => None,
                class => self.pools.get(vma.page).map(|p| (PieceFile::Pool(p.fd()), at as u64)).filter(|_| {
                    reg.lo = if reg.hi == 0 { lo } else { reg.lo };
                    reg.hi = hi;
                    matches!(class, MappingClass::Swapped) || self.swap_in(&mut mover, &vma, lo, hi)
                }),
            };
            let Some((source, offset)) = source else { return (reg, false) };
            if !reg.push(at, stop - at, offset, source) {
                return (reg, false);
            }
            at = stop;
            if at >= end {
                return (reg, true);
            }
        }
        (reg, false)
    }

    fn swap_in(&self, mover: &mut Option<PageMover>, vma: &Vma, lo: usize, hi: usize) -> bool {
        if mover.is_none() {
            *mover = PageMover::open();
        }
        let swapped = match (mover, self.pools.known(vma.page)) {
            (Some(mover), Some(pool)) => mover.swap_in(pool, lo, hi, vma.prot()),
            _ => false,
        };
        if swapped && vma.page == pool::PAGE {
            keep_in_place(lo, hi);
        }
        swapped
    }

    /// Makes the swapped pages of `[lo, hi)` private again and gives their memory back. Pages that a device may have pinned,
    /// or that the kernel refuses to exchange, stay shared, uncounted, until a later registration of them ends.
    fn swap_out(&mut self, maps: &Maps, pins: &mut Pins, lo: usize, hi: usize) {
        let (mut at, mut mover) = (lo, None);
        for _ in 0..VMAS_MAX {
            let vma = maps.at_or_after(at).filter(|v| v.start < hi);
            let gap_end = vma.as_ref().map_or(hi, |v| v.start.clamp(at, hi));
            // The program has unmapped this part: only pages of the pool are left to free.
            self.pools.forget(maps, at, gap_end);
            let Some(vma) = vma else { return };
            let (first, last) = (vma.start.max(at), vma.end.min(hi));
            debug_assert!(lo <= first && first < last && last <= hi);
            match (self.class(&vma), self.pools.known(vma.page)) {
                (MappingClass::Swapped, Some(_)) if pins.may_hold(first, last) => {}
                (MappingClass::Swapped, Some(pool)) => {
                    if mover.is_none() {
                        mover = PageMover::open();
                    }
                    if mover.as_ref().is_some_and(|m| m.swap_out(pool, first, last, vma.prot())) {
                        pool.punch(first, last);
                    }
                }
                _ => self.pools.forget(maps, first, last),
            }
            at = last;
            if at >= hi {
                return;
            }
        }
    }

    fn uncount(&mut self, maps: &Maps, pins: &mut Pins, lo: usize, hi: usize) {
        // The ranges whose last registration has ended, one at a time, because the counts change meanwhile.
        while let Some((first, last)) = self.refs.sub_next(lo, hi) {
            self.swap_out(maps, pins, first, last);
        }
    }
}

/// Makes `realloc` copy the large objects in `[lo, hi)` instead of moving their pages.
///
/// glibc's large objects are mappings of their own. `realloc` moves and grows them by `mremap`, even while they are registered:
/// UCX keeps buffers registered after their first use. A moved page of the pool would keep the file offset of its old
/// address, where another object may be registered later, and a grown object would be mapped over the pages of its
/// neighbour. `mremap` refuses a mapping in two parts (EFAULT), so each such object is split behind its first page, and
/// `realloc` allocates a new object and copies. The objects are recognised by the second word of their first page: their
/// length with bit 1 set (`IS_MMAPPED`). Other memory that happens to look like one is split without harm.
fn keep_in_place(lo: usize, hi: usize) {
    const MMAPPED: usize = 2;
    let mut at = lo;
    while at < hi {
        // SAFETY: the first words of a whole page that is mapped and readable (`survey`); any value is allowed.
        let word = unsafe { (at as *const usize).add(1).read_volatile() };
        let len = word & !7;
        if word & 7 != MMAPPED || !len.is_multiple_of(pool::PAGE) || len < 2 * pool::PAGE || len > hi - at {
            return;
        }
        kernel::set_apart(at, pool::PAGE);
        at += len;
    }
}

/// Makes `[addr, addr + len)` reachable for the daemon. `write`: the region has a right to write.
/// The range may be registered any number of times and overlap others.
pub fn register(addr: usize, len: usize, write: bool) -> Result<Registration, RegisterError> {
    let end =
        addr.checked_add(len).filter(|end| len > 0 && *end <= pool::ADDRESS_MAX).ok_or(RegisterError::BadRange)?;
    let Some(maps) = Maps::open() else { return Ok(Registration::in_process(addr, len)) };
    let mut pins = Pins::look();
    let mut registry = REGISTRY.lock();
    let mappable = registry.survey(&maps, &mut pins, (addr, end), write)?;
    if !mappable || pinned::is_switched_off() || !fork::install(&mut registry) {
        return Ok(Registration::in_process(addr, len));
    }
    let (mut reg, complete) = registry.collect(&maps, addr, end, write);
    reg.epoch = registry.epoch;
    if reg.hi > 0 {
        debug_assert!(reg.lo < reg.hi);
        registry.refs.add(reg.lo, reg.hi);
    }
    if !complete {
        registry.uncount_all(&maps, &mut pins, &reg);
        return Ok(Registration::in_process(addr, len));
    }
    Ok(reg)
}

/// Ends a registration: pages that no other registration covers become private again. The daemon must have dropped
/// the region before; its later writes would be lost.
pub fn release(registration: Registration) {
    if registration.hi == 0 {
        return;
    }
    let mut pins = Pins::look();
    let mut registry = REGISTRY.lock();
    // Registrations from before a fork are not counted in the child.
    if registration.epoch == registry.epoch
        && let Some(maps) = Maps::open()
    {
        registry.uncount_all(&maps, &mut pins, &registration);
    }
}

impl Registry {
    fn uncount_all(&mut self, maps: &Maps, pins: &mut Pins, reg: &Registration) {
        if reg.hi > 0 {
            self.refs.sub(reg.lo, reg.hi);
            self.uncount(maps, pins, reg.lo, reg.hi);
        }
    }
}
