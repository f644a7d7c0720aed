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
//! A swap loses no write of another thread (`uffd`). Advice of the program about its mappings is kept (`advice`). A forked child
//! owns private copies (`fork`).
//!
//! Memory that a device has pinned stays where it is (`pinned`): a range that is pinned when it is registered is reached in
//! the process, and pages that are pinned when their last registration ends stay shared. `BURST_SWAP=off` in the
//! environment switches swapping off: every registration is then reached in the process.
//!
//! Limits: pages pinned for the duration of one direct I/O keep pointing at the old page, and so do those that no counter
//! of the kernel shows (`pinned`); a fork moves the live stack pages of the forking thread even if they are pinned; memory
//! moved by `mremap` while registered stays shared (`realloc` is kept from it). Where the kernel lends userfaultfd for
//! user-mode faults only, a system call that writes into a range while it is being swapped may fail with EFAULT; ranges are
//! swapped in pieces of at most 64 KiB there.
//!
//! This code runs inside other people's programs: it does not panic, does not print, and holds no lock across a fork.
mod advice;
mod calls;
mod copies;
mod foreign;
mod fork;
mod gate;
mod kernel;
mod lock;
mod moved;
mod pagemap;
mod pinned;
mod pool;
mod proc_files;
mod program;
mod refs;
mod registration;
mod registries;
mod served;
mod splits;
#[cfg(test)]
pub(crate) mod testing;
mod uffd;
mod vma;

use crate::region;
use advice::KeptAdvice;
pub use calls::between_exchanges;
use fork::ForkState;
pub use fork::{ChildKind, MemoryHost, fork_by};
use lock::ForkLock;
use pagemap::{PageMap, each_run, is_touched};
use pinned::Pins;
pub use pool::is_any_made;
use pool::{PAGE, Pool, PoolSet};
pub use program::{NewPlace, madvise, mremap};
use refs::PageCounts;
use registration::PieceFile;
pub use registration::{Piece, PieceSource, Registration};
use registries::HostHandle;
pub use registries::{RegistryTable, add_host, own_registry, register, register_swapped, release};
use splits::SplitSet;
use std::sync::Arc;
use uffd::{MovedRange, PageMover};
use vma::{MappedPart, Maps, Vma};

/// Most pieces of a registration; a range that needs more is reached in the process as a whole.
pub const PIECES_MAX: usize = region::PIECES_MAX;
/// Most mappings in the range of one registration; a range with more is reached in the process.
const VMAS_MAX: usize = 65_536;

/// Why a range cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// A part of the range is not mapped, or not readable and writable although writing was asked for: `EFAULT`.
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

/// The state of swapping in this process.
#[derive(Debug)]
pub(crate) struct Registry {
    refs: PageCounts,
    pools: PoolSet,
    mover: Option<Arc<PageMover>>,
    /// Where swaps have split mappings.
    splits: SplitSet,
    advice: KeptAdvice,
    epoch: u64,
    /// Whether the fork handlers are installed.
    handlers: bool,
    /// The process to which the state belongs; 0: none yet.
    process: i32,
    /// The fork under way ([`fork`]).
    fork: ForkState,
    /// The daemons that reach memory of this process.
    hosts: Vec<HostHandle>,
}

static REGISTRY: ForkLock<Registry> = ForkLock::new(Registry {
    refs: PageCounts::new(),
    pools: PoolSet::new(),
    mover: None,
    splits: SplitSet::new(),
    advice: KeptAdvice::new(),
    epoch: 0,
    handlers: false,
    process: 0,
    fork: ForkState::NONE,
    hosts: Vec::new(),
});

/// What registering a range takes.
struct Survey {
    /// Whether the whole range can be given as pieces.
    mappable: bool,
    /// Whether swapping splits a mapping.
    splits: bool,
    /// Bytes of private pages.
    private: usize,
}

