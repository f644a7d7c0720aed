//! The end of registrations, also of pages that the program has moved to other addresses.

use super::advice::AdviceFlags;
use super::pinned::Pins;
use super::uffd::MovedRange;
use super::vma::{Maps, Vma};
use super::{MappingClass, Registry, calls};

impl Registry {
    /// The flags of a part of `vma`, which is about to be exchanged; `None`: it is not there any more. `locked`: whether the
    /// process has locked memory at all.
    pub(super) fn flags_now(&self, maps: &Maps, vma: &Vma, range: (usize, usize), locked: bool) -> Option<AdviceFlags> {
        let (first, last) = range;
        debug_assert!(vma.start <= first && first < last && last <= vma.end);
        // The question is asked by changes of the mapping.
        let _exchange = calls::exchange();
        let now = maps.still(vma, first, last)?;
        Some(self.advice.flags_of(maps, &now, first, locked))
    }

    /// Replaces the pool's pages that `vma` maps in the range by private copies. False: a device may have pinned them, or
    /// the kernel refuses.
    pub(super) fn make_private(&mut self, maps: &Maps, pins: &Pins, vma: &Vma, range: (usize, usize)) -> bool {
        let (first, last) = range;
        debug_assert!(vma.start <= first && first < last && last <= vma.end);
        let pool = self.pools.known(vma.page).copied().filter(|_| !pins.may_hold(first, last));
        let (Some(pool), Some(mover)) = (pool, self.mover()) else { return false };
        let Some(flags) = self.flags_now(maps, vma, range, pins.has_locked) else { return false };
        let part = vma.part_at(first);
        let range = MovedRange { pool: &pool, lo: first, hi: last, part, flags, maps: Some(maps) };
        let done = mover.swap_out(range, pins.is_alone);
        if done {
            self.advice.forget(part.offset, part.offset + (last - first));
        }
        done
    }

    /// Gives back the pool's pages `[lo, hi)`, which are not mapped at their address any more. If the program has moved
    /// them, they become private where they are now. Where that fails they stay counted, so that nothing else is swapped
    /// into them.
    pub(super) fn forget(&mut self, maps: &Maps, pins: &Pins, lo: usize, hi: usize) {
        if self.pools.forget(maps, lo, hi) {
            self.advice.forget(lo, hi);
            return;
        }
        let (mut at, mut waits) = (0, false);
        while let Some(vma) = maps.at_or_after(at) {
            at = vma.end;
            match (self.class(&vma), vma.offsets_in(lo, hi)) {
                (MappingClass::Moved, Some(range)) => _ = self.make_private(maps, pins, &vma, range),
                (MappingClass::Frozen, Some(range)) => {
                    self.fork.released.push(range);
                    waits = true;
                }
                _ => {}
            }
        }
        if !waits && !self.pools.forget(maps, lo, hi) {
            self.refs.add(lo, hi);
        }
    }
}
