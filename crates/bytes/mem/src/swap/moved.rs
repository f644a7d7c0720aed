//! The end of registrations, also of pages that the program has moved to other addresses.

use super::pinned::Pins;
use super::vma::{Maps, Vma};
use super::{MappingClass, Registry};

impl Registry {
    /// Replaces the pool's pages that `vma` maps in the range by private copies. False: a device may have pinned them, or
    /// the kernel refuses.
    pub(super) fn make_private(&mut self, maps: &Maps, pins: &Pins, vma: &Vma, range: (usize, usize)) -> bool {
        let (first, last) = range;
        debug_assert!(vma.start <= first && first < last && last <= vma.end);
        let pool = self.pools.known(vma.page).copied().filter(|_| !pins.may_hold(first, last));
        let (Some(pool), Some(mover)) = (pool, self.mover()) else { return false };
        let flags = self.advice.flags_of(maps, vma, first, pins.has_locked);
        let done = mover.swap_out(&pool, (first, last), vma.part_at(first), pins.is_alone);
        if done {
            flags.apply(first, last);
            let offset = vma.part_at(first).offset;
            self.advice.forget(offset, offset + (last - first));
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
