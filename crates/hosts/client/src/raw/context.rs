//! An open device: the control connection, the mapped arena, the doorbells, and the counters and tables that its queues share.
//!
//! Control calls take a mutex and wait for the daemon; the data path takes none of it. After fork a child's copy of a context
//! is dead: every call gives [`ClientError::Forked`] and touches nothing that the parent uses.

use crate::error::{ClientError, Result};
use crate::raw::cookies::{CookieTable, SendSlots};
use crate::raw::copier::DeviceCopier;
use crate::raw::lock::{ControlLock, HeldSignals, lock};
use crate::raw::place::HostPlace;
use crate::raw::prealloc::QpPrealloc;
use burst_base::verbs::{QpState, attr_mask};
use burst_control::in_process::InProcessCalls;
use burst_control::{Client, ControlError, DeviceInfo, ImportObject, QpInitAttr, Request, Response};
use burst_mem::swap::{self, MemoryHost};
use burst_shm::arena::{ArenaView, Segment};
use burst_shm::doorbell::Doorbells;
use burst_shm::life::LifePage;
use burst_shm::status::WorkerView;
use burst_shm::{Area, ShmRef};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most passes of an engine in this process that one poll runs.
const PASSES_MAX: u32 = 8;
/// Name of this program, for the daemon's log.
pub fn program_name() -> String {
    std::fs::read_to_string("/proc/self/comm").map_or_else(|_| "?".into(), |s| s.trim().to_owned())
}

/// An open device.
#[derive(Debug)]
pub struct RawContext {
    life: LifePage,
    control: Arc<ContextControl>,
    /// Doorbells of all queues of this context.
    pub doorbells: DoorbellRinger,
    /// Send queues by the cookie in completions.
    pub send_slots: CookieTable<SendSlots>,
    /// Last cookie given to an object that gets events.
    last_event_cookie: AtomicU64,
    prealloc: Mutex<QpPrealloc>,
    /// Copies to and from the memory of a GPU, once the program has registered such memory.
    copier: Mutex<Option<Arc<DeviceCopier>>>,
    /// Read end of the pipe of asynchronous events. The daemon holds the write end.
    async_pipe: OwnedFd,
    /// Whether it was seen that the daemon has ended.
    has_ended: AtomicBool,
    /// Token of the context that objects can be imported from.
    exporter: Option<u64>,
    /// Token of this context: it proves to the connection manager that a queue pair is this context's.
    token: u64,
    device: DeviceInfo,
    workers: u32,
    /// The functions of the host, if it is in this process.
    in_process: Option<InProcessCalls>,
}

/// The control connection of a context. Fork handlers use it, too.
#[derive(Debug)]
struct ContextControl {
    state: ControlLock<ControlState>,
    /// Whether the program ever asked for memory that a peer might reach: a region, a window, device memory, an import.
    has_memory: AtomicBool,
}

impl MemoryHost for ContextControl {
    fn begin_fork(&self, in_place: bool) {
        self.hold(true, in_place);
    }
    fn end_fork(&self) {
        self.hold(false, false);
    }
}

impl ContextControl {
    fn hold(&self, hold: bool, in_place: bool) {
        if self.has_memory.load(Ordering::Relaxed) {
            // A daemon that does not answer has ended, and accesses nothing.
            let _ = self.state.lock().client.call_in_fork(&Request::HoldMemory { hold, in_place });
        }
    }
}

#[derive(Debug)]
struct ControlState {
    client: Client,
    arena: ArenaView,
}

/// The doorbells of a context, and what wakes workers.
#[derive(Debug)]
pub struct DoorbellRinger {
    tree: Doorbells,
    workers: WorkerView,
    waker: WorkerWaker,
}

/// What wakes a worker that sleeps.
#[derive(Debug)]
enum WorkerWaker {
    /// A descriptor for each worker.
    Descriptors(Box<[OwnedFd]>),
    /// A host in this process, whose worker is marked as asleep for ever: this thread sends what was posted.
    InProcess(InProcessCalls),
}

impl DoorbellRinger {
    /// Rings the doorbell of a queue of a worker, and wakes the worker if it sleeps.
    #[inline]
    pub fn ring(&self, worker: usize, queue: u32) {
        self.tree.ring(worker, queue);
        if self.workers.needs_wake(worker) {
            self.wake(worker);
        }
    }

