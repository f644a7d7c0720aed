//! Fork: the child has memory as it was at the fork.
//!
//! | step | where | what |
//! |---|---|---|
//! | 1 | `prepare` | The daemon stops accessing memory of this process ([`MemoryHost::hold`]). |
//! | 2 | `prepare` | Each swapped mapping becomes a private mapping of the same pages of the pool, in one system call. |
//! | 3 | kernel | The fork. From here on each process that writes to such a page gets a page of its own. |
//! | 4 | child | Each mapping is replaced by an anonymous copy; then the gate ([`ForkGate`]) lets the parent go on. |
//! | 5 | parent | Pages written since step 2 are copied to the pool, which is mapped shared again; the daemon goes on. |
//!
//! So the kernel takes the snapshot, of swapped and of other pages at the same moment: other threads write until then, and
//! `malloc` has its locks there. `fork` returns in the parent when the child has its copy, as with pages that an adapter has
//! pinned, which the kernel copies inside the fork. Step 5 loses no write of another thread (`uffd`).
//!
//! Pages that cannot become private (huge pages; a kernel whose userfaultfd does not know shared memory) stay shared until
//! step 4: there the child sees what other threads write while the fork lasts. Where the process has no descriptor for the gate,
//! all pages are swapped out before the fork and in again after it. A child whose copy fails for want of memory is killed: it
//! would share memory with its parent.
//!
//! Mappings that the program has excluded by `MADV_DONTFORK` stay as they are: the child does not have them.
//!
//! The stack pages on which the forking thread runs are swapped out in `prepare`, and in again in the parent. A device that has
//! pinned them keeps the pages from before the fork.
//!
//! Fork handlers of other libraries run between these handlers, in the forking thread; they may register and release
//! memory (`lock.rs`). `vfork` and `posix_spawn` run no handlers and need none. A child of `_Fork` or of the system call `clone`
//! has not run them: it shares the registered pages with its parent until it calls `execve` or a function of this module.

use super::advice::AdviceFlags;
use super::gate::ForkGate;
use super::lock::ForkLockGuard;
use super::pagemap::PageMap;
use super::pinned::Pins;
use super::uffd::{PageMover, copy_from_pool, private_pages, put_over};
use super::vma::{MappedPart, Maps, Vma};
use super::{MappingClass, REGISTRY, Registry, VMAS_MAX, kernel, pool::PAGE};
use std::sync::{Arc, Weak};

/// Bytes of stack below and above the handler's frame that are used between `prepare` and the two returns from fork.
const LIVE_BELOW: usize = 64 << 10;
const LIVE_ABOVE: usize = 16 << 10;
// The frame of the handler lies inside, with whole pages to spare on both sides.
const _: () = assert!(2 * PAGE < LIVE_ABOVE && LIVE_ABOVE < LIVE_BELOW);

/// A daemon that reaches memory of this process.
pub trait MemoryHost: Send + Sync + core::fmt::Debug {
    /// With `true`: returns when the daemon accesses no registered memory any more. With `false`: lets it go on. Called in fork
    /// handlers, in the parent only.
    fn hold(&self, hold: bool);
}

/// What a fork leaves to do after it.
#[derive(Debug)]
pub(super) struct ForkState {
    /// Pages of the live stack, or all, that are swapped out for the duration of the fork.
    evicted: (usize, usize),
    /// Where the parent waits for the child; `None`: no page is shared.
    gate: Option<ForkGate>,
    /// Pages whose last registration has ended while the fork lasts.
    pub(super) released: Vec<(usize, usize)>,
    /// Whether the process has locked memory.
    has_locked: bool,
    /// Whether the daemon is held.
    held: bool,
    /// Whether the thread could be cancelled before.
    cancel_state: i32,
}

impl ForkState {
    pub(super) const NONE: ForkState = ForkState {
        evicted: (0, 0),
        gate: None,
        released: Vec::new(),
        has_locked: false,
        held: false,
        cancel_state: 0,
    };
}

// SAFETY: pthread.h declares the function with this type.
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}
/// `PTHREAD_CANCEL_DISABLE` (pthread.h).
const CANCEL_DISABLE: libc::c_int = 1;

/// Installs the handlers once. False: that failed, and no page may be swapped.
pub(super) fn install(registry: &mut ForkLockGuard<'_, Registry>) -> bool {
    if !registry.handlers {
        // SAFETY: three functions that exist as long as this library.
        registry.handlers = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } == 0;
    }
    registry.handlers
}

/// Adds a daemon that reaches memory of this process, for as long as the value lives.
pub fn add_host(host: &Arc<impl MemoryHost + 'static>) {
    let host: Weak<dyn MemoryHost> = Arc::downgrade(&(host.clone() as Arc<dyn MemoryHost>));
    let mut registry = registry();
    registry.hosts.retain(|host| host.strong_count() > 0);
    registry.hosts.push(host);
}

unsafe extern "C" fn prepare() {
    let mut registry = registry();
    let mark = 0u8;
    let sp = &raw const mark as usize;
    // Some calls of the handlers are cancellation points.
    // SAFETY: `cancel_state` is writable.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut registry.fork.cancel_state) };
    registry.begin_fork((sp.saturating_sub(LIVE_BELOW) & !(PAGE - 1), (sp + LIVE_ABOVE) & !(PAGE - 1)));
    // Unlocked by `parent` and `child`.
    registry.keep();
}

