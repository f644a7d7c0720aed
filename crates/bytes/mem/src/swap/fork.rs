//! Fork: the child gets private copies of the swapped pages, as if they had never been shared.
//!
//! A `pthread_atfork` handler locks the registry before the fork, so that it is whole in the child. In the child,
//! where no other thread runs, each swapped range is copied to private memory, which replaces the shared mapping. The copy
//! shows the pages shortly after the fork: it includes what other threads of the parent have written in between.
//!
//! The stack pages on which the forking thread runs must not be shared even for that time, because parent and child would
//! both return through them. If they are swapped, `prepare` makes them private, and the handler of the parent swaps them
//! in again, at the same offsets, so that the daemon's mapping is valid again. Writes of a peer to exactly those pages
//! are lost while the fork lasts. This holds for pinned stack pages, too: a device keeps the pages from before the fork.
//!
//! Fork handlers of other libraries run between these handlers, in the forking thread; they may register and release
//! memory (`lock.rs`).
//!
//! `vfork` and `posix_spawn` run no handlers and need none.

use super::lock::ForkLockGuard;
use super::uffd::{PageMover, copy_from_pool, private_pages, put_over};
use super::vma::Maps;
use super::{MappingClass, REGISTRY, Registry, VMAS_MAX, pool::PAGE};

/// Bytes of stack below and above the handler's frame that are used between `prepare` and the two returns from fork.
const LIVE_BELOW: usize = 64 << 10;
const LIVE_ABOVE: usize = 16 << 10;
// The frame of the handler lies inside, with whole pages to spare on both sides.
const _: () = assert!(2 * PAGE < LIVE_ABOVE && LIVE_ABOVE < LIVE_BELOW);

/// Installs the handlers once. False: that failed, and no page may be swapped.
pub(super) fn install(registry: &mut ForkLockGuard<'_, Registry>) -> bool {
    if !registry.handlers {
        // SAFETY: three functions that exist as long as this library.
        registry.handlers = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } == 0;
    }
    registry.handlers
}

unsafe extern "C" fn prepare() {
    let mut registry = REGISTRY.lock();
    let mark = 0u8;
    let sp = &raw const mark as usize;
    let live = (sp.saturating_sub(LIVE_BELOW) & !(PAGE - 1), (sp + LIVE_ABOVE) & !(PAGE - 1));
    registry.evicted = (0, 0);
    if registry.refs.at_or_after(live.0).is_some_and(|(start, _)| start < live.1) {
        registry.evict(live);
    }
    // Unlocked by `parent` and `child`.
    registry.keep();
}

unsafe extern "C" fn parent() {
    // SAFETY: locked by `prepare` in this thread.
    let mut registry = unsafe { REGISTRY.resume() };
    let (lo, hi) = core::mem::take(&mut registry.evicted);
    if hi > 0 {
        registry.readmit(lo, hi);
    }
}

unsafe extern "C" fn child() {
    // SAFETY: locked by `prepare` in the thread that this one continues.
    let mut registry = unsafe { REGISTRY.resume() };
    registry.privatise();
    // Leaked, because the allocator may not be usable yet; the map is small.
    core::mem::forget(core::mem::replace(&mut registry.refs, super::refs::PageCounts::new()));
    registry.pools.abandon();
    registry.epoch += 1;
    registry.evicted = (0, 0);
}

impl Registry {
    /// Makes the swapped pages of a stack range private, keeping their counts.
    fn evict(&mut self, (lo, hi): (usize, usize)) {
        let (Some(maps), Some(mover)) = (Maps::open(), PageMover::open()) else { return };
        self.each_swapped(&maps, lo, hi, |registry, first, last, prot| {
            let Some(pool) = registry.pools.known(PAGE) else { return };
            if mover.swap_out(pool, first, last, prot) {
                let (lo, hi) = registry.evicted;
                registry.evicted = if hi == 0 { (first, last) } else { (lo, last) };
            }
        });
    }
    /// Swaps the pages in again that `evict` has made private, if they are still registered.
    fn readmit(&mut self, lo: usize, hi: usize) {
        let (Some(maps), Some(mover)) = (Maps::open(), PageMover::open()) else { return };
        let mut at = lo;
        while at < hi
            && let Some((start, end)) = self.refs.at_or_after(at).filter(|(start, _)| *start < hi)
        {
            let (first, last) = (start.max(lo), end.min(hi));
            debug_assert!(lo <= first && first < last && last <= hi);
            let vma = maps.at_or_after(first).filter(|v| v.start <= first && v.end >= last);
            if let (Some(vma), Some(pool)) = (vma, self.pools.known(PAGE))
                && matches!(self.class(&vma), MappingClass::Private)
                && mover.swap_in(pool, first, last, vma.prot())
                && vma.readable
            {
                super::keep_in_place(first, last);
            }
            at = last;
        }
    }
    /// In the child: a private copy over each swapped mapping.
    fn privatise(&mut self) {
        let Some(maps) = Maps::open() else { return };
        self.each_swapped(&maps, 0, super::pool::ADDRESS_MAX, |registry, first, last, prot| {
            let page = maps.at_or_after(first).map_or(PAGE, |v| v.page);
            let Some(pool) = registry.pools.known(page) else { return };
            let len = last - first;
            let Some(copy) = private_pages(page, len) else { return };
            if !(copy_from_pool(pool, first, len, copy) && put_over(copy, len, first, prot)) {
                // SAFETY: the pages made above, not moved.
                unsafe { super::kernel::unmap(copy, len) };
            }
        });
    }
    /// Calls `f` with each swapped part of `[lo, hi)`: first address, end address, rights. Pages without a count are included:
    /// those that could not be made private on release are shared as well.
    fn each_swapped(&mut self, maps: &Maps, lo: usize, hi: usize, mut f: impl FnMut(&mut Registry, usize, usize, i32)) {
        let mut at = lo;
        for _ in 0..VMAS_MAX {
            let Some(vma) = maps.at_or_after(at).filter(|v| v.start < hi) else { return };
            if matches!(self.class(&vma), MappingClass::Swapped) {
                f(self, vma.start.max(lo), vma.end.min(hi), vma.prot());
            }
            at = vma.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::super::{kernel, tests::registry};
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
            registry.each_swapped(&maps, memory.page(lo), memory.page(hi), |_, first, last, rights| {
                parts.push(((first - memory.at) / PAGE, (last - memory.at) / PAGE, rights));
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
