//! An open device: the control connection, the mapped arena, the doorbells, and the tables by which numbers find objects.
//!
//! [`Context`] ends with nothing that an application sees: its first field is rdma-core's `verbs_context`, whose last field
//! is the `ibv_context` that applications hold. Control calls are serialized by a mutex, the data path takes none of it.

use crate::device::{Device, program_name};
use crate::door::{EINVAL, EIO, ENOMEM, Errno, Outcome};
use crate::fork::LifePage;
use crate::import;
use crate::prealloc::QpPrealloc;
use crate::registry::{QpTable, Sources, lock};
use crate::sys::*;
use burst_control::{Client, DeviceInfo, ImportObject, QpInitAttr, Request, Response};
use burst_ffi::say;
use burst_shm::arena::{ArenaView, Segment};
use burst_shm::doorbell::Doorbells;
use burst_shm::status::WorkerView;
use burst_shm::{Area, ShmRef};
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// `abi_compat` of a context whose extended operations are there (`__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;

/// An open device.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    life: LifePage,
    control: Mutex<Control>,
    /// Rings of all queues of this context.
    pub bells: Bells,
    /// Queue pairs by completion cookie.
    pub qps: QpTable,
    /// Objects by event cookie.
    pub sources: Mutex<Sources>,
    /// Queue pairs that the daemon made before the program asks for them.
    pub prealloc: Mutex<QpPrealloc>,
    /// Whether there ever was memory that a peer might reach: a region, a window, device memory.
    has_memory: AtomicBool,
    /// Read end of the async event pipe; `async_fd` is its number.
    async_pipe: OwnedFd,
    /// Token of the context that objects can be imported from.
    exporter: Option<u64>,
    /// What `cmd_fd` is the number of.
    _name: OwnedFd,
}

struct Control {
    client: Client,
    arena: ArenaView,
}

/// What posting needs in order to be heard.
#[derive(Debug)]
pub struct Bells {
    tree: Doorbells,
    workers: WorkerView,
    wake: Box<[OwnedFd]>,
}

impl Bells {
    /// Rings for a queue of a worker, and wakes the worker if it sleeps.
    #[inline]
    pub fn ring(&self, worker: usize, queue: u32) {
        self.tree.ring(worker, queue);
        if self.workers.needs_wake(worker) {
            self.wake(worker);
        }
    }

    #[cold]
    fn wake(&self, worker: usize) {
        let one = 1u64.to_ne_bytes();
        if let Some(fd) = self.wake.get(worker) {
            // The bare system call, because write(2) is a place where a thread may be cancelled, and this one is not.
            // SAFETY: eight readable bytes. A failure (counter full) means that the worker is being woken already.
            unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
        }
    }
}

/// An answer's parts.
pub struct Answer {
    /// The response.
    pub response: Response,
    /// Descriptors that belong to it.
    pub fds: Vec<OwnedFd>,
}

impl Context {
    /// Connects to the device's daemon and opens a context.
    pub fn open(device: &Device) -> Outcome<*mut ibv_context> {
        Context::open_beside(device, None)
    }

    /// As [`Context::open`]; objects can be imported from the context whose token is given.
    pub fn open_beside(device: &Device, exporter: Option<u64>) -> Outcome<*mut ibv_context> {
        let mut client = Client::connect(&device.socket, &program_name())?;
        let answer = client.call(&Request::OpenContext { device: device.info.index }, &[])?;
        let Response::Context { workers, .. } = answer.response else { return Err(EIO) };
        let mut arena = ArenaView::new();
        map_segments(&mut arena, answer.segments)?;
        let mut fds = answer.fds.into_iter();
        let (status, async_pipe) = (fds.next().ok_or(EIO)?, fds.next().ok_or(EIO)?);
        let wake: Box<[OwnedFd]> = fds.collect();
        if wake.len() != workers as usize {
            return Err(EIO);
        }
        let tree = Doorbells::new(arena.context().map_err(|_| EIO)?).ok_or(EIO)?;
        let bells = Bells { tree, workers: WorkerView::map(status).map_err(|_| EIO)?, wake };
        let Response::Token(token) = client.call(&Request::Token, &[])?.response else { return Err(EIO) };
        // An imported context names the one that its objects come from: it can be passed on.
        let name = import::name_file(exporter.unwrap_or(token), device.info.index, &device.socket)?;
        device.retain();
        let verbs = verbs_of(device, name.as_raw_fd(), async_pipe.as_raw_fd(), workers);
        let context = Box::new(Context {
            verbs,
            life: LifePage::new().map_err(|_| ENOMEM)?,
            control: Mutex::new(Control { client, arena }),
            bells,
            qps: QpTable::default(),
            sources: Mutex::default(),
            prealloc: Mutex::default(),
            has_memory: AtomicBool::new(false),
            async_pipe,
            exporter,
            _name: name,
        });
        Ok(Box::into_raw(context).cast::<u8>().wrapping_add(offset_of!(verbs_context, context)).cast())
    }

