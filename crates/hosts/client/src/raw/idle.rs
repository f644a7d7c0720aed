//! Empty polls: the polling thread yields the processor, and from time to time checks that the daemon runs.
//!
//! A thread with `EMPTY_MAX` empty polls in a row yields now and then: the worker that is to write the completion may be waiting
//! for this processor. Once a yield shows that another thread was waiting, every empty poll yields. Every `CHECK_EVERY` empty
//! polls the caller must check the daemon: a program that only polls has no other way to learn that the daemon has ended, and
//! would poll for ever.

use burst_base::sharing::Sharing;
use std::cell::Cell;

/// Empty polls in a row before a thread yields.
const EMPTY_MAX: u32 = 24;
/// Empty polls in a row between two checks that the daemon runs. A check costs a system call, as a yield does.
const CHECK_EVERY: u32 = 1024;
/// Further empty polls between two yields while no other thread wants the processor.
const YIELD_EVERY: u32 = 4;

/// A thread's record of its polls.
struct IdleState {
    /// Empty polls since the thread's last completion.
    empty: Cell<u32>,
    /// Whether other threads wait for the thread's processor.
    sharing: Cell<Sharing>,
}

thread_local! {
    static IDLE: IdleState = const { IdleState { empty: Cell::new(0), sharing: Cell::new(Sharing::new()) } };
}

/// Notes that this thread has found a completion.
#[inline]
pub fn found() {
    IDLE.with(|idle| idle.empty.set(0));
}

/// Notes an empty poll of this thread, and yields after many in a row. True: the caller must check that the daemon runs.
#[inline(never)]
pub fn pause() -> bool {
    IDLE.with(|idle| {
        let so_far = idle.empty.get().wrapping_add(1);
        idle.empty.set(so_far);
        let mut sharing = idle.sharing.get();
        if sharing.is_shared() || (so_far > EMPTY_MAX && so_far.is_multiple_of(YIELD_EVERY)) {
            let before = monotonic();
            yield_now();
            let now = monotonic();
            if sharing.yielded(now, now.since(before)) {
                sharing.sample(switches());
            }
            idle.sharing.set(sharing);
        }
        so_far.is_multiple_of(CHECK_EVERY)
    })
}

/// Involuntary context switches of this thread so far.
pub fn switches() -> u64 {
    // SAFETY: `usage` is plain data, written by the call; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw as u64
    }
}

/// The monotonic clock.
pub fn monotonic() -> burst_base::Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable; the monotonic clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    burst_base::Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Lets another thread run on this processor.
pub fn yield_now() {
    // SAFETY: no arguments; cannot fail on Linux.
    unsafe { libc::sched_yield() };
}
