//! Memory of a process, reached by threads that may block.
//!
//! A page of another process may never come: a file of a FUSE file system whose server does not answer, or of an NFS server that
//! is down. A `pread` of `/proc/PID/mem` then blocks without end, and no signal ends it (measured on Linux 6.18; pages of a
//! `userfaultfd` are an error at once). A thread that serves many programs must not make such a call.
//!
//! **Threads.** Each account has [`AccessThreads`], at most [`THREADS_MAX`], started when needed. A worker copies the bytes of a
//! write into a thread's buffer, wakes the thread, and waits for at most [`WAIT_MAX`]. A thread that does not return in time is
//! abandoned with its buffer until its call returns. Waits of one account are limited to [`WAIT_PERCENT`] of the time.
//!
//! **Late memory.** While an abandoned access is in progress, every access to the memory of that process fails at once with
//! [`Unreachable::Late`]: the caller repeats it later, as an adapter does after a page fault (RNR NAK). Order is kept, because
//! no other access begins before the abandoned access has ended. After [`LATE_MAX`] the memory has failed
//! ([`Unreachable::Gone`]) until the access ends.
//!
//! Waking a thread costs more than the copy of a page. Accounts that do not attack the daemon (root, and the user who runs it)
//! are served by system calls of the worker itself.

use crate::Unreachable;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// Threads of one account. A program can block one of them for each of its contexts; other programs of the account use the rest.
pub const THREADS_MAX: usize = 4;
/// Maximum time for which a worker waits for one access.
pub const WAIT_MAX: Duration = Duration::from_millis(5);
/// The part of the time for which the programs of one account may make workers wait.
pub const WAIT_PERCENT: u32 = 5;
/// Waits that an account may use at once, when it has caused none for long.
const CREDIT_MAX: Duration = Duration::from_millis(20);
/// A worker does not begin an access when fewer credit is left.
const CREDIT_MIN: Duration = Duration::from_micros(100);
/// A wait that is not counted: memory that is present takes less.
const WAIT_FREE: Duration = Duration::from_micros(100);
/// Time after which a page that has not come is taken for one that never comes.
pub const LATE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes of one access; longer accesses are cut.
const ACCESS_BYTES: usize = 256 << 10;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read { addr: u64, len: usize },
    Write { addr: u64, len: usize },
}

/// What a thread is asked to do.
#[derive(Debug)]
struct AccessJob {
    memory: Arc<GuardedMemory>,
    access: Access,
}

#[derive(Debug, Default)]
struct DeskState {
    job: Option<AccessJob>,
    /// Bytes moved by the last access; `None` while it is in progress.
    moved: Option<std::io::Result<usize>>,
    /// The bytes of the access. The thread has them while the access is in progress.
    buffer: Vec<u8>,
    /// Whether the worker has stopped waiting.
    abandoned: bool,
    ended: bool,
}

/// The place where a worker leaves an access for one thread.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<DeskState>,
    changed: Condvar,
}

/// How long the account may still make workers wait.
#[derive(Debug)]
struct WaitCredit {
    left: Duration,
    counted: Instant,
}

impl WaitCredit {
    fn refill(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.counted) * WAIT_PERCENT / 100;
        self.counted = now;
        self.left = (self.left + earned).min(CREDIT_MAX);
        self.left
    }
    fn spend(&mut self, waited: Duration) {
        self.left = self.left.saturating_sub(waited.saturating_sub(WAIT_FREE));
    }
}

#[derive(Debug)]
struct ThreadPool {
    free: Mutex<Vec<Arc<Desk>>>,
    threads: AtomicUsize,
    credit: Mutex<WaitCredit>,
}

/// The threads of one account that reach the memory of its processes.
#[derive(Clone, Debug)]
pub struct AccessThreads(Arc<ThreadPool>);

/// The memory of one process, reached by threads.
#[derive(Debug)]
pub(crate) struct GuardedMemory {
    file: File,
    threads: AccessThreads,
    late: Mutex<LateAccesses>,
}

/// Accesses in progress for which no worker waits any more.
#[derive(Debug, Default)]
struct LateAccesses {
    count: usize,
    /// When the first of them was abandoned; `None` without any.
    since: Option<Instant>,
}

impl LateAccesses {
    fn add(&mut self) {
        self.count += 1;
        self.since.get_or_insert_with(Instant::now);
    }
    fn remove(&mut self) {
        assert!(self.count > 0, "a late access that was not counted");
        self.count -= 1;
        if self.count == 0 {
            self.since = None;
        }
    }
}

/// Guarded memories by number of the descriptor: a span has no room for more than the number.
static GUARDED: RwLock<BTreeMap<u32, Arc<GuardedMemory>>> = RwLock::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for AccessThreads {
    fn default() -> AccessThreads {
        let credit = Mutex::new(WaitCredit { left: CREDIT_MAX, counted: Instant::now() });
        AccessThreads(Arc::new(ThreadPool { free: Mutex::default(), threads: AtomicUsize::new(0), credit }))
    }
}

