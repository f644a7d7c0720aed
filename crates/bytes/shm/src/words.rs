//! An array of 32-bit words in shared memory that outlives the process: what a daemon notes for its successor.
//!
//! A word is written by one relaxed store, so that it can be written for each packet. When the process has been killed, each word
//! has the value of its last store. No program maps this memory.

use crate::area::Area;
use crate::arena::{Segment, SegmentError};
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a word.
const WORD: usize = 4;

/// The array. Its pages take memory when they are first written.
#[derive(Debug)]
pub struct SharedWords(Area);

impl SharedWords {
    /// A new array of at least `count` words, which are 0.
    ///
    /// # Errors
    /// There are no descriptors or mappings left, or the size is impossible.
    pub fn create(count: usize) -> Result<SharedWords, SegmentError> {
        SharedWords::of(Segment::create((count * WORD).next_multiple_of(4096))?)
    }
    /// The array of another process.
    ///
    /// # Errors
    /// The descriptor is no sealed memory, or it cannot be mapped.
    pub fn from_fd(fd: OwnedFd) -> Result<SharedWords, SegmentError> {
        SharedWords::of(Segment::map(fd)?)
    }
    fn of(segment: Segment) -> Result<SharedWords, SegmentError> {
        let len = segment.len();
        Area::new(&Arc::new(segment), 0, len).map(SharedWords).ok_or(SegmentError::BadSize)
    }
    /// The descriptor to give to another process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.segment().fd()
    }
    /// Number of words.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len() / WORD
    }
    /// Writes word `at`, which must be less than [`SharedWords::len`].
    #[inline]
    pub fn set(&self, at: u32, value: u32) {
        self.0.word32(at as usize * WORD).store(value, Relaxed);
    }
    /// Word `at`; `None` behind the end.
    pub fn get(&self, at: usize) -> Option<u32> {
        (at < self.len()).then(|| self.0.word32(at * WORD).load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_of_the_descriptor_has_the_words() {
        let words = SharedWords::create(1000).expect("memory");
        assert_eq!((words.len(), words.get(1023), words.get(1024)), (1024, Some(0), None));
        words.set(0, 7);
        words.set(1023, u32::MAX);
        let fd = words.fd().expect("a descriptor").try_clone_to_owned().expect("a copy");
        drop(words);
        let again = SharedWords::from_fd(fd).expect("mapped");
        assert_eq!([again.get(0), again.get(1), again.get(1023)], [Some(7), Some(0), Some(u32::MAX)]);
    }

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let (file, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(SharedWords::from_fd(file).is_err());
    }
}
