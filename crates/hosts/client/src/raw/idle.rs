//! Empty polls: the polling thread yields the processor, and from time to time checks that the daemon runs.
//!
//! A thread with `EMPTY_MAX` empty polls in a row yields now and then: the worker that is to write the completion may be waiting
//! for this processor. Once a yield shows that another thread was waiting, every empty poll yields. On a processor that is
//! contended ([`Sharing::is_contended`]) the thread naps instead: with the kernel's autogroups a yield does not reach threads of
//! other sessions, so that a thread that only yields and the worker would take turns of whole time slices. On a processor that is
//! disputed ([`Sharing::is_disputed`]) it naps at once if its send queue keeps the worker busy for several naps (`SendPace`):
//! then it takes many completions together, and the time that it would have spent in polls and yields is the worker's.
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
/// A rate is measured over at least this time: completions that are found together would seem to have taken none.
const PACE_MIN: Nanos = Nanos::from_us(20);

/// What the completions of a queue say of the requests before and behind them. A hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Requests that have ended since the last question, also those without a completion of their own.
    pub finished: u32,
    /// Requests in flight of the send queue that had the last completion.
    pub outstanding: u32,
}

impl SendProgress {
    /// A completion: `finished` further requests have ended, `outstanding` have not.
    #[inline]
    pub const fn note(&mut self, finished: u32, outstanding: u32) {
        (self.finished, self.outstanding) = (self.finished.wrapping_add(finished), outstanding);
    }
    /// Answers a question.
    pub const fn take(&mut self) -> SendProgress {
        let progress = *self;
        self.finished = 0;
        progress
    }
}

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

/// How fast requests end.
#[derive(Clone, Copy, Debug, Default)]
struct SendPace {
    /// The last completion, as far as the pace counts.
    since: Nanos,
    /// Requests that have ended since then.
    finished: u32,
    /// Time for each request; 0: unknown.
    each: Nanos,
    /// Requests that had ended when completions were found last: programs ask for one completion of so many.
    lump: u32,
}