/// Kind of a mapping, which decides how it is registered.
enum MappingClass {
    /// Already swapped: the page at address a is at offset a of the pool.
    Swapped,
    /// Swapped at another address, from which the program has moved it.
    Moved,
    /// As `Swapped` or `Moved`, but copied on write, while a fork lasts.
    Frozen,
    /// Private pages, which can be swapped.
    Private,
    /// Shared memory of the program, perhaps sealed.
    Shared,
    /// Any other mapping, which is reached by system calls.
    Other,
}

impl MappingClass {
    /// Whether the pages are the pool's and shared with the daemon.
    fn is_shared_pool(&self) -> bool {
        matches!(self, MappingClass::Swapped | MappingClass::Moved)
    }
}

impl Registry {
    fn class(&self, vma: &Vma) -> MappingClass {
        if let Some(pool) = self.pools.owner(vma) {
            return match (pool.is_alive(), vma.offset == vma.start as u64) {
                (true, true) => MappingClass::Swapped,
                (true, false) => MappingClass::Moved,
                (false, _) => MappingClass::Other,
            };
        }
        if self.pools.copied(vma).is_some_and(|pool| pool.page == vma.page) {
            return MappingClass::Frozen;
        }
        match (vma.shared, vma.inode) {
            (false, 0) => MappingClass::Private,
            (false, _) if vma.page > pool::PAGE && vma.name().starts_with(b"/anon_hugepage") => MappingClass::Private,
            (true, inode) if inode != 0 => MappingClass::Shared,
            _ => MappingClass::Other,
        }
    }

    /// Checks the rights on the range, whether it would be split off its mappings, and whether it can be given as pieces.
    fn survey(
        &self,
        maps: &Maps,
        pins: &Pins,
        (addr, end): (usize, usize),
        write: bool,
    ) -> Result<Survey, RegisterError> {
        let (mut at, mut pieces, mut in_pool) = (addr, 0, 0);
        let mut found = Survey { mappable: true, splits: false, private: 0 };
        for _ in 0..VMAS_MAX {
            let usable = |vma: &Vma| vma.start <= at && (!write || vma.is_read_and_written());
            let vma = maps.at_or_after(at).filter(usable).ok_or(RegisterError::Fault)?;
            // As the kernel pins them: what only the adapter reads need not be readable for the program.
            found.mappable &= vma.readable;
            let first = at.max(vma.start) & !(vma.page - 1);
            let class = self.class(&vma);
            if matches!(class, MappingClass::Shared | MappingClass::Other) && foreign::is_refused_device(&vma) {
                return Err(RegisterError::Device);
            }
            match class {
                // The lowest page of a stack must stay private, so that the stack can grow.
                MappingClass::Private
                    if first <= vma.start && vma.name() == b"[stack]"
                        || self.must_stay(maps, pins, (first, vma.end.min(end))) =>
                {
                    found.mappable = false
                }
                MappingClass::Swapped | MappingClass::Private => {
                    let reaches_on = vma.reaches_beyond(first, end.next_multiple_of(vma.page));
                    if matches!(class, MappingClass::Private) {
                        found.splits |= reaches_on;
                        found.private += vma.end.min(end) - first;
                    }
                    pieces += usize::from(in_pool != vma.page);
                    in_pool = vma.page;
                }
                MappingClass::Shared => (pieces, in_pool) = (pieces + 1, 0),
                MappingClass::Moved | MappingClass::Frozen | MappingClass::Other => found.mappable = false,
            }
            at = vma.end;
            if at >= end {
                found.mappable &= pieces <= PIECES_MAX;
                return Ok(found);
            }
        }
        found.mappable = false;
        Ok(found)
    }

