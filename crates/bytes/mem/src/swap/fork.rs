//! Fork: the child has memory as it was at the fork.
//!
//! | step | where | what |
//! |---|---|---|
//! | 1 | `prepare` | The daemon stops accessing mapped memory of this process ([`MemoryHost::begin_fork`]). |
//! | 2 | `prepare` | Each swapped mapping becomes a private mapping of the same pages of the pool, in one system call. |
//! | 3 | kernel | The fork. From here on each process that writes to such a page gets a page of its own. |
//! | 4 | child | Each mapping is replaced by an anonymous copy; then the gate ([`ForkGate`]) lets the parent go on. |
//! | 5 | parent | Pages written since step 2 are copied to the pool, which is mapped shared again; the daemon goes on. |
//!
//! So the kernel takes the snapshot, of swapped and of other pages at the same moment: other threads write until then, and
//! `malloc` has its locks there. `fork` returns in the parent when the child has its copy, as with pages that an adapter has
//! pinned, which the kernel copies inside the fork. Step 5 loses no write of another thread (`uffd`).
//!
//! Meanwhile the daemon reaches the memory in this process, by system calls: its writes are those of the parent. Where a
//! registered page is not at the address at which it was registered, or cannot become private, its accesses are late.
//!
//! Pages that cannot become private (huge pages; a kernel whose userfaultfd does not know shared memory) stay shared until
//! step 4: there the child sees what other threads write while the fork lasts. Where the process has no descriptor for the gate,
//! or cannot open `/proc/self/maps`, so that its child could not either, all pages are swapped out before the fork and in again
//! after it. A child whose copy fails for want of memory is killed: it
//! would share memory with its parent.
//!
//! Mappings that the program has excluded by `MADV_DONTFORK` stay as they are: the child does not have them.
//!
//! The stack pages on which the forking thread runs are swapped out in `prepare`, and in again in the parent. A device that has
//! pinned them keeps the pages from before the fork.
//!
//! Where a page cannot be shared with the daemon again, the daemon goes on in this process. A child that cannot find out its
//! mappings is killed, too (`proc_files`).
//!
//! Fork handlers of other libraries run between these handlers, in the forking thread; they may register and release
//! memory (`lock.rs`). `vfork` and `posix_spawn` run no handlers and need none. Nor does libc run them for `_Fork`, and for
//! `clone` without `CLONE_VM`; the library that has the program's symbols of these names makes the child by [`fork_by`]. A
//! child of the bare system call shares the registered pages with its parent until it calls `execve` or a function of this
//! module.
//!
//! Other threads unmap and move memory meanwhile. What the library sees of that waits for one mapping or chunk (`calls`), and
//! each is asked for again immediately before it is replaced. What moves while all are gone through is looked for once more.

use super::advice::AdviceFlags;
use super::copies::{copy_from_pool, private_pages, put_over};
use super::gate::ForkGate;
use super::lock::ForkLockGuard;
use super::pagemap::PageMap;
use super::pinned::Pins;
use super::registries::HostHandle;
use super::uffd::{MovedRange, PageMover};
use super::vma::{MappedPart, Maps, Vma, errno};
use super::{MappingClass, REGISTRY, Registry, VMAS_MAX, calls, keep_in_place, kernel, pool::PAGE, proc_files};

/// Bytes of stack below and above the handler's frame that are used between `prepare` and the two returns from fork.
const LIVE_BELOW: usize = 64 << 10;
const LIVE_ABOVE: usize = 16 << 10;
/// Stacks that are used meanwhile: of the thread that forks, and one that it has made for the child.
const STACKS: usize = 2;
/// Most times that all mappings are looked at, when other threads change them meanwhile.
const PASSES_MAX: usize = 16;
// The frame of the handler lies inside, with whole pages to spare on both sides.
const _: () = assert!(2 * PAGE < LIVE_ABOVE && LIVE_ABOVE < LIVE_BELOW);