impl SendPace {
    /// Counts requests that were found to have ended.
    fn note(&mut self, now: Nanos, finished: u32) {
        if now.since(self.since) > PACE_MAX {
            *self = SendPace { since: now, ..SendPace::default() };
        } else if finished > 0 {
            (self.finished, self.lump) = (self.finished.saturating_add(finished), finished);
            let time = now.since(self.since);
            if time >= PACE_MIN {
                (self.since, self.each, self.finished) = (now, Nanos(time.0 / u64::from(self.finished)), 0);
            }
        }
    }
    /// Whether `outstanding` requests, as of the last completion, last for [`AHEAD`] from now on. Those behind the next
    /// completion are all there as long as it does not come.
    fn lasts(self, now: Nanos, outstanding: u32) -> bool {
        let time = |requests: u32| self.each.0.saturating_mul(u64::from(requests));
        let left = time(outstanding).saturating_sub(now.since(self.since).0);
        outstanding >= OUTSTANDING_MIN && left.max(time(outstanding.saturating_sub(self.lump))) >= AHEAD.0
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
    /// How fast the thread's requests end.
    pace: Cell<SendPace>,
}

thread_local! {
    static IDLE: IdleState = const {
        IdleState {
            empty: Cell::new(0),
            sharing: Cell::new(Sharing::new()),
            pace: Cell::new(SendPace { since: Nanos(0), finished: 0, each: Nanos(0), lump: 0 }),
        }
    };
}

/// Notes that this thread has found completions.
#[inline]
pub fn found() {
    IDLE.with(|idle| idle.empty.set(0));
}

/// Whether [`pause`] may ask this thread for its progress: an answer that was not asked for is lost.
#[inline]
pub fn asks_progress() -> bool {
    IDLE.with(|idle| idle.sharing.get().is_ever_disputed())
}

/// Notes an empty poll of this thread, and yields or naps after many in a row, or where its requests in flight last. `may_nap`:
/// another process writes the completions; the polls of a program with an engine of its own run that engine. `progress` is asked
/// only where it matters. True: the caller must check that the daemon runs.
#[inline(never)]
pub fn pause(may_nap: bool, progress: impl FnOnce() -> SendProgress) -> bool {
    IDLE.with(|idle| {
        let so_far = idle.empty.get().wrapping_add(1);
        idle.empty.set(so_far);
        let mut sharing = idle.sharing.get();
        if may_nap && sharing.is_ever_disputed() && idle.naps_early(monotonic(), sharing, progress) {
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
    /// Naps where that costs nothing. Returns whether it has napped.
    fn naps_early(&self, now: Nanos, sharing: Sharing, progress: impl FnOnce() -> SendProgress) -> bool {
        if !sharing.is_disputed(now) {
            return false;
        }
        let (SendProgress { finished, outstanding }, mut pace) = (progress(), self.pace.get());
        pace.note(now, finished);
        self.pace.set(pace);
        let naps = pace.lasts(now, outstanding);
        if naps {
            nap();
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
        let pace = SendPace { since: now - Nanos::from_us(70), ..SendPace::default() };
        let idle = IdleState { empty: Cell::new(1), sharing: Cell::new(sharing), pace: Cell::new(pace) };
        let progress = |finished, outstanding| move || SendProgress { finished, outstanding };
        assert!(!idle.naps_early(now, sharing, progress(7, 128)), "no other thread ran here");
        (0..4).for_each(|_| _ = sharing.yielded(now, Nanos::from_us(150)));
        assert!(!idle.naps_early(now, sharing, progress(7, 128)), "yields reach the other thread");
        sharing.sample(0);
        assert!(!idle.naps_early(now, sharing, progress(7, 4)), "a short queue");
        assert!(idle.naps_early(now, sharing, progress(0, 128)), "at the pace that is known");
        let later = now + Nanos::from_us(70);
        assert!(idle.naps_early(later, sharing, progress(0, 35)), "no completion since, but 350 us of requests");
        assert!(!idle.naps_early(later, sharing, progress(0, 34)));
    }

    #[test]
    fn a_full_send_queue_of_long_messages_lets_a_thread_sleep_at_once() {
        let since = Nanos::from_ms(7);
        let paced = |time, finished| {
            let mut pace = SendPace { since, ..SendPace::default() };
            pace.note(since + Nanos::from_us(time), finished);
            pace
        };
        let (pace, now) = (paced(70, 7), since + Nanos::from_us(70));
        assert!(pace.lasts(now, 28) && pace.lasts(now, 128), "one in 10 us");
        assert!(!pace.lasts(now, 27), "gone before the fourth nap ends");
        assert!(!paced(70, 230).lasts(now, 128), "short messages");
        assert!(!paced(70, 1).lasts(now, OUTSTANDING_MIN - 1));
        assert!(!paced(70, 0).lasts(now, 128), "an unknown pace");
        assert!(!paced(10_001, 7).lasts(since + Nanos::from_us(10_001), 128), "an old pace");
        let lump = paced(1_000, 100);
        assert!(lump.lasts(since + Nanos::from_us(1_000), 28), "one completion of 100 requests");
        assert!(!lump.lasts(since + Nanos::from_us(1_001), 28));
        assert!(lump.lasts(since + Nanos::from_us(5_000), 128), "28 are behind the next completion, which is late");
        assert!(!lump.lasts(since + Nanos::from_us(5_000), 127));
    }

    #[test]
    fn completions_that_are_found_together_are_one_measurement() {
        let (mut pace, since) = (SendPace::default(), Nanos::from_ms(70));
        pace.note(since, 100);
        assert_eq!((pace.since, pace.each), (since, Nanos(0)), "it is not known when the requests before began");
        pace.note(since + Nanos::from_us(19), 3);
        pace.note(since + Nanos::from_us(40), 1);
        assert_eq!(pace.each, Nanos::from_us(10));
        pace.note(since + Nanos::from_us(50), 0);
        pace.note(since + Nanos::from_us(70), 6);
        assert_eq!(pace.each, Nanos::from_us(5));
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
