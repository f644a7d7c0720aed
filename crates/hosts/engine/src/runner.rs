//! A thread for a worker: clock, commands, spinning and sleep.
//!
//! The control thread calls [`WorkerHandle::call`] with a closure, which runs on the worker between two passes. After
//! [`RunnerOptions::spin`] without work the worker sleeps on its ports' descriptors, its wake-ups and the next timer.
//! Applications see `sleeping` in the status page and write their eventfd after ringing a doorbell ([`wakes`]). While
//! the worker spins it yields the processor, because pollers may outnumber cores. On a processor that another thread computes
//! on, it sleeps at once instead: the kernel runs a woken sleeper before a spinner that has yielded (`burst_base::sharing`).
//!
//! [`WorkerHandle::in_place`] makes a worker without a thread, for a simulation and for an engine inside a program: the owner of
//! the handle runs its passes ([`WorkerHandle::turn`]) by a clock of its own, and decides when it sleeps
//! ([`WorkerHandle::try_sleep`]). The rules of commands, doorbells and wake-ups are the same.

use crate::pulse::{PassKind, Pulse};
use crate::receive::handover::Inbox;
use crate::runner::clock::monotonic;
use crate::runner::in_place::InPlaceWorker;
use crate::runner::wakes::{Wake, Wakes};
use crate::worker::Worker;
use burst_base::Nanos;
use burst_base::sharing::Sharing;
use burst_shm::status::SleepFlag;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub mod clock;
pub mod in_place;
pub mod wakes;

/// Options of a worker's thread.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Time without work before the worker sleeps.
    pub spin: Duration,
    /// Processors on which the thread may run; none: where the process may.
    pub cpus: Vec<u16>,
}

/// Longest sleep. A lost wake-up would delay a worker by this time and not stop it. It costs one pass a second.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Longest time that one idle pass counts as spinning.
const PASS_COUNTS_MAX: Nanos = Nanos::from_us(2);

/// Idle passes between two yields while no other thread wants the processor.
const YIELD_EVERY: u32 = 4;

type Job = Box<dyn FnOnce(&mut Worker, Nanos) + Send>;

/// The clock of a worker without a thread.
pub type WorkerClock = Box<dyn Fn() -> Nanos + Send>;

/// What runs the passes of a worker.
enum WorkerBody {
    /// A thread; `None` while the handle is dropped.
    Thread(Option<JoinHandle<()>>),
    /// The callers of [`WorkerHandle::turn`] and [`WorkerHandle::call`], and the holders of the other references.
    InPlace(Arc<InPlaceWorker>),
}

impl std::fmt::Debug for WorkerBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WorkerBody::Thread(_) => "Thread",
            WorkerBody::InPlace(..) => "InPlace",
        })
    }
}

/// The control thread's end of a worker.
#[derive(Debug)]
pub struct WorkerHandle {
    jobs: Sender<Job>,
    pending: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    wakes: Wakes,
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    body: WorkerBody,
}

/// The worker's thread has ended (it panicked, or was stopped).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerGone;

/// What a worker will answer to a call.
#[must_use]
pub struct WorkerAnswer<T>(Receiver<T>);

impl<T> WorkerAnswer<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`WorkerGone`] if the worker has ended.
    pub fn wait(self) -> Result<T, WorkerGone> {
        self.0.recv().map_err(|_| WorkerGone)
    }
}

/// Keeps the calling thread on these processors.
fn run_on(cpus: &[u16]) -> rustix::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(usize::from(*cpu)));
    sched_setaffinity(None, &set)
}

