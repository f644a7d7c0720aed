//! Polling threads that share their processor nap until a completion comes.
//!
//! A program that polls an empty queue on a processor that others need only keeps them from working: each of its looks
//! costs two context switches. Instead it sleeps on a word of its context page (a futex), for a short while at most, and the
//! worker wakes it after the next pass that wrote a completion of that context. No wake-up is lost: the sleeper announces
//! itself, then looks at its queue once more; the worker writes the completion, then looks for sleepers (both with
//! sequentially consistent fences in between). The page is hostile: the worst a wrong word does is a useless system call.

use crate::area::Area;
use crate::layout::ContextPage;
use burst_base::Nanos;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use rustix::thread::futex;
use rustix::time::Timespec;

const WORD: usize = offset_of!(ContextPage, nap_word);
const SLEEPERS: usize = offset_of!(ContextPage, nap_sleepers);

/// The application's end.
#[derive(Debug)]
pub struct Napper {
    page: Area,
}

impl Napper {
    /// From the context page (start of segment 0). None when `page` is smaller.
    pub fn new(page: Area) -> Option<Napper> {
        (page.len() >= size_of::<ContextPage>()).then_some(Napper { page })
    }
    /// Sleeps until a completion of the context is written, at most `limit`. `ready` looks at the queue once more.
    pub fn nap(&self, limit: Nanos, ready: impl FnOnce() -> bool) {
        let word = self.page.word32(WORD);
        let seen = word.load(Ordering::Acquire);
        let sleepers = self.page.word32(SLEEPERS);
        // Pairs with the fence in `Waker::wake`.
        sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !ready() {
            wait(word, seen, limit);
        }
        sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The worker's end.
#[derive(Debug)]
pub struct Waker {
    page: Area,
}

impl Waker {
    /// From the context page. None when `page` is smaller.
    pub fn new(page: Area) -> Option<Waker> {
        (page.len() >= size_of::<ContextPage>()).then_some(Waker { page })
    }
    /// After completions have been written: wakes who sleeps. Costs a fence and a load when nobody does.
    pub fn wake(&self) {
        // Pairs with the fence in `Napper::nap`: either it sees the completion, or we see it.
        fence(Ordering::SeqCst);
        if self.page.word32(SLEEPERS).load(Ordering::Relaxed) != 0 {
            let word = self.page.word32(WORD);
            word.fetch_add(1, Ordering::Release);
            wake_all(word);
        }
    }
}

/// FUTEX_WAIT on memory shared between processes; any reason to return is good.
fn wait(word: &AtomicU32, seen: u32, limit: Nanos) {
    let time = Timespec { tv_sec: (limit.0 / 1_000_000_000) as i64, tv_nsec: (limit.0 % 1_000_000_000) as i64 };
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&time));
}

fn wake_all(word: &AtomicU32) {
    // Nobody there any more is as good.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    fn ends() -> (Napper, Waker) {
        let page = crate::testing::area(size_of::<ContextPage>());
        (Napper::new(page.clone()).expect("fits"), Waker::new(page).expect("fits"))
    }

    #[test]
    fn a_nap_ends_by_itself_and_is_not_begun_when_something_is_there() {
        let (napper, _waker) = ends();
        let began = Instant::now();
        napper.nap(Nanos::from_ms(20), || false);
        assert!(began.elapsed() >= Duration::from_millis(19));
        let began = Instant::now();
        napper.nap(Nanos::from_ms(10_000), || true);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn no_wake_up_is_lost() {
        let (napper, waker) = ends();
        let flag = Arc::new(AtomicBool::new(false));
        let there = flag.clone();
        let rounds = 20_000;
        let worker = std::thread::spawn(move || {
            for _ in 0..rounds {
                while there.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                there.store(true, Ordering::Release);
                waker.wake();
            }
        });
        for _ in 0..rounds {
            let began = Instant::now();
            while !flag.load(Ordering::Acquire) {
                napper.nap(Nanos::from_ms(10_000), || flag.load(Ordering::Acquire));
            }
            assert!(began.elapsed() < Duration::from_secs(9), "a wake-up was lost");
            flag.store(false, Ordering::Release);
        }
        worker.join().expect("worker");
    }
}