/// A daemon that reaches memory of this process.
pub trait MemoryHost: Send + Sync + core::fmt::Debug {
    /// Returns when the daemon accesses no mapping of registered memory any more. `in_place`: it may reach the memory in this
    /// process instead, at the addresses at which it was registered. Called in fork handlers, in the parent only, and again with
    /// `false` if that has changed; allocates nothing.
    fn begin_fork(&self, in_place: bool);
    /// Lets the daemon use the mappings again. Called as [`MemoryHost::begin_fork`].
    fn end_fork(&self);
}

/// What a fork leaves to do after it.
#[derive(Debug)]
pub(super) struct ForkState {
    /// Pages of live stacks, or all, that are swapped out for the duration of the fork.
    evicted: [(usize, usize); STACKS],
    /// Whether the child will have the descriptors of its parent, not copies of them.
    shares_files: bool,
    /// Where the parent waits for the child; `None`: no page is shared.
    gate: Option<ForkGate>,
    /// Pages whose last registration has ended while the fork lasts.
    pub(super) released: Vec<(usize, usize)>,
    /// Whether the process has locked memory.
    has_locked: bool,
    /// Whether the daemon is held.
    held: bool,
    /// Whether the child has mappings of the pools.
    is_shared: bool,
    /// Whether a page of the pool could not become private.
    left_shared: bool,
    /// Whether the thread could be cancelled before.
    cancel_state: i32,
}

impl ForkState {
    pub(super) const NONE: ForkState = ForkState {
        evicted: [(0, 0); STACKS],
        shares_files: false,
        gate: None,
        released: Vec::new(),
        has_locked: false,
        held: false,
        is_shared: false,
        left_shared: false,
        cancel_state: 0,
    };
}

// SAFETY: pthread.h declares the function with this type.
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}
/// `PTHREAD_CANCEL_DISABLE` (pthread.h).
const CANCEL_DISABLE: libc::c_int = 1;

/// Installs the handlers and opens what they use, once in a process. False: that failed, and no page may be swapped.
pub(super) fn install(registry: &mut ForkLockGuard<'_, Registry>) -> bool {
    if !registry.handlers {
        // SAFETY: three functions that exist as long as this library.
        registry.handlers = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } == 0;
    }
    registry.handlers && proc_files::keep()
}

/// [`super::add_host`] in this registry.
pub(super) fn add_host_here(host: HostHandle) {
    let mut registry = registry();
    registry.hosts.retain(|host| !host.is_gone());
    registry.hosts.push(host);
}

unsafe extern "C" fn prepare() {
    prepare_child(ChildKind::default());
}

unsafe extern "C" fn parent() {
    in_parent();
}

unsafe extern "C" fn child() {
    in_child();
}

/// How a child differs from one of `fork`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildKind {
    /// Address from which the child's stack grows downwards; 0: it is the one of the thread that forks.
    pub stack: usize,
    /// Whether the child has the descriptors of its parent, not copies of them (`CLONE_FILES`).
    pub shares_files: bool,
}

/// Makes a child by `call`, which runs no handlers of libc (`_Fork`, `clone` without `CLONE_VM`). `call` gets the function that
/// the child must run first, and returns the number that the call which makes the child returns; where that is 0 in the child,
/// the function is run here.
///
/// # Safety
/// `call` makes a child at most; where it does not return in the child, the child runs the function before anything else.
pub unsafe fn fork_by(kind: ChildKind, call: impl FnOnce(fn()) -> i32) -> i32 {
    if !super::is_any_made() {
        return call(|| ());
    }
    prepare_child(kind);
    let answer = call(in_child);
    let error = errno();
    if answer == 0 {
        in_child();
    } else {
        in_parent();
    }
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = error };
    answer
}

fn prepare_child(kind: ChildKind) {
    let mut registry = registry();
    let mark = 0u8;
    let used = |sp: usize| (sp.saturating_sub(LIVE_BELOW) & !(PAGE - 1), (sp + LIVE_ABOVE) & !(PAGE - 1));
    // Some calls of the handlers are cancellation points.
    // SAFETY: `cancel_state` is writable.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut registry.fork.cancel_state) };
    let childs = if kind.stack == 0 { (0, 0) } else { used(kind.stack) };
    registry.begin_fork([used(&raw const mark as usize), childs], kind.shares_files);
    // Unlocked by `in_parent` and `in_child`.
    registry.keep();
}

