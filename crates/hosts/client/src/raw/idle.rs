//! Empty polls: the polling thread yields the processor, and from time to time checks that the daemon runs.
//!
//! A thread with `EMPTY_MAX` empty polls in a row yields now and then: the worker that is to write the completion may be waiting
//! for this processor. Once a yield shows that another thread was waiting, every empty poll yields. On a processor that is
//! contended ([`Sharing::is_contended`]) the thread naps instead: with the kernel's autogroups a yield does not reach threads of
//! other sessions, so that a thread that only yields and the worker would take turns of whole time slices. On a processor that is
//! disputed ([`Sharing::is_disputed`]) it naps at once if its send queue keeps the worker busy for several naps
//! (`CompletionPace`): then it takes many completions together, and the time that it would have spent in polls and yields is
//! the worker's.
//!
//! Every `CHECK_EVERY` empty polls the caller must check the daemon: a program that only polls has no other way to learn that
//! the daemon has ended, and would poll for ever.

use burst_base::Nanos;
use burst_base::sharing::Sharing;
use std::cell::Cell;

/// Empty polls in a row before a thread yields.
const EMPTY_MAX: u32 = 24;
/// Empty polls in a row between two checks that the daemon runs. A check costs a system call, as a yield does.
const CHECK_EVERY: u32 = 1024;
/// Further empty polls between two yields while no other thread wants the processor.
const YIELD_EVERY: u32 = 4;
/// Length of a nap. The kernel adds its timer slack, usually 50 us. A queue of a few requests of 64 KiB lasts for longer.
const NAP: Nanos = Nanos::from_us(20);
/// Requests in flight must be enough for this time, so that none of several naps, with their timer slack, empties the send queue.
const AHEAD: Nanos = Nanos::from_us(280);
/// Fewer requests in flight may end together.
const OUTSTANDING_MIN: u32 = 4;
/// Older times and counts say nothing of the present rate.
const PACE_MAX: Nanos = Nanos::from_ms(10);

/// What an empty poll does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleAction {
    /// Return at once.
    Poll,
    /// Let threads of the same session run.
    Yield,
    /// Let any thread run.
    Nap,
}

/// How fast completions come: their number since a time.
#[derive(Clone, Copy, Debug)]
struct CompletionPace {
    since: Nanos,
    taken: u32,
}

impl CompletionPace {
    /// Whether `outstanding` requests last for [`AHEAD`] at this pace.
    fn lasts(self, now: Nanos, outstanding: u32) -> bool {
        let time = now.since(self.since);
        let each = time.0.checked_div(u64::from(self.taken)).unwrap_or(0);
        outstanding >= OUTSTANDING_MIN && time <= PACE_MAX && each.saturating_mul(u64::from(outstanding)) >= AHEAD.0
    }
}

/// The action of the `so_far`th empty poll in a row; `now` reads the clock.
#[inline]
fn action(sharing: Sharing, so_far: u32, may_nap: bool, now: impl FnOnce() -> Nanos) -> IdleAction {
    if !sharing.is_shared() && (so_far <= EMPTY_MAX || !so_far.is_multiple_of(YIELD_EVERY)) {
        IdleAction::Poll
    } else if may_nap && so_far > EMPTY_MAX && sharing.is_contended(now()) {
        IdleAction::Nap
    } else {
        IdleAction::Yield
    }
}

/// A thread's record of its polls.
struct IdleState {
    /// Empty polls since the thread's last completion.
    empty: Cell<u32>,
    /// Whether other threads wait for the thread's processor.
    sharing: Cell<Sharing>,
    /// Completions since the last nap.
    pace: Cell<CompletionPace>,
}

thread_local! {
    static IDLE: IdleState = const {
        IdleState {
            empty: Cell::new(0),
            sharing: Cell::new(Sharing::new()),
            pace: Cell::new(CompletionPace { since: Nanos(0), taken: 0 }),
        }
    };
}

/// Notes that this thread has found some completions.
#[inline]
pub fn found(some: u32) {
    IDLE.with(|idle| {
        idle.empty.set(0);
        let pace = idle.pace.get();
        idle.pace.set(CompletionPace { taken: pace.taken.wrapping_add(some), ..pace });
    });
}

/// Notes an empty poll of this thread, and yields or naps after many in a row, or where the `outstanding` requests of its send
/// queue last. `may_nap`: another process writes the completions; the polls of a program with an engine of its own run that
/// engine. True: the caller must check that the daemon runs.
#[inline(never)]
pub fn pause(may_nap: bool, outstanding: impl FnOnce() -> u32) -> bool {
    IDLE.with(|idle| {
        let so_far = idle.empty.get().wrapping_add(1);
        idle.empty.set(so_far);
        let mut sharing = idle.sharing.get();
        if may_nap && sharing.is_ever_disputed() && idle.naps_early(monotonic(), sharing, outstanding) {
            return so_far.is_multiple_of(CHECK_EVERY);
        }
        match action(sharing, so_far, may_nap, monotonic) {
            IdleAction::Poll => {}
            IdleAction::Yield => {
                let before = monotonic();
                yield_now();
                let now = monotonic();
                if sharing.yielded(now, now.since(before)) {
                    sharing.sample(switches());
                }
                idle.sharing.set(sharing);
            }
            IdleAction::Nap => nap(),
        }
        so_far.is_multiple_of(CHECK_EVERY)
    })
}

