//! The one host of a process, and who runs its worker.
//!
//! *Polls* run a pass each ([`Instance::turn`]). The first *post* since the last pass sends at once; later ones wait for the pass
//! that the program's next poll makes, so that they leave as trains. If the program does not poll, the keeper makes it, or, while
//! the keeper serves, each post sends. A *wait* ([`Instance::begin_wait`]) watches the ports beside the program's descriptor, in
//! place of the keeper.
//!
//! A post that finds the worker busy leaves a note (`rung`); whoever has the worker looks at it after giving the worker back.
//! The note is written before the last attempt to take the worker, and read after giving it back, both in one total order, so
//! one of the two sees the other.

use crate::house::{House, PacketReply};
use crate::{keeper, process};
use burst_base::Nanos;
use burst_control::in_process::TURN_GONE;
use burst_engine::in_place::{InPlaceWorker, TurnOutcome};
use burst_ffi::keeper::Bell;
use burst_host::Clock;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

/// A pass and a yield that take longer show that another thread wants the processor.
const YIELD_LONG: Nanos = Nanos::from_us(20);
/// How much a wait counts as activity of the program, in passes.
const WAIT_ACTIVITY: u64 = 8;
/// Passes after a request until the rest is left to the keeper.
const SETTLE_PASSES: u32 = 8;
/// Passes that send what peers learn at the end of the process.
const EXIT_PASSES: u32 = 64;

/// The instance of this process; null before the first session, and in a child after fork.
static INSTANCE: AtomicPtr<Instance> = AtomicPtr::new(std::ptr::null_mut());
/// Whether a thread opens the instance. Not a mutex: a child after fork must be able to reset it.
static OPENING: AtomicBool = AtomicBool::new(false);

/// How long a wait looks for packets before it sleeps, with so many processors for this process. On a single one it would take
/// the time of whoever it waits for: the scheduler gives equal shares, and lets a yield come back until they are.
fn wait_spin(spin: Nanos, processors: usize) -> Nanos {
    if processors > 1 { spin } else { Nanos(0) }
}

/// Who sleeps until the worker has work.
#[derive(Clone, Copy)]
pub enum Sleeper {
    /// The keeper.
    Keeper,
    /// A thread of the program, by [`Instance::begin_wait`].
    Waiter,
}

/// The host of a process.
pub struct Instance {
    /// `None` once it has failed or ended.
    house: Mutex<Option<House>>,
    worker: Arc<InPlaceWorker>,
    /// Wakes the keeper.
    pub bell: Bell,
    /// Passes that threads of the program have made, their posts that were sent at once, and their waits.
    activity: AtomicU64,
    /// A post since the last pass has been sent.
    posted: AtomicBool,
    /// A post has found the worker busy.
    rung: AtomicBool,
    /// A thread of the program watches the ports.
    waiter: AtomicBool,
    /// Waits of the program so far.
    waits: AtomicU32,
    /// A thread of the program is about to sleep by a descriptor of its own: it has armed a queue, or its wait was refused.
    is_armed: AtomicBool,
    /// Whether the keeper watches the ports, so that it, not the program, answers.
    pub keeper_serves: AtomicBool,
    /// Until when the keeper and the thread that waits sleep, in nanoseconds; 0: it does not.
    sleeps_until: [AtomicU64; 2],
    failed: AtomicBool,
    /// How long a wait looks for packets before it sleeps.
    spin: Nanos,
    /// Whether all threads, and perhaps the peer's, take turns on a single processor.
    pub has_one_processor: bool,
}

