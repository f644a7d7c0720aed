//! Where swaps have split mappings, so that registrations do not use up the process's mappings.
//!
//! A swapped part of a private mapping makes three mappings of one. A process may have `vm.max_map_count` mappings (65,530 by
//! default); beyond that its own `mmap` fails. So registrations split mappings at one in [`PART`] of that number of places at
//! most, and further ranges are reached in the process. Of small ranges ([`SMALL`]), of which a program may have very many, only
//! the first split mappings ([`SMALL_PLACES_MAX`]): an access in the process costs a system call, which matters less the fewer
//! bytes it moves for each mapping that it spares. Ranges that are whole mappings, or adjacent to swapped pages, split
//! nothing. In a process with one thread the splits end with the registration (`uffd`).

use super::vma::Maps;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The part of a process's mappings that splits may take: one in this many.
const PART: usize = 4;
/// `vm.max_map_count` where it cannot be read.
const MAPPINGS_DEFAULT: usize = 65_530;

/// Ranges of fewer bytes are small.
const SMALL: usize = 64 << 10;
/// Most places at which mappings are split for small ranges.
const SMALL_PLACES_MAX: usize = 48;
/// So many places are looked at again when a registration has ended.
const LOOKED_AT_MAX: usize = 4 * SMALL_PLACES_MAX;

/// Addresses at which swaps have split mappings. Some may be no boundary any more: the program has unmapped the memory, or the
/// pages are private again and part of the mapping beside them.
#[derive(Debug)]
pub(crate) struct SplitSet {
    places: BTreeSet<usize>,
    /// The boundaries are looked for when there are so many places.
    checked_at: usize,
}

impl SplitSet {
    pub(crate) const fn new() -> SplitSet {
        SplitSet { places: BTreeSet::new(), checked_at: 0 }
    }
    /// Adds places.
    pub(crate) fn extend(&mut self, places: impl Iterator<Item = usize>) {
        self.places.extend(places);
    }
    /// Whether another mapping may be split for a range of `len` bytes.
    pub(crate) fn has_room(&mut self, maps: &Maps, len: usize) -> bool {
        self.has_room_within(maps, if len < SMALL { SMALL_PLACES_MAX } else { places_max() })
    }
    /// Notes that a registration has ended: some places may be no boundaries any more.
    pub(crate) fn note_released(&mut self) {
        if self.places.len() <= LOOKED_AT_MAX {
            self.checked_at = 0;
        }
    }
    fn has_room_within(&mut self, maps: &Maps, most: usize) -> bool {
        if self.places.len() >= self.checked_at.max(most) {
            self.places.retain(|at| is_boundary(maps, *at));
            // Not again for each registration while there are as many.
            self.checked_at = self.places.len() + most / PART;
        }
        self.places.len() < most
    }
}

/// Whether one mapping ends and another begins at `at`.
fn is_boundary(maps: &Maps, at: usize) -> bool {
    maps.at_or_after(at - 1).is_some_and(|before| before.start < at && before.end == at)
        && maps.at_or_after(at).is_some_and(|behind| behind.start == at)
}

/// Most places at which mappings are split.
fn places_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        limit.and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS_DEFAULT) / PART
    })
}

#[cfg(test)]
mod tests {
    use super::super::pool::PAGE;
    use super::super::testing::Memory;
    use super::*;

    #[test]
    fn places_that_are_no_boundary_any_more_make_room() {
        let (memory, maps) = (Memory::new(16), Maps::open().expect("/proc/self/maps"));
        let mut splits = SplitSet::new();
        for page in [2, 5, 8, 11] {
            memory.protect(page..page + 1, libc::PROT_READ);
            splits.extend([memory.page(page), memory.page(page + 1)].into_iter());
        }
        assert!(splits.has_room_within(&maps, 9) && !splits.has_room_within(&maps, 8));
        memory.protect(2..9, libc::PROT_READ | libc::PROT_WRITE);
        // Asked again only when there are more.
        assert!(!splits.has_room_within(&maps, 8));
        splits.extend([memory.at + PAGE, memory.page(14)].into_iter());
        assert!(splits.has_room_within(&maps, 8));
        assert_eq!(splits.places.len(), 2, "the two around page 11");
    }

    #[test]
    fn small_ranges_split_a_few_mappings_only() {
        let (memory, maps) = (Memory::new(2 * SMALL_PLACES_MAX + 4), Maps::open().expect("/proc/self/maps"));
        let mut splits = SplitSet::new();
        for page in (1..2 * SMALL_PLACES_MAX + 2).step_by(2) {
            memory.protect(page..page + 1, libc::PROT_READ);
            let has_room = splits.places.len() < SMALL_PLACES_MAX;
            assert_eq!((splits.has_room(&maps, SMALL - 1), splits.has_room(&maps, SMALL)), (has_room, true), "{page}");
            splits.extend([memory.page(page), memory.page(page + 1)].into_iter());
        }
        memory.protect(0..2 * SMALL_PLACES_MAX + 2, libc::PROT_READ);
        assert!(!splits.has_room(&maps, PAGE), "not looked at again");
        splits.note_released();
        assert!(splits.has_room(&maps, PAGE) && splits.places.len() <= 2);
    }
}
