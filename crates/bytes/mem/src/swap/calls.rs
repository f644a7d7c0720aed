//! The program's calls that change mappings, and exchanges of pages, exclude one another.
//!
//! An exchange asks the kernel what is mapped at an address and then maps pages over it. Between the two another thread must not
//! unmap or move the mapping, or the exchange would map pages over what has come there since. So the library that has the
//! program's symbols (`munmap`, `mremap`, …) makes these calls [`between_exchanges`].
//!
//! * A call takes a slot and looks whether an exchange is under way; an exchange says that it is and waits until the slots are
//!   empty. So calls do not wait for one another.
//! * An exchange makes system calls only: it allocates nothing and takes no lock, so a call may wait for it under locks of an
//!   allocator. It lasts for one chunk of pages, or one mapping.
//! * A thread does not wait for its own call: what it calls may deregister memory (UCX does so in its own `munmap`), and a
//!   signal handler may fork.
//! * What a call waits for may in turn wait for the exchange, in code of other libraries. So an exchange waits for
//!   [`CALL_MAX`] at most, and for such a call only once.
//!
//! Calls that do not come here (system calls by other means, `free` of libc) meet the second line of defence only: an
//! exchange asks for the mapping again immediately before it replaces it (`Chunk::look`).

use super::lock::this_thread;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// Calls at a time; further ones wait until one ends.
const SLOTS: usize = 64;
/// How long an exchange waits for a call.
const CALL_MAX: Duration = Duration::from_secs(1);
/// Mark of a slot whose call no exchange waits for any more. Identities of threads are even.
const OVERDUE: usize = 1;
/// After so many turns a thread that waits sleeps.
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// A thread that waits for an exchange looks again after this time whether that is of this process.
const LOOK_NS: i64 = 100_000_000;

static CALLS: MappingCalls = MappingCalls::new();

/// Runs `call`, which changes mappings of the program, while no pages are exchanged.
pub fn between_exchanges<R>(call: impl FnOnce() -> R) -> R {
    let _slot = CALLS.enter();
    call()
}

/// Begins an exchange of pages, which lasts as long as the value; calls of the program wait.
pub(super) fn exchange() -> Exchange<'static> {
    CALLS.exchange()
}

/// Forgets the calls of the parent's threads, in a child.
pub(super) fn begin_process() {
    CALLS.clear();
}

/// The calls under way, and whether pages are being exchanged.
struct MappingCalls {
    /// Identity of the thread that calls, or 0.
    slots: [AtomicUsize; SLOTS],
    /// Process that exchanges pages, or 0. Waiting threads sleep on it.
    exchanging: AtomicU32,
    /// Identity of the thread that exchanges, or 0.
    owner: AtomicUsize,
    /// Threads that sleep.
    waiting: AtomicU32,
}

/// A call under way.
struct ProgramCall<'a>(Option<&'a AtomicUsize>);

impl Drop for ProgramCall<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            debug_assert_eq!(slot.load(Relaxed) & !OVERDUE, this_thread(), "the slot of the thread that took it");
            // Pairs with the look at the slots in `exchange`: what the call has done to the mappings comes before it.
            slot.store(0, Release);
        }
    }
}

/// An exchange under way.
pub(super) struct Exchange<'a>(&'a MappingCalls);

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        debug_assert_eq!(self.0.owner.load(Relaxed), this_thread(), "the thread that began it");
        self.0.owner.store(0, Relaxed);
        // SeqCst: a thread that sleeps has counted itself before it looked (`wait_for_exchange`).
        self.0.exchanging.store(0, SeqCst);
        if self.0.waiting.load(SeqCst) > 0 {
            futex(&self.0.exchanging, libc::FUTEX_WAKE, i32::MAX as u32, None);
        }
    }
}

impl MappingCalls {
    const fn new() -> MappingCalls {
        let (exchanging, waiting) = (AtomicU32::new(0), AtomicU32::new(0));
        MappingCalls { slots: [const { AtomicUsize::new(0) }; SLOTS], exchanging, owner: AtomicUsize::new(0), waiting }
    }

    fn enter(&self) -> ProgramCall<'_> {
        let me = this_thread();
        debug_assert!(me != 0 && me & OVERDUE == 0, "an identity is an address");
        loop {
            // Relaxed: only this thread writes its own identity.
            if self.owner.load(Relaxed) == me {
                return ProgramCall(None);
            }
            let first = (me >> 12) % SLOTS;
            let claims = |slot: &&AtomicUsize| slot.compare_exchange(0, me, SeqCst, Relaxed).is_ok();
            if let Some(slot) = self.slots[first..].iter().chain(&self.slots[..first]).find(claims) {
                // SeqCst, as the claim: either this thread sees the exchange, or the exchange sees the slot.
                if self.exchanging.load(SeqCst) == 0 {
                    return ProgramCall(Some(slot));
                }
                slot.store(0, Release);
            }
            self.wait_for_exchange();
        }
    }

    fn exchange(&self) -> Exchange<'_> {
        if self.waiting.load(Relaxed) > 0 {
            // A job of many chunks lets calls in between them.
            std::thread::yield_now();
        }
        while self.exchanging.compare_exchange(0, std::process::id(), SeqCst, Relaxed).is_err() {
            self.wait_for_exchange();
        }
        let me = this_thread();
        self.owner.store(me, Relaxed);
        self.slots.iter().for_each(|slot| wait_for_call(slot, me));
        Exchange(self)
    }

    /// Sleeps until the exchange that is under way has ended, or lets another thread run if there is none.
    fn wait_for_exchange(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let process = self.exchanging.load(SeqCst);
        if process == 0 {
            std::thread::yield_now();
        } else if process == std::process::id() {
            futex(&self.exchanging, libc::FUTEX_WAIT, process, Some(LOOK_NS));
        } else {
            // A child that the handlers of fork have not prepared: the exchange was its parent's.
            self.clear();
            return;
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Relaxed));
        self.owner.store(0, Relaxed);
        self.waiting.store(0, Relaxed);
        self.exchanging.store(0, SeqCst);
    }
}