    /// Whether the private pages of the range that were never touched are more than [`most_untouched`].
    fn fills_memory(&self, maps: &Maps, (addr, end): (usize, usize), found: &Survey) -> bool {
        let max = most_untouched();
        if found.private <= max {
            return false;
        }
        let Some(map) = PageMap::open() else { return false };
        let (mut at, mut left) = (addr, max);
        for _ in 0..VMAS_MAX {
            let Some(vma) = maps.at_or_after(at).filter(|vma| vma.start < end) else { break };
            let (first, last) = (vma.start.max(at) & !(PAGE - 1), vma.end.min(end.next_multiple_of(PAGE)));
            at = vma.end;
            if !matches!(self.class(&vma), MappingClass::Private) || vma.page > PAGE {
                continue;
            }
            let is_within = each_run(map.fd(), (first, last - first), is_touched, |_, len, touched| {
                let is_within = touched || len <= left;
                left = left.saturating_sub(if touched { 0 } else { len });
                is_within
            });
            if !is_within {
                return true;
            }
        }
        false
    }

    /// Whether private pages must stay: a device would keep them, or the program has moved a registered mapping away from these
    /// addresses, so that the pool's pages are in use elsewhere.
    fn must_stay(&self, maps: &Maps, pins: &Pins, range: (usize, usize)) -> bool {
        let (lo, hi) = range;
        debug_assert!(lo < hi);
        pins.may_hold(lo, hi) || (self.refs.counts(lo, hi) && self.pools.maps_any(maps, lo, hi))
    }