impl WorkerHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or eventfd, or none of the processors.
    pub fn start(worker: Worker, options: RunnerOptions, sleeper: SleepFlag) -> std::io::Result<WorkerHandle> {
        let (mut handle, mut runner) = WorkerHandle::with_runner(worker, options, sleeper)?;
        let (report, placed) = channel();
        let body = move || {
            // Before the first pass, so that what the thread allocates lies at its node.
            let result = run_on(&runner.options.cpus);
            let may_run = result.is_ok();
            if report.send(result).is_ok() && may_run {
                runner.run();
            }
        };
        let thread = std::thread::Builder::new().name("burst-worker".into()).spawn(body)?;
        placed.recv().map_err(|_| std::io::ErrorKind::BrokenPipe)??;
        handle.body = WorkerBody::Thread(Some(thread));
        Ok(handle)
    }

    /// A worker without a thread: its passes are run by [`WorkerHandle::turn`].
    ///
    /// # Errors
    /// When the system gives no eventfd.
    pub fn in_place(worker: Worker, sleeper: SleepFlag, clock: WorkerClock) -> std::io::Result<WorkerHandle> {
        let options = RunnerOptions { spin: Duration::ZERO, cpus: Vec::new() };
        let (mut handle, runner) = WorkerHandle::with_runner(worker, options, sleeper)?;
        let inbox = handle.inbox.clone();
        handle.body = WorkerBody::InPlace(Arc::new(InPlaceWorker::new(runner, clock, inbox)));
        Ok(handle)
    }

    /// A handle whose body is not set yet, and the runner that it belongs to.
    fn with_runner(
        worker: Worker,
        options: RunnerOptions,
        sleeper: SleepFlag,
    ) -> std::io::Result<(WorkerHandle, Runner)> {
        let (inbox, wakes, pulse) = (worker.inbox().clone(), Wakes::new()?, worker.pulse().clone());
        let (sender, jobs) = channel();
        let [pending, stop] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let runner = Runner {
            worker,
            options,
            sleeper,
            jobs,
            taken: Vec::with_capacity(64),
            pending: pending.clone(),
            inbox: inbox.clone(),
            wakes: wakes.clone(),
            stop: stop.clone(),
            pulse: pulse.clone(),
        };
        let body = WorkerBody::Thread(None);
        let handle = WorkerHandle { jobs: sender, pending, inbox, wakes, stop, pulse, body };
        Ok((handle, runner))
    }

    /// The wake-up of one more context, and the descriptor to send to its program.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn lend_wake(&self) -> std::io::Result<(Wake, OwnedFd)> {
        self.wakes.lend()
    }

    /// Runs `f` on the worker, after all earlier calls and posts, and waits for its result.
    ///
    /// # Errors
    /// [`WorkerGone`] if the worker has ended.
    pub fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Worker, Nanos) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.begin_call(f)?.wait()
    }

    /// The first half of [`WorkerHandle::call`], which does not wait for a worker with a thread: a caller that asks several
    /// workers waits as long as for the slowest, not for all in turn.
    ///
    /// # Errors
    /// [`WorkerGone`] if the worker has ended.
    pub fn begin_call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Worker, Nanos) -> T + Send + 'static,
    ) -> Result<WorkerAnswer<T>, WorkerGone> {
        let (sender, answer) = std::sync::mpsc::sync_channel(1);
        let job: Job = Box::new(move |worker, now| {
            // Fails if the caller has gone; then the answer is not needed.
            let _ = sender.send(f(worker, now));
        });
        self.send(job)?;
        if let Some(worker) = self.in_place_worker() {
            worker.with(|runner, now| runner.run_jobs(now))?;
        }
        Ok(WorkerAnswer(answer))
    }

    /// Runs `f` on the worker, after all earlier calls and posts, and does not wait for it.
    ///
    /// # Errors
    /// [`WorkerGone`] if the thread has ended.
    pub fn post(&self, f: impl FnOnce(&mut Worker, Nanos) + Send + 'static) -> Result<(), WorkerGone> {
        self.send(Box::new(f))
    }

    fn send(&self, job: Job) -> Result<(), WorkerGone> {
        self.jobs.send(job).map_err(|_| WorkerGone)?;
        self.pending.store(true, Ordering::SeqCst);
        // As `pending`, sequentially consistent on both sides: the worker sees it before it sleeps, or this thread sees that.
        self.inbox.wake_sleeper();
        Ok(())
    }

    /// The pulse of the thread.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Whether the worker can still run: its thread has not ended, or no pass of a worker without a thread has panicked.
    pub fn is_alive(&self) -> bool {
        match &self.body {
            WorkerBody::Thread(thread) => thread.as_ref().is_some_and(|t| !t.is_finished()),
            WorkerBody::InPlace(worker) => worker.is_alive(),
        }
    }

    /// Whether the worker has no thread.
    pub fn is_in_place(&self) -> bool {
        matches!(self.body, WorkerBody::InPlace(..))
    }

    /// The worker, if it has no thread: an engine inside a program shares it with the threads that poll.
    pub fn in_place_worker(&self) -> Option<&Arc<InPlaceWorker>> {
        match &self.body {
            WorkerBody::Thread(_) => None,
            WorkerBody::InPlace(worker) => Some(worker),
        }
    }

    /// Calls `f` with a worker without a thread, and the time; `None` if the worker has a thread.
    fn with<T>(&self, f: impl FnOnce(&mut Runner, Nanos) -> T) -> Result<Option<T>, WorkerGone> {
        self.in_place_worker().map(|worker| worker.with(f)).transpose()
    }

    /// One pass of a worker without a thread: the commands so far, then [`Worker::run_once`]. Returns whether anything was done.
    /// A worker with a thread does nothing.
    ///
    /// # Errors
    /// [`WorkerGone`] if an earlier pass has panicked.
    pub fn turn(&self) -> Result<bool, WorkerGone> {
        Ok(self.with(Runner::turn)?.unwrap_or(false))
    }

    /// When the next pass of a worker without a thread is due if nothing wakes it before.
    pub fn next_deadline(&self) -> Nanos {
        self.with(|runner, _| runner.worker.next_deadline()).ok().flatten().unwrap_or(Nanos::NEVER)
    }

    /// Announces to programs, ports and the control thread that a worker without a thread sleeps. False: there is work, and it
    /// does not sleep. A sleeping worker needs no turn until [`WorkerHandle::is_woken`], its next deadline, or a packet; the
    /// owner then calls [`WorkerHandle::wake`].
    pub fn try_sleep(&self) -> bool {
        let may_sleep = self.with(|runner, _| {
            let may_sleep = runner.announce_sleep();
            if !may_sleep {
                runner.announce_wake();
            }
            may_sleep
        });
        may_sleep.ok().flatten().unwrap_or(false)
    }

    /// Announces to programs that a worker without a thread sleeps, for ever: each of their doorbells is followed by a wake-up.
    pub fn announce_sleep_for_ever(&self) {
        // Gone: no program waits for the worker.
        let _ = self.with(|runner, _| runner.sleeper.set_sleeping());
    }

    /// Whether a program or the control thread has woken a sleeping worker, as its thread would see it: by a descriptor.
    pub fn is_woken(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [self.inbox.wake_fd(), self.wakes.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An error (a signal) counts as a wake-up.
        poll(&mut fds, Some(&now)) != Ok(0)
    }

    /// Ends the sleep of a worker without a thread, and consumes its wake-ups.
    pub fn wake(&self) {
        // Gone: there is nothing to wake.
        let _ = self.with(|runner, _| {
            let _ = rustix::io::read(runner.inbox.wake_fd(), &mut [0; 8]);
            runner.wakes.take();
            runner.announce_wake();
        });
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.inbox.wake();
        if let WorkerBody::Thread(thread) = &mut self.body
            && let Some(thread) = thread.take()
        {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What runs the passes of a worker, in its thread or in place.
pub(crate) struct Runner {
    pub worker: Worker,
    options: RunnerOptions,
    sleeper: SleepFlag,
    jobs: Receiver<Job>,
    /// Jobs of this pass.
    taken: Vec<Job>,
    pub pending: Arc<AtomicBool>,
    pub inbox: Arc<Inbox>,
    wakes: Wakes,
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
}

impl Runner {
    fn run(&mut self) {
        self.pulse.begin();
        self.worker.own_thread();
        let spin = Nanos(self.options.spin.as_nanos() as u64);
        // Time spun without work. A long pass counts as a short one: while other pollers share the processor, most of the time
        // between two passes was theirs.
        let mut spun = Nanos(0);
        let mut before = monotonic();
        let mut sharing = Sharing::new();
        let mut idle = 0u32;
        let mut kind = PassKind::Spinning;
        while !self.stop.load(Ordering::Relaxed) {
            let now = monotonic();
            self.pulse.beat();
            self.pulse.spend(kind, now.since(before));
            let busy = self.turn(now);
            if busy {
                (spun, idle, kind) = (Nanos(0), 0, PassKind::Busy);
                if self.worker.has_delivered() && !sharing.is_contended(now) {
                    self.yield_now(&mut sharing);
                }
            } else if spun < spin && !sharing.is_contended(now) {
                spun = spun + now.since(before).min(PASS_COUNTS_MAX);
                (idle, kind) = (idle.wrapping_add(1), PassKind::Spinning);
                if sharing.is_shared() || idle.is_multiple_of(YIELD_EVERY) {
                    self.yield_now(&mut sharing);
                }
            } else {
                self.sleep();
                (spun, kind) = (Nanos(0), PassKind::Asleep);
            }
            before = now;
        }
    }

    /// Yields the processor, and learns whether another thread ran.
    fn yield_now(&self, sharing: &mut Sharing) {
        let before = monotonic();
        std::thread::yield_now();
        let now = monotonic();
        if sharing.yielded(now, now.since(before)) {
            sharing.sample(switches());
        }
    }

    /// The commands so far, then one pass. Returns whether anything was done.
    #[inline]
    pub fn turn(&mut self, now: Nanos) -> bool {
        self.run_jobs(now) | self.worker.run_once(now)
    }

    pub fn run_jobs(&mut self, now: Nanos) -> bool {
        if !self.pending.load(Ordering::Relaxed) || !self.pending.swap(false, Ordering::SeqCst) {
            return false;
        }
        // A program may destroy an address handle or a queue pair right after posting to it, as mckey does: requests posted
        // before the command leave before it. Commands that arrive from now on wait for the next pass.
        debug_assert!(self.taken.is_empty(), "jobs of an earlier pass");
        self.taken.extend(self.jobs.try_iter());
        self.worker.send_posted(now);
        self.taken.drain(..).for_each(|job| job(&mut self.worker, now));
        true
    }

    /// Sleeps until a descriptor is readable, a timer is due or a command comes.
    fn sleep(&mut self) {
        if self.announce_sleep() {
            self.wait();
        }
        self.announce_wake();
    }

    /// Announces the sleep, and looks for work once more after that. Returns whether there is none.
    fn announce_sleep(&mut self) -> bool {
        self.sleeper.set_sleeping();
        self.inbox.set_asleep(true);
        let arrived = self.worker.before_sleep();
        !arrived && !self.worker.has_work() && !self.pending.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst)
    }

    /// Announces that the worker is awake.
    fn announce_wake(&mut self) {
        self.worker.after_sleep();
        self.inbox.set_asleep(false);
        self.sleeper.awake();
    }

    /// Ends the announcement of a sleep to ports and commands.
    pub fn end_sleep(&mut self) {
        self.worker.after_sleep();
        self.inbox.set_asleep(false);
    }

    fn wait(&self) {
        let until = self.worker.next_deadline().since(monotonic());
        let time = Duration::from_nanos(until.0).min(SLEEP_MAX);
        let raw: Vec<RawFd> = self.worker.wait_fds();
        // SAFETY: the descriptors belong to ports that this thread owns and does not close while it polls.
        let ports = raw.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
        let mut fds: Vec<PollFd<'_>> = ports.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let own = fds.len();
        fds.extend([self.inbox.wake_fd(), self.wakes.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        self.pulse.rest();
        // An error (a signal) counts as a wake-up.
        let _ = poll(&mut fds, Some(&timeout));
        let [by_daemon, by_programs] = [own, own + 1].map(|at| !fds[at].revents().is_empty());
        if by_daemon {
            let _ = rustix::io::read(self.inbox.wake_fd(), &mut [0; 8]);
        }
        if by_programs {
            self.wakes.take();
        }
    }
}

/// Involuntary context switches of this thread so far.
fn switches() -> u64 {
    // SAFETY: `usage` is plain data, written by the call; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw as u64
    }
}