/// Waits until the call in `slot` has ended, unless it is this thread's.
fn wait_for_call(slot: &AtomicUsize, me: usize) {
    let mut turns = 0;
    let mut since = None;
    loop {
        let thread = slot.load(SeqCst);
        if thread == 0 || thread == me || thread & OVERDUE != 0 {
            return;
        }
        turns += 1;
        if turns <= YIELDS {
            std::thread::yield_now();
            continue;
        }
        if since.get_or_insert_with(Instant::now).elapsed() >= CALL_MAX {
            // It fails if the call has ended.
            let _ = slot.compare_exchange(thread, thread | OVERDUE, SeqCst, Relaxed);
            return;
        }
        std::thread::sleep(NAP);
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32, nanoseconds: Option<i64>) {
    let timeout = nanoseconds.map(|tv_nsec| libc::timespec { tv_sec: 0, tv_nsec });
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a live word, and a time that is readable or NULL. A failure (the word has changed, a signal) is looked at by the
    // callers, who look again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, timeout) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A call in another thread, which is inside until the value is dropped.
    fn while_inside<R>(calls: &MappingCalls, f: impl FnOnce(&AtomicBool) -> R) -> R {
        let (inside, leave) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let call = calls.enter();
                inside.store(true, SeqCst);
                while !leave.load(SeqCst) {
                    std::thread::yield_now();
                }
                drop(call);
            });
            while !inside.load(SeqCst) {
                std::thread::yield_now();
            }
            let result = f(&leave);
            leave.store(true, SeqCst);
            result
        })
    }

    #[test]
    fn an_exchange_begins_when_the_calls_of_other_threads_have_ended() {
        let calls = MappingCalls::new();
        while_inside(&calls, |leave| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // The exchange has begun to wait: new calls wait, too.
                    while calls.exchanging.load(SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    leave.store(true, SeqCst);
                });
                let _exchange = calls.exchange();
                assert!(leave.load(SeqCst));
                assert!(calls.slots.iter().all(|slot| slot.load(SeqCst) == 0));
            });
        });
    }

    #[test]
    fn a_call_waits_for_the_end_of_an_exchange_and_calls_do_not_wait_for_calls() {
        let (calls, ended) = (MappingCalls::new(), AtomicBool::new(false));
        let exchange = calls.exchange();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _first = calls.enter();
                    let _second = calls.enter();
                    assert!(ended.load(SeqCst));
                });
            }
            while calls.waiting.load(SeqCst) < 3 {
                std::thread::yield_now();
            }
            ended.store(true, SeqCst);
            drop(exchange);
        });
    }

    #[test]
    fn a_thread_waits_neither_for_its_own_call_nor_for_its_own_exchange() {
        let calls = MappingCalls::new();
        let call = calls.enter();
        let exchange = calls.exchange();
        let inner = calls.enter();
        drop((inner, exchange, call));
        assert!(calls.slots.iter().all(|slot| slot.load(SeqCst) == 0));
    }

    #[test]
    fn a_call_that_does_not_end_is_waited_for_once() {
        let calls = MappingCalls::new();
        while_inside(&calls, |_| {
            drop(calls.exchange());
            assert_eq!(calls.slots.iter().filter(|slot| slot.load(SeqCst) & OVERDUE != 0).count(), 1);
            for _ in 0..1000 {
                drop(calls.exchange());
            }
        });
        assert!(calls.slots.iter().all(|slot| slot.load(SeqCst) == 0), "its end clears the mark");
    }

    #[test]
    fn more_calls_than_slots_wait_for_one_another() {
        let (calls, count) = (MappingCalls::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let held: Vec<_> = (0..SLOTS).map(|_| calls.enter()).collect();
            scope.spawn(|| {
                drop(calls.enter());
                count.store(1, SeqCst);
            });
            assert_eq!(count.load(SeqCst), 0);
            drop(held);
        });
        assert_eq!(count.load(SeqCst), 1);
    }

    #[test]
    fn what_a_child_inherits_of_its_parents_exchange_is_forgotten() {
        let calls = MappingCalls::new();
        calls.exchanging.store(std::process::id() + 1, SeqCst);
        calls.slots[3].store(8, SeqCst);
        drop(calls.enter());
        drop(calls.exchange());
        assert_eq!(calls.exchanging.load(SeqCst), 0);
    }

    #[test]
    fn a_changing_value_is_seen_whole_by_exchanges() {
        let (calls, values, wrong) = (MappingCalls::new(), [const { AtomicUsize::new(0) }; 2], AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _call = calls.enter();
                        values[0].fetch_add(1, Relaxed);
                        values[1].fetch_add(1, Relaxed);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _exchange = calls.exchange();
                        let seen = [values[0].load(Relaxed), values[1].load(Relaxed)];
                        wrong.fetch_add(usize::from(seen[0] != seen[1]), Relaxed);
                    }
                });
            }
        });
        assert_eq!(wrong.load(Relaxed), 0);
    }
}
