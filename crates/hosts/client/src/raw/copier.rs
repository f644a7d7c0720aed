//! The copier of a context: threads that copy between the staging areas of the daemon's workers and the memory of a GPU.
//!
//! It exists once the program has registered such memory. For each worker there is a ring ([`burst_shm::copy_ring`]) and a
//! thread, which works off its records in their order: it submits up to `BATCH_MAX` copies, asks for their end, tells the
//! worker, and sleeps when there are no more. CUDA's locks are the program's, too: while a kernel of it spins until bytes arrive,
//! and CUDA makes copies wait for the kernel, both wait for ever.
//!
//! A copy that fails ends the copier of that worker: the daemon ends the queue pairs that wait for it. However a thread ends,
//! the staging area stays mapped until CUDA's last copy has ended and has unpinned it; a context that is closed while CUDA does
//! not answer leaves thread and staging area behind. At deregistration the
//! daemon writes no more records for the region, and the program waits for those that it has written (`DeviceCopier::release`).

use crate::error::{ClientError, Result};
use crate::raw::context::WorkerAlarm;
use crate::raw::lock::lock;
use burst_cuda::{CopyState, CudaCopies, CudaDriver, CudaError, DeviceContext};
use burst_mem::signals::SignalMask;
use burst_shm::arena::Segment;
use burst_shm::copy_ring::{CopyDirection, CopyRecord, CopyRingConsumer, CopyRingWaker, STAGING_BYTES};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Copies that are submitted together.
const BATCH_MAX: usize = 32;
/// Questions for the end of copies before the thread sleeps between two.
const QUESTIONS: u32 = 64;
/// That sleep.
const PAUSE: Duration = Duration::from_micros(20);
/// Longest sleep without records.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the threads when the context is closed.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Longest time between two looks at the copies for which a deregistration waits.
const DRAIN_STEP: Duration = Duration::from_millis(10);

/// Memory of a device that is registered.
#[derive(Clone, Copy, Debug)]
struct DeviceRange {
    id: u64,
    addr: u64,
    len: u64,
    context: DeviceContext,
}

/// The ranges that are registered, as all threads see them.
#[derive(Debug, Default)]
struct DeviceRanges {
    last_id: u64,
    list: Vec<DeviceRange>,
}

impl DeviceRanges {
    /// The context of a copy; `None` if its range is not registered.
    fn context_of(&self, record: &CopyRecord) -> Option<DeviceContext> {
        let has = |range: &&DeviceRange| {
            let offset = record.device.checked_sub(range.addr);
            offset.is_some_and(|offset| offset <= range.len && u64::from(record.len) <= range.len - offset)
        };
        self.list.iter().find(has).map(|range| range.context)
    }
}

/// What a thread and the program share.
#[derive(Debug, Default)]
struct CopierState {
    stops: AtomicBool,
    has_failed: AtomicBool,
    /// Copies that have ended, modulo 2^32.
    ended: AtomicU32,
    /// Wakes who waits for them.
    change: Condvar,
    waiters: Mutex<()>,
}