impl IdleState {
    /// Naps where that costs nothing, and begins a new `CompletionPace` if the old one is too long. Returns whether it has
    /// napped.
    fn naps_early(&self, now: Nanos, sharing: Sharing, outstanding: impl FnOnce() -> u32) -> bool {
        let pace = self.pace.get();
        if !sharing.is_disputed(now) {
            return false;
        }
        let naps = pace.lasts(now, outstanding());
        if naps {
            nap();
        }
        if naps || now.since(pace.since) > PACE_MAX {
            self.pace.set(CompletionPace { since: now, taken: 0 });
        }
        naps
    }
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
pub fn monotonic() -> Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable; the monotonic clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Sleeps for [`NAP`], or until a signal.
#[cold]
fn nap() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: NAP.0 as libc::c_long };
    // SAFETY: the time is readable, and the rest of it is not asked for. `syscall` is no cancellation point.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, core::ptr::null_mut::<libc::timespec>()) };
}

/// Lets another thread run on this processor.
pub fn yield_now() {
    // SAFETY: no arguments; cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_naps_early_only_where_its_yields_do_not_reach_the_thread_with_work() {
        let (now, mut sharing) = (Nanos::from_ms(7), Sharing::new());
        let paced = CompletionPace { since: now - Nanos::from_us(70), taken: 7 };
        let idle = IdleState { empty: Cell::new(1), sharing: Cell::new(sharing), pace: Cell::new(paced) };
        assert!(!idle.naps_early(now, sharing, || 128), "nobody else ran here");
        (0..4).for_each(|_| _ = sharing.yielded(now, Nanos::from_us(150)));
        assert!(!idle.naps_early(now, sharing, || 128), "yields reach the other thread");
        sharing.sample(0);
        assert!(!idle.naps_early(now, sharing, || 4), "a short queue");
        assert!(idle.naps_early(now, sharing, || 128));
        assert_eq!((idle.pace.get().since, idle.pace.get().taken), (now, 0), "a new pace is measured");
        assert!(!idle.naps_early(now, sharing, || 128), "no completion came since");
    }

    #[test]
    fn a_full_send_queue_of_long_messages_lets_a_thread_sleep_at_once() {
        let (since, now) = (Nanos::from_ms(7), Nanos::from_ms(7) + Nanos::from_us(70));
        let pace = CompletionPace { since, taken: 7 };
        assert!(pace.lasts(now, 28) && pace.lasts(now, 128), "one in 10 us");
        assert!(!pace.lasts(now, 27), "gone before the fourth nap ends");
        assert!(!CompletionPace { since, taken: 230 }.lasts(now, 128), "short messages");
        assert!(!CompletionPace { since, taken: 1 }.lasts(now, OUTSTANDING_MIN - 1));
        assert!(!CompletionPace { since, taken: 0 }.lasts(now, 128), "an unknown pace");
        assert!(!pace.lasts(since + PACE_MAX + Nanos(1), 128), "an old pace");
    }

    #[test]
    fn a_poller_naps_where_its_yields_do_not_reach_the_thread_that_wants_the_processor() {
        let (mut sharing, now) = (Sharing::new(), Nanos::from_ms(7));
        assert_eq!(action(sharing, 1, true, || now), IdleAction::Yield, "shared, as far as is known");
        // A time slice of a thread of another session.
        let _ = sharing.yielded(now, Nanos::from_ms(3));
        assert_eq!(action(sharing, 1, true, || now), IdleAction::Yield, "a completion came lately");
        assert_eq!(action(sharing, EMPTY_MAX + 4, true, || now), IdleAction::Nap);
        assert_eq!(action(sharing, EMPTY_MAX + 4, false, || now), IdleAction::Yield, "its polls run the engine");
        assert_eq!(
            action(sharing, EMPTY_MAX + 4, true, || now + Nanos::from_ms(2_000)),
            IdleAction::Yield,
            "a new trial"
        );
        (0..4).for_each(|_| _ = sharing.yielded(now, Nanos(500)));
        sharing.sample(0);
        assert_eq!(action(sharing, EMPTY_MAX, true, || now), IdleAction::Poll);
        assert_eq!(action(sharing, EMPTY_MAX + 1, true, || now), IdleAction::Poll);
        assert_eq!(action(sharing, EMPTY_MAX + 4, true, || now), IdleAction::Nap);
    }

    #[test]
    fn an_alone_poller_yields_every_fourth_time_after_many_empty_polls() {
        let mut sharing = Sharing::new();
        (0..4).for_each(|_| _ = sharing.yielded(Nanos(0), Nanos(500)));
        sharing.sample(0);
        let yields =
            (1..=EMPTY_MAX + 40).filter(|n| action(sharing, *n, true, || Nanos(0)) == IdleAction::Yield).count();
        assert_eq!(yields, 10);
    }
}
