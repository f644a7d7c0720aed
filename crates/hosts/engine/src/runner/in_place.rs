//! A worker without a thread: its passes are run by whichever thread calls, one thread at a time.
//!
//! A simulation runs it through [`crate::WorkerHandle`]. An engine inside a program shares it between the threads that poll and
//! the thread that serves while none polls. A thread that finds another one running the worker does not wait
//! ([`InPlaceWorker::try_turn`]): the other one looks for work itself. Commands of the control thread do wait, and go first:
//! while one waits, no turn begins, because a thread that polls without pause would otherwise take the lock again and again.

use crate::receive::handover::Inbox;
use crate::runner::Runner;
use crate::runner::{WorkerClock, WorkerGone};
use burst_base::Nanos;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// What an attempt to run a worker has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The pass found work.
    Active,
    /// The pass found nothing to do.
    Idle,
    /// Another thread runs the worker, or a command waits for it.
    Busy,
    /// An earlier pass has panicked.
    Gone,
}

/// What the owner of a sleeping worker waits for.
#[derive(Clone, Debug, Default)]
pub struct SleepPlan {
    /// Descriptors of the ports; the last one is that of the wake-ups by commands.
    pub fds: Vec<RawFd>,
    /// When the next pass is due if none of them becomes readable.
    pub until: Nanos,
}

/// A worker without a thread.
pub struct InPlaceWorker {
    /// `None` once it was abandoned.
    state: Mutex<Option<InPlaceState>>,
    /// Commands that wait for the worker.
    waiting: AtomicU32,
    /// When the last pass, or half of one, began, in nanoseconds.
    last_turn: AtomicU64,
    /// Sleeps that have ended and are still in [`InPlaceState::sleepers`]: the next thread that has the worker takes them off.
    ended_sleeps: AtomicU32,
    inbox: Arc<Inbox>,
}

struct InPlaceState {
    runner: Runner,
    clock: WorkerClock,
    /// Sleeps that have begun and not ended. The worker is announced as awake when there are none.
    sleepers: u32,
}

impl InPlaceState {
    #[cold]
    fn end_sleeps(&mut self, count: u32) {
        self.sleepers = self.sleepers.saturating_sub(count);
        if self.sleepers == 0 {
            self.runner.end_sleep();
        }
    }
}

impl std::fmt::Debug for InPlaceWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InPlaceWorker").finish_non_exhaustive()
    }
}

impl InPlaceWorker {
    pub(crate) fn new(runner: Runner, clock: WorkerClock, inbox: Arc<Inbox>) -> InPlaceWorker {
        InPlaceWorker {
            state: Mutex::new(Some(InPlaceState { runner, clock, sleepers: 0 })),
            waiting: AtomicU32::new(0),
            ended_sleeps: AtomicU32::new(0),
            last_turn: AtomicU64::new(0),
            inbox,
        }
    }

    /// Ends a sleep by a descriptor of [`SleepPlan::fds`], or keeps the next one from lasting.
    pub fn wake(&self) {
        self.inbox.wake();
    }

