//! Shared memory whose missing pages the program itself provides, by a `userfaultfd` of its own (a virtual machine that is
//! restored lazily, a garbage collector).
//!
//! An adapter pins all pages of a region when it is registered, so each one is provided then. The daemon never asks the program:
//! by its own mapping of a file it would read zeros where a page is missing, and `/proc/PID/mem` refuses such a page. So these
//! pages are fetched at registration. Private memory needs no question: it is made present for its exchange.

use super::uffd::PageMover;
use super::vma::Maps;
use super::{VMAS_MAX, fork, kernel};

/// Makes the pages of `[addr, end)` present that the program provides itself. Waits for the program, which may be waiting for the
/// registry: the caller does not hold it.
pub(super) fn fetch(maps: &Maps, (addr, end): (usize, usize)) {
    debug_assert!(addr < end);
    let (mut at, mut mover) = (addr, None);
    for _ in 0..VMAS_MAX {
        let Some(vma) = maps.at_or_after(at).filter(|vma| vma.start < end) else { return };
        let lo = vma.start.max(at) & !(vma.page - 1);
        let hi = vma.end.min(end.next_multiple_of(vma.page));
        if vma.shared && vma.inode != 0 && !vma.is_pools() {
            mover = mover.or_else(|| fork::registry().mover());
            if mover.as_deref().is_some_and(|mover: &PageMover| mover.is_anothers(lo, hi)) {
                kernel::populate(lo, hi - lo);
            }
        }
        at = vma.end;
        if at >= end {
            return;
        }
    }
}