fn in_parent() {
    // SAFETY: locked by `prepare_child` in this thread.
    let mut registry = unsafe { REGISTRY.resume() };
    registry.end_fork();
    registry.restore_cancel_state();
}

fn in_child() {
    // SAFETY: locked by `prepare_child` in the thread that this one continues.
    let mut registry = unsafe { REGISTRY.resume() };
    if registry.fork.is_shared {
        registry.privatise();
    }
    registry.begin_process();
    if let Some(gate) = registry.fork.gate {
        gate.pass();
    }
    registry.restore_cancel_state();
    core::mem::forget(core::mem::replace(&mut registry.fork, ForkState::NONE));
}

/// The registry, of this process: in a child that has run no fork handlers (`_Fork`, `clone`) the swapped pages become copies
/// here, at the first call.
pub(super) fn registry() -> ForkLockGuard<'static, Registry> {
    let mut registry = REGISTRY.lock();
    // SAFETY: no precondition.
    let process = unsafe { libc::getpid() };
    if registry.process == 0 {
        registry.process = process;
    } else if registry.process != process && !registry.is_forking() {
        registry.privatise();
        registry.begin_process();
    }
    registry
}

impl Registry {
    /// Begins with no registration, in a child: pools and daemons are the parent's.
    fn begin_process(&mut self) {
        // Leaked, because the allocator may not be usable yet; they are small.
        core::mem::forget(core::mem::replace(&mut self.refs, super::refs::PageCounts::new()));
        core::mem::forget(core::mem::take(&mut self.hosts));
        core::mem::forget(core::mem::replace(&mut self.splits, super::SplitSet::new()));
        core::mem::forget(core::mem::replace(&mut self.advice, super::KeptAdvice::new()));
        calls::begin_process();
        let closes = !self.fork.shares_files;
        Maps::forget_parents(closes);
        self.pools.abandon(closes);
        self.mover.as_ref().filter(|_| closes).inspect(|mover| mover.close());
        core::mem::forget(self.mover.take());
        self.epoch += 1;
        // SAFETY: no precondition.
        self.process = unsafe { libc::getpid() };
    }
    fn restore_cancel_state(&self) {
        // SAFETY: no result is asked for, and the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.fork.cancel_state, core::ptr::null_mut()) };
    }
    /// Makes the swapped pages private, copied on write; `live`: the stacks in use. In the process that will be the parent.
    fn begin_fork(&mut self, live: [(usize, usize); STACKS], shares_files: bool) {
        self.fork = ForkState { cancel_state: self.fork.cancel_state, shares_files, ..ForkState::NONE };
        // Most programs that fork have no pool or no registration.
        if !self.pools.any() {
            return;
        }
        let Some(maps) = Maps::kept() else {
            // The child will be killed: it may share memory.
            (self.fork.held, self.fork.is_shared) = (true, true);
            return;
        };
        let is_of_pool = |class: MappingClass| class.is_shared_pool() || matches!(class, MappingClass::Frozen);
        if !maps.any(|vma| is_of_pool(self.class(vma))) {
            return;
        }
        self.fork.has_locked = Pins::without_cuda().has_locked;
        (self.fork.held, self.fork.is_shared) = (true, true);
        let mover = self.mover().filter(|mover| mover.moves_shared());
        let in_place = mover.is_some() && self.is_in_place(&maps);
        self.hosts.iter().for_each(|host| host.begin_fork(in_place));
        self.fork.gate = if shares_files || Maps::open().is_none() { None } else { ForkGate::open() };
        let Some(mover) = mover else { return };
        if self.fork.gate.is_none() {
            self.evict(&maps, &mover, 0, (0, super::pool::ADDRESS_MAX));
            self.fork.is_shared = maps.any(|vma| is_of_pool(self.class(vma)));
            return;
        }
        for (which, stack) in live.into_iter().enumerate() {
            self.evict(&maps, &mover, which, stack);
        }
        self.freeze_all(&maps);
        if in_place && self.fork.left_shared {
            self.hosts.iter().for_each(|host| host.begin_fork(false));
        }
    }
    /// Makes all mappings of the pool's pages private, copied on write: again, if other threads have changed the mappings.
    fn freeze_all(&mut self, maps: &Maps) {
        for _ in 0..PASSES_MAX {
            let mut same = true;
            self.each(maps, (0, super::pool::ADDRESS_MAX), |registry, vma, first, last| {
                same &= !registry.class(vma).is_shared_pool() || registry.freeze(maps, vma, (first, last));
            });
            if same {
                return;
            }
        }
    }
    /// Makes a mapping of the pool's pages private, copied on write. False: it is not there any more.
    fn freeze(&mut self, maps: &Maps, vma: &Vma, (first, last): (usize, usize)) -> bool {
        let Some(pool) = self.pools.known(vma.page).filter(|pool| pool.page == PAGE).copied() else { return true };
        let _exchange = calls::exchange();
        let Some(now) = maps.still(vma, first, last) else { return false };
        let flags = self.advice.flags_of(maps, &now, first, self.fork.has_locked);
        if flags.dont_fork {
            return true;
        }
        // Again, at the latest moment; the question may have divided the mapping.
        let Some(prot) = maps.rights_of(first, last, |part| part.goes_on(&now)) else { return false };
        let offset = now.part_at(first).offset;
        // SAFETY: the same pages by another mapping. A failure leaves the pages shared until the child has copied them.
        if unsafe { kernel::map_copy_over(first, last - first, prot, pool.fd(), offset) } {
            flags.apply_untouched(first, last);
            keep_in_place(&pool, offset, first, last);
        } else {
            self.fork.left_shared = true;
        }
        true
    }
    /// Waits for the child, and shares the pages with the daemon again.
    fn end_fork(&mut self) {
        if let Some(gate) = self.fork.gate.take() {
            gate.wait();
        }
        if !core::mem::take(&mut self.fork.held) {
            return;
        }
        let Some(maps) = Maps::kept() else { return };
        let mut is_shared = true;
        if let Some(mover) = self.mover() {
            is_shared &= self.thaw_all(&maps, &mover);
            // Asked about before: none of them is pinned.
            let pins = Pins::without_cuda();
            for range in core::mem::take(&mut self.fork.released) {
                self.each(&maps, range, |registry, vma, first, last| {
                    if registry.class(vma).is_shared_pool()
                        && registry.make_private(&maps, &pins, vma, (first, last))
                        && let Some(pool) = registry.pools.known(vma.page)
                    {
                        let offset = vma.part_at(first).offset;
                        pool.punch(offset, offset + (last - first));
                    }
                });
            }
            for (lo, hi) in core::mem::take(&mut self.fork.evicted) {
                is_shared &= self.readmit(&maps, &mover, lo, hi);
            }
        }
        if is_shared {
            self.hosts.iter().for_each(HostHandle::end_fork);
        }
    }
    /// Whether each registered page of the pools is at its address, in a mapping that the fork makes private.
    fn is_in_place(&self, maps: &Maps) -> bool {
        let mut at = 0;
        while let Some((first, last)) = self.refs.at_or_after(at) {
            debug_assert!(at <= first && first < last);
            let mut done = first;
            while done < last {
                let vma = maps.at_or_after(done).filter(|vma| vma.start <= done && vma.page == PAGE);
                let Some(vma) = vma.filter(|vma| matches!(self.class(vma), MappingClass::Swapped)) else {
                    return false;
                };
                done = vma.end;
            }
            at = last;
        }
        true
    }
    /// Maps the pool's pages shared again: all of them, also those that other threads move or divide meanwhile. False: some are
    /// private, because the system refuses.
    fn thaw_all(&mut self, maps: &Maps, mover: &PageMover) -> bool {
        let map = PageMap::open();
        let fd = map.as_ref().map_or(-1, PageMap::fd);
        for _ in 0..PASSES_MAX {
            self.each(maps, (0, super::pool::ADDRESS_MAX), |registry, vma, first, last| {
                if matches!(registry.class(vma), MappingClass::Frozen) {
                    registry.thaw(maps, (mover, fd), vma, (first, last));
                }
            });
            if !maps.any(|vma| matches!(self.class(vma), MappingClass::Frozen)) {
                return true;
            }
        }
        false
    }
    /// Maps the pool's pages of one mapping shared again.
    fn thaw(&self, maps: &Maps, (mover, map): (&PageMover, i32), vma: &Vma, (first, last): (usize, usize)) {
        let Some(pool) = self.pools.known(PAGE) else { return };
        let Some(flags) = self.flags_now(maps, vma, (first, last), self.fork.has_locked) else { return };
        let part = vma.part_at(first);
        let range = MovedRange { pool, lo: first, hi: last, part, flags, maps: Some(maps) };
        if mover.thaw(range, map) {
            let _exchange = calls::exchange();
            let is_there = maps.at_or_after(first).is_some_and(|now| now.shared && pool.backs(&now));
            if is_there {
                keep_in_place(pool, part.offset, first, last);
            }
        }
    }
    /// Makes the swapped pages of a range private, keeping their counts.
    fn evict(&mut self, maps: &Maps, mover: &PageMover, which: usize, range: (usize, usize)) {
        self.each(maps, range, |registry, vma, first, last| {
            let Some(pool) = registry.pools.known(vma.page) else { return };
            if !registry.class(vma).is_shared_pool() {
                return;
            }
            let flags = registry.flags_now(maps, vma, (first, last), registry.fork.has_locked);
            let Some(flags) = flags.filter(|flags| !flags.dont_fork) else { return };
            let part = vma.part_at(first);
            let range = MovedRange { pool, lo: first, hi: last, part, flags, maps: Some(maps) };
            if mover.swap_out(range, false) {
                let (lo, hi) = registry.fork.evicted[which];
                registry.fork.evicted[which] = if hi == 0 { (first, last) } else { (lo, last) };
            }
        });
    }
    /// Swaps the pages in again that `evict` has made private, if they are still registered. False: some stay private, because
    /// the system refuses.
    fn readmit(&mut self, maps: &Maps, mover: &PageMover, lo: usize, hi: usize) -> bool {
        let (mut at, mut complete) = (lo, true);
        while at < hi
            && let Some((start, end)) = self.refs.at_or_after(at).filter(|(start, _)| *start < hi)
        {
            let (first, last) = (start.max(lo), end.min(hi));
            debug_assert!(lo <= first && first < last && last <= hi);
            self.each(maps, (first, last), |registry, vma, first, last| {
                let Some(pool) = registry.pools.known(vma.page) else { return };
                if !matches!(registry.class(vma), MappingClass::Private) {
                    return;
                }
                let flags = registry.flags_now(maps, vma, (first, last), registry.fork.has_locked);
                let Some(flags) = flags else { return };
                let part = MappedPart { offset: first, prot: vma.prot() };
                if mover.swap_in(MovedRange { pool, lo: first, hi: last, part, flags, maps: None }, false) {
                    keep_in_place(pool, first, first, last);
                } else {
                    // Unless the program has unmapped it meanwhile.
                    complete &= maps.still(vma, first, last).is_none();
                }
            });
            at = last;
        }
        complete
    }
    /// In the child: an anonymous copy over each mapping of a pool.
    fn privatise(&mut self) {
        Maps::forget_parents(!self.fork.shares_files);
        let (Some(maps), Some(room)) = (Maps::open(), CopyRoom::new()) else { return die() };
        self.each(&maps, (0, super::pool::ADDRESS_MAX), |registry, vma, first, last| {
            let class = registry.class(vma);
            let is_copied = matches!(class, MappingClass::Frozen) || class.is_shared_pool();
            let flags =
                if is_copied { registry.advice.flags_of(&maps, vma, first, false) } else { AdviceFlags::default() };
            let copied = match class {
                MappingClass::Frozen if last - first <= room.len => room.copy_in_place(vma, first, last - first),
                MappingClass::Frozen => copy_over(vma, first, last - first, |copy| {
                    // SAFETY: both are `last - first` bytes; the source is readable (`copy_over`), and no other thread runs.
                    unsafe { core::ptr::copy_nonoverlapping(first as *const u8, copy, last - first) };
                    true
                }),
                MappingClass::Swapped | MappingClass::Moved => registry.pools.known(vma.page).is_some_and(|pool| {
                    let offset = vma.part_at(first).offset;
                    copy_over(vma, first, last - first, |copy| copy_from_pool(pool, offset, last - first, copy))
                }),
                _ => true,
            };
            if !copied {
                die();
            }
            flags.apply_inherited(first, last);
        });
        // SAFETY: memory of this function.
        unsafe { kernel::unmap(room.at, room.len) };
    }
    /// Calls `f` with each mapping that overlaps `[lo, hi)`, and the first and the end address of the overlap. Mappings without a
    /// count are included: pages that could not be made private on release are shared as well.
    fn each(&mut self, maps: &Maps, (lo, hi): (usize, usize), mut f: impl FnMut(&mut Registry, &Vma, usize, usize)) {
        let mut at = lo;
        for _ in 0..VMAS_MAX {
            let Some(vma) = maps.at_or_after(at).filter(|v| v.start < hi) else { return };
            f(self, &vma, vma.start.max(lo), vma.end.min(hi));
            at = vma.end;
        }
    }
}