    /// Waits for the worker, and calls `f` with it and the time.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Runner, Nanos) -> T) -> Result<T, WorkerGone> {
        self.with_state(|state| {
            let now = (state.clock)();
            f(&mut state.runner, now)
        })
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut InPlaceState) -> T) -> Result<T, WorkerGone> {
        // Relaxed: the count only keeps others from beginning a turn.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = self.state.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut guard = locked.map_err(|_| WorkerGone)?;
        let state = guard.as_mut().ok_or(WorkerGone)?;
        self.settle_sleeps(state);
        Ok(f(state))
    }

    /// Calls `f` with the worker and the time, unless another thread runs it.
    #[inline]
    fn try_with<T>(&self, f: impl FnOnce(&mut Runner, Nanos) -> T) -> Result<T, TurnOutcome> {
        self.try_with_state(|state| {
            let now = (state.clock)();
            f(&mut state.runner, now)
        })
    }

    #[inline]
    fn try_with_state<T>(&self, f: impl FnOnce(&mut InPlaceState) -> T) -> Result<T, TurnOutcome> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return Err(TurnOutcome::Busy);
        }
        let mut guard = self.state.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => TurnOutcome::Busy,
            TryLockError::Poisoned(_) => TurnOutcome::Gone,
        })?;
        let state = guard.as_mut().ok_or(TurnOutcome::Gone)?;
        self.settle_sleeps(state);
        Ok(f(state))
    }

    /// Takes the sleeps that have ended off the worker's count.
    #[inline]
    fn settle_sleeps(&self, state: &mut InPlaceState) {
        if self.ended_sleeps.load(Ordering::Relaxed) != 0 {
            state.end_sleeps(self.ended_sleeps.swap(0, Ordering::Relaxed));
        }
    }

    /// When the last pass, or half of one, began.
    pub fn last_turn(&self) -> Nanos {
        Nanos(self.last_turn.load(Ordering::Relaxed))
    }

    /// Whether no pass has panicked.
    pub fn is_alive(&self) -> bool {
        !self.state.is_poisoned()
    }

    /// Drops the tables and ports of a worker that has panicked, so that its programs and peers learn of its end.
    pub fn abandon(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(state);
    }

    /// One pass: the commands so far, then [`crate::Worker::run_once`]. Does not wait.
    ///
    /// # Panics
    /// When the pass does. The worker is gone then.
    #[inline]
    pub fn try_turn(&self) -> TurnOutcome {
        let pass = |runner: &mut Runner, now: Nanos| {
            self.last_turn.store(now.0, Ordering::Relaxed);
            runner.turn(now)
        };
        match self.try_with(pass) {
            Ok(true) => TurnOutcome::Active,
            Ok(false) => TurnOutcome::Idle,
            Err(outcome) => outcome,
        }
    }

    /// The first half of a pass: requests that programs have posted leave, and events of those that have completed are written.
    /// Returns when those who sleep must be awake: at once (zero) if not all have left, never if no thread has announced a sleep;
    /// `None` if another thread runs the worker. Does not wait.
    ///
    /// # Panics
    /// As [`InPlaceWorker::try_turn`].
    pub fn try_send_posted(&self) -> Option<Nanos> {
        let due = self.try_with_state(|InPlaceState { runner, clock, sleepers }| {
            let now = clock();
            self.last_turn.store(now.0, Ordering::Relaxed);
            match runner.worker.send_posted_alone(now) {
                _ if *sleepers == 0 => Nanos::NEVER,
                true => runner.worker.next_deadline(),
                false => Nanos(0),
            }
        });
        due.ok()
    }

    /// When the next pass is due, at once (zero) if there is work already; `None` if another thread runs the worker. Does not
    /// wait.
    pub fn try_due(&self) -> Option<Nanos> {
        let due = self.try_with_state(|InPlaceState { runner, .. }| {
            let has_work = runner.pending.load(Ordering::SeqCst) || runner.worker.has_work();
            if has_work { Nanos(0) } else { runner.worker.next_deadline() }
        });
        due.ok()
    }

    /// Announces that the caller sleeps until the worker has work, as far as the ports and the control thread need to know.
    /// `None`: there is work already, or another thread runs the worker. The caller looks at later doorbells itself.
    pub fn try_sleep(&self) -> Option<SleepPlan> {
        let plan = self.try_with_state(|InPlaceState { runner, sleepers, .. }| {
            runner.inbox.set_asleep(true);
            if runner.worker.before_sleep() || runner.worker.has_work() || runner.pending.load(Ordering::SeqCst) {
                if *sleepers == 0 {
                    runner.end_sleep();
                }
                return None;
            }
            *sleepers += 1;
            let mut fds = runner.worker.wait_fds();
            fds.push(runner.inbox.wake_fd().as_raw_fd());
            Some(SleepPlan { fds, until: runner.worker.next_deadline() })
        });
        plan.ok().flatten()
    }

    /// Ends a sleep that [`InPlaceWorker::try_sleep`] has begun, and consumes the wake-ups by commands: the caller looks for work
    /// next. A thread that is cancelled in its sleep leaves the worker announced as asleep, which costs wake-ups only.
    pub fn end_sleep(&self) {
        self.end_sleep_after(true);
        self.wait_for_others();
    }

    /// As [`InPlaceWorker::end_sleep`], but does not wait for a thread that has the worker: whoever takes it next ends the sleep.
    /// `is_woken`: the last of [`SleepPlan::fds`] may be readable; a caller that knows that it is not saves a system call.
    pub fn end_sleep_after(&self, is_woken: bool) {
        if is_woken {
            let _ = rustix::io::read(self.inbox.wake_fd(), &mut [0; 8]);
        }
        self.ended_sleeps.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until no other thread has the worker.
    pub fn wait_for_others(&self) {
        // Gone: there are none.
        let _ = self.with_state(|_| ());
    }

    /// Passes all descriptors of the ports, for a child process to close; false, and none, if another thread runs the worker.
    pub fn try_each_port_descriptor(&self, take: &mut dyn FnMut(RawFd)) -> bool {
        self.try_with(|runner, _| runner.worker.each_port_descriptor(take)).is_ok()
    }
}