impl AccessThreads {
    /// An account whose threads are all in accesses that do not end: each further access is late. For tests.
    pub fn occupied() -> AccessThreads {
        let threads = AccessThreads::default();
        threads.0.threads.store(THREADS_MAX, Relaxed);
        threads
    }

    /// Whether the memory of some process is reached by these threads.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Ends the threads that have nothing to do now: their stacks and buffers go back to the system. Later accesses start others.
    pub fn shrink(&self) {
        let idle = std::mem::take(&mut *lock(&self.0.free));
        self.0.threads.fetch_sub(idle.len(), Relaxed);
        end_all(idle);
    }

    /// Threads of this account.
    pub fn threads(&self) -> usize {
        self.0.threads.load(Relaxed)
    }
}

/// Ends the threads of these desks, which carry out no access.
fn end_all(desks: Vec<Arc<Desk>>) {
    for desk in desks {
        lock(&desk.state).ended = true;
        desk.changed.notify_all();
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        end_all(std::mem::take(&mut *lock(&self.free)));
    }
}

impl ThreadPool {
    /// A thread that has nothing to do; `None` if all of them are in an access, or the system starts none.
    fn desk(self: &Arc<ThreadPool>) -> Option<Arc<Desk>> {
        if let Some(desk) = lock(&self.free).pop() {
            return Some(desk);
        }
        if self.threads.fetch_add(1, Relaxed) >= THREADS_MAX {
            self.threads.fetch_sub(1, Relaxed);
            return None;
        }
        let desk = Arc::new(Desk::default());
        let (of_thread, pool) = (desk.clone(), Arc::downgrade(self));
        let thread = std::thread::Builder::new().name("burst-memory".into());
        if thread.spawn(move || of_thread.work(&pool)).is_err() {
            self.threads.fetch_sub(1, Relaxed);
            return None;
        }
        Some(desk)
    }
}

impl Desk {
    /// The thread: carries out accesses until the pool ends.
    fn work(self: &Arc<Desk>, pool: &Weak<ThreadPool>) {
        loop {
            let mut state = lock(&self.state);
            let job = loop {
                if state.ended {
                    return;
                }
                match state.job.take() {
                    Some(job) => break job,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let mut buffer = std::mem::take(&mut state.buffer);
            drop(state);
            let moved = job.access.carry_out(&job.memory.file, &mut buffer);
            let mut state = lock(&self.state);
            (state.buffer, state.moved) = (buffer, Some(moved));
            if std::mem::take(&mut state.abandoned) {
                drop(state);
                lock(&job.memory.late).remove();
                match pool.upgrade() {
                    Some(pool) => lock(&pool.free).push(self.clone()),
                    None => return,
                }
            } else {
                self.changed.notify_all();
            }
        }
    }

    /// Has an access carried out and waits for at most `wait`. On success the bytes are in the buffer of the state.
    fn ask(
        &self,
        job: AccessJob,
        fill: impl FnOnce(&mut Vec<u8>),
        wait: Duration,
    ) -> Option<MutexGuard<'_, DeskState>> {
        let until = Instant::now() + wait;
        let mut state = lock(&self.state);
        debug_assert!(state.job.is_none() && !state.abandoned, "a desk that is not free");
        let memory = job.memory.clone();
        fill(&mut state.buffer);
        (state.job, state.moved) = (Some(job), None);
        self.changed.notify_all();
        while state.moved.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                lock(&memory.late).add();
                state.abandoned = true;
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(state)
    }
}

impl Access {
    fn len(self) -> usize {
        match self {
            Access::Read { len, .. } | Access::Write { len, .. } => len,
        }
    }

    fn carry_out(self, file: &File, buffer: &mut Vec<u8>) -> std::io::Result<usize> {
        buffer.resize(buffer.len().max(self.len()), 0);
        match self {
            Access::Read { addr, len } => file.read_exact_at(&mut buffer[..len], addr).map(|()| len),
            Access::Write { addr, len } => file.write_all_at(&buffer[..len], addr).map(|()| len),
        }
    }
}

impl GuardedMemory {
    /// Makes the memory behind the descriptor with number `number` known to the accesses by spans.
    pub(crate) fn register(number: u32, file: File, threads: &AccessThreads) -> Arc<GuardedMemory> {
        let memory = Arc::new(GuardedMemory { file, threads: threads.clone(), late: Mutex::default() });
        let mut all = GUARDED.write().unwrap_or_else(PoisonError::into_inner);
        let before = all.insert(number, memory.clone());
        debug_assert!(before.is_none(), "two memories with one descriptor");
        memory
    }