    /// Whether the daemon has ended: the write end of the async event pipe was its own.
    #[cold]
    pub fn daemon_is_gone(&self) -> bool {
        let mut look = libc::pollfd { fd: self.async_pipe.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one valid entry; no waiting.
        let gone = unsafe { libc::poll(&mut look, 1, 0) == 1 && look.revents & libc::POLLHUP != 0 };
        if gone {
            say::daemon_gone();
        }
        gone
    }

    /// Ends a context.
    ///
    /// # Safety
    /// `context` must come from [`Context::open`], once, and not be used afterwards.
    pub unsafe fn close(context: *mut ibv_context) -> Outcome<()> {
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the pointer was derived from the box in `open` by this distance.
        let context = unsafe { Box::from_raw(whole(context)) };
        let device = context.verbs.context.device;
        if context.is_alive() {
            // What ends with its context ends uncleanly; these were never used.
            lock(&context.prealloc).release(&context, |_| true);
        }
        // In a child the connection is the parent's: dropping our copy of the descriptors says nothing to the daemon.
        drop(context);
        // SAFETY: `open` retained the device.
        unsafe { Device::release(device) };
        Ok(())
    }

    /// The context behind an application's pointer, if this process made it.
    ///
    /// # Safety
    /// `context` must be NULL or an open context of this library.
    #[inline]
    pub unsafe fn from_ibv<'a>(context: *mut ibv_context) -> Outcome<&'a Context> {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::even_dead(context) }?;
        if context.life.is_alive() { Ok(context) } else { Err(EIO) }
    }

    /// As [`Context::from_ibv`], also in a child process: for calls that only free memory.
    ///
    /// # Safety
    /// As for [`Context::from_ibv`].
    #[inline]
    pub unsafe fn even_dead<'a>(context: *mut ibv_context) -> Outcome<&'a Context> {
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an open context.
        Ok(unsafe { Context::of(context) })
    }

    /// As [`Context::even_dead`], for a pointer that an object of this library holds, which is never NULL.
    ///
    /// # Safety
    /// As for [`Context::from_ibv`].
    #[inline]
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: the caller gives an open context, which `open` made inside a `Context`.
        unsafe { &*whole(context) }
    }

    /// Whether this process made the context.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Descriptor of the async event pipe.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.async_pipe.as_fd()
    }

    /// Completion vectors, from 0.
    pub fn vectors(&self) -> c_int {
        self.verbs.context.num_comp_vectors
    }

    /// Asks the daemon; maps new arena segments before the answer is used.
    pub fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Outcome<Answer> {
        if !self.is_alive() {
            return Err(EIO);
        }
        if matches!(
            request,
            Request::RegMr { .. } | Request::AllocDm { .. } | Request::AllocMw { .. } | Request::Import { .. }
        ) {
            // Relaxed: a program orders its registrations before the end of a queue pair that could use them.
            self.has_memory.store(true, Ordering::Relaxed);
        }
        let mut control = lock(&self.control);
        let answer = control.client.call(request, fds)?;
        map_segments(&mut control.arena, answer.segments)?;
        Ok(Answer { response: answer.response, fds: answer.fds })
    }

    /// Asks the daemon a question without descriptors on either side.
    pub fn ask(&self, request: &Request) -> Outcome<Response> {
        Ok(self.call(request, &[])?.response)
    }

    /// Tells the daemon something that has no answer.
    pub fn say(&self, request: &Request) -> Outcome<()> {
        if !self.is_alive() {
            return Err(EIO);
        }
        Ok(lock(&self.control).client.send_without_reply(request)?)
    }

    /// Asks the daemon for something that has no answer but "done".
    pub fn tell(&self, request: &Request) -> Outcome<()> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Imports an object of the exporting context: the answer, and the object's length.
    pub fn import(&self, object: ImportObject) -> Outcome<(Answer, u64)> {
        let token = self.exporter.ok_or(EINVAL)?;
        let answer = self.call(&Request::Import { token, object }, &[])?;
        let Response::Imported { len, .. } = answer.response else { return Err(EIO) };
        Ok((answer, len))
    }

    /// Tells the daemon that an object ends. A daemon that is gone has no objects, and in a child they are the
    /// parent's: the memory may be freed in both cases.
    pub fn tell_end(&self, request: &Request) -> Outcome<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match lock(&self.control).client.call(request, &[]) {
            Err(burst_control::ControlError::Refused { errno, .. }) => Err(Errno(errno)),
            _ => Ok(()),
        }
    }

    /// Whether a peer might reach memory by a queue pair of this context that has no receives posted.
    pub fn has_memory(&self) -> bool {
        self.has_memory.load(Ordering::Relaxed)
    }

    /// Releases the preallocated queue pairs whose attributes `matches` accepts: before an object that they use ends.
    pub fn release_prealloc(&self, matches: impl Fn(&QpInitAttr) -> bool) {
        if self.is_alive() {
            lock(&self.prealloc).release(self, matches);
        }
    }

    /// `len` bytes of the arena.
    pub fn area(&self, at: impl Into<ShmRef>, len: usize) -> Outcome<Area> {
        lock(&self.control).arena.area(at.into(), len).ok_or(EIO)
    }

    /// The device as it is now: addresses and link state change. A child after fork gets it as it was listed.
    pub fn device_now(&self) -> Outcome<DeviceInfo> {
        // SAFETY: the context holds a reference to its device.
        let listed = unsafe { &Device::from_ibv(self.verbs.context.device)?.info };
        if !self.is_alive() {
            return Ok(listed.clone());
        }
        let index = listed.index;
        let Response::Devices(devices) = self.ask(&Request::ListDevices)? else { return Err(EIO) };
        devices.into_iter().find(|d| d.index == index).ok_or(Errno(libc::ENODEV))
    }
}