    /// An alarm for each worker, for threads of the library.
    fn alarms(&self, workers: usize) -> std::io::Result<Vec<WorkerAlarm>> {
        let alarm = |worker: usize| {
            let waker = match &self.waker {
                WorkerWaker::Descriptors(fds) => WorkerWaker::Descriptors(Box::new([fds[worker].try_clone()?])),
                WorkerWaker::InProcess(calls) => WorkerWaker::InProcess(*calls),
            };
            Ok(WorkerAlarm { worker, view: self.workers.clone(), waker })
        };
        (0..workers).map(alarm).collect()
    }

    #[cold]
    fn wake(&self, worker: usize) {
        let fds = match &self.waker {
            WorkerWaker::Descriptors(fds) => fds,
            WorkerWaker::InProcess(calls) => return (calls.posted)(),
        };
        fds.get(worker).into_iter().for_each(wake_by);
    }
}

/// Wakes the worker whose descriptor this is.
fn wake_by(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // The system call itself: a thread may be cancelled in write(2) (pthread_cancel), and must not be cancelled here.
    // SAFETY: eight readable bytes. A failure (counter full) means that the worker is being woken already.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
}

/// What tells a worker from another thread that the program has done something for it.
#[derive(Debug)]
pub(super) struct WorkerAlarm {
    worker: usize,
    view: WorkerView,
    waker: WorkerWaker,
}

impl WorkerAlarm {
    /// Wakes the worker if it sleeps. A host in this process makes a pass in this thread.
    pub(super) fn ring(&self) {
        if !self.view.needs_wake(self.worker) {
            return;
        }
        match &self.waker {
            WorkerWaker::Descriptors(fds) => fds.iter().for_each(wake_by),
            WorkerWaker::InProcess(calls) => drop((calls.turn)()),
        }
    }
}

/// The daemon's answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// The response.
    pub response: Response,
    /// Descriptors that belong to it.
    pub fds: Vec<OwnedFd>,
}

impl RawContext {
    /// Connects to the host at `place` and opens its device number `device`. Objects can be imported from the context
    /// whose token is `exporter`.
    ///
    /// # Errors
    /// When no daemon answers, or it refuses.
    pub fn open(place: &HostPlace, device: u32, exporter: Option<u64>) -> Result<RawContext> {
        let held = HeldSignals::hold();
        let mut client = place.connect(&program_name(), &held)?;
        let answer = client.call(&Request::OpenContext { device }, &[])?;
        let Response::Context { workers, device } = answer.response else {
            return Err(ClientError::Unexpected("no context"));
        };
        let mut arena = ArenaView::new();
        map_segments(&mut arena, answer.segments)?;
        let mut fds = answer.fds.into_iter();
        let (Some(status), Some(async_pipe)) = (fds.next(), fds.next()) else {
            return Err(ClientError::Unexpected("a context without descriptors"));
        };
        let wake: Box<[OwnedFd]> = fds.collect();
        if wake.len() != workers as usize {
            return Err(ClientError::Unexpected("a context without a wake-up descriptor for each worker"));
        }
        let unusable = |_| ClientError::Unexpected("shared memory that cannot be mapped");
        let tree = arena.context().map_err(unusable)?;
        let tree = Doorbells::new(tree).ok_or(ClientError::Unexpected("an arena without doorbells"))?;
        let in_process = place.in_process_calls();
        let waker = in_process.map_or(WorkerWaker::Descriptors(wake), WorkerWaker::InProcess);
        let doorbells = DoorbellRinger { tree, workers: WorkerView::map(status).map_err(unusable)?, waker };
        let Response::Token(token) = client.call(&Request::Token, &[])?.response else {
            return Err(ClientError::Unexpected("no token"));
        };
        let life = LifePage::new().map_err(std::io::Error::from)?;
        let state = ControlLock::new(client, |client| ControlState { client, arena })?;
        let control = Arc::new(ContextControl { state, has_memory: AtomicBool::new(false) });
        swap::add_host(&control);
        Ok(RawContext {
            life,
            control,
            doorbells,
            send_slots: CookieTable::default(),
            last_event_cookie: AtomicU64::new(0),
            prealloc: Mutex::default(),
            copier: Mutex::default(),
            async_pipe,
            has_ended: AtomicBool::new(false),
            exporter,
            token,
            device,
            workers,
            in_process,
        })
    }

    /// Whether this process opened the context: false in a child after fork.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    /// Whether the host is in this process.
    pub fn is_in_process(&self) -> bool {
        self.in_process.is_some()
    }

    /// The functions of the host, if it is in this process.
    #[inline]
    pub fn in_process_calls(&self) -> Option<&InProcessCalls> {
        self.in_process.as_ref()
    }

