//! Allocations that can fail, and freed memory that the allocator keeps for one thread.
//!
//! An allocation whose size follows from a program's request must not end the process of all programs: [`reserve`] and
//! [`attempt`] report that there is no memory, before the object exists. Tests let them fail ([`crate::fault`]).
//!
//! Other allocations cannot fail. A daemon has a reserve of address space for them, which its allocator gives up when the system
//! gives no more ([`note_reserve`]); an allocation that may fail does not take it ([`may_fail`]).
//!
//! The C library's allocator (glibc) keeps up to seven freed blocks of each size up to 1,032 bytes for the thread that freed
//! them. It returns them to the heap when the thread exits, and `malloc_trim` does not. After a hundred thousand objects have
//! ended, these blocks lie far apart: each keeps a page of its own, together more than a megabyte a thread.

use crate::fault;
use std::cell::Cell;
use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The allocator has no memory for what was asked for. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the system gives no more memory")
    }
}

impl std::error::Error for OutOfMemory {}

/// Makes room in `list` for `entries` in all: until it is longer, it does not allocate.
///
/// # Errors
/// There is no memory.
pub fn reserve<T>(list: &mut Vec<T>, entries: usize) -> Result<(), OutOfMemory> {
    if entries <= list.capacity() {
        return Ok(());
    }
    let more = entries - list.len();
    attempt(|| list.try_reserve_exact(more))
}

/// An empty list with room for `entries`.
///
/// # Errors
/// There is no memory.
pub fn with_room<T>(entries: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut list = Vec::new();
    reserve(&mut list, entries).map(|()| list)
}

/// A value in memory of its own. An array of one, because only lists can be allocated so that it may fail.
///
/// # Errors
/// There is no memory.
pub fn boxed<T>(value: T) -> Result<Box<[T; 1]>, OutOfMemory> {
    let mut list = with_room(1)?;
    list.push(value);
    list.into_boxed_slice().try_into().map_err(|_| OutOfMemory)
}

/// Carries out an allocation of another kind of table.
///
/// # Errors
/// There is no memory.
pub fn attempt(allocate: impl FnOnce() -> Result<(), TryReserveError>) -> Result<(), OutOfMemory> {
    if fault::fails() {
        return Err(OutOfMemory);
    }
    let before = MAY_FAIL.replace(true);
    let result = allocate().map_err(|_| OutOfMemory);
    MAY_FAIL.set(before);
    result
}

thread_local! {
    /// Whether this thread can do without the memory that it asks for.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the reserve is given up. It orders nothing: who reads it late refuses a request late.
static RESERVE_SPENT: AtomicBool = AtomicBool::new(false);

/// Whether this thread can do without the memory that it asks for. For an allocator with a reserve.
pub fn may_fail() -> bool {
    MAY_FAIL.get()
}

/// The process's allocator has given up its reserve, or has made a new one.
pub fn note_reserve(is_spent: bool) {
    RESERVE_SPENT.store(is_spent, Relaxed);
}

/// Whether the process has given up its reserve: nothing should be begun that takes more memory.
pub fn is_reserve_spent() -> bool {
    RESERVE_SPENT.load(Relaxed)
}

/// Sizes of the blocks that are kept, in bytes: the smallest, the largest and the step.
const SIZES: (usize, usize, usize) = (24, 1032, 16);
/// Blocks of one size that are kept.
const KEPT: usize = 7;
/// Bytes of a block that is too large to be kept.
const TOO_LARGE: usize = 1200;

/// Returns the blocks that the allocator keeps for this thread to the heap, so that trimming can return their pages to the
/// system. Under another allocator it allocates and frees half a megabyte, and changes nothing.
///
/// A freed block is kept unless as many of its size are. So others are freed first: they are kept, and the blocks that were kept
/// before go to the heap when they are freed next. The others, too, must not stay: one that grows in place is too large to be
/// kept when it is freed. It grows if what follows it is free, so they grow in descending order of addresses, each after what
/// follows it was freed. Those that cannot grow lie between blocks that are in use.
pub fn return_thread_cache() {
    let kept = blocks();
    let others = blocks();
    drop(others);
    drop(kept);
    let mut others = blocks();
    others.sort_unstable_by_key(|block| std::cmp::Reverse(block.as_ptr().addr()));
    for mut block in others {
        block.reserve_exact(TOO_LARGE);
        drop(black_box(block));
    }
}

/// As many blocks of each size as may be kept. What is kept is taken first.
fn blocks() -> Vec<Vec<u8>> {
    let (smallest, largest, step) = SIZES;
    let sizes = (smallest..=largest).step_by(step);
    let mut taken = Vec::with_capacity(KEPT * sizes.clone().count());
    taken.extend(sizes.flat_map(|bytes| (0..KEPT).map(move |_| black_box(Vec::with_capacity(bytes)))));
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_once_and_too_much_is_refused() {
        let mut list = vec![1u64, 2];
        assert_eq!(reserve(&mut list, 100), Ok(()));
        let (place, room) = (list.as_ptr(), list.capacity());
        assert!(room >= 100);
        assert_eq!(reserve(&mut list, 100), Ok(()));
        list.resize(100, 0);
        assert_eq!((list.as_ptr(), list.capacity()), (place, room), "it does not move until it is longer");
        assert_eq!(reserve(&mut list, usize::MAX), Err(OutOfMemory));
        assert_eq!((list.len(), list.capacity()), (100, room));
        assert!(with_room::<u64>(usize::MAX / 4).is_err());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn only_what_allocates_is_a_step_that_can_fail() {
        let mut list: Vec<u8> = with_room(8).expect("memory");
        fault::arm(0);
        assert_eq!(reserve(&mut list, 8), Ok(()));
        assert_eq!(reserve(&mut list, 9), Err(OutOfMemory));
        assert!(fault::disarm() && list.capacity() == 8);
    }
}
