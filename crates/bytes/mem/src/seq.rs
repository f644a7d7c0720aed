//! A sequence lock: a few words that one worker changes and others read at the same time.
//!
//! The version is odd while a writer is at work. A reader copies the words and looks at the version again; a copy made
//! during a change is discarded. Writers exclude each other by making the version odd with compare-and-swap. Both sides try
//! a bounded number of times: a writer is at work for a few instructions, so giving up means that the writer was interrupted
//! just then. Tests run it under threads; it builds with loom's atomics (`--cfg loom`), but no loom model exists yet.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Attempts before a reader or writer gives up.
#[cfg(not(loom))]
const TRIES: u32 = 1024;
/// Models must be finite.
#[cfg(loom)]
const TRIES: u32 = 2;

/// `N` words that change together.
#[derive(Debug)]
pub struct SeqWords<const N: usize> {
    version: AtomicU32,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for SeqWords<N> {
    fn default() -> Self {
        SeqWords { version: AtomicU32::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const N: usize> SeqWords<N> {
    /// A consistent copy; `None` if a writer was at work in every attempt.
    pub fn read(&self) -> Option<[u64; N]> {
        for _ in 0..TRIES {
            // Acquire pairs with the Release that ends a change: the words are at least that new.
            let before = self.version.load(Ordering::Acquire);
            if before & 1 == 0 {
                let copy = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                // Pairs with the fence in `change`: a copy that has a word of a change sees that change's odd version.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return Some(copy);
                }
            }
            pause();
        }
        None
    }

    /// Lets `f` change the words and returns its result. `None`, without a call of `f`, if another writer was at work in every
    /// attempt.
    pub fn change<T>(&self, f: impl FnOnce(&mut [u64; N]) -> T) -> Option<T> {
        let version = self.begin()?;
        debug_assert_eq!(version & 1, 0, "one writer at a time");
        let mut words = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let result = f(&mut words);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
        Some(result)
    }

    /// Makes the version odd, which excludes other writers; returns the version before.
    fn begin(&self) -> Option<u32> {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Relaxed);
            let odd = version.wrapping_add(1);
            // Acquire pairs with the Release of the writer before.
            if version & 1 == 0
                && self.version.compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(version);
            }
            pause();
        }
        None
    }
}

fn pause() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn words_change_together_and_results_are_returned() {
        let words = SeqWords::<3>::default();
        assert_eq!(words.read(), Some([0; 3]));
        assert_eq!(words.change(|w| core::mem::replace(w, [1, 2, 3])), Some([0; 3]));
        assert_eq!(words.change(|w| w[1] += 5), Some(()));
        assert_eq!((words.read(), words.version.load(Ordering::Relaxed)), (Some([1, 7, 3]), 4));
    }

    #[test]
    fn a_writer_at_work_makes_others_give_up() {
        let words = SeqWords::<2>::default();
        let version = words.begin().expect("no other writer");
        assert_eq!((version, words.version.load(Ordering::Relaxed)), (0, 1));
        assert_eq!((words.read(), words.change(|_| ()), words.begin()), (None, None, None));
        words.version.store(u32::MAX - 1, Ordering::Release);
        assert_eq!(words.change(|w| w[0] = 9), Some(()));
        assert_eq!((words.version.load(Ordering::Relaxed), words.read()), (0, Some([9, 0])), "the version wraps");
    }

    #[test]
    fn no_reader_sees_half_a_change() {
        let (words, end) = (SeqWords::<4>::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    if let Some(copy) = words.read() {
                        assert!(copy.iter().all(|word| *word == copy[0]), "{copy:?}");
                    }
                }
            });
            let writers = [(); 2].map(|()| {
                scope.spawn(|| {
                    (0..20_000).filter(|_| words.change(|w| w.iter_mut().for_each(|x| *x += 1)).is_some()).count()
                })
            });
            let changes: usize = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
            end.store(true, Ordering::Relaxed);
            assert_eq!(words.read(), Some([changes as u64; 4]), "no change is lost");
        });
    }
}