unsafe extern "C" fn parent() {
    // SAFETY: locked by `prepare` in this thread.
    let mut registry = unsafe { REGISTRY.resume() };
    registry.end_fork();
    registry.restore_cancel_state();
}

unsafe extern "C" fn child() {
    // SAFETY: locked by `prepare` in the thread that this one continues.
    let mut registry = unsafe { REGISTRY.resume() };
    if registry.fork.held {
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
        self.pools.abandon();
        if let Some(mover) = self.mover.take() {
            mover.close();
            core::mem::forget(mover);
        }
        self.epoch += 1;
        // SAFETY: no precondition.
        self.process = unsafe { libc::getpid() };
    }
    fn restore_cancel_state(&self) {
        // SAFETY: no result is asked for, and the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.fork.cancel_state, core::ptr::null_mut()) };
    }
    /// Makes the swapped pages private, copied on write; `live`: the stack in use. In the process that will be the parent.
    fn begin_fork(&mut self, live: (usize, usize)) {
        self.fork = ForkState { cancel_state: self.fork.cancel_state, ..ForkState::NONE };
        // Most programs that fork have no pool or no registration.
        let Some(maps) = self.pools.any().then(Maps::open).flatten() else { return };
        if !maps.any(|vma| self.class(vma).is_shared_pool()) {
            return;
        }
        self.fork.has_locked = Pins::without_cuda().has_locked;
        self.fork.held = true;
        self.hold(true);
        self.fork.gate = ForkGate::open();
        let Some(mover) = self.mover().filter(|mover| mover.moves_shared()) else { return };
        if self.fork.gate.is_none() {
            return self.evict(&maps, &mover, (0, super::pool::ADDRESS_MAX));
        }
        self.evict(&maps, &mover, live);
        self.each(&maps, (0, super::pool::ADDRESS_MAX), |registry, vma, first, last| {
            let Some(pool) = registry.pools.known(vma.page).filter(|pool| pool.page == PAGE) else { return };
            if !registry.class(vma).is_shared_pool() {
                return;
            }
            let flags = registry.advice.flags_of(&maps, vma, first, registry.fork.has_locked);
            if flags.dont_fork {
                return;
            }
            let MappedPart { offset, prot } = vma.part_at(first);
            // SAFETY: the same pages by another mapping. A failure leaves the pages shared until the child has copied them.
            let frozen = unsafe { kernel::map_copy_over(first, last - first, prot, pool.fd(), offset) };
            if frozen {
                flags.apply_untouched(first, last);
            }
            if frozen && vma.readable {
                super::keep_in_place(first, last);
            }
        });
    }
    /// Waits for the child, and shares the pages with the daemon again.
    fn end_fork(&mut self) {
        if let Some(gate) = self.fork.gate.take() {
            gate.wait();
        }
        if !core::mem::take(&mut self.fork.held) {
            return;
        }
        let (lo, hi) = core::mem::take(&mut self.fork.evicted);
        if let (Some(maps), Some(mover)) = (Maps::open(), self.mover()) {
            let map = PageMap::open();
            let fd = map.as_ref().map_or(-1, PageMap::fd);
            self.each(&maps, (0, super::pool::ADDRESS_MAX), |registry, vma, first, last| {
                if matches!(registry.class(vma), MappingClass::Frozen) {
                    registry.thaw(&maps, (&mover, fd), vma, (first, last));
                }
            });
            drop(map);
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
            if hi > 0 {
                self.readmit(&maps, &mover, lo, hi);
            }
        }
        self.hold(false);
    }
    fn hold(&self, hold: bool) {
        self.hosts.iter().filter_map(Weak::upgrade).for_each(|host| host.hold(hold));
    }
    /// Maps the pool's pages shared again.
    fn thaw(&self, maps: &Maps, (mover, map): (&PageMover, i32), vma: &Vma, (first, last): (usize, usize)) {
        let Some(pool) = self.pools.known(PAGE) else { return };
        let flags = self.advice.flags_of(maps, vma, first, self.fork.has_locked);
        if !mover.thaw(pool, (first, last), vma.part_at(first), map) {
            return;
        }
        flags.apply(first, last);
        if vma.readable {
            super::keep_in_place(first, last);
        }
    }
    /// Makes the swapped pages of a range private, keeping their counts.
    fn evict(&mut self, maps: &Maps, mover: &PageMover, range: (usize, usize)) {
        self.each(maps, range, |registry, vma, first, last| {
            let Some(pool) = registry.pools.known(vma.page) else { return };
            if !registry.class(vma).is_shared_pool() {
                return;
            }
            let flags = registry.advice.flags_of(maps, vma, first, registry.fork.has_locked);
            if !flags.dont_fork && mover.swap_out(pool, (first, last), vma.part_at(first), false) {
                flags.apply(first, last);
                let (lo, hi) = registry.fork.evicted;
                registry.fork.evicted = if hi == 0 { (first, last) } else { (lo, last) };
            }
        });
    }
    /// Swaps the pages in again that `evict` has made private, if they are still registered.
    fn readmit(&mut self, maps: &Maps, mover: &PageMover, lo: usize, hi: usize) {
        let mut at = lo;
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
                let flags = registry.advice.flags_of(maps, vma, first, registry.fork.has_locked);
                if mover.swap_in(pool, (first, last), vma.prot(), false) {
                    flags.apply(first, last);
                    if vma.readable {
                        super::keep_in_place(first, last);
                    }
                }
            });
            at = last;
        }
    }
    /// In the child: an anonymous copy over each mapping of a pool.
    fn privatise(&mut self) {
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
}