    /// Forgets the memory with this number.
    pub(crate) fn forget(number: u32) {
        GUARDED.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    fn of(number: u32) -> Result<Arc<GuardedMemory>, Unreachable> {
        GUARDED.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned().ok_or(Unreachable::Gone)
    }

    /// Whether a page has not come for [`LATE_MAX`].
    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.late).since.is_some_and(|since| since.elapsed() >= LATE_MAX)
    }

    /// Fails while an access is in progress that no worker waits for.
    fn check(&self) -> Result<(), Unreachable> {
        match lock(&self.late).since {
            None => Ok(()),
            Some(since) if since.elapsed() < LATE_MAX => Err(Unreachable::Late),
            Some(_) => Err(Unreachable::Gone),
        }
    }

    /// Carries out one access by a thread. `fill` writes the bytes of a write into the thread's buffer; `done` gets the buffer.
    fn access(
        self: &Arc<GuardedMemory>,
        access: Access,
        fill: impl FnOnce(&mut Vec<u8>),
        done: impl FnOnce(&[u8]),
    ) -> Result<(), Unreachable> {
        self.check()?;
        let pool = &self.threads.0;
        let begun = Instant::now();
        let credit = lock(&pool.credit).refill(begun);
        if credit < CREDIT_MIN {
            return Err(Unreachable::Late);
        }
        let desk = pool.desk().ok_or(Unreachable::Late)?;
        let answer = desk.ask(AccessJob { memory: self.clone(), access }, fill, credit.min(WAIT_MAX));
        let result = match answer {
            None => Err(Unreachable::Late),
            Some(state) => {
                let result = match &state.moved {
                    Some(Ok(moved)) => {
                        done(&state.buffer[..*moved]);
                        Ok(())
                    }
                    _ => Err(Unreachable::Gone),
                };
                drop(state);
                lock(&pool.free).push(desk.clone());
                result
            }
        };
        lock(&pool.credit).spend(begun.elapsed());
        result
    }
}

/// Reads `dst.len()` bytes from `addr`.
pub(crate) fn read(number: u32, addr: u64, dst: &mut [u8]) -> Result<(), Unreachable> {
    let memory = GuardedMemory::of(number)?;
    let mut at = addr;
    for part in dst.chunks_mut(ACCESS_BYTES) {
        let len = part.len();
        memory.access(Access::Read { addr: at, len }, |_| (), |bytes| part.copy_from_slice(bytes))?;
        at = at.checked_add(len as u64).ok_or(Unreachable::Gone)?;
    }
    Ok(())
}

/// Writes `src` to `addr`.
pub(crate) fn write(number: u32, addr: u64, src: &[u8]) -> Result<(), Unreachable> {
    let memory = GuardedMemory::of(number)?;
    let fill = |buffer: &mut Vec<u8>| {
        buffer.clear();
        buffer.extend_from_slice(src);
    };
    memory.access(Access::Write { addr, len: src.len() }, fill, |_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_makes_workers_wait_for_a_part_of_the_time_only() {
        let start = Instant::now();
        let mut credit = WaitCredit { left: CREDIT_MAX, counted: start };
        let (mut now, mut waited) = (start, Duration::ZERO);
        while now.duration_since(start) < Duration::from_secs(10) {
            let wait = credit.refill(now).min(WAIT_MAX);
            if wait >= CREDIT_MIN {
                credit.spend(wait + WAIT_FREE);
                waited += wait;
                now += wait;
            } else {
                now += Duration::from_micros(10);
            }
        }
        assert!(waited <= Duration::from_secs(10) * WAIT_PERCENT / 100 + CREDIT_MAX + WAIT_MAX, "{waited:?}");
        assert!(waited >= Duration::from_secs(10) * (WAIT_PERCENT - 1) / 100, "{waited:?}");
    }

    #[test]
    fn short_waits_cost_no_credit() {
        let start = Instant::now();
        let mut credit = WaitCredit { left: CREDIT_MAX, counted: start };
        for _ in 0..10_000 {
            credit.spend(WAIT_FREE);
        }
        assert_eq!(credit.refill(start), CREDIT_MAX);
    }
    #[test]
    fn idle_threads_end_and_start_again() {
        static WORD: u64 = 0x1122_3344;
        let (threads, number) = (AccessThreads::default(), 7_000_001);
        let own = File::open("/proc/self/mem").expect("the memory of this process");
        drop(GuardedMemory::register(number, own, &threads));
        for _ in 0..3 {
            assert_eq!(threads.threads(), 0);
            let mut bytes = [0; 8];
            // A busy machine may be late.
            while read(number, &raw const WORD as u64, &mut bytes) == Err(Unreachable::Late) {
                std::thread::sleep(WAIT_MAX);
            }
            assert_eq!(u64::from_ne_bytes(bytes), WORD);
            // A late access may have left one more thread, which comes back when it has ended.
            while threads.threads() > 0 {
                threads.shrink();
                std::thread::yield_now();
            }
        }
        GuardedMemory::forget(number);
    }
}