impl CopierState {
    fn note(&self, ended: u64) {
        self.ended.store(ended as u32, Ordering::Release);
        self.change.notify_all();
    }
    fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
        self.change.notify_all();
    }
    /// Waits until so many copies have ended, or none will.
    fn await_ended(&self, written: u32) {
        let mut waiters = lock(&self.waiters);
        let is_open = || (written.wrapping_sub(self.ended.load(Ordering::Acquire)) as i32) > 0;
        while is_open() && !self.has_failed.load(Ordering::Acquire) {
            let waited = self.change.wait_timeout(waiters, DRAIN_STEP);
            waiters = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    /// Waits until the thread uses CUDA no more. False if it still does at `latest`.
    fn await_closed(&self, latest: Instant) -> bool {
        let mut waiters = lock(&self.waiters);
        while !self.has_failed.load(Ordering::Acquire) {
            if Instant::now() >= latest {
                return false;
            }
            let waited = self.change.wait_timeout(waiters, DRAIN_STEP);
            waiters = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The thread of a worker's ring.
#[derive(Debug)]
struct RingThread {
    state: Arc<CopierState>,
    waker: CopyRingWaker,
    thread: Option<JoinHandle<()>>,
}

/// A registration of device memory.
#[derive(Debug)]
pub struct DeviceRegistration {
    id: u64,
}

/// The copier of a context.
#[derive(Debug)]
pub struct DeviceCopier {
    ranges: Arc<Mutex<DeviceRanges>>,
    threads: Vec<RingThread>,
}

impl DeviceCopier {
    /// Whether this process has all that the threads need, before the daemon is asked for rings: it gives them once.
    ///
    /// # Errors
    /// A library without the functions that copies need.
    pub(super) fn check() -> Result<()> {
        let is_whole = CudaDriver::find().is_some_and(|driver| CudaCopies::has_functions(&driver));
        is_whole.then_some(()).ok_or(ClientError::Unexpected("a CUDA driver library without the functions for copies"))
    }

    /// Starts the threads for the rings of the daemon's workers, whose segments these are.
    ///
    /// # Errors
    /// A segment that cannot be mapped, no thread, or a library without the functions that copies need.
    pub(super) fn start(segments: Vec<OwnedFd>, alarms: Vec<WorkerAlarm>) -> Result<DeviceCopier> {
        let unusable = |_| ClientError::Unexpected("a ring for copies that cannot be mapped");
        let mut copier = DeviceCopier { ranges: Arc::default(), threads: Vec::new() };
        for (fd, alarm) in segments.into_iter().zip(alarms) {
            let ring = CopyRingConsumer::new(Segment::map(fd).map_err(unusable)?).map_err(unusable)?;
            let waker = ring.waker();
            let missing = ClientError::Unexpected("a CUDA driver library without the functions for copies");
            let copies = CudaDriver::find().and_then(|driver| CudaCopies::new(driver, ring.staging(), STAGING_BYTES));
            let state = Arc::<CopierState>::default();
            let ranges = copier.ranges.clone();
            let body = RingBody { ring, copies: copies.ok_or(missing)?, state: state.clone(), ranges, alarm };
            let held = SignalMask::block_all();
            let thread = std::thread::Builder::new().name("burst-copier".into()).spawn(move || body.run());
            held.restore();
            copier.threads.push(RingThread { state, waker, thread: Some(thread?) });
        }
        Ok(copier)
    }

    /// Notes a range that is about to be registered.
    pub(super) fn add(&self, addr: u64, len: u64, context: DeviceContext) -> DeviceRegistration {
        let mut ranges = lock(&self.ranges);
        ranges.last_id += 1;
        let id = ranges.last_id;
        ranges.list.push(DeviceRange { id, addr, len, context });
        DeviceRegistration { id }
    }

    /// Waits until the copies that the daemon has begun so far have ended.
    pub(super) fn await_begun(&self) {
        for RingThread { state, waker, .. } in &self.threads {
            state.await_ended(waker.written());
        }
    }

    /// Forgets a range that the daemon does not use any more, when the copies that it has begun have ended.
    pub(super) fn release(&self, registration: &DeviceRegistration) {
        self.await_begun();
        lock(&self.ranges).list.retain(|range| range.id != registration.id);
    }
}

impl Drop for DeviceCopier {
    fn drop(&mut self) {
        for RingThread { state, waker, .. } in &self.threads {
            state.stops.store(true, Ordering::Release);
            waker.wake();
        }
        let latest = Instant::now() + CLOSE_MAX;
        for RingThread { state, thread, .. } in &mut self.threads {
            // Where CUDA does not answer, the thread goes on alone: it owns what CUDA uses, and gives it back once CUDA answers.
            if let Some(thread) = thread.take().filter(|_| state.await_closed(latest)) {
                // A thread that has panicked has ended.
                let _ = thread.join();
            }
        }
    }
}

/// What a thread owns.
struct RingBody {
    ring: CopyRingConsumer,
    copies: CudaCopies,
    state: Arc<CopierState>,
    ranges: Arc<Mutex<DeviceRanges>>,
    alarm: WorkerAlarm,
}

impl Drop for RingBody {
    fn drop(&mut self) {
        if self.copies.close().is_err() {
            // CUDA may still write to the staging area, or has it pinned: it stays mapped for as long as the process.
            std::mem::forget(self.ring.waker());
        }
        // Only now may a program that waits free its memory.
        self.state.fail();
    }
}

/// Why a thread ends.
enum BatchEnd {
    /// The copy with this ticket has failed.
    Failed(u64),
    /// The daemon has written something impossible, or the context is closed.
    Stopped,
}

/// Copies of one context that were submitted.
struct OpenBatch {
    context: DeviceContext,
    first: u64,
    last: u64,
    /// The copy behind them could not be submitted.
    is_cut: bool,
    /// A record of another context, whose turn is next.
    next: Option<CopyRecord>,
}

impl RingBody {
    fn run(mut self) {
        if let BatchEnd::Failed(ticket) = self.work() {
            self.ring.fail(ticket);
            self.alarm.ring();
        }
    }

    fn work(&mut self) -> BatchEnd {
        let mut next = None;
        while !self.state.stops.load(Ordering::Acquire) {
            match self.turn(next.take()) {
                Ok(Some(record)) => next = Some(record),
                Ok(None) => self.ring.sleep(SLEEP_MAX, || self.state.stops.load(Ordering::Acquire)),
                Err(end) => return end,
            }
        }
        BatchEnd::Stopped
    }

    /// Submits the records so far, at most a batch, and waits for their end. Returns a record that is to be submitted next, if
    /// there is one.
    fn turn(&mut self, first: Option<CopyRecord>) -> std::result::Result<Option<CopyRecord>, BatchEnd> {
        let Some(record) = self.next(first)? else { return Ok(None) };
        let batch = self.submit(record)?;
        self.await_end(&batch)?;
        if batch.last >= batch.first {
            self.ring.end(batch.last);
            self.state.note(batch.last);
            self.alarm.ring();
        }
        if batch.is_cut {
            return Err(BatchEnd::Failed(batch.last + 1));
        }
        self.next(batch.next)
    }

    fn next(&mut self, before: Option<CopyRecord>) -> std::result::Result<Option<CopyRecord>, BatchEnd> {
        match before {
            Some(record) => Ok(Some(record)),
            None => self.ring.take().map_err(|_| BatchEnd::Stopped),
        }
    }

    /// Submits a record and those of the same context that follow.
    fn submit(&mut self, record: CopyRecord) -> std::result::Result<OpenBatch, BatchEnd> {
        let context = self.context_of(&record).ok_or(BatchEnd::Failed(record.ticket))?;
        let first = record.ticket;
        let mut batch = OpenBatch { context, first, last: first - 1, is_cut: false, next: None };
        let mut record = record;
        for _ in 0..BATCH_MAX {
            if self.begin(context, &record).is_err() {
                batch.is_cut = true;
                break;
            }
            batch.last = record.ticket;
            match self.next(None)? {
                None => break,
                Some(next) => record = next,
            }
            if batch.last + 1 - first == BATCH_MAX as u64 || self.context_of(&record) != Some(context) {
                batch.next = Some(record);
                break;
            }
        }
        Ok(batch)
    }

    fn context_of(&self, record: &CopyRecord) -> Option<DeviceContext> {
        lock(&self.ranges).context_of(record)
    }

    fn begin(&mut self, context: DeviceContext, record: &CopyRecord) -> std::result::Result<(), CudaError> {
        let host = self.ring.staging().wrapping_add(record.offset as usize);
        let len = record.len as usize;
        // SAFETY: `take` has checked that the bytes are in the staging area, which stays mapped as long as the ring; `drop` waits
        // for all copies before the ring goes.
        unsafe {
            match record.direction {
                CopyDirection::ToDevice => self.copies.to_device(context, host, record.device, len),
                CopyDirection::FromDevice => self.copies.from_device(context, record.device, host, len),
            }
        }
    }

    /// Waits until the copies of a batch have ended.
    fn await_end(&mut self, batch: &OpenBatch) -> std::result::Result<(), BatchEnd> {
        if batch.last < batch.first {
            return Ok(());
        }
        let mut asked = 0;
        loop {
            match self.copies.state(batch.context) {
                Ok(CopyState::Ended) => return Ok(()),
                Ok(CopyState::UnderWay) if asked < QUESTIONS => {
                    asked += 1;
                    std::thread::yield_now();
                }
                Ok(CopyState::UnderWay) => std::thread::sleep(PAUSE),
                // Which of them it was, CUDA does not say.
                Err(_) => return Err(BatchEnd::Failed(batch.first)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_belongs_to_the_range_that_has_all_of_it() {
        let context = |addr: usize| {
            // SAFETY: an address in the representation of a context, which is only compared.
            unsafe { std::mem::transmute::<usize, DeviceContext>(addr) }
        };
        let mut ranges = DeviceRanges::default();
        ranges.list.push(DeviceRange { id: 1, addr: 0x1000, len: 0x100, context: context(1) });
        ranges.list.push(DeviceRange { id: 2, addr: 0x1080, len: 0x100, context: context(2) });
        let of = |device, len| {
            ranges.context_of(&CopyRecord { ticket: 1, direction: CopyDirection::ToDevice, offset: 0, device, len })
        };
        assert_eq!((of(0x1000, 0x100), of(0x1090, 0x80)), (Some(context(1)), Some(context(2))));
        assert_eq!([of(0xfff, 1), of(0x1000, 0x101), of(0x1180, 1), of(u64::MAX, u32::MAX)], [None; 4]);
    }

    #[test]
    fn a_wait_ends_with_the_copies_or_their_failure() {
        let state = CopierState::default();
        state.await_ended(0);
        state.note(5);
        state.await_ended(5);
        state.await_ended(u32::MAX - 10);
        state.fail();
        state.await_ended(6);
    }
}