    /// Swaps the private pages in and collects the pieces. False: a part was refused. The caller counts the pages that are
    /// swapped by then and makes them private again.
    fn collect(&mut self, maps: &Maps, pins: &Pins, (addr, end): (usize, usize), write: bool) -> (Registration, bool) {
        let mut reg = Registration::empty();
        let mut at = addr;
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
                MappingClass::Moved | MappingClass::Frozen | MappingClass::Other => None,
                class => self.pools.get(vma.page).map(|p| (PieceFile::Pool(p.fd()), at as u64)).filter(|_| {
                    reg.lo = if reg.hi == 0 { lo } else { reg.lo };
                    reg.hi = hi;
                    matches!(class, MappingClass::Swapped) || self.swap_in(maps, pins, &vma, (lo, hi))
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

    /// The userfaultfd, opened when first needed or when the program has closed it.
    fn mover(&mut self) -> Option<Arc<PageMover>> {
        if self.mover.as_ref().is_none_or(|mover| !mover.is_alive()) {
            self.mover = PageMover::open().map(Arc::new);
        }
        self.mover.clone()
    }

    fn swap_in(&mut self, maps: &Maps, pins: &Pins, vma: &Vma, (lo, hi): (usize, usize)) -> bool {
        if advice::wipes_on_fork(maps, vma, lo) {
            return false;
        }
        let flags = self.advice.flags_of(maps, vma, lo, pins.has_locked);
        let (Some(mover), Some(pool)) = (self.mover(), self.pools.known(vma.page).copied()) else { return false };
        let part = MappedPart { offset: lo, prot: vma.prot() };
        // The caller must not unmap memory while it registers it.
        let swapped = mover.swap_in(MovedRange { pool: &pool, lo, hi, part, flags, maps: None }, pins.is_alone);
        if swapped {
            self.advice.forget(lo, hi);
            self.advice.keep(lo, hi, flags);
            self.splits.extend([lo, hi].into_iter().filter(|at| vma.start < *at && *at < vma.end));
        }
        if swapped {
            keep_in_place(&pool, lo, lo, hi);
        }
        swapped
    }

    /// Makes the swapped pages of `[lo, hi)` private again and gives their memory back. Pages that a device may have pinned,
    /// or that the kernel refuses to exchange, stay shared, uncounted, until a later registration of them ends.
    fn swap_out(&mut self, maps: &Maps, pins: &Pins, lo: usize, hi: usize) {
        let mut at = lo;
        for _ in 0..VMAS_MAX {
            let vma = maps.at_or_after(at).filter(|v| v.start < hi);
            let gap_end = vma.as_ref().map_or(hi, |v| v.start.clamp(at, hi));
            // The program has unmapped or moved this part.
            self.forget(maps, pins, at, gap_end);
            let Some(vma) = vma else { return };
            let (first, last) = (vma.start.max(at), vma.end.min(hi));
            debug_assert!(lo <= first && first < last && last <= hi);
            match self.class(&vma) {
                MappingClass::Swapped => {
                    if self.make_private(maps, pins, &vma, (first, last)) {
                        self.pools.known(vma.page).inspect(|pool| pool.punch(first, last));
                    } else if maps.rights_of(first, last, |part| part.goes_on(&vma)).is_none() {
                        // Unmapped, divided or moved meanwhile, or exchanged in part.
                        continue;
                    }
                }
                // The child may be copying them: the end of the fork makes them private.
                MappingClass::Frozen if vma.offset == vma.start as u64 => self.fork.released.push((first, last)),
                _ => self.forget(maps, pins, first, last),
            }
            at = last;
            if at >= hi {
                return;
            }
        }
    }

    fn uncount(&mut self, maps: &Maps, pins: &Pins, lo: usize, hi: usize) {
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
///
/// The words are read in the pool, `offset` bytes from its beginning: another thread may unmap the memory at any time.
fn keep_in_place(pool: &Pool, offset: usize, lo: usize, hi: usize) {
    const MMAPPED: usize = 2;
    let mut at = lo;
    while at < hi && pool.page == pool::PAGE {
        let mut words = [0usize; 2];
        let to = words.as_mut_ptr().cast();
        if !copies::copy_from_pool(pool, offset + (at - lo), size_of_val(&words), to) {
            return;
        }
        let len = words[1] & !7;
        if words[1] & 7 != MMAPPED || !len.is_multiple_of(pool::PAGE) || len < 2 * pool::PAGE || len > hi - at {
            return;
        }
        kernel::set_apart(at, pool::PAGE);
        at += len;
    }
}

/// How many mappings a registration may split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitRoom {
    /// Those that [`SplitSet`] allows.
    Limited,
    /// Any number.
    Unlimited,
}

/// Most bytes of pages never touched for which a registration takes memory: half of the machine's. The pool gets all pages
/// of a range, as an adapter pins them, at a quarter of a second for each GiB. A sparse range of more than that is address
/// space that the program uses here and there; its pages come one by one where it stays in the process.
fn most_untouched() -> usize {
    let info = rustix::system::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize) / 2
}

fn register_here(addr: usize, len: usize, write: bool, room: SplitRoom) -> Result<Registration, RegisterError> {
    let end =
        addr.checked_add(len).filter(|end| len > 0 && *end <= pool::ADDRESS_MAX).ok_or(RegisterError::BadRange)?;
    let Some(maps) = Maps::open() else { return Ok(Registration::in_process(addr, len)) };
    served::fetch(&maps, (addr, end));
    let pins = Pins::look();
    let mut registry = fork::registry();
    let found = registry.survey(&maps, &pins, (addr, end), write)?;
    // A fork handler of another library: this process may be the child, whose pages must not go into its parent's pool.
    let forking = registry.is_forking();
    let stays = !found.mappable || forking || pinned::is_switched_off();
    if stays || !fork::install(&mut registry) || registry.fills_memory(&maps, (addr, end), &found) {
        return Ok(Registration::in_process(addr, len));
    }
    if found.splits && room == SplitRoom::Limited && !registry.splits.has_room(&maps, len) {
        return Ok(Registration::in_process(addr, len).sparing_mappings());
    }
    let (mut reg, complete) = registry.collect(&maps, &pins, (addr, end), write);
    reg.epoch = registry.epoch;
    if reg.hi > 0 {
        debug_assert!(reg.lo < reg.hi);
        registry.refs.add(reg.lo, reg.hi);
    }
    if !complete {
        registry.uncount_all(&maps, &pins, &reg);
        return Ok(Registration::in_process(addr, len));
    }
    Ok(reg)
}

/// Checks that a range is mapped with the rights of a registration, and leaves it as it is: for a host in this process.
///
/// # Errors
/// As [`register`].
pub fn check(addr: usize, len: usize, write: bool) -> Result<(), RegisterError> {
    let end =
        addr.checked_add(len).filter(|end| len > 0 && *end <= pool::ADDRESS_MAX).ok_or(RegisterError::BadRange)?;
    let Some(maps) = Maps::open() else { return Ok(()) };
    let mut at = addr;
    for _ in 0..VMAS_MAX {
        let vma = maps.at_or_after(at).filter(|v| v.start <= at).ok_or(RegisterError::Fault)?;
        if write && !vma.is_read_and_written() {
            return Err(RegisterError::Fault);
        }
        if vma.inode != 0 && foreign::is_refused_device(&vma) {
            return Err(RegisterError::Device);
        }
        at = vma.end;
        if at >= end {
            return Ok(());
        }
    }
    Err(RegisterError::BadRange)
}

/// [`registries::release`] in this registry.
fn release_here(registration: Registration) {
    if registration.hi == 0 {
        return;
    }
    let pins = Pins::look();
    let mut registry = fork::registry();
    // Registrations from before a fork are not counted in the child.
    if registration.epoch == registry.epoch
        && let Some(maps) = Maps::open()
    {
        registry.uncount_all(&maps, &pins, &registration);
    }
}

impl Registry {
    fn uncount_all(&mut self, maps: &Maps, pins: &Pins, reg: &Registration) {
        if reg.hi > 0 {
            self.refs.sub(reg.lo, reg.hi);
            self.uncount(maps, pins, reg.lo, reg.hi);
            self.splits.note_released();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Memory, memfd};
    use super::vma::parse_line;
    use super::*;
    use pool::PAGE;
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// A registry of no process: its counts and its pools are the test's own.
    pub(super) fn registry() -> Registry {
        let (refs, pools) = (PageCounts::new(), PoolSet::new());
        Registry {
            refs,
            pools,
            mover: None,
            splits: SplitSet::new(),
            advice: KeptAdvice::new(),
            epoch: 0,
            handlers: false,
            process: 0,
            fork: ForkState::NONE,
            hosts: Vec::new(),
        }
    }

    fn maps() -> Maps {
        Maps::open().expect("/proc/self/maps")
    }

    #[test]
    fn the_class_of_a_mapping_follows_from_its_file_and_place() {
        let mut registry = registry();
        let pool = registry.pools.get(PAGE).expect("a pool");
        // SAFETY: the pool's descriptor is open.
        let st = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(pool.fd()) }).expect("open");
        let file = format!("{:x}:{:x} {}", libc::major(st.st_dev), libc::minor(st.st_dev), st.st_ino);
        let vma = |line: &str| parse_line(line.as_bytes()).expect("a line");
        let is = |line: &str, class: fn(MappingClass) -> bool| class(registry.class(&vma(line)));
        let swapped: fn(MappingClass) -> bool = |class| matches!(class, MappingClass::Swapped);
        let other: fn(MappingClass) -> bool = |class| matches!(class, MappingClass::Other);
        assert!(is(&format!("10000-30000 rw-s 10000 {file} /memfd:burst-pool (deleted)"), swapped));
        let moved: fn(MappingClass) -> bool = |class| matches!(class, MappingClass::Moved);
        assert!(is(&format!("10000-30000 rw-s 20000 {file} /memfd:burst-pool (deleted)"), moved));
        assert!(is("10000-30000 rw-p 0 00:00 0 [heap]", |class| matches!(class, MappingClass::Private)));
        assert!(is("10000-30000 rw-s 0 00:01 5 /dev/zero (deleted)", |class| matches!(class, MappingClass::Shared)));
        assert!(is("10000-30000 rw-s 0 00:00 0 [anon_inode]", other) && is("10000-30000 rw-p 0 08:01 5 /a", other));
        let mut huge = vma("200000-400000 rw-p 0 00:0f 5 /anon_hugepage (deleted)");
        assert!(other(registry.class(&huge)), "of ordinary pages");
        huge.page = 2 << 20;
        assert!(matches!(registry.class(&huge), MappingClass::Private));
        let mut huge = vma("200000-400000 rw-p 0 00:0f 5 /mnt/huge/file");
        huge.page = 2 << 20;
        assert!(other(registry.class(&huge)), "a private mapping of a file");
        let line = format!("10000-30000 rw-s 10000 {file} /memfd:burst-pool (deleted)");
        registry.pools.abandon(true);
        assert!(!swapped(registry.class(&vma(&line))), "no pool any more");
    }

    /// Eight pages of which each second one is mapped from a sealed file; and nine.
    fn striped(pages: usize) -> (Memory, std::os::fd::OwnedFd) {
        let (memory, file) = (Memory::new(pages), memfd(pages, libc::F_SEAL_SHRINK));
        for i in (1..pages).step_by(2) {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a page of this test.
            assert!(unsafe { kernel::map_over(memory.page(i), PAGE, rights, file.as_raw_fd(), i * PAGE) });
        }
        (memory, file)
    }

    #[test]
    fn a_range_of_too_many_pieces_is_not_mappable() {
        let (memory, _file) = striped(PIECES_MAX + 1);
        let survey = |first: usize, last: usize| {
            registry()
                .survey(&maps(), &Pins::look(), (memory.page(first) + 9, memory.page(last) - 9), true)
                .map(|found| found.mappable)
        };
        assert_eq!(survey(0, PIECES_MAX), Ok(true));
        assert_eq!(survey(1, PIECES_MAX + 1), Ok(true));
        assert_eq!(survey(0, PIECES_MAX + 1), Ok(false));
    }

    #[test]
    fn private_mappings_side_by_side_are_one_piece() {
        let memory = Memory::new(2 * PIECES_MAX + 4);
        for i in (1..2 * PIECES_MAX + 4).step_by(2) {
            memory.protect(i..i + 1, libc::PROT_READ);
        }
        let survey = |write| {
            let range = (memory.page(0), memory.page(2 * PIECES_MAX + 4));
            registry().survey(&maps(), &Pins::look(), range, write).map(|found| found.mappable)
        };
        assert_eq!((survey(false), survey(true)), (Ok(true), Err(RegisterError::Fault)));
        memory.protect(3..4, libc::PROT_NONE);
        assert_eq!((survey(false), survey(true)), (Ok(false), Err(RegisterError::Fault)), "for reads, in the process");
    }

    #[test]
    fn the_lowest_page_of_a_stack_stays_private() {
        let maps = maps();
        let mut stack = None;
        assert!(maps.any(|vma| {
            stack = (vma.name() == b"[stack]").then_some(*vma);
            stack.is_some()
        }));
        let stack = stack.expect("found");
        let survey = |first: usize, last: usize| {
            registry().survey(&maps, &Pins::look(), (first, last), true).map(|found| found.mappable)
        };
        let second = stack.start + PAGE;
        assert_eq!((survey(stack.start, second), survey(stack.start + 100, second)), (Ok(false), Ok(false)));
        assert_eq!((survey(second, second + 8), survey(second + 100, stack.end)), (Ok(true), Ok(true)));
    }

    #[test]
    fn whole_pages_of_the_pool_are_counted() {
        let (memory, mut registry, pins) = (Memory::new(8), registry(), Pins::look());
        let file = memfd(8, libc::F_SEAL_SHRINK);
        // SAFETY: the first and the last page of this test's memory.
        unsafe {
            assert!(kernel::map_over(memory.page(0), PAGE, libc::PROT_READ, file.as_raw_fd(), 0));
            assert!(kernel::map_over(memory.page(7), PAGE, libc::PROT_READ, file.as_raw_fd(), 7 * PAGE));
        }
        memory.protect(3..4, libc::PROT_READ);
        let private = || (1..7).all(|i| maps().at_or_after(memory.page(i)).is_some_and(|vma| !vma.shared));
        for (first, last, counted) in [(0, 8, (1, 7)), (1, 4, (1, 4)), (2, 6, (2, 6)), (3, 4, (3, 4))] {
            let (addr, end) = (memory.page(first) + 100, memory.page(last) - 100);
            let (reg, complete) = registry.collect(&maps(), &pins, (addr, end), false);
            if !complete {
                assert!(PageMover::open().is_none(), "swapped where the kernel offers it");
                return;
            }
            assert_eq!((reg.lo, reg.hi), (memory.page(counted.0), memory.page(counted.1)));
            let (pieces, len) = (reg.pieces(), reg.pieces().iter().map(|piece| piece.len).sum::<usize>());
            assert_eq!((pieces[0].addr, len), (addr, end - addr));
            assert!(pieces.len() == if first == 0 { 3 } else { 1 } && !private());
            registry.refs.add(reg.lo, reg.hi);
            registry.uncount_all(&maps(), &pins, &reg);
            assert!(private(), "pages {first} to {last}");
        }
        let none = registry.collect(&maps(), &pins, (memory.page(0), memory.page(1)), false);
        assert_eq!((none.0.lo, none.0.hi, none.1), (0, 0, true), "a file of the program");
    }

    #[test]
    fn an_unmapped_end_of_a_range_is_no_matter() {
        let (memory, mut registry) = (Memory::new(3), registry());
        registry.pools.get(PAGE).expect("a pool");
        // SAFETY: a page of this test, used no more.
        unsafe { kernel::unmap(memory.page(1) as *mut u8, PAGE) };
        registry.swap_out(&maps(), &Pins::look(), memory.page(0), memory.page(2));
        registry.swap_out(&maps(), &Pins::look(), memory.page(1), memory.page(2));
        assert!(maps().at_or_after(memory.page(2)).is_some_and(|vma| vma.start == memory.page(2) && !vma.shared));
    }

    /// The pages inside of eight at which a mapping begins after `keep_in_place` has looked at the first `pages` of them. Objects
    /// of `malloc` begin at some pages: each is given with its second word.
    fn divided(pages: usize, objects: &[(usize, usize)]) -> Vec<usize> {
        let memory = Memory::new(8);
        let pool = PoolSet::new().get(PAGE).expect("a pool");
        for (page, word) in objects {
            let (words, offset) = ([0, *word], memory.page(*page) as libc::off_t);
            // SAFETY: two readable words.
            assert_eq!(unsafe { libc::pwrite(pool.fd(), words.as_ptr().cast(), 16, offset) }, 16);
        }
        keep_in_place(&pool, memory.at, memory.at, memory.page(pages));
        let maps = maps();
        (1..8).filter(|i| maps.at_or_after(memory.page(*i)).is_some_and(|vma| vma.start == memory.page(*i))).collect()
    }

    #[test]
    fn each_object_of_malloc_is_divided_behind_its_first_page() {
        const MMAPPED: usize = 2;
        let object = |pages: usize| (pages * PAGE) | MMAPPED;
        assert_eq!(divided(5, &[(0, object(2)), (2, object(3))]), [1, 2, 3], "up to the end of the range");
        assert_eq!(divided(6, &[(0, object(6))]), [1]);
        assert_eq!(divided(6, &[(0, object(7))]), [0; 0], "longer than the range");
        assert_eq!(divided(6, &[(0, object(2)), (2, object(5))]), [1], "the second is longer than the rest");
        assert_eq!(divided(6, &[(2, object(2))]), [0; 0], "only the first tells where the next one is");
        for word in [object(1), object(0), object(3) | 1, object(3) | 4, object(3) + 16, 3 * PAGE] {
            assert_eq!(divided(6, &[(0, word)]), [0; 0], "{word:#x}");
        }
    }
}