/// Ends a child that would share memory with its parent, as the kernel ends a process for which it has no memory.
fn die() {
    // SAFETY: numbers only.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Memory for the bytes of one short mapping at a time.
struct CopyRoom {
    at: *mut u8,
    len: usize,
}

impl CopyRoom {
    fn new() -> Option<CopyRoom> {
        let len = 64 * PAGE;
        kernel::map_private(len, 0).map(|at| CopyRoom { at, len })
    }
    /// Replaces `len` bytes of a mapping by fresh memory with the same bytes, in place: for many short mappings that is faster
    /// than moving pages there, and the kernel joins them with their neighbours.
    fn copy_in_place(&self, vma: &Vma, first: usize, len: usize) -> bool {
        let rights = vma.prot() | libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no other thread runs, and this one does not use the pages meanwhile: those of its stack are not frozen. Both
        // places are `len` bytes long, and readable or writable as they are used.
        unsafe {
            if !vma.readable && !kernel::protect(first, len, rights) {
                return false;
            }
            core::ptr::copy_nonoverlapping(first as *const u8, self.at, len);
            if !kernel::map_fresh_over(first, len, rights) {
                return false;
            }
            core::ptr::copy_nonoverlapping(self.at, first as *mut u8, len);
            rights == vma.prot() || kernel::protect(first, len, vma.prot())
        }
    }
}

/// Replaces `len` bytes of a mapping by fresh private memory that `fill` has filled.
fn copy_over(vma: &Vma, first: usize, len: usize, fill: impl FnOnce(*mut u8) -> bool) -> bool {
    let Some(copy) = private_pages(vma.page, len) else { return false };
    // SAFETY: memory that is replaced below, in a process with one thread.
    let readable = vma.readable || unsafe { kernel::protect(first, len, vma.prot() | libc::PROT_READ) };
    let copied = readable && fill(copy) && put_over(copy, len, first, vma.prot());
    if !copied {
        // SAFETY: the pages made above, not moved.
        unsafe { kernel::unmap(copy, len) };
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::super::tests::registry;
    use super::*;

    #[test]
    fn swapped_parts_are_found_inside_the_range_only() {
        let (mut registry, memory) = (registry(), Memory::new(8));
        let pool = registry.pools.get(PAGE).expect("a pool");
        for (first, last, rights) in [(1, 4, libc::PROT_READ), (5, 7, libc::PROT_READ | libc::PROT_WRITE)] {
            let at = memory.page(first);
            // SAFETY: pages of this test.
            assert!(unsafe { kernel::map_over(at, (last - first) * PAGE, rights, pool.fd(), at) });
        }
        let maps = Maps::open().expect("/proc/self/maps");
        let mut parts = |lo: usize, hi: usize| {
            let mut parts = Vec::new();
            registry.each(&maps, (memory.page(lo), memory.page(hi)), |registry, vma, first, last| {
                if matches!(registry.class(vma), MappingClass::Swapped) {
                    parts.push(((first - memory.at) / PAGE, (last - memory.at) / PAGE, vma.prot()));
                }
            });
            parts
        };
        let write = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(parts(0, 8), [(1, 4, libc::PROT_READ), (5, 7, write)]);
        assert_eq!(parts(2, 6), [(2, 4, libc::PROT_READ), (5, 6, write)]);
        assert_eq!(parts(0, 5), [(1, 4, libc::PROT_READ)], "the second begins where the range ends");
        assert_eq!((parts(0, 1), parts(4, 5), parts(7, 8)), (vec![], vec![], vec![]));
    }

    /// What another thread does between the question about a mapping and its exchange.
    #[test]
    fn a_mapping_that_is_not_there_any_more_is_not_frozen() {
        let (mut registry, mut memory, maps) = (registry(), Memory::new(8), Maps::open().expect("/proc/self/maps"));
        let pool = registry.pools.get(PAGE).expect("a pool");
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (lo, hi) = (memory.at, memory.page(8));
        let map_pool = |offset: usize| {
            // SAFETY: memory of this test.
            assert!(unsafe { kernel::map_over(lo, 8 * PAGE, rights, pool.fd(), offset) });
        };
        map_pool(lo);
        let before = maps.at_or_after(lo).expect("mapped");
        for (first, last) in [(0, 8), (2, 4), (7, 8)] {
            // SAFETY: pages of this test.
            assert!(unsafe { kernel::map_fresh_over(memory.page(first), (last - first) * PAGE, rights) });
            memory.bytes().fill(6);
            let found = memory.mappings(&maps);
            assert!(!registry.freeze(&maps, &before, (lo, hi)));
            assert_eq!(memory.mappings(&maps), found);
            assert!(memory.bytes().iter().all(|byte| *byte == 6));
            map_pool(lo);
        }
        // The pages of another address, which a mapping that was moved has.
        map_pool(lo + (1 << 30));
        assert!(!registry.freeze(&maps, &before, (lo, hi)));
        map_pool(lo);
        // Other rights are no other mapping, and are kept.
        memory.protect(0..8, libc::PROT_READ);
        assert!(registry.freeze(&maps, &before, (lo, hi)));
        let frozen = maps.at_or_after(lo).expect("mapped");
        assert_eq!((frozen.shared, frozen.prot()), (false, libc::PROT_READ));
    }

    /// Mappings that another thread moves while all are gone through are thawed where they are.
    #[test]
    fn what_has_moved_is_thawed_too() {
        let (mut registry, mut memory, maps) = (registry(), Memory::new(8), Maps::open().expect("/proc/self/maps"));
        let Some(mover) = registry.mover().filter(|mover| mover.moves_shared()) else { return };
        let pool = registry.pools.get(PAGE).expect("a pool");
        let (rights, lo) = (libc::PROT_READ | libc::PROT_WRITE, memory.at);
        let offset = lo + (1 << 30);
        // SAFETY: memory of this test.
        assert!(unsafe { kernel::map_copy_over(lo, 8 * PAGE, rights, pool.fd(), offset) });
        memory.bytes().fill(6);
        registry.thaw_all(&maps, &mover);
        assert!(maps.at_or_after(lo).is_some_and(|vma| vma.shared && vma.offset_of(lo) == offset as u64));
        let mut copy = [0; 2];
        assert!(copy_from_pool(&pool, offset, 2, copy.as_mut_ptr()) && copy == [6; 2], "what was written meanwhile");
    }
}
