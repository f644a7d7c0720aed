//! `/proc/self/pagemap`, which shows what is mapped at each page.

use super::pool::PAGE;
use super::proc_files;

/// `/proc/self/pagemap`, open.
pub(crate) struct PageMap(i32);

impl PageMap {
    pub(crate) fn open() -> Option<PageMap> {
        let fd = proc_files::open(c"/proc/self/pagemap");
        (fd >= 0).then_some(PageMap(fd))
    }
    pub(crate) fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Calls `f` with each run of the `len` bytes of pages from `start` on whose entries in `/proc/self/pagemap` answer `ask` alike,
/// and with the answer, until it returns false. `map`: a descriptor of that file, or -1. Pages whose entries cannot be read count
/// as answered by yes.
pub(crate) fn each_run(
    map: i32,
    (start, len): (usize, usize),
    ask: fn(u64) -> bool,
    mut f: impl FnMut(usize, usize, bool) -> bool,
) -> bool {
    const ENTRIES: usize = 512;
    let mut entries = [0u64; ENTRIES];
    let (mut from, end) = (start, start + len);
    debug_assert!(from.is_multiple_of(PAGE) && len.is_multiple_of(PAGE));
    while from < end {
        let pages = ((end - from) / PAGE).min(ENTRIES);
        let (bytes, offset) = (pages * size_of::<u64>(), from / PAGE * size_of::<u64>());
        let to = entries.as_mut_ptr().cast();
        // SAFETY: `entries` is writable for `bytes`.
        let known = map >= 0 && unsafe { libc::pread(map, to, bytes, offset as libc::off_t) } == bytes as isize;
        let answer = |i: usize| !known || ask(entries[i]);
        let mut first = 0;
        while first < pages {
            let last = (first..pages).find(|i| answer(*i) != answer(first)).unwrap_or(pages);
            if !f(from + first * PAGE, (last - first) * PAGE, answer(first)) {
                return false;
            }
            first = last;
        }
        from += pages * PAGE;
    }
    true
}

/// Bits of an entry of `/proc/PID/pagemap`: the page is in memory, or on a swap device.
pub(crate) const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Whether an entry of `/proc/PID/pagemap` of private memory is that of a page with contents.
pub(crate) fn is_touched(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0
}

/// Whether an entry of `/proc/PID/pagemap` of a file's private mapping is that of a page of its own, or may be one.
pub(crate) fn is_own_page(entry: u64) -> bool {
    const OF_FILE: u64 = 1 << 61;
    entry & SWAPPED != 0 || entry & (PRESENT | OF_FILE) == PRESENT
}