    /// With a host in this process, runs a pass of its engine. Returns whether completions may have come.
    #[inline]
    pub fn turn(&self) -> bool {
        self.in_process.as_ref().is_some_and(|calls| (calls.turn)() != 0)
    }

    /// With a host in this process, runs passes of its engine until `found` is true after one, as long as they find work and
    /// `PASSES_MAX` at most. Returns whether it was. One pass would not do: a message, its acknowledgement and the completion
    /// take several, and after a pause of the program's thread all of them may be due.
    #[inline]
    pub fn turn_until(&self, mut found: impl FnMut() -> bool) -> bool {
        for _ in 0..PASSES_MAX {
            if !self.turn() {
                return false;
            }
            if found() {
                return true;
            }
        }
        false
    }

    /// The device as it was when the context was opened; [`RawContext::device_now`] asks.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Workers of the daemon, and so completion vectors.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The context's token, for [`burst_control::cm::CmQp`].
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Token of the context that objects can be imported from.
    pub fn exporter(&self) -> Option<u64> {
        self.exporter
    }

    /// Read end of the pipe of asynchronous events ([`burst_control::AsyncRecord`]s).
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.async_pipe.as_fd()
    }

    /// Whether a call has seen that the daemon has ended. Costs a load: for the data path.
    #[inline]
    pub fn is_known_to_have_ended(&self) -> bool {
        // Relaxed: a request is published with a fence before this, and whoever flushes fences after the store.
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the daemon has ended: it held the only write end of the async event pipe.
    #[cold]
    pub fn daemon_has_ended(&self) -> bool {
        self.daemon_ends_within(0)
    }

    /// Whether the daemon has ended, or does so within `ms` milliseconds. The kernel closes the descriptors of a process one by
    /// one: where another one shows the end, this one follows.
    #[cold]
    pub fn daemon_ends_within(&self, ms: i32) -> bool {
        if self.is_known_to_have_ended() {
            // The pipe does not hang up any more once the program has got its events (`ended_pipe`).
            return true;
        }
        let mut entry = libc::pollfd { fd: self.async_pipe.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one valid entry.
        let ended = unsafe { libc::poll(&mut entry, 1, ms) == 1 && entry.revents & libc::POLLHUP != 0 };
        if ended {
            self.has_ended.store(true, Ordering::SeqCst);
        }
        ended
    }

    /// Sends a request with descriptors and waits for the answer. New arena segments are mapped before it returns.
    ///
    /// # Errors
    /// The daemon's refusal, or [`ClientError::Forked`].
    pub fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        if matches!(
            request,
            Request::RegMr { .. } | Request::AllocDm { .. } | Request::AllocMw { .. } | Request::Import { .. }
        ) {
            // Relaxed: a program orders its registrations before the end of a queue pair that could use them.
            self.control.has_memory.store(true, Ordering::Relaxed);
        }
        let mut control = self.control.state.lock_alive(&self.life)?;
        let answer = control.client.call(request, fds)?;
        map_segments(&mut control.arena, answer.segments)?;
        drop(control);
        self.await_copies_of(request);
        Ok(Answer { response: answer.response, fds: answer.fds })
    }

    /// [`RawContext::call`] without descriptors on either side.
    ///
    /// # Errors
    /// As [`RawContext::call`].
    pub fn ask(&self, request: &Request) -> Result<Response> {
        Ok(self.call(request, &[])?.response)
    }

    /// Sends a request whose only answer is "done".
    ///
    /// # Errors
    /// As [`RawContext::call`].
    pub fn execute(&self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            _ => Err(ClientError::Unexpected("more than \"done\"")),
        }
    }

    /// The copier of this context, which is opened for the first registration of device memory. Whoever waits for its copies
    /// holds no lock of the context.
    ///
    /// # Errors
    /// The daemon's refusal, there are no threads, or [`ClientError::Forked`].
    pub(super) fn copier(&self) -> Result<Arc<DeviceCopier>> {
        if !self.is_alive() {
            // Another thread of the parent may have had the lock.
            return Err(ClientError::Forked);
        }
        let mut copier = lock(&self.copier);
        if let Some(copier) = &*copier {
            return Ok(copier.clone());
        }
        DeviceCopier::check()?;
        let alarms = self.doorbells.alarms(self.workers as usize)?;
        let answer = self.call(&Request::OpenCopier, &[])?;
        if answer.fds.len() != alarms.len() {
            return Err(ClientError::Unexpected("no ring for copies for each worker"));
        }
        Ok(copier.insert(Arc::new(DeviceCopier::start(answer.fds, alarms)?)).clone())
    }

    /// Sends a request that has no reply ([`Request::is_without_reply`]), and does not wait.
    ///
    /// # Errors
    /// When the daemon has ended, or [`ClientError::Forked`].
    pub fn send_without_reply(&self, request: &Request) -> Result<()> {
        Ok(self.control.state.lock_alive(&self.life)?.client.send_without_reply(request)?)
    }

    /// Sends the request that ends an object. A daemon that has ended has no objects, and in a child after fork they are the
    /// parent's: in both cases the caller may free its memory.
    ///
    /// # Errors
    /// The daemon's refusal: the object lives on.
    pub fn end_object(&self, request: &Request) -> Result<()> {
        let Ok(mut control) = self.control.state.lock_alive(&self.life) else { return Ok(()) };
        let answer = control.client.call(request, &[]);
        drop(control);
        match answer {
            Err(refusal @ ControlError::Refused { .. }) => Err(refusal.into()),
            _ => {
                self.await_copies_of(request);
                Ok(())
            }
        }
    }

    /// After the end of a queue pair, or its way back to RESET, no bytes for it arrive any more: the copies that it has begun are
    /// waited for.
    fn await_copies_of(&self, request: &Request) {
        let ends = match request {
            Request::DestroyQp { .. } => true,
            Request::ModifyQp { attr, mask, .. } => mask & attr_mask::STATE != 0 && attr.qp_state == QpState::Reset,
            _ => false,
        };
        if ends && let Some(copier) = self.opened_copier() {
            copier.await_begun();
        }
    }

    /// The copier of this context, if it has one.
    fn opened_copier(&self) -> Option<Arc<DeviceCopier>> {
        lock(&self.copier).clone()
    }

    /// Imports an object of the exporting context: the answer, and the object's length.
    ///
    /// # Errors
    /// The daemon's refusal, or that this context was not opened beside another.
    pub fn import(&self, object: ImportObject) -> Result<(Answer, u64)> {
        let token = self.exporter.ok_or(ClientError::Invalid("the context was not opened beside another"))?;
        let answer = self.call(&Request::Import { token, object }, &[])?;
        let Response::Imported { len, .. } = answer.response else {
            return Err(ClientError::Unexpected("no imported object"));
        };
        Ok((answer, len))
    }

    /// `len` bytes of the arena.
    ///
    /// # Errors
    /// When the daemon named a place that is not in the arena.
    pub fn area(&self, at: impl Into<ShmRef>, len: usize) -> Result<Area> {
        self.control.state.lock().arena.area(at.into(), len).ok_or(ClientError::Unexpected("a place outside the arena"))
    }

    /// Whether a peer might reach memory by a queue pair of this context that has no receives posted.
    pub fn has_memory(&self) -> bool {
        self.control.has_memory.load(Ordering::Relaxed)
    }

    /// A cookie for an object that gets events. Cookies count upwards for ever: a late event finds no other object.
    pub fn event_cookie(&self) -> u64 {
        self.last_event_cookie.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The preallocated queue pairs.
    pub(crate) fn prealloc(&self) -> std::sync::MutexGuard<'_, QpPrealloc> {
        lock(&self.prealloc)
    }

    /// Releases the preallocated queue pairs whose attributes `matches` accepts: before an object that they use ends, and
    /// before the context does.
    pub fn release_prealloc(&self, matches: impl Fn(&QpInitAttr) -> bool) {
        if self.is_alive() {
            self.prealloc().release(self, matches);
        }
    }

    /// The device as it is now: addresses and link state change. A child after fork gets it as it was opened.
    ///
    /// # Errors
    /// As [`RawContext::call`], or ENODEV when the daemon no longer has the device.
    pub fn device_now(&self) -> Result<DeviceInfo> {
        if !self.is_alive() {
            return Ok(self.device.clone());
        }
        let Response::Devices(devices) = self.ask(&Request::ListDevices)? else {
            return Err(ClientError::Unexpected("no list of devices"));
        };
        let found = devices.into_iter().find(|device| device.index == self.device.index);
        found.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENODEV).into())
    }
}

impl Drop for RawContext {
    fn drop(&mut self) {
        // No thread has the lock or a clone; in a child after fork it may be taken for ever.
        let copier = self.copier.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.is_alive() {
            // The threads are the parent's.
            std::mem::forget(copier);
        }
    }
}

fn map_segments(arena: &mut ArenaView, segments: Vec<OwnedFd>) -> Result<()> {
    for fd in segments {
        arena.add(Segment::map(fd).map_err(|_| std::io::Error::from_raw_os_error(libc::ENOMEM))?);
    }
    Ok(())
}
