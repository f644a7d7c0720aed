//! A table of words in pages of its own: those that were never written occupy no memory.
//!
//! An allocator does not promise that: it may take a large block from memory that was freed before, and writes zeroes to all of
//! its pages.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// `WORDS` words, all 0 at first.
#[derive(Debug)]
pub struct ZeroedWords<const WORDS: usize>(NonNull<[u32; WORDS]>);

// SAFETY: the value owns the memory, and gives it out by its own borrows only.
unsafe impl<const WORDS: usize> Send for ZeroedWords<WORDS> {}
// SAFETY: as above; a shared borrow only reads.
unsafe impl<const WORDS: usize> Sync for ZeroedWords<WORDS> {}

impl<const WORDS: usize> ZeroedWords<WORDS> {
    const BYTES: usize = WORDS * size_of::<u32>();

    /// A table. Without address space for it the process ends, as with any allocation.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(WORDS > 0, "a table without words") };
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, rights, flags, -1, 0) };
        match NonNull::new(at.cast()) {
            Some(words) if at != libc::MAP_FAILED => ZeroedWords(words),
            _ => handle_alloc_error(Layout::new::<[u32; WORDS]>()),
        }
    }

    /// Sets all words to 0 and gives their pages back to the system.
    pub fn clear(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing else refers to it during the call. Its pages are private and
        // anonymous, so the next reads find zeroes.
        let left = unsafe { libc::madvise(self.0.as_ptr().cast(), Self::BYTES, libc::MADV_DONTNEED) };
        if left != 0 {
            self.fill(0);
        }
    }
}

impl<const WORDS: usize> Default for ZeroedWords<WORDS> {
    fn default() -> Self {
        ZeroedWords::new()
    }
}

impl<const WORDS: usize> Deref for ZeroedWords<WORDS> {
    type Target = [u32; WORDS];

    #[inline]
    fn deref(&self) -> &[u32; WORDS] {
        // SAFETY: mapped as long as the value lives, aligned to a page, and any bytes are words.
        unsafe { self.0.as_ref() }
    }
}

impl<const WORDS: usize> DerefMut for ZeroedWords<WORDS> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u32; WORDS] {
        // SAFETY: as in `deref`; this is the only borrow.
        unsafe { self.0.as_mut() }
    }
}

impl<const WORDS: usize> Drop for ZeroedWords<WORDS> {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 1 << 17;
    const PAGE_WORDS: usize = 1024;

    /// Pages of the table that occupy memory.
    fn resident(table: &ZeroedWords<WORDS>) -> usize {
        let mut pages = vec![0u8; WORDS / PAGE_WORDS];
        // SAFETY: a mapping of whole pages, and a byte for each of them.
        let done = unsafe { libc::mincore(table.0.as_ptr().cast(), WORDS * 4, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn only_pages_with_written_words_occupy_memory_until_they_are_cleared() {
        let mut table = ZeroedWords::<WORDS>::new();
        assert_eq!((resident(&table), table[WORDS - 1]), (0, 0));
        (table[5], table[WORDS - 1]) = (7, 8);
        assert_eq!((table[5], table[WORDS - 1], table[6]), (7, 8, 0));
        assert!(resident(&table) <= 3, "{}", resident(&table));
        table.clear();
        assert_eq!(resident(&table), 0);
        assert!(table.iter().all(|word| *word == 0));
    }
}