/// The `Context` around an application's `ibv_context`.
#[inline]
fn whole(context: *mut ibv_context) -> *mut Context {
    const { assert!(offset_of!(Context, verbs) == 0) };
    context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).cast()
}

fn map_segments(arena: &mut ArenaView, segments: Vec<OwnedFd>) -> Outcome<()> {
    for fd in segments {
        arena.add(Segment::map(fd).map_err(|_| Errno(libc::ENOMEM))?);
    }
    Ok(())
}

/// The operation tables. Extended operations that are not offered stay NULL; applications then see EOPNOTSUPP. The data
/// path operations and those of memory windows are called without a NULL test by some headers, so they are always set.
fn verbs_of(device: &Device, cmd_fd: c_int, async_fd: c_int, workers: u32) -> verbs_context {
    let mut verbs = verbs_context {
        query_port: Some(crate::port::query_port),
        query_device_ex: Some(crate::port::query_device_ex),
        create_qp_ex: Some(crate::qp::create_qp_ex),
        create_cq_ex: Some(crate::cq_ex::create_cq_ex),
        modify_cq: Some(crate::cq_ex::modify_cq),
        query_rt_values: Some(crate::cq_ex::query_rt_values),
        advise_mr: Some(crate::rereg::advise_mr),
        alloc_dm: Some(crate::dm::alloc_dm),
        free_dm: Some(crate::dm::free_dm),
        reg_dm_mr: Some(crate::dm::reg_dm_mr),
        alloc_td: Some(crate::domain::alloc_td),
        dealloc_td: Some(crate::domain::dealloc_td),
        alloc_parent_domain: Some(crate::domain::alloc_parent_domain),
        open_xrcd: Some(crate::xrc::open_xrcd),
        close_xrcd: Some(crate::xrc::close_xrcd),
        create_srq_ex: Some(crate::xrc::create_srq_ex),
        get_srq_num: Some(crate::xrc::get_srq_num),
        open_qp: Some(crate::xrc::open_qp),
        sz: size_of::<verbs_context>(),
        ..Default::default()
    };
    let context = &mut verbs.context;
    context.device = device.as_ibv();
    context.cmd_fd = cmd_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = workers.max(1) as c_int;
    context.abi_compat = EXTENDED as *mut _;
    context.ops.poll_cq = Some(crate::poll::poll_cq);
    context.ops.req_notify_cq = Some(crate::poll::req_notify_cq);
    context.ops.post_send = Some(crate::post::post_send);
    context.ops.post_recv = Some(crate::post::post_recv);
    context.ops.post_srq_recv = Some(crate::post::post_srq_recv);
    context.ops.alloc_mw = Some(crate::mw::alloc_mw);
    context.ops.dealloc_mw = Some(crate::mw::dealloc_mw);
    context.ops.bind_mw = Some(crate::mw::bind_mw);
    // SAFETY: `mutex` has the size of the C library's mutex, for which all zeros is the initial value.
    unsafe { libc::pthread_mutex_init((&raw mut context.mutex).cast(), std::ptr::null()) };
    verbs
}