impl Instance {
    /// The instance of this process.
    #[inline]
    pub fn current() -> Option<&'static Instance> {
        // SAFETY: the pointer is null or that of a leaked box.
        unsafe { INSTANCE.load(Ordering::Acquire).as_ref() }
    }

    /// The instance of this process, which is opened unless there is one.
    ///
    /// # Errors
    /// A sentence: a setting is wrong, a port cannot be opened (its address may be taken), there is no memory or no thread.
    pub fn get_or_open() -> Result<&'static Instance, String> {
        if let Some(instance) = Instance::current() {
            return Ok(instance);
        }
        while OPENING.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let opened = Instance::current().map_or_else(Instance::open, Ok);
        OPENING.store(false, Ordering::Release);
        opened
    }

    fn open() -> Result<&'static Instance, String> {
        let house = House::open()?;
        let handle = house.host.workers().first().ok_or("the host has no worker")?;
        let worker = handle.in_place_worker().ok_or("the worker has a thread")?.clone();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = wait_spin(house.spin, processors);
        // For ever, as far as the program is concerned: each ring of a doorbell calls `posted`.
        handle.announce_sleep_for_ever();
        process::watch()?;
        let instance = Box::into_raw(Box::new(Instance {
            house: Mutex::new(Some(house)),
            worker,
            bell: Bell::new()?,
            activity: AtomicU64::new(0),
            posted: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            waiter: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            is_armed: AtomicBool::new(false),
            keeper_serves: AtomicBool::new(false),
            sleeps_until: [AtomicU64::new(0), AtomicU64::new(0)],
            failed: AtomicBool::new(false),
            spin,
            has_one_processor: processors == 1,
        }));
        // SAFETY: a valid box; it is freed below only if nobody else has the reference.
        let shared: &'static Instance = unsafe { &*instance };
        if let Err(sentence) = keeper::start(shared) {
            // SAFETY: from `into_raw` above; there is no keeper, and the instance was not published. It closes the ports.
            drop(unsafe { Box::from_raw(instance) });
            return Err(sentence);
        }
        INSTANCE.store(instance, Ordering::Release);
        Ok(shared)
    }

    /// In a child after fork: the host is the parent's.
    pub fn forget() {
        INSTANCE.store(std::ptr::null_mut(), Ordering::Release);
        OPENING.store(false, Ordering::Release);
    }

    /// The house; `None` once it is gone.
    pub fn house(&self) -> Option<HouseGuard<'_>> {
        let guard = self.house.lock().ok()?;
        guard.is_some().then_some(HouseGuard(guard))
    }

    /// The house, unless another thread uses it.
    pub fn try_house(&self) -> Option<HouseGuard<'_>> {
        let guard = self.house.try_lock().ok()?;
        guard.is_some().then_some(HouseGuard(guard))
    }

    /// Opens a session, and returns its number.
    ///
    /// # Errors
    /// A sentence: the host has failed, or the account has no room for another session.
    pub fn open_session(&self) -> Result<u64, String> {
        self.house().ok_or("the host in this process has failed")?.open_session()
    }

    /// Whether a session is open and the host lives.
    pub fn has_session(&self, session: u64) -> bool {
        !self.has_failed() && self.house().is_some_and(|house| house.has_session(session))
    }

    /// Ends a session.
    pub fn close_session(&self, session: u64) {
        if let Some(mut house) = self.house() {
            house.close_session(session);
            drop(house);
            self.pass();
        }
    }

    /// Answers a packet. What it has left for the worker is done before the return, unless another thread runs the worker or it
    /// takes many passes.
    ///
    /// # Errors
    /// An errno: the session is unusable.
    pub fn call(&self, session: u64, bytes: &[u8], fds: &[RawFd]) -> Result<PacketReply, i32> {
        let mut house = self.house().ok_or(libc::EIO)?;
        let answer = house.call(session, bytes, fds);
        // The sleeper watches no descriptor of next hops if none was waited for when it began.
        let due = if house.host.cm.hops.is_waited_for() { Nanos(0) } else { house.due_at().unwrap_or(Nanos::NEVER) };
        drop(house);
        self.settle(due);
        answer
    }

    /// Runs the worker as long as it has work. Whoever sleeps is woken if he is needed before he wakes up by himself: most
    /// requests leave nothing, and a thread that is woken in vain costs more than the request. `due`: when the control plane
    /// needs him.
    fn settle(&self, due: Nanos) {
        for _ in 0..SETTLE_PASSES {
            match self.worker.try_due() {
                Some(next) if next > Clock::Monotonic.now() => {
                    // A thread that waits does nothing for the control plane.
                    self.wake(Sleeper::Keeper, due.min(next));
                    self.wake(Sleeper::Waiter, next);
                    return self.answer_rings();
                }
                Some(_) => _ = self.pass(),
                None => break,
            }
        }
        self.wake_for(Nanos(0));
    }

    /// Whether the host has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// How much the program has run the worker so far.
    pub fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// Whether a thread of the program watches the ports now.
    pub fn has_waiter(&self) -> bool {
        self.waiter.load(Ordering::SeqCst)
    }

    /// The worker.
    pub fn worker(&self) -> &InPlaceWorker {
        &self.worker
    }

    fn count(&self, passes: u64) {
        // Not an addition in one step: a lost count does no harm, and the line stays in this processor's cache.
        self.activity.store(self.activity.load(Ordering::Relaxed) + passes, Ordering::Relaxed);
    }

    /// A poll of the program has found nothing: runs one pass, unless another thread does.
    #[inline]
    pub fn turn(&self) -> c_int {
        self.count(1);
        match self.pass() {
            TurnOutcome::Active => 1,
            TurnOutcome::Idle | TurnOutcome::Busy => 0,
            TurnOutcome::Gone => TURN_GONE,
        }
    }

    /// One pass.
    #[inline]
    pub fn pass(&self) -> TurnOutcome {
        // Before the pass looks at doorbells: a later post sends itself.
        self.posted.store(false, Ordering::SeqCst);
        let outcome = self.worker.try_turn();
        if outcome != TurnOutcome::Busy {
            self.answer_rings();
        }
        outcome
    }

    /// Passes until one finds work, or another thread needs the processor, or the time is over after which to sleep.
    pub fn look(&self) -> TurnOutcome {
        let mut now = Clock::Monotonic.now();
        let end = now + self.spin;
        loop {
            match self.pass() {
                TurnOutcome::Idle if self.spin == Nanos(0) => return TurnOutcome::Idle,
                TurnOutcome::Idle => std::thread::yield_now(),
                other => return other,
            }
            let before = std::mem::replace(&mut now, Clock::Monotonic.now());
            if now >= end || now.since(before) > YIELD_LONG {
                return TurnOutcome::Idle;
            }
        }
    }

    /// Sends what was posted while this thread had the worker. Whoever has had it calls this before it turns to something else.
    #[inline]
    pub fn answer_rings(&self) {
        fence(Ordering::SeqCst);
        while self.rung.load(Ordering::SeqCst) && self.rung.swap(false, Ordering::SeqCst) {
            if !self.send_posted() {
                // For the thread that has it now, unless it has just looked.
                self.rung.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if !self.send_posted() {
                    return;
                }
            }
        }
    }

    /// The program has rung a doorbell.
    #[inline]
    pub fn posted(&self) {
        let had_posted = self.posted.swap(true, Ordering::SeqCst);
        let keeper_serves = self.keeper_serves.load(Ordering::SeqCst);
        // A program whose polls find completions makes few passes. It is busy all the same, and the keeper would be in its way.
        self.count(1);
        if had_posted && !keeper_serves && !self.has_waiter() {
            // A pass follows soon, and sends it with others.
            return;
        }
        if !self.send_posted() {
            self.rung.store(true, Ordering::SeqCst);
            // Whoever runs the worker has perhaps just looked.
            self.answer_rings();
        }
    }

    /// Sends what was posted; false if another thread runs the worker.
    fn send_posted(&self) -> bool {
        match self.worker.try_send_posted() {
            Some(due) => {
                self.wake_for(due);
                true
            }
            None => self.has_failed(),
        }
    }

    /// Something is due at `due`: wakes whoever watches the ports and sleeps for longer.
    fn wake_for(&self, due: Nanos) {
        self.wake(Sleeper::Keeper, due);
        self.wake(Sleeper::Waiter, due);
    }

    fn wake(&self, who: Sleeper, due: Nanos) {
        if due.0 < self.sleeps_until[who as usize].load(Ordering::SeqCst) {
            self.worker.wake();
        }
    }

    /// Notes until when the caller sleeps; zero when it is awake. Before it looks at what is due it says [`Nanos::NEVER`]: what
    /// changes from then on wakes it.
    pub fn sleep_until(&self, who: Sleeper, until: Nanos) {
        self.sleeps_until[who as usize].store(until.0, Ordering::SeqCst);
    }

    /// The program has armed a completion queue. If it has never waited by [`Instance::begin_wait`], it waits by a descriptor
    /// of its own, which the keeper must make readable without delay.
    pub fn armed(&self) {
        if self.waits.load(Ordering::Relaxed) != 0 {
            return;
        }
        self.needs_keeper();
    }

    /// Whether a thread of the program has been about to sleep by a descriptor of its own since the last call.
    pub fn take_armed(&self) -> bool {
        self.is_armed.load(Ordering::SeqCst) && self.is_armed.swap(false, Ordering::SeqCst)
    }

    /// As `InProcessCalls::begin_wait`.
    pub fn begin_wait(&self, fd: RawFd, fds: &mut [RawFd], timeout_ns: &mut i64) -> c_int {
        self.waits.store(self.waits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.has_failed() || self.waiter.swap(true, Ordering::SeqCst) {
            return -1;
        }
        match self.look() {
            TurnOutcome::Idle => {}
            TurnOutcome::Active => {
                self.count(WAIT_ACTIVITY);
                return self.no_wait(0);
            }
            TurnOutcome::Busy | TurnOutcome::Gone => return self.sleep_unwatched(),
        }
        self.sleep_until(Sleeper::Waiter, Nanos::NEVER);
        let Some(plan) = self.worker.try_sleep() else {
            self.sleep_until(Sleeper::Waiter, Nanos(0));
            self.answer_rings();
            return self.no_wait(0);
        };
        if plan.fds.len() + 1 > fds.len() {
            self.end_wait();
            return self.sleep_unwatched();
        }
        self.sleep_until(Sleeper::Waiter, plan.until);
        self.answer_rings();
        self.count(WAIT_ACTIVITY);
        if self.keeper_serves.load(Ordering::SeqCst) {
            // It may sleep on the same descriptors, and be the one whom a wake-up reaches.
            self.bell.ring();
        }
        let all = std::iter::once(fd).chain(plan.fds.iter().copied());
        fds.iter_mut().zip(all).for_each(|(place, fd)| *place = fd);
        let now = Clock::Monotonic.now();
        *timeout_ns = if plan.until == Nanos::NEVER { -1 } else { plan.until.since(now).0 as i64 };
        plan.fds.len() as c_int + 1
    }

    fn no_wait(&self, result: c_int) -> c_int {
        self.waiter.store(false, Ordering::SeqCst);
        result
    }

    /// The caller sleeps by its descriptor alone, so that the keeper must serve.
    fn sleep_unwatched(&self) -> c_int {
        let result = self.no_wait(-1);
        self.needs_keeper();
        result
    }

    /// A thread of the program sleeps next, and only the keeper can wake it.
    fn needs_keeper(&self) {
        // Before the look at the keeper, which looks at this after it has stopped serving.
        self.is_armed.store(true, Ordering::SeqCst);
        if !self.keeper_serves.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// As `InProcessCalls::end_wait`.
    pub fn end_wait(&self) {
        self.sleep_until(Sleeper::Waiter, Nanos(0));
        self.worker.end_sleep();
        self.answer_rings();
        self.waiter.store(false, Ordering::SeqCst);
    }

    /// A pass or a request has panicked: the host ends. Its event pipes hang up, by which the libraries learn of it.
    #[cold]
    pub fn fail(&self) {
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let house = self.house.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        self.worker.abandon();
        // What a session drops may ask the worker, which is gone.
        drop(house);
        self.bell.ring();
    }

    /// The daemon that has lent the number has ended: the queue pairs end, and the address is free for its successor.
    #[cold]
    pub fn lender_gone(&self) {
        if self.has_failed() {
            return;
        }
        tracing::warn!("the daemon that has lent this program its worker number has ended, and so do its queue pairs");
        if let Some(mut house) = self.house() {
            house.end_sessions();
            drop(house);
            self.send_last();
        }
        self.fail();
    }

    /// The process ends: peers are told, as far as no other thread is in the way.
    pub fn end(&self) {
        for _ in 0..process::EXIT_ATTEMPTS {
            if let Some(mut house) = self.try_house() {
                house.leave_peers();
                drop(house);
                return self.send_last();
            }
            std::thread::sleep(process::EXIT_PAUSE);
        }
    }

    /// Sends what peers learn at the end of the process. Bounded: peers may send without end, and the thread that has the worker
    /// may be one that this one has interrupted.
    fn send_last(&self) {
        let (mut passes, mut attempts) = (EXIT_PASSES, process::EXIT_ATTEMPTS);
        while passes > 0 && attempts > 0 {
            match self.worker.try_turn() {
                TurnOutcome::Active => passes -= 1,
                TurnOutcome::Idle | TurnOutcome::Gone => return,
                TurnOutcome::Busy => {
                    attempts -= 1;
                    std::thread::sleep(process::EXIT_PAUSE);
                }
            }
        }
    }
}

/// The house of an instance, locked.
pub struct HouseGuard<'a>(MutexGuard<'a, Option<House>>);

impl std::ops::Deref for HouseGuard<'_> {
    type Target = House;
    fn deref(&self) -> &House {
        self.0.as_ref().expect("checked when it was made")
    }
}

impl std::ops::DerefMut for HouseGuard<'_> {
    fn deref_mut(&mut self) -> &mut House {
        self.0.as_mut().expect("checked when it was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_spins_only_where_another_processor_may_run_whom_it_waits_for() {
        let spin = Nanos::from_us(50);
        assert_eq!([1, 2, 64].map(|processors| wait_spin(spin, processors)), [Nanos(0), spin, spin]);
        assert_eq!(wait_spin(Nanos(0), 2), Nanos(0));
    }
}
